"""Negatives: exact distributions, never a known positive, and a pure function of (seed, epoch, position)."""

import numba
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tests.loaders.negatives.negatives_in_python as python
from gigabatch.features.vocabulary.vocabulary import LAYOUT
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.negatives.draws import KnownPositives, PopularityNegatives, UniformNegatives
from gigabatch.loaders.negatives.draws_reference import multiply_high
from gigabatch.loaders.order.ranks import RankBatches
from tests.examples import examples

VERSIONS = ("reference", "cpu")  # test_negatives_cuda.py has the third
NUM_USERS, NUM_IDS = 6, 12
ITEM_IDS = range(LAYOUT.first, NUM_IDS)


def known_of(positives: list[set[int]]) -> KnownPositives:
    pairs = [(user, item) for user, items in enumerate(positives) for item in items]
    users, items = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
    return KnownPositives.from_pairs(users, items, len(positives))


def int32(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


# Some of every user's items, never all of the range; 0 to 2 and beyond the range may be known too and change nothing.
POSITIVES = st.lists(
    st.sets(st.integers(0, NUM_IDS + 5), max_size=8).filter(lambda items: len(set(ITEM_IDS) - items) >= 3),
    min_size=NUM_USERS,
    max_size=NUM_USERS,
)
POSITIONS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=0, max_size=8)
COUNTS = st.lists(st.integers(0, 10**6), min_size=NUM_IDS, max_size=NUM_IDS)


@given(bits=st.integers(-(2**63), 2**63 - 1), size=st.integers(0, 2**63 - 1))
@example(bits=-1, size=2**63 - 1)
@example(bits=2**63 - 1, size=1)
@settings(max_examples=examples(300))
def test_multiply_high_is_the_upper_half_of_the_product(bits, size):
    assert multiply_high(torch.tensor(bits), torch.tensor(size)).item() == (bits % 2**64) * size >> 64


@pytest.mark.parametrize("version", VERSIONS)
@given(positives=POSITIVES, positions=POSITIONS, seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**40))
@settings(max_examples=examples(60))
def test_uniform_draws_are_those_of_a_slow_search_through_the_complement(version, positives, positions, seed, epoch):
    users = [position % NUM_USERS for position in positions]
    known = known_of(positives)
    for replacement, slow, num_draws in ((True, python.uniform, 5), (False, python.distinct, 3)):
        sampler = UniformNegatives(ITEM_IDS, num_draws, known, replacement, seed, version=version)
        sampler.set_epoch(epoch)
        negatives = sampler(torch.tensor(positions, dtype=torch.int64), int32(users))
        expected = [
            slow(seed, epoch, position, num_draws, ITEM_IDS, positives[user])
            for position, user in zip(positions, users, strict=True)
        ]
        assert negatives.ids.dtype == torch.int32
        assert negatives.ids.tolist() == expected
        sizes = [len(set(ITEM_IDS) - positives[user]) for user in users]
        assert negatives.log_q.shape == negatives.ids.shape
        torch.testing.assert_close(negatives.log_q, -torch.tensor(sizes).log()[:, None].expand(-1, num_draws))


@pytest.mark.parametrize("version", VERSIONS)
@example(positives=[set()] * NUM_USERS, positions=[0, 7], counts=[1] * NUM_IDS, power=1.0)  # no one knows anything
@given(positives=POSITIVES, positions=POSITIONS, counts=COUNTS, power=st.sampled_from([0.0, 0.75, 1.0, 3.0]))
@settings(max_examples=examples(80))
def test_popularity_draws_are_those_of_a_slow_walk_along_the_complement(version, positives, positions, counts, power):
    """The masses, which are rounded, are compared with Python's powers first and then taken as they are."""
    if any(not any(counts[item] for item in set(ITEM_IDS) - items) for items in positives):
        return  # an error, tested below
    known, users = known_of(positives), [position % NUM_USERS for position in positions]
    sampler = PopularityNegatives(ITEM_IDS, 4, torch.tensor(counts), power, known, seed=3, version=version)
    masses = sampler._table.cumulative.diff().tolist()
    weights = [counts[item] ** power if counts[item] else 0.0 for item in ITEM_IDS]
    for mass, weight in zip(masses, weights, strict=True):
        assert mass / sum(masses) == pytest.approx(weight / sum(weights), rel=1e-12, abs=2**-60)
        assert (mass > 0) == (weight > 0)
    negatives = sampler(torch.tensor(positions, dtype=torch.int64), int32(users))
    for row, (position, user) in enumerate(zip(positions, users, strict=True)):
        expected = python.weighted(3, 0, position, 4, ITEM_IDS, positives[user], masses)
        assert negatives.ids[row].tolist() == expected
        logs = python.logs(expected, ITEM_IDS, positives[user], masses)
        assert negatives.log_q[row].tolist() == pytest.approx(logs, rel=1e-6, abs=3e-6)


@pytest.mark.parametrize("version", VERSIONS)
def test_many_ids_and_masses_of_every_size(version):
    """Masses over 40 orders of magnitude, so that most cells of the guide hold one id and a few hold thousands."""
    generator = torch.Generator().manual_seed(0)
    counts = 10.0 ** (torch.rand(5000, generator=generator, dtype=torch.float64) * 40)
    positives = [set(torch.randint(0, 5000, (size,), generator=generator).tolist()) for size in (0, 1, 500)]
    item_ids = range(3, 5000)
    sampler = PopularityNegatives(item_ids, 20, counts, 0.5, known_of(positives), version=version)
    masses = sampler._table.cumulative.diff().tolist()
    negatives = sampler(torch.arange(60), torch.arange(60, dtype=torch.int32) % 3)
    for row in range(60):
        expected = python.weighted(0, 0, row, 20, item_ids, positives[row % 3], masses)
        assert negatives.ids[row].tolist() == expected


def test_more_draws_than_ids_repeat_with_replacement_and_are_an_error_without():
    known = known_of([set(), {3, 4, 5}])
    drawn = UniformNegatives(range(3, 8), 50, known)(torch.arange(2), int32([0, 1])).ids
    assert set(drawn[1].tolist()) == {6, 7}
    every_one = UniformNegatives(range(3, 8), 2, known, replacement=False)(torch.arange(9), int32([1] * 9)).ids
    assert all(set(row) == {6, 7} for row in every_one.tolist())
    with pytest.raises(LoaderError, match=r"user 1 has 3 known positives among the 5 ids 3 to 7.*exclude_known=false"):
        UniformNegatives(range(3, 8), 3, known, replacement=False)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("make", [
    lambda known, version: UniformNegatives(range(3, 50), 4, known, version=version),
    lambda known, version: UniformNegatives(range(3, 50), 4, known, replacement=False, version=version),
    lambda known, version: PopularityNegatives(range(3, 50), 4, torch.arange(50), known=known, version=version),
], ids=["uniform", "distinct", "popularity"])  # fmt: skip
def test_a_row_s_draws_depend_on_its_position_and_user_alone(make, version):
    num_rows = 103
    generator = torch.Generator().manual_seed(0)
    users = torch.randint(0, 20, (num_rows,), generator=generator, dtype=torch.int32)
    known = KnownPositives.from_pairs(torch.arange(200) % 20, torch.randint(3, 50, (200,), generator=generator), 20)
    sampler = make(known, version)
    whole = sampler(torch.arange(num_rows), users)
    for batch_size, num_ranks in ((10, 1), (10, 3), (103, 2)):
        for rank in range(num_ranks):
            batches = RankBatches(num_rows, batch_size, rank, num_ranks)
            for step in range(batches.num_steps):
                positions = torch.arange(*batches.positions(step))
                part = sampler(positions, users[positions])
                assert torch.equal(part.ids, whole.ids[positions])
                assert torch.equal(part.log_q, whole.log_q[positions])
    sampler.set_epoch(1)
    assert not torch.equal(sampler(torch.arange(num_rows), users).ids, whole.ids)
    sampler.set_epoch(0)
    assert torch.equal(sampler(torch.arange(num_rows), users).ids, whole.ids)


def test_the_number_of_threads_changes_nothing():
    positions, users = torch.arange(4000), torch.arange(4000, dtype=torch.int32) % 20
    known = KnownPositives.from_pairs(torch.arange(400) % 20, torch.arange(400) % 47 + 3, 20)
    sampler = UniformNegatives(range(3, 100), 4, known)
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        alone = sampler(positions, users).ids
    finally:
        numba.set_num_threads(before)
    assert torch.equal(sampler(positions, users).ids, alone)


@given(pairs=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2**31 - 1) | st.integers(0, 3)), max_size=40))
@settings(max_examples=examples(100))
def test_known_positives_are_each_user_s_items_in_order_and_once(pairs):
    users, items = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
    known = KnownPositives.from_pairs(users, items.int(), 7)
    assert known.num_users == 7
    for user in range(7):
        found = known.items[known.offsets[user] : known.offsets[user + 1]].tolist()
        assert found == sorted({item for owner, item in pairs if owner == user})


@pytest.mark.parametrize("power", [0.0, 0.75])
def test_a_user_who_knows_everything_is_named(power):
    known = known_of([{3}, {4, 5}, {3, 4, 5, 9}])
    with pytest.raises(LoaderError, match="user 2 has 3 known positives among the 3 ids 3 to 5"):
        UniformNegatives(range(3, 6), 4, known)
    with pytest.raises(LoaderError, match="user 1 has 2 known positives among the 3 ids 3 to 5"):
        PopularityNegatives(range(3, 6), 4, torch.tensor([1, 1, 1, 0, 5, 5]), power, known)


@pytest.mark.parametrize("user", [-1, 3])
def test_a_user_outside_the_table_is_an_error_on_the_cpu(user):
    known, users = known_of([{3}, {4, 5}, set()]), int32([0, user, 1])
    with pytest.raises(LoaderError, match=rf"1 of 3 rows have a user outside \[0, 3\), for example {user}"):
        UniformNegatives(range(3, 9), 2, known)(torch.arange(3), users)


def pairs(users, items, num_users=3):
    return KnownPositives.from_pairs(torch.tensor(users), torch.tensor(items), num_users)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UniformNegatives(range(3, 3), 1), "not empty, found range"),
        (lambda: UniformNegatives(range(9, 3, -1), 1), "step 1"),
        (lambda: UniformNegatives(range(-1, 3), 1), "ids from 0"),
        (lambda: UniformNegatives(range(3, 2**31 + 1), 1), "range of ids"),
        (lambda: UniformNegatives(range(3, 9), 0), "num_negatives must be at least 1, found 0"),
        (lambda: UniformNegatives(range(3, 9), 1, version="fast"), "'fast'. Known: reference, cpu, cuda"),
        (lambda: UniformNegatives(range(3, 9), 1, version="cuda"), "cuda version cannot draw on cpu"),
        (lambda: UniformNegatives(range(3, 9), 1).set_epoch(-1), "epoch must not be negative, found -1"),
        (lambda: UniformNegatives(range(3, 9), 1, pairs([0], [3]))(torch.arange(2)), "give the users of the rows"),
        (
            lambda: UniformNegatives(range(3, 9), 1)(torch.arange(2).int()),
            r"positions must be \[rows\] torch.int64, found",
        ),
        (
            lambda: UniformNegatives(range(3, 9), 1, pairs([0], [3]))(torch.arange(2), torch.tensor([0, 1])),
            r"users must be \[rows\] torch.int32, found \[2\] torch.int64 for 2 rows",
        ),
        (
            lambda: UniformNegatives(range(3, 9), 1, pairs([0], [3]))(torch.arange(2), torch.tensor([0]).int()),
            r"users must be \[rows\] torch.int32, found \[1\]",
        ),
        (lambda: PopularityNegatives(range(3, 9), 1, torch.ones(8)), r"here 9 or more, found shape \(8,\)"),
        (lambda: PopularityNegatives(range(3, 9), 1, torch.ones((9, 1))), r"found shape \(9, 1\)"),
        (lambda: PopularityNegatives(range(3, 9), 1, -torch.ones(9)), "finite and not negative"),
        (lambda: PopularityNegatives(range(3, 9), 1, torch.full((9,), torch.nan)), "finite and not negative"),
        (lambda: PopularityNegatives(range(3, 9), 1, torch.zeros(9)), "add up to 0.0 over ids 3 to 8"),
        (lambda: PopularityNegatives(range(3, 9), 1, torch.full((9,), 10), 400.0), "to the power 400.0 add up to inf"),
        (lambda: PopularityNegatives(range(3, 3), 1, torch.ones(9)), "not empty"),
        (lambda: pairs([0, 3], [3, 3]), r"users must be in \[0, 3\), found 0 to 3"),
        (lambda: pairs([0, 1], [-3, 3]), r"items must be in \[0, 2147483648\), found -3 to 3"),
        (lambda: pairs([0.0, 1.0], [3, 3]), "users must be one column of whole numbers, found torch.float32"),
        (lambda: pairs([0, 1], [[3, 3]]), r"items must be one column of whole numbers, found torch.int64 of shape"),
        (lambda: pairs([0, 1], [3]), "2 users on cpu and 1 items"),
    ],
)
def test_what_is_wrong_is_said(make, message):
    with pytest.raises(LoaderError, match=message):
        make()
