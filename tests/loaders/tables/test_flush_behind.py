"""The disk takes a packed table in while it is being written; what it refuses is raised."""

import errno
import os
import threading
from pathlib import Path

import pytest
import torch

from gigabatch.features.schema import IdColumn, TensorSchema
from gigabatch.loaders.tables import packed
from gigabatch.loaders.tables.packed import PackedTable, PackedWriter
from gigabatch.loaders.tables.storage import FlushBehind

SECONDS = 10
SCHEMA = TensorSchema(ids=(IdColumn("item", 1 << 30), IdColumn("user", 1 << 30)), floats=(), targets=())
ROWS = 10  # of 8 bytes; blocks of 4 rows


@pytest.fixture
def table(monkeypatch) -> PackedTable:
    monkeypatch.setattr(packed, "WRITE_BYTES", 32)
    return PackedTable(torch.arange(2 * ROWS, dtype=torch.int32).view(ROWS, 2), SCHEMA)


def test_blocks_are_flushed_while_the_next_are_written(table, tmp_path, monkeypatch):
    """The first flush waits until the last row is written, which it never would be if the writer waited for it."""
    written, sizes, begun = threading.Event(), [], threading.Event()

    def flushing(handle: int) -> None:
        sizes.append(os.fstat(handle).st_size)
        begun.set()
        assert written.wait(SECONDS)

    monkeypatch.setattr(os, "fsync", flushing)
    before = threading.active_count()
    with PackedWriter(tmp_path, SCHEMA, ROWS) as writer:
        writer.write(table)
        assert begun.wait(SECONDS)
        written.set()
    assert threading.active_count() == before
    assert len(sizes) == 1  # one at a time; the last block is not whole
    assert torch.equal(PackedTable.load(tmp_path).words, table.words)


def test_a_small_table_needs_no_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: pytest.fail("flushed"))
    with PackedWriter(tmp_path, SCHEMA, 1) as writer:
        writer.write(PackedTable(torch.zeros(1, 2, dtype=torch.int32), SCHEMA))


@pytest.mark.parametrize("rows", [4, 8])
def test_what_the_disk_refuses_is_raised_and_leaves_the_table_that_was_there(table, tmp_path, monkeypatch, rows):
    """By the last flush at the end of the block, by an earlier one as soon as the next begins."""
    with PackedWriter(tmp_path, SCHEMA, 2) as writer:
        writer.write(PackedTable(table.words[:2], SCHEMA))

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"), PackedWriter(tmp_path, SCHEMA, rows) as writer:
        writer.write(PackedTable(table.words[:rows], SCHEMA))
    assert len(PackedTable.load(tmp_path)) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layout.json", "words.npy"]


def test_an_error_of_the_writer_is_raised_and_the_thread_is_gone(tmp_path, monkeypatch):
    """Before the file is closed, whose number another one may get."""
    ended: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda handle: ended.append(True))
    before = threading.active_count()

    def write_and_fail() -> None:
        with open(tmp_path / "a", "wb", buffering=0) as file, FlushBehind(file) as flush:
            file.write(b"rows")
            flush()
            raise ValueError("of the writer")

    with pytest.raises(ValueError, match="of the writer"):
        write_and_fail()
    assert ended == [True]
    assert threading.active_count() == before
    assert Path(tmp_path / "a").read_bytes() == b"rows"
