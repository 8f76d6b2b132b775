"""How much memory a row takes, of a frame or as the start of a file tells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gigabatch.features.engines.arrow_types import is_text
from gigabatch.features.reading.encodings import opened

START_ROWS = 1 << 16  # of a Parquet file that are looked at
START_BYTES = 1 << 18  # of a CSV file


@dataclass(frozen=True)
class RowBytes:
    """Bytes of a row in memory, on average.

    Parameters
    ----------
    whole
        Of all columns.
    text
        Of the widest column of text; 0 where there is none.
    """

    whole: float
    text: float = 0.0


def frame_row_bytes(frame: Any) -> RowBytes:
    """Bytes of a row of a frame of pandas or cuDF, as the library counts them.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.reading.row_bytes import frame_row_bytes
    >>> frame_row_bytes(pd.DataFrame({"price": [1.0, 2.0], "clicked": [True, False]}))
    RowBytes(whole=9.0, text=0.0)
    """
    if not len(frame):
        return RowBytes(0.0)
    sizes = {name: int(frame[name].memory_usage(index=False)) / len(frame) for name in frame.columns}
    texts = [size for name, size in sizes.items() if str(frame[name].dtype) in ("object", "str", "string")]
    return RowBytes(sum(sizes.values()), max(texts, default=0.0))


def parquet_row_bytes(path: Path | str) -> RowBytes:
    """Bytes of a row in Arrow's form, which is cuDF's too, of the first `START_ROWS` rows of a Parquet file."""
    with pq.ParquetFile(path) as file:
        rows = next(file.iter_batches(START_ROWS), None)
    if rows is None or not len(rows):
        return RowBytes(0.0)
    sizes = {field.name: column.nbytes / len(rows) for field, column in zip(rows.schema, rows.columns, strict=True)}
    texts = [sizes[field.name] for field in rows.schema if is_text(field.type)]
    return RowBytes(sum(sizes.values()), max(texts, default=0.0))


def line_bytes(path: str) -> float:
    """Bytes of a line of text, unpacked: the mean of the first `START_BYTES` of a file or URL; 0 where it is empty."""
    with opened(path) as file:
        start = file.read(START_BYTES)
    return len(start) / max(start.count(b"\n"), 1)
