"""Our contender of benchmarks/end_to_end.py: a Parquet file to the AUC of the validation rows.

    python -m benchmarks.end_to_end_ours '{"path": FILE, "recipe": {...}, "device": "cpu", "engine": "pandas",
        "seed": 0, "warm_up": ""}'

Run by the benchmark. Prints one JSON line: seconds of each part, AUC and log loss; on a GPU also the most memory that
torch held.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.pairs import ROWS_IN_LIST, schema

WIDTHS = {"user_id": 16, "item_id": 16, "platform": 4, "city": 8, "device": 1, "current_filters": 8}
OTHER_WIDTH = 3
VALID_OF = 5  # one list of so many validates, the first
LAYERS = (64, 32)
WAITING = "of which waiting for batches"
# Rows that are scored at a time: on a CPU as many as stay in the cache, on a GPU enough to fill it.
SCORED_ROWS = {"cpu": 1 << 13, "cuda": 1 << 20}


@dataclass(frozen=True)
class Recipe:
    """How a contender trains. table_lr, optimizer: of ours; table_lr None is for optimizers with one rate."""

    batch_size: int
    lr: float
    table_lr: float | None = None
    optimizer: str = "adamw"


class Clock:
    """Seconds by part. On a GPU each part ends when the device has finished it."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds = device, {}
        self.last = time.perf_counter()

    def __call__(self, part: str) -> None:
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[part] = now - self.last
        self.last = now


def read_splits(path: str, engine_name: str, clock: Clock) -> tuple[Any, Any]:
    """Frames of the training and of the validation rows, of the columns that the model takes."""
    from gigabatch.features.engines.frame import load_engine

    engine = load_engine(engine_name)
    names = schema().names("categorical", "continuous", "target")
    frame = engine.read_columns(path, [*names, "row_id"])
    clock("read")
    if engine.NAME == "pandas":
        splits = split_arrow(frame, names, engine)
    else:
        valid = frame["row_id"] % VALID_OF == 0
        frame = frame[names]
        splits = frame[~valid].reset_index(drop=True), frame[valid].reset_index(drop=True)
    clock("split")
    return splits


def split_arrow(frame: Any, names: list[str], engine: Any) -> tuple[Any, Any]:
    """As `frame[~valid], frame[valid]`, whose columns pandas takes one after another: here in threads."""
    import numpy as np
    import pandas as pd
    import pyarrow as pa

    valid = frame["row_id"].to_numpy() % VALID_OF == 0

    def filtered(task: tuple[bool, str]) -> Any:
        mask, name = task
        return frame[name].array.__arrow_array__().filter(pa.array(valid if mask else ~valid))

    tasks = [(mask, name) for mask in (False, True) for name in names]
    columns = dict(zip(tasks, engine.map_columns(filtered, tasks), strict=True))

    def split(mask: bool) -> Any:
        found = {name: pd.arrays.ArrowExtensionArray(columns[mask, name]) for name in names}
        return pd.DataFrame(found, index=pd.RangeIndex(int(np.count_nonzero(valid == mask))), copy=False)

    return split(False), split(True)


def encode(train: Any, valid: Any, device: str, clock: Clock) -> tuple[Any, Any]:
    """Packed tables on `device`; fitted on `train`."""
    import torch

    from gigabatch.features.encoding.preprocessor import Preprocessor
    from gigabatch.loaders.tables.packed import PackedTable

    preprocessor = Preprocessor(schema())
    (train_rows,) = preprocessor.fit_pack([train])
    clock("encode train")
    valid_rows = preprocessor.pack(valid)
    clock("encode valid")
    words = [torch.from_dlpack(rows) for rows in (train_rows, valid_rows)]
    tables = [PackedTable.from_rows(preprocessor.tensor_schema, rows).to(device) for rows in words]
    clock("pack")
    return tables[0], tables[1]


def build(table: Any, recipe: Recipe, device: str) -> tuple[Any, Any]:
    """Model and optimizer for the table's columns."""
    from gigabatch.models.inputs import ModelInputs
    from gigabatch.models.optimizers.registry import build_optimizer
    from gigabatch.models.tabular.tabular import TabularModel, TabularSettings

    ids = table.schema.ids
    inputs = ModelInputs(tuple(column.num_ids for column in ids), len(table.schema.floats))
    widths = tuple(WIDTHS.get(column.name, OTHER_WIDTH) for column in ids)
    model = TabularModel(inputs, TabularSettings(LAYERS, embedding_widths=widths)).to(device)
    rates = {"lr": recipe.lr} if recipe.table_lr is None else {"lr": recipe.lr, "table_lr": recipe.table_lr}
    return model, build_optimizer(model, recipe.optimizer, **rates)


def train_epoch(table: Any, recipe: Recipe, device: str, seed: int, clock: Clock) -> Any:
    """The model after one epoch of one-cycle over `table`, in evaluation mode."""
    import torch

    from gigabatch.loaders.batches.dataset import BatchDataset
    from gigabatch.loaders.batches.loader import BatchLoader
    from gigabatch.models.losses import TargetLoss
    from gigabatch.models.optimizers.precision import choose_precision
    from gigabatch.models.optimizers.schedule import OneCycle
    from gigabatch.pipeline.training.train_step import TrainStep, hold_in_tensors, use_cuda_graph

    torch.manual_seed(seed)
    model, optimizer = build(table, recipe, device)
    batch_size = min(recipe.batch_size, len(table))
    loader = BatchLoader(BatchDataset(table, batch_size, seed=seed), device)
    schedule = OneCycle(recipe.lr, len(loader))
    step = TrainStep(model, TargetLoss((("binary", 1),)), optimizer, choose_precision("auto", device))
    if device == "cuda":
        hold_in_tensors(optimizer, table.device)
        if use_cuda_graph("auto", table.device, optimizer, schedule):
            step.capture(table.schema, batch_size)
    clock("model")
    waited, asked = 0.0, time.perf_counter()
    for number, batch in enumerate(loader):
        waited += time.perf_counter() - asked
        step(batch, *schedule.at(number))
        asked = time.perf_counter()
    clock("train")
    if device == "cpu":  # on a GPU the host only queues the copies, and its wait says nothing
        clock.seconds[WAITING] = waited
    return model.eval()


def judge(model: Any, table: Any, clock: Clock) -> dict[str, float]:
    import torch

    from gigabatch.models.metrics.pointwise import log_loss, roc_auc

    batch = table.unpack(table.words)
    with torch.inference_mode():
        size = SCORED_ROWS[table.device.type]
        blocks = zip(batch.ids.split(size), batch.floats.split(size), strict=True)
        scores = torch.cat([model(ids, floats)[:, 0] for ids, floats in blocks]).sigmoid()
        found = {"auc": float(roc_auc(scores, batch.targets[0])), "logloss": float(log_loss(scores, batch.targets[0]))}
    clock("metrics")
    return found


def whole(path: str, recipe: Recipe, device: str, engine: str, seed: int = 0) -> dict[str, Any]:
    """File to metrics; seconds by part."""
    clock = Clock(device)
    train, valid = read_splits(path, engine, clock)
    tables = encode(train, valid, device, clock)
    del train, valid
    model = train_epoch(tables[0], recipe, device, seed, clock)
    found = judge(model, tables[1], clock)
    return {"seconds": clock.seconds, "train_rows": len(tables[0]), **found, **asdict(recipe)}


def train_rows(rows: int) -> int:
    """How many of the first `rows` rows of the table train."""
    lists, rest = divmod(rows, ROWS_IN_LIST * VALID_OF)
    return lists * ROWS_IN_LIST * (VALID_OF - 1) + max(rest - ROWS_IN_LIST, 0)


def warm_up_rows(rows: int, batch_size: int) -> int:
    """Rows of a table whose training has every shape of the one on `rows` rows.

    That is: full batches beyond those that a CUDA graph is captured after, and a last batch of the same size.
    """
    from gigabatch.pipeline.training.train_step import WARMUP_STEPS

    wanted = min((WARMUP_STEPS + 2) * batch_size + train_rows(rows) % batch_size, train_rows(rows))
    lists, rest = divmod(wanted, ROWS_IN_LIST * (VALID_OF - 1))
    return lists * ROWS_IN_LIST * VALID_OF + (ROWS_IN_LIST + rest if rest else 0)


def once(path: str, recipe: Recipe, device: str, engine: str, seed: int, warm_up: str) -> dict[str, Any]:
    """`whole` in this process; warm_up: a small table that goes the whole way first, or nothing."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    started = time.perf_counter()
    if warm_up:
        whole(warm_up, recipe, device, engine)
    first = time.perf_counter() - started
    found = {**whole(path, recipe, device, engine, seed), "warm up": first}
    if device != "cpu":
        found["torch's peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
    return found


def search(path: str, device: str, engine: str, grid: Mapping[str, Sequence[float]]) -> None:
    """AUC and training seconds over a grid of `Recipe`'s batch_size, lr and table_lr; the table is encoded once."""
    clock = Clock(device)
    train, valid = encode(*read_splits(path, engine, clock), device, clock)
    for values in itertools.product(*grid.values()):
        recipe = Recipe(**dict(zip(grid, values, strict=True)), optimizer="lamb")
        model = train_epoch(train, recipe, device, 0, clock)
        print(
            json.dumps(
                {**asdict(recipe), **judge(model, valid, clock), "train": clock.seconds["train"]}, allow_nan=False
            ),
            flush=True,
        )


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(once(**given | {"recipe": Recipe(**given["recipe"])}), allow_nan=False))
