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
    assert found == pytest.approx({"mean of late": expected, "mean of price": 8 * expected}, rel=1e-12)
