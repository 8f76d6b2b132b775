"""Commands that say and change which run answers: runs, promote, rollback, unblock."""

from __future__ import annotations

from typing import Annotated

import typer

from gigabatch.pipeline.commands.options import Config, Overrides

RunId = Annotated[str, typer.Argument(metavar="ID", help="Of a run, as gigabatch runs lists it.")]


def runs(config: Config, overrides: Overrides) -> int:
    """List a configuration's runs: date, state, metrics of the test split, period of the data."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.display import render_table
    from gigabatch.pipeline.runs.find import home_of
    from gigabatch.pipeline.runs.listing import list_runs

    settings = load_config(config, overrides, whole=False)
    found = list_runs(settings)
    if found:
        render_table(found, f"Runs in {home_of(settings)}")
    else:
        print(f"no runs in {home_of(settings)}")
    return 0


def promote(config: Config, run: RunId, overrides: Overrides) -> int:
    """Make a run current by hand, which lifts its block; rollback brings the one before back."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.runs.promote import promote_by_hand

    print(promote_by_hand(load_config(config, overrides, whole=False), run))
    return 0


def rollback(config: Config, overrides: Overrides) -> int:
    """Make the run before the current one current again, and block the one that was current."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.runs import promote

    print(promote.rollback(load_config(config, overrides, whole=False)))
    return 0


def unblock(config: Config, run: RunId, overrides: Overrides) -> int:
    """Let the nightly job promote a rolled-back run again, without promoting it now."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.runs import promote

    print(promote.unblock(load_config(config, overrides, whole=False), run))
    return 0
