"""The final model: trained on nearly all rows, the newest among them, as a measured training has found best.

A split by time keeps the newest rows from the model that is measured. What was found with them held out, the number of
epochs, is taken over; then a second run trains on them too, and holds out as few rows as a run can.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from statistics import median_low
from typing import Any

from gigabatch.features.errors import DataError
from gigabatch.features.recipes.base import SplitFractions
from gigabatch.models.shelf import model_class
from gigabatch.pipeline.config.config import ConfigError, RunConfig, WholeTrainSettings
from gigabatch.pipeline.runs.pointers import read_pointers
from gigabatch.pipeline.runs.promote import promote
from gigabatch.pipeline.runs.record import append_record

log = logging.getLogger(__name__)
FEWEST_HELD = 50  # rows of valid and of test, each
LEAST_ROWS = 1_000  # of a table for which it pays unasked
# Tried in turn: a last moment of many rows leaves no test, and a part may hold a class that train lacks.
SHARES_HELD = (0.01, 0.02, 0.05)


def require_final(config: RunConfig) -> None:
    """Raise `ConfigError` where no final model can follow a training by this configuration."""
    features, train = config.features, config.train

    def refuse(setting: str, reason: str) -> ConfigError:
        return ConfigError(f"{setting}: {reason} Train without `final`, or set it otherwise.")

    own = [name for name in ("valid_path", "test_path", "train_path") if getattr(features, name, None)]
    by_user = getattr(features, "way", None) == "leave_one_out"
    if not is_dataclass(features) or not isinstance(getattr(features, "split", None), SplitFractions) or own or by_user:
        what = f"features.{own[0]}" if own else "features.split_by=leave_one_out" if by_user else config.recipe
        raise refuse(what, "its splits are not cut by shares, so a final training cannot hold out fewer rows.")
    if not model_class(config.model.kind).learns_by_steps:
        raise refuse(f"model.kind={config.model.kind}", "it is fitted at once, and has no best epoch to go by.")
    if train.calibration != "none":
        raise refuse(
            f"train.calibration={train.calibration}", "it is fitted on the valid rows, of which a final run has few."
        )
    for name in ("codistill", "start_from"):
        if (value := getattr(train, name)) is not None:
            raise refuse(f"train.{name}={value}", "a final training begins with new weights, alone.")


def can_be_final(config: RunConfig, num_rows: int) -> bool:
    """Whether a final model may follow a training of so many rows where nobody asks for one."""
    try:
        require_final(config)
    except ConfigError:
        return False
    return num_rows >= LEAST_ROWS


def best_epochs(trained: Mapping[str, Any], settings: WholeTrainSettings, curve: Sequence[Mapping[str, Any]]) -> int:
    """How many epochs the measured training took to its best, or last; of an ensemble's members the lower median.

    trained: of the artifact. settings, curve: of that training.

    >>> from gigabatch.pipeline.config.config import WholeTrainSettings
    >>> settings = WholeTrainSettings(batch_size=64, epochs=9, lr_max=0.01)
    >>> best_epochs({"best_epoch": 4}, settings, []), best_epochs({"best_epoch": -1}, settings, [{"epoch": 6.0}])
    (5, 6)
    """
    ensemble = trained.get("ensemble") or {}
    best = median_low(ensemble.get("best_epochs", [trained["best_epoch"]]))
    if settings.select == "best" and best >= 0:
        return best + 1
    last = {point.get("member"): round(point["epoch"]) for point in curve}
    return median_low(list(last.values()))


def held_out(rows: Mapping[str, int]) -> list[int]:
    """Rows of valid and of test that a final run may hold out, the fewest first; rows: by split, of the measured run.

    `DataError` where they would be as many as the measured run's.

    >>> held_out({"train": 8_000, "valid": 1_000, "test": 1_000})
    [100, 200, 500]
    """
    num_rows = sum(rows.values())
    held = sorted({max(int(num_rows * share), FEWEST_HELD) for share in SHARES_HELD})
    out = rows["valid"] + rows["test"]
    held = [number for number in held if 2 * number < out]
    if not held:
        raise DataError(
            f"final: of {num_rows:,} rows {out:,} are in valid and test, and a final run holds out at least "
            f"{2 * FEWEST_HELD:,}, so it would not train on more. Train without `final`."
        )
    return held


def shorter_warmup(settings: WholeTrainSettings, epochs: int, rows: int) -> dict[str, Any]:
    """The schedule's settings for so many epochs: a warm-up that would not end before them leaves one step behind it.

    A best epoch may lie within the warm-up of the measured training. rows: that it trained on; the final has more.

    >>> from gigabatch.pipeline.config.config import WholeTrainSettings
    >>> warmup = {"schedule": "warmup_polynomial", "schedule_settings": {"warmup_steps": 60}}
    >>> settings = WholeTrainSettings(batch_size=64, epochs=4, lr_max=0.1, **warmup)
    >>> shorter_warmup(settings, 2, 1_600), shorter_warmup(settings, 4, 1_600)
    ({'warmup_steps': 49}, {'warmup_steps': 60})
    """
    schedule, steps = dict(settings.schedule_settings), max(rows // settings.batch_size, 1) * epochs
    if schedule.get("warmup_steps", 0) >= steps:
        log.info(
            "final: warm-up cut from %d steps to %d, as %d are to be trained",
            schedule["warmup_steps"],
            steps - 1,
            steps,
        )
        schedule["warmup_steps"] = steps - 1
    return schedule


def final_configs(
    config: RunConfig, settings: WholeTrainSettings, epochs: int, held: Sequence[int], rows: int
) -> list[RunConfig]:
    """Configurations of the final run, the one that holds out least first.

    Parameters
    ----------
    config
        Of the measured run.
    settings
        What its training settled: batch size, rate and average stay.
    epochs
        To train.
    held
        Rows of valid and of test, of each configuration (`held_out`).
    rows
        That the measured run trained on.
    """
    taught = {
        "epochs": epochs, "batch_size": settings.batch_size, "lr_max": settings.lr_max, "ema_decay": settings.ema_decay,
        "select": "last", "patience": None, "schedule_settings": shorter_warmup(settings, epochs, rows),
        "ensemble_by": "seeds",
    }  # fmt: skip
    return [
        config.model_copy(
            update={
                "features": replace(config.features, split=SplitFractions(valid_rows=number, test_rows=number)),
                "train": config.train.model_copy(update=taught),
            }
        )
        for number in held
    ]


def measured_text(summary: Mapping[str, Any]) -> str:
    """What the measured run has on its test rows, as a sentence.

    >>> measured_text({"id": "0a1b", "metrics": {"test": {"auc": 0.8125, "mrr": None}}, "rows_by_split": {"test": 900}})
    'Run 0a1b on its 900 test rows: auc 0.8125.'
    """
    found = ", ".join(f"{name} {value:.4g}" for name, value in summary["metrics"]["test"].items() if value is not None)
    return f"Run {summary['id']} on its {summary['rows_by_split']['test']:,} test rows: {found}."


def final_note(measured: str, epochs: int, rows: Mapping[str, int]) -> str:
    """What the report says of a final run; rows: of it, by split.

    >>> final_note("0a1b", 7, {"train": 9_000, "valid": 120, "test": 118})
    'Final model: trained for 7 epoch(s), as was best in run 0a1b, on 9,000 rows; valid has 120 and test 118. Run 0a1b \
is the measurement; the metrics here, of so few rows, are a check.'
    """
    return (
        f"Final model: trained for {epochs} epoch(s), as was best in run {measured}, on {rows['train']:,} rows; valid "
        f"has {rows['valid']:,} and test {rows['test']:,}. Run {measured} is the measurement; the metrics here, of so "
        "few rows, are a check."
    )


def measurement(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the final run's summary.json keeps of the measured one's: its id, and its test rows and metrics."""
    return {
        "id": summary["id"],
        "rows": summary["rows_by_split"]["test"],
        "features_key": summary.get("features_key"),
        "metrics": {"test": summary["metrics"]["test"]},
        "targets": {"test": summary["targets"]["test"]},
    }


def promote_final(run: Path, measured: Path) -> None:
    """Make a final run current where the measured one is."""
    current = read_pointers(run.parent).current
    if current is not None and current == measured.resolve():
        promote(run.parent, run, current)
        log.info("run %s is current: it is the final one of %s, which was", run.name, measured.name)
        text = f"Promoted: {run.name} is the final run of {measured.name}, which was current."
        append_record(run.parent, "train", 0, text, run.name)
