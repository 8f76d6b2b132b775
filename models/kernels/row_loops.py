"""Compiled on CPU by numba: instructions that the loops over rows share."""

from __future__ import annotations

import numba
import numpy as np
import torch
from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from torch import Tensor

from gigabatch.loops import njit

BITS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}  # told apart by the type that their bits have
AHEAD = 8  # how many rows before its use a row is asked for from memory


@intrinsic
def pointer(typing_context, address):
    """An address (int64) as a pointer, for `numba.carray`."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


@intrinsic
def float_of_bits(typing_context, bits):
    """The float32 whose bits a uint32 holds."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def bits_of_float(typing_context, value):
    """The bits of a float32 as uint32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def prefetch(typing_context, address):
    """Ask for the cache line at an address (int64), to be read; harmless wherever it points."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), *[ir.IntType(32)] * 3])
        function = builder.module.declare_intrinsic("llvm.prefetch", [ir.IntType(8).as_pointer()], kind)
        place = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        read, keep, data = (ir.Constant(ir.IntType(32), value) for value in (0, 3, 1))
        builder.call(function, [place, read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def to_float16(typing_context, value):
    """The bits (int16) of a float32 rounded to float16, to nearest even; above 65,504 infinity."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.int16(types.float32), generate


@intrinsic
def from_float16(typing_context, bits):
    """The float32 of a float16's bits (int16)."""

    def generate(context, builder, signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.int16), generate


class _Bfloat16(ir.Type):
    """LLVM's type, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"


@intrinsic
def rounded_by_instruction(typing_context, value):
    """The bits (uint16) of a float32 rounded to bfloat16, to nearest even, by an instruction of the processor. It takes
    numbers below 2^-126 for zero; a NaN stays one."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], _Bfloat16()), ir.IntType(16))

    return types.uint16(types.float32), generate


@njit(inline="always")
def to_bfloat16(value):
    """The bits (uint16) of a float32 rounded to bfloat16, to nearest even; a NaN stays one."""
    bits = bits_of_float(value)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.uint16(rounded) if value == value else np.uint16(0x7FC0)


def has_instruction() -> bool:
    """Whether the processor rounds to bfloat16 itself, and numba compiles for this processor."""
    plain = numba.config.CPU_NAME is None and numba.config.CPU_FEATURES is None and bool(numba.config.ENABLE_AVX)
    return plain and bool(llvm.get_host_cpu_features().get("avx512bf16", False))


quickly_to_bfloat16 = rounded_by_instruction if has_instruction() else to_bfloat16


@njit(inline="always")
def from_bfloat16(bits):
    return float_of_bits(np.uint32(bits) << np.uint32(16))


def stored_as(tensor: Tensor) -> np.ndarray:
    """No number, in the type in which those of the tensor lie in memory: it tells a compiled loop what is at an
    address."""
    return numbers(tensor[:0].reshape(-1))


def numbers(values: Tensor) -> np.ndarray:
    """A tensor's own memory: float32, the bits of bfloat16 as uint16 or those of float16 as int16."""
    stored = BITS.get(values.dtype)
    return values.numpy() if stored is None else values.view(stored).numpy()


def read(stored):
    """A stored number, as `numbers` gives it, as float32."""
    raise NotImplementedError("for compiled loops")


def rounded(value, like):
    """A float32 as it is stored beside `like`, in the form that `read` takes."""
    raise NotImplementedError("for compiled loops")


def quickly_rounded(value, like):
    """As `rounded`, for activations and their gradients: of bfloat16, numbers below 2^-126 may become zero."""
    raise NotImplementedError("for compiled loops")


@overload(read, inline="always")
def _read(stored):
    if stored == types.int16:
        return lambda stored: from_float16(stored)
    return (lambda stored: from_bfloat16(stored)) if stored == types.uint16 else (lambda stored: stored)


@overload(rounded, inline="always")
def _rounded(value, like):
    if like == types.int16:
        return lambda value, like: to_float16(np.float32(value))
    return (lambda value, like: to_bfloat16(value)) if like == types.uint16 else (lambda value, like: value)


@overload(quickly_rounded, inline="always")
def _quickly_rounded(value, like):
    if like == types.uint16:
        return lambda value, like: quickly_to_bfloat16(value)
    return lambda value, like: rounded(value, like)
