"""runs/<name>/nightly.jsonl: a line a night, and a line whenever `current` is moved by hand."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from gigabatch.pipeline.store.files import json_text

log = logging.getLogger(__name__)
RECORD = "nightly.jsonl"
BLOCK = 1 << 18  # bytes that are read at once
SHORT = ("at", "action", "exit_code", "decision", "run", "champion")  # of a line, where the disk is full


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def append_record(home: Path, action: str, code: int, text: str, run: str | None, **more: Any) -> str:
    """Append a line, flushed to the disk, and return its time; a disk that refuses it is logged.

    Writers wait for each other. What a line tells has been done by then, so failing here would tell something else.
    """
    moment = now()
    entry = {"at": moment, "action": action, "exit_code": code, "decision": text, "run": run, **more}
    try:
        home.mkdir(parents=True, exist_ok=True)
        with open(home / RECORD, "ab+", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # so that nobody writes between the look at the end and the line
            try:
                _append(file, entry)
            except OSError as error:  # a full disk has room for a short line more often than for a whole one
                _append(file, {key: value for key, value in entry.items() if key in SHORT} | {"cut_off": str(error)})
                log.error("%s: no room for the whole line (%s); what was measured is not in it", home / RECORD, error)
    except OSError as error:
        log.error("%s could not be written (%s): %s", home / RECORD, error, text)
    return moment


def _append(file: FileIO, entry: Mapping[str, Any]) -> None:
    """A whole line at the end of the file, on the disk, or none."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - 1, 0))
    torn = file.read(1) not in (b"", b"\n")  # by a kill; this line must not be lost with it
    left = memoryview(b"\n" * torn + json_text(entry).encode() + b"\n")
    try:
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise


def newest_records(home: Path) -> Iterator[dict[str, Any]]:
    """The lines, the newest first, read from the end as far as they are asked for: the record of years is never read
    whole. Those that are no JSON objects (of a disk that was full) are left out."""
    if not (home / RECORD).exists():
        return
    with open(home / RECORD, "rb") as file:
        place, rest = file.seek(0, os.SEEK_END), b""
        while place:
            size = min(BLOCK, place)
            place -= size
            file.seek(place)
            first, *lines = (file.read(size) + rest).split(b"\n")
            rest = first  # which may have begun in the block before
            for line in reversed(lines if place else [first, *lines]):
                try:
                    entry = json.loads(line.decode(errors="replace"))
                except (ValueError, RecursionError):
                    continue
                if isinstance(entry, dict):
                    yield entry
