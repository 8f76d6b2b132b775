"""MRMN against loops in NumPy, its ablations, and feedback types that a shared relation cannot tell apart."""

import numpy as np
import pytest
import torch

from gigabatch.loaders.tables.packed import Batch
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.metrics.pointwise import roc_auc
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.recommenders.mrmn import RELATIONS, MRMNSettings
from gigabatch.models.shelf import ModelSpec
from tests.models.shelf_helpers import Rows, train

# id columns: user, user's country, item, weekday (context); floats: age (user), price (item), hour (context)
INPUTS = ModelInputs((7, 3, 9, 4), 3, 2, user=EntityColumns(0, (0, 1), (0,)), item=EntityColumns(2, (2,), (1,)))
PAIRS = ModelInputs((7, 9), 0, 2, user=EntityColumns(0, (0,)), item=EntityColumns(1, (1,)))
TWO_TYPES = TargetLoss([("binary", 1), ("binary", 1)])


def build(inputs, seed=0, **settings):
    torch.manual_seed(seed)
    return ModelSpec("mrmn", inputs, MRMNSettings(**{"dim": 5, "memory_slots": 3, **settings})).build()


def rows(inputs, num_rows=12, seed=1, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randint(size, (num_rows,), generator=generator) for size in inputs.num_ids], dim=1)
    floats = torch.randn(num_rows, inputs.num_floats, generator=generator, dtype=dtype)
    targets = tuple(torch.randint(2, (num_rows,), generator=generator).to(dtype) for _ in range(inputs.num_outputs))
    weight = torch.rand(num_rows, generator=generator, dtype=dtype)
    return Batch(ids.int(), floats, targets, weight)


def numbers(model):
    return {name: value.detach().double().numpy() for name, value in model.state_dict().items()}


def clipped(vector):
    return vector / max(1.0, np.sqrt((vector**2).sum()))


def row_geometry(model, ids, floats):
    """One row by the equations of the module's docstring: p, q [D] and r_t [T, D], in float64."""
    w = numbers(model)
    inputs, relation = model.inputs, model.settings.relation

    def table(column):
        return w[f"embeddings.tables.{column}"][ids[column]]

    p = sum(table(column) for column in inputs.user.ids)
    q = sum(table(column) for column in inputs.item.ids)
    c = np.zeros(model.settings.dim)
    if inputs.num_floats:
        p = p + w["user_floats.weight"] @ floats[list(inputs.user.floats)]
        q = q + w["item_floats.weight"] @ floats[list(inputs.item.floats)]
        c = c + table(3) + w["context_linear.weight"][:, 0] * floats[2]
    p, q = clipped(p), clipped(q)
    relations = []
    for t in range(inputs.num_outputs):
        if relation == "none":
            relations.append(np.zeros_like(p))
            continue
        f = 1.0 if relation == "shared" else 1 + w["type_offsets"][t]
        scores = [(p * q * f + c) @ w["keys"][:, slot] for slot in range(model.settings.memory_slots)]
        a = np.exp(scores) / np.exp(scores).sum()
        memory = w["memory"][t if relation == "per_type" else 0]
        r = sum(a[slot] * memory[slot] for slot in range(model.settings.memory_slots))
        relations.append(r / (1 + np.exp(-w["gates"][t])) if relation == "gated" else r)
    return p, q, np.stack(relations)


@pytest.mark.parametrize(
    ("relation", "inputs"),
    [(relation, PAIRS) for relation in RELATIONS] + [(relation, INPUTS) for relation in RELATIONS[:3]],
)
def test_distances_and_logits_equal_a_loop(relation, inputs):
    model = build(inputs, relation=relation)
    with torch.no_grad():
        model.embeddings.tables[0].mul_(3)  # so that some vectors leave the unit ball
        model.log_scale.copy_(torch.tensor([0.3, -0.2]))
        model.centre.copy_(torch.tensor([0.7, 1.1]))
    batch = rows(model.inputs)
    distances, outputs = model.distances(batch.ids, batch.floats), model(batch.ids, batch.floats)
    assert outputs.dtype == torch.float32
    longest = 0.0
    for b in range(len(batch.ids)):
        p, q, r = row_geometry(model, batch.ids[b].numpy(), batch.floats[b].double().numpy())
        expected = ((p + r - q) ** 2).sum(1)
        np.testing.assert_allclose(distances[b].detach(), expected, rtol=1e-5, atol=1e-6)
        logits = np.exp([0.3, -0.2]) * ([0.7, 1.1] - expected)
        np.testing.assert_allclose(outputs[b].detach(), logits, rtol=1e-5, atol=1e-5)
        longest = max(longest, float((p**2).sum()))
    assert longest == pytest.approx(1)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_training_loss_equals_a_loop(relation, weighted):
    inputs = PAIRS if relation == "none" else INPUTS
    model = build(inputs, relation=relation, margins=(0.4, 0.9), negatives=3)
    batch = rows(inputs, num_rows=10)
    keys = batch.ids[:, inputs.item.key].numpy()
    equal = sum(keys[b] == keys[(b + k) % 10] for b in range(10) for k in (1, 2, 3))
    assert equal > 0  # equal items occur, so that leaving them out is tested
    batch = batch if weighted else batch._replace(weight=None)
    weight = batch.weight.double().numpy() if weighted else np.ones(10)
    found = [row_geometry(model, batch.ids[b].numpy(), batch.floats[b].double().numpy()) for b in range(10)]
    total, pairs, entropy = 0.0, 0.0, [0.0, 0.0]
    for b, (p, q, r) in enumerate(found):
        for t, margin in enumerate((0.4, 0.9)):
            distance = ((p + r[t] - q) ** 2).sum()
            chance = 1 / (1 + np.exp(-(1 - distance)))  # scale 1 and centre 1 at the start
            label = float(batch.targets[t][b])
            entropy[t] -= weight[b] * np.log(chance if label else 1 - chance)
            for k in (1, 2, 3):
                if label and keys[(b + k) % 10] != keys[b]:
                    other = ((p + r[t] - found[(b + k) % 10][1]) ** 2).sum()
                    total += weight[b] * max(0.0, margin + distance - other)
                    pairs += weight[b]
    expected = total / pairs + sum(entropy) / weight.sum()
    assert model.training_loss(batch, TWO_TYPES).item() == pytest.approx(expected, rel=1e-5)


def test_a_positive_is_compared_with_the_negatives_that_were_drawn_for_it():
    """Of groups of a positive and two negatives, the others may be in any order: the loss is the same."""
    model = build(PAIRS, margins=(0.4,), negatives=2)
    batch = rows(PAIRS, num_rows=12)._replace(weight=None)
    label = (torch.arange(12) % 3 == 0).float()
    batch = batch._replace(targets=(label, label))
    order = torch.tensor([2, 0, 3, 1])[:, None].mul(3).add(torch.arange(3)).flatten()
    moved = batch._replace(ids=batch.ids[order], floats=batch.floats[order])
    torch.testing.assert_close(model.training_loss(moved, TWO_TYPES), model.training_loss(batch, TWO_TYPES))


def test_cross_entropy_moves_scale_and_centre_only():
    model = build(PAIRS)
    batch = rows(PAIRS)
    no_positives = batch._replace(targets=tuple(torch.zeros_like(target) for target in batch.targets))
    loss = model.training_loss(no_positives, TWO_TYPES)
    loss.backward()
    expected = TWO_TYPES(model(batch.ids, batch.floats), no_positives.targets, batch.weight)
    assert loss.item() == pytest.approx(expected.item())
    moved = {
        name for name, parameter in model.named_parameters() if parameter.grad is not None and parameter.grad.any()
    }
    assert moved == {"log_scale", "centre"}


def test_a_batch_of_one_item_has_no_pairs():
    model = build(PAIRS)
    batch = rows(PAIRS)
    batch.ids[:, 1] = 4
    expected = TWO_TYPES(model(batch.ids, batch.floats), batch.targets, batch.weight)
    assert model.training_loss(batch, TWO_TYPES).item() == pytest.approx(expected.item())


def test_the_loss_is_float32_under_autocast():
    model, batch = build(INPUTS), rows(INPUTS)
    expected = model.training_loss(batch, TWO_TYPES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model.training_loss(batch, TWO_TYPES), expected)
        assert torch.equal(model(batch.ids, batch.floats), model.eval()(batch.ids, batch.floats))


@pytest.mark.parametrize("relation", RELATIONS)
def test_logits_rank_as_distances(relation):
    model, batch = build(PAIRS, relation=relation), rows(PAIRS, num_rows=50)
    with torch.no_grad():
        model.log_scale.fill_(-1.5)
    distances, outputs = model.distances(batch.ids, batch.floats), model(batch.ids, batch.floats)
    assert torch.equal(distances.argsort(dim=0, stable=True), (-outputs).argsort(dim=0, stable=True))
    same = bool((distances[:, 0] == distances[:, 1]).all())
    assert same == (relation in ("shared", "none"))


def test_a_row_optimizer_lowers_the_loss():
    """Over a few steps: once no hinge is left on so few rows, distances drift and the cross-entropy with them."""
    model, batch = build(INPUTS), rows(INPUTS, num_rows=32)
    kept = Rows(batch.ids, batch.floats, batch.targets)
    losses = train(model, kept, steps=10, optimizer="lamb", loss=TWO_TYPES, lr=0.05)
    assert losses[-1] < 0.9 * losses[0], losses
    assert all(table.grad is None for table in model.embeddings.tables)


def test_one_margin_is_that_of_all_types():
    assert MRMNSettings(margins=0.3) == MRMNSettings(margins=[0.3])
    assert build(PAIRS, margins=0.3).margins.tolist() == pytest.approx([0.3, 0.3])


def test_inputs_that_cannot_be():
    with pytest.raises(ModelError, match="margins has 3 entries for 2 types"):
        build(PAIRS, margins=(0.1, 0.2, 0.3))
    with pytest.raises(ModelError, match="relation none has no use for the 2 columns"):
        build(INPUTS, relation="none")
    with pytest.raises(ModelError, match="must be binary; found regression"):
        build(PAIRS).training_loss(rows(PAIRS), TargetLoss([("binary", 1), ("regression", 1)]))


def planted(num_rows, seed):
    """Users and items in the plane; a click needs the item to lie right of the user, a purchase left of it."""
    random = np.random.default_rng(seed)
    users, items = random.uniform(-1, 1, (60, 2)), random.uniform(-1, 1, (60, 2))
    user, item = random.integers(0, 60, num_rows), random.integers(0, 60, num_rows)
    wanted = users[user][:, None] + np.array([[0.7, 0.0], [-0.7, 0.0]])
    distance = ((wanted - items[item][:, None]) ** 2).sum(2)
    labels = random.random((num_rows, 2)) < 1 / (1 + np.exp(10 * distance - 3))
    ids = torch.from_numpy(np.stack([user, item], axis=1)).int()
    return Batch(ids, torch.zeros(num_rows, 0), tuple(torch.from_numpy(labels[:, t]).float() for t in (0, 1)))


def part(batch, places):
    return Batch(batch.ids[places], batch.floats[places], tuple(target[places] for target in batch.targets))


def test_separates_types_whose_relations_differ():
    """A relation per type against one for both, and against none: test AUC of each type at least 0.05 higher.

    One distance cannot be small right and left of the user only.
    """
    inputs = ModelInputs((60, 60), 0, 2, user=EntityColumns(0, (0,)), item=EntityColumns(1, (1,)))
    data = planted(6000, seed=0)
    test = part(data, torch.arange(4000, 6000))
    aucs = {}
    for relation in ("per_type", "shared", "none"):
        model = build(inputs, dim=8, memory_slots=8, relation=relation)
        optimizer = build_optimizer(model, "adamw", lr=0.01, weight_decay=0.0)
        order = torch.Generator().manual_seed(3)
        for _ in range(30):
            for places in torch.randperm(4000, generator=order).split(500):
                optimizer.zero_grad()
                model.training_loss(part(data, places), TWO_TYPES).backward()
                optimizer.step()
        with torch.no_grad():
            outputs = model.eval()(test.ids, test.floats)
        aucs[relation] = np.array([float(roc_auc(outputs[:, t], test.targets[t])) for t in (0, 1)])
        if relation == "per_type":  # the learnt scale and centre make sense of the outputs
            rates = torch.stack([target.mean() for target in test.targets])
            torch.testing.assert_close(torch.sigmoid(outputs).mean(0), rates, atol=0.06, rtol=0)
    assert (aucs["per_type"] > 0.85).all(), aucs
    for ablation in ("shared", "none"):
        assert (aucs["per_type"] - aucs[ablation] > 0.05).all(), aucs
