"""The moving average of weights against a plain loop, and what it does with buffers."""

import copy
import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode

from gigabatch.models.errors import ModelError
from gigabatch.models.optimizers.ema import WeightAverage


def model_of(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Embedding(4, 2))


def change(model: nn.Module, random: torch.Generator) -> None:
    """New values everywhere, as an optimizer and batch norm would put them there."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random))
    model[1].running_mean.copy_(torch.randn(2, generator=random))
    model[1].running_var.copy_(torch.rand(2, generator=random))
    model[1].num_batches_tracked.add_(1)


@given(seed=st.integers(0, 1000), decay=st.sampled_from([0.3, 0.9, 0.999]), num_updates=st.integers(1, 40))
def test_it_is_the_plain_recurrence_with_a_decay_that_grows(seed, decay, num_updates):
    model = model_of(seed)
    average = WeightAverage(model, decay)
    random = torch.Generator().manual_seed(seed)
    expected = {name: value.double().numpy().copy() for name, value in model.state_dict().items()}
    for t in range(num_updates):
        change(model, random)
        average.begin_update()
        average.update()
        kept = min(decay, (1 + t) / (10 + t))
        for name, value in model.state_dict().items():
            expected[name] = kept * expected[name] + (1 - kept) * value.double().numpy()
    found = average.model.state_dict()
    assert found.pop("1.num_batches_tracked") == num_updates
    for name, value in found.items():
        np.testing.assert_allclose(value.numpy(), expected[name], rtol=1e-4, atol=1e-5)


def test_the_model_that_is_trained_is_left_alone_and_the_average_is_ready_to_evaluate():
    model = model_of(1).train()
    before = copy.deepcopy(model.state_dict())
    average = WeightAverage(model, 0.9)
    assert not average.model.training
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    average.begin_update()
    average.update()
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_it_goes_on_bit_for_bit_from_its_state():
    def go(average, model, random, count):
        for _ in range(count):
            change(model, random)
            average.begin_update()
            average.update()

    model, random = model_of(3), torch.Generator().manual_seed(3)
    whole = WeightAverage(model, 0.95)
    go(whole, model, random, 7)

    model, random = model_of(3), torch.Generator().manual_seed(3)
    first = WeightAverage(model, 0.95)
    go(first, model, random, 3)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = WeightAverage(model, 0.95)
    second.load_state_dict(torch.load(file, weights_only=True))
    go(second, model, random, 4)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name])


class OneDevice(TorchFunctionMode):
    """Refuses a step of the average that reads across devices, as CUDA does; a CPU's scalars are let through there."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.Tensor.lerp_, torch.Tensor.fill_):
            devices = {part.device for part in args if isinstance(part, torch.Tensor)}
            assert len(devices) == 1, devices
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("away", [0, 2])
def test_a_model_on_two_devices_is_averaged_where_each_weight_lies(away):
    """`meta` stands for a second GPU: its tensors have a device and no values."""
    model = model_of(4)
    model[away].to("meta")
    here = {name: value for name, value in model.state_dict().items() if value.device.type == "cpu"}
    expected = {name: value.double().numpy().copy() for name, value in here.items()}
    average = WeightAverage(model, 0.9)
    assert all(
        own.device == live.device
        for own, live in zip(average.model.state_dict().values(), model.state_dict().values(), strict=True)
    )
    with OneDevice():
        for t in range(3):
            change(model, torch.Generator().manual_seed(t))
            average.begin_update()
            average.update()
            kept = min(0.9, (1 + t) / (10 + t))
            for name, value in here.items():
                expected[name] = kept * expected[name] + (1 - kept) * value.double().numpy()
    found = average.model.state_dict()
    for name in here.keys() - {"1.num_batches_tracked"}:
        np.testing.assert_allclose(found[name].numpy(), expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_model_on_two_gpus_has_the_average_that_one_on_a_cpu_has():
    states = []
    for split in (False, True):
        model, random = model_of(5), torch.Generator().manual_seed(5)
        if split:
            model.cuda()[2].to("cuda:1")
        average = WeightAverage(model, 0.9)
        for _ in range(3):
            change(model, random)
            average.begin_update()
            average.update()
        states.append({name: value.cpu() for name, value in average.model.state_dict().items()})
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(ModelError, match=r"ema_decay must be in \(0, 1\)"):
        WeightAverage(model_of(1), decay)
