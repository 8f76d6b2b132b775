"""Rename on literal tables."""

import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.operators.rows.rename import Rename
from tests.features.row_wise import assert_row_wise

FRAME = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", None], "c": [0.5, None, 1.5]}, index=[3, 1, 2])


def test_columns_get_their_new_names_in_place():
    found = assert_row_wise(Rename({"a": "z", "c": "a"}), FRAME)
    assert list(found.columns) == ["z", "b", "a"]
    assert found["z"].tolist() == [1, 2, 3]
    assert found["a"].tolist()[::2] == [0.5, 1.5]


def test_two_columns_may_swap_names():
    found = Rename({"a": "b", "b": "a"})(FRAME)
    assert list(found.columns) == ["b", "a", "c"]
    assert found["b"].tolist() == [1, 2, 3]


def test_a_name_that_is_taken_is_an_error_that_lists_the_columns():
    with pytest.raises(DataError, match=r"'c' exist already and are not renamed.*'a', 'b', 'c'"):
        Rename({"a": "c"})(FRAME)


def test_one_name_for_two_columns_or_no_mapping_is_an_error():
    with pytest.raises(DataError, match="'z' is the new name of several columns"):
        Rename({"a": "z", "b": "z"})
    with pytest.raises(DataError, match="found none"):
        Rename({})
