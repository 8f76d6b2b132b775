"""Every operator as a step of a workflow: saved, loaded, and in any partitions, the same to the last bit."""

import importlib.util

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.operators import operator_class
from gigabatch.features.operators.rows.lambda_function import register_function
from gigabatch.features.reading.sources import read_files
from gigabatch.features.schema import Column, ListColumn, Schema
from gigabatch.features.workflow.workflow import Workflow
from tests.examples import examples
from tests.features.equal_states import same
from tests.features.partitioned import COUNTS, cut

LISTS = ("history", "text_tokens")  # make columns of lists
EXAMPLES = {
    "asof": {"by": ["user"], "at": "at", "known_at": "done", "order": "row", "aggregations": [
        {"count": {"output": "n"}}, {"mean": {"value": "clicks", "output": "m", "smoothing": 3}},
        {"last": {"columns": {"price": "p"}}}]},
    "bucketize": {"column": "price", "edges": [1, 2.5, 1e9]},
    "cast": {"columns": ["at"], "dtype": "float32"},
    "categorify": {"column": ["user", "at", "city"], "min_count": 2, "oov_buckets": 3},
    "clean_text": {"column": "city", "case": "upper", "replace": {"BONN": None, "OSLO": "LIMA"}},
    "clip": {"column": "price", "low": 0, "high": 0.1},
    "date_parts": {"column": "at", "parts": ["hour", "weekday"], "prefix": "at"},
    "difference": {"left": "price", "right": "at", "output": "d"},
    "difference_lag": {"by": ["user"], "order": "row", "column": "price", "output": "d", "lag": 2},
    "drop_nulls": {"columns": ["price", "city"]},
    "explode_lists": {"lists": {"words": ["word", "string"]}, "position": "place", "keep": ["row"]},
    "expression": {"output": "e", "expression": "price / maximum(at, 1)"},
    "fill_missing": {"column": ["price", "at"], "indicator": "all"},
    "filter": {"column": "price", "op": ">", "value": 0.5},
    "folded_target_encoding": {"by": ["city"], "targets": ["clicks"], "fold_key": "row"},
    "gauss_rank": {"column": "at"},
    "groupby_to_sequence": {"by": ["user"], "order": "row", "columns": ["at"], "max_length": 3, "aggregations": {
        "events": ["at", "count"], "cities": ["city", "nunique"], "spent": ["price", "sum"], "began": ["at", "first"]}},
    "hash_bucket": {"column": "city", "num_buckets": 10, "output": "h"},
    "hashed_cross": {"columns": ["city", "user"], "num_buckets": 10, "output": "h"},
    "history": {"by": ["user"], "time": "at", "order": "row", "column": "clicks", "length": 3, "output": "seen"},
    "join_groupby": {"by": ["city", "user"], "values": ["price"], "statistics": ["std", "count", "min"]},
    "lag": {"by": ["user"], "time": "at", "column": "clicks", "output": "l", "periods": 2, "order": "row"},
    "lambda_function": {"name": "test_twice"},
    "list_length": {"column": "words", "output": "num_words"},
    "list_slice": {"column": "words", "start": -1, "output": "last_word"},
    "log": {"column": "price", "output": "l"},
    "min_max": {"column": "at"},
    "normalize": {"column": "at"},
    "parse_duration": {"column": "price", "output": "s"},
    "parse_number": {"column": "price", "output": "n"},
    "quantile_buckets": {"column": ["price", "at"], "num_buckets": 7},
    "rank_within_group": {"by": ["user"], "value": "price", "output": "r", "descending": True},
    "rename": {"mapping": {"price": "at", "at": "price"}},
    "rolling": {"by": ["user"], "time": "at", "column": "clicks", "window": 50, "statistic": "mean", "output": "m"},
    "target_encoding": {"by": ["city"], "hits": "clicks", "output": "t", "at": "at"},
    "text_flags": {"column": "words", "prefix": "w_", "max_words": 2},
    "text_hash": {"column": "words", "prefix": "h", "num_buckets": 3, "letters": 2},
    "text_tokens": {"column": "words", "output": "tokens", "letters": 2},
    "waiting": {"by": ["user"], "planned_at": "at", "happened_at": "done", "output": "w"},
}  # fmt: skip
KEPT = {"column": "at", "op": "<", "value": 190}


def table(rows=300):
    rng = np.random.default_rng(3)

    def some(values):
        return pd.Series(values).mask(pd.Series(rng.random(rows) < 0.1))

    at = rng.integers(0, 200, rows)
    return pd.DataFrame({
        "row": np.arange(rows), "at": at, "done": at + rng.integers(1, 9, rows), "user": rng.integers(0, 20, rows),
        "price": some(rng.gamma(2, 1, rows)), "city": some(rng.choice(["Oslo", "Bonn", "Lima"], rows)).astype("str"),
        "words": some(rng.choice(["a|b", "b", "c|a"], rows)).astype("str"), "clicks": rng.integers(0, 2, rows),
    })  # fmt: skip


def twice(frame):
    return pd.DataFrame({"twice": 2 * frame["at"]})


@pytest.fixture(autouse=True)
def _registered():
    register_function("test_twice", twice, inputs=["at"], outputs=["twice"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_operator_is_saved_and_loaded_to_the_last_bit(name, tmp_path):
    frame = table()
    workflow = Workflow.from_steps([{name: EXAMPLES[name]}]).fit([frame])
    workflow.save(tmp_path)
    found = Workflow.load(tmp_path)
    pd.testing.assert_frame_equal(
        found.transform(frame, whole_groups=True), workflow.transform(frame, whole_groups=True), check_exact=True
    )
    pd.testing.assert_frame_equal(
        found.transform_train(frame, whole_groups=True),
        workflow.transform_train(frame, whole_groups=True),
        check_exact=True,
    )
    assert found.states.keys() == workflow.states.keys()
    assert all(same(found.states[k], workflow.states[k]) for k in found.states)
    assert [step.settings() for step in found.steps] == [step.settings() for step in workflow.steps]
    assert Workflow.from_steps(workflow.to_steps()).to_steps() == workflow.to_steps()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_fitted_state_is_the_same_bits_in_any_partitions(name):
    frame = table()
    whole = Workflow.from_steps([{name: EXAMPLES[name]}]).fit([frame])
    for count, seed in ((3, 1), (32, 2)):
        again = Workflow.from_steps([{name: EXAMPLES[name]}]).fit(cut(frame, count, seed))
        assert again.states.keys() == whole.states.keys()
        assert all(same(again.states[k], whole.states[k]) for k in whole.states)


@pytest.mark.parametrize("name", EXAMPLES)
def test_rows_in_any_order_alone_and_in_any_partitions_give_the_same_and_come_in_unchanged(name):
    frame = table().sample(frac=1, random_state=1)  # on an index of its own
    before = frame.copy(deep=True)
    workflow = Workflow.from_steps([{name: EXAMPLES[name]}]).fit([frame])
    whole = workflow.transform(frame, whole_groups=True)
    pd.testing.assert_frame_equal(frame, before)
    if name in ("explode_lists", "groupby_to_sequence"):  # whose rows are new ones
        return
    shuffled = workflow.transform(frame.sample(frac=1, random_state=2), whole_groups=True)
    pd.testing.assert_frame_equal(shuffled.loc[whole.index], whole, check_exact=True)
    if workflow.steps[0].group_keys is None:
        alone = [frame.iloc[[row]] for row in range(0, len(frame), 29)]
        for parts in (alone, cut(frame, 9, 4)):
            found = pd.concat([workflow.transform(part, whole_groups=True) for part in parts])
            expected = whole.loc[[row for part in parts for row in part.index if row in whole.index]]
            pd.testing.assert_frame_equal(found, expected, check_exact=True)


@pytest.mark.parametrize("indicator", ["auto", "all"])
def test_a_step_may_read_an_indicator_whatever_nulls_the_train_split_of_a_night_holds(indicator):
    """F10: it was there only if there was a null, so the next step failed with a KeyError on other nights."""
    steps = [
        {"fill_missing": {"column": "x", "indicator": indicator}},
        {"clip": {"column": "x_na", "high": 0.5}},
        {"normalize": {"column": "x_na"}},
    ]
    nights = [pd.DataFrame({"x": [1.0, 2.0, 3.0]}), pd.DataFrame({"x": [1.0, None, 3.0]})]
    first, second = (Workflow.from_steps(steps).fit([night]).transform(nights[1]) for night in nights)
    assert list(first.columns) == list(second.columns) == ["x", "x_na"]
    assert first.dtypes.equals(second.dtypes)


@pytest.mark.parametrize("name", EXAMPLES)
@given(count=COUNTS, seed=st.integers(0, 999))
@settings(max_examples=examples(4), deadline=None)
def test_partitions_are_transformed_as_the_table_that_they_are_parts_of(name, count, seed):
    parts = cut(table(60), count, seed)
    whole = pd.concat(parts, ignore_index=True)
    (*before, step) = Workflow.from_steps([{"filter": KEPT}, {name: EXAMPLES[name]}]).steps
    found = Workflow([*before, step]).fit_transform(parts)
    expected = Workflow([*before, step]).fit(parts).transform_train(whole, whole_groups=True)
    assert len(found) == (1 if name == "groupby_to_sequence" else count)
    together = pd.concat(found, ignore_index=True)
    pd.testing.assert_frame_equal(together, expected.reset_index(drop=True), check_exact=True)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ("groupby_to_sequence",)])
def test_the_rows_of_a_group_are_not_taken_for_the_whole_group_by_silence(name):
    frame = table()
    workflow = Workflow.from_steps([{name: EXAMPLES[name]}]).fit([frame])
    if all(step.group_keys is None for step in workflow.steps):
        workflow.transform(frame.tail(1))
        return
    for transform in (workflow.transform, workflow.transform_train):
        with pytest.raises(DataError, match=rf"step 1 \({name}\): needs every row of a group.*history=.*whole_groups"):
            transform(frame.tail(1))
    if workflow.steps[0].brought({}):  # rows to be served have it
        assert workflow.serving(["seen"]).applied_inputs == ("seen",)
        return
    with pytest.raises(DataError, match=rf"step 1 \({name}\): makes .* from other rows of the group, which serving"):
        workflow.serving()
    late, early = frame.tail(50), frame.head(250)
    found = workflow.transform(late, history=early)
    expected = workflow.transform(frame, whole_groups=True).tail(50)
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_an_operator_declares_is_what_it_does(name):
    frame = table()
    workflow = Workflow.from_steps([{name: EXAMPLES[name]}]).fit([frame])
    found = workflow.transform(frame[list(workflow.applied_inputs)], whole_groups=True)
    made = [column for k in range(len(workflow.steps)) for column in workflow.made(k)]
    assert set(made) <= set(found.columns)
    inputs = workflow.applied_inputs
    for k, step in enumerate(workflow.steps):
        inputs = tuple(dict.fromkeys((*step.columns_after(inputs), *workflow.made(k))))
        extra = set(step.outputs) - set(workflow.made(k))  # such as an indicator that was not needed
        inputs = tuple(column for column in inputs if column not in extra)
    assert set(found.columns) == set(inputs)
    if not operator_class(name).changes_rows:
        assert found.index.equals(frame.index)


def test_whoever_needs_whole_groups_says_so():
    frame = table()
    for name, arguments in EXAMPLES.items():
        (step, *_) = Workflow.from_steps([{name: arguments}]).steps
        if step.group_keys is None or not hasattr(step, "transform"):
            continue
        keys = list(step.group_keys)
        parts = [group for _, group in frame.groupby(keys)] if keys else [frame]
        by = "row" if "row" in step.columns_after(tuple(frame.columns)) else keys
        found = pd.concat([step(part) for part in parts]).sort_values(by).reset_index(drop=True)
        pd.testing.assert_frame_equal(found, step(frame).sort_values(by).reset_index(drop=True), check_exact=True)


@pytest.mark.gpu
@pytest.mark.skipif(importlib.util.find_spec("cudf") is None, reason="needs cuDF")
@pytest.mark.parametrize("name", LISTS)
def test_on_cudf_lists_are_those_of_pandas(name):
    engine = load_engine("cudf")
    frame = table()
    steps = [{name: EXAMPLES[name]}]
    (expected,) = Workflow.from_steps(steps).fit_transform([frame])
    (found,) = Workflow.from_steps(steps, engine="cudf").fit_transform([engine.from_pandas(frame)])
    found, output = engine.to_pandas(found), EXAMPLES[name]["output"]
    assert [list(row) for row in found[output]] == [list(row) for row in expected[output]]


@pytest.mark.gpu
@pytest.mark.skipif(importlib.util.find_spec("cudf") is None, reason="needs cuDF")
def test_on_cudf_lists_are_read_and_encoded_as_on_pandas(tmp_path):
    rng, size = np.random.default_rng(1), 400
    rows = [None if rng.random() < 0.1 else rng.integers(0, 9, rng.integers(0, 6)) for _ in range(size)]
    tags = [row if row is None else [None if item == 3 else 2**60 + int(item) for item in row] for row in rows]
    words = [row if row is None else [None if item == 5 else f"é{item}" for item in row] for row in rows]
    weights = [row if row is None else (row / 8).astype("float32") for row in rows]
    frame = pd.DataFrame({"word": rng.choice(["é1", "a"], size), "tags": tags, "words": words, "weights": weights})
    frame.to_parquet(tmp_path / "lists.parquet")
    text = frame["words"].map(lambda row: row if row is None else "|".join(item or "" for item in row))
    text.to_frame().to_csv(tmp_path / "lists.csv", index=False)
    schema = Schema(
        (Column("word", "categorical", "string"),), (),
        lists=(ListColumn("tags", "int64", weights="weights"), ListColumn("words", shares="word", max_length=2)),
    )  # fmt: skip
    packed = []
    for name in ("pandas", "cudf"):
        preprocessor = Preprocessor(schema).fit([(name, tmp_path / "lists.parquet")])
        rows = preprocessor.read((name, tmp_path / "lists.parquet"))
        texts = read_files(name, str(tmp_path / "lists.csv"), {"words": "list[string]|"})
        for part in (rows, rows.assign(words=texts["words"])):
            packed += [
                value if value is None else value.tolist() for one in preprocessor.pack_lists(part) for value in one
            ]
    assert packed[: len(packed) // 2] == packed[len(packed) // 2 :]


@pytest.mark.gpu
@pytest.mark.skipif(importlib.util.find_spec("cudf") is None, reason="needs cuDF")
@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"lambda_function", *LISTS}))
def test_on_cudf_it_gives_what_it_gives_on_pandas(name):
    """Whole numbers and text alike, floats to 1 ulp of float32; in the order of `row`, since cuDF promises none."""
    engine = load_engine("cudf")
    frame = table()
    by_pandas = Workflow.from_steps([{name: EXAMPLES[name]}]).fit_transform([frame])[0]
    (found,) = Workflow.from_steps([{name: EXAMPLES[name]}], engine="cudf").fit_transform([engine.from_pandas(frame)])
    by_cudf = engine.to_pandas(found)
    assert list(by_cudf.columns) == list(by_pandas.columns)
    keys = [column for column in ("row", "place") if column in by_pandas.columns]
    left, right = (found.sort_values(keys).reset_index(drop=True) for found in (by_cudf, by_pandas))
    pd.testing.assert_frame_equal(left, right, check_dtype=False, rtol=2**-23, atol=0)
