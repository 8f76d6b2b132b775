"""RankWithinGroup against SciPy's rankdata."""

import numpy as np
import pandas as pd
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
