"""Commands that measure before a long run: plan, tune, compare, lr-range, profile, advise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gigabatch.pipeline.commands.command import whole_config
from gigabatch.pipeline.commands.options import Config, Overrides, SampleRows

SAMPLE_ROWS = 2_000_000
UNFIT = 3  # exit code of a plan


def plan(
    config: Config,
    overrides: Overrides,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for machines. Exit code 3: the run does not fit.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Measure anew, though a plan of the same run is kept.")
    ] = False,
) -> int:
    """Plan what a run will take (memory, time, disk) and whether that fits, from a sample of its inputs."""
    from gigabatch.pipeline.config.config import COLD, load_config
    from gigabatch.pipeline.lab.plan.kept import KeptPlans
    from gigabatch.pipeline.stages.asked import Request
    from gigabatch.pipeline.store.files import json_text

    given: list[Any] = [*overrides, COLD]
    settings = load_config(config, given, whole="features").features
    plans = KeptPlans.of(Request.of(load_config(config, given, whole=False)), settings)
    found = None if again else plans.find()
    if found is None:
        load_config(config, given)
        from gigabatch.pipeline.lab.plan.plan import run_plan

        found = run_plan(config, overrides, plans)
    if as_json:
        print(json_text(found.to_dict()))
    else:
        found.show()
    return 0 if found.fits else UNFIT


def tune(
    config: Config,
    overrides: Overrides,
    max_batch: Annotated[
        int | None, typer.Option("--max-batch", metavar="ROWS", show_default="rows / 8", help="Try no larger batch.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Pairs of trainings, 2 to 30.")] = 5,
    seconds: Annotated[float, typer.Option("--seconds", help="Time for everything.")] = 600.0,
    rows: Annotated[
        int, typer.Option("--rows", help="Of a longer train or valid split a sample of so many rows.")
    ] = SAMPLE_ROWS,
    tolerance: Annotated[float, typer.Option("--tolerance", help="Share of the metric that may be lost.")] = 0.001,
) -> int:
    """Find the fastest batch that is as good as the run's own: step times, memory, noise scale, paired trainings."""
    from gigabatch.pipeline.lab.bounds import TuneBounds

    bounds = TuneBounds(max_batch, seeds, seconds, rows, tolerance)
    whole_config(config, overrides, inputs=True)
    from gigabatch.pipeline.lab.tune.tune import run_tune

    return run_tune(config, overrides, bounds)


def compare(
    config: Config,
    overrides: Overrides,
    models: Annotated[
        str,
        typer.Option(
            "--models",
            metavar="A,B,...",
            help="By name, or {kind: fm, embedding_dim: 8} with settings; the first is the reference.",
        ),
    ],
    seeds: Annotated[int, typer.Option("--seeds", help="Trainings of each model, 1 to 30.")] = 3,
    epochs: Annotated[
        int | None, typer.Option("--epochs", show_default="train.epochs", help="Of every training.")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", help="Learning rates tried for each model.")] = 3,
    seconds: Annotated[
        float | None, typer.Option("--seconds", show_default="no bound", help="Time for everything.")
    ] = None,
    rows: SampleRows = SAMPLE_ROWS,
) -> int:
    """Compare models of the shelf on one run's data under one budget, with intervals over seeds (docs/compare.md)."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.lab.bounds import Budget, listed_models

    budget = Budget(seeds, epochs, trials, seconds, rows)
    load_config(config, overrides, whole="features")  # with code of the user's own, which may register models
    listed_models(models)
    whole_config(config, overrides, inputs=True)
    from gigabatch.pipeline.lab.compare.compare import run_compare

    return run_compare(config, overrides, models, budget)


def lr_range(
    config: Config,
    overrides: Overrides,
    start: Annotated[float, typer.Option("--start", help="First learning rate.")] = 1e-7,
    stop: Annotated[float, typer.Option("--stop", help="Last learning rate.")] = 10.0,
    steps: Annotated[int, typer.Option("--steps", help="Steps between the two.")] = 100,
) -> int:
    """Try every learning rate in one short run of the train split and suggest one (Smith, arXiv 1506.01186)."""
    from gigabatch.pipeline.lab.bounds import require_lr_range

    require_lr_range(start, stop, steps)
    whole_config(config, overrides, inputs=True)
    from gigabatch.pipeline.lab.tune.lr_range import run_lr_range

    return run_lr_range(config, overrides, start, stop, steps)


def profile(
    config: Config,
    overrides: Overrides,
    steps: Annotated[int, typer.Option("--steps", help="Steps that are timed.")] = 20,
    rows: SampleRows = SAMPLE_ROWS,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Also write torch.profiler's trace of the steps.")
    ] = None,
) -> int:
    """Time the phases of a training step, beside the bytes and flops they need and what this machine can do."""
    from gigabatch.pipeline.lab.bounds import require_rows, require_steps_to_time

    require_steps_to_time(steps)
    require_rows(rows)
    whole_config(config, overrides, inputs=True)
    from gigabatch.pipeline.lab.profile.step_profile import run_profile

    return run_profile(config, overrides, steps, rows, trace)


def advise(
    config: Config,
    overrides: Overrides,
    bandwidth: Annotated[
        float | None,
        typer.Option(
            "--bandwidth", metavar="BYTES", show_default="measured", help="A second, that a device sends, e.g. 25e9."
        ),
    ] = None,
    latency: Annotated[float, typer.Option("--latency", help="Seconds of a message, with --bandwidth.")] = 2e-5,
    efficiency: Annotated[float, typer.Option("--efficiency", help="At which devices still pay.")] = 0.7,
    seconds: Annotated[float, typer.Option("--seconds", help="Time for everything, about.")] = 60.0,
    rows: SampleRows = SAMPLE_ROWS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for machines.")] = False,
) -> int:
    """Say which batch and how many devices still pay, from steps on one device and the time of messages."""
    from gigabatch.pipeline.lab.bounds import AdviseBounds

    bounds = AdviseBounds(seconds, rows, bandwidth, latency, efficiency)
    whole_config(config, overrides, inputs=True)
    from gigabatch.pipeline.lab.advise.advise import run_advise

    return run_advise(config, overrides, bounds, as_json)
