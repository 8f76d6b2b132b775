"""What the night does with raw files: find new ones, check them, decide, and compare their rows with those before.

    reports = check_new(config)
    decision = decide(config, reports)     # files.json is written; the features stage obeys it
    ...                                    # the night's work
    finish(config)                         # what it was told has been done

After a night that was killed before `finish`, what it decided is decided again, about the files as they are then.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from gigabatch.features.engines.frame import resolve_engine
from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import expand, same_file
from gigabatch.features.recipes import recipe_class
from gigabatch.features.recipes.base import RawFiles, Recipe
from gigabatch.features.refit.statistics import Statistics
from gigabatch.features.refit.statistics_files import load_statistics, save_statistics
from gigabatch.pipeline.clock import shown, unit_seconds
from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.contract.check import Accepted, FileReport, check_files, known_rows
from gigabatch.pipeline.contract.drift import Drift, drift
from gigabatch.pipeline.contract.learn import learn, read_history
from gigabatch.pipeline.contract.measure import Known, Measured, measure_file
from gigabatch.pipeline.contract.state import (
    ACCEPTED,
    QUARANTINED,
    FileEntry,
    FilesState,
    checksums_of,
    obey,
    read_state,
    runs_there,
    write_state,
)
from gigabatch.pipeline.contract.terms import (
    Contract,
    ContractError,
    KindTerms,
    column_types,
    load_contract,
    load_decided,
)
from gigabatch.pipeline.runs.find import home_of
from gigabatch.pipeline.runs.record import now as now_text
from gigabatch.pipeline.store.artifacts import ArtifactStore
from gigabatch.pipeline.store.files import atomic_write
from gigabatch.pipeline.store.garbage import STATISTICS as STAGE
from gigabatch.pipeline.store.keys import artifact_key
from gigabatch.pipeline.store.leases import waiting_lock
from gigabatch.pipeline.store.parsed_files import ParsedFiles

log = logging.getLogger(__name__)
CONTRACT, LOCK, QUARANTINE = "contract.yaml", "files.lock", "quarantine"
LATE = "files of kind "  # how the warning begins
READ_BY = ("null_values", "separator", "encoding", "names", "decimal_marks", "made_from")  # settings of `RawFiles`
READ_AS = "read_as"  # in the manifests of `STAGE`, but for those of earlier versions
CLOCK_MAY_STEP = timedelta(hours=1)  # back, by a correction
STATISTICS_FORMAT = "1"  # of the artifacts of `STAGE`; they are made again where it is another


@dataclass(frozen=True)
class NewFile:
    """A file about which nothing was decided yet, or whose content has changed since.

    Parameters
    ----------
    path
        Path or URL.
    kind
        Of file.
    checksum
        Of its content.
    before
        What was decided about another content under this name.
    """

    path: str
    kind: str
    checksum: str
    before: FileEntry | None = None


@dataclass(frozen=True)
class Decision:
    """What a night is told.

    Parameters
    ----------
    accepted, quarantined
        Paths of new files.
    refused
        Why the night must not go on; nothing was written then.
    cold
        Why models are to learn all rows anew, and which runs have not, as `FilesState.cold`: drift (`on_drift: cold`),
        and files that were corrected, tonight's and earlier ones.
    warnings
        Sentences: of files, of drift, of files that are late or gone.
    urgent
        Of the warnings those that the night's text tells, too: of rows that are lost and of files that are late.
    drift
        By kind of file, where new rows were compared with earlier ones.
    waiting
        Paths of the other files that are there and lie in quarantine, of which an earlier night was told.
    calendar
        Columns of raw files that the contract takes for times, dates or parts of the calendar.
    state
        What files.json says after it; None where the night is refused, which writes nothing.
    """

    accepted: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    cold: Mapping[str, list[str]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    urgent: tuple[str, ...] = ()
    drift: Mapping[str, Drift] | None = None
    waiting: tuple[str, ...] = ()
    calendar: frozenset[str] = frozenset()
    state: FilesState | None = None


class _Place:
    """Where a configuration's files are recorded, and how they are read."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.home = config, home_of(config)
        self.engine = resolve_engine(config.engine)
        self.store = ArtifactStore(config.artifacts, config.name)
        self.cache = ParsedFiles(self.store, self.engine)
        self.recipe: Recipe = recipe_class(config.recipe)(config.features)

    def there(self) -> dict[str, str]:
        """Checksum by path of every file of every kind."""
        return checksums_of(self.kinds(), self.store.root, self.home)

    def kinds(self) -> dict[str, str]:
        """Kind by path."""
        return {path: kind.name for kind in self.recipe.raw_files() for path in expand(kind.pattern)}

    def lock(self) -> AbstractContextManager[None]:
        """Whoever else decides, or learns, is waited for: a person's command must not fail a night."""
        return waiting_lock(self.home / LOCK)

    def contract(self) -> Contract | None:
        path = contract_path(self.config)
        return load_contract(path, self.config.recipe, self.recipe.raw_files()) if path.exists() else None

    def statistics(self, kind: RawFiles, entries: Mapping[str, FileEntry], tell: bool = True) -> Statistics | None:
        """Of all accepted rows of a kind: those that are kept, else from the files that are still there; where some are
        gone, those that an earlier version kept, which named no settings. tell: whether warnings name what is left out,
        which they have done tonight otherwise."""
        kept = self.store.find(STAGE, self._key(kind, entries))
        if kept is not None:
            return load_statistics(kept.path, self.engine)
        checksums = {same_file(path): value for path, value in self.there().items()}
        gone = {path for path, entry in entries.items() if checksums.get(path) != entry.checksum}
        old = self.store.find(STAGE, self._key(kind, entries, {})) if gone else None
        if old is not None and READ_AS not in old.manifest:
            return load_statistics(old.path, self.engine)
        found: Statistics | None = None
        for path, entry in entries.items():
            if path in gone:
                if tell:
                    log.warning("%s was accepted and is gone or has changed; drift is measured without it", path)
                continue
            if (measured := self.measured(kind, path, entry, tell=tell)) is not None:
                found = measured.statistics if found is None else found.merge(measured.statistics)
        return found

    def measured(
        self, kind: RawFiles, path: str, entry: FileEntry, known: Known | None = None, tell: bool = True
    ) -> Measured | None:
        """An accepted file; None where it can no longer be read, as where a step has changed: a night that needs its
        rows fails by itself, one that only compares with them goes on."""
        unit = self.config.nightly.time_unit
        try:
            return measure_file(
                kind, self.engine, path, self.cache, time_unit=unit, without=entry.dropped, known=known
            )  # fmt: skip
        except DataError as error:
            if tell:
                log.warning("%s was accepted and can no longer be read; drift is measured without it. %s", path, error)
            return None

    def keep(self, kind: RawFiles, entries: Mapping[str, FileEntry], statistics: Statistics) -> None:
        """Keep the statistics of these files."""

        def write(folder: Path) -> dict[str, Any]:
            save_statistics(statistics, folder)
            return {"kind": kind.name, "rows": statistics.rows, READ_AS: _read_as(kind)}

        self.store.build(STAGE, self._key(kind, entries), write)

    def _key(self, kind: RawFiles, entries: Mapping[str, FileEntry], read_as: Mapping[str, Any] | None = None) -> str:
        """read_as: by default that of the kind as it is now."""
        files = sorted([entry.checksum, *map(str, entry.dropped)] for entry in entries.values())
        settings = {"kind": kind.name, "columns": column_types(kind), "engine": self.engine}
        settings |= _read_as(kind) if read_as is None else read_as
        return artifact_key(STAGE, {"files": files}, settings, STATISTICS_FORMAT)


def _read_as(kind: RawFiles) -> dict[str, Any]:
    """How files are read, where it is not as usual: of those that are, keys of statistics are those of before."""
    usual = RawFiles(kind.name, kind.pattern, kind.dtypes)
    return {name: how for name in READ_BY if (how := getattr(kind, name)) != getattr(usual, name)}


def contract_path(config: RunConfig) -> Path:
    """Where a configuration's contract lies: `runs/<name>/contract.yaml`."""
    return home_of(config) / CONTRACT


def new_files(config: RunConfig) -> list[NewFile]:
    """Files of the recipe about which no person, and no night that has ended, has decided, or whose content is another
    now, also than a night that did not end found it; in the recipe's order.

    Raises
    ------
    ContractError
        `files.json` is damaged.
    DataError
        The recipe's files cannot be found.
    """
    place = _Place(config)
    recorded, there, kinds = read_state(place.home), place.there(), place.kinds()
    known, state = _decided(recorded, there), recorded.ended().moved(there)
    return [
        NewFile(path, kinds[path], checksum, state.files.get(same_file(path)))
        for path, checksum in there.items()
        if path not in known
    ]


def _decided(recorded: FilesState, there: Mapping[str, str]) -> set[str]:
    """Paths of which the record says the same as before a night that has not ended."""
    before, now = recorded.ended().known(there), recorded.known(there)
    return {path for path in before.keys() & now.keys() if before[path][1].state == now[path][1].state}


def _lost(recorded: FilesState, there: Mapping[str, str]) -> dict[str, FileEntry]:
    """What a night that has not ended accepted and is not there any more: a person may have promoted its model."""
    present, kept = set(map(same_file, there)), recorded.ended().moved(there).files.keys()
    return {
        name: replace(item, gone=False)
        for name, item in recorded.moved(there).files.items()
        if item.last_accepted is not None and name not in present and name not in kept
    }


def quarantined(config: RunConfig) -> list[str]:
    """Files of the recipe that are there and that were put in quarantine, as of `new_files`; so are the errors."""
    place = _Place(config)
    known = read_state(place.home).ended().known(place.there())
    return [path for path, (_, entry) in known.items() if entry.state == QUARANTINED]


def check_new(config: RunConfig, now: float | None = None) -> list[FileReport]:
    """Check every new file against the contract of `contract_path`; without one what needs none.

    Parameters
    ----------
    config
        The configuration.
    now
        Seconds since 1970; the clock's where it is None.

    Returns
    -------
    list of FileReport
        One a new file. Its parsed rows are kept for the features stage.

    Raises
    ------
    ContractError
        The contract or `files.json` cannot be used.
    """
    new = new_files(config)
    if not new:
        return []
    place = _Place(config)
    contract, there = place.contract(), place.there()
    recorded = read_state(place.home)
    state = recorded.ended().moved(there)
    files = _lost(recorded, there) | state.files
    accepted = Accepted({path: item for path, item in files.items() if item.state == ACCEPTED})
    accepted.gone = frozenset(accepted.files.keys() - {name for name, _ in state.known(there).values()})
    held = {path: item.last_accepted for path, item in state.files.items() if item.state == QUARANTINED}
    accepted.put_aside = {path: item for path, item in held.items() if item is not None}
    last = {path: item.last_accepted for path, item in recorded.moved(there).files.items()}
    accepted.unended = {path: item for path, item in last.items() if item is not None}
    kinds = {kind.name: kind for kind in place.recipe.raw_files()}
    for name in {item.kind for item in new}:
        entries = state.of_kind(name)
        if contract is not None and entries and (found := place.statistics(kinds[name], entries)) is not None:
            accepted.statistics[name] = found
    return check_files(
        contract,
        place.recipe,
        [item.path for item in new],
        accepted,
        engine=place.engine,
        cache=place.cache,
        now=now,
        time_unit=config.nightly.time_unit,
        max_future_seconds=config.nightly.max_future_seconds,
        checksums={item.path: item.checksum for item in new},
    )


def decide(config: RunConfig, reports: Sequence[FileReport], now: float | None = None, write: bool = True) -> Decision:
    """Write down which of the checked files are read from now on, and say what the night is to do.

    Parameters
    ----------
    config
        The configuration.
    reports
        Of `check_new`.
    now
        Seconds since 1970; the clock's where it is None.
    write
        Whether it is written down. A rehearsal only asks.

    Returns
    -------
    Decision
        Of these files, and of those that a person has accepted since the last night that ended.

    Raises
    ------
    ContractError
        The contract or `files.json` cannot be used, a file has changed since it was checked, or the clock has gone back
        and rows lie in the future by it.
    """
    place = _Place(config)
    with place.lock() if write else contextlib.nullcontext():
        contract, recorded = place.contract(), read_state(place.home)
        state, there = recorded.ended(), place.there()
        if changed := [item.path for item in reports if there.get(item.path) != item.checksum]:
            raise ContractError(f"input {changed[0]} has changed since it was checked. Run again when it is complete.")
        decided = _decided(recorded, there)  # by a person, while they were checked
        reports = [item for item in reports if item.path not in decided]
        kinds = {kind.name: kind for kind in place.recipe.raw_files()}
        good = [item for item in reports if item.accepted]
        bad = [item for item in reports if not item.accepted]
        _require_clock(recorded, bad, now)
        refused = _refusals(contract, kinds, state, there, good, bad)
        names = {name: same_file(path) for path, (name, _) in state.known(there).items()}  # by that of the record
        state, last = state.moved(there), recorded.moved(there)
        replaced = {item.instead_of for item in good}
        files = {name: entry for name, entry in state.files.items() if name not in replaced}
        # By the record, here and below: what a night accepted that did not end may have been learned by hand.
        files |= {
            same_file(item.path): _entry(item, kinds[item.kind], before=last.files.get(same_file(item.path)))
            for item in reports
        }
        present = set(map(same_file, there))
        there_to_read = {name for name, item in files.items() if item.state == ACCEPTED} & present
        earlier = {names.get(name, name): item for name, item in state.taken.items()}
        earlier = {name: item for name, item in earlier.items() if name in there_to_read}
        checked = {same_file(item.path) for item in reports}
        taken = [_taken(place, path, files[name], earlier[name])
                 for path in there if (name := same_file(path)) in earlier and name not in checked]  # fmt: skip
        before = {name: _before(state.of_kind(name), earlier) for name in kinds}
        told = set() if contract is None else {item.kind for item in reports}  # by `check_new`
        drifts = _drifts(place, contract, kinds, before, FilesState(files), good, taken, write, told)
        files |= {name: entry for name, entry in _lost(recorded, there).items() if name not in replaced}
        after = FilesState(files)
        found, far = drifts.all, _sentences(drifts.all, "drift")
        if contract is not None and contract.on_drift == "refuse":
            refused += [f"{text} (on_drift: refuse)" for text in _sentences(drifts.checked, "drift")]
        stays = _asked(state.cold, _corrected(kinds, last, good), place.home)
        drifted = far if contract is not None and contract.on_drift == "cold" else []
        warnings = [text for item in reports for text in (*item.warnings, *(item.reasons if not item.accepted else ()))]
        warnings += _sentences(found, "warn")
        urgent = [*_late(contract, after, now), *_put_aside(files, bad), *_far_by_hand(drifts.taken, taken)]
        lost = {name for name, item in files.items() if item.state == ACCEPTED and name not in present}
        gone = sorted(name for name in lost if not files[name].gone)  # told once: folders may keep the last month alone
        told_gone = {name: f"{name}: it was accepted and is not there any more; its rows are lost." for name in gone}
        for name in gone:
            if (twin := _waiting_twin(files, name, present)) is not None:
                told_gone[name] += (
                    f" {twin}, which waits in quarantine, holds the same rows: gigabatch contract --accept {twin}."
                )
                urgent.append(told_gone[name])
        warnings += list(dict.fromkeys([*urgent, *told_gone.values()]))
        after = FilesState({name: replace(item, gone=name in lost) for name, item in files.items()})
        quarantined = tuple(same_file(item.path) for item in bad)
        held = {name for name, item in files.items() if item.state == QUARANTINED} & present
        waiting = tuple(sorted(held.difference(quarantined)))
        if refused:
            return Decision(
                refused=tuple(refused), warnings=tuple(warnings), urgent=tuple(urgent), drift=found, waiting=waiting
            )
        raw = {name: None if item is None else asdict(item) for name, item in earlier.items()}
        told_now = _told_nothing() | {"accepted": [*earlier], "earlier": raw, "before": state.where_not(after)}
        after = replace(after, pending=told_now, cold=stays)
        if write:
            for item in reports:
                _write_quarantined_rows(place.home, item)
            write_state(place.home, after)
        return Decision(
            accepted=tuple(dict.fromkeys([*earlier, *(same_file(item.path) for item in good)])),
            quarantined=quarantined,
            cold=_asked(stays, drifted, place.home),
            warnings=tuple(warnings),
            urgent=tuple(urgent),
            drift=found,
            waiting=waiting,
            calendar=_calendar(contract),
            state=after,
        )


def _calendar(contract: Contract | None) -> frozenset[str]:
    columns = [item for terms in contract.files.values() for item in terms.columns.items()] if contract else []
    return frozenset(name for name, terms in columns if terms.calendar or terms.role == "time")


def _told_nothing() -> dict[str, Any]:
    """`FilesState.pending` of a night that has nothing to be told."""
    return {"accepted": [], "earlier": {}, "since": [], "before": {}}


def _asked(cold: Mapping[str, list[str]], reasons: Sequence[str], home: Path) -> dict[str, list[str]]:
    """`FilesState.cold` with reasons that have come now, after all runs that are there."""
    there = runs_there(home)
    return {**cold} | {text: sorted({*cold.get(text, ()), *there}) for text in reasons}


def finish(config: RunConfig, cold: Mapping[str, Sequence[str]] | None = None, run: str | None = None) -> None:
    """Forget what the night was told: it has been done. What a person has accepted since is for the next one.

    cold: `Decision.cold`, of which drift is remembered from here on, as later nights do not find it again. run: that
    was trained tonight, so on what asked for that; on nothing that has come since. Done twice is done once.
    """
    place, cold = _Place(config), cold or {}
    with place.lock():
        state, there = read_state(place.home), runs_there(place.home)
        pending = _told_nothing() | (state.pending or {})
        since = pending["since"]
        left: dict[str, list[str]] = {}
        for text in {**state.cold, **cold}:
            runs = {*state.cold.get(text, ()), *cold.get(text, ())} - {run}
            runs |= {run} if run is not None and text in since else set()
            if not runs.isdisjoint(there):
                left[text] = sorted(runs)
        accepted = [name for name in pending["accepted"] if name in since]
        earlier = {name: pending["earlier"].get(name) for name in accepted}
        rest = _told_nothing() | {"accepted": accepted, "earlier": earlier, "since": since} if since else None
        if (after := replace(state, pending=rest, cold=left)) != state:
            write_state(place.home, after)


def accept(config: RunConfig, file: str) -> str:
    """Take a file whatever a check said of it, by a person's word; it is read from the next run on.

    Parameters
    ----------
    config
        The configuration.
    file
        Path or URL, or the name of one file in quarantine.

    Returns
    -------
    str
        What was done, as a sentence.

    Raises
    ------
    ContractError
        No such file, several of that name, or one that cannot be read.
    """
    place = _Place(config)
    with place.lock():
        state, there, kinds = read_state(place.home), place.there(), place.kinds()
        named = [path for path in there if same_file(path) == same_file(file)]
        named = named or [path for path in there if path.rstrip("/").rpartition("/")[2] == file]
        held = [name for name, item in state.files.items() if item.state == QUARANTINED]
        if len(named) != 1:
            raise ContractError(
                f"contract: {file} is {'no file' if not named else f'{len(named)} files'} that the recipe reads. In "
                f"quarantine: {', '.join(held) or 'none'}."
            )
        (path,) = named
        known = state.known(there).get(path)
        told = _told_nothing() | (state.pending or {})
        # What a night accepted that did not end, the next one may refuse, but for a person's word.
        if known is not None and known[1].state == ACCEPTED and known[0] not in told["before"]:
            return f"{path} is accepted already."
        kind = next(item for item in place.recipe.raw_files() if item.name == kinds[path])
        try:
            before, unit = state.moved(there).files.get(same_file(path)), config.nightly.time_unit
            earlier = known_rows(None if before is None else before.last_accepted)
            left_out = known[1].dropped if known is not None and known[1].state == ACCEPTED else ()
            measured = measure_file(
                kind, place.engine, path, place.cache, time_unit=unit, without=left_out, known=earlier
            )
        except DataError as error:
            raise ContractError(f"contract: {path} cannot be read, so it cannot be accepted. {error}") from error
        reasons = known[1].reasons if known is not None else ()
        report = FileReport(path, kind.name, True, reasons, (), left_out, measured, there[path])
        files = {name: item for name, item in state.files.items() if known is None or name != known[0]}
        # For the next night to be told, which then goes on though its own new files may all be bad.
        asks = _corrected({kind.name: kind}, state.moved(there), [report])
        taken = {same_file(path), *(() if known is None else known[:1])}
        was = state.ended().moved(there).files.get(same_file(path))
        pending = {
            "earlier": {same_file(path): None if was is None else asdict(was)} | told["earlier"],
            "accepted": list(dict.fromkeys([*told["accepted"], same_file(path)])),
            "since": list(dict.fromkeys([*told["since"], same_file(path), *asks])),
            "before": {name: item for name, item in told["before"].items() if name not in taken},
        }
        files |= {same_file(path): _entry(report, kind, "person")}
        cold = _asked(state.cold, asks, place.home)
        write_state(place.home, replace(state, files=files, pending=pending, cold=cold))
        return f"{path} is accepted, with its {measured.rows:,} rows; the next run reads it."


class Learned(NamedTuple):
    """A contract that was learned: its file, what it holds, by kind of file how many files and rows it was learned
    from, how many files it was not, since they are in quarantine or new, and what was done with the one before, in
    sentences."""

    path: Path
    contract: Contract
    counts: dict[str, tuple[int, int]]
    left_out: int
    notes: tuple[str, ...]


def learn_contract(
    config: RunConfig, out: Path | None = None, force: bool = False, now: float | None = None
) -> Learned:
    """Learn a contract from the files that are there, those in quarantine left out, and write it.

    Where files have been decided about, new ones are left out too: they are to be checked, not learned from. Where
    none has, all are history, and are accepted. What no file tells stays as in the contract before: levels of drift,
    what is done with bad files, bad rows and drift, and `backfill`. `max_future_seconds` is the configuration's.

    Parameters
    ----------
    config
        The configuration.
    out
        Where to write it, if not where nights look for it.
    force
        Whether a contract that a person has edited is replaced, with the bounds that are edited.
    now
        Seconds since 1970; the clock's where it is None.

    Returns
    -------
    Learned
        The file, what it holds, and what it was learned from.

    Raises
    ------
    ContractError
        A person has edited the file that is there; or the recipe does not say what its files are.
    DataError
        A file of history cannot be read.
    """
    place, path = _Place(config), out or contract_path(config)
    kinds = place.recipe.raw_files()
    if not kinds:
        raise ContractError(f"contract: recipe {config.recipe} does not say what its raw files are.")
    if path.exists() and not force:
        _require_unedited(path, config, kinds)
    seconds, replaces = config.nightly.max_future_seconds, path.exists()
    decided, edited, notes = _decided_before(path if replaces else contract_path(config))
    if (before := decided.pop("max_future_seconds", seconds)) != seconds:
        notes.append(f"max_future_seconds is {seconds:.15g}, by nightly.max_future_seconds, and was {before:.15g}")
    with place.lock():
        state, there = read_state(place.home), place.there()
        obey(place.home, place.recipe, place.store.root)
        if state.files:
            known = state.known(there)
            fresh = {path for path in there if path not in known}
            place.recipe.leave_out = place.recipe.leave_out | fresh
        histories = read_history(place.recipe, place.engine, place.cache, config.nightly.time_unit)
        contract = learn(config.recipe, list(histories.values()), seconds, now)
        if kept := [key for key, value in decided.items() if value != getattr(contract, key)]:
            notes.append(f"kept as it was: {', '.join(kept)}")
        contract = replace(contract, **decided)
        if not state.files:
            state = FilesState(
                {
                    same_file(path): _entry(
                        FileReport(path, name, True, measured=measured, checksum=there[path]), item.kind, "history"
                    )
                    for name, item in histories.items()
                    for path, measured in item.files.items()
                }
            )
            for name, item in histories.items():
                place.keep(item.kind, state.of_kind(name), item.statistics)
            write_state(place.home, state)
        contract.save(path)
    files = {name: list(item.files.values()) for name, item in histories.items()}
    counts = {name: (len(items), sum(item.rows for item in items)) for name, items in files.items()}
    if edited and replaces:
        notes.append("all else is learned anew: bounds of rows and columns that a person had edited are lost")
    return Learned(path, contract, counts, len(there) - sum(count for count, _ in counts.values()), tuple(notes))


def _decided_before(path: Path) -> tuple[dict[str, Any], bool, list[str]]:
    """`load_decided`; nothing, and a sentence, where the contract is one that only --force replaces."""
    try:
        return (*(load_decided(path) if path.exists() else ({}, False)), [])
    except ContractError as error:
        return {}, False, [f"nothing was kept of the one before: {error}"]


def _require_unedited(path: Path, config: RunConfig, kinds: Sequence[RawFiles]) -> None:
    try:
        edited = load_contract(path, config.recipe, kinds).edited
    except ContractError as error:
        raise ContractError(f"{error} To replace it: --force.") from error
    if edited:
        raise ContractError(
            f"contract {path}: a person has edited it, and it is not overwritten. Learn to another file and compare "
            "(--out FILE), or replace it (--force)."
        )


def _require_clock(state: FilesState, bad: Sequence[FileReport], now: float | None) -> None:
    """Raise `ContractError` where rows lie in the future by a clock that showed a later time when files were decided
    about: good files would stay in quarantine when it is right again."""
    moment = datetime.fromtimestamp(time.time() if now is None else now, UTC)
    latest = max((entry.decided_utc for entry in state.files.values()), default="")
    if latest <= (moment + CLOCK_MAY_STEP).isoformat(timespec="seconds"):
        return
    for item in bad:
        rules = item.measured.bad.items() if item.measured is not None else ()
        if any(rule.what == "future" and found.rows for rule, found in rules):
            raise ContractError(
                f"{item.path}: rows lie in the future, but the machine's clock says "
                f"{moment.isoformat(timespec='seconds')}, and files were decided about at {latest}: it has gone back. "
                "Nothing was decided. Set the clock right and run again. If it is right now and was ahead then, "
                "correct the file, move it away, or accept it (gigabatch contract --accept FILE)."
            )


def _refusals(
    contract: Contract | None,
    kinds: Mapping[str, RawFiles],
    state: FilesState,
    there: Mapping[str, str],
    good: Sequence[FileReport],
    bad: Sequence[FileReport],
) -> list[str]:
    """Why the night cannot go on, though bad files would be left out."""
    refused = []
    for item in bad:
        if contract is not None and contract.on_bad_file == "refuse":
            refused += [f"{text} (on_bad_file: refuse)" for text in item.reasons]
        elif kinds[item.kind].fixed:
            refused += [f"{text} The recipe cannot do without files of kind {item.kind!r}." for text in item.reasons]
    known = state.known(there)
    for name in {item.kind for item in bad}:
        kept = [path for path, (_, entry) in known.items() if (entry.kind, entry.state) == (name, ACCEPTED)]
        if not kept and not any(item.kind == name for item in good) and not refused:
            refused += [text for item in bad for text in item.reasons]
            refused.append(f"no file of kind {name!r} is left.")
    return refused


def _entry(report: FileReport, kind: RawFiles, by: str = "check", before: FileEntry | None = None) -> FileEntry:
    """before: what was decided about the content before."""
    held = None if report.accepted or before is None else before.last_accepted
    found: Measured | None = report.measured
    first, last = (None, None) if found is None else found.ranges.get(str(kind.time), (None, None))
    return FileEntry(
        kind.name,
        ACCEPTED if report.accepted else QUARANTINED,
        report.checksum,
        now_text(),
        by,
        None if found is None else f"{found.fingerprint:016x}",
        None if found is None else found.rows,
        first,
        last,
        report.reasons,
        report.warnings,
        report.dropped,
        before=None if held is None else held.facts,
    )


def _before(entries: Mapping[str, FileEntry], taken: Mapping[str, FileEntry | None]) -> dict[str, FileEntry]:
    """The accepted files of a kind as they were before persons have taken some of them, of which no night was told."""
    found = {name: taken.get(name, entry) for name, entry in entries.items()}
    return {name: entry for name, entry in found.items() if entry is not None and entry.state == ACCEPTED}


def _taken(place: _Place, path: str, entry: FileEntry, earlier: FileEntry | None) -> FileReport:
    """A file that a person has taken, measured as a check would have done: of one that has grown, by its new rows."""
    name = place.kinds()[path]  # the entry's may be one that the settings no longer know
    kind = next(item for item in place.recipe.raw_files() if item.name == name)
    known = known_rows(None if earlier is None else earlier.last_accepted)
    measured = place.measured(kind, path, entry, known)
    return FileReport(path, kind.name, True, dropped=entry.dropped, measured=measured, checksum=entry.checksum)


class _Drifts(NamedTuple):
    """By kind the drift of all new rows, against those accepted before; that of checked files alone, against these and
    what persons have taken; and that of what persons have taken alone."""

    all: dict[str, Drift]
    checked: dict[str, Drift]
    taken: dict[str, Drift]


def _drifts(
    place: _Place,
    contract: Contract | None,
    kinds: Mapping[str, RawFiles],
    before: Mapping[str, Mapping[str, FileEntry]],
    after: FilesState,
    good: Sequence[FileReport],
    taken: Sequence[FileReport],
    write: bool,
    told: Collection[str],
) -> _Drifts:
    """Of new rows; write: the statistics of all together are kept. told: kinds of which warnings have named the
    accepted files that are left out."""
    found = _Drifts({}, {}, {})
    for name, kind in kinds.items():
        same = {(path, entry.checksum) for path, entry in before[name].items()}  # as one that was put back is
        new, by_hand = (
            [item for item in items if item.kind == name and (same_file(item.path), item.checksum) not in same]
            for items in (good, taken)
        )
        mine, theirs = _statistics(new), _statistics(by_hand)
        fresh = _merged(mine, theirs)
        if fresh is None:
            continue
        old = place.statistics(kind, before[name], name not in told) if before[name] else None
        replaced = any(same_file(item.path) in before[name] or item.instead_of for item in (*new, *by_hand))
        terms: KindTerms | None = contract.files.get(name) if contract is not None else None
        own = {column: item.drift for column, item in terms.columns.items() if item.drift} if terms else {}
        calendar = [column for column, item in terms.columns.items() if item.calendar] if terms else []
        labels = [column for column, role in kind.roles.items() if role == "label"]
        levels = contract.drift if contract else None
        if old is not None and old.rows and (fresh.categories or fresh.numbers):
            beside = functools.partial(drift, calendar=calendar, unmeasured=kind.numbers_in_text)
            compared = functools.partial(beside, terms=levels, labels=labels, own=own)
            found.all[name] = whole = compared(old, fresh)
            if mine is not None:
                found.checked[name] = whole if theirs is None else compared(old.merge(theirs), mine)
            if theirs is not None:
                found.taken[name] = whole if mine is None else compared(old, theirs)
        if not write:
            continue
        merged = place.statistics(kind, after.of_kind(name), False) if replaced else _merged(old, fresh)
        if merged is not None:
            place.keep(kind, after.of_kind(name), merged)
    return found


def _statistics(items: Sequence[FileReport]) -> Statistics | None:
    """Of their new rows."""
    found: Statistics | None = None
    for item in items:
        if item.measured is not None:
            found = _merged(found, item.measured.added or item.measured.statistics)
    return found


def _merged(one: Statistics | None, other: Statistics | None) -> Statistics | None:
    return (one or other) if one is None or other is None else one.merge(other)


def _sentences(found: Mapping[str, Drift], verdict: str) -> list[str]:
    return [f"drift: {name}: {text}" for name, item in found.items() for text in item.sentences(verdict)]


def _far_by_hand(found: Mapping[str, Drift], taken: Sequence[FileReport]) -> list[str]:
    """Of kinds in which persons have taken files that have drifted, so that a night's text tells what none refuses."""
    told = []
    for name in found.keys() & {item.kind for item in taken}:
        if sentences := found[name].sentences("drift"):
            files = ", ".join(item.path for item in taken if item.kind == name)
            told.append(f"rows of {files}, accepted by a person, have drifted: {'; '.join(sentences)}.")
    return sorted(told)


def _corrected(kinds: Mapping[str, RawFiles], state: FilesState, good: Sequence[FileReport]) -> list[str]:
    """Of files accepted before those with other rows in the times that they had. A warm start takes rows of such times
    for ones that its weights have seen; of a file that has grown it sees later ones, and that there are late ones."""
    told = []
    for item in good:
        entry, found = state.files.get(same_file(item.path)), item.since or item.measured
        before = None if entry is None else entry.last_accepted
        if before is None or before.last is None or found is None or found.added is not None:
            continue
        _, last = found.ranges.get(str(kinds[item.kind].time), (None, None))
        other = last is not None and last <= before.last and f"{found.fingerprint:016x}" != before.fingerprint
        if found.corrected or other:
            what = "and holds no later rows" if other else "and its earlier rows are others"
            told.append(f"{item.path}: it has changed {what}, so all rows are learned anew.")
    return told


def _late(contract: Contract | None, state: FilesState, now: float | None) -> list[str]:
    moment, told = time.time() if now is None else now, []
    for name, terms in (contract.files if contract is not None else {}).items():
        lasts = [item.last for item in state.of_kind(name).values() if item.last is not None]
        if terms.freshness is None or terms.unit is None or not lasts:
            continue
        age = moment - max(lasts) * unit_seconds(terms.unit)
        if age > terms.freshness:
            told.append(
                f"{LATE}{name!r} are late: the newest row is of {shown(max(lasts), terms.unit)}, "
                f"{age / 3600:.1f} hours ago; the bound is {terms.freshness / 3600:.1f} hours."
            )
    return told


def _put_aside(files: Mapping[str, FileEntry], bad: Sequence[FileReport]) -> list[str]:
    """Of files that lie in quarantine from tonight on, though another content of theirs was accepted."""
    told = []
    for item in bad:
        before = files[same_file(item.path)].last_accepted
        if before is not None and before.rows is not None:
            told.append(
                f"{item.path}: the {before.rows:,} rows that it was accepted with are lost, until it is corrected or "
                "accepted."
            )
    return told


def _waiting_twin(files: Mapping[str, FileEntry], gone: str, present: Collection[str]) -> str | None:
    """A file in quarantine with the rows of an accepted one that is not there any more."""
    rows = files[gone].kind, files[gone].fingerprint
    found = (
        name
        for name, item in files.items()
        if item.state == QUARANTINED and name in present and (item.kind, item.fingerprint) == rows
    )
    return None if rows[1] is None else next(found, None)


def is_late(warning: str) -> bool:
    """Whether a warning is that files are late: it holds of a moment, and each night says anew whether it is so."""
    return warning.startswith(LATE)


def _write_quarantined_rows(home: Path, report: FileReport) -> None:
    if not report.dropped or report.measured is None:
        return
    name = re.sub(r"[^A-Za-z0-9._-]", "-", report.path.rstrip("/").rpartition("/")[2])
    path = home / QUARANTINE / f"{name}-{report.checksum[-8:]}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, report.measured.examples.to_csv(index=False).encode())
