"""Regressions of TabM are learnt beside a ridge regression of the floats, on every way to a prediction."""

import copy
import math

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch

import gigabatch
from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.line import Line
from gigabatch.models.losses import RegressionLoss, TargetLoss
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.config.config import TrainSettings
from gigabatch.pipeline.export.export import export_bundle
from gigabatch.pipeline.export.onnx_rows import onnx_inputs
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.training import lines as lines_module
from gigabatch.pipeline.training.lines import PENALTIES, lines
from gigabatch.pipeline.training.train import new_model, table_outputs, train_model

SMALL = {"members": 4, "layers": (16,)}


def table_of(floats: np.ndarray, labels: dict[str, np.ndarray], weight: np.ndarray | None = None) -> PackedTable:
    """Of floats [N, F] and labels, binary where they are of bools."""
    targets = tuple(Target(name, "binary" if own.dtype == bool else "regression") for name, own in labels.items())
    names = tuple(f"x{place}" for place in range(floats.shape[1]))
    schema = TensorSchema((), names, targets, has_weight=weight is not None)
    given = [torch.tensor(own, dtype=torch.float32) for own in (*floats.T, *labels.values())]
    mass = None if weight is None else torch.tensor(weight, dtype=torch.float32)
    return PackedTable.from_columns(schema, [], given[: len(names)], given[len(names) :], mass)


def started(table: PackedTable, loss: RegressionLoss | None = None, **settings):
    """The model that a training of the table begins with."""
    tasks = [(target.task, 1) for target in table.schema.targets]
    inputs = ModelInputs((), len(table.schema.floats), len(tasks), targets=tuple(tasks))
    own = None if loss is None else [loss]
    spec = ModelSpec("tabm", inputs, model_class("tabm").Settings(**SMALL | {"numeric": "plain"} | settings))
    return new_model(spec, table, 1, TargetLoss(tasks, own))


def by_hand(floats: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, float, float]:
    """The ridge regression of the least generalised cross-validation by hat matrices of all penalties: weights, bias
    and the deviation of what is left, in the units of the floats and the label."""
    spread = floats.std(0)
    scaled, centred, best = (floats - floats.mean(0)) / spread, label - label.mean(), None
    for penalty in PENALTIES:
        inverse = np.linalg.inv(scaled.T @ scaled + penalty * len(label) * np.eye(floats.shape[1]))
        hat = scaled @ inverse @ scaled.T
        left = math.sqrt(((centred - hat @ centred) ** 2).mean()) / (1 - (1 + np.trace(hat)) / len(label))
        if best is None or left < best[0]:
            best = left, inverse @ scaled.T @ centred / spread
    left, weights = best
    return weights, label.mean() - floats.mean(0) @ weights, left


def correlated(rows: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Floats of several units, two of them nearly alike, and a label of some of them with noise."""
    draw = np.random.default_rng(seed)
    floats = draw.normal(size=(rows, 5)) * [1, 100, 1e-3, 1, 1] + [0, 5e4, 0, -3, 0]
    floats[:, 4] = floats[:, 3] + 0.05 * draw.normal(size=rows)
    return floats.astype(np.float32), 7 + 0.02 * floats[:, 1] + 2 * floats[:, 3] + draw.normal(size=rows)


def test_the_line_is_the_ridge_regression_of_the_least_generalised_cross_validation(monkeypatch):
    floats, label = correlated()
    label = label.astype(np.float32)
    table = table_of(floats, {"y": label})
    model = started(table)
    (scale,) = model.target_scales
    weights, bias, left = by_hand(floats.astype(np.float64), label.astype(np.float64))
    for block in (1 << 24, 70):  # numbers at a time: all rows, and ten
        monkeypatch.setattr(lines_module, "BLOCK_NUMBERS", block)
        (found,) = lines(model, table).values()
        np.testing.assert_allclose(found.weight.numpy() * scale.std, weights, rtol=1e-4, atol=1e-7)
        assert found.bias * scale.std + scale.mean == pytest.approx(bias, rel=1e-4)
        assert found.rest * scale.std == pytest.approx(left, rel=1e-5)
    torch.testing.assert_close(model.beside.weight[:, 0], found.weight.float())


def test_weights_of_floats_are_those_beside_the_values_of_an_id_column():
    """Label 3 x + 5 g where x is near -g: without the values of g the weight of x is below 0."""
    draw = np.random.default_rng(2)
    group = draw.integers(2, 5, 600)
    x = (draw.normal(size=600) - 2 * group).astype(np.float32)
    label = (3 * x + 8 * group + 0.1 * draw.normal(size=600)).astype(np.float32)
    schema = TensorSchema((IdColumn("g", 6), IdColumn("many", 600)), ("x",), (Target("y", "regression"),))
    ids = [torch.tensor(group, dtype=torch.int32), torch.arange(600, dtype=torch.int32)]
    table = PackedTable.from_columns(schema, ids, [torch.tensor(x)], [torch.tensor(label)])
    inputs = ModelInputs((6, 600), 1, 1, targets=(("regression", 1),))
    spec = ModelSpec("tabm", inputs, model_class("tabm").Settings(**SMALL))
    model = new_model(spec, table, 1, TargetLoss([("regression", 1)]))
    line, (scale,) = lines(model, table)[0], model.target_scales
    dummies = np.stack([x, *(group == value for value in (2, 3, 4))], axis=1).astype(np.float64)
    weight = np.linalg.lstsq(dummies, label.astype(np.float64), rcond=None)[0][0]
    assert float(line.weight[0]) * scale.std == pytest.approx(weight, rel=1e-3)
    left = label - 3 * x
    assert line.bias * scale.std + scale.mean == pytest.approx(left.mean(), rel=1e-3)
    assert line.rest * scale.std == pytest.approx(left.std(), rel=0.02)


def test_weights_of_rows_count_as_repeated_rows_do():
    floats, label = correlated()
    times = np.arange(len(label)) % 3
    ours, repeated = (
        lines(started(table), table.counted())[0]
        for table in (
            table_of(floats, {"y": label}, times),
            table_of(np.repeat(floats, times, 0), {"y": np.repeat(label, times)}),
        )
    )
    np.testing.assert_allclose(ours.weight, repeated.weight, rtol=0.05, atol=1e-3)  # of another penalty, maybe
    double, once = (
        lines(started(table), table)[0]
        for table in (table_of(floats, {"y": label}, np.full(len(label), 2.0)), table_of(floats, {"y": label}))
    )
    assert double.rest == pytest.approx(once.rest, rel=1e-9)
    np.testing.assert_allclose(double.weight, once.weight, rtol=1e-6)


def test_columns_of_one_value_labels_alike_other_tasks_and_log_links_have_no_line():
    floats, label = correlated()
    floats[:, 0] = 1e9 + 0.1
    table = table_of(floats, {"late": label > 7, "y": label, "same": np.full(len(label), 3.0)})
    found = lines(started(table), table)
    assert list(found) == [1]
    assert found[1].weight[0] == 0
    assert bool(found[1].weight.isfinite().all())
    counts = table_of(floats, {"y": np.abs(label)})
    assert lines(started(counts, RegressionLoss("poisson")), counts) == {}
    binary = started(table_of(floats, {"late": label > 7}))
    assert not binary.takes_lines
    assert not any("beside" in name for name in binary.state_dict())


def test_more_columns_than_rows_and_pure_noise_leave_the_network_its_part():
    draw = np.random.default_rng(1)
    floats, label = draw.normal(size=(40, 100)), draw.normal(size=40)
    (found,) = lines(started(table := table_of(floats, {"y": label})), table).values()
    assert found.rest > 0.7  # of a fit through all points nothing would be left
    floats, label = draw.normal(size=(4_000, 3)), draw.normal(size=4_000)
    (found,) = lines(started(table := table_of(floats, {"y": label})), table).values()
    assert float(found.weight.abs().max()) < 0.06
    assert found.rest == pytest.approx(1, abs=0.01)


def test_quantiles_of_a_target_have_its_line_which_is_fitted_once(monkeypatch):
    floats, label = correlated()
    table, fits, ridge = table_of(floats, {"y": label}), [], lines_module._ridge
    monkeypatch.setattr(lines_module, "_ridge", lambda *given: fits.append(given) or ridge(*given))
    model = started(table)
    (line,) = lines(model, table).values()
    (scale,) = model.target_scales
    model.target_scales = tuple(scale._replace(output=output) for output in range(3))
    fits.clear()
    found = lines(model, table)
    assert (list(found), len(fits)) == ([0, 1, 2], 1)
    assert all(torch.equal(own.weight, line.weight) for own in found.values())


def test_of_many_rows_some_are_looked_at_all_over_the_table(monkeypatch):
    floats, label = correlated()
    some = lines(started(table := table_of(floats[::4], {"y": label[::4]})), table)[0]
    table = table_of(floats, {"y": label})
    model = started(table)
    (scale,), (of_some,) = model.target_scales, started(table_of(floats[::4], {"y": label[::4]})).target_scales
    monkeypatch.setattr(lines_module, "MOST_ROWS", 66)
    found = lines(model, table)[0]
    np.testing.assert_allclose(found.weight * scale.std, some.weight * of_some.std, rtol=1e-6)
    monkeypatch.setattr(lines_module, "MOST_ROWS", 200)
    assert lines(model, table)[0].weight.tolist() != found.weight.tolist()


def test_too_many_columns_have_no_line(monkeypatch):
    monkeypatch.setattr(lines_module, "MOST_FLOATS", 4)
    floats, label = correlated()
    table = table_of(floats, {"y": label})
    assert lines(started(table), table) == {}


def test_outputs_and_members_are_added_to_the_line():
    floats, label = correlated()
    model = started(table := table_of(floats, {"y": label})).eval()
    alone = started(table, linear=False).eval()
    rows = torch.tensor(floats[:7] * 3), torch.zeros(7, 0, dtype=torch.int64)
    line = lines(model, table)[0]
    expected = alone(rows[1], rows[0]) * line.rest + (rows[0].double() @ line.weight + line.bias)[:, None]
    for graph in (torch.enable_grad, torch.no_grad):
        with graph():
            torch.testing.assert_close(model(rows[1], rows[0]), expected.float(), rtol=1e-4, atol=1e-5)
            members = model.member_outputs(rows[1], rows[0])
            torch.testing.assert_close(members.mean(1), expected.float(), rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        model.beside.set({0: Line(line.weight, line.bias, 0.0)})
        exact = rows[0].double() @ line.weight + line.bias
        torch.testing.assert_close(model(rows[1], rows[0])[:, 0].double(), exact, rtol=1e-4, atol=1e-4)


def test_a_row_has_its_score_alone_and_among_many_where_weights_are_large_and_cancel():
    """Of two columns that differ by a thousandth, of which the label is the difference."""
    draw = np.random.default_rng(0)
    floats, label = draw.normal(size=(500, 1)).repeat(2, 1), draw.normal(size=500)
    floats[:, 1] += 1e-3 * label
    model = started(table_of(floats, {"y": label})).eval()
    assert float(model.beside.weight.abs().max()) > 100
    rows, ids = torch.tensor(floats, dtype=torch.float32), torch.zeros(500, 0, dtype=torch.int64)
    with torch.no_grad():
        many = model(ids, rows)
        alone = torch.cat([model(ids[:1], row[None]) for row in rows])
        exact = copy.deepcopy(model).double()(ids, rows.double())
    torch.testing.assert_close(many, alone, rtol=SCORE_RTOL, atol=SCORE_ATOL)
    torch.testing.assert_close(many.double(), exact, rtol=SCORE_RTOL, atol=SCORE_ATOL)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_a_night_goes_on_from_a_run_without_the_setting_where_there_can_be_no_line(task):
    kind, inputs = model_class("tabm"), ModelInputs((), 2, 1, targets=((task, 1),))
    before = ModelSpec.from_dict({**ModelSpec("tabm", inputs, kind.Settings()).to_dict(), "settings": {}}).settings
    assert before.linear is False
    after = kind.settings_after(kind.Settings(), inputs, before, inputs)
    assert (after == before) is (task == "binary")


@pytest.mark.parametrize("linear", [True, False])
def test_a_bundle_of_before_has_no_line(linear):
    floats, label = correlated()
    model = started(table_of(floats, {"y": label}), linear=linear)
    described = ModelSpec("tabm", model.inputs, model.settings).to_dict()
    assert ModelSpec.from_dict(described).settings.linear is linear
    del described["settings"]["linear"]
    assert ModelSpec.from_dict(described).settings.linear is False


def walk(rows: int = 500, seed: int = 3) -> np.ndarray:
    """A random walk that rises: its last tenth lies beyond all that was before."""
    return 100 + np.cumsum(np.random.default_rng(seed).normal(0.5, 1, rows)).round(3)


def series_config(tmp_path, **changes) -> dict:
    days = pd.date_range("2020-01-01", periods=500)
    pd.DataFrame({"day": days, "y": walk()}).to_csv(tmp_path / "walk.csv", index=False)
    order = {"by": [], "time": "day", "column": "y"}
    back = [{"lag": {**order, "span": span, "output": f"y_{span}"}} for span in ("1d", "7d")]
    return {
        "name": "walk", "recipe": "table", "seed": 1, "artifacts": str(tmp_path / "a"), "runs": str(tmp_path / "r"),
        "features": {
            "path": str(tmp_path / "walk.csv"), "time": "day", "categorical": [], "continuous": ["y_1d", "y_7d"],
            "targets": {"y": {"task": "regression"}}, "steps": back,
        },
        "model": {"kind": "tabm", **SMALL} | changes,
        "train": {"epochs": 15, "batch_size": 32},
        "evaluate": {"importance": False, "baselines": [], "slices": False},
    }  # fmt: skip


def test_a_random_walk_with_drift_is_forecast_as_well_as_by_its_last_value(tmp_path):
    """Without a line the error was four times that of the last value: the network never saw labels so high."""
    config = series_config(tmp_path)
    run = Pipeline.from_config(config).train()
    values, last, own = walk(), 0.0, run.summary["targets"]["test"]["y"]
    drift = sum(values[i] - values[i - 1] for i in range(1, 400)) / 399
    for place in range(450, 500):
        last += (values[place] - values[place - 1] - drift) ** 2 / 50
    assert own.get("metrics", own)["rmse"] < 1.1 * math.sqrt(last)
    about = {flag for flag in run.summary["warnings"] if "y_1d" in flag or "y_7d" in flag}
    assert not about  # such as that they may leak, and that they leave the range of train
    history = pd.read_csv(tmp_path / "walk.csv")
    tomorrow = pd.DataFrame({"day": ["2021-05-15"]})
    (forecast,) = run.predict(tomorrow, history=history)["y"]
    assert abs(forecast - values[-1]) < 2
    # The same through the bundle's files and an export.
    bundle = gigabatch.load_bundle(run.path / "model")
    rows = pd.DataFrame({"y_1d": [values[-1], 150.0, 1000.0], "y_7d": [values[-7], 151.0, 990.0]})
    rows = rows.astype(np.float32)
    predicted = bundle.predict(rows)["y"].to_numpy()
    assert abs(predicted[0] - forecast) < 1e-2
    assert 950 < predicted[2] < 1050  # far beyond all that was learnt from
    exported = export_bundle(bundle, tmp_path / "out", ["torch", "onnx_rows"])
    assert max(item.largest_difference for item in exported) < 1e-4
    session = onnxruntime.InferenceSession(exported[1].path, providers=["CPUExecutionProvider"])
    (found,) = session.run(["predictions"], onnx_inputs(bundle.preprocessor, rows))
    np.testing.assert_allclose(found[:, 0], predicted, rtol=1e-5)


@pytest.mark.parametrize("kind", ["ensemble", "quantiles"])
def test_ensembles_and_quantiles_are_beside_the_line_too(tmp_path, kind):
    config = series_config(tmp_path)
    if kind == "ensemble":
        config["train"]["ensemble"] = 2
    else:
        config["features"]["targets"]["y"]["quantiles"] = [0.1, 0.5, 0.9]
    run = Pipeline.from_config(config).train()
    bundle = gigabatch.load_bundle(run.path / "model")
    predicted = bundle.predict(pd.DataFrame({"y_1d": [1000.0], "y_7d": [990.0]}, dtype=np.float32)).to_numpy()
    assert predicted.shape[1] == (1 if kind == "ensemble" else 3)
    assert ((predicted > 900) & (predicted < 1100)).all()
    assert (np.diff(predicted[0]) >= 0).all()


def test_what_no_line_tells_is_learnt_as_well_beside_one():
    draw = np.random.default_rng(1)
    floats = draw.uniform(-2, 2, (1_500, 2))
    label = np.abs(floats[:, 0]) + floats[:, 1] ** 2 + 0.1 * draw.normal(size=1_500)
    train, valid = table_of(floats[:1_200], {"y": label[:1_200]}), table_of(floats[1_200:], {"y": label[1_200:]})
    left = {}
    for linear in (True, False):
        model = started(train, linear=linear, layers=(64,), dropout=0.0)
        settings = TrainSettings(epochs=20, batch_size=64, lr_max=0.02)
        loss = TargetLoss([("regression", 1)])
        trained = train_model(model, train, valid, loss, settings, seed=1, device="cpu", folder=None)
        outputs = table_outputs(trained.model, valid, "cpu")[:, 0].numpy()
        left[linear] = float(((outputs - label[1_200:]) ** 2).mean() / label.var())
    assert left[False] < 0.05
    assert left[True] < left[False] + 0.01
