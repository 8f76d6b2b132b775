"""JoinGroupby against the statistics module and fractions."""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.history import grouped_sums as grouped_sum
from gigabatch.features.operators.groups.join_groupby import STATISTICS, JoinGroupby
from tests.examples import examples
from tests.features.partitioned import COUNTS, cut


def rounded_once(count, units, squares, low, high):
    """Every statistic from exact sums in units of 2^-1074, by Python's integers, whose quotient is rounded once."""
    one = 1 << 1074
    found = {"count": float(count), "sum": units / one, "mean": units / (count * one), "min": low, "max": high}
    if count > 1:
        found["var"] = (count * squares * one - units * units) / (count * (count - 1) * one * one)
        found["std"] = math.sqrt(found["var"])
    return found


def slow_table(frame, by, values, statistics=STATISTICS):
    """The state's table by a loop over rows and groups."""
    exact = {}
    for row in frame.to_dict("records"):
        key = tuple(row[name] for name in by)
        for name in values:
            if not any(pd.isna(item) for item in (*key, row[name])):
                exact.setdefault(key, {}).setdefault(name, []).append(float(row[name]))
    records = []
    for key, columns in sorted(exact.items()):
        record = dict(zip(by, key, strict=True))
        for name in values:
            seen = [Fraction(x) for x in columns.get(name, [])]
            sums = [sum(x**power for x in seen) * 2**1074 for power in (1, 2)]
            assert all(Fraction(item).denominator == 1 for item in sums)
            found = rounded_once(len(seen), *map(int, sums), *map(float, (min(seen), max(seen)))) if seen else {}
            record |= {f"{name}_{kind}_by_{'_'.join(by)}": found.get(kind, math.nan) for kind in statistics}
        records.append(record)
    return pd.DataFrame(records)


WIDE = st.floats(-1e30, 1e30).map(lambda x: x if abs(x) > 1e-140 else 0.0)
NARROW = st.integers(-99, 99).map(lambda n: n / 4)


@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.none() | WIDE, st.none() | NARROW),
        min_size=1,
        max_size=40,
    ),
    chunk=st.sampled_from([1, 3, 1 << 16]),
    count=COUNTS,
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(40), deadline=None)
def test_the_table_equals_a_slow_exact_one_bit_by_bit(rows, chunk, count, seed):
    frame = pd.DataFrame(rows, columns=["k", "x", "n"]).astype({"k": "str", "x": "float64", "n": "float64"})
    huge = bool((frame["x"].abs() > 1e19).any())  # whose variance leaves float32
    asked = tuple(kind for kind in STATISTICS if kind != "var" or not huge)
    operator = JoinGroupby(("k",), ["x", "n"], asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped_sum, "CHUNK", chunk)
        found = operator.fit(cut(frame, count, seed)).table
    expected = slow_table(frame, ["k"], ["x", "n"], asked)
    if len(expected) == 0:
        assert len(found) == 0
        return
    pd.testing.assert_frame_equal(found, expected, check_exact=True, check_dtype=False)


def test_literal_groups_unseen_and_null_keys_in_row_order():
    train = pd.DataFrame({"k": ["a", "b", "a"], "n": [1, 5, 3]})
    frame = pd.DataFrame({"k": ["z", "a", None, "b"]}, index=[7, 7, 1, 0]).assign(n=0)
    operator = JoinGroupby(("k",), ["n"], ["count", "mean", "std"])
    found = operator.apply(frame, operator.fit([train]))
    assert operator.outputs == ("n_count_by_k", "n_mean_by_k", "n_std_by_k")
    np.testing.assert_array_equal(found["n_count_by_k"], [np.nan, 2, np.nan, 1])
    np.testing.assert_array_equal(found["n_mean_by_k"], [np.nan, 2, np.nan, 5])
    np.testing.assert_allclose(found["n_std_by_k"], [np.nan, 2**0.5, np.nan, np.nan], rtol=1e-7)
    assert found.index.tolist() == [7, 7, 1, 0]
    assert {str(found[name].dtype) for name in operator.outputs} == {"float32"}


def test_unknown_statistics_and_huge_values_are_errors():
    with pytest.raises(DataError, match=r"unknown: \['median'\]. Known: count, sum, mean, min, max, std, var"):
        JoinGroupby(("k",), ["x"], ["median"])
    with pytest.raises(DataError, match=r"column 'x' holds values beyond 1e\+30"):
        JoinGroupby(("k",), ["x"], ["sum"]).fit([pd.DataFrame({"k": ["a"], "x": [1e31]})])


def test_a_variance_beyond_float32_is_refused_and_its_root_given():
    frame = pd.DataFrame({"k": ["a", "a", "b"], "x": [3e20, -3e20, 1.0]})
    with pytest.raises(DataError, match=r"variance of column 'x' leaves float32\. Take std"):
        JoinGroupby(["k"], ["x"], ["mean", "var"]).fit([frame])
    operator = JoinGroupby(["k"], ["x"], ["std"])
    np.testing.assert_allclose(
        operator.apply(frame, operator.fit([frame]))["x_std_by_k"], [3e20 * 2**0.5, 3e20 * 2**0.5, np.nan], rtol=1e-7
    )


def test_variances_are_those_of_pandas():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"k": rng.integers(0, 9, 200), "x": rng.normal(50, 3, 200), "n": rng.integers(-5, 5, 200)})
    operator = JoinGroupby(["k"], ["x", "n"], ["var"])
    found = operator.apply(frame, operator.fit(cut(frame, 3, 1)))
    for name in ("x", "n"):
        expected = frame.groupby("k")[name].transform("var").astype("float32")
        np.testing.assert_allclose(found[f"{name}_var_by_k"], expected, rtol=1e-6)
