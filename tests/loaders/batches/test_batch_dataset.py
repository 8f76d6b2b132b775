"""Batch datasets: an epoch covers every row once, in the sample order, and a batch owns its memory."""

import numpy as np
import pytest
import torch

from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.order.order import SampleOrder
from tests.devices import no_waiting


def groups(dataset: BatchDataset) -> list[int]:
    """Row numbers of an epoch, batch after batch."""
    return [row for index in range(len(dataset)) for row in dataset[index].group.tolist()]


def test_batches_follow_the_sample_order_of_the_epoch(make_table):
    dataset = BatchDataset(make_table(50), 8, seed=3)
    for epoch in (0, 1, 5, 0):
        dataset.set_epoch(epoch)
        assert dataset.epoch == epoch
        assert groups(dataset) == SampleOrder(50, 3, epoch)(torch.arange(50)).tolist()
    assert groups(BatchDataset(make_table(50), 8, shuffle=False)) == list(range(50))


@pytest.mark.parametrize("seed", [1.5, None, "5"])
def test_a_seed_that_is_no_whole_number_is_named(make_table, seed):
    with pytest.raises(LoaderError, match=f"^seed must be a whole number, found {seed!r}"):
        BatchDataset(make_table(50), 8, seed=seed)


def test_whole_numbers_of_numpy_are_settings_too(make_table):
    """Seeds overflowed."""
    plain = groups(BatchDataset(make_table(50), 8, seed=5))
    for kind in (np.int64, np.int32, np.uint64, np.uint8):
        assert groups(BatchDataset(make_table(50), kind(8), seed=kind(5))) == plain


@pytest.mark.parametrize(("num_rows", "shuffle"), [(40, True), (40, False), (9000, True)])
def test_every_column_of_a_batch_belongs_to_its_rows(make_columns, make_table, num_rows, shuffle):
    columns = make_columns(num_rows)
    batch = BatchDataset(make_table(num_rows), 16, shuffle=shuffle)[1]
    rows = batch.group.long()
    assert torch.equal(batch.ids, torch.stack(columns["ids"], 1)[rows])
    assert torch.equal(batch.floats, torch.stack(columns["floats"], 1)[rows])
    assert all(torch.equal(got, column[rows]) for got, column in zip(batch.targets, columns["targets"], strict=True))
    assert torch.equal(batch.weight, columns["weight"][rows])


@pytest.mark.parametrize("shuffle", [True, False])
def test_changing_a_batch_never_changes_the_table(make_table, shuffle):
    table = make_table(20)
    before = table.words.clone()
    batch = BatchDataset(table, 20, shuffle=shuffle)[0]
    batch.floats.fill_(-1)
    batch.ids.zero_()
    assert torch.equal(table.words, before)


@pytest.mark.parametrize("shuffle", [True, False])
def test_words_go_into_the_memory_that_is_given(make_table, shuffle):
    dataset = BatchDataset(make_table(5000), 1500, shuffle=shuffle, seed=4)
    out = torch.full((1500, dataset.schema.num_words), -1, dtype=torch.int32)
    for index, size in enumerate((1500, 1500, 1500, 500)):
        words = dataset.words(index, out=out)
        assert words.data_ptr() == out.data_ptr()
        assert words.shape[0] == size
        assert torch.equal(words, dataset.words(index))


def test_drop_last_leaves_out_the_small_batch(make_table):
    dataset = BatchDataset(make_table(23), 5, drop_last=True)
    assert len(dataset) == 4
    assert len(set(groups(dataset))) == 20
    assert len(BatchDataset(make_table(20), 5, drop_last=True)) == 4


@pytest.mark.parametrize("index", [-1, 5, 100])
def test_an_index_out_of_range_is_an_index_error(make_table, index):
    with pytest.raises(IndexError, match="of 5: indices go from 0 to 4"):
        BatchDataset(make_table(23), 5)[index]


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_batch_is_made_where_its_table_lies_without_waiting(make_table, shuffle, any_device):
    on_cpu = BatchDataset(make_table(10_000), 3000, shuffle=shuffle)
    there = BatchDataset(make_table(10_000).to(any_device), 3000, shuffle=shuffle)
    with no_waiting(any_device):
        batches = [there[index] for index in range(len(there))]
    for index, batch in enumerate(batches):
        assert batch.ids.device.type == any_device
        assert torch.equal(batch.floats.cpu(), on_cpu[index].floats)
        assert torch.equal(batch.group.cpu(), on_cpu[index].group)
