"""Expression: a column computed from others by a formula such as `price / maximum(nights, 1)`."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import numpy as np

from gigabatch.features.columns.numbers import float_values, tell_of_rounding
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.engines.protocols import Column, Frame
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import ColumnOperator

MAX_LENGTH = 1000  # characters
MAX_DEPTH = 100  # nested operations; a sum of n terms is n - 1 of them

ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**"}
COMPARISONS = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
# Functions of the formula and their names in NumPy and CuPy.
FUNCTIONS_OF_ONE = {
    **{name: name for name in ("sign", "sqrt", "exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tanh")},
    "abs": "absolute",
    "floor": "floor",
    "ceil": "ceil",
    "round": "rint",
}
FUNCTIONS_OF_TWO = {"minimum": "minimum", "maximum": "maximum"}
NUM_ARGUMENTS = {
    **dict.fromkeys(FUNCTIONS_OF_ONE, 1),
    **dict.fromkeys(FUNCTIONS_OF_TWO, 2),
    "clip": 3,
    "where": 3,
    "is_null": 1,
    "fill": 2,
    "col": 1,
}
ALLOWED = (
    "Allowed are numbers, True, False, columns by name, + - * / // % **, comparisons, and, or, not, and the functions "
    + ", ".join(NUM_ARGUMENTS)
)

NUMBER, CONDITION, EITHER = "number", "condition", "either"  # EITHER: a column before any frame is seen
Value = tuple[Any, str]  # a float64 array, NaN where null, and what it is; one entry stands for all rows


class Expression(ColumnOperator):
    """Compute a column from others by a formula.

    The formula is written in a small part of Python: numbers, True and False, columns by name (`col("two words")` for
    names that Python would not take), + - * / // % **, comparisons (also chained), and / or / not (or & | ~), and the
    functions abs, sign, sqrt, exp, expm1, log, log1p, log2, log10, sin, cos, tanh, floor, ceil, round (half to even);
    minimum and maximum of two, clip(x, low, high), where(condition, this, that), is_null(x), fill(x, instead). It is
    parsed, checked against this list and never run as Python.

    All is arithmetic of float64, so integers round beyond 2^53, which is logged once where digits of a column are lost;
    a condition counts as 1 or 0 in arithmetic. Null (and NaN) in gives null out everywhere, in **, comparisons, `and`
    and `or` too; only `is_null` and `fill` see nulls, and `where` heeds only the side that it takes. What has no value
    is null: division by zero, also by // and %, and 0 to a negative power; the logarithm of 0 or less; the root of a
    negative number. // and % round towards minus infinity, as in Python. What grows beyond float64 is an infinity,
    which later stages refuse by name. Row-wise.

    Parameters
    ----------
    output
        Name of the new float64 column; 1, 0 or null where the formula is a condition.
    expression
        The formula: at most 1000 characters and 100 nested operations.

    Raises
    ------
    DataError
        Anything else in the formula, a number where a condition belongs, or, when it is applied, a column that is no
        number.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.operators import Expression
    >>> frame = pd.DataFrame({"price": [90.0, 50.0], "nights": [3, 0]})
    >>> Expression("rate", "price / maximum(nights, 1)")(frame)["rate"].tolist()
    [30.0, 50.0]
    """

    reads, writes = ("_columns",), ("output",)

    def __init__(self, output: str, expression: str) -> None:
        self.output, self.expression = output, expression
        self._columns: tuple[str, ...] = ()

        def read(name: str) -> Value:
            self._columns = tuple(dict.fromkeys((*self._columns, name)))
            return np.empty(0), EITHER

        # Without rows the same walk that computes is a check of the whole formula.
        _Formula(np, read, self._where, expression).value()

    @property
    def _where(self) -> str:
        return f"Expression {self.output!r}"

    def dates(self, names: Collection[str], times: Collection[str]) -> tuple[str, ...]:
        told, tree = set(self.tells(names)), ast.parse(self.expression, mode="eval").body
        return tuple(told) if _dates(tree, set(names), set(times)) else ()

    def compute(self, frame: Frame) -> dict[str, Column]:
        engine = engine_of(frame)
        xp = engine.arrays

        def read(name: str) -> Value:
            values = xp.ascontiguousarray(float_values(frame[name], self._where))
            tell_of_rounding(frame[name], self._where, values)
            # NumPy takes other loops, with other last bits, for arrays of one entry and for strided ones.
            values = xp.repeat(values, 2) if len(values) == 1 else values
            return values, CONDITION if frame[name].dtype.kind == "b" else NUMBER

        values = _Formula(xp, read, self._where, self.expression).value()
        values = xp.broadcast_to(values, (max(len(frame), len(values)),))[: len(frame)]
        return {self.output: engine.series(xp.ascontiguousarray(values), frame, ~xp.isnan(values))}


class _Formula:
    """One walk over a parsed formula: `read` gives a column's values, `xp` is NumPy or CuPy."""

    def __init__(self, xp: Any, read: Callable[[str], Value], where: str, text: str) -> None:
        self.xp, self.read, self.where, self.text = xp, read, where, text

    def value(self) -> Any:
        """float64 array of the formula's values, NaN where null."""
        if not isinstance(self.text, str) or len(self.text) > MAX_LENGTH:
            raise DataError(f"{self.where}: a formula is text of at most {MAX_LENGTH} characters.")
        try:
            tree = ast.parse(self.text, mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            raise DataError(
                f"{self.where}: {self.text[:60]!r} cannot be read ({error}). {ALLOWED}; a column of any name is "
                "col('its name')."
            ) from error
        with np.errstate(all="ignore"):  # what is undefined becomes null
            return self._of(tree.body, 0)[0]

    def _refuse(self, node: ast.AST, why: str = "is not part of the language of formulas") -> NoReturn:
        found = ast.get_source_segment(self.text, node) or type(node).__name__
        raise DataError(f"{self.where}: {found[:60]!r} {why}. {ALLOWED}.")

    def _of(self, node: ast.expr, depth: int) -> Value:
        if depth > MAX_DEPTH:
            raise DataError(f"{self.where}: more than {MAX_DEPTH} nested operations. Split the formula into several.")
        if isinstance(node, ast.Name):
            return self.read(node.id)
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.Call):
            return self._call(node, depth + 1)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, depth + 1)
        if isinstance(node, ast.BinOp):
            return self._binary(node, depth + 1)
        if isinstance(node, ast.BoolOp):
            return self._junction(isinstance(node.op, ast.And), node.values, depth + 1)
        if isinstance(node, ast.Compare):
            return self._compare(node, depth + 1)
        return self._refuse(node)

    def _constant(self, node: ast.Constant) -> Value:
        if not isinstance(node.value, bool | int | float) or not abs(node.value) <= sys.float_info.max:
            self._refuse(node, "is no finite number")
        return self.xp.full(1, float(node.value)), CONDITION if isinstance(node.value, bool) else NUMBER

    def _number(self, node: ast.expr, depth: int) -> Any:
        return self._of(node, depth)[0]

    def _condition(self, node: ast.expr, depth: int) -> Any:
        values, kind = self._of(node, depth)
        if kind == NUMBER:
            self._refuse(node, "is a number where a condition belongs, such as x > 0 or a column of booleans")
        return values

    def _unary(self, node: ast.UnaryOp, depth: int) -> Value:
        if isinstance(node.op, ast.Not | ast.Invert):
            return 1.0 - self._condition(node.operand, depth), CONDITION
        values = self._number(node.operand, depth)
        return (-values if isinstance(node.op, ast.USub) else values), NUMBER

    def _binary(self, node: ast.BinOp, depth: int) -> Value:
        if isinstance(node.op, ast.BitAnd | ast.BitOr):
            return self._junction(isinstance(node.op, ast.BitAnd), [node.left, node.right], depth)
        if type(node.op) not in ARITHMETIC:
            self._refuse(node)
        left, right = self._number(node.left, depth), self._number(node.right, depth)
        return _arithmetic(self.xp, ARITHMETIC[type(node.op)], left, right), NUMBER

    def _junction(self, every: bool, nodes: list[ast.expr], depth: int) -> Value:
        found = self._condition(nodes[0], depth)
        for node in nodes[1:]:
            values = self._condition(node, depth)
            found = found * values if every else self._strict("maximum", found, values)
        return found, CONDITION

    def _compare(self, node: ast.Compare, depth: int) -> Value:
        found = self.xp.full(1, 1.0)
        left = self._number(node.left, depth)
        for op, operand in zip(node.ops, node.comparators, strict=True):
            if type(op) not in COMPARISONS:
                self._refuse(node)
            right = self._number(operand, depth)
            found = found * self._strict(COMPARISONS[type(op)], left, right)
            left = right
        return found, CONDITION

    def _call(self, node: ast.Call, depth: int) -> Value:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in NUM_ARGUMENTS or node.keywords:
            self._refuse(node)
        if len(node.args) != NUM_ARGUMENTS[name]:
            self._refuse(node, f"has {len(node.args)} argument(s) where {name} takes {NUM_ARGUMENTS[name]}")
        if name == "col":
            return self._column(node)
        if name == "where":
            condition = self._condition(node.args[0], depth)
            this, that = (self._of(item, depth) for item in node.args[1:])
            chosen = self.xp.where(condition != 0, this[0], that[0])
            return self.xp.where(self.xp.isnan(condition), math.nan, chosen), _common(this[1], that[1])
        if name == "fill":
            value, instead = (self._of(item, depth) for item in node.args)
            return self.xp.where(self.xp.isnan(value[0]), instead[0], value[0]), _common(value[1], instead[1])
        values = [self._number(item, depth) for item in node.args]
        if name == "is_null":
            return self.xp.isnan(values[0]).astype("float64"), CONDITION
        if name == "clip":
            return self._strict("minimum", self._strict("maximum", *values[:2]), values[2]), NUMBER
        found = self._strict((FUNCTIONS_OF_ONE | FUNCTIONS_OF_TWO)[name], *values)
        if name.startswith("log"):  # the logarithm of 0 is minus infinity in floats, here null
            found = self.xp.where(values[0] <= (-1 if name == "log1p" else 0), math.nan, found)
        return found, NUMBER

    def _column(self, node: ast.Call) -> Value:
        name = node.args[0]
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            self._refuse(node, "must name its column as text, as in col('two words')")
        return self.read(name.value)

    def _strict(self, function: str, *values: Any) -> Any:
        """float64 of NumPy's or CuPy's function, null where a value is null, which the libraries decide differently."""
        null = self.xp.isnan(values[0])
        for other in values[1:]:
            null = null | self.xp.isnan(other)
        return self.xp.where(null, math.nan, getattr(self.xp, function)(*values).astype("float64"))


def _dates(node: ast.expr, names: set[str], times: set[str]) -> bool:
    """Whether a formula changes where all `times` are later by the same, or reads another of the columns `names`."""
    weights = _linear(node)
    if weights is None:
        parts = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
        return any(_dates(part, names, times) for part in parts if isinstance(part, ast.expr))
    if not names & weights.keys():
        return False
    of_times = [weight for name, weight in weights.items() if name in times]
    return bool(names & weights.keys() - times) or abs(sum(of_times)) > 1e-9 * sum(map(abs, of_times))


def _linear(node: ast.expr) -> dict[str, float] | None:
    """Factors of the columns in a sum of multiples of them; None where a formula is none."""
    if isinstance(node, ast.Name):
        return {node.id: 1.0}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "col":
        return {str(node.args[0].value): 1.0} if isinstance(node.args[0], ast.Constant) else None
    if isinstance(node, ast.Constant):
        return {}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _times(_linear(node.operand), -1.0)
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _linear(node.left), _linear(node.right)
    if isinstance(node.op, ast.Add | ast.Sub) and left is not None and right is not None:
        sign = 1.0 if isinstance(node.op, ast.Add) else -1.0
        return {name: left.get(name, 0.0) + sign * right.get(name, 0.0) for name in left | right}
    if isinstance(node.op, ast.Mult | ast.Div) and isinstance(node.right, ast.Constant) and node.right.value:
        factor = float(node.right.value)  # type: ignore[arg-type]
        return _times(left, factor if isinstance(node.op, ast.Mult) else 1 / factor)
    if isinstance(node.op, ast.Mult) and isinstance(node.left, ast.Constant):
        return _times(right, float(node.left.value))  # type: ignore[arg-type]
    return None


def _times(weights: dict[str, float] | None, factor: float) -> dict[str, float] | None:
    return None if weights is None else {name: weight * factor for name, weight in weights.items()}


def _common(this: str, that: str) -> str:
    """What a choice between the two is."""
    if NUMBER in (this, that):
        return NUMBER
    return CONDITION if this == that == CONDITION else EITHER


def _arithmetic(xp: Any, op: str, a: Any, b: Any) -> Any:
    if op == "+":
        return a + b
    if op == "-":
        return a - b
    if op == "*":
        return a * b
    if op == "/":
        return xp.where(b == 0, math.nan, a / b)
    if op == "**":
        return xp.where(xp.isnan(a) | xp.isnan(b) | ((a == 0) & (b < 0)), math.nan, xp.power(a, b))
    return _floor_divide(xp, a, b)[0 if op == "//" else 1]


def _floor_divide(xp: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """a // b and a % b by CPython's rule (floatobject.c, _float_div_mod), from C's exact fmod; NaN for b = 0."""
    rest = xp.fmod(a, b)
    times = (a - rest) / b
    turn = (rest != 0) & ((rest < 0) != (b < 0))
    rest, times = xp.where(turn, rest + b, rest), xp.where(turn, times - 1.0, times)
    whole = xp.floor(times)
    whole = xp.where(times - whole > 0.5, whole + 1.0, whole)
    return xp.where(times == 0, xp.copysign(0.0, a / b), whole), xp.where(rest == 0, xp.copysign(0.0, b), rest)
