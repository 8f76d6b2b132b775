"""nightly.jsonl: what is written after damage, and what damage does to those that read it."""

import io
import json
import resource
import signal
import threading
from contextlib import contextmanager
from itertools import islice

import pytest

from gigabatch.pipeline.config.config import load_config
from gigabatch.pipeline.runs import record
from gigabatch.pipeline.runs.listing import list_runs
from gigabatch.pipeline.runs.record import append_record, newest_records


def test_a_line_after_one_that_was_cut_is_not_lost(tmp_path):
    append_record(tmp_path, "train", 0, "first", "a")
    with open(tmp_path / "nightly.jsonl", "a") as file:
        file.write('{"at": "2026-11')  # the disk was full
    append_record(tmp_path, "rollback", 0, "second", "a")
    append_record(tmp_path, "promote", 0, "third", "b")
    assert [line["decision"] for line in newest_records(tmp_path)] == ["third", "second", "first"]


def test_a_line_of_the_record_that_names_no_run_by_text_lists_runs_all_the_same(finished):
    with open(finished.home / "nightly.jsonl", "a") as file:
        file.write('{"run": ["a"], "exit_code": 10}\n')
    assert len(list_runs(load_config(finished.config))) == 1


def test_two_writers_at_once_leave_a_line_each_and_nothing_between(tmp_path, monkeypatch):
    """Both saw the cut line of a full disk, and each began a new one."""
    (tmp_path / "nightly.jsonl").write_text('{"at": "2026-11')
    looked, other_is_done = threading.Event(), threading.Event()

    def slowly(entry):
        if entry["decision"] == "first":  # has looked at the end of the file and not yet written
            looked.set()
            other_is_done.wait(0.5)
        return json.dumps(entry)

    monkeypatch.setattr(record, "json_text", slowly)
    first = threading.Thread(target=append_record, args=(tmp_path, "nightly", 0, "first", "a"))
    first.start()
    assert looked.wait(10)
    append_record(tmp_path, "nightly", 40, "second", None)
    other_is_done.set()
    first.join()
    lines = (tmp_path / "nightly.jsonl").read_text().splitlines()
    assert [json.loads(line)["decision"] for line in lines[1:]] == ["first", "second"]


@contextmanager
def room_for(size: int):
    """Files of this process grow to so many bytes and no further, as on a disk that is full."""
    before, signals = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, signals)


def test_a_line_that_a_full_disk_takes_in_part_is_short_or_not_there(tmp_path, caplog):
    append_record(tmp_path, "nightly", 0, "first", "a", champion="a")
    whole = (tmp_path / "nightly.jsonl").read_bytes()
    with room_for(len(whole) + 300):
        append_record(tmp_path, "nightly", 10, "second", "b", champion="a", data="x" * 5000)
    assert "no room for the whole line" in caplog.text
    second = next(newest_records(tmp_path))
    known = ("action", "exit_code", "decision", "run", "champion")
    assert [second[key] for key in known] == ["nightly", 10, "second", "b", "a"]
    assert "File too large" in second["cut_off"]
    assert "data" not in second
    whole = (tmp_path / "nightly.jsonl").read_bytes()
    with room_for(len(whole) + 20):
        append_record(tmp_path, "nightly", 40, "third", None)
    assert "could not be written" in caplog.text
    assert "third" in caplog.text
    assert (tmp_path / "nightly.jsonl").read_bytes() == whole


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 18])
def test_lines_are_read_from_the_end_whatever_the_block_and_the_damage(tmp_path, monkeypatch, block):
    monkeypatch.setattr(record, "BLOCK", block)
    lines = [
        b'{"n": 0, "text": "' + "äöü€".encode() * 9 + b'"}',
        b"[1]",
        b"{torn",
        b"",
        b'{"n": 4}\r',
        b"\xff",
        b'{"n": 6}',
    ]
    for end in (b"\n", b""):
        (tmp_path / "nightly.jsonl").write_bytes(b"\n".join(lines) + end)
        assert [entry["n"] for entry in newest_records(tmp_path)] == [6, 4, 0]
    (tmp_path / "nightly.jsonl").write_bytes(b"")
    assert list(newest_records(tmp_path)) == []
    assert list(newest_records(tmp_path / "nowhere")) == []


def test_the_tail_of_a_long_record_is_read_alone(tmp_path, monkeypatch):
    """Of 100,000 lines every night read all of them, several times."""
    (tmp_path / "nightly.jsonl").write_text("".join(f'{{"n": {n}, "pad": "{"x" * 200}"}}\n' for n in range(100_000)))
    read = []

    class Counting(io.FileIO):
        def read(self, size=-1):
            read.append(size)
            return super().read(size)

    monkeypatch.setattr(record, "open", lambda path, mode: Counting(path), raising=False)
    assert [entry["n"] for entry in islice(newest_records(tmp_path), 400)] == list(range(99_999, 99_599, -1))
    assert 0 < sum(read) <= 1 << 18
