"""AutoInt: its equations in plain loops, its attention, and a third-order interaction that pairs cannot show."""

import numpy as np
import pytest
import torch

from tests.models.shelf_helpers import INPUTS, build, random_rows, stir

SMALL = {"embedding_dim": 4, "num_layers": 2, "num_heads": 2, "head_dim": 3}
PLUS = SMALL | {"layers": (6,)}


def attended(layer: torch.nn.Module, vectors: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """(next vectors [N, H a], attention [H, N, N]) of one row, field by field."""
    width, size = layer.width, layer.head_dim
    weights = layer.queries_keys_values.weight.numpy().astype(np.float64)
    query, key, value = weights[:width], weights[width : 2 * width], weights[2 * width :]
    found, shares = np.zeros((len(vectors), width)), np.zeros((layer.num_heads, len(vectors), len(vectors)))
    for m, mine in enumerate(vectors):
        for head in range(layer.num_heads):
            part = slice(head * size, (head + 1) * size)
            logits = np.array([scale * (query[part] @ mine) @ (key[part] @ other) for other in vectors])
            alpha = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            shares[head, m] = alpha
            found[m, part] = sum(a * value[part] @ other for a, other in zip(alpha, vectors, strict=True))
        found[m] = np.maximum(found[m] + layer.residual.weight.numpy() @ mine, 0)
    return found, shares


@pytest.mark.parametrize("scaled", [False, True])
@torch.no_grad()
def test_outputs_and_attention_are_those_of_the_equations(scaled):
    model = build("autoint", **SMALL, scaled=scaled)
    stir(model, seed=3)
    rows = random_rows(INPUTS, 6)
    outputs = model.eval()(rows.ids, rows.floats)
    attention = model.attention(rows.ids, rows.floats).numpy()
    fields = model.fields(rows.ids, rows.floats).numpy().astype(np.float64)
    assert attention.shape == (2, 6, 2, 5, 5)
    for number in range(6):
        vectors = fields[number]
        for layer, module in enumerate(model.interacting):
            vectors, shares = attended(module, vectors, 3**-0.5 if scaled else 1.0)
            np.testing.assert_allclose(attention[layer, number], shares, atol=1e-5)
        expected = model.output.weight.numpy()[0] @ vectors.ravel() + model.output.bias.item()
        assert outputs[number, 0].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@torch.no_grad()
def test_autoint_plus_adds_a_perceptron_over_the_same_vectors():
    model, plain = build("autoint", **PLUS, batch_norm=False), build("autoint", **SMALL)
    stir(model)
    plain.load_state_dict({name: model.state_dict()[name] for name in plain.state_dict()})
    rows = random_rows(INPUTS)
    vectors = model.eval().fields(rows.ids, rows.floats).flatten(1)
    hidden, last = model.deep[0], model.deep[-1]
    added = torch.relu(vectors @ hidden.weight.t() + hidden.bias) @ last.weight.t() + last.bias
    torch.testing.assert_close(model(rows.ids, rows.floats), plain.eval()(rows.ids, rows.floats) + added)


def test_attention_is_that_of_evaluation_mode_and_leaves_the_model_as_it_is():
    model = build("autoint", **PLUS, attention_dropout=0.5)
    stir(model, seed=3)
    rows = random_rows(INPUTS, 64)
    expected = model.eval().attention(rows.ids, rows.floats)
    model.train().deep.eval()  # as a part that is frozen
    modes, before = [part.training for part in model.modules()], {k: v.clone() for k, v in model.state_dict().items()}
    assert torch.equal(model.attention(rows.ids, rows.floats), expected)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert [part.training for part in model.modules()] == modes
