"""How negatives are distributed, by chi-square tests; that they are the right ones is in test_negatives.py."""

import itertools
import math
from collections import Counter

import pytest
import torch
from scipy import stats

from gigabatch.loaders.negatives.draws import KnownPositives, PopularityNegatives, UniformNegatives


def known_of(positives: list[set[int]]) -> KnownPositives:
    pairs = torch.tensor([(user, item) for user, items in enumerate(positives) for item in items])
    return KnownPositives.from_pairs(*pairs.T, len(positives))


def chi_square_p_value(drawn: torch.Tensor, expected: dict[int, float]) -> float:
    counts = Counter(drawn.flatten().tolist())
    assert set(counts) <= set(expected)
    scaled = [share * drawn.numel() for share in expected.values()]
    return float(stats.chisquare([counts[item] for item in expected], scaled).pvalue)


def test_uniform_draws_pass_a_chi_square_test():
    known = known_of([{4, 5, 9}, {3}])
    sampler = UniformNegatives(range(3, 20), 4, known)
    drawn = sampler(torch.arange(5000), torch.zeros(5000, dtype=torch.int32)).ids
    allowed = set(range(3, 20)) - {4, 5, 9}
    assert chi_square_p_value(drawn, dict.fromkeys(allowed, 1 / len(allowed))) > 1e-3


def test_popularity_draws_pass_a_chi_square_test():
    counts = torch.tensor([900, 900, 900, 50, 7, 0, 400, 1, 30, 12])
    sampler = PopularityNegatives(range(3, 10), 4, counts, 0.75, known_of([{6, 9}]))
    negatives = sampler(torch.arange(10_000), torch.zeros(10_000, dtype=torch.int32))
    weights = {item: counts[item].item() ** 0.75 for item in (3, 4, 7, 8)}
    shares = {item: weight / sum(weights.values()) for item, weight in weights.items()}
    assert chi_square_p_value(negatives.ids, shares) > 1e-3
    expected = [math.log(shares[item]) for item in negatives.ids[:50].flatten().tolist()]
    assert negatives.log_q[:50].flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_draws_of_a_row_and_of_neighbouring_rows_are_independent():
    drawn = UniformNegatives(range(8), 3, seed=1)(torch.arange(20_000)).ids
    in_next_epoch = UniformNegatives(range(8), 3, seed=1)
    in_next_epoch.set_epoch(1)
    in_next_epoch = in_next_epoch(torch.arange(20_000)).ids
    next_seed = UniformNegatives(range(8), 3, seed=2)(torch.arange(20_000)).ids
    pairs = {
        "draws of a row": (drawn[:, 0], drawn[:, 1]),
        "rows": (drawn[:-1, 0], drawn[1:, 0]),
        "a row's draw and the next row's earlier one": (drawn[:-1, 1], drawn[1:, 0]),
        "epochs": (drawn[:, 0], in_next_epoch[:, 0]),
        "seeds": (drawn[:, 0], next_seed[:, 0]),
    }
    for name, (first, second) in pairs.items():
        table = torch.bincount(first.long() * 8 + second, minlength=64).reshape(8, 8)
        assert stats.chi2_contingency(table.numpy()).pvalue > 1e-3, name


def test_without_replacement_all_sets_are_equally_likely():
    known = known_of([{5}])
    drawn = UniformNegatives(range(3, 10), 3, known, replacement=False)(
        torch.arange(6000), torch.zeros(6000, dtype=torch.int32)
    ).ids
    counts = Counter(tuple(sorted(row)) for row in drawn.tolist())
    assert set(counts) == set(itertools.combinations([3, 4, 6, 7, 8, 9], 3))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3
