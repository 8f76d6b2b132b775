"""The Triton pooled lookup against the plain one, within the rounding of sums in another order."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigabatch.models.kernels.pooled_lookup import reference
from tests.devices import captured
from tests.examples import examples
from tests.models.kernels import cases
from tests.models.kernels.test_pooled_lookup import lists


def run(device, ids, offsets, weights, table, pooling, gradient):
    """What is pooled, what is chosen of it, and the gradients of its elements."""
    from gigabatch.models.kernels.pooled_lookup import cuda as pooled_cuda

    version = pooled_cuda if device is not None else reference
    place = device or "cpu"
    ids, offsets, table, gradient = (tensor.to(place) for tensor in (ids, offsets, table, gradient))
    weights = None if weights is None else weights.to(place)
    out = torch.full((len(offsets) - 1, table.shape[1]), 7.0, device=place)
    chosen = torch.full(out.shape, 7, dtype=torch.int32, device=place) if pooling == "max" else None
    version.pooled_lookup(ids, offsets, weights, table, pooling, out, chosen)
    spread = torch.full((len(ids), table.shape[1]), 7.0, dtype=gradient.dtype, device=place)
    version.spread_gradient(gradient, offsets, weights, pooling, chosen, spread)
    return out.cpu(), out.new_zeros(1).cpu() if chosen is None else chosen.cpu(), spread.cpu()


@pytest.mark.parametrize("pooling", reference.POOLINGS)
@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    height=st.integers(1, 60),
    width=st.integers(1, 140),
    seed=st.integers(0, 100),
)
def test_lists_are_pooled_as_by_the_reference(triton_device, pooling, data, lengths, height, width, seed):
    random = np.random.default_rng(seed)
    weighted = pooling != "max" and data.draw(st.booleans())
    table = cases.tables(random, [(height, width)])[0]
    if data.draw(st.booleans()):
        table.round_()  # ties
    ids, offsets, weights = lists(random, lengths, height, weighted)
    gradient = cases.gradient(random, len(lengths), width)
    found = run(triton_device, ids, offsets, weights, table, pooling, gradient)
    wanted = run(None, ids, offsets, weights, table, pooling, gradient)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_sources_of_elements_are_the_references(triton_device, pooling, weighted):
    from gigabatch.models.kernels.pooled_lookup import cuda as pooled_cuda

    random = np.random.default_rng(8)
    ids, offsets, weights = lists(random, random.integers(0, 9, 300), 50, weighted)
    found = []
    for version, place in ((pooled_cuda, triton_device), (reference, "cpu")):
        places = torch.full((len(ids),), 7, dtype=torch.int32, device=place)
        scales = torch.full((len(ids),), 7.0, device=place) if pooling == "mean" else None
        own = None if weights is None else weights.to(place)
        version.element_scales(offsets.to(place), own, pooling, places, scales)
        found.append((places.cpu(), places.cpu() if scales is None else scales.cpu()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pooling", reference.POOLINGS)
@pytest.mark.parametrize("bad", [-1, 50, 2**31 - 1])
def test_an_id_outside_its_table_reads_nan(triton_device, bad, pooling):
    random = np.random.default_rng(5)
    table = cases.tables(random, [(50, 8)])[0]
    ids, offsets, _ = lists(random, [2, 0, 3, 1], 50)
    gradient = torch.zeros(4, 8)
    expected, *_ = run(None, ids, offsets, None, table, pooling, gradient)
    expected[2] = float("nan")
    ids[3] = bad
    found, *_ = run(triton_device, ids, offsets, None, table, pooling, gradient)
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_no_elements_and_no_lists(triton_device):
    table = cases.tables(np.random.default_rng(6), [(50, 8)])[0]
    for count in (0, 5):
        ids, offsets = torch.empty(0, dtype=torch.int32), torch.zeros(count + 1, dtype=torch.int64)
        found, *_ = run(triton_device, ids, offsets, None, table, "mean", torch.zeros(count, 8))
        assert torch.equal(found, torch.zeros(count, 8))


def test_a_captured_graph_reads_new_ids(triton_device):
    from gigabatch.models.kernels.pooled_lookup import cuda as pooled_cuda

    random = np.random.default_rng(7)
    table = cases.tables(random, [(50, 8)])[0]
    (first, offsets, _), (second, _, _) = (lists(random, [2, 0, 3, 1], 50) for _ in range(2))
    moved, ids, bounds = table.to(triton_device), first.to(triton_device), offsets.to(triton_device)
    out = torch.empty(4, 8, device=triton_device)
    replay = captured(lambda: pooled_cuda.pooled_lookup(ids, bounds, None, moved, "sum", out), triton_device, warmups=1)
    ids.copy_(second)
    replay()
    wanted, *_ = run(None, second, offsets, None, table, "sum", torch.zeros(4, 8))
    torch.testing.assert_close(out.cpu(), wanted)
