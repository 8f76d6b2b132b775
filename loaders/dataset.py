"""A packed table as a sequence of whole batches, and what any such sequence must offer to a `BatchLoader`."""

from typing import Protocol

import torch
from torch import Tensor

from features.schema import TensorSchema
from loaders.gather import gather_shuffled
from loaders.order import SampleOrder
from loaders.packed import Batch, PackedTable, unpack
from loaders.ranks import RankBatches


class BatchSource(Protocol):
    """Packed rows by step, for a `BatchLoader`. One rank's part of every step; see `RankBatches`.

    batch_size is the most rows a step of this rank has, `device` is where its words are made.
    """

    schema: TensorSchema
    batch_size: int

    @property
    def num_rows(self) -> int: ...  # of all ranks together

    @property
    def seed(self) -> int: ...

    @property
    def shuffle(self) -> bool: ...

    @property
    def drop_last(self) -> bool: ...

    @property
    def rank(self) -> int: ...

    @property
    def num_ranks(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def epoch(self) -> int: ...

    def set_epoch(self, epoch: int) -> None:
        """Give the batches of this epoch from now on."""

    def __len__(self) -> int:
        """Steps of an epoch, the same on every rank."""

    def words(self, index: int, out: Tensor | None = None) -> Tensor:
        """Packed rows [B, W] int32 of step `index` in [0, len) on `device`; written into `out[:B]` where it is given.

        out: int32 [at least B, W], contiguous, on `device`; the result is then a view of it.
        """

    def positions(self, index: int) -> tuple[int, int]:
        """[start, stop): the places of this rank's rows of step `index` in the epoch's order, over all ranks."""

    def settings(self) -> dict[str, int | bool]:
        """What the rows of each step of all ranks depend on beside the epoch; a resumed run must have the same."""


class BatchDataset:
    """Maps a step's number to the whole `Batch`: one gather of packed rows, on the table's device.

    With `shuffle`, the rows of a step are those at its positions (`RankBatches.positions`) of
    `SampleOrder(num_rows, seed, epoch)`; without it, the rows at these positions of the table itself. On one rank that
    is batch i = positions [i batch_size, (i+1) batch_size), the last one smaller where batch_size does not divide the
    rows, or left out with `drop_last`. A batch never shares memory with the table.

    batch_size: rows of a batch of this rank. rank, num_ranks: this process among those that train together.
    """

    def __init__(
        self,
        table: PackedTable,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        self._batches = RankBatches(table.num_rows, batch_size, rank, num_ranks, drop_last)
        self.table = table
        self.schema = table.schema
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Take the sample order of this epoch from now on."""
        self._order = SampleOrder(self.table.num_rows, self.seed, epoch)

    @property
    def epoch(self) -> int:
        return self._order.epoch

    @property
    def num_rows(self) -> int:
        return self.table.num_rows

    @property
    def device(self) -> torch.device:
        return self.table.device

    @property
    def drop_last(self) -> bool:
        return self._batches.drop_last

    @property
    def rank(self) -> int:
        return self._batches.rank

    @property
    def num_ranks(self) -> int:
        return self._batches.num_ranks

    def __len__(self) -> int:
        """Steps of an epoch, the same on every rank."""
        return self._batches.num_steps

    def __getitem__(self, index: int) -> Batch:
        return unpack(self.schema, self.words(index))

    def positions(self, index: int) -> tuple[int, int]:
        """[start, stop): the places of this rank's rows of step `index` in the epoch's order, over all ranks."""
        return self._batches.positions(index)

    def words(self, index: int, out: Tensor | None = None) -> Tensor:
        """Packed rows [B, W] int32 of step `index` in [0, len), on the table's device.

        out: int32 [at least B, W] there, whose first B rows are overwritten and returned; else memory of their own.
        """
        table = self.table.words
        start, stop = self.positions(index)
        out = table.new_empty((stop - start, table.shape[1])) if out is None else out[: stop - start]
        if not self.shuffle:
            return out.copy_(table[start:stop])
        return gather_shuffled(table, self._order, start, stop, out)

    def settings(self) -> dict[str, int | bool]:
        """What the rows of each step of all ranks depend on beside the epoch."""
        return {
            "seed": self.seed,
            "num_rows": self.num_rows,
            "global_batch_size": self._batches.global_batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }
