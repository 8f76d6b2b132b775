"""Rows so far: what a run of the features stage leaves to the next one, so that it computes the new rows alone.

A row is finished once every row to come lies at its own time or later: then nothing that is still to come enters its
features, which look back only. Its computed columns are kept, and of its raw ones what operators still look at
(`gigabatch.features.history.past`). Rows from the front on, the last time there is less a margin, stay open: they are
kept raw and computed again with the new ones. So rows of one moment may come in two files, and those of the margin in
any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column
from gigabatch.features.errors import DataError, require_columns
from gigabatch.features.history.asof import Once
from gigabatch.features.history.group_codes import group_codes
from gigabatch.features.history.past import NotLater, Past
from gigabatch.features.operators.base import ColumnOperator, Configured, with_columns
from gigabatch.features.operators.looking_back import LooksBack, looks_at_own_row, looks_back
from gigabatch.features.workflow.flow import place


@dataclass(frozen=True)
class RowsSoFar:
    """Hold what a run leaves to the next.

    Parameters
    ----------
    finished
        Gives the finished rows with all columns that were made, in order.
    open
        The raw rows from the front on, in order.
    pasts
        By the position of an operator, what finished rows leave to it.
    front
        The time from which rows are open; new ones must not lie before it.
    num_finished
        How many rows are finished.
    facts
        What else the recipe needs to know of the rows so far, as JSON types.
    parts
        The Parquet files of the finished rows, in order, where they are in files.
    """

    finished: Callable[[], Any]
    open: Any
    pasts: Mapping[int, Past]
    front: float | int
    num_finished: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    parts: Sequence[Path] = ()


@dataclass(frozen=True)
class FilesSoFar:
    """Hold what a run leaves to the next where a recipe keeps its rows in files of its own.

    Parameters
    ----------
    left
        What the recipe made of the folder and the facts; nothing in the folder may be written to.
    places
        Of each file that is known tonight: its place among the files of the run that left this.
    """

    left: Any
    places: Mapping[str, int]


class History(Protocol):
    """Keeps what runs leave behind; the pipeline has one (`gigabatch.pipeline.store.row_history`)."""

    def find(
        self, paths: Sequence[str], ordered: bool, others: Sequence[str] = ()
    ) -> tuple[RowsSoFar, list[str]] | None:
        """What was left by a run over some of these files, and the files that it did not have; None for nothing.

        ordered: whether new files must stand behind those that are known. others: files on whose content all rows
        depend.
        """

    def refuse(self, reason: str) -> None:
        """What `find` gave does not fit; why."""

    def keep(
        self,
        open_rows: Any,
        pasts: Mapping[int, Past],
        front: float,
        facts: Mapping[str, Any],
        made: Any,
        computed: int,
        parts: Sequence[Path] = (),
    ) -> None:
        """Keep what this run leaves, fields as of `RowsSoFar`, behind what it found, if it did not refuse that.

        made: the rows that it finished itself, or None where they are in `parts`, Parquet files in order, which nobody
        writes to any more. computed: how many rows it computed.
        """

    def find_files(
        self, paths: Sequence[str], load: Callable[[Path, Mapping[str, Any]], Any], others: Sequence[str] = ()
    ) -> FilesSoFar | None:
        """As `find`, of what `keep_files` kept. load: reads its folder, given its facts."""

    def keep_files(
        self, write: Callable[[Path], Mapping[str, Any]], front: int, finished: int, reused: int, computed: int
    ) -> None:
        """Keep what `write` puts into an empty folder, and the facts that it gives.

        front: the time from which rows are open. finished: how many rows are finished, none of which need be kept.
        reused, computed: how many rows this run found finished and how many it computed.
        """

    def share(self, source: Path, target: Path) -> Any:
        """Give a file that nobody writes to any more a second name."""


def front_of(times: Any, margin: int) -> float | int:
    """The last of the times less the margin, as Python's number."""
    last = times.max()
    return (int(last) if times.dtype.kind in "iu" else float(last)) - margin


def leading_steps(steps: Sequence[Configured], kept: Sequence[str]) -> int:
    """How many of the first steps can be carried: those whose rows look at themselves or back, and that replace none
    of the columns `kept`. 0 where none of them looks back."""
    number = 0
    for step in steps:
        if not (looks_back(step) or looks_at_own_row(step)) or set(step.outputs).intersection(kept):
            break
        number += 1
    return number if any(isinstance(step, LooksBack) for step in steps[:number]) else 0


def follow(
    steps: Sequence[Configured],
    frame: Any,
    new: Any,
    finished: Any,
    before: RowsSoFar | None,
    report: Callable[[str], None] = lambda step: None,
) -> tuple[Any, dict[int, Past]]:
    """The frame after the steps, and what its finished rows leave behind.

    Parameters
    ----------
    steps
        Operators as `leading_steps` counts them.
    frame
        The open rows of `before` and the new ones; without it, all rows.
    new
        bool array [N]: the new rows.
    finished
        bool array [N]: the rows that are finished by this run.
    before
        What earlier runs left.
    report
        Called with a word about each step when it is done.

    Raises
    ------
    NotLater
        Where a new row lies before what it would have to follow.
    """
    pasts: dict[int, Past] = {}
    once = Once()
    num_finished = int(finished.sum())
    # Mostly they are the first ones: then no row is copied.
    first = bool(finished[:num_finished].all())
    done = slice(num_finished) if first else engine_of(frame).series(finished, frame)

    def made(position: int) -> dict[str, Column]:
        """The columns of the step, from the frame that all steps of its batch are given."""
        step = steps[position]
        assert isinstance(step, ColumnOperator)
        earlier = before.pasts[position] if before is not None and isinstance(step, LooksBack) else None
        try:
            if not isinstance(step, LooksBack):
                return step.made_of(frame)
            require_columns(frame, step.inputs, type(step).__name__)
            step.require_free(frame.columns, step.outputs)
            if earlier is not None:
                step.require_later(frame, new, earlier)
            if num_finished:
                rows = frame[list(dict.fromkeys(step.inputs))][done]
                pasts[position] = step.leave(rows, earlier, finished_groups)
            elif earlier is not None:
                pasts[position] = earlier
            return step.compute_beside(frame, once) if earlier is None else step.following(frame, earlier)
        except NotLater:
            raise
        except DataError as error:
            raise DataError(f"{place(steps, position)}: {error}") from error

    def finished_groups(by: Sequence[str]) -> Any:
        """int64: the group of each finished row, as all rows number them."""
        return once(("groups", tuple(by)), lambda: group_codes(frame, frame, by, "history"))[1][finished]

    for batch in _independent(steps):
        found = engine_of(frame).map_columns(made, batch)
        if any(name in frame.columns for columns in found for name in columns):
            once = Once()  # what is there already is of a column that is replaced
        frame = with_columns(
            frame.copy(deep=False), {name: column for columns in found for name, column in columns.items()}
        )
        for position in batch:
            report(", ".join(steps[position].outputs[:2]))
    return frame, pasts


def _independent(steps: Sequence[Configured]) -> list[list[int]]:
    """Positions of neighbouring steps none of which reads or makes what another one of them makes."""
    batches: list[list[int]] = []
    made: set[str] = set()
    for position, step in enumerate(steps):
        if not batches or made.intersection((*step.inputs, *step.outputs)):
            batches.append([])
            made = set()
        batches[-1].append(position)
        made.update(step.outputs)
    return batches


def gathered(before: RowsSoFar, frame: Any) -> Any:
    """The finished rows of `before` and those of the frame, one below the other.

    Raises
    ------
    NotLater
        Where their columns or types differ, as where a column holds its first null.
    """
    earlier = before.finished()
    types = [{name: str(part[name].dtype) for name in part.columns} for part in (earlier, frame)]
    if differing := sorted({*types[0].items()} ^ {*types[1].items()}):
        raise NotLater(f"column {differing[0][0]!r} has another type than so far")
    return engine_of(frame).frames.concat([earlier, frame[list(earlier.columns)]], ignore_index=True)
