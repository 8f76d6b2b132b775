"""Samples of rows: one of each stratum, whole groups, and in whole numbers at any size."""

import pytest
import torch

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.pipeline.evaluation.sample import rows_by_label, rows_of_rarest_label, spread, spread_rows
from gigabatch.pipeline.lab.experiment import sample_of

BEYOND = (1 << 24) + 4  # the last row's number, 2^24 + 3, is no float32: it would become 2^24 + 4, which is no row


def table_of(rows: int, group: bool) -> PackedTable:
    schema = TensorSchema((IdColumn("city", 1),), (), (), has_group=group)
    return PackedTable(torch.zeros(rows, schema.num_words, dtype=torch.int32), schema)


def strata(count: int, most: int) -> list[range]:
    return [range(i * count // most, (i + 1) * count // most) for i in range(most)]


@pytest.mark.parametrize("group", [False, True], ids=["rows", "groups"])
def test_a_sample_of_more_rows_than_float32_can_count_has_one_row_of_each_stratum(group):
    table = table_of(BEYOND, group)
    if group:
        table.words[:, 1] = torch.arange(BEYOND, dtype=torch.int32)
    rows = spread_rows(table, 1001).tolist()
    assert all(row in stratum for row, stratum in zip(rows, strata(BEYOND, 1001), strict=True))
    assert len(sample_of(table, 1001)) == 1001


@pytest.mark.parametrize(("count", "most"), [(1, 1), (7, 1), (7, 2), (7, 6), (7, 7), (7, 9), (0, 3), (10**13, 5)])
def test_numbers_are_one_of_each_stratum(count, most):
    found = spread(count, most).tolist()
    wanted = [range(i, i + 1) for i in range(count)] if count <= most else strata(count, most)
    assert all(number in stratum for number, stratum in zip(found, wanted, strict=True))
    assert spread(count, most).tolist() == found


@pytest.mark.parametrize("period", [2, 3, 4, 100])
@pytest.mark.parametrize("times", [2, 3, 4, 8])
def test_a_sample_does_not_meet_the_period_of_the_file(period, times):
    """A positive, then negatives, over and over: at equal distances all rows could be positives, or none."""
    rows = spread(times * 20_000, 20_000)
    share = (rows % period == 0).double().mean()
    assert abs(share - 1 / period) < 5 * (1 / period * (1 - 1 / period) / 20_000) ** 0.5


@pytest.mark.parametrize("group", [False, True], ids=["rows", "groups"])
def test_what_tune_learns_from_has_the_files_share_of_positives(group):
    table = table_of(40_000, group)
    table.words[:, 0] = (torch.arange(40_000) % 2 == 0).int()
    if group:
        table.words[:, 1] = torch.arange(40_000, dtype=torch.int32)
    assert abs(float(sample_of(table, 20_000).words[:, 0].double().mean()) - 0.5) < 0.02


def test_rows_that_weigh_nothing_are_in_no_sample():
    rows = 20_000
    weight = (torch.arange(rows) % 100 == 7).float()
    counted = (torch.arange(rows) % 100 == 7).nonzero()[:, 0].tolist()
    table = PackedTable.from_columns(TensorSchema((), (), (), has_weight=True), [], [], [], weight)
    found = spread_rows(table, 50).tolist()
    assert len(found) == 50
    assert all(row in counted[4 * i : 4 * i + 4] for i, row in enumerate(found))
    assert spread_rows(table, 1_000).tolist() == spread_rows(table, rows).tolist() == counted


@pytest.mark.parametrize("most", [400, 20_000])
def test_groups_that_weigh_nothing_are_in_no_sample_and_others_are_whole(most):
    rows, group = 20_000, torch.arange(20_000, dtype=torch.int32) // 4
    weight = ((group % 10 == 3) & (torch.arange(rows) % 4 == 0)).float()  # one row of each group that counts
    schema = TensorSchema((), (), (), has_weight=True, has_group=True)
    table = PackedTable.from_columns(schema, [], [], [], weight, group)
    found = group[spread_rows(table, most)]
    assert (found % 10 == 3).all()
    assert (found.bincount()[found.unique()] == 4).all()
    assert len(found) == min(most, 2_000)


@pytest.mark.parametrize(
    ("rare", "most", "wanted"), [(40, 2_000, 40), (40, 200, 20), (40, 20_000, 40), (5_000, 2_000, 500)]
)
@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("has_weight", [False, True])
def test_a_rare_label_has_a_tenth_of_the_rows_or_all_that_it_has(rare, most, wanted, label, has_weight):
    """By their number alone 40 rows in 20,000 would be 4 of 2,000; one label of four needs no more than its share."""
    labels = torch.full((20_000,), 1 - label)
    labels[3 :: 20_000 // rare] = label
    weight = torch.ones(20_000) if has_weight else None
    if weight is not None:
        weight[::7] = 0
        wanted = None
    table = PackedTable.from_columns(
        TensorSchema((), (), (Target("y", "binary"),), has_weight), [], [], [labels], weight
    )
    rows = rows_by_label(table, most)
    assert rows.tolist() == sorted(set(rows.tolist()))
    counted = torch.ones(20_000, dtype=torch.bool) if weight is None else weight > 0
    assert counted[rows].all()
    assert len(rows) == min(most, int(counted.sum()))
    found, there = int((labels[rows] == label).sum()), int(((labels == label) & counted).sum())
    assert found >= min(there, most // 10)
    assert wanted is None or abs(found - wanted) <= (30 if rare == 5_000 else 0)
    assert rows_of_rarest_label(table.with_words(table.words[rows])) == found


def test_samples_of_several_targets_and_of_groups_are_those_of_all_labels():
    labels = [(torch.arange(20_000) % 1_000 == 0).float(), torch.zeros(20_000)]
    two = TensorSchema((), (), (Target("y", "binary"), Target("z", "binary")))
    grouped = TensorSchema((), (), (Target("y", "binary"),), has_group=True)
    group = torch.arange(20_000, dtype=torch.int32) // 4
    for table in (
        PackedTable.from_columns(two, [], [], labels),
        PackedTable.from_columns(grouped, [], [], labels[:1], None, group),
    ):
        assert rows_by_label(table, 400).tolist() == spread_rows(table, 400).tolist()
    values = PackedTable.from_columns(TensorSchema((), (), (Target("v", "regression"),)), [], [], labels[:1])
    assert rows_of_rarest_label(values) is None
