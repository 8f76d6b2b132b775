"""`current`, `previous` and `latest`: the runs of one name that are promoted, were before, and were trained last.

    runs/<name>/current  -> promoted/current         the run that answers
    runs/<name>/previous -> promoted/previous        the one before it, which a rollback brings back
    runs/<name>/promoted -> .promoted-<random>       current, previous (links) and blocked.json; moved by one rename
    runs/<name>/latest   -> <id>

So both links and the blocks of runs that were taken back change at once, or not at all. Links that someone has set by
hand (`ln -sfn <id> current`) are understood, and taken in by the next promotion. Whoever moves them holds a lock.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gigabatch.pipeline.store.files import WRITTEN, atomic_symlink, fsync_folder, refusals_named, write_json
from gigabatch.pipeline.store.leases import waiting_lock

CURRENT, PREVIOUS, LATEST = "current", "previous", "latest"
PROMOTED, BLOCKED = "promoted", "blocked.json"


class RunError(ValueError):
    """There is no such run, it is damaged, or it may not be promoted; the message says what to do."""


@dataclass(frozen=True)
class Pointers:
    """What the links of one name say. Folders are None where there is no link, and need not be there.

    blocked: runs that were taken back by their folder's name: `at`, and `weights`, the checksum of their weights.
    """

    current: Path | None = None
    previous: Path | None = None
    latest: Path | None = None
    blocked: dict[str, dict[str, Any]] = field(default_factory=dict)

    def states_of(self, run: Path) -> list[str]:
        """Of current, previous, latest and blocked, those that this run is."""
        linked = {CURRENT: self.current, PREVIOUS: self.previous, LATEST: self.latest}
        found = [name for name, target in linked.items() if target == Path(os.path.realpath(run))]
        return found + (["blocked"] if run.name in self.blocked else [])


def read_pointers(home: Path) -> Pointers:
    """Of `runs/<name>`; `RunError` where blocks are there that cannot be read, which no one may take for none."""
    path = home / PROMOTED / BLOCKED
    if os.path.lexists(home / PROMOTED) and not (home / PROMOTED).is_dir():
        raise RunError(
            f"{home / PROMOTED} leads to {os.path.realpath(home / PROMOTED)}, which is not there (a copy without "
            "hidden folders?). It says which run is promoted and which were rolled back. Put it back, or remove the "
            "link and promote a run: gigabatch promote ID."
        )
    try:
        blocked = json.loads(path.read_text()) if path.exists() else {}
        if not isinstance(blocked, dict) or not all(isinstance(entry, dict) for entry in blocked.values()):
            raise ValueError("not an object of objects")
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}). Mend what the system says and run again.") from error
    except (ValueError, RecursionError) as error:
        raise RunError(
            f"{path}: damaged ({error}). It names the runs that were rolled back. Remove it to lift all their blocks."
        ) from error
    return Pointers(_target(home, CURRENT), _target(home, PREVIOUS), _target(home, LATEST), blocked)


def _target(home: Path, name: str) -> Path | None:
    link = home / name
    if not os.path.lexists(link):
        return None
    inside = home / PROMOTED / name
    if (
        name == PREVIOUS
        and not os.path.lexists(inside)
        and link.is_symlink()
        and link.readlink() == Path(PROMOTED, name)
    ):
        return None  # of a promotion that was killed before it counted; `current` is linked after that
    return Path(os.path.realpath(link))


def require_current(home: Path) -> Path:
    """The promoted run's folder; `RunError` where none is promoted, or the link leads nowhere."""
    found = current_run(home)
    if found is None:
        raise RunError(
            f"{home / CURRENT} is not there: no run is promoted. Train (gigabatch train promotes a first run), promote "
            "one by hand (gigabatch runs lists them, gigabatch promote ID), or take another with --run latest."
        )
    return found


def current_run(home: Path) -> Path | None:
    """The promoted run's folder, None where none is; `RunError` where the link leads nowhere."""
    found = read_pointers(home).current
    if found is not None and not found.is_dir():
        raise RunError(
            f"{home / CURRENT} leads to {found}, which is not there. Put the run back, or promote another: gigabatch "
            "runs lists them, gigabatch promote ID."
        )
    return found


def require_links(home: Path, names: Iterable[str] = (CURRENT, PREVIOUS, LATEST, PROMOTED)) -> None:
    """Raise `RunError` where a folder stands in place of a link, so that the link could not be moved."""
    folders = [str(home / name) for name in names if (home / name).is_dir() and not (home / name).is_symlink()]
    if folders:
        raise RunError(
            f"{', '.join(folders)}: a folder in place of a link (a copy that followed links?), so nothing can be "
            f"promoted. Copy the runs again with their links (cp -a). Or move it away, which lifts all blocks if it is "
            f"{PROMOTED}, and promote a run: gigabatch runs lists them, gigabatch promote ID."
        )


def locked(home: Path) -> AbstractContextManager[None]:
    """Hold the lock under which pointers move, for a `with` block; `RunError` where no run of that name was made."""
    if not home.is_dir():
        raise RunError(f"{home} is not there: no run of that name was made. Train first (gigabatch train).")
    return waiting_lock(home / ".promoted.lock")


def write_pointers(home: Path, current: Path, previous: Path | None, blocked: dict[str, dict[str, Any]]) -> None:
    """Move `current`, `previous` and the blocks at once. The caller holds `locked`.

    A run is never the one before itself, which a rollback would block while it answers.
    """
    require_links(home, (CURRENT, PREVIOUS, PROMOTED))
    before = read_pointers(home)
    previous = None if previous == current else previous
    for name, target in ((CURRENT, before.current), (PREVIOUS, before.previous)):
        link = home / name
        if target is not None and not (link.is_symlink() and link.readlink() == Path(PROMOTED, name)):
            # Set by hand or by an earlier version. First it leads where it leads by way of `promoted`.
            _write_generation(home, before.current, before.previous, before.blocked)
            atomic_symlink(Path(PROMOTED, name), link)
    if previous is not None and not os.path.lexists(home / PREVIOUS):
        atomic_symlink(Path(PROMOTED, PREVIOUS), home / PREVIOUS)
    _write_generation(home, current, previous, blocked)
    if not os.path.lexists(home / CURRENT):
        atomic_symlink(Path(PROMOTED, CURRENT), home / CURRENT)


def _write_generation(
    home: Path, current: Path | None, previous: Path | None, blocked: dict[str, dict[str, Any]]
) -> None:
    generation = home / f".promoted-{secrets.token_hex(4)}"
    with refusals_named(home):
        generation.mkdir()
    for name, target in ((CURRENT, current), (PREVIOUS, previous)):
        if target is not None:
            inside = target.parent == Path(os.path.realpath(home))
            (generation / name).symlink_to(Path("..", target.name) if inside else target)
    write_json(generation / BLOCKED, blocked)
    fsync_folder(generation)
    # The one before this stays, for a reader may be following it. First the others go: what fails there moves nothing.
    kept = (generation.name, os.path.basename(os.path.realpath(home / PROMOTED)))
    for path in home.glob(".promoted-*"):
        if WRITTEN.fullmatch(path.name):  # a link whose writer was killed before it had renamed it
            path.unlink()
        elif path.name not in kept:
            shutil.rmtree(path)
    atomic_symlink(Path(generation.name), home / PROMOTED)
