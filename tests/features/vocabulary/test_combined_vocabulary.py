"""Several columns as one category, against plain Python's tuples."""

from collections import Counter

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.operators.categories.hashed_cross import HashedCross
from gigabatch.features.vocabulary.combined import CombinedVocabulary
from tests.examples import examples
from tests.features.partitioned import COUNTS, cut

ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from(["a", "b", "cc", "ä"])),
        st.one_of(st.none(), st.integers(-2, 2), st.just(2**60 + 1)),
        st.one_of(st.none(), st.booleans()),
    ),
    max_size=30,
)
NAMES = ["word", "number", "flag"]


def frame_of(rows):
    return pd.DataFrame({
        "word": pd.Series([row[0] for row in rows], dtype="str"),
        "number": pd.array([row[1] for row in rows], dtype="Int64"),
        "flag": pd.Series([row[2] for row in rows], dtype=object),
    })  # fmt: skip


def ordered(rows, min_count=1):
    """The combinations by descending count, ties by value, null first; text sorts by its UTF-8 bytes."""
    counts = Counter(row for row in rows if row != (None, None, None))

    def key(row):
        word, number, flag = row
        return (-counts[row], word is not None, (word or "").encode(), number is not None, number or 0,
                flag is not None, bool(flag))  # fmt: skip

    return sorted((row for row in counts if counts[row] >= min_count), key=key)


def tuples(frame):
    return [tuple(None if pd.isna(v) else v for v in row) for row in frame.itertuples(index=False)]


def operator(**settings):
    return Categorify(combined=NAMES, output="all", **settings)


@given(train=ROWS, rows=ROWS, count=COUNTS, seed=st.integers(0, 99), min_count=st.integers(1, 2))
@settings(max_examples=examples(80), deadline=None)
def test_ids_equal_a_slow_loop_in_any_partitions(train, rows, count, seed, min_count):
    fitted = operator(min_count=min_count).fit(cut(frame_of(train), count, seed))
    known = ordered(train, min_count)
    assert tuples(fitted.parts) == known
    assert fitted.counts.tolist() == [train.count(row) for row in known]
    ids = {row: 3 + k for k, row in enumerate(known)} | {(None, None, None): 1}
    found = operator().apply(frame_of(rows), fitted)["all"]
    assert found.tolist() == [ids.get(row, 2) for row in rows]
    assert str(found.dtype) == "int32"
    assert fitted.num_ids == 3 + len(known)


def test_decode_of_padding_null_and_unseen_is_all_null_and_ids_outside_are_refused():
    fitted = operator().fit([frame_of([("a", 1, True)])])
    assert tuples(fitted.decode([0, 1, 2, 3])) == [(None,) * 3] * 3 + [("a", 1, True)]
    with pytest.raises(DataError, match=r"ids must lie in \[0, 4\)"):
        fitted.decode([4])


@given(train=ROWS, rows=ROWS, buckets=st.integers(2, 5))
@settings(max_examples=examples(40), deadline=None)
def test_unseen_combinations_fall_into_the_buckets_of_hashed_cross(train, rows, buckets):
    fitted = operator(oov_buckets=buckets).fit([frame_of(train)])
    known = ordered(train)
    numbers = frame_of(rows).assign(flag=pd.array([row[2] for row in rows], "boolean").astype("Int64"))
    crossed = HashedCross(NAMES, buckets, "all")(numbers)["all"].tolist()
    ids = {row: 2 + buckets + k for k, row in enumerate(known)} | {(None, None, None): 1}
    expected = [ids[row] if row in ids else 2 + hashed - 1 for row, hashed in zip(rows, crossed, strict=True)]
    assert fitted.encode(frame_of(rows)).tolist() == expected


@given(batches=st.lists(ROWS, min_size=1, max_size=4))
@settings(max_examples=examples(40), deadline=None)
def test_ids_stay_under_updates_and_decode_as_a_full_refit(batches):
    frames = [frame_of(batch) for batch in batches]
    fitted = operator().fit(frames[:1])
    for frame, batch in zip(frames[1:], batches[1:], strict=True):
        before = tuples(fitted.parts)
        fitted = operator().update(fitted, operator().partial(frame))
        assert tuples(fitted.parts) == before + [row for row in ordered(batch) if row not in before]
    rows = [row for batch in batches for row in batch]
    refit = operator().fit(frames)
    assert tuples(fitted.decode(fitted.encode(frame_of(rows)))) == rows
    assert dict(zip(tuples(fitted.parts), fitted.counts, strict=True)) == dict(
        zip(tuples(refit.parts), refit.counts, strict=True)
    )


def test_an_update_keeps_to_min_count_and_max_size():
    fitted = operator().fit([frame_of([("a", 1, True)])])
    counted = operator().partial(frame_of([("b", 1, True)] * 3 + [("c", 1, True)] * 2 + [("d", 1, True)]))
    assert tuples(fitted.update(counted, min_count=2).parts) == [("a", 1, True), ("b", 1, True), ("c", 1, True)]
    assert tuples(fitted.update(counted, max_size=2).parts) == [("a", 1, True), ("b", 1, True)]


def test_text_that_would_join_to_the_same_string_stays_apart():
    frame = pd.DataFrame({"a": ["x_y", "x"], "b": ["z", "y_z"]})
    combined = Categorify(combined=["a", "b"], output="ab")
    assert sorted(combined.apply(frame, combined.fit([frame]))["ab"]) == [3, 4]


def test_many_columns_of_many_values_do_not_overflow():
    # 40 columns of 50 values have 50^40 possible combinations.
    frame = pd.DataFrame({f"c{k}": [(row * (k + 1)) % 50 for row in range(50)] for k in range(40)})
    combined = Categorify(combined=list(frame.columns), output="all")
    fitted = combined.fit([frame])
    assert sorted(combined.apply(frame, fitted)["all"]) == list(range(3, 53))
    pd.testing.assert_frame_equal(fitted.decode(fitted.encode(frame)), frame, check_dtype=False)


def test_a_partition_whose_column_is_all_null_takes_the_others_type():
    parts = [pd.DataFrame({"a": [None, None], "b": [1, 2]}), pd.DataFrame({"a": ["x", None], "b": [1.0, None]})]
    combined = Categorify(combined=["a", "b"], output="ab")
    for order in (parts, parts[::-1]):
        fitted = combined.fit(order)
        assert tuples(fitted.parts) == [(None, 1), (None, 2), ("x", 1)]
        assert fitted.encode(parts[1]).tolist() == [5, 1]


def test_nothing_but_nulls_is_an_empty_vocabulary():
    fitted = operator().fit([frame_of([(None, None, None)])])
    assert isinstance(fitted, CombinedVocabulary)
    assert fitted.num_ids == 3
    assert fitted.encode(frame_of([(None, None, None), ("a", None, None)])).tolist() == [1, 2]
    assert tuples(fitted.decode([1, 2])) == [(None,) * 3] * 2
    later = operator().update(fitted, operator().partial(frame_of([("a", 1, None)])))
    assert later.encode(frame_of([("a", 1, None)])).tolist() == [3]


def test_a_missing_column_and_another_kind_are_errors():
    fitted = operator().fit([frame_of([("a", 1, True)])])
    with pytest.raises(DataError, match=r"CombinedVocabulary: column\(s\) 'flag' not found"):
        fitted.encode(frame_of([("a", 1, True)]).drop(columns="flag"))
    with pytest.raises(DataError, match=r"column 'number' holds text"):
        fitted.encode(frame_of([("a", 1, True)]).assign(number=["1"]))
    with pytest.raises(DataError, match=r"Categorify of \('word', 'number', 'flag'\): some rows hold"):
        operator().fit([frame_of([("a", 1, True)]), frame_of([("a", 1, True)]).assign(number=["1"])])
