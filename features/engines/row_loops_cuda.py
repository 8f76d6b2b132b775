"""Rows of 4-byte words from a frame's columns on a GPU: filled, flagged, scaled and packed by one Triton kernel.

The counterpart of `features/engines/row_loops.py`, bit for bit. A program reads a few hundred neighbouring rows of up
to 32 columns, each along its memory, and writes them along the rows: every value is read once and every word written
once. At 42.8M rows of 50 words that is 17 GB, 3.6 ms at an H200's 4.8 TB/s (an estimate: it has not run on a GPU).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from gigabatch.features.exact.loops_cuda import DeviceColumn

BLOCK = 2048  # words that a program writes: 8 a thread; with 16, few programs would fit into the registers
MOST_WORDS = 32  # of a row that a program writes: a cache line of 128 bytes
MOST_REGISTERS = 128  # a thread, so that two programs run on a multiprocessor; Triton 3.7 takes up to 181 by itself
COPIED, CODED, FLOAT, FLAG = range(4)
BEYOND, INFINITE = 1, 2


@dataclass(frozen=True)
class DeviceWord:
    """What a word of each row holds.

    kind: COPIED: the column's 4 bytes; CODED: what the table holds at this code, at `last` for a negative one; FLOAT:
    the float, filled and, unless `std` is 0, scaled, and bounded smoothly unless `clip` is 0; FLAG: 1.0 where it is
    null or NaN, else 0.0.
    table: address of int32 by code.
    """

    kind: int
    column: DeviceColumn
    table: int = 0
    last: int = 0
    fill: float = 0.0
    mean: float = 0.0
    std: float = 0.0
    clip: float = 0.0


def pack_words(words: Sequence[DeviceWord], out: Tensor, faults: Tensor) -> None:
    """Write whole rows, `out` int32 [N, W]; a float's word holds the bits of its float32.

    faults: int32 [W], zero before; INFINITE for a float that is one before scaling, BEYOND after it. One launch, after
    a few numbers are copied to the device; nothing is read back.
    """
    num_rows, width = out.shape
    assert out.dtype == faults.dtype == torch.int32, (out.dtype, faults.dtype)
    assert out.is_contiguous()
    assert faults.shape == (width,) == (len(words),), (faults.shape, out.shape, len(words))
    assert all(word.column.num_rows == num_rows for word in words)
    if not out.numel():
        return
    block_w = min(MOST_WORDS, triton.next_power_of_2(width))
    block_n = BLOCK // block_w
    word_blocks = triton.cdiv(width, block_w)
    with torch.cuda.device_of(out):
        _pack[(triton.cdiv(num_rows, block_n) * word_blocks,)](
            _described(words, out.device),
            out,
            faults,
            num_rows,
            width,
            word_blocks,
            BLOCK_N=block_n,
            BLOCK_W=block_w,
            num_warps=8,
            maxnreg=MOST_REGISTERS,
            enable_fp_fusion=False,  # 1 + x * x rounded twice, as the other engines round it
        )


def _described(words: Sequence[DeviceWord], device: torch.device) -> Tensor:
    """[10, W] int64: kind, values, bitmap, offset, table, last, and the bits of fill, mean, deviation and bound."""
    rows = [
        (
            word.kind,
            word.column.values,
            word.column.bitmap,
            word.column.offset,
            word.table,
            word.last,
            struct.unpack("<i", struct.pack("<f", word.fill))[0],
            *struct.unpack("<qqq", struct.pack("<ddd", word.mean, word.std, word.clip)),
        )
        for word in words
    ]
    return torch.tensor(rows, dtype=torch.int64).t().contiguous().to(device)


@triton.jit
def _is_infinite(value):
    return (value == float("inf")) | (value == float("-inf"))


@triton.jit(do_not_specialize=["num_rows", "word_blocks"])
def _pack(words, out, faults, num_rows, width, word_blocks, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr):
    place = tl.program_id(0) % word_blocks * BLOCK_W + tl.arange(0, BLOCK_W)  # neighbours write the same cache lines
    first = (tl.program_id(0) // word_blocks).to(tl.int64) * BLOCK_N
    row = tl.arange(0, BLOCK_N)  # from the first one on: what each thread counts in takes half the registers
    live = place < width
    tile = live[:, None] & (row < num_rows - first)[None, :]
    kind = tl.load(words + place, mask=live, other=0)[:, None]
    values = tl.load(words + width + place, mask=live, other=0).to(tl.pointer_type(tl.int32)) + first
    bitmap = tl.load(words + 2 * width + place, mask=live, other=0)[:, None]
    first_bit = tl.load(words + 3 * width + place, mask=live, other=0)[:, None] + first
    bit = (first_bit & 7).to(tl.int32) + row[None, :]
    table = tl.load(words + 4 * width + place, mask=live, other=0).to(tl.pointer_type(tl.int32))
    last = tl.load(words + 5 * width + place, mask=live, other=0).to(tl.int32)[:, None]
    fill = tl.load(words + 6 * width + place, mask=live, other=0).to(tl.int32).to(tl.float32, bitcast=True)[:, None]
    mean = tl.load(words + 7 * width + place, mask=live, other=0).to(tl.float64, bitcast=True)[:, None]
    std = tl.load(words + 8 * width + place, mask=live, other=0).to(tl.float64, bitcast=True)[:, None]
    clip = tl.load(words + 9 * width + place, mask=live, other=0).to(tl.float64, bitcast=True)[:, None]

    word = tl.load(values[:, None] + row[None, :], mask=tile, other=0)
    coded = tl.load(table[:, None] + tl.where(word < 0, last, word), mask=tile & (kind == 1), other=0)
    found = tl.where(kind == 1, coded, word)

    value = tl.where(kind >= 2, word, 0).to(tl.float32, bitcast=True)
    flags = bitmap.to(tl.pointer_type(tl.uint8)) + (first_bit >> 3)
    valid = tl.load(flags + (bit >> 3), mask=tile & (bitmap != 0), other=255)
    missing = (value != value) | (((valid.to(tl.int32) >> (bit & 7)) & 1) == 0)
    filled = tl.where(missing, fill, value)
    wide = (filled.to(tl.float64) - mean) / tl.where(std == 0, 1.0, std)
    part = tl.where(clip == 0, 0.0, wide / tl.where(clip == 0, 1.0, clip))
    wide /= tl.sqrt(1.0 + part * part)  # by 1, where nothing bounds the column
    scaled = tl.where(std == 0, filled, wide.to(tl.float32))
    fault = tl.where(_is_infinite(filled), 2, tl.where(_is_infinite(scaled), 1, 0))
    worst = tl.max(tl.where(tile & (kind == 2), fault, 0), axis=1)
    tl.atomic_max(faults + place, worst, mask=live & (worst > 0), sem="relaxed")

    found = tl.where(kind == 2, scaled.to(tl.int32, bitcast=True), found)
    found = tl.where(kind == 3, tl.where(missing, 1.0, 0.0).to(tl.float32).to(tl.int32, bitcast=True), found)
    tl.store(out + first * width + row[None, :] * width + place[:, None], found, mask=tile)
