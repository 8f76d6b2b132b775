"""The owner's set-up of benchmarks/ncf.py: the same model as it is written by hand in plain torch.

A Dataset whose `__getitem__` draws four negatives that the user does not have, a DataLoader of 256 positives a batch,
nn.Embedding tables, dense Adam. `DistributedDataParallel` on one machine is measured too, as the owner tried it.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Generator
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.ncf_data import Interactions
from gigabatch.features.vocabulary.vocabulary import LAYOUT

BATCH, NEGATIVES, LR = 256, 4, 1e-3
GMF, MLP, LAYERS = 8, 32, (32, 16, 8)


class NaiveNCF(nn.Module):
    """NeuMF with the context in the MLP."""

    def __init__(self, num_users: int, num_items: int, num_contexts: int) -> None:
        super().__init__()
        self.user_gmf, self.item_gmf = nn.Embedding(num_users, GMF), nn.Embedding(num_items, GMF)
        self.user_mlp, self.item_mlp = nn.Embedding(num_users, MLP), nn.Embedding(num_items, MLP)
        layers: list[nn.Module] = []
        for num_in, num_out in zip((2 * MLP + num_contexts, *LAYERS[:-1]), LAYERS, strict=True):
            layers += [nn.Linear(num_in, num_out), nn.ReLU()]
        self.mlp = nn.Sequential(*layers)
        self.output = nn.Linear(GMF + LAYERS[-1], 1)
        for table in (self.user_gmf, self.item_gmf, self.user_mlp, self.item_mlp):
            nn.init.normal_(table.weight, std=0.01)

    def scores(self, users: Tensor, items: Tensor, contexts: Tensor) -> Tensor:
        gmf = self.user_gmf(users) * self.item_gmf(items)
        mlp = self.mlp(torch.cat([self.user_mlp(users), self.item_mlp(items), contexts], dim=-1))
        return self.output(torch.cat([gmf, mlp], dim=-1))[..., 0]

    def forward(self, ids: Tensor, floats: Tensor) -> Tensor:
        """As our models are called, for `rank_evaluate`: ids count from `LAYOUT.first`."""
        users, items = ids.long().sub(LAYOUT.first).clamp_min(0).unbind(1)
        return self.scores(users, items, floats)[:, None]


class NaiveDataset(Dataset):
    """One positive and its negatives an item."""

    def __init__(self, data: Interactions) -> None:
        self.data = data
        self.known = set((data.users * data.num_items + data.items).tolist())

    def __len__(self) -> int:
        return len(self.data.users)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        data = self.data
        user = int(data.users[index])
        items = [int(data.items[index])]
        while len(items) <= NEGATIVES:
            item = random.randrange(data.num_items)
            if user * data.num_items + item not in self.known:
                items.append(item)
        users = torch.full((len(items),), user)
        contexts = torch.from_numpy(data.contexts[index]).expand(len(items), -1)
        return users, torch.tensor(items), contexts, torch.tensor([1.0] + [0.0] * NEGATIVES)


class Naive:
    """Model, optimizer and an endless loader of batches of 256 positives."""

    def __init__(self, data: Interactions, workers: int = 0, device: str = "cpu") -> None:
        self.dataset = NaiveDataset(data)
        self.device = device
        self.model = NaiveNCF(data.num_users, data.num_items, data.contexts.shape[1]).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LR)
        self.loss = nn.BCEWithLogitsLoss()
        self.loader = DataLoader(self.dataset, BATCH, shuffle=True, num_workers=workers)
        self.batches: Generator[Any, None, None] = self._endless()

    def _endless(self) -> Generator[Any, None, None]:
        while True:
            yield from self.loader

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.train_on(next(self.batches))

    def close(self) -> None:
        """End the loader's workers."""
        self.batches.close()

    def train_on(self, batch: Any) -> None:
        users, items, contexts, labels = (part.to(self.device) for part in batch)
        self.optimizer.zero_grad()
        self.loss(self.model.scores(users, items, contexts), labels).backward()
        self.optimizer.step()

    def epoch(self) -> None:
        for batch in self.loader:
            self.train_on(batch)


def step_parts(data: Interactions, steps: int) -> dict[str, float]:
    """Seconds of a step of `Naive` by part, medians over `steps`."""
    naive = Naive(data)
    found: dict[str, list[float]] = {"dataset and collate": [], "forward and backward": [], "dense Adam": []}
    for number in range(steps + 3):
        moments = [time.perf_counter()]
        users, items, contexts, labels = next(naive.batches)
        moments.append(time.perf_counter())
        naive.optimizer.zero_grad()
        naive.loss(naive.model.scores(users, items, contexts), labels).backward()
        moments.append(time.perf_counter())
        naive.optimizer.step()
        moments.append(time.perf_counter())
        if number >= 3:
            for name, spent in zip(found, np.diff(moments), strict=True):
                found[name].append(float(spent))
    return {name: float(np.median(spent)) for name, spent in found.items()}


def ddp_step_seconds(data: Interactions, processes: int, steps: int) -> float:
    """Median seconds of a step of 256 positives shared by so many processes of this machine (gloo)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    arguments = (processes, port, data, steps, answers)
    torch.multiprocessing.spawn(_ddp_process, arguments, nprocs=processes)
    return float(np.median([answers.get() for _ in range(processes)]))


def _ddp_process(rank: int, processes: int, port: int, data: Interactions, steps: int, answers: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(max(len(os.sched_getaffinity(0)) // processes, 1))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=processes)
    naive = Naive(data)
    parallel = nn.parallel.DistributedDataParallel(_Scores(naive.model))
    loader = DataLoader(naive.dataset, BATCH // processes, shuffle=True)
    times = []
    batches = iter(loader)
    for _ in range(steps + 3):
        started = time.perf_counter()
        users, items, contexts, labels = next(batches)
        naive.optimizer.zero_grad()
        naive.loss(parallel(users, items, contexts), labels).backward()
        naive.optimizer.step()
        times.append(time.perf_counter() - started)
    answers.put(float(np.median(times[3:])))
    torch.distributed.destroy_process_group()


class _Scores(nn.Module):
    """`NaiveNCF.scores` as a forward pass, which DistributedDataParallel wraps."""

    def __init__(self, model: NaiveNCF) -> None:
        super().__init__()
        self.model = model

    def forward(self, users: Tensor, items: Tensor, contexts: Tensor) -> Tensor:
        return self.model.scores(users, items, contexts)
