"""Matrix factorisation: against NumPy, its vectors, and how it starts."""

import numpy as np
import pytest
import torch

from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.recommenders.mf import MatrixFactorization, MFSettings
from gigabatch.pipeline.evaluation.rank_evaluate import Towers

INPUTS = ModelInputs((6, 300, 200), 1, 1, user=EntityColumns(2, (2,)), item=EntityColumns(1, (0, 1), (0,)))


def make(**settings):
    torch.manual_seed(0)
    model = MatrixFactorization(INPUTS, MFSettings(**settings))
    with torch.no_grad():
        model.items.weights[0][:, -1].normal_()
        model.output.log_scale.fill_(0.3)
        model.output.bias.fill_(-0.7)
    return model


def some_ids(rows=20):
    draw = torch.Generator().manual_seed(1)
    return torch.stack([torch.randint(size, (rows,), generator=draw) for size in INPUTS.num_ids], 1).int()


@pytest.mark.parametrize("loss", ["bce", "softmax", "bpr"])
def test_scores_are_products_of_vectors_and_the_items_bias(loss):
    model, ids = make(dim=5, loss=loss), some_ids()
    users, items = (tables.weights[0].detach().double().numpy() for tables in (model.users, model.items))
    expected = []
    for _, item, user in ids.tolist():
        score = sum(users[user, k] * items[item, k] for k in range(5)) + items[item, 5]
        expected.append(np.exp(0.3) * score - 0.7)
    floats = torch.randn(20, 1)
    np.testing.assert_allclose(model(ids, floats)[:, 0].detach().numpy(), expected, rtol=1e-5)
    found = model.score(model.user_vectors(ids, floats), model.item_vectors(ids, floats))
    np.testing.assert_array_equal(found.detach().numpy(), model(ids, floats).detach().numpy())
    assert isinstance(model, Towers)


def test_one_user_with_many_items_is_scored_as_rows_are():
    model, ids = make(dim=5), some_ids()
    ids[:, 2] = 7
    items = model.item_vectors(ids, torch.zeros(20, 1))
    one = model.score(model.user_vectors(ids[:1], torch.zeros(1, 1)), items)
    torch.testing.assert_close(one, model(ids, torch.zeros(20, 1)))


def test_it_starts_with_vectors_of_the_deviation_that_is_set_and_without_biases():
    torch.manual_seed(0)
    model = MatrixFactorization(INPUTS, MFSettings(dim=64, initial_std=0.2))
    normal = np.fmod(np.random.default_rng(0).standard_normal(100_000), 2).std()  # as tables start: folded into (-2, 2)
    for table in (model.users.weights[0], model.items.weights[0][:, :64]):
        assert float(table.detach().std()) == pytest.approx(0.2 * normal, rel=0.03)
    assert not model.items.weights[0][:, 64].any()
