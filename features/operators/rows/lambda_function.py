"""LambdaFunction: a step of one's own, written in Python and known to workflows by its registered name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gigabatch.features.engines.protocols import Frame
from gigabatch.features.errors import DataError, MissingCodeError, require_columns
from gigabatch.features.operators.base import Operator, require_rows, with_columns
from gigabatch.features.operators.rows.fingerprint import function_hash
from gigabatch.own_code import Registry, came_from, code_hash, in_file, running_module


@dataclass(frozen=True, eq=False)
class Registered:
    """function: frame with the columns `inputs` -> frame with the columns `outputs`."""

    function: Callable[[Any], Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def told(self) -> tuple[Any, ...]:
        """All of it, to be compared."""
        return self.function, self.inputs, self.outputs


class Functions(Registry):
    """Registered functions by name; no package offers them by entry points."""

    def find(self, name: str) -> Registered | None:
        return self.kinds.get(name)


FUNCTIONS = Functions("function", DataError, lambda: (), lambda kind: None)


def register_function(
    name: str,
    function: Callable[[Any], Any],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    replace: bool = False,
) -> None:
    """Make a function known to the step `lambda_function: {name: ...}`, in this process; docs/own_code.md.

    The function must be pure (the same for the same rows; no global state, no random numbers), give each row from that
    row alone, and use what pandas and cuDF share, for it gets frames of either.

    Parameters
    ----------
    name
        What workflows call it.
    function
        Takes a frame of exactly the columns `inputs` and returns one of exactly the columns `outputs`, with the same
        index in the same order.
    inputs, outputs
        Lists of one or more column names.
    replace
        Whether a name that is taken is given anew, as in a notebook's cell that runs again. A file under `imports` that
        runs again, as it has changed, needs it not.

    Raises
    ------
    DataError
        The name belongs to another function and `replace` is not set, the function cannot be called, or there are no
        columns.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import Workflow, register_function
    >>> def per_hour(frame):
    ...     return pd.DataFrame({"speed": frame["km"] / frame["hours"]})
    >>> register_function("per_hour", per_hour, inputs=["km", "hours"], outputs=["speed"], replace=True)
    >>> workflow = Workflow.from_steps([{"lambda_function": {"name": "per_hour"}}])
    >>> workflow.transform(pd.DataFrame({"km": [90.0], "hours": [3.0]}))["speed"].tolist()
    [30.0]
    """
    if isinstance(inputs, str) or isinstance(outputs, str) or not inputs or not outputs:
        raise DataError(f"register_function {name!r}: inputs and outputs are lists of one or more column names.")
    if not callable(function):
        raise DataError(f"register_function {name!r}: {function!r} cannot be called.")
    found = Registered(function, tuple(inputs), tuple(outputs))
    known = FUNCTIONS.find(name)
    if not replace and known is not None and known.told != found.told:
        raise DataError(
            f"register_function {name!r}: another function has this name, {known.function!r}. Choose another, or pass "
            "replace=True."
        )
    came_from(found, running_module() or getattr(function, "__module__", None) or "__main__")
    FUNCTIONS.kinds[name] = found


class LambdaFunction(Operator):
    """Run a registered Python function as a step.

    Only the name is kept, so a workflow with this step saves as JSON; who loads it registers the function first, for
    example by importing the module that calls `register_function`. A bundle also keeps which file or module that was,
    and `load_bundle` imports it.
    What the function computes is part of a features artifact's key: its bytecode, the values and functions that it
    uses, and the code of the file that registered it. So a changed function makes the features anew.
    Row-wise, as the function promises.

    Parameters
    ----------
    name
        What the function was registered as.

    Raises
    ------
    DataError
        A name that is not registered, with what to do; a result that is no frame of the same kind, lacks declared
        columns, has others, or does not keep the index.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import LambdaFunction
    >>> from gigabatch import register_function
    >>> def per_night(frame):
    ...     return frame.assign(rate=frame["price"] / frame["nights"])[["rate"]]
    >>> register_function("per_night", per_night, inputs=["price", "nights"], outputs=["rate"], replace=True)
    >>> LambdaFunction("per_night")(pd.DataFrame({"price": [90.0], "nights": [3]}))
       price  nights  rate
    0   90.0       3  30.0
    """

    @classmethod
    def code_of(cls, arguments: Mapping[str, Any]) -> str:
        registered = cls(**arguments)._registered
        said = [function_hash(registered.function, f"LambdaFunction {arguments['name']!r}")]
        said += [code_hash(registered)] if in_file(registered) else []  # by which a bundle is held against its file
        return json.dumps([*said, registered.inputs, registered.outputs], allow_nan=False)

    def __init__(self, name: str) -> None:
        registered = FUNCTIONS.find(name)
        if registered is None:
            known = ", ".join(map(repr, sorted(FUNCTIONS.kinds))) or "none"
            raise MissingCodeError(
                f"LambdaFunction {name!r}: no function of this name is registered. Import the module that defines it "
                f"(`imports` of a configuration), or call register_function({name!r}, function, inputs=[...], "
                f"outputs=[...]) first. Known: {known}."
            )
        self.name = name
        self._registered = registered

    @property
    def inputs(self) -> tuple[str, ...]:
        return self._registered.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return self._registered.outputs

    @property
    def chosen(self) -> tuple[str, ...]:
        return self.outputs

    def transform(self, frame: Frame) -> Frame:
        where = f"LambdaFunction {self.name!r}"
        found = self._registered.function(frame[list(self.inputs)].copy())
        if not isinstance(found, type(frame)):
            raise DataError(f"{where}: must return a frame of the kind that it gets, returned {type(found).__name__}.")
        require_columns(found, self.outputs, f"{where}: its result")
        others = [name for name in found.columns if name not in self.outputs]
        if others:
            raise DataError(
                f"{where}: returned column(s) {', '.join(map(repr, others))}, which are not among the outputs "
                f"{', '.join(map(repr, self.outputs))} that it was registered with. Return only those."
            )
        require_rows(found, frame, where)
        return with_columns(frame.copy(deep=False), {name: found[name] for name in self.outputs})
