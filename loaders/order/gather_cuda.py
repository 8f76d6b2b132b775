"""Rows of a table in the order of an epoch, in Triton: the Feistel network and the copy in one launch.

A program computes BLOCK_B rows of the order, a thread each, and copies them as one run of BLOCK_B x W words: its stores
are whole cache lines whatever W is (46 words are 184 bytes), its loads neighbouring words of a row. Rows of an even
number of words are copied 8 bytes at a time. A value outside [0, num_rows) goes through the network again, as
`SampleOrder` says; so a launch needs numbers alone, and nothing is copied to the device or kept there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gigabatch.loaders.order.order import NUM_ROUNDS, SampleOrder

TILE = 1024  # words that 128 threads copy at a time: 8 loads in flight a thread
# Below it there are too few programs of 128 rows for an H200's 132 SMs, four each.
MANY_ROWS = 4 * 132 * 128

_NUM_ROUNDS = tl.constexpr(NUM_ROUNDS)


def gather_shuffled(table: Tensor, order: SampleOrder, start: int, stop: int, out: Tensor) -> None:
    """Copy rows `order([start, stop))` of `table` [N, W] int32 into `out` [stop - start, W]; both contiguous.

    The order has a network: it is of more than `order.SORTED_ROWS` rows. Nothing waits for the device.
    """
    count, width = stop - start, table.shape[1]
    if not out.numel():
        return
    if width % 2 == 0 and table.data_ptr() % 8 == out.data_ptr() % 8 == 0:
        table, out, width = table.view(torch.int64), out.view(torch.int64), width // 2
    num_rows, a, b, add_keys, multiply_keys = order.network_numbers[:5]
    keys = tuple(int(key) for key in (*add_keys.view("int32"), *multiply_keys.view("int32")))
    block_b = 128 if count >= MANY_ROWS else 32
    with torch.cuda.device_of(out):
        _gather[(triton.cdiv(count, block_b),)](
            table,
            out,
            start,
            count,
            num_rows,
            a,
            b,
            keys,
            WIDTH=width,
            BLOCK_B=block_b,
            TILE=min(TILE, triton.next_power_of_2(block_b * width)),
            num_warps=4,
        )


@triton.jit
def _added(half, other, add_key, multiply_key, side):
    """(half + a keyed hash of other) modulo side, for int32 in [0, side); see `order.py`."""
    hashed = (other + add_key) * -2048144789
    hashed = (hashed ^ (hashed >> 16)) * multiply_key
    rest = (half + (hashed >> 4)) % side  # of the sign of the sum
    return tl.where(rest < 0, rest + side, rest)


@triton.jit
def _rows(left, right, a, b, keys):
    """The network's bijection of [0, a b): int64 from left in Z_a and right in Z_b, int32."""
    for number in tl.static_range(0, _NUM_ROUNDS, 2):
        left = _added(left, right, keys[number], keys[_NUM_ROUNDS + number], a)
        right = _added(right, left, keys[number + 1], keys[_NUM_ROUNDS + number + 1], b)
    return left.to(tl.int64) * b + right


@triton.jit(do_not_specialize=["start", "count", "num_rows", "a", "b", "keys"])
def _gather(
    table,
    out,
    start,
    count,
    num_rows,
    a,
    b,
    keys,
    WIDTH: tl.constexpr,
    BLOCK_B: tl.constexpr,
    TILE: tl.constexpr,
):
    begin = tl.program_id(0).to(tl.int64) * BLOCK_B
    first = start + begin
    # One division of 64 bits a program; what follows fits 32, since sides are at most 2^20.
    right = (first % b).to(tl.int32) + tl.arange(0, BLOCK_B)
    left = (first // b).to(tl.int32) + right // b
    right = right % b
    live = begin + tl.arange(0, BLOCK_B) < count
    row = tl.where(live, _rows(left, right, a, b, keys), 0)
    while tl.max((row >= num_rows).to(tl.int32), axis=0) > 0:  # a few values of an epoch
        again = _rows((row // b).to(tl.int32), (row % b).to(tl.int32), a, b, keys)
        row = tl.where(row >= num_rows, again, row)
    out += begin * WIDTH
    left_over = tl.minimum(count - begin, BLOCK_B).to(tl.int32) * WIDTH
    for step in range(0, BLOCK_B * WIDTH, TILE):
        word = step + tl.arange(0, TILE)
        inside = word < left_over
        place = tl.minimum(word // WIDTH, BLOCK_B - 1)
        source = tl.gather(row, place, axis=0) * WIDTH + word % WIDTH
        tl.store(out + word, tl.load(table + source, mask=inside, other=0), mask=inside)
