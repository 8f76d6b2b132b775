"""How many rows a part of the features stage holds, where `rows_per_part` is `auto`: what a GPU's memory takes.

The rows that come out do not depend on it, nor their order; only into how many files they are cut. So it is in no key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from gigabatch.features.reading.row_bytes import RowBytes
from gigabatch.loaders.device_memory import total_device_memory
from gigabatch.pipeline.config.config import RunConfig

log = logging.getLogger(__name__)
ON_HOST = 1_000_000  # rows of frames in host memory, and of rows of unknown length
# Of a GPU's memory, what one part takes: a stage holds several copies of it while it works. With less, calls of cuDF
# take longer to start than to run; with more than 1/8, the copies do not fit.
SHARE = 1 / 16
CLUSTER_SHARE = 1 / 32  # where several GPUs work, so that there are parts for all of them
MOST_TEXT_BYTES = (1 << 31) - 1  # of a column of text; what lies behind is found by 64-bit offsets, which cost more
MOST_ROWS = (1 << 31) - 1  # of a column of cuDF


def rows_of_part(
    setting: int | Literal["auto"], row: RowBytes | None = None, device_bytes: int = 0, cluster: bool = False
) -> int:
    """Rows of a part. A pure function.

    Parameters
    ----------
    setting
        Of `rows_per_part`. A number is taken as it is.
    row
        Bytes of a row in memory; None: unknown.
    device_bytes
        Memory of the GPU that holds the frames; 0: they lie in host memory.
    cluster
        Whether several GPUs share the parts.

    Examples
    --------
    >>> from gigabatch.features.reading.row_bytes import RowBytes
    >>> from gigabatch.pipeline.stages.part_rows import rows_of_part
    >>> rows_of_part("auto"), rows_of_part(7), rows_of_part("auto", RowBytes(250.0), 16 << 30)
    (1000000, 7, 4294967)
    """
    if setting != "auto":
        return setting
    if not device_bytes or row is None or not row.whole:
        return ON_HOST
    found = device_bytes * (CLUSTER_SHARE if cluster else SHARE) / row.whole
    if row.text:
        found = min(found, MOST_TEXT_BYTES / row.text)
    return max(int(min(found, MOST_ROWS)), 1)


def rows_of_part_here(config: RunConfig, engine: str, device: str, row: Callable[[], RowBytes | None]) -> int:
    """`rows_of_part` with the memory of the GPU that cuDF works on; the log says what follows from it.

    row: called only where the answer depends on it. device: that trains, and `cpu` beside cuDF too.
    """
    if config.rows_per_part != "auto" or not engine.startswith("cudf"):
        return rows_of_part(config.rows_per_part)
    whole, size = total_device_memory("cuda" if device == "cpu" else device), row()
    found = rows_of_part("auto", size, whole, config.cluster != "none")
    if size is not None:
        text = "rows_per_part auto: %s rows of %.0f bytes, %.1f %% of the GPU's %.1f GiB"
        log.info(text, f"{found:,}", size.whole, 100 * found * size.whole / whole, whole / 2**30)
    return found
