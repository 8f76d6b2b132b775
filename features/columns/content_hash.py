"""The hash of what was learned: of a column's values in their order, whatever form, engine or file they are held in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column

TEXT = "text"


def hash_of(parts: Iterable[bytes]) -> bytes:
    """blake2b of 16 bytes over the parts, each after its length, so that it matters where one ends."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def plain_values(column: Column) -> tuple[str, tuple[np.ndarray, ...]]:
    """A column of N values without nulls as arrays of settled types, and its kind.

    `text`: lengths in bytes int64 [N], and the UTF-8 of all uint8. Otherwise NumPy's letter, and the values [N]: `i` or
    `u` as int64, `f` as float64, `b` as bool.
    """
    values = pa.array(engine_of(column).to_pandas(column.reset_index(drop=True)))
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if pa.types.is_boolean(values.type):
        return "b", (values.to_numpy(zero_copy_only=False),)
    if pa.types.is_floating(values.type):
        return "f", (values.to_numpy(zero_copy_only=False).astype("float64"),)
    if pa.types.is_integer(values.type):
        kind = "u" if pa.types.is_unsigned_integer(values.type) else "i"
        return kind, (values.to_numpy(zero_copy_only=False).astype("int64"),)
    texts = values.cast(pa.large_string())
    if len(texts) == 0:
        return TEXT, (np.empty(0, "int64"), np.empty(0, "uint8"))
    _, ends, data = texts.buffers()
    bounds = np.frombuffer(ends, "int64")[texts.offset : texts.offset + len(texts) + 1]
    utf8 = np.empty(0, "uint8") if bounds[0] == bounds[-1] else np.frombuffer(data, "uint8")[bounds[0] : bounds[-1]]
    return TEXT, (np.diff(bounds), utf8)
