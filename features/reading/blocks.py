"""Files in blocks of rows, for pandas: the rows, types and bits that the whole file gives, a block in memory at once.

What a reader makes of a column of numbers may follow from rows of another block: beside a 0.5 whole numbers are floats.
Where that could change a value, the file is not read in blocks (`NotInParts`) and whoever asked reads it whole.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import UNREADABLE, DataError, raise_of_machine, require_columns
from gigabatch.features.reading.csv_records import NotInParts, one_column_records, record_blocks
from gigabatch.features.reading.encodings import UTF8, opened
from gigabatch.features.reading.plain_csv import read_plain
from gigabatch.features.reading.row_bytes import line_bytes
from gigabatch.features.reading.sources import (
    PACKED,
    PARQUET_ENDINGS,
    FileCache,
    cast,
    columns_with_exponents,
    csv_options,
    drop_rows,
    is_read_as_text,
    naming,
    naming_lines,
    refuse_guesses,
    rounded_columns,
    same_file,
    text_columns,
    with_plain_decimals,
    without_null_words,
)

SKIPPED_FROM = 2**53  # from here on float64 skips whole numbers
UNPACKED_BYTES = 4  # of text in a byte of a compressed file, about


class Kinds:
    """What kinds of numbers each column comes as, block by block.

    Parameters
    ----------
    where
        Whose columns, for messages.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._kinds: dict[str, set[str]] = {}
        self._wide: set[str] = set()

    def look(self, frame: Any, names: Iterable[str]) -> None:
        """Tell of a block.

        Raises
        ------
        NotInParts
            Where the whole column would be of another kind than this or an earlier block, so that a value might differ:
            only whole numbers below 2^53 are the same among floats.
        """
        for name in names:
            column = frame[name]
            kinds = self._kinds.setdefault(name, set())
            kinds.add(column.dtype.kind)
            if column.dtype.kind == "i" and bool(((column >= SKIPPED_FROM) | (column <= -SKIPPED_FROM)).any()):
                self._wide.add(name)
            if len(kinds) > 1 and (kinds != {"i", "f"} or name in self._wide):
                raise NotInParts(f"{self.where}: column {name!r} holds values of several kinds")


def read_blocks(
    path: str,
    dtypes: Mapping[str, str],
    rows: int,
    *,
    null_values: Sequence[str] = ("", "NA"),
    separator: str = ",",
    names: Sequence[str] | None = None,
    nullable: Collection[str] = (),
    without: Sequence[int] = (),
) -> Iterator[Any]:
    """Read one file as `read_files` does, a block of rows at a time, with pandas.

    Parameters
    ----------
    path
        A CSV file, compressed or not, or a Parquet file; a path or URL.
    dtypes
        As of `read_files`, no lists among them.
    rows
        How many a block holds at most.
    null_values, separator, names, nullable
        As of `read_files`.
    without
        Places of rows that are left out.

    Yields
    ------
    data frame
        Rows of the file, in order, each frame on an index of its own.

    Raises
    ------
    DataError
        As `read_files`; counts of nulls are those of a block, and the message says which.
    NotInParts
        Where blocks cannot be told apart from the whole.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from gigabatch.features.reading.blocks import read_blocks
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "n.csv").write_text("n\\n1\\n2\\n3\\n")
    ...     [block["n"].tolist() for block in read_blocks(f"{folder}/n.csv", {"n": "int64"}, rows=2)]
    [[1, 2], [3]]
    """
    kinds, start, gone = Kinds(f"input {path}"), 0, sorted(without)
    # Flags are the same whatever stands beside them; text is read as text.
    numbers = [name for name, dtype in dtypes.items() if dtype != "bool" and not is_read_as_text(dtype)]
    for frame in _raw_blocks(path, dtypes, rows, list(null_values), separator, names):
        if rounded := rounded_columns(frame, dtypes):
            raise NotInParts(f"input {path}: column {rounded[0]!r} holds whole numbers beyond 2^53 beside nulls")
        stop = start + len(frame)
        where = f"input {path}, rows {start:,} to {stop:,}"
        with naming_lines(path, separator, UTF8, names):
            typed = cast(frame[list(dtypes)].reset_index(drop=True), dtypes, where, nullable)
        kinds.look(frame, numbers)
        places = gone[bisect_left(gone, start) : bisect_left(gone, stop)]
        yield drop_rows(typed, path, [place - start for place in places])
        start = stop
    if start == 0:
        raise DataError(f"input {path}: it has a header but no rows.")
    if gone and gone[-1] >= start:
        raise DataError(f"input {path}: row {gone[-1]} is to be left out, but it has {start} rows.")


def _raw_blocks(
    path: str, dtypes: Mapping[str, str], rows: int, null_values: list[str], separator: str, names: Sequence[str] | None
) -> Iterator[Any]:
    """The blocks as the reader makes them, checked as whole files are."""
    # Here, as it imports pandas and numba, and a command that reads no rows is told before that is done.
    from gigabatch.features.engines.arrow_columns import exact_frame_of

    module, header = load_engine("pandas"), None if names is None else list(names)
    with naming(path):
        if path.endswith(PARQUET_ENDINGS):
            with (
                fsspec.open(path, "rb") if "://" in path else nullcontext(path) as source,
                pq.ParquetFile(source) as file,
            ):
                if missing := [name for name in dtypes if name not in file.schema_arrow.names]:
                    raise NotInParts(f"input {path}: column {missing[0]!r} is none of its own")
                for batch in file.iter_batches(rows, columns=list(dtypes)):
                    frame = exact_frame_of(pa.Table.from_batches([batch]))
                    require_columns(frame, dtypes, f"input {path}")
                    frame = without_null_words(with_plain_decimals(frame, path, dtypes), null_values, dtypes)
                    refuse_guesses(module, frame, path, dtypes, header, separator, None)
                    yield frame
            return
        with ExitStack() as stack:
            alone = None
            if len(dtypes) == 1:
                alone = one_column_records(module, stack.enter_context(opened(path)), separator, header)
            text = text_columns(dtypes)
            options = partial(csv_options, separator, header, null_values, blank_rows=alone is not None)
            if alone is None:
                file, has_header = stack.enter_context(opened(path)), header is None
                head, blocks = record_blocks(file, separator, rows, has_header=has_header)
            else:
                head, records = alone
                blocks = iter(lambda: b"".join(islice(records, rows)), b"")
            for block in blocks:
                content = head + block
                if alone is None and header is None:
                    plain = read_plain(content, separator, dtypes, text, null_values)
                    if plain is not None:
                        yield plain
                        continue
                try:
                    frame = module.read_csv(io.BytesIO(content), **options(text))
                    require_columns(frame, dtypes, f"input {path}")
                    refuse_guesses(module, frame, path, dtypes, header, separator, content)
                    as_text = partial(_columns_as_text, content, options)
                    if unsure := columns_with_exponents(frame, dtypes, path, content, as_text):
                        raise DataError(f"column {unsure[0]!r} holds numbers with exponents")
                except (DataError, *UNREADABLE) as error:
                    raise_of_machine(error, path)
                    # Read whole, the file is refused with the place of what is wrong, or has a sense that blocks lack.
                    raise NotInParts(f"input {path}: a block of it cannot be read by itself ({error})") from error
                yield frame


def _columns_as_text(content: bytes, options: Callable[..., dict[str, Any]], columns: list[str]) -> Any:
    """Columns of a block as they are written."""
    return load_engine("pandas").read_csv(io.BytesIO(content), **options(columns), usecols=columns)


def file_frames(
    path: str, dtypes: Mapping[str, str], rows: int, whole: Callable[[], Any], cache: FileCache | None,
    without: Mapping[str, Sequence[int]], **how: Any,
) -> Iterator[Any]:  # fmt: skip
    """The rows of a file: one frame, which may have been kept, where there are about `rows` or fewer; else blocks.

    Parameters
    ----------
    path, dtypes, rows
        As of `read_blocks`.
    whole
        Reads the file as one frame.
    cache
        Told that a file in blocks is not kept.
    without
        Places of rows that are left out, by file.
    how
        Further arguments of `read_blocks`.
    """
    if about_rows(path) <= rows:
        yield whole()
        return
    if cache is not None:
        cache.read_directly(path)
    yield from read_blocks(path, dtypes, rows, without=without.get(same_file(path), ()), **how)


def about_rows(path: str) -> float:
    """How many rows a file has, about: of a Parquet file its footer says it, of a CSV file its length and the length of
    its first lines. Of a URL, and of what cannot be read, 0: whoever reads it says so."""
    if "://" in path:
        return 0
    try:
        if path.endswith(PARQUET_ENDINGS):
            return pq.read_metadata(path).num_rows
        line, size = line_bytes(path), Path(path).stat().st_size
    except (*UNREADABLE, zipfile.BadZipFile, zlib.error):
        return 0
    return size * (UNPACKED_BYTES if path.endswith(PACKED) else 1) / line if line else 0
