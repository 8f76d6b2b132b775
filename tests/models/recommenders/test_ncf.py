"""Contextual NCF: against the equations written out row by row, and what the context brings."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.metrics.pointwise import roc_auc
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.recommenders.ncf import NCF, NCFSettings
from tests.models.shelf_helpers import random_rows

INPUTS = ModelInputs((6, 3, 5, 4), 2, 1, user=EntityColumns(2, (2,)), item=EntityColumns(0, (0, 1), (1,)))
SETTINGS = NCFSettings(gmf_dim=3, mlp_dim=4, layers=(5, 2), context_dim=2)


def some_rows(inputs: ModelInputs, num_rows: int, seed: int = 0):
    rows = random_rows(inputs, num_rows, seed)
    return rows.ids, rows.floats


def by_hand(model: NCF, ids, floats) -> np.ndarray:
    """Scores by the module's equations, a row at a time in float64."""
    settings = model.settings
    gmf, dim, in_mlp, in_gmf = settings.gmf_dim, settings.context_dim, model.in_mlp, model.in_gmf
    tables = [table.detach().double().numpy() for table in model.embeddings.weights]
    state = {name: value.double().numpy() for name, value in model.state_dict().items()}
    scores = []
    for row, numbers in zip(ids.tolist(), floats.double().numpy(), strict=True):
        user, item = tables[0][row[2]], tables[1][row[0]]
        others = [] if settings.context == "none" else [tables[2][row[1]], tables[3][row[3]]]
        p, s, q, t = user[:gmf], user[gmf:], item[:gmf], item[gmf:]
        parts = []
        if gmf:
            parts.append(p * q)
            if in_gmf:
                vectors = [other[-gmf:] for other in others]
                vectors += [x * v for x, v in zip(numbers, state["float_vectors"], strict=True)]
                c = np.mean(vectors, axis=0)
                parts += [p * c, q * c]
        if settings.mlp_dim:
            x = [s, t]
            if in_mlp:
                x += [other[:dim] for other in others] + [numbers]
            hidden = np.concatenate(x)
            for layer in range(len(settings.layers)):
                weight, bias = state[f"mlp.{2 * layer}.weight"], state[f"mlp.{2 * layer}.bias"]
                hidden = np.maximum(weight @ hidden + bias, 0)
            parts.append(hidden)
        scores.append(state["output.weight"] @ np.concatenate(parts) + state["output.bias"])
    return np.array(scores)


@pytest.mark.parametrize(
    "changes",
    [{"context": "mlp"}, {"context": "gmf"}, {"context": "both"}, {"context": "none"},
     {"gmf_dim": 0}, {"mlp_dim": 0, "layers": [], "context": "gmf"}, {"mlp_dim": 0, "layers": [], "context": "none"}],
    ids=str,
)  # fmt: skip
def test_scores_follow_the_equations(changes):
    torch.manual_seed(3)
    model = NCF(INPUTS, replace(SETTINGS, **changes)).eval()
    for parameter in model.parameters():  # of a size at which every part counts
        torch.nn.init.normal_(parameter, std=0.7)
    ids, floats = some_rows(INPUTS, 20)
    with torch.no_grad():
        found = model(ids, floats).double().numpy()
    np.testing.assert_allclose(found, by_hand(model, ids, floats), rtol=1e-5, atol=1e-5)


def test_the_owners_model_has_the_stated_parameters():
    """311,000 users and items together, vectors of 8 and 32, 21 context floats, MLP 85-32-16-8: 12.45 million."""
    inputs = ModelInputs((211_003, 100_003), 21, 1, user=EntityColumns(0, (0,)), item=EntityColumns(1, (1,)))
    with torch.device("meta"):
        model = NCF(inputs, NCFSettings())
    assert model.mlp is not None
    assert model.mlp[0].in_features == 85
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(12.45e6, rel=2e-3)


def planted(num_rows: int, seed: int):
    """Clicks where the weekday decides which half of the items a user's group likes: nothing without the context."""
    inputs = ModelInputs((40, 30, 2), 0, 1, user=EntityColumns(0, (0,)), item=EntityColumns(1, (1,)))
    ids, floats = some_rows(inputs, num_rows, seed)
    likes = (ids[:, 0] % 2) ^ (ids[:, 1] % 2) ^ ids[:, 2]
    noise = torch.rand(num_rows, generator=torch.Generator().manual_seed(seed)) < 0.1
    return inputs, ids, floats, (likes.bool() ^ noise).float()


def auc_after_training(context: str) -> float:
    inputs, ids, floats, labels = planted(6000, 0)
    torch.manual_seed(0)
    model = NCF(inputs, NCFSettings(gmf_dim=8, mlp_dim=16, layers=(32, 16), context=context)).train()
    optimizer, loss = build_optimizer(model, "adamw", lr=0.02, rowwise=True), TargetLoss([("binary", 1)])
    for step in range(300):
        rows = slice(step % 6 * 1000, step % 6 * 1000 + 1000)
        optimizer.zero_grad()
        loss(model(ids[rows], floats[rows]), [labels[rows]]).backward()
        optimizer.step()
    _, ids, floats, labels = planted(4000, 1)
    with torch.no_grad():
        return float(roc_auc(model.eval()(ids, floats)[:, 0], labels))


@pytest.mark.parametrize(("context", "least", "largest"), [("mlp", 0.85, 1), ("both", 0.85, 1), ("none", 0.4, 0.6)])
def test_a_context_that_decides_is_learnt(context, least, largest):
    """Labels agree with the rule in 9 of 10 rows, so an AUC of .9 is the best there is."""
    assert least < auc_after_training(context) < largest


def test_the_mlp_starts_with_glorots_weights_and_no_biases():
    """Glorot and Bengio (2010), equation 16: uniform within sqrt(6 / (inputs + outputs))."""
    model = NCF(ModelInputs((9, 9), 21, 1, EntityColumns(0, (0,)), EntityColumns(1, (1,))), NCFSettings())
    layers = [layer for layer in model.mlp if isinstance(layer, torch.nn.Linear)]
    assert [layer.weight.shape for layer in layers] == [(32, 85), (16, 32), (8, 16)]
    for layer in layers:
        bound = (6 / sum(layer.weight.shape)) ** 0.5
        assert 0.9 * bound < layer.weight.abs().max() <= bound
        assert not layer.bias.any()


class Operations(TorchDispatchMode):
    """The names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("context", ["mlp", "none"])
def test_a_step_brings_no_list_of_columns_to_the_device(context):
    """`ids[:, [2, 0]]` makes a tensor on the host (lift_fresh), whose copy to a GPU no CUDA graph can hold."""
    model = NCF(INPUTS, replace(SETTINGS, context=context))
    ids, floats = some_rows(INPUTS, 4)
    with Operations() as found:
        ids[:, [2, 0]]
    assert any("lift_fresh" in name for name in found.names)
    with Operations() as found:
        model(ids, floats).sum().backward()
    assert found.names
    assert not [name for name in found.names if "lift_fresh" in name]
