"""Workflow: operators one after the other, fitted together, saved without pickle, served without labels.

    workflow = Workflow([FillMissing("price"), Log("price", "log_price"), Categorify("city")], labels=["clicked"])
    workflow.fit(parts).save(folder)
    Workflow.load(folder).serving().transform(rows)

Steps find each other by column names: a step reads what an earlier one made, or else a column of the table.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from gigabatch.features.columns.lists import is_list_type
from gigabatch.features.columns.numbers import float_values, whole_values
from gigabatch.features.columns.stacking import stacked
from gigabatch.features.columns.time_types import is_time_type, time_type
from gigabatch.features.engines.arrow_tables import given_back, listed_parts, own_frame, own_parts
from gigabatch.features.engines.frame import counted_rows, engine_of, is_own, load_engine
from gigabatch.features.engines.plain_types import as_plain
from gigabatch.features.errors import DataError, MissingCodeError, raise_of_system, require_columns, strict_json
from gigabatch.features.history.past import NotLater, Past
from gigabatch.features.operators import operator_class, operator_name
from gigabatch.features.operators.base import ColumnOperator, Configured, FittedOperator, Operator, listed, with_columns
from gigabatch.features.operators.looking_back import LooksBack, looks_back
from gigabatch.features.operators.numbers.parse_duration import ParseDuration
from gigabatch.features.operators.numbers.parse_number import ParseNumber
from gigabatch.features.operators.rows.rename import Rename
from gigabatch.features.reading.sources import cast
from gigabatch.features.reading.tables import Reading
from gigabatch.features.workflow.drawing import to_mermaid
from gigabatch.features.workflow.failed_fit import keeps_last_fit
from gigabatch.features.workflow.fit import fit_together, read_part
from gigabatch.features.workflow.flow import (
    after,
    alike,
    dependencies,
    first_group_wise,
    makes_by_pattern,
    needed_for,
    place,
    raw_inputs,
    require_free,
    require_inputs,
    require_untold,
    side_by_side,
    to_apply,
    to_fit,
)
from gigabatch.features.workflow.state import StateReader, StateWriter, check_state, difference
from gigabatch.features.workflow.steps import READING, make_operator, parse_steps, to_steps

log = logging.getLogger(__name__)
FORMAT = 1
ROW = "row_number"  # of the recipes table and interactions: the row's place in the files
MOST_NULL = 0.5  # share of a history that a step finds nothing for, and still not for rows behind it
DTYPES = ("int32", "int64", "float32", "float64", "string", "bool", "datetime")


class Workflow:
    """Apply operators one after the other: fitted together, saved without pickle, served without labels.

    Steps find each other by column names: a step reads what an earlier one made, or else a column of the table.

    Parameters
    ----------
    steps
        The operators, in order.
    labels
        Columns that rows to be served do not have. A step may change them or choose rows by them; what it makes under
        another name must not tell a row its own label.
    dtypes
        Types of raw columns, each one of `DTYPES` or of lists or times (`time_type`), for `typed`.
    outputs
        The columns that `transform` gives; None for every column.

    Attributes
    ----------
    states
        What was fitted, by the position of the step.
    inputs
        Raw columns that `fit` needs.

    Raises
    ------
    DataError
            If a step reads a column that an earlier one drops or renames, would overwrite a label by a name that it
            puts together, or makes a column that tells a row its own label (only encodings out of fold or as of a row's
            time do not), or a type is unknown.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import Workflow
    >>> workflow = Workflow.from_steps([{"fill_missing": {"column": "price"}}, {"min_max": {"column": "price"}}])
    >>> workflow
    Workflow([FillMissing(column='price'), MinMax(column='price', output='price')])
    >>> workflow.fit([pd.DataFrame({"price": [0.0, 2.0, 4.0]})]).transform(pd.DataFrame({"price": [1.0, None]}))
       price  price_na
    0   0.25       0.0
    1   0.50       0.0
    """

    def __init__(
        self,
        steps: Sequence[Configured],
        labels: Iterable[str] = (),
        dtypes: Mapping[str, str] | None = None,
        outputs: Iterable[str] | None = None,
    ) -> None:
        self.labels, self.dtypes = listed(labels, "workflow", "labels"), dict(dtypes or {})
        self.steps = _typed_steps(steps, self.dtypes)
        self.outputs = None if outputs is None else listed(outputs, "workflow", "outputs")
        self.states: dict[int, Any] = {}
        self._applied: tuple[Any, tuple[str, ...]] | None = None
        self._alike: tuple[Any, list[list[int]] | None] | None = None
        self._served = False
        require_free(self.steps, self.labels)
        require_untold(self.steps, self.labels)
        self.inputs = raw_inputs(self.steps)
        """Columns that `fit` needs."""

    @classmethod
    def from_steps(
        cls, steps: Any, labels: Iterable[str] = (), engine: str = "pandas", reading: Reading = READING
    ) -> Workflow:
        """Make a workflow from a list of steps as written in YAML; see `gigabatch.features.workflow.steps`.

        Parameters
        ----------
        steps
            A list of mappings, each of one operator's name to its arguments.
        labels
            As of the class.
        engine
            Library of arguments that are tables, `pandas` or `cudf`.
        reading
            How files that arguments name are read.

        Raises
        ------
        DataError
            If a step is misspelt or misses an argument; the message names it by its number.
        """
        return cls(parse_steps(steps, engine, reading), labels)

    def to_steps(self) -> list[dict[str, dict[str, Any]]]:
        """The list that `from_steps` reads."""
        return to_steps(self.steps)

    def check(self, columns: Iterable[str]) -> None:
        """Raise `DataError`, naming the step, if one reads a column that is not among these and no step makes, or would
        overwrite one that is there by a name that it puts together."""
        columns = tuple(columns)
        require_inputs(self.steps, columns)
        require_free(self.steps, columns)

    def columns_after(self, columns: Iterable[str]) -> tuple[str, ...]:
        """The columns that are there after the steps, from those before, as far as they are known before the fit."""
        there = dict.fromkeys(columns)
        for step in self.steps:
            there = after(step, there)
        return tuple(there)

    @property
    def fitted(self) -> bool:
        return all(k in self.states for k, step in enumerate(self.steps) if isinstance(step, FittedOperator))

    @property
    def applied_inputs(self) -> tuple[str, ...]:
        """Columns that `transform` needs: no label that is read only to fit."""
        made = [self.made(position) for position in range(len(self.steps))]
        if self._applied is None or self._applied[0] != (made, self.fitted):  # costs more than some steps
            passed = [name for name in self.outputs or () if not any(name in names for names in made)]
            raw = raw_inputs(self.steps, to_apply, made if self.fitted else None)
            self._applied = (made, self.fitted), tuple(dict.fromkeys((*raw, *passed)))
        return self._applied[1]

    @property
    def of_others(self) -> tuple[str, ...]:
        """Those of `applied_inputs` that steps read of other rows alone: a row's own value may be unknown."""
        readers: dict[str, list[Configured]] = {}
        for step in self.steps:
            for name in to_apply(step):
                readers.setdefault(name, []).append(step)
        wanted = set(self.outputs or ())
        return tuple(
            name
            for name in self.applied_inputs
            if name in readers and name not in wanted
            and all(step.group_keys is not None and not step.tells({name}) for step in readers[name])
        )  # fmt: skip

    def raw_columns_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """`applied_inputs`, and the names that no step makes: the raw columns that `names` follow from."""
        made = {name for position in range(len(self.steps)) for name in self.made(position)}
        return tuple(dict.fromkeys((*self.applied_inputs, *(name for name in names if name not in made))))

    def raw_of(self, name: str) -> tuple[str, ...]:
        """The raw columns that the column is made of, in the end; itself where no step makes it."""
        wanted = {name: None}
        for position in reversed(range(len(self.steps))):
            step, made = self.steps[position], wanted.keys() & set(self.made(position))
            if not made:
                continue
            wanted = {column: None for column in wanted if column not in made}
            reads = to_apply(step)
            own = [column for column in reads if made.intersection(step.tells({column}))]
            wanted |= dict.fromkeys(own or reads)
        return tuple(wanted)

    def made(self, position: int) -> tuple[str, ...]:
        """Columns that the step makes; as far as they are known, before the fit."""
        step = self.steps[position]
        if isinstance(step, FittedOperator) and position in self.states:
            return step.outputs_of(self.states[position])
        return step.outputs

    def makes(self, name: str) -> bool:
        """Whether a step adds or replaces the column, or may, where that follows from its fit."""
        return name in self._sure or any(step.may_make(name) for step in self.steps if makes_by_pattern(step))

    @cached_property
    def _sure(self) -> frozenset[str]:
        """Columns that the steps name as their outputs."""
        return frozenset(name for step in self.steps if not makes_by_pattern(step) for name in step.outputs)

    def told_by(self, name: str, times: Collection[str] = ()) -> set[str]:
        """The raw column and every column that its value in a row enters, in the end: no history, no part that comes
        round, no difference of two of the raw columns `times`."""
        told, times = {name}, set(times)
        for position, step in enumerate(self.steps):
            if step.group_keys is not None:
                continue
            made = self.made(position)
            items = step.dates(told, times) if times else step.tells(told)
            tells = {output for item in items for output in (made if item.endswith("*") else (item,))}
            times.difference_update(made)
            gone = set(told).difference(step.columns_after(tuple(told)))
            told = told.difference(made, gone).union(tells.difference(step.recurring))
        return told

    def earlier(self, name: str) -> set[str]:
        """Columns that steps which look back make of the raw column, or of what it enters, in earlier rows alone."""
        told, found = self.told_by(name), set[str]()
        for position, step in enumerate(self.steps):
            if looks_back(step) and (told | found).intersection(to_apply(step)) and not step.tells(told):
                found.update(self.made(position))
        return found - told

    @keeps_last_fit
    def fit(self, parts: Iterable[Any], scheduler: Any = "threads") -> Workflow:
        """Learn from the train split, in as few passes over it as the steps' dependence on each other allows.

        Parameters
        ----------
        parts
            Data frames of any library that `gigabatch.fit` takes, or Parquet paths paired with an engine as
            `(engine, path)`; each is one partition, and the state does not depend on where they are cut. Where a fit
            needs group-wise steps, several partitions are gathered into one frame, so that groups are whole. Of a file
            only the columns that are needed are read.
        scheduler
            Where the passes are computed, as Dask's `compute` takes it; `gigabatch.features.workflow.fit.threads(n)`
            holds n partitions at once, the default one a core.

        Returns
        -------
        Workflow
            This one, fitted.

        Raises
        ------
        DataError
            If there is no partition or a column is missing, or from a step, which is then named; what was fitted before
            stays.

        Examples
        --------
        >>> import pandas as pd
        >>> from gigabatch import Workflow
        >>> parts = [pd.DataFrame({"price": [0.0, 2.0]}), pd.DataFrame({"price": [8.0]})]
        >>> Workflow.from_steps([{"min_max": {"column": "price"}}]).fit(parts).states[0]
        Range(low=0.0, high=8.0)
        """
        parts = own_parts(parts, "workflow", "fit on", self._names_read)
        for part in parts:
            self._require_inputs(part)
        self.states, self._served = {}, False
        self._fit(range(len(self.steps)), parts, scheduler)
        return self

    def _require_inputs(self, part: Any) -> None:
        if not isinstance(part, tuple):
            require_columns(part, self.inputs, "workflow")
            return
        there = load_engine(part[0]).parquet_columns(part[1])
        if missing := [name for name in self.inputs if name not in there]:
            raise DataError.missing_columns(missing, there, f"workflow: {part[1]}")

    def _fit(self, positions: range, parts: Sequence[Any], scheduler: Any) -> None:
        """Fit the steps at these positions from partitions that went through all before them."""
        before = dependencies(self.steps)
        waiting = [k for k in positions if isinstance(self.steps[k], FittedOperator)]
        while waiting:
            ready = [k for k in waiting if not before[k].intersection(waiting)]
            needed = [k for k in positions if k in set(ready).union(*(before[k] for k in ready))]
            columns = {name for k in needed for name in to_fit(self.steps[k])}
            if len(parts) > 1 and any(self.steps[k].group_keys is not None for k in needed):
                parts = [_gathered([read_part(part, self._names_read) for part in parts])]
            self.states |= fit_together(
                {k: self._fitted_step(k) for k in ready},
                parts,
                lambda frame: self._seen_by(ready, needed, frame),  # noqa: B023
                lambda frames, k: frames[k],
                lambda part, inputs: as_plain(read_part(part, columns), inputs),  # noqa: B023
                scheduler=scheduler,
            )
            waiting = [k for k in waiting if k not in self.states]
        require_free(self.steps, (*self.inputs, *self.labels), [self.made(k) for k in range(len(self.steps))])

    def _own(self, frame: Any, where: str) -> Any:
        return own_frame(frame, where, self._names_read, self.outputs)

    @cached_property
    def _names_read(self) -> set[str]:
        """Every name that a step reads, whether of a raw column or of one that an earlier step makes."""
        return {name for step in self.steps for name in to_fit(step)}

    def _fitted_step(self, position: int) -> FittedOperator:
        step = self.steps[position]
        assert isinstance(step, FittedOperator)
        return step

    def _seen_by(self, ready: Sequence[int], needed: Sequence[int], frame: Any) -> dict[int, Any]:
        """The frame that each step that is to be fitted sees."""
        seen = {}
        for position in needed:
            if position in ready:
                step = self.steps[position]
                with self._named(position, frame):
                    require_columns(frame, step.inputs, type(step).__name__)
                seen[position] = frame
            else:
                frame = self._apply(position, frame, train=True)
        return seen

    def _apply(self, position: int, frame: Any, train: bool, own: bool = False) -> Any:
        """The frame after a step. own: whether the frame is nobody else's, and may be changed."""
        step = self.steps[position]
        with self._named(position, frame):
            if own and isinstance(step, ColumnOperator):
                return step.add_to(frame)
            if isinstance(step, FittedOperator):
                return (step.apply_to_train if train else step.apply)(frame, self.states[position])
            assert isinstance(step, Operator)
            return step(frame)

    def _apply_beside(self, positions: Sequence[int], frame: Any, train: bool) -> Any:
        """The frame, which is nobody else's, after steps that `side_by_side` puts together. Their columns enter it at
        once: to insert one at a time into a wide frame takes longer than to compute it."""
        found: dict[str, Any] = {}
        for position in positions:
            step = self.steps[position]
            with self._named(position, frame):
                if isinstance(step, FittedOperator):
                    found |= step.made_of(frame, self.states[position], train)
                else:
                    assert isinstance(step, ColumnOperator)
                    found |= step.made_of(frame)
        return with_columns(frame, found)

    @contextmanager
    def _named(self, position: int, frame: Any) -> Iterator[None]:
        """Within the block errors name the step, and one that made no column of what it learnt, if that is missing."""
        try:
            yield
        except DataError as error:
            hint = self._unmade(self.steps[position].inputs, frame, position)
            raise DataError(f"{place(self.steps, position)}: {error}{hint}") from error
        except Exception as error:
            error.add_note(f"in {place(self.steps, position)} of the workflow: {self.steps[position]!r}")
            raise

    def _unmade(self, names: Iterable[str], frame: Any, stop: int) -> str:
        """What is said of a missing column that a step before `stop` makes where its fit gives cause to."""
        for name in names:
            for k in range(stop) if name not in frame.columns else ():
                if makes_by_pattern(self.steps[k]) and self.steps[k].may_make(name):
                    return (
                        f" Columns of {place(self.steps, k)} are named after what the rows of its fit hold, and "
                        f"none of them makes {name!r}."
                    )
        return ""

    def _ungiven(self, frame: Any) -> str:
        """What is said of missing columns that a user's file lacks: labels of the future, and what the recipe makes."""
        missing = [name for name in self.applied_inputs if name not in frame.columns]
        labels = ", ".join(f"{name}=None" for name in missing if name in self.labels)
        hint = f" Of rows whose label is not known yet it is null: rows.assign({labels})." if labels else ""
        if ROW in missing:
            hint += f" The recipe makes {ROW!r}: number the rows of the history, and those of the frame after them."
        return hint

    def _require_applied(self, frame: Any, where: str) -> None:
        """Raise `DataError` where the frame lacks a column of `applied_inputs`."""
        try:
            require_columns(frame, self.applied_inputs, where)
        except DataError as error:
            hint = self._unmade(self.applied_inputs, frame, len(self.steps)) + self._ungiven(frame)
            raise DataError(f"{error}{hint}") from error

    @contextmanager
    def _forms_named(self) -> Iterator[None]:
        """Within the block an error about times that are still as a declared form writes them names the form."""
        try:
            yield
        except DataError as error:
            for name, dtype in self.dtypes.items():
                if time_type(dtype) is not None and f"time column {name!r}: neither" in str(error):
                    raise DataError(
                        f"workflow: time column {name!r} is declared {dtype}, and steps take it as microseconds. Give "
                        "transform(workflow.typed(rows)), and history alike, or predict_raw the rows."
                    ) from error
            raise

    def transform(self, frame: Any, *, history: Any = None, whole_groups: bool = False) -> Any:
        """Apply every step to a frame.

        Parameters
        ----------
        frame
            Rows with the columns `applied_inputs`, of the types that `typed` gives raw ones: of pandas, cuDF or Polars,
            or an Arrow table.
        history
            For workflows with group-wise steps: the earlier rows of these groups, as raw as `frame` and with the same
            columns. Such steps see both, and the rows of `frame` come back. A label that is read as of an earlier time
            may be null in `frame`.
        whole_groups
            Says that `frame` itself holds every row of its groups, so that group-wise steps need no history.

        Returns
        -------
        data frame
            The frame after the steps; only `outputs` where those were named. The one that was given is unchanged. Of
            Polars' frames and Arrow tables an Arrow table is made (`polars.from_arrow`).

        Raises
        ------
        DataError
            If it is not fitted or a column is missing; if a step is group-wise and neither `history` nor
            `whole_groups` is given, since a part of a group would get other numbers than the group in a batch; or from
            a step, which is then named.

        Examples
        --------
        >>> import pandas as pd
        >>> from gigabatch import Workflow
        >>> train = pd.DataFrame({"price": [0.0, 4.0]})
        >>> Workflow.from_steps([{"min_max": {"column": "price"}}]).fit([train]).transform(train)["price"].tolist()
        [0.0, 1.0]

        A count of earlier visits needs the earlier visits:

        >>> count = {"by": ["user"], "time": "at", "column": "at", "window": 9, "statistic": "count", "output": "n"}
        >>> workflow = Workflow.from_steps([{"rolling": count}])
        >>> seen = pd.DataFrame({"user": ["a", "a"], "at": [1, 3]})
        >>> workflow.transform(pd.DataFrame({"user": ["a"], "at": [5]}), history=seen)["n"].tolist()
        [2]
        """
        self._require_fitted()
        given, frame = frame, self._own(frame, "workflow")
        self._require_applied(frame, "workflow")
        positions = range(len(self.steps))
        if history is None:
            self._require_whole(whole_groups)
            with self._forms_named():
                return given_back(self._chosen(self._through(positions, [frame], [False])[0]), given)
        history = self._own(history, "workflow's history")
        self._require_applied(history, "workflow's history")
        changing = [k for k in positions if self.steps[k].group_keys is not None and self.steps[k].changes_rows]
        if changing:
            raise DataError(
                f"{place(self.steps, changing[0])}: makes one row of several, so history cannot be told from new rows. "
                "Give both as one frame, with whole_groups=True."
            )
        with self._forms_named():
            return given_back(self._chosen(self._through(positions, [history, frame], [False, False])[-1]), given)

    @property
    def needs_history(self) -> bool:
        """Whether a step looks at other rows than its own."""
        return first_group_wise(self.steps) is not None

    def following(self, frame: Any, history: Any) -> Any:
        """`transform` of rows to be predicted, which come after those of `history`; of both, as `typed` gives them.

        A label that steps read is null in rows of `frame` where it is not known yet. Steps that leave rows out do so in
        `history` alone.

        Raises
        ------
        DataError
            As `transform`; where a row lies before the last one of `history` that it would have been seen by, so that
            it may be among them; where a step would look at a label that is not known yet, or leave a row of `frame`
            out.
        """
        self._require_fitted()
        for rows, where in ((frame, "workflow"), (history, "workflow's history")):
            self._require_applied(rows, where)
        frames, times = [history, frame], set[str]()
        for position, step in enumerate(self.steps):
            if step.changes_rows:
                self._require_kept(position, frames[1])
                frames[0] = self._apply(position, frames[0], train=False)
                continue
            if isinstance(step, LooksBack) and len(frames[0]):
                try:
                    step.require_later(frames[1], *_finished(step, frames))
                except NotLater as error:
                    raise DataError(
                        f"{place(self.steps, position)}: a row to be predicted lies before the end of the history "
                        f"({error}). Give the rows before it alone as history, and no row twice."
                    ) from error
                if step.asks_at not in {ROW, *times}:
                    times.add(step.asks_at)
                    self._warn_of_gap(step.asks_at, *frames)
            try:
                frames = self._through(range(position, position + 1), frames, [False, False])
            except DataError as error:
                if not isinstance(step, LooksBack):
                    raise
                raise DataError(
                    f"{error} (Of history and rows to be predicted together: no row may be in both.)"
                ) from error
            if isinstance(step, LooksBack):
                self._warn_of_nothing(position, *frames)
        self._require_known(frame, history)
        return self._chosen(frames[-1])

    def _warn_of_gap(self, name: str, history: Any, rows: Any) -> None:
        """Warn where the rows begin later after the history than ever two neighbours of its times `name` lie apart."""
        times = engine_of(history).arrays.unique(whole_values(history[name], "history"))
        if len(times) < 3 or not len(rows):
            return
        usual = int((times[1:] - times[:-1]).max())
        gap = int(whole_values(rows[name], "workflow").min()) - int(times[-1])
        if gap > usual:
            dated = is_time_type(self.dtypes.get(name, ""))
            told = [str(timedelta(microseconds=span)) if dated else f"{span:,}" for span in (gap, usual)]
            log.warning(
                "the history ends %s before the first row to be predicted, by %r, and its own times lie at most %s "
                "apart. What lies between is missing to features that look back: append it, or give it as history.",
                told[0], name, told[1],
            )  # fmt: skip

    def _warn_of_nothing(self, position: int, history: Any, rows: Any) -> None:
        """Warn where a step finds nothing for any of the rows, of groups that the history holds, though it does for
        most of the history: their times may be of another zone."""
        to_pandas, keys = engine_of(rows).to_pandas, list(self.steps[position].group_keys or ())
        for name in self.made(position):
            share = float(history[name].isna().mean()) if len(history) and len(rows) else 1.0
            if share >= MOST_NULL or not bool(rows[name].isna().all()):
                continue
            if keys and not len(to_pandas(rows[keys]).merge(to_pandas(history[keys]).drop_duplicates())):
                continue
            log.warning(
                "%r is null in all rows to be predicted, and in %.0f %% of the history: it finds nothing of the "
                "history for them. Look whether times, and their zones, are those of the history, and what of it is "
                "missing.", name, 100 * share,
            )  # fmt: skip

    def _require_kept(self, position: int, frame: Any) -> None:
        """Raise `DataError` where a step leaves rows of the frame out or adds some, unless it does so by a label."""
        step = self.steps[position]
        if set(self.labels).intersection(to_apply(step)):
            return  # which rows to be predicted do not have
        if (number := len(self._apply(position, frame, train=False))) != len(frame):
            raise DataError(
                f"{place(self.steps, position)}: makes {number} rows of {len(frame)} to be predicted, as it changed "
                "rows in training: the model knows none like them. Leave out what it leaves out."
            )

    def _require_known(self, frame: Any, history: Any) -> None:
        """Raise `DataError` where what a row of the frame is given depends on what is not known of another one: a row
        that is given other columns where a label that is null, or a column of which nothing is known, was another."""
        labels = [name for name in self.labels if name in self.applied_inputs and bool(frame[name].isna().any())]
        columns = [name for name in self.of_others if name not in self.labels and bool(frame[name].isna().all())]
        columns = [name for name in columns if name not in self._may_be_null and bool(history[name].notna().any())]
        if not (labels or columns) or len(frame) < 2:
            return
        guesses = {name: _around(frame, name) for name in labels} | {name: _two_of(history[name]) for name in columns}
        found = []
        positions = [k for k, step in enumerate(self.steps) if not step.changes_rows]
        for which in (None, 0, 1):
            told = {name: frame[name].astype("float64") for name in labels}
            if which is not None:
                told = {name: told[name].where(frame[name].notna(), guesses[name][which]) for name in labels}
                told |= {name: _repeated(guesses[name][which], frame) for name in columns}
            rows, made = frame.assign(**told), dict[tuple[int, str], Any]()
            for k in positions:
                (rows,) = self._through([k], [rows], [False])
                if self.steps[k].group_keys is not None:  # as it is before a later step replaces it
                    made |= {
                        (k, name): engine_of(rows).to_pandas(rows[[name]])[name].map(repr) for name in self.made(k)
                    }
            found.append(made)
        before, low, high = found
        differs = {place: (before[place] != low[place]) | (low[place] != high[place]) for place in low}
        differs = {place: rows for place, rows in differs.items() if bool(rows.any())}
        if differs:
            number, names = int((sum(differs.values()) > 0).sum()), dict.fromkeys(name for _, name in differs)
            raise DataError(
                f"{number} of {len(frame)} rows to be predicted look at what is not known yet of others of them (of "
                f"{', '.join(map(repr, guesses))}): {', '.join(map(repr, names))}. Predict one time after the other, "
                "with the labels of the earlier ones, or their predictions, in the history; or train features that "
                "reach back as far as rows are predicted ahead (docs/forecasting.md)."
            )

    @property
    def _may_be_null(self) -> set[str]:
        """Columns in which a null says that something has not happened yet."""
        return {name for step in self.steps if isinstance(step, LooksBack) for name in step.null_until_happened}

    def of_few_rows(self, columns: Mapping[str, Any]) -> dict[str, Any] | None:
        """What `transform` gives of a few rows, whose time goes by the number of calls and not by what they compute.

        Each step is given the columns that it reads alone, and steps that are alike but for the names of columns
        (`ColumnOperator.by_value`) are applied as one, to their columns end to end.

        Parameters
        ----------
        columns
            Raw columns by name, each with the same index: all of `applied_inputs`.

        Returns
        -------
        dict of columns
            The given ones, and over them what the steps make; a type that may hold nulls may stand for one that may
            not. None where a step does more than add columns.

        Raises
        ------
        DataError
            As `transform`, where the step that is named may be one that is like the one that failed.

        Examples
        --------
        >>> import pandas as pd
        >>> from gigabatch import Workflow
        >>> workflow = Workflow.from_steps([{"clean_text": {"column": name}} for name in ("city", "street")])
        >>> row = pd.DataFrame({"city": [" Oslo"], "street": ["Gata "]})
        >>> made = workflow.fit([row]).of_few_rows(dict(row.items()))
        >>> {name: column.tolist() for name, column in made.items()}
        {'city': ['Oslo'], 'street': ['Gata']}
        """
        self._require_fitted()
        made = [self.made(position) for position in range(len(self.steps))]
        if self._alike is None or self._alike[0] != made:
            self._alike = made, alike(self.steps, made)
        groups, found = self._alike[1], dict(columns)
        if groups is None:
            return None
        for group in groups:
            for positions in _of_one_type(group, [self.steps[k] for k in group], found):
                found |= self._together(positions, made, found)
        return found

    def _together(
        self, positions: Sequence[int], made: Sequence[tuple[str, ...]], columns: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What steps that are alike make, each of its own column; or one step of those that it reads."""
        first, read = positions[0], to_apply(self.steps[positions[0]])
        if len(positions) == 1:
            out = self._apply(first, _frame({name: columns[name] for name in read}), train=False)
            return {name: out[name] for name in made[first]}
        own = [columns[name] for k in positions for name in self.steps[k].inputs]
        ends = engine_of(own[0]).frames.concat(own, ignore_index=True)
        out = self._apply(first, _frame({read[0]: ends}), train=False)
        found = {}
        for number, k in enumerate(positions):
            for name, source in zip(made[k], made[first], strict=True):
                part = found[name] = out[source].iloc[number * len(own[0]) : (number + 1) * len(own[0])]
                part.index = own[0].index
        return found

    def transform_train(self, frame: Any, *, whole_groups: bool = False) -> Any:
        """Apply every step to rows that the fit saw: an encoding of the label leaves a row's own label out.

        Parameters
        ----------
        frame
            Rows with the columns `inputs`, labels among them.
        whole_groups
            As for `transform`. Partitions that hold parts of groups are for `fit_transform`.

        Returns
        -------
        data frame
            As `transform` gives.

        Raises
        ------
        DataError
            As `transform`; of what `serving` gave, which lacks steps that make what only train rows need.

        Examples
        --------
        The mean label of a city, for a row from the rows of other folds alone:

        >>> import pandas as pd
        >>> from gigabatch import Workflow
        >>> arguments = {"by": ["city"], "targets": ["late"], "fold_key": "day", "smoothing": 0.0, "num_folds": 2}
        >>> workflow = Workflow.from_steps([{"folded_target_encoding": arguments}], labels=["late"])
        >>> train = pd.DataFrame({"city": ["Oslo"] * 4, "day": [1, 1, 2, 2], "late": [0, 0, 1, 1]})
        >>> workflow.fit([train]).transform(train)["late_encoded_by_city"].tolist()
        [0.5, 0.5, 0.5, 0.5]
        >>> workflow.transform_train(train)["late_encoded_by_city"].tolist()
        [1.0, 1.0, 0.0, 0.0]
        """
        self._require_fitted()
        if self._served:
            raise DataError(
                "workflow: was cut to what serving needs, and a train row needs more to leave its own label out. Call "
                "transform_train of the workflow that serving() was called of."
            )
        given, frame = frame, self._own(frame, "workflow")
        require_columns(frame, self.inputs, "workflow")
        self._require_whole(whole_groups)
        return given_back(self._chosen(self._through(range(len(self.steps)), [frame], [True])[0]), given)

    def _require_whole(self, whole_groups: bool) -> None:
        position = first_group_wise(self.steps)
        if position is not None and not whole_groups:
            raise DataError(
                f"{place(self.steps, position)}: needs every row of a group, and nothing says that the frame holds "
                "them. Give the earlier rows as history=..., or whole_groups=True if these are all."
            )

    def _through(
        self, positions: Sequence[int], frames: list[Any], train: Sequence[bool], gather: bool = True
    ) -> list[Any]:
        """The frames after these steps. They are parts of one table: group-wise steps see the rows of all.

        train: for each frame, whether the fit saw its rows. gather: whether a group-wise step that changes the rows
        makes one frame of all; else it sees each alone.
        """
        frames = [frame.copy(deep=False) for frame in frames]
        made = [self.made(position) for position in range(len(self.steps))]
        for k, *more in side_by_side(self.steps, made, positions):
            step = self.steps[k]
            if more:
                frames = [
                    self._apply_beside((k, *more), frame, seen) for frame, seen in zip(frames, train, strict=True)
                ]
            elif len(frames) > 1 and step.group_keys is not None and not step.changes_rows:
                frames = self._over_all(k, frames, train)
            elif len(frames) > 1 and step.group_keys is not None and gather:
                frames, train = [self._apply(k, _gathered(frames), all(train))], [all(train)]
            else:
                frames = [self._apply(k, frame, seen, own=True) for frame, seen in zip(frames, train, strict=True)]
        return frames

    def _over_all(self, position: int, frames: Sequence[Any], train: Sequence[bool]) -> list[Any]:
        """Each frame with the columns that a group-wise step makes from the rows of all of them; train: for each,
        whether the fit saw its rows."""
        step = self.steps[position]
        seen = [isinstance(step, FittedOperator) and own for own in train]
        read = list(dict.fromkeys(to_fit(step) if any(seen) else to_apply(step)))
        rows = _gathered([frame[read] for frame in frames], step.group_keys or ())
        made = {own: self._apply(position, rows, own) for own in set(seen)}
        found, start = [], 0
        for frame, own in zip(frames, seen, strict=True):
            part = made[own].iloc[start : start + len(frame)]
            start += len(frame)
            part.index = frame.index
            found.append(with_columns(frame.copy(deep=False), {name: part[name] for name in self.made(position)}))
        return found

    def _chosen(self, frame: Any) -> Any:
        """The frame's `outputs`, where those were named."""
        if self.outputs is None:
            return frame
        require_columns(frame, self.outputs, "workflow's outputs")
        return frame[list(self.outputs)]

    @keeps_last_fit
    def fit_transform(self, parts: Iterable[Any], scheduler: Any = "threads") -> list[Any]:
        """Call `fit`, then what `transform_train` gives for all partitions together, cut where they were cut.

        Parameters
        ----------
        parts, scheduler
            As for `fit`.

        Returns
        -------
        list of data frames
            One a partition, or a single one where a step makes one row of a group's.

        Examples
        --------
        >>> import pandas as pd
        >>> from gigabatch import Workflow
        >>> parts = [pd.DataFrame({"price": [0.0, 2.0]}), pd.DataFrame({"price": [8.0]})]
        >>> found = Workflow.from_steps([{"min_max": {"column": "price"}}]).fit_transform(parts)
        >>> [part["price"].tolist() for part in found]
        [[0.0, 0.25], [1.0]]
        """
        given = listed_parts(parts, "workflow", "fit on")
        parts = own_parts(given, "workflow", "fit on", self._names_read, self.outputs)
        self.fit(parts, scheduler)
        frames = self._through(range(len(self.steps)), [read_part(part) for part in parts], [True] * len(parts))
        others = [part for part in given if not isinstance(part, tuple) and not is_own(part)]
        return [given_back(self._chosen(frame), others[0]) if others else self._chosen(frame) for frame in frames]

    @keeps_last_fit
    def fit_transform_splits(
        self, splits: Mapping[str, Any], done: int = 0, weight: str | None = None
    ) -> dict[str, Any]:
        """Fit on the split `train`, and transform it and the others, whose rows see each other's history.

        Parameters
        ----------
        splits
            Frames of one table by name, `train` among them. A group-wise step sees the rows of all of them, so that
            what was known before a row's time is the same whatever split it fell in; one that changes the rows sees
            each split alone.
        done
            How many of the first steps the frames have been through already; none of them is fitted.
        weight
            Column of the rows' weights: nothing is fitted to a row of weight 0, which is history to others all the
            same. None where all rows count.

        Returns
        -------
        dict of data frames
            The splits by name, `train` as `transform_train` gives it, the others as `transform` does.

        Raises
        ------
        DataError
            As `fit` and `transform`.

        Examples
        --------
        >>> import pandas as pd
        >>> from gigabatch import Workflow
        >>> count = {"by": ["user"], "time": "at", "column": "at", "window": 9, "statistic": "count", "output": "n"}
        >>> splits = {"train": pd.DataFrame({"user": ["a", "a"], "at": [1, 3]}),
        ...           "test": pd.DataFrame({"user": ["a"], "at": [5]})}
        >>> Workflow.from_steps([{"rolling": count}]).fit_transform_splits(splits)["test"]["n"].tolist()
        [2]
        """
        names, frames = list(splits), [self._own(frame, "workflow") for frame in splits.values()]
        train = [name == "train" for name in names]
        for frame in frames if done == 0 else ():
            self._require_inputs(frame)
        self.states, self._served, start = {}, False, done
        while start < len(self.steps):
            # Steps between group-wise ones are fitted together; a group-wise one sees every split before they go on.
            ahead = first_group_wise(self.steps[start:])
            stop = len(self.steps) if ahead is None else start + max(ahead, 1)
            self._fit(range(start, stop), [counted_rows(frames[names.index("train")], weight)], "threads")
            frames = self._through(range(start, stop), frames, train, gather=False)
            start = stop
        found = zip(names, map(self._chosen, frames), strict=True)
        return {name: given_back(frame, splits[name]) for name, frame in found}

    def typed(self, frame: Any) -> Any:
        """The frame with raw columns cast to `dtypes`, so that a frame from elsewhere cannot lie.

        A time of type `datetime` may come as ISO 8601 text, a timestamp of any unit and zone, or whole microseconds;
        one of a format or unit as what that says, or a timestamp.
        """
        inputs = self.applied_inputs
        known = {name: dtype for name, dtype in self.dtypes.items() if name in inputs}
        given, frame = frame, own_frame(frame, "workflow", self._names_read.union(known), self.outputs)
        self._require_applied(frame, "workflow")
        return given_back(cast(frame, known, "workflow", set(known), self.decimal_marks), given)

    @property
    def decimal_marks(self) -> dict[str, str]:
        """By raw text column that `parse_number` reads, renamed or cleaned or not: the decimal sign of its text.

        A float given in place of such a text is written with it, else 158.412 would be read as 158,412."""
        found: dict[str, set[str]] = {}
        origins: dict[str, str | None] = {}  # raw columns of those that steps make of one text alone
        for position, step in enumerate(self.steps):
            if isinstance(step, ParseNumber) and (raw := origins.get(step.column, step.column)) is not None:
                found.setdefault(raw, set()).add(step.decimal)
            of_one_text = isinstance(step, Rename) or (isinstance(step, ColumnOperator) and step.by_value)
            sources = {new: origins.get(name, name) for name in step.inputs for new in step.tells({name})}
            origins |= {name: sources.get(name) if of_one_text else None for name in self.made(position)}
        alone = {name: next(iter(marks)) for name, marks in found.items() if len(marks) == 1}
        return {name: mark for name, mark in alone.items() if mark != "."}

    @property
    def numbers_in_text(self) -> dict[str, tuple[ColumnOperator, ...]]:
        """By raw column the steps, up to the first `parse_number` or `parse_duration`, that make numbers of its values
        alone and in all rows."""
        found: dict[str, tuple[ColumnOperator, ...]] = {}
        ways: dict[str, tuple[str, tuple[ColumnOperator, ...]] | None] = {}  # None: made of more than one raw column
        for position, step in enumerate(self.steps):
            if step.changes_rows:  # it may leave out what is no number
                break
            sources: dict[str, tuple[str, tuple[ColumnOperator, ...]]] = {}
            alone = isinstance(step, ColumnOperator) and step.by_value and len(step.outputs) == 1
            for name in step.inputs if alone or isinstance(step, Rename) else ():
                if (way := ways.get(name, (name, ()))) is not None:
                    longer = (*way[1], step) if isinstance(step, ColumnOperator) else way[1]
                    sources |= dict.fromkeys(step.tells({name}), (way[0], longer))
            ways |= {name: sources.get(name) for name in self.made(position)}
            if isinstance(step, ParseNumber | ParseDuration) and (way := ways[step.output]) is not None:
                found.setdefault(*way)
        return found

    def texts_read(self, outputs: Collection[str]) -> set[str]:
        """Those raw columns of `numbers_in_text` whose text enters more than these numbers: a step reads it that makes
        no number of it, or it is one of `outputs` in the end."""
        chains, read = self.numbers_in_text, set()
        texts: dict[str, str | None] = {name: name for name in chains}  # by column, the raw one whose text it holds
        for position, step in enumerate(self.steps):
            sources: dict[str, str] = {}
            for name in step.inputs:
                raw = texts.get(name)
                if raw is None or isinstance(step, ParseNumber | ParseDuration):
                    continue
                if isinstance(step, Rename) or any(step is link for link in chains[raw]):
                    sources |= dict.fromkeys(step.tells({name}), raw)
                else:
                    read.add(raw)
            texts |= {name: sources.get(name) for name in self.made(position)}
        return read.union(raw for name in outputs if (raw := texts.get(name)) is not None)

    def serving(self, outputs: Iterable[str] | None = None, history: bool = False) -> Workflow:
        """Keep the steps that make the output columns for rows without labels, as a workflow of its own.

        Parameters
        ----------
        outputs
            Columns to make, steps' or raw ones; by default every column that a step makes and that is no label. Steps
            that change the rows are left out.
        history
            Whether earlier rows are given too, with their labels: then steps that look back are kept, for `following`,
            and before them those that leave rows out.

        Raises
        ------
        DataError
            If an output needs a label of its row, a step that changes the rows, or one that looks at other rows; with
            `history`, at others than earlier ones. The message names the step.
        """
        self._require_fitted()
        wanted = self._own_columns() if outputs is None else listed(outputs, "workflow", "outputs")
        made = [self.made(position) for position in range(len(self.steps))]
        kept, raw = needed_for(self.steps, made, wanted, self.labels, history)
        chosen = Workflow(
            [self.steps[position] for position in kept],
            self.labels,
            {name: dtype for name, dtype in self.dtypes.items() if name in raw},
            self.outputs if outputs is None else wanted,
        )
        chosen.states = {new: self.states[old] for new, old in enumerate(kept) if old in self.states}
        chosen._served = True
        return chosen

    def _own_columns(self) -> tuple[str, ...]:
        """Columns that steps make and that are there in the end, without the labels."""
        columns: tuple[str, ...] = self.inputs
        made: dict[str, None] = {}
        for position, step in enumerate(self.steps):
            columns = tuple(dict.fromkeys((*step.columns_after(columns), *self.made(position))))
            made |= dict.fromkeys(self.made(position))
        return tuple(name for name in made if name in columns and name not in self.labels)

    def _require_fitted(self) -> None:
        if not self.fitted:
            raise DataError("workflow: not fitted. Call fit with the train split, or load a saved one.")

    def to_mermaid(self) -> str:
        """The graph with what was fitted as Mermaid text, which Jupyter, GitHub and docs draw."""
        return to_mermaid(self.steps, self.states, self.labels)

    def _repr_markdown_(self) -> str:
        return f"```mermaid\n{self.to_mermaid()}```"

    def __repr__(self) -> str:
        return f"Workflow([{', '.join(map(repr, self.steps))}])"

    def save(self, folder: str | Path) -> None:
        """Write steps and states to a folder, without pickle.

        Parameters
        ----------
        folder
            Where `workflow.json` and one Parquet file for each table in a state or among the arguments go; made if it
            is not there.

        Raises
        ------
        DataError
            If it is not fitted, or a step holds what is neither JSON nor a table, or what a folder cannot keep as it
            is; the message names the step.

        Examples
        --------
        >>> import tempfile
        >>> import pandas as pd
        >>> from gigabatch import Workflow
        >>> train = pd.DataFrame({"price": [0.0, 4.0]})
        >>> workflow = Workflow.from_steps([{"min_max": {"column": "price"}}]).fit([train])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     workflow.save(folder)
        ...     Workflow.load(folder).transform(train)["price"].tolist()
        [0.0, 1.0]
        """
        self._require_fitted()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        writer = StateWriter(folder)
        steps = []
        for position, step in enumerate(self.steps):
            label = f"step-{position + 1:03d}"
            name = operator_name(type(step))
            try:
                settings = {
                    key: writer.encode(value, label, plain=key not in type(step).tables)
                    for key, value in step.settings().items()
                }
                entry = {"operator": name, "settings": settings}
                if position in self.states:
                    entry["state"] = writer.encode(self.states[position], label)
                if not type(step).__module__.startswith("gigabatch."):
                    _require_kept(writer, label, step, entry, self.states.get(position))
            except DataError as error:
                raise DataError(
                    f"step {position + 1} ({name}) cannot be saved: {error} docs/own_code.md says what can be."
                ) from error
            steps.append(entry)
        content = {
            "format": FORMAT,
            "labels": list(self.labels),
            "dtypes": self.dtypes,
            "outputs": None if self.outputs is None else list(self.outputs),
            "steps": steps,
            "files": writer.files,
            **({"served": True} if self._served else {}),
        }
        (folder / "workflow.json").write_text(
            json.dumps(content | {"sha256": _checksum(content)}, indent=1, allow_nan=False)
        )

    @classmethod
    def load(cls, folder: str | Path, engine: str = "pandas") -> Workflow:
        """Read what `save` wrote; see there for an example.

        Parameters
        ----------
        folder
            The folder that was given to `save`.
        engine
            Library of the frames to be transformed, `pandas` or `cudf`.

        Returns
        -------
        Workflow
            One that gives the same bits as the one that was saved.

        Raises
        ------
        DataError
            If the folder is damaged, was changed after it was written, or is of another format; if it names an operator
            or a function of a user whose file was not imported. No code is run that the folder names.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise DataError(f"workflow {folder}: there is no such folder. Give the one that `save` was given.")
        try:
            return cls._read(folder, engine)
        except MissingCodeError as error:
            raise MissingCodeError(f"workflow {folder}: {error} Import your own code first.") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
            raise_of_system(error, f"workflow {folder}")
            reason = error if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
            raise DataError(f"workflow {folder}: damaged ({reason}). Run the features stage again.") from error

    @classmethod
    def _read(cls, folder: Path, engine: str) -> Workflow:
        content = strict_json((folder / "workflow.json").read_text(), "workflow.json")
        known = {"format", "labels", "dtypes", "outputs", "steps", "files", "sha256"}
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            found = content.get("format") if isinstance(content, dict) else type(content).__name__
            raise DataError(f"format {found!r}, this version reads {FORMAT}")
        if set(content) - {"served"} != known:
            raise DataError(f"expected the fields {', '.join(sorted(known))}, found {', '.join(sorted(content))}")
        if content.pop("sha256") != _checksum(content):
            raise DataError("workflow.json was changed after it was written: its checksum differs")
        reader = StateReader(folder, content["files"], engine)
        read = [_read_step(reader, number, entry) for number, entry in enumerate(_list(content["steps"]), 1)]
        outputs = None if content["outputs"] is None else _names(content["outputs"])
        dtypes = dict(zip(_names(list(content["dtypes"])), _names(list(content["dtypes"].values())), strict=True))
        found = cls([step for step, _ in read], _names(content["labels"]), dtypes, outputs)
        found.states = {k: state[0] for k, (_, state) in enumerate(read) if state}
        found._served = "served" in content
        found._require_fitted()
        return found


def _typed_steps(steps: Sequence[Configured], dtypes: Mapping[str, str]) -> tuple[Configured, ...]:
    """The steps, each told the types of its columns as far as they are known."""
    unknown = [
        dtype for dtype in dtypes.values()
        if dtype not in DTYPES and not is_list_type(dtype) and time_type(dtype) is None
    ]  # fmt: skip
    if unknown:
        raise DataError(f"workflow: unknown type {unknown[0]!r} of a column. Known: {', '.join(DTYPES)}.")
    found = []
    for number, step in enumerate(steps, 1):
        if not isinstance(step, Configured):
            is_function = callable(step) and not isinstance(step, type)
            hint = " Register it (register_function), and name it: LambdaFunction('name')." if is_function else ""
            raise DataError(
                f"workflow: step {number} is no operator, such as Categorify('city'); found {step!r}.{hint}"
            )
        step.inputs  # noqa: B018 - an argument that cannot name a column is refused by the step's name
        found.append(step.typed(dtypes))
        dtypes = step.types_after(dtypes)
    return tuple(found)


def _read_step(reader: StateReader, number: int, entry: Any) -> tuple[Configured, list[Any]]:
    """The operator and its state, a list of one, or of none for an operator without a state."""
    if not isinstance(entry, dict) or not isinstance(entry.get("operator"), str):
        raise DataError(f"step {number}: expected an operator with settings")
    try:
        kind = operator_class(entry["operator"])
        fields = {"operator", "settings", *(["state"] if issubclass(kind, FittedOperator) else [])}
        if set(entry) != fields:
            raise DataError(f"expected the fields {', '.join(sorted(fields))}, found {', '.join(sorted(entry))}.")
        step = make_operator(kind, {k: reader.decode(v, kind) for k, v in entry["settings"].items()}, engine=None)
        if not isinstance(step, FittedOperator):
            return step, []
        state = reader.decode(entry["state"], kind)
        check_state(step, state)
        return step, [state]
    except DataError as error:
        kind_of_error = MissingCodeError if isinstance(error, MissingCodeError) else DataError
        raise kind_of_error(f"step {number} ({entry['operator']}): {error}") from error


def _require_kept(writer: StateWriter, label: str, step: Configured, entry: Mapping[str, Any], state: Any) -> None:
    """Raise `DataError` where a step of a user would not come back as it is: it would be trained by one state and
    served by another."""
    files = {name: known for name, known in writer.files.items() if name.startswith(label)}
    reader = StateReader(writer.folder, files, writer.library)
    kept = {f"its {name}": (step.settings()[name], entry["settings"][name]) for name in type(step).tables}
    if "state" in entry:
        kept["its state"] = (state, entry["state"])
    for where, (value, encoded) in kept.items():
        try:
            found = reader.decode(json.loads(json.dumps(encoded, allow_nan=False)), type(step))
            if where == "its state":
                check_state(step, found)
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
            raise DataError(f"{where} could not be read again: {error}") from error
        if text := difference(value, found, where):
            raise DataError(f"{text}.")


def _around(frame: Any, name: str) -> tuple[float, float]:
    """Two values for what is not known of a column, one of which no known one hides from a minimum or a maximum."""
    values = engine_of(frame).to_host(float_values(frame[name], "workflow"))
    known = values[values == values]
    low, high = float(known.min(initial=0.0)), float(known.max(initial=1.0))
    return 2.0 * low, 2.0 * high if high > 1 else high


def _two_of(column: Any) -> tuple[Any, Any]:
    """The first value of a column that holds one, and the first other one, each as a column of one row."""
    known = column[column.notna()]
    others = known[known != known.iloc[0]]
    return known.iloc[:1], (others if len(others) else known).iloc[:1]


def _repeated(value: Any, frame: Any) -> Any:
    """A column of one row as one of the frame's rows."""
    found = value.take([0] * len(frame))
    found.index = frame.index
    return found


def _finished(step: LooksBack, frames: Sequence[Any]) -> tuple[Any, Past]:
    """What `require_later` takes beside new rows, frames[1], to compare them with those of frames[0]."""
    history, rows = frames
    until = int(whole_values(history[step.asks_at], type(step).__name__).max())
    new = engine_of(rows).arrays.ones(len(rows), dtype=bool)
    return new, Past(history[list(dict.fromkeys(step.inputs))], until=until)


def _frame(columns: Mapping[str, Any]) -> Any:
    """Columns with the same index as a frame."""
    return engine_of(next(iter(columns.values()))).frames.DataFrame(dict(columns))


def _of_one_type(group: Sequence[int], steps: Sequence[Configured], columns: Mapping[str, Any]) -> list[list[int]]:
    """The positions of steps that are alike, those together whose column is of the same type."""
    if len(group) == 1:
        return [list(group)]
    found: dict[str, list[int]] = {}
    for position, step in zip(group, steps, strict=True):
        found.setdefault(str(columns[step.inputs[0]].dtype), []).append(position)
    return list(found.values())


def _gathered(parts: Sequence[Any], keys: Collection[str] = ()) -> Any:
    return stacked([read_part(part) for part in parts], "workflow", keys)


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    ).hexdigest()


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"expected a list, found {type(value).__name__}")
    return value


def _names(value: Any) -> list[str]:
    if not all(isinstance(name, str) for name in _list(value)):
        raise DataError("expected a list of names")
    return value
