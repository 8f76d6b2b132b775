"""The processes that train together, and every byte that they send each other.

A collective's bytes are those that one rank sends by the algorithm that needs the fewest, of N ranks: an all-reduce of
S bytes 2 (N - 1) / N S, a reduce-scatter of S (N - 1) / N S, an all-gather of s a rank (N - 1) s, an all-to-all what
goes to others, a broadcast S on the rank that sends. So the numbers do not depend on the library underneath.
(Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 has a new name for it, and warns of the old one, the only one that torch 2.11 knows.
reduce_scatter_tensor = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Traffic:
    """Bytes that this rank has sent, and calls, by kind of collective and by what was sent."""

    def __init__(self) -> None:
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.calls: Counter[tuple[str, str]] = Counter()

    def count(self, kind: str, name: str, num_bytes: float) -> None:
        """One call of this kind that sent so many bytes."""
        self.bytes[kind, name] += round(num_bytes)
        self.calls[kind, name] += 1

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self.bytes.values())

    def clear(self) -> None:
        """Begin anew."""
        self.bytes.clear()
        self.calls.clear()


class Ranks:
    """This process among those that train together.

    Every collective must be called by all ranks, in the same order, with tensors of the same dtype. `name` says what
    is sent, for `traffic`. One rank alone sends nothing.

    Parameters
    ----------
    group : torch.distributed process group or None, default None
        None: the default group where one is initialised, else one rank alone.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.parallel.ranks import Ranks
    >>> ranks = Ranks()
    >>> ranks.num_ranks, ranks.all_reduce(torch.ones(2), "gradients").tolist(), ranks.traffic.total
    (1, [1.0, 1.0], 0)
    """

    def __init__(self, group: Any = None) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.group = group
        self.rank = dist.get_rank(group) if together else 0
        self.num_ranks = dist.get_world_size(group) if together else 1
        self.traffic = Traffic()

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        return self  # a model's copy talks to the same ranks, and what it sends counts

    @property
    def is_first(self) -> bool:
        """Whether this one speaks for all."""
        return self.rank == 0

    def all_reduce(self, tensor: Tensor, name: str) -> Tensor:
        """The sum over ranks, in place; the same bits on every rank."""
        if self.num_ranks > 1:
            self.traffic.count("all_reduce", name, 2 * (self.num_ranks - 1) / self.num_ranks * size_of(tensor))
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def all_gather(self, tensor: Tensor, name: str) -> list[Tensor]:
        """Every rank's tensor, in order of ranks; all of one shape."""
        if self.num_ranks == 1:
            return [tensor]
        self.traffic.count("all_gather", name, (self.num_ranks - 1) * size_of(tensor))
        parts = [torch.empty_like(tensor) for _ in range(self.num_ranks)]
        dist.all_gather(parts, tensor.contiguous(), group=self.group)
        return parts

    def all_gather_rows(self, rows: Tensor, name: str) -> list[Tensor]:
        """Every rank's rows [n_r, ...], in order of ranks; n_r may differ and may be 0."""
        if self.num_ranks == 1:
            return [rows]
        return self.all_gather_counted(rows, self.counts_of(len(rows), rows.device), name)

    def all_gather_counted(self, rows: Tensor, counts: Sequence[int], name: str) -> list[Tensor]:
        """As `all_gather_rows`, where the host knows already how many rows each rank has."""
        if self.num_ranks == 1:
            return [rows]
        self.traffic.count("all_gather", name, (self.num_ranks - 1) * size_of(rows))
        largest = max(counts)
        padded = rows.new_zeros(largest, *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.num_ranks)]
        dist.all_gather(parts, padded, group=self.group)
        return [part[:number] for part, number in zip(parts, counts, strict=True)]

    def counts_of(self, number: int, device: torch.device) -> list[int]:
        """Every rank's number, on the host."""
        found = self.all_gather(torch.tensor([number], device=device), "counts")
        return [int(one) for one in torch.cat(found).tolist()]

    def reduce_scatter(self, tensor: Tensor, name: str) -> Tensor:
        """Of tensors [N n, ...] of one shape, the sum over ranks of this rank's n rows."""
        if self.num_ranks == 1:
            return tensor
        self.traffic.count("reduce_scatter", name, (self.num_ranks - 1) / self.num_ranks * size_of(tensor))
        out = tensor.new_empty(len(tensor) // self.num_ranks, *tensor.shape[1:])
        reduce_scatter_tensor(out, tensor.contiguous(), group=self.group)
        return out

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int], name: str) -> Tensor:
        """Send `send[r]` rows to rank r, one after the other in `rows`; what came, in order of ranks."""
        if self.num_ranks == 1:
            return rows
        row_bytes = size_of(rows) // max(len(rows), 1)
        self.traffic.count("all_to_all", name, row_bytes * (sum(send) - send[self.rank]))
        out = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), list(receive), list(send), group=self.group)
        return out

    def all_to_all_counts(self, send: Sequence[int], device: torch.device) -> list[int]:
        """How many rows come from each rank, where `send[r]` go to rank r."""
        if self.num_ranks == 1:
            return list(send)
        each = [1] * self.num_ranks
        told = self.all_to_all(torch.tensor(send, device=device), each, each, "counts")
        return [int(one) for one in told.tolist()]

    def broadcast(self, tensor: Tensor, name: str, source: int = 0) -> Tensor:
        """Rank `source`'s tensor, in place on the others."""
        if self.num_ranks > 1:
            self.traffic.count("broadcast", name, size_of(tensor) if self.rank == source else 0)
            dist.broadcast(tensor, group=self.group, group_src=source)
        return tensor

    def tell(self, value: Any, name: str) -> Any:
        """The first rank's value, of what JSON holds, on all; the others' is not looked at."""
        if self.num_ranks == 1:
            return value
        text = torch.frombuffer(bytearray(json.dumps(value, allow_nan=True).encode()), dtype=torch.uint8)
        size = int(self.broadcast(torch.tensor([len(text)]), name))
        text = self.broadcast(text if self.is_first else torch.empty(size, dtype=torch.uint8), name)
        return json.loads(text.numpy().tobytes())

    def gather(self, value: Any, name: str) -> list[Any]:
        """Every rank's value, of what JSON holds, in order of ranks."""
        text = torch.frombuffer(bytearray(json.dumps(value, allow_nan=True).encode()), dtype=torch.uint8)
        return [json.loads(part.numpy().tobytes()) for part in self.all_gather_rows(text, name)]

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.num_ranks > 1:
            dist.barrier(group=self.group)


def size_of(tensor: Tensor) -> int:
    """Bytes of the elements."""
    return tensor.numel() * tensor.element_size()
