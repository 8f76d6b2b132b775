"""Rows of the train split that a model keeps, user by user, in buffers that are saved with its weights.

Shapes: N stored rows, U users (ids of the user's column), C id columns, F float columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require

KEPT = ("last", "random")
GROWING = ("ids", "floats", "targets")  # buffers whose number of rows is known only when they are stored or loaded


class StoredRows(nn.Module):
    """ids [N, C] int32, floats [N, F] and standardised targets [N], sorted by user; empty until `store` or loaded.

    offsets [U + 1] int64: rows offsets[u] to offsets[u + 1] are those of user u. total_rows [U]: the user's rows in the
    train split, also those that are not stored. id_counts [sum of num_ids]: stored rows that have the id, column after
    column. target_mean, target_scale: of the train split, before standardisation.
    """

    ids: Tensor
    floats: Tensor
    targets: Tensor
    offsets: Tensor
    total_rows: Tensor
    id_counts: Tensor
    target_mean: Tensor
    target_scale: Tensor
    column_starts: Tensor

    def __init__(self, num_ids: Sequence[int], num_floats: int, user_column: int) -> None:
        super().__init__()
        self.user_column = user_column
        num_users = num_ids[user_column]
        for name, empty in (
            ("ids", torch.zeros(0, len(num_ids), dtype=torch.int32)),
            ("floats", torch.zeros(0, num_floats)),
            ("targets", torch.zeros(0)),
            ("offsets", torch.zeros(num_users + 1, dtype=torch.int64)),
            ("total_rows", torch.zeros(num_users)),
            ("id_counts", torch.zeros(sum(num_ids))),
            ("target_mean", torch.zeros((), dtype=torch.float64)),
            ("target_scale", torch.ones((), dtype=torch.float64)),
        ):
            self.register_buffer(name, empty)
        self.register_buffer("column_starts", torch.tensor([0, *num_ids[:-1]]).cumsum(0), persistent=False)
        self.most_rows = 0
        """Stored rows of the user that has most."""

    @torch.no_grad()
    def store(self, ids: Tensor, floats: Tensor, target: Tensor, max_rows_per_user: int, kept: str) -> None:
        """Keep up to `max_rows_per_user` rows of each user: the `last` in this order, or `random` ones, seeded."""
        require(len(ids) > 0, "there are no rows to remember.")
        ids, floats, target = ids.cpu(), floats.cpu(), target.cpu().double()
        before = torch.arange(len(ids))
        if kept == "random":
            before = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
        users = ids[:, self.user_column].long()
        order = before[torch.argsort(users[before], stable=True)]
        totals = torch.bincount(users, minlength=len(self.total_rows))
        left = totals.cumsum(0)[users[order]] - torch.arange(len(order))  # rows of the user from this one on
        order = order[left <= max_rows_per_user]
        deviation = float(target.std(correction=0))
        scale = deviation if deviation > 0 else 1.0
        device = self.offsets.device
        self.ids = ids[order].int().to(device)
        self.floats = floats[order].float().to(device)
        self.targets = ((target[order] - target.mean()) / scale).float().to(device)
        self.target_mean.fill_(float(target.mean()))
        self.target_scale.fill_(scale)
        stops = totals.clamp(max=max_rows_per_user).cumsum(0)
        self.offsets.copy_(torch.cat([torch.zeros(1, dtype=torch.int64), stops]))
        self.total_rows.copy_(totals)
        self.id_counts.copy_(torch.bincount((self.ids + self.column_starts).flatten(), minlength=len(self.id_counts)))
        self.most_rows = int(self.offsets.diff().max())

    def __len__(self) -> int:
        return len(self.targets)

    def places(self, users: Tensor, most_rows: int) -> tuple[Tensor, Tensor]:
        """Places of the rows of users [K] int64, and 1 where there is a row or 0 for padding: [K, most_rows] each.

        The padding repeats the user's first row: an optimizer of rows moves all that were looked up.
        """
        first, stop = self.offsets[users].unsqueeze(1), self.offsets[users + 1].unsqueeze(1)
        index = first + torch.arange(most_rows, device=users.device)
        inside = index < stop
        index = torch.where(inside, index, first).clamp(max=len(self) - 1)
        return index, inside.to(self.targets.dtype)

    def counts(self, ids: Tensor) -> Tensor:
        """How many stored rows have each id, in the shape of ids [..., C]."""
        return self.id_counts[ids + self.column_starts]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        for name in GROWING:
            if (saved := state_dict.get(prefix + name)) is not None:
                own = getattr(self, name)
                setattr(self, name, own.new_empty(len(saved), *own.shape[1:]))
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if {len(self.ids), len(self.floats), len(self.targets)} != {int(self.offsets[-1])}:
            error_msgs.append(
                f"stored rows: {len(self.ids)} of ids, {len(self.floats)} of floats and {len(self.targets)} targets "
                f"do not fit offsets that end at {int(self.offsets[-1])}."
            )
        self.most_rows = int(self.offsets.diff().max())
