"""Cast: columns as another type, where every value fits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gigabatch.features.columns.time_types import is_time_type
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator
from gigabatch.features.reading.sources import cast

DTYPES = ("int32", "int64", "float32", "float64", "string", "bool")


class Cast(ColumnOperator):
    """Cast columns to another type, where every value fits.

    Integers take whole numbers and text of whole numbers, 28 as well as 28.0; bool takes booleans, 0 and 1, and the
    texts true, false, 0, 1, 0.0 and 1.0 in upper or lower case; floats take numbers and text of numbers and round to
    nearest; string takes text, integers and booleans. Null stays null in floats and strings. Row-wise.

    Parameters
    ----------
    columns
        One or more columns, each replaced.
    dtype
        int32, int64, float32, float64, string or bool; or a time, as int64 microseconds since 1970 in UTC: `datetime`
        (timestamps, dates, ISO 8601 text), `datetime[%d.%m.%Y]` (text of a format) or `datetime[ms]` (numbers of a
        unit), which a `?` behind makes null where written otherwise.
    nullable
        Whether integers, bool and times may hold nulls, which are an error otherwise. The columns are then always of
        the engine's nullable type (Int64, boolean), with or without a null.

    Raises
    ------
    DataError
        A value that does not fit, such as a fraction, a number outside the type's range or text that is no number; a
        float as string, which engines write differently; an unknown dtype. Each names the column.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import Cast
    >>> frame = pd.DataFrame({"clicks": ["1", "20"]})
    >>> Cast(["clicks"], "int64")(frame)["clicks"].tolist()
    [1, 20]
    >>> Cast(["day"], "datetime[%d.%m.%Y]")(pd.DataFrame({"day": ["02.01.1970"]}))["day"].tolist()
    [86400000000]
    """

    reads, writes = ("columns",), ("columns",)

    def __init__(self, columns: Sequence[str], dtype: str, nullable: bool = False) -> None:
        if isinstance(columns, str) or not columns:
            raise DataError(f"Cast: give a list of one or more columns, found {columns!r}.")
        if dtype not in DTYPES and not is_time_type(dtype):
            raise DataError(
                f"Cast of {', '.join(columns)}: unknown dtype {dtype!r}. Known: {', '.join(DTYPES)}, datetime, "
                "datetime[%d.%m.%Y] (a format), datetime[ms] (a unit)."
            )
        if nullable and dtype in ("float32", "float64", "string"):
            raise DataError(f"Cast of {', '.join(columns)}: {dtype} holds nulls anyway; leave nullable out.")
        self.columns, self.dtype, self.nullable = tuple(columns), dtype, nullable

    def tells(self, names: Collection[str]) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name in names)

    def types_after(self, dtypes: Mapping[str, str]) -> dict[str, str]:
        return super().types_after(dtypes) | dict.fromkeys(self.columns, self.dtype)

    def compute(self, frame: Frame) -> dict[str, Column]:
        if self.dtype == "string":
            for name in self.columns:
                _require_writable(frame[name])
        dtypes = dict.fromkeys(self.columns, self.dtype)
        typed = cast(frame[list(self.columns)], dtypes, "Cast", nullable=self.columns if self.nullable else ())
        found = {}
        for name in self.columns:
            column = typed[name]
            if self.dtype == "float32":
                _require_in_range(column, frame[name])
            found[name] = column
        return found


def _require_writable(column: Column) -> None:
    kind = "O" if str(column.dtype) == "category" else column.dtype.kind
    if kind not in ("O", "U", "i", "u", "b") and bool(column.notna().any()):
        raise DataError(
            f"Cast: column {column.name!r} is {column.dtype}, which engines write differently as text. Cast it to "
            "int64 first."
        )


def _require_in_range(column: Column, before: Any) -> None:
    # Text may say "inf"; a number that became an infinity by rounding did not fit.
    infinite = column.abs() == float("inf")
    if bool(infinite.any()) and bool((before.astype("float64").abs() != float("inf"))[infinite].any()):
        raise DataError(
            f"Cast: column {column.name!r} holds numbers beyond float32 (3.4e38). Cast it to float64, or Clip it first."
        )
