"""Commands for what is asked of a model of users and items: recommend; and for request time: embed, serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gigabatch.pipeline.commands.command import whole_config
from gigabatch.pipeline.commands.options import Config, Overrides, RunChoice


def recommend(
    config: Config,
    overrides: Overrides,
    run: RunChoice = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Items a user.")] = 10,
    users: Annotated[
        str | None,
        typer.Option(
            "--users", metavar="FILES", show_default="all", help="Files with a column of the users to ask for."
        ),
    ] = None,
    again: Annotated[
        bool | None,
        typer.Option(
            "--again/--new",
            show_default="as evaluate.ranking ranks",
            help="Also items that a user has chosen before, or new ones alone.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", show_default="inside the run's folder", metavar="FILE", help="A .csv or .parquet file."),
    ] = None,
) -> int:
    """Write the items that a model ranks highest for every user (docs/recommenders.md)."""
    from gigabatch.features.reading.sources import expand
    from gigabatch.pipeline.stages.asked import require_table

    if out is not None:
        require_table(out)
    if users is not None:
        expand(users)
    whole_config(config, overrides, inputs=True)
    from gigabatch.pipeline.embedding.recommend import recommend_run

    return recommend_run(config, overrides, run, k, users, again, out)


def embed(
    config: Config,
    overrides: Overrides,
    run: RunChoice = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Of stored vectors: float32 or float16.")] = "float32",
    index: Annotated[
        str, typer.Option("--index", help="Over the items: exact, approximate, or auto by their number.")
    ] = "auto",
    recall: Annotated[float, typer.Option("--recall", help="Least recall of an approximate index.")] = 0.95,
    update: Annotated[
        str | None,
        typer.Option(
            "--update",
            metavar="FILES",
            help="Parquet feature rows to take in: only what is new or differs is computed.",
        ),
    ] = None,
) -> int:
    """Store the vectors and model inputs of a run's users and items, for request time (docs/retrieval.md)."""
    from gigabatch.features.reading.sources import expand
    from gigabatch.pipeline.embedding.settings import EmbedSettings

    settings = EmbedSettings(dtype, index, recall)
    if update is not None:
        expand(update)
    whole_config(config, overrides, inputs=update is None)
    from gigabatch.pipeline.embedding.embed import run_embed

    return run_embed(config, overrides, run, settings, update)


def serve(
    config: Config,
    overrides: Overrides,
    run: RunChoice = None,
    host: Annotated[
        str | None,
        typer.Option("--host", show_default="serve.host, which is 127.0.0.1", help="Address to listen at."),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", show_default="serve.port, which is 8000", help="0: any free port.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", show_default="serve.workers, which is 1", help="Processes that answer at the port."),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen beyond this machine without a token.")] = False,
) -> int:
    """Answer requests for predictions over HTTP with a run's model, and with what takes its place (docs/serving.md)."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.runs.find import run_link
    from gigabatch.pipeline.serving.start import asked_settings, require_packages, require_start

    require_packages()
    loaded = load_config(config, overrides, whole=False)
    require_start(asked_settings(loaded.serve, host, port, workers), [run_link(loaded, run)], insecure)
    whole_config(config, overrides)
    from gigabatch.pipeline.serving.http.server import run_server

    return run_server(config, overrides, run, host, port, workers, insecure)
