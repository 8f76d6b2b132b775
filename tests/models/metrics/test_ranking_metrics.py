"""Ranking metrics against scikit-learn, and against all orders of tied rows, written out."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.models.errors import ModelError
from gigabatch.models.metrics.ranking import (
    PositiveRanks,
    RankedGroups,
    gauc,
    grouped_mrr,
    log_chance_of_absence,
    normalised_entropy,
)
from tests.examples import examples

QUICK = settings(max_examples=examples(40))
AT_K = ("hit_rate", "recall", "precision", "ndcg")


@st.composite
def grouped_rows(draw, levels=(2, 4, 10_000), most_in_group=6):
    """Scores float32 with ties, labels, groups whose numbers have gaps and whose rows lie anywhere."""
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    sizes = draw(st.lists(st.integers(1, most_in_group), min_size=1, max_size=5))
    groups = random.permutation(np.repeat(random.permutation(20)[: len(sizes)] - 5, sizes))
    scores = random.integers(0, draw(st.sampled_from(levels)), len(groups))
    labels = random.random(len(groups)) < draw(st.sampled_from([0.2, 0.5, 0.9]))
    return torch.tensor(scores, dtype=torch.float32), torch.tensor(labels), torch.tensor(groups)


def at_k(name: str, scores, labels, groups, k) -> torch.Tensor:
    """Mean over the groups that have a positive."""
    return getattr(RankedGroups(scores, labels, groups), name)(k).nanmean()


def slow_at_k(name: str, labels: list[bool], k: int) -> float:
    """A metric of rows in their order."""
    top, positives = labels[:k], sum(labels)
    best = sum(1 / math.log2(1 + rank) for rank in range(1, min(k, positives) + 1))
    gain = sum(1 / math.log2(1 + rank) for rank, label in enumerate(top, 1) if label)
    values = {"hit_rate": any(top), "recall": sum(top) / positives, "precision": sum(top) / k, "ndcg": gain / best}
    return float(values[name])


def over_tie_orders(scores: list[float], values: list, function: Callable[[list], float]) -> float:
    """Mean of `function` over all orders of the rows in which no lower score comes first."""
    found = [
        function([values[place] for place in order])
        for order in itertools.permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
    ]
    return float(np.mean(found))


def by_group(scores, labels, groups):
    """(scores, labels) of each group as lists, by ascending number."""
    for group in sorted(set(groups.tolist())):
        yield scores[groups == group].tolist(), labels[groups == group].tolist()


@pytest.mark.parametrize("name", AT_K)
@QUICK
@given(rows=grouped_rows(), k=st.integers(1, 8))
def test_metrics_of_the_first_k_are_means_over_all_orders_of_tied_rows(name, rows, k):
    expected = [
        over_tie_orders(scores, labels, lambda ordered: slow_at_k(name, ordered, k))
        for scores, labels in by_group(*rows)
        if any(labels)
    ]
    found = at_k(name, *rows, k)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(np.mean(expected) if expected else math.nan, abs=1e-12, nan_ok=True)


@QUICK
@given(rows=grouped_rows(most_in_group=40), k=st.integers(1, 50))
def test_ndcg_is_scikit_learns(rows, k):
    expected = [
        sklearn.metrics.ndcg_score([labels], [scores], k=k)
        for scores, labels in by_group(*rows)
        if any(labels) and len(labels) > 1
    ]
    alone = [1.0 for _, labels in by_group(*rows) if labels == [True]]  # scikit-learn refuses a single row
    found = at_k("ndcg", *rows, k).item()
    assert found == pytest.approx(np.mean(expected + alone) if expected + alone else math.nan, abs=1e-9, nan_ok=True)


@QUICK
@given(rows=grouped_rows(most_in_group=30))
def test_gauc_is_the_weighted_mean_of_scikit_learns_auc(rows):
    aucs, weights, left_out = [], [], 0
    for scores, labels in by_group(*rows):
        if 0 < sum(labels) < len(labels):
            aucs.append(sklearn.metrics.roc_auc_score(labels, scores))
            weights.append(len(labels))
        else:
            left_out += len(labels)
    found = gauc(*rows)
    assert found.auc.item() == pytest.approx(
        np.average(aucs, weights=weights) if aucs else math.nan, abs=1e-12, nan_ok=True
    )
    assert found.left_out.item() == pytest.approx(left_out / len(rows[0]), abs=1e-12)


@pytest.mark.parametrize("factor", [1e9, 1e12, 1e18])
def test_a_group_of_small_weights_keeps_its_auc_behind_heavy_ones(factor):
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 50)
    scores, labels = random.integers(0, 20, 2000).astype(np.float32), random.random(2000) < 0.4
    weight = random.random(2000) * np.where(groups % 2, 1.0, factor)
    weight[random.random(2000) < 0.1] *= 1e-6  # also among the rows of one group
    expected = [
        sklearn.metrics.roc_auc_score(labels[own], scores[own], sample_weight=weight[own] / weight[own].max())
        for own in (groups == group for group in range(40))
    ]
    ranked = RankedGroups(*(torch.tensor(column) for column in (scores, labels, groups, weight)))
    np.testing.assert_allclose(ranked.auc(), expected, atol=1e-12)


@QUICK
@given(rows=grouped_rows(most_in_group=12), seed=st.integers(0, 2**31))
def test_weighted_gauc_is_that_of_rows_that_come_as_often_and_weighted_mrr_a_mean_of_groups(rows, seed):
    groups = rows[2]
    times = torch.tensor(np.random.default_rng(seed).integers(0, 4, len(groups)))
    if times.sum() == 0:
        times[0] = 1
    found = gauc(*rows, weight=times * 0.5)
    expected = gauc(*(column.repeat_interleave(times) for column in rows))
    np.testing.assert_allclose([found.auc, found.left_out], [expected.auc, expected.left_out], atol=1e-12)
    ranks = {int(g): grouped_mrr(*(column[groups == g] for column in rows)).item() for g in groups.unique()}
    shares = {g: times[groups == g].double().mean().item() for g in ranks if not math.isnan(ranks[g])}
    total = sum(shares.values())
    expected = sum(ranks[g] * share for g, share in shares.items()) / total if total else math.nan
    assert grouped_mrr(*rows, weight=times).item() == pytest.approx(expected, nan_ok=True)


@QUICK
@given(seed=st.integers(0, 2**31), levels=st.sampled_from([2, 3, 1000]), k=st.integers(1, 7))
def test_coverage_is_its_mean_over_all_orders_of_tied_items(seed, levels, k):
    """Queries are independent, so all combinations of orders, one of each, are equally likely. Items with a score of
    minus infinity are no candidates, even where fewer than k are left."""
    random = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (5, 6), generator=random).float()
    scores[torch.rand(5, 6, generator=random) < 0.3] = -torch.inf
    scores[:, 0] = 1  # each query has a candidate
    absence = np.ones(6)
    for query in scores:
        items = query.isfinite().nonzero()[:, 0].tolist()
        for item in items:
            found = over_tie_orders(query[items].tolist(), items, lambda top, item=item: item in top[:k])
            absence[item] *= 1 - found
    halves = log_chance_of_absence(scores[:2], k) + log_chance_of_absence(scores[2:], k)
    np.testing.assert_allclose(halves.exp().numpy(), absence, atol=1e-12)


def test_hits_of_long_runs_are_hypergeometric():
    """1,000 tied rows with 30 positives: that none is among 50 has the chance prod (970 - i) / (1000 - i)."""
    scores, groups = torch.zeros(1000), torch.zeros(1000, dtype=torch.int32)
    labels = torch.arange(1000) < 30
    none = math.prod((970 - i) / (1000 - i) for i in range(50))
    assert at_k("hit_rate", scores, labels, groups, 50).item() == pytest.approx(1 - none, rel=1e-9)


@QUICK
@given(seed=st.integers(0, 2**31), others=st.integers(0, 8), levels=st.sampled_from([2, 4, 1000]), k=st.integers(1, 10))
def test_a_positive_in_front_of_candidates_ranks_as_in_a_group(seed, others, levels, k):
    random = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (6, 1 + others), generator=random).float()
    labels = torch.zeros(6, 1 + others)
    labels[:, 0] = 1
    rows = (scores.flatten(), labels.flatten(), torch.arange(6).repeat_interleave(1 + others))
    ranks = PositiveRanks.of(scores)
    assert ranks.hit_rate(k).mean().item() == pytest.approx(at_k("hit_rate", *rows, k).item(), abs=1e-12)
    assert ranks.ndcg(k).mean().item() == pytest.approx(at_k("ndcg", *rows, k).item(), abs=1e-12)
    assert ranks.reciprocal_rank().mean().item() == pytest.approx(grouped_mrr(*rows).item(), abs=1e-12)
    halves = PositiveRanks.concat([PositiveRanks.of(scores[:2]), PositiveRanks.of(scores[2:])])
    assert torch.equal(halves.better, ranks.better)
    assert torch.equal(halves.tied, ranks.tied)


@pytest.mark.parametrize("weighted", [False, True])
def test_normalised_entropy_is_log_loss_over_that_of_the_base_rate(weighted):
    random = np.random.default_rng(3)
    labels, p = random.random(400) < 0.15, random.random(400).astype(np.float32)
    weight = random.random(400) if weighted else None
    rate = np.average(labels, weights=weight)
    base = sklearn.metrics.log_loss(labels, np.full(400, rate), sample_weight=weight)
    expected = sklearn.metrics.log_loss(labels, p, sample_weight=weight) / base
    found = normalised_entropy(torch.tensor(p), torch.tensor(labels), None if weight is None else torch.tensor(weight))
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_normalised_entropy_of_the_base_rate_is_one_and_of_one_class_nan():
    labels = torch.tensor([1.0, 0, 0, 0])
    assert normalised_entropy(torch.full((4,), 0.25), labels).item() == pytest.approx(1)
    assert normalised_entropy(torch.full((4,), 0.25), torch.zeros(4)).isnan()
    assert normalised_entropy(torch.full((4,), 0.25), torch.ones(4)).isnan()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k must be a whole number from 1, not 0"),
        ({"k": 2.0}, "k must be a whole number from 1, not 2.0"),
        ({"scores": torch.tensor([1.0, math.nan])}, "1 of 2 predictions are NaN"),
        ({"labels": torch.tensor([1, 2])}, "labels must be 0 or 1"),
        ({"labels": torch.tensor([1])}, r"must be \[n\] and labels \[n\], found \[2\] and \[1\]"),
        ({"groups": torch.tensor([0.0, 1.0])}, "groups must be integers"),
        ({"scores": torch.zeros(0), "labels": torch.zeros(0), "groups": torch.zeros(0, dtype=torch.int32)}, "no rows"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    given = {"scores": torch.zeros(2), "labels": torch.tensor([0, 1]), "groups": torch.tensor([0, 0]), "k": 1}
    with pytest.raises(ModelError, match=message):
        at_k("ndcg", **given | change)


def test_what_coverage_and_ranks_refuse():
    with pytest.raises(ModelError, match="k must be"):
        log_chance_of_absence(torch.zeros(1, 3), 0)
    with pytest.raises(ModelError, match="2 of the scores are NaN"):
        PositiveRanks.of(torch.full((1, 2), math.nan))
    with pytest.raises(ModelError, match=r"found \[3\]"):
        PositiveRanks.of(torch.zeros(3))
