"""TargetEncoding against sums taken by a loop, and what folds are for."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.history.target_encoding import TargetEncoding
from tests.examples import examples

ROW = st.tuples(
    st.one_of(st.none(), st.sampled_from("ab")),
    st.integers(0, 6),
    st.one_of(st.none(), st.integers(0, 1)),
    st.integers(1, 4),
    st.integers(0, 2),
)


def table(rows):
    frame = pd.DataFrame(rows, columns=["key", "at", "hit", "trials", "fold"])
    return frame.astype({"key": "str", "hit": "float64"})


def expected(frame, smoothing, trials, fold):
    out = []
    for row in frame.itertuples():
        past = [
            r for r in frame.itertuples()
            if r.at < row.at and not np.isnan(r.hit) and not (fold and r.fold == row.fold)
        ]  # fmt: skip
        same = [r for r in past if isinstance(row.key, str) and r.key == row.key]
        weight = (lambda r: r.trials) if trials else (lambda r: 1)
        if not past:
            out.append(np.nan)
            continue
        prior = sum(r.hit for r in past) / sum(map(weight, past))
        out.append((sum(r.hit for r in same) + smoothing * prior) / (sum(map(weight, same)) + smoothing))
    return np.array(out, dtype="float64")


@given(rows=st.lists(ROW, max_size=18), trials=st.booleans(), fold=st.booleans())
@settings(max_examples=examples(80), deadline=None)
def test_equals_a_loop_over_earlier_rows_of_other_folds(rows, trials, fold):
    frame = table(rows)
    operator = TargetEncoding(
        ("key",), "hit", "mean", at="at", trials="trials" if trials else None, fold="fold" if fold else None,
        smoothing=2.5,
    )  # fmt: skip
    found = operator(frame)["mean"]
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, expected(frame, 2.5, trials, fold), rtol=1e-6)


@pytest.mark.parametrize("fold", [[0.0, None, 1.0], ["a", None, "b"]])
def test_a_null_fold_is_refused(fold):
    """F15: a row without a fold was told the outcome of all others without one."""
    frame = pd.DataFrame({"key": ["a", "a", "a"], "at": [1, 2, 3], "hit": [1, 0, 1], "fold": fold})
    with pytest.raises(DataError, match=r"TargetEncoding 'mean': fold 'fold' holds 1 null"):
        TargetEncoding(("key",), "hit", "mean", at="at", fold="fold")(frame)


@pytest.mark.parametrize("smoothing", [0, float("nan"), float("inf")])
def test_smoothing_must_be_positive_and_finite(smoothing):
    with pytest.raises(DataError, match=f"'mean': smoothing must be positive and finite, found {smoothing}"):
        TargetEncoding(("key",), "hit", "mean", at="at", smoothing=smoothing)


def test_hits_of_unknown_trials_count_neither():
    """Five clicks of nobody knows how many impressions raised a rate of 0.1 to (5 + 1) / 10."""
    columns = ["key", "at", "clicks", "shown"]
    frame = pd.DataFrame([("a", 1, 1, 10), ("a", 2, 5, None), ("a", 3, 0, 4), ("b", 3, 0, None)], columns=columns)
    operator = TargetEncoding(("key",), "clicks", "rate", at="at", trials="shown", smoothing=1.0)
    found = operator(frame.assign(shown=frame["shown"].astype("Int64")))["rate"].tolist()
    np.testing.assert_allclose(found, [np.nan, (1 + 0.1) / 11, (1 + 0.1) / 11, 0.1], rtol=1e-6)
    past = operator.leave(frame[frame["at"] < 3], None)
    assert operator.following(frame[frame["at"] == 3], past)["rate"].tolist() == found[2:]
