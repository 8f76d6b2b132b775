"""A column as codes of its distinct values: what `engine.coded` gives, on either engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from features.frame import engine_of


@dataclass(frozen=True)
class CodedColumn:
    """codes: int32 [N], -1 for null. counted: columns `value` and `count` as of `engine.value_counts`. order: the code
    of each row of `counted`. num_codes: codes lie below it; some may stand for no row. lookup: gives
    `engine.lookup` of so many values from the start of `counted`, or None, where it must be made from them."""

    codes: Any
    counted: Any
    order: Any
    num_codes: int
    lookup: Callable[[int], Any] = lambda num_values: None

    def ids(self, vocabulary: Any, single: bool) -> Any:
        """int32 [num_codes + 1]: the id of each code, and that of null last.

        single: the vocabulary was fitted on this column alone, so that it is the start of `counted`, and only what is
        left out of it must be looked up (it is unseen, but of which bucket?).
        """
        xp, layout = engine_of(self.counted).arrays, vocabulary.layout
        found = xp.full(self.num_codes + 1, layout.null, dtype="int32")
        known = len(vocabulary.values) if single else 0
        found[self.order[:known]] = xp.arange(layout.first, layout.first + known, dtype="int32")
        if known < len(self.order):
            found[self.order[known:]] = vocabulary.encode(self.counted["value"].iloc[known:])
        return found
