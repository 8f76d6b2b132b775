"""Lists of what was known at a time: the values of each query's last earlier events, and weights by their age."""

from __future__ import annotations

from typing import Any

from gigabatch.features.columns.lists import element_values, window_lists
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.history.asof import AsOfJoin


def last_values(question: AsOfJoin, number: int, values: Column, dtype: str, like: Frame) -> Any:
    """The values of each query's last events, a column of lists, oldest first.

    Parameters
    ----------
    question
        Of queries without `exclude_self`.
    number
        How many events at most, from 1.
    values
        Column [E], one an event of the question, without nulls.
    dtype
        Of the elements, string or int64.
    like
        Frame of the queries, whose index the lists have.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.history.asof import AsOfJoin
    >>> from gigabatch.features.history.sequences import last_values
    >>> frame = pd.DataFrame({"user": ["a", "a", "a"], "at": [10, 20, 25], "item": [7, 8, 9]})
    >>> question = AsOfJoin(frame, frame, by=["user"], query_time="at", event_time="at")
    >>> [list(row) for row in last_values(question, 2, frame["item"], "int64", frame)]
    [[], [7], [7, 8]]
    """
    first, stop = question.last_places(number)
    ordered = element_values(values, dtype).take(question.sorted_rows)
    return window_lists(lambda row, place: ordered.take(place), first, stop, dtype, like)


def last_weights(question: AsOfJoin, number: int, known: Any, now: Any, half_life: float, like: Frame) -> Any:
    """Weights of the elements of `last_values`, float32 lists: 0.5 ** ((now - known) / half_life).

    Parameters
    ----------
    question, number, like
        As of `last_values`.
    known
        Array [E]: the time of each event.
    now
        Array [Q]: the time of each query, in the same unit.
    half_life
        After which an element weighs half, in that unit.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.history.asof import AsOfJoin
    >>> from gigabatch.features.history.sequences import last_weights
    >>> frame = pd.DataFrame({"user": ["a", "a", "a"], "at": [10, 20, 30]})
    >>> question = AsOfJoin(frame, frame, by=["user"], query_time="at", event_time="at")
    >>> times = frame["at"].to_numpy()
    >>> [list(row) for row in last_weights(question, 2, times, times, 10.0, frame)]
    [[], [0.5], [0.25, 0.5]]
    """
    first, stop = question.last_places(number)
    times, xp = known[question.sorted_rows], question.xp

    def weights(row: Any, place: Any) -> Any:
        past = times[place] - now[row]  # above 0 where int64 cannot hold it, as since the least of its numbers
        return xp.exp2(xp.where(past > 0, past - 2.0**64, past) / half_life).astype("float32")

    return window_lists(weights, first, stop, "float32", like)
