"""The learning-rate range test (Smith, arXiv 1506.01186, section 3.3): a loss for every learning rate in one short run.

The learning rate grows exponentially from step to step, as in fastai's `lr_find`; the weights are put back afterwards.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gigabatch.models.kernels import using_kernels
from gigabatch.models.optimizers.precision import full_reductions
from gigabatch.pipeline.config.config import WholeTrainSettings
from gigabatch.pipeline.display import format_value, progress, render_table
from gigabatch.pipeline.lab.bounds import LEAST_POINTS, require_lr_range
from gigabatch.pipeline.lab.experiment import Experiment, PlacedBatch
from gigabatch.pipeline.reports.charts import Curves, curves_chart
from gigabatch.pipeline.reports.report import Section, write_page
from gigabatch.pipeline.store.files import write_json
from gigabatch.pipeline.training.train import TrainingError, batch_size_for

# fastai's: beta of the smoothed loss, and how often the least loss so far is divergence.
SMOOTHING, DIVERGED = 0.98, 4.0
MOMENTUM = 0.9  # constant, so that only the learning rate changes
# Bounds beyond which a curve carries no advice.
CHANCE = 3.0  # standard errors that the loss must fall by
MOST_APART = 1000  # the largest reading over the smallest
MOST_PASSES = 10  # over the train rows
NORMAL_MEDIAN = 0.6745  # of the size of a standard normal number
INSTEAD = (
    "leave train.lr_max to the rule (docs/training.md), or test again with a larger train.batch_size or a narrower "
    "range (--start, --stop)"
)


@dataclass(frozen=True)
class LrRange:
    """lrs, losses, smoothed: one value a step that was taken. diverged: the test stopped before its last step."""

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    diverged: bool

    @property
    def trusted(self) -> tuple[np.ndarray, np.ndarray]:
        """(lrs, smoothed losses) without the first tenth, where the mean has hardly begun, and the last five steps,
        which led to the end of the test: what fastai looks for suggestions in."""
        first = len(self.lrs) // 10
        return np.asarray(self.lrs[first:-5]), np.asarray(self.smoothed[first:-5])

    def suggestions(self) -> dict[str, float]:
        """Read the curve in the three common ways.

        Returns
        -------
        dict[str, float]
            Learning rates by `valley`, which is our suggestion, `steepest` and `minimum / 10`.

        Raises
        ------
        TrainingError
            For too few steps to read anything from.
        """
        lrs, losses = self.trusted
        if len(lrs) < LEAST_POINTS:
            raise TrainingError(
                f"lr range: only {len(self.lrs)} steps were taken before the loss diverged at a learning rate of "
                f"{self.lrs[-1]:.2g}. Begin at a lower one (--start) or take more steps (--steps)."
            )
        return {
            "valley": float(lrs[valley(losses)]),
            "steepest": float(lrs[steepest(lrs, losses)]),
            "minimum / 10": float(lrs[np.argmin(losses)]) / 10,
        }

    @property
    def fall(self) -> tuple[float, float]:
        """How far the smoothed loss falls to its least, and the standard error of that fall by the batches' scatter.

        The scatter of single losses is read from neighbours, whose learning rates hardly differ; medians, so that the
        steps of the descent itself do not count.
        """
        first, (_, smoothed) = len(self.lrs) // 10, self.trusted
        least = first + int(np.argmin(smoothed))
        steps = np.abs(np.diff(np.asarray(self.losses[: max(least, first + LEAST_POINTS) + 1])))
        scatter = float(np.median(steps)) / (NORMAL_MEDIAN * math.sqrt(2))
        of_means = 0.0
        for place in (first, least):
            weights = SMOOTHING ** np.arange(place + 1)
            of_means += float((weights**2).sum() / weights.sum() ** 2)
        return float(smoothed[0] - smoothed.min()), scatter * math.sqrt(of_means)

    def doubts(self, batch_size: int, num_rows: int) -> list[str]:
        """Why the curve carries no advice; nothing where it does.

        Parameters
        ----------
        batch_size, num_rows
            Rows of a step, and of the train split.

        Returns
        -------
        list[str]
            Sentences: the loss hardly falls, the readings contradict each other, or the rows are too few.
        """
        found, (fall, error), apart = [], self.fall, ratio(self.suggestions())
        if fall < CHANCE * error:
            found.append(
                f"the loss falls by {max(fall, 0):.2g}, and the scatter of batches of {batch_size:,} rows alone makes "
                f"{CHANCE * error:.2g} ({CHANCE:g} standard errors)"
            )
        if apart > MOST_APART:
            found.append(f"the readings lie a factor of {apart:,.0f} apart, more than {MOST_APART:,}")
        if (passes := len(self.lrs) * batch_size / num_rows) > MOST_PASSES:
            found.append(
                f"the steps went through the {num_rows:,} train rows {passes:.0f} times, more than {MOST_PASSES}: the "
                "loss also falls as the model learns them by heart"
            )
        return found


def ratio(suggestions: Mapping[str, float]) -> float:
    """The largest of the readings over the smallest."""
    return max(suggestions.values()) / min(suggestions.values())


def valley(losses: Sequence[float] | np.ndarray) -> int:
    """Find the middle of the longest valley of a loss curve: fastai's default suggestion, by ESRI.

    The valley is the longest subsequence of falling losses. Its end minus its length stands for its start, and the
    middle is a third and half a third of its length from there.

    Parameters
    ----------
    losses
        Smoothed losses [N], by rising learning rate.

    Returns
    -------
    int
        A position in `losses`.

    Examples
    --------
    >>> from gigabatch.pipeline.lab.tune.lr_range import valley
    >>> valley([0.7, 0.7, 0.6, 0.5, 0.4, 0.3, 0.3, 0.9])
    1
    """
    y = np.asarray(losses, float)
    length = np.ones(len(y), dtype=np.int64)  # of the longest falling subsequence that ends at each position
    for i in range(1, len(y)):
        higher = y[:i] > y[i]
        if higher.any():
            length[i] = 1 + length[:i][higher].max()
    end = int(np.argmax(length))
    third = length[end] / 3
    return max(end - int(length[end]) + int(third) + int(third / 2), 0)


def steepest(lrs: Sequence[float] | np.ndarray, losses: Sequence[float] | np.ndarray) -> int:
    """Find where the loss falls fastest by the logarithm of the learning rate (fastai's `steep`).

    Parameters
    ----------
    lrs, losses
        Learning rates and smoothed losses [N].

    Returns
    -------
    int
        A position in both, below N - 1.

    Examples
    --------
    >>> from gigabatch.pipeline.lab.tune.lr_range import steepest
    >>> steepest([0.001, 0.01, 0.1, 1.0], [0.7, 0.6, 0.3, 0.4])
    1
    """
    return int(np.argmin(np.diff(np.asarray(losses, float)) / np.diff(np.log(np.asarray(lrs, float)))))


def lr_range_test(
    model: nn.Module,
    train_step: Callable[[Any, float, float], Tensor],
    batches: Iterable[Any],
    *,
    start: float = 1e-7,
    stop: float = 10.0,
    num_steps: int = 100,
) -> LrRange:
    """Train `model` for `num_steps` steps with a learning rate that grows from `start` to `stop` by a constant factor.

    The test ends early once the smoothed loss is not finite or more than four times its least. Afterwards the weights,
    buffers, mode and torch's random state are bit for bit what they were, and gradients are None; the optimizer within
    `train_step` keeps its moments, so take a new one.

    Parameters
    ----------
    model
        What `train_step` updates.
    train_step
        (batch, learning rate, momentum) to the batch's loss, a scalar, before the update that it makes.
    batches
        At least `num_steps`; each is given to `train_step` as it is.
    start, stop
        The first and the last learning rate.
    num_steps
        How many learning rates are tried, at least 20.

    Returns
    -------
    LrRange
        Learning rates, losses and smoothed losses, one a step that was taken.

    Raises
    ------
    TrainingError
        For a range or a number of steps that is none, or too few batches.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.pipeline.lab.tune.lr_range import lr_range_test
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters())
    >>> def train_step(batch, lr, momentum):
    ...     optimizer.param_groups[0].update(lr=lr, momentum=momentum)
    ...     optimizer.zero_grad()
    ...     loss = (model(batch) - 3).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    ...     return loss.detach()
    >>> found = lr_range_test(model, train_step, [torch.ones(8, 1)] * 40, start=1e-4, stop=0.5, num_steps=40)
    >>> len(found.lrs), found.diverged, list(found.suggestions())
    (40, False, ['valley', 'steepest', 'minimum / 10'])
    """
    require_lr_range(start, stop, num_steps)
    before, training = copy.deepcopy(model.state_dict()), model.training
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    source = iter(batches)
    lrs: list[float] = []
    losses: list[float] = []
    smoothed: list[float] = []
    mean, least, diverged = 0.0, math.inf, False
    try:
        with torch.random.fork_rng(list(devices)), progress(num_steps, "lr range") as bar:
            model.train()
            for step in range(num_steps):
                batch = next(source, None)
                if batch is None:
                    raise TrainingError(f"lr range: {num_steps} batches are needed, there were {step}.")
                lr = start * (stop / start) ** (step / (num_steps - 1))
                # Read at once, which waits for the device: divergence ends the test, and a hundred steps are few.
                loss = float(train_step(batch, lr, MOMENTUM))
                mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
                lrs.append(lr)
                losses.append(loss)
                smoothed.append(mean / (1 - SMOOTHING ** (step + 1)))  # as Adam removes the bias of its zero start
                bar.advance(1, f"lr {lr:.1e}, loss {smoothed[-1]:.4f}")
                least = min(least, smoothed[-1])
                if not math.isfinite(smoothed[-1]) or smoothed[-1] > DIVERGED * least:
                    diverged = True
                    break
    finally:
        model.load_state_dict(before)
        model.zero_grad(set_to_none=True)
        model.train(training)
    return LrRange(tuple(lrs), tuple(losses), tuple(smoothed), diverged)


def run_lr_range(path: str | Path, overrides: Sequence[str], start: float, stop: float, num_steps: int) -> int:
    """Test the run's model and optimizer on its train split, print suggestions and draw the curve: the command."""
    experiment = Experiment.of_run(path, overrides)
    settings, seed = experiment.settings, experiment.config.seed
    batches = experiment.batches(settings.batch_size, seed)
    batch_size_for(len(experiment.train), settings)  # raises for pieces that are too small, as training does
    model = experiment.new_model(seed)
    step = experiment.train_step(model)

    def train_step(found: PlacedBatch, lr: float, momentum: float) -> Tensor:
        loss = step(found.batch, lr, momentum, found.place)
        while bool(loss.isinf()):  # it only lowered the scale of a float16 loss, and at a scale of 1 it is NaN
            loss = step(found.batch, lr, momentum, found.place)
        return loss

    with using_kernels(settings.kernels), full_reductions(), torch.random.fork_rng(experiment.cuda_devices):
        torch.manual_seed(seed)  # of dropout, so that the same line gives the same curve
        found = lr_range_test(
            model,
            train_step,
            batches,
            start=start,
            stop=stop,
            num_steps=num_steps,
        )
    suggestions = found.suggestions()
    doubts = found.doubts(settings.batch_size, len(experiment.train))
    page = _write(experiment, found, suggestions, doubts)
    lrs, losses = found.trusted
    rows = [
        {"reading": name, "learning rate": lr, "smoothed loss": float(np.interp(lr, lrs, losses))}
        for name, lr in suggestions.items()
    ]
    render_table(rows, f"lr range of {experiment.config.name}: {settings.optimizer}, batch {settings.batch_size:,}")
    print(f"{len(found.lrs)} of {num_steps} steps{', then the loss diverged' if found.diverged else ''}")
    print(f"apart     the readings lie a factor of {format_value(ratio(suggestions))} apart")
    for text in doubts:
        print(f"no advice {text}")
    print(f"try       {INSTEAD}" if doubts else f"override  {' '.join(advised(settings, suggestions['valley']))}")
    print(page)
    return 0


def advised(settings: WholeTrainSettings, lr: float) -> list[str]:
    """`key=value` of a training at the rates that the test had where layers moved at `lr`: a rate of the tables of its
    own grew with it."""
    found = [f"train.lr_max={lr:.2g}"]
    if (table_lr := settings.optimizer_settings.get("table_lr")) is not None:
        found.append(f"train.optimizer_settings.table_lr={table_lr * float(f'{lr:.2g}') / settings.lr_max:.4g}")
    return found


def _write(experiment: Experiment, found: LrRange, suggestions: dict[str, float], doubts: list[str]) -> Path:
    """runs/<name>/lr_range.json and the page beside it; returns the page's path."""
    config = experiment.config
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    content = {
        "created_utc": moment,
        "batch_size": experiment.settings.batch_size,
        "optimizer": experiment.settings.optimizer,
        "suggestions": suggestions,
        "apart": ratio(suggestions),
        "no_advice": doubts,
        "diverged": found.diverged,
        "lrs": found.lrs,
        "losses": found.losses,
        "smoothed": found.smoothed,
    }
    write_json(experiment.home / "lr_range.json", content)
    lrs, losses = found.trusted
    marks = {f"{name}: {lr:.2g}": (lr, float(np.interp(lr, lrs, losses))) for name, lr in suggestions.items()}
    curves = Curves(lrs, {"smoothed loss": losses}, "learning rate", "loss", marks, log_x=True)
    text = (
        f"{len(found.lrs)} steps of {experiment.settings.optimizer} at batch {experiment.settings.batch_size:,}. Drawn "
        "without the first tenth and the last five steps. The readings lie a factor of "
        f"{format_value(ratio(suggestions))} apart." + "".join(f" No advice: {doubt}." for doubt in doubts)
    )
    section = Section("Loss by learning rate", text, charts=(curves_chart(curves, "Loss by learning rate", "range"),))
    page = experiment.home / "lr_range.html"
    write_page(page, f"{config.name}: learning-rate range test", moment, (), [section])
    return page
