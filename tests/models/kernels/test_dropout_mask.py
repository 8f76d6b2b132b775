"""Dropout from counters: its mask against Python's whole numbers, its statistics, and each version's pass."""

import numba
import numpy as np
import pytest
import torch

from gigabatch.models.kernels.dropout import cpu as dropout_cpu
from gigabatch.models.kernels.dropout import reference as dropout_reference
from gigabatch.models.kernels.dropout.reference import draw_seeds, kept, threshold
from tests.models.kernels import cases

SEED = torch.tensor([0xDEADBEEF, 12345])
VERSIONS = pytest.mark.parametrize("version", [dropout_reference, dropout_cpu], ids=["reference", "cpu"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, *cases.LOW])


def finalise(value):
    """MurmurHash3's `fmix32`, in Python's whole numbers."""
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return value ^ (value >> 16)


def stays(seed, rate, number):
    first, second = seed.tolist()
    return (finalise(finalise((number & 0xFFFFFFFF) ^ first) ^ second) >> 1) >= round(rate * 2**31)


def test_the_hash_gives_its_published_number():
    # MurmurHash3_x86_32 of nothing with seed 1, which is the finaliser of 1.
    assert finalise(1) == 0x514E28B7
    assert dropout_reference._mixed(torch.tensor(1)).item() == 0x514E28B7
    assert int(dropout_cpu.mixed(np.uint32(1))) == 0x514E28B7


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.999])
def test_the_mask_is_that_of_a_loop(rate):
    wanted = [[stays(SEED, rate, 37 * row + column) for column in range(37)] for row in range(50)]
    assert kept(SEED, rate, 50, 37).tolist() == wanted


@DTYPES
@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (300, 37), (65, 128), (0, 3), (3, 0)])
def test_the_compiled_pass_is_the_plain_one(dtype, moves, shape):
    torch.manual_seed(0)
    values = torch.randn(shape).to(dtype)
    scale, shift = (torch.randn(shape[1]), torch.randn(shape[1])) if moves else (None, None)
    wanted, found = torch.empty_like(values), torch.empty_like(values)
    dropout_reference.dropout(values, wanted, SEED, 0.3, scale, shift)
    dropout_cpu.dropout(values, found, SEED, 0.3, scale, shift)
    assert torch.equal(found == 0, wanted == 0)
    torch.testing.assert_close(found, wanted, rtol=max(torch.finfo(dtype).eps, 2**-20), atol=1e-6)


@VERSIONS
@DTYPES
def test_what_stays_is_scaled_and_moved(version, dtype):
    torch.manual_seed(1)
    values, scale, shift = torch.randn(200, 30).to(dtype), torch.randn(30), torch.randn(30)
    mask, found = kept(SEED, 0.25, 200, 30), torch.empty(200, 30, dtype=dtype)
    version.dropout(values, found, SEED, 0.25, scale, shift)
    exact = mask * (values.double() * scale.double() + shift.double()) / 0.75
    torch.testing.assert_close(found.double(), exact, rtol=max(torch.finfo(dtype).eps / 2, 2**-20), atol=1e-6)


@VERSIONS
def test_in_place_within_wider_rows(version):
    whole = torch.randn(70, 40)
    before = whole.clone()
    version.dropout(whole[:, :10], whole[:, :10], SEED, 0.5)
    assert torch.equal(whole[:, 10:], before[:, 10:])
    torch.testing.assert_close(whole[:, :10], before[:, :10] * kept(SEED, 0.5, 70, 10) * 2)


@VERSIONS
def test_a_dropped_nan_stays_one_as_in_torch(version):
    values = torch.full((20, 20), torch.nan)
    version.dropout(values, values, SEED, 0.5)
    assert values.isnan().all()
    assert torch.nn.functional.dropout(torch.full((20, 20), torch.nan), 0.5).isnan().all()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_does_not_matter(threads):
    values = torch.ones(1000, 50)
    before = numba.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    try:
        dropout_cpu.dropout(values, values, SEED, 0.5)
    finally:
        numba.set_num_threads(before)
    assert torch.equal(values.bool(), kept(SEED, 0.5, 1000, 50))


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_the_share_that_is_dropped(rate):
    """Of a million, for many seeds, within five standard errors: in all, in each row and in each column."""
    for seed in draw_seeds(3, torch.device("cpu")):
        dropped = (~kept(seed, rate, 1000, 1000)).double()
        for shares, count in ((dropped.mean(), 1e6), (dropped.mean(0), 1000), (dropped.mean(1), 1000)):
            assert (shares - rate).abs().max() < 5 * (rate * (1 - rate) / count) ** 0.5


def test_neighbours_and_seeds_are_independent():
    """Agreement of the masks of shifted rows, shifted columns, and of seeds that differ by little, as of coins."""
    torch.manual_seed(4)
    (seed,) = draw_seeds(1, torch.device("cpu"))
    mask = kept(seed, 0.5, 1000, 1000)
    others = [seed + torch.tensor([1, 0]), seed + torch.tensor([0, 1]), seed.flip(0), seed ^ 256]
    pairs = [(mask, kept(other % 2**32, 0.5, 1000, 1000)) for other in others]
    pairs += [(mask[step:], mask[:-step]) for step in (1, 2, 16, 256)]
    pairs += [(mask[:, step:], mask[:, :-step]) for step in (1, 2, 16, 256)]
    for one, other in pairs:
        assert abs((one == other).double().mean() - 0.5) < 5 * 0.5 / one.numel() ** 0.5


def test_counters_go_on_beyond_32_bits():
    """Elements 2^32 apart have the same mask, and no number overflows on the way."""
    assert threshold(1 - 1e-12) < 2**31
    assert threshold(0) == 0
    assert kept(SEED, 0.0, 10, 10).all()


def test_the_interpreted_triton_pass(triton_device):
    from gigabatch.models.kernels.dropout import cuda as dropout_cuda

    torch.manual_seed(2)
    for dtype in (torch.float32, *cases.LOW):
        for shape, scale in (((40, 33), torch.randn(33)), ((300, 5), None), ((0, 4), None)):
            values = torch.randn(shape).to(triton_device, dtype)
            moves = () if scale is None else (scale.to(triton_device), scale.to(triton_device) + 1)
            found = torch.full_like(values, 7.0)
            dropout_cuda.dropout(values, found, SEED.to(triton_device), 0.3, *moves)
            moved = values.double() if scale is None else values.double() * moves[0].double() + moves[1].double()
            exact = moved * kept(SEED.to(triton_device), 0.3, *shape) / 0.7
            near = {"rtol": max(torch.finfo(dtype).eps, 2**-20), "atol": 1e-6}  # the interpreter cuts bits off
            torch.testing.assert_close(found.double(), exact, **near)
            wide = torch.zeros(len(values), shape[1] + 3, dtype=dtype, device=triton_device)
            wide[:, : shape[1]] = values
            dropout_cuda.dropout(wide[:, : shape[1]], wide[:, : shape[1]], SEED.to(triton_device), 0.3, *moves)
            assert torch.equal(wide[:, : shape[1]], found)
            assert not wide[:, shape[1] :].any()


@pytest.mark.parametrize("start", [40, 2**31 + 2, 2**32 - 3])
def test_the_triton_masks_start_where_they_are_told(triton_device, start):
    from gigabatch.models.kernels.dropout import cuda as dropout_cuda
    from gigabatch.models.kernels.folded import cuda as folded_cuda

    seed, ones = SEED.to(triton_device), torch.ones(7, 6, device=triton_device)
    expected = kept(seed, 0.5, 7, 6, start)
    found = torch.empty_like(ones)
    dropout_cuda.dropout(ones, found, seed, 0.5, start=start)
    assert torch.equal(found.bool(), expected)
    sums, _ = folded_cuda.dropped_sums(ones, ones, seed, 0.5, start)
    assert sums.tolist() == (2.0 * expected.sum(0)).tolist()
    moved, zeros = ones.clone(), torch.zeros(6, device=triton_device)
    folded_cuda.norm_relu_backward(moved, ones, zeros, zeros, torch.ones_like(zeros), seed, 0.5, start)
    assert torch.equal(moved.bool(), expected)
