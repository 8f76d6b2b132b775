"""The recipe interactions: which rows are positives, and which split each is in, against slow loops."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.recipes import recipe_class
from gigabatch.features.recipes.base import SplitFractions
from gigabatch.features.recipes.interactions.layout import Layout
from gigabatch.features.recipes.interactions.recipe import InteractionsRecipe, InteractionsSettings
from gigabatch.features.recipes.interactions.side_tables import SideTable
from gigabatch.features.recipes.interactions.splits import InteractionRules, interaction_tables
from gigabatch.features.schema import Entity
from tests.examples import examples
from tests.features.interaction_logs import SPLITS, all_rows, build, make_log

ROOT = Path(__file__).resolve().parents[4]
TIMED = Layout("user", "item", {"user": "int64", "item": "int64"}, time="at", rating="stars")
UNTIMED = Layout("user", "item", {"user": "int64", "item": "int64"}, rating="stars")
FEW = st.integers(0, 4)
INTERACTIONS = st.lists(
    st.tuples(FEW, st.integers(0, 6), st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=40
)


def as_frame(rows):
    frame = pd.DataFrame(rows, columns=["user", "item", "at", "stars"]).astype("int64")
    return frame.assign(row_number=np.arange(len(frame)), stars=frame["stars"].astype("float64"))


def slow_leave_one_out(rows, threshold):
    """row numbers by split, by hand: a list a user, sorted by time and place in the file; repeats are kept."""
    histories = {}
    for number, (user, _, at, stars) in enumerate(rows):
        if threshold is None or stars >= threshold:
            histories.setdefault(user, []).append((at, number))
    splits = {name: set() for name in SPLITS}
    for history in histories.values():
        numbers = [number for _, number in sorted(history)]
        held_out = 2 if len(numbers) >= 3 else 0
        splits["train"] |= set(numbers[: len(numbers) - held_out])
        if held_out:
            splits["valid"].add(numbers[-2])
            splits["test"].add(numbers[-1])
    return splits


def numbers_of(tables):
    return {name: tables.splits[name]["row_number"].tolist() for name in SPLITS}


@settings(max_examples=examples(60))
@given(INTERACTIONS, st.sampled_from([None, 3.0]))
def test_leave_one_out_is_that_of_a_slow_loop(rows, threshold):
    expected = slow_leave_one_out(rows, threshold)
    rules = InteractionRules(repeats="all", threshold=threshold)
    if not expected["test"]:
        with pytest.raises(DataError, match=r"no user has 3 interactions|no rating is at least 3"):
            interaction_tables(as_frame(rows), TIMED, rules, {})
        return
    tables = interaction_tables(as_frame(rows), TIMED, rules, {})
    found = numbers_of(tables)
    assert {name: set(numbers) for name, numbers in found.items()} == expected
    assert all(len(set(numbers)) == len(numbers) for numbers in found.values())
    frames = tables.splits
    assert all((frame["target"] == 1).all() for frame in frames.values())
    for earlier, later in itertools.pairwise(SPLITS):
        last = frames[earlier].groupby("user")["at"].max()
        first = frames[later].groupby("user")["at"].min()
        assert (last[first.index] <= first).all()


@settings(max_examples=examples(40))
@given(INTERACTIONS, st.randoms(use_true_random=False))
def test_without_a_time_the_split_does_not_depend_on_the_order_of_the_file(rows, random):
    rows = list({(user, item): (user, item, at, stars) for user, item, at, stars in rows}.values())
    shuffled = random.sample(rows, len(rows))

    def pairs(given):
        tables = interaction_tables(as_frame(given), UNTIMED, InteractionRules(seed=3), {})
        return {name: set(zip(f["user"], f["item"], strict=True)) for name, f in tables.splits.items()}

    counts = pd.Series([user for user, *_ in rows]).value_counts()
    if counts.max() < 3:
        with pytest.raises(DataError, match="no user has 3 interactions"):
            pairs(rows)
        return
    found = pairs(rows)
    assert found == pairs(shuffled)
    assert sum(map(len, found.values())) == len(rows)
    enough = {user for user, count in counts.items() if count >= 3}
    assert sorted(user for user, _ in found["valid"]) == sorted(user for user, _ in found["test"]) == sorted(enough)


def test_the_seed_decides_which_row_is_left_out_without_a_time():
    rows = [(user, item, 0, 5) for user in range(40) for item in range(10)]

    def items(seed):
        test = interaction_tables(as_frame(rows), UNTIMED, InteractionRules(seed=seed), {}).splits["test"]
        return test.sort_values("user")["item"].tolist()

    assert items(0) == items(0)
    assert items(0) != items(1)
    assert len(set(items(0))) > 5  # no item is favoured


@pytest.fixture
def log():
    return make_log()


def test_task_rating_is_a_binary_label_in_random_shares(log, tmp_path):
    tables = build(tmp_path, log, task="rating", split=SplitFractions(0.6, 0.2, 0.2))
    rows = all_rows(tables)
    assert sorted(rows["row_number"]) == list(range(len(log)))
    np.testing.assert_array_equal(rows["target"], log["stars"].to_numpy()[rows["row_number"]] >= 4)
    shares = [len(tables.splits[name]) / len(log) for name in SPLITS]
    assert shares == pytest.approx([0.6, 0.2, 0.2], abs=0.03)
    other = build(tmp_path, log, task="rating", split=SplitFractions(0.6, 0.2, 0.2), threshold=2.5)
    assert numbers_of(other) == numbers_of(tables)
    expected = (log["stars"] >= 2.5).mean()
    assert all_rows(other)["target"].mean() == pytest.approx(expected)


@pytest.mark.parametrize("task", ["rating", "ranking"])
def test_a_split_by_time_has_no_earlier_row_in_a_later_split(log, tmp_path, task):
    frames = build(tmp_path, log, task=task, split_by="time").splits
    for earlier, later in itertools.pairwise(SPLITS):
        assert frames[earlier]["when"].max() < frames[later]["when"].min()
    assert sum(map(len, frames.values())) == len(log)
    assert len(frames["train"]) / len(log) == pytest.approx(0.8, abs=0.01)


def test_times_may_be_text(log, tmp_path):
    moments = pd.Timestamp("2013-05-06") + pd.to_timedelta(log["when"], unit="min")
    text = log.assign(when=moments.dt.strftime("%Y-%m-%dT%H:%M:%S"))
    assert numbers_of(build(tmp_path, text)) == numbers_of(build(tmp_path, log))


def test_contexts_have_their_types_and_user_and_item_columns_are_entities(log, tmp_path):
    tables = build(
        tmp_path, log, contexts={"place": "string", "hour": "int64"}, continuous=("price",), item_columns=("price",),
        user_columns=("place",),
    )  # fmt: skip
    schema = tables.schema
    assert [(c.name, c.role, c.dtype) for c in schema.columns] == [
        ("who", "categorical", "string"), ("what", "categorical", "string"), ("place", "categorical", "string"),
        ("hour", "categorical", "int64"), ("price", "continuous", "float32"), ("target", "target", "float32"),
        ("when", "time", "int64"), ("row_number", "key", "int64"),
    ]  # fmt: skip
    assert schema.entities == (Entity("user", "who", ("who", "place")), Entity("item", "what", ("what", "price")))
    rows = all_rows(tables)
    given = log.iloc[rows["row_number"]].reset_index(drop=True)
    for name in ("who", "what", "place", "hour"):
        pd.testing.assert_series_equal(rows[name].reset_index(drop=True), given[name], check_dtype=False)
    np.testing.assert_allclose(rows["price"], given["price"], rtol=1e-6)
    train = tables.splits["train"]
    assert not Preprocessor(schema).fit([train]).transform(train).isna().any().any()


def repeated(log):
    """Every fourth row once more at the end, later and with another context."""
    again = log.iloc[::4]
    return pd.concat([log, again.assign(when=again["when"] + 50_000, place="moon", stars=0.5)], ignore_index=True)


def test_of_repeats_the_last_in_time_is_kept_and_said_so(log, tmp_path):
    frame = repeated(log).sample(frac=1, random_state=2, ignore_index=True)
    tables = build(tmp_path, frame, split_by="random")
    rows = all_rows(tables)
    assert len(rows) == len(log)
    ordered = frame.assign(n=np.arange(len(frame))).sort_values(["when", "n"])
    assert set(rows["row_number"]) == set(ordered.drop_duplicates(["who", "what"], keep="last")["n"])
    said = f"{len(frame) - len(log):,} of {len(frame):,} rows are repeated later (who, what); the last of each is kept."
    assert said in tables.notes


def test_rows_of_another_context_are_no_repeats(log, tmp_path):
    frame = repeated(log)
    assert len(all_rows(build(tmp_path, frame, contexts=("place",)))) == len(frame)
    about_the_user = build(tmp_path, frame, contexts=("place",), user_columns=("place",))
    assert len(all_rows(about_the_user)) == len(log)


def test_a_context_that_is_a_float_makes_no_other_interaction_of_a_repeat(log, tmp_path):
    frame = repeated(log)
    frame["volume"] = np.random.default_rng(5).uniform(size=len(frame))  # no two alike
    rows = all_rows(build(tmp_path, frame, continuous=("volume",)))
    assert not rows.duplicated(["who", "what"]).any()
    assert len(rows) == len(log)
    per_place = all_rows(build(tmp_path, frame, contexts=("place",), continuous=("volume",)))
    assert len(per_place) == len(frame.drop_duplicates(["who", "what", "place"]))


def test_repeats_are_kept_or_refused_on_request(log, tmp_path):
    frame = repeated(log)
    assert sorted(all_rows(build(tmp_path, frame, repeats="all"))["row_number"]) == list(range(len(frame)))
    count = len(frame) - len(log)
    with pytest.raises(DataError, match=rf"{count} row\(s\) repeat another's who, what, for example .*'who': 'u"):
        build(tmp_path, frame, repeats="error")


def test_the_last_opinion_counts_where_ratings_repeat(log, tmp_path):
    tables = build(tmp_path, repeated(log), task="rating", threshold=0.6)
    rows = all_rows(tables)
    assert int((rows["target"] == 0).sum()) == len(log.iloc[::4]) + int((log.drop(log.index[::4])["stars"] < 0.6).sum())


def test_a_threshold_leaves_low_ratings_out_of_a_ranking(log, tmp_path):
    tables = build(tmp_path, log, threshold=4)
    liked = log.index[log["stars"] >= 4]
    assert sorted(all_rows(tables)["row_number"]) == liked.tolist()
    assert f"{len(log) - len(liked):,} of {len(log):,} rows are rated below 4 and left out." in tables.notes


def test_users_with_few_rows_and_items_that_train_lacks_are_said(log, tmp_path):
    more = pd.DataFrame({"who": ["lone"], "what": ["i1"], "when": [5], "stars": [3.0]})
    late = pd.DataFrame({"who": ["u000"], "what": ["brand new"], "when": [99_999], "stars": [3.0]})
    tables = build(tmp_path, pd.concat([log, more, late]))
    assert "lone" in set(tables.splits["train"]["who"])
    assert "1 user(s) have fewer than 3 interactions; all of theirs are in train." in tables.notes
    users = log["who"].nunique()
    assert f"1 of {users} rows of test are of items that train does not have." in tables.notes


def test_several_files_without_a_header_and_whole_number_ids(tmp_path):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"u": np.repeat(np.arange(30), 5), "i": rng.integers(0, 40, 150), "t": np.arange(150)})
    for number, part in enumerate((frame[:70], frame[70:])):
        part.to_csv(tmp_path / f"part{number}.tsv", sep="\t", header=False, index=False)
    chosen = InteractionsSettings(
        path=str(tmp_path / "part*.tsv"), separator="\t", column_names=("u", "i", "t"), user="u", item="i", time="t",
        id_type="int64", repeats="all",
    )  # fmt: skip
    tables = InteractionsRecipe(chosen).build("pandas")
    assert sorted(all_rows(tables)["row_number"]) == list(range(150))
    assert tables.splits["test"]["row_number"].tolist() == list(range(4, 150, 5))
    assert tables.schema.dtypes()["u"] == "int64"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": None}, "set path"),
        ({"task": "retrieval"}, "task is 'retrieval'. Known: ranking, rating"),
        ({"split_by": "user"}, "split_by is 'user'. Known: leave_one_out, time, random"),
        ({"repeats": "first"}, "repeats is 'first'. Known: last, all, error"),
        ({"threshold": float("nan")}, "threshold must be a number"),
        ({"task": "rating"}, "task rating needs rating"),
        ({"threshold": 3.0}, "a threshold needs rating"),
        ({"split_by": "time"}, "split_by time needs time"),
        ({"time_type": "datetime[s]"}, "needs time, the column of the times"),
        ({"time": "at", "time_type": "day"}, "time_type is 'day'. Known: datetime, datetime"),
        ({"time": "at", "time_type": "datetime[%H:%M]"}, "is a time of day, which orders no rows"),
        ({"time": "at", "time_type": "datetime[%d]"}, "a format holds one year"),
        ({"id_type": "int32"}, "id_type is 'int32'. Known: string, int64"),
        ({"contexts": {"c": "float32"}}, "'c' has type 'float32'. Known: string, int64"),
        ({"contexts": ("c",), "continuous": ("c",)}, "column 'c' has two roles"),
        ({"time": "user"}, "column 'user' has two roles"),
        ({"contexts": ("target",)}, "'target' is a column that the recipe makes"),
        ({"contexts": ("c",), "user_columns": ("d",)}, "'d' of user_columns is neither in contexts.*there: c"),
        ({"contexts": ("c",), "user_columns": ("c",), "item_columns": ("c",)}, "'c' is in user_columns and in item_"),
        ({"side_tables": {"shop": SideTable("s.csv", flags=("a",))}}, "unknown side table 'shop'. Known: user, item"),
    ],
)
def test_settings_that_make_no_sense_are_an_error(settings, message):
    with pytest.raises(DataError, match=message):
        InteractionsSettings(**({"path": "a.csv"} | settings))


@pytest.mark.parametrize("column", ["who", "what", "when", "stars"])
def test_a_null_where_none_may_be_is_an_error_with_the_count(log, tmp_path, column):
    holes = log.assign(**{column: log[column].astype("object").where(log.index >= 2)})
    with pytest.raises(DataError, match=rf"'{column}' is null in 2 of {len(log)} rows.*users, items.*Remove"):
        build(tmp_path, holes)


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ({"stars": "good"}, {}, r"column 'stars' is declared float64"),
        ({"when": "soon"}, {}, r"time column 'when': neither numbers nor ISO 8601"),
        ({"stars": 2.0}, {"task": "rating"}, r"0 of [\d,]+ ratings are at least 4, so there is nothing to tell apart"),
        ({"stars": 4.0}, {"task": "rating"}, r"([\d,]+) of \1 ratings are at least 4"),
        ({"stars": 2.0}, {"threshold": 4}, r"no rating is at least 4, so there is no positive"),
        ({"who": "everyone"}, {"split_by": "time", "split": SplitFractions(0.9998, 0.0001, 0.0001)}, "is empty"),
        ({}, {"item": "waht"}, r"log\.csv: column\(s\) 'waht' not found. Columns there: 'who', 'what'"),
    ],
)
def test_files_that_do_not_fit_the_settings_are_an_error(log, tmp_path, change, settings, message):
    with pytest.raises(DataError, match=message):
        build(tmp_path, log.assign(**change), **settings)


def test_a_yaml_file_is_all_that_it_takes(log, tmp_path):
    from gigabatch.pipeline.config.config import ConfigError, load_config

    log.to_csv(tmp_path / "log.csv", index=False)
    pd.DataFrame({"id": ["i1", "i2"], "words": ["Red", ""]}).to_csv(tmp_path / "items.csv", index=False)
    text = (
        f"name: mine\nrecipe: interactions\nfeatures:\n  path: {tmp_path}/log.csv\n  user: who\n  item: what\n"
        f"  time: when\n  rating: stars\n  task: rating\n  side_tables:\n    item: {{path: {tmp_path}/items.csv, "
        "key: id, flags: [words]}\n"
    )
    (tmp_path / "mine.yaml").write_text(text)
    config = load_config(
        tmp_path / "mine.yaml", ("features.threshold=3", "features.split={train: .5, valid: .2, test: .3}")
    )
    recipe = recipe_class(config.recipe)
    assert recipe is InteractionsRecipe
    tables = recipe(config.features).build("pandas")
    assert all_rows(tables)["target"].mean() == pytest.approx((log["stars"] >= 3).mean())
    assert len(tables.splits["train"]) / len(log) == pytest.approx(0.5, abs=0.04)
    assert "words_red" in tables.schema.names("continuous")
    (tmp_path / "typo.yaml").write_text(text.replace("flags:", "flag:"))
    with pytest.raises(
        ConfigError,
        match=r"unknown key 'features.side_tables.item.flag'. Did you mean 'features.side_tables.item.flags'",
    ):
        load_config(tmp_path / "typo.yaml")


def test_the_examples_of_the_docs_are_settings():
    from gigabatch.pipeline.config.config import parse_config

    text = (ROOT / "docs" / "recommenders.md").read_text()
    examples = [block.partition("```")[0] for block in text.split("```yaml\n")[1:]]
    recipes = [YAML(typ="safe", pure=True).load(example) for example in examples]
    found = {raw["recipe"]: parse_config({"name": "example"} | raw).features for raw in recipes if "recipe" in raw}
    assert list(found["interactions"].side_tables["item"].lists) == ["genres"]
    assert found["table"].entities["user"]["columns"] == ["age", "gender"]


@pytest.mark.parametrize("written", ["text", "datetime64[s]", "datetime64[ms]", "datetime64[ns]", "zone"])
def test_a_calendar_time_splits_as_its_microseconds_do(tmp_path, written):
    log = make_log()
    stamps = pd.Timestamp("2013-12-31") + pd.to_timedelta(log["when"], unit="s")
    ways = {"text": stamps.dt.strftime("%Y-%m-%dT%H:%M:%S"), "zone": stamps.dt.tz_localize("Europe/Berlin")}
    column = ways[written] if written in ways else stamps.astype(written)
    micros = (stamps - pd.Timedelta(hours=int(written == "zone"))).astype("datetime64[us]").astype("int64")
    found = {}
    for name, at in (("dates", column), ("numbers", micros)):
        log.assign(when=at).to_parquet(tmp_path / f"{name}.parquet")
        settings = InteractionsSettings(
            path=str(tmp_path / f"{name}.parquet"), user="who", item="what", time="when", split_by="time"
        )
        found[name] = InteractionsRecipe(settings).build("pandas")
    dates, numbers = found["dates"], found["numbers"]
    assert (dates.schema.dtypes()["when"], numbers.schema.dtypes()["when"]) == ("datetime", "int64")
    for name in SPLITS:
        pd.testing.assert_frame_equal(dates.splits[name], numbers.splits[name], check_exact=True)


@pytest.mark.parametrize("time_type", ["datetime", "datetime[s]", "datetime[ms]?", "datetime[%d.%m.%Y %H:%M:%S]"])
def test_times_of_a_type_split_as_their_microseconds_do(tmp_path, time_type):
    log = make_log()
    stamps = pd.Timestamp("2013-12-28") + pd.to_timedelta(log["when"], unit="h")
    micros = stamps.astype("datetime64[us]").astype("int64")
    ways = {
        "datetime": stamps.dt.strftime("%Y-%m-%dT%H:%M:%S"), "datetime[s]": micros // 10**6,
        "datetime[ms]?": micros // 1000, "datetime[%d.%m.%Y %H:%M:%S]": stamps.dt.strftime("%d.%m.%Y %H:%M:%S"),
    }  # fmt: skip
    log.assign(when=ways[time_type]).to_csv(tmp_path / "typed.csv", index=False)
    log.assign(when=micros).to_csv(tmp_path / "numbers.csv", index=False)
    chosen = {"user": "who", "item": "what", "time": "when", "split_by": "time"}
    typed, numbers = (
        InteractionsRecipe(InteractionsSettings(path=str(tmp_path / name), **chosen, **more)).build("pandas")
        for name, more in (("typed.csv", {"time_type": time_type}), ("numbers.csv", {}))
    )
    assert typed.schema.dtypes()["when"] == "datetime"
    for name in SPLITS:
        pd.testing.assert_frame_equal(typed.splits[name], numbers.splits[name], check_exact=True)


GIVEN_ROWS = st.lists(st.tuples(FEW, st.integers(0, 4), st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=12)


def as_given(folder, parts, **settings):
    """The recipe over one CSV file a split, of rows (who, what, when, stars)."""
    for name, rows in zip(SPLITS, parts, strict=True):
        columns = ["who", "what", "when", "stars"]
        pd.DataFrame(rows, columns=columns).to_csv(folder / f"{name}.csv", index=False)
    chosen = {"user": "who", "item": "what", "time": "when", "rating": "stars", "id_type": "int64"} | settings
    paths = {"path": "train.csv", "valid_path": "valid.csv", "test_path": "test.csv"}
    paths = {name: str(folder / file) for name, file in paths.items()}
    return InteractionsRecipe(InteractionsSettings(**(paths | chosen)))


@settings(max_examples=examples(40))
@given(GIVEN_ROWS, GIVEN_ROWS, GIVEN_ROWS, st.sampled_from(["last", "all"]))
def test_given_splits_stay_as_they_are(tmp_path_factory, train, valid, test, repeats):
    parts = train, valid, test
    tables = as_given(tmp_path_factory.mktemp("given"), parts, repeats=repeats).build("pandas")
    number, pairs = 0, {}
    for name, rows in zip(SPLITS, parts, strict=True):
        kept = {}
        for place, (who, what, when, _) in sorted(enumerate(rows, number), key=lambda row: (row[1][2], row[0])):
            kept[(who, what) if repeats == "last" else place] = (who, what, when, place)
        number += len(rows)
        found = tables.splits[name][["who", "what", "when", "row_number"]].itertuples(index=False, name=None)
        assert list(found) == sorted(kept.values(), key=lambda row: row[2:])
        pairs[name] = {(who, what) for who, what, _, _ in rows}
    for one, other in (("valid", "train"), ("test", "train"), ("test", "valid")):
        shared = len(pairs[one] & pairs[other])
        said = f"{shared} of {len(pairs[one])} interactions of the given {one} split (who, what) are in {other} too"
        assert any(note.startswith(said) for note in tables.notes) == (shared > 0)


def test_given_splits_share_threshold_side_tables_and_what_is_checked_of_files(tmp_path):
    parts = [[(1, 7, 5, 4), (1, 8, 6, 2), (2, 8, 7, 5)], [(1, 9, 1, 5)], [(2, 7, 2, 3), (2, 9, 3, 4)]]
    (tmp_path / "items.csv").write_text("what,kind\n7,a\n8,b\n")
    side = {"item": SideTable(str(tmp_path / "items.csv"), categorical=("kind",))}
    recipe = as_given(tmp_path, parts, threshold=4.0, side_tables=side)
    tables = recipe.build("pandas")
    assert [tables.splits[name]["row_number"].tolist() for name in SPLITS] == [[0, 2], [3], [5]]
    assert tables.splits["train"]["kind"].tolist() == ["a", "b"]
    assert tables.splits["test"]["kind"].isna().all()
    assert any("2 rows have a item that" in note for note in tables.notes)
    assert [Path(path).name for path in recipe.inputs()] == ["train.csv", "valid.csv", "test.csv", "items.csv"]
    assert [files.name for files in recipe.raw_files()] == ["interactions", "valid", "test", "item"]
    assert recipe.inputs_by_split() == {"train": 1, "valid": 1, "test": 1}
    assert recipe.settings.way == "given"


def test_given_splits_that_cannot_be_are_refused(tmp_path):
    parts = [[(1, 7, 5, 4), (2, 8, 6, 4)], [(1, 9, 1, 5)], [(1, 7, 2, 3)]]
    with pytest.raises(DataError, match="test_path is given and valid_path is not"):
        as_given(tmp_path, parts, valid_path=None)
    with pytest.raises(DataError, match="valid_path is given and test_path is not"):
        as_given(tmp_path, parts, test_path=None)
    for setting in ({"split_by": "random"}, {"split": SplitFractions(0.7, 0.2, 0.1)}):
        with pytest.raises(DataError, match=r"are splits already\. Leave out split_by and split"):
            as_given(tmp_path, parts, **setting)
    with pytest.raises(DataError, match=r"train\.csv is in train and in test"):
        as_given(tmp_path, parts, test_path=str(tmp_path / "train.csv")).build("pandas")
    with pytest.raises(DataError, match=r"1 row\(s\) repeat another's who, what"):
        as_given(tmp_path, parts, repeats="error").build("pandas")
    with pytest.raises(DataError, match="'when' holds dates in one of path, valid_path and test_path"):
        as_given(tmp_path, [*parts[:2], [(1, 9, "2020-01-05", 5)]]).build("pandas")
    with pytest.raises(DataError, match="split 'test' is empty"):
        as_given(tmp_path, [*parts[:2], [(1, 7, 2, 3)]], threshold=4.0).build("pandas")
