"""Columns of lists as pylibcudf's and cuDF's real classes take them, over memory of the host that nothing reads."""

import inspect

import cudf
import numpy as np
import pandas as pd
import pylibcudf as plc
import pytest

from gigabatch.features.columns import lists as lists_module
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from tests.cudf_api.checked import CheckedFrame
from tests.cudf_api.test_engine_cudf_calls import binds, calls

SOURCE = inspect.getsource(lists_module)


class Span:
    """A buffer, as `pylibcudf.Column` and cuDF's own take one."""

    def __init__(self, values):
        self.values, self.ptr, self.size = values, values.ctypes.data, values.nbytes

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.ptr, False), "version": 3, "strides": None}


def memory(values, kind, null=None, children=()):
    """pylibcudf's column over a NumPy array; null: the place of the one that is."""
    mask = None if null is None else Span(np.full(64, 0xFF ^ (1 << null), np.uint8))
    kind = plc.DataType(getattr(plc.TypeId, kind))
    return plc.Column(kind, len(values), Span(values), mask, int(null is not None), 0, list(children))


def numbers(*values, kind="INT64", null=None):
    return memory(np.array(values, kind.lower()), kind, null)


def texts(*values, null=None):
    chars = np.frombuffer("".join(values).encode(), np.uint8)
    offsets = np.cumsum([0, *(len(text.encode()) for text in values)]).astype("int32")
    kind = plc.DataType(plc.TypeId.STRING)
    mask = None if null is None else Span(np.full(64, 0xFF ^ (1 << null), np.uint8))
    return plc.Column(kind, len(values), Span(chars), mask, int(null is not None), 0, [memory(offsets, "INT32")])


ENTRIES = {
    "int64": numbers(1, 2, 3), "int64 beside a null": numbers(1, 2, 3, null=1), "int32": numbers(1, 2, 3, kind="INT32"),
    "float32": numbers(1, 2, 3, kind="FLOAT32", null=0), "str": texts("a", "bc", ""),
    "str beside a null": texts("a", "", "c", null=1),
}  # fmt: skip


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("nulls", [0, 1])
def test_cudf_takes_the_lists_that_are_made(name, nulls):
    entries = cudf.Series.from_pylibcudf(ENTRIES[name])
    offsets = memory(np.array([0, 2, 2, 3], "int32"), "INT32")
    mask = Span(np.full(64, 0xFD, np.uint8)) if nulls else None
    made = lists_module._lists_of([offsets, lists_module._memory_of(entries)], 3, mask, nulls)
    column = cudf.Series.from_pylibcudf(made)
    column.index = cudf.RangeIndex(7, 10)
    assert isinstance(column.dtype, cudf.ListDtype)
    assert column.dtype.element_type == entries.dtype
    assert (len(column), column.null_count) == (3, nulls)
    child = column.to_pylibcudf()[0].list_view().child()
    assert (child.size(), child.null_count()) == (3, ENTRIES[name].null_count())
    elements = name.split()[0]
    if elements in ("int64", "float32", "str"):
        declared = "string" if elements == "str" else elements
        assert str(column.dtype.element_type) in lists_module.DEVICE_TYPES[declared]


def test_a_column_that_begins_inside_its_memory_is_copied_by_a_method_that_is_there():
    inspect.signature(plc.Column.copy).bind(ENTRIES["int64"])


@pytest.mark.parametrize("kind", ["TIMESTAMP_SECONDS", "DURATION_SECONDS"])
def test_other_entries_are_refused_by_name(kind):
    values = memory(np.array([1, 2, 3], "int64"), kind)
    with pytest.raises(lists_module.DataError, match="made of text, numbers or flags"):
        lists_module._memory_of(cudf.Series.from_pylibcudf(values))


def test_every_call_of_pylibcudf_fits():
    found = [node for node in calls(SOURCE) if str(getattr(node.func.value, "id", "")) == "plc"
             or getattr(getattr(node.func.value, "value", None), "id", "") == "plc"]  # fmt: skip
    assert len(found) >= 5
    for node in found:
        function = plc
        for part in [*([node.func.value.attr] if hasattr(node.func.value, "attr") else []), node.func.attr]:
            function = getattr(function, part)
        assert binds(node, function, 0) is None, inspect.getsource(lists_module)


def test_a_table_with_lists_uses_only_what_cudf_has(tmp_path):
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 9, rng.integers(0, 4)) for _ in range(200)]
    frame = pd.DataFrame({
        "user": rng.choice(list("abc"), 200), "item": rng.integers(0, 9, 200), "at": np.arange(200),
        "tags": ["|".join(map(str, row)) for row in rows], "w": ["|".join(map(str, row / 8)) for row in rows],
        "title": rng.choice(["red shoes", "a hat", ""], 200), "y": rng.integers(0, 2, 200),
    })  # fmt: skip
    frame.to_csv(tmp_path / "t.csv", index=False)
    history = {"by": ["user"], "time": "at", "order": "row_number", "column": "item", "length": 3, "output": "history",
               "half_life": 5, "where": "y"}  # fmt: skip
    chosen = TableSettings(
        path=str(tmp_path / "t.csv"), categorical={"user": "string", "item": "int64"},
        inputs={"title": "string", "at": "int64"},
        targets={"y": {"task": "binary"}}, list_separator="|",
        steps=({"history": history}, {"text_tokens": {"column": "title", "output": "words", "num_buckets": 50}}),
        lists={"tags": {"weights": "w"}, "history": {"shares": "item", "weights": "history_weights"},
               "words": {"elements": "int64"}},
    )  # fmt: skip
    tables = TableRecipe(chosen).build("pandas")
    assert all(isinstance(frame, CheckedFrame) for frame in tables.splits.values())
    preprocessor = Preprocessor(tables.schema).fit([tables.splits["train"]])
    assert len(preprocessor.pack_lists(tables.splits["test"])) == 3
