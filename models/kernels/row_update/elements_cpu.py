"""`update_elements` on all cores of a CPU, compiled by numba; see `reference.py` for what it computes.

Elements of lists are many, and those of a list share one gradient: so nothing as large as a gradient is written for
each of them.

- Hot rows, the first few of the table, are summed chunk by chunk of the elements while the gradient of their list lies
  in the L1 cache, then over the chunks.
- The others go, stably, into buckets of neighbouring rows: as 8 or 12 bytes, their row, their list and their scale. A
  bucket is sorted by row in the cache, then the gradients of each row are read where they are, asked for ahead.

The result depends neither on the number of threads nor on the run.
"""

from __future__ import annotations

import threading

import numba
import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from gigabatch.loops import njit
from gigabatch.models.kernels import FLOATS
from gigabatch.models.kernels.gather_sums import add_row, sum_named_rows
from gigabatch.models.kernels.row_loops import stored_as
from gigabatch.models.kernels.row_update.move_cpu import (
    NUM_NUMBERS,
    TOGETHER,
    fill_numbers,
    move_hot,
    move_rows,
    prefetch_row,
)
from gigabatch.models.kernels.row_update.reference import check_elements
from gigabatch.models.kernels.row_update.rules import RowRule, State

HOT_FLOATS = 1 << 16  # hot elements of the table: 256 KB, a part of the L2 cache; fewer where there are few elements
CHUNK_ELEMENTS = 1024
MAX_CHUNKS = 32
BUCKET_ELEMENTS = 512  # wanted in a bucket
MAX_BUCKETS = 1024
DIGIT_BITS = 11  # at most, of a pass of a bucket's sort
SEGMENT = 32  # gradients that are added in float32 before their sum goes into float64
SPREAD = 0x9E3779B1  # odd: goes through a power of two of buckets in a scattered order
NO_SCALES = np.empty(0, np.float32)

_scratch = threading.local()


@torch.no_grad()
def update_elements(
    table: Tensor, state: State, ids: Tensor, places: Tensor, scales: Tensor | None, gradient: Tensor, rule: RowRule
) -> None:
    """As the reference, for a float32 table and gradients of a type in `FLOATS`.

    A thread keeps the memory for its largest batch until it ends, 16 or 24 bytes an element.

    Raises:
        IndexError: for an id outside the table, before anything is changed.
    """
    check_elements(table, ids, places, scales, gradient)
    assert gradient.dtype in FLOATS, gradient.dtype
    assert table.dtype == torch.float32, table.dtype
    assert table.is_contiguous()
    num_elements, (size, width) = len(ids), table.shape
    if num_elements == 0:
        if rule.step == "global":
            state["num_steps"].add_(1)
        return
    hot_floats = min(HOT_FLOATS, max(HOT_FLOATS // 64, num_elements // 4))
    hot = min(max(hot_floats // width, 1), size)
    chunk = max(CHUNK_ELEMENTS, -(-num_elements // MAX_CHUNKS))
    bits = min((num_elements // BUCKET_ELEMENTS).bit_length(), MAX_BUCKETS.bit_length() - 1)
    shift = max(0, int(size - 1).bit_length() - bits)
    given = NO_SCALES if scales is None else scales.numpy()
    words = 2 if scales is None else 3
    source = (gradient.data_ptr(), gradient.stride(0) * gradient.element_size(), stored_as(gradient))

    elements = (ids.numpy(), places.numpy(), given)
    sums, counts, begins, bad = _distribute(*elements, *source, width, size, hot, shift, chunk, 1 << bits)
    if bad:
        raise IndexError(
            f"embedding tables: a list holds ids from {int(ids.min())} to {int(ids.max())}, its table has {size} rows."
        )
    records, others = _memory(words * int(begins[-1, -1]))
    _scatter(*elements, hot, shift, begins, chunk, records, words)
    numbers, addresses = np.empty((1, NUM_NUMBERS)), np.zeros((1, 4), np.int64)
    fill_numbers(numbers[0], addresses[0], table, state, rule)
    move_hot(sums, counts, np.array([[size, width]], np.int64), np.array([hot], np.int64), addresses, numbers)
    _move_cold(records, others, words, *source, begins, width, shift, addresses[0], numbers[0])
    increment_version([table])  # torch counts its own writes only


def _memory(num_words: int) -> tuple[np.ndarray, np.ndarray]:
    """Twice int32 [num_words] of this thread, which its next call overwrites."""
    memory: np.ndarray = getattr(_scratch, "memory", np.empty(0, np.int32))
    if len(memory) < 2 * num_words:
        memory = _scratch.memory = np.empty(2 * num_words, np.int32)
    return memory[:num_words], memory[num_words : 2 * num_words]


@njit(parallel=True)
def _distribute(ids, places, scales, gradient, row_bytes, like, width, size, hot, shift, chunk, num_buckets):
    """Sums of hot rows by chunk of elements, and where each chunk's other elements go.

    Returns (sums float32 [chunks, hot width], counts int32 [chunks, hot], begins int64 [buckets + 1, chunks] (where the
    elements of a chunk begin in their bucket, in the order of buckets, then chunks; at last their number), whether an
    id is outside the table).
    """
    num_elements = len(ids)
    num_chunks = (num_elements + chunk - 1) // chunk
    sums = np.zeros((num_chunks, hot * width), np.float32)
    counts = np.zeros((num_chunks, hot), np.int32)
    begins = np.zeros((num_buckets + 1, num_chunks), np.int64)
    faults = np.zeros(num_chunks, np.bool_)
    base = sums.ctypes.data
    for part in numba.prange(num_chunks):
        first, end = part * chunk, min((part + 1) * chunk, num_elements)
        low, high = np.int32(0), np.int32(0)
        for element in range(first, end):
            low, high = min(low, ids[element]), max(high, ids[element])
        if low < 0 or high >= size:
            faults[part] = True
        else:
            found = np.zeros(num_buckets, np.int64)
            own = base + 4 * part * hot * width
            one, scale = len(scales) == 0, np.float32(1)
            for element in range(first, end):
                key = np.int64(ids[element])
                if key < hot:
                    counts[part, key] += 1
                    if not one:
                        scale = scales[element]
                    of = gradient + row_bytes * np.int64(places[element])
                    add_row(own + 4 * key * width, of, width, scale, like)
                else:
                    found[np.uint64(key >> shift)] += 1
            begins[:num_buckets, part] = found
    total = np.int64(0)
    for bucket in range(num_buckets + 1):
        for part in range(num_chunks):
            count = begins[bucket, part]
            begins[bucket, part] = total
            total += count
    return sums, counts, begins, faults.any()


@njit(parallel=True)
def _scatter(ids, places, scales, hot, shift, begins, chunk, records, words):
    """Row, list and, where there are any, the bits of the scale of each element that is not hot, by bucket."""
    num_elements = len(ids)
    bits = scales.view(np.int32)
    for part in numba.prange(begins.shape[1]):
        following = begins[:, part].copy()
        for element in range(part * chunk, min((part + 1) * chunk, num_elements)):
            key = ids[element]
            if key >= hot:
                bucket = np.uint64(key >> shift)
                slot = np.uint64(following[bucket] * words)
                following[bucket] += 1
                records[slot] = key
                records[slot + np.uint64(1)] = places[element]
                if words == 3:
                    records[slot + np.uint64(2)] = bits[element]


@njit(parallel=True)
def _move_cold(records, others, words, gradient, row_bytes, like, begins, width, shift, addresses, numbers):
    num_buckets = len(begins) - 1
    for task in numba.prange(num_buckets):
        bucket = task * SPREAD % num_buckets  # low buckets are the fullest ones
        first, last = begins[bucket, 0], begins[bucket + 1, 0]
        if first < last:
            _move_bucket(
                records[words * first : words * last], others[words * first : words * last], words, gradient, row_bytes,
                like, width, np.int64(bucket) << shift, shift, addresses, numbers,
            )  # fmt: skip


@njit()
def _move_bucket(records, other, words, gradient, row_bytes, like, width, first_row, shift, addresses, numbers):
    """Move the rows of a bucket, all in [first_row, first_row + 2^shift)."""
    found = _sorted(records, other, words, first_row, shift)
    size = len(found) // words
    keys, places = found[:size], found.ctypes.data + 4 * size
    scales = places + 4 * size if words == 3 else 0
    rows, counts = np.empty(TOGETHER, np.int64), np.empty(TOGETHER, np.int64)
    summed, part = np.empty((TOGETHER, width), np.float32), np.empty(width, np.float32)
    total = np.empty(width, np.float64)
    begin, target = 0, summed.ctypes.data
    while begin < size:
        together = 0
        while together < TOGETHER and begin < size:
            key = keys[begin]
            prefetch_row(key, width, addresses, numbers)
            end = begin + 1
            while end < size and keys[end] == key:
                end += 1
            to = target + 4 * together * width
            if end - begin <= SEGMENT:
                _sum_segment(to, gradient, width, row_bytes, places, scales, begin, end, size, like)
            else:
                total[:] = 0
                for start in range(begin, end, SEGMENT):
                    stop = min(start + SEGMENT, end)
                    _sum_segment(part.ctypes.data, gradient, width, row_bytes, places, scales, start, stop, size, like)
                    for i in range(width):
                        total[i] += part[i]
                for i in range(width):
                    summed[together, i] = total[i]
            rows[together], counts[together] = key, end - begin
            together += 1
            begin = end
        move_rows(rows[:together], summed[:together], counts[:together], addresses, numbers)


@njit()
def _sum_segment(to, gradient, width, row_bytes, places, scales, begin, end, size, like):
    """Sum of the gradients of elements [begin, end) of `size`."""
    scale_at = scales + 4 * begin if scales != 0 else 0
    one = np.float32(1)
    sum_named_rows(to, gradient, width, row_bytes, places + 4 * begin, scale_at, end - begin, size - begin, one, like)


@njit()
def _sorted(records, other, words, first_row, shift):
    """The records in stable ascending order of their rows: all rows, then all lists, then all scales.

    A radix sort by the lowest `shift` bits, from one memory to the other and back; returns the one that has them.
    """
    size = len(records) // words
    num_passes = max(1, (shift + DIGIT_BITS - 1) // DIGIT_BITS)
    digit = (shift + num_passes - 1) // num_passes
    mask = (1 << digit) - 1
    starts = np.empty(mask + 1, np.int32)
    step, to_next = words, 1  # between records and between their words: at first together
    for number in range(num_passes):
        bit = number * digit
        starts[:] = 0
        for i in range(size):
            starts[np.uint64(((records[np.uint64(i * step)] - first_row) >> bit) & mask)] += 1
        before = np.int32(0)
        for value in range(len(starts)):
            before += starts[value]
            starts[value] = before - starts[value]
        for i in range(size):
            at = np.uint64(i * step)
            key = records[at]
            place = np.uint64(((key - first_row) >> bit) & mask)
            slot = np.uint64(starts[place])
            starts[place] += 1
            other[slot] = key
            other[slot + np.uint64(size)] = records[at + np.uint64(to_next)]
            if words == 3:
                other[slot + np.uint64(2 * size)] = records[at + np.uint64(2 * to_next)]
        records, other = other, records
        step, to_next = 1, size
    return records
