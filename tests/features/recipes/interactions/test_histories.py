"""Histories of the recipes for interactions, against slow loops over all rows."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.recipes.interactions.histories import HistorySettings, with_histories
from gigabatch.features.recipes.interactions.layout import Layout
from gigabatch.features.recipes.interactions.recipe import InteractionsRecipe, InteractionsSettings
from gigabatch.features.recipes.interactions.side_tables import SideTable
from gigabatch.features.recipes.interactions.splits import GIVEN, InteractionRules, interaction_tables
from gigabatch.features.recipes.movielens.recipe import MovieLensRecipe, MovieLensSettings
from gigabatch.features.schema import ListColumn
from gigabatch.features.synthetic.movielens import write_movielens
from tests.examples import examples
from tests.features.interaction_logs import SPLITS, all_rows, build, make_log

TIMED = Layout("user", "item", {"user": "int64", "item": "int64"}, time="at", rating="stars")
ROW = st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(-3, 4), st.integers(1, 5))


def as_frame(rows, dtype="int64"):
    frame = pd.DataFrame(rows, columns=["user", "item", "at", "stars"]).astype("int64")
    return frame.assign(
        row_number=np.arange(len(frame)), stars=frame["stars"].astype("float64"), at=frame["at"].astype(dtype)
    )


def slow_histories(rows, split_of, least, length, half_life=None):
    """By row number (items, weights): of each row a loop over all rows that were kept.

    rows: (user, item, time, stars) by row number. split_of: place of the split by row number, of the rows kept.
    """
    found = {}
    for number, split in split_of.items():
        user, _, at, _ = rows[number]
        seen = [
            (rows[other][2], other)
            for other, earlier in split_of.items()
            if rows[other][0] == user and rows[other][2] < at and earlier <= split and rows[other][3] >= least
        ]
        last = sorted(seen)[-length:]
        weights = [0.5 ** ((at - then) / half_life) for then, _ in last] if half_life else None
        found[number] = [rows[other][1] for _, other in last], weights
    return found


def histories_of(splits):
    weighted = "history_weights" in splits["train"].columns
    return {
        number: (list(items), list(weights) if weighted else None)
        for frame in splits.values()
        for number, items, weights in zip(
            frame["row_number"], frame["history"], frame["history_weights" if weighted else "history"], strict=True
        )
    }


def assert_equal(found, expected):
    assert {number: items for number, (items, _) in found.items()} == {
        number: items for number, (items, _) in expected.items()
    }
    for number, (_, weights) in expected.items():
        if weights is not None:
            np.testing.assert_allclose(found[number][1], np.array(weights), rtol=1e-6)


@settings(max_examples=examples(120), deadline=None)
@given(
    rows=st.lists(ROW, min_size=3, max_size=30),
    rules=st.fixed_dictionaries({
        "task": st.sampled_from(["ranking", "rating"]),
        "threshold": st.sampled_from([None, 3.0]),
        "split_by": st.sampled_from(["leave_one_out", "time", "random"]),
        "repeats": st.just("all"),  # those of `last`: test_repeats.py
    }),
    given_splits=st.booleans(),
    length=st.integers(1, 4),
    half_life=st.sampled_from([None, 0.5, 3]),
    dtype=st.sampled_from(["int64", "float64"]),
)  # fmt: skip
def test_histories_are_those_of_a_slow_loop(rows, rules, given_splits, length, half_life, dtype):
    frame = as_frame(rows, dtype)
    chosen = InteractionRules(**rules, history=HistorySettings(length, half_life))
    if given_splits:
        frame[GIVEN] = np.arange(len(frame)) * 3 // len(frame)
        chosen = GivenRules(**rules | {"split_by": None}, history=HistorySettings(length, half_life))
    try:
        tables = interaction_tables(frame, TIMED, chosen, {})
    except DataError:  # rows that cannot be split so, which others test
        reject()
    place = {name: number for number, name in enumerate(SPLITS)}
    split_of = {row: place[name] for name, part in tables.splits.items() for row in part["row_number"]}
    least = rules["threshold"] or (4.0 if rules["task"] == "rating" else -math.inf)
    assert_equal(histories_of(tables.splits), slow_histories(rows, split_of, least, length, half_life))


class GivenRules(InteractionRules):
    """Rules of splits that the rows bring along."""

    way = "given"


def test_the_loop_above_sees_each_kind_of_rows():
    """What the property test stands on: rows of one moment, a shorter and a longer past, splits out of order."""
    rows = [(0, 1, 0, 5), (0, 2, 0, 5), (0, 3, 1, 1), (0, 4, 2, 5), (0, 5, 3, 5), (1, 6, 1, 5)]
    split_of = {0: 0, 1: 2, 2: 0, 3: 0, 4: 1, 5: 0}
    found = slow_histories(rows, split_of, 3, 2, 2.0)
    assert {row: items for row, (items, _) in found.items()} == {
        0: [], 1: [], 2: [1], 3: [1], 4: [1, 4], 5: []
    }  # fmt: skip
    assert found[4][1] == [0.5**1.5, 0.5**0.5]


def test_the_order_of_the_file_changes_no_history(tmp_path):
    log = make_log()
    log["when"] = np.random.default_rng(1).permutation(len(log))  # no two at one time, whose order is the file's
    settings_of = {"contexts": ("hour",), "history": HistorySettings(5, 100), "split_by": "time"}
    one = all_rows(build(tmp_path, log, "one.csv", **settings_of)).sort_values("when")
    shuffled = log.sample(frac=1, random_state=3)
    other = all_rows(build(tmp_path, shuffled, "other.csv", **settings_of)).sort_values("when")
    assert [list(row) for row in one["history"]] == [list(row) for row in other["history"]]
    assert [list(row) for row in one["history_weights"]] == [list(row) for row in other["history_weights"]]
    assert max(len(row) for row in one["history"]) == 5


@pytest.mark.parametrize("seed", range(3))
def test_what_is_of_one_moment_is_in_the_order_of_the_file_wherever_it_comes_from(seed):
    """As where a row of train and one of valid are of one moment, and one of test comes later."""
    events = as_frame([(0, item, 0, 5) for item in range(8)])
    rows = as_frame([(0, 9, 1, 5)])
    shuffled = events.sample(frac=1, random_state=seed)
    found = with_histories(rows, shuffled, TIMED, HistorySettings(5), "row_number", rows["at"])
    assert list(found["history"].iloc[0]) == [3, 4, 5, 6, 7]


def test_a_text_of_a_log_is_read_to_lists_of_its_items(tmp_path):
    log = make_log()
    tables = build(tmp_path, log, task="rating", history=HistorySettings(3))
    rows = list(zip(log["who"], log["what"], log["when"], log["stars"], strict=True))
    place = {name: number for number, name in enumerate(SPLITS)}
    split_of = {row: place[name] for name, part in tables.splits.items() for row in part["row_number"]}
    by_user = {}
    for row in split_of:
        by_user.setdefault(rows[row][0], {})[row] = split_of[row]
    expected = {}
    for own in by_user.values():
        expected |= slow_histories(rows, own, 4, 3)
    assert_equal(histories_of(tables.splits), expected)
    assert tables.schema.lists == (ListColumn("history", "string", "what", None, 3),)
    assert "history" not in {name for entity in tables.schema.entities for name in entity.columns}
    empty = {name: sum(not expected[row][0] for row in part["row_number"]) for name, part in tables.splits.items()}
    said = ", ".join(f"{empty[name]:,} of {len(tables.splits[name]):,} rows of {name}" for name in SPLITS)
    assert f"Empty histories: {said}." in tables.notes


def test_histories_share_the_ids_of_their_items(tmp_path):
    tables = build(tmp_path, make_log(), history=HistorySettings(4, 500.0))
    preprocessor = Preprocessor(tables.schema).fit([tables.splits["train"]])
    frame = tables.splits["test"]
    (packed,) = preprocessor.pack_lists(frame)
    ids = dict(
        zip(preprocessor.vocabularies["what"].values, range(3, 1000), strict=False)
    )  # 0 padding, 1 null, 2 unseen
    expected = [ids.get(item, 2) for row in frame["history"] for item in row]
    assert packed.ids.tolist() == expected
    assert packed.weights is not None
    assert packed.weights.tolist() == [weight for row in frame["history_weights"] for weight in row]
    assert 0 < packed.weights.min() < packed.weights.max() < 1


@pytest.mark.parametrize(
    ("half_life", "unit", "expected"),
    [("2d", "us", 0.5), ("48h", "s", 0.5), ("1 d", "ms", 0.25), (2 * 86_400.0, "s", 0.5), ("0.5d", "us", 0.0625)],
)
def test_a_half_life_has_the_unit_of_the_times(half_life, unit, expected):
    """Of an item two days old."""
    ticks = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}[unit]
    layout = Layout("user", "item", {"user": "int64", "item": "int64"}, time="at", time_unit=unit)
    frame = pd.DataFrame({"user": [1, 1], "item": [7, 8], "at": [0, 2 * ticks], "row_number": [0, 1]})
    found = with_histories(frame, frame, layout, HistorySettings(5, half_life), "row_number", frame["at"])
    assert [list(row) for row in found["history_weights"]] == [[], [expected]]


def test_dates_have_half_lives_with_a_unit_and_numbers_without(tmp_path):
    log = make_log()
    dates = log.assign(when=pd.Timestamp("2024-01-01") + pd.to_timedelta(log["when"], unit="min"))
    found = all_rows(build(tmp_path, dates, history=HistorySettings(3, "2h")))
    same = all_rows(build(tmp_path, log, history=HistorySettings(3, 120)))
    assert [list(row) for row in found["history"]] == [list(row) for row in same["history"]]
    weights, again = (np.concatenate(list(rows["history_weights"])) for rows in (found, same))
    np.testing.assert_allclose(weights, again, rtol=1e-6)
    with pytest.raises(DataError, match=r"half_life is 2, and 'when' holds times of the calendar. .* such as 2d"):
        build(tmp_path, dates, history=HistorySettings(3, 2))
    with pytest.raises(DataError, match=r"half_life is 2h, and 'when' holds plain numbers"):
        build(tmp_path, log, history=HistorySettings(3, "2h"))


def test_histories_stand_beside_side_tables_and_contexts(tmp_path):
    log = make_log()
    items = sorted(set(log["what"]))
    pd.DataFrame({"what": items, "brand": [f"b{n % 7}" for n in range(len(items))]}).to_csv(
        tmp_path / "items.csv", index=False
    )
    side = {"item": SideTable(str(tmp_path / "items.csv"), categorical=("brand",))}
    history = HistorySettings(3)
    tables = build(tmp_path, log, contexts=("place", "hour"), continuous=("price",), side_tables=side, history=history)
    alone = build(tmp_path, log, contexts=("place", "hour"), history=history)
    assert tables.schema.table_columns == [*tables.schema.names(), "history"]
    for name in SPLITS:
        assert tables.splits[name].columns.tolist() == tables.schema.table_columns
        assert [list(row) for row in tables.splits[name]["history"]] == [
            list(row) for row in alone.splits[name]["history"]
        ]
    brands = dict(zip(items, [f"b{n % 7}" for n in range(len(items))], strict=True))
    test = tables.splits["test"]
    assert test["brand"].tolist() == [brands[item] for item in test["what"]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"time": None}, "history needs time"),
        ({"contexts": ("history",)}, "'history' is a column that the recipe makes"),
        ({"continuous": ("history_weights",)}, "'history_weights' is a column that the recipe makes"),
        (
            {"side_tables": {"item": SideTable("items.csv", categorical=("history",))}},
            r"items.csv: column 'history' is a column of the interactions too",
        ),
    ],
)
def test_settings_that_leave_no_room_for_histories_are_refused(changes, said):
    given_settings = {"path": "log.csv", "time": "at", "history": HistorySettings(5, "1d")} | changes
    with pytest.raises(DataError, match=said):
        InteractionsSettings(**given_settings)


@pytest.mark.parametrize(
    ("settings_of", "said"),
    [
        ({"length": 0}, "length must be at least 1, found 0"),
        ({"length": True}, "length must be at least 1, found True"),
        ({"half_life": "30"}, "half_life is '30'. Write a number and a unit"),
        ({"half_life": "30y"}, "unknown unit 'y'"),
        ({"half_life": "0d"}, "half_life must be above 0"),
        ({"half_life": -1}, "half_life must be above 0"),
        ({"half_life": math.nan}, "half_life must be above 0"),
        ({"half_life": True}, "text such as 30d or a number, found True"),
        ({"separator": ""}, "separator must be text that is not empty"),
    ],
)
def test_histories_that_cannot_be_are_refused(settings_of, said):
    with pytest.raises(DataError, match=said):
        HistorySettings(**settings_of)


def test_histories_need_times():
    frame = as_frame([(0, 1, 0, 5), (0, 2, 1, 5), (0, 3, 2, 5)])
    rules = InteractionRules(history=HistorySettings(5))
    untimed = Layout("user", "item", {"user": "int64", "item": "int64"})
    with pytest.raises(DataError, match="history needs time"):
        interaction_tables(frame, untimed, rules, {})


def test_no_interaction_at_all_is_an_empty_history():
    rows = as_frame([(0, 1, 0, 5), (1, 2, 1, 5)])
    found = with_histories(rows, rows.iloc[:0], TIMED, HistorySettings(5, 1.0), "row_number", rows["at"])
    assert [list(row) for row in found["history"]] == [list(row) for row in found["history_weights"]] == [[], []]
    nothing = with_histories(rows.iloc[:0], rows, TIMED, HistorySettings(5), "row_number", rows["at"].iloc[:0])
    assert len(nothing["history"]) == 0


def scored(tmp_path, rows, log=None, columns=("who", "what", "history"), name="ask.csv", **changes):
    """Rows to be scored as the recipe reads them."""
    if isinstance(rows, pd.DataFrame):
        rows.to_csv(tmp_path / name, index=False) if name.endswith("csv") else rows.to_parquet(tmp_path / name)
    if log is not None:
        log.to_csv(tmp_path / "log.csv", index=False)
    given_settings = {
        "path": str(tmp_path / "log.csv"), "user": "who", "item": "what", "time": "when", "rating": "stars",
        "history": HistorySettings(3),
    } | changes  # fmt: skip
    return InteractionsRecipe(InteractionsSettings(**given_settings)).raw_rows("pandas", str(tmp_path / name), columns)


@pytest.mark.parametrize("repeats", ["last", "all"])
def test_rows_of_test_are_scored_with_the_histories_that_they_were_evaluated_with(tmp_path, repeats):
    log = pd.concat([make_log(), make_log().sample(300, random_state=1).assign(when=9_999)], ignore_index=True)
    settings_of = {"history": HistorySettings(4, 300.0), "split_by": "time", "repeats": repeats}
    tables = build(tmp_path, log, **settings_of)
    for name, ask in (("test", "test.csv"), ("train", "train.csv")):
        frame = tables.splits[name]
        ask_for = frame[["who", "what", "when"]]
        columns = ("who", "what", "history", "history_weights")
        found = scored(tmp_path, ask_for, columns=columns, name=ask, **settings_of)
        for column in ("history", "history_weights"):
            assert [list(row) for row in found[column]] == [list(row) for row in frame[column]]


def test_rows_without_a_time_are_scored_with_what_is_known_last(tmp_path):
    log = pd.DataFrame({"who": list("aaabb"), "what": list("xyzxy"), "when": [1, 2, 3, 3, 2], "stars": [5, 1, 5, 2, 5]})
    ask = pd.DataFrame({"who": ["b", "c", "a"], "what": ["x", "x", "w"]})
    columns = ("who", "what", "history", "history_weights")
    half = HistorySettings(3, 1.0)
    found = scored(tmp_path, ask, log, columns, history=half)
    assert [list(row) for row in found["history"]] == [["y", "x"], [], ["x", "y", "z"]]
    assert [list(row) for row in found["history_weights"]] == [[0.5, 1.0], [], [0.25, 0.5, 1.0]]
    found = scored(tmp_path, ask, log, columns, history=half, task="rating")
    assert [list(row) for row in found["history"]] == [["y"], [], ["x", "z"]]


@pytest.mark.parametrize("name", ["ask.csv", "ask.parquet"])
@pytest.mark.parametrize(("time_type", "written"), [
    ("datetime[%d.%m.%Y]", ["01.02.2024", "15.01.2024", "03.01.2024"]), ("datetime[s]", [300, 200, 100]),
    ("datetime", ["2024-02-01", "2024-01-15", "2024-01-03T00:00"]),
])  # fmt: skip
def test_rows_whose_times_are_of_a_type_are_scored_as_of_these(tmp_path, time_type, written, name):
    """As text, 01.02.2024 would lie before 15.01.2024."""
    log = pd.DataFrame({"who": ["a"] * 3, "what": list("zyx"), "when": written, "stars": [5] * 3})
    ask = pd.DataFrame({"who": ["a"] * 2, "what": ["w"] * 2, "when": written[:2]})
    found = scored(tmp_path, ask, log, name=name, time_type=time_type)
    assert [list(row) for row in found["history"]] == [["x", "y"], ["x"]]
    assert found["when"].is_monotonic_decreasing


def test_all_given_splits_are_looked_at_for_rows_to_be_scored(tmp_path):
    for number, name in enumerate(SPLITS):
        frame = pd.DataFrame({"who": ["a"], "what": [name], "when": [number], "stars": [5]})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    paths = {"path": "train", "valid_path": "valid", "test_path": "test"}
    paths = {setting: str(tmp_path / f"{name}.csv") for setting, name in paths.items()}
    found = scored(tmp_path, pd.DataFrame({"who": ["a"], "what": ["x"]}), **paths)
    assert list(found["history"].iloc[0]) == ["train", "valid", "test"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_histories_of_the_files_to_be_scored_are_taken(tmp_path, kind):
    log = pd.DataFrame({"who": ["a"], "what": ["x"], "when": [1], "stars": [5]})
    lists, weights = [["p", "q"], [], ["r"]], [[0.5, 0.25], [], [1.0]]
    ask = pd.DataFrame({"who": ["a", "b", "a"], "what": ["x", "x", "y"], "history": lists, "history_weights": weights})
    if kind == "csv":
        for name in ("history", "history_weights"):
            ask[name] = ["+".join(map(str, row)) for row in ask[name]]
    columns = ("who", "what", "history", "history_weights")
    history = HistorySettings(3, 1.0, separator="+")
    found = scored(tmp_path, ask, log, columns, name=f"ask.{kind}", history=history, null_values=("NA",))
    assert [list(row) for row in found["history"]] == lists
    assert [list(row) for row in found["history_weights"]] == weights


def test_files_to_be_scored_that_do_not_agree_are_errors(tmp_path):
    log = pd.DataFrame({"who": ["a"], "what": ["x"], "when": [1], "stars": [5]})
    ask = pd.DataFrame({"who": ["a"], "what": ["x"]})
    columns = ("who", "what", "history", "history_weights")
    with pytest.raises(DataError, match=r"has a column 'history' and no 'history_weights'. Give both, or neither"):
        scored(tmp_path, ask.assign(history="x"), log, columns, history=HistorySettings(3, 1.0))
    with pytest.raises(DataError, match=r"'when' holds dates, and in the interactions numbers. Write times alike"):
        scored(tmp_path, ask.assign(when="2024-01-01"), log)
    with pytest.raises(DataError, match="'when'"):
        scored(tmp_path, pd.DataFrame({"who": ["a", "a"], "what": ["x", "y"], "when": ["1", None]}), log)
    for name, content in (("many-1.csv", ask), ("many-2.csv", ask.assign(history="x"))):
        content.to_csv(tmp_path / name, index=False)
    with pytest.raises(DataError, match=r"many-1.csv: it has no column 'history', and .*many-2.csv has one"):
        scored(tmp_path, None, log, name="many-*.csv")


def test_a_model_without_histories_has_none_looked_up(tmp_path):
    log = pd.DataFrame({"who": ["a"], "what": ["x"], "when": [1], "stars": [5]})
    found = scored(tmp_path, pd.DataFrame({"who": ["a"], "what": ["x"]}), log, columns=("who", "what"))
    assert found.columns.tolist() == ["who", "what", "row_number"]


def test_movielens_has_histories_too(tmp_path):
    write_movielens(tmp_path, "ml-1m", 30, 60)
    chosen = MovieLensSettings(path=str(tmp_path), genres=True, task="rating", history=HistorySettings(5, "30d"))
    recipe = MovieLensRecipe(chosen)
    tables = recipe.build("pandas")
    ratings = [
        tuple(map(int, line.split("::"))) for line in (tmp_path / "ratings.dat").read_text().splitlines()
    ]  # user, item, rating, time
    rows = [(user, item, at, stars) for user, item, stars, at in ratings]
    place = {name: number for number, name in enumerate(SPLITS)}
    split_of = {row: place[name] for name, part in tables.splits.items() for row in part["row_number"]}
    expected = slow_histories(rows, split_of, 4, 5, 30 * 86_400)
    assert_equal(histories_of(tables.splits), expected)
    test = tables.splits["test"]
    test[["user_id", "item_id", "timestamp"]].to_csv(tmp_path / "ask.csv", index=False)
    features = ("user_id", "item_id", "history", "history_weights")
    found = recipe.raw_rows("pandas", str(tmp_path / "ask.csv"), features)
    assert [list(row) for row in found["history"]] == [list(row) for row in test["history"]]
    bare = MovieLensRecipe(MovieLensSettings(path=str(tmp_path), task="rating"))
    assert "history" not in bare.build("pandas").splits["train"].columns
