"""The command that compiles the loops before anything needs them: warm."""

from __future__ import annotations

from typing import Annotated

import typer


def warm(
    every: Annotated[
        bool,
        typer.Option("--all", help="Also the loops of the precision that this processor does not choose by itself."),
    ] = False,
) -> int:
    """Compile the loops for this processor, on all cores, so that no run has to."""
    from gigabatch.loops import kept_in
    from gigabatch.pipeline.warm.warm import warm_up

    done = warm_up(every, worth=0.0)
    there = done.listed - done.compiled
    print(f"{done.compiled:,} of {done.listed:,} loops compiled, {there:,} were there: {kept_in()}")
    return 0
