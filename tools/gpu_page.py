"""What a log says, and the page that `tools/gpu_run.py` writes. Standard library only.

A page never says more than was seen: a pytest without a passed test, a benchmark without its JSON line and a sanitizer
without its summary have failed, whatever their exit code.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|deselected|xfailed|xpassed|warnings?)")
SUMMARY = re.compile(r"^=*\s*(?:no tests ran|(?:\d+ \w+(?:, )?)+) in [\d.]+s.*$")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?: - (.*))?$")
STARTED = re.compile(r"^(\S+::\S.*?)(?: (?:PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS)\b.*)?$")
SANITIZED = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
MAIN = ("torch", "triton", "cupy[-\\w]*", "numpy", "numba", "pandas", "pyarrow", "cudf[-\\w]*", "rmm[-\\w]*", "dask")
PASSED, FAILED_, TIMED_OUT, NOT_RUN, RUNNING = "passed", "failed", "timed out", "not run", "running"


@dataclass
class Record:
    """What came of one command.

    Attributes:
        verdict: `passed`, `failed`, `timed out`, `not run` or `running`.
        why: The reason of all but `passed`.
        counts: pytest's.
        failures: (test, last line of its error).
        left_out: Tests and folders that were skipped, as pytest says why.
        results: JSON lines of a benchmark.
    """

    step: int
    name: str
    command: str
    verdict: str = RUNNING
    why: str = ""
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[list[str]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    tail: str = ""


def judge(record: Record, kind: str, code: int, text: str) -> None:
    """Fill in what the log `text` of a command that ended with `code` says."""
    lines = text.splitlines()
    record.tail = "\n".join(lines[-15:])[-2000:]
    problem = "" if code == 0 else ended(code)
    if kind == "pytest":
        problem = read_pytest(record, lines, code, problem)
    elif kind == "benchmark":
        record.results = [found for line in lines if (found := result_of(line))]
        if not record.results and not problem:
            problem = "it printed no JSON line"
    elif kind == "sanitizer":
        errors = [int(one or other) for one, other in SANITIZED.findall(text)]
        if not errors:
            problem = problem or "compute-sanitizer printed no summary"
        elif any(errors):
            problem = f"{sum(errors)} errors or hazards"
    if problem and lines and kind != "pytest":
        problem += f": {last_line(lines)}"
    record.verdict, record.why = (FAILED_, problem) if problem else (PASSED, "")


def ended(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"


def last_line(lines: list[str]) -> str:
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def read_pytest(record: Record, lines: list[str], code: int, problem: str) -> str:
    """Counts and names of pytest's output; what is wrong with it, or ""."""
    record.failures = [[found[1], (found[2] or "")[:300]] for line in lines if (found := FAILED.match(line))]
    record.left_out = [line for line in lines if line.startswith(("LEFT OUT", "SKIPPED ["))]
    summary = next((line for line in reversed(lines) if SUMMARY.match(line)), "")
    record.counts = {name.removesuffix("s") if name.startswith(("error", "warning")) else name: int(number)
                     for number, name in COUNT.findall(summary)}  # fmt: skip
    if not summary:
        begun = next((found[1] for line in reversed(lines) if (found := STARTED.match(line))), "")
        where = f" in {begun}" if begun else f": {last_line(lines)}"
        return f"{problem or 'no summary line'}{where}"
    bad = record.counts.get("failed", 0) + record.counts.get("error", 0)
    if bad:
        return f"{bad} failed"
    if code == 5 or not record.counts.get("passed"):
        return "no test ran and passed"
    return problem


def result_of(line: str) -> dict[str, Any] | None:
    """The JSON line of a benchmark."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line, parse_constant=str)  # NaN and Infinity as text, which every parser of ours reads
    except (ValueError, RecursionError):
        return None
    claims = found.get("claims") or {}
    whole = (
        isinstance(found.get("name"), str)
        and all(isinstance(part, dict) for part in (found.get("seconds"), found.get("ratios"), claims))
        and isinstance(found.get("details") or {}, dict)
        and all(isinstance(claim, list) and len(claim) == 3 for claim in claims.values())
    )
    return found if whole else None


def page(records: list[Record], titles: dict[int, str], versions: str, about: list[str], done: bool) -> str:
    """Markdown; the whole story so far."""
    lines = ["# GPU run" + ("" if done else " (not finished)"), "", *about, ""]
    lines += ["| step | | outcome | seconds |", "|---|---|---|---|"]
    for number, title in titles.items():
        mine = [record for record in records if record.step == number]
        lines.append(f"| {number} | {title} | {outcome(mine)} | {sum(record.seconds for record in mine):.0f} |")
    lines += ["", "## What to do next", "", *[f"- {one}" for one in advice(records)]]
    for number, title in titles.items():
        lines += ["", f"## {number}: {title}", ""]
        for record in (one for one in records if one.step == number and one.verdict != NOT_RUN):
            lines += describe(record)
        for why, left in not_run(record for record in records if record.step == number).items():
            lines.append(f"- not run ({_cell(why)}): " + ", ".join(f"**{record.name}**" for record in left))
    return "\n".join([*lines, "", "## Versions", "", *main_versions(versions), ""])


def main_versions(text: str) -> list[str]:
    """Of versions.txt the lines that explain most."""
    found = [line for line in text.splitlines() if re.match(rf"(Python \d|NVIDIA|({'|'.join(MAIN)})==)", line)]
    return [f"- {line}" for line in found] or ["- not read"]


def outcome(records: list[Record]) -> str:
    """A step in a word or two: counts by verdict."""
    counts: dict[str, int] = {}
    for record in records:
        counts[record.verdict] = counts.get(record.verdict, 0) + 1
    if set(counts) == {PASSED}:
        return PASSED
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or NOT_RUN


def not_run(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Commands that were not run, by reason."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record.verdict == NOT_RUN:
            found.setdefault(record.why, []).append(record)
    return found


def describe(record: Record) -> list[str]:
    """A command as list items: verdict, counts, failed tests, claims beside the ceilings, the end of its log."""
    why = f" ({_cell(record.why)})" if record.why else ""
    lines = [f"- **{record.name}**: {record.verdict}{why}, {record.seconds:.0f} s"]
    if record.counts:
        lines.append("  - " + ", ".join(f"{count} {name}" for name, count in record.counts.items()))
    lines += [f"  - `{name}`: {_cell(error)}" for name, error in record.failures]
    lines += [f"  - left out: {_cell(one)}" for one in record.left_out[:20]]
    if len(record.left_out) > 20:
        lines.append(f"  - ... and {len(record.left_out) - 20} more lines in its log")
    for result in record.results:
        lines += claims(result)
    if record.verdict in (FAILED_, TIMED_OUT) and not record.failures and record.tail:
        lines += ["", "  ```", *[f"  {line}" for line in record.tail.splitlines()], "  ```", ""]
    return lines


def claims(result: dict[str, Any]) -> list[str]:
    """Of a benchmark: what was claimed and found, its ratios, and the ceilings that it measured itself."""
    lines = [f"  - {result['name']}: {result.get('workload', '')}"]
    lines += [
        f"    - {'holds' if holds else 'MISSED'}: {text}: {measured} (required {required})"
        for text, (measured, required, holds) in (result.get("claims") or {}).items()
    ]
    if not result.get("claims"):
        lines.append("    - no claim was judged")
    if result["ratios"]:
        lines.append("    - ratios: " + ", ".join(f"{name} {value}" for name, value in result["ratios"].items()))
    details = result.get("details") or {}
    for name in ("ceilings", "against ceilings"):
        if details.get(name):
            lines.append(f"    - {name}: {json.dumps(details[name], ensure_ascii=False)}")
    return lines


def advice(records: list[Record]) -> list[str]:
    """What a reader does about it."""
    lines = []
    for record in records:
        where = f"step {record.step}, {record.name}"
        if record.verdict == FAILED_:
            lines.append(f"{where}: failed ({_cell(record.why)}). Log `{record.name}.log` in logs.tar.gz; again: "
                         f"`{record.command}`")  # fmt: skip
        elif record.verdict == TIMED_OUT:
            lines.append(f"{where}: {record.why}. Run it alone with more time: `{record.command}`")
        missed = [text for one in record.results for text, claim in (one.get("claims") or {}).items() if not claim[2]]
        if missed:
            lines.append(
                f"{where}: missed {'; '.join(missed)}. Compare with the ceilings, then with the trace (step 6)."
            )
    for why, left in not_run(records).items():
        where = f"step {left[0].step}, {left[0].name}"
        if len(left) > 1:
            where = f"{len(left)} commands of steps {', '.join(map(str, sorted({one.step for one in left})))}"
        lines.append(f"{where}: not run, {_cell(why)}.")
    return lines or ["Nothing: all that ran passed."]


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")


def results_json(records: list[Record], about: dict[str, Any]) -> str:
    """Everything for machines: verdicts, and all JSON lines of benchmarks."""
    commands = [{**asdict(record), "results": [one["name"] for one in record.results]} for record in records]
    found = [one for record in records for one in record.results]
    return json.dumps({**about, "commands": commands, "benchmarks": found}, indent=1) + "\n"


def end_of(path: Path, most: int = 4 << 20) -> str:
    """The end of a log, at most so many bytes of it, and its beginning where it is longer."""
    if not path.exists():
        return ""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= most:
            return file.read().decode(errors="replace")
        head = file.read(most // 4)
        file.seek(size - 3 * most // 4)
        return f"{head.decode(errors='replace')}\n... {size - most} bytes left out ...\n" + file.read().decode(
            errors="replace"
        )
