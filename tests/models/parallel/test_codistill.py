"""The loss of a codistillation against formulas written out, and peers as teachers."""

import numpy as np
import pytest
import sklearn.metrics
import torch

from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import Batch
from gigabatch.models.click.fcn import FCN
from gigabatch.models.click.lr import LogisticRegression
from gigabatch.models.click.qnn import QNN
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ListInputs, ModelInputs
from gigabatch.models.losses import RegressionLoss, TargetLoss
from gigabatch.models.model import TargetScale
from gigabatch.models.parallel.codistill import CodistilledLoss, Peers


def softmax(rows):
    powers = np.exp(rows - rows.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def random_like(tensor):
    return torch.rand_like(tensor) if tensor.is_floating_point() else tensor.clone()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("weighted", [False, True])
def test_each_target_has_a_loss_of_its_own_against_the_mean_of_the_peers(weighted):
    random = np.random.default_rng(1)
    own, one, two = random.normal(size=(3, 6, 5))  # binary, three classes, regression
    mass = random.random(6) if weighted else np.ones(6)
    targets = [torch.tensor([1.0, 0, 0, 1, 1, 0]), torch.tensor([0, 2, 1, 1, 0, 2]), torch.randn(6)]
    loss = TargetLoss([("binary", 1), ("multiclass", 3), ("regression", 1)], [None, None, RegressionLoss("huber")])
    outputs = torch.tensor(own, dtype=torch.float32, requires_grad=True)
    weight = torch.tensor(mass, dtype=torch.float32) if weighted else None
    taught = CodistilledLoss(loss, [torch.tensor(rows, dtype=torch.float32) for rows in (one, two)], weight=0.7)
    found = taught(outputs, targets, weight)
    found.backward()

    def mean(rows):
        return float((rows * mass).sum() / mass.sum())

    q = (sigmoid(one[:, 0]) + sigmoid(two[:, 0])) / 2
    binary = -(q * np.log(sigmoid(own[:, 0])) + (1 - q) * np.log(1 - sigmoid(own[:, 0])))
    classes = -((softmax(one[:, 1:4]) + softmax(two[:, 1:4])) / 2 * np.log(softmax(own[:, 1:4]))).sum(1)
    values = (own[:, 4] - (one[:, 4] + two[:, 4]) / 2) ** 2
    psi = mean(binary) + mean(classes) + mean(values)
    plain = outputs.detach().clone().requires_grad_()
    loss(plain, targets, weight).backward()
    assert found.item() == pytest.approx(loss(plain, targets, weight).item() + 0.7 * psi, rel=1e-5)
    # d psi / d logit = p - q, by hand.
    slope = 0.7 * mass / mass.sum() * (sigmoid(own[:, 0]) - q)
    np.testing.assert_allclose((outputs.grad - plain.grad)[:, 0].numpy(), slope, atol=1e-6)
    assert taught.was_used


def test_of_members_the_mean_loss_is_that_of_each_against_what_peers_say_of_its_rows():
    draw = torch.Generator().manual_seed(4)
    members, taught = torch.randn(5, 3, 1, generator=draw), torch.randn(5, 1, generator=draw)
    labels, weight = torch.tensor([0.0, 1, 1, 0, 1]), torch.rand(5, generator=draw)
    loss = CodistilledLoss(TargetLoss([("binary", 1)]), [taught], weight=0.7)
    q, share, expected = sigmoid(taught[:, 0].numpy()), (weight / weight.sum()).numpy(), 0.0
    for logits in members[:, :, 0].numpy().T:
        p, label = sigmoid(logits), labels.numpy()
        own = -(label * np.log(p) + (1 - label) * np.log(1 - p))
        expected += (share * (own - 0.7 * (q * np.log(p) + (1 - q) * np.log(1 - p)))).sum() / 3
    assert loss.of_members(members, [labels], weight).item() == pytest.approx(expected, rel=1e-5)
    assert loss.was_used


@pytest.mark.parametrize("kind", ["poisson", "tweedie"])
def test_peers_whose_outputs_are_logarithms_teach_the_mean_of_their_values(kind):
    """By scikit-learn's deviance; a mean of logarithms is below the logarithm of the mean."""
    random = np.random.default_rng(2)
    own, one, two = random.normal(size=(3, 6))
    mass, labels = random.random(6), random.poisson(1.0, 6)
    loss = TargetLoss([("regression", 1)], [RegressionLoss(kind)])
    given = torch.tensor(own).float()[:, None], [torch.tensor(labels).float()], torch.tensor(mass).float()
    taught = CodistilledLoss(loss, [torch.tensor(rows).float()[:, None] for rows in (one, two)], weight=0.7)
    psi = sklearn.metrics.mean_tweedie_deviance(
        (np.exp(one) + np.exp(two)) / 2, np.exp(own), sample_weight=mass, power=loss.regression[0].deviance_power
    )
    assert taught(*given).item() == pytest.approx(loss(*given).item() + 0.7 * psi, rel=1e-5)


@pytest.mark.parametrize("kind", [QNN, FCN])
def test_predictions_that_a_model_teaches_itself_are_not_taught_by_peers_too(kind):
    """phi of QNN's self-ensemble and of FCN's Tri-BCE has three losses, psi is there once: of the mean of both passes,
    or networks."""
    torch.manual_seed(3)
    model = kind(ModelInputs((5,), 2), kind.Settings(embedding_dim=4, dropout=0.3))
    labels = (torch.arange(8) % 2).float()
    batch = Batch(torch.randint(1, 5, (8, 1), dtype=torch.int32), torch.randn(8, 2), (labels,))
    loss, peer = TargetLoss([("binary", 1)]), torch.randn(8, 1)
    seen = []

    class Watched(TargetLoss):
        def forward(self, outputs, *others, **options):
            seen.append(outputs)
            return super().forward(outputs, *others, **options)

    found = []
    for own in (Watched([("binary", 1)]), CodistilledLoss(loss, [peer], weight=0.7)):
        torch.manual_seed(4)
        found.append(model.train().training_loss(batch, own).item())
    psi = torch.nn.functional.binary_cross_entropy_with_logits(seen[0][:, 0], torch.sigmoid(peer[:, 0]))
    assert found[1] - found[0] == pytest.approx(0.7 * psi.item(), rel=1e-4)


def test_peers_teach_once_they_are_there_and_the_burn_in_is_over():
    torch.manual_seed(1)
    model = LogisticRegression(ModelInputs((7,), 2), LogisticRegression.Settings())
    loss, peers = TargetLoss([("binary", 1)]), Peers(model, [1, 2], weight=1.0)
    batch = Batch(torch.tensor([[1], [6]]), torch.randn(2, 2), (torch.tensor([0.0, 1.0]),), None, None)
    assert peers.loss(loss, batch) is loss
    whole = {name: random_like(tensor) for name, tensor in model.state_dict().items()}
    peers.put(2, whole)
    assert peers.loss(loss, batch) is loss
    peers.is_teaching = True
    other = LogisticRegression(ModelInputs((7,), 2), LogisticRegression.Settings())
    other.eval().load_state_dict(whole)
    outputs = model(batch.ids, batch.floats)
    expected = CodistilledLoss(loss, [other(batch.ids, batch.floats)], 1.0)(outputs, batch.targets)
    found = peers.loss(loss, batch)(outputs, batch.targets)
    assert found.item() == pytest.approx(expected.item())
    (gradient,) = torch.autograd.grad(found, [outputs])
    assert gradient.abs().sum() > 0
    assert all(not parameter.requires_grad for parameter in peers._models[2].parameters())

    tables = [name for name, tensor in whole.items() if tensor.dim() == 2 and len(tensor) == 7]
    changed = {name: torch.full((1, whole[name].shape[1]), 3.0) for name in tables}
    dense = {name: tensor for name, tensor in whole.items() if name not in tables}
    peers.put(2, dense | changed, {name: torch.tensor([6]) for name in tables})
    for name in tables:
        now = peers._models[2].state_dict()[name]
        assert torch.equal(now[:6], whole[name][:6])
        assert bool((now[6] == 3).all())
    assert tables


def test_peers_teach_by_the_lists_of_the_rows():
    """Held against torch's EmbeddingBag, of a logistic regression over one column, one list and no float."""
    torch.manual_seed(2)
    model = LogisticRegression(ModelInputs((7,), 1, lists=(ListInputs(5),)), LogisticRegression.Settings())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    lists = JaggedColumn(torch.tensor([1, 4, 2, 2], dtype=torch.int32), torch.tensor([0, 2, 2, 4]))
    targets = (torch.tensor([1.0, 0.0, 1.0]),)
    ids = torch.tensor([[3], [0], [6]], dtype=torch.int32)
    batch = Batch(ids, torch.zeros(3, 1), targets, None, None, (lists,))
    peers = Peers(model, groups=[1], weight=0.7)
    peers.put(1, model.state_dict())
    peers.is_teaching = True
    column, tags = (weight.detach() for weight in model.linear.tables.weights)
    bags = torch.nn.functional.embedding_bag(lists.ids.long(), tags, lists.offsets[:-1], mode="mean")
    taught = torch.sigmoid(column[ids[:, 0].long()] + bags + model.linear.bias.detach())[:, 0]
    outputs, loss = torch.randn(3, 1), TargetLoss([("binary", 1)])
    psi = torch.nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], taught)
    found = peers.loss(loss, batch)(outputs, targets)
    assert found.item() == pytest.approx((loss(outputs, targets) + 0.7 * psi).item(), rel=1e-5)


def test_a_loss_without_peers_or_with_other_rows_is_an_error():
    loss = TargetLoss([("binary", 1)])
    with pytest.raises(ModelError, match="there is no peer"):
        CodistilledLoss(loss, [], 1.0)
    taught = CodistilledLoss(loss, [torch.zeros(3, 1)], 1.0)
    with pytest.raises(ValueError, match="size"):
        taught(torch.zeros(2, 1), [torch.zeros(2)])


@pytest.mark.parametrize("log", [False, True])
def test_peers_teach_values_in_the_targets_unit_whatever_rows_their_scales_are_of(log):
    """Each group has the mean and deviation of its own rows: what a peer gives as 1 may be 0.3 here."""
    torch.manual_seed(5)
    model, kinds = LogisticRegression(ModelInputs((7,), 2), LogisticRegression.Settings()), [("regression", 1)]
    own, theirs = ((0.0, 40.0), (0.0, 8.0)) if log else ((100.0, 40.0), (130.0, 8.0))
    model.scale_targets([TargetScale(0, 0, *own, log)])
    loss, peers = TargetLoss(kinds, [RegressionLoss("poisson" if log else "mse")]), Peers(model, [1], weight=0.7)
    peer = LogisticRegression(ModelInputs((7,), 2), LogisticRegression.Settings()).eval()
    peer.load_state_dict({name: random_like(tensor) for name, tensor in peer.state_dict().items()})
    peer.scale_targets([TargetScale(0, 0, *theirs, log)])
    peers.put(1, peer.state_dict())
    peers.is_teaching = True
    batch = Batch(torch.tensor([[1], [6]]), torch.randn(2, 2), (torch.tensor([0.3, 1.0]),), None, None)
    outputs = model(batch.ids, batch.floats)
    said, value = (of.in_target_units(of(batch.ids, batch.floats))[:, 0].detach().numpy() for of in (peer, model))
    if log:
        psi = sklearn.metrics.mean_poisson_deviance(said / own[1], value / own[1])
    else:
        psi = (((value - said) / own[1]) ** 2).mean()
    found = peers.loss(loss, batch)(outputs, batch.targets).item()
    assert found == pytest.approx(loss(outputs, batch.targets).item() + 0.7 * psi, rel=1e-5)
