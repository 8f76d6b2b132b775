"""`update_rows` for CUDA in Triton: gradients of equal ids are summed and the row moved in the same kernel.

How the sums are taken is in `segments_cuda.py` for tables of many rows and `small_cuda.py` for those of a few,
how a row moves in `move_cuda.py`. Tables are grouped by padded width, one launch a group, so that a table of 8
columns does not run in tiles made for 600. No step waits for the device and every grid follows from shapes, so the
whole can be captured in a CUDA graph (after one call outside it, which compiles the kernels and copies the tables'
addresses).
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import triton
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.utils.weak import WeakTensorKeyDictionary

from gigabatch.models.kernels import FLOATS
from gigabatch.models.kernels.row_update.move_cuda import Group, rule_arguments
from gigabatch.models.kernels.row_update.reference import check_elements
from gigabatch.models.kernels.row_update.rules import RowRule, State
from gigabatch.models.kernels.row_update.segments_cuda import update_sorted
from gigabatch.models.kernels.row_update.small_cuda import update_small

LEAST_BLOCK = 8  # fewer forms of a kernel to compile, and fewer launches, than with blocks of 4 too
SMALL_TABLE = 512  # padded elements of a table whose gradient fits the registers of one program
MOST_ELEMENTS = 2**30  # of lists at a time


@dataclass(frozen=True)
class _Plan:
    """Groups of one set of tables; `sorted_tables` are the fields of those in `wide`, in order."""

    small: list[Group]
    wide: list[Group]
    sorted_tables: Tensor
    key_dtype: torch.dtype


# The plans of the sets of tables seen, by the first of them. They follow from addresses and shapes alone and stay while
# that table does, since a captured CUDA graph reads both. 72 bytes a table.
_plans: MutableMapping[Tensor, dict[tuple, _Plan]] = WeakTensorKeyDictionary()


@torch.no_grad()
def update_rows(
    tables: Sequence[Tensor], states: Sequence[State], ids: Tensor, gradient: Tensor, rule: RowRule
) -> None:
    """See `reference.update_rows`; an id outside its table moves nothing.

    tables float32, gradient of a type in `FLOATS`. The result is the same bit for bit from run to run.
    """
    assert ids.shape[1] == len(tables) == len(states), (ids.shape, len(tables), len(states))
    assert len(gradient) == len(ids), gradient.shape
    _update(tables, states, ids, gradient, rule)


@torch.no_grad()
def update_elements(
    table: Tensor, state: State, ids: Tensor, places: Tensor, scales: Tensor | None, gradient: Tensor, rule: RowRule
) -> None:
    """See `reference.update_elements`; the rest as `update_rows`."""
    check_elements(table, ids, places, scales, gradient)
    assert len(ids) <= MOST_ELEMENTS, f"{len(ids)} elements of lists: their numbers are computed in 32 bits"
    _update([table], [state], ids[:, None], gradient, rule, places, scales)


def _update(
    tables: Sequence[Tensor],
    states: Sequence[State],
    ids: Tensor,
    gradient: Tensor,
    rule: RowRule,
    owners: Tensor | None = None,
    scales: Tensor | None = None,
) -> None:
    """owners, scales: of each row of the ids the row of the gradient, and what it is multiplied with; None for its own
    and for 1."""
    num_rows = len(ids)
    assert ids.dtype == torch.int32, ids.dtype
    assert gradient.dtype in FLOATS, gradient.dtype
    assert num_rows * len(tables) < 2**31, f"{num_rows} rows of {len(tables)} ids: torch.sort takes fewer than 2^31"
    if not tables:
        return
    with torch.cuda.device_of(gradient):
        if rule.step == "global":
            torch._foreach_add_([state["num_steps"] for state in states], 1)
        if not num_rows:
            return
        assert gradient.stride(1) == 1, gradient.stride()
        plan = _plan(tables, states)
        arguments = rule_arguments(rule)
        for group in plan.small:
            update_small(group, ids, gradient, owners, scales, arguments)
        if plan.wide:
            sources = (gradient, owners, scales)
            update_sorted(plan.wide, plan.sorted_tables, plan.key_dtype, ids, *sources, arguments)
    increment_version(tables)  # torch counts its own writes only


def _plan(tables: Sequence[Tensor], states: Sequence[State]) -> _Plan:
    names = ("exp_avg", "exp_avg_sq", "num_steps")
    addresses = [
        (table.data_ptr(), *(state[name].data_ptr() if name in state else 0 for name in names))
        for table, state in zip(tables, states, strict=True)
    ]
    plans = _plans.setdefault(tables[0], {})
    key = (tables[0].device, tuple(addresses), tuple(table.shape for table in tables))
    if key not in plans:
        assert all(table.is_contiguous() and table.dtype == torch.float32 for table in tables)
        assert all(
            value.is_contiguous() and value.dtype == torch.float32 for state in states for value in state.values()
        )
        plans[key] = _new_plan(addresses, [tuple(table.shape) for table in tables], tables[0].device)
    return plans[key]


def _new_plan(addresses: Sequence[tuple[int, ...]], shapes: Sequence[tuple[int, ...]], device: torch.device) -> _Plan:
    kinds, starts = [], []
    start = 0
    for own, (height, width) in zip(addresses, shapes, strict=True):
        block_v, block_d = (max(LEAST_BLOCK, triton.next_power_of_2(size)) for size in (height, width))
        small = block_v * block_d <= SMALL_TABLE
        aligned = all(number % 4 == 0 for number in (start, width)) and all(a % 16 == 0 for a in own[:3])
        kinds.append((small, block_v if small else 0, block_d, 4 if aligned and not small else 1))
        starts.append(start)
        start += width
    order = sorted(range(len(shapes)), key=lambda column: kinds[column])  # the wide ones first
    fields: list[list[int]] = []
    groups: tuple[list[tuple], list[tuple]] = ([], [])
    base = num_sorted = 0
    for (small, *blocks), members in groupby(order, key=lambda column: kinds[column]):
        first = len(fields)
        for column in members:
            height, width = shapes[column]
            fields.append([*addresses[column], column, starts[column], height, base, width])
            base += 0 if small else height + 1  # in the order of the sorted entries; one more for ids outside
        groups[small].append((first, len(fields), blocks))
        num_sorted += 0 if small else len(fields) - first
    on_device = torch.tensor(fields, dtype=torch.int64).to(device)
    wide, few = ([Group(on_device[first:end], end - first, first, *blocks) for first, end, blocks in g] for g in groups)
    return _Plan(few, wide, on_device[:num_sorted], torch.int32 if base < 2**31 else torch.int64)
