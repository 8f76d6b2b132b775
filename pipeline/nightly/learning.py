"""A night from its features on: training, comparison, promotion; `nightly.py` has what is around it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gigabatch.features.errors import DataError
from gigabatch.loaders.errors import LoaderError
from gigabatch.pipeline.bundle import Bundle, load_bundle
from gigabatch.pipeline.config.config import ConfigError, NightlySettings, RunConfig
from gigabatch.pipeline.contract.decide import Decision
from gigabatch.pipeline.display import apart
from gigabatch.pipeline.embedding.embed import embed
from gigabatch.pipeline.embedding.settings import EmbedSettings
from gigabatch.pipeline.evaluation.evaluate import choose_metric
from gigabatch.pipeline.export.export import export_bundle, require_exportable
from gigabatch.pipeline.nightly.codes import FAILED, KEPT, MORE_IS_BETTER, PROMOTED, REFUSED
from gigabatch.pipeline.nightly.comparison import MOST, Comparison, Judged, Other, compare
from gigabatch.pipeline.nightly.night import (
    NOTHING_NEW,
    PENDING,
    Night,
    Outcome,
    data_of,
    nothing_new_of,
    quarantine_text,
    told_of_comparison,
)
from gigabatch.pipeline.nightly.reference import reference_of
from gigabatch.pipeline.nightly.start import COLD, WARM, tonight
from gigabatch.pipeline.nightly.times import refuse_future
from gigabatch.pipeline.runs.find import home_of
from gigabatch.pipeline.runs.pointers import current_run, read_pointers
from gigabatch.pipeline.runs.promote import block_of, promote
from gigabatch.pipeline.runs.record import now
from gigabatch.pipeline.runs.verify import weights_of
from gigabatch.pipeline.stages.finished import Run
from gigabatch.pipeline.stages.run import environment
from gigabatch.pipeline.stages.stages import Features, Pipeline
from gigabatch.pipeline.stages.start import require_lasting_values
from gigabatch.pipeline.stopping import stopped_by
from gigabatch.pipeline.store.artifacts import Artifact
from gigabatch.pipeline.store.files import write_json
from gigabatch.pipeline.store.keys import artifact_key
from gigabatch.pipeline.training.window import NothingNew

log = logging.getLogger(__name__)
NUMBERED = "The current model would be judged on them."


def begun(night: Night) -> Pipeline:
    """The night's pipeline, and what its line tells of it."""
    config = night.config
    require_exportable(config.model.kind, config.nightly.export)
    pipeline = Pipeline(config)
    night.told |= {"seed": config.seed, "config": artifact_key("config", {}, config.to_dict(), "")}
    night.told["environment"] = environment(pipeline.device)
    return pipeline


def learn(night: Night, pipeline: Pipeline, decision: Decision) -> Outcome:
    """Features, encode, train, evaluate, compare, promote, of the files that were decided on.

    `ArtifactError` where data would be refused, or something fails, and an artifact is not what was written.
    """
    try:
        outcome = _learn(night, pipeline, decision)
    except (OSError, ValueError) as error:
        if stopped_by(error) is None:
            pipeline.store.require_whole("features", "encode")
        raise
    if outcome.code == REFUSED:
        pipeline.store.require_whole("features", "encode")
    return outcome


def _learn(night: Night, pipeline: Pipeline, decision: Decision) -> Outcome:
    config, home = night.config, night.home
    try:
        with night.step("features") as step:
            features = pipeline.features(decision.state)
            step |= _size(features.artifact) | {"files": features.files, "history": features.history}
        with night.step("start"):
            night.told |= {"data": data_of(config, decision.state), "splits": features.rows}
            require_lasting_values(features.workflow, features.schema, "nightly", NUMBERED)
            config, how, why = tonight(config, current_run(home), features.schema, decision.cold)
            night.told["start"] = {"how": how, "why": why}
            log.info("tonight's training starts %s: %s", how, why)
            pipeline = pipeline.with_config(config)
            features = replace(features, pipeline=pipeline)
            require_times(features)
        with night.step("encode") as step:
            encoded = features.encode()
            step |= _size(encoded.artifact)
        require_exportable(config.model.kind, config.nightly.export, encoded.preprocessor)  # before the training
        night.material.encoded = encoded
        if how == WARM and encoded.cold_note:
            night.told["start"] = {"how": COLD, "why": encoded.cold_note}
        elif how == WARM and (window := encoded.window) is not None:
            night.told["window"] = window.counts()
    except NothingNew as error:
        text = f"Kept: nothing new. {error}"
        if night.request is not None and night.request.key is not None:
            night.told[NOTHING_NEW] = {"of": nothing_new_of(night.request, features.artifact.key), "text": text}
        return Outcome(KEPT, text)
    except (DataError, LoaderError) as error:
        return Outcome(REFUSED, f"Data refused: {error}")
    with night.step("train") as step:
        trained = encoded.fit_model()
        step |= _size(trained)
    with night.step("evaluate"):
        candidate = encoded.publish(trained, promote=False)
    with night.step("known"):
        current = current_run(home)
        if reason := known_already(pipeline, candidate, current):
            return Outcome(KEPT, f"Kept: {reason}", candidate)
    reference = reference_of(home, config.nightly.reference_nights)
    night.told["reference"] = None if reference is None else reference.name
    try:
        with night.step("compare"):
            others = [
                None if run is None else other_model(pipeline, run) for run in (candidate.path, current, reference)
            ]
            assert others[0] is not None
            judged = compare(features, others[0], others[1], others[2], look=partial(night.material.look, home=home))
    except DataError as error:
        return Outcome(REFUSED, f"Data refused: {error}", candidate)
    except ConfigError as error:
        return Outcome(FAILED, f"Failed: {error}", candidate)
    outcome = judge(config, judged, candidate, first=current is None)
    if put_aside := quarantine_text(decision):
        outcome = replace(outcome, text=f"{outcome.text} {put_aside}")
    if outcome.code == PROMOTED:
        with night.step("store"):
            _store_vectors(features, candidate)
            _export(config, candidate)
        pending = {"run": candidate.path.name, "at": now(), "text": outcome.text, "cold": dict(decision.cold)}
        write_json(home / PENDING, pending | told_of_comparison(outcome) | night.told | {"steps": night.steps})
        with night.step("promote"):
            promote(home, candidate.path, current)
    return outcome


def known_already(pipeline: Pipeline, candidate: Run, current: Path | None) -> str | None:
    """Why the new run need not be compared with any; None where it is to be."""
    pointers = read_pointers(home_of(pipeline.config))
    if reason := block_of(pointers, candidate.path):
        return reason
    for start in pipeline.starts:  # rolled back while the night trained, maybe for what no metric shows
        if reason := block_of(pointers, start.path):
            return f"it goes on from a run that may not be promoted: {reason}"
    if current is not None and current == candidate.path.resolve():
        return "nothing changed, the current model is the one of today's data."
    if current is not None and weights_of(current) == weights_of(candidate.path):
        return f"the weights are those of the current model, run {current.name}."
    return None


def require_times(features: Features) -> None:
    """Raise `ConfigError` or `DataError` where tonight's features cannot be compared on, or have rows after now."""
    config = features.pipeline.config
    if features.schema.only("time") is None:
        raise ConfigError("nightly: the recipe has no time column, so no row is known to be new to both models.")
    metric = choose_metric(config.nightly, features.schema, in_groups=config.train.negatives is not None)
    if metric == "logloss" and config.train.prior is not None and features.schema.targets[0].task == "binary":
        raise ConfigError(
            "nightly.metric: with train.prior probabilities are those for serving, which the log loss on rows of "
            "another share of label 1 calls wrong. Set nightly.metric=auc, or train.prior=null."
        )
    refuse_future(features)


def _size(artifact: Artifact) -> dict[str, Any]:
    files = artifact.manifest["files"].values()
    return {"skipped": artifact.skipped, "bytes": sum(entry["bytes"] for entry in files)}


def other_model(pipeline: Pipeline, run: Path) -> Other:
    return Other(run.name, load(pipeline, run), Run(run).summary)


def judge(config: RunConfig, judged: Judged, candidate: Run, first: bool) -> Outcome:
    """Promote or keep, by what was found on the window.

    Parameters
    ----------
    config
        The night's.
    judged
        What `compare` found.
    candidate
        The new run.
    first
        Whether no run is current, so that only the constant is to be beaten.
    """
    settings, drawn = config.nightly, _drawn(config)
    found = judged.first
    if first:
        own, constant = apart([found.candidate, found.constant])
        text = (
            f"no model is current. The new one has {found.metric} {own} on {found.rows:,} rows that it has not "
            f"seen{drawn}, a constant {constant}."
        )
        reasons = [
            f"{_of_target(judged, name)}{obstacle}"
            for name, floor in judged.floors.items()
            if (obstacle := floor.no_better_than_constant())
        ]
    else:
        assert isinstance(found, Comparison)
        share = "" if found.metric in MORE_IS_BETTER else " of the constant's"
        gain, bound, _ = _signed(found.gain, found.bound, -found.tolerated(settings.tolerance))
        text = (
            f"{found.metric} {' against '.join(apart([found.candidate, found.current]))} on {found.rows:,} rows that "
            f"neither model has seen{drawn}; gain {gain}, lower bound {bound}, tolerance {settings.tolerance}{share}."
        )
        reasons = list(_obstacles(judged, settings))
    text = " ".join([text, *reasons, *judged.left_out])
    if not reasons:
        return Outcome(PROMOTED, f"Promoted: {text}", candidate, judged)
    if first:
        by_hand = f"gigabatch promote {candidate.path.name} promotes it all the same."
        return Outcome(KEPT, f"Kept out: {text} {by_hand}", candidate, judged, tuple(reasons))
    return Outcome(KEPT, f"Kept: {text}", candidate, judged, tuple(reasons))


def _signed(*values: float) -> list[str]:
    """With their signs; "no number" of one that is only told apart from numbers."""
    found = iter(apart([value + 0.0 for value in values if abs(value) < MOST], 2))
    texts = [next(found) if abs(value) < MOST else "no number" for value in values]
    return [text if text.startswith(("-", "no")) else f"+{text}" for text in texts]


def _of_target(judged: Judged, name: str) -> str:
    return f"Target {name!r}: " if len(judged.floors) > 1 else ""


def _obstacles(judged: Judged, settings: NightlySettings) -> Iterator[str]:
    """Why the new model may not replace the current one, a sentence a reason."""
    for name, found in judged.floors.items():
        assert isinstance(found, Comparison)
        target = _of_target(judged, name)
        if obstacle := found.obstacle(settings.max_skill_drop):
            yield f"{target}{obstacle}"
        elif not found.holds(settings.tolerance):
            _, _, least = _signed(found.gain, found.bound, -found.tolerated(settings.tolerance))  # as `judge` does
            yield f"{target}The lower bound of the gain is not above {least}."
    for name, found in judged.reference.items():
        if not found.holds(settings.reference_tolerance):
            bound, least = _signed(found.bound, -found.tolerated(settings.reference_tolerance))
            # A model that came out better has lost nothing that is known: its rows are few.
            why = "so few rows do not rule out such a loss" if found.gain > 0 else "small losses have added up"
            yield (
                f"{_of_target(judged, name)}Against the reference, which was current {settings.reference_nights} "
                f"nights ago or is the oldest that counts, the {found.metric} is "
                f"{' to '.join(apart([found.candidate, found.current]))}; the lower bound of the gain, {bound}, is not "
                f"above {least}: {why}."
            )


def _drawn(config: RunConfig) -> str:
    negatives = config.train.negatives
    return f", each among {negatives.per_positive} drawn items" if negatives is not None else ""


def load(pipeline: Pipeline, run: Path) -> Bundle:
    return load_bundle(run / "model", pipeline.device, pipeline.engine)


def _store_vectors(features: Features, candidate: Run) -> None:
    """What a service that watches `current` needs of a recommender before it can take it over."""
    pipeline = features.pipeline
    if pipeline.config.nightly.embed == "off" or not features.schema.entities:
        return
    bundle = load(pipeline, candidate.path)
    if None not in (bundle.schema.entity("user"), bundle.schema.entity("item")):
        embed(candidate.path, bundle, features, EmbedSettings())


def _export(config: RunConfig, candidate: Run) -> None:
    """The formats of `nightly.export`, in the run's folder; the night fails where one cannot be written."""
    if config.nightly.export:
        bundle = load_bundle(candidate.path / "model")
        export_bundle(bundle, candidate.path / "export", config.nightly.export, candidate.path.name)
