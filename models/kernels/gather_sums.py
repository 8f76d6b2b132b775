"""Compiled on CPU by numba: weighted sums of rows that numbers name, with the sum in registers.

A loop over `width` columns that is known at run time alone reads and writes its sum in memory once a row. Here a row is
cut into strips of 64, 32, ... 1 columns, each of which is a vector of LLVM that stays in registers from the first row
to the last. Strips of 16 columns or more are whole cache lines, so that no byte is read twice.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gigabatch.loops import njit

ROWS_AHEAD = 16  # how many rows before its use a row is asked for from memory
LINE = 64  # bytes of the cache


def _loaded(builder, address, lanes, dtype):
    """`lanes` numbers at an address as float32, whatever they are stored as (`row_loops.numbers`)."""
    kinds = {types.float32: ir.FloatType(), types.uint16: ir.IntType(16), types.int16: ir.HalfType()}
    stored, size = kinds[dtype], dtype.bitwidth // 8
    found = builder.load(builder.inttoptr(address, ir.VectorType(stored, lanes).as_pointer()), align=size)
    wide = ir.VectorType(ir.FloatType(), lanes)
    if dtype == types.int16:
        return builder.fpext(found, wide)
    if dtype == types.uint16:
        bits = ir.VectorType(ir.IntType(32), lanes)
        sixteen = ir.Constant(bits, [16] * lanes)
        return builder.bitcast(builder.shl(builder.zext(found, bits), sixteen), wide)
    return found


def _everywhere(builder, value, lanes):
    """A float32 in each lane."""
    wide = ir.VectorType(ir.FloatType(), lanes)
    one = builder.insert_element(ir.Constant(wide, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    return builder.shuffle_vector(one, ir.Constant(wide, ir.Undefined), places)


def _number_at(builder, base, index, kind):
    """Number `index` of those of four bytes at an address."""
    place = builder.add(base, builder.shl(index, ir.Constant(ir.IntType(64), 2)))
    return builder.load(builder.inttoptr(place, kind.as_pointer()), align=4)


@intrinsic(prefer_literal=True)
def _sum_strip(typing_context, lanes, scaled, target, source, row_bytes, indices, scales, count, known, factor, like):
    """target[0 : lanes] = factor sum over e < count of scales[e] source[indices[e]][0 : lanes].

    lanes, scaled: known when it is compiled; without `scaled` all scales are 1. target (float32), source, indices
    (int32) and scales (float32): addresses. row_bytes: between rows of the source. known: how many indices there are,
    at least `count`, whose rows may be asked for ahead. like: an array of the source's type.
    """
    if not isinstance(lanes, types.IntegerLiteral) or not isinstance(scaled, types.IntegerLiteral):
        return None
    num_lanes, is_scaled, dtype = lanes.literal_value, bool(scaled.literal_value), like.dtype

    def generate(context, builder, signature, arguments):
        _, _, target, source, row_bytes, indices, scales, count, known, factor, _ = arguments
        i64, wide = ir.IntType(64), ir.VectorType(ir.FloatType(), num_lanes)
        zero, one = ir.Constant(i64, 0), ir.Constant(i64, 1)
        nothing = ir.Constant(wide, [0.0] * num_lanes)
        last = builder.sub(known, one)
        before = builder.block
        loop, after = (builder.append_basic_block(name) for name in ("rows", "after"))
        builder.cbranch(builder.icmp_signed(">", count, zero), loop, after)
        builder.position_at_end(loop)
        element, total = builder.phi(i64), builder.phi(wide)
        row = builder.sext(_number_at(builder, indices, element, ir.IntType(32)), i64)
        value = _loaded(builder, builder.add(source, builder.mul(row, row_bytes)), num_lanes, dtype)
        if is_scaled:
            scale = _number_at(builder, scales, element, ir.FloatType())
            value = builder.fmul(value, _everywhere(builder, scale, num_lanes))
        added = builder.fadd(total, value)
        wanted = builder.add(element, ir.Constant(i64, ROWS_AHEAD))
        wanted = builder.select(builder.icmp_signed("<", wanted, last), wanted, last)
        row = builder.sext(_number_at(builder, indices, wanted, ir.IntType(32)), i64)
        ahead = builder.add(source, builder.mul(row, row_bytes))
        size = num_lanes * dtype.bitwidth // 8
        for place in (*range(0, size, LINE), *([size - 1] if size % LINE else [])):
            _ask(builder, builder.add(ahead, ir.Constant(i64, place)))
        following = builder.add(element, one)
        element.add_incoming(zero, before)
        element.add_incoming(following, builder.block)
        total.add_incoming(nothing, before)
        total.add_incoming(added, builder.block)
        end = builder.block
        builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
        builder.position_at_end(after)
        found = builder.phi(wide)
        found.add_incoming(nothing, before)
        found.add_incoming(added, end)
        found = builder.fmul(found, _everywhere(builder, factor, num_lanes))
        builder.store(found, builder.inttoptr(target, wide.as_pointer()), align=4)
        return context.get_dummy_value()

    numbers = (types.int64,) * 7
    return types.void(lanes, scaled, *numbers, types.float32, like), generate


def _ask(builder, address):
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), *[ir.IntType(32)] * 3])
    function = builder.module.declare_intrinsic("llvm.prefetch", [ir.IntType(8).as_pointer()], kind)
    read, keep, data = (ir.Constant(ir.IntType(32), value) for value in (0, 3, 1))
    builder.call(function, [builder.inttoptr(address, ir.IntType(8).as_pointer()), read, keep, data])


@intrinsic(prefer_literal=True)
def _add_strip(typing_context, lanes, target, source, scale, like):
    """target[0 : lanes] += scale source[0 : lanes]; both are addresses, the target of float32."""
    if not isinstance(lanes, types.IntegerLiteral):
        return None
    num_lanes, dtype = lanes.literal_value, like.dtype

    def generate(context, builder, signature, arguments):
        _, target, source, scale, _ = arguments
        wide = ir.VectorType(ir.FloatType(), num_lanes)
        place = builder.inttoptr(target, wide.as_pointer())
        value = builder.fmul(_loaded(builder, source, num_lanes, dtype), _everywhere(builder, scale, num_lanes))
        builder.store(builder.fadd(builder.load(place, align=4), value), place, align=4)
        return context.get_dummy_value()

    return types.void(lanes, types.int64, types.int64, types.float32, like), generate


@njit()
def _sum_plain(target, source, width, row_bytes, size, indices, count, known, factor, like):
    column = np.int64(0)
    while width - column >= 64:
        to, of = target + 4 * column, source + size * column
        _sum_strip(64, 0, to, of, row_bytes, indices, 0, count, known, factor, like)
        column += 64
    if width & 32:
        to, of = target + 4 * column, source + size * column
        _sum_strip(32, 0, to, of, row_bytes, indices, 0, count, known, factor, like)
        column += 32
    if width & 16:
        to, of = target + 4 * column, source + size * column
        _sum_strip(16, 0, to, of, row_bytes, indices, 0, count, known, factor, like)
        column += 16
    if width & 8:
        to, of = target + 4 * column, source + size * column
        _sum_strip(8, 0, to, of, row_bytes, indices, 0, count, known, factor, like)
        column += 8
    if width & 4:
        to, of = target + 4 * column, source + size * column
        _sum_strip(4, 0, to, of, row_bytes, indices, 0, count, known, factor, like)
        column += 4
    while column < width:
        to, of = target + 4 * column, source + size * column
        _sum_strip(1, 0, to, of, row_bytes, indices, 0, count, known, factor, like)
        column += 1


@njit()
def _sum_scaled(target, source, width, row_bytes, size, indices, scales, count, known, factor, like):
    column = np.int64(0)
    while width - column >= 64:
        to, of = target + 4 * column, source + size * column
        _sum_strip(64, 1, to, of, row_bytes, indices, scales, count, known, factor, like)
        column += 64
    if width & 32:
        to, of = target + 4 * column, source + size * column
        _sum_strip(32, 1, to, of, row_bytes, indices, scales, count, known, factor, like)
        column += 32
    if width & 16:
        to, of = target + 4 * column, source + size * column
        _sum_strip(16, 1, to, of, row_bytes, indices, scales, count, known, factor, like)
        column += 16
    if width & 8:
        to, of = target + 4 * column, source + size * column
        _sum_strip(8, 1, to, of, row_bytes, indices, scales, count, known, factor, like)
        column += 8
    if width & 4:
        to, of = target + 4 * column, source + size * column
        _sum_strip(4, 1, to, of, row_bytes, indices, scales, count, known, factor, like)
        column += 4
    while column < width:
        to, of = target + 4 * column, source + size * column
        _sum_strip(1, 1, to, of, row_bytes, indices, scales, count, known, factor, like)
        column += 1


@njit()
def sum_named_rows(target, source, width, row_bytes, indices, scales, count, known, factor, like):
    """target[i] = factor sum over e < count of scales[e] source[indices[e]][i], for i < width, in the order of e.

    target (float32), source, indices (int32), scales (float32; 0 where all are 1): addresses. row_bytes: between rows
    of the source. known: how many indices there are, at least `count`, whose rows may be asked for ahead. like: an
    array of the source's type, as `row_loops.stored_as` gives it.
    """
    size = np.int64(like.itemsize)
    if scales == 0:
        _sum_plain(target, source, width, row_bytes, size, indices, count, known, factor, like)
    else:
        _sum_scaled(target, source, width, row_bytes, size, indices, scales, count, known, factor, like)


@njit()
def add_row(target, source, width, scale, like):
    """target[i] += scale source[i], for i < width; both are addresses, the target of float32."""
    size, column = np.int64(like.itemsize), np.int64(0)
    while width - column >= 64:
        _add_strip(64, target + 4 * column, source + size * column, scale, like)
        column += 64
    if width & 32:
        _add_strip(32, target + 4 * column, source + size * column, scale, like)
        column += 32
    if width & 16:
        _add_strip(16, target + 4 * column, source + size * column, scale, like)
        column += 16
    if width & 8:
        _add_strip(8, target + 4 * column, source + size * column, scale, like)
        column += 8
    if width & 4:
        _add_strip(4, target + 4 * column, source + size * column, scale, like)
        column += 4
    while column < width:
        _add_strip(1, target + 4 * column, source + size * column, scale, like)
        column += 1
