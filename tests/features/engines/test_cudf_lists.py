"""Columns of lists on the stand-ins of cuDF, CuPy and pylibcudf: what the pandas engine makes of the same rows."""

import contextlib
import importlib.util
import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from gigabatch.features.columns import lists as lists_module
from gigabatch.features.columns.lists import list_column, list_entries, window_lists
from gigabatch.features.errors import DataError
from gigabatch.features.operators.lists.list_length import ListLength
from gigabatch.features.reading.sources import cast

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-in lies in host memory; a GPU has the real thing"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]
KINDS = {"string": pa.string(), "int64": pa.int64(), "int8": pa.int8(), "bool": pa.bool_(), "float32": pa.float32()}
WORDS = ("", "a", "é", "a\0", "a long word of some length")


def value(kind, rng):
    """An element; whole numbers that a float would round among them."""
    return {"string": lambda: rng.choice(WORDS), "int64": lambda: rng.choice((-(2**62) - 1, 2**60 + 1, 0, 7)),
            "int8": lambda: rng.randrange(-128, 128), "bool": lambda: rng.random() < 0.5,
            "float32": lambda: rng.randrange(99) / 8}[kind]()  # fmt: skip


def rows_of(kind, seed, size=60, nulls=0.2):
    """Lists, empty ones, null ones, and nulls in them."""
    rng = random.Random(seed)
    return [
        None if rng.random() < 0.15 else
        [None if rng.random() < nulls else value(kind, rng) for _ in range(rng.randrange(5))]
        for _ in range(size)
    ]  # fmt: skip


def arrow_frame(**columns):
    """A frame of Arrow's own types; columns: rows and their type. Its index is no range."""
    found = {name: pd.array(pa.array(rows, kind), pd.ArrowDtype(kind)) for name, (rows, kind) in columns.items()}
    return pd.DataFrame(found, index=range(7, 7 + len(next(iter(found.values())))))


def on_device(stand_in, rows, kind, name="c"):
    return stand_in.from_pandas(arrow_frame(**{name: (rows, kind)}))


def plain(column):
    """A column of either engine as Python's values."""
    held = getattr(column, "held", column)
    values = held.array.__arrow_array__() if isinstance(held.dtype, pd.ArrowDtype) else pa.Array.from_pandas(held)
    return values.to_pylist()


def flat(rows):
    return [item for row in rows for item in row or []]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
def test_entries_and_lengths_are_read_and_make_the_lists_again(stand_in, engine, kind, nulls):
    rows = rows_of(kind, 1, nulls=nulls)
    column = on_device(stand_in, rows, pa.list_(KINDS[kind]))["c"]
    entries, lengths = list_entries(column)
    assert plain(entries) == flat(rows)
    assert lengths.held.tolist() == [len(row or []) for row in rows]
    assert lengths.dtype == np.int64
    made = list_column(entries, lengths, column)
    assert plain(made) == [row or [] for row in rows]
    assert made.index.held.tolist() == list(range(7, 67))
    again, _ = list_entries(made)
    assert plain(again) == plain(entries)


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_of_lists_are_those_of_python(stand_in, engine, kind):
    rows = rows_of(kind, 3)
    frame = on_device(stand_in, rows, pa.list_(KINDS[kind]))
    found = ListLength("c", "n", separator=None)(frame)["n"]
    assert plain(found) == [len(row or []) for row in rows]
    assert found.index.held.tolist() == list(range(7, 67))


def test_arrays_and_parts_of_columns_make_lists(stand_in, engine):
    """Entries may begin inside their memory: those of a list must not."""
    frame = on_device(stand_in, list(range(5)), pa.int64())
    lengths = stand_in.cupy.asarray(np.array([2, 0, 1, 0, 2]))
    assert frame["c"].to_pylibcudf()[0].offset() == 3
    expected = [[0, 1], [], [2], [], [3, 4]]
    for entries in (frame["c"], engine.array(frame["c"]), engine.array(frame["c"]).astype("int32")):
        assert plain(list_column(entries, lengths, frame)) == expected
    text = on_device(stand_in, list("abcde"), pa.string())
    assert plain(list_column(text["c"], lengths, text)) == [["a", "b"], [], ["c"], [], ["d", "e"]]


def test_a_column_of_nulls_alone_is_one_of_null_lists(stand_in, engine):
    for kind in (pa.string(), pa.float64(), pa.list_(pa.int64())):
        frame = on_device(stand_in, [None, None], kind)
        entries, lengths = list_entries(frame["c"])
        assert (len(entries), lengths.held.tolist()) == (0, [0, 0])
        for dtype in ("list[string]", "list[int64]", "list[float32]"):
            found = cast(frame, {"c": dtype}, "here")["c"]
            assert plain(found) == [None, None]
            assert str(found.dtype) == "list"


def test_what_holds_no_lists_is_an_error(stand_in, engine):
    with pytest.raises(DataError, match="holds no lists"):
        list_entries(on_device(stand_in, [1, 2], pa.int64())["c"])
    with pytest.raises(DataError, match="holds no lists"):
        cast(on_device(stand_in, [1.5, 2], pa.float64()), {"c": "list[int64]"}, "here")
    moments = on_device(stand_in, [1, 2], pa.timestamp("s"))
    with pytest.raises(DataError, match=r"column 'c': on a GPU .* of text, numbers or flags, and these hold datetime"):
        list_column(moments["c"], stand_in.cupy.ones(2, dtype="int64"), moments)


def test_more_elements_than_a_column_of_cudf_holds_are_refused(stand_in, engine, monkeypatch):
    monkeypatch.setattr(lists_module, "MOST_ELEMENTS", 4)
    frame = on_device(stand_in, [1, 2, 3, 4, 5], pa.int64())
    lengths = stand_in.cupy.ones(5, dtype="int64")
    with pytest.raises(DataError, match="lists of 5 elements together"):
        list_column(frame["c"], lengths, frame)
    with pytest.raises(DataError, match="lists of 5 elements together"):
        window_lists(lambda row, place: place, 0 * lengths, lengths, "int64", frame)


DECLARED = [
    (kind, dtype)
    for kind in (pa.list_(pa.int64()), pa.list_(pa.int8()), pa.list_(pa.string()), pa.list_(pa.float32()))
    for dtype in ("list[string]", "list[int64]", "list[float32]")
]


@pytest.mark.parametrize(("kind", "dtype"), DECLARED, ids=str)
def test_lists_are_cast_as_pandas_casts_them(stand_in, engine, kind, dtype):
    rng = random.Random(3)
    values = {"string": ["3", "-70", "0"], "float": [3.0, 70.0, 0.0]}.get(str(kind.value_type), [3, -70, 0])
    rows = [None if rng.random() < 0.2 else [rng.choice([*values, None]) for _ in range(rng.randrange(4))]
            for _ in range(40)]  # fmt: skip
    found = cast(on_device(stand_in, rows, kind), {"c": dtype}, "here")["c"]
    expected = cast(arrow_frame(c=(rows, kind)), {"c": dtype}, "here")["c"]
    assert plain(found) == plain(expected)
    assert found.held.dtype.pyarrow_dtype.value_type == KINDS[dtype[5:-1]]
    assert found.name == "c"


def test_an_element_that_does_not_fit_is_refused_as_on_pandas(stand_in, engine):
    for rows, kind in (([["x"]], pa.list_(pa.string())), ([[1.5]], pa.list_(pa.float32()))):
        for frame in (on_device(stand_in, rows, kind), arrow_frame(c=(rows, kind))):
            with pytest.raises(DataError, match="elements of lists: column 'c' is declared int64 but holds"):
                cast(frame, {"c": "list[int64]"}, "here")


TEXTS = ["a|b", "", None, "|", "a||b", "||", "é", "a|", "|a", " ", "a b|c", "[x]"]


@pytest.mark.parametrize("separator", ["|", "||", " "])
def test_text_is_split_as_on_pandas(stand_in, engine, separator):
    rng = random.Random(5)
    rows = [*TEXTS, *(rng.choice(TEXTS) for _ in range(200))]
    dtype = f"list[string]{separator}"
    found = cast(on_device(stand_in, rows, pa.string()), {"c": dtype}, "here")["c"]
    assert plain(found) == plain(cast(arrow_frame(c=(rows, pa.string())), {"c": dtype}, "here")["c"])
    slow = [None if row is None else [word or None for word in row.split(separator)] if row else [] for row in rows]
    assert plain(found) == slow


def test_numbers_in_text_are_split(stand_in, engine):
    rows = ["3|5", "", None, "9223372036854775807", "7||-1"]
    found = cast(on_device(stand_in, rows, pa.string()), {"c": "list[int64]|"}, "here")["c"]
    assert plain(found) == [[3, 5], [], None, [2**63 - 1], [7, None, -1]]


@pytest.mark.parametrize(("text", "separator", "odd"), [
    ("[3, 5]", "|", True), (" [3, 5] ", ",", True), ("3 5 7", "|", True), ("3, 5, 7", "|", True), ("3; 5;7", "|", True),
    ("3|5|7", " ", True), ("030 1234", "|", False), ("[3]", "|", False), ("[a", "|", False), ("3 5 7|8", "|", False),
    ("[3,\n5]", "|", True), ("3,5", ",", False), ("[x, y]|[z]", "|", False), ("[x, y]|[z]", ",", True),
])  # fmt: skip
def test_text_of_another_form_is_refused_where_pandas_refuses_it(stand_in, engine, text, separator, odd):
    said = pytest.raises(DataError, match="is a list in another form") if odd else contextlib.nullcontext()
    for frame in (on_device(stand_in, ["a", text, None], pa.string()), arrow_frame(c=(["a", text, None], pa.string()))):
        with said:
            cast(frame, {"c": f"list[string]{separator}"}, "here")


def test_text_without_a_separator_is_refused(stand_in, engine):
    with pytest.raises(DataError, match="no separator is set"):
        cast(on_device(stand_in, ["a|b"], pa.string()), {"c": "list[string]"}, "here")


@pytest.mark.parametrize("block", [1, 3, 1000])
@pytest.mark.parametrize("kind", ["string", "int64", "float32"])
def test_windows_are_those_of_pandas_in_blocks_of_any_size(stand_in, engine, monkeypatch, block, kind):
    monkeypatch.setattr(lists_module, "DEVICE_BLOCK", block)
    rng = np.random.default_rng(2)
    first = rng.integers(0, 20, 50)
    stop = first + np.where(rng.random(50) < 0.3, 0, rng.integers(0, 6, 50))
    numbers = rng.integers(0, 99, 30)
    values = {"string": numbers.astype(str).tolist(), "int64": numbers.tolist(), "float32": (numbers / 8).tolist()}[
        kind
    ]
    frame = on_device(stand_in, list(range(50)), pa.int64())
    for count in (50, 0):
        column = on_device(stand_in, values, KINDS[kind])["c"]
        rows = frame.take(stand_in.cupy.arange(count))
        edges = [stand_in.cupy.asarray(edge[:count]) for edge in (first, stop)]
        found = window_lists(lambda row, place, column=column: column.take(place), *edges, kind, rows)
        slow = [values[start:end] for start, end in zip(first[:count], stop[:count], strict=True)]
        assert plain(found) == slow
        assert found.index.held.tolist() == list(range(7, 7 + count))
        if kind != "string":
            array = engine.array(column)
            found = window_lists(lambda row, place, array=array: array[place], *edges, kind, rows)
            assert plain(found) == slow
