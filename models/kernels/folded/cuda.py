"""Elementwise passes of the folded network for CUDA in Triton; see `reference.py` for what they compute.

Each pass reads and writes every activation once. A program owns BLOCK_N columns and every `stride`-th tile of rows; the
sums of a tile are taken in float32, those of its tiles and of the programs in float64, in a fixed order, so that the
result is the same bit for bit from run to run. (All in float64 would ask for more conversions than an H200 does while
it reads bfloat16 at full speed.) Moments of activations are summed as differences from the tile's mean, because far
from zero their variance is a small difference of large numbers; see `cpu.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gigabatch.models.kernels import FLOATS
from gigabatch.models.kernels.dropout.cuda import keeps
from gigabatch.models.kernels.dropout.reference import int32_of, threshold

PROGRAMS = 132 * 8  # of 8 warps: an H200's SMs, four times the two that its registers hold at once
TILE = 4096  # elements: 16 a thread


@torch.no_grad()
def column_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """As the reference."""
    sums = _run(values, None, None, None, "moments")
    return sums[0], sums[1]


@torch.no_grad()
def relu_moments(values: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """As the reference; sums of 4,096 / N rows at a time are rounded to float32."""
    sums = _run(values, None, bias, None, "relu")
    return sums[0], sums[1]


@torch.no_grad()
def dropped_sums(gradient: Tensor, hidden: Tensor, seed: Tensor, rate: float, start: int = 0) -> tuple[Tensor, Tensor]:
    """As the reference."""
    assert hidden.shape == gradient.shape, (hidden.shape, gradient.shape)
    sums = _run(gradient, hidden, None, None, "dropped", seed=seed, rate=rate, start=start) / (1 - rate)
    return sums[0], sums[1]


@torch.no_grad()
def norm_relu_backward(
    gradient: Tensor,
    hidden: Tensor,
    slope: Tensor,
    offset: Tensor,
    scale: Tensor | None = None,
    seed: Tensor | None = None,
    rate: float = 0.0,
    start: int = 0,
) -> Tensor:
    """As the reference."""
    assert hidden.shape == gradient.shape, (hidden.shape, gradient.shape)
    if scale is not None:
        scale = scale / (1 - rate)
    return _run(gradient, hidden, slope, offset, "backward", scale, seed, rate, start)[0]


def _run(
    values: Tensor,
    hidden: Tensor | None,
    first: Tensor | None,
    second: Tensor | None,
    kind: str,
    scale: Tensor | None = None,
    seed: Tensor | None = None,
    rate: float = 0.0,
    start: int = 0,
) -> Tensor:
    """Column sums, and sums of squares (of products for `dropped`) but for `backward`: [1 or 2, N] float64."""
    num_rows, num_columns = values.shape
    assert values.dtype in FLOATS, values.dtype
    num_sums = 1 if kind == "backward" else 2
    if not values.numel():
        return torch.zeros(num_sums, num_columns, dtype=torch.float64, device=values.device)
    assert values.stride(1) == 1, values.stride()
    assert hidden is None or hidden.stride(1) == 1, hidden
    block_n = min(128, triton.next_power_of_2(num_columns))
    block_b = TILE // block_n
    column_blocks = triton.cdiv(num_columns, block_n)
    row_blocks = min(triton.cdiv(num_rows, block_b), max(1, PROGRAMS // column_blocks))
    partial = torch.empty(row_blocks, num_sums, num_columns, dtype=torch.float64, device=values.device)
    with torch.cuda.device_of(values):
        _pass[(column_blocks, row_blocks)](
            values,
            values.stride(0),
            hidden,
            0 if hidden is None else hidden.stride(0),
            first,
            second,
            scale,
            seed,
            threshold(rate),
            int32_of(start),
            partial,
            num_rows,
            num_columns,
            KIND=kind,
            HAS_BIAS=kind == "relu" and first is not None,
            DROPS=seed is not None,
            BLOCK_B=block_b,
            BLOCK_N=block_n,
            num_warps=8,
        )
    return partial.sum(0)  # a few hundred float64 a column


@triton.jit(do_not_specialize=["num_rows", "least", "start"])
def _pass(
    values,
    stride,
    hidden,
    hidden_stride,
    first,
    second,
    scale,
    seed,
    least,
    start,
    partial,
    num_rows,
    num_columns,
    KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DROPS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    wanted = n < num_columns
    sums = tl.zeros([BLOCK_N], tl.float64)
    squares = tl.zeros([BLOCK_N], tl.float64)
    if KIND == "backward":
        slope = tl.load(first + n, mask=wanted, other=0.0)[None, :]
        offset = tl.load(second + n, mask=wanted, other=0.0)[None, :]
        if DROPS:
            scales = tl.load(scale + n, mask=wanted, other=0.0)[None, :]
    if HAS_BIAS:
        bias = tl.load(first + n, mask=wanted, other=0.0)[None, :]
    begin = tl.program_id(1).to(tl.int64) * BLOCK_B
    while begin < num_rows:
        row = begin + tl.arange(0, BLOCK_B)
        tile = (row < num_rows)[:, None] & wanted[None, :]
        place = values + row[:, None] * stride + n[None, :]
        stored = tl.load(place, mask=tile, other=0.0)
        value = stored.to(tl.float32)
        if DROPS:
            value *= keeps(row, n, num_columns, seed, least, start)
        if KIND == "backward" or KIND == "dropped":
            active = tl.load(hidden + row[:, None] * hidden_stride + n[None, :], mask=tile, other=0.0).to(tl.float32)
        if KIND == "backward" or KIND == "relu":
            if HAS_BIAS:
                value += bias
            if KIND == "backward":
                if DROPS:
                    value *= scales
                value = tl.where(active <= 0, 0.0, value + slope * active + offset)
            else:
                value = tl.where(value < 0, 0.0, value)  # a NaN stays one
            rounded = value.to(stored.dtype)
            tl.debug_barrier()  # every warp has read its part: see `row_update.move_cuda.move_rows`
            tl.store(place, rounded, mask=tile)
            value = tl.where(tile, rounded.to(tl.float32), 0.0)
        if KIND == "moments":  # of raw values, whose variance may be a small difference of large numbers
            exact = value.to(tl.float64)
            sums += tl.sum(exact, axis=0)
            squares += tl.sum(exact * exact, axis=0)
        if KIND == "relu":
            count = tl.minimum(num_rows - begin, BLOCK_B)
            mean = tl.sum(value, axis=0) / count.to(tl.float32)
            above = tl.where(tile, value - mean[None, :], 0.0)
            exact = mean.to(tl.float64)
            sums += count.to(tl.float64) * exact
            squares += tl.sum(above * above, axis=0).to(tl.float64) + count.to(tl.float64) * exact * exact
        if KIND == "backward" or KIND == "dropped":
            sums += tl.sum(value, axis=0).to(tl.float64)
        if KIND == "dropped":
            squares += tl.sum(value * active, axis=0).to(tl.float64)
        begin += tl.num_programs(1) * BLOCK_B
    if KIND == "backward":
        tl.store(partial + tl.program_id(1) * num_columns + n, sums, mask=wanted)
    else:
        tl.store(partial + 2 * tl.program_id(1) * num_columns + n, sums, mask=wanted)
        tl.store(partial + (2 * tl.program_id(1) + 1) * num_columns + n, squares, mask=wanted)
