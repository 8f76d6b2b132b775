"""Pooled lists of rows and their gradients: the plain and the numba version against torch's `embedding_bag`."""

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from gigabatch.models.kernels.pooled_lookup import cpu, reference
from tests.examples import examples
from tests.models.kernels import cases

VERSIONS = pytest.mark.parametrize("version", [reference, cpu], ids=["reference", "cpu"])
POOLINGS = pytest.mark.parametrize("pooling", reference.POOLINGS)


def lists(random, lengths, height, weighted=False):
    """ids [T] int32, offsets [B + 1] int64, weights [T] float32 or None; some ids repeat within a list."""
    offsets = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int64)
    total = int(offsets[-1])
    ids = torch.tensor(random.integers(0, max(1, height // 2), total), dtype=torch.int32)
    weights = torch.tensor(random.normal(size=total), dtype=torch.float32) if weighted else None
    return ids, offsets, weights


def pooled(version, ids, offsets, weights, table, pooling):
    out = torch.full((len(offsets) - 1, table.shape[1]), 7.0)
    chosen = torch.full(out.shape, 7, dtype=torch.int32) if pooling == "max" else None
    version.pooled_lookup(ids, offsets, weights, table, pooling, out, chosen)
    return out, chosen


def torchs(ids, offsets, weights, table, pooling):
    """`embedding_bag`, which knows weights of sums alone: those of a mean are divided in float64 first."""
    if weights is not None and pooling == "mean":
        parts = weights.double().tensor_split(offsets[1:-1])
        weights = torch.cat([part / part.abs().sum() if part.abs().sum() else part for part in parts]).float()
        pooling = "sum"
    return functional.embedding_bag(
        ids.long(), table, offsets, mode=pooling, per_sample_weights=weights, include_last_offset=True
    )


@VERSIONS
@POOLINGS
def test_empty_lists_of_a_table_without_rows_are_zeros(version, pooling):
    """As on a rank whose part of a batch asks a table for nothing."""
    none = torch.zeros(0, dtype=torch.int32)
    found, _ = pooled(version, none, torch.zeros(4, dtype=torch.int64), None, torch.zeros(0, 3), pooling)
    assert torch.equal(found, torch.zeros(3, 3))


LENGTHS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=150)


@VERSIONS
@POOLINGS
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), lengths=LENGTHS, height=st.integers(1, 60), width=st.integers(1, 70), seed=st.integers(0, 100))
def test_lists_are_pooled_and_gradients_spread_as_by_embedding_bag(
    version, pooling, data, lengths, height, width, seed
):
    random = np.random.default_rng(seed)
    weighted = pooling != "max" and data.draw(st.booleans())
    table = cases.tables(random, [(height, width)])[0]
    if pooling == "max" and data.draw(st.booleans()):
        table.round_()  # ties
    ids, offsets, weights = lists(random, lengths, height, weighted)
    if weighted and data.draw(st.booleans()):
        weights[: len(weights) // 2] = 0
    found, chosen = pooled(version, ids, offsets, weights, table, pooling)
    trained = table.clone().requires_grad_()
    wanted = torchs(ids, offsets, weights, trained, pooling)
    torch.testing.assert_close(found, wanted.detach(), rtol=2e-5, atol=2e-5)

    gradient = cases.gradient(random, len(found), width)
    spread = torch.full((len(ids), width), 7.0)
    version.spread_gradient(gradient, offsets, weights, pooling, chosen, spread)
    (expected,) = torch.autograd.grad(wanted, trained, gradient)
    summed = torch.zeros_like(table).index_add_(0, ids.long(), spread)
    torch.testing.assert_close(summed, expected, rtol=2e-5, atol=2e-5)


@VERSIONS
def test_a_mean_by_weights_is_over_the_sum_of_their_sizes(version):
    table = torch.tensor([[1.0], [10.0], [100.0]])
    ids, offsets = torch.tensor([0, 1, 2, 0, 1], dtype=torch.int32), torch.tensor([0, 3, 3, 5])
    weights = torch.tensor([1.0, -2.0, 1.0, 0.0, 0.0])
    found, _ = pooled(version, ids, offsets, weights, table, "mean")
    assert found.tolist() == [[(1 - 20 + 100) / 4], [0.0], [0.0]]
    spread = torch.empty(5, 1)
    version.spread_gradient(torch.ones(3, 1), offsets, weights, "mean", None, spread)
    assert spread[:, 0].tolist() == [0.25, -0.5, 0.25, 0.0, 0.0]


@VERSIONS
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_sources_of_elements_by_hand(version, pooling, weighted):
    """Lists of three, none and two elements; the weights of the last are zeros."""
    offsets = torch.tensor([0, 3, 3, 5])
    weights = torch.tensor([1.0, -2.0, 1.0, 0.0, 0.0]) if weighted else None
    places, scales = torch.full((5,), 7, dtype=torch.int32), torch.full((5,), 7.0) if pooling == "mean" else None
    version.element_scales(offsets, weights, pooling, places, scales)
    assert places.tolist() == [0, 0, 0, 2, 2]
    if pooling == "mean":
        expected = [0.25, -0.5, 0.25, 0, 0] if weighted else [1 / 3] * 3 + [1 / 2] * 2
        assert scales.tolist() == pytest.approx(expected)


@VERSIONS
def test_a_maximum_is_of_the_first_of_equal_elements_and_of_negative_numbers_too(version):
    table = torch.tensor([[-1.0, 2.0], [-1.0, 3.0], [-5.0, 3.0]])
    ids, offsets = torch.tensor([2, 0, 1, 1], dtype=torch.int32), torch.tensor([0, 0, 4])
    found, chosen = pooled(version, ids, offsets, None, table, "max")
    assert found.tolist() == [[0, 0], [-1, 3]]
    assert chosen.tolist() == [[-1, -1], [1, 0]]


@VERSIONS
@pytest.mark.parametrize("dtype", cases.LOW)
@POOLINGS
def test_gradients_of_sixteen_bits_are_rounded_once(version, dtype, pooling):
    random = np.random.default_rng(3)
    ids, offsets, weights = lists(random, [3, 0, 7, 1], 9, pooling != "max")
    table = cases.tables(random, [(9, 5)])[0]
    _, chosen = pooled(version, ids, offsets, weights, table, pooling)
    gradient = cases.gradient(random, 4, 5, dtype=dtype)
    exact, spread = torch.empty(len(ids), 5), torch.empty(len(ids), 5, dtype=dtype)
    reference.spread_gradient(gradient.float(), offsets, weights, pooling, chosen, exact)
    version.spread_gradient(gradient, offsets, weights, pooling, chosen, spread)
    torch.testing.assert_close(spread, exact.to(dtype), rtol=2**-7, atol=1e-6)


@VERSIONS
@POOLINGS
def test_no_lists_and_only_empty_ones(version, pooling):
    table = cases.tables(np.random.default_rng(4), [(9, 5)])[0]
    for count in (0, 3):
        ids, offsets = torch.empty(0, dtype=torch.int32), torch.zeros(count + 1, dtype=torch.int64)
        found, chosen = pooled(version, ids, offsets, None, table, pooling)
        assert found.shape == (count, 5)
        assert not found.any()
        version.spread_gradient(found, offsets, None, pooling, chosen, torch.empty(0, 5))


@VERSIONS
def test_the_output_may_lie_within_wider_rows(version):
    random = np.random.default_rng(5)
    table = cases.tables(random, [(9, 5)])[0]
    ids, offsets, weights = lists(random, [3, 0, 7, 1], 9, True)
    whole = torch.full((4, 9), 7.0)
    version.pooled_lookup(ids, offsets, weights, table, "sum", whole[:, 2:7])
    torch.testing.assert_close(whole[:, 2:7], torchs(ids, offsets, weights, table, "sum"))
    assert (whole[:, [0, 1, 7, 8]] == 7).all()


def test_a_lists_result_is_the_same_alone_and_on_any_number_of_threads():
    random = np.random.default_rng(6)
    table = cases.tables(random, [(20_000, 8)])[0]
    lengths = random.integers(0, 30, 500)
    ids, offsets, weights = lists(random, lengths, 20_000, True)
    threads, results = numba.get_num_threads(), []
    try:
        for count in (1, min(2, threads)):
            numba.set_num_threads(count)
            results.append(pooled(cpu, ids, offsets, weights, table, "mean")[0])
    finally:
        numba.set_num_threads(threads)
    assert torch.equal(*results)
    first, last = offsets[77:79].tolist()
    alone, _ = pooled(cpu, ids[first:last], torch.tensor([0, last - first]), weights[first:last], table, "mean")
    assert torch.equal(alone[0], results[0][77])


@POOLINGS
@pytest.mark.parametrize("bad", [-1, 50, 2**31 - 1, -(2**31)])
def test_an_id_outside_its_table_is_an_error(bad, pooling):
    random = np.random.default_rng(7)
    table = cases.tables(random, [(50, 4)])[0]
    ids, offsets, _ = lists(random, [5] * 200, 50)
    ids[777] = bad
    with pytest.raises(IndexError, match=f"ids from {int(ids.min())} to {int(ids.max())}, its table has 50 rows"):
        pooled(cpu, ids, offsets, None, table, pooling)
