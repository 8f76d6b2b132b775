"""The features of every item (or user) of a packed table, so that one can be put in the place of another in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.packed import PackedTable

BLOCK_ROWS = 1 << 20  # of a table that are looked at at once


@dataclass(frozen=True, eq=False)
class EntityRows:
    """Columns of one entity by its id: words [num_ids, I + F] int32, the entity's ids and the bits of its floats.

    key_column: place among a row's ids of the column that names the entity, one of `id_columns` (I places).
    float_columns: F places among a row's floats.
    """

    words: Tensor
    key_column: int
    id_columns: tuple[int, ...]
    float_columns: tuple[int, ...]

    @classmethod
    def of(
        cls, table: PackedTable, key_column: int, id_columns: Sequence[int], float_columns: Sequence[int] = ()
    ) -> EntityRows:
        """From the last row of the table that has each id; an id of no row has padding (0) in its columns and floats
        of 0, which is the mean of a scaled column. On the table's device.

        Raises:
            LoaderError: for columns that the table does not have, or a key that is not among `id_columns`.
        """
        id_columns, float_columns = tuple(id_columns), tuple(float_columns)
        num_ids, num_floats = len(table.schema.ids), len(table.schema.floats)
        if key_column not in id_columns:
            raise LoaderError(f"entity rows: the key column {key_column} is not among the id columns {id_columns}.")
        outside = [place for place in id_columns if not 0 <= place < num_ids]
        outside += [place for place in float_columns if not 0 <= place < num_floats]
        if outside:
            raise LoaderError(f"entity rows: no column {outside}; the table has {num_ids} ids and {num_floats} floats.")
        size = table.schema.ids[key_column].num_ids
        keys = table.words[:, key_column].long()
        last = torch.full((size,), -1, dtype=torch.int64, device=table.device)
        last.scatter_reduce_(0, keys, torch.arange(len(keys), device=table.device), "amax")
        places = torch.tensor([*id_columns, *(num_ids + place for place in float_columns)], device=table.device)
        words = table.words[last.clamp_min(0)][:, places]
        words[last < 0] = 0
        words[:, id_columns.index(key_column)] = torch.arange(size, dtype=torch.int32, device=table.device)
        return cls(words, key_column, id_columns, float_columns)

    def moving_columns(self, table: PackedTable, first: int = 0) -> list[int]:
        """Places in a packed row of the columns that differ between rows of one id of the table, from `first` on."""
        num_ids = len(table.schema.ids)
        places = [*self.id_columns, *(num_ids + place for place in self.float_columns)]
        found = torch.zeros(len(places), dtype=torch.bool, device=table.device)
        for words in table.words.split(BLOCK_ROWS):
            keys = words[:, self.key_column].long()
            found |= ((words[:, places] != self.words[keys]) & (keys >= first)[:, None]).any(0)
        return [place for place, moves in zip(places, found.tolist(), strict=True) if moves]

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

    def to(self, device: torch.device | str) -> EntityRows:
        return EntityRows(self.words.to(device), self.key_column, self.id_columns, self.float_columns)
