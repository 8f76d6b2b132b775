"""The features of every item (or user) of a packed table, so that one can be put in the place of another in a row.

Shapes: B rows of a batch, V ids of the entity, I id columns, F float columns and L list columns of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.jagged import JaggedColumn, equal_rows
from gigabatch.loaders.tables.packed import PackedTable

BLOCK_ROWS = 1 << 20  # of a table that are looked at at once


@dataclass(frozen=True, eq=False)
class EntityRows:
    """Columns of one entity by its id: words [V, I + F] int32, the entity's ids and the bits of its floats; and its
    lists.

    key_column: place among a row's ids of the column that names the entity, one of `id_columns` (I places).
    float_columns: F places among a row's floats. list_columns: L places among a row's list columns. lists: of each of
    these a list by id, V rows.
    """

    words: Tensor
    key_column: int
    id_columns: tuple[int, ...]
    float_columns: tuple[int, ...]
    list_columns: tuple[int, ...] = ()
    lists: tuple[JaggedColumn, ...] = ()

    @classmethod
    def of(
        cls,
        table: PackedTable,
        key_column: int,
        id_columns: Sequence[int],
        float_columns: Sequence[int] = (),
        list_columns: Sequence[int] = (),
    ) -> EntityRows:
        """From the last row of the table that has each id; an id of no row has padding (0) in its columns, floats of 0,
        which is the mean of a scaled column, and empty lists. On the table's device, or where its lists lie.

        Raises:
            LoaderError: for columns that the table does not have, or a key that is not among `id_columns`.
        """
        id_columns, float_columns, list_columns = tuple(id_columns), tuple(float_columns), tuple(list_columns)
        num_ids, num_floats = len(table.schema.ids), len(table.schema.floats)
        if key_column not in id_columns:
            raise LoaderError(f"entity rows: the key column {key_column} is not among the id columns {id_columns}.")
        outside = [place for place in id_columns if not 0 <= place < num_ids]
        outside += [place for place in float_columns if not 0 <= place < num_floats]
        if outside:
            raise LoaderError(f"entity rows: no column {outside}; the table has {num_ids} ids and {num_floats} floats.")
        outside = [place for place in list_columns if not 0 <= place < len(table.lists)]
        if outside:
            raise LoaderError(f"entity rows: no list column {outside}; the table has {len(table.lists)}.")
        size = table.schema.ids[key_column].num_ids
        keys = table.words[:, key_column].long()
        last = torch.full((size,), -1, dtype=torch.int64, device=table.device)
        last.scatter_reduce_(0, keys, torch.arange(len(keys), device=table.device), "amax")
        places = torch.tensor([*id_columns, *(num_ids + place for place in float_columns)], device=table.device)
        whole = table.words[last.clamp_min(0)]
        words = whole[:, places]
        words[last < 0] = 0
        words[:, id_columns.index(key_column)] = torch.arange(size, dtype=torch.int32, device=table.device)
        first, lists = table.schema.first_list, []
        for place in list_columns:
            column = table.lists[place]
            there = (last >= 0).to(column.ids.device)
            known = column.rows(whole[:, first + place].to(column.ids.device)[there])
            # One more row, which is empty, for the ids that no row has.
            nothing = JaggedColumn.empty(1, column.weights is not None, column.ids.device)
            numbers = torch.where(there, there.cumsum(0) - 1, known.num_rows)
            lists.append(JaggedColumn.concat([known, nothing]).rows(numbers))
        return cls(words, key_column, id_columns, float_columns, list_columns, tuple(lists))

    def moving_columns(self, table: PackedTable, first: int = 0) -> list[int]:
        """Which columns differ between rows of one id of the table, from `first` on: places among ids, floats and list
        columns, one kind after the other."""
        num_ids, num_floats = len(table.schema.ids), len(table.schema.floats)
        places = [*self.id_columns, *(num_ids + place for place in self.float_columns)]
        found = torch.zeros(len(places), dtype=torch.bool, device=table.device)
        lists_move = dict.fromkeys(self.list_columns, False)
        for words in table.words.split(BLOCK_ROWS):
            keys = words[:, self.key_column].long()
            found |= ((words[:, places] != self.words[keys]) & (keys >= first)[:, None]).any(0)
            known = words[keys >= first]
            for place, own in zip(self.list_columns, self.lists, strict=True):
                if not lists_move[place]:
                    numbers = known[:, table.schema.first_list + place].to(own.ids.device)
                    by_id = own.rows(known[:, self.key_column].to(own.ids.device))
                    lists_move[place] = not bool(equal_rows(table.lists[place].rows(numbers), by_id).all())
        moving = [place for place, moves in zip(places, found.tolist(), strict=True) if moves]
        return moving + [num_ids + num_floats + place for place, moves in lists_move.items() if moves]

    @property
    def num_ids(self) -> int:
        return self.words.shape[0]

    def fill(self, ids: Tensor, floats: Tensor, entity_ids: Tensor) -> None:
        """Overwrite the entity's columns of ids [B, C] int32 and floats [B, F] float32 with those of `entity_ids` [B].

        Each id must be in [0, num_ids), which a GPU does not check.
        """
        rows = self.words[entity_ids.long()]
        for place, column in enumerate(self.id_columns):
            ids[:, column] = rows[:, place]
        for place, column in enumerate(self.float_columns, len(self.id_columns)):
            floats[:, column] = rows[:, place].contiguous().view(torch.float32)

    def lists_beside(self, lists: Sequence[JaggedColumn], rows: Tensor, entity_ids: Tensor) -> tuple[JaggedColumn, ...]:
        """The list columns of B rows that are those of others with this entity in the place of theirs.

        lists: all list columns, of any rows; rows [B]: which of these each row takes what is not the entity's from.
        entity_ids [B]: whose lists stand in the entity's columns.
        """
        own = dict(zip(self.list_columns, self.lists, strict=True))
        return tuple(
            own[place].rows(entity_ids) if place in own else column.rows(rows) for place, column in enumerate(lists)
        )

    def to(self, device: torch.device | str) -> EntityRows:
        lists = tuple(column.to(device) for column in self.lists)
        return EntityRows(
            self.words.to(device), self.key_column, self.id_columns, self.float_columns, self.list_columns, lists
        )
