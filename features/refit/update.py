"""Refit: what a preprocessor learned, extended by new data. No id moves.

`updated` adds rows that no version before has seen, without reading the old again:

- Vocabularies are appended to: no id moves. A value enters once all data so far held it `min_count` times, by
  descending count over all data, ties by ascending value.
- Statistics are those of all data so far, exactly.
- Medians and scales stay as they are unless asked for: a model that goes on from its weights was trained on them, and a
  row of known values is encoded as before, to the bit. With `refresh_scales`, for a model that is trained anew, they
  become those of all data: a median from the statistics (`statistics.median`), as the old rows are not read again, and
  mean and deviation of the rows as that fills them. `Fill.error` says how far off the median may be: 0 where values
  have few bits, else up to a standard deviation. A robust scale cannot be refreshed so and is refused.
- Which columns have an indicator is settled at the first fit: the model's inputs stay the same. One that was silent
  then, for want of nulls, speaks after a `refresh_scales` if there are enough of them by now (`few_nulls`).

`grown` counts a whole table anew, which may hold rows of earlier versions, or lack them (a window):

- Vocabularies are appended to by the counts of that table alone, and statistics become those of that table. So no row
  counts twice, however often it comes again.
- Medians, scales and indicators stay as they are, unless asked for; medians and scales are then the table's own,
  exactly, by another pass.
- Of a value in the vocabulary that the table lacks, the version stays known whose data last held it, with a count of 0.
- Where nothing would change (the same statistics, no new value), the state stays, its version too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

from gigabatch.features.columns.content_hash import TEXT, hash_of, plain_values
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.exact.column_statistics import ColumnStatistics, RobustScale, Scale
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.operators.missing.fill_missing import Fill, few_nulls
from gigabatch.features.refit.statistics import CategoryStatistics, FilledScale, Statistics, median
from gigabatch.features.vocabulary.vocabulary import Vocabulary


@dataclass(frozen=True)
class Version:
    """Where a fitted state comes from; without a date, so that equal data in equal order give an equal state.

    number: 1 for the first fit, one more for each update or growth. parent: checksum of the state before, None at the
    first. rows: of the data of each version so far. counted_from: the first version whose rows are in the statistics;
    a growth counts all rows anew, so it is the number of the last one.
    """

    number: int = 1
    parent: str | None = None
    rows: tuple[int, ...] = ()
    counted_from: int = 1

    @property
    def counted_rows(self) -> int:
        """Rows that the statistics of this version are of."""
        return sum(self.rows[self.counted_from - 1 :])

    @classmethod
    def from_dict(cls, raw: Any) -> Version:
        """From what `asdict` gave and JSON took; `ValueError` for what cannot be a version."""
        found = cls(raw["number"], raw["parent"], tuple(raw["rows"]), raw.get("counted_from", 1))
        if type(found.number) is not int or found.number < 1 or len(found.rows) != found.number:
            raise ValueError(f"version {found.number!r} with the rows of {len(found.rows)} versions")
        if any(type(rows) is not int or rows < 0 for rows in found.rows):
            raise ValueError(f"version {found.number}: rows {list(found.rows)}")
        if (found.parent is None) != (found.number == 1) or not re.fullmatch("[0-9a-f]{32}", found.parent or "0" * 32):
            raise ValueError(f"version {found.number} with the parent {found.parent!r}")
        if type(found.counted_from) is not int or not 1 <= found.counted_from <= found.number:
            raise ValueError(f"version {found.number} with rows counted from version {found.counted_from!r}")
        return found


@dataclass(frozen=True)
class Learned:
    """A preprocessor's fitted state; the statistics are of all data up to its version."""

    vocabularies: dict[str, Vocabulary]
    fills: dict[str, Fill]
    scales: dict[str, Scale]
    statistics: Statistics
    version: Version
    edges: dict[str, tuple[float, ...]] = field(default_factory=dict)


def updated(
    old: Learned,
    new: Statistics,
    *,
    category: Callable[[str], Categorify] = Categorify,
    refresh_scales: bool = False,
) -> Learned:
    """The next version, from statistics of the new data alone; see the module's docstring.

    category: the `Categorify` of a column by its name, as of the first fit. A vocabulary that has max_size values takes
    no more.
    """
    if new.rows == 0:
        raise DataError("update: the new data has no rows. There is nothing to learn from.")
    number = old.version.number + 1
    statistics = old.statistics.merge(new.at_version(number))
    vocabularies = {
        name: _appended(vocabulary, old.statistics.of_values(name), new.of_values(name), category(name))
        for name, vocabulary in old.vocabularies.items()
    }
    fills, scales = old.fills, old.scales
    if refresh_scales:
        if robust := [name for name, scale in scales.items() if isinstance(scale, RobustScale)]:
            raise DataError(
                f"update: refresh_scales cannot refresh the robust scale of {', '.join(robust)}: its quartiles are not "
                "known without the rows of earlier versions. Leave refresh_scales out, or encode the whole table "
                "(preprocess.from with preprocess.refresh_scales=true)."
            )
        for name, total in statistics.numbers.items():
            if not total.moments.count:
                raise DataError(
                    f"update: column {name!r}: all {total.rows} rows so far are null, so there is no median. Leave "
                    "refresh_scales out."
                )
        found = {name: median(statistics.numbers[name]) for name in fills}
        fills = {
            name: _refilled(fill, statistics.numbers[name], found[name].value, found[name].bound)
            for name, fill in fills.items()
        }
        scales = {name: statistics.numbers[name].filled_scale(fills[name].value) for name in scales}
    version = replace(old.version, number=number, parent=checksum(old), rows=(*old.version.rows, new.rows))
    return Learned(vocabularies, fills, scales, statistics, version, old.edges)


def grown(
    old: Learned,
    new: Statistics,
    vocabularies: dict[str, Vocabulary],
    refreshed: Mapping[str, FilledScale] = MappingProxyType({}),
) -> Learned:
    """The next version, from statistics of a whole table; see the module's docstring.

    vocabularies: what `grown_vocabulary` makes of each column's. refreshed: what a fit of the table found of the
    continuous columns whose fills and scales become the table's. `old` itself comes back where nothing would change.
    """
    if new.rows == 0:
        raise DataError("grow: the train split has no rows. There is nothing to learn from.")
    longer = any(len(item.values) > len(old.vocabularies[name].values) for name, item in vocabularies.items())
    fills = old.fills | {
        name: _refilled(old.fills[name], state.statistics, state.fill.value) for name, state in refreshed.items()
    }
    scales = old.scales | {name: state.scale for name, state in refreshed.items() if state.scale is not None}
    if not longer and old.statistics.equals(new) and (fills, scales) == (old.fills, old.scales):
        return old
    number = old.version.number + 1
    categories = {
        name: state.grown(old.statistics.categories[name], vocabularies[name], number)
        for name, state in new.categories.items()
    }
    lists = {
        name: state.grown(old.statistics.lists[name], vocabularies[new.owners[name]], number)
        for name, state in new.lists.items()
    }
    version = Version(number, checksum(old), (*old.version.rows, new.rows), counted_from=number)
    statistics = replace(new, categories=categories, lists=lists)
    return Learned(vocabularies, fills, scales, statistics, version, old.edges)


def grown_vocabulary(vocabulary: Vocabulary, new: CategoryStatistics, category: Categorify) -> Vocabulary:
    """The vocabulary with the counts of a whole table's column, and its new values behind the known ones.

    A value enters where the table holds it `min_count` times, by descending count, ties by ascending value, while
    there are fewer than `max_size` values. category: the column's `Categorify`, which has these bounds.
    """
    return vocabulary.uncounted().update(new.counts[["value", "count"]], category.min_count, category.max_size)


def checksum(learned: Learned) -> str:
    """blake2b of everything that was learned, 32 hex digits; the same on every engine, machine and Parquet version."""
    return hash_of(_parts(learned)).hex()


def _appended(
    vocabulary: Vocabulary, old: CategoryStatistics, new: CategoryStatistics, category: Categorify
) -> Vocabulary:
    engine = engine_of(new.counts)
    values, counts = new.counts["value"], engine.array(new.counts["count"])
    unknown = vocabulary.positions(values) < 0
    places = old.vocabulary.positions(values)
    # What is new to the vocabulary may have been too rare for it before: those rows count too.
    rare = unknown & (places >= 0)
    counts = counts.copy()
    counts[rare] += engine.array(old.counts["count"])[places[rare]]
    counted = engine.frames.DataFrame({"value": values, "count": engine.series(counts, new.counts)})
    return vocabulary.update(counted, category.min_count, category.max_size)


def _refilled(fill: Fill, total: ColumnStatistics, value: float, error: float = 0.0) -> Fill:
    silent = fill.silent and few_nulls(total.nulls, total.rows)
    return replace(fill, value=value, null_rate=total.nulls / total.rows, error=error, silent=silent)


def _parts(learned: Learned) -> Iterator[bytes]:
    """The state as byte strings in a settled order; floats by their exact text."""
    statistics = learned.statistics
    plain = {
        "fills": {name: _plain(fill) for name, fill in learned.fills.items()},
        "scales": {name: asdict(scale) for name, scale in learned.scales.items()},
        "version": _plain_version(learned.version),
        **({"edges": learned.edges} if learned.edges else {}),  # as checksums have it that are older than edges
        "layouts": {name: asdict(vocabulary.layout) for name, vocabulary in learned.vocabularies.items()},
        "rows": statistics.rows,
        "numbers": {
            name: [state.nulls, state.moments.total.units, state.moments.squares.units]
            for name, state in statistics.numbers.items()
        },
    }
    yield json.dumps(plain, allow_nan=False).encode()
    for name, vocabulary in learned.vocabularies.items():
        yield name.encode()
        yield from _column_bytes(vocabulary.values)
        yield from _column_bytes(vocabulary.counts)
    for name, category in (*statistics.categories.items(), *statistics.lists.items()):
        yield name.encode()
        for column in ("value", "count", "last_version"):
            yield from _column_bytes(category.counts[column])
    for name, number in statistics.numbers.items():
        yield name.encode()
        bins, counts = number.histogram.to_arrays()
        yield from (bins.tobytes(), counts.tobytes())


def _plain(fill: Fill) -> dict[str, Any]:
    """As checksums have it that are older than `silent`."""
    return {name: value for name, value in asdict(fill).items() if name != "silent" or value}


def _plain_version(version: Version) -> dict[str, Any]:
    """As checksums have it that are older than growth."""
    return {name: value for name, value in asdict(version).items() if name != "counted_from" or value > 1}


def _column_bytes(column: Any) -> Iterator[bytes]:
    """A column without nulls: its kind and length, then its values."""
    kind, arrays = plain_values(column)
    yield f"{kind}{len(arrays[0])}".encode()
    if len(arrays[0]) or kind != TEXT:
        yield from (array.tobytes() for array in arrays)
