"""Sample order as a pure function: which row stands at a position of an epoch, computed where the positions are.

No permutation is stored, so the memory does not grow with the table, and resuming at a position or taking every k-th
one is arithmetic on positions.
"""

import math
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from gigabatch.loaders.errors import LoaderError

MAX_ROWS = 1 << 40
# How far a Feistel network is from a uniform permutation grows as its halves shrink; so few rows are sorted by random
# keys instead, which is uniform over all their permutations and costs one small sort a call.
SORTED_ROWS = 4096
NUM_ROUNDS = 8  # even, so that the halves end in their places

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, splitmix64's increment, as a signed number
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_ROUND_MULTIPLIER = -2048144789  # 0x85EBCA6B, from murmur3's finaliser


class SampleOrder:
    """A bijection of [0, num_rows) that depends on nothing but (num_rows, seed, epoch).

    Calling it with positions [K] int64 in [0, num_rows) gives rows [K] int64 on the same device, bit-equal on every
    device. Nothing waits for the device, and positions outside the range are not looked for. On the CPU
    `loaders/order/gather.py` computes the same rows several times faster while it copies them.

    The methods are from Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002). Up to `SORTED_ROWS`
    rows, their prefix cipher: rows are sorted by 64 random bits each. Above, their generalised Feistel network on
    Z_a x Z_b with a b >= num_rows (a Luby-Rackoff construction with modular sums): each round adds a keyed hash of one
    half to the other, modulo a or b. A value outside [0, num_rows) goes through the network again until it is inside
    (cycle walking).

    Sides a, b near sqrt(num_rows) are chosen so that a b - num_rows is smallest: about 2 on average, seldom above 15.
    So the walks of all outside values are done once here, and a call is one pass and one replacement for each of them.
    A network on a power of two would repeat an unknown number of passes and wait for the device after each.
    """

    def __init__(self, num_rows: int, seed: int, epoch: int) -> None:
        if not 1 <= num_rows <= MAX_ROWS:
            raise LoaderError(f"sample order: num_rows must be in [1, {MAX_ROWS}], found {num_rows}.")
        if epoch < 0:
            raise LoaderError(f"sample order: epoch must not be negative, found {epoch}.")
        self.num_rows = num_rows
        self.seed = seed
        self.epoch = epoch
        self._start = start_state(seed, epoch)
        self.has_network = num_rows > SORTED_ROWS
        if self.has_network:
            self._sides = nearly_square_sides(num_rows)
            self._keys = _round_keys(self._start)
            self._exits = self._walk_outside()

    def __call__(self, positions: Tensor) -> Tensor:
        """Rows [K] int64 at `positions` [K] int64."""
        assert positions.dtype == torch.int64, positions.dtype
        if not self.has_network:
            counters = torch.arange(self.num_rows, device=positions.device)
            return splitmix64(counters.mul_(GOLDEN).add_(self._start)).argsort()[positions]
        rows = self._network(positions)
        for outside, row in self._exits:
            rows.masked_fill_(rows == outside, row)
        return rows

    @cached_property
    def network_numbers(self) -> tuple[int, int, int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The network's numbers as the compiled loops take them (`loaders/kernels/gather_loops.py`, `order_rows`)."""
        assert self.has_network, self
        add_keys, multiply_keys = np.array(self._keys, np.int64).astype(np.uint32).T.copy()
        outside, inside = np.array(self._exits, np.int64).reshape(-1, 2).T.copy()
        return self.num_rows, *self._sides, add_keys, multiply_keys, outside, inside

    def __repr__(self) -> str:
        return f"SampleOrder(num_rows={self.num_rows}, seed={self.seed}, epoch={self.epoch})"

    def _network(self, values: Tensor) -> Tensor:
        """The bijection of [0, a b): left = value // b in Z_a and right = value % b in Z_b take turns."""
        a, b = self._sides
        quotient = values.div(b, rounding_mode="floor")
        left, right = quotient.int(), (values - quotient * b).int()
        scratch = torch.empty_like(left), torch.empty_like(left)
        for add_key, multiply_key in self._keys:
            left.add_(_round_hash(right, add_key, multiply_key, *scratch)).remainder_(a)
            left, right, a, b = right, left, b, a
        return left.long().mul_(b).add_(right)

    def _walk_outside(self) -> list[tuple[int, int]]:
        """For each value in [num_rows, a b) that a row can lead to, the row in which its walk ends.

        A walk that starts inside visits no outside value twice, so as many steps as there are outside values end it.
        What is still outside then goes round in a cycle of outside values, which no row leads into.
        """
        outside = torch.arange(self.num_rows, math.prod(self._sides), device="cpu")
        rows = self._network(outside)
        for _ in range(len(outside) - 1):
            rows = torch.where(rows >= self.num_rows, self._network(rows), rows)
        return [(value, row) for value, row in zip(outside.tolist(), rows.tolist(), strict=True) if row < self.num_rows]


def splitmix64(state: Tensor) -> Tensor:
    """The output function of splitmix64 (Steele, Lea and Flood 2014), a bijection of int64 read as 64 bits."""
    mixed = (state ^ ((state >> 30) & ((1 << 34) - 1))) * _MIX_1
    mixed = (mixed ^ ((mixed >> 27) & ((1 << 37) - 1))) * _MIX_2
    return mixed ^ ((mixed >> 31) & ((1 << 33) - 1))


@lru_cache(maxsize=64)
def nearly_square_sides(num_rows: int) -> tuple[int, int]:
    """(a, b) with the least a b >= num_rows where a is in (root/2, root] for root = ceil(sqrt(num_rows))."""
    root = math.isqrt(num_rows - 1) + 1
    a = np.arange(root, root // 2, -1)
    b = -(-num_rows // a)
    best = int(np.argmin(a * b - num_rows))
    return int(a[best]), int(b[best])


def start_state(seed: int, epoch: int) -> int:
    """One 64-bit number from (seed, epoch), so that neighbouring seeds and epochs share nothing."""
    hashed_seed = splitmix64(torch.tensor([_signed(seed + GOLDEN)], device="cpu"))
    return int(splitmix64((hashed_seed + epoch) * GOLDEN))


def _round_keys(start: int) -> list[tuple[int, int]]:
    """An additive and an odd multiplicative 32-bit key for each round, from splitmix64's stream."""
    counters = torch.arange(1, NUM_ROUNDS + 1, device="cpu") * GOLDEN + start
    return [((key >> 32), _signed(key | 1, 32)) for key in splitmix64(counters).tolist()]


def _round_hash(half: Tensor, add_key: int, multiply_key: int, hashed: Tensor, shifted: Tensor) -> Tensor:
    """A keyed hash in [-2^27, 2^27) of each int32, in the shape of murmur3's finaliser; overwrites the scratch."""
    torch.add(half, add_key, out=hashed).mul_(_ROUND_MULTIPLIER)
    torch.bitwise_right_shift(hashed, 16, out=shifted)
    hashed.bitwise_xor_(shifted).mul_(multiply_key)
    return hashed.bitwise_right_shift_(4)  # leaves room to add a half without overflow; the high bits are best mixed


def _signed(value: int, bits: int = 64) -> int:
    """`value` modulo 2^bits as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
