"""Calibration: curves of logits, fitted on the valid split and part of every prediction."""

import json
import math

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression as Fitted

from gigabatch.features.schema import Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.click.lr import LogisticRegression
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import ClassLoss, TargetLoss
from gigabatch.models.output_curves import OutputCurve
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.bundle import load_bundle, standardised_outputs
from gigabatch.pipeline.config.config import ConfigError, NegativeSettings, PriorSettings, TrainSettings
from gigabatch.pipeline.evaluation.evaluate import rates_of_label_1
from gigabatch.pipeline.export.export import export_bundle
from gigabatch.pipeline.export.onnx_rows import onnx_inputs
from gigabatch.pipeline.serving.scorer import RowScorer
from gigabatch.pipeline.stages.score import evaluate_run, score_run
from gigabatch.pipeline.training.calibration import fit_curves, prior_shift, require_calibratable
from gigabatch.pipeline.training.checkpoint import TrainingError
from gigabatch.pipeline.training.ensemble import train_members
from gigabatch.pipeline.training.train import table_outputs, train_model
from tests.models.shelf_helpers import INPUTS
from tests.pipeline.serving import small_bundles

CLICK, KIND, VALUE = Target("click", "binary"), Target("kind", "multiclass", 3), Target("value", "regression")


def overconfident(rows: int = 4000, seed: int = 0):
    """Logits twice as large as they should be, their labels, and weights."""
    draw = np.random.default_rng(seed)
    true = draw.normal(size=rows)
    labels = (draw.random(rows) < 1 / (1 + np.exp(-true))).astype(np.float64)
    return 2 * true, labels, draw.exponential(size=rows)


def model_of(curves=(), num_outputs: int = 1) -> LogisticRegression:
    model = LogisticRegression(ModelInputs((), 1, num_outputs), LogisticRegression.Settings())
    model.calibrate(curves)
    return model.eval()


# The curves


def test_a_curve_is_linear_between_its_points_and_of_its_slope_beyond():
    curve = OutputCurve(0, (-1.0, 0.5, 2.0), (-0.5, 0.0, 3.0), slope=0.25)
    z = np.linspace(-1, 2, 50)
    inside = curve.of(torch.from_numpy(z)).numpy()
    np.testing.assert_allclose(inside, np.interp(z, curve.x, curve.y), atol=1e-12)
    beyond = curve.of(torch.tensor([-3.0, 4.0], dtype=torch.float64))
    assert beyond.tolist() == [-0.5 - 0.25 * 2, 3.0 + 0.25 * 2]


def test_the_temperature_is_the_slope_of_a_logistic_regression_without_intercept():
    logits, labels, weight = overconfident()
    for mass in (None, weight):
        fitted = Fitted(C=np.inf, fit_intercept=False, tol=1e-10).fit(logits[:, None], labels, sample_weight=mass)
        given = None if mass is None else torch.from_numpy(mass)
        (curve,) = fit_curves(
            "temperature", [CLICK], torch.from_numpy(logits)[:, None], [torch.from_numpy(labels)], given
        )
        assert (curve.x, curve.y) == ((0.0,), (0.0,))
        assert curve.slope == pytest.approx(fitted.coef_[0, 0], rel=1e-3)


def test_the_logits_of_a_class_share_one_temperature_and_values_have_none():
    draw = np.random.default_rng(3)
    logits = 3 * draw.normal(size=(3000, 3))
    chances = np.exp(logits / 3) / np.exp(logits / 3).sum(1, keepdims=True)
    labels = torch.from_numpy((draw.random(3000)[:, None] > chances.cumsum(1)).sum(1))
    outputs = torch.from_numpy(np.concatenate([draw.normal(size=(3000, 1)), logits], axis=1))
    curves = fit_curves("temperature", [VALUE, KIND], outputs, [outputs[:, 0], labels])

    def loss(slope: float) -> float:
        shifted = slope * logits
        return float(np.mean(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(3000), labels]))

    slopes = np.linspace(0.2, 0.5, 3001)
    best = slopes[np.argmin([loss(slope) for slope in slopes])]
    assert [curve.output for curve in curves] == [1, 2, 3]
    assert len({curve.slope for curve in curves}) == 1
    assert curves[0].slope == pytest.approx(best, abs=2e-4)


def pooled(x, share, rows):
    """Adjacent violators pooled one after the other, in plain lists: (mean x, mean share) of each step."""
    steps: list[list[float]] = []
    for values in zip(x, share, rows, strict=True):
        steps.append(list(values))
        while len(steps) > 1 and steps[-2][1] >= steps[-1][1]:
            (x0, s0, n0), (x1, s1, n1) = steps[-2:]
            n = n0 + n1
            steps[-2:] = [[(x0 * n0 + x1 * n1) / n, (s0 * n0 + s1 * n1) / n, n]]
    return steps


def test_isotonic_points_are_the_pooled_bins():
    logits, labels, _ = overconfident()
    logits[:100] = logits[0]  # ties share a bin
    order = sorted(range(len(logits)), key=lambda row: logits[row])
    bins: dict[int, list[int]] = {}
    for place, row in enumerate(order):
        first = next(p for p in range(place, -1, -1) if p == 0 or logits[order[p - 1]] != logits[row])
        bins.setdefault(first * 80 // 4000, []).append(row)  # 4,000 rows are 80 bins of 50
    x = [np.mean([logits[row] for row in rows]) for rows in bins.values()]
    share = [(sum(labels[row] for row in rows) + 0.5) / (len(rows) + 1) for rows in bins.values()]
    steps = pooled(x, share, [len(rows) for rows in bins.values()])
    (curve,) = fit_curves("isotonic", [CLICK], torch.from_numpy(logits)[:, None], [torch.from_numpy(labels)])
    np.testing.assert_allclose(curve.x, [step[0] for step in steps], rtol=1e-9)
    np.testing.assert_allclose(curve.y, [math.log(step[1] / (1 - step[1])) for step in steps], rtol=1e-9)


@pytest.mark.parametrize("kind", ["temperature", "isotonic"])
def test_other_rows_of_the_same_kind_are_calibrated_and_in_the_same_order(kind):
    logits, labels, _ = overconfident()
    (curve,) = fit_curves(kind, [CLICK], torch.from_numpy(logits)[:, None], [torch.from_numpy(labels)])
    others, _, _ = overconfident(20_000, seed=1)
    found = curve.of(torch.from_numpy(others)).numpy()
    assert np.abs(1 / (1 + np.exp(-found)) - 1 / (1 + np.exp(-others / 2))).mean() < 0.02  # the true chance
    assert (np.diff(found[np.argsort(others)]) > 0).all()


def test_a_row_without_weight_counts_for_nothing():
    logits, labels, weight = overconfident(600)
    weight[::3] = 0
    kept = weight > 0
    for kind in ("temperature", "isotonic"):
        all_rows, some = (
            fit_curves(kind, [CLICK], torch.from_numpy(z)[:, None], [torch.from_numpy(y)], torch.from_numpy(w))
            for z, y, w in ((logits, labels, weight), (logits[kept], labels[kept], weight[kept]))
        )
        if kind == "temperature":
            assert all_rows[0].slope == pytest.approx(some[0].slope, rel=1e-5)
        else:
            np.testing.assert_allclose(all_rows[0].y, some[0].y)


# The model


def test_curves_are_saved_with_the_weights_and_weights_without_them_have_none():
    curves = (OutputCurve(0, (0.0,), (0.3,), 0.5), OutputCurve(1, (-1.0, 1.0), (0.0, 0.5), 0.7))
    model, other = model_of(curves, 2), model_of(num_outputs=2)
    plain = other.state_dict()
    assert not any("calibration" in name for name in plain)
    other.load_state_dict(model.state_dict())
    assert other.calibration == curves
    outputs = torch.randn(50, 2)
    assert torch.equal(other.in_target_units(outputs), model.in_target_units(outputs))
    assert torch.equal(other.in_target_units(outputs, calibrated=False), outputs)
    assert other.in_target_units(outputs).dtype == torch.float32
    other.load_state_dict(plain)
    assert other.calibration == ()
    assert other.in_target_units(outputs) is outputs


@pytest.mark.parametrize(
    "curve",
    [
        OutputCurve(1, (0.0,), (0.0,), 1.0),
        OutputCurve(0, (1.0, 0.0), (0.0, 1.0), 1.0),
        OutputCurve(0, (0.0, 1.0), (1.0, 1.0), 1.0),
        OutputCurve(0, (0.0,), (0.0,), 0.0),
        OutputCurve(0, (), (), 1.0),
    ],
)
def test_a_curve_that_cannot_be_is_refused(curve):
    with pytest.raises(ModelError, match="no rising curve"):
        model_of((curve,))
    with pytest.raises(ModelError, match="two curves"):
        model_of([OutputCurve(0, (0.0,), (0.0,), 1.0)] * 2)


# Refusals


def valid_table(*targets: Target, labels=None) -> PackedTable:
    columns = [torch.tensor([0, 1, 1]).to(torch.int32 if target is KIND else torch.float32) for target in targets]
    return PackedTable.from_columns(TensorSchema((), ("x",), targets), [], [torch.zeros(3)], labels or columns)


@pytest.mark.parametrize(
    ("kind", "targets", "labels", "error", "message"),
    [
        ("temperature", (VALUE,), None, ConfigError, "binary and multiclass targets, and there is none"),
        ("isotonic", (CLICK, KIND), None, ConfigError, "'kind' is multiclass. Set it to temperature"),
        ("isotonic", (CLICK,), [torch.ones(3)], TrainingError, "labels of 'click' are all alike"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(kind, targets, labels, error, message):
    table = valid_table(*targets, labels=labels)
    with pytest.raises(error, match=message):
        require_calibratable(kind, model_of(), table)
    require_calibratable("none", model_of(), table)


@pytest.mark.parametrize("kind", ["temperature", "isotonic"])
@pytest.mark.parametrize("weight", [[1.0, 0, 0], [0.0, 1, 2], [0.0, 0, 0]])
def test_labels_that_weigh_nothing_calibrate_nothing(kind, weight):
    with pytest.raises(TrainingError, match="labels of 'click' are all alike"):
        require_calibratable(kind, model_of(), table_of([0.0, 0, 0], [0.0, 1, 1], weight))
    require_calibratable(kind, model_of(), table_of([0.0, 0, 0], [0.0, 1, 1], [1.0, 1, 0]))


def test_scores_that_are_no_log_odds_have_no_temperature():
    two_tower = model_class("two_tower")
    model = ModelSpec("two_tower", INPUTS, two_tower.Settings(loss="softmax")).build()
    with pytest.raises(ConfigError, match="TwoTower learns by comparing rows"):
        require_calibratable("temperature", model, valid_table(CLICK))
    require_calibratable("isotonic", model, valid_table(CLICK))


# Another share of label 1


def rare(rows: int, seed: int):
    """A float and clicks of 2 %, by the formula of logistic regression."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=rows)
    return x, (draw.random(rows) < 1 / (1 + np.exp(4.5 - x))).astype(np.float64)


def table_of(x, labels, weight=None) -> PackedTable:
    schema = TensorSchema((), ("x",), (CLICK,), has_weight=weight is not None)
    columns = [torch.from_numpy(np.asarray(part)).float() for part in (x, labels, weight) if part is not None]
    return PackedTable.from_columns(schema, [], columns[:1], columns[1:2], *columns[2:])


@pytest.mark.parametrize("prior", [{"negatives_kept": 0.1}, {"serve": "share"}, {"serve": "share", "train": "kept"}])
def test_left_out_negatives_are_made_up_for(prior, tmp_path):
    (x, labels), draw = rare(60_000, 0), np.random.default_rng(1)
    keep = (labels == 1) | (draw.random(len(x)) < 0.1)
    rates = {"share": labels.mean(), "kept": labels[keep].mean()}
    prior = {name: rates.get(value, value) for name, value in prior.items()}
    train, (other, seen) = table_of(x[keep], labels[keep]), rare(60_000, 2)
    found = []
    for given in (prior, None):
        (tmp_path / str(given)).mkdir()
        settings = TrainSettings(epochs=8, batch_size=256, lr_max=0.1, prior=given)
        loss = TargetLoss([("binary", 1)])
        found.append(
            train_model(model_of(), train, train, loss, settings, seed=1, device="cpu", folder=tmp_path / str(given))
        )
    corrected, plain = (table_outputs(part.model, table_of(other, seen), "cpu")[:, 0].numpy() for part in found)
    chance = 1 / (1 + np.exp(-plain.astype(np.float64)))
    q = 0.1 if "negatives_kept" in prior else rates["share"] / (1 - rates["share"]) * (1 / rates["kept"] - 1)
    np.testing.assert_allclose(1 / (1 + np.exp(-corrected)), chance / (chance + (1 - chance) / q), rtol=1e-4)
    assert (1 / (1 + np.exp(-corrected))).mean() == pytest.approx(seen.mean(), rel=0.1)
    assert chance.mean() > 5 * seen.mean()
    assert found[0].curve == found[1].curve  # of losses, which see the rows as they are


def test_the_share_in_training_is_that_of_weights_or_of_drawn_negatives():
    model, prior = model_of(), PriorSettings(serve=0.5)
    table = table_of([0.0, 0, 0], [1.0, 0, 0], [6.0, 1, 1])
    assert prior_shift(prior, None, model, table) == pytest.approx(-math.log(3))
    assert prior_shift(prior, NegativeSettings(per_positive=4), model, table) == pytest.approx(math.log(4))
    assert prior_shift(None, None, model, table) == 0
    valid = table_of([0.0] * 4, [1.0, 0, 0, 0], [2.0, 1, 1, 1])
    assert prior_shift(prior, NegativeSettings(), model, table, valid) == pytest.approx(math.log(1.5))


@pytest.mark.parametrize(
    ("prior", "message"),
    [({}, "either serve or negatives_kept"), ({"serve": 0.1, "negatives_kept": 0.1}, "either serve or negatives_kept"),
     ({"negatives_kept": 0.1, "train": 0.5}, "train goes with serve"), ({"serve": 1.0}, "less than 1")],
)  # fmt: skip
def test_a_prior_that_cannot_be_is_refused_before_any_work(prior, message):
    with pytest.raises(ValueError, match=message):
        TrainSettings(prior=prior)


def test_a_prior_is_of_one_binary_target_of_both_labels():
    prior = PriorSettings(serve=0.1)
    for table in (valid_table(VALUE), valid_table(CLICK, Target("like", "binary"))):
        with pytest.raises(ConfigError, match="for one binary target"):
            prior_shift(prior, None, model_of(), table)
    with pytest.raises(TrainingError, match="all alike"):
        prior_shift(prior, None, model_of(), valid_table(CLICK, labels=[torch.ones(3)]))
    two_tower = ModelSpec("two_tower", INPUTS, model_class("two_tower").Settings(loss="bpr")).build()
    with pytest.raises(ConfigError, match="no log odds"):
        prior_shift(prior, None, two_tower, valid_table(CLICK))


@pytest.mark.parametrize(
    "own", [ClassLoss(class_weights=(1.0, 9.0)), ClassLoss(class_weights="balanced"), ClassLoss(kind="focal")]
)
def test_a_prior_of_probabilities_that_the_loss_has_moved_needs_a_curve(own, tmp_path):
    table, loss = table_of(*rare(600, 0)), TargetLoss([("binary", 1)], classes=[own])

    def train(**given):
        settings = TrainSettings(epochs=1, batch_size=256, lr_max=0.02, **given)
        return train_model(model_of(), table, table, loss, settings, seed=1, device="cpu", folder=tmp_path)

    for prior in ({"negatives_kept": 0.5}, {"serve": 0.01}):
        with pytest.raises(ConfigError, match=r"train\.calibration=isotonic, which mends them"):
            train(prior=prior, calibration="temperature")
        with pytest.raises(ConfigError, match=r"train\.calibration=isotonic, which mends them"):
            train_members(
                None, ModelSpec("lr", model_of().inputs, model_of().settings, 2), table, table, loss,
                TrainSettings(ensemble=2, prior=prior), seed=1, device="cpu", folder=tmp_path,
            )  # fmt: skip
    assert train(prior={"serve": 0.01}, calibration="isotonic").model.calibration


def test_a_prior_of_smoothed_labels_needs_a_curve(tmp_path):
    table, loss = table_of(*rare(600, 0)), TargetLoss([("binary", 1)], label_smoothing=0.1)
    given = {"epochs": 1, "batch_size": 256, "lr_max": 0.02, "prior": {"serve": 0.01}}
    rest = {"seed": 1, "device": "cpu", "folder": tmp_path}
    message = r"train\.prior: with train\.label_smoothing=0\.1 .*calibration=isotonic"
    with pytest.raises(ConfigError, match=message):
        train_model(model_of(), table, table, loss, TrainSettings(**given), **rest)
    spec = ModelSpec("lr", model_of().inputs, model_of().settings, 2)
    with pytest.raises(ConfigError, match=message):
        train_members(None, spec, table, table, loss, TrainSettings(ensemble=2, **given), **rest)
    settings = TrainSettings(calibration="isotonic", **given)
    assert train_model(model_of(), table, table, loss, settings, **rest).prior_shift < 0


def slow_rates(logits, labels, shift, bins, weight):
    """Share of label 1, log loss and ECE of these rows without the shift, and where the model serves."""
    found = []
    for serving in (False, True):
        rows = []
        for logit, label, mass in zip(logits, labels, weight, strict=True):
            own = mass if not serving or label else mass * math.exp(-shift)
            rows.append((1 / (1 + math.exp(-(logit if serving else logit - shift))), label, own))
        total = sum(mass for _, _, mass in rows)
        loss = sum(-mass * math.log(p if label else 1 - p) for p, label, mass in rows) / total
        error = 0.0
        for number in range(bins):
            inside = [row for row in rows if min(int(row[0] * bins), bins - 1) == number]
            error += abs(sum(mass * (label - p) for p, label, mass in inside)) / total
        found.append((sum(mass * label for _, label, mass in rows) / total, loss, error))
    return found


@pytest.mark.parametrize("weighted", [False, True])
def test_log_loss_and_ece_at_both_shares_are_those_of_a_slow_loop(weighted):
    logits, labels, weight = overconfident(300)
    weight, shift = weight if weighted else np.ones(300), math.log(0.05)
    found = rates_of_label_1(
        torch.from_numpy(logits + shift),
        torch.from_numpy(labels),
        shift,
        15,
        torch.from_numpy(weight) if weighted else None,
    )
    expected = slow_rates(logits + shift, labels, shift, 15, weight)
    for row, values in zip(found, expected, strict=True):
        assert [row[name] for name in ("share of label 1", "logloss", "ece")] == pytest.approx(values, rel=1e-9)


def test_rows_without_most_negatives_tell_the_log_loss_where_all_are():
    """The right probabilities of 200,000 rows, of which a tenth of those of label 0 is kept."""
    (x, labels), draw = rare(200_000, 3), np.random.default_rng(4)
    keep = (labels == 1) | (draw.random(len(x)) < 0.1)
    logits = torch.from_numpy(x - 4.5)
    _, whole = rates_of_label_1(logits, torch.from_numpy(labels), 0.0, 15)
    _, serving = rates_of_label_1(logits[keep], torch.from_numpy(labels[keep]), math.log(0.1), 15)
    assert serving["logloss"] == pytest.approx(whole["logloss"], rel=0.02)
    assert serving["share of label 1"] == pytest.approx(labels.mean(), rel=0.02)
    assert serving["ece"] < 0.002


def test_a_run_with_a_prior_tells_both_rates(tiny):
    own = ("train.epochs=2", "train.ensemble=2", "evaluate.baselines=[constant, linear]")
    run = tiny.train("train.prior={negatives_kept: 0.1}", *own)
    rows = {(row["split"], row["at"]): row for row in run.summary["rates"]}
    assert sorted(rows) == [(split, at) for split in ("test", "valid") for at in ("serving", "these rows")]
    here, serving = rows["test", "these rows"], rows["test", "serving"]
    share = here["share of label 1"]
    assert serving["share of label 1"] == pytest.approx(share / (share + (1 - share) / 0.1))
    plain = tiny.train(*own).summary
    assert plain["rates"] == []
    assert here["logloss"] == pytest.approx(plain["logloss"], rel=1e-5)
    assert here["ece"] == pytest.approx(plain["ece"], abs=1e-5)
    assert "train.prior" in (run.path / "report.html").read_text()
    # Baselines learn from these rows as they are, and so the model is compared at their share of label 1.
    assert run.summary["logloss"] == pytest.approx(serving["logloss"], rel=1e-5)
    assert run.summary["ece"] == pytest.approx(serving["ece"], abs=1e-5)
    assert run.summary["auc"] == pytest.approx(plain["auc"], abs=1e-9)
    assert run.summary["calibration"] == []  # a prior alone calibrates nothing
    for row, expected in zip(run.summary["members"], plain["members"], strict=True):
        assert row == {name: value if isinstance(value, str) else pytest.approx(value, rel=1e-5)
                       for name, value in expected.items()}  # fmt: skip
    for found, expected in zip(run.summary["baselines"]["found"], plain["baselines"]["found"], strict=True):
        losses = [next(d for d in item["differences"] if d["metric"] == "logloss") for item in (found, expected)]
        assert losses[0]["model"] == pytest.approx(losses[1]["model"], rel=1e-5)
    assert run.summary["baselines"]["worse"] == plain["baselines"]["worse"]


@pytest.mark.parametrize("prior", [(), ("train.prior={negatives_kept: 0.1}",)])
def test_an_ensemble_stands_beside_its_members_uncalibrated_as_they_are(tiny, prior):
    """Else its row would show the curve's gain as that of the mean of several members."""
    own = ("train.epochs=2", "train.ensemble=2", "evaluate.baselines=[]")
    plain = tiny.train(*own).summary
    calibrated = tiny.train(*own, "train.calibration=temperature", *prior).summary
    assert calibrated["logloss"] != pytest.approx(plain["logloss"], rel=1e-4)
    for row, expected in zip(calibrated["members"], plain["members"], strict=True):
        assert row == {name: value if isinstance(value, str) else pytest.approx(value, rel=1e-5)
                       for name, value in expected.items()}  # fmt: skip


def with_share(rows: int, share: float, seed: int):
    """Rows of `rare` of which so many of label 0 are left out that a share of the rest has label 1."""
    (x, labels), draw = rare(rows, seed), np.random.default_rng(seed + 100)
    kept = labels.sum() * (1 / share - 1) / (labels == 0).sum()
    keep = (labels == 1) | (draw.random(rows) < kept)
    return x[keep], labels[keep]


def test_after_an_isotonic_curve_the_share_is_that_of_the_valid_split(tmp_path):
    """Train .5, valid .2: the curve has brought the mean to .2, whatever the train split's was."""
    train, valid = table_of(*with_share(60_000, 0.5, 0)), table_of(*with_share(60_000, 0.2, 1))
    other, seen = rare(100_000, 2)
    for number, (calibration, rate) in enumerate((("isotonic", valid), ("temperature", train), ("none", train))):
        settings = TrainSettings(
            epochs=8, batch_size=256, lr_max=0.1, calibration=calibration, prior={"serve": float(seen.mean())}
        )
        (folder := tmp_path / str(number)).mkdir()
        loss = TargetLoss([("binary", 1)])
        trained = train_model(model_of(), train, valid, loss, settings, seed=1, device="cpu", folder=folder)
        found = 1 / (1 + np.exp(-table_outputs(trained.model, table_of(other, seen), "cpu")[:, 0].numpy()))
        assert found.mean() == pytest.approx(seen.mean(), rel=0.1), calibration
        share = rate.unpack(rate.words).targets[0].double().mean().item()
        assert trained.prior_shift == pytest.approx(logit(seen.mean()) - logit(share), rel=1e-6), calibration


@pytest.mark.parametrize("members", [1, 2])
def test_a_run_after_an_isotonic_curve_counts_the_labels_of_valid(tiny, members):
    own = (f"train.ensemble={members}", "train.calibration=isotonic", "train.epochs=2")
    plain, moved = tiny.train(*own), tiny.train(*own, "train.prior.serve=0.05")
    frames = {split: tiny.pipeline().features().frame(split) for split in ("train", "valid", "test")}
    p, q = (run.bundle().predict(frames["test"])["clicked"].to_numpy(np.float64) for run in (plain, moved))
    valid, train = (logit(0.05) - logit(frames[split]["clicked"].mean()) for split in ("valid", "train"))
    np.testing.assert_allclose(logit(q) - logit(p), valid, atol=1e-3)
    assert abs(valid - train) > 0.01


def test_a_share_in_training_that_the_valid_split_says_is_refused(tmp_path):
    table, rest = table_of(*rare(600, 0)), {"seed": 1, "device": "cpu", "folder": tmp_path}
    loss, prior = TargetLoss([("binary", 1)]), {"serve": 0.01, "train": 0.3}
    message = r"train\.prior\.train: 0\.3 has no effect"
    settings = TrainSettings(epochs=1, batch_size=256, calibration="isotonic", prior=prior)
    with pytest.raises(ConfigError, match=message):
        train_model(model_of(), table, table, loss, settings, **rest)
    spec = ModelSpec("lr", model_of().inputs, model_of().settings, 2)
    with pytest.raises(ConfigError, match=message):
        train_members(None, spec, table, table, loss, settings.model_copy(update={"ensemble": 2}), **rest)


def test_a_prior_comes_after_a_calibration(tmp_path):
    x, labels = rare(3000, 0)
    table = table_of(x, labels)
    curves = []
    for name, given in (("a", {}), ("b", {"prior": {"negatives_kept": 0.5}})):
        settings = TrainSettings(epochs=1, batch_size=256, lr_max=0.02, calibration="isotonic", **given)
        (tmp_path / name).mkdir()
        trained = train_model(
            model_of(),
            table,
            table,
            TargetLoss([("binary", 1)]),
            settings,
            seed=1,
            device="cpu",
            folder=tmp_path / name,
        )
        curves += trained.model.calibration
    assert curves[0].x == curves[1].x
    np.testing.assert_allclose(np.subtract(curves[0].y, curves[1].y), math.log(2))


# Through the pipeline

OVERFITTED = (
    "train.epochs=25", "train.batch_size=64", "train.lr_max=0.05", "train.select=last", "model.dropout=0",
    "model.layers=[64]", "model.numeric=plain", "features.split.train=0.3", "features.split.valid=0.35",
    "features.split.test=0.35",
)  # fmt: skip


@pytest.fixture(scope="module", params=["temperature", "isotonic"])
def calibrated(request, tiny_in, tmp_path_factory):
    from tests.pipeline.tiny_recipe import write_day

    tiny = tiny_in(tmp_path_factory.mktemp(request.param) / "tiny")
    write_day(tiny.raw, 0)
    return tiny, tiny.train(*OVERFITTED, f"train.calibration={request.param}"), request.param


def logit(chance):
    return np.log(chance / (1 - chance))


def test_a_run_says_what_calibration_has_mended(calibrated, capsys):
    tiny, run, _ = calibrated
    rows = {row["split"]: row for row in run.summary["calibration"]}
    assert set(rows) == {"valid", "test"}
    assert rows["test"]["ece after"] < rows["test"]["ece before"] / 2
    assert rows["test"]["logloss after"] < rows["test"]["logloss before"] - 0.1
    assert rows["test"]["logloss after"] == run.summary["logloss"]
    run.show()
    assert "Calibration" in capsys.readouterr().out
    assert "Calibrated by the valid split; clicked on test" in (run.path / "report.html").read_text()
    evaluate_run(tiny.config, OVERFITTED, run.path, "test", run.path.parent / "again")
    again = json.loads((run.path.parent / "again" / "summary.json").read_text())
    assert again["logloss"] == pytest.approx(run.summary["logloss"], rel=1e-9)
    (told,) = again["calibration"]
    assert {
        name: value if isinstance(value, str) else pytest.approx(value, rel=1e-9) for name, value in told.items()
    } == rows["test"]


def test_every_way_to_a_prediction_is_calibrated(calibrated, tmp_path):
    tiny, run, kind = calibrated
    bundle, frame = run.bundle(), tiny.pipeline(*OVERFITTED).features().frame("test")
    packed = torch.from_numpy(bundle.preprocessor.pack(frame, targets=False))
    num_ids = len(bundle.schema.names("categorical"))
    ids, floats = packed[:, :num_ids].contiguous(), packed[:, num_ids:].view(torch.float32).contiguous()
    plain = torch.cat(list(standardised_outputs(bundle.model, ids, floats))).double().numpy()[:, 0]
    (curve,) = bundle.model.calibration
    assert (len(curve.x) > 3) == (kind == "isotonic")
    first, last = curve.x[0], curve.x[-1]
    expected = np.interp(plain, curve.x, curve.y) + curve.slope * (
        np.minimum(plain - first, 0) + np.maximum(plain - last, 0)
    )
    found = bundle.predict(frame)["clicked"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-expected)), atol=1e-6)
    assert np.abs(expected - plain).mean() > 0.2
    score_run(tiny.config, OVERFITTED, run.path, "test", tmp_path / "scores.csv")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "scores.csv")["predicted_clicked"], found, atol=1e-6)
    scorer = RowScorer(bundle)
    online = scorer(frame[list(scorer.transform.columns)].head(5).to_dict("records"))["clicked"]
    np.testing.assert_allclose(online, found.head(5), atol=1e-5)
    export_bundle(bundle, tmp_path, ["torch", "onnx_rows"])
    outputs = torch.export.load(tmp_path / "model.pt2").module()(ids, floats)[:, 0]
    np.testing.assert_allclose(outputs.detach(), logit(found.to_numpy()), atol=1e-3)
    session = onnxruntime.InferenceSession(tmp_path / "rows.onnx", providers=["CPUExecutionProvider"])
    (predictions,) = session.run(["predictions"], onnx_inputs(bundle.preprocessor, frame))
    assert predictions.dtype == np.float32
    np.testing.assert_allclose(predictions[:, 0], found, atol=1e-5)


def test_the_weights_are_those_without_and_a_warm_start_fits_anew(calibrated):
    tiny, run, kind = calibrated
    other = tiny.train(*OVERFITTED)
    with_curve, without = (load_file(path / "model" / "weights.safetensors") for path in (run.path, other.path))
    assert set(with_curve) - set(without) == {"saved_calibration"}
    assert all(torch.equal(with_curve[name], without[name]) for name in without)
    assert other.summary["calibration"] == []
    warm = (f"train.start_from={run.path.name}", f"preprocess.from={run.path.name}", "train.window=null")
    again = tiny.train(*OVERFITTED, *warm, "train.epochs=1", f"train.calibration={kind}")
    assert again.bundle().model.calibration not in ((), run.bundle().model.calibration)
    plain = tiny.train(*OVERFITTED, *warm, "train.epochs=1")
    assert plain.bundle().model.calibration == ()


def test_items_are_scored_by_calibrated_chances(tmp_path):
    from gigabatch.pipeline.serving.requests import UserRequest
    from gigabatch.pipeline.serving.served import load_served

    frame = small_bundles.interactions()
    bundle = small_bundles.random_bundle(frame, "two_tower")
    bundle.model.calibrate([OutputCurve(0, (0.0, 1.0), (-3.0, -2.5), 0.25)])
    path = small_bundles.write_run(tmp_path / "run", bundle, frame, dtype="float32")
    assert load_bundle(path / "model").model.calibration == bundle.model.calibration
    ranker = load_served(path).require_ranker()
    user, items = frame["user_id"].iloc[0], frame["item_id"].head(5).tolist()
    scores, _ = ranker.score(ranker.asker(UserRequest(user=user)), items)
    own = frame[frame["user_id"] == user].iloc[[0] * 5].reset_index(drop=True)
    columns = ["item_id", "genre", "price"]
    own[columns] = frame[columns].head(5)
    np.testing.assert_allclose(scores, bundle.predict(own)["clicked"], atol=1e-5)
    assert max(scores) < 0.3  # without the curve about a half
