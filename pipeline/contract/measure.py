"""One pass over a raw file: its rows as the recipe reads them, what its columns are like, which rows are bad.

A file is read by `RawFiles.read` with the pipeline's cache, so that the features stage finds its rows parsed: a check
costs no second read. (Parquet is read as it is; files of many rows, which are read in parts, and logs that are streamed
in blocks are read again.)
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow.parquet as pq

from gigabatch.features import setting_checks
from gigabatch.features.columns.lists import is_list_type, list_entries, list_types, row_of_entry
from gigabatch.features.columns.numbers import naming
from gigabatch.features.columns.times import is_calendar, moments
from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.reading.blocks import NotInParts, about_rows, read_blocks
from gigabatch.features.reading.csv_blocks import csv_blocks
from gigabatch.features.reading.csv_records import csv_fields, csv_header
from gigabatch.features.reading.encodings import UTF8, csv_source, is_bytewise
from gigabatch.features.reading.sources import PARQUET_ENDINGS, TEXT_ENDINGS, FileCache, cast, drop_rows
from gigabatch.features.recipes.base import RawFiles
from gigabatch.features.refit.statistics import CategoryStatistics, Statistics
from gigabatch.pipeline.clock import guessed_unit, unit_seconds

if TYPE_CHECKING:  # pandas is imported once there is a file to measure
    import pandas as pd

BLOCK_BYTES = 64 << 20
PART_ROWS = 1_000_000  # of files of more rows so many are in memory at once
WRAP = 1 << 64
ODD = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, as hash functions mix with (Knuth, TAOCP 3, section 6.4)
NULL = "\0null"  # no text of a CSV file holds a NUL
OFFSET_ROWS = 1_000  # at a file's beginning, whose times tell how times are written in it
OFFSET = r":\d\d\S*?\s?(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)$"
NO_OFFSET, UTC_OFFSET = "none", "+00:00"


@dataclass(frozen=True)
class RowRule:
    """Which rows are bad: those whose value in a column is null, below or above a limit.

    what: `null`, `below`, `above`, or for times `before` (a limit as `moments` gives it) and `future` (seconds since
    1970; without effect where times only order rows).
    """

    column: str
    what: str
    limit: float = 0.0


@dataclass(frozen=True)
class Bad:
    """How many rows a rule found, and the value that is farthest off; None where there is none to show."""

    rows: int = 0
    worst: float | None = None

    def merge(self, other: Bad, rule: RowRule) -> Bad:
        known = [bad.worst for bad in (self, other) if bad.worst is not None]
        farthest = min if rule.what in ("below", "before") else max
        return Bad(self.rows + other.rows, farthest(known) if known else None)


@dataclass(frozen=True)
class Known:
    """The rows that a file held when it was accepted: their number, their fingerprint and the latest of their times."""

    rows: int
    fingerprint: int
    last: float | None = None


@dataclass(frozen=True)
class Measured:
    """What a file is like.

    Parameters
    ----------
    rows
        That count, without those that are dropped.
    nulls
        Null rows by column.
    ranges
        Smallest and largest known number by column of role number, weight or time; a time as `moments` gives it.
    statistics
        Of categories, numbers and labels (those of classes as text), and of the elements of lists.
    fingerprint
        The same for the same rows in any order, cut into files in any way: the sum of 64-bit hashes of rows.
    calendar
        Whether times are dates or text, hence microseconds; None without times.
    unit
        What times count since 1970, a key of `TIME_UNITS`; None where numbers only order the rows.
    columns
        All columns of the file in its order, and their types where it is Parquet; None of a file without a header.
    ends
        Whether its last line ends with a line break; None where that is not known.
    offsets
        From UTC, of its first times as they are written, `NO_OFFSET` where there is none; None of numbers.
    bad
        What is wrong with rows, by rule.
    num_bad
        How many rows are bad, those among them that were left out.
    places, examples
        Where those that were left out lie in the file, and the rows themselves (pandas, with columns row and reason
        before theirs).
    added
        Statistics of the rows beside `Known` ones, where these are there as they were; else None.
    corrected
        Whether as many rows as the `Known` ones lie in their times, and they are others.
    """

    rows: int
    nulls: dict[str, int]
    ranges: dict[str, tuple[float, float]]
    statistics: Statistics
    fingerprint: int
    calendar: bool | None = None
    unit: str | None = None
    columns: dict[str, str | None] | None = None
    ends: bool | None = None
    offsets: tuple[str, ...] | None = None
    bad: dict[RowRule, Bad] = field(default_factory=dict)
    num_bad: int = 0
    places: tuple[int, ...] = ()
    examples: Any = None
    added: Statistics | None = None
    corrected: bool = False

    @property
    def distinct(self) -> dict[str, int]:
        """Number of distinct values by category, and of distinct elements by list column."""
        states = self.statistics.categories | self.statistics.lists
        return {name: len(state.counts) for name, state in states.items()}

    def merge(self, other: Measured) -> Measured:
        """Of both parts of one file, this one first."""
        ranges = dict(self.ranges)
        for name, (low, high) in other.ranges.items():
            mine = ranges.get(name, (low, high))
            ranges[name] = (min(mine[0], low), max(mine[1], high))
        return replace(
            self,
            rows=self.rows + other.rows,
            nulls={name: count + other.nulls[name] for name, count in self.nulls.items()},
            ranges=ranges,
            statistics=self.statistics.merge(other.statistics),
            fingerprint=(self.fingerprint + other.fingerprint) % WRAP,
            num_bad=self.num_bad + other.num_bad,
            bad={rule: bad.merge(other.bad[rule], rule) for rule, bad in self.bad.items()},
        )


def measure_file(
    kind: RawFiles,
    engine: str,
    path: str,
    cache: FileCache | None = None,
    rules: Sequence[RowRule] = (),
    drop: float = 0.0,
    time_unit: str = "auto",
    without: Sequence[int] = (),
    known: Known | None = None,
) -> Measured:
    """Read a file and measure it.

    Parameters
    ----------
    kind
        How it is read.
    engine
        Library of the frames.
    path
        Path or URL.
    cache
        Keeps the parsed rows for the features stage.
    rules
        What makes a row bad.
    drop
        Up to which share of a file bad rows are left out of what is measured, and are told in `places` and `examples`;
        of kinds without `blocks`.
    time_unit
        What numbers of the column of times count, as `nightly.time_unit`; `auto`: what the recipe says, else a guess by
        their median.
    without
        Places of rows that do not count; of kinds without `blocks`.
    known
        What it held before, which is told from what has come since.

    Returns
    -------
    Measured
        Of all rows of the file.

    Raises
    ------
    DataError
        Whatever keeps the recipe from reading it; the message names file and column.
    """
    parts = engine == "pandas" and not kind.blocks and kind.encoding == UTF8 and about_rows(path) > PART_ROWS
    parts = parts and not any(map(is_list_type, kind.dtypes.values()))
    found = None
    if parts:
        with suppress(NotInParts):
            unit = _unit_of_parts(kind, path, without, time_unit)
            found = _measured_file(kind, path, _parts(kind, path, without), rules, drop, unit, known)
    if found is None:
        found = _measured_file(kind, path, _frames(kind, engine, path, cache, without), rules, drop, time_unit, known)
    columns = file_columns(kind, engine, path)
    return replace(
        found,
        columns=columns,
        ends=_ends(path) if is_bytewise(kind.encoding) else None,
        offsets=None if kind.time is None else _offsets(kind, engine, path, columns),
    )


def _measured_file(
    kind: RawFiles,
    path: str,
    frames: Iterable[Any],
    rules: Sequence[RowRule],
    drop: float,
    time_unit: str,
    known: Known | None,
) -> Measured:
    """As `measure_file`, of the rows of a file in one frame or several, without what its header and its end are."""
    import pandas as pd

    unit, time_types = None, set[str]()
    whole, kept = _Sum(kind, known), _Sum(kind, known)  # all rows, and those that are not bad
    examples, num_rows = list[pd.DataFrame](), 0
    for raw in frames:
        with _of_file(path):
            frame = kind.make(raw) if kind.make else raw
            times, calendar = _times(kind, frame)
            if times is not None:
                time_types.add(str(times.dtype))
            if len(time_types) > 1:
                raise NotInParts(f"input {path}: column {kind.time!r} holds times of several types")
            if whole.found is None:
                unit = _unit(kind, times, calendar, time_unit)
            masks = {rule: _mask(kind, rule, frame, times, unit) for rule in rules}
            bad = {rule: _bad(kind, rule, mask, frame, times) for rule, mask in masks.items()}
            hit = [mask for rule, mask in masks.items() if bad[rule].rows]
            union: Any = functools.reduce(operator.or_, hit) if hit else None
            told = {"calendar": calendar, "unit": unit, "bad": bad, "num_bad": 0 if union is None else int(union.sum())}
            part = whole.add(frame, times, told)
            if drop and union is None:
                kept.add(frame, times, told, part)
            elif drop:
                hits = {rule: mask for rule, mask in masks.items() if bad[rule].rows}
                examples.append(_examples(raw, union, hits, num_rows))
                good = engine_of(frame).series(~union, frame)
                kept.add(frame[good].reset_index(drop=True), _chosen(times, good), told)
            num_rows += len(raw)
    if whole.found is None:
        raise DataError(f"input {path}: it has a header but no rows.")
    if not 0 < whole.found.num_bad <= drop * num_rows:
        return whole.measured()
    shown = pd.concat(examples, ignore_index=True)
    return replace(kept.measured(), places=tuple(shown["row"].tolist()), examples=shown)


@contextmanager
def _of_file(path: str) -> Iterator[None]:
    """Whatever a file's rows raise as a `DataError` that names it."""
    try:
        yield
    except NotInParts:
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(str(error) if path in str(error) else f"input {path}: {error}") from error


class _Sum:
    """What is measured of a file so far."""

    def __init__(self, kind: RawFiles, known: Known | None) -> None:
        self.kind = kind
        self.found: Measured | None = None
        self.since = None if known is None else _Since(kind, known)

    def add(self, frame: Any, times: Any, told: dict[str, Any], part: Measured | None = None) -> Measured:
        """The next rows, measured, unless `part` is that already. told: fields of `Measured` beside what rows hold."""
        part = replace(_measured(self.kind, frame, times), **told) if part is None else part
        self.found = part if self.found is None else self.found.merge(part)
        if self.since is not None:
            self.since.take(frame, times)
        return part

    def measured(self) -> Measured:
        """Of all rows, with what has come since."""
        assert self.found is not None
        if self.since is None:
            return self.found
        return replace(self.found, added=self.since.added(self.found), corrected=self.since.corrected)


class _Since:
    """Tells the rows of a file that it held before from those that have come since: the first so many, where rows are
    appended, or those up to the last time, in any order."""

    def __init__(self, kind: RawFiles, known: Known) -> None:
        self.kind, self.known, self.place = kind, known, 0
        self.old, self.prints = [0, 0], [0, 0]
        self.new: list[Statistics | None] = [None, None]

    def take(self, frame: Any, times: Any) -> None:
        """The next rows, and their times as numbers or None."""
        engine = engine_of(frame)
        place = self.place + engine.arrays.arange(len(frame))
        self.place += len(frame)
        masks = [place < self.known.rows]
        if times is not None and self.known.last is not None:
            masks.append(engine.array(times) <= self.known.last)
        for way, mask in enumerate(masks):
            both = [engine.series(chosen, frame) for chosen in (mask, ~mask)]
            old, new = ((frame[one].reset_index(drop=True), _chosen(times, one)) for one in both)
            self.old[way] += len(old[0])
            self.prints[way] = (self.prints[way] + _fingerprint(self.kind, *old)) % WRAP
            if len(new[0]):
                fresh, before = _measured(self.kind, *new).statistics, self.new[way]
                self.new[way] = fresh if before is None else before.merge(fresh)

    def added(self, whole: Measured) -> Statistics | None:
        """Statistics of what has come since; None where nothing has, or the rows before are not there as they were."""
        if whole.rows == self.known.rows:
            return None
        told = zip(self.old, self.prints, self.new, strict=True)
        return next((new for *old, new in told if old == [self.known.rows, self.known.fingerprint]), None)

    @property
    def corrected(self) -> bool:
        """Whether as many rows lie in the times of those before, and they are others."""
        same = [self.known.rows, self.known.fingerprint]
        ways = list(map(list, zip(self.old, self.prints, strict=True)))
        return same not in ways and self.known.last is not None and self.old[1] == self.known.rows


def _chosen(times: Any, mask: Any) -> Any:
    return None if times is None else times[mask].reset_index(drop=True)


def _frames(kind: RawFiles, engine: str, path: str, cache: FileCache | None, without: Sequence[int]) -> Iterator[Any]:
    """The whole file as one frame; of a kind with `blocks` its blocks."""
    if not kind.blocks:
        raw = kind.read(engine, path, cache)
        with _of_file(path):
            raw = drop_rows(raw, path, without)
        yield raw
        return
    for block in csv_blocks(path, BLOCK_BYTES):
        yield block.read(engine, kind.dtypes, null_values=kind.null_values, nullable=kind.nullable)


def _parts(kind: RawFiles, path: str, without: Sequence[int], dtypes: Mapping[str, str] | None = None) -> Iterator[Any]:
    """The file in frames of `PART_ROWS` rows. dtypes: of the columns that are read; None: of all.

    `NotInParts` where what is measured might be another than of the whole file: a column comes as several types, or a
    time is null, which takes the place of another row's.
    """
    types = None
    for raw in read_blocks(
        path, kind.dtypes if dtypes is None else dtypes, PART_ROWS, null_values=kind.null_values,
        separator=kind.separator, names=kind.names, nullable=kind.nullable, without=without,
    ):  # fmt: skip
        found = [str(dtype) for dtype in raw.dtypes]
        types = found if types is None else types
        if found != types:
            raise NotInParts(f"input {path}: a column comes as several types")
        if kind.time in raw and bool(raw[kind.time].isna().any()):
            raise NotInParts(f"input {path}: column {kind.time!r} holds a null")
        yield raw


def _unit_of_parts(kind: RawFiles, path: str, without: Sequence[int], time_unit: str) -> str:
    """The time unit, or where it is to be guessed what the median of all times says, for one part may say another."""
    import pandas as pd

    if time_unit != "auto" or kind.time is None or kind.unit is not None:
        return time_unit
    found = []
    for raw in _parts(kind, path, without, {kind.time: kind.dtypes[kind.time]}):
        with _of_file(path):
            times, calendar = _times(kind, raw)
        if calendar:
            return time_unit
        found.append(times)
    return guessed_unit(float(pd.concat(found).median())) or "none" if found else time_unit


def _times(kind: RawFiles, frame: Any) -> tuple[Any, bool | None]:
    """The times as numbers, one a row, that of a null any other row's; and whether they are dates or text."""
    if kind.time is None:
        return None, None
    column = frame[kind.time]
    known = column[column.notna()]
    if len(known) == 0:
        return None, None
    whole = column if len(known) == len(column) else column.fillna(known.iloc[0])
    return moments(whole), is_calendar(known)


def _unit(kind: RawFiles, times: Any, calendar: bool | None, time_unit: str) -> str | None:
    if times is None or time_unit == "none":
        return None
    if calendar:
        return "us"
    if time_unit == "auto":
        return kind.unit or guessed_unit(float(times.median()))
    return setting_checks.time_unit(time_unit, "nightly.time_unit")


def _mask(kind: RawFiles, rule: RowRule, frame: Any, times: Any, unit: str | None) -> Any:
    """bool [N]: the rows that the rule finds."""
    engine = engine_of(frame)
    if rule.what == "null":
        return engine.array(frame[rule.column].isna())
    limit = rule.limit
    if rule.what in ("before", "future"):
        if times is None or (rule.what == "future" and unit is None):
            return engine.arrays.zeros(len(frame), dtype="bool")
        values = times
        limit = limit / unit_seconds(unit) if rule.what == "future" and unit else limit
    else:
        values = _values(kind, rule.column, frame)
    found = values < limit if rule.what in ("below", "before") else values > limit
    return engine.array(found.fillna(False).astype("bool"))


def _bad(kind: RawFiles, rule: RowRule, mask: Any, frame: Any, times: Any) -> Bad:
    count = int(mask.sum())
    if not count or rule.what == "null":
        return Bad(count)
    values = times if rule.what in ("before", "future") else _values(kind, rule.column, frame)
    chosen = values[engine_of(frame).series(mask, frame)]
    return Bad(count, _number(chosen.min() if rule.what in ("below", "before") else chosen.max()))


def _examples(raw: Any, union: Any, masks: dict[RowRule, Any], first_row: int) -> pd.DataFrame:
    """The bad rows with their places in the file and what is wrong with each, on the host; first_row: place of the
    first row of `raw`."""
    import pandas as pd

    engine = engine_of(raw)
    rows = engine.to_pandas(raw[engine.series(union, raw)].reset_index(drop=True))
    hits = {f"{rule.column} {rule.what}": engine.to_host(mask[union]) for rule, mask in masks.items()}
    reasons = ["; ".join(text for text, hit in hits.items() if hit[place]) for place in range(len(rows))]
    row, reason = first_row + engine.to_host(engine.arrays.flatnonzero(union)), "reason"
    return pd.concat([pd.DataFrame({"row": row, reason: reasons}), rows.rename(columns=_beside)], axis=1)


def _beside(name: str) -> str:
    """A file's own column of the name of one of ours."""
    return f"{name} (of the file)" if name in ("row", "reason") else name


def _measured(kind: RawFiles, frame: Any, times: Any) -> Measured:
    module = engine_of(frame)
    nulls, ranges, categories, numbers, lists = {}, {}, {}, {}, {}
    for name in frame.columns:
        if name not in kind.dtypes and name not in kind.roles:
            continue
        column, role = frame[name], kind.role(name)
        nulls[name] = int(column.isna().sum())
        classes = role == "label" and kind.tasks.get(name) != "regression"
        if classes or role == "category":
            texts = cast(frame[[name]], {name: "string"}, "label")[name] if classes else column
            categories[name] = CategoryStatistics.of(texts)
        elif role == "list":
            entries, _ = list_entries(column, f"list column {name!r}")
            lists[name] = CategoryStatistics.of(entries[entries.notna()].rename(name))
        elif role in ("number", "weight", "label"):
            values = _values(kind, name, frame)
            known = values.dropna()
            if len(known):
                ranges[name] = (_number(known.min()), _number(known.max()))
            numbers[name] = naming(name, module.column_statistics, values.astype("float32"))
        elif role == "time" and times is not None and len(times):
            ranges[name] = (_number(times.min()), _number(times.max()))
    alone = {name: name for name in lists}  # each is held against its own past, whatever vocabulary it shares
    statistics = Statistics(len(frame), categories, numbers, lists, alone)
    return Measured(len(frame), nulls, ranges, statistics, _fingerprint(kind, frame, times))


def _values(kind: RawFiles, name: str, frame: Any) -> Any:
    """A column of floats, whole numbers or flags, or of a label that is written as text, as floats."""
    column = frame[name]
    if kind.dtypes.get(name) == "string":
        return cast(frame[[name]], {name: "float64"}, "label")[name]
    return column if column.dtype.kind == "f" else column.astype("float64")


def _number(value: Any) -> float:
    """Python's int or float of a scalar; 64-bit integers stay whole."""
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, int) else float(value)


def _fingerprint(kind: RawFiles, frame: Any, times: Any) -> int:
    """The sum over rows, modulo 2^64, of a hash of the row."""
    engine = engine_of(frame)
    rows = engine.arrays.zeros(len(frame), dtype="uint64")
    for name, dtype in kind.dtypes.items():
        column = times if name == kind.time and times is not None else frame[name]
        if is_list_type(dtype):
            hashed = _hashed_lists(column, list_types(dtype)[0], engine)
        elif column.dtype.kind == "f" or dtype in ("float32", "float64"):
            wide = engine.array(column.astype("float64").fillna(0.0)) + 0.0  # one zero, whatever its sign
            missing = engine.array(column.isna())
            hashed = engine.hash64(engine.series(wide.view("int64"), frame)) ^ missing.astype("int64")
        elif column.dtype.kind in "iub":
            missing = engine.array(column.isna())
            whole = column.fillna(False if column.dtype.kind == "b" else 0).astype("int64")
            hashed = engine.hash64(whole) ^ missing.astype("int64")
        else:
            hashed = engine.hash64(column.astype("str").fillna(NULL))
        rows = (rows ^ hashed.view("uint64")) * ODD
        rows ^= rows >> 29
    return int(rows.sum()) % WRAP if len(frame) else 0


def _hashed_lists(column: Any, elements: str, engine: Any) -> Any:
    """int64 [N]: a hash of the elements of each row's list in their order; a null list has another than an empty one.

    elements: their type.
    """
    xp = engine.arrays
    entries, lengths = list_entries(column, f"list column {column.name!r}")
    mixed = xp.zeros(0, dtype="uint64")
    ends = xp.cumsum(lengths)
    if len(entries):
        entries = entries.reset_index(drop=True)
        missing = engine.array(entries.isna())
        if elements == "string":
            hashed = engine.hash64(entries.astype("str").fillna(NULL))
        else:
            numbers = engine.array(entries.fillna(0).astype("int64" if elements == "int64" else "float64"))
            hashed = engine.hash64(engine.frames.Series((numbers + 0).view("int64")))
        place = xp.arange(len(entries)) - (ends - lengths)[row_of_entry(xp, lengths)]
        mixed = (hashed.view("uint64") ^ missing.astype("uint64")) + (place + 1).astype("uint64") * ODD
        mixed = (mixed ^ (mixed >> 29)) * ODD
        mixed = mixed ^ (mixed >> 31)
    sums = xp.concatenate([xp.zeros(1, dtype="uint64"), xp.cumsum(mixed)])
    rows = sums[ends] - sums[ends - lengths]  # modulo 2^64
    rows = rows + lengths.astype("uint64") + (engine.array(column.isna()).astype("uint64") << 40)
    return rows.view("int64")


def file_columns(kind: RawFiles, engine: str, path: str) -> dict[str, str | None] | None:
    """All columns of a readable file, and of Parquet their types; None where there is no header."""
    if path.endswith(PARQUET_ENDINGS):
        with fsspec.open(path, "rb") as file:
            schema = pq.read_schema(file)
        return {field.name: str(field.type) for field in schema}
    if kind.names is not None:
        return None
    module, source = load_engine(engine), csv_source(path, kind.encoding, head=True)
    return dict.fromkeys(csv_header(module, source, kind.separator))


def _offsets(
    kind: RawFiles, engine: str, path: str, columns: Mapping[str, str | None] | None
) -> tuple[str, ...] | None:
    """How the first times of a file are written, sorted; None where none has hours and minutes, as numbers."""
    name = str(kind.time)
    if name not in (kind.names or () if columns is None else columns):  # a step makes it
        return None
    stored = (columns or {}).get(name)
    if stored is not None and stored.startswith(("timestamp", "date", "time")):
        zone = stored.partition("tz=")[2].rstrip("]")
        return (_offset(zone) if zone else NO_OFFSET,)
    if stored is not None:
        with fsspec.open(path, "rb") as file, pq.ParquetFile(file) as parquet:
            first = next(parquet.iter_batches(OFFSET_ROWS, columns=[name])).to_pandas()[name]
    else:
        module, source = load_engine(engine), csv_source(path, kind.encoding)
        header = {} if kind.names is None else {"header": None, "names": list(kind.names)}
        head = module.read_csv(
            source, nrows=OFFSET_ROWS, dtype="str", keep_default_na=False, **header, **csv_fields(kind.separator)
        )
        first = module.to_pandas(head)[name]
    texts = first.dropna().astype("str").str.strip()
    ends = texts[texts.str.contains(":")].str.extract(OFFSET, expand=False)  # a date alone says nothing of zones
    return tuple(sorted({NO_OFFSET if end != end else _offset(end) for end in ends.drop_duplicates()})) or None


def _offset(written: str) -> str:
    """An offset as `+01:00`, whatever way it is written; the name of a zone as it is."""
    if written in ("Z", "UTC", "GMT"):
        return UTC_OFFSET
    digits = written[1:].replace(":", "")
    return f"{written[0]}{digits[:2]}:{digits[2:] or '00'}" if digits.isdigit() else written


def _ends(path: str) -> bool | None:
    if "://" in path or not path.endswith(TEXT_ENDINGS):
        return None
    with open(path, "rb") as file:
        file.seek(-1, 2)
        return file.read(1) in b"\r\n"
