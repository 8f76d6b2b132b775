"""Embedding tables for id columns: one table a column, looked up together and concatenated.

Shapes: B rows of a batch, C id columns, W the sum of the tables' widths.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import Parameter, functional

from gigabatch.models.errors import ModelError, require, require_known
from gigabatch.models.kernels import kernel

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
    [B, W] of what was looked up, and the pool that its memory goes back to."""

    ids: Tensor
    gradient: Tensor
    pool: BufferPool | None = None


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


class EmbeddingTables(nn.Module):
    """One embedding table for each id column; a lookup gives the columns' rows side by side.

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
    ) -> None:
        super().__init__()
        require(
            len(num_ids) == len(widths),
            f"embedding tables: {len(num_ids)} id columns but {len(widths)} widths; give one width for each column.",
        )
        self.columns: tuple[int | None, ...] = tuple(range(len(num_ids)) if columns is None else columns)
        require(
            len(self.columns) == len(num_ids),
            f"embedding tables: {len(num_ids)} tables are of {len(self.columns)} columns; name one for each.",
        )
        self.row_gradients: list[RowGradient] = []
        self.row_sums: list[RowSums | None] | None = None  # by table, in the place of row_gradients; None is frozen
        self.counts_gradients = False  # whether the optimizer asks how many gradients a row has
        self.exchanges_gradients = False  # whether those of other ranks come with the backward pass itself
        self.is_sharded = False  # whether `tables` are the rows of this rank alone
        self.fetched: FetchedRows | None = None  # while rows of other ranks are here
        self.row_optimizer: int | None = None  # the number of the `RowOptimizer` that moves the rows
        self.buffers_of_step = BufferPool()
        self.gradients = gradients
        self.width = sum(widths)  # columns of the output
        self.tables = nn.ParameterList(torch.empty(rows, width) for rows, width in zip(num_ids, widths, strict=True))
        self.reset_parameters()

    @property
    def gradients(self) -> str:
        return self._gradients

    @gradients.setter
    def gradients(self, kind: str) -> None:
        require_known("kind of embedding gradients", [kind], GRADIENTS)
        self._gradients = kind
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Empty `row_gradients` and `row_sums`."""
        for _, gradient, pool in self.row_gradients:
            if pool is not None:
                pool.give(gradient)
        self.row_gradients.clear()
        self.row_sums = None

    @property
    def weights(self) -> list[Parameter]:
        """The tables, in the order of the columns; indexing a ParameterList takes twenty times as long."""
        return list(self.tables.parameters())

    def located(self, ids: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """What a lookup of ids [B, C] reads: rows int32 [B, C], in memory of their own, and the tables [., D_c] whose
        rows they are. These are `weights` and the ids, but for rows that were fetched from other ranks.

        Raises
        ------
        ModelError
            Where the rows lie on several ranks and none were fetched, or the optimizer asks for dense gradients.
        """
        kept = kept_ids(ids)
        if not self.is_sharded:
            return kept, self.weights
        require(self.fetched is not None, "sharded tables: look rows up within `ShardedTables.fetched(ids)`.")
        require(
            self.gradients == "rows" or not self._is_trained(),
            f"sharded tables: {WHOLE_TABLES}",
        )
        return cast(FetchedRows, self.fetched).located(kept)

    def _is_trained(self) -> bool:
        return torch.is_grad_enabled() and any(table.requires_grad for table in self.tables)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights from torch's global generator."""
        for table in self.tables:
            # On the meta device, where only shapes are asked for, there are no numbers to draw.
            for part in () if table.is_meta else table.view(-1).split(INIT_ELEMENTS):
                part.normal_().fmod_(2).mul_(0.01)

    def forward(self, ids: Tensor) -> Tensor:
        """[B, C] int32 or int64 -> [B, W] float32. An id outside its table is an IndexError; on CUDA a
        device assert, or NaN where gradients are `rows`."""
        self.require_ids(ids)
        if not len(self.tables):
            return torch.empty(len(ids), 0, device=ids.device)
        if self.gradients == "rows" or self.is_sharded:
            rows, tables = self.located(ids)
            return cast(Tensor, _RowLookup.apply(*self.gradient_leaf(ids.device), rows, *tables))
        return lookup(kept_ids(ids) if torch.is_grad_enabled() else ids, self.weights)

    def gradient_leaf(self, device: torch.device) -> tuple[Tensor, list[RowGradient]]:
        """A leaf without elements for the graph of one lookup, and the list that its backward pass lays its find in.

        What is in the list goes to `row_gradients` where torch accumulates the leaf's gradient: in `backward`, and not
        in `torch.autograd.grad`, whose caller gets gradients and wants none left behind.
        """
        trained = self._is_trained()
        leaf = torch.empty(0, device=device, requires_grad=trained)
        found, kept = list[RowGradient](), self.row_gradients

        def keep(leaf: Tensor) -> None:
            kept.extend(found)
            found.clear()

        if trained:
            leaf.register_post_accumulate_grad_hook(keep)
        return leaf, found

    def require_ids(self, ids: Tensor) -> None:
        """Raise `ModelError` unless ids are [B, C]."""
        if ids.dim() != 2 or ids.shape[1] != len(self.tables):
            raise ModelError(
                f"embedding tables: ids must be [rows, {len(self.tables)}], one column a table, not {list(ids.shape)}."
            )

    def extra_repr(self) -> str:
        return f"num_tables={len(self.tables)}, width={self.width}, gradients={self.gradients}"


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


def table_ids(model: nn.Module, ids: Tensor) -> dict[EmbeddingTables, Tensor]:
    """The ids [B, its tables] that each of the model's `EmbeddingTables` looks up for a batch's ids [B, C], where each
    table is of one column.

    Raises
    ------
    ModelError
        For a table that is of no single column.
    """
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, EmbeddingTables) and len(module.tables):
            places = [place for place in module.columns if place is not None]
            require(len(places) == len(module.columns), f"{name}: a table of no single column; override `table_ids`.")
            found[module] = ids if places == list(range(ids.shape[1])) else ids[:, places]
    return found
