"""KeyIndex against a dictionary, for keys of every kind; made once however often it is asked."""

import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.history import key_index
from gigabatch.features.history.key_index import KeyIndex, take_or_null
from gigabatch.features.operators import FoldedTargetEncoding, JoinGroupby
from tests.examples import examples

FORMS = {
    "text": (st.sampled_from(["a", "b", "é", ""]), "str"),
    "category": (st.sampled_from(["a", "b", "c"]), "category"),
    "whole": (st.integers(-2, 2) | st.just(2**60 + 1), "Int64"),
    "floats": (st.sampled_from([-0.0, 0.0, 0.5, 2.0]), "float64"),
    "flags": (st.booleans(), "boolean"),
}


@given(data=st.data(), kinds=st.lists(st.sampled_from(sorted(FORMS)), min_size=1, max_size=3))
@settings(max_examples=examples(80), deadline=None)
def test_rows_are_those_of_a_dictionary(data, kinds):
    key = st.tuples(*(st.none() | FORMS[kind][0] for kind in kinds))
    names = [f"k{place}" for place in range(len(kinds))]

    def frame(keys):
        columns = zip(names, kinds, zip(*keys, strict=True) if keys else [()] * len(names), strict=True)
        return pd.DataFrame({name: pd.Series(list(values), dtype=FORMS[kind][1]) for name, kind, values in columns})

    known, asked = data.draw(st.lists(key, unique=True, max_size=8)), data.draw(st.lists(key, max_size=8))
    place = {keys: row for row, keys in enumerate(known) if None not in keys}
    found = KeyIndex(frame(known), names).rows(frame(asked))
    assert found.tolist() == [place.get(keys, -1) for keys in asked]


@pytest.mark.parametrize("table", [[7, 8], [7.0, 8.0, 0.5]], ids=["whole", "floats"])
@pytest.mark.parametrize("asked", [[7, 9], [7.0, 9.0], [7.0, None], [7.0, 2.0**60], [7.0, 0.25]], ids=str)
def test_whole_numbers_and_floats_are_found_by_value(table, asked):
    found = KeyIndex(pd.DataFrame({"k": table}), ["k"]).rows(pd.DataFrame({"k": asked}))
    assert found.tolist() == [0, -1]


def test_another_kind_is_refused():
    with pytest.raises(DataError, match=r"here: column 'k' holds text .* in the rows and flags .* in the table"):
        KeyIndex(pd.DataFrame({"k": [True]}), ["k"], "here").rows(pd.DataFrame({"k": ["true"]}))


def test_a_state_is_indexed_once_and_saved_without(monkeypatch):
    made = []
    monkeypatch.setattr(key_index, "KeyIndex", lambda *arguments: made.append(1) or KeyIndex(*arguments))
    train = pd.DataFrame({"city": ["a", "a", "b"], "y": [1, 0, 1], "row": [1, 2, 3]})
    for operator in (JoinGroupby(["city"], ["y"], ["mean"]), FoldedTargetEncoding(["city"], ["y"], "row")):
        state = operator.fit([train])
        first = operator.apply(train, state)
        pd.testing.assert_frame_equal(operator.apply(train, state), first)
        copied = pickle.loads(pickle.dumps(state))
        assert vars(copied).keys() == {"table", "totals"} & vars(copied).keys()
    assert len(made) == 2


@pytest.mark.parametrize(
    "dtype", ["int8", "uint64", "Int32", "bool", "boolean", "float32", "str", "category", "int64[pyarrow]"]
)
def test_a_taken_column_has_one_type_whatever_is_found(dtype):
    column = pd.Series([1, 0]).astype("str" if dtype == "category" else dtype).astype(dtype)
    found = [take_or_null(column[:size], np.array(rows), pd.DataFrame(index=range(len(rows))))
             for size, rows in ((2, [1, 0]), (2, [0, -1]), (2, [-1]), (0, [-1]))]  # fmt: skip
    assert len({str(one.dtype) for one in found}) == 1
    assert found[0].tolist() == column[::-1].tolist()
    assert [one.isna().tolist() for one in found[1:]] == [[False, True], [True], [True]]
