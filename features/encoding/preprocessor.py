"""Preprocessor: features-stage rows to model inputs. Fitted on the train split, saved without pickle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from gigabatch.features.columns.categories import FLOAT, canonical_column, canonicalize, category_kind
from gigabatch.features.encoding.growth import require_same_inputs
from gigabatch.features.encoding.label_spread import LARGEST_LOSS, FitLabels
from gigabatch.features.encoding.lists import (
    Counts,
    FitCounts,
    FitListCounts,
    FitListStatistics,
    PackedList,
    list_owners,
    packed_list,
    shared_vocabulary,
)
from gigabatch.features.encoding.settings import CategorySettings, NumberSettings, PreprocessorSettings
from gigabatch.features.encoding.state import SavedState, damage, vocabulary_path
from gigabatch.features.encoding.tree_edges import FitTreeEdges
from gigabatch.features.engines.arrow_tables import given_back, own_frame, own_parts
from gigabatch.features.engines.frame import CodedColumn, FloatWord, IdWord, engine_of, load_engine
from gigabatch.features.engines.plain_types import as_plain
from gigabatch.features.errors import DataError, require_columns
from gigabatch.features.exact.column_statistics import Scale
from gigabatch.features.exact.sums import UNIT_EXPONENT
from gigabatch.features.operators.base import FittedOperator, with_columns
from gigabatch.features.operators.missing.fill_missing import Fill
from gigabatch.features.reading.sources import cast
from gigabatch.features.refit.churn import Churn, Thresholds, churn
from gigabatch.features.refit.statistics import (
    ROWS,
    CategoryStatistics,
    FillAndScale,
    FilledScale,
    FitCategory,
    FitContinuousStatistics,
    FittedCategory,
    Statistics,
    deviation,
    rows_operator,
    statistics_operators,
)
from gigabatch.features.refit.statistics_files import load_statistics, save_statistics
from gigabatch.features.refit.update import Learned, Version, checksum, grown, grown_vocabulary, updated
from gigabatch.features.schema import LARGEST_WEIGHT, IdColumn, IdList, Schema, Target, TensorSchema, indicator_name
from gigabatch.features.vocabulary.vocabulary import Vocabulary
from gigabatch.features.workflow.fit import fit_together

log = logging.getLogger(__name__)

LARGEST_ERROR = 0.1  # of a median, in standard deviations

# A categorical column's state, and a pair (codes, ids by code) for each frame.
CodedFit = tuple[FittedCategory, list[tuple[Any, Any]]]


@dataclass
class Preprocessor:
    """Turn a features-stage table into what a model reads: ids of categories, filled and scaled floats.

    It is fitted on the train split, and is then the same function of a row for training, scoring and serving: the row
    gets the same bits alone and among others. Id 0 is padding, 1 null, 2 unseen (as many as `oov_buckets`), then
    come the known values, the most frequent first.

    Parameters
    ----------
    schema
        Columns, roles and types of the tables.
    settings
        How columns are encoded.
    vocabularies, fills, scales, statistics, version, edges
        What was fitted, by column; left out until `fit` or `load`. edges: ascending float64 ends of the bins of
        continuous columns, before scaling; none for a column of fewer than two values.

    Raises
    ------
    DataError
        If the settings name a column that is not categorical in the schema.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import Preprocessor
    >>> from gigabatch.features.schema import Column, Schema
    >>> schema = Schema((Column("city", "categorical", "string"), Column("price", "continuous", "float32")), ())
    >>> train = pd.DataFrame({"city": ["Oslo", "Oslo", "Bonn"], "price": [1.0, 2.0, 3.0]})
    >>> preprocessor = Preprocessor(schema).fit([train])
    >>> preprocessor.transform(pd.DataFrame({"city": ["Bonn", None, "Rome"], "price": [2.0, None, 3.0]}))
       city     price  price_na
    0     4  0.000000       0.0
    1     1  0.000000       0.0
    2     2  1.224745       0.0
    """

    schema: Schema
    settings: PreprocessorSettings = field(default_factory=PreprocessorSettings)
    vocabularies: dict[str, Vocabulary] = field(default_factory=dict)
    fills: dict[str, Fill] = field(default_factory=dict)
    scales: dict[str, Scale] = field(default_factory=dict)
    statistics: Statistics | None = None
    version: Version = field(default_factory=Version)
    edges: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for role, kind in (("categorical", CategorySettings), ("continuous", NumberSettings)):
            named = {name for name, item in self.settings.columns.items() if isinstance(item, kind)}
            names = self.schema.names(role)
            if role == "categorical":
                names += [column.name for column in self.schema.lists if column.shares is None]
            if unknown := sorted(named - set(names)):
                raise DataError(
                    f"preprocess.columns: {', '.join(unknown)} is no {role} column. {role.capitalize()} columns: "
                    f"{', '.join(names)}."
                )

    @property
    def fitted(self) -> bool:
        continuous = set(self.schema.names("continuous"))
        return (
            set(self.vocabularies) == set(self._owners)
            and set(self.fills) == continuous
            and set(self.scales) == {name for name in continuous if self.settings.number_settings(name).scale}
        )

    @property
    def _owners(self) -> list[str]:
        """Columns with a vocabulary: the categorical ones, then the lists that share none."""
        own = [column.name for column in self.schema.lists if column.shares is None]
        return [*self.schema.names("categorical"), *own]

    def list_vocabulary(self, name: str) -> Vocabulary:
        """The vocabulary of a list column, its own or that of the column whose it shares."""
        return self.vocabularies[list_owners(self.schema)[name]]

    def fit(self, parts: Sequence[Any], scheduler: Any = "threads") -> Preprocessor:
        """Learn vocabularies, fills and scales from the train split.

        It takes one pass over all columns, and another over the continuous ones for their medians; with
        `edges="tree"` one more, and the partitions must hold targets and weights. The state does not depend on how the
        rows are cut into partitions.

        Parameters
        ----------
        parts
            Data frames of any library that `gigabatch.fit` takes, or Parquet paths paired with an engine as
            `(engine, path)`; each is one partition.
        scheduler
            Where parts are read, as Dask's `compute` takes it.

        Returns
        -------
        Preprocessor
            This one, fitted.

        Raises
        ------
        DataError
            If there is no partition, a column is missing or of another type, a continuous column is all null, or the
            differences of a regression target, where the partitions hold one, are lost in float32 (1e9, 1e9 + 1).

        Examples
        --------
        >>> import pandas as pd
        >>> from gigabatch import Preprocessor
        >>> from gigabatch.features.schema import Column, Schema
        >>> schema = Schema((Column("city", "categorical", "string"),), ())
        >>> parts = [pd.DataFrame({"city": ["Oslo"]}), pd.DataFrame({"city": ["Bonn", "Oslo"]})]
        >>> Preprocessor(schema).fit(parts).vocabularies["city"].values.tolist()
        ['Oslo', 'Bonn']
        """
        categorical, continuous = self.schema.names("categorical"), self.schema.names("continuous")
        owners = list_owners(self.schema)
        operators: dict[tuple[str, str], FittedOperator] = {
            ("id", name): FitCounts(name) if name in owners.values() else FitCategory(self.settings.category(name))
            for name in categorical
        }
        operators |= {("float", name): self._fitting(name) for name in continuous}
        operators |= {("list", column.name): FitListCounts(column) for column in self.schema.lists}
        operators |= rows_operator(self.schema)
        states = self._states(operators, parts, scheduler, "fit on")
        lists = {name: states["list", name] for name in owners}
        self._keep(
            self._categories({name: states["id", name] for name in categorical}, lists),
            {name: states["float", name] for name in continuous},
            {name: counts.statistics() for name, counts in lists.items()},
            states.get(ROWS),
        )
        return self

    def _categories(
        self, found: Mapping[str, FittedCategory | Counts], lists: Mapping[str, Counts]
    ) -> dict[str, FittedCategory]:
        """The states of the columns that have a vocabulary, of what was counted of categorical columns and lists."""
        owners = list_owners(self.schema)
        fitted = {}
        for owner in self._owners:
            state = found.get(owner)
            if isinstance(state, FittedCategory):
                fitted[owner] = state
                continue
            counts = [lists[name] for name, column in owners.items() if column == owner]
            vocabulary = shared_vocabulary(owner, [*([] if state is None else [state]), *counts], self.settings)
            fitted[owner] = FittedCategory(vocabulary, (counts[0] if state is None else state).statistics())
        return fitted

    def update(
        self,
        parts: Sequence[Any],
        refresh_scales: bool = False,
        thresholds: Thresholds | None = None,
        scheduler: Any = "threads",
    ) -> Churn:
        """Learn from new data too, without reading the old: no id moves (see `gigabatch.features.refit.update`).

        Parameters
        ----------
        parts, scheduler
            As for `fit`; one pass over the new data.
        refresh_scales
            Whether medians and scales become those of all data so far, for a model that is trained anew; what is not
            exact of a median, `Fill.error` says. Without it, for one that goes on from its weights, they stay.
        thresholds
            From when on a difference is flagged.

        Returns
        -------
        Churn
            How the new data differs from that of all versions before.

        Raises
        ------
        DataError
            If there are no rows, no statistics of the fit (as after an import), labels that `fit` refuses, or with
            `refresh_scales` a robust scale, whose quartiles follow from no statistics, or a column that has been null
            in all rows so far; nothing has changed then.
        """
        learned = self.learned
        new = Statistics.from_states(self._learned_of(parts, scheduler, "update with"), list_owners(self.schema))
        after = updated(learned, new, category=self.settings.category, refresh_scales=refresh_scales)
        report = self._churn(learned, new, thresholds)
        self._become(after)
        if refresh_scales:
            self._warn_of_unknown_medians()
        return report

    def carried_to(self, schema: Schema, settings: PreprocessorSettings) -> Preprocessor:
        """This fitted state for tables of another time, to be grown by one of them.

        Parameters
        ----------
        schema
            Of the tables; its columns must be those of this one. Its targets' classes and its entities may be others.
        settings
            How they are encoded; as here. An import says nothing of `min_count` and `max_size`, so takes any.

        Returns
        -------
        Preprocessor
            One of that schema and those settings with this one's state.

        Raises
        ------
        DataError
            If it is not fitted, or columns or settings differ; the message names each of them.

        Examples
        --------
        >>> import pandas as pd
        >>> from gigabatch import Preprocessor
        >>> from gigabatch.features.schema import Column, Schema
        >>> schema = Schema((Column("city", "categorical", "string"),), ())
        >>> start = Preprocessor(schema).fit([pd.DataFrame({"city": ["Oslo"]})])
        >>> start.carried_to(schema, start.settings).vocabularies["city"].values.tolist()
        ['Oslo']
        """
        self._require_fitted()
        layouts = None if self.statistics else {name: item.layout for name, item in self.vocabularies.items()}
        flags = {fill.indicator for fill in self.fills.values()}
        require_same_inputs((self.schema, self.settings), (schema, settings), layouts, flags)
        return replace(self, schema=schema, settings=settings)

    def grow(
        self,
        parts: Sequence[Any],
        thresholds: Thresholds | None = None,
        scheduler: Any = "threads",
        refresh_scales: bool = False,
    ) -> Churn:
        """Learn from a whole table, which may hold rows that this one knows: no id moves, and no row counts twice.

        Values that it does not know and the table holds `min_count` times get the next ids, by descending count, ties
        by ascending value, up to `max_size`. Fills, scales and indicators stay, so that a model goes on from its
        weights; statistics become those of the table. Where nothing would change, the version stays too.
        See `gigabatch.features.refit.update`; `update` is for rows that no version has seen.

        Parameters
        ----------
        parts, scheduler
            As for `fit`: all of the table; one pass over it, and with `refresh_scales` another over continuous columns.
        thresholds
            From when on a difference is flagged.
        refresh_scales
            Whether fills and scales become those that `fit` finds in the table, for a model that is trained anew.
            Which columns have an indicator stays.

        Returns
        -------
        Churn
            How the table differs from that of the version before. An import knows of no rows: all values are new to
            it, and only `unseen_rate` and `never_seen` say something.

        Raises
        ------
        DataError
            If it is not fitted, there are no rows, a column is missing or of another type, labels are such that `fit`
            refuses, or with `refresh_scales` a continuous column is all null; nothing has changed then.

        Examples
        --------
        >>> import pandas as pd
        >>> from gigabatch import Preprocessor
        >>> from gigabatch.features.schema import Column, Schema
        >>> yesterday = pd.DataFrame({"city": ["Oslo", "Bonn", "Oslo"]})
        >>> preprocessor = Preprocessor(Schema((Column("city", "categorical", "string"),), ())).fit([yesterday])
        >>> churn = preprocessor.grow([yesterday, pd.DataFrame({"city": ["Rome", "Rome", "Rome"]})])
        >>> preprocessor.vocabularies["city"].values.tolist(), preprocessor.version.number
        (['Oslo', 'Bonn', 'Rome'], 2)
        >>> churn.categories[0].new.examples
        (('Rome', 3),)
        """
        start = self._start
        # A fit of fills and scales finds the statistics too.
        scaled = {}
        if refresh_scales:
            scaled = {name: FillAndScale(name, scale=self.settings.number_settings(name).scale) for name in start.fills}
        states = self._learned_of(parts, scheduler, "grow by", scaled)
        refreshed = {name: states["continuous statistics", name] for name in scaled}
        states |= {("continuous statistics", name): state.statistics for name, state in refreshed.items()}
        new = Statistics.from_states(states, list_owners(self.schema))
        vocabularies = {
            name: grown_vocabulary(vocabulary, new.of_values(name), self.settings.category(name))
            for name, vocabulary in start.vocabularies.items()
        }
        return self._grown(start, new, vocabularies, thresholds, refreshed)

    def grow_pack(
        self, parts: Sequence[Any], thresholds: Thresholds | None = None, refresh_scales: bool = False
    ) -> tuple[list[Any], Churn]:
        """Call `grow`, and then `pack` for each of the parts, which are read once and stay in memory meanwhile.

        States and rows are those of the two calls; it is faster, because distinct values are found once.

        Parameters
        ----------
        parts, thresholds, refresh_scales
            As for `grow`.

        Returns
        -------
        tuple of a list of int32 arrays [N, W] and Churn
            What `pack` gives for each part, and what `grow` gives.
        """
        start = self._start
        parts = own_parts(parts, "Preprocessor", "grow by", self._needed(True))
        if refresh_scales or self.schema.lists:  # rows can only be packed when fills and shared vocabularies are known
            frames = [self.read(part) for part in parts]
            report = self.grow(frames, thresholds, refresh_scales=refresh_scales)
            return [self.pack(frame) for frame in frames], report
        frames = self._read_whole(parts)
        categories, floats = self._fit_columns(frames, self._grow_column, FitContinuousStatistics)
        packed = self._packed_parts(frames, categories)  # first: where a label is none, nothing has changed
        found = {name: state for name, (state, _) in categories.items()}
        new = Statistics.of({name: state.statistics for name, state in found.items()}, floats)
        vocabularies = {name: state.vocabulary for name, state in found.items()}
        return packed, self._grown(start, new, vocabularies, thresholds)

    def _learned_of(
        self,
        parts: Sequence[Any],
        scheduler: Any,
        use: str,
        scaled: Mapping[str, FillAndScale] = MappingProxyType({}),
    ) -> dict[tuple[str, str], Any]:
        """The states of `statistics_operators` and of list columns, of the parts; use: as of `_states`. scaled: what
        fits continuous columns instead."""
        operators = statistics_operators(self.schema)
        operators |= {("list statistics", column.name): FitListStatistics(column) for column in self.schema.lists}
        operators |= {("continuous statistics", name): operator for name, operator in scaled.items()}
        return self._states(operators, parts, scheduler, use)

    def _states(
        self, operators: Mapping[tuple[str, str], FittedOperator], parts: Sequence[Any], scheduler: Any, use: str
    ) -> dict[tuple[str, str], Any]:
        """What each operator learns from the parts; use: what the parts are for, in an error."""
        parts = own_parts(parts, "Preprocessor", use, self._needed(True))
        labels = {("label", name): FitLabels(name) for name in self._regressions(parts[0])}
        found = fit_together(
            {**operators, **labels}, parts, self._prepared, read=self._read_columns, scheduler=scheduler
        )
        return {key: found[key] for key in operators}

    def _regressions(self, part: Any) -> list[str]:
        """The regression targets that a part holds: to fit needs none, and looks at those that are there."""
        names = [target.name for target in self.schema.targets if target.task == "regression"]
        if not names:
            return []
        there = load_engine(part[0]).parquet_columns(part[1]) if isinstance(part, tuple) else part.columns
        return [name for name in names if name in there]

    def _prepared(self, frame: Any) -> Any:
        """The columns cast to the schema's types, but for regression targets, whose differences the cast may round."""
        targets = [target.name for target in self.schema.targets if target.task == "regression"]
        typed = self._typed(frame, [name for name in frame.columns if name not in targets])
        return with_columns(typed, {name: frame[name] for name in frame.columns if name in targets})

    @property
    def learned(self) -> Learned:
        """The whole fitted state; `DataError` where there are no statistics, as after an import."""
        self._require_fitted()
        if self.statistics is None:
            raise DataError(
                "Preprocessor: it holds no statistics of its fit, as one that was imported or saved by an earlier "
                "version, so it cannot be updated. Fit it anew."
            )
        return Learned(self.vocabularies, self.fills, self.scales, self.statistics, self.version, self.edges)

    @property
    def _start(self) -> Learned:
        """The whole fitted state; of an import, whose data nobody counted here, with statistics of no rows."""
        if self.statistics is not None:
            return self.learned
        self._require_fitted()
        nothing = Statistics.none_of(
            {name: self.vocabularies[name] for name in self.schema.names("categorical")},
            self.schema.names("continuous"),
        )
        if self.schema.lists:
            raise DataError("Preprocessor: it has list columns and no statistics of its fit. Fit it anew.")
        return Learned(self.vocabularies, self.fills, self.scales, nothing, Version(rows=(0,)), self.edges)

    @property
    def checksum(self) -> str:
        """blake2b of all that was fitted, 32 hex digits: the same for the same state, wherever it lies. Schema and
        settings are not in it."""
        return checksum(self._start)

    def fit_pack(self, parts: Sequence[Any]) -> list[Any]:
        """Call `fit`, and then `pack` for each of the parts, which are read once and stay in memory meanwhile.

        States and rows are those of the two calls; it is faster, because distinct values are found once.

        Parameters
        ----------
        parts
            As for `fit`.

        Returns
        -------
        list of int32 arrays [N, W]
            What `pack` gives for each part.
        """
        parts = own_parts(parts, "Preprocessor", "fit on", self._needed(True))
        if self.schema.lists:  # a vocabulary may be that of several columns
            frames = [self.read(part) for part in parts]
            self.fit(frames)
            return [self.pack(frame) for frame in frames]
        frames = self._read_whole(parts)
        categories, floats = self._fit_columns(frames, self._fit_column, self._fitting)
        self._keep({name: state for name, (state, _) in categories.items()}, floats)
        return self._packed_parts(frames, categories)

    def _read_whole(self, parts: Sequence[Any]) -> list[Any]:
        """The parts' frames with all columns that are packed, typed, and regression targets that `fit` takes. Typed
        once and for all: an integer of 2^24 and beyond that has become a float32 is refused as an integer."""
        frames = [self.read(part) for part in parts]
        for name in self._regressions(frames[0]):
            FitLabels(name).fit(frames)
        return [self._typed(frame, self._needed(True)) for frame in frames]

    def _fit_columns(
        self, frames: Sequence[Any], category: Callable[..., CodedFit], number: Callable[[str], FittedOperator]
    ) -> tuple[dict[str, CodedFit], dict[str, Any]]:
        """By name what `category` makes of a categorical column of these frames, and the state of a continuous one."""
        engine, schema = engine_of(frames[0]), self.schema
        tasks = [("id", name) for name in schema.names("categorical")]
        floats = {("float", name): number(name) for name in schema.names("continuous")}
        # A GPU passes over all of them at once; a CPU's threads take them beside the categorical ones.
        together = fit_together(floats, frames, lambda frame: frame) if engine.NAME == "cudf" else {}
        tasks += [task for task in floats if task not in together]

        def fitted(task: tuple[str, str]) -> Any:
            kind, name = task
            if kind == "float":
                return floats[task].fit([frame[list(floats[task].inputs)] for frame in frames])
            parts = [engine.coded(_one_zero(frame[name])) for frame in frames]
            merged, operator = parts[0].counted, self.settings.category(name)
            for part in parts[1:]:
                merged = operator.merge(merged, part.counted)
            if not len(merged):  # of the type that `fit` gives a column without a value
                merged = operator.partial(frames[0])
            return category(name, sum(map(len, frames)), merged, parts)

        # Categorical columns take longest, so they come first: no thread is left with one of them at the end.
        found = dict(zip(tasks, engine.map_columns(fitted, tasks), strict=True)) | together
        return (
            {name: found["id", name] for name in schema.names("categorical")},
            {name: found["float", name] for name in schema.names("continuous")},
        )

    def _fit_column(self, name: str, rows: int, counted: Any, parts: Sequence[CodedColumn]) -> CodedFit:
        """The state of a categorical column, which its parts hold so often (`counted`)."""
        state = FitCategory(self.settings.category(name)).finish((rows, counted))
        known = len(state.vocabulary.values)
        table = parts[0].lookup(known) if known and len(parts) == 1 else None
        if table is not None:
            state = replace(state, vocabulary=state.vocabulary.with_table(table))
        return state, [(part.codes, part.ids(state.vocabulary, single=len(parts) == 1)) for part in parts]

    def _grow_column(self, name: str, rows: int, counted: Any, parts: Sequence[CodedColumn]) -> CodedFit:
        """As `_fit_column`, where the vocabulary is there already."""
        statistics = CategoryStatistics.of_counts(rows, counted)
        vocabulary = grown_vocabulary(self.vocabularies[name], statistics, self.settings.category(name))
        ids = [(part.codes, part.ids(vocabulary, single=False)) for part in parts]
        return FittedCategory(vocabulary, statistics), ids

    def _packed_parts(self, frames: Sequence[Any], found: Mapping[str, CodedFit]) -> list[Any]:
        return [
            self._packed(frame, {name: codes[number] for name, (_, codes) in found.items()}, targets=True)
            for number, frame in enumerate(frames)
        ]

    def _filling(self, name: str) -> FillAndScale:
        chosen = self.settings.indicator
        never = chosen == "auto" and not self.schema.dtypes()[name].startswith("float")  # a null is an error there
        number = self.settings.number_settings(name)
        return FillAndScale(name, "none" if never else chosen, number.scale, number.bins, number.distinct)

    def _fitting(self, name: str) -> FittedOperator:
        """What a continuous column is fitted by: `_filling`, with edges as the settings place them."""
        filling = self._filling(name)
        if not filling.bins or self.settings.number_settings(name).edges == "quantile":
            return filling
        return FitTreeEdges(filling, self.schema.targets, self.schema.only("weight"), self._targets_and_weight)

    def _keep(
        self,
        categories: dict[str, FittedCategory],
        floats: dict[str, FilledScale],
        lists: Mapping[str, CategoryStatistics] = MappingProxyType({}),
        table_rows: int | None = None,
    ) -> None:
        self.vocabularies = {name: state.vocabulary for name, state in categories.items()}
        self.fills = {name: state.fill for name, state in floats.items()}
        self.scales = {name: state.scale for name, state in floats.items() if state.scale is not None}
        self.edges = {name: state.edges for name, state in floats.items() if state.edges}
        self.statistics = Statistics.of(
            {name: categories[name].statistics for name in self.schema.names("categorical")},
            {name: state.statistics for name, state in floats.items()},
            lists,
            list_owners(self.schema),
            table_rows,
        )
        self.version = Version(rows=(self.statistics.rows,))
        self._warn_of_merged_edges()
        self._warn_of_lost_differences()

    def _grown(
        self,
        start: Learned,
        new: Statistics,
        vocabularies: dict[str, Vocabulary],
        thresholds: Thresholds | None,
        refreshed: Mapping[str, FilledScale] = MappingProxyType({}),
    ) -> Churn:
        after = grown(start, new, vocabularies, refreshed)
        report = self._churn(start, new, thresholds)
        if after is not start:
            self._become(after)
        return report

    def _churn(self, old: Learned, new: Statistics, thresholds: Thresholds | None) -> Churn:
        min_counts = {name: self.settings.category(name).min_count for name in old.vocabularies}
        return churn(old.statistics, new, old.vocabularies, old.version.number, thresholds, min_counts)

    def _become(self, learned: Learned) -> None:
        self.vocabularies, self.fills, self.scales = learned.vocabularies, learned.fills, learned.scales
        self.statistics, self.version = learned.statistics, learned.version
        self._warn_of_merged_edges()

    def _warn_of_merged_edges(self) -> None:
        """Where an outlier stretches a scale, or a robust one is of values far from the edges, these may fall on one
        float32 value, and their bins are no more."""
        for name, edges in self.edges.items():
            left = len(self._scaled_edges(name))
            if left * 2 < len(edges) and self.scales[name].clip:
                log.warning(
                    "column %r: by its robust scale %d of its %d edges of bins are left, as the others are equal in "
                    "float32: its values lie far from the edges of the first fit, or hardly differ. Fit anew with "
                    "preprocess.from=null, or leave the column out.",
                    name, left, len(edges),
                )  # fmt: skip
            elif left * 2 < len(edges):
                log.warning(
                    "column %r: scaled by mean %.6g and deviation %.6g, %d of its %d edges of bins are left, as the "
                    "others are equal in float32. Set preprocess.columns.%s.scale=robust, which outliers do not "
                    "stretch, or clip the column.",
                    name, self.scales[name].mean, self.scales[name].std, left, len(edges), name,
                )  # fmt: skip

    def _warn_of_unknown_medians(self) -> None:
        """Where nulls are filled by a median that may be far off beside what the known values differ by."""
        assert self.statistics is not None
        for name, fill in self.fills.items():
            state = self.statistics.numbers[name]
            spread = deviation(state)
            assert spread is not None
            if state.nulls and fill.error > LARGEST_ERROR * spread:
                log.warning(
                    "column %r: its median is known to within %.3g, and its values differ by %.3g (deviation): "
                    "%.6g stands in for its nulls. Subtract a constant near it before the features stage, or encode "
                    "the whole table, whose median is exact (preprocess.from with preprocess.refresh_scales=true).",
                    name, fill.error, spread, fill.value,
                )  # fmt: skip

    def _warn_of_lost_differences(self) -> None:
        """Where numbers are so far from 0 that float32 leaves little of what they differ by, or nothing at all."""
        assert self.statistics is not None
        for name, state in self.statistics.numbers.items():
            spread = deviation(state)
            if spread is None:
                continue
            low, high = state.histogram.edges()
            largest = np.float32(max(abs(low[0]), abs(high[-1])))
            step = float(np.spacing(largest))
            # Below 2^23 a sum of squares that is whole tells whole numbers, of which nothing is lost.
            kept = step < 1 and state.moments.squares.units % (1 << -UNIT_EXPONENT) == 0
            constant = spread == 0 and step <= 1
            if step / 2 > LARGEST_LOSS * spread and not (kept or constant):
                log.warning(
                    "column %r: its numbers reach %.6g, where float32, in which models take them, keeps those %.3g "
                    "apart, and what is left of them differs by %.3g (standard deviation). Subtract a constant near "
                    "%.10g before the features stage, or name the column under categorical; leave it out if it is an "
                    "id or a constant.",
                    name, largest, step, spread, state.moments.scale().mean,
                )  # fmt: skip

    @property
    def tensor_schema(self) -> TensorSchema:
        """What `transform` yields, in the order of a packed row."""
        self._require_fitted()
        ids = tuple(IdColumn(name, self.vocabularies[name].num_ids) for name in self.schema.names("categorical"))
        return TensorSchema(
            ids,
            tuple(self.float_names()),
            self.schema.targets,
            has_weight=self.schema.only("weight") is not None,
            has_group=self.schema.only("group") is not None,
            lists=tuple(
                IdList(item.name, self.list_vocabulary(item.name).num_ids, item.shares, item.weights is not None)
                for item in self.schema.lists
            ),
        )

    def float_names(self) -> list[str]:
        """Continuous columns, then the indicators of those that have one."""
        names = self.schema.names("continuous")
        return names + [indicator_name(name) for name in names if self.fills[name].indicator]

    @property
    def null_shares(self) -> dict[str, float]:
        """Share of the rows so far that are null, by categorical and continuous column; empty where nobody counted,
        as of an import. A fill tells that of the fit, or of the last refresh."""
        if self.statistics is None:
            return {}
        states: dict[str, Any] = {**self.statistics.categories, **self.statistics.numbers}
        return {name: state.nulls / max(state.rows, 1) for name, state in states.items()}

    @property
    def float_edges(self) -> tuple[tuple[float, ...], ...]:
        """The edges of each of `float_names`, as the model is given floats: scaled and rounded to float32 as a row's
        values are, so that a value that is an edge stays on it. A column without edges has none, an indicator too."""
        found = [self._scaled_edges(name) for name in self.float_names()]
        return tuple(found) if any(found) else ()

    def _scaled_edges(self, name: str) -> tuple[float, ...]:
        if name not in self.edges:
            return ()
        scale = self.scales.get(name, Scale(0.0, 1.0))  # changes no bit
        values = scale.of(np.array(self.edges[name], np.float32).astype(np.float64))
        distinct = np.unique(values.astype(np.float32))
        return tuple(distinct.tolist()) if len(distinct) > 1 else ()

    def pack(self, frame: Any, targets: bool = True) -> Any:
        """Encode rows as they lie in a packed table, a word of four bytes a column.

        Parameters
        ----------
        frame
            N rows with the columns of the schema; columns that are not needed are ignored.
        targets
            Whether rows get targets, weight and group too; without it the frame needs none of them.

        Returns
        -------
        int32 array [N, W]
            Of the frame's engine (NumPy or CuPy), in the order of `tensor_schema`: ids, the bits of float32 continuous
            and `_na` columns, then targets, weight (float32 bits) and group (numbers, equal for equal groups of this
            frame), and of each list column the number of the row, which is its place in what `pack_lists` gives.
            Without `targets` ids, continuous and `_na` columns alone.

        Raises
        ------
        DataError
            If it is not fitted, a column is missing or of another type, or a float is infinite; with `targets`, if a
            label is null or none of its task's, or a weight is not from 0 to 2^64.

        Examples
        --------
        >>> import pandas as pd
        >>> from gigabatch import Preprocessor
        >>> from gigabatch.features.schema import Column, Schema
        >>> schema = Schema((Column("city", "categorical", "string"),), ())
        >>> frame = pd.DataFrame({"city": ["Oslo", "Bonn", "Oslo"]})
        >>> Preprocessor(schema).fit([frame]).pack(frame).tolist()
        [[3], [4], [3]]
        """
        self._require_fitted()
        frame = self._typed(frame, self._needed(targets))
        names = self.schema.names("categorical")
        encoded = engine_of(frame).map_columns(lambda name: self.vocabularies[name].encode(frame[name]), names)
        return self._packed(frame, {name: (ids, None) for name, ids in zip(names, encoded, strict=True)}, targets)

    def pack_lists(self, frame: Any) -> tuple[PackedList, ...]:
        """Encode the list columns of rows.

        Parameters
        ----------
        frame
            N rows with the list columns of the schema, and those of their weights.

        Returns
        -------
        tuple of PackedList
            One a list column, in the order of the schema: ids int32 [T] of all rows' elements one after the other,
            offsets int64 [N+1], weights float32 [T] or None. Null lists are empty, null elements are left out, and of a
            longer list the last `max_length` that are not null are there.

        Raises
        ------
        DataError
            If it is not fitted, a column is missing or holds no lists of its type, or weights are not one an element or
            not finite.

        Examples
        --------
        >>> import pandas as pd
        >>> from gigabatch import Preprocessor
        >>> from gigabatch.features.schema import ListColumn, Schema
        >>> from gigabatch.features.schema import Column
        >>> schema = Schema((Column("price", "continuous", "float32"),), (), lists=(ListColumn("tags"),))
        >>> train = pd.DataFrame({"price": [1.0, 2.0, 3.0], "tags": [["new", "red"], [], ["red"]]})
        >>> (packed,) = Preprocessor(schema).fit([train]).pack_lists(train)
        >>> packed.ids.tolist(), packed.offsets.tolist()
        ([4, 3, 3], [0, 2, 2, 3])
        """
        self._require_fitted()
        typed = self._typed(frame, [name for column in self.schema.lists for name in column.columns])
        return tuple(packed_list(typed, column, self.list_vocabulary(column.name)) for column in self.schema.lists)

    def transform(self, frame: Any, targets: bool = True) -> Any:
        """Encode rows as a data frame; its values are those of `pack`. Lists are left out: see `pack_lists`.

        Parameters
        ----------
        frame, targets
            As for `pack`.

        Returns
        -------
        data frame
            int32 ids, float32 continuous and `_na` columns, then targets, weight and group, on the frame's index; of
            another library than pandas and cuDF an Arrow table.

        Raises
        ------
        DataError
            As `pack`.

        Examples
        --------
        >>> import pandas as pd
        >>> from gigabatch import Preprocessor
        >>> from gigabatch.features.schema import Column, Schema
        >>> schema = Schema((Column("price", "continuous", "float32"),), ())
        >>> train = pd.DataFrame({"price": [1.0, None, 3.0]})
        >>> Preprocessor(schema).fit([train]).transform(train)
              price  price_na
        0 -1.224745       0.0
        1  0.000000       1.0
        2  1.224745       0.0
        """
        given, frame = frame, own_frame(frame, "Preprocessor", self._needed(True), ())
        rows, engine = self.pack(frame, targets), engine_of(frame)
        columns = {}
        for place, (name, dtype) in enumerate(self._words(targets)):
            words = engine.arrays.ascontiguousarray(rows[:, place])
            columns[name] = engine.series(words if dtype == "int32" else words.view("float32"), frame)
        return given_back(engine.frame(columns, frame), given)

    def _words(self, targets: bool) -> list[tuple[str, str]]:
        """Name and type of every word of a row."""
        found = [(name, "int32") for name in self.schema.names("categorical")]
        found += [(name, "float32") for name in self.float_names()]
        if targets:
            found += [(item.name, "int32" if item.task == "multiclass" else "float32") for item in self.schema.targets]
            found += [(name, "float32") for name in self.schema.names("weight")]
            found += [(name, "int32") for name in self.schema.names("group")]
        return found

    def _packed(self, frame: Any, ids: dict[str, tuple[Any, Any]], targets: bool) -> Any:
        """ids: by column int32 ids and None, or codes and the ids that they stand for (that of null last)."""
        engine = engine_of(frame)
        words = self._words(targets)
        place = {name: number for number, (name, _) in enumerate(words)}
        copied = [IdWord(codes, place[name], table) for name, (codes, table) in ids.items()]
        labels = self._labels(frame) if targets else {}
        copied += [IdWord(values, place[name]) for name, values in labels.items()]
        loud = {name for name, fill in self.fills.items() if fill.indicator and not fill.silent}
        silent = [name for name, fill in self.fills.items() if fill.indicator and fill.silent]
        zeros = engine.arrays.zeros(len(frame), dtype="int32")  # the bits of 0.0
        copied += [IdWord(zeros, place[indicator_name(name)]) for name in silent]
        floats = []
        for name, fill in self.fills.items():
            scale = self.scales.get(name, Scale(0.0, 0.0))  # a deviation of 0 leaves it unscaled
            flag = place[indicator_name(name)] if name in loud else -1
            floats.append(FloatWord(frame[name], fill.value, scale.mean, scale.std, place[name], flag, scale.clip))
        lists = self.schema.lists if targets else ()
        rows = engine.arrays.arange(len(frame), dtype="int32")
        copied += [IdWord(rows, len(words) + place) for place in range(len(lists))]
        return engine.pack(len(frame), len(words) + len(lists), copied, floats)

    def _labels(self, frame: Any) -> dict[str, Any]:
        """Arrays of targets, weight and group, float32 or int32."""
        found, group = self._targets_and_weight(frame), self.schema.only("group")
        if group:
            _require_known(frame[group], f"group {group!r}")
            found[group] = engine_of(frame).codes(frame[group]).astype("int32")
        return found

    def _targets_and_weight(self, frame: Any) -> dict[str, Any]:
        """Arrays of those, float32 or int32."""
        found = {target.name: _label_values(frame[target.name], target) for target in self.schema.targets}
        weight = self.schema.only("weight")
        if weight:
            values = _known_floats(frame[weight], f"weight {weight!r}")
            fine = (values >= 0) & (values <= LARGEST_WEIGHT)
            _require_all(fine, values, f"weight {weight!r}", "from 0 to 2^64; only the ratios of weights count")
            found[weight] = values
        return found

    def read(self, part: Any, targets: bool = True) -> Any:
        """A partition's frame; from a file only the columns that are needed, as is fastest to encode."""
        return self._read_columns(part, self._needed(targets))

    def _read_columns(self, part: Any, names: list[str]) -> Any:
        if isinstance(part, tuple):
            engine, path = load_engine(part[0]), part[1]
            missing = sorted(set(names) - set(engine.parquet_columns(path)))
            if missing:
                raise DataError(f"Preprocessor: {path} lacks {', '.join(missing)}. Run the features stage again.")
            return engine.read_columns(path, names)
        require_columns(part, names, "Preprocessor")
        return as_plain(part[names], coded=True)

    def _needed(self, targets: bool) -> list[str]:
        roles = ("categorical", "continuous") + (("target", "weight", "group") if targets else ())
        return self.schema.names(*roles) + [name for column in self.schema.lists for name in column.columns]

    def _typed(self, frame: Any, names: list[str]) -> Any:
        """These columns, cast to the schema's types, so that a frame from elsewhere cannot lie."""
        frame = own_frame(frame, "Preprocessor", self._needed(True), ())
        require_columns(frame, names, "Preprocessor")
        dtypes = {name: dtype for name, dtype in self.schema.table_dtypes.items() if name in set(names)}
        typed = cast(frame[names], dtypes, "Preprocessor", nullable=set(self.schema.names("categorical")))
        # Whatever a continuous column is declared as, the model takes float32, and so do the loops that encode it.
        continuous = set(self.schema.names("continuous"))
        wide = {name: "float32" for name, dtype in dtypes.items() if name in continuous and dtype != "float32"}
        return cast(typed, wide, "Preprocessor") if wide else typed

    def _require_fitted(self) -> None:
        if not self.fitted:
            raise DataError("Preprocessor: not fitted. Call fit with the train split, or load a saved one.")

    def save(self, folder: str | Path) -> None:
        """Write the fitted state to a folder, without pickle.

        Parameters
        ----------
        folder
            Where `preprocessor.json`, one Parquet file a vocabulary, numbered in schema order, and the statistics of
            the fit go; made if it is not there.

        Raises
        ------
        DataError
            If it is not fitted.

        Examples
        --------
        >>> import tempfile
        >>> import pandas as pd
        >>> from gigabatch import Preprocessor
        >>> from gigabatch.features.schema import Column, Schema
        >>> frame = pd.DataFrame({"city": ["Oslo", "Bonn"]})
        >>> preprocessor = Preprocessor(Schema((Column("city", "categorical", "string"),), ())).fit([frame])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     preprocessor.save(folder)
        ...     Preprocessor.load(folder).transform(frame)["city"].tolist()
        [4, 3]
        """
        self._require_fitted()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for position, name in enumerate(self._owners):
            self.vocabularies[name].save(vocabulary_path(folder, position))
        if self.statistics is not None:
            save_statistics(self.statistics, folder)
        version = None if self.statistics is None else self.version
        SavedState(self.schema, self.settings, self.fills, self.scales, version, self.edges).write(folder)

    @classmethod
    def load(cls, folder: str | Path, engine: str = "pandas") -> Preprocessor:
        """Read what `save` wrote; see there for an example.

        Parameters
        ----------
        folder
            The folder that was given to `save`.
        engine
            Library of the frames to be transformed, `pandas` or `cudf`.

        Returns
        -------
        Preprocessor
            One that encodes every row to the same bits as the one that was saved.

        Raises
        ------
        DataError
            If the folder is damaged or of another format.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise DataError(f"preprocessor {folder}: there is no such folder. Give the one that `save` was given.")
        with damage(folder):
            state = SavedState.read(folder)
            found = cls(state.schema, state.settings, fills=state.fills, scales=state.scales, edges=state.edges)
            for position, name in enumerate(found._owners):
                found.vocabularies[name] = Vocabulary.load(vocabulary_path(folder, position), engine)
            if state.version is not None:
                found._take_statistics(state.version, load_statistics(folder, engine))
        found._require_fitted()
        return found

    def _take_statistics(self, version: Version, statistics: Statistics) -> None:
        """Those that were saved; `ValueError` where they are not of this schema or of this version."""
        columns = [[*statistics.categories], [*statistics.numbers], [*statistics.owners.items()]]
        names = [self.schema.names("categorical"), self.schema.names("continuous")]
        if columns != [*names, [*list_owners(self.schema).items()]]:
            raise ValueError(f"the statistics are of the columns {columns}")
        if version.counted_rows != statistics.rows:
            raise ValueError(f"the statistics are of {statistics.rows} rows, the versions of {version.counted_rows}")
        self.version, self.statistics = version, statistics


def _label_values(column: Any, target: Target) -> Any:
    """Array of a target's labels, int32 for multiclass and else float32; `DataError` where one is none of its task."""
    where = f"{target.task} target {target.name!r}"
    if target.task == "multiclass":
        _require_known(column, where)
        # Not yet narrow, which would make a class of 1.5.
        found = engine_of(column).array(column if column.dtype.kind in "iu" else column.astype("float64"))
        fine = (found >= 0) & (found < target.num_outputs)
        fine[fine] = found[fine] % 1 == 0
        _require_all(fine, found, where, f"class numbers below {target.num_outputs}")
        return found.astype("int32")
    values = _known_floats(column, where)
    if target.task == "binary":
        _require_all((values == 0) | (values == 1), values, where, "0 or 1")
    else:
        _require_all(abs(values) < float("inf"), values, where, "finite")
    return values


def _known_floats(column: Any, where: str) -> Any:
    """float32 array of a column without nulls."""
    _require_known(column, where)
    return engine_of(column).array(column.astype("float32"))


def _require_known(column: Any, where: str) -> None:
    nulls = int(column.isna().sum())
    if nulls:
        raise DataError(
            f"Preprocessor: {where} is null in {nulls} of {len(column)} rows. Remove those rows, or give them a value; "
            "to encode rows without a label use targets=False."
        )


def _require_all(fine: Any, values: Any, where: str, rule: str) -> None:
    if not bool(fine.all()):
        row = int(fine.argmin())
        raise DataError(
            f"Preprocessor: {where}: {int((~fine).sum())} of {len(values)} values are not {rule}; the first is "
            f"{values[row].item()} in row {row}. Correct the column or the schema."
        )


def _one_zero(column: Any) -> Any:
    """A column of categories, whose floats, if it holds such, are told apart by what they are: -0.0 is 0.0."""
    return canonical_column(canonicalize(column, "preprocessor")) if category_kind(column) == FLOAT else column
