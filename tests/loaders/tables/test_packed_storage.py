"""Packed tables on disk: what is written can be mapped, and damage is named."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gigabatch.loaders.tables.packed as packed
from gigabatch.features.schema import IdColumn, TensorSchema
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.packed import PackedTable, PackedWriter


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("num_rows", [0, 1, 1000])
def test_a_saved_table_loads_with_the_same_words_and_schema(make_table, tmp_path, num_rows, mmap):
    table = make_table(num_rows)
    table.save(tmp_path / "train")
    loaded = PackedTable.load(tmp_path / "train", mmap=mmap)
    assert loaded.schema == table.schema
    assert torch.equal(loaded.words, table.words)
    by_numpy = np.load(tmp_path / "train" / "words.npy")  # the file is a plain array
    assert by_numpy.dtype == np.int32
    assert np.array_equal(by_numpy, table.words.numpy())


def test_a_mapped_table_is_not_read_into_memory(tmp_path):
    """800 MB of address space, a few pages of memory: only the rows that are asked for are read."""
    num_rows = 50_000_000
    schema = TensorSchema(ids=tuple(IdColumn(f"c{i}", 10) for i in range(4)), floats=(), targets=())
    with PackedWriter(tmp_path, schema, num_rows) as writer:
        writer._file.truncate(writer._file.tell() + 16 * num_rows)  # a hole, which takes no room on disk
        writer.num_written = num_rows
    before = _resident_bytes()
    table = PackedTable.load(tmp_path)
    assert table.words[[0, num_rows // 2, num_rows - 1]].sum() == 0
    assert _resident_bytes() - before < 50e6


def test_writing_into_a_mapped_table_never_changes_the_file(make_table, tmp_path):
    table = make_table(10)
    table.save(tmp_path)
    code = "import sys; from gigabatch import PackedTable; PackedTable.load(sys.argv[1]).words.zero_()"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == -signal.SIGSEGV
    assert torch.equal(PackedTable.load(tmp_path).words, table.words)


def test_parts_are_appended_in_order(make_table, tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "WRITE_BYTES", 100)  # several blocks a part
    parts = [make_table(n, seed=n) for n in (5, 0, 8)]
    with PackedWriter(tmp_path, parts[0].schema, 13) as writer:
        for part in parts:
            writer.write(part)
    assert torch.equal(PackedTable.load(tmp_path).words, torch.cat([part.words for part in parts]))


def test_closing_with_rows_missing_is_an_error(make_table, tmp_path):
    with (
        pytest.raises(LoaderError, match="3 rows were written and 4 announced"),
        PackedWriter(tmp_path, make_table(3).schema, 4) as writer,
    ):
        writer.write(make_table(3))
    with pytest.raises(LoaderError, match="no finished packed table"):
        PackedTable.load(tmp_path)


def test_writing_too_many_rows_or_another_schema_is_an_error(make_table, tmp_path):
    other = PackedTable.from_columns(TensorSchema((), ("x",), ()), [], [torch.zeros(1)], [])
    with PackedWriter(tmp_path, make_table(3).schema, 3) as writer:
        with pytest.raises(LoaderError, match=r"0 \+ 4 rows are more than the 3"):
            writer.write(make_table(4))
        with pytest.raises(LoaderError, match="ids differ"):
            writer.write(other)
        writer.write(make_table(3))
    with pytest.raises(LoaderError, match="must not be negative"):
        PackedWriter(tmp_path, other.schema, -1)


def test_a_writer_that_failed_leaves_what_was_there_and_nothing_else(make_table, tmp_path):
    make_table(3).save(tmp_path / "old")

    def write_half(folder) -> None:
        with PackedWriter(folder, make_table(3).schema, 3) as writer:
            writer.write(make_table(2))
            raise KeyError("the source broke")

    for folder in ("old", "new"):
        with pytest.raises(KeyError, match="the source broke"):
            write_half(tmp_path / folder)
    assert torch.equal(PackedTable.load(tmp_path / "old").words, make_table(3).words)
    assert sorted(path.name for path in (tmp_path / "old").iterdir()) == ["layout.json", "words.npy"]
    assert list((tmp_path / "new").iterdir()) == []


def test_a_mapped_table_is_saved_over_itself_and_stays_as_it_is(make_table, tmp_path):
    """In a process of its own: pages of a file that was cut short end it by SIGBUS."""
    make_table(1000).save(tmp_path)
    code = """
import sys, torch
from gigabatch import PackedTable
folder = sys.argv[1]
table, expected = PackedTable.load(folder), PackedTable.load(folder, mmap=False).words
for part in (table, PackedTable(table.words[500:], table.schema)):
    part.save(folder)
    assert torch.equal(PackedTable.load(folder).words, expected[-len(part) :])
    assert torch.equal(table.words, expected)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layout.json", "words.npy"]


def _cut(folder):
    os.truncate(folder / "words.npy", (folder / "words.npy").stat().st_size - 1)


def _append(folder):
    with (folder / "words.npy").open("ab") as file:
        file.write(b"\0\0\0\0")


def _change_layout(folder, **fields):
    path = folder / "layout.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, r"words.npy: \d+ bytes, expected \d+ for 5 rows: truncated"),
        (_append, r"words.npy: \d+ bytes, expected \d+ for 5 rows: truncated or overwritten"),
        (lambda f: os.truncate(f / "words.npy", 0), "words.npy: damaged header"),
        (lambda f: (f / "words.npy").unlink(), "words.npy: not found"),
        (lambda f: np.save(f / "words.npy", np.zeros((5, 10))), "expected a row-major int32 matrix, found float64"),
        (lambda f: np.save(f / "words.npy", np.zeros((10, 5), np.int32).T), "expected a row-major int32 matrix"),
        (lambda f: np.save(f / "words.npy", np.zeros((5, 9), np.int32)), r"shape \(5, 9\), layout.json says \(5, 10\)"),
        (lambda f: _change_layout(f, num_rows=6), r"shape \(5, 10\), layout.json says \(6, 10\)"),
        (lambda f: _change_layout(f, version=99), "format version 99, this code reads 1"),
        (lambda f: _change_layout(f, format="other"), "not the layout of a packed table"),
        (lambda f: _change_layout(f, num_rows=None), "num_rows or schema is missing"),
        (lambda f: _change_layout(f, schema={"ids": []}), "layout.json: tensor schema is damaged"),
        (lambda f: (f / "layout.json").write_bytes(b"\xff\xfe{"), "layout.json: damaged"),
        (lambda f: (f / "layout.json").write_text("[]"), "not the layout of a packed table"),
        (lambda f: (f / "layout.json").unlink(), "no finished packed table. Run the encode stage"),
    ],
)
def test_a_damaged_folder_is_refused_with_its_file(make_table, tmp_path, damage, message):
    make_table(5).save(tmp_path)
    damage(tmp_path)
    for mmap in (True, False):
        with pytest.raises(LoaderError, match=message):
            PackedTable.load(tmp_path, mmap=mmap)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
