"""One raw file against a contract, and against the files that were accepted before."""

from __future__ import annotations

import fnmatch
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from gigabatch.features.errors import DataError, raise_of_machine
from gigabatch.features.reading.sources import FileCache, expand, same_file
from gigabatch.features.recipes.base import RawFiles, Recipe
from gigabatch.features.refit.statistics import CategoryStatistics, Statistics, deviation
from gigabatch.pipeline.clock import shown
from gigabatch.pipeline.contract.drift import class_shares
from gigabatch.pipeline.contract.measure import (
    NO_OFFSET,
    Bad,
    Known,
    Measured,
    RowRule,
    file_columns,
    measure_file,
)
from gigabatch.pipeline.contract.state import ACCEPTED, NO_CHECKSUM, FileEntry
from gigabatch.pipeline.contract.terms import Contract, ContractError, KindTerms, flow, unbounded
from gigabatch.pipeline.memory import is_out_of_memory

DAY = 86_400.0
NEVER = 1e-4  # chance below which a file without a rare class is a fault of the file
FEW = 2 / 3  # of the usual rows, below which a file is told of that the contract lets pass
MOST_LOST = 0.1  # share of its rows that a file that was written anew may have lost
FAMILIES = {
    "number": ("int", "uint", "float", "double", "half", "decimal"),
    "text": ("string", "large_string", "dictionary"),
    "flag": ("bool",),
    "list": ("list", "large_list", "fixed_size_list"),
    "time": ("timestamp", "date", "time"),
}


@dataclass(frozen=True)
class FileReport:
    """What a check found.

    Parameters
    ----------
    path
        Path or URL.
    kind
        Of file, as `RawFiles.name`.
    accepted
        Whether it may be read.
    reasons
        Why not, as sentences that name file, column, what was found and the bound.
    warnings
        What else is worth a look.
    dropped
        Places of rows to be left out.
    measured
        What the file is like; None where it could not be read.
    checksum
        Of its content; empty where nobody asked.
    instead_of
        The accepted file whose rows these are and that is not there any more, as one that was compressed; else empty.
    since
        As `measured`, against what a night that did not end accepted of it, where that was another content.
    """

    path: str
    kind: str
    accepted: bool
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    dropped: tuple[int, ...] = ()
    measured: Measured | None = None
    checksum: str = ""
    instead_of: str = ""
    since: Measured | None = None


@dataclass
class Accepted:
    """What is known of files accepted before.

    Parameters
    ----------
    files
        By path.
    statistics
        Of all their rows, by kind.
    gone
        Those of `files` whose content is nowhere any more.
    put_aside
        By path what was accepted of files whose later content lies in quarantine.
    unended
        By path what was accepted last, also by a night that did not end: a person may have promoted its model.
    """

    files: dict[str, FileEntry] = field(default_factory=dict)
    statistics: dict[str, Statistics] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    put_aside: dict[str, FileEntry] = field(default_factory=dict)
    unended: dict[str, FileEntry] = field(default_factory=dict)

    def before(self, path: str) -> FileEntry | None:
        """What was accepted last under this name, as `same_file` gives it."""
        return self.files.get(path) or self.put_aside.get(path)


def kind_of(recipe: Recipe, path: str) -> RawFiles:
    """The kind of file that a path is.

    Raises
    ------
    DataError
        The recipe reads no such file, or does not say what its files are.
    """
    kinds = recipe.raw_files()
    if not kinds:
        raise DataError(f"recipe {type(recipe).__name__}: does not say what its raw files are, so none can be checked.")
    for kind in kinds:
        if same_file(path) in map(same_file, expand(kind.pattern)):
            return kind
    patterns = ", ".join(f"{kind.name} ({kind.pattern})" for kind in kinds)
    raise DataError(f"input {path}: it is none of the files that the recipe reads: {patterns}.")


def check_file(
    contract: Contract | None,
    recipe: Recipe,
    path: str,
    accepted: Accepted | None = None,
    *,
    engine: str = "pandas",
    cache: FileCache | None = None,
    now: float | None = None,
    time_unit: str = "auto",
    max_future_seconds: float = DAY,
    checksum: str = "",
) -> FileReport:
    """Read a raw file once and check it.

    Parameters
    ----------
    contract
        None checks what needs none: that the file can be read, has the columns that the recipe asks for, no null where
        it takes none, no time in the future, and that it is no accepted file under another name.
    recipe
        Whose file it is; see `Recipe.raw_files`.
    path
        Path or URL.
    accepted
        Files accepted before.
    engine
        Library of the frames.
    cache
        Keeps the parsed rows for the features stage.
    now
        Seconds since 1970; the clock's where it is None.
    time_unit, max_future_seconds
        As of the nightly settings; a contract's own go before them.
    checksum
        Of the file, to find it under another name.

    Returns
    -------
    FileReport
        Never an error for what is wrong with the file.

    Raises
    ------
    DataError
        The recipe reads no such file.
    ContractError
        The contract has no terms for this kind of file.
    ArtifactError, OSError
        The store cannot be written, memory or open files are too few, a disk fails, or this user may not read the
        file: it may be good.
    """
    kind, accepted = kind_of(recipe, path), accepted or Accepted()
    terms = None
    if contract is not None:
        if kind.name not in contract.files:
            raise ContractError(f"contract: it has no terms for files {kind.name!r}. Learn it again.")
        terms = contract.files[kind.name]
        time_unit, max_future_seconds = terms.unit or "none", contract.max_future_seconds
    mine = same_file(path)
    others = {name: item for name, item in accepted.files.items() if item.kind == kind.name and name != mine}
    there = {name: item for name, item in others.items() if name not in accepted.gone}
    if twin := next(
        (name for name, item in there.items() if checksum not in ("", NO_CHECKSUM) and item.checksum == checksum), None
    ):
        return FileReport(
            path, kind.name, False, (f"{path}: its content is that of {twin}, which was accepted.",), checksum=checksum
        )
    if "://" not in path and Path(path).is_dir():
        return FileReport(path, kind.name, False, (f"input {path}: it is a directory, no file.",), checksum=checksum)
    limit = (time.time() if now is None else now) + max_future_seconds
    before = accepted.before(mine)
    latest = accepted.unended.get(mine)
    rules = _rules(kind, terms, contract, path, others, limit, latest or before)
    drops = contract is not None and contract.on_bad_rows == "drop" and not kind.blocks
    drop = contract.max_bad_rows if contract is not None and drops else 0.0
    try:
        found = measure_file(kind, engine, path, cache, rules, drop, time_unit, known=known_rows(before))
    except (DataError, OSError) as error:
        _require_of_file(error, path)
        text = f"{'' if path in str(error) else f'input {path}: '}{error}{_hint(kind, terms, engine, path)}"
        return FileReport(path, kind.name, False, (text,), checksum=checksum)
    reasons: list[str] = []
    warnings: list[str] = []
    print_ = f"{found.fingerprint:016x}"
    since = None
    if latest is not None and latest.fingerprint not in (print_, None if before is None else before.fingerprint):
        since = measure_file(kind, engine, path, cache, rules, drop, time_unit, known=known_rows(latest))
        before = latest
    twins = [name for name, item in others.items() if item.fingerprint == print_]
    gone = next((name for name in twins if name not in there), "")
    if gone:  # rows that were accepted are not too old to be
        bad = {rule: item for rule, item in found.bad.items() if rule.what != "before"}
        found = replace(found, bad=bad, num_bad=sum(item.rows for item in bad.values()))
        warnings.append(f"{path}: it holds the {found.rows:,} rows of {gone}, which was accepted and is gone.")
    dropped = _bad_rows(kind, contract, path, found, reasons, warnings)
    if twin := next((name for name in twins if name in there), None):
        reasons.append(f"{path}: it holds the same {found.rows:,} rows as {twin}, which was accepted.")
    if before is not None and before.rows is not None:
        if contract is not None and found.rows < (1 - MOST_LOST) * before.rows:
            reasons.append(f"{path}: it was accepted with {before.rows:,} rows and now holds {found.rows:,}.")
        else:
            warnings.append(f"{path}: it has changed since it was accepted ({before.rows:,} rows, now {found.rows:,}).")
    if terms is not None and contract is not None:
        if bare := unbounded(kind, terms):
            force = " --force, which loses what a person has edited" if contract.edited else ""
            warnings.append(
                f"contract: it has no bounds of {', '.join(map(repr, bare))} in files of kind {kind.name!r}, as it was "
                f"learned without them. Learn it again (gigabatch contract{force})."
            )
        rows = [item.rows for item in others.values() if item.state == ACCEPTED and item.rows is not None]
        _check_whole(terms, path, found, rows, reasons, warnings)
        statistics = accepted.statistics.get(kind.name)
        for name in terms.columns:
            _check_column(terms, name, path, found, statistics, reasons, warnings)
            if found.added is not None:
                _check_added(terms, name, path, found.added, statistics, reasons)
    return FileReport(
        path, kind.name, not reasons, tuple(reasons), tuple(warnings), dropped, found, checksum, gone, since
    )  # fmt: skip


def check_files(
    contract: Contract | None, recipe: Recipe, paths: Iterable[str], accepted: Accepted | None = None, **options: Any
) -> list[FileReport]:
    """`check_file` of each, in the order given; one that holds the rows of another of these is refused. What is said of
    the contract is said of the first file alone.

    Values that an earlier one of these holds are seen for the later ones. Rows are held against the newest row before
    all of these, so that files of several days may come at once, in any order.

    Parameters
    ----------
    contract, recipe, accepted
        As of `check_file`.
    paths
        Paths or URLs.
    options
        Others of `check_file`, and `checksums` by path.

    Returns
    -------
    list of FileReport
        One a path.
    """
    known = accepted or Accepted()
    checksums, statistics = options.pop("checksums", {}), dict(known.statistics)
    reports: list[FileReport] = []
    seen: dict[tuple[str, str], str] = {}
    told: set[str] = set()  # warnings that name no file
    for path in paths:
        checksum = checksums.get(path, "")
        report = check_file(contract, recipe, path, replace(known, statistics=statistics), checksum=checksum, **options)
        report = replace(report, warnings=tuple(text for text in report.warnings if text not in told))
        told |= set(report.warnings)
        found = report.measured
        if report.accepted and found is not None:
            keys = [(report.kind, f"{found.fingerprint:016x}"), (report.kind, checksum or path)]
            twin = next((seen[key] for key in keys if key in seen), None)
            if twin is not None:
                text = f"{path}: it holds the same {found.rows:,} rows as {twin}, which came with it."
                report = FileReport(
                    path, report.kind, False, (text,), report.warnings, (), found, checksum
                )  # fmt: skip
            else:
                seen |= dict.fromkeys(keys, path)
                before, fresh = statistics.get(report.kind), found.statistics
                statistics[report.kind] = fresh if before is None else before.merge(fresh)
        reports.append(report)
    return reports


def _rules(
    kind: RawFiles,
    terms: KindTerms | None,
    contract: Contract | None,
    path: str,
    others: Mapping[str, FileEntry],
    limit: float,
    before: FileEntry | None,
) -> list[RowRule]:
    rules = [RowRule(name, "null") for name in sorted(kind.filled)]
    if kind.time is not None:
        rules.append(RowRule(kind.time, "future", limit))
    if terms is None or contract is None:
        return rules
    last = max((item.last for item in others.values() if item.last is not None), default=None)
    if kind.time is not None and terms.overlap is not None and last is not None and not backfilled(contract, path):
        earliest = last - terms.overlap
        if before is not None and before.first is not None:  # corrected rows take the place of accepted ones
            earliest = min(earliest, before.first)
        rules.append(RowRule(kind.time, "before", earliest))
    for name, column in terms.columns.items():
        if column.range is not None and column.role in ("number", "weight", "label"):
            rules += [RowRule(name, "below", column.range[0]), RowRule(name, "above", column.range[1])]
    return rules


def _require_of_file(error: BaseException | None, path: str) -> None:
    """Raise what is no fault of the file: the machine has failed, or had too little of something."""
    while error is not None:
        raise_of_machine(error, path)
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from None
        error = error.__cause__


def known_rows(before: FileEntry | None) -> Known | None:
    """The rows that were accepted of a file; None where nobody counted them."""
    if before is None or before.rows is None or before.fingerprint is None:
        return None
    return Known(before.rows, int(before.fingerprint, 16), before.last)


def backfilled(contract: Contract, path: str) -> bool:
    """Whether the contract lets a file hold rows from before what was trained."""
    name = path.rstrip("/").rpartition("/")[2]
    return any(fnmatch.fnmatchcase(name, item) or path == item for item in contract.backfill)


def _bad_rows(
    kind: RawFiles,
    contract: Contract | None,
    path: str,
    found: Measured,
    reasons: list[str],
    warnings: list[str],
) -> tuple[int, ...]:
    """Say what is wrong with rows; the places of those that are to be left out."""
    bad = {rule: item for rule, item in found.bad.items() if item.rows}
    if not bad:
        return ()
    told = [f"{path}: {_sentence(rule, item, found.unit)}" for rule, item in bad.items()]
    wanted, most = (contract.on_bad_rows, contract.max_bad_rows) if contract else ("refuse", 0.0)
    share = found.num_bad / (found.rows + len(found.places))
    if found.places:
        warnings += [f"{text} They are left out." for text in told]
        return found.places
    hard = {rule.what for rule in bad} & {"null", "future", "before"}
    if wanted == "keep" and not hard and share <= most:
        warnings += told
        return ()
    if kind.blocks and wanted == "drop":
        told.append(f"{path}: files of kind {kind.name!r} are streamed, so that single rows cannot be left out.")
    if wanted != "refuse" and share > most:
        told.append(f"{path}: {share:.2%} of its rows are bad, max_bad_rows is {most:.2%}.")
    reasons += told
    return ()


def _sentence(rule: RowRule, bad: Bad, unit: str | None) -> str:
    rows = f"column {rule.column!r}: {bad.rows:,} row(s)"
    if rule.what == "null":
        return f"{rows} are null, and the recipe takes none."
    assert bad.worst is not None
    if rule.what == "future":
        return f"{rows} lie in the future, up to {shown(bad.worst, unit)}; the bound is {shown(rule.limit, 's')}."
    if rule.what == "before":
        return (
            f"{rows} lie before what was accepted earlier, down to {shown(bad.worst, unit)}; the bound is "
            f"{shown(rule.limit, unit)}. If it is meant to hold them, gigabatch contract --accept FILE takes it; "
            "backfill in the contract names such files before they come."
        )
    return f"{rows} are {rule.what} {rule.limit:.6g}, {'down' if rule.what == 'below' else 'up'} to {bad.worst:.6g}."


def _check_whole(
    terms: KindTerms,
    path: str,
    found: Measured,
    before: Sequence[int],
    reasons: list[str],
    warnings: list[str],
) -> None:
    """before: rows of the files that were accepted before."""
    if terms.rows is not None and not terms.rows[0] <= found.rows <= terms.rows[1]:
        what = "few" if found.rows < terms.rows[0] else "many"
        reasons.append(
            f"{path}: too {what} rows, {found.rows:,}; the bounds are {terms.rows[0]:,} to {terms.rows[1]:,}."
        )
    elif terms.rows is not None and len(before) > 1:
        usual, small = median(before), sorted(before)[max(1, len(before) // 10)]
        if found.rows < min(FEW * usual, small):  # of each week's small day nobody is told
            warnings.append(
                f"{path}: few rows, {found.rows:,}; the usual accepted file has {usual:,.0f}. Is all of it there?"
            )
    if terms.ends and found.ends is False:
        reasons.append(f"{path}: its last line has no line break, and all before had one; it may have been cut off.")
    if terms.calendar is not None and found.calendar is not None and found.calendar != terms.calendar:
        forms = {True: "dates or text", False: "numbers"}
        reasons.append(f"{path}: its times are {forms[found.calendar]}, expected {forms[terms.calendar]}.")
    if terms.offsets and found.offsets:
        _check_offsets(terms.offsets, path, found.offsets, reasons, warnings)
    if terms.others is not None and found.columns is not None:
        known = {*terms.columns, *terms.others}
        if new := [name for name in found.columns if name not in known]:
            warnings.append(f"{path}: new column(s) {', '.join(map(repr, new))}, which nothing reads.")
        if gone := [name for name in terms.others if name not in found.columns]:
            warnings.append(f"{path}: column(s) {', '.join(map(repr, gone))} are gone, which nothing reads.")
    for name, column in terms.columns.items():
        stored = (found.columns or {}).get(name)
        if column.stored and stored and stored != "null" and family(stored) != family(column.stored):
            reasons.append(f"{path}: column {name!r} is stored as {stored}, expected {column.stored}.")


def _check_offsets(
    known: tuple[str, ...], path: str, found: tuple[str, ...], reasons: list[str], warnings: list[str]
) -> None:
    """A time without an offset is read as UTC, so one that is lost, or comes, moves rows by hours."""
    new = [offset for offset in found if offset not in known]
    if new and (NO_OFFSET in new or set(known) == {NO_OFFSET}):
        with_offset = ", ".join(offset for offset in (*known, *new) if offset != NO_OFFSET)
        ways = (f"with an offset from UTC ({with_offset})", "without an offset from UTC")
        here, before = ways[::-1] if NO_OFFSET in new else ways
        reasons.append(
            f"{path}: times are written {here}, and before {before}. Where this is meant, set offsets: "
            f"{flow([*known, *new])} in the contract."
        )
    elif new:
        warnings.append(
            f"{path}: times are written with the offset(s) {', '.join(new)} from UTC, and before with "
            f"{', '.join(known)}: summer time, or a clock that was set wrong. Where that is right, add them to offsets "
            "in the contract."
        )


def family(stored: str) -> str:
    """Whether a type of Arrow holds numbers, text, flags, times or lists of one of these; else its own name."""
    outer, bracket, inner = stored.partition("<")
    if bracket and outer in FAMILIES["list"]:
        return f"list of {family(inner.partition(': ')[2])}"
    return next((name for name, starts in FAMILIES.items() if stored.startswith(starts)), stored)


def _check_column(
    terms: KindTerms,
    name: str,
    path: str,
    found: Measured,
    before: Statistics | None,
    reasons: list[str],
    warnings: list[str],
) -> None:
    column, where = terms.columns[name], f"{path}: column {name!r}:"
    nulls = found.nulls.get(name, 0) / max(found.rows, 1)
    if column.nulls is not None and nulls > column.nulls:
        reasons.append(f"{where} {nulls:.2%} of its rows are null, the bound is {column.nulls:.2%}.")
    state = _values(found.statistics, name)
    fresh = state if found.added is None else _values(found.added, name)  # a file that grows passes any bound
    if fresh is not None and column.distinct is not None and len(fresh.counts) > column.distinct:
        reasons.append(f"{where} {len(fresh.counts):,} distinct values, the bound is {column.distinct:,}.")
    earlier = None if before is None else _values(before, name)
    if state is not None and column.unseen is not None and earlier is not None:
        unseen = int(state.unseen(earlier.vocabulary)["count"].sum()) / max(state.rows, 1)
        if unseen > column.unseen:
            what = "the elements of its lists are values" if column.role == "list" else "its rows hold values"
            reasons.append(
                f"{where} {unseen:.2%} of {what} that no accepted file has, the bound is {column.unseen:.2%}."
            )
    if column.shares is not None and state is not None and state.rows > state.nulls:
        usual = {} if earlier is None else class_shares(earlier)
        _check_classes(column.shares, where, class_shares(state), state.rows - state.nulls, usual, reasons, warnings)
    numbers = found.statistics.numbers.get(name)
    if column.mean is not None and numbers is not None and numbers.moments.count:
        mean = numbers.moments.scale().mean
        if not column.mean[0] <= mean <= column.mean[1]:
            low, high = column.mean
            reasons.append(f"{where} the mean of this label is {mean:.6g}, the bounds are {low:.6g} to {high:.6g}.")


def _values(statistics: Statistics, name: str) -> CategoryStatistics | None:
    """Of a category, or of the elements of a list column; None of another column, or where nothing is known."""
    state = statistics.categories.get(name, statistics.lists.get(name))
    return None if state is None or not state.rows else state


def _check_added(
    terms: KindTerms, name: str, path: str, added: Statistics, before: Statistics | None, reasons: list[str]
) -> None:
    """The rows that a file has gained, alone: among all of its rows they are few. A bound has four standard errors of
    so many rows more than for a whole file."""
    column, state, numbers = terms.columns[name], _values(added, name), added.numbers.get(name)
    found = state if state is not None else numbers
    if found is None:
        return
    where, known = f"{path}: column {name!r}, {added.rows:,} new row(s):", found.rows - found.nulls
    shares: list[tuple[str, float, float, float, int]] = []  # what, share, bounds, of how many rows
    if column.nulls is not None and column.role != "list":  # of which rows are told by their lengths
        shares.append(("are null", found.nulls / found.rows, 0.0, column.nulls, found.rows))
    earlier = None if before is None else _values(before, name)
    if state is not None and column.unseen is not None and earlier is not None:
        unseen = int(state.unseen(earlier.vocabulary)["count"].sum())
        shares.append(("hold values that no accepted file has", unseen / found.rows, 0.0, column.unseen, found.rows))
    if state is not None and column.shares is not None and known:
        of_class = class_shares(state)
        shares += [(f"are {label!r}", of_class.get(label, 0.0), *ends, known) for label, ends in column.shares.items()]
    for what, share, low, high, rows in shares:
        low, high = (end + sign * 4 * math.sqrt(end * (1 - end) / rows) for end, sign in ((low, -1), (high, 1)))
        if not low <= share <= high:
            reasons.append(
                f"{where} {share:.2%} of them {what}, the bounds are {max(low, 0):.2%} to {min(high, 1):.2%}."
            )
    if column.mean is not None and numbers is not None and known:
        mean, slack = numbers.moments.scale().mean, 4 * (deviation(numbers) or 0.0) / math.sqrt(known)
        if not column.mean[0] - slack <= mean <= column.mean[1] + slack:
            reasons.append(
                f"{where} the mean of this label is {mean:.6g}, the bounds are {column.mean[0] - slack:.6g} to "
                f"{column.mean[1] + slack:.6g}."
            )


def _check_classes(
    shares: Mapping[str, tuple[float, float]],
    where: str,
    found: Mapping[str, float],
    rows: int,
    usual: Mapping[str, float],
    reasons: list[str],
    warnings: list[str],
) -> None:
    """usual: the shares in accepted files; empty where there are none."""
    if new := [name for name in found if name not in shares]:
        shown_, known = ", ".join(map(repr, new[:10])), ", ".join(map(repr, list(shares)[:10]))
        two = "A binary target has no more than two: write them as those, or see label_strip and label_steps. "
        right = "Of a multiclass one, where they are right," if len(shares) == 2 else "Where they are right,"
        reasons.append(
            f"{where} class(es) {shown_} are new, known are {known}. {two if len(shares) == 2 else ''}{right} give "
            f"them bounds in the contract, shares: {flow({name: [0, 1] for name in new[:10]})}, or accept this file "
            "and learn it again."
        )
    if len(found) == 1 and len(shares) > 1:
        text = f"{where} every label is {next(iter(found))!r}; classes are {', '.join(map(repr, shares))}."
        if (1 - min(sum(share for name, share in usual.items() if name not in found), 1)) ** rows < NEVER:
            reasons.append(text)
            return
        warnings.append(f"{text} Of {rows:,} rows that may be chance.")
    for name, (low, high) in shares.items():
        share = found.get(name, 0.0)
        if not low <= share <= high:
            reasons.append(f"{where} {share:.2%} of its labels are {name!r}, the bounds are {low:.2%} to {high:.2%}.")


def _hint(kind: RawFiles, terms: KindTerms | None, engine: str, path: str) -> str:
    """What a file's header tells of why it could not be read."""
    try:
        there = list(file_columns(kind, engine, path) or ())
    except Exception:  # whatever keeps a reader from the header has been said of the file
        return ""
    gone = [name for name in kind.dtypes if name not in there]
    known = {*kind.dtypes, *((terms.others or ()) if terms else ())}
    new = [name for name in there if name not in known] if terms else []
    return f" Was {gone[0]!r} renamed {new[0]!r}?" if there and len(gone) == 1 and len(new) == 1 else ""
