"""The categories of a fitted NVTabular Categorify: its `unique.*.parquet` files as our vocabularies, ids kept.

As `nvtabular/ops/categorify.py` writes and reads them since version 23.06 (`_save_encodings` and `_encode`): 0 padding,
1 null, 2..2+num_buckets-1 unseen, then the values by falling count. A file holds one row a value, in id order, its
pandas index being the ids; beside the values (for a combination, a column a part) is `<name>_size`, their counts.
`meta.<name>.parquet` repeats where each kind of id begins.

The statistics of a JoinGroupby lie in `cat_stats.*.parquet`, which the same file of NVTabular writes
(`_write_gb_stats`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from dataclasses import field as list_field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gigabatch.features.columns.categories import canonical_column, canonicalize
from gigabatch.features.engines.arrow_columns import MASKED
from gigabatch.features.errors import DataError
from gigabatch.features.importers.base import distinct_values, field
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.vocabulary.combined import CombinedVocabulary
from gigabatch.features.vocabulary.vocabulary import IdLayout, Vocabulary

PART = re.compile(r"part\.(\d+)\.parquet")


@dataclass
class ImportedCategories:
    """steps: operators with their vocabularies. problems, notes: see `import_nvtabular`."""

    steps: list[tuple[Categorify, Vocabulary | CombinedVocabulary]] = list_field(default_factory=list)
    problems: list[str] = list_field(default_factory=list)
    notes: list[str] = list_field(default_factory=list)


def read_categories(
    folder: Path, node: dict[str, Any], names: list[str], lists: set[str], where: str
) -> ImportedCategories:
    """The steps that one Categorify node stands for, in the order of its columns.

    names: its columns. lists: those of them (and others) that hold lists.
    """
    params, state = field(node, "op_params", dict, where), field(node, "op_state", dict, where)
    found = ImportedCategories()
    for option in ("single_table", "search_sorted"):
        if params.get(option):
            found.problems.append(f"Categorify of {', '.join(names)} with {option} (ours: none)")
    if found.problems:
        return found
    artifacts = folder / "artifacts" / f"node_{node['id']}"
    paths = {"\0".join(_key(entry, where)): _inside(artifacts, entry, where)
             for entry in field(state, "categories", list, where)}  # fmt: skip
    storage_names = field(state, "storage_name", dict, where)
    stored = {name: str(storage_names.get(name, name)) for name in names}
    combined = params.get("encode_type") == "combo"
    for storage in dict.fromkeys(stored.values()):
        columns = [name for name in names if stored[name] == storage]
        path = paths.get(storage) or paths.get("\0".join(columns))
        if path is None:
            raise DataError(f"{where}: no categories of {storage!r}; the workflow was not fitted.")
        buckets = _option(params, "num_buckets", storage, where) or 1
        settings: dict[str, Any] = {"oov_buckets": buckets}
        threshold, size = (_option(params, name, storage, where) for name in ("freq_threshold", "max_size"))
        if threshold:
            settings["min_count"] = threshold
        if size:  # counts the ids of padding, null and the unseen too
            settings["max_size"] = max(size - 2 - buckets, 1)
        if buckets > 1:
            found.notes.append(
                f"{storage}: which of the {buckets} ids an unseen value falls on differs, as NVTabular's hash does "
                "between CPU and GPU; the ids of null and of every known value are the same"
            )
        table = _uniques(path, IdLayout(buckets=buckets).first, where)
        _check_meta(path, IdLayout(buckets=buckets), table, where)
        counts = _counts(table, storage, where)
        if combined and len(columns) > 1:
            operator = Categorify(combined=columns, output=storage, **settings)
            found.steps.append((operator, _combination(table, columns, counts, buckets, where)))
            continue
        if len(columns) > 1:
            operator = Categorify(shared=columns, lists=any(name in lists for name in columns), **settings)
        else:
            operator = Categorify(columns[0], lists=columns[0] in lists, **settings)
        vocabulary = _vocabulary(table, storage, counts, buckets, where)
        if len(vocabulary.values) < table.num_rows:
            found.notes.append(f"{storage}: no value was ever seen; NVTabular kept an id for that, ours has none")
        found.steps.append((operator, vocabulary))
    found.notes.append("ids are int32 (NVTabular: int64 unless told otherwise)")
    return found


def vocabulary_of_file(path: Path, column: str, start_index: int = 0) -> Vocabulary:
    """The ids of one `unique.<column>.parquet`, of any version of NVTabular; for workflows that are pickles otherwise.

    Until 23.04 the file begins with a row for null, whose place 0 is also that of padding and of the unseen; ids are
    rows. start_index: that version's option of Categorify, added to every id. Later files: see this module.
    An older file of a Categorify with num_buckets looks like any other, but its unseen values were hashed: not for
    this function. Errors (`DataError`): a file that is neither.
    """
    path = Path(path)
    where = f"NVTabular categories {path}"
    table = _read(path / "part.0.parquet" if path.is_dir() else path, where)
    if column in table.column_names and table.num_rows > 0 and not table[column][0].is_valid and not _has_meta(path):
        rows = table.slice(1)
        return replace(
            _vocabulary(rows, column, _counts(rows, column, where), 1, where),
            layout=IdLayout(start_index, start_index, start_index),
        )
    if start_index:
        raise DataError(f"{where}: start_index is an option of files that begin with a null row, this one does not.")
    found, buckets = _of_file(path, table, where)
    return _vocabulary(found, column, _counts(found, column, where), buckets, where)


def combination_of_file(path: Path, columns: Sequence[str]) -> CombinedVocabulary:
    """As `vocabulary_of_file`, of `unique.<a>_<b>.parquet`, a file of `encode_type="combo"`: the state of
    `Categorify(combined=columns, ...)`. columns: as they stand in the workflow. Errors (`DataError`): a file without
    one of them, or of NVTabular until 23.04, whose ids no combination has here."""
    path, columns = Path(path), list(columns)
    where = f"NVTabular categories {path}"
    table = _read(path / "part.0.parquet" if path.is_dir() else path, where)
    first = [table[name][0].is_valid for name in columns if name in table.column_names and table.num_rows]
    if first and not any(first) and not _has_meta(path):
        raise DataError(
            f"{where}: it begins with a row of nulls, as files of NVTabular until 23.04, whose ids combinations do "
            "not have here. Fit Categorify(combined=...) on the data anew."
        )
    found, buckets = _of_file(path, table, where)
    sizes = [name for name in found.column_names if name not in columns and name.endswith("_size")]
    counts = _counts(found, sizes[0].removesuffix("_size"), where) if sizes else [0] * found.num_rows
    return _combination(found, columns, counts, buckets, where)


def _of_file(path: Path, first: pa.Table, where: str) -> tuple[pa.Table, int]:
    """All values of a file of 23.06 and later, and how many ids the unseen have. first: its first part."""
    ids = _ids(first, where)
    buckets = 1 if ids is None or ids.start == 0 else ids.start - IdLayout().unseen
    layout = IdLayout(buckets=buckets)
    found = _uniques(path, layout.first, where)
    _check_meta(path, layout, found, where)
    return found, buckets


def read_statistics(artifacts: Path, entry: Any, where: str) -> Any:
    """The groups of one record of a JoinGroupby as a pandas frame, a row each: keys, then statistics."""
    path = _inside(artifacts, entry, where)
    tables = [_read(part, where) for part in _parts(path)]
    if not tables:
        raise DataError(f"{where}: {path.name} holds no part.*.parquet.")
    return pa.concat_tables([table.replace_schema_metadata(None) for table in tables]).to_pandas(
        types_mapper=MASKED.get
    )


def _parts(path: Path) -> list[Path]:
    """A file, or the files of a folder in the order of their numbers."""
    if not path.is_dir():
        return [path]
    numbered = {int(match[1]): part for part in path.iterdir() if (match := PART.fullmatch(part.name))}
    return [numbered[number] for number in sorted(numbered)]


def _has_meta(path: Path) -> bool:
    return path.with_name(path.name.replace("unique.", "meta.", 1)).is_file()


def _read(path: Path, where: str) -> pa.Table:
    """One file with its metadata."""
    try:
        table = pq.ParquetFile(path).read()
        table.validate(full=True)  # text that is no UTF-8, for one
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{where}: {path.name} cannot be read ({error}). Save the workflow again.") from error
    return table


def _key(entry: Any, where: str) -> list[str]:
    return [str(name) for name in field(entry, "key", list, where)]


def _inside(artifacts: Path, entry: Any, where: str) -> Path:
    """The file's path, which must lie in the node's folder and be no link out of it."""
    path = artifacts / field(entry, "path", str, where)
    if not path.resolve().is_relative_to(artifacts.resolve()):
        raise DataError(f"{where}: the path {entry['path']!r} of its categories leads out of {artifacts}.")
    return path


def _option(params: dict[str, Any], name: str, column: str, where: str) -> int:
    """An option that is one number, a number a column, or nothing."""
    value = params.get(name)
    value = value.get(column) if isinstance(value, dict) else value
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DataError(f"{where}: {name} must be a whole number from 0, found {value!r}.")
    return value


def _uniques(path: Path, first: int, where: str) -> pa.Table:
    """The values and their counts in id order; the first id must be `first`, and none may be missing."""
    tables = [_read(part, where) for part in _parts(path)]
    expected = first
    for table in tables:
        ids = _ids(table, where)
        # cuDF may lose the index and count from 0; NVTabular then adds what is missing, and so it is here.
        if ids is not None and (ids.start if ids.start != 0 else expected, ids.step) != (expected, 1):
            raise DataError(f"{where}: {path.name} gives ids from {ids.start}, expected from {expected}.")
        expected += table.num_rows
    if not tables:
        raise DataError(f"{where}: {path.name} holds no part.*.parquet.")
    return pa.concat_tables([table.replace_schema_metadata(None) for table in tables])


def _ids(table: pa.Table, where: str) -> range | None:
    """The index of the file's rows: the ids; None where it says nothing."""
    metadata = table.schema.pandas_metadata or {}
    for column in metadata.get("index_columns", []):
        if isinstance(column, dict) and column.get("kind") == "range":
            return range(int(column["start"]), int(column["stop"]), int(column["step"]))
        raise DataError(f"{where}: the ids of its categories are a column {column!r} of their own; expected a range.")
    return None


def _check_meta(path: Path, layout: IdLayout, table: pa.Table, where: str) -> None:
    meta = path.with_name(path.name.replace("unique.", "meta.", 1))
    if not meta.is_file():
        return
    try:
        read = pq.ParquetFile(meta).read().to_pydict()
        offsets = dict(zip(read["kind"], read["offset"], strict=True))
        sizes = dict(zip(read["kind"], read["num_indices"], strict=True))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise DataError(f"{where}: {meta.name} cannot be read ({error}). Save the workflow again.") from error
    expected = {"pad": layout.padding, "null": layout.null, "oov": layout.unseen, "unique": layout.first}
    if offsets != expected or sizes.get("oov") != layout.buckets or sizes.get("unique") != table.num_rows:
        raise DataError(
            f"{where}: {meta.name} says that ids begin at {offsets} and hold {sizes}; expected {expected}, "
            f"{layout.buckets} unseen and {table.num_rows} values. A layout of another version cannot be taken over."
        )


def _counts(table: pa.Table, storage: str, where: str) -> Any:
    if f"{storage}_size" not in table.column_names:
        return [0] * table.num_rows
    counts = table[f"{storage}_size"].to_pylist()
    if not all(isinstance(count, int | float) and count >= 0 and count == int(count) for count in counts):
        raise DataError(f"{where}: the counts of {storage!r} are not all whole numbers from 0.")
    return [int(count) for count in counts]


def _vocabulary(table: pa.Table, storage: str, counts: Any, buckets: int, where: str) -> Vocabulary:
    if storage not in table.column_names:
        raise DataError(f"{where}: the categories have no column {storage!r}, only {table.column_names}.")
    column = table.select([storage]).to_pandas(types_mapper=MASKED.get)[storage]
    if len(column) == 1 and bool(column.isna().all()):  # what NVTabular writes for a column of nulls
        column, counts = column.iloc[:0], []
    values = distinct_values(column, f"{where}: categories of {storage!r}")
    return Vocabulary(values, _series(counts), IdLayout(buckets=buckets))


def _combination(table: pa.Table, columns: list[str], counts: Any, buckets: int, where: str) -> CombinedVocabulary:
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise DataError(f"{where}: the categories have no column(s) {missing}, only {table.column_names}.")
    frame = table.select(columns).to_pandas(types_mapper=MASKED.get)
    parts = pd.DataFrame({name: canonical_column(canonicalize(frame[name], where)) for name in columns})
    if bool(parts.duplicated().any()) or bool(parts.isna().all(axis=1).any()):
        raise DataError(f"{where}: a combination of {columns} is there twice, or null in every column.")
    return CombinedVocabulary(parts, _series(counts), buckets)


def _series(counts: list[int]) -> Any:
    return pd.Series(counts, dtype="int64")
