"""Commands that make a run, and use it: features, train, evaluate, score, export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gigabatch.pipeline.commands.command import whole_config
from gigabatch.pipeline.commands.options import Config, Overrides, RunChoice, Split

if TYPE_CHECKING:
    from gigabatch.models.parallel.ranks import Ranks
    from gigabatch.pipeline.config.config import RunConfig
    from gigabatch.pipeline.stages.stages import Pipeline

Out = Annotated[
    Path | None,
    typer.Option("--out", show_default="inside the run's folder", metavar="FOLDER", help="Folder to write."),
]


def features(config: Config, overrides: Overrides) -> int:
    """Turn raw files into Parquet features."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.display import render_table
    from gigabatch.pipeline.stages.asked import Request

    request = Request.of(load_config(config, overrides, whole=False))
    made, found = None, request.features()
    if found is None:
        made = _pipeline(whole_config(config, overrides, inputs=True)).features()
        found = made.artifact
        request.remember()
    rows = [{"split": name, "rows": count} for name, count in found.manifest["rows"].items()]
    render_table(rows, f"features {'(skipped, unchanged)' if found.skipped else ''}")
    if made is not None and not found.skipped and any(made.files.values()):
        print("input files: " + ", ".join(f"{count:,} {state}" for state, count in made.files.items()))
        if made.history is not None:
            print("rows with a history: {reused:,} reused, {computed:,} computed".format(**made.history))
            if made.history["note"]:
                print(made.history["note"])
    for note in found.manifest["notes"]:
        print(note)
    print(found.path)
    return 0


def _pipeline(checked: RunConfig, ranks: Ranks | None = None) -> Pipeline:
    """Imported for a configuration that is whole and for work that is to be done: torch alone takes a second."""
    from gigabatch.pipeline.stages.stages import Pipeline

    return Pipeline(checked, ranks=ranks)


def train(
    config: Config,
    overrides: Overrides,
    final: Annotated[
        bool,
        typer.Option("--final", help="Then train on nearly all rows too, as long as was best: the model to serve."),
    ] = False,
) -> int:
    """Run every stage up to the evaluated model and its report; on several ranks under torchrun (docs/parallel.md)."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.stages.asked import Request

    request = Request.of(load_config(config, overrides, whole=False))
    if not final and (found := request.run()) is not None:
        found.show()
        return 0
    checked = whole_config(config, overrides, inputs=True)
    from gigabatch.pipeline.joining import joined

    with joined(checked.device, checked.num_threads) as ranks:
        pipeline = _pipeline(checked, ranks)
        run = pipeline.train_final() if final else pipeline.train()
        if ranks.is_first:
            if not final:
                request.remember(run)
            run.show()
    return 0


def evaluate(config: Config, overrides: Overrides, run: RunChoice = None, split: Split = None, out: Out = None) -> int:
    """Evaluate a run's model on a split; summary and report in a folder beside its own."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.stages.asked import Request

    request = Request.of(load_config(config, overrides, whole=False))
    if (found := request.evaluation(run, split or "test", out)) is not None:
        found.show(request.config.name, split or "test")
        return 0
    request.require_split(split)
    whole_config(config, overrides, inputs=True)
    from gigabatch.pipeline.stages.score import evaluate_run

    return evaluate_run(config, overrides, run, split, out, request)


def score(
    config: Config,
    overrides: Overrides,
    run: RunChoice = None,
    split: Split = None,
    raw: Annotated[
        str | None, typer.Option("--input", metavar="FILES", help="Raw files without labels to score, not a split.")
    ] = None,
    history: Annotated[
        str | None,
        typer.Option(
            "--history",
            show_default="files of features",
            metavar="FILES",
            help="Earlier rows with labels, for features of --input that look back.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            show_default="inside the run's folder",
            metavar="FILE",
            help="File to write, .csv or .parquet.",
        ),
    ] = None,
) -> int:
    """Write a model's predictions of a split, or of raw files."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.stages.asked import Request, require_score

    require_score(raw, split, out, history)
    Request.of(load_config(config, overrides, whole=False)).require_split(split)
    whole_config(config, overrides, inputs=raw is None)
    from gigabatch.pipeline.stages.score import score_run

    return score_run(config, overrides, run, split, out, raw, history)


def export(
    config: Config,
    overrides: Overrides,
    run: RunChoice = None,
    formats: Annotated[str, typer.Option("--formats", help="Of torch, onnx_rows.")] = "onnx_rows,torch",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", show_default="export in the run's folder", help="Folder to write."),
    ] = None,
) -> int:
    """Write a run's model for other runtimes, checked against the bundle (docs/export.md)."""
    from gigabatch.pipeline.export.asked import format_names

    format_names(formats)
    whole_config(config, overrides)
    from gigabatch.pipeline.export.export import export_run

    return export_run(config, overrides, run, formats, out)
