"""Errors that a user of `features` can mend: each names the place, what was found, and what to do."""

import difflib
import errno
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any, TypeGuard

SEPARATORS = (",", ";", "\t", "|")
MOST_MEANT, MOST_COMPARED = 3, 10_000  # names that are looked for, and pairs of names: beyond, it takes seconds
# Whatever reading a damaged or malicious file may raise in the libraries that read it.
UNREADABLE = (
    OSError,
    ValueError,
    RuntimeError,  # a RecursionError among them, of JSON that is nested without end
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    EOFError,
    SyntaxError,
)
# What the system says where the machine, a disk or a network fails, whatever the file is like.
OF_MACHINE = frozenset(
    getattr(errno, name)
    for name in (
        "EIO", "EBADMSG", "EUCLEAN", "EREMOTEIO", "ENODEV", "ENOTCONN", "ESTALE", "ETIMEDOUT", "EHOSTDOWN",
        "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "ENETRESET", "ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "ENOMEM",
        "ENOBUFS", "EMFILE", "ENFILE",
    )
    if hasattr(errno, name)  # two are Linux's own
)  # fmt: skip
DENIED = frozenset((errno.EACCES, errno.EPERM))
MAY_BE_WHOLE = "so nobody can tell whether it is whole"


class DataError(ValueError):
    """The data or a setting about it is wrong; the message says where and how to mend it."""

    @classmethod
    def missing_columns(
        cls, missing: Iterable[str], available: Iterable[str], where: str, wanted: Iterable[str] = ()
    ) -> "DataError":
        """wanted: columns that are none of those that may be meant, since they are needed themselves."""
        missing, available = list(missing), list(available)
        needed = set(wanted)
        others = [str(name) for name in dict.fromkeys(available) if name not in needed]
        few = len(missing) * len(others) <= MOST_COMPARED
        meant = ", ".join(_nearest(map(str, missing[:MOST_MEANT]), others) if few else ())
        blanks = {str(name).strip() for name in available} - set(map(str, available))
        hint = "Rename the column in the input or correct the configuration."
        if sign := _separator(missing, available):
            hint = (
                f"The header is one name, as its fields are separated by {sign!r}. Set separator: {sign!r} "
                "(features.separator), or write the file as the configuration says."
            )
        elif blanks & set(map(str, missing)):
            hint = "Some names have blanks at their edges. Where one stands after each comma, set separator: ', '."
        elif {_composed(name) for name in missing} & {_composed(name) for name in others}:
            hint = (
                "Some of them look alike and are not: in the one an accented letter is one character, in the other a "
                "letter and a mark (Unicode's NFC and NFD). Give both one form, in Python by "
                "frame.rename(columns=lambda name: unicodedata.normalize('NFC', name))."
            )
        return cls(
            f"{where}: column(s) {', '.join(map(repr, missing))} not found. "
            f"Columns there: {', '.join(map(repr, available))}.{f' Did you mean {meant}?' if meant else ''} {hint}"
        )

    @classmethod
    def no_frame(cls, found: object, where: str) -> "DataError":
        hint = " Collect it first." if hasattr(found, "collect") else ""
        if hasattr(found, "__dask_graph__"):
            hint = " Of Dask compute it first, frame.compute(), or call this for each part: frame.map_partitions(...)."
        if type(found).__name__ == "Series":
            hint = " Make a frame of it: frame[['price']] of one column, frame.iloc[[0]] of one row."
        if isinstance(found, dict | list):
            hint = " Make a frame of it: pandas.DataFrame([row]) of one row, pandas.DataFrame(columns) of columns."
        if isinstance(found, str | PathLike):
            hint = " Read it first: pandas.read_csv(path), pandas.read_parquet(path)."
        return cls(
            f"{where}: expected a data frame of pandas, Polars or cuDF, or an Arrow table; found "
            f"{type(found).__name__}.{hint}"
        )

    @classmethod
    def strange_name(cls, name: object, where: str) -> "DataError":
        return cls(f"{where}: names of columns are text, found {name!r}. Rename it: frame.columns = [...].")

    @classmethod
    def infinity(cls, column: str) -> "DataError":
        return cls(
            f"column {column!r} holds an infinity or a number beyond float32 (3.4e38). Clip it or make it null before "
            "this stage."
        )


def _separator(missing: Sequence[str], available: Sequence[str]) -> str:
    """The sign that parts the one name of a header into names, some of which are missing; empty where there is none."""
    if len(available) != 1:
        return ""
    header = str(available[0])
    parts = {sign: {part.strip(' "') for part in header.split(sign)} for sign in SEPARATORS if sign in header}
    return next((sign for sign, names in parts.items() if names.intersection(map(str, missing))), "")


class WrongTextError(DataError):
    """Text stands in a column where a number belongs.

    Parameters
    ----------
    where
        Who asks, or the file and the line.
    column, text
        Which.
    what
        What is wrong, and what to do.
    """

    def __init__(self, where: str, column: str, text: str, what: str) -> None:
        super().__init__(f"{where}: column {column!r} {what}")
        self.column, self.text, self.what = column, text, what


class MissingCodeError(DataError):
    """An operator or a function of a user is named, and no file that registers it was imported."""


def is_of_system(error: BaseException) -> TypeGuard[OSError]:
    """Whether the system does not give a file, which may be whole: no permission, too many open files, a disk or a
    network that fails."""
    return isinstance(error, OSError) and (
        error.errno in {errno.EROFS, *DENIED, *OF_MACHINE} or isinstance(error, TimeoutError | ConnectionError)
    )


def raise_of_system(error: BaseException, what: str) -> None:
    """Raise anew what the system said where something saved was read, with its name; do nothing where the error is of
    another kind, as of what is damaged. what: for messages, such as `bundle FOLDER`."""
    if not is_of_system(error):
        return
    if MAY_BE_WHOLE in str(error):  # by this function
        raise error
    raise OSError(
        error.errno or errno.EIO,
        f"{what}: {error.filename or 'a file'} cannot be read ({_said(error)}), {MAY_BE_WHOLE}. Nothing was changed; "
        "mend what the system says and run again.",
    ) from error


def raise_of_machine(error: BaseException, path: str) -> None:
    """`raise_of_system` at a raw file, which somebody else may mend or move away."""
    if not is_of_system(error):
        return
    said = _said(error)
    if said.startswith(f"input {path}:"):  # by this function
        raise error
    mend = "mend the disk, the network or the limit of open files"
    if error.errno == errno.ENOMEM:
        mend = "free memory or give the process more"
    if error.errno in DENIED:
        mend = "let this user read it"
    raise OSError(
        error.errno or errno.EIO,
        f"input {path}: {said}. The file may be good: {mend} and run again; "
        "where this stays, copy the file from elsewhere or move it away.",
    ) from error


def _said(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def require_columns(frame: Any, columns: Iterable[str], where: str) -> None:
    """Raise `DataError` naming every column of `columns` that `frame` lacks or holds more than once."""
    if not hasattr(frame, "columns"):
        raise DataError.no_frame(frame, where)
    there, wanted = list(frame.columns), list(columns)
    counts = Counter(there)
    missing = [name for name in wanted if name not in counts]
    if missing:
        raise DataError.missing_columns(missing, there, where, wanted)
    twice = [name for name in dict.fromkeys(wanted) if counts[name] > 1]
    if twice:
        raise DataError(
            f"{where}: column(s) {', '.join(map(repr, twice))} are there more than once. Rename or drop the others."
        )


def _composed(name: object) -> str:
    """The one form of a name whose accented letters can be written in two ways."""
    return unicodedata.normalize("NFC", str(name))


def repeated(names: Iterable[str]) -> list[str]:
    """Those that come more than once, each once, in the order in which they come first.

    >>> repeated(["b", "a", "b", "a", "c"])
    ['b', 'a']
    """
    return [name for name, count in Counter(names).items() if count > 1]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'price'?` of the nearest known name, or nothing."""
    close = near(name, known)
    return f" Did you mean {close}?" if close else ""


def near(name: str, known: Iterable[str]) -> str:
    """The nearest known name in quotes, whatever the case and the blanks around it; empty where none is near.

    >>> near("Price ", ["prize", "price", "city"]), near("age", ["city"])
    ("'price'", '')
    """
    return next(iter(_nearest([name], known)), "")


def _nearest(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """What `near` gives of each name, where it gives one; each once."""
    by_text = {text.strip().casefold(): text for text in known}
    close = (difflib.get_close_matches(name.strip().casefold(), by_text, n=1) for name in names)
    return list(dict.fromkeys(repr(by_text[found[0]]) for found in close if found))


def strict_json(text: str, where: str) -> Any:
    """The value of a JSON text; NaN, an infinity and a name given twice are `DataError`."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(items)) != len(items):
            raise DataError(f"{where} gives a name twice.")
        return dict(items)

    def constant(word: str) -> Any:
        raise DataError(f"{where} holds {word}, which is no number to compute with. Fit it again.")

    return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
