"""The moving average of weights against a plain loop, and what it does with buffers."""

import copy
import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.optimizers.ema import WeightAverage
from gigabatch.models.shelf import ModelSpec, model_class


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
        average.begin_update()
        change(model, random)
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


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(ModelError, match=r"ema_decay must be in \(0, 1\)"):
        WeightAverage(model_of(1), decay)


@pytest.mark.parametrize("kind", ["two_tower", "gplvmf"])
def test_an_average_may_be_built_before_the_model_remembers_its_rows(kind):
    """M14: it kept the NaN, or the empty buffers, that the model had until then."""
    torch.manual_seed(0)
    user, item = EntityColumns(key=0, ids=(0,)), EntityColumns(key=1, ids=(1,))
    known = {"loss": "softmax", "embedding_dim": 4} if kind == "two_tower" else {}
    inputs = ModelInputs((5, 7), 0, 1, user=user, item=item)
    model = ModelSpec(kind, inputs, model_class(kind).Settings(**known)).build()
    average = WeightAverage(model, 0.5)
    ids, floats, targets = torch.randint(1, 5, (20, 2), dtype=torch.int32), torch.empty(20, 0), torch.arange(20) % 2.0
    model.remember(ids, floats, [targets])
    for _ in range(2):
        average.begin_update()
        average.update()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in average.model.state_dict().items())
    assert average.model(ids, floats).isfinite().all()


@pytest.mark.parametrize("kind", ["tabular", "realmlp", "ft_transformer"])
def test_what_does_not_change_stays_as_it_is_infinity_too(kind):
    """The edges of columns with fewer of them are filled up with infinity, and so is RealMLP's spread of a constant
    column; an average of two infinities is NaN, and a search among such edges goes anywhere."""
    torch.manual_seed(0)
    edges = tuple(tuple(np.linspace(-2, 2, count).tolist()) for count in (20, 4, 2))
    known = {} if kind == "realmlp" else {"numeric": "bins"}
    inputs = ModelInputs((5,), 3, 1, float_edges=edges)
    model = ModelSpec(kind, inputs, model_class(kind).Settings(**known)).build()
    ids, floats = torch.randint(1, 5, (64, 1), dtype=torch.int32), torch.randn(64, 3)
    floats[:, 2] = 1.0
    if hasattr(model, "remember"):
        model.remember(ids, floats, [torch.arange(64) % 2.0])
    average = WeightAverage(model, 0.5)
    for _ in range(3):
        average.begin_update()
        average.update()
    for name, value in average.model.named_buffers():
        torch.testing.assert_close(value, dict(model.named_buffers())[name], rtol=0, atol=0)
    torch.testing.assert_close(average.model(ids, floats), model.eval()(ids, floats))
