"""MovieLens files as GroupLens distributes them, in any of their formats, read to the same columns.

ml-100k               u.data (tab-separated), u.item and u.user (parted by |)
ml-1m, ml-10m         ratings.dat, movies.dat, users.dat (not in ml-10m), parted by ::
ml-latest, ml-latest-small, ml-20m, ml-25m, ml-32m
                      ratings.csv, movies.csv
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import fsspec

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import UNREADABLE, DataError, raise_of_machine
from gigabatch.features.reading.blocks import file_frames
from gigabatch.features.reading.sources import FileCache, expand, read_files
from gigabatch.features.recipes.base import RawFiles

USER, ITEM, RATING, TIME = "user_id", "item_id", "rating", "timestamp"
RATINGS = {USER: "int64", ITEM: "int64", RATING: "float64", TIME: "int64"}
WHERE_TO_GET = "https://grouplens.org/datasets/movielens/"
BOM = b"\xef\xbb\xbf"
MOST_DIGITS = 18  # of an id; int64 holds them all

# The flags that end a line of u.item, in their order (u.genre).
FLAGS_100K = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
NO_GENRE = ("", "unknown", "(no genres listed)")
OTHER_NAMES = {"Children's": "Children"}  # as ml-20m and later write it
AGE_GROUPS = (1, 18, 25, 35, 45, 50, 56)  # the youngest of each group of users.dat; u.user has ages in years


@dataclass(frozen=True)
class Format:
    """Names of the files. users is None where nothing is known of users."""

    ratings: str
    items: str
    users: str | None


FORMATS = {
    "ml-100k": Format("u.data", "u.item", "u.user"),
    "ml-1m": Format("ratings.dat", "movies.dat", "users.dat"),
    "ml-latest": Format("ratings.csv", "movies.csv", None),
}


def find_format(folder: str) -> str:
    """The name in `FORMATS` of the ratings file that is in the folder; `DataError` for none and for several."""
    found = [name for name, files in FORMATS.items() if _is_there(f"{folder}/{files.ratings}")]
    if len(found) == 1:
        return found[0]
    expected = "; ".join(f"{name}: {files.ratings}, {files.items}" for name, files in FORMATS.items())
    if found:
        raise DataError(
            f"movielens: {folder} holds ratings in several formats ({', '.join(found)}). Set format to one of them."
        )
    raise DataError(
        f"movielens: {folder} holds no MovieLens ratings. Expected files, by format: {expected}. Get them from "
        f"{WHERE_TO_GET} and name the unpacked folder as path, or write synthetic ones: python -m "
        "gigabatch.features.synthetic.movielens --format ml-1m --users 1000 --out FOLDER."
    )


def _is_there(path: str) -> bool:
    try:
        return bool(expand(path))
    except DataError:
        return False


def read_ratings(engine: str, folder: str, kind: str, cache: FileCache | None) -> Any:
    """user_id, item_id and timestamp (seconds since 1970), int64, and rating, float64; in the order of the file."""
    how = raw_ratings(folder, kind)
    return _as_ratings(how.read(engine, how.pattern, cache), how)


def rating_blocks(engine: str, folder: str, kind: str, cache: FileCache | None, rows: int) -> Iterator[Any]:
    """What `read_ratings` gives, about `rows` rows at a time."""
    how = raw_ratings(folder, kind)
    for path in expand(how.pattern):
        for frame in file_frames(
            path, how.dtypes, rows, partial(how.read, engine, path, cache), cache, {}, null_values=how.null_values,
            separator=how.separator, names=how.names,
        ):  # fmt: skip
            yield _as_ratings(frame, how)


def _as_ratings(frame: Any, how: RawFiles) -> Any:
    """Rows of a file of ratings under the names of `RATINGS`."""
    if how.names is None:
        return frame.rename(columns=dict(zip(how.dtypes, RATINGS, strict=True)))
    between = [name for name in frame.columns if name not in RATINGS]
    if any(bool(frame[name].notna().any()) for name in between):
        raise DataError(
            f"input {how.pattern}: not every row is of the form UserID::MovieID::Rating::Timestamp. Repair it."
        )
    return frame.drop(columns=between)


def raw_ratings(folder: str, kind: str) -> RawFiles:
    """How the file of ratings is read: its columns are those of `RATINGS` in their order, then empty ones."""
    path = f"{folder}/{FORMATS[kind].ratings}"
    names = ("userId", "movieId", "rating", "timestamp") if kind == "ml-latest" else tuple(RATINGS)
    roles = dict(zip(names, ("category", "category", "label", "time"), strict=True))
    dtypes = dict(zip(names, RATINGS.values(), strict=True))
    more: dict[str, Any] = {"tasks": {names[2]: "regression"}, "unit": "s", "fixed": True, "filled": frozenset(names)}
    if kind == "ml-100k":
        return RawFiles("ratings", path, dtypes, roles, separator="\t", names=tuple(RATINGS), **more)
    if kind == "ml-latest":
        return RawFiles("ratings", path, dtypes, roles, **more)
    # Readers are fast for separators of one character only: between two colons lies an empty column.
    between = ("between_1", "between_2", "between_3")
    columns = (USER, between[0], ITEM, between[1], RATING, between[2], TIME)
    dtypes |= dict.fromkeys(between, "string")
    return RawFiles("ratings", path, dtypes, roles, separator=":", names=columns, **more)


def read_genres(engine: str, folder: str, kind: str, cache: FileCache | None) -> Any:
    """item_id (int64) and genre: text, the movie's genres parted by `|`, under the names of ml-20m and later."""
    import pandas as pd

    path = f"{folder}/{FORMATS[kind].items}"
    module = load_engine(engine)
    if kind == "ml-latest":
        read = read_files(engine, path, {"movieId": "int64", "genres": "string"}, cache=cache)
        table = module.to_pandas(read)
        pairs = zip(table["movieId"].tolist(), table["genres"].fillna("").tolist(), strict=True)
    else:
        form, parse = ("id|title|dates|URL|19 flags", _flags) if kind == "ml-100k" else ("id::title::genres", _words)
        pairs = _records(path, form, parse)  # type: ignore[assignment]
    items, genres = zip(*((item, _same_names(text)) for item, text in pairs), strict=True)
    return module.from_pandas(pd.DataFrame({ITEM: items, "genre": genres}))


def read_demographics(engine: str, folder: str, kind: str) -> Any:
    """user_id and age (int64, the youngest of the user's age group), gender and occupation (text as in the file)."""
    import pandas as pd

    files = FORMATS[kind]
    if files.users is None:
        raise DataError(
            f"movielens: demographics are asked for, but {kind} says nothing about its users. Leave them off, or take "
            "ml-100k or ml-1m."
        )
    path = f"{folder}/{files.users}"
    form, parse = ("id|age|gender|occupation|zip", _user_100k) if kind == "ml-100k" else (
        "UserID::Gender::Age::Occupation::Zip-code", _user_1m
    )  # fmt: skip
    users, ages, genders, occupations = zip(*_records(path, form, parse), strict=True)
    return load_engine(engine).from_pandas(
        pd.DataFrame({USER: users, "age": ages, "gender": genders, "occupation": occupations})
    )


def _records(path: str, form: str, parse: Callable[[str], Any]) -> Iterator[Any]:
    """What `parse` makes of each line of a small file; `DataError` with the first line where it raises ValueError.

    Titles are Latin-1 in the files before ml-20m; what is taken from them is ASCII.
    """
    (found,) = expand(path)
    try:
        with fsspec.open(found, "rb") as file:
            content = file.read().removeprefix(BOM)
    except UNREADABLE as error:
        raise_of_machine(error, found)
        raise DataError(f"input {found}: cannot be read ({error}).") from error
    # Not str.splitlines, which also ends a line at \x85 and others that are letters or dots in titles.
    lines = [(number, line.rstrip(b"\r")) for number, line in enumerate(content.split(b"\n"), 1)]
    lines = [(number, line) for number, line in lines if line]
    if not lines:
        raise DataError(f"input {found}: the file is empty.")
    for number, line in lines:
        text = line.decode("latin-1")
        try:
            yield parse(text)
        except ValueError as error:
            raise DataError(f"input {found}: line {number} is not of the form {form}: {text[:120]!r}.") from error


def _whole(text: str) -> int:
    """Python's int() would also take 1_000, other scripts' digits and numbers beyond int64."""
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        raise ValueError("no whole number")
    return int(text)


def _flags(line: str) -> tuple[int, str]:
    first, *fields = line.split("|")
    flags = fields[-len(FLAGS_100K) :]
    if len(fields) < len(FLAGS_100K) + 1 or set(flags) - {"0", "1"}:
        raise ValueError("fields")
    return _whole(first), "|".join(name for name, flag in zip(FLAGS_100K, flags, strict=True) if flag == "1")


def _words(line: str) -> tuple[int, str]:
    first, *title, genres = line.split("::")  # a title may hold :: itself
    if not title:
        raise ValueError("fields")
    return _whole(first), genres


def _same_names(genres: str) -> str:
    return "|".join(OTHER_NAMES.get(name, name) for name in genres.split("|") if name not in NO_GENRE)


def _user_100k(line: str) -> tuple[int, int, str, str]:
    user, years, gender, occupation, _ = line.split("|")
    return _whole(user), max(age for age in AGE_GROUPS if age <= max(_whole(years), 1)), gender, occupation


def _user_1m(line: str) -> tuple[int, int, str, str]:
    user, gender, age, occupation, _ = line.split("::")
    return _whole(user), _whole(age), gender, occupation
