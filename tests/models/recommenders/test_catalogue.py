"""The denominator over the whole catalogue, in blocks: torch's own logsumexp and its gradients."""

import pytest
import torch

from gigabatch.models.recommenders import catalogue
from gigabatch.models.recommenders.catalogue import catalogue_logsumexp


@pytest.mark.parametrize("block_scores", [1, 27, 1 << 20])  # one user, three users, all
def test_it_is_torchs_with_its_gradients_whatever_the_block(block_scores, monkeypatch):
    monkeypatch.setattr(catalogue, "BLOCK_SCORES", block_scores)
    torch.manual_seed(0)
    users, items = torch.randn(10, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    weight = torch.randn(10)
    (users @ items.t()).logsumexp(1).mul(weight).sum().backward()
    wanted = users.grad.clone(), items.grad.clone(), (users @ items.t()).logsumexp(1).detach()
    users.grad = items.grad = None
    found = catalogue_logsumexp(users, items)
    found.mul(weight).sum().backward()
    for one, other in zip((users.grad, items.grad, found), wanted, strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=1e-5, atol=1e-6)


def test_no_user_has_no_sum_and_large_scores_stay_finite():
    items = torch.tensor([[1.0], [2.0]], requires_grad=True)
    assert catalogue_logsumexp(torch.zeros(0, 1), items).shape == (0,)
    torch.testing.assert_close(catalogue_logsumexp(torch.tensor([[1000.0]]), items), torch.tensor([2000.0]))
