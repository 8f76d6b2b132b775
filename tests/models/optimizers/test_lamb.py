"""Dense LAMB against a slow float64 loop over the equations, and against timm's Lamb, which was recorded."""

import copy
import io
import json
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gigabatch.models.errors import ModelError
from gigabatch.models.kernels.lamb import cpu as lamb_cpu
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.optimizers.lamb import Lamb, lamb_param_groups
from tests.devices import captured, no_waiting
from tests.examples import examples

RECORDED = Path(__file__).parents[1] / "data" / "timm_lamb.npz"
NUM_STEPS = 6


def slow_lamb(groups, gradients, lr, betas, eps, max_grad_norm, trust_clip, always_adapt, trust_floor=0.01):
    """Final weights, each group (weights, weight_decay) one array, by You et al. (1904.00962), element by element.

    gradients[step][g] belongs to group g. The clipping and the ratio of undecayed groups are NVIDIA apex'.
    """
    weights = [w.copy() for w, _ in groups]
    m, v = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    for t, step_gradients in enumerate(gradients, start=1):
        total = sum(float(x) ** 2 for g in step_gradients for x in g.flat) ** 0.5
        divisor = 1.0 if max_grad_norm is None else max(1.0, total / max_grad_norm)
        for i, (_, decay) in enumerate(groups):
            update = np.zeros_like(weights[i])
            for at in np.ndindex(*weights[i].shape):
                g = step_gradients[i][at] / divisor
                m[i][at] = betas[0] * m[i][at] + (1 - betas[0]) * g
                v[i][at] = betas[1] * v[i][at] + (1 - betas[1]) * g * g
                m_hat, v_hat = m[i][at] / (1 - betas[0] ** t), v[i][at] / (1 - betas[1] ** t)
                update[at] = m_hat / (v_hat**0.5 + eps) + decay * weights[i][at]
            w_norm, u_norm = (sum(x * x for x in a.flat) ** 0.5 for a in (weights[i], update))
            ratio = 1.0
            w_norm = max(w_norm, trust_floor * weights[i].size ** 0.5)  # phi of the paper, bounded below
            if (decay or always_adapt) and w_norm > 0 and u_norm > 0:
                ratio = min(w_norm / u_norm, np.inf if trust_clip is None else trust_clip)
            weights[i] = weights[i] - lr * ratio * update
    return weights


def make_optimizer(weights, decays, **arguments):
    """Lamb with one group an array; returns it with its parameters."""
    parameters = [nn.Parameter(torch.tensor(w)) for w in weights]
    groups = [{"params": [p], "weight_decay": d} for p, d in zip(parameters, decays, strict=True)]
    return Lamb(groups, **arguments), parameters


def run(optimizer, parameters, gradients):
    for step_gradients in gradients:
        for parameter, gradient in zip(parameters, step_gradients, strict=True):
            parameter.grad = torch.as_tensor(gradient).to(parameter)
        optimizer.step()


def random_problem(seed, num_steps=NUM_STEPS, shapes=((3, 4), (4,), (2, 3))):
    random = np.random.default_rng(seed)
    weights = [random.normal(size=shape) for shape in shapes]
    gradients = [[random.normal(size=s) * random.choice([0.01, 1.0]) for s in shapes] for _ in range(num_steps)]
    return weights, gradients


@settings(max_examples=examples(60))
@given(
    seed=st.integers(0, 2**31),
    max_grad_norm=st.sampled_from([None, 0.1, 1.0]),
    trust_clip=st.sampled_from([None, 10.0, 0.3]),
    trust_floor=st.sampled_from([0.0, 0.01, 2.0]),
    always_adapt=st.booleans(),
    decays=st.tuples(*[st.sampled_from([0.0, 0.01, 0.5])] * 3),
    betas=st.sampled_from([(0.9, 0.999), (0.0, 0.9), (0.95, 0.99)]),
    zeroed=st.sampled_from([None, 0, 2]),
    no_gradient=st.sampled_from([None, 1, 2]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_steps_equal_a_slow_loop_over_the_equations(
    seed, max_grad_norm, trust_clip, trust_floor, always_adapt, decays, betas, zeroed, no_gradient, dtype
):
    weights, gradients = random_problem(seed)
    weights = [w.astype(dtype) for w in weights]
    if zeroed is not None:
        weights[zeroed][:] = 0
    if no_gradient is not None:
        for step_gradients in gradients:
            step_gradients[no_gradient][:] = 0
    common = {"lr": 0.05, "betas": betas, "eps": 1e-6, "trust_clip": trust_clip, "always_adapt": always_adapt}
    common["trust_floor"] = trust_floor
    optimizer, parameters = make_optimizer(weights, decays, max_grad_norm=max_grad_norm, **common)
    run(optimizer, parameters, gradients)
    exact = [w.astype(np.float64) for w in weights]
    expected = slow_lamb(list(zip(exact, decays, strict=True)), gradients, max_grad_norm=max_grad_norm, **common)
    close = {"rtol": 1e-10, "atol": 1e-12} if dtype == np.float64 else {"rtol": 1e-5, "atol": 2e-6}
    for found, wanted in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(found.detach().numpy(), wanted, **close)


def test_large_and_small_parameters_move_alike():
    """A bundle of few elements is moved in one thread, one of many block by block."""
    random = np.random.default_rng(5)
    size = lamb_cpu.ONE_THREAD + 1
    common = random.normal(size=(size,)).astype(np.float32)
    gradients = [random.normal(size=(size,)).astype(np.float32) for _ in range(3)]
    results = []
    for part in (slice(None), slice(0, 1000)):  # no weight decay, so every element moves by itself
        optimizer, parameters = make_optimizer([common[part]], [0.0], lr=0.01, max_grad_norm=None)
        run(optimizer, parameters, [[gradient[part]] for gradient in gradients])
        results.append(parameters[0].detach().numpy()[:1000])
    np.testing.assert_allclose(*results, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("block", [1, 5, 12, 1 << 14])
@pytest.mark.parametrize("decay", [0.0, 0.02])
def test_blocks_equal_a_slow_loop_wherever_they_end(monkeypatch, block, decay):
    """Whole parameters, several, and parts of one; ratios of whole parameters all the same."""
    monkeypatch.setattr(lamb_cpu, "ONE_THREAD", 0)
    monkeypatch.setattr(lamb_cpu, "BLOCK", block)
    lamb_cpu.blocks_of.cache_clear()
    weights, gradients = random_problem(3)
    weights = [weight.astype(np.float32) for weight in weights]
    common = {"lr": 0.05, "betas": (0.9, 0.999), "eps": 1e-6, "trust_clip": 10.0, "trust_floor": 0.01}
    optimizer, parameters = make_optimizer(weights, [decay] * 3, max_grad_norm=0.3, **common)
    run(optimizer, parameters, gradients)
    lamb_cpu.blocks_of.cache_clear()
    exact = [(weight.astype(np.float64), decay) for weight in weights]
    expected = slow_lamb(exact, gradients, max_grad_norm=0.3, always_adapt=False, **common)
    for found, wanted in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-5, atol=2e-6)


def test_blocks_give_the_same_bits_on_any_number_of_threads():
    random = np.random.default_rng(7)
    weight = random.normal(size=(600, 500)).astype(np.float32)
    gradients = [[random.normal(size=weight.shape)] for _ in range(2)]
    before, results = numba.get_num_threads(), []
    for threads in {1, before}:
        numba.set_num_threads(threads)
        optimizer, parameters = make_optimizer([weight], [0.02], lr=0.01)
        run(optimizer, parameters, gradients)
        results.append(parameters[0].detach().numpy())
    numba.set_num_threads(before)
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_a_parameter_that_is_not_contiguous_moves_too():
    weights, gradients = random_problem(1, shapes=((3, 4),))
    parameter = nn.Parameter(torch.tensor(weights[0], dtype=torch.float32).t())
    optimizer = Lamb([parameter], lr=0.01)
    run(optimizer, [parameter], [[gradient.T] for (gradient,) in gradients])
    plain, parameters = make_optimizer([weights[0].astype(np.float32)], [0.01], lr=0.01)
    run(plain, parameters, gradients)
    torch.testing.assert_close(parameter.t(), parameters[0])


@pytest.mark.parametrize("case", ["defaults", "no_gradient_clip", "always_adapt", "ratio_bounded_by_one", "moving"])
def test_trajectory_equals_timms(case):
    """timm 1.0.31, whose semantics these settings share; `moving` changes lr and beta1 at every step."""
    with np.load(RECORDED) as file:
        recorded = {key.removeprefix(f"{case}/"): file[key] for key in file if key.startswith(f"{case}/")}
    names = [key.split("/")[1] for key in recorded if key.startswith("start/")]
    optimizer, parameters = make_optimizer(
        [recorded[f"start/{name}"] for name in names],
        [0.0 if name.startswith("bias") else 0.02 for name in names],
        trust_floor=0.0,
        **json.loads(str(recorded["settings"])),
    )
    for step, (lr, beta1) in enumerate(zip(recorded["lr"], recorded["beta1"], strict=True)):
        for group in optimizer.param_groups:
            group["lr"], group["betas"] = float(lr), (float(beta1), 0.999)
        run(optimizer, parameters, [[recorded[f"gradients/{name}"][step] for name in names]])
        for name, parameter in zip(names, parameters, strict=True):
            wanted = recorded[f"weights/{name}"][step]
            np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=1e-12, atol=1e-14)


def test_first_step_is_accurate_in_float32():
    """u is g / |g| at the first step; corrections taken in float32 would be off by 1.5e-5."""
    optimizer, (parameter,) = make_optimizer([np.zeros(3, np.float32)], (0.0,), lr=1.0, max_grad_norm=None, eps=1e-12)
    run(optimizer, [parameter], [[[0.5, -2.0, 8.0]]])
    torch.testing.assert_close(parameter.detach(), torch.tensor([-1.0, 1.0, -1.0]), rtol=1e-6, atol=0)


def test_lr_and_beta1_as_tensors_do_what_numbers_do():
    weights, gradients = random_problem(4)
    results = []
    for wrap in (float, torch.tensor):
        optimizer, parameters = make_optimizer(weights, (0.01, 0.0, 0.01), lr=wrap(0.0625), betas=(wrap(0.875), 0.999))
        run(optimizer, parameters, gradients)
        results.append(parameters)
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-14)


def test_gradients_are_left_as_they_were():
    optimizer, (parameter,) = make_optimizer([np.ones(3)], (0.01,), max_grad_norm=0.1)
    run(optimizer, [parameter], [[[3.0, 4.0, 0.0]]])
    assert parameter.grad.tolist() == [3.0, 4.0, 0.0]


def test_closure_is_evaluated_and_its_loss_returned():
    optimizer, (parameter,) = make_optimizer([np.ones(3)], (0.01,))

    def closure():
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert (parameter < 1).all()


def model_and_optimizer(seed=0):
    torch.manual_seed(seed)
    model = nn.ModuleDict({"tables": EmbeddingTables([7, 4], [3, 2]), "head": nn.Linear(5, 1)})
    return model, Lamb(lamb_param_groups(model, 0.01), lr=0.1)


def train(model, optimizer, seeds):
    for seed in seeds:
        random = torch.Generator().manual_seed(seed)
        ids = torch.stack([torch.randint(size, (5,), generator=random) for size in (7, 4)], dim=1)
        optimizer.zero_grad()
        (model["head"](model["tables"](ids)) - torch.randn(5, 1, generator=random)).square().mean().backward()
        optimizer.step()


def test_a_run_resumed_from_its_state_dicts_is_bit_equal_to_one_without_a_break():
    straight, optimizer = model_and_optimizer()
    train(straight, optimizer, range(8))

    broken, optimizer = model_and_optimizer()
    train(broken, optimizer, range(4))
    file = io.BytesIO()
    torch.save({"model": broken.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed, optimizer = model_and_optimizer(seed=1)
    resumed.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loaded = optimizer.state_dict()["state"]
    for index, state in saved["optimizer"]["state"].items():
        for key, value in state.items():
            assert loaded[index][key].dtype == value.dtype
            assert torch.equal(loaded[index][key], value)
    train(resumed, optimizer, range(4, 8))

    for wanted, found in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(wanted, found)


def test_a_copied_optimizer_keeps_its_clipping_norm():
    optimizer, _ = make_optimizer([np.ones(3)], (0.01,), max_grad_norm=0.25)
    assert copy.deepcopy(optimizer).max_grad_norm == 0.25


def test_a_sparse_gradient_is_an_error_that_says_what_to_use():
    table = nn.Embedding(7, 3, sparse=True)
    optimizer = Lamb(lamb_param_groups(table, 0.01))
    table(torch.tensor([1, 4])).sum().backward()
    with pytest.raises(ModelError, match=r"shape \[7, 3\] has a sparse gradient.*RowOptimizer.*rowwise=True"):
        optimizer.step()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": -1.0}, "lr must not be negative"),
        ({"betas": (1.0, 0.9)}, "betas must be in"),
        ({"betas": (0.9, torch.tensor(0.99))}, r"betas\[1\] must be a float"),
        ({"eps": 0.0}, "eps must be positive"),
        ({"weight_decay": -0.1}, "weight_decay must not be negative"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be positive or None"),
        ({"trust_clip": 0.0}, "trust_clip must be positive"),
    ],
)
def test_settings_of_lamb_out_of_range_are_refused(arguments, message):
    with pytest.raises(ModelError, match=message):
        Lamb([nn.Parameter(torch.ones(3))], **arguments)


def test_an_unknown_group_setting_lists_the_known_ones():
    with pytest.raises(ModelError, match=r"'rowwise'. Known: params, name, lr,.*always_adapt"):
        Lamb([{"params": [nn.Parameter(torch.ones(3, 2))], "rowwise": True}])


def test_half_precision_parameters_are_refused():
    with pytest.raises(ModelError, match=r"found torch.bfloat16; use autocast"):
        Lamb([nn.Parameter(torch.ones(3, dtype=torch.bfloat16))])


def test_a_step_captured_in_a_cuda_graph_follows_the_eager_one_without_host_syncs(any_device):
    model, _ = model_and_optimizer()
    eager, replayed = (copy.deepcopy(model).to(any_device) for _ in range(2))
    optimizers = [
        Lamb(
            lamb_param_groups(m, 0.01),
            lr=torch.tensor(0.1, device=any_device),
            betas=(torch.tensor(0.9, device=any_device), 0.999),
        )
        for m in (eager, replayed)
    ]
    for m in (eager, replayed):
        for parameter in m.parameters():
            parameter.grad = torch.full_like(parameter, 0.3)
    for optimizer in optimizers:
        optimizer.step()  # makes the state
    with no_waiting(any_device):
        optimizers[0].step()
    captured(optimizers[1].step, any_device)()
    torch.testing.assert_close(list(eager.parameters()), list(replayed.parameters()))
