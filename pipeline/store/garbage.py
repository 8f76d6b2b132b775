"""Garbage collection: old artifacts, runs and checkpoints, damaged folders and leftovers of killed writers.

Nothing that a living process has built or found is removed (`leases`), nor what a run's links name, nor a checkpoint
that is being written to. Folders are renamed while leases are held still, and removed afterwards.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from gigabatch.pipeline.store.artifacts import MANIFEST, artifacts_newest_first
from gigabatch.pipeline.store.files import WRITTEN, ArtifactError, require_there
from gigabatch.pipeline.store.leases import USED, leases_held_still
from gigabatch.pipeline.store.locks import folder_lock, folder_size, remove_folder, remove_leftovers
from gigabatch.pipeline.store.parsed_files import STAGE as PARSED
from gigabatch.pipeline.store.parsed_files import parsed_in_use
from gigabatch.pipeline.store.row_history import STAGE as HISTORY

CHECKPOINTS = "checkpoints"
STATISTICS = "accepted"  # the stage of those of accepted rows, which `contract/decide.py` keeps
LINKS = ("current", "previous", "latest")  # of `runs/pointers.py`, a room that builds on this one
LEFT_SECONDS = 3600  # how old a file on its way to its name is that nobody writes any more
LINKED = ("*/*", "*/.champions/*")  # where links to runs lie; the second are of `nightly/reference.py`


def collect_artifacts(root: Path, keep: int, name: str | None = None) -> tuple[list[Path], int]:
    """Remove artifacts, checkpoints, damaged ones and leftovers; returns what was removed and the bytes freed.

    Of each stage the `keep` stay that each configuration, by its name, has used last, and of those that none has used
    (they are of an earlier version) the `keep` newest; and the parsed files that kept features were made from. Of
    statistics these are counted by kind of file, and are two at least.
    name: the configuration whose artifacts alone may go; those that others have used, or none, stay.
    """
    require_there(root)
    if not root.is_dir():
        _require_number(keep)
        return [], 0
    stages = _folders(root)
    with leases_held_still(root) as leased:
        old, kept = _old_artifacts(root, stages, keep, name, leased)
        moved = {path: _aside(path) for path in old}
    removed = _remove(root, stages, moved) | _remove_checkpoints(root / CHECKPOINTS, kept)
    for mark in root.glob(f"{USED}/*/*/*"):
        if not (root / mark.parent.name / mark.name).exists():
            mark.unlink(missing_ok=True)
    return list(removed), sum(removed.values())


def old_artifacts(root: Path, keep: int, name: str, coming: Collection[str] = ()) -> tuple[list[Path], int]:
    """What `collect_artifacts` would remove of finished artifacts, and its bytes, once each stage of `coming` (of
    statistics `accepted/<kind>`) has made one more."""
    if not root.is_dir():
        return [], 0
    with leases_held_still(root) as leased:
        found = _old_artifacts(root, _folders(root), keep, name, leased, coming)[0]
    return found, sum(map(folder_size, found))


def _old_artifacts(
    root: Path,
    stages: Iterable[Path],
    keep: int,
    name: str | None,
    leased: set[str],
    coming: Collection[str] = (),
) -> tuple[list[Path], set[str]]:
    """The finished artifacts that may go, and `<stage>/<key>` of what may not."""
    kept = leased | _last_used(root, stages, keep, name, coming)
    features = [root / folder for folder in kept if folder.startswith("features/")]
    kept |= {f"{PARSED}/{path.name}" for path in parsed_in_use(root, features)}
    found = [path for stage in stages if stage.name != CHECKPOINTS for path in artifacts_newest_first(stage)]
    return [path for path in found if f"{path.parent.name}/{path.name}" not in kept], kept


def collect_runs(
    root: Path, keep: int, name: str | None = None, younger_than_s: float | None = None
) -> tuple[list[Path], int]:
    """Remove all but the newest `keep` runs of each name, those that links such as `current` lead to (or that a copy
    has in their place), and leftovers.

    name: the one whose runs alone may go; younger_than_s: runs of less than so many seconds ago stay, too.
    """
    _require_number(keep)
    if not root.is_dir():
        return [], 0
    homes = [home for home in _folders(root) if name is None or home.name == name]
    with leases_held_still(root) as leased:
        moved = {path: _aside(path) for path in _old_runs(root, homes, keep, younger_than_s, leased)}
    removed = _remove(root, homes, moved)
    return list(removed), sum(removed.values())


def old_runs(
    root: Path, keep: int, name: str, younger_than_s: float | None = None, moving: Collection[str] = ()
) -> tuple[list[Path], int]:
    """What `collect_runs` would remove of a name's runs, and its bytes; moving: links that will lead elsewhere then."""
    if not (root / name).is_dir():
        return [], 0
    with leases_held_still(root) as leased:
        found = _old_runs(root, [root / name], keep, younger_than_s, leased, moving)
    return found, sum(map(folder_size, found))


def _old_runs(
    root: Path,
    homes: Iterable[Path],
    keep: int,
    younger_than_s: float | None,
    leased: set[str],
    moving: Collection[str] = (),
) -> list[Path]:
    before = None if younger_than_s is None else time.time() - younger_than_s
    links = [link for pattern in LINKED for link in root.glob(pattern) if link.is_symlink() and not _is_left(link)]
    linked = {link.resolve() for link in links if link.name not in moving}
    return [
        path
        for home in homes
        for path in artifacts_newest_first(home)[keep:]
        if f"{home.name}/{path.name}" not in leased
        and path.resolve() not in linked
        and path.name not in LINKS
        and (before is None or path.stat().st_mtime < before)
    ]


def _require_number(keep: int) -> None:
    if keep < 0:
        raise ArtifactError(f"gc: keep must be at least 0, found {keep}.")


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _last_used(
    root: Path, stages: Iterable[Path], keep: int, name: str | None = None, coming: Collection[str] = ()
) -> set[str]:
    """Folders `<stage>/<key>` that `keep` of each stage and configuration leave; name: as of `collect_artifacts`.
    coming: stages of which one less stays."""
    _require_number(keep)
    kept: set[str] = set()
    for stage in stages:
        for of, there in _counted_together(stage).items():
            least = keep
            if stage.name == HISTORY:  # each holds all that the ones before it do
                least = min(keep, 1)
            elif stage.name == STATISTICS:  # a night that did not end is compared again with those before its own
                least = max(keep, 2)
            used: set[str] = set()
            for uses in root.glob(f"{USED}/*/{stage.name}"):
                marks = {path.name: path.stat().st_mtime_ns for path in uses.iterdir() if path.name in there}
                used |= marks.keys()
                number = least - (of in coming) if name in (None, uses.parent.name) else None
                kept |= {f"{stage.name}/{key}" for key in sorted(marks, key=lambda key: (-marks[key], key))[:number]}
            number = least if name is None else None
            kept |= {f"{stage.name}/{key}" for key in [key for key in there if key not in used][:number]}
    return kept


def _counted_together(stage: Path) -> dict[str, list[str]]:
    """Names of a stage's folders, the newest first; of statistics by kind of file, which nights use one at a time."""
    found: dict[str, list[str]] = {}
    for path in _checkpoints(stage) if stage.name == CHECKPOINTS else artifacts_newest_first(stage):
        of = f"{stage.name}/{_kind(path)}" if stage.name == STATISTICS else stage.name
        found.setdefault(of, []).append(path.name)
    return found


def _kind(statistics: Path) -> str | None:
    try:
        return str(json.loads((statistics / MANIFEST).read_text())["kind"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # damaged
        return None


def _checkpoints(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("*") if path.is_dir()), key=lambda path: -path.stat().st_mtime_ns)


def _aside(path: Path) -> Path:
    """Another name, at once, so that a crash leaves no half folder under its own."""
    return path.rename(path.with_name(f".removed-{path.name}-{secrets.token_hex(4)}"))


def _is_left(path: Path) -> bool:
    """Whether a killed process was to give this file or link its name."""
    if not WRITTEN.fullmatch(path.name) or (path.is_dir() and not path.is_symlink()):
        return False
    with contextlib.suppress(FileNotFoundError):  # it has its name
        return time.time() - path.lstat().st_mtime > LEFT_SECONDS
    return False


def _remove(root: Path, homes: Collection[Path], moved: dict[Path, Path]) -> dict[Path, int]:
    """Remove what was moved aside, and in its homes leftovers and damaged folders; the bytes of each."""
    removed = {path: remove_folder(aside) for path, aside in moved.items()}
    for left in [path for folder in (root, *homes) for path in folder.iterdir() if _is_left(path)]:
        with contextlib.suppress(FileNotFoundError):
            size = left.lstat().st_size
            left.unlink()
            removed[left] = size
    for home in homes:
        removed |= remove_leftovers(home)
        for path in (*home.glob(".damaged-*"), *home.glob(".removed-*")):
            with contextlib.suppress(FileNotFoundError):  # another gc was faster
                removed[path] = remove_folder(path)
    return removed


def _remove_checkpoints(folder: Path, kept: set[str]) -> dict[Path, int]:
    """Remove those of unfinished trainings that are not kept; one that is being written to stays."""
    removed = {}
    for path in _checkpoints(folder):
        if f"{CHECKPOINTS}/{path.name}" not in kept:
            with contextlib.suppress(ArtifactError), folder_lock(path.with_suffix(".lock")):
                removed[path] = remove_folder(path)
    return removed
