"""The final model: trained on nearly all rows, the newest among them, as a measured training has found best.

A split by time keeps the newest rows from the model that is measured. What was found with them held out, the number of
epochs, is taken over; then a second run trains on them too, and holds out as few rows as a run can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from statistics import median_low
from typing import Any

from gigabatch.features.errors import DataError
from gigabatch.features.recipes.base import SplitFractions
from gigabatch.models.shelf import model_class
from gigabatch.pipeline.config.config import ConfigError, RunConfig, WholeTrainSettings

FEWEST_HELD = 50  # rows of valid and of test, each
LEAST_ROWS = 1_000  # of a table for which it pays unasked
SHARES_HELD = (
    0.01,
    0.02,
    0.05,
)  # tried in turn: a last moment of many rows leaves no test, and a class may be in a part that train lacks


def require_final(config: RunConfig) -> None:
    """Raise `ConfigError` where no final model can follow a training by this configuration."""
    features, train = config.features, config.train

    def refuse(setting: str, reason: str) -> ConfigError:
        return ConfigError(f"{setting}: {reason} Train without `final`, or set it otherwise.")

    own = [name for name in ("valid_path", "split_by") if getattr(features, name, None)]
    if not is_dataclass(features) or not isinstance(getattr(features, "split", None), SplitFractions) or own:
        what = f"features.{own[0]}" if own else f"recipe {config.recipe!r}"
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


def best_epochs(trained: Mapping[str, Any], settings: WholeTrainSettings) -> int:
    """How many epochs the measured training took to its best; of an ensemble's members the lower median.

        trained: of the artifact. settings: of that training.

        >>> from gigabatch.models.shelf import model_class
    from gigabatch.pipeline.config.config import WholeTrainSettings
        >>> settings = WholeTrainSettings(batch_size=64, epochs=9, lr_max=0.01)
        >>> best_epochs({"best_epoch": 4}, settings), best_epochs({"best_epoch": -1}, settings)
        (5, 9)
    """
    members = (trained.get("ensemble") or {}).get("best_epochs")
    best = median_low(members) if members else trained["best_epoch"]
    return best + 1 if settings.select == "best" and best >= 0 else settings.epochs


def final_configs(
    config: RunConfig, settings: WholeTrainSettings, epochs: int, rows: Mapping[str, int]
) -> list[RunConfig]:
    """Configurations of the final run, the one that holds out least first.

    Parameters
    ----------
    config
        Of the measured run.
    settings
        What its training settled: batch size and rate stay.
    epochs
        To train.
    rows
        By split, of the measured run.

    Raises
    ------
    DataError
        Where there are too few rows to hold out fewer.
    """
    num_rows = sum(rows.values())
    held = sorted({max(int(num_rows * share), FEWEST_HELD) for share in SHARES_HELD})
    held = [number for number in held if number < rows["valid"]]
    if not held:
        raise DataError(
            f"final: of {num_rows:,} rows valid holds {rows['valid']:,}, and a final run at least {FEWEST_HELD:,}, so "
            "it would not train on more. Train without `final`."
        )
    taught = {
        "epochs": epochs, "batch_size": settings.batch_size, "lr_max": settings.lr_max, "select": "last",
        "patience": None,
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


def final_note(measured: str, epochs: int, held: int) -> str:
    """What the report says of a final run.

    >>> final_note("0a1b", 7, 120)
    'Final model: trained for 7 epoch(s), the best of run 0a1b, on all rows but the 120 of valid and the 120 of test. \
Run 0a1b is the measurement; the metrics here, of so few rows, are a check.'
    """
    return (
        f"Final model: trained for {epochs} epoch(s), the best of run {measured}, on all rows but the {held:,} of "
        f"valid and the {held:,} of test. Run {measured} is the measurement; the metrics here, of so few rows, are a "
        "check."
    )
