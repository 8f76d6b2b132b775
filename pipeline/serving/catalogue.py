"""The users, or the items, that a bundle knows: their keys, model inputs and, of a two-tower model, their vectors."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.pipeline.serving.errors import Refusal, ServingError

WHOLE = re.compile("-?[1-9][0-9]{0,18}|0")  # as Python writes one: 007 may be a name
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
        """Row of each key [N] int64, -1 where there is none; `Refusal` 422 for one that cannot be of the column."""
        if not {KINDS[self.dtype]}.issuperset(map(type, keys)):
            keys = [self.own(key, f"{where}[{place}]") for place, key in enumerate(keys)]
        find = self.rows.get
        return np.fromiter([find(key, -1) for key in keys], np.int64, len(keys))

    def own(self, key: str | int, where: str) -> Any:
        """A key as one of the column's type: a whole number as its text, and text that is that of a whole number as
        the number; `Refusal` 422 for other text where ids are integers."""
        if type(key) is KINDS[self.dtype]:
            return key
        if isinstance(key, int):
            return str(key)
        if WHOLE.fullmatch(key) and -(2**63) <= int(key) < 2**63:
            return int(key)
        raise Refusal.invalid(
            where, f"ids of {self.name} are integers (column of {self.dtype}), found the text {reprlib.repr(key)}."
        )

    def find(self, key: Any, where: str) -> int | None:
        """The row of one key."""
        return self.rows.get(self.own(key, where))
