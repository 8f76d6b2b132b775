"""Two independent towers, run one after the other or side by side.

| mode | how | where |
|---|---|---|
| sequential | one after the other | everywhere |
| streams | the second tower on a CUDA stream of its own, forked from the current one and joined with it again | CUDA |
| threads | the networks in two threads, each with half of torch's threads | CPU |
| batched | layers of equal shape as one batched matrix product over stacked weights | everywhere |
| devices | each tower on the GPU where its weights lie, launched without waiting | two GPUs |

All give what `sequential` gives: `streams` and `devices` run the same kernels; the products of `threads` and `batched`
may be summed in another order, which shows in the last bits. A backward pass runs as the forward pass did: autograd
replays CUDA work on the stream and the device that it was done on, and `threads` has a backward pass of its own, since
autograd works through a CPU's graph in one thread.

Shapes: B rows, W numbers that enter a tower's network, d numbers that leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import Barrier
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from models.errors import ModelError, require
from models.fields import OutputLinear

MODES = ("sequential", "streams", "threads", "batched", "devices")
R = TypeVar("R")


class Tower(Protocol):
    """What is run: `embed`, then `network`. Lookups keep all threads of a CPU busy, so only networks run in two."""

    network: nn.Sequential

    def embed(self, ids: Tensor, floats: Tensor) -> Tensor:
        """ids [B, C], floats [B, F], on any device -> [B, W] on the tower's device."""
        ...


Pair = tuple[Tower, Tower]


def choose_mode(setting: str, device: torch.device) -> str:
    """The mode that `setting`, `auto` or one of `MODES`, means on a device.

    auto: streams on CUDA, where a fork and a join cost two events and, in a captured graph, nothing on the host;
    sequential on a CPU, where `benchmarks/towers.py` found nothing faster unless other processes held the cores.
    """
    if setting not in ("auto", *MODES):
        raise ModelError.unknown("way to run the towers", [setting], ("auto", *MODES))
    if setting != "auto":
        return setting
    return "streams" if device.type == "cuda" else "sequential"


def run_towers(mode: str, towers: Pair, ids: Tensor, floats: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [B, d] of both towers, on the device of `ids`, with gradients where they are enabled.

    Raises:
        ModelError: for a mode that does not exist or cannot run here; none is replaced by another.
    """
    if mode not in MODES:
        raise ModelError.unknown("way to run the towers", [mode], MODES)
    return _RUN[mode](towers, ids, floats)


def _output(tower: Tower, ids: Tensor, floats: Tensor) -> Tensor:
    return cast(Tensor, tower.network(tower.embed(ids, floats)))


def _sequential(towers: Pair, ids: Tensor, floats: Tensor) -> tuple[Tensor, Tensor]:
    first, second = (_output(tower, ids, floats) for tower in towers)
    return first.to(ids.device), second.to(ids.device)


def _on_streams(towers: Pair, ids: Tensor, floats: Tensor) -> tuple[Tensor, Tensor]:
    device = ids.device
    require(device.type == "cuda", f"towers: streams need a CUDA device, these rows are on {device}. {_INSTEAD}")
    current, beside = torch.cuda.current_stream(device), _side_stream(device.index)
    beside.wait_stream(current)
    with torch.cuda.stream(beside):
        second = _output(towers[1], ids, floats)
    first = _output(towers[0], ids, floats)
    current.wait_stream(beside)
    second.record_stream(current)  # its memory is the side stream's, which must not reuse it before this one is done
    return first, second


@cache
def _side_stream(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)


def _on_devices(towers: Pair, ids: Tensor, floats: Tensor) -> tuple[Tensor, Tensor]:
    places = [next(tower.network.parameters()).device for tower in towers]
    require(
        places[0] != places[1] and all(place.type == "cuda" for place in places),
        f"towers: devices needs the towers on two GPUs, they are on {places[0]} and {places[1]}. {_INSTEAD}",
    )
    require(
        not torch.cuda.is_current_stream_capturing(),
        "towers: a CUDA graph holds one device's work, so devices cannot be captured. Set train.cuda_graph=off.",
    )
    second = _output(towers[1], ids, floats)
    first = _output(towers[0], ids, floats)
    return first.to(ids.device), second.to(ids.device)  # the copy waits, so it comes after both are launched


def second_device(first: torch.device) -> torch.device | None:
    """A GPU beside `first`; None where there is none."""
    others = [index for index in range(torch.cuda.device_count()) if index != first.index]
    return torch.device("cuda", others[0]) if others else None


def _batched(towers: Pair, ids: Tensor, floats: Tensor) -> tuple[Tensor, Tensor]:
    layers = list(zip(towers[0].network, towers[1].network, strict=False))
    _require_equal_shapes(towers)
    first, second = (tower.embed(ids, floats) for tower in towers)
    if first.shape != second.shape:  # the layer that makes them equal cannot be stacked
        left, right = layers.pop(0)
        first, second = left(first), right(second)
    rows = torch.stack([first, second])
    for left, right in layers:
        if isinstance(left, nn.Linear) and isinstance(right, nn.Linear):
            rows = _stacked_linear(left, right, rows)
        elif isinstance(left, nn.ReLU):
            rows = torch.relu(rows)
        else:  # batch norm has each tower's statistics, dropout draws for one tower after the other
            rows = torch.stack([left(rows[0]), right(rows[1])])
    return rows[0], rows[1]


def _stacked_linear(left: nn.Linear, right: nn.Linear, rows: Tensor) -> Tensor:
    """[2, B, in] -> [2, B, out], each half through its own layer; an `OutputLinear` in float32 under autocast."""
    if isinstance(left, OutputLinear) and torch.is_autocast_enabled(rows.device.type):
        with torch.autocast(rows.device.type, enabled=False):
            return _stacked_linear(left, right, rows.float())
    weights = torch.stack([left.weight, right.weight]).mT
    if left.bias is None:
        return torch.bmm(rows, weights)
    return torch.baddbmm(torch.stack([left.bias, right.bias])[:, None], rows, weights)


def _require_equal_shapes(towers: Pair) -> None:
    """The same kinds of layers, of equal shapes but for what enters the first."""
    kinds = [[type(layer) for layer in tower.network] for tower in towers]
    shapes = [[layer.weight.shape for layer in tower.network if isinstance(layer, nn.Linear)] for tower in towers]
    outputs = [[shape[0] for shape in one] for one in shapes]
    require(
        kinds[0] == kinds[1] and outputs[0] == outputs[1],
        f"towers: batched needs towers of equal layers, found outputs of {outputs[0]} and of {outputs[1]}. {_INSTEAD}",
    )


def _in_threads(towers: Pair, ids: Tensor, floats: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.get_num_threads()
    require(ids.device.type == "cpu", f"towers: threads are for a CPU, these rows are on {ids.device}. {_INSTEAD}")
    require(total >= 2, f"towers: threads need two of torch's threads, there are {total}. {_INSTEAD}")
    networks = [tower.network for tower in towers]
    inputs = [tower.embed(ids, floats) for tower in towers]
    if not torch.is_grad_enabled():
        outputs = _both(total, [partial(_forward, *job) for job in zip(networks, inputs, strict=True)])
        return outputs[0], outputs[1]
    parameters = [list(network.parameters()) for network in networks]
    return cast(
        "tuple[Tensor, Tensor]",
        _NetworksInThreads.apply(networks, len(parameters[0]), total, *inputs, *parameters[0], *parameters[1]),
    )


def _forward(network: nn.Module, inputs: Tensor) -> Tensor:
    return cast(Tensor, network(inputs))


class _NetworksInThreads(torch.autograd.Function):
    """Forward and backward pass of two networks, each pass in two threads.

    Each thread keeps a graph of its own; the gradients of inputs and parameters come out of them as this function's.
    """

    @staticmethod
    def forward(
        ctx: Any, networks: Sequence[nn.Module], num_first: int, total: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        first, second, *parameters = tensors
        leaves = [
            inputs.detach().requires_grad_(needed)
            for inputs, needed in zip((first, second), ctx.needs_input_grad[3:5], strict=True)
        ]

        def forward(network: nn.Module, leaf: Tensor) -> Tensor:
            with torch.enable_grad():
                return _forward(network, leaf)

        outputs = _both(total, [partial(forward, *job) for job in zip(networks, leaves, strict=True)])
        sides = ([leaves[0], *parameters[:num_first]], [leaves[1], *parameters[num_first:]])
        ctx.graphs, ctx.total = list(zip(outputs, sides, strict=True)), total
        return tuple(output.detach() for output in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        def backward(output: Tensor, tensors: Sequence[Tensor], gradient: Tensor) -> list[Tensor | None]:
            wanted = [tensor for tensor in tensors if tensor.requires_grad]
            if not wanted:  # a frozen tower
                return [None] * len(tensors)
            found = iter(torch.autograd.grad(output, wanted, gradient, allow_unused=True))
            return [next(found) if tensor.requires_grad else None for tensor in tensors]

        jobs = zip(ctx.graphs, gradients, strict=True)
        (first, *of_first), (second, *of_second) = _both(
            ctx.total, [partial(backward, output, tensors, gradient) for (output, tensors), gradient in jobs]
        )
        return (None, None, None, first, second, *of_first, *of_second)


def _both(total: int, jobs: Sequence[Callable[[], R]]) -> list[R]:
    """The results of two jobs, each in a thread with half of torch's threads and this thread's autocast."""
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    cached = torch.is_autocast_cache_enabled()
    inference = torch.is_inference_mode_enabled()
    gradients = torch.is_grad_enabled()

    def work(job: Callable[[], R]) -> R:
        with (
            torch.inference_mode(inference),
            torch.set_grad_enabled(gradients),
            torch.autocast("cpu", dtype=dtype, enabled=enabled, cache_enabled=cached),
        ):
            return job()

    return list(_pool(total).map(work, jobs))


@cache
def _pool(total: int) -> ThreadPoolExecutor:
    """Two threads of half of `total` threads of torch each."""
    pool = ThreadPoolExecutor(2, "tower", _take_threads, (total // 2,))
    started = Barrier(3)
    for _ in range(2):
        pool.submit(started.wait)
    started.wait()
    torch.set_num_threads(
        total
    )  # the number is each thread's own, but those yet to come take the last one that was set
    return pool


def _take_threads(count: int) -> None:
    """Give this thread so many of torch's."""
    torch.get_num_threads()  # a thread's first call takes over the number last set; a later one would undo what follows
    torch.set_num_threads(count)


_INSTEAD = f"Set model.towers to auto or to another of {', '.join(MODES)}."
_RUN: dict[str, Callable[[Pair, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "sequential": _sequential,
    "streams": _on_streams,
    "threads": _in_threads,
    "batched": _batched,
    "devices": _on_devices,
}
