"""Nothing to count is nothing counted, on a GPU too, where CuPy's bincount of an empty array raises."""

import types

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.engines import pandas as pandas_engine
from gigabatch.features.exact.tally import tally
from gigabatch.features.operators.categories.text_hash import TextHash
from gigabatch.features.operators.history.rolling import Rolling
from gigabatch.features.operators.history.target_encoding import TargetEncoding
from gigabatch.features.recipes.interactions.splits import leave_one_out


@pytest.fixture
def strict(monkeypatch):
    """NumPy with `bincount` as CuPy has it, where operators ask the engine for arrays; pandas itself keeps its own."""

    def bincount(numbers, weights=None, minlength=0):
        if not len(numbers):
            raise ValueError("zero-size array to reduction operation cupy_max which has no identity")
        return np.bincount(numbers, weights=weights, minlength=minlength)

    arrays = types.SimpleNamespace(**(vars(np) | {"bincount": bincount}))
    monkeypatch.setattr(pandas_engine, "arrays", arrays)
    return arrays


@pytest.mark.parametrize("numbers", [[], [3], [0, 2, 2, 5]])
@pytest.mark.parametrize("weights", [None, 0.5])
def test_a_tally_is_a_count_by_hand(strict, numbers, weights):
    found = tally(strict, np.array(numbers, "int64"), 4, None if weights is None else np.full(len(numbers), weights))
    wanted = [numbers.count(place) * (weights or 1) for place in range(max([3, *numbers]) + 1)]
    assert found.tolist() == wanted
    assert found.dtype == ("int64" if weights is None else "float64")


def test_questions_about_events_of_which_none_is_known(strict):
    frame = pd.DataFrame({"user": ["a", "b"], "none": [None, None], "at": [1, 2], "x": [1, 2], "hit": [np.nan, np.nan]})
    count = Rolling(["user"], "at", "x", 9, "count", "n")
    assert count(frame)["n"].tolist() == [0, 0]
    assert Rolling(["none"], "at", "x", 9, "count", "n")(frame)["n"].tolist() == [0, 0]
    assert count(frame.head(0))["n"].tolist() == []
    assert TargetEncoding(["user"], "hit", "rate", at="at")(frame)["rate"].isna().all()


def test_texts_without_a_word_and_rows_of_no_user(strict):
    made = TextHash("t", "h", 2)(pd.DataFrame({"t": ["", None]}))
    assert made.drop(columns="t").to_numpy().tolist() == [[0, 0], [0, 0]]
    last, before, few = leave_one_out(strict, np.zeros(0, "int64"))
    assert (len(last), len(before), few) == (0, 0, 0)
