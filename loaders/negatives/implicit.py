"""Batches of positives with the negatives that are drawn for them: what a model of implicit feedback trains on.

Shapes: B positives of a batch, K negatives for each, B (1 + K) rows together.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.negatives.draws import NegativeSampler, expand
from gigabatch.loaders.tables.entity_rows import EntityRows
from gigabatch.loaders.tables.packed import Batch, PackedTable

TABLE_ROWS = 1 << 16  # positives of a table that are worked on at once


class ImplicitBatches:
    """Puts `sampler`'s negatives beside each positive of a batch, with the item's own features in their places.

    A row of a negative is its positive's with another item: user, context and weight stay. Its target is 0, that of a
    positive 1, and group is the positive's position in the epoch. user_column: place among the ids of the column whose
    known positives are left out; None where the sampler knows none. item: the features of every item.

    item_ids: those that the sampler draws from. An id below them is no item but many (the null, the unseen), whose
    positives keep the features of their row. A draw that hits the positive itself, as one for a user of whom nothing
    is known may, becomes the next id.

    `begin` is the host's part, which a CUDA graph leaves out; the call itself never waits for the device.
    """

    def __init__(self, sampler: NegativeSampler, user_column: int | None, item: EntityRows, item_ids: range) -> None:
        if len(item_ids) < 2:
            raise LoaderError(f"negatives: there is no other item to draw among the ids {item_ids}.")
        self.sampler, self.user_column, self.item, self.item_ids = sampler, user_column, item, item_ids
        self._start = torch.zeros((), dtype=torch.int64, device=sampler.device)

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
        # Made anew each time: a CUDA graph must not read memory that a larger batch has replaced.
        positions = self._start + torch.arange(batch.num_rows, device=self.sampler.device)
        key = self.item.key_column
        own = batch.ids[:, key].contiguous()
        users = None if self.user_column is None else batch.ids[:, self.user_column].contiguous()
        drawn = self.sampler(positions, users).ids
        rows = expand(batch, self._without_own(drawn, own[:, None]), key, positions)
        if len(self.item.id_columns) + len(self.item.float_columns) > 1:
            self.item.fill(rows.ids, rows.floats, rows.ids[:, key].clone())
            many = own[:, None] < self.item_ids.start
            for filled, given in ((rows.ids, batch.ids), (rows.floats, batch.floats)):
                positives = filled[:: self.copies]
                positives.copy_(torch.where(many, given, positives))
        return rows

    def _without_own(self, drawn: Tensor, own: Tensor) -> Tensor:
        """The draws [B, K], the next id in place of one that is the row's own item [B, 1]."""
        following = torch.where(drawn == self.item_ids.stop - 1, self.item_ids.start, drawn + 1)
        return torch.where(drawn == own, following, drawn)

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
