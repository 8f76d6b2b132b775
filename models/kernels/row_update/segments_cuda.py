"""Sums of gradients over equal ids fused with the move of the row, in Triton, for tables of many rows.

All columns' ids are sorted in one stable sort as (table, row) keys. As every column holds one id a batch row, its B
sorted entries lie at a known place, and a grid that depends on shapes alone covers them: no count is read back. A
program walks one span of SPAN entries, tile by tile, with a segmented scan. A run that lies inside the span is summed
and its row moved there; one that crosses its ends leaves a partial sum in one of the span's two slots, and the second
kernel adds the slots of each such run in order and moves its row. There is no gradient table and there are no atomics:
the result depends on the data alone, bit for bit. After RAPIDS' two-step sum in PyTorch pull request 22016 (2019),
whose second step adds partial sums of runs too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gigabatch.models.kernels.row_update.move_cuda import FIELDS as _FIELDS
from gigabatch.models.kernels.row_update.move_cuda import Group, move_rows

FIELDS = tl.constexpr(_FIELDS)
LEFT, RIGHT = tl.constexpr(0), tl.constexpr(1)  # the slots of a span


def update_sorted(
    groups: Sequence[Group],
    tables: Tensor,
    key_dtype: torch.dtype,
    ids: Tensor,
    gradient: Tensor,
    owners: Tensor | None,
    scales: Tensor | None,
    arguments: dict[str, tuple],
) -> None:
    """One sort for all columns, then for each group the runs inside spans and those across them.

    tables: fields of the groups' tables, in their order. key_dtype: holds a key for each row, and one more a table.
    """
    num_rows, span = len(ids), span_length(len(ids))
    num_spans = triton.cdiv(num_rows, span)
    keys = torch.empty(len(tables), num_rows, dtype=key_dtype, device=ids.device)
    write_keys[(triton.cdiv(num_rows, 1024), len(tables))](
        ids, ids.stride(0), ids.stride(1), tables, keys, num_rows, BLOCK=1024
    )
    keys, places = torch.sort(keys.flatten(), stable=True)
    unit = 16 // gradient.element_size()
    for group in groups:
        slots = gradient.new_empty(group.num_tables, num_spans, 2, group.block_d, dtype=torch.float32)
        slot_counts = gradient.new_empty(group.num_tables, num_spans, 2, dtype=torch.float32)
        aligned = gradient.stride(0) % unit == 0 and gradient.data_ptr() % 16 == 0
        tile = tile_rows(span, group.block_d)
        # 128 registers a thread at most: a full second moment is one more tile of them
        heavy = tile * group.block_d * (2 if arguments["FORM"][1] else 1) > 4096
        common = {
            "BLOCK_D": group.block_d,
            "VECTOR": group.vector,
            "num_warps": 16 if heavy else 4 if group.block_d <= 16 and span <= 64 else 8,
            **arguments,
        }
        _update_spans[(num_spans, group.num_tables)](
            keys,
            places,
            gradient,
            gradient.stride(0),
            owners,
            scales,
            group.tables,
            slots,
            slot_counts,
            group.first,
            num_rows,
            OWNED=owners is not None,
            SCALED=scales is not None,
            SPAN=span,
            BLOCK_N=tile,
            GRADIENT_VECTOR=group.vector if aligned else 1,
            **common,
        )
        if num_spans > 1:
            _update_crossing[(num_spans - 1, group.num_tables)](
                keys,
                group.tables,
                slots,
                slot_counts,
                group.first,
                num_rows,
                num_spans,
                span,
                TILE=max(2, 4096 // group.block_d),
                **common,
            )


def span_length(num_rows: int) -> int:
    """Entries of a span, about sqrt(B) / 4: both the spans and the slots of a run as long as the batch stay short.

    64 to 1,024: fewer leave the slots as large as the gradient, more leave too few programs.
    """
    return min(1024, max(64, triton.next_power_of_2(int(num_rows**0.5)) // 4))


def tile_rows(span: int, block_d: int) -> int:
    """Entries of a tile: 4,096 elements on 256 threads keep 16 loads a thread in flight and four tensors of the update
    in 64 registers; at most 256 entries, as a scan costs the logarithm of it, at least 4 for very wide tables."""
    return min(span, 256, max(4, 4096 // block_d))


@triton.jit
def _or_sum(flag, value, next_flag, next_value):
    return flag | next_flag, tl.where(next_flag, next_value, value + next_value)


@triton.jit
def _latest(first, second):
    return tl.maximum(first, second)


@triton.jit
def sum_runs(head, value, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    """Running sums [N, D] that start afresh at each head, and the index [N] of the latest head, -1 before the first."""
    index = tl.arange(0, BLOCK_N)
    latest = tl.associative_scan(tl.where(head, index, -1), 0, _latest)
    heads = tl.broadcast_to(head[:, None], [BLOCK_N, BLOCK_D])
    _, total = tl.associative_scan((heads, value), 0, _or_sum)
    return total, latest


@triton.jit(
    do_not_specialize=["ids_row_stride", "ids_column_stride", "num_rows"], do_not_specialize_on_alignment=["tables"]
)
def write_keys(ids, ids_row_stride, ids_column_stride, tables, keys, num_rows, BLOCK: tl.constexpr):
    """keys[s, b] = base of sorted column s + its id in row b; an id outside its table becomes its number of rows."""
    fields = tables + tl.program_id(1) * FIELDS
    column, height, base = tl.load(fields + 4), tl.load(fields + 6), tl.load(fields + 7)
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    entry = tl.load(ids + row * ids_row_stride + column * ids_column_stride, mask=row < num_rows, other=0).to(tl.int64)
    entry = tl.where((entry >= 0) & (entry < height), entry, height)
    tl.store(keys + tl.program_id(1).to(tl.int64) * num_rows + row, base + entry, mask=row < num_rows)


@triton.jit
def last_row(tile, BLOCK_N: tl.constexpr):
    """The last row [D] of a tile [N, D]."""
    return tl.sum(tl.where((tl.arange(0, BLOCK_N) == BLOCK_N - 1)[:, None], tile, 0.0), axis=0)


@triton.jit
def add_slots(keys, key, slots, slot_counts, span, num_rows, span_length, BLOCK_D: tl.constexpr, TILE: tl.constexpr):
    """Sum [D] and count of the run of `key` that leaves span `span` to the right: its right slot, then left ones.

    keys, slots, slot_counts: where those of the table begin.
    """
    d = tl.arange(0, BLOCK_D)
    total = tl.load(slots + (2 * span + RIGHT) * BLOCK_D + d)
    count = tl.load(slot_counts + 2 * span + RIGHT)
    following = span + 1
    more = following > 0
    while more:
        index = following + tl.arange(0, TILE)
        first = index * span_length
        within = first < num_rows
        within = within & (tl.load(keys + first, mask=within, other=-1) == key)
        part = tl.load(slots + ((2 * index + LEFT) * BLOCK_D)[:, None] + d[None, :], mask=within[:, None], other=0.0)
        total += tl.sum(part, axis=0)
        count += tl.sum(tl.load(slot_counts + 2 * index + LEFT, mask=within, other=0.0), axis=0)
        following += TILE
        more = tl.sum(within.to(tl.int32), axis=0) == TILE
    return total, count


@triton.jit(do_not_specialize=["first_table", "num_rows"], do_not_specialize_on_alignment=["tables"])
def _update_spans(
    keys,
    places,
    gradient,
    gradient_stride,
    owners,
    scales,
    tables,
    slots,
    slot_counts,
    first_table,
    num_rows,
    rule,
    FORM: tl.constexpr,
    OWNED: tl.constexpr,
    SCALED: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    VECTOR: tl.constexpr,
    GRADIENT_VECTOR: tl.constexpr,
):
    """Move the rows whose runs lie inside a span; partial sums of runs that cross its ends go to its slots."""
    fields = tables + tl.program_id(1) * FIELDS
    start, height, base = tl.load(fields + 5), tl.load(fields + 6), tl.load(fields + 7)
    width = tl.multiple_of(tl.load(fields + 8).to(tl.int32), VECTOR)
    offset = (first_table + tl.program_id(1)).to(tl.int64) * num_rows  # of the table's sorted entries
    keys += offset
    places += offset
    span = tl.program_id(0)
    slot = (tl.program_id(1) * tl.num_programs(0) + span).to(tl.int64) * 2
    d = tl.arange(0, BLOCK_D)
    first = span * SPAN
    end = tl.minimum(first + SPAN, num_rows)
    # 1 while the run at hand began in an earlier span
    from_left = tl.where(tl.load(keys + first) == tl.load(keys + first - 1, mask=first > 0, other=-1), 1, 0)
    carry = tl.zeros([BLOCK_D], tl.float32)
    carry_count = first * 0.0
    for step in range(0, SPAN, BLOCK_N):  # one tile as a rule: without a loop it takes 48 registers instead of 80
        index = first + step + tl.arange(0, BLOCK_N)
        live = index < num_rows
        key = tl.load(keys + index, mask=live, other=-1)
        head = key != tl.load(keys + index - 1, mask=live & (index > 0), other=-1)
        tail = live & (key != tl.load(keys + index + 1, mask=index + 1 < num_rows, other=-1))
        row = tl.load(places + index, mask=live, other=0) - offset  # of the batch
        if SCALED:
            scale = tl.load(scales + row, mask=live, other=0.0)
        if OWNED:
            row = tl.load(owners + row, mask=live, other=0).to(tl.int64)
        place = gradient + (row * gradient_stride)[:, None] + start + d[None, :]
        place = tl.max_contiguous(
            tl.multiple_of(place, [1, GRADIENT_VECTOR * (gradient.dtype.element_ty.primitive_bitwidth // 8)]),
            [1, GRADIENT_VECTOR],
        )
        value = tl.load(place, mask=live[:, None] & (d < width)[None, :], other=0.0).to(tl.float32)
        if SCALED:
            value = value * scale[:, None]
        total, latest = sum_runs(head, value, BLOCK_N, BLOCK_D)
        opened = latest < 0  # belongs to the run that the tile before left
        total += tl.where(opened[:, None], carry[None, :], 0.0)
        count = (tl.arange(0, BLOCK_N) - latest).to(tl.float32) + tl.where(opened, carry_count, 1.0)
        crossing = tail & opened & (from_left == 1)
        left = slots + (slot + LEFT) * BLOCK_D + d[None, :] + tl.zeros([BLOCK_N, 1], tl.int32)  # of one row at most
        tl.store(left, total, mask=tl.broadcast_to(crossing[:, None], [BLOCK_N, BLOCK_D]))
        tl.store(slot_counts + slot + LEFT + tl.zeros([BLOCK_N], tl.int32), count, mask=crossing)
        moved_row = (key - base).to(tl.int64)
        moved = tail & ((latest >= 0) | (from_left == 0)) & (moved_row < height)
        move_rows(fields, moved_row, total, count, moved, rule, FORM, VECTOR, BLOCK_D)
        carry = last_row(total, BLOCK_N)
        carry_count = tl.sum(tl.where(tl.arange(0, BLOCK_N) == BLOCK_N - 1, count, 0.0), axis=0)
        from_left = tl.where(tl.max(latest, axis=0) < 0, from_left, 0)
    key = tl.load(keys + end - 1)
    if key == tl.load(keys + end, mask=end < num_rows, other=-1):
        side = tl.where(from_left == 1, LEFT, RIGHT)
        tl.store(slots + (slot + side) * BLOCK_D + d, carry)
        tl.store(slot_counts + slot + side, carry_count)


@triton.jit(
    do_not_specialize=["first_table", "num_rows", "num_spans", "span_length"], do_not_specialize_on_alignment=["tables"]
)
def _update_crossing(
    keys,
    tables,
    slots,
    slot_counts,
    first_table,
    num_rows,
    num_spans,
    span_length,
    rule,
    FORM: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Add the slots of the run that begins in a span and leaves it, where there is one, and move its row."""
    fields = tables + tl.program_id(1) * FIELDS
    keys += (first_table + tl.program_id(1)).to(tl.int64) * num_rows
    slot = tl.program_id(1).to(tl.int64) * num_spans * 2
    span = tl.program_id(0)
    first = span * span_length
    end = first + span_length  # there is a span after this one
    key = tl.load(keys + end - 1)
    leaves = key == tl.load(keys + end)
    came = (first > 0) & (key == tl.load(keys + first - 1, mask=first > 0, other=-1))
    if leaves & (came == 0):
        total, count = add_slots(
            keys, key, slots + slot * BLOCK_D, slot_counts + slot, span, num_rows, span_length, BLOCK_D, TILE
        )
        height, base = tl.load(fields + 6), tl.load(fields + 7)
        row = (key - base).to(tl.int64) + tl.zeros([1], tl.int64)
        move_rows(
            fields, row, total[None, :], count + tl.zeros([1], tl.float32), row < height, rule, FORM, VECTOR, BLOCK_D
        )
