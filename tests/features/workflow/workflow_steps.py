"""A table and steps over it that hold every kind of dependence: chains, replaced columns, labels, changed rows."""

import numpy as np
import pandas as pd

STEPS = [
    {"drop_nulls": {"columns": ["clicked"]}},
    {"log": {"column": "price", "output": "log_price"}},
    {"fill_missing": {"column": ["price", "log_price", "age"], "indicator": "all"}},
    {"normalize": {"columns": ["price", "log_price"]}},
    {"quantile_buckets": {"column": "age", "num_buckets": 5}},
    {"hashed_cross": {"columns": ["city", "kinds"], "num_buckets": 100, "output": "cross"}},
    {"text_flags": {"column": "kinds", "prefix": "kind_"}},
    {"join_groupby": {"by": ["city"], "values": ["price"], "statistics": ["mean", "count"]}},
    {"categorify": {"column": "city"}},
    {"rename": {"mapping": {"cross": "city_kinds"}}},
]


def table(rows=400, seed=0):
    """Rows with nulls in every column but `row`; `clicked` is the label."""
    rng = np.random.default_rng(seed)

    def some(values, share=0.1):
        return pd.Series(values).mask(pd.Series(rng.random(rows) < share))

    return pd.DataFrame({
        "row": np.arange(rows), "price": some(rng.gamma(2, 10, rows)), "age": some(rng.integers(0, 90, rows) * 1.0),
        "city": some(rng.choice(["Oslo", "Bonn", "Lima"], rows)).astype("str"),
        "kinds": some(rng.choice(["a|b", "b", "c|a", ""], rows)).astype("str"),
        "clicked": some(rng.integers(0, 2, rows) * 1.0),
    })  # fmt: skip
