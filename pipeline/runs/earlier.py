"""A run beside the last ones of its name: their metrics, and the settings that differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gigabatch.pipeline.config.config import LESS_IS_BETTER
from gigabatch.pipeline.display import format_value, metric_label

MOST_RUNS = 10
MOST_SETTINGS = 4  # that a row names
APART = ("name", "runs", "artifacts", "evaluate", "nightly", "serve")  # of a configuration, that change no model
HISTORY_TEXT = (
    "This run and the last ten of its name, as they were when this page was written. The gain is this run's over the "
    "other, turned so that more is better; it is left out where the files, the features or the negatives drawn for "
    "test differ, since such metrics are of other questions. A final run has the metrics of the run that measured it. "
    "A seed alone moves a metric: gigabatch compare tells what is beyond that."
)


def history_rows(home: Path, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of a table: this run, then the newest earlier ones of `home`; empty where there are none.

    home: `runs/<name>`; summary: what this run's summary.json holds. A run that cannot be read is left out.
    """
    own = _as_measured(summary)
    others = sorted(_others(home, summary["id"]), key=lambda other: str(other["created_utc"]), reverse=True)
    if not others:
        return []
    names = [name for name, value in own["metrics"]["test"].items() if value is not None]
    return [_row(item, own, names) for item in (own, *others)]


def _as_measured(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary with the metrics and test rows of the run that measured it, where it is a final one's: its own rows are
    few, and it learnt from most that other runs are tested on."""
    measured = summary.get("measured")
    if not measured:
        return dict(summary)
    rows = summary["rows_by_split"] | {"test": measured["rows"]}
    key = measured.get("features_key")
    return {**summary, "metrics": measured["metrics"], "rows_by_split": rows, "features_key": key}


def _others(home: Path, own: str) -> Iterator[dict[str, Any]]:
    """Summaries of the runs that were written last, `MOST_RUNS` at most."""
    found = 0
    folders = [path for path in home.iterdir() if path.is_dir() and not path.is_symlink()] if home.is_dir() else []
    for path in sorted((path for path in folders if path.name[:1] != "."), key=_written, reverse=True):
        try:
            summary = _as_measured(json.loads((path / "summary.json").read_text()))
            tells = isinstance(summary["metrics"]["test"], dict) and isinstance(summary["config"], dict)
            known = str(summary["id"]), str(summary["created_utc"]), int(summary["rows_by_split"]["test"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
        if tells and known[0] != own:
            yield summary
            found += 1
        if found == MOST_RUNS:
            return


def _written(path: Path) -> float:
    try:
        return (path / "summary.json").stat().st_mtime
    except OSError:
        return 0.0


def _row(item: Mapping[str, Any], own: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    is_own, metrics, final = item is own, item["metrics"]["test"], item.get("measured")
    row: dict[str, Any] = {
        "run": item["id"] + (" (this)" if is_own else "") + (f", final of {final['id']}" if final else ""),
        "when (UTC)": _minute(item["created_utc"]),
    }
    row |= {metric_label(name): metrics.get(name) for name in names}
    if names:
        first = names[0]
        comparable = not is_own and _asked(item) == _asked(own) and metrics.get(first) is not None
        sign = -1 if first in LESS_IS_BETTER else 1
        gain = sign * (own["metrics"]["test"][first] - metrics[first]) if comparable else None
        row[f"gain of {metric_label(first)}"] = gain
    row["test rows"] = int(item["rows_by_split"]["test"])
    return row | {"settings that differ": "" if is_own else settings_that_differ(own["config"], item["config"])}


def _asked(item: Mapping[str, Any]) -> list[Any]:
    """What decides which rows a run is tested on, drawn negatives too: equal where metrics can be compared."""
    config = item["config"]
    negatives = (config.get("train") or {}).get("negatives")
    drawn = [] if negatives is None else [negatives, config.get("seed"), config.get("preprocess")]
    rows = [config.get("recipe"), config.get("features"), item.get("features_key"), item["rows_by_split"]["test"]]
    return rows + drawn


def _minute(moment: str) -> str:
    return str(moment)[:16].replace("T", " ")


def settings_that_differ(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Settings by which `other` differs from `own`, with its values: "train.lr_max 0.01, seed 2".

    What one of them does not know, as the run of another version, is left out.

    Examples
    --------
    >>> settings_that_differ({"seed": 1, "train": {"lr_max": 0.02}}, {"seed": 1, "train": {"lr_max": 0.01}})
    'train.lr_max 0.01'
    """
    ours, theirs = (dict(_flat(config)) for config in (own, other))
    found = [
        f"{name} {format_value(theirs.get(name))}"
        for name in dict.fromkeys([*theirs, *ours])
        if ours.get(name) != theirs.get(name)
        and name.partition(".")[0] not in APART
        and all(_has(config, name) for config in (own, other))
    ]
    more = len(found) - MOST_SETTINGS
    return ", ".join(found[:MOST_SETTINGS]) + (f" and {more} more" if more > 0 else "")


def _has(config: Mapping[str, Any], name: str) -> bool:
    """Whether a configuration has a setting, or nothing (null) in the place of its section."""
    first, _, rest = name.partition(".")
    if first not in config:
        return False
    section = config[first]
    return not rest or not isinstance(section, Mapping) or _has(section, rest)


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
