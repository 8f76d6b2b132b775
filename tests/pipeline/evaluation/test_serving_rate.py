"""With train.prior the report tells of where the model serves: held to rows in which each negative is there again as
often as it was left out."""

import json

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, Schema, Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.click.lr import LogisticRegression
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.output_curves import OutputCurve
from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.evaluation.decisions import Costs
from gigabatch.pipeline.evaluation.evaluate import evaluate, quality
from gigabatch.pipeline.evaluation.reliability import wilson_interval
from gigabatch.pipeline.evaluation.slices import worst_slices
from gigabatch.pipeline.stages.stages import Pipeline, pack
from gigabatch.pipeline.training.target_metrics import weight_of_label_0

TIMES = 4  # rows of label 0 for each that was kept
SHIFT = -float(np.log(TIMES))
CLICK = Target("click", "binary")


def kept_rows(rows, seed):
    """x, and clicks by sigmoid(2 x - 1), of which a quarter of those of label 0 is there."""
    random = np.random.default_rng(seed)
    x = random.normal(size=rows).astype(np.float32)
    label = (random.random(rows) < 1 / (1 + np.exp(1 - 2 * x))).astype(np.float32)
    keep = (label == 1) | (random.random(rows) < 1 / TIMES)
    return x[keep], label[keep]


def table_of(x, label, weight=None):
    own = () if weight is None else (torch.as_tensor(weight, dtype=torch.float32),)
    schema = TensorSchema((), ("x",), (CLICK,), has_weight=weight is not None)
    return PackedTable.from_columns(schema, [], [torch.as_tensor(x)], [torch.as_tensor(label)], *own)


def model_with_prior(slope=2.0, curve=None):
    """What training on the kept rows finds, log odds 2 x - 1 + log 4, and the prior."""
    model = LogisticRegression(ModelInputs((), 1), LogisticRegression.Settings())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(slope if parameter.numel() == 1 and parameter.ndim == 2 else -1.0 - SHIFT)
    model.calibrate([curve or OutputCurve(0, (0.0,), (SHIFT,), 1.0)])
    return model.eval()


def schema_of(weighted):
    columns = (Column("x", "continuous", "float32"), Column("click", "target", "float32"))
    return Schema((*columns, Column("w", "weight", "float32")) if weighted else columns, (CLICK,))


def told(weighted=False, costs=None, rows=6000):
    """Evaluations of valid and test, and what is drawn of test; then of test scores, labels and weights."""
    parts, found, model = [], [], model_with_prior()
    for seed in (1, 2):
        x, label = kept_rows(rows, seed)
        weight = np.random.default_rng(seed).choice([0.5, 1.0, 2.0], len(x)) if weighted else None
        parts.append((table_of(x, label, weight), label, weight))
        found.append(evaluate(model, parts[-1][0], schema_of(weighted), "cpu", prior_shift=SHIFT))
    beside = "valid", found[0], parts[0][0]
    (drawn,) = quality(schema_of(weighted), found[1], parts[1][0], 5, costs=costs, beside=beside)
    sides = [
        (item.predictions[0].double().numpy(), label, np.ones(len(label)) if weight is None else weight)
        for item, (_, label, weight) in zip(found, parts, strict=True)
    ]
    return found[1], drawn, sides


def repeated(scores, label, weight):
    """The rows with each of label 0 there `TIMES` times."""
    times = np.where(label == 1, 1, TIMES)
    return (np.repeat(part, times) for part in (scores, label, weight))


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_are_those_of_rows_where_it_serves(weighted):
    found, drawn, (_, own) = told(weighted)
    scores, label, weight = repeated(*own)
    metrics = found.metrics["click"]
    assert metrics["logloss"] == pytest.approx(sk.log_loss(label, scores, sample_weight=weight), rel=1e-6)
    assert metrics["auc"] == pytest.approx(sk.roc_auc_score(label, scores, sample_weight=weight), rel=1e-9)
    hits = (scores >= 0.5) == label
    assert metrics["accuracy"] == pytest.approx(np.average(hits, weights=weight), rel=1e-9)
    mean = np.average(label, weights=weight)
    entropy = -(mean * np.log(mean) + (1 - mean) * np.log(1 - mean))
    assert metrics["normalised_entropy"] == pytest.approx(metrics["logloss"] / entropy, rel=1e-6)
    error = 0.0
    for low in np.arange(15) / 15:
        inside = (scores > low) & (scores <= low + 1 / 15)
        error += abs((weight * (label - scores))[inside].sum()) / weight.sum()
    assert metrics["ece"] == pytest.approx(error, rel=1e-4)
    assert metrics["ece"] < 0.03
    assert drawn.metrics == metrics
    assert found.headline["logloss"] == metrics["logloss"]
    assert found.uncalibrated == {}
    plain = 1 / (1 + np.exp(-(np.log(own[0] / (1 - own[0])) - SHIFT)))
    expected = sk.log_loss(own[1], plain, sample_weight=own[2])
    assert found.without_prior.headline["logloss"] == pytest.approx(expected, rel=1e-4)
    assert "counts 4 times" in drawn.note


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("false_positive", "false_negative"), [(1, 1), (1, 4)])
def test_thresholds_and_costs_are_those_of_trying_each_where_it_serves(weighted, false_positive, false_negative):
    _, drawn, sides = told(weighted, Costs(false_positive, false_negative), rows=1500)
    (v_scores, v_label, v_weight), (scores, label, weight) = (tuple(repeated(*side)) for side in sides)

    def cost(threshold, scores, label, weight):
        flagged = scores >= threshold
        wrong = false_positive * weight[flagged & (label == 0)].sum()
        wrong += false_negative * weight[~flagged & (label == 1)].sum()
        return 1000 * wrong / weight.sum()

    tried = {value: cost(value, v_scores, v_label, v_weight) for value in [np.inf, *np.unique(v_scores)]}
    rows = {row["chosen_by"]: row for row in drawn.thresholds}
    least = rows["least cost on valid"]
    assert cost(least["threshold"], v_scores, v_label, v_weight) == pytest.approx(min(tried.values()))
    # The scores are the true chances, so that the costs alone say the threshold.
    assert least["threshold"] == pytest.approx(false_positive / (false_positive + false_negative), abs=0.12)
    for row in drawn.thresholds:
        flagged = scores >= row["threshold"]
        share = np.average(flagged, weights=weight)
        precision = np.average(label[flagged], weights=weight[flagged])
        recall = weight[flagged & (label == 1)].sum() / weight[label == 1].sum()
        expected = [
            share,
            precision,
            recall,
            weight[flagged & (label == 0)].sum(),
            cost(row["threshold"], scores, label, weight),
        ]
        names = ("flagged", "precision", "recall", "false_positives", "cost_per_1000_rows")
        assert [row[name] for name in names] == pytest.approx(expected, rel=1e-6)
    best = max(sk.f1_score(v_label, v_scores >= value, sample_weight=v_weight) for value in np.unique(v_scores))
    f1 = sk.f1_score(v_label, v_scores >= rows["highest F1 on valid"]["threshold"], sample_weight=v_weight)
    assert f1 == pytest.approx(best)


@pytest.mark.parametrize("weighted", [False, True])
def test_curves_are_those_of_rows_where_it_serves(weighted):
    _, drawn, (_, own) = told(weighted)
    scores, label, weight = repeated(*own)
    gains = drawn.gains
    assert gains.average_precision == pytest.approx(sk.average_precision_score(label, scores, sample_weight=weight))
    assert gains.positive_rate == pytest.approx(np.average(label, weights=weight))
    order = np.argsort(-scores)
    before = np.cumsum(weight[order]) <= 0.1 * weight.sum()
    tenth = (label * weight)[order][before].sum() / (label * weight).sum()
    assert np.interp(0.1, gains.share, gains.recall) == pytest.approx(tenth, abs=2e-3)
    shown = drawn.calibration
    file_scores, file_label, file_weight = own
    for place, low in enumerate(np.arange(5) / 5):
        inside, there = ((s > low) & (s <= low + 0.2) for s in (scores, file_scores))
        assert shown.predicted[place] == pytest.approx(np.average(scores[inside], weights=weight[inside]), rel=1e-6)
        assert shown.observed[place] == pytest.approx(np.average(label[inside], weights=weight[inside]), rel=1e-6)
        mass = file_weight[there]
        assert shown.count[place] == pytest.approx(mass.sum())
        # Wilson's interval of the rows that are there; its ends as odds, of which negatives are 4 times as many.
        share, rows = np.average(file_label[there], weights=mass), mass.sum() ** 2 / (mass**2).sum()
        ends = [float(end[0]) for end in wilson_interval(np.array([share]), np.array([rows]))]
        for end, found in zip(ends, (shown.low[place], shown.high[place]), strict=True):
            odds = end / (1 - end) / TIMES
            assert found == pytest.approx(odds / (1 + odds), rel=1e-6)
        assert shown.low[place] < shown.predicted[place] < shown.high[place]


def test_of_a_share_that_is_named_rows_count_so_that_they_have_it():
    """Also where the rows' own share is not that of training: as drift has it, or a split that was left whole."""
    label = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    weight = torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0, 3.0])
    for mass in (None, weight):
        factor = weight_of_label_0(label, -5.0, 0.1, mass)
        own = torch.ones(6) if mass is None else mass
        served = own * torch.where(label > 0, 1.0, factor)
        assert float((served * label).sum() / served.sum()) == pytest.approx(0.1)
    assert weight_of_label_0(torch.ones(3), -1.0, 0.1) == pytest.approx(np.e)  # which none of them counts by
    x, label = kept_rows(4000, 0)
    found = evaluate(model_with_prior(), table_of(x, label), schema_of(False), "cpu", 15, None, None, SHIFT, 0.2)
    rows = {row["at"]: row for row in found.rates}
    assert rows["serving"]["share of label 1"] == pytest.approx(0.2)
    assert rows["serving"]["logloss"] == pytest.approx(found.headline["logloss"], rel=1e-6)


def test_what_a_calibration_mends_is_told_with_the_prior_before_and_after():
    x, label = kept_rows(6000, 0)
    curve = OutputCurve(0, (0.0,), (SHIFT,), 0.5)
    found = evaluate(model_with_prior(4.0, curve), table_of(x, label), schema_of(False), "cpu", prior_shift=SHIFT)
    logits = 4 * x - 1 - SHIFT
    scores, labels, _ = repeated(1 / (1 + np.exp(-(logits + SHIFT).astype(np.float64))), label, np.ones(len(x)))
    expected = sk.log_loss(labels, scores.clip(1.2e-7, 1 - 1.2e-7))
    assert found.uncalibrated["click"]["logloss"] == pytest.approx(expected, rel=1e-4)


def sliced(bad_by=0.0, rows=20_000, seed=0, kept=1 / TIMES, most=1.0):
    """Cities, and chances where the model serves, of which those of Lima are off in their logit; kept rows alone."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame({"city": random.choice(["Oslo", "Bonn", "Lima"], rows)})
    p = most * random.uniform(0.05, 0.95, rows)
    frame["click"] = (random.random(rows) < p).astype("float64")
    keep = (frame["click"] == 1) | (random.random(rows) < kept)
    logit = np.log(p / (1 - p)) + bad_by * (frame["city"] == "Lima")
    frame, chance = frame[keep].reset_index(drop=True), (1 / (1 + np.exp(-logit)))[keep].to_numpy()
    columns = (Column("city", "categorical", "string"), Column("click", "target", "float32"))
    preprocessor = Preprocessor(Schema(columns, (CLICK,))).fit([frame])
    return frame, chance, pack(preprocessor, frame), preprocessor


def test_slices_are_off_where_the_model_serves():
    frame, chance, table, preprocessor = sliced(bad_by=0.7)
    predictions = (torch.as_tensor(chance, dtype=torch.float32),)
    (found,) = worst_slices(table, preprocessor, predictions, negatives=TIMES)
    assert [row["slice"] for row in found.off] == ["city = Lima"]
    own = (frame["city"] == "Lima").to_numpy()
    scores, label, _ = repeated(chance[own], frame["click"].to_numpy()[own], np.ones(own.sum()))
    (row,) = found.off
    assert [row["mean label"], row["mean prediction"]] == pytest.approx([label.mean(), scores.mean()], rel=1e-5)
    scores, label, _ = repeated(chance, frame["click"].to_numpy(), np.ones(len(chance)))
    assert found.overall_off == pytest.approx(label.mean() - scores.mean(), abs=1e-6)
    assert found.overall == pytest.approx(sk.roc_auc_score(frame["click"], chance), abs=1e-6)


@pytest.mark.parametrize("most", [1.0, 0.01])
def test_right_chances_where_it_serves_make_no_slice_off(most):
    told = 0
    for seed in range(20):
        _, chance, table, preprocessor = sliced(rows=6000, seed=seed, most=most, kept=0.1)
        predictions = (torch.as_tensor(chance, dtype=torch.float32),)
        (found,) = worst_slices(table, preprocessor, predictions, negatives=10.0)
        told += bool(found.off or found.worse)
    assert told <= 3  # as test_slices has it; by the file's labels every slice would be


def test_a_run_with_a_prior_says_at_which_rate_its_figures_are(tmp_path, monkeypatch):
    """negatives_kept .05, costs 1 to 1: on the file's rows a threshold of .05 looked best."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    x = random.normal(size=120_000)
    clicked = random.random(len(x)) < 1 / (1 + np.exp(3.5 - 3 * x))
    keep = clicked | (random.random(len(x)) < 0.05)
    pd.DataFrame({"x": x[keep], "clicked": clicked[keep].astype(int)}).to_csv("rows.csv", index=False)
    config = RunConfig(
        name="rare", recipe="table",
        features={"path": "rows.csv", "continuous": ["x"], "targets": {"clicked": {"task": "binary"}}},
        train={"prior": {"negatives_kept": 0.05}, "epochs": 5, "batch_size": 256, "lr_max": 0.05},
        model={"kind": "lr"}, evaluate={"baselines": ["linear"], "importance": False},
    )  # fmt: skip
    run = Pipeline(config).train()
    rows = {row["chosen_by"]: row for row in run.summary["thresholds"]["clicked"]}
    assert rows["least cost on valid"]["threshold"] == pytest.approx(0.5, abs=0.15)
    assert run.summary["ece"] < 0.04  # of probabilities for serving on the file's rows it was .3
    shares = {row["at"]: row["share of label 1"] for row in run.summary["rates"]}
    assert shares["serving"] == pytest.approx(clicked.mean(), rel=0.1)
    page = (run.path / "report.html").read_text()
    assert "as where the model serves (train.prior): a row of label 0 counts 20 times" in page
    assert "log losses are without train.prior, at the share of label 1 in these rows" in page
    assert run.summary["slices"][0]["off"] == []
    info = json.loads((run.path / "model" / "bundle.json").read_text())["info"]
    assert info["prior_shift"] == pytest.approx(np.log(0.05))
