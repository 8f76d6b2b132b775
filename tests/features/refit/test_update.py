"""Refit: ids stay, statistics are those of all data, and nothing depends on how the new data was cut."""

import json
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.refit.statistics import FillAndScale, Statistics, statistics_operators
from gigabatch.features.refit.update import Learned, Version, checksum, updated
from gigabatch.features.workflow.fit import fit_together
from tests.examples import examples
from tests.features.partitioned import COUNTS, cut
from tests.features.statistics_columns import SCHEMA

ROW = st.tuples(
    st.one_of(st.none(), st.sampled_from(["a", "b", "cc", "d", "Ä"])),
    st.integers(-3, 3),
    st.one_of(st.none(), st.integers(-40, 40).map(lambda value: value / 4)),
)
ROWS = st.lists(ROW, min_size=1, max_size=25)
FIRST = ("a", 1, 0.25)  # so that no column is all null


def table(rows):
    frame = pd.DataFrame(rows, columns=["word", "number", "x"])
    return frame.astype({"word": "str", "number": "int64", "x": "float32"})


def statistics_of(parts):
    return Statistics.from_states(fit_together(statistics_operators(SCHEMA), parts, lambda frame: frame))


def rare(min_count):
    return lambda name: Categorify(name, min_count)


def most(max_size):
    return lambda name: Categorify(name, max_size=max_size)


def fitted(rows, min_count=1):
    """A first fit by the preprocessor's own operators."""
    frame = table(rows)
    state = FillAndScale("x").fit([frame])
    return Learned(
        {name: Categorify(name, min_count).fit([frame]) for name in ("word", "number")},
        {"x": state.fill},
        {"x": state.scale},
        statistics_of([frame]),
        Version(rows=(len(frame),)),
    )


def vocabularies(learned):
    return {name: (v.values.tolist(), v.counts.tolist()) for name, v in learned.vocabularies.items()}


@given(
    old=ROWS,
    new=ROWS,
    count=COUNTS,
    seed=st.integers(0, 99),
    min_count=st.integers(1, 3),
    refresh=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_any_chunking_of_the_new_data_gives_the_same_state(old, new, count, seed, min_count, refresh):
    first = fitted([FIRST, *old], min_count)
    one = updated(first, statistics_of([table(new)]), category=rare(min_count), refresh_scales=refresh)
    parts = cut(table(new).sample(frac=1, random_state=seed), count, seed)
    many = updated(first, statistics_of(parts), category=rare(min_count), refresh_scales=refresh)
    assert checksum(many) == checksum(one)
    assert vocabularies(many) == vocabularies(one)
    assert (many.fills, many.scales, many.version) == (one.fills, one.scales, one.version)


@given(chunks=st.lists(ROWS, min_size=2, max_size=5), min_count=st.integers(1, 3))
@settings(max_examples=examples(60), deadline=None)
def test_ids_stay_and_what_was_seen_often_enough_decodes(chunks, min_count):
    chunks = [[FIRST] * min_count + chunks[0], *chunks[1:]]
    state, seen = fitted(chunks[0], min_count), list(chunks[0])
    for chunk in chunks[1:]:
        before, seen = state, seen + chunk
        state = updated(state, statistics_of([table(chunk)]), category=rare(min_count))
        for position, name in enumerate(("word", "number")):
            old, new = before.vocabularies[name], state.vocabularies[name]
            assert new.values.tolist()[: len(old.values)] == old.values.tolist()
            values = [row[position] for row in seen if row[position] is not None]
            assert dict(zip(new.values.tolist(), new.counts.tolist(), strict=True)) == {
                value: values.count(value) for value in set(values) if values.count(value) >= min_count
            }
            column = table(seen)[name]
            decoded = new.decode(new.encode(column)).tolist()
            for value, back in zip([row[position] for row in seen], decoded, strict=True):
                assert back == value if values.count(value) >= min_count else pd.isna(back)


@given(chunks=st.lists(ROWS, min_size=2, max_size=4), min_count=st.integers(1, 3))
@settings(max_examples=examples(60), deadline=None)
def test_updates_equal_a_fit_on_everything_but_for_the_order_of_ids(chunks, min_count):
    chunks = [[FIRST, *chunks[0]], *chunks[1:]]
    state = fitted(chunks[0], min_count)
    for chunk in chunks[1:]:
        state = updated(state, statistics_of([table(chunk)]), category=rare(min_count), refresh_scales=True)
    whole = fitted([row for chunk in chunks for row in chunk], min_count)
    for name in ("word", "number"):
        pairs = [
            dict(zip(v.values, v.counts, strict=True)) for v in (state.vocabularies[name], whole.vocabularies[name])
        ]
        assert pairs[0] == pairs[1]
    # Quarters below 10 have fewer than 9 significant bits, so that medians from the histogram are exact.
    assert (state.fills, state.scales) == (whole.fills, whole.scales)
    for name in ("word", "number"):
        mine, other = (learned.statistics.categories[name] for learned in (state, whole))
        assert (mine.rows, mine.nulls) == (other.rows, other.nulls)
        assert mine.counts[["value", "count"]].to_dict("list") == other.counts[["value", "count"]].to_dict("list")
    assert state.statistics.numbers == whole.statistics.numbers


def test_new_values_follow_by_count_over_all_data_then_by_value():
    first = fitted([("a", 1, 1.0)] * 3 + [("rare", 1, 1.0), ("twice", 1, 1.0), ("twice", 1, 1.0)], min_count=3)
    assert first.vocabularies["word"].values.tolist() == ["a"]
    new = [("rare", 1, 1.0)] * 2 + [("twice", 1, 1.0)] * 2 + [("c", 1, 1.0)] * 3 + [("d", 1, 1.0)] * 2
    second = updated(first, statistics_of([table(new)]), category=rare(3))
    found = second.vocabularies["word"]
    assert found.values.tolist() == ["a", "twice", "c", "rare"]  # 3; 4, 3, 3; d was seen twice only
    assert found.counts.tolist() == [3, 4, 3, 3]
    third = updated(second, statistics_of([table([("d", 1, 1.0)])]), category=rare(3))
    assert third.vocabularies["word"].values.tolist() == ["a", "twice", "c", "rare", "d"]
    counts = third.statistics.categories["word"].counts.set_index("value")
    assert counts["last_version"].to_dict() == {"a": 1, "twice": 2, "c": 2, "rare": 2, "d": 3}


def test_a_full_vocabulary_takes_no_more():
    first = fitted([("a", 1, 1.0), ("b", 1, 1.0)])
    new = statistics_of([table([("c", 1, 1.0), ("d", 1, 1.0), ("d", 1, 1.0)])])
    assert updated(first, new, category=most(3)).vocabularies["word"].values.tolist() == ["a", "b", "d"]
    assert updated(first, new, category=most(1)).vocabularies["word"].values.tolist() == ["a", "b"]


def test_fills_and_scales_stay_unless_they_are_refreshed_at_any_later_time():
    first = fitted([("a", 1, 1.0), ("a", 1, 2.0), ("a", 1, None), ("a", 1, 9.0)])
    chunks = [statistics_of([table([("a", 1, 50.0)] * 3)]), statistics_of([table([("b", 2, None), ("b", 2, -7.5)])])]
    frozen = updated(updated(first, chunks[0]), chunks[1])
    assert (frozen.fills, frozen.scales) == (first.fills, first.scales)
    late = updated(updated(first, chunks[0]), chunks[1], refresh_scales=True)
    always = updated(updated(first, chunks[0], refresh_scales=True), chunks[1], refresh_scales=True)
    filled = [1, 2, 9, 50, 50, 50, -7.5]
    assert (late.fills, late.scales) == (always.fills, always.scales)
    assert late.fills["x"].value == np.median(filled)
    assert late.fills["x"].null_rate == 2 / 9
    everything = np.array([*filled, 9, 9], dtype="float64")
    assert np.isclose(late.scales["x"].mean, everything.mean(), rtol=1e-15)
    assert np.isclose(late.scales["x"].std, everything.std(), rtol=1e-14)


@pytest.mark.parametrize(("refresh", "silent"), [(False, True), (True, False)])
def test_a_silent_indicator_speaks_once_a_refresh_has_seen_a_null(refresh, silent):
    first = fitted([("a", 1, 1.0), ("a", 1, 2.0)])
    assert (first.fills["x"].indicator, first.fills["x"].silent) == (True, True)
    second = updated(first, statistics_of([table([("a", 1, None)])]), refresh_scales=refresh)
    assert (second.fills["x"].indicator, second.fills["x"].silent) == (True, silent)
    assert second.fills["x"].null_rate == (1 / 3 if refresh else 0)


@pytest.mark.parametrize(("nulls", "silent"), [(9, True), (10, False)])
def test_a_refresh_that_has_seen_hardly_any_null_leaves_the_indicator_silent(nulls, silent):
    first = fitted([("a", 1, float(value)) for value in range(9_000)])
    rows = [("a", 1, None)] * nulls
    assert updated(first, statistics_of([table(rows)]), refresh_scales=True).fills["x"].silent == silent


def test_a_refreshed_median_states_how_far_off_it_may_be():
    random = np.random.default_rng(0)
    old, new = random.normal(5, 1, 500).astype("float32"), random.normal(6, 1, 501).astype("float32")
    first = fitted([("a", 1, value) for value in old])
    assert first.fills["x"].error == 0
    second = updated(first, statistics_of([table([("a", 1, value) for value in new])]), refresh_scales=True)
    exact = float(np.median(np.concatenate([old, new])))
    assert 0 < abs(second.fills["x"].value - exact) <= second.fills["x"].error < exact / 127


def test_versions_are_chained_and_reproducible():
    first = fitted([("a", 1, 1.0), ("b", 2, None)])
    new = statistics_of([table([("c", 3, 4.0)])])
    second = updated(first, new)
    third = updated(second, new)
    assert (second.version.number, second.version.parent, second.version.rows) == (2, checksum(first), (2, 1))
    assert (third.version.number, third.version.parent, third.version.rows) == (3, checksum(second), (2, 1, 1))
    assert checksum(updated(fitted([("a", 1, 1.0), ("b", 2, None)]), new)) == checksum(second)
    assert Version.from_dict(json.loads(json.dumps(asdict(third.version)))) == third.version


def test_the_old_state_is_not_changed():
    first = fitted([("a", 1, 1.0), ("b", 2, None)])
    before = checksum(first)
    updated(first, statistics_of([table([("c", 3, 4.0), ("a", 1, 1.0)])]), refresh_scales=True)
    assert checksum(first) == before


CHANGES = {
    "a word": ([("z", 1, 1.0), ("b", 2, None)], {}),
    "words run together": ([("a", 1, 1.0), ("bb", 2, None)], {}),
    "a number": ([("a", 1, 1.0), ("b", 3, None)], {}),
    "a float": ([("a", 1, 1.5), ("b", 2, None)], {}),
    "a null": ([("a", 1, 1.0), ("b", 2, 1.0)], {}),
    "a row more": ([("a", 1, 1.0), ("b", 2, None), ("b", 2, None)], {}),
    "a fill": (None, {"fills": {}}),
    "a scale": (None, {"scales": {}}),
    "a version": (None, {"version": Version(2, "0" * 32, (1, 1))}),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_any_difference_changes_the_checksum(kind):
    rows, fields = CHANGES[kind]
    first = fitted([("a", 1, 1.0), ("b", 2, None)])
    assert checksum(replace(fitted(rows), **fields) if rows else replace(first, **fields)) != checksum(first)


def test_the_checksum_never_changes():
    """It stands in saved states as the parent of their version. The two are from when it was first written."""
    first = fitted([("a", 1, 1.0), ("b", 2, None)])
    assert checksum(first) == "5b4278384f45860d5b0f26bf2ea18684"
    assert checksum(updated(first, statistics_of([table([("Ä", 3, 4.0)])]))) == "b4ade5e969d63d9ef4b0b0ec13f849dd"


def test_texts_are_told_apart_by_where_they_end():
    assert checksum(fitted([("ab", 1, 1.0), ("c", 1, 1.0)])) != checksum(fitted([("a", 1, 1.0), ("bc", 1, 1.0)]))


def test_the_checksum_does_not_depend_on_how_text_is_held():
    learned = fitted([("ab", 1, 1.0), ("c", 1, 1.0), ("", 1, 1.0)])
    word = learned.vocabularies["word"]
    arrow = replace(word, values=word.values.astype("string[pyarrow]"))
    sliced = replace(word, values=pd.concat([word.values.head(1), word.values]).iloc[1:])
    for other in (arrow, sliced):
        assert checksum(replace(learned, vocabularies=learned.vocabularies | {"word": other})) == checksum(learned)


def test_an_update_without_rows_is_an_error():
    with pytest.raises(DataError, match=r"the new data has no rows"):
        updated(fitted([FIRST]), statistics_of([table([])]))


@pytest.mark.parametrize(
    "change",
    [
        {"number": 0},
        {"number": True},
        {"number": "2"},
        {"number": 3},
        {"parent": None},
        {"parent": "../../x"},
        {"rows": [1]},
        {"rows": [1, -1]},
        {"rows": [1, 1.5]},
        {"rows": 7},
    ],
)
def test_an_impossible_version_is_refused(change):
    raw = {"number": 2, "parent": "0" * 32, "rows": [1, 1]}
    assert Version.from_dict(raw).number == 2
    with pytest.raises((ValueError, TypeError)):
        Version.from_dict(raw | change)
