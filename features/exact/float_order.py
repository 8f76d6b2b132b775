"""The order of floats as the order of unsigned integers.

Read as unsigned integers, floats of one sign are in order already (negative ones in falling order). With all bits
flipped for a negative one and the sign bit for the others, all are: its `image`.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

WIDTHS = {"float32": 32, "float64": 64}
# Patterns of the leading bits, of either sign, that infinity (the first of them) and NaN have.
NOT_FINITE = 128
WORDS: dict[str, Any] = {"float32": np.uint32, "float64": np.uint64}
EXACT = 2**53  # from here on a float64 may stand for several integers


def exact_below(dtype: Any) -> int:
    """From here on a float of this type may stand for several integers: 2^11, 2^24 or 2^53, by its bytes."""
    return {2: 2**11, 4: 2**24}.get(dtype.itemsize, EXACT)


Bitmap = tuple[np.ndarray, int]
"""Arrow's validity bitmap (uint8, lowest bit first, a bit a value) and the place in it of the first value; empty where
all are valid."""

ALL_VALID: Bitmap = (np.empty(0, np.uint8), 0)


class InfinityFound(ValueError):
    """The values hold an infinity, which has no bin; who knows the column's name turns this into a `DataError`."""


def rankable(values: Any) -> Any:
    """The array as float32 if it is that, else as float64: integers keep their order, though above 2^53 not all their
    digits."""
    return values if values.dtype in (np.float32, np.float64) else values.astype("float64")


def float_kind(values: Any) -> str:
    """`float32` or `float64`; another type is a `ValueError`."""
    if str(values.dtype) not in WIDTHS:
        raise ValueError(f"an array of {values.dtype} cannot be ranked. Use {' or '.join(WIDTHS)}.")
    return str(values.dtype)


def images(words: Any, kind: str) -> Any:
    """The order-preserving unsigned integers of float words."""
    top = WORDS[kind](1 << (WIDTHS[kind] - 1))
    return array_module(words).where(words >= top, ~words, words | top)


def words_of(keys: np.ndarray, kind: str) -> np.ndarray:
    """The float words (uint64 in both kinds) whose order-preserving integers these are."""
    top = np.uint64(1 << (WIDTHS[kind] - 1))
    return np.where(keys >= top, keys ^ top, keys ^ (top | (top - np.uint64(1))))


def floats_of(keys: np.ndarray, kind: str) -> np.ndarray:
    """float64 values whose order-preserving integers these are; 0.0 for -0.0."""
    return words_of(keys, kind).astype(WORDS[kind]).view(kind).astype("float64") + 0.0


def float_words(values: Any) -> Any:
    """The memory of a float32 or float64 array as unsigned integers."""
    return array_module(values).ascontiguousarray(values).view(WORDS[float_kind(values)])


def array_module(values: Any) -> Any:
    """numpy or cupy."""
    if isinstance(values, np.ndarray):
        return np
    import cupy

    return cupy


def require_no_infinity(values: Any, valid: Bitmap | None, counts: np.ndarray) -> None:
    """`InfinityFound` if one of the values is infinite; counts: of every pattern of their leading bits."""
    # NaN with unusual bits can share the patterns that infinity has, so these only say where to look again.
    if not counts.reshape(2, -1)[:, -NOT_FINITE].any():
        return
    infinite = abs(values) == math.inf
    if valid is not None:
        infinite &= valid_mask(valid, len(values))
    if bool(infinite.any()):
        raise InfinityFound("the values hold an infinity; remove it first.")


def valid_mask(valid: Bitmap, num_values: int) -> np.ndarray:
    """bool[num_values] of Arrow's validity bitmap: which values are not null."""
    bitmap, offset = valid
    if not len(bitmap):
        return np.ones(num_values, bool)
    return np.unpackbits(bitmap, bitorder="little")[offset : offset + num_values].astype(bool)


def as_float32(value: float) -> float:
    """The nearest float32, infinite beyond its range."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
