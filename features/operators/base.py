"""The two kinds of operator that recipes and workflows are made of.

Both are written once, against the part of the pandas API that cuDF shares (`make test-cudf-api` checks it), take a
frame and return a new one; a frame that comes in is never changed. Every constructor argument is kept as an attribute
of its own name and is made of plain JSON types where a workflow is to save the operator (see `settings`).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from gigabatch.features.engines.frame import engine_of, is_own
from gigabatch.features.engines.plain_types import as_plain
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.engines.shared_memory import holds_columns_of
from gigabatch.features.errors import DataError, repeated, require_columns
from gigabatch.features.reading.tables import Reading

WIDE = 90  # columns, from which on a frame of pandas gets new ones in another way
NAMING = ("column", "output", "prefix")  # arguments that say what columns are called, and nothing of values


class Configured:
    """What both kinds share: an operator is its class and its constructor's arguments."""

    changes_rows: ClassVar[bool] = False
    """Whether `transform` may give other rows than it takes. Serving leaves such an operator out."""

    is_step: ClassVar[bool] = True
    """Whether workflows may name it; False for a class that only another operator uses."""

    reads: ClassVar[tuple[str, ...]] = ()
    """Arguments that name columns to read: one, several, the keys of a mapping, or None for no column."""

    writes: ClassVar[tuple[str, ...]] = ()
    """Arguments that name columns to add or replace: one, several, or the values of a mapping."""

    untold: ClassVar[tuple[str, ...]] = ()
    """Those of `reads` whose value in a row enters no column of another name of that row: it is read out of fold, as of
    an earlier time, or carried along."""

    tables: ClassVar[tuple[str, ...]] = ()
    """Arguments that are frames; in YAML the path of a file stands there."""

    files: ClassVar[tuple[str, ...]] = ()
    """Further arguments that may be the path of a file, which the operator reads when it is fitted."""

    reading: Reading = Reading()
    """How such a file is read; no setting of the operator, but of the recipe that holds it."""

    @classmethod
    def code_of(cls, arguments: Mapping[str, Any]) -> str:
        """What of the result follows from code that these arguments only name: its hash, else nothing."""
        return ""

    @classmethod
    def kind(cls) -> str:
        """`row-wise` or `group-wise`; of those that are fitted, `fitted`."""
        return "row-wise" if cls.group_keys is Configured.group_keys else "group-wise"

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns that must be there (to fit): those that `reads` says. Override where they follow otherwise."""
        return tuple(name for attribute in self.reads for name in _names(self._argument(attribute)))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Columns that are added or replaced: those that `writes` says. Override where they follow otherwise."""
        return self.chosen

    @property
    def chosen(self) -> tuple[str, ...]:
        """Outputs that an argument names, so that it was somebody's wish if they replace a column: those that `writes`
        says. All other outputs, whose names the operator puts together (of a prefix, a key, a word), replace none."""
        given = [self._argument(attribute) for attribute in self.writes]
        return tuple(name for item in given for name in _names(item.values() if isinstance(item, Mapping) else item))

    def require_free(self, there: Collection[str], outputs: Sequence[str]) -> None:
        """Raise `DataError` if one of the outputs has no name, or would replace a column that nobody chose, or another
        output."""
        if "" in outputs:
            raise DataError(f"{type(self).__name__}: an output has no name. Give it one, or leave `output` out.")
        found, what = [name for name in outputs if name in there and name not in self.chosen], "there already"
        if not found:
            found, what = repeated(outputs), "made more than once"
        if found:
            raise DataError(
                f"{type(self).__name__}: column {found[0]!r} would be overwritten, it is {what}. Rename the other one, "
                "or give this step other names (such as a prefix, an output or keys) to make its own from."
            )

    def _argument(self, attribute: str) -> Any:
        """The argument; `DataError` for several columns where the constructor's annotation says one."""
        value = getattr(self, attribute)
        if value is None or isinstance(value, str):
            return value
        if attribute in ("by", "on"):
            require_once(value, f"{type(self).__name__}: {attribute}")
        parameter = inspect.signature(type(self)).parameters.get(attribute)
        if parameter is not None and str(parameter.annotation) in ("str", "str | None"):
            raise DataError(f"{type(self).__name__}: {attribute} names one column, found {value!r}.")
        return value

    @property
    def group_keys(self) -> tuple[str, ...] | None:
        """Columns whose equal rows must lie in one partition; `()`: all rows must; None: any partition will do."""
        return None

    def columns_after(self, before: Sequence[str]) -> tuple[str, ...]:
        """The columns of the frame that comes out, from those that go in. Override where columns go away."""
        return tuple(dict.fromkeys((*before, *self.outputs)))

    def may_make(self, name: str) -> bool:
        """Whether a column of this name may be added or replaced; for outputs whose names follow from the fit."""
        return name in self.outputs

    def tells(self, names: Collection[str]) -> tuple[str, ...]:
        """The outputs that a row's own value of one of these columns enters, as far as they are known before the fit.

        Such an output tells the row its label where a label is among `names`. Override where outputs differ in this.
        """
        told = [attribute for attribute in self.reads if attribute not in self.untold]
        open_inputs = {name for attribute in told for name in _names(self._argument(attribute))}
        if not self.untold:
            open_inputs.update(self.inputs)
        return self.outputs if open_inputs.intersection(names) else ()

    def dates(self, names: Collection[str], times: Collection[str]) -> tuple[str, ...]:
        """What `tells` gives of times, less differences of two of the columns `times`, which say nothing of when a row
        was. Override where the step makes some."""
        return self.tells(names)

    def typed(self, dtypes: Mapping[str, str]) -> Self:
        """The step for columns of these types, as far as they are known. Override where a type says what the arguments
        leave open."""
        return self

    def types_after(self, dtypes: Mapping[str, str]) -> dict[str, str]:
        """The types that are known after the step, from those before. Override where it keeps or makes some."""
        if type(self).may_make is not Configured.may_make:
            return {name: dtype for name, dtype in dtypes.items() if not self.may_make(name)}
        made = self.outputs
        return {name: dtype for name, dtype in dtypes.items() if name not in made}

    def brought(self, dtypes: Mapping[str, str]) -> dict[str, str]:
        """Outputs that rows to be served bring themselves as raw columns, with their types, since they are made of rows
        that serving does not have; dtypes: what is known of the inputs. Override where there are some."""
        return {}

    @property
    def recurring(self) -> tuple[str, ...]:
        """Outputs whose values come round, however far those of the inputs go, such as the hour of a time."""
        return ()

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments by name, those at their default left out: `type(op)(**op.settings())` is `op`."""
        parameters = inspect.signature(type(self)).parameters.values()
        given = {item.name: getattr(self, item.name) for item in parameters}
        return {
            item.name: given[item.name]
            for item in parameters
            if item.default is item.empty or given[item.name] != item.default
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.settings().items())})"


class Operator(Configured, ABC):
    """A pure function of a partition: reads `inputs`, adds or replaces `outputs`.

    Row-wise operators may be given any partition. Group-wise ones (lag, rank, as-of statistics) need every row of a
    group in the partition that they are given; their docstring says so.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import Operator
    >>> class Paid(Operator):
    ...     reads, writes, changes_rows = ("price",), (), True
    ...     def __init__(self, price: str) -> None:
    ...         self.price = price
    ...     def transform(self, frame):
    ...         return frame[frame[self.price] > 0]
    >>> Paid("price")(pd.DataFrame({"price": [1.5, 0.0]}))
       price
    0    1.5
    """

    @abstractmethod
    def transform(self, frame: Frame) -> Frame:
        """The frame with `outputs` added or replaced, and no other column; same rows, same order, same index, unless
        `changes_rows`. A class that is not of this package is held to it, but where it changes rows, to the names."""

    def __call__(self, frame: Any) -> Any:
        """`transform` of a frame that has the inputs; an Arrow table where it is one, or of Polars."""
        if not is_own(frame):
            return of_another_library(self, frame, type(self).__name__, self.inputs)
        require_columns(frame, self.inputs, type(self).__name__)
        frame = as_plain(frame, self.inputs)
        if _is_ours(self) or type(self).transform is ColumnOperator.transform:
            return self.transform(frame)
        found = self.transform(frame.copy(deep=False))  # what it assigns must not reach the frame to compare with
        return _require_kept(self, found, frame)


class ColumnOperator(Operator):
    """An operator that adds or replaces columns and leaves the rows as they are.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import ColumnOperator
    >>> class Doubled(ColumnOperator):
    ...     reads, writes = ("column",), ("output",)
    ...     def __init__(self, column: str, output: str) -> None:
    ...         self.column, self.output = column, output
    ...     def compute(self, frame):
    ...         return {self.output: frame[self.column] * 2}
    >>> Doubled("price", "twice")(pd.DataFrame({"price": [1.5]}))
       price  twice
    0    1.5    3.0
    """

    by_value: ClassVar[bool] = False
    """Whether it reads one `column` and makes of each of its values what it would make of it alone, so that steps that
    differ in `NAMING` only may be computed as one, of their columns end to end."""

    @abstractmethod
    def compute(self, frame: Frame) -> dict[str, Column]:
        """The output columns by name: `outputs` and no other, with the frame's index, or arrays of its length. Of a
        class that is not of this package the frame holds `inputs` alone."""

    def transform(self, frame: Frame) -> Frame:
        return with_columns(frame.copy(deep=False), self._free(frame))

    def add_to(self, frame: Frame) -> Frame:
        """What a call gives, in the frame itself: of a wide one a copy at every step would cost more than the steps."""
        if type(self).transform is not ColumnOperator.transform:
            return self(frame)
        return with_columns(frame, self.made_of(frame))

    def made_of(self, frame: Frame) -> dict[str, Column]:
        """`compute` of a frame that has the columns for it, and none that must not be replaced."""
        require_columns(frame, self.inputs, type(self).__name__)
        return self._free(as_plain(frame, self.inputs))

    def _free(self, frame: Frame) -> dict[str, Column]:
        self.require_free(frame.columns, self.outputs)
        return _made(self, "compute", frame, self.inputs, self.outputs)


class FittedOperator(Configured, ABC):
    """An operator that learns from the train split first.

    fit = finish(merge(partial(p0), partial(p1), ...)); merge is associative and commutative, so that the state does
    not depend on how many partitions there are or in which order they come. What cannot be known in bounded memory
    from one pass over the partitions takes several: see `following`.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import FittedOperator
    >>> class ShareOfLargest(FittedOperator):
    ...     reads, writes = ("column",), ("output",)
    ...     def __init__(self, column: str, output: str) -> None:
    ...         self.column, self.output = column, output
    ...     def partial(self, frame):
    ...         return float(frame[self.column].max())
    ...     def merge(self, left, right):
    ...         return max(left, right)
    ...     def finish(self, partial):
    ...         return partial
    ...     def columns(self, frame, state):
    ...         return {self.output: frame[self.column] / state}
    >>> share = ShareOfLargest("price", "share")
    >>> parts = [pd.DataFrame({"price": [1.0, 4.0]}), pd.DataFrame({"price": [8.0]})]
    >>> share.apply(parts[0], share.fit(parts))
       price  share
    0    1.0  0.125
    1    4.0  0.500
    """

    @classmethod
    def kind(cls) -> str:
        return "fitted"

    @property
    def applied_inputs(self) -> tuple[str, ...]:
        """Columns that must be there to apply; override where the fit needs more, such as a label."""
        return self.inputs

    def outputs_of(self, state: Any) -> tuple[str, ...]:
        """Columns that `apply` adds or replaces; override where they follow from the fit."""
        return self.outputs

    @abstractmethod
    def partial(self, frame: Frame) -> Any:
        """What one partition contributes to the state."""

    def together(self, frame: Frame) -> tuple[Callable[[list[Any]], list[Any] | None], Any] | None:
        """A function of the engine and an argument: of a list of such arguments, its own among them, it gives a list
        of what `partial` would give, or None where an operator at a time is as fast."""
        return None

    @abstractmethod
    def merge(self, left: Any, right: Any) -> Any:
        """Two contributions as one."""

    def following(self, partial: Any) -> FittedOperator | None:
        """The operator of the next pass, given this pass's merged partial, or None where this pass was enough.

        Its `finish` gives the state of this operator, whose own `finish` is then not called. So a median over more
        rows than memory holds is a histogram first and a count inside one of its bins next.
        """
        return None

    @abstractmethod
    def finish(self, partial: Any) -> Any:
        """The state: everything `apply` needs."""

    @abstractmethod
    def columns(self, frame: Frame, state: Any) -> dict[str, Column]:
        """The output columns by name, a pure function of the partition and the state."""

    def apply(self, frame: Frame, state: Any) -> Frame:
        """The frame with the output columns added or replaced; an Arrow table where it is one, or of Polars."""
        if not is_own(frame):
            return of_another_library(lambda own: self.apply(own, state), frame, type(self).__name__, self.inputs)
        return with_columns(frame.copy(deep=False), self.made_of(frame, state))

    def train_columns(self, frame: Frame, state: Any) -> dict[str, Column]:
        """`columns` for rows that the fit saw, which have all `inputs`; override where those must not be told their own
        label."""
        return self.columns(frame, state)

    def apply_to_train(self, frame: Frame, state: Any) -> Frame:
        """`apply` for rows that the fit saw."""
        if not is_own(frame):
            return of_another_library(
                lambda own: self.apply_to_train(own, state), frame, type(self).__name__, self.inputs
            )
        return with_columns(frame.copy(deep=False), self.made_of(frame, state, train=True))

    def made_of(self, frame: Frame, state: Any, train: bool = False) -> dict[str, Column]:
        """`columns`, or `train_columns`, of a frame that has the columns for it, and none that must not be replaced."""
        require_columns(frame, self.applied_inputs, type(self).__name__)
        outputs = self.outputs_of(state)
        self.require_free(frame.columns, outputs)
        other = train and type(self).train_columns is not FittedOperator.train_columns
        method = "train_columns" if other else "columns"  # by the name of the one that is written, for errors
        return _made(self, method, as_plain(frame, self.inputs), (*self.inputs, *self.applied_inputs), outputs, state)

    def fit(self, partitions: Iterable[Frame]) -> Any:
        """The state over an iterable of partitions; `pipeline` fits many operators at once through Dask instead."""
        alone = hasattr(partitions, "__arrow_c_stream__")  # a frame in the place of a list
        if alone or not all(map(is_own, partitions := list(partitions))):
            from gigabatch.features.engines.arrow_tables import own_parts  # imports Arrow

            partitions = own_parts(partitions, type(self).__name__, "fit on", self.inputs)
        merged = None
        for frame in partitions:
            require_columns(frame, self.inputs, type(self).__name__)
            part = call(self, "partial", as_plain(frame, self.inputs), self.inputs)
            merged = part if merged is None else self.merge(merged, part)
        if merged is None:
            raise DataError(f"{type(self).__name__}: nothing to fit on, no partition was given.")
        following = self.following(merged)
        return self.finish(merged) if following is None else following.fit(partitions)


class WithinGroups:
    """Mixin, named first: needs the rows with equal `self.by` in one partition."""

    by: tuple[str, ...]

    @property
    def group_keys(self) -> tuple[str, ...]:
        return self.by


def call(operator: Configured, method: str, frame: Frame, read: Collection[str], *rest: Any) -> Any:
    """What a method of the operator gives of the frame and what else it takes.

    An operator of a user is shown those columns of `read` that are there: then it reads no label that it does not
    name, and what it assigns to its frame reaches no later step. Those of the package read what they say they do, and
    are spared the selection.
    """
    if _is_ours(operator):
        return getattr(operator, method)(frame, *rest)
    shown = [name for name in dict.fromkeys(read) if name in frame.columns]
    try:
        return getattr(operator, method)(frame[shown], *rest)
    except (KeyError, AttributeError) as error:
        hidden = [name for name in frame.columns if name not in shown and repr(name) in str(error)]
        if not hidden:
            raise
        raise DataError(
            f"{type(operator).__name__}.{method} reads column {hidden[0]!r}, which the operator does not "
            f"name as an input. Take the column's name as an argument that `reads` lists; it lists "
            f"{', '.join(map(repr, shown)) or 'none'}."
        ) from error


def _is_ours(operator: Configured) -> bool:
    return type(operator).__module__.partition(".")[0] == "gigabatch"


def _require_kept(operator: Operator, found: Any, frame: Frame) -> Any:
    """What `transform` made of the frame, on the frame's index unless it changes rows.

    Raise `DataError` unless it is a frame with the outputs and no other new column, and, where it does not change rows,
    the frame's own columns as they were. A sort shows in these, not in a plain index.
    """
    where = f"{type(operator).__name__}.transform"
    if not isinstance(found, type(frame)):
        raise DataError(f"{where} returned {'None' if found is None else type(found).__name__}, expected a frame.")
    outputs = operator.outputs
    if not operator.changes_rows:
        found = _on_own_index(found, frame)
        added = found.columns[len(frame.columns) :]
        named = len(added) == len(outputs) and set(added) == set(outputs) and found.columns.is_unique
        if named and holds_columns_of(found, frame):  # most often: spares a request to look at each column
            require_rows(found, frame, where)
            return found
    require_columns(found, outputs, f"{where}: its result")
    known = {*outputs, *operator.columns_after(tuple(frame.columns))}
    if others := [name for name in found.columns if name not in known]:
        raise DataError(
            f"{where} returned {', '.join(map(repr, others))}; the outputs that `writes` names are "
            f"{', '.join(map(repr, outputs)) or 'none'}. Return no other new column."
        )
    if operator.changes_rows:
        return found
    require_rows(found, frame, where)
    there = set(frame.columns)
    kept = [name for name in found.columns if name in there and name not in outputs]
    if found[kept].equals(frame[kept]):
        return found
    for name in kept:
        if not _same(found[name], frame[name]):
            raise DataError(
                f"{where} returned other values in column {name!r}, which is none of the outputs that `writes` "
                "names, or the rows in another order. Name it in `writes` if it is to be replaced, and leave each row "
                "at its place (`changes_rows = True` for a class that does not)."
            )
    return found


def _on_own_index(found: Any, frame: Any) -> Any:
    """The result on the frame's index where it has as many rows and a plain index, as a merge makes one."""
    if found.index is frame.index or len(found) != len(frame):
        return found
    plain = engine_of(frame).frames.RangeIndex
    if isinstance(found.index, plain) and found.index.equals(plain(len(found))) and not found.index.equals(frame.index):
        found = found.copy(deep=False)
        found.index = frame.index
    return found


def _same(found: Column, own: Column) -> bool:
    """Whether columns of one index are equal; NaN equals itself also among Arrow's floats and in its lists of them."""
    if found.equals(own):
        return True
    if found.dtype != own.dtype or not hasattr(own.dtype, "pyarrow_dtype"):
        return False
    return bool(repr(found.tolist()) == repr(own.tolist()))


def _made(
    operator: Configured,
    method: str,
    frame: Frame,
    read: Collection[str],
    outputs: Sequence[str],
    *rest: Any,
) -> dict[str, Column]:
    """The columns that `call` gives; `DataError` unless they are `outputs` and each row is at its own place."""
    found = call(operator, method, frame, read, *rest)
    where = f"{type(operator).__name__}.{method}"
    if not isinstance(found, dict):
        raise DataError(
            f"{where} returned {'None' if found is None else type(found).__name__}, expected a dict of columns."
        )
    for what, names in (
        ("returned", [name for name in found if name not in outputs]),
        ("did not return", [name for name in outputs if name not in found]),
    ):
        if names:
            raise DataError(
                f"{where} {what} {', '.join(map(repr, names))}; the outputs that `writes` names are "
                f"{', '.join(map(repr, outputs)) or 'none'}. Return just those."
            )
    found = {name: _of_one_dimension(column) for name, column in found.items()}
    for name, column in found.items():
        if (odd := _no_column(column)) is not None:
            raise DataError(
                f"{where}: {name!r} is {odd}. Return a dense column, an array of one dimension or a scalar."
            )
        require_rows(column, frame, f"{where}: {name!r}")
    return found


def _of_one_dimension(found: Any) -> Any:
    """An array of shape (n, 1), such as scikit-learn's `transform` gives, as one of n; anything else as it is."""
    alone = not is_own(found) and hasattr(found, "ravel") and getattr(found, "shape", ())[1:] == (1,)
    return found.ravel() if alone else found


def _no_column(found: Any) -> str | None:
    """What it is that can be no column of a frame, or None where it can."""
    if is_own(found):
        return "a sparse column" if str(getattr(found, "dtype", "")).startswith("Sparse") else None
    if (dimensions := getattr(found, "ndim", 1)) > 1:
        return f"an array of {dimensions} dimensions"
    return f"a {type(found).__name__}" if hasattr(found, "__next__") else None


def require_rows(found: Any, frame: Frame, where: str) -> None:
    """Raise `DataError` where a column or a frame has another index than the frame, or an array another length; a
    scalar stands for every row."""
    if is_own(found):
        # An operator passes the index on, so that its values are hardly ever compared.
        same = found.index is frame.index or found.index.equals(frame.index)
    else:
        same = isinstance(found, str | bytes) or getattr(found, "shape", None) == () or not hasattr(found, "__len__")
        same = same or len(found) == len(frame)
    if same:
        return
    if len(found) == len(frame):
        raise DataError(
            f"{where}: returned another index than that of its frame. Each row must come out at its own place; "
            "where it does, give the result the index of the frame."
        )
    raise DataError(
        f"{where}: returned {len(found)} row(s) for {len(frame)}. Each row must come out at its own place; to leave "
        "rows out use Filter, or an Operator with `changes_rows = True`."
    )


def of_another_library(change: Callable[[Any], Any], frame: Any, where: str, read: Collection[str]) -> Any:
    """What a function of a frame of pandas gives for one of another library, as an Arrow table; where: who asks; read:
    the columns that are read."""
    from gigabatch.features.engines.arrow_tables import given_back, own_frame  # imports Arrow

    return given_back(change(own_frame(frame, where, read)), frame)


def own_table(frame: Any, where: str) -> Any:
    """`own_frame` of a table that is given to an operator: a copy, which shares memory until the caller changes it.

    Dictionaries are decoded, as those of the rows are: pandas' `where` makes values of their nulls."""
    from gigabatch.features.engines.arrow_tables import own_frame  # imports Arrow

    return as_plain(own_frame(frame, where)).copy(deep=False)


def with_columns(frame: Frame, columns: Mapping[str, Any]) -> Any:
    """The frame, which may be changed for it, with these columns in the place of those of their names or behind all."""
    new = {name: column for name, column in columns.items() if name not in frame.columns}
    engine = engine_of(frame)
    wide = len(frame.columns) + len(new) > WIDE and engine.NAME == "pandas"
    if wide:  # pandas warns of a column that is inserted where there are a hundred pieces of memory
        series = engine.frames.Series
        wide = all(isinstance(column, series) and column.index.equals(frame.index) for column in new.values())
    for name, column in columns.items():
        if not wide or name not in new:
            frame[name] = column
    if not wide or not new:
        return frame
    return engine.frames.concat([frame, *(column.rename(name) for name, column in new.items())], axis=1)


def listed(names: Iterable[str], operator: str, argument: str = "by") -> tuple[str, ...]:
    """An argument that is a list of names; `DataError` for text, which would be taken for one name a letter."""
    if isinstance(names, str):
        raise DataError(f"{operator}: {argument} is a list of names, found {names!r}. Write [{names!r}].")
    return tuple(names)


def require_once(by: Collection[str], where: str) -> None:
    """Raise `DataError` where a key column is named more than once, which is hardly what was meant."""
    if twice := repeated(by):
        raise DataError(f"{where} names {twice[0]!r} more than once. Name each key column once.")


def _names(given: Any) -> tuple[str, ...]:
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


def unused(name: str, taken: Collection[str]) -> str:
    """The name, with as many `_` behind it as make it none of `taken`; for columns that no user has named."""
    while name in taken:
        name += "_"
    return name
