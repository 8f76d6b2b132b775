"""Fit statistics as JSON and Parquet files, and back; whatever does not add up is refused by column.

`statistics.json` holds the numbers, `statistics-NNN.parquet` the counts of values of a categorical column or a list,
numbered in the order of the JSON, and `statistics-numbers.parquet` the counts of bins of all continuous columns: a file
for each of thousands took longer to reach the disk than everything else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigabatch.features.engines.arrow_tables import write_with_checksums
from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.features.errors import DataError, raise_of_system
from gigabatch.features.exact.column_statistics import ColumnStatistics, Moments
from gigabatch.features.exact.float_order import NOT_FINITE, words_of
from gigabatch.features.exact.quantiles import RadixHistogram
from gigabatch.features.exact.sums import UNIT_EXPONENT, ExactSum
from gigabatch.features.refit.statistics import CategoryStatistics, Statistics

FORMAT = 2
ONE_FILE_A_COLUMN = 1  # continuous ones too, numbered behind the categorical ones
STATISTICS = "statistics.json"
NUMBERS = "statistics-numbers.parquet"
BINS = ("bin", "count")
COUNT_BITS = 30  # of a bin's count that is multiplied at once: 128 products with 24 bits stay below 2^63


def save_statistics(statistics: Statistics, folder: Path) -> None:
    """Write the files into a folder that exists; equal statistics give an equal `statistics.json`."""
    for path, state in zip(
        _paths(folder, [*statistics.categories, *statistics.lists]).values(),
        [*statistics.categories.values(), *statistics.lists.values()],
        strict=True,
    ):
        counts = engine_of(state.counts).to_pandas(state.counts)
        write_with_checksums(pa.Table.from_pandas(counts, preserve_index=False), path)
    if statistics.numbers:
        parts = [state.histogram.to_arrays() for state in statistics.numbers.values()]
        column = np.repeat(np.arange(len(parts)), [len(bins) for bins, _ in parts])
        found = {"column": column} | dict(zip(BINS, map(np.concatenate, zip(*parts, strict=True)), strict=True))
        write_with_checksums(pa.table(found), folder / NUMBERS)
    numbers: dict[str, Any] = {
        "format": FORMAT,
        "rows": statistics.rows,
        "categories": {name: {"nulls": state.nulls} for name, state in statistics.categories.items()},
        "numbers": {
            name: {
                "nulls": state.nulls,
                # In units of 2^-1074, as text: JSON readers elsewhere round integers of this length.
                "sum": hex(state.moments.total.units),
                "sum_of_squares": hex(state.moments.squares.units),
            }
            for name, state in statistics.numbers.items()
        },
    }
    if statistics.lists:
        numbers["lists"] = {
            name: {"rows": state.rows, "owner": statistics.owners[name]} for name, state in statistics.lists.items()
        }
    (folder / STATISTICS).write_text(json.dumps(numbers, indent=1, allow_nan=False))


def load_statistics(folder: Path, engine: str = "pandas") -> Statistics:
    """What `save_statistics` wrote, as frames of `engine`; `DataError` where files are missing or contradict."""
    try:
        raw = json.loads((folder / STATISTICS).read_text())
        if raw["format"] not in (FORMAT, ONE_FILE_A_COLUMN):
            raise DataError(f"statistics {folder}: format {raw['format']}, this version reads up to {FORMAT}.")
        rows = _whole(raw["rows"])
        of_lists = raw.get("lists", {})
        names = [*raw["categories"], *raw["numbers"], *of_lists]
        if len(set(names)) != len(names):
            raise ValueError("a column is named twice")
        if raw["format"] == FORMAT:
            paths = _paths(folder, [*raw["categories"], *of_lists])
            bins = _bins(folder / NUMBERS, list(raw["numbers"]))
        else:
            paths = _paths(folder, names)
            bins = {name: _checked(name, _bins_of, read_arrow_table(paths[name]), BINS) for name in raw["numbers"]}
        categories = {
            name: _checked(name, _category, rows, entry, load_engine(engine).read_parquet(paths[name]))
            for name, entry in raw["categories"].items()
        }
        numbers = {
            name: _checked(name, _continuous, rows, entry, *bins[name]) for name, entry in raw["numbers"].items()
        }
        lists = {
            name: _checked(
                name, _category, _whole(entry["rows"]), {"nulls": 0}, load_engine(engine).read_parquet(paths[name])
            )
            for name, entry in of_lists.items()
        }
        return Statistics(rows, categories, numbers, lists, {name: entry["owner"] for name, entry in of_lists.items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
        if isinstance(error, DataError):
            raise
        raise_of_system(error, f"statistics {folder}")
        raise DataError(f"statistics {folder}: damaged ({error}). Run the encode stage again.") from error


def _paths(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    return {name: folder / f"statistics-{position:03d}.parquet" for position, name in enumerate(names)}


def _bins(path: Path, names: Sequence[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Bins and counts of each continuous column, of the one file of all."""
    if not names:
        return {}
    column, *found = _bins_of(read_arrow_table(path), ("column", *BINS))
    if len(column) and (column[0] < 0 or column[-1] >= len(names) or (column[1:] < column[:-1]).any()):
        raise ValueError(f"{path.name} holds columns that are not numbered 0 to {len(names) - 1}, in order")
    ends = np.searchsorted(column, np.arange(1, len(names)))
    return dict(zip(names, zip(*(np.split(part, ends) for part in found), strict=True), strict=True))


def _bins_of(table: pa.Table, names: Sequence[str]) -> list[np.ndarray]:
    if table.schema.types != [pa.int64()] * len(names) or table.column_names != list(names):
        raise ValueError(f"its file holds the columns {table.schema.names} of {table.schema.types}")
    if any(column.null_count for column in table.columns):
        raise ValueError("its file holds nulls")
    return [column.to_numpy() for column in table.columns]


def read_arrow_table(path: Path) -> pa.Table:
    """Of a small Parquet file, some ten times sooner than as a frame."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        return file.read(use_threads=False)


def _checked(name: str, build: Any, *arguments: Any) -> Any:
    try:
        return build(*arguments)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"column {name!r}: {error}") from error


def _category(rows: int, entry: Any, counts: Any) -> CategoryStatistics:
    nulls = _whole(entry["nulls"])
    _require_columns(counts, {"value": None, "count": "int64", "last_version": "int32"})
    if int(counts["count"].sum()) != rows - nulls or (len(counts) and int(counts["count"].min()) < 0):
        raise ValueError(f"its counts do not add up to its {rows - nulls} known rows")
    if bool(counts["value"].duplicated().any()):
        raise ValueError("a value is there twice")
    if len(counts) and int(counts["last_version"].min()) < 1:
        raise ValueError("a value was last seen before the first version")
    ordered = engine_of(counts).sort_counts(counts[["value", "count"]])
    if not bool((ordered["value"] == counts["value"]).all()):
        raise ValueError("its values are out of order")
    return CategoryStatistics(rows, nulls, counts)


def _continuous(rows: int, entry: Any, bins: np.ndarray, counts: np.ndarray) -> ColumnStatistics:
    nulls = _whole(entry["nulls"])
    histogram = RadixHistogram.from_arrays("float32", bins, counts)
    if histogram.total != rows - nulls:
        raise ValueError(f"its bins do not add up to its {rows - nulls} known rows")
    moments = Moments(histogram.total, ExactSum(int(entry["sum"], 16)), ExactSum(int(entry["sum_of_squares"], 16)))
    _require_possible(histogram, moments)
    return ColumnStatistics(rows, histogram, moments)


def _require_possible(histogram: RadixHistogram, moments: Moments) -> None:
    """Refuse sums that no numbers in these bins have, exactly."""
    bins = histogram.bins
    if len(bins) and (bins[0] < NOT_FINITE or bins[-1] >= (1 << histogram.bits) - NOT_FINITE):
        raise ValueError("a bin holds an infinity or NaN")
    sums, squares = possible_sums(histogram)
    total, of_squares = moments.total.units, moments.squares.units
    if not sums[0] <= total <= sums[1]:
        raise ValueError("its sum is not one of numbers in its bins")
    if not squares[0] <= of_squares <= squares[1]:
        raise ValueError("its sum of squares is not one of numbers in its bins")
    # Cauchy and Schwarz: no numbers have another relation of the two.
    if moments.count * (of_squares << -UNIT_EXPONENT) < total**2:
        raise ValueError("its sums cannot be those of the same numbers")


def possible_sums(histogram: RadixHistogram) -> tuple[tuple[int, int], tuple[int, int]]:
    """Least and largest sum, and sum of squares, of numbers in the bins of a first pass over float32, as `ExactSum`
    has them."""
    patterns = (words_of(histogram.bins << np.uint64(16), "float32") >> np.uint64(16)).astype(np.int64)
    exponents = patterns >> 7  # and the sign: equal ones stand side by side
    starts = np.flatnonzero(np.append(True, exponents[1:] != exponents[:-1])[: len(exponents)])
    if not len(starts):
        return (0, 0), (0, 0)
    near = ((patterns & 0x7F) | np.where(exponents & 0xFF, 0x80, 0)) << 16  # mantissas at the ends of each bin
    terms = []
    for mantissas in (near, near | 0xFFFF):
        squares = mantissas * mantissas
        terms += [mantissas, squares >> 24, squares & 0xFFFFFF]
    found = [[0] * len(starts) for _ in terms]
    for shift in range(0, 63, COUNT_BITS):
        part = (histogram.counts >> shift) & ((1 << COUNT_BITS) - 1)
        if part.any():
            for place, term in enumerate(terms):
                sums = np.add.reduceat(part * term, starts).tolist()
                found[place] = [total + (new << shift) for total, new in zip(found[place], sums, strict=True)]
    least = most = fewest = largest = 0
    for row, low, low_high, low_rest, high, high_high, high_rest in zip(
        exponents[starts].tolist(), *found, strict=True
    ):
        unit = max(row & 0xFF, 1) - 150  # exponent of a mantissa's last bit
        low, high = low << (unit - UNIT_EXPONENT), high << (unit - UNIT_EXPONENT)
        least, most = (least - high, most - low) if row >> 8 else (least + low, most + high)
        fewest += ((low_high << 24) + low_rest) << (2 * unit - UNIT_EXPONENT)
        largest += ((high_high << 24) + high_rest) << (2 * unit - UNIT_EXPONENT)
    return (least, most), (fewest, largest)


def _require_columns(table: Any, dtypes: dict[str, str | None]) -> None:
    if list(table.columns) != list(dtypes):
        raise ValueError(f"its file holds the columns {list(table.columns)}, not {list(dtypes)}")
    for name, dtype in dtypes.items():
        if dtype is not None and str(table[name].dtype) != dtype:
            raise ValueError(f"its {name} is {table[name].dtype}, not {dtype}")
        if bool(table[name].isna().any()):
            raise ValueError(f"its {name} holds nulls")


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of rows")
    return value
