"""`pooled_lookup` for CUDA in Triton; see `reference.py` for what it computes.

A program has BLOCK_B lists and BLOCK_K columns: it goes through the lists' elements side by side, as many times as its
longest list has, and keeps the sums or maxima in registers. So nothing is added atomically, and a list's result depends
on that list alone. An id outside the table reads NaN: no memory but the table's is touched, and the loss shows it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gigabatch.models.kernels import FLOATS
from gigabatch.models.kernels.pooled_lookup.reference import POOLINGS, check_lists, check_memory, check_sources

TILE = 1024  # elements of a program's sums: 8 a thread
BLOCK_LISTS = 128  # of a program that writes numbers of elements: one a thread


@torch.no_grad()
def pooled_lookup(
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    table: Tensor,
    pooling: str,
    out: Tensor,
    chosen: Tensor | None = None,
) -> None:
    """See `reference.pooled_lookup`; an id outside the table gives NaN. Nothing is synchronised."""
    num_lists, width = out.shape
    check_lists(offsets, weights, pooling, len(ids))
    check_memory(ids, torch.int32, ids.shape)
    check_memory(table, torch.float32, (table.shape[0], width))
    assert (out.dtype, num_lists) == (torch.float32, len(offsets) - 1), (out.dtype, out.shape, offsets.shape)
    if chosen is not None:
        check_memory(chosen, torch.int32, out.shape)
    if not out.numel():
        return
    assert out.stride(1) == 1, out.stride()
    grid, blocks = _blocks(num_lists, width)
    with torch.cuda.device_of(out):
        _pool[grid](
            ids, offsets, weights, table, table.shape[0], out, out.stride(0), chosen, num_lists, width,
            POOLING=POOLINGS.index(pooling), WEIGHTED=weights is not None, KEPT=chosen is not None, **blocks,
            num_warps=4,
        )  # fmt: skip


@torch.no_grad()
def spread_gradient(
    gradient: Tensor, offsets: Tensor, weights: Tensor | None, pooling: str, chosen: Tensor | None, out: Tensor
) -> None:
    """See `reference.spread_gradient`, for gradients of a type in `FLOATS`."""
    num_lists, width = gradient.shape
    check_lists(offsets, weights, pooling, len(out))
    assert (gradient.dtype in FLOATS, num_lists) == (True, len(offsets) - 1), (gradient.dtype, gradient.shape)
    check_memory(out, gradient.dtype, (len(out), width))
    assert (chosen is not None) == (pooling == "max")
    if not out.numel():
        return
    assert gradient.stride(1) == 1, gradient.stride()
    grid, blocks = _blocks(num_lists, width)
    with torch.cuda.device_of(out):
        _spread[grid](
            gradient, gradient.stride(0), offsets, weights, chosen, out, num_lists, width,
            POOLING=POOLINGS.index(pooling), WEIGHTED=weights is not None, **blocks, num_warps=4,
        )  # fmt: skip


@torch.no_grad()
def element_scales(
    offsets: Tensor, weights: Tensor | None, pooling: str, places: Tensor, scales: Tensor | None
) -> None:
    """See `reference.element_scales`."""
    num_lists = len(offsets) - 1
    check_sources(offsets, weights, pooling, places, scales)
    if not len(places):
        return
    with torch.cuda.device_of(places):
        _write_sources[(triton.cdiv(num_lists, BLOCK_LISTS),)](
            offsets, weights if scales is not None else None, places, scales, num_lists,
            POOLING=POOLINGS.index(pooling), WEIGHTED=weights is not None and scales is not None, BLOCK_B=BLOCK_LISTS,
            num_warps=4,
        )  # fmt: skip


def _blocks(num_lists: int, width: int) -> tuple[tuple[int, int], dict[str, int]]:
    block_k = min(64, max(8, triton.next_power_of_2(width)))
    block_b = TILE // block_k
    return (triton.cdiv(num_lists, block_b), triton.cdiv(width, block_k)), {"BLOCK_B": block_b, "BLOCK_K": block_k}


@triton.jit
def _factors(offsets, weights, row, live, POOLING: tl.constexpr, WEIGHTED: tl.constexpr):
    """First element and length of each list, and what the sum of each is multiplied with: [BLOCK_B] each."""
    first = tl.load(offsets + row, mask=live, other=0)
    length = tl.load(offsets + row + 1, mask=live, other=0) - first
    factor = tl.full(row.shape, 1.0, tl.float32)
    if POOLING == 1:
        total = length.to(tl.float32)
        if WEIGHTED:
            total = tl.zeros(row.shape, tl.float32)
            place = 0
            longest = tl.max(length, axis=0).to(tl.int32)
            while place < longest:
                total += tl.abs(tl.load(weights + first + place, mask=place < length, other=0.0))
                place += 1
        factor = tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)
    return first, length, factor


@triton.jit(do_not_specialize=["num_lists", "height", "stride"])
def _pool(
    ids,
    offsets,
    weights,
    table,
    height,
    out,
    stride,
    chosen,
    num_lists,
    width,
    POOLING: tl.constexpr,
    WEIGHTED: tl.constexpr,
    KEPT: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    live = row < num_lists
    tile = live[:, None] & (k < width)[None, :]
    first, length, factor = _factors(offsets, weights, row, live, POOLING, WEIGHTED)
    total = tl.zeros((BLOCK_B, BLOCK_K), tl.float32)
    place_of_most = tl.full((BLOCK_B, BLOCK_K), -1, tl.int32)
    place = 0
    longest = tl.max(length, axis=0).to(tl.int32)
    while place < longest:
        there = place < length
        entry = tl.load(ids + first + place, mask=there, other=0)
        inside = (entry >= 0) & (entry < height)
        begin = entry.to(tl.int64) * width
        wanted = tile & there[:, None]
        value = tl.load(table + begin[:, None] + k[None, :], mask=wanted & inside[:, None], other=float("nan"))
        if POOLING == 2:
            more = (place_of_most < 0) | (value > total) | ((value != value) & (total == total))
            more = more & wanted
            total = tl.where(more, value, total)
            place_of_most = tl.where(more, (first + place).to(tl.int32)[:, None], place_of_most)
        else:
            if WEIGHTED:
                value = value * tl.load(weights + first + place, mask=there, other=0.0)[:, None]
            total += tl.where(wanted, value, 0.0)
        place += 1
    if POOLING == 1:
        total = tl.where((length > 0)[:, None], total * factor[:, None], 0.0)
    tl.store(out + row[:, None] * stride + k[None, :], total, mask=tile)
    if KEPT:
        tl.store(chosen + row[:, None] * width + k[None, :], place_of_most, mask=tile)


@triton.jit(do_not_specialize=["num_lists", "stride"])
def _spread(
    gradient,
    stride,
    offsets,
    weights,
    chosen,
    out,
    num_lists,
    width,
    POOLING: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    live = row < num_lists
    tile = live[:, None] & (k < width)[None, :]
    first, length, factor = _factors(offsets, weights, row, live, POOLING, WEIGHTED)
    value = tl.load(gradient + row[:, None] * stride + k[None, :], mask=tile, other=0.0).to(tl.float32)
    if POOLING == 2:
        kept = tl.load(chosen + row[:, None] * width + k[None, :], mask=tile, other=-1)
    place = 0
    longest = tl.max(length, axis=0).to(tl.int32)
    while place < longest:
        there = place < length
        element = first + place
        if POOLING == 2:
            found = tl.where(kept == element.to(tl.int32)[:, None], value, 0.0)
        else:
            scale = factor
            if WEIGHTED:
                scale = scale * tl.load(weights + element, mask=there, other=0.0)
            found = value * scale[:, None]
        tl.store(out + element[:, None] * width + k[None, :], found, mask=tile & there[:, None])
        place += 1


@triton.jit(do_not_specialize=["num_lists"])
def _write_sources(
    offsets, weights, places, scales, num_lists, POOLING: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK_B: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    live = row < num_lists
    first, length, factor = _factors(offsets, weights, row, live, POOLING, WEIGHTED)
    place = 0
    longest = tl.max(length, axis=0).to(tl.int32)
    while place < longest:
        there = place < length
        element = first + place
        tl.store(places + element, row.to(tl.int32), mask=there)
        if POOLING == 1:
            scale = factor
            if WEIGHTED:
                scale = scale * tl.load(weights + element, mask=there, other=0.0)
            tl.store(scales + element, scale, mask=there)
        place += 1
