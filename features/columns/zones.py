"""Local time of a zone, from the changes of its clocks as the time zone database has them."""

from __future__ import annotations

import datetime
import hashlib
import zoneinfo
from functools import lru_cache
from typing import Any

from gigabatch.features.columns.times import FIRST, LAST
from gigabatch.features.engines.protocols import Array
from gigabatch.features.errors import DataError, did_you_mean

DAY = 86_400
BLOCK = 366 * DAY  # changes are looked up and kept for so many seconds at once
RULES = (-70, 131)  # such blocks, counted from 1970
STEP = 2 * DAY  # in no zone did clocks change twice within three days
START = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def time_zone(name: Any, where: str) -> zoneinfo.ZoneInfo:
    """The zone of a name.

    Parameters
    ----------
    name
        As of the time zone database: `Europe/Berlin`.
    where
        Who asks, for the error.

    Raises
    ------
    DataError
        There is no such zone, or no database on this machine.

    Examples
    --------
    >>> from gigabatch.features.columns.zones import time_zone
    >>> time_zone("Europe/Berlin", "here").key
    'Europe/Berlin'
    """
    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError, AttributeError) as error:
        known = zoneinfo.available_timezones()
        advice = did_you_mean(str(name), sorted(known)) if known else " No time zone is known here: pip install tzdata."
        raise DataError(
            f"{where}: unknown time zone {name!r}. Name one of the time zone database, such as Europe/Berlin or "
            f"UTC.{advice}"
        ) from error


def is_time_zone(name: str) -> bool:
    """Whether the time zone database has a zone of this name.

    >>> from gigabatch.features.columns.zones import is_time_zone
    >>> is_time_zone("Europe/Berlin"), is_time_zone("string")
    (True, False)
    """
    try:
        zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True


def seconds_ahead(arrays: Any, seconds: Any, name: str) -> Array:
    """How far local time is ahead of UTC at each moment, daylight saving included.

    Parameters
    ----------
    arrays
        The engine's library of arrays.
    seconds
        int64 [N] since 1970 in UTC, of the years 1 to 9999.
    name
        As of `time_zone`.

    Returns
    -------
    array
        int64 [N] seconds, negative in the west.

    Examples
    --------
    >>> import numpy as np
    >>> from gigabatch.features.columns.zones import seconds_ahead
    >>> seconds_ahead(np, np.array([1_704_067_200, 1_719_792_000]), "Europe/Berlin").tolist()  # January, July 2024
    [3600, 7200]
    """
    changes = [change for block in arrays.unique(seconds // BLOCK).tolist() for change in _changes(name, block)]
    if not changes:
        return seconds
    starts, ahead = (arrays.asarray(numbers, dtype="int64") for numbers in zip(*changes, strict=True))
    return ahead[arrays.searchsorted(starts, seconds, side="right") - 1]


def zone_rules(name: str) -> str:
    """What tells the changes of a zone's clocks of 1900 to 2100 from those of another version of the database.

    >>> from gigabatch.features.columns.zones import zone_rules
    >>> zone_rules("Europe/Berlin") == zone_rules("Europe/Busingen"), zone_rules("UTC") == zone_rules("Asia/Tokyo")
    (False, False)
    """
    changes = [_changes(name, block) for block in range(*RULES)]
    return hashlib.blake2b(repr(changes).encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=16_384)
def _changes(name: str, block: int) -> tuple[tuple[int, int], ...]:
    """(moment, seconds ahead from then on) at the start of a block and at each change inside it."""
    zone = time_zone(name, "zone")
    start, found = block * BLOCK, [(block * BLOCK, _ahead(zone, block * BLOCK))]
    for before in range(start, start + BLOCK, STEP):
        after = min(before + STEP, start + BLOCK - 1)
        if (ahead := _ahead(zone, after)) == found[-1][1]:
            continue
        while after - before > 1:
            middle = (before + after) // 2
            before, after = (middle, after) if _ahead(zone, middle) == found[-1][1] else (before, middle)
        found.append((after, ahead))
    return tuple(found)


def _ahead(zone: zoneinfo.ZoneInfo, moment: int) -> int:
    inside = min(max(moment, FIRST + DAY), LAST - DAY)  # where local times are of the years 1 to 9999 too
    offset = (START + datetime.timedelta(seconds=inside)).astimezone(zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())
