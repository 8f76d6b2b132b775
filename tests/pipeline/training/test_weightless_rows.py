"""A row of weight 0 is none: whatever its label and floats are, a training is that of the other rows alone."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from gigabatch.features.errors import DataError
from gigabatch.features.schema import IdColumn, IdList, Target, TensorSchema
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.losses import RegressionLoss, TargetLoss
from gigabatch.models.shelf import MODELS, ModelSpec, model_class
from gigabatch.pipeline.config.config import TrainSettings, parse_config
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.training.target_scales import require_labels, target_scales
from gigabatch.pipeline.training.train import new_model, table_loss, table_outputs, train_model
from tests.models.shelf_helpers import random_rows
from tests.models.shelf_scores import spec_of

ROWS = 400
SETTINGS = TrainSettings(epochs=2, batch_size=64, lr_max=0.01)


def table_of(spec: ModelSpec, task: str, idle: torch.Tensor | None, kept: slice | torch.Tensor) -> PackedTable:
    """Random rows of labels by the first id and float; those of `idle` have weight 0, labels and floats far off."""
    inputs, steps = spec.inputs, model_class(spec.name).targets_are_steps
    rows = random_rows(inputs, ROWS, seed=2)
    value = (rows.ids[:, 0] % 2) + rows.floats[:, 0] * 0.1
    labels = [(value > 0.5).float() if task == "binary" else value] * inputs.num_outputs
    weight, floats = torch.ones(ROWS), rows.floats
    if idle is not None:
        wild = 1e6 * (1 + torch.arange(ROWS) % 7)
        far = 1 - labels[0] if task == "binary" else wild
        labels = [
            torch.where(idle, far if place == 0 or not steps else 1 - far, own) for place, own in enumerate(labels)
        ]
        floats = torch.where(idle[:, None], wild[:, None], floats)
        weight = (~idle).float()
    schema = TensorSchema(
        tuple(IdColumn(f"id{place}", size) for place, size in enumerate(inputs.num_ids)),
        tuple(f"x{place}" for place in range(inputs.num_floats)),
        tuple(Target(f"y{place}", task) for place in range(inputs.num_outputs)),
        has_weight=True,
        lists=tuple(IdList(f"l{place}", column.num_ids, "id1") for place, column in enumerate(inputs.lists)),
    )
    table = PackedTable.from_columns(
        schema, list(rows.ids.T.contiguous()), list(floats.T.contiguous()), labels, weight, lists=rows.lists
    )
    return table.with_words(table.words[kept].contiguous())


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_weight_0_change_no_prediction_of_any_model(name):
    spec = spec_of(name)
    task = "regression" if name in ("gplvmf", "tabular", "fm", "realmlp", "tabm") else "binary"
    inputs = replace(spec.inputs, targets=((task, 1),) * spec.inputs.num_outputs)
    spec, loss = replace(spec, inputs=inputs), TargetLoss([(task, 1)] * inputs.num_outputs)
    idle = torch.rand(ROWS, generator=torch.Generator().manual_seed(1)) < 0.3
    valid = table_of(spec, task, None, slice(0, 100))
    found = []
    for table in (table_of(spec, task, idle, slice(None)), table_of(spec, task, None, ~idle)):
        model = new_model(spec, table, 7, loss)
        trained = train_model(model, table, valid, loss, SETTINGS, seed=7, device="cpu", folder=None)
        found.append((table_outputs(trained.model, valid, "cpu"), trained.rows, trained.curve))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


def numbers(labels, weight) -> PackedTable:
    schema = TensorSchema((), ("x",), (Target("y", "regression"),), has_weight=weight is not None)
    columns = [torch.arange(len(labels)).float(), torch.tensor(labels, dtype=torch.float32)]
    mass = None if weight is None else torch.tensor(weight, dtype=torch.float32)
    return PackedTable.from_columns(schema, [], columns[:1], columns[1:], mass)


def test_the_scale_of_a_target_is_numpys_of_repeated_rows():
    random = np.random.default_rng(0)
    labels, times = random.normal(1e4, 3, 500).astype(np.float32), random.integers(0, 4, 500)
    labels[times == 0] = 1e30
    (found,) = target_scales(numbers(labels, times))
    repeated = np.repeat(labels, times).astype(np.float64)
    assert found[2:4] == pytest.approx((repeated.mean(), repeated.std()), rel=1e-12)
    assert found == target_scales(numbers(np.repeat(labels, times), None))[0]  # exact sums: the same bits
    whole = numbers(labels, times)
    assert (found,) == target_scales(BatchDataset(whole, 50, shuffle=False, drop_last=False))


def test_the_mean_of_a_log_link_is_of_the_rows_that_weigh_something():
    loss = TargetLoss([("regression", 1)], [RegressionLoss("poisson")])
    table = numbers([1.0, 2.0, 999999.0, -5.0], [1.0, 3.0, 0.0, 0.0])
    require_labels(loss, table, "train")
    (found,) = target_scales(table, loss)
    assert found.std == 1.75


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("name", ["lr", "popularity"])
def test_a_split_whose_rows_all_weigh_0_is_refused_before_training(split, name):
    user, item = EntityColumns(0, (0,)), EntityColumns(1, (1,))
    inputs = ModelInputs((9, 9), 0, 1, user, item, (("binary", 1),))
    schema = TensorSchema((IdColumn("u", 9), IdColumn("i", 9)), (), (Target("y", "binary"),), has_weight=True)
    ids = [torch.arange(40, dtype=torch.int32) % 9, torch.arange(40, dtype=torch.int32) % 7]
    tables = {
        name: PackedTable.from_columns(schema, ids, [], [torch.arange(40) % 2 * 1.0], torch.full((40,), mass))
        for name, mass in (("train", float(split != "train")), ("valid", float(split != "valid")))
    }
    model = ModelSpec(name, inputs, model_class(name).Settings()).build()
    steps, loss = [], TargetLoss([("binary", 1)])
    with pytest.raises(DataError, match=rf"{split} split: the weights of all its 40 rows are 0"):
        train_model(
            model, tables["train"], tables["valid"], loss, SETTINGS, seed=1, device="cpu", folder=None,
            after_step=steps.append,
        )  # fmt: skip
    assert not steps


def test_the_loss_of_rows_that_all_weigh_0_is_none():
    table = numbers([1.0, 2.0], [0.0, 0.0])
    model = ModelSpec("lr", ModelInputs((), 1, 1), model_class("lr").Settings()).build()
    assert np.isnan(table_loss(model, table, TargetLoss([("regression", 1)]), "cpu"))


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_run_whose_valid_or_test_rows_all_weigh_0_ends_before_it_trains(tmp_path, monkeypatch, split):
    frame = pd.DataFrame({"x": np.arange(300.0), "t": range(300), "late": [0, 1] * 150, "w": 1.0})
    frame.loc[range(240, 270) if split == "valid" else range(270, 300), "w"] = 0
    frame.to_csv(tmp_path / "rows.csv", index=False)
    config = parse_config(
        {
            "name": "idle", "recipe": "table", "artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs"),
            "features": {
                "path": str(tmp_path / "rows.csv"), "continuous": ["x"], "time": "t", "weight": "w",
                "targets": {"late": {"task": "binary"}}, "split": {"train": 0.8, "valid": 0.1, "test": 0.1},
            },
        }
    )  # fmt: skip
    monkeypatch.setattr("gigabatch.pipeline.stages.stages.train_model", lambda *_, **__: pytest.fail("it trains"))
    with pytest.raises(DataError, match=rf"{split} split: the weights \('w'\) of all its 30 rows are 0"):
        Pipeline(config).train()


def test_a_source_of_batches_whose_rows_all_weigh_0_is_refused_as_a_table_is():
    """Its labels were divided by 0."""
    spec = spec_of("tabular")
    inputs = replace(spec.inputs, targets=(("regression", 1),) * spec.inputs.num_outputs)
    spec, loss = replace(spec, inputs=inputs), TargetLoss([("regression", 1)] * inputs.num_outputs)
    idle = table_of(spec, "regression", torch.ones(ROWS, dtype=torch.bool), slice(None))
    valid = table_of(spec, "regression", None, slice(0, 100))
    for rows in (idle, BatchDataset(idle, 64)):
        with pytest.raises(DataError, match=r"train split: the weights of all its .*rows are 0"):
            train_model(spec.build(), rows, valid, loss, SETTINGS, seed=7, device="cpu", folder=None)
