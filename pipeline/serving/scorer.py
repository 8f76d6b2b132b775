"""Rows to predictions: what `Bundle.predict` gives for rows of the features stage, without a data frame, and
`Bundle.predict_raw` for raw ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from gigabatch.features.encoding.online import WHERE, Row
from gigabatch.features.errors import DataError
from gigabatch.pipeline.bundle import Bundle, jagged, model_outputs, named_predictions, target_loss
from gigabatch.pipeline.serving.errors import Refusal
from gigabatch.pipeline.serving.raw_rows import RawRows


class RowScorer:
    """`scorer(rows)` gives a list of numbers for each column that `Bundle.predict` names, from ids, floats and lists
    of the same bits; the numbers are equal within `SCORE_RTOL` and `SCORE_ATOL` of models/model.py.

    A number that is not finite is None, for JSON has none such.

    raw: what makes rows of the features stage of raw ones; None where the bundle has no workflow.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.transform = bundle, bundle.online()
        self.raw: RawRows | None = None
        self._no_raw = ""
        try:
            self.raw = RawRows(bundle, self.transform.columns)
        except DataError as error:  # said to whoever sends some
            self._no_raw = str(error)
        self._loss = target_loss(bundle.schema)
        self._known = frozenset(self.transform.columns)
        self._raw_columns = frozenset(() if self.raw is None else self.raw.columns)

    def __call__(self, rows: Sequence[Mapping[str, Any]], raw: bool | None = None) -> dict[str, list[float | None]]:
        """rows: column name to value, each with every feature column, or every raw one; `Refusal` 422 names the row
        that is wrong. raw: whether they are raw rows; None: their columns tell, or are refused."""
        if raw is None:
            raw = self._are_raw(rows[0].keys())
        if raw:
            return self._predict(self._of_raw(rows))
        for place, row in enumerate(rows):
            if row.keys() != self._known:
                require_columns(row, self._known, f"rows[{place}]", hint=self._hint())
        return self._predict(rows)

    def _are_raw(self, there: Set[str]) -> bool:
        """Whether rows of these columns are raw ones; `Refusal` where they may be either, or are neither.

        Without steps a raw row is one of the features stage, but for null words."""
        if self.raw is None:
            return False
        made, only_raw = self._known - self._raw_columns, self._raw_columns - self._known
        if there == self._known and (made or only_raw):
            return False
        if not there >= self._raw_columns:
            if only_raw.isdisjoint(there) and not made.isdisjoint(there):
                return False  # which says what is wrong of a row of the features stage
            raise self._misses(
                there, 0, f", and a row of the features stage has {_listed(sorted(self._known))}, no other"
            )
        if self.raw.steps and not only_raw and (there == self._known or not made.isdisjoint(there)):
            raise Refusal.invalid(
                "raw",
                "rows of these columns may be raw ones or of the features stage. Say "
                '"raw": true for rows as they stand in files, "raw": false for rows of the features stage.',
            )
        return True

    def _misses(self, there: Set[str], place: int, more: str = "") -> Refusal:
        missing = _listed(sorted(self._raw_columns - there))
        text = f"a raw row misses the column(s) {missing}{more}. Null is a value, absence is not."
        return Refusal.invalid(f"rows[{place}]", text)

    def _of_raw(self, rows: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        if self.raw is None:
            raise Refusal(409, "not_available", f"this bundle takes no raw rows: {self._no_raw}")
        for place, row in enumerate(rows):
            if not row.keys() >= self._raw_columns:
                raise self._misses(row.keys(), place)
        return self.raw(rows)

    def _hint(self) -> str:
        """What to say to somebody whose rows are none of the features stage."""
        if self.raw is None or not self.raw.steps:
            return ""
        return f' Raw rows, with "raw": true, have {_listed(sorted(self._raw_columns))}.'

    def _predict(self, rows: Sequence[Row]) -> dict[str, list[float | None]]:
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

    def _blame(self, rows: Sequence[Row]) -> None:
        for place, row in enumerate(rows):
            try:
                self.transform(row)
                self.transform.pack_lists((row,))
            except DataError as error:
                raise Refusal.invalid(f"rows[{place}]", said_by_encoder(error)) from None


def numbers(values: Tensor) -> list[float | None]:
    """[N] float32 as Python floats that are the same numbers; None for what is not finite."""
    found = values.tolist()
    return found if bool(values.isfinite().all()) else [value if math.isfinite(value) else None for value in found]


def said_by_encoder(error: DataError) -> str:
    """An error of `OnlineTransformer` without that name, of which whoever sends a request knows nothing."""
    return str(error).removeprefix(f"{WHERE}: ")


def require_columns(
    row: Mapping[str, Any], known: frozenset[str], where: str, optional: frozenset[str] = frozenset(), hint: str = ""
) -> None:
    """`Refusal` 422 unless these are exactly the known columns, but for optional ones. hint: ends the message."""
    if unknown := sorted(row.keys() - known):
        raise Refusal.invalid(
            where, f"no feature column: {_listed(unknown)}. Feature columns: {_listed(sorted(known)) or 'none'}.{hint}"
        )
    if missing := sorted(known - optional - row.keys()):
        raise Refusal.invalid(where, f"missing column(s): {_listed(missing)}. Null is a value, absence is not.{hint}")


def _listed(names: Sequence[str]) -> str:
    shown = [repr(name if len(name) <= 60 else name[:60] + "…") for name in names[:20]]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
