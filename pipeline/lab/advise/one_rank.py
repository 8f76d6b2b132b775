"""The step of one rank of N, taken by one process alone: all that a rank computes, and all that it would send.

What a rank does in a step is more than a part of what one process does: it counts and sums rows by id, lays out what
the others send, and moves the rows of the whole batch. So it is not computed from the profile of one process but done,
with a stand-in for the others, which are taken to be like this rank. What is left to predict is the time on the wire.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gigabatch.loaders.batches.loader import BatchLoader
from gigabatch.loaders.negatives.implicit import ImplicitBatches
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.kernels import using_kernels
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model
from gigabatch.models.optimizers.ema import WeightAverage
from gigabatch.models.parallel.ranks import Ranks, Traffic, size_of
from gigabatch.pipeline.config.config import WholeTrainSettings
from gigabatch.pipeline.display import silence
from gigabatch.pipeline.lab.experiment import Experiment
from gigabatch.pipeline.lab.profile.step_phases import Laps
from gigabatch.pipeline.machine import using_threads
from gigabatch.pipeline.training.train import (
    id_counts,
    list_lengths,
    make_step,
    require_ranks_can,
    spread_tables,
    table_batches,
)

LOAD, COMPUTE, UPDATE = "loading", "forward + backward", "update"
PARTS = (LOAD, COMPUTE, UPDATE)
DENSE_PART = ("all_reduce gradients", "all_reduce batch norm", "all_reduce weights",
              "all_gather sparse gradients", "all_gather counts")  # the last two of DCT  # fmt: skip
WARM_STEPS, LEAST_STEPS = 3, 5


class OneOf(Ranks):
    """One of N ranks, without the others, who are taken to be like it: their tensors are its own, and of what it sends
    each of them it gets what it sends itself. `traffic` counts as that of `Ranks`. No process group is needed.

    Parameters
    ----------
    num_ranks : int
        N.
    rank : int, default 0
        Which of them.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.pipeline.lab.advise.one_rank import OneOf
    >>> ranks = OneOf(4)
    >>> ranks.all_reduce(torch.ones(2), "gradients").tolist(), ranks.traffic.total
    ([4.0, 4.0], 12)
    """

    def __init__(self, num_ranks: int, rank: int = 0) -> None:
        self.group, self.rank, self.num_ranks, self.traffic = None, rank, num_ranks, Traffic()

    def all_reduce(self, tensor: Tensor, name: str) -> Tensor:
        self.traffic.count("all_reduce", name, 2 * (self.num_ranks - 1) / self.num_ranks * size_of(tensor))
        return tensor.mul_(self.num_ranks)

    def all_gather(self, tensor: Tensor, name: str) -> list[Tensor]:
        self.traffic.count("all_gather", name, (self.num_ranks - 1) * size_of(tensor))
        return [tensor.clone() for _ in range(self.num_ranks)]

    def all_gather_counted(self, rows: Tensor, counts: Sequence[int], name: str) -> list[Tensor]:
        return self.all_gather(rows, name)

    def reduce_scatter(self, tensor: Tensor, name: str) -> Tensor:
        self.traffic.count("reduce_scatter", name, (self.num_ranks - 1) / self.num_ranks * size_of(tensor))
        return tensor[: len(tensor) // self.num_ranks] * self.num_ranks

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int], name: str) -> Tensor:
        self.traffic.count("all_to_all", name, size_of(rows) // max(len(rows), 1) * (sum(send) - send[self.rank]))
        first = sum(send[: self.rank])
        own = rows[first : first + send[self.rank]]
        if all(number == len(own) for number in receive):
            return torch.cat([own] * self.num_ranks)
        return rows.new_zeros(sum(receive), *rows.shape[1:])  # answers to what was asked; no time hangs on their values

    def broadcast(self, tensor: Tensor, name: str, source: int = 0) -> Tensor:
        self.traffic.count("broadcast", name, size_of(tensor) if self.rank == source else 0)
        return tensor

    def barrier(self) -> None:
        """There is nobody to wait for."""


@dataclass(frozen=True)
class Work:
    """A training of which steps are taken.

    Parameters
    ----------
    table : PackedTable
        Of train rows, on `device`.
    settings : WholeTrainSettings
        Of the training; its batch is that of all ranks.
    loss : TargetLoss
        Of the targets.
    new_model : function without arguments
        Makes the model, on `device`.
    counts : mapping of int to Tensor
        By id column, how often each value occurs.
    device : str
        As torch names it.
    seed : int
        Of the order.
    negatives : ImplicitBatches or None, default None
        Drawn for each batch.
    """

    table: PackedTable
    settings: WholeTrainSettings
    loss: TargetLoss
    new_model: Callable[[], Model]
    counts: Mapping[int, Tensor]
    device: str
    seed: int
    negatives: ImplicitBatches | None = None

    @classmethod
    def of(cls, experiment: Experiment) -> Work:
        """What the run of this experiment trains."""
        seed = experiment.config.seed
        return cls(
            experiment.train,
            experiment.settings,
            experiment.loss,
            lambda: experiment.new_model(seed),
            id_counts(experiment.encoded.preprocessor),
            experiment.device,
            seed,
            experiment.negatives(seed),
        )

    @property
    def cuda_devices(self) -> list[int]:
        """For `torch.random.fork_rng`."""
        return list(range(torch.cuda.device_count())) if self.device != "cpu" else []


@dataclass(frozen=True)
class StepParts:
    """Median seconds of a step and of its parts, and what this rank sent in a step.

    seconds: by name of `PARTS`. bytes, calls: by what is sent, as `all_reduce gradients`.
    """

    total: float
    seconds: dict[str, float]
    bytes: dict[str, float]
    calls: dict[str, float]

    @property
    def sent(self) -> float:
        """Bytes of everything."""
        return sum(self.bytes.values())

    @property
    def sent_for_tables(self) -> float:
        """Bytes of what is not of the dense part."""
        return sum(count for name, count in self.bytes.items() if name not in DENSE_PART)


def take_steps(
    work: Work,
    ranks: Ranks,
    seconds: float,
    *,
    batch_size: int | None = None,
    tables: str | None = None,
    threads: int | None = None,
) -> StepParts:
    """Take steps of a training for about `seconds`, but at least 5 after 3 that are not counted; nothing is kept.

    Parameters
    ----------
    work : Work
        The training.
    ranks : Ranks
        Who trains together; every one calls this with the same arguments, or it is `OneOf`.
    seconds : float
        Of the first rank.
    batch_size : int or None, default None
        Of all ranks together; None for that of the settings.
    tables : {'replicated', 'sharded'} or None, default None
        `train.tables`; None for that of the settings.
    threads : int or None, default None
        Of torch meanwhile, on a CPU.

    Returns
    -------
    StepParts
        Of this rank.

    Raises
    ------
    ModelError, TrainingError
        Where several ranks cannot train that.
    """
    changes: dict[str, Any] = {"compile": "off"}
    changes |= {} if batch_size is None else {"batch_size": batch_size}
    changes |= {} if tables is None else {"tables": tables}
    settings, device = work.settings.model_copy(update=changes), work.device
    with (
        torch.random.fork_rng(work.cuda_devices),
        using_kernels(settings.kernels),
        using_threads(threads or torch.get_num_threads()),
        silence(),
    ):
        return _take(work, ranks, settings, device, seconds)


def _take(work: Work, ranks: Ranks, settings: WholeTrainSettings, device: str, seconds: float) -> StepParts:
    model = work.new_model()
    source = table_batches(work.table, settings, work.seed, ranks)
    source.kernels, size = settings.kernels, source.global_batch_size
    if work.negatives is not None:
        work.negatives.use_kernels(settings.kernels)
    if ranks.num_ranks > 1:
        require_ranks_can(model, settings, source, work.negatives is not None)
    lengths = list_lengths(work.table.lists)
    spread = spread_tables(model, settings, ranks, size, device, work.counts, list_lengths=lengths)
    model.to(device).train()
    average = None if settings.ema_decay is None else WeightAverage(model, settings.ema_decay)
    step = make_step(model, work.loss, settings, device, average, work.negatives, ranks, size, spread)
    laps = Laps(device, PARTS)
    update = step.optimizer.step

    def timed_update() -> None:
        laps.lap(COMPUTE)
        update()
        laps.lap(UPDATE)

    step.optimizer.step = timed_update
    loader, taken, started = BatchLoader(source, device=device), 0, 0.0
    go_on = True
    while go_on:
        batches = iter(loader)
        for number in range(len(loader)):
            if taken == WARM_STEPS:
                started = time.perf_counter()
                ranks.traffic.clear()
            laps.start()
            batch = next(batches)
            laps.lap(LOAD)
            step(batch, settings.lr_max, 0.9, (source.epoch, source.positions(number)[0]))
            laps.lap(COMPUTE)  # what comes after the update
            taken += 1
            late = taken >= WARM_STEPS + LEAST_STEPS and time.perf_counter() - started > seconds
            if taken % LEAST_STEPS == 0 and taken > WARM_STEPS + LEAST_STEPS:
                # The first rank's clock ends all of them; what that sends is no part of a step.
                told, traffic = torch.tensor([float(late)], device=device), ranks.traffic
                ranks.traffic = Traffic()
                ranks.broadcast(told, "end")
                ranks.traffic = traffic
                go_on = not bool(told)
            if not go_on:
                break
    step.optimizer.step = update
    step.close()
    timed = laps.by_step()[WARM_STEPS:]
    sums = [
        {f"{kind} {name}": number / len(timed) for (kind, name), number in sorted(counted.items())}
        for counted in (ranks.traffic.bytes, ranks.traffic.calls)
    ]
    parts = {name: median(found[name] for found in timed) for name in PARTS}
    return StepParts(median(sum(found.values()) for found in timed), parts, *sums)
