"""Sample order: a bijection, a pure function, and as uniform as torch.randperm by the same tests."""

import math
from collections import Counter
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gigabatch.loaders.order.order as order_module
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.order.order import MAX_ROWS, SORTED_ROWS, SampleOrder, nearly_square_sides, splitmix64
from tests.devices import no_waiting
from tests.examples import examples

MASK = (1 << 64) - 1


def whole_epoch(num_rows: int, seed: int = 0, epoch: int = 0) -> torch.Tensor:
    return SampleOrder(num_rows, seed, epoch)(torch.arange(num_rows))


def network_for_any_size():
    """The Feistel network even for the few rows that are sorted otherwise."""
    return mock.patch.object(order_module, "SORTED_ROWS", 1)


# The order written again in Python's exact integers, one row at a time, walking cycles as the paper does.


def mix64(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def signed(value: int, bits: int) -> int:
    value %= 1 << bits
    return value - (1 << bits) if value >= 1 << (bits - 1) else value


def network_in_python(value: int, a: int, b: int, start: int) -> int:
    left, right = divmod(value, b)
    for number in range(8):
        key = mix64((start + (number + 1) * 0x9E3779B97F4A7C15) & MASK)
        hashed = signed((right + (key >> 32)) * 0x85EBCA6B, 32)
        hashed = signed((hashed ^ (hashed >> 16)) * (key | 1), 32) >> 4
        left, right, a, b = right, (left + hashed) % a, b, a
    return left * b + right


def row_in_python(position: int, num_rows: int, seed: int, epoch: int) -> int:
    start = mix64((mix64((seed + 0x9E3779B97F4A7C15) & MASK) + epoch) * 0x9E3779B97F4A7C15 & MASK)
    if num_rows <= SORTED_ROWS:
        keys = [signed(mix64((start + row * 0x9E3779B97F4A7C15) & MASK), 64) for row in range(num_rows)]
        return sorted(range(num_rows), key=keys.__getitem__)[position]
    row = network_in_python(position, *nearly_square_sides(num_rows), start)
    while row >= num_rows:
        row = network_in_python(row, *nearly_square_sides(num_rows), start)
    return row


def test_splitmix64_gives_its_published_numbers():
    """First outputs for seed 1234567, as on Rosetta Code and in Vigna's C version."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    states = torch.tensor([signed(1234567 + i * 0x9E3779B97F4A7C15, 64) for i in range(1, 5)])
    assert [value & MASK for value in splitmix64(states).tolist()] == published


@given(num_rows=st.integers(1, 20_000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**40))
@example(num_rows=1, seed=0, epoch=0)
@example(num_rows=SORTED_ROWS, seed=0, epoch=0)
@example(num_rows=SORTED_ROWS + 1, seed=0, epoch=0)
@settings(max_examples=examples(150))
def test_every_row_stands_at_exactly_one_position(num_rows, seed, epoch):
    rows = whole_epoch(num_rows, seed, epoch)
    assert rows.dtype == torch.int64
    assert torch.equal(rows.sort().values, torch.arange(num_rows))


@given(num_rows=st.integers(2, 700), seed=st.integers(0, 2**32))
@settings(max_examples=examples(200))
def test_the_network_alone_is_a_bijection_at_any_size(num_rows, seed):
    """Small sizes have many values outside, among them walks that never come back, which must not hang."""
    with network_for_any_size():
        assert torch.equal(whole_epoch(num_rows, seed).sort().values, torch.arange(num_rows))


@pytest.mark.parametrize("num_rows", [1, 2, 100, SORTED_ROWS, 4099, 1_000_003, 2**31 + 11, MAX_ROWS])
def test_rows_are_those_of_a_slow_cycle_walk(num_rows):
    positions = torch.randint(0, num_rows, (300,), generator=torch.Generator().manual_seed(0))
    expected = [row_in_python(position, num_rows, seed=5, epoch=2) for position in positions.tolist()]
    assert SampleOrder(num_rows, 5, 2)(positions).tolist() == expected


def test_positions_that_lead_outside_walk_back_in():
    """13 values are outside; nearly all are reached from a row, some through another outside value."""
    num_rows, num_outside = 21_547, 13
    assert math.prod(nearly_square_sides(num_rows)) - num_rows == num_outside
    walked = 0
    for seed in range(20):
        order = SampleOrder(num_rows, seed, 0)
        rows = order._network(torch.arange(num_rows))
        for position in (rows >= num_rows).nonzero().flatten().tolist():
            walked += 1
            assert order(torch.tensor([position])).item() == row_in_python(position, num_rows, seed, 0)
    assert 0.98 * 20 * num_outside < walked <= 20 * num_outside


def test_long_walks_outside_end_in_a_row():
    """With sides chosen badly most values are outside, so walks are long and some go round outside for ever."""
    with network_for_any_size(), mock.patch.object(order_module, "nearly_square_sides", return_value=(25, 20)):
        for seed in range(20):
            assert torch.equal(whole_epoch(100, seed).sort().values, torch.arange(100))


@given(num_rows=st.integers(2, 10**7))
@settings(max_examples=examples(200))
def test_sides_hold_all_rows_and_leave_as_little_over_as_any_near_square(num_rows):
    a, b = nearly_square_sides(num_rows)
    root = math.isqrt(num_rows - 1) + 1
    assert root // 2 < a <= root
    multiples = [-(-num_rows // side) * side for side in range(root // 2 + 1, root + 1)]
    assert a * b == min(multiples) >= num_rows


@pytest.mark.parametrize("num_rows", [100, 5000])
def test_neighbouring_seeds_and_epochs_share_no_more_than_chance(num_rows):
    """Two unrelated permutations agree at about one position (Poisson with mean 1)."""
    base = whole_epoch(num_rows, seed=1, epoch=1)
    others = [(1, 2), (2, 1), (0, 1), (1, 0), (2, 0), (0, 2), (1 + 2**32, 1), (-1, 1)]
    agreements = [int((whole_epoch(num_rows, *other) == base).sum()) for other in others]
    assert max(agreements) <= 7
    assert sum(agreements) <= 22


def test_all_orders_of_few_rows_are_equally_likely():
    from scipy import stats

    for num_rows in (2, 3, 4):
        counts = Counter(tuple(whole_epoch(num_rows, seed, epoch=seed % 7).tolist()) for seed in range(3000))
        assert len(counts) == math.factorial(num_rows)
        assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def position_by_row_p_value(num_rows: int, num_seeds: int) -> float:
    """Chi-square of how often each row stands at each position; (n-1)^2 degrees of freedom, for margins are fixed."""
    from scipy import stats

    positions = torch.arange(num_rows)
    counts = torch.zeros(num_rows * num_rows, dtype=torch.int64)
    for seed in range(num_seeds):
        counts += torch.bincount(positions * num_rows + whole_epoch(num_rows, seed), minlength=len(counts))
    expected = num_seeds / num_rows
    # Counts of a permutation matrix are n/(n-1) times as variable as independent ones.
    statistic = float(((counts.double() - expected) ** 2 / expected).sum()) * (num_rows - 1) / num_rows
    return float(stats.chi2.sf(statistic, (num_rows - 1) ** 2))


@pytest.mark.parametrize("num_rows", [5, 17, 64])
def test_every_row_is_equally_likely_at_every_position(num_rows):
    assert 1e-3 < position_by_row_p_value(num_rows, num_seeds=1500) < 1 - 1e-3
    with network_for_any_size():
        assert num_rows < 64 or 1e-3 < position_by_row_p_value(num_rows, num_seeds=1500) < 1 - 1e-3


def step_z(num_rows: int, gap: int, num_seeds: int) -> float:
    """How far (in standard deviations) the steps from a position to the one `gap` later are from uniform."""
    counts = torch.zeros(num_rows, dtype=torch.int64)
    for seed in range(num_seeds):
        rows = whole_epoch(num_rows, seed)
        counts += torch.bincount((rows[gap:] - rows[:-gap]) % num_rows, minlength=num_rows)
    steps = counts[1:].double()
    expected = steps.sum() / (num_rows - 1)
    return float(((steps - expected) ** 2 / expected).sum() - (num_rows - 2)) / math.sqrt(2 * (num_rows - 2))


@pytest.mark.parametrize("num_rows", [1000, 4099])
def test_steps_between_positions_are_uniform(num_rows):
    """A gap of b positions is one step of the left half: where a weak network shows first."""
    for gap in (1, nearly_square_sides(num_rows)[1]):
        assert abs(step_z(num_rows, gap, num_seeds=400)) < 4


def test_the_test_of_steps_finds_a_network_of_four_rounds():
    with mock.patch.object(order_module, "NUM_ROUNDS", 4):
        assert step_z(4099, nearly_square_sides(4099)[1], num_seeds=400) > 10


def randomness_z(rows: torch.Tensor) -> dict[str, float]:
    """Statistics of one permutation in standard deviations from a uniform one's mean."""
    n = len(rows)
    real = rows.double()
    displacement = (real - torch.arange(n)).abs().mean() / n
    ascents = (real[1:] > real[:-1]).sum()
    centred = (real - real.mean()) / real.std()
    z = {
        "displacement": float((displacement - 1 / 3) / math.sqrt(2 / 45 / n)),
        "ascents": float((ascents - (n - 1) / 2) / math.sqrt((n + 1) / 12)),
        "fixed points": float((rows == torch.arange(n)).sum() - 1.0),
        "rank of position": float(
            (centred * torch.arange(n).double().sub((n - 1) / 2)).sum() / (n**1.5 / math.sqrt(12))
        ),
    }
    for lag in (1, 2, round(math.sqrt(n))):
        z[f"correlation at lag {lag}"] = float((centred[lag:] * centred[:-lag]).sum() / math.sqrt(n))
    grid = torch.bincount((torch.arange(n) * 16 // n) * 16 + rows * 16 // n, minlength=256).double()
    z["blocks"] = float(((grid - n / 256) ** 2 / (n / 256)).sum() - 225) / math.sqrt(2 * 225)
    return z


@pytest.mark.parametrize("num_rows", [1000, SORTED_ROWS + 1, 65_537, 1_000_003])
def test_an_epoch_passes_the_tests_that_randperm_passes(num_rows):
    generator = torch.Generator().manual_seed(num_rows)
    for seed in range(5):
        ours = randomness_z(whole_epoch(num_rows, seed))
        randperm = randomness_z(torch.randperm(num_rows, generator=generator))
        for name, tolerance in {name: 5.0 if name == "fixed points" else 4.0 for name in ours}.items():
            assert abs(ours[name]) < tolerance, (name, ours)
            assert abs(randperm[name]) < tolerance, (name, randperm)


def test_memory_does_not_depend_on_the_number_of_rows():
    """A permutation of 2^40 rows would take 8 TB."""
    rows = SampleOrder(MAX_ROWS, 0, 0)(torch.arange(MAX_ROWS - 100_000, MAX_ROWS))
    assert len(rows.unique()) == 100_000
    assert 0 <= int(rows.min()) < MAX_ROWS // 1000
    assert MAX_ROWS - MAX_ROWS // 1000 < int(rows.max()) < MAX_ROWS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, 0, 0), "num_rows must be in"), ((MAX_ROWS + 1, 0, 0), "found 1099511627777"), ((5, 0, -1), "epoch must not")],
)
def test_a_setting_out_of_range_is_refused(arguments, message):
    with pytest.raises(LoaderError, match=message):
        SampleOrder(*arguments)


@pytest.mark.parametrize("num_rows", [1, 100, 4099, 10_000_019])
def test_any_device_computes_the_same_rows_without_waiting(num_rows, any_device):
    order = SampleOrder(num_rows, 7, 3)
    positions = torch.arange(min(num_rows, 300_000))
    moved = positions.to(any_device)
    with no_waiting(any_device):
        rows = order(moved)
    assert rows.device.type == any_device
    assert torch.equal(rows.cpu(), order(positions))
