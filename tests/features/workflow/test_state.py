"""States as JSON and Parquet: every value back to the last bit, and nothing made that was not written."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import Moments, Scale
from gigabatch.features.exact.sums import ExactSum
from gigabatch.features.operators.base import FittedOperator
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.operators.categories.text_flags import TextFlags
from gigabatch.features.operators.categories.text_flags import Words as TextFlagsWords
from gigabatch.features.operators.numbers.normalize import Normalize
from gigabatch.features.workflow.drawing import summary
from gigabatch.features.workflow.state import StateReader, StateWriter
from tests.features.equal_states import same

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**700), 10**700) | st.floats() | st.text(),
    lambda inside: st.lists(inside) | st.lists(inside).map(tuple) | st.dictionaries(st.text() | st.integers(), inside),
    max_leaves=20,
)


@dataclass(frozen=True)
class Fill:
    """A state of all that JSON knows."""

    value: float
    indicator: bool
    null_rate: float


@dataclass
class Loose:
    """Not frozen, so no state."""

    value: int


class FillMissing(FittedOperator):
    """An operator, as far as its states are concerned."""


def there_and_back(value, folder, owner=FillMissing):
    writer = StateWriter(folder)
    text = json.dumps(writer.encode(value, "step-001"))
    assert "NaN" not in text
    assert "Infinity" not in text
    return StateReader(folder, json.loads(json.dumps(writer.files)), "pandas").decode(json.loads(text), owner)


def equal(left, right):
    """Equal to the last bit and of one type; written here without the code under test."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or left.hex() == right.hex()
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    return left == right


@settings(deadline=None)
@given(PLAIN)
def test_plain_values_come_back_to_the_last_bit(tmp_path_factory, value):
    found = there_and_back(value, tmp_path_factory.getbasetemp())
    assert equal(found, value)
    assert same(found, value)


def test_dataclasses_come_back(tmp_path):
    fill = Fill(-0.0, True, 1 / 3)
    found = there_and_back(fill, tmp_path)
    assert found == fill
    assert math.copysign(1, found.value) == -1
    words = TextFlagsWords(("a", "b|c"), ("g_a", "g_b_c"))
    assert there_and_back(words, tmp_path, TextFlags) == words
    moments = Moments.of(np.array([1e30, -1e30, 1e-30]))
    assert there_and_back(moments, tmp_path, Normalize) == moments
    assert isinstance(there_and_back(moments, tmp_path, Normalize).squares, ExactSum)


def test_tables_come_back_with_their_types(tmp_path):
    frame = pd.DataFrame({
        "text": pd.Series(["a", None, "ä\x00"], dtype="str"), "whole": pd.Series([1, None, 2**62], dtype="Int64"),
        "f": np.array([math.nan, 5e-324, math.inf]), "g": np.float32([1, 2, 3]), "b": [True, False, True],
    })  # fmt: skip
    found = there_and_back({"table": frame, "empty": frame.head(0)}, tmp_path)
    pd.testing.assert_frame_equal(found["table"], frame, check_exact=True)
    pd.testing.assert_frame_equal(found["empty"], frame.head(0))
    series = there_and_back((frame["text"], frame["f"].rename(None)), tmp_path)
    pd.testing.assert_series_equal(series[0], frame["text"])
    assert series[1].name is None
    array = there_and_back([np.array([1, 2**40])], tmp_path)[0]
    assert (array.dtype, array.tolist()) == (np.dtype("int64"), [1, 2**40])


def test_what_cannot_be_saved_is_an_error(tmp_path):
    for value in ({1, 2}, object(), np.zeros((2, 2)), b"bytes", Fill):
        with pytest.raises(DataError, match=r"a value of type .* cannot be saved"):
            StateWriter(tmp_path).encode(value, "step-001")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"Loose": {"value": 1}}, "unknown kind of value 'Loose' in a state of FillMissing"),
        ({"Words": {"words": {"tuple": []}, "columns": {"tuple": []}}}, "unknown kind of value 'Words'"),
        ({"Path": {}}, "unknown kind of value 'Path'"),
        ({"DataError": {}}, "unknown kind of value 'DataError'"),
        ({"Fill": {"value": 1.0}}, "Fill: expected the fields value, indicator, null_rate, found"),
        ({"Fill": {"value": 1.0, "indicator": True, "null_rate": 0.0, "more": 1}}, "Fill: expected the fields"),
        (
            {"Fill": {"value": 1.0, "indicator": 1, "null_rate": 0.0}},
            r"Fill\.indicator: expected true or false, found 1",
        ),
        ({"Fill": [1.0, True, 0.0]}, "unknown kind of value 'Fill'"),
        ({"float": "1e5"}, "unknown kind of value 'float'"),
        ({"float": ["nan"]}, "unknown kind of value 'float'"),
        ({"a": 1, "b": 2}, "an object of one key"),
        ({}, "an object of one key"),
        ({"tuple": {}}, "unknown kind of value 'tuple'"),
        ({"dict": [[1, 2, 3]]}, "a dict must be a list of pairs"),
        ({"dict": [[1, 2], [1, 3]]}, "a dict holds a key twice"),
        ({"dict": [[[1], 2]]}, "a key cannot be"),
        ({"frame": "../../etc/passwd"}, "is not among the files of the workflow"),
        ({"frame": 3}, "is not among the files"),
        ({"frame": ["x"]}, "is not among the files"),
        ({"series": {"file": "other.parquet", "name": "x"}}, "is not among the files"),
        (float("nan"), "nan is no number of JSON"),
    ],
)
def test_nothing_is_made_that_was_not_written(tmp_path, value, message):
    with pytest.raises(DataError, match=message):
        StateReader(tmp_path, {}, "pandas").decode(value, FillMissing)


def test_a_field_that_is_a_table_holds_a_table(tmp_path):
    for value in (1, None, "x", [], {"tuple": []}):
        with pytest.raises(DataError, match=r"Vocabulary\.counts: expected a data frame, a column or an array, found"):
            there_and_damaged({"Vocabulary": {"counts": value}}, tmp_path)


def there_and_damaged(change, folder):
    """A vocabulary's JSON with some fields replaced, read again."""
    writer = StateWriter(folder)
    encoded = writer.encode(Categorify("c").fit([pd.DataFrame({"c": ["x", "y", "x"]})]), "step-001")
    encoded["Vocabulary"] |= change["Vocabulary"]
    return StateReader(folder, writer.files, "pandas").decode(encoded, Categorify)


def test_nesting_without_end_is_refused(tmp_path):
    value = []
    for _ in range(500):
        value = [value]
    with pytest.raises(DataError, match="nested too deep"):
        StateReader(tmp_path, {}, "pandas").decode(value, FillMissing)


def test_a_file_must_be_there_whole_and_beside_the_json(tmp_path):
    writer = StateWriter(tmp_path / "in")
    (tmp_path / "in").mkdir()
    writer.encode(pd.DataFrame({"a": [1]}), "step-001")
    ((name, known),) = writer.files.items()
    for hostile in (f"../in/{name}", f"/{name}", "..", "", ".hidden.parquet", "A.parquet", f"in/{name}"):
        with pytest.raises(DataError, match="is not the name of a file of a workflow"):
            StateReader(tmp_path / "in", {hostile: known}, "pandas")
    with pytest.raises(DataError, match=r"step-001-0\.parquet is missing"):
        StateReader(tmp_path, writer.files, "pandas")
    (tmp_path / name).symlink_to(tmp_path / "in" / name)
    with pytest.raises(DataError, match="is missing"):
        StateReader(tmp_path, writer.files, "pandas")
    content = (tmp_path / "in" / name).read_bytes()
    for damaged in (content[:-1], content + b"x", content[:50] + bytes([content[50] ^ 1]) + content[51:], b""):
        (tmp_path / "in" / name).write_bytes(damaged)
        with pytest.raises(DataError, match=r"step-001-0\.parquet is damaged: its checksum differs"):
            StateReader(tmp_path / "in", writer.files, "pandas")


def test_summaries_are_short_and_say_what_was_fitted():
    assert summary(Scale(1.5, 0.25)) == ["mean 1.5", "std 0.25"]
    assert summary(Fill(3.0, True, 0.125)) == ["value 3", "indicator", "null_rate 0.125"]
    assert summary(Fill(3.0, False, 0.0)) == ["value 3", "null_rate 0"]
    assert summary(None) == []
    assert summary(TextFlagsWords(("a",), ("g_a",))) == ["1 words"]


def test_same_sees_the_last_bit():
    assert same(Fill(math.nan, True, 0.0), Fill(math.nan, True, 0.0))
    assert not same(Fill(0.0, True, 0.0), Fill(-0.0, True, 0.0))
    assert not same(1, 1.0)
    assert not same(pd.Series([1.0]), pd.Series([1.0 + 2**-52]))
    assert not same(pd.Series([1]), pd.Series([1], index=[3]))
    assert not same(np.float32([1]), np.float64([1]))
