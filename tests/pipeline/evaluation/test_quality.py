"""What the report draws of predictions: against scikit-learn, and of rows that have no such thing."""

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics as sk
import torch

from gigabatch.features.schema import Target
from gigabatch.pipeline.evaluation.evaluate import class_rows, most_confused, residual_means, target_quality
from gigabatch.pipeline.reports.report import ReportData, render_report

ROWS = 2000


def binary(rows=ROWS, seed=0):
    random = np.random.default_rng(seed)
    scores = random.random(rows).astype(np.float32)
    return torch.as_tensor(scores), torch.as_tensor((random.random(rows) < scores).astype(np.float32))


def of_binary(scores, labels, weight=None, drawn=False):
    both = 0 < int(labels.sum()) < len(labels)
    metrics = {"auc": sk.roc_auc_score(labels, scores) if both else None}
    return target_quality(Target("y", "binary"), scores, labels, metrics, 15, weight, drawn)


def test_curves_of_a_binary_target_are_those_of_scikit_learn():
    scores, labels = binary()
    gains = of_binary(scores, labels).gains
    assert gains.average_precision == pytest.approx(sk.average_precision_score(labels, scores))
    assert gains.positive_rate == pytest.approx(float(labels.mean()))
    order = np.argsort(-scores.numpy())
    tenth = labels.numpy()[order][: ROWS // 10].sum() / labels.numpy().sum()
    assert np.interp(0.1, gains.share, gains.recall) == pytest.approx(tenth, abs=1e-3)


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("rows", [1, 50])
def test_rows_of_one_label_have_no_curve_that_needs_two(label, rows):
    scores, _ = binary(rows)
    found = of_binary(scores, torch.full((rows,), label))
    assert (found.roc, found.gains) == (None, None)
    assert np.sum(found.calibration.count) == rows
    assert "Calibration" in render_report(ReportData("a", quality=[found]))


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_a_row_of_weight_three_counts_as_three_rows_in_histograms_and_tables(task):
    """Weights of a thousandth: 0, 1 and 3 of them, and rows of weight 0 that lie beyond all others."""
    random = np.random.default_rng(6)
    times = torch.as_tensor(random.choice([0, 1, 3], ROWS))
    if task == "multiclass":
        target = Target("y", task, 3, ("a", "b", "c"))
        predicted = torch.as_tensor(random.dirichlet([1, 1, 1], ROWS), dtype=torch.float32)
        labels = torch.as_tensor(random.integers(0, 3, ROWS), dtype=torch.int32)
    else:
        target, (predicted, labels) = Target("y", task), binary()
        if task == "regression":
            labels = torch.where(times == 0, 50.0, labels + predicted)
    repeated = [part.repeat_interleave(times, 0) for part in (predicted, labels)]
    one = target_quality(target, predicted, labels, {"auc": None}, 15, times / 1000)
    other = target_quality(target, *repeated, {"auc": None}, 15, None)
    for found, expected in zip(
        (one.scores, one.residuals, one.spread), (other.scores, other.residuals, other.spread), strict=True
    ):
        assert (found is None) == (expected is None)
        if found is not None:
            assert found.edges == pytest.approx(expected.edges)
            for name, counts in expected.counts.items():
                assert found.counts[name] * 1000 == pytest.approx(counts, abs=1e-3), name
    if task == "multiclass":
        assert one.confusion.counts * 1000 == pytest.approx(sk.confusion_matrix(repeated[1], repeated[0].argmax(1)))
        for found, expected in zip(one.classes, other.classes, strict=True):
            assert found["rows"] * 1000 == pytest.approx(expected["rows"])
            assert {name: found[name] for name in ("class", "recall", "precision", "F1")} == pytest.approx(
                {name: expected[name] for name in ("class", "recall", "precision", "F1")}
            )
        assert [row["of_its_class"] for row in one.most_confused] == pytest.approx(
            [row["of_its_class"] for row in other.most_confused]
        )
        assert [row["rows"] * 1000 for row in one.most_confused] == pytest.approx(
            [row["rows"] for row in other.most_confused]
        )
    if task == "regression":
        assert len(one.predicted_actual[0]) == int((times > 0).sum())
        assert one.residual_means.predicted[-1] < 2


def test_of_drawn_negatives_neither_precision_nor_calibration_is_told():
    found = of_binary(*binary(), drawn=True)
    assert found.roc is not None
    assert (found.gains, found.calibration, found.thresholds) == (None, None, ())


def test_mean_residuals_are_those_of_each_tenth_with_the_interval_of_students_t():
    random = np.random.default_rng(1)
    predicted = random.normal(size=ROWS)
    residuals = np.where(predicted > 1.3, 0.5, 0.0) + random.normal(0, 0.2, ROWS)
    found = residual_means(predicted, residuals, None)
    order = np.argsort(predicted)
    for place, rows in enumerate(np.split(order, 10)):
        own = residuals[rows]
        assert found.residual[place] == pytest.approx(own.mean())
        assert found.predicted[place] == pytest.approx(predicted[rows].mean())
        expected = scipy.stats.ttest_1samp(own, 0).confidence_interval(0.95)
        assert (found.low[place], found.high[place]) == pytest.approx((expected.low, expected.high))
    assert found.low[9] > 0 > found.low[4]
    assert residual_means(np.ones(1), np.ones(1), None) is None
    assert len(residual_means(np.ones(50), random.normal(size=50), None).residual) == 1


def test_mean_residuals_follow_weights():
    predicted, residuals = np.zeros(4), np.array([1.0, 3.0, 5.0, 100.0])
    found = residual_means(predicted, residuals, np.array([1.0, 1.0, 2.0, 0.0], np.float32))
    assert found.residual[0] == pytest.approx((1 + 3 + 10) / 4)


@pytest.mark.parametrize(("groups", "rows", "weighted"), [(100, 10, False), (60, 20, True), (300, 3, False)])
def test_with_groups_the_intervals_of_mean_residuals_hold_as_often_as_they_say(groups, rows, weighted):
    """Rows of a group share half of what their predictions miss. As independent rows 77 to 93 % of the bars held."""
    held, bars = 0, 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        group = np.arange(groups).repeat(rows)
        predicted, missed = (random.normal(size=len(group)) + random.normal(size=groups)[group] for _ in range(2))
        weight = random.exponential(size=len(group)) if weighted else None
        found = residual_means(predicted, missed, weight, group)
        held, bars = held + int(((found.low <= 0) & (found.high >= 0)).sum()), bars + len(found.low)
    assert 0.92 <= held / bars <= 0.98


def test_a_tenth_of_one_group_tells_no_interval():
    found = residual_means(np.arange(100.0), np.ones(100), None, np.arange(10).repeat(10))
    assert found is None


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_the_charts_of_a_target_take_its_groups(task):
    """Rows that are there five times tell what they tell once, if a group says so."""
    scores, labels = binary(1000)
    target = Target("y", task, 2 if task == "multiclass" else 1)
    prediction, label = scores, labels
    if task == "multiclass":
        prediction, label = torch.stack([1 - scores, scores], 1), labels.long()
    metrics, group = {"auc": 0.7}, torch.arange(1000)
    once = target_quality(target, prediction, label, metrics, 5, None, group=group)
    many = [part.repeat_interleave(5, 0) for part in (prediction, label)]
    of_groups, alone = (
        target_quality(target, *many, metrics, 5, None, group=given) for given in (group.repeat_interleave(5), None)
    )
    bars = [item.residual_means or item.calibration for item in (once, of_groups, alone)]
    widths = [np.asarray(item.high) - np.asarray(item.low) for item in bars]
    assert widths[1] == pytest.approx(widths[0], rel=0.02)
    assert np.all(widths[2] < 0.6 * widths[0])


def test_classes_are_listed_by_what_they_are_taken_for():
    random = np.random.default_rng(2)
    true = random.integers(0, 4, 3000)
    taken = np.where(random.random(3000) < 0.7, true, random.integers(0, 4, 3000))
    taken[(true == 2) & (random.random(3000) < 0.5)] = 1
    names, counts = ["a", "b", "c", "d"], sk.confusion_matrix(true, taken)
    first = most_confused(names, counts)[0]
    expected = ((true == 2) & (taken == 1)).sum()
    assert first == {
        "true class": "c",
        "predicted": "b",
        "rows": expected,
        "of_its_class": pytest.approx(expected / (true == 2).sum()),
    }
    precision, recall, f1, rows = sk.precision_recall_fscore_support(true, taken)
    for row in class_rows(names, counts):
        place = names.index(row["class"])
        assert [row[name] for name in ("precision", "recall", "F1", "rows")] == pytest.approx(
            [precision[place], recall[place], f1[place], rows[place]]
        )
    assert class_rows(names, counts)[0]["class"] == names[int(f1.argmin())]
    assert most_confused(["a", "b"], np.array([[3, 0], [0, 0]])) == []
    assert [row["class"] for row in class_rows(["a", "b"], np.array([[3, 0], [0, 0]]))] == ["a"]


def test_a_page_of_each_task_stands():
    random = np.random.default_rng(3)
    chances = torch.softmax(torch.as_tensor(random.normal(size=(60, 3))), 1)
    kinds = target_quality(
        Target("k", "multiclass", 3), chances, torch.as_tensor(random.integers(0, 3, 60)), {}, 15, None
    )
    values = target_quality(Target("v", "regression"), torch.zeros(5), torch.arange(5.0), {}, 15, torch.ones(5))
    text = render_report(ReportData("a", quality=[of_binary(*binary()), kinds, values]))
    for title in ("Precision and recall", "Lift", "Most confused", "Residuals by prediction", "likeliest class"):
        assert title in text
