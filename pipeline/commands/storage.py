"""Commands that look after the store: gc."""

from __future__ import annotations

from typing import Annotated

import typer

from gigabatch.pipeline.commands.options import Config, Overrides


def gc(
    config: Config,
    overrides: Overrides,
    keep: Annotated[
        int, typer.Option("--keep", help="Newest artifacts of each stage, and runs of each name, that stay.")
    ] = 3,
) -> int:
    """Remove old artifacts and runs, never those that current, previous and latest name."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.store.garbage import collect_garbage
    from gigabatch.pipeline.store.parsed_files import parsed_in_use

    settings = load_config(config, overrides)
    links = [link for link in settings.runs.glob("*/*") if link.is_symlink()]
    in_use = parsed_in_use(settings.artifacts, keep)
    removed, freed = collect_garbage(settings.artifacts, keep, protect=in_use)
    runs, freed_runs = collect_garbage(settings.runs, keep, protect=links)
    removed, freed = removed + runs, freed + freed_runs
    for path in removed:
        print(f"removed {path}")
    print(f"{len(removed)} folder(s), {freed:,} bytes freed")
    return 0
