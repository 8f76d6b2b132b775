"""Negative draws on the CPU, compiled by numba and spread over all cores; see `negatives_reference` for what they are.

Each row is computed by itself, so the result does not depend on the number of threads.
"""

import numba
import numpy as np
import torch
from torch import Tensor

from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.negatives.draws_reference import DrawTable
from gigabatch.loops import njit

LOW_32 = np.uint64(0xFFFFFFFF)
ONE, SHIFT_32 = np.uint64(1), np.uint64(32)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's increment


def draw(
    table: DrawTable, start: Tensor, positions: Tensor, users: Tensor, num_draws: int, replacement: bool
) -> tuple[Tensor, Tensor]:
    """See `negatives_reference.draw`; `LoaderError` for a user outside the table."""
    ids = torch.empty((len(positions), num_draws), dtype=torch.int32)
    log_q = torch.empty((len(positions), num_draws))
    outside = _draw_rows(
        start.numpy().view(np.uint64),
        positions.contiguous().numpy().view(np.uint64),
        users.contiguous().numpy(),
        table.offsets.numpy(),
        table.items.numpy(),
        table.mass_before.numpy(),
        table.cumulative.numpy(),
        table.allowed.numpy(),
        table.log_allowed.numpy(),
        table.log_item.numpy(),
        table.guide.numpy(),
        table.guide_shift,
        table.low,
        table.weighted,
        replacement,
        ids.numpy(),
        log_q.numpy(),
    )
    if outside:
        worst = int(users.min()) if int(users.min()) < 0 else int(users.max())
        raise LoaderError(
            f"negatives: {outside} of {len(users)} rows have a user outside [0, {table.num_users}), for example "
            f"{worst}. Give the known positives the num_ids of the user column."
        )
    return ids, log_q


@njit()
def splitmix64(state):
    """As that of `loaders/kernels/gather_loops.py`: numba's files on disk know nothing of functions of other files."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@njit()
def _multiply_high(bits, size):
    """floor(bits size / 2^64), int64; bits uint64, size int64 from 0."""
    size_low, size_high = np.uint64(size) & LOW_32, np.uint64(size) >> SHIFT_32
    low, high = bits & LOW_32, bits >> SHIFT_32
    middle = low * size_high + (low * size_low >> SHIFT_32)
    return np.int64(high * size_high + (middle >> SHIFT_32) + (high * size_low + (middle & LOW_32) >> SHIFT_32))


@njit()
def _count_up_to(values, first, stop, bound):
    """The place in [first, stop] behind all values that are at most `bound`.

    The number of rounds depends on the length alone and a step is a product: a branch would be foreseen half the time.
    """
    size = stop - first
    while size > 0:
        half = (size + 1) >> 1
        first += half * (values[first + half - 1] <= bound)
        size -= half
    return first


@njit()
def _count_gaps_up_to(items, first, stop, bound):
    """The same for items[j] - (j - first): how many ids below an item are not items themselves."""
    low, size = first, stop - first
    while size > 0:
        half = (size + 1) >> 1
        place = low + half - 1
        low += half * (items[place] - (place - first) <= bound)
        size -= half
    return low


@njit(parallel=True)
def _draw_rows(
    start, positions, users, offsets, items, mass_before, cumulative, allowed, log_allowed, log_item,
    guide, guide_shift, low, weighted, replacement, ids, log_q,
):  # fmt: skip
    """Fill ids and log_q [B, K]; how many rows have a user outside the table. Their ids are not written."""
    num_draws = ids.shape[1]
    outside = 0
    for row in numba.prange(len(positions)):
        user = np.int64(users[row])
        if user < 0 or user >= len(allowed):
            outside += 1
            continue
        first, stop = offsets[user], offsets[user + 1]
        mass, log_mass = allowed[user], log_allowed[user]
        state = splitmix64(positions[row] * GOLDEN + start[0])
        if weighted:
            for k in range(num_draws):
                rank = _multiply_high(splitmix64(state + (np.uint64(k) + ONE) * GOLDEN), mass)
                place = _count_up_to(mass_before, first, stop, rank)
                if place > first:
                    rank += cumulative[items[place - 1] - low + 1] - mass_before[place - 1]
                near = rank >> guide_shift
                item = _count_up_to(cumulative, np.int64(guide[near]) + 1, np.int64(guide[near + 1]) + 1, rank) - 1
                ids[row, k] = low + item
                log_q[row, k] = log_item[item] - log_mass
            continue
        for k in range(num_draws):
            bits = splitmix64(state + (np.uint64(k) + ONE) * GOLDEN)
            if replacement:
                ids[row, k] = _multiply_high(bits, mass)
                continue
            size = mass - (num_draws - k - 1)
            rank = _multiply_high(bits, size)
            for earlier in range(k):
                if ids[row, earlier] == rank:
                    rank = size - 1
                    break
            ids[row, k] = rank
        for k in range(num_draws):
            rank = np.int64(ids[row, k])
            ids[row, k] = low + rank + (_count_gaps_up_to(items, first, stop, low + rank) - first)
            log_q[row, k] = -log_mass
    return outside
