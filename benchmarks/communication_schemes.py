"""Ways to train a model of the shelf on several ranks, each with the bytes that it should send.

Tables: `rows` and DES of `gigabatch.models.parallel.des`; replicated tables whose ranks gather each other's gradients
of rows; whole tables dealt out, whose vectors travel in a pooled all-to-all. Dense weights: all-reduce, DCT, and
torch's hooks of DDP (PowerSGD, Vogels et al., arXiv 1905.13727; bfloat16).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.parallel.costs import Choice, place_bytes, step_bytes, total_bytes
from gigabatch.models.parallel.dct import SparseGradients, ThresholdedExchange
from gigabatch.models.parallel.des import measured_load, operators_of, substitute
from gigabatch.models.parallel.exchange import Exchange
from gigabatch.models.parallel.ranks import Ranks, size_of

# Scheme -> how tables are spread, how dense gradients are summed.
SCHEMES = {
    "parameter server": ("rows", "all-reduce"),
    "sparse all-gather": ("replicated", "all-reduce"),
    "pooled all-to-all": ("tables", "all-reduce"),
    "DES": ("des", "all-reduce"),
    "DES + DCT": ("des thinned", "dct"),
    "PowerSGD": ("rows", "powersgd"),
    "bf16": ("rows", "bf16"),
}
DES = {
    "lr": {"linear": "des"},
    "fm": {"linear": "des", "fields": "pairs"},
    "deepfm": {"linear": "des", "fields": "dense"},
    "dlrm": {"fields": "fields"},
}
POWERSGD_RANK, POWERSGD_START = 1, 2
DP_DROP, MP_DROP, WIRE = 0.999, 0.95, "bfloat16"


def on_ranks(work: Callable[..., Any], num_ranks: int, *arguments: Any, **named: Any) -> list[Any]:
    """What `work(ranks, *arguments)` returns on each of `num_ranks` processes over gloo."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_one, (work, num_ranks, folder, arguments, named), nprocs=num_ranks)
        return [pickle.loads((Path(folder) / f"told-{rank}").read_bytes()) for rank in range(num_ranks)]


def _one(rank: int, work: Callable[..., Any], num_ranks: int, folder: str, arguments: Any, named: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=num_ranks)
    try:
        result = work(Ranks(), *arguments, **named)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the others wait for this rank in a collective; `spawn` ends them
    (Path(folder) / f"told-{rank}").write_bytes(pickle.dumps(result))
    dist.barrier()
    os._exit(0)


class DealtTables(nn.Module):
    """Table c whole on rank c mod N; ids [b, C] go there and vectors come back: [b, C d]. Batches of one size."""

    def __init__(self, tables: EmbeddingTables, ranks: Ranks, exchange: Exchange, name: str) -> None:
        super().__init__()
        weights = tables.weights
        self.own = list(range(ranks.rank, len(weights), ranks.num_ranks))
        self.rows = EmbeddingTables([len(weights[place]) for place in self.own], [weights[0].shape[1]] * len(self.own))
        with torch.no_grad():
            for table, place in zip(self.rows.weights, self.own, strict=True):
                table.copy_(weights[place])
        self.depth, self.ranks, self.exchange, self.name = weights[0].shape[1], ranks, exchange, name

    @property
    def tables(self) -> nn.ParameterList:
        return self.rows.tables

    def forward(self, ids: Tensor) -> Tensor:
        num_ranks, num_rows = self.ranks.num_ranks, len(ids)
        places = [list(range(rank, ids.shape[1], num_ranks)) for rank in range(num_ranks)]
        sizes, own = [num_rows * len(one) for one in places], num_rows * len(self.own)
        sent = torch.cat([ids[:, one].flatten() for one in places])
        asked = self.ranks.all_to_all(sent.int(), sizes, [own] * num_ranks, "ids")
        vectors = self.rows(asked.view(-1, len(self.own))).view(-1, self.depth)
        came = self.exchange.all_to_all(vectors, [own] * num_ranks, sizes, self.name).split(sizes)
        order = torch.tensor([place for one in places for place in one]).argsort()
        beside = torch.cat([part.view(num_rows, -1, self.depth) for part in came], dim=1)
        return beside.index_select(1, order).flatten(1)


def gather_row_gradients(model: nn.Module, ranks: Ranks) -> None:
    """Send all ranks the row gradients of replicated tables, summed by row first; for their bytes, nothing moves."""
    for module in model.modules():
        if not isinstance(module, EmbeddingTables) or not module.row_gradients:
            continue
        (found,) = module.row_gradients
        widths, parts = [table.shape[1] for table in module.weights], []
        for column, part in enumerate(found.gradient.split(widths, dim=1)):
            distinct, inverse = found.ids[:, column].unique(return_inverse=True)
            parts.append((distinct.int(), part.new_zeros(len(distinct), part.shape[1]).index_add(0, inverse, part)))
        # One number a row says which table it is of too: the place among all tables' rows.
        starts = [0]
        for table in module.weights:
            starts.append(starts[-1] + len(table))
        ids = torch.cat([one + start for (one, _), start in zip(parts, starts, strict=False)])
        sums = torch.cat([one for _, one in parts])
        module.forget_gradients()
        ranks.all_gather_rows(ids, "ids")
        ranks.all_gather_rows(sums, "row gradients")


class Training:
    """A model, its tables spread and its dense gradients summed by a scheme.

    layouts: those of `substitute` instead of the scheme's. loss of a rank: divided by all ranks' rows.
    """

    def __init__(
        self, model: nn.Module, name: str, scheme: str, ranks: Ranks, ids: Tensor, dp_drop: float = DP_DROP,
        mp_drop: float = MP_DROP, refresh: int = 1, tables: str | None = None, dense: str | None = None,
    ) -> None:  # fmt: skip
        self.model, self.name, self.ranks = model, name, ranks
        of_tables, of_dense = SCHEMES[scheme]
        self.tables, self.dense = tables or of_tables, dense or of_dense
        self.operators, self.load = operators_of(model), measured_load(ranks, ids)
        self.dp_drop, self.mp_drop = dp_drop, mp_drop
        thinned = ThresholdedExchange(ranks, mp_drop, refresh, WIRE) if "thinned" in self.tables else None
        kind = self.tables.split()[0]
        if kind in ("rows", "des"):
            layouts = dict.fromkeys(self.operators, "rows") if kind == "rows" else DES[name]
            self.layouts = substitute(model, ranks, ids, layouts, exchange=thinned).chosen
        elif kind == "tables":
            for holder, what in (
                (getattr(model, "linear", None), "linear"),
                (getattr(model, "fields", model), "fields"),
            ):
                if holder is not None and hasattr(holder, "tables"):
                    holder.tables = DealtTables(holder.tables, ranks, thinned or Exchange(ranks), what)
        tables_of = {id(p) for m in model.modules() if isinstance(m, EmbeddingTables) for p in m.weights}
        for module in model.modules():
            if isinstance(module, EmbeddingTables):
                module.gradients = "rows"
        self.dense_parameters = {n: p for n, p in model.named_parameters() if id(p) not in tables_of}
        self.sparse = SparseGradients(ranks, dp_drop, refresh, WIRE) if self.dense == "dct" else None
        self.callable: Any = model
        if self.dense in ("powersgd", "bf16"):
            ignored = [n for n, p in model.named_parameters() if id(p) in tables_of] + [
                n for n, _ in model.named_buffers()
            ]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
            self.group = dist.new_group()
            # One bucket: PowerSGD's calls of two would meet in another order on each rank, which gloo does not survive.
            self.callable = DistributedDataParallel(model, process_group=self.group, bucket_cap_mb=4096)
            if self.dense == "bf16":
                self.callable.register_comm_hook(self.group, bf16_hook)
            else:
                state = powerSGD_hook.PowerSGDState(self.group, POWERSGD_RANK, POWERSGD_START)
                self.callable.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def step(self, ids: Tensor, floats: Tensor, targets: Tensor) -> Tensor:
        """Gradients of one step; the loss of the rank's rows."""
        for parameter in self.dense_parameters.values():
            parameter.grad = None
        num_ranks = self.ranks.num_ranks
        with self._counted():
            out = self.callable(ids, floats)[:, 0]
            total = nn.functional.binary_cross_entropy_with_logits(out, targets, reduction="sum")
            loss = total / (len(ids) * num_ranks)
            loss.backward()
        gradients = {n: p.grad for n, p in self.dense_parameters.items() if p.grad is not None}
        if self.callable is not self.model:  # DDP averages what is divided by all ranks' rows already
            for gradient in gradients.values():
                gradient.mul_(num_ranks)
        if self.sparse is not None:
            self.sparse.reduce(gradients)
        elif self.dense == "all-reduce" and gradients:
            flat = self.ranks.all_reduce(torch.cat([one.flatten() for one in gradients.values()]), "gradients")
            for one, part in zip(gradients.values(), flat.split([g.numel() for g in gradients.values()]), strict=True):
                one.copy_(part.view_as(one))
        if self.tables == "replicated":
            gather_row_gradients(self.model, self.ranks)
        return loss.detach() * num_ranks

    def forget(self) -> None:
        """Leave no gradient of rows behind where no optimizer takes them."""
        for module in self.model.modules():
            if isinstance(module, EmbeddingTables):
                module.forget_gradients()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """All-reduces of torch's hooks are counted as ours are; ours go through another group."""
        if self.callable is self.model:
            yield
            return
        plain, others = dist.all_reduce, 2 * (self.ranks.num_ranks - 1) / self.ranks.num_ranks

        def all_reduce(tensor: Tensor, *arguments: Any, **named: Any) -> Any:
            if named.get("group") is self.group:
                self.ranks.traffic.count("all_reduce", "gradients", others * size_of(tensor))
            return plain(tensor, *arguments, **named)

        dist.all_reduce = all_reduce
        try:
            yield
        finally:
            dist.all_reduce = plain

    def formula(self) -> dict[str, float]:
        """Bytes that a rank should send in a step: of values of tables, of ids, of dense gradients."""
        load, kind = self.load, self.tables.split()[0]
        if kind in ("rows", "des"):
            choices = {one: self.operators[one][layout] for one, layout in self.layouts.items()}
        else:
            choices = {one: Choice(kind, layouts["rows"].width) for one, layouts in self.operators.items()}
        values = total_bytes(choices, load, count_ids=False)
        ids = total_bytes(choices, load) - values
        if kind in ("replicated", "tables"):  # here each module's ids travel by themselves
            ids = sum(step_bytes(kind, load, choice.width).ids for choice in choices.values())
        if "thinned" in self.tables:
            share, narrow = 1 - self.mp_drop, [c for c in choices.values() if (c.aggregate or c.width) == 1]
            whole = sum(step_bytes(choice.scheme, load, *choice[1:]).values for choice in narrow)
            values = whole + (values - whole) / 8 * share * (place_bytes(share) + 2 * 2)
        return {"values": values, "ids": ids, "dense": self._dense_bytes()}

    def _dense_bytes(self) -> float:
        others, num_ranks = self.load.num_ranks - 1, self.load.num_ranks
        shapes = [tuple(parameter.shape) for parameter in self.dense_parameters.values()]
        if self.sparse is not None:
            kept = [(self.sparse.keep_of(prod(shape)), prod(shape)) for shape in shapes]
            large, all_large = sum(k for k, n in kept if k < n), sum(n for k, n in kept if k < n)
            whole = 2 * others / num_ranks * 4 * sum(n for k, n in kept if k >= n)
            return whole + (others * large * (place_bytes(large / all_large) + 2) if large else 0)
        numbers = sum(prod(shape) for shape in shapes)
        if self.dense == "powersgd":
            numbers = sum(_powersgd_numbers(shape) for shape in shapes)
        return 2 * others / num_ranks * (2 if self.dense == "bf16" else 4) * numbers


def bf16_hook(state, bucket):  # type: ignore[no-untyped-def]
    """torch's, which DDP refuses on gloo by its name, though gloo adds bfloat16."""
    return default_hooks.bf16_compress_hook(state, bucket)


def _powersgd_numbers(shape: tuple[int, ...]) -> int:
    """P and Q of a matrix where they are at most half of it (`min_compression_rate`), else all of the weight."""
    rows, columns = shape[0], prod(shape[1:])
    rank = min(rows, columns, POWERSGD_RANK)
    small = len(shape) > 1 and (rows + columns) * rank * 2 < rows * columns
    return (rows + columns) * rank if small else rows * columns
