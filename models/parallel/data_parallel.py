"""Data parallel training: each rank works on a part of a batch's rows, and all move their copies of the model alike.

What a step sends, beside the moments of batch norm (`models/layers/batch_norm.py`) and sasrec's longest history:

    loss and counts   one all-gather of a few numbers: each rank's part of the loss, and how many rows of each table it
                      has gradients of. The host reads the counts, since messages of uneven size need them.
    gradients         one all-reduce of the dense gradients laid end to end, or what `gradient_sums.py` has instead
    row gradients     one all-gather of (ids, gradients) of all tables, in which each rank has summed equal ids

Every rank adds up the same numbers in the same order, so all copies stay equal to the bit, and whatever is decided from
losses and gradients (skipped steps, clipping) is decided alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gigabatch.models.errors import ModelError
from gigabatch.models.layers.batch_norm import BatchNorm1d
from gigabatch.models.layers.dropout import Dropout
from gigabatch.models.layers.embeddings import EmbeddingTables, RowGradient
from gigabatch.models.layers.pooled import Jagged
from gigabatch.models.model import Model
from gigabatch.models.optimizers.non_finite import all_finite
from gigabatch.models.optimizers.row_optimizer import RowOptimizer, parts_of
from gigabatch.models.parallel.gradient_sums import AllReduced, GradientSums, dense_parameters
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.parallel.spread_tables import SpreadTables
from gigabatch.models.whole_batch import using_ranks


def part_of(num_rows: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """[start, stop): the rows of a batch that a rank works on; parts differ by at most one row."""
    return num_rows * rank // num_ranks, num_rows * (rank + 1) // num_ranks


class DataParallel:
    """The whole batch of a step whose rows several ranks share.

    Parameters
    ----------
    ranks : Ranks
        Those that train together.
    optimizer : Optimizer or Optimizers
        Of `build_optimizer`; its gradients are summed.
    num_rows : int
        Of a batch, on all ranks together.
    sums : GradientSums or None, default None
        What makes dense gradients their sums over ranks; None for an all-reduce of float32.
    tables : SpreadTables or None, default None
        Where the model's tables are spread over the ranks; None where each has whole ones.
    model : nn.Module or None, default None
        Whose names `sums` knows gradients by; None for their numbers.

    Raises
    ------
    ModelError
        Where a rank would have no row.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.optimizers.registry import build_optimizer
    >>> from gigabatch.models.parallel.data_parallel import DataParallel
    >>> from gigabatch.models.parallel.ranks import Ranks
    >>> model = torch.nn.Linear(2, 1)
    >>> parallel = DataParallel(Ranks(), build_optimizer(model, "adamw", lr=0.1), num_rows=4)
    >>> with parallel.part():
    ...     loss = model(torch.ones(4, 2)).mean() * parallel.share(None)
    >>> loss.backward()
    >>> parallel.sum_gradients(loss.detach()).item() == loss.item()
    True
    """

    def __init__(
        self,
        ranks: Ranks,
        optimizer: Any,
        num_rows: int,
        sums: GradientSums | None = None,
        tables: SpreadTables | None = None,
        model: nn.Module | None = None,
    ) -> None:
        if num_rows < ranks.num_ranks:
            raise ModelError(
                f"train.batch_size: a batch of {num_rows} rows leaves some of {ranks.num_ranks} ranks without one. "
                "Take a larger batch or fewer ranks."
            )
        self.ranks, self.num_rows = ranks, num_rows
        self.tables = tables
        rows = [part for part in parts_of(optimizer) if isinstance(part, RowOptimizer)]
        if tables is None and any(module.exchanges_gradients for part in rows for module in part.modules):
            raise ModelError(
                "tables that `substitute` has spread exchange their gradients by themselves, so that an owner alone "
                "knows whether they are finite. Give `tables`, as `substitute_tables` returns them."
            )
        self.first_row, stop = part_of(num_rows, ranks.rank, ranks.num_ranks)
        self.own_rows = stop - self.first_row
        self.sums: GradientSums = AllReduced(ranks) if sums is None else sums
        self.optimizer = optimizer
        self._parts = parts_of(optimizer)
        self._names = {} if model is None else {parameter: name for name, parameter in model.named_parameters()}
        self._layout: list[int] | None = None

    @contextmanager
    def part(self, copies: int = 1, ids: Tensor | None = None, lists: Sequence[Jagged] = ()) -> Iterator[None]:
        """For a forward and backward pass of this rank's rows; copies: rows that each of them has become. ids [B, C],
        lists: of these, whose rows of sharded tables are fetched, and their gradients sent at the end."""
        with using_ranks(self.ranks, *(copies * rows for rows in (self.num_rows, self.first_row, self.own_rows))):
            if self.tables is None:
                yield
                return
            assert ids is not None
            with self.tables.fetched(ids, lists):
                yield
                self.tables.exchange_gradients()

    def agree(self, mark: Tensor) -> None:
        """Make a mark, 0 or 1, that of all ranks, in place: an owner alone knows the gradients of its rows."""
        if self.tables is not None:
            self.ranks.all_reduce(mark, "skipped").clamp_(max=1)

    def share(self, weight: Tensor | None) -> Tensor | float:
        """The share of this rank's rows in the mean over the batch, or that of their weights [B]."""
        if weight is None:
            return self.own_rows / self.num_rows
        own = weight.sum()
        total = self.ranks.all_reduce(own.clone(), "weights")
        return own / total.clamp(min=torch.finfo(total.dtype).tiny)

    @torch.no_grad()
    def sum_gradients(self, loss: Tensor) -> Tensor:
        """Make the gradients that a backward pass of this rank has left those of the whole batch.

        Parameters
        ----------
        loss : Tensor
            [] this rank's part of the batch's loss.

        Returns
        -------
        Tensor
            [] float32: the batch's.
        """
        total = loss if self.ranks.num_ranks == 1 else self._sum_rows(loss)
        found = [
            (place, parameter, parameter.grad)
            for place, parameter in enumerate(dense_parameters(self.optimizer))
            if parameter.grad is not None
        ]
        self._require_one_layout([place for place, _, _ in found])
        dense = {self._names.get(parameter, str(place)): gradient for place, parameter, gradient in found}
        self.sums.reduce(dense, partial(all_finite, self.optimizer, total))
        return total

    def _require_one_layout(self, layout: list[int]) -> None:
        """All ranks, and all steps, have gradients of the same parameters, by their places, or unlike ones would be
        added up: sizes alone do not tell two layers of one shape apart."""
        if self._layout is None:
            self._layout = layout
            if any(other != layout for other in self.ranks.gather(layout, "layout")):
                raise ModelError("several ranks: they have gradients of other parameters, which cannot be summed.")
        if layout != self._layout:
            raise ModelError("several ranks: the parameters that have gradients changed between steps.")

    def _sum_rows(self, loss: Tensor) -> Tensor:
        tables = [
            _Table(module, place, table, part.param_groups[0]["clip_ratio"] is not None)
            for part in self._parts
            if isinstance(part, RowOptimizer)
            for module in part.modules
            for place, table in enumerate(module.weights)
            if table.requires_grad and not is_spread(module)
        ]
        ids, gradients = _of_modules(tables)
        starts = [0, *accumulate(len(table.weight) for table in tables)]
        keys = [_clamped(own, table) + start for own, table, start in zip(ids, tables, starts, strict=False)]
        device, counts = loss.device, torch.zeros(0, dtype=torch.float64, device=loss.device)
        if tables:
            unique, inverse, occurrences = torch.unique(torch.cat(keys), return_inverse=True, return_counts=True)
            bounds = torch.searchsorted(unique, torch.tensor(starts, device=device))
            counts = bounds.diff().double()
        rows = torch.tensor([float(len(own)) for own in ids], dtype=torch.float64, device=device)
        told = torch.stack(self.ranks.all_gather(torch.cat([counts, rows, loss.double()[None]]), "loss and counts"))
        total = told[:, -1].sum().float()
        if not tables:
            return total
        numbers = told[:, :-1].long().tolist()  # the one read of the host: messages of uneven size need it
        num_distinct = [row[: len(tables)] for row in numbers]
        num_rows = [sum(row[len(tables) + place] for row in numbers) for place in range(len(tables))]

        own_counts, message = num_distinct[self.ranks.rank], []
        places = inverse.split([len(own) for own in ids])
        distinct, times = unique.split(own_counts), occurrences.split(own_counts)
        for index, table in enumerate(tables):
            parts = [(distinct[index] - starts[index]).int()]
            if table.counted:
                parts.append(times[index].int())
            summed = gradients[index].new_zeros(own_counts[index], table.weight.shape[1], dtype=torch.float32)
            summed.index_add_(0, places[index] - (sum(own_counts[:index])), gradients[index].float())
            message += [*parts, summed.view(torch.int32).reshape(-1)]
        sizes = [sum(n * table.words for n, table in zip(row, tables, strict=True)) for row in num_distinct]
        sent = [list(part.split(_sizes(tables, row))) for part, row in zip(
            self.ranks.all_gather_counted(torch.cat(message), sizes, "row gradients"), num_distinct, strict=True
        )]  # fmt: skip
        self._lay_out(tables, sent, num_rows)
        trained = {table.module for table in tables}
        for part in self._parts:  # gradients of frozen tables, which nobody asks for, are those of this rank alone
            for module in part.modules if isinstance(part, RowOptimizer) else ():
                if module not in trained and not is_spread(module):
                    module.forget_gradients()
        return total

    def _lay_out(self, tables: list[_Table], sent: list[list[Tensor]], num_rows: list[int]) -> None:
        """Leave what came from all ranks where `RowOptimizer` looks for it: a gradient [M, W] and ids [M, C].

        Each table has its own number of rows; those that are missing up to M are a row of the table once more with a
        gradient of 0, which changes no sum. Where occurrences count (CowClip), there are as many as the row had.
        """
        found: dict[EmbeddingTables, list[tuple[int, Tensor, Tensor]]] = {}
        for index, table in enumerate(tables):
            pieces = [part[3 * index : 3 * index + 3] for part in sent]
            ids = torch.cat([piece[0] for piece in pieces])
            gradient = torch.cat([piece[2] for piece in pieces]).view(torch.float32)
            gradient = gradient.view(len(ids), table.weight.shape[1])
            if table.counted and len(ids):
                more = torch.cat([piece[1] for piece in pieces]) - 1
                again = torch.repeat_interleave(ids, more, output_size=num_rows[index] - len(ids))
                ids = torch.cat([ids, again])
            found.setdefault(table.module, []).append((table.place, ids, gradient))
        for module, parts in found.items():
            looked_up = {part.table for part in module.row_gradients}
            module.forget_gradients()
            if module.lists:
                _lay_out_each(module, [part for part in parts if len(part[1]) or part[0] in looked_up])
            else:
                _lay_out_together(module, parts)


def _lay_out_together(module: EmbeddingTables, parts: list[tuple[int, Tensor, Tensor]]) -> None:
    """All tables side by side, as a batch's rows leave them."""
    most = max(len(ids) for _, ids, _ in parts)
    if not most:
        return
    widths = [weight.shape[1] for weight in module.weights]
    firsts = [0, *accumulate(widths)]
    like, pool = parts[0][2], module.buffers_of_step
    gradient = pool.take((most, firsts[-1]), torch.float32, like.device).zero_()
    all_ids = torch.zeros(most, len(widths), dtype=torch.int32, device=like.device)
    for place, ids, rows in parts:
        all_ids[: len(ids), place] = ids
        all_ids[len(ids) :, place] = ids[0]
        gradient[: len(rows), firsts[place] : firsts[place + 1]] = rows
    module.row_gradients.append(RowGradient(all_ids, gradient, pool))


def _lay_out_each(module: EmbeddingTables, parts: list[tuple[int, Tensor, Tensor]]) -> None:
    """Each table by itself: lists have many times the elements that their batch has rows, and side by side every other
    table would be given as many. One whose lists are all empty has a step of no rows, as on one rank."""
    pool = module.buffers_of_step
    for place, ids, rows in parts:
        gradient = pool.take((len(ids), rows.shape[1]), torch.float32, rows.device)
        gradient[: len(rows)] = rows
        gradient[len(rows) :] = 0.0
        module.row_gradients.append(RowGradient(ids[:, None], gradient, pool, place))


class _Table(NamedTuple):
    """A table of `module` at `place`; counted: whether its rule asks how often a row occurred."""

    module: EmbeddingTables
    place: int
    weight: Tensor
    counted: bool

    @property
    def words(self) -> int:
        """4-byte words of a row in a message: its id, its count where it counts, its gradient."""
        return 1 + self.counted + self.weight.shape[1]


def _sizes(tables: list[_Table], counts: list[int]) -> list[int]:
    """Words of ids, counts and gradients of each table, one after the other."""
    return [
        n * size for table, n in zip(tables, counts, strict=True) for size in (1, table.counted, table.weight.shape[1])
    ]


def _of_modules(tables: list[_Table]) -> tuple[list[Tensor], list[Tensor]]:
    """Of each table the ids [n] that were looked up, and their gradients [n, D]."""
    ids, gradients = [], []
    for module, place, weight, _ in tables:
        first = sum(other.shape[1] for other in module.weights[:place])
        columns = slice(first, first + weight.shape[1])
        wide = [part for part in module.row_gradients if part.table is None and place < part.ids.shape[1]]
        lists = [part.whole() for part in module.row_gradients if part.table == place]
        own = [(part.ids[:, place], part.gradient[:, columns]) for part in wide]
        own += [(part.ids[:, 0], part.gradient) for part in lists]
        ids.append(torch.cat([one for one, _ in own]) if own else weight.new_empty(0, dtype=torch.int32))
        gradients.append(torch.cat([one for _, one in own]) if own else weight[:0])
    return ids, gradients


def _clamped(ids: Tensor, table: _Table) -> Tensor:
    """As int64, inside the table: one that is not, which a GPU answers with NaN, must not pass for another table's."""
    return ids.long().clamp(0, len(table.weight) - 1)


def is_spread(module: EmbeddingTables) -> bool:
    """Whether its rows are those of this rank alone, whose gradients have come already."""
    return module.is_sharded or module.exchanges_gradients


def require_shareable(model: nn.Module) -> None:
    """Raise `ModelError` where a model would not learn on parts of a batch what it learns on all of it."""
    if isinstance(model, Model) and model.compares_rows:
        raise ModelError(
            f"{type(model).__name__}: its loss compares rows of a batch, of which each rank sees a part. Train it on "
            "one rank, or choose a loss of single rows (model.loss=bce)."
        )
    for name, module in model.named_modules():
        kinds = nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd
        if isinstance(module, kinds) and not isinstance(module, (BatchNorm1d, Dropout)):
            raise ModelError(
                f"{type(model).__name__}: {name} is torch's own {type(module).__name__}, which knows nothing of other "
                "ranks. Use gigabatch.models.layers.batch_norm.BatchNorm1d or gigabatch.models.layers.dropout.Dropout."
            )


@torch.no_grad()
def require_equal(model: nn.Module, ranks: Ranks) -> None:
    """Raise `ModelError` unless all ranks hold the same weights and buffers, bit for bit (by a sum of their words), and
    stand at the same random numbers; tables that are spread over ranks are left out."""
    if ranks.num_ranks == 1:
        return
    spread = [module for module in model.modules() if isinstance(module, EmbeddingTables) and is_spread(module)]
    own = {table for module in spread for table in module.weights}
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.dtype == torch.float32 and t not in own]
    device = next(model.parameters()).device
    random = [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])
    sums = [tensor.reshape(-1).view(torch.int32).sum(dtype=torch.int64) for tensor in tensors]
    for state in random:  # by place, as two counters in it move against each other
        words = state.view(torch.int64)
        sums.append((words * torch.arange(1, 1 + len(words))).sum().to(device))
    found = torch.stack(ranks.all_gather(torch.stack(sums), "check"))
    same = (found == found[0]).all(0)
    if not bool(same[: len(tensors)].all()):
        raise ModelError(
            "several ranks: their weights are no longer equal. They must run on processors of one kind with the same "
            "number of threads; go on from the last checkpoint."
        )
    if not bool(same.all()):
        raise ModelError(
            "several ranks: they have drawn different amounts of random numbers, so their dropout is no longer that of "
            "one rank. A layer of the model draws a number a row. Use gigabatch.models.layers.dropout.Dropout, or "
            "train on one rank."
        )
