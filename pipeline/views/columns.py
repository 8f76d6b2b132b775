"""Columns of a table at a glance: first values, nulls, values in all, how they are spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup

from gigabatch.pipeline.display import format_value, is_missing
from gigabatch.pipeline.views.parts import histogram_bars, percent, share_bar, short, stacked_bar

BINS = 20
FIRST = 3  # values that are shown
NAMED = 2  # of the most frequent values
STACKED = 6


def column_rows(table: pa.Table, roles: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """A row a column for `html_table`: name, role, type, first values, nulls, distinct values, distribution.

    Parameters
    ----------
    table
        The rows to look at, all of them.
    roles
        By column, in the order of the rows: its role and dtype, as `features.schema.Column` has them. Numbers of role
        categorical are values, not amounts; a dtype of datetime is microseconds since 1970 in UTC.
    """
    found = []
    for name, (role, dtype) in roles.items():
        values = table.column(name)
        values = pc.if_else(pc.is_nan(values), None, values) if pa.types.is_floating(values.type) else values
        known = values.drop_null()
        is_time = dtype == "datetime"
        first = [_time(item) if is_time else item for item in values[:FIRST].to_pylist()]
        row: dict[str, Any] = {"column": name, "role": role, "type": dtype, "first rows": _first(first)}
        row["nulls"] = share_bar((len(values) - len(known)) / len(values)) if len(values) else None
        found.append(row | _spread(known, amounts=role not in ("categorical", "key", "group"), is_time=is_time))
    return found


def _first(values: Sequence[Any]) -> str:
    """The first values; few characters stay on one line."""
    text = ", ".join(map(_shown, values))
    return Markup('<span style="white-space:nowrap">{}</span>').format(text) if len(text) <= 34 else text


def _spread(known: pa.ChunkedArray, amounts: bool, is_time: bool) -> dict[str, Any]:
    """How many distinct values there are, and a drawing."""
    if pa.types.is_list(known.type) or pa.types.is_large_list(known.type):
        return {"values": None, "distribution": _amounts(pc.list_value_length(known), " elements")}
    distinct = pc.count_distinct(known).as_py()
    is_number = pa.types.is_integer(known.type) or pa.types.is_floating(known.type)
    drawn = _amounts(known, is_time=is_time) if amounts and is_number and distinct > 2 else _values(known)
    return {"values": distinct, "distribution": drawn}


def _amounts(known: pa.ChunkedArray, unit: str = "", is_time: bool = False) -> Markup:
    """A histogram between the least and the greatest value; of long tails 99 % of the rows."""
    numbers = known.cast(pa.float64(), safe=False).to_numpy()
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return Markup("")
    low, high = float(numbers.min()), float(numbers.max())
    ends = [str(_time(value)) if is_time else format_value(value) + unit for value in (low, high)]
    inner = np.quantile(numbers, [0.005, 0.995])
    is_long = high - low > 3 * (inner[1] - inner[0]) > 0
    counts, _ = np.histogram(numbers, BINS, range=tuple(inner) if is_long else (low, high))
    text = ends[0] if low == high else f"{ends[0]} to {ends[1]}"
    bars = histogram_bars(counts.tolist(), f"{text}, drawn: the middle 99 %" if is_long else text)
    return Markup('<span style="white-space:nowrap">{}&nbsp; {}</span>').format(bars, text)


def _values(known: pa.ChunkedArray) -> Markup:
    """The most frequent values by their shares."""
    if not len(known):
        return Markup("")
    counted = known.value_counts()
    counts, values = counted.field("counts").to_numpy(), counted.field("values")
    order = np.argsort(-counts, kind="stable")[:STACKED]
    return value_shares([values[place].as_py() for place in order.tolist()], counts[order] / len(known))


def value_shares(values: Sequence[Any], shares: Sequence[float]) -> Markup:
    """A bar of these shares, in falling order, with the first ones named."""
    named = [f"{_shown(value)}: {percent(share)}" for value, share in zip(values, shares, strict=True)]
    return Markup('<span style="white-space:nowrap">{}&nbsp; {}</span>').format(
        stacked_bar(list(map(float, shares)), ", ".join(named)), ", ".join(named[:NAMED])
    )


def numbers_drawn(values: np.ndarray) -> Markup:
    """The distribution of float values [rows]."""
    return _amounts(pa.chunked_array([pa.array(values)]))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return short(f"[{', '.join(map(str, value))}]")
    if isinstance(value, float) or is_missing(value):
        return format_value(value)
    return short(value) or '""'


def _time(micros: float | None) -> str | None:
    """ISO text of microseconds since 1970 in UTC, without a time of day of zero; as it is where no date has it."""
    if micros is None:
        return None
    try:
        moment = datetime.fromtimestamp(micros / 1e6, UTC)
    except (OverflowError, OSError, ValueError):
        return str(micros)
    return moment.strftime("%Y-%m-%d %H:%M").removesuffix(" 00:00")
