"""Commands that keep a model current: nightly, update."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gigabatch.pipeline.commands.command import check_run, whole_config
from gigabatch.pipeline.commands.options import Config, Overrides, RunChoice


def nightly(
    config: Config,
    overrides: Overrides,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Tell what tonight would do, and change no run. Exit code 0, or that of a night that would be refused "
            "(20, 30) or fail (40).",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: one JSON object for machines.")] = False,
) -> int:
    """Train on new files, compare with the current model, promote or keep (docs/nightly.md).

    Exit codes: 0 promoted, 10 kept, 20 data refused, 30 drift refused, 40 failed; 130 and 143 stopped by a signal.
    """
    if as_json and not dry_run:
        raise typer.BadParameter("--json goes with --dry-run; nights are in runs/<name>/nightly.jsonl.")
    if dry_run:
        from gigabatch.pipeline.nightly.rehearsal import quiet_rehearsal

        if (found := quiet_rehearsal(config, overrides)) is not None:
            return found.tell(as_json)
    else:
        from gigabatch.pipeline.nightly.nightly import quiet_night

        if (code := quiet_night(config, overrides)) is not None:
            return code
    whole_config(config, overrides)
    if dry_run:
        from gigabatch.pipeline.nightly.plan import run_rehearsal

        return run_rehearsal(config, overrides, as_json)
    from gigabatch.pipeline.nightly.nightly import run_nightly

    return run_nightly(config, overrides)


def update(
    config: Config,
    overrides: Overrides,
    data: Annotated[
        str,
        typer.Option(
            "--data", metavar="FILES", help="New rows: raw files, as for score, or Parquet files of the features stage."
        ),
    ],
    run: RunChoice = None,
    preprocessor: Annotated[
        Path | None,
        typer.Option(
            "--preprocessor", metavar="FOLDER", show_default="that of the run", help="What to extend, if not a run's."
        ),
    ] = None,
    refresh_scales: Annotated[
        bool, typer.Option("--refresh-scales", help="Medians and scales of all data, for a model trained anew.")
    ] = False,
) -> int:
    """Extend a run's vocabularies and statistics by new rows, and report how these differ (docs/refit.md)."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.stages.asked import require_preprocessor, require_update

    require_update(data, run, preprocessor)
    if preprocessor is None:
        check_run(config, overrides, run)
    else:
        require_preprocessor(preprocessor, load_config(config, overrides, whole=False).artifacts)
    whole_config(config, overrides)
    from gigabatch.pipeline.stages.update import update_preprocessor

    return update_preprocessor(config, overrides, data, preprocessor, refresh_scales, run)
