"""The measurements of `tune`: step times and memory by batch size, and the noise scale."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from gigabatch.models.optimizers.noise_scale import NoiseScale, measure_noise_scale
from gigabatch.pipeline.config.config import WholeTrainSettings
from gigabatch.pipeline.lab.experiment import NO_CHECKPOINTS, Enough, Experiment, PlacedBatch, wait_for
from gigabatch.pipeline.machine import available_memory, free_memory, reset_peak, resident_bytes
from gigabatch.pipeline.training.train import TrainingError

LEAST_STEPS = 8  # an epoch must have; a batch that leaves fewer has too few updates to learn from
# Of a batch size: left out (a CUDA graph is captured in the fourth step), and measured, where an epoch has so many.
WARM_STEPS, MEASURED_STEPS = 4, 5
MEMORY_SHARE = 0.9  # of what is free
NOISE_SMALL, NOISE_LARGE = 8, 8  # small batches in a large one, large batches a measurement
NOISE_POINTS = (0.25, 0.5, 1.0)  # of the first epoch


@dataclass(frozen=True)
class StepTime:
    """A batch size: seconds of a step (the median of `num_steps`), and the most memory that was held meanwhile.

    peak_bytes: of the whole process on CPU, of torch's allocations on a GPU.
    """

    batch_size: int
    seconds: float
    num_steps: int
    peak_bytes: int

    @property
    def row_seconds(self) -> float:
        return self.seconds / self.batch_size


@dataclass(frozen=True)
class Sweep:
    """Batch sizes in rising order. ended: why no larger one was tried. budget_bytes: of memory, for all that is held.

    out_of_memory: the batch size at which the GPU's memory was exhausted, if one was reached.
    """

    times: tuple[StepTime, ...]
    ended: str
    budget_bytes: int
    out_of_memory: int | None = None

    @property
    def largest_that_fits(self) -> int | None:
        """Rows of the largest batch that memory holds: the last one before memory was exhausted, else along the line
        through the two largest batches tried. None where their memory does not differ, so that no line can be drawn.
        """
        if self.out_of_memory is not None:
            return self.times[-1].batch_size
        if len(self.times) < 2:
            return None
        slope = bytes_per_row(self.times)
        last = self.times[-1]
        return None if slope <= 0 else last.batch_size + int((self.budget_bytes - last.peak_bytes) / slope)

    @property
    def fastest(self) -> StepTime:
        """The smallest batch whose time per row is within 5 % of the least: larger ones shorten an epoch no more."""
        least = min(time.row_seconds for time in self.times)
        return next(time for time in self.times if time.row_seconds <= 1.05 * least)


def bytes_per_row(times: Sequence[StepTime]) -> float:
    """By which the peak grew from the second largest batch to the largest."""
    before, last = times[-2], times[-1]
    return (last.peak_bytes - before.peak_bytes) / (last.batch_size - before.batch_size)


def batch_sizes(reference: int, most: int) -> list[int]:
    """List powers of 2 from at most 256 up to `most`, and the reference itself.

    Examples
    --------
    >>> from gigabatch.pipeline.lab.tune.trials import batch_sizes
    >>> batch_sizes(1000, 5000)
    [256, 512, 1000, 1024, 2048, 4096]
    >>> batch_sizes(50, 300)
    [32, 50, 64, 128, 256]
    """
    first = 1 << (min(reference, 256).bit_length() - 1)
    return sorted({reference, *(first << k for k in range(64) if first << k <= most)})


def sweep_batches(experiment: Experiment, sizes: Sequence[int], seconds: float) -> Sweep:
    """Take steps at every batch size, from the smallest, until memory or time (about `seconds`) is used up.

    On a GPU a size is tried and torch's out-of-memory error ends the sweep. On CPU the system would kill the process,
    so the next size is tried only if the line through those before stays below 90 % of the memory that is free.
    """
    until = time.perf_counter() + seconds
    on_gpu = experiment.device != "cpu"
    budget = memory_budget(experiment)
    times: list[StepTime] = []
    for size in sizes:
        if not on_gpu and len(times) > 1:
            expected = times[-1].peak_bytes + max(bytes_per_row(times), 0) * (size - times[-1].batch_size)
            if expected > budget:
                return Sweep(tuple(times), "memory", budget)
        if times and time.perf_counter() > until:
            return Sweep(tuple(times), "--seconds", budget)
        share = max(until - time.perf_counter(), 0) / (len(sizes) - len(times))
        try:
            times.append(time_steps(experiment, size, share))
        except (torch.OutOfMemoryError, TrainingError) as error:
            # The capture of a CUDA graph and torch.compile have their own errors, caused by this one.
            if not isinstance(error if error.__cause__ is None else error.__cause__, torch.OutOfMemoryError):
                raise
            if not times:
                raise TrainingError(
                    f"tune: a batch of {size} rows does not fit in GPU memory. Make the model's tables smaller "
                    "(preprocess.min_count, model.embedding_width_max)."
                ) from error
            _release(error)
            return Sweep(tuple(times), "memory", budget, out_of_memory=size)
    return Sweep(tuple(times), "rows", budget)


def _release(error: BaseException | None) -> None:
    """Give GPU memory back that the frames of a failed step hold."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__
    gc.collect()
    torch.cuda.empty_cache()


def memory_budget(experiment: Experiment) -> int:
    """Bytes that torch may hold when all is said: what its tensors hold now and 90 % of what is free."""
    if experiment.device == "cpu":
        return resident_bytes()[1] + int(MEMORY_SHARE * available_memory())
    return torch.cuda.memory_allocated(experiment.device) + int(MEMORY_SHARE * free_memory(experiment.device))


def time_steps(experiment: Experiment, batch_size: int, seconds: float) -> StepTime:
    """Steps of a real training, for about `seconds` but at least 5 after 4 that are not counted, within one epoch."""
    steps_per_epoch = len(experiment.train) // batch_size
    settings = experiment.with_train_settings(batch_size=batch_size, checkpoint_every_steps=NO_CHECKPOINTS)
    most = max(steps_per_epoch * settings.epochs, 1)
    moments: list[float] = []
    started = time.perf_counter()

    def hook(_: nn.Module, step: int) -> None:
        wait_for(experiment.device)
        moments.append(time.perf_counter())
        measured = len(moments) - WARM_STEPS
        late = moments[-1] - started > seconds and measured >= MEASURED_STEPS
        # Before an epoch ends, so that what belongs to its end is not measured.
        if late or step in (steps_per_epoch, most):
            raise Enough

    _reset_peak(experiment)
    with contextlib.suppress(Enough):
        experiment.fit(settings, experiment.config.seed, hook)
    steps = [stop - start for start, stop in pairwise(moments[WARM_STEPS - 1 :])]
    return StepTime(batch_size, statistics.median(steps), len(steps), _peak(experiment))


def _reset_peak(experiment: Experiment) -> None:
    if experiment.device != "cpu":
        torch.cuda.reset_peak_memory_stats(experiment.device)
    else:
        reset_peak()  # sizes only grow, so that the peak of before would do little harm


def _peak(experiment: Experiment) -> int:
    if experiment.device != "cpu":
        return torch.cuda.max_memory_allocated(experiment.device)
    return resident_bytes()[0]


@dataclass(frozen=True)
class NoisePoint:
    """The noise scale after `step` steps of training."""

    step: int
    scale: NoiseScale


def noise_scales(experiment: Experiment, settings: WholeTrainSettings, seconds: float) -> list[NoisePoint]:
    """The noise scale in the course of the first epoch of a training with `settings`, for about `seconds`.

    Gradients are taken from a copy of the model with dense gradients, so that the training is not disturbed. The
    scale is in rows of the train split; a positive and its negatives, which come together, count as one.
    """
    rows = min(settings.batch_size, len(experiment.train) // NOISE_SMALL)
    steps_per_epoch = len(experiment.train) // settings.batch_size
    points = sorted({max(round(share * steps_per_epoch), 1) for share in NOISE_POINTS})
    seed = experiment.config.seed + 1  # other batches and negatives than the training's
    batches, negatives = experiment.batches(rows, seed), experiment.negatives(seed)
    probe, loss = experiment.new_model(experiment.config.seed), experiment.loss
    found: list[NoisePoint] = []
    until = time.perf_counter() + seconds

    def batch_loss(batch: PlacedBatch) -> torch.Tensor:
        rows = batch.rows(negatives)
        return probe.training_loss(rows._replace(targets=probe.standardised(rows.targets)), loss)

    def hook(model: nn.Module, step: int) -> None:
        if step in points:
            with torch.random.fork_rng(experiment.cuda_devices):
                probe.load_state_dict(model.state_dict())
                scale = measure_noise_scale(probe, batch_loss, batches, num_small=NOISE_SMALL, num_large=NOISE_LARGE)
                found.append(NoisePoint(step, scale))
        if step == points[-1] or (found and time.perf_counter() > until):
            raise Enough

    quiet = settings.model_copy(update={"checkpoint_every_steps": NO_CHECKPOINTS})
    with contextlib.suppress(Enough):
        experiment.fit(quiet, experiment.config.seed, hook)
    return found
