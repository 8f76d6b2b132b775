"""Ids: 0 padding, 1 null, 2 unseen, then the values by falling frequency."""

from collections import Counter
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.vocabulary.vocabulary import LAYOUT, METADATA, IdLayout, Vocabulary
from tests.examples import examples
from tests.features.damage import damaged

WORDS = st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "cc", "Ä", "", "0"])), min_size=1, max_size=30)


def text(values):
    return pd.Series(values, dtype="str", name="word")


def fit(values):
    return Categorify("word").fit([pd.DataFrame({"word": text(values)})])


def slow_ids(train):
    """The id of each value, by counting and sorting in plain Python; strings sort by their UTF-8 bytes."""
    known = [v for v in train if v is not None]
    ordered = sorted(set(known), key=lambda v: (-known.count(v), v.encode()))
    return {v: 3 + i for i, v in enumerate(ordered)} | {None: 1}


@given(train=WORDS, rows=WORDS)
@settings(max_examples=examples(60), deadline=None)
def test_ids_equal_a_slow_loop(train, rows):
    ids = slow_ids(train)
    found = fit(train).encode(text(rows))
    assert found.tolist() == [ids.get(value, 2) for value in rows]
    assert str(found.dtype) == "int32"


def test_decode_gives_null_for_padding_null_and_unseen_and_refuses_ids_outside_the_table():
    assert fit(["a"]).decode([0, 1, 2, 3]).isna().tolist() == [True, True, True, False]
    for wrong in (-1, 4):
        with pytest.raises(DataError, match=r"ids must lie in \[0, 4\)"):
            fit(["a"]).decode([wrong])


@pytest.mark.parametrize(
    ("values", "dtype"),
    [(["x", "y", "x"], "str"), ([5, -7, 5], "int64"), ([5, -7, 5], "int32"), ([0.5, -1.0, 0.5], "float64"),
     ([True, False, True], "bool")],
)  # fmt: skip
def test_every_value_type_saves_loads_and_encodes_alike(values, dtype, tmp_path):
    column = pd.Series(values, dtype=dtype, name="word")
    vocabulary = Categorify("word").fit([column.to_frame()])
    vocabulary.save(tmp_path / "v.parquet")
    loaded = Vocabulary.load(tmp_path / "v.parquet", "pandas")
    assert loaded.values.tolist() == vocabulary.values.tolist() == [values[0], values[1]]
    assert loaded.counts.tolist() == [2, 1]
    assert loaded.encode(column).tolist() == vocabulary.encode(column).tolist() == [3, 4, 3]
    assert loaded.decode([3, 4]).tolist() == [values[0], values[1]]


def test_an_all_null_column_has_an_empty_vocabulary_that_survives_saving(tmp_path):
    vocabulary = fit([None, None])
    vocabulary.save(tmp_path / "v.parquet")
    loaded = Vocabulary.load(tmp_path / "v.parquet", "pandas")
    for v in (vocabulary, loaded):
        assert v.num_ids == 3
        assert v.encode(text(["a", None])).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("layout", "first"),
    [(IdLayout(), 3), (IdLayout(buckets=4), 6), (IdLayout(0, 0, 0), 1), (IdLayout(0, 0, 1), 2),
     (IdLayout(16, 16, 16), 17), (IdLayout(0, 0, 0, 10), 10)],
)  # fmt: skip
def test_a_layout_says_the_first_id_and_the_size(layout, first):
    assert layout.first == first
    assert layout.num_ids(5) == first + 5


@pytest.mark.parametrize(
    "wrong", [{"padding": -1}, {"null": 1.0}, {"unseen": True}, {"buckets": 0}, {"unseen": 2**31}, {"null": None},
              {"null": 3, "buckets": 2}, {"padding": 5, "buckets": 4}],
)  # fmt: skip
def test_a_layout_that_is_none_is_an_error(wrong):
    with pytest.raises(DataError, match="id layout: "):
        IdLayout(**wrong)


def test_one_id_may_stand_for_null_and_unseen():
    vocabulary = Vocabulary(text(["b", "a"]), pd.Series([0, 0]), IdLayout(0, 0, 0))
    assert vocabulary.encode(text(["a", None, "z", "b"])).tolist() == [2, 0, 0, 1]
    assert vocabulary.num_ids == 3
    assert [None if pd.isna(v) else v for v in vocabulary.decode([0, 1, 2])] == [None, "b", "a"]


@given(train=WORDS, rows=WORDS, buckets=st.integers(1, 9))
@settings(max_examples=examples(40), deadline=None)
def test_unseen_values_fall_into_buckets_by_xxhash(train, rows, buckets):
    ids = {value: number + buckets - 1 for value, number in slow_ids(train).items() if value is not None} | {None: 1}
    vocabulary = replace(fit(train), layout=IdLayout(buckets=buckets))
    expected = [ids[v] if v in ids else 2 + xxhash.xxh64_intdigest(v.encode()) % buckets for v in rows]
    assert vocabulary.encode(text(rows)).tolist() == expected
    assert vocabulary.encode(text(rows).astype("category")).tolist() == expected


@given(batches=st.lists(WORDS, min_size=1, max_size=5))
@settings(max_examples=examples(60), deadline=None)
def test_ids_stay_under_any_sequence_of_updates(batches):
    """And what the updated vocabulary decodes is what a full refit would."""
    operator = Categorify("word")
    frames = [pd.DataFrame({"word": text(batch)}) for batch in batches]
    vocabulary = operator.fit(frames[:1])
    for frame in frames[1:]:
        before = vocabulary
        vocabulary = operator.update(vocabulary, operator.partial(frame))
        assert vocabulary.values.tolist()[: len(before.values)] == before.values.tolist()
        known = set(before.values)
        counts = Counter(v for v in frame["word"] if isinstance(v, str) and v not in known)
        arrived = sorted(counts, key=lambda v: (-counts[v], v.encode()))
        assert vocabulary.values.tolist()[len(before.values) :] == arrived
    refit = operator.fit(frames)
    everything = text([value for batch in batches for value in batch])
    decoded = [v.decode(v.encode(everything)).to_frame("word") for v in (vocabulary, refit)]
    pd.testing.assert_frame_equal(decoded[0], decoded[1], check_dtype=False)
    known = [value for batch in batches for value in batch]
    assert [None if pd.isna(value) else value for value in decoded[0]["word"]] == known
    assert dict(zip(vocabulary.values, vocabulary.counts, strict=True)) == dict(
        zip(refit.values, refit.counts, strict=True)
    )


def test_an_update_keeps_to_min_count_and_max_size():
    vocabulary = fit(["a", "a", "b"])
    counted = pd.DataFrame({"value": text(["b", "x", "y", "z"]), "count": [1, 5, 3, 1]})
    assert vocabulary.update(counted, min_count=2).values.tolist() == ["a", "b", "x", "y"]
    found = vocabulary.update(counted, max_size=3)
    assert (found.values.tolist(), found.counts.tolist()) == (["a", "b", "x"], [2, 2, 5])
    assert vocabulary.update(counted, max_size=1).values.tolist() == ["a", "b"]
    assert vocabulary.counts.tolist() == [2, 1]


def test_an_update_of_numbers_by_floats_keeps_the_ids():
    vocabulary = Categorify("word").fit([pd.DataFrame({"word": [5, 5, 6]})])
    counted = pd.DataFrame({"value": [6.0, 9.0], "count": [1, 1]})
    assert vocabulary.update(counted).values.tolist() == [5, 6, 9]
    assert vocabulary.update(counted.head(0)).values.tolist() == [5, 6]


def test_an_empty_vocabulary_takes_what_comes():
    empty = fit([None])
    found = empty.update(pd.DataFrame({"value": [3, 1], "count": [1, 1]}))
    assert found.encode(pd.Series([1, 3, 2])).tolist() == [3, 4, 2]


@pytest.mark.parametrize("layout", [IdLayout(), IdLayout(buckets=7), IdLayout(0, 0, 0), IdLayout(5, 6, 9)])
def test_the_layout_is_saved_with_the_values(layout, tmp_path):
    Vocabulary(text(["b", "a"]), pd.Series([3, 1]), layout).save(tmp_path / "v.parquet")
    assert Vocabulary.load(tmp_path / "v.parquet", "pandas").layout == layout


def test_a_file_from_before_layouts_were_saved_has_the_usual_one(tmp_path):
    pd.DataFrame({"value": ["a"], "count": [1]}).to_parquet(tmp_path / "v.parquet")
    assert Vocabulary.load(tmp_path / "v.parquet", "pandas").layout == LAYOUT


@pytest.mark.parametrize(
    ("values", "counts", "message"),
    [(["a", "a"], [1, 1], r"1 value\(s\) are there twice"), (["a"], [-1], "whole numbers from 0"),
     (["a"], [1.0], "whole numbers from 0"), (["a"], ["1"], "whole numbers from 0"),
     (pd.to_datetime(["2020-01-01"]), [1], "datetime64"), ([["a"]], [1], "holds lists"),
     (["a", None], [1, 1], "damaged"), (["a"], None, "damaged")],
)  # fmt: skip
def test_a_file_that_holds_no_vocabulary_is_refused(values, counts, message, tmp_path):
    frame = pd.DataFrame({"value": values, "count": counts})
    (frame.drop(columns="count") if counts is None else frame).to_parquet(tmp_path / "v.parquet")
    with pytest.raises(DataError, match=f"v.parquet.*{message}"):
        Vocabulary.load(tmp_path / "v.parquet", "pandas")


@pytest.mark.parametrize(
    "metadata",
    [b"", b"{", b"[]", b'{"layout": 3}', b'{"layout": {"padding": 0}}', b"\xff",
     b'{"layout": {"padding": 0, "null": 1, "unseen": 2, "buckets": 0}}',
     b'{"layout": {"padding": 0, "null": 1, "unseen": 2, "buckets": "1"}}',
     b'{"layout": {"padding": 0, "null": 1, "unseen": 2, "buckets": 1, "more": 1}}'],
)  # fmt: skip
def test_a_layout_that_cannot_be_read_is_refused(metadata, tmp_path):
    table = pa.table({"value": ["a"], "count": [1]}).replace_schema_metadata({METADATA: metadata})
    pq.write_table(table, tmp_path / "v.parquet")
    with pytest.raises(DataError, match=r"v.parquet: damaged, its id layout cannot be read"):
        Vocabulary.load(tmp_path / "v.parquet", "pandas")


def test_a_file_that_is_no_parquet_or_not_there_is_refused(tmp_path):
    (tmp_path / "v.parquet").write_bytes(b"PAR1 not at all")
    for name in ("v.parquet", "nowhere.parquet"):
        with pytest.raises(DataError, match=f"{name}: damaged, it cannot be read"):
            Vocabulary.load(tmp_path / name, "pandas")


@given(data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_file_with_damaged_bytes_is_refused_or_still_a_vocabulary(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.parquet"
    fit(["a", "b", "b", "Ä"]).save(path)
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    try:
        found = Vocabulary.load(path, "pandas")
    except DataError:
        return
    assert len(set(found.values.tolist())) == len(found.values) == len(found.counts)
    assert (found.counts >= 0).all()
