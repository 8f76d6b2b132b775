"""runs/<name>/nightly.jsonl: a line a night, and a line whenever `current` is moved by hand."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gigabatch.pipeline.store.files import json_text

log = logging.getLogger(__name__)
RECORD = "nightly.jsonl"


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
        with open(home / RECORD, "ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # so that nobody writes between the look at the end and the line
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - 1, 0))
            torn = file.read(1) not in (b"", b"\n")  # by a full disk or a kill; this line must not be lost with it
            file.write(b"\n" * torn + json_text(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        log.error("%s could not be written (%s): %s", home / RECORD, error, text)
    return moment


def read_records(home: Path) -> list[dict[str, Any]]:
    """All lines, the oldest first; those that are no JSON objects (of a disk that was full) are left out."""
    try:
        lines = (home / RECORD).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found
