"""The configuration as a YAML file that says why it is as it is."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

from gigabatch.features.errors import DataError
from gigabatch.pipeline.config.config import parse_config
from gigabatch.pipeline.init.draft import Draft, draft_config
from gigabatch.pipeline.init.frame import MOST_ROWS
from gigabatch.pipeline.init.interactions import draft_interactions
from gigabatch.pipeline.init.scalars import scalar


def init(
    pattern: str, target: str | None = None, out: str | Path | None = None, *, task: str | None = None,
    user: str | None = None, item: str | None = None, most_rows: int = MOST_ROWS, force: bool = False,
    encoding: str | None = None,
) -> tuple[Path, Draft]:  # fmt: skip
    """Look at a table, or a log of users who choose items, and write a configuration that trains on it as it is.

    Parameters
    ----------
    pattern
        CSV or Parquet files: a path, folder, glob or URL.
    target
        The column to predict; None of a log of users and items, whose next choice is predicted.
    out
        The file to write; conf/NAME.yaml by default, by the name of the table.
    task
        `binary`, `multiclass` or `regression`, where it is not what the labels look like.
    user, item
        Columns of a log without `target`; by default those whose names say so.
    most_rows
        About how many rows are looked at.
    force
        Whether a file that is there is replaced.
    encoding
        Of CSV files, one of Python's; by default what their bytes tell.

    Returns
    -------
    (Path, Draft)
        The file, and what it says.

    Raises
    ------
    DataError
        The file is there and not `force`; `user`, `item` beside `target`; what `draft_config` and `draft_interactions`
        refuse.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from gigabatch import init
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "shop.csv")
    ...     _ = path.write_text("visits,sold\\n" + "\\n".join(f"{k % 7},{k % 3 % 2}" for k in range(300)))
    ...     out, _ = init(str(path), "sold", Path(folder, "shop.yaml"))
    ...     print("recipe: table" in out.read_text())
    True
    """
    name = run_name(pattern)
    out = Path("conf", f"{name}.yaml") if out is None else Path(out)
    if out.exists() and not force:
        raise DataError(f"{out}: the file is there already. Give another --out, or --force to replace it.")
    if target is not None and (user or item):
        raise DataError(
            "init: target is a column to predict, user and item are those of a log whose next choices are. Give one or "
            "the other."
        )
    if target is None and task is not None:
        raise DataError(f"init: task {task!r} is of a target. Give target, or leave task out.")
    made = (
        draft_interactions(pattern, user, item, most_rows, encoding) if target is None
        else draft_config(pattern, target, task, most_rows, encoding)
    )  # fmt: skip
    text = config_text(made, run_name(str(out)), pattern, out)
    parse_config(
        {"name": run_name(str(out)), "recipe": made.recipe, "features": made.features, **made.engine, **made.training},
        f"config {out}",
        whole="features",  # the model is of our own choice
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(out)
    return out, made


def run_name(path: str) -> str:
    """A run's name out of a path.

    >>> run_name("data/Shop visits (2024).csv.gz")
    'Shop_visits_2024'
    """
    stem = re.sub(r"[*?\[\]]", "", path.rstrip("/")).rpartition("/")[2].partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "_", stem).strip("_-")[:100] or "table"


def config_text(made: Draft, name: str, pattern: str, out: Path) -> str:
    """The YAML file: every setting with what was seen, and what is left out with why."""
    given = _comment(shlex.quote(pattern))
    lines = [f"# Written by gigabatch init {given}. Correct what it guessed wrong (docs/init.md), then:"]
    lines += [f"#   gigabatch train --config {_comment(shlex.quote(str(out)))}"]
    lines += [f"# {_comment(remark)}" for remark in made.remarks]
    if made.left_out:
        lines.append("# Left out:")
        lines += [f"# - {_comment(column)}: {_comment(why)}" for column, why in made.left_out.items()]
    if made.leaks:
        lines.append(
            "# A possible leak is a feature again under categorical or continuous: where its value is known at the "
            "time of prediction."
        )
    lines += [f"name: {scalar(name)}", f"recipe: {made.recipe}", "seed: 1"]
    proposed = "# " if "lists" in made.proposed and not made.engine else ""
    if made.engine or proposed:
        lines.append(f"{proposed}engine: pandas  # lists have not been on a GPU")
    lines += ["", "features:"]
    for key, value in made.features.items():
        if key in ("categorical", "continuous"):
            typed = (
                {column: f"{scalar(column)}: {value[column]}" for column in value} if isinstance(value, dict) else {}
            )
            lines.append(f"  {key}:")
            lines += [
                _line(f"    {typed.get(column, f'- {scalar(column)}')}", made.notes.get(column)) for column in value
            ]
            if key == "continuous":
                lines += [_proposal(f"    {_column(column, bool(typed))}") for column in made.proposed.get(key, ())]
        elif key == "steps":
            lines.append("  steps:")
            lines += map(_step, value)
            lines += [_proposal(_step(step)) for step in made.proposed.get("steps", ())]
        elif isinstance(value, dict):
            notes = made.notes if key in ("targets", "lists") else {}
            if key == "inputs":
                notes = {named: made.notes.get(f"inputs.{named}", "") for named in value}
            lines.append(f"  {key}:")
            lines += [_line(_entry(named, item), notes.get(named)) for named, item in value.items()]
            if key == "lists":
                lines += [_proposal(_entry(named, item)) for named, item in made.proposed.get("lists", {}).items()]
        else:
            lines.append(_line(f"  {key}: {flow(value)}", made.role_notes.get(key)))
    for key, value in made.proposed_settings.items():
        lines.append(_line(_proposal(f"  {key}: {flow(value)}"), made.role_notes.get(key)))
    if "continuous" in made.proposed and "continuous" not in made.features:
        named = (f"    {_column(column, False)}" for column in made.proposed["continuous"])
        lines += map(_proposal, ("  continuous:", *named))
    if made.proposed and "steps" not in made.features:
        lines += map(_proposal, ("  steps:", *map(_step, made.proposed["steps"])))
    if "lists" in made.proposed and "lists" not in made.features:
        lines += map(_proposal, ("  lists:", *(_entry(*item) for item in made.proposed["lists"].items())))
    columns, why = made.proposed.get("continuous", ()), WHY if made.recipe == "table" else WHY_OF_LOGS
    series = f"numeric: {flow({**dict.fromkeys(columns, 'plain'), '*': 'bins'})}" if columns else ""
    if series:
        why = {**WHY, "preprocess.scale": f"{WHY['preprocess.scale']}; beside the lines in comments true, as {LEAVES}"}
    for section, settings in made.training.items():
        lines += ["", f"{section}:"]
        lines += [_line(f"  {key}: {flow(value)}", why.get(f"{section}.{key}")) for key, value in settings.items()]
        if section == "model" and series:
            lines.append(_line(_proposal(f"  {series}"), LEAVES))
    if series and "model" not in made.training:
        lines += ["", "# model:", _line(f"#   {series}", LEAVES)]
    return "\n".join(lines) + "\n"


LEAVES = "what grows leaves the range that was learnt from"
WHY = {
    "preprocess.scale": "no outlier leaves the range that the model knows",
    "preprocess.columns": "rarer words or values of a column share an id",
    "model.kind": "the better one for so few rows; tabular, the default, is faster for many",
    "model.pooling": "of words: the sum of their vectors over the root of their number",
    "train.batch_size": "so few rows are too few steps in larger ones",
    "train.ensemble": "models whose mean is predicted; 1: one, three times as fast",
    "train.ensemble_by": "each leaves out a part of train and valid of its own; only for rows split at random",
    "train.patience": "epochs without a better one that end a member's training",
    "nightly.warm_epochs": "of nights that go on from the current weights; train.epochs is for those that begin anew",
    "nightly.min_window_rows": "half of the first night's test rows; the default asks for more than this table has",
    "train.epochs": "null: by the rule of docs/training.md, which is for larger tables",
}
WHY_OF_LOGS = {
    "model.kind": "others: mf, ncf, two_tower, sasrec, ease, item_knn, top_frequency; the rest follows from the rows"
}


def _column(name: str, typed: bool) -> str:
    """A float among the columns of a role."""
    return f"{scalar(name)}: float32" if typed else f"- {scalar(name)}"


def _step(step: dict[str, Any]) -> str:
    """A line of `steps`."""
    ((operator, options),) = step.items()
    return f"    - {scalar(operator)}: {flow(options)}"


def _entry(name: str, item: Any) -> str:
    """A line of a mapping of `features`."""
    return f"    {scalar(name)}: {flow(item)}"


def _proposal(line: str) -> str:
    """A line as a comment, which is that line again without its first sign and blank."""
    return f"  # {line[2:]}"


def _line(text: str, note: str | None) -> str:
    return f"{text}  # {_comment(note)}" if note else text


def _comment(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def flow(value: Any) -> str:
    """A value, a list or a mapping in one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{scalar(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    return scalar(value)
