"""Windows of time: how they are written, and what they come to in the unit of the time column."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache

from gigabatch.features.columns.time_types import is_time_type
from gigabatch.features.columns.times import SECOND
from gigabatch.features.errors import DataError
from gigabatch.features.setting_checks import TIME_UNITS, time_span

log = logging.getLogger(__name__)

Window = int | str


def require_window(window: Window | None, where: str, name: str = "window") -> None:
    """Raise `DataError` for a number below 1, and for text that is no span of time; name: of the argument."""
    if isinstance(window, str):
        time_span(window, where, name)
    elif window is not None and window < 1:
        raise DataError(f"{where}: {name} must be at least 1, found {window}.")


def window_for(
    window: Window | None, time: str, dtypes: Mapping[str, str], where: str, name: str = "window"
) -> Window | None:
    """The window for a column `time` of these types: of a datetime text such as 7d becomes whole microseconds.

    A number below a second's is warned of there: 7 is 7 microseconds, and mostly 7 days were meant."""
    if window is None or not is_time_type(dtypes.get(time, "")):
        return window
    if isinstance(window, str):
        number, unit = time_span(window, where, name)
        return max(round(number * TIME_UNITS[str(unit)] / TIME_UNITS["us"]), 1)
    if window < SECOND:
        _warn_of_unit(where, name, window, time)
    return window


def in_units(window: Window | None, time: str, where: str, name: str = "window") -> int | None:
    """The window as it is computed with; `DataError` for text where the unit of `time` is not known."""
    if isinstance(window, str):
        raise DataError(
            f"{where}: {name} is {window!r}, and column {time!r} holds numbers, whose unit is not known. Give {name} "
            f"as a number in that unit, or declare {time!r} a datetime."
        )
    return window


@cache
def _warn_of_unit(where: str, name: str, window: int, time: str) -> None:
    log.warning(
        "%s: %s is %s microseconds, the unit of %r, which is a datetime. Write longer ones with a unit, such as "
        "%s: 7d or 12h.", where, name, window, time, name,
    )  # fmt: skip
