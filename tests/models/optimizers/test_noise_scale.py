"""The gradient noise scale against linear regression, whose gradient noise is known in closed form."""

import contextlib
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gigabatch.models.errors import ModelError
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.optimizers.noise_scale import measure_noise_scale, noise_scale_of_norms

SCALES = np.array([0.5, 1.0, 2.0])  # standard deviations of the inputs
NOISE = 0.7  # of the targets


class Rows(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor

    @property
    def num_rows(self) -> int:
        return len(self.x)


def linear_batches(rows: int, count: int, seed: int, true: np.ndarray):
    random = np.random.default_rng(seed)
    for _ in range(count):
        x = random.normal(size=(rows, 3)) * SCALES
        y = x @ true + NOISE * random.normal(size=rows)
        yield Rows(torch.tensor(x), torch.tensor(y))


def regression(weight: np.ndarray) -> nn.Linear:
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(weight))
    return model


def truth(distance: np.ndarray) -> tuple[float, float]:
    """(|G|^2, tr Sigma) of the squared error at `distance` d from the true weights, for normal inputs of covariance C.

    A row's gradient is 2 (x.d - e) x. Its mean is 2 C d. By Isserlis' theorem E (x.d)^2 x x' = 2 C d d' C + (d' C d) C,
    so its covariance is 4 [C d d' C + (d' C d + s^2) C].
    """
    c = np.diag(SCALES**2)
    pull = c @ distance
    trace = 4 * (pull @ pull + (distance @ c @ distance + NOISE**2) * np.trace(c))
    return float(4 * pull @ pull), float(trace)


@pytest.mark.parametrize("distance", [[1.0, -1.0, 0.5], [0.1, 0.1, 0.1]], ids=["far", "near"])
def test_linear_regression_has_the_noise_scale_of_its_closed_form(distance):
    distance = np.array(distance)
    true = np.array([0.3, -0.2, 0.9])
    model = regression(true + distance)
    batches = linear_batches(64, 4000, 3, true)
    found = measure_noise_scale(
        model, lambda b: (model(b.x)[:, 0] - b.y).square().mean(), batches, num_small=20, num_large=200
    )
    squared, trace = truth(distance)
    assert found.trace == pytest.approx(trace, rel=0.03)
    assert found.squared_gradient == pytest.approx(squared, rel=0.05)
    assert found.simple == pytest.approx(trace / squared, rel=0.06)
    assert abs(found.simple - trace / squared) < 4 * found.standard_error
    assert found.standard_error < 0.05 * found.simple
    assert model.weight.grad is None


@given(squared=st.floats(0.01, 100), trace=st.floats(0.0, 1e4), small=st.integers(1, 50), factor=st.integers(2, 50))
def test_exact_norms_give_back_what_they_were_made_of(squared, trace, small, factor):
    """E |G_B|^2 = |G|^2 + tr(Sigma) / B, equation A.1 of the paper."""
    large = small * factor
    found = noise_scale_of_norms([squared + trace / small], [squared + trace / large], small, large)
    assert found.squared_gradient == pytest.approx(squared, rel=1e-6, abs=1e-9 * trace)
    assert found.trace == pytest.approx(trace, rel=1e-6, abs=1e-6 * squared * large)
    assert math.isnan(found.standard_error)


def test_the_standard_error_is_that_of_a_plain_jackknife():
    small, large = [5.0, 6.0, 4.5, 5.5], [2.0, 2.5, 1.5, 2.2]
    found = noise_scale_of_norms(small, large, 8, 32)
    left = []
    for out in range(4):
        keep = [i for i in range(4) if i != out]
        s, b = np.mean([small[i] for i in keep]), np.mean([large[i] for i in keep])
        left.append(((s - b) / (1 / 8 - 1 / 32)) / ((32 * b - 8 * s) / 24))
    expected = math.sqrt(3 / 4 * np.sum((np.array(left) - np.mean(left)) ** 2))
    assert found.standard_error == pytest.approx(expected)


def test_noise_alone_has_no_finite_scale():
    assert noise_scale_of_norms([4.0, 4.0], [1.0, 0.9], 8, 32).simple == math.inf


def test_a_parameter_that_the_loss_does_not_use_counts_as_zero():
    model = nn.ModuleDict({"used": nn.Linear(3, 1, bias=False, dtype=torch.float64), "unused": nn.Linear(3, 1)})
    used = model["used"]

    def loss(batch):
        return (used(batch.x)[:, 0] - batch.y).square().mean()

    both = measure_noise_scale(model, loss, linear_batches(32, 8, 1, np.ones(3)), num_small=4, num_large=2)
    alone = measure_noise_scale(used, loss, linear_batches(32, 8, 1, np.ones(3)), num_small=4, num_large=2)
    assert both == alone


class Ids(NamedTuple):
    ids: torch.Tensor
    y: torch.Tensor

    @property
    def num_rows(self) -> int:
        return len(self.ids)


def table_batches(count: int):
    draw = torch.Generator().manual_seed(0)
    return [Ids(torch.randint(4, (8, 1), generator=draw), torch.randn(8, 2, generator=draw)) for _ in range(count)]


def test_tables_whose_gradients_are_rows_are_refused_by_name():
    """They were left out, without a word."""
    model = nn.ModuleDict({"own": EmbeddingTables([4], [2]), "other": EmbeddingTables([4], [2])})

    def loss(batch):
        return (model["own"](batch.ids) + model["other"](batch.ids) - batch.y).square().mean()

    measure_noise_scale(model, loss, table_batches(2), num_small=2, num_large=1)
    model["other"].gradients = "rows"
    with pytest.raises(ModelError, match=r"noise scale: the gradients of other are rows.*gradients = 'dense'"):
        measure_noise_scale(model, loss, table_batches(2), num_small=2, num_large=1)


@pytest.mark.parametrize("count", [4, 3])  # enough batches, and one too few
def test_running_statistics_are_left_as_they_were(count):
    model = nn.Sequential(nn.Linear(3, 4, dtype=torch.float64), nn.BatchNorm1d(4, dtype=torch.float64)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batches = list(linear_batches(8, count, 0, np.ones(3)))
    with contextlib.suppress(ModelError):
        measure_noise_scale(model, lambda b: model(b.x).sin().mean(), batches, num_small=2, num_large=2)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: noise_scale_of_norms([1.0], [1.0], 8, 8), "two batch sizes, the small one first, not 8 and 8"),
        (lambda: noise_scale_of_norms([1.0], [], 8, 16), "1 norms of small and 0 of large"),
        (lambda: noise_scale_of_norms([], [], 8, 16), "as many of both"),
    ],
)
def test_norms_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ModelError, match=message):
        call()


@pytest.mark.parametrize(
    ("batches", "num_small", "message"),
    [
        (lambda: linear_batches(8, 3, 0, np.ones(3)), 4, "4 batches are needed, there were fewer"),
        (lambda: linear_batches(8, 4, 0, np.ones(3)), 1, "at least 2 small ones, not 1"),
        (lambda: (b for n in (8, 9) for b in linear_batches(n, 1, 0, np.ones(3))), 2, r"same number of rows.*\[8, 9\]"),
        (lambda: linear_batches(8, 2, 0, np.full(3, 1e200)), 2, "gradient is not finite"),
    ],
)
def test_batches_that_do_not_fit_are_refused(batches, num_small, message):
    model = regression(np.zeros(3))
    with pytest.raises(ModelError, match=message):
        measure_noise_scale(
            model,
            lambda b: (model(b.x)[:, 0] - b.y).square().mean(),
            batches(),
            num_small=num_small,
            num_large=1,
        )
