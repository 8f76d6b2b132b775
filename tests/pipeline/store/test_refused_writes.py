"""What the system refuses to write is told by the folder, not by the name of a file that was never there."""

import os
import re
import resource
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from gigabatch.pipeline.store.files import ArtifactError, atomic_symlink, atomic_write, replacing
from gigabatch.pipeline.store.leases import Lease, waiting_lock
from gigabatch.pipeline.store.locks import folder_lock, lock_holder, own_folder, remove_leftovers, temporary_path
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


@contextmanager
def no_room():
    """No file may grow; creating one, and links, still work, as on a disk with no free byte."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_write_that_finds_no_room_names_the_folder_though_the_system_names_no_file(tmp_path):
    """It was a bare `[Errno 28] No space left on device`."""
    atomic_write(tmp_path / "a.json", b"1")
    with (
        no_room(),
        pytest.raises(OSError, match=rf"{tmp_path}: File too large.*Raise the limit of a file.s size \(ulimit -f\)"),
    ):
        atomic_write(tmp_path / "a.json", b"22")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.json", b"1")]


def test_a_lock_is_taken_where_there_is_no_room_for_its_holders_name(tmp_path):
    """`gigabatch gc` is to free a full disk, and takes locks."""
    path = tmp_path / "nightly.lock"
    with no_room(), folder_lock(path):
        assert lock_holder(path) == "unknown"
        with pytest.raises(ArtifactError, match=r"held by another run \(unknown\)"), folder_lock(path):
            pass
    assert lock_holder(path) is None


def test_a_lease_that_finds_no_room_is_none_and_ends_without_a_word(tmp_path, monkeypatch):
    """What was not written came again from the closing of its file, as a traceback nobody could follow."""
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    lease = Lease(tmp_path)
    with no_room():
        lease.add("train/a")
        del lease
    assert not told
    assert [path.name for path in (tmp_path / ".leases").iterdir()] == ["lock"]


def test_a_refusal_elsewhere_is_not_put_down_to_the_folder_that_is_written_to(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    with (
        read_only(tmp_path / "source"),
        pytest.raises(PermissionError, match=r"source/a'$"),
        replacing(tmp_path / "target" / "b"),
    ):
        (tmp_path / "source" / "a").touch()
