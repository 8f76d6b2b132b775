"""Checks of settings that operators and the preprocessor share. A configuration is checked by them before any work, so
nothing heavy is imported here."""

from __future__ import annotations

from typing import Any

from gigabatch.features.errors import DataError

INDICATORS = ("auto", "all", "none")  # of FillMissing


def require_counts(where: str, **counts: Any) -> None:
    """Raise `DataError` for a setting that is no whole number from 1; `max_size` may be None, for no bound."""
    for name, value in counts.items():
        if value is None and name == "max_size":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DataError(f"{where}: {name} must be at least 1, found {value!r}.")
