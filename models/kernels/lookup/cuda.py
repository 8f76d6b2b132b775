"""`lookup` for CUDA in Triton: every table, the scaled floats and the zeros behind them in one launch.

A program writes a tile of BLOCK_B rows and BLOCK_K neighbouring columns of the output, whichever tables they come from,
so that stores are whole cache lines. What a column reads is in `_columns`: an address, a table's width and height, and
the id column. An id outside its table reads NaN: no memory but the tables' is touched, and the loss shows it.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gigabatch.models.kernels import FLOATS

# The columns of each set of tables seen, on the device, by the first of them. They follow from the tables' addresses
# and shapes alone and stay while that table does, since a captured CUDA graph reads both. 32 bytes an output column.
_cached_columns: MutableMapping[Tensor, dict[tuple, Tensor]] = WeakTensorKeyDictionary()


@torch.no_grad()
def lookup(
    ids: Tensor,
    tables: Sequence[Tensor],
    out: Tensor,
    floats: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
) -> None:
    """See `reference.lookup`; an id outside its table gives NaN.

    Nothing is synchronised. The first call for a set of tables copies a little to the device, so make one before a
    CUDA graph is captured.
    """
    num_rows, out_width = out.shape
    width = sum(table.shape[1] for table in tables)
    num_floats = 0 if floats is None else floats.shape[1]
    assert ids.dtype == torch.int32, ids.dtype
    assert out.dtype in FLOATS, out.dtype
    assert ids.shape == (num_rows, len(tables)), (ids.shape, out.shape, len(tables))
    assert all(table.is_contiguous() and table.dtype == torch.float32 for table in tables)
    assert width + num_floats <= out_width, (width, num_floats, out.shape)
    assert floats is None or (floats.dtype == torch.float32 and len(floats) == num_rows)
    assert (scale is None) == (shift is None)
    if not out.numel():
        return
    assert out.stride(1) == 1, out.stride()
    assert floats is None or not num_floats or floats.stride(1) == 1, floats
    # 64 columns are two cache lines of float32. 4,096 elements on 256 threads keep 16 loads a thread in flight, which
    # hides the latency of random rows; a batch too small to give an H200's 132 SMs four such tiles gets smaller ones.
    block_k = min(64, triton.next_power_of_2(max(width, out_width - width)))
    large = num_rows * out_width >= 4 * 132 * 4096
    block_b = (4096 if large else 1024) // block_k
    table_blocks = triton.cdiv(width, block_k)
    column_blocks = table_blocks + triton.cdiv(out_width - width, block_k)
    with torch.cuda.device_of(out):
        _lookup[(triton.cdiv(num_rows, block_b) * column_blocks,)](
            ids,
            ids.stride(0),
            ids.stride(1),
            _columns(tables, out.device),
            out if floats is None else floats,
            0 if floats is None else floats.stride(0),
            scale,
            shift,
            out,
            out.stride(0),
            num_rows,
            WIDTH=width,
            NUM_FLOATS=num_floats,
            OUT_WIDTH=out_width,
            SCALED=scale is not None,
            VECTOR=4 if all(table.shape[1] % 4 == 0 and table.data_ptr() % 16 == 0 for table in tables) else 1,
            TABLE_BLOCKS=table_blocks,
            COLUMN_BLOCKS=column_blocks,
            BLOCK_B=block_b,
            BLOCK_K=block_k,
            num_warps=8 if large else 4,
        )


def _columns(tables: Sequence[Tensor], device: torch.device) -> Tensor:
    """[4, W] int64: of each looked up column its address in row 0, a row's bytes, the table's rows, the id column."""
    if not tables:
        return torch.empty(4, 0, dtype=torch.int64, device=device)
    cached = _cached_columns.setdefault(tables[0], {})
    key = (device, tuple((table.data_ptr(), *table.shape) for table in tables))
    if key not in cached:
        columns = [
            (table.data_ptr() + 4 * place, 4 * table.shape[1], table.shape[0], column)
            for column, table in enumerate(tables)
            for place in range(table.shape[1])
        ]
        cached[key] = torch.tensor(columns, dtype=torch.int64).t().contiguous().to(device)
    return cached[key]


@triton.jit(do_not_specialize=["ids_row_stride", "ids_column_stride", "num_rows"])
def _lookup(
    ids,
    ids_row_stride,
    ids_column_stride,
    columns,
    floats,
    floats_stride,
    scale,
    shift,
    out,
    out_stride,
    num_rows,
    WIDTH: tl.constexpr,
    NUM_FLOATS: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    SCALED: tl.constexpr,
    VECTOR: tl.constexpr,
    TABLE_BLOCKS: tl.constexpr,
    COLUMN_BLOCKS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    block = tl.program_id(0) % COLUMN_BLOCKS  # neighbours share their rows' ids in the cache
    row = (tl.program_id(0) // COLUMN_BLOCKS).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    live = row < num_rows
    if block < TABLE_BLOCKS:
        k = block * BLOCK_K + tl.arange(0, BLOCK_K)
        wanted = k < WIDTH
        address = tl.load(columns + k, mask=wanted, other=0)
        row_bytes = tl.load(columns + WIDTH + k, mask=wanted, other=0).to(tl.int32)  # 32 x 32 bits: one instruction
        height = tl.load(columns + 2 * WIDTH + k, mask=wanted, other=0).to(tl.int32)
        column = tl.load(columns + 3 * WIDTH + k, mask=wanted, other=0)
        tile = live[:, None] & wanted[None, :]
        entry = tl.load(ids + row[:, None] * ids_row_stride + column[None, :] * ids_column_stride, mask=tile, other=0)
        inside = (entry >= 0) & (entry < height[None, :])
        offset = entry.to(tl.int64) * row_bytes.to(tl.int64)[None, :]
        place = (address[None, :] + offset).to(tl.pointer_type(tl.float32))
        place = tl.max_contiguous(tl.multiple_of(place, [1, 4 * VECTOR]), [1, VECTOR])
        # one mask a group of VECTOR columns, which lie in one row of one table: tell the compiler so
        inside = tl.max_constancy(inside, [1, VECTOR])
        value = tl.load(place, mask=tile & inside, other=float("nan"))
        tl.store(out + row[:, None] * out_stride + k[None, :], value, mask=tile)
    else:
        f = (block - TABLE_BLOCKS) * BLOCK_K + tl.arange(0, BLOCK_K)
        tile = live[:, None] & (f < NUM_FLOATS)[None, :]
        value = tl.load(floats + row[:, None] * floats_stride + f[None, :], mask=tile, other=0.0).to(tl.float32)
        if SCALED:
            by = tl.load(scale + f, mask=f < NUM_FLOATS, other=0.0)
            plus = tl.load(shift + f, mask=f < NUM_FLOATS, other=0.0)
            value = value * by[None, :] + plus[None, :]
        tile = live[:, None] & (f < OUT_WIDTH - WIDTH)[None, :]
        tl.store(out + row[:, None] * out_stride + WIDTH + f[None, :], value, mask=tile)
