"""The nightly job: train on what is there tonight, compare with the current model, promote or keep.

`runs/<name>/current` is the promoted run, `runs/<name>/previous` the one before it. Both models are scored on the
same rows: those of the new test split that come after everything either model was fitted or selected on. The new one
is promoted if the lower bound of the paired bootstrap of its gain is above minus the stated tolerance, it beats a
constant, and it is not far below what the current one reached when it was trained (`comparison.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from gigabatch.features.errors import DataError
from gigabatch.loaders.errors import LoaderError
from gigabatch.pipeline.bundle import Bundle, load_bundle
from gigabatch.pipeline.config.config import ConfigError, RunConfig
from gigabatch.pipeline.display import render_table
from gigabatch.pipeline.embedding.embed import embed
from gigabatch.pipeline.embedding.embed_write import EmbedSettings
from gigabatch.pipeline.nightly.comparison import Comparison, compare
from gigabatch.pipeline.nightly.times import refuse_future
from gigabatch.pipeline.reports.report import ReportData, write_report
from gigabatch.pipeline.stages.run import Run
from gigabatch.pipeline.stages.stages import Features, Pipeline
from gigabatch.pipeline.store.files import ArtifactError, atomic_symlink, json_text
from gigabatch.pipeline.store.locks import folder_lock

log = logging.getLogger(__name__)
PROMOTED, KEPT, REFUSED, FAILED = 0, 10, 20, 40


def run_nightly(config: str | Path, overrides: Sequence[str] = ()) -> int:
    """Exit code 0 promoted, 10 kept, 20 data refused, 40 failed. One run at a time; a second one fails at once."""
    pipeline = Pipeline.from_config(config, *overrides)
    home = pipeline.config.runs / pipeline.config.name
    try:
        with folder_lock(home / "nightly.lock"):
            return _recorded(pipeline, home)
    except ArtifactError as error:
        print(f"Failed: {error}")
        return FAILED


def _recorded(pipeline: Pipeline, home: Path) -> int:
    """A night that fails leaves its line too, whatever made it fail."""
    try:
        return _locked(pipeline, home)
    except Exception as error:
        if not isinstance(error, ValueError):
            log.exception("nightly")
        return _finish(home, FAILED, f"Failed: {error}")


def _locked(pipeline: Pipeline, home: Path) -> int:
    require_later_rows(pipeline.config)
    try:
        features = pipeline.features()
        if features.schema.only("time") is None:
            raise ConfigError("nightly: the recipe has no time column, so no row is known to be new to both models.")
        refuse_future(features)
        encoded = features.encode()
    except (DataError, LoaderError) as error:
        return _finish(home, REFUSED, f"Data refused: {error}")
    candidate = encoded.train()
    current = home / "current"
    if not current.exists():
        return _promote(home, features, candidate, None, "Promoted: there was no current model to compare with.")
    if current.resolve() == candidate.path.resolve():
        return _finish(home, KEPT, "Kept: nothing changed, the current model is the one of today's data.")
    try:
        models = load(pipeline, current), load(pipeline, candidate.path)
        comparison = compare(pipeline, features, *models, Run(current).summary)
    except DataError as error:
        return _finish(home, REFUSED, f"Data refused: {error}")
    tolerance = pipeline.config.nightly.tolerance
    negatives = pipeline.config.train.negatives
    drawn = f", each among {negatives.per_positive} drawn items" if negatives is not None else ""
    text = (
        f"{comparison.metric} {comparison.candidate:.4f} against {comparison.current:.4f} on {comparison.rows:,} rows "
        f"that neither model has seen{drawn}; gain {comparison.gain:+.4f}, lower bound {comparison.bound:+.4f}, "
        f"tolerance {tolerance}."
    )
    obstacle = comparison.obstacle(pipeline.config.nightly.max_skill_drop)
    if obstacle:
        return _finish(home, KEPT, f"Kept: {text} {obstacle}", candidate, comparison)
    if comparison.bound > -tolerance:
        return _promote(home, features, candidate, comparison, f"Promoted: {text}")
    return _finish(home, KEPT, f"Kept: {text}", candidate, comparison)


def load(pipeline: Pipeline, run: Path) -> Bundle:
    return load_bundle(run / "model", pipeline.device, pipeline.engine)


def require_later_rows(config: RunConfig) -> None:
    """Raise `ConfigError` where the recipe's splits leave no test rows that come after the others."""
    way = getattr(config.features, "way", "time")
    if way == "time":
        return
    how, remedy = f"with features.split_by: {way},", "Set features.split_by=time."
    if not hasattr(config.features, "split_by"):
        how, remedy = (
            f"rows are split by {way}, so",
            "Set features.path, and features.time to the column of their times.",
        )
    raise ConfigError(
        f"nightly: {how} the test rows do not come after those of training, so no row is new to both models. {remedy}"
    )


def _promote(home: Path, features: Features, candidate: Run, comparison: Comparison | None, text: str) -> int:
    _store_vectors(features, candidate)
    current = home / "current"
    if current.exists():
        atomic_symlink(Path(current.resolve().name), home / "previous")
    atomic_symlink(Path(candidate.path.name), current)
    return _finish(home, PROMOTED, text, candidate, comparison)


def _store_vectors(features: Features, candidate: Run) -> None:
    """What a service that watches `current` needs of a recommender before it can take it over."""
    pipeline = features.pipeline
    if pipeline.config.nightly.embed == "off" or not features.schema.entities:
        return
    bundle = load(pipeline, candidate.path)
    if None not in (bundle.schema.entity("user"), bundle.schema.entity("item")):
        embed(candidate.path, bundle, features, EmbedSettings())


def _finish(
    home: Path, code: int, text: str, candidate: Run | None = None, comparison: Comparison | None = None
) -> int:
    """Say the outcome, append it to nightly.jsonl, and write the night's report."""
    home.mkdir(parents=True, exist_ok=True)
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"at": moment, "exit_code": code, "decision": text, "run": candidate.path.name if candidate else None}
    if comparison:
        entry |= vars(comparison)
    with open(home / "nightly.jsonl", "a") as file:
        file.write(json_text(entry) + "\n")
    rows = [vars(comparison)] if comparison else []
    if comparison:
        render_table(rows, "Nightly")
    if candidate:
        summary = candidate.summary
        report = ReportData(
            name=f"{summary['name']} nightly",
            run_id=summary["id"],
            created_utc=moment,
            decision=text,
            promoted=code == PROMOTED,
            comparison=rows,
            metrics={name: summary[name] for name in ("auc", "logloss", "ece", "mrr")},
            notes=summary["notes"],
        )
        write_report(home / "nightly.html", report)
    print(text)
    return code


def rollback(config: str | Path, overrides: Sequence[str] = ()) -> int:
    """Swap `current` and `previous`: the model before is current again, and a second rollback undoes the first."""
    settings = Pipeline.from_config(config, *overrides).config
    home = settings.runs / settings.name
    with folder_lock(home / "nightly.lock"):
        current, previous = home / "current", home / "previous"
        if not previous.exists():
            raise ConfigError(f"rollback: {previous} does not exist; there is no model before the current one.")
        old, new = previous.resolve().name, current.resolve().name
        atomic_symlink(Path(new), previous)
        atomic_symlink(Path(old), current)
        _finish(home, PROMOTED, f"Rolled back: {old} is current again, {new} is the one before.")
    return 0
