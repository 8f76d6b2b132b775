"""The peers of benchmarks/features.py, by hand: the flights recipe in pandas and in Polars, raw files to Parquet.

    python -m benchmarks.features_peers FORM RAW OUT

Run by the benchmark in the environment of `make bench-env`. RAW is the folder of the raw files, OUT an empty one, which
gets train.parquet, valid.parquet and test.parquet with the columns and values of our features stage; the benchmark
compares them before it takes any time. Prints one JSON line: seconds, CPU seconds and the peak of memory in bytes.

An as-of question (what was known of a row's group before the row's time) has three forms here: `pandas` joins running
sums by `merge_asof`, `pandas_search` sorts group and time as one number and searches it, as NumPy can, and `polars`
joins running sums by `join_asof`. All three subtract the row's own outcome where it was known before its time.
"""

from __future__ import annotations

import io
import json
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

NEEDED = ["dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay", "carrier", "flight",
          "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour"]  # fmt: skip
WEATHER = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]
AIRPORTS = {"SJU": (18.439, -66.002), "BQN": (18.495, -67.129), "STT": (18.337, -64.973), "PSE": (18.008, -66.563)}
SORT = ["at", "carrier", "flight", "origin", "dest", "tailnum", "sched_arr_time"]
TEXT = ["carrier", "flight_number", "tailnum", "origin", "dest", "route", "manufacturer", "model", "engine", "type"]
WHOLE = ["sched_weekday", "sched_hour", "wind_sector"]
SMOOTHED = {  # key -> the columns that make it, the values whose smoothed means are features
    "carrier": (["carrier"], ["late"]), "dest": (["dest"], ["late"]), "tailnum": (["tailnum"], ["late"]),
    "flight_number": (["flight_number"], ["late", "arr_delay"]), "origin_hour": (["origin", "hour"], ["late"]),
    "route": (["route"], ["late", "arr_delay"]),
}  # fmt: skip
WINDOWS = {  # value -> by key the minutes that a mean looks back
    "dep_delay": {"origin": (60, 180), "carrier": (180,), "carrier_origin": (120,), "route": (720,)},
    "arr_delay": {"origin": (180,), "carrier": (360,), "dest": (180, 720), "route": (1440,)},
}
KNOWN = {"dep_delay": "departed_at", "arr_delay": "landed_at", "late": "landed_at", "air_time": "landed_at"}
KEYS = {"origin": ["origin"], "carrier_origin": ["carrier", "origin"], **{k: by for k, (by, _) in SMOOTHED.items()}}
SMOOTHING = 20.0
OUTCOMES = {"late", "arr_delay", "dep_delay", "air_time"}
SIDE = ["distance", "utc_offset_min", *WEATHER, "engines", "seats", "dest_lat", "dest_lon", "dest_alt", "dest_tz",
        "plane_age", "sched_block_min", "sched_minute_of_day"]  # fmt: skip


def raw_file(folder: str, name: str) -> io.BytesIO | str:
    """What a CSV reader takes: the path, or the content of the zip archive of that name."""
    path = Path(folder, name)
    if path.exists():
        return str(path)
    with zipfile.ZipFile(f"{path}.zip") as archive:
        return io.BytesIO(archive.read(name))


def peak_bytes() -> int:
    """The most memory that this process has held; `ru_maxrss` would count its parent's before `exec`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def cuts(times: np.ndarray) -> dict[str, tuple[int, int]]:
    """Rows of each split, of ascending times: 0.8, 0.1 and 0.1 of them, those of one moment together."""
    ends = [int(len(times) * share) for share in (0.8, 0.8 + 0.1)]
    first, second = (int(np.searchsorted(times, times[end - 1], side="right")) for end in ends)
    return {"train": (0, first), "valid": (first, second), "test": (second, len(times))}


class Searched:
    """An as-of question by NumPy: events sorted by group and time as one number."""

    def __init__(self, frame, codes: np.ndarray, known: np.ndarray) -> None:
        at = frame["at"].to_numpy()
        self.at, self.known, self.codes = at, known, codes
        rows = np.flatnonzero(~np.isnan(known) & (codes >= 0))
        times = known[rows].astype("int64")
        self.base, high = min(at[0], times.min()) - 1500, max(at[-1], times.max())
        self.span = high - self.base + 2
        keys = codes[rows] * self.span + times - self.base
        order = np.argsort(keys, kind="stable")
        self.rows, self.keys = rows[order], keys[order]
        self.start = codes * self.span
        self.stop = np.searchsorted(self.keys, self.start + at - self.base)
        self.own = known < at  # False for a null

    def window(self, minutes: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Where each row's events begin, and whether its own one is among them."""
        if minutes is None:
            return np.searchsorted(self.keys, self.start), self.own & (self.codes >= 0)
        first = np.searchsorted(self.keys, self.start + self.at - minutes - self.base)
        return first, self.own & (self.known >= self.at - minutes) & (self.codes >= 0)

    def sums(self, values: np.ndarray, minutes: int | None = None, window=None) -> tuple[np.ndarray, np.ndarray]:
        """(number of known values, their sum)."""
        first, own = self.window(minutes) if window is None else window
        known = ~np.isnan(values)
        found = []
        for part in (known.astype("int64"), np.where(known, values, 0).astype("int64")):
            running = np.concatenate([[0], np.cumsum(part[self.rows])])
            total = running[self.stop] - running[first] - part * own
            found.append(np.where(self.codes >= 0, total, 0))
        return found[0], found[1]

    def last(self) -> np.ndarray:
        """The row of the last event, -1 for none."""
        first, place = self.window(None)[0], self.stop - 1
        rows = self.rows[np.clip(place, 0, None)]
        place = place - ((rows == np.arange(len(rows))) & (place >= first))
        return np.where((self.codes >= 0) & (place >= first), self.rows[np.clip(place, 0, None)], -1)


class Merged(Searched):
    """The same by pandas: running sums by group, joined by `merge_asof`."""

    def __init__(self, frame, codes: np.ndarray, known: np.ndarray) -> None:
        import pandas as pd

        self.at, self.known, self.codes = frame["at"].to_numpy(), known, codes
        rows = np.flatnonzero(~np.isnan(known) & (codes >= 0))
        self.rows = rows[np.argsort(known[rows], kind="stable")]
        self.own = known < self.at
        self.events = pd.DataFrame({"code": codes[self.rows], "time": known[self.rows].astype("int64")})
        self.groups = self.events["code"]
        self.places = {}

    def window(self, minutes: int | None):
        inside = self.own & (self.codes >= 0)
        return minutes, inside if minutes is None else inside & (self.known >= self.at - minutes)

    def place(self, back: int) -> np.ndarray:
        """Of each row the place of the last event of its group before `at - back`, -1 for none."""
        import pandas as pd

        if back not in self.places:
            asked = pd.DataFrame({"code": self.codes, "time": self.at - back})
            events = self.events.assign(place=np.arange(len(self.events)))
            joined = pd.merge_asof(asked, events, on="time", by="code", allow_exact_matches=False)
            self.places[back] = joined["place"].fillna(-1).to_numpy("int64")
        return self.places[back]

    def sums(self, values: np.ndarray, minutes: int | None = None, window=None) -> tuple[np.ndarray, np.ndarray]:
        minutes, own = self.window(minutes) if window is None else window
        known = ~np.isnan(values)
        found = []
        for part in (known.astype("int64"), np.where(known, values, 0).astype("int64")):
            running = self.events.assign(value=part[self.rows]).groupby("code", sort=False)["value"].cumsum()
            running = np.append(running.to_numpy(), 0)  # place -1
            total = running[self.place(0)] - part * own
            found.append(total if minutes is None else total - running[self.place(minutes)])
        return found[0], found[1]

    def last(self) -> np.ndarray:
        before = self.events.assign(place=np.arange(len(self.events))).groupby("code", sort=False)["place"].shift()
        before = np.append(before.fillna(-1).to_numpy("int64"), -1)
        rows, place = np.append(self.rows, -1), self.place(0)
        place = np.where(rows[place] == np.arange(len(place)), before[place], place)
        return rows[place]


def with_pandas(raw: str, out: str, form: type[Searched] = Merged) -> None:
    import pandas as pd

    def read(name: str, columns: list[str]):
        return pd.read_csv(raw_file(raw, name), engine="pyarrow", usecols=columns)

    frame = read("flights.csv", NEEDED)
    weather = read("weather.csv", ["origin", "time_hour", *WEATHER])
    planes = read("planes.csv", ["tailnum", "year", "type", "manufacturer", "model", "engines", "seats", "engine"])
    airports = read("airports.csv", ["faa", "lat", "lon", "alt", "tz", "dst"])
    for table in (frame, weather):
        hours = pd.to_datetime(table["time_hour"], utc=True).dt.tz_localize(None)
        table["moment"] = hours.astype("datetime64[s]").astype("int64") // 60
    hour = frame["moment"]
    frame["at"] = hour + frame["minute"]
    frame["utc_offset_min"] = (frame["hour"] * 60 - hour % 1440 + 720) % 1440 - 720
    frame["route"] = frame["origin"] + "-" + frame["dest"]
    frame["flight_number"] = frame["carrier"] + frame["flight"].astype("str")
    frame = frame.drop(columns="time_hour").sort_values(SORT).reset_index(drop=True)
    frame["flight_row"] = np.arange(len(frame))
    local = frame["at"] + frame["utc_offset_min"]
    frame["day"] = local // 1440
    frame["sched_weekday"], frame["sched_hour"] = (frame["day"] + 3) % 7, local % 1440 // 60
    frame["sched_minute_of_day"] = local % 1440
    weather = weather.drop_duplicates(["origin", "moment"]).drop(columns="time_hour")
    frame = frame.merge(weather.assign(moment=weather["moment"] + 60), on=["origin", "moment"], how="left")
    earlier = weather[["origin", "moment", "pressure"]].rename(columns={"pressure": "earlier"})
    frame = frame.merge(earlier.assign(moment=weather["moment"] + 240), on=["origin", "moment"], how="left")
    frame = frame.merge(planes.rename(columns={"year": "built"}), on="tailnum", how="left")
    more = [(code, *place, 0.0, -4.0, "N") for code, place in AIRPORTS.items() if code not in set(airports["faa"])]
    airports = pd.concat([airports, pd.DataFrame(more, columns=["faa", "lat", "lon", "alt", "tz", "dst"])])
    names = {"faa": "dest", "lat": "dest_lat", "lon": "dest_lon", "alt": "dest_alt", "tz": "dest_tz"}
    frame = frame.merge(airports.rename(columns=names), on="dest", how="left")
    frame["plane_age"] = frame["at"] // (1440 * 365.25) + 1970 - frame["built"]
    frame["wind_sector"] = (frame["wind_dir"].fillna(-30) // 30).astype("int64")

    def minutes(name: str) -> np.ndarray:
        values = frame[name].to_numpy("float64")
        return values // 100 * 60 + values % 100

    offset, at = frame["utc_offset_min"].to_numpy(), frame["at"].to_numpy()
    shift = frame["dest_tz"].to_numpy() * 60 + ((offset == -240) & (frame["dst"] == "A").to_numpy()) * 60 - offset
    frame["sched_block_min"] = (minutes("sched_arr_time") - minutes("sched_dep_time") - shift) % 1440
    elapsed = (minutes("arr_time") - minutes("dep_time") - shift) % 1440
    values = {name: frame[name].to_numpy("float64") for name in ("dep_delay", "arr_delay", "air_time")}
    departed = at + values["dep_delay"]
    air = values["air_time"]
    landed = departed + np.where(np.isnan(elapsed) | (elapsed < air), air, elapsed)
    landed[np.isnan(values["arr_delay"])] = np.nan
    values["late"] = np.where(np.isnan(values["arr_delay"]), np.nan, values["arr_delay"] > 15)
    known = {"departed_at": departed, "landed_at": landed}

    made: dict[str, np.ndarray] = {}
    codes = {name: pd.factorize(frame[name])[0] for name in ("origin", "carrier", "dest", "tailnum", "route")}
    codes["flight_number"] = pd.factorize(frame["flight_number"])[0]
    codes["origin_hour"] = codes["origin"] * 24 + frame["hour"].to_numpy()
    codes["carrier_origin"] = codes["carrier"] * 3 + codes["origin"]
    asked: dict[tuple[str, str], Searched] = {}

    def question(key: str, when: str) -> Searched:
        if (key, when) not in asked:
            asked[key, when] = form(frame, codes[key], known[when])
        return asked[key, when]

    codes["all"] = np.zeros(len(frame), dtype="int64")
    prior = {}
    for value in ("late", "arr_delay"):
        count, total = question("all", "landed_at").sums(values[value])
        prior[value] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    for key, (_, means) in SMOOTHED.items():
        window = question(key, "landed_at").window(None)
        for value in means:
            count, total = question(key, "landed_at").sums(values[value], window=window)
            made[f"{key}_{value}_mean"] = (total + SMOOTHING * prior[value]) / (count + SMOOTHING)
    with np.errstate(invalid="ignore"):
        count, total = question("route", "landed_at").sums(values["air_time"])
        made["route_air_time_mean"] = total / np.where(count > 0, count, np.nan)
        for value, keys in WINDOWS.items():
            for key, lengths in keys.items():
                for length in lengths:
                    count, total = question(key, KNOWN[value]).sums(values[value], length)
                    made[f"{key}_{value}_last_{length}_min"] = total / np.where(count > 0, count, np.nan)
    taken = {"landed_at": {"arr_delay": values["arr_delay"], "air_time": air, "landed_at": landed},
             "departed_at": {"dep_delay": values["dep_delay"]}}  # fmt: skip
    for when, columns in taken.items():
        plane = question("tailnum", when)
        rows = plane.last()
        for name, column in columns.items():
            made[f"aircraft_{name}"] = np.where(rows >= 0, column[rows], np.nan)
        name = "landings" if when == "landed_at" else "departures"
        made[f"aircraft_{name}_last_day"] = plane.sums(np.zeros(len(frame)), 1440)[0]
    left = np.fmax(departed, at)
    left[np.isnan(departed)] = np.nan
    days = frame["day"].to_numpy() - int(frame["day"].min())
    for key in ("origin", "carrier_origin"):
        group = days * (int(codes[key].max()) + 1) + codes[key]
        planned, gone = form(frame, group, at.astype("float64")), form(frame, group, left)
        due = at - float(at[0])
        (count, total), (gone_count, gone_total) = planned.sums(due), gone.sums(due)
        waiting = count - gone_count
        waited = waiting * (at - at[0]) - (total - gone_total)
        made[f"{key}_waiting"] = waiting
        made[f"{key}_waiting_min_mean"] = waited / np.maximum(waiting, 1)
    landed_before = made.pop("aircraft_landed_at")
    made["aircraft_slack_min"] = at - landed_before
    made["aircraft_slack_after_return_min"] = made["aircraft_slack_min"] - made["aircraft_air_time"]
    made["pressure_change"] = (frame["pressure"] - frame["earlier"]).to_numpy()
    made["dew_point_spread"] = (frame["temp"] - frame["dewp"]).to_numpy()
    block = frame["sched_block_min"].to_numpy("float32")
    made["block_minus_route_air_time"] = block - made["route_air_time_mean"].astype("float32")
    labelled = ~np.isnan(values["late"])
    kept = {name: frame[name] for name in (*TEXT, *WHOLE)} | {name: frame[name].astype("float32") for name in SIDE}
    kept |= {name: column.astype("float32") for name, column in made.items()}
    kept |= {"late": values["late"].astype("float32"), "at": frame["at"], "flight_row": frame["flight_row"]}
    whole = pd.DataFrame(kept, copy=False)[labelled]
    for split, (start, stop) in cuts(whole["at"].to_numpy()).items():
        whole.iloc[start:stop].to_parquet(
            f"{out}/{split}.parquet", index=False, compression="zstd", compression_level=1
        )


def with_pandas_search(raw: str, out: str) -> None:
    with_pandas(raw, out, Searched)


def with_polars(raw: str, out: str) -> None:
    import polars as pl

    def read(name: str, columns: list[str]) -> pl.LazyFrame:
        return pl.read_csv(
            raw_file(raw, name), columns=columns, null_values=["NA", ""], infer_schema_length=None
        ).lazy()

    col = pl.col
    moment = (
        col("time_hour").str.slice(0, 19).str.to_datetime("%Y-%m-%dT%H:%M:%S").dt.epoch("s") // 60
    ).alias("moment")  # fmt: skip
    weather = read("weather.csv", ["origin", "time_hour", *WEATHER]).with_columns(moment).drop("time_hour")
    weather = weather.unique(["origin", "moment"], keep="first", maintain_order=True)
    planes = read("planes.csv", ["tailnum", "year", "type", "manufacturer", "model", "engines", "seats", "engine"])
    airports = read("airports.csv", ["faa", "lat", "lon", "alt", "tz", "dst"]).collect()
    more = [(code, *place, 0, -4, "N") for code, place in AIRPORTS.items() if code not in set(airports["faa"])]
    airports = pl.concat([airports, pl.DataFrame(more, schema=airports.schema, orient="row")]).lazy()
    names = {"faa": "dest", "lat": "dest_lat", "lon": "dest_lon", "alt": "dest_alt", "tz": "dest_tz"}
    clock = {name: col(name) // 100 * 60 + col(name) % 100 for name in
             ("sched_arr_time", "sched_dep_time", "arr_time", "dep_time")}  # fmt: skip
    local = col("at") + col("utc_offset_min")
    summer = ((col("utc_offset_min") == -240) & (col("dst") == "A")).cast(pl.Int64)
    shift = col("dest_tz") * 60 + summer * 60 - col("utc_offset_min")
    elapsed = (clock["arr_time"] - clock["dep_time"] - col("shift")) % 1440
    frame = (
        read("flights.csv", NEEDED)
        .with_columns(moment)
        .with_columns(
            at=col("moment") + col("minute"),
            utc_offset_min=(col("hour") * 60 - col("moment") % 1440 + 720) % 1440 - 720,
            route=col("origin") + "-" + col("dest"),
            flight_number=col("carrier") + col("flight").cast(pl.String),
        )
        .sort(SORT, nulls_last=True)
        .with_row_index("flight_row")
        .with_columns(col("flight_row").cast(pl.Int64), day=local // 1440, sched_minute_of_day=local % 1440)
        .with_columns(sched_weekday=(col("day") + 3) % 7, sched_hour=col("sched_minute_of_day") // 60)
        .join(weather.with_columns(col("moment") + 60), on=["origin", "moment"], how="left", maintain_order="left")
        .join(
            weather.select("origin", col("moment") + 240, earlier="pressure"),
            on=["origin", "moment"], how="left", maintain_order="left",
        )
        .join(planes.rename({"year": "built"}), on="tailnum", how="left", maintain_order="left")
        .join(airports.rename(names), on="dest", how="left", maintain_order="left")
        .with_columns(shift=shift)
        .with_columns(
            plane_age=(col("at") / (1440 * 365.25)).floor() + 1970 - col("built"),
            wind_sector=(col("wind_dir").fill_null(-30) / 30).floor().cast(pl.Int64),
            sched_block_min=(clock["sched_arr_time"] - clock["sched_dep_time"] - col("shift")) % 1440,
            departed_at=col("at") + col("dep_delay"),
            late=(col("arr_delay") > 15).cast(pl.Int64),
            elapsed=pl.when(elapsed.is_null() | (elapsed < col("air_time"))).then("air_time").otherwise(elapsed),
        )
        .with_columns(
            landed_at=pl.when(col("arr_delay").is_not_null()).then(col("departed_at") + col("elapsed")),
            # Groups as numbers, once.
            **{f"g_{name}": col(by).rank("dense").cast(pl.Int32) for name, by in
               {"origin": "origin", "carrier": "carrier", "dest": "dest", "tailnum": "tailnum", "route": "route",
                "flight_number": "flight_number"}.items()},
            g_all=pl.lit(0, pl.Int32),
        )
        .with_columns(
            g_origin_hour=col("g_origin") * 24 + col("hour").cast(pl.Int32),
            g_carrier_origin=col("g_carrier") * 4 + col("g_origin"),
            left_at=pl.when(col("departed_at").is_not_null()).then(pl.max_horizontal("departed_at", "at")),
        )
        .with_columns(
            g_day_origin=((col("day") - col("day").min()) * 4 + col("g_origin")).cast(pl.Int32),
            g_day_carrier_origin=((col("day") - col("day").min()) * 100 + col("g_carrier_origin")).cast(pl.Int32),
        )
        .collect()
    )  # fmt: skip

    def asked(group: str, when: str, values: dict[str, pl.Expr], windows: tuple[int, ...], last: tuple[str, ...] = (),
              own: bool = True) -> pl.LazyFrame:  # fmt: skip
        """Of each row and value {value}_n and {value}_s, with _{window} of a window; of `last` the last value."""
        running = [
            part.cum_sum().over(group).alias(f"{name}_{kind}")
            for name, value in values.items()
            for kind, part in (("n", value.is_not_null().cast(pl.Int64)), ("s", value.fill_null(0).cast(pl.Int64)))
        ]
        sums = [f"{name}_{kind}" for name in values for kind in "ns"]
        events = frame.lazy().filter(col(when).is_not_null() & col(group).is_not_null()).sort(
            when, maintain_order=True
        ).select(
            group, col(when).cast(pl.Int64).alias("time"), *running,
            *[col(name).alias(f"last_{name}") for name in last],
            *[col(name).shift().over(group).alias(f"before_{name}") for name in last],
            *([col("flight_row").alias("row")] if last else []),
        )  # fmt: skip
        found = frame.lazy().select(
            "at", group, "flight_row", col(when).alias("known"), *[(col("at") - w).alias(f"at_{w}") for w in windows],
            *[value.is_not_null().cast(pl.Int64).alias(f"own_{name}_n") for name, value in values.items()],
            *[value.fill_null(0).cast(pl.Int64).alias(f"own_{name}_s") for name, value in values.items()],
        )  # fmt: skip
        how = {"by": group, "allow_exact_matches": False, "check_sortedness": False}
        found = found.join_asof(events, left_on="at", right_on="time", **how)
        for w in windows:
            far = events.select(
                group, col("time").alias(f"time_{w}"), *[col(name).alias(f"{name}_{w}") for name in sums]
            )
            found = found.join_asof(far, left_on=f"at_{w}", right_on=f"time_{w}", **how)
        inside = (col("known") < col("at")).fill_null(False) & col(group).is_not_null()
        if not own:
            inside = pl.lit(False)
        whole = [(col(name).fill_null(0) - inside * col(f"own_{name}")).alias(name) for name in sums]
        part = [
            (col(name).fill_null(0) - col(f"{name}_{w}").fill_null(0)
             - (inside & (col("known") >= col("at") - w)) * col(f"own_{name}")).alias(f"{name}_{w}")
            for w in windows for name in sums
        ]  # fmt: skip
        itself = (col("row") == col("flight_row")).fill_null(False) if last else pl.lit(False)
        taken = [
            pl.when(itself).then(f"before_{name}").otherwise(f"last_{name}").alias(f"last_{name}") for name in last
        ]
        return found.select(*whole, *part, *taken)

    late, arr, air, dep = col("late"), col("arr_delay"), col("air_time"), col("dep_delay")
    landed = {"late": late, "arr_delay": arr}
    plans: dict[str, pl.LazyFrame] = {
        "all": asked("g_all", "landed_at", landed, ()),
        "dest": asked("g_dest", "landed_at", landed, (180, 720)),
        "carrier": asked("g_carrier", "landed_at", landed, (360,)),
        "route": asked("g_route", "landed_at", landed | {"air_time": air}, (1440,)),
        "origin": asked("g_origin", "landed_at", {"arr_delay": arr}, (180,)),
        "tailnum": asked("g_tailnum", "landed_at", {"late": late}, (1440,), ("arr_delay", "air_time", "landed_at")),
        "flight_number": asked("g_flight_number", "landed_at", landed, ()),
        "origin_hour": asked("g_origin_hour", "landed_at", {"late": late}, ()),
        "dep_origin": asked("g_origin", "departed_at", {"dep_delay": dep}, (60, 180)),
        "dep_carrier": asked("g_carrier", "departed_at", {"dep_delay": dep}, (180,)),
        "dep_carrier_origin": asked("g_carrier_origin", "departed_at", {"dep_delay": dep}, (120,)),
        "dep_route": asked("g_route", "departed_at", {"dep_delay": dep}, (720,)),
        "dep_tailnum": asked("g_tailnum", "departed_at", {"dep_delay": dep}, (1440,), ("dep_delay",)),
    }
    due = {"due": col("at") - int(frame["at"][0])}
    for key in ("origin", "carrier_origin"):
        plans[f"planned_{key}"] = asked(f"g_day_{key}", "at", due, (), own=False)
        plans[f"left_{key}"] = asked(f"g_day_{key}", "left_at", due, (), own=False)
    found = dict(zip(plans, pl.collect_all(list(plans.values())), strict=True))
    table = pl.concat(
        [frame, *[part.rename({name: f"{key}__{name}" for name in part.columns}) for key, part in found.items()]],
        how="horizontal",
    )

    def mean(key: str, value: str, window: int | None = None) -> pl.Expr:
        tail = "" if window is None else f"_{window}"
        count = col(f"{key}__{value}_n{tail}")
        return pl.when(count > 0).then(col(f"{key}__{value}_s{tail}") / count)

    made: dict[str, pl.Expr] = {}
    for key, (_, means) in SMOOTHED.items():
        for value in means:
            total, count = col(f"{key}__{value}_s"), col(f"{key}__{value}_n")
            made[f"{key}_{value}_mean"] = (total + SMOOTHING * mean("all", value)) / (count + SMOOTHING)
    made["route_air_time_mean"] = mean("route", "air_time")
    for value, keys in WINDOWS.items():
        for key, lengths in keys.items():
            plan = key if value == "arr_delay" else f"dep_{key}"
            for length in lengths:
                made[f"{key}_{value}_last_{length}_min"] = mean(plan, value, length)
    made["aircraft_arr_delay"] = col("tailnum__last_arr_delay")
    made["aircraft_air_time"] = col("tailnum__last_air_time")
    made["aircraft_dep_delay"] = col("dep_tailnum__last_dep_delay")
    made["aircraft_landings_last_day"] = col("tailnum__late_n_1440")
    made["aircraft_departures_last_day"] = col("dep_tailnum__dep_delay_n_1440")
    for key in ("origin", "carrier_origin"):
        waiting = col(f"planned_{key}__due_n") - col(f"left_{key}__due_n")
        total = col(f"planned_{key}__due_s") - col(f"left_{key}__due_s")
        made[f"{key}_waiting"] = waiting
        waited = waiting * due["due"] - total
        made[f"{key}_waiting_min_mean"] = waited / pl.max_horizontal(waiting, pl.lit(1))
    made["aircraft_slack_min"] = col("at") - col("tailnum__last_landed_at")
    made["aircraft_slack_after_return_min"] = made["aircraft_slack_min"] - col("tailnum__last_air_time")
    made["pressure_change"] = col("pressure") - col("earlier")
    made["dew_point_spread"] = col("temp") - col("dewp")
    block = col("sched_block_min").cast(pl.Float32)
    made["block_minus_route_air_time"] = block - mean("route", "air_time").cast(pl.Float32)
    whole = (
        table.lazy()
        .filter(late.is_not_null())
        .select(
            *TEXT, *WHOLE, *[col(name).cast(pl.Float32) for name in SIDE],
            *[value.cast(pl.Float32).alias(name) for name, value in made.items()],
            late.cast(pl.Float32), "at", "flight_row",
        )
        .collect()
    )  # fmt: skip
    for split, (start, stop) in cuts(whole["at"].to_numpy()).items():
        whole[start:stop].write_parquet(f"{out}/{split}.parquet", compression="zstd", compression_level=1)


FORMS = {"pandas": with_pandas, "pandas_search": with_pandas_search, "polars": with_polars}


def main(forms: dict[str, Callable[[str, str], None]]) -> None:
    """Run the form that the command line names, and tell what it took."""
    name, raw_folder, out_folder = sys.argv[1:4]
    __import__("polars" if "polars" in name else "pandas")
    start, cpu = time.perf_counter(), time.process_time()
    forms[name](raw_folder, out_folder)
    told = {
        "peer": name,
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - cpu,
        "peak": peak_bytes(),
    }
    print(json.dumps(told, allow_nan=False))


if __name__ == "__main__":
    main(FORMS)
