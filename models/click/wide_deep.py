"""Wide & Deep: linear terms that remember, crosses of columns among them, and a deep network that generalises.

    y = w . [x, crosses(x)] + w0 + MLP([e_1, ..., e_C, floats])                                    (equation 3)

Cheng et al., Wide & Deep Learning for Recommender Systems, DLRS 2016, arXiv 1606.07792. A cross is one weight for each
combination of values of two or more id columns (equation 1). Take it where a few combinations are known to matter, or
where rare exceptions must be remembered that a network of embeddings smooths over.

The paper trains the wide part by FTRL with L1 and the deep part by Adagrad; here one optimizer trains both.

Shapes: B rows of a batch, C id columns, F float columns, X crosses, d embedding_dim, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.fields import InputRow, LinearTerms, check_settings, float_norm, mlp
from gigabatch.models.model import Model

PRIME = (1 << 31) - 1  # hashes are below it, so that a product of two fits in int64
BASE = 1_103_515_245  # where the polynomial is evaluated: any number in (0, PRIME) without a pattern


@dataclass(frozen=True)
class WideDeepSettings:
    """Settings of Wide & Deep.

    Parameters
    ----------
    embedding_dim : int, default 16
        Numbers in the vector of a value.
    layers : tuple of int, default (400, 400, 400)
        Widths of the network's hidden layers.
    dropout : float, default 0.2
        Of each hidden layer's outputs, in training.
    batch_norm : bool, default True
        In each hidden layer.
    crosses : tuple of tuple of int, default ()
        Lists of two or more id columns by their place among the ids, from 0. Each combination of their values has a
        weight of its own; where there are more than `cross_buckets`, combinations share weights by a hash.
    cross_buckets : int, default 262144
        The most weights of one cross.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> WideDeepSettings(crosses=[[0, 1]]).crosses
    ((0, 1),)
    """

    embedding_dim: int = 16
    layers: tuple[int, ...] = (400, 400, 400)
    dropout: float = 0.2
    batch_norm: bool = True
    crosses: tuple[tuple[int, ...], ...] = ()
    cross_buckets: int = 1 << 18

    def __post_init__(self) -> None:
        check_settings(self)
        require(self.cross_buckets <= PRIME, f"cross_buckets must be at most {PRIME}, not {self.cross_buckets}.")
        require(isinstance(self.crosses, tuple), f"crosses must be a list of lists, not {self.crosses!r}.")
        for cross in self.crosses:
            require(
                _is_cross(cross),
                f"crosses: {cross!r} is not a list of two or more different id columns, by their place from 0.",
            )


class Crosses(nn.Module):
    """The number of each row's combination of values, for each cross: an id for a table of `sizes[x]` rows.

    A cross of no more than `num_buckets` combinations numbers them exactly. One of more hashes them: the ids are the
    coefficients of a polynomial, evaluated modulo a prime (Carter and Wegman, 1979); its value is raised to the fifth
    power, which maps the numbers below this prime one to one and leaves no pattern, and taken modulo `num_buckets`.
    All is integer arithmetic without overflow, hence the same on every device.
    """

    def __init__(self, num_ids: Sequence[int], crosses: Sequence[Sequence[int]], num_buckets: int) -> None:
        super().__init__()
        for cross in crosses:
            require(
                max(cross) < len(num_ids),
                f"crosses: {list(cross)} names id column {max(cross)}, but there are {len(num_ids)}, from 0 on.",
            )
        self.crosses = [tuple(cross) for cross in crosses]
        self.num_ids = tuple(num_ids)
        combinations = [prod(num_ids[column] for column in cross) for cross in crosses]
        self.sizes = tuple(min(number, num_buckets) for number in combinations)
        self.hashed = [number > num_buckets for number in combinations]

    def forward(self, ids: Tensor) -> Tensor:
        """[B, C] int32 or int64 -> [B, X] in the dtype of `ids`."""
        if not self.crosses:
            return ids[:, :0]
        wide = ids.long()
        numbers = [
            self._hash(wide, cross) % size if hashed else self._number(wide, cross)
            for cross, size, hashed in zip(self.crosses, self.sizes, self.hashed, strict=True)
        ]
        return torch.stack(numbers, dim=1).to(ids.dtype)

    def _number(self, ids: Tensor, cross: Sequence[int]) -> Tensor:
        """Place of the combination among all of them, the last column's values next to each other."""
        number = ids[:, cross[0]]
        for column in cross[1:]:
            number = number * self.num_ids[column] + ids[:, column]
        return number

    def _hash(self, ids: Tensor, cross: Sequence[int]) -> Tensor:
        """A number below `PRIME`; ids are int32, so below it too."""
        number = ids[:, cross[0]]
        for column in cross[1:]:
            number = (number * BASE + ids[:, column]) % PRIME
        square = number * number % PRIME
        return square * square % PRIME * number % PRIME

    def extra_repr(self) -> str:
        return f"crosses={self.crosses}, sizes={self.sizes}"


class WideDeep(Model):
    """Wide & Deep: linear terms of columns and crosses, and a network over embedded ids and batch-normed floats.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs.
    settings : WideDeepSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import ModelInputs, WideDeep
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2)
    >>> model = WideDeep(inputs, WideDeep.Settings(layers=(8,), crosses=[[0, 1]]))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape
    torch.Size([3, 1])
    """

    Settings = WideDeepSettings

    def __init__(self, inputs: ModelInputs, settings: WideDeepSettings) -> None:
        super().__init__(inputs, settings)
        self.float_norm = float_norm(inputs)
        self.crosses = Crosses(inputs.num_ids, settings.crosses, settings.cross_buckets)
        wide_inputs = replace(inputs, num_ids=(*inputs.num_ids, *self.crosses.sizes))
        self.wide = LinearTerms(wide_inputs, batch_norm=False)
        self.row = InputRow(inputs, settings.embedding_dim, batch_norm=False)
        self.deep = mlp(self.row.width, settings.layers, inputs.num_outputs, settings.dropout, settings.batch_norm)

    def forward(self, ids: Tensor, floats: Tensor) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats)
        floats = self.float_norm(floats)
        wide = self.wide(torch.cat([ids, self.crosses(ids)], dim=1), floats)
        return wide + self.deep(self.row(ids, floats)).float()


def _is_cross(cross: Any) -> bool:
    """Whether it is a tuple of two or more different places."""
    if not isinstance(cross, tuple):
        return False
    places = all(isinstance(place, int) and not isinstance(place, bool) and place >= 0 for place in cross)
    return places and len(set(cross)) == len(cross) >= 2
