"""The command line: gigabatch COMMAND --config conf/NAME.yaml key=value ..."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

log = logging.getLogger("gigabatch")
FAILED = 40
# No permission, a full or a read-only disk, a folder for a file: nothing that a traceback would explain.
REFUSED_BY_SYSTEM = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EISDIR, errno.ENOTDIR,
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Every command and flag."""
    top = argparse.ArgumentParser(
        prog="gigabatch", description="Raw event tables to a trained, evaluated, servable tabular model."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--config", default="conf/flights.yaml", help="the run's YAML file (default: %(default)s)")
    shared.add_argument("overrides", nargs="*", metavar="key=value", help="settings to override, e.g. train.epochs=3")
    for name, text in {
        "features": "raw files to Parquet features",
        "train": "every stage up to the evaluated model and its report",
        "nightly": "train on new files, compare with the current model, promote or keep",
        "rollback": "make the model before the current one current again",
    }.items():
        commands.add_parser(name, parents=[shared], help=text, description=text)
    for name, text in {
        "evaluate": "evaluate a run's model on a split; summary and report in a folder beside its own",
        "score": "write a model's predictions of a split",
    }.items():
        command = commands.add_parser(name, parents=[shared], help=text, description=text)
        command.add_argument("--run", type=Path, help="the run's folder (default: runs/<name>/latest)")
        command.add_argument("--split", help="train, valid, test or another split of the features stage")
        command.add_argument("--out", type=Path, help="file or folder to write (default: inside the run's folder)")
    gc = commands.add_parser("gc", parents=[shared], help="remove old artifacts", description="remove old artifacts")
    gc.add_argument(
        "--keep",
        type=int,
        default=3,
        help="newest artifacts of each stage, and runs of each name, that stay (default: %(default)s)",
    )
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; user errors become one line on standard error and exit code 2 (nightly: 20 or 40)."""
    arguments = parser().parse_args(argv)
    # OpenMP's threads spin while they wait, unless told otherwise before torch is loaded. With anything else running
    # on the machine, spinning makes small batches 5 to 10 times slower (docs/tried.md).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        return COMMANDS[arguments.command](arguments)
    except ValueError as error:
        if type(error).__module__.partition(".")[0] not in ("pipeline", "features", "loaders", "models"):
            raise
        print(f"gigabatch: {_one_line(error)}", file=sys.stderr)
        return FAILED if arguments.command == "nightly" else 2
    except OSError as error:
        if error.errno not in REFUSED_BY_SYSTEM:
            raise
        print(f"gigabatch: {_one_line(error)}", file=sys.stderr)
        return FAILED if arguments.command == "nightly" else 2
    except KeyboardInterrupt:
        print("gigabatch: stopped; run again to go on.", file=sys.stderr)
        return 130


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _features(arguments: argparse.Namespace) -> int:
    from pipeline.display import render_table
    from pipeline.stages import Pipeline

    features = Pipeline.from_config(arguments.config, *arguments.overrides).features()
    rows = [{"split": name, "rows": count} for name, count in features.rows.items()]
    render_table(rows, f"features {'(skipped, unchanged)' if features.artifact.skipped else ''}")
    for note in features.notes:
        print(note)
    print(features.artifact.path)
    return 0


def _train(arguments: argparse.Namespace) -> int:
    from pipeline.stages import Pipeline

    Pipeline.from_config(arguments.config, *arguments.overrides).train().show()
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from pipeline.score import evaluate_run

    return evaluate_run(arguments.config, arguments.overrides, arguments.run, arguments.split, arguments.out)


def _score(arguments: argparse.Namespace) -> int:
    from pipeline.score import score_run

    return score_run(arguments.config, arguments.overrides, arguments.run, arguments.split, arguments.out)


def _nightly(arguments: argparse.Namespace) -> int:
    from pipeline.nightly import run_nightly

    return run_nightly(arguments.config, arguments.overrides)


def _rollback(arguments: argparse.Namespace) -> int:
    from pipeline.nightly import rollback

    return rollback(arguments.config, arguments.overrides)


def _gc(arguments: argparse.Namespace) -> int:
    from pipeline.artifacts import collect_garbage
    from pipeline.config import load_config

    config = load_config(arguments.config, arguments.overrides)
    links = [link for link in config.runs.glob("*/*") if link.is_symlink()]
    removed, freed = collect_garbage(config.artifacts, arguments.keep)
    runs, freed_runs = collect_garbage(config.runs, arguments.keep, protect=links)
    removed, freed = removed + runs, freed + freed_runs
    for path in removed:
        print(f"removed {path}")
    print(f"{len(removed)} folder(s), {freed:,} bytes freed")
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "features": _features,
    "train": _train,
    "evaluate": _evaluate,
    "score": _score,
    "nightly": _nightly,
    "rollback": _rollback,
    "gc": _gc,
}
