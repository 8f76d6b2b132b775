"""Compiled on CPU by numba: random orders of rows, and copies of rows in an order.

The network is that of `loaders/order/order.py`, bit for bit; the torch version there is the reference. Here a block of
rows goes through it in the L1 cache by vector instructions, and the rows of the table are fetched ahead of their
copies.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gigabatch.loops import njit

BLOCK_ROWS = 1024  # rows whose places are computed before they are copied: 16 KB of the L1 cache
ROWS_AHEAD = 12  # rows fetched before they are copied: some 2 KB in flight a thread
CACHE_LINE = 64

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's increment
_ROUND_MULTIPLIER = np.uint32(0x85EBCA6B)
_HASH_RANGE = 1 << 27  # a round's hash is in [-2^27, 2^27)


@intrinsic
def copy_words(typing_context, target, source, num_bytes):
    """memcpy between two addresses (int64)."""

    def generate(context, builder, signature, arguments):
        pointer = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(address, pointer) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _fetch(typing_context, address):
    """Ask for the cache line at an address (int64), for reading, and do not wait for it."""

    def generate(context, builder, signature, arguments):
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0")
        read, keep, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(prefetch, [builder.inttoptr(arguments[0], pointer), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@njit()
def _add_hashes(target, source, size, add_key, multiply_key, side):
    """target[i] = (target[i] + hash(source[i])) modulo `side`, for values in [0, side); uint32 arrays.

    The remainder is by a product with 2^32 / side: from below, and by less than one in the quotient for values below
    2^32, so that one subtraction makes it right. An idiv is no vector instruction.
    """
    inverse = np.uint32(min((1 << 32) // side, (1 << 32) - 1))
    lift = np.uint32(-(-_HASH_RANGE // side) * side)  # a multiple of `side` that makes the sum positive
    modulus = np.uint32(side)
    for i in range(size):
        hashed = np.int32((source[i] + add_key) * _ROUND_MULTIPLIER)
        hashed = np.int32(np.uint32(hashed ^ (hashed >> np.int32(16))) * multiply_key)
        value = np.uint32(target[i] + np.uint32(hashed >> np.int32(4)) + lift)
        quotient = np.uint32((np.uint64(value) * np.uint64(inverse)) >> np.uint64(32))
        rest = np.uint32(value - np.uint32(quotient * modulus))
        target[i] = rest - modulus if rest >= modulus else rest


@njit()
def order_rows(first, rows, left, right, network):
    """Set rows[i], int64, to the row at position first + i. `left` and `right`, uint32, are room for as many.

    network: num_rows; sides a and b; add_keys and multiply_keys, uint32, one a round; outside and inside, int64: values
    that no row has, and the row where the walk of each ends.
    """
    num_rows, a, b, add_keys, multiply_keys, outside, inside = network
    size = len(rows)
    quotient, rest = first // b, first % b
    for i in range(size):
        left[i] = quotient
        right[i] = rest
        rest += 1
        if rest == b:
            quotient, rest = quotient + 1, 0
    for number in range(0, len(add_keys), 2):
        _add_hashes(left, right, size, add_keys[number], multiply_keys[number], a)
        _add_hashes(right, left, size, add_keys[number + 1], multiply_keys[number + 1], b)
    for i in range(size):
        rows[i] = np.int64(left[i]) * b + np.int64(right[i])
    for i in range(size):
        if rows[i] >= num_rows:
            for exit_number in range(len(outside)):
                if rows[i] == outside[exit_number]:
                    rows[i] = inside[exit_number]
                    break


@njit()
def fetch_row(address, row_bytes):
    for offset in range(0, row_bytes, CACHE_LINE):
        _fetch(address + offset)
    _fetch(address + row_bytes - 1)


@njit()
def gather_shuffled(table, row_bytes, first, size, out, network):
    """Copy the rows at positions [first, first + size) of the order to `out`.

    table, out: addresses (int64) of rows of `row_bytes` bytes; network: see `order_rows`.
    """
    rows = np.empty(BLOCK_ROWS, np.int64)
    left, right = np.empty(BLOCK_ROWS, np.uint32), np.empty(BLOCK_ROWS, np.uint32)
    for start in range(0, size, BLOCK_ROWS):
        count = min(BLOCK_ROWS, size - start)
        order_rows(first + start, rows[:count], left, right, network)
        for i in range(min(ROWS_AHEAD, count)):
            fetch_row(table + rows[i] * row_bytes, row_bytes)
        for i in range(count):
            if i + ROWS_AHEAD < count:
                fetch_row(table + rows[i + ROWS_AHEAD] * row_bytes, row_bytes)
            copy_words(out + (start + i) * row_bytes, table + rows[i] * row_bytes, row_bytes)


@njit()
def splitmix64(state):
    """`gigabatch.loaders.order.order.splitmix64` of a uint64."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@njit()
def permute(out, seed):
    """out [M] int32 becomes a random permutation of 0 .. M-1, M < 2^31, a pure function of M and seed (uint64).

    Fisher and Yates' shuffle in Durstenfeld's form (CACM 7, 1964, algorithm 235), driven by splitmix64. The upper
    half of a number is scaled to [0, i], which favours no value by more than M / 2^32.
    """
    for i in range(len(out)):
        out[i] = i
    state = seed
    for i in range(len(out) - 1, 0, -1):
        state += GOLDEN
        j = np.int64(((splitmix64(state) >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        out[i], out[j] = out[j], out[i]


@njit()
def gather_places(window, row_bytes, places, out):
    """Copy row places[i] of `window` to row i of `out`: addresses (int64) of rows of `row_bytes` bytes.

    places: [B] int32. Rows are fetched ahead of their copies, which makes it about twice torch's index_select.
    """
    for i in range(min(ROWS_AHEAD, len(places))):
        fetch_row(window + np.int64(places[i]) * row_bytes, row_bytes)
    for i in range(len(places)):
        if i + ROWS_AHEAD < len(places):
            fetch_row(window + np.int64(places[i + ROWS_AHEAD]) * row_bytes, row_bytes)
        copy_words(out + i * row_bytes, window + np.int64(places[i]) * row_bytes, row_bytes)
