"""The nightly job: train on what is there tonight, compare with the current model, promote or keep.

`runs/<name>/current` is the promoted run, `runs/<name>/previous` the one before it. Both models are scored on the
same rows: those of the new test split that come after everything either model was fitted or selected on. The new one
is promoted if the lower bound of the paired bootstrap of its gain is above minus the stated tolerance.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gigabatch.features.errors import DataError
from gigabatch.loaders.errors import LoaderError
from gigabatch.models.metrics.pointwise import log_loss, multiclass_log_loss, rmse, roc_auc
from gigabatch.models.metrics.ranking import grouped_mrr, reciprocal_ranks
from gigabatch.pipeline.bundle import Bundle, load_bundle
from gigabatch.pipeline.config.config import ConfigError, NightlySettings, RunConfig
from gigabatch.pipeline.display import render_table
from gigabatch.pipeline.embedding.embed import embed
from gigabatch.pipeline.embedding.embed_write import EmbedSettings
from gigabatch.pipeline.evaluation.evaluate import choose_metric, evaluate
from gigabatch.pipeline.reports.report import ReportData, write_report
from gigabatch.pipeline.stages.run import Run
from gigabatch.pipeline.stages.stages import Features, Pipeline, evaluation_table_of
from gigabatch.pipeline.store.files import ArtifactError, atomic_symlink
from gigabatch.pipeline.store.locks import folder_lock

log = logging.getLogger(__name__)
PROMOTED, KEPT, REFUSED, FAILED = 0, 10, 20, 40


@dataclass(frozen=True)
class Comparison:
    """Both models on one window. gain: candidate less current, so that more is better; bound: its lower bound."""

    metric: str
    rows: int
    current: float
    candidate: float
    gain: float
    bound: float


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
        comparison = compare(pipeline, features, load(pipeline, current), load(pipeline, candidate.path))
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
    if comparison.bound > -tolerance:
        return _promote(home, features, candidate, comparison, f"Promoted: {text}")
    return _finish(home, KEPT, f"Kept: {text}", candidate, comparison)


def load(pipeline: Pipeline, run: Path) -> Bundle:
    return load_bundle(run / "model", pipeline.device, pipeline.engine)


def require_later_rows(config: RunConfig) -> None:
    """Raise `ConfigError` where the recipe's splits leave no test rows that come after the others."""
    way = getattr(config.features, "way", "time")
    if way != "time":
        raise ConfigError(
            f"nightly: with features.split_by: {way}, the test rows do not come after those of training, so no row is "
            "new to both models. Set features.split_by=time."
        )


def compare(pipeline: Pipeline, features: Features, current: Bundle, candidate: Bundle) -> Comparison:
    """Both bundles on the rows of the test split that neither has seen, with `train.negatives` each among items that
    are drawn for it from the bundle's own vocabulary; then MRR decides where no other metric is asked for."""
    settings, negatives = pipeline.config.nightly, pipeline.config.train.negatives
    frame = unseen_rows(features, [current, candidate])
    if len(frame) < settings.min_window_rows:
        raise DataError(
            f"only {len(frame)} labelled rows come after both models' training data; nightly.min_window_rows asks for "
            f"{settings.min_window_rows}. Wait for more data."
        )
    outputs = []
    for bundle in (current, candidate):
        reason = None
        if bundle.schema.targets != features.schema.targets:
            reason = "predicts other targets than today's features hold"
        elif negatives is not None and bundle.schema.entity("item") is None:
            reason = "was trained when the schema named no item, so none can be drawn for it"
        if reason:
            link = pipeline.config.runs / pipeline.config.name / "current"
            raise ConfigError(f"the current model {reason}. Remove the link {link} to start anew.")
        table = evaluation_table_of(bundle, features, frame)
        outputs.append(evaluate(bundle.model, table, bundle.schema, pipeline.device).predictions[0].cpu())
    batch = table.unpack(table.words)
    labels, group = batch.targets[0].cpu(), None if batch.group is None else batch.group.cpu()
    metric = choose_metric(settings, features.schema, in_groups=negatives is not None)
    found = bootstrap(metric, outputs[0], outputs[1], labels, group, settings, pipeline.config.seed)
    return replace(found, rows=len(frame))


def unseen_rows(features: Features, bundles: Sequence[Bundle]) -> Any:
    """Rows of the test split later than everything that any of the bundles was fitted or selected on."""
    time = features.schema.only("time")
    if time is None:
        raise ConfigError("nightly: the recipe has no time column, so it cannot tell which rows a model has not seen.")
    frame = features.frame("test")
    return frame[frame[time] > max(bundle.info["trained_until"] for bundle in bundles)].reset_index(drop=True)


def bootstrap(
    metric: str,
    current: Tensor,
    candidate: Tensor,
    labels: Tensor,
    group: Tensor | None,
    settings: NightlySettings,
    seed: int,
) -> Comparison:
    """Paired bootstrap (Efron and Tibshirani 1993, chapter 16): both models on the same resamples of rows, or of
    groups where MRR decides. bound: the (1 - confidence) quantile of the gain."""
    generator = torch.Generator().manual_seed(seed)
    if metric == "mrr":
        assert group is not None
        return _bootstrap_groups(current, candidate, labels, group, settings, generator)
    sign = 1.0 if metric == "auc" else -1.0
    binary = bool(((labels == 0) | (labels == 1)).all())
    loss_name = "log loss" if current.dim() == 2 or binary else "RMSE"

    def measure(scores: Tensor, weight: Tensor | None) -> float:
        if metric == "auc":
            return float(roc_auc(scores, labels, weight))
        if scores.dim() == 2:
            return float(multiclass_log_loss(scores, labels, weight))
        return float(log_loss(scores, labels, weight) if binary else rmse(scores, labels, weight))

    rows = len(labels)
    gains = []
    for _ in range(settings.num_bootstrap):
        weight = torch.randint(rows, (rows,), generator=generator).bincount(minlength=rows).float()
        gains.append(sign * (measure(candidate, weight) - measure(current, weight)))
    old, new = measure(current, None), measure(candidate, None)
    bound = torch.tensor(gains, dtype=torch.float64).quantile(1 - settings.confidence)
    return Comparison("AUC" if metric == "auc" else loss_name, rows, old, new, sign * (new - old), float(bound))


def _bootstrap_groups(
    current: Tensor,
    candidate: Tensor,
    labels: Tensor,
    group: Tensor,
    settings: NightlySettings,
    generator: torch.Generator,
) -> Comparison:
    # MRR is a mean over groups, so it is enough to resample each group's reciprocal ranks.
    each = [reciprocal_ranks(scores, labels, group) for scores in (current, candidate)]
    difference = each[1] - each[0]
    count = len(difference)
    gains = torch.stack(
        [difference[torch.randint(count, (count,), generator=generator)].mean() for _ in range(settings.num_bootstrap)]
    )
    old, new = (float(grouped_mrr(scores, labels, group)) for scores in (current, candidate))
    return Comparison("MRR", len(labels), old, new, new - old, float(gains.quantile(1 - settings.confidence)))


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
        file.write(json.dumps(entry) + "\n")
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
