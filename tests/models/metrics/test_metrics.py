"""Metrics against scikit-learn and slow loops, with ties, weights and rows in any order."""

import math

import numpy as np
import pytest
import sklearn.calibration
import sklearn.metrics
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gigabatch.models.errors import ModelError
from gigabatch.models.metrics.pointwise import (
    RocAucByWeight,
    accuracy,
    average_precision,
    calibration_curve,
    calibration_error_by_chance,
    churn_unit,
    expected_calibration_error,
    log_loss,
    mae,
    multiclass_log_loss,
    pinball_loss,
    prediction_churn,
    r2,
    rmse,
    roc_auc,
    roc_curve,
)
from gigabatch.models.metrics.ranking import grouped_mrr
from tests.examples import examples

QUICK = settings(max_examples=examples(50))


@st.composite
def binary_rows(draw, max_rows=40):
    """Scores float32 in [0, 1] with many ties, labels of both classes, positive and zero weights or None."""
    num_rows = draw(st.integers(2, max_rows))
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    levels = draw(st.sampled_from([2, 5, 10_000]))
    scores = torch.tensor(random.integers(0, levels, num_rows) / (levels - 1), dtype=torch.float32)
    labels = torch.tensor(random.integers(0, 2, num_rows), dtype=torch.float32)
    assume(0 < labels.sum() < num_rows)
    weight = None
    if draw(st.booleans()):
        weight = torch.tensor(random.integers(0, 4, num_rows) * 0.37, dtype=torch.float32)
        assume((weight * labels).sum() > 0)
        assume((weight * (1 - labels)).sum() > 0)
    return scores, labels, weight


def rows(num_rows=500, seed=0):
    """Predictions, labels and weights of a regression."""
    labels, noise, weight = torch.randn(3, num_rows, generator=torch.Generator().manual_seed(seed))
    return labels + 0.3 * noise, labels, weight.abs()


def class_rows(num_rows=300, num_classes=4, seed=0):
    random = torch.Generator().manual_seed(seed)
    probabilities = torch.softmax(torch.randn(num_rows, num_classes, generator=random), dim=1)
    labels = torch.randint(num_classes, (num_rows,), generator=random, dtype=torch.int32)
    return probabilities, labels, torch.rand(num_rows, generator=random)


@QUICK
@given(binary_rows())
def test_auc_equals_scikit_learns(batch):
    scores, labels, weight = batch
    expected = sklearn.metrics.roc_auc_score(labels, scores, sample_weight=weight)
    assert roc_auc(scores, labels, weight).item() == pytest.approx(expected, abs=1e-12)


@QUICK
@given(binary_rows())
def test_average_precision_equals_scikit_learns(batch):
    scores, labels, weight = batch
    expected = sklearn.metrics.average_precision_score(labels, scores, sample_weight=weight)
    assert average_precision(scores, labels, weight).item() == pytest.approx(expected, abs=1e-12)


def test_there_is_no_average_precision_without_a_positive():
    assert average_precision(torch.tensor([0.1, 0.2]), torch.tensor([0, 0])).isnan()
    assert average_precision(torch.tensor([0.1, 0.2]), torch.tensor([1, 1])).item() == 1


@QUICK
@given(binary_rows(), st.integers(0, 2**31))
def test_auc_by_weight_equals_scikit_learns_and_is_auc_bit_for_bit(batch, seed):
    scores, labels, own = batch
    measure, random = RocAucByWeight(scores, labels), torch.Generator().manual_seed(seed)
    for _ in range(3):
        drawn = torch.randint(len(labels), (len(labels),), generator=random).bincount(minlength=len(labels))
        weight = drawn if own is None else own * drawn
        assume((weight * labels).sum() > 0)
        assume((weight * (1 - labels)).sum() > 0)
        expected = sklearn.metrics.roc_auc_score(labels, scores, sample_weight=weight)
        assert measure(weight).item() == pytest.approx(expected, abs=1e-12)
        assert torch.equal(measure(weight), roc_auc(scores, labels, weight))


@pytest.mark.parametrize("seed", range(20))
def test_auc_by_weight_is_auc_bit_for_bit_where_many_weights_are_0(seed):
    """Among equal scores the two added up their weights in other orders: of 400 draws 30 were off by the last place."""
    random = np.random.default_rng(seed)
    scores = torch.from_numpy(random.integers(0, 60, 300).astype("float32"))
    labels = torch.from_numpy(random.integers(0, 2, 300))
    measure = RocAucByWeight(scores, labels)
    for _ in range(10):
        weight = torch.from_numpy(random.random(300) * random.integers(0, 3, 300))
        assert torch.equal(measure(weight), roc_auc(scores, labels, weight))
    of_doubles = RocAucByWeight(scores.double(), labels)
    assert torch.equal(of_doubles(weight), roc_auc(scores.double(), labels, weight))


def test_auc_by_weight_refuses_what_auc_does():
    with pytest.raises(ModelError, match="are NaN"):
        RocAucByWeight(torch.tensor([0.1, float("nan")]), torch.tensor([0, 1]))
    measure = RocAucByWeight(torch.tensor([0.1, 0.2]), torch.tensor([0, 1]))
    with pytest.raises(ModelError, match="a weight is negative"):
        measure(torch.tensor([1.0, -1.0]))
    with pytest.raises(ModelError, match="a weight is negative"):
        measure(torch.tensor([1, -1]))
    with pytest.raises(ModelError, match="all weights are 0"):
        measure(torch.tensor([0, 0]))


def test_auc_of_a_perfect_ranking_is_exactly_one():
    scores = torch.arange(1_000_003, dtype=torch.float64)
    labels = scores > 333_331
    assert roc_auc(scores, labels).item() == 1.0
    assert roc_auc(-scores, labels).item() == 0.0


@pytest.mark.parametrize("label", [0, 1])
def test_auc_of_one_class_is_nan(label):
    assert roc_auc(torch.rand(5), torch.full((5,), label)).isnan()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.float32])
def test_labels_may_have_any_dtype(dtype):
    scores, labels = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]).to(dtype)
    assert roc_auc(scores, labels).item() == 0.75  # scikit-learn's documented example


def test_scores_of_minus_and_plus_zero_are_tied():
    assert roc_auc(torch.tensor([-0.0, 0.0]), torch.tensor([1, 0])).item() == 0.5


@QUICK
@given(binary_rows())
def test_roc_curve_keeps_scikit_learns_corners(batch):
    scores, labels, weight = batch
    fpr, tpr, threshold = sklearn.metrics.roc_curve(labels, scores, sample_weight=weight, drop_intermediate=False)
    every = {tuple(np.round(point, 9)) for point in zip(fpr, tpr, threshold, strict=True)}
    curve = roc_curve(scores, labels, weight)
    found = [tuple(np.round(point, 9)) for point in torch.stack(curve, dim=1).tolist()]
    assert set(found) <= every
    assert found[0] == (0, 0, np.inf)
    assert found[-1][:2] == (1, 1)
    # Nothing that bends was dropped: the kept points interpolate all others.
    np.testing.assert_allclose(
        np.interp(fpr + tpr, curve.false_positive_rate + curve.true_positive_rate, curve.true_positive_rate),
        tpr,
        atol=1e-9,
    )


def test_roc_curve_drops_points_on_straight_lines():
    """Five positives, then five negatives: three corners."""
    curve = roc_curve(torch.arange(10.0).flip(0), torch.tensor([1] * 5 + [0] * 5))
    assert curve.false_positive_rate.tolist() == [0, 0, 1]
    assert curve.true_positive_rate.tolist() == [0, 1, 1]
    assert curve.threshold.tolist() == [np.inf, 5, 0]


@pytest.mark.parametrize("max_points", [2, 3, 10, 101])
def test_a_thinned_roc_curve_stays_within_its_bound(max_points):
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(20_000, generator=random)
    labels = (scores + torch.randn(20_000, generator=random) > 0.7).int()
    full, thin = roc_curve(scores, labels, max_points=10**6), roc_curve(scores, labels, max_points=max_points)
    assert len(full.threshold) > 101 >= len(thin.threshold) > max_points // 2
    assert len(thin.threshold) <= max_points
    full_points, thin_points = (torch.stack(curve[:2], dim=1) for curve in (full, thin))
    assert torch.equal(thin_points[[0, -1]], torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64))
    distance = torch.cdist(full_points, thin_points, p=1).min(dim=1).values
    assert distance.max() <= 2 / (max_points - 1)
    assert (distance == 0).sum() == len(thin_points)


@pytest.mark.parametrize("max_points", [1000, 10**6])
@pytest.mark.parametrize("seed", [528, 173, 5])
def test_a_roc_curve_of_weights_of_all_sizes_keeps_its_area(seed, max_points):
    """A row whose weight float64 lost beside the sum of the others took the corner before it: areas were .08 off."""
    random = np.random.default_rng(seed)
    scores, labels = random.normal(size=3000).astype("float32"), random.integers(0, 2, 3000)
    weight = random.exponential(size=3000) ** 12
    parts = (torch.from_numpy(part) for part in (scores, labels, weight))
    curve = roc_curve(*parts, max_points=max_points)
    area = np.trapezoid(curve.true_positive_rate.numpy(), curve.false_positive_rate.numpy())
    assert area == pytest.approx(sklearn.metrics.roc_auc_score(labels, scores, sample_weight=weight), abs=2e-4)


@QUICK
@given(binary_rows())
def test_log_loss_equals_scikit_learns(batch):
    probabilities, labels, weight = batch
    expected = sklearn.metrics.log_loss(labels, probabilities.numpy(), sample_weight=weight)
    # scikit-learn computes 1 - p in the float32 of its input.
    assert log_loss(probabilities, labels, weight).item() == pytest.approx(expected, rel=1e-6)


def test_log_loss_of_small_probabilities_is_accurate():
    probability = 1e-5
    found = log_loss(torch.tensor([probability], dtype=torch.float64), torch.tensor([0])).item()
    assert found == pytest.approx(probability + probability**2 / 2 + probability**3 / 3, rel=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_class_metrics_equal_scikit_learns(weighted):
    probabilities, labels, weight = class_rows()
    weight = weight if weighted else None
    expected = sklearn.metrics.log_loss(labels, probabilities.numpy(), sample_weight=weight, labels=range(4))
    assert multiclass_log_loss(probabilities, labels, weight).item() == pytest.approx(expected, rel=1e-6)
    expected = sklearn.metrics.accuracy_score(labels, probabilities.argmax(1), sample_weight=weight)
    assert accuracy(probabilities, labels, weight).item() == pytest.approx(expected, rel=1e-6)


@QUICK
@given(binary_rows())
def test_binary_accuracy_equals_scikit_learns(batch):
    probabilities, labels, weight = batch
    expected = sklearn.metrics.accuracy_score(labels, probabilities >= 0.5, sample_weight=weight)
    assert accuracy(probabilities, labels, weight).item() == pytest.approx(expected)


@QUICK
@given(binary_rows(), st.integers(1, 20))
def test_calibration_curve_equals_scikit_learns(batch, num_bins):
    probabilities, labels, _ = batch
    hits, confidence = sklearn.calibration.calibration_curve(labels, probabilities.double(), n_bins=num_bins)
    curve = calibration_curve(probabilities, labels, num_bins)
    np.testing.assert_allclose(curve.confidence, confidence, rtol=1e-12)
    np.testing.assert_allclose(curve.accuracy, hits, rtol=1e-12)
    assert curve.num_rows.sum() == curve.weight.sum() == len(labels)


def slow_calibration_error(confidence, hits, num_bins):
    """Guo et al. (1706.04599), equation 3, with bins ((m-1)/M, m/M]; 0 joins the first."""
    error = 0.0
    for m in range(1, num_bins + 1):
        low, high = (m - 1) / num_bins, m / num_bins
        inside = [i for i, p in enumerate(confidence) if low < p <= high or (m == 1 and p == 0)]
        if inside:
            gap = np.mean([hits[i] for i in inside]) - np.mean([confidence[i] for i in inside])
            error += len(inside) / len(confidence) * abs(gap)
    return error


@QUICK
@given(binary_rows(), st.sampled_from([1, 2, 10, 15]))
def test_binary_calibration_error_equals_a_slow_loop(batch, num_bins):
    probabilities, labels, _ = batch
    expected = slow_calibration_error(probabilities.tolist(), labels.tolist(), num_bins)
    assert expected_calibration_error(probabilities, labels, num_bins).item() == pytest.approx(expected, abs=1e-12)


def test_multiclass_calibration_error_is_that_of_the_top_label():
    probabilities, labels, _ = class_rows()
    confidence, predicted = probabilities.max(dim=1)
    expected = slow_calibration_error(confidence.tolist(), (predicted == labels).tolist(), 15)
    assert expected_calibration_error(probabilities, labels).item() == pytest.approx(expected, abs=1e-12)


@QUICK
@given(binary_rows(), st.integers(1, 15))
def test_calibration_by_weights_is_that_of_rows_that_come_as_often(batch, num_bins):
    probabilities, labels, weight = batch
    times = torch.ones(len(labels), dtype=torch.long) if weight is None else (weight / 0.37).round().long()
    again = probabilities.repeat_interleave(times), labels.repeat_interleave(times), num_bins
    found = expected_calibration_error(probabilities, labels, num_bins, times)
    assert found.item() == pytest.approx(expected_calibration_error(*again).item(), abs=1e-12)
    curves = calibration_curve(probabilities, labels, num_bins, times)[:3], calibration_curve(*again)[:3]
    for one, other in zip(*curves, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("rows", [100, 3_000])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_calibration_error_by_chance_is_the_mean_over_drawn_labels(classes, rows, weighted):
    random = torch.Generator().manual_seed(5)
    given = torch.rand(rows, classes, generator=random, dtype=torch.float64)
    probabilities = given[:, 0] if classes == 1 else torch.softmax(3 * given, 1)
    weight = torch.rand(rows, generator=random) + 0.2 if weighted else None
    chances = torch.stack([1 - probabilities, probabilities], 1) if classes == 1 else probabilities
    drawn = [torch.multinomial(chances, 1, generator=random)[:, 0] for _ in range(300)]
    labels = [one.double() if classes == 1 else one for one in drawn]
    mean = np.mean([expected_calibration_error(probabilities, one, 15, weight).item() for one in labels])
    assert calibration_error_by_chance(probabilities, 15, weight).item() == pytest.approx(mean, rel=0.07)


def slow_mrr(scores, labels, groups):
    """Mean over groups with a positive of 1 / (mean rank of the rows tied with the best positive)."""
    reciprocals = []
    for group in set(groups):
        mine = [i for i, g in enumerate(groups) if g == group]
        positives = [scores[i] for i in mine if labels[i]]
        if positives:
            above = sum(scores[i] > max(positives) for i in mine)
            tied = sum(scores[i] == max(positives) for i in mine)
            reciprocals.append(1 / np.mean(range(above + 1, above + tied + 1)))
    return np.mean(reciprocals) if reciprocals else np.nan


@QUICK
@given(
    st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.3, 0.9]), st.booleans(), st.integers(-3, 3)), min_size=1),
    st.randoms(use_true_random=False),
)
def test_mrr_equals_a_slow_loop_in_any_row_order(batch, random):
    expected = slow_mrr(*zip(*batch, strict=True))
    for _ in range(2):
        scores, labels, groups = zip(*batch, strict=True)
        found = grouped_mrr(torch.tensor(scores), torch.tensor(labels), torch.tensor(groups, dtype=torch.int32))
        assert found.item() == pytest.approx(expected, rel=1e-12, nan_ok=True)
        random.shuffle(batch)


@pytest.mark.parametrize("weighted", [False, True])
def test_regression_metrics_equal_scikit_learns(weighted):
    predictions, labels, weight = rows()
    weight = weight if weighted else None
    for ours, theirs in (
        (rmse, sklearn.metrics.root_mean_squared_error),
        (mae, sklearn.metrics.mean_absolute_error),
        (r2, sklearn.metrics.r2_score),
    ):
        expected = theirs(labels.double(), predictions.double(), sample_weight=weight)
        found = ours(predictions, labels, weight)
        assert found.dtype == torch.float64
        assert found.item() == pytest.approx(expected, rel=1e-6)


def test_sums_are_in_float64():
    """In float32, the mean of a million squares of 0.1 would be visibly off."""
    predictions = torch.full((1_000_000,), 0.1)
    exact = float(np.float32(0.1))
    assert rmse(predictions, torch.zeros_like(predictions)).item() == pytest.approx(exact, rel=1e-10)


def test_r2_of_constant_labels_is_nan():
    assert r2(torch.rand(4), torch.ones(4)).isnan()


@pytest.mark.parametrize("num_rows", [3, 100, 1001])
@pytest.mark.parametrize("weighted", [False, True])
def test_r2_of_constant_labels_is_nan_whatever_the_rounding_of_their_mean(num_rows, weighted):
    labels, weight = torch.full((num_rows,), 0.1), None
    if weighted:
        weight = 0.1 + torch.rand(num_rows, generator=torch.Generator().manual_seed(0))
        labels[0], weight[0] = 5.0, 0.0  # a row that does not count
    assert r2(torch.rand(num_rows), labels, weight).isnan()


HALVES, LABELS = torch.full((4,), 0.5), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize("metric", [roc_auc, roc_curve, log_loss, accuracy, calibration_curve, rmse, mae, r2])
def test_nan_predictions_are_refused_and_counted(metric):
    predictions = HALVES.clone()
    predictions[2] = torch.nan
    with pytest.raises(ModelError, match="1 of 4 predictions are NaN"):
        metric(predictions, LABELS)


@pytest.mark.parametrize("metric", [roc_auc, log_loss, accuracy, rmse, mae, r2])
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.tensor([1.0, -1.0, 1.0, 1.0]), "a weight is negative"),
        (torch.zeros(4), "all weights are 0"),
        (torch.ones(4, 1), r"weight must be \[4\], not \[4, 1\]"),
        (torch.full((4,), torch.nan), "4 of 4 weight are NaN"),
    ],
)
def test_weights_must_be_usable(metric, weight, message):
    with pytest.raises(ModelError, match=message):
        metric(HALVES, LABELS, weight)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: roc_auc(HALVES, LABELS + 1), r"labels must be 0 or 1, found \[1, 2\]"),
        (lambda: roc_auc(HALVES[:, None], LABELS), r"predictions must be \[n\] and labels \[n\]"),
        (lambda: roc_auc(HALVES, LABELS[:3]), r"found \[4\] and \[3\]"),
        (lambda: roc_auc(HALVES[:0], LABELS[:0]), "there are no rows"),
        (lambda: roc_curve(HALVES, LABELS, max_points=1), "max_points must be at least 2"),
        (lambda: log_loss(HALVES * 3, LABELS), r"probabilities must be in \[0, 1\], found 1.5 to 1.5"),
        (lambda: calibration_curve(HALVES, LABELS, 0), "num_bins must be at least 1"),
        (lambda: multiclass_log_loss(HALVES, LABELS), r"must be \[n, classes\]"),
        (lambda: multiclass_log_loss(HALVES.reshape(2, 2), torch.tensor([0, 2])), "integers from 0 to 1, found 0 to 2"),
        (lambda: accuracy(HALVES.reshape(2, 2), torch.tensor([0.0, 1.0])), "labels must be integers"),
        (lambda: grouped_mrr(HALVES, LABELS, HALVES), "groups must be integers"),
        (lambda: grouped_mrr(HALVES, LABELS, LABELS[:3]), r"groups must be integers \[4\], found torch.int64 \[3\]"),
        (lambda: rmse(HALVES, LABELS[:, None]), r"labels \[n\]"),
    ],
)
def test_unusable_inputs_are_refused(call, message):
    with pytest.raises(ModelError, match=message):
        call()


def test_churn_equals_a_slow_loop_and_two_classes_are_a_binary_target():
    random = np.random.default_rng(3)
    first, second, weight = random.random((3, 40))
    wanted = sum(w * abs(a - b) for a, b, w in zip(first, second, weight, strict=True)) / sum(weight)
    one, two, mass = map(torch.tensor, (first, second, weight))
    assert float(prediction_churn(one, two, mass)) == pytest.approx(wanted)
    classes = torch.stack([1 - one, one], 1), torch.stack([1 - two, two], 1)
    assert float(prediction_churn(*classes, mass)) == pytest.approx(wanted)
    assert float(prediction_churn(one, two)) == pytest.approx(np.abs(first - second).mean())
    assert float(prediction_churn(one, one)) == 0
    endless = torch.where(torch.arange(40) == 3, torch.inf, one)
    assert float(prediction_churn(endless, endless)) == 0  # NaN, though nothing has changed
    assert float(prediction_churn(endless, torch.where(torch.arange(40) == 3, torch.inf, two))) == pytest.approx(
        np.delete(np.abs(first - second), 3).sum() / 40
    )
    for other in (one, -endless):
        assert float(prediction_churn(endless, other)) == np.inf
    with pytest.raises(ModelError, match=r"both must be \[n\] or \[n, classes\]"):
        prediction_churn(one, two[:3])
    with pytest.raises(ModelError, match="1 of 40 predictions are NaN"):
        prediction_churn(torch.where(torch.arange(40) == 3, torch.nan, one), two)


def test_the_unit_of_churn_is_the_deviation_of_a_regressions_labels():
    labels, weight = torch.tensor([1.0, 2.0, 4.0, 9.0]), torch.tensor([1.0, 2.0, 0.0, 1.0])
    assert churn_unit("regression", labels) == pytest.approx(np.std([1, 2, 4, 9]))
    assert churn_unit("regression", labels, weight) == pytest.approx(np.std([1, 2, 2, 9]))
    assert math.isnan(churn_unit("regression", torch.full((3,), 0.1)))
    assert churn_unit("binary", labels) == churn_unit("multiclass", labels) == 1
    assert all(math.isnan(churn_unit(task, labels, torch.zeros(4))) for task in ("regression", "binary"))  # IndexError


@pytest.mark.parametrize("far", [float("inf"), float("-inf")])
def test_an_infinite_prediction_of_weight_0_counts_for_nothing(far):
    """0 times infinity is no number, so a report had no RMSE where such a row was among a thousand."""
    labels = torch.tensor([1.0, 2.0, 4.0, 3.0])
    predictions = torch.tensor([1.5, 2.0, 3.0, far])
    weight = torch.tensor([1.0, 2.0, 1.0, 0.0])
    own, truth, mass = (part[:3].numpy() for part in (predictions, labels, weight))
    asked = {"sample_weight": mass}
    metrics = (("rmse", rmse), ("mae", mae), ("r2", r2))
    found = {name: float(of(predictions, labels, weight)) for name, of in metrics}
    assert found["rmse"] == pytest.approx(sklearn.metrics.mean_squared_error(truth, own, **asked) ** 0.5)
    assert found["mae"] == pytest.approx(sklearn.metrics.mean_absolute_error(truth, own, **asked))
    assert found["r2"] == pytest.approx(sklearn.metrics.r2_score(truth, own, **asked))
    pinball = sklearn.metrics.mean_pinball_loss(truth, own, alpha=0.9, **asked)
    assert float(pinball_loss(predictions, labels, 0.9, weight)) == pytest.approx(pinball)
    assert float(prediction_churn(predictions, labels, weight)) == pytest.approx((0.5 + 0 + 1) / 4)
