"""Lists of rows pooled to a vector each: what models see of a list column, its settings and the plain formula.

Shapes: B lists, T elements of all of them one after the other, D columns of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from gigabatch.models.errors import ModelError, require_known
from gigabatch.models.inputs import ListInputs
from gigabatch.models.kernels.pooled_lookup.reference import POOLINGS as OF_KERNELS

POOLINGS = (*OF_KERNELS, "root")


class Jagged(Protocol):
    """A list column of a batch; `gigabatch.loaders.tables.jagged.JaggedColumn` is one.

    ids: int32 [T]. offsets: int64 [B + 1], list b has ids[offsets[b] : offsets[b + 1]]. weights: float32 [T] or None.
    """

    @property
    def ids(self) -> Tensor: ...
    @property
    def offsets(self) -> Tensor: ...
    @property
    def weights(self) -> Tensor | None: ...


@dataclass(frozen=True)
class PoolingSettings:
    """The setting that models with pooled lists share.

    Parameters
    ----------
    pooling : {'sum', 'mean', 'root', 'max'}, default 'mean'
        What becomes of the vectors of a list; `root` is their sum over the root of their number.
    """

    pooling: str = field(default="mean", kw_only=True)

    def __post_init__(self) -> None:
        require_known("pooling", [self.pooling], POOLINGS)


def require_lists(lists: Sequence[Jagged], inputs: Sequence[ListInputs], num_rows: int) -> None:
    """Raise `ModelError` unless there is a list column for each of `inputs`, of `num_rows` lists, whose arrays fit.

    What offsets hold is looked at on a CPU only, since a GPU would have to be waited for."""
    if len(lists) != len(inputs):
        raise ModelError(f"lists: the model has {len(inputs)} list columns, found {len(lists)}.")
    for place, (found, wanted) in enumerate(zip(lists, inputs, strict=True)):
        ids, offsets, weights = found.ids, found.offsets, found.weights
        if ids.dim() != 1 or offsets.dim() != 1 or ids.dtype not in (torch.int32, torch.int64):
            raise ModelError(f"list {place}: ids [T] are int32 or int64 and offsets [B + 1] int64.")
        if torch.compiler.is_compiling():
            continue
        if offsets.dtype != torch.int64 or len(offsets) != num_rows + 1:
            raise ModelError(
                f"list {place}: {num_rows} rows have {num_rows + 1} offsets int64, found {len(offsets)} "
                f"of {offsets.dtype}."
            )
        if (weights is not None) != wanted.weighted or (weights is not None and weights.shape != ids.shape):
            raise ModelError(
                f"list {place}: the model takes {'a weight for each id' if wanted.weighted else 'no weights'}, found "
                f"{'none' if weights is None else list(weights.shape)} for ids {list(ids.shape)}."
            )
        if offsets.device.type == "cpu":
            ascend = not bool((offsets.diff() < 0).any())
            if not ascend or int(offsets[0]) != 0 or int(offsets[-1]) != len(ids):
                raise ModelError(f"list {place}: offsets must ascend from 0 to the {len(ids)} ids.")


def root_of_size(lists: Jagged, dtype: torch.dtype) -> Tensor:
    """What a mean is multiplied with in the pooling `root`: of each list the root of its number of elements, or of the
    sum of their absolute weights, [B, 1]; 1 where that is 0, whose mean is 0."""
    if lists.weights is None:
        return lists.offsets.diff().clamp(min=1).to(dtype).sqrt()[:, None]
    sums = _sums_of_weights(lists, lists.weights)
    return torch.where(sums > 0, sums, 1.0).sqrt().to(dtype)[:, None]


def _sums_of_weights(lists: Jagged, weights: Tensor) -> Tensor:
    """Of each list the sum of its absolute weights: [B]."""
    return weights.new_zeros(lists.offsets.shape[0] - 1).index_add(0, list_places(lists), weights.abs())


def pooled_plainly(lists: Jagged, table: Tensor, pooling: str) -> Tensor:
    """The kernel `pooled_lookup` by operators of torch that have gradients and go into an exported graph: [B, D]."""
    owners, num_lists = list_places(lists), lists.offsets.shape[0] - 1
    rows = functional.embedding(lists.ids, table)
    shape = (num_lists, table.shape[1])
    if pooling == "max":
        lowest = rows.new_full(shape, float("-inf"))
        largest = lowest.scatter_reduce(0, owners[:, None].expand_as(rows), rows, "amax", include_self=False)
        return torch.where((lists.offsets.diff() > 0)[:, None], largest, torch.zeros_like(largest))
    weights = lists.weights
    if weights is not None:
        rows = rows * weights[:, None]
    total = rows.new_zeros(shape).index_add(0, owners, rows)
    if pooling == "sum":
        return total
    if weights is None:
        return total / lists.offsets.diff().clamp(min=1).to(total.dtype)[:, None]
    sums = _sums_of_weights(lists, weights)
    return torch.where(sums > 0, 1 / torch.where(sums > 0, sums, 1.0), 0.0)[:, None] * total


class TakenLists(NamedTuple):
    """Some lists of a column; a `Jagged`."""

    ids: Tensor
    offsets: Tensor
    weights: Tensor | None = None


def taken_lists(lists: Jagged, places: Tensor) -> TakenLists:
    """The lists at these places, int64 [B], in their order. On a GPU the host waits once, for the number of ids."""
    starts, lengths = lists.offsets[places], lists.offsets.diff()[places]
    offsets = functional.pad(lengths.cumsum(0), (1, 0))
    total = int(offsets[-1])
    shift = torch.repeat_interleave(starts - offsets[:-1], lengths, output_size=total)
    chosen = shift + torch.arange(total, device=shift.device)
    return TakenLists(lists.ids[chosen], offsets, None if lists.weights is None else lists.weights[chosen])


def list_places(lists: Jagged) -> Tensor:
    """The list of each element, int64 [T], by operators whose sizes do not depend on what the offsets hold."""
    begins = lists.offsets.new_zeros(lists.ids.shape[0] + 1)
    # The last is behind all elements. Without it the size would be one less than the rows', which an exported graph
    # takes for a bound on them.
    ends = lists.offsets[1:]
    return begins.index_add(0, ends, torch.ones_like(ends)).cumsum(0)[: lists.ids.shape[0]]
