"""RankWithinGroup against SciPy's rankdata."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from gigabatch.features.operators.history.rank_within_group import RankWithinGroup
from tests.examples import examples

ROWS = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(-4, 4))), min_size=1, max_size=25)


@given(rows=ROWS, descending=st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_every_group_is_ranked_as_by_scipy_in_any_row_order(rows, descending):
    frame = pd.DataFrame(rows, columns=["list", "value"]).astype({"value": "float64"})
    frame.index = np.arange(len(rows))[::-1]
    found = RankWithinGroup(("list",), "value", "rank", descending=descending)(frame)
    assert found.index.equals(frame.index)
    assert found["rank"].dtype == "float32"
    for _, group in found.groupby("list"):
        known = group[group["value"].notna()]
        np.testing.assert_array_equal(known["rank"], rankdata((-1 if descending else 1) * known["value"], method="min"))
        assert group["rank"].isna().sum() == len(group) - len(known)


@pytest.mark.parametrize("dtype", ["int64", "Int64", "uint64", "int64[pyarrow]"])
def test_whole_numbers_that_a_float_would_round_have_ranks_of_their_own(dtype):
    value = pd.Series([2**53, 2**53 + 1, 2**53 + 2, 2**62 + 1, 2**62]).astype(dtype)
    frame = pd.DataFrame({"list": 1, "value": value})
    assert RankWithinGroup(("list",), "value", "rank")(frame)["rank"].tolist() == [1, 2, 3, 5, 4]
    assert RankWithinGroup(("list",), "value", "rank", descending=True)(frame)["rank"].tolist() == [5, 4, 3, 1, 2]


def test_nulls_among_whole_numbers_and_flags_have_no_rank():
    frame = pd.DataFrame({"list": [1, 1, None, 1], "value": pd.Series([2**53 + 1, None, 3, 2**53], dtype="Int64")})
    found = RankWithinGroup(("list",), "value", "rank")(frame)["rank"]
    assert found.tolist()[::3] == [2, 1]
    assert found.isna().tolist() == [False, True, True, False]
    flags = frame.assign(value=pd.Series([True, None, False, False], dtype="boolean"))
    assert RankWithinGroup(("list",), "value", "rank")(flags)["rank"].tolist()[::3] == [2, 1]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_long_and_short_groups_are_ranked_alike(dtype, descending):
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"list": rng.integers(0, 40, 5_000) ** 2 // 40, "value": rng.integers(-30, 30, 5_000)})
    frame = pd.concat([frame, pd.DataFrame({"list": [70, 71, 71], "value": [1, 2, 1]})], ignore_index=True)
    frame["value"] = frame["value"].astype(dtype)
    sizes = frame.groupby("list").size()
    assert sizes.max() > 64 > sizes.min()
    found = RankWithinGroup(("list",), "value", "rank", descending=descending)(frame)["rank"]
    for rows in frame.groupby("list").groups.values():
        values = (-1 if descending else 1) * frame["value"][rows]
        np.testing.assert_array_equal(found[rows], rankdata(values, method="min"))


def test_zeros_of_both_signs_and_infinities_are_ranked_by_value():
    frame = pd.DataFrame({"list": 0, "value": [0.0, -np.inf, -0.0, np.inf, 1.0]})
    assert RankWithinGroup(("list",), "value", "rank")(frame)["rank"].tolist() == [2, 1, 2, 5, 4]
    empty = RankWithinGroup(("list",), "value", "rank")(frame.head(0))["rank"]
    assert empty.dtype == "float32"
    assert len(empty) == 0
