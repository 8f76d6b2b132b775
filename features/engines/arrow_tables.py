"""Data frames of any library as Arrow tables of plain types. To import it does not import pandas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from gigabatch.features.engines.arrow_types import plain_column, usual_column
from gigabatch.features.engines.frame import is_of_dask, is_own
from gigabatch.features.engines.plain_types import as_plain
from gigabatch.features.errors import DataError, require_columns

if TYPE_CHECKING:
    import pandas as pd


def write_with_checksums(table: pa.Table, path: Path) -> None:
    """Write a Parquet file that may stand alone: a flipped bit of a page is another value to a reader, unless the page
    has a checksum. Of artifacts and bundles whole files have one, and pages need none."""
    pq.write_table(table, path, compression="zstd", compression_level=1, write_page_checksum=True)


def own_frame(frame: Any, where: str, read: Collection[str] | None = None, kept: Collection[str] | None = None) -> Any:
    """A frame of pandas or cuDF as it is, but for NaN in Arrow's floats, which is null; and one of any other library as
    pandas' by way of `arrow_table`.

    Parameters
    ----------
    frame
        As of `arrow_table`.
    where, read, kept
        As of `arrow_table`.

    Examples
    --------
    >>> import pyarrow as pa
    >>> own_frame(pa.table({"price": [1, None]}), "rows")["price"].tolist()
    [1, <NA>]
    """
    if is_own(frame):
        require_columns(frame, (), where)
        if frame.columns.nlevels > 1:
            raise DataError.strange_name(frame.columns[0], where)
        return as_plain(frame, coded=True)
    from gigabatch.features.engines.arrow_columns import frame_with_decimals

    return frame_with_decimals(arrow_table(frame, where, read=read, kept=kept))


def given_back(found: Any, frame: Any) -> Any:
    """What was made of `own_frame(frame, ...)`: as it is, or an Arrow table where `frame` was of another library.

    Parameters
    ----------
    found
        A frame of pandas or cuDF.
    frame
        What was given.

    Examples
    --------
    >>> import pandas as pd
    >>> import pyarrow as pa
    >>> given_back(pd.DataFrame({"clicked": [0.5]}), pa.table({"price": [1]})).column_names
    ['clicked']
    """
    if is_own(frame):
        return found
    return pa.Table.from_pandas(found, preserve_index=False).replace_schema_metadata(None)


def listed_parts(parts: Any, where: str, use: str) -> list[Any]:
    """The partitions as a list; `DataError` where there is none, or a frame stands in the place of a list of them.

    where: who asks, use: what the partitions are for, in messages.
    """
    if is_own(parts) or is_of_dask(parts) or hasattr(parts, "__arrow_c_stream__") or isinstance(parts, str):
        what = f"the text {parts!r}" if isinstance(parts, str) else "a frame alone"
        raise DataError(f"{where}: {what} is nothing to {use}. Give a list of parts: [frame].")
    if not (found := list(parts)):
        raise DataError(f"{where}: nothing to {use}, no partition was given.")
    return found


def own_parts(
    parts: Iterable[Any], where: str, use: str, read: Collection[str] | None = None, kept: Collection[str] | None = ()
) -> list[Any]:
    """`listed_parts` whose frames are as of `own_frame`, and one of Dask, which is computed, is one part; Parquet paths
    paired with an engine stay as they are."""
    listed = [part.compute() if is_of_dask(part) else part for part in listed_parts(parts, where, use)]
    for part in listed:
        if isinstance(part, str | PurePath):
            raise DataError(f"{where}: the path {str(part)!r} comes with its engine: ('pandas', {str(part)!r}).")
        if isinstance(part, tuple) and isinstance(part[1], str | PurePath) and Path(part[1]).is_dir():
            raise DataError(
                f"{where}: {part[1]} is a folder. Give its Parquet files, of which each is a partition: "
                f"[({part[0]!r}, path) for path in sorted(glob.glob('{part[1]}/*.parquet'))]."
            )
    return [part if isinstance(part, tuple) else own_frame(part, where, read, kept) for part in listed]


def arrow_table(
    frame: Any,
    where: str,
    columns: Sequence[str] | None = None,
    read: Collection[str] | None = None,
    kept: Collection[str] | None = None,
) -> pa.Table:
    """The frame as an Arrow table, without its index; memory is shared where types allow it.

    Parameters
    ----------
    frame
        Of pandas or cuDF, an Arrow table or record batch, or whatever hands over Arrow's memory by
        `__arrow_c_stream__`, such as a frame of Polars.
    where
        Who asks, for messages.
    columns
        Those that are wanted, in this order; None: all.
    read, kept
        The columns that are read, and those that a result holds as they are; None: all. Of others those are left out
        whose type Arrow's memory does not know here, such as Int128 of Polars, and decimals that are not read stay so.

    Returns
    -------
    pyarrow.Table
        Dictionaries (pandas' and Polars' categories) as their values, text as `large_string`, decimals as float64.

    Raises
    ------
    DataError
        For another object, a column of a type that Arrow's memory does not know here, a column that is missing, there
        twice or named by no text, or one that holds values of several types.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"city": pd.Categorical(["Oslo", "Bonn"]), "price": [1, 2]})
    >>> arrow_table(frame, "rows").schema.types
    [DataType(large_string), DataType(int64)]
    """
    import pandas as pd

    if type(frame).__name__ == "Series":  # which hands over memory too, as a table does
        raise DataError.no_frame(frame, where)
    if isinstance(frame, pd.DataFrame):
        names = list(frame.columns)
    elif isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
        names = frame.column_names
    elif hasattr(frame, "to_arrow") and type(frame).__module__.partition(".")[0] == "cudf":
        frame = frame.to_arrow(preserve_index=False)
        names = frame.column_names
    elif isinstance(frame, pa.Table) or hasattr(frame, "__arrow_c_stream__"):
        if not isinstance(frame, pa.Table):
            frame = _handed_over(
                frame, where, None if None in (read, kept) else {*(read or ()), *(kept or ())}, columns
            )
        names = frame.column_names
    else:
        raise DataError.no_frame(frame, where)
    if strange := [name for name in names if not isinstance(name, str)]:
        raise DataError.strange_name(strange[0], where)
    wanted = names if columns is None else list(columns)
    if missing := [name for name in wanted if name not in names]:
        raise DataError.missing_columns(missing, names, where, wanted)
    if twice := sorted({name for name in wanted if names.count(name) > 1}):
        raise DataError(f"{where}: column(s) {', '.join(map(repr, twice))} are there more than once. Rename them.")
    if isinstance(frame, pd.DataFrame):
        found = [_of_pandas(frame[name], name, where) for name in wanted]
    else:
        found = [frame.column(name) for name in wanted]
    unread = set() if read is None else set(wanted).difference(read)
    return pa.table(
        [
            usual_column(column) if name in unread and pa.types.is_decimal(column.type) else plain_column(column)
            for name, column in zip(wanted, found, strict=True)
        ],
        names=wanted,
    )


def _handed_over(frame: Any, where: str, needed: Collection[str] | None, columns: Sequence[str] | None) -> pa.Table:
    """The table that another library hands over, without columns that nobody needs (None: all are needed, or `columns`)
    and whose type is none of Arrow's."""
    try:
        return pa.table(frame)
    except pa.ArrowException as error:
        if not hasattr(frame, "select"):
            raise DataError(
                f"{where}: the frame holds a column of a type that Arrow does not know here ({error}). Cast it, or "
                "leave it out."
            ) from error
    found = {}
    for name in frame.columns:
        try:
            found[name] = pa.table(frame.select(name)).column(0)
        except pa.ArrowException as error:
            if name in (columns or (needed or ())) or (needed is None and columns is None):
                raise DataError(
                    f"{where}: column {name!r} is of a type that Arrow does not know here ({error}). Cast it, or leave "
                    "it out."
                ) from error
    return pa.table(found)


def _of_pandas(column: pd.Series, name: str, where: str) -> pa.ChunkedArray:
    import pandas as pd

    if column.dtype == "category" and str(column.cat.categories.dtype).startswith("interval"):
        column = column.cat.rename_categories(str)  # what `pd.cut` gives are names of its bins
    if isinstance(column.dtype, pd.SparseDtype):  # as of `pd.get_dummies(..., sparse=True)`
        column = column.sparse.to_dense()
    try:
        found = pa.array(column, from_pandas=True)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"{where}: column {name!r} holds values of no one type ({error}). Convert it, or leave it out."
        ) from error
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])
