"""What models keep of the train rows for a softmax over items of the batch: each item's share of the positives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor

from gigabatch.models.errors import require
from gigabatch.models.layers.pooled import Jagged
from gigabatch.models.model import Model
from gigabatch.models.recommenders.in_batch import log_shares


class ItemShares(Model):
    """Base of models whose loss `softmax` takes log q off with the setting `log_q`.

    shelf_name: in messages. item_key: place among the ids of the item's key.
    """

    shelf_name: ClassVar[str]
    remembered = ("item_log_q",)
    item_key: int

    def keep_shares(self, num_items: int) -> None:
        """Make room for the shares where they are taken off; called once, as the model is built."""
        self._has_log_q = False
        if self._corrects:  # not a number until `remember` has counted, or saved weights are loaded
            self.register_buffer("item_log_q", torch.full((num_items,), float("nan")))

    @property
    def compares_rows(self) -> bool:
        """But for `bce`."""
        return bool(self.settings.loss != "bce")

    @property
    def _corrects(self) -> bool:
        return bool(self.settings.loss == "softmax" and self.settings.log_q)

    def _log_q(self, keys: Tensor) -> Tensor:
        """log q of each row's item [B] float32; zeros where it is not to be taken off."""
        if not self._corrects:
            return torch.zeros(keys.shape, device=keys.device)
        table = cast(Tensor, self.item_log_q)
        if not self._has_log_q:  # looked at once: it waits for the device
            require(
                not bool(table.isnan().any()),
                f"{self.shelf_name}: softmax with log_q needs the items' counts. Call remember with the train rows "
                "before training, or set model.log_q=false.",
            )
            self._has_log_q = True
        return table.index_select(0, keys)

    def remember(self, ids: Tensor, floats: Tensor, targets: Sequence[Tensor], lists: Sequence[Jagged] = ()) -> None:
        """Count the items of the positives among the train rows [N, C]; one that does not occur counts once, as it may
        yet come."""
        if self._corrects:
            table = cast(Tensor, self.item_log_q)
            items = ids[targets[0] == 1, self.item_key].cpu()
            require(
                len(items) > 0,
                f"{self.shelf_name}: the train rows hold no positive, a row with target 1, to learn from.",
            )
            table.copy_(log_shares(items, len(table)))
