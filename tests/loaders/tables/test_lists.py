"""List columns: gathered, cut and padded as plain Python does it; stored; beside the batches of a dataset."""

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.lists import ListColumn, ListTable, gather_reference, padded_reference
from tests.examples import examples

VALUES, OFFSETS = "list-000-values.npy", "list-000-offsets.npy"
LISTS = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=10)


def column_of(lists: list[list[int]]) -> ListColumn:
    values = torch.tensor([value for row in lists for value in row], dtype=torch.int32)
    return ListColumn.from_lengths(values, torch.tensor([len(row) for row in lists], dtype=torch.int64))


def unpacked(values: torch.Tensor, offsets: torch.Tensor) -> list[list[int]]:
    assert (values.dtype, offsets.dtype) == (torch.int32, torch.int64)
    assert int(offsets[0]) == 0
    assert int(offsets[-1]) == len(values)
    return [values[first:stop].tolist() for first, stop in itertools.pairwise(offsets.tolist())]


@given(lists=LISTS, picks=st.lists(st.integers(0, 99), max_size=15), most=st.none() | st.integers(0, 7))
@settings(max_examples=examples(200))
def test_gathered_lists_are_those_of_the_rows(lists, picks, most):
    rows = [pick % len(lists) for pick in picks] if lists else []
    expected = [lists[row] if most is None else lists[row][max(0, len(lists[row]) - most) :] for row in rows]
    column, rows = column_of(lists), torch.tensor(rows, dtype=torch.int64)
    assert unpacked(*column.gather(rows, most)) == expected
    assert unpacked(*gather_reference(column.values, column.offsets, rows, most)) == expected


@given(lists=LISTS, picks=st.lists(st.integers(0, 99), max_size=15), length=st.integers(1, 8))
@settings(max_examples=examples(200))
def test_padded_lists_are_the_last_entries_and_then_zeros(lists, picks, length):
    rows = [pick % len(lists) for pick in picks] if lists else []
    kept = [lists[row][max(0, len(lists[row]) - length) :] for row in rows]
    column, rows = column_of(lists), torch.tensor(rows, dtype=torch.int64)
    for ids, lengths in (column.padded(rows, length), padded_reference(column.values, column.offsets, rows, length)):
        assert (ids.dtype, lengths.dtype) == (torch.int32, torch.int32)
        assert ids.shape == (len(rows), length)
        assert ids.tolist() == [row + [0] * (length - len(row)) for row in kept]
        assert lengths.tolist() == [len(row) for row in kept]


@given(parts=st.lists(LISTS, min_size=1, max_size=4))
@settings(max_examples=examples(60))
def test_concat_puts_rows_one_after_another(parts):
    whole = ListTable.concat([ListTable({"a": column_of(part)}) for part in parts])
    expected = [row for part in parts for row in part]
    assert whole.num_rows == len(expected)
    assert unpacked(whole.lists["a"].values, whole.lists["a"].offsets) == expected


@given(lists=LISTS, mmap=st.booleans())
@settings(max_examples=examples(40))
def test_saved_tables_come_back(lists, mmap, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lists")
    reversed_lists = [row[::-1] for row in lists[::-1]]
    ListTable({"liked": column_of(lists), 'a "/b': column_of(reversed_lists)}).save(folder)
    assert np.load(folder / VALUES).tolist() == [value for row in lists for value in row]  # files are plain arrays
    assert np.load(folder / OFFSETS).tolist() == [0, *itertools.accumulate(map(len, lists))]
    loaded = ListTable.load(folder, mmap)
    assert list(loaded.lists) == ["liked", 'a "/b']
    rows = torch.arange(len(lists))
    assert unpacked(*loaded.gather(rows)["liked"]) == lists
    assert unpacked(*loaded.gather(rows)['a "/b']) == reversed_lists
    assert loaded.padded(rows, 2)["liked"].ids.tolist() == [[*row[-2:], 0, 0][:2] for row in lists]


def test_lists_may_lie_beside_the_packed_table(tmp_path, make_table):
    table = make_table(3)
    table.save(tmp_path)
    ListTable({"liked": column_of([[1], [], [2, 3]])}).save(tmp_path)
    assert torch.equal(type(table).load(tmp_path).words, table.words)
    assert ListTable.load(tmp_path, num_rows=table.num_rows).num_rows == 3
    with pytest.raises(LoaderError, match="lists of 3 rows, the packed table has 4"):
        ListTable.load(tmp_path, num_rows=4)


def damage_json(change):
    def damage(folder):
        path = folder / "lists.json"
        layout = json.loads(path.read_text())
        change(layout)
        path.write_text(json.dumps(layout))

    return damage


def damage_bytes(name, change):
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "lists.json").unlink(), "holds no finished list columns"),
        (lambda folder: (folder / VALUES).unlink(), f"{VALUES}: not found"),
        (damage_bytes("lists.json", lambda content: b"\xff" + content), "lists.json: damaged"),
        (damage_bytes("lists.json", lambda _: b"[]"), "not the layout of list columns"),
        (damage_json(lambda layout: layout.update(version=9)), "format version 9, this code reads 1"),
        (damage_json(lambda layout: layout.pop("columns")), "columns or num_rows are missing"),
        (damage_json(lambda layout: layout.update(num_rows=True)), "is no count"),
        (damage_json(lambda layout: layout.update(num_rows=-1)), "is no count"),
        (damage_json(lambda layout: layout["columns"][0].update(name=3)), r"columns are named \[3\]"),
        (damage_json(lambda layout: layout.update(columns=[])), "it has no columns"),
        (
            damage_json(lambda layout: layout.update(num_rows=4)),
            r"expected 5 numbers of int64, found int64 of shape \(4,",
        ),
        (damage_json(lambda layout: layout["columns"][0].update(num_values=2)), "expected 2 numbers of int32"),
        (damage_bytes(VALUES, lambda content: content[:-1]), f"{VALUES}: damaged or truncated"),
        (damage_bytes(VALUES, lambda content: content + b"x"), "141 bytes, expected 140: overwritten"),
        (damage_bytes(VALUES, lambda content: b"x" + content[1:]), f"{VALUES}: damaged"),
        (damage_bytes(VALUES, lambda content: content.replace(b"<i4", b"<f4")), "found float32"),
        (damage_bytes(OFFSETS, lambda content: content[:-8] + b"\xff" * 8), "column 'liked': .* offsets must begin"),
    ],
)
def test_damaged_files_are_named(damage, message, tmp_path):
    ListTable({"liked": column_of([[1], [], [2, 3]])}).save(tmp_path)
    damage(tmp_path)
    for mmap in (True, False):
        with pytest.raises(LoaderError, match=message):
            ListTable.load(tmp_path, mmap)


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ListColumn(torch.zeros(3), torch.tensor([0, 3])),
            "values must be .* torch.int32, found torch.float32",
        ),
        (lambda: ListColumn(int32([1]), int32([0, 1])), "offsets must be .* torch.int64, found torch.int32"),
        (lambda: ListColumn(int32([[1]]), torch.tensor([0, 1])), r"found torch.int32 of shape \(1, 1\)"),
        (lambda: ListColumn(int32([1, 2, 3])[::2], torch.tensor([0, 2])), "contiguous"),
        (lambda: ListColumn(int32([1, 2]), torch.tensor([0, 3])), "end with the number of values, 2"),
        (lambda: ListColumn(int32([1, 2]), torch.tensor([1, 2])), "begin with 0"),
        (lambda: ListColumn(int32([1, 2]), torch.tensor([0, 2, 1, 2])), "never fall"),
        (lambda: ListColumn(int32([]), torch.tensor([], dtype=torch.int64)), "begin with 0"),
        (lambda: ListColumn.from_lengths(int32([1]), torch.tensor([2, -1])), "lengths must be one column of whole"),
        (lambda: ListColumn.from_lengths(int32([1]), torch.tensor([1.0])), "lengths must be one column of whole"),
        (lambda: ListColumn.concat([]), "no columns were given"),
        (lambda: column_of([[1]]).gather(torch.tensor([0]), -1), "max_length must not be negative, found -1"),
        (lambda: column_of([[1]]).padded(torch.tensor([0]), 0), "1 entry or more, found 0"),
        (lambda: column_of([[1]]).gather(torch.tensor([0, 1])), r"1 of 2 rows are outside \[0, 1\), for example 1"),
        (lambda: column_of([[1]]).padded(torch.tensor([-1, 0]), 1), r"outside \[0, 1\), for example -1"),
        (lambda: ListTable({}), "it has no columns"),
        (lambda: ListTable({"a": column_of([[1]]), "b": column_of([])}), "columns differ in rows or device"),
        (lambda: ListTable.concat([]), "no tables were given"),
        (
            lambda: ListTable.concat([ListTable({"a": column_of([])}), ListTable({"b": column_of([])})]),
            r"concat of table 1: its columns are \['b'\], those of the first are \['a'\]",
        ),
    ],
)
def test_what_is_wrong_is_said(make, message):
    with pytest.raises(LoaderError, match=message):
        make()


@pytest.mark.gpu
def test_lists_on_the_gpu_are_those_of_the_cpu():
    column = column_of([[1], [], [2, 3], [4, 5, 6]])
    rows = torch.tensor([3, 1, 0, 2, 3])
    on_gpu = column.to("cuda")
    for there, here in zip(on_gpu.gather(rows.cuda(), 2), column.gather(rows, 2), strict=True):
        assert torch.equal(there.cpu(), here)
    for there, here in zip(on_gpu.padded(rows.cuda(), 2), column.padded(rows, 2), strict=True):
        assert torch.equal(there.cpu(), here)
