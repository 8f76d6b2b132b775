"""`update_rows` on all cores of a CPU, compiled by numba; see `reference.py` for what it computes.

Each row's gradients are summed in two steps, and the row is moved where its sum lies in registers: there is no
gradient table, no sort and no atomic operation, and the result does not depend on the number of threads.

- Hot rows, the first few of each table (all of a small one; vocabularies are ordered by frequency), are summed chunk
  by chunk of the batch, then over the chunks.
- The other gradients are copied, stably, into buckets of neighbouring rows: reading in order and writing to a few
  hundred places is several times faster than reading at random, and a bucket's rows of the table then lie on a few
  pages of memory. A bucket is sorted by row in the cache; equal rows are summed in the order of the batch.

So it is a radix sort whose first pass moves the gradients along, from the highest bits, and whose other passes never
leave the cache. PyTorch's kernel (pull request 22016, 2019) sorts (row, position) wholly before its two-step sum.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numba
import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from gigabatch.loops import njit
from gigabatch.models.kernels import FLOATS
from gigabatch.models.kernels.row_loops import pointer, read, stored_as
from gigabatch.models.kernels.row_update.elements_cpu import update_elements as update_elements
from gigabatch.models.kernels.row_update.move_cpu import (
    NUM_NUMBERS,
    TOGETHER,
    fill_numbers,
    move_hot,
    move_rows,
    prefetch_row,
)
from gigabatch.models.kernels.row_update.rules import RowRule, State

HOT_FLOATS = 8192  # of each table are hot: 32 KB, the L1 cache; fewer for a small batch, which would touch few of them
CHUNK_ROWS = 1024
MAX_CHUNKS = 32
BLOCK_ROWS = 128  # gone through by all columns in turn while ids and gradients lie in the L1 cache
BUCKET_GRADIENTS = 512  # wanted in a bucket, whose keys and order stay in the L1 cache
DIGIT_BITS = 8  # of a pass of its sort
MAX_BUCKETS = 1024
SEGMENT = 32  # gradients that are added in float32 before their sum goes into float64
SPREAD = 0x9E3779B1  # odd: goes through a power of two of buckets in a scattered order


_scratch = threading.local()


@torch.no_grad()
def update_rows(
    tables: Sequence[Tensor], states: Sequence[State], ids: Tensor, gradient: Tensor, rule: RowRule
) -> None:
    """As the reference, for float32 tables and gradients of a type in `FLOATS`.

    A thread keeps the memory for its largest batch until it ends, since new pages would cost as much as the sums.

    Raises:
        IndexError: for an id outside its table, before anything is changed.
    """
    num_rows, num_tables = ids.shape
    if num_rows == 0 or num_tables == 0:
        for state in states if rule.step == "global" else ():
            state["num_steps"].add_(1)
        return
    assert ids.dtype == torch.int32, ids.dtype
    assert num_tables == len(tables), (num_tables, len(tables))
    assert len(gradient) == num_rows, (gradient.shape, num_rows)
    assert gradient.shape[1] >= sum(table.shape[1] for table in tables), gradient.shape
    assert gradient.stride(1) == 1, gradient.stride()
    assert gradient.dtype in FLOATS, gradient.dtype
    assert all(table.dtype == torch.float32 and table.is_contiguous() for table in tables)
    shapes = np.array([table.shape for table in tables], np.int64)
    hot_floats = min(HOT_FLOATS, max(HOT_FLOATS // 8, num_rows // 4))
    hot = np.minimum(np.maximum(hot_floats // shapes[:, 1], 1), shapes[:, 0])
    chunk_rows = max(CHUNK_ROWS, -(-num_rows // MAX_CHUNKS))
    bits = int(np.clip((num_rows // BUCKET_GRADIENTS).bit_length(), 0, MAX_BUCKETS.bit_length() - 1))
    shifts = np.array([max(0, int(size - 1).bit_length() - bits) for size in shapes[:, 0]], np.int64)
    like = stored_as(gradient)
    source = (gradient.data_ptr(), gradient.stride(0), like)

    array = ids.numpy()
    sums, counts, places, bad = _distribute(array, *source, shapes, hot, shifts, chunk_rows, 1 << bits)
    if bad >= 0:
        raise IndexError(f"embedding tables: column {bad} holds an id outside its table of {shapes[bad, 0]} rows.")
    # Of each table: where its keys begin, and where its gradients do, in elements.
    begins = np.zeros((num_tables + 1, 2), np.int64)
    begins[1:, 0] = places[:, -1, 0]
    begins[1:, 1] = places[:, -1, 0] * shapes[:, 1]
    begins = np.cumsum(begins, axis=0)
    keys, sorted_gradients = _memory(int(begins[-1, 0]), int(begins[-1, 1]) * like.itemsize)
    _scatter(array, *source, shapes, hot, shifts, places, chunk_rows, begins, keys, sorted_gradients)
    numbers = np.empty((num_tables, NUM_NUMBERS))
    addresses = np.zeros((num_tables, 4), np.int64)
    for c, (table, state) in enumerate(zip(tables, states, strict=True)):
        fill_numbers(numbers[c], addresses[c], table, state, rule)
    move_hot(sums, counts, shapes, hot, addresses, numbers)
    _move_cold(keys, sorted_gradients, like, places, begins, shapes, shifts, addresses, numbers)
    increment_version(tables)  # torch counts its own writes only


def _memory(num_keys: int, num_bytes: int) -> tuple[np.ndarray, int]:
    """Keys int32 and the address of `num_bytes` for gradients, both of this thread and overwritten by its next call."""
    wanted = 4 * num_keys + num_bytes + 64
    if getattr(_scratch, "memory", np.empty(0)).nbytes < wanted:
        _scratch.memory = np.empty(wanted, np.uint8)
    memory: np.ndarray = _scratch.memory
    return memory[: 4 * num_keys].view(np.int32), memory.ctypes.data + -(-4 * num_keys // 64) * 64


@njit(parallel=True)
def _distribute(ids, gradient, stride, like, shapes, hot, shifts, chunk_rows, num_buckets):
    """Sums of hot rows by chunk, and where each chunk's other gradients go.

    Returns (sums float32 [chunks, sum of hot elements], counts int32 [chunks, hot rows], places int32 [C, buckets + 1,
    chunks] (where the gradients of a chunk begin in their bucket, in the order of buckets, then chunks; at last their
    number), -1 or the first column with an id outside its table).
    """
    num_rows, num_tables = ids.shape
    num_chunks = (num_rows + chunk_rows - 1) // chunk_rows
    sums = np.zeros((num_chunks, (hot * shapes[:, 1]).sum()), np.float32)
    counts = np.zeros((num_chunks, hot.sum()), np.int32)
    places = np.zeros((num_tables, num_buckets + 1, num_chunks), np.int32)
    faults = np.full(num_chunks, num_tables, np.int64)
    for chunk in numba.prange(num_chunks):
        end = min((chunk + 1) * chunk_rows, num_rows)
        found = np.zeros((num_tables, num_buckets), np.int32)
        for first in range(chunk * chunk_rows, end, BLOCK_ROWS):
            last = min(first + BLOCK_ROWS, end)
            sum_at, count_at, start = 0, 0, 0
            for column in range(num_tables):
                size, width = shapes[column]
                wrong = _sum_hot(
                    ids[first:last, column], gradient, first * stride + start, stride, like, size, width, hot[column],
                    shifts[column], sums[chunk, sum_at:], counts[chunk, count_at:], found[column],
                )  # fmt: skip
                if wrong:
                    faults[chunk] = min(faults[chunk], column)
                sum_at += hot[column] * width
                count_at += hot[column]
                start += width
        places[:, :num_buckets, chunk] = found
    for column in numba.prange(num_tables):
        total = np.int32(0)
        for bucket in range(num_buckets + 1):
            for chunk in range(num_chunks):
                size = places[column, bucket, chunk]
                places[column, bucket, chunk] = total
                total += size
    bad = faults.min()
    return sums, counts, places, bad if bad < num_tables else -1


# Places below are unsigned, because signed ones are looked at for being negative.


@njit()
def _sum_hot(ids, gradient, at, stride, like, size, width, hot, shift, sums, counts, found):
    """One column of a chunk: its hot rows' sums and counts, the others counted by bucket; whether an id is wrong."""
    wrong = False
    place, step, width = np.uint64(at), np.uint64(stride), np.uint64(width)
    source = numba.carray(pointer(gradient), (1,), like.dtype)
    for row in range(len(ids)):
        key = ids[row]
        if key < 0 or key >= size:
            wrong = True
        elif key < hot:
            counts[np.uint64(key)] += 1
            target = np.uint64(key) * width
            for i in range(width):
                sums[target + i] += read(source[place + i])
        else:
            found[np.uint64(key >> shift)] += 1
        place += step
    return wrong


@njit(parallel=True)
def _scatter(
    ids, gradient, stride, like, shapes, hot, shifts, places, chunk_rows, begins, keys, sorted_gradients
):  # fmt: skip
    """Keys and gradients of the rows that are not hot, by table, bucket and position in the batch."""
    num_rows, num_tables = ids.shape
    for chunk in numba.prange(places.shape[2]):
        end = min((chunk + 1) * chunk_rows, num_rows)
        next_places = places[:, :, chunk].copy()
        for first in range(chunk * chunk_rows, end, BLOCK_ROWS):
            last = min(first + BLOCK_ROWS, end)
            start = 0
            for column in range(num_tables):
                width = shapes[column, 1]
                if hot[column] < shapes[column, 0]:
                    key_at, element_at = begins[column]
                    _scatter_column(
                        ids[first:last, column], gradient, first * stride + start, stride, like, width, hot[column],
                        shifts[column], next_places[column], keys[key_at:], sorted_gradients, element_at,
                    )  # fmt: skip
                start += width


@njit()
def _scatter_column(ids, gradient, at, stride, like, width, hot, shift, places, keys, target, begin):
    place, step, width = np.uint64(at), np.uint64(stride), np.uint64(width)
    begin = np.uint64(begin)
    source = numba.carray(pointer(gradient), (1,), like.dtype)
    copies = numba.carray(pointer(target), (1,), like.dtype)
    for row in range(len(ids)):
        key = ids[row]
        if key >= hot:
            bucket = np.uint64(key >> shift)
            slot = np.uint64(places[bucket])
            places[bucket] += 1
            keys[slot] = key
            to = begin + slot * width
            for i in range(width):
                copies[to + i] = source[place + i]
        place += step


@njit(parallel=True)
def _move_cold(keys, gradients, like, places, begins, shapes, shifts, addresses, numbers):
    num_tables, num_buckets = len(shapes), places.shape[1] - 1
    for task in numba.prange(num_tables * num_buckets):
        # A thread takes neighbouring tasks: so tables take turns, and low buckets, the fullest ones, are scattered.
        column, bucket = task % num_tables, (task // num_tables * SPREAD) % num_buckets
        first, last = places[column, bucket, 0], places[column, bucket + 1, 0]
        if first < last:
            width = shapes[column, 1]
            mine = keys[begins[column, 0] + first : begins[column, 0] + last]
            source = gradients + like.itemsize * (begins[column, 1] + first * width)
            first_row = bucket << shifts[column]
            _move_bucket(mine, source, like, width, first_row, shifts[column], addresses[column], numbers[column])


@njit()
def _move_bucket(keys, gradients, like, width, first_row, shift, addresses, numbers):
    """Move the rows that `keys` [n] name, all in [first_row, first_row + 2^shift).

    gradients: the address of theirs, [n, width].
    """
    order = _sorted_order(keys, first_row, shift)
    rows, counts, summed = (
        np.empty(TOGETHER, np.int64),
        np.empty(TOGETHER, np.int64),
        np.empty((TOGETHER, width), np.float32),
    )
    total = np.empty(width, np.float64)
    begin = 0
    while begin < len(order):
        size = 0
        while size < TOGETHER and begin < len(order):
            key = keys[order[begin]]
            prefetch_row(key, width, addresses, numbers)
            end = begin + 1
            while end < len(order) and keys[order[end]] == key:
                end += 1
            _sum_gradients(order[begin:end], gradients, like, summed[size], total)
            rows[size], counts[size] = key, end - begin
            size += 1
            begin = end
        move_rows(rows[:size], summed[:size], counts[:size], addresses, numbers)


@njit()
def _sorted_order(keys, first_row, shift):
    """Positions int32 [n] of the keys in stable ascending order: a radix sort by their lowest `shift` bits."""
    order, other = np.arange(len(keys)).astype(np.int32), np.empty(len(keys), np.int32)
    counts = np.empty(1 << DIGIT_BITS, np.int32)
    mask = (1 << DIGIT_BITS) - 1
    for bit in range(0, shift, DIGIT_BITS):
        counts[:] = 0
        for i in range(len(keys)):
            counts[np.uint64(((keys[i] - first_row) >> bit) & mask)] += 1
        before = np.int32(0)
        for digit in range(len(counts)):
            before += counts[digit]
            counts[digit] = before - counts[digit]
        for i in range(len(order)):
            place = np.uint64(((keys[np.uint64(order[i])] - first_row) >> bit) & mask)
            other[np.uint64(counts[place])] = order[i]
            counts[place] += 1
        order, other = other, order
    return order


@njit()
def _sum_gradients(places, gradients, like, summed, total):
    """Sum of the gradients [width] at `places` into `summed`."""
    width = np.uint64(len(summed))
    source = numba.carray(pointer(gradients), (1,), like.dtype)
    summed[:] = 0
    for number in range(len(places)):
        at = np.uint64(places[number]) * width
        for i in range(width):
            summed[i] += read(source[at + i])
        if (number + 1) % SEGMENT == 0 and number + 1 < len(places):
            if number + 1 == SEGMENT:
                total[:] = 0
            for i in range(width):
                total[i] += summed[i]
                summed[i] = 0
    if len(places) > SEGMENT:
        for i in range(width):
            summed[i] = total[i] + summed[i]
