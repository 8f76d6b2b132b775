"""A row's scores have the same bits wherever it stands in a block of 128: products of any width, every model."""

import pytest
import torch
from torch.nn import functional

from models.errors import ModelError
from models.linear import Linear, OutputLinear, row_linear
from models.model import EntityColumns, ModelInputs
from models.shelf import MODELS, ModelSpec, model_class
from pipeline.bundle import model_outputs
from tests.models.shelf_helpers import random_rows

WIDTHS = (1, 2, 3, 5, 8, 11, 12, 13)
# 7 ids, 5 floats, 3 outputs: inner widths that are no multiple of 4 and outputs of 2 to 11, where they can be.
INPUTS = ModelInputs((5, 7, 4), 5, 3, user=EntityColumns(0, (0,), (0,)), item=EntityColumns(1, (1,), (3,)))
SETTINGS = {
    "tabular": {"layers": (50, 9), "embedding_widths": (3, 3, 2)},
    "fm": {"embedding_dim": 7},
    "deepfm": {"embedding_dim": 3, "layers": (50, 9)},
    "wide_deep": {"embedding_dim": 3, "layers": (50, 9)},
    "dlrm": {"embedding_dim": 5, "bottom_layers": (9,), "top_layers": (50,)},
    "dcn": {"embedding_dim": 3, "layers": (50,), "rank": 3, "experts": 2},
    "finalmlp": {"embedding_dim": 3},
    "autoint": {"embedding_dim": 6},
    "ft_transformer": {},
    "multi_task": {"embedding_dim": 3},
    "two_tower": {"layers": (50,), "vector_dim": 7},
    "ncf": {"gmf_dim": 7, "mlp_dim": 9, "layers": (50, 9), "context": "both", "context_dim": 3},
    "mrmn": {"dim": 7, "memory_slots": 6},
}


@pytest.mark.parametrize("num_in", [1, 3, 8, 33, 50])
@pytest.mark.parametrize("num_out", WIDTHS)
def test_a_products_rows_do_not_depend_on_their_places(num_in, num_out):
    torch.manual_seed(num_in)
    layer, rows = Linear(num_in, num_out).eval(), torch.randn(128, num_in)
    order = torch.randperm(128)
    with torch.inference_mode():
        assert torch.equal(layer(rows[order]), layer(rows)[order])


@pytest.mark.parametrize("num_out", WIDTHS)
def test_it_is_the_product_of_torch(num_out):
    torch.manual_seed(0)
    rows, weight, bias = torch.randn(6, 4, 5), torch.randn(num_out, 5), torch.randn(num_out)
    torch.testing.assert_close(row_linear(rows, weight, bias), functional.linear(rows, weight, bias))
    torch.testing.assert_close(row_linear(rows, weight), functional.linear(rows, weight))


@pytest.mark.parametrize("num_out", [1, 3])
def test_logits_are_not_rounded_to_bfloat16_in_training(num_out):
    torch.manual_seed(0)
    layer, rows = OutputLinear(7, num_out), torch.randn(64, 7)
    exact = functional.linear(rows.double(), layer.weight.double(), layer.bias.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(rows)
        assert Linear(7, num_out)(rows).dtype == torch.bfloat16
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


def spec_of(name: str) -> ModelSpec:
    known = set(model_class(name).Settings.__dataclass_fields__)
    settings = SETTINGS.get(name, {})
    assert set(settings) <= known, f"{name}: {sorted(set(settings) - known)} are no settings; known: {sorted(known)}"
    inputs = INPUTS
    if model_class(name).single_output:
        inputs = ModelInputs(INPUTS.num_ids, INPUTS.num_floats, 1, INPUTS.user, INPUTS.item)
    return ModelSpec(name, inputs, model_class(name).Settings(**settings))


@pytest.mark.parametrize("name", MODELS)
def test_a_rows_scores_are_the_same_alone_and_among_many(name):
    spec = spec_of(name)
    torch.manual_seed(1)
    model = spec.build()
    rows = random_rows(spec.inputs, 300, seed=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    model.remember(rows.ids, rows.floats, rows.targets)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(3))
    whole = torch.cat(list(model_outputs(model, rows.ids, rows.floats)))
    moved = torch.cat(list(model_outputs(model, rows.ids[order], rows.floats[order])))
    assert bool(whole.isfinite().all())
    assert torch.equal(moved, whole[order])
    for place in (0, 1, 130, 299):
        (alone,) = model_outputs(model, rows.ids[place : place + 1], rows.floats[place : place + 1])
        assert torch.equal(alone[0], whole[place]), place


def test_an_unknown_model_lists_those_there_are():
    with pytest.raises(ModelError, match=r"unknown model 'mlp'\. Known: tabular, lr, fm"):
        model_class("mlp")
