"""Train rows are told nothing of their own label, whatever steps stand in front of the one that encodes it."""

import itertools

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import FittedOperator, WithinGroups
from gigabatch.features.operators.numbers.expression import Expression
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.features.workflow.workflow import Workflow

ENCODED = "late_encoded_by_city"
FOLDED = {"by": ["city"], "targets": ["late"], "fold_key": "session", "smoothing": 0.0}
FOLD = {"folded_target_encoding": FOLDED}
REPLACING = {
    "nothing": [],
    "cast": [{"cast": {"columns": ["session"], "dtype": "int64"}}],
    "clean_text": [{"clean_text": {"column": "session", "width": 5}}],
    "hash_bucket": [{"hash_bucket": {"column": "session", "num_buckets": 500}}],
    "categorify": [{"categorify": {"column": "session"}}],
    "two": [{"clean_text": {"column": "session", "width": 5}}, {"cast": {"columns": ["session"], "dtype": "int64"}}],
}


def rows_of(rows: int = 6000) -> pd.DataFrame:
    """Labels are drawn: whatever correlates with them has seen them."""
    random = np.random.default_rng(0)
    return pd.DataFrame({
        "city": random.integers(0, rows // 10, rows).astype(str),
        "session": random.integers(0, rows // 2, rows).astype(str),
        "late": random.integers(0, 2, rows), "price": random.random(rows),
    })  # fmt: skip


def told(made: pd.DataFrame) -> float:
    """How far the encoding correlates with the labels; by chance within 3 / sqrt(rows)."""
    return abs(float(np.corrcoef(made[ENCODED].fillna(0.5), made["late"])[0, 1])) * len(made) ** 0.5


def one_after_the_other(workflow: Workflow, frame: pd.DataFrame) -> pd.DataFrame:
    for position, step in enumerate(workflow.steps):
        fitted = isinstance(step, FittedOperator)
        frame = step.apply_to_train(frame, workflow.states[position]) if fitted else step(frame)
    return frame


@pytest.mark.parametrize("first", REPLACING.values(), ids=REPLACING)
def test_no_train_row_is_told_its_label_where_a_step_replaces_the_fold_key(first):
    """The columns that were read on train rows were those of before the steps beside: a correlation of .28."""
    frame = rows_of()
    workflow = Workflow.from_steps([*first, FOLD], labels=["late"])
    found = {
        "splits": workflow.fit_transform_splits({"train": frame, "test": frame.head(0)})["train"],
        "parts": pd.concat(workflow.fit_transform([frame[:2500], frame[2500:]])),
        "train": workflow.fit([frame]).transform_train(frame),
    }
    wanted = one_after_the_other(workflow, frame)
    for made in found.values():
        assert told(made) < 3
        pd.testing.assert_frame_equal(made, wanted)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "parts"])
@pytest.mark.parametrize("first", REPLACING.values(), ids=REPLACING)
def test_no_train_row_of_the_recipe_is_told_its_label(first, whole, tmp_path):
    rows_of().to_csv(tmp_path / "rows.csv", index=False)
    settings = TableSettings(
        path=str(tmp_path / "rows.csv"), continuous=(ENCODED,), targets={"late": {"task": "binary"}},
        inputs={"city": "string", "session": "string"}, steps=(*first, FOLD),
    )  # fmt: skip
    recipe = TableRecipe(settings)
    if whole:
        train = recipe.build("pandas").splits["train"]
    else:
        parts = recipe.write_parts("pandas", tmp_path / "made", 1500, lambda call, items: [call(i) for i in items])
        assert parts is not None
        files = sorted((tmp_path / "made" / "train").glob("*.parquet"))
        assert len(files) > 1
        train = pd.concat(map(pd.read_parquet, files))
    assert len(train) > 4000
    assert told(train) < 3


def test_a_fold_key_may_be_made_by_the_step_before():
    """It stopped with "column(s) 'fold' not found"."""
    frame = rows_of()
    made_key = {"hash_bucket": {"column": "session", "num_buckets": 50, "output": "fold"}}
    steps = [made_key, {"folded_target_encoding": FOLDED | {"fold_key": "fold"}}]
    made = Workflow.from_steps(steps, labels=["late"]).fit_transform_splits({"train": frame})["train"]
    assert told(made) < 3
    assert made[ENCODED].notna().all()


@pytest.mark.parametrize("seed", range(8))
def test_steps_that_are_independent_may_stand_in_any_order_in_front_of_a_folded_encoding(seed):
    frame = rows_of(400)
    free = [
        [{"clean_text": {"column": "session", "width": 4}}, {"cast": {"columns": ["session"], "dtype": "int64"}}],
        [{"hash_bucket": {"column": "city", "num_buckets": 40}}],
        [{"log": {"column": "price", "output": "price_log"}}, {"min_max": {"column": "price_log"}}],
        [{"expression": {"output": "late", "expression": "1 - late"}}],
    ]
    random, left, steps = np.random.default_rng(seed), [list(chain) for chain in free], []
    while any(left):
        steps.append(random.choice([number for number, chain in enumerate(left) if chain]))
        left[steps[-1]].pop(0)
    chains = [iter(chain) for chain in free]
    mixed = [next(chains[number]) for number in steps]
    wanted = Workflow.from_steps([*itertools.chain(*free), FOLD], labels=["late"])
    found = Workflow.from_steps([*mixed, FOLD], labels=["late"])
    splits = {"train": frame[:300], "test": frame[300:]}
    made, reference = found.fit_transform_splits(splits), wanted.fit_transform_splits(splits)
    for name in splits:
        pd.testing.assert_frame_equal(made[name][reference[name].columns], reference[name])
    pd.testing.assert_frame_equal(reference["train"], one_after_the_other(wanted, splits["train"]))


class LeftOut(FittedOperator):
    """The mean label of a key without the row's own, of a user who reads the label on train rows alone."""

    reads, untold, writes = ("by", "label"), ("label",), ("output",)

    def __init__(self, by: str, label: str, output: str) -> None:
        self.by, self.label, self.output = by, label, output

    @property
    def applied_inputs(self):
        return (self.by,)

    def partial(self, frame):
        return frame.groupby(self.by)[self.label].agg(["sum", "count"])

    def merge(self, left, right):
        return left.add(right, fill_value=0)

    def finish(self, partial):
        return partial

    def columns(self, frame, state):
        return {self.output: frame[self.by].map(state["sum"] / state["count"])}

    def train_columns(self, frame, state):
        sums, counts = (frame[self.by].map(state[name]) for name in ("sum", "count"))
        return {self.output: (sums - frame[self.label]) / (counts - 1)}


class LeftOutOfGroups(WithinGroups, LeftOut):
    """The same, of one that wants whole groups."""

    group_keys = property(lambda self: (self.by,))


@pytest.mark.parametrize("kind", [LeftOut, LeftOutOfGroups])
@pytest.mark.parametrize("replaced", [False, True])
def test_an_operator_of_a_user_reads_the_label_of_train_rows_behind_a_step_that_replaces_it(kind, replaced):
    frame = pd.DataFrame({"key": ["a", "a", "a", "b", "b"], "late": [1, 0, 1, 0, 1]})
    first = [Expression("late", "late * 10 - 1")] if replaced else []
    label = (frame["late"] * 10 - 1 if replaced else frame["late"]).tolist()
    wanted = []
    for row, key in enumerate(frame["key"]):
        others = [label[k] for k in range(len(frame)) if k != row and frame["key"][k] == key]
        wanted.append(sum(others) / len(others))
    of_new = [sum(label[:3]) / 3, sum(label[3:]) / 2]
    new = pd.DataFrame({"key": ["a", "b"], "late": [0, 0]})
    workflow = Workflow([*first, kind("key", "late", "mean")], labels=["late"])
    made = workflow.fit_transform_splits({"train": frame, "test": new})
    np.testing.assert_allclose(made["train"]["mean"], wanted)
    np.testing.assert_allclose(made["test"]["mean"], of_new)
    parts = workflow.fit_transform([frame[:2], frame[2:]])
    np.testing.assert_allclose(pd.concat(parts)["mean"], wanted)
    with_history = workflow.transform(new, history=frame)
    np.testing.assert_allclose(with_history["mean"], of_new)


def test_what_serving_gives_is_for_no_train_rows(tmp_path):
    """The step that makes the fold key is left out there, so the folds would be others than those of the fit."""
    frame = rows_of(500)
    whole = Workflow.from_steps([*REPLACING["cast"], FOLD], labels=["late"]).fit([frame])
    served = whole.serving([ENCODED])
    served.save(tmp_path)
    for workflow in (served, Workflow.load(tmp_path)):
        assert ENCODED in workflow.transform(frame)
        with pytest.raises(DataError, match="cut to what serving needs"):
            workflow.transform_train(frame)
    assert ENCODED in served.fit([frame]).transform_train(frame)
