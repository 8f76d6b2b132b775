"""Histories: to each row of a recipe for interactions the items that its user chose before, newest last.

A list holds what was known strictly before the row's own time (`gigabatch.features.history.asof`), in its own split and
in earlier ones: a row of train never looks at one of valid or test, whatever came first. A row's list is a window of
the interactions in order of user and time, so all lists together take two binary searches a row and one copy of their
elements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gigabatch.features.columns.times import is_calendar, moments
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.history.asof import AsOfJoin
from gigabatch.features.history.sequences import last_values, last_weights
from gigabatch.features.reading.encodings import UTF8
from gigabatch.features.reading.sources import CSV_ENDINGS, file_columns
from gigabatch.features.recipes.base import HISTORY_UNTIL
from gigabatch.features.recipes.interactions.layout import Layout
from gigabatch.features.recipes.table.labels import require_filled
from gigabatch.features.schema import ListColumn
from gigabatch.features.setting_checks import TIME_UNITS, require_counts, time_span

HISTORY, WEIGHTS = "history", "history_weights"
WHERE = "interactions: history"
AT = "__at__"


@dataclass(frozen=True)
class HistorySettings:
    """Set what a row is told of its user's earlier positives: the list column `history`.

    Parameters
    ----------
    length
        The last so many are kept.
    half_life
        After which time an element weighs half: its weight is 0.5 ** (age / half_life), its age that as of the row's
        time, in the column `history_weights`. Text of a number and a unit, such as `30d` or `12h` (units d, h, min, s,
        ms, us, ns), or, where times are plain numbers, a number in their unit. None for lists without weights.
    separator
        What stands between two elements where a file to be scored holds histories as text.

    Raises
    ------
    DataError
        If the length is no whole number from 1, or the half-life is no time above 0.

    Examples
    --------
    >>> from gigabatch.features.recipes.interactions.histories import HistorySettings
    >>> HistorySettings(length=20, half_life="30d").columns
    ('history', 'history_weights')
    """

    length: int = 50
    half_life: str | float | None = None
    separator: str = "|"

    def __post_init__(self) -> None:
        require_counts(WHERE, length=self.length)
        if not isinstance(self.separator, str) or not self.separator:
            raise DataError(f"{WHERE}: separator must be text that is not empty, found {self.separator!r}.")
        if self.half_life is not None:
            time_span(self.half_life, WHERE, "half_life")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it adds."""
        return (HISTORY,) if self.half_life is None else (HISTORY, WEIGHTS)

    def column(self, layout: Layout) -> ListColumn:
        """What the schema says of it: it shares the item's vocabulary."""
        weights = None if self.half_life is None else WEIGHTS
        return ListColumn(HISTORY, layout.categorical[layout.item], layout.item, weights, self.length)

    def dtypes(self, layout: Layout) -> dict[str, str]:
        """Types of its columns in files to be scored, as `read_files` takes them."""
        return {name: f"{dtype}{self.separator}" for name, dtype in self.column(layout).dtypes().items()}

    def require_whole_ids(self, items: Any, paths: Sequence[str]) -> None:
        """Refuse text in which ids would be cut.

        Parameters
        ----------
        items
            Column of the item ids that a model knows.
        paths
            Files with histories; only those of text are looked at, by their names.

        Raises
        ------
        DataError
            If an id holds the separator; the message names the file, the id and the setting.
        """
        texts = [path for path in paths if path.endswith(CSV_ENDINGS)]
        if not texts or items.dtype.kind in "iu":
            return
        cut = items[items.str.contains(self.separator, regex=False)]
        if len(cut):
            example = engine_of(cut).to_pandas(cut.head(1).to_frame("item"))["item"].iloc[0]
            raise DataError(
                f"input {texts[0]}: {self.separator!r} stands between the elements of a history, and the item id "
                f"{example!r} holds it, so it would be cut there. Set features.history.separator to text that no id "
                "holds and write the file with it, or write lists to a Parquet file."
            )

    def half_life_of(self, layout: Layout) -> float:
        """The half-life in the unit of the layout's times.

        Raises:
            DataError: where one of them has a unit and the other has none.
        """
        number, unit = time_span(self.half_life, WHERE, "half_life")
        if unit is None:
            if layout.time_dtype == "datetime":
                raise DataError(
                    f"{WHERE}: half_life is {number:g}, and {layout.time!r} holds times of the calendar. Give a unit, "
                    f"such as {number:g}d."
                )
            return number
        if layout.time_unit is None:
            raise DataError(
                f"{WHERE}: half_life is {self.half_life}, and {layout.time!r} holds plain numbers, whose unit is not "
                "known. Give half_life as a number in that unit."
            )
        return number * TIME_UNITS[unit] / TIME_UNITS[layout.time_unit]


def require_times(time: str | None) -> None:
    """Raise `DataError` where interactions have no column of times."""
    if not time:
        raise DataError(
            f"{WHERE} needs time, the column of the times: a history holds what was before. Or leave it out."
        )


def split_histories(
    splits: Mapping[str, Any], layout: Layout, history: HistorySettings, order: str, positives: Mapping[str, Any]
) -> dict[str, Any]:
    """The splits with their rows' histories.

    splits: by name, in their order of time. positives: those rows of each that histories may hold. order: a unique
    integer column that says which of two rows of one moment comes first.
    """
    found: dict[str, Any] = {}
    seen: list[Any] = []
    for name, rows in splits.items():
        seen.append(positives[name])
        events = engine_of(rows).frames.concat(seen, ignore_index=True)
        found[name] = with_histories(rows, events, layout, history, order, rows[layout.time])
    return found


def with_histories(rows: Any, events: Any, layout: Layout, history: HistorySettings, order: str, at: Any | None) -> Any:
    """The rows with their histories.

    Parameters
    ----------
    rows
        A frame of N rows with the users.
    events
        What histories may hold: a frame with users, items, times and `order`, without nulls, in any order.
    layout
        What the columns are called.
    history
        How long a history is, and whether its elements have weights.
    order
        As of `split_histories`.
    at
        Column [N] of the rows' times, numbers in the unit of those of `events`: a history holds what was strictly
        before. None for all that is known, as of the newest event of all.

    Returns
    -------
    data frame
        The rows with `history.columns`: lists of the items' type, oldest first, and float32 lists. The elements are
        copied once; an element takes 8 bytes where items are whole numbers, 8 and its text otherwise, 4 for a weight.

    Raises
    ------
    DataError
        A half-life that does not fit the times; on cuDF more elements together than a column holds.
    """
    engine = engine_of(rows)
    half_life = None if history.half_life is None else history.half_life_of(layout)
    known, xp = engine.array(events[layout.time]), engine.arrays
    asked = None if at is None else engine.array(at)
    places, own = _in_order(xp, known, asked, len(rows))
    told = events[[layout.user, layout.item, order]].assign(**{AT: places})
    question = AsOfJoin(
        rows[[layout.user]].assign(**{AT: own}), told, by=[layout.user], query_time=AT, event_time=AT, order=order
    )
    column = history.column(layout)
    made = {HISTORY: last_values(question, history.length, told[layout.item], column.elements, rows)}
    if half_life is not None:
        now = xp.full(len(rows), known.max().item() if len(known) else 0, dtype=known.dtype) if asked is None else asked
        made[WEIGHTS] = last_weights(question, history.length, known, now, half_life, rows)
    return rows.assign(**made)


def newest_histories(users: Any, events: Any, layout: Layout, history: HistorySettings, order: str) -> Any:
    """One row of each user with the last of all that the user chose, and `HISTORY_UNTIL`: the time of the newest, or of
    the row where that is later. It may be the earlier one, as a repeat has no row.

    users, events, layout, history, order: as of `with_histories`.
    """
    found, engine = with_histories(users, events, layout, history, order, None), engine_of(users)
    both = engine.frames.concat([frame[[layout.user, layout.time]] for frame in (events, users)], ignore_index=True)
    newest = engine.array(both.groupby(layout.user)[layout.time].transform("max"))
    return found.assign(**{HISTORY_UNTIL: newest[len(events) :]})


def _in_order(xp: Any, known: Any, asked: Any | None, num_rows: int) -> tuple[Any, Any]:
    """int64 arrays that compare as the times of events and rows do; without times of rows they are after all events."""
    if asked is not None and known.dtype.kind == "i" and asked.dtype.kind == "i":
        return known, asked
    distinct, places = xp.unique(known, return_inverse=True)
    own = xp.full(num_rows, len(distinct)) if asked is None else xp.searchsorted(distinct, asked)
    return places.astype("int64"), own.astype("int64")


@dataclass(frozen=True)
class ScoredTypes:
    """What is read of files to be scored for the sake of histories. types: of these columns, as `read_files` takes
    them; looked_up: whether histories come from the interactions, for `scored_histories`."""

    types: dict[str, str]
    looked_up: bool = False


def scored_types(
    engine: str,
    paths: Sequence[str],
    columns: Collection[str],
    layout: Layout,
    history: HistorySettings | None,
    separator: str = ",",
    encoding: str = UTF8,
    names: Sequence[str] | None = None,
) -> ScoredTypes:
    """Say where the histories of rows to be scored come from: their files, where these have them, else interactions as
    of the rows' times, where the files have those.

    Parameters
    ----------
    engine, separator, encoding, names
        As of `read_files`.
    paths
        The files.
    columns
        What the model reads; nothing is read for it where histories are not among them.
    layout, history
        As of `with_histories`.

    Raises
    ------
    DataError
        Where a file has one of the columns and another has not, or histories without their weights.
    """
    types = {} if history is None else history.dtypes(layout)
    wanted = [name for name in types if name in columns]
    if not wanted:
        return ScoredTypes({})
    time = str(layout.time)
    there = {path: file_columns(engine, path, separator, encoding) if names is None else names for path in paths}
    found = {name: [path for path in paths if name in there[path]] for name in (*wanted, time)}
    for name, having in found.items():
        if having and len(having) < len(paths):
            other = next(path for path in paths if path not in having)
            raise DataError(
                f"input {other}: it has no column {name!r}, and {having[0]} has one. Give it in all files or in none."
            )
    given = [name for name in wanted if found[name]]
    if given and len(given) < len(wanted):
        lacking = next(name for name in wanted if name not in given)
        raise DataError(
            f"input {paths[0]}: it has a column {given[0]!r} and no {lacking!r}. Give both, or neither to have them "
            "looked up."
        )
    if given:
        return ScoredTypes({name: types[name] for name in wanted})
    return ScoredTypes({time: layout.time_type} if found[time] else {}, looked_up=True)


def scored_histories(
    frame: Any, pattern: str, events: Any, layout: Layout, history: HistorySettings, order: str
) -> Any:
    """Rows to be scored with their histories, as `with_histories` gives them, as of their times where they have some:
    these become numbers, as those of the interactions are.

    pattern: where the rows are from, for messages.

    Raises:
        DataError: for a null time, or dates where the interactions have numbers, or the other way round.
    """
    at = None
    if layout.time in frame.columns:
        raw = frame[layout.time]
        require_filled(raw, pattern)
        dates = layout.time_dtype == "datetime"
        if layout.time_type == "time" and is_calendar(raw) != dates:
            here, known = ("numbers", "dates") if dates else ("dates", "numbers")
            raise DataError(
                f"input {pattern}: {layout.time!r} holds {here}, and in the interactions {known}. Write times alike."
            )
        at = moments(raw)
        frame = frame.assign(**{str(layout.time): at})
    return with_histories(frame, events, layout, history, order, at)
