"""Batches of positives with the negatives that are drawn for them: what a model of implicit feedback trains on.

Shapes: B positives of a batch, K negatives for each, B (1 + K) rows together.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from loaders.entity_rows import EntityRows
from loaders.negatives import NegativeSampler, expand
from loaders.packed import Batch, PackedTable

TABLE_ROWS = 1 << 16  # positives of a table that are worked on at once


class ImplicitBatches:
    """Puts `sampler`'s negatives beside each positive of a batch, with the item's own features in their places.

    A row of a negative is its positive's with another item: user, context and weight stay. Its target is 0, that of a
    positive 1, and group is the positive's position in the epoch. user_column: place among the ids of the column whose
    known positives are left out; None where the sampler knows none. item: the features of every item.

    `begin` is the host's part, which a CUDA graph leaves out; the call itself never waits for the device.
    """

    def __init__(self, sampler: NegativeSampler, user_column: int | None, item: EntityRows) -> None:
        self.sampler, self.user_column, self.item = sampler, user_column, item
        self._start = torch.zeros((), dtype=torch.int64, device=sampler.device)
        self._steps = torch.empty(0, dtype=torch.int64, device=sampler.device)

    @property
    def copies(self) -> int:
        """Rows for each positive: 1 + K."""
        return 1 + self.sampler.num_negatives

    def begin(self, epoch: int, start: int) -> None:
        """The next batch is that of the positions from `start` on in the order of `epoch`."""
        if self.sampler.epoch != epoch:
            self.sampler.set_epoch(epoch)
        self._start.fill_(start)

    def __call__(self, batch: Batch) -> Batch:
        """B positives -> B (1 + K) rows, in memory of their own."""
        if len(self._steps) < batch.num_rows:
            self._steps = torch.arange(batch.num_rows, device=self.sampler.device)
        positions = self._start + self._steps[: batch.num_rows]
        key = self.item.key_column
        users = None if self.user_column is None else batch.ids[:, self.user_column].contiguous()
        negatives = self.sampler(positions, users, batch.ids[:, key].contiguous())
        rows = expand(batch, negatives.ids, key, positions)
        if len(self.item.id_columns) + len(self.item.float_columns) > 1:
            self.item.fill(rows.ids, rows.floats, rows.ids[:, key].clone())
        return rows

    def table(self, positives: PackedTable, epoch: int = 0) -> PackedTable:
        """A whole table of positives and their negatives, to evaluate on; groups are the positives' row numbers."""
        schema = replace(positives.schema, has_group=True)
        words = torch.empty(
            (len(positives) * self.copies, schema.num_words), dtype=torch.int32, device=self.sampler.device
        )
        for start in range(0, len(positives), TABLE_ROWS):
            self.begin(epoch, start)
            part = positives.words[start : start + TABLE_ROWS].to(self.sampler.device)
            rows = self(positives.unpack(part))
            out = words[start * self.copies : (start + len(part)) * self.copies]
            _write_words(rows, out)
        return PackedTable(words, schema)


def _write_words(batch: Batch, out: Tensor) -> None:
    """The columns of a batch as packed rows."""
    assert batch.group is not None
    floats = [*batch.targets, *([] if batch.weight is None else [batch.weight])]
    single = [column.view(torch.int32) for column in floats] + [batch.group]
    torch.cat([batch.ids, batch.floats.view(torch.int32), *(column[:, None] for column in single)], dim=1, out=out)
