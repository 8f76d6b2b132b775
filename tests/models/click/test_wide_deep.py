"""Wide & Deep against its equation, the numbers of its crosses, and what crosses remember that the rest cannot."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.models.click.wide_deep import Crosses
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from tests.models.shelf_helpers import (
    ALL_INPUTS,
    Rows,
    auc,
    build,
    by_hand,
    mlp_by_hand,
    normed_by_hand,
    random_rows,
    stirred,
    train,
)

SMALL = {"embedding_dim": 4, "layers": (16,), "dropout": 0.0}
CROSSED = SMALL | {"crosses": ((0, 1), (2, 0, 1)), "cross_buckets": 50}  # 35 combinations fit, 140 are hashed


def all_combinations(sizes):
    """[product of sizes, columns] int32, each combination once."""
    return torch.tensor(list(itertools.product(*(range(size) for size in sizes))), dtype=torch.int32)


@pytest.mark.parametrize("num_outputs", [1, 2])
@ALL_INPUTS
def test_outputs_equal_wide_weights_plus_network_written_out(inputs, num_outputs):
    inputs = ModelInputs(inputs.num_ids, inputs.num_floats, num_outputs)
    crosses = {"crosses": ((0, 1), (2, 0))} if inputs.num_ids else {}
    model, rows = stirred("wide_deep", inputs, **SMALL, **crosses), random_rows(inputs, 10)
    got = by_hand(model(rows.ids, rows.floats))
    floats = normed_by_hand(model.float_norm, by_hand(rows.floats))
    for b in range(len(rows)):
        ids = rows.ids[b].tolist()
        if ids:  # the place of a combination among all: 7 values of column 1, 5 of column 0
            ids += [ids[0] * 7 + ids[1], ids[2] * 5 + ids[0]]
        wanted = by_hand(model.wide.bias)
        wanted = wanted + sum(by_hand(table)[entry] for entry, table in zip(ids, model.wide.tables.tables, strict=True))
        wanted = wanted + sum(floats[b, f] * by_hand(model.wide.float_weights)[f] for f in range(inputs.num_floats))
        embedded = [by_hand(table)[rows.ids[b, column]] for column, table in enumerate(model.row.tables.tables)]
        wanted = wanted + mlp_by_hand(model.deep, np.concatenate([*embedded, floats[b]])[None])[0]
        np.testing.assert_allclose(got[b], wanted, rtol=1e-4, atol=1e-4)


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_a_cross_that_fits_numbers_every_combination_once(sizes, random):
    cross = random.sample(range(len(sizes)), len(sizes))
    crosses = Crosses(sizes, [cross], num_buckets=6**4)
    numbers = crosses(all_combinations(sizes))[:, 0]
    assert crosses.sizes == (len(numbers),)
    assert sorted(numbers.tolist()) == list(range(len(numbers)))


def test_a_hashed_cross_spreads_combinations_as_chance_would():
    """Buckets used by n combinations in m buckets: m (1 - (1 - 1/m)^n) where each is drawn at random."""
    sizes, num_buckets = (300, 7, 40), 1 << 14
    crosses = Crosses(sizes, [(0, 2), (0, 1, 2), (2, 1, 0)], num_buckets)
    numbers = crosses(all_combinations(sizes))
    assert crosses.sizes == (12_000, num_buckets, num_buckets)
    for column in (1, 2):
        used = len(numbers[:, column].unique())
        fullest = int(numbers[:, column].bincount().max())
        by_chance = num_buckets * (1 - (1 - 1 / num_buckets) ** len(numbers))
        assert used == pytest.approx(by_chance, rel=0.005)
        assert fullest < 25  # mean 5.1; a Poisson variable of that mean exceeds 24 once in 10^10
        assert 0 <= int(numbers[:, column].min()) <= int(numbers[:, column].max()) < num_buckets


def test_a_hash_is_the_fifth_power_of_the_polynomial_in_python_integers_also_for_the_largest_ids():
    largest = 2**31 - 1  # the prime too
    ids = torch.tensor([[largest, largest, largest], [0, 1, 2], [largest, 0, 7]], dtype=torch.int32)
    crosses = Crosses((2**31,) * 3, [(0, 1, 2)], num_buckets=1000)
    base = 1_103_515_245
    wanted = [pow(a * base**2 + b * base + c, 5, largest) % 1000 for a, b, c in ids.tolist()]
    assert crosses(ids)[:, 0].tolist() == wanted
    assert torch.equal(crosses(ids.long()).int(), crosses(ids))


def test_crosses_sharing_buckets_keep_different_weights():
    """Two crosses have a table each, so they never share a weight with each other."""
    model = build("wide_deep", **CROSSED)
    assert [tuple(table.shape) for table in model.wide.tables.tables] == [(5, 1), (7, 1), (4, 1), (35, 1), (50, 1)]


def exception_rows(num_rows, seed):
    """Labels by a coin of each of 40 x 40 combinations of two columns: no vectors of few numbers can hold them."""
    inputs = ModelInputs((40, 40), 0)
    coins = torch.randint(2, (40, 40), generator=torch.Generator().manual_seed(3)) * 2.0 - 1
    rows = random_rows(inputs, num_rows, seed)
    logit = 2.5 * coins[rows.ids[:, 0].long(), rows.ids[:, 1].long()]
    labels = (torch.rand(num_rows, generator=torch.Generator().manual_seed(seed + 1)) < torch.sigmoid(logit)).float()
    return inputs, Rows(rows.ids, rows.floats, (labels,))


def test_a_cross_remembers_exceptions_that_a_small_network_and_pairs_of_vectors_smooth_over():
    inputs, rows = exception_rows(20_000, seed=1)
    _, fresh = exception_rows(4000, seed=5)
    models = {
        "crossed": build("wide_deep", inputs, **SMALL, crosses=((0, 1),)),
        "without": build("wide_deep", inputs, **SMALL),
        "fm": build("fm", inputs, embedding_dim=4),
    }
    for model in models.values():
        train(model, rows, steps=200, batch_size=2000, lr=0.03)
    reached = {name: auc(model, fresh) for name, model in models.items()}
    assert reached["crossed"] > 0.85, reached
    assert reached["crossed"] - reached["without"] > 0.08, reached
    assert reached["crossed"] - reached["fm"] > 0.08, reached


def test_a_cross_of_a_column_that_is_not_there_is_refused_when_built():
    with pytest.raises(ModelError, match=r"crosses: \[1, 3\] names id column 3, but there are 3, from 0 on"):
        build("wide_deep", crosses=[[1, 3]])


def test_crosses_are_the_same_on_any_device(any_device):
    ids = torch.randint(2**31 - 1, (10_000, 3), dtype=torch.int32)
    crosses = Crosses((2**31,) * 3, [(0, 1), (2, 1, 0)], num_buckets=1 << 20)
    assert torch.equal(crosses(ids.to(any_device)).cpu(), crosses(ids))
