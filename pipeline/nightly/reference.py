"""The reference: what was promoted some nights ago, so that small losses of many nights cannot add up.

Each line of nightly.jsonl names the run that was current after it, its `champion`. The reference of tonight is the one
of so many nights ago, or the oldest that is known where there were fewer; nights that learned nothing do not count. The
run that a person has promoted last is the oldest: what it loses against those before it was accepted.
`runs/<name>/.champions/` has links to runs that are or will be a reference, which keep them from `gigabatch gc`: of one
in five nights where the reference is 30 nights old, as a run may be large. So the reference is at most that old, and at
most a sixth younger, where `nightly.keep.runs` has removed the runs between.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from gigabatch.pipeline.nightly.codes import DECIDED, PROMOTED
from gigabatch.pipeline.runs.pointers import read_pointers
from gigabatch.pipeline.runs.record import RECORD, newest_records
from gigabatch.pipeline.store.files import atomic_symlink

log = logging.getLogger(__name__)
CHAMPIONS = ".champions"
ANCHORS = 6  # of the nights up to the oldest reference
LONGEST_NAME = 255  # bytes of a file's name, of Linux


def learned(home: Path, rolled_back: Collection[str] | None = None) -> Iterator[dict[str, Any]]:
    """Lines of the nights that trained a new model and decided about it, the newest first: no night with nothing new,
    and none whose model was the current one already; of nights in a row that came to the same run, as where it is kept
    out and no new file comes, the last one. rolled_back: if given, the last line of a person who promoted a run that
    is none of these comes, too, as one that names its champion, and none before it."""
    later = None  # the run of the line that came last
    for entry in newest_records(home):
        run, action = entry.get("run"), entry.get("action")
        if rolled_back is not None and action == "promote" and _is_name(run) and run not in rolled_back:
            yield entry | {"champion": run}
            return
        if action != "nightly" or entry.get("exit_code") not in DECIDED or not run:
            continue
        if entry["exit_code"] == PROMOTED or run != entry.get("champion"):
            if run != later:
                yield entry
            later = run


def champions(home: Path, nights: int) -> list[str]:
    """Runs that were current after the last `nights` nights that learned, a name a night, the oldest first, and before
    them the one that a person has promoted since."""
    nights_of = learned(home, read_pointers(home).blocked)
    named = (entry["champion"] for entry in nights_of if _is_name(entry.get("champion")))
    return list(islice(named, nights))[::-1]


def _is_name(value: Any) -> bool:
    """Whether it may name a folder: a line may be torn, or edited."""
    if not isinstance(value, str) or value in ("", ".", "..") or os.sep in value:
        return False
    return len(value.encode(errors="replace")) <= LONGEST_NAME


def reference_of(home: Path, nights: int | None) -> Path | None:
    """The run to compare with, beside the current one; None where there is none, or it is the current one.

    A run that was rolled back, or is not there any more, is passed over for the next younger one.
    """
    if nights is None:
        return None
    pointers = read_pointers(home)
    named = champions(home, nights)
    if not named and (home / CHAMPIONS).is_dir() and any((home / CHAMPIONS).iterdir()):
        log.warning("%s: no line tells of the nights that %s was kept for: no reference", home / RECORD, CHAMPIONS)
    for name in named:
        run = home / name
        if name in pointers.blocked or not run.is_dir():
            continue
        run = Path(os.path.realpath(run))
        return None if run == pointers.current else run
    return None


def keep_champions(home: Path, nights: int | None) -> None:
    """Link runs that are or will be a reference, and those alone."""
    folder = home / CHAMPIONS
    wanted: set[str] = set()
    newest = None  # night of the newest one that is kept
    spacing = max((nights or 0) // ANCHORS, 1)
    for night, name in enumerate(champions(home, nights) if nights is not None else ()):
        if not (home / name).is_dir():
            continue
        linked = (folder / name).is_symlink()
        if linked or name in wanted or newest is None or night - newest >= spacing:
            newest = night
            wanted.add(name)
        if name in wanted and not linked:
            folder.mkdir(exist_ok=True)
            atomic_symlink(Path("..") / name, folder / name)
    for link in folder.iterdir() if folder.is_dir() else ():
        if link.name not in wanted:
            link.unlink(missing_ok=True)
