"""What a rehearsal of tonight's job tells without torch: of locks, links, files and the clean-up, and all of it where
the last night found nothing new and nothing has changed since."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gigabatch.pipeline.config.config import RunConfig, load_config
from gigabatch.pipeline.contract.check import FileReport
from gigabatch.pipeline.contract.decide import Decision, decide
from gigabatch.pipeline.display import render_table
from gigabatch.pipeline.nightly.codes import FAILED
from gigabatch.pipeline.nightly.needed import needed
from gigabatch.pipeline.nightly.night import NOTHING_NEW, PENDING
from gigabatch.pipeline.nightly.nightly import nothing_new_again, refused_by, require_ready, waits
from gigabatch.pipeline.nightly.reference import reference_of
from gigabatch.pipeline.runs.find import home_of
from gigabatch.pipeline.runs.pointers import LATEST, PREVIOUS, current_run
from gigabatch.pipeline.stages.asked import Request
from gigabatch.pipeline.stopping import stopped_by
from gigabatch.pipeline.store.files import json_text
from gigabatch.pipeline.store.garbage import STATISTICS, old_artifacts, old_runs
from gigabatch.pipeline.store.locks import lock_holder

THERE, TO_MAKE = "there", "to be made"
STAGES = ("encode", "train", "evaluate")


@dataclass
class Rehearsal:
    """What tonight would do.

    Parameters
    ----------
    name
        Of the configuration.
    exit_code
        0, or what a night that would be refused (20, 30) or fail (40) ends with.
    verdict
        A sentence, and for a refusal its reasons.
    current, reference
        Ids of runs; None where there is none.
    files
        New raw files: `file`, `kind`, `verdict` (accepted, quarantined), `rows`, `why`.
    drift
        Measures that warn or count as drift: `kind`, `column`, `measure`, `value`, `bound`, `verdict`.
    start
        `how` (warm, cold, anew) the training would start, and `why`.
    rows
        Of each split, `trained` on, and `compared`, those that no model has seen; `window` has the window's counts.
    stages
        Whether the artifact of a stage is there or is to be made.
    removed
        `runs` and `artifacts` that retention would remove if tonight promotes, and their `bytes`.
    notes
        Further sentences, the night's warnings among them.
    """

    name: str
    exit_code: int = 0
    verdict: str = ""
    current: str | None = None
    reference: str | None = None
    files: list[dict[str, Any]] = field(default_factory=list)
    drift: list[dict[str, Any]] = field(default_factory=list)
    start: dict[str, str] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, str] = field(default_factory=dict)
    removed: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def end(self, code: int, verdict: str) -> None:
        self.exit_code, self.verdict = code, " ".join(verdict.split())

    def tell(self, as_json: bool) -> int:
        """Print it as JSON, or as tables and sentences; its exit code."""
        if as_json:
            print(json_text(asdict(self)))
        else:
            self._show()
        return self.exit_code

    def _show(self) -> None:
        if self.files:
            render_table([entry | {"why": " ".join(entry["why"])} for entry in self.files], "New files")
        if self.drift:
            render_table(self.drift, "Drift")
        render_table([{"what": what, "tonight": text} for what, text in self._told()], f"Tonight, {self.name}")
        for text in self.notes:
            print(text)
        print(self.verdict)

    def _told(self) -> list[tuple[str, str]]:
        told = [("new files", str(len(self.files))), ("current", self.current or "none")]
        told.append(("reference", self.reference or "none"))
        if self.start:
            told.append(("start", f"{self.start['how']}: {self.start['why']}"))
        told += [(f"rows, {name}", f"{count:,}") for name, count in self.rows.items() if isinstance(count, int)]
        window = self.rows.get("window") or {}
        told += [(f"window, {name}", f"{count:,}") for name, count in window.items()]
        told += [(f"{stage} artifact", state) for stage, state in self.stages.items()]
        if self.removed:
            runs, artifacts = len(self.removed["runs"]), len(self.removed["artifacts"])
            told.append(
                ("removed, if promoted", f"{runs} runs, {artifacts} artifacts, {self.removed['bytes']:,} bytes")
            )
        return told


def quiet_rehearsal(config: str | Path, overrides: Sequence[str] = ()) -> Rehearsal | None:
    """What tonight would do where it finds what the last night found, that nothing is new; else None."""
    try:
        request = Request.of(load_config(config, overrides, whole=False))
        loaded = load_config(config, overrides, whole="features")
        if (last := nothing_new_again(request, loaded)) is None:
            return None
        found = Rehearsal(loaded.name)
        if ask_models(loaded, home_of(loaded), found) is None or ask_files(loaded, [], found) is None:
            return found
        found.stages |= {"features": THERE, "encode": "not needed"}
        found.start, found.rows = dict(last["start"]), dict(last["splits"])
        end_as_kept(found, str(last[NOTHING_NEW]["text"]).removeprefix("Kept: "))
        ask_retention(loaded, (), found)
    except Exception as error:  # which the whole rehearsal tells; or a line lacks what it finds anew
        if stopped_by(error):
            raise
        return None
    return found


def end_as_kept(found: Rehearsal, reason: str) -> None:
    """The end of a night without a new row."""
    found.stages |= dict.fromkeys(STAGES[1:], "not needed")
    found.rows["trained"] = 0
    found.end(0, f"Tonight would be kept (exit code 10): {reason}")


def ask_models(config: RunConfig, home: Path, found: Rehearsal) -> tuple[Path | None, Path | None] | None:
    """The current run and the reference, once all is there that a night needs before its files; None where another
    night is running."""
    if holder := lock_holder(home / "nightly.lock"):
        _tell_models(config, current_run(home), home, found)
        found.end(FAILED, f"A nightly job is running ({holder}); another one fails at once.")
        return None
    if (home / PENDING).exists():
        found.notes.append("A night was killed as soon as it had promoted; tonight writes its line first.")
    require_ready(config, home)
    program = config.nightly.notify.command[:1]
    if program and shutil.which(program[0]) is None:
        found.notes.append(f"nightly.notify.command: {program[0]} is no program that can be started; nobody is told.")
    current = current_run(home)
    return current, _tell_models(config, current, home, found)


def ask_files(config: RunConfig, reports: Sequence[FileReport], found: Rehearsal) -> Decision | None:
    """What would be decided about the files that were checked; None where the night would end by it."""
    decision = decide(config, reports, write=False)
    _tell_files(found, reports, decision)
    if waiting := waits(decision):
        found.notes.append(waiting)
    if outcome := refused_by(decision):
        found.end(outcome.code, outcome.text)
        return None
    return decision


def _tell_models(config: RunConfig, current: Path | None, home: Path, found: Rehearsal) -> Path | None:
    """Name what would be compared with; the reference."""
    reference = reference_of(home, config.nightly.reference_nights)
    found.current, found.reference = (None if run is None else run.name for run in (current, reference))
    return reference


def _tell_files(found: Rehearsal, reports: Sequence[FileReport], decision: Decision) -> None:
    for report in reports:
        rows = None if report.measured is None else report.measured.rows
        verdict = "accepted" if report.accepted else "quarantined"
        why = [*report.reasons, *report.warnings]
        found.files.append({"file": report.path, "kind": report.kind, "verdict": verdict, "rows": rows, "why": why})
    for kind, drift in (decision.drift or {}).items():
        for item in drift.measures:
            if item.verdict != "ok":
                bound = item.levels[item.verdict == "drift"]
                measure = {"measure": item.measure, "value": item.value, "bound": bound, "verdict": item.verdict}
                found.drift.append({"kind": kind, "column": item.column} | measure)
    known = {text for entry in found.files for text in entry["why"]}
    found.notes += [text for text in decision.warnings if text not in known and not text.startswith("drift: ")]


def ask_retention(config: RunConfig, accepted: Collection[str], found: Rehearsal) -> None:
    """What would be removed once tonight's own run and artifacts are there, and its run is promoted. accepted: kinds of
    file of which it takes some."""
    keep = config.nightly.keep
    coming = [stage for stage, state in found.stages.items() if state == TO_MAKE]
    coming += [f"{STATISTICS}/{kind}" for kind in accepted]
    coming += ["window"] * ("window" in found.rows and "train" in coming)
    learns = bool(config.evaluate.baselines) and config.train.negatives is None
    coming += ["baselines"] * (learns and {"encode", "evaluate"} <= set(coming))
    runs: list[Path] = []
    artifacts: list[Path] = []
    freed = 0
    leases = needed(config)
    if keep.runs is not None:
        young = None if keep.days is None else keep.days * 86_400
        comes = found.stages["evaluate"] == TO_MAKE
        runs, freed = old_runs(config.runs, keep.runs - comes, config.name, young, (PREVIOUS, LATEST) if comes else ())
    if keep.artifacts is not None:
        artifacts, size = old_artifacts(config.artifacts, keep.artifacts, config.name, coming)
        freed += size
    del leases
    names = {"runs": [path.name for path in runs], "artifacts": [f"{p.parent.name}/{p.name}" for p in artifacts]}
    found.removed = names | {"bytes": freed}
