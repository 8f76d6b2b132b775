"""Regression targets of any unit are learnt alike, and every path gives predictions in the target's own unit (M1)."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from gigabatch.features.schema import Column, IdColumn, Schema, Target, TensorSchema
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import ClassLoss, RegressionLoss, TargetLoss
from gigabatch.models.model import Model, TargetScale
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.bundle import load_bundle, target_loss
from gigabatch.pipeline.config.config import ConfigError, RunConfig, TrainSettings, parse_config
from gigabatch.pipeline.evaluation.evaluate import evaluate
from gigabatch.pipeline.export.export import export_bundle
from gigabatch.pipeline.export.onnx_rows import onnx_inputs
from gigabatch.pipeline.lab.compare.compare import Trainer
from gigabatch.pipeline.lab.experiment import Experiment
from gigabatch.pipeline.serving.requests import UserRequest
from gigabatch.pipeline.serving.scorer import RowScorer
from gigabatch.pipeline.serving.served import load_served
from gigabatch.pipeline.stages.finished import metric_rows
from gigabatch.pipeline.stages.score import evaluate as evaluate_of_run
from gigabatch.pipeline.stages.score import evaluate_run, score_run
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.training.target_scales import target_scales
from gigabatch.pipeline.training.train import new_model, table_loss, train_model
from tests.models.shelf_helpers import INPUTS, random_rows
from tests.pipeline.serving import small_bundles

ROWS, NUM_IDS = 3000, (6, 9)
VALUE = Target("value", "regression")


def signal(rows: int, seed: int = 0) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """ids, floats, and a value of mean 0 and deviation about 1 that follows from them up to noise of .1."""
    draw = torch.Generator().manual_seed(seed)
    ids = [torch.randint(size, (rows,), generator=draw, dtype=torch.int32) for size in NUM_IDS]
    floats = list(torch.randn(3, rows, generator=draw))
    value = 0.8 * floats[0] + 0.3 * (ids[0] - 2.5) + 0.3 * floats[1].abs() + 0.1 * torch.randn(rows, generator=draw)
    return ids, floats, (value - value.mean()) / value.std(correction=0)


def make_table(labels: dict[str, torch.Tensor], ids, floats) -> PackedTable:
    targets = tuple(Target(name, "binary" if name == "late" else "regression") for name in labels)
    schema = TensorSchema(tuple(IdColumn(f"id{i}", n) for i, n in enumerate(NUM_IDS)), ("a", "b", "c"), targets)
    return PackedTable.from_columns(schema, ids, floats, [column.float() for column in labels.values()])


def one_target(mean: float, std: float, rows: int = ROWS, seed: int = 0) -> PackedTable:
    ids, floats, value = signal(rows, seed)
    return make_table({"value": mean + std * value}, ids, floats)


def settings_of(**changes) -> TrainSettings:
    return TrainSettings(**{"epochs": 5, "batch_size": 128, "lr_max": 0.01} | changes)


def fit(table: PackedTable, folder, kind: str = "tabular", settings: TrainSettings | None = None, losses=None, **model):
    """As a user of the library does: a model, a table of raw targets, a loss."""
    torch.manual_seed(0)
    shape = {"layers": (32, 16)} if kind in ("tabular", "multi_task") else {}
    built = ModelSpec(
        kind, ModelInputs(NUM_IDS, 3, table.schema.num_outputs), model_class(kind).Settings(**shape | model)
    ).build()
    loss = TargetLoss([(target.task, 1) for target in table.schema.targets], losses)
    folder.mkdir(exist_ok=True)
    return train_model(built, table, table, loss, settings or settings_of(), seed=1, device="cpu", folder=folder)


def metrics_of(trained, table: PackedTable) -> dict:
    schema = type("Schema", (), {"targets": table.schema.targets})
    return evaluate(trained.model, table, schema, "cpu").metrics


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
@pytest.mark.parametrize(("mean", "std"), [(2000.0, 500.0), (-3e-4, 1e-6), (0.0, 1e9)])
def test_a_target_of_any_unit_is_learnt(tmp_path, optimizer, mean, std):
    table, other = one_target(mean, std), one_target(mean, std, seed=1)
    trained = fit(table, tmp_path, settings=settings_of(optimizer=optimizer))
    found = metrics_of(trained, other)["value"]
    assert found["r2"] > 0.75  # with neither it was below -1
    assert found["rmse"] == pytest.approx(std * (1 - found["r2"]) ** 0.5, rel=0.1)


def test_two_units_of_one_target_are_one_training(tmp_path):
    """Powers of two scale without rounding, so that the steps are equal bit for bit."""
    one, other = one_target(0, 1), one_target(0, 2.0**20)
    curves = [fit(table, tmp_path / str(n)).curve for n, table in enumerate((one, other))]
    assert curves[0] == curves[1]
    assert curves[0][-1]["loss"] == "mse in deviations"
    assert "loss" not in curves[0][0]


def test_targets_of_other_units_and_tasks_do_not_drown_each_other(tmp_path):
    ids, floats, value = signal(ROWS)
    labels = {"late": value > 0, "large": 1e6 + 1e6 * value, "small": 1e-3 * floats[1]}
    found = metrics_of(fit(make_table(labels, ids, floats), tmp_path, "multi_task"), make_table(labels, ids, floats))
    assert found["late"]["auc"] > 0.95
    assert found["large"]["r2"] > 0.85
    assert found["small"]["r2"] > 0.85


def test_a_constant_target_is_predicted_to_be_that_constant(tmp_path):
    table = one_target(700.0, 0.0)
    trained = fit(table, tmp_path, settings=settings_of(optimizer="adamw"))
    assert trained.model.target_scales == (TargetScale(0, 0, 700.0, 1.0),)
    found = metrics_of(trained, table)["value"]
    assert found["rmse"] < 0.2
    assert found["r2"] is None


def test_scales_are_the_exact_moments_of_a_table_and_of_a_source():
    table = one_target(123.0, 77.0)
    numbers = [Fraction(float(number)) for number in table.unpack(table.words).targets[0]]
    mean = sum(numbers) / len(numbers)
    variance = sum((number - mean) ** 2 for number in numbers) / len(numbers)
    expected = TargetScale(0, 0, float(mean), float(variance) ** 0.5)
    assert target_scales(table) == (expected,)
    assert target_scales(BatchDataset(table, 7, seed=5)) == (expected,)


def test_scales_name_target_and_output():
    schema = TensorSchema((), ("a",), (Target("kind", "multiclass", 3), Target("late", "binary"), VALUE))
    columns = [torch.tensor([0, 2], dtype=torch.int32), torch.zeros(2), torch.tensor([1.0, 3.0])]
    assert target_scales(PackedTable.from_columns(schema, [], [torch.ones(2)], columns)) == (TargetScale(2, 4, 2, 1),)


def test_the_mean_that_float32_has_no_room_for_is_kept():
    model = Plain(ModelInputs((), 1), None)
    model.scale_targets([TargetScale(0, 0, 1e9 + 0.25, 2.0)])
    targets = torch.tensor([1e9 + 0.25, 1e9 + 4.25], dtype=torch.float64)
    (found,) = model.standardised([targets])
    assert found.tolist() == [0.0, 2.0]
    assert model.in_target_units(found[:, None])[:, 0].tolist() == targets.tolist()


class Plain(Model):
    def forward(self, ids, floats):
        return floats


def test_scales_are_saved_with_the_weights_and_weights_without_them_have_scale_one():
    model, other = Plain(ModelInputs((), 1), None), Plain(ModelInputs((), 1), None)
    assert list(model.state_dict()) == []  # as it was before there were scales
    model.scale_targets([TargetScale(0, 0, 2000.5, 500.0)])
    other.load_state_dict(model.state_dict())
    assert other.target_scales == model.target_scales
    other.load_state_dict({})
    assert other.target_scales == ()
    outputs = torch.ones(2, 1)
    assert other.in_target_units(outputs) is outputs


@pytest.mark.parametrize("scale", [TargetScale(0, 1, 0.0, 1.0), TargetScale(0, 0, 0.0, 0.0)])
def test_a_scale_that_cannot_be_is_refused(scale):
    with pytest.raises(ModelError, match="does not fit 1 outputs"):
        Plain(ModelInputs((), 1), None).scale_targets([scale])


def test_the_output_range_is_in_the_targets_own_unit(tmp_path):
    table = one_target(2000.0, 500.0)
    trained = fit(table, tmp_path, output_range=(1500.0, 2500.0))
    batch = table.unpack(table.words)
    with torch.no_grad():
        values = trained.model.in_target_units(trained.model.eval()(batch.ids, batch.floats))
    assert 1500 <= values.min() < 1700
    assert 2300 < values.max() <= 2500


def test_the_output_range_is_that_of_regression_targets_alone():
    """The logit of a binary target beside a bounded regression was squeezed into the range too: no P(1) below .73."""
    bounded, free = (
        ModelSpec("tabular", ModelInputs(NUM_IDS, 3, 2), model_class("tabular").Settings((8,), output_range=given))
        .build()
        .eval()
        for given in ((1.0, 5.0), None)
    )
    bounded.scale_targets([TargetScale(1, 1, 3.0, 2.0)])
    free.load_state_dict(bounded.state_dict())
    ids, floats, _ = signal(50)
    found, plain = (model(torch.stack(ids, 1), 9 * torch.stack(floats, 1)).detach() for model in (bounded, free))
    assert torch.equal(found[:, 0], plain[:, 0])
    wanted = 1 + 4 / (1 + np.exp(-plain[:, 1].double().numpy()))
    np.testing.assert_allclose(bounded.in_target_units(found)[:, 1].numpy(), wanted, rtol=1e-5)


def test_an_output_range_without_a_regression_target_is_refused_before_training(tmp_path):
    ids, floats, value = signal(ROWS)
    table = make_table({"late": value > 0}, ids, floats)
    with pytest.raises(ModelError, match=r"output_range.*regression targets, and there is none.*binary"):
        fit(table, tmp_path, output_range=(1.0, 5.0))
    settings = model_class("tabular").Settings(output_range=(1.0, 5.0))
    with pytest.raises(ModelError, match="output_range"):
        new_model(ModelSpec("tabular", ModelInputs(NUM_IDS, 3), settings), table, seed=0)


def test_gplvmf_remembers_and_predicts_in_the_targets_own_unit():
    """It standardises what it stores by itself; its outputs are nevertheless those of every other model."""
    rows = random_rows(INPUTS, 64)
    raw = 2000 + 500 * torch.randn(64, generator=torch.Generator().manual_seed(4))
    plain, scaled = (ModelSpec("gplvmf", INPUTS, model_class("gplvmf").Settings()).build() for _ in range(2))
    scaled.scale_targets([TargetScale(0, 0, 2100.0, 400.0)])
    scaled.load_state_dict(plain.state_dict() | scaled.state_dict() | dict(plain.named_parameters()))
    for model in (plain, scaled):
        model.remember(rows.ids, rows.floats, [raw])
    values = [m.in_target_units(m.eval()(rows.ids, rows.floats)).double() for m in (plain, scaled)]
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-3)
    assert values[0].mean().item() == pytest.approx(2000, abs=200)


def test_a_quantile_loss_predicts_the_quantile(tmp_path):
    draw = torch.Generator().manual_seed(3)
    ids, floats, _ = signal(ROWS)
    noise = 50 * torch.randn(ROWS, generator=draw).abs()
    table = make_table({"value": 300 + 40 * floats[0] + noise}, ids, floats)
    shares = []
    for tau in (0.1, 0.9):
        trained = fit(table, tmp_path / str(tau), losses=[RegressionLoss("quantile", tau=tau)])
        batch = table.unpack(table.words)
        with torch.no_grad():
            values = trained.model.in_target_units(trained.model.eval()(batch.ids, batch.floats))[:, 0]
        shares.append(float((batch.targets[0] < values).double().mean()))
    assert shares == pytest.approx([0.1, 0.9], abs=0.04)


def test_huber_is_less_moved_by_outliers_than_the_squared_error(tmp_path):
    ids, floats, value = signal(ROWS)
    clean = 2000 + 500 * value
    dirty = torch.where(torch.arange(ROWS) % 50 == 0, 100_000.0, clean)
    errors = []
    for kind in ("huber", "mse"):
        loss = RegressionLoss(kind, delta=0.05)
        trained = fit(make_table({"value": dirty}, ids, floats), tmp_path / kind, losses=[loss])
        errors.append(metrics_of(trained, make_table({"value": clean}, ids, floats))["value"]["mae"])
    assert errors[0] < errors[1] / 3


# Through the pipeline


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A run on a CSV of flats whose price is 2,000 ± 500."""
    folder = tmp_path_factory.mktemp("shop")
    ids, floats, value = signal(4000)
    rows = pd.DataFrame({"town": ids[0], "street": ids[1], "a": floats[0], "b": floats[1], "price": 2000 + 500 * value})
    rows.to_csv(folder / "flats.csv", index=False)
    config = {
        "name": "flats", "recipe": "table", "device": "cpu",
        "artifacts": str(folder / "artifacts"), "runs": str(folder / "runs"),
        "features": {"path": str(folder / "flats.csv"), "categorical": ["town", "street"], "continuous": ["a", "b"],
                     "targets": {"price": {"task": "regression"}}},
        "model": {"layers": [32, 16]}, "train": {"batch_size": 128, "losses": {"price": {"kind": "huber"}}},
        "evaluate": {"importance_rows": 100, "importance_repeats": 1, "baselines": ["constant"]},
    }  # fmt: skip
    path = folder / "flats.yaml"
    path.write_text(json.dumps(config))
    return path, Pipeline.from_config(path).train()


def test_the_runs_metrics_and_table_are_those_of_a_regression(shop, capsys):
    _, run = shop
    for metrics in run.summary["metrics"].values():
        assert metrics["r2"] > 0.8
        assert metrics["rmse"] == pytest.approx(500 * (1 - metrics["r2"]) ** 0.5, rel=0.2)
        assert 0 < metrics["mae"] < metrics["rmse"]
    assert [list(row) for row in metric_rows(run.summary)] == [["split", "rmse", "mae", "r2"]] * 2
    run.show()
    assert "r2" in capsys.readouterr().out.splitlines()[1]
    assert "rmse" in run._repr_html_()
    assert run.curve[-1]["loss"] == run.bundle().info["loss"] == "huber(delta=1) in deviations"
    assert run.curve[-1]["valid_loss"] < 0.2
    assert "huber(delta=1) in deviations" in (run.path / "report.html").read_text()


def test_a_run_is_evaluated_by_the_loss_that_it_was_trained_with(shop, tmp_path):
    """Today's configuration asks for another one, whose metric the run's predictions are not made for."""
    path, run = shop
    today = {"train.losses": {"price": {"kind": "quantile", "tau": 0.9}}, "evaluate.importance": False}
    found = evaluate_of_run(path, today, out=tmp_path / "again")
    assert set(found["targets"]["price"]) == set(run.summary["targets"]["test"]["price"]) == {"rmse", "mae", "r2"}
    assert found["warnings"] == run.summary["warnings"]


def test_every_way_to_a_prediction_gives_the_targets_own_unit(shop, tmp_path, capsys):
    path, run = shop
    bundle, features = run.bundle(), Pipeline.from_config(path).features()
    frame = features.frame("test")
    found = bundle.predict(frame)["price"]
    assert found.dtype == np.float64
    assert found.mean() == pytest.approx(2000, abs=60)
    assert found.std() == pytest.approx(500, abs=100)
    score_run(path, (), None, "test", tmp_path / "scores.csv")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "scores.csv")["predicted_price"], found)
    evaluate_run(path, (), None, "test", tmp_path / "again")
    again = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert again["rmse"] == pytest.approx(run.summary["rmse"], rel=1e-9)
    assert "mae" in capsys.readouterr().out
    scorer = RowScorer(bundle)
    online = scorer(frame[list(scorer.transform.columns)].head(5).to_dict("records"))["price"]
    np.testing.assert_allclose(online, found.head(5), rtol=1e-5)
    export_bundle(bundle, tmp_path, ["torch", "onnx_rows"])
    packed = torch.from_numpy(bundle.preprocessor.pack(frame, targets=False))
    ids, floats = packed[:, :2].contiguous(), packed[:, 2:].view(torch.float32).contiguous()
    outputs = torch.export.load(tmp_path / "model.pt2").module()(ids, floats)[:, 0]
    np.testing.assert_allclose(outputs.detach(), found, rtol=1e-5)
    session = onnxruntime.InferenceSession(tmp_path / "rows.onnx", providers=["CPUExecutionProvider"])
    (predictions,) = session.run(["predictions"], onnx_inputs(bundle.preprocessor, frame))
    assert predictions.dtype == np.float64
    np.testing.assert_allclose(predictions[:, 0], found, rtol=1e-5)


def test_trainings_of_an_experiment_report_the_targets_own_unit(shop):
    path, run = shop
    experiment = Experiment.of(Pipeline.from_config(path).features().encode(), None)
    trainer = Trainer(experiment, math.inf)
    found = trainer.outcome(experiment.spec, experiment.config.train, experiment.config.seed).metrics
    assert trainer.metric == "loss"
    assert found["rmse"] == pytest.approx(run.summary["rmse"], rel=1e-9)  # the same training
    assert found["loss"] < 0.2
    step = experiment.train_step(experiment.new_model(1))
    batch = next(iter(experiment.batches(128, 1)))
    assert step(batch.rows(None), 1e-3, 0.9) < 3


@pytest.mark.parametrize("kind", ["two_tower", "tabular"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_items_are_ranked_by_predictions_in_the_targets_own_unit(kind, dtype, tmp_path, monkeypatch):
    plain = small_bundles.schema()
    rated = replace(plain, targets=(Target("clicked", "regression"),))
    monkeypatch.setattr(small_bundles, "schema", lambda *_: rated)
    frame = small_bundles.interactions()
    bundle = small_bundles.random_bundle(frame, kind)
    bundle.model.scale_targets([TargetScale(0, 0, 2000.0, 500.0)])
    ranker = load_served(small_bundles.write_run(tmp_path / "run", bundle, frame, dtype=dtype)).require_ranker()
    user, items = frame["user_id"].iloc[0], frame["item_id"].head(5).tolist()
    scores, unknown = ranker.score(ranker.asker(UserRequest(user=user)), items)
    assert unknown == []
    own = frame[frame["user_id"] == user].iloc[[0] * 5].reset_index(drop=True)
    columns = ["item_id", "genre", "price"]
    own[columns] = frame[columns].head(5)
    np.testing.assert_allclose(scores, bundle.predict(own)["clicked"], atol=0.02 if dtype == "float32" else 10)
    assert np.std(scores) > 20


def test_a_bundle_without_scales_has_scale_one(shop, tmp_path):
    _, run = shop
    bundle = run.bundle()
    bundle.save(tmp_path)
    weights = load_file(tmp_path / "weights.safetensors")
    scale = weights.pop("saved_target_scales")
    save_file(weights, tmp_path / "weights.safetensors")
    content = json.loads((tmp_path / "bundle.json").read_text())  # as it was before there were checksums too
    old = {key: value for key, value in content.items() if key not in ("files", "checksum")}
    (tmp_path / "bundle.json").write_text(json.dumps(old))
    rows = pd.DataFrame({"town": [1, 2], "street": [3, 4], "a": [0.5, -1.0], "b": [0.1, 0.2]})
    rows = rows.astype({"town": "str", "street": "str"})
    old, new = load_bundle(tmp_path).predict(rows)["price"], bundle.predict(rows)["price"]
    np.testing.assert_allclose(old * scale[0, 3].item() + scale[0, 2].item(), new, rtol=1e-6)


def test_the_valid_loss_is_that_of_the_standardised_targets(tmp_path):
    table = one_target(2000.0, 500.0, rows=500)
    spec = ModelSpec("tabular", ModelInputs(NUM_IDS, 3), model_class("tabular").Settings(layers=(8,)))
    model, loss = new_model(spec, table, 1), TargetLoss([("regression", 1)])
    batch = table.unpack(table.words)
    with torch.no_grad():
        outputs = model.eval()(batch.ids, batch.floats)[:, 0].double()
    labels = batch.targets[0].double()
    expected = ((outputs - (labels - labels.mean()) / labels.std(correction=0)) ** 2).mean().item()
    assert table_loss(model, table, loss, "cpu") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ({"price": {"kind": "hinge"}}, r"train\.losses\.price\.kind.*'mse', 'huber', 'quantile'.*'hinge'"),
        ({"price": {"kind": "huber", "delta": 0}}, r"train\.losses\.price\.delta.*greater than 0"),
        ({"price": {"kind": "quantile", "tau": 1}}, r"train\.losses\.price\.tau.*less than 1"),
        ({"price": {"tau": 0.9}}, "tau is a setting of the loss quantile, and kind is None"),
        ({"price": {"kind": "huber", "delat": 1}}, "unknown key 'train.losses.price.delat'.*delta"),
    ],
)
def test_a_loss_that_cannot_be_is_refused_before_any_work(losses, message):
    with pytest.raises(ConfigError, match=message):
        parse_config({"name": "a", "recipe": "flights", "train": {"losses": losses}})


def test_the_loss_of_what_is_no_regression_target_is_refused(shop):
    path, _ = shop
    with pytest.raises(ConfigError, match=r"train\.losses: 'cost' is no target\. Targets: price"):
        Pipeline.from_config(path, "train.losses={cost: {kind: mse}}").train()
    schema = Pipeline.from_config(path).features().schema
    config = RunConfig(name="a", recipe="flights", train={"losses": {"price": {"kind": "quantile", "tau": 0.9}}})
    assert target_loss(schema, config.train.losses).regression == (RegressionLoss("quantile", tau=0.9),)


def test_labels_of_regressions_alone_are_not_smoothed():
    schema = Schema((Column("price", "target", "float32"),), (Target("price", "regression"),))
    with pytest.raises(ConfigError, match=r"train\.label_smoothing: all targets are regressions"):
        target_loss(schema, label_smoothing=0.1)


# Where outputs of binary targets start


def rare(share: float, rows: int = 2_000) -> torch.Tensor:
    return (torch.arange(rows) % round(1 / share) == 0).float()


def started(labels: dict[str, torch.Tensor], weight: torch.Tensor | None = None, classes=None) -> np.ndarray:
    """What a fresh TabM predicts where its weights say nothing of a row: [targets]."""
    rows = len(next(iter(labels.values())))
    ids, floats, _ = signal(rows)
    targets = tuple(Target(name, "binary") for name in labels)
    columns = tuple(IdColumn(f"id{i}", n) for i, n in enumerate(NUM_IDS))
    schema = TensorSchema(columns, ("a", "b", "c"), targets, has_weight=weight is not None)
    table = PackedTable.from_columns(schema, ids, floats, list(labels.values()), weight)
    tasks = [("binary", 1)] * len(labels)
    inputs = ModelInputs(NUM_IDS, 3, len(labels), targets=tuple(tasks))
    spec = ModelSpec("tabm", inputs, model_class("tabm").Settings(members=3, layers=(4,)))
    model = new_model(spec, table, 1, TargetLoss(tasks, classes=classes)).eval()
    with torch.no_grad():
        model.output.weight.zero_()
        return torch.sigmoid(model(torch.stack(ids, 1)[:5], torch.stack(floats, 1)[:5]))[0].numpy()


def test_outputs_of_tabm_start_at_the_share_of_label_1():
    """They started at one half: of 4,000 rows 6 % positive the first three of forty epochs taught that these are rare,
    by all weights (Caravan, docs/tried.md)."""
    labels = {"late": rare(0.02), "lost": rare(0.5), "none": torch.zeros(2_000)}
    found = started(labels)
    np.testing.assert_allclose(found[:2], [labels["late"].mean(), labels["lost"].mean()], rtol=1e-5)
    assert 0.3 < found[2] < 0.7  # of one label alone the log odds are none


def test_the_start_counts_weights_of_rows_and_of_classes_as_the_loss_does():
    late, weight = rare(0.1), 1.0 + (torch.arange(2_000) % 10 == 0) * 3.0
    weight[5] = 0.0
    share = float(np.average(late.numpy(), weights=weight.numpy()))
    np.testing.assert_allclose(started({"late": late}, weight), [share], rtol=1e-5)
    # the constant of the least weighted log loss, by a search over constants
    tried = np.linspace(0.001, 0.999, 9981)
    loss = -(5.0 * late.mean().item() * np.log(tried) + 0.5 * (1 - late.mean().item()) * np.log(1 - tried))
    of_classes = started({"late": late}, classes=[ClassLoss(class_weights=(0.5, 5.0))])
    np.testing.assert_allclose(of_classes, [tried[loss.argmin()]], atol=2e-4)
    np.testing.assert_allclose(started({"late": late}, classes=[ClassLoss(class_weights="balanced")]), [0.5], rtol=1e-5)
