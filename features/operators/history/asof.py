"""AsOf: counts, smoothed means and last values of what was known before each row's own time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from gigabatch.features.columns.numbers import float_values, loses_digits, whole_values
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Array, Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.history.asof import AsOfJoin, Once, sorted_rows
from gigabatch.features.history.group_codes import group_codes
from gigabatch.features.operators.base import listed, require_once
from gigabatch.features.operators.history.windows import in_units, require_window, window_for
from gigabatch.features.operators.looking_back import LooksBack
from gigabatch.features.setting_checks import require_smoothing

LAST_DTYPES = ("float32", "float64", "int64")


@dataclass(frozen=True)
class Count:
    """Count the earlier events.

    Parameters
    ----------
    output
        Name of the new int32 column.
    window
        How far back, in units of the time column, at least 1, or of a datetime text such as 7d; None for all the past.
    """

    output: str
    window: int | str | None = None


@dataclass(frozen=True)
class Mean:
    """Average a column of numbers over the earlier events; null where there is none.

    With `smoothing` k > 0 it is (sum + k * prior) / (count + k), the prior being the mean over all groups as known at
    the same time (additive smoothing, Micci-Barreca 2001, eq. 4 with lambda = n / (n + k)). The prior is over all the
    past, also where the mean has a `window`.

    Parameters
    ----------
    value
        The column.
    output
        Name of the new float32 column.
    window
        How far back, in units of the time column, at least 1, or of a datetime text such as 7d; None for all the past.
    smoothing
        Weight of the prior, finite; 0 for none.
    """

    value: str
    output: str
    window: int | str | None = None
    smoothing: float = 0.0


@dataclass(frozen=True)
class Last:
    """Take columns of the last earlier event; null where there is none.

    Parameters
    ----------
    columns
        New names by those of the columns to take: {old: new}.
    dtype
        float32, float64 for numbers above 2^24 such as minutes since 1970, which float32 rounds, or int64 for whole
        numbers, exact also above 2^53 such as nanoseconds since 1970 and ids; int64 columns can hold nulls.
    """

    columns: dict[str, str]
    dtype: str = "float32"


class AsOf(LooksBack):
    """Aggregate what was known of a row's group before the row's own time.

    Events are the rows of the same group whose `known_at` lies strictly before this row's `at`. A row never sees
    itself, even if its own outcome became known before its `at`; rows whose `known_at` is null never become known to
    others. A row with a null key is in no group: it has no events, and counts in the prior alone. Needs every row of a
    group, so the whole table.

    Parameters
    ----------
    by
        Key columns.
    at, known_at
        Whole-number times in one unit: when a row asks, and when its outcome is known. `at` holds no nulls.
    aggregations
        Any of `Count(output, window=None)`, the number of events; `Mean(value, output, window=None, smoothing=0.0)` of
        a column of numbers, null without an event, with `smoothing` k > 0 (sum + k * prior) / (count + k), whose
        prior is the mean over all groups and, whatever the window, all the past; and `Last(columns, dtype="float32")`,
        the columns {old: new} of the last event, null ones too, as float32, float64 or int64. Null values take no part
        in a mean. A `window` is in the unit of `at`, or, where that is a datetime, text such as 7d; it holds events
        known from `at` - window on, None all the past. As a step: `{mean: {value: delay, output: mean_delay}}`.
    order
        Whole-number column without nulls, unique, that settles ties for `Last`.

    Raises
    ------
    DataError
        A window below 1, a smoothing that is negative or not finite; a time or order that is null or no whole number;
        fractions that `Last` takes as int64, an infinity or a fraction beyond 1e30 that is averaged; whole numbers that
        `Last` would round to float64.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators.history.asof import AsOf, Count, Mean
    >>> frame = pd.DataFrame({"plane": ["a", "a"], "at": [10, 20], "landed": [15, 25], "delay": [7, 9], "row": [0, 1]})
    >>> AsOf(["plane"], "at", "landed", [Count("flights"), Mean("delay", "mean_delay")], "row")(frame)
      plane  at  landed  delay  row  flights  mean_delay
    0     a  10      15      7    0        0         NaN
    1     a  20      25      9    1        1         7.0
    """

    def __init__(
        self, by: Sequence[str], at: str, known_at: str, aggregations: Sequence[Count | Mean | Last], order: str
    ) -> None:
        self.by, self.at, self._known_at, self.order = listed(by, "AsOf"), at, known_at, order
        self.aggregations = tuple(aggregations)
        for item in self.aggregations:
            if isinstance(item, Last) and item.dtype not in LAST_DTYPES:
                raise DataError(f"AsOf: the dtype of Last is one of {', '.join(LAST_DTYPES)}, found {item.dtype!r}.")
            if not isinstance(item, Last):
                require_window(item.window, f"AsOf {item.output!r}")
            if isinstance(item, Mean):
                require_smoothing(f"AsOf {item.output!r}", smoothing=item.smoothing)

    def typed(self, dtypes: Mapping[str, str]) -> Self:
        aggregations = tuple(
            item if isinstance(item, Last)
            else replace(item, window=window_for(item.window, self.at, dtypes, f"AsOf {item.output!r}"))
            for item in self.aggregations
        )  # fmt: skip
        same = aggregations == self.aggregations
        return self if same else type(self)(**(self.settings() | {"aggregations": aggregations}))

    def _reach(self, item: Count | Mean) -> int | None:
        return in_units(item.window, self.at, f"AsOf {item.output!r}")

    @property
    def inputs(self) -> tuple[str, ...]:
        require_once(self.by, "AsOf: by")
        values: list[str] = []
        for item in self.aggregations:
            values += [item.value] if isinstance(item, Mean) else list(item.columns) if isinstance(item, Last) else []
        return (*self.by, self.at, self.known_at, self.order, *dict.fromkeys(values))

    @property
    def outputs(self) -> tuple[str, ...]:
        names: list[str] = []
        for item in self.aggregations:
            names += list(item.columns.values()) if isinstance(item, Last) else [item.output]
        return tuple(names)

    def tells(self, names: Collection[str]) -> tuple[str, ...]:
        return self.outputs if {*self.by, self.at, self.order}.intersection(names) else ()

    @property
    def chosen(self) -> tuple[str, ...]:
        return self.outputs

    @property
    def group_keys(self) -> tuple[str, ...]:
        smoothed = any(isinstance(item, Mean) and item.smoothing for item in self.aggregations)
        return () if smoothed else self.by  # the prior is over all groups

    @property
    def asks_at(self) -> str:
        return self.at

    @property
    def known_at(self) -> str:
        return self._known_at

    @property
    def summed(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.value for item in self.aggregations if isinstance(item, Mean)))

    @property
    def questions(self) -> Mapping[str, Sequence[str]]:
        sums = [item for item in self.aggregations if not isinstance(item, Last)]
        found: dict[str, Sequence[str]] = {"group": self.by} if any(item.window is None for item in sums) else {}
        return found | ({"all": ()} if any(isinstance(item, Mean) and item.smoothing for item in sums) else {})

    def kept(self, rows: Frame, until: int) -> Any:
        windows = [self._reach(item) or 0 for item in self.aggregations if not isinstance(item, Last)]
        known = whole_values(rows[self.known_at], "AsOf")
        stay = known >= until - max(windows, default=0)
        if not any(isinstance(item, Last) for item in self.aggregations):
            return stay
        xp = engine_of(rows).arrays
        groups = group_codes(rows, rows, self.by, "AsOf")[0]
        # Among those alone that every later row knows of: one that lands tomorrow is not the last tonight.
        asked = xp.nonzero(engine_of(rows).array(rows[self.known_at].notna()) & ~stay & (groups >= 0))[0]
        order = asked[sorted_rows(engine_of(rows), known[asked], whole_values(rows[self.order], "AsOf")[asked])]
        order = order[engine_of(rows).stable_order(groups[order])]
        last = xp.ones(len(order), dtype=bool)
        last[:-1] = groups[order[1:]] != groups[order[:-1]]
        stay[order[last]] = True
        return stay

    def compute_after(self, frame: Frame, settled: Mapping[str, Frame]) -> dict[str, Column]:
        return self._aggregated(frame, settled, Once())

    def compute_beside(self, frame: Frame, once: Once) -> dict[str, Column]:
        return self._aggregated(frame, {}, once)

    def _aggregated(self, frame: Frame, settled: Mapping[str, Frame], once: Once) -> dict[str, Column]:
        question = self._question(frame, self.by, settled.get("group"), once)
        found = {}
        for item in self.aggregations:
            if isinstance(item, Count):
                found[item.output] = question.engine.series(question.count(self._reach(item)).astype("int32"), frame)
            elif isinstance(item, Mean):
                found[item.output] = self._mean(frame, question, item, settled, once)
            else:
                for source, output in item.columns.items():
                    found[output] = take_rows(frame, source, question.last_row(), item.dtype)
        return found

    def _question(self, frame: Frame, by: Sequence[str], settled: Frame | None, once: Once) -> AsOfJoin:
        return AsOfJoin(
            frame,
            frame,
            by=by,
            query_time=self.at,
            event_time=self.known_at,
            order=self.order,
            exclude_self=True,
            settled=settled,
            once=once,
        )

    def _mean(self, frame: Frame, question: AsOfJoin, item: Mean, settled: Mapping[str, Frame], once: Once) -> Any:
        count = question.count(self._reach(item), of=item.value).astype("float64")
        total = question.total(item.value, self._reach(item)).astype("float64")
        if not item.smoothing:
            return ratio(frame, total, count)
        told = (self.at, self.known_at, self.order)  # what the prior of a value depends on beside the rows

        def everyone() -> AsOfJoin:
            return self._question(frame, (), settled.get("all"), once)

        def prior_of() -> tuple[Any, Any]:
            asked = once(("everyone", *told), everyone)
            number = asked.count(of=item.value)
            return asked.total(item.value) / asked.xp.maximum(number, 1), (number > 0).astype("float64")

        prior, known = once(("prior", item.value, *told), prior_of)
        return ratio(frame, total + item.smoothing * prior, (count + item.smoothing) * known)


def ratio(frame: Frame, numerator: Any, denominator: Any) -> Any:
    """float32 column of numerator / denominator, null where the denominator is 0."""
    engine = engine_of(frame)
    values = numerator / engine.arrays.where(denominator > 0, denominator, 1)
    return engine.series(values.astype("float32"), frame, valid=denominator > 0)


def take_rows(frame: Frame, column: str, rows: Array, dtype: str) -> Column:
    """A column of `LAST_DTYPES`: the value of `column` in row number `rows`, null where that is -1 or the value is
    null."""
    engine, where = engine_of(frame), "as-of last value"
    index = engine.arrays.clip(rows, 0, None)
    if dtype == "int64":
        values, known = whole_values(frame[column], where), engine.array(frame[column].notna())
        missing = engine.series((rows < 0) | ~known[index], frame)
        return engine.with_nulls(engine.series(values[index], frame), missing)
    values = float_values(frame[column], where)
    if dtype == "float64" and loses_digits(frame[column], values):
        raise DataError(
            f"{where}: column {column!r} holds whole numbers of 2^53 and beyond that float64 rounds. Take them with "
            "dtype='int64'."
        )
    known = ~engine.arrays.isnan(values)
    return engine.series(values[index], frame, valid=(rows >= 0) & known[index]).astype(dtype)
