"""Errors that a user of `features` can mend: each names the place, what was found, and what to do."""

from collections.abc import Iterable


class DataError(ValueError):
    """The data or a setting about it is wrong; the message says where and how to mend it."""

    @classmethod
    def missing_columns(cls, missing: Iterable[str], available: Iterable[str], where: str) -> "DataError":
        return cls(
            f"{where}: column(s) {', '.join(map(repr, missing))} not found. "
            f"Columns there: {', '.join(map(repr, available))}. "
            "Rename the column in the input or correct the configuration."
        )


def require_columns(frame, columns: Iterable[str], where: str) -> None:
    """Raise `DataError` naming every column of `columns` that `frame` lacks."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise DataError.missing_columns(missing, list(frame.columns), where)
