"""What a function of cuDF refuses of given arguments, found by reading its source and without running it.

The statements are followed as Python would, with the arguments at hand. Objects that need a GPU are stood for by their
class (`Stand`); what depends on their content is unknown, and a branch on it is followed both ways. A `raise` or a
`warnings.warn` that is reached is a refusal: both end our tests. Functions of cuDF, dask-cuda and RMM that are called
on the way are followed too, some levels deep.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import operator
import textwrap
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

DEPTH = 3
STEPS = 1000  # statements that are followed for one call; refusals stand near the start
FOLLOWED = ("cudf.", "dask_cuda.", "rmm.", "cupy.")
# Looks at a value's type, and needs no device.
CALLED = {
    *(getattr(pd.api.types, name) for name in dir(pd.api.types) if name.startswith("is_")),
    *(len, type, bool, str, int, float, set, list, tuple, dict, sorted, any, all, callable, frozenset),
    *(np.dtype, pd.api.types.pandas_dtype, pd.isna),
}
CALLED_BY_NAME = {"is_scalar", "is_list_like", "get_option", "is_integer", "dtype", "is_dict_like", "is_bool"}
COMPARE = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


COMPUTE = {ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.Add: operator.add,
           ast.Sub: operator.sub, ast.Mod: operator.mod}  # fmt: skip


class Refused(Exception):
    """A `raise` or a warning is reached; the message is its source."""


class _Unknown(Exception):
    """The value depends on what only a GPU holds."""


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Leave(Exception):
    """`continue` or `break`."""


class Stand:
    """An object of class `kind`, of which nothing else is known; without a kind, of any class."""

    def __init__(self, kind: type | None = None) -> None:
        self.kind = kind


UNKNOWN = Stand()


def refusal(function: Callable, args: tuple, kwargs: Mapping[str, Any]) -> str | None:
    """Why `function` refuses the arguments, None if its source shows no reason.

    Raises `TypeError` where they do not fit its signature.
    """
    bound = inspect.signature(function).bind(*args, **kwargs)
    for name, value in bound.arguments.items():
        if name in _unread(function) and _differs(value, bound.signature.parameters[name].default):
            return f"it takes {name} and never looks at it"
    try:
        _follow(function, args, dict(kwargs), DEPTH, True, [STEPS])
    except Refused as refused:
        return str(refused)
    except RecursionError:
        return None
    return None


@cache
def _unread(function: Callable) -> frozenset[str]:
    """Parameters with a default that the body never names: cuDF takes them for pandas' sake, and ignores them."""
    definition = _definition(_plain(function))
    if definition is None or definition.name in ("__init__", "__new__"):  # their metaclasses share them
        return frozenset()
    named = {node.id for inner in definition.body for node in ast.walk(inner) if isinstance(node, ast.Name)}
    parameters = inspect.signature(function).parameters.values()
    return frozenset(item.name for item in parameters if item.default is not item.empty and item.name not in named)


def _differs(value: Any, default: Any) -> bool:
    """Whether an argument asks for another than the default."""
    try:
        return value is not default and not (type(value) is type(default) and value == default)
    except Exception:
        return True


def _plain(function: Callable) -> Any:
    plain = inspect.unwrap(function)
    return getattr(plain, "__func__", plain)


def _follow(function: Callable, args: tuple, kwargs: dict[str, Any], depth: int, certain: bool, steps: list) -> Any:
    """What the call returns, or UNKNOWN."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    plain = _plain(function)
    definition = _definition(plain)
    if definition is None:
        return UNKNOWN
    arguments = dict(bound.arguments)
    if inspect.ismethod(function) and definition.args.args:
        arguments[definition.args.args[0].arg] = function.__self__
    walk = _Walk(plain, arguments, depth, certain, steps)
    try:
        walk.run(definition.body)
    except _Return as returned:
        return returned.value if walk.certain >= certain else UNKNOWN
    return None if walk.certain >= certain else UNKNOWN


@cache
def _definition(function: Any) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    node = tree.body[0]
    generator = any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node))
    return node if isinstance(node, ast.FunctionDef) and not generator else None


class _Walk:
    """One call of one function.

    certain: no branch on something unknown has returned so far. After one has, only what a known test guards is judged.
    """

    def __init__(self, function: Any, arguments: dict[str, Any], depth: int, certain: bool, steps: list) -> None:
        self.env, self.depth, self.certain, self.guarded = arguments, depth, certain, False
        self.steps = steps
        cells = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
        self.outside = {**vars(builtins), **function.__globals__, **cells}

    def run(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.steps[0] -= 1
            if self.steps[0] < 0:
                raise _Return(UNKNOWN)
            getattr(self, f"_{type(statement).__name__.lower()}", self._other)(statement)

    def _other(self, statement: ast.stmt) -> None:
        """Definitions, `del`, `pass` and the like: what they name is unknown from now on."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.env[node.id] = UNKNOWN
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            self.env[statement.name] = UNKNOWN

    def _import(self, statement: ast.stmt) -> None:
        try:
            module = ast.Module([statement], [])
            exec(compile(module, "import", "exec"), {**self.outside}, self.env)
        except Exception:
            self._other(statement)

    _importfrom = _import

    def _expr(self, statement: ast.Expr) -> None:
        self.known(statement.value)

    def _return(self, statement: ast.Return) -> None:
        raise _Return(None if statement.value is None else self.known(statement.value))

    def _raise(self, statement: ast.Raise) -> None:
        self._refuse(statement)
        raise _Return(UNKNOWN)

    def _refuse(self, node: ast.AST) -> None:
        if self.certain or self.guarded:
            raise Refused(ast.unparse(node))

    def _continue(self, statement: ast.stmt) -> None:
        raise _Leave

    _break = _continue

    def _assign(self, statement: ast.Assign) -> None:
        value = self.known(statement.value)
        for target in statement.targets:
            self._store(target, value)

    def _annassign(self, statement: ast.AnnAssign) -> None:
        if statement.value is not None:
            self._store(statement.target, self.known(statement.value))

    def _augassign(self, statement: ast.AugAssign) -> None:
        self._store(statement.target, UNKNOWN)

    def _store(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.env[target.id] = value
        elif isinstance(target, ast.Attribute):
            self.env[ast.unparse(target)] = value
        elif isinstance(target, ast.Tuple | ast.List):
            known = isinstance(value, tuple | list) and len(value) == len(target.elts)
            for position, inner in enumerate(target.elts):
                self._store(inner, value[position] if known else UNKNOWN)
        elif isinstance(target, ast.Subscript | ast.Starred) and isinstance(target.value, ast.Name):
            self.env[target.value.id] = UNKNOWN

    def _if(self, statement: ast.If) -> None:
        try:
            chosen = statement.body if self._truth(statement.test) else statement.orelse
        except _Unknown:
            self._either(statement.body, statement.orelse)
            return
        before, self.guarded = self.guarded, True
        self.run(chosen)
        self.guarded = before

    def _either(self, *branches: list[ast.stmt]) -> None:
        """Branches of which one is taken. What all refuse is refused; what they leave different is unknown."""
        before, certain, guarded = dict(self.env), self.certain, self.guarded
        left, refused, ended = [], [], []
        for branch in branches:
            self.env, self.guarded = dict(before), False
            try:
                self.run(branch)
                left.append(self.env)
            except Refused as error:
                refused.append(error)
            except (_Return, _Leave) as error:
                ended.append(error)
        self.certain, self.guarded = certain and self.certain and not (ended and left), guarded
        if not left and not ended:
            raise refused[0]
        if not left:
            raise ended[0] if len(ended) == 1 or isinstance(ended[0], _Leave) else _Return(UNKNOWN)
        self.env = left[0]
        for other in left[1:]:
            for name in {*self.env, *other}:
                if self.env.get(name, UNKNOWN) is not other.get(name, UNKNOWN):
                    self.env[name] = UNKNOWN

    def _with(self, statement: ast.With) -> None:
        for item in statement.items:
            self.known(item.context_expr)
            if item.optional_vars is not None:
                self._store(item.optional_vars, UNKNOWN)
        self.run(statement.body)

    def _try(self, statement: ast.Try) -> None:
        try:
            self.run(statement.body)
        except Refused:
            if not statement.handlers:
                raise
            for handler in statement.handlers:
                if handler.name:
                    self.env[handler.name] = UNKNOWN
            self._either(*(handler.body for handler in statement.handlers))
        self.run([*statement.orelse, *statement.finalbody])

    def _for(self, statement: ast.For) -> None:
        found = self.known(statement.iter)
        known = isinstance(found, list | tuple | dict | set | range) and len(found) < 50
        for item in found if known else [UNKNOWN]:
            self._store(statement.target, item)
            try:
                if known:
                    self.run(statement.body)
                else:
                    self._either(statement.body, [])
            except _Leave:
                continue
        self._other(statement)

    def _while(self, statement: ast.While) -> None:
        with contextlib.suppress(_Leave):
            self._either(statement.body, [])
        self._other(statement)

    def known(self, node: ast.expr) -> Any:
        try:
            return self.value(node)
        except _Unknown:
            return UNKNOWN

    def _truth(self, node: ast.expr) -> bool:
        value = self.value(node)
        if isinstance(value, Stand):
            raise _Unknown
        try:
            return bool(value)
        except Exception:
            raise _Unknown from None

    def value(self, node: ast.expr) -> Any:
        method = getattr(self, f"_value_{type(node).__name__.lower()}", None)
        if method is None:
            for inner in ast.iter_child_nodes(node):
                if isinstance(inner, ast.expr):
                    self.known(inner)
            raise _Unknown
        found = method(node)
        if found is UNKNOWN:
            raise _Unknown
        return found

    def _value_constant(self, node: ast.Constant) -> Any:
        return node.value

    def _value_name(self, node: ast.Name) -> Any:
        return self.env.get(node.id, self.outside.get(node.id, UNKNOWN))

    def _value_attribute(self, node: ast.Attribute) -> Any:
        if (text := ast.unparse(node)) in self.env:  # set in this call
            return self.env[text]
        owner = self.value(node.value)
        if isinstance(owner, types.ModuleType | type | np.dtype | str | tuple | np.generic):
            try:
                return getattr(owner, node.attr)
            except AttributeError:
                raise _Unknown from None
        if isinstance(owner, Stand) and owner.kind is not None and node.attr == "__class__":
            return owner.kind
        raise _Unknown

    def _value_namedexpr(self, node: ast.NamedExpr) -> Any:
        found = self.known(node.value)
        self._store(node.target, found)
        return found

    def _value_boolop(self, node: ast.BoolOp) -> Any:
        ends, unknown, found = isinstance(node.op, ast.Or), False, None
        for inner in node.values:
            try:
                found = self.value(inner)
                if isinstance(found, Stand):
                    raise _Unknown
                if bool(found) is ends:
                    return ends if unknown else found
            except _Unknown:
                unknown = True
            except ValueError:
                unknown = True
        if unknown:
            raise _Unknown
        return found

    def _value_unaryop(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return not self._truth(node.operand)
        if isinstance(node.op, ast.USub):
            return self._computed(operator.neg, self.value(node.operand))
        raise _Unknown

    def _value_binop(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        if type(node.op) not in COMPUTE or _stands(left) or _stands(right):
            raise _Unknown
        return self._computed(COMPUTE[type(node.op)], left, right)

    def _value_ifexp(self, node: ast.IfExp) -> Any:
        return self.value(node.body if self._truth(node.test) else node.orelse)

    def _value_compare(self, node: ast.Compare) -> bool:
        left = self.value(node.left)
        for symbol, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node)
            same = isinstance(symbol, ast.Is | ast.IsNot)
            if not same and (_stands(left) or _stands(right)):
                raise _Unknown
            if same and isinstance(left, Stand) and left is not right and isinstance(right, Stand):
                raise _Unknown
            if not self._computed(bool, self._computed(COMPARE[type(symbol)], left, right)):
                return False
            left = right
        return True

    def _computed(self, function: Callable, *args: Any) -> Any:
        try:
            return function(*args)
        except Exception:
            raise _Unknown from None

    def _sequence(self, nodes: list[ast.expr]) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                more = self.value(node.value)
                if not isinstance(more, list | tuple):
                    raise _Unknown
                found += more
            else:
                found.append(self.known(node))
        return found

    def _value_tuple(self, node: ast.Tuple) -> tuple:
        return tuple(self._sequence(node.elts))

    def _value_list(self, node: ast.List) -> list:
        return self._sequence(node.elts)

    def _value_set(self, node: ast.Set) -> set:
        return self._computed(set, self._sequence(node.elts))

    def _value_dict(self, node: ast.Dict) -> dict:
        if any(key is None for key in node.keys):
            raise _Unknown
        items = self._sequence(node.values)
        return self._computed(dict, zip([self.value(key) for key in node.keys if key], items, strict=True))

    def _value_subscript(self, node: ast.Subscript) -> Any:
        owner, key = self.value(node.value), self.value(node.slice)
        if isinstance(owner, dict | list | tuple | str) and not isinstance(key, Stand):
            return self._computed(operator.getitem, owner, key)
        raise _Unknown

    def _value_generatorexp(self, node: Any) -> list:
        loop = node.generators[0]
        items = self.value(loop.iter)
        if len(node.generators) > 1 or not isinstance(items, list | tuple | dict | set):
            raise _Unknown
        before, found = dict(self.env), []
        for item in items:
            self._store(loop.target, item)
            if all(self._truth(test) for test in loop.ifs):
                found.append(self.value(node.elt))
        self.env = before
        return found

    _value_listcomp = _value_generatorexp

    def _value_setcomp(self, node: Any) -> set:
        return self._computed(set, self._value_generatorexp(node))

    def _value_call(self, node: ast.Call) -> Any:
        text = ast.unparse(node.func)
        if text in ("warnings.warn", "warn"):
            self._refuse(node)
            return None
        args = self._sequence(node.args)
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            found = self.known(keyword.value)
            if keyword.arg is None:
                if not isinstance(found, dict):
                    raise _Unknown
                kwargs |= found
            else:
                kwargs[keyword.arg] = found
        if text in ("isinstance", "issubclass", "hasattr"):
            return self._type_question(text, args)
        function = self._callee(node.func)
        if isinstance(function, tuple):  # a method and what it belongs to
            owner, function = function
            return self._deeper(function, (owner, *args), kwargs)
        name = getattr(function, "__name__", "")
        plain = isinstance(getattr(function, "__self__", None), str) or function in CALLED
        if plain or (callable(function) and (name in CALLED_BY_NAME or name.startswith("is_"))):
            if any(map(_stands, (*args, *kwargs.values()))):
                raise _Unknown
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                if name == "dtype":  # cuDF has no such type
                    raise Refused(str(error)) from None
                raise _Unknown from None
            except Exception:
                raise _Unknown from None
        return self._deeper(function, tuple(args), kwargs)

    def _callee(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Attribute):
            if ast.unparse(node.value) == "super()":
                owner, here = next(iter(self.env.values()), None), self.outside.get("__class__")
                kind = owner.kind if isinstance(owner, Stand) else None
                if kind is None or here not in kind.__mro__:
                    raise _Unknown
                above = kind.__mro__[kind.__mro__.index(here) + 1 :]
                found = next((vars(base)[node.attr] for base in above if node.attr in vars(base)), None)
                if not inspect.isfunction(inspect.unwrap(found) if callable(found) else found):
                    raise _Unknown
                return owner, found
            owner = self.known(node.value)
            if isinstance(owner, Stand):
                if owner.kind is None:
                    raise _Unknown
                found = inspect.getattr_static(owner.kind, node.attr, None)
                if isinstance(found, staticmethod | classmethod):
                    return getattr(owner.kind, node.attr)
                if not callable(found):
                    raise _Unknown
                return owner, found
        return self.value(node)

    def _deeper(self, function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if inspect.isclass(function):
            if function.__module__.startswith(FOLLOWED) and "__init__" in vars(function):
                self._deeper(function.__init__, (Stand(function), *args), kwargs)
            return Stand(function)
        if not str(getattr(function, "__module__", "")).startswith(FOLLOWED) or not self.depth:
            raise _Unknown
        try:
            return _follow(function, args, kwargs, self.depth - 1, self.certain, self.steps)
        except (TypeError, ValueError):  # a compiled function, or arguments that were only partly known
            raise _Unknown from None

    def _type_question(self, text: str, args: list[Any]) -> bool:
        one, other = args
        if other is UNKNOWN or one is UNKNOWN:
            raise _Unknown
        if not isinstance(one, Stand):
            function = {"isinstance": isinstance, "issubclass": issubclass, "hasattr": hasattr}[text]
            return self._computed(function, one, other)
        if one.kind is None:
            raise _Unknown
        return self._computed(hasattr if text == "hasattr" else issubclass, one.kind, other)


def _stands(value: Any) -> bool:
    """Whether the value, or one that it holds, is not known."""
    if isinstance(value, dict):
        return any(map(_stands, value.values()))
    return isinstance(value, Stand) or (isinstance(value, list | tuple | set) and any(map(_stands, value)))
