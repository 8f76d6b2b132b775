"""What the columns of a frame of interactions are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Which column of a frame of interactions is what.

    categorical: types of the user's, the item's and all further columns of that role, in the schema's order.
    user_columns, item_columns: those of `categorical` and `continuous` that describe the user or item of a row; those
    that describe neither are its context. time_type: how files hold the times, as `read_files` takes it; time_dtype:
    the schema's type of them; time_unit: what they count, a key of `TIME_UNITS`, None where that is not known.
    """

    user: str
    item: str
    categorical: Mapping[str, str]
    continuous: tuple[str, ...] = ()
    time: str | None = None
    rating: str | None = None
    user_columns: tuple[str, ...] = ()
    item_columns: tuple[str, ...] = ()
    time_type: str = "time"
    time_dtype: str = "int64"
    time_unit: str | None = None

    @property
    def identity(self) -> list[str]:
        """User, item and categorical contexts: rows that share them are repeats of one interaction, whatever their
        floats, of which hardly two are alike."""
        return [name for name in self.categorical if name not in (*self.user_columns, *self.item_columns)]
