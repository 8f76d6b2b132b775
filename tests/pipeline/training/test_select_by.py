"""The best epoch by a metric: the values are scikit-learn's and evaluation's, and patience, checkpoints, members and
refusals go by them."""

import itertools
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn import metrics as scikit

from gigabatch.features.schema import Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.click.lr import LogisticRegression
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import RegressionLoss, TargetLoss
from gigabatch.models.model import TargetScale
from gigabatch.pipeline.config.config import SELECTABLE, ConfigError, TrainSettings, parse_config
from gigabatch.pipeline.training import train as module
from gigabatch.pipeline.training.train import TrainingError, train_model, warn_of_one_row

TASKS = {
    "binary": (Target("label", "binary"),),
    "multiclass": (Target("kind", "multiclass", 3),),
    "regression": (Target("value", "regression"),),
    "count": (Target("value", "regression"),),
    "quantiles": (Target("value", "regression", 2, quantiles=(0.1, 0.5)),),
    "two": (Target("label", "binary"), Target("value", "regression")),
    "values": (Target("value", "regression"), Target("other", "regression")),
}
LOSSES = {"count": [RegressionLoss("poisson")], "quantiles": [RegressionLoss("quantile", taus=(0.1, 0.5))]}


def table_of(
    kind: str, rows: int, seed: int, weighted: bool = False, grouped: bool = False, labels=None
) -> PackedTable:
    draw = torch.Generator().manual_seed(seed)
    floats = list(torch.randn(2, rows, generator=draw))
    value = floats[0] + torch.randn(rows, generator=draw)
    made = {
        "label": (value > 0.5).float(),
        "kind": value.clamp(-1, 1).round().int() + 1,
        "value": value,
        "other": -value,
    }
    if kind == "count":
        made["value"] = value.exp().floor()
    found = [made[target.name] if labels is None else labels(rows) for target in TASKS[kind]]
    schema = TensorSchema((), ("a", "b"), TASKS[kind], has_weight=weighted, has_group=grouped)
    weight = torch.rand(rows, generator=draw) + 0.1 if weighted else None
    group = torch.arange(rows, dtype=torch.int32) // 5 if grouped else None
    return PackedTable.from_columns(schema, [], floats, found, weight, group)


def run(kind: str, settings: dict, folder=None, valid=None, after_step=lambda step: None, **options):
    torch.manual_seed(1)
    targets = TASKS[kind]
    loss = TargetLoss([(target.task, target.num_outputs) for target in targets], LOSSES.get(kind))
    inputs = ModelInputs((), 2, sum(target.num_outputs for target in targets))
    model = LogisticRegression(inputs, LogisticRegression.Settings())
    train = table_of(kind, 320, 1, **options)
    valid = table_of(kind, 200, 2, **options) if valid is None else valid
    asked = TrainSettings(**{"epochs": 3, "batch_size": 64, "lr_max": 0.1, "precision": "float32"} | settings)
    return train_model(model, train, valid, loss, asked, seed=1, device="cpu", folder=folder, after_step=after_step)


def measured(trained, name: str) -> list[float]:
    return [point[f"valid_{name}"] for point in trained.curve if f"valid_{name}" in point]


def by_scikit(name: str, kind: str, outputs: np.ndarray, rows) -> float:
    """Of the model's outputs in the target's units and its rows."""
    labels, weight = rows.targets[0].numpy(), None if rows.weight is None else rows.weight.numpy()
    if kind == "multiclass":
        chances = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
        if name == "logloss":
            return scikit.log_loss(labels, chances, sample_weight=weight)
        return scikit.accuracy_score(labels, chances.argmax(1), sample_weight=weight)
    if kind == "binary":
        chances = 1 / (1 + np.exp(-outputs[:, 0]))
        if name == "accuracy":
            return scikit.accuracy_score(labels, chances >= 0.5, sample_weight=weight)
        return {"auc": scikit.roc_auc_score, "logloss": scikit.log_loss}[name](labels, chances, sample_weight=weight)
    values = outputs[:, 0]
    if name == "deviance":
        return scikit.mean_poisson_deviance(labels, values, sample_weight=weight)
    if name == "pinball":
        both = [
            scikit.mean_pinball_loss(labels, outputs[:, place], alpha=tau, sample_weight=weight)
            for place, tau in enumerate((0.1, 0.5))
        ]
        return float(np.mean(both))
    found = {
        "rmse": scikit.root_mean_squared_error, "mae": scikit.mean_absolute_error, "r2": scikit.r2_score
    }  # fmt: skip
    return found[name](labels, values, sample_weight=weight)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("binary", "auc"), ("binary", "accuracy"), ("binary", "logloss"), ("multiclass", "accuracy"),
        ("multiclass", "logloss"), ("regression", "rmse"), ("regression", "mae"), ("regression", "r2"),
        ("count", "deviance"), ("quantiles", "pinball"),
    ],
)  # fmt: skip
def test_the_metric_after_each_epoch_is_that_of_scikit_learn_and_the_best_of_them_is_kept(
    kind, name, weighted, monkeypatch
):
    seen, kept = [], module.selected_metric

    def watched(select_by, valid, loss, outputs):
        rows = valid.unpack(valid.words)
        seen.append(by_scikit(name, kind, outputs.double().numpy(), rows))
        return kept(select_by, valid, loss, outputs)

    monkeypatch.setattr(module, "selected_metric", watched)
    trained = run(kind, {"select_by": name, "epochs": 4}, weighted=weighted)
    assert measured(trained, name) == pytest.approx(seen, rel=1e-5)
    best = np.argmax(seen) if name in ("auc", "accuracy", "r2") else np.argmin(seen)
    assert trained.best_epoch == best


def test_metrics_of_groups_choose_too():
    for name in ("mrr", "gauc", "normalised_entropy"):
        values = measured(run("binary", {"select_by": name}, grouped=True), name)
        assert len(values) == 3
        assert all(0 < value < 2 for value in values)


def scripted(monkeypatch, values):
    left = iter(values)
    monkeypatch.setattr(module, "selected_metric", lambda *_: next(left))


@pytest.mark.parametrize(("name", "sign"), [("auc", 1), ("logloss", -1)])
@pytest.mark.parametrize(
    ("select", "patience", "epochs", "best"), [("best", None, 6, 2), ("best", 2, 5, 2), ("last", 2, 5, 4)]
)
def test_the_best_value_is_kept_and_patience_counts_by_it(
    monkeypatch, caplog, tmp_path, name, sign, select, patience, epochs, best
):
    caplog.set_level(logging.INFO)
    scripted(monkeypatch, [sign * value for value in (0.5, 0.7, 0.9, 0.8, 0.9, 0.6)])
    settings = {"select_by": name, "epochs": 6, "select": select, "patience": patience, "schedule": "constant"}
    trained = run("binary", settings, tmp_path)
    assert (trained.best_epoch, trained.steps) == (best, 5 * epochs)
    assert measured(trained, name) == [sign * value for value in (0.5, 0.7, 0.9, 0.8, 0.9, 0.6)][:epochs]
    scripted(monkeypatch, [sign * 0.9] * 6)  # the weights are those after the epoch
    upto = run("binary", settings | {"epochs": best + 1, "select": "last", "patience": None})  # at a constant rate
    for key, value in upto.model.state_dict().items():
        assert torch.equal(value, trained.model.state_dict()[key]), key
    assert (f"no better valid {name} since {3 if epochs < 6 else 0}" in caplog.text) == (epochs < 6)


@pytest.mark.parametrize("stop", [5, 7, 13])
def test_a_killed_training_remembers_the_best_epoch(tmp_path, monkeypatch, stop):
    settings = {"select_by": "auc", "epochs": 4, "checkpoint_every_steps": 2, "ema_decay": 0.8}
    scripted(monkeypatch, [0.7, 0.9, 0.6, 0.8])
    (tmp_path / "whole").mkdir()
    whole = run("binary", settings, tmp_path / "whole")
    values = itertools.chain([0.7, 0.9, 0.6, 0.8])
    monkeypatch.setattr(module, "selected_metric", lambda *_: next(values))

    def crash(step: int) -> None:
        if step == stop:
            raise KeyboardInterrupt

    (tmp_path / "killed").mkdir()
    with pytest.raises(KeyboardInterrupt):
        run("binary", settings, tmp_path / "killed", after_step=crash)
    if stop == 5:  # killed after the epoch's last step and before its measurement
        values = itertools.chain([0.7, 0.9, 0.6, 0.8])
    again = run("binary", settings, tmp_path / "killed")
    assert (again.best_epoch, again.curve) == (whole.best_epoch, whole.curve) == (1, whole.curve)
    assert all(torch.equal(value, again.model.state_dict()[key]) for key, value in whole.model.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (
            "regression",
            "auc",
            r"train\.select_by=auc: no target has it: value \(regression\)\. Set one of loss, rmse, mae",
        ),
        ("binary", "rmse", r"no target has it: label \(binary\)\. Set one of loss, auc, accuracy, logloss, norm"),
        ("binary", "mrr", r"train\.select_by=mrr: no target has it"),
        ("multiclass", "auc", r"kind \(multiclass\)\. Set one of loss, accuracy, logloss\."),
        ("regression", "pinball", "no target has it"),
        ("regression", "deviance", "no target has it"),
        ("values", "rmse", "several regression targets have it in units of their own"),
    ],
)
def test_a_metric_that_the_targets_lack_is_refused_before_the_first_step(kind, name, message):
    with pytest.raises(TrainingError, match=message):
        run(kind, {"select_by": name}, after_step=lambda step: pytest.fail("a step was made"))


def test_labels_that_give_a_metric_no_value_are_told_of_before_the_first_step():
    alike = table_of("binary", 50, 3, labels=torch.ones)
    with pytest.raises(TrainingError, match=r"train\.select_by=auc: the valid split's labels are all alike"):
        run("binary", {"select_by": "auc"}, valid=alike, after_step=lambda step: pytest.fail("a step was made"))


def test_of_several_targets_it_is_the_mean_of_those_that_have_it():
    assert len(measured(run("two", {"select_by": "auc"}), "auc")) == 3
    values = measured(run("values", {"select_by": "r2"}), "r2")
    assert all(value < 1 for value in values)


def test_a_metric_that_there_is_not_is_a_mistake_of_the_configuration():
    with pytest.raises(ConfigError, match=r"train\.select_by: Input should be 'loss', 'auc', .*\(found 'AUC'\)"):
        parse_config({"name": "a", "recipe": "flights", "train": {"select_by": "AUC"}})
    assert set(SELECTABLE) > {"auc", "rmse", "accuracy"}


def test_a_run_and_its_members_keep_the_epoch_whose_metric_evaluation_finds(tiny):
    """To the bit: the same rows in the same blocks."""
    settings = ("train.select_by=auc", "train.epochs=4", "train.schedule=constant", "train.lr_max=0.3")
    found = tiny.train(*settings)
    values = [point["valid_auc"] for point in found.curve if "valid_auc" in point]
    assert len(values) == 4
    assert found.summary["metrics"]["valid"]["auc"] == max(values)
    assert "AUC by step" in (found.path / "report.html").read_text()
    both = tiny.train(*settings, "train.ensemble=2")
    for number, best in enumerate(both.summary["ensemble"]["best_epochs"]):
        own = [point["valid_auc"] for point in both.curve if point["member"] == number and "valid_auc" in point]
        assert best == int(np.argmax(own))
    with pytest.raises(TrainingError, match=r"train\.select_by=rmse: no target has it: clicked \(binary\)"):
        tiny.train("train.select_by=rmse")


@pytest.mark.parametrize(("label", "settings", "told"), [
    (-60.0, {}, True), (0.0, {}, False), (-60.0, {"select_by": "mae"}, False), (-60.0, {"select": "last"}, False),
    (-60.0, {"epochs": 1}, False), (-60.0, {"epochs": 1, "select": "last"}, False),
])  # fmt: skip
def test_an_epoch_that_one_valid_row_chose_is_warned_of(label, settings, told, caplog):
    """Of 2,900 houses one of six deviations did, and the typical error was 1.4 times that of the last epoch."""
    valid = table_of("regression", 200, 2)
    rows = valid.unpack(valid.words)
    floats, values = [column.clone() for column in rows.floats.T], rows.targets[0].clone()
    floats[0][7], values[7] = 5.0, label
    valid = PackedTable.from_columns(valid.schema, [], floats, [values])
    with caplog.at_level(logging.WARNING):
        trained = run("regression", {"epochs": 4} | settings, valid=valid)
    found = [text for text in caplog.messages if "was the best by the valid loss" in text]
    assert len(found) == told
    if told:
        with torch.no_grad():
            outputs = trained.model.in_target_units(trained.model(rows.ids, torch.stack(floats, 1)))[:, 0]
        losses = (outputs.double() - values.double()).square()
        share = 100 * float(losses[7] / losses.sum())
        assert trained.best_epoch == 0
        assert found[0].startswith(f"epoch 1 of 4 was the best by the valid loss, of which one of 200 rows (row 7, "
                                   f"counted from 0) makes {share:.0f} %.")  # fmt: skip


@pytest.mark.parametrize(("loss", "advised"), [({}, 1), ({"kind": "huber"}, 1), ({"kind": "quantile", "tau": 0.9}, 0)])
def test_the_mae_is_no_advice_where_another_number_than_the_middle_is_asked_for(loss, advised, caplog):
    valid = table_of("regression", 200, 2)
    rows = valid.unpack(valid.words)
    values = rows.targets[0].clone()
    values[7] = 9e3
    valid = PackedTable.from_columns(valid.schema, [], list(rows.floats.T), [values])
    model = run("regression", {"epochs": 1}).model
    with caplog.at_level(logging.WARNING):
        warn_of_one_row(model, valid, TargetLoss([("regression", 1)], [RegressionLoss(**loss)]), "cpu", 0, 4)
    (text,) = [text for text in caplog.messages if "was the best by the valid loss" in text]
    assert text.count("select_by=mae") == advised


def test_a_row_of_weight_0_hides_no_row_that_chose_an_epoch(caplog):
    """Its label, below 0, has no loss of counts; the share of the others was no number, and nothing was said."""
    valid = table_of("regression", 200, 2)
    rows = valid.unpack(valid.words)
    values, weight = rows.targets[0].abs(), torch.ones(200)
    values[3], weight[3], values[7] = -5.0, 0.0, 9e3
    schema = replace(valid.schema, has_weight=True)
    valid = PackedTable.from_columns(schema, [], list(rows.floats.T), [values], weight=weight)
    model = run("regression", {"epochs": 1}).model
    model.scale_targets([TargetScale(0, 0, 0.0, 1.0, log=True)])
    with caplog.at_level(logging.WARNING):
        warn_of_one_row(model, valid, TargetLoss([("regression", 1)], [RegressionLoss("poisson")]), "cpu", 0, 4)
    assert "(row 7, counted from 0) makes" in caplog.text
