"""A packed table as a sequence of whole batches."""

import torch
from torch import Tensor

from loaders.errors import LoaderError
from loaders.order import SampleOrder
from loaders.packed import Batch, PackedTable


class BatchDataset:
    """Maps a batch's index to the whole `Batch`: one gather of packed rows, on the table's device.

    With `shuffle`, batch i holds positions [i batch_size, (i+1) batch_size) of `SampleOrder(num_rows, seed, epoch)`,
    without it those rows themselves. The last batch is smaller where batch_size does not divide the rows, or left out
    with `drop_last`. A batch never shares memory with the table.
    """

    def __init__(
        self, table: PackedTable, batch_size: int, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        if batch_size < 1:
            raise LoaderError(f"batch_size must be at least 1, found {batch_size}.")
        if table.num_rows == 0:
            raise LoaderError("the packed table has no rows. Check the split or the filters that made it.")
        if drop_last and table.num_rows < batch_size:
            raise LoaderError(
                f"drop_last leaves no batch: the table has {table.num_rows} rows and batch_size is {batch_size}. "
                "Choose a smaller batch_size or keep the last batch."
            )
        self.table = table
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Take the sample order of this epoch from now on."""
        self._order = SampleOrder(self.table.num_rows, self.seed, epoch)

    @property
    def epoch(self) -> int:
        return self._order.epoch

    def __len__(self) -> int:
        """Batches in an epoch."""
        num_rows = self.table.num_rows
        return num_rows // self.batch_size if self.drop_last else -(-num_rows // self.batch_size)

    def __getitem__(self, index: int) -> Batch:
        return self.table.unpack(self.words(index))

    def words(self, index: int, pin_memory: bool = False) -> Tensor:
        """Packed rows [B, W] int32 of batch `index` in [0, len); in page-locked memory on request (CPU tables)."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}: indices go from 0 to {len(self) - 1}.")
        table = self.table.words
        start = index * self.batch_size
        stop = min(start + self.batch_size, self.table.num_rows)
        out = torch.empty((stop - start, table.shape[1]), dtype=table.dtype, device=table.device, pin_memory=pin_memory)
        if not self.shuffle:
            return out.copy_(table[start:stop])
        rows = self._order(torch.arange(start, stop, device=table.device))
        return torch.index_select(table, 0, rows, out=out)
