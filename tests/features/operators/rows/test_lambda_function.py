"""LambdaFunction: named functions, and those that break their promise."""

import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.rows.lambda_function import FUNCTIONS, LambdaFunction, register_function
from tests.examples import examples
from tests.features.row_wise import assert_row_wise


@pytest.fixture(autouse=True)
def own_names(monkeypatch):
    for name in list(FUNCTIONS.kinds):
        monkeypatch.delitem(FUNCTIONS.kinds, name)
    yield
    FUNCTIONS.kinds.clear()


def per_night(frame):
    return frame.assign(per_night=frame["price"] / frame["nights"])[["per_night"]]


def registered(function, outputs=("per_night",)):
    register_function("step", function, inputs=["price", "nights"], outputs=outputs)
    return LambdaFunction("step")


@given(rows=st.lists(st.tuples(st.none() | st.floats(0, 1e6), st.integers(1, 30)), max_size=12))
@settings(max_examples=examples(15), deadline=None)
def test_equals_a_loop_row_by_row(rows):
    register_function("step", per_night, inputs=["price", "nights"], outputs=["per_night"])
    frame = pd.DataFrame(rows, columns=["price", "nights"]).astype({"price": "float64", "nights": "int64"})
    frame["other"] = 1
    found = assert_row_wise(LambdaFunction("step"), frame)
    np.testing.assert_array_equal(found["per_night"], [np.nan if p is None else p / n for p, n in rows])
    assert list(found.columns) == ["price", "nights", "other", "per_night"]


def test_the_name_is_all_that_is_kept():
    operator = registered(per_night)
    assert operator.settings() == {"name": "step"}
    assert operator.inputs == ("price", "nights")
    assert operator.outputs == ("per_night",)
    assert pickle.loads(pickle.dumps(operator)).settings() == {"name": "step"}


def test_an_unregistered_name_is_an_error_that_says_how_to_register():
    registered(per_night)
    with pytest.raises(
        DataError,
        match=r"LambdaFunction 'os.system': no function of this name is registered. Import the module that defines it "
        r"\(`imports` of a configuration\), or call register_function\('os.system', function, inputs=.*Known: 'step'",
    ):
        LambdaFunction("os.system")


def test_a_taken_name_needs_replace_unless_by_the_same_function():
    registered(per_night)
    registered(per_night)
    with pytest.raises(DataError, match=r"register_function 'step': another function has this name"):
        registered(lambda frame: frame)
    register_function("step", len, inputs=["a"], outputs=["b"], replace=True)
    assert LambdaFunction("step").inputs == ("a",)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda f: f["price"], "must return a frame of the kind that it gets, returned Series"),
        (lambda f: None, "returned NoneType"),
        (lambda f: {"per_night": f["price"]}, "returned dict"),
        (lambda f: f, "its result: column.* 'per_night' not found. Columns there: 'price', 'nights'"),
        (
            lambda f: per_night(f).assign(more=1),
            "returned column.* 'more', which are not among the outputs 'per_night'",
        ),
        (lambda f: per_night(f).iloc[:1], r"returned 1 row\(s\) for 3"),
        (lambda f: per_night(f).iloc[::-1], "another index"),
        (lambda f: per_night(f).reset_index(drop=True), "another index"),
    ],
)
def test_a_result_that_breaks_the_promise_is_an_error(function, message):
    frame = pd.DataFrame({"price": [1.0, 2, 3], "nights": [1, 2, 3]}, index=[5, 6, 7])
    with pytest.raises(DataError, match=f"LambdaFunction 'step': .*{message}"):
        registered(function)(frame)


def test_a_function_cannot_change_the_frame_that_came_in():
    def careless(frame):
        frame.loc[:, "price"] = 0.0
        frame["per_night"] = frame["price"]
        return frame[["per_night"]]

    frame = pd.DataFrame({"price": [1.0, 2], "nights": [1, 2]})
    found = registered(careless)(frame)
    assert found["price"].tolist() == frame["price"].tolist() == [1, 2]
    assert found["per_night"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": "price", "outputs": ["x"]}, "lists of one or more column names"),
        ({"inputs": ["price"], "outputs": []}, "lists of one or more column names"),
        ({"inputs": ["price"], "outputs": ["x"], "function": "os.system"}, "'os.system' cannot be called"),
    ],
)
def test_a_registration_without_meaning_is_an_error(arguments, message):
    with pytest.raises(DataError, match=f"register_function 'step': .*{message}"):
        register_function("step", arguments.pop("function", per_night), **arguments)
