"""The nightly job: train on what is there tonight, compare with the current model, promote or keep.

`runs/<name>/current` is the promoted run, `runs/<name>/previous` the one before it (`pipeline/runs/`). Both models are
scored on the same rows: those of the new test split that come after everything either model was fitted or selected on.
The new one is promoted if the lower bound of the paired bootstrap of its gain is above minus the stated tolerance, it
beats a constant, it is not far below what the current one reached when it was trained (`comparison.py`), its weights
are others than the current ones, and nobody has rolled it back. Where no run is promoted, it is promoted if it beats a
constant on the rows that come after its own training data, and nobody has rolled it back.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gigabatch.features.errors import DataError
from gigabatch.loaders.errors import LoaderError
from gigabatch.pipeline.bundle import Bundle, load_bundle
from gigabatch.pipeline.config.config import ConfigError, RunConfig, load_config
from gigabatch.pipeline.display import render_table
from gigabatch.pipeline.embedding.embed import embed
from gigabatch.pipeline.embedding.embed_write import EmbedSettings
from gigabatch.pipeline.evaluation.evaluate import choose_metric
from gigabatch.pipeline.nightly.comparison import Floor, compare, compare_with_constant
from gigabatch.pipeline.nightly.times import refuse_future
from gigabatch.pipeline.reports.report import ReportData, write_report
from gigabatch.pipeline.runs.find import home_of
from gigabatch.pipeline.runs.pointers import current_run, read_pointers, require_links
from gigabatch.pipeline.runs.promote import block_of, promote
from gigabatch.pipeline.runs.record import append_record
from gigabatch.pipeline.runs.verify import weights_of
from gigabatch.pipeline.stages.run import Run
from gigabatch.pipeline.stages.stages import Features, Pipeline
from gigabatch.pipeline.stopping import Stopped, stopped_by, stopped_text
from gigabatch.pipeline.store.files import ArtifactError
from gigabatch.pipeline.store.locks import folder_lock

log = logging.getLogger(__name__)
PROMOTED, KEPT, REFUSED, FAILED = 0, 10, 20, 40


@dataclass(frozen=True)
class Outcome:
    """What a night came to."""

    code: int
    text: str
    candidate: Run | None = None
    comparison: Floor | None = None


def run_nightly(config: str | Path, overrides: Sequence[str] = ()) -> int:
    """Exit code 0 promoted, 10 kept, 20 data refused, 40 failed. One run at a time; a second one fails at once.

    `ConfigError` where there is no configuration that could say where a night's line belongs.
    """
    loaded = load_config(config, overrides)
    home = home_of(loaded)
    try:
        with folder_lock(home / "nightly.lock"):
            return _recorded(loaded, home)
    except ArtifactError as error:
        text = f"Failed: {error}"
        append_record(home, "nightly", FAILED, text, None)
        print(text)
        return FAILED


def _recorded(config: RunConfig, home: Path) -> int:
    """One line a night, whatever it came to; the report afterwards, which changes nothing of that."""
    try:
        outcome = _night(config, home)
    except (Exception, KeyboardInterrupt) as error:
        if number := stopped_by(error):
            append_record(home, "nightly", 128 + number, stopped_text(number), None)
            raise Stopped(number, recorded=True) from error
        if not isinstance(error, ValueError):
            log.exception("nightly")
        outcome = Outcome(FAILED, f"Failed: {error}")
    run = outcome.candidate.path.name if outcome.candidate else None
    compared = vars(outcome.comparison) if outcome.comparison else {}
    moment = append_record(home, "nightly", outcome.code, outcome.text, run, **compared)
    try:
        _show(home, outcome, moment)
    except Exception:  # a full disk, or a chart that cannot be drawn
        log.exception("%s could not be written; what was decided stands", home / "nightly.html")
    except KeyboardInterrupt as error:
        raise Stopped(stopped_by(error) or signal.SIGINT, recorded=True) from error
    print(outcome.text)
    return outcome.code


def _night(config: RunConfig, home: Path) -> Outcome:
    require_later_rows(config)
    require_links(home)  # before any work
    current_run(home)  # where the link leads nowhere
    pipeline = Pipeline(config)
    try:
        features = pipeline.features()
        if features.schema.only("time") is None:
            raise ConfigError("nightly: the recipe has no time column, so no row is known to be new to both models.")
        choose_metric(config.nightly, features.schema, in_groups=config.train.negatives is not None)
        refuse_future(features)
        encoded = features.encode()
    except (DataError, LoaderError) as error:
        return Outcome(REFUSED, f"Data refused: {error}")
    candidate = encoded.publish(encoded.fit_model(), promote=False)
    current, reason = current_run(home), block_of(read_pointers(home), candidate.path)
    if reason:
        return Outcome(KEPT, f"Kept: {reason}", candidate)
    if current is None:
        return _first(features, home, candidate)
    if current == candidate.path.resolve():
        return Outcome(KEPT, "Kept: nothing changed, the current model is the one of today's data.")
    if weights_of(current) == weights_of(candidate.path):
        return Outcome(KEPT, f"Kept: the weights are those of the current model, run {current.name}.", candidate)
    try:
        models = load(pipeline, current), load(pipeline, candidate.path)
        comparison = compare(features, *models, Run(current).summary, candidate.path.name)
    except DataError as error:
        return Outcome(REFUSED, f"Data refused: {error}", candidate)
    tolerance = pipeline.config.nightly.tolerance
    text = (
        f"{comparison.metric} {comparison.candidate:.4f} against {comparison.current:.4f} on {comparison.rows:,} rows "
        f"that neither model has seen{_drawn(config)}; gain {comparison.gain:+.4f}, lower bound "
        f"{comparison.bound:+.4f}, tolerance {tolerance}."
    )
    obstacle = comparison.obstacle(pipeline.config.nightly.max_skill_drop)
    if obstacle:
        return Outcome(KEPT, f"Kept: {text} {obstacle}", candidate, comparison)
    if comparison.bound > -tolerance:
        return _promote(home, features, Outcome(PROMOTED, f"Promoted: {text}", candidate, comparison), current)
    return Outcome(KEPT, f"Kept: {text}", candidate, comparison)


def _first(features: Features, home: Path, candidate: Run) -> Outcome:
    """The outcome where no run is current: the new model is compared with a constant alone."""
    try:
        found = compare_with_constant(features, load(features.pipeline, candidate.path))
    except DataError as error:
        return Outcome(REFUSED, f"Data refused: {error}", candidate)
    text = (
        f"no model is current. The new one has {found.metric} {found.candidate:.4f} on {found.rows:,} rows that it has "
        f"not seen{_drawn(features.pipeline.config)}, a constant {found.constant:.4f}."
    )
    if obstacle := found.no_better_than_constant():
        by_hand = f"gigabatch promote {candidate.path.name} promotes it all the same."
        return Outcome(KEPT, f"Kept out: {text} {obstacle} {by_hand}", candidate, found)
    return _promote(home, features, Outcome(PROMOTED, f"Promoted: {text}", candidate, found), None)


def _drawn(config: RunConfig) -> str:
    negatives = config.train.negatives
    return f", each among {negatives.per_positive} drawn items" if negatives is not None else ""


def load(pipeline: Pipeline, run: Path) -> Bundle:
    return load_bundle(run / "model", pipeline.device, pipeline.engine)


def require_later_rows(config: RunConfig) -> None:
    """Raise `ConfigError` where the recipe's splits leave no test rows that come after the others."""
    if not hasattr(config.features, "way") and getattr(config.features, "time", "") is None:
        raise ConfigError(
            "nightly: features.time names no column, so no row is known to come after those of training, and none is "
            "new to both models. Name the time of a row, by which the one file or folder of features.path is split."
        )
    way = getattr(config.features, "way", "time")
    if way != "time":
        raise ConfigError(
            f"nightly: with features.split_by: {way}, the test rows do not come after those of training, so no row is "
            "new to both models. Set features.split_by=time."
        )


def _promote(home: Path, features: Features, outcome: Outcome, expected: Path | None) -> Outcome:
    assert outcome.candidate is not None
    _store_vectors(features, outcome.candidate)
    promote(home, outcome.candidate.path, expected)
    return outcome


def _store_vectors(features: Features, candidate: Run) -> None:
    """What a service that watches `current` needs of a recommender before it can take it over."""
    pipeline = features.pipeline
    if pipeline.config.nightly.embed == "off" or not features.schema.entities:
        return
    bundle = load(pipeline, candidate.path)
    if None not in (bundle.schema.entity("user"), bundle.schema.entity("item")):
        embed(candidate.path, bundle, features, EmbedSettings())


def _show(home: Path, outcome: Outcome, moment: str) -> None:
    """The comparison as a table, and the night's report."""
    rows = [vars(outcome.comparison)] if outcome.comparison else []
    if rows:
        render_table(rows, "Nightly")
    if outcome.candidate:
        summary = outcome.candidate.summary
        report = ReportData(
            name=f"{summary['name']} nightly",
            run_id=summary["id"],
            created_utc=moment,
            decision=outcome.text,
            promoted=outcome.code == PROMOTED,
            comparison=rows,
            metrics={name: summary[name] for name in ("auc", "logloss", "ece", "mrr")},
            notes=summary["notes"],
        )
        write_report(home / "nightly.html", report)
