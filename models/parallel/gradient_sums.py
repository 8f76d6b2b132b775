"""How dense gradients are added up over ranks, by name: whole, rounded to two bytes, or their large elements alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gigabatch.models.errors import ModelError, require_known
from gigabatch.models.optimizers.row_optimizer import RowOptimizer, parts_of
from gigabatch.models.parallel.costs import all_reduce_over_sparse
from gigabatch.models.parallel.dct import SparseGradients
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.parallel.sparse_wire import VALUE_TYPES

log = logging.getLogger(__name__)
ROUNDED = ("bfloat16", "float16")
KINDS = ("none", *ROUNDED, "dct")
ROUNDED_FACTOR = 2  # by which two bytes are fewer than float32


class GradientSums(Protocol):
    """What makes dense gradients their sums over ranks."""

    def reduce(self, gradients: Mapping[str, Tensor], is_finite: Callable[[], Tensor] | None = None) -> None:
        """Make each gradient its sum over ranks, in place, with the same bits on all of them.

        is_finite: whether the loss and all gradients of this rank are finite, a bool []."""

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on; every rank must call it."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave, on any number of ranks."""


class AllReduced:
    """Sums dense gradients over ranks in one all-reduce, as float32 or rounded on the way.

    Two bytes a number are half of what float32 sends. What is rounded is lost: nothing is kept for a later step. Sums
    are rounded too. float16 holds nothing beyond 65,504, so a larger sum is infinite, and the step is one that is
    skipped; what is below 6e-8 is zero. bfloat16 has the range of float32, and 8 bits of precision.

    Parameters
    ----------
    ranks : Ranks
        Who trains together.
    values : {'float32', 'bfloat16', 'float16'}, default 'float32'
        How numbers travel.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.parallel.gradient_sums import AllReduced
    >>> from gigabatch.models.parallel.ranks import Ranks
    >>> gradients = {"weight": torch.full((2,), 0.1)}
    >>> AllReduced(Ranks(), "bfloat16").reduce(gradients)  # one rank sends nothing, so nothing is rounded
    >>> gradients["weight"].tolist() == torch.full((2,), 0.1).tolist()
    True
    """

    def __init__(self, ranks: Ranks, values: str = "float32") -> None:
        require_known("type of values on the wire", [values], VALUE_TYPES)
        self.ranks, self.values = ranks, VALUE_TYPES[values]

    @torch.no_grad()
    def reduce(self, gradients: Mapping[str, Tensor], is_finite: Callable[[], Tensor] | None = None) -> None:
        """As `GradientSums.reduce`; what is not finite becomes a sum that is not."""
        if self.ranks.num_ranks == 1 or not gradients:
            return
        flat = torch.cat([one.reshape(-1) for one in gradients.values()])
        flat = self.ranks.all_reduce(flat.to(self.values), "gradients")
        for one, part in zip(gradients.values(), flat.split([one.numel() for one in gradients.values()]), strict=True):
            one.copy_(part.view(one.shape))

    def state_dict(self) -> dict[str, Any]:
        """Nothing: a step depends on no earlier one."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise `ModelError` for the state of DCT, whose elements that are not sent yet would be lost."""
        if state:
            raise ModelError("train.gradients: the state is of compress=dct. Go on with that setting.")


def gradient_sums(
    ranks: Ranks, compress: str = "none", drop: float = 0.99, refresh_steps: int = 1000, values: str = "bfloat16"
) -> GradientSums:
    """What `train.gradients` asks for.

    Parameters
    ----------
    ranks : Ranks
        Who trains together.
    compress : {'none', 'bfloat16', 'float16', 'dct'}, default 'none'
        Float32 whole; rounded to two bytes; or the large elements of each weight alone (`SparseGradients`).
    drop, refresh_steps, values
        Of `SparseGradients`.

    Raises
    ------
    ModelError
        For a setting that cannot be, and for `dct` where so many ranks would send at least what an all-reduce sends.

    Examples
    --------
    >>> from gigabatch.models.parallel.gradient_sums import gradient_sums
    >>> from gigabatch.models.parallel.ranks import Ranks
    >>> type(gradient_sums(Ranks(), "dct", drop=0.999)).__name__
    'SparseGradients'
    """
    require_known("train.gradients.compress", [compress], KINDS)
    if compress != "dct":
        return AllReduced(ranks, compress if compress in ROUNDED else "float32")
    sums = SparseGradients(ranks, drop, refresh_steps, values)
    factor = all_reduce_over_sparse(ranks.num_ranks, 1 - drop, sums.values.itemsize)
    if ranks.num_ranks == 1:
        return sums
    text = (
        f"train.gradients: on {ranks.num_ranks} ranks compress=dct with drop={drop:g} sends {1 / factor:.2f} times the "
        f"bytes of an all-reduce of float32, since each of {ranks.num_ranks} ranks gathers the share {1 - drop:.3g} of "
        "every other"
    )
    if factor <= 1:
        raise ModelError(f"{text}. Raise drop, or set compress=bfloat16, which sends half.")
    if factor <= ROUNDED_FACTOR and ranks.is_first:
        log.warning("%s; compress=bfloat16 sends half and keeps nothing back", text)
    return sums


def describe(sums: GradientSums, optimizer: Any) -> str:
    """What a rank sends of dense gradients in a step, by the formula, as a line of the log."""
    assert isinstance(sums, AllReduced | SparseGradients)
    sizes = [parameter.numel() for parameter in dense_parameters(optimizer) if parameter.requires_grad]
    count = sums.ranks.num_ranks
    whole = 2 * (count - 1) / count * 4
    text = f"dense gradients, {sum(sizes):,} numbers: "
    if isinstance(sums, AllReduced):
        sent = whole * sum(sizes) * sums.values.itemsize / 4
        return f"{text}all-reduce as {str(sums.values).removeprefix('torch.')}, {sent / 1e3:,.1f} kB a step a rank"
    large = sum(size for size in sizes if sums.keep_of(size) < size)
    sent = whole * (sum(sizes) - large)
    sent += whole * large / all_reduce_over_sparse(count, 1 - sums.drop, sums.values.itemsize)
    return (
        f"{text}dct, drop {sums.drop:g} as {str(sums.values).removeprefix('torch.')}, about {sent / 1e3:,.1f} kB a "
        f"step a rank; an all-reduce of float32 sends {whole * sum(sizes) / 1e3:,.1f} kB"
    )


def dense_parameters(optimizer: Any) -> list[nn.Parameter]:
    """The parameters that the optimizer moves as wholes, not row by row."""
    return [
        parameter
        for part in parts_of(optimizer)
        if not isinstance(part, RowOptimizer)
        for group in part.param_groups
        for parameter in group["params"]
    ]
