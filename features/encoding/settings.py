"""How a preprocessor encodes: settings of all columns, and of some categorical ones.

Part of a configuration, which is checked before pandas is imported: operators are imported when they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from gigabatch.features.errors import DataError
from gigabatch.features.setting_checks import require_counts

if TYPE_CHECKING:
    from gigabatch.features.operators.categories.categorify import Categorify


@dataclass(frozen=True)
class CategorySettings:
    """min_count, max_size, oov_buckets: see `Categorify`."""

    min_count: int = 1
    max_size: int | None = None
    oov_buckets: int = 1

    def __post_init__(self) -> None:
        require_counts("Categorify of 'the preprocessor'", **asdict(self))

    def operator(self, column: str) -> Categorify:
        from gigabatch.features.operators.categories.categorify import Categorify

        return Categorify(column, self.min_count, max_size=self.max_size, oov_buckets=self.oov_buckets)


@dataclass(frozen=True)
class PreprocessorSettings:
    """min_count, max_size, oov_buckets: of every categorical column, see `Categorify`; `columns` says otherwise for
    some of them. indicator: see `FillMissing`. scale: z-score continuous columns."""

    min_count: int = 1
    max_size: int | None = None
    oov_buckets: int = 1
    columns: Mapping[str, CategorySettings] = field(default_factory=dict)
    indicator: str = "auto"
    scale: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping):
            raise DataError(f"preprocess.columns: expected settings by column, found {self.columns!r}.")
        known = {  # JSON brings plain mappings
            name: item if isinstance(item, CategorySettings) else CategorySettings(**item)
            for name, item in self.columns.items()
        }
        object.__setattr__(self, "columns", known)
        CategorySettings(self.min_count, self.max_size, self.oov_buckets)

    def category(self, name: str) -> Categorify:
        """The operator of the categorical column of that name."""
        everywhere = CategorySettings(self.min_count, self.max_size, self.oov_buckets)
        return self.columns.get(name, everywhere).operator(name)
