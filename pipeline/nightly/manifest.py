"""Which raw files a night read: a list beside the record, by its checksum, which lines share and name.

`runs/<name>/manifests/<checksum>.json` holds the checksum of each file; a line of nightly.jsonl has its name, how many
files there are, and which are new or gone since the list that the line before names. So a line stays short with
thousands of files, and the list of a night whose own is removed follows from a later one by the lines between.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from gigabatch.pipeline.nightly.codes import DECIDED
from gigabatch.pipeline.runs.record import newest_records
from gigabatch.pipeline.store.files import json_text, write_json
from gigabatch.pipeline.store.keys import text_checksum

FOLDER = "manifests"
LISTS_KEPT = 30
LOOKED_AT = 1000  # lines, for the one before


def write_manifest(home: Path, files: Mapping[str, str]) -> dict[str, Any]:
    """Keep the list of these files and say what the line tells of it.

    Parameters
    ----------
    home
        `runs/<name>`.
    files
        Checksums by place and name (`0:day-001.csv`), of `input_checksums`.

    Returns
    -------
    dict
        `files`: their number; `manifest`: the list's name; `before`: that of the last night that promoted or kept,
        None where there is none or its list is gone; with one also `new` and `gone`, checksums by place and name.

    Raises
    ------
    OSError
        Where the folder refuses it.
    """
    name = text_checksum(json_text(dict(files)))
    found: dict[str, Any] = {"files": len(files), "manifest": name, "before": None}
    before, listed = _before(home)
    if listed is not None:
        found |= {"before": before, "new": _beyond(files, listed), "gone": _beyond(listed, files)}
    path = home / FOLDER / f"{name}.json"
    if path.exists():
        os.utime(path)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, dict(files))
    return found


def _beyond(files: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Files that are not among the others by name and checksum, whatever their place in the list."""
    left, found = Counter((_name(place), checksum) for place, checksum in others.items()), {}
    for place, checksum in files.items():
        if left[_name(place), checksum]:
            left[_name(place), checksum] -= 1
        else:
            found[place] = checksum
    return found


def _name(place: str) -> str:
    return place.partition(":")[2]


def _before(home: Path) -> tuple[str | None, dict[str, str] | None]:
    """Name and content of the list that the newest line of a decided night names; a line of before holds it itself."""
    for entry in islice(newest_records(home), LOOKED_AT):
        data = entry.get("data")
        if not isinstance(data, dict) or entry.get("exit_code") not in DECIDED:  # whose files the next is told again
            continue
        if isinstance(listed := data.get("checksums"), dict):
            return None, listed
        if isinstance(name := data.get("manifest"), str):
            return name, read_manifest(home, name)
    return None, None


def read_manifest(home: Path, name: str) -> dict[str, str] | None:
    """The checksums of a list by place and name of the files; None where it is not there any more, or damaged."""
    try:
        found = json.loads((home / FOLDER / f"{name}.json").read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and text_checksum(json_text(found)) == name else None


def keep_newest(home: Path) -> None:
    """Remove all lists but those that were named last."""
    paths = sorted((home / FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in paths[:-LISTS_KEPT]:
        path.unlink(missing_ok=True)
