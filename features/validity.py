"""Arrow's validity bitmaps: which values of a column are not null."""

from __future__ import annotations

import numpy as np

Bitmap = tuple[np.ndarray, int]
"""uint8, lowest bit first, a bit a value; and the place in it of the first value. Empty where all are valid."""

ALL_VALID: Bitmap = (np.empty(0, np.uint8), 0)


def valid_mask(valid: Bitmap, num_values: int) -> np.ndarray:
    """bool[num_values]."""
    bitmap, offset = valid
    if not len(bitmap):
        return np.ones(num_values, bool)
    return np.unpackbits(bitmap, bitorder="little")[offset : offset + num_values].astype(bool)
