"""The two kinds of operator that recipes and workflows are made of.

Both are written once, against the part of the pandas API that cuDF shares (`make test-cudf-api` checks it), take a
frame and return a new one; a frame that comes in is never changed. Every constructor argument is kept as an attribute
of its own name and is made of plain JSON types where a workflow is to save the operator (see `settings`).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any

from features.errors import DataError, require_columns


class Configured:
    """What both kinds share: an operator is its class and its constructor's arguments."""

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments by name, those at their default left out: `type(op)(**op.settings())` is `op`."""
        parameters = inspect.signature(type(self)).parameters.values()
        given = {item.name: getattr(self, item.name) for item in parameters}
        return {item.name: given[item.name] for item in parameters if given[item.name] != item.default}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.settings().items())})"


class Operator(Configured, ABC):
    """A pure function of a partition: reads `inputs`, adds or replaces `outputs`.

    Row-wise operators may be given any partition. Group-wise ones (lag, rank, as-of statistics) need every row of a
    group in the partition that they are given; their docstring says so.
    """

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """Columns that must be there."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """Columns that are added or replaced."""

    @abstractmethod
    def transform(self, frame: Any) -> Any:
        """The frame with `outputs` added; same rows, same order, same index, unless the docstring says otherwise."""

    def __call__(self, frame: Any) -> Any:
        require_columns(frame, self.inputs, type(self).__name__)
        return self.transform(frame)


class FittedOperator(Configured, ABC):
    """An operator that learns from the train split first.

    fit = finish(merge(partial(p0), partial(p1), ...)); merge is associative and commutative, so that the state does
    not depend on how many partitions there are or in which order they come. What cannot be known in bounded memory
    from one pass over the partitions takes several: see `following`.
    """

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """Columns that must be there."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """Columns that are added or replaced."""

    @abstractmethod
    def partial(self, frame: Any) -> Any:
        """What one partition contributes to the state."""

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
    def columns(self, frame: Any, state: Any) -> dict[str, Any]:
        """The output columns by name, a pure function of the partition and the state."""

    def apply(self, frame: Any, state: Any) -> Any:
        """The frame with the output columns added or replaced."""
        require_columns(frame, self.inputs, type(self).__name__)
        return frame.assign(**self.columns(frame, state))

    def fit(self, partitions: Any) -> Any:
        """The state over an iterable of partitions; `pipeline` fits many operators at once through Dask instead."""
        partitions = list(partitions)
        merged = None
        for frame in partitions:
            require_columns(frame, self.inputs, type(self).__name__)
            part = self.partial(frame)
            merged = part if merged is None else self.merge(merged, part)
        if merged is None:
            raise DataError(f"{type(self).__name__}: nothing to fit on, no partition was given.")
        following = self.following(merged)
        return self.finish(merged) if following is None else following.fit(partitions)
