"""Positives and their drawn negatives as one batch: what a negative shares with its positive, and what it does not."""

import pytest
import torch

from loaders.entity_rows import EntityRows
from loaders.implicit import TABLE_ROWS, ImplicitBatches
from loaders.negatives import UniformNegatives
from loaders.negatives_table import KnownPositives
from loaders.packed import PackedTable
from tests.loaders.test_entity_rows import SCHEMA, slow_rows, table_of

ITEMS = [1, 3, 3, 6, 2, 4, 5, 1, 2, 6]


@pytest.fixture
def table() -> PackedTable:
    return table_of(ITEMS)


def batches(table: PackedTable, num_negatives: int = 4, seed: int = 3) -> ImplicitBatches:
    users, items = (table.words[:, column].contiguous() for column in (0, 1))
    known = KnownPositives.from_pairs(users, items, 5)
    sampler = UniformNegatives(range(1, 7), num_negatives, known, seed=seed)
    return ImplicitBatches(sampler, 0, EntityRows.of(table, 1, (1, 2), (1, 2)))


def test_negatives_are_other_items_with_their_own_features(table):
    negatives, known = batches(table), slow_rows(table)
    pairs = {tuple(row) for row in table.words[:, :2].tolist()}
    negatives.begin(2, 0)
    found, positives = negatives(table.unpack(table.words)), table.unpack(table.words)
    assert found.ids.shape == (50, 4)
    for row in range(50):
        positive, is_negative = row // 5, row % 5 > 0
        user, item, genre, weekday = found.ids[row].tolist()
        assert [user, weekday] == positives.ids[positive, [0, 3]].tolist()
        assert float(found.floats[row, 0]) == float(positives.floats[positive, 0])
        assert float(found.targets[0][row]) == float(not is_negative)
        assert int(found.group[row]) == positive
        if is_negative:
            assert (user, item) not in pairs
            assert (genre, *found.floats[row, 1:].tolist()) == known[item]
        else:
            assert item == ITEMS[positive]


def test_a_rows_negatives_depend_on_its_position_and_not_on_the_batch(table):
    negatives = batches(table)
    negatives.begin(1, 0)
    whole = negatives(table.unpack(table.words)).ids.clone()
    negatives.begin(1, 6)
    assert torch.equal(negatives(table.unpack(table.words[6:])).ids, whole[30:])
    negatives.begin(2, 0)
    assert not torch.equal(negatives(table.unpack(table.words)).ids, whole)


def test_a_table_of_positives_and_negatives_is_the_batches_one_after_another(table, monkeypatch):
    negatives = batches(table)
    negatives.begin(0, 0)
    rows = negatives(table.unpack(table.words))
    monkeypatch.setattr("loaders.implicit.TABLE_ROWS", 3)
    found = negatives.table(table)
    assert found.schema.has_group
    assert found.schema.targets == SCHEMA.targets
    unpacked = found.unpack(found.words)
    for name in ("ids", "floats", "group"):
        assert torch.equal(getattr(unpacked, name), getattr(rows, name)), name
    assert torch.equal(unpacked.targets[0], rows.targets[0])
    assert TABLE_ROWS > 3
