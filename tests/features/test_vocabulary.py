"""Ids: 0 padding, 1 null, 2 unseen, then the values by falling frequency."""

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.errors import DataError
from features.operators.categorify import Categorify
from features.vocabulary import LAYOUT, Vocabulary

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
@settings(max_examples=60, deadline=None)
def test_ids_equal_a_slow_loop(train, rows):
    ids = slow_ids(train)
    found = fit(train).encode(text(rows))
    assert found.tolist() == [ids.get(value, 2) for value in rows]
    assert str(found.dtype) == "int32"


@given(train=WORDS)
@settings(max_examples=60, deadline=None)
def test_decode_undoes_encode(train):
    vocabulary = fit(train)
    back = vocabulary.decode(vocabulary.encode(text(train)))
    assert [None if pd.isna(v) else v for v in back] == train


def test_decode_gives_null_for_padding_null_and_unseen():
    assert fit(["a"]).decode([0, 1, 2, 3]).isna().tolist() == [True, True, True, False]


@pytest.mark.parametrize("wrong", [-1, 4])
def test_decode_refuses_ids_outside_the_table(wrong):
    with pytest.raises(DataError, match=r"ids must lie in \[0, 4\)"):
        fit(["a"]).decode([wrong])


def test_num_ids_is_the_layout_plus_the_values():
    assert fit(["a", "b", None]).num_ids == LAYOUT.num_ids(2) == 5


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


def test_a_category_column_is_encoded_by_value_not_by_its_own_codes():
    lying = pd.Series(pd.Categorical(["a", "b", "b", None], categories=["zzz", "b", "a"]), name="word")
    assert fit(["a", "b", "b"]).encode(lying).tolist() == [4, 3, 3, 1]


def test_int32_rows_find_int64_values():
    vocabulary = Categorify("word").fit([pd.DataFrame({"word": pd.Series([9, 9, 4], dtype="int64")})])
    assert vocabulary.encode(pd.Series([4, 9, 1], dtype="int32")).tolist() == [4, 3, 2]


def test_a_damaged_file_is_an_error(tmp_path):
    pd.DataFrame({"value": ["a", None], "count": [1, 1]}).to_parquet(tmp_path / "null.parquet")
    pd.DataFrame({"value": ["a"]}).to_parquet(tmp_path / "columns.parquet")
    for name in ("null", "columns"):
        with pytest.raises(DataError, match=f"{name}.parquet: damaged"):
            Vocabulary.load(tmp_path / f"{name}.parquet", "pandas")
