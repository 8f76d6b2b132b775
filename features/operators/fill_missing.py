"""FillMissing: the exact median in place of nulls, and a column that says where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from features.errors import DataError
from features.frame import engine_of
from features.operators.base import FittedOperator

INDICATORS = ("auto", "all", "none")


@dataclass(frozen=True)
class Fill:
    """value: what stands in for null. indicator: whether the `_na` column exists. null_rate: at fit."""

    value: float
    indicator: bool
    null_rate: float


class FillMissing(FittedOperator):
    """float32 column with nulls (and NaN, which counts as null) replaced by the fit's exact median.

    indicator: `auto` adds the float32 column `<column>_na` (1 where filled, else 0) if there was a null at fit, `all`
    always, `none` never. The choice is part of the state, so a null that first appears tomorrow is filled without
    changing the columns.
    """

    def __init__(self, column: str, indicator: str = "auto") -> None:
        if indicator not in INDICATORS:
            raise DataError(f"FillMissing: unknown indicator {indicator!r}. Known: {', '.join(INDICATORS)}.")
        self.column, self.indicator = column, indicator

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.column, f"{self.column}_na")

    def partial(self, frame: Any) -> tuple[Any, int]:
        """The partition's known values and its number of rows."""
        return known_values(frame[self.column]), len(frame)

    def merge(self, left: tuple[Any, int], right: tuple[Any, int]) -> tuple[Any, int]:
        return concatenate(left[0], right[0]), left[1] + right[1]

    def finish(self, partial: tuple[Any, int]) -> Fill:
        values, rows = partial
        if len(values) == 0:
            raise DataError(
                f"column {self.column!r}: all {rows} rows of the train split are null, so there is no median. "
                "Remove the column from the configuration or repair the input."
            )
        values = values.copy()
        middle = len(values) // 2
        values.partition((max(middle - 1, 0), middle))
        low = float(values[middle - 1 + len(values) % 2])
        nulls = rows - len(values)
        indicator = self.indicator == "all" or (self.indicator == "auto" and nulls > 0)
        return Fill((low + float(values[middle])) / 2, indicator, nulls / rows)

    def columns(self, frame: Any, state: Fill) -> dict[str, Any]:
        column = frame[self.column]
        filled = column.fillna(state.value).astype("float32")
        require_finite(filled)
        found = {self.column: filled}
        if state.indicator:
            found[f"{self.column}_na"] = column.isna().astype("float32")
        return found


def known_values(column: Any) -> Any:
    """The column's values without nulls and NaN, as an array of its own type; an infinity is an error."""
    known = column[column.notna()]
    require_finite(known)
    return engine_of(column).array(known)


def require_finite(column: Any) -> None:
    """Raise `DataError` if the column, which has no nulls, holds an infinity."""
    engine = engine_of(column)
    if not bool(engine.arrays.isfinite(engine.array(column)).all()):
        raise DataError(f"column {column.name!r} holds an infinity. Clip it or make it null before this stage.")


def concatenate(left: Any, right: Any) -> Any:
    """Two arrays of one engine as one."""
    if type(left).__module__.partition(".")[0] == "cupy":
        import cupy

        return cupy.concatenate([left, right])
    import numpy

    return numpy.concatenate([left, right])
