"""Baselines against scikit-learn on frames, by hand, and on data whose truth is known."""

import json

import numpy as np
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads
from threadpoolctl import threadpool_limits

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.pipeline.evaluation import baseline_learners as module
from gigabatch.pipeline.evaluation.baselines import (
    Baseline,
    _worse,
    advice,
    baselines,
    below_mean,
    far_predictions,
    no_probabilities,
)
from gigabatch.pipeline.evaluation.checks import rows_worth
from gigabatch.pipeline.evaluation.evaluate import Evaluation
from gigabatch.pipeline.evaluation.sample import spread
from gigabatch.pipeline.evaluation.told import baseline_rows, baseline_title
from gigabatch.pipeline.machine import available_cores
from gigabatch.pipeline.training.target_metrics import target_metrics

CITIES, SHOPS = 12, 700
ALL = ("constant", "linear", "boosted")


def table_of(task: str, rows: int, seed: int, weight=None, group=None) -> PackedTable:
    """Labels follow the city, x and, in a way that no linear model sees, y."""
    random = torch.Generator().manual_seed(seed)
    city = torch.randint(3, CITIES, (rows,), generator=random, dtype=torch.int32)
    shop = torch.randint(3, SHOPS, (rows,), generator=random, dtype=torch.int32)
    x, y, noise = torch.randn(3, rows, generator=random)
    signal = (city % 3 - 1) + x + 2 * (y.abs() < 0.6)
    labels = {
        "regression": 1000 + 50 * (signal + 0.3 * noise),
        "multiclass": (signal + noise > 0).int() + (signal > 2).int(),
        "binary": (torch.rand(rows, generator=random) < torch.sigmoid(2 * signal)).float(),
    }[task]
    schema = TensorSchema(
        (IdColumn("city", CITIES), IdColumn("shop", SHOPS)),
        ("x", "y"),
        (Target("label", task, 3 if task == "multiclass" else 1),),
        weight is not None,
        group is not None,
    )
    return PackedTable.from_columns(schema, [city, shop], [x, y], [labels], weight, group)


def evaluation_of(table: PackedTable, predictions: torch.Tensor) -> Evaluation:
    (target,), batch = table.schema.targets, table.unpack(table.words)
    metrics = target_metrics(target, predictions, batch.targets[0], batch.group, 15, batch.weight)
    return Evaluation({"label": metrics}, {}, (predictions,))


def flat(table: PackedTable, value: float = 0.5) -> torch.Tensor:
    """Predictions of a model that has learnt nothing."""
    (target,) = table.schema.targets
    shape = (len(table), target.num_outputs) if target.task == "multiclass" else (len(table),)
    return torch.full(shape, 1 / target.num_outputs if target.task == "multiclass" else value)


def found_of(task: str, names=ALL, predictions=flat, rows=4000, **columns):
    train, test = table_of(task, rows, 1, **columns), table_of(task, 2000, 2)
    return (
        baselines(names, train, {"test": test}, {"test": evaluation_of(test, predictions(test))}, seed=1),
        train,
        test,
    )


def frame_of(table: PackedTable) -> tuple[np.ndarray, np.ndarray]:
    batch = table.unpack(table.words)
    return np.concatenate([batch.ids.numpy(), batch.floats.numpy()], 1), batch.targets[0].numpy()


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_the_linear_model_is_scikit_learns_on_one_hot_ids_and_z_scores(task):
    found, train, test = found_of(task, ["linear"])
    model = Ridge() if task == "regression" else LogisticRegression(max_iter=1000)
    encoded = ColumnTransformer(
        [("ids", OneHotEncoder(handle_unknown="ignore"), [0, 1]), ("floats", StandardScaler(), [2, 3])]
    )
    peer = make_pipeline(encoded, model).fit(*frame_of(train))
    rows, labels = frame_of(test)
    predicted = peer.predict(rows) if task == "regression" else peer.predict_proba(rows)
    predicted = torch.from_numpy(predicted[:, 1] if task == "binary" else predicted)
    (target,) = train.schema.targets
    expected = target_metrics(target, predicted, torch.from_numpy(labels), None, 15)
    (linear,) = found["found"]
    assert linear["metrics"]["test"] == pytest.approx(expected, rel=2e-3, abs=2e-3)
    assert (linear["rows"], linear["target"]) == (4000, "label")


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_a_model_that_learnt_nothing_is_worse_than_all_but_the_constant_and_the_truth_than_none(task):
    found, train, _ = found_of(task)
    constant, linear, boosted = found["found"]
    metric = "rmse" if task == "regression" else "logloss"
    values = [item["metrics"]["test"][metric] for item in (constant, linear, boosted)]
    assert values[0] > 1.05 * values[1] > 1.1 * values[2]  # y is seen by the trees alone
    assert metric in linear["worse"]
    assert metric in boosted["worse"]
    (sentence,) = found["worse"]
    assert "'label' on the test split: the model is worse than" in sentence
    assert "the linear model" in sentence
    assert "and the boosted trees" in sentence
    labels = train.unpack(train.words).targets[0].double()
    if task == "regression":
        test = table_of(task, 2000, 2).unpack(table_of(task, 2000, 2).words).targets[0].double()
        assert constant["metrics"]["test"]["rmse"] == pytest.approx((test - labels.mean()).square().mean().sqrt())
    truth = {
        "binary": lambda t: t.unpack(t.words).targets[0] * 0.98 + 0.01,
        "multiclass": lambda t: torch.nn.functional.one_hot(t.unpack(t.words).targets[0].long(), 3) * 0.97 + 0.01,
        "regression": lambda t: t.unpack(t.words).targets[0] + 1,
    }[task]
    assert found_of(task, predictions=truth)[0]["worse"] == []


def test_metrics_that_differ_in_the_fifth_digit_are_written_differently():
    difference = {"metric": "auc", "model": 0.778112, "baseline": 0.778131, "gain": -1.9e-05, "error": 1e-06,
                  "units": 1000.0}  # fmt: skip
    boosted = Baseline("boosted", "late", 1.0, 1000, {}, [difference], ["auc"])
    assert "AUC 0.77811 against 0.77813" in _worse("late", [boosted], "test")


def test_predictions_of_the_mean_are_as_good_as_the_constant_and_a_shifted_one_is_worse():
    train = table_of("binary", 4000, 1)
    mean = float(train.unpack(train.words).targets[0].mean())
    same = found_of("binary", ["constant"], predictions=lambda t: flat(t, mean))[0]
    assert same["worse"] == []
    assert same["found"][0]["differences"][0]["gain"] == pytest.approx(0, abs=1e-6)
    (sentence,) = found_of("binary", ["constant"], predictions=lambda t: flat(t, mean / 2))[0]["worse"]
    assert "worse than the constant (Log loss" in sentence


@pytest.mark.parametrize(("rows", "is_told"), [(60, True), (20, True), (19, False)])
def test_a_model_with_twice_the_error_of_a_baseline_is_worse_whatever_the_noise(rows, is_told):
    train, test = table_of("regression", 4000, 1), table_of("regression", rows, 2)
    predictions = test.unpack(test.words).targets[0].double() + 20
    predictions[0] += 3000  # one row makes nearly all of the error, and of its standard error
    found = baselines(["linear"], train, {"test": test}, {"test": evaluation_of(test, predictions)}, seed=1)
    (linear,) = found["found"]
    (rmse,) = linear["differences"]
    assert rmse["model"] > 2 * rmse["baseline"]
    assert rmse["gain"] > -2 * rmse["error"]
    assert linear["worse"] == (["rmse"] if is_told else [])
    assert [text.endswith("has twice its RMSE or more.") for text in found["worse"]] == [True] * is_told


def test_an_r2_below_0_is_told_where_no_baseline_has_said_so():
    test = table_of("regression", 200, 2)
    (target,), mean = test.schema.targets, float(test.unpack(test.words).targets[0].double().mean())
    poor, good = (evaluation_of(test, flat(test, mean + off).double()).metrics for off in (50, 0))
    (sentence,) = below_mean([target], poor, "test", rows={"label": 200})
    r2 = -(50**2) / float(test.unpack(test.words).targets[0].double().var(correction=0))
    assert sentence.startswith(f"'label' on the test split: R² is {r2:.3g}, ")
    assert below_mean([target], good, "test", rows={"label": 200}) == []
    assert below_mean([target], poor, "test", rows={"label": 19}) == []
    assert (
        below_mean([target], poor, "test", rows={"label": 200}, told=["'label' on the test split: the model is worse"])
        == []
    )
    assert below_mean([target], poor, "test", rows={"label": 200}, quantiles=["label"]) == []


@pytest.mark.parametrize("far", [4e33, -1e5, float("inf"), float("nan")])
def test_rows_that_are_predicted_far_beyond_any_label_are_named(far):
    """An RMSE of 4e133 was put down to too few steps."""
    train = table_of("regression", 400, 1)
    weight = torch.ones(300).index_fill_(0, torch.tensor([9]), 0.0)
    test = table_of("regression", 300, 2, weight=weight)
    y = test.words[:, len(test.schema.ids) + 1].view(torch.float32)
    y[[4, 9, 21]] = torch.tensor([512.0, 512.0, 3.0])
    labels = test.unpack(test.words).targets[0].double()
    low, high = (float(end) for end in train.unpack(train.words).targets[0].aminmax())
    just = labels.index_fill(0, torch.tensor([4]), high + 9 * (high - low))  # far, but not beyond all reason
    assert far_predictions(train, test, [just], "test", ["x", "y"]) == {}
    found = far_predictions(train, test, [labels.index_fill(0, torch.tensor([4, 9, 21]), far)], "test", ["x", "y"])
    text = found["label"]
    assert text.startswith(
        "'label' on the test split: 2 of 299 rows are predicted more than 10 times as far off as the labels of the "
        f"train split ({low:.4g} to {high:.4g}) lie apart, or as no number: row 4 ({far:.3g}; 'y' at 512 deviations), "
        f"row 21 ({far:.3g}). "
    )
    assert "preprocess.scale=robust" in text
    without = far_predictions(train, test, [labels.index_fill(0, torch.tensor([4]), far)], "test", ["x"])["label"]
    assert "1 of 299 rows is predicted" in without
    assert f"row 4 ({far:.3g}). " in without


def test_labels_that_are_all_alike_tell_nothing_of_how_far_is_far():
    train = table_of("regression", 400, 1)
    label = len(train.schema.ids) + len(train.schema.floats)
    train.words[:, label] = train.words[0, label]
    rows = torch.full((400,), 9e9, dtype=torch.float64)
    assert far_predictions(train, train, [rows], "test", []) == {}
    assert "400 of 400 rows" in far_predictions(train, train, [rows * torch.inf], "test", [])["label"]


def test_rows_of_weight_zero_do_not_make_few_rows_many():
    """Of 4,000 rows 15 count: too few to say that a model is far off, or that an R² just below 0 is no chance."""
    train = table_of("regression", 4000, 1)
    test = table_of("regression", 4000, 2, weight=(torch.arange(4000) < 15).float())
    predictions = test.unpack(test.words).targets[0].double() + 20
    predictions[0] += 3000
    found = baselines(["linear"], train, {"test": test}, {"test": evaluation_of(test, predictions)}, seed=1)
    assert found["found"][0]["worse"] == []
    assert rows_worth(test) == pytest.approx({"label": 15})
    assert rows_worth(train) == {"label": 4000}
    (target,) = test.schema.targets
    assert below_mean([target], {"label": {"r2": -0.03}}, "test", rows=rows_worth(test)) == []


def test_a_mean_of_few_groups_is_no_reason_to_call_a_model_worse_than_it():
    """Of 20 groups whose labels are alike, the mean of train has an R² of -.05 by chance in every second run."""
    told, group = 0, torch.arange(2000, dtype=torch.int32) // 100
    target, schema = (
        Target("label", "regression"),
        TensorSchema((), ("x",), (Target("label", "regression"),), False, True),
    )
    for seed in range(60):
        random = torch.Generator().manual_seed(seed)
        labels = torch.randn(20, generator=random)[group.long()] + 0.1 * torch.randn(2000, generator=random)
        test = PackedTable.from_columns(schema, [], [labels], [labels], None, group)
        r2 = 1 - float(labels.square().mean() / labels.var(correction=0))  # 0 is the mean of endless train rows
        assert rows_worth(test)["label"] == pytest.approx(20, rel=0.2)
        told += bool(below_mean([target], {"label": {"r2": r2}}, "test", rows=rows_worth(test)))
    assert told <= 7  # 3 in the mean


def test_rows_of_weight_zero_teach_nothing():
    weight = (torch.arange(4000) % 2).float() * 3
    weighted = found_of("binary", ["constant", "linear"], weight=weight)[0]
    train, test = table_of("binary", 4000, 1), table_of("binary", 2000, 2)
    odd = PackedTable(train.words[1::2].contiguous(), train.schema)
    expected = baselines(["constant", "linear"], odd, {"test": test}, {"test": evaluation_of(test, flat(test))}, seed=1)
    for one, other in zip(weighted["found"], expected["found"], strict=True):
        assert one["metrics"]["test"] == pytest.approx(other["metrics"]["test"], rel=1e-3)


def test_a_row_of_weight_three_is_three_rows_of_weight_one(monkeypatch):
    weight = 1 + 2 * (torch.arange(4000) % 2).float()  # 2 on average, so the penalty is twice that of as many copies
    names = ["constant", "linear"]
    weighted = found_of("binary", names, weight=weight)[0]["found"]
    train, test = table_of("binary", 4000, 1), table_of("binary", 2000, 2)
    copies = PackedTable(train.words.repeat_interleave(weight.int(), 0).contiguous(), train.schema)
    monkeypatch.setattr(module._Linear, "made", lambda self, seed: LogisticRegression(C=0.5))
    expected = baselines(names, copies, {"test": test}, {"test": evaluation_of(test, flat(test))}, seed=1)["found"]
    for one, other in zip(weighted, expected, strict=True):
        assert one["metrics"]["test"] == pytest.approx(other["metrics"]["test"], rel=1e-3)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_a_constant_float_of_weighted_rows_is_not_scaled_by_its_rounding(task):
    """.1 weighted has a mean that misses .1 by a rounding; a deviation of 4e-17 made .101 a z-score of 2.5e13."""
    random = torch.Generator().manual_seed(3)
    train, test = table_of(task, 4000, 1, torch.rand(4000, generator=random)), table_of(task, 2000, 2)
    for table in (train, test):
        table.words[:, 2 + 1].view(torch.float32)[:] = 0.1
    near = baselines(["linear"], train, {"test": test}, {"test": evaluation_of(test, flat(test))}, seed=1)
    test.words[:, 2 + 1].view(torch.float32)[:] = 0.101
    far = baselines(["linear"], train, {"test": test}, {"test": evaluation_of(test, flat(test))}, seed=1)
    metric = "rmse" if task == "regression" else "logloss"
    found = [part["found"][0]["metrics"]["test"][metric] for part in (near, far)]
    assert found[1] == pytest.approx(found[0], rel=1e-2)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_only_the_ratios_of_weights_count(task):
    weight = 1 + (torch.arange(4000) % 2).float()
    expected, scaled = (found_of(task, weight=weight * unit)[0]["found"] for unit in (1, 2.0**-30))
    for one, other in zip(scaled, expected, strict=True):
        assert one["metrics"]["test"] == pytest.approx(other["metrics"]["test"], rel=1e-3), one["name"]


def test_wide_rows_and_many_classes_leave_fewer_rows_to_learn_from(monkeypatch):
    monkeypatch.setattr(module, "FEWEST_ROWS", 100)
    monkeypatch.setattr(module, "CELLS", 4 * 1500)  # four columns
    assert [item["rows"] for item in found_of("binary")[0]["found"]] == [4000, 1500, 1500]
    assert [item["rows"] for item in found_of("multiclass", ["linear"])[0]["found"]] == [500]


def test_only_a_sample_by_the_seed_is_learnt_from_and_measured(monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 900)
    train, test = table_of("binary", 4000, 1), table_of("binary", 2000, 2)
    evaluations = {"test": evaluation_of(test, flat(test, 0.3))}

    def run(seed):
        found = baselines(ALL, train, {"test": test}, evaluations, seed=seed)
        return found | {"found": [item | {"seconds": 0} for item in found["found"]]}

    one, again, other = run(1), run(1), run(2)
    assert one == again != other
    assert json.loads(json.dumps(one)) == one
    assert one["rows"] == {"test": 900}
    assert [item["rows"] for item in one["found"]] == [4000, 900, 900]
    shown = spread(2000, 900)
    expected = target_metrics(
        Target("label", "binary"), flat(test, 0.3)[shown], test.unpack(test.words).targets[0][shown], None, 15
    )
    (logloss,) = (part for part in one["found"][0]["differences"] if part["metric"] == "logloss")
    assert logloss["model"] == pytest.approx(expected["logloss"])


@pytest.mark.parametrize("name", ["linear", "boosted"])
def test_a_class_that_the_train_rows_lack_gets_no_chance(name):
    train, test = table_of("multiclass", 4000, 1), table_of("multiclass", 2000, 2)
    kept = train.words[train.unpack(train.words).targets[0] != 1].contiguous()
    found = baselines(
        [name], PackedTable(kept, train.schema), {"test": test}, {"test": evaluation_of(test, flat(test))}, seed=1
    )
    labels = test.unpack(test.words).targets[0]
    assert found["found"][0]["metrics"]["test"]["accuracy"] <= float((labels != 1).double().mean())


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("weighted", [False, True])
def test_there_are_as_many_trees_as_are_best_on_valid(task, weighted):
    sizes = ((150, 1), (400, 2), (400, 3))
    weights = [
        torch.rand(rows, generator=torch.Generator().manual_seed(rows)) if weighted else None for rows, _ in sizes
    ]
    train, valid, test = (
        table_of(task, rows, seed, weight) for (rows, seed), weight in zip(sizes, weights, strict=True)
    )
    evaluated = {"valid": valid, "test": test}
    found = baselines(
        ["boosted"], train, evaluated, {k: evaluation_of(t, flat(t)) for k, t in evaluated.items()}, seed=1
    )
    alone = {"test": evaluation_of(test, flat(test))}
    again = baselines(["boosted"], train, {"test": test}, alone, seed=1, valid=valid)
    assert again["rows"] == {"test": 400}
    assert again["found"][0]["metrics"] == {"test": found["found"][0]["metrics"]["test"]}
    numbers = task == "regression"
    peer = (HistGradientBoostingRegressor if numbers else HistGradientBoostingClassifier)(
        categorical_features=[0, 1], early_stopping=False, max_iter=66 if task == "multiclass" else 100, random_state=1
    )
    (rows, labels), (of_valid, told), (of_test, _) = (
        (found.clip(max=[254, 254, np.inf, np.inf]), labels) for found, labels in map(frame_of, (train, valid, test))
    )
    own, held = (None if weight is None else weight.double().numpy() for weight in weights[:2])
    peer.fit(rows, labels, sample_weight=None if own is None else own / own.mean())
    stages = peer.staged_predict(of_valid) if numbers else peer.staged_predict_proba(of_valid)
    loss = mean_squared_error if numbers else log_loss
    losses = [loss(told, scores, sample_weight=held) for scores in stages]
    best = int(np.argmin(losses))
    assert numbers or best < len(losses) - 1
    predicted = list(peer.staged_predict(of_test) if numbers else peer.staged_predict_proba(of_test))[best]
    (target,), batch = train.schema.targets, test.unpack(test.words)
    predicted = torch.from_numpy(predicted[:, 1] if task == "binary" else predicted)
    expected = target_metrics(target, predicted, batch.targets[0], None, 15, batch.weight)
    assert found["found"][0]["metrics"]["test"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.skipif(available_cores() == 1, reason="a machine of one core")
def test_trees_are_learnt_and_asked_on_one_thread(monkeypatch):
    """As two that wait for each other take a hundred times as long beside a load."""
    found = {}

    class Told(HistGradientBoostingClassifier):
        def fit(self, *args, **kwargs):
            found["fit"] = _openmp_effective_n_threads()
            return super().fit(*args, **kwargs)

        def predict_proba(self, *args):
            found["predict"] = _openmp_effective_n_threads()
            return super().predict_proba(*args)

    monkeypatch.setattr("sklearn.ensemble.HistGradientBoostingClassifier", Told)
    train, test = table_of("binary", 600, 1), table_of("binary", 300, 2)
    with threadpool_limits(2, "openmp"):
        before = _openmp_effective_n_threads()  # 1 on one physical core, whatever the limit
        baselines(["boosted"], train, {"test": test}, {"test": evaluation_of(test, flat(test))}, seed=1)
        assert _openmp_effective_n_threads() == before
    assert found == {"fit": 1, "predict": 1}


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_what_does_not_apply_is_said(task):
    train, test = table_of(task, 4000, 1), table_of(task, 2000, 2)
    ones = train.words[train.unpack(train.words).targets[0] == 1].contiguous()
    found = baselines(
        ALL, PackedTable(ones, train.schema), {"test": test}, {"test": evaluation_of(test, flat(test))}, seed=1
    )
    assert [item["name"] for item in found["found"]] == ["constant"]
    assert found["left_out"] == [
        f"the {name} of 'label' (the train labels are all alike)" for name in ("linear model", "boosted trees")
    ]


def test_a_quantile_is_not_compared_with_means():
    train, test = table_of("regression", 4000, 1), table_of("regression", 2000, 2)
    evaluations = {"test": evaluation_of(test, flat(test))}
    found = baselines(ALL, train, {"test": test}, evaluations, seed=1, quantiles=["label"])
    assert (found["found"], found["worse"]) == ([], [])
    assert found["left_out"][0] == "the constant of 'label' (it predicts the mean, and the model a quantile)"


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_every_seed_of_a_run_is_one_of_scikit_learn(task):  # whose own are below 2^32; a member of an ensemble has more
    train, test = table_of(task, 400, 1), table_of(task, 200, 2)
    evaluations = {"test": evaluation_of(test, flat(test))}
    found = baselines(ALL, train, {"test": test}, evaluations, seed=(1 << 63) - 1)["found"]
    assert [item["name"] for item in found] == list(ALL)


def test_where_negatives_are_drawn_the_constant_is_the_items_popularity():
    train = table_of("binary", 4000, 1)
    group = torch.arange(2000, dtype=torch.int32) // 5
    test = table_of("binary", 2000, 2, group=group)
    found = baselines(ALL, train, {"test": test}, {"test": evaluation_of(test, flat(test))}, seed=1, item_column=1)
    (popularity,) = found["found"]
    assert popularity["name"] == "popularity"
    counts = np.bincount(train.words[:, 1].numpy(), minlength=SHOPS)
    scores = torch.from_numpy(counts[test.words[:, 1].numpy()] / counts.max())
    expected = target_metrics(Target("label", "binary"), scores, test.unpack(test.words).targets[0], group, 15)
    assert popularity["metrics"]["test"] == {name: expected[name] for name in ("auc", "mrr", "gauc", "gauc_left_out")}
    assert [part["metric"] for part in popularity["differences"]] == ["auc", "mrr"]
    assert len(found["left_out"]) == 2
    assert "negatives are drawn anew" in found["left_out"][0]


def test_the_table_shows_the_model_on_the_same_rows_and_what_is_worse():
    rows = baseline_rows(found_of("binary")[0])
    assert [row[""] for row in rows] == ["this model", "constant", "linear model", "boosted trees"]
    assert rows[0]["logloss"] == pytest.approx(np.log(2), rel=1e-6)
    assert rows[3]["gain of logloss"] == pytest.approx(rows[3]["logloss"] - rows[0]["logloss"])
    assert rows[3]["the model is worse by"] == "logloss, auc"
    assert baseline_rows({"found": []}) == []


def test_the_table_has_no_heading_of_what_is_worse_where_nothing_is():
    found = found_of("binary")[0]
    rows = baseline_rows(found | {"found": [item | {"worse": []} for item in found["found"]]})
    assert "gain of auc" in rows[3]
    assert all("the model is worse by" not in row for row in rows)


def test_of_train_rows_none_is_called_worse_and_the_table_says_what_they_are():
    """Trees that fit their own rows closer are no better model, and an error of such a gain is of no test."""
    train = table_of("binary", 4000, 1)
    own = evaluation_of(train, flat(train))
    found = baselines(ALL, train, {"train": train}, {"train": own}, seed=1, split="train")
    assert (found["worse"], [item["worse"] for item in found["found"]]) == ([], [[], [], []])
    assert "no test" in baseline_title(found)
    assert "error" not in baseline_title(found)
    trees = baseline_rows(found)[3]
    assert [name for name in trees if "worse" in name or "±" in name or "gain" in name] == []
    assert trees["closer by logloss"] == pytest.approx(trees["logloss"] - np.log(2), rel=1e-6)
    assert baselines(ALL, train, {"test": train}, {"test": own}, seed=1)["worse"] != []


def test_the_models_row_has_every_metric_that_a_baseline_is_compared_by():
    """MRR, by which a constant is not compared, was missing in it, as the constant comes first."""
    train = table_of("binary", 4000, 1, group=torch.arange(4000, dtype=torch.int32) // 5)
    test = table_of("binary", 2000, 2, group=torch.arange(2000, dtype=torch.int32) // 5)
    own = evaluation_of(test, flat(test))
    rows = baseline_rows(baselines(["constant", "linear"], train, {"test": test}, {"test": own}, seed=1))
    assert [row[""] for row in rows] == ["this model", "constant", "linear model"]
    assert rows[0]["mrr"] == own.metrics["label"]["mrr"]
    assert rows[2]["mrr"] + rows[2]["gain of mrr"] == pytest.approx(rows[0]["mrr"])
    assert "mrr" not in rows[1]


@pytest.mark.parametrize(
    ("losses", "steps", "words"),
    [
        ([0.6, 0.5], 55, ["only 55 steps: lower train.batch_size", "in the last epoch: raise train.epochs"]),
        ([0.5, 0.6, 0.7], 5000, ["in epoch 1 of 3: lower train.lr_max", "gigabatch tune"]),
        ([0.6, 0.5, 0.51], 5000, ["Gigabatch tune looks"]),
        ([0.5, 0.6, 0.7], 555, ["The valid loss was lowest in epoch 1 of 3: lower train.lr_max"]),
    ],
)
def test_advice_follows_the_learning_curve(losses, steps, words):
    curve = [{"epoch": i + 1.0, "valid_loss": loss} for i, loss in enumerate(losses)]
    text = advice([{"epoch": 0.5}, *curve], steps)
    assert all(word in text for word in words), text
    assert ("steps" in text) == any("steps" in word for word in words)


@pytest.mark.parametrize("curve", [[], [{"epoch": 0.0, "valid_loss": 0.5, "loss": "cross-entropy"}]])
def test_of_a_run_that_trained_no_epoch_no_epoch_is_spoken_of(curve):
    """It said `only 0 steps` and `the valid loss was lowest in the last epoch`."""
    text = advice(curve, 0, ["a"])
    assert text.startswith(
        "No epoch was trained (train.epochs=0), so the model is that of the run it started from: set "
    )
    assert "steps" not in text
    assert "valid loss" not in text
    assert "'a' reach more than 20 deviations" in text


def test_columns_of_far_values_are_advised_a_robust_scale():
    curve = [{"epoch": 1.0, "valid_loss": 0.6}, {"epoch": 2.0, "valid_loss": 0.5}]
    assert "robust" not in advice(curve, 10_000)
    text = advice(curve, 10_000, ["a", "b", "c", "d"])
    assert (
        "'a', 'b', 'c' and 1 more reach more than 20 deviations in the train split: set preprocess.scale=robust" in text
    )


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_baselines_that_are_kept_are_learnt_once_and_say_the_same(tmp_path, monkeypatch, task):
    train, test = table_of(task, 1000, 1), table_of(task, 500, 2)
    given = ALL, train, {"test": test}, {"test": evaluation_of(test, flat(test))}
    learned = baselines(*given, seed=1)
    asked = []

    def keep(settings, write):
        asked.append(settings)
        if not any(tmp_path.iterdir()):
            write(tmp_path)
        return tmp_path

    first = baselines(*given, seed=1, keep=keep)
    monkeypatch.setattr(module, "_learn", lambda *_: pytest.fail("learned again"))
    second = baselines(*given, seed=1, keep=keep)
    assert second == first
    for found in (learned, first):  # whose seconds differ
        for item in found["found"]:
            item.pop("seconds")
    assert first == learned
    assert asked[0] == asked[1]
    assert {name: asked[0][name] for name in ("baselines", "seed", "splits", "quantiles")} == {
        "baselines": list(ALL), "seed": 1, "splits": ["test"], "quantiles": [],
    }  # fmt: skip


def test_outputs_that_are_no_probabilities_among_drawn_negatives_are_told():
    test = table_of("binary", 400, 2)
    (target,), labels = test.schema.targets, test.unpack(test.words).targets[0].double()
    share = log_loss(labels.numpy(), np.full(400, float(labels.mean())))
    wrong = torch.where(torch.arange(400) % 5 == 0, 1 - labels, labels).clamp(0.02, 0.98)  # sure, and wrong in a fifth
    (sentence,) = no_probabilities([target], evaluation_of(test, wrong).metrics, "test", "none")
    loss = log_loss(labels.numpy(), wrong.numpy())
    assert sentence.startswith(f"'label' on the test split: log loss is {loss:.3g}, {loss / share:.3g} times that of")
    assert sentence.endswith("Set train.calibration=isotonic where these are needed.")
    (set_already,) = no_probabilities([target], evaluation_of(test, wrong).metrics, "test", "isotonic")
    assert "Set train.calibration" not in set_already
    assert "does not hold here" in set_already
    sure = torch.full((400,), float(labels.mean()) + 0.02, dtype=torch.float64)  # as far off as by chance
    assert no_probabilities([target], evaluation_of(test, sure).metrics, "test", "none") == []
