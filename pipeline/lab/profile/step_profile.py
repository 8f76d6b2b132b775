"""`gigabatch profile`: where the time of a training step goes, beside the bytes and flops that each phase needs.

A step is taken apart into phases, each timed over many steps. What a phase has to move and to compute follows from the
shapes alone, and what the machine can do is measured in the same call, so every phase has a floor: the time that this
machine would take for that work. docs/profile.md has an example and how to read it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.tables.packed import Batch
from gigabatch.models.recommenders.ncf import NCF
from gigabatch.models.tabular.tabular import TabularModel
from gigabatch.pipeline.display import render_table
from gigabatch.pipeline.lab.bounds import require_steps_to_time
from gigabatch.pipeline.lab.experiment import Experiment, PlacedBatch
from gigabatch.pipeline.lab.profile.step_needs import (
    Asked,
    Draws,
    Form,
    Need,
    Network,
    Rates,
    measure_rates,
    step_needs,
)
from gigabatch.pipeline.lab.profile.step_phases import PHASES, PHASES_WITH_DRAWS, Laps, PhasedStep, watched_lookup
from gigabatch.pipeline.lab.tune.trials import time_steps
from gigabatch.pipeline.stages.run import environment
from gigabatch.pipeline.store.files import write_json
from gigabatch.pipeline.training.train import TrainingError

WARM_STEPS = 3
WHOLE_STEP_SECONDS = 2.0


@dataclass(frozen=True)
class Profile:
    """seconds: of each phase, medians over the steps. step_seconds: of a whole step as training takes it.

    num_columns: of ids. asked: rows of each table that a batch touches, and elements of its lists. dense_tables: tables
    take dense gradients, and the dense optimizer moves them whole. draws: of negatives, where there are any; the rows
    of a step are `num_rows` then, batch_size counts the positives.
    """

    name: str
    batch_size: int
    num_steps: int
    seconds: dict[str, float]
    step_seconds: float
    needs: dict[str, Need]
    num_columns: int
    asked: Asked
    dense_tables: bool
    rates: Rates
    draws: Draws | None = None

    @property
    def num_rows(self) -> int:
        """Rows of a step, those of negatives among them."""
        return self.batch_size * (1 if self.draws is None else 1 + self.draws.per_positive)

    def rows(self) -> list[dict[str, Any]]:
        """A row a phase, and their sum."""
        total = sum(self.seconds.values())
        found = [_row(name, self.seconds[name], total, self.needs[name], self.rates) for name in self.seconds]
        floor = sum(need.floor_seconds(self.rates) for need in self.needs.values())
        whole = {"phase": "sum", "ms": 1e3 * total, "share %": 100.0, "floor ms": 1e3 * floor}
        return [*found, whole | {"% of ceiling": 100 * floor / total}]


def _row(name: str, seconds: float, total: float, need: Need, rates: Rates) -> dict[str, Any]:
    floor = need.floor_seconds(rates)
    return {
        "phase": name,
        "ms": 1e3 * seconds,
        "share %": 100 * seconds / total,
        "MB": need.num_bytes / 1e6,
        "GB/s": need.num_bytes / seconds / 1e9,
        "GFLOP": need.flops / 1e9 if need.flops else None,
        "GFLOP/s": need.flops / seconds / 1e9 if need.flops else None,
        "floor ms": 1e3 * floor,
        "% of ceiling": 100 * floor / seconds,
    }


def profile_steps(experiment: Experiment, num_steps: int, trace: Path | None = None) -> Profile:
    """Time `num_steps` steps of the run by phase, after 3 that are not counted.

    Parameters
    ----------
    experiment
        The run's tables, model and loss.
    num_steps
        Steps that are timed; medians are taken over them.
    trace
        Where torch.profiler's trace of as many further steps goes, for chrome://tracing or https://ui.perfetto.dev.

    Returns
    -------
    Profile
        Seconds of each phase, beside what it needs and what this machine can do.

    Raises
    ------
    TrainingError
        For fewer than 1 step, a train split of fewer than 8 batches, a model whose phases are not told apart, or lists
        beside drawn negatives.
    """
    if experiment.schema.lists and experiment.settings.negatives is not None:
        raise TrainingError(
            "profile: what drawing negatives moves of list columns is not told apart. Set train.negatives=null, or "
            "leave out features.lists, to profile the rest."
        )
    settings, device, seed = experiment.settings, experiment.device, experiment.config.seed
    model = experiment.new_model(seed).train()
    network = Network.of(model)
    require_steps_to_time(num_steps)
    if len(experiment.train) < 8 * settings.batch_size:
        raise TrainingError(
            f"profile: {len(experiment.train):,} train rows are fewer than 8 batches of {settings.batch_size:,}. "
            "Give a smaller train.batch_size, or more rows (--rows)."
        )
    dataset = BatchDataset(experiment.train, settings.batch_size, shuffle=True, seed=seed, drop_last=True)
    phases = PHASES if settings.negatives is None else PHASES_WITH_DRAWS
    laps = Laps(device, phases)
    with torch.random.fork_rng(experiment.cuda_devices), watched_lookup(laps, device):
        assert isinstance(model, TabularModel | NCF), "Network.of refuses others"
        step = PhasedStep(experiment, model, laps)

        def run(first: int, last: int) -> None:
            for index in range(first, last):
                step(dataset, index % len(dataset))

        run(0, WARM_STEPS + num_steps)
        timed = laps.by_step()[WARM_STEPS:]
        if trace is not None:
            write_trace(trace, device, lambda: run(0, num_steps))

    def batches() -> Iterator[Batch]:
        for index in range(WARM_STEPS, WARM_STEPS + num_steps):
            yield PlacedBatch.of(dataset, index % len(dataset)).rows(step.negatives)

    asked = Asked.of(batches(), network)
    draws = None if step.negatives is None else Draws.of(step.negatives, batches())
    schema = experiment.train.schema
    return Profile(
        name=experiment.config.name,
        batch_size=settings.batch_size,
        num_steps=num_steps,
        seconds={name: statistics.median(found[name] for found in timed) for name in phases},
        step_seconds=time_steps(experiment, settings.batch_size, WHOLE_STEP_SECONDS).seconds,
        needs=step_needs(network, schema, settings.batch_size, asked, Form.of(step), draws),
        num_columns=len(network.columns),
        asked=asked,
        dense_tables=step.dense_tables,
        rates=measure_rates(device, step.precision.dtype, schema.num_words),
        draws=draws,
    )


def write_trace(path: Path, device: str, work: Callable[[], object]) -> None:
    """Write torch.profiler's trace of `work`, as JSON for a trace viewer."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device != "cpu":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    path.parent.mkdir(parents=True, exist_ok=True)
    with torch.profiler.profile(activities=activities) as found:
        work()
    found.export_chrome_trace(str(path))


def run_profile(path: str | Path, overrides: Sequence[str], num_steps: int, max_rows: int, trace: Path | None) -> int:
    """The command: prints the phases and writes runs/<name>/profile.json."""
    experiment = Experiment.of_run(path, overrides, max_rows)
    profile = profile_steps(experiment, num_steps, trace)
    rows = profile.rows()
    content = {
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "batch_size": profile.batch_size,
        "rows": profile.num_rows,
        "negatives": None if profile.draws is None else asdict(profile.draws),
        "steps": num_steps,
        "step_seconds": profile.step_seconds,
        "phases": rows,
        "needs": {name: asdict(need) for name, need in profile.needs.items()},
        "unique_ids": profile.asked.unique,
        "list_elements": profile.asked.elements,
        "dense_tables": profile.dense_tables,
        "rates": asdict(profile.rates) | {"dtype": str(profile.rates.dtype)},
        "environment": environment(experiment.device),
    }
    write_json(experiment.home / "profile.json", content)
    render_table(rows, f"profile {profile.name}: a step of {profile.num_rows:,} rows, medians of {num_steps}")
    print(f"this machine  {profile.rates}")
    if profile.draws is not None:
        print(f"negatives     {_drawn_text(profile.batch_size, profile.draws)}")
    ids, elements = sum(profile.asked.unique), sum(profile.asked.elements)
    total = profile.num_rows * profile.num_columns + elements
    of_lists = f", {elements:,.0f} of them elements of lists" if profile.asked.elements else ""
    print(f"ids           {ids:,.0f} different ones of {total:,.0f} in a batch{of_lists}")
    if profile.dense_tables:
        print("tables        take dense gradients; the dense optimizer moves them whole")
    print(f"whole step    {1e3 * profile.step_seconds:,.2f} ms as training takes it")
    if trace is not None:
        print(f"trace         {trace}")
    print(experiment.home / "profile.json")
    return 0


def _drawn_text(num_positives: int, draws: Draws) -> str:
    drawn = f"{num_positives * draws.per_positive:,} drawn for {num_positives:,} positives (train.batch_size)"
    if not draws.knows:
        return f"{drawn}, none left out as known"
    return f"{drawn}, each compared with {draws.comparisons:.1f} of the user's known positives"
