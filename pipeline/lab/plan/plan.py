"""What a run will take before it starts: memory of host and GPU, time and disk, by stage, and whether that fits.

A sample of the inputs is run through the stages as a scale model, twice: with so many parts and blocks as the whole
will have, each smaller by the sample's share. What such a run takes is a fixed part (imports, one-off work, the cost
of every part) and one that grows with the rows, so two sizes give both, and no machine has constants of its own here.
What is known exactly is not estimated: bytes of packed tables, and the steps of an epoch. Vocabularies follow Heaps'
law, and a few steps of training are taken with tables of the size that it predicts. docs/planning.md has the details.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from gigabatch.features.engines.frame import resolve_engine
from gigabatch.features.reading.row_bytes import RowBytes, line_bytes, parquet_row_bytes
from gigabatch.features.reading.sources import PARQUET_ENDINGS
from gigabatch.features.recipes import recipe_class
from gigabatch.loaders.batches.residency import DEVICE_SHARE, Residency, choose_residency
from gigabatch.loaders.errors import LoaderError
from gigabatch.pipeline.config.config import COLD, RunConfig, load_config
from gigabatch.pipeline.display import about_bytes, tell
from gigabatch.pipeline.lab.plan.forecast import Forecast, Probes
from gigabatch.pipeline.lab.plan.kept import KeptPlans, Plan, StagePlan
from gigabatch.pipeline.lab.plan.sample import Size, input_files, measure, paths_of
from gigabatch.pipeline.machine import Machine, resolve_device, this_machine
from gigabatch.pipeline.stages.handover import HOST_SHARE, hands_over
from gigabatch.pipeline.stages.part_rows import rows_of_part, rows_of_part_here
from gigabatch.pipeline.store.locks import own_folder, remove_leftovers, temporary_path
from gigabatch.pipeline.training.table_memory import large_tables

log = logging.getLogger(__name__)
# Of the larger sample. Below some 100,000 rows what allocators keep has not settled, and memory seems to grow faster
# with the rows than it does later; the smaller sample has a third of the larger one's rows.
SHARE, LEAST_ROWS, MOST_ROWS = 0.05, 100_000, 1_000_000
MOST_SHARE = 0.4
SMALLER = 3
FEW_ROWS = 50_000  # so many are not sampled: the whole is run
MARGIN = 1.3  # predictions are to be within 30 %
LEAST_PART_ROWS = 50_000
ENDLESS = 1 << 60  # bytes
FAR = 50  # times as large as the sample: said in the plan
PREPARING = (
    "a smaller rows_per_part, unless the plan says that it would not help",
    "cluster=tcp://HOST:PORT, on machines with more memory together",
    "fewer columns, or a machine with more memory",
)
TRAINING = (
    "a larger preprocess.min_count, or a smaller model.embedding_width_max, for smaller tables",
    "a smaller train.batch_size, fewer columns, or more memory",
)
DISK = ("gigabatch gc --keep 1", "artifacts=FOLDER on a larger disk")
STAGES = ("features", "encode", "train", "evaluate")


def make_plan(config: RunConfig) -> Plan:
    """Plan a run of this configuration as if nothing of it had been made before.

    Parameters
    ----------
    config
        The run; its artifacts' folder holds the samples meanwhile, and is left as it was.

    Returns
    -------
    Plan
        Memory, time and disk of every stage, `rows_per_part` for this machine, and why the run does not fit, if so.

    Raises
    ------
    PlanError
        Where no sample can be taken of the inputs, or the stages fail on it.
    """
    started = time.perf_counter()
    size = measure(config.recipe, config.features)
    share = min(max(SHARE, LEAST_ROWS / size.rows), MOST_ROWS / size.rows, MOST_SHARE)
    root = Path(config.artifacts)  # where the run itself will write, so on the same disk
    root.mkdir(parents=True, exist_ok=True)
    config, because = with_part_rows(config)
    remove_leftovers(root)
    folder = temporary_path(root / "plan")
    with own_folder(folder):
        probes = Probes(config, folder)
        shares = [1.0] if size.rows <= FEW_ROWS else [share / SMALLER, share]
        forecast = Forecast(config, [probes.run(item) for item in shares])
        machine = this_machine(root, forecast.found[-1]["device"])
        trains = forecast.least_training_bytes() <= (machine.gpu_bytes or machine.host_bytes)
        if trains and not forecast.trained and forecast.takes_steps:
            forecast.steps = probes.run_steps(list(forecast.id_sizes.values()), forecast.batch_size)
        rows_per_part, because = rows_of_part(config.rows_per_part), f"{because}; its parts fit"
        if not forecast.exact and MARGIN * preparing_bytes(forecast) > machine.host_bytes:
            rows = max(round(forecast.part_rows * forecast.found[-1]["share"] / SMALLER), 1)
            forecast.smaller = rows, probes.run(share, rows_per_part=rows)
            rows_per_part, because = choose_parts(forecast, machine)
    seconds = time.perf_counter() - started
    made = partial(_assembled, config, size, forecast, parts=(rows_per_part, because), planning=seconds)
    return replace(plan := made(machine), holds_within=_holds_within(plan, forecast, made))


def _holds_within(plan: Plan, forecast: Forecast, made: Callable[[Machine], Plan]) -> tuple[int, int] | None:
    """Half and twice the free memory, where a plan with either decides as this one does: each choice is by a bound of
    its own, so that it is one choice all the way between. None where it is not, of a plan that does not fit, and beside
    a GPU, whose free memory only torch tells."""
    machine = plan.machine
    least, most = machine.host_bytes // 2, machine.host_bytes * 2
    if machine.gpu_bytes or not plan.fits or forecast.smaller is not None:
        return None
    preparing = 0 if forecast.exact else MARGIN * preparing_bytes(forecast)
    if max(preparing, forecast.least_training_bytes()) > least:
        return None
    others = (made(replace(machine, host_bytes=host_bytes)) for host_bytes in (least, most))
    return (least, most) if all(_decided(other) == _decided(plan) for other in others) else None


def _decided(plan: Plan) -> tuple[Any, ...]:
    """All of a plan but words that tell how much memory is free."""
    chosen = plan.reasons, plan.residency, plan.handover, plan.rows_per_part, plan.unknown
    return *chosen, plan.stages, len(plan.large_tables)


def with_part_rows(config: RunConfig) -> tuple[RunConfig, str]:
    """The configuration with a number for `rows_per_part: auto`, and where it is from.

    The run itself asks the rows that it has made (`pipeline/stages/stages.py`), the plan those of the input.
    """
    if config.rows_per_part != "auto":
        return config, "as configured"

    def row() -> RowBytes | None:
        (path, *_), *_ = paths_of(config.recipe, config.features, input_files(config.recipe).rows).values()
        known = recipe_class(config.recipe)(config.features).row_bytes()
        if known is not None or path.endswith(PARQUET_ENDINGS):
            return known or parquet_row_bytes(path)
        return RowBytes(line_bytes(path), line_bytes(path))

    engine = resolve_engine(config.engine)
    rows = rows_of_part_here(config, engine, resolve_device(config.device), row)
    because = "auto, on a CPU" if engine == "pandas" else "auto, by the GPU's memory and the length of the inputs' rows"
    return config.model_copy(update={"rows_per_part": rows}), because


def preparing_bytes(forecast: Forecast, rows_per_part: int | None = None) -> float:
    """Peak of the stages whose memory follows from the size of parts."""
    return max(forecast.host_bytes(stage, rows_per_part) for stage in ("features", "encode"))


def choose_parts(forecast: Forecast, machine: Machine) -> tuple[int, str]:
    """rows_per_part for this machine and why: the largest that fits with a margin, else the largest that fits."""
    configured, free = rows_of_part(forecast.config.rows_per_part), about_bytes(machine.host_bytes)
    before = about_bytes(preparing_bytes(forecast))
    sizes = [forecast.part_rows >> halvings for halvings in range(1, 20)]
    sizes = [rows for rows in sizes if rows >= LEAST_PART_ROWS]
    for margin in (MARGIN, 1.0):
        for rows in sizes:
            needed = preparing_bytes(forecast, rows)
            if needed * margin <= machine.host_bytes:
                return (
                    rows,
                    f"not {configured:,} as configured, so that the peak is {about_bytes(needed)}, not {before}",
                )
    if preparing_bytes(forecast) <= machine.host_bytes:
        return configured, f"as configured; {before} of {free} is tight, and smaller parts would not help"
    return configured, f"as configured; no smaller size brings the peak of {before} under {free}"


def _assembled(
    config: RunConfig, size: Size, forecast: Forecast, machine: Machine, *, parts: tuple[int, str], planning: float
) -> Plan:
    chosen = None if parts[0] == config.rows_per_part else parts[0]
    on_gpu, misfit = gpu_residency(forecast, machine) if machine.gpu_bytes else (None, None)
    handover, handover_because = planned_handover(config, resolve_engine(config.engine), forecast, machine)
    stages = tuple(
        StagePlan(
            stage,
            forecast.seconds(stage),
            forecast.seconds(stage, "cpu_seconds"),
            round(forecast.host_bytes(stage, chosen)) + forecast.handed_bytes(stage, handover, "host"),
            0 if handover == "host" and stage == "train" else forecast.mapped_bytes(stage),
            round(forecast.gpu_bytes(stage, on_gpu.kind if on_gpu else "device"))
            + forecast.handed_bytes(stage, handover, "device"),
            round(forecast.disk_bytes(stage)),
        )
        for stage in STAGES
    )
    residency = on_gpu or host_residency(forecast, stages, machine)
    reasons, advice = verdict(forecast, stages, machine, residency.kind)
    if handover != "off" and any(reason.startswith(("encode", "train")) for reason in reasons):
        advice = ("handover=off", *advice)
    if misfit is not None:
        reasons, advice = (*reasons, f"train: {misfit}"), (*advice, "train.residency=auto")
    return Plan(
        name=config.name,
        rows=size.rows,
        sample=_sample_text(size, forecast),
        exact=forecast.trained,
        stages=stages,
        seconds=forecast.start_seconds + sum(stage.seconds for stage in stages),
        host_bytes=max(stage.host_bytes for stage in stages),
        gpu_bytes=max(stage.gpu_bytes for stage in stages),
        disk_bytes=max(stage.disk_bytes for stage in stages),
        rows_by_split=forecast.rows,
        id_sizes=forecast.id_sizes,
        rows_per_part=parts[0],
        rows_per_part_because=parts[1],
        residency=residency.kind,
        residency_because=residency.reason,
        handover=handover,
        handover_because=handover_because,
        reasons=reasons,
        advice=advice,
        large_tables=tuple(
            large_tables(forecast.spec, list(forecast.id_sizes), machine.gpu_bytes or machine.host_bytes)
        ),
        unknown=_unknown(config, forecast, residency.kind),
        machine=machine,
        planning_seconds=planning,
        measured_utc=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def gpu_residency(forecast: Forecast, machine: Machine) -> tuple[Residency, LoaderError | None]:
    """Where the train stage will have its packed tables beside a GPU, by its own rule; and what it would raise of a
    `train.residency` that does not fit."""
    rows, row_bytes = forecast.tables
    setting = forecast.config.train.residency
    try:
        return choose_residency(rows, row_bytes, "cuda", machine.gpu_bytes, machine.host_bytes, setting), None
    except LoaderError as error:
        return Residency(setting, "as configured"), error


def planned_handover(config: RunConfig, engine: str, forecast: Forecast, machine: Machine) -> tuple[str, str]:
    """Where packed rows are handed over to training, by the encode stage's own rule, or `off`; and why."""
    if config.handover == "off":
        return "off", "as configured"
    if forecast.spec.inputs.lists:
        return "off", "lists are read from the files that encode writes"
    num_rows, row_bytes, device = (
        sum(forecast.rows.values()),
        forecast.tables[1],
        "cuda" if machine.gpu_bytes else "cpu",
    )
    rule = partial(hands_over, config, engine, device, forecast.rows, row_bytes)
    packed = f"{num_rows:,} packed rows of {row_bytes} bytes, {about_bytes(num_rows * row_bytes)},"
    if rule(machine.gpu_bytes, machine.host_bytes):
        place = "device" if engine.startswith("cudf") else "host"
        return place, f"{packed} stay there from encode until they are written"
    if not rule(ENDLESS, ENDLESS):
        return "off", f"handover={config.handover} leaves it out with this engine, device, cluster and residency"
    free = f"{about_bytes(machine.gpu_bytes)} of GPU memory, " if machine.gpu_bytes else ""
    return "off", (
        f"{packed} do not fit, with what is evaluated, in {DEVICE_SHARE:.0%} of the GPU's and {HOST_SHARE:.0%} of the "
        f"host's memory ({free}{about_bytes(machine.host_bytes)} of the host's are free): they are written, then read"
    )


def host_residency(forecast: Forecast, stages: Sequence[StagePlan], machine: Machine) -> Residency:
    """Where packed tables are without a GPU: mapped, and their pages in memory or dropped and read again."""
    tables, free = about_bytes(forecast.table_bytes(("train", "valid"))), about_bytes(machine.host_bytes)
    if max(stage.host_bytes for stage in stages if stage.mapped_bytes) <= machine.host_bytes:
        return Residency("host", f"no GPU; packed tables of {tables} are mapped and stay in the {free} of memory")
    return Residency("stream", f"no GPU; packed tables of {tables} and the model exceed {free}: pages are read again")


def verdict(
    forecast: Forecast, stages: Sequence[StagePlan], machine: Machine, residency: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why it does not fit (nothing where it does), and what would help."""
    reasons: list[str] = []
    advice: list[str] = []
    for stage in stages:
        needed = stage.host_bytes - (stage.mapped_bytes if residency == "stream" else 0)
        if needed > machine.host_bytes:
            reasons.append(
                f"{stage.stage}: {about_bytes(needed)} of host memory, {about_bytes(machine.host_bytes)} are free."
            )
            advice += PREPARING if stage.stage in ("features", "encode") else TRAINING
        if machine.gpu_bytes and stage.gpu_bytes > machine.gpu_bytes:
            needed_there, free = about_bytes(stage.gpu_bytes), about_bytes(machine.gpu_bytes)
            reasons.append(f"{stage.stage}: {needed_there} of GPU memory, {free} are free.")
            advice += ("device=cpu", *TRAINING) if stage.stage in ("train", "evaluate") else ("engine=pandas",)
    if (disk := max(stage.disk_bytes for stage in stages)) > machine.disk_bytes:
        reasons.append(f"{about_bytes(disk)} of disk, {about_bytes(machine.disk_bytes)} are free.")
        advice += DISK
    if any(reason.startswith("train") for reason in reasons):
        wide = max(forecast.id_sizes, key=lambda name: forecast.id_sizes[name], default=None)
        if wide:
            advice.append(f"without column {wide!r}, whose table has {forecast.id_sizes[wide]:,} ids")
    return tuple(reasons), tuple(dict.fromkeys(advice))


def _sample_text(size: Size, forecast: Forecast) -> str:
    rows = f"{'' if size.exact_rows else 'about '}{size.rows:,} rows ({about_bytes(size.num_bytes)})"
    if forecast.exact:
        found = f"all of the {rows}: so few that the whole run was made and measured"
        return found if forecast.trained else f"{found}, with {forecast.found[-1]['epochs']} epochs of training"
    shares = " and ".join(f"{result['share']:.2%}" for result in forecast.found)
    return f"{shares} of the {rows}, in pieces spread evenly over each file"


def _unknown(config: RunConfig, forecast: Forecast, residency: str) -> tuple[str, ...]:
    found = []
    if not forecast.exact and forecast.found[-1]["share"] * FAR < 1:
        found.append(f"how costs grow beyond the sample, which is more than {FAR} times smaller than the whole.")
    if config.cluster != "none":
        found.append(
            f"what cluster={config.cluster} changes: the sample ran in one process, and workers hold their own parts."
        )
    if not forecast.takes_steps and not forecast.trained:
        found.append(
            f"how the time of fitting {forecast.spec.name} grows with its items: it is guessed from the sample."
        )
    elif not forecast.trained and forecast.steps is None:
        found.append("the time of training, of which no step could be tried: its model does not fit.")
    if not forecast.trained and forecast.lists_grow:
        found.append("the time of training on longer lists: those of the sample, with less of a history, were tried.")
    if residency == "stream":
        found.append("the time of reading pages again: the disk was not measured.")
    return tuple(found)


def run_plan(path: str | Path, overrides: Sequence[str], plans: KeptPlans) -> Plan:
    """The command's plan, made anew, and kept for the next one."""
    if plans.key is not None:
        tell(log, "plan", f"samples of the rows are tried out on this machine, once; {plans.path} keeps the plan")
    plan = make_plan(load_config(path, [*overrides, COLD]))  # a warm start is less than what is planned for
    plans.keep(plan)
    return plan
