"""The Triton passes of the folded network against float64."""

import numpy as np
import pytest
import torch

from gigabatch.models.kernels.dropout.reference import kept
from tests.models.kernels import cases

SHAPES = [(1, 1), (70, 20), (900, 64), (300, 130), (40, 33), (0, 5)]
DTYPES = [torch.float32, *cases.LOW]


def random_values(seed, shape, device, dtype=torch.float32):
    return torch.tensor(np.random.default_rng(seed).normal(0.5, 1, size=shape), dtype=torch.float32).to(device, dtype)


def assert_rounded(device, found, exact):
    """Rounded once: to nearest on the GPU, for bfloat16 towards zero in the interpreter; to float32 before."""
    eps = torch.finfo(found.dtype).eps / 2
    if found.dtype == torch.bfloat16 and device == "cpu":
        eps *= 2
    torch.testing.assert_close(found.double().cpu(), exact.cpu(), rtol=eps + 2**-22, atol=2**-22, check_dtype=False)


def assert_sums(found, values, factor=1):
    """Sums [N] float64 of [B, N], taken in float32 over up to 4,096 rows at a time (pairwise: 12 roundings)."""
    assert found.dtype == torch.float64
    bound = factor * 12 * 2**-24 * values.abs().sum(0) + 1e-12
    assert bool(((found.cpu() - values.sum(0).cpu()).abs() <= bound.cpu()).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_column_moments(triton_device, shape, dtype):
    from gigabatch.models.kernels.folded import cuda as folded_cuda

    values = random_values(1, shape, triton_device, dtype)
    kept = values.clone()
    sums, squares = folded_cuda.column_moments(values)
    assert_sums(sums, kept.double())
    assert_sums(squares, kept.double().square())
    assert torch.equal(values, kept)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_relu_moments(triton_device, shape, dtype, with_bias):
    from gigabatch.models.kernels.folded import cuda as folded_cuda

    values = random_values(2, shape, triton_device, dtype)
    bias = random_values(3, shape[1:], triton_device) if with_bias else None
    exact = (values.double() + (bias.double() if with_bias else 0)).clamp(min=0)
    sums, squares = folded_cuda.relu_moments(values, bias)
    assert_rounded(triton_device, values, exact)
    assert_sums(sums, values.double())  # of what is stored
    assert_sums(squares, values.double().square(), 3)  # twice by way of the mean


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_norm_relu_backward(triton_device, shape, dtype):
    from gigabatch.models.kernels.folded import cuda as folded_cuda

    gradient, hidden = (random_values(seed, shape, triton_device, dtype) for seed in (4, 5))
    hidden.clamp_(min=0)
    slope, offset = (random_values(seed, shape[1:], triton_device) for seed in (6, 7))
    exact = gradient.double() + slope.double() * hidden.double() + offset.double()
    exact[hidden <= 0] = 0
    sums = folded_cuda.norm_relu_backward(gradient, hidden, slope, offset)
    # slope * hidden and the sums are rounded to float32 before they are rounded once more
    eps = 2**-21 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(gradient.double(), exact, rtol=eps, atol=2**-19)
    assert_sums(sums, gradient.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_way_back_through_dropout(triton_device, shape, dtype):
    from gigabatch.models.kernels.folded import cuda as folded_cuda

    gradient, hidden = (random_values(seed, shape, triton_device, dtype) for seed in (4, 5))
    hidden.clamp_(min=0)
    slope, offset, scale = (random_values(seed, shape[1:], triton_device) for seed in (6, 7, 11))
    seed = torch.tensor([5, 2**32 - 2], device=triton_device)
    left = gradient.double() * kept(seed, 0.3, *shape) / 0.7
    sums, products = folded_cuda.dropped_sums(gradient, hidden, seed, 0.3)
    assert_sums(sums, left)
    assert_sums(products, left * hidden.double())
    exact = left * scale.double() + slope.double() * hidden.double() + offset.double()
    exact[hidden <= 0] = 0
    sums = folded_cuda.norm_relu_backward(gradient, hidden, slope, offset, scale, seed, 0.3)
    eps = max(torch.finfo(dtype).eps, 2**-20)
    torch.testing.assert_close(gradient.double(), exact, rtol=eps, atol=2**-18)
    assert_sums(sums, gradient.double())


def test_columns_inside_wider_rows(triton_device):
    from gigabatch.models.kernels.folded import cuda as folded_cuda

    wide = random_values(8, (100, 30), triton_device)
    kept = wide.clone()
    sums, _ = folded_cuda.relu_moments(wide[:, 7:20])
    assert_sums(sums, kept[:, 7:20].double().clamp(min=0))
    assert torch.equal(wide[:, :7], kept[:, :7])
    assert torch.equal(wide[:, 20:], kept[:, 20:])


def test_nan_is_kept(triton_device):
    from gigabatch.models.kernels.folded import cuda as folded_cuda

    values = random_values(9, (10, 3), triton_device)
    values[4, 1] = float("nan")
    sums, squares = folded_cuda.relu_moments(values)
    assert sums.isnan().tolist() == squares.isnan().tolist() == [False, True, False]
    assert bool(values[4, 1].isnan())


def test_programs_that_walk_many_tiles(triton_device, monkeypatch):
    from gigabatch.models.kernels.folded import cuda as folded_cuda

    monkeypatch.setattr(folded_cuda, "PROGRAMS", 3)
    monkeypatch.setattr(folded_cuda, "TILE", 64)
    values = random_values(10, (500, 10), triton_device)
    sums, squares = folded_cuda.column_moments(values)
    assert_sums(sums, values.double())
    assert_sums(squares, values.double().square())


def test_moments_of_values_far_from_zero_keep_their_variance(triton_device):
    from gigabatch.models.kernels.folded import cuda as folded_cuda

    values = torch.tensor(1e4 + np.random.default_rng(3).normal(size=(3_000, 2)), dtype=torch.float32)
    sums, squares = (found.cpu().numpy() for found in folded_cuda.column_moments(values.to(triton_device)))
    exact = values.double().numpy()
    np.testing.assert_allclose(squares / 3_000 - (sums / 3_000) ** 2, exact.var(axis=0), rtol=1e-4)


@pytest.mark.parametrize("with_bias", [False, True])
def test_moments_of_activations_far_from_zero_keep_their_variance(triton_device, with_bias):
    from gigabatch.models.kernels.folded import cuda as folded_cuda

    values = torch.tensor(np.random.default_rng(3).normal(size=(3_000, 2)), dtype=torch.float32).to(triton_device)
    bias = torch.full((2,), 1000.0, device=triton_device)
    if not with_bias:
        values += bias
    sums, squares = (found.cpu().numpy() for found in folded_cuda.relu_moments(values, bias if with_bias else None))
    exact = values.double().cpu().numpy()
    np.testing.assert_allclose(squares / 3_000 - (sums / 3_000) ** 2, exact.var(axis=0), rtol=2e-5)
