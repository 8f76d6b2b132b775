"""What DCT costs in AUC: the same training with and without it, seed by seed, on planted data with Zipf ids.

Labels are drawn from a logistic model of weights of ids, products of vectors of ids and a bend of two floats.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.communication_schemes import Training
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.metrics.pointwise import roc_auc
from gigabatch.models.optimizers.registry import build_optimizer, set_lr_and_momentum
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.shelf import model_class

SIZES = (1000, 1000, 500, 500, 200, 200, 100, 100, 50, 20)
NUM_FLOATS, PLANTED_DIM = 4, 4


class Table(NamedTuple):
    """ids int32 [n, C], floats [n, F], targets [n]."""

    ids: Tensor
    floats: Tensor
    targets: Tensor


def zipf_ids(draw: np.random.Generator, num_rows: int, sizes: tuple[int, ...], exponent: float) -> Tensor:
    """int32 [n, C]: id k with a probability of 1 / (k + 1) ** exponent."""
    columns = []
    for size in sizes:
        weights = 1 / np.arange(1, size + 1) ** exponent
        columns.append(np.searchsorted(np.cumsum(weights) / weights.sum(), draw.random(num_rows)).clip(max=size - 1))
    return torch.tensor(np.stack(columns, axis=1).astype(np.int32))


def planted(num_rows: int, seed: int) -> Table:
    """Rows whose labels follow from ids, pairs of ids and floats; the world is one, the rows are the seed's."""
    world, draw = np.random.default_rng(7), np.random.default_rng([seed, 11])
    ids = zipf_ids(draw, num_rows, SIZES, 1.1)
    floats = draw.normal(size=(num_rows, NUM_FLOATS)).astype(np.float32)
    score = 0.8 * np.sin(2 * floats[:, 0]) + 0.5 * floats[:, 1] * (floats[:, 2] > 0) - 0.5
    total = np.zeros((num_rows, PLANTED_DIM))
    for column, size in enumerate(SIZES):
        weights, vectors = world.normal(size=size) * 0.35, world.normal(size=(size, PLANTED_DIM)) * 0.3
        score = score + weights[ids[:, column]]
        total += vectors[ids[:, column]]
    score = score + (np.square(total).sum(1) - np.square(total).sum(1).mean()) / 2
    targets = (draw.random(num_rows) < 1 / (1 + np.exp(-score))).astype(np.float32)
    return Table(ids, torch.tensor(floats), torch.tensor(targets))


def planted_settings() -> dict[str, dict[str, Any]]:
    """What is trained to see what DCT costs: of dense gradients (`dp`), of vectors that cross (`mp`)."""
    common = {"rows": (40_000, 40_000), "batch": 512, "epochs": 3}
    deepfm = {"embedding_dim": 8, "layers": (256, 256), "dropout": 0.0, "batch_norm": False}
    dlrm = {"embedding_dim": 32, "bottom_layers": (64,), "top_layers": (64,)}
    sparse = {"tables": "rows", "dense": "dct", "dp_drop": 0.99, "refresh": 20}
    thinned = {"tables": "tables thinned", "mp_drop": 0.925, "refresh": 20}
    ways = {
        "dp": {
            "plain": {"tables": "rows"},
            "DCT": sparse,
            "PowerSGD": {"tables": "rows", "dense": "powersgd"},
            "bfloat16": {"tables": "rows", "dense": "bf16"},
        },
        "mp": {"plain": {"tables": "tables"}, "DCT": thinned},
    }
    return {
        "dp": {"name": "deepfm", "settings": deepfm, "lr": 0.01, "ways": ways["dp"], **common},
        "mp": {"name": "dlrm", "settings": dlrm, "lr": 0.02, "ways": ways["mp"], **common},
    }


def aucs(ranks: Ranks, name: str, settings: dict[str, Any], ways: dict[str, dict[str, Any]], seeds: list[int],
         rows: tuple[int, int], batch: int, epochs: int, lr: float) -> dict[str, list[dict[str, float]]]:  # fmt: skip
    """By way, for each seed: the best epoch's test AUC, and bytes a step of dense gradients and of values of tables."""
    test = planted(rows[1], 10**6)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for seed in seeds:
        train = planted(rows[0], seed)
        for way, how in ways.items():
            found[way].append(_trained(ranks, name, settings, how, seed, train, test, batch, epochs, lr))
    return found


def _trained(ranks: Ranks, name: str, settings: dict[str, Any], how: dict[str, Any], seed: int, train: Table,
             test: Table, batch: int, epochs: int, lr: float) -> dict[str, float]:  # fmt: skip
    torch.manual_seed(seed)
    kind = model_class(name)
    model = kind(ModelInputs(SIZES, NUM_FLOATS), kind.Settings(**settings))
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.eval()  # floats are normal already, and ranks' moments would differ
    training = Training(model, name, "DES", ranks, train.ids[:batch], **how)
    optimizer = build_optimizer(model, "lamb", lr=lr)
    own = batch // ranks.num_ranks
    num_steps, step, best = epochs * (len(train.ids) // batch), 0, 0.0
    ranks.traffic.clear()
    for epoch in range(epochs):
        order = torch.randperm(len(train.ids), generator=torch.Generator().manual_seed(1000 * seed + epoch))
        for first in range(0, len(order) - batch + 1, batch):
            mine = order[first + own * ranks.rank : first + own * (ranks.rank + 1)]
            set_lr_and_momentum(optimizer, lr * (1 - step / num_steps), 0.9)
            training.step(train.ids[mine], train.floats[mine], train.targets[mine])
            optimizer.step()
            step += 1
        best = max(best, _auc(model, test, ranks))
    sent = {"dense": 0.0, "values": 0.0}
    for (_, what), count in ranks.traffic.bytes.items():
        if what not in ("ids", "counts"):
            sent["dense" if what in ("gradients", "sparse gradients") else "values"] += count / num_steps
    return {"AUC": best, **sent}


@torch.no_grad()
def _auc(model: torch.nn.Module, test: Table, ranks: Ranks) -> float:
    before = Counter(ranks.traffic.bytes)
    scores = model(*(part.tensor_split(ranks.num_ranks)[ranks.rank] for part in test[:2]))[:, 0]
    scores = torch.cat(ranks.all_gather_rows(scores, "evaluation"))
    ranks.traffic.bytes = before  # what is counted is training
    return float(roc_auc(scores, test.targets))
