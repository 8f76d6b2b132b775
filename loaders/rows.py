"""Which positions of an epoch, and which rows of the table, a batch holds: for what lies beside the packed rows.

Positions and rows are pure functions of the source's settings, so they are computed anew where they are needed, on the
device of the batch, and nothing is carried along with it.
"""

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from loaders.dataset import BatchDataset, BatchSource
from loaders.errors import LoaderError
from loaders.loader import BatchLoader
from loaders.order import SampleOrder
from loaders.packed import Batch
from loaders.ranks import RankBatches


def positions_of(source: BatchSource, step: int, device: torch.device | str) -> Tensor:
    """Positions [B] int64 in the epoch of this rank's rows at `step` in [0, len(source)): of all ranks together each
    position once.

    For a `BatchDataset` they are the same on any number of ranks. Of a shuffled stream the ranks take rows in turn, so
    there a row's position within its step depends on how many ranks there are.
    """
    batches = RankBatches(source.num_rows, source.batch_size, source.rank, source.num_ranks, source.drop_last)
    return torch.arange(*batches.positions(step), device=device)


def rows_of(dataset: BatchDataset, step: int, device: torch.device | str) -> Tensor:
    """Rows [B] int64 of the dataset's table that `step` of its current epoch holds."""
    positions = positions_of(dataset, step, device)
    return _order(dataset.num_rows, dataset.seed, dataset.epoch)(positions) if dataset.shuffle else positions


def with_rows(loader: BatchLoader) -> Iterator[tuple[Batch, Tensor]]:
    """The batches of `loader`, each with the rows [B] int64 of the table that it holds, on the loader's device.

    Raises:
        LoaderError: for a source other than a `BatchDataset`: a streamed table is stored and read in another order.
    """
    source = loader.source
    if not isinstance(source, BatchDataset):
        raise LoaderError(
            f"with_rows: {type(source).__name__} does not tell which rows a batch holds. Use a resident table "
            "(BatchDataset), or store the row's number in the table, for example as its group."
        )
    for batch in loader:
        yield batch, rows_of(source, loader.step - 1, loader.device)  # `step` counts the batches handed out


@lru_cache(maxsize=4)
def _order(num_rows: int, seed: int, epoch: int) -> SampleOrder:
    return SampleOrder(num_rows, seed, epoch)
