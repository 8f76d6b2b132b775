"""The order and its gather in one Triton launch: bit for bit the rows of torch's order and index_select."""

import sys
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gigabatch.loaders.order.gather as gather_module
import gigabatch.loaders.order.order as order_module
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.order.gather import gather_shuffled
from gigabatch.loaders.order.order import SORTED_ROWS, SampleOrder
from tests.examples import examples
from tests.loaders.order.test_gather import compiled_rows, numbered_table

ANY_FIXTURE = [HealthCheck.function_scoped_fixture]


def on_device(device, table, order, start, stop):
    """The rows by the Triton kernel, between two lines that it must leave alone."""
    from gigabatch.loaders.order import gather_cuda

    room = torch.full((stop - start + 2, table.shape[1]), -7, dtype=torch.int32, device=device)
    gather_cuda.gather_shuffled(table.to(device), order, start, stop, room[1:-1])
    assert bool((room[[0, -1]] == -7).all()), "written beside the batch"
    return room[1:-1].cpu()


@settings(max_examples=examples(40), suppress_health_check=ANY_FIXTURE)
@given(
    num_rows=st.integers(SORTED_ROWS + 1, 20_000),
    num_words=st.integers(1, 50),
    seed=st.integers(-(2**63), 2**63),
    epoch=st.integers(0, 2**40),
    data=st.data(),
)
def test_rows_are_those_of_the_compiled_order_of_a_cpu(triton_device, num_rows, num_words, seed, epoch, data):
    order = SampleOrder(num_rows, seed, epoch)
    start = data.draw(st.integers(0, num_rows - 1))
    stop = min(num_rows, start + data.draw(st.integers(0, 200)))
    table = numbered_table(num_rows, num_words)
    assert torch.equal(on_device(triton_device, table, order, start, stop), table[compiled_rows(order, start, stop)])


@settings(max_examples=examples(20), suppress_health_check=ANY_FIXTURE)
@given(num_rows=st.integers(2, 300), seed=st.integers(0, 2**32))
def test_values_outside_walk_until_they_are_inside(triton_device, num_rows, seed):
    """Sides of 1 and 2, and many values outside."""
    with mock.patch.object(order_module, "SORTED_ROWS", 1):
        order = SampleOrder(num_rows, seed, 0)
    table = numbered_table(num_rows, 3)
    assert torch.equal(on_device(triton_device, table, order, 0, num_rows), table[order(torch.arange(num_rows))])


@pytest.mark.parametrize("num_words", [1, 2, 46, 47, 301])
@pytest.mark.parametrize("many", [False, True])
def test_large_and_small_batches(triton_device, monkeypatch, num_words, many):
    from gigabatch.loaders.order import gather_cuda

    monkeypatch.setattr(gather_cuda, "MANY_ROWS", 1 if many else 10**9)
    table, order = numbered_table(5_003, num_words), SampleOrder(5_003, 3, 1)
    assert torch.equal(on_device(triton_device, table, order, 17, 417), table[order(torch.arange(17, 417))])


def test_words_that_are_not_aligned_to_eight_bytes(triton_device):
    table, order = numbered_table(5_000, 4), SampleOrder(5_000, 3, 1)
    shifted = torch.empty(20_001, dtype=torch.int32)[1:].view(5_000, 4).copy_(table)
    assert shifted.data_ptr() % 8 == 4
    expected = table[order(torch.arange(100))]
    from gigabatch.loaders.order import gather_cuda

    out = torch.empty(401, dtype=torch.int32)[1:].view(100, 4).to(triton_device)
    gather_cuda.gather_shuffled(shifted.to(triton_device), order, 0, 100, out)
    assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize("num_rows", [2**31 + 11, 2**35 + 1])
def test_rows_beyond_32_bits(triton_device, num_rows):
    """Such a table would not fit, so the addresses are looked at that it would be read at."""
    if triton_device == "cuda":
        pytest.skip("the test below reads a table of 12 GB")
    import triton.language as tl

    from gigabatch.loaders.order import gather_cuda

    order, read = SampleOrder(num_rows, 3, 1), []

    def noted(pointer, **options):
        read.append(pointer.handle.data.copy())
        return tl.full(pointer.shape, 0, tl.int32)

    table, out = torch.empty(1, 1, dtype=torch.int32), torch.empty(64, 1, dtype=torch.int32)
    with mock.patch.object(tl, "load", noted):
        gather_cuda.gather_shuffled(table, order, num_rows - 64, num_rows, out)
    places = (torch.cat([torch.from_numpy(part.astype("int64")) for part in read]) - table.data_ptr()) // 4
    assert torch.equal(places, order(torch.arange(num_rows - 64, num_rows)))


def test_the_reference_is_a_choice_and_an_unknown_one_is_refused():
    table, order = numbered_table(SORTED_ROWS + 9, 3), SampleOrder(SORTED_ROWS + 9, 3, 1)
    out = torch.empty(50, 3, dtype=torch.int32)
    with mock.patch.object(gather_module, "_share", side_effect=AssertionError("the compiled loops ran")):
        gather_shuffled(table, order, 0, 50, out, "reference")
    assert torch.equal(out, table[order(torch.arange(50))])
    with pytest.raises(LoaderError, match=r"unknown kernels 'plain'\. Known: compiled, reference"):
        gather_shuffled(table, order, 0, 50, out, "plain")


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "gigabatch.loaders.order.gather_cuda", raising=False)
    with pytest.raises(LoaderError, match="gathered by triton, which is not installed"):
        gather_module._on_cuda()


@pytest.mark.gpu
@pytest.mark.parametrize("num_words", [1, 2, 14, 46, 47, 151])
@pytest.mark.parametrize("size", [1, 300, 4_096, 204_800])
def test_a_gpu_gathers_the_rows_of_a_cpu(num_words, size):
    table, order = numbered_table(1_000_003, num_words), SampleOrder(1_000_003, 3, 1)
    on_gpu = table.cuda()
    for start in (0, 1_000_003 - size):
        expected = gather_shuffled(table, order, start, start + size, torch.empty(size, num_words, dtype=torch.int32))
        out = torch.full((size, num_words), -7, dtype=torch.int32, device="cuda")
        for kernels in ("compiled", "reference"):
            gather_shuffled(on_gpu, order, start, start + size, out.fill_(-7), kernels)
            assert torch.equal(out.cpu(), expected)


@pytest.mark.gpu
def test_a_table_beyond_32_bits_of_words_on_a_gpu():
    num_rows, num_words = 2**26 + 7, 47  # 12.6 GB
    table = torch.arange(num_rows, dtype=torch.int32, device="cuda")[:, None].repeat(1, num_words)
    order, out = SampleOrder(num_rows, 3, 1), torch.empty(100_000, num_words, dtype=torch.int32, device="cuda")
    gather_shuffled(table, order, num_rows - 100_000, num_rows, out)
    expected = order(torch.arange(num_rows - 100_000, num_rows, device="cuda")).int()
    assert bool((out == expected[:, None]).all())
