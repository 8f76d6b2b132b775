"""Shuffle quality: Pearson's statistic as scipy computes it, and orders of known kinds told apart by it."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.order.order import SampleOrder
from gigabatch.loaders.order.quality import block_mixing, shuffle_quality
from tests.examples import examples


def freedom(num_rows: int, block_rows: int, batch_size: int) -> int:
    return (-(-num_rows // block_rows) - 1) * (-(-num_rows // batch_size) - 1)


@given(
    num_rows=st.integers(20, 300), block_rows=st.integers(1, 19), batch_size=st.integers(1, 19), seed=st.integers(0, 99)
)
@settings(max_examples=examples(100))
def test_block_mixing_is_what_scipys_contingency_table_says(num_rows, block_rows, batch_size, seed):
    rows = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed))
    counts = torch.zeros(-(-num_rows // block_rows), -(-num_rows // batch_size))
    for position, row in enumerate(rows.tolist()):
        counts[row // block_rows, position // batch_size] += 1
    statistic = stats.chi2_contingency(counts.numpy(), correction=False).statistic
    assume(statistic > 1e-6)  # of perfectly even counts only rounding is left
    expected = freedom(num_rows, block_rows, batch_size) * num_rows / (num_rows - 1) / statistic
    rounding = 1e-9 + 1e-11 / statistic  # ours is a difference of numbers as large as num_rows
    assert block_mixing(rows, block_rows, batch_size) == pytest.approx(expected, rel=rounding)


def test_the_expected_statistic_is_the_mean_over_permutations():
    generator = torch.Generator().manual_seed(0)
    inverse = [1 / block_mixing(torch.randperm(40, generator=generator), 3, 7) for _ in range(4000)]
    mean, spread = torch.tensor(inverse).double().mean().item(), torch.tensor(inverse).double().std().item()
    assert abs(mean - 1) < 4 * spread / math.sqrt(4000)


@pytest.mark.parametrize(("num_rows", "batch_size"), [(4097, 64), (50_000, 512)])
def test_quality_is_near_one_for_our_order_and_for_randperm(num_rows, batch_size):
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        randperm = torch.randperm(num_rows, generator=generator)
        assert 0.9 < shuffle_quality(SampleOrder(num_rows, seed, 0), num_rows, batch_size) < 1.1
        assert 0.9 < shuffle_quality(lambda positions, rows=randperm: rows[positions], num_rows, batch_size) < 1.1


def test_quality_of_the_order_of_storage_follows_from_its_counts():
    """A block of r rows lies in one batch of b = 16 r': then X^2 = N (M - 1) or, for blocks of k batches, N (K - 1)."""
    num_rows, batch_size = 1 << 16, 1 << 8
    num_batches = num_rows // batch_size
    logs = []
    for block_rows in (2, 16, 128, 1024, 8192):
        num_blocks = num_rows // block_rows
        statistic = num_rows * (min(num_blocks, num_batches) - 1)
        logs.append(math.log((num_blocks - 1) * (num_batches - 1) * num_rows / (num_rows - 1) / statistic))
    expected = math.exp(sum(logs) / len(logs))
    assert shuffle_quality(lambda positions: positions, num_rows, batch_size) == pytest.approx(expected, rel=1e-9)
    assert expected < 0.05


@pytest.mark.parametrize(("num_rows", "batch_size"), [(10, 2), (5000, 5000), (1, 1)])
def test_too_few_rows_to_tell_is_an_error(num_rows, batch_size):
    with pytest.raises(LoaderError, match="too few to tell"):
        shuffle_quality(lambda positions: positions, num_rows, batch_size)


def test_rows_spread_as_evenly_as_can_be_are_infinitely_well_mixed():
    assert block_mixing(torch.tensor([0, 2, 1, 3]), block_rows=2, batch_size=2) == math.inf
