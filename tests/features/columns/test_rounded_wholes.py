"""Whole numbers that float64 rounds are told of, once, where an operator takes them as float64."""

import logging

import pandas as pd
import pytest

from gigabatch.features.columns.numbers import loses_digits
from gigabatch.features.operators.numbers.expression import Expression
from gigabatch.features.operators.numbers.gauss_rank import GaussRank
from gigabatch.features.operators.numbers.quantile_buckets import QuantileBuckets

VALUES = [0, 1, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**54 + 1, 2**60, 2**62 + 1, 2**63 - 1]


@pytest.mark.parametrize("dtype", ["int64", "uint64", "Int64"])
def test_digits_are_lost_where_python_finds_another_number(dtype):
    for value in [*VALUES, *([-value for value in VALUES] if dtype != "uint64" else [])]:
        column = pd.Series([value, 0], dtype=dtype)
        assert loses_digits(column) == (int(float(value)) != value)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("in_formula", lambda frame, name: Expression("out", f"{name} + 1")(frame)),
        ("in_buckets", lambda frame, name: QuantileBuckets(name, 2).fit([frame, frame])),
        ("in_ranks", lambda frame, name: GaussRank(name).fit([frame, frame])),
    ],
)
def test_a_column_that_is_rounded_is_named_once(name, use, caplog):
    frame = pd.DataFrame({name: [5, 2**53 + 1]})
    with caplog.at_level(logging.WARNING):
        use(frame - 2**53, name)
        assert not caplog.text
        use(frame, name)
        use(frame, name)
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"column '{name}' holds whole numbers of 2^53 and beyond, which float64 rounds" in said
