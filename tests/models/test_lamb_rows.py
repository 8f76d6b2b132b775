"""Row-wise LAMB on embedding tables against a slow float64 loop and against FBGEMM's own test formula."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from models import Lamb

ROWS, WIDTH = 6, 3
BETAS, EPS, LR, DECAY = (0.9, 0.99), 1e-6, 0.1, 0.02


def slow_rows(table, gradients, second_moment, row_step, trust_clip):
    """Final table [V, D] by a loop over steps and rows; gradients: one {row: [D]} of the touched rows for each step."""
    table = table.copy()
    m = np.zeros_like(table)
    v = np.zeros_like(table) if second_moment == "full" else np.zeros(len(table))
    own_steps = np.zeros(len(table), dtype=int)
    for step, touched in enumerate(gradients, start=1):
        for row, g in touched.items():
            own_steps[row] += 1
            t = own_steps[row] if row_step == "row" else step
            m[row] = BETAS[0] * m[row] + (1 - BETAS[0]) * g
            v[row] = BETAS[1] * v[row] + (1 - BETAS[1]) * (g**2 if second_moment == "full" else np.mean(g**2))
            u = (m[row] / (1 - BETAS[0] ** t)) / (np.sqrt(v[row] / (1 - BETAS[1] ** t)) + EPS) + DECAY * table[row]
            w_norm, u_norm = np.linalg.norm(table[row]), np.linalg.norm(u)
            ratio = min(w_norm / u_norm, trust_clip or np.inf) if w_norm > 0 and u_norm > 0 else 1.0
            table[row] = table[row] - LR * ratio * u
    return table


def make(table, **arguments):
    parameter = nn.Parameter(torch.tensor(table))
    settings = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY, "rowwise": True} | arguments
    return Lamb([parameter], **settings), parameter


def dense(touched, like):
    gradient = torch.zeros_like(like)
    for row, values in touched.items():
        gradient[row] = torch.tensor(values)
    return gradient


def sparse(touched, like):
    """A COO gradient that lists every row twice, in falling order: a quarter of its gradient and three quarters."""
    rows = sorted(touched, reverse=True) * 2
    half = len(rows) // 2
    values = [torch.tensor(touched[row]) * (0.25 if i < half else 0.75) for i, row in enumerate(rows)]
    values = torch.stack(values) if values else like.new_zeros(0, like.shape[1])
    return torch.sparse_coo_tensor(torch.tensor([rows], dtype=torch.int64), values, like.shape, check_invariants=True)


def run(optimizer, parameter, gradients, make_gradient):
    for touched in gradients:
        parameter.grad = make_gradient(touched, parameter.detach())
        optimizer.step()
    return parameter.detach().numpy()


def random_gradients(random, num_steps=5):
    """Each row is touched at about half of the steps."""
    return [{row: random.normal(size=WIDTH) for row in range(ROWS) if random.random() < 0.5} for _ in range(num_steps)]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    second_moment=st.sampled_from(["scalar", "full"]),
    row_step=st.sampled_from(["global", "row"]),
    trust_clip=st.sampled_from([None, 10.0, 0.3]),
    make_gradient=st.sampled_from([dense, sparse]),
)
def test_rows_follow_a_slow_loop(seed, second_moment, row_step, trust_clip, make_gradient):
    random = np.random.default_rng(seed)
    table = random.normal(size=(ROWS, WIDTH))
    table[0] = 0  # the zero guard
    gradients = random_gradients(random)
    optimizer, parameter = make(
        table, rowwise_second_moment=second_moment, rowwise_step=row_step, trust_clip=trust_clip
    )
    found = run(optimizer, parameter, gradients, make_gradient)
    np.testing.assert_allclose(
        found, slow_rows(table, gradients, second_moment, row_step, trust_clip), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("second_moment", ["scalar", "full"])
def test_first_step_equals_the_formula_of_fbgemms_own_test(second_moment):
    """Semantics of pytorch/FBGEMM backward_optimizers_test.py, branch LAMB / PARTIAL_ROWWISE_LAMB, after one step.

    There, whole tables are compared at once: moments start at zero, v is the row mean of g^2 for the partial form,
    bias correction uses the global iteration, weight decay is inside the update, the ratio is norm(w) / norm(u) by row
    without bound, and no gradient is clipped. It has no zero guard, so no row is zero here.
    """
    random = np.random.default_rng(7)
    w, g = random.normal(size=(2, ROWS, WIDTH))
    m, v = (1 - BETAS[0]) * g, (1 - BETAS[1]) * g**2
    if second_moment == "scalar":
        v = v.mean(axis=1, keepdims=True)
    u = (m / (1 - BETAS[0])) / (np.sqrt(v / (1 - BETAS[1])) + EPS) + DECAY * w
    ratio = np.linalg.norm(w, axis=1, keepdims=True) / np.linalg.norm(u, axis=1, keepdims=True)

    optimizer, parameter = make(w, rowwise_second_moment=second_moment, trust_clip=None)
    found = run(optimizer, parameter, [dict(enumerate(g))], sparse)
    np.testing.assert_allclose(found, w - LR * ratio * u, rtol=1e-12)
    state = optimizer.state[parameter]
    np.testing.assert_allclose(state["exp_avg"], m, rtol=1e-12)
    np.testing.assert_allclose(state["exp_avg_sq"], v, rtol=1e-12)


@pytest.mark.parametrize("make_gradient", [dense, sparse])
def test_rows_that_a_batch_does_not_touch_stay_bit_equal_with_their_moments(make_gradient):
    random = np.random.default_rng(8)
    optimizer, parameter = make(random.normal(size=(ROWS, WIDTH)), rowwise_step="row")
    everything = {row: random.normal(size=WIDTH) for row in range(ROWS)}
    run(optimizer, parameter, [everything], make_gradient)
    state = optimizer.state[parameter]
    before = [tensor.clone() for tensor in (parameter.detach(), *state.values())]
    run(optimizer, parameter, [{2: everything[2], 5: everything[5]}], make_gradient)
    for old, new in zip(before, (parameter.detach(), *state.values()), strict=True):
        changed = (old != new).any(dim=1)
        assert changed.tolist() == [False, False, True, False, False, True]


def test_scalar_second_moment_keeps_one_number_a_row():
    optimizer, parameter = make(np.ones((ROWS, WIDTH)))
    run(optimizer, parameter, [{1: np.ones(WIDTH)}], sparse)
    assert optimizer.state[parameter]["exp_avg_sq"].shape == (ROWS, 1)


def test_a_row_of_zeros_learns():
    """FBGEMM leaves such a row at zero for ever; with the guard its first step is -lr sign(g)."""
    optimizer, parameter = make(np.zeros((ROWS, WIDTH)), rowwise_second_moment="full", weight_decay=0.0)
    found = run(optimizer, parameter, [{3: np.array([2.0, -1.0, 0.5])}], sparse)
    np.testing.assert_allclose(found[3], [-LR, LR, -LR], rtol=1e-4)


def test_rows_adapt_even_without_weight_decay():
    random = np.random.default_rng(9)
    table = random.normal(size=(ROWS, WIDTH))
    optimizer, parameter = make(table, weight_decay=0.0, trust_clip=None)
    found = run(optimizer, parameter, [dict(enumerate(random.normal(size=(ROWS, WIDTH))))], dense)
    steps = np.linalg.norm(found - table, axis=1)
    np.testing.assert_allclose(steps, LR * np.linalg.norm(table, axis=1), rtol=1e-12)


def test_a_table_that_is_not_rowwise_has_one_ratio():
    random = np.random.default_rng(10)
    table, gradient = random.normal(size=(2, ROWS, WIDTH))
    optimizer, parameter = make(table, rowwise=False, max_grad_norm=None, trust_clip=None)
    found = run(optimizer, parameter, [dict(enumerate(gradient))], dense)
    assert np.linalg.norm(found - table) == pytest.approx(LR * np.linalg.norm(table))


def test_an_empty_sparse_gradient_changes_nothing():
    table = np.random.default_rng(11).normal(size=(ROWS, WIDTH))
    optimizer, parameter = make(table)
    np.testing.assert_array_equal(run(optimizer, parameter, [{}, {}], sparse), table)


@pytest.mark.gpu
@pytest.mark.parametrize("make_gradient", [dense, sparse])
def test_rows_on_the_gpu_follow_the_cpu(make_gradient):
    random = np.random.default_rng(12)
    table, gradients = random.normal(size=(ROWS, WIDTH)), random_gradients(random)
    optimizer, parameter = make(table)
    expected = run(optimizer, parameter, gradients, make_gradient)
    on_gpu = nn.Parameter(torch.tensor(table, device="cuda"))
    optimizer = Lamb([on_gpu], LR, BETAS, EPS, DECAY, rowwise=True)
    for touched in gradients:
        on_gpu.grad = make_gradient(touched, torch.tensor(table)).cuda()
        optimizer.step()
    np.testing.assert_allclose(on_gpu.detach().cpu().numpy(), expected, rtol=1e-10)
