"""GroupbyToSequence against a loop over groups."""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.operators.history.groupby_to_sequence import GroupbyToSequence
from gigabatch.features.workflow.workflow import Workflow
from tests.examples import examples

ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 1), st.sampled_from(["x", "yy", "", None])),
    max_size=30,
)


@given(rows=ROWS, length=st.integers(1, 6), separator=st.sampled_from(["|", ", ", None]), seed=st.integers(0, 99))
@settings(max_examples=examples(80), deadline=None)
def test_equals_a_loop_over_groups(rows, length, separator, seed):
    frame = pd.DataFrame(rows, columns=["k", "j", "s"]).astype({"k": "str", "j": "int64", "s": "str"})
    frame["at"] = np.random.default_rng(seed).permutation(len(frame)).astype("int64")
    found = GroupbyToSequence(("k", "j"), "at", ["s", "at"], length, separator)(frame)
    lists = {}
    for (key, number, text), at in sorted(zip(rows, frame["at"], strict=True), key=lambda row: row[1]):
        if key is not None:
            lists.setdefault((key, number), []).append((text, at) if separator is None else (text or "", str(at)))
    expected = [
        (*key, *(list(column) if separator is None else separator.join(column)
                 for column in zip(*entries[-length:], strict=True)))
        for key, entries in sorted(lists.items())
    ]  # fmt: skip
    if separator is None:
        found = found.assign(s=[list(row) for row in found["s"]], at=[list(row) for row in found["at"]])
    assert list(found[["k", "j", "s", "at"]].itertuples(index=False, name=None)) == expected


@pytest.mark.parametrize("separator", ["|", None])
def test_whole_numbers_of_a_category_type_beside_nulls_keep_their_digits(separator):
    values = [2**53 + 1, None, -5]
    column = pd.Series(pd.Categorical(values, categories=[2**53 + 1, -5]))
    frame = pd.DataFrame({"k": [1, 1, 1], "at": [0, 1, 2], "v": column})
    found = GroupbyToSequence(["k"], "at", ["v"], 9, separator)(frame)["v"].iloc[0]
    assert (list(found) if separator is None else found) == (values if separator is None else "9007199254740993||-5")


def test_text_with_the_separator_is_an_error():
    frame = pd.DataFrame({"k": [1], "at": [0], "s": ["a|b"]})
    with pytest.raises(DataError, match=r"column 's' holds text with the separator '\|'"):
        GroupbyToSequence(("k",), "at", ["s"], 2)(frame)


@pytest.mark.parametrize(
    ("columns", "length", "message"),
    [(["x"], 0, "max_length must be at least 1"), (["k", "x"], 2, "none of them both, found 'k' in both"),
     ([], 2, "give keys and columns")],
)  # fmt: skip
def test_settings_without_meaning_are_an_error(columns, length, message):
    with pytest.raises(DataError, match=message):
        GroupbyToSequence(("k", "j"), "at", columns, length)


def test_whole_numbers_beyond_floats_and_nulls_stay_what_they_are_in_lists():
    frame = pd.DataFrame({"k": [1, 1], "at": [0, 1], "x": pd.array([2**60 + 1, None], dtype="Int64")})
    assert list(GroupbyToSequence(("k",), "at", ["x"], 2, None)(frame)["x"][0]) == [2**60 + 1, None]


@pytest.mark.parametrize("dtype", ["str", "string", "object"])
def test_text_of_several_parts_is_one_sequence(dtype):
    """Text that lies in several pieces, as that of parts below each other does, ended in a TypeError of Arrow."""
    frame = pd.DataFrame({"k": [1, 1, 2], "at": [1, 2, 3], "s": pd.Series(["a", "b", "c"], dtype=dtype)})
    below = pd.concat([frame[:2], frame[2:]], ignore_index=True)
    assert GroupbyToSequence(("k",), "at", ["s"], 3, "|")(below)["s"].tolist() == ["a|b", "c"]
    steps = [{"groupby_to_sequence": {"by": ["k"], "order": "at", "columns": ["s"], "max_length": 3}}]
    (made,) = Workflow.from_steps(steps).fit_transform([frame[:2], frame[2:]])
    assert made["s"].tolist() == ["a|b", "c"]


@given(rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(-2, 2), st.floats(-3, 3, width=32))),
       seed=st.integers(0, 9))  # fmt: skip
@settings(max_examples=examples(60), deadline=None)
def test_further_columns_settle_the_ties_of_the_order(rows, seed):
    frame = pd.DataFrame(rows, columns=["k", "day", "hour", "x"]).astype(
        {"k": int, "day": int, "hour": int, "x": float}
    )
    frame["row"] = np.random.default_rng(seed).permutation(len(frame)) - 3
    found = GroupbyToSequence(["k"], ["day", "hour", "row"], ["row", "x"], 99, None)(frame)
    expected = {}
    for one in sorted(frame.itertuples(index=False), key=lambda one: (one.day, one.hour, one.row)):
        expected.setdefault(one.k, []).append((one.row, one.x))
    assert found["k"].tolist() == sorted(expected)
    assert [list(zip(*both, strict=True)) for both in zip(found["row"], found["x"], strict=True)] == [
        expected[key] for key in sorted(expected)
    ]


def test_fractions_are_lists_and_no_text():
    frame = pd.DataFrame({"k": [1, 1, 2], "at": [2, 1, 1], "x": [0.25, 1.5, None]})
    found = GroupbyToSequence(["k"], "at", ["x"], 5, None)(frame)["x"]
    assert list(found[0]) == [1.5, 0.25]
    assert np.isnan(found[1]).tolist() == [True]
    with pytest.raises(DataError, match=r"'x' is float64.*or make lists of it \(separator=None\)"):
        GroupbyToSequence(["k"], "at", ["x"], 5)(frame)


def test_ties_that_nothing_settles_are_refused():
    frame = pd.DataFrame({"k": [1, 1, 1], "at": [7, 7, 8], "b": [3, 3, 1], "x": [1, 2, 3]})
    with pytest.raises(DataError, match=r"order column 'at' is not unique.*1 repeat.*example 7\. Name a further"):
        GroupbyToSequence(["k"], "at", ["x"], 5)(frame)
    with pytest.raises(DataError, match=r"order columns \['at', 'b'\] are not unique.*example 7, 3\."):
        GroupbyToSequence(["k"], ["at", "b"], ["x"], 5)(frame)
    with pytest.raises(DataError, match="name a column under order"):
        GroupbyToSequence(["k"], [], ["x"], 5)


AGGREGATED = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]),
        st.none() | st.integers(-(2**62), 2**62) | st.integers(-3, 3),
        st.none() | st.floats(-1e20, 1e20) | st.sampled_from([0.1, 0.2, 1e16, -1e16]),
        st.none() | st.booleans(),
        st.sampled_from(["x", "yy", "", None]),
    ),
    max_size=30,
)
HOWS = ("first", "last", "count", "nunique", "min", "max", "sum", "mean", "std", "var")


def by_hand(values, how):
    """Of one group's values in order, None for null; sums, means and variances as fractions, rounded once."""
    known = [value for value in values if value is not None]
    if how in ("first", "last"):
        return values[0 if how == "first" else -1]
    if how in ("count", "nunique"):
        return len(values) if how == "count" else len(set(known))
    if not known:
        return None
    if how in ("min", "max"):
        return min(known) if how == "min" else max(known)
    total = sum(Fraction(value) for value in known)
    if how == "mean":
        return float(total / len(known))
    if how in ("std", "var"):
        if len(known) < 2:
            return None
        mean = total / len(known)
        variance = float(sum((Fraction(value) - mean) ** 2 for value in known) / (len(known) - 1))
        return math.sqrt(variance) if how == "std" else variance
    return float(total) if isinstance(known[0], float) else int(total)


@given(rows=AGGREGATED, seed=st.integers(0, 99), storage=st.sampled_from(["numpy", "arrow"]))
@settings(max_examples=examples(80), deadline=None)
def test_aggregations_equal_a_loop_over_groups(rows, seed, storage):
    names, types = ["k", "i", "f", "b", "s"], ["str", "Int64", "float64", "boolean", "str"]
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    if storage == "arrow":
        types = [pd.ArrowDtype(one) for one in (pa.string(), pa.int64(), pa.float64(), pa.bool_(), pa.string())]
    frame = pd.DataFrame({name: pd.array(columns[name], dtype=kind) for name, kind in zip(names, types, strict=True)})
    frame["at"] = np.random.default_rng(seed).permutation(len(frame)).astype("int64")
    groups = {}
    for row, _ in sorted(zip(rows, frame["at"], strict=True), key=lambda pair: pair[1]):
        if row[0] is not None:
            groups.setdefault(row[0], []).append(row)
    asked = {f"{name}_{how}": (name, how) for name in "ifbs" for how in HOWS if name != "s" or how in HOWS[:4]}
    expected = {
        new: [by_hand([row[names.index(name)] for row in groups[key]], how) for key in sorted(groups)]
        for new, (name, how) in asked.items()
    }
    large = [total for total in expected["i_sum"] if total is not None and not -(2**63) <= total < 2**63]
    if large:
        del asked["i_sum"], expected["i_sum"]
    found = GroupbyToSequence(["k"], "at", ["s"], 1, aggregations=asked)(frame)
    assert list(found.columns) == ["k", "s", *asked]
    for new, values in expected.items():
        assert [None if pd.isna(one) else one for one in found[new]] == values, new
    if large:
        with pytest.raises(DataError, match=r"column 'i' holds whole numbers whose sum leaves int64"):
            GroupbyToSequence(["k"], "at", ["s"], 1, aggregations={"i_sum": ("i", "sum")})(frame)


def test_aggregations_are_those_of_pandas_with_their_types():
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({
        "k": rng.integers(0, 40, 500), "at": rng.permutation(500), "i": rng.integers(-9, 9, 500).astype("int16"),
        "u": rng.integers(0, 9, 500).astype("uint8"), "f": rng.integers(-99, 99, 500).astype("float32") / 4,
        "b": rng.random(500) < 0.5, "d": pd.to_datetime(rng.integers(0, 10**9, 500), unit="s"),
    })  # fmt: skip
    asked = {f"{name}_{how}": (name, how) for name in "iufbd" for how in HOWS if name != "d" or how in HOWS[:3]}
    found = GroupbyToSequence(["k"], "at", ["i"], 3, None, asked)(frame)
    groups = frame.sort_values("at").groupby("k")
    for new, (name, how) in asked.items():
        wanted = groups[name].agg({"count": "size", "std": "first", "var": "first"}.get(how, how))
        if new == "f_mean":  # pandas' own is rounded to float32
            wanted = frame["f"].astype("float64").groupby(frame["k"]).mean()
        if how in ("std", "var"):
            exact = frame[name].astype("float64").groupby(frame["k"]).agg(how)
            np.testing.assert_allclose(found[new], exact, rtol=1e-12)
        else:
            assert found[new].tolist() == wanted.tolist(), new
        kept = (
            "float64"
            if how in ("mean", "std", "var")
            else "int64"
            if how in ("count", "nunique")
            else str(frame[name].dtype)
        )
        if how == "sum":
            kept = "float64" if name == "f" else "int64"
        assert str(found[new].dtype) == kept, new


def test_a_group_without_a_value_is_null_and_counted():
    frame = pd.DataFrame({
        "k": [1, 1, 2, 2], "at": range(4), "i": pd.array([None, None, 2, None], "Int64"), "f": [None, None, 2.5, None],
        "n": [None] * 4,
    })  # fmt: skip
    asked = {f"{name}_{how}": [name, how] for name in "ifn" for how in HOWS}
    found = GroupbyToSequence(["k"], "at", ["at"], 9, None, asked)(frame)
    for new, (name, how) in asked.items():
        value = 2.5 if name == "f" else 2
        second = {"count": 2, "nunique": 1, "last": None, "std": None, "var": None}.get(how, value)
        if name == "n":
            second = {"count": 2, "nunique": 0}.get(how)
        first = {"count": 2, "nunique": 0}.get(how)
        assert [None if pd.isna(one) else one for one in found[new]] == [first, second], new
    assert str(found["i_sum"].dtype) == "Int64"


def test_no_rows_give_no_groups():
    frame = pd.DataFrame({"k": [None, None], "at": [1, 2], "x": [0.5, 1.5]})
    for some in (frame, frame.head(0)):
        asked = {how: ["x", how] for how in HOWS}
        assert GroupbyToSequence(["k"], "at", ["at"], 9, None, asked)(some).shape == (0, 12)
        alone = GroupbyToSequence(["k"], "at", aggregations=asked)(some)
        assert list(alone.columns) == ["k", *HOWS]
        assert len(alone) == 0


def test_aggregations_alone_make_no_lists_and_without_first_and_last_need_no_order():
    rng = np.random.default_rng(6)
    frame = pd.DataFrame({"k": rng.integers(0, 9, 80), "j": pd.array(rng.choice(["a", "b", None], 80), "str")})
    frame = frame.assign(at=7, x=rng.normal(size=80))  # an order that would be refused for its repeats
    asked = {how: ("x", how) for how in HOWS[2:]}
    found = GroupbyToSequence(["k", "j"], aggregations=asked)(frame)
    expected = frame.groupby(["k", "j"])["x"].agg(["size", *HOWS[3:]]).reset_index()
    assert list(found.columns) == ["k", "j", *asked]
    assert found["k"].tolist() == expected["k"].tolist()
    assert found["j"].tolist() == expected["j"].tolist()
    for how in asked:
        np.testing.assert_allclose(found[how], expected["size" if how == "count" else how], rtol=1e-9)
    again = GroupbyToSequence(["k", "j"], aggregations=asked)(frame.sample(frac=1, random_state=1))
    pd.testing.assert_frame_equal(found, again)
    step = GroupbyToSequence(["k"], aggregations={"x": ("x", "max")})
    assert (step.inputs, step.outputs, step.columns_after(["k", "x", "y"])) == (("k", "x"), ("x",), ("k", "x"))
    steps = [{"groupby_to_sequence": {"by": ["k"], "aggregations": {"spread": ["x", "std"]}}}]
    (made,) = Workflow.from_steps(steps).fit_transform([frame])
    np.testing.assert_allclose(made["spread"], frame.groupby("k")["x"].std(), rtol=1e-9)
    frame["at"] = rng.permutation(80)
    ends = GroupbyToSequence(["k"], "at", aggregations={"one": ("x", "first"), "two": ("x", "last")})(frame)
    groups = frame.sort_values("at").groupby("k")["x"]
    assert ends["one"].tolist() == groups.first().tolist()
    assert ends["two"].tolist() == groups.last().tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"order": "at"}, r"\(or aggregations alone\)"),
     ({"order": "at", "aggregations": {}}, r"\(or aggregations alone\)"),
     ({"order": "at", "columns": ["x"]}, "max_length is of lists. Give one"),
     ({"max_length": 3, "aggregations": {"m": ["x", "max"]}}, "max_length is of lists. Leave it out"),
     ({"aggregations": {"m": ["x", "last"]}}, "name a column under order, which lists, first and last follow"),
     ({"columns": ["x"], "max_length": 3}, "name a column under order, which lists")],
)  # fmt: skip
def test_what_lists_and_ends_need_is_asked_for(arguments, message):
    with pytest.raises(DataError, match=message):
        GroupbyToSequence(["k"], **arguments)


@pytest.mark.parametrize("how", ["min", "max", "sum", "mean", "std", "var"])
def test_text_dates_and_infinities_are_not_added_up(how):
    frame = pd.DataFrame({"k": [1], "at": [0], "s": ["7"], "d": pd.to_datetime(["2026-01-01"]), "f": [np.inf]})
    for name in "sd":
        with pytest.raises(DataError, match=rf"GroupbyToSequence: column '{name}' is .*, not a number\. Cast it first"):
            GroupbyToSequence(["k"], "at", ["s"], 2, aggregations={"x": [name, how]})(frame)
    step = GroupbyToSequence(["k"], "at", ["s"], 2, aggregations={"x": ["f", how]})
    if how in ("min", "max"):
        assert step(frame)["x"].tolist() == [np.inf]
        return
    with pytest.raises(DataError, match="column 'f' holds an infinity"):
        step(frame)


@pytest.mark.parametrize(
    ("aggregations", "message"),
    [({"x": ["s", "median"]}, r"one of first, last.* found 'x': \['s', 'median'\]"), ({"x": "s"}, "found 'x': 's'"),
     ({"x": ["s"]}, r"found 'x': \['s'\]"), ({"": ["s", "max"]}, "found ''"),
     ({"k": ["s", "max"]}, "'k' is a key or a list"), ({"s": ["s", "first"]}, "'s' is a key or a list")],
)  # fmt: skip
def test_aggregations_without_meaning_are_an_error(aggregations, message):
    with pytest.raises(DataError, match=message):
        GroupbyToSequence(["k"], "at", ["s"], 2, aggregations=aggregations)


def test_aggregations_tell_the_label_that_they_are_made_of():
    step = GroupbyToSequence(["k"], "at", ["s"], 2, aggregations={"n": ["late", "count"], "x": ["late", "max"]})
    assert step.inputs == ("k", "at", "s", "late")
    assert step.outputs == ("s", "n", "x")
    assert step.columns_after(["a", "late"]) == ("k", "s", "n", "x")
    assert step.tells(["late"]) == ("x",)
    assert step.tells(["s"]) == ("s",)
    steps = [{"groupby_to_sequence": {"by": ["k"], "order": "at", "columns": ["s"], "max_length": 2,
                                      "aggregations": {"late": ["late", "max"]}}}]  # fmt: skip
    workflow = Workflow.from_steps(steps, labels=["late"])
    assert workflow.to_steps()[0]["groupby_to_sequence"]["aggregations"] == {"late": ["late", "max"]}
    steps[0]["groupby_to_sequence"]["aggregations"] = {"worst": ["late", "max"]}
    with pytest.raises(DataError, match="makes 'worst' from the label 'late'"):
        Workflow.from_steps(steps, labels=["late"])
