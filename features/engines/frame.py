"""Which data frame library runs: pandas on CPU, cuDF on a GPU, chosen once and never both.

Operators call methods that the two share. What differs sits behind `engine_of(frame)`: the modules
`gigabatch.features.engines.pandas`, `.cudf` and `.cudf_plain` (cuDF without kernels of our own) hold the same functions
under the same names. What these take and give beside frames and arrays is here.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gigabatch.features.engines.protocols import Array, Column, Engine, Frame
from gigabatch.features.errors import DataError

ENGINES = ("auto", "cudf", "cudf_plain", "pandas")
# What stands for cuDF in this process. A frame does not say which of the two modules it was read by, so the plain one,
# once it was asked for, serves all of them.
_cudf = "cudf"


def resolve_engine(name: str) -> str:
    """Say which engine a name stands for.

    Parameters
    ----------
    name
        `pandas`, `cudf`, `cudf_plain`, or `auto`, which is `cudf` where cuDF is installed and a CUDA device answers,
        else `pandas`.

    Returns
    -------
    str
        `pandas`, `cudf` or `cudf_plain`.

    Raises
    ------
    DataError
        An unknown name, or one of cuDF's where it is not installed.
    """
    if name not in ENGINES:
        raise DataError(f"engine: unknown engine {name!r}. Known: {', '.join(ENGINES)}.")
    if name == "auto":
        return "cudf" if _cudf_usable() else "pandas"
    if name != "pandas" and importlib.util.find_spec("cudf") is None:
        raise DataError(
            f"engine: {name} was asked for but cuDF is not installed. Use environment.yml, or engine=pandas."
        )
    return name


def _cudf_usable() -> bool:
    if importlib.util.find_spec("cudf") is None:
        return False
    import torch

    return torch.cuda.is_available()


def load_engine(name: str) -> Engine:
    """Load the engine module of a name.

    Parameters
    ----------
    name
        `auto`, `cudf`, `cudf_plain` or `pandas`, as in `resolve_engine`. Once `cudf_plain` was loaded, it is what
        `cudf` means in this process.

    Returns
    -------
    Engine
        The module.

    Raises
    ------
    DataError
        An unknown name, or one of cuDF's where it is not installed.

    Examples
    --------
    >>> from gigabatch.features.engines.frame import load_engine
    >>> load_engine("pandas").NAME
    'pandas'
    """
    global _cudf
    found = resolve_engine(name)
    if found == "cudf_plain":
        _cudf = found
    module = found if found == "pandas" else _cudf
    return cast(Engine, importlib.import_module(f"gigabatch.features.engines.{module}"))


def is_own(frame: Any) -> bool:
    """Whether it is a frame of a library that operators work on, pandas or cuDF: others have no `iloc`, but for Dask's
    (see `is_of_dask`)."""
    return hasattr(frame, "iloc") and not is_of_dask(frame)


def is_of_dask(frame: Any) -> bool:
    """Whether it is a frame of Dask, whose values are not computed yet."""
    return hasattr(frame, "__dask_graph__")


def engine_of(frame: Frame | Column) -> Engine:
    """Find the engine module that a frame or column belongs to.

    Parameters
    ----------
    frame
        Frame or column of pandas or cuDF.

    Returns
    -------
    Engine
        The module.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch.features.engines.frame import engine_of
    >>> engine_of(pd.DataFrame({"a": [1]})).NAME
    'pandas'
    """
    root = type(frame).__module__.partition(".")[0]
    return load_engine("cudf" if root == "cudf" else "pandas")


@dataclass(frozen=True)
class CodedColumn:
    """A column as codes of its distinct values: what `engine.coded` gives.

    codes: int32 [N], -1 for null. counted: columns `value` and `count` as of `engine.value_counts`. order: the code
    of each row of `counted`. num_codes: codes lie below it; some may stand for no row. lookup: gives
    `engine.lookup` of so many values from the start of `counted`, or None, where it must be made from them.
    """

    codes: Array
    counted: Frame
    order: Array
    num_codes: int
    lookup: Callable[[int], Any] = lambda num_values: None

    def ids(self, vocabulary: Any, single: bool) -> Array:
        """int32 [num_codes + 1]: the id of each code, and that of null last.

        single: the vocabulary was fitted on this column alone, so that it is the start of `counted`, and only what is
        left out of it must be looked up (it is unseen, but of which bucket?).
        """
        xp, layout = engine_of(self.counted).arrays, vocabulary.layout
        found = xp.full(self.num_codes + 1, layout.null, dtype="int32")
        known = len(vocabulary.values) if single else 0
        found[self.order[:known]] = xp.arange(layout.first, layout.first + known, dtype="int32")
        if known < len(self.order):
            found[self.order[known:]] = vocabulary.encode(self.counted["value"].iloc[known:])
        return found


@dataclass(frozen=True)
class IdWord:
    """A word of a packed row that is copied, for `engine.pack`.

    ids: int32 or float32 [N]. With a table (int32 by code), `ids` are codes into it; -1 takes the table's last.
    """

    ids: Array
    place: int
    table: Array | None = None


@dataclass(frozen=True)
class FloatWord:
    """A float32 column (`column`, nulls as they are), what its nulls become, how it is scaled, and where it goes.

    std: 0 leaves it unscaled. flag_place: the word of its indicator, or -1. clip: scaled values x become
    x / sqrt(1 + (x / clip)^2); 0 for none.
    """

    column: Column
    fill: float
    mean: float
    std: float
    place: int
    flag_place: int
    clip: float = 0.0

    @property
    def places(self) -> tuple[int, ...]:
        """The words that it writes."""
        return (self.place,) if self.flag_place < 0 else (self.place, self.flag_place)

    def infinity(self, scaled: bool) -> DataError:
        """What is said of an infinity before or after scaling."""
        if not scaled:
            return DataError.infinity(self.column.name)
        return DataError(
            f"column {self.column.name!r}: scaled by mean {self.mean} and deviation {self.std}, a value leaves "
            "float32. Clip the column or take its logarithm before this stage."
        )


def counted_rows(frame: Any, weight: str | None) -> Any:
    """The rows whose value of the column `weight` is above 0; all where it is None."""
    if weight is None:
        return frame
    above = frame[weight] > 0
    return frame if bool(above.all()) else frame[above]


def require_every_word(num_words: int, ids: Sequence[IdWord], floats: Sequence[FloatWord]) -> None:
    """Raise `ValueError` unless each word of a row is written once; one that is not would be whatever memory held."""
    places = sorted([*(word.place for word in ids), *(place for word in floats for place in word.places)])
    if places != list(range(num_words)):
        raise ValueError(f"pack: a row has {num_words} words, and those that are written are {places}.")
