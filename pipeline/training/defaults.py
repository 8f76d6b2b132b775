"""Batch size, epochs, learning rate and average of weights where a configuration leaves them out: docs/training.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, log2, sqrt
from typing import TYPE_CHECKING, Any

from gigabatch.features.schema import TensorSchema
from gigabatch.models.optimizers.schedule import square_root_scaled_lr
from gigabatch.pipeline.config.config import TrainSettings, WholeTrainSettings

if TYPE_CHECKING:  # which import torch, and `init` needs none
    from gigabatch.models.inputs import ModelInputs
    from gigabatch.models.model import Model

RULED = ("epochs", "batch_size", "lr_max")
ROW_VISITS = 400_000  # that an epoch's number is chosen for
FEWEST_EPOCHS, MOST_EPOCHS = 3, 40
FEWEST_WITH_IDS = 5  # of up to 80,000 rows: ids that tell the label are learnt in no fewer (docs/tried.md)
MANY_ROWS, MANY_VISITS, EPOCHS_OF_MANY = 60_000, 1_000_000, 8  # of more rows: up to so many epochs
ROWS_AN_ID = 8  # which these need on average; else ids are learnt by heart (docs/tried.md)
POSITIVE_VISITS, MOST_EPOCHS_OF_POSITIVES = 10_000_000, 20  # the same of positives, whose negatives are drawn anew
STEPS, STEPS_WITH_IDS, STEPS_OF_POSITIVES = 1500, 1000, 2000  # that a batch is chosen for
FEWEST_STEPS = 200  # of a training, as far as MOST_EPOCHS allows
LEAST_BATCH, MOST_BATCH = 64, 4096
REFERENCE_BATCH = 256  # to which the learning rates below belong
REFERENCE_LR = {"lamb": 0.03, "adamw": 0.003, "cowclip": 0.003}
MOST_LR = 4 / 3  # times the reference
LR_OF_POSITIVES = {"adamw": (0.005, 2.0)}  # the reference, and at most so many times it
FEWEST_WARM_STEPS = 20  # below which one-cycle is little more than its ends, at a twenty-fifth of the rate and less
ROWS_OF_AVERAGE = 60_000  # above which it was measured to pay, of models that say nothing else
AVERAGE = 0.98  # of the weights of about 50 steps
FEWEST_AVERAGED = 150  # steps of a training, of which 50 are its end
TABLE_ROWS_A_VISIT = 2  # an update reads all tables, a step at most `batch_size` rows of each: what that may cost
MOST_LEFT = 0.01  # share of a warm start's rows that fill no batch


def settle(
    settings: TrainSettings,
    rows: int,
    num_ids: Sequence[int],
    warm: bool = False,
    *,
    rate: float = 1.0,
    averages_from: int = ROWS_OF_AVERAGE,
) -> WholeTrainSettings:
    """The settings with what they leave out filled in, by a rule of the train split's rows and id columns.

    Parameters
    ----------
    settings
        Of a configuration; what is set stays.
    rows
        Of the train split; with drawn negatives, positives.
    num_ids
        Rows of each id column's table, as `id_sizes` gives them.
    warm
        Whether the training goes on from another's weights. Its rows come once, and the next night takes all of them
        for known. So where more than `MOST_LEFT` of them would fill no whole batch, the batch becomes smaller, also one
        that is set.
    rate, averages_from
        The model's (`rule_of`): times the learning rate that the rule gives for LAMB, and the rows above which the
        weights are averaged.

    Returns
    -------
    WholeTrainSettings
        With a batch size, epochs and a learning rate, and with or without an average of the weights.

    Examples
    --------
    >>> found = settle(TrainSettings(), rows=28_950, num_ids=(9, 16, 7, 42))
    >>> found.epochs, found.batch_size, round(found.lr_max, 4)
    (13, 512, 0.04)
    >>> found = settle(TrainSettings(negatives={}, optimizer="adamw"), rows=40_000, num_ids=(1_000, 800))
    >>> found.epochs, found.batch_size, found.lr_max
    (20, 512, 0.00707)
    >>> settle(TrainSettings(epochs=3, lr_max=0.1), rows=26_000, num_ids=()).batch_size
    64
    >>> settle(TrainSettings(start_from="current"), rows=28_950, num_ids=(9, 16, 7, 42), warm=True).epochs
    1
    """
    rows, positives = max(rows, 1), settings.negatives
    epochs, batch_size, lr = settings.epochs, settings.batch_size, settings.lr_max
    if epochs is None and warm:
        epochs = 1  # weights have been learnt; the rows are to be seen, not gone through until they are known by heart
    elif epochs is None:
        visits, most = (ROW_VISITS, MOST_EPOCHS) if positives is None else (POSITIVE_VISITS, MOST_EPOCHS_OF_POSITIVES)
        epochs = round(min(max(visits / rows, FEWEST_EPOCHS), most))
        if num_ids and positives is None:  # rows of tables that few train rows touch learn these by heart
            least = max(min(FEWEST_WITH_IDS, ROW_VISITS // rows), 1)
            epochs = max(min(epochs, int(sqrt(rows / (2 * sum(num_ids))))), least)
        if rows > max(MANY_ROWS, ROWS_AN_ID * sum(num_ids)) and positives is None:
            epochs = max(epochs, round(min(MANY_VISITS / rows, EPOCHS_OF_MANY)))
        epochs = max(epochs, min(ceil(FEWEST_STEPS * (settings.batch_size or LEAST_BATCH) / rows), MOST_EPOCHS))
    if batch_size is None:
        steps = STEPS_WITH_IDS if num_ids else STEPS
        steps = steps if positives is None else STEPS_OF_POSITIVES
        nearest = 2 ** round(log2(rows * epochs / steps)) if rows * epochs > steps else 1
        batch_size = max(min(max(nearest, LEAST_BATCH), MOST_BATCH), 2 * settings.accumulate_steps)
    if warm and batch_size < rows and rows % batch_size > MOST_LEFT * rows:
        batch_size = max(rows // ceil(rows / batch_size), 2 * settings.accumulate_steps)
    if lr is None:
        reference, times = REFERENCE_LR[settings.optimizer], MOST_LR
        if positives is not None and settings.optimizer in LR_OF_POSITIVES:
            reference, times = LR_OF_POSITIVES[settings.optimizer]
        scaled = square_root_scaled_lr(reference, batch_size, REFERENCE_BATCH)
        of_model = rate if settings.optimizer == "lamb" else 1.0
        lr = float(f"{of_model * min(scaled, times * reference):.3g}")
    decay = settings.ema_decay
    if decay == "auto":
        small = sum(num_ids) <= TABLE_ROWS_A_VISIT * batch_size * len(num_ids)
        many = rows > averages_from and rows // batch_size * epochs >= FEWEST_AVERAGED
        alone = positives is None and not warm and settings.start_from is None and settings.codistill is None
        decay = AVERAGE if small and many and alone else None
    found = {"batch_size": batch_size, "epochs": epochs, "lr_max": lr, "ema_decay": decay}
    return WholeTrainSettings.model_validate(settings.model_dump(exclude_unset=True) | found)


def rule_of(kind: type[Model], inputs: ModelInputs) -> dict[str, Any]:
    """What the rule takes of a model's class, as arguments of `settle`.

    >>> from gigabatch import ModelInputs, TabM, TabularModel
    >>> [rule_of(kind, ModelInputs((5,), 2))["averages_from"] for kind in (TabM, TabularModel)]
    [800, 60000]
    """
    return {"rate": kind.rule_rate(inputs), "averages_from": kind.averages_from}


def rows_seen(settings: TrainSettings, rows: int, num_ids: Sequence[int]) -> int:
    """Rows that a training goes through in all its epochs, drawn negatives among them; arguments as of `settle`. One of
    no epoch, which hands on weights that another has trained, counts as one of one.

    >>> rows_seen(TrainSettings(epochs=3), rows=1_000, num_ids=())
    3000
    """
    epochs = settle(settings, rows, num_ids, warm=settings.start_from is not None).epochs
    return max(epochs, 1) * settings.copies * rows


def id_sizes(schema: TensorSchema) -> tuple[int, ...]:
    """Rows of each id column's table."""
    return tuple(column.num_ids for column in schema.ids)


def rule_text(settings: TrainSettings, settled: WholeTrainSettings, rows: int) -> str:
    """What the rule filled in or changed, in words; empty where all was set and stays."""
    ruled = [f"{name} {getattr(settled, name):,g}" for name in RULED if getattr(settings, name) is None]
    if settings.ema_decay == "auto" and settled.ema_decay is not None:
        ruled.append(f"ema_decay {settled.ema_decay:g}")
    found = [f"Training by default: {', '.join(ruled)} (from {rows:,} train rows; docs/training.md)."] if ruled else []
    if settings.batch_size not in (None, settled.batch_size):
        found.append(
            f"Batches of {settled.batch_size:,} rows, not of {settings.batch_size:,}, so that all of the {rows:,} rows "
            "are trained on."
        )
    return " ".join(found)


def positives_text(chosen: Mapping[str, Mapping[str, Any]]) -> str:
    """What is chosen where all rows are positives (`RunConfig.chosen`), in words; empty where nothing is.

    >>> positives_text({"train": {"negatives": {"per_positive": 8}}})
    'All rows are positives, so by default: train.negatives {per_positive: 8} (docs/recommenders.md).'
    """
    found = [f"{section}.{name} {_flow(value)}" for section, part in chosen.items() for name, value in part.items()]
    return f"All rows are positives, so by default: {', '.join(found)} (docs/recommenders.md)." if found else ""


def _flow(value: Any) -> str:
    """A value as YAML has it in one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_flow(item)}' for name, item in value.items())}}}"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def few_steps_text(settled: WholeTrainSettings, rows: int) -> str:
    """What to say of a warm start that hardly moves the weights, as a sentence; empty where it takes enough steps."""
    batch = min(settled.batch_size, rows)
    steps = rows // batch * settled.epochs
    if not 0 < steps < FEWEST_WARM_STEPS:
        return ""
    more = "let nights train more epochs (nightly.warm_epochs)"  # the rule takes no smaller batch
    return (
        f"Only {steps} step(s) of {batch:,} rows: the schedule begins and ends at a small rate, so little is learned. "
        f"Set a smaller train.batch_size, or {'leave it out' if batch > LEAST_BATCH else more}."
    )
