"""LooksBack: operators of which later rows can be computed from what earlier ones have left behind."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gigabatch.features.columns.numbers import float_values, whole_values
from gigabatch.features.columns.stacking import stacked
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.history.asof import Once, holds_fractions
from gigabatch.features.history.grouped_sums import unit_parts
from gigabatch.features.history.past import NotLater, Past, settle
from gigabatch.features.operators.base import ColumnOperator, Configured

LARGEST_SIZE = 2.0**60  # of a running sum that is carried; whether it fits int64 is asked of all rows together


class LooksBack(ColumnOperator):
    """A group-wise operator whose rows look at earlier rows alone, by a time of its own.

    `kept` says which earlier rows later ones still look at, `sums` what of all others is asked for.
    """

    @property
    @abstractmethod
    def asks_at(self) -> str:
        """The column of the time at which a row asks."""

    @property
    def known_at(self) -> str:
        """The column of the time at which others know of a row; by default that at which it asks."""
        return self.asks_at

    @property
    def null_until_happened(self) -> tuple[str, ...]:
        """Columns of times in which a null says that something has not happened yet."""
        return (self.known_at,)

    @property
    def looks_ahead(self) -> bool:
        """Whether its rows look at later ones, so that it is computed from all rows alone."""
        return False

    @property
    def summed(self) -> tuple[str, ...]:
        """Columns of which sums are taken."""
        return ()

    @property
    def questions(self) -> Mapping[str, Sequence[str]]:
        """Keys by the name of each question about all of the past; none where windows bound what a row looks at."""
        return {}

    @abstractmethod
    def kept(self, rows: Frame, until: int) -> Any:
        """bool array: which of the rows must stay at hand for rows that ask at `until` or later."""

    def counted(self, rows: Frame) -> Any:
        """bool array: which rows are events at all; by default those with a time at which they are known."""
        return engine_of(rows).array(rows[self.known_at].notna())

    def compute(self, frame: Frame) -> dict[str, Column]:
        return self.compute_after(frame, {})

    def compute_beside(self, frame: Frame, once: Once) -> dict[str, Column]:
        """`compute` beside other operators of the same rows, which share what they ask for."""
        return self.compute(frame)

    @abstractmethod
    def compute_after(self, frame: Frame, settled: Mapping[str, Frame]) -> dict[str, Column]:
        """The output columns of the frame, given what rows that are not in it amount to, by question."""

    def following(self, frame: Frame, past: Past) -> dict[str, Column]:
        """`compute` of rows that come after those of `past`, equal to that of all of them together.

        Raises
        ------
        NotLater
            Where a sum comes near the end of int64, so that only all rows together can tell whether it fits.
        """
        if past.size + self._size(frame) > LARGEST_SIZE:
            raise NotLater(f"{type(self).__name__}: its sums come near the end of 64 bits")
        names = list(dict.fromkeys(self.inputs))
        gathered = stacked([past.rows[names], frame[names]], type(self).__name__, self.group_keys or ())
        made = self.compute_after(gathered, past.settled)
        for name, column in made.items():
            made[name] = column.iloc[len(past.rows) :]
            made[name].index = frame.index
        return made

    def require_later(self, frame: Frame, new: Any, past: Past) -> None:
        """Raise `NotLater` where rows do not come after those of `past`.

        Parameters
        ----------
        frame
            All rows that come after, as `following` takes them.
        new
            bool array [N]: those that the earlier rows have not seen, when they were computed.
        past
            Of the earlier rows.
        """
        assert past.until is not None
        engine = engine_of(frame)
        who = f"{type(self).__name__} of {', '.join(self.outputs)}"
        asked = whole_values(frame[self.asks_at], who)
        if len(asked) and int(asked.min()) < past.until:
            raise NotLater(f"{who}: a row asks at {int(asked.min())}, before {past.until}, where finished rows end")
        known = whole_values(frame[self.known_at], who)[engine.array(frame[self.known_at].notna()) & new]
        if len(known) and int(known.min()) < past.until:
            raise NotLater(
                f"{who}: a new row is known at {int(known.min())}, before {past.until}, where finished rows end"
            )

    def leave(
        self, frame: Frame, before: Past | None, groups: Callable[[Sequence[str]], Any] = lambda by: None
    ) -> Past:
        """What these rows, finished now, and those of `before` leave to later ones.

        Parameters
        ----------
        frame
            As the operator was given them, at least one row.
        before
            What earlier rows left, if there are any.
        groups
            Gives the `group_codes` of the frame by some keys, where they are known already.
        """
        engine = engine_of(frame)
        names = list(dict.fromkeys(self.inputs))
        until = int(whole_values(frame[self.asks_at], type(self).__name__).max())
        until = until if before is None or before.until is None else max(until, before.until)
        rows, size = frame[names].reset_index(drop=True), self._size(frame)
        if before is not None:
            rows = stacked([before.rows[names], rows], type(self).__name__, self.group_keys or ())
            size += before.size
        counted = self.counted(rows)
        kept = self.kept(rows, until) & counted
        settled = {}
        if questions := self.questions:
            values = {}
            for name in self.summed:
                known = engine.array(rows[name].notna()).astype("int64")
                values[name] = known, self._summands(rows[name])
            for name, by in questions.items():
                told = None if before is None else before.settled.get(name)
                known_groups = groups(by) if before is None and by else None
                found = settle(rows, by, values, told, counted & ~kept, known_groups)
                if found is not None:
                    settled[name] = found
        return Past(rows[engine.series(kept, rows)].reset_index(drop=True), settled, until, size)

    def _summands(self, column: Column) -> dict[int, Any]:
        """By unit int64 arrays that add up to the column's values; whole numbers are of one unit, 1."""
        where = type(self).__name__
        return unit_parts(column, where) if holds_fractions(column, where) else {0: whole_values(column, where)}

    def _size(self, frame: Frame) -> float:
        """The sum of the absolute values that are summed."""
        found = 0.0
        for name in self.summed:
            values = abs(float_values(frame[name], type(self).__name__))
            found += float(engine_of(frame).arrays.nansum(values))
        return found


def looks_back(step: Configured) -> bool:
    """Whether an operator's rows look at earlier rows of their group, and at no later ones."""
    return isinstance(step, LooksBack) and not step.looks_ahead


def looks_at_own_row(step: Configured) -> bool:
    """Whether an operator's row depends on that row alone, and the rows stay: then finished rows stay finished."""
    return isinstance(step, ColumnOperator) and step.group_keys is None and not step.changes_rows
