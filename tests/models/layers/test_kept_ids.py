"""Gradients of rows are those of their own batch, however late the step is (M4)."""

import copy

import pytest
import torch

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.batches.loader import BatchLoader
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.shelf import ModelSpec, model_class
from tests.models.shelf_helpers import BINARY

NUM_IDS = (40, 30)


def gradients_of(model, optimizer: str, batches) -> dict[str, torch.Tensor]:
    """What one step with the gradients of all batches does to the weights."""
    moved = copy.deepcopy(model).train()
    made = build_optimizer(moved, optimizer, lr=0.1)
    for batch in batches:
        moved.training_loss(batch, BINARY).backward()
    made.step()
    return {name: value - model.state_dict()[name] for name, value in moved.state_dict().items()}


@pytest.mark.parametrize("kind", ["tabular", "dlrm"])  # the folded pass, and the lookup by itself
@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])  # gradients of rows, and dense ones
def test_accumulating_over_batches_of_a_loader_is_as_over_batches_that_are_kept(kind, optimizer):
    draw = torch.Generator().manual_seed(0)
    ids = [torch.randint(size, (96,), generator=draw, dtype=torch.int32) for size in NUM_IDS]
    floats = [torch.randn(96, generator=draw)]
    schema = TensorSchema(tuple(IdColumn(f"i{n}", n) for n in NUM_IDS), ("x",), (Target("y", "binary"),))
    table = PackedTable.from_columns(schema, ids, floats, [(floats[0] > 0).float()])
    source = BatchDataset(table, 16, seed=3)
    torch.manual_seed(1)
    model = ModelSpec(kind, ModelInputs(NUM_IDS, 1), model_class(kind).Settings()).build()
    found = gradients_of(model, optimizer, BatchLoader(source))  # six batches in a ring of two
    expected = gradients_of(model, optimizer, [BatchDataset(table, 16, seed=3)[step] for step in range(6)])
    for name, change in expected.items():
        torch.testing.assert_close(found[name], change, rtol=0, atol=0, msg=name)
    assert any(bool(change.any()) for name, change in expected.items() if "tables" in name)
