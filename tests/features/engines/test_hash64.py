"""hash64 against the xxhash package, value by value, without a Python loop of its own."""

import ast
import inspect

import numpy as np
import pandas as pd
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.engines import pandas as engine
from tests.examples import examples

TEXTS = [b"x" * size for size in (0, 1, 3, 4, 5, 7, 8, 9, 31, 32, 33, 39, 63, 64, 65, 200)]


def expected(values):
    return np.array([xxhash.xxh64_intdigest(value) for value in values], dtype="uint64").view("int64").tolist()


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=80)))
@settings(max_examples=examples(60), deadline=None)
def test_text_of_any_length(words):
    column = pd.Series(words, dtype="str")
    assert engine.hash64(column).tolist() == expected([word.encode() for word in words])
    assert engine.hash64(column[1:]).tolist() == expected([word.encode() for word in words[1:]])


@pytest.mark.parametrize(
    "dtype", ["str", "object", "category", "string[pyarrow]", "large_string[pyarrow]", "dictionary"]
)
def test_text_in_every_form(dtype):
    texts = [text.decode() for text in TEXTS]
    column = pd.Series(texts, dtype="str").astype("category" if dtype == "dictionary" else dtype)
    if dtype == "dictionary":
        column = pd.Series(column.array[::-1])
        texts = texts[::-1]
    assert engine.hash64(column).tolist() == expected([text.encode() for text in texts])


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint32", "bool", "Int64", "boolean", "int32[pyarrow]"])
def test_whole_numbers_are_hashed_as_8_bytes(dtype):
    values = [0, 1] if "bool" in dtype else [0, 1, 100] + ([-1] if not dtype.startswith("u") else [])
    column = pd.Series(values).astype(dtype)
    assert engine.hash64(column).tolist() == expected([value.to_bytes(8, "little", signed=True) for value in values])


@pytest.mark.parametrize(("values", "message"), [(["a", None], "'c' holds nulls"), ([0.5], "but double")])
def test_nulls_and_fractions_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        engine.hash64(pd.Series(values, name="c"))


@pytest.mark.parametrize("dtype", ["object", "str", "int64", "category"])
def test_no_rows_have_no_hashes(dtype):
    assert engine.hash64(pd.Series([], dtype=dtype)).tolist() == []


def test_no_value_goes_through_python():
    loops = (ast.For, ast.While, ast.comprehension)
    for function in (engine.hash64, engine._hash64):
        assert not any(isinstance(node, loops) for node in ast.walk(ast.parse(inspect.getsource(function))))
