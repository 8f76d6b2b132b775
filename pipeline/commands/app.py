"""The command `gigabatch`: its commands in groups, the options before a command, and what a mistyped line gets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from gigabatch.pipeline.commands import contract, init, lab, migrate, nightly, run, runs, serving, storage, warm
from gigabatch.pipeline.commands.command import USAGE, Quiet, Verbose, command, one_line
from gigabatch.pipeline.commands.outputs import outlive_readers
from gigabatch.pipeline.commands.version import version_text
from gigabatch.pipeline.machine import are_cores_taken
from gigabatch.pipeline.stopping import end_at_once

COMMANDS: dict[str, dict[str, Callable[..., int]]] = {
    "Begin": {"init": init.init, "warm": warm.warm},
    "Run": {
        "features": run.features,
        "train": run.train,
        "evaluate": run.evaluate,
        "score": run.score,
        "export": run.export,
    },
    "Retrain": {"nightly": nightly.nightly, "update": nightly.update, "contract": contract.contract},
    "Which run answers": {
        "runs": runs.runs,
        "promote": runs.promote,
        "rollback": runs.rollback,
        "unblock": runs.unblock,
    },
    "Serve": {"recommend": serving.recommend, "embed": serving.embed, "serve": serving.serve},
    "Plan and tune": {
        "plan": lab.plan,
        "tune": lab.tune,
        "compare": lab.compare,
        "lr-range": lab.lr_range,
        "profile": lab.profile,
        "advise": lab.advise,
    },
    "Import": {"import-nvtabular": migrate.nvtabular, "import-fastai": migrate.fastai},
    "Store": {"gc": storage.gc},
}
KNOWN = f"Commands: {', '.join(name for group in COMMANDS.values() for name in group)}."


class Commands(TyperGroup):
    """All commands. One that does not exist is answered with those that do; overrides may stand before a command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        leading = list(takewhile(lambda word: "=" in word and not word.startswith("-"), args))
        if len(leading) == len(args):
            fail_without_command(ctx)
        try:
            return super().resolve_command(ctx, [*args[len(leading) :], *leading])
        except typer.TyperException as error:
            error.message = f"{error.message} {KNOWN}"
            raise


def fail_without_command(context: typer.Context) -> NoReturn:
    context.fail(f"Missing command. {KNOWN}")


def show_version(wanted: bool) -> None:
    """What `--version` does."""
    if wanted:
        typer.echo(version_text())
        raise typer.Exit


def gigabatch(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show versions and exit.")
    ] = False,
    *,
    verbose: Verbose,
    quiet: Quiet,
) -> None:
    """Raw event tables to a trained, evaluated, servable tabular model."""
    if context.invoked_subcommand is None:
        fail_without_command(context)


def make_app() -> typer.Typer:
    """The Typer application, with every command of `COMMANDS`."""
    app = typer.Typer(
        name="gigabatch",
        cls=Commands,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,  # a traceback is for whoever mends the code: Python's own is whole
        epilog="key=value overrides a setting of the run, e.g. train.epochs=3. Help of one command: gigabatch train -h",
    )
    app.callback(invoke_without_command=True)(gigabatch)
    for group, functions in COMMANDS.items():
        for name, function in functions.items():
            app.command(name, rich_help_panel=group)(command(name, function))
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; user errors become one line on standard error and exit code 2 (nightly: 20 or 40).

    argv: without it, this process is the command's own: its arguments, its signals (`end_at_once`) and its output
    (`outlive_readers`).
    """
    if argv is None:
        end_at_once()
        outlive_readers()
    if sys.platform == "win32":
        print("gigabatch: Windows has no locks of the kind that runs need (flock). Use Linux, or WSL.", file=sys.stderr)
        return USAGE
    # OpenMP's threads spin while they wait, unless told otherwise before torch is loaded. Without end, that makes small
    # batches 5 to 10 times slower with anything else running on the machine; not at all, a fifth slower on a quiet one.
    # So they spin for a tenth of a millisecond or so, and for less where others run as it begins (docs/tried.md).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000" if are_cores_taken() else "30000")
    entry = typer.main.get_command(make_app())
    try:
        code = entry.main(None if argv is None else list(argv), prog_name="gigabatch", standalone_mode=False)
    except typer.TyperException as error:
        message = one_line(error.format_message())
        told = vars(error)
        unlike = told.get("possibilities") == []  # an option that no option is like
        if unlike and any(parameter.name == "overrides" for parameter in told["ctx"].command.params):
            message += ". Settings have no dashes: train.epochs=3"
        print(f"gigabatch: {message}", file=sys.stderr)
        return USAGE
    return int(code or 0)
