"""Embedding tables for id columns: one table a column, looked up together and concatenated.

Shapes: B rows of a batch, C id columns, W the sum of the tables' widths.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn import Parameter, functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gigabatch.models.errors import ModelError, require, require_known
from gigabatch.models.inputs import ListInputs
from gigabatch.models.kernels import kernel
from gigabatch.models.layers.pooled import Jagged, PoolingSettings, pooled_plainly, require_lists, root_of_size

GRADIENTS = ("dense", "rows")
INIT_ELEMENTS = 1 << 16  # drawn at a time, so that they are still in the cache when they are folded and scaled

INT32 = torch.iinfo(torch.int32)
WHOLE_TABLES = (
    "an optimizer that takes whole tables cannot move them. Use one that moves rows: lamb, cowclip, or adamw with "
    "rowwise=true."
)
MAX_FREE = 16  # buffers that a pool keeps; a step of a few layers needs about two a layer


def embedding_width(num_ids: int) -> int:
    """Width of the table of a column with `num_ids` ids: min(600, round(1.6 n^0.56)), fastai's `emb_sz_rule`."""
    require(num_ids >= 1, f"an id column needs at least one id, not {num_ids}.")
    return min(600, round(1.6 * num_ids**0.56))


def kept_ids(ids: Tensor) -> Tensor:
    """ids [B, C] as int32 in memory of their own, for what is needed after the batch: a loader fills the memory of a
    batch again, and gradients of rows may be added up over many batches before a step.

    An int64 that int32 does not hold becomes the nearest that it does, which no table has a row for; the cast alone
    would take 2^32 + 3 for row 3."""
    if ids.dtype == torch.int64:
        ids = ids.clamp(INT32.min, INT32.max)
    return ids.to(torch.int32, copy=True, memory_format=torch.contiguous_format)


def require_id_dtype(owner: str, ids: Tensor) -> None:
    """Raise `ModelError` unless ids [B, C] are whole numbers: the cast of `kept_ids` would take 2.7 for row 2."""
    if (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool) and ids.shape[1] > 0:
        raise ModelError(f"{owner}: ids must be whole numbers, found {ids.dtype}. Give ids.long().")


def lookup(ids: Tensor, tables: Sequence[Tensor]) -> Tensor:
    """Row `ids[b, c]` of table c, for all c side by side: [B, C] int32 or int64 -> [B, W] in the tables' dtype.

    The plain-torch reference that faster kernels are tested against.
    """
    return torch.cat([functional.embedding(ids[:, column], table) for column, table in enumerate(tables)], dim=1)


class BufferPool:
    """Uninitialised tensors, in memory that was given back where one is large enough.

    On a CPU a tensor of some ten megabytes comes as new pages each time, and clearing those costs about as much as what
    a step does with them. On other devices torch keeps memory itself, so a pool hands out ordinary tensors there.
    """

    def __init__(self) -> None:
        self._free: list[torch.UntypedStorage] = []

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A contiguous tensor of any content. Whoever takes it may give it back, and must not use it afterwards."""
        if device.type != "cpu":
            return torch.empty(shape, dtype=dtype, device=device)
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        fitting = [storage for storage in self._free if num_bytes <= storage.nbytes() <= 2 * num_bytes]
        if not fitting:
            return torch.empty(shape, dtype=dtype)
        best = min(fitting, key=lambda storage: storage.nbytes())
        self._free = [storage for storage in self._free if storage is not best]
        return torch.empty(0, dtype=dtype).set_(best, 0, shape)  # type: ignore[call-overload]

    def give(self, tensor: Tensor) -> None:
        """Take back the memory of a tensor from `take`, or of a view of one."""
        if tensor.device.type == "cpu":
            self._free = [*self._free[-MAX_FREE + 1 :], tensor.untyped_storage()]

    def __reduce__(self) -> tuple[Any, ...]:
        return BufferPool, ()  # copied, or saved with its module, a pool is empty


class RowGradient(NamedTuple):
    """What a backward pass leaves for the rows: ids [B, C] int32 as `located` gives them, the gradient
    [B, W] of what was looked up, and the pool that its memory goes back to.

    table: of elements of lists, ids [T, 1] and gradient [T, D] of that table alone; None for all id columns.
    places, scales: where they are, gradient [B, D] is that of the pooled lists, and the gradient of element t is
    scales[t] gradient[places[t]], int32 and float32 [T]; scales None for 1. `whole` writes it out."""

    ids: Tensor
    gradient: Tensor
    pool: BufferPool | None = None
    table: int | None = None
    places: Tensor | None = None
    scales: Tensor | None = None

    def whole(self) -> "RowGradient":
        """The same with a gradient of its own for each element."""
        if self.places is None:
            return self
        gradient = self.gradient.index_select(0, self.places)
        if self.scales is not None:
            gradient = (gradient * self.scales[:, None]).to(gradient.dtype)
        return RowGradient(self.ids, gradient, None, self.table)


class RowSums(NamedTuple):
    """What ranks leave for the rows of one table instead: rows [n] int32 of the part of the table that is here, each
    with a sum of gradients [n, D] float32 and, where the optimizer asks, of how many [n] int32. A row may be there
    once for each rank, in the order of ranks."""

    rows: Tensor
    gradient: Tensor
    counts: Tensor | None = None


class FetchedRows(Protocol):
    """Rows that came for a batch from the ranks on which they lie (`models/parallel/sharded.py`)."""

    def located(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """ids int32 [B, C] -> each one's place among the rows that came, int32 [B, C], and these by table [., D]."""
        ...

    def located_elements(self, place: int, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The same of elements of lists, int32 [T], of the module's table `place`: int32 [T], and its rows [., D]."""
        ...


class RowRanks(Protocol):
    """Ranks that hold the rows of a table together (`models/parallel/ranks.py`)."""

    def all_reduce(self, tensor: Tensor, name: str) -> Tensor:
        """The sum over ranks, in place."""
        ...


class EmbeddingTables(nn.Module):
    """One embedding table for each id column; a lookup gives the columns' rows side by side, then pooled lists'.

    Id 0 is the project's padding, yet its row is an ordinary one: it is initialised, looked up and trained. Weights
    start as fastai's `Embedding` does: standard normal, folded into (-2, 2) by fmod, times 0.01.

    Parameters
    ----------
    num_ids : sequence of int
        Rows of each table.
    widths : sequence of int
        Columns of each table.
    columns : sequence of int or None, default None
        Which of the model's id columns each table is of, by its place there: None for a table whose rows are those of
        no single column. Left out: table c is of column c. A warm start carries rows by it (`Model.origins`).
    gradients : {'dense', 'rows'}, default 'dense'
        `dense`: gradients are tensors as large as the tables. `rows`: no gradient is built; the backward pass leaves
        what it is given in `row_gradients`, from where `RowOptimizer` moves the rows. `build_optimizer` sets the one
        that its optimizer takes.
    lists : sequence of ListInputs, default ()
        Columns of lists. One that shares a vocabulary uses that column's table, and both move its rows once; the
        others have tables of their own, whose `widths` follow those of the id columns.
    pooling : {'sum', 'mean', 'root', 'max'}, default 'mean'
        What becomes of the rows of a list; an empty one gives zeros. By weights, a sum is that of w x, a mean this sum
        over the sum of |w|, and `root` over the root of that; `max` takes no weights.
    list_places : sequence of int or None, default None
        Of each list its place among the model's; left out: list l is list l. A warm start carries rows by it.

    Raises
    ------
    ModelError
        For another number of widths or of columns than of tables, or an unknown kind of gradients.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.layers.embeddings import EmbeddingTables
    >>> tables = EmbeddingTables(num_ids=[5, 7], widths=[3, 2])
    >>> tables(torch.tensor([[1, 6], [4, 0]])).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        num_ids: Sequence[int],
        widths: Sequence[int],
        gradients: str = "dense",
        columns: Sequence[int | None] | None = None,
        lists: Sequence[ListInputs] = (),
        pooling: str = "mean",
        list_places: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        sizes = [*num_ids, *(item.num_ids for item in lists if item.shares is None)]
        require(
            len(sizes) == len(widths),
            f"embedding tables: {len(num_ids)} id columns"
            + (f" and {len(sizes) - len(num_ids)} lists with a table of their own" if lists else "")
            + f" but {len(widths)} widths; give one width for each column.",
        )
        PoolingSettings(pooling=pooling)
        if pooling == "max" and any(item.weighted for item in lists):
            raise ModelError(
                "pooling max: weights of lists have no part in a maximum. Take sum or mean, or no weights."
            )
        self.lists, self.pooling, self.num_columns = tuple(lists), pooling, len(num_ids)
        self.list_tables = tables_of_lists(len(num_ids), lists)
        places = self.list_places = tuple(range(len(lists)) if list_places is None else list_places)
        self.table_lists = {
            table: place
            for table, place, item in zip(self.list_tables, places, lists, strict=True)
            if item.shares is None
        }
        self.columns: tuple[int | None, ...] = tuple(range(len(num_ids)) if columns is None else columns)
        require(
            len(self.columns) == len(num_ids),
            f"embedding tables: {len(num_ids)} tables are of {len(self.columns)} columns; name one for each.",
        )
        self.columns += (None,) * len(self.table_lists)
        self.row_gradients: list[RowGradient] = []
        self.row_sums: list[RowSums | None] | None = None  # by table, in the place of row_gradients; None is frozen
        self.counts_gradients = False  # whether the optimizer asks how many gradients a row has
        self.exchanges_gradients = False  # whether those of other ranks come with the backward pass itself
        self.is_sharded = False  # whether `tables` are the rows of this rank alone
        self.fetched: FetchedRows | None = None  # while rows of other ranks are here
        self.row_ranks: RowRanks | None = None  # on which the rows lie, where these are a part of them
        self.row_optimizer: int | None = None  # the number of the `RowOptimizer` that moves the rows
        self.buffers_of_step = BufferPool()
        self.gradients = gradients
        self.column_width = sum(widths[: len(num_ids)])  # of the id columns
        self.width = self.column_width + sum(widths[table] for table in self.list_tables)  # columns of the output
        self.tables = nn.ParameterList(torch.empty(rows, width) for rows, width in zip(sizes, widths, strict=True))
        self.reset_parameters()

    @property
    def gradients(self) -> str:
        return self._gradients

    @gradients.setter
    def gradients(self, kind: str) -> None:
        require_known("kind of embedding gradients", [kind], GRADIENTS)
        self._gradients = kind
        self.forget_gradients()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's, with `forget_gradients`."""
        super().zero_grad(set_to_none)
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Empty `row_gradients` and `row_sums`."""
        for found in self.row_gradients:
            if found.pool is not None:
                found.pool.give(found.gradient)
        self.row_gradients.clear()
        self.row_sums = None
        WAITING.discard(self)

    @property
    def weights(self) -> list[Parameter]:
        """The tables, in the order of the columns; indexing a ParameterList takes twenty times as long."""
        return list(self.tables.parameters())

    def row_spans(self, place: int) -> list[int]:
        """Where the rows of each table begin that lie, one after another, in the one at `place`; and their number."""
        return [0, len(self.tables[place])]

    def located(self, ids: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """What a lookup of ids [B, C] reads: rows int32 [B, C], in memory of their own, and the tables [., D_c] whose
        rows they are. These are `weights` and the ids, but for rows that were fetched from other ranks.

        Raises
        ------
        ModelError
            Where the rows lie on several ranks and none were fetched, or the optimizer asks for dense gradients.
        """
        kept = kept_ids(ids)
        return self._rows_here().located(kept) if self.is_sharded else (kept, self.weights[: self.num_columns])

    def _rows_here(self) -> FetchedRows:
        require(self.fetched is not None, "sharded tables: look rows up within `ShardedTables.fetched(ids)`.")
        require(
            self.gradients == "rows" or not self._is_trained(),
            f"sharded tables: {WHOLE_TABLES}",
        )
        return cast(FetchedRows, self.fetched)

    @property
    def _takes_kernels(self) -> bool:
        """Whether gradients are `rows` and the kernels can read the tables. In a model that was converted (`double`,
        `bfloat16`) they cannot: it is looked up as with dense gradients, and no `RowOptimizer` steps it."""
        return self.gradients == "rows" and self.is_float32

    @property
    def is_float32(self) -> bool:
        """Whether the tables are, as kernels want them."""
        return all(table.dtype == torch.float32 for table in self.weights)

    def _is_trained(self) -> bool:
        return torch.is_grad_enabled() and any(table.requires_grad for table in self.tables)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights from torch's global generator."""
        for table in self.tables:
            # On the meta device, where only shapes are asked for, there are no numbers to draw.
            for part in () if table.is_meta else table.view(-1).split(INIT_ELEMENTS):
                part.normal_().fmod_(2).mul_(0.01)

    def forward(self, ids: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """[B, C] int32 or int64, and a list column each of B lists -> [B, W] float32. An id outside its table is an
        IndexError; on CUDA a device assert, or NaN where gradients are `rows`."""
        parts = [self.of_columns(ids)] if self.num_columns or not self.lists else []
        if self.lists:
            self.require_ids(ids)
            parts += self.of_lists(lists, len(ids))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def of_lists(self, lists: Sequence[Jagged], num_rows: int, places: Sequence[int] | None = None) -> list[Tensor]:
        """The pooled rows of each list column, or of those at `places` among them, [B, D] float32."""
        require_lists(lists, self.lists, num_rows)
        chosen = range(len(lists)) if places is None else places
        return [self._pooled(self.list_tables[place], lists[place]) for place in chosen]

    def list_rows(self, place: int, ids: Tensor) -> Tensor:
        """The rows of list column `place` for ids of any shape [...]: [..., D] float32, each with its gradient."""
        item = _Elements(ids.reshape(-1), torch.arange(ids.numel() + 1, device=ids.device))
        table = self.list_tables[place]
        if torch.compiler.is_compiling():  # of any number of ids; lists of one element each would fix it in a graph
            return functional.embedding(ids, self.weights[table])
        return self._pooled(table, item, "sum").view(*ids.shape, self.weights[table].shape[1])

    def _pooled(self, place: int, item: Jagged, pooling: str | None = None) -> Tensor:
        table: Tensor = self.weights[place]
        pooling = pooling or self.pooling
        if pooling == "root":
            mean = self._pooled(place, item, "mean")
            return mean * root_of_size(item, mean.dtype)
        if torch.compiler.is_compiling():
            return pooled_plainly(item, table, pooling)
        ids, offsets = kept_ids(item.ids), item.offsets.contiguous()
        weights = None if item.weights is None else item.weights.contiguous()
        if weights is not None and weights.dtype not in (torch.float32, table.dtype):
            raise ModelError(f"embedding tables: weights of lists must be torch.float32, found {weights.dtype}.")
        trained = torch.is_grad_enabled() and table.requires_grad
        weighed = torch.is_grad_enabled() and weights is not None and weights.requires_grad  # kernels have none of them
        if self.is_sharded:
            ids, table = self._rows_here().located_elements(place, ids)
        elif not (self._takes_kernels if trained else self.is_float32 and not weighed):
            return pooled_plainly(_Elements(ids, offsets, weights), table, pooling)
        if weighed:
            raise ModelError(
                "embedding tables: weights of lists that ask for a gradient would get none where the optimizer moves "
                "rows. Detach them, or take one of whole tables: lamb or adamw with rowwise=False."
            )
        leaf, found = self.gradient_leaf(ids.device)
        if not trained:
            leaf = leaf.detach()
        else:  # a loader fills the memory of a batch again
            offsets, weights = offsets.clone(), None if weights is None else weights.clone()
        arguments = (self.buffers_of_step, place, ids, offsets, weights, pooling, table)
        return cast(Tensor, _PooledRows.apply(leaf, found, *arguments))

    def of_columns(self, ids: Tensor) -> Tensor:
        """The rows of the id columns side by side, as `forward`."""
        self.require_ids(ids)
        if not self.num_columns:
            return torch.empty(len(ids), 0, device=ids.device)
        if self._takes_kernels or self.is_sharded:
            rows, tables = self.located(ids)
            return cast(Tensor, _RowLookup.apply(*self.gradient_leaf(ids.device), rows, *tables))
        return lookup(kept_ids(ids) if torch.is_grad_enabled() else ids, self.weights[: self.num_columns])

    def gradient_leaf(self, device: torch.device) -> tuple[Tensor, list[RowGradient]]:
        """A leaf without elements for the graph of one lookup, and the list that its backward pass lays its find in.

        What is in the list goes to `row_gradients` where torch accumulates the leaf's gradient: in `backward`, and not
        in `torch.autograd.grad`, whose caller gets gradients and wants none left behind.

        Raises
        ------
        ModelError
            Within `DistributedDataParallel`, which does not sum gradients of rows: ranks would part.
        """
        trained = self._is_trained()
        require(
            not trained or self.exchanges_gradients or DistributedDataParallel._active_ddp_module is None,
            "embedding tables: DistributedDataParallel does not sum the gradients of rows that the optimizer of this "
            "model takes, so each rank would move its tables by its own rows. Take one of whole tables: lamb or adamw "
            "with rowwise=False.",
        )
        leaf = torch.empty(0, device=device, requires_grad=trained)
        found, kept = list[RowGradient](), self.row_gradients

        def keep(leaf: Tensor) -> None:
            kept.extend(found)
            found.clear()
            WAITING.add(self)

        if trained:
            leaf.register_post_accumulate_grad_hook(keep)
        return leaf, found

    def require_ids(self, ids: Tensor) -> None:
        """Raise `ModelError` unless ids are [B, C] whole numbers."""
        if ids.dim() != 2 or ids.shape[1] != self.num_columns:
            raise ModelError(
                f"embedding tables: ids must be [rows, {self.num_columns}], one column a table, not {list(ids.shape)}."
            )
        require_id_dtype("embedding tables", ids)

    def extra_repr(self) -> str:
        return f"num_tables={len(self.tables)}, width={self.width}, gradients={self.gradients}"


WAITING: WeakSet[EmbeddingTables] = WeakSet()  # with gradients of rows that no step has taken yet


def _refuse_whole_tables(optimizer: Optimizer, *_: Any) -> None:
    """Raise `ModelError` before a step of an optimizer of whole tables whose gradients wait to be taken by rows: it
    finds none, so that they would stay as they are, and what waits would fill the memory."""
    if not WAITING:
        return
    whole = [group for group in optimizer.param_groups if not group.get("rowwise")]
    given = {id(parameter) for group in whole for parameter in group["params"] if parameter.requires_grad}
    require(
        not any(id(table) in given for module in WAITING if module.row_gradients for table in module.weights),
        f"{type(optimizer).__name__}: it is given embedding tables whose gradients are kept by rows, as an optimizer "
        "that was built before asked, and would not move them. Build one by build_optimizer (adamw: whole tables), or "
        "set `gradients = 'dense'` of the model's EmbeddingTables; beside a RowOptimizer leave the tables out.",
    )


register_optimizer_step_pre_hook(_refuse_whole_tables)


class _RowLookup(torch.autograd.Function):
    """The kernel `lookup`, whose backward pass keeps (ids, gradient [B, W]) instead of building gradients of tables."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, found: list[RowGradient], ids: Tensor, *tables: Tensor) -> Tensor:
        ctx.leaf_like, ctx.found, ctx.ids, ctx.num_tables = leaf.detach(), found, ids, len(tables)
        out = torch.empty(len(ids), sum(table.shape[1] for table in tables), device=ids.device)
        kernel("lookup", ids.device).lookup(ctx.ids, tables, out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if gradient.stride(1) != 1:  # `contiguous` leaves the stride of a single number that was expanded
            gradient = torch.empty(gradient.shape, dtype=gradient.dtype, device=gradient.device).copy_(gradient)
        ctx.found[:] = [RowGradient(ctx.ids, gradient.contiguous())]
        return (ctx.leaf_like, *(None,) * (2 + ctx.num_tables))


class _PooledRows(torch.autograd.Function):
    """The kernel `pooled_lookup`, whose backward pass keeps (ids [T, 1], gradient) as `_RowLookup` does: that of the
    pooled lists [B, D] and whose share of it each element takes, or for maxima one for each element [T, D]."""

    @staticmethod
    def forward(
        ctx: Any,
        leaf: Tensor,
        found: list[RowGradient],
        pool: BufferPool,
        place: int,
        ids: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        pooling: str,
        table: Tensor,
    ) -> Tensor:
        module = kernel("pooled_lookup", ids.device)
        out = torch.empty(len(offsets) - 1, table.shape[1], device=ids.device)
        chosen = torch.empty(out.shape, dtype=torch.int32, device=ids.device) if pooling == "max" else None
        module.pooled_lookup(ids, offsets, weights, table, pooling, out, chosen)
        ctx.leaf_like, ctx.found, ctx.module, ctx.pool, ctx.place = leaf.detach(), found, module, pool, place
        ctx.lists = ids, offsets, weights, pooling, chosen
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ids, offsets, weights, pooling, chosen = ctx.lists
        gradient = gradient.contiguous()
        if gradient.stride(1) != 1:  # `contiguous` leaves the stride of a single number that was expanded
            gradient = torch.empty(gradient.shape, dtype=gradient.dtype, device=gradient.device).copy_(gradient)
        if pooling == "max":
            spread = ctx.pool.take((len(ids), gradient.shape[1]), gradient.dtype, ids.device)
            ctx.module.spread_gradient(gradient, offsets, weights, pooling, chosen, spread)
            ctx.found[:] = [RowGradient(ids[:, None], spread, ctx.pool, ctx.place)]
        else:
            places, scales = torch.empty_like(ids), weights
            if pooling == "mean":
                scales = torch.empty(len(ids), device=ids.device)
            ctx.module.element_scales(offsets, weights, pooling, places, scales if pooling == "mean" else None)
            ctx.found[:] = [RowGradient(ids[:, None], gradient, None, ctx.place, places, scales)]
        return (ctx.leaf_like, *(None,) * 8)


class _Elements(NamedTuple):
    ids: Tensor
    offsets: Tensor
    weights: Tensor | None = None


def tables_of_lists(num_columns: int, lists: Sequence[ListInputs]) -> tuple[int, ...]:
    """The table of each list, those of lists behind those of `num_columns` id columns."""
    found: list[int] = []
    own = num_columns
    for item in lists:
        if item.shares is None:
            found.append(own)
            own += 1
        else:
            found.append(item.shares if item.shares < num_columns else found[item.shares - num_columns])
    return tuple(found)


def table_ids(model: nn.Module, ids: Tensor) -> dict[EmbeddingTables, Tensor]:
    """The ids [B, its columns] that each of the model's `EmbeddingTables` looks up for a batch's ids [B, C], where each
    table of them is of one column; elements of lists are not among them.

    Raises
    ------
    ModelError
        For a table that is of no single column.
    """
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, EmbeddingTables) and len(module.tables):
            places = [place for place in module.columns[: module.num_columns] if place is not None]
            require(len(places) == module.num_columns, f"{name}: a table of no single column; override `table_ids`.")
            found[module] = ids if places == list(range(ids.shape[1])) else ids[:, places]
    return found
