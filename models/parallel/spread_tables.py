"""What a training asks of tables whose rows lie on several ranks, whichever way they are spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from gigabatch.models.layers.pooled import Jagged
from gigabatch.models.optimizers.row_optimizer import Optimizers
from gigabatch.models.parallel.ranks import Ranks


class SpreadTables(Protocol):
    """Tables of a model on several ranks: `ShardedTables`, `SubstitutedTables`. All but `own_*` are collectives."""

    ranks: Ranks

    def of(self, model: nn.Module) -> SpreadTables:
        """The same for a copy of the model."""

    def fetched(self, ids: Tensor, lists: Sequence[Jagged] = ()) -> AbstractContextManager[None]:
        """Within it the model may be called with rows of ids [B, C] and of the list columns."""

    def exchange_gradients(self) -> None:
        """Within `fetched`, after the backward pass: send gradients of rows to the ranks that own them."""

    def gather_weights(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of a state dict of the model, or of a copy, that with whole tables, on the first rank's host."""

    def own_weights(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of a state dict with whole tables what the model of this rank loads."""

    def gather_moments(self, moments: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """As `gather_weights`, of what `read_moments` gives."""

    def own_moments(self, whole: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Of moments of whole tables those of this rank's rows."""

    def whole_names(self, kinds: Mapping[str, Any]) -> dict[str, Any]:
        """What is known by parameters' names, by those of whole tables."""

    def gather_optimizer(self, optimizer: Optimizer | Optimizers) -> dict[str, Any]:
        """The optimizer's state dict as that of one process, on the first rank."""

    def own_optimizer(self, optimizer: Optimizer | Optimizers, whole: Mapping[str, Any]) -> dict[str, Any]:
        """Of the state dict of one process what the optimizer of this rank loads."""

    def release(self, whole: Mapping[str, Tensor]) -> None:
        """Make the model an ordinary one, with these whole weights."""
