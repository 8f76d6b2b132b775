"""Columns of Python's objects as the type that all of them have."""

from __future__ import annotations

from typing import Any

import numpy as np

from gigabatch.features.exact.float_order import EXACT


def unboxed(column: Any) -> Any:
    """A pandas column of objects as one of text, flags, whole numbers (Int64) or floats (NaN for null); of objects that
    are of several types as it is. Whole numbers beside floats are floats.

    pandas itself (`convert_dtypes`) rounds whole numbers from 2^53 on where a None or NaN stands beside them, and takes
    floats without fractions for whole numbers, though they may be rounded.

    Raises
    ------
    ValueError
        Whole numbers that int64 does not hold, or of 2^53 and beyond beside floats that are none below it; text that is
        no Unicode.

    Examples
    --------
    >>> import pandas as pd
    >>> unboxed(pd.Series([2**60 + 1, None], dtype="object")).tolist()
    [1152921504606846977, <NA>]
    """
    import pandas as pd  # only here, since a row is encoded without it (features/encoding/online.py)

    known = column.notna().to_numpy()
    kind = pd.api.types.infer_dtype(column, skipna=True)
    if kind not in ("integer", "floating", "mixed-integer-float"):
        return column.convert_dtypes()
    given: Any = column[known].tolist()
    whole = [int(value) for value in given if isinstance(value, int | np.integer)]
    if any(not -(2**63) <= value < 2**63 for value in whole):
        raise ValueError("holds integers of 2^63 and beyond; read them as text")
    if kind == "integer" or any(abs(value) >= EXACT for value in whole):
        floats: Any = [value for value in given if isinstance(value, float | np.floating)]
        if any(abs(value) >= EXACT or value != int(value) for value in floats):
            raise ValueError("holds whole numbers of 2^53 and beyond beside floats, which skip some; make all the same")
        return column.where(known, pd.NA).map(int, na_action="ignore").astype("Int64")
    numbers = np.array(given)  # float32 where all are
    values = np.full(len(column), np.nan, numbers.dtype)
    values[known] = numbers
    return pd.Series(values, index=column.index, name=column.name)
