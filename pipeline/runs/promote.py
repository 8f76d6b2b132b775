"""What moves `current`: promotion, by night or by hand, and rollback; and what lifts a rolled-back run's block."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from gigabatch.pipeline.config.config import RunConfig
from gigabatch.pipeline.display import apart
from gigabatch.pipeline.runs.find import find_run, home_of
from gigabatch.pipeline.runs.pointers import (
    PREVIOUS,
    Pointers,
    RunError,
    locked,
    read_pointers,
    write_pointers,
)
from gigabatch.pipeline.runs.record import append_record, now
from gigabatch.pipeline.runs.verify import require_loadable, weights_of
from gigabatch.pipeline.tracking import tell_champion

log = logging.getLogger(__name__)


def promote(home: Path, run: Path, expected: Path | None) -> None:
    """Make a run current whose model was loaded, and the current one previous; all at once.

    expected: what was current when that was decided.

    Raises
    ------
    RunError
        Where another has become current since, or the run is damaged or blocked.
    """
    require_loadable(run)
    with locked(home):
        before = read_pointers(home)
        if before.current != expected:
            raise RunError(
                f"{home}: {before.current} has become current since {expected} was compared with; nothing was changed."
            )
        if reason := block_of(before, run):
            raise RunError(reason)
        write_pointers(home, run.resolve(), before.current or before.previous, before.blocked)


def block_of(pointers: Pointers, run: Path) -> str | None:
    """Why a run may only be promoted by hand: it, or one of the same weights, was rolled back. None where it may."""
    if not pointers.blocked:
        return None
    weights = weights_of(run)
    for name, entry in pointers.blocked.items():
        if name == run.name or entry.get("weights") == weights:
            same = "" if name == run.name else f" has the weights of {name}, which"
            return (
                f"run {run.name}{same} was rolled back at {entry.get('at')} and stays blocked, until gigabatch unblock "
                f"{name} or gigabatch promote {run.name}."
            )
    return None


def promote_first(home: Path, run: Path) -> bool:
    """Promote a run where none is, unless it is blocked; whether that was so.

    One that is no better than a constant is promoted, too, with a warning: whoever trains by hand sees it.
    """
    if read_pointers(home).current is not None:
        return False
    require_loadable(run)
    compared = _against_constant(run)
    with locked(home):
        before = read_pointers(home)
        if before.current is not None or block_of(before, run):
            return False
        write_pointers(home, run.resolve(), before.previous, before.blocked)
    text = f"Promoted: no run was current when {run.name} was trained."
    if compared is None:
        log.info("run %s is current: none was. evaluate.baselines had no constant to compare it with.", run.name)
    elif compared["gain"] > 0:
        log.info("run %s is current: none was", run.name)
    else:
        both = " against ".join(apart([compared["model"], compared["baseline"]]))
        poor = (
            f"It is no better than {compared['name']} on the test split ({compared['metric']} {both}): look at the "
            "labels and the columns."
        )
        text += f" {poor}"
        log.warning("run %s is current, for none was. %s", run.name, poor)
    append_record(home, "train", 0, text, run.name)
    return True


def _against_constant(run: Path) -> dict[str, Any] | None:
    """The paired difference to the constant on the test split (to the items' popularity where negatives are drawn), of
    the first target by the metric that decides at night; None where the evaluation had no such baseline."""
    summary = json.loads((run / "summary.json").read_text())
    names = {"constant": "a constant", "popularity": "the items' popularity"}
    first, compared = next(iter(summary["targets"]["test"])), summary["baselines"] or {"found": []}
    found = next((item for item in compared["found"] if item["name"] in names and item["target"] == first), None)
    if found is None:
        return None
    parts = {part["metric"]: part | {"name": names[found["name"]]} for part in found["differences"]}
    asked = summary["config"]["nightly"]["metric"]
    return next((parts[metric] for metric in (asked, "mrr", "auc", "logloss", "rmse") if metric in parts), None)


def promote_by_hand(config: RunConfig, run: str) -> str:
    """Make any whole run current and lift its block; returns what was done. run: as in `find_run`.

    One with the weights of the current run takes its place, and `previous` stays.
    """
    home, found = home_of(config), find_run(config, run)
    if found.path.parent != home.resolve():
        raise RunError(f"promote: {found.path} is no run of {home}. Give an id that gigabatch runs lists.")
    weights = require_loadable(found.path)
    with locked(home):
        before = read_pointers(home)
        blocked = {
            name: entry
            for name, entry in before.blocked.items()
            if name != found.id and entry.get("weights") != weights
        }
        lifted = " Its block is lifted." if blocked != before.blocked else ""
        if before.current == found.path:
            text = f"Nothing to do: {found.id} is current already.{lifted}"
            if lifted:
                write_pointers(home, found.path, before.previous, blocked)
            return text
        gone = before.current is None or not before.current.is_dir()
        previous = before.previous if gone or _weights_or_none(before.current) == weights else before.current
        write_pointers(home, found.path, previous, blocked)
    old = "there was none before" if before.current is None else f"{before.current.name} was it before"
    text = f"Promoted by hand: {found.id} is current, {old}.{lifted}"
    append_record(home, "promote", 0, text, found.id)
    tell_champion(config, found.path)
    return text


def rollback(config: RunConfig) -> str:
    """Make the run before the current one current again; what was current is blocked. Returns what was done."""
    home = home_of(config)
    with locked(home):
        before = read_pointers(home)
        old, new = before.current, before.previous
        if new is None:
            raise RunError(
                f"rollback: {home / PREVIOUS} does not exist; there is no model before the current one. gigabatch "
                "promote ID makes any run current."
            )
        if new.name in before.blocked:
            raise RunError(
                f"rollback: the run before, {new.name}, was itself rolled back at {before.blocked[new.name].get('at')} "
                f"and stays blocked. gigabatch promote {new.name} makes it current again; gigabatch runs lists others."
            )
        require_loadable(new)
        block = {} if old is None else {old.name: {"at": now(), "weights": _weights_or_none(old)}}
        write_pointers(home, new, old, before.blocked | block)
    text = f"Rolled back: {new.name} is current again."
    if old is not None:
        text += f" {old.name} is blocked: gigabatch promote {old.name} makes it current again, unblock lets the night."
    append_record(home, "rollback", 0, text, new.name)
    tell_champion(config, new)
    return text


def unblock(config: RunConfig, run: str) -> str:
    """Let the nightly job promote a rolled-back run again. Returns what was done; `RunError` for one not blocked."""
    home = home_of(config)
    with locked(home):
        before = read_pointers(home)
        if run not in before.blocked:
            known = ", ".join(before.blocked) or "none is"
            raise RunError(f"unblock: {run} is not blocked in {home}. Blocked: {known}.")
        if before.current is None:
            raise RunError(f"unblock: no run is promoted in {home}. gigabatch promote {run} makes it current.")
        left = {name: entry for name, entry in before.blocked.items() if name != run}
        write_pointers(home, before.current, before.previous, left)
    text = f"Unblocked: {run} may be promoted again."
    append_record(home, "unblock", 0, text, run)
    return text


def _weights_or_none(run: Path | None) -> str | None:
    """The checksum of a run's weights; None where it is not there, damaged, or on a disk that does not give it: all the
    more is another run to take its place."""
    try:
        return None if run is None else weights_of(run)
    except (RunError, OSError):
        return None
