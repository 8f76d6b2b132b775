"""Evaluation: metrics against scikit-learn, importance on data whose truth is known."""

import math

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, IdColumn, Schema, Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.model import Model, TargetScale
from gigabatch.models.output_curves import OutputCurve
from gigabatch.pipeline.config.config import EvaluateSettings, parse_config
from gigabatch.pipeline.evaluation.evaluate import (
    ImportanceSample,
    column_summary,
    evaluate,
    feature_words,
    importance_sample,
    multilabel_metrics,
    permutation_importance,
    quality,
    target_quality,
)
from gigabatch.pipeline.evaluation.sample import spread_rows
from gigabatch.pipeline.reports.report import ReportData, render_report
from gigabatch.pipeline.stages.stages import Pipeline, pack
from gigabatch.pipeline.training.target_metrics import target_metrics

ROWS = 3000


class Fixed(Model):
    """Outputs [N, O] that are a given function of the inputs, so that what it uses is known."""

    def __init__(self, function) -> None:
        super().__init__(ModelInputs((1,), 0), settings=None)
        self.function = function

    def forward(self, ids, floats):
        return self.function(ids, floats)


def make_table(targets, labels, group=None, seed=0, weight=None):
    random = torch.Generator().manual_seed(seed)
    rows = len(labels[0])
    schema = TensorSchema(
        (IdColumn("city", 9),), ("used", "noise", "used_na"), tuple(targets), weight is not None, group is not None
    )
    ids = [torch.randint(9, (rows,), generator=random, dtype=torch.int32)]
    floats = list(torch.randn(3, rows, generator=random))
    return PackedTable.from_columns(schema, ids, floats, labels, weight, group)


def schema_of(*targets, group=False) -> Schema:
    columns = [Column("city", "categorical", "string"), Column("used", "continuous", "float32")]
    columns += [Column("noise", "continuous", "float32")]
    columns += [Column(t.name, "target", "int32" if t.task == "multiclass" else "float32") for t in targets]
    columns += [Column("session", "group", "int64")] if group else []
    return Schema(tuple(columns), tuple(targets))


def labels_from(used: torch.Tensor, seed: int = 3) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return (torch.rand(len(used), generator=random) < torch.sigmoid(2 * used)).float()


@pytest.fixture
def binary():
    """A table whose label follows `used`, and the model that knows it."""
    table = make_table([Target("label", "binary")], [torch.zeros(ROWS)])
    labels = labels_from(table.unpack(table.words).floats[:, 0])
    table = make_table([Target("label", "binary")], [labels])
    return table, Fixed(lambda ids, floats: 2 * floats[:, :1] + 0.5)


def test_binary_metrics_are_those_of_scikit_learn(binary):
    table, model = binary
    found = evaluate(model, table, schema_of(Target("label", "binary")), "cpu")
    batch = table.unpack(table.words)
    p, y = torch.sigmoid(2 * batch.floats[:, 0] + 0.5).double().numpy(), batch.targets[0].numpy()
    metrics = found.metrics["label"]
    assert metrics["auc"] == pytest.approx(sk.roc_auc_score(y, p), abs=1e-9)
    assert metrics["logloss"] == pytest.approx(sk.log_loss(y, p), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(sk.accuracy_score(y, p >= 0.5))
    bins = np.minimum((np.ceil(p * 15) - 1).clip(0), 14).astype(int)
    gaps = [abs(p[bins == b].mean() - y[bins == b].mean()) * (bins == b).mean() for b in range(15) if (bins == b).any()]
    assert metrics["ece"] == pytest.approx(sum(gaps), abs=1e-6)
    assert found.headline == {name: metrics[name] for name in ("auc", "logloss", "ece")} | {"mrr": None}
    assert found.predictions[0].numpy() == pytest.approx(p, abs=1e-6)


def test_regression_metrics_are_those_of_scikit_learn():
    value = torch.randn(ROWS, generator=torch.Generator().manual_seed(2)) * 3
    table = make_table([Target("value", "regression")], [value])
    found = evaluate(Fixed(lambda ids, floats: floats[:, 1:2]), table, schema_of(Target("value", "regression")), "cpu")
    predicted = table.unpack(table.words).floats[:, 1].double().numpy()
    assert found.metrics["value"] == {
        "rmse": pytest.approx(sk.root_mean_squared_error(value, predicted), rel=1e-6),
        "mae": pytest.approx(sk.mean_absolute_error(value, predicted), rel=1e-6),
        "r2": pytest.approx(sk.r2_score(value, predicted), rel=1e-6),
    }
    assert found.headline == dict.fromkeys(("auc", "logloss", "ece", "mrr")) | found.metrics["value"]


def test_multiclass_metrics_are_those_of_scikit_learn():
    kind = torch.randint(3, (ROWS,), generator=torch.Generator().manual_seed(2), dtype=torch.int32)
    target = Target("kind", "multiclass", 3)
    table = make_table([target], [kind])
    found = evaluate(Fixed(lambda ids, floats: floats), table, schema_of(target), "cpu").metrics["kind"]
    p = torch.softmax(table.unpack(table.words).floats.double(), 1).numpy()
    assert found["logloss"] == pytest.approx(sk.log_loss(kind, p), rel=1e-6)
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(kind, p.argmax(1)))


def test_with_two_targets_the_headline_is_their_mean(binary):
    labels = binary[0].unpack(binary[0].words).targets[0]
    targets = [Target("label", "binary"), Target("opposite", "binary")]
    table = make_table(targets, [labels, 1 - labels])
    found = evaluate(Fixed(lambda ids, floats: floats[:, [0, 0]]), table, schema_of(*targets), "cpu")
    assert found.metrics["label"]["auc"] + found.metrics["opposite"]["auc"] == pytest.approx(1)
    assert found.headline["auc"] == pytest.approx(0.5)


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_a_row_of_weight_three_counts_as_three_rows_in_every_metric_and_curve(task):
    random = torch.Generator().manual_seed(7)
    times = torch.randint(4, (ROWS,), generator=random)
    used = make_table([Target("y", "regression")], [torch.zeros(ROWS)])
    used = used.unpack(used.words).floats[:, 0]
    labels = {"binary": labels_from(used), "multiclass": (used > 0).int(), "regression": used * 2}[task]
    target = Target("y", task, 2 if task == "multiclass" else 1)
    group = torch.arange(ROWS, dtype=torch.int32) // 6 if task == "binary" else None
    weighted = make_table([target], [labels], group, weight=times / 2)
    schema = TensorSchema(
        weighted.schema.ids, weighted.schema.floats, weighted.schema.targets, False, group is not None
    )
    kept = [i for i in range(weighted.words.shape[1]) if i != weighted.schema.num_words - 1 - (group is not None)]
    repeated = PackedTable(weighted.words[:, kept].repeat_interleave(times, 0).contiguous(), schema)
    model = Fixed(lambda ids, floats: floats[:, [0, 1]] if task == "multiclass" else floats[:, :1] + 0.3)
    found, expected = (evaluate(model, table, schema_of(target), "cpu") for table in (weighted, repeated))
    for name in found.metrics["y"].keys() - {"mrr"}:  # a rank counts rows, whatever they weigh
        assert found.metrics["y"][name] == pytest.approx(expected.metrics["y"][name], abs=1e-9), name
    assert found.headline["logloss"] == pytest.approx(expected.headline["logloss"], abs=1e-9)
    if task == "binary":
        (one,), (other,) = (
            quality(schema_of(target), run, table, bins=5) for run, table in ((found, weighted), (expected, repeated))
        )
        assert np.allclose(one.calibration.observed, other.calibration.observed)
        assert one.calibration.count.sum() * 2 == other.calibration.count.sum()
        assert np.allclose(
            np.interp(0.3, one.roc.fpr, one.roc.tpr), np.interp(0.3, other.roc.fpr, other.roc.tpr), atol=0.01
        )


def test_mean_residuals_are_drawn_of_targets_whose_mean_is_predicted():
    """Of a quantile they are not 0 where it is right."""
    targets = [
        Target("v", "regression"),
        Target("q", "regression", 3, quantiles=(0.1, 0.5, 0.9)),
        Target("p", "regression"),
    ]
    table = make_table(targets, [torch.randn(ROWS).exp() for _ in targets])
    schema = schema_of(*targets)
    evaluation = evaluate(Fixed(lambda ids, floats: floats[:, :1].expand(-1, 5)), table, schema, "cpu")
    shown = quality(schema, evaluation, table, 15, quantiles=["q", "p"])
    assert [one.residual_means is not None for one in shown] == [True, False, False]
    assert all(one.residuals is not None for one in shown)


def test_importance_is_measured_by_weights(binary):
    """Of the rows that count, the label follows `noise`; of those of weight 0, `used`."""
    table = binary[0]
    used, noise = table.unpack(table.words).floats[:, 0], table.unpack(table.words).floats[:, 1]
    counts = torch.arange(ROWS) % 2 == 0
    labels = torch.where(counts, noise > 0, used > 0).float()
    table = make_table([Target("label", "binary")], [labels], weight=counts.float())
    model, schema = Fixed(lambda ids, floats: floats[:, :1] + floats[:, 1:2]), schema_of(Target("label", "binary"))
    _, found = permutation_importance(model, table, schema, EvaluateSettings(importance_rows=ROWS), 1, "cpu")
    by_name = {row["name"]: row["mean"] for row in found}
    assert by_name["noise"] > 0.2
    assert abs(by_name["used"]) < 0.03


def test_importance_looks_at_rows_that_weigh_something_and_no_others(binary, caplog):
    """As many as it is to look at, and no value of another row is shuffled in."""
    table, model = binary
    target, labels = Target("label", "binary"), table.unpack(table.words).targets[0]
    weight = (torch.rand(ROWS, generator=torch.Generator().manual_seed(2)) < 0.1).float()
    for rows in (200, ROWS):
        asked = schema_of(target), EvaluateSettings(importance_rows=rows), 1, "cpu"
        weighted = make_table([target], [labels], weight=weight)
        counted = make_table([target], [labels], weight=weight).counted()
        assert permutation_importance(model, weighted, *asked) == permutation_importance(model, counted, *asked)
    alone = make_table([target], [labels], weight=(torch.arange(ROWS) == 5).float())
    assert permutation_importance(model, alone, schema_of(target), EvaluateSettings(), 1, "cpu") == ("AUC", [])
    assert "importance: the AUC of 1 row(s) is no number" in caplog.text


def test_importance_by_an_infinite_loss_is_told_and_not_given(caplog):
    """Each drop was infinite less infinite, and the report had a row without a number for each feature."""
    target = Target("y", "regression")
    table = make_table([target], [torch.zeros(ROWS)])
    far = Fixed(lambda ids, floats: floats[:, :1].where(floats[:, :1] < floats[:, 0].max(), 1e30))  # its square is inf
    assert permutation_importance(far, table, schema_of(target), EvaluateSettings(), 1, "cpu") == ("minus loss", [])
    assert f"importance: the loss of {ROWS:,} row(s) is infinite or no number, so nothing is told" in caplog.text
    assert "Look at rows that are predicted far off" in caplog.text


def test_a_metric_that_is_not_defined_is_none():
    ones = torch.ones(10)
    found = target_metrics(Target("a", "binary"), ones / 2, ones, torch.zeros(10, dtype=torch.int32), 15)
    assert found["auc"] is None
    assert found["mrr"] == pytest.approx(1 / 5.5)  # all tied: the mean of the ranks 1 to 10
    assert (
        target_metrics(Target("a", "binary"), ones / 2, 0 * ones, torch.zeros(10, dtype=torch.int32), 15)["mrr"] is None
    )
    assert target_metrics(Target("a", "regression"), ones, ones, None, 15)["r2"] is None


def test_metrics_of_clicks_in_groups_are_in_the_report_beside_the_headline():
    random = torch.Generator().manual_seed(5)
    group = torch.arange(ROWS, dtype=torch.int32) // 6
    label = (torch.rand(ROWS, generator=random) < 0.3).float()
    table = make_table([Target("label", "binary")], [label], group)
    schema = schema_of(Target("label", "binary"), group=True)
    found = evaluate(Fixed(lambda ids, floats: floats[:, :1]), table, schema, "cpu")
    p, y, g = found.predictions[0].double().numpy(), label.numpy(), group.numpy()
    mixed = [n for n in range(ROWS // 6) if 0 < y[g == n].sum() < 6]
    metrics = found.metrics["label"]
    assert metrics["gauc"] == pytest.approx(np.mean([sk.roc_auc_score(y[g == n], p[g == n]) for n in mixed]))
    assert metrics["gauc_left_out"] == pytest.approx(1 - 6 * len(mixed) / ROWS)
    base = sk.log_loss(y, np.full(ROWS, y.mean()))
    assert metrics["normalised_entropy"] == pytest.approx(sk.log_loss(y, p) / base, rel=1e-6)
    assert set(found.headline) == {"auc", "logloss", "ece", "mrr"}
    (shown,) = quality(schema, found, table, 15)
    assert shown.metrics == metrics


def test_importance_of_classes_is_of_the_probabilities_that_are_predicted():
    """A model that is far too sure: by its own logits a shuffled column cost ten times what its predictions lose."""
    random = torch.Generator().manual_seed(8)
    targets = [Target("colour", "multiclass", 3), Target("bought", "binary")]
    table = make_table(targets, [torch.zeros(ROWS, dtype=torch.int32), torch.zeros(ROWS)])
    floats = table.unpack(table.words).floats[:, :2].double()
    truth = torch.stack([floats[:, 0], -floats[:, 0], floats[:, 1]], 1)
    colour = torch.multinomial(truth.softmax(1), 1, generator=random)[:, 0].int()
    bought = (torch.rand(ROWS, generator=random) < floats[:, 0].sigmoid()).float()
    table = make_table(targets, [colour, bought])

    def outputs(ids, floats):
        one, other = floats[:, 0], floats[:, 1]
        return 10 * torch.stack([one, -one, other, one], 1)

    model, shift, schema = Fixed(outputs), -1.5, schema_of(*targets)  # of train.prior, which rows as they are lack
    curves = [OutputCurve(place, (0.0,), (0.0,), 0.1) for place in range(4)]
    model.calibration = (*curves[:3], curves[3].shifted(shift))
    settings = EvaluateSettings(importance_rows=ROWS, importance_repeats=1)
    name, found = permutation_importance(model, table, schema, settings, 1, "cpu", None, shift)

    def loss(floats):
        given = outputs(None, floats).numpy() / 10
        classes = np.exp(given[:, :3]) / np.exp(given[:, :3]).sum(1, keepdims=True)
        return sk.log_loss(colour, classes) + sk.log_loss(bought, 1 / (1 + np.exp(-given[:, 3])))

    drops = {}
    generator = torch.Generator().manual_seed(1)
    for feature in feature_words(table):
        order = torch.randperm(ROWS, generator=generator)
        shuffled = floats.clone()
        if feature in ("used", "noise"):
            place = ["used", "noise"].index(feature)
            shuffled[:, place] = floats[order][:, place]
        drops[feature] = loss(shuffled) - loss(floats)
    assert name == "minus loss"
    assert {row["name"]: row["mean"] for row in found} == pytest.approx(drops, abs=1e-5)


def test_importance_finds_what_the_model_uses_and_gives_nothing_to_the_rest(binary):
    table, model = binary
    settings = EvaluateSettings(importance_repeats=5, importance_rows=ROWS)
    name, found = permutation_importance(model, table, schema_of(Target("label", "binary")), settings, 1, "cpu")
    auc = evaluate(model, table, schema_of(Target("label", "binary")), "cpu").headline["auc"]
    by_name = {row["name"]: row for row in found}
    assert name == "AUC"
    assert found[0]["name"] == "used"
    # Shuffled, the only feature used tells nothing about the label: AUC falls to a half.
    assert by_name["used"]["mean"] == pytest.approx(auc - 0.5, abs=0.02)
    assert by_name["noise"] == {"name": "noise", "mean": 0.0, "std": 0.0}
    assert by_name["city"]["mean"] == 0.0


def test_importance_of_a_label_of_one_row_in_a_thousand_is_that_of_all_its_rows():
    """By scikit-learn over all rows; of 2,000 rows without regard to their labels two would have label 1."""
    rows = 60_000
    label = (torch.arange(rows) % 1_000 == 17).float()
    table = make_table([Target("label", "binary")], [label])
    used = table.unpack(table.words).floats[:, 0]
    used += 1.5 * label
    asked = (
        schema_of(Target("label", "binary")),
        EvaluateSettings(importance_rows=2_000, importance_repeats=3),
        1,
        "cpu",
    )
    _, found = permutation_importance(Fixed(lambda ids, floats: floats[:, :1]), table, *asked)
    wanted = sk.roc_auc_score(label.numpy(), used.numpy()) - 0.5
    assert found[0]["name"] == "used"
    assert found[0]["mean"] == pytest.approx(wanted, abs=0.04)
    assert found[0]["std"] < 0.1


def test_importance_is_the_same_for_the_same_seed_and_leaves_the_table_alone(binary):
    table, model = binary
    before = table.words.clone()
    settings = EvaluateSettings(importance_rows=500)
    schema = schema_of(Target("label", "binary"))
    one, same, other = (permutation_importance(model, table, schema, settings, seed, "cpu") for seed in (1, 1, 2))
    assert one == same != other
    assert torch.equal(table.words, before)


def test_a_category_by_the_name_of_an_indicator_is_a_feature_of_its_own():
    """Of a preprocessor without indicators, `used_na` may be any column."""
    schema = TensorSchema((IdColumn("used_na", 9),), ("used",), ())
    table = PackedTable.from_columns(schema, [torch.zeros(2, dtype=torch.int32)], [torch.zeros(2)], [])
    assert feature_words(table) == {"used_na": [0], "used": [1]}


def test_importance_of_one_shuffling_has_no_deviation(binary):
    asked = schema_of(Target("label", "binary")), EvaluateSettings(importance_repeats=1), 1, "cpu"
    _, found = permutation_importance(binary[1], binary[0], *asked)
    assert found[0]["mean"] > 0.2
    assert [row["std"] for row in found] == [None, None, None]


def test_importance_by_a_metric_that_is_no_number_is_told_and_not_given(binary, caplog):
    table, model = binary
    schema = schema_of(Target("label", "binary"))
    found = permutation_importance(model, table.with_words(table.words[:1]), schema, EvaluateSettings(), 1, "cpu")
    assert found == ("AUC", [])
    assert "importance: the AUC of 1 row(s) is no number" in caplog.text


def test_importance_of_a_feature_includes_its_indicator(binary):
    table, _ = binary
    assert feature_words(table) == {"city": [0], "used": [1, 3], "noise": [2]}
    model = Fixed(lambda ids, floats: floats[:, 2:3])  # the model looks at `used_na` alone
    _, found = permutation_importance(model, table, schema_of(Target("label", "binary")), EvaluateSettings(), 1, "cpu")
    assert {row["name"] for row in found if row["std"] > 0} == {"used"}


@pytest.mark.parametrize("group", [None, torch.arange(ROWS, dtype=torch.int32) // 4], ids=["rows", "groups"])
@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_importance_without_a_ranking_metric_is_the_rise_of_the_loss(task, group):
    table = make_table([Target("y", "regression")], [torch.zeros(ROWS)])
    used = table.unpack(table.words).floats[:, 0]
    target = Target("y", "regression") if task == "regression" else Target("y", "multiclass", 2)
    table = make_table([target], [used.clone() if task == "regression" else (used > 0).int()], group)
    logits = {
        "regression": lambda ids, floats: floats[:, :1],
        "multiclass": lambda ids, floats: torch.stack([-floats[:, 0], floats[:, 0]], 1),
    }[task]
    name, found = permutation_importance(Fixed(logits), table, schema_of(target), EvaluateSettings(), 1, "cpu")
    assert name == "minus loss"
    assert found[0]["name"] == "used"
    if task == "regression":  # E (x - x')^2 of independent copies is twice the variance
        assert found[0]["mean"] == pytest.approx(2 * float(used.var()), rel=0.1)
    assert [row["mean"] for row in found[1:]] == [0.0, 0.0]


@pytest.mark.parametrize("weighted", [False, True])
def test_importance_of_a_poisson_model_is_the_rise_of_its_squared_error_in_deviations(weighted):
    plain = make_table([Target("y", "regression")], [torch.zeros(ROWS)])
    used = plain.unpack(plain.words).floats[:, 0]
    labels = (1.2 * used).exp() * 3
    weight = torch.arange(ROWS) % 3 + 0.5 if weighted else None
    table = make_table([Target("y", "regression")], [labels], weight=weight)
    model = Fixed(lambda ids, floats: 1.2 * floats[:, :1] - 0.5)  # logarithms of the prediction over the train mean
    model.scale_targets([TargetScale(0, 0, 0.0, 3 * math.exp(0.5), log=True)])
    settings = EvaluateSettings(importance_rows=ROWS, importance_repeats=1)
    name, found = permutation_importance(model, table, schema_of(Target("y", "regression")), settings, 1, "cpu")
    generator, mass = torch.Generator().manual_seed(1), np.ones(ROWS) if weight is None else weight.numpy()
    orders = [torch.randperm(ROWS, generator=generator).numpy() for _ in ("city", "used", "noise")]
    values = labels.double().numpy()
    variance = np.average((values - np.average(values, weights=mass)) ** 2, weights=mass)
    rise = sk.mean_squared_error(values, values[orders[1]], sample_weight=mass) / variance
    assert name == "minus loss"
    assert {row["name"]: row["mean"] for row in found} == {"used": pytest.approx(rise, rel=1e-4), "city": 0, "noise": 0}


def test_importance_with_groups_takes_whole_groups_and_mrr():
    group = torch.arange(ROWS, dtype=torch.int32) // 4
    table = make_table([Target("label", "binary")], [torch.zeros(ROWS)], group)
    used = table.unpack(table.words).floats[:, 0]
    best = used.view(-1, 4).argmax(1)
    labels = torch.nn.functional.one_hot(best, 4).flatten().float()
    table = make_table([Target("label", "binary")], [labels], group)
    rows = spread_rows(table, 400)
    counts = group[rows].unique(return_counts=True)[1]
    assert len(rows) == 400
    assert bool((counts == 4).all())
    schema = schema_of(Target("label", "binary"), group=True)
    settings = EvaluateSettings(importance_rows=ROWS)
    name, found = permutation_importance(Fixed(lambda ids, floats: floats[:, :1]), table, schema, settings, 1, "cpu")
    assert name == "MRR"
    # The perfect ranking has MRR 1; a random order of four has (1 + 1/2 + 1/3 + 1/4) / 4.
    assert found[0]["name"] == "used"
    assert found[0]["mean"] == pytest.approx(1 - (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4, abs=0.02)


@pytest.mark.parametrize(
    ("num_features", "rows_seen", "rows", "repeats"),
    [
        (10, 10_000_000, 20_000, 3),  # 620,000 rows in 31 passes
        (66, 2_000_000, 5_025, 3),  # 199 passes
        (66, 400_000, 2_985, 1),  # three repeats would leave fewer than 2,000 rows; 67 passes
        (66, 28_000, 208, 1),  # of a short training, too
        (1_000, 100_000, 49, 1),
    ],
)
def test_importance_shuffles_no_more_than_half_the_rows_that_the_training_saw(num_features, rows_seen, rows, repeats):
    found = importance_sample(EvaluateSettings(), 30_000, num_features, rows_seen)
    assert (found.rows, found.repeats) == (rows, repeats)
    passes = rows * (1 + num_features * repeats)
    assert found.passes(num_features) == passes
    assert passes <= rows_seen / 2


def test_importance_takes_the_rows_and_repeats_that_are_set_and_no_more_than_there_are():
    both = EvaluateSettings(importance_rows=20_000, importance_repeats=5)
    assert importance_sample(both, 30_000, 66, 1) == ImportanceSample(20_000, 5)
    assert importance_sample(both, 700, 66, 1) == ImportanceSample(700, 5)
    assert importance_sample(EvaluateSettings(importance_repeats=2), 30_000, 9, 380_000) == ImportanceSample(10_000, 2)
    assert importance_sample(EvaluateSettings(importance_rows=4_000), 30_000, 9, 380_000) == ImportanceSample(4_000, 3)
    assert importance_sample(EvaluateSettings(), 300, 9, 10**9) == ImportanceSample(300, 3)


def test_importance_rows_are_spread_over_the_whole_split(binary):
    assert spread_rows(binary[0], ROWS).tolist() == list(range(ROWS))
    rows = spread_rows(binary[0], 100)
    assert (rows * 100 // ROWS).tolist() == list(range(100))


def test_the_column_summary_counts_nulls_values_and_the_unseen():
    schema = schema_of(Target("label", "binary"))
    train = pd.DataFrame(
        {
            "city": ["a", "a", "b", None], "used": [1.0, 2.0, np.nan, 6.0], "noise": [1.0, 1.0, 3.0, 3.0],
            "label": [0.0, 1.0, 0.0, 1.0],
        }
    )  # fmt: skip
    test = train.assign(city=["a", "x", "y", "z"], used=[1.0, 1.0, 1.0, 1.0])
    preprocessor = Preprocessor(schema).fit([train])
    found = {
        row["name"]: row for row in column_summary(preprocessor, pack(preprocessor, train), pack(preprocessor, test))
    }
    assert found["city"] == {
        "name": "city",
        "role": "categorical",
        "nulls": 0.25,
        "cardinality": 2,
        "unseen_rate": 0.75,
    }
    filled = np.array([1.0, 2.0, 2.0, 6.0])
    assert found["used"] == {
        "name": "used", "role": "continuous", "nulls": 0.25, "median": 2.0, "mean": pytest.approx(filled.mean()),
        "std": pytest.approx(filled.std()),
    }  # fmt: skip
    assert found["noise"]["nulls"] == 0


def test_the_column_summary_takes_rows_of_weight_0_for_none():
    columns = (Column("city", "categorical", "string"), Column("w", "weight", "float32"))
    train = pd.DataFrame({"city": ["a", "a", "b", None], "w": [1.0, 2.0, 1.0, 1.0]})
    test = pd.DataFrame({"city": ["a", "x", "y", "b"], "w": [1.0, 0.0, 0.0, 1.0]})
    preprocessor = Preprocessor(Schema(columns, ())).fit([train])
    (row,) = column_summary(preprocessor, pack(preprocessor, train), pack(preprocessor, test))
    assert (row["nulls"], row["unseen_rate"]) == (0.25, 0.0)


@pytest.mark.parametrize("known", [True, False])
def test_the_column_summary_tells_nulls_of_the_rows_that_were_grown_by_and_none_of_an_import(known):
    schema = schema_of(Target("label", "binary"))
    start = pd.DataFrame({"city": ["a"] * 4, "used": [1.0, 2.0, 3.0, 6.0], "noise": [1.0] * 4, "label": [0.0, 1.0] * 2})
    train = start.assign(used=[1.0, np.nan, np.nan, 6.0])
    preprocessor = Preprocessor(schema).fit([start])
    preprocessor.grow([train])
    if not known:
        preprocessor.statistics = None
    packed = pack(preprocessor, train)
    found = {row["name"]: row["nulls"] for row in column_summary(preprocessor, packed, packed)}
    assert found == {"city": 0, "used": 0.5 if known else None, "noise": 0 if known else None}


def test_what_the_report_draws_adds_up_to_the_rows(binary):
    labels = binary[0].unpack(binary[0].words).targets[0]
    kind = labels.int() + (torch.arange(ROWS) % 2).int()
    targets = [Target("label", "binary"), Target("kind", "multiclass", 3, ("x", "y", "z")), Target("v", "regression")]
    table = make_table(targets, [labels, kind, labels * 3])
    model = Fixed(lambda ids, floats: torch.cat([floats, floats[:, :2]], 1))
    schema = schema_of(*targets)
    first, second, third = quality(schema, evaluate(model, table, schema, "cpu"), table, 15)
    assert sum(counts.sum() for counts in first.scores.counts.values()) == ROWS
    assert first.calibration.count.sum() == ROWS
    predicted = table.unpack(table.words).floats[:, [1, 2, 0]].argmax(1)
    assert (second.confusion.counts == sk.confusion_matrix(kind, predicted)).all()
    assert third.residuals.counts["rows"].sum() == ROWS


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("far", [float("inf"), float("-inf"), float("nan"), 1e300])
def test_predictions_that_are_no_numbers_are_counted_and_the_others_drawn(far, weighted):
    """One such row ended a finished training with a traceback of NumPy."""
    target = Target("v", "regression")
    used = torch.linspace(-1, 1, 200).double()
    predicted = used.clone()
    predicted[[20, 70]] = far
    weight = torch.ones(200).index_fill_(0, torch.tensor([70, 71]), 0.0) if weighted else None
    shown = target_quality(target, predicted, used * 2, {}, 15, weight)
    lost, rows = (1, 198) if weighted else (2, 200)
    assert f"{lost} of {rows} predictions are NaN, infinite or beyond 3.4e+38" in shown.note
    assert shown.residuals.counts["rows"].sum() == rows - lost
    assert shown.residuals.edges[[0, -1]] == pytest.approx([-1, 1])
    assert shown.spread.edges[[0, -1]] == pytest.approx([-2, 2])
    assert np.isfinite(shown.residual_means.residual).all()
    page = render_report(ReportData("x", quality=[shown]))
    assert shown.note in page
    assert "Residuals by prediction" in page


def test_where_no_prediction_is_a_number_nothing_is_drawn():
    shown = target_quality(Target("v", "regression"), torch.full((5,), torch.inf), torch.ones(5), {}, 15, None)
    assert shown.note.startswith("5 of 5 predictions are NaN, infinite or beyond")
    assert (shown.residuals, shown.spread, shown.predicted_actual) == (None, None, None)
    assert shown.note in render_report(ReportData("x", quality=[shown]))


@pytest.mark.parametrize("weighted", [False, True])
def test_labels_of_a_multilabel_target_are_measured_together_as_scikit_learn_does(weighted):
    random = np.random.default_rng(5)
    labels = (random.random((400, 3)) < [0.5, 0.1, 0.3]).astype(np.float32)
    chances = np.clip(random.random((400, 3)) * 0.8 + 0.1 * labels, 0.01, 0.99).astype(np.float32)
    weight = random.random(400).astype(np.float32) if weighted else None
    targets = [Target(name, "binary", label_of="tags") for name in ("a", "b", "c")]
    targets.insert(1, Target("price", "regression"))
    columns = (
        [torch.from_numpy(part.copy()) for part in chances.T],
        [torch.from_numpy(part.copy()) for part in labels.T],
    )
    for part in columns:
        part.insert(1, torch.full((400,), 7.0))
    (found,) = multilabel_metrics(targets, *columns, None if weight is None else torch.from_numpy(weight))
    for average in ("macro", "micro"):
        asked = {"average": average, "sample_weight": weight}
        assert found[f"{average} auc"] == pytest.approx(sk.roc_auc_score(labels, chances, **asked))
        assert found[f"{average} ap"] == pytest.approx(sk.average_precision_score(labels, chances, **asked))
    own = [sk.log_loss(labels[:, place], chances[:, place], sample_weight=weight) for place in range(3)]
    assert found["logloss"] == pytest.approx(np.mean(own), rel=1e-6)
    assert (found["target"], found["labels"], found["undefined"]) == ("tags", 3, 0)


def test_a_label_of_one_class_is_left_out_of_the_means_and_counted():
    targets = [Target(name, "binary", label_of="tags") for name in ("a", "b")]
    chances, labels = torch.tensor([0.1, 0.9]), torch.tensor([0.0, 1.0])
    (found,) = multilabel_metrics(targets, [chances, chances], [labels, torch.zeros(2)])
    assert (found["macro auc"], found["macro ap"], found["undefined"]) == (1.0, 1.0, 1)
    assert found["micro auc"] == pytest.approx(sk.roc_auc_score([0, 1, 0, 0], [0.1, 0.9, 0.1, 0.9]))
    (found,) = multilabel_metrics(targets, [chances, chances], [torch.zeros(2), torch.zeros(2)])
    assert (found["macro auc"], found["micro auc"], found["micro ap"], found["undefined"]) == (None, None, None, 2)
    (found,) = multilabel_metrics(targets, [1 - chances, chances], [labels, torch.ones(2)])
    assert (found["macro auc"], found["macro ap"], found["undefined"]) == (0.0, 0.5, 1)
    assert multilabel_metrics([Target("a", "binary")], [chances], [labels]) == []


def test_a_multilabel_target_goes_from_the_file_to_the_report(tmp_path):
    random = np.random.default_rng(6)
    x = random.normal(size=(600, 2)).astype(np.float32)
    labels = {name: (x[:, place % 2] + random.normal(size=600) > 0).astype(int) for place, name in enumerate("abc")}
    pd.DataFrame({"x": x[:, 0], "z": x[:, 1], **labels}).to_csv(tmp_path / "rows.csv", index=False)
    targets = {"tags": {"task": "multilabel", "columns": ["a", "b", "c"]}}
    features = {"path": str(tmp_path / "rows.csv"), "continuous": ["x", "z"], "targets": targets}
    folders = {"artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs")}
    rest = {"device": "cpu", "engine": "pandas", "train": {"epochs": 4}}
    rest["evaluate"] = {"importance": False, "baselines": []}
    run = Pipeline(parse_config({"name": "tags", "recipe": "table", "features": features, **folders, **rest})).train()
    rows = {row["split"]: row for row in run.summary["multilabel"]}
    own = run.summary["targets"]["test"]
    assert [*own] == ["a", "b", "c"]
    assert rows["test"]["macro auc"] == pytest.approx(np.mean([own[name]["auc"] for name in own]))
    assert rows["test"]["macro auc"] > 0.65
    assert {target.label_of for target in run.bundle().schema.targets} == {"tags"}
    assert "All labels of tags on test" in (run.path / "report.html").read_text()
    assert [*run.bundle().predict(pd.DataFrame({"x": [0.1], "z": [0.2]})).columns] == ["a", "b", "c"]
