"""Negative draws in plain torch, on any device: what `negatives_cpu` and `negatives_cuda` compute, bit for bit.

Draw k of the row at `position` has the 64 bits

    splitmix64(splitmix64(start + position g) + (k + 1) g),    g = splitmix64's increment

so it depends on no other row, nor on how many draws there are. A `DrawTable` says which ids they are mapped to.

Shapes: B rows, K draws each, U users, M known positives of all users together, V ids that can be drawn.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gigabatch.loaders.order.order import GOLDEN, splitmix64

LOW_32 = (1 << 32) - 1


@dataclass(frozen=True)
class DrawTable:
    """The mass that each user leaves to draw from, ready for drawing by rank.

    The id low + i has the mass `cumulative[i + 1] - cumulative[i]`, or 1 where all are equal. A rank in [0, allowed[u])
    lies in exactly one id that is not among u's known positives, because `mass_before[j]` is the allowed mass in front
    of the j-th of them: those with `mass_before <= rank` are stepped over. So no draw is ever rejected.

    low: the lowest id drawn. offsets [U+1] int64 and items [max(M, 1)] int32: each user's known positives in
    [low, low + V), ascending. allowed [U] int64 and log_allowed [U] float32: what a user may draw, and its logarithm as
    a share of everything (of one id where all are equal). longest: the most positives of a user.

    Of weighted ids only, and of length 1 otherwise: mass_before [max(M, 1)] int64; cumulative [V+1] int64; log_item [V]
    float32; guide [G+1] int32, the place among the ids of every rank that is a multiple of 2^guide_shift, so that a
    search goes between two neighbours in it (Chen and Asau 1974), which differ by at most `widest`.
    """

    low: int
    offsets: Tensor
    items: Tensor
    allowed: Tensor
    log_allowed: Tensor
    mass_before: Tensor
    cumulative: Tensor
    log_item: Tensor
    guide: Tensor
    longest: int
    widest: int
    guide_shift: int
    weighted: bool

    @property
    def num_users(self) -> int:
        return self.allowed.shape[0]


def draw(
    table: DrawTable, start: Tensor, positions: Tensor, users: Tensor, num_draws: int, replacement: bool
) -> tuple[Tensor, Tensor]:
    """ids [B, K] int32 and the logarithm of their probability in one draw [B, K] float32.

    start [1] int64; positions [B] int64; users [B] int32. Without replacement (not for weighted ids) a row's ids differ
    from each other: Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", CACM 1987), by which every set of K
    is equally likely, though a set's order is not random.
    """
    users = users.long()
    allowed = table.allowed[users][:, None]
    counters = torch.arange(1, num_draws + 1, device=positions.device).mul_(GOLDEN)
    bits = splitmix64(splitmix64(positions * GOLDEN + start)[:, None] + counters)
    if replacement:
        ranks = multiply_high(bits, allowed)
    else:
        ranks = torch.empty_like(bits)
        for k in range(num_draws):
            size = allowed - (num_draws - k - 1)
            rank = multiply_high(bits[:, k : k + 1], size)
            taken = (ranks[:, :k] == rank).any(1, keepdim=True)
            ranks[:, k : k + 1] = torch.where(taken, size - 1, rank)
    ids = _select(table, users, ranks)
    log_allowed = table.log_allowed[users][:, None]
    log_q = table.log_item[ids - table.low] - log_allowed if table.weighted else -log_allowed.expand_as(ids)
    return ids.int(), log_q.contiguous()


def multiply_high(bits: Tensor, size: Tensor) -> Tensor:
    """floor(bits size / 2^64) for `bits` read as 64 unsigned bits and 0 <= size < 2^63: a number in [0, size).

    Each is as likely as any other up to 2^-64 (Lemire 2019, "Fast random integer generation in an interval").
    """
    low, high = bits & LOW_32, (bits >> 32) & LOW_32
    size_low, size_high = size & LOW_32, size >> 32
    middle = low * size_high + ((low * size_low) >> 32 & LOW_32)
    return high * size_high + (middle >> 32) + ((high * size_low + (middle & LOW_32)) >> 32 & LOW_32)


def _select(table: DrawTable, users: Tensor, ranks: Tensor) -> Tensor:
    """The id (int64) in which each rank of its user's allowed mass lies."""
    first, stop = table.offsets[users][:, None].expand(ranks.shape), table.offsets[users + 1][:, None]
    if not table.weighted:
        place = _count_up_to(table.items, first, stop, table.longest, ranks + table.low, gaps=True)
        return table.low + ranks + (place - first)
    place = _count_up_to(table.mass_before, first, stop, table.longest, ranks)
    last = (place - 1).clamp_min(0)
    stepped_over = table.cumulative[table.items[last].long() - table.low + 1] - table.mass_before[last]
    ranks = ranks + torch.where(place > first, stepped_over, 0)
    return table.low + torch.searchsorted(table.cumulative[1:], ranks, right=True)


def _count_up_to(
    values: Tensor, first: Tensor, stop: Tensor, longest: int, bound: Tensor, gaps: bool = False
) -> Tensor:
    """The place in [first, stop] behind all values that are at most `bound`, by binary search.

    With `gaps`, values[j] - (j - first) is compared: how many ids below an item are not items themselves.
    """
    low, high = first, stop
    for _ in range(longest.bit_length()):
        middle = (low + high) >> 1
        value = values[middle.clamp_max(len(values) - 1)]
        below = (low < high) & ((value - (middle - first) if gaps else value) <= bound)
        low, high = torch.where(below, middle + 1, low), torch.where(below, high, middle)
    return low
