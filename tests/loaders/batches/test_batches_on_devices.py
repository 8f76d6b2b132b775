"""Batches on any device: streamed ones, and those of a table of more words than 31 bits can number."""

import pytest
import torch

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.batches.loader import BatchLoader
from gigabatch.loaders.batches.shards import write_shuffled
from gigabatch.loaders.batches.stream import StreamedDataset
from gigabatch.loaders.order.order import SampleOrder
from gigabatch.loaders.tables.packed import PackedTable, unpack
from tests.devices import no_waiting, require_memory

NUM_WORDS = 8
NARROW = TensorSchema(
    (IdColumn("item", 1000),), ("a", "b", "c", "d", "e"), (Target("label", "binary"),), has_group=True
)


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_stream_arrives_as_it_is_read(make_table, tmp_path, any_device, prefetch, shuffle):
    table = make_table(20_000)
    write_shuffled([table], tmp_path, table.schema, len(table), seed=5, shard_rows=3000)

    def source():
        return StreamedDataset(tmp_path, 700, shuffle, seed=3, block_bytes=20_000, window_blocks=4, num_lanes=2)

    loader, expected = BatchLoader(source(), any_device, prefetch=prefetch), source()
    for epoch in range(2):
        expected.set_epoch(epoch)
        seen = []
        with no_waiting(any_device):
            for batch in loader:
                assert batch.ids.device.type == any_device
                seen.append((batch.floats.clone(), batch.group.clone()))
        assert len(seen) == len(expected)
        for index, (floats, group) in enumerate(seen):
            wanted = unpack(expected.schema, expected.words(index))
            assert torch.equal(floats.cpu(), wanted.floats)
            assert torch.equal(group.cpu(), wanted.group)
        rows = torch.cat([group for _, group in seen]).cpu()
        assert torch.equal(rows.sort().values, torch.arange(len(table), dtype=torch.int32))


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_table_of_more_words_than_31_bits_can_number(any_device, shuffle):
    """Every word of a row follows from its number; a GPU's table has 8.6 GB."""
    assert NARROW.num_words == NUM_WORDS
    num_rows = 5000 if any_device == "cpu" else 2**31 // NUM_WORDS + 5000
    require_memory(any_device, 4 * num_rows * (NUM_WORDS + 4))
    words = torch.empty(num_rows, NUM_WORDS, dtype=torch.int32, device=any_device)
    for start in range(0, num_rows, 1 << 24):
        rows = torch.arange(start, min(start + (1 << 24), num_rows), dtype=torch.int32, device=any_device)
        words[start : start + len(rows)] = rows[:, None]
        words[start : start + len(rows), 0] = rows % 1000
    dataset = BatchDataset(PackedTable(words, NARROW), 1200, shuffle=shuffle, seed=3)
    order = SampleOrder(num_rows, 3, 0)
    for index in (0, len(dataset) // 2, len(dataset) - 2, len(dataset) - 1):
        positions = torch.arange(1200 * index, min(1200 * (index + 1), num_rows))
        wanted = order(positions) if shuffle else positions
        batch = dataset[index]
        assert torch.equal(batch.group.cpu(), wanted.int())
        assert torch.equal(batch.ids.cpu()[:, 0], (wanted % 1000).int())
        assert torch.equal(batch.floats.view(torch.int32).cpu(), wanted.int()[:, None].expand(-1, 5))
