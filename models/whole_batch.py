"""The batch of which this process works on a part: what those few layers ask that need all of its rows.

A step of several ranks (`models/parallel/`) opens `using_ranks` around its forward and backward pass. Within it batch
norm takes the moments of the whole batch, and dropout numbers elements by their rows in it. Models know of neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gigabatch.models.errors import require


class Summing(Protocol):
    """What adds up over processes; `gigabatch.models.parallel.ranks.Ranks` is one."""

    num_ranks: int

    def all_reduce(self, tensor: Tensor, name: str) -> Tensor: ...


@dataclass(frozen=True)
class WholeBatch:
    """A batch of `num_rows` rows, of which this rank works on `own_rows` from `first_row` on.

    A backward pass keeps the one of its forward pass, as it may run in another thread.
    """

    ranks: Summing
    num_rows: int
    first_row: int
    own_rows: int

    def sums(self, parts: Sequence[Tensor], name: str) -> list[Tensor]:
        """Each part [N] added up over ranks, in float64; one message for all of them."""
        packed = torch.cat([part.double() for part in parts])
        return list(self.ranks.all_reduce(packed, name).split([len(part) for part in parts]))

    def largest(self, number: int, most: int, name: str, device: torch.device) -> int:
        """The largest of the ranks' numbers, each in [0, most]."""
        found = torch.zeros(most + 1, device=device)
        found[number] = 1
        return int(self.ranks.all_reduce(found, name).nonzero()[-1])

    def first_element(self, values: Tensor) -> int:
        """Number of the first element of [own_rows, ...] in the whole batch's tensor."""
        require(
            len(values) == self.own_rows,
            f"dropout: on several ranks it takes tensors of one row a row of the batch, {self.own_rows} here, not "
            f"{list(values.shape)}, since its mask follows the rows.",
        )
        return self.first_row * (values.numel() // max(len(values), 1))


_current: ContextVar[WholeBatch | None] = ContextVar("whole_batch", default=None)


def whole_batch() -> WholeBatch | None:
    """The whole batch of this step; None where a process works on all of it, or evaluates."""
    return _current.get()


@contextmanager
def using_ranks(ranks: Summing, num_rows: int, first_row: int, own_rows: int) -> Iterator[None]:
    """Within it `whole_batch` gives the batch that these ranks share; one rank alone changes nothing.

    Parameters
    ----------
    ranks : Summing
        Adds up over processes.
    num_rows : int
        Of the batch.
    first_row, own_rows : int
        This rank's part.

    Examples
    --------
    >>> from gigabatch.models.parallel.ranks import Ranks
    >>> from gigabatch.models.whole_batch import using_ranks, whole_batch
    >>> with using_ranks(Ranks(), num_rows=8, first_row=0, own_rows=8):
    ...     print(whole_batch())
    None
    """
    before = _current.set(WholeBatch(ranks, num_rows, first_row, own_rows) if ranks.num_ranks > 1 else None)
    try:
        yield
    finally:
        _current.reset(before)
