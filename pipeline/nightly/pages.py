"""The pages of nights: `runs/<name>/nights/DATE.html`, one a night, and `index.html` beside them.

A page is made of the night's line of nightly.jsonl, of the lines before it, and of what the night hands over
(`Material`); a night that failed, was refused or was stopped has one of what is known. A page that is there is never
written again: a second night of one date is `DATE-2.html`. Lines that got no page, as those of a configuration that
could not be read, get one by the next night. `runs/<name>/nightly.html` is a copy of the last one.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gigabatch.features.refit.churn import CategoryChurn, Churn, ContinuousChurn
from gigabatch.features.setting_checks import time_unit
from gigabatch.pipeline.clock import guessed_unit, shown
from gigabatch.pipeline.config.config import NightlySettings
from gigabatch.pipeline.contract.decide import Decision
from gigabatch.pipeline.contract.drift import LEVELS, Drift
from gigabatch.pipeline.contract.state import FileEntry, read_state
from gigabatch.pipeline.display import about_seconds, is_number
from gigabatch.pipeline.nightly.codes import (
    AS_CONFIGURED,
    DRIFTED,
    FAILED,
    KEPT,
    MIN_ROWS,
    MORE_IS_BETTER,
    PROMOTED,
    REFUSED,
)
from gigabatch.pipeline.reports.charts import Chart, Curves, calibration_chart, curves_chart, stacked_chart
from gigabatch.pipeline.reports.night import LARGEST, Bar, Card, Gain, NightPage, Part, Section, Square, render_night
from gigabatch.pipeline.runs.record import newest_records
from gigabatch.pipeline.stages.finished import Run
from gigabatch.pipeline.stopping import stopped_by
from gigabatch.pipeline.store.files import (
    NO_LINK,
    ArtifactError,
    atomic_write,
    fsync_file,
    fsync_folder,
    json_text,
    refusals_named,
)
from gigabatch.pipeline.store.keys import text_checksum

if TYPE_CHECKING:
    from gigabatch.pipeline.nightly.comparison import Seen
    from gigabatch.pipeline.nightly.findings import Findings
    from gigabatch.pipeline.stages.stages import Encoded

GAIN_NUMBERS = ("gain", "bound", "upper", "prediction_churn", "constant", "record", "rows")  # of a comparison's table
log = logging.getLogger(__name__)
FOLDER, INDEX, LAST = "nights", "index.html", "nightly.html"
LAST_NIGHTS = 30  # in charts
MOST_LISTED = 400  # nights in the index
MOST_LATE = 5  # pages of earlier lines that one night makes up for
SLICES_SHOWN = 10
SERVING = "Figures are as where the models serve (train.prior). "
LEFT_SECONDS = 3600  # how old a temporary file is that nobody writes any more
HEAD = 1000  # bytes of a page, in which stands whose it is
ROLES = {"current": "current model", "candidate": "new model", "reference": "reference"}  # in order of their colours
# By exit code: a letter for the row of nights, a word, and whether it is good; what else there is was a failure.
KINDS: dict[Any, tuple[str, str, bool | None]] = {
    PROMOTED: ("P", "promoted", True),
    KEPT: ("K", "kept", None),
    REFUSED: ("R", "data refused", False),
    DRIFTED: ("D", "drift refused", False),
    FAILED: ("F", "failed", False),
    130: ("S", "stopped", False),
    143: ("S", "stopped", False),
}
ORDER = {"PSI": 0, "unseen": 1, "nulls": 2}  # of a column's measures
STEPS = {
    "files and features": ("contract", "features"),
    "encode": ("encode",),
    "train": ("train",),
    "evaluate, compare, store": ("evaluate", "compare", "store"),
}


@dataclass
class Material:
    """What a night hands over to its page beside its line: what it was told of files, its packed rows, what was found
    on the window, and its settings. None of what it did not come to."""

    settings: NightlySettings | None = None
    decision: Decision | None = None
    encoded: Encoded | None = None
    findings: Findings | None = None

    def look(self, seen: Seen, home: Path) -> None:
        """Keep `findings` of the window; an error is logged and changes nothing of the night."""
        from gigabatch.pipeline.nightly.findings import findings  # of a night that has compared: torch is there

        started = time.perf_counter()
        try:
            self.findings = findings(seen, home)
        except Exception as error:
            if stopped_by(error):
                raise
            log.exception("the night's page is without what the window tells beside the comparison")
        log.info("looked at the window for the night's page, %.1f s", time.perf_counter() - started)


def write_night(home: Path, entry: Mapping[str, Any], material: Material) -> Path:
    """Write the page of a night, the list of nights and `nightly.html`.

    Parameters
    ----------
    home
        `runs/<name>`.
    entry
        The night's line.
    material
        What else is known of it.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    OSError
        Where the folder refuses it.
    """
    folder = home / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    lines = (item for item in newest_records(home) if item.get("action") == "nightly")
    nights = list(itertools.islice(lines, MOST_LISTED + 1))[::-1]
    marks = [mark_of(item) for item in nights]
    if mark_of(entry) not in marks:  # the disk refused the line
        nights, marks = [*nights, dict(entry)], [*marks, mark_of(entry)]
    here, pages = max(n for n, mark in enumerate(marks) if mark == mark_of(entry)), pages_of(folder)
    paged = [place for place in range(here) if marks[place] in pages]
    for place in range(max(paged[-1] + 1 if paged else 0, here - MOST_LATE), here):
        page = night_page(home, nights[: place + 1], pages, Material())
        pages[marks[place]] = _keep(folder, nights[place], _bytes(page))
    page = night_page(home, nights[: here + 1], pages, material)
    pages[marks[here]] = _keep(folder, entry, _bytes(page))
    atomic_write(home / LAST, _bytes(_moved(page, f"{FOLDER}/")))
    charts = next(part.charts for section in page.sections if section.key == "nights" for part in section.parts)
    drawn = charts if here == len(nights) - 1 else None
    atomic_write(folder / INDEX, _bytes(index_page(home, nights, pages, drawn)))
    return folder / pages[marks[here]]


def mark_of(entry: Mapping[str, Any]) -> str:
    """What a page has in its head to tell which line it is of: two lines may have one second."""
    told = [str(entry.get(key)) for key in ("at", "exit_code", "run", "decision")]
    return f"{told[0]} {text_checksum(json_text(told))}"


def pages_of(folder: Path) -> dict[str, str]:
    """Names of the newest pages by their mark."""
    found = {}
    names = sorted(path.name for path in folder.glob("[!.]*.html") if path.name != INDEX)
    for name in names[-2 * MOST_LISTED :]:
        with open(folder / name, "rb") as file:
            if mark := re.search(r'<meta name="night" content="([^"]*)">', file.read(HEAD).decode(errors="replace")):
                found[unescape(mark[1])] = name
    return found


def _keep(folder: Path, entry: Mapping[str, Any], content: bytes) -> str:
    """Write a page under the first name of its date that is free, whole or not at all; its name."""
    day = date if re.fullmatch(r"\d{4}-\d\d-\d\d", date := str(entry.get("at"))[:10]) else "undated"
    temporary = folder / f".{day}-{os.getpid()}-{secrets.token_hex(4)}"
    with refusals_named(folder):
        try:
            temporary.write_bytes(content)
            fsync_file(temporary)
            for number in itertools.count(1):
                path = folder / (f"{day}.html" if number == 1 else f"{day}-{number}.html")
                try:
                    os.link(temporary, path)  # never over another, as a rename would
                except FileExistsError:
                    continue
                except OSError as error:
                    if error.errno not in NO_LINK:
                        raise
                    if path.exists():
                        continue
                    os.rename(temporary, path)
                break
            fsync_folder(folder)
        finally:
            temporary.unlink(missing_ok=True)
    return path.name


def _sweep(folder: Path) -> None:
    """Remove what killed processes left."""
    for path in folder.glob(".*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > LEFT_SECONDS:
                path.unlink()


def _bytes(page: NightPage) -> bytes:
    return render_night(page).encode("utf-8", "replace")


def _moved(page: NightPage, base: str) -> NightPage:
    """The page for another folder, from which `base` leads to this one's."""

    def of(part: Part) -> Part:
        squares = [replace(item, link=item.link and base + item.link) for item in part.squares]
        return replace(part, squares=squares, links=[link and base + link for link in part.links])

    sections = [replace(item, parts=[of(part) for part in item.parts]) for item in page.sections]
    return replace(page, links=[(text, base + link) for text, link in page.links], sections=sections)


def night_page(
    home: Path, nights: Sequence[Mapping[str, Any]], pages: Mapping[str, str], material: Material
) -> NightPage:
    """What stands on the page of the last of these nights. pages: of the others, by their mark."""
    entry, run = nights[-1], nights[-1].get("run")
    before = next((pages[mark] for item in reversed(nights[:-1]) if (mark := mark_of(item)) in pages), None)
    links = [("all nights", INDEX)]
    if before is not None:
        links.append(("the night before", before))
    if isinstance(run, str) and re.fullmatch(r"[\w-]+", run) and (home / run / "report.html").is_file():
        links.append((f"report of run {run}", f"../{run}/report.html"))
    return NightPage(
        title=f"{home.name}, night of {str(entry.get('at'))[:10]}",
        mark=mark_of(entry),
        at=str(entry.get("at")),
        verdict=verdict(entry),
        good=_kind(entry)[2],
        decision=str(entry.get("decision")),
        sections=[
            Section("files", "Quarantine and warnings", _quarantine(home, entry)),
            Section("comparison", "New model, current model and reference", _comparison(entry, material.settings)),
            Section("start", "How it started", _start(entry)),
            Section("drift", "Drift by column", _drift(entry, material)),
            Section("slices", "Slices that got worse", _slices(material.findings)),
            Section("calibration", "Calibration", _calibration(material.findings)),
            Section("nights", f"The last {LAST_NIGHTS} nights", _last_nights(nights, pages)),
            Section("unseen", "Cold start", _unseen(material.findings)),
            Section("embeddings", "Embeddings", _embeddings(material.findings)),
            Section("data", "Data, time and versions", _data(home, entry, material)),
        ],
        links=links,
    )


def index_page(
    home: Path,
    nights: Sequence[Mapping[str, Any]],
    pages: Mapping[str, str],
    charts: Sequence[Chart] | None = None,
) -> NightPage:
    """The list of nights, the newest first, with a link to each page; pages of lines that are gone come last.

    charts: of the last nights, where they are drawn already."""
    listed = list(reversed(nights[-MOST_LISTED:]))
    rows, links = [_row(item) for item in listed], [pages.get(mark_of(item)) for item in listed]
    marks = {mark_of(item) for item in nights}
    lost = sorted(((mark, name) for mark, name in pages.items() if mark not in marks), reverse=True)
    for mark, name in lost[: MOST_LISTED - len(listed)]:
        rows.append({"night": _moment(mark.partition(" ")[0]), "outcome": "its line is gone"})
        links.append(name)
    older = f"The newest {MOST_LISTED} are listed; older pages stay in this folder." * (len(nights) > MOST_LISTED)
    return NightPage(
        title=f"{home.name}, all nights",
        mark="",
        at=str(nights[-1].get("at")),
        verdict=verdict(nights[-1]),
        good=_kind(nights[-1])[2],
        decision="",
        sections=[
            Section("nights", f"The last {LAST_NIGHTS} nights", _last_nights(nights, pages, charts)),
            Section("list", "Nights", [Part(text=older, rows=rows, links=links)]),
        ],
    )


def verdict(entry: Mapping[str, Any]) -> str:
    """What a night came to, in one sentence.

    Examples
    --------
    >>> verdict({"exit_code": 10, "run": "b", "champion": "a"})
    'Kept: run a stays the current model.'
    """
    champion, (_, word, good) = entry.get("champion"), _kind(entry)
    stays = f"run {champion} stays the current model" if champion else "no model is current"
    if good:
        return f"Promoted: run {entry.get('run')} is the current model now."
    if good is None and not champion:
        return "Kept out: no model is current."
    what = {"data refused": "Tonight's data were refused", "drift refused": "Tonight's data have drifted and were "
            "refused", "failed": "The night failed", "stopped": "The night was stopped"}  # fmt: skip
    begin = "Kept" if good is None else what[word]
    return f"{begin}: {stays}." if "champion" in entry else f"{begin}."


def _row(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A night in the list."""
    steps = [_number(_mapping(step).get("seconds")) for step in _mapping(entry.get("steps")).values()]
    return {
        "night": _moment(entry.get("at")),
        "outcome": _kind(entry)[1],
        "run": entry.get("run"),
        "metric": entry.get("metric"),
        "current model": entry.get("current"),
        "new model": entry.get("candidate"),
        "gain": entry.get("gain"),
        "rows": entry.get("rows"),
        "in quarantine": len(_texts(_mapping(entry.get("files")).get("quarantined"))),
        "seconds": float(np.nansum(steps)) if steps else None,
    }


def _kind(entry: Mapping[str, Any]) -> tuple[str, str, bool | None]:
    code = entry.get("exit_code")
    return KINDS.get(code if isinstance(code, int) else None, KINDS[40])


def _mapping(value: Any) -> Mapping[str, Any]:
    """Lines may be of another version, or edited."""
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _number(value: Any) -> float:
    """NaN where it is none, or one that no chart could hold."""
    return float(value) if is_number(value) and abs(value) < LARGEST else float("nan")


def _moment(at: Any) -> str:
    return str(at)[:16].replace("T", " ")


def _files(home: Path) -> dict[str, FileEntry]:
    """What was decided about each file; nothing where the record cannot be read, which is no matter of a page."""
    try:
        return read_state(home).files
    except ValueError:
        return {}


def _file(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _quarantine(home: Path, entry: Mapping[str, Any]) -> list[Part]:
    told, known = _mapping(entry.get("files")), _files(home)
    held, taken = _texts(told.get("quarantined")), _texts(told.get("accepted"))
    rows: list[dict[str, Any]] = []
    for path in [*held, *(path for path in taken if path in known and known[path].dropped)]:
        item = known.get(path)
        why = "" if item is None else " ".join(item.reasons or item.warnings)
        count = None if item is None else item.rows if path in held else len(item.dropped)
        rows.append({"file": _file(path), "rows": count, "left out": "whole" if path in held else "rows", "why": why})
    shown = {text for path in held if path in known for text in known[path].reasons}
    warnings = [text for text in _texts(told.get("warnings")) if text not in shown]
    reasons = [] if _kind(entry)[1] == "kept" else _texts(entry.get("reasons"))  # those of a model stand below
    by_hand = "gigabatch contract --accept FILE takes one all the same." if held else ""
    return [
        Part("In quarantine", by_hand, rows=rows),
        Part("Why it was refused", items=reasons),
        Part("Warnings", items=warnings),
        Part("Warnings about the data and the new model", items=_texts(_summary(home, entry).get("warnings"))),
    ]


def _summary(home: Path, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """That of the new run; empty where there is none any more."""
    run = entry.get("run")
    try:
        return Run(home / run).summary if isinstance(run, str) and re.fullmatch(r"[\w-]+", run) else {}
    except ArtifactError:
        return {}


def _compared(entry: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(target, whom the new model is compared with, numbers); the target is named where there are several."""
    several = _mapping(entry.get("targets"))
    for name, numbers in (several or {"": entry}).items():
        if is_number(_mapping(numbers).get("candidate")):
            yield name, "current model" if is_number(numbers.get("current")) else "constant", numbers
    for name, numbers in _mapping(entry.get("against_reference")).items():
        if is_number(_mapping(numbers).get("candidate")):
            yield name if several else "", f"reference, run {entry.get('reference')}", numbers


def _comparison(entry: Mapping[str, Any], settings: NightlySettings | None) -> list[Part]:
    gains, rows = [], []
    for target, against, numbers in _compared(entry):
        metric, constant = str(numbers.get("metric")), _number(numbers.get("constant"))
        row: dict[str, Any] = {"target": target} if target else {}
        row |= {"against": against, "metric": metric, "new": numbers.get("candidate")}
        row |= {"theirs": numbers.get("current", numbers.get("constant"))}
        row |= {name: numbers.get(name) for name in GAIN_NUMBERS}
        rows.append({name: value for name, value in row.items() if not (against == "constant" and value is None)})
        if is_number(numbers.get("gain")):
            tolerated = None
            if settings is not None:
                tolerated = settings.reference_tolerance if "reference" in against else settings.tolerance
                tolerated *= 1 if metric in MORE_IS_BETTER else constant
            low, high = (end if is_number(end) else None for end in (numbers.get("bound"), numbers.get("upper")))
            name = f"{target}: against the {against}" if target else f"Against the {against}"
            gains.append(Gain(name, metric, numbers["gain"], low, high, tolerated))
    if not rows:
        return []
    text = "Gain of the new model on rows that none of the models has seen; more is better, zero is in the middle."
    if settings is not None and gains:
        text += (
            f" Each end of a bar is passed by chance in {1 - settings.confidence:.0%} of cases (paired bootstrap); the "
            "lower one must lie above the dashed line, the tolerance."
        )
    reasons = _texts(entry.get("reasons")) if _kind(entry)[1] == "kept" else []
    return [Part(text=text, items=[*reasons, *_texts(entry.get("left_out"))], gains=gains, rows=rows)]


def _start(entry: Mapping[str, Any]) -> list[Part]:
    start, window = _mapping(entry.get("start")), _mapping(entry.get("window"))
    if not start:
        return []
    how = {
        "warm": "Warm: it went on from weights, optimizer and ids of an earlier run",
        "cold": "Cold: a new model on the ids of an earlier run",
        "anew": "Anew: new ids and a new model",
    }.get(str(start.get("how")), str(start.get("how")))
    why = str(start.get("why"))
    if why == AS_CONFIGURED:
        how, why = "It began as the configuration says", "nightly.start, preprocess.from, train.start_from"
    names = {
        "rows": "rows trained on",
        "new": "later than those of the start",
        "late_trained": "in intervals with late rows",
        "late": "late rows among these",
        "replayed": "older ones, replayed",
        "gone": "rows of the start that are gone",
    }
    facts = {text: window[name] for name, text in names.items() if is_number(window.get(name))}
    return [Part(items=[f"{how} ({why})."], facts=facts)]


def _drift(entry: Mapping[str, Any], material: Material) -> list[Part]:
    decision, churn = material.decision, None
    try:
        churn = None if material.encoded is None else material.encoded.churn
    except Exception as error:  # what it could not write has failed the night itself
        log.warning("the night's page is without the churn of its train split: %s", error)
    parts = []
    ticks = "The first tick of a bar warns, the second is drift; what chance explains is neither."
    for kind, found in (decision.drift or {}).items() if decision is not None else ():
        text = f"{found.rows:,} new rows against {found.rows_old:,} accepted before. {ticks}"
        parts.append(Part(f"New files of kind {kind}", text, cards=drift_cards(found)))
    if churn is not None:
        text = f"{churn.rows:,} rows of tonight's train split against {churn.rows_old:,} of version {churn.version}."
        cards = churn_cards(churn, _follows(churn, material))
        parts.append(Part("Train split against what the ids were made from", text, cards=cards))
    if not parts:  # of the line alone
        verdicts = [
            {"file kind": kind, "column": column, "verdict": verdict}
            for kind, columns in _mapping(_mapping(entry.get("files")).get("drift")).items()
            for column, verdict in _mapping(columns).items()
        ]
        parts.append(Part(rows=sorted(verdicts, key=lambda row: -_level(row["verdict"]))))
    return parts


def _level(verdict: Any) -> int:
    return LEVELS.index(verdict) if verdict in LEVELS else 0


def drift_cards(found: Drift) -> list[Card]:
    """A card a column, the worst first."""
    names = {"psi": "PSI", "quantile": "quantiles", "label": "label", "nulls": "nulls", "unseen": "unseen"}
    bars: dict[str, list[Bar]] = {}
    for item in found.measures:
        bar = Bar(names.get(item.measure, item.measure), item.value, item.levels, item.verdict)
        bars.setdefault(item.column, []).append(bar)
    return _cards(bars)


def _follows(churn: Churn, material: Material) -> set[str]:
    """Columns that are made of nothing but what the contract takes for times and parts of the calendar."""
    if material.decision is None or material.encoded is None or not material.decision.calendar:
        return set()
    raw_of, calendar = material.encoded.features.raw_of, material.decision.calendar
    names = [item.column for item in churn.categories] + [item.column for item in churn.numbers]
    return {name for name in names if calendar.issuperset(raw_of(name))}


def churn_cards(churn: Churn, calendar: Collection[str] = ()) -> list[Card]:
    """A card a column, the worst first, by the thresholds of the report; calendar: columns whose values follow from the
    days that rows are of, of which nulls alone are shown."""
    limits, bars = churn.thresholds, dict[str, list[Bar]]()
    columns: list[CategoryChurn | ContinuousChurn] = [*churn.categories, *churn.numbers]
    for item in columns:
        found: list[tuple[str, float, float, float, float]] = []
        if item.stability is not None:
            psi = item.stability
            found.append(("PSI", psi.psi, limits.psi_moderate, limits.psi_large, psi.noise))
        change = abs(item.null_rate - item.null_rate_old)
        found.append(("nulls", change, limits.null_rate, limits.null_rate, churn.null_noise(item)))
        if isinstance(item, CategoryChurn):
            rise = max(item.unseen_rate - item.unseen_rate_expected, 0.0)
            found.append(("unseen", rise, limits.unseen_rate, limits.unseen_rate, churn.unseen_noise(item)))
        elif item.mean_shift is not None:
            shift = abs(item.mean_shift)
            found.append(("mean", shift, limits.mean_shift, limits.mean_shift, item.mean_noise or 0.0))
        if item.column in calendar:
            found = [one for one in found if one[0] == "nulls"]
        bars[item.column] = [
            Bar(name, value, (low, high), _verdict(value, low, high) if value > noise else "ok")
            for name, value, low, high, noise in found
        ]
    return _cards(bars)


def _verdict(value: float, low: float, high: float) -> str:
    return "drift" if value >= high else "warn" if value >= low else "ok"


def _cards(bars: Mapping[str, Sequence[Bar]]) -> list[Card]:
    def badness(card: Card) -> tuple[int, float]:
        return _level(card.verdict), max(bar.value / max(bar.levels[1], 1e-12) for bar in card.bars)

    cards = [
        Card(
            name,
            max((bar.verdict for bar in found), key=_level),
            sorted(found, key=lambda bar: ORDER.get(bar.measure, 9)),
        )
        for name, found in bars.items()
    ]
    return sorted(cards, key=badness, reverse=True)


def _slices(found: Findings | None) -> list[Part]:
    if found is None or not found.looked_at:
        return []
    text = (
        f"{found.looked_at} slices were looked at: frequent values of categorical columns with at least {MIN_ROWS} of "
        f"{_rows_looked_at(found)}. "
    )
    text += SERVING if found.serving else ""
    if not found.slices:
        return [Part(text=f"{text}None got worse beyond chance.")]
    text += (
        f"{len(found.slices)} got worse beyond chance, the clearest first; noise is what chance reaches in any of all "
        "these slices in one night of twenty."
    )
    rows = [asdict(item) for item in found.slices[:SLICES_SHOWN]]
    for row in rows:
        del row["units"]
    if len({row["target"] for row in rows}) == 1:
        rows = [{name: value for name, value in row.items() if name != "target"} for row in rows]
    return [Part(text=text, rows=[{"column": row.pop("column"), **row} for row in rows])]


def _rows_looked_at(found: Findings) -> str:
    sampled = f" (of {found.window:,}, evenly spread)" if found.rows < found.window else ""
    return f"{found.rows:,} rows{sampled}"


def _calibration(found: Findings | None) -> list[Part]:
    drawn = [
        calibration_chart(
            {text: models[role] for role, text in ROLES.items() if role in models}, f"calibration{number}", target
        )
        for number, (target, models) in enumerate((found.calibration if found else {}).items())
    ]
    return [Part(text=SERVING.strip() if found and found.serving and drawn else "", charts=drawn)]


def _last_nights(
    nights: Sequence[Mapping[str, Any]], pages: Mapping[str, str], charts: Sequence[Chart] | None = None
) -> list[Part]:
    nights = nights[-LAST_NIGHTS:]
    squares = []
    for item in nights:
        letter, word, good = _kind(item)
        kind = "" if good is None else "yes" if good else "no"
        squares.append(Square(letter, kind, f"{_moment(item.get('at'))}: {word}", pages.get(mark_of(item))))
    words = dict.fromkeys((letter, word) for letter, word, _ in map(_kind, nights))
    text = ", ".join(f"{letter} {word}" for letter, word in words)
    if charts is None:
        charts = history_charts(nights) if len(nights) > 1 else ()
    return [Part(text=text, squares=squares, charts=charts)]


def history_charts(nights: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Quality, rows and seconds by night, the newest at 0; a chart of which nothing is known is left out."""
    x, axis = range(1 - len(nights), 1), "nights (0: this one)"
    known = [item for item in nights if is_number(item.get("candidate"))]
    metric = known[-1].get("metric") if known else None  # nights with another one do not compare

    def series(read: Callable[[Mapping[str, Any]], Any]) -> list[float]:
        return [_number(read(item)) for item in nights]

    of_metric = [item if item.get("metric") == metric else {} for item in nights]
    quality = {
        text: [_number(item.get(key)) for item in of_metric]
        for text, key in (("current model", "current"), ("new model", "candidate"))
    }
    rows = {
        "train split": series(lambda item: _mapping(item.get("splits")).get("train")),
        "trained on": series(lambda item: _mapping(item.get("window")).get("rows")),
        "compared": series(lambda item: item.get("rows")),
    }
    seconds = {
        text: [float(np.nansum([_seconds(item, name) for name in names])) for item in nights]
        for text, names in STEPS.items()
    }
    charts = []
    for key, title, lines in (("quality", f"{metric} on the window", quality), ("rows", "Rows", rows)):
        lines = {name: values for name, values in lines.items() if np.isfinite(values).any()}
        if lines:
            flat = [value for values in lines.values() for value in values if value > 0]
            wide = key == "rows" and bool(flat) and max(flat) > 30 * min(flat)
            charts.append(curves_chart(Curves(x, lines, axis, log_y=wide), title, key))
    if np.sum(list(seconds.values())) > 0:
        charts.append(stacked_chart(x, seconds, (axis, ""), "Seconds by step", "seconds"))
    return charts


def _seconds(entry: Mapping[str, Any], step: str) -> float:
    return _number(_mapping(_mapping(entry.get("steps")).get(step)).get("seconds"))


def _unseen(found: Findings | None) -> list[Part]:
    if found is None or not found.unseen:
        return []
    text = f"{_rows_looked_at(found)} of the window by whether a model has an id for their values. Mean {found.measure}"
    text += "; noise: half of the gain's 95 % interval. Values of few rows say little."
    rows = [asdict(item) for item in found.unseen]
    keep = [name for name in rows[0] if name in ("rows", "count") or any(row[name] == row[name] for row in rows)]
    return [Part(text=text, rows=[{_UNSEEN.get(name, name): row[name] for name in keep} for row in rows])]


_UNSEEN = {"count": "number", "auc": "AUC", "auc_current": "AUC of the current", "candidate": "new"}


def _embeddings(found: Findings | None) -> list[Part]:
    rows = []
    for item in found.tables if found else ():
        never = item.never_trained
        share = None if never is None or not item.values else never / item.values
        rows.append(
            {"column": item.column, "width": item.width, "values": item.values, "never_trained": never}
            | {"share": share, "median norm": item.norm, "largest norm": item.largest, "not finite": item.broken}
        )
    text = "Tables of the new model. A row is never trained where no training of the lineage has held its value: it "
    text += "stands where new rows start."
    return [Part(text=text, rows=rows)] if rows else []


def _data(home: Path, entry: Mapping[str, Any], material: Material) -> list[Part]:
    known, told = _files(home), _mapping(entry.get("files"))
    unit = material.settings.time_unit if material.settings is not None else "auto"
    files = []
    for path in _texts(told.get("accepted")):
        item = known.get(path)
        row: dict[str, Any] = {"new file": _file(path)}
        if item is not None:
            row |= {"rows": item.rows, "from": _time(item.first, unit), "to": _time(item.last, unit)}
        files.append(row)
    steps = []
    for name, step in _mapping(entry.get("steps")).items():
        values = _mapping(step)
        reused = "yes" if values.get("skipped") is True else "no" if values.get("skipped") is False else ""
        steps.append(
            {"step": name, "seconds": _number(values.get("seconds")), "bytes": values.get("bytes"), "reused": reused}
        )
    total = float(np.nansum([step["seconds"] for step in steps])) if steps else 0.0
    facts = {f"rows of {split}": rows for split, rows in _mapping(entry.get("splits")).items()}
    if is_number(count := _mapping(entry.get("data")).get("files")):
        facts["raw files"] = count
    about = {"seed": entry.get("seed"), "configuration": entry.get("config"), "current model": entry.get("champion")}
    about = {name: value for name, value in about.items() if value is not None}
    notes = _texts(_summary(home, entry).get("notes"))
    return [
        Part(items=notes, facts=facts),
        Part("New files", rows=files),
        Part("Steps", f"{about_seconds(total)} in all.", rows=steps),
        Part("Versions", facts={**about, **_mapping(entry.get("environment"))}),
    ]


def _time(moment: float | None, unit: str) -> str:
    if moment is None:
        return ""
    if unit == "auto":
        return shown(moment, guessed_unit(moment))
    return shown(moment, None if unit == "none" else time_unit(unit, "nightly"))
