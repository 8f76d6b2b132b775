"""Negative draws in Triton, for CUDA devices; see `negatives_reference` for what they are.

A program draws for a block of elements (with replacement) or of whole rows (without). Nothing waits for the device and
`start` is read on it, so the launch can be captured in a CUDA graph. Users are not looked at for being in range.

The rounds of a search are constants of a kernel, which is compiled anew for each number of them: one for each sampler.
(Triton 3.6 with NumPy 2.4 cannot interpret a loop whose end is an argument.)
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gigabatch.loaders.negatives.draws_reference import DrawTable

BLOCK = 256
TILE = 1024  # elements of a block of whole rows: 8 of 64 bits a thread


def draw(
    table: DrawTable, start: Tensor, positions: Tensor, users: Tensor, num_draws: int, replacement: bool
) -> tuple[Tensor, Tensor]:
    """See `negatives_reference.draw`."""
    num_rows = len(positions)
    ids = torch.empty((num_rows, num_draws), dtype=torch.int32, device=positions.device)
    log_q = torch.empty((num_rows, num_draws), device=positions.device)
    rounds = table.longest.bit_length()
    if num_rows == 0 or num_draws == 0:
        return ids, log_q
    inputs = start, positions.contiguous(), users.contiguous(), table.offsets, table.items
    user_mass = table.allowed, table.log_allowed
    with torch.cuda.device_of(positions):
        if replacement:
            weighted_only = table.mass_before, table.cumulative, table.log_item, table.guide
            _draw[(triton.cdiv(ids.numel(), BLOCK),)](
                *inputs, *user_mass, *weighted_only, ids, log_q, ids.numel(), num_draws, table.low, table.guide_shift,
                rounds, table.widest.bit_length(), table.weighted, BLOCK,
            )  # fmt: skip
        else:
            width = triton.next_power_of_2(num_draws)
            block_rows = max(1, TILE // width)
            _draw_distinct[(triton.cdiv(num_rows, block_rows),)](
                *inputs, *user_mass, ids, log_q, num_rows, table.low, num_draws, rounds, block_rows, width
            )
    return ids, log_q


@triton.jit
def _mix(state):
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def _bits(start, positions, row, inside, k):
    """Draw k's 64 bits of each row."""
    position = tl.load(positions + row, mask=inside, other=0).to(tl.uint64)
    state = _mix(position * 0x9E3779B97F4A7C15 + tl.load(start).to(tl.uint64))
    return _mix(state + (k + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)


@triton.jit
def _count_up_to(values, first, stop, bound, ROUNDS: tl.constexpr, GAPS: tl.constexpr):
    """The place in [first, stop] behind all values that are at most `bound`; with GAPS, behind all
    values[j] - (j - first)."""
    low, high = first, stop
    for _ in range(ROUNDS):
        middle = (low + high) >> 1
        value = tl.load(values + middle, mask=low < high, other=0).to(tl.int64)
        if GAPS:
            value -= middle - first
        below = (low < high) & (value <= bound)
        low, high = tl.where(below, middle + 1, low), tl.where(below, high, middle)
    return low


@triton.jit
def _draw(
    start, positions, users, offsets, items, allowed, log_allowed, mass_before, cumulative, log_item, guide,
    ids, log_q, num_elements, num_draws, low, guide_shift,
    ROUNDS: tl.constexpr, ITEM_ROUNDS: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = element < num_elements
    row = element // num_draws
    user = tl.load(users + row, mask=inside, other=0).to(tl.int64)
    first = tl.load(offsets + user, mask=inside, other=0)
    stop = tl.load(offsets + user + 1, mask=inside, other=0)
    size = tl.load(allowed + user, mask=inside, other=0).to(tl.uint64)
    log_mass = tl.load(log_allowed + user, mask=inside, other=0.0)
    rank = tl.umulhi(_bits(start, positions, row, inside, element % num_draws), size).to(tl.int64)
    if WEIGHTED:
        place = _count_up_to(mass_before, first, stop, rank, ROUNDS, False)
        behind = inside & (place > first)
        last = tl.load(items + place - 1, mask=behind, other=0).to(tl.int64)
        end = tl.load(cumulative + (last - low + 1), mask=behind, other=0)
        rank += end - tl.load(mass_before + place - 1, mask=behind, other=0)
        near = rank >> guide_shift
        begin = tl.load(guide + near, mask=inside, other=0).to(tl.int64)
        end = tl.load(guide + near + 1, mask=inside, other=0).to(tl.int64)
        item = _count_up_to(cumulative, begin + 1, end + 1, rank, ITEM_ROUNDS, False) - 1
        tl.store(ids + element, (low + item).to(tl.int32), mask=inside)
        tl.store(log_q + element, tl.load(log_item + item, mask=inside, other=0.0) - log_mass, mask=inside)
    else:
        place = _count_up_to(items, first, stop, low + rank, ROUNDS, True)
        tl.store(ids + element, (low + rank + (place - first)).to(tl.int32), mask=inside)
        tl.store(log_q + element, -log_mass, mask=inside)


@triton.jit
def _draw_distinct(
    start, positions, users, offsets, items, allowed, log_allowed, ids, log_q,
    num_rows, low, NUM_DRAWS: tl.constexpr, ROUNDS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The draws of a row are a line of a tile [ROWS, WIDTH], so that each is compared with those before it."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < num_rows
    user = tl.load(users + row, mask=inside, other=0).to(tl.int64)
    first = tl.load(offsets + user, mask=inside, other=0)
    stop = tl.load(offsets + user + 1, mask=inside, other=0)
    size = tl.load(allowed + user, mask=inside, other=0)
    log_mass = tl.load(log_allowed + user, mask=inside, other=0.0)
    column = tl.arange(0, WIDTH)[None, :]
    ranks = tl.full((ROWS, WIDTH), -1, tl.int64)
    for k in range(NUM_DRAWS):
        left = size - (NUM_DRAWS - k - 1)
        bits = _bits(start, positions, row, inside, tl.full((ROWS,), k, tl.int64))
        rank = tl.umulhi(bits, left.to(tl.uint64)).to(tl.int64)
        taken = tl.max((ranks == rank[:, None]).to(tl.int32), axis=1) > 0
        rank = tl.where(taken, left - 1, rank)
        ranks = tl.where(column == k, rank[:, None], ranks)
    begin = tl.broadcast_to(first[:, None], (ROWS, WIDTH))
    place = _count_up_to(items, begin, tl.broadcast_to(stop[:, None], (ROWS, WIDTH)), low + ranks, ROUNDS, True)
    mask = inside[:, None] & (column < NUM_DRAWS)
    at = row[:, None] * NUM_DRAWS + column
    tl.store(ids + at, (low + ranks + (place - begin)).to(tl.int32), mask=mask)
    tl.store(log_q + at, tl.broadcast_to(-log_mass[:, None], (ROWS, WIDTH)), mask=mask)
