"""DropNulls against a loop over rows."""

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.missing.drop_nulls import DropNulls
from tests.examples import examples
from tests.features.row_wise import assert_row_wise


def table(rows):
    x, word, n = zip(*rows, strict=True) if rows else ((), (), ())
    return pd.DataFrame({
        "x": pd.Series(list(x), dtype="float64"),
        "word": pd.Series(list(word), dtype="str"),
        "n": pd.array(list(n), dtype="Int64"),
    })  # fmt: skip


@given(
    rows=st.lists(
        st.tuples(*[st.none() | s for s in (st.just(1.5), st.sampled_from(["w", ""]), st.just(7))]), max_size=9
    )
)
@settings(max_examples=examples(50), deadline=None)
def test_any_rows_as_by_a_loop_row_by_row(rows):
    found = assert_row_wise(DropNulls(("n", "word", "x")), table(rows))
    assert found.index.tolist() == [k for k, row in enumerate(rows) if None not in row]


@pytest.mark.parametrize("columns", [(), "x"])
def test_no_columns_are_an_error(columns):
    with pytest.raises(DataError, match="DropNulls: give a list of one or more columns"):
        DropNulls(columns)
