"""A packed table as a sequence of whole batches, and what any such sequence must offer to a `BatchLoader`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gigabatch.features.schema import TensorSchema
from gigabatch.loaders.errors import whole_number
from gigabatch.loaders.order.gather import gather_shuffled
from gigabatch.loaders.order.order import SampleOrder
from gigabatch.loaders.order.ranks import RankBatches
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import Batch, PackedTable, unpack


class BatchSource(ABC):
    """Packed rows by step, for a `BatchLoader`. One rank's part of every step; see `RankBatches`.

    batch_size: the most rows a step of this rank has. num_rows, global_batch_size: of all ranks together.
    """

    times_set: int = 0  # how often an epoch was chosen, the same one again too
    kernels: str = "compiled"  # that put rows in their order, of `gather.CHOICES`; a stream's order is the host's

    def __init__(self, schema: TensorSchema, batches: RankBatches, shuffle: bool, seed: int) -> None:
        self.schema = schema
        self.shuffle = shuffle
        self.seed = whole_number("seed", seed)
        self.num_rows = batches.num_rows
        self.batch_size = batches.batch_size
        self.global_batch_size = batches.global_batch_size
        self.drop_last = batches.drop_last
        self.rank = batches.rank
        self.num_ranks = batches.num_ranks
        self._batches = batches

    @property
    def epoch(self) -> int:
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self.times_set += 1

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where words are made."""

    @property
    def lists(self) -> Sequence[JaggedColumn]:
        """Of each list column all lists, of which a row's last words say which are its own."""
        return ()

    def tables(self) -> Iterable[PackedTable] | None:
        """All rows of all ranks, also those that fill no batch, once each and in the same order on every rank, in
        tables of which each is to be used at once. None where batches are the only way to the rows."""
        return None

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Give the batches of this epoch from now on."""

    @abstractmethod
    def words(self, index: int, out: Tensor | None = None) -> Tensor:
        """Packed rows [B, W] int32 of step `index` in [0, len) on `device`; written into `out[:B]` where it is given.

        out: int32 [at least B, W], contiguous, on `device`; the result is then a view of it.
        """

    def __len__(self) -> int:
        """Steps of an epoch, the same on every rank."""
        return self._batches.num_steps

    def positions(self, index: int) -> tuple[int, int]:
        """[start, stop): the places of this rank's rows of step `index` in the epoch's order, over all ranks."""
        return self._batches.positions(index)

    def settings(self) -> dict[str, int | bool]:
        """What the rows of each step of all ranks depend on beside the epoch; a resumed run must have the same."""
        return {
            "seed": self.seed,
            "num_rows": self.num_rows,
            "global_batch_size": self._batches.global_batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }


class BatchDataset(BatchSource):
    """Maps a step's number to the whole `Batch`: one gather of packed rows, on the table's device.

    With `shuffle`, the rows of a step are those at its positions (`RankBatches.positions`) of `SampleOrder(num_rows,
    seed, epoch)`; without it, the rows at these positions of the table itself. On one rank that is batch i = positions
    [i batch_size, (i+1) batch_size), the last one smaller where batch_size does not divide the rows, or left out with
    `drop_last`. A batch never shares memory with the table.

    Parameters
    ----------
    table : PackedTable
        The rows.
    batch_size : int
        Rows of a batch of this rank.
    shuffle : bool, default True
        Give the rows of each epoch in a random order of its own.
    seed : int, default 0
        Of the order.
    drop_last : bool, default False
        Leave out a last step that is not full.
    rank, num_ranks : int, default 0 and 1
        This process among those that train together.
    step_rows : int or None, default None
        Rows of a step of all ranks, where they do not divide it; see `RankBatches`.

    Raises
    ------
    LoaderError
        For settings that give no batches.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import BatchDataset, PackedTable
    >>> from gigabatch.features.schema import IdColumn, Target, TensorSchema
    >>> schema = TensorSchema(ids=(IdColumn("item", 9),), floats=("price",), targets=(Target("clicked", "binary"),))
    >>> items, clicked = torch.arange(9, dtype=torch.int32), torch.zeros(9)
    >>> table = PackedTable.from_columns(schema, ids=[items], floats=[items / 2], targets=[clicked])
    >>> dataset = BatchDataset(table, batch_size=4, shuffle=False)
    >>> len(dataset), dataset[2].ids.tolist()
    (3, [[8]])
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
        step_rows: int | None = None,
    ) -> None:
        batches = RankBatches(table.num_rows, batch_size, rank, num_ranks, drop_last, step_rows)
        super().__init__(table.schema, batches, shuffle, seed)
        self.table = table
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Take the sample order of this epoch from now on."""
        self._order = SampleOrder(self.num_rows, self.seed, epoch)
        self.epoch = epoch

    @property
    def device(self) -> torch.device:
        return self.table.device

    def tables(self) -> Iterable[PackedTable]:
        return [self.table]

    def __getitem__(self, index: int) -> Batch:
        return unpack(self.schema, self.words(index), self.lists)

    @property
    def lists(self) -> Sequence[JaggedColumn]:
        return self.table.lists

    def words(self, index: int, out: Tensor | None = None) -> Tensor:
        """As `BatchSource.words`; without `out` in memory of their own."""
        table = self.table.words
        start, stop = self.positions(index)
        out = table.new_empty((stop - start, table.shape[1])) if out is None else out[: stop - start]
        if not self.shuffle:
            return out.copy_(table[start:stop])
        return gather_shuffled(table, self._order, start, stop, out, self.kernels)
