"""Matrix factorisation: against NumPy, its vectors, how it starts, and its loss over the catalogue."""

import copy

import numpy as np
import pytest
import torch

from gigabatch.loaders.tables.packed import Batch
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.optimizers.row_optimizer import RowOptimizer
from gigabatch.models.recommenders.mf import MatrixFactorization, MFSettings
from gigabatch.pipeline.evaluation.rank_evaluate import Towers
from tests.models.shelf_helpers import BINARY

INPUTS = ModelInputs((6, 300, 200), 1, 1, user=EntityColumns(2, (2,)), item=EntityColumns(1, (0, 1), (0,), first=3))


def make(**settings):
    torch.manual_seed(0)
    model = MatrixFactorization(INPUTS, MFSettings(**settings))
    with torch.no_grad():
        for tables in (model.users, model.items):
            tables.weights[0][:, model.settings.dim :].normal_()  # biases
        model.output.log_scale.fill_(0.3)
        model.output.bias.fill_(-0.7)
    return model


def some_ids(rows=20):
    draw = torch.Generator().manual_seed(1)
    return torch.stack([torch.randint(size, (rows,), generator=draw) for size in INPUTS.num_ids], 1).int()


@pytest.mark.parametrize("loss", ["bce", "softmax", "bpr", "catalogue"])
def test_scores_are_products_of_vectors_and_the_items_bias_with_bce_the_users_too(loss):
    model, ids = make(dim=5, loss=loss), some_ids()
    users, items = (tables.weights[0].detach().double().numpy() for tables in (model.users, model.items))
    expected = []
    for _, item, user in ids.tolist():
        score = sum(users[user, k] * items[item, k] for k in range(5)) + items[item, 5]
        score += users[user, 5] if loss == "bce" else 0
        expected.append(np.exp(0.3) * score - 0.7)
    floats = torch.randn(20, 1)
    np.testing.assert_allclose(model(ids, floats)[:, 0].detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    found = model.score(model.user_vectors(ids, floats), model.item_vectors(ids, floats))
    np.testing.assert_array_equal(found.detach().numpy(), model(ids, floats).detach().numpy())
    assert isinstance(model, Towers)


def test_one_user_with_many_items_is_scored_as_rows_are():
    model, ids = make(dim=5), some_ids()
    ids[:, 2] = 7
    items = model.item_vectors(ids, torch.zeros(20, 1))
    one = model.score(model.user_vectors(ids[:1], torch.zeros(1, 1)), items)
    torch.testing.assert_close(one, model(ids, torch.zeros(20, 1)))


@pytest.mark.parametrize("loss", ["catalogue", "bce"])
def test_all_users_with_all_items_are_scored_as_rows_are(loss):
    model, ids = make(dim=5, loss=loss), some_ids()
    users, items = (part(ids, torch.zeros(20, 1)) for part in (model.user_vectors, model.item_vectors))
    rows = [model.score(users[place : place + 1], items)[:, 0] for place in range(20)]
    torch.testing.assert_close(model.score_all(users, items), torch.stack(rows))


def test_it_starts_with_vectors_of_the_deviation_that_is_set_and_without_biases():
    torch.manual_seed(0)
    model = MatrixFactorization(INPUTS, MFSettings(dim=64, initial_std=0.2))
    normal = np.fmod(np.random.default_rng(0).standard_normal(100_000), 2).std()  # as tables start: folded into (-2, 2)
    for table in (model.users.weights[0], model.items.weights[0]):
        assert float(table[:, :64].detach().std()) == pytest.approx(0.2 * normal, rel=0.03)
        assert not table[:, 64].any()


def with_negatives(copies, weight=None):
    """Positives at every `copies`-th row, one of them of an unseen item, as drawing makes batches."""
    ids = some_ids(6 * copies)
    ids[:, 1].clamp_(min=3)
    ids[copies, 1] = 2
    ids[:, 2] = ids[::copies, 2].repeat_interleave(copies)
    target = (torch.arange(len(ids)) % copies == 0).float()
    weight = None if weight is None else torch.tensor(weight).repeat_interleave(copies)
    return Batch(ids, torch.zeros(len(ids), 1), (target,), weight, copies=copies)


@pytest.mark.parametrize("gradients", ["dense", "rows"])
@pytest.mark.parametrize(("copies", "weight"), [(1, None), (3, None), (3, [1.0, 2.0, 0.0, 0.5, 1.0, 4.0])])
def test_the_loss_over_the_catalogue_and_its_gradients_are_torchs_cross_entropy(gradients, copies, weight):
    batch = with_negatives(copies, weight)
    if copies == 1:  # labelled rows: those of label 0 are no positives
        batch = batch._replace(targets=(torch.tensor([1.0, 1, 0, 1, 0, 1]),))
    model = make(dim=5, loss="catalogue")
    plain = copy.deepcopy(model)
    users, items = plain.users.weights[0], plain.items.weights[0]
    scores = users[batch.ids[:, 2].long()] @ items[3:, :5].t() + items[3:, 5]
    keys = batch.ids[:, 1].long()
    counts = (batch.targets[0] == 1).float() * (keys >= 3) * (1.0 if batch.weight is None else batch.weight)
    losses = torch.nn.functional.cross_entropy(scores, (keys - 3).clamp(min=0), reduction="none")
    wanted = (losses * counts).sum() / counts.sum()
    wanted.backward()
    tables = model.users, model.items
    before = [table.weights[0].detach().clone() for table in tables]
    for table in tables:
        table.gradients = gradients
    movers = [RowOptimizer([table], lr=1.0, method="sgd") for table in tables if gradients == "rows"]
    found = model.training_loss(batch, BINARY)
    own = BINARY(model(batch.ids, batch.floats).detach(), batch.targets, batch.weight)
    torch.testing.assert_close(found, wanted.detach() + own)
    found.backward()
    for mover in movers:
        mover.step()
    for table, start, other in zip(tables, before, (users, items), strict=True):
        moved = start - table.weights[0].detach() if movers else table.weights[0].grad
        torch.testing.assert_close(moved, other.grad, rtol=1e-4, atol=1e-6)
    assert float(model.output.bias.grad) != 0


def test_a_large_catalogue_is_drawn_from_anew_each_time_by_torchs_state():
    batch, model = with_negatives(2), make(dim=5, loss="catalogue", catalogue_items=20)
    losses = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        losses.append(model.training_loss(batch, BINARY).item())
    assert losses[0] == losses[2] != losses[1]
    torch.manual_seed(1)
    model.training_loss(batch, BINARY).backward()
    assert int((model.items.weights[0].grad.abs().sum(1) > 0).sum()) <= 20 + 6


def test_the_loss_over_the_catalogue_is_of_positives():
    with pytest.raises(ModelError, match="mf: the loss catalogue needs one binary target"):
        make(loss="catalogue").training_loss(with_negatives(2), TargetLoss([("regression", 1)]))
    with pytest.raises(ModelError, match="looks up items that are not of its batch"):
        make(loss="catalogue").table_ids(some_ids())
    assert len(make(loss="softmax").table_ids(some_ids())) == 2
    with pytest.raises(ModelError, match="catalogue_items must be"):
        MFSettings(catalogue_items=0)
