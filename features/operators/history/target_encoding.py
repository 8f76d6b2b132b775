"""TargetEncoding: the mean outcome of earlier rows with the same key, as of each row's time and out of its fold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gigabatch.features.columns.numbers import whole_values
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.history.asof import AsOfJoin
from gigabatch.features.operators.base import listed
from gigabatch.features.operators.history.asof import ratio
from gigabatch.features.operators.looking_back import LooksBack


class TargetEncoding(LooksBack):
    """Encode a key by the mean outcome of its earlier rows, out of each row's fold.

    The new column is (hits + smoothing * prior) / (trials + smoothing). hits and trials are sums over the rows of the
    same key whose `at` lies strictly before this row's and whose `fold` is another one; prior is the same quotient over
    all keys (additive smoothing, Micci-Barreca 2001, eq. 4). It is null where nothing at all is known yet. A row whose
    `hits` or `trials` is null counts neither as hit nor as trial; a row with a null key gets the prior. Sums are of
    integers, so the result does not depend on row order. Needs the whole table.

    Parameters
    ----------
    by
        Key columns.
    hits
        Whole-number column: the outcome.
    output
        Name of the new float32 column.
    at
        Whole-number time.
    trials
        Whole-number column; without it every row is one trial.
    fold
        Column of folds, or None to encode by time alone. Rows that share a label's fate (candidates of one list, lists
        of one session) belong to one fold: with folds over rows a row is told its list's outcome by its siblings.
    smoothing
        Weight of the prior, above 0 and finite.

    Raises
    ------
    DataError
        A smoothing that is not positive and finite; a time that is null or no whole number; a null fold; fractions in
        `hits` or `trials`.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import TargetEncoding
    >>> frame = pd.DataFrame({"user": ["a", "a", "b"], "at": [1, 2, 3], "clicked": [1, 0, 1]})
    >>> TargetEncoding(["user"], "clicked", "rate", at="at", smoothing=1.0)(frame)
      user  at  clicked  rate
    0    a   1        1   NaN
    1    a   2        0   1.0
    2    b   3        1   0.5
    """

    reads, writes = ("by", "hits", "at", "trials", "fold"), ("output",)

    untold = ("hits", "trials")

    def __init__(
        self,
        by: Sequence[str],
        hits: str,
        output: str,
        *,
        at: str,
        trials: str | None = None,
        fold: str | None = None,
        smoothing: float = 20.0,
    ) -> None:
        if not (math.isfinite(smoothing) and smoothing > 0):
            raise DataError(f"TargetEncoding {output!r}: smoothing must be positive and finite, found {smoothing}.")
        self.by, self.hits, self.output, self.at = listed(by, "TargetEncoding"), hits, output, at
        self.trials, self.fold, self.smoothing = trials, fold, smoothing

    @property
    def group_keys(self) -> tuple[str, ...]:
        return ()  # the prior is over all keys

    @property
    def asks_at(self) -> str:
        return self.at

    @property
    def summed(self) -> tuple[str, ...]:
        return (self.hits,) if self.trials is None else (self.hits, self.trials)

    @property
    def questions(self) -> Mapping[str, Sequence[str]]:
        keys = [self.by, (), *([] if self.fold is None else [self._within(self.by), (self.fold,)])]
        return {_question(by): by for by in keys}

    def counted(self, rows: Frame) -> Any:
        known = rows[self.hits].notna()
        return engine_of(rows).array(known if self.trials is None else known & rows[self.trials].notna())

    def kept(self, rows: Frame, until: int) -> Any:
        return whole_values(rows[self.at], "TargetEncoding") >= until

    def compute_after(self, frame: Frame, settled: Mapping[str, Frame]) -> dict[str, Column]:
        if self.fold is not None and (nulls := int(frame[self.fold].isna().sum())):
            raise DataError(
                f"TargetEncoding {self.output!r}: fold {self.fold!r} holds {nulls} null(s), and such rows would be "
                "told their own fold's outcome. Fill the column, for example with a row id."
            )
        events = frame[list(dict.fromkeys(self.inputs))][engine_of(frame).series(self.counted(frame), frame)]
        hits, trials = self._sums(frame, events, self.by, settled)
        all_hits, all_trials = self._sums(frame, events, (), settled)
        xp = engine_of(frame).arrays
        prior = all_hits / xp.maximum(all_trials, 1)
        known = all_trials > 0
        return {self.output: ratio(frame, hits + self.smoothing * prior, (trials + self.smoothing) * known)}

    def _sums(self, frame: Frame, events: Any, by: Sequence[str], settled: Mapping[str, Frame]) -> tuple[Any, Any]:
        """int64 hits and trials before each row of `frame`, those of its own fold taken away."""
        hits, trials = self._before(frame, events, by, settled)
        if self.fold is None:
            return hits, trials
        own_hits, own_trials = self._before(frame, events, self._within(by), settled)
        return hits - own_hits, trials - own_trials

    def _within(self, by: Sequence[str]) -> tuple[str, ...]:
        """The keys and the fold, which may be one of them."""
        return tuple(dict.fromkeys((*by, str(self.fold))))

    def _before(self, frame: Frame, events: Any, by: Sequence[str], settled: Mapping[str, Frame]) -> tuple[Any, Any]:
        gone = settled.get(_question(by))
        question = AsOfJoin(frame, events, by=by, query_time=self.at, event_time=self.at, settled=gone)
        return question.sum(self.hits), question.count() if self.trials is None else question.sum(self.trials)


def _question(by: Sequence[str]) -> str:
    """The name of the question by these keys."""
    return json.dumps(list(by), allow_nan=False)
