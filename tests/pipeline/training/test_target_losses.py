"""Losses by target through a training and a run: counts and amounts, focal loss, weights of classes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import sklearn.metrics
import torch

from gigabatch.features.errors import DataError
from gigabatch.features.recipes.table.labels import target_settings
from gigabatch.features.schema import Column, IdColumn, Schema, Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import ClassLoss, RegressionLoss, TargetLoss
from gigabatch.models.model import TargetScale
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.bundle import target_loss
from gigabatch.pipeline.config.config import ConfigError, LossSettings, RunConfig, TrainSettings
from gigabatch.pipeline.export.export import export_bundle
from gigabatch.pipeline.export.onnx_rows import onnx_inputs
from gigabatch.pipeline.lab.experiment import Experiment
from gigabatch.pipeline.serving.errors import Refusal
from gigabatch.pipeline.serving.ranker import null_row
from gigabatch.pipeline.serving.scorer import RowScorer
from gigabatch.pipeline.serving.served import load_served
from gigabatch.pipeline.stages import stages
from gigabatch.pipeline.stages.score import score_run
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.training.checkpoint import TrainingError
from gigabatch.pipeline.training.target_scales import fitted_loss, require_labels, require_steps_in_order, target_scales
from gigabatch.pipeline.training.train import new_model, table_batches, table_loss, table_outputs, train_model
from tests.pipeline.serving import small_bundles


def amounts(rows: int, seed: int = 0):
    """A town and a float; claims, of Poisson number, and their cost: a sum of gamma amounts. Means by formula."""
    draw = np.random.default_rng(seed)
    town, x = draw.integers(0, 5, rows), draw.normal(size=rows)
    mean = np.exp(-1 + 0.6 * x + 0.3 * (town - 2))
    number = draw.poisson(mean)
    cost = np.where(number > 0, draw.gamma(np.maximum(2 * number, 1e-9), 400.0), 0.0)
    return pd.DataFrame({"town": town, "x": x, "number": number.astype(float), "cost": cost}), mean


def table_of(frame: pd.DataFrame, name: str, task: str = "regression") -> PackedTable:
    schema = TensorSchema((IdColumn("town", 5),), ("x",), (Target(name, task, 3 if task == "multiclass" else 1),))
    ids, label = torch.from_numpy(frame["town"].to_numpy().astype(np.int32)), torch.from_numpy(frame[name].to_numpy())
    return PackedTable.from_columns(
        schema, [ids], [torch.from_numpy(frame["x"].to_numpy()).float()],
        [label.to(torch.int32 if task == "multiclass" else torch.float32)],
    )  # fmt: skip


def fit(table: PackedTable, loss: TargetLoss, folder, kind: str = "tabular", **settings):
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    inputs = ModelInputs((5,), 1, table.schema.num_outputs)
    model = ModelSpec(kind, inputs, model_class(kind).Settings(layers=(16,))).build()
    chosen = TrainSettings(**{"epochs": 6, "batch_size": 256, "lr_max": 0.02} | settings)
    return train_model(model, table, table, loss, chosen, seed=1, device="cpu", folder=folder)


@pytest.mark.parametrize(("kind", "name"), [("poisson", "number"), ("tweedie", "cost")])
def test_a_valid_row_that_a_log_link_sends_beyond_float32_is_not_told_to_be_a_rate_that_is_too_high(
    kind, name, tmp_path
):
    """One row of 5,000 deviations ended the training with "diverged ... Lower train.lr_max"."""
    frame, _ = amounts(3000)
    valid = frame.iloc[:500].copy()
    valid.loc[[7, 30], "x"] = 5000.0
    loss = TargetLoss([("regression", 1)], [RegressionLoss(kind)])
    # Linear, without the norm that would bound it.
    settings = model_class("tabular").Settings(layers=(), batch_norm_floats=False, numeric="plain")
    model = ModelSpec("tabular", ModelInputs((5,), 1, 1), settings).build()
    chosen = TrainSettings(epochs=1, batch_size=256, lr_max=0.02)
    with pytest.raises(TrainingError) as found:
        train_model(
            model, table_of(frame, name), table_of(valid, name), loss, chosen, seed=1, device="cpu", folder=tmp_path
        )
    text = str(found.value)
    assert text.startswith("epoch 1: the train loss is finite, but 2 of 500 valid rows (row 7, counted from 0, first) ")
    assert "preprocess.scale=robust" in text
    assert "lr_max" not in text


@pytest.mark.parametrize(("kind", "name", "unit"), [("poisson", "number", 1.0), ("tweedie", "cost", 800.0)])
def test_means_of_counts_and_amounts_are_learnt(kind, name, unit, tmp_path):
    frame, mean = amounts(6000)
    loss = TargetLoss([("regression", 1)], [RegressionLoss(kind)])
    trained = fit(table_of(frame, name), loss, tmp_path)
    assert trained.model.target_scales == (TargetScale(0, 0, 0.0, pytest.approx(frame[name].mean()), log=True),)
    found = table_outputs(trained.model, table_of(frame, name), "cpu")[:, 0].numpy()
    assert (found > 0).all()
    assert np.abs(np.log(found / (unit * mean))).mean() < 0.15
    # of the unscaled target and its prediction, over the mean to the power that makes the deviance of one unit
    power = 1 if kind == "poisson" else 1.5
    whole = sklearn.metrics.mean_tweedie_deviance(frame[name], found, power=power) / frame[name].mean() ** (2 - power)
    assert table_loss(trained.model, table_of(frame, name), loss, "cpu") == pytest.approx(whole, rel=1e-4)


def test_amounts_of_two_units_are_one_training(tmp_path):
    frame, _ = amounts(1500)
    loss, curves = TargetLoss([("regression", 1)], [RegressionLoss("tweedie")]), []
    for unit in (1, 1024):  # of a power of two, so that nothing is rounded
        table = table_of(frame.assign(cost=unit * frame["cost"].astype(np.float32)), "cost")
        trained = fit(table, loss, tmp_path / str(unit), epochs=1)
        curves.append([point.get("valid_loss") for point in trained.curve])
    assert curves[0] == curves[1]


def test_bundles_of_before_and_after_have_their_scales():
    spec = ModelSpec("tabular", ModelInputs((5,), 1), model_class("tabular").Settings(layers=(4,)))
    for scale in (TargetScale(0, 0, 2.0, 3.0), TargetScale(0, 0, 0.0, 3.0, log=True)):
        model, other = spec.build(), spec.build()
        model.scale_targets([scale])
        weights = model.state_dict()
        assert weights["saved_target_scales"].shape == (1, 5 if scale.log else 4)
        other.load_state_dict(weights)
        assert other.target_scales == (scale,)
        value = other.in_target_units(torch.tensor([[0.5]])).item()
        assert value == pytest.approx(3 * np.exp(0.5) if scale.log else 3.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [(-2.0, r"train\.losses\.number: poisson is of counts.*valid split holds 1 below 0, down to -2"), (0.0, None)],
)
def test_labels_below_0_are_refused_by_name(change, message):
    frame, _ = amounts(50)
    frame.loc[7, "number"] = change
    loss = TargetLoss([("regression", 1)], [RegressionLoss("poisson")])
    if message is None:
        require_labels(loss, table_of(frame, "number"), "valid")
        frame["number"] = 0.0
        with pytest.raises(TrainingError, match="train split holds 0 alone"):
            require_labels(loss, table_of(frame, "number"), "train")
    else:
        with pytest.raises(TrainingError, match=message):
            require_labels(loss, table_of(frame, "number"), "valid")


def test_a_model_that_cannot_learn_logarithms_is_refused(tmp_path):
    frame, _ = amounts(300)
    table, loss = table_of(frame, "number"), TargetLoss([("regression", 1)], [RegressionLoss("poisson")])
    spec = ModelSpec("tabular", ModelInputs((5,), 1), model_class("tabular").Settings(layers=(4,), output_range=(0, 5)))
    settings = TrainSettings(epochs=1, batch_size=64, lr_max=0.01)
    for model, message in (
        (new_model(spec, table, 1, loss), "poisson does not fit TabularModel: output_range"),
        (new_model(spec, table, 1), "give `new_model` the loss"),
    ):
        with pytest.raises(TrainingError, match=message):
            train_model(model, table, table, loss, settings, seed=1, device="cpu", folder=tmp_path)


# Several quantiles


def test_several_quantiles_are_learnt_and_do_not_cross(tmp_path):
    """Of a normal label whose spread depends on the float, against the quantiles of the formula."""
    draw = np.random.default_rng(3)
    frame = pd.DataFrame({"town": draw.integers(0, 5, 8000), "x": draw.normal(size=8000)})
    spread = np.exp(0.5 * frame["x"])
    frame["price"] = 100 + 10 * (frame["x"] + spread * draw.normal(size=8000))
    taus = (0.1, 0.5, 0.9)
    target = Target("price", "regression", 3, quantiles=taus)
    plain = table_of(frame, "price")
    table = PackedTable(plain.words, replace(plain.schema, targets=(target,)))
    loss = TargetLoss([("regression", 3)], [RegressionLoss("quantile", taus=taus)])
    trained = fit(table, loss, tmp_path, epochs=10)
    found = loss.predict(table_outputs(trained.model, table, "cpu"))[0].numpy()
    assert (np.diff(found) >= 0).all()
    for place, z in enumerate((-1.2816, 0.0, 1.2816)):
        expected = 100 + 10 * (frame["x"] + spread * z)
        assert np.abs(found[:, place] - expected).mean() < 2
    np.testing.assert_allclose((frame["price"].to_numpy()[:, None] < found).mean(0), taus, atol=0.02)
    each = [
        sklearn.metrics.mean_pinball_loss(frame["price"], found[:, place], alpha=tau) for place, tau in enumerate(taus)
    ]
    deviation = frame["price"].astype(np.float32).std(ddof=0)
    assert table_loss(trained.model, table, loss, "cpu") >= np.mean(each) / deviation * (1 - 1e-6)


def test_outputs_that_cross_are_predicted_in_order():
    model = ModelSpec("tabular", ModelInputs((5,), 1, 4), model_class("tabular").Settings(layers=(4,))).build()
    model.scale_targets([TargetScale(0, 0, 1.0, 2.0)] + [TargetScale(1, place, 10.0, 3.0) for place in (1, 2, 3)])
    outputs = torch.tensor([[5.0, 1.0, -1.0, 0.0]])
    assert model.in_target_units(outputs).tolist() == [[11.0, 7.0, 10.0, 13.0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "binary", "quantiles": [0.5]}, "quantiles are of regression targets"),
        ({"task": "regression", "quantiles": [0.9, 0.1]}, r"rising numbers in \(0, 1\)"),
        ({"task": "regression", "quantiles": [0.5, 1.0]}, r"rising numbers in \(0, 1\)"),
        ({"task": "regression", "quantiles": 0.5}, "quantiles is a list"),
    ],
)
def test_quantiles_that_cannot_be_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        target_settings({"price": options})


def test_a_schema_without_quantiles_is_written_as_before_and_one_with_them_comes_back():
    assert "quantiles" not in BOTH.to_json()
    several = replace(BOTH, targets=(BOTH.targets[0], Target("price", "regression", 2, quantiles=(0.25, 0.75))))
    assert Schema.from_json(several.to_json()) == several
    assert several.targets[1].prediction_names() == ("price_q0.25", "price_q0.75")
    with pytest.raises(ConfigError, match="the target has quantiles"):
        target_loss(several, {"price": LossSettings(kind="huber")})


def test_a_run_of_several_quantiles(tmp_path, capsys):
    frame, _ = amounts(2500)
    frame["price"] = 50 + 5 * frame["x"] + np.random.default_rng(1).normal(size=2500)
    frame.to_csv(tmp_path / "prices.csv", index=False)
    target = {"task": "regression", "quantiles": [0.1, 0.5, 0.9]}
    config = {
        "name": "prices", "recipe": "table", "device": "cpu",
        "artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs"),
        "features": {"path": str(tmp_path / "prices.csv"), "categorical": ["town"], "continuous": ["x"],
                     "targets": {"price": target}},
        "model": {"layers": [16]}, "train": {"batch_size": 128, "epochs": 6},
        "evaluate": {"importance_rows": 100, "importance_repeats": 1, "baselines": []},
    }  # fmt: skip
    path = tmp_path / "prices.yaml"
    path.write_text(json.dumps(config))
    run = Pipeline.from_config(path).train()
    bundle, rows = run.bundle(), Pipeline.from_config(path).features().frame("test")
    found = bundle.predict(rows)
    assert list(found.columns) == ["price_q0.1", "price_q0.5", "price_q0.9"]
    metrics = run.summary["targets"]["test"]["price"]
    each = [
        sklearn.metrics.mean_pinball_loss(rows["price"], found.iloc[:, k], alpha=q)
        for k, q in enumerate((0.1, 0.5, 0.9))
    ]
    assert metrics["pinball"] == pytest.approx(np.mean(each), rel=1e-6)
    inside = (found.iloc[:, 0] <= rows["price"]) & (rows["price"] <= found.iloc[:, 2])
    assert metrics["coverage"] == pytest.approx(inside.mean())
    assert metrics["mae"] == pytest.approx(
        sklearn.metrics.mean_absolute_error(rows["price"], found.iloc[:, 1]), rel=1e-6
    )
    run.show()
    assert "pinball" in capsys.readouterr().out
    scorer = RowScorer(bundle)
    online = scorer(rows[list(scorer.transform.columns)].head(5).to_dict("records"))
    np.testing.assert_allclose(online["price_q0.9"], found["price_q0.9"].head(5), rtol=1e-5)
    export_bundle(bundle, tmp_path, ["torch", "onnx_rows"])
    session = onnxruntime.InferenceSession(tmp_path / "rows.onnx", providers=["CPUExecutionProvider"])
    (predictions,) = session.run(["predictions"], onnx_inputs(bundle.preprocessor, rows))
    np.testing.assert_allclose(predictions, found.to_numpy(), rtol=1e-5)
    assert (np.diff(predictions) >= 0).all()
    assert score_run(path, (), None, "test", tmp_path / "scores.csv") == 0
    np.testing.assert_allclose(pd.read_csv(tmp_path / "scores.csv")["predicted_price_q0.5"], found["price_q0.5"])


# Weights of classes


def test_balanced_weights_are_those_of_the_train_split_by_the_weights_of_rows(tmp_path):
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"town": draw.integers(0, 5, 900), "x": draw.normal(size=900)})
    frame["kind"] = (draw.random(900) > 0.8).astype(int) + (draw.random(900) > 0.9)
    table, asked = table_of(frame, "kind", "multiclass"), [("multiclass", 3)]
    loss = TargetLoss(asked, classes=[ClassLoss(class_weights="balanced")])
    expected = 300 / frame["kind"].value_counts().sort_index()
    assert fitted_loss(loss, table).classes[0].class_weights == pytest.approx(tuple(expected))
    given = TargetLoss(asked, classes=[ClassLoss(class_weights=tuple(expected))])
    curves = [fit(table, part, tmp_path / str(n), epochs=1).curve for n, part in enumerate((loss, given))]
    assert curves[0][-1]["valid_loss"] == pytest.approx(curves[1][-1]["valid_loss"], rel=1e-9)
    with pytest.raises(TrainingError, match=r"with train\.negatives those of the rows are all 1"):
        fit(table, loss, tmp_path / "drawn", negatives={"per_positive": 2})


# The configuration

BOTH = Schema(
    (Column("x", "continuous", "float32"), Column("late", "target", "float32"), Column("price", "target", "float32")),
    (Target("late", "binary"), Target("price", "regression")),
)


def test_losses_of_a_configuration_are_those_of_the_targets():
    given = {"late": {"kind": "focal", "gamma": 1, "class_weights": [1, 2]}, "price": {"kind": "tweedie", "power": 1.2}}
    loss = target_loss(BOTH, {name: LossSettings(**values) for name, values in given.items()})
    assert loss.classes[0] == ClassLoss("focal", 1.0, (1.0, 2.0))
    assert loss.regression[1] == RegressionLoss("tweedie", power=1.2)
    assert loss.description == "focal (gamma=1; class weights 1, 2) + tweedie(power=1.2) over the mean"
    assert target_loss(BOTH).description == "log loss + mse in deviations"


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("late", {"kind": "poisson"}, r"train\.losses\.late, a binary target: unknown loss"),
        ("price", {"kind": "focal"}, r"train\.losses\.price, a regression target"),
        ("price", {"class_weights": "balanced"}, "are for binary and multiclass targets"),
        ("late", {"class_weights": [1.0, 2.0, 3.0]}, "of 2 classes"),
        ("cost", {}, "'cost' is no target"),
    ],
)
def test_a_loss_that_does_not_fit_its_target_is_refused(name, given, message):
    with pytest.raises(ConfigError, match=message):
        target_loss(BOTH, {name: LossSettings(**given)})


def kinds(*classes):
    columns = (Column("x", "continuous", "float32"), Column("kind", "target", "int32"))
    return Schema(columns, (Target("kind", "multiclass", 3, classes),))


def test_weights_by_class_are_in_the_order_of_the_classes():
    def of(schema, weights):
        return target_loss(schema, {schema.targets[0].name: LossSettings(class_weights=weights)}).classes[0]

    by_name = {"spam": 4, "egg": 1, "ham": 2.5}
    assert of(kinds("egg", "ham", "spam"), by_name).class_weights == (1.0, 2.5, 4.0)
    assert of(kinds("egg", "ham", "spam"), [1, 2.5, 4]).class_weights == (1.0, 2.5, 4.0)
    assert of(kinds("2", "9", "10"), {10: 3, 9: 2, "2": 1}).class_weights == (1.0, 2.0, 3.0)  # as YAML reads them
    assert of(kinds(), {2: 3, 0: 1, 1: 2}).class_weights == (1.0, 2.0, 3.0)  # codes, of classes without names
    assert of(BOTH, {1: 5, 0: 1}).class_weights == (1.0, 5.0)


@pytest.mark.parametrize(
    ("classes", "weights", "message"),
    [
        (("egg", "ham", "spam"), {"egg": 1, "hem": 2, "spam": 1},
         r"train\.losses\.kind, a multiclass target: class_weights names each class once; unknown: 'hem'; missing: "
         r"'ham'\. The classes are 'egg', 'ham', 'spam'\."),
        (("egg", "ham", "spam"), {"egg": 1}, r"once; missing: 'ham', 'spam'\. The classes"),
        (("egg", "ham", "spam"), [1, 2], "2 numbers for a target of 3 classes, which are in this order: 'egg', 'h"),
        (None, {"yes": 1, "no": 2},
         r"unknown: 'yes', 'no'; missing: '0', '1'\. The classes are '0', '1' \(1 is the positive label\)"),
    ],
)  # fmt: skip
def test_weights_that_do_not_name_each_class_are_refused(classes, weights, message):
    schema = BOTH if classes is None else kinds(*classes)
    with pytest.raises(ConfigError, match=message):
        target_loss(schema, {schema.targets[0].name: LossSettings(class_weights=weights)})


def test_a_run_weighs_classes_by_their_names(tmp_path, monkeypatch):
    """A list follows the classes as text; the mapping says the same in any order."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    pd.DataFrame({"x": random.normal(size=600), "size": random.choice(["small", "large", "mid"], 600)}).to_csv("a.csv")
    found = []
    for weights in ("[3, 1, 9]", "{small: 9, large: 3, mid: 1}", "[9, 3, 1]"):
        Path("run.yaml").write_text(
            "name: a\nrecipe: table\nmodel: {kind: lr}\nevaluate: {importance: false, baselines: []}\n"
            "features: {path: a.csv, continuous: [x], targets: {size: {task: multiclass}}}\n"
            f"train: {{epochs: 1, losses: {{size: {{class_weights: {weights}}}}}}}\n"
        )
        found.append(Pipeline.from_config("run.yaml").train())
    first, second, other = (run.predict(pd.DataFrame({"x": [0.0]})) for run in found)
    assert first.equals(second)
    assert not first.equals(other)
    assert first["size"].tolist() == ["small"]
    assert found[1].summary["config"]["train"]["losses"]["size"]["class_weights"] == {"small": 9, "large": 3, "mid": 1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"class_weights": {1: 2.0, "1": 3.0}}, "a class is named twice in 1, '1'"),
        ({"class_weights": {"egg": 0.0}}, "greater than 0"),
        ({"power": 1.2}, "power is a setting of the loss tweedie"),
        ({"kind": "mse", "gamma": 1.0}, "gamma is a setting of the loss focal"),
        ({"kind": "mse", "class_weights": "balanced"}, "class_weights is a setting of the losses log_loss and focal"),
        ({"kind": "focal", "class_weights": [0.0, 1.0]}, "greater than 0"),
    ],
)
def test_settings_of_another_loss_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        LossSettings(**given)


# Through the pipeline


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("claims")
    frame, _ = amounts(3000)
    frame["claimed"] = (frame["number"] > 1).astype(int)
    frame.to_csv(folder / "claims.csv", index=False)
    config = {
        "name": "claims", "recipe": "table", "device": "cpu",
        "artifacts": str(folder / "artifacts"), "runs": str(folder / "runs"),
        "features": {"path": str(folder / "claims.csv"), "categorical": ["town"], "continuous": ["x"],
                     "targets": {"cost": {"task": "regression"}, "claimed": {"task": "binary"}}},
        "model": {"kind": "multi_task", "layers": [16], "num_experts": 2, "tower_layers": []},
        "train": {"batch_size": 128, "epochs": 3,
                  "losses": {"cost": {"kind": "tweedie"}, "claimed": {"kind": "focal", "class_weights": "balanced"}}},
        "evaluate": {"importance": False, "baselines": ["constant"]},
    }  # fmt: skip
    path = folder / "claims.yaml"
    path.write_text(json.dumps(config))
    return path, Pipeline.from_config(path).train()


def test_a_run_has_the_metric_of_its_loss_and_every_way_to_a_prediction_its_unit(shop, tmp_path, capsys):
    path, run = shop
    bundle, frame = run.bundle(), Pipeline.from_config(path).features().frame("test")
    found = bundle.predict(frame)
    deviance = sklearn.metrics.mean_tweedie_deviance(frame["cost"], found["cost"], power=1.5)
    assert run.summary["targets"]["test"]["cost"]["deviance"] == pytest.approx(deviance, rel=1e-6)
    assert run.summary["deviance"] == pytest.approx(deviance, rel=1e-6)
    assert found["cost"].mean() == pytest.approx(frame["cost"].mean(), rel=0.25)
    assert bundle.info["loss"] == "tweedie(power=1.5) over the mean + focal (gamma=2; balanced classes)"
    run.show()
    assert "deviance" in capsys.readouterr().out
    scorer = RowScorer(bundle)
    online = scorer(frame[list(scorer.transform.columns)].head(5).to_dict("records"))
    np.testing.assert_allclose(online["cost"], found["cost"].head(5), rtol=1e-4)
    export_bundle(bundle, tmp_path, ["torch", "onnx_rows"])
    session = onnxruntime.InferenceSession(tmp_path / "rows.onnx", providers=["CPUExecutionProvider"])
    (predictions,) = session.run(["predictions"], onnx_inputs(bundle.preprocessor, frame))
    np.testing.assert_allclose(predictions, found.to_numpy(), rtol=1e-4)


def test_an_experiment_and_a_warm_start_have_the_runs_losses(shop):
    path, run = shop
    experiment = Experiment.of(Pipeline.from_config(path).features().encode(), None)
    assert experiment.loss.asks_for_counts == ()
    assert experiment.new_model(1).target_scales == run.bundle().model.target_scales
    warm = (f"train.start_from={run.path.name}", f"preprocess.from={run.path.name}", "train.epochs=1")
    again = Pipeline.from_config(path, *warm, "train.window=null").train()
    assert again.summary["started"]["run"] == run.path.name
    assert again.bundle().model.target_scales == run.bundle().model.target_scales
    assert target_scales(experiment.train, experiment.loss)[0].log


def test_a_label_below_0_in_any_split_ends_a_run_before_it_trains(shop, tmp_path):
    path, _ = shop
    frame = pd.read_csv(path.parent / "claims.csv")
    frame.loc[frame.index[-200:], "cost"] = -1.0
    frame.to_csv(tmp_path / "claims.csv", index=False)
    with pytest.raises(TrainingError, match=r"train\.losses\.cost: .* split holds .* below 0"):
        Pipeline.from_config(path, f"features.path={tmp_path / 'claims.csv'}").train()


def test_items_are_not_ranked_by_quantiles(tmp_path, monkeypatch):
    spread = Target("clicked", "regression", 2, quantiles=(0.1, 0.9))
    plain = small_bundles.schema()
    monkeypatch.setattr(small_bundles, "schema", lambda *_: replace(plain, targets=(spread,)))
    frame = small_bundles.interactions()
    bundle = small_bundles.random_bundle(frame, "tabular")
    served = load_served(small_bundles.write_run(tmp_path / "run", bundle, frame))
    with pytest.raises(Refusal, match="has quantiles; items are ranked by one number"):
        served.require_ranker()
    assert list(served.scorer([null_row(bundle)])) == ["clicked_q0.1", "clicked_q0.9"]


# Steps that follow each other


STEPS = {"clicked": {"task": "binary"}, "carted": {"task": "binary"}, "bought": {"task": "binary"}}


def funnel(rows=900):
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"x": random.normal(size=rows), "split": np.repeat(["train", "valid", "test"], rows // 3)})
    for place, name in enumerate(STEPS):
        frame[name] = (random.random(rows) < 0.6).astype(int) * (1 if not place else frame[list(STEPS)[place - 1]])
    return frame


def funnel_table(frame, weight=None):
    schema = TensorSchema((), ("x",), tuple(Target(name, "binary") for name in STEPS), has_weight=weight is not None)
    labels = [torch.tensor(frame[name].to_numpy(), dtype=torch.float32) for name in STEPS]
    own = () if weight is None else (torch.tensor(weight, dtype=torch.float32),)
    return PackedTable.from_columns(schema, [], [torch.tensor(frame["x"].to_numpy()).float()], labels, *own)


def test_a_step_without_the_one_before_it_is_counted_by_weight_and_place():
    kind, frame = model_class("esmm"), funnel()
    require_steps_in_order(kind, funnel_table(frame), "train")
    frame.loc[[5, 40, 77], ["clicked", "carted", "bought"]] = [[0, 1, 1], [1, 0, 1], [0, 1, 0]]
    message = (
        "EntireSpace: its targets are steps that follow each other, in their order 'clicked', 'carted', 'bought', but "
        "in the train split 'carted' is 1 and 'clicked' is 0 in 2 row(s), first in row 5 (from 0); 'bought' is 1 and "
        "'carted' is 0 in 1 row(s), first in row 40 (from 0). Name the targets in the order of the steps, correct the "
        "labels, or take a model whose targets need no order (model.kind=multi_task or ple)."
    )
    with pytest.raises(TrainingError) as raised:
        require_steps_in_order(kind, funnel_table(frame), "train")
    assert str(raised.value) == message
    weight = np.ones(len(frame))
    weight[[5, 40]] = 0
    with pytest.raises(TrainingError, match=r"'clicked' is 0 in 1 row\(s\), first in row 77 \(from 0\)\. Name"):
        require_steps_in_order(kind, funnel_table(frame, weight), "valid")
    weight[77] = 0
    require_steps_in_order(kind, funnel_table(frame, weight), "valid")
    require_steps_in_order(model_class("ple"), funnel_table(frame), "train")


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_step_without_the_one_before_it_is_refused_in_any_split(split, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = funnel()
    place = {"train": 0, "valid": 300, "test": 600}[split] + 7
    frame.loc[place, ["clicked", "carted", "bought"]] = [0, 0, 1]
    paths = {f"{name}_path": f"{name}.csv" for name in ("train", "valid", "test")}
    for (_, path), (_, part) in zip(paths.items(), frame.groupby("split", sort=False), strict=True):
        part.to_csv(path, index=False)
    monkeypatch.setattr(stages, "train_model", None)  # so it is before any training
    config = RunConfig(
        name="shop", recipe="table", model={"kind": "esmm", "layers": [4]},
        features={**paths, "continuous": ["x"], "targets": STEPS},
    )  # fmt: skip
    with pytest.raises(
        TrainingError, match=rf"the {split} split 'bought' is 1 and 'carted' is 0 in 1 row\(s\), first in row 7 "
    ):
        Pipeline(config).train()


def test_a_training_of_steps_checks_tables_and_sources(tmp_path):
    frame = funnel()
    frame.loc[9, ["clicked", "carted"]] = [0, 1]
    bad, good, kind = funnel_table(frame), funnel_table(funnel()), model_class("esmm")
    loss, settings = TargetLoss([("binary", 1)] * 3), TrainSettings(epochs=1, batch_size=90)
    model = ModelSpec("esmm", ModelInputs((), 1, 3), kind.Settings(layers=(4,))).build()
    at = {"seed": 1, "device": "cpu", "folder": tmp_path}
    with pytest.raises(TrainingError, match="in the valid split"):
        train_model(model, good, bad, loss, settings, **at)
    source = table_batches(bad, settings, 1)
    with pytest.raises(TrainingError, match=r"train split 'carted' is 1 and 'clicked' is 0 in 1 row\(s\)\. Name"):
        train_model(model, source, good, loss, settings, **at)
