"""HashedCross against Python's integers and published SplitMix64 numbers."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.columns.hashing import splitmix64
from gigabatch.features.errors import DataError
from gigabatch.features.operators.categories.hashed_cross import HashedCross
from tests.examples import examples
from tests.features.operators.hostile_cases import combination_bucket
from tests.features.row_wise import assert_row_wise


def test_the_mixing_function_is_splitmix64():
    # The first three outputs of SplitMix64 from seed 0, as in the reference implementation's test vectors.
    states = np.array([k * 0x9E3779B97F4A7C15 % 2**64 for k in (1, 2, 3)], dtype="uint64")
    assert [hex(value) for value in splitmix64(states).tolist()] == [
        "0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f",
    ]  # fmt: skip


@given(
    rows=st.lists(st.tuples(st.none() | st.text("ab", max_size=2), st.none() | st.integers(-3, 3)), max_size=10),
    buckets=st.integers(1, 10**9),
)
@settings(max_examples=examples(50), deadline=None)
def test_any_rows_fall_as_by_a_loop_row_by_row(rows, buckets):
    words, numbers = zip(*rows, strict=True) if rows else ((), ())
    frame = pd.DataFrame({"w": pd.Series(list(words), dtype="str"), "n": pd.array(list(numbers), dtype="Int64")})
    found = assert_row_wise(HashedCross(("w", "n"), buckets, "wn"), frame)
    assert found["wn"].tolist() == [combination_bucket(row, buckets) for row in rows]
    assert str(found["wn"].dtype) == "int32"


@pytest.mark.parametrize("columns", ["ab", ("a",), (), ("a", "a")])
def test_fewer_than_two_columns_are_an_error(columns):
    with pytest.raises(DataError, match="HashedCross into 'out': give two or more different columns"):
        HashedCross(columns, 10, "out")


def test_errors_name_the_setting_and_the_column():
    with pytest.raises(DataError, match="HashedCross into 'out': num_buckets must be"):
        HashedCross(("a", "b"), 0, "out")
    with pytest.raises(DataError, match="HashedCross: column 'b' is float64"):
        HashedCross(("a", "b"), 9, "out")(pd.DataFrame({"a": [1], "b": [0.5]}))
