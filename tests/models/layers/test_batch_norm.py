"""Batch norm beside torch's: the same in training, and no farther in evaluation than training could have been."""

import numpy as np
import pytest
import torch
from torch import nn

from gigabatch.models.layers.batch_norm import BatchNorm1d


@pytest.mark.parametrize("affine", [True, False])
def test_it_is_torchs_but_for_values_that_are_far_in_evaluation(affine):
    torch.manual_seed(0)
    own, peer = (kind(3, affine=affine) for kind in (BatchNorm1d, nn.BatchNorm1d))
    if affine:
        with torch.no_grad():
            for norm in (own, peer):
                norm.weight.copy_(torch.tensor([2.0, -0.5, 1.0]))
                norm.bias.copy_(torch.tensor([1.0, 0.0, -3.0]))
    for rows in (300, 401, 5):
        values = torch.randn(rows, 3) * torch.tensor([0.1, 1.0, 5.0])
        assert torch.equal(own(values), peer(values))
    own.eval()
    peer.eval()
    assert torch.equal(own(values), peer(values))
    far = torch.tensor([[100.0, -100.0, 0.0]])
    weight, bias = (own.weight.tolist(), own.bias.tolist()) if affine else ([1.0] * 3, [0.0] * 3)
    expected = [bias[0] + 20 * weight[0], bias[1] - 20 * weight[1], float(peer(far)[0, 2].detach())]
    np.testing.assert_allclose(own(far)[0].detach(), expected, rtol=1e-6)  # the root of 400


def test_a_flag_of_one_row_in_many_is_where_training_had_it():
    norm = BatchNorm1d(1, affine=False)
    flag = torch.zeros(400, 1)
    flag[0] = 1
    trained = float(norm.train()(flag)[0])
    assert trained == pytest.approx(np.sqrt(399), rel=1e-2)
    norm.running_var.fill_(1 / 40_000)
    assert float(norm.eval()(flag)[0]) == pytest.approx(trained, rel=0.01)


def test_what_was_saved_before_is_bounded_by_nothing():
    old, own = nn.BatchNorm1d(2), BatchNorm1d(2)
    own(torch.randn(50, 2))
    own.load_state_dict(old.state_dict())
    assert own.batch_rows == 0
    values = torch.tensor([[1e6, -3.0]])
    assert torch.equal(own.eval()(values), old.eval()(values))


def test_a_norm_without_running_statistics_evaluates_as_torchs():
    own, peer = BatchNorm1d(2, track_running_stats=False).eval(), nn.BatchNorm1d(2, track_running_stats=False).eval()
    values = torch.randn(1000, 2)
    values[0] = 1e6
    assert torch.equal(own(values), peer(values))


@pytest.mark.parametrize("affine", [True, False])
def test_rows_of_several_places_are_bounded_column_by_column(affine):
    own, peer = (kind(2, affine=affine) for kind in (BatchNorm1d, nn.BatchNorm1d))
    if affine:
        with torch.no_grad():
            for norm in (own, peer):
                norm.weight.copy_(torch.tensor([2.0, -0.5]))
                norm.bias.copy_(torch.tensor([1.0, -3.0]))
    values = torch.randn(10, 2, 5)
    assert torch.equal(own(values), peer(values))
    own.eval()
    peer.eval()
    assert torch.equal(own(values), peer(values))
    far = torch.full((1, 2, 2), 1e6)
    weight, bias = (own.weight.tolist(), own.bias.tolist()) if affine else ([1.0] * 2, [0.0] * 2)
    expected = [[bias[0] + 7 * weight[0]] * 2, [bias[1] + 7 * weight[1]] * 2]  # the root of 50 - 1
    np.testing.assert_allclose(own(far)[0].detach(), expected, rtol=1e-6)


def test_a_norm_of_half_precision_from_before_is_bounded_by_nothing():
    norm = BatchNorm1d(2).half().eval()
    with torch.no_grad():
        norm.weight[0] = 0
    assert norm(torch.tensor([[5.0, 9.0]], dtype=torch.float16)).tolist() == [[0.0, 9.0]]
