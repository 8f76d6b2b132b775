"""Rates of single parameters beside torch's parameter groups."""

import pytest
import torch
from torch import nn

from gigabatch.models.layers.rated import Rated
from gigabatch.models.optimizers.lamb import Lamb


@pytest.mark.parametrize("rate", [0.1, 6.0])
@pytest.mark.parametrize("kind", [torch.optim.Adam, Lamb])
def test_it_moves_as_in_a_parameter_group_of_its_rate(kind, rate):
    """Of LAMB as a vector that does not decay, which it moves as Adam does."""
    draw = torch.Generator().manual_seed(0)
    start, wanted = torch.randn(5, generator=draw), torch.randn(5, generator=draw)
    rated, plain = Rated(start, rate), nn.Parameter(start.clone())
    settings = {"eps": 1e-12} | ({"max_grad_norm": None} if kind is Lamb else {})
    of_rated = kind([{"params": rated.parameters(), "weight_decay": 0.0}], lr=0.01, **settings)
    of_plain = kind([{"params": [plain], "lr": 0.01 * rate, "weight_decay": 0.0}], lr=0.01, **settings)
    for _ in range(20):
        for moving, value in ((of_rated, rated()), (of_plain, plain)):
            moving.zero_grad()
            (value - wanted).pow(2).sum().backward()
            moving.step()
    assert (plain - start).abs().min() > 0.01
    torch.testing.assert_close(rated(), plain, rtol=1e-4, atol=1e-5)
