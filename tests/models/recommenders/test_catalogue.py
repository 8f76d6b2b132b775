"""A softmax over the catalogue: torch's own, with its gradients, in blocks; over some items: loops and the mean."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from gigabatch.models.recommenders import catalogue
from gigabatch.models.recommenders.catalogue import Catalogue, catalogue_logsumexp


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


def scored(first=3, stop=13, users=6, dim=4):
    """Users, items of every id, each user's own item and its score."""
    draw = torch.Generator().manual_seed(2)
    vectors, items = torch.randn(users, dim, generator=draw), torch.randn(stop, dim, generator=draw)
    keys = torch.randint(first, stop, (users,), generator=draw, dtype=torch.int32)
    return vectors, items, keys, (vectors * items[keys]).sum(1)


@pytest.mark.parametrize("most", [10, 4000])
def test_a_catalogue_that_is_compared_whole_has_torchs_cross_entropy(most):
    users, items, keys, scores = scored()
    catalogue_ = Catalogue(3, 13, most)
    drawn = catalogue_.draw()
    assert drawn.tolist() == list(range(3, 13))
    wanted = cross_entropy(users @ items[3:].t(), keys.long() - 3, reduction="none")
    torch.testing.assert_close(catalogue_.losses(users, items[drawn], drawn, scores, keys), wanted)


@pytest.mark.parametrize(("stop", "most"), [(13, 4), (103, 7), (13, 9), (5, 1)])
def test_of_a_large_one_each_item_that_is_drawn_counts_for_its_run_and_the_own_once(stop, most):
    users, items, keys, scores = scored(stop=stop, users=40)
    scale = 8 * torch.rand(40, 1, generator=torch.Generator().manual_seed(0))  # own items that are hardly or all but it
    users, scores = users * scale, scores * scale[:, 0]
    catalogue_ = Catalogue(3, stop, most)
    bounds = [3 + place * (stop - 3) // most for place in range(most + 1)]
    for seed in range(5):
        torch.manual_seed(seed)
        drawn = catalogue_.draw()
        assert all(low <= item < high for low, item, high in zip(bounds, drawn.tolist(), bounds[1:], strict=False))
        wanted = []
        for user, key, score in zip(users.double().numpy(), keys.tolist(), scores.tolist(), strict=True):
            total = np.exp(score)
            for run, item in enumerate(drawn.tolist()):
                if item != key:
                    total += (bounds[run + 1] - bounds[run]) * np.exp(user @ items[item].double().numpy())
            wanted.append(np.log(total) - score)
        found = catalogue_.losses(users, items[drawn], drawn, scores, keys)
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=2e-5)


def test_the_expected_denominator_is_that_of_the_whole_catalogue():
    users, items, keys, scores = scored(stop=31)
    users, scores = 0.5 * users, 0.5 * scores
    catalogue_, total = Catalogue(3, 31, 5), 0.0
    torch.manual_seed(0)
    for _ in range(4000):
        drawn = catalogue_.draw()
        total = total + (catalogue_.losses(users, items[drawn], drawn, scores, keys) + scores).exp()
    torch.testing.assert_close(total / 4000, (users @ items[3:].t()).exp().sum(1), rtol=0.02, atol=0)


def test_gradients_of_a_drawn_catalogue_are_those_of_the_scores_written_out():
    users, items, keys, _ = scored(stop=43, users=30)
    users.requires_grad_(), items.requires_grad_()
    catalogue_ = Catalogue(3, 43, 12)
    torch.manual_seed(1)
    drawn = catalogue_.draw()
    all_scores = users @ items[drawn].t() + catalogue_.lengths.log()
    own = (users * items[keys]).sum(1)
    others = all_scores.masked_fill(drawn == keys[:, None], float("-inf"))
    assert 0 < int((drawn == keys[:, None]).sum()) < 30
    torch.logaddexp(others.logsumexp(1), own).sub(own).sum().backward()
    wanted = users.grad.clone(), items.grad.clone()
    users.grad = items.grad = None
    own = (users * items[keys]).sum(1)
    catalogue_.losses(users, items[drawn], drawn, own, keys).sum().backward()
    for one, other in zip((users.grad, items.grad), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
