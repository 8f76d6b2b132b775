"""How often each small whole number comes, on NumPy and CuPy arrays alike."""

from __future__ import annotations

from typing import Any


def tally(xp: Any, numbers: Any, length: int = 0, weights: Any = None) -> Any:
    """`xp.bincount` of at least so many places, of no number too: CuPy looks for the largest of them, and raises.

    >>> import numpy as np
    >>> tally(np, np.array([], dtype="int64"), 2).tolist(), tally(np, np.array([1, 1])).tolist()
    ([0, 0], [0, 2])
    """
    if not len(numbers):
        return xp.zeros(length, dtype="int64" if weights is None else "float64")
    return xp.bincount(numbers, weights=weights, minlength=length)
