"""Sums of gradients over equal ids fused with the move of the row, in Triton, for tables of a few rows.

Without a sort: a program holds the gradient of the whole table in registers and walks a chunk of the batch; a second
kernel adds the chunks in order and moves the rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gigabatch.models.kernels.row_update.move_cuda import FIELDS as _FIELDS
from gigabatch.models.kernels.row_update.move_cuda import Group, move_rows

FIELDS = tl.constexpr(_FIELDS)
TILE = 4096  # elements that a program holds at a time: 16 a thread


def update_small(
    group: Group,
    ids: Tensor,
    gradient: Tensor,
    owners: Tensor | None,
    scales: Tensor | None,
    arguments: dict[str, tuple],
) -> None:
    """Partial gradients of chunks of the batch, then their sum and the move, one program a table."""
    num_rows, chunk = len(ids), chunk_length(len(ids))
    num_chunks = triton.cdiv(num_rows, chunk)
    sums = gradient.new_empty(group.num_tables, num_chunks, group.block_v, group.block_d, dtype=torch.float32)
    counts = gradient.new_empty(group.num_tables, num_chunks, group.block_v, dtype=torch.float32)
    size = group.block_v * group.block_d
    _sum_small[(num_chunks, group.num_tables)](
        ids,
        ids.stride(0),
        ids.stride(1),
        gradient,
        gradient.stride(0),
        owners,
        scales,
        group.tables,
        sums,
        counts,
        num_rows,
        chunk,
        OWNED=owners is not None,
        SCALED=scales is not None,
        BLOCK_N=min(chunk, TILE // size),
        BLOCK_V=group.block_v,
        BLOCK_D=group.block_d,
        num_warps=8,
    )
    _move_small[(group.num_tables,)](
        group.tables,
        sums,
        counts,
        num_chunks,
        TILE=TILE // size,
        BLOCK_V=group.block_v,
        BLOCK_D=group.block_d,
        VECTOR=group.vector,
        num_warps=8,
        **arguments,
    )


def chunk_length(num_rows: int) -> int:
    """Entries that one program adds up for a table of few rows: about 128 programs a table (an H200 has 132 SMs)."""
    return min(8192, max(256, triton.next_power_of_2(triton.cdiv(num_rows, 128))))


@triton.jit(
    do_not_specialize=["ids_row_stride", "ids_column_stride", "num_rows", "chunk"],
    do_not_specialize_on_alignment=["tables"],
)
def _sum_small(
    ids,
    ids_row_stride,
    ids_column_stride,
    gradient,
    gradient_stride,
    owners,
    scales,
    tables,
    sums,
    counts,
    num_rows,
    chunk,
    OWNED: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """sums[t, chunk, v] = sum of the gradients of id v in the chunk; counts[t, chunk, v] how many there are."""
    fields = tables + tl.program_id(1) * FIELDS
    column, start, width = tl.load(fields + 4), tl.load(fields + 5), tl.load(fields + 8)
    v = tl.arange(0, BLOCK_V)
    d = tl.arange(0, BLOCK_D)
    begin = tl.program_id(0).to(tl.int64) * chunk
    end = begin + chunk  # a number of whole tiles
    # each thread keeps its own sums and the threads meet once, at the end
    total = tl.zeros([BLOCK_V, BLOCK_N, BLOCK_D], tl.float32)
    count = tl.zeros([BLOCK_V, BLOCK_N], tl.float32)
    while begin < end:
        row = begin + tl.arange(0, BLOCK_N)
        live = row < num_rows
        entry = tl.load(ids + row * ids_row_stride + column * ids_column_stride, mask=live, other=-1)
        tile = live[:, None] & (d < width)[None, :]
        if SCALED:
            scale = tl.load(scales + row, mask=live, other=0.0)
        if OWNED:
            row = tl.load(owners + row, mask=live, other=0).to(tl.int64)
        place = gradient + row[:, None] * gradient_stride + start + d[None, :]
        value = tl.load(place, mask=tile, other=0.0).to(tl.float32)
        if SCALED:
            value = value * scale[:, None]
        chosen = entry[None, :] == v[:, None]
        total += tl.where(chosen[:, :, None], value[None, :, :], 0.0)
        count += chosen.to(tl.float32)
        begin += BLOCK_N
    slot = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * BLOCK_V + v
    tl.store(sums + slot[:, None] * BLOCK_D + d[None, :], tl.sum(total, axis=1))
    tl.store(counts + slot, tl.sum(count, axis=1))


@triton.jit(do_not_specialize=["num_chunks"], do_not_specialize_on_alignment=["tables"])
def _move_small(
    tables,
    sums,
    counts,
    num_chunks,
    rule,
    FORM: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Add up the chunks of a table, in order, and move the rows that the batch holds."""
    fields = tables + tl.program_id(0) * FIELDS
    v = tl.arange(0, BLOCK_V)
    d = tl.arange(0, BLOCK_D)
    total = tl.zeros([BLOCK_V, BLOCK_D], tl.float32)
    count = tl.zeros([BLOCK_V], tl.float32)
    at = tl.program_id(0) * 0
    while at < num_chunks:
        chunk = at + tl.arange(0, TILE)
        live = chunk < num_chunks
        slot = (tl.program_id(0).to(tl.int64) * num_chunks + chunk)[:, None] * BLOCK_V + v[None, :]
        place = sums + slot[:, :, None] * BLOCK_D + d[None, None, :]
        total += tl.sum(tl.load(place, mask=live[:, None, None], other=0.0), axis=0)
        count += tl.sum(tl.load(counts + slot, mask=live[:, None], other=0.0), axis=0)
        at += TILE
    move_rows(
        fields, v.to(tl.int64), total, count, (count > 0) & (v < tl.load(fields + 6)), rule, FORM, VECTOR, BLOCK_D
    )
