"""A training step in phases, each with its time: what `gigabatch profile` is made of."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.models.kernels import kernel
from gigabatch.models.model import model_call
from gigabatch.models.optimizers.non_finite import mark_non_finite
from gigabatch.models.optimizers.precision import full_reductions
from gigabatch.models.optimizers.registry import set_lr_and_momentum
from gigabatch.models.optimizers.row_optimizer import RowOptimizer, parts_of
from gigabatch.models.recommenders.ncf import NCF
from gigabatch.models.tabular.tabular import TabularModel
from gigabatch.pipeline.lab.experiment import Experiment, PlacedBatch
from gigabatch.pipeline.training.train_step import dense_parameters

GATHER, DRAW, LOOKUP, FORWARD, LOSS = "order + gather", "draw negatives", "lookup", "forward MLP", "loss"
BACKWARD, EMBEDDING, DENSE = "backward MLP", "embedding gradient + update", "dense optimizer"
PHASES = (GATHER, LOOKUP, FORWARD, LOSS, BACKWARD, EMBEDDING, DENSE)
PHASES_WITH_DRAWS = (GATHER, DRAW, *PHASES[1:])


class Laps:
    """Time between calls of `lap`, added up by name and step; on a GPU by events, so that nothing waits in a step.

    phases: every name that there is.
    """

    def __init__(self, device: str, phases: Sequence[str] = PHASES) -> None:
        self.device, self.phases = device, tuple(phases)
        self._moments: list[tuple[str | None, Any]] = []

    def start(self) -> None:
        """Begin a step."""
        self._moments.append((None, self._now()))

    def lap(self, name: str) -> None:
        """The time since the last call belongs to `name`."""
        self._moments.append((name, self._now()))

    def _now(self) -> Any:
        if self.device == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def by_step(self) -> list[dict[str, float]]:
        """Seconds by name, a mapping a step."""
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)
        steps: list[dict[str, float]] = []
        for (_, before), (name, after) in zip([(None, None), *self._moments], self._moments, strict=False):
            if name is None:
                steps.append(dict.fromkeys(self.phases, 0.0))
                continue
            seconds = after - before if self.device == "cpu" else before.elapsed_time(after) / 1e3
            steps[-1][name] += seconds
        return steps


class PhasedStep:
    """A training step with a lap after each phase; it computes what `TrainStep` does, in the same order.

    The lookup is told from the rest of the forward pass by the embedding module and by the kernel `lookup`, which a
    folded network calls itself. Where tables take dense gradients, their part of the backward pass begins when the
    gradient of the looked up rows is there.
    """

    def __init__(self, experiment: Experiment, model: TabularModel | NCF, laps: Laps) -> None:
        self.step = step = experiment.train_step(model)
        self.negatives, self.optimizer, self.precision = step.negatives, step.optimizer, step.precision
        self.model, self.laps, self.loss = model, laps, step.loss
        self.settings, self.device = experiment.settings, experiment.device
        self.tables_began = False
        folds = isinstance(model, TabularModel) and model.train().folded and model.folding_obstacle() is None
        if not folds:  # a folded network calls the kernel alone, and one with hooks does not fold
            model.embeddings.register_forward_pre_hook(lambda *_: laps.lap(FORWARD))
            model.embeddings.register_forward_hook(self._looked_up)
        if isinstance(model, NCF) and model.compares_rows:  # its loss asks for the scores itself
            model.output.register_forward_hook(lambda *_: laps.lap(FORWARD))

    @property
    def dense_tables(self) -> bool:
        return self.model.embeddings.gradients != "rows" and len(self.model.embeddings.tables) > 0

    @full_reductions()
    def __call__(self, dataset: BatchDataset, index: int) -> None:
        laps = self.laps
        laps.start()
        positives = PlacedBatch.of(dataset, index)
        laps.lap(GATHER)
        batch = positives.rows(self.negatives)
        if self.negatives is not None:
            laps.lap(DRAW)
        set_lr_and_momentum(self.optimizer, self.settings.lr_max, 0.9)
        self.optimizer.zero_grad(set_to_none=True)
        statistics = [buffer.clone() for buffer in self.step.statistics]
        laps.lap(DENSE)
        with self.precision.autocast(self.device):
            targets = self.model.standardised(batch.targets)
            if self.model.compares_rows:
                loss = self.model.training_loss(batch._replace(targets=targets), self.loss)
            else:
                outputs = model_call(self.model, batch.ids, batch.floats, batch.lists)
                laps.lap(FORWARD)
                loss = self.loss(outputs, targets, batch.weight)
        laps.lap(LOSS)
        self.tables_began = False
        scale = self.step.loss_scale
        (loss if scale is None else scale(loss)).backward()
        laps.lap(EMBEDDING if self.tables_began else BACKWARD)
        self._update(loss.detach(), statistics)

    def _update(self, loss: Tensor, statistics: list[Tensor]) -> None:
        scale, max_grad_norm = self.step.loss_scale, self.step.max_grad_norm
        if scale is not None:
            scale.unscale(self.optimizer)
        skipped = mark_non_finite(self.optimizer, loss)
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(dense_parameters(self.optimizer), max_grad_norm, foreach=True)
        optimizers = parts_of(self.optimizer)
        for optimizer in optimizers:
            optimizer.step()
            self.laps.lap(EMBEDDING if isinstance(optimizer, RowOptimizer) else DENSE)
        self.step.restore_statistics(skipped, statistics)
        if scale is not None:
            scale.update(skipped)
        self.laps.lap(DENSE)

    def _looked_up(self, _: nn.Module, __: Any, rows: Tensor) -> None:
        self.laps.lap(LOOKUP)
        if rows.requires_grad:
            rows.register_hook(self._gradient_of_rows)

    def _gradient_of_rows(self, _: Tensor) -> None:
        self.laps.lap(BACKWARD)
        self.tables_began = True


@contextlib.contextmanager
def watched_lookup(laps: Laps, device: str) -> Iterator[None]:
    """Within the block, calls of the kernels `lookup` and `pooled_lookup`, that of lists, are laps of their own."""
    with _watched(laps, device, "lookup"), _watched(laps, device, "pooled_lookup"):
        yield


@contextlib.contextmanager
def _watched(laps: Laps, device: str, name: str) -> Iterator[None]:
    module: Any = kernel(name, device)
    plain: Callable[..., None] = getattr(module, name)

    def watched(*arguments: Any, **named: Any) -> None:
        laps.lap(FORWARD)
        plain(*arguments, **named)
        laps.lap(LOOKUP)

    setattr(module, name, watched)
    try:
        yield
    finally:
        setattr(module, name, plain)
