"""A rehearsal: what tonight's job would do, found by the night's own functions, with no training and no promotion.

It reads what the night reads and asks in the order in which the night asks. Nothing in `runs/<name>/` changes. What it
writes lies in the store, where the night finds it again: checksums, parsed files and the features stage's artifact.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.loaders.errors import LoaderError
from gigabatch.pipeline.config.config import RunConfig, load_config
from gigabatch.pipeline.contract.check import FileReport
from gigabatch.pipeline.contract.decide import Decision, check_new, decide
from gigabatch.pipeline.display import render_table
from gigabatch.pipeline.nightly.codes import FAILED, REFUSED
from gigabatch.pipeline.nightly.comparison import cannot_be_judged, changed_since, window_rows
from gigabatch.pipeline.nightly.learning import other_model, require_times
from gigabatch.pipeline.nightly.needed import needed
from gigabatch.pipeline.nightly.nightly import PENDING, refused_by, require_first, require_later_rows, waits
from gigabatch.pipeline.nightly.notify import require_notice
from gigabatch.pipeline.nightly.reference import reference_of
from gigabatch.pipeline.nightly.start import COLD, WARM, tonight
from gigabatch.pipeline.runs.find import home_of
from gigabatch.pipeline.runs.pointers import LATEST, PREVIOUS, current_run, read_pointers, require_links
from gigabatch.pipeline.runs.verify import WEIGHTS, weights_of
from gigabatch.pipeline.stages.stages import Encoded, Features, Pipeline, training_period
from gigabatch.pipeline.stages.start import require_lasting_values
from gigabatch.pipeline.stopping import stopped_by
from gigabatch.pipeline.store.files import json_text
from gigabatch.pipeline.store.garbage import STATISTICS, old_artifacts, old_runs
from gigabatch.pipeline.store.keys import BLAKE2B, file_checksum
from gigabatch.pipeline.store.locks import lock_holder
from gigabatch.pipeline.training.window import NothingNew

log = logging.getLogger(__name__)
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

    def show(self) -> None:
        """Tables and sentences on standard output."""
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


def run_rehearsal(config: str | Path, overrides: Sequence[str] = (), as_json: bool = False) -> int:
    """The command: prints what tonight would do; 0, or 20, 30 or 40 where the night would end so."""
    found = rehearse(load_config(config, overrides))
    if as_json:
        print(json_text(asdict(found)))
    else:
        found.show()
    return found.exit_code


def rehearse(config: RunConfig) -> Rehearsal:
    """What tonight would do, as far as it can be known without training.

    Parameters
    ----------
    config
        The configuration.

    Returns
    -------
    Rehearsal
        Also of a night that would be refused or fail, up to where it would.
    """
    found = Rehearsal(config.name)
    try:
        _ask(config, home_of(config), found)
    except Exception as error:
        if stopped_by(error):
            raise
        if not isinstance(error, ValueError):
            log.exception("nightly --dry-run")
        found.end(FAILED, f"Tonight would fail: {error}")
    return found


def _ask(config: RunConfig, home: Path, found: Rehearsal) -> None:
    if holder := lock_holder(home / "nightly.lock"):
        _tell_models(config, current_run(home), home, found)
        found.end(FAILED, f"A nightly job is running ({holder}); another one fails at once.")
        return
    if (home / PENDING).exists():
        found.notes.append("A night was killed as soon as it had promoted; tonight writes its line first.")
    require_later_rows(config)
    require_notice(config.nightly.notify)
    program = config.nightly.notify.command[:1]
    if program and shutil.which(program[0]) is None:
        found.notes.append(f"nightly.notify.command: {program[0]} is no program that can be started; nobody is told.")
    require_links(home)
    current = current_run(home)
    if current is None:
        require_first(home)
    reference = _tell_models(config, current, home, found)
    pipeline = Pipeline(config)
    reports = check_new(config)
    decision = decide(config, reports, write=False)
    _tell_files(found, reports, decision)
    if waiting := waits(decision):
        found.notes.append(waiting)
    if outcome := refused_by(decision):
        found.end(outcome.code, outcome.text)
        return
    try:
        features = pipeline.features(decision.state)
        found.stages["features"] = THERE if features.artifact.skipped else "made by this rehearsal"
        found.rows |= features.rows
        config, how, why = tonight(config, current, features.schema, decision.cold)
        found.start = {"how": how, "why": why}
        features = replace(features, pipeline=pipeline.with_config(config))
        require_times(features)
        if not _ask_stages(features, current, found):
            _ask_comparison(features, current, reference, found)
    except NothingNew as error:
        found.stages |= dict.fromkeys(STAGES[1:], "not needed")
        found.rows["trained"] = 0
        found.end(0, f"Tonight would be kept (exit code 10): nothing new. {error}")
    except (DataError, LoaderError) as error:
        found.end(REFUSED, f"Data would be refused: {error}")
        return
    files = {} if decision.state is None else decision.state.files
    _ask_retention(config, {files[name].kind for name in decision.accepted}, found)
    if not found.verdict:
        rows = f"{found.rows['trained']:,} rows, compares on {found.rows['compared']:,}"
        found.end(0, f"Tonight trains {found.start['how']} on {rows}, and promotes or keeps.")


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


class NotEncoded(Encoded):
    """Rows that are not encoded yet, with the preprocessor that they will be encoded with, before it grows.

    `warm_start` and `window` need no more of it than its columns, fills, scales and the values of the start.
    """

    @property
    def preprocessor(self) -> Preprocessor:
        pipeline = self.features.pipeline
        assert pipeline.start is not None, "the night's warm start grows a preprocessor"
        return pipeline.start.preprocessor.carried_to(self.features.schema, pipeline.config.preprocess.encoding)


def _ask_stages(features: Features, current: Path | None, found: Rehearsal) -> bool:
    """What is there of tonight's stages, and on how many rows it trains; whether its model is known to be kept out."""
    pipeline = features.pipeline
    if pipeline.start is not None:
        require_lasting_values(features.workflow, features.schema)
    artifact = features.encoded_before()
    found.stages |= dict.fromkeys(STAGES, TO_MAKE) | ({} if artifact is None else {"encode": THERE})
    found.rows["trained"] = features.rows["train"]
    if artifact is None and pipeline.start is None:
        return False
    encoded = (Encoded if artifact is not None else NotEncoded)(features, artifact)  # type: ignore[arg-type]
    if encoded.cold_note and found.start["how"] == WARM:
        found.start = {"how": COLD, "why": encoded.cold_note}
    if encoded.window is not None:
        found.rows |= {"trained": encoded.num_trained, "window": encoded.window.counts()}
    if artifact is None:
        return False
    trained = pipeline.store.find("train", encoded.train_key)
    if trained is None:
        return False
    found.stages["train"] = THERE
    weights = file_checksum(trained.path / WEIGHTS, BLAKE2B)
    blocked = read_pointers(home_of(pipeline.config)).blocked.items()
    if back := [name for name, entry in blocked if entry.get("weights") == weights]:
        whose = f"run {back[0]}, which was rolled back"
    elif current is not None and weights_of(current) == weights:
        whose = f"the current run, {current.name}"
    else:
        return False
    found.end(0, f"Tonight would be kept (exit code 10): its weights are those of {whose}.")
    return True


def _ask_comparison(features: Features, current: Path | None, reference: Path | None, found: Rehearsal) -> None:
    """On how many rows the models would be compared; raises what the night would be refused or fail for then."""
    pipeline, new = features.pipeline, "new model" if current is None else "new one"
    ends = {new: training_period(features)["trained_until"]}
    if current is not None:
        other = other_model(pipeline, current)
        if changed := changed_since(other, features):
            raise DataError(changed)
        if reason := cannot_be_judged(other.bundle, features):
            found.end(FAILED, f"Tonight would train and fail: the current model {reason}.")
            return
        ends["current model"] = other.bundle.info["trained_until"]
    if reference is not None:
        other = other_model(pipeline, reference)
        reason = changed_since(other, features) or cannot_be_judged(other.bundle, features)
        if reason:
            found.notes.append(f"The reference, run {reference.name}, would not be compared: it {reason}.")
        else:
            ends["reference"] = other.bundle.info["trained_until"]
    found.rows["compared"] = len(window_rows(features, ends))


def _ask_retention(config: RunConfig, accepted: Collection[str], found: Rehearsal) -> None:
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
