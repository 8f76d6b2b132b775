"""How a preprocessor encodes: settings of all columns, and of some categorical ones.

Part of a configuration, which is checked before pandas is imported: operators are imported when they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Literal

from gigabatch.features.errors import DataError
from gigabatch.features.setting_checks import INDICATORS, require_counts

if TYPE_CHECKING:
    from gigabatch.features.operators.categories.categorify import Categorify


BINS = 48  # as many as `rtdl_num_embeddings` takes
DISTINCT = 256  # LightGBM tells up to 255 values apart
MOST_BINS = 1024
ScaleKind = bool | Literal["robust"]
EdgeKind = Literal["quantile", "tree"]


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
class NumberSettings:
    """Set how one continuous column is encoded.

    Parameters
    ----------
    bins
        Bins whose edges are fitted for the model; 0 for none, at most 1024; None: as of all columns.
    distinct
        Where the train split has at most so many values, each is an edge instead; None: as of all columns, but 0 where
        `bins` is given, as who sets the bins of a column means them.
    scale
        Whether the column becomes a z-score, or `robust`, by its median and quartiles; None: as of all columns.
    edges
        Where its edges lie: `quantile`, or `tree`, at the splits of a decision tree; None: as of all columns.
    """

    bins: int | None = None
    distinct: int | None = None
    scale: ScaleKind | None = None
    edges: EdgeKind | None = None

    def __post_init__(self) -> None:
        require_bins(*(0 if given is None else given for given in (self.bins, self.distinct)))
        if self.scale is not None:
            require_scale(self.scale)
        if self.edges is not None:
            require_edges(self.edges)


@dataclass(frozen=True)
class NumberEncoding:
    """What `NumberSettings` and those of all columns say together of one continuous column."""

    bins: int
    distinct: int
    scale: ScaleKind
    edges: EdgeKind


def require_scale(scale: object) -> None:
    """Raise `DataError` for what is no kind of scale."""
    if not (isinstance(scale, bool) or scale == "robust"):
        raise DataError(f"preprocess.scale: expected true, false or robust, found {scale!r}.")


def require_edges(edges: object) -> None:
    """Raise `DataError` for what is no way to place edges."""
    if edges not in ("quantile", "tree"):
        raise DataError(f"preprocess.edges: expected quantile or tree, found {edges!r}.")


def require_bins(bins: object, distinct: object = 0) -> None:
    """Raise `DataError` for what is no number of bins, or of values that are edges."""
    for name, given in (("bins", bins), ("distinct", distinct)):
        if not (isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= MOST_BINS and given != 1):
            raise DataError(f"preprocess.{name}: expected 0, or a number from 2 to {MOST_BINS}; found {given!r}.")


@dataclass(frozen=True)
class PreprocessorSettings:
    """Set how a `Preprocessor` encodes the columns of a table.

    Parameters
    ----------
    min_count
        Values that the train split holds in fewer rows are unseen. This and the next two are of every categorical
        column that `columns` does not name.
    max_size
        At most so many values of a column get an id of their own, the most frequent; None for no bound.
    oov_buckets
        Ids that unseen values share by their hash.
    columns
        Settings of single columns, by name: `CategorySettings` of categorical ones, `NumberSettings` (bins, distinct,
        scale, edges) of continuous ones.
    indicator
        Which continuous columns get a float32 column `<name>_na`, 1 where a null was filled: `auto` those of a type
        that can hold nulls (float32, float64), `all` or `none`. With `auto` the column of one that holds no null in the
        train split, or fewer than 10 and at most one in 1,000 rows, stays 0: the model, which has never or hardly seen
        a 1, is not given one.
    scale
        Whether continuous columns become z-scores (mean 0 and standard deviation 1 on the train split). `robust`: the
        median is taken off and the range between the quartiles divided by, whatever lies beyond them, and a scaled
        value x becomes x / sqrt(1 + (x / 3)^2), which no outlier leaves (`RobustScale`). Nulls do not count for it.
    bins
        Bins of every continuous column that `columns` does not name, whose edges a model may bin floats by
        (`model.numeric`); 0 for none. A packed row is the same with and without.
    distinct
        A column with at most so many values in the train split, and thirty rows a value on average, has an edge at
        each of them instead of bins, as trees tell values apart however rare they are; 0: only where `bins`
        + 1 edges hold all values, as where a day of the year that has an effect of its own is given 366.
    edges
        Where the others lie: `quantile`, so that bins hold equally many rows, or `tree`, at the splits of a decision
        tree that sees the column alone and tells the targets (at most `bins` leaves of 64 rows and more); refused where
        all labels are alike. A column in which no split helps is one bin.

    Raises
    ------
    DataError
        If a count is no whole number from 1, `indicator` or `edges` is unknown, `columns` is no mapping, or a key in
        it, or `bins` or `distinct` is neither 0 nor from 2 to 1,024.

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
    columns: Mapping[str, CategorySettings | NumberSettings] = field(default_factory=dict)
    indicator: str = "auto"
    scale: ScaleKind = True
    bins: int = BINS
    distinct: int = DISTINCT
    edges: EdgeKind = "quantile"

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping):
            raise DataError(f"preprocess.columns: expected settings by column, found {self.columns!r}.")
        known = {name: _column_settings(name, item) for name, item in self.columns.items()}
        object.__setattr__(self, "columns", known)
        if self.indicator not in INDICATORS:
            raise DataError(f"preprocess.indicator: unknown value {self.indicator!r}. Known: {', '.join(INDICATORS)}.")
        require_scale(self.scale)
        CategorySettings(self.min_count, self.max_size, self.oov_buckets)
        require_bins(self.bins, self.distinct)
        require_edges(self.edges)

    def category_settings(self, name: str) -> CategorySettings:
        """Of the categorical column of that name."""
        found = self.columns.get(name)
        if isinstance(found, CategorySettings):
            return found
        return CategorySettings(self.min_count, self.max_size, self.oov_buckets)

    def category(self, name: str) -> Categorify:
        """The operator of the categorical column of that name."""
        return self.category_settings(name).operator(name)

    def number_settings(self, name: str) -> NumberEncoding:
        """Of the continuous column of that name."""
        found = self.columns.get(name)
        own = found if isinstance(found, NumberSettings) else NumberSettings()
        distinct = own.distinct
        if distinct is None:
            distinct = self.distinct if own.bins is None else 0
        scale = self.scale if own.scale is None else own.scale
        edges = self.edges if own.edges is None else own.edges
        return NumberEncoding(self.bins if own.bins is None else own.bins, distinct, scale, edges)


def _column_settings(column: str, given: object) -> CategorySettings | NumberSettings:
    """Of a column; JSON and YAML bring a plain mapping."""
    if isinstance(given, CategorySettings | NumberSettings):
        return given
    if isinstance(given, Mapping) and given and given.keys() <= {item.name for item in fields(NumberSettings)}:
        return NumberSettings(**given)
    known = [item.name for item in fields(CategorySettings)]
    if not isinstance(given, Mapping):
        raise DataError(
            f"preprocess.columns.{column}: expected settings by name, found {given!r}. Known: {known}, or bins, "
            "distinct, scale and edges."
        )
    unknown = [str(key) for key in given if key not in known]
    if unknown:
        raise DataError(
            f"preprocess.columns.{column}: unknown key(s) {', '.join(unknown)}. Known: {', '.join(known)} of a "
            "categorical column; bins, distinct, scale and edges of a continuous one."
        )
    return CategorySettings(**given)
