"""Artifacts: whole or absent at any crash, skipped when unchanged, made again when damaged."""

import errno
import fcntl
import hashlib
import json
import logging
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.pipeline.store import artifacts, keys, leases, locks
from gigabatch.pipeline.store.artifacts import ArtifactStore
from gigabatch.pipeline.store.files import ArtifactError, atomic_symlink, atomic_write, refusals_named
from gigabatch.pipeline.store.garbage import collect_artifacts, collect_runs
from gigabatch.pipeline.store.keys import ChecksumCache, artifact_key, file_checksum, input_checksums, source_hash
from gigabatch.pipeline.store.locks import folder_lock
from tests.examples import examples
from tests.pipeline.read_only import unreadable

ROOT = Path(__file__).resolve().parents[3]
PARTS = {"part-0.bin": b"a" * 1000, "sub/part-1.bin": b"b" * 500, "empty": b""}


def write_parts(folder: Path) -> dict:
    for name, content in PARTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return {"rows": 3, "seconds": 0.5}


def fail_if_called(_: Path) -> dict:
    pytest.fail("a finished artifact was made again")


def content(folder: Path) -> dict[str, bytes]:
    """Files below `folder` by name, without the manifest."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def age(path: Path, seconds: float = 3600) -> None:
    """Make a file look as if it was last changed `seconds` ago; if negative, as just now, however slow the test is."""
    then = path.stat().st_mtime_ns - int(seconds * 1e9)
    os.utime(path, ns=(then, then))


@pytest.fixture
def store(tmp_path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


# Building and skipping


def test_a_built_artifact_holds_its_files_and_a_manifest_of_them(store):
    built = store.build("encode", "k1", write_parts)
    assert not built.skipped
    assert built.path == store.root / "encode" / "k1"
    assert content(built.path) == PARTS
    manifest = json.loads((built.path / "manifest.json").read_text())
    assert built.manifest == manifest
    assert {name: entry["bytes"] for name, entry in manifest["files"].items()} == {
        name: len(data) for name, data in PARTS.items()
    }
    assert (manifest["stage"], manifest["key"], manifest["rows"], manifest["seconds"]) == ("encode", "k1", 3, 0.5)
    assert manifest["versions"]["python"] == sys.version.split()[0]
    assert manifest["versions"]["torch"]
    assert names(store.root / "encode") == ["k1"]


@pytest.mark.parametrize("error", [KeyError("column"), KeyboardInterrupt("column"), FileNotFoundError("column")])
def test_an_error_in_a_stage_leaves_nothing_and_is_raised_as_it_was(store, error):
    def fail(folder: Path) -> dict:
        write_parts(folder)
        raise error

    store.build("encode", "old", write_parts)
    with pytest.raises(type(error), match="column"):
        store.build("encode", "new", fail)
    assert names(store.root / "encode") == ["old"]


# Damage


def flip_a_byte(folder: Path) -> None:
    with (folder / "part-0.bin").open("r+b") as file:
        file.write(b"X")


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        lambda folder: os.truncate(folder / "sub/part-1.bin", 499),
        lambda folder: (folder / "sub/part-1.bin").unlink(),
        lambda folder: (folder / "part-2.bin").write_bytes(b"a reader's glob would find this"),
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / "manifest.json").write_bytes(b"\xff"),
        lambda folder: (folder / "manifest.json").write_text("[]"),
        lambda folder: (folder / "manifest.json").write_text('{"files": []}'),
        lambda folder: (folder / "manifest.json").write_text('{"files": {"part-0.bin": 3}}'),
    ],
)
def test_a_damaged_artifact_is_put_aside_logged_and_made_again(store, damage, caplog):
    path = store.build("encode", "k1", write_parts).path
    assert store.find("encode", "k1") is not None  # checksums are cached by now
    damage(path)
    again = store.build("encode", "k1", write_parts)
    assert not again.skipped
    assert content(path) == PARTS
    aside = [name for name in names(store.root / "encode") if name != "k1"]
    assert len(aside) == 1
    assert aside[0].startswith(".damaged-k1-")
    assert "put aside" in caplog.text
    assert store.build("encode", "k1", fail_if_called).skipped


def swapped(one: Path, two: Path) -> None:
    one.rename(one.with_name("x"))
    two.rename(one)
    one.with_name("x").rename(two)


@pytest.mark.parametrize("hidden", ["part-0.bin", "sub", "manifest.json", "."])
def test_an_artifact_that_this_user_may_not_read_is_not_called_damaged_and_stays(store, hidden, caplog, tmp_path):
    made, run = store.build("encode", "k1", write_parts), tmp_path / "runs" / "k1"
    store.copy(made, run)
    with unreadable(made.path / hidden):
        other = ArtifactStore(store.root)
        with pytest.raises(PermissionError, match=r"Permission denied.*[Nn]othing was changed; mend what the system"):
            other.build("encode", "k1", fail_if_called)
    with unreadable(run / hidden), pytest.raises(PermissionError, match="Permission denied"):
        store.copy(made, run)
    assert not caplog.text
    assert content(made.path) == content(run) == PARTS
    assert [name for name in names(made.path.parent) if "damaged" in name] == []
    assert ArtifactStore(store.root).build("encode", "k1", fail_if_called).skipped


@pytest.mark.parametrize("other", [("encode", "k2"), ("train", "k1")])
def test_an_artifact_under_the_name_of_another_is_put_aside_and_made_again(store, other, caplog):
    """Features of five files were taken for those of six, and what was trained of them kept under the six's key."""
    one, two = store.build("encode", "k1", write_parts).path, store.build(*other, write_parts).path
    swapped(one, two)
    assert store.find(*other) is None
    again = store.build("encode", "k1", write_parts)
    assert (again.skipped, again.manifest["stage"], again.manifest["key"]) == (False, "encode", "k1")
    assert f"artifact {one}: it is that of {'/'.join(other)}. It was put aside" in caplog.text
    assert store.build("encode", "k1", fail_if_called).skipped


# Checksums and their cache


@pytest.fixture
def settled(monkeypatch) -> None:
    """As if all files had been changed a while ago; the time of an inode's change cannot be set."""
    monkeypatch.setattr(keys, "SETTLED_NS", -1)


@pytest.fixture
def hashed(monkeypatch) -> list[str]:
    """Names of the files that were really read for a checksum."""
    read: list[str] = []
    original = keys.file_checksum

    def counting(path: Path, *like: str) -> str:
        read.append(Path(path).name)
        return original(path, *like)

    for module in (keys, artifacts):
        monkeypatch.setattr(module, "file_checksum", counting)
    return read


def test_a_checksum_is_computed_once_while_path_size_and_time_stay(tmp_path, hashed, settled):
    file = tmp_path / "flights.csv"
    file.write_bytes(b"1,2,3")
    first = input_checksums([str(file)], tmp_path / "store")
    assert input_checksums([str(file)], tmp_path / "store") == first
    assert hashed == ["flights.csv"]
    age(file, 60)
    assert input_checksums([str(file)], tmp_path / "store") == first
    assert hashed == ["flights.csv"] * 2


def test_files_of_a_new_artifact_are_not_read_again_to_check_it(store, hashed, monkeypatch):
    """Unless they were written just now: large ones, for which it matters, take longer than that."""

    def write_slowly(folder: Path) -> dict:
        write_parts(folder)
        for name in PARTS:
            age(folder / name, -3600 if name != "part-0.bin" else 0)
        monkeypatch.setattr(keys, "SETTLED_NS", -1_000_000_000)
        return {}

    store.build("encode", "k1", write_slowly)
    assert sorted(hashed) == ["empty", "part-0.bin", "part-1.bin"]
    hashed.clear()
    assert store.build("encode", "k1", fail_if_called).skipped
    assert sorted(hashed) == ["empty", "part-1.bin"]


@pytest.mark.parametrize("how", ["in place", "by another file"])
def test_a_change_of_the_same_size_that_keeps_the_time_is_seen(tmp_path, settled, how):
    """As `cp -p`, `rsync -t` and a restored backup make them."""
    file, other = tmp_path / "flights.csv", tmp_path / "other.csv"
    file.write_bytes(b"aaaa")
    stat = file.stat()
    before = input_checksums([str(file)], tmp_path / "store")
    changed = file if how == "in place" else other
    changed.write_bytes(b"bbbb")
    os.utime(changed, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    changed.replace(file)
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert input_checksums([str(file)], tmp_path / "store") != before


def test_a_change_in_the_same_tick_of_the_clock_is_seen(tmp_path):
    """Same size and same time: as git does, a file that was changed just now is not taken from the cache."""
    file = tmp_path / "flights.csv"
    file.write_bytes(b"aaaa")
    age(file, -3600)
    stat = file.stat()
    before = input_checksums([str(file)], tmp_path / "store")
    file.write_bytes(b"bbbb")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert input_checksums([str(file)], tmp_path / "store") != before


def test_inputs_are_known_by_content_not_by_folder_or_time(tmp_path):
    for name, text in (("a", "same"), ("b", "same"), ("c", "other")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "flights.csv").write_text(text)
    age(tmp_path / "b" / "flights.csv")
    found = [input_checksums([str(tmp_path / name / "flights.csv")], tmp_path / "store") for name in "abc"]
    assert found[0] == found[1] != found[2]
    assert input_checksums([f"file://{tmp_path}/c/flights.csv"], tmp_path / "store") == found[2]


def test_a_missing_input_is_named(tmp_path):
    with pytest.raises(ArtifactError, match=r"input .*nowhere\.csv"):
        input_checksums([str(tmp_path / "nowhere.csv")], tmp_path / "store")
    with pytest.raises(ArtifactError, match=r"input memory://nowhere\.csv"):
        input_checksums(["memory://nowhere.csv"], tmp_path / "store")


def test_a_url_is_known_by_what_its_file_system_says(tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/flights.csv", b"1")
    first = input_checksums(["memory://bucket/flights.csv"], tmp_path)
    assert input_checksums(["memory://bucket/flights.csv"], tmp_path) == first
    memory.pipe("/bucket/flights.csv", b"22")
    assert input_checksums(["memory://bucket/flights.csv"], tmp_path) != first


@pytest.mark.parametrize("damage", [b"{", b"\xff\xfe", b"[1, 2]", b"[[1, 2]]", b'{"a": 3}', b"3", b"[" * 200_000])
def test_a_damaged_cache_is_ignored_with_a_warning(tmp_path, damage, caplog, settled):
    file, cache_file = tmp_path / "flights.csv", tmp_path / "checksums.json"
    file.write_text("1")
    age(file)
    cache_file.write_bytes(damage)
    cache = ChecksumCache(cache_file)
    assert cache.checksum(file) == file_checksum(file)
    cache.save()
    assert "damaged" in caplog.text
    caplog.clear()
    assert [entry[-1] for entry in ChecksumCache(cache_file).known.values()] == [file_checksum(file)]
    assert not caplog.text


def test_a_digit_that_a_disk_has_changed_in_the_cache_is_noticed(tmp_path, caplog, settled):
    """The file was taken for a new one, whose rows were those of one that is gone."""
    file, cache_file = tmp_path / "flights.csv", tmp_path / "checksums.json"
    file.write_text("1")
    right = input_checksums([str(file)], tmp_path)
    text, digest = cache_file.read_text(), file_checksum(file)
    assert text.count(digest) == 1
    for place in (text.index(digest) + 9, text.index(str(file)) + 1, 2, len(text) - 1):
        other = "a" if text[place] != "a" else "b"
        cache_file.write_text(text[:place] + other + text[place + 1 :])
        assert input_checksums([str(file)], tmp_path) == right
        assert "checksums.json is damaged" in caplog.text
        assert cache_file.read_text() == text
        caplog.clear()
    assert input_checksums([str(file)], tmp_path) == right
    assert not caplog.text


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path, caplog, monkeypatch, settled):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    file, cache = tmp_path / "flights.csv", ChecksumCache(tmp_path / "checksums.json")
    file.write_text("1")
    age(file)
    monkeypatch.setattr("gigabatch.pipeline.store.keys.atomic_write", full)
    assert cache.checksum(file) == file_checksum(file)
    cache.save()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "checksums.json could not be written ([Errno 28]" in caplog.text


def test_a_cache_of_before_it_held_inodes_is_left_without_a_word(tmp_path, caplog):
    file, cache = tmp_path / "flights.csv", tmp_path / "checksums.json"
    file.write_text("1")
    age(file)
    cache.write_text(json.dumps({str(file): [1, file.stat().st_mtime_ns, "stale"]}))
    assert ChecksumCache(cache).checksum(file) == file_checksum(file)
    assert not caplog.text


def test_the_cache_forgets_files_that_are_gone_and_old_versions(tmp_path, settled):
    file, gone, cache = tmp_path / "a", tmp_path / "gone", ChecksumCache(tmp_path / "checksums.json")
    for seconds in (3600, 60):
        file.write_text("1")
        age(file, seconds)
        cache.checksum(file)
    gone.write_text("2")
    age(gone)
    cache.checksum(gone)
    gone.unlink()
    cache.save()
    assert len(ChecksumCache(cache.path).known) == 1


# Keys

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=examples(60), deadline=None)
def test_a_key_does_not_depend_on_the_order_of_settings(config, shuffler):
    items = list(config.items())
    shuffler.shuffle(items)
    assert artifact_key("encode", {"a": "1"}, config, "s") == artifact_key("encode", {"a": "1"}, dict(items), "s")


def test_a_key_changes_with_every_part():
    keys = [
        artifact_key("encode", {"a": "1"}, {"x": 1, "y": [1, 2]}, "s"),
        artifact_key("train", {"a": "1"}, {"x": 1, "y": [1, 2]}, "s"),
        artifact_key("encode", {"a": "2"}, {"x": 1, "y": [1, 2]}, "s"),
        artifact_key("encode", {"b": "1"}, {"x": 1, "y": [1, 2]}, "s"),
        artifact_key("encode", {"a": "1"}, {"x": 1.5, "y": [1, 2]}, "s"),
        artifact_key("encode", {"a": "1"}, {"x": 1, "y": [2, 1]}, "s"),
        artifact_key("encode", {"a": "1"}, {"x": 1, "y": [1, 2]}, "t"),
    ]
    assert len(set(keys)) == len(keys)
    # The same in every process: nothing of it, such as Python's string hashing, goes into a key.
    assert artifact_key("e", {"a": "1"}, {"x": "é", "y": None}, "s") == "190490007d0dec4b598b5828c2672da8"
    assert all(len(key) >= 16 and set(key) <= set("0123456789abcdef") for key in keys)


def test_a_setting_that_has_no_stable_text_is_refused():
    """`str(object())` holds an address, so its key would never be met again."""
    assert artifact_key("e", {}, {"path": Path("data")}, "s") == artifact_key("e", {}, {"path": "data"}, "s")
    with pytest.raises(ArtifactError, match="object"):
        artifact_key("e", {}, {"x": object()}, "s")


# Source hashes


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "one" / "hashed_package"
    (folder / "inner").mkdir(parents=True)
    for name in ("__init__.py", "module.py", "inner/__init__.py", "inner/deep.py"):
        (folder / name).write_text(f"# {name}\n")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.delitem(sys.modules, folder.name, raising=False)  # of another test, which has asked for a module in it
    return folder


def test_a_source_hash_follows_the_text_of_every_file_and_nothing_else(package):
    whole, module = ["hashed_package", "json"], ["hashed_package.module"]
    seen = {source_hash(whole)}
    assert "hashed_package" not in sys.modules  # hashing runs nothing of it
    of_module = source_hash(module)
    (package / "inner" / "deep.py").write_text("x = 1\n")
    seen.add(source_hash(whole))
    (package / "new.py").write_text("")
    seen.add(source_hash(whole))
    assert len(seen) == 3
    age(package / "module.py")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "module.cpython-311.pyc").write_bytes(b"123")
    assert source_hash(whole[::-1]) in seen
    assert source_hash(module) == of_module
    (package / "module.py").write_text("x = 1\n")
    assert source_hash(module) != of_module


def test_sources_that_stayed_the_same_are_not_read_again_and_a_changed_one_is(package, monkeypatch):
    names, file = ["hashed_package"], package / "inner" / "deep.py"
    monkeypatch.setattr(keys, "SETTLED_NS", -1)  # as of files that were written some seconds ago
    before, content = source_hash(names), file.read_text()
    read = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or real(path))
    assert source_hash(names) == before
    assert read == []
    file.write_text("y" + content)
    assert source_hash(names) != before
    assert file in read
    file.write_text(content)
    assert source_hash(names) == before
    file.unlink()
    assert source_hash(names) != before


def test_sources_that_changed_a_moment_ago_are_read_again(package, monkeypatch):
    """Another change of the same size within a tick of the clock does not show."""
    file = package / "inner" / "deep.py"
    stat = os.stat(file)
    monkeypatch.setattr(keys, "signature", lambda _: (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
    before = source_hash(["hashed_package"])
    file.write_text("y" * stat.st_size)
    assert source_hash(["hashed_package"]) != before


@pytest.mark.parametrize("name", ["no_such_module", "no_such.module", "sys"])
def test_a_module_without_source_is_named(name):
    with pytest.raises(ArtifactError, match=name):
        source_hash([name])


# Crashes: a child process stops at a named moment and is killed there, or let go

CHILD = """
import sys
from pathlib import Path
import gigabatch.pipeline.store.artifacts as artifacts

root, key, moment = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def reach(name):
    if name == moment:
        print("reached", flush=True)
        sys.stdin.readline()

def write(folder):
    with open(folder / "part-0.bin", "wb") as file:
        file.write(b"a" * 400)
        file.flush()
        reach("half a file")
        file.write(b"a" * 600)
    (folder / "sub").mkdir()
    (folder / "sub" / "part-1.bin").write_bytes(b"b" * 500)
    (folder / "empty").touch()
    return {"rows": 3, "seconds": 0.5}

fsync_tree, fsync_folder = artifacts.fsync_tree, artifacts.fsync_folder

def tree(folder):
    reach("manifest written")
    fsync_tree(folder)
    reach("synced")

def folder_synced(folder):
    fsync_folder(folder)
    if folder == root / "encode":
        reach("renamed")

artifacts.fsync_tree, artifacts.fsync_folder = tree, folder_synced
store = artifacts.ArtifactStore(root)
if sys.argv[4] == "behind":
    print(store.build_behind("encode", key, lambda folder: lambda check: write(folder)).result().path)
else:
    print(store.build("encode", key, write).path)
"""
MOMENTS = ["half a file", "manifest written", "synced", "renamed"]


def child_at(store: ArtifactStore, key: str, moment: str, how: str = "build") -> subprocess.Popen:
    """A process that builds artifact `key` of stage encode and waits at `moment` for a line of input.

    how: `behind` for one that is written in a thread.
    """
    command = [sys.executable, "-c", CHILD, str(store.root), key, moment, how]
    child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "reached\n"
    return child


def kill(child: subprocess.Popen) -> None:
    child.kill()
    child.communicate()
    assert child.returncode == -signal.SIGKILL


@pytest.mark.parametrize("how", ["build", "behind"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_at_any_moment_leaves_the_old_artifact_and_never_half_a_new_one(store, moment, how):
    store.build("encode", "old", write_parts)
    kill(child_at(store, "new", moment, how))
    assert store.build("encode", "old", fail_if_called).skipped
    if moment == "renamed":
        assert store.build("encode", "new", fail_if_called).skipped
    else:
        assert not (store.root / "encode" / "new").exists()
        assert not store.build("encode", "new", write_parts).skipped
    assert content(store.root / "encode" / "new") == PARTS
    store.build("encode", "other", write_parts)
    assert names(store.root / "encode") == ["new", "old", "other"]  # what was left behind is gone


def test_the_folder_of_a_living_writer_is_left_alone(store):
    child = child_at(store, "new", "half a file")
    store.build("encode", "other", write_parts)
    assert collect_artifacts(store.root, keep=5) == ([], 0)
    printed, _ = child.communicate("\n")
    assert child.returncode == 0
    assert content(Path(printed.strip())) == PARTS
    assert names(store.root / "encode") == ["new", "other"]


def test_two_processes_that_build_one_key_both_succeed(store):
    children = [child_at(store, "new", "synced", how) for how in ("behind", "build", "behind")]
    for child in children:
        printed, _ = child.communicate("\n")
        assert child.returncode == 0
        assert Path(printed.strip()) == store.root / "encode" / "new"
    assert names(store.root / "encode") == ["new"]
    assert store.build("encode", "new", fail_if_called).skipped


def test_a_leftover_is_known_by_its_lock_not_by_a_process_number(store):
    """The number in its name may belong to another process by now: here, to this one."""
    left = locks.temporary_path(store.root / "encode" / "new")
    assert f"@{os.getpid()}-" in left.name
    left.mkdir(parents=True)
    left.with_name(left.name + ".lock").touch()
    store.build("encode", "other", write_parts)
    assert names(store.root / "encode") == ["other"]


def test_the_folder_of_a_writer_on_another_machine_is_left_alone(store, monkeypatch):
    """On a shared disk; a lock taken there need not be seen here."""
    theirs = store.root / "encode" / ".tmp-new@other-host@1-00000000"
    theirs.mkdir(parents=True)
    store.build("encode", "other", write_parts)
    assert names(store.root / "encode") == [theirs.name, "other"]


def test_a_writer_whose_lock_file_was_cleaned_away_before_it_was_locked_makes_another(tmp_path, monkeypatch):
    """Between opening and locking its lock file, a writer looks dead to `remove_leftovers`."""
    path, flock = locks.temporary_path(tmp_path / "new"), locks.fcntl.flock
    cleaned = []

    def clean_first(file, operation):
        if not cleaned:
            cleaned.append(True)
            locks.remove_leftovers(tmp_path)
            assert names(tmp_path) == []
        flock(file, operation)

    monkeypatch.setattr(locks.fcntl, "flock", clean_first)
    with locks.own_folder(path):
        assert locks.remove_leftovers(tmp_path) == {}
        assert names(tmp_path) == [path.name, path.name + ".lock"]
    assert names(tmp_path) == []


# A full disk


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (errno.ENOSPC, r"disk is full .*bytes free"),
        (errno.EDQUOT, r"disk is full .*bytes free"),
        (errno.EFBIG, r"larger than .* File too large.* raise the limit \(ulimit -f\)"),
    ],
)
@pytest.mark.parametrize("where", ["in another library's error", "while it is flushed"])
def test_a_disk_that_is_full_by_any_name_is_found_wherever_it_is_met(store, monkeypatch, code, told, where):
    def fail(_: Path) -> dict:
        raise OSError(code, os.strerror(code))

    def wrapped(folder: Path) -> dict:
        try:
            return fail(folder)
        except OSError as error:
            raise RuntimeError("the file writer failed") from error

    monkeypatch.setattr(artifacts, "fsync_tree", fail)
    with pytest.raises(ArtifactError, match=f"encode: .* {told}") as caught:
        store.build("encode", "new", wrapped if "library" in where else write_parts)
    assert str(store.root) in str(caught.value)
    assert names(store.root / "encode") == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_gives_its_advice_once(store, code):
    def refused(folder: Path) -> dict:
        with refusals_named(folder):
            raise OSError(code, os.strerror(code), str(folder / "part-0.bin"))

    with pytest.raises(ArtifactError, match=os.strerror(code)) as caught:
        store.build("encode", "new", refused)
    said = str(caught.value).lower()
    assert said.count("gigabatch gc") + said.count("ulimit -f") == 1
    assert "option --out" not in said


# Garbage


def build_at(store: ArtifactStore, stage: str, key: str, seconds_ago: float) -> Path:
    path = store.build(stage, key, write_parts).path
    age(path, seconds_ago)
    return path


def test_gc_keeps_the_newest_of_each_stage(store):
    for number, key in enumerate(("e", "d", "c", "b", "a")):
        build_at(store, "encode", key, seconds_ago=100 - 10 * number)
    build_at(store, "train", "z", seconds_ago=1000)
    size = sum(file.stat().st_size for key in "edc" for file in (store.root / "encode" / key).rglob("*.*"))
    removed, freed = collect_artifacts(store.root, keep=2)
    assert sorted(path.name for path in removed) == ["c", "d", "e"]
    assert freed == size
    assert names(store.root / "encode") == ["a", "b"]
    assert names(store.root / "train") == ["z"]
    assert store.build("encode", "a", fail_if_called).skipped


def test_gc_removes_damaged_folders_and_leftovers_but_nothing_that_it_does_not_know(store):
    flip_a_byte(store.build("encode", "k1", write_parts).path)
    store.build("encode", "k1", write_parts)
    kill(child_at(store, "new", "manifest written"))
    (store.root / "encode" / "notes").mkdir()
    (store.root / "encode" / "notes" / "todo.txt").write_text("mine")
    removed, freed = collect_artifacts(store.root, keep=1)
    assert len(removed) == 2
    assert freed > 2 * 1500
    assert names(store.root / "encode") == ["k1", "notes"]


def test_gc_of_runs_counts_folders_not_the_links_to_them(store):
    """runs/<name>/latest is a link among the runs. A name may be `checkpoints`, of which artifacts have their own."""
    for name in ("flights", "checkpoints"):
        for number, key in enumerate("abcd"):
            build_at(store, name, key, seconds_ago=100 - number)
        atomic_symlink(Path("d"), store.root / name / "latest")
        atomic_symlink(Path("a"), store.root / name / "old")
    collect_runs(store.root, keep=2)
    for name in ("flights", "checkpoints"):
        assert names(store.root / name) == ["a", "c", "d", "latest", "old"]


def test_gc_removes_what_killed_writers_of_single_files_left_and_a_link_of_theirs_keeps_no_run(tmp_path):
    """`.latest-PID-hex` stayed for ever, and the run that it named with it."""
    home = tmp_path / "ev"
    for name in ("old", "new"):
        (home / name).mkdir(parents=True)
        (home / name / "manifest.json").write_text("{}")
    os.utime(home / "old", (1, 1))
    (home / ".latest-123-0123abcd").symlink_to("old")
    (home / ".mine").symlink_to("new")  # of a person
    texts = [".files.json-4-89abcdef", ".nightly.pending.json-77-00000000", ".promoted.lock", "files.json-4-89abcdef"]
    for name in texts:
        (home / name).write_text("{")
    (tmp_path / ".checksums.json-9-00000000").write_text("{")
    for path in [*home.glob(".*-*"), *home.glob("*-4-*"), *tmp_path.glob(".*")]:
        os.utime(path, (1, 1), follow_symlinks=False)
    (home / ".files.json-5-89abcdef").write_text("{")  # perhaps being written
    collect_runs(tmp_path, keep=1)
    left = {".files.json-5-89abcdef", ".mine", ".promoted.lock", "files.json-4-89abcdef", "new"}
    assert {path.name for path in home.iterdir()} == left
    assert {path.name for path in tmp_path.iterdir()} - {".leases"} == {"ev"}


def test_gc_counts_what_each_configuration_has_used_last(store):
    """What one shares with another stays as long as either counts it; using it again makes it the last used."""
    one, two = (ArtifactStore(store.root, name) for name in ("one", "two"))
    for user, key in ((one, "a"), (one, "shared"), (two, "shared"), (two, "b"), (two, "c"), (one, "d"), (one, "a")):
        user.build("encode", key, write_parts)
        time.sleep(0.002)
    build_at(store, "encode", "of an earlier version", seconds_ago=3600)
    build_at(store, "encode", "older still", seconds_ago=7200)
    del one, two, user
    collect_artifacts(store.root, keep=2)
    assert names(store.root / "encode") == ["a", "b", "c", "d", "of an earlier version", "older still"]
    collect_artifacts(store.root, keep=1)
    assert names(store.root / "encode") == ["a", "c", "of an earlier version"]
    collect_artifacts(store.root, keep=0)
    assert names(store.root / "encode") == []
    assert not list(store.root.glob(".used/*/*/*"))


USER = """
import os, sys
from gigabatch.pipeline.store import keys
from gigabatch.pipeline.store.artifacts import ArtifactStore

store = ArtifactStore(sys.argv[1], "flights")
store.build("encode", "used", lambda folder: 1 / 0)
store.use("checkpoints", "used")
print("used", flush=True)
if os.fork() == 0:
    sys.exit(0)  # a child that ends takes no lease with it
sys.stdin.readline()
"""


def test_gc_leaves_what_a_living_process_uses(store):
    """Made long ago and used again just now, by a run that trains for hours; and after it, or a kill, no more."""
    for key in ("used", "newer"):
        build_at(store, "encode", key, seconds_ago=3600)
    (store.root / "checkpoints" / "used").mkdir(parents=True)
    child = subprocess.Popen(
        [sys.executable, "-c", USER, str(store.root)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "used\n"
    removed, _ = collect_artifacts(store.root, keep=0)
    assert [path.name for path in removed] == ["newer"]
    assert names(store.root / "checkpoints") == ["used"]
    kill(child)
    removed, _ = collect_artifacts(store.root, keep=0)
    assert sorted(path.relative_to(store.root).as_posix() for path in removed) == ["checkpoints/used", "encode/used"]
    assert names(store.root / ".leases") == ["lock"]


def test_a_lease_ends_with_the_object_that_holds_it_and_other_machines_keep_theirs(store):
    store.build("encode", "k1", write_parts)
    mine = ArtifactStore(store.root, "flights")
    assert mine.find("encode", "k1")
    theirs = store.root / ".leases" / "other-host@1-00000000"
    theirs.write_text("encode/k2\n")
    store.build("encode", "k2", write_parts)
    assert collect_artifacts(store.root, keep=0) == ([], 0)
    del mine
    assert [path.name for path in collect_artifacts(store.root, keep=0)[0]] == ["k1"]
    os.utime(theirs, (time.time() - 6.9 * 86_400,) * 2)
    assert collect_artifacts(store.root, keep=0) == ([], 0)
    os.utime(theirs, (time.time() - 7.1 * 86_400,) * 2)
    with open(theirs) as file:  # where locks reach from machine to machine
        fcntl.flock(file, fcntl.LOCK_EX)
        assert collect_artifacts(store.root, keep=0) == ([], 0)
    assert [path.name for path in collect_artifacts(store.root, keep=0)[0]] == ["k2"]
    assert not theirs.exists()


def test_what_a_killed_writer_of_another_machine_left_goes_after_a_week(store):
    """Each pod of a nightly job has a name of its own, so what one that was killed had left stayed for ever."""
    left = store.root / "encode" / ".tmp-k1@pod-7@1-00000000"
    left.mkdir(parents=True)
    (left / "part").write_text("rows")
    lock = left.with_name(f"{left.name}.lock")
    lock.write_text("")

    def age(days: float, *paths: Path) -> None:
        for path in paths:
            os.utime(path, (time.time() - days * 86_400,) * 2)

    age(8, lock, left)
    age(6.9, left / "part")  # somebody writes
    assert collect_artifacts(store.root, keep=0) == ([], 0)
    age(7.1, left / "part")
    with open(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert collect_artifacts(store.root, keep=0) == ([], 0)
    assert collect_artifacts(store.root, keep=0) == ([left], 4)
    assert names(store.root / "encode") == []


def test_a_lease_that_another_machine_took_for_gone_is_written_anew_with_all_that_it_named(tmp_path):
    """What was added after a quiet week went to a file that nobody saw any more."""
    lease = leases.Lease(tmp_path)
    lease.add("encode/k1")
    (path,) = (tmp_path / ".leases").glob("*@*")
    os.utime(path, (time.time() - 6 * 86_400,) * 2)
    lease.add("encode/k1")
    assert time.time() - path.stat().st_mtime < 3600  # a use counts
    for folder, held in (("encode/k2", {"encode/k1", "encode/k2"}), ("encode/k1", {"encode/k1", "encode/k2"})):
        (path,) = (tmp_path / ".leases").glob("*@*")
        path.unlink()
        lease.add(folder)
        with leases.leases_held_still(tmp_path) as found:
            assert found == held
    del lease
    assert names(tmp_path / ".leases") == ["lock"]


@pytest.mark.parametrize("days", [0, 8])
def test_a_folder_that_another_machine_finishes_meanwhile_is_left_alone(store, monkeypatch, days):
    """The walk through it ended the build, or gc, of this machine with FileNotFoundError."""
    theirs, finished = store.root / "encode" / ".tmp-k1@pod-7@1-00000000", store.root / "encode" / "k1"
    for part in ("a", "b", "c"):
        (theirs / part / "rows").mkdir(parents=True)
        os.utime(theirs / part, (time.time() - days * 86_400,) * 2)
    os.utime(theirs, (time.time() - days * 86_400,) * 2)
    walk = Path.rglob

    def walked_while_renamed(path, pattern):
        found = walk(path, pattern)
        yield next(found)
        theirs.rename(finished)
        yield from found

    monkeypatch.setattr(Path, "rglob", walked_while_renamed)
    assert locks.remove_leftovers(store.root / "encode") == {}
    assert names(store.root / "encode") == (["k1"] if days else [theirs.name])  # a young one is not walked through


def test_a_store_goes_to_workers_which_have_leases_of_their_own(store):
    mine = ArtifactStore(store.root, "flights")
    mine.build("encode", "k1", write_parts)
    theirs = pickle.loads(pickle.dumps(mine))
    del mine
    assert len(collect_artifacts(store.root, keep=0)[0]) == 1
    theirs.build("encode", "k1", write_parts)
    assert collect_artifacts(store.root, keep=0) == ([], 0)


def test_a_store_that_may_not_be_written_to_is_used_as_it_is(store, monkeypatch):
    store.build("encode", "k1", write_parts)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", read_only)
    assert ArtifactStore(store.root, "flights").build("encode", "k1", fail_if_called).skipped


def test_gc_refuses_a_negative_number(store):
    for collect in (collect_artifacts, collect_runs):
        with pytest.raises(ArtifactError, match="found -1"):
            collect(store.root, keep=-1)


# Copies outside the store


def test_a_copy_that_is_whole_stays_and_a_damaged_one_is_made_again_with_what_lay_beside_it(store, tmp_path, caplog):
    made, target = store.build("encode", "k1", write_parts), tmp_path / "runs" / "k1"
    store.copy(made, target)
    (target / "scores.csv").write_text("mine")
    inode = target.stat().st_ino
    store.copy(made, target)
    assert target.stat().st_ino == inode
    other = store.build("encode", "k2", write_parts).path / "manifest.json"
    for damage in (
        lambda: (target / "part-0.bin").unlink(),
        lambda: (target / "manifest.json").write_text("{"),
        lambda: (target / "manifest.json").write_text(other.read_text()),
    ):
        damage()
        store.copy(made, target)
        assert content(target) == PARTS | {"scores.csv": b"mine"}
    assert "file 'part-0.bin' is missing" in caplog.text
    assert "its files are those of another run. It is put aside" in caplog.text
    assert len([name for name in names(target.parent) if name.startswith(".damaged-k1-")]) == 3


def test_a_cache_that_this_user_may_not_read_is_not_called_damaged(tmp_path, caplog):
    file, cache_file = tmp_path / "flights.csv", tmp_path / "checksums.json"
    file.write_bytes(b"1,2,3")
    cache_file.write_text("{}")
    with unreadable(cache_file):
        assert ChecksumCache(cache_file).checksum(file) == file_checksum(file)
    assert "checksums.json cannot be read (Permission denied); checksums are computed again" in caplog.text
    assert "damaged" not in caplog.text


def test_a_folder_in_place_of_the_cache_is_ignored_with_a_warning(tmp_path, caplog):
    file, cache_file = tmp_path / "flights.csv", tmp_path / "checksums.json"
    file.write_text("1")
    cache_file.mkdir()
    assert ChecksumCache(cache_file).checksum(file) == file_checksum(file)
    assert "damaged" in caplog.text


# Locks, pointers and single files


def test_a_second_holder_of_a_lock_is_told_who_holds_it(tmp_path):
    path = tmp_path / "runs" / "flights.lock"
    with folder_lock(path):
        with pytest.raises(ArtifactError, match=rf"pid {os.getpid()} since 20\d\d-\d\d-\d\dT"), folder_lock(path):
            pass
        remedy = r"held by another run \(.*\)\. Wait for it, or end it, then run this again: "
        with pytest.raises(ArtifactError, match=remedy), folder_lock(path):  # the refusal broke nothing
            pass
    with folder_lock(path):
        pass


def test_a_lock_that_is_waited_for_is_taken_when_its_holder_has_let_it_go(tmp_path, caplog):
    path, order, held = tmp_path / "train.lock", [], threading.Event()

    def hold():
        with folder_lock(path):
            held.set()
            while "waits for it" not in caplog.text:
                time.sleep(0.01)
            order.append("first")

    holder = threading.Thread(target=hold)
    with caplog.at_level(logging.INFO):
        holder.start()
        held.wait()
        with folder_lock(path, "trains the same"):
            order.append("second")
    holder.join()
    assert order == ["first", "second"]
    assert f"another process (pid {os.getpid()} since 20" in caplog.text
    assert "trains the same; this one waits for it." in caplog.text


def test_a_lock_whose_holder_has_not_written_its_name_yet(tmp_path, monkeypatch):
    path = tmp_path / "train.lock"
    monkeypatch.setattr(locks, "HOLDER_NAME_S", 60)
    with open(path, "a+") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        late = threading.Timer(0.1, lambda: path.write_text("pid 17 since today"))
        late.start()
        with pytest.raises(ArtifactError, match=r"held by another run \(pid 17 since today\)"), folder_lock(path):
            pass
        late.join()
        path.write_text("")
        monkeypatch.setattr(locks, "HOLDER_NAME_S", 0.05)
        with pytest.raises(ArtifactError, match=r"held by another run \(unknown\)"), folder_lock(path):
            pass


def test_a_lock_that_is_let_go_while_its_holder_is_asked_for_is_taken(tmp_path, monkeypatch):
    path = tmp_path / "train.lock"
    monkeypatch.setattr(locks, "HOLDER_NAME_S", 60)
    with open(path, "a+") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        late = threading.Timer(0.1, lambda: fcntl.flock(holder, fcntl.LOCK_UN))
        late.start()
        with folder_lock(path):
            assert path.read_text().startswith(f"pid {os.getpid()} ")
        late.join()


def test_a_released_lock_does_not_name_the_run_that_is_over(tmp_path):
    path = tmp_path / "train.lock"
    with pytest.raises(KeyError), folder_lock(path):
        raise KeyError
    assert path.read_text() == ""


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    atomic_write(path, b"old")
    atomic_write(path, b"new")
    assert path.read_bytes() == b"new"

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "disk error")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk error"):
        atomic_write(path, b"newer")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["summary.json"]


def test_a_reader_of_a_pointer_sees_the_old_or_the_new_run_and_never_none(tmp_path):
    link, stop, seen = tmp_path / "latest", threading.Event(), set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "id").write_text(name)
    atomic_symlink(Path("a"), link)

    def read() -> None:
        while not stop.is_set():
            try:
                seen.add((link / "id").read_text())
            except OSError as error:
                seen.add(error)

    reader = threading.Thread(target=read)
    reader.start()
    generator, until, switches = random.Random(0), time.monotonic() + 60, 0
    while switches < 200 or (len(seen) < 2 and time.monotonic() < until):  # the reader may be late to get a core
        atomic_symlink(Path(generator.choice("ab")), link)
        switches += 1
    stop.set()
    reader.join()
    assert seen == {"a", "b"}
    assert names(tmp_path) == ["a", "b", "latest"]


def test_a_pointer_never_replaces_a_folder(tmp_path):
    (tmp_path / "latest").mkdir()
    with pytest.raises(ArtifactError, match=r"latest .*is a folder"):
        atomic_symlink(Path("a"), tmp_path / "latest")
    assert names(tmp_path) == ["latest"]


def test_gc_removes_old_checkpoints_but_none_that_is_written_to(tmp_path):
    for number, name in enumerate(("old", "busy", "new")):
        folder = tmp_path / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "checkpoint.pt").write_bytes(b"12345")
        os.utime(folder, (number, number))
    with folder_lock(tmp_path / "checkpoints" / "busy.lock"):
        removed, freed = collect_artifacts(tmp_path, keep=1)
    assert [path.name for path in removed] == ["old"]
    assert freed == 5
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()) == ["busy", "new"]


def test_checksums_of_before_are_verified_by_their_own_algorithm(tmp_path):
    """Artifacts, runs and bundles that were made with blake2b stay whole, and damage to them is seen."""
    file = tmp_path / "words.npy"
    file.write_bytes(b"0123456789" * 300_000)
    by_blake2b = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    by_xxh3 = "xxh3:" + xxhash.xxh3_128_hexdigest(file.read_bytes())
    assert (file_checksum(file, by_blake2b), file_checksum(file)) == (by_blake2b, by_xxh3)
    os.utime(file, (1, 1))
    cache = ChecksumCache(tmp_path / "checksums.json")
    cache.remember(file, file.stat(), by_blake2b)
    assert cache.checksum(file, by_blake2b) == by_blake2b
    assert cache.checksum(file) == by_xxh3
    assert cache.checksum(file, by_blake2b) == by_blake2b


def test_an_artifact_of_before_is_found_and_its_damage_seen(tmp_path):
    store = ArtifactStore(tmp_path)
    made = store.build("numbers", "a1", lambda folder: (folder / "rows.txt").write_text("1 2 3") and {"rows": 3})
    manifest = json.loads((made.path / "manifest.json").read_text())
    digest = hashlib.blake2b(b"1 2 3", digest_size=16).hexdigest()
    manifest["files"]["rows.txt"]["checksum"] = digest
    (made.path / "manifest.json").write_text(json.dumps(manifest))
    assert store.find("numbers", "a1") is not None
    (made.path / "rows.txt").write_text("1 2 4")
    assert store.find("numbers", "a1") is None
