"""What is fitted to the labels of a source of batches is fitted to all rows of the train split: also to those that fill
no batch of the epoch, and to those of other ranks."""

import math

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from gigabatch.features.schema import Target, TensorSchema
from gigabatch.loaders.batches.dataset import BatchDataset, BatchSource
from gigabatch.loaders.batches.residency import open_source
from gigabatch.loaders.batches.shards import write_shuffled
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import ClassLoss, RegressionLoss, TargetLoss
from gigabatch.models.model import Model, TargetScale
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.shelf import model_class
from gigabatch.pipeline.config.config import PriorSettings, TrainSettings
from gigabatch.pipeline.training.calibration import prior_shift
from gigabatch.pipeline.training.target_scales import fitted_loss, require_labels, target_scales
from gigabatch.pipeline.training.train import Trained, TrainingError, train_model
from tests.models.parallel.together import together

KIND, CLICK, VALUE = Target("kind", "multiclass", 3), Target("click", "binary"), Target("value", "regression")
COUNTS = (60, 477, 183)  # of classes
BATCH = 400  # of 720 rows, so that 320 of them fill no batch


def rows_of(target: Target, labels: np.ndarray) -> PackedTable:
    column = torch.from_numpy(labels).to(torch.int32 if target.task == "multiclass" else torch.float32)
    x = torch.linspace(-1, 1, len(labels))
    return PackedTable.from_columns(TensorSchema((), ("x",), (target,)), [], [x], [column])


def classes() -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(3), COUNTS))


def clicks(rows: int = 1003, ones: int = 29) -> np.ndarray:
    return np.random.default_rng(1).permutation(np.arange(rows) < ones).astype(np.float32)


def source_of(kind: str, table: PackedTable, batch_size: int, seed: int, folder) -> BatchSource:
    if kind == "stream":
        write_shuffled([table], folder, table.schema, len(table), seed=seed)
    ranks = {"rank": 1, "num_ranks": 2} if kind == "a rank" else {}
    size = batch_size // 2 if kind == "a rank" else batch_size
    where = table if kind != "stream" else folder
    return open_source(where, "stream" if kind == "stream" else "host", size, seed=seed, drop_last=True, **ranks)


def lr(outputs: int = 1) -> Model:
    return model_class("lr")(ModelInputs((), 1, outputs), model_class("lr").Settings())


def trained(table: PackedTable, source: BatchSource, loss: TargetLoss, ranks: Ranks | None = None, **train) -> Trained:
    torch.manual_seed(0)
    settings = TrainSettings(**{"epochs": 1, "lr_max": 0.01, "select": "last"} | train)
    model = lr(table.schema.num_outputs)
    return train_model(model, source, table, loss, settings, seed=1, device="cpu", folder=None, ranks=ranks)


@pytest.fixture(params=["host", "stream", "a rank"])
def kind(request) -> str:
    return request.param


@pytest.mark.parametrize("seed", [1, 2])
def test_balanced_weights_are_scikit_learns_of_all_train_rows(kind, seed, tmp_path):
    labels = classes()
    table = rows_of(KIND, labels)
    loss = TargetLoss([("multiclass", 3)], classes=[ClassLoss(class_weights="balanced")])
    found = fitted_loss(loss, source_of(kind, table, BATCH, seed, tmp_path)).classes[0].class_weights
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert found == pytest.approx(tuple(expected), rel=1e-6)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_prior_is_held_against_the_share_of_all_train_rows(kind, seed, tmp_path):
    labels = clicks()
    source = source_of(kind, rows_of(CLICK, labels), 600, seed, tmp_path)
    share = labels.astype(np.float64).mean()
    expected = math.log(0.01 / 0.99) - math.log(share / (1 - share))
    assert prior_shift(PriorSettings(serve=0.01), None, lr(), source) == pytest.approx(expected, rel=1e-12)


def test_the_scale_of_a_target_is_numpys_of_all_train_rows(kind, tmp_path):
    labels = np.random.default_rng(2).normal(3, 5, 125).astype(np.float32)
    (found,) = target_scales(source_of(kind, rows_of(VALUE, labels), 60, 1, tmp_path))
    assert found[2:4] == pytest.approx((labels.astype(np.float64).mean(), labels.astype(np.float64).std()), rel=1e-12)


@pytest.mark.parametrize("place", range(0, 125, 31))
def test_one_wrong_label_is_refused_wherever_it_lies(kind, place, tmp_path):
    labels = np.ones(125, np.float32)
    labels[place] = -1
    loss = TargetLoss([("regression", 1)], [RegressionLoss("poisson")])
    with pytest.raises(TrainingError, match="the train split holds 1 below 0, down to -1"):
        require_labels(loss, source_of(kind, rows_of(VALUE, labels), 60, 1, tmp_path), "train")


@pytest.mark.parametrize("seed", range(4))
def test_a_class_whose_rows_fill_no_batch_is_there_all_the_same(seed, tmp_path):
    table = rows_of(CLICK, clicks(808, 1))
    loss = TargetLoss([("binary", 1)], classes=[ClassLoss(class_weights="balanced")])
    source = source_of("host", table, 410, seed, tmp_path)
    curve = trained(table, source, loss).curve
    assert "404" in curve[-1]["loss"]  # 808 rows, of two classes, and one of this class


def of_ranks(ranks: Ranks) -> list:
    """Of one training each: the loss, the shift and the scale, on a source that shows this rank a part."""
    shares = {"rank": ranks.rank, "num_ranks": ranks.num_ranks}

    def open_part(table: PackedTable, batch: int) -> BatchSource:
        return BatchDataset(table, batch // ranks.num_ranks, seed=3, drop_last=True, **shares)

    several, binary, number = rows_of(KIND, classes()), rows_of(CLICK, clicks()), rows_of(VALUE, clicks() * 7)
    balanced = TargetLoss([("multiclass", 3)], classes=[ClassLoss(class_weights="balanced")])
    first = trained(several, open_part(several, BATCH), balanced, ranks)
    second = trained(binary, open_part(binary, 600), TargetLoss([("binary", 1)]), ranks, prior={"serve": 0.01})
    third = trained(number, open_part(number, 600), TargetLoss([("regression", 1)]), ranks)
    return [first.curve[-1]["loss"], second.prior_shift, third.model.target_scales]


def test_ranks_fit_to_all_rows_what_one_process_fits(tmp_path):
    one = of_ranks(Ranks())
    assert one[1] == pytest.approx(math.log(0.01 / 0.99) - math.log(29 / (1003 - 29)), rel=1e-12)
    assert together(of_ranks, 2, tmp_path) == [one, one]


class BatchesAlone(BatchDataset):
    """A source whose batches are the only way to its rows."""

    def tables(self) -> None:
        return None


def test_a_source_without_tables_is_fitted_to_its_batches(tmp_path):
    labels = np.arange(10, dtype=np.float32)
    source = BatchesAlone(rows_of(VALUE, labels), 4, shuffle=False, drop_last=True)
    assert target_scales(source) == (TargetScale(0, 0, 3.5, float(np.arange(8).std())),)


def parted(ranks: Ranks) -> list[str]:
    """What each rank is told where what it sees is a part."""
    table, found = rows_of(CLICK, clicks()), []
    source = BatchesAlone(table, 300, seed=3, drop_last=True, rank=ranks.rank, num_ranks=ranks.num_ranks)
    balanced = TargetLoss([("binary", 1)], classes=[ClassLoss(class_weights="balanced")])
    for loss, prior in ((balanced, None), (TargetLoss([("binary", 1)]), {"serve": 0.01})):
        with pytest.raises(TrainingError) as error:
            trained(table, source, loss, ranks, prior=prior)
        found.append(str(error.value))
    return found


def test_ranks_refuse_what_a_source_without_tables_shows_each_a_part_of(tmp_path):
    for weights, prior in together(parted, 2, tmp_path):
        assert "give class_weights as numbers" in weights
        assert "Set train.prior.train" in prior
