"""Checksums and flushes of an artifact's files run several at once: same keys and checks, errors in order of files."""

import os
import threading
from pathlib import Path

import pytest
import xxhash

from gigabatch.pipeline.store import artifacts, files, keys
from gigabatch.pipeline.store.artifacts import ArtifactStore
from gigabatch.pipeline.store.files import ArtifactError, in_threads
from gigabatch.pipeline.store.keys import input_checksums

NAMES = [f"part-{number}.bin" for number in range(4)]
SECONDS = 1  # after which a thread that waits for another gives up


def write(folder: Path) -> dict:
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(bytes([number]) * (1 << number))
    return {}


def expected(folder: Path) -> dict[str, str]:
    """By xxhash of whole files."""
    return {name: f"xxh3:{xxhash.xxh3_128((folder / name).read_bytes()).hexdigest()}" for name in NAMES}


@pytest.fixture
def meeting(monkeypatch):
    """Each checksum waits until another one has begun, which one thread alone never sees."""
    barrier, original = threading.Barrier(2), keys.file_checksum

    def meets(path: Path, *like: str) -> str:
        barrier.wait(SECONDS)
        return original(path, *like)

    monkeypatch.setattr(artifacts, "file_checksum", meets)
    monkeypatch.setattr(keys, "file_checksum", meets)


def test_checksums_of_a_new_artifact_meet(tmp_path, meeting):
    artifact = ArtifactStore(tmp_path).build("encode", "a1", write)
    found = {name: entry["checksum"] for name, entry in artifact.manifest["files"].items()}
    assert found == expected(artifact.path)


def test_checksums_of_one_that_is_found_meet(tmp_path, meeting):
    store = ArtifactStore(tmp_path)
    store.build("encode", "a1", write)
    assert store.find("encode", "a1") is not None


def test_checksums_of_inputs_meet(tmp_path, meeting):
    write(tmp_path / "raw")
    found = input_checksums([str(tmp_path / "raw" / name) for name in NAMES], tmp_path)
    hashes = expected(tmp_path / "raw")
    assert found == {f"{position}:{name}": hashes[name] for position, name in enumerate(NAMES)}


def test_files_are_flushed_while_others_are_hashed(tmp_path, monkeypatch):
    """Before the folder is: its own flush finds them on disk."""
    barrier, flushed = threading.Barrier(2), []
    checksum, fsync = keys.file_checksum, os.fsync

    def hashing(path: Path) -> str:
        if path.name == NAMES[0]:
            barrier.wait(SECONDS)
        return checksum(path)

    def flushing(handle: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{handle}")).name
        flushed.append(name)
        if name == NAMES[1] and flushed.count(name) == 1:
            barrier.wait(SECONDS)
        fsync(handle)

    monkeypatch.setattr(artifacts, "file_checksum", hashing)
    monkeypatch.setattr(os, "fsync", flushing)
    ArtifactStore(tmp_path).build("encode", "a1", write)
    assert not barrier.broken
    assert flushed.index("manifest.json") > max(flushed.index(name) for name in NAMES)


def test_a_file_that_changes_while_it_is_hashed_is_hashed_again(tmp_path, monkeypatch):
    """Its time from before it was read is what is remembered."""
    monkeypatch.setattr(keys, "SETTLED_NS", -(10**18))
    write(tmp_path / "raw")
    paths = [str(tmp_path / "raw" / name) for name in NAMES]
    checksum = keys.file_checksum

    def changed(path: Path, *like: str) -> str:
        found = checksum(path, *like)
        path.write_bytes(path.read_bytes()[::-1] + b"more")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(keys, "file_checksum", changed)
        before = input_checksums(paths, tmp_path)
    hashes = expected(tmp_path / "raw")
    after = input_checksums(paths, tmp_path)
    assert list(after.values()) == [hashes[name] for name in NAMES]
    assert not set(before.values()) & set(after.values())


def test_a_damaged_file_is_named_in_order_of_files(tmp_path):
    artifact = ArtifactStore(tmp_path).build("encode", "a1", write)
    for name in NAMES[1:]:
        (artifact.path / name).write_bytes(b"x" * (artifact.path / name).stat().st_size)
    with pytest.raises(ArtifactError, match=f"file {NAMES[1]} is not what its manifest says"):
        artifacts.verified(artifact.path, "artifact")


def test_a_missing_input_among_many_is_named(tmp_path):
    write(tmp_path)
    paths = [str(tmp_path / name) for name in (NAMES[0], "nowhere-1", NAMES[1], "nowhere-2")]
    with pytest.raises(ArtifactError, match="nowhere-1 does not exist"):
        input_checksums(paths, tmp_path)


def test_results_come_in_order_and_the_first_error_in_order_ends_it():
    assert in_threads(lambda number: number**2, range(50)) == [number**2 for number in range(50)]
    assert in_threads(str, []) == []
    done, later = [], threading.Event()

    def fails(number: int) -> int:
        if number == 1:
            assert later.wait(SECONDS)
        if number == 2:
            later.set()
        if number in (1, 2):
            raise ValueError(f"of {number}")
        done.append(number)
        return number

    before = threading.active_count()
    with pytest.raises(ValueError, match="of 1"):
        in_threads(fails, range(1000))
    assert threading.active_count() == before
    assert len(done) < 1000 - files.THREADS


def test_a_stop_ends_the_finishing_between_files(tmp_path, monkeypatch):
    """Nothing further is read once the process is to stop, and nothing is left behind."""
    read: list[str] = []
    stopped = threading.Event()

    def slow(path: Path) -> str:
        read.append(path.name)
        stopped.set()
        return keys.file_checksum(path)

    def begin(folder: Path):
        def rest(check):
            for number in range(100):
                (folder / f"{number:03d}").write_bytes(b"a")
            return {}

        return rest

    monkeypatch.setattr(artifacts, "file_checksum", slow)
    monkeypatch.setattr(artifacts, "stop_event", lambda: stopped)
    with pytest.raises(ArtifactError, match="asked to stop"):
        ArtifactStore(tmp_path).build_behind("encode", "a1", begin).result()
    assert len(read) <= files.THREADS
    assert not list((tmp_path / "encode").glob("*"))
