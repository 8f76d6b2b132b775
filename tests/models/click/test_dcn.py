"""DCN-V2 against its cross layers written out, and the orders of interaction that so many layers reach."""

import numpy as np
import pytest
import torch

from gigabatch.models.click.dcn import CrossLayers
from gigabatch.models.inputs import ModelInputs
from tests.models.shelf_helpers import (
    ALL_INPUTS,
    build,
    by_hand,
    mlp_by_hand,
    normed_by_hand,
    random_rows,
    stirred,
)

SMALL = {"embedding_dim": 4, "layers": (16,), "dropout": 0.0}
FORMS = {
    "parallel": SMALL,
    "stacked": SMALL | {"structure": "stacked"},
    "cross_only": SMALL | {"layers": ()},
    "low_rank": SMALL | {"rank": 3},
    "experts": SMALL | {"rank": 3, "experts": 2},
}
ALL_FORMS = pytest.mark.parametrize("form", FORMS)


def cross_by_hand(cross_map, x0, x):
    """One cross layer on one row [W], by the equation of its kind."""
    kind = type(cross_map).__name__
    if kind == "Linear":
        return x0 * (by_hand(cross_map.weight) @ x + by_hand(cross_map.bias)) + x
    if kind == "LowRankLinear":
        v, u = by_hand(cross_map[0].weight).T, by_hand(cross_map[1].weight)
        return x0 * (u @ (v.T @ x) + by_hand(cross_map[1].bias)) + x
    gates = np.exp(by_hand(cross_map.gate.weight) @ x)
    gates /= gates.sum()
    total = np.zeros_like(x)
    for i, gate in enumerate(gates):
        v, c, u = (by_hand(part)[i].T for part in (cross_map.down, cross_map.between, cross_map.up))
        total += gate * x0 * (u @ np.tanh(c @ np.tanh(v @ x)) + by_hand(cross_map.bias))
    return total + x


@ALL_FORMS
@ALL_INPUTS
def test_outputs_equal_the_equations_layer_by_layer(inputs, form):
    inputs = ModelInputs(inputs.num_ids, inputs.num_floats, 2)
    model, rows = stirred("dcn", inputs, **FORMS[form]), random_rows(inputs, 10)
    got = by_hand(model(rows.ids, rows.floats))
    floats = normed_by_hand(model.row.float_norm, by_hand(rows.floats))
    for b in range(len(rows)):
        embedded = [by_hand(table)[rows.ids[b, column]] for column, table in enumerate(model.row.tables.tables)]
        x0 = np.concatenate([*embedded, floats[b]])
        x = x0
        for cross_map in model.cross.maps:
            x = cross_by_hand(cross_map, x0, x)
        if form == "stacked":
            x = mlp_by_hand(model.deep, x[None])[0]
        elif form != "cross_only":
            x = np.concatenate([x, mlp_by_hand(model.deep, x0[None])[0]])
        wanted = by_hand(model.output.weight) @ x + by_hand(model.output.bias)
        np.testing.assert_allclose(got[b], wanted, rtol=1e-3, atol=1e-3)


def test_maps_are_of_the_kind_that_the_settings_name():
    kinds = {form: type(build("dcn", **settings).cross.maps[0]).__name__ for form, settings in FORMS.items()}
    assert kinds == {
        "parallel": "Linear",
        "stacked": "Linear",
        "cross_only": "Linear",
        "low_rank": "LowRankLinear",
        "experts": "ExpertLinear",
    }


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_n_cross_layers_are_a_polynomial_of_degree_n_plus_1(num_layers):
    """Along a line t -> t x the outputs are a polynomial in t: its finite differences of order n + 2 vanish."""
    torch.manual_seed(0)
    cross = CrossLayers(5, num_layers, rank=None, experts=1).double()
    x = torch.randn(5, dtype=torch.float64)
    along = cross(torch.arange(num_layers + 3, dtype=torch.float64)[:, None] * x)
    highest = along.diff(n=num_layers + 1, dim=0)
    assert highest.abs().max() > 1e-2
    torch.testing.assert_close(along.diff(n=num_layers + 2, dim=0), torch.zeros(1, 5).double(), atol=1e-6, rtol=0)
