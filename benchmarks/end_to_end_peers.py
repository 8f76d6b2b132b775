"""The peers of benchmarks/end_to_end.py: fastai from Parquet to the AUC of the validation rows.

    python benchmarks/end_to_end_peers.py fastai_unoptimised|fastai_tuned FILE [--batch_size N] [--lr X] [--search]

Run by the benchmark in the environment of `make bench-env`. The workflow is that of ../shared/bench/peer_fastai.py:
pandas, FillMissing, Categorify and Normalize, fastai's TabularModel with layers [64, 32], one cycle of fused AdamW, one
epoch. `fastai_unoptimised` is what was normal in 2019, an item-by-item DataLoader with two workers and batch 4,096;
`fastai_tuned` takes fastai's own TabDataLoader and its best batch. `--search` prepares the table once and trains over a
grid of batch sizes and learning rates. Prints one JSON line: seconds of each part, AUC and log loss.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
import warnings

import torch

warnings.filterwarnings("ignore")
CATEGORICAL = ["user_id", "item_id", "platform", "city", "device", "current_filters"] + [f"is_{i}" for i in range(7)]
CONTINUOUS = [f"cont_{i}" for i in range(20)]
WIDTHS = {"user_id": 16, "item_id": 16, "platform": 4, "city": 8, "device": 1, "current_filters": 8}
BATCH_SIZES, LRS = (4_096, 6_144, 8_192, 16_384), (1e-2, 2e-2, 3e-2, 4e-2)


class Items(torch.utils.data.Dataset):
    """One row at a time, as a plain Dataset gives them."""

    def __init__(self, ids, floats, labels) -> None:
        self.ids, self.floats, self.labels = ids, floats, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row):
        return self.ids[row], self.floats[row], self.labels[row]


def prepare(path: str, seconds: dict[str, float]):
    """The fitted and transformed TabularPandas; rows with row_id % 5 == 0 validate."""
    import numpy as np
    import pandas as pd
    from fastai.tabular.all import Categorify, CategoryBlock, FillMissing, Normalize, TabularPandas

    started = time.perf_counter()
    frame = pd.read_parquet(path)
    seconds["read"] = time.perf_counter() - started
    started = time.perf_counter()
    valid = (frame.row_id % 5 == 0).to_numpy()
    table = TabularPandas(
        frame,
        procs=[FillMissing, Categorify, Normalize],
        cat_names=list(CATEGORICAL),
        cont_names=list(CONTINUOUS),
        y_names="target",
        y_block=CategoryBlock(),
        splits=(np.where(~valid)[0].tolist(), np.where(valid)[0].tolist()),
    )
    seconds["encode"] = time.perf_counter() - started
    return table


def tensors(part):
    ids, floats = torch.tensor(part.cats.values).long(), torch.tensor(part.conts.values).float()
    return ids, floats, torch.tensor(part.y.values).long()


def train(table, flags, batch_size: int, lr: float, seconds: dict[str, float]):
    """The model after one epoch, in evaluation mode."""
    from fastai.tabular.all import TabDataLoader, TabularModel

    torch.manual_seed(flags.seed)
    started = time.perf_counter()
    if flags.peer == "fastai_unoptimised":
        items = Items(*tensors(table.train))
        loader = torch.utils.data.DataLoader(items, batch_size, shuffle=True, num_workers=flags.workers)
    else:
        # Not `table.dataloaders`, whose default in fastai 2.8, TabWeightedDL, draws rows with replacement: an epoch
        # then sees 63 % of them, and the AUC of batch 4,096 falls from 0.70 to 0.65.
        loader = TabDataLoader(table.train, bs=batch_size, shuffle=True, drop_last=True, num_workers=flags.workers)
    names = list(table.cat_names)
    tables = [(len(table.classes[name]), WIDTHS.get(name, 3)) for name in names]
    model = TabularModel(tables, len(table.cont_names), 2, [64, 32])
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=len(loader))
    seconds["load"] = time.perf_counter() - started
    started, waited, batches = time.perf_counter(), 0.0, iter(loader)
    model.train()
    for _ in range(len(loader)):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        loss = torch.nn.functional.cross_entropy(model(batch[0], batch[1]), batch[2].view(-1).long())
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    seconds["train"], seconds["of which waiting for batches"] = time.perf_counter() - started, waited
    return model.eval()


def judge(model, table, seconds: dict[str, float]) -> dict[str, float]:
    from sklearn.metrics import log_loss, roc_auc_score

    started = time.perf_counter()
    ids, floats, labels = tensors(table.valid)
    with torch.no_grad():
        blocks = [model(ids[i : i + 65536], floats[i : i + 65536]) for i in range(0, len(ids), 65536)]
    scores = torch.cat(blocks).softmax(1)[:, 1].double().numpy()
    found = {"auc": roc_auc_score(labels.numpy(), scores), "logloss": log_loss(labels.numpy(), scores)}
    seconds["metrics"] = time.perf_counter() - started
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=["fastai_unoptimised", "fastai_tuned"])
    parser.add_argument("file")
    parser.add_argument("--batch_size", type=int, default=4_096)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--search", action="store_true")
    flags = parser.parse_args()
    # The clock starts after imports, as it does for ours.
    import fastai.tabular.all  # noqa: F401
    import sklearn.metrics  # noqa: F401

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    seconds: dict[str, float] = {}
    table = prepare(flags.file, seconds)
    settings = itertools.product(BATCH_SIZES, LRS) if flags.search else [(flags.batch_size, flags.lr)]
    for batch_size, lr in settings:
        model = train(table, flags, batch_size, lr, seconds)
        found = judge(model, table, seconds)
        print(
            json.dumps({"batch_size": batch_size, "lr": lr, **found, "seconds": seconds}, allow_nan=False), flush=True
        )


if __name__ == "__main__":
    main()
