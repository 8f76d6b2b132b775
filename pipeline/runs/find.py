"""The run that a command is to use: the promoted one, or the one that `--run` names; whole, and told."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.runs.pointers import CURRENT, LATEST, PREVIOUS, RunError, read_pointers, require_current
from gigabatch.pipeline.runs.verify import verify_run
from gigabatch.pipeline.store.artifacts import artifacts_newest_first
from gigabatch.pipeline.store.leases import Lease

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoundRun:
    """A run that was found, whole, and is safe from `gigabatch gc` as long as this object lives.

    path: its folder, links resolved. states: of current, previous, latest and blocked, those that it is.
    """

    path: Path
    states: tuple[str, ...]
    lease: Lease

    @property
    def id(self) -> str:
        return self.path.name

    def __str__(self) -> str:
        """`run <id> (current, latest)`, as commands print it."""
        return f"run {self.id} ({', '.join(self.states) or 'not promoted'})"


def home_of(config: RunConfig) -> Path:
    """The folder of this configuration's runs."""
    return config.runs / config.name


def run_link(config: RunConfig, run: str | Path | None = None) -> Path:
    """Where a run is looked for: a link such as `current`, or a folder. Neither followed nor looked at.

    run: current (and None), previous, latest; an id, as `gigabatch runs` lists them; else a folder.
    """
    home = home_of(config)
    if run is None:
        return home / CURRENT
    text = str(run)
    if not text:
        raise RunError(f"a run's id is needed, as gigabatch runs lists those of {home}.")
    if text in (CURRENT, PREVIOUS, LATEST) or (os.sep not in text and os.path.lexists(home / text)):
        return home / text
    return Path(run)


def find_run(config: RunConfig, run: str | Path | None = None) -> FoundRun:
    """The run to use, verified against its manifest; the log says which it is. run: see `run_link`.

    Raises
    ------
    RunError
        Where there is none, its link leads nowhere, or a file is not what the manifest says.
    """
    path, home = require_run(config, run), home_of(config)
    lease = lease_of(config, path)
    verify_run(path)
    found = FoundRun(path, tuple(read_pointers(home).states_of(path)), lease)
    log.info("%s of %s: %s", found, config.name, path)
    if "blocked" in found.states:
        log.warning("%s was rolled back; gigabatch promote %s would make it current again", found, found.id)
    return found


def lease_of(config: RunConfig, path: Path) -> Lease:
    """Keeps a run from `gigabatch gc`, where it is one of the configuration's folder of runs, as long as it lives."""
    lease = Lease(config.runs)
    if path.parent.parent == Path(os.path.realpath(config.runs)):
        lease.add(f"{path.parent.name}/{path.name}")
    return lease


def require_run(config: RunConfig, run: str | Path | None = None) -> Path:
    """The folder of a run, links resolved, not verified; `RunError` where there is none. run: see `run_link`."""
    home, link = home_of(config), run_link(config, run)
    if link == home / CURRENT:
        require_current(home)
    path = Path(os.path.realpath(link))
    if link.is_symlink() and not path.exists():
        raise RunError(
            f"run {link}: it leads to {path}, which is not there. Put the run back, or take another: gigabatch runs "
            "lists them."
        )
    if not any((path / name).exists() for name in ("manifest.json", "model")):
        known = ", ".join(found.name for found in artifacts_newest_first(home)) if home.is_dir() else ""
        raise RunError(
            f"run {link}: no model there. Train first (gigabatch train), or take another: {CURRENT}, "
            f"{PREVIOUS}, {LATEST}, a folder, or an id of {home}: {known or 'there is none'}."
        )
    return path
