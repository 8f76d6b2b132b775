"""The terms of a contract as dataclasses, and its file: YAML that a person reads and edits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gigabatch.features.errors import DataError
from gigabatch.features.recipes.base import RawFiles, number_name
from gigabatch.features.setting_checks import time_unit
from gigabatch.pipeline.store.files import atomic_write, behind_links
from gigabatch.pipeline.store.keys import text_checksum

FORMAT = 1
CHOICES = {
    "on_bad_file": ("quarantine", "refuse"),
    "on_bad_rows": ("keep", "drop", "refuse"),
    "on_drift": ("warn", "refuse", "cold"),
}
CALENDAR = ("date", "year", "season", "quarter", "month", "week", "weekday", "day", "day_of_year")
PLAIN = set("abcdefghijklmnopqrstuvwxyz_")


class ContractError(ValueError):
    """A contract or the record of files cannot be used; the message names file and key."""


@dataclass(frozen=True)
class ColumnTerms:
    """What one column must be like; a bound that is None is not checked.

    Parameters
    ----------
    type
        As the recipe reads it.
    role
        `category`, `number`, `time`, `label`, `weight`, `key`, `group`, `list` or `weights` (of a list's elements).
    stored
        Type in Parquet files.
    calendar
        Which part of the calendar it tells, one of `CALENDAR`: its values follow from the days that rows are of, and
        nothing but nulls is held against earlier files.
    nulls
        Largest share of null rows.
    range
        Smallest and largest value; a row outside is a bad row.
    distinct
        Most distinct values of a file, or elements of its lists.
    unseen
        Largest share of rows whose value no accepted file holds, or of elements of lists.
    shares
        Of a label with classes: smallest and largest share of each class. Other classes are refused.
    mean
        Of a label that is a number: smallest and largest mean.
    drift
        By measure the levels of this column, in place of those of `DriftTerms`.
    """

    type: str
    role: str
    stored: str | None = None
    calendar: str | None = None
    nulls: float | None = None
    range: tuple[float, float] | None = None
    distinct: int | None = None
    unseen: float | None = None
    shares: dict[str, tuple[float, float]] | None = None
    mean: tuple[float, float] | None = None
    drift: dict[str, tuple[float, float]] | None = None


@dataclass(frozen=True)
class KindTerms:
    """What one kind of file must be like.

    Parameters
    ----------
    columns
        Those that are read.
    others
        Columns of the files that the recipe does not read; None where files have no header.
    rows
        Fewest and most rows of a file.
    unit
        What times count since 1970; None where they only order rows.
    calendar
        Whether times are written as dates or text.
    freshness
        How old the newest row of all files may be, in seconds; an older one is told as late.
    overlap
        By how much rows may lie before the newest row of files accepted earlier, in what times count; None where files
        are no pieces of time, so that nothing follows from it.
    ends
        Whether the last line ends with a line break, as it does unless a file was cut off.
    offsets
        How times are written that are dates or text: offsets from UTC such as `+01:00` (of Parquet zones too), `none`
        among them where there is none.
    """

    columns: dict[str, ColumnTerms]
    others: tuple[str, ...] | None = None
    rows: tuple[int, int] | None = None
    unit: str | None = None
    calendar: bool | None = None
    freshness: float | None = None
    overlap: float | None = None
    ends: bool | None = None
    offsets: tuple[str, ...] | None = None


@dataclass(frozen=True)
class DriftTerms:
    """From which change of new rows against those accepted before on it is worth a warning, and counts as drift.

    Parameters
    ----------
    psi
        Population stability index, where it also passes its noise.
    quantile
        Largest shift of the quantiles from 5 to 95 %, in deviations of the rows before.
    nulls
        Change of the share of nulls.
    unseen
        Share of rows with a value that no row before has, above what more rows of the same kind would have.
    label
        Change of a class's share; of a label that is a number the change of its mean, in deviations.
    """

    psi: tuple[float, float] = (0.1, 0.25)
    quantile: tuple[float, float] = (0.5, 1.0)
    nulls: tuple[float, float] = (0.05, 0.2)
    unseen: tuple[float, float] = (0.05, 0.2)
    label: tuple[float, float] = (0.05, 0.15)


@dataclass(frozen=True)
class Contract:
    """What raw files must be like, and what is done with those that are not.

    Parameters
    ----------
    recipe
        Its name; a contract is of one recipe and of the columns that it reads.
    files
        Terms by kind of file.
    drift
        Thresholds of drift.
    on_bad_file
        `quarantine`: the night goes on without it. `refuse`: the night ends.
    on_bad_rows
        `keep`: rows out of range are told and stay. `drop`: bad rows are left out and written to a file in quarantine.
        `refuse`: one makes the file bad. A row from the future, or from before what was trained, is never kept.
    max_bad_rows
        Share of bad rows above which the whole file is bad, whatever is done with rows.
    on_drift
        `warn`: told. `refuse`: the night ends. `cold`: the night trains without yesterday's weights.
    max_future_seconds
        What clocks and time zones may differ by.
    backfill
        Names of files, with * and ?, that may hold rows from before what was trained.
    edited
        Whether a person has changed the file since it was learned.
    """

    recipe: str
    files: dict[str, KindTerms]
    drift: DriftTerms = field(default_factory=DriftTerms)
    on_bad_file: str = "quarantine"
    on_bad_rows: str = "keep"
    max_bad_rows: float = 0.01
    on_drift: str = "warn"
    max_future_seconds: float = 86_400.0
    backfill: tuple[str, ...] = ()
    edited: bool = False

    def save(self, path: Path) -> None:
        """Write the file with comments, whole or not at all."""
        body = contract_text(self)
        path.parent.mkdir(parents=True, exist_ok=True)
        end = "# What was learned; another text above means that a person has edited it.\n"
        atomic_write(behind_links(path), f"{body}{end}learned: {text_checksum(body)}\n".encode())


MEASURES = {
    "psi": "population stability index: how far the shares of frequent values, or of tenths of numbers, moved",
    "quantile": "of numbers: largest shift of the 5 to 95 % quantiles, in deviations",
    "nulls": "change of the share of nulls",
    "unseen": "share of rows with values that no row before has, above what more of the same rows would have",
    "label": "change of a class's share; of a label that is a number that of its mean, in deviations",
}
COMMENTS = {
    "columns": "type, role; nulls: most null rows (share). range: values of a row outside make it a bad row. calendar: "
    "only nulls are checked.",
    "others": "columns that are not read; a new one is told, not refused",
    "rows": "fewest and most of a file; null: not checked",
    "unit": "what times count since 1970; null: they only order rows, and no time is known to lie in the future",
    "freshness": "seconds from now to the newest row of all files; beyond, the night says that files are late",
    "overlap": "how far new rows may lie before the newest accepted one, in what times count; null: not checked",
    "ends": "files end with a line break; one that does not was cut off",
    "offsets": "from UTC, as times are written, or none; one that is lost or comes is refused, another is told",
}


def contract_text(contract: Contract) -> str:
    """The contract as YAML with comments, without its last line."""
    out = [
        "# What raw files must be like (docs/contract.md). Edit the bounds; null means that something is not checked.",
        f"format: {FORMAT}",
        f"recipe: {quoted(contract.recipe)}",
        f"on_bad_file: {contract.on_bad_file}  # quarantine | refuse",
        f"on_bad_rows: {contract.on_bad_rows}  # keep | drop | refuse",
        f"max_bad_rows: {flow(contract.max_bad_rows)}  # share of bad rows that makes the file bad",
        f"on_drift: {contract.on_drift}  # warn | refuse | cold",
        f"max_future_seconds: {flow(contract.max_future_seconds)}  # rows later than now by more are refused",
        f"backfill: {flow(contract.backfill)}  # files with rows older than what was trained, as day-03*.csv",
        "drift:  # [warning, drift]: new rows against those accepted before",
        *(
            f"  {item.name}: {flow(getattr(contract.drift, item.name))}  # {MEASURES[item.name]}"
            for item in fields(DriftTerms)
        ),
        "files:",
    ]
    for name, kind in contract.files.items():
        out.append(f"  {quoted(name)}:")
        for item in fields(KindTerms):
            if item.name != "columns":
                comment = f"  # {COMMENTS[item.name]}" if item.name in COMMENTS else ""
                out.append(f"    {item.name}: {flow(getattr(kind, item.name))}{comment}")
        out.append(f"    columns:  # {COMMENTS['columns']}")
        out += [f"      {quoted(column)}: {flow(_given(terms))}" for column, terms in kind.columns.items()]
    return "\n".join(out) + "\n"


def _given(terms: ColumnTerms) -> dict[str, Any]:
    return {item.name: value for item in fields(terms) if (value := getattr(terms, item.name)) is not None}


def quoted(text: str) -> str:
    """A text in double quotes, as YAML reads it back whatever it holds."""
    shown = []
    for letter in text:
        if letter in '"\\':
            shown.append("\\" + letter)
        elif letter.isprintable():
            shown.append(letter)
        else:
            shown.append(f"\\U{ord(letter):08X}")
    return '"' + "".join(shown) + '"'


def flow(value: Any) -> str:
    """A value in one line of YAML."""
    if isinstance(value, Mapping):
        keys = (key if isinstance(key, str) and key and PLAIN.issuperset(key) and key not in WORDS else quoted(str(key))
                for key in value)  # fmt: skip
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in zip(keys, value.values(), strict=True)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if value != value else ".inf" if value > 0 else "-.inf"
    return json.dumps(value, allow_nan=False)


WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")


def load_contract(path: Path, recipe: str, kinds: Sequence[RawFiles]) -> Contract:
    """Read a contract and check it against the recipe that is to keep it.

    Parameters
    ----------
    path
        The YAML file.
    recipe
        Name of the recipe.
    kinds
        Its raw files.

    Returns
    -------
    Contract
        With `edited` as found.

    Raises
    ------
    ContractError
        No YAML, an unknown key or choice, a bound that is none, another recipe, or other columns than it reads.
    """
    raw, edited = _load(path)
    _known(raw, [*(item.name for item in fields(Contract) if item.name != "edited"), "format", "learned"], path, "")
    if raw.get("format") != FORMAT:
        raise ContractError(f"contract {path}: format is {raw.get('format')!r}, this version reads {FORMAT}.")
    if raw.get("recipe") != recipe:
        raise ContractError(
            f"contract {path}: it is of recipe {raw.get('recipe')!r}, and this configuration has {recipe!r}. Learn "
            "another (gigabatch contract --out FILE)."
        )
    decided = _decided(raw, path)
    files = _mapping(raw.get("files"), path, "files")
    found = {str(name): _kind(value, path, f"files.{name}") for name, value in files.items()}
    _same_columns(path, found, kinds)
    return Contract(recipe, found, edited=edited, **decided)


def load_decided(path: Path) -> tuple[dict[str, Any], bool]:
    """What in a contract follows from no file, by the names of `Contract`: levels, choices, what is to be let in; and
    whether a person has edited it.

    Raises
    ------
    ContractError
        It is no YAML, or one of these is none.
    """
    raw, edited = _load(path)
    return _decided(raw, path), edited


def _decided(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    for key, known in CHOICES.items():
        if raw.get(key, known[0]) not in known:
            raise ContractError(f"contract {path}: {key} is {raw[key]!r}. Known: {', '.join(known)}.")
    more = {key: raw[key] for key in CHOICES if key in raw}
    for key in ("max_bad_rows", "max_future_seconds"):
        if key in raw:
            more[key] = _number(raw[key], path, key, 0, 1 if key == "max_bad_rows" else math.inf)
    backfill = raw.get("backfill") or []
    if not isinstance(backfill, list) or not all(isinstance(name, str) for name in backfill):
        raise ContractError(f"contract {path}: backfill is a list of names of files, found {backfill!r}.")
    levels = _levels(raw.get("drift") or {}, path, "drift")
    return {"drift": DriftTerms(**levels), "backfill": tuple(backfill), **more}


def _load(path: Path) -> tuple[dict[str, Any], bool]:
    try:
        text = path.read_text(encoding="utf-8")
        raw = YAML(typ="safe", pure=True).load(text)
    except OSError as error:
        raise ContractError(f"contract {path}: cannot be read ({error.strerror}).") from error
    except (YAMLError, ValueError, RecursionError) as error:
        where = " ".join(str(error).split())[:300]
        raise ContractError(f"contract {path}: not valid YAML ({where}).") from error
    raw = _mapping(raw, path, "the whole")
    body = text.rpartition("# What was learned;")[0]
    return raw, raw.get("learned") != text_checksum(body)


def _kind(raw: Any, path: Path, where: str) -> KindTerms:
    raw = _mapping(raw, path, where)
    _known(raw, [item.name for item in fields(KindTerms)], path, where)
    columns = _mapping(raw.get("columns"), path, f"{where}.columns")
    found: dict[str, Any] = {"columns": {}}
    for name, value in columns.items():
        if not isinstance(name, str):
            raise ContractError(
                f"contract {path}: {where}.columns names {name!r}, which YAML takes for no text. Put it in quotes."
            )
        found["columns"][name] = _column(value, path, f"{where}.columns.{name}")
    for key in ("freshness", "overlap"):
        if raw.get(key) is not None:
            found[key] = _number(raw[key], path, f"{where}.{key}", 0)
    if raw.get("rows") is not None:
        found["rows"] = _pair(raw["rows"], path, f"{where}.rows")
    for key in ("others", "offsets"):
        if raw.get(key) is not None:
            found[key] = tuple(str(name) for name in _list(raw[key], path, f"{where}.{key}"))
    for key, types in (("unit", str), ("calendar", bool), ("ends", bool)):
        if raw.get(key) is not None:
            if not isinstance(raw[key], types):
                raise ContractError(f"contract {path}: {where}.{key} is {raw[key]!r}, expected {types.__name__}.")
            found[key] = raw[key]
    if "unit" in found:
        try:
            found["unit"] = time_unit(found["unit"], f"{where}.unit")
        except DataError as error:
            raise ContractError(f"contract {path}: {error}") from error
    return KindTerms(**found)


def _column(raw: Any, path: Path, where: str) -> ColumnTerms:
    raw = _mapping(raw, path, where)
    _known(raw, [item.name for item in fields(ColumnTerms)], path, where)
    found: dict[str, Any] = {}
    for key in ("type", "role", "stored"):
        if not isinstance(raw.get(key), str) and not (key == "stored" and raw.get(key) is None):
            raise ContractError(f"contract {path}: {where}.{key} is a text, found {raw.get(key)!r}.")
        found[key] = raw.get(key)
    if raw.get("calendar") is not None:
        if raw["calendar"] not in CALENDAR:
            raise ContractError(
                f"contract {path}: {where}.calendar is {raw['calendar']!r}. Known: {', '.join(CALENDAR)}."
            )
        found["calendar"] = raw["calendar"]
    for key in ("nulls", "unseen"):
        if raw.get(key) is not None:
            found[key] = _number(raw[key], path, f"{where}.{key}", 0, 1)
    if raw.get("distinct") is not None:
        found["distinct"] = int(_number(raw["distinct"], path, f"{where}.distinct", 0))
    for key in ("range", "mean"):
        if raw.get(key) is not None:
            found[key] = _pair(raw[key], path, f"{where}.{key}")
    if raw.get("shares") is not None:
        shares = _mapping(raw["shares"], path, f"{where}.shares")
        found["shares"] = {_class(name): _pair(value, path, f"{where}.shares.{name}") for name, value in shares.items()}
    if raw.get("drift") is not None:
        found["drift"] = _levels(raw["drift"], path, f"{where}.drift")
    return ColumnTerms(**found)


def _levels(raw: Any, path: Path, where: str) -> dict[str, tuple[float, float]]:
    drift = _mapping(raw, path, where)
    _known(drift, [item.name for item in fields(DriftTerms)], path, where)
    return {key: _pair(value, path, f"{where}.{key}") for key, value in drift.items()}


def _class(name: Any) -> str:
    return name if isinstance(name, str) else json.dumps(name, allow_nan=False)


def _same_columns(path: Path, found: Mapping[str, KindTerms], kinds: Iterable[RawFiles]) -> None:
    wanted = {kind.name: kind for kind in kinds}
    if found.keys() != wanted.keys():
        raise ContractError(
            f"contract {path}: it holds files {', '.join(map(repr, found))}, and the recipe reads "
            f"{', '.join(map(repr, wanted))}. Learn it again (gigabatch contract --force)."
        )
    for name, terms in found.items():
        types = {column: (item.type, item.role) for column, item in terms.columns.items()}
        asked = column_types(wanted[name])
        asked = {column: found for column, found in asked.items() if column not in unbounded(wanted[name], terms)}
        odd = [column for column in {**types, **asked} if types.get(column) != asked.get(column)]
        if odd:
            ours, theirs = types.get(odd[0]), asked.get(odd[0])
            raise ContractError(
                f"contract {path}: column {odd[0]!r} of {name} is {_told(ours)} there and {_told(theirs)} in the "
                "recipe. The settings have changed: learn it again (gigabatch contract --force)."
            )


def column_types(kind: RawFiles) -> dict[str, tuple[str, str]]:
    """Type and role of every column that is measured; `made` is the type of one that files do not hold."""
    names = [*kind.dtypes, *(name for name in kind.roles if name not in kind.dtypes)]
    return {name: (kind.dtypes.get(name, "made"), kind.role(name)) for name in names}


def unbounded(kind: RawFiles, terms: KindTerms) -> list[str]:
    """The numbers in columns of text that a contract does not know, as it was learned by an earlier version or before
    a step read them."""
    return [
        name for name in kind.roles if name.endswith(number_name("")) and name not in {**kind.dtypes, **terms.columns}
    ]


def _told(found: tuple[str, str] | None) -> str:
    return "absent" if found is None else f"a {found[1]} of type {found[0]}"


def _known(raw: Mapping[Any, Any], known: Sequence[str], path: Path, where: str) -> None:
    if unknown := [str(key) for key in raw if key not in known]:
        section = f" in {where}" if where else ""
        raise ContractError(
            f"contract {path}: unknown key(s) {', '.join(map(repr, unknown))}{section}. Known: {', '.join(known)}."
        )


def _mapping(raw: Any, path: Path, where: str) -> dict[Any, Any]:
    if not isinstance(raw, dict):
        raise ContractError(f"contract {path}: {where} is no mapping of keys to values, found {raw!r}.")
    return raw


def _list(raw: Any, path: Path, where: str) -> list[Any]:
    if not isinstance(raw, list):
        raise ContractError(f"contract {path}: {where} is a list, found {raw!r}.")
    return raw


def _number(raw: Any, path: Path, where: str, low: float = -math.inf, high: float = math.inf) -> Any:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not low <= raw <= high:
        raise ContractError(f"contract {path}: {where} is {raw!r}, expected a number from {low} to {high}.")
    return raw


def _pair(raw: Any, path: Path, where: str) -> tuple[float, float]:
    values = _list(raw, path, where)
    if len(values) != 2:
        raise ContractError(f"contract {path}: {where} is [low, high], found {raw!r}.")
    low, high = (_number(value, path, where) for value in values)
    if low > high:
        raise ContractError(f"contract {path}: {where} is [low, high], and {low} is above {high}.")
    return low, high
