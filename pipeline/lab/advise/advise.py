"""`gigabatch advise`: which batch pays, how many devices pay, and how tables should lie on them.

From a short profile on one device: steps at several batch sizes, in parts; the step of one rank of 2, 4 and 8, which
this process takes alone (`one_rank.py`); and the time of collectives, measured between two processes or given
(`links.py`). The lemmas of arXiv 1709.06622 stand beside what is predicted (`lemmas.py`). docs/parallel.md, "Sizing",
says how to read it and what it cannot know.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.tables.packed import Batch
from gigabatch.models.errors import ModelError, require
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.model import Model
from gigabatch.models.parallel.des import substitute
from gigabatch.models.parallel.placement import TableUse, plan_tables, table_uses
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.parallel.sharded import AUTO_SHARE, lookups
from gigabatch.pipeline.display import about_bytes, render_table
from gigabatch.pipeline.lab.advise.lemmas import all_reduce_bytes, parameter_servers, server_bytes, speed_up
from gigabatch.pipeline.lab.advise.links import Links, measure_links
from gigabatch.pipeline.lab.advise.one_rank import COMPUTE, LOAD, UPDATE, OneOf, StepParts, Work, take_steps
from gigabatch.pipeline.lab.bounds import AdviseBounds
from gigabatch.pipeline.lab.experiment import Experiment, PlacedBatch
from gigabatch.pipeline.lab.tune.report import step_rows
from gigabatch.pipeline.lab.tune.trials import LEAST_STEPS, Sweep, batch_sizes, bytes_per_row, sweep_batches
from gigabatch.pipeline.machine import available_cores, free_memory
from gigabatch.pipeline.stages.run import environment
from gigabatch.pipeline.store.files import json_text, write_json
from gigabatch.pipeline.training.train import TrainingError, list_lengths, optimizer_of

DEVICES = (2, 4, 8)
SCHEMES = ("replicated", "sharded")
SWEEP_SHARE, RUN_SHARE = 0.3, 0.03  # of --seconds: of the sweep, and of each of some twenty runs of steps
BACKWARD_SHARE = 2 / 3  # of forward and backward pass: two products of three
HERE, EACH = "this machine's cores", "a device each"


@dataclass(frozen=True)
class Profiled:
    """Steps of a batch on one device, in parts, and the distinct ids of a batch, by table."""

    batch_size: int
    step: StepParts
    distinct: tuple[float, ...]


@dataclass(frozen=True)
class Prediction:
    """A step of N ranks that share the configured batch.

    where: whether ranks share this machine's cores or have a device each. computed: seconds of what a rank computes;
    wire: of its messages. sent, sent_for_tables: bytes of a rank. baseline: seconds of the step on one device.
    """

    num_devices: int
    where: str
    tables: str
    computed: float
    wire: float
    sent: float
    sent_for_tables: float
    baseline: float

    @property
    def seconds(self) -> float:
        return self.computed + self.wire

    @property
    def speed_up(self) -> float:
        return self.baseline / self.seconds

    @property
    def efficiency(self) -> float:
        return self.speed_up / self.num_devices

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {name: getattr(self, name) for name in ("seconds", "speed_up", "efficiency")}


@dataclass(frozen=True)
class Advice:
    """All that was found.

    overhead: R of lemma 2, seconds of the update over those of the rest. des: bytes of a rank for tables in the
    layouts that DES chooses, by number of devices, where the model has such. servers: of lemma 3, by number of workers.
    hidden: whether the all-reduce could be hidden behind the backward pass. table_widths: in the order of
    `Profiled.distinct`. table_bytes: of weights and optimizer state.
    """

    name: str
    created_utc: str
    batch_size: int
    rows: int
    sweep: Sweep
    profile: tuple[Profiled, ...]
    overhead: float
    links: Links
    predictions: tuple[Prediction, ...]
    obstacle: str
    late: bool
    dense_parameters: int
    table_widths: tuple[int, ...]
    table_bytes: float
    memory_bytes: int
    des: dict[int, tuple[float, dict[str, str]]]
    servers: dict[int, int]
    hidden: dict[int, bool]
    bounds: AdviseBounds
    environment: dict[str, Any]

    def of(self, where: str) -> list[Prediction]:
        """The faster scheme of each number of devices, of those whose tables fit."""
        found = [item for item in self.predictions if item.where == where and self.fits(item.tables)]
        numbers = sorted({item.num_devices for item in found})
        return [min((p for p in found if p.num_devices == n), key=lambda p: p.seconds) for n in numbers]

    def fits(self, tables: str) -> bool:
        """Whether whole tables and their state take at most half of a device's memory, as `train.tables=auto` asks."""
        return tables == "sharded" or self.table_bytes <= AUTO_SHARE * self.memory_bytes

    @property
    def paying(self) -> int:
        """Devices up to which each number has the efficiency that was asked for."""
        most = 1
        for found in self.of(EACH):
            if found.efficiency < self.bounds.efficiency:
                break
            most = found.num_devices
        return most

    def verdicts(self) -> dict[str, str]:
        """What to do, a sentence or two a question."""
        return {
            "batch": _batch_text(self),
            "devices": _devices_text(self),
            "tables": _tables_text(self),
            "all-reduce": _hidden_text(self),
            "servers": _servers_text(self),
            "not known": _unknown_text(self),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        sweep = {
            "times": [asdict(found) | {"row_seconds": found.row_seconds} for found in self.sweep.times],
            "fastest": self.sweep.fastest.batch_size,
            "largest_that_fits": self.sweep.largest_that_fits,
            "bytes_per_row": bytes_per_row(self.sweep.times) if len(self.sweep.times) > 1 else None,
            "ended": self.sweep.ended,
        }
        changes = {
            "sweep": sweep,
            "predictions": [found.to_dict() for found in self.predictions],
            "lemma_2_efficiency": {n: speed_up(n, self.overhead) / n for n in DEVICES},
            "des": {n: {"bytes": count, "layouts": layouts} for n, (count, layouts) in self.des.items()},
            "paying_devices": self.paying,
            "verdicts": self.verdicts(),
        }
        return asdict(self) | changes


def run_advise(path: str | Path, overrides: Sequence[str], bounds: AdviseBounds, as_json: bool) -> int:
    """The command: prints tables and sentences, or one JSON object; writes runs/<name>/advise.json."""
    experiment = Experiment.of_run(path, overrides, bounds.max_rows)
    advice = advise(experiment, bounds)
    write_json(experiment.home / "advise.json", advice.to_dict())
    if as_json:
        print(json_text(advice.to_dict()))
    else:
        show(advice)
        print(experiment.home / "advise.json")
    return 0


def advise(experiment: Experiment, bounds: AdviseBounds) -> Advice:
    """Measure steps on one device and predict those of 2, 4 and 8 that share the configured batch.

    Parameters
    ----------
    experiment
        The run's tables, model and loss; nothing of the run is changed.
    bounds
        Time, rows, and what is known of the network.

    Returns
    -------
    Advice
        Step times by batch size, predictions, and what follows.

    Raises
    ------
    TrainingError
        For a train split of fewer than 8 of the run's batches.
    LinkError
        Where collectives cannot be measured and `bounds.bandwidth` is not given.
    """
    started, size, rows = time.perf_counter(), experiment.settings.batch_size, len(experiment.train)
    if rows // LEAST_STEPS < size:
        raise TrainingError(
            f"advise: {rows:,} train rows are fewer than {LEAST_STEPS} batches of {size:,}. Give a smaller "
            "train.batch_size, or more rows (--rows)."
        )
    if bounds.bandwidth is None:
        links = measure_links(experiment.device)
    else:
        links = Links.given(bounds.bandwidth, bounds.latency)
    sweep = sweep_batches(experiment, batch_sizes(size, rows // LEAST_STEPS), SWEEP_SHARE * bounds.seconds)
    work, each = Work.of(experiment), RUN_SHARE * bounds.seconds
    parts = [size // n for n in DEVICES if size // n >= 2 * LEAST_STEPS]
    uses, dense, distinct = _shapes(work, sorted({size, *parts}, reverse=True))
    profile = tuple(
        Profiled(part, take_steps(work, Ranks(), each, batch_size=part), found) for part, found in distinct.items()
    )
    own = profile[0].step
    baseline = next((found.seconds for found in sweep.times if found.batch_size == size), own.total)
    predictions, obstacle, late = predict(work, links, baseline, each, started + bounds.seconds)
    part_of = {size // found.batch_size: found for found in profile[1:]}
    compute = {number: found.step.seconds[COMPUTE] for number, found in part_of.items()}
    return Advice(
        name=experiment.config.name,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        batch_size=size,
        rows=rows,
        sweep=sweep,
        profile=profile,
        overhead=own.seconds[UPDATE] / (own.seconds[LOAD] + own.seconds[COMPUTE]),
        links=links,
        predictions=predictions,
        obstacle=obstacle,
        late=late,
        dense_parameters=dense,
        table_widths=tuple(use.width for use in uses),
        table_bytes=sum(use.num_bytes for use in uses),
        memory_bytes=free_memory(experiment.device),
        des=_des(work),
        servers={
            n: parameter_servers(
                server_bytes(dense, found.distinct, [use.width for use in uses]), n, links.bandwidth, compute[n]
            )
            for n, found in part_of.items()
            if len(found.distinct) == len(uses)
        },
        hidden={
            n: all_reduce_bytes(n, dense) / links.bandwidth <= BACKWARD_SHARE * seconds
            for n, seconds in compute.items()
        },
        bounds=bounds,
        environment=environment(experiment.device),
    )


def predict(
    work: Work, links: Links, baseline: float, each: float, until: float = math.inf, devices: Sequence[int] = DEVICES
) -> tuple[tuple[Prediction, ...], str, bool]:
    """Steps of several ranks by number, place and scheme of tables.

    What a rank computes is measured (`take_steps` with `OneOf`): with all of this process's threads where devices are
    its own; where ranks share the cores, with as many as torchrun leaves each, times what the cores lack for all and
    what ranks slow each other (`Links.sharing`). Messages are `Links.seconds`, after the computation, as nothing of
    them is hidden.

    Parameters
    ----------
    work : Work
        The training.
    links : Links
        What messages take.
    baseline : float
        Seconds of its step on one device.
    each : float
        Seconds of steps for each prediction, about.
    until : float, default math.inf
        Of time.perf_counter, from when on no further number of devices is tried.
    devices : sequence of int, default (2, 4, 8)
        Numbers of ranks.

    Returns
    -------
    tuple of Prediction, str, bool
        Also why several ranks, or sharded tables, cannot be, if so; and whether time was up.
    """
    cores, threads, size = available_cores(), torch.get_num_threads(), work.settings.batch_size
    found: list[Prediction] = []
    obstacles: dict[str, str] = {}
    for number in devices:
        if size < 2 * number:
            break
        if found and time.perf_counter() > until:
            return tuple(found), _obstacles(obstacles), True
        places = {EACH: (threads, 1.0, 1.0)}
        if work.device == "cpu":
            own = max(cores // number, 1)
            crowd = max(number * own / cores, 1.0)
            places[HERE] = own, crowd * links.sharing, crowd
        for scheme in SCHEMES:
            if scheme in obstacles:
                continue
            try:
                rank = _busiest(work, number) if scheme == "sharded" else 0
                taken = {count: take_steps(work, OneOf(number, rank), each, tables=scheme, threads=count)
                         for count in {count for count, _, _ in places.values()}}  # fmt: skip
            except (ModelError, TrainingError) as error:
                obstacles[scheme] = " ".join(str(error).split())
                continue
            for where, (count, slower, crowd) in places.items():
                step = taken[count]
                wire = crowd * links.seconds(step.bytes, step.calls, number)
                told = step.sent, step.sent_for_tables, baseline
                found.append(Prediction(number, where, scheme, slower * step.total, wire, *told))
    return tuple(found), _obstacles(obstacles), False


def _busiest(work: Work, num_ranks: int) -> int:
    """The rank that sends the most where tables are sharded; the others wait for it."""
    model, rows = work.new_model(), -(-work.settings.batch_size // num_ranks)
    optimizer, _ = optimizer_of(model, work.settings)
    uses = table_uses(model, optimizer, rows, work.counts, list_lengths(work.table.lists))
    sent = plan_tables(uses, num_ranks, rows).rank_traffic
    return sent.index(max(sent))


def _obstacles(found: dict[str, str]) -> str:
    return " ".join(f"{scheme}: {why}" for scheme, why in found.items())


def _batches(work: Work, batch_size: int, number: int) -> Iterator[Batch]:
    """Batches of the training, each in memory that the next one may take."""
    dataset = BatchDataset(work.table, batch_size, shuffle=True, seed=work.seed, drop_last=True)
    return (PlacedBatch.of(dataset, index).rows(work.negatives) for index in range(number))


def _shapes(work: Work, sizes: Sequence[int]) -> tuple[list[TableUse], int, dict[int, tuple[float, ...]]]:
    """The tables, the number of other weights, and by batch size the distinct rows of each table that a batch looks
    up, means over some batches; none where a model does not tell."""
    model = work.new_model()
    optimizer, _ = optimizer_of(model, work.settings)
    lengths = list_lengths(work.table.lists)
    uses = table_uses(model, optimizer, work.settings.batch_size, work.counts, lengths)
    dense = sum(p.numel() for p in model.parameters()) - sum(use.num_rows * use.width for use in uses)
    return uses, dense, {size: _distinct(work, model, size) for size in sizes}


def _distinct(work: Work, model: Model, batch_size: int) -> tuple[float, ...]:
    counts = []
    for batch in _batches(work, batch_size, min(LEAST_STEPS, len(work.table) // batch_size)):
        try:
            asked = looked_up(model, batch)
        except ModelError:
            return ()
        counts.append([len(ids.unique()) for ids in asked])
    return tuple(map(statistics.fmean, zip(*counts, strict=True)))


def looked_up(model: Model, batch: Batch) -> list[torch.Tensor]:
    """The ids that a pass over a batch looks up in each table: of its column, and of all lists that have its
    vocabulary.

    Raises
    ------
    ModelError
        Where they do not follow from the batch's ids and lists alone.
    """
    if not batch.lists:
        asked = lookups(model, batch.ids)
        return [column for module in _tables(model) for column in asked[module].t()]
    if type(model).table_ids is not Model.table_ids or model.compares_rows:  # such as sasrec's whole catalogue
        raise ModelError("the model looks up more than the ids of its columns and lists.")
    found = []
    for module in _tables(model):
        of_lists = list(zip(module.list_tables, module.list_places, strict=True))
        for table, column in enumerate(module.columns):
            parts = [batch.lists[place].ids for at, place in of_lists if at == table]
            parts += [] if column is None else [batch.ids[:, column]]
            require(bool(parts), "a table is of no single column or list.")
            found.append(torch.cat(parts))
    return found


def _tables(model: nn.Module) -> list[EmbeddingTables]:
    return [module for module in model.modules() if isinstance(module, EmbeddingTables)]


def _des(work: Work) -> dict[int, tuple[float, dict[str, str]]]:
    """By number of ranks the bytes that each sends for tables in the layouts that need the fewest, and these."""
    found: dict[int, tuple[float, dict[str, str]]] = {}
    size = work.settings.batch_size
    for number in DEVICES:
        if size // number < 2:
            break
        model = work.new_model()
        optimizer_of(model, work.settings)  # which decides how tables move; `substitute_tables` refuses some ways
        if any(module.gradients != "rows" or module.counts_gradients for module in _tables(model)):
            return {}
        try:
            layout = substitute(model, OneOf(number), next(_batches(work, size // number, 1)).ids)
        except ModelError:
            return {}
        found[number] = layout.num_bytes, layout.chosen
    return found


def show(advice: Advice) -> None:
    """Print what was found."""
    rows = step_rows(advice.sweep, advice.batch_size, "pays")
    render_table(rows, f"advise {advice.name}: steps on one device")
    render_table(_part_rows(advice), "One device, by part of a step (medians, ms)")
    if advice.predictions:
        render_table(_device_rows(advice), f"Predicted: devices that share a batch of {advice.batch_size:,} rows")
    for name, text in advice.verdicts().items():
        print(f"{name:11} {text}")


def _part_rows(advice: Advice) -> list[dict[str, Any]]:
    return [
        {
            "batch": found.batch_size,
            **{name: 1e3 * seconds for name, seconds in found.step.seconds.items()},
            "step": 1e3 * found.step.total,
            "distinct ids": round(sum(found.distinct)),
        }
        for found in advice.profile
    ]


def _device_rows(advice: Advice) -> list[dict[str, Any]]:
    return [
        {
            "devices": found.num_devices,
            "on": found.where,
            "tables": found.tables,
            "ms a step": 1e3 * found.seconds,
            "of it messages": 1e3 * found.wire,
            "kB a device sends": found.sent / 1e3,
            "times as fast": found.speed_up,
            "efficiency %": 100 * found.efficiency,
            "lemma 2 %": 100 * speed_up(found.num_devices, advice.overhead) / found.num_devices,
        }
        for found in sorted(advice.predictions, key=lambda p: (p.where != EACH, p.num_devices, p.tables))
    ]


def _batch_text(advice: Advice) -> str:
    sweep = advice.sweep
    last = sweep.times[-1].batch_size
    best = sweep.fastest.batch_size
    text = f"{best:,} rows pay: of the batches up to {last:,} none takes 5 % less time a row."
    if len(sweep.times) > 1 and (slope := bytes_per_row(sweep.times)) > 0:
        text += f" A row takes {about_bytes(slope)}"
        if sweep.largest_that_fits is not None:
            text += (
                f", so about {float(f'{sweep.largest_that_fits:.2g}'):,.0f} fit in {about_bytes(sweep.budget_bytes)}"
            )
        text += "."
    return f"{text} Whether so large a batch learns as well, `gigabatch tune` tries."


def _devices_text(advice: Advice) -> str:
    if not advice.predictions:
        return f"One: several ranks cannot train this. {advice.obstacle}"
    asked = f"an efficiency of {advice.bounds.efficiency:.0%}"
    each = {found.num_devices: found for found in advice.of(EACH)}
    if not each:
        texts = ["None was predicted."]
    elif advice.paying == 1:
        texts = [f"One: {min(each)} devices would have {each[min(each)].efficiency:.0%}, below {asked}."]
    else:
        best = each[advice.paying]
        texts = [f"{advice.paying} pay, at {asked}: {best.speed_up:.2g} times as fast."]
    here = advice.of(HERE)
    if here:
        best = max(here, key=lambda found: found.speed_up)
        texts.append(
            f"{best.num_devices} ranks on this machine's cores would be {best.speed_up:.2g} times as fast as one that "
            "has them all."
        )
    if advice.late:
        texts.append("The time was up before more were tried; give more --seconds.")
    return " ".join(texts)


def _tables_text(advice: Advice) -> str:
    held = f"weights and state take {about_bytes(advice.table_bytes)}"
    if not advice.fits("replicated"):
        text = f"sharded: {held}, more than half of the {about_bytes(advice.memory_bytes)} that are free."
    else:
        chosen = {found.num_devices: found.tables for found in advice.of(EACH)}
        told = ", ".join(f"{tables} on {number}" for number, tables in chosen.items())
        text = f"{held}, so whole ones fit. Faster: {told or 'not predicted'}."
    if advice.obstacle and advice.predictions:
        text += f" Not predicted: {advice.obstacle}"
    sent = {(found.num_devices, found.tables): found.sent_for_tables for found in advice.predictions}
    for number, (count, layouts) in advice.des.items():
        others = [sent[number, scheme] for scheme in SCHEMES if (number, scheme) in sent]
        if others and count < min(others) and set(layouts.values()) != {"rows"}:
            text += (
                f" DES on {number} sends {count / 1e3:,.0f} kB for tables, not {min(others) / 1e3:,.0f} "
                f"({', '.join(f'{name}: {layout}' for name, layout in layouts.items())}): train.tables=des."
            )
    return text


def _hidden_text(advice: Advice) -> str:
    can = [str(number) for number, hidden in advice.hidden.items() if hidden]
    sent = f"{4e-3 * advice.dense_parameters:,.0f} kB of dense gradients at {advice.links.bandwidth / 1e9:.3g} GB/s"
    could = f"could be hidden behind the backward pass on {', '.join(can)} devices" if can else "are too many to hide"
    return f"{sent} {could}. Here nothing is hidden: gradients are sent after it."


def _servers_text(advice: Advice) -> str:
    if not advice.servers:
        return "Not computed: the model does not tell which rows a batch looks up."
    counts = ", ".join(f"{count} for {number}" for number, count in advice.servers.items())
    return f"A parameter server's shards by lemma 3, bytes x workers / (bandwidth x seconds): {counts} workers."


def _unknown_text(advice: Advice) -> str:
    if advice.links.measured and advice.environment["device"] == "cpu":
        return (
            "what a network does: messages were measured between two processes of this machine. For other machines or "
            "GPUs give --bandwidth and --latency, and profile on the device that is meant."
        )
    return "how devices disturb each other, and ranks that wait for a slower one: all are taken to be alike."
