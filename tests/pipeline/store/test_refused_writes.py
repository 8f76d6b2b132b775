"""What the system refuses to write is told by the folder, not by the name of a file that was never there."""

import os
import re
from pathlib import Path

import pytest

from gigabatch.pipeline.store.files import atomic_symlink, atomic_write, replacing
from gigabatch.pipeline.store.leases import waiting_lock
from gigabatch.pipeline.store.locks import folder_lock, own_folder, remove_leftovers, temporary_path
from tests.pipeline.read_only import read_only


def entered(context) -> None:
    with context:
        pass


WRITES = {
    "a file": lambda folder: atomic_write(folder / "a.json", b"1"),
    "a link": lambda folder: atomic_symlink(Path("a"), folder / "current"),
    "a folder": lambda folder: entered(own_folder(temporary_path(folder / "a"))),
    "a lock": lambda folder: entered(folder_lock(folder / "nightly.lock")),
    "a lock in a new folder": lambda folder: entered(folder_lock(folder / "new" / "nightly.lock")),
    "a lock that waits": lambda folder: entered(waiting_lock(folder / ".promoted.lock")),
    "leftovers": remove_leftovers,
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_folder_that_may_not_be_written_is_named_with_what_to_do(tmp_path, kind):
    left = temporary_path(tmp_path / "left")  # of a writer that was killed
    left.mkdir()
    with read_only(tmp_path), pytest.raises(PermissionError) as found:
        WRITES[kind](tmp_path)
    said = str(found.value)
    assert re.search(rf"{tmp_path}(/new)?: Permission denied, so nothing can be written there\. Make it writable", said)
    assert "or name another folder (settings runs and artifacts, option --out)" in said
    assert f"-{os.getpid()}-" not in said
    assert ".lock" not in said
    assert [path.name for path in tmp_path.iterdir()] == [left.name]
    WRITES[kind](tmp_path)  # where it may


def test_a_full_disk_says_what_frees_space(tmp_path, monkeypatch):
    def full(source, target, *_):
        raise OSError(28, "No space left on device", source, None, target)

    monkeypatch.setattr(os, "symlink", full)
    with pytest.raises(
        OSError, match=rf"^\[Errno 28\] {tmp_path}: No space left on device.*Free some space \(gigabatch gc"
    ):
        atomic_symlink(Path("a"), tmp_path / "current")


def test_a_refusal_elsewhere_is_not_put_down_to_the_folder_that_is_written_to(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    with (
        read_only(tmp_path / "source"),
        pytest.raises(PermissionError, match=r"source/a'$"),
        replacing(tmp_path / "target" / "b"),
    ):
        (tmp_path / "source" / "a").touch()
