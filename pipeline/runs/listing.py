"""`gigabatch runs`: every run of a configuration with its date, state, metrics and the period of its data."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Set
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gigabatch.features.errors import is_of_system
from gigabatch.pipeline.config.config import RunConfig, load_config
from gigabatch.pipeline.runs.find import home_of
from gigabatch.pipeline.runs.pointers import CURRENT, LATEST, PREVIOUS, read_pointers
from gigabatch.pipeline.runs.record import newest_records
from gigabatch.pipeline.runs.verify import is_of_another
from gigabatch.pipeline.store.artifacts import MANIFEST

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEPT = "kept"  # trained by the nightly job, which did not promote it
NOT_PROMOTED = (10, 20, 40)  # exit codes of such nights: kept, refused or failed when models were compared


def list_runs(config: RunConfig | str | Path | Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the runs of a configuration's name.

    Files are not verified, which may take long.

    Parameters
    ----------
    config
        The configuration; of a `Pipeline` it is `config`. Also a YAML file, or what one would hold as a mapping.

    Returns
    -------
    list of dict
        A row a run, the newest first: `run`, `created_utc`, `state`, the test split's metrics, `negatives` where some
        run drew any (how many for each positive and how: metrics of other draws do not compare), and `trained_from` and
        `trained_until`, the first and last moment of the data that it was fitted and selected on: in ISO 8601, UTC,
        where its time column holds dates, else the numbers of that column. A final run has the metrics of the run that
        measured it, and `final of` its id among its states. A run of which a file is not what it should be, that the
        system does not give (no permission, a disk that fails), or that a link or a block names and that is not there,
        has `damaged`, `unreadable` or `missing` among its states. One that lies elsewhere is named by its
        folder; `files of` another run's id are those of the wrong folder.

    Examples
    --------
    >>> from gigabatch import Pipeline, list_runs
    >>> features = {"path": "shop.csv", "continuous": ["x"], "targets": {"y": {"task": "binary"}}}
    >>> job = Pipeline.from_config({"name": "shop", "recipe": "table", "features": features})
    >>> list_runs(job.config)  # none was trained here yet
    []
    """
    config = config if isinstance(config, RunConfig) else load_config(config)
    home = Path(os.path.realpath(home_of(config)))
    found = _states(home)
    kept_out = _kept_out(home, {path.name for path in found})
    rows, metrics = [], dict[str, None]()
    for path, states in found.items():
        name = path.name if path.parent == home else str(path)
        row: dict[str, Any] = {"run": name, "created_utc": "", "metrics": {}}
        if kept_out.get(name):
            states.append(KEPT)
        if not path.is_dir():
            states.append("missing")
        else:
            try:
                summary = json.loads((path / "summary.json").read_text())
                info = json.loads((path / "model" / "bundle.json").read_text())["info"]
                measured = summary.get("measured")  # of a final run, whose own test rows are few
                metrics_of = (measured or summary)["metrics"]["test"]
                row |= {"created_utc": str(summary["created_utc"]), "metrics": dict(metrics_of)}
                if drawn := summary["config"]["train"].get("negatives"):
                    row["negatives"] = f"{drawn['per_positive']}, {drawn['kind']}"
                states += [f"files of {summary['id']}"] if is_of_another(path, summary["id"]) else []
                states += [f"final of {measured['id']}"] if measured else []
                dated = info.get("trained_from") is not None and _has_dates(path / "model")
                row |= {end: _moment(info.get(end), dated) for end in ("trained_from", "trained_until")}
            except (
                OSError,
                ValueError,
                LookupError,
                TypeError,
                AttributeError,
                OverflowError,
                RecursionError,
            ) as error:
                states.append("unreadable" if is_of_system(error) else "damaged")
        metrics |= dict.fromkeys(name for name, value in row["metrics"].items() if value is not None)
        rows.append(row | {"state": ", ".join(states)})
    rows.sort(key=lambda row: (row["created_utc"], row["run"]), reverse=True)
    others = ["negatives"] if any("negatives" in row for row in rows) else []
    return [_flat(row, list(metrics), others) for row in rows]


def _kept_out(home: Path, runs: Set[str]) -> dict[str, bool]:
    """Of each of these runs that has a line whether a night kept it out by the newest: not where it was current then,
    as one that was trained again on what it was of."""
    found: dict[str, bool] = {}
    for entry in newest_records(home):
        if len(found) == len(runs):
            break
        if isinstance(run := entry.get("run"), str) and run in runs:
            found.setdefault(run, entry.get("exit_code") in NOT_PROMOTED and entry.get("champion") != run)
    return found


def _states(home: Path) -> dict[Path, list[str]]:
    """Each run's folder once, with what links and blocks say of it: those in `home`, and those that are named alone."""
    pointers = read_pointers(home)
    linked = {CURRENT: pointers.current, PREVIOUS: pointers.previous, LATEST: pointers.latest}
    there = [path for path in home.iterdir() if _is_run(path) and path.name not in linked] if home.is_dir() else []
    found: dict[Path, list[str]] = {path: [] for path in there}
    by_id = {path.name: path for path in there}
    for name, target in linked.items():
        if target is None:
            continue
        if (home / name).is_symlink():
            found.setdefault(target, []).append(name)
        else:  # of a copy that followed links, which has the same run twice
            found.setdefault(by_id.setdefault(_id_of(target), target), []).append(f"{name} (a folder, not a link)")
    for name in pointers.blocked:
        found.setdefault(home / name, []).append("blocked")
    return found


def _id_of(run: Path) -> str:
    """A run's id, as it was written; the folder's name where that cannot be read."""
    try:
        return str(json.loads((run / "summary.json").read_text())["id"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return run.name


def _is_run(path: Path) -> bool:
    """Whether a folder was written as a run; a damaged one, too."""
    marks = (MANIFEST, "summary.json", "model")
    return (
        path.is_dir()
        and not path.is_symlink()
        and not path.name.startswith(".")
        and any(os.path.lexists(path / mark) for mark in marks)
    )


def _has_dates(model: Path) -> bool:
    """Whether the time column of a model's rows holds dates: microseconds since 1970."""
    schema = json.loads((model / "preprocessor" / "preprocessor.json").read_text())["schema"]
    return any(column["role"] == "time" and column["dtype"] == "datetime" for column in schema["columns"])


def _moment(value: Any, dated: bool) -> str | None:
    """As text, because a table would round it."""
    if value is None:
        return None
    if dated:
        return (EPOCH + timedelta(microseconds=int(value))).isoformat(timespec="seconds")
    return str(int(value)) if float(value).is_integer() else str(value)


def _flat(row: dict[str, Any], metrics: list[str], others: list[str]) -> dict[str, Any]:
    head = {name: row[name] for name in ("run", "created_utc", "state")}
    period = {name: row.get(name) for name in ("trained_from", "trained_until")}
    found = {name: row["metrics"].get(name) for name in metrics} | {name: row.get(name) for name in others}
    return head | found | period
