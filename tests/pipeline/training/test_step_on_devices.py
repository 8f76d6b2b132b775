"""Whole steps on any device, from rows on the host: beside the loader's thread, and of the largest batch."""

import pytest
import torch

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.batches.loader import BatchLoader
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.optimizers.precision import Precision
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.tabular.tabular import TabularModel, TabularSettings
from gigabatch.pipeline.training.train_step import TrainStep, hold_in_tensors

SIZES = (1000, 50, 3)
TARGET = (Target("label", "binary"),)
SCHEMA = TensorSchema(tuple(IdColumn(f"id{n}", size) for n, size in enumerate(SIZES)), ("x", "y"), TARGET)
FLOAT32, BFLOAT16 = Precision(torch.float32, "test"), Precision(torch.bfloat16, "test")


def random_table(num_rows: int) -> PackedTable:
    """The first float decides the label."""
    random = torch.Generator().manual_seed(1)
    ids = [torch.randint(size, (num_rows,), generator=random, dtype=torch.int32) for size in SIZES]
    floats = list(torch.randn(2, num_rows, generator=random))
    return PackedTable.from_columns(SCHEMA, ids, floats, [(floats[0] > 0).float()])


def trained(
    table: PackedTable,
    batch_size: int,
    device: str,
    *,
    num_epochs: int = 1,
    captured: bool = False,
    prefetch: int | None = None,
    dropout: float = 0.0,
    precision: Precision = FLOAT32,
    **settings,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Losses of all steps, and the weights after them."""
    torch.manual_seed(0)
    model = TabularModel(ModelInputs(SIZES, 2, 1), TabularSettings((64, 32), dropout)).to(device).train()
    step = TrainStep(model, TargetLoss([("binary", 1)]), build_optimizer(model, "lamb", lr=0.05), precision, **settings)
    hold_in_tensors(step.optimizer, torch.device(device))
    loader = BatchLoader(BatchDataset(table, batch_size, seed=2, drop_last=True), device, prefetch=prefetch)
    if captured:
        step.capture(SCHEMA, batch_size)
    torch.manual_seed(7)  # of dropout
    losses = [step(batch, 0.05, 0.9).clone() for _ in range(num_epochs) for batch in loader]
    return torch.stack(losses), model.state_dict()


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_a_capture_beside_the_loaders_thread_trains_as_an_eager_run_without_one(any_device, prefetch):
    """The thread copies batches while the graph is captured and replayed; the same bits come of it."""
    table, captured = random_table(20 * 256), any_device == "cuda"
    eager = trained(table, 256, any_device, num_epochs=3, prefetch=0, dropout=0.2)
    beside = trained(table, 256, any_device, num_epochs=3, prefetch=prefetch, dropout=0.2, captured=captured)
    assert torch.equal(eager[0], beside[0])
    assert [name for name in eager[1] if not torch.equal(eager[1][name], beside[1][name])] == []
    there = trained(table.to(any_device), 256, any_device, num_epochs=3, dropout=0.2, captured=captured)
    assert torch.equal(eager[0], there[0]), "rows that lie on the device"


def test_the_largest_batch_is_that_of_its_pieces(any_device):
    """A batch of 819,200 rows, whole and in four pieces, captured on a GPU; and in bfloat16, within its 8 bits.

    Batch norm has other statistics in a piece, so it is compared in bfloat16 alone.
    """
    batch_size, captured = (2048, False) if any_device == "cpu" else (819_200, True)
    table = random_table(6 * batch_size).to(any_device)
    whole, pieces, half = (
        trained(table, batch_size, any_device, captured=captured, **settings)
        for settings in ({}, {"accumulate_steps": 4}, {"precision": BFLOAT16})
    )
    assert whole[0].shape == (6,)
    assert bool((whole[0].diff() < 0).all()), whole[0]
    torch.testing.assert_close(pieces[0], whole[0], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(half[0], whole[0], rtol=2e-2, atol=1e-2)
