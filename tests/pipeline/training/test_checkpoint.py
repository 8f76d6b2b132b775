"""What a checkpoint refuses; that a resumed run is bit-equal is tested with the loop (test_train.py)."""

import pytest
import torch

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.batches.loader import BatchLoader
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.optimizers.ema import WeightAverage
from gigabatch.models.optimizers.precision import Precision
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.tabular.tabular import TabularModel, TabularSettings
from gigabatch.pipeline.training.checkpoint import (
    Progress,
    TrainingError,
    TrainingState,
    load_checkpoint,
    save_checkpoint,
)


def make_state(precision: torch.dtype = torch.float32, ema_decay: float | None = None) -> TrainingState:
    schema = TensorSchema((IdColumn("a", 4),), ("x",), (Target("label", "binary"),))
    table = PackedTable(torch.zeros(10, schema.num_words, dtype=torch.int32), schema)
    model = TabularModel(ModelInputs((4,), 1), TabularSettings(layers=(3,)))
    average = None if ema_decay is None else WeightAverage(model, ema_decay)
    optimizer, loader = build_optimizer(model, "lamb", lr=0.1), BatchLoader(BatchDataset(table, 5))
    return TrainingState(model, optimizer, loader, torch.zeros(2), Precision(precision, "test"), average)


def test_everything_comes_back(tmp_path):
    saved, other = make_state(ema_decay=0.9), make_state(ema_decay=0.9)
    saved.losses.copy_(torch.tensor([0.5, 0.25]))
    saved.average.begin_update()
    saved.average.update()
    next(iter(saved.loader))
    done = Progress(3, [{"step": 1}], 0.5, 0, {"w": torch.ones(2)})
    save_checkpoint(tmp_path / "checkpoint.pt", saved, done)
    expected = torch.rand(3)
    found = load_checkpoint(tmp_path / "checkpoint.pt", other)
    assert torch.equal(torch.rand(3), expected)  # the random state too
    assert torch.equal(found.best_weights.pop("w"), torch.ones(2))
    assert found == Progress(3, [{"step": 1}], 0.5, 0, {})
    assert torch.equal(other.losses, saved.losses)
    assert other.loader.state_dict() == saved.loader.state_dict()
    assert other.average.num_updates == 1
    for one, two in ((saved.model, other.model), (saved.average.model, other.average.model)):
        assert all(torch.equal(value, two.state_dict()[name]) for name, value in one.state_dict().items())
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_checkpoint_of_another_precision_says_how_to_go_on(tmp_path):
    save_checkpoint(tmp_path / "checkpoint.pt", make_state(torch.bfloat16), Progress())
    with pytest.raises(TrainingError, match=r"ran in bfloat16.*go on in float32\. Set train\.precision=bfloat16, or"):
        load_checkpoint(tmp_path / "checkpoint.pt", make_state())


@pytest.mark.parametrize(("saved", "found", "word"), [(0.9, None, "with"), (None, 0.9, "without")])
def test_a_checkpoint_with_an_average_and_a_run_without_do_not_fit(tmp_path, saved, found, word):
    save_checkpoint(tmp_path / "checkpoint.pt", make_state(ema_decay=saved), Progress())
    with pytest.raises(TrainingError, match=rf"saved {word} train\.ema_decay"):
        load_checkpoint(tmp_path / "checkpoint.pt", make_state(ema_decay=found))
