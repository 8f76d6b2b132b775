"""The compiled hash tables and sorts against dictionaries and Python's own sort."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.engines import arrow_columns as columns
from gigabatch.features.engines import hash_tables as coding
from tests.examples import examples

# Few letters make ties and common beginnings; the zero byte is what missing bytes are taken as.
TEXT = st.text(alphabet="ab\0é", max_size=28)
WHOLE = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
LARGE = st.booleans()


def arrow(values, large=False):
    return pa.array(values, pa.large_string() if large else pa.string())


def numbered(values):
    seen = {}
    codes = [-1 if value is None else seen.setdefault(value, len(seen)) for value in values]
    return codes, list(seen)


@given(st.lists(st.one_of(st.none(), TEXT), max_size=200), LARGE, st.integers(0, 3))
def test_strings_are_numbered_in_order_of_appearance(values, large, skip):
    array = arrow(values, large).slice(skip)  # a slice begins inside its buffers
    found = columns.distinct(array)
    codes, distinct = numbered(values[skip:])
    assert found.codes.tolist() == codes
    assert found.values.to_pylist() == distinct


@given(st.lists(st.one_of(st.none(), WHOLE), max_size=200))
def test_integers_are_numbered_in_order_of_appearance(values):
    found = columns.distinct(pa.array(values, pa.int64()))
    codes, distinct = numbered(values)
    assert found.codes.tolist() == codes
    assert found.values.to_pylist() == distinct


@given(st.lists(st.integers(-128, 127), max_size=300))
def test_narrow_integers_take_the_direct_table_and_give_the_same_codes(values):
    found = columns.distinct(pa.array(values, pa.int8()))
    assert (found.codes.tolist(), found.values.to_pylist()) == numbered(values)


@pytest.mark.parametrize("kind", ["text", "whole"])
def test_a_table_that_has_grown_many_times_still_finds_everything(kind):
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 10**12, 60_000)
    values = [f"value {n} of many" for n in numbers] if kind == "text" else numbers.tolist()
    array = arrow(values) if kind == "text" else pa.array(values)
    found = columns.distinct(array)
    assert (found.codes.tolist(), found.values.to_pylist()) == numbered(values)
    lookup = columns.Lookup(found.values)
    assert lookup.positions(array).tolist() == found.codes.tolist()


@given(st.lists(TEXT, unique=True, max_size=60), st.lists(st.one_of(st.none(), TEXT), max_size=100), LARGE)
def test_strings_are_found_by_value(known, asked, large):
    lookup = columns.Lookup(arrow(known))
    expected = [known.index(value) if value in known else -1 for value in asked]
    assert lookup.positions(arrow(asked, large)).tolist() == expected
    assert lookup.positions(arrow(asked).dictionary_encode()).tolist() == expected


@given(st.lists(WHOLE, unique=True, max_size=60), st.lists(st.one_of(st.none(), WHOLE), max_size=100))
def test_integers_are_found_by_value(known, asked):
    lookup = columns.Lookup(pa.array(known, pa.int64()))
    expected = [known.index(value) if value in known else -1 for value in asked]
    assert lookup.positions(pa.array(asked, pa.int64())).tolist() == expected


@settings(max_examples=examples(300))
@given(st.data())
def test_frequency_order_of_strings_is_that_of_their_bytes(data):
    values = data.draw(st.lists(TEXT, unique=True, max_size=60))
    counts = np.array(data.draw(st.lists(st.integers(1, 3), min_size=len(values), max_size=len(values))), np.int64)
    expected = sorted(range(len(values)), key=lambda i: (-counts[i], values[i].encode()))
    assert columns.frequency_order(arrow(values), counts).tolist() == expected


@given(st.data())
def test_frequency_order_of_integers(data):
    values = data.draw(st.lists(WHOLE, unique=True, max_size=60))
    counts = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values))), np.int64)
    expected = sorted(range(len(values)), key=lambda i: (-counts[i], values[i]))
    assert columns.frequency_order(pa.array(values, pa.int64()), counts).tolist() == expected


@given(st.lists(st.integers(0, 2**64 - 1), max_size=100))
def test_radix_order_is_a_stable_sort(keys):
    array = np.array(keys, np.uint64)
    assert coding.radix_order(array).tolist() == sorted(range(len(keys)), key=lambda i: keys[i])


def test_a_dictionary_may_hold_values_twice_nulls_and_values_that_no_row_has():
    indices = pa.array([0, 2, None, 3, 1], pa.int32())
    array = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b", "a", None, "unused"]))
    found = columns.distinct(columns.one_array(array))
    decoded = [None if code < 0 else found.values[code].as_py() for code in found.codes]
    assert decoded == ["a", "a", None, None, "b"]


def test_chunks_of_dictionaries_become_one():
    parts = [pa.array(["x", "y"]).dictionary_encode(), pa.array(["y", "z", None]).dictionary_encode()]
    found = columns.distinct(columns.one_array(pa.chunked_array(parts)))
    assert [None if code < 0 else found.values[code].as_py() for code in found.codes] == ["x", "y", "y", "z", None]
