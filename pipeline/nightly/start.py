"""What tonight's training starts from: the current run's weights and ids, its ids alone, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Schema
from gigabatch.pipeline.bundle import Bundle, load_bundle
from gigabatch.pipeline.config.config import RunConfig, WindowSettings
from gigabatch.pipeline.evaluation.labels import changed_labels
from gigabatch.pipeline.stages.run import Run

WARM, COLD, ANEW = "warm", "cold", "anew"


def tonight(
    config: RunConfig, current: Path | None, schema: Schema, drifted: Sequence[str]
) -> tuple[RunConfig, str, str]:
    """The night's configuration, how it starts and why.

    - `warm`: ids, scales, weights and optimizer of the current run; trained on what it has not seen, and a replay.
    - `cold`: its ids, which never move, with scales of tonight's rows; a new model, trained on all rows.
    - `anew`: a new fit, too. What the configuration itself says of `preprocess.from` and `train.start_from` goes first.

    Parameters
    ----------
    config
        As it was read.
    current
        The promoted run; None where there is none.
    schema
        Of tonight's features.
    drifted
        Sentences of drift and of corrected files, for which the night is to be cold.
    """
    settings = config.nightly
    if settings.start == COLD or config.preprocess.from_ or config.train.start_from:
        return config, ANEW, "as the configuration says"
    if current is None:
        return config, ANEW, "no run is current"
    bundle = load_bundle(current / "model")
    if reason := changed(bundle.preprocessor, schema, config):
        if config.train.changed == "refuse":
            raise DataError(f"{reason} With train.changed=cold such a night begins anew.")
        return config, ANEW, reason
    reason = cold_reason(bundle, settings.cold_every, drifted)
    labels = " ".join(
        changed_labels(bundle.schema.targets, schema.targets, Run(current).summary["config"], config.to_dict())
    )
    if labels and not reason and config.train.changed == "refuse":
        raise DataError(
            f"{labels} If labels are wrong, correct them or remove those rows. With train.changed=cold such a night "
            "trains a cold model, for a person to promote."
        )
    grown = replace(config.preprocess, from_=current.name, refresh_scales=False)
    if reason := reason or labels:
        grown = replace(grown, refresh_scales=True)
        return config.model_copy(update={"preprocess": grown}), COLD, reason
    window = WindowSettings(replay=settings.replay)
    train = config.train.model_copy(update={"start_from": current.name, "window": window})
    return config.model_copy(update={"preprocess": grown, "train": train}), WARM, f"from {current.name}"


def cold_reason(bundle: Bundle, cold_every: int | None, drifted: Sequence[str]) -> str | None:
    """Why a night trains a new model, though it could go on from this one; None where it goes on."""
    if drifted:
        return f"the raw files ask for it: {' '.join(drifted)}"
    if "train_times" not in bundle.info:
        return "the current run is of a version that did not keep which rows it was trained on"
    warm = int((bundle.info.get("started_from") or {}).get("warm_starts", 0))
    if cold_every is not None and warm + 1 >= cold_every:
        return f"{warm} warm starts came before (nightly.cold_every={cold_every})"
    return None


def changed(preprocessor: Preprocessor, schema: Schema, config: RunConfig) -> str | None:
    """Why tonight's rows cannot be encoded by what the current run's preprocessor grows to; None where they can."""
    try:
        preprocessor.carried_to(schema, config.preprocess.encoding)
    except DataError as error:
        return str(error)
    return None
