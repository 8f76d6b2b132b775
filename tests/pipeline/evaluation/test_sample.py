"""Samples of rows: evenly spread, whole groups, and in whole numbers at any size."""

import pytest
import torch

from gigabatch.features.schema import IdColumn, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.pipeline.evaluation.sample import spread, spread_rows
from gigabatch.pipeline.lab.experiment import sample_of

BEYOND = (1 << 24) + 4  # the last row's number, 2^24 + 3, is no float32: it would become 2^24 + 4, which is no row


def table_of(rows: int, group: bool) -> PackedTable:
    schema = TensorSchema((IdColumn("city", 1),), (), (), has_group=group)
    return PackedTable(torch.zeros(rows, schema.num_words, dtype=torch.int32), schema)


@pytest.mark.parametrize("group", [False, True], ids=["rows", "groups"])
def test_a_sample_of_more_rows_than_float32_can_count_has_only_rows_that_there_are(group):
    table = table_of(BEYOND, group)
    if group:
        table.words[:, 1] = torch.arange(BEYOND, dtype=torch.int32)
    rows = spread_rows(table, 1001)
    assert rows.tolist() == [i * (BEYOND - 1) // 1000 for i in range(1001)]
    assert len(sample_of(table, 1001)) == 1001


@pytest.mark.parametrize(("count", "most"), [(1, 1), (7, 1), (7, 2), (7, 6), (7, 7), (7, 9), (0, 3), (10**13, 5)])
def test_numbers_are_spread_as_by_exact_division(count, most):
    kept = min(count, most)
    exact = list(range(count)) if count <= most else [i * (count - 1) // max(most - 1, 1) for i in range(kept)]
    assert spread(count, most).tolist() == exact
