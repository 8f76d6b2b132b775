"""Wide & Deep: linear terms that remember, crosses of columns among them, and a deep network that generalises.

    y = w . [x, crosses(x)] + w0 + MLP([e_1, ..., e_C, floats])                                    (equation 3)

Cheng et al., Wide & Deep Learning for Recommender Systems, DLRS 2016, arXiv 1606.07792. A cross is one weight for each
combination of values of two or more id columns (equation 1). Take it where a few combinations are known to matter, or
where rare exceptions must be remembered that a network of embeddings smooths over.

The paper trains the wide part by FTRL with L1 and the deep part by Adagrad; here one optimizer trains both.

Shapes: B rows of a batch, C id columns, F float columns, X crosses, d embedding_dim, O outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.layers.fields import InputRow, LinearTerms, check_settings, float_norm, linear_numeric, mlp
from gigabatch.models.layers.numeric import NUMERIC_WIDTH, Numeric
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.model import Model

PRIME = (1 << 31) - 1  # hashes are below it, so that a product of two fits in int64
BASE = 1_103_515_245  # where the polynomial is evaluated: any number in (0, PRIME) without a pattern


@dataclass(frozen=True)
class WideDeepSettings(PoolingSettings):
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
    numeric : str or dict of str to str, default 'bins'
        Vectors beside the float columns, of their quantile bins; or `periodic`, or `plain`: none. By column: its
        name and kind, and `*` for the others.
    numeric_width : int, default 16
        Of each float column's vector.
    crosses : tuple of tuple of int, default ()
        Lists of two or more id columns by their place among the ids, from 0. Each combination of their values has a
        weight of its own; where there are more than `cross_buckets`, combinations share weights by a hash.
    cross_buckets : int, default 262144
        The most weights of one cross.
    pooling : {'sum', 'mean', 'root', 'max'}, default 'mean'
        What becomes of the vectors of a list column's elements; `max` takes no weights.

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
    numeric: Numeric = "bins"
    numeric_width: int = NUMERIC_WIDTH

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
        columns = dict(enumerate(wide.unbind(1)))
        numbers = [
            self._hash(columns, cross) % size if hashed else self._number(columns, cross)
            for cross, size, hashed in zip(self.crosses, self.sizes, self.hashed, strict=True)
        ]
        return torch.stack(numbers, dim=1).to(ids.dtype)

    def _number(self, ids: Mapping[int, Tensor], cross: Sequence[int]) -> Tensor:
        """Place of the combination among all of them, the last column's values next to each other. ids: by column."""
        number = ids[cross[0]]
        for column in cross[1:]:
            number = number * self.num_ids[column] + ids[column]
        return number

    def _hash(self, ids: Mapping[int, Tensor], cross: Sequence[int]) -> Tensor:
        """A number below `PRIME`; ids are int32, so below it too."""
        number = ids[cross[0]]
        for column in cross[1:]:
            number = (number * BASE + ids[column]) % PRIME
        square = number * number % PRIME
        return square * square % PRIME * number % PRIME

    def origins(self, earlier: Crosses, rows: Sequence[Tensor]) -> list[Tensor]:
        """Of each cross, the row of `earlier`'s table that each row goes on from, int64 [size], -1 for none.

        rows: the same of each id column. A combination goes on from itself. Where a cross is hashed now and was not,
        the combination of the lowest ids, which are the more frequent values, speaks for all that share its bucket.

        Raises
        ------
        ModelError
            For a hashed cross of ids that have moved, or of another number of buckets: which combinations a bucket
            stands for is not known.
        """
        found = []
        for place, (cross, size) in enumerate(zip(self.crosses, self.sizes, strict=True)):
            if earlier.hashed[place]:
                held = [(rows[column][: earlier.num_ids[column]], earlier.num_ids[column]) for column in cross]
                require(
                    self.hashed[place]
                    and size == earlier.sizes[place]
                    and all(torch.equal(row, torch.arange(count)) for row, count in held),
                    f"crosses: {list(cross)} shares weights by a hash, and the ids of its columns have moved or its "
                    "buckets are others, so its weights cannot be carried. Let ids stay (preprocess.from), or train "
                    "cold.",
                )
                found.append(torch.arange(size))
                continue
            origin = torch.full((size,), -1)
            if self.hashed[place]:
                before = torch.arange(earlier.sizes[place])
                parts = _digits(before, [earlier.num_ids[column] for column in cross])
                ids = {c: _inverse(rows[c], earlier.num_ids[c])[part] for c, part in zip(cross, parts, strict=True)}
                there = torch.stack(list(ids.values())).amin(0) >= 0
                ids = {column: part[there] for column, part in ids.items()}
                buckets = self._hash(ids, cross) % size
                origin.scatter_reduce_(0, buckets, before[there], "amin", include_self=False)
            else:
                parts = _digits(torch.arange(size), [self.num_ids[column] for column in cross])
                ids = {c: rows[c][part] for c, part in zip(cross, parts, strict=True)}
                there = torch.stack(list(ids.values())).amin(0) >= 0
                origin = torch.where(there, earlier._number(ids, cross), -1)
            found.append(origin)
        return found

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
    takes_lists = True

    def __init__(self, inputs: ModelInputs, settings: WideDeepSettings) -> None:
        super().__init__(inputs, settings)
        self.float_norm = float_norm(inputs)
        self.crosses = Crosses(inputs.num_ids, settings.crosses, settings.cross_buckets)
        wide_inputs = _with_columns(inputs, self.crosses.sizes)
        columns = (*range(len(inputs.num_ids)), *(None for _ in settings.crosses))
        kind = linear_numeric(settings.numeric)
        self.wide = LinearTerms(wide_inputs, False, columns, numeric=kind, pooling=settings.pooling)
        numeric = settings.numeric, settings.numeric_width
        self.row = InputRow(inputs, settings.embedding_dim, False, *numeric, settings.pooling)
        self.deep = mlp(self.row.width, settings.layers, inputs.num_outputs, settings.dropout, settings.batch_norm)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats, lists)
        normed = self.float_norm(floats)
        wide = self.wide(torch.cat([ids, self.crosses(ids)], dim=1), normed, lists, given=floats)
        return wide + self.deep(self.row(ids, normed, lists, given=floats)).float()

    def table_ids(self, ids: Tensor) -> dict[EmbeddingTables, Tensor]:
        """As `Model.table_ids`, with the crosses."""
        wide = torch.cat([ids, self.crosses(ids)], dim=1) if self.crosses.crosses else ids
        pairs = ((self.wide.tables, wide), (self.row.tables, ids))
        return {module: asked for module, asked in pairs if len(module.tables)}

    def origins(self, earlier: Model, rows: Sequence[Tensor]) -> dict[nn.Parameter, Tensor]:
        """As `Model.origins`, and of the crosses' tables."""
        assert isinstance(earlier, WideDeep)
        num_ids = len(self.inputs.num_ids)
        crosses = self.wide.tables.weights[num_ids : num_ids + len(self.crosses.sizes)]
        found = self.crosses.origins(earlier.crosses, rows)
        return super().origins(earlier, rows) | dict(zip(crosses, found, strict=True))


def _with_columns(inputs: ModelInputs, sizes: Sequence[int]) -> ModelInputs:
    """The inputs with more id columns, of these sizes, behind their own."""
    num_ids = len(inputs.num_ids)
    lists = tuple(
        replace(item, shares=item.shares + len(sizes)) if item.shares is not None and item.shares >= num_ids else item
        for item in inputs.lists
    )  # a list's place among all columns is behind those of the ids
    return replace(inputs, num_ids=(*inputs.num_ids, *sizes), lists=lists)


def _digits(numbers: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The ids of each column that make up the numbers of `Crosses._number`."""
    found = []
    for size in reversed(sizes):
        found.append(numbers % size)
        numbers = numbers // size
    return found[::-1]


def _inverse(rows: Tensor, count: int) -> Tensor:
    """Where each of `count` earlier rows has gone, -1 where it went nowhere. rows: where each new one came from."""
    found = torch.full((count,), -1)
    there = rows >= 0
    found[rows[there]] = torch.arange(len(rows))[there]
    return found


def _is_cross(cross: Any) -> bool:
    """Whether it is a tuple of two or more different places."""
    if not isinstance(cross, tuple):
        return False
    places = all(isinstance(place, int) and not isinstance(place, bool) and place >= 0 for place in cross)
    return places and len(set(cross)) == len(cross) >= 2
