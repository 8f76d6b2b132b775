"""The command that begins with a table of one's own: init."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

TASKS = ("binary", "multiclass", "regression")


def init(
    data: Annotated[str, typer.Argument(metavar="DATA", help="CSV or Parquet: a file, folder, glob or URL.")],
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="COLUMN", show_default="a log of users and items", help="The column to predict."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="What to write.", show_default="conf/NAME.yaml")
    ] = None,
    *,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="|".join(TASKS), show_default="by the labels", help="Of the target."),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="COLUMN", show_default="by its name", help="Without --target: who chose."),
    ] = None,
    item: Annotated[
        str | None, typer.Option("--item", metavar="COLUMN", show_default="by its name", help="And what.")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=100, help="About how many rows to look at.")] = 300_000,
    encoding: Annotated[
        str | None,
        typer.Option("--encoding", show_default="by their bytes", help="Of CSV files: utf-8, cp1252, utf-16, ..."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> int:
    """Look at a table, or a log of users and items, and write a commented configuration that trains on it as it is
    (docs/init.md)."""
    if task is not None and task not in TASKS:
        raise typer.BadParameter(f"--task is one of {', '.join(TASKS)}, found {task!r}.")
    if target is not None and (user or item):
        raise typer.BadParameter("--user and --item are of a log without --target. Give them or --target.")
    if target is None and task is not None:
        raise typer.BadParameter("--task is of a target. Give --target.")
    from gigabatch.pipeline.init import write

    path, made = write.init(
        data, target, out, task=task, user=user, item=item, most_rows=rows, force=force, encoding=encoding
    )
    for remark in made.remarks:
        print(remark)
    print(f"Features: {made.roles()}.")
    for name, why in made.left_out.items():
        print(f"left out {name!r}: {why}")
    print(f"{path}: try gigabatch train --config {shlex.quote(str(path))}")
    return 0
