"""Batch norm beside torch's: the same in training, and no farther in evaluation than training could have been."""

import numpy as np
import pytest
import torch
from torch import nn

from gigabatch.models.layers.batch_norm import FARTHEST, BatchNorm1d


@pytest.mark.parametrize("affine", [True, False])
def test_it_is_torchs_but_for_values_that_are_far_in_evaluation(affine):
    torch.manual_seed(0)
    own, peer = (kind(3, affine=affine) for kind in (BatchNorm1d, nn.BatchNorm1d))
    if affine:
        with torch.no_grad():
            own.weight.copy_(torch.tensor([2.0, -0.5, 1.0]))
            own.bias.copy_(torch.tensor([1.0, 0.0, -3.0]))
        peer.load_state_dict(own.state_dict())
    for _ in range(20):
        values = torch.randn(400, 3) * torch.tensor([0.1, 1.0, 5.0])
        assert torch.equal(own(values), peer(values))
    own.eval()
    peer.eval()
    assert torch.equal(own(values), peer(values))
    far = torch.tensor([[100.0, -100.0, 0.0]])
    weight, bias = (own.weight.tolist(), own.bias.tolist()) if affine else ([1.0] * 3, [0.0] * 3)
    expected = [bias[0] + FARTHEST * weight[0], bias[1] - FARTHEST * weight[1], float(peer(far)[0, 2].detach())]
    np.testing.assert_allclose(own(far)[0].detach(), expected, rtol=1e-6)


def test_a_flag_of_one_row_in_many_is_where_training_had_it():
    """A batch of 400 rows with one of them puts it at sqrt(399); by the running variance alone it would be at 200."""
    norm = BatchNorm1d(1, affine=False)
    flag = torch.zeros(400, 1)
    flag[0] = 1
    trained = float(norm.train()(flag)[0])
    for _ in range(60):
        norm(torch.zeros(400, 1))
    norm.running_var.fill_(1 / 40_000)
    assert trained == pytest.approx(np.sqrt(399), rel=1e-2)
    assert float(norm.eval()(flag)[0]) == pytest.approx(trained, rel=0.01)


def test_a_norm_without_running_statistics_evaluates_as_torchs():
    own, peer = BatchNorm1d(2, track_running_stats=False).eval(), nn.BatchNorm1d(2, track_running_stats=False).eval()
    values = torch.randn(1000, 2)
    values[0] = 1e6
    assert torch.equal(own(values), peer(values))
