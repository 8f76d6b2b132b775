"""Positives and their drawn negatives as one batch: what a negative shares with its positive, and what it does not."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.negatives.draws import PopularityNegatives, UniformNegatives
from gigabatch.loaders.negatives.implicit import TABLE_ROWS, ImplicitBatches, apart_from
from gigabatch.loaders.negatives.table import KnownPositives
from gigabatch.loaders.tables.entity_rows import EntityRows
from gigabatch.loaders.tables.packed import PackedTable
from tests.loaders.tables.test_entity_rows import (
    ITEM_LISTS,
    SCHEMA,
    listed_table,
    plain_lists,
    slow_lists,
    slow_rows,
    table_of,
)

ITEMS = [1, 3, 3, 6, 2, 4, 5, 1, 2, 6]


@pytest.fixture
def table() -> PackedTable:
    return table_of(ITEMS)


def batches(table: PackedTable, num_negatives: int = 4, seed: int = 3) -> ImplicitBatches:
    users, items = (table.words[:, column].contiguous() for column in (0, 1))
    known = KnownPositives.from_pairs(users, items, 5)
    sampler = UniformNegatives(range(1, 7), num_negatives, apart_from(known, range(1, 7)), seed=seed)
    return ImplicitBatches(sampler, 0, EntityRows.of(table, 1, (1, 2), (1, 2)), range(1, 7))


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
            assert torch.equal(found.ids[row], positives.ids[positive])
            assert torch.equal(found.floats[row], positives.floats[positive])


def test_draws_in_plain_torch_are_a_choice_and_the_same(table):
    negatives = batches(table)
    assert negatives.sampler._kernels.__name__.endswith("draws_cpu")
    compiled = negatives(table.unpack(table.words)).ids
    negatives.use_kernels("reference")
    assert negatives.sampler._kernels.__name__.endswith("draws_reference")
    assert torch.equal(negatives(table.unpack(table.words)).ids, compiled)
    with pytest.raises(LoaderError, match="unknown kernels 'plain'"):
        negatives.use_kernels("plain")


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
    monkeypatch.setattr("gigabatch.loaders.negatives.implicit.TABLE_ROWS", 3)
    found = negatives.table(table)
    assert found.schema.has_group
    assert found.schema.targets == SCHEMA.targets
    unpacked = found.unpack(found.words)
    for name in ("ids", "floats", "group"):
        assert torch.equal(getattr(unpacked, name), getattr(rows, name)), name
    assert torch.equal(unpacked.targets[0], rows.targets[0])
    assert TABLE_ROWS > 3


class LargestMade(TorchDispatchMode):
    """Elements of the largest tensor that was made on a device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.elements = device, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == self.device and not func.is_view:
                self.elements = max(self.elements, leaf.numel())
        return found


def test_where_negatives_are_drawn_is_one_block_of_a_table_that_lies_elsewhere(table, monkeypatch):
    """The whole was made on the GPU that draws, also where it had no room. Here the CPU draws for another device."""
    monkeypatch.setattr("gigabatch.loaders.negatives.implicit.TABLE_ROWS", 2)
    many = PackedTable(table.words.repeat(40, 1), table.schema)
    negatives = batches(table)
    with LargestMade("cpu") as made:
        found = negatives.table(many, device="meta")
    assert found.device.type == "meta"
    assert found.words.shape == (400 * 5, found.schema.num_words)
    assert made.elements <= 2 * 5 * found.schema.num_words
    with LargestMade("cpu") as made:
        assert negatives.table(many).device.type == "cpu"
    assert made.elements == 400 * 5 * found.schema.num_words


@pytest.mark.gpu
def test_a_table_lies_where_its_positives_do(table):
    negatives = batches(table)
    sampler = UniformNegatives(range(1, 7), 4, negatives.sampler.known, seed=3, device="cuda")
    on_gpu = ImplicitBatches(sampler, 0, negatives.item.to("cuda"), range(1, 7))
    expected = negatives.table(table)
    for device in ("cpu", "cuda"):
        found = on_gpu.table(table.to(device))
        assert found.device.type == device
        assert torch.equal(found.words.cpu(), expected.words)


def test_positives_keep_the_features_of_their_row(table):
    """What the item's columns said at the row's time (M5); ids 1 and 2 are no items here but many."""
    sampler = UniformNegatives(range(3, 7), 2, apart_from(None, range(3, 7)), seed=1)
    batches = ImplicitBatches(sampler, None, EntityRows.of(table, 1, (1, 2), (1, 2)), range(3, 7))
    cold = table_of([1, 2, 5, 2, 1], seed=9)
    batches.begin(0, 0)
    given, known = cold.unpack(cold.words), slow_rows(table)
    found = batches(given)
    for row, item in enumerate([1, 2, 5, 2, 1]):
        assert int(found.ids[3 * row, 1]) == item
        assert torch.equal(found.ids[3 * row], given.ids[row])
        assert torch.equal(found.floats[3 * row], given.floats[row])
        for place in (3 * row + 1, 3 * row + 2):
            _, drawn, genre, _ = found.ids[place].tolist()
            assert (genre, *found.floats[place, 1:].tolist()) == known[drawn]


@pytest.mark.parametrize("kind", ["uniform", "popularity"])
def test_a_positive_is_never_its_own_negative_where_nothing_is_known_of_users(table, kind):
    item_ids = range(1, 7)
    known = apart_from(None, item_ids)
    sampler = UniformNegatives(item_ids, 9, known, seed=2)
    if kind == "popularity":
        counts = torch.bincount(table.words[:, 1], minlength=7)
        sampler = PopularityNegatives(item_ids, 9, counts, known=known, seed=2)
    batches = ImplicitBatches(sampler, None, EntityRows.of(table, 1, (1,)), item_ids)
    for epoch in range(5):
        batches.begin(epoch, 0)
        items = batches(table.unpack(table.words)).ids[:, 1].view(-1, 10)
        assert items[:, 0].tolist() == ITEMS
        assert not (items[:, 1:] == items[:, :1]).any()
        assert set(items.flatten().tolist()) == set(item_ids)


def test_rows_are_told_how_often_their_item_is_drawn_where_that_differs(table):
    item_ids, counts = range(1, 7), torch.bincount(table.words[:, 1], minlength=7)
    sampler = PopularityNegatives(item_ids, 3, counts, 0.5, apart_from(None, item_ids), seed=2)
    batches = ImplicitBatches(sampler, None, EntityRows.of(table, 1, (1,)), item_ids)
    found = batches(table.unpack(table.words))
    roots = [math.sqrt(ITEMS.count(item)) for item in range(7)]
    expected = [math.log(roots[item] / sum(roots)) for item in found.ids[:, 1].tolist()]
    torch.testing.assert_close(found.log_q, torch.tensor(expected))
    alike = ImplicitBatches(UniformNegatives(item_ids, 3, apart_from(None, item_ids)), None, batches.item, item_ids)
    assert alike(table.unpack(table.words)).log_q is None
    assert (found.copies, table.unpack(table.words).copies) == (4, 1)


@pytest.mark.parametrize("version", ["reference", "cpu"])
def test_rows_of_nobody_in_particular_draw_the_other_items_in_their_proportions(version):
    """The own item's share is spread over all others (M6), not given to the next id: each count against its exact
    expectation, 4.5 deviations wide. Users 0 and 1 are nobody, user 2 knows items 3 and 4."""
    counts, item_ids, rows = torch.tensor([0, 0, 0, 50, 20, 5, 1]), range(3, 7), 4000
    known = KnownPositives.from_pairs(torch.tensor([2, 2]), torch.tensor([3, 4]), 3)
    table = table_of([3, 4] * (rows // 2))
    table.words[:, 0] = torch.arange(rows, dtype=torch.int32) % 4 // 2 * 2  # 0, 0, 2, 2
    sampler = PopularityNegatives(item_ids, 5, counts, 1.0, apart_from(known, item_ids), seed=8, version=version)
    batches = ImplicitBatches(sampler, 0, EntityRows.of(table, 1, (1,)), item_ids, first_user=2)
    batches.begin(0, 0)
    drawn = batches(table.unpack(table.words)).ids[:, 1].view(rows, 6)[:, 1:]
    for user, own, left_out in ((0, 3, {3}), (0, 4, {4}), (2, 3, {3, 4})):
        chosen = drawn[(table.words[:, 0] == user) & (table.words[:, 1] == own)]
        total = sum(int(counts[item]) for item in item_ids if item not in left_out)
        for item in item_ids:
            share = 0 if item in left_out else int(counts[item]) / total
            expected, deviation = share * chosen.numel(), (share * (1 - share) * chosen.numel()) ** 0.5
            assert abs(int((chosen == item).sum()) - expected) <= 4.5 * deviation, (user, own, item)


def test_a_user_whose_known_positives_lack_the_rows_own_is_an_error(table):
    known = KnownPositives.from_pairs(torch.tensor([0]), torch.tensor([1]), 5)
    sampler = UniformNegatives(range(1, 7), 40, apart_from(known, range(1, 7)))
    batches = ImplicitBatches(sampler, 0, EntityRows.of(table, 1, (1,)), range(1, 7))
    with pytest.raises(LoaderError, match="its own negative, because the known positives of its user lack it"):
        batches(table.unpack(table.words))


def test_of_who_knows_all_that_is_drawn_the_rows_own_item_alone_is_left_out(table):
    users, items = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2]), torch.tensor([1, 2, 3, 9, 2, 3, 1, 2, 3])
    known = KnownPositives.from_pairs(users, items, 4)
    ids = torch.arange(10)
    assert known.num_left((ids >= 1) & (ids <= 3)).tolist() == [0, 1, 0, 3]
    assert known.num_left((ids >= 2) & (ids <= 3)).tolist() == [0, 0, 0, 2]
    left = known.without(torch.tensor([True, False, True, False]))
    assert (left.offsets.tolist(), left.items.tolist()) == ([0, 0, 2, 2, 2], [2, 3])

    every_one = [(user, item) for user in (0, 1) for item in range(1, 7)] + [(2, item) for item in range(1, 6)]
    users, items = torch.tensor(every_one).T
    known = KnownPositives.from_pairs(users, items, 3)
    know_all = known.num_left(torch.arange(7) >= 1) == 0
    sampler = UniformNegatives(range(1, 7), 40, apart_from(known.without(know_all), range(1, 7)))
    batches = ImplicitBatches(sampler, 0, EntityRows.of(table, 1, (1,)), range(1, 7), know_all=know_all)
    batch = table.unpack(table.words)
    ids = batch.ids[:3].clone()
    ids[:, :2] = torch.tensor([[0, 2], [1, 5], [2, 3]])
    batch = batch._replace(ids=ids, floats=batch.floats[:3], targets=(batch.targets[0][:3],), weight=None, lists=())
    batches.begin(0, 0)
    drawn = batches(batch).ids[:, 1].view(3, 41)[:, 1:].tolist()
    assert [set(row) for row in drawn] == [{1, 3, 4, 5, 6}, {1, 2, 3, 4, 6}, {6}]


def test_a_sampler_that_does_not_know_the_items_of_nobody_is_refused(table):
    for known, column in ((None, None), (apart_from(None, range(1, 7)), 0)):
        with pytest.raises(LoaderError, match="Make them by apart_from"):
            ImplicitBatches(UniformNegatives(range(1, 7), 2, known), column, EntityRows.of(table, 1, (1,)), range(1, 7))


def test_a_single_item_has_no_negatives():
    with pytest.raises(LoaderError, match="a single item, so there is no other to draw"):
        apart_from(None, range(3, 4))


def batches_with_lists(table: PackedTable, num_negatives: int = 4) -> ImplicitBatches:
    known = KnownPositives.from_pairs(*(table.words[:, column].contiguous() for column in (0, 1)), 5)
    sampler = UniformNegatives(range(1, 7), num_negatives, apart_from(known, range(1, 7)), seed=3)
    return ImplicitBatches(sampler, 0, EntityRows.of(table, 1, (1, 2), (1, 2), ITEM_LISTS), range(1, 7))


def test_a_negative_has_the_lists_of_its_item_and_the_others_of_its_positive():
    table = listed_table(ITEMS)
    rows = table.with_words(table.words[[7, 2, 9, 2, 0]])  # a row's word says which lists are its own
    negatives, known, batch = batches_with_lists(table), slow_lists(table), rows.unpack(rows.words)
    positives = plain_lists(batch.lists)
    negatives.begin(1, 0)
    found = negatives(batch)
    items, lists = found.ids[:, 1].tolist(), plain_lists(found.lists)
    assert len(lists) == 25
    assert len({tuple(map(str, row)) for row in lists}) > 10
    for row, (item, own) in enumerate(zip(items, lists, strict=True)):
        if row % 5:
            assert own == [positives[row // 5][0], *known[item]]
        else:
            assert own == positives[row // 5]


def test_a_table_has_the_lists_of_the_batches_and_keeps_no_copy_a_row(monkeypatch):
    table = listed_table(ITEMS)
    rows = table.with_words(table.words[[7, 2, 9, 2, 0]])
    negatives = batches_with_lists(table)
    negatives.begin(0, 0)
    expected = negatives(rows.unpack(rows.words))
    monkeypatch.setattr("gigabatch.loaders.negatives.implicit.TABLE_ROWS", 2)
    found = negatives.table(rows)
    batch = found.unpack(found.words)
    assert torch.equal(batch.ids, expected.ids)
    assert torch.equal(batch.group, expected.group)
    assert plain_lists(batch.lists) == plain_lists(expected.lists)
    assert found.lists[0] is rows.lists[0]
    assert [column.num_rows for column in found.lists[1:]] == [len(table) + 7] * 2
    shuffled = found.words[torch.randperm(25, generator=torch.Generator().manual_seed(1))]
    again = found.unpack(shuffled)
    by_row = dict(zip(map(tuple, found.words.tolist()), plain_lists(batch.lists), strict=True))
    assert plain_lists(again.lists) == [by_row[tuple(row)] for row in shuffled.tolist()]


def test_items_with_lists_ask_for_rows_with_lists():
    table, plain = listed_table(ITEMS), table_of(ITEMS)
    with pytest.raises(LoaderError, match=r"list columns \[1, 2\] and the batch has 0 lists"):
        batches_with_lists(table)(plain.unpack(plain.words))
