"""What a night leaves of the trivago log to the next one, which computes new rows alone.

Rows before the front, the last moment of the days' files, are finished: what is still to come lies at the front or
behind it, so nothing of it enters their pairs. Kept are

- their pairs as parts, those of clickouts with a reference (`pairs`) and the others (`score`), and of each clickout
  the number of its session, its pairs, whether it has a reference, and its time (`clicks`): what splits are cut by;
- runs of totals. A run says of each group that it names what all finished rows amount to, in place of what earlier
  runs say. It holds the names that its night was the first to see, which are numbered in order of arrival and keep
  their numbers, and when users and sessions began and ended;
- the rows from the front on, raw.

A night works with numbers of its own, those of `Books`, for the names of its rows alone. Here they are translated.
A run is one Arrow file whose columns are lists, mapped into memory: of a long past only the pages are read that are
asked about. Parts, runs and their merging keep a night's work near that of its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.recipes.trivago.chunk import FAMILIES, OWNED
from gigabatch.features.recipes.trivago.history import FIRST, ITEM_BITS, LAST, NONE, Ledger
from gigabatch.features.recipes.trivago.log import NUMBERED, TIMED, atomic_path

if TYPE_CHECKING:
    import pandas as pd

RUN_ENTRIES = 1 << 22  # groups of a run at most, when runs are merged; some 500 MB on the way
# Families whose keys are made of a name's number: the column of the name, and the divisor that gives the number from
# the key; None for the number of folds.
NAMED: dict[str, tuple[str, int | None]] = {
    "session": ("session_id", 1), "session_item": ("session_id", 1 << ITEM_BITS), "user": ("user_id", 1),
    "user_fold": ("user_id", None), "user_item": ("user_id", 1 << ITEM_BITS), "filters": ("current_filters", 1),
    "filters_fold": ("current_filters", None), "city": ("city", 1), "city_fold": ("city", None),
    "city_item": ("city", 1 << ITEM_BITS), "device": ("device", 1), "device_fold": ("device", None),
    "platform_item": ("platform", 1 << ITEM_BITS),
}  # fmt: skip
# Columns that hold a name's number: the column of the name.
VALUES = {("session", "last_action"): "action_type", ("session", "sort_order"): "sort_order"}
TOLD = FAMILIES | {name: {"first": FIRST, "last": LAST} for name in TIMED}  # columns of all that a run tells
CLICKS = ("session", "pairs", "labelled", "timestamp")
Arrays = dict[str, np.ndarray]


def write_lists(path: Path, lists: Mapping[str, Any]) -> None:
    """Arrays by name, of any lengths, as one Arrow file, whole or not at all."""
    columns = {}
    for name, values in lists.items():
        array = values if isinstance(values, pa.Array) else pa.array(values)
        ends = pa.array([0, len(array)], pa.int64())
        columns[name] = pa.LargeListArray.from_arrays(ends, array, type=pa.large_list(array.type))
    table = pa.table(columns)
    with (
        atomic_path(path) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)


def read_lists(path: Path) -> dict[str, pa.Array]:
    """What `write_lists` wrote, mapped into memory."""
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    return {name: table[name].chunk(0).values for name in table.column_names}


def narrow(values: np.ndarray) -> np.ndarray:
    """int64 values in as few bytes as they take; NONE becomes the least value of the type."""
    known = values[values != NONE]
    low, high = (int(known.min()), int(known.max())) if len(known) else (0, 0)
    for dtype in (np.int8, np.int16, np.int32):
        bounds = np.iinfo(dtype)
        if bounds.min < low and high <= bounds.max:
            return np.where(values == NONE, bounds.min, values).astype(dtype)
    return values


def wide(values: np.ndarray) -> np.ndarray:
    """What `narrow` was given."""
    if values.dtype == np.int64:
        return values
    return np.where(values == np.iinfo(values.dtype).min, NONE, values.astype(np.int64))


class Runs:
    """Runs of totals, the oldest first. All keys are made of numbers that stay."""

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        self.runs = [read_lists(path) for path in paths]

    def find(self, family: str, keys: np.ndarray) -> Arrays:
        """Of ascending keys those that are known, as `key`, and their columns."""
        return self._latest(family, [_places_of(self._keys(run, family), keys) for run in self.runs])

    def of_owners(self, family: str, owners: np.ndarray, divisor: int) -> Arrays:
        """Every group whose key divided by the divisor is one of the ascending owners."""
        places = []
        for run in self.runs:
            keys = self._keys(run, family)
            starts, stops = (np.searchsorted(keys, bounds * divisor) for bounds in (owners, owners + 1))
            places.append(_ranges(starts, stops))
        return self._latest(family, places)

    def every(self, family: str) -> Arrays:
        """Every group of the family."""
        return self._latest(family, [slice(None)] * len(self.runs))

    def numbers(self, column: str, values: pa.Array) -> np.ndarray:
        """int64: the number of every name, -1 for a new one."""
        found, before = np.full(len(values), -1, dtype=np.int64), 0
        for names in self._names(column):
            hits = pc.index_in(names, value_set=values)
            known = np.flatnonzero(hits.is_valid().to_numpy(zero_copy_only=False))
            found[hits.drop_null().to_numpy()] = before + known
            before += len(names)
        return found

    def names(self, column: str) -> pa.Array:
        """Every name so far, in order of its number."""
        return pa.concat_arrays([pa.array([], pa.large_string()), *self._names(column)])

    def _names(self, column: str) -> list[pa.Array]:
        return [run[f"names/{column}"] for run in self.runs if f"names/{column}" in run]

    def _keys(self, run: Mapping[str, pa.Array], family: str) -> np.ndarray:
        keys = run.get(f"{family}/key")
        return np.empty(0, dtype=np.int64) if keys is None else keys.to_numpy()

    def _latest(self, family: str, places: Sequence[Any]) -> Arrays:
        """What runs say at these places, of groups that several name the last."""
        found: dict[str, list[np.ndarray]] = {column: [] for column in ("key", *TOLD[family])}
        for run, place in zip(self.runs, places, strict=True):
            if f"{family}/key" in run:
                found["key"].append(run[f"{family}/key"].to_numpy()[place])
                for column in TOLD[family]:
                    found[column].append(wide(run[f"{family}/{column}"].to_numpy()[place]))
        whole = {name: np.concatenate([np.empty(0, dtype=np.int64), *parts]) for name, parts in found.items()}
        order = np.argsort(whole["key"], kind="stable")
        keys = whole["key"][order]
        last = order[np.append(keys[1:] != keys[:-1], True)] if len(keys) else order
        return {name: values[last] for name, values in whole.items()}


def _places_of(keys: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Where the asked keys that are among ascending ones stand."""
    place = np.searchsorted(keys, asked)
    inside = place < len(keys)
    place = place[inside]
    return place[keys[place] == asked[inside]]


def _ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The whole numbers of all ranges, one after the other."""
    sizes = stops - starts
    ends = np.cumsum(sizes)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - sizes), sizes)


def merged_run(older: Path, newer: Path, path: Path) -> int:
    """One run that says what both say; returns how many groups it names."""
    both = Runs([older, newer])
    out: dict[str, Any] = {}
    for family in TOLD:
        found = both.every(family)
        out[f"{family}/key"] = found.pop("key")
        out |= {f"{family}/{column}": narrow(values) for column, values in found.items()}
    for column in NUMBERED:
        out[f"names/{column}"] = both.names(column)
    write_lists(path, out)
    return _entries(out)


def _entries(run: Mapping[str, Any]) -> int:
    return sum(len(values) for name, values in run.items() if name.endswith("/key"))


@dataclass(frozen=True)
class Part:
    """Finished pairs. pairs, score: their files, None where there are none of the kind; rows: how many there are of
    each; clicks: one entry a clickout by `CLICKS`; file: where these lie, None while they lie nowhere."""

    pairs: Path | None
    score: Path | None
    rows: tuple[int, int]
    clicks: Arrays
    file: Path | None = None


@dataclass(frozen=True)
class Kept:
    """What an earlier run left; nothing, for a run over all files. counts: as of `Streamed`, of finished rows. runs:
    their files with the number of groups. open: by the place of a file among that run's its open rows."""

    front: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    runs: tuple[tuple[Path, int], ...] = ()
    open: Mapping[int, tuple[Path, ...]] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, facts: Mapping[str, Any]) -> Kept:
        parts = []
        for number, rows in enumerate(facts["parts"]):
            file = folder / _name("clicks", number)
            clicks = {name: values.to_numpy(zero_copy_only=False) for name, values in read_lists(file).items()}
            paths = [folder / _name(kind, number) if size else None for kind, size in zip(KINDS, rows, strict=True)]
            parts.append(Part(paths[0], paths[1], (rows[0], rows[1]), clicks, file))
        runs = tuple((folder / _name("run", number), size) for number, size in enumerate(facts["runs"]))
        opened: dict[int, tuple[Path, ...]] = {}
        for place, name in facts["open"]:
            opened[place] = (*opened.get(place, ()), folder / name)
        return cls(facts["front"], facts["counts"], tuple(parts), runs, opened)


KINDS = ("pairs", "score")


def _name(kind: str, number: int) -> str:
    return f"{kind}-{number:05d}.{'parquet' if kind in KINDS else 'arrow'}"


class Nights:
    """The way from what an earlier run left to what this one leaves.

    kept: what it left. frames: the names of tonight's rows, as `Books.frames_of` gives them; when users and sessions
    began is corrected. new_front: the time from which rows stay open.

    numbers: by column the number that stays of each of tonight's names.
    """

    def __init__(self, kept: Kept, frames: dict[str, pd.DataFrame], num_folds: int, new_front: int) -> None:
        from gigabatch.features.engines.arrow_columns import one_array, to_arrow

        self.kept, self.num_folds, self.new_front = kept, num_folds, new_front
        self.runs = Runs([path for path, _ in kept.runs])
        self.made: list[tuple[Path, int]] = []  # runs of tonight
        self.numbers: Arrays = {}
        self._new: dict[str, pa.Array] = {}
        self._spans: dict[str, Arrays] = {}
        for column, frame in frames.items():
            values = one_array(to_arrow(frame["value"])).cast(pa.large_string())
            numbers = self.runs.numbers(column, values)
            new = np.flatnonzero(numbers < 0)
            numbers[new] = len(self.runs.names(column)) + np.arange(len(new))
            self.numbers[column], self._new[column] = numbers, values.take(pa.array(new))
        for column in TIMED:
            known = self.runs.find(column, np.sort(self.numbers[column]))
            first = frames[column]["first"].to_numpy().copy()
            here = self._here(column, known["key"])
            first[here] = np.minimum(first[here], known["first"])
            frames[column]["first"] = first
            self._spans[column] = {"first": first, "last": frames[column]["last"].to_numpy()}

    @staticmethod
    def names_kept(kept: Kept) -> dict[str, pd.DataFrame]:
        """Names that totals hold the numbers of, whether or not they occur tonight; for `Books.frames_of`."""
        import pandas as pd

        runs = Runs([path for path, _ in kept.runs])
        return {column: pd.DataFrame({"value": runs.names(column).to_pandas()}) for column in VALUES.values()}

    def _here(self, column: str, numbers: np.ndarray) -> np.ndarray:
        """Tonight's numbers of names by those that stay, all of which occur tonight."""
        order = np.argsort(self.numbers[column])
        return order[np.searchsorted(self.numbers[column][order], numbers)]

    def _translated(self, family: str, columns: Arrays, way: Callable[[str, np.ndarray], np.ndarray]) -> Arrays:
        """Keys and columns with each name's number as `way` gives it, ascending by key."""
        out = dict(columns)
        if family in NAMED:
            column, divisor = NAMED[family]
            divisor = divisor or self.num_folds
            out["key"] = way(column, out["key"] // divisor) * divisor + out["key"] % divisor
        for (of, name), book in VALUES.items():
            if of == family:
                known = out[name] >= 0
                out[name] = out[name].copy()
                out[name][known] = way(book, out[name][known])
        order = np.argsort(out["key"])
        return {name: values[order] for name, values in out.items()}

    def _stays(self, column: str, numbers: np.ndarray) -> np.ndarray:
        return self.numbers[column][numbers]

    def ledgers(self, asked: Callable[[str], np.ndarray], began: np.ndarray) -> dict[str, Ledger]:
        """What finished rows amount to, of all groups that tonight's rows ask about.

        asked: gives the ascending keys of a family that sessions do not own. began: the ascending numbers of sessions
        with finished rows.
        """
        found = {}
        for family, rules in FAMILIES.items():
            if OWNED.get(family, ("",))[0] == "session":
                owners = np.sort(self._stays("session_id", began))
                known = self.runs.of_owners(family, owners, OWNED[family][1] or 1)
            else:
                keys = self._translated(family, {"key": asked(family)}, self._stays)["key"]
                known = self.runs.find(family, keys)
            known = self._translated(family, known, self._here)
            found[family] = Ledger(rules, known.pop("key"), known)
        return found

    def add_run(self, path: Path, totals: Mapping[str, Arrays], whole: bool) -> None:
        """Write what finished rows amount to of some groups, with names and spans for the last run of a night."""
        out: dict[str, Any] = {}
        for family in FAMILIES:
            if family in totals and len(totals[family]["key"]):
                found = self._translated(family, totals[family], self._stays)
                out[f"{family}/key"] = found.pop("key")
                out |= {f"{family}/{column}": narrow(values) for column, values in found.items()}
        if whole:
            for column, spans in self._spans.items():
                order = np.argsort(self.numbers[column])
                out[f"{column}/key"] = self.numbers[column][order]
                out |= {f"{column}/{name}": narrow(values[order]) for name, values in spans.items()}
            out |= {f"names/{column}": names for column, names in self._new.items()}
        if entries := _entries(out):
            write_lists(path, out)
            self.made.append((path, entries))

    def ends(self) -> np.ndarray:
        """int64: the last moment of every session so far, by the number that stays."""
        known = self.runs.every("session_id")
        here = self.numbers["session_id"]
        ends = np.zeros(max(known["key"].max(initial=-1), here.max(initial=-1)) + 1, dtype=np.int64)
        ends[known["key"]] = known["last"]
        ends[here] = self._spans["session_id"]["last"]
        return ends

    def write(
        self,
        folder: Path,
        parts: Sequence[tuple[Part, bool]],
        opened: Sequence[tuple[int, Path]],
        counts: Mapping[str, int],
        engine: str,
        part_rows: int,
        share: Callable[[Path, Path], Any],
    ) -> dict[str, Any]:
        """Put all that the next night needs into a folder, and give its facts.

        parts: all finished pairs, in order, and whether a part's all belong to train now, for they are merged.
        opened: open rows by the place of their file. part_rows: of a merged part at most. share: gives a file a second
        name.
        """
        gathered: list[list[tuple[Part, bool]]] = []
        for part, settled in parts:
            gathered.append([(part, settled)])
            while len(gathered) > 1 and _may_merge(gathered[-2], gathered[-1], part_rows):
                gathered[-2:] = [gathered[-2] + gathered[-1]]
        rows = []
        for number, group in enumerate(gathered):
            members = [part for part, _ in group]
            for place, kind in enumerate(KINDS):
                paths = [path for part in members if (path := (part.pairs, part.score)[place]) is not None]
                _write_together(paths, folder / _name(kind, number), engine, share)
            if len(members) == 1 and members[0].file is not None:
                share(members[0].file, folder / _name("clicks", number))
            else:
                clicks = {name: np.concatenate([part.clicks[name] for part in members]) for name in CLICKS}
                write_lists(folder / _name("clicks", number), clicks)
            rows.append([sum(part.rows[place] for part in members) for place in range(len(KINDS))])
        named = [(place, f"open-{number:05d}.parquet") for number, (place, _) in enumerate(opened)]
        for (_, path), (_, name) in zip(opened, named, strict=True):
            share(path, folder / name)
        return {
            "front": self.new_front,
            "counts": dict(counts),
            "parts": rows,
            "runs": self._write_runs(folder, share),
            "open": named,
        }

    def _write_runs(self, folder: Path, share: Callable[[Path, Path], Any]) -> list[int]:
        runs = [*self.kept.runs, *self.made]
        spare = 0
        while len(runs) > 1 and runs[-2][1] <= runs[-1][1] and runs[-2][1] + runs[-1][1] <= RUN_ENTRIES:
            path, spare = folder / f".merged-{spare}", spare + 1
            runs[-2:] = [(path, merged_run(runs[-2][0], runs[-1][0], path))]
        for number, (path, _) in enumerate(runs):
            share(path, folder / _name("run", number))
        for path in folder.glob(".merged-*"):
            path.unlink()
        return [size for _, size in runs]


def _may_merge(first: Sequence[tuple[Part, bool]], second: Sequence[tuple[Part, bool]], most: int) -> bool:
    sizes = [sum(sum(part.rows) for part, _ in group) for group in (first, second)]
    return all(settled for _, settled in (*first, *second)) and sizes[0] <= sizes[1] and sum(sizes) <= most


def _write_together(paths: Sequence[Path], target: Path, engine: str, share: Callable[[Path, Path], Any]) -> None:
    if len(paths) == 1:
        share(paths[0], target)
    elif paths:
        module = load_engine(engine)
        frames = [module.read_parquet(path) for path in paths]
        module.write_parquet(module.frames.concat(frames, ignore_index=True), target)
