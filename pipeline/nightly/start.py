"""What tonight's training starts from: the current run's weights and ids, its ids alone, or nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from gigabatch.features.errors import DataError
from gigabatch.features.schema import Schema
from gigabatch.models.shelf import model_class
from gigabatch.pipeline.bundle import Bundle, load_bundle
from gigabatch.pipeline.config.config import ConfigError, RunConfig, WindowSettings
from gigabatch.pipeline.contract.state import owed
from gigabatch.pipeline.evaluation.labels import changed_labels
from gigabatch.pipeline.nightly.codes import AS_CONFIGURED
from gigabatch.pipeline.nightly.reference import learned
from gigabatch.pipeline.runs.find import home_of
from gigabatch.pipeline.stages.finished import Run

WARM, COLD, ANEW = "warm", "cold", "anew"
LOOKED_AT = 1000  # nights, newest first


def tonight(
    config: RunConfig, current: Path | None, schema: Schema, cold: Mapping[str, Sequence[str]]
) -> tuple[RunConfig, str, str]:
    """The night's configuration, how it starts and why.

    - `warm`: ids, scales, weights and optimizer of the current run; trained on what it has not seen, and a replay.
    - `cold`: its ids, which never move, with scales of tonight's rows; a new model, trained on all rows. A model that
      takes no steps has no weights to go on from, so its nights are all `cold`.
    - `anew`: a new fit, too.

    What the configuration itself says of `preprocess.from` and `train.start_from` goes first: it is `warm` with the
    latter, else `cold` with the former.

    Parameters
    ----------
    config
        As it was read.
    current
        The promoted run; None where there is none.
    schema
        Of tonight's features.
    cold
        `Decision.cold`; what of it the current run owes makes the night cold.
    """
    settings = config.nightly
    if config.train.codistill is not None:
        raise ConfigError("train.codistill: a night trains one model alone. Set train.codistill=null.")
    if settings.start == COLD or config.preprocess.from_ or config.train.start_from:
        how = WARM if config.train.start_from else COLD if config.preprocess.from_ else ANEW
        return config, how, AS_CONFIGURED
    if current is None:
        return config, ANEW, "no run is current"
    bundle = load_bundle(current / "model")
    if reason := changed(current, bundle, schema, config):
        if config.train.changed == "refuse":
            raise DataError(f"{reason} With train.changed=cold such a night begins anew.")
        return config, ANEW, reason
    inside = current.parent == Path(os.path.realpath(home_of(config)))
    start = current.name if inside else str(current)  # a link that was set by hand may lead out of runs/<name>
    grown = replace(config.preprocess, from_=start, refresh_scales=False)
    owes = owed(cold, current)
    reason = cold_reason(bundle, settings.cold_every, owes, warm_nights(home_of(config)))
    if not model_class(config.model.kind).learns_by_steps:
        always = f"{config.model.kind} takes no steps and is fitted to all rows each night"
        reason = f"{always}; {reason}" if owes else always
    if reason:
        grown = replace(grown, refresh_scales=True)
        return config.model_copy(update={"preprocess": grown}), COLD, reason
    window = WindowSettings(replay=settings.replay)
    epochs = config.train.epochs if settings.warm_epochs is None else settings.warm_epochs
    train = config.train.model_copy(update={"start_from": start, "window": window, "epochs": epochs})
    return config.model_copy(update={"preprocess": grown, "train": train}), WARM, f"from {current.name}"


def cold_reason(bundle: Bundle, cold_every: int | None, owes: Sequence[str], nights: int | None) -> str | None:
    """Why a night trains a new model, though it could go on from this one; None where it goes on.

    owes: sentences of drift and of corrected files. nights: see `warm_nights`; where it is not known, the warm starts
    that the bundle tells count.
    """
    if owes:
        return f"the raw files ask for it: {' '.join(owes)}"
    if "train_times" not in bundle.info:
        return "the current run is of a version that did not keep which rows it was trained on"
    warm = int((bundle.info.get("started_from") or {}).get("warm_starts", 0)) if nights is None else nights
    if cold_every is not None and warm + 1 >= cold_every:
        return f"{warm} warm starts came before (nightly.cold_every={cold_every})"
    return None


def warm_nights(home: Path) -> int | None:
    """How many nights have trained warm since the last one that did not, promoted or kept out; None where no line of
    the newest `LOOKED_AT` tells how a night started."""
    number, told = 0, False
    for entry in islice(learned(home), LOOKED_AT):
        if how := (entry.get("start") or {}).get("how"):
            told = True
            if how != WARM:
                break
            number += 1
    return number if told else None


def changed(current: Path, bundle: Bundle, schema: Schema, config: RunConfig) -> str | None:
    """Why tonight's rows cannot be encoded by what the current run's preprocessor grows to, or its weights say
    something else of them; None where all is as it was."""
    try:
        bundle.preprocessor.carried_to(schema, config.preprocess.encoding)
    except DataError as error:
        return str(error)
    targets = bundle.schema.targets, schema.targets
    if sentences := [*changed_labels(*targets, Run(current).summary["config"], config.to_dict())]:
        return f"{' '.join(sentences)} If labels are wrong, correct them or remove those rows."
    if targets[0] != targets[1]:
        return f"the current run, {current.name}, predicts other targets than today's features hold."
    return None
