"""Samples of a run's input files, for `gigabatch plan`: the same files under the same names with fewer rows.

A sample is taken in pieces that are spread evenly over each file, so that it sees all of its days and users. Files that
are looked up rather than counted (weather, aircraft, item properties) stay whole.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gigabatch.features.reading.csv_blocks import csv_blocks
from gigabatch.features.reading.encodings import UTF8, ZSTD, csv_source, is_bytewise, opened
from gigabatch.features.reading.sources import PACKED, PARQUET_ENDINGS, expand
from gigabatch.features.recipes.movielens.files import FORMATS
from gigabatch.features.recipes.movielens.recipe import MovieLensRecipe, MovieLensSettings

PIECES = 16  # of a file that a sample is made of
LINES_BYTES = 1 << 18  # read to learn how long a CSV line is


class PlanError(ValueError):
    """A plan cannot be made; the message says why and what to do."""


@dataclass(frozen=True)
class NamedFiles:
    """What a recipe finds in its folder by names that cannot be set. names: of the files, by what they hold."""

    names: dict[str, str]
    headless: bool


@dataclass(frozen=True)
class InputFiles:
    """Names of a recipe's settings. rows: of the files that are sampled. whole: of those that are not. base: of the
    folder that these are relative to. named: where the names are none of settings, says what they are the names of."""

    rows: tuple[str, ...]
    whole: tuple[str, ...] = ()
    base: str | None = None
    named: Callable[[Any], NamedFiles] | None = None


def _movielens_files(settings: MovieLensSettings) -> NamedFiles:
    kind = MovieLensRecipe(settings).format
    files = FORMATS[kind]
    names = {"ratings": files.ratings}
    names |= {"items": files.items} if settings.genres else {}
    names |= {"users": files.users} if settings.demographics and files.users else {}
    return NamedFiles(names, headless=kind != "ml-latest")


SAMPLED = {
    "flights": InputFiles(("flights",), ("weather", "planes", "airports"), "path"),
    "interactions": InputFiles(("path", "valid_path", "test_path")),  # side tables are read where they lie
    "movielens": InputFiles(("ratings",), ("items", "users"), "path", _movielens_files),
    "table": InputFiles(("path", "train_path", "valid_path", "test_path")),
    "trivago": InputFiles(("train", "test"), ("item_metadata",), "path"),
}


@dataclass(frozen=True)
class Size:
    """Of the sampled files. rows: from the footers where all are Parquet, else an estimate; num_bytes: on disk."""

    rows: int
    num_bytes: int
    exact_rows: bool


def input_files(recipe: str) -> InputFiles:
    """Which settings of the recipe name its files."""
    if recipe not in SAMPLED:
        raise PlanError(
            f"plan: recipe {recipe!r} has no sampler, so nothing can be tried out on a part of its files. Recipes that "
            f"have one: {', '.join(SAMPLED)}. Name its file settings in pipeline/lab/plan/sample.py (SAMPLED)."
        )
    return SAMPLED[recipe]


def paths_of(recipe: str, settings: Any, names: tuple[str, ...]) -> dict[str, list[str]]:
    """The files behind each of these settings that is set."""
    files = input_files(recipe)
    prefix = f"{getattr(settings, files.base).rstrip('/')}/" if files.base else ""
    there = files.named(settings).names if files.named else vars(settings)
    return {name: expand(prefix + there[name]) for name in names if there.get(name)}


def is_headless(recipe: str, settings: Any) -> bool:
    """Whether the files' first line is a row."""
    named = input_files(recipe).named
    return named(settings).headless if named else getattr(settings, "column_names", None) is not None


def measure(recipe: str, settings: Any) -> Size:
    """Measure rows and bytes of the files that are sampled, from footers and from the first lines of CSV files.

    Raises
    ------
    PlanError
        Where the recipe has no sampler, or the files are elsewhere, cannot be read or hold no rows.
    """
    paths = [path for found in paths_of(recipe, settings, input_files(recipe).rows).values() for path in found]
    if remote := [path for path in paths if "://" in path]:
        raise _not_here(remote[0])
    headless = is_headless(recipe, settings)
    counts = [_rows_of(Path(path), headless) for path in paths]
    size = Size(sum(counts), sum(os.path.getsize(p) for p in paths), all(p.endswith(PARQUET_ENDINGS) for p in paths))
    if size.rows == 0:
        raise PlanError(f"plan: {', '.join(paths)} hold no rows, so there is nothing to plan for.")
    return size


def sample_files(recipe: str, settings: Any, fraction: float, folder: Path) -> tuple[Any, float]:
    """Write samples of the input files under `folder`.

    Parameters
    ----------
    recipe, settings
        The recipe's name and its settings, whose paths lead to the whole files.
    fraction
        Of each file; 1 or more links to the files themselves.
    folder
        A folder for this sample alone.

    Returns
    -------
    tuple[Any, float]
        The settings with every path leading to the sample, and the share of the rows that it holds.
    """
    files = input_files(recipe)
    headless = is_headless(recipe, settings)
    changed: dict[str, str] = {files.base: str(folder)} if files.base else {}
    taken, total = 0.0, 0.0
    for name, paths in paths_of(recipe, settings, files.rows + files.whole).items():
        home = folder if files.named else folder / name
        home.mkdir(parents=True, exist_ok=files.named is not None)
        if not files.named:
            changed[name] = name if files.base else str(home)
        for number, path in enumerate(paths):
            # Numbered, because files of several folders may share a name and their order must stay.
            target = home / (Path(path).name if files.named else f"{number:05d}-{Path(path).name}")
            if "://" in path:
                raise _not_here(path)
            if name in files.whole or fraction >= 1:
                target.symlink_to(Path(path).absolute())
                share = 1.0
            elif path.endswith(PARQUET_ENDINGS):
                share = _sample_parquet(Path(path), target, fraction)
            else:
                written = getattr(settings, "encoding", UTF8), getattr(settings, "separator", ",")
                share = _sample_csv(Path(path), target, fraction, headless, *written)
            if name in files.rows:
                taken, total = taken + share * os.path.getsize(path), total + os.path.getsize(path)
    return replace(settings, **changed), taken / total


def _not_here(path: str) -> PlanError:
    return PlanError(f"plan: {path} is not on this machine, and samples are taken of local files only. Copy it.")


def _rows_of(path: Path, headless: bool) -> int:
    if path.name.endswith(PARQUET_ENDINGS):
        return _footer(path).num_rows
    with _opened(path) as file:
        num_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        header = 0 if headless else len(file.readline())
        start = file.read(LINES_BYTES)
    if not start.strip():
        return 0
    lines = start.splitlines(keepends=True)
    quotes = accumulate(line.count(b'"') for line in lines)
    # A line break within quotes ends no record, nor does a cut in its midst.
    records = sum(count % 2 == 0 and line.endswith(b"\n") for line, count in zip(lines, quotes, strict=True))
    if header + len(start) >= num_bytes:
        return records + (not start.endswith(b"\n"))
    return max(round((num_bytes - header) * records / len(start)), 1)


def _footer(path: Path) -> pq.FileMetaData:
    try:
        return pq.read_metadata(path)
    except (OSError, pa.ArrowException) as error:
        raise PlanError(f"plan: {path} cannot be read as Parquet, it may be truncated ({error}).") from error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The text of a CSV file as binary stream, unpacked."""
    try:
        if path.name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                (_,) = archive.infolist()  # of several files fsspec would take the first
        with opened(str(path)) as file:
            yield file if file.seekable() else io.BytesIO(file.read())
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise PlanError(f"plan: {path} cannot be read ({error}).") from error


def _sample_csv(path: Path, target: Path, fraction: float, headless: bool, encoding: str, separator: str) -> float:
    """Whole records in pieces, packed as the file is, so that reading them costs what it does."""
    plain = target.with_name("unpacked.csv")
    bytewise = is_bytewise(encoding)
    if not bytewise:  # cut as UTF-8, and written as it was
        plain.write_bytes(csv_source(str(path), encoding).getbuffer())
    elif path.name.endswith(PACKED):
        with _opened(path) as file, open(plain, "wb") as out:
            shutil.copyfileobj(file, out)
    else:
        plain.symlink_to(path.absolute())
    size = plain.stat().st_size
    pieces = csv_blocks(str(plain), max(round(size * fraction / PIECES), 1), separator=separator)
    chosen = [pieces[place] for place in sorted({int((k + 0.5) * len(pieces) / PIECES) for k in range(PIECES)})]
    taken, encoder = 0, codecs.getincrementalencoder(encoding)()
    with _packed(target) as out, open(plain, "rb") as file:
        if not headless:
            out.write(chosen[0].header if bytewise else encoder.encode(chosen[0].header.decode()))
        for piece in chosen:
            file.seek(piece.start)
            text = file.read((size if piece.stop is None else piece.stop) - piece.start)
            taken += len(text)
            text = text if text.endswith(b"\n") else text + b"\n"
            out.write(text if bytewise else encoder.encode(text.decode()))
    plain.unlink()
    return min(taken / max(size - len(chosen[0].header), 1), 1.0)


@contextmanager
def _packed(target: Path) -> Iterator[Any]:
    if target.name.endswith(".zip"):
        inside = target.name.removesuffix(".zip")
        with (
            zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open(inside, "w", force_zip64=True) as file,
        ):
            yield file
    elif target.name.endswith(ZSTD):
        with pa.CompressedOutputStream(str(target), "zstd") as file:
            yield file
    else:
        with gzip.open(target, "wb") if target.name.endswith(".gz") else open(target, "wb") as file:
            yield file


def _sample_parquet(path: Path, target: Path, fraction: float) -> float:
    """Runs of rows, spread evenly; only the row groups that hold some are read."""
    with pq.ParquetFile(path) as file:
        num_rows = file.metadata.num_rows
        length = max(round(num_rows * fraction / PIECES), 1)
        starts = sorted({min(int((k + 0.5) * num_rows / PIECES), num_rows) for k in range(PIECES)})
        wanted = [(start, min(start + length, num_rows)) for start in starts]
        taken, begin = 0, 0
        with pq.ParquetWriter(target, file.schema_arrow) as out:
            for number in range(file.metadata.num_row_groups):
                end = begin + file.metadata.row_group(number).num_rows
                inside = [(max(a, begin) - begin, min(b, end) - begin) for a, b in wanted if a < end and b > begin]
                if inside:
                    group = file.read_row_group(number)
                    rows = pa.concat_tables([group.slice(a, b - a) for a, b in inside])
                    out.write_table(rows)
                    taken += len(rows)
                begin = end
    return taken / max(num_rows, 1)
