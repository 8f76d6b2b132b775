"""Parameters laid end to end: the same steps as one by one, whatever their sizes, dtypes and gradients."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_lamb import slow_lamb
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gigabatch.models.optimizers import lamb
from gigabatch.models.optimizers.lamb import Lamb

SHAPES = ((3, 4), (4,), (2, 3), ())


def parameters_of(seed, shapes=SHAPES, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=random, dtype=dtype)) for shape in shapes]


def give_gradients(parameters, random, present=None):
    for index, parameter in enumerate(parameters):
        gradient = torch.randn(parameter.shape, generator=random, dtype=torch.float64).to(parameter.dtype)
        parameter.grad = gradient if present is None or present[index] else None


@pytest.mark.parametrize("small", [0, 4, 6, 1 << 16])
@pytest.mark.parametrize("max_grad_norm", [None, 0.3])
def test_one_group_equals_a_slow_loop_wherever_large_begins(monkeypatch, small, max_grad_norm):
    monkeypatch.setattr(lamb, "SMALL_ELEMENTS", small)
    parameters, random = parameters_of(1), torch.Generator().manual_seed(2)
    start = [parameter.detach().numpy().copy() for parameter in parameters]
    optimizer = Lamb([{"params": parameters, "weight_decay": 0.02}], lr=0.05, max_grad_norm=max_grad_norm)
    gradients = []
    for _ in range(5):
        give_gradients(parameters, random)
        gradients.append([parameter.grad.numpy().copy() for parameter in parameters])
        optimizer.step()
    groups = [(weights, 0.02) for weights in start]
    expected = slow_lamb(groups, gradients, 0.05, (0.9, 0.999), 1e-6, max_grad_norm, 10.0, False)
    for found, wanted in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-10, atol=1e-12)


@given(
    seed=st.integers(0, 1000),
    present=st.lists(st.tuples(*[st.booleans()] * len(SHAPES)), min_size=1, max_size=8),
    reload_at=st.integers(0, 8),
)
def test_parameters_step_as_if_alone_when_gradients_come_and_go(seed, present, reload_at):
    """Each parameter in an optimizer of its own that steps only when it has a gradient, against all in one group."""
    parameters, random = parameters_of(seed), torch.Generator().manual_seed(seed)
    alone = copy.deepcopy(parameters)
    settings = {"lr": 0.1, "weight_decay": 0.01, "max_grad_norm": None, "always_adapt": True}
    optimizer, lonely = Lamb(parameters, **settings), [Lamb([parameter], **settings) for parameter in alone]
    for step, has_gradient in enumerate(present):
        if step == reload_at:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = Lamb(parameters, **settings)
            optimizer.load_state_dict(state)
        give_gradients(parameters, random, has_gradient)
        for one, parameter, other in zip(lonely, parameters, alone, strict=True):
            other.grad = None if parameter.grad is None else parameter.grad.clone()
            one.step()
        optimizer.step()
    torch.testing.assert_close(parameters, alone, rtol=1e-12, atol=1e-14)


def test_an_earlier_state_can_be_loaded_into_the_optimizer_that_it_came_from():
    parameters = parameters_of(4)
    optimizer = Lamb(parameters, lr=0.1)

    def go(seeds):
        for seed in seeds:
            give_gradients(parameters, torch.Generator().manual_seed(seed))
            optimizer.step()
        return copy.deepcopy(parameters)

    go(range(2))
    weights, state = copy.deepcopy(parameters), copy.deepcopy(optimizer.state_dict())
    first = go(range(2, 5))
    with torch.no_grad():
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.copy_(weight)
    optimizer.load_state_dict(state)
    assert all(torch.equal(one, other) for one, other in zip(first, go(range(2, 5)), strict=True))


def test_the_state_of_each_parameter_has_its_shape_and_is_part_of_one_vector():
    parameters = parameters_of(3)
    optimizer = Lamb(parameters)
    give_gradients(parameters, torch.Generator().manual_seed(0))
    optimizer.step()
    states = [optimizer.state[parameter] for parameter in parameters]
    for parameter, state in zip(parameters, states, strict=True):
        assert state["exp_avg"].shape == state["exp_avg_sq"].shape == parameter.shape
        assert state["num_steps"].item() == 1
    assert len({state["exp_avg"].untyped_storage().data_ptr() for state in states}) == 1


def test_a_step_of_many_small_tensors_takes_few_calls():
    class Counter(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            Counter.calls += not function.is_view
            return function(*args, **(kwargs or {}))

    found = []
    for count in (10, 40):
        parameters = parameters_of(0, ((8, 8),) * count, torch.float32)
        optimizer = Lamb(parameters)
        give_gradients(parameters, torch.Generator().manual_seed(0))
        optimizer.step()
        Counter.calls = 0
        with Counter():
            optimizer.step()
        found.append(Counter.calls)
    assert found[0] == found[1] < 50, found


@pytest.mark.parametrize("bad_steps", [{0}, {2, 3}])
def test_a_step_that_the_device_skips_changes_nothing(bad_steps):
    """As on a GPU, where the host does not know: the flag goes into the arithmetic, here in float64."""
    found = []
    for skips in (bad_steps, set()):
        parameters, random = parameters_of(5), torch.Generator().manual_seed(6)
        states = [{} for _ in parameters]
        (bundle,) = lamb.make_bundles(parameters, states)
        group = Lamb(parameters, weight_decay=0.02).param_groups[0]
        with torch.no_grad():
            for step in range(6):
                gradient = torch.randn(len(bundle.exp_avg), generator=random, dtype=torch.float64)
                if step in bad_steps and step not in skips:
                    continue
                if step in skips:
                    gradient[3] = torch.nan
                clip, skipped = gradient.norm().clamp(min=1.0), torch.tensor(float(step in skips))
                lamb.step_bundle(bundle, gradient, clip, group, skipped)
        found.append([*parameters, bundle.exp_avg, bundle.exp_avg_sq, bundle.num_steps])
    torch.testing.assert_close(*found, rtol=0, atol=0)
