"""The dropout module beside torch's."""

import pytest
import torch
from torch import nn

from gigabatch.models.layers.dropout import Dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16])
@pytest.mark.parametrize("shape", [(64, 50), (200,), (4, 30, 20), (0, 7)])
def test_gradients_are_dropped_where_values_were(dtype, shape):
    values = torch.randn(shape, dtype=dtype).abs().add(1).requires_grad_()
    found = Dropout(0.25)(values)
    assert found.dtype == dtype
    found.backward(torch.ones_like(found))
    mask = found != 0
    torch.testing.assert_close(found, torch.where(mask, values / 0.75, 0), rtol=1e-2, atol=0)
    torch.testing.assert_close(values.grad, mask.to(dtype) / 0.75)
    if len(found) and values.numel() > 1000:
        assert 0.65 < mask.double().mean() < 0.85


def test_the_seed_of_torch_fixes_the_masks_and_each_call_draws_one():
    module, values = Dropout(0.5), torch.ones(100, 10)
    torch.manual_seed(3)
    first, second = module(values), module(values)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(module(values), first)
    assert torch.equal(module(values), second)


def test_the_mean_of_many_is_the_values():
    values = torch.linspace(-2, 3, 40)
    mean = torch.stack([Dropout(0.4)(values) for _ in range(4000)]).mean(0)
    assert ((mean - values).abs() < 5 * values.abs() * (0.4 / 0.6 / 4000) ** 0.5 + 1e-6).all()


def test_evaluation_rates_of_zero_and_one_and_values_in_another_order():
    values = torch.randn(30, 20)
    assert Dropout(0.5).eval()(values) is values
    assert Dropout(0.0)(values) is values
    assert not Dropout(1.0)(values).any()
    assert Dropout(0.5)(torch.tensor(2.0)) in (0.0, 4.0)
    torch.manual_seed(1)
    wanted = Dropout(0.5)(values.t().contiguous())
    torch.manual_seed(1)
    assert torch.equal(Dropout(0.5)(values.t()), wanted)
    with pytest.raises(ValueError, match="between 0 and 1"):
        Dropout(1.5)


def test_torch_compile_and_export_see_torchs_own():
    model = nn.Sequential(nn.Linear(3, 4), Dropout(0.5))
    values = torch.randn(2, 3)
    exported = torch.export.export(model.eval(), (values,))
    assert torch.equal(exported.module()(values), model(values))
    found = torch.export.export(model.train(), (values,))
    assert [node for node in found.graph.nodes if "dropout" in str(node.target)]
