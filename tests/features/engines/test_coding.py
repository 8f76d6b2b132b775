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
NARROW = st.integers(-128, 127)  # within 2^16 of each other: by a direct table
FORMS = {"text": (TEXT, pa.string()), "large text": (TEXT, pa.large_string()), "whole": (WHOLE, pa.int64()),
         "narrow": (NARROW, pa.int8())}  # fmt: skip


def numbered(values):
    seen = {}
    codes = [-1 if value is None else seen.setdefault(value, len(seen)) for value in values]
    return codes, list(seen)


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data(), skip=st.integers(0, 3))
def test_values_are_numbered_in_order_of_appearance(form, data, skip):
    drawn, kind = FORMS[form]
    values = data.draw(st.lists(st.none() | drawn, max_size=200))
    found = columns.distinct(pa.array(values, kind).slice(skip))  # a slice begins inside its buffers
    assert (found.codes.tolist(), found.values.to_pylist()) == numbered(values[skip:])


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_values_are_found_by_value(form, data):
    drawn, kind = FORMS[form]
    known = data.draw(st.lists(drawn, unique=True, max_size=60))
    asked = data.draw(st.lists(st.none() | drawn, max_size=100))
    lookup = columns.Lookup(pa.array(known, kind))
    expected = [known.index(value) if value in known else -1 for value in asked]
    for other in (pa.string(), pa.large_string()) if "text" in form else (kind,):
        column = pa.array(asked, other)
        assert lookup.positions(column).tolist() == lookup.positions(column.dictionary_encode()).tolist() == expected


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(200))
@given(data=st.data())
def test_frequency_order_is_by_falling_count_then_by_value_or_bytes(form, data):
    drawn, kind = FORMS[form]
    values = data.draw(st.lists(drawn, unique=True, max_size=60))
    counts = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values))), np.int64)
    key = str.encode if "text" in form else int
    expected = sorted(range(len(values)), key=lambda i: (-counts[i], key(values[i])))
    assert columns.frequency_order(pa.array(values, kind), counts).tolist() == expected


@pytest.mark.parametrize("kind", ["text", "whole"])
def test_a_table_that_has_grown_many_times_still_finds_everything(kind):
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 10**12, 60_000)
    values = [f"value {n} of many" for n in numbers] if kind == "text" else numbers.tolist()
    array = pa.array(values)
    found = columns.distinct(array)
    assert (found.codes.tolist(), found.values.to_pylist()) == numbered(values)
    lookup = columns.Lookup(found.values)
    assert lookup.positions(array).tolist() == found.codes.tolist()


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


BOUNDS = [(0, 5), (-(2**63), 2**63 - 1), (2**62, 2**62 + 3), (-40, 2**40)]


@given(data=st.data(), sizes=st.lists(st.integers(0, 20), min_size=1, max_size=4), asked=st.integers(0, 40))
def test_places_among_the_keys_of_a_group_are_those_that_numpy_searches(data, sizes, asked):
    low, high = data.draw(st.sampled_from(BOUNDS))
    keys = [sorted(data.draw(st.lists(st.integers(low, high), min_size=size, max_size=size))) for size in sizes]
    groups = data.draw(st.lists(st.integers(-1, len(sizes) - 1), min_size=asked, max_size=asked))
    wanted = np.array(data.draw(st.lists(st.integers(low, high), min_size=asked, max_size=asked)), "int64")
    begins, together = np.cumsum([0, *sizes]), np.array([key for group in keys for key in group], "int64")
    expected = [
        0 if group < 0 else begins[group] + np.searchsorted(np.array(keys[group], "int64"), value)
        for group, value in zip(groups, wanted, strict=True)
    ]
    found = coding.find_in_groups(begins, together, np.array(groups, "int64"), wanted)
    assert found.tolist() == expected
    assert coding.stable_order(wanted).tolist() == np.argsort(wanted, kind="stable").tolist()
