"""Which raw files were accepted and which lie in quarantine: `runs/<name>/files.json`, written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gigabatch.features.errors import raise_of_machine
from gigabatch.features.reading.sources import expand, same_file
from gigabatch.features.recipes.base import Recipe
from gigabatch.pipeline.contract.terms import ContractError
from gigabatch.pipeline.runs.pointers import CURRENT
from gigabatch.pipeline.store.artifacts import artifacts_newest_first
from gigabatch.pipeline.store.files import ArtifactError, write_json
from gigabatch.pipeline.store.keys import input_checksums, text_checksum

log = logging.getLogger(__name__)
FORMAT = 1
FILES = "files.json"
NO_CHECKSUM = "unreadable"
ACCEPTED, QUARANTINED = "accepted", "quarantined"


@dataclass(frozen=True)
class FileEntry:
    """What was decided about a file.

    Parameters
    ----------
    kind
        Of file, as `RawFiles.name`.
    state
        `accepted` or `quarantined`.
    checksum
        Of its content; of a URL what its server says.
    decided_utc, by
        When, and by what: `check`, `history` (the contract was learned from it) or `person`.
    fingerprint
        Of its rows in any order, 16 hex digits; None where it could not be read.
    rows
        How many count.
    first, last
        Its earliest and latest time, in what times count.
    reasons, warnings
        Sentences.
    dropped
        Places of rows that are left out.
    gone
        Whether it was told that the file is not there any more.
    before
        Of one in quarantine that was accepted with another content: the last such `fingerprint`, `rows`, `first` and
        `last`, which models may have learned.
    """

    kind: str
    state: str
    checksum: str
    decided_utc: str
    by: str = "check"
    fingerprint: str | None = None
    rows: int | None = None
    first: float | None = None
    last: float | None = None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    dropped: tuple[int, ...] = ()
    gone: bool = False
    before: dict[str, Any] | None = None

    @property
    def last_accepted(self) -> FileEntry | None:
        """What was accepted under this name last, in the times and rows that it had; None where nothing was."""
        if self.state == ACCEPTED:
            return self
        return None if self.before is None else replace(self, state=ACCEPTED, before=None, **self.before)

    @property
    def facts(self) -> dict[str, Any]:
        """For `before`."""
        return {name: getattr(self, name) for name in ("fingerprint", "rows", "first", "last")}


@dataclass(frozen=True)
class FilesState:
    """The record.

    Parameters
    ----------
    files
        By path, as `same_file` gives it.
    pending
        Of a night that has not ended yet: `before`, where the record was another before it decided, by path the
        entries of then, null where there was none; what persons have `accepted` since the night before, and the entry
        that each had `earlier`, null where it had none; and what of that, and of `cold`, has come `since` it was told.
        None where there is nothing of these.
    cold
        By sentence, what asked for models that learn all rows anew, and the runs that were there when it came, but for
        those that were trained on it: no night goes on from one of them.
    """

    files: dict[str, FileEntry] = field(default_factory=dict)
    pending: dict[str, Any] | None = None
    cold: dict[str, list[str]] = field(default_factory=dict)

    def of_kind(self, kind: str) -> dict[str, FileEntry]:
        """The accepted files of one kind."""
        return {path: entry for path, entry in self.files.items() if (entry.kind, entry.state) == (kind, ACCEPTED)}

    def ended(self) -> FilesState:
        """The record as it was before a night that has not ended, with what persons have decided since."""
        before = (self.pending or {}).get("before", {})
        kept = {name: entry for name, entry in self.files.items() if name not in before}
        return replace(self, files=kept | {name: _entry(raw) for name, raw in before.items() if raw is not None})

    @property
    def taken(self) -> dict[str, FileEntry | None]:
        """What persons have accepted that no night which ended was told of, with what was decided about it before."""
        pending = self.pending or {}
        earlier = {name: pending.get("earlier", {}).get(name) for name in pending.get("accepted", ())}
        return {name: None if raw is None else _entry(raw) for name, raw in earlier.items()}

    def where_not(self, after: FilesState) -> dict[str, dict[str, Any] | None]:
        """For `before` of `after`."""
        names = [name for name in {**self.files, **after.files} if self.files.get(name) != after.files.get(name)]
        return {name: asdict(self.files[name]) if name in self.files else None for name in names}

    def known(self, checksums: Mapping[str, str]) -> dict[str, tuple[str, FileEntry]]:
        """Of the files that are there the ones decided about, with the name in the record.

        checksums: by path, of all files that are there. A file that lies elsewhere or has another name now is known by
        its content, if that is not where it was; each by one file, of its name if there is one.
        """
        there = {same_file(path): path for path in checksums}
        found, astray = {}, {}
        for name, entry in self.files.items():
            if name in there and checksums[there[name]] == entry.checksum:
                found[there[name]] = (name, entry)
            else:
                astray[name] = entry
        for name_counts in (True, False):
            for path, checksum in checksums.items():
                if path in found or checksum == NO_CHECKSUM:
                    continue
                moved = [
                    name
                    for name, entry in astray.items()
                    if entry.checksum == checksum and (not name_counts or _name(name) == _name(path))
                ]
                if moved:
                    name = min(moved, key=lambda name: astray[name].state)  # accepted ones first
                    found[path] = (name, astray.pop(name))
        return found

    def moved(self, checksums: Mapping[str, str]) -> FilesState:
        """The record by where files lie now; what is nowhere any more keeps its name, if no other has taken it."""
        known = self.known(checksums)
        before = {name for name, _ in known.values()}
        left = {name: entry for name, entry in self.files.items() if name not in before}
        return replace(self, files=left | {same_file(path): entry for path, (_, entry) in known.items()})


def runs_there(home: Path) -> list[str]:
    """Names of the runs that are there, and of the current one, which may lie elsewhere."""
    current = Path(os.path.realpath(home / CURRENT))
    there = artifacts_newest_first(home) if home.is_dir() else []
    return sorted({path.name for path in [*there, *([current] if current.is_dir() else [])]})


def owed(cold: Mapping[str, Collection[str]], run: Path | None) -> list[str]:
    """What of `FilesState.cold` has come since a run, or one that it goes on from, was trained."""
    line: set[str] = set()
    while cold and run is not None and run.name not in line:
        line.add(run.name)
        try:
            info = json.loads((run / "model" / "bundle.json").read_text())["info"]
            run = run.parent / info["started_from"]["run"]
        except (OSError, ValueError, LookupError, TypeError):  # trained from nothing, or from what is no more there
            run = None
    return [text for text, runs in cold.items() if not line.isdisjoint(runs)]


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def read_state(home: Path) -> FilesState:
    """The record of `runs/<name>`; an empty one where there is none.

    Raises
    ------
    ContractError
        It cannot be read, is damaged or of another format; the message says what to do.
    """
    path = home / FILES
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return FilesState()
    except OSError as error:
        raise ContractError(
            f"{path}: cannot be read ({error.strerror}), so nothing is known of the files that were decided about, and "
            "nothing is decided. Mend what the system says and run again; the record itself may be whole."
        ) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    try:
        if raw["format"] != FORMAT:
            raise ContractError(f"{path}: format is {raw['format']!r}, this version reads {FORMAT}.")
        if raw["checksum"] != _checksum(raw):
            raise ValueError("its content is not what was written")
        files, pending = {name: _entry(entry) for name, entry in raw["files"].items()}, raw["pending"]
        if (cold := raw.get("cold")) is None:  # of a version that kept no runs
            cold = dict.fromkeys((pending or {}).get("cold", ()), runs_there(home))
            if pending is not None:  # it named what was told, and this one what was not
                asked = [*pending.get("accepted", ()), *cold]
                pending = pending | {"since": [text for text in asked if text not in pending.get("told", ())]}
        found = FilesState(files, pending, cold)
        for name, entry in found.files.items():
            if entry.state not in (ACCEPTED, QUARANTINED):
                raise ValueError(f"{name}: unknown state {entry.state!r}")
        return found
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ContractError):
            raise
        raise _damaged(path, error) from error


def _entry(raw: Mapping[str, Any]) -> FileEntry:
    names = {item.name for item in dataclasses.fields(FileEntry)}
    lists = {key: tuple(raw[key]) for key in ("reasons", "warnings", "dropped")}
    return FileEntry(**({key: value for key, value in raw.items() if key in names} | lists))


def _damaged(path: Path, error: Exception) -> ContractError:
    return ContractError(
        f"{path}: damaged ({type(error).__name__}: {error}). Restore it from a backup, or remove it: then every file "
        "counts as new, those in quarantine too, and is checked again."
    )


def _checksum(raw: Mapping[str, Any]) -> str:
    content = {key: value for key, value in raw.items() if key != "checksum"}
    return text_checksum(json.dumps(content, sort_keys=True, allow_nan=False))


def write_state(home: Path, state: FilesState) -> None:
    """Replace the record."""
    raw = {"format": FORMAT} | json.loads(json.dumps(asdict(state), allow_nan=False))
    home.mkdir(parents=True, exist_ok=True)
    write_json(home / FILES, raw | {"checksum": _checksum(raw)})


def checksums_of(paths: Iterable[str], root: Path, home: Path) -> dict[str, str]:
    """Checksum by path, `NO_CHECKSUM` of one that cannot be read, such as a folder.

    root: the store, which keeps those of files that stay the same. home: of the record. `OSError` where the machine
    fails or denies it, but not at a file in quarantine, which nobody reads: that is the one that was decided about.
    """
    paths, found = list(dict.fromkeys(paths)), {}
    try:
        return dict(zip(paths, input_checksums(paths, root).values(), strict=True))
    except (OSError, ArtifactError):  # which of them?
        state = read_state(home)
        for path in paths:
            try:
                (found[path],) = input_checksums([path], root).values()
            except (OSError, ArtifactError) as error:
                found[path] = NO_CHECKSUM
                try:
                    raise_of_machine(error, path)
                except OSError as failed:
                    entry = state.files.get(same_file(path))
                    if entry is None or entry.state != QUARANTINED:
                        raise
                    log.warning("%s It stays in quarantine.", failed.strerror or failed)
                    found[path] = entry.checksum
    return found


def obey(home: Path, recipe: Recipe, root: Path, state: FilesState | None = None) -> None:
    """Have a recipe leave out what is in quarantine, and rows that were dropped.

    A file whose content has changed since is another file, about which nothing was decided.

    state: in place of the record, what was decided tonight. What has come since has been checked by nobody, so it is
    left out, too; where a file's content is another now, `ContractError`.
    """
    decided = state is not None
    state = read_state(home) if state is None else state
    if not decided and not any(entry.state == QUARANTINED or entry.dropped for entry in state.files.values()):
        return
    checksums = checksums_of(recipe.inputs(), root, home)
    known = state.known(checksums)
    checked = {same_file(path) for kind in recipe.raw_files() for path in expand(kind.pattern)} if decided else set()
    late = {path for path in checksums if path not in known and same_file(path) in checked}
    if changed := sorted(path for path in late if same_file(path) in state.files):
        raise ContractError(f"input {changed[0]} has changed since it was checked. Run again when it is complete.")
    if late:
        log.info("%d file(s) have come since files were checked; the next night checks them", len(late))
    recipe.leave_out = frozenset(late) | {path for path, (_, entry) in known.items() if entry.state == QUARANTINED}
    recipe.without = {
        same_file(path): entry.dropped
        for path, (_, entry) in known.items()
        if entry.state == ACCEPTED and entry.dropped
    }
