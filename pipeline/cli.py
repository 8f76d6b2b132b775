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
    text = "what a run will take, memory, time and disk, and whether that fits, from a sample of its inputs"
    plan = commands.add_parser("plan", parents=[shared], help=text, description=text)
    plan.add_argument("--json", action="store_true", help="one JSON object for machines; exit code 3: refused")
    text = "try every learning rate in one short run of the train split and suggest one (Smith, arXiv 1506.01186)"
    lr_range = commands.add_parser("lr-range", parents=[shared], help=text, description=text)
    lr_range.add_argument("--start", type=float, default=1e-7, help="first learning rate (default: %(default)s)")
    lr_range.add_argument("--stop", type=float, default=10.0, help="last learning rate (default: %(default)s)")
    lr_range.add_argument("--steps", type=int, default=100, help="steps between the two (default: %(default)s)")
    text = "the fastest batch that is as good as the run's own: step times, memory, noise scale, trainings in pairs"
    tune = commands.add_parser("tune", parents=[shared], help=text, description=text)
    tune.add_argument("--max-batch", type=int, metavar="ROWS", help="try no larger batch (default: rows / 8)")
    tune.add_argument("--seeds", type=int, default=5, help="pairs of trainings, 2 to 30 (default: %(default)s)")
    tune.add_argument("--seconds", type=float, default=600.0, help="time for everything (default: %(default)s)")
    tune.add_argument(
        "--rows", type=int, default=2_000_000, help="of a longer train or valid split a sample (default: %(default)s)"
    )
    tune.add_argument(
        "--tolerance", type=float, default=0.001, help="share of the metric that may be lost (default: %(default)s)"
    )
    text = "models of the shelf on one run's data under one budget, with intervals over seeds (docs/compare.md)"
    compare = commands.add_parser("compare", parents=[shared], help=text, description=text)
    compare.add_argument(
        "--models",
        required=True,
        metavar="A,B,...",
        help="by name, or {kind: fm, dim: 8} with settings; first: reference",
    )
    compare.add_argument("--seeds", type=int, default=3, help="trainings of each model, 1 to 30 (default: %(default)s)")
    compare.add_argument("--epochs", type=int, help="of every training (default: train.epochs)")
    compare.add_argument(
        "--trials", type=int, default=3, help="learning rates tried for each model (default: %(default)s)"
    )
    compare.add_argument("--seconds", type=float, help="time for everything (default: no bound)")
    compare.add_argument(
        "--rows", type=int, default=2_000_000, help="of a longer train split a sample (default: %(default)s)"
    )
    text = "where the time of a training step goes, beside the bytes and flops it needs and what this machine can do"
    profile = commands.add_parser("profile", parents=[shared], help=text, description=text)
    profile.add_argument("--steps", type=int, default=20, help="steps that are timed (default: %(default)s)")
    profile.add_argument(
        "--rows", type=int, default=2_000_000, help="of a longer train split a sample (default: %(default)s)"
    )
    profile.add_argument("--trace", type=Path, metavar="FILE", help="also write torch.profiler's trace of the steps")
    for name, text in {
        "evaluate": "evaluate a run's model on a split; summary and report in a folder beside its own",
        "score": "write a model's predictions of a split",
    }.items():
        command = commands.add_parser(name, parents=[shared], help=text, description=text)
        command.add_argument("--run", type=Path, help="the run's folder (default: runs/<name>/latest)")
        command.add_argument("--split", help="train, valid, test or another split of the features stage")
        if name == "score":
            command.add_argument("--input", metavar="FILES", help="raw files without labels to score, not a split")
        command.add_argument("--out", type=Path, help="file or folder to write (default: inside the run's folder)")
    text = "write a run's model for other runtimes, checked against the bundle (docs/export.md)"
    export = commands.add_parser("export", parents=[shared], help=text, description=text)
    export.add_argument("--run", type=Path, help="the run's folder (default: runs/<name>/latest)")
    export.add_argument("--formats", default="onnx_rows,torch", help="of torch, onnx_rows (default: %(default)s)")
    export.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write (default: the run's, export)")
    for name, source, text in (
        ("import-nvtabular", "DIR", "a saved NVTabular workflow as one of ours, ids kept (docs/migrating.md)"),
        ("import-fastai", "FILE", "fastai's tabular procs as a workflow of ours, ids kept (docs/migrating.md)"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("source", type=Path, metavar=source, help="what to read; a pickle is refused")
        command.add_argument(
            "--out", type=Path, required=True, metavar="FOLDER", help="folder to write the workflow to"
        )
        command.add_argument(
            "--schema", type=Path, help="schema.json of a features stage: also write FOLDER/preprocessor, to train with"
        )
    text = "store the vectors and model inputs of a run's users and items, for request time (docs/retrieval.md)"
    embed = commands.add_parser("embed", parents=[shared], help=text, description=text)
    embed.add_argument("--run", type=Path, help="the run's folder (default: runs/<name>/latest)")
    embed.add_argument(
        "--dtype", default="float32", help="of stored vectors: float32 or float16 (default: %(default)s)"
    )
    embed.add_argument(
        "--index", default="auto", help="over the items: exact, approximate, or auto by their number (default: auto)"
    )
    embed.add_argument(
        "--recall", type=float, default=0.95, help="least recall of an approximate index (default: %(default)s)"
    )
    embed.add_argument(
        "--update", metavar="FILES", help="Parquet feature rows to take in: only what is new or differs is computed"
    )
    text = "extend a run's vocabularies and statistics by new feature rows, and report how these differ"
    update = commands.add_parser("update", parents=[shared], help=text, description=text)
    update.add_argument("--data", required=True, metavar="FILES", help="Parquet files of the features stage, all new")
    update.add_argument(
        "--preprocessor", type=Path, metavar="FOLDER", help="what to extend (default: that of runs/<name>/latest)"
    )
    update.add_argument(
        "--refresh-scales", action="store_true", help="medians and scales of all data, for a model trained anew"
    )
    text = "answer requests for predictions over HTTP with a run's model (docs/serving.md)"
    serve = commands.add_parser("serve", parents=[shared], help=text, description=text)
    serve.add_argument(
        "--run", type=Path, help="the run's folder (default: runs/<name>/current, else latest; watched for a new one)"
    )
    serve.add_argument("--host", help="address to listen at (default: serve.host, which is 127.0.0.1)")
    serve.add_argument("--port", type=int, help="0: any free port (default: serve.port, which is 8000)")
    serve.add_argument("--insecure", action="store_true", help="listen beyond this machine without a token")
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
    # OpenMP's threads spin while they wait, unless told otherwise before torch is loaded. Without end, that makes small
    # batches 5 to 10 times slower with anything else running on the machine; not at all, a fifth slower on a quiet one.
    # So they spin for a tenth of a millisecond or so (docs/tried.md).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "30000")
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
    if not features.artifact.skipped and any(features.files.values()):
        print("input files: " + ", ".join(f"{count:,} {state}" for state, count in features.files.items()))
    for note in features.notes:
        print(note)
    print(features.artifact.path)
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from pipeline.plan import run_plan

    return run_plan(arguments.config, arguments.overrides, arguments.json)


def _lr_range(arguments: argparse.Namespace) -> int:
    from pipeline.lr_range import run_lr_range

    return run_lr_range(arguments.config, arguments.overrides, arguments.start, arguments.stop, arguments.steps)


def _tune(arguments: argparse.Namespace) -> int:
    from pipeline.tune import Bounds, run_tune

    bounds = Bounds(arguments.max_batch, arguments.seeds, arguments.seconds, arguments.rows, arguments.tolerance)
    return run_tune(arguments.config, arguments.overrides, bounds)


def _compare(arguments: argparse.Namespace) -> int:
    from pipeline.compare import Budget, run_compare

    budget = Budget(arguments.seeds, arguments.epochs, arguments.trials, arguments.seconds, arguments.rows)
    return run_compare(arguments.config, arguments.overrides, arguments.models, budget)


def _profile(arguments: argparse.Namespace) -> int:
    from pipeline.step_profile import run_profile

    return run_profile(arguments.config, arguments.overrides, arguments.steps, arguments.rows, arguments.trace)


def _train(arguments: argparse.Namespace) -> int:
    from pipeline.stages import Pipeline

    Pipeline.from_config(arguments.config, *arguments.overrides).train().show()
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from pipeline.score import evaluate_run

    return evaluate_run(arguments.config, arguments.overrides, arguments.run, arguments.split, arguments.out)


def _score(arguments: argparse.Namespace) -> int:
    from pipeline.score import score_run

    return score_run(
        arguments.config, arguments.overrides, arguments.run, arguments.split, arguments.out, arguments.input
    )


def _embed(arguments: argparse.Namespace) -> int:
    from pipeline.embed import run_embed
    from pipeline.embed_write import EmbedSettings

    settings = EmbedSettings(arguments.dtype, arguments.index, arguments.recall)
    return run_embed(arguments.config, arguments.overrides, arguments.run, settings, arguments.update)


def _export(arguments: argparse.Namespace) -> int:
    from pipeline.export import export_run

    return export_run(arguments.config, arguments.overrides, arguments.run, arguments.formats, arguments.out)


def _update(arguments: argparse.Namespace) -> int:
    from pipeline.update import update_preprocessor

    return update_preprocessor(
        arguments.config, arguments.overrides, arguments.data, arguments.preprocessor, arguments.refresh_scales
    )


def _nightly(arguments: argparse.Namespace) -> int:
    from pipeline.nightly import run_nightly

    return run_nightly(arguments.config, arguments.overrides)


def _rollback(arguments: argparse.Namespace) -> int:
    from pipeline.nightly import rollback

    return rollback(arguments.config, arguments.overrides)


def _serve(arguments: argparse.Namespace) -> int:
    from pipeline.serving.server import run_server

    return run_server(
        arguments.config, arguments.overrides, arguments.run, arguments.host, arguments.port, arguments.insecure
    )


def _import(arguments: argparse.Namespace) -> int:
    from features.importers.fastai import import_fastai
    from features.importers.nvtabular import import_nvtabular
    from features.schema import Schema

    schema = None if arguments.schema is None else Schema.load(arguments.schema)
    read = import_nvtabular if arguments.command == "import-nvtabular" else import_fastai
    imported = read(arguments.source)
    imported.save(arguments.out, schema)
    for step in imported.workflow.steps:
        print(step)
    for note in imported.notes:
        print(f"note: {note}")
    print(arguments.out)
    return 0


def _gc(arguments: argparse.Namespace) -> int:
    from pipeline.artifacts import collect_garbage
    from pipeline.config import load_config
    from pipeline.incremental import parsed_in_use

    config = load_config(arguments.config, arguments.overrides)
    links = [link for link in config.runs.glob("*/*") if link.is_symlink()]
    in_use = parsed_in_use(config.artifacts, arguments.keep)
    removed, freed = collect_garbage(config.artifacts, arguments.keep, protect=in_use)
    runs, freed_runs = collect_garbage(config.runs, arguments.keep, protect=links)
    removed, freed = removed + runs, freed + freed_runs
    for path in removed:
        print(f"removed {path}")
    print(f"{len(removed)} folder(s), {freed:,} bytes freed")
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "plan": _plan,
    "lr-range": _lr_range,
    "tune": _tune,
    "compare": _compare,
    "profile": _profile,
    "features": _features,
    "train": _train,
    "evaluate": _evaluate,
    "score": _score,
    "export": _export,
    "embed": _embed,
    "update": _update,
    "nightly": _nightly,
    "rollback": _rollback,
    "serve": _serve,
    "import-nvtabular": _import,
    "import-fastai": _import,
    "gc": _gc,
}
