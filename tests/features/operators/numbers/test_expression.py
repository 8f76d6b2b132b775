"""Expression against Python's own arithmetic row by row, and formulas that must not get through."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.numbers.expression import NUM_ARGUMENTS, Expression
from tests.examples import examples
from tests.features.row_wise import assert_row_wise

FLOATS = st.one_of(
    st.none(), st.integers(-4, 4).map(float), st.floats(-1e3, 1e3), st.sampled_from([0.0, -0.0, 1e308, -1e308, 5e-324])
)
PAIRS = st.lists(st.tuples(FLOATS, FLOATS), max_size=10)


def frame_of(pairs):
    a, b = zip(*pairs, strict=True) if pairs else ((), ())
    return pd.DataFrame({"a": pd.Series(a, dtype="float64"), "b": pd.Series(b, dtype="float64")})


def python(function, *values):
    """The value by Python, null for null in, for what Python refuses and for what is no real number."""
    if any(v is None for v in values):
        return math.nan
    try:
        found = function(*values)
    except (ZeroDivisionError, ValueError):
        return math.nan
    except OverflowError:
        return math.inf
    return math.nan if isinstance(found, complex) else float(found)


EXACT = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "-a * b": lambda a, b: -a * b,
    "a / b": lambda a, b: a / b,
    "a // b": lambda a, b: a // b,
    "a % b": lambda a, b: a % b,
    "a < b": lambda a, b: a < b,
    "a <= b": lambda a, b: a <= b,
    "a > b": lambda a, b: a > b,
    "a >= b": lambda a, b: a >= b,
    "a == b": lambda a, b: a == b,
    "a != b": lambda a, b: a != b,
    "-1 < a <= b": lambda a, b: -1 < a <= b,
    "a > 0 and not b > 0": lambda a, b: a > 0 and not b > 0,
    "a > 0 or b > 0 or a < b": lambda a, b: a > 0 or b > 0 or a < b,
    "~(a > 0) & (b > 0) | (a == b)": lambda a, b: (not a > 0 and b > 0) or a == b,
    "(a > 0) + 2 * (b > 0)": lambda a, b: (a > 0) + 2 * (b > 0),
    "minimum(a, b)": min,
    "maximum(a, b)": max,
    "clip(a, -1, 2.5) + 0 * b": lambda a, b: min(max(a, -1), 2.5) + 0 * b,
    "abs(a) + 0 * b": lambda a, b: abs(a) + 0 * b,
    "floor(a) - ceil(b)": lambda a, b: float(math.floor(a)) - float(math.ceil(b)),
    "round(a) + 0 * b": lambda a, b: round(a) + 0 * b,
    "sqrt(a) + 0 * b": lambda a, b: math.sqrt(a) + 0 * b,
    "sign(a) + 0 * b": lambda a, b: (a > 0) - (a < 0) + 0 * b,
}


@given(pairs=PAIRS)
@settings(max_examples=examples(30), deadline=None)
@pytest.mark.parametrize("formula", EXACT)
def test_exact_operations_equal_pythons_row_by_row(formula, pairs):
    found = assert_row_wise(Expression("y", formula), frame_of(pairs))["y"]
    assert found.dtype == "float64"
    np.testing.assert_array_equal(found, [python(EXACT[formula], a, b) for a, b in pairs])


def power(a, b):
    if a < 0 and b != int(b):
        raise ValueError("no real number")
    try:
        return a**b
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf


CLOSE = {
    "a ** b": power,
    "log(a) + 0 * b": lambda a, b: math.log(a) + 0 * b,
    "log1p(a) + 0 * b": lambda a, b: math.log1p(a) + 0 * b,
    "log2(a) + 0 * b": lambda a, b: math.log2(a) + 0 * b,
    "log10(a) + 0 * b": lambda a, b: math.log10(a) + 0 * b,
    "exp(a) + 0 * b": lambda a, b: math.exp(a) + 0 * b,
    "expm1(a) + 0 * b": lambda a, b: math.expm1(a) + 0 * b,
    "sin(b) + 0 * a": lambda a, b: math.sin(b) + 0 * a,
    "cos(b) + 0 * a": lambda a, b: math.cos(b) + 0 * a,
    "tanh(b) + 0 * a": lambda a, b: math.tanh(b) + 0 * a,
}
MODERATE = st.none() | st.integers(-4, 4).map(float) | st.floats(-50, 50)


@given(pairs=st.lists(st.tuples(MODERATE, MODERATE), max_size=10))
@settings(max_examples=examples(30), deadline=None)
@pytest.mark.parametrize("formula", CLOSE)
def test_other_functions_equal_pythons_within_a_few_ulp(formula, pairs):
    found = assert_row_wise(Expression("y", formula), frame_of(pairs))["y"]
    np.testing.assert_allclose(found, [python(CLOSE[formula], a, b) for a, b in pairs], rtol=2e-15, atol=1e-300)


def test_every_function_is_tried_above_or_below():
    tried = " ".join([*EXACT, *CLOSE, "where( is_null( fill( col("])
    assert all(f"{name}(" in tried for name in NUM_ARGUMENTS)


def test_where_heeds_the_side_it_takes_and_null_conditions_give_null():
    frame = frame_of([(1.0, None), (None, 2.0), (-1.0, 3.0), (None, None)])
    np.testing.assert_array_equal(Expression("y", "where(a > 0, a, b)")(frame)["y"], [1, np.nan, 3, np.nan])
    np.testing.assert_array_equal(Expression("y", "fill(a, b)")(frame)["y"], [1, 2, -1, np.nan])
    np.testing.assert_array_equal(Expression("y", "is_null(a) and not is_null(b)")(frame)["y"], [0, 1, 0, 0])
    np.testing.assert_array_equal(Expression("y", "where(is_null(b), 0, b)")(frame)["y"], [0, 2, 3, 0])


def test_columns_of_any_type_of_number_and_of_any_name():
    frame = pd.DataFrame({
        "n": np.array([1, 2], dtype="int8"), "flag": [True, False], "two words": pd.array([3, None], dtype="Int64"),
        "maybe": pd.array([True, None], dtype="boolean"), "log": np.array([0.5, 1.5], dtype="float32"),
    })  # fmt: skip
    operator = Expression("y", "where(flag, n * 100, -log) + fill(col('two words'), 0) + log")
    assert operator.inputs == ("flag", "n", "log", "two words")
    assert operator.outputs == ("y",)
    assert operator(frame)["y"].tolist() == [103.5, 0.0]
    np.testing.assert_array_equal(Expression("y", "flag or maybe")(frame)["y"], [1, np.nan])
    assert Expression("n", "n + 1")(frame)["n"].tolist() == [2, 3]
    assert Expression("one", "1")(frame)["one"].tolist() == [1, 1]
    assert Expression(**operator.settings()).settings() == operator.settings()


def test_a_column_may_bear_a_functions_name():
    assert Expression("y", "abs(abs)")(pd.DataFrame({"abs": [-2.0]}))["y"].tolist() == [2]


def test_strided_columns_give_the_same_bits_as_contiguous_ones():
    rng = np.random.default_rng(0)
    block = rng.uniform(0.1, 9, size=(1001, 3))
    strided, alone = (
        pd.DataFrame(block, columns=["a", "b", "c"]),
        pd.DataFrame({"a": block[:, 0].copy(), "b": block[:, 1]}),
    )
    operator = Expression("y", "log(a) + exp(b) ** 1.5 + a ** 2")
    np.testing.assert_array_equal(operator(strided)["y"], operator(alone)["y"])
    singles = [operator(strided.iloc[k : k + 1])["y"].iloc[0] for k in range(200)]
    np.testing.assert_array_equal(singles, operator(strided)["y"][:200])


@pytest.mark.parametrize(
    "formula",
    [
        "__import__('os').system('true')", "__import__('os')", "a.real",
        "a.__class__", "lambda: 1", "(lambda a: a)(1)", "[a]", "[x for x in a]",
        "{1: a}", "a[0]", "(b := a)", "f'{a}'", "'text'", "None", "...", "1j", "a if b else a", "print(a)", "eval('1')",
        "getattr(a, 'b')", "log(a, b)", "log()", "log(*a)", "maximum(a, b=1)", "col(a)", "col(1)", "col('a')('b')",
        "a @ b", "a << 2", "a >> 1", "a ^ b", "a is b", "a in b", "a not in b", "a and b > 0 and 1", "not 1", "~a + ~1",
        "where(1, a, b)", "where(a + b, a, b)", "a; b", "a = 1", "import os", "", "  ", "a +", "a\x00b", "await a",
        "yield a", "class", "1e999", "1" + "0" * 400, "(" * 300 + "a" + ")" * 300, "-" * 900 + "a", "+".join("a" * 400),
        "log(" * 150 + "a" + ")" * 150, "a" * 1001, "a b", "*a", "a, b", "a: int", b"a", 1, None,
    ],
)  # fmt: skip
def test_nothing_else_gets_through(formula):
    with pytest.raises(DataError, match="Expression 'y': "):
        Expression("y", formula)


@given(formula=st.text(alphabet="ab01.+-*/%()<>=!&|~ ,'\"[]{}:_\nlognotadcwhrei", max_size=60))
@settings(max_examples=examples(300), deadline=None)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_any_text_is_a_formula_or_a_data_error(formula):
    frame = pd.DataFrame({"a": [1.0, None], "b": [0.0, 2.0]})
    try:
        operator = Expression("y", formula)
    except DataError:
        return
    if set(operator.inputs) <= {"a", "b"}:
        assert operator(frame)["y"].dtype == "float64"


def test_errors_say_what_and_what_is_allowed():
    with pytest.raises(DataError, match=r"'a.real' is not part of the language.*Allowed are numbers.*maximum"):
        Expression("y", "a.real + 1")
    with pytest.raises(DataError, match=r"'a \+ 1' is a number where a condition belongs"):
        Expression("y", "where(a + 1, 1, 2)")
    with pytest.raises(DataError, match=r"has 2 argument\(s\) where log takes 1"):
        Expression("y", "log(a, 2)")
    with pytest.raises(DataError, match=r"more than 100 nested operations"):
        Expression("y", "+".join("a" * 400))
    with pytest.raises(DataError, match=r"col\('its name'\)"):
        Expression("y", "class + 1")


def test_columns_that_are_no_numbers_or_no_conditions_are_an_error():
    frame = pd.DataFrame({"a": ["x"], "n": [2]})
    with pytest.raises(DataError, match=r"Expression 'y': column 'a' is str, not a number"):
        Expression("y", "a + 1")(frame)
    with pytest.raises(DataError, match=r"Expression 'y': 'n' is a number where a condition belongs"):
        Expression("y", "where(n, 1, 2)")(frame)
    with pytest.raises(DataError, match=r"Expression: column.* 'b' not found"):
        Expression("y", "b")(frame)
