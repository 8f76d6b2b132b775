"""Batches of positives with the negatives that are drawn for them: what a model of implicit feedback trains on.

Shapes: B positives of a batch, K negatives for each, B (1 + K) rows together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.negatives.draws import NegativeSampler, expand
from gigabatch.loaders.negatives.table import KnownPositives
from gigabatch.loaders.order.gather import require_kernels
from gigabatch.loaders.tables.entity_rows import EntityRows
from gigabatch.loaders.tables.jagged import INT32_MAX, JaggedColumn
from gigabatch.loaders.tables.packed import Batch, PackedTable, unpack

TABLE_ROWS = 1 << 16  # positives of a table that are worked on at once


def apart_from(known: KnownPositives | None, item_ids: range, device: torch.device | str = "cpu") -> KnownPositives:
    """`known` for a sampler of `ImplicitBatches`: of each user, and after them of somebody for each id below
    `item_ids.stop` who knows that item alone. By these a row whose user is nobody in particular is kept apart from its
    own item, exactly in the others' proportions.

    Raises:
        LoaderError: where there are fewer than two items.
    """
    if len(item_ids) < 2:
        held = "a single item" if len(item_ids) else "no item"
        raise LoaderError(
            f"negatives: the train split's vocabulary of items holds {held}, so there is no other to draw. Give rows "
            "of more items, or lower preprocess.min_count of the item's column."
        )
    device = device if known is None else known.items.device
    alone = torch.arange(item_ids.stop + 1, device=device)
    if known is None:
        return KnownPositives(alone, alone[:-1].int())
    offsets = torch.cat([known.offsets, known.offsets[-1] + alone[1:]])
    return KnownPositives(offsets, torch.cat([known.items, alone[:-1].int()]))


class ImplicitBatches:
    """Puts `sampler`'s negatives beside each positive of a batch, with the item's own features in their places.

    A row of a negative is its positive's with another item: user, context and weight stay, and the item's own columns,
    lists among them, are those in `item`. A positive keeps its row as it is: what its item's columns said at its time
    may have changed since. Its target is 1, that of a negative 0, and group is the positive's position in the epoch.
    Where items are not drawn uniformly, log_q is of each row's item, a positive's too, what `log_shares` says.

    A positive is never its own negative, nor does another item get its share of the draws: see `apart_from`, which
    makes the `known` of the sampler. user_column: place among the ids of the user; None where no user's positives are
    known. first_user: ids below it (the null, the unseen) are many users, of whom nothing is known. know_all: bool
    [users], more of whom the sampler knows nothing, because nothing would be left to draw. item_ids: those that the
    sampler draws from.

    `begin` is the host's part, which a CUDA graph leaves out; the call itself never waits for the device, but where an
    item has lists, for how many ids those that were drawn hold.
    """

    def __init__(
        self,
        sampler: NegativeSampler,
        user_column: int | None,
        item: EntityRows,
        item_ids: range,
        first_user: int = 0,
        know_all: Tensor | None = None,
    ) -> None:
        num_users = 0 if sampler.known is None else sampler.known.num_users - item_ids.stop
        if num_users < 0 or sampler.known is None or (user_column is None) != (num_users == 0):
            raise LoaderError(
                "negatives: the sampler's known positives are not those of its batches. Make them by apart_from, of "
                "the users' pairs where user_column is given."
            )
        self.sampler, self.user_column, self.item, self.item_ids = sampler, user_column, item, item_ids
        self.first_user, self.num_users = first_user, num_users
        self.know_all = None if know_all is None else know_all.to(sampler.device)
        self._start = torch.zeros((), dtype=torch.int64, device=sampler.device)

    @property
    def copies(self) -> int:
        """Rows for each positive: 1 + K."""
        return 1 + self.sampler.num_negatives

    def use_kernels(self, kernels: str) -> None:
        """Draw with the device's compiled kernels (`compiled`) or plain torch (`reference`), which give the same."""
        version = None if require_kernels(kernels) == "compiled" else "reference"
        self.sampler.use_version(version)

    def begin(self, epoch: int, start: int) -> None:
        """The next batch is that of the positions from `start` on in the order of `epoch`."""
        if self.sampler.epoch != epoch:
            self.sampler.set_epoch(epoch)
        self._start.fill_(start)

    def __call__(self, batch: Batch) -> Batch:
        """B positives -> B (1 + K) rows, in memory of their own.

        Raises:
            LoaderError: for a positive that was drawn as its own negative (on a CPU), or lists that lack the item's.
        """
        rows, drawn = self._expanded(batch)
        return rows._replace(lists=self._lists(batch.lists, drawn)) if batch.lists or self.item.list_columns else rows

    def _lists(self, lists: Sequence[JaggedColumn], drawn: Tensor) -> tuple[JaggedColumn, ...]:
        """The list columns of B (1 + K) rows, from those of B positives and the items drawn [B, K]."""
        own = dict(zip(self.item.list_columns, self.item.lists, strict=True))
        if any(place >= len(lists) for place in own):
            raise LoaderError(f"negatives: the item has list columns {list(own)} and the batch has {len(lists)} lists.")
        return tuple(
            _with_drawn(column, own[place].rows(drawn.flatten()), self.copies)
            if place in own
            else column.repeat(self.copies)
            for place, column in enumerate(lists)
        )

    def _expanded(self, batch: Batch) -> tuple[Batch, Tensor]:
        """The rows without their lists, and the items drawn [B, K]."""
        # Made anew each time: a CUDA graph must not read memory that a larger batch has replaced.
        positions = self._start + torch.arange(batch.num_rows, device=self.sampler.device)
        key = self.item.key_column
        own = batch.ids[:, key]
        drawn = self.sampler(positions, self._apart(batch, own)).ids
        if drawn.device.type == "cpu" and bool((drawn == own[:, None]).any()):  # a GPU's host does not look
            raise LoaderError(
                "negatives: a positive was drawn as its own negative, because the known positives of its user lack it. "
                "Give apart_from the pairs of all rows that negatives are drawn for."
            )
        rows = expand(batch, drawn, key, positions)
        if len(self.item.id_columns) + len(self.item.float_columns) > 1:
            self.item.fill(rows.ids, rows.floats, rows.ids[:, key].clone())
            rows.ids[:: self.copies] = batch.ids
            rows.floats[:: self.copies] = batch.floats
        if (shares := self.sampler.log_shares) is not None:
            rows = rows._replace(log_q=shares.index_select(0, rows.ids[:, key]))
        return rows, drawn

    def _apart(self, batch: Batch, own: Tensor) -> Tensor:
        """What the rows' negatives are kept apart by [B] int32: the user, or the item where the user is nobody."""
        alone = own + self.num_users
        if self.user_column is None:
            return alone
        users = batch.ids[:, self.user_column]
        nobody = users < self.first_user
        if self.know_all is not None:
            nobody = nobody | self.know_all.index_select(0, users)
        return torch.where(nobody, alone, users)

    def table(self, positives: PackedTable, epoch: int = 0, device: torch.device | str | None = None) -> PackedTable:
        """A whole table of positives and their negatives, to evaluate on; groups are the positives' row numbers.

        It lies on `device`, or where the positives do. Its rows are drawn on the sampler's in blocks of `TABLE_ROWS`
        positives, so a GPU that draws for a table on the host holds one block.
        """
        schema = replace(positives.schema, has_group=True)
        lists = self._lists_of_table(positives.lists)
        shape = (len(positives) * self.copies, schema.num_words)
        words = torch.empty(shape, dtype=torch.int32, device=positives.device if device is None else device)
        for start in range(0, len(positives), TABLE_ROWS):
            self.begin(epoch, start)
            part = positives.words[start : start + TABLE_ROWS].to(self.sampler.device)
            rows, drawn = self._expanded(unpack(positives.schema, part))
            numbers = self._numbers(part[:, positives.schema.first_list :], drawn, positives.lists)
            words[start * self.copies : (start + len(part)) * self.copies] = torch.cat([_words(rows), numbers], dim=1)
        return PackedTable(words, schema, lists)

    def _lists_of_table(self, lists: tuple[JaggedColumn, ...]) -> tuple[JaggedColumn, ...]:
        """The lists that rows of `table` number: those of the positives, and behind an item's those of every item."""
        found = list(lists)
        for place, by_id in zip(self.item.list_columns, self.item.lists, strict=True):
            if lists[place].num_rows + by_id.num_rows > INT32_MAX:
                raise LoaderError(
                    f"negatives: rows of lists are numbered in 32 bits, and {lists[place].num_rows:,} rows with "
                    f"{by_id.num_rows:,} items are more than {INT32_MAX:,}. Evaluate fewer rows at once."
                )
            found[place] = JaggedColumn.concat([lists[place], by_id.to(lists[place].ids.device)])
        return tuple(found)

    def _numbers(self, numbers: Tensor, drawn: Tensor, lists: tuple[JaggedColumn, ...]) -> Tensor:
        """Which lists of `_lists_of_table` the rows have: [B (1 + K), L] int32, of the positives' words [B, L]."""
        found = numbers[:, None].repeat(1, self.copies, 1)
        for place in self.item.list_columns:
            found[:, 1:, place] = drawn + lists[place].num_rows
        return found.flatten(0, 1)


def _with_drawn(own: JaggedColumn, drawn: JaggedColumn, copies: int) -> JaggedColumn:
    """Each of B rows of `own`, and behind it its K of the B K rows `drawn`."""
    firsts = torch.arange(own.num_rows, device=own.ids.device)[:, None]
    others = own.num_rows + torch.arange(drawn.num_rows, device=own.ids.device).view(own.num_rows, copies - 1)
    return JaggedColumn.concat([own, drawn]).rows(torch.cat([firsts, others], dim=1).flatten())


def _words(batch: Batch) -> Tensor:
    """The columns of a batch as packed rows, but for the words of its lists."""
    assert batch.group is not None
    floats = [*batch.targets, *([] if batch.weight is None else [batch.weight])]
    single = [column.view(torch.int32) for column in floats] + [batch.group]
    return torch.cat([batch.ids, batch.floats.view(torch.int32), *(column[:, None] for column in single)], dim=1)
