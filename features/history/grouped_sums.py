"""Exact sums by group: the same for any order and any split of the rows, for a million groups at once.

Each value is cut into pieces of 26 bits, pieces of one unit add up in int64 without error, and only at the end is a
group's sum, mean or deviation rounded, once, to the nearest float64. On the CPU compiled loops do it
(`features/exact/group_loops.py`); on a GPU the pieces come from vector arithmetic (`exact_pieces`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gigabatch.features.columns.categories import same_kind
from gigabatch.features.columns.numbers import float_values, whole_values
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.exact.sums import UNIT_EXPONENT, exact_pieces, halves
from gigabatch.features.history.group_codes import group_codes

COUNT, SUM, SQUARES = range(3)
LIMIT = 1e30  # sums of 3e8 such values stay inside float32, squares inside float64
BITS = 26  # int64 holds sums of 2^36 such pieces
MASK = (1 << BITS) - 1
WHOLE_UNITS = (0, BITS, 2 * BITS)  # of the pieces of an int64
CHUNK = 1 << 16  # groups whose digits lie beside each other at one time


@dataclass(frozen=True)
class GroupedSums:
    """keys: a frame of the key columns, one row a group, in no particular order; G groups.

    sums: (column number, kind, unit) -> int64 array [G]: the count of known values, the sum or the sum of squares, in
    multiples of 2^unit; a group's exact sum is that over all units. extremes: column number -> (smallest, largest)
    known value, float64 arrays [G], infinities where there is none.
    """

    keys: Frame
    sums: Mapping[tuple[int, int, int], Any]
    extremes: Mapping[int, tuple[Any, Any]]

    @classmethod
    def of(
        cls, frame: Frame, by: Sequence[str], values: Sequence[str], where: str, squares: bool = True
    ) -> GroupedSums:
        """The sums over a partition. Rows with a null key are left out, and nulls of a column for that column.

        squares: whether to sum them too, for deviations; half of the work.
        `DataError`, naming the column, for an infinity, a value beyond 1e30 and a column that is no number.
        """
        engine = engine_of(frame)
        xp = engine.arrays
        codes = group_codes(frame, frame, by, where)[0]
        keyed = xp.nonzero(codes >= 0)[0]
        first, groups = _numbered(xp, codes[keyed])
        keys = frame[list(by)].take(keyed[first]).reset_index(drop=True)
        coded = [name for name in by if str(keys[name].dtype).startswith("dictionary<values=")]
        if coded:  # which Arrow does not sort
            keys = keys.astype(dict.fromkeys(coded, "str"))
        sums: dict[tuple[int, int, int], Any] = {}
        extremes = {}
        for column, name in enumerate(values):
            known = engine.array(frame[name].notna())[keyed]
            numbers = _numbers(frame[name].take(keyed[known]), where)
            rows = (_HostRows if xp is np else _SortedRows)(xp, groups[known], numbers, len(keys))
            extremes[column] = rows.extremes()
            for kind, unit, found in rows.sums(squares):
                sums[column, kind, unit] = sums.get((column, kind, unit), 0) + found
        return cls(keys, sums, extremes)

    def merge(self, other: GroupedSums) -> GroupedSums:
        """Both together; integer addition, so associative and commutative exactly but for the order of groups."""
        engine = engine_of(self.keys)
        xp = engine.arrays
        columns = {name: same_kind(self.keys[name], other.keys[name], "sums by group") for name in self.keys.columns}
        both = engine.frames.DataFrame(
            {name: engine.frames.concat(pair, ignore_index=True) for name, pair in columns.items()}
        )
        codes = group_codes(both, both, list(both.columns))[0]
        first, groups = _numbered(xp, codes)
        mine, theirs = groups[: len(self.keys)], groups[len(self.keys) :]
        sums = {}
        for name in sorted({*self.sums, *other.sums}):
            sums[name] = xp.zeros(len(first), dtype="int64")
            for side, places in ((self, mine), (other, theirs)):
                if name in side.sums:
                    sums[name][places] += side.sums[name]
        extremes = {}
        for column in self.extremes:
            low, high = xp.full(len(first), np.inf), xp.full(len(first), -np.inf)
            for side, places in ((self, mine), (other, theirs)):
                low[places] = xp.minimum(low[places], side.extremes[column][0])
                high[places] = xp.maximum(high[places], side.extremes[column][1])
            extremes[column] = low, high
        return GroupedSums(both.take(first).reset_index(drop=True), sums, extremes)

    def on_host(self) -> tuple[Any, list[GroupTotals]]:
        """(pandas frame of the keys, sorted, on a new index; for each column its totals in that order).

        Groups without a known value in any column are left out.
        """
        engine = engine_of(self.keys)
        known = sum((engine.to_host(self.sums[column, COUNT, 0]) for column in self.extremes), 0)
        keys = engine.to_pandas(self.keys)
        keys = keys[known > 0].sort_values(list(keys.columns))
        order = keys.index.to_numpy()
        totals = [
            GroupTotals(
                self._parts(column, COUNT, order)[0],
                self._parts(column, SUM, order),
                self._parts(column, SQUARES, order),
                engine.to_host(low)[order],
                engine.to_host(high)[order],
            )
            for column, (low, high) in self.extremes.items()
        ]
        return keys.reset_index(drop=True), totals

    def _parts(self, column: int, kind: int, order: np.ndarray) -> dict[int, np.ndarray]:
        """unit -> int64 array of the host."""
        to_host = engine_of(self.keys).to_host
        return {unit: to_host(part)[order] for (c, k, unit), part in self.sums.items() if (c, k) == (column, kind)}


@dataclass(frozen=True)
class GroupTotals:
    """One column's exact totals by group, as NumPy arrays [G]: count int64, sums and squares as unit -> int64."""

    count: np.ndarray
    sums: Mapping[int, np.ndarray]
    squares: Mapping[int, np.ndarray]
    low: np.ndarray
    high: np.ndarray

    def sum(self) -> np.ndarray:
        """float64, the nearest to each exact sum."""
        return self._in_chunks(lambda rows: self._sum_over(np.ones_like(self.count[rows]), rows))

    def whole_sum(self) -> tuple[np.ndarray, np.ndarray]:
        """(int64 of each sum of whole numbers, bool whether it is one of int64); of `totals_in_groups`."""
        low, middle, high = (self.sums[unit] for unit in WHOLE_UNITS)
        middle = middle + (low >> BITS)
        high = high + (middle >> BITS)
        most = 1 << 63 - 2 * BITS
        found = (high << 2 * BITS) | (middle & MASK) << BITS | (low & MASK)
        return found, (high >= -most) & (high < most)

    def mean(self) -> np.ndarray:
        """float64, the nearest to each exact mean; NaN for none."""
        found = self._in_chunks(lambda rows: self._sum_over(np.maximum(self.count[rows], 1), rows))
        return np.where(self.count > 0, found, np.nan)

    def var(self) -> np.ndarray:
        """float64, the nearest to each exact variance of a sample (n - 1); NaN for fewer than two."""
        found = self._in_chunks(self._variance)
        return np.where(self.count > 1, found, np.nan)

    def std(self) -> np.ndarray:
        """float64, the root of each `var`."""
        return np.sqrt(self.var())

    def _sum_over(self, divisor: np.ndarray, rows: slice) -> np.ndarray:
        from gigabatch.features.exact.group_loops import quotients

        return quotients(*_digits(self.sums, rows, len(divisor)), divisor)

    def _variance(self, rows: slice) -> np.ndarray:
        from gigabatch.features.exact.group_loops import variances

        count = np.maximum(self.count[rows], 2)
        sums, unit = _digits(self.sums, rows, len(count))
        squares, square_unit = _digits(self.squares, rows, len(count))
        sum_place = max(-((square_unit - 2 * unit) // BITS), 0)
        exponent = 2 * unit - BITS * sum_place
        return variances(sums, squares, count, exponent, sum_place, *divmod(square_unit - exponent, BITS))

    def _in_chunks(self, function: Any) -> np.ndarray:
        starts = range(0, len(self.count), CHUNK)
        return np.concatenate([np.empty(0), *(function(slice(start, start + CHUNK)) for start in starts)])


class _SortedRows:
    """Rows of a partition in order of group and value, for vector arithmetic alone."""

    def __init__(self, xp: Any, groups: Any, values: Any, num_groups: int) -> None:
        order = xp.lexsort(xp.stack([values, groups.astype("float64")]))
        self.xp, self.values, self.num_groups = xp, values[order], num_groups
        groups = groups[order]
        is_last = xp.ones(len(groups), dtype=bool)
        is_last[:-1] = groups[1:] != groups[:-1]
        self.last = xp.nonzero(is_last)[0]
        self.present = groups[self.last]

    def sums(self, squares: bool) -> Iterator[tuple[int, int, Any]]:
        """Triples (kind, unit, int64 [groups]) that add up to each group's sums."""
        for kind, unit, pieces in _whole_numbers(self.values, squares):
            yield kind, unit, self._added(pieces)

    def _added(self, values: Any) -> Any:
        """int64 [groups] of an int64 array in the order of `self.values`."""
        return _added(self.xp, values, self.last, self.present, self.num_groups)

    def extremes(self) -> tuple[Any, Any]:
        """float64 [groups] of the smallest and the largest value."""
        low, high = self.xp.full(self.num_groups, np.inf), self.xp.full(self.num_groups, -np.inf)
        high[self.present] = self.values[self.last]
        if len(self.last):
            first = self.xp.zeros(len(self.last), dtype="int64")
            first[1:] = self.last[:-1] + 1
            low[self.present] = self.values[first]
        return low, high


class _HostRows:
    """Rows of a partition on the CPU, in whatever order."""

    def __init__(self, xp: Any, groups: np.ndarray, values: np.ndarray, num_groups: int) -> None:
        self.groups, self.values, self.num_groups = groups, values, num_groups

    def sums(self, squares: bool) -> Iterator[tuple[int, int, np.ndarray]]:
        """As those of `_SortedRows`; the totals are the same, their digits need not be."""
        from gigabatch.features.exact.group_loops import digit_sums, used_places

        yield COUNT, 0, np.bincount(self.groups, minlength=self.num_groups)
        used = used_places(self.values, squares)
        found = digit_sums(used, self.groups, self.values, self.num_groups)
        for (kind, place), row in zip(np.argwhere(used).tolist(), found, strict=True):
            yield (SUM, SQUARES)[kind], UNIT_EXPONENT + BITS * place, row

    def extremes(self) -> tuple[np.ndarray, np.ndarray]:
        """As those of `_SortedRows`."""
        from gigabatch.features.exact.group_loops import add_extremes

        low, high = np.full(self.num_groups, np.inf), np.full(self.num_groups, -np.inf)
        add_extremes(low, high, self.groups, self.values)
        return low, high


def added_in_groups(xp: Any, values: Any, groups: Any, num_groups: int) -> Any:
    """int64 [groups] of an int64 array, by the group of each, ascending."""
    last = _ends(xp, groups)
    return _added(xp, values, last, groups[last], num_groups)


def _ends(xp: Any, groups: Any) -> Any:
    """int64 places of the last row of each group, of ascending groups."""
    is_last = xp.ones(len(groups), dtype=bool)
    is_last[:-1] = groups[1:] != groups[:-1]
    return xp.nonzero(is_last)[0]


def _added(xp: Any, values: Any, last: Any, present: Any, num_groups: int) -> Any:
    # Differences of one running sum; where it wraps around, they wrap back.
    running = xp.cumsum(values)[last]
    found = xp.zeros(num_groups, dtype="int64")
    found[present] = running
    found[present[1:]] -= running[:-1]
    return found


def totals_in_groups(column: Column, groups: Any, num_groups: int, where: str, squares: bool = False) -> GroupTotals:
    """Counts and sums, and `squares` for variances, of a column without nulls, by the group of each row, ascending; of
    whole numbers and flags without a detour by floats, so that `whole_sum` may be asked.

    `DataError`, naming the column, as in `GroupedSums.of`, and for integers of 2^63 and beyond.
    """
    engine = engine_of(column)
    xp = engine.arrays
    last = _ends(xp, groups)
    added = partial(_added, xp, last=last, present=groups[last], num_groups=num_groups)
    if column.dtype.kind in "iub":
        pieces = _whole_pieces(whole_values(column, where), squares)
        parts: Iterator[tuple[int, int, Any]] = ((kind, unit, added(piece)) for kind, unit, piece in pieces)
    else:
        rows = (_HostRows if xp is np else _SortedRows)(xp, groups, _numbers(column, where), num_groups)
        parts = rows.sums(squares)
    found: dict[int, dict[int, Any]] = {COUNT: {}, SUM: {}, SQUARES: {}}
    for kind, unit, part in parts:
        found[kind][unit] = found[kind].get(unit, 0) + engine.to_host(part)
    counts = engine.to_host(added(groups * 0 + 1))
    return GroupTotals(counts, found[SUM], found[SQUARES], *[np.empty(0)] * 2)


def unit_parts(column: Column, where: str) -> dict[int, Any]:
    """By unit int64 arrays [N] of multiples of 2^unit that add up to each value of a column; 0 for null.

    `DataError`, naming the column, as in `GroupedSums.of`.
    """
    if column.dtype.kind != "f":
        return whole_parts(whole_values(column, where))
    return {unit: part for _, unit, part in _in_units(SUM, _numbers(column.fillna(0.0), where))}


def whole_parts(values: Any) -> dict[int, Any]:
    """int64 values in units of `unit_parts`."""
    low = BITS * (-UNIT_EXPONENT // BITS) + UNIT_EXPONENT  # the highest unit up to 1
    shift = BITS + low
    return {
        low: (values & (1 << shift) - 1) << -low,
        shift: (values >> shift) & MASK,
        shift + BITS: values >> shift + BITS,
    }


def exact_totals(sums: Mapping[int, np.ndarray], size: int) -> np.ndarray:
    """float64 [size], the nearest to each sum of `unit_parts`, which are int64 arrays of the host by unit."""
    nothing = np.empty(0)
    return GroupTotals(np.ones(size, dtype="int64"), sums, {}, nothing, nothing).sum()


def _whole_pieces(values: Any, squares: bool) -> Iterator[tuple[int, int, Any]]:
    """Triples (kind, unit, int64 array) that hold every int64 value, and its square, in multiples of 2^unit."""
    low, middle, high = values & MASK, (values >> BITS) & MASK, values >> 2 * BITS
    for unit, piece in zip(WHOLE_UNITS, (low, middle, high), strict=True):
        yield SUM, unit, piece
    if not squares:
        return
    # Of (high 2^52 + middle 2^26 + low)^2. A product is less than 2^54 and is cut in two, to be added up as often.
    products = (low * low, 2 * low * middle, middle * middle + 2 * low * high, 2 * middle * high, high * high)
    for place, product in enumerate(products):
        yield SQUARES, BITS * place, product & MASK
        yield SQUARES, BITS * (place + 1), product >> BITS


def _numbered(xp: Any, codes: Any) -> tuple[Any, Any]:
    """(place of the first row of each group, int64 group of each row, from 0 without gaps), of codes not below 0."""
    if xp is not np:
        _, first, groups = xp.unique(codes, return_index=True, return_inverse=True)
        return first, groups.ravel()
    first = np.full(int(codes.max(initial=-1)) + 1, -1, dtype="int64")  # `group_codes` has few gaps
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # the last one written stays
    present = first >= 0
    return first[present], (np.cumsum(present) - 1)[codes]


def _numbers(column: Column, where: str) -> Any:
    """The column, which has no nulls, as a float64 array of values that can be summed."""
    values = float_values(column, where) + 0.0  # -0.0 becomes 0.0
    if not bool(engine_of(column).arrays.isfinite(values).all()):
        raise DataError(
            f"{where}: column {column.name!r} holds an infinity. Clip it or make it null before this stage."
        )
    if bool((abs(values) > LIMIT).any()):
        raise DataError(f"{where}: column {column.name!r} holds values beyond {LIMIT}. Clip or rescale it first.")
    return values


def _whole_numbers(values: Any, squares: bool) -> Any:
    """Triples (kind, unit, int64 array) that hold every value's count, itself and its square in multiples of 2^unit."""
    yield COUNT, 0, (values == values).astype("int64")
    yield from _in_units(SUM, values)
    if not squares:
        return
    # Dekker 1971: the square is `square + error` exactly (down to squares of 2^-969, far below any sum's last bit).
    high, low = halves(values)
    square = values * values
    error = ((high * high - square) + 2.0 * high * low) + low * low
    yield from _in_units(SQUARES, square)
    yield from _in_units(SQUARES, error)


def _in_units(kind: int, values: Any) -> Any:
    for unit, pieces in exact_pieces(values, BITS, BITS):
        half = -unit // 2  # 2^1074 itself is no float64
        yield kind, unit, (pieces * 2.0**half * 2.0 ** (-unit - half)).astype("int64")


def _digits(parts: Mapping[int, np.ndarray], rows: slice, size: int) -> tuple[np.ndarray, int]:
    """(int64 [digits, size], exponent): each group's exact sum is that of its digits in multiples of 2^exponent, 2^26
    times as large from one to the next."""
    used = sorted(unit for unit, part in parts.items() if part[rows].any())
    base = used[0] if used else UNIT_EXPONENT
    found = np.zeros(((used[-1] - base) // BITS + 1 if used else 0, size), dtype="int64")
    for unit in used:
        found[(unit - base) // BITS] = parts[unit][rows]
    return found, base
