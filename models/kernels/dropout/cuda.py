"""Dropout for CUDA in Triton; see `reference.py`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gigabatch.models.kernels import FLOATS
from gigabatch.models.kernels.dropout.reference import int32_of, threshold

TILE = 2048  # elements: 16 a thread


@torch.no_grad()
def dropout(
    values: Tensor,
    out: Tensor,
    seed: Tensor,
    rate: float,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    start: int = 0,
) -> None:
    """As the reference."""
    num_rows, num_columns = values.shape
    assert values.dtype == out.dtype, (values.dtype, out.dtype)
    assert values.dtype in FLOATS, values.dtype
    assert values.stride(1) == out.stride(1) == 1, (values.stride(), out.stride())
    if not values.numel():
        return
    block_n = min(128, triton.next_power_of_2(num_columns))
    block_b = TILE // block_n
    with torch.cuda.device_of(values):
        _dropout[(triton.cdiv(num_rows, block_b), triton.cdiv(num_columns, block_n))](
            values,
            values.stride(0),
            out,
            out.stride(0),
            seed,
            threshold(rate),
            int32_of(start),
            1 / (1 - rate),
            scale,
            shift,
            num_rows,
            num_columns,
            MOVES=scale is not None and shift is not None,
            BLOCK_B=block_b,
            BLOCK_N=block_n,
            num_warps=4,
        )


@triton.jit
def _mixed(value):
    """The 32 bits of a number mixed."""
    value = (value ^ (value >> 16)) * 0x85EBCA6B
    value = (value ^ (value >> 13)) * 0xC2B2AE35
    return value ^ (value >> 16)


@triton.jit
def keeps(row, n, num_columns, seed, least, start):
    """1 where the mask keeps element (row, n) of [B, num_columns], else 0, as float32: [BLOCK_B, BLOCK_N].

    start: number of the first element, an int32 with the bits of the uint32."""
    first = tl.load(seed).to(tl.uint32)
    second = tl.load(seed + 1).to(tl.uint32)
    counter = (row.to(tl.uint32)[:, None] * num_columns + n.to(tl.uint32)[None, :]).to(tl.uint32)  # modulo 2^32
    counter = (counter + start.to(tl.uint32)).to(tl.uint32)
    hashes = _mixed(_mixed(counter ^ first) ^ second)
    return ((hashes >> 1).to(tl.int32) >= least).to(tl.float32)


@triton.jit(do_not_specialize=["num_rows", "least", "start"])
def _dropout(
    values,
    stride,
    out,
    out_stride,
    seed,
    least,
    start,
    factor,
    scale,
    shift,
    num_rows,
    num_columns,
    MOVES: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    wanted = n < num_columns
    tile = (row < num_rows)[:, None] & wanted[None, :]
    stored = tl.load(values + row[:, None] * stride + n[None, :], mask=tile, other=0.0)
    value = stored.to(tl.float32)
    if MOVES:
        value = value * tl.load(scale + n, mask=wanted, other=0.0)[None, :]
        value += tl.load(shift + n, mask=wanted, other=0.0)[None, :]
    value *= factor * keeps(row, n, num_columns, seed, least, start)
    tl.store(out + row[:, None] * out_stride + n[None, :], value.to(stored.dtype), mask=tile)
