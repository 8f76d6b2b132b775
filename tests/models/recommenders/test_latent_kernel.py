"""The ARD kernel against scikit-learn's and its average against quadrature; draws of latent inputs."""

import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from gigabatch.models.recommenders.gplvmf import ArdKernel, LatentInputs, draw

L, D = 3, 2
KERNEL = ArdKernel(
    torch.tensor([0.3], dtype=torch.float64),
    torch.tensor([[0.5, 1.5], [0.0, 2.0], [3.0, 0.1]], dtype=torch.float64),
    torch.tensor([0.7, 0.2], dtype=torch.float64),
)


def tables(seed=0, num_ids=4):
    """Means and deviations of q(x) of each column's ids: [L, num_ids, D]."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(L, num_ids, D, generator=generator, dtype=torch.float64)
    return mean, 0.1 + torch.rand(L, num_ids, D, generator=generator, dtype=torch.float64)


def inputs(shape, seed=1, num_ids=4):
    """Rows of this shape whose ids are drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(num_ids, (*shape, L), generator=generator)
    mean, deviation = tables(num_ids=num_ids)
    columns = torch.arange(L)
    floats = torch.randn(*shape, 2, generator=generator, dtype=torch.float64)
    return LatentInputs(ids, mean[columns, ids], deviation[columns, ids].square(), floats)


def test_kernel_of_known_inputs_equals_sklearns():
    rows = inputs((5, 7))
    with np.errstate(divide="ignore"):
        lengths = torch.cat([KERNEL.latent.flatten(), KERNEL.floats]).rsqrt().numpy()  # infinite where irrelevant
    expected = ConstantKernel(math.exp(0.3)) * RBF(lengths)
    found = KERNEL.at(rows.mean, rows.floats)
    for user in range(5):
        points = torch.cat([rows.mean[user].flatten(1), rows.floats[user]], dim=1).numpy()
        np.testing.assert_allclose(found[user], expected(points), rtol=1e-9)


@pytest.mark.parametrize("offsets", [[1e4, 1e4], [0.0, 1e6]])
def test_an_offset_of_the_floats_changes_nothing_in_float32(offsets):
    """Also where a user has rows on both sides of a wide gap."""
    rows = inputs((3, 8))
    latent, floats = rows.mean.float(), rows.floats.float()
    floats[:, ::2] += offsets[0]
    floats[:, 1::2] += offsets[1]
    found = ArdKernel(*(part.float() for part in KERNEL)).at(latent, floats)
    expected = KERNEL.at(latent.double(), torch.zeros_like(floats.double()))
    for user in range(3):
        points = (floats[user].double() * KERNEL.floats.sqrt()).numpy()
        expected[user] *= torch.from_numpy(RBF()(points))
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)


def test_expected_kernel_equals_quadrature():
    """E over both latent inputs, number by number, by Gauss-Hermite; equal ids are the same vector."""
    one, two = inputs((12,), seed=1), inputs((9,), seed=2)
    found = KERNEL.expected(one.unsqueeze(1), two.unsqueeze(0))
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    mean, deviation = tables()
    equal = 0
    for a in range(12):
        for b in range(9):
            gap = (one.floats[a] - two.floats[b]).numpy()
            expected = math.exp(0.3 - 0.5 * (KERNEL.floats.numpy() * gap**2).sum())
            for column in range(L):
                x, y = int(one.ids[a, column]), int(two.ids[b, column])
                equal += x == y
                if x == y:
                    continue
                spreads = torch.hypot(deviation[column, x], deviation[column, y])
                for q in range(D):
                    differences = (mean[column, x, q] - mean[column, y, q]).item() + spreads[q].item() * nodes
                    values = np.exp(-0.5 * KERNEL.latent[column, q].item() * differences**2)
                    expected *= (weights * values).sum() / weights.sum()
            np.testing.assert_allclose(found[a, b], expected, rtol=1e-6)
    assert equal > 50


def test_draws_average_to_the_expected_kernel():
    rows = inputs((2, 6))
    torch.manual_seed(0)
    average = torch.stack([KERNEL.at(draw(rows), rows.floats) for _ in range(4000)]).mean(0)
    expected = KERNEL.expected(rows.unsqueeze(2), rows.unsqueeze(1))
    torch.testing.assert_close(average, expected, atol=0.02, rtol=0)


def test_draws_are_of_q_and_shared_by_equal_ids_of_a_user():
    rows = inputs((2, 12))
    torch.manual_seed(0)
    draws = torch.stack([draw(rows) for _ in range(4000)])
    torch.testing.assert_close(draws.mean(0), rows.mean, atol=0.08, rtol=0)
    torch.testing.assert_close(draws.var(0), rows.variance, atol=0.01, rtol=0.12)
    for column in range(L):
        for user in range(2):
            ids, drawn = rows.ids[user, :, column], draws[0, user, :, column]
            assert torch.equal((drawn[:, None] == drawn[None]).all(-1), ids[:, None] == ids[None])
    shared = int(rows.ids[0, 0, 0])
    other = rows.ids[1, :, 0].tolist().index(shared)  # the other user has the id too, and draws it apart
    assert (draws[:, 0, 0, 0] != draws[:, 1, other, 0]).all()
