"""ExplodeLists against Python's own str.split."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.lists.explode_lists import ExplodeLists, split_lists
from tests.examples import examples

OPERATOR = ExplodeLists({"items": ("item", "int64"), "prices": ("price", "float64")}, "place", ("row", "who"))
PAIRS = st.lists(st.tuples(st.integers(0, 2**40), st.integers(-500, 500)), min_size=1, max_size=6)


def table(rows):
    return pd.DataFrame({
        "row": np.arange(len(rows)),
        "who": pd.Series([f"u{k % 3}" for k in range(len(rows))], dtype="str"),
        "items": pd.Series([None if r is None else "|".join(str(i) for i, _ in r) for r in rows], dtype="str"),
        "prices": pd.Series([None if r is None else "|".join(str(p) for _, p in r) for r in rows], dtype="str"),
    })  # fmt: skip


@given(rows=st.lists(st.one_of(st.none(), PAIRS), max_size=8), start=st.integers(0, 50))
@settings(max_examples=examples(60), deadline=None)
def test_any_lists_come_apart_as_by_a_loop(rows, start):
    frame = table(rows)
    frame.index = np.arange(len(rows)) * 3 + start
    found = OPERATOR(frame)
    expected = [
        (k, f"u{k % 3}", place, item, float(price))
        for k, row in enumerate(rows)
        for place, (item, price) in enumerate(row or [], 1)
    ]
    assert list(found.itertuples(index=False, name=None)) == expected
    assert found.dtypes.astype(str).to_dict() == {
        "row": "int64", "who": "str", "place": "int32", "item": "int64", "price": "float64",
    }  # fmt: skip


def test_lists_of_different_length_are_an_error_that_names_the_row():
    frame = table([[(1, 1)], [(1, 1), (2, 2)]])
    frame.loc[1, "prices"] = "7"
    with pytest.raises(DataError, match=r"'items' and 'prices'.*row 1: 2 and 1 entries"):
        OPERATOR(frame)
    frame.loc[1, "prices"] = None
    with pytest.raises(DataError, match="row 1: 2 and 0 entries"):
        OPERATOR(frame)


def test_an_entry_that_is_no_number_is_an_error_that_names_the_column():
    with pytest.raises(DataError, match=r"column 'items': a list entry is not of type int64.*x1"):
        split_lists(pd.Series(["1|x1"], dtype="str", name="items"), "int64")


@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_hexadecimal_entries_are_no_whole_numbers(dtype):
    """Arrow reads 0xFF as 255, of int8 as -1; readers of files refuse it."""
    with pytest.raises(DataError, match=rf"'items': a list entry is not of type {dtype} \('0XfF' is hexadecimal"):
        split_lists(pd.Series(["1|0XfF", None], dtype="str", name="items"), dtype)


def test_text_entries_come_as_text():
    words, lengths = split_lists(pd.Series(["a b|c", None, ""], dtype="str"), "string")
    assert words.tolist() == ["a b", "c", ""]
    assert lengths.tolist() == [2, 0, 1]


def test_a_separator_is_taken_literally():
    values, _ = split_lists(pd.Series(["1.2.3"], dtype="str"), "int64", separator=".")
    assert values.tolist() == [1, 2, 3]


def test_a_column_put_together_from_several_frames_is_split_as_one():
    parts = [pd.Series(["1|2"], dtype="str"), pd.Series([], dtype="str"), pd.Series([None, "3"], dtype="str")]
    entries, lengths = split_lists(pd.concat(parts, ignore_index=True), "int64")
    assert entries.tolist() == [1, 2, 3]
    assert lengths.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("dtype", "texts", "expected"),
    [
        ("float", "1.5|2", np.array([1.5, 2], np.float32)),
        ("double", "1.5|2", np.array([1.5, 2])),
        ("float16", "1.5|2", np.array([1.5, 2], np.float16)),
        ("u1", "7|255", np.array([7, 255], np.uint8)),
        ("timestamp[s]", "1970-01-01|1970-01-02", np.array([0, 86_400], "datetime64[s]")),
    ],
)
def test_a_type_may_go_by_any_name_that_arrow_has_for_it(dtype, texts, expected):
    frame = pd.DataFrame({"x": pd.Series([texts], dtype="str")})
    found = ExplodeLists({"x": ("y", dtype)}, "place", [])(frame)["y"].to_numpy()
    assert found.dtype == expected.dtype
    assert (found == expected).all()


@pytest.mark.parametrize("dtype", ["int", "bool", "date32", "binary", "", 5, None])
def test_a_type_that_no_entry_can_have_is_refused(dtype):
    with pytest.raises(DataError, match=r"'x': unknown dtype .*Known: string, int8"):
        ExplodeLists({"x": ("y", dtype)}, "place", [])
