"""Exact order statistics in bounded memory: radix counting on the order-preserving integer image of floats.

Turned into unsigned integers whose order is theirs (all bits flipped for a negative one, the sign bit for the others),
floats can be counted by their leading bits. Such counts add up in any order, so they do not depend on partitions, and
the bin that holds a wanted rank is found from them; a next pass counts inside that bin only, and so on until its values
are told apart. float32 takes two passes, float64 at most four; fewer where few values are left.

One pass alone bounds every quantile: see `RadixHistogram.bounds`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from gigabatch.features.errors import DataError
from gigabatch.features.exact.float_order import (
    ALL_VALID,
    NOT_FINITE,
    WIDTHS,
    WORDS,
    Bitmap,
    InfinityFound,
    array_module,
    float_kind,
    float_words,
    floats_of,
    images,
    require_no_infinity,
    words_of,
)
from gigabatch.features.exact.tally import tally

# Sign, exponent and 7 bits of the mantissa in both: a bin's ends are at most a factor of 1 + 2^-7 apart.
LEADING_BITS = {"float32": 16, "float64": 19}
STEP_BITS = 16  # further bits that a next pass tells apart, fewer where many bins are looked into
FEW_VALUES = 1 << 12  # are sorted sooner than a table of all bins is filled
MOST_BINS = 1 << 20  # that a next pass may hold: 16 MB
Counts: TypeAlias = "RadixHistogram | CountTable"
"""What a next pass counts; the second on a GPU."""


class CountTable(Protocol):
    """What `dense_counts.DenseCounts` is to a search; members as of `RadixHistogram`."""

    @property
    def exact(self) -> bool: ...
    @property
    def total(self) -> int: ...
    @property
    def num_values(self) -> int: ...
    def edges(self) -> tuple[np.ndarray, np.ndarray]: ...
    def merge(self, other: Any) -> CountTable: ...
    def narrowed(self, search: Search) -> Search: ...
    def histogram(self) -> RadixHistogram: ...


@dataclass(frozen=True, eq=False)
class RadixHistogram:
    """How many values fall into each bin of their image's leading bits. Merging adds counts, so it has no order.

    kind: `float32` or `float64`. bits: how many leading bits of the image a bin number holds; all of them, where each
    bin is one value. bins: uint64, ascending, the ones that hold a value. counts: int64, at least 1 each.
    -0.0 counts as 0.0; NaN is not counted, nor is an infinity.
    """

    kind: str
    bits: int
    bins: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, values: Any, valid: Bitmap | None = None) -> RadixHistogram:
        """Of a float32 or float64 array (NumPy or CuPy); null and NaN are left out, an infinity is `InfinityFound`.

        valid: Arrow's validity bitmap (uint8) and the place in it of the first value; for NumPy arrays only.
        """
        kind = float_kind(values)
        shift = WIDTHS[kind] - LEADING_BITS[kind]
        if len(values) <= FEW_VALUES and valid is None:
            if bool((abs(values) == math.inf).any()):
                raise InfinityFound("the values hold an infinity; remove it first.")
            return cls.distinct(values).coarsened(LEADING_BITS[kind])
        if isinstance(values, np.ndarray):
            from gigabatch.features.exact.loops import leading_counts

            word = WORDS[kind]
            minus_zero = word(1 << (WIDTHS[kind] - 1))
            counts = leading_counts(
                float_words(values), *(valid or ALL_VALID), word(shift), 1 << LEADING_BITS[kind], minus_zero
            )
        else:
            cupy = array_module(values)
            words = float_words(values + 0)  # -0.0 becomes 0.0
            counts = cupy.asnumpy(tally(cupy, (words >> shift).astype("int64"), 1 << LEADING_BITS[kind]))
        require_no_infinity(values, valid, counts)
        return cls.of_patterns(kind, counts)

    @classmethod
    def of_patterns(cls, kind: str, counts: np.ndarray) -> RadixHistogram:
        """From the count of every pattern of the leading bits as they lie in memory, sign first; NaN is left out."""
        negative, positive = np.split(counts, 2)[::-1]
        finite = len(positive) - NOT_FINITE
        below, above = np.flatnonzero(negative[:finite])[::-1], np.flatnonzero(positive[:finite])
        bins = np.concatenate([len(negative) - 1 - below, len(negative) + above]).astype(np.uint64)
        return cls(kind, LEADING_BITS[kind], bins, np.concatenate([negative[below], positive[above]]).astype(np.int64))

    @classmethod
    def distinct(cls, values: Any, kind: str | None = None) -> RadixHistogram:
        """Each value of its own, how often it comes; as large as there are distinct ones. NaN is left out.

        kind: to make a float64 histogram of float32 values.
        """
        kind = float_kind(values) if kind is None else kind
        xp = array_module(values)
        found, counts = xp.unique(values, return_counts=True)
        known = found == found
        keys = images(float_words(found[known].astype(kind) + 0), kind)  # -0.0 becomes 0.0
        return cls(kind, WIDTHS[kind], *_on_host(keys, counts[known]))

    @classmethod
    def empty(cls, kind: str = "float32") -> RadixHistogram:
        """Of no value."""
        return cls(kind, LEADING_BITS[kind], np.empty(0, np.uint64), np.empty(0, np.int64))

    @classmethod
    def from_arrays(cls, kind: str, bins: Any, counts: Any, bits: int | None = None) -> RadixHistogram:
        """What `to_arrays` gave; `DataError` for what it cannot have given."""
        if kind not in WIDTHS:
            raise DataError(f"RadixHistogram: unknown kind {kind!r}. Known: {', '.join(WIDTHS)}.")
        bits = LEADING_BITS[kind] if bits is None else bits
        keys, found = np.asarray(bins), np.asarray(counts)
        whole = (keys.dtype.kind in "iu" and found.dtype.kind in "iu") or not len(keys)
        if not (whole and keys.ndim == found.ndim == 1 and len(keys) == len(found) and 1 <= bits <= WIDTHS[kind]):
            raise DataError("RadixHistogram: bins and counts must be two columns of whole numbers, equally long.")
        if len(keys) and (int(keys.min()) < 0 or int(keys.max()) >> bits or int(found.min()) < 1):
            raise DataError(f"RadixHistogram: bins must be below 2^{bits} and counts at least 1.")
        keys, found = keys.astype(np.uint64), found.astype(np.int64)
        if not (keys[1:] > keys[:-1]).all():
            raise DataError("RadixHistogram: bins must ascend.")
        return cls(kind, bits, keys, found)

    def to_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """bins and counts as int64 columns, as long as bins have fewer than 64 bits (uint64 then)."""
        return self.bins.astype(np.int64) if self.bits < 64 else self.bins, self.counts

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RadixHistogram)
            and (self.kind, self.bits) == (other.kind, other.bits)
            and np.array_equal(self.bins, other.bins)
            and np.array_equal(self.counts, other.counts)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    @property
    def num_values(self) -> int:
        """How many bins hold a value."""
        return len(self.bins)

    @property
    def exact(self) -> bool:
        """Whether each bin is one value."""
        return self.bits == WIDTHS[self.kind]

    def merge(self, other: RadixHistogram) -> RadixHistogram:
        """Both together, at the fewer bits of the two. One without values has any kind and any bits."""
        if not (len(self.bins) and len(other.bins)):
            return self if len(self.bins) else other
        if self.kind != other.kind:
            raise DataError(
                f"one partition holds {self.kind}, another {other.kind}: their values cannot be ranked together "
                "exactly. Cast the column to one type first."
            )
        bits = min(self.bits, other.bits)
        left, right = self.coarsened(bits), other.coarsened(bits)
        return _summed(
            self.kind,
            bits,
            np.concatenate([left.bins, right.bins]),
            np.concatenate([left.counts, right.counts]),
        )

    def coarsened(self, bits: int) -> RadixHistogram:
        """The same values counted by fewer leading bits."""
        if bits >= self.bits:
            return self
        return _summed(self.kind, bits, self.bins >> np.uint64(self.bits - bits), self.counts)

    def limited(self, most_bins: int) -> RadixHistogram:
        """Counted by as many leading bits as make at most so many bins (at least 1). Because more values never have
        fewer bins, merging and limiting again gives the same in any order."""
        if len(self.bins) <= most_bins:
            return self
        # Two neighbours share a bin once their highest differing bit is dropped; all but most_bins - 1 must.
        differing = self.bins[1:] ^ self.bins[:-1]
        largest = int(np.partition(differing, len(differing) - most_bins)[len(differing) - most_bins])
        return self.coarsened(self.bits - largest.bit_length())

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """float64 smallest and largest value of each bin, both inclusive; equal where each bin is one value."""
        rest = np.uint64(WIDTHS[self.kind] - self.bits)
        low = self.bins << rest
        largest = np.array([-np.finfo(self.kind).max, np.finfo(self.kind).max], self.kind)
        first, last = images(float_words(largest), self.kind).astype(np.uint64)
        ends = (low, low + ((np.uint64(1) << rest) - np.uint64(1)))
        low, high = (floats_of(np.clip(end, first, last), self.kind) for end in ends)  # bins of few bits reach infinity
        return low, high

    def bounds(self, ranks: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """float64 ends (inclusive) of the bins that hold the values of these ranks, rank 0 the smallest.

        In a first pass's histogram the ends differ by less than 2^-7 of the value, its middle from the value by at most
        2^-8 of it, for values of normal size (not below 2^-126 for float32, 2^-1022 for float64).
        """
        low, high = self.edges()
        places = np.searchsorted(np.cumsum(self.counts), np.asarray(ranks), side="right")
        return low[places], high[places]

    def quantile_bounds(self, fraction: float) -> tuple[float, float]:
        """Two numbers with the quantile (NumPy's `linear` definition) between them, or equal to one."""
        if not self.total:
            raise ValueError("RadixHistogram: no value, so there is no quantile.")
        below, above, part = linear_place(fraction, self.total)
        low, high = self.bounds([below, above])
        # A weighted mean of two numbers is rounded a few times; its magnitude is at most the larger one's.
        slack = 2.0**-50 * max(map(abs, (*low.tolist(), *high.tolist()))) if below != above else 0.0
        bottom, top = (interpolated(float(ends[0]), float(ends[1]), part) for ends in (low, high))
        bottom, top = bottom - slack, top + slack
        # The wider bounds also stand in for what left float64 on the way.
        return bottom if bottom > low[0] else float(low[0]), top if top < high[1] else float(high[1])

    def sketched_quantile(self, fraction: float) -> tuple[float, float]:
        """A number and how far the true quantile can be from it: the middle of `quantile_bounds`, or 0 if within."""
        low, high = self.quantile_bounds(fraction)
        middle = 0.0 if low <= 0.0 <= high else low / 2 + high / 2
        return middle, math.nextafter(max(middle - low, high - middle), math.inf) if low < high else 0.0


@dataclass(frozen=True)
class Search:
    """Ranks that are looked for, each known to lie in a bin: what the next pass must look into.

    prefixes: uint64, each rank's bin, of `bits` leading bits. offsets: int64, its rank among the bin's values.
    counts: int64, how many values that bin has. It is resolved when the bins are single values.
    """

    kind: str
    bits: int
    prefixes: np.ndarray
    offsets: np.ndarray
    counts: np.ndarray

    @classmethod
    def start(cls, histogram: RadixHistogram, ranks: Sequence[int]) -> Search:
        """After the first pass; ranks from 0 to `histogram.total` - 1, in any order, repeated or not."""
        zeros = np.zeros(len(ranks), np.uint64)
        whole = np.full(len(ranks), histogram.total, np.int64)
        return cls(histogram.kind, 0, zeros, np.asarray(ranks, np.int64), whole).narrowed(histogram)

    @property
    def resolved(self) -> bool:
        """Whether `values` is known."""
        return self.bits == WIDTHS[self.kind] or not len(self.prefixes)

    def values(self) -> np.ndarray:
        """float64 value of each rank."""
        assert self.resolved
        return floats_of(self.prefixes, self.kind)

    def narrowed(self, histogram: Counts) -> Search:
        """After another pass, whose `count` this search asked for."""
        if not isinstance(histogram, RadixHistogram):
            return histogram.narrowed(self)
        lead = np.uint64(histogram.bits - self.bits)
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(histogram.counts)])
        # Bits may all be new in the first pass; NumPy shifts a whole word out to 0.
        first = np.searchsorted(histogram.bins >> lead, self.prefixes, side="left")
        target = before[first] + self.offsets
        place = np.searchsorted(before, target, side="right") - 1
        return Search(self.kind, histogram.bits, histogram.bins[place], target - before[place], histogram.counts[place])

    def count(self, values: Any, valid: Bitmap | None = None) -> RadixHistogram:
        """The next pass's histogram of an array: only of values in the bins that are looked into."""
        return self.count_pieces([(values, valid)])

    def count_pieces(self, pieces: Sequence[tuple[Any, Bitmap | None]]) -> RadixHistogram:
        """`count` of a column in pieces."""
        # A piece of another kind holds no value, or the first pass would not have merged.
        pieces = [(values, valid) for values, valid in pieces if float_kind(values) == self.kind]
        if not pieces:
            return RadixHistogram.empty(self.kind)
        if self.kind == "float32" and isinstance(pieces[0][0], np.ndarray):
            return self._of_inside(*self._counted32(pieces))
        wanted = self._wanted()
        words = [self._inside(values, valid, wanted) for values, valid in pieces]
        found = images(words[0] if len(words) == 1 else array_module(words[0]).concatenate(words), self.kind)
        return self._of_inside(*_on_host(*array_module(found).unique(found, return_counts=True)))

    def _of_inside(self, keys: np.ndarray, counts: np.ndarray) -> RadixHistogram:
        """From the distinct images of the first pass's bins, ascending, of which some lie outside later ones."""
        if self.bits == LEADING_BITS[self.kind]:  # those bins themselves
            return self._bounded(RadixHistogram(self.kind, WIDTHS[self.kind], keys, counts))
        inside = np.isin(keys >> np.uint64(WIDTHS[self.kind] - self.bits), self.prefixes)
        return self._bounded(RadixHistogram(self.kind, WIDTHS[self.kind], keys[inside], counts[inside]))

    def merge(self, left: Counts, right: Counts) -> Counts:
        """Two partitions' `count` as one."""
        if isinstance(left, RadixHistogram) and isinstance(right, RadixHistogram):
            return self._bounded(left.merge(right))
        if not isinstance(left, RadixHistogram) and not isinstance(right, RadixHistogram):
            return left.merge(right)
        few, table = (left, right) if isinstance(left, RadixHistogram) else (right, left)
        assert isinstance(few, RadixHistogram)
        assert not isinstance(table, RadixHistogram)
        return self._bounded(few.merge(table.histogram())) if len(few.bins) else table

    def _bounded(self, histogram: RadixHistogram) -> RadixHistogram:
        """Distinct values while they are few, else counts of some more bits. More partitions never make values fewer,
        so which of the two comes out does not depend on the order of merging."""
        return histogram if len(histogram.bins) <= MOST_BINS else histogram.coarsened(self._next_bits())

    def _next_bits(self) -> int:
        looked_into = len(np.unique(self.prefixes))
        step = max(1, min(STEP_BITS, MOST_BINS.bit_length() - 1 - (looked_into - 1).bit_length()))
        return min(self.bits + step, WIDTHS[self.kind])

    def leading_patterns(self) -> np.ndarray:
        """int64: the leading bits of words as they lie in memory whose values are looked into, ascending."""
        return np.flatnonzero(self._wanted())

    def _wanted(self) -> np.ndarray:
        """bool by the leading bits of a word: whether its first pass's bin is one of those that are looked into."""
        wanted = np.zeros(1 << LEADING_BITS[self.kind], bool)
        wanted[self._patterns(self._leading())] = True
        return wanted

    def _leading(self) -> np.ndarray:
        """uint64: the first pass's bins that are looked into, ascending."""
        return np.unique(self.prefixes >> np.uint64(self.bits - LEADING_BITS[self.kind]))

    def _patterns(self, leading: np.ndarray) -> np.ndarray:
        """uint64: the leading bits of words as they lie in memory whose values are in these bins of the first pass."""
        shift = np.uint64(WIDTHS[self.kind] - LEADING_BITS[self.kind])
        return words_of(leading << shift, self.kind) >> shift

    def _counted32(self, pieces: Sequence[tuple[np.ndarray, Bitmap | None]]) -> tuple[np.ndarray, np.ndarray]:
        """Images of the distinct values in the first pass's bins that are looked into, ascending, and how often each
        comes, of float32 arrays."""
        from gigabatch.features.exact.loops import counted_keys32, keys_inside32

        leading = self._leading()
        slots = np.zeros(1 << LEADING_BITS[self.kind], np.uint16)
        slots[self._patterns(leading)] = np.arange(1, len(leading) + 1)
        found = [keys_inside32(float_words(values), *(valid or ALL_VALID), slots) for values, valid in pieces]
        keys, counts = counted_keys32(found[0] if len(found) == 1 else np.concatenate(found), len(leading))
        return (leading[keys >> np.uint32(16)] << np.uint64(16)) | (keys & np.uint32(0xFFFF)), counts

    def _inside(self, values: Any, valid: Bitmap | None, wanted: np.ndarray) -> Any:
        """The array's values, as words, whose leading bits are `wanted`."""
        shift = WIDTHS[self.kind] - LEADING_BITS[self.kind]
        if isinstance(values, np.ndarray):
            from gigabatch.features.exact.loops import words_inside

            word = WORDS[self.kind]
            minus_zero = word(1 << (WIDTHS[self.kind] - 1))
            return words_inside(float_words(values), *(valid or ALL_VALID), word(shift), wanted, minus_zero)
        words = float_words(values + 0)  # -0.0 becomes 0.0
        return words[array_module(values).asarray(wanted)[(words >> shift).astype("int64")]]


def selected(search: Search, parts: Sequence[Any]) -> Search:
    """The search after as many more passes over the arrays as it takes."""
    while not search.resolved:
        found: Counts | None = None
        for part in parts:
            counted = search.count(part)
            found = counted if found is None else search.merge(found, counted)
        assert found is not None
        search = search.narrowed(found)
    return search


def middle_ranks(num_values: int) -> tuple[int, int]:
    """The ranks of the two values whose mean is the median; the same one twice for an odd number."""
    return (num_values - 1) // 2, num_values // 2


def linear_place(fraction: float, num_values: int) -> tuple[int, int, float]:
    """The ranks that NumPy's `linear` quantile (Hyndman and Fan 1996, definition 7) lies between, and how far up."""
    place = fraction * (num_values - 1)
    below = math.floor(place)
    return below, min(below + 1, num_values - 1), place - below


def interpolated(low: float, high: float, part: float) -> float:
    """NumPy's `linear` quantile between two neighbours, bit for bit: it takes the nearer neighbour as the base."""
    return high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part


def _on_host(keys: Any, counts: Any) -> tuple[np.ndarray, np.ndarray]:
    """As uint64 and int64 NumPy arrays."""
    xp = array_module(keys)
    if xp is not np:
        keys, counts = xp.asnumpy(keys), xp.asnumpy(counts)
    return keys.astype(np.uint64), counts.astype(np.int64)


def _summed(kind: str, bits: int, bins: np.ndarray, counts: np.ndarray) -> RadixHistogram:
    """Equal bins as one, in ascending order."""
    order = np.argsort(bins, kind="stable")
    bins, counts = bins[order], counts[order]
    starts = np.flatnonzero(np.append(True, bins[1:] != bins[:-1])[: len(bins)])
    return RadixHistogram(kind, bits, bins[starts], np.add.reduceat(counts, starts) if len(bins) else counts)
