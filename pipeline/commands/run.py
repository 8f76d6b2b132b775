"""Commands that make a run, and use it: features, train, evaluate, score, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gigabatch.pipeline.commands.options import Config, Overrides, RunChoice, Split

Out = Annotated[
    Path | None,
    typer.Option("--out", show_default="inside the run's folder", metavar="PATH", help="File or folder to write."),
]


def features(config: Config, overrides: Overrides) -> int:
    """Turn raw files into Parquet features."""
    from gigabatch.pipeline.display import render_table
    from gigabatch.pipeline.stages.stages import Pipeline

    made = Pipeline.from_config(config, *overrides).features()
    rows = [{"split": name, "rows": count} for name, count in made.rows.items()]
    render_table(rows, f"features {'(skipped, unchanged)' if made.artifact.skipped else ''}")
    if not made.artifact.skipped and any(made.files.values()):
        print("input files: " + ", ".join(f"{count:,} {state}" for state, count in made.files.items()))
        if made.history is not None:
            print("rows with a history: {reused:,} reused, {computed:,} computed".format(**made.history))
            if made.history["note"]:
                print(made.history["note"])
    for note in made.notes:
        print(note)
    print(made.artifact.path)
    return 0


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
    from gigabatch.pipeline.joining import joined
    from gigabatch.pipeline.stages.stages import Pipeline

    checked = load_config(config, overrides)
    with joined(checked.device, checked.num_threads) as ranks:
        pipeline = Pipeline(checked, ranks=ranks)
        run = pipeline.train_final() if final else pipeline.train()
        if ranks.is_first:
            run.show()
    return 0


def evaluate(config: Config, overrides: Overrides, run: RunChoice = None, split: Split = None, out: Out = None) -> int:
    """Evaluate a run's model on a split; summary and report in a folder beside its own."""
    from gigabatch.pipeline.stages.score import evaluate_run

    return evaluate_run(config, overrides, run, split, out)


def score(
    config: Config,
    overrides: Overrides,
    run: RunChoice = None,
    split: Split = None,
    raw: Annotated[
        str | None, typer.Option("--input", metavar="FILES", help="Raw files without labels to score, not a split.")
    ] = None,
    out: Out = None,
) -> int:
    """Write a model's predictions of a split, or of raw files."""
    from gigabatch.pipeline.stages.score import score_run

    return score_run(config, overrides, run, split, out, raw)


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
    from gigabatch.pipeline.export.export import export_run

    return export_run(config, overrides, run, formats, out)
