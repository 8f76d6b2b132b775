"""The nightly job: train on what is there tonight, compare with the current model, promote or keep.

`runs/<name>/current` is the promoted run, `runs/<name>/previous` the one before it (`pipeline/runs/`). The new model,
the current one and the reference, what was current some nights ago, are scored on the same rows: those of the new test
split that come after everything that any of them was fitted or selected on. The new one is promoted if, for every
target, the lower bound of the paired bootstrap of its gain is above minus the stated tolerance, against both others; it
beats a constant, it is not far below what the current one reached when it was trained (`comparison.py`), its weights
are others than the current ones, and nobody has rolled it back. Where no run is promoted, it is promoted if it beats a
constant on the rows that come after its own training data, and nobody has rolled it back.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigabatch.features.errors import OF_MACHINE
from gigabatch.pipeline.config.config import ConfigError, RunConfig, load_config
from gigabatch.pipeline.contract.check import FileReport
from gigabatch.pipeline.contract.decide import Decision, check_new, decide, finish, is_late, new_files
from gigabatch.pipeline.contract.state import owed, read_state
from gigabatch.pipeline.display import render_table, write
from gigabatch.pipeline.nightly.codes import DECIDED, DRIFTED, FAILED, KEPT, PROMOTED, REFUSED
from gigabatch.pipeline.nightly.manifest import keep_newest
from gigabatch.pipeline.nightly.needed import needed
from gigabatch.pipeline.nightly.night import (
    MOST_NAMES,
    NOTHING_NEW,
    PENDING,
    Night,
    Outcome,
    data_of,
    name_of,
    named,
    nothing_new_of,
    quarantine_text,
    told_of_comparison,
)
from gigabatch.pipeline.nightly.notify import notify, require_notice
from gigabatch.pipeline.nightly.pages import LAST, Material, write_night
from gigabatch.pipeline.nightly.reference import keep_champions
from gigabatch.pipeline.runs.find import home_of
from gigabatch.pipeline.runs.pointers import CURRENT, RunError, current_run, read_pointers, require_links
from gigabatch.pipeline.runs.record import RECORD, append_record, newest_records
from gigabatch.pipeline.runs.verify import require_own
from gigabatch.pipeline.stages.asked import Request
from gigabatch.pipeline.stopping import Stopped, hold_back, let_through, stopped_by, stopped_text
from gigabatch.pipeline.store.artifacts import verified
from gigabatch.pipeline.store.files import FULL, READ_ONLY, ArtifactError
from gigabatch.pipeline.store.garbage import collect_artifacts, collect_runs
from gigabatch.pipeline.store.locks import folder_lock
from gigabatch.pipeline.tracking import tell_champion

if TYPE_CHECKING:
    from gigabatch.pipeline.nightly.comparison import Judged

log = logging.getLogger(__name__)
SETTLED_AMONG = 1000  # lines, the newest, among which that of a night that was killed would be
AS_LAST = ("seed", "config", "environment", "splits", "start")  # of the line of such a night, told again by the next
OWN_KEYS = frozenset(("home", "action", "code"))  # that a line to come never has


def run_nightly(config: str | Path, overrides: Sequence[str] = ()) -> int:
    """Exit code 0 promoted, 10 kept, 20 data refused, 30 drift refused, 40 failed.

    One run at a time; a second one fails at once.
    `ConfigError` where there is no configuration that could say where a night's line belongs.
    """
    loaded = load_config(config, overrides)
    request = Request.of(load_config(config, overrides, whole=False))
    night = Night(loaded, home_of(loaded), material=Material(loaded.nightly), request=request)
    try:
        with folder_lock(night.home / "nightly.lock"):
            return _recorded(night, _night)
    except ArtifactError as error:
        return _end(night, Outcome(FAILED, f"Failed: {error}"))


def _recorded(night: Night, work: Callable[[Night], Outcome]) -> int:
    """The night and its end, whatever it came to."""
    try:
        if settled := settle(night.home):
            finish(night.config, *settled)
        outcome = work(night)
    except (Exception, KeyboardInterrupt) as error:
        if number := stopped_by(error):
            hold_back()  # a second signal, too
            night.material = replace(night.material, encoded=None)  # for which its page would wait
            _end(night, Outcome(128 + number, stopped_text(number)))
            raise Stopped(number, recorded=True) from error
        if not isinstance(error, ValueError) and getattr(error, "errno", None) not in {*READ_ONLY, *FULL, *OF_MACHINE}:
            log.exception("nightly")
        outcome = Outcome(FAILED, f"Failed: {error}")
    return _end(night, outcome, held=True)


def _end(night: Night, outcome: Outcome, held: bool = False) -> int:
    """The night's line, the notice, its page, and what else comes after the line and changes nothing of it.

    held: whether the night came to an end of its own, under the lock.
    """
    hold_back()  # what is stopped after the line has its line, and the command writes none
    if outcome.code < FAILED and (decision := night.material.decision):
        urgent = (told for told in decision.urgent if not (outcome.told and is_late(told)))
        files = (quarantine_text(decision), *urgent, waits(decision))
        text = " ".join([outcome.text, *(told for told in files if told and told not in outcome.text)])
        outcome = replace(outcome, text=text)
    home, run = night.home, outcome.candidate.path.name if outcome.candidate else None
    found = told_of_comparison(outcome) | _told(night)
    moment = append_record(home, "nightly", outcome.code, outcome.text, run, **found)
    entry = {"at": moment, "exit_code": outcome.code, "decision": outcome.text, "run": run, **found}
    after: dict[str, Callable[[], Any]] = {
        "nobody could be told": lambda: notify(night.config.nightly.notify, entry),
        f"{home / LAST} could not be written": lambda: _show(night, outcome, entry),
    }
    if held:
        first = {"the next night is told of the same files again": lambda: _finish(night, outcome)}
        after = first | after | {"old runs and artifacts could not be removed": lambda: _tidy(night)}
        if outcome.code < FAILED:
            after |= {"MLflow was not told which run is current": lambda: _tell_champion(night)}
    for failed, work in after.items():
        try:
            let_through(work)
        except OSError as error:  # a full disk
            log.error("%s (%s); what was decided stands", failed, error)
        except Exception:  # a chart that cannot be drawn
            log.exception("%s; what was decided stands", failed)
        except KeyboardInterrupt as error:
            if stopped_by(error) is None:
                raise
            log.warning("stopped: %s; what was decided stands", failed)
            break  # with the code of the line: refused data ask for a person, a night that was stopped asks for none
    if outcome.code < 128:  # of a signal the command tells
        try:
            write(sys.stdout, f"{outcome.text}\n")
        except (OSError, ValueError) as error:  # a full disk, a closed file
            log.error("standard output could not be written (%s); what was decided stands", error)
    return outcome.code


def _tell_champion(night: Night) -> None:
    """Each night anew: an earlier one may have been killed, or met no server, as soon as it had promoted."""
    if (current := current_run(night.home)) is not None:
        tell_champion(night.config, current)


def _finish(night: Night, outcome: Outcome) -> None:
    """After the line, so that a night that is killed between them is told too often rather than never."""
    if outcome.code in DECIDED or outcome.told:
        decision, run = night.material.decision, outcome.candidate
        finish(night.config, {} if decision is None else decision.cold, None if run is None else run.path.name)
    settle(night.home)


def settle(home: Path) -> tuple[dict[str, list[str]], str] | None:
    """Write the line of a night that was killed after it had promoted its run; from `PENDING`, which it left.

    Returns
    -------
    tuple or None
        Where there was such a night, so that what it was told of files has been done: for `finish`, its
        `Decision.cold` and its run's name.

    Raises
    ------
    RunError
        Where the links cannot be read.
    """
    path = home / PENDING
    try:
        pending = json.loads(path.read_text())
        name, text, begun = (str(pending.pop(key)) for key in ("run", "text", "at"))
        cold = dict(pending.pop("cold", {}))
        if known := OWN_KEYS.intersection(pending):
            raise ValueError(f"{min(known)} is no key of it")
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        log.warning("%s: damaged (%s); it is removed", path, error)  # by a power cut: it is no more than a line to come
        path.unlink(missing_ok=True)
        return None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error}). Move it away: it is no more than a line to come.") from error
    current = read_pointers(home).current
    lines = [
        entry
        for entry in islice(newest_records(home), SETTLED_AMONG)
        if (entry.get("run"), entry.get("exit_code")) == (name, PROMOTED)
    ]
    # Its own line is told by its words where the clock has been set back since.
    written = any(str(entry.get("at")) >= begun or str(entry.get("decision")).startswith(text) for entry in lines)
    promoted = current is not None and current.name == name
    if promoted and not written:
        late = f"{text} Written down late: that night was broken off as soon as it had promoted."
        append_record(home, "nightly", PROMOTED, late, name, **(pending | {"champion": name}))
    path.unlink(missing_ok=True)
    return (cold, name) if promoted else None


def _told(night: Night) -> dict[str, Any]:
    """Of a home that is damaged nothing more than it was."""
    try:
        return night.line()
    except RunError:
        return {"steps": night.steps}


def _night(night: Night) -> Outcome:
    from gigabatch.pipeline.nightly import learning  # torch, which a night that is as the last one goes without

    with night.step("begin"):
        require_ready(night.config, night.home)
        pipeline = learning.begun(night)
    with night.step("contract"):
        decision = _files(night, check_new(night.config))
    if outcome := refused_by(decision):
        return outcome
    return learning.learn(night, pipeline, decision)


def quiet_night(config: str | Path, overrides: Sequence[str] = ()) -> int | None:
    """A night that finds what the last one found, that nothing is new: its exit code, without torch.

    None where there is more to a night: the last one came to something else, or since then a file, the configuration,
    the sources, the current run or anything else has become another. Nothing has been done then.
    """
    request = Request.of(load_config(config, overrides, whole=False))
    home = home_of(request.config)
    if request.key is None or _nothing_new_before(home) is None:
        return None
    try:
        with folder_lock(home / "nightly.lock"):
            loaded = load_config(config, overrides, whole="features")
            if (last := nothing_new_again(request, loaded)) is None:
                return None
            night = Night(loaded, home, material=Material(loaded.nightly))
            return _recorded(night, partial(_as_the_last_one, last=last))
    except (ValueError, OSError) as error:  # which the whole night tells, and records
        if stopped_by(error):
            raise
        return None


def nothing_new_again(request: Request, loaded: RunConfig) -> dict[str, Any] | None:
    """The line of the last night, where that found nothing new and tonight would find the same."""
    home = home_of(loaded)
    if request.key is None or (last := _nothing_new_before(home)) is None:
        return None
    if new_files(loaded) or read_state(home).taken:  # which the whole night measures
        return None
    if _is_told_of_files(decide(loaded, [], write=False), home):
        return None
    return last if last[NOTHING_NEW].get("of") == nothing_new_of(request, request.features_key()) else None


def _nothing_new_before(home: Path) -> dict[str, Any] | None:
    """The line of the last night, where that came to its end and found nothing new."""
    last = next((entry for entry in newest_records(home) if entry.get("action") == "nightly"), {})
    return None if (home / PENDING).exists() or not isinstance(last.get(NOTHING_NEW), dict) else last


def _is_told_of_files(decision: Decision, home: Path) -> bool:
    """Whether a night is told of any, such as by one before it that was killed."""
    cold = owed(decision.cold, current_run(home))
    return any((decision.refused, decision.accepted, decision.quarantined, cold, decision.drift))


def _as_the_last_one(night: Night, last: Mapping[str, Any]) -> Outcome:
    """Such a night's outcome, told as the last one's was."""
    with night.step("begin"):
        require_ready(night.config, night.home)
    with night.step("contract"):
        decision = _files(night, [])
    night.told |= {name: last[name] for name in (*AS_LAST, NOTHING_NEW) if name in last}
    night.told["data"] = data_of(night.config, decision.state)
    log.info("nothing has changed since the last night")
    return Outcome(KEPT, str(last[NOTHING_NEW]["text"]))


def require_ready(config: RunConfig, home: Path) -> None:
    """Raise what no night can go on with, before any work."""
    require_later_rows(config)
    require_notice(config.nightly.notify)
    require_links(home)
    require_whole_current(home)


def refused_by(decision: Decision) -> Outcome | None:
    """The end of a night whose new files it must not go on with; None where it goes on."""
    if decision.refused:
        by_drift = all(text.startswith("drift: ") for text in decision.refused)
        code, what = (DRIFTED, "Drift") if by_drift else (REFUSED, "Data")
        return Outcome(code, f"{what} refused: {' '.join(decision.refused)}", reasons=decision.refused)
    if decision.quarantined and not decision.accepted:
        reasons = tuple(text for text in decision.warnings if not is_late(text))  # which no file of tonight is for
        text = f"Data refused: no new file is good. {' '.join(reasons)} {quarantine_text(decision)}"
        return Outcome(REFUSED, text, reasons=reasons, told=True)
    return None


def require_whole_current(home: Path) -> None:
    """Raise `RunError` where the current run is not there or a file of it is not what it was, before a night trains
    what it could neither start from it nor compare with it."""
    current = current_run(home)
    if current is None:
        require_first(home)
        return
    try:
        require_own(current, verified(current, "run", alone=False))
    except ArtifactError as error:
        raise RunError(
            f"the current model cannot be used. {error} Put the file back from a backup, or make another run current: "
            "gigabatch rollback brings the one before back, gigabatch promote ID any that gigabatch runs lists."
        ) from error


def require_first(home: Path) -> None:
    """Raise `RunError` where no run is current though the record tells of one: its link is lost, and the night would
    compare with a constant alone, number values anew and know no block."""
    found = (entry["run"] for entry in newest_records(home) if entry.get("exit_code") == PROMOTED and entry.get("run"))
    if promoted := next(found, None):
        raise RunError(
            f"{home / CURRENT} is not there, though {RECORD} tells of promoted runs, the last time of {promoted} "
            "(a copy without links?). Copy the runs again with their links (cp -a), or say which run answers: "
            "gigabatch runs lists them, gigabatch promote ID. To begin anew: gigabatch train, which promotes a first "
            "run."
        )


def _files(night: Night, reports: Sequence[FileReport]) -> Decision:
    """Write down which of the new raw files are read; the line tells it."""
    night.material.decision = decision = decide(night.config, reports)
    night.told["files"] = {
        "accepted": list(decision.accepted), "quarantined": list(decision.quarantined),
        "warnings": list(decision.warnings),
        "drift": {kind: found.verdicts() for kind, found in (decision.drift or {}).items()},
        "waiting": {"files": len(decision.waiting), "first": list(map(name_of, decision.waiting[:MOST_NAMES]))},
    }  # fmt: skip
    for text in decision.warnings:
        log.warning("raw files: %s", text)
    return decision


def waits(decision: Decision) -> str:
    """What earlier nights put aside and nobody has taken, corrected or removed, in a sentence; empty where nothing."""
    if not decision.waiting:
        return ""
    return (
        f"{len(decision.waiting):,} file(s) of earlier nights wait in quarantine: {named(decision.waiting)} "
        "(gigabatch contract --accept FILE takes one, also one that was corrected and is late by now; correct or move "
        "away the others)."
    )


def require_later_rows(config: RunConfig) -> None:
    """Raise `ConfigError` where the recipe's splits leave no test rows that come after the others."""
    if not hasattr(config.features, "way") and getattr(config.features, "time", "") is None:
        raise ConfigError(
            "nightly: features.time names no column, so no row is known to come after those of training, and none is "
            "new to both models. Name the time of a row, by which the one file or folder of features.path is split."
        )
    way = getattr(config.features, "way", "time")
    if way == "given":
        raise ConfigError(
            "nightly: with splits that are given, the test rows need not come after those of training, and no later "
            "night's rows would enter them, so no row is new to both models. Leave out features.valid_path and "
            "features.test_path, and set features.split_by=time."
        )
    if way != "time":
        raise ConfigError(
            f"nightly: with features.split_by: {way}, the test rows do not come after those of training, so no row is "
            "new to both models. Set features.split_by=time."
        )


def _tidy(night: Night) -> None:
    """Remove what `nightly.keep` does not keep, of this configuration's own.

    Nothing after a night that ended before it looked at its files, as for a setting or a damaged link. After one whose
    files were refused no artifacts: rows that the check has just parsed are unused by then.
    """
    if "contract" not in night.steps:
        return
    keep, config, home = night.config.nightly.keep, night.config, night.home
    keep_champions(home, config.nightly.reference_nights)
    keep_newest(home)
    leases = needed(config)  # held while others are removed
    removed: list[Path] = []
    freed = 0
    if keep.runs is not None:
        young = None if keep.days is None else keep.days * 86_400
        removed, freed = collect_runs(config.runs, keep.runs, config.name, young)
    if keep.artifacts is not None and "features" in night.steps:
        folders, size = collect_artifacts(config.artifacts, keep.artifacts, config.name)
        removed, freed = removed + folders, freed + size
    del leases
    if removed:
        log.info("removed %d old runs and artifacts, %s bytes", len(removed), f"{freed:,}")


def _show(night: Night, outcome: Outcome, entry: dict[str, Any]) -> None:
    """The comparison as a table, and the night's page."""
    if outcome.judged:
        render_table(_rows(outcome.judged), "Nightly")
    write_night(night.home, entry, night.material)


def _rows(judged: Judged) -> list[dict[str, Any]]:
    """A row a target, and with a reference one more for each."""
    several = len(judged.floors) > 1
    rows = [({"target": name} if several else {}) | vars(found) for name, found in judged.floors.items()]
    for name, found in judged.reference.items():
        rows.append({"target": name if several else "", "against": "the reference"} | vars(found))
    return [{"against": "the current model"} | row for row in rows] if judged.reference else rows
