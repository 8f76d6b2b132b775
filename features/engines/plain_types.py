"""Columns as operators know them, where a frame of pandas enters: without NaN that is no null, not sparse, and of
Arrow types that pandas has methods for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def as_plain(frame: Any, names: Iterable[str] | None = None, coded: bool = False) -> Any:
    """The frame, in whose Arrow-backed columns of floats (those of `names`, by default all) a NaN is null, as it is in
    other columns of pandas, whose sparse columns are dense, and whose text views and runs are as of an Arrow table;
    dictionaries too, unless `coded`. The frame itself where there is none of these.

    >>> import numpy as np
    >>> import pandas as pd
    >>> import pyarrow as pa
    >>> kept = pa.chunked_array([pa.array(np.array([np.nan, 1.0]))])
    >>> ratio = pd.DataFrame({"x": pd.arrays.ArrowExtensionArray(kept)})
    >>> ratio["x"].isna().tolist(), as_plain(ratio)["x"].isna().tolist()
    ([False, False], [True, False])
    """
    of_pandas = any(base.__module__.startswith("pandas") for base in type(frame).__mro__)  # which is not imported here
    if not of_pandas:
        return frame
    # One of a name that is there twice is needed by nobody, else it is refused.
    columns = frame.columns if frame.columns.is_unique else frame.columns.drop_duplicates(keep=False)
    found: dict[Any, Any] = {}
    for name in columns if names is None else dict.fromkeys(names):
        dtype = frame[name].dtype if name in columns else None
        kind = getattr(dtype, "pyarrow_dtype", None)
        if type(dtype).__name__ == "SparseDtype":
            found[name] = frame[name].sparse.to_dense()
        elif (
            (what := str(kind)).startswith("run_end_encoded")
            or "string_view" in what
            or (what.startswith("dictionary") and not coded)
        ):
            from gigabatch.features.engines.arrow_columns import as_of_table

            found[name] = as_of_table(frame[name])
        elif kind in ("halffloat", "float", "double"):
            import pyarrow.compute as pc  # only here, since a row is encoded without it

            values = frame[name].array.__arrow_array__()
            nan = pc.is_nan(values)
            if pc.any(nan).as_py():
                found[name] = type(frame[name].array)(pc.if_else(nan, None, values))
    if not found:
        return frame
    frame = frame.copy(deep=False)
    for name, column in found.items():
        frame[name] = column
    return frame
