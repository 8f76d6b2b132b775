"""Elementwise passes of the folded network: the plain and the numba version against NumPy in float64."""

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.models.kernels.dropout.reference import kept
from gigabatch.models.kernels.folded import cpu as folded_cpu
from gigabatch.models.kernels.folded import reference as folded_reference
from tests.examples import examples
from tests.models.kernels import cases

VERSIONS = pytest.mark.parametrize("passes", [folded_reference, folded_cpu], ids=["reference", "cpu"])
SINGLE, HALF = torch.float32, torch.bfloat16
DTYPES = (SINGLE, *cases.LOW)
SIZES = st.tuples(st.integers(1, 600), st.integers(1, 40))  # rows, columns: blocks have 256 rows
SUM_TOLERANCE = {"rtol": 2e-5, "atol": 1e-3}  # of up to 600 terms of size about 1 (squares 1, some 10), in float32


def rounded(values, dtype):
    """Float64 values rounded once to float32 and then to `dtype`, as float64 again."""
    return torch.tensor(values, dtype=torch.float32).to(dtype).double().numpy()


def draw(seed, *shape, dtype=SINGLE):
    """Normal values that `dtype` holds, as a tensor of it."""
    return torch.tensor(np.random.default_rng(seed).normal(size=shape), dtype=torch.float32).to(dtype)


def assert_sums(found, values):
    for sums, wanted in zip(found, (values.sum(0), np.square(values).sum(0)), strict=True):
        assert sums.dtype == torch.float64
        np.testing.assert_allclose(sums.numpy(), wanted, **SUM_TOLERANCE)


@VERSIONS
@settings(max_examples=examples(40))
@given(size=SIZES, seed=st.integers(0, 1000), dtype=st.sampled_from(DTYPES))
def test_moments_of_columns(passes, size, seed, dtype):
    values = draw(seed, *size, dtype=dtype)
    before = values.clone()
    assert_sums(passes.column_moments(values), before.double().numpy())
    assert torch.equal(values, before)


@VERSIONS
def test_moments_of_columns_far_from_zero_still_give_their_variance(passes):
    """Years, amounts, timestamps: mean 1e4 and spread 1. In float32 the squares alone would be off by 6."""
    values = draw(0, 3000, 2) + torch.tensor([1e4, -2e3])
    sums, squares = passes.column_moments(values)
    variance = squares / 3000 - (sums / 3000).square()
    np.testing.assert_allclose(variance.numpy(), values.double().numpy().var(0), rtol=1e-5)


@VERSIONS
def test_moments_of_columns_inside_packed_rows(passes):
    whole = draw(1, 500, 12)
    assert_sums(passes.column_moments(whole[:, 3:8]), whole[:, 3:8].double().numpy())


@VERSIONS
@settings(max_examples=examples(40))
@given(size=SIZES, seed=st.integers(0, 1000), dtype=st.sampled_from(DTYPES), biased=st.booleans())
def test_relu_with_bias_and_moments_of_its_result(passes, size, seed, dtype, biased):
    values, bias = draw(seed, *size, dtype=dtype), draw(seed + 1, size[1]) if biased else None
    shifted = values.double().numpy() + (bias.double().numpy() if biased else 0)
    expected = rounded(np.maximum(shifted, 0), dtype)
    sums = passes.relu_moments(values, bias)
    np.testing.assert_array_equal(values.double().numpy(), expected)
    assert_sums(sums, expected)


@VERSIONS
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("mean", "deviation"), [(100, 0.1), (1000, 1), (1e5, 10)])
def test_moments_of_activations_far_from_zero_still_give_their_variance(passes, mean, deviation, biased):
    """A hidden column whose mean is far above its deviation. Squares added in float32 were 6 to 12 % off."""
    values = draw(0, 3000, 3) * deviation + (0 if biased else mean)
    sums, squares = passes.relu_moments(values, torch.full((3,), float(mean)) if biased else None)
    exact = values.double().numpy()  # as they were rounded
    np.testing.assert_allclose((sums / 3000).numpy(), exact.mean(0), rtol=1e-6)
    np.testing.assert_allclose((squares / 3000 - (sums / 3000).square()).numpy(), exact.var(0), rtol=1e-4)


@VERSIONS
def test_a_column_that_is_rarely_active_keeps_its_variance(passes):
    values = torch.full((3000, 2), -1.0)
    values[::100] = draw(0, 30, 2).abs() * 1e-3
    sums, squares = passes.relu_moments(values)
    variance = squares / 3000 - (sums / 3000).square()
    np.testing.assert_allclose(variance.numpy(), values.double().numpy().var(0), rtol=2e-6)


@VERSIONS
def test_an_activation_far_from_the_others_does_not_spoil_their_moments(passes):
    """Also as the first row of a block, which would be a poor choice of what to measure from."""
    values = draw(0, 3000, 2) + 1000
    values[0, 0] = values[256, 1] = -5
    sums, squares = passes.relu_moments(values)
    variance = squares / 3000 - (sums / 3000).square()
    np.testing.assert_allclose(variance.numpy(), values.double().numpy().var(0), rtol=2e-6)


@VERSIONS
@settings(max_examples=examples(40))
@given(size=SIZES, seed=st.integers(0, 1000), dtype=st.sampled_from(DTYPES))
def test_gradient_through_norm_and_relu(passes, size, seed, dtype):
    gradient, hidden = draw(seed, *size, dtype=dtype), draw(seed + 1, *size, dtype=dtype).clamp(min=0)
    slope, offset = draw(seed + 2, size[1]), draw(seed + 3, size[1])
    g, h, s, t = (tensor.double().numpy() for tensor in (gradient, hidden, slope, offset))
    expected = np.where(h > 0, g + s * h + t, 0)
    before = hidden.clone()
    sums = passes.norm_relu_backward(gradient, hidden, slope, offset)
    assert torch.equal(hidden, before)
    # three float32 roundings of terms up to 10; in a lower type half a unit of its last place as well
    found = gradient.double().numpy()
    np.testing.assert_allclose(found, expected, rtol=max(torch.finfo(dtype).eps / 2, 1e-6), atol=4e-6)
    assert not found[h == 0].any()
    assert sums.dtype == torch.float64
    np.testing.assert_allclose(sums.numpy(), found.sum(0), **SUM_TOLERANCE)


@VERSIONS
@settings(max_examples=examples(40))
@given(
    size=SIZES,
    seed=st.integers(0, 1000),
    dtype=st.sampled_from(DTYPES),
    rate=st.floats(0, 0.9, exclude_min=True),
)
def test_gradient_through_dropout_norm_and_relu(passes, size, seed, dtype, rate):
    gradient, hidden = draw(seed, *size, dtype=dtype), draw(seed + 1, *size, dtype=dtype).clamp(min=0)
    slope, offset, scale = draw(seed + 2, size[1]), draw(seed + 3, size[1]), draw(seed + 4, size[1])
    key = torch.tensor([seed, 2**32 - 1 - seed])
    g, h, s, t, a = (tensor.double().numpy() for tensor in (gradient, hidden, slope, offset, scale))
    left = g * kept(key, rate, *size).numpy() / (1 - rate)
    before = gradient.clone()
    near = {"rtol": 2e-5, "atol": 1e-3 / (1 - rate)}
    for found, wanted in zip(passes.dropped_sums(gradient, hidden, key, rate), (left, left * h), strict=True):
        assert found.dtype == torch.float64
        np.testing.assert_allclose(found.numpy(), wanted.sum(0), **near)
    assert torch.equal(gradient, before)
    sums = passes.norm_relu_backward(gradient, hidden, slope, offset, scale, key, rate)
    found = gradient.double().numpy()
    expected = np.where(h > 0, left * a + s * h + t, 0)
    np.testing.assert_allclose(found, expected, rtol=max(torch.finfo(dtype).eps / 2, 2e-6), atol=1e-5 / (1 - rate))
    np.testing.assert_allclose(sums.numpy(), found.sum(0), **near)


@VERSIONS
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_stays_one(passes, dtype):
    """A loss that blows up must be seen, not become zero in a ReLU."""
    values = torch.tensor([[float("nan"), 1.0], [2.0, -1.0]]).to(dtype)
    sums, squares = passes.relu_moments(values, torch.zeros(2))
    assert values.isnan().tolist() == [[True, False], [False, False]]
    assert sums.isnan().tolist() == squares.isnan().tolist() == [True, False]
    gradient, hidden = torch.full((1, 2), float("nan")).to(dtype), torch.tensor([[1.0, 0.0]]).to(dtype)
    sums = passes.norm_relu_backward(gradient, hidden, torch.zeros(2), torch.zeros(2))
    assert gradient.isnan().tolist() == [[True, False]]
    assert sums.isnan().tolist() == [True, False]


@VERSIONS
def test_a_nan_that_reached_an_activation_reaches_its_gradient(passes):
    for dtype in DTYPES:
        gradient, hidden = torch.ones(1, 1).to(dtype), torch.full((1, 1), float("nan")).to(dtype)
        passes.norm_relu_backward(gradient, hidden, torch.ones(1), torch.zeros(1))
        assert gradient.isnan().all()


@VERSIONS
@pytest.mark.parametrize("dtype", cases.LOW)
@settings(max_examples=examples(40))
@given(values=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_rounding_is_torchs(passes, dtype, values):
    """The values come as a bias, added to zeros: rounded to nearest even, and to infinity where they overflow."""
    bias = torch.tensor(values)
    found = torch.zeros(3, len(values), dtype=dtype)
    passes.relu_moments(found, bias)
    assert torch.equal(found, bias.clamp(min=0).to(dtype).expand(3, -1))


def test_the_same_bits_on_any_number_of_threads():
    values, bias = draw(2, 3000, 33, dtype=HALF), draw(3, 33)
    gradient, slope, offset = draw(4, 3000, 33, dtype=HALF), draw(5, 33), draw(6, 33)
    threads, results = numba.get_num_threads(), []
    try:
        for count in (1, min(2, threads)):
            numba.set_num_threads(count)
            hidden, delta = values.clone(), gradient.clone()
            sums = folded_cpu.relu_moments(hidden, bias)
            results.append([*sums, hidden, folded_cpu.norm_relu_backward(delta, hidden, slope, offset), delta])
    finally:
        numba.set_num_threads(threads)
    assert all(map(torch.equal, *results))
