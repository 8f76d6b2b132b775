"""Garbage collection: old artifacts, checkpoints, damaged folders and leftovers of killed writers."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from pathlib import Path

from gigabatch.pipeline.store.artifacts import artifacts_newest_first
from gigabatch.pipeline.store.files import ArtifactError
from gigabatch.pipeline.store.locks import folder_lock, remove_folder, remove_leftovers


def collect_garbage(root: Path, keep: int, protect: Sequence[Path] = ()) -> tuple[list[Path], int]:
    """Remove all but the newest `keep` artifacts of each stage, and checkpoints, damaged ones and leftovers.

    protect: folders that stay. Returns what was removed and the bytes freed.
    """
    if keep < 0:
        raise ArtifactError(f"gc: keep must be at least 0, found {keep}.")
    protected = {path.resolve() for path in protect}
    removed: dict[Path, int] = {}
    for stage in sorted(path for path in root.glob("*") if path.is_dir() and path.name != "checkpoints"):
        removed |= remove_leftovers(stage)
        for path in artifacts_newest_first(stage)[keep:]:
            if path.resolve() not in protected:
                aside = path.with_name(f".removed-{path.name}-{secrets.token_hex(4)}")
                path.rename(aside)  # at once, so that a crash leaves no half artifact under its name
                removed[path] = remove_folder(aside)
        removed |= {path: remove_folder(path) for path in [*stage.glob(".damaged-*"), *stage.glob(".removed-*")]}
    removed |= _remove_checkpoints(root / "checkpoints", keep)
    return list(removed), sum(removed.values())


def _remove_checkpoints(folder: Path, keep: int) -> dict[Path, int]:
    """Remove all but the newest `keep` checkpoints of unfinished trainings; one that is being written to stays."""
    found = sorted((p for p in folder.glob("*") if p.is_dir()), key=lambda path: -path.stat().st_mtime_ns)
    removed = {}
    for path in found[keep:]:
        with contextlib.suppress(ArtifactError), folder_lock(path.with_suffix(".lock")):
            removed[path] = remove_folder(path)
    return removed
