"""A workflow knows its labels: no step makes a column that tells a row its own."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.operators.rows.lambda_function import register_function
from gigabatch.features.recipes.table.recipe import TableSettings
from gigabatch.features.workflow.workflow import Workflow

TELLING = {
    "join_groupby": {"by": ["city"], "values": ["price", "late"], "statistics": ["mean"]},
    "difference_lag": {"by": ["city"], "order": "at", "column": "late", "output": "change"},
    "rank_within_group": {"by": ["city"], "value": "late", "output": "place"},
    "log": {"column": "late", "output": "log_late", "offset": 1},
    "rename": {"mapping": {"late": "delay"}},
    "expression": {"output": "sum", "expression": "late + price"},
    "hashed_cross": {"columns": ["city", "late"], "num_buckets": 9, "output": "cross"},
    "text_flags": {"column": "late", "prefix": "is_"},
    "explode_lists": {"lists": {"late": ["one_late", "int64"]}, "position": "place", "keep": ["city"]},
    "rolling": {"by": ["late"], "time": "at", "column": "price", "window": 9, "statistic": "mean", "output": "m"},
    "target_encoding": {"by": ["city"], "hits": "price", "output": "t", "at": "at", "fold": "late"},
    "asof": {"by": ["city", "late"], "at": "at", "known_at": "at", "order": "at", "aggregations": [
        {"count": {"output": "n"}}]},
    "date_parts": {"column": "late", "parts": ["hour"], "prefix": "late"},
    "lambda_function": {"name": "test_labels_twice"},
}  # fmt: skip
HARMLESS = {
    "folded_target_encoding": {"by": ["city"], "targets": ["late"], "fold_key": "at"},
    "target_encoding": {"by": ["city"], "hits": "late", "output": "t", "at": "at"},
    "rolling": {"by": ["city"], "time": "at", "column": "late", "window": 9, "statistic": "mean", "output": "m"},
    "asof": {"by": ["city"], "at": "at", "known_at": "at", "order": "row", "aggregations": [
        {"mean": {"value": "late", "output": "m"}}, {"last": {"columns": {"late": "before"}}}]},
    "waiting": {"by": ["city"], "planned_at": "at", "happened_at": "late", "output": "w"},
    "drop_nulls": {"columns": ["late"]},
    "filter": {"column": "late", "op": "not_null"},
    "clip": {"column": "late", "low": 0},
    "cast": {"columns": ["late", "price"], "dtype": "float32"},
    "explode_lists": {"lists": {"city": ["town", "string"]}, "position": "place", "keep": ["late"]},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _registered():
    twice = lambda frame: pd.DataFrame({"twice": 2 * frame["late"]})  # noqa: E731
    register_function("test_labels_twice", twice, inputs=["late"], outputs=["twice"], replace=True)


@pytest.mark.parametrize("name", TELLING)
def test_a_step_that_tells_a_row_its_label_is_refused(name):
    with pytest.raises(DataError, match=rf"step 2 \({name}\): makes '.+' from the label 'late'.*folded_target_enc"):
        Workflow.from_steps([{"clip": {"column": "price", "low": 0}}, {name: TELLING[name]}], labels=["late"])
    Workflow.from_steps([{name: TELLING[name]}], labels=["other"])


def test_yaml_is_refused_before_any_file_is_read():
    steps = ({"join_groupby": TELLING["join_groupby"]},)
    with pytest.raises(DataError, match=r"table: step 1 \(join_groupby\): makes .* from the label 'late'"):
        TableSettings(
            path="none.csv", categorical=("city",), targets={"late": {"task": "binary"}}, steps=steps,
            inputs={"price": "float64"},
        )  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_a_step_that_reads_a_label_without_telling_it_is_taken(name):
    """Proven by the columns: whatever a row's own label is, what is made of it under another name stays the same."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({
        "city": rng.choice(["Oslo", "Bonn"], 40), "price": rng.gamma(2, 9, 40), "at": np.arange(40) // 2,
        "row": np.arange(40), "late": rng.integers(0, 2, 40),
    })  # fmt: skip
    workflow = Workflow.from_steps([{name: HARMLESS[name]}], labels=["late"])
    before = workflow.fit_transform([frame])[0].drop(columns="late")
    for row in (3, 20, 39):
        flipped = frame.assign(late=frame["late"].where(frame["row"] != row, 1 - frame["late"]))
        after = workflow.fit_transform([flipped])[0].drop(columns="late")
        pd.testing.assert_frame_equal(after.loc[[row]], before.loc[[row]], check_exact=True)


def test_a_column_is_made_of_the_raw_columns_that_its_steps_read_in_the_end():
    steps = [
        {"cast": {"columns": ["price", "rate"], "dtype": "string"}},
        {"parse_number": {"column": "price", "output": "cost"}},
        {"expression": {"output": "share", "expression": "cost / total"}},
        {"date_parts": {"column": "at", "prefix": "at", "parts": ["hour"]}},
        {"fill_missing": {"column": "share", "strategy": "constant", "value": 0.0}},
        {"rename": {"mapping": {"at_hour": "hour"}}},
    ]
    workflow = Workflow.from_steps(steps)
    raw = {"share": {"price", "total"}, "share_na": {"price", "total"}, "hour": {"at"}, "rate": {"rate"}, "x": {"x"}}
    assert {name: set(workflow.raw_of(name)) for name in raw} == raw


@pytest.mark.parametrize("name", ["labels", "outputs"])
def test_text_in_the_place_of_a_list_of_columns_is_refused(name):
    """`labels="late"` were the labels l, a, t and e: steps told rows their own label without a word."""
    steps = [{"join_groupby": TELLING["join_groupby"]}]
    with pytest.raises(DataError, match=rf"workflow: {name} is a list of names, found 'late'\. Write \['late'\]"):
        Workflow(Workflow.from_steps(steps).steps, **{name: "late"})
    fitted = Workflow.from_steps([{"min_max": {"column": "price"}}]).fit([pd.DataFrame({"price": [1.0, 2.0]})])
    with pytest.raises(DataError, match="outputs is a list of names, found 'price'"):
        fitted.serving("price")
