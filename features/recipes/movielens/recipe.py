"""MovieLens, from the files as they are downloaded: which movie comes next, or will a rating be high?

Task `ranking` is the set-up of neural collaborative filtering (He et al. 2017, arXiv 1708.05031): every rating is a
positive, whatever it says, and each user's last one in time is the test. Task `rating` tells ratings of 4 and above
from lower ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.reading.blocks import about_rows
from gigabatch.features.reading.sources import expand, kept_files, read_files, same_file
from gigabatch.features.recipes.base import FeatureParts, FeatureTables, RawFiles, Recipe
from gigabatch.features.recipes.interactions.histories import (
    newest_histories,
    scored_histories,
    scored_types,
)
from gigabatch.features.recipes.interactions.layout import Layout
from gigabatch.features.recipes.interactions.parts import write_user_parts
from gigabatch.features.recipes.interactions.side_tables import SideColumns
from gigabatch.features.recipes.interactions.splits import (
    ROW,
    InteractionRules,
    interaction_tables,
    positives,
)
from gigabatch.features.recipes.movielens.files import (
    FORMATS,
    ITEM,
    RATING,
    TIME,
    USER,
    find_format,
    rating_blocks,
    raw_ratings,
    read_demographics,
    read_genres,
    read_ratings,
)

LAYOUT = Layout(USER, ITEM, {USER: "int64", ITEM: "int64"}, time=TIME, rating=RATING, time_unit="s")


@dataclass(frozen=True)
class MovieLensSettings(InteractionRules):
    """Set which MovieLens files are read; what `features` may hold under `recipe: movielens` with `InteractionRules`.

    Parameters
    ----------
    path
        Folder of the unpacked files.
    format
        `ml-100k`, `ml-1m` (also ml-10m) or `ml-latest` (also ml-20m and later); `auto` finds it by the names of the
        files.
    genres
        Whether each genre is a feature of the item, 0 or 1.
    demographics
        Whether age group (years), gender and occupation are features of the user (ml-100k and ml-1m). Without both, a
        row is its user and its item, as in the published comparisons.

    Raises
    ------
    DataError
        If the format is unknown.

    Examples
    --------
    >>> from gigabatch.features.recipes.movielens.recipe import MovieLensSettings
    >>> MovieLensSettings(path="data/ml-1m", genres=True).way
    'leave_one_out'
    """

    path: str = "data/movielens"
    format: str = "auto"
    genres: bool = False
    demographics: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format not in ("auto", *FORMATS):
            raise DataError(f"movielens: format is {self.format!r}. Known: auto, {', '.join(FORMATS)}.")


class MovieLensRecipe(Recipe):
    """Read MovieLens as it is downloaded: user_id, item_id, what is asked for, target, timestamp and row_number."""

    Settings = MovieLensSettings
    settings: MovieLensSettings

    @property
    def folder(self) -> str:
        return self.settings.path.rstrip("/")

    @property
    def format(self) -> str:
        """Name of the format of the files that are there."""
        return find_format(self.folder) if self.settings.format == "auto" else self.settings.format

    def inputs(self) -> list[str]:
        files = FORMATS[self.format]
        names = [files.ratings]
        names += [files.items] if self.settings.genres else []
        names += [files.users] if self.settings.demographics and files.users else []
        found = [path for name in names for path in expand(f"{self.folder}/{name}")]
        if out := [path for path in found if same_file(path) in map(same_file, self.leave_out)]:
            raise DataError(
                f"movielens: {out[0]} is to be left out, but the recipe reads fixed files and cannot do without one. "
                "Correct it, or take it back (gigabatch contract --accept FILE)."
            )
        return found

    def raw_files(self) -> tuple[RawFiles, ...]:
        return (raw_ratings(self.folder, self.format),)

    def build(self, engine: str) -> FeatureTables:
        frame = self._read(engine)
        self.report("read")
        return interaction_tables(frame, LAYOUT, self.settings, self._sides(engine))

    def write_parts(
        self, engine: str, folder: Path, rows_per_part: int, run: Callable[[Callable[[Any], Any], Sequence[Any]], list]
    ) -> FeatureParts | None:
        """As `write_user_parts`, where there are more than `rows_per_part` ratings."""
        about = sum(map(about_rows, self.inputs()[:1]))

        def blocks() -> Iterator[tuple[Any, Layout]]:
            first_row = 0
            for frame in rating_blocks(engine, self.folder, self.format, self.cache, rows_per_part):
                yield self._numbered(engine, frame, first_row), LAYOUT
                first_row += len(frame)

        rows = about, rows_per_part
        return write_user_parts(self, engine, folder, rows, None, blocks, self.settings, lambda: self._sides(engine))

    def _read(self, engine: str) -> Any:
        """All ratings, with `row_number`, their place in the file."""
        return self._numbered(engine, read_ratings(engine, self.folder, self.format, self.cache), 0)

    def _numbered(self, engine: str, frame: Any, first_row: int) -> Any:
        if bool(frame[RATING].isna().any()):
            raise DataError(f"movielens: {self.folder}/{FORMATS[self.format].ratings} holds rows without a rating.")
        frame[ROW] = load_engine(engine).arrays.arange(first_row, first_row + len(frame))
        return frame

    def raw_rows(self, engine: str, pattern: str, columns: Sequence[str]) -> Any:
        """Rows to be scored from CSV or Parquet files with the columns user_id and item_id; histories, where the files
        have none, come from the ratings, as of the rows' timestamp where there is one."""
        history = self.settings.history
        further = scored_types(engine, kept_files(pattern), columns, LAYOUT, history)
        frame = read_files(engine, pattern, {**LAYOUT.categorical} | further.types, cache=self.cache)
        frame[ROW] = load_engine(engine).arrays.arange(len(frame))
        for side in self._sides(engine).values():
            frame, _ = side.attach(frame)
        if not further.looked_up:
            return frame
        assert history is not None
        liked = positives(self._read(engine), LAYOUT, self.settings)
        return scored_histories(frame, pattern, liked, LAYOUT, history, ROW)

    def with_newest_histories(self, engine: str, users: Any) -> Any:
        """Rows of users with the last positives of all ratings, the newest of which the users' rows are about."""
        history = self.settings.history
        if history is None:
            return users
        return newest_histories(users, positives(self._read(engine), LAYOUT, self.settings), LAYOUT, history, ROW)

    def _sides(self, engine: str) -> dict[str, SideColumns]:
        kind, sides = self.format, {}
        if self.settings.demographics:
            users = read_demographics(engine, self.folder, kind)
            types = {"age": "int64", "gender": "string", "occupation": "string"}
            sides["user"] = SideColumns.of(f"{self.folder}/{FORMATS[kind].users}", users, USER, types)
        if self.settings.genres:
            items = read_genres(engine, self.folder, kind, self.cache)
            sides["item"] = SideColumns.of(f"{self.folder}/{FORMATS[kind].items}", items, ITEM, {}, flags=("genre",))
        return sides
