"""Lists to flat arrays and back."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.columns.lists import list_column, list_entries
from gigabatch.features.reading.sources import cast
from tests.examples import examples

ROWS = st.lists(st.one_of(st.none(), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4)), max_size=12)


@given(rows=ROWS)
@settings(max_examples=examples(60), deadline=None)
def test_entries_and_lengths_make_the_lists_again(rows):
    column = pd.Series(rows, dtype=object, index=range(7, 7 + len(rows)), name="c")
    entries, lengths = list_entries(column)
    assert entries.tolist() == [value for row in rows for value in row or []]
    assert lengths.tolist() == [len(row or []) for row in rows]
    made = list_column(entries.to_numpy("int32"), lengths, column.to_frame())
    assert [row.tolist() for row in made] == [row or [] for row in rows]
    assert made.index.tolist() == column.index.tolist()
    assert all(row.dtype == "int32" for row in made)


@pytest.mark.parametrize(
    "column",
    [pd.Series([[2**60 + 1, None], None, []]),
     pd.Series([np.array([2**60 + 1, None], object), None, np.array([], object)]),
     pd.Series(pd.array([[2**60 + 1, None], None, []], pd.ArrowDtype(pa.list_(pa.int64()))))],
    ids=["lists", "arrays", "arrow"],
)  # fmt: skip
def test_large_integers_beside_nulls_stay_exact_in_any_kind_of_list(column):
    entries, lengths = list_entries(column)
    assert entries.tolist() == [2**60 + 1, pd.NA]
    assert lengths.tolist() == [2, 0, 0]


ENTRY = st.none() | st.integers(-(2**62), 2**62)


@given(rows=st.lists(st.none() | st.lists(ENTRY, max_size=4), min_size=1, max_size=8))
@settings(max_examples=examples(60), deadline=None)
def test_whole_numbers_beside_nulls_are_lists_again_as_they_were(rows):
    """A float rounds beyond 2^53. Rows without a null are arrays of whole numbers, whatever their neighbours hold."""
    column = pd.Series([*rows, [1]], dtype=object, name="c")
    entries, lengths = list_entries(column)
    made = list_column(entries, lengths, column.to_frame())
    assert [row.tolist() for row in made] == [row or [] for row in [*rows, [1]]]
    assert {row.dtype.kind for row in made if None not in row.tolist()} == {"i"}
    again, _ = list_entries(made.rename("c"))
    assert again.tolist() == entries.tolist()


@pytest.mark.parametrize("kind", ["float64", "str", "object", "Int64", "category", "datetime64[us]"])
@pytest.mark.parametrize("dtype", ["list[string]", "list[int64]", "list[float32]"])
def test_a_column_of_nulls_alone_is_one_of_null_lists(kind, dtype):
    column = pd.Series([None, None], dtype=kind, index=[7, 5])
    found = cast(pd.DataFrame({"tags": column}), {"tags": dtype}, "here")["tags"]
    alone = cast(pd.DataFrame({"tags": [None, []]}), {"tags": dtype}, "here")["tags"]
    assert found.dtype == alone.dtype
    assert found.isna().all()
    assert found.index.tolist() == [7, 5]


@pytest.mark.parametrize("values", [[1, 2], ["a|b"], [["a"], [1]], [[1], "a"]])
def test_what_holds_no_lists_is_an_error(values):
    with pytest.raises((ValueError, TypeError)):
        list_entries(pd.Series(values, name="c"))
