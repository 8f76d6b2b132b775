"""Synthetic interactions in the formats of MovieLens and Frappe, with planted preferences, for tests and machines
without a network.

`python -m gigabatch.features.synthetic.movielens --format ml-1m --users 1000 --out data/movielens` writes the files of
that format: `ml-100k`, `ml-1m`, `ml-latest` (see `gigabatch.features.recipes.movielens.files`) or `frappe` (frappe.csv,
tab-separated).

Users and items have latent factors. What a user takes up follows the items' popularity and the product of the factors;
ratings follow the product too. A movie's factors follow its genres and a group of about a dozen movies that it belongs
to, a user's their age group and gender. Popularity has the tail of Zipf's law, what users take up a log-normal number
of ratings, and their tastes drift from one sitting to the next. So popularity explains little of what comes next: over
the full catalogue it has about half of the NDCG@10 of a linear item-item model (`python -m benchmarks.recommenders`).
`MovieShape` sets how much. In Frappe each daytime and each kind of weather has factors of its own, so that an app's
odds depend on them; the other contexts say nothing.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd

from gigabatch.features.errors import DataError
from gigabatch.features.recipes.movielens.files import AGE_GROUPS, FLAGS_100K, FORMATS

MOVIE_FACTORS = 16
NUM_FACTORS = 8  # of apps and their users
MOVIES_PER_GROUP = 12
FEWEST_RATINGS = 20  # of a user, as GroupLens promises for these data sets
FEWEST_ITEMS = 500  # unless asked for: 99 negatives must be left that a user has not taken up
BLOCK_USERS = 256
GENRES = FLAGS_100K[1:]
OCCUPATIONS = ("student", "educator", "engineer", "artist", "writer", "none", "other")
# With what breaks careless readers: colons, commas, quotes, letters that UTF-8 and Latin-1 write differently.
TITLES = ("Café Noir", "Mission: Improbable", "Señor, the Movie", 'The "Best" Day', "Part I::Part II", "Night Train")
START, YEAR = 956_700_000, 31_536_000  # seconds since 1970: April 2000, as ml-1m begins
BETWEEN_SITTINGS = YEAR // 4  # longer than a sitting lasts
CONTEXTS = {
    "daytime": ("sunrise", "morning", "noon", "afternoon", "evening", "sunset", "night"),
    "weekday": ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    "homework": ("unknown", "home", "work"),
    "weather": ("unknown", "sunny", "cloudy", "foggy", "windy", "drizzle", "rainy", "stormy", "snowy"),
}
PLANTED = ("daytime", "weather")
COUNTRIES = ("Spain", "United States", "Germany", "Japan", "unknown")
FRAPPE = (
    "user", "item", "cnt", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city",
)  # fmt: skip


@dataclass(frozen=True)
class MovieShape:
    """Set what decides about the next movie that a user takes up.

    Parameters
    ----------
    zipf
        Exponent of the movies' popularity by rank, at least 0: the movie of rank r is taken up in proportion to
        (r + 10) ** -zipf. The 10 bends the head, as the most popular movies of MovieLens are about equally popular.
    taste
        Log-odds of a movie for one deviation of how well it suits the user, at least 0; at 0 popularity decides alone.
    drift
        Angle in degrees, from 0 to 90, by which the part of a user's taste that is neither age nor gender turns from
        the first sitting to the last: at 0 tastes stay, at 90 nothing of that part is left at the end.
    sittings
        Into how many sittings a user's ratings fall, at least 1; tastes drift between them.

    Raises
    ------
    DataError
        For a value that cannot be.

    Examples
    --------
    >>> from gigabatch.features.synthetic.movielens import MovieShape
    >>> MovieShape(drift=0).sittings
    4
    """

    zipf: float = 1.0
    taste: float = 2.5
    drift: float = 45.0
    sittings: int = 4

    def __post_init__(self) -> None:
        for name, most in (("zipf", math.inf), ("taste", math.inf), ("drift", 90.0)):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= most):
                bound = "" if math.isinf(most) else f" and at most {most:g}"
                raise DataError(f"synthetic data: {name} must be a number of at least 0{bound}, found {value}.")
        if type(self.sittings) is not int or self.sittings < 1:
            raise DataError(f"synthetic data: sittings must be a whole number from 1, found {self.sittings!r}.")

    def moments(self) -> np.ndarray:
        """float64 [sittings], the place of each sitting between a user's first, 0, and last, 1."""
        return np.linspace(0.0, 1.0, self.sittings)


@dataclass(frozen=True)
class MovieWorld:
    """U users and I movies, D numbers of a taste. item_ids: [I] ascending, with gaps. genres: bool [I, 18]. groups: int
    [I], which movies go together beyond their genres. ages: [U] of `AGE_GROUPS`. male: bool [U]. popularity: [I], log
    odds. item_factors [I, D], of mean square 1. lasting [U, D]: what stays of the users' tastes; first and later
    [U, D]: what drifts, from the one towards the other."""

    item_ids: np.ndarray
    genres: np.ndarray
    groups: np.ndarray
    ages: np.ndarray
    male: np.ndarray
    popularity: np.ndarray
    item_factors: np.ndarray
    lasting: np.ndarray
    first: np.ndarray
    later: np.ndarray
    seed: int
    shape: MovieShape = MovieShape()

    @classmethod
    def make(cls, num_users: int, num_items: int, seed: int, shape: MovieShape | None = None) -> MovieWorld:
        shape = MovieShape() if shape is None else shape
        rng, width = np.random.default_rng([seed, 0]), MOVIE_FACTORS
        genres = rng.random((num_items, len(GENRES))) < 0.08
        genres[np.arange(num_items), rng.integers(len(GENRES), size=num_items)] = True
        of_genre = rng.normal(size=(len(GENRES), width))
        groups = rng.integers(max(num_items // MOVIES_PER_GROUP, 2), size=num_items)
        of_group = rng.normal(size=(int(groups.max()) + 1, width))
        by_genre = genres @ of_genre / np.sqrt(genres.sum(1, keepdims=True))
        items = 0.6 * by_genre + 0.8 * of_group[groups] + rng.normal(0, 0.4, (num_items, width))
        items /= np.sqrt(np.square(items).mean())
        ages, male = rng.integers(len(AGE_GROUPS), size=num_users), rng.random(num_users) < 0.7
        of_age, of_gender = rng.normal(size=(len(AGE_GROUPS), width)), rng.normal(size=(2, width))
        lasting = 0.5 * (of_age[ages] + of_gender[male.astype(int)])
        first, later = rng.normal(0, 0.7, (2, num_users, width))
        ids = np.sort(rng.choice(num_items + num_items // 5, num_items, replace=False)) + 1
        popularity = -shape.zipf * np.log(10 + rng.permutation(num_items))
        ages = np.array(AGE_GROUPS)[ages]
        return cls(ids, genres, groups, ages, male, popularity, items, lasting, first, later, seed, shape)

    def affinity(self, users: slice, moment: float = 0.5) -> np.ndarray:
        """[users, I]: how well each movie suits each user, of mean 0 and a deviation of about 1, at a moment between
        the user's first sitting, 0, and last, 1."""
        angle = np.deg2rad(self.shape.drift) * moment
        tastes = self.lasting[users] + np.cos(angle) * self.first[users] + np.sin(angle) * self.later[users]
        return tastes @ self.item_factors.T / np.sqrt(MOVIE_FACTORS)

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """user number, item number, rating (1 to 5) and time of the ratings of some users after another."""
        num_users, num_items = len(self.ages), len(self.item_ids)
        for start in range(0, num_users, BLOCK_USERS):
            rng = np.random.default_rng([self.seed, 1, start])
            block = slice(start, min(start + BLOCK_USERS, num_users))
            size = block.stop - start
            # With the 3,706 movies of ml-1m nearly its median of 96 ratings a user.
            counts = FEWEST_RATINGS + (max(num_items // 50, 5) * rng.lognormal(0, 1, size)).astype(int)
            counts = np.minimum(counts, max(num_items // 4, min(FEWEST_RATINGS, num_items)))
            begin = START + rng.integers(YEAR, size=size)
            taken = np.zeros((size, num_items), bool)
            found = []
            for number, moment in enumerate(self.shape.moments()):
                affinity = self.affinity(block, moment)
                clocks = _ringing(rng, self.popularity + self.shape.taste * affinity)
                clocks[taken] = np.inf
                wanted = counts * (number + 1) // self.shape.sittings - counts * number // self.shape.sittings
                user, place = np.nonzero(np.arange(num_items) < wanted[:, None])
                item = clocks.argsort(axis=1)[user, place]
                taken[user, item] = True
                rating = np.rint(2.7 + 0.9 * affinity[user, item] + rng.normal(0, 0.6, len(item)))
                # Within a sitting the order has nothing to do with the liking; some ratings are within one second.
                time = begin[user] + number * BETWEEN_SITTINGS + rng.integers(30 * counts.max(), size=len(item))
                found.append((user + start, item, np.clip(rating, 1, 5).astype(int), time))
            user, item, rating, time = map(np.concatenate, zip(*found, strict=True))
            order = np.argsort(user, kind="stable")
            yield user[order], item[order], rating[order], time[order]


def _ringing(rng: np.random.Generator, log_odds: np.ndarray) -> np.ndarray:
    """float32, when the exponential clock of each column rings: the order in a row is a draw without replacement by
    these odds."""
    return rng.standard_exponential(log_odds.shape, np.float32) / np.exp(log_odds.astype(np.float32))


def _popularity(rng: np.random.Generator, num_items: int) -> np.ndarray:
    """Log of a power law over apps, in random order."""
    return -0.8 * np.log(1 + rng.permutation(num_items))


def write_movielens(
    folder: Path | str,
    kind: str,
    num_users: int,
    num_items: int | None = None,
    seed: int = 7,
    shape: MovieShape | None = None,
) -> int:
    """Write the files of the format `kind` and return the number of ratings. num_items: by default half as many as
    users, at least 500. The same arguments give the same interactions in every format, in the same order."""
    if kind not in FORMATS:
        raise DataError(f"write_movielens: unknown format {kind!r}. Known: {', '.join(FORMATS)}.")
    num_items = _checked_sizes(num_users, num_items, max(FEWEST_ITEMS, num_users // 2))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    world = MovieWorld.make(num_users, num_items, seed, shape)
    separator, names = {"ml-100k": ("\t", None), "ml-1m": ("::", None)}.get(
        kind, (",", "userId,movieId,rating,timestamp")
    )
    ratings = 0
    with open(folder / FORMATS[kind].ratings, "w", newline="\n") as file:
        if names:
            file.write(names + "\n")
        for user, item, rating, time in world.blocks():
            rows = zip((user + 1).tolist(), world.item_ids[item].tolist(), rating.tolist(), time.tolist(), strict=True)
            file.writelines(separator.join(map(str, row)) + "\n" for row in rows)
            ratings += len(user)
    {"ml-100k": _write_100k, "ml-1m": _write_1m, "ml-latest": _write_latest}[kind](folder, world)
    return ratings


def _titles(world: MovieWorld) -> list[str]:
    return [f"{TITLES[n % len(TITLES)]} {n} ({1950 + n % 50})" for n in range(len(world.item_ids))]


def _genre_names(world: MovieWorld) -> list[list[str]]:
    return [[GENRES[k] for k in np.flatnonzero(has)] for has in world.genres]


def _write_100k(folder: Path, world: MovieWorld) -> None:
    with open(folder / "u.item", "w", encoding="latin-1", newline="\n") as file:
        for item, title, has in zip(world.item_ids, _titles(world), world.genres, strict=True):
            flags = "|".join("01"[flag] for flag in (0, *has.astype(int)))
            file.write(f"{item}|{title}|01-Jan-1995||http://example.org/{item}|{flags}\n")
    with open(folder / "u.user", "w", newline="\n") as file:
        for n, (age, male) in enumerate(zip(world.ages.tolist(), world.male, strict=True)):
            years = 7 if age == 1 else age + n % 5  # within the age group
            file.write(f"{n + 1}|{years}|{'FM'[int(male)]}|{OCCUPATIONS[n % len(OCCUPATIONS)]}|00000\n")


def _write_1m(folder: Path, world: MovieWorld) -> None:
    with open(folder / "movies.dat", "w", encoding="latin-1", newline="\n") as file:
        for item, title, genres in zip(world.item_ids, _titles(world), _genre_names(world), strict=True):
            file.write(f"{item}::{title}::{'|'.join(genres)}\n")
    with open(folder / "users.dat", "w", newline="\n") as file:
        for n, (age, male) in enumerate(zip(world.ages.tolist(), world.male, strict=True)):
            file.write(f"{n + 1}::{'FM'[int(male)]}::{age}::{n % len(OCCUPATIONS)}::00000\n")


def _write_latest(folder: Path, world: MovieWorld) -> None:
    with open(folder / "movies.csv", "w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\r\n")
        lines.writerow(["movieId", "title", "genres"])
        for item, title, genres in zip(world.item_ids, _titles(world), _genre_names(world), strict=True):
            lines.writerow([item, title, "|".join(genres).replace("Children's", "Children")])


@dataclass(frozen=True)
class AppWorld:
    """U users and I apps. popularity: [I]; user_factors [U, D], item_factors [I, D]; context_factors: [values, D] for
    each name of `PLANTED`, met by context_items [I, D]."""

    popularity: np.ndarray
    user_factors: np.ndarray
    item_factors: np.ndarray
    context_factors: dict[str, np.ndarray]
    context_items: np.ndarray
    seed: int

    @classmethod
    def make(cls, num_users: int, num_items: int, seed: int) -> AppWorld:
        rng = np.random.default_rng([seed, 2])
        users, items, with_context = (rng.normal(size=(n, NUM_FACTORS)) for n in (num_users, num_items, num_items))
        contexts = {name: rng.normal(size=(len(CONTEXTS[name]), NUM_FACTORS)) for name in PLANTED}
        return cls(_popularity(rng, num_items), users, items, contexts, with_context, seed)

    def scores(self, users: np.ndarray, contexts: dict[str, np.ndarray]) -> np.ndarray:
        """[rows, I]: log-odds of each app for users [rows] in these contexts, numbers [rows] of values by name."""
        affinity = self.user_factors[users] @ self.item_factors.T
        suits = sum(self.context_factors[name][contexts[name]] for name in PLANTED) @ self.context_items.T
        return self.popularity + (1.5 * affinity + 1.5 * suits) / np.sqrt(NUM_FACTORS)

    def rows(self, rows_per_user: int) -> Iterator[dict[str, np.ndarray]]:
        """Numbers of user, item and each of `CONTEXTS`, user block after block."""
        num_users = len(self.user_factors)
        for start in range(0, num_users, BLOCK_USERS):
            rng = np.random.default_rng([self.seed, 3, start])
            counts = 3 + rng.poisson(rows_per_user - 3, min(BLOCK_USERS, num_users - start))
            users = np.repeat(np.arange(start, start + len(counts)), counts)
            contexts = {name: rng.integers(len(values), size=len(users)) for name, values in CONTEXTS.items()}
            items = np.empty(len(users), np.int64)
            for piece in np.array_split(np.arange(len(users)), len(users) // 4096 + 1):
                odds = self.scores(users[piece], {name: values[piece] for name, values in contexts.items()})
                items[piece] = _ringing(rng, odds).argmin(1)
            yield {"user": users, "item": items, **contexts}


def write_frappe(
    folder: Path | str, num_users: int, num_items: int | None = None, rows_per_user: int = 100, seed: int = 7
) -> int:
    """Write frappe.csv and return its number of rows. num_items: by default four times as many as users, at least 500.
    rows_per_user: its mean, at least 3. Uses of an app in equal contexts are one row; `cnt` counts them."""
    num_items = _checked_sizes(num_users, num_items, max(FEWEST_ITEMS, 4 * num_users))
    if rows_per_user < 3:
        raise DataError(f"write_frappe: rows_per_user must be at least 3, found {rows_per_user}.")
    world = AppWorld.make(num_users, num_items, seed)
    drawn = [pd.DataFrame(rows) for rows in world.rows(rows_per_user)]
    found = pd.concat(drawn).groupby(["user", "item", *CONTEXTS], sort=True).size().rename("cnt").reset_index()
    for name, values in CONTEXTS.items():
        found[name] = np.array(values)[found[name]]
    found["isweekend"] = np.where(found["weekday"].isin(["saturday", "sunday"]), "weekend", "workday")
    found["cost"] = np.where(found["item"] % 5 == 0, "paid", "free")
    found["country"] = np.array(COUNTRIES)[found["user"] % len(COUNTRIES)]
    found["city"] = found["user"] % 97
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    found[list(FRAPPE)].to_csv(folder / "frappe.csv", sep="\t", index=False, lineterminator="\n")
    return len(found)


def _checked_sizes(num_users: int, num_items: int | None, usual: int) -> int:
    """The number of items; refuses sizes without sense."""
    num_items = usual if num_items is None else num_items
    if num_users < 1 or num_items < 2:
        raise DataError(f"synthetic data: at least 1 user and 2 items, found {num_users} and {num_items}.")
    return num_items


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", choices=(*FORMATS, "frappe"), required=True)
    parser.add_argument("--users", type=int, required=True)
    parser.add_argument("--items", type=int, help="by default half as many as users; frappe: four times as many")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=7)
    usual = MovieShape()
    for field in fields(MovieShape):
        value = getattr(usual, field.name)
        parser.add_argument(
            f"--{field.name}", type=type(value), default=value, help="of MovieShape, not frappe; default: %(default)s"
        )
    given = parser.parse_args(arguments)
    shape = MovieShape(**{field.name: getattr(given, field.name) for field in fields(MovieShape)})
    if given.format == "frappe":
        if shape != usual:
            raise DataError(
                "synthetic data: zipf, taste, drift and sittings are of the MovieLens formats, not of frappe. Leave "
                "them out."
            )
        rows = write_frappe(given.out, given.users, given.items, seed=given.seed)
    else:
        rows = write_movielens(given.out, given.format, given.users, given.items, given.seed, shape)
    print(f"{given.out}: {rows:,} interactions of {given.users:,} users in the format {given.format}")


if __name__ == "__main__":
    main()
