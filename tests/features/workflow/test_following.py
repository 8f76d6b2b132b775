"""Rows to be predicted behind a history: the features are those that training gives the same row."""

import numpy as np
import pandas as pd
import pytest

from gigabatch import Workflow
from gigabatch.features.errors import DataError
from gigabatch.features.operators import Lag

BY = {"by": ["shop"], "time": "day", "column": "sold"}
LAG = {"lag": {**BY, "output": "before"}}
NUMBER = {"rolling": {**BY, "window": 10, "statistic": "count", "output": "number"}}
OPEN = {"filter": {"column": "open", "op": "==", "value": 1}}
MADE = ["before", "number"]


def rows_of(days, **columns) -> pd.DataFrame:
    plain = {"shop": "a", "day": days, "open": 1, "price": 2.0, "sold": np.nan} | columns
    return pd.DataFrame(plain, index=range(len(days))).astype({"sold": "float32"})


HISTORY = rows_of([1, 2, 3, 4, 5, 6], open=[1, 1, 0, 1, 1, 0], price=[1, None, 2, 3, 4, None], sold=[5, 7, 0, 9, 4, 0])


def both(steps: list, history: pd.DataFrame = HISTORY, outputs: list[str] = MADE) -> tuple[Workflow, Workflow]:
    """The workflow of a training and that of its bundle."""
    fitted = Workflow.from_steps(steps, labels=["sold"]).fit([history])
    return fitted, fitted.serving(outputs, history=True)


@pytest.mark.parametrize("leaves_out", [OPEN, {"drop_nulls": {"columns": ["price"]}}])
def test_rows_that_training_left_out_are_left_out_of_the_history(leaves_out):
    fitted, served = both([leaves_out, LAG, NUMBER])
    tomorrow = rows_of([7])
    together = pd.concat([HISTORY, tomorrow.assign(sold=np.float32(1))], ignore_index=True)
    expected = fitted.transform(together, whole_groups=True)[MADE].tail(1)
    assert expected.to_dict("records") == [{"before": 4.0, "number": 4}]  # by hand: day 5; four of six rows
    found = served.following(tomorrow, HISTORY)
    pd.testing.assert_frame_equal(found, expected.reset_index(drop=True))
    assert "sold" in served.applied_inputs


def test_rows_are_left_out_by_their_label_where_it_is_known():
    steps = [{"filter": {"column": "sold", "op": ">", "value": 0}}, LAG, NUMBER]
    found = both(steps)[1].following(rows_of([7]), HISTORY)  # whose own label is null, as that of every such row
    assert found.to_dict("records") == [{"before": 4.0, "number": 4}]


def test_a_row_to_be_predicted_that_training_would_leave_out_is_refused():
    served = both([OPEN, LAG, NUMBER])[1]
    with pytest.raises(DataError, match=r"step 1 \(filter\): makes 1 rows of 2 to be predicted"):
        served.following(rows_of([7, 7], shop=["a", "b"], open=[1, 0]), HISTORY)


def test_a_step_behind_those_that_look_back_leaves_no_row_out():
    served = both([LAG, NUMBER, {"drop_nulls": {"columns": ["before"]}}])[1]
    found = served.following(rows_of([7], shop="new"), HISTORY)
    assert found["before"].isna().all()
    assert found["number"].tolist() == [0]


def test_rows_that_become_others_before_a_step_looks_back_are_refused():
    explode = {"lists": {"tags": ["tag", "string"]}, "position": "place", "keep": ["shop", "day", "sold"]}
    history = HISTORY.assign(tags=["x|y", "x", "x", "x", "x", "x"])
    fitted = Workflow.from_steps([{"explode_lists": explode}, NUMBER], labels=["sold"]).fit([history])
    with pytest.raises(DataError, match=r"step 1 \(explode_lists\): changes the rows that step 2 \(rolling\) looks"):
        fitted.serving(["number"], history=True)


@pytest.mark.parametrize(("statistic", "known"), [("max", 50.0), ("min", -50.0)])
def test_an_unknown_label_beside_a_known_one_that_hides_it_is_noticed(statistic, known):
    steps = [{"rolling": {**BY, "window": 10, "statistic": statistic, "output": "extreme"}}]
    served = both(steps, outputs=["extreme"])[1]
    rows = rows_of([7, 8, 9], sold=[known, None, None])
    with pytest.raises(
        DataError, match=r"1 of 3 rows to be predicted look at what is not known yet of others.*'extreme'"
    ):
        served.following(rows, HISTORY)
    assert served.following(rows.head(2), HISTORY)["extreme"].tolist()[1] == known


@pytest.mark.parametrize("column", ["price", "weather"])
def test_a_column_that_is_looked_at_of_other_rows_alone_may_be_unknown(column):
    history = HISTORY.assign(weather=["sun", None, "rain", "sun", "sun", "fog"])
    lag = {"lag": {"by": ["shop"], "time": "day", "column": column, "output": "before"}}
    served = both([lag, NUMBER], history)[1]
    assert set(served.of_others) == {column, "sold"}
    rows = rows_of([7, 8], **{column: pd.Series([None, None], dtype=history[column].dtype)}).assign(sold=np.float32(1))
    found = served.following(rows.head(1), history)["before"]
    assert found.isna().all() if column == "price" else found.tolist() == ["fog"]
    with pytest.raises(DataError, match=rf"1 of 2 rows .* known yet of others of them \(of '{column}'\): 'before'"):
        served.following(rows, history)
    filled = both([{"fill_missing": {"column": "price"}}, LAG], history, ["before", "price"])[1]
    assert filled.of_others == ("sold",)


@pytest.mark.parametrize(
    ("dtype", "gap", "usual"), [("int64", "3", "2"), ("datetime", "3 days, 0:00:00", "2 days, 0:00:00")]
)
def test_a_history_that_ends_too_early_is_warned_of(caplog, dtype, gap, usual):
    unit = 86_400 * 10**6 if dtype == "datetime" else 1
    history = rows_of([day * unit for day in (1, 2, 4, 5)], sold=[5, 7, 0, 9])
    fitted = Workflow([Lag(["shop"], "day", "sold", "before")], ["sold"], {"day": dtype}).fit([history])
    served = fitted.serving(["before"], history=True)
    served.following(rows_of([7 * unit, 9 * unit], shop=["a", "b"]), history)
    assert not caplog.records
    served.following(rows_of([8 * unit]), history)
    assert (
        f"ends {gap} before the first row to be predicted, by 'day', and its own times lie at most {usual} apart"
        in (caplog.text)
    )


@pytest.mark.parametrize(("shift", "shop", "told"), [(0, "a", False), (1, "a", True), (1, "new", False)])
def test_rows_for_which_nothing_lies_just_so_far_before_are_warned_of(caplog, shift, shop, told):
    """Such as times of another zone, an hour off: each forecast was silently made of nulls."""
    hour = 3_600 * 10**6
    history = rows_of([day * 24 * hour for day in range(1, 7)], sold=[5, 7, 0, 9, 4, 0])
    lag = Lag(["shop"], "day", "sold", "before", span="1d")
    served = Workflow([lag], ["sold"], {"day": "datetime"}).fit([history]).serving(["before"], history=True)
    found = served.following(rows_of([(7 * 24 - shift) * hour], shop=shop), history)
    assert found["before"].isna().all() == (shift > 0)
    assert ("'before' is null in all rows to be predicted, and in 17 % of the history" in caplog.text) == told
