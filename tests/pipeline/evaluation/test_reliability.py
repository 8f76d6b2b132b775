"""Calibration with intervals: Wilson's by hand, bins that are joined, weights."""

import numpy as np
import pytest
import torch
from scipy.special import expit
from scipy.stats import binomtest

from gigabatch.pipeline.evaluation.reliability import FEWEST_ROWS, calibration_with_intervals, wilson_interval


@pytest.mark.parametrize(("hits", "rows"), [(0, 10), (3, 10), (10, 10), (450, 1000), (1, 1)])
def test_intervals_are_those_of_scipy(hits, rows):
    low, high = wilson_interval(np.array([hits / rows]), np.array([float(rows)]))
    expected = binomtest(hits, rows).proportion_ci(0.95, method="wilson")
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_a_near_empty_bin_is_joined_with_its_neighbour_and_shoots_to_nothing():
    scores = torch.cat([torch.full((500,), 0.1), torch.full((60,), 0.55), torch.full((2,), 0.95)])
    hits = torch.cat([torch.zeros(450), torch.ones(50), torch.zeros(30), torch.ones(30), torch.ones(2)])
    found = calibration_with_intervals(scores, hits, 10)
    assert found.count.tolist() == [500, 62]
    assert found.observed.tolist() == pytest.approx([0.1, 32 / 62])
    assert found.predicted.tolist() == pytest.approx([0.1, (60 * 0.55 + 2 * 0.95) / 62])
    assert np.all((found.low < found.observed) & (found.observed < found.high))


def test_bins_are_those_of_the_calibration_error_where_all_have_rows():
    random = np.random.default_rng(0)
    scores = random.random(5000)
    hits = random.random(5000) < scores
    found = calibration_with_intervals(torch.as_tensor(scores), torch.as_tensor(hits), 15)
    edges = np.linspace(0, 1, 16)
    for place in range(15):
        own = (scores > edges[place]) & (scores <= edges[place + 1])
        assert found.count[place] == own.sum() > FEWEST_ROWS
        assert found.observed[place] == pytest.approx(hits[own].mean())


def test_a_rare_label_has_bins_of_equally_many_rows():
    """All of its scores lie in the first of fifteen bins of equal width, so that the chart was one dot."""
    random = np.random.default_rng(1)
    scores = np.sort(random.beta(2, 98, 3000))
    hits = random.random(3000) < scores
    assert scores.max() < 0.14
    found = calibration_with_intervals(torch.as_tensor(scores), torch.as_tensor(hits), 15)
    assert found.count.tolist() == [200] * 15
    for place in range(15):
        own = slice(200 * place, 200 * place + 200)
        assert found.predicted[place] == pytest.approx(scores[own].mean())
        assert found.observed[place] == pytest.approx(hits[own].mean())


def test_equal_scores_stay_in_one_bin():
    scores = torch.cat([torch.full((400,), 0.01), torch.linspace(0.02, 0.06, 600)])
    found = calibration_with_intervals(scores, torch.zeros(1000), 10)
    assert found.count.tolist() == pytest.approx([400] + [100] * 6, abs=1)  # a tenth is none in binary
    assert float(found.predicted[0]) == pytest.approx(0.01)


def test_weights_count_as_rows_and_widen_what_few_of_them_carry():
    scores, hits = torch.full((200,), 0.5), torch.tensor([0.0, 1.0] * 100)
    even = calibration_with_intervals(scores, hits, 5, torch.full((200,), 7.0))
    plain = calibration_with_intervals(scores, hits, 5)
    assert (even.low[0], even.high[0]) == pytest.approx((plain.low[0], plain.high[0]))
    weight = torch.ones(200)
    weight[:2] = 100.0
    uneven = calibration_with_intervals(scores, hits, 5, weight)
    assert uneven.high[0] - uneven.low[0] > 3 * (plain.high[0] - plain.low[0])


def test_few_rows_are_one_bin_and_none_are_none():
    few = calibration_with_intervals(torch.tensor([0.1, 0.9]), torch.tensor([0.0, 1.0]), 15)
    assert few.count.tolist() == [2]
    unweighed = calibration_with_intervals(torch.tensor([0.1]), torch.tensor([0.0]), 15, torch.zeros(1))
    assert len(unweighed.count) == 0


def grouped(seed, groups, rows, spread, base):
    """Scores that are the chance of a hit, hits of which those of a group are alike, and groups."""
    random = np.random.default_rng(seed)
    group = np.arange(groups).repeat(rows)
    known = base + random.normal(size=groups)[group] + 0.7 * random.normal(size=len(group))
    nodes, mass = np.polynomial.hermite_e.hermegauss(21)
    scores = (expit(known[:, None] + spread * nodes) * mass).sum(1) / mass.sum()
    hits = random.random(len(group)) < expit(known + spread * random.normal(size=groups)[group])
    return torch.as_tensor(scores), torch.as_tensor(hits), torch.as_tensor(group)


@pytest.mark.parametrize(
    ("groups", "rows", "spread", "base", "weighted"),
    [(100, 30, 1, -3, False), (20, 50, 1, -1, False), (300, 10, 2, -5, True), (300, 10, 0, -2, False)],
)
def test_with_groups_the_bars_hold_as_often_as_they_say(groups, rows, spread, base, weighted):
    """As independent rows 80 to 94 % of them held."""
    held, bars = 0, 0
    for seed in range(60):
        scores, hits, group = grouped(seed, groups, rows, spread, base)
        weight = torch.as_tensor(np.random.default_rng(seed).exponential(size=len(hits))) if weighted else None
        found = calibration_with_intervals(scores, hits, 15, weight, group=group)
        inside = (found.low <= found.predicted) & (found.predicted <= found.high)
        held, bars = held + int(inside.sum()), bars + len(inside)
    assert 0.92 <= held / bars <= 0.99


def test_rows_that_are_there_several_times_are_one_where_a_group_says_so():
    random = np.random.default_rng(3)
    scores = torch.as_tensor(random.random(900))
    hits, group = torch.as_tensor(random.random(900)) < scores, torch.arange(900)
    once = calibration_with_intervals(scores, hits, 5)
    many = [part.repeat_interleave(4) for part in (scores, hits)]
    four = calibration_with_intervals(*many, 5, group=group.repeat_interleave(4))
    assert four.low == pytest.approx(once.low, abs=2e-3)
    assert four.high == pytest.approx(once.high, abs=2e-3)
    alone = calibration_with_intervals(*many, 5)
    assert np.all(alone.high - alone.low < 0.6 * (once.high - once.low))


def test_what_few_groups_or_hits_that_are_all_alike_tell_is_little():
    scores, none = torch.full((400,), 0.01), torch.zeros(400)
    ten = calibration_with_intervals(scores, none, 5, group=torch.arange(10).repeat_interleave(40))
    low, high = wilson_interval(np.array([0.0]), np.array([10.0]), units=np.array([10.0]))
    assert (ten.low[0], ten.high[0]) == pytest.approx((low[0], high[0]))
    one = calibration_with_intervals(scores, torch.tensor([0.0, 1.0] * 200), 5, group=torch.zeros(400))
    assert one.high[0] - one.low[0] > 0.9
    # Beside bins whose hits tell how alike rows of a group are, theirs is taken: here as independent ones.
    random = np.random.default_rng(4)
    scores = torch.cat([scores, torch.full((400,), 0.5)])
    hits = torch.cat([none, torch.as_tensor(random.random(400) < 0.5).float()])
    both = calibration_with_intervals(scores, hits, 5, group=torch.arange(80).repeat_interleave(10))
    assert both.high[0] < 0.03
