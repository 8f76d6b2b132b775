"""FCN against its equations row by row, Tri-BCE against a loop, and the orders that its networks reach."""

import numpy as np
import pytest
import torch

from gigabatch.models.click.fcn import NETWORKS, CrossNetwork, FCNSettings
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import TargetLoss
from tests.models.shelf_helpers import ALL_INPUTS, Rows, build, by_hand, normed_by_hand, random_rows, stir, stirred

SMALL = {"embedding_dim": 4, "exponential_layers": 2, "linear_layers": 3, "dropout": 0.0}
HALVES = pytest.mark.parametrize("second_half", ["self_mask", "low_cost"])


def cross_by_hand(weights, x1, is_linear, second_half):
    """Outputs of ECN or LCN for one row [D], layer by layer in float64; weights: by name, as of a `CrossNetwork`."""
    x, number = x1, 0
    while (name := f"layers.{number}.") + "map.weight" in weights:
        c = weights[f"{name}map.weight"] @ x
        if f"{name}norm.weight" in weights:
            c = (c - weights[f"{name}norm.running_mean"]) / np.sqrt(weights[f"{name}norm.running_var"] + 1e-5)
            c = c * weights[f"{name}norm.weight"] + weights[f"{name}norm.bias"]
        if second_half == "self_mask":
            normed = (c - c.mean()) / np.sqrt(((c - c.mean()) ** 2).mean() + 1e-5)
            normed = normed * weights[f"{name}second.norm.weight"] + weights[f"{name}second.norm.bias"]
            second = [value * max(0.0, mask) for value, mask in zip(c, normed, strict=True)]
        else:
            second = weights[f"{name}second.scale"] * c + weights[f"{name}second.shift"]
        x = (x1 if is_linear else x) * (np.concatenate([c, second]) + weights[f"{name}bias"]) + x
        number += 1
    return weights["output.weight"] @ x + weights["output.bias"]


def weights_of(network):
    return {name: by_hand(value).copy() for name, value in network.state_dict().items()}


@HALVES
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("networks", NETWORKS)
@ALL_INPUTS
def test_outputs_equal_the_equations_row_by_row(inputs, networks, batch_norm, second_half):
    inputs, chosen = ModelInputs(inputs.num_ids, inputs.num_floats, 2), {"networks": networks, "batch_norm": batch_norm}
    model, rows = stirred("fcn", inputs, **SMALL, **chosen, second_half=second_half), random_rows(inputs, 10)
    got = by_hand(model(rows.ids, rows.floats))
    floats = normed_by_hand(model.fields.float_norm, by_hand(rows.floats))
    assert len(model.networks) == (2 if networks == "both" else 1)
    for b in range(len(rows)):
        vectors = [by_hand(table)[rows.ids[b, column]] for column, table in enumerate(model.fields.tables.tables)]
        if inputs.num_floats:
            vectors += list(floats[b][:, None] * by_hand(model.fields.float_vectors))
        x1 = np.concatenate([vector[half] for half in (slice(0, 2), slice(2, 4)) for vector in vectors])
        outputs = [
            cross_by_hand(weights_of(network), x1, name == "linear", second_half)
            for name, network in zip(NETWORKS[networks], model.networks, strict=True)
        ]
        np.testing.assert_allclose(got[b], np.mean(outputs, axis=0), rtol=1e-3, atol=1e-3)


def network_of(is_linear, num_layers, **settings):
    layers = {"linear_layers": num_layers, "exponential_layers": num_layers, "dropout": 0.0}
    torch.manual_seed(0)
    return CrossNetwork(6, 1, is_linear, FCNSettings(**layers, **settings)).double()


@HALVES
@pytest.mark.parametrize("is_linear", [False, True])
def test_gradients_are_the_differences_of_the_equations(is_linear, second_half):
    network = network_of(is_linear, 2, second_half=second_half, batch_norm=False)
    x1 = torch.randn(1, 6, dtype=torch.float64, requires_grad=True)
    network(x1).backward()
    weights, rows = weights_of(network), by_hand(x1)[0].copy()
    assert network(x1).item() == pytest.approx(cross_by_hand(weights, rows, is_linear, second_half)[0], rel=1e-12)
    found = {"x1": x1.grad[0]} | {name: weight.grad for name, weight in network.named_parameters()}
    for name, gradient in found.items():
        values = rows if name == "x1" else weights[name]
        for place in np.ndindex(values.shape):
            kept, sides = values[place], []
            for step in (1e-6, -1e-6):
                values[place] = kept + step
                sides.append(cross_by_hand(weights, rows, is_linear, second_half)[0])
            values[place] = kept
            assert gradient[place].item() == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-6, abs=1e-7), name


@pytest.mark.parametrize(("is_linear", "num_layers", "degree"), [(False, 2, 4), (False, 3, 8), (True, 3, 4)])
def test_layers_without_masks_are_a_polynomial_of_the_order_that_is_said(is_linear, num_layers, degree):
    """Along a line t -> t x: a polynomial of that degree goes through all points, none of a lower degree does."""
    network = network_of(is_linear, num_layers, second_half="low_cost", batch_norm=False)
    x = torch.randn(6).double()
    line = np.cos(np.pi * (np.arange(degree + 4) + 0.5) / (degree + 4))
    values = by_hand(network(torch.tensor(line)[:, None] * x))[:, 0]
    apart = {
        order: abs(np.polynomial.Polynomial.fit(line, values, order)(line) - values).max()
        for order in (degree - 1, degree)
    }
    assert apart[degree] < 1e-12 * abs(values).max()
    assert apart[degree - 1] > 1e-6 * abs(values).max()


def log_loss_by_hand(outputs, labels, weight):
    total = 0.0
    for output, label, share in zip(outputs, labels, weight, strict=True):
        p = 1 / (1 + np.exp(-output))
        total -= share * (label * np.log(p) + (1 - label) * np.log(1 - p))
    return total / sum(weight)


def tri_by_hand(one, other, labels, weight):
    whole = log_loss_by_hand((one + other) / 2, labels, weight)
    parts = [log_loss_by_hand(outputs, labels, weight) for outputs in (one, other)]
    return whole + sum(max(0.0, part - whole) * part for part in parts)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_worse", [1, 2])
def test_tri_loss_and_its_gradient_equal_a_loop(num_worse, weighted):
    """The mean of two networks that are wrong on opposite sides is better than both; else one is worse than it."""
    draw = np.random.default_rng(0)
    labels, weight = (draw.random(12) < 0.5).astype(float), draw.random(12) if weighted else np.ones(12)
    noise = draw.normal(size=(2, 12))
    one, other = (4 + noise[0], noise[1] - 4) if num_worse == 2 else (8 * labels - 4 + noise[0], 3 * noise[1])
    leaves = [torch.tensor(outputs[:, None], requires_grad=True) for outputs in (one, other)]
    model = build("fcn", **SMALL)
    model._outputs = lambda ids, floats, lists=(): leaves
    given = torch.tensor(weight) if weighted else None
    batch = Rows(torch.zeros(12, 3).int(), torch.zeros(12, 2), (torch.tensor(labels),), given)
    loss = model.training_loss(batch, TargetLoss([("binary", 1)]))
    loss.backward()
    assert loss.item() == pytest.approx(tri_by_hand(one, other, labels, weight), rel=1e-5)
    for outputs, leaf in zip((one, other), leaves, strict=True):
        for row in range(12):
            kept, sides = outputs[row], []
            for step in (1e-5, -1e-5):
                outputs[row] = kept + step
                sides.append(tri_by_hand(one, other, labels, weight))
            outputs[row] = kept
            assert leaf.grad[row, 0].item() == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-4, abs=1e-5)
    losses = [log_loss_by_hand(outputs, labels, weight) for outputs in ((one + other) / 2, one, other)]
    assert sum(loss > losses[0] for loss in losses[1:]) == num_worse


@pytest.mark.parametrize("settings", [{"loss": "plain"}, {"networks": "exponential"}, {"networks": "linear"}])
def test_without_two_networks_or_by_choice_the_loss_is_that_of_the_output(settings):
    model = build("fcn", **SMALL | settings).train()
    stir(model)
    rows, loss = random_rows(model.inputs), TargetLoss([("binary", 1)])
    expected = loss(model(rows.ids, rows.floats), rows.targets)
    assert torch.equal(model.training_loss(rows, loss), expected)
    both = build("fcn", **SMALL).train()
    stir(both)
    assert both.training_loss(rows, loss) > loss(both(rows.ids, rows.floats), rows.targets)
