"""What `gigabatch advise` predicts of a step on 2 and 4 ranks of this machine, against such ranks over gloo.

The prediction knows one process: the step of one rank, taken alone with as many threads as its share of the cores, and
collectives measured between two processes. Then that many processes train together. Each is measured in `rounds` turns,
predicted and measured by turns, so that both meet the same machine, and medians are compared.
"""

from __future__ import annotations

import os
import sys
import tempfile
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from benchmarks.common import arguments, finish, needed

with needed():
    from gigabatch.features.schema import IdColumn, Target, TensorSchema
    from gigabatch.loaders.tables.packed import PackedTable
    from gigabatch.models.inputs import ModelInputs
    from gigabatch.models.losses import TargetLoss
    from gigabatch.models.parallel.ranks import Ranks
    from gigabatch.models.shelf import model_class
    from gigabatch.pipeline.config.config import TrainSettings
    from gigabatch.pipeline.lab.advise.advise import HERE, SCHEMES, predict
    from gigabatch.pipeline.lab.advise.links import measure_links
    from gigabatch.pipeline.lab.advise.one_rank import Work, take_steps
    from gigabatch.pipeline.machine import available_cores
    from gigabatch.pipeline.training.defaults import settle

DEVICES = (2, 4)
SIZES = (200_000, 50_000, 10_000, 10_000, 1_000, 1_000, 100, 100)
NUM_ROWS, NUM_FLOATS = 100_000, 8
CASES = {
    "tabular": ("tabular", {"layers": (256, 128), "embedding_widths": (16,) * len(SIZES)}, 2048),
    "deepfm": ("deepfm", {"embedding_dim": 16, "layers": (256, 128)}, 8192),
}


def work_of(case: str) -> Work:
    """A training of 100,000 rows whose ids are drawn with a share that falls as their cube."""
    kind, given, batch_size = CASES[case]
    random = torch.Generator().manual_seed(1)
    ids = [(torch.rand(NUM_ROWS, generator=random) ** 3 * size).int() for size in SIZES]
    floats = list(torch.randn(NUM_FLOATS, NUM_ROWS, generator=random))
    schema = TensorSchema(
        tuple(IdColumn(f"id{place}", size) for place, size in enumerate(SIZES)),
        tuple(f"float{place}" for place in range(NUM_FLOATS)),
        (Target("label", "binary"),),
    )
    table = PackedTable.from_columns(schema, ids, floats, [(floats[0] > 0).float()])
    settings = settle(TrainSettings(epochs=1, batch_size=batch_size, lr_max=0.01), NUM_ROWS, SIZES)

    def new_model() -> Any:
        torch.manual_seed(1)
        return model_class(kind)(ModelInputs(SIZES, NUM_FLOATS), model_class(kind).Settings(**given))

    counts = {place: column.bincount(minlength=SIZES[place]) for place, column in enumerate(ids)}
    return Work(table, settings, TargetLoss([("binary", 1)]), new_model, counts, "cpu", seed=1)


def one_of_several(rank: int, num_ranks: int, folder: str, seconds: float, told: Any) -> None:
    """One process; the first tells seconds of a step by case and scheme of tables."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    threads = max(available_cores() // num_ranks, 1)
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=num_ranks)
    found = {}
    for case in CASES:
        work = work_of(case)
        for scheme in SCHEMES:
            step = take_steps(work, Ranks(), seconds, tables=scheme, threads=threads)
            found[case, scheme] = step.total, step.sent
    if rank == 0:
        told.put(found)
    dist.destroy_process_group()


def measure(num_ranks: int, seconds: float) -> dict[tuple[str, str], tuple[float, float]]:
    """Seconds of a step, and bytes that a rank sends, by case and scheme, of so many processes."""
    told = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        work = (num_ranks, folder, seconds, told)
        processes = multiprocessing.spawn(one_of_several, work, nprocs=num_ranks, join=False)
        while told.empty():  # a rank that has died raises here; `get` alone would wait for ever
            processes.join(timeout=1)
        found = told.get()
        while not processes.join():
            pass
    return found


def main() -> None:
    flags = arguments(__doc__ or "", rounds=3, step_seconds=0.7)
    if flags.device == "cuda":
        sys.exit("advise: ranks over gloo on the CPU; GPUs have not been measured.")
    torch.set_num_threads(1)  # of a rank where two or more share two cores
    predicted: dict[tuple[str, str, int], list[float]] = {}
    wire: dict[tuple[str, str, int], list[float]] = {}
    measured: dict[tuple[str, str, int], list[float]] = {}
    sent: dict[tuple[str, str, int], tuple[float, float]] = {}
    ones: dict[str, list[float]] = {case: [] for case in CASES}
    links = []
    for _ in range(1 if flags.quick else flags.rounds):
        links.append(measure_links("cpu"))
        for case in CASES:
            work = work_of(case)
            ones[case].append(take_steps(work, Ranks(), flags.step_seconds, threads=available_cores()).total)
            found, _, _ = predict(work, links[-1], ones[case][-1], flags.step_seconds, devices=DEVICES)
            for one in found:
                if one.where == HERE:
                    key = case, one.tables, one.num_devices
                    predicted.setdefault(key, []).append(one.seconds)
                    wire.setdefault(key, []).append(one.wire)
                    sent[key] = one.sent, 0.0
        for number in DEVICES:
            for (case, scheme), (seconds, count) in measure(number, flags.step_seconds).items():
                measured.setdefault((case, scheme, number), []).append(seconds)
                sent[case, scheme, number] = sent[case, scheme, number][0], count
    seconds, ratios = {}, {}
    for case, found in ones.items():
        seconds[f"{case}, one process"] = median(found)
        ratios[f"{case}, one process, largest over least"] = max(found) / min(found)
    errors, bytes_off = [], []
    for key, found in measured.items():
        name = "{}, {} tables, {} ranks".format(*key)
        seconds |= {f"{name}, predicted": median(predicted[key]), f"{name}, messages predicted": median(wire[key])}
        seconds |= {f"{name}, measured": median(found)}
        ratios[f"{name}, predicted over measured"] = ratio = median(predicted[key]) / median(found)
        errors.append(abs(ratio - 1))
        bytes_off.append(abs(sent[key][0] / sent[key][1] - 1))
    ratios |= {"slower side by side": median(one.sharing for one in links), "advise_off": max(errors)}
    claims = {
        "advise_off: largest relative error of a predicted step": (max(errors), 0.3, max(errors) <= 0.3),
        "bytes of a rank, predicted against counted": (max(bytes_off), 0.05, max(bytes_off) <= 0.05),
    }
    workload = (
        f"{NUM_ROWS:,} rows, {len(SIZES)} tables of up to {max(SIZES):,} rows of 16; medians of {len(links)} turns"
    )
    details = {
        kind: [
            {"latency_s": link.latency, "bytes_per_s": link.bandwidth} for link in (one.kinds[kind] for one in links)
        ]
        for kind in links[0].kinds
    }
    finish("advise", workload, seconds, ratios, {} if flags.quick else claims, save=flags.save, details=details)


if __name__ == "__main__":
    main()
