"""`Workflow` and `Bundle` take frames of any library, and give Arrow tables for those that are not pandas'."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import gigabatch
from gigabatch import FactorizationMachine, ModelInputs, Preprocessor, Schema, Workflow
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, Target
from gigabatch.pipeline.bundle import Bundle


class Streamed:
    """A frame of another library, which hands over Arrow's memory and has columns, as Polars' frames do."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @property
    def columns(self) -> list[str]:
        return self.table.column_names

    def __getitem__(self, name: str) -> list:
        return self.table.column(name).to_pylist()

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.fixture
def rows() -> pd.DataFrame:
    return pd.DataFrame({"city": ["Oslo", "Bonn", None, "Oslo"], "price": [0.0, 2.0, 4.0, 8.0], "n": [1, 2, 3, 4]})


def others(rows):
    table = pa.Table.from_pandas(rows, preserve_index=False)
    return table, Streamed(table), table.to_batches()[0]


STEPS = [{"min_max": {"column": "price", "output": "share"}}, {"clip": {"column": "n", "high": 3}}]


def test_a_workflow_learns_and_applies_alike_whatever_the_library(rows):
    expected = Workflow.from_steps(STEPS).fit([rows.head(2), rows.tail(2)])
    made = expected.transform(rows)
    assert made["share"].tolist()[3] == 1.0
    for frame in others(rows):
        workflow = Workflow.from_steps(STEPS).fit([frame])
        assert workflow.states == expected.states
        for found in (workflow.transform(frame), workflow.transform_train(frame), *workflow.fit_transform([frame])):
            assert isinstance(found, pa.Table)
            pd.testing.assert_frame_equal(found.to_pandas(), made, check_dtype=False)


def test_history_may_be_of_another_library_than_the_rows():
    count = {"by": ["user"], "time": "at", "column": "at", "window": 9, "statistic": "count", "output": "n"}
    workflow = Workflow.from_steps([{"rolling": count}])
    seen = pa.table({"user": ["a", "a"], "at": [1, 3]})
    assert workflow.transform(pd.DataFrame({"user": ["a"], "at": [5]}), history=seen)["n"].tolist() == [2]
    new = pa.table({"user": ["a"], "at": [5]})
    assert workflow.transform(new, history=seen).column("n").to_pylist() == [2]


@pytest.fixture
def trained(rows) -> tuple[Bundle, pd.DataFrame]:
    """A bundle that takes raw rows, and the rows of its features stage."""
    columns = Column("city", "categorical", "string"), Column("share", "continuous", "float32")
    schema = Schema((*columns, Column("late", "target", "float32")), (Target("late", "binary"),))
    workflow = Workflow.from_steps(STEPS[:1])
    workflow = Workflow(workflow.steps, (), {"city": "string", "price": "float32"}).fit([rows])
    features = workflow.transform(workflow.typed(rows)).astype({"share": "float32"})
    preprocessor = Preprocessor(schema).fit([features.assign(late=np.float32(1))])
    tensors = preprocessor.tensor_schema
    model = FactorizationMachine(
        ModelInputs(num_ids=(tensors.ids[0].num_ids,), num_floats=len(tensors.floats)), FactorizationMachine.Settings()
    )
    return Bundle(preprocessor, model, {"name": "late", "null_values": [""]}, workflow=workflow), features


def test_a_bundle_predicts_alike_whatever_the_library(rows, trained):
    bundle, features = trained
    expected, raw = bundle.predict(features), bundle.predict_raw(rows)
    for frame in others(features):
        found = bundle.predict(frame)
        assert isinstance(found, pa.Table)
        assert found.column("late").to_pylist() == expected["late"].tolist()
    for frame in others(rows):
        found = bundle.predict_raw(frame)
        assert isinstance(found, pa.Table)
        assert found.column("late").to_pylist() == raw["late"].tolist()
    assert isinstance(raw, pd.DataFrame)


def test_what_is_no_frame_is_named():
    with pytest.raises(DataError, match=r"^workflow: expected a data frame of pandas, Polars or cuDF, .* found dict"):
        Workflow.from_steps(STEPS).fit([{"price": [1.0]}])


def test_a_needed_name_that_is_there_twice_is_named_by_all_that_take_frames(rows, trained):
    bundle, features = trained
    workflow = bundle.raw_workflow
    twice = pd.concat([rows, rows[["price"]]], axis=1)
    for take in (bundle.predict_raw, workflow.transform, workflow.typed, lambda frame: workflow.steps[0].fit([frame])):
        with pytest.raises(DataError, match=r"column\(s\) 'price' are there more than once"):
            take(twice)
    with pytest.raises(DataError, match=r"column\(s\) 'share' are there more than once"):
        bundle.predict(pd.concat([features, features[["share"]]], axis=1))


def test_a_name_that_nobody_needs_may_be_there_twice_and_changes_nothing(rows, trained):
    bundle, _ = trained
    prices = pa.array(np.array([np.nan, 2.0, 4.0, 8.0]))  # in Arrow's memory NaN is no null, in pandas' it is
    rows["price"] = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([prices])))
    for frame in (rows, pd.concat([rows, rows[["n"]]], axis=1)):
        with pytest.raises(DataError, match="column 'price' holds nulls"):
            bundle.predict_raw(frame)
        expected = bundle.predict_raw(rows.tail(3).astype({"price": "float64"}))
        pd.testing.assert_frame_equal(bundle.predict_raw(frame.tail(3)), expected)


def test_columns_of_two_levels_and_a_column_alone_are_no_frame(rows, trained):
    bundle, _ = trained
    workflow = bundle.raw_workflow
    levels = rows.set_axis(pd.MultiIndex.from_product([["price"], rows.columns]), axis=1)
    step = Workflow.from_steps(STEPS).steps[1]
    for take in (bundle.predict_raw, bundle.predict, workflow.transform, lambda frame: workflow.fit([frame])):
        with pytest.raises(DataError, match=r"names of columns are text, found \('price', 'city'\)"):
            take(levels)
    for take in (bundle.predict_raw, bundle.predict, workflow.transform, step, lambda frame: workflow.fit([frame])):
        with pytest.raises(DataError, match=r"expected a data frame .* found Series\. Make a frame of it"):
            take(rows["price"])
    with pytest.raises(DataError, match=r"^fit: expected a data frame .* found Series\."):
        gigabatch.fit(rows["price"], target="price")


def test_a_column_that_is_missing_is_told_beside_all_that_are_there(rows, trained):
    bundle, _ = trained
    message = r"'price' not found\. Columns there: 'city', ' Price', 'n'\. Did you mean ' Price'\?"
    with pytest.raises(DataError, match=rf"^predict_raw: column\(s\) {message}"):
        bundle.predict_raw(rows.rename(columns={"price": " Price"}))
    with pytest.raises(DataError, match=r"'price' not found\. Columns there: 'city', 'n'\. Rename"):  # 'city' is needed
        bundle.predict_raw(rows.drop(columns="price"))
