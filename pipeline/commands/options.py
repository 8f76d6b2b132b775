"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer


def complete_override(incomplete: str) -> Iterator[str]:
    """Settings for a shell that completes `key=`."""
    from gigabatch.pipeline.config.config import RunConfig, setting_paths

    return (f"{path}=" for path in setting_paths(RunConfig) if path.startswith(incomplete))


DEFAULT_CONFIG = Path("conf/flights.yaml")
# Defaults stand here and not in the commands' signatures, so that all commands have the same.
Config = Annotated[
    Path,
    typer.Option(
        "--config",
        metavar="FILE",
        default_factory=lambda: DEFAULT_CONFIG,
        show_default=f"{DEFAULT_CONFIG}, where there is one",
        help="The run's YAML file.",
    ),
]
Overrides = Annotated[
    list[str],
    typer.Argument(
        metavar="key=value",
        default_factory=list,
        show_default=False,
        help="Settings to override, e.g. train.epochs=3, anywhere on the line.",
        autocompletion=complete_override,
    ),
]
RunChoice = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="RUN",
        show_default="current",
        help="current, previous, latest, an id (gigabatch runs lists them), or a run's folder.",
    ),
]
Split = Annotated[
    str | None,
    typer.Option("--split", show_default="test", help="train, valid, test or another split of the features stage."),
]
SampleRows = Annotated[int, typer.Option("--rows", help="Of a longer train split a sample of so many rows.")]
