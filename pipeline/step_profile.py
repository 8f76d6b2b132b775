"""`gigabatch profile`: where the time of a training step goes, beside the bytes and flops that each phase needs.

A step is taken apart into phases, each timed over many steps. What a phase has to move and to compute follows from the
shapes alone, and what the machine can do is measured in the same call, so every phase has a floor: the time that this
machine would take for that work. docs/profile.md has an example and how to read it.

Shapes: B rows of a batch, C id columns of tables [V_c, D_c], of which a batch touches U_c rows, W the sum of D_c.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from loaders.dataset import BatchDataset
from models import TabularConfig, TabularModel
from models.tabular import TabularSettings
from pipeline.artifacts import atomic_write
from pipeline.display import render_table
from pipeline.experiment import Experiment
from pipeline.machine_rates import Rates, measure_rates
from pipeline.run import environment
from pipeline.step_phases import (
    BACKWARD,
    DENSE,
    EMBEDDING,
    FORWARD,
    GATHER,
    LOOKUP,
    LOSS,
    PHASES,
    Laps,
    PhasedStep,
    watched_lookup,
)
from pipeline.train import TrainingError
from pipeline.tune_trials import time_steps

WARM_STEPS = 3
WHOLE_STEP_SECONDS = 2.0


@dataclass(frozen=True)
class Need:
    """What a phase moves and computes at least: bytes in order (stream), of table rows in random order (random), of
    packed rows in random order (packed), and floating-point operations."""

    stream: float = 0.0
    random: float = 0.0
    packed: float = 0.0
    flops: float = 0.0

    @property
    def num_bytes(self) -> float:
        return self.stream + self.random + self.packed

    def floor_seconds(self, rates: Rates) -> float:
        """The longer of what memory and arithmetic take at the machine's rates, as if they ran side by side."""
        memory = self.stream / rates.copy + self.random / rates.random + self.packed / rates.packed
        return max(memory, self.flops / rates.matmul)


@dataclass(frozen=True)
class Profile:
    """seconds: of each phase, medians over the steps. step_seconds: of a whole step as training takes it.

    unique_ids: rows of each table that a batch touches, means over the steps. dense_tables: tables take dense
    gradients, and the dense optimizer moves them whole.
    """

    name: str
    batch_size: int
    num_steps: int
    seconds: dict[str, float]
    step_seconds: float
    needs: dict[str, Need]
    unique_ids: tuple[float, ...]
    dense_tables: bool
    rates: Rates

    def rows(self) -> list[dict[str, Any]]:
        """A row a phase, and their sum."""
        total = sum(self.seconds.values())
        found = [_row(name, self.seconds[name], total, self.needs[name], self.rates) for name in PHASES]
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

    trace: where torch.profiler's trace of as many further steps goes, for chrome://tracing or https://ui.perfetto.dev.

    Raises:
        TrainingError: for fewer than 1 step, or for a train split that is smaller than the batch.
    """
    settings, device, seed = experiment.config.train, experiment.device, experiment.config.seed
    tabular_shape(experiment)
    if num_steps < 1:
        raise TrainingError(f"profile: --steps must be at least 1, not {num_steps}.")
    if len(experiment.train) < 8 * settings.batch_size:
        raise TrainingError(
            f"profile: {len(experiment.train):,} train rows are fewer than 8 batches of {settings.batch_size:,}. "
            "Give a smaller train.batch_size, or more rows (--rows)."
        )
    dataset = BatchDataset(experiment.train, settings.batch_size, shuffle=True, seed=seed, drop_last=True)
    laps = Laps(device)
    with torch.random.fork_rng(experiment.cuda_devices), watched_lookup(laps, device):
        model = experiment.new_model(seed).train()
        assert isinstance(model, TabularModel), "tabular_shape refuses others"
        step = PhasedStep(experiment, model, laps)

        def run(first: int, last: int) -> None:
            for index in range(first, last):
                step(dataset, index % len(dataset))

        run(0, WARM_STEPS + num_steps)
        timed = laps.by_step()[WARM_STEPS:]
        if trace is not None:
            write_trace(trace, device, lambda: run(0, num_steps))
    unique = unique_ids(dataset, [index % len(dataset) for index in range(WARM_STEPS, WARM_STEPS + num_steps)])
    return Profile(
        name=experiment.config.name,
        batch_size=settings.batch_size,
        num_steps=num_steps,
        seconds={name: statistics.median(found[name] for found in timed) for name in PHASES},
        step_seconds=time_steps(experiment, settings.batch_size, WHOLE_STEP_SECONDS).seconds,
        needs=step_needs(experiment, unique, Form.of(step)),
        unique_ids=tuple(unique),
        dense_tables=step.dense_tables,
        rates=measure_rates(device, step.precision.dtype, experiment.train.schema.num_words),
    )


def unique_ids(dataset: BatchDataset, indices: Sequence[int]) -> list[float]:
    """Mean number of different ids of each column over these batches."""
    counts = [[len(column.unique()) for column in dataset[index].ids.unbind(1)] for index in indices]
    return [statistics.fmean(column) for column in zip(*counts, strict=True)]


@dataclass(frozen=True)
class Form:
    """What of a model and its optimizer decides how much is moved, beside the shapes.

    activation_bytes, lookup_bytes: of a number in the network, and of the looked up rows. touched_row_bytes: of each
    table, read and written when a row moves, weight and state; None where tables take dense gradients.
    """

    activation_bytes: int
    lookup_bytes: int
    touched_row_bytes: tuple[float, ...] | None

    @classmethod
    def of(cls, step: PhasedStep) -> Form:
        """As `step` has it; its optimizer must have taken a step, which makes the state."""
        activation = step.precision.dtype.itemsize
        lookup = activation if step.model.folding_obstacle() is None else 4
        if step.dense_tables:
            return cls(activation, lookup, None)
        tables = list(step.model.embeddings.tables)
        states = [step.optimizer.state.get(table, {}).values() for table in tables]
        touched = [
            2.0 * (4 * table.shape[1] + sum(part.nbytes for part in state if part.dim()) / table.shape[0])
            for table, state in zip(tables, states, strict=True)
        ]
        return cls(activation, lookup, tuple(touched))


def step_needs(experiment: Experiment, unique: Sequence[float], form: Form) -> dict[str, Need]:
    """What each phase of a step has to move and compute, from the shapes.

    Products count a multiplication and an addition each, the forward pass one product a layer and the backward pass
    two. A dense optimizer reads weight, gradient and two moments and writes all but the gradient: 28 bytes a number.
    Every activation is written once and read once on the way up, read once and replaced by its gradient on the way
    down.
    """
    shape, rows = tabular_shape(experiment), experiment.config.train.batch_size
    words, width = experiment.train.schema.num_words, sum(shape.widths)
    sizes = (width + shape.num_floats, *shape.layers, shape.num_outputs)
    parameters = sum(a * b for a, b in pairwise(sizes))
    inputs, hidden, outputs = rows * sizes[0], rows * sum(shape.layers), rows * shape.num_outputs
    looked_up, ids = form.lookup_bytes * rows * width, 4.0 * rows * len(shape.num_ids)
    touched = sum(4.0 * count * wide for count, wide in zip(unique, shape.widths, strict=True))
    up = form.activation_bytes * (inputs + 2 * hidden) + 4.0 * outputs
    down = form.activation_bytes * (2 * inputs + 3 * hidden) + 4.0 * outputs
    if form.touched_row_bytes is None:  # a gradient as large as the tables is cleared and filled, and moves all rows
        tables = sum(count * wide for count, wide in zip(shape.num_ids, shape.widths, strict=True))
        embedding = Need(stream=ids + looked_up + 4.0 * tables, random=2 * touched)
        dense = Need(stream=28.0 * (parameters + tables))
    else:
        moved = sum(count * size for count, size in zip(unique, form.touched_row_bytes, strict=True))
        embedding = Need(stream=ids + looked_up, random=moved)
        dense = Need(stream=28.0 * parameters)
    return {
        GATHER: Need(stream=4.0 * rows * words + 8.0 * rows, packed=4.0 * rows * words),
        LOOKUP: Need(stream=ids + looked_up, random=touched),
        FORWARD: Need(stream=up, flops=2.0 * rows * parameters),
        LOSS: Need(stream=8.0 * outputs + 4.0 * rows * len(experiment.schema.targets)),
        BACKWARD: Need(stream=down, flops=4.0 * rows * parameters),
        EMBEDDING: embedding,
        DENSE: dense,
    }


def tabular_shape(experiment: Experiment) -> TabularConfig:
    """The model's layers; `TrainingError` for a model whose bytes and flops are not written down here."""
    spec = experiment.spec
    if not isinstance(spec.settings, TabularSettings):
        raise TrainingError(
            f"profile: what a step needs is known of model.kind=tabular, and this run's is {spec.name}. Profile it "
            "with torch.profiler."
        )
    return spec.settings.config(spec.inputs)


def write_trace(path: Path, device: str, work: Callable[[], object]) -> None:
    """torch.profiler's trace of `work`, as JSON for a trace viewer."""
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
        "steps": num_steps,
        "step_seconds": profile.step_seconds,
        "phases": rows,
        "needs": {name: asdict(need) for name, need in profile.needs.items()},
        "unique_ids": profile.unique_ids,
        "dense_tables": profile.dense_tables,
        "rates": asdict(profile.rates) | {"dtype": str(profile.rates.dtype)},
        "environment": environment(experiment.device),
    }
    atomic_write(experiment.home / "profile.json", (json.dumps(content, indent=1) + "\n").encode())
    render_table(rows, f"profile {profile.name}: a step of {profile.batch_size:,} rows, medians of {num_steps}")
    print(f"this machine  {profile.rates}")
    ids = sum(profile.unique_ids)
    total = profile.batch_size * len(profile.unique_ids)
    print(f"ids           {ids:,.0f} different ones of {total:,} in a batch")
    if profile.dense_tables:
        print("tables        take dense gradients; the dense optimizer moves them whole")
    print(f"whole step    {1e3 * profile.step_seconds:,.2f} ms as training takes it")
    if trace is not None:
        print(f"trace         {trace}")
    print(experiment.home / "profile.json")
    return 0
