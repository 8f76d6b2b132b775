"""Tables spread over ranks by id (row i on rank i mod N), with operators that send sums or rows.

Distributed Equivalent Substitution (Rong et al., arXiv 1909.04823): an operator f(sum_k g_k(rows of rank k)) is
computed where its rows are. Each rank learns which of its ids all rows of the batch hold, computes g_k for them,
the partial results are reduce-scattered to the ranks of the rows, f and the rest of the network work there on own rows,
and on the way back the gradient of the sums is all-gathered. Weights and moments never move.

    linear   g = sum of weights                                  O numbers a row (outputs)
    pairs    g = (sum of vectors s, sum of their squares q)      d + 1, or 2 d with several outputs: (|s|^2 - q) / 2
    dense    g = the columns' part of the first dense layer      H, its width
    fields   g = vectors at their columns' places                C d

The layout `rows` fetches distinct rows and returns their summed gradients, as a parameter server does. `costs.py` says
which needs fewer bytes. Gradients of N ranks are summed, not averaged: the loss of a rank is divided by all ranks'
rows. One host read a step and kind of exchange tells how many ids travel, as an uneven all-to-all needs.

Shapes: b rows of a rank's batch, B = N max(b) of all ranks, C id columns, n ids that a rank owns in a batch, d width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from gigabatch.models.click.deepfm import DeepFM
from gigabatch.models.click.dlrm import DLRM
from gigabatch.models.click.fm import FactorizationMachine, PairTerms
from gigabatch.models.click.lr import LogisticRegression
from gigabatch.models.errors import ModelError, require, require_known
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.layers.fields import FieldEmbeddings, LinearTerms
from gigabatch.models.layers.pooled import Jagged
from gigabatch.models.model import Model
from gigabatch.models.parallel.costs import Choice, Load, cheapest, count_bytes, step_bytes, total_bytes
from gigabatch.models.parallel.exchange import Exchange
from gigabatch.models.parallel.ranks import Ranks

COUNT_TYPES = {1: torch.uint8, 2: torch.int16}
MAX_COLUMNS = torch.iinfo(torch.int16).max


class RowsOfRank(EmbeddingTables):
    """The rows that a rank owns of tables of one width, one after another: id i of each on rank i mod N, at i // N.

    One table to its optimizer, which moves its rows alone. An optimizer that takes a table as one layer would see a
    part of it, so dense gradients are refused once `build_optimizer` asks for them.
    """

    def __init__(self, tables: EmbeddingTables, ranks: Ranks) -> None:
        widths = {table.shape[1] for table in tables.weights}
        require(len(widths) == 1, f"tables that are spread over ranks must be of one width, not {sorted(widths)}.")
        moves = {table.requires_grad for table in tables.weights}
        require(len(moves) == 1, "tables that are spread over ranks are one to the optimizer: freeze all or none.")
        self.num_ids = [len(table) for table in tables.weights]
        self.starts = shard_starts(self.num_ids, ranks.num_ranks)  # int64 [N, C + 1]
        with torch.device("meta"):  # where no number is drawn
            super().__init__([1], [1], gradients="rows", columns=[None])
        self.depth, self.ranks, self.exchanges_gradients = widths.pop(), ranks, True
        self.sums_come = False  # whether a row's gradients come summed, as to `PulledRows`
        self.width, self.row_ranks = self.depth, ranks
        self.tables = nn.ParameterList([nn.Parameter(self.own(tables.weights), requires_grad=moves.pop())])

    @property
    def gradients(self) -> str:
        return self._gradients

    @gradients.setter
    def gradients(self, kind: str) -> None:
        require(
            kind == "rows",
            "tables that are spread over ranks are moved row by row: build the optimizer with rowwise=True.",
        )
        EmbeddingTables.gradients.fset(self, kind)  # type: ignore[attr-defined]

    @property
    def counts_gradients(self) -> bool:
        """Whether the optimizer asks how many gradients a row has."""
        return self._counts_gradients

    @counts_gradients.setter
    def counts_gradients(self, counts: bool) -> None:
        require(
            not (counts and self.sums_come),
            "cowclip asks how often a row came, which the layout `rows` does not tell: give `substitute` other layouts "
            "or take another optimizer.",
        )
        self._counts_gradients = counts

    def row_spans(self, place: int) -> list[int]:
        """As of `EmbeddingTables`: those of the columns."""
        spans: list[int] = self.starts[self.ranks.rank].tolist()
        return spans

    @torch.no_grad()
    def own(self, tables: Sequence[Tensor]) -> Tensor:
        """This rank's rows [V, x] of whole tables [V_c, x], or of what lies beside their rows, such as moments."""
        return torch.cat([table.detach()[self.ranks.rank :: self.ranks.num_ranks] for table in tables]).contiguous()

    @torch.no_grad()
    def whole(self, rows: Tensor) -> list[Tensor]:
        """Whole tables [V_c, x] of all ranks' rows [V, x]; every rank must call it."""
        parts = self.ranks.all_gather_rows(rows.detach().contiguous(), "tables")
        starts, num_ranks = self.starts.tolist(), self.ranks.num_ranks
        tables = [rows.new_empty(number, *rows.shape[1:]) for number in self.num_ids]
        for rank, part in enumerate(parts):
            for column, table in enumerate(tables):
                table[rank::num_ranks] = part[starts[rank][column] : starts[rank][column + 1]]
        return tables


def shard_starts(num_ids: Sequence[int], num_ranks: int) -> Tensor:
    """Where each column's rows begin among those of each rank, and their number at the end: int64 [N, C + 1]."""
    counts = [[len(range(rank, number, num_ranks)) for number in num_ids] for rank in range(num_ranks)]
    return torch.tensor([[sum(own[:column]) for column in range(len(own) + 1)] for own in counts])


class Route(NamedTuple):
    """What a rank owns of the ids of all ranks' batches.

    rows int32 [n, 1]: places among the rank's rows. samples int64 [n]: rank * largest + place in that rank's batch.
    columns int64 [n]. own: rows of this rank's batch. largest: rows of the largest batch.
    """

    rows: Tensor
    samples: Tensor
    columns: Tensor
    own: int
    largest: int


class Fetch(NamedTuple):
    """What a rank asks others for, each row once.

    rows int32 [n, 1]: places among the rank's own rows that others ask for, in order of ranks. inverse int64 [b C]:
    which of the rows that come each id is. send, receive: how many rows go to and come from each rank.
    """

    rows: Tensor
    inverse: Tensor
    send: list[int]
    receive: list[int]


class Router:
    """Tells owners which rows a batch needs, once a forward pass and kind of layout, whatever operators ask."""

    def __init__(self, num_ids: Sequence[int], ranks: Ranks) -> None:
        require(
            len(num_ids) <= MAX_COLUMNS, f"{len(num_ids)} id columns are more than the {MAX_COLUMNS} that DES sends."
        )
        self.ranks, self.num_ids = ranks, list(num_ids)
        self.starts = shard_starts(num_ids, ranks.num_ranks)
        self._sizes = torch.tensor(self.num_ids)
        self._kept: dict[str, Any] = {}

    def forget(self, *_: Any) -> None:
        """The next pass is one of other ids."""
        self._kept.clear()

    def route(self, ids: Tensor) -> Route:
        """All ids [b, C] to their owners, with the rows of the batch that hold them."""
        return cast(Route, self._once("route", self._route, ids))

    def fetch(self, ids: Tensor) -> Fetch:
        """Distinct ids of [b, C] to their owners."""
        return cast(Fetch, self._once("fetch", self._fetch, ids))

    def _once(self, kind: str, make: Callable[[Tensor], Any], ids: Tensor) -> Any:
        kept = self._kept.get(kind)
        if kept is None or kept[0] is not ids:
            kept = self._kept[kind] = (ids, make(ids))
        return kept[1]

    def _owners(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Owner [b, C] of each id, N of one outside its table, and its place among the owner's rows."""
        num_ranks = self.ranks.num_ranks
        starts, sizes = self.starts.to(ids.device), self._sizes.to(ids.device)
        ids = ids.long()
        inside = (ids >= 0) & (ids < sizes)
        owners = ids % num_ranks
        rows = starts[owners, torch.arange(ids.shape[1], device=ids.device)] + ids // num_ranks
        return torch.where(inside, owners, num_ranks), rows.int()

    def _sizes_of(self, counts: Tensor, ids: Tensor) -> list[int]:
        """Numbers for each owner [N + 1] on the host; ids of no owner are an error."""
        *send, outside = counts.tolist()
        if outside:
            low, high = ids.amin(0).tolist(), ids.amax(0).tolist()
            wrong = [
                f"column {column} holds ids from {low[column]} to {high[column]}, its table has {size} rows"
                for column, size in enumerate(self.num_ids)
                if low[column] < 0 or high[column] >= size
            ]
            raise IndexError(f"embedding tables: {'; '.join(wrong)}.")
        return send

    def _route(self, ids: Tensor) -> Route:
        ranks, device = self.ranks, ids.device
        num_ranks, num_rows = ranks.num_ranks, len(ids)
        owners, rows = self._owners(ids)
        flat = owners.flatten()
        send = self._sizes_of(torch.bincount(flat, minlength=num_ranks + 1), ids)
        sent_rows = rows.flatten()[flat.argsort(stable=True)]
        of_row = torch.zeros(num_ranks, num_rows, dtype=torch.int64, device=device)
        of_row.scatter_add_(0, owners.t(), torch.ones_like(owners.t()))
        each = [1] * num_ranks
        told = torch.tensor([[count, num_rows] for count in send], dtype=torch.int32, device=device)
        found = ranks.all_to_all(told, each, each, "counts").tolist()
        receive, batches = [count for count, _ in found], [number for _, number in found]
        wide = count_bytes(ids.shape[1])
        pieces = [
            torch.cat([as_bytes(part), as_bytes(counts.to(COUNT_TYPES[wide]))])
            for part, counts in zip(sent_rows.split(send), of_row, strict=True)
        ]
        sizes = [4 * count + wide * number for count, number in zip(receive, batches, strict=True)]
        came = ranks.all_to_all(torch.cat(pieces), [len(piece) for piece in pieces], sizes, "ids").split(sizes)
        own_rows = torch.cat([from_bytes(part[: 4 * n], torch.int32) for part, n in zip(came, receive, strict=True)])
        largest = max(batches)
        places = [torch.arange(number, device=device) + rank * largest for rank, number in enumerate(batches)]
        counts = [from_bytes(part[4 * n :], COUNT_TYPES[wide]) for part, n in zip(came, receive, strict=True)]
        samples = torch.repeat_interleave(torch.cat(places), torch.cat(counts).long(), output_size=len(own_rows))
        ends = self.starts[ranks.rank, 1:].to(device)
        columns = torch.searchsorted(ends, own_rows.long(), right=True)
        return Route(own_rows[:, None], samples, columns, num_rows, largest)

    def _fetch(self, ids: Tensor) -> Fetch:
        ranks, device = self.ranks, ids.device
        owners, rows = self._owners(ids)
        keys = (owners.long() << 32) + rows.long()
        distinct, inverse = torch.unique(keys.flatten(), return_inverse=True)
        counts = torch.bincount(distinct >> 32, minlength=ranks.num_ranks + 1)
        asked = self._sizes_of(counts, ids)
        told = ranks.all_to_all_counts(asked, device)
        wanted = (distinct & 0xFFFFFFFF).int()
        return Fetch(ranks.all_to_all(wanted, asked, told, "ids")[:, None], inverse, told, asked)


def as_bytes(tensor: Tensor) -> Tensor:
    """The elements' memory, uint8."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def from_bytes(part: Tensor, dtype: torch.dtype) -> Tensor:
    """What `as_bytes` was given; a copy, since a part of a message need not be aligned."""
    return part.clone().view(dtype)


# Partial results of an operator: vectors [n, d] of the ids that a rank owns -> [B, a]. The sum over ranks is whole.


def sum_of_vectors(vectors: Tensor, route: Route, num_rows: int, _: int) -> Tensor:
    """[B, d]: s of `pairs`, and what `linear` adds."""
    return vectors.new_zeros(num_rows, vectors.shape[1]).index_add(0, route.samples, vectors)


def sum_of_squares(vectors: Tensor, route: Route, num_rows: int, _: int) -> Tensor:
    """[B, d]: the sum of squares of each coordinate."""
    return sum_of_vectors(vectors.square(), route, num_rows, _)


def sum_of_norms(vectors: Tensor, route: Route, num_rows: int, _: int) -> Tensor:
    """[B, 1]: the sum of squares of all coordinates."""
    return sum_of_vectors(vectors.square().sum(1, keepdim=True), route, num_rows, _)


def at_columns(vectors: Tensor, route: Route, num_rows: int, num_columns: int) -> Tensor:
    """[B, C d]: each vector at its column's place, zeros elsewhere."""
    places = route.samples * num_columns + route.columns
    filled = vectors.new_zeros(num_rows * num_columns, vectors.shape[1]).index_add(0, places, vectors)
    return filled.view(num_rows, num_columns * vectors.shape[1])


Part = Callable[[Tensor, Route, int, int], Tensor]


class Sums(nn.Module):
    """The sums over ids that a group of operators needs, side by side: ids [b, C] -> [b, a], in one reduce-scatter."""

    def __init__(self, rows: RowsOfRank, router: Router, exchange: Exchange, parts: Sequence[Part], name: str) -> None:
        super().__init__()
        self.rows, self.router, self.exchange = rows, router, exchange
        self.parts, self.name = list(parts), name

    def forward(self, ids: Tensor) -> Tensor:
        """[b, C] -> [b, a] float32."""
        self.rows_of(ids)
        route = self.router.route(ids)
        vectors = self.rows(route.rows)
        num_rows = route.largest * self.router.ranks.num_ranks
        partial = torch.cat([part(vectors, route, num_rows, ids.shape[1]) for part in self.parts], dim=1)
        return self.exchange.reduce_scatter(partial, self.name)[: route.own]

    def rows_of(self, ids: Tensor) -> None:
        """Raise `ModelError` unless ids are [b, C]."""
        columns = len(self.router.num_ids)
        require(ids.dim() == 2 and ids.shape[1] == columns, f"ids must be [rows, {columns}], not {list(ids.shape)}.")


class PulledRows(nn.Module):
    """Rows of ids side by side, as `EmbeddingTables`: ids [b, C] -> [b, C d]; distinct rows come from their owners."""

    def __init__(self, rows: RowsOfRank, router: Router, exchange: Exchange, name: str) -> None:
        super().__init__()
        self.rows, self.router, self.exchange, self.name = rows, router, exchange, name
        rows.sums_come = True

    @property
    def tables(self) -> nn.ParameterList:
        """As of `EmbeddingTables`: what there is of tables here."""
        return self.rows.tables

    def forward(self, ids: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """[b, C] -> [b, C d] float32."""
        require(not lists, "rows of tables that are spread over ranks take no lists.")
        fetch = self.router.fetch(ids)
        came = self.exchange.all_to_all(self.rows(fetch.rows), fetch.send, fetch.receive, self.name)
        return came.index_select(0, fetch.inverse).view(len(ids), ids.shape[1] * came.shape[1])


class SummedLinearTerms(LinearTerms):
    """Linear terms whose sum over ids comes from `Sums`."""

    def __init__(self, terms: LinearTerms, sums: Sums) -> None:
        nn.Module.__init__(self)
        self.num_outputs = terms.num_outputs
        self.float_norm, self.float_weights, self.bias = terms.float_norm, terms.float_weights, terms.bias
        self.numeric = terms.numeric
        self.tables, self.sums = sums.rows, sums

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = (), given: Tensor | None = None) -> Tensor:
        """As `LinearTerms.forward`."""
        require(not lists, "sums of tables that are spread over ranks take no lists.")
        terms = self.bias + self.sums(ids)
        return terms if self.float_weights is None else terms + self.of_floats(floats, given)


class SummedFields(FieldEmbeddings):
    """Stands where `FieldEmbeddings` stood: the sums that `pairs` and the first layer need, instead of vectors.

    What comes out is [b, S d + H + F d]: sums, the ids' part of the first layer (H is 0 without), vectors of floats.
    """

    def __init__(self, fields: FieldEmbeddings, sums: Sums) -> None:
        nn.Module.__init__(self)
        self.dim, self.num_fields, self.sums = fields.dim, fields.num_fields, sums
        self.float_norm, self.float_vectors = fields.float_norm, fields.float_vectors
        self.numeric = fields.numeric

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = (), given: Tensor | None = None) -> Tensor:
        """As of `FieldEmbeddings` -> as the class says."""
        require(not lists, "sums of tables that are spread over ranks take no lists.")
        sums = self.sums(ids)
        if self.float_vectors is None:
            return sums
        return torch.cat([sums, self.of_floats(floats, given).flatten(1)], dim=1)


class SummedPairTerms(nn.Module):
    """`PairTerms` of sums over ids and vectors of floats: (|s|^2 - q) / 2 with the floats' parts added to s and q."""

    def __init__(self, pairs: PairTerms, dim: int, hidden: int) -> None:
        super().__init__()
        self.weights, self.dim, self.hidden = pairs.weights, dim, hidden
        self.num_squares = 1 if pairs.weights is None else dim

    def forward(self, seen: Tensor) -> Tensor:
        """What `SummedFields` gives -> [b, O] float32."""
        with torch.autocast(seen.device.type, enabled=False):
            sizes = [self.dim, self.num_squares, self.hidden]
            total, squares, _, floats = seen.float().split([*sizes, seen.shape[1] - sum(sizes)], dim=1)
            vectors = floats.unflatten(1, (-1, self.dim)) if floats.shape[1] else None
            if vectors is not None:
                total = total + vectors.sum(dim=1)
                own = vectors.square().sum(dim=1)
                squares = squares + (own.sum(dim=1, keepdim=True) if self.weights is None else own)
            if self.weights is None:
                return (total.square().sum(dim=1, keepdim=True) - squares) / 2
            return (total.square() - squares) / 2 @ self.weights.t()


class SummedLinear(nn.Module):
    """The first layer after embedded fields: the ids' part has come, the floats' part and the bias are added."""

    def __init__(self, linear: nn.Linear, num_sums: int, num_ids: int) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.num_sums, self.num_ids = num_sums, num_ids  # before the layer's part in a row; inputs that are of ids

    def of_ids(self, vectors: Tensor, route: Route, num_rows: int, num_columns: int) -> Tensor:
        """The partial result [B, H] of the ids that this rank owns."""
        return at_columns(vectors, route, num_rows, num_columns) @ self.weight[:, : self.num_ids].t()

    def forward(self, seen: Tensor) -> Tensor:
        """What `SummedFields` gives -> [b, H]."""
        hidden = self.weight.shape[0]
        out = seen[:, self.num_sums : self.num_sums + hidden]
        floats = seen[:, self.num_sums + hidden :]
        if floats.shape[1]:
            out = out + floats @ self.weight[:, self.num_ids :].t()
        return out if self.bias is None else out + self.bias


class Layout:
    """How a model's tables are spread over ranks; `substitute` makes it.

    chosen: layout by operator. load: what was measured. num_bytes: what a rank is expected to send in a step for
    tables. model: with its modules replaced.
    """

    def __init__(self, model: Model, ranks: Ranks, load: Load, chosen: dict[str, str], num_bytes: float) -> None:
        self.model, self.ranks, self.load, self.chosen, self.num_bytes = model, ranks, load, chosen, num_bytes
        self.operators = operators_of(model)
        self.homes: dict[str, RowsOfRank] = {}  # by the name of the tables' module before
        self.tables: dict[str, EmbeddingTables] = {}  # that module, by the same name
        self._before: list[tuple[nn.Module, str, nn.Module]] = []  # holder, name and module of what was replaced
        self._hook: Any = None

    def put(self, holder: nn.Module, name: str, module: nn.Module) -> None:
        """Replace a module, and remember it."""
        self._before.append((holder, name, cast(nn.Module, getattr(holder, name))))
        setattr(holder, name, module)

    def spread(self, home: str, tables: EmbeddingTables) -> RowsOfRank:
        """This rank's rows of a module's tables, in their place."""
        self.tables[home], self.homes[home] = tables, RowsOfRank(tables, self.ranks)
        return self.homes[home]

    def watch(self, router: Router) -> None:
        """Let each pass of the model ask for its own ids."""
        self._hook = self.model.register_forward_pre_hook(router.forget)
        model: Any = self.model
        model.capture_obstacle = "its tables are spread over ranks, and the host reads how many ids travel"

    def undo(self) -> None:
        """Put the modules back that were there before, with tables of no content, on the device of their rows."""
        for home, tables in self.tables.items():
            rows = self.homes[home].tables[0]
            for table, number in zip(tables.weights, self.homes[home].num_ids, strict=True):
                table.data = rows.new_empty(number, rows.shape[1])
        for holder, name, module in reversed(self._before):
            setattr(holder, name, module)
        self._hook.remove()
        del self.model.__dict__["capture_obstacle"]

    def report(self) -> str:
        """A line an operator: what was chosen, what a rank sends for its values, and what other layouts would; ids."""
        load, lines, chosen = self.load, [], {}
        for operator, layouts in self.operators.items():
            chosen[operator] = layouts[self.chosen[operator]]
            sent = {name: step_bytes(choice.scheme, load, *choice[1:]).values / 1e3 for name, choice in layouts.items()}
            others = ", ".join(f"{name} {size:,.1f}" for name, size in sent.items() if name != self.chosen[operator])
            picked = self.chosen[operator]
            lines.append(f"{operator}: {picked}, {sent[picked]:,.1f} kB of values a step a rank ({others} kB)")
        ids = total_bytes(chosen, load) - total_bytes(chosen, load, count_ids=False)
        lines.append(
            f"ids: {ids / 1e3:,.1f} kB; {load.distinct:,.1f} of the {load.ids:g} ids a row are distinct in "
            f"{load.rows:,} rows"
        )
        return "\n".join(lines)

    def state_dict(self) -> dict[str, Tensor]:
        """The model's state as if its tables were whole; every rank must call it. Any number of ranks can load it."""
        own = {id(rows.tables[0]) for rows in self.homes.values()}
        state = self.model.state_dict(keep_vars=True)
        found = {name: value.detach() for name, value in state.items() if id(value) not in own}
        for home, rows in self.homes.items():
            for column, table in enumerate(rows.whole(rows.tables[0])):
                found[f"{home}.tables.{column}"] = table
        return found

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """What `state_dict` gave, on any number of ranks, or that of the model before it was substituted."""
        left = dict(state)
        for home, rows in self.homes.items():
            names = [f"{home}.tables.{column}" for column in range(len(rows.num_ids))]
            if missing := [name for name in names if name not in left]:
                raise ModelError(f"a model's state lacks {', '.join(missing)}.")
            rows.tables[0].copy_(rows.own([left.pop(name) for name in names]))
        own = {id(rows.tables[0]) for rows in self.homes.values()}
        places = {name: value for name, value in self.model.state_dict(keep_vars=True).items() if id(value) not in own}
        if different := sorted(places.keys() ^ left.keys()):
            raise ModelError(f"a model's state does not fit: {', '.join(different)} is there once only.")
        for name, value in places.items():
            value.copy_(left[name])


def operators_of(model: Model) -> dict[str, dict[str, Choice]]:
    """By operator, the layouts that a model's tables may take; `linear` and `fields`.

    Raises
    ------
    ModelError
        For another model than lr, fm, deepfm and dlrm.
    """
    num_columns, outputs = len(model.inputs.num_ids), model.inputs.num_outputs
    if not isinstance(model, (LogisticRegression, FactorizationMachine, DeepFM, DLRM)):
        raise ModelError(
            f"{type(model).__name__}: DES knows the operators of lr, fm, deepfm and dlrm. Shard the tables of others "
            "(train.tables=sharded)."
        )
    require(num_columns > 0, f"{type(model).__name__} has no id column, so there is no table to spread.")
    found: dict[str, dict[str, Choice]] = {}
    if not isinstance(model, DLRM):
        found["linear"] = {"rows": Choice("rows", outputs), "des": Choice("des", outputs, outputs)}
    if isinstance(model, LogisticRegression):
        return found
    dim = model.settings.embedding_dim
    found["fields"] = {"rows": Choice("rows", dim), "fields": Choice("des", dim, num_columns * dim)}
    squares = 1 if outputs == 1 else dim
    if isinstance(model, FactorizationMachine):
        found["fields"]["pairs"] = Choice("des", dim, dim + squares)
    elif isinstance(model, DeepFM):
        found["fields"]["dense"] = Choice("des", dim, dim + squares + cast(nn.Linear, model.deep[0]).out_features)
    return found


def substitute(
    model: Model,
    ranks: Ranks,
    ids: Tensor | Load,
    layouts: Mapping[str, str] | None = None,
    *,
    count_ids: bool = True,
    exchange: Exchange | None = None,
) -> Layout:
    """Spread the tables of lr, fm, deepfm or dlrm over ranks, in place; every rank must call it with equal weights.

    The model's equations stay: modules that look rows up are replaced by modules that give the same sums. Build the
    optimizer afterwards; it moves the rows of this rank alone. The caller sums dense gradients over ranks, and divides
    a loss by the rows of all ranks. CowClip, which counts how often a row came, is refused with the layout `rows`,
    which sends a row's gradients summed.

    Parameters
    ----------
    model : Model
        lr, fm, deepfm or dlrm, on the ranks' device.
    ranks : Ranks
        Who trains together.
    ids : Tensor or Load
        [b, C] of a typical batch of one rank: distinct ids are counted in it, and the mean over ranks decides. Or what
        is known of them, the same on all ranks.
    layouts : mapping of str to str or None, default None
        By operator (`operators_of`), the layout; those left out, or all, by the fewest bytes.
    count_ids : bool, default True
        Whether the bytes of ids decide too.
    exchange : Exchange or None, default None
        How values travel; None for as they are, `dct.ThresholdedExchange` for the large ones alone.

    Returns
    -------
    Layout
        What was chosen, and the model's whole state.

    Raises
    ------
    ModelError
        For another model, an unknown operator or layout.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import FactorizationMachine, ModelInputs
    >>> from gigabatch.models.parallel.des import substitute
    >>> from gigabatch.models.parallel.ranks import Ranks
    >>> model = FactorizationMachine(ModelInputs(num_ids=(5, 7), num_floats=0), FactorizationMachine.Settings())
    >>> ids = torch.tensor([[1, 6], [4, 0], [2, 3]])
    >>> expected = model(ids, torch.zeros(3, 0))
    >>> layout = substitute(model, Ranks(), ids, {"linear": "des", "fields": "pairs"})
    >>> torch.allclose(model(ids, torch.zeros(3, 0)), expected)
    True
    """
    operators = operators_of(model)
    load = ids if isinstance(ids, Load) else measured_load(ranks, ids)
    given = dict(layouts or {})
    require_known("operator", given, operators)
    for name, layout in given.items():
        require_known(f"layout of {name}", [layout], operators[name])
        operators[name] = {layout: operators[name][layout]}
    chosen, num_bytes = cheapest(operators, load, count_ids)
    router, how = Router(model.inputs.num_ids, ranks), exchange or Exchange(ranks)
    found = Layout(model, ranks, load, chosen, num_bytes)
    parts: Any = model
    if "linear" in chosen:
        rows = found.spread("linear.tables", parts.linear.tables)
        if chosen["linear"] == "des":
            sums = Sums(rows, router, how, [sum_of_vectors], "linear")
            found.put(parts, "linear", SummedLinearTerms(parts.linear, sums))
        else:
            found.put(parts.linear, "tables", PulledRows(rows, router, how, "linear"))
    if "fields" in chosen:
        _spread_fields(parts, chosen["fields"], found, router, how)
    found.watch(router)
    return found


def _spread_fields(model: Any, layout: str, found: Layout, router: Router, how: Exchange) -> None:
    holder, home = (model.fields, "fields.tables") if hasattr(model, "fields") else (model, "tables")
    rows = found.spread(home, holder.tables)
    if layout == "rows":
        found.put(holder, "tables", PulledRows(rows, router, how, "fields"))
    elif layout == "fields":
        found.put(holder, "tables", Sums(rows, router, how, [at_columns], "fields"))
    else:
        dim, num_columns = rows.depth, len(rows.num_ids)
        parts: list[Part] = [sum_of_vectors, sum_of_norms if model.pairs.weights is None else sum_of_squares]
        hidden = 0
        if layout == "dense":
            hidden = model.deep[0].weight.shape[0]
            num_sums = dim + (1 if model.pairs.weights is None else dim)
            found.put(model.deep, "0", SummedLinear(model.deep[0], num_sums, num_columns * dim))
            parts.append(model.deep[0].of_ids)
        found.put(model, "fields", SummedFields(model.fields, Sums(rows, router, how, parts, "fields")))
        found.put(model, "pairs", SummedPairTerms(model.pairs, dim, hidden))


def measured_load(ranks: Ranks, ids: Tensor) -> Load:
    """Rows, ids and distinct ids a row, the mean over ranks of their batches [b, C]; every rank must call it."""
    distinct = sum(len(column.unique()) for column in ids.t())
    counts = torch.tensor([len(ids), distinct, 1], dtype=torch.float64, device=ids.device)
    rows, total, num_ranks = ranks.all_reduce(counts, "load").tolist()
    return Load(int(num_ranks), round(rows / num_ranks), ids.shape[1], total / max(rows, 1))
