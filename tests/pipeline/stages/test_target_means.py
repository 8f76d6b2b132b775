"""The means of targets that the report shows by split."""

import numpy as np
import pytest
import torch

from gigabatch.features.schema import Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.pipeline.stages.run import target_means

LABELS, WEIGHTS = np.array([1.0, 0, 0, 1]), np.array([1.0, 3, 0.5, 0])


@pytest.mark.parametrize("weighted", [True, False])
def test_means_of_targets_go_by_the_weights_of_rows(weighted):
    targets = (Target("late", "binary"), Target("kind", "multiclass", 3), Target("price", "regression"))
    schema = TensorSchema((), (), targets, has_weight=weighted)
    columns = [torch.tensor(LABELS).float(), torch.zeros(4, dtype=torch.int32), torch.tensor(LABELS * 8).float()]
    mass = torch.tensor(WEIGHTS).float() if weighted else None
    expected = np.average(LABELS, weights=WEIGHTS if weighted else None)
    found = target_means(PackedTable.from_columns(schema, [], [], columns, mass))
    means = {name: found[name] for name in found if name.startswith("mean")}
    assert means == pytest.approx({"mean of late": expected, "mean of price": 8 * expected}, rel=1e-12)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("classes", [("egg", "ham", "spam"), ()])
def test_shares_of_classes_go_by_the_weights_of_rows(weighted, classes):
    """summary.json held nothing of a multiclass target."""
    schema = TensorSchema((), (), (Target("kind", "multiclass", 3, classes),), has_weight=weighted)
    columns = [torch.tensor([2, 0, 0, 2], dtype=torch.int32)]
    mass = torch.tensor(WEIGHTS).float() if weighted else None
    share = 1 / 4.5 if weighted else 0.5
    names = classes or (0, 1, 2)
    expected = dict(zip((f"share of {name} in kind" for name in names), (1 - share, 0.0, share), strict=True))
    assert target_means(PackedTable.from_columns(schema, [], [], columns, mass)) == pytest.approx(expected, rel=1e-12)


def test_shares_of_many_classes_are_left_out():
    schema = TensorSchema((), (), (Target("kind", "multiclass", 21),))
    columns = [torch.zeros(4, dtype=torch.int32)]
    assert target_means(PackedTable.from_columns(schema, [], [], columns, None)) == {}
