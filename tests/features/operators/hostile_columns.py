"""Columns as they should not come: each form of a plain column, and the plain column that holds the same values.

A form gives (hostile column, plain column or None). Where the plain column is None no column of a plain type holds
these values, so that an operator can only refuse them or state what it makes of them.
"""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa

FORMS = {}


def forms(*kinds, **functions):
    FORMS.update({(kind, name): function for kind in kinds for name, function in functions.items()})


def form(*kinds):
    def keep(function):
        forms(*kinds, **{function.__name__: function})
        return function

    return keep


def objects(values, like):
    column = pd.Series([None] * len(values), index=like.index, name=like.name, dtype=object)
    for k, value in enumerate(values):
        column.iat[k] = value
    return column


# Whole numbers.


@form("whole")
def masked_with_null(column):
    null = np.arange(len(column)) % 4 == 1
    return column.astype("Int64").mask(null), column.astype("float64").mask(null)


@form("whole")
def objects_with_none(column):
    null = np.arange(len(column)) % 4 == 1
    hostile = objects([None if n else int(v) for v, n in zip(column, null, strict=True)], column)
    return hostile, column.astype("float64").mask(null)


@form("whole")
def arrow_with_null(column):
    null = np.arange(len(column)) % 4 == 1
    return column.astype("int64[pyarrow]").mask(null), column.astype("float64").mask(null)


@form("whole")
def beyond_int64(column):
    hostile = column.astype("uint64") + np.uint64(2**63)
    return hostile, hostile.astype("float64")


@form("whole")
def floats_beyond_2_53(column):
    hostile = column.astype("float64") + 2.0**60
    return hostile, hostile


@form("whole")
def whole_category_reversed(column):
    values = sorted(set(column), reverse=True)
    return pd.Series(pd.Categorical(column, categories=values), index=column.index, name=column.name), column


@form("whole")
def moments_of_mixed_zones(column):
    zones = (UTC, timezone(timedelta(hours=2)))
    return objects([datetime.fromtimestamp(int(v), zones[k % 2]) for k, v in enumerate(column)], column), None


# Numbers. Where an infinity is allowed it counts like a number beyond all others, HUGE.
HUGE = 1e30


@form("number")
def minus_zero(column):
    hostile, plain = column.copy(), column.copy()
    hostile.iloc[3:6], plain.iloc[3:6] = -0.0, 0.0
    return hostile, plain


@form("number")
def denormals(column):
    hostile = column.copy()
    hostile.iloc[3:6] = 5e-324
    return hostile, hostile.astype("Float64")


@form("number")
def masked_holding_nan(column):
    hostile = pd.Series(pd.arrays.FloatingArray(column.fillna(0).to_numpy(), np.zeros(len(column), bool)),
                        index=column.index, name=column.name)  # fmt: skip
    return hostile.mask(column.isna()), column


@form("number")
def flags_with_null(column):
    null = column.isna()
    plain = (column > 0).astype("float64").mask(null)
    return (column > 0).astype("boolean").mask(null), plain


@form("whole", "number", "text")
def all_none(column):
    plain = column.astype("str" if str(column.dtype) == "str" else "float64").mask(column.notna())
    return objects([None] * len(column), column), plain


# Text.


@form("text")
def text_category_reversed(column):
    values = sorted(set(column.dropna()), reverse=True)
    return pd.Series(pd.Categorical(column, categories=values), index=column.index, name=column.name), column


@form("text")
def text_all_null(column):
    hostile = pd.Series([None] * len(column), index=column.index, name=column.name, dtype="str")
    return hostile, hostile


@form("text")
def text_category_all_null(column):
    hostile = pd.Categorical([None] * len(column), categories=["Oslo"])
    return pd.Series(hostile, index=column.index, name=column.name), text_all_null(column)[0]


def _with(column, value):
    hostile = column.astype(object).where(column.notna(), None)
    hostile.iloc[3] = value
    return hostile


forms(
    "whole",
    whole_as_float=lambda c: (c.astype("float64"), c),
    whole_as_text=lambda c: (c.astype("str"), c),
    whole_as_objects=lambda c: (c.astype(object), c),
    whole_as_int16=lambda c: (c.astype("int16"), c),
    whole_as_uint64=lambda c: (c.astype("uint64"), c),
    whole_as_arrow=lambda c: (c.astype("int64[pyarrow]"), c),
    decimals=lambda c: (objects([Decimal(int(v)) for v in c], c), None),
    decimals_with_fraction=lambda c: (objects([Decimal(int(v)) + Decimal("0.5") for v in c], c), None),
    moments_ns=lambda c: (pd.to_datetime(c, unit="s").astype("datetime64[ns]"), None),
    moments_s_in_zone=lambda c: (
        pd.to_datetime(c, unit="s").dt.tz_localize("UTC").dt.tz_convert("America/New_York"),
        None,
    ),
    durations=lambda c: (pd.to_timedelta(c, unit="s"), None),
)

forms(
    "whole",
    "number",
    complex_numbers=lambda c: (c.astype("complex128"), None),
    lists_of_numbers=lambda c: (objects([[v] for v in c], c), None),
    mixed_objects=lambda c: (objects([(v, str(v), 2.5)[k % 3] for k, v in enumerate(c)], c), None),
    all_nan=lambda c: (c.astype("float64") * np.nan, c.astype("float64") * np.nan),
    all_masked=lambda c: (pd.Series(pd.NA, index=c.index, name=c.name, dtype="Int64"), c * np.nan),
)

forms(
    "number",
    infinity=lambda c: (c.where(c.index != 3, np.inf), c.where(c.index != 3, HUGE)),
    minus_infinity=lambda c: (c.where(c.index != 3, -np.inf), c.where(c.index != 3, -HUGE)),
    masked_floats=lambda c: (c.astype("Float64"), c),
    number_objects_nan_and_none=lambda c: (
        objects([(None if k % 2 else float("nan")) if v != v else v for k, v in enumerate(c)], c),
        c,
    ),
    number_text=lambda c: (c.astype("str"), c),
    arrow_floats=lambda c: (c.astype("double[pyarrow]"), c),
)

forms(
    "text",
    text_objects=lambda c: (objects([None if v != v else v for v in c], c), c),
    text_none_and_nan=lambda c: (
        objects([(None if k % 2 else float("nan")) if v != v else v for k, v in enumerate(c)], c),
        c,
    ),
    text_arrow=lambda c: (c.astype(pd.ArrowDtype(pa.large_string())), c),
    empty_text=lambda c: (_with(c, ""), _with(c, "").astype("str")),
    nul_bytes=lambda c: (_with(c, "Os\0lo"), _with(c, "Os\0lo").astype("str")),
    very_long_text=lambda c: (_with(c, "x" * 100_000), _with(c, "x" * 100_000).astype("str")),
    lone_surrogate=lambda c: (_with(c, "\ud800"), None),
    bytes_of_bad_utf8=lambda c: (objects([b"\xff\xfe"] * len(c), c), None),
    a_list_among_text=lambda c: (_with(c, [1]), None),
    a_number_among_text=lambda c: (_with(c, 7), None),
    numbers_for_text=lambda c: (pd.Series(np.arange(len(c)) % 3, index=c.index, name=c.name), None),
    moments_for_text=lambda c: (
        pd.Series(pd.to_datetime(np.arange(len(c)), unit="D"), index=c.index, name=c.name),
        None,
    ),
)
