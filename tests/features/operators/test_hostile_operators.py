"""Every operator against columns as they should not come: refused by the column's name, or what its case states.

Unless a case (`hostile_cases`) states otherwise, an operator makes of a form what it makes of the plain column of the
same values, and that is what its own test proves.
"""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.operators import operator_class, operator_names
from gigabatch.features.operators.base import FittedOperator
from gigabatch.features.operators.categories.hash_bucket import HashBucket
from gigabatch.features.operators.groups.join_external import JoinExternal
from gigabatch.features.operators.groups.join_groupby import JoinGroupby
from gigabatch.features.operators.history.count_encoding import CountEncoding, LastBefore
from gigabatch.features.operators.history.rolling import Rolling
from gigabatch.features.operators.rows.cast import Cast
from gigabatch.features.operators.rows.date_parts import DateParts
from gigabatch.features.operators.rows.lambda_function import register_function
from tests.features.operators.hostile_cases import AS_NULL, CASES, REFUSED, RELABELLED, TABLE, UNTOUCHED
from tests.features.operators.hostile_columns import FORMS, HUGE

KINDS = {"int64": "whole", "float64": "number", "str": "text"}
NO_VALUE = {"all_nan", "all_none", "all_masked", "text_all_null", "text_category_all_null"}
PAIRS = [pytest.param(case, column, id=f"{case}-of-{column}") for case in CASES for column in case.roles]


def applied_inputs(case):
    """Inputs of the apply of a fitted operator; none of another kind."""
    return case.make().applied_inputs if case in FITTED else ()


FITTED = [case for case in CASES if issubclass(operator_class(case.operator), FittedOperator)]
LATER = [pair for pair in PAIRS if pair.values[1] in applied_inputs(pair.values[0])]


@pytest.fixture(autouse=True)
def _registered():
    register_function("hostile_copy", _copy, inputs=["full"], outputs=["copy"])


def _copy(frame):
    return frame.rename(columns={"full": "copy"})


def run(case, fitted_on, frame):
    operator = case.make()
    if not isinstance(operator, FittedOperator):
        return operator(frame)
    if fitted_on is not TABLE:
        return operator.apply(frame, fit_parts(operator, fitted_on))
    if id(case) not in OF_TABLE:
        OF_TABLE[id(case)] = fit_parts(operator, TABLE)
    return operator.apply(frame, OF_TABLE[id(case)])


def fit_parts(operator, frame):
    return operator.fit([frame.iloc[:15], frame.iloc[15:15], frame.iloc[15:]])


OF_TABLE: dict = {}  # by case: the state of the plain table


def run_plain(case, column, plain, later):
    """What becomes of the table with a plain column in the place of its own, which several forms have in common."""
    key = id(case), column, later, str(plain.dtype), repr(plain.tolist())
    if key not in OF_PLAIN:
        other = TABLE.assign(**{column: plain})
        OF_PLAIN[key] = run(case, TABLE if later else other, other)
    return OF_PLAIN[key]


OF_PLAIN: dict = {}


def plain_values(column):
    """A column as Python's values: None for null, infinities for what is as large as HUGE, tuples for lists."""
    found = []
    for value in column:
        if isinstance(value, (list, np.ndarray)):
            found.append(tuple(value))
        elif pd.isna(value):
            found.append(None)
        elif isinstance(value, (float, np.floating)) and abs(value) >= HUGE / 1e5:
            found.append(float(np.copysign(np.inf, value)))
        else:
            found.append(value)
    return found


def difference(found, wanted, columns):
    """What differs in these columns, in words; None if nothing does."""
    if set(found.columns) != set(wanted.columns) or len(found) != len(wanted):
        return f"columns {list(found.columns)} and {len(found)} rows, not {list(wanted.columns)} and {len(wanted)}"
    for name in columns:
        pairs = zip(plain_values(found[name]), plain_values(wanted[name]), strict=True)
        wrong = [pair for pair in pairs if pair[0] != pair[1]]
        if wrong:
            return f"column {name!r}: (found, wanted) {wrong[:3]}"
    return None


def made(case, frame):
    """The columns of the result that the operator made, or that it passes on."""
    return [name for name in frame.columns if name not in TABLE.columns or name in case.make().outputs]


def untouched(case, found, frame, column):
    """A role `any`: the values that come out, in the rows that stay, are those that went in, of the same type."""
    name = {"rename": "cost", "lambda_function": "copy"}.get(case.operator, column)
    rows = found.index
    if case.operator == "explode_lists":  # a row an entry, on a new index
        rows = [row for row, words in frame["words"].items() if isinstance(words, str) for _ in words.split("|")]
    expected = frame[column].loc[rows]
    pairs = zip(found[name], expected, strict=True)
    same = all(a is b or (pd.isna(a) is True and pd.isna(b) is True) or a == b for a, b in pairs)
    dropped = set(frame.index) - set(rows)
    for row in dropped if case.operator == "drop_nulls" else ():
        same = same and any(pd.isna(frame[name][row]) is True for name in case.roles)
    return None if same and found[name].dtype == frame[column].dtype else "the values that come out are others"


def failure(case, column, form, later):
    """What is wrong with the outcome, in words; None if nothing is."""
    hostile, plain = FORMS[KINDS[str(TABLE[column].dtype)], form](TABLE[column])
    frame = TABLE.assign(**{column: hostile})
    outcome = case.outcome(column, form, later)
    nothing = (case.later_nothing if later else case.nothing)[column] if form in NO_VALUE else None
    outcome = REFUSED if nothing == REFUSED else outcome
    try:
        found = run(case, TABLE if later else frame, frame)
    except DataError as error:
        return None if outcome == REFUSED and repr(column) in str(error) else f"DataError: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if outcome == REFUSED:
        return f"not refused, made {plain_values(found.iloc[:3, -1])}"
    if outcome == UNTOUCHED:
        return untouched(case, found, frame, column)
    if callable(outcome):
        name = column if column in case.make().outputs else made(case, found)[-1]
        return wrong_values(found, {name: outcome}, frame, column)
    if nothing:
        return wrong_values(found, nothing, frame, column)
    if outcome == RELABELLED:
        plain = pd.Series(pd.factorize(hostile)[0], index=TABLE.index)
    elif outcome == AS_NULL:
        plain = TABLE[column].astype("float64") * np.nan
    assert plain is not None, f"{form} has no plain column: state what {case.operator} makes of {column!r}"
    return difference(found, run_plain(case, column, plain, later), made(case, found))


def wrong_values(found, expected, frame, column):
    for name, value in expected.items():
        wanted = value(frame, column) if callable(value) else [value] * len(found)
        wrong = [(a, b) for a, b in zip(plain_values(found[name]), wanted, strict=True) if a != b]
        if wrong:
            return f"column {name!r}: (found, wanted) {wrong[:3]}"
    return None


@pytest.mark.parametrize(("case", "column"), PAIRS)
def test_a_hostile_column_is_refused_by_name_or_has_the_stated_outcome(case, column):
    forms = [name for kind, name in FORMS if kind == KINDS[str(TABLE[column].dtype)]]
    wrong = {form: failure(case, column, form, later=False) for form in forms}
    assert not {form: reason for form, reason in wrong.items() if reason}


@pytest.mark.parametrize(("case", "column"), LATER)
def test_a_column_that_is_hostile_only_at_transform(case, column):
    forms = [name for kind, name in FORMS if kind == KINDS[str(TABLE[column].dtype)]]
    wrong = {form: failure(case, column, form, later=True) for form in forms}
    assert not {form: reason for form, reason in wrong.items() if reason}


def test_every_operator_and_every_input_has_a_case():
    assert {case.operator for case in CASES} == set(operator_names())
    for case in CASES:
        assert set(case.roles) == set(case.nothing) == set(case.make().inputs), case


@pytest.mark.parametrize(("case", "column"), PAIRS)
def test_a_missing_column_and_one_that_is_there_twice_are_refused_by_name(case, column):
    for frame in (TABLE.drop(columns=column), pd.concat([TABLE, TABLE[[column]]], axis=1)):
        with pytest.raises(DataError, match=repr(column)):
            run(case, frame, frame)
        if column in applied_inputs(case):
            with pytest.raises(DataError, match=repr(column)):
                run(case, TABLE, frame)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_rows_give_no_rows_of_the_same_columns_and_types(case):
    expected = run(case, TABLE, TABLE)
    found = run(case, TABLE, TABLE.head(0))
    assert len(found) == 0
    assert found.dtypes.to_dict() == expected.dtypes.to_dict()
    untyped = run(case, TABLE, pd.DataFrame({name: [] for name in TABLE}, dtype=object))
    assert len(untyped) == 0
    assert list(untyped.columns) == list(expected.columns)


@pytest.mark.parametrize("case", FITTED, ids=str)
def test_partitions_without_rows_and_without_values_change_no_state(case):
    operator = case.make()
    finite = "finite" in case.roles.values() or case.operator == "folded_target_encoding"  # they take no nulls at all
    nulls = TABLE.iloc[: 0 if finite else 4].copy()
    for column in case.roles:
        nulls[column] = nulls[column].mask(nulls[column].notna())
    untyped = nulls.astype(dict.fromkeys(case.roles, object)).where(nulls.notna(), None)
    whole = operator.fit([pd.concat([TABLE, nulls], ignore_index=True)])
    parts = [TABLE.head(0), untyped, TABLE.iloc[20:], untyped.head(0), TABLE.iloc[:20], TABLE.head(0)]
    for order in ((0, 1, 2, 3, 4, 5), (4, 2, 5, 0, 1, 3), (1, 0, 3, 5, 4, 2)):
        state = operator.fit([parts[place] for place in order])
        applied = operator.apply(TABLE, state)
        assert difference(applied, operator.apply(TABLE, whole), made(case, applied)) is None


@pytest.mark.parametrize("case", FITTED, ids=str)
def test_partitions_without_any_row_are_refused_or_fit_nothing(case):
    try:
        found = run(case, TABLE.head(0), TABLE)
    except DataError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        assert any(repr(column) in refusal for column in case.roles), refusal
        return
    # Without rows nothing is known: every category is unseen, every group without a statistic, no word a column.
    unknown = {"categorify": {2, 1, *range(2, 5)}, "join_groupby": {None}, "folded_target_encoding": {None},
               "fill_missing": {0.0, 3.0, *plain_values(TABLE["price"].astype("float32"))},
               "text_flags": set()}  # fmt: skip
    for name in made(case, found):
        values = plain_values(found[name])
        entries = [entry for row in values for entry in row] if values and isinstance(values[0], tuple) else values
        assert set(entries) <= unknown[case.operator], name


@pytest.mark.parametrize("keys", [[1, 1], [1.0, 1.0], ["x", "x"], [True, True]])
def test_a_key_that_is_twice_in_a_joined_table_is_refused_with_an_example(keys):
    with pytest.raises(DataError, match=r"1 duplicate key.*\{'key': "):
        JoinExternal(pd.DataFrame({"key": keys, "size": [1, 2]}), ["key"], {"size": "size"})


def test_null_keys_of_a_joined_table_are_no_duplicates_and_are_never_found():
    lookup = pd.DataFrame({"key": [1.0, None, None], "size": [5.0, 6.0, 7.0]})
    found = JoinExternal(lookup, ["key"], {"size": "size"})(pd.DataFrame({"key": [None, 1.0, 2.0]}))
    assert plain_values(found["size"]) == [None, 5.0, None]


def test_equal_keys_of_events_and_groups_are_counted_each_and_multiply_no_row():
    frame = pd.DataFrame({"key": [1, 1, 1], "at": [5, 5, 6], "row": [0, 1, 2], "value": [1.0, 2.0, 6.0]})
    counted = CountEncoding(frame, ["key"], "n", at="at")(frame)
    assert counted["n"].tolist() == [0, 0, 2]
    last = LastBefore(frame, ["key"], {"value": "last"}, at="at", order="row")(frame)
    assert plain_values(last["last"]) == [None, None, 2.0]
    grouping = JoinGroupby(["key"], ["value"], ["mean", "count"])
    grouped = grouping.apply(frame, grouping.fit([frame.iloc[:1], frame.iloc[1:]]))
    assert plain_values(grouped["value_mean_by_key"]) == [3.0] * 3
    assert plain_values(grouped["value_count_by_key"]) == [3.0] * 3


def test_sums_that_pass_int64_are_refused():
    frame = pd.DataFrame({"key": [1] * 4, "at": [1, 2, 3, 4], "value": [2**61] * 4})
    with pytest.raises(DataError, match="'value' holds fractions or values beyond int64"):
        Rolling(["key"], "at", "value", 10, "sum", "s")(frame)


HOURS = [datetime(2024, 3, 31, hour, 30, tzinfo=ZoneInfo("Europe/Berlin")) for hour in (0, 1, 3, 4)]  # 02:30 is skipped
# 02:30 is there twice.
AUTUMN = [datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold) for fold in (0, 1)]


@pytest.mark.parametrize("moments", [HOURS, AUTUMN])
def test_date_parts_are_those_of_the_minutes_given_whatever_clocks_do(moments):
    utc = [int(moment.timestamp()) // 60 for moment in moments]
    parts = DateParts("at", ["day", "hour", "minute"], "at")(pd.DataFrame({"at": utc}))
    expected = [moment.astimezone(UTC) for moment in moments]
    assert parts["at_hour"].tolist() == [moment.hour for moment in expected]
    assert parts["at_day"].tolist() == [moment.day for moment in expected]
    # Local clocks come from local minutes, wall time counted as if it were UTC: 02:30 in autumn is one time, not two.
    local = [int(moment.replace(tzinfo=UTC).timestamp()) // 60 for moment in moments]
    assert DateParts("at", ["hour"], "at")(pd.DataFrame({"at": local}))["at_hour"].tolist() == [m.hour for m in moments]


@pytest.mark.parametrize("column", [
    pd.Series(pd.to_datetime(["2024-03-31 01:30", "2024-03-31 03:30"])),
    pd.Series(pd.to_datetime(["2024-03-31 01:30", "2024-03-31 03:30"])).dt.tz_localize("Europe/Berlin"),
    pd.Series(HOURS[:2], dtype=object), pd.Series([HOURS[0], HOURS[1].astimezone(UTC)], dtype=object),
    pd.Series([HOURS[0], HOURS[1].replace(tzinfo=None)], dtype=object),
], ids=["naive", "zoned", "objects", "mixed zones", "zoned and naive"])  # fmt: skip
def test_dates_are_never_taken_as_numbers_of_some_unit_and_zone(column):
    frame = pd.DataFrame({"at": column, "key": 1})
    hours = [pd.Timestamp(moment).tz_localize("UTC").hour if moment.tzinfo is None else moment.astimezone(UTC).hour
             for moment in column]  # fmt: skip
    assert DateParts("at", ["hour"], "at")(frame)["at_hour"].tolist() == hours
    steps = [*(Cast(["at"], dtype) for dtype in ("int64", "float64", "bool")),
             CountEncoding(frame.assign(at=[1, 2]), ["key"], "n", at="at"), HashBucket("at", 5)]  # fmt: skip
    for step in steps:
        with pytest.raises(DataError, match="'at'"):
            step(frame)


def test_times_that_are_no_minutes_are_refused_instead_of_far_years():
    nanoseconds = pd.DataFrame({"at": [1_700_000_000_000_000_000]})
    for unit in ("min", "s"):
        with pytest.raises(DataError, match=r"'at' holds 1700000000000000000.*Check its unit"):
            DateParts("at", ["year"], "at", unit=unit)(nanoseconds)
