"""Do two towers gain by running side by side? Each way to run them, and what either tower takes alone.

    python -m benchmarks.towers [--quick] [--save]

Two equal towers over 5 columns each (tables of up to 200,000 ids, width 16), hidden layers [256, 128], vectors of 64.
A training step is forward and backward pass of both, with row gradients as the row-wise optimizers take them; an
inference step is the forward pass. All ways of `models/parallel/towers.py` that can run here take turns, a few steps at
a time; medians. On a GPU steps are replayed as CUDA graphs.

The overlap is how much of the shorter tower is hidden: (user alone + item alone - both) / the shorter, 1 where both
take as long as the longer alone, 0 or less where nothing is gained over one after the other. There is no bar: the
question is which way is the best here, and whether `auto` takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.common import arguments, finish
from benchmarks.step import timed_turns
from models.embeddings import EmbeddingTables
from models.errors import ModelError
from models.model import EntityColumns, ModelInputs
from models.parallel.towers import MODES, Pair, Tower, choose_mode, run_towers
from models.two_tower import TwoTower, TwoTowerSettings
from pipeline.display import render_table

NUM_IDS = (200_000, 20_000, 5_000, 200, 20)
NUM_FLOATS, LAYERS, VECTOR_DIM = 8, (256, 128), 64
BATCHES = (512, 4_096, 32_768)
AS_GOOD = 1.03  # a difference below this is noise
Step = Callable[[], object]


def build_towers(device: torch.device, mode: str) -> Pair:
    """Two towers of the same shape, with row gradients, where `mode` wants them."""
    columns = len(NUM_IDS)
    inputs = ModelInputs(
        NUM_IDS * 2,
        NUM_FLOATS * 2,
        user=EntityColumns(0, tuple(range(columns)), tuple(range(NUM_FLOATS))),
        item=EntityColumns(columns, tuple(range(columns, 2 * columns)), tuple(range(NUM_FLOATS, 2 * NUM_FLOATS))),
    )
    model = TwoTower(inputs, TwoTowerSettings(layers=LAYERS, vector_dim=VECTOR_DIM, towers=mode)).to(device)
    for module in model.modules():
        if isinstance(module, EmbeddingTables):
            module.gradients = "rows"
    return model.user_tower, model.item_tower


def clear(towers: Pair) -> None:
    """Forget all gradients, as an optimizer does after a step."""
    for tower in towers:
        assert isinstance(tower, nn.Module)
        tower.zero_grad(set_to_none=True)
        for module in tower.modules():
            if isinstance(module, EmbeddingTables):
                module.forget_gradients()


def training_step(run: Callable[[], tuple[Tensor, ...]], towers: Pair) -> Step:
    """Forward and backward pass of what `run` gives: the sum of the outputs' squares is the loss."""

    def step() -> Tensor:
        clear(towers)
        outputs = run()
        torch.autograd.backward(outputs, [output.detach() for output in outputs])
        return outputs[0].detach()

    return step


def inference_step(run: Callable[[], tuple[Tensor, ...]]) -> Step:
    """The forward pass without gradients."""

    def step() -> object:
        with torch.no_grad():
            return run()

    return step


def alone(tower: Tower, ids: Tensor, floats: Tensor) -> tuple[Tensor, ...]:
    """The output of one tower."""
    return (cast(Tensor, tower.network(tower.embed(ids, floats))),)


def replayed(step: Step) -> Step:
    """The step as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay


def obstacles(device: torch.device) -> dict[str, str]:
    """Why a mode cannot run here, by mode; empty text where it can."""
    found = {}
    ids = torch.zeros(128, 2 * len(NUM_IDS), dtype=torch.int32, device=device)
    floats = torch.randn(128, 2 * NUM_FLOATS, device=device)
    for mode in MODES:
        try:
            run_towers(mode, build_towers(device, mode), ids, floats)
            found[mode] = ""
        except ModelError as error:
            found[mode] = str(error).partition(". Set")[0].removeprefix("towers: ")
    return found


def contenders(device: torch.device, batch_size: int, modes: Sequence[str]) -> dict[str, dict[str, Step]]:
    """Steps by name, for training and inference."""
    ids = torch.stack([torch.randint(size, (batch_size,)) for size in NUM_IDS * 2], dim=1).int().to(device)
    floats = torch.randn(batch_size, 2 * NUM_FLOATS, device=device)
    one_device = build_towers(device, "sequential")
    runs: dict[str, tuple[Pair, Callable[[], tuple[Tensor, ...]]]] = {
        f"{name} alone": (one_device, partial(alone, tower, ids, floats))
        for name, tower in zip(("user", "item"), one_device, strict=True)
    }
    for mode in modes:
        towers = build_towers(device, mode) if mode == "devices" else one_device
        runs[mode] = towers, partial(run_towers, mode, towers, ids, floats)
    steps = {
        "training": {name: training_step(run, towers) for name, (towers, run) in runs.items()},
        "inference": {name: inference_step(run) for name, (_, run) in runs.items()},
    }
    if device.type == "cuda":
        steps = {
            kind: {name: step if name == "devices" else replayed(step) for name, step in named.items()}
            for kind, named in steps.items()
        }
    return steps


def overlap(times: Mapping[str, float], mode: str) -> float:
    """The share of the shorter tower that is hidden behind the longer."""
    user, item = times["user alone"], times["item alone"]
    return (user + item - times[mode]) / min(user, item)


def main() -> None:
    flags = arguments(__doc__ or "", turns=9)
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(automatic if flags.device == "auto" else flags.device)
    torch.manual_seed(0)
    turns, batches = (2, BATCHES[:2]) if flags.quick else (flags.turns, BATCHES)
    absent = {mode: obstacle for mode, obstacle in obstacles(device).items() if obstacle}
    for mode, obstacle in absent.items():
        print(f"{mode}: not here, {obstacle}")
    here = [mode for mode in MODES if mode not in absent]
    seconds, ratios, shown, slower = {}, {}, [], []
    chosen = choose_mode("auto", device)
    for batch_size in batches:
        for kind, steps in contenders(device, batch_size, here).items():
            times = {name: time_[0] for name, time_ in timed_turns(steps, turns, 5, device).items()}
            best = min(here, key=lambda mode: times[mode])
            seconds |= {f"{kind}, {batch_size}, {name}": time_ for name, time_ in times.items()}
            for mode in here:
                ratios[f"{mode}, {kind}, {batch_size}"] = times["sequential"] / times[mode]
            if kind == "training":
                slower.append((times[chosen] / times[best], f"{best} at batch {batch_size:,}"))
            shown += [
                {
                    "step": kind,
                    "batch": f"{batch_size:,}",
                    "towers": name,
                    "ms": round(1e3 * time_, 3),
                    "times sequential": round(times["sequential"] / time_, 2) if name in here else "",
                    "overlap": round(overlap(times, name), 2) if name in here else "",
                }
                for name, time_ in times.items()
            ]
    render_table(shown, f"two towers of layers {list(LAYERS)}, by how they run, on {device.type}")
    gains = {key: ratio for key, ratio in ratios.items() if ratio > AS_GOOD}
    best_gain = max(gains, key=lambda key: gains[key], default=None)
    if best_gain is None:
        print(f"No gain: nothing here is more than {AS_GOOD - 1:.0%} faster than one tower after the other.")
    else:
        print(f"Largest gain over one after the other: {gains[best_gain]:.2f} times ({best_gain}).")
    worst, where = max(slower)
    print(f"auto is {chosen}: at most {worst:.2f} times the time of the best way to train ({where}).")
    finish(
        "towers",
        f"forward and backward pass of two towers {list(LAYERS)} over {len(NUM_IDS)} columns each",
        seconds,
        ratios,
        {},
        save=flags.save,
        details={
            "milliseconds": {key: round(1e3 * value, 4) for key, value in seconds.items()},
            "auto": chosen,
            "not here": absent,
            "threads": torch.get_num_threads(),
        },
    )


if __name__ == "__main__":
    main()
