"""The statistics that decide about a candidate: the paired bootstrap, and what a model must reach at all."""

import json
import math
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, ListColumn, Schema, Target
from gigabatch.models.metrics.ranking import RankedGroups, grouped_mrr
from gigabatch.pipeline.config.config import LossSettings, NightlySettings
from gigabatch.pipeline.nightly.comparison import (
    KEYS,
    Comparison,
    Window,
    bootstrap,
    cannot_be_judged,
    floor,
    quantile_of,
    random_mrr,
    recorded,
    recorded_constant,
    train_mean,
    window_rows,
)
from tests.examples import examples

BINARY, REGRESSION, CLASSES = Target("y", "binary"), Target("y", "regression"), Target("y", "multiclass", 3)

GROUPS = st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=4)
GROUPS = GROUPS.filter(lambda groups: any(map(any, groups)))  # so that one has a positive


def window(labels, target=BINARY, mean=0.5, **more) -> Window:
    return Window(target, labels, torch.as_tensor(mean), **more)


def slow_reciprocal_ranks(scores, labels, groups) -> list[float]:
    """Row by row: rank of the best positive, ties at the mean of the ranks that they span."""
    found = []
    for group in sorted(set(groups)):
        rows = [i for i, one in enumerate(groups) if one == group]
        ranks = []
        for i in rows:
            above = sum(scores[j] > scores[i] for j in rows)
            equal = sum(scores[j] == scores[i] for j in rows)
            if labels[i]:
                ranks.append(sum(range(above + 1, above + equal + 1)) / equal)
        if ranks:
            found.append(1 / min(ranks))
    return found


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(-5, 5)), min_size=1, max_size=30))
def test_reciprocal_ranks_equal_a_slow_loop_and_their_mean_the_metric(rows):
    scores, labels, groups = (list(column) for column in zip(*rows, strict=True))
    tensors = torch.tensor(scores).float(), torch.tensor(labels).float(), torch.tensor(groups)
    found = RankedGroups(*tensors).reciprocal_rank()
    assert found.tolist() == pytest.approx(slow_reciprocal_ranks(scores, labels, groups))
    if len(found):
        assert float(found.mean()) == pytest.approx(float(grouped_mrr(*tensors)))


def made_up(rows: int, noise: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Labels, the scores of a model with much noise, and of one with less."""
    random = np.random.default_rng(seed)
    signal = random.normal(size=rows)
    labels = random.random(rows) < 1 / (1 + np.exp(-2 * signal))
    worse = 1 / (1 + np.exp(-(2 * signal + noise * random.normal(size=rows))))
    better = 1 / (1 + np.exp(-2 * signal))
    return tuple(torch.tensor(a).float() for a in (labels.astype(float), worse, better))


def test_the_bound_of_log_loss_is_that_of_the_normal_approximation():
    labels, worse, better = made_up(2000, 1.0)
    found = bootstrap("logloss", worse, better, window(labels), NightlySettings(confidence=0.9, num_bootstrap=2000), 1)

    def losses(p):
        return -torch.where(labels > 0, p.double().log(), (1 - p.double()).log())

    each = losses(worse) - losses(better)
    assert found.gain == pytest.approx(float(each.mean()), rel=1e-4)
    wanted = float(each.mean() - 1.282 * each.std() / math.sqrt(2000))  # the tenth percentile
    assert found.bound == pytest.approx(wanted, abs=0.05 * found.gain)
    assert found.upper == pytest.approx(2 * float(each.mean()) - wanted, abs=0.05 * found.gain)  # the ninetieth
    assert (found.metric, found.rows) == ("log loss", 2000)


def test_the_night_tells_how_far_predictions_are_apart():
    labels, worse, better = made_up(500, 1.0)
    quick = NightlySettings(num_bootstrap=50)
    wanted = float(np.abs(worse.numpy().astype(float) - better.numpy().astype(float)).mean())
    assert bootstrap("auc", worse, better, window(labels), quick, 1).prediction_churn == pytest.approx(wanted)
    values = 7 * better + 2  # of a regression in its own unit: the deviations of the labels are its unit
    found = bootstrap("logloss", 7 * worse + 2, values, window(values, REGRESSION), quick, 1)
    assert found.prediction_churn == pytest.approx(wanted / float(np.std(better.numpy().astype(float))), rel=1e-5)
    drawn = window(labels, drawn=True)  # the negatives of two models are not the same rows
    assert drawn.churn(worse, torch.where(labels == 1, worse, better)) == 0
    assert window(torch.ones(500), REGRESSION).churn(worse, better) is None


def test_the_bound_of_mrr_is_that_of_the_normal_approximation():
    random = np.random.default_rng(4)
    groups = torch.arange(1000).repeat_interleave(5)
    labels = torch.nn.functional.one_hot(torch.tensor(random.integers(5, size=1000)), 5).flatten().float()
    noise = torch.tensor(random.normal(size=(2, 5000))).float()
    worse, better = labels + 2 * noise[0], labels + noise[1]
    found = bootstrap("mrr", worse, better, window(labels, group=groups), NightlySettings(num_bootstrap=2000), 1)
    first, second = (
        torch.tensor(slow_reciprocal_ranks(s.tolist(), labels.tolist(), groups.tolist())) for s in (worse, better)
    )
    each = second - first
    assert found.gain == pytest.approx(float(each.mean()), abs=1e-6)
    assert found.bound == pytest.approx(float(each.mean() - 1.645 * each.std() / math.sqrt(1000)), abs=0.003)


def test_the_bound_of_auc_lies_below_a_known_gain_and_above_nothing():
    labels, worse, better = made_up(2000, 1.0)
    many = NightlySettings(num_bootstrap=300)
    found = bootstrap("auc", worse, better, window(labels), many, 1)
    gain = sk.roc_auc_score(labels, better) - sk.roc_auc_score(labels, worse)
    assert found.gain == pytest.approx(gain, abs=1e-9)
    assert 0 < found.bound < found.gain
    back = bootstrap("auc", better, worse, window(labels), many, 1)
    assert back.bound < back.gain == -found.gain
    assert bootstrap("auc", better, better, window(labels), many, 1).bound == 0


@pytest.mark.parametrize(("metric", "target"), [("auc", BINARY), ("logloss", BINARY), ("logloss", REGRESSION)])
def test_with_groups_the_bound_holds_as_often_as_it_says(metric, target):
    """Ten rows of a search share what models are told and much of their labels. Of single rows 73 to 90 % held."""
    held, groups = 0, torch.arange(60).repeat_interleave(10)
    for seed in range(100):
        random = np.random.default_rng(seed)
        known, unknown, *noise = torch.tensor(random.normal(size=(4, 60)))[:, groups]
        chance = (known + unknown - 1).sigmoid()
        labels = chance + unknown if target is REGRESSION else (torch.tensor(random.random(600)) < chance).double()
        # As good as one another, so that the true gain is 0.
        models = [part + known if target is REGRESSION else (part + known - 1).sigmoid() for part in noise]
        rows = window(labels, target, float(labels.mean()), group=groups)
        held += bootstrap(metric, *models, rows, NightlySettings(num_bootstrap=100), seed).bound < 0
    assert held >= 90  # 95 in the mean


def test_of_a_single_group_rows_are_drawn():
    labels, group = torch.tensor([0.0, 1.0] * 50), torch.zeros(100, dtype=torch.int64)
    better, worse = labels * 0.8 + 0.1 * torch.rand(100), torch.rand(100)
    for metric in ("auc", "logloss"):
        one, many = (
            bootstrap(metric, worse, better, given, NightlySettings(num_bootstrap=50), 1)
            for given in (window(labels), window(labels, group=group))
        )
        assert (one.bound, one.upper) == (many.bound, many.upper)


def test_the_bootstrap_repeats_itself_and_follows_its_seed():
    labels, worse, better = made_up(500, 1.0)
    found = [bootstrap("auc", worse, better, window(labels), NightlySettings(num_bootstrap=50), s) for s in (1, 1, 2)]
    assert found[0] == found[1]
    assert found[0].bound != found[2].bound


def test_regression_is_compared_by_rmse_and_multiclass_by_log_loss():
    value, few = torch.linspace(-1, 1, 400), NightlySettings(num_bootstrap=50)
    found = bootstrap("logloss", value + 1, value + 0.5, window(value, REGRESSION, 0.0), few, 1)
    assert (found.metric, found.current, found.candidate) == ("RMSE", pytest.approx(1), pytest.approx(0.5))
    assert found.bound == pytest.approx(0.5, abs=1e-6)
    classes = torch.arange(400) % 3
    flat, sure = torch.full((400, 3), 1 / 3), torch.nn.functional.one_hot(classes, 3) * 0.7 + 0.1
    found = bootstrap("logloss", flat, sure, window(classes.int(), CLASSES, [1 / 3] * 3), few, 1)
    assert (found.current, found.candidate) == (pytest.approx(math.log(3)), pytest.approx(-math.log(0.8)))


def test_a_quantile_is_compared_by_its_pinball_loss():
    """By RMSE the mean won over the right quantile, and each night the model nearer to the mean."""
    random = np.random.default_rng(5)
    label = torch.tensor(random.exponential(size=2000))
    right, mean = torch.full_like(label, -math.log(0.1)), torch.ones_like(label)
    high, few = window(label, REGRESSION, -math.log(0.1), quantile=0.9), NightlySettings(num_bootstrap=50)
    found = bootstrap("logloss", mean, right, high, few, 1)
    assert found.metric == "pinball loss"
    for scores, value in ((right, found.candidate), (mean, found.current)):
        assert value == pytest.approx(sk.mean_pinball_loss(label, scores, alpha=0.9))
    assert 0 < found.bound < found.gain
    weight = torch.tensor(random.integers(0, 3, 2000)).float()
    high = window(label, REGRESSION, -math.log(0.1), quantile=0.9, weight=weight)
    wanted = sk.mean_pinball_loss(label, mean, alpha=0.9, sample_weight=weight)
    assert bootstrap("logloss", mean, right, high, few, 1).current == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("quantiles", "losses", "wanted"),
    [
        ((), {}, None),
        ((), {"y": {"kind": "huber"}}, None),
        ((), {"y": {"kind": "quantile", "tau": 0.9}}, 0.9),
        ((), {"y": {"kind": "quantile"}}, 0.5),
        ((0.1, 0.4, 0.9), {}, 0.4),
    ],
)
def test_a_window_knows_which_quantile_is_predicted(quantiles, losses, wanted):
    train = SimpleNamespace(losses={name: LossSettings(**given) for name, given in losses.items()})
    features = SimpleNamespace(pipeline=SimpleNamespace(config=SimpleNamespace(train=train)))
    target = Target("y", "regression", max(len(quantiles), 1), quantiles=quantiles)
    assert quantile_of(features, target) == wanted
    trained = {name: {"kind": loss.kind, "tau": loss.tau} for name, loss in train.losses.items()}
    summary = {
        "targets": {"test": {"y": {"rmse": 3.0, "pinball": 2.0}}},
        "config": {"train": {"losses": trained}},
    }
    assert recorded(summary, target, "RMSE", wanted) == 3
    for tau in (wanted, 0.5):  # that of a run of another quantile would stand beside the constant of this one
        is_record = not quantiles and wanted is not None and tau == wanted  # of several it is the mean of all
        assert recorded(summary, target, "pinball loss", tau) == (2 if is_record else None)


@pytest.mark.parametrize("weight", [None, "w"])
def test_rows_of_weight_0_are_no_rows_of_the_window(weight):
    """Ten rows that counted and a thousand that did not were enough to promote."""
    frame = pd.DataFrame({"at": range(1010), "w": [1.0] * 10 + [0.0] * 1000})
    schema = SimpleNamespace(only={"time": "at", "weight": weight}.get, dtypes=lambda: {"at": "int64"})
    config = SimpleNamespace(nightly=SimpleNamespace(min_window_rows=100, time_unit="none"))
    features = SimpleNamespace(schema=schema, frame=lambda split: frame, pipeline=SimpleNamespace(config=config))
    if weight is None:
        assert len(window_rows(features, {"new model": 3})) == 1006
    else:
        with pytest.raises(DataError, match="only 6 labelled rows of a weight above 0 come after the model's"):
            window_rows(features, {"new model": 3})


def test_rows_of_weight_0_keep_their_places_in_groups_that_count():
    """Without them every rank was better than the report's and than the record's."""
    random = np.random.default_rng(0)
    group, label = np.repeat(np.arange(400), 10), np.tile([1.0] + [0.0] * 9, 400)
    score = random.normal(size=4000) + label
    weight = np.where((label == 0) & (random.random(4000) < 0.7), 0.0, 1.0)
    weight[group >= 300] = 0.0  # which count for nothing
    frame = pd.DataFrame({"at": range(4000), "w": weight, "g": group, "y": label, "s": score})
    schema = SimpleNamespace(only={"time": "at", "weight": "w", "group": "g"}.get, dtypes=lambda: {"at": "int64"})
    config = SimpleNamespace(nightly=SimpleNamespace(min_window_rows=100, time_unit="none"))
    features = SimpleNamespace(schema=schema, frame=lambda split: frame, pipeline=SimpleNamespace(config=config))
    rows = window_rows(features, {"new model": -1})
    assert len(rows) == 3000
    y, s, w, g = (torch.tensor(rows[name].to_numpy()) for name in "yswg")
    found = floor("mrr", s, window(y.float(), weight=w, group=g))
    ranks = [1 / (1 + (part["s"][1:] > part["s"].iloc[0]).sum()) for _, part in frame[group < 300].groupby("g")]
    shares = frame[group < 300].groupby("g")["w"].mean()
    assert found.candidate == pytest.approx(np.average(ranks, weights=shares))
    config.nightly.min_window_rows = int((weight > 0).sum()) + 1
    with pytest.raises(DataError, match=f"only {config.nightly.min_window_rows - 1:,} labelled rows of a weight"):
        window_rows(features, {"new model": -1})


def test_infinite_predictions_leave_the_gain_and_its_bound_finite():
    value, few = torch.linspace(-1, 1, 400), NightlySettings(num_bootstrap=50)
    overflowed = torch.where(torch.arange(400) % 4 == 0, math.inf, value)
    both, worse, better = (
        bootstrap("logloss", old, new, window(value, REGRESSION, 0.0), few, 1)
        for old, new in ((overflowed, overflowed), (value + 0.5, overflowed), (overflowed, value + 0.5))
    )
    assert (both.gain, both.bound, both.upper) == (0, 0, 0)
    for found in (worse, better):
        assert all(map(math.isfinite, (found.gain, found.bound, found.upper)))
    assert (worse.holds(0.1), better.holds(0)) == (False, True)
    for found in (both, worse):
        assert found.no_better_than_constant() is not None


@pytest.mark.parametrize("positives", [1, 2, 3])
def test_few_positives_leave_every_number_finite_and_let_the_better_model_win(positives):
    """P4: one resample without a positive made the bound NaN, and NaN is above nothing."""
    labels = (torch.arange(1000) < positives).float()
    good, bad = labels * 0.5 + 0.2, 0.7 - labels * 0.5
    found = bootstrap("auc", bad, good, window(labels), NightlySettings(num_bootstrap=200), 1)
    assert (found.current, found.candidate, found.gain) == (0, 1, 1)
    assert found.bound == 1  # whatever is drawn, the good one has every positive first
    json.dumps(vars(found), allow_nan=False)


def test_with_few_positives_the_bound_holds_as_often_as_it_says():
    """Two positives that are drawn from themselves vary too little: in one case of five the bound lay too high."""
    labels, held = (torch.arange(60) < 2).double(), 0
    for seed in range(100):
        noise = torch.tensor(np.random.default_rng(seed).normal(size=(3, 60)))
        models = [(labels + noise[0] + part).sigmoid() for part in noise[1:]]  # as good as one another
        held += bootstrap("auc", *models, window(labels), NightlySettings(num_bootstrap=50), seed).bound <= 0
    assert held >= 94


def test_the_resamples_of_auc_keep_the_number_of_positives_and_follow_the_weights():
    """Against resamples drawn here in the same way: pairs of a positive and a negative that are in order, by weight."""
    labels, worse, better = made_up(400, 1.0)
    weight = torch.linspace(0, 3, 400)
    found = bootstrap("auc", worse, better, window(labels, weight=weight), NightlySettings(num_bootstrap=1000), 1)
    scores = [sk.roc_auc_score(labels, part, sample_weight=weight) for part in (worse, better)]
    assert [found.current, found.candidate] == pytest.approx(scores, abs=1e-9)
    random, gains, masses = np.random.default_rng(1), [], weight.double().numpy()
    classes = [np.flatnonzero(labels.numpy() == label) for label in (0, 1)]
    models = [part.numpy() for part in (worse, better)]
    pairs = [np.sign(part[classes[1]][:, None] - part[classes[0]]) / 2 + 0.5 for part in models]
    for number in range(1000):
        rows = [random.choice(places, len(places)) for places in classes]
        counted = [np.bincount(own, masses[own], len(masses)) for own in rows]
        low, high = (mass[places] for mass, places in zip(counted, classes, strict=True))
        each = [high @ ordered @ low / (high.sum() * low.sum()) for ordered in pairs]
        gains.append(each[1] - each[0])
        if number < 5:
            rows = np.concatenate(rows)
            known = [sk.roc_auc_score(labels[rows], part[rows], sample_weight=masses[rows]) for part in models]
            assert each == pytest.approx(known, abs=1e-9)
    assert found.bound == pytest.approx(np.quantile(gains, 0.05), abs=0.15 * np.std(gains))


@pytest.mark.parametrize(
    ("metric", "target", "labels", "group"),
    [
        ("auc", BINARY, [0, 0, 0, 0], None),
        ("auc", BINARY, [1, 1, 1, 1], None),
        ("logloss", BINARY, [0, 0, 0, 0], None),
        ("logloss", CLASSES, [2, 2, 2, 2], None),
        ("logloss", REGRESSION, [7, 7, 7, 7], None),
        ("mrr", BINARY, [0, 0, 0, 0], [0, 0, 1, 1]),
    ],
)
def test_a_window_of_one_label_is_refused(metric, target, labels, group):
    """R8: a comparison of NaN was written down."""
    scores = torch.rand(4, 3).softmax(1) if target is CLASSES else torch.rand(4)
    given = window(torch.tensor(labels).float(), target, group=None if group is None else torch.tensor(group))
    with pytest.raises(DataError, match=r"target 'y': all 4 labels .* are the same"):
        bootstrap(metric, scores, scores, given, NightlySettings(), 1)


def test_the_task_is_the_schemas_and_not_what_the_labels_look_like():
    """P13: a regression whose window held 0 and 1 alone failed, for its predictions are no probabilities."""
    labels, few = torch.tensor([0.0, 1.0] * 50), NightlySettings(num_bootstrap=50)
    found = bootstrap("logloss", labels + 2, labels - 1, window(labels, REGRESSION), few, 1)
    assert (found.metric, found.current, found.candidate) == ("RMSE", pytest.approx(2), pytest.approx(1))


@settings(max_examples=examples(100), deadline=None)
@given(GROUPS)
def test_the_mrr_of_a_random_order_is_the_mean_over_all_orders(groups):
    means = []
    for labels in filter(any, groups):
        orders = list(permutations(labels))
        means.append(sum(1 / (1 + order.index(True)) for order in orders) / len(orders))
    labels = torch.tensor([label for labels in groups for label in labels]).float()
    numbers = torch.tensor([number for number, labels in enumerate(groups) for _ in labels])
    assert random_mrr(labels, numbers) == pytest.approx(sum(means) / len(means))


@pytest.mark.parametrize(
    ("metric", "candidate", "constant", "record", "obstacle"),
    [
        ("AUC", 0.299, 0.5, 0.78, "no better than a constant"),  # as in R4
        ("AUC", 0.5, 0.5, None, "no better than a constant"),
        ("AUC", 0.70, 0.5, 0.78, None),  # .40 of the way, and it was .56
        ("AUC", 0.67, 0.5, 0.78, "a fall by more than nightly.max_skill_drop, 0.2"),
        ("AUC", 0.51, 0.5, None, None),
        ("log loss", 0.70, 0.69, 0.5, "no better than a constant"),
        ("log loss", 0.60, 0.69, 0.5, None),
        ("RMSE", 9.0, 10.0, 5.0, "a fall by more than"),
    ],
)
def test_a_candidate_must_beat_a_constant_and_not_fall_far_below_the_current_models_own_test(
    metric, candidate, constant, record, obstacle
):
    current = 0.1 if metric == "AUC" else 100.0  # much worse tonight, so the gain is large
    found = Comparison(metric, 100, candidate, constant, current, gain=1.0, bound=0.5, record=record).obstacle(0.2)
    assert found is None if obstacle is None else obstacle in found


@pytest.mark.parametrize(
    ("metric", "candidate", "constant", "record", "then", "falls"),
    [
        ("log loss", 0.199, 0.2, 0.45, 0.69, True),  # a rarer label: nearly nothing was learned, and the loss is less
        ("log loss", 0.13, 0.2, 0.45, 0.69, False),
        ("RMSE", 12.0, 20.0, 3.0, 5.0, False),  # larger numbers: the same share of the way
        ("RMSE", 18.5, 20.5, 3.5, 5.5, True),
    ],
)
def test_a_record_counts_beside_the_constant_of_its_own_rows(metric, candidate, constant, record, then, falls):
    summary = {
        "targets": {"test": {"y": {"logloss": record, "rmse": record}}},
        "baselines": {
            "found": [
                {"name": name, "target": target, "differences": [{"metric": of, "baseline": value, "model": record}]}
                for name, target, of, value in (
                    ("boosted_trees", "y", "logloss", 0.01), ("constant", "z", "logloss", 0.02),
                    ("constant", "y", "auc", 0.5), ("constant", "y", KEYS[metric], then),
                )
            ]
        },
    }  # fmt: skip
    target = REGRESSION if metric == "RMSE" else BINARY
    told = {"record": recorded(summary, target, metric), "record_constant": recorded_constant(summary, target, metric)}
    assert told == {"record": record, "record_constant": then}
    for kept in (summary, {"measured": summary}):
        assert recorded_constant(kept, target, metric) == then
    assert recorded_constant({"baselines": None}, target, metric) is None
    text = Comparison(metric, 100, candidate, constant, current=100.0, gain=1.0, bound=0.5, **told).obstacle(0.2)
    assert (text is not None and "a fall by more than" in text) == falls
    if falls:  # both constants are named
        assert f"from a constant ({then} there, {constant} tonight) to perfection" in text


@pytest.mark.parametrize(("metric", "perfect"), [("RMSE", 0.0), ("log loss", 0.0), ("AUC", 1.0)])
def test_a_record_beside_a_perfect_constant_counts_beside_that_of_the_window(metric, perfect):
    """All labels of the first test split were alike."""
    found = {"name": "constant", "target": "y", "differences": [{"metric": KEYS[metric], "baseline": perfect}]}
    target = REGRESSION if metric == "RMSE" else BINARY
    told = recorded_constant({"baselines": {"found": [found]}}, target, metric)
    assert told is None
    values = {"candidate": 0.6, "constant": 0.5} if metric == "AUC" else {"candidate": 1.0, "constant": 2.0}
    compared = Comparison(metric, 100, **values, current=1.5, gain=0.5, bound=0.4, record=perfect, record_constant=told)
    assert "a fall by more than" in compared.obstacle(0.2)


def test_the_constant_is_the_train_splits_mean_under_the_same_metric():
    labels = torch.tensor([0.0, 0.0, 0.0, 1.0])
    found = bootstrap("logloss", labels * 0.5 + 0.2, labels * 0.5 + 0.2, window(labels, mean=0.4), NightlySettings(), 1)
    assert found.constant == pytest.approx(sk.log_loss(labels, [0.4] * 4))
    assert bootstrap("auc", labels, labels, window(labels, mean=0.4), NightlySettings(), 1).constant == 0.5
    found = bootstrap("logloss", labels, labels, window(labels, REGRESSION, 0.4), NightlySettings(), 1)
    assert found.constant == pytest.approx(math.sqrt(np.mean((labels.numpy() - 0.4) ** 2)))


@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
def test_the_train_splits_mean_follows_the_weights(tmp_path, task):
    """Negatives that were sampled down 20 times count 20 times: without that a constant looks far too poor."""
    random = np.random.default_rng(2)
    labels, weights = random.integers(0, 2, 600), random.uniform(0, 5, 600)
    kind = "int32" if task == "multiclass" else "float32"
    frame = pd.DataFrame({"y": labels.astype(kind), "w": weights.astype("float32")})
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for number, path in enumerate(paths):
        frame.iloc[200 * number : 200 * (number + 1)].to_parquet(path)
    target = Target("y", task, 2 if task == "multiclass" else 1)
    for weight in (None, "w"):
        schema = SimpleNamespace(targets=(target,), only={"weight": weight}.get)
        train = SimpleNamespace(negatives=None, losses={})
        pipeline = SimpleNamespace(engine="pandas", config=SimpleNamespace(train=train))
        found = train_mean(SimpleNamespace(schema=schema, pipeline=pipeline, parts=lambda split: paths))
        wanted = np.average(labels, weights=None if weight is None else frame["w"].astype("float64"))
        assert found.tolist() == pytest.approx([1 - wanted, wanted] if task == "multiclass" else wanted)


@pytest.mark.parametrize("tau", [0.05, 0.5, 0.95])
def test_the_constant_of_a_quantile_loss_is_that_quantile(tmp_path, tau):
    """The mean is nearer to the labels than any right answer of a high quantile, so no such model was promoted."""
    price = np.random.default_rng(4).lognormal(size=2000).astype("float32")
    weights = np.random.default_rng(5).integers(0, 4, 2000).astype("float32")
    path = tmp_path / "0.parquet"
    pd.DataFrame({"y": price, "w": weights}).to_parquet(path)
    train = SimpleNamespace(negatives=None, losses={"y": SimpleNamespace(kind="quantile", tau=tau)})
    pipeline = SimpleNamespace(engine="pandas", config=SimpleNamespace(train=train))
    for weight, repeated in ((None, price), ("w", np.repeat(price, weights.astype(int)))):
        schema = SimpleNamespace(targets=(REGRESSION,), only={"weight": weight}.get)
        found = train_mean(SimpleNamespace(schema=schema, pipeline=pipeline, parts=lambda split: [path]))
        assert float(found) == pytest.approx(np.quantile(repeated, tau, method="inverted_cdf"))


def test_promotion_by_mrr_follows_the_weights_of_the_rows():
    """The candidate is better in the groups that count and far worse in those that do not."""
    random = torch.Generator().manual_seed(3)
    groups, counts = torch.arange(2000) // 4, (torch.arange(2000) // 4) % 2 == 0
    labels = (torch.arange(2000) % 4 == 0).float()
    old, noise = torch.rand(2, 2000, generator=random)
    new = torch.where(counts, old + 0.2 * labels, noise - 2 * labels)
    settings = NightlySettings(num_bootstrap=200)
    whole = bootstrap("mrr", old, new, window(labels, group=groups), settings, 1)
    found = bootstrap("mrr", old, new, window(labels, group=groups, weight=counts * 2.0), settings, 1)
    assert whole.gain < 0 < found.bound
    kept = [column[counts] for column in (old, new, labels, groups)]
    expected = bootstrap("mrr", kept[0], kept[1], window(kept[2], group=kept[3]), settings, 1)
    assert (found.gain, found.constant) == pytest.approx((expected.gain, expected.constant))
    means = [np.mean(slow_reciprocal_ranks(s.tolist(), kept[2].tolist(), kept[3].tolist())) for s in kept[:2]]
    assert (found.current, found.candidate) == pytest.approx(means)


def test_groups_that_have_no_negative_beside_a_positive_are_refused():
    """Any order of them is perfect; the way from there to perfection was a division by zero."""
    labels, group = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1, 2])
    with pytest.raises(DataError, match=r"target 'y': every group .* has positives alone, or none"):
        bootstrap("mrr", torch.rand(5), torch.rand(5), window(labels, group=group), NightlySettings(), 1)


@pytest.mark.parametrize(("lists", "lost"), [(("tags", "seen"), None), (("seen",), "'tags', 'w'")])
def test_a_model_that_reads_a_list_that_is_gone_cannot_be_judged(lists, lost):
    known = {"tags": ListColumn("tags", weights="w"), "seen": ListColumn("seen")}
    then, now = (
        Schema((Column("y", "target", "float32"),), (BINARY,), (), tuple(known[name] for name in names))
        for names in (("tags", "seen"), lists)
    )
    config = SimpleNamespace(train=SimpleNamespace(negatives=None))
    features = SimpleNamespace(schema=now, pipeline=SimpleNamespace(config=config))
    found = cannot_be_judged(SimpleNamespace(schema=then, info={"trained_until": "2026-01-07"}), features)
    assert found == (None if lost is None else f"reads column(s) {lost}, which today's features do not have")
