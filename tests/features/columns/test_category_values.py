"""The same value is the same category however a frame holds it, and what is no category is refused by name."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gigabatch.features.columns.categories import (
    FLAG,
    FLOAT,
    TEXT,
    WHOLE,
    canonical_column,
    canonicalize,
    nullable,
    same_kind,
)
from gigabatch.features.columns.hashing import hash_values
from gigabatch.features.columns.numbers import whole_values
from gigabatch.features.errors import DataError
from gigabatch.features.history.key_index import KeyIndex
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.operators.groups.join_groupby import JoinGroupby
from gigabatch.features.vocabulary.vocabulary import Vocabulary


def column(values, dtype=None):
    return pd.Series(values, dtype=dtype, name="c")


def fit(values, dtype=None):
    return Categorify("c").fit([column(values, dtype).to_frame()])


@pytest.mark.parametrize(
    ("series", "kind", "dtype"),
    [
        (column(["a", None], "str"), TEXT, "str"),
        (column(["a", None], object), TEXT, "string"),
        (column(["a", None], "category"), TEXT, "category"),
        (column([1, 2], "int64"), WHOLE, "int64"),
        (column([1, 2], "int32"), WHOLE, "int32"),
        (column([1, 2], "uint8"), WHOLE, "int64"),
        (column([1, None], "Int64"), WHOLE, "int64"),
        (column([1, None], "Int32"), WHOLE, "int32"),
        (column([1, None], object), WHOLE, "int64"),
        (column([1, None]).astype("Int64").astype("category"), WHOLE, "int64"),
        (column([1.0, None], "float32"), FLOAT, "float64"),
        (column([True, None], object), FLAG, "bool"),
        (column([True, False], "bool"), FLAG, "bool"),
        (column([True, None], "boolean"), FLAG, "bool"),
        (column([np.nan, None], "float64"), None, "float64"),
        (column([None, None], object), None, "object"),
    ],
    ids=str,
)
def test_every_type_is_one_of_four_kinds_and_nulls_are_kept(series, kind, dtype):
    found = canonicalize(series, "Test")
    assert found.kind == kind
    assert str(found.values.dtype) == dtype
    assert found.null.tolist() == series.isna().tolist()
    if kind is not None:
        assert canonical_column(found).isna().tolist() == series.isna().tolist()


@pytest.mark.parametrize(
    "series",
    [
        column(pd.to_datetime(["2020-01-01", None])),
        column([datetime.date(2020, 1, 1)], object),
        column([b"a"], object),
        column([decimal.Decimal(1)], object),
        column([1, "a"], object),
        column([[1], [2]], object),
        column(pd.to_timedelta(["1s"])),
        column([1j]),
    ],
    ids=lambda series: f"{series.dtype}-{type(series.iloc[0]).__name__}",
)
def test_what_is_no_category_is_an_error_that_names_the_column(series):
    message = r"column 'c'.*(whole numbers|text, integers)"
    with pytest.raises(DataError, match="Categorify of 'c': " + message):
        Categorify("c").fit([series.to_frame()])
    for known in (["a"], [1], [0.5], [True]):
        with pytest.raises(DataError, match=message):
            fit(known).encode(series)


def test_unsigned_integers_beyond_int64_are_an_error():
    with pytest.raises(DataError, match=r"2\^63"):
        canonicalize(column([2**63], "uint64"), "Test")
    assert canonicalize(column([2**63 - 1], "uint64"), "Test").values.tolist() == [2**63 - 1]


def test_large_integers_beside_nulls_stay_exact():
    large = [2**60 + 1, None, 2**60]
    vocabulary = fit(large, "Int64")
    assert vocabulary.encode(column(large, "Int64")).tolist() == [4, 1, 3]
    assert vocabulary.decode([4, 1, 3]).tolist() == [2**60 + 1, pd.NA, 2**60]


def test_integers_too_wide_for_the_fits_type_are_unseen_not_wrapped():
    vocabulary = fit([5, 6], "int32")
    assert vocabulary.encode(column([2**32 + 5, 6], "int64")).tolist() == [2, 4]
    assert fit([2**40, 6]).encode(column([6, 5], "int32")).tolist() == [3, 2]


def test_a_fraction_or_an_infinity_among_whole_numbers_is_unseen():
    assert fit([7, 8]).encode(column([7.0, 7.5, np.inf, -np.inf, None])).tolist() == [3, 2, 2, 2, 1]


def test_floats_that_may_be_another_number_rounded_are_an_error():
    for value in (2.0**53, -(2.0**60)):
        with pytest.raises(DataError, match=r"column 'c'.*1 value\(s\) reach 2\^53"):
            fit([7, 8]).encode(column([7.0, value]))
    with pytest.raises(DataError, match=r"reach 2\^53"):
        fit([7.5, 8.0]).encode(column([2**53]))


def test_whole_numbers_are_found_among_floats():
    assert fit([7.5, 8.0, 8.0]).encode(column([8, 7], "int32")).tolist() == [3, 2]


def test_minus_zero_is_zero():
    vocabulary = fit([0.0, -0.0, 0.5])
    assert vocabulary.values.tolist() == [0.0, 0.5]
    assert vocabulary.encode(column([-0.0, 0.0])).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("known", "asked"),
    [([7, 8], ["7"]), (["7"], [7]), (["7"], [7.0]), ([True, False], [1]), ([1, 0], [True]), ([0.5], ["0.5"]),
     (["True"], [True])],
)  # fmt: skip
def test_another_kind_than_at_fit_is_an_error_not_an_unseen_value(known, asked):
    with pytest.raises(DataError, match=r"column 'c' holds .*, the vocabulary .*Cast the column"):
        fit(known).encode(column(asked))


@pytest.mark.parametrize("known", [["a"], [1], [0.5], [True]])
@pytest.mark.parametrize("dtype", ["float64", "object", "str", "datetime64[ns]", "Int64", "category"])
def test_a_column_of_nulls_only_is_null_whatever_its_type(known, dtype):
    assert fit(known).encode(column([None, None], dtype)).tolist() == [1, 1]


def test_category_types_count_by_value_whatever_their_order():
    words = column(pd.Categorical(["b", "a", "b", None], categories=["zzz", "b", "a"], ordered=True))
    numbers = column(pd.Categorical([20, 10, 20, None], categories=[99, 20, 10]))
    assert fit(words).values.tolist() == ["b", "a"]
    assert fit(numbers).values.tolist() == [20, 10]
    assert fit(["b", "a", "b"]).encode(words).tolist() == [3, 4, 3, 1]
    assert fit([20, 10, 20]).encode(numbers).tolist() == [3, 4, 3, 1]


def test_columns_of_one_kind_stand_below_each_other():
    left, right = same_kind(column([1], "int32"), column([2], "int64"), "Test")
    assert (str(left.dtype), str(right.dtype)) == ("int64", "int64")
    left, right = same_kind(column([1], "int64"), column([2.5]), "Test")
    assert (left.tolist(), right.tolist()) == ([1.0], [2.5])
    left, right = same_kind(column([], object), column(["a"], "str"), "Test")
    assert str(left.dtype) == "str"
    with pytest.raises(DataError, match=r"Test: some rows hold text .* others whole numbers"):
        same_kind(column(["a"], "str"), column([1]), "Test")
    with pytest.raises(DataError, match=r"reach 2\^53"):
        same_kind(column([2**53]), column([2.5]), "Test")


WIDTHS = ["Int32", "Int64", "Int8", pd.ArrowDtype(pa.int16()), "float64", "object", "category"]


@pytest.mark.parametrize("one", WIDTHS, ids=str)
@pytest.mark.parametrize("other", WIDTHS, ids=str)
def test_partitions_that_hold_the_same_values_in_other_types_are_fitted_together(one, other):
    """Of objects and category types what they hold tells; nulls stay nulls where widths differ."""
    parts = [
        pd.DataFrame({"c": column([7, None, 7], one), "d": ["a", "a", "b"], "x": [1.0, 2.0, 4.0]}),
        pd.DataFrame({"c": column([7, None, 9], other), "d": ["a", "a", "b"], "x": [8.0, 16.0, 32.0]}),
    ]
    category = Categorify(combined=["c", "d"], output="id")
    ids = [category.apply(part, category.fit(parts))["id"].tolist() for part in parts]
    assert [sorted(ids[0][:2]), ids[1][:2]] == [[3, 4], ids[0][:2]]  # both pairs twice
    assert sorted([ids[0][2], ids[1][2]]) == [5, 6]
    sums = JoinGroupby(["c"], ["x"], ["sum"])
    found = [sums.apply(part, sums.fit(parts))["x_sum_by_c"].tolist() for part in parts]
    np.testing.assert_array_equal(found, [[13.0, np.nan, 13.0], [13.0, np.nan, 32.0]])


def test_flags_among_objects_and_flags_are_one_kind():
    left, right = same_kind(column([True, None], "object"), column([True, False]), "here")
    assert (left.dropna().tolist(), right.tolist()) == ([True], [True, False])


def test_partitions_of_different_kinds_are_an_error_at_fit():
    with pytest.raises(DataError, match="Categorify of 'c': some rows hold"):
        Categorify("c").fit([column([1]).to_frame(), column(["1"], "str").to_frame()])


def test_integers_of_one_file_and_floats_of_another_are_one_vocabulary():
    parts = [column([1, 2, 2], "int64").to_frame(), column([2.0, None, 3.0]).to_frame()]
    for order in (parts, parts[::-1]):
        vocabulary = Categorify("c").fit(order)
        assert dict(zip(vocabulary.values, vocabulary.counts, strict=True)) == {2.0: 3, 1.0: 1, 3.0: 1}
        assert vocabulary.encode(parts[0]["c"]).tolist() == [4, 3, 3]


def test_nullable_keeps_integers_and_flags():
    null = pd.Series([False, True])
    assert nullable(column([2**60 + 1, 2]), null).tolist() == [2**60 + 1, pd.NA]
    assert nullable(column([True, False]), null).tolist() == [True, pd.NA]
    assert nullable(column([0.5, 1.0]), null).isna().tolist() == [False, True]


@pytest.mark.parametrize(("dtype", "exact"), [("float32", 2**24), ("float64", 2**53)])
def test_floats_stand_for_ids_only_as_far_as_their_type_is_exact(dtype, exact):
    """F13: in a look-up, in a hash and where whole numbers belong."""
    good, bad = (pd.Series(np.array([value, 1], dtype), name="id") for value in (exact - 1, exact))
    known = Vocabulary(pd.Series([exact - 1, exact]), pd.Series([1, 1]))
    assert known.encode(good).tolist() == [3, 2]
    assert hash_values(good, "here")[0].tolist() == hash_values(good.astype("int64"), "here")[0].tolist()
    assert whole_values(good, "here").tolist() == [exact - 1, 1]
    for use in (known.encode, lambda column: hash_values(column, "here"), lambda column: whole_values(column, "here")):
        with pytest.raises(DataError, match=rf"'id'.*2\^{exact.bit_length() - 1}"):
            use(bad)


@pytest.mark.parametrize(("at_fit", "after"), [("float64", "float32"), ("float32", "float64")])
def test_fractions_of_another_width_than_at_fit_are_an_error_not_unseen(at_fit, after):
    values = [0.1, 0.2, 0.5]
    known = fit(values, at_fit)
    assert sorted(known.encode(column(values, at_fit)).tolist()) == [3, 4, 5]
    with pytest.raises(DataError, match=rf"column 'c' is {after} and what it is compared with {at_fit}, and 2 value"):
        known.encode(column(values, after))
    index = KeyIndex(pd.DataFrame({"c": column(values, at_fit)}), ["c"], "Join")
    with pytest.raises(DataError, match=rf"Join: column 'c' is {after}"):
        index.rows(pd.DataFrame({"c": column(values, after)}))


def test_values_that_both_widths_hold_alike_are_found_in_either():
    assert fit([0.5, 1.0, 7.25]).encode(column([0.5, 7.25, 0.1, None], "float32")).tolist() == [3, 5, 2, 1]
    assert fit([0.5, 1.0], "float32").encode(column([1.0, 0.5000000001, 1e300, np.inf])).tolist() == [4, 2, 2, 2]
    assert fit([0.1, 3.0]).encode(column([3.0, 0.3], "float32")).tolist() == [4, 2]


def test_what_cannot_be_hashed_is_told_by_the_columns_own_type():
    with pytest.raises(DataError, match="column 'c' is float32 and 1 value"):
        hash_values(column([0.1], "float32"), "HashBucket")


@pytest.mark.parametrize(
    "series",
    [column([["a"], None, ["b"]], object), column([np.array([1]), np.array([2])], object), column([("a",)], object),
     column(pa.array([["a"], ["b"]]), pd.ArrowDtype(pa.list_(pa.string())))],
    ids=["lists", "arrays", "tuples", "Arrow"],
)  # fmt: skip
def test_of_lists_it_says_who_takes_them(series):
    with pytest.raises(DataError, match=r"'c' holds lists.*Categorify takes lists with lists=True, ListSlice and"):
        Categorify("c").fit([series.to_frame()])
