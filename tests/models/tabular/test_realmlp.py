"""RealMLP beside the authors' package, and where its weights start."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.rated import Rated
from gigabatch.models.optimizers.param_groups import split_parameters
from tests.models.shelf_helpers import INPUTS, auc, build, planted_rows, random_rows, train

RECORDED = np.load(Path(__file__).parent.parent / "data" / "realmlp.npz")
# Ours by the number of the package's parameter.
PARAMETERS = {
    0: "waves.frequencies", 1: "waves.sums", 2: "waves.phases", 3: "waves.bias", 4: "tables.tables.0",
    5: "tables.tables.1", 6: "scale", 7: "layers.0.weight", 8: "layers.0.bias", 9: "activations.0.share",
    10: "layers.1.weight", 11: "layers.1.bias", 12: "activations.1.share", 13: "output.weight", 14: "output.bias",
}  # fmt: skip
COLUMNS_HERE = [*range(12, 28), *range(12)]  # ids come first


def as_ours(number: int, array: np.ndarray) -> torch.Tensor:
    found = torch.tensor(array)
    if number in (6, 7):
        found = found.movedim(-1 if number == 6 else 0, 0)[COLUMNS_HERE].movedim(0, -1 if number == 6 else 0)
    if number in (7, 10, 13):
        return found.T
    return found.squeeze(1) if number in (0, 2, 3) else found.squeeze(0) if number in (6, 8, 9, 11, 12, 14) else found


@pytest.mark.parametrize(("kind", "target"), [("class", ("multiclass", 3)), ("reg", ("regression", 1))])
def test_outputs_gradients_and_rates_are_those_of_the_authors_package(kind, target):
    inputs = ModelInputs((3, 4), 3, target[1], targets=(target,))
    model = build("realmlp", inputs, layers=(7, 7), dropout=0.0, embedding_widths=(8, 8), pbld=True)
    ids, floats, expected = (torch.tensor(RECORDED[f"{kind} {name}"]) for name in ("ids", "floats", "outputs"))
    model.remember(ids, floats, ())
    found = {}
    for number, name in PARAMETERS.items():
        module = dict(model.named_modules()).get(name)
        rate = module.rate if isinstance(module, Rated) else 1.0
        assert rate == pytest.approx(float(RECORDED[f"{kind} rate {number}"])), name
        parameter = module.weight if isinstance(module, Rated) else model.get_parameter(name)
        with torch.no_grad():
            parameter.copy_(as_ours(number, RECORDED[f"{kind} weight {number}"]) / rate)
        found[number] = parameter, rate
    assert {id(parameter) for parameter, _ in found.values()} == {id(parameter) for parameter in model.parameters()}
    outputs = model(ids, floats)
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
    outputs.square().sum().backward()
    for number, (parameter, rate) in found.items():
        gradient = as_ours(number, RECORDED[f"{kind} gradient {number}"])
        bound = 1e-4 * float(gradient.abs().max())
        torch.testing.assert_close(parameter.grad / rate, gradient, rtol=1e-3, atol=bound, msg=PARAMETERS[number])


@torch.no_grad()
def test_it_starts_with_units_of_deviation_1_over_the_train_rows():
    model, rows = build("realmlp", layers=(7, 6), dropout=0.0, pbld=True), random_rows(INPUTS, 500)
    model.remember(rows.ids, 1000 * rows.floats + 77, ())
    hidden = model._row(rows.ids, 1000 * rows.floats + 77)
    for layer, activation in zip([*model.layers, model.output], [*model.activations, None], strict=True):
        units = layer(hidden)
        torch.testing.assert_close(units.std(0, correction=0), torch.ones(units.shape[1]), rtol=1e-3, atol=1e-3)
        assert (units.amin(0) < 0).all()  # the mean of some rows, which is taken away, is within the range of all
        assert (units.amax(0) > 0).all()
        hidden = units if activation is None else activation(units)


@torch.no_grad()
def test_floats_are_scaled_by_their_quartiles():
    """numpy's quantiles; a column mostly of one value takes half its range, and one of a single value becomes 0."""
    floats = torch.randn(1001, 3, generator=torch.Generator().manual_seed(0)).exp()
    floats[:900, 1], floats[:, 2] = 2.0, 5.0
    model = build("realmlp", ModelInputs((), 3), layers=(4,))
    model.remember(torch.empty(1001, 0, dtype=torch.int32), floats, ())
    low, high = np.quantile(floats[:, 0], [0.25, 0.75])
    half = float(floats[:, 1].max() - floats[:, 1].min()) / 2
    expected = [(floats[:, 0] - floats[:, 0].median()) / (high - low), (floats[:, 1] - 2) / half, torch.zeros(1001)]
    clipped = torch.stack([x / torch.sqrt(1 + (x / 3) ** 2) for x in expected], dim=1)
    torch.testing.assert_close(model._row(torch.empty(1001, 0, dtype=torch.int32), floats), clipped)
    assert clipped.abs().max() < 3


def test_mish_is_for_regressions_alone():
    kinds = {}
    for name, targets in {
        "regressions": (("regression", 1), ("regression", 1)),
        "mixed": (("regression", 1), ("binary", 1)),
        "untold": (),
    }.items():
        model = build("realmlp", ModelInputs((5,), 0, 2, targets=targets), layers=(4,))
        kinds[name] = model.activations[0].kind
    assert kinds == {"regressions": "mish", "mixed": "selu", "untold": "selu"}


def test_parameters_with_a_rate_do_not_decay():
    model = build("realmlp", layers=(4,), pbld=True)
    rated = {id(module.weight) for module in model.modules() if isinstance(module, Rated)}
    split = split_parameters(model)
    assert {id(parameter) for parameter in split.undecayed} == rated
    assert {id(parameter) for parameter in split.decayed} == {id(model.layers[0].weight), id(model.output.weight)}


def test_it_finds_an_interaction_of_two_columns():
    """Lines see nothing there; the best is .90."""
    inputs, rows = planted_rows({(0, 1): 2.0}, 4000, seed=1)
    _, others = planted_rows({(0, 1): 2.0}, 2000, seed=2)
    model = build("realmlp", inputs, layers=(32, 32), dropout=0.0)
    model.remember(rows.ids, rows.floats, rows.targets)
    train(model, rows, steps=60, lr=0.02)
    assert auc(model, others) > 0.84
