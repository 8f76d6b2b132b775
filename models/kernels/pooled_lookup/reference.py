"""`pooled_lookup` in plain torch: the oracle for the compiled versions, on any device and in any float dtype.

Shapes: B lists, T elements of all lists one after the other, V rows of the table, D columns of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

POOLINGS = ("sum", "mean", "max")


@torch.no_grad()
def pooled_lookup(
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    table: Tensor,
    pooling: str,
    out: Tensor,
    chosen: Tensor | None = None,
) -> None:
    """Write the pooled rows of each list into `out` [B, D] float32; of an empty list zeros.

    ids: [T] int32, each inside the table, contiguous. offsets: [B + 1] int64, list b has the elements [offsets[b],
    offsets[b + 1]). weights: [T] float32 or None. table: [V, D] float32, contiguous. pooling: `sum` of w x; `mean`, sum
    of w x over sum of |w| (0 where that is 0), which without weights is the mean; `max` of each column, which takes no
    weights. out: unit stride along a row. chosen: of `max`, [B, D] int32 for the element of each maximum, the first of
    equal ones, -1 of an empty list.
    """
    rows, owners = table[ids.long()], list_of_elements(offsets)
    if pooling == "max":
        _write_largest(rows, owners, offsets, out, chosen)
        return
    scale = element_scale(offsets, weights, pooling)
    rows = rows if scale is None else rows * scale.to(rows.dtype)[:, None]
    out.zero_()
    out.copy_(torch.zeros_like(out, memory_format=torch.contiguous_format).index_add_(0, owners, rows))


@torch.no_grad()
def spread_gradient(
    gradient: Tensor, offsets: Tensor, weights: Tensor | None, pooling: str, chosen: Tensor | None, out: Tensor
) -> None:
    """Write into `out` [T, D] the gradient of each row looked up, for the `gradient` [B, D] of what was pooled.

    The rest as in `pooled_lookup`; `out` is contiguous and of the gradient's type.
    """
    if pooling == "max":
        assert chosen is not None
        out.zero_()
        at = chosen >= 0
        column = torch.arange(chosen.shape[1], device=chosen.device).expand_as(chosen)
        out[chosen[at].long(), column[at]] = gradient[at]
        return
    scale = element_scale(offsets, weights, pooling)
    rows = gradient[list_of_elements(offsets)]
    out.copy_(rows if scale is None else rows * scale[:, None])


@torch.no_grad()
def element_scales(
    offsets: Tensor, weights: Tensor | None, pooling: str, places: Tensor, scales: Tensor | None
) -> None:
    """Write the list of each element into `places` [T] int32 and what its row is multiplied with into `scales` [T].

    So the gradient of element e is scales[e] gradient[places[e]], which `update_elements` of the kernel `row_update`
    takes without writing it. pooling: `mean`, or `sum` with `scales` None: there they are the weights themselves, or 1.
    scales: float32. The rest as in `pooled_lookup`.
    """
    check_sources(offsets, weights, pooling, places, scales)
    places.copy_(list_of_elements(offsets))
    if scales is not None:
        found = element_scale(offsets, weights, pooling)
        assert found is not None
        scales.copy_(found)


def check_sources(offsets: Tensor, weights: Tensor | None, pooling: str, places: Tensor, scales: Tensor | None) -> None:
    """What every version of `element_scales` asserts."""
    check_lists(offsets, weights, pooling, len(places))
    assert (pooling, scales is None) in (("sum", True), ("mean", False)), pooling
    check_memory(places, torch.int32, places.shape)
    if scales is not None:
        check_memory(scales, torch.float32, places.shape)


def check_lists(offsets: Tensor, weights: Tensor | None, pooling: str, num_elements: int) -> None:
    """What every version asserts of its lists."""
    assert pooling in POOLINGS, pooling
    check_memory(offsets, torch.int64, offsets.shape)
    assert num_elements < 2**31, num_elements
    if weights is not None:
        assert pooling != "max"
        check_memory(weights, torch.float32, (num_elements,))


def check_memory(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Assert that a tensor is what a compiled loop takes it for."""
    assert tensor.is_contiguous(), tensor.stride()
    assert (tensor.dtype, tensor.shape) == (dtype, shape), (tensor.dtype, tensor.shape, dtype, shape)


def list_of_elements(offsets: Tensor) -> Tensor:
    """The list of each element: offsets [B + 1] -> int64 [T]."""
    return torch.repeat_interleave(offsets.diff())


def element_scale(offsets: Tensor, weights: Tensor | None, pooling: str) -> Tensor | None:
    """What each row is multiplied with before the sum of its list, float32 [T]; None for 1."""
    if pooling == "sum":
        return weights
    owners = list_of_elements(offsets)
    if weights is None:
        return offsets.diff().float().reciprocal()[owners]
    sums = weights.new_zeros(len(offsets) - 1).index_add_(0, owners, weights.abs())
    return weights * torch.where(sums > 0, sums.reciprocal(), 0.0)[owners]


def _write_largest(rows: Tensor, owners: Tensor, offsets: Tensor, out: Tensor, chosen: Tensor | None) -> None:
    largest = torch.full_like(out, float("-inf"), memory_format=torch.contiguous_format)
    by_column = owners[:, None].expand_as(rows)
    largest.scatter_reduce_(0, by_column, rows.to(out.dtype), "amax")
    out.copy_(torch.where((offsets.diff() > 0)[:, None], largest, 0.0))
    if chosen is not None:
        place = torch.arange(len(rows), dtype=torch.int32, device=rows.device)[:, None].expand_as(rows)
        none = torch.iinfo(torch.int32).max
        is_largest = (rows == largest[owners]) | rows.isnan()
        place = torch.where(is_largest, place, none)
        first = torch.full_like(chosen, none, memory_format=torch.contiguous_format)
        first.scatter_reduce_(0, by_column, place, "amin")
        chosen.copy_(torch.where(first == none, -1, first))
