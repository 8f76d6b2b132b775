"""Commands that look after the store: gc."""

from __future__ import annotations

from typing import Annotated

import typer

from gigabatch.pipeline.commands.options import Config, Overrides


def gc(
    config: Config,
    overrides: Overrides,
    keep: Annotated[
        int, typer.Option("--keep", help="Artifacts of each stage and configuration, and runs of each name, that stay.")
    ] = 3,
) -> int:
    """Remove old artifacts and runs; never what current, previous and latest name, another command uses, or this
    configuration names as a start."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.nightly.needed import needed
    from gigabatch.pipeline.store.garbage import collect_artifacts, collect_runs

    settings = load_config(config, overrides, whole=False)
    leases = needed(settings)  # held while others are removed
    removed, freed = collect_artifacts(settings.artifacts, keep)
    runs, freed_runs = collect_runs(settings.runs, keep)
    del leases
    removed, freed = removed + runs, freed + freed_runs
    for path in removed:
        print(f"removed {path}")
    print(f"{len(removed)} folder(s), {freed:,} bytes freed")
    return 0
