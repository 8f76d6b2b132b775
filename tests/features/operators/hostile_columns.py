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


def form(*kinds):
    def keep(function):
        for kind in kinds:
            FORMS[kind, function.__name__] = function
        return function

    return keep


def objects(values, like):
    column = pd.Series([None] * len(values), index=like.index, name=like.name, dtype=object)
    for k, value in enumerate(values):
        column.iat[k] = value
    return column


# Whole numbers.
@form("whole")
def whole_as_float(column):
    return column.astype("float64"), column


@form("whole")
def whole_as_text(column):
    return column.astype("str"), column


@form("whole")
def whole_as_objects(column):
    return column.astype(object), column


@form("whole")
def whole_as_int16(column):
    return column.astype("int16"), column


@form("whole")
def whole_as_uint64(column):
    return column.astype("uint64"), column


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
def whole_as_arrow(column):
    return column.astype("int64[pyarrow]"), column


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
def decimals(column):
    return objects([Decimal(int(v)) for v in column], column), None


@form("whole")
def decimals_with_fraction(column):
    return objects([Decimal(int(v)) + Decimal("0.5") for v in column], column), None


@form("whole")
def whole_category_reversed(column):
    values = sorted(set(column), reverse=True)
    return pd.Series(pd.Categorical(column, categories=values), index=column.index, name=column.name), column


@form("whole")
def moments_ns(column):
    return pd.to_datetime(column, unit="s").astype("datetime64[ns]"), None


@form("whole")
def moments_s_in_zone(column):
    return pd.to_datetime(column, unit="s").dt.tz_localize("UTC").dt.tz_convert("America/New_York"), None


@form("whole")
def moments_of_mixed_zones(column):
    zones = (UTC, timezone(timedelta(hours=2)))
    return objects([datetime.fromtimestamp(int(v), zones[k % 2]) for k, v in enumerate(column)], column), None


@form("whole")
def durations(column):
    return pd.to_timedelta(column, unit="s"), None


@form("whole", "number")
def complex_numbers(column):
    return column.astype("complex128"), None


@form("whole", "number")
def lists_of_numbers(column):
    return objects([[v] for v in column], column), None


# Numbers. Where an infinity is allowed it counts like a number beyond all others, HUGE.
HUGE = 1e30


@form("number")
def infinity(column):
    return column.where(column.index != 3, np.inf), column.where(column.index != 3, HUGE)


@form("number")
def minus_infinity(column):
    return column.where(column.index != 3, -np.inf), column.where(column.index != 3, -HUGE)


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
def masked_floats(column):
    return column.astype("Float64"), column


@form("number")
def masked_holding_nan(column):
    hostile = pd.Series(pd.arrays.FloatingArray(column.fillna(0).to_numpy(), np.zeros(len(column), bool)),
                        index=column.index, name=column.name)  # fmt: skip
    return hostile.mask(column.isna()), column


@form("number")
def number_objects_nan_and_none(column):
    return objects([(None if k % 2 else float("nan")) if v != v else v for k, v in enumerate(column)], column), column


@form("number")
def number_text(column):
    return column.astype("str"), column


@form("number")
def arrow_floats(column):
    return column.astype("double[pyarrow]"), column


@form("number")
def flags_with_null(column):
    null = column.isna()
    plain = (column > 0).astype("float64").mask(null)
    return (column > 0).astype("boolean").mask(null), plain


@form("whole", "number")
def mixed_objects(column):
    return objects([(v, str(v), 2.5)[k % 3] for k, v in enumerate(column)], column), None


@form("whole", "number")
def all_nan(column):
    return column.astype("float64") * np.nan, column.astype("float64") * np.nan


@form("whole", "number", "text")
def all_none(column):
    plain = column.astype("str" if str(column.dtype) == "str" else "float64").mask(column.notna())
    return objects([None] * len(column), column), plain


@form("whole", "number")
def all_masked(column):
    return pd.Series(pd.NA, index=column.index, name=column.name, dtype="Int64"), column * np.nan


# Text.
@form("text")
def text_objects(column):
    return objects([None if v != v else v for v in column], column), column


@form("text")
def text_none_and_nan(column):
    return objects([(None if k % 2 else float("nan")) if v != v else v for k, v in enumerate(column)], column), column


@form("text")
def text_arrow(column):
    return column.astype(pd.ArrowDtype(pa.large_string())), column


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


@form("text")
def empty_text(column):
    return _with(column, ""), _with(column, "").astype("str")


@form("text")
def nul_bytes(column):
    return _with(column, "Os\0lo"), _with(column, "Os\0lo").astype("str")


@form("text")
def very_long_text(column):
    return _with(column, "x" * 100_000), _with(column, "x" * 100_000).astype("str")


@form("text")
def lone_surrogate(column):
    return _with(column, "\ud800"), None


@form("text")
def bytes_of_bad_utf8(column):
    return objects([b"\xff\xfe"] * len(column), column), None


@form("text")
def a_list_among_text(column):
    return _with(column, [1]), None


@form("text")
def a_number_among_text(column):
    return _with(column, 7), None


@form("text")
def numbers_for_text(column):
    return pd.Series(np.arange(len(column)) % 3, index=column.index, name=column.name), None


@form("text")
def moments_for_text(column):
    return pd.Series(pd.to_datetime(np.arange(len(column)), unit="D"), index=column.index, name=column.name), None
