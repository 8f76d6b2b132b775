"""Values to dense codes on CPU: the hash tables and radix sorts behind `engines/pandas.py`, compiled by numba.

A column of strings is its Arrow buffers: `offsets` (int32 or int64, one more than there are rows) and `data` (uint8);
a column of integers is an int64 array. `valid` is a bool array, or an empty one where no row is null. Kernels release
the interpreter lock, so that columns run in threads.

What bounds such a table is waiting for memory. So an entry holds all that a comparison needs (the first 16 bytes of a
string, its length, its code) in half a cache line, and rows go through in blocks: first every slot of the block is
touched, without a branch, so that the processor waits for all of them at once, then they are compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gigabatch.loops import njit

BLOCK = 64  # rows whose slots are fetched together
FIRST_SLOTS = 1 << 12
FULL = 0.75  # of the slots in use: then the table grows
DIGIT_BITS = 11  # a radix pass; 2,048 counters stay in the L1 cache
NO_NULLS = np.empty(0, np.bool_)


@intrinsic
def _load_word(typing_context, data, at):
    """The 8 bytes from data[at] on as a big-endian uint64: one unaligned load and one byte swap."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(array.data, [arguments[1]])
        word = builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()), align=1)
        swap = builder.module.declare_intrinsic("llvm.bswap", [ir.IntType(64)])
        return builder.call(swap, [word])

    return types.uint64(data, types.int64), generate


@njit(inline="always")
def _word(data, start, stop):
    """Up to 8 bytes from `start`, as the big-endian number that orders like the bytes; missing bytes are 0."""
    start, size = np.int64(start), np.int64(stop) - np.int64(start)
    if start + 8 <= len(data):
        word = _load_word(data, start)
        if size >= 8:
            return word
        return word & ~(np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(8 * size)) if size > 0 else np.uint64(0)
    found = np.uint64(0)
    for at in range(start, stop):
        found |= np.uint64(data[at]) << np.uint64(56 - 8 * (at - start))
    return found


@njit(inline="always")
def _mixed(value):
    """All bits of a number into all bits of a hash (the finaliser of MurmurHash3, Appleby 2011)."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@njit(inline="always")
def _hash_string(first, second, data, start, stop):
    """Hash for the tables of this file only (what is saved is hashed with XXH64); `first`, `second`: its 16 bytes."""
    found = _mixed(first + np.uint64(stop - start) * np.uint64(0x9E3779B97F4A7C15))
    found = (found ^ second) * np.uint64(0x9FB21C651E98DF25)
    at = start + 16
    while at < stop:
        found ^= found >> np.uint64(29)
        found = (found ^ _word(data, at, stop)) * np.uint64(0x9FB21C651E98DF25)
        at += 8
    return found ^ (found >> np.uint64(32))


@njit(inline="always")
def _same_tail(data, start, stop, other, other_start):
    """Whether two strings of equal length and equal first 16 bytes are equal."""
    at = 16
    while at < stop - start:
        if _word(data, start + at, stop) != _word(other, other_start + at, other_start + stop - start):
            return False
        at += 8
    return True


@njit()
def _fetch_strings(offsets, data, row, size, slots, keys):
    """Fill keys[:size] (first, second, hash) for the rows from `row` on, and touch their slots."""
    mask = np.uint64(len(slots) - 1)
    touched = np.uint64(0)
    for i in range(size):
        start, stop = offsets[row + i], offsets[row + i + 1]
        first = _word(data, start, stop)
        second = _word(data, min(start + 8, stop), stop)
        hashed = _hash_string(first, second, data, start, stop)
        keys[i, 0], keys[i, 1], keys[i, 2] = first, second, hashed
    for i in range(size):
        touched ^= slots[keys[i, 2] & mask, 2]
    return touched


@njit()
def _code_strings(offsets, data, valid, begin, slots, rows, count, codes):
    """Go on from row `begin`; stops early, before a block that might fill the table. Returns (row, count)."""
    mask = np.uint64(len(slots) - 1)
    keys = np.empty((BLOCK, 3), np.uint64)
    num_rows = len(offsets) - 1
    row = begin
    while row < num_rows:
        if count + BLOCK > len(rows):
            break
        size = min(BLOCK, num_rows - row)
        _fetch_strings(offsets, data, row, size, slots, keys)
        for i in range(size):
            if len(valid) and not valid[row + i]:
                codes[row + i] = -1
                continue
            start, stop = offsets[row + i], offsets[row + i + 1]
            first, second, place = keys[i, 0], keys[i, 1], keys[i, 2] & mask
            length = np.uint64(stop - start)
            while True:
                entry = slots[place, 2]
                if entry == 0:
                    slots[place, 0], slots[place, 1] = first, second
                    slots[place, 2] = (length << np.uint64(32)) | np.uint64(count + 1)
                    slots[place, 3] = keys[i, 2]
                    rows[count] = row + i
                    codes[row + i] = count
                    count += 1
                    break
                if slots[place, 0] == first and slots[place, 1] == second and entry >> np.uint64(32) == length:
                    code = np.int64(entry & np.uint64(0xFFFFFFFF)) - 1
                    if length <= 16 or _same_tail(data, start, stop, data, offsets[rows[code]]):
                        codes[row + i] = code
                        break
                place = (place + np.uint64(1)) & mask
        row += size
    return row, count


@njit()
def _move_strings(slots, wide):
    mask = np.uint64(len(wide) - 1)
    for old in range(len(slots)):
        if slots[old, 2] != 0:
            place = slots[old, 3] & mask
            while wide[place, 2] != 0:
                place = (place + np.uint64(1)) & mask
            wide[place] = slots[old]


@njit()
def _find_strings(offsets, data, valid, known_offsets, known_data, slots, found):
    mask = np.uint64(len(slots) - 1)
    keys = np.empty((BLOCK, 3), np.uint64)
    num_rows = len(offsets) - 1
    for row in range(0, num_rows, BLOCK):
        size = min(BLOCK, num_rows - row)
        _fetch_strings(offsets, data, row, size, slots, keys)
        for i in range(size):
            found[row + i] = -1
            if len(valid) and not valid[row + i]:
                continue
            start, stop = offsets[row + i], offsets[row + i + 1]
            first, second, place = keys[i, 0], keys[i, 1], keys[i, 2] & mask
            length = np.uint64(stop - start)
            while slots[place, 2] != 0:
                entry = slots[place, 2]
                if slots[place, 0] == first and slots[place, 1] == second and entry >> np.uint64(32) == length:
                    code = np.int64(entry & np.uint64(0xFFFFFFFF)) - 1
                    if length <= 16 or _same_tail(data, start, stop, known_data, known_offsets[code]):
                        found[row + i] = code
                        break
                place = (place + np.uint64(1)) & mask


@njit()
def string_words(offsets, data, rows, skip):
    """Bytes skip..skip+7 of the strings in `rows`, as uint64 that order like the bytes."""
    found = np.empty(len(rows), np.uint64)
    for i in range(len(rows)):
        stop = offsets[rows[i] + 1]
        found[i] = _word(data, min(offsets[rows[i]] + skip, stop), stop)
    return found


@njit()
def radix_order(keys):
    """int64 positions that sort uint64 `keys` ascending; equal keys keep their order. Digits that are equal in all
    keys are skipped."""
    size = len(keys)
    order = np.arange(size)
    if size == 0:
        return order
    varying, before, ascending = np.uint64(0), keys[0], True
    for key in keys:
        varying |= key ^ keys[0]
        ascending &= key >= before
        before = key
    if ascending:
        return order
    spare_order, spare_keys = np.empty_like(order), np.empty_like(keys)
    keys = keys.copy()
    counts = np.empty(1 << DIGIT_BITS, np.int64)
    digit_mask = np.uint64((1 << DIGIT_BITS) - 1)
    for shift in range(0, 64, DIGIT_BITS):
        if (varying >> np.uint64(shift)) & digit_mask == 0:
            continue
        counts[:] = 0
        for key in keys:
            counts[(key >> np.uint64(shift)) & digit_mask] += 1
        total = 0
        for digit in range(1 << DIGIT_BITS):
            total, counts[digit] = total + counts[digit], total
        for i in range(size):
            digit = (keys[i] >> np.uint64(shift)) & digit_mask
            place = counts[digit]
            counts[digit] += 1
            spare_keys[place], spare_order[place] = keys[i], order[i]
        keys, spare_keys = spare_keys, keys
        order, spare_order = spare_order, order
    return order


@njit()
def find_in_groups(begins, keys, groups, wanted):
    """int64 [M]: as `places_in_groups` of an engine. A group is asked again near where it was asked last, since rows
    mostly come in the order of time."""
    last = begins.copy()
    found = np.zeros(len(groups), np.int64)
    for i in range(len(groups)):
        group, key = groups[i], wanted[i]
        if group < 0:
            continue
        low, high = last[group], begins[group + 1]
        if low > begins[group] and keys[low - 1] >= key:
            low, high = begins[group], low - 1
        else:
            step = 1
            while low + step <= high and keys[low + step - 1] < key:
                low += step
                step *= 2
            high = min(low + step - 1, high)
        while low < high:
            middle = (low + high) >> 1
            if keys[middle] < key:
                low = middle + 1
            else:
                high = middle
        found[i] = last[group] = low
    return found


@njit()
def rank_in_groups(groups, values, counts, order, descending):
    """float32 [N]: as `ranks_in_groups` of an engine, given the rows of each group and an order in which rows are dealt
    out to them. Groups are then sorted by insertion: quick where they are short, or dealt in order of value."""
    size, num_groups = len(groups), len(counts)
    begins = np.zeros(num_groups + 1, np.int64)
    for group in range(num_groups):
        begins[group + 1] = begins[group] + counts[group]
    place, rows, sorted_values = begins.copy(), np.empty(size, np.int64), np.empty_like(values)
    for row in order:
        at = place[groups[row]]
        rows[at], sorted_values[at] = row, values[row]
        place[groups[row]] = at + 1
    ranks = np.empty(size, np.float32)
    for group in range(num_groups):
        begin, end = begins[group], begins[group + 1]
        for i in range(begin + 1, end):
            row, value, at = rows[i], sorted_values[i], i
            while at > begin and sorted_values[at - 1] > value:
                rows[at], sorted_values[at] = rows[at - 1], sorted_values[at - 1]
                at -= 1
            rows[at], sorted_values[at] = row, value
        first = begin
        while first < end:
            last = first
            while last < end and sorted_values[last] == sorted_values[first]:
                last += 1
            rank = np.float32(end - last + 1 if descending else first - begin + 1)
            for i in range(first, last):
                ranks[rows[i]] = rank
            first = last
    return ranks


def stable_order(keys: Any) -> Any:
    """int64 positions that sort int64 `keys` ascending; equal keys keep their order."""
    return radix_order(keys.view(np.uint64) ^ np.uint64(1 << 63))


@njit()
def _code_integers(values, valid, begin, slots, rows, count, codes):
    mask = np.uint64(len(slots) - 1)
    hashes = np.empty(BLOCK, np.uint64)
    num_rows = len(values)
    row = begin
    touched = np.int64(0)
    while row < num_rows:
        if count + BLOCK > len(rows):
            break
        size = min(BLOCK, num_rows - row)
        for i in range(size):
            hashes[i] = _mixed(np.uint64(values[row + i]))
        for i in range(size):
            touched ^= slots[hashes[i] & mask, 1]
        for i in range(size):
            if len(valid) and not valid[row + i]:
                codes[row + i] = -1
                continue
            value, place = values[row + i], hashes[i] & mask
            while slots[place, 1] != 0 and slots[place, 0] != value:
                place = (place + np.uint64(1)) & mask
            if slots[place, 1] == 0:
                slots[place, 0] = value
                rows[count] = row + i
                count += 1
                slots[place, 1] = count
            codes[row + i] = slots[place, 1] - 1
        row += size
    return row, count, touched


@njit()
def _move_integers(slots, wide):
    mask = np.uint64(len(wide) - 1)
    for old in range(len(slots)):
        if slots[old, 1] != 0:
            place = _mixed(np.uint64(slots[old, 0])) & mask
            while wide[place, 1] != 0:
                place = (place + np.uint64(1)) & mask
            wide[place, 0], wide[place, 1] = slots[old, 0], slots[old, 1]


@njit()
def _find_integers(values, valid, slots, found):
    mask = np.uint64(len(slots) - 1)
    hashes = np.empty(BLOCK, np.uint64)
    touched = np.int64(0)
    for row in range(0, len(values), BLOCK):
        size = min(BLOCK, len(values) - row)
        for i in range(size):
            hashes[i] = _mixed(np.uint64(values[row + i]))
        for i in range(size):
            touched ^= slots[hashes[i] & mask, 1]
        for i in range(size):
            place = hashes[i] & mask
            while slots[place, 1] != 0 and slots[place, 0] != values[row + i]:
                place = (place + np.uint64(1)) & mask
            known = len(valid) == 0 or valid[row + i]
            found[row + i] = slots[place, 1] - 1 if known else -1
    return touched


def _empty_table(num_slots: int, words: int, dtype: Any) -> tuple[Any, Any]:
    """Slots, and room for the rows of as many values as may come into them."""
    return np.zeros((num_slots, words), dtype), np.empty(int(FULL * num_slots), np.int64)


def _grown(num_slots: int, count: int, row: int, num_rows: int) -> int:
    """How many slots a table gets that is full after `row` of the rows: about what all of them will need, so that it
    is moved few times, but at most 16 times what it has. Distinct values grow slower than rows (Heaps' law)."""
    expected = count * (num_rows / row) ** 0.7
    wanted = num_slots * 2
    while wanted * FULL < expected and wanted < num_slots * 16:
        wanted *= 2
    return wanted


def code_strings(offsets: Any, data: Any, valid: Any = NO_NULLS) -> tuple[Any, Any, Any]:
    """Distinct strings, numbered in order of first appearance.

    Returns codes int32 [N] (-1 for null), rows int64 [V] where each code first stood, and the slots for `find_strings`.
    """
    codes = np.empty(len(offsets) - 1, np.int32)
    slots, rows = _empty_table(FIRST_SLOTS, 4, np.uint64)
    row, count = _code_strings(offsets, data, valid, 0, slots, rows, 0, codes)
    while row < len(codes):
        wide, more = _empty_table(_grown(len(slots), count, row, len(codes)), 4, np.uint64)
        _move_strings(slots, wide)
        more[:count] = rows[:count]
        slots, rows = wide, more
        row, count = _code_strings(offsets, data, valid, row, slots, rows, count, codes)
    return codes, rows[:count], slots


def find_strings(offsets: Any, data: Any, valid: Any, known: tuple[Any, Any], slots: Any) -> Any:
    """int32 [N]: the code of each string in the table that `code_strings` made of `known` (offsets and data, distinct
    strings), -1 for null and for one that is not there."""
    found = np.empty(len(offsets) - 1, np.int32)
    _find_strings(offsets, data, valid, *known, slots, found)
    return found


@njit()
def count_codes(codes, num_codes):
    """int64 [num_codes]: how often each code comes; -1 is not counted."""
    counts = np.zeros(num_codes + 1, np.int64)
    for code in codes:
        counts[code + 1] += 1
    return counts[1:]


@njit()
def _code_narrow(values, valid, lowest, code_of, rows, codes):
    """As `_code_integers`, of values in [lowest, lowest + len(code_of)); returns their number."""
    count = 0
    for row in range(len(values)):
        if len(valid) and not valid[row]:
            codes[row] = -1
            continue
        code = code_of[values[row] - lowest]
        if code < 0:
            code = np.int32(count)
            code_of[values[row] - lowest] = code
            rows[count] = row
            count += 1
        codes[row] = code
    return count


def code_narrow(values: Any, valid: Any, most: int = 1 << 16) -> tuple[Any, Any] | None:
    """codes and rows as of `code_integers`, if the integers (any width) lie within `most` of each other, else None."""
    if not len(values):
        return None
    lowest, highest = int(values.min()), int(values.max())
    if highest - lowest >= most:
        return None
    codes, rows = np.empty(len(values), np.int32), np.empty(highest - lowest + 1, np.int64)
    count = _code_narrow(values, valid, lowest, np.full(len(rows), -1, np.int32), rows, codes)
    return codes, rows[:count]


def code_integers(values: Any, valid: Any = NO_NULLS) -> tuple[Any, Any, Any]:
    """As `code_strings`, of int64 [N]."""
    codes = np.empty(len(values), np.int32)
    slots, rows = _empty_table(FIRST_SLOTS, 2, np.int64)
    row, count, _ = _code_integers(values, valid, 0, slots, rows, 0, codes)
    while row < len(codes):
        wide, more = _empty_table(_grown(len(slots), count, row, len(codes)), 2, np.int64)
        _move_integers(slots, wide)
        more[:count] = rows[:count]
        slots, rows = wide, more
        row, count, _ = _code_integers(values, valid, row, slots, rows, count, codes)
    return codes, rows[:count], slots


def find_integers(values: Any, valid: Any, slots: Any) -> Any:
    """As `find_strings`, of int64 [N]."""
    found = np.empty(len(values), np.int32)
    _find_integers(values, valid, slots, found)
    return found


def order_integers(counts: Any, values: Any) -> Any:
    """int64 positions by descending count (int64, not negative), ties by ascending value (int64)."""
    order = stable_order(values)
    return order[radix_order(~counts[order].view(np.uint64))]


def order_strings(counts: Any, offsets: Any, data: Any) -> Any:
    """As `order_integers`; strings are compared as bytes, as Arrow and cuDF compare them."""
    everything = np.arange(len(counts))
    words = string_words(offsets, data, everything, 0)
    order = radix_order(words)
    order = order[radix_order(~counts[order].view(np.uint64))]
    # What is equal so far goes on with its next 8 bytes, until nothing is equal or nothing is left to compare.
    group = np.concatenate([[0], np.cumsum(_changes(counts[order]) | _changes(words[order]))]) if len(order) else order
    lengths = np.diff(offsets).astype(np.int64)
    places, skip = _tied(group), 8
    while len(places):
        rows = order[places]
        keys = string_words(offsets, data, rows, skip) if skip < lengths[rows].max() else lengths[rows].view(np.uint64)
        first = radix_order(keys)
        first = first[radix_order(group[places][first].view(np.uint64))]
        order[places] = rows[first]
        if skip >= lengths[rows].max():  # the last word was compared; only their lengths told these apart
            break
        changed = np.concatenate([[True], _changes(group[places]) | _changes(keys[first])])
        group[places] = np.cumsum(changed)
        tied = _tied(group[places])
        places, skip = places[tied], skip + 8
    return order


def _changes(values: Any) -> Any:
    return values[1:] != values[:-1]


def _tied(group: Any) -> Any:
    """Positions in ascending `group` whose group has another member."""
    if len(group) == 0:
        return np.empty(0, np.int64)
    new = np.concatenate([[True], _changes(group), [True]])
    return np.flatnonzero(~(new[:-1] & new[1:]))
