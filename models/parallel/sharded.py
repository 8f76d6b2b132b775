"""Embedding tables whose rows lie on several ranks, around a model that knows nothing of it.

A table is replicated, or on one rank, or row i of it is on rank i mod N. What a batch looks up is fetched before its
forward pass: distinct ids of all tables travel in one message to the ranks that own them, and their rows come back in
one. The model looks them up in small tables of what came. After the backward pass each rank sums its gradients by row
and sends the sums to the owners, in one message, where the row optimizer moves rows whose moments lie beside them.

A step whose batch has U distinct rows of d numbers that others own sends 4 U bytes of ids, 4 U d of gradients, and, as
an owner, 4 d for each row that another fetches. Replicated tables cost one all-reduce of d + 1 numbers a row.

The elements of list columns are looked up with the ids, each distinct one once.

Shapes: C id columns of all modules of the model, B rows of a batch, T elements of its lists, U distinct (table, id) of
both, N ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gigabatch.models.errors import require, require_known
from gigabatch.models.kernels import kernel
from gigabatch.models.kernels.row_update.sums import summed_elements, summed_rows
from gigabatch.models.layers.embeddings import WHOLE_TABLES, EmbeddingTables, RowSums, kept_ids, table_ids
from gigabatch.models.layers.pooled import Jagged
from gigabatch.models.model import Model
from gigabatch.models.optimizers.row_gradients import gradients_together, joined
from gigabatch.models.optimizers.row_optimizer import Optimizers, parts_of
from gigabatch.models.parallel.placement import Placement, plan_tables, table_uses
from gigabatch.models.parallel.ranks import Ranks

log = logging.getLogger(__name__)
NOT_FETCHED = "sharded tables: ids are looked up that were not fetched. Fetch those of the whole batch."
CHUNK_BYTES = 1 << 26  # of a table on its way to the first rank
SETTINGS = ("replicated", "sharded", "auto")
AUTO_SHARE = 0.5  # of a rank's memory; activations, and the best weights, need the rest


class ShardedTables:
    """Spreads the tables of a model over ranks, in place: its `EmbeddingTables` keep the rows of this rank alone.

    Every method that is called a collective must be called by all ranks, those without rows too.

    Parameters
    ----------
    model : nn.Module
        With the same whole tables on every rank; their gradients are to be `rows`. A model of the shelf tells by
        `Model.table_ids` what it looks up.
    placements : sequence of Placement
        Of each table, in the order of `names`; `plan_tables` makes them.
    ranks : Ranks
        Those that hold the tables.

    Raises
    ------
    ModelError
        For another number of placements than of tables, or a model whose tables cannot be sharded.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import DeepFM, ModelInputs
    >>> from gigabatch.models.optimizers.registry import build_optimizer
    >>> from gigabatch.models.parallel.placement import Placement
    >>> from gigabatch.models.parallel.ranks import Ranks
    >>> from gigabatch.models.parallel.sharded import ShardedTables
    >>> model = DeepFM(ModelInputs(num_ids=(5, 7), num_floats=2), DeepFM.Settings(layers=(8,)))
    >>> tables = ShardedTables(model, [Placement("row")] * 4, Ranks())  # one rank here; under torchrun all of them
    >>> optimizer = build_optimizer(model, "lamb", lr=0.01)
    >>> ids, floats = torch.tensor([[1, 6], [4, 0]]), torch.zeros(2, 2)
    >>> with tables.fetched(ids):
    ...     model(ids, floats).sum().backward()
    ...     tables.exchange_gradients()
    >>> optimizer.step()  # after an all-reduce of the dense gradients
    >>> whole = tables.gather_weights(model.state_dict())
    >>> [list(whole[name].shape) for name in tables.names[:2]]
    [[5, 1], [7, 1]]
    """

    def __init__(self, model: nn.Module, placements: Sequence[Placement], ranks: Ranks) -> None:
        self._attach(model, placements, ranks)
        require(bool(self.tables), "sharded tables: the model has none.")
        self.sizes = [len(table) for table in self.tables]
        self._number()
        lookups(model, torch.zeros(0, self._num_columns, dtype=torch.int32))  # refuses what cannot be sharded
        for module in self.modules:
            module.is_sharded, module.row_ranks = True, ranks
        for place, table in enumerate(self.tables):
            table.data = self.part(place, table.data)

    def of(self, model: nn.Module) -> ShardedTables:
        """The same for a copy of the model, such as its moving average, whose tables are rows of this rank already."""
        other = object.__new__(ShardedTables)
        other._attach(model, self.placements, self.ranks)
        other.sizes = self.sizes
        other._number()
        return other

    def _attach(self, model: nn.Module, placements: Sequence[Placement], ranks: Ranks) -> None:
        self.model, self.ranks, self.placements = model, ranks, tuple(placements)
        found = [module for module in model.modules() if isinstance(module, EmbeddingTables)]
        self.modules = [module for module in found if len(module.tables)]
        self.tables = [table for module in self.modules for table in module.weights]
        names = {parameter: name for name, parameter in model.named_parameters()}
        self.names = [names[table] for table in self.tables]
        self.widths = [table.shape[1] for table in self.tables]
        require(
            len(self.placements) == len(self.tables),
            f"sharded tables: {len(self.placements)} placements for {len(self.tables)} tables "
            f"({', '.join(self.names)}).",
        )
        require(
            all(0 <= placement.rank < ranks.num_ranks for placement in self.placements),
            f"sharded tables: a table is placed on a rank that is none of the {ranks.num_ranks}, from 0 on.",
        )
        ends = [0]
        for module in self.modules:
            ends.append(ends[-1] + len(module.tables))
        self._spans = dict(zip(self.modules, pairwise(ends), strict=True))
        # Of each module its tables of id columns, those of lists alone behind them, and where its columns are in a row
        # of all that are looked up.
        of_ids = [first + place for module, (first, _) in self._spans.items() for place in range(module.num_columns)]
        self._of_ids = torch.tensor(of_ids, dtype=torch.int64)
        stops = list(accumulate((module.num_columns for module in self.modules), initial=0))
        self._columns = dict(zip(self.modules, pairwise(stops), strict=True))
        self._num_columns = 1 + max((c for m in self.modules for c in m.columns if c is not None), default=-1)
        if isinstance(model, Model):
            self._num_columns = len(model.inputs.num_ids)
        self._batch: _Batch | None = None

    def _number(self) -> None:
        """A key for each row of each table: owner, table and row of the owner's part, so that keys in ascending order
        are messages to one rank after the other. Replicated rows have the owner N, which is nobody."""
        count = self.ranks.num_ranks
        device = self.tables[0].device if self.tables else torch.device("cpu")
        kinds = [placement.kind for placement in self.placements]
        owners = [count if placement.kind == "replicated" else placement.rank for placement in self.placements]
        self._size = torch.tensor(self.sizes, dtype=torch.int64, device=device)
        self._of_ids = self._of_ids.to(device)
        self._by_row = torch.tensor([kind == "row" for kind in kinds], dtype=torch.bool, device=device)
        self._owner = torch.tensor(owners, dtype=torch.int64, device=device)
        self._first = self._size.cumsum(0) - self._size
        self._span = sum(self.sizes) + 1
        starts = torch.arange(count + 1, device=device)[:, None] * self._span + self._first
        self._bounds = torch.cat([starts.flatten(), starts.new_full((1,), (count + 1) * self._span)])

    def part(self, place: int, whole: Tensor) -> Tensor:
        """Of a table's rows, or of the state of each, what lies on this rank: a tensor of its own."""
        placement, rank = self.placements[place], self.ranks.rank
        if placement.kind == "row":
            whole = whole[rank :: self.ranks.num_ranks]
        elif placement.kind == "table" and rank != placement.rank:
            whole = whole[:0]
        return whole.clone(memory_format=torch.contiguous_format)

    # A step

    @contextmanager
    def fetched(self, ids: Tensor, lists: Sequence[Jagged] = ()) -> Iterator[None]:
        """Within it the model may be called with rows of ids [B, C] and of the list columns, as often and in whatever
        parts; a collective.

        B may differ between ranks, and be 0. The host reads how many ids are distinct, and how many rows go where,
        since messages are uneven.

        Raises
        ------
        IndexError
            On every rank, where an id on one of them is outside its table.
        """
        require(self._batch is None, "sharded tables: the rows of another batch are here.")
        self._batch = batch = self._fetch(ids, lists)
        try:
            for module in self.modules:
                module.fetched = _Fetched(self, batch, self._spans[module], self._columns[module])
            yield
        finally:
            self._batch = None
            for module in self.modules:
                module.fetched = None

    def _keys(self, ids: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Keys int64 [B, c] of the ids [B, c] of these tables, int64 [c], and which are inside their table, bool."""
        wide = ids.long()
        inside = (wide >= 0) & (wide < self._size[tables])
        wide = torch.where(inside, wide, 0)
        count, by_row = self.ranks.num_ranks, self._by_row[tables]
        owner = torch.where(by_row, wide % count, self._owner[tables])
        row = torch.where(by_row, wide // count, wide)
        return owner * self._span + self._first[tables] + row, inside

    def _of_lists(self, lists: Sequence[Jagged]) -> list[tuple[int, Tensor]]:
        """The table of each list column that a module looks up, and the ids [T, 1] of its elements."""
        return [
            (self._spans[module][0] + table, kept_ids(lists[place].ids[:, None]))
            for module in self.modules
            for table, place in zip(module.list_tables, module.list_places, strict=True)
        ]

    @torch.no_grad()
    def _fetch(self, ids: Tensor, lists: Sequence[Jagged]) -> _Batch:
        count, num_tables, ranks = self.ranks.num_ranks, len(self.tables), self.ranks
        if self._size.device != self.tables[0].device:  # the model was moved
            self._number()
        asked = lookups(self.model, ids)
        together = torch.cat([kept_ids(asked[module]) for module in self.modules], dim=1)
        of_lists = self._of_lists(lists)
        looked_up = [(self._of_ids, together)]
        looked_up += [(self._size.new_tensor([table]), elements) for table, elements in of_lists]
        found = [self._keys(own, of_tables) for of_tables, own in looked_up]
        keys = joined([own.flatten() for own, _ in found])
        distinct, inverse = keys.unique(return_inverse=True)
        starts = torch.searchsorted(distinct, self._bounds)
        sizes = starts.diff().view(count + 1, num_tables)

        # How many rows of each table are asked of each rank, and the first id that is outside its table.
        faults = [keys.new_zeros(2)]
        for (of_tables, own), (_, inside) in zip(looked_up, found, strict=True):
            if inside.numel():
                place = (~inside).flatten().long().argmax()
                table = of_tables[place % own.shape[1]]
                faults.append(torch.stack([(~inside).any() * (table + 1), own.flatten()[place].long()]))
        told_faults = torch.stack(faults)
        fault = told_faults[(told_faults[:, 0] > 0).long().argmax()]
        header = torch.cat([sizes, fault.expand(count + 1, 2)], dim=1)
        told = ranks.all_to_all(header[:count], [1] * count, [1] * count, "counts of rows")
        lines = torch.cat([header, told]).tolist()
        for rank, (*_, column, value) in enumerate(lines[count + 1 :]):
            if column:
                raise IndexError(
                    f"sharded tables: a batch of rank {rank} holds the id {value} of {self.names[column - 1]}, a table "
                    f"of {self.sizes[column - 1]} rows."
                )
        *sent, replicated = (line[:num_tables] for line in lines[: count + 1])
        received = [line[:num_tables] for line in lines[count + 1 :]]

        segment = torch.repeat_interleave(
            torch.arange(sizes.numel(), device=keys.device), sizes.flatten(), output_size=len(distinct)
        )
        rows = (distinct - self._bounds[segment]).int()
        num_sent = sum(map(sum, sent))
        own = ranks.all_to_all(rows[:num_sent], [sum(n) for n in sent], [sum(n) for n in received], "ids")
        pieces = own.split([n for line in received for n in line])
        wanted = [torch.cat(pieces[place::num_tables]) for place in range(num_tables)]
        answers = [
            table.index_select(0, which).split([line[place] for line in received])
            for place, (table, which) in enumerate(zip(self.tables, wanted, strict=True))
        ]
        flat = torch.cat([answers[place][rank].reshape(-1) for rank in range(count) for place in range(num_tables)])
        came = ranks.all_to_all(flat, self._elements(received), self._elements(sent), "rows")
        parts = came.split([n * width for line in sent for n, width in zip(line, self.widths, strict=True)])
        held = rows[num_sent:].split(replicated)
        tables = [
            table.index_select(0, held[place])
            if self.placements[place].kind == "replicated"
            else torch.cat(parts[place::num_tables]).view(-1, width)
            for place, (table, width) in enumerate(zip(self.tables, self.widths, strict=True))
        ]
        before = sizes.cumsum(0) - sizes  # in a table's tensor the rows of lower owners come first
        places = (torch.arange(len(distinct), device=keys.device) + (before.flatten() - starts[:-1])[segment]).int()
        located = places[inverse].split([own.numel() for _, own in looked_up])
        elements = [(table, own[:, 0], at) for (table, own), at in zip(of_lists, located[1:], strict=True)]
        at_columns = located[0].view(together.shape)
        return _Batch(together, at_columns, elements, distinct, places, tables, sent, received, wanted, held)

    def _elements(self, lines: Sequence[Sequence[int]], extra: Sequence[int] | None = None) -> list[int]:
        """Numbers to or from each rank, of rows by rank and table."""
        extra = extra or [0] * len(self.widths)
        return [sum(n * (w + e) for n, w, e in zip(line, self.widths, extra, strict=True)) for line in lines]

    @torch.no_grad()
    def exchange_gradients(self) -> None:
        """Send what the backward passes within `fetched` left for rows to the ranks that own them; a collective.

        To be called within `fetched` after the backward pass, before the optimizer steps. Rows of frozen tables are not
        sent. Gradients of a row are summed on each rank, then in the order of ranks, and those of replicated rows by
        one all-reduce, so that all replicas move alike.
        """
        batch = self._batch
        require(batch is not None, "sharded tables: call exchange_gradients within `fetched`.")
        assert batch is not None
        require(
            all(module.row_sums is None for module in self.modules),
            "sharded tables: gradients were exchanged already and no step has taken them. Exchange those of all pieces "
            "of a batch at once.",
        )
        by_table: dict[int, Tensor] = {}
        counted: dict[int, Tensor] = {}
        update = kernel("row_update", batch.keys.device)
        for module, (first, _) in self._spans.items():
            for places, part in gradients_together(module):
                tables = [first + place for place in places]
                sizes, widths = [len(batch.tables[table]) for table in tables], [self.widths[t] for t in tables]
                if part.places is None:
                    own = summed_rows(update, part.ids, part.gradient, sizes, widths)
                else:
                    elements = (part.ids[:, 0].contiguous(), part.places, part.scales)
                    own = [summed_elements(update, *elements, part.gradient, sizes[0])]
                for table, rows, column, size in zip(tables, own, part.ids.unbind(1), sizes, strict=True):
                    by_table[table] = rows
                    if self._counts(table):
                        counted[table] = torch.bincount(column.long(), minlength=size).int()
            module.forget_gradients()
        summed, counts = [], []
        for place, came in enumerate(batch.tables):  # nothing is left of frozen ones, and where this rank has no row
            summed.append(by_table[place] if place in by_table else torch.zeros_like(came))
            none = came.new_zeros(len(came) if self._counts(place) else 0, dtype=torch.int32)
            counts.append(counted.get(place, none))
        found = self._sharded_sums(batch, summed, counts)
        found |= self._replicated_sums(batch, summed, counts)
        for module, (first, last) in self._spans.items():
            module.row_sums = [found.get(place) for place in range(first, last)]

    def _counts(self, place: int) -> bool:
        """Whether numbers of gradients are counted: CowClip asks, and of replicated rows which were touched at all."""
        module = next(module for module, (first, last) in self._spans.items() if first <= place < last)
        return module.counts_gradients or self.placements[place].kind == "replicated"

    def _sharded_sums(self, batch: _Batch, summed: list[Tensor], counts: list[Tensor]) -> dict[int, RowSums]:
        count, num_tables = self.ranks.num_ranks, len(self.tables)
        moving = [
            place
            for place, table in enumerate(self.tables)
            if table.requires_grad and self.placements[place].kind != "replicated"
        ]
        counted = [int(self._counts(place)) for place in range(num_tables)]
        sent = [[n if place in moving else 0 for place, n in enumerate(line)] for line in batch.sent]
        received = [[n if place in moving else 0 for place, n in enumerate(line)] for line in batch.received]
        pieces, done = [], [0] * num_tables
        for line in sent:
            for place in moving:
                begin, end = done[place], done[place] + line[place]
                pieces.append(summed[place][begin:end].reshape(-1))
                if counted[place]:
                    pieces.append(counts[place][begin:end].view(torch.float32))  # the bits
                done[place] = end
        flat = torch.cat(pieces) if pieces else torch.zeros(0, device=batch.keys.device)
        sizes = (self._elements(sent, counted), self._elements(received, counted))
        came = iter(self.ranks.all_to_all(flat, *sizes, "gradients of rows").split(
            [n * part for line in received for place, n in enumerate(line) if place in moving
             for part in (self.widths[place], *([1] * counted[place]))]
        ))  # fmt: skip
        gradients: dict[int, list[Tensor]] = {place: [] for place in moving}
        numbers: dict[int, list[Tensor]] = {place: [] for place in moving}
        for _ in range(count):
            for place in moving:
                gradients[place].append(next(came).view(-1, self.widths[place]))
                if counted[place]:
                    numbers[place].append(next(came).view(torch.int32))
        return {
            place: RowSums(
                batch.wanted[place],
                torch.cat(gradients[place]),
                torch.cat(numbers[place]) if counted[place] else None,
            )
            for place in moving
        }

    def _replicated_sums(self, batch: _Batch, summed: list[Tensor], counts: list[Tensor]) -> dict[int, RowSums]:
        moving = [
            place
            for place, table in enumerate(self.tables)
            if table.requires_grad and self.placements[place].kind == "replicated"
        ]
        if not moving:
            return {}
        flat = torch.zeros(sum(self.sizes[p] * (self.widths[p] + 1) for p in moving), device=batch.keys.device)
        parts = flat.split([self.sizes[p] * (self.widths[p] + 1) for p in moving])
        dense = {p: part.view(self.sizes[p], self.widths[p] + 1) for p, part in zip(moving, parts, strict=True)}
        for place, rows in dense.items():
            own = torch.cat([summed[place], counts[place][:, None].float()], dim=1)
            rows.index_copy_(0, batch.held[place].long(), own)
        self.ranks.all_reduce(flat, "gradients of replicated tables")
        found = {}
        for place, rows in dense.items():
            if flat.device.type == "cpu":
                touched = rows[:, -1].nonzero()[:, 0]
                rows = rows[touched]
            else:  # whose host would wait; there an id outside its table moves nothing
                touched = torch.where(rows[:, -1] > 0, torch.arange(len(rows), device=flat.device), -1)
            found[place] = RowSums(touched.int(), rows[:, :-1].contiguous(), rows[:, -1].int())
        return found

    # Whole tables

    def gather_weights(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of a state dict of the model, or of a copy of it, the one that it would have with whole tables, on the host
        of the first rank; empty on others; a collective. Tables travel one after the other, in pieces."""
        whole = {name: self._gather(name, tensor) for name, tensor in state.items()}
        return {name: tensor for name, tensor in whole.items() if tensor is not None}

    def own_weights(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of a state dict with whole tables what the model of this rank loads."""
        return {name: self._own(name, tensor) for name, tensor in whole.items()}

    def gather_moments(self, moments: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """As `gather_weights`, of what `read_moments` gives: moments by the parameter's name and their own."""
        return {name: found for name, state in moments.items() if (found := self._gather_state(name, state))}

    def own_moments(self, whole: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Of moments of whole tables those of this rank's rows."""
        return {name: {key: self._own(name, value) for key, value in state.items()} for name, state in whole.items()}

    def whole_names(self, kinds: Mapping[str, Any]) -> dict[str, Any]:
        """What is known by parameters' names, by those of whole tables, which are the same."""
        return dict(kinds)

    def gather_optimizer(self, optimizer: Optimizer | Optimizers) -> dict[str, Any]:
        """The optimizer's state dict as that of one process, on the first rank; empty on others; a collective."""
        found = [
            {
                "state": {place: self._gather_state(names[place], saved["state"][place]) for place in saved["state"]},
                "param_groups": saved["param_groups"],
            }
            for names, saved in self._saved(optimizer, optimizer.state_dict())
        ]
        if not self.ranks.is_first:
            return {}
        return {"optimizers": found} if isinstance(optimizer, Optimizers) else found[0]

    def own_optimizer(self, optimizer: Optimizer | Optimizers, whole: Mapping[str, Any]) -> dict[str, Any]:
        """Of the state dict of one process, or of any number of ranks, what the optimizer of this rank loads."""
        found = [
            {
                "state": {
                    place: {key: self._own(names[place], value) for key, value in state.items()}
                    for place, state in saved["state"].items()
                },
                "param_groups": saved["param_groups"],
            }
            for names, saved in self._saved(optimizer, whole)
        ]
        return {"optimizers": found} if isinstance(optimizer, Optimizers) else found[0]

    def release(self, whole: Mapping[str, Tensor]) -> None:
        """Make the model an ordinary one, with these whole weights, on the tables' device: what a bundle is of."""
        for place, table in enumerate(self.tables):
            table.data = table.new_empty(self.sizes[place], self.widths[place])
        for module in self.modules:
            module.is_sharded, module.row_ranks = False, None
        self.model.load_state_dict(whole)

    def _saved(
        self, optimizer: Optimizer | Optimizers, state: Mapping[str, Any]
    ) -> Iterator[tuple[list[str], Mapping[str, Any]]]:
        """Of each part of the optimizer the names of its parameters, in the order of its state dict, and this."""
        several = isinstance(optimizer, Optimizers)
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        parts = parts_of(optimizer)
        for part, saved in zip(parts, state["optimizers"] if several else [state], strict=True):
            yield [names[parameter] for group in part.param_groups for parameter in group["params"]], saved

    def _gather_state(self, name: str, state: Mapping[str, Any]) -> dict[str, Any]:
        found = {key: self._gather(name, value) for key, value in state.items()}
        return {key: value for key, value in found.items() if value is not None}

    def _own(self, name: str, whole: Any) -> Any:
        """The rows of this rank where it is a table, or the state of one by row."""
        place = self._place_of(name)
        return whole if place is None or not isinstance(whole, Tensor) or not whole.dim() else self.part(place, whole)

    def _place_of(self, name: str) -> int | None:
        return self.names.index(name) if name in self.names else None

    def _gather(self, name: str, own: Any) -> Any:
        """On the first rank the whole of it, on the host; None on others."""
        place, ranks = self._place_of(name), self.ranks
        if place is None or not isinstance(own, Tensor) or not own.dim():
            return on_first(own, ranks)
        if self.placements[place].kind == "replicated":
            return on_first(own, ranks)
        return gather_rows(own, self.sizes[place], self.placements[place], ranks, self.tables[0].device)


def on_first(own: Any, ranks: Ranks) -> Any:
    """What all ranks hold, on the first one, a tensor on its host; None on others."""
    if not ranks.is_first:
        return None
    return own.detach().to("cpu", copy=True) if isinstance(own, Tensor) else own


def gather_rows(own: Tensor, size: int, placement: Placement, ranks: Ranks, device: torch.device) -> Tensor | None:
    """A table of `size` rows, or what lies beside them, of which each rank has a part, whole on the first one's host;
    None on others; a collective. It travels in pieces, from `device`."""
    count = ranks.num_ranks
    if placement.kind == "row":
        held = [len(range(rank, size, count)) for rank in range(count)]
    else:
        held = [size if rank == placement.rank else 0 for rank in range(count)]
    whole = torch.empty(size, *own.shape[1:], dtype=own.dtype) if ranks.is_first else None
    step = max(CHUNK_BYTES // max(own[:1].nbytes, own.element_size()), 1)
    for begin in range(0, max(held), step):
        sizes = [min(max(number - begin, 0), step) for number in held]
        send = [sizes[ranks.rank], *[0] * (count - 1)]
        receive = sizes if ranks.is_first else [0] * count
        mine = own.detach()[begin : begin + sizes[ranks.rank]].to(device)
        parts = ranks.all_to_all(mine, send, receive, "whole tables").split(receive)
        for rank, part in enumerate(parts if whole is not None else ()):
            into = whole[rank::count] if placement.kind == "row" else whole  # type: ignore[index]
            if len(part):
                into[begin : begin + len(part)] = part.cpu()  # type: ignore[index]
    return whole


def shard_tables(
    setting: str,
    model: nn.Module,
    optimizer: Optimizer | Optimizers,
    ranks: Ranks,
    *,
    batch_rows: int,
    memory_bytes: float | None = None,
    counts: Mapping[int, Tensor] | None = None,
    list_lengths: Sequence[float] | None = None,
) -> ShardedTables | None:
    """What `train.tables` asks for: None where each rank keeps whole tables, else these spread over ranks, in place.

    Parameters
    ----------
    setting : str
        `replicated`, `sharded`, or `auto`: sharded where the tables and the optimizer's state of their rows take more
        than `AUTO_SHARE` of a rank's memory.
    model, optimizer
        Whole, with the same weights on every rank, and before the first step.
    ranks : Ranks
        Those that train together.
    batch_rows : int
        Of a rank.
    memory_bytes : float or None, default None
        Of a rank; the least of all ranks, so that all plan alike. None for no bound, and then `auto` is `replicated`.
    counts : mapping of int to Tensor or None, default None
        As of `table_uses`.
    list_lengths : sequence of float or None, default None
        As of `table_uses`.

    Raises
    ------
    ModelError
        For an unknown setting, tables that do not fit, or a model or an optimizer whose tables cannot be sharded.
    """
    require_known("train.tables", [setting], SETTINGS)
    uses = table_uses(model, optimizer, batch_rows, counts, list_lengths)
    whole = sum(use.num_bytes for use in uses)
    if setting == "auto":
        setting = "sharded" if memory_bytes is not None and whole > AUTO_SHARE * memory_bytes else "replicated"
    if setting == "replicated" or ranks.num_ranks == 1 or not uses:
        return None
    require(
        all(module.gradients == "rows" for module in model.modules() if isinstance(module, EmbeddingTables)),
        f"train.tables=sharded: {WHOLE_TABLES}",
    )
    plan = plan_tables(uses, ranks.num_ranks, batch_rows, memory_bytes)
    if ranks.is_first:
        log.info("tables on %d ranks:\n%s", ranks.num_ranks, plan.report())
    return ShardedTables(model, plan.placements, ranks)


@dataclass
class _Batch:
    """What was fetched for a batch.

    ids: int32 [B, C], those asked for of id columns. located: int32 [B, C], of each the place in its table's tensor.
    elements: of each list column its table, the ids [T] asked for and their places. keys: int64 [U]
    ascending, see `_number`. places: int32 [U], as `located`. tables: by table the rows that came [., D]. sent,
    received: numbers of rows asked of and by each rank, by table. wanted: by table the rows of this rank's part that
    were asked for, in the order of ranks. held: by table the replicated rows.
    """

    ids: Tensor
    located: Tensor
    elements: list[tuple[int, Tensor, Tensor]]
    keys: Tensor
    places: Tensor
    tables: list[Tensor]
    sent: list[list[int]]
    received: list[list[int]]
    wanted: list[Tensor]
    held: Sequence[Tensor]


@dataclass
class _Fetched:
    """The rows of one module: which tables are its own, and which of the columns that were looked up together."""

    owner: ShardedTables
    batch: _Batch
    tables: tuple[int, int]
    columns: tuple[int, int]

    def located(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """As `FetchedRows.located`; an id that was not fetched is an IndexError, and -1 on a GPU."""
        batch, columns = self.batch, slice(*self.columns)
        found = self.owner._of_ids[columns]
        first = self.tables[0]
        tables = batch.tables[first : first + len(found)]
        # The batch itself, as nearly always. A GPU's host would wait for what is compared.
        if ids.device.type == "cpu" and torch.equal(ids, batch.ids[:, columns]):
            return batch.located[:, columns].contiguous(), tables
        return self._searched(ids, found), tables

    def located_elements(self, place: int, ids: Tensor) -> tuple[Tensor, Tensor]:
        """As `FetchedRows.located_elements`; of ids that were not fetched as `located`."""
        table = self.tables[0] + place
        for owner, asked, located in self.batch.elements if ids.device.type == "cpu" else ():
            if owner == table and torch.equal(ids, asked):
                return located, self.batch.tables[table]
        found = self._searched(ids[:, None], self.owner._of_ids.new_tensor([table]))
        return found[:, 0].contiguous(), self.batch.tables[table]

    def _searched(self, ids: Tensor, tables: Tensor) -> Tensor:
        batch, on_host = self.batch, ids.device.type == "cpu"
        if not ids.numel():
            return ids
        keys, inside = self.owner._keys(ids, tables)
        known = batch.keys
        if not len(known):
            raise IndexError(NOT_FETCHED)
        at = torch.searchsorted(known, keys).clamp_(max=len(known) - 1)
        found = inside & (known[at] == keys)
        if on_host and not bool(found.all()):
            raise IndexError(NOT_FETCHED)
        return torch.where(found, batch.places[at], -1)


def lookups(model: nn.Module, ids: Tensor) -> dict[EmbeddingTables, Tensor]:
    """What each module of tables looks up: as the model tells, or as its tables' columns do."""
    return model.table_ids(ids) if isinstance(model, Model) else table_ids(model, ids)
