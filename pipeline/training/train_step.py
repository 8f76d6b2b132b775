"""One training step: forward, loss, backward, clipping, optimizer; eager, compiled, or replayed as a CUDA graph.

A step has a host's part, which fills in learning rate and momentum, and a device's part, which never waits for the
host and is what a CUDA graph holds. A step whose loss or gradient is not finite moves no weight and returns NaN, which
`train.py` counts where it reads losses; infinity where it only lowered the scale of a float16 loss. The average of the
weights takes it for a step. Shapes: B rows of a batch, W words of a packed row.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gigabatch.features.schema import TensorSchema
from gigabatch.loaders.negatives.implicit import ImplicitBatches
from gigabatch.loaders.tables.packed import Batch, unpack
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import EXPECTED, Model
from gigabatch.models.optimizers.ema import WeightAverage
from gigabatch.models.optimizers.loss_scale import LossScale
from gigabatch.models.optimizers.non_finite import mark_non_finite
from gigabatch.models.optimizers.precision import Precision, full_reductions
from gigabatch.models.optimizers.registry import set_lr_and_momentum
from gigabatch.models.optimizers.row_optimizer import RowOptimizer, parts_of
from gigabatch.models.optimizers.schedule import Schedule
from gigabatch.models.parallel.codistill import CodistilledLoss, Peers
from gigabatch.models.parallel.data_parallel import DataParallel
from gigabatch.pipeline.training.checkpoint import TrainingError

log = logging.getLogger(__name__)
WARMUP_STEPS = 3  # before a capture, as torch's notes on CUDA graphs have it: libraries allocate and choose in them
MOMENTUM_SAMPLES = 100  # steps of a schedule that are looked at


class TrainStep:
    """Trains a model by one batch a call.

    accumulate_steps: a batch is worked through in so many pieces, whose gradients add up to those of the batch's loss.
        Batch norm takes its statistics from each piece, and losses that compare rows of a batch compare those of one.
    max_grad_norm: the dense gradients of all parameters together are scaled down to this norm; None leaves them, also
        where the optimizer clips by itself. Tables that are updated row by row neither count nor are scaled.
    average: is updated after every step.
    compiled: forward pass and loss through torch.compile, whose time the first call logs.
    negatives: drawn for the rows of every batch, which are positives then.
    parallel: the ranks that share each batch; a call gets this one's rows, and returns the loss of the whole batch.
    peers: that teach the model beside its labels (codistillation).
    """

    def __init__(
        self,
        model: Model,
        loss: TargetLoss,
        optimizer: Any,
        precision: Precision,
        *,
        accumulate_steps: int = 1,
        max_grad_norm: float | None = None,
        average: WeightAverage | None = None,
        compiled: bool = False,
        negatives: ImplicitBatches | None = None,
        parallel: DataParallel | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.parallel, self.peers = parallel, peers
        self.model, self.loss, self.optimizer, self.precision = model, loss, optimizer, precision
        self.accumulate_steps = accumulate_steps
        self.max_grad_norm = max_grad_norm
        self.average = average
        self.negatives = negatives
        self.loss_scale = LossScale(next(model.parameters()).device) if precision.dtype == torch.float16 else None
        self._device = next(model.parameters()).device
        self._loss_of: Callable[[Batch], Tensor] = self._forward
        self._is_compiling = compiled
        if compiled:
            require_compiler(self._device)
            self._loss_of = torch.compile(self._forward)
        self._on_device: Callable[[Batch], Tensor] = self._work
        norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._NormBase)]
        self.statistics = [buffer for norm in norms for buffer in norm.buffers() if buffer.is_floating_point()]

    def capture(self, schema: TensorSchema, batch_size: int, required: bool = True) -> None:
        """Replay the device's part as one CUDA graph from the fourth call on; see `CapturedWork`."""
        self._on_device = CapturedWork(self._work, schema, batch_size, self._device, required, self._movers())

    def _movers(self) -> list[RowOptimizer]:
        return [part for part in parts_of(self.optimizer) if isinstance(part, RowOptimizer)]

    def close(self) -> None:
        """Let go of the graph and of gradients, and of what makes a step hold itself, so that all of its memory is free
        for another training once nobody else has it; without, Python's collector would have to come by. No step can
        follow."""
        self.optimizer.zero_grad(set_to_none=True)
        del self._on_device, self._loss_of

    def __call__(self, batch: Batch, lr: float, momentum: float, place: tuple[int, int] = (0, 0)) -> Tensor:
        """Train on `batch`; its loss [] float32, on the device and valid until the next call; NaN for a skipped step,
        infinity for one that only lowered the scale of a float16 loss.

        place: epoch, and position of the batch's first row in the epoch's order, which its negatives depend on.
        """
        if self.negatives is not None:
            self.negatives.begin(*place)
        set_lr_and_momentum(self.optimizer, lr, momentum)
        if self.average is not None:
            self.average.begin_update()
        if self._is_compiling:
            return self._first_compiled(batch)
        return self._on_device(batch)

    @full_reductions()
    def _work(self, batch: Batch) -> Tensor:
        """The device's part of a step."""
        self.optimizer.zero_grad(set_to_none=True)
        total: Tensor | None = None
        statistics = [buffer.clone() for buffer in self.statistics]
        if self.negatives is not None:
            batch = self.negatives(batch)
        together = 1 if self.negatives is None else self.negatives.copies
        with (
            contextlib.nullcontext() if self.parallel is None else self.parallel.part(together, batch.ids, batch.lists)
        ):
            for piece, share in pieces(batch, self.accumulate_steps, together):
                if self.parallel is not None and self.parallel.ranks.num_ranks > 1:  # one alone may have several pieces
                    share = self.parallel.share(piece.weight)
                loss = self._loss_of(piece)
                if not loss.requires_grad:
                    raise TrainingError(
                        f"{type(self.model).__name__} gave outputs that no weight is trained by: they are detached, or "
                        f"every parameter is frozen. {EXPECTED}"
                    )
                if share is not None:
                    loss = loss * share
                (loss if self.loss_scale is None else self.loss_scale(loss)).backward()
                total = loss.detach() if total is None else total + loss.detach()
        assert total is not None, "a batch has a piece"
        if self.loss_scale is not None:  # before they are summed: what DCT keeps for later steps is of no step's scale
            self.loss_scale.unscale(self.optimizer)
        if self.parallel is not None:
            total = self.parallel.sum_gradients(total)
        skipped = mark_non_finite(self.optimizer, total)
        if self.parallel is not None:
            self.parallel.agree(skipped)
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(dense_parameters(self.optimizer), self.max_grad_norm, foreach=True)
        self.optimizer.step()
        self.restore_statistics(skipped, statistics)
        if self.average is not None:
            self.average.update()
        if self.loss_scale is None:
            return torch.where(skipped > 0, math.nan, total)
        # Of a loss that is finite the gradient may only have been scaled too much; by 1 it was not.
        told = torch.where(total.isfinite() & (self.loss_scale.scale > 1), math.inf, math.nan)
        self.loss_scale.update(skipped)
        return torch.where(skipped > 0, told, total)

    def restore_statistics(self, skipped: Tensor, before: list[Tensor]) -> None:
        """Batch norm's, which the forward pass of a skipped step has moved."""
        if skipped.device.type != "cpu" or bool(skipped):  # a GPU's host does not wait to look
            for buffer, earlier in zip(self.statistics, before, strict=True):
                buffer.copy_(torch.where(skipped > 0, earlier, buffer))

    def _forward(self, batch: Batch) -> Tensor:
        with self.precision.autocast(self._device):
            loss = self.loss if self.peers is None else self.peers.loss(self.loss, batch)
            found = self.model.training_loss(batch._replace(targets=self.model.standardised(batch.targets)), loss)
        if isinstance(loss, CodistilledLoss) and not loss.was_used:
            raise TrainingError(
                f"train.codistill: {type(self.model).__name__}.training_loss does not call the loss that it is given, "
                "so peers cannot teach it."
            )
        return found

    def _first_compiled(self, batch: Batch) -> Tensor:
        self._is_compiling = False
        started = time.perf_counter()
        try:
            loss = self._on_device(batch)
        except RuntimeError as error:  # the base of torch's compiler's errors
            raise TrainingError(f"train.compile: the first step failed ({error}). Set train.compile=off.") from error
        log.info("compile took %.1f s (the first step, which it is part of)", time.perf_counter() - started)
        return loss


class CapturedWork:
    """Work on a batch as one CUDA graph, by torch's recipe for the capture of a whole step.

    The first `WARMUP_STEPS` batches, and those in whose step one of `movers` asks the host for something, are worked
    on as ever, but on a side stream; they are steps like all others, so nothing has to be undone. Then the work is
    captured on that stream, which runs none of it, and replayed: batches are copied into the words that the graph
    reads, and what it returns is overwritten by the next replay. The random state of the default generator, which
    dropout draws from, is registered by the capture and moves on with every replay.
    A batch of another size than `batch_size` is worked on without the graph.

    Where the capture fails, nothing has been done by it. It is a `TrainingError` if it is `required`; else the log says
    why, and this batch and all later ones are worked on without a graph.
    """

    def __init__(
        self, work: Callable[[Batch], Tensor], schema: TensorSchema, batch_size: int, device: torch.device,
        required: bool = True, movers: Sequence[RowOptimizer] = (),
    ) -> None:  # fmt: skip
        self._work, self._movers = work, movers
        self._required, self._has_failed = required, False
        self._words = torch.zeros(batch_size, schema.num_words, dtype=torch.int32, device=device)
        self._batch = unpack(schema, self._words)
        self._stream = torch.cuda.Stream(device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result = torch.zeros((), device=device)
        self._num_warm = 0

    def __call__(self, batch: Batch) -> Tensor:
        if self._has_failed or batch.num_rows != len(self._words):
            return self._work(batch)
        self._words.copy_(words_of(batch, self._words.shape[1]))
        if self._num_warm < WARMUP_STEPS or any(mover.raises_next() for mover in self._movers):
            self._num_warm += 1
            return self._beside()
        steps = [mover.steps_taken for mover in self._movers]
        if self._graph is None:
            self._graph = self._capture()
        for mover, step in zip(self._movers, steps, strict=True):  # which a capture counts, and a replay does not
            mover.steps_taken = step if self._graph is None else step + 1
        if self._graph is None:
            return self._work(batch)
        self._graph.replay()
        return self._result

    def _beside(self) -> Tensor:
        """The work on the side stream, before and after which the streams wait for each other."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = self._work(self._batch)
        current.wait_stream(self._stream)
        return result

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        """The graph, or None where the capture failed, after which torch is as it was before."""
        device = self._stream.device
        current, random = torch.cuda.current_stream(device), torch.cuda.get_rng_state(device)
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        try:
            # thread_local: the loader's thread may go on copying meanwhile.
            with (
                without_collection(),
                torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                self._result = self._work(self._batch)
            return graph
        except RuntimeError as error:  # out of memory and Triton's errors among them
            reason = error.__context__ or error  # the end of a capture that has failed raises an error of its own
            end_allocation(device, pool)
            # torch leaves the stream of the capture as the current one, with which no other library's work is ordered,
            # and its generator as one that is being captured, which refuses to draw.
            torch.cuda.set_stream(current)
            restore_generator(torch.cuda.default_generators[device.index or 0], random)
            if self._required:
                raise TrainingError(
                    f"train.cuda_graph: the step cannot be captured ({reason}). Set train.cuda_graph=off."
                ) from error
            log.warning(
                "cuda_graph auto: the step cannot be captured (%s); from here on it runs without a graph. Set "
                "train.cuda_graph=off to leave the attempt out.",
                " ".join(str(reason).split()),
            )
        self._has_failed, self._result = True, torch.zeros(())
        return None


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Python's collector runs before, and not within.

    What it lets go of may be another graph, an event or memory of the device, whose end a stream that is being captured
    does not allow. torch leaves this to its users (`force_cudagraph_gc`).
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def end_allocation(device: torch.device, pool: tuple[int, int]) -> None:
    """Tell torch's allocator that the capture into `pool`, which failed, is over.

    Up to torch 2.11 such a capture goes on for the allocator (pytorch/pytorch#180395), which then gives back no memory
    of the process and may end it at the next `empty_cache`, which each capture begins with. Later ones raise, as theirs
    is over.
    """
    with contextlib.suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device.index or 0, pool)
        torch._C._cuda_releasePool(device.index or 0, pool)


def restore_generator(generator: torch.Generator, state: Tensor) -> None:
    """Give a CUDA generator this state, in memory of its own, also where a capture that failed holds on to the old."""
    fresh = torch.Generator(generator.device)
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def pieces(batch: Batch, count: int, together: int = 1) -> Iterator[tuple[Batch, Tensor | float | None]]:
    """`batch` in `count` pieces, each with its share in the batch's mean; one piece is the batch, with the share None.

    together: so many rows stay in one piece, a positive and its negatives. No piece is empty, since the mean of no rows
    is NaN: a small batch has fewer.
    The share is that of the rows, or of their weights, as `TargetLoss` divides a sum of losses by a sum of weights.
    """
    count = min(count, batch.num_rows // together)
    if count <= 1:
        yield batch, None
        return
    total: Tensor | int = batch.num_rows
    if batch.weight is not None:
        total = batch.weight.sum().clamp(min=torch.finfo(torch.float32).tiny)
    bounds = [batch.num_rows // together * index // count * together for index in range(count + 1)]
    for start, stop in pairwise(bounds):
        rows = slice(start, stop)
        single = (batch.weight, batch.group, batch.log_q)
        weight, group, log_q = (None if column is None else column[rows] for column in single)
        targets = tuple(target[rows] for target in batch.targets)
        share = (stop - start if weight is None else weight.sum()) / total
        lists = tuple(column.slice(start, stop) for column in batch.lists)
        yield Batch(batch.ids[rows], batch.floats[rows], targets, weight, group, lists, log_q, batch.copies), share


def dense_parameters(optimizer: Any) -> list[Tensor]:
    """The parameters with a gradient that the optimizer updates as a whole, not row by row."""
    groups = [group for group in optimizer.param_groups if not group.get("rowwise", False)]
    return [p for group in groups for p in group["params"] if p.grad is not None and not p.grad.is_sparse]


def words_of(batch: Batch, num_words: int) -> Tensor:
    """The packed rows [B, W] int32 whose views `batch` is, as it comes from a loader."""
    assert batch.ids.dtype == torch.int32, "a batch of a loader, whose ids are the first of its words"
    assert batch.ids.stride() == (num_words, 1), batch.ids.stride()
    return batch.ids.as_strided((batch.num_rows, num_words), (num_words, 1))


def hold_in_tensors(optimizer: Any, device: torch.device) -> None:
    """Make learning rate and momentum of every group 0-d tensors on the device, which a CUDA graph reads anew.

    To be called after a state was loaded. torch's own optimizers, whose groups have the setting `capturable`, read
    their momentum on the host, so they keep a number.
    """
    momentum = torch.zeros((), device=device)
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros((), device=device)  # of its own, as groups may scale it
        if "capturable" in group:
            group["capturable"] = True
        else:
            group["betas"] = (momentum, group["betas"][1])


def use_cuda_graph(
    setting: str,
    device: torch.device,
    optimizer: Any,
    schedule: Schedule,
    obstacle: str | None = None,
    kernels: str = "compiled",
    num_ranks: int = 1,
) -> bool:
    """Whether to capture steps; `setting` is auto, on or off. Where auto does not on a GPU, the log says why.

    obstacle: of the model, its `capture_obstacle`. kernels: the setting `train.kernels`. num_ranks: that share batches.

    Raises:
        TrainingError: where `on` cannot be.
    """
    if setting == "off":
        return False
    reason = None
    if device.type != "cuda":
        reason = f"it needs a CUDA device and this run is on {device}"
    elif kernels == "reference":
        reason = "plain torch waits for the device where it sums gradients of equal ids (train.kernels=reference)"
    elif num_ranks > 1:
        reason = "several ranks tell each other in every step how many rows they send, which their hosts read"
    elif obstacle is not None:
        reason = f"of the model: {obstacle}"
    elif any("capturable" in group for group in optimizer.param_groups) and _moves_momentum(schedule):
        reason = (
            "the optimizer reads its momentum on the host, where a graph would keep the first value, and the schedule "
            "moves it (with train.schedule=warmup_polynomial it stays)"
        )
    if reason is not None and setting == "on":
        raise TrainingError(f"train.cuda_graph=on: {reason}. Set train.cuda_graph=auto or off.")
    if reason is not None and device.type == "cuda":
        log.info("cuda_graph auto: off, because %s", reason)
    return reason is None


def _moves_momentum(schedule: Schedule) -> bool:
    steps = {schedule.num_steps * index // MOMENTUM_SAMPLES for index in range(MOMENTUM_SAMPLES + 1)}
    return len({schedule.at(step)[1] for step in steps}) > 1


def require_compiler(device: torch.device) -> None:
    """Raise `TrainingError` where torch.compile would find no compiler (on a CPU it makes C++)."""
    compiler = os.environ.get("CXX", "g++")  # as torch's compiler looks for it
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise TrainingError(
            f"train.compile=on needs a C++ compiler and there is no {compiler}. Install one (apt-get install g++), "
            "name another in the environment variable CXX, or set train.compile=off."
        )
