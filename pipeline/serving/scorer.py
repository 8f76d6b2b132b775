"""Rows of the features stage to predictions: what `Bundle.predict` gives for them, without a data frame."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gigabatch.features.errors import DataError
from gigabatch.pipeline.bundle import Bundle, jagged, model_outputs, named_predictions, target_loss
from gigabatch.pipeline.serving.errors import Refusal


class RowScorer:
    """`scorer(rows)` gives a list of numbers for each column that `Bundle.predict` names, from ids, floats and lists
    of the same bits; the numbers are equal within `SCORE_RTOL` and `SCORE_ATOL` of models/model.py.

    A number that is not finite is None, for JSON has none such.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.transform = bundle, bundle.online()
        self._loss = target_loss(bundle.schema)
        self._known = frozenset(self.transform.columns)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
        """rows: column name to value, each with every feature column; `Refusal` 422 names the row that is wrong."""
        for place, row in enumerate(rows):
            if row.keys() != self._known:
                require_columns(row, self._known, f"rows[{place}]")
        try:
            ids, floats = self.transform.batch(rows)
            packed = self.transform.pack_lists(rows)
        except DataError:
            self._blame(rows)
            raise
        device = self.bundle.device
        lists = [column.to(device) for column in jagged(packed)]
        outputs = model_outputs(
            self.bundle.model, torch.from_numpy(ids).to(device), torch.from_numpy(floats).to(device), lists
        )
        predictions = self._loss.predict(torch.cat(list(outputs)))
        return {name: numbers(part) for name, part in named_predictions(self.bundle.schema, predictions).items()}

    def _blame(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for place, row in enumerate(rows):
            try:
                self.transform(row)
                self.transform.pack_lists((row,))
            except DataError as error:
                raise Refusal.invalid(f"rows[{place}]", str(error)) from None


def numbers(values: Tensor) -> list[float | None]:
    """[N] float32 as Python floats that are the same numbers; None for what is not finite."""
    found = values.tolist()
    return found if bool(values.isfinite().all()) else [value if math.isfinite(value) else None for value in found]


def require_columns(
    row: Mapping[str, Any], known: frozenset[str], where: str, optional: frozenset[str] = frozenset()
) -> None:
    """`Refusal` 422 unless these are exactly the known columns, of which some may be missing."""
    if unknown := sorted(row.keys() - known):
        raise Refusal.invalid(
            where, f"no feature column: {_listed(unknown)}. Feature columns: {_listed(sorted(known)) or 'none'}."
        )
    if missing := sorted(known - optional - row.keys()):
        raise Refusal.invalid(where, f"missing column(s): {_listed(missing)}. Null is a value, absence is not.")


def _listed(names: Sequence[str]) -> str:
    shown = [repr(name if len(name) <= 60 else name[:60] + "…") for name in names[:20]]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
