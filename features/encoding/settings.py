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
    """Set how one categorical column is encoded.

    Parameters
    ----------
    min_count
        Values that the train split holds in fewer rows are unseen.
    max_size
        At most so many values get an id of their own, the most frequent; None for no bound.
    oov_buckets
        Ids that unseen values share by their hash.
    """

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
    """Set how a `Preprocessor` encodes the columns of a table.

    Parameters
    ----------
    min_count, max_size, oov_buckets
        Of every categorical column that `columns` does not name; see `CategorySettings`.
    columns
        Settings of single categorical columns, by name.
    indicator
        Which continuous columns get a float32 column `<name>_na`, 1 where a null was filled: `auto` for those that
        hold a null in the train split, `all` or `none`.
    scale
        Whether continuous columns become z-scores (mean 0 and standard deviation 1 on the train split).

    Raises
    ------
    DataError
        If a count is no whole number from 1, or `columns` is no mapping.

    Examples
    --------
    >>> from gigabatch.features.encoding.settings import CategorySettings, PreprocessorSettings
    >>> chosen = PreprocessorSettings(min_count=2, columns={"city": CategorySettings(oov_buckets=10)})
    >>> chosen.columns["city"].oov_buckets
    10
    """

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
