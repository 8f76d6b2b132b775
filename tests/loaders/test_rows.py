"""Positions and rows of a batch, found again beside it on any number of ranks and after a resume."""

import pytest
import torch

from loaders.dataset import BatchDataset
from loaders.errors import LoaderError
from loaders.lists import ListColumn, ListTable
from loaders.loader import BatchLoader
from loaders.rows import positions_of, rows_of, with_rows
from loaders.shards import write_shuffled
from loaders.stream import StreamedDataset


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_rows", [50, 5000])  # sorted by keys, and through the network
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_rows_of_a_batch_are_found_again(make_table, num_rows, num_ranks, shuffle):
    """The table's `group` is the row number, so the batch itself says what is right."""
    table, seen = make_table(num_rows), []
    for rank in range(num_ranks):
        dataset = BatchDataset(table, num_rows // 7, shuffle, seed=3, rank=rank, num_ranks=num_ranks)
        dataset.set_epoch(2)
        for step in range(len(dataset)):
            rows = rows_of(dataset, step, "cpu")
            assert rows.tolist() == dataset[step].group.tolist()
            seen += positions_of(dataset, step, "cpu").tolist()
    assert sorted(seen) == list(range(num_rows))


def test_lists_beside_the_batches_of_a_loader_that_was_resumed(make_table):
    num_rows = 103
    numbers = torch.arange(num_rows, dtype=torch.int32)
    lists = ListTable({"row": ListColumn.from_lengths(numbers.repeat_interleave(numbers % 4), numbers % 4)})
    loader = BatchLoader(BatchDataset(make_table(num_rows), 10, seed=1))
    state = None
    for epoch, first_step in ((0, 0), (1, 0), (1, 4)):
        if state is not None:
            loader.load_state_dict(state)
        num_batches = 0
        for batch, rows in with_rows(loader):
            num_batches += 1
            assert rows.tolist() == batch.group.tolist()
            expected = [[row] * (row % 4) for row in batch.group.tolist()]
            values, offsets = lists.gather(rows)["row"]
            assert [part.tolist() for part in values.tensor_split(offsets[1:-1])] == expected
            if (loader.epoch, loader.step) == (1, 4):
                state = loader.state_dict()
        assert num_batches == len(loader) - first_step
        assert loader.epoch == epoch + 1


def test_rows_of_a_source_that_does_not_tell_them_are_an_error(make_table):
    class Other:
        def __init__(self, dataset):
            self._dataset = dataset

        def __getattr__(self, name):
            return getattr(self._dataset, name)

    loader = BatchLoader(Other(BatchDataset(make_table(9), 3)))
    with pytest.raises(LoaderError, match="Other does not tell which rows"):
        next(with_rows(loader))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_streamed_rows_of_all_ranks_have_each_position_once(make_table, tmp_path, num_ranks, shuffle):
    table, rows, positions = make_table(103), [], []
    write_shuffled([table], tmp_path, table.schema, table.num_rows, seed=5, shard_rows=30)
    for rank in range(num_ranks):
        small = {"block_bytes": 200, "window_blocks": 3, "num_lanes": 4}
        dataset = StreamedDataset(tmp_path, 12 // num_ranks, shuffle, rank=rank, num_ranks=num_ranks, **small)
        for step in range(len(dataset)):
            words, of_step = dataset.words(step), positions_of(dataset, step, "cpu")
            assert len(words) == len(of_step)
            rows += words[:, -1].tolist()  # group, the row's number at the source
            positions += of_step.tolist()
        dataset.close()
    assert sorted(rows) == sorted(positions) == list(range(103))
