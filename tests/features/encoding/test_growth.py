"""Preprocessor.grow: a whole table counted anew each night; ids never move, and nothing counts twice."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.online import OnlineTransformer
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import CategorySettings, PreprocessorSettings
from gigabatch.features.errors import DataError
from gigabatch.features.importers.fastai import import_fastai
from gigabatch.features.importers.nvtabular import import_nvtabular
from gigabatch.features.refit.churn import Churn
from gigabatch.features.schema import Column, Schema, Target
from tests.examples import THOROUGH
from tests.features.encoding.saved_6f82fd3 import make as old
from tests.features.encoding.test_preprocessor_update import NEW, OLD, SCHEMA, fitted, table
from tests.features.importers.test_import_fastai import without_indicators, written
from tests.features.importers.test_import_nvtabular import typical
from tests.features.partitioned import cut

SAVED = Path(old.__file__).parent
NIGHTS = 60
X = Column("x", "continuous", "float32")
WORD = Schema((Column("c", "categorical", "string"), X), ())
NUMBER = Schema((Column("c", "categorical", "int64"), X), ())


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def slow_growth(known, values, min_count, max_size):
    """Ids by position, in plain Python: known ones stay, the others follow by count and value."""
    counts = Counter(value for value in values if value is not None)
    new = sorted(
        (value for value, count in counts.items() if count >= min_count and value not in known),
        key=lambda value: (-counts[value], value),
    )
    return known + new[: len(new) if max_size is None else max(max_size - len(known), 0)]


@given(
    seed=st.integers(0, 2**32 - 1),
    schema=st.sampled_from([WORD, NUMBER]),
    min_count=st.integers(1, 4),
    max_size=st.sampled_from([None, None, 25]),
    buckets=st.integers(1, 3),
    window=st.sampled_from([None, 5]),
)
@settings(max_examples=10 if THOROUGH else 2, deadline=None)
def test_sixty_nights_move_no_id(tmp_path_factory, seed, schema, min_count, max_size, buckets, window):
    """New, vanishing and rare values, on all rows so far or on those of the last nights."""
    random, days = np.random.default_rng(seed), []
    chosen = PreprocessorSettings(min_count, max_size, buckets)
    known, preprocessor = [], Preprocessor(schema, chosen)
    for night in range(NIGHTS + 1):
        fresh = random.integers(0, 3 + night, random.integers(1, 12)).tolist()
        days.append([None if value % 7 == 6 else value for value in fresh])
        values = [value for day in (days[-window:] if window else days) for value in day]
        values = [None if value is None else f"v{value}" for value in values] if schema is WORD else values
        column = pd.Series(values, dtype="str" if schema is WORD else "Int64")
        frame = pd.DataFrame({"c": column, "x": random.normal(size=len(values)).astype("float32")})
        before, known = known, slow_growth(known, values, min_count, max_size)
        if night == 0:
            preprocessor.fit([frame])
            first = preprocessor.carried_to(schema, chosen)
            continue
        start = preprocessor.carried_to(schema, chosen)
        (rows,), report = preprocessor.grow_pack([frame])
        vocabulary, statistics = preprocessor.vocabularies["c"], preprocessor.statistics.categories["c"]
        counts = Counter(value for value in values if value is not None)
        assert vocabulary.values.tolist() == known
        assert known[: len(before)] == before
        assert vocabulary.counts.tolist() == [counts[value] for value in known]
        counted = dict(zip(statistics.counts["value"], statistics.counts["count"], strict=True))
        assert {value: count for value, count in counted.items() if count} == counts
        assert (statistics.rows, statistics.nulls, report.rows) == (len(values), values.count(None), len(values))
        ids = [vocabulary.layout.first + known.index(value) if value in known else None for value in values]
        for value, expected, found, decoded in zip(
            values, ids, rows[:, 0].tolist(), vocabulary.decode(rows[:, 0]).tolist(), strict=True
        ):
            if expected is None:
                assert found == 1 if value is None else 2 <= found < 2 + buckets
                assert pd.isna(decoded)
            else:
                assert (found, decoded) == (expected, value)
        assert (preprocessor.fills, preprocessor.scales) == (first.fills, first.scales)
        if night % 12 == 0:
            start.grow(cut(frame, 5, night))
            assert start.checksum == preprocessor.checksum
            assert (start.pack(frame) == rows).all()
    folder = tmp_path_factory.mktemp("grown")
    preprocessor.save(folder / "one")
    again = Preprocessor.load(folder / "one")
    again.grow([frame])
    again.save(folder / "two")
    assert files(folder / "one") == files(folder / "two")


TYPES = {
    "int32": lambda v: v.astype("int32"),
    "int64": lambda v: v + 2**60,
    "float64": lambda v: np.where(v == 2, np.nan, v / 3),  # fractions, which no bucket of the unseen takes
    "bool": lambda v: v > 3,
    "string": lambda v: pd.Series([None if x == 2 else f"Ä\x00{x}" for x in v], dtype="str"),
}


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_grows_alike_in_parts_in_files_and_for_single_rows(tmp_path, kind):
    random, schema = np.random.default_rng(1), Schema((Column("c", "categorical", kind), X), ())
    known, preprocessor = [], Preprocessor(schema, PreprocessorSettings(oov_buckets=2))
    for night in range(4):
        values = pd.Series(TYPES[kind](random.integers(0, 3 + 2 * night, 30)))
        frame = pd.DataFrame({"c": values, "x": random.normal(size=30).astype("float32")})
        frame.to_parquet(tmp_path / "part.parquet")
        plain = [None if pd.isna(value) else value for value in values.tolist()]
        known = slow_growth(known, plain, 1, None)
        if night == 0:
            preprocessor.fit([frame])
            continue
        other = preprocessor.carried_to(schema, preprocessor.settings)
        (rows,), report = preprocessor.grow_pack([("pandas", tmp_path / "part.parquet")])
        assert other.grow([frame.iloc[:7], frame.iloc[7:]]) == report
        assert preprocessor.vocabularies["c"].values.tolist() == known
        preprocessor.save(tmp_path / f"{night}")
        other.save(tmp_path / f"{night} of parts")
        assert files(tmp_path / f"{night}") == files(tmp_path / f"{night} of parts")
        online = OnlineTransformer.load(tmp_path / f"{night}")
        for value, x, row in zip(plain, frame["x"].tolist(), rows, strict=True):
            ids, floats = online({"c": value, "x": x})
            assert [*ids.tolist(), *floats.view("int32").tolist()] == row.tolist()
            assert ids[0] == (1 if value is None else 4 + known.index(value))
        preprocessor = Preprocessor.load(tmp_path / f"{night}")


def test_rows_that_come_again_do_not_count_twice():
    """The statistics and the counts are those of a fit on the same rows, however many nights held them."""
    grown, whole = fitted(), fitted(OLD + NEW)
    grown.grow([table(OLD + NEW)])
    assert grown.statistics.equals(whole.statistics)
    counts = (
        dict(zip(p.vocabularies["word"].values, p.vocabularies["word"].counts, strict=True)) for p in (grown, whole)
    )
    assert next(counts) == next(counts)
    assert grown.vocabularies["word"].values.tolist() == ["a", "b", "c", "e"]
    assert (grown.fills, grown.scales) == (fitted().fills, fitted().scales)


def test_versions_are_chained_through_growths_and_updates(tmp_path):
    first = fitted()
    second = first.carried_to(SCHEMA, first.settings)
    second.grow([table(OLD + NEW)])
    assert (second.version.number, second.version.parent) == (2, first.checksum)
    assert (second.version.rows, second.version.counted_rows) == ((4, 8), 8)
    same = second.carried_to(SCHEMA, first.settings)
    report = same.grow([table(NEW + OLD)])
    assert (same.version, same.checksum) == (second.version, second.checksum)
    assert (report.version, report.rows_old, report.rows, report.flags) == (2, 8, 8, ())
    same.update([table(NEW)])
    assert (same.version.number, same.version.rows, same.version.counted_rows) == (3, (4, 8, 4), 12)
    same.save(tmp_path / "p")
    loaded = Preprocessor.load(tmp_path / "p")
    assert (loaded.version, loaded.checksum) == (same.version, same.checksum)
    loaded.grow([table(OLD)])
    assert (loaded.version.number, loaded.version.counted_rows) == (4, 4)
    assert loaded.vocabularies["word"].values.tolist() == ["a", "b", "c", "e"]
    assert loaded.vocabularies["word"].counts.tolist() == [2, 1, 0, 0]


@pytest.mark.parametrize("counted_from", [0, 3, True, "2", None])
def test_a_version_that_counts_from_nowhere_is_refused(tmp_path, counted_from):
    preprocessor = fitted()
    preprocessor.grow([table(OLD + NEW)])
    preprocessor.save(tmp_path / "p")
    state = json.loads((tmp_path / "p/preprocessor.json").read_text())
    state["version"]["counted_from"] = counted_from
    (tmp_path / "p/preprocessor.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match="counted from version"):
        Preprocessor.load(tmp_path / "p")


def test_what_left_and_came_back_is_told_from_what_is_new(tmp_path):
    preprocessor = fitted([("a", 1, 1.0)] * 3 + [("b", 1, 1.0)] * 2 + [("rare", 1, 1.0)], min_count=2)
    second = preprocessor.grow([table([("a", 1, 1.0)] * 3)]).categories[0]
    assert (second.vanished.examples, second.absent_since) == ((("b", 2), ("rare", 1)), {1: 2})
    preprocessor.save(tmp_path / "p")  # rows with a count of 0 among the statistics
    preprocessor = Preprocessor.load(tmp_path / "p")
    third = preprocessor.grow([table([("a", 1, 1.0)] * 3 + [("new", 1, 1.0)] * 2)]).categories[0]
    assert (third.new.examples, third.absent_since, third.never_seen) == ((("new", 2),), {1: 1}, 0)
    fourth = preprocessor.grow([table([("a", 1, 1.0), ("b", 1, 1.0), ("rare", 1, 1.0)])]).categories[0]
    # b was in the vocabulary all the time; of a rare value that left, nothing is kept
    assert (fourth.new.examples, fourth.vanished.examples) == ((("rare", 1),), (("new", 2),))
    assert fourth.absent_since == {3: 1}
    assert preprocessor.vocabularies["word"].values.tolist() == ["a", "b", "new"]


def test_the_report_is_read_back_from_its_file():
    preprocessor = fitted()
    for rows in (OLD + NEW, [("a", 1, None)] * 3, [(None, None, 2.0)]):
        report = preprocessor.grow([table(rows)])
        assert Churn.from_json(report.to_json()) == report
    for text in ("", "[]", "{}", '{"version": 1}', report.to_json().replace("psi", "pie")):
        with pytest.raises(DataError, match="churn: this is no report of it"):
            Churn.from_json(text)


def test_known_rows_keep_their_bits():
    """Known values, nulls, and unseen ones in several buckets, though median and mean of the night are others."""
    preprocessor = fitted(oov_buckets=4)
    rows = table([*OLD, ("not there", 77, -3.0), ("nor this", -5, None)])
    before = preprocessor.pack(rows)
    preprocessor.grow([table([*OLD, *NEW, ("a", 1, 1e6), ("a", 1, 1e6)])])
    assert preprocessor.vocabularies["word"].values.tolist() == ["a", "b", "c", "e"]
    assert preprocessor.pack(rows).tobytes() == before.tobytes()


@pytest.mark.parametrize("pack", [False, True])
def test_robust_scales_stay_and_are_refreshed_by_the_rows_themselves(pack):
    """Years: their quartiles lie in one or two of the histogram's bins, of which no scale could be guessed."""
    years = [("a", 1, float(year)) for year in [*range(1990, 2021), 2020, 2021]]
    later = [("a", 1, float(year)) for year in [*range(2000, 2026), 2025]]
    one = Preprocessor(SCHEMA, PreprocessorSettings(scale="robust")).fit([table(years)])
    before = one.pack(table(years))
    two = Preprocessor(SCHEMA, PreprocessorSettings(scale="robust")).fit([table(years)])
    parts = [table(later[:5]), table(later[5:])]
    one.grow_pack(parts) if pack else one.grow(parts)
    assert one.pack(table(years)).tobytes() == before.tobytes()
    two.grow_pack(parts, refresh_scales=True) if pack else two.grow(parts, refresh_scales=True)
    quarter, half, three = np.percentile([row[2] for row in later], [25, 50, 75])
    assert (two.fills["x"].value, two.fills["x"].error) == (half, 0.0)
    assert (two.scales["x"].mean, two.scales["x"].std) == (half, three - quarter)


def test_an_update_cannot_refresh_a_robust_scale_and_changes_nothing():
    found = Preprocessor(SCHEMA, PreprocessorSettings(scale="robust")).fit([table(OLD)])
    before = found.checksum
    with pytest.raises(DataError, match=r"cannot refresh the robust scale of x: .*Leave refresh_scales out"):
        found.update([table(NEW)], refresh_scales=True)
    assert found.checksum == before
    scale = found.scales["x"]
    found.update([table(NEW)])
    assert found.scales["x"] == scale


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("rows", [[(None, None, None)] * 2, [("a", None, None), (None, 2, None)]])
def test_a_night_without_a_value_in_a_column(rows, pack):
    preprocessor = fitted()
    preprocessor.grow_pack([table(rows)]) if pack else preprocessor.grow([table(rows)])
    assert preprocessor.vocabularies["word"].values.tolist() == ["a", "b"]
    assert preprocessor.statistics.rows == 2
    preprocessor.grow([table(NEW)])
    assert preprocessor.vocabularies["number"].values.tolist() == [2, 1, 9]


def test_a_column_that_was_all_null_at_the_start_gets_its_values():
    preprocessor = fitted([(None, None, 1.0), (None, None, 2.0)])
    preprocessor.grow([table([("a", 5, 1.0), ("b", 5, 2.0), ("b", 6, 2.0)])])
    assert preprocessor.vocabularies["word"].values.tolist() == ["b", "a"]
    assert preprocessor.transform(table([("a", 6, 1.0)]))[["word", "number"]].to_numpy().tolist() == [[4, 4]]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("dtype", ["string", "int64", "int32", "bool", "float64", "float32"])
def test_a_column_that_is_all_null_is_learned_the_same_in_one_step_and_in_two(dtype, parts):
    schema = Schema((Column("v", "categorical", dtype), Column("x", "continuous", "float32")), ())
    nulls = pd.DataFrame({"v": pd.Series([None] * 4, dtype=object), "x": 1.0})
    values = {"string": ["a", "b", "a"], "bool": [True, False, True]}.get(dtype, [2, 1, 2])
    known = pd.DataFrame({"v": pd.Series(values, dtype={"string": "str"}.get(dtype, dtype)), "x": 1.0})
    cuts = [nulls] if parts == 1 else [nulls.iloc[:1], nulls.iloc[1:]]
    two, one = (Preprocessor(schema) for _ in range(2))
    rows = [two.fit(cuts).pack(part) for part in cuts]
    assert np.array_equal(np.concatenate(one.fit_pack(cuts)), np.concatenate(rows))
    assert one.checksum == two.checksum
    for grown in (cuts, [known]):
        two.grow(grown)
        one.grow_pack(grown)
        assert one.checksum == two.checksum
    for found in (one, two):
        assert found.pack(known)[:, 0].tolist() == [3, 4, 3]
    one, two = (Preprocessor(schema).fit([known]) for _ in range(2))
    for grown in (cuts, [known]):
        two.grow(grown)
        one.grow_pack(grown)
        assert one.checksum == two.checksum


def test_a_refused_growth_changes_nothing():
    preprocessor = fitted()
    before = preprocessor.checksum
    for parts, message in (
        ([], "nothing to grow by"),
        (table(NEW), r"a frame alone is nothing to grow by\. Give a list of parts: \[frame\]"),
        ([table([])], "no rows"),
        ([table(NEW).drop(columns="word")], "'word' not found"),
        ([table(NEW).assign(x=[1.0, np.inf, 1.0, 1.0])], "column 'x' holds an infinity"),
        ([table(NEW).assign(number=["a", "b", "c", "d"])], "column 'number'"),
    ):
        for grow in (preprocessor.grow, preprocessor.grow_pack):
            with pytest.raises(DataError, match=message):
                grow(parts)
    assert preprocessor.checksum == before
    with pytest.raises(DataError, match=r"not fitted"):
        Preprocessor(SCHEMA).grow([table(NEW)])


def test_the_type_of_a_key_is_no_difference():
    """Nothing is learnt of keys; earlier versions held whole ones as text."""
    was, now = (
        Schema((*SCHEMA.columns, Column("order", "key", dtype)), SCHEMA.targets) for dtype in ("string", "int64")
    )
    start = Preprocessor(was).fit([table(OLD).assign(order="7")])
    assert start.carried_to(now, PreprocessorSettings()).schema == now
    with pytest.raises(DataError, match=r"column 'order' \(key\) is gone"):
        start.carried_to(SCHEMA, PreprocessorSettings())


def columns(*changes, drop=()):
    kept = [column for column in SCHEMA.columns if column.name not in drop]
    return Schema((*kept, *changes), SCHEMA.targets)


@pytest.mark.parametrize(
    ("schema", "chosen", "message"),
    [
        (columns(Column("age", "continuous", "float32")), {}, "column 'age' (continuous) is new"),
        (columns(drop=("number",)), {}, "column 'number' (categorical) is gone"),
        (
            columns(Column("number", "categorical", "string"), drop=("number",)),
            {},
            "column 'number' has the dtype string, not int64",
        ),
        (
            columns(Column("number", "continuous", "int64"), drop=("number",)),
            {},
            "column 'number' has the role continuous, not categorical",
        ),
        (
            columns(Column("word", "categorical", "string"), drop=("word",)),
            {},
            "the categorical columns stand in the order number, word, not word, number",
        ),
        (columns(Column("w", "weight", "float32")), {}, "column 'w' (weight) is new"),
        (SCHEMA, {"min_count": 2}, "min_count of 'word' is 2, not 1; min_count of 'number' is 2, not 1"),
        (SCHEMA, {"columns": {"word": {"oov_buckets": 9}}}, "oov_buckets of 'word' is 9, not 1"),
        (SCHEMA, {"max_size": 5}, "max_size of 'word' is 5, not null"),
        (SCHEMA, {"scale": False}, "preprocess.scale is false, not true"),
        (SCHEMA, {"scale": "robust"}, "preprocess.scale is robust, not true"),
        (SCHEMA, {"columns": {"x": {"scale": "robust"}}}, "scale of 'x' is robust, not true"),
        (SCHEMA, {"columns": {"x": {"distinct": 0}}}, "distinct of 'x' is 0, not 256"),
        (SCHEMA, {"bins": 16}, "bins of 'x' is 16, not 48"),
        (SCHEMA, {"columns": {"x": {"bins": 0}}}, "bins of 'x' is 0, not 48"),
        (SCHEMA, {"indicator": "all"}, "preprocess.indicator is all, not auto"),
    ],
)
def test_what_changed_is_refused_by_name(schema, chosen, message):
    start = fitted()
    with pytest.raises(DataError) as error:
        start.carried_to(schema, PreprocessorSettings(**chosen))
    assert message in str(error.value)
    assert "preprocess.from=null" in str(error.value)


def test_settings_that_come_to_the_same_are_no_change():
    chosen = {name: CategorySettings() for name in ("word", "number")}
    assert fitted().carried_to(SCHEMA, PreprocessorSettings(columns=chosen)).settings.columns == chosen


def test_nvtabulars_vocabularies_grow(tmp_path):
    """No statistics came with them: the ids stay, what is new follows, and the statistics are the night's."""
    schema = Schema((Column("city", "categorical", "string"), Column("price", "continuous", "float32"),
                     Column("age", "continuous", "float32"), Column("clicked", "target", "float32")),
                    (Target("clicked", "binary"),))  # fmt: skip
    start = import_nvtabular(typical(tmp_path / "nvt")).preprocessor(schema)
    start.save(tmp_path / "imported")
    chosen = PreprocessorSettings(min_count=2)
    grown = Preprocessor.load(tmp_path / "imported").carried_to(schema, chosen)
    cities = ["Bonn", "Oslo", "Oslo", "Lima", None]
    rows = pd.DataFrame({"city": pd.Series(cities, dtype="str"), "price": [1.0, None, 3.0, 7.5, -1.0],
                         "age": [31.0, 40.0, None, 0.0, 1.0], "clicked": [0.0, 1.0, 0.0, 1.0, 1.0]})  # fmt: skip
    before = grown.transform(rows)
    report = grown.grow([rows]).categories[0]
    assert grown.vocabularies["city"].values.tolist() == ["Rome", "Bonn", "Ä", "Oslo"]
    assert grown.vocabularies["city"].counts.tolist() == [0, 1, 0, 2]
    assert (report.unseen_rate, report.never_seen) == (0.6, 2)
    after = grown.transform(rows)
    assert after["city"].tolist() == [4, 6, 6, 2, 1]
    pd.testing.assert_frame_equal(after.drop(columns="city"), before.drop(columns="city"))
    assert (grown.version.number, grown.version.parent, grown.version.rows) == (2, start.checksum, (0, 5))
    grown.save(tmp_path / "grown")
    again = Preprocessor.load(tmp_path / "grown")
    assert not again.grow([rows]).flags
    assert again.checksum == grown.checksum
    with pytest.raises(DataError, match="oov_buckets of 'city' is 4, not 1"):
        start.carried_to(schema, PreprocessorSettings(oov_buckets=4))
    with pytest.raises(DataError, match=r"preprocess\.scale is false"):
        start.carried_to(schema, PreprocessorSettings(scale=False))


def test_a_first_growth_of_an_import_raises_no_flag_for_want_of_old_rows(tmp_path):
    start = fitted()
    start = Preprocessor(SCHEMA, start.settings, start.vocabularies, start.fills, start.scales)
    report = start.grow([table([("a", 1, None)] * 10)])
    assert (report.rows_old, report.flags) == (0, ())


def test_fastais_ids_grow_in_their_own_layout(tmp_path):
    """There one id, 0, is padding, null and unseen, and values begin at 1."""
    schema = Schema((Column("city", "categorical", "string"),), ())
    start = import_fastai(written(tmp_path, without_indicators)).preprocessor(schema)
    known = start.vocabularies["city"].values.tolist()
    frame = pd.DataFrame({"city": pd.Series([known[0], "Atlantis", None, "Atlantis"], dtype="str")})
    (rows,), _ = start.carried_to(schema, PreprocessorSettings(scale=start.settings.scale)).grow_pack([frame])
    assert rows[:, 0].tolist() == [1, len(known) + 1, 0, len(known) + 1]


@pytest.mark.parametrize("kind", ["fitted", "updated", "bare"])
def test_what_an_earlier_version_saved_grows(kind):
    """Folders of commit 6f82fd3, without a word of growth in them; `bare` has no statistics."""
    start = Preprocessor.load(SAVED / kind)
    grown = start.carried_to(old.SCHEMA, old.SETTINGS)
    rows = [*old.FIRST, *old.SECOND, ("Lima", 9, 4.0), ("Rome", 5, 1.0)]
    known = old.table(old.FIRST[:5])
    before = grown.pack(known)
    report = grown.grow([old.table(rows)])
    assert grown.vocabularies["city"].values.tolist() == ["Oslo", "Bonn", "Lima", "Rome"]
    assert grown.pack(known).tobytes() == before.tobytes()
    assert report.rows_old == {"fitted": 7, "updated": 10, "bare": 0}[kind]
    assert grown.version.parent == start.checksum
    if kind == "fitted":  # as the update wrote it into its own version
        assert start.checksum == Preprocessor.load(SAVED / "updated").version.parent


def test_a_saved_state_says_nothing_of_where_it_began(tmp_path):
    """Settings of a configuration hold `from` too, which belongs to no preprocessor."""
    from gigabatch.pipeline.config.config import PreprocessSettings

    fresh = replace(fitted(), settings=PreprocessSettings(min_count=1, from_="current"))
    fresh.save(tmp_path / "p")
    assert Preprocessor.load(tmp_path / "p").settings == PreprocessorSettings()


def test_integers_that_float32_rounds_grow_with_new_scales_and_are_packed_as_by_two_calls():
    schema = Schema((Column("size", "continuous", "int64"),), ())
    frames = [pd.DataFrame({"size": np.arange(50) * factor + 2**30}) for factor in (1_000, 77_777)]
    one, two = (Preprocessor(schema).fit(frames[:1]) for _ in range(2))
    (rows,), _ = one.grow_pack(frames[1:], refresh_scales=True)
    two.grow(frames[1:], refresh_scales=True)
    assert one.checksum == two.checksum
    np.testing.assert_array_equal(rows, two.pack(frames[1]))
