"""Standard errors of paired differences against bootstraps, and metrics against those of `models/metrics`."""

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel

from gigabatch.models.metrics.pointwise import log_loss, multiclass_log_loss, rmse, roc_auc
from gigabatch.models.metrics.ranking import grouped_mrr
from gigabatch.pipeline.evaluation.paired import Labelled, difference, with_error

ROWS = 3000


def two_models(task: str, seed: int = 0):
    """Labels, and predictions of a good and of a worse model whose errors have much in common."""
    random = torch.Generator().manual_seed(seed)
    signal, common, own = torch.randn(3, ROWS, generator=random)
    better, worse = signal + common, signal + common + 0.7 * own
    if task == "regression":
        return signal, better, worse
    labels = (torch.rand(ROWS, generator=random) < torch.sigmoid(2 * signal)).float()
    better, worse = torch.sigmoid(better), torch.sigmoid(worse)
    if task == "multiclass":
        return labels.int(), torch.stack([1 - better, better], 1), torch.stack([1 - worse, worse], 1)
    return labels, better, worse


METRICS = {
    "logloss": lambda p, y, w, g: (multiclass_log_loss if p.dim() == 2 else log_loss)(p, y, w),
    "auc": lambda p, y, w, g: roc_auc(p, y, w),
    "rmse": lambda p, y, w, g: rmse(p, y, w),
    "mrr": lambda p, y, w, g: grouped_mrr(p, y, g, w),
}


@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighted"])
@pytest.mark.parametrize(
    ("metric", "task", "grouped"),
    [
        ("logloss", "binary", False),
        ("logloss", "binary", True),
        ("auc", "binary", False),
        ("auc", "binary", True),
        ("mrr", "binary", True),
        ("logloss", "multiclass", False),
        ("rmse", "regression", True),
    ],
)
def test_the_standard_error_of_a_difference_is_that_of_a_paired_bootstrap(metric, task, weighted, grouped):
    labels, better, worse = two_models(task)
    weight = torch.rand(ROWS, generator=torch.Generator().manual_seed(1)) if weighted else None
    group = torch.arange(ROWS) // 5 if grouped else None
    found = difference(metric, worse, better, Labelled(task, labels, weight, group))
    value = METRICS[metric]
    assert found.model == pytest.approx(float(value(worse, labels, weight, group)), rel=1e-6)
    assert found.baseline == pytest.approx(float(value(better, labels, weight, group)), rel=1e-6)
    assert found.gain == pytest.approx(-abs(found.model - found.baseline))
    random = np.random.default_rng(2)
    gains = []
    for _ in range(200):
        if grouped:  # groups are drawn, and each draw is a group of its own
            drawn = random.integers(0, ROWS // 5, ROWS // 5)
            rows = torch.tensor((drawn[:, None] * 5 + np.arange(5)).ravel())
            groups = torch.arange(ROWS) // 5
        else:
            rows, groups = torch.tensor(random.integers(0, ROWS, ROWS)), None
        w = None if weight is None else weight[rows]
        gains.append(float(value(worse[rows], labels[rows], w, groups) - value(better[rows], labels[rows], w, groups)))
    assert found.error == pytest.approx(np.std(gains), rel=0.2)
    assert found.is_worse == (found.gain < -2 * np.std(gains)) == (metric != "mrr")


def test_equal_predictions_are_not_worse_and_a_metric_of_one_class_is_none():
    labels, better, worse = two_models("binary")
    rows = Labelled("binary", labels)
    assert not difference("logloss", better, better, rows).is_worse
    assert not difference("logloss", better, worse, rows).is_worse
    assert not difference("logloss", better + 1e-7, better, rows).is_worse
    assert difference("auc", better, worse, Labelled("binary", labels * 0)) is None
    assert difference("logloss", better[:1], worse[:1], Labelled("binary", labels[:1])) is None


def test_rows_of_weight_zero_do_not_count():
    labels, better, worse = two_models("binary")
    half = (torch.arange(ROWS) % 2).float()
    for metric in ("logloss", "auc"):
        found = difference(metric, worse, better, Labelled("binary", labels, half))
        odd = difference(metric, worse[1::2], better[1::2], Labelled("binary", labels[1::2]))
        assert (found.gain, found.error) == pytest.approx((odd.gain, odd.error), rel=1e-3)


@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e-6, 1e-9])
def test_a_worse_model_is_worse_in_every_unit_of_the_target(unit):
    labels = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * unit
    found = difference("rmse", torch.zeros(1000), labels * 0.9, Labelled("regression", labels))
    assert found.is_worse
    same = difference("rmse", labels * 0.9, labels * (0.9 + 1e-9), Labelled("regression", labels))
    assert not same.is_worse


@pytest.mark.parametrize("metric", ["logloss", "auc", "mrr"])
def test_rows_of_weight_0_are_no_rows(metric):
    """Of twelve rows that count, or three groups, the error is that of these alone; of a single one there is none."""
    random = torch.Generator().manual_seed(8)
    scores, other = torch.rand(2, 400, generator=random)
    labels, group = (torch.arange(400) % 4 == 0).float(), torch.arange(400) // 4
    counted = torch.arange(400) < 12
    own = difference(metric, scores[:12], other[:12], Labelled("binary", labels[:12], None, group[:12]))
    found = difference(metric, scores, other, Labelled("binary", labels, counted.float(), group))
    assert (found.model, found.gain, found.error) == pytest.approx((own.model, own.gain, own.error))
    alone = Labelled("binary", labels, (torch.arange(400) < (4 if metric == "mrr" else 1)).float(), group)
    assert difference(metric, scores, other, alone) is None
    assert np.isnan(with_error(metric, scores, alone)[1])


@pytest.mark.parametrize("positives", [2, 3, 10])
def test_the_error_of_an_auc_of_few_positives_is_delongs(positives):
    """Against a loop. Of two positives its square was half of that, and a single one told it as if it were sure."""
    random = np.random.default_rng(positives)
    labels = np.arange(40) < positives
    scores = random.normal(size=40) + labels
    wins = scores[labels][:, None] > scores[~labels]
    wanted = sum(np.var(wins.mean(side), ddof=1) / wins.shape[1 - side] for side in (0, 1))
    rows = Labelled("binary", torch.tensor(labels).float())
    value, error = with_error("auc", torch.tensor(scores), rows)
    assert (value, error) == pytest.approx((wins.mean(), np.sqrt(wanted)))
    alone = Labelled("binary", (torch.arange(40) == 3).float())
    assert np.isnan(with_error("auc", torch.tensor(scores), alone)[1])
    assert difference("auc", torch.tensor(scores), torch.zeros(40), alone) is None


@pytest.mark.parametrize("grouped", [False, True], ids=["rows", "groups"])
def test_the_error_of_rows_of_which_one_has_most_weight_is_not_that_of_many(grouped):
    """Where one has 95 % of the weight it was a twentieth of what repeated samples vary by."""
    random = torch.Generator().manual_seed(0)
    weight = torch.ones(100).index_fill(0, torch.tensor(7), 2_000.0)
    group = torch.arange(100) // 4 if grouped else None
    found = []
    for _ in range(2_000):
        chances = torch.rand(100, generator=random) * 0.8 + 0.1
        found.append(with_error("logloss", chances, Labelled("binary", torch.ones(100), weight, group)))
    values, errors = np.array(found).T
    assert np.sqrt((errors**2).mean()) == pytest.approx(values.std(), rel=0.1)
    alone = Labelled("binary", torch.ones(100), weight.double() ** 4, group)
    assert np.isnan(with_error("logloss", chances, alone)[1])


def test_few_rows_tell_that_a_model_is_worse_by_students_t():
    random, told = np.random.default_rng(4), 0
    for _ in range(300):
        losses = random.gamma(4.0, size=(2, 5)) / 8
        found = difference("logloss", *torch.tensor(np.exp(-losses)), Labelled("binary", torch.ones(5)))
        sure = ttest_rel(*losses).pvalue < 0.05 and losses[0].mean() > losses[1].mean()
        assert found.is_worse == sure
        told += found.gain < -2 * found.error
    assert told > 12  # of two standard errors, whatever the rows are
