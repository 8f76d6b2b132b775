"""`gigabatch runs`: every run of a configuration with its date, state, metrics and the period of its data."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.runs.find import home_of
from gigabatch.pipeline.runs.pointers import CURRENT, LATEST, PREVIOUS, read_pointers
from gigabatch.pipeline.runs.record import read_records
from gigabatch.pipeline.store.artifacts import MANIFEST

KEPT = "kept"  # trained by the nightly job, which kept the current model


def list_runs(config: RunConfig) -> list[dict[str, Any]]:
    """A row a run, the newest first: `run`, `created_utc`, `state`, the test split's metrics, and the first and last
    moment of the data that it was fitted and selected on, in the unit of its time column.

    Files are not verified, which may take long. A run that cannot be read, or that a link names and is not there, has
    `damaged` or `missing` among its states.
    """
    home = home_of(config)
    pointers = read_pointers(home)
    records = [entry for entry in read_records(home) if isinstance(entry.get("run"), str)]
    last_code = {entry["run"]: entry.get("exit_code") for entry in records}
    rows, metrics = [], dict[str, None]()
    found = [path for path in home.iterdir() if _is_run(path)] if home.is_dir() else []
    for path in found:
        states = pointers.states_of(path)
        if last_code.get(path.name) == 10:
            states.append(KEPT)
        row: dict[str, Any] = {"run": path.name, "created_utc": "", "state": "", "metrics": {}}
        try:
            summary = json.loads((path / "summary.json").read_text())
            info = json.loads((path / "model" / "bundle.json").read_text())["info"]
            row |= {"created_utc": str(summary["created_utc"]), "metrics": dict(summary["metrics"]["test"])}
            row |= {name: _moment(info.get(name)) for name in ("trained_from", "trained_until")}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            states.append("damaged")
        metrics |= dict.fromkeys(name for name, value in row["metrics"].items() if value is not None)
        rows.append(row | {"state": ", ".join(states)})
    rows.sort(key=lambda row: (row["created_utc"], row["run"]), reverse=True)
    for name, target in ((CURRENT, pointers.current), (PREVIOUS, pointers.previous), (LATEST, pointers.latest)):
        if target is not None and not target.is_dir():
            rows.append({"run": target.name, "created_utc": "", "state": f"{name}, missing", "metrics": {}})
    return [_flat(row, list(metrics)) for row in rows]


def _is_run(path: Path) -> bool:
    """Whether a folder was written as a run; a damaged one, too."""
    marks = (MANIFEST, "summary.json", "model")
    return (
        path.is_dir()
        and not path.is_symlink()
        and not path.name.startswith(".")
        and any(os.path.lexists(path / mark) for mark in marks)
    )


def _moment(value: Any) -> str | None:
    """As text, because a table would round it."""
    if value is None:
        return None
    return str(int(value)) if float(value).is_integer() else str(value)


def _flat(row: dict[str, Any], metrics: list[str]) -> dict[str, Any]:
    head = {name: row[name] for name in ("run", "created_utc", "state")}
    period = {name: row.get(name) for name in ("trained_from", "trained_until")}
    return head | {name: row["metrics"].get(name) for name in metrics} | period
