"""The users, or the items, that a bundle knows: their keys, model inputs and, of a two-tower model, their vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.pipeline.serving.errors import Refusal, ServingError

KINDS: dict[str, type] = {"string": str, "int32": int, "int64": int}


@dataclass(frozen=True)
class Catalogue:
    """N users or items. keys: [N], each once, as Python text or integers; dtype: of the key's column.

    ids [N, C'] int32, floats [N, F'] float32: their columns in the order of the model's `EntityColumns`.
    vectors: [N, d] float32 or float16, or None where the model has none. lists: their list columns, of N rows each, by
    place among the model's lists; of users also those of the context that are stored with them (histories).
    """

    name: str
    dtype: str
    keys: Sequence[Any]
    ids: Tensor
    floats: Tensor
    vectors: Tensor | None = None
    lists: Mapping[int, JaggedColumn] = field(default_factory=dict)
    rows: dict[Any, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.dtype not in KINDS:
            raise ServingError(
                f"the key of {self.name} is declared {self.dtype}; only text and integers can be asked for by id."
            )
        object.__setattr__(self, "rows", dict(zip(self.keys, range(len(self.keys)), strict=True)))
        parts = (self.keys, self.rows, self.ids, self.floats, self.vectors)
        lengths = {len(part) for part in parts if part is not None} | {
            column.num_rows for column in self.lists.values()
        }
        if len(lengths) != 1:
            raise ServingError(f"the stored rows of {self.name} do not belong together: lengths {sorted(lengths)}.")

    def __len__(self) -> int:
        return len(self.keys)

    def places(self, keys: Sequence[Any], where: str) -> np.ndarray:
        """Row of each key [N] int64, -1 where there is none; `Refusal` 422 for one of another type than the column."""
        kind = KINDS[self.dtype]
        if not {kind}.issuperset(map(type, keys)):
            place = next(i for i, key in enumerate(keys) if type(key) is not kind)
            raise Refusal.invalid(f"{where}[{place}]", self.expected(keys[place]))
        find = self.rows.get
        return np.fromiter([find(key, -1) for key in keys], np.int64, len(keys))

    def expected(self, key: Any) -> str:
        """What is wrong with a key of another type."""
        kind = "text" if KINDS[self.dtype] is str else "integers"
        return f"ids of {self.name} are {kind} (column of {self.dtype}), found {type(key).__name__}."

    def find(self, key: Any, where: str) -> int | None:
        """The row of one key."""
        if type(key) is not KINDS[self.dtype]:
            raise Refusal.invalid(where, self.expected(key))
        return self.rows.get(key)
