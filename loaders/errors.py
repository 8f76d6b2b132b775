"""Errors that a user of `loaders` can mend: each names the column, file or setting, what was found, what to do."""

import operator
from typing import Any


class LoaderError(ValueError):
    """A column, a packed table on disk or a loader's setting is wrong; the message says how to mend it."""


def whole_number(name: str, value: Any) -> int:
    """A setting as Python's int, of NumPy's numbers too, with which sums could overflow; `LoaderError` where it is
    none, such as 1.5 or None."""
    try:
        return operator.index(value)
    except TypeError:
        raise LoaderError(f"{name} must be a whole number, found {value!r}.") from None
