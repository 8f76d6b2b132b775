"""What of an evaluation its report shows beside the numbers."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from gigabatch.features.schema import Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.metrics.pointwise import expected_calibration_error
from gigabatch.pipeline.evaluation import baseline_learners
from gigabatch.pipeline.evaluation.checks import Flag, column_warnings, label_warnings
from gigabatch.pipeline.evaluation.evaluate import Evaluation
from gigabatch.pipeline.evaluation.slices import Slices
from gigabatch.pipeline.stages.shown import (
    applicable_metrics,
    ece_by_chance,
    headline_errors,
    rows_told,
    short_flags,
    slice_tables,
    tile_notes,
    told_columns,
)


def labelled(labels, task="binary"):
    schema = TensorSchema((), (), (Target("late", task),))
    return PackedTable.from_columns(schema, [], [], [torch.as_tensor(np.asarray(labels, dtype=np.float32))])


def test_drift_of_the_label_is_flagged_beside_the_splits_that_it_is_of():
    tables = {"train": labelled([1] * 240 + [0] * 760), "test": labelled([1] * 400 + [0] * 600)}
    (flag,) = label_warnings(tables)
    assert (flag.about, flag.short, flag.splits) == ("late", "share of 1 is not train's 0.24", ("test",))


def test_unseen_values_are_flagged_beside_their_column():
    unseen = {"train": {"flight_number": 0.35}, "test": {"flight_number": 0.52}}
    (flag,) = column_warnings({"train": {}, "test": {}}, unseen, {"train": 1000, "test": 1000})
    assert (flag.about, flag.short) == ("flight_number", "unseen: 52% of test")
    copied = pickle.loads(pickle.dumps(flag))
    assert (copied, copied.about, copied.short, copied.splits) == (flag, flag.about, flag.short, ())
    assert short_flags([flag, flag, Flag("text", "a", "leaks")]) == "unseen: 52% of test; leaks"


def test_columns_that_hold_nothing_are_left_out():
    rows = [{"": "this", "a": None, "b": 0, "c": ""}, {"": "", "a": None, "b": None, "c": ""}]
    assert told_columns(rows) == [{"": "this", "b": 0}, {"": "", "b": None}]


def test_what_applies_follows_from_the_targets():
    tasks = {task: TensorSchema((), (), (Target("y", task, *([3] if task == "multiclass" else [])),)) for task in (
        "binary", "multiclass", "regression")}  # fmt: skip
    assert applicable_metrics(tasks["binary"]) == {"auc", "logloss", "ece"}
    assert applicable_metrics(tasks["multiclass"]) == {"logloss", "ece"}
    assert applicable_metrics(tasks["regression"]) == {"rmse", "mae", "r2"}
    assert applicable_metrics(TensorSchema((), (), (Target("y", "regression"), Target("z", "regression")))) == {"r2"}
    grouped = TensorSchema((), (), (Target("y", "binary"),), has_group=True)
    assert "mrr" in applicable_metrics(grouped)


def test_rows_that_metrics_are_of_are_told_with_negatives_and_weights():
    schema = TensorSchema((), (), (Target("y", "binary"),), has_weight=True)
    labels, weight = torch.tensor([1.0, 0, 0, 0] * 300), torch.tensor([1.0, 1, 1, 1] * 200 + [0.0, 0, 0, 0] * 100)
    weighted = PackedTable.from_columns(schema, [], [], [labels], weight)
    assert rows_told(labelled(labels), 1200) == ""
    assert rows_told(labelled(labels), 300) == " and 900 drawn negatives"
    assert rows_told(weighted, 1200) == ", of which 800 weigh something"
    assert rows_told(weighted, 300) == " and 900 drawn negatives, of which 800 weigh something"


def test_two_standard_errors_are_those_of_a_bootstrap():
    random = np.random.default_rng(0)
    scores = random.random(800)
    labels = (random.random(800) < scores).astype(np.float32)
    table = labelled(labels)
    predictions = (torch.as_tensor(scores, dtype=torch.float32),)
    found = headline_errors(Evaluation({}, {"auc": 0.8, "logloss": 0.5, "mrr": None}, predictions), table)
    losses = -np.where(labels == 1, np.log(scores), np.log(1 - scores))
    drawn = random.integers(0, 800, (1000, 800))
    assert found["logloss"] == pytest.approx(2 * losses[drawn].mean(1).std(), rel=0.1)
    assert set(found) == {"auc", "logloss"}


def test_the_error_of_a_large_split_is_told_from_a_sample_of_the_rows_that_count(monkeypatch):
    """Of 40,000 rows one in ten weighs something: 4,000, of which 2,000 are looked at."""
    monkeypatch.setattr(baseline_learners, "MOST_ROWS", 2_000)
    random = np.random.default_rng(1)
    scores = random.random(40_000).astype(np.float32)
    labels = (random.random(40_000) < scores).astype(np.float32)
    weight = (random.random(40_000) < 0.1).astype(np.float32)
    schema = TensorSchema((), (), (Target("late", "binary"),), has_weight=True)
    table = PackedTable.from_columns(schema, [], [], [torch.as_tensor(labels)], torch.as_tensor(weight))
    evaluation = Evaluation({}, {"auc": None, "logloss": 0.5, "mrr": None}, (torch.as_tensor(scores),))
    losses = -np.where(labels == 1, np.log(scores), np.log(1 - scores))[weight > 0]
    error = 2 * losses.std() / len(losses) ** 0.5
    assert headline_errors(evaluation, table)["logloss"] == pytest.approx(error, rel=0.05)


def test_the_calibration_error_of_right_probabilities_is_told_by_the_rows_that_count():
    random = np.random.default_rng(2)
    scores, weight = random.random(400), np.repeat([1.0, 0.0], 200).astype("float32")
    drawn = [torch.as_tensor(random.random(400) < scores, dtype=torch.float32) for _ in range(300)]
    schema = TensorSchema((), (), (Target("late", "binary"),), has_weight=True)
    table = PackedTable.from_columns(schema, [], [], [drawn[0]], torch.as_tensor(weight))
    evaluation = Evaluation({}, {"ece": 0.2}, (torch.as_tensor(scores),))
    of_these = torch.as_tensor(scores[:200])
    mean = np.mean([expected_calibration_error(of_these, labels[:200], 10).item() for labels in drawn])
    assert ece_by_chance(evaluation, table, 10) == pytest.approx(mean, rel=0.05)
    assert ece_by_chance(replace(evaluation, headline={"ece": None}), table, 10) is None


def test_a_tile_names_the_best_baseline_by_what_is_better():
    def item(name, auc, logloss):
        parts = [{"metric": "auc", "baseline": auc}, {"metric": "logloss", "baseline": logloss}]
        return {"name": name, "target": "y", "differences": parts}

    compared = {"found": [item("constant", 0.5, 0.62), item("boosted", 0.7629, 0.512)]}
    found = Evaluation({"y": {"auc": 0.77, "logloss": 0.5}}, {"auc": 0.77, "logloss": 0.5, "mrr": None}, ())
    of_one = {"split": "test", "evaluations": {"test": found}}
    notes = tile_notes(of_one | {"errors": {"auc": 0.0056}, "baselines": compared})
    assert notes == {"auc": "± 0.0056; boosted trees 0.7629", "logloss": "boosted trees 0.512"}
    assert tile_notes(of_one | {"errors": {"rmse": 82_345.6}, "baselines": None}) == {"rmse": "± 82,000"}
    amounts = {"found": [{"name": "boosted", "target": "y", "differences": [{"metric": "rmse", "baseline": 51_377.6}]}]}
    assert tile_notes(of_one | {"errors": {}, "baselines": amounts}) == {"rmse": "boosted trees 51,378"}
    assert tile_notes(of_one | {"errors": {}, "baselines": None}) == {}
    by_chance = {"errors": {}, "baselines": None, "ece_by_chance": 0.10342}
    assert tile_notes(of_one | by_chance) == {"ece": "0.1 by chance alone"}
    served = tile_notes(of_one | {"errors": {"auc": 0.0056}, "baselines": compared, "rates": [{"at": "serving"}]})
    where = dict.fromkeys(("logloss", "ece"), "where the model serves")  # not at the share that baselines are at
    assert served == {"auc": "± 0.0056; boosted trees 0.7629"} | where


def test_slices_say_how_many_were_looked_at_and_show_the_surest_ten():
    worse = [{"slice": f"city = {i}", "rows": 200, "auc": 0.6, "±": 0.1} for i in range(30)]
    found = Slices("late", "auc", 1039, 32_734, 0.7855, worse, [], 0.039)
    (table,) = slice_tables([found], "test")
    assert table.text.startswith("AUC of the 32,734 rows looked at: 0.7855. 30 of 1,039 looks")
    assert "the mean label is 0.039 above the mean prediction" in table.text
    assert "serves" not in table.text
    (served,) = slice_tables([found], "test", serving=True)
    assert served.text.endswith("Means are as where the model serves (train.prior), AUC is the same there.")
    assert [row["slice"] for row in table.worse] == [f"city = {i}" for i in range(10)]
    assert table.worse[0]["AUC"] == 0.6
    (large,) = slice_tables([replace(found, overall_off=-123_456.0)], "test")
    assert "the mean label is 123,000 below the mean prediction" in large.text
    (none,) = slice_tables([Slices("late", "auc", 0, 50, None, [], [])], "test")
    assert none.text == "No value of a column has enough rows of test to be looked at."
