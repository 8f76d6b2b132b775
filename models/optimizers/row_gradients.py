"""Gradients that backward passes left for rows of tables, put together so that each row moves once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gigabatch.models.layers.embeddings import EmbeddingTables, RowGradient


def gradients_together(module: EmbeddingTables) -> list[tuple[list[int], RowGradient]]:
    """What `row_gradients` hold for the tables that are trained: places of tables, and ids [n, tables] with gradients
    [n, widths] side by side, each table in one entry, so that its rows move once.

    A table of a list has its own entry, with what its id column left, if they share it.
    """
    weights = module.weights
    wide = [found for found in module.row_gradients if found.table is None]
    of_lists = sorted({found.table for found in module.row_gradients if found.table is not None})
    columns = wide[0].ids.shape[1] if wide else 0
    moving = [place for place in range(columns) if weights[place].requires_grad and place not in of_lists]
    widths = [weight.shape[1] for weight in weights[:columns]]
    found = []
    ids = gradient = None
    if wide:
        ids, gradient = joined([one.ids for one in wide]), joined([one.gradient for one in wide])
        if moving:
            own = (ids, gradient)
            if len(moving) < columns:
                parts = gradient[:, : sum(widths)].split(widths, dim=1)
                own = ids[:, moving], torch.cat([parts[place] for place in moving], dim=1)
            found.append((moving, RowGradient(*own)))
    for place in of_lists:
        if not weights[place].requires_grad:
            continue
        own_parts = [one for one in module.row_gradients if one.table == place]
        if ids is not None and gradient is not None and place < columns:
            first = sum(widths[:place])
            own_parts.append(RowGradient(ids[:, place : place + 1], gradient[:, first : first + widths[place]]))
        found.append(([place], _of_one_table(own_parts)))
    return found


def _of_one_table(parts: Sequence[RowGradient]) -> RowGradient:
    """Ids [n, 1] and gradients of one table from all its sources; elements of lists still share what they shared."""
    if len(parts) == 1:
        return parts[0]
    gradients = [one.gradient for one in parts]
    if len({one.dtype for one in gradients}) > 1:
        gradients = [one.float() for one in gradients]
    ids, gradient = joined([one.ids for one in parts]), joined(gradients)
    if all(one.places is None for one in parts):
        return RowGradient(ids, gradient)
    first = 0
    places, scales = [], []
    for one in parts:
        own = torch.arange(len(one.ids), dtype=torch.int32, device=ids.device) if one.places is None else one.places
        places.append(own + first)
        scales.append(torch.ones(len(one.ids), device=ids.device) if one.scales is None else one.scales)
        first += len(one.gradient)
    plain = all(one.scales is None for one in parts)
    return RowGradient(ids, gradient, None, None, joined(places), None if plain else joined(scales))


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Rows of all parts, one after the other; the same tensor where there is one."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
