"""ListLength against Python's `len`."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators import ListLength
from gigabatch.features.workflow.workflow import Workflow
from tests.examples import examples
from tests.features.row_wise import assert_row_wise

TEXTS = st.lists(st.none() | st.text("a1|, ", max_size=9), max_size=12)
LISTS = st.lists(st.none() | st.lists(st.none() | st.integers(-(2**62), 2**62), max_size=5), max_size=12)


@given(rows=TEXTS, separator=st.sampled_from(["|", ", "]))
@settings(max_examples=examples(60), deadline=None)
def test_of_text_it_is_the_number_of_parts(rows, separator):
    frame = pd.DataFrame({"x": pd.Series(rows, dtype="str")})
    found = assert_row_wise(ListLength("x", "n", separator), frame)["n"]
    assert found.tolist() == [0 if row is None else len(row.split(separator)) for row in rows]
    assert found.dtype == np.int64


@given(rows=LISTS, kind=st.sampled_from(["objects", "arrays", "arrow"]))
@settings(max_examples=examples(60), deadline=None)
def test_of_lists_it_counts_null_entries_too(rows, kind):
    if kind == "arrow":
        column = pd.Series(rows, dtype=pd.ArrowDtype(pa.large_list(pa.int64())))
    else:
        make = list if kind == "objects" else lambda row: np.array(row, dtype=object)
        column = pd.Series([row if row is None else make(row) for row in rows], dtype=object)
    frame = pd.DataFrame({"x": column}).set_index(np.arange(len(rows)) + 7)
    found = ListLength("x", "n", None)(frame)["n"]
    assert found.tolist() == [0 if row is None else len(row) for row in rows]
    assert found.index.tolist() == frame.index.tolist()
    assert found.dtype == np.int64


def test_rows_of_short_lists_are_filtered():
    steps = [{"list_length": {"column": "x", "output": "n", "separator": None}},
             {"filter": {"column": "n", "op": ">=", "value": 2}}]  # fmt: skip
    frame = pd.DataFrame({"x": [[1], [1, 2], [], None, ["a", None, "b"][:2]], "k": range(5)})
    frame["x"] = [[str(one) for one in row] if row is not None else None for row in frame["x"]]
    assert Workflow.from_steps(steps).fit([frame]).transform(frame)["k"].tolist() == [1, 4]


def test_other_columns_and_an_empty_separator_are_refused():
    with pytest.raises(DataError, match="ListLength of 'x': the separator must not be empty"):
        ListLength("x", "n", "")
    with pytest.raises(DataError, match=r"ListLength: column 'x' is int64, not delimited text.*separator=None"):
        ListLength("x", "n")(pd.DataFrame({"x": [1]}))
    with pytest.raises(DataError, match=r"'x' holds lists.*ListLength"):
        ListLength("x", "n")(pd.DataFrame({"x": [[1]]}))
    with pytest.raises(DataError, match=r"ListLength: not a column of lists \(column 'x' is"):
        ListLength("x", "n", None)(pd.DataFrame({"x": ["a|b"]}))
