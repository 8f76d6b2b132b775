"""Artifacts that a thread writes behind the caller: whole or not at all, waited for, and failures told once."""

import errno
import gc
import json
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gigabatch.pipeline.stopping import Stopped, stoppable
from gigabatch.pipeline.store.artifacts import Artifact, ArtifactStore, Writing
from gigabatch.pipeline.store.files import ArtifactError
from gigabatch.pipeline.store.garbage import collect_artifacts

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 30  # after which a thread that waits for a test gives up


@pytest.fixture
def store(tmp_path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts", "tests")


@pytest.fixture
def gate():
    """Opened at the latest when the test is over, so that no thread outlives it."""
    event = threading.Event()
    yield event
    event.set()


def begin(gate=None, error=None):
    """The first half is written by the caller, the second by the thread, once the gate is open."""

    def first(folder: Path):
        (folder / "first.txt").write_text("a" * 100)

        def rest(check):
            assert gate is None or gate.wait(SECONDS)
            check()
            (folder / "second.txt").write_text("b" * 50)
            if error is not None:
                raise error
            return {"rows": 3, "seconds": 0.5}

        return rest

    return first


def plain(folder: Path):
    return begin()(folder)(lambda: None)


def hidden(store) -> list[str]:
    return sorted(path.name for path in (store.root / "encode").glob(".*"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


def test_what_is_written_behind_is_what_build_writes(store, gate, tmp_path):
    writing = store.build_behind("encode", "a1", begin(gate))
    assert isinstance(writing, Writing)
    assert (writing.path, writing.key) == (store.root / "encode" / "a1", "a1")
    assert not writing.path.exists()
    writing.check()  # does not wait
    gate.set()
    artifact = writing.result()
    expected = ArtifactStore(tmp_path / "other").build("encode", "a1", plain)
    assert files(artifact.path) == files(expected.path)
    stored = json.loads((artifact.path / "manifest.json").read_text())
    assert stored == artifact.manifest
    assert stored | {"created_utc": ""} == expected.manifest | {"created_utc": ""}
    assert writing.result() is artifact
    assert hidden(store) == []
    again = store.build_behind("encode", "a1", lambda folder: pytest.fail("made again"))
    assert isinstance(again, Artifact)
    assert again.skipped


def test_begin_may_write_everything_itself(store):
    artifact = store.build_behind("encode", "a1", plain)
    assert isinstance(artifact, Artifact)
    assert artifact.manifest["rows"] == 3


def test_another_writer_and_gc_leave_what_is_being_written(store, gate):
    """Both remove leftovers of writers that are gone; the lease keeps the folder that is new."""
    writing = store.build_behind("encode", "a1", begin(gate))
    other = ArtifactStore(store.root, "others")
    other.build("encode", "b2", plain)
    assert collect_artifacts(store.root, keep=0) == ([], 0)
    gate.set()
    assert files(writing.result().path).keys() == {"first.txt", "second.txt"}
    assert collect_artifacts(store.root, keep=0) == ([], 0)
    assert {path.name for path in (store.root / "encode").iterdir()} == {"a1", "b2"}


def test_the_second_of_two_writers_of_a_key_takes_what_the_first_has_made(store, gate):
    late = ArtifactStore(store.root, "late").build_behind("encode", "a1", begin(gate))
    first = store.build_behind("encode", "a1", begin()).result()
    gate.set()
    assert late.result().path == first.path
    assert late.result().manifest == first.manifest
    assert hidden(store) == []


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ArtifactError, r"^encode: could not .*disk is full"),
        (PermissionError(errno.EACCES, "Permission denied"), PermissionError, "Permission denied"),
        (ArtifactError("of its own"), ArtifactError, "^of its own$"),
    ],
)
def test_a_failure_is_raised_where_it_is_asked_for_and_is_not_logged(store, gate, caplog, error, kind, message):
    with pytest.raises(kind, match=message) as plainly:  # as `build` raises it
        store.build("encode", "a1", lambda folder: begin(error=error)(folder)(lambda: None))
    writing = store.build_behind("encode", "a1", begin(gate, error))
    gate.set()
    with pytest.raises(kind, match=message) as asked:
        writing.result()
    if kind is ArtifactError:  # but for the number of free bytes
        assert str(asked.value).partition("(")[0] == str(plainly.value).partition("(")[0]
    with pytest.raises(kind, match=message):
        writing.check()
    # Within another stage that is being made it is not taken for a failure of that one.
    with pytest.raises(kind, match=message):
        store.build("train", "b2", lambda folder, writing=writing: writing.result())
    del writing, asked
    gc.collect()
    assert caplog.records == []
    assert not (store.root / "encode" / "a1").exists()
    assert hidden(store) == []
    assert store.build("encode", "a1", plain).manifest["rows"] == 3


def test_a_failure_that_nobody_asks_for_is_logged_once(store, caplog):
    writing = store.build_behind("encode", "a1", begin(error=OSError(errno.ENOSPC, "No space left on device")))
    for thread in threading.enumerate():
        if thread.name == "write encode":
            thread.join(SECONDS)
    del writing
    gc.collect()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith("encode: could not write to ")


def test_a_failure_is_logged_when_the_writing_was_let_go_of_before_it_failed(store, gate, caplog):
    """`Features.encode` whose result nobody keeps."""
    store.build_behind("encode", "a1", begin(gate, OSError(errno.ENOSPC, "No space left on device")))
    gc.collect()
    assert caplog.records == []
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "write encode":
            thread.join(SECONDS)
    (record,) = caplog.records
    assert record.getMessage().startswith("encode: could not write to ")


def test_a_signal_that_comes_before_the_thread_runs_ends_it_too(tmp_path, monkeypatch):
    held, real = [], threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: held.append(thread))
    writing = Writing(tmp_path / "a1", "a1", lambda check: check() or Artifact(tmp_path / "a1", "a1", {}))
    with pytest.raises(Stopped), stoppable():
        signal.raise_signal(signal.SIGTERM)
    (thread,) = held
    real(thread)
    with pytest.raises(ArtifactError, match="because the process was asked to stop"):
        writing.result()


def test_a_signal_ends_the_writing_too_and_leaves_nothing(store, caplog):
    def endless(folder: Path):
        (folder / "first.txt").write_text("a")

        def rest(check):
            for _ in range(SECONDS * 100):
                check()
                threading.Event().wait(0.01)
            raise TimeoutError("nobody stopped it")

        return rest

    writing = store.build_behind("encode", "a1", endless)
    assert len(hidden(store)) == 2  # the folder and its lock
    with pytest.raises(Stopped), stoppable():
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(ArtifactError, match="a1 was not finished, because the process was asked to stop"):
        writing.result()
    assert hidden(store) == []
    assert store.build("encode", "a1", plain).manifest["rows"] == 3  # by who is not asked
    del writing
    gc.collect()
    assert caplog.records == []


def test_a_process_that_ends_waits_for_what_is_being_written(tmp_path):
    code = f"""
import time
from gigabatch.pipeline.store.artifacts import ArtifactStore

def begin(folder):
    def rest(check):
        time.sleep(0.5)
        (folder / "rows.txt").write_text("1 2 3")
        return {{"rows": 3}}
    return rest

def fails(folder):
    def rest(check):
        raise OSError(28, "No space left on device")
    return rest

ArtifactStore({str(tmp_path)!r}).build_behind("encode", "a1", begin)
kept = ArtifactStore({str(tmp_path)!r}).build_behind("encode", "b2", fails)
print("the end")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "the end\n"
    assert (tmp_path / "encode" / "a1" / "rows.txt").read_text() == "1 2 3"
    assert done.stderr.count("the disk is full") == 1  # nobody asked for it
    assert "Traceback" not in done.stderr
    assert ArtifactStore(tmp_path).build("encode", "a1", lambda folder: pytest.fail("made again")).skipped
