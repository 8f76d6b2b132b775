"""Parts that the models of the shelf share: embedded fields, linear terms, multilayer perceptrons, checks of settings.

Shapes: B rows of a batch, C id columns, F float columns, N = C + F fields, d the fields' width, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import pairwise
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require, require_known
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.batch_norm import BatchNorm1d
from gigabatch.models.layers.dropout import Dropout
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.layers.numeric import NUMERIC_WIDTH, Numeric, NumericEmbedding, checked_numeric
from gigabatch.models.layers.pooled import Jagged, PoolingSettings


class FieldEmbeddings(nn.Module):
    """Every column as a vector of the same width: an id as its row of a table, a float x_f as x_f v_f + n_f(x_f).

    The ids' vectors come first, in the order of the columns, then a pooled one of each list.
    A v_f is drawn as the rows of tables are; n_f is what
    `NumericEmbedding` makes of the column, 0 for one without bins.

    batch_norm: normalise the floats first, without scale and shift, which v_f would repeat; False where the model has
        normalised them (`float_norm`).
    columns, list_places: as of `EmbeddingTables`, where `inputs` are a part of the model's.
    numeric, numeric_start: kind of the `NumericEmbedding`, and what its first weights are multiplied with.
    """

    def __init__(
        self,
        inputs: ModelInputs,
        dim: int,
        batch_norm: bool = True,
        columns: Sequence[int] | None = None,
        numeric: Numeric = "plain",
        numeric_start: float = 1.0,
        pooling: str = "mean",
        list_places: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.num_fields = len(inputs.num_ids) + len(inputs.lists) + inputs.num_floats
        self.tables = tables_of(inputs, dim, columns, pooling, list_places)
        self.float_norm = float_norm(inputs) if batch_norm else nn.Identity()
        vectors = torch.randn(inputs.num_floats, dim).fmod_(2).mul_(0.01)
        self.float_vectors = nn.Parameter(vectors) if inputs.num_floats else None
        self.numeric = NumericEmbedding(inputs, numeric, dim)
        self.numeric.shrink(numeric_start)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = (), given: Tensor | None = None) -> Tensor:
        """ids [B, C] int32 or int64, floats [B, F] float32 -> [B, N, d] float32.

        given: the floats as the model is given them, for `numeric`, where `floats` have been normed.
        """
        num_ids = ids.shape[1] + len(lists)
        embedded = rows_of(self.tables, ids, lists).unflatten(1, (num_ids, self.dim))
        if self.float_vectors is None:
            return embedded
        scaled = self.of_floats(floats, given)
        return torch.cat([embedded, scaled], dim=1) if num_ids else scaled

    def of_floats(self, floats: Tensor, given: Tensor | None = None) -> Tensor:
        """Vectors of the floats [B, F], of which there are some: [B, F, d] float32. given: as of `forward`."""
        scaled = self.float_norm(floats)[:, :, None] * self.float_vectors
        return scaled + self.numeric.of_all(floats if given is None else given) if self.numeric.num_columns else scaled


class InputRow(nn.Module):
    """The columns side by side: embedded ids, pooled lists, batch-normed floats as they are, and their
    vectors where they have some; `width` = (C + lists) d + F + F' `numeric_width`.

    batch_norm: as in `FieldEmbeddings`. numeric, numeric_width: of `NumericEmbedding`.
    """

    def __init__(
        self,
        inputs: ModelInputs,
        dim: int,
        batch_norm: bool = True,
        numeric: Numeric = "plain",
        numeric_width: int = NUMERIC_WIDTH,
        pooling: str = "mean",
    ) -> None:
        super().__init__()
        self.tables = tables_of(inputs, dim, pooling=pooling)
        self.float_norm = float_norm(inputs) if batch_norm else nn.Identity()
        self.numeric = NumericEmbedding(inputs, numeric, numeric_width)
        self.width = self.tables.width + inputs.num_floats + self.numeric.num_columns * numeric_width

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = (), given: Tensor | None = None) -> Tensor:
        """ids [B, C] int32 or int64, floats [B, F] float32 -> [B, width] float32. given: as of `FieldEmbeddings`."""
        parts = [rows_of(self.tables, ids, lists), self.float_norm(floats)]
        if self.numeric.num_columns:
            parts.append(self.numeric(floats if given is None else given).flatten(1))
        return torch.cat(parts, dim=1)


class LinearTerms(nn.Module):
    """w0 + the sum of one weight an id, pooled where they are a list's, + w . floats, for each output; all start at 0.

    Computed in float32 also under autocast: it is too little work for bfloat16 to save any.

    batch_norm, columns, numeric: as in `FieldEmbeddings`.
    """

    def __init__(
        self,
        inputs: ModelInputs,
        batch_norm: bool = True,
        columns: Sequence[int | None] | None = None,
        numeric: Numeric = "plain",
        pooling: str = "mean",
    ) -> None:
        super().__init__()
        self.num_outputs = inputs.num_outputs
        self.tables = tables_of(inputs, inputs.num_outputs, columns, pooling)
        for table in self.tables.tables:
            nn.init.zeros_(table)
        self.float_norm = float_norm(inputs) if batch_norm else nn.Identity()
        weights = torch.zeros(inputs.num_floats, inputs.num_outputs)
        self.float_weights = nn.Parameter(weights) if inputs.num_floats else None
        self.bias = nn.Parameter(torch.zeros(inputs.num_outputs))
        self.numeric = NumericEmbedding(inputs, numeric, inputs.num_outputs)
        if self.numeric.has_bins:
            nn.init.zeros_(self.numeric.weight)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = (), given: Tensor | None = None) -> Tensor:
        """ids [B, C] int32 or int64, floats [B, F] float32 -> [B, O] float32. given: as of `FieldEmbeddings`."""
        terms = self.bias.expand(floats.shape[0], self.num_outputs)
        if len(self.tables.tables):  # the sum over no table at all would make an ONNX graph that is not valid
            terms = terms + rows_of(self.tables, ids, lists).unflatten(
                1, (ids.shape[1] + len(lists), self.num_outputs)
            ).sum(dim=1)
        if self.float_weights is None:
            return terms
        return terms + self.of_floats(floats, given)

    def of_floats(self, floats: Tensor, given: Tensor | None = None) -> Tensor:
        """Terms of the floats [B, F], of which there are some: [B, O] float32. given: as of `forward`."""
        with torch.autocast(floats.device.type, enabled=False):
            terms = self.float_norm(floats) @ self.float_weights
            if not self.numeric.num_columns:
                return terms
            return terms + self.numeric(floats if given is None else given).sum(1)


def linear_numeric(numeric: Numeric) -> Numeric:
    """What of a model's `numeric` its linear terms take: bins, which are linear terms themselves; no waves."""
    if isinstance(numeric, str):
        return numeric if numeric == "bins" else "plain"
    return {name: kind if kind == "bins" else "plain" for name, kind in numeric.items()}


def rows_of(tables: Callable[..., Tensor], ids: Tensor, lists: Sequence[Jagged]) -> Tensor:
    """What the tables look up; what stands in for tables without lists (models/parallel) need not know of them."""
    return tables(ids, lists) if lists else tables(ids)


def tables_of(
    inputs: ModelInputs,
    dim: int,
    columns: Sequence[int | None] | None = None,
    pooling: str = "mean",
    list_places: Sequence[int] | None = None,
) -> EmbeddingTables:
    """Tables of `dim` columns for all id and list columns; the rest as of `EmbeddingTables`."""
    widths = [dim] * len(inputs.table_sizes)
    return EmbeddingTables(
        inputs.num_ids, widths, columns=columns, lists=inputs.lists, pooling=pooling, list_places=list_places
    )


def float_norm(inputs: ModelInputs) -> nn.Module:
    """Batch norm of the float columns without scale and shift; nothing where there are none."""
    return BatchNorm1d(inputs.num_floats, affine=False) if inputs.num_floats else nn.Identity()


class OutputLinear(nn.Linear):
    """A model's last layer: `nn.Linear`, in float32 also under autocast, which would round logits to bfloat16."""

    def forward(self, rows: Tensor) -> Tensor:
        """[..., num_in] -> [..., num_out]."""
        if not torch.is_autocast_enabled(rows.device.type):
            return super().forward(rows)
        with torch.autocast(rows.device.type, enabled=False):
            return super().forward(rows.float())


def mlp(
    num_in: int, layers: Sequence[int], num_out: int | None, dropout: float = 0.0, batch_norm: bool = False
) -> nn.Sequential:
    """Hidden layers of linear, batch norm (if asked), ReLU, dropout; then a linear layer to `num_out`, None for none.

    [B, num_in] -> [B, num_out], or [B, layers[-1]]. With batch norm a hidden layer's linear part has no bias, which the
    norm's shift replaces. No `layers` and an output is one linear layer.
    """
    parts: list[nn.Module] = []
    for size, width in pairwise((num_in, *layers)):
        parts.append(nn.Linear(size, width, bias=not batch_norm))
        if batch_norm:
            parts.append(BatchNorm1d(width))
        parts.append(nn.ReLU())
        if dropout:
            parts.append(Dropout(dropout))
    if num_out is not None:
        parts.append(OutputLinear(layers[-1] if layers else num_in, num_out))
    return nn.Sequential(*parts)


# Checks of settings, for a dataclass's `__post_init__`.


def check_settings(settings: Any, *, may_be_empty: Sequence[str] = ()) -> None:
    """Make lists tuples, and raise `ModelError` for a value that does not fit its field's type.

    Integers, in tuples too, are from 1 up, floats whose name ends in `dropout` are probabilities, and only the tuples
    `may_be_empty` may be. The rest is left to the caller.
    """
    lists_to_tuples(settings)
    if isinstance(settings, PoolingSettings):
        PoolingSettings.__post_init__(settings)
    for field in fields(settings):
        name, value, kind = field.name, getattr(settings, field.name), str(field.type)
        if value is None and kind.endswith(" | None"):
            continue
        match kind.removesuffix(" | None"):
            case "int":
                positive(name, value)
            case "tuple[int, ...]":
                positive_list(name, value, empty=name in may_be_empty)
            case "bool":
                require(isinstance(value, bool), f"{name} must be true or false, not {value!r}.")
            case "Numeric":
                object.__setattr__(settings, name, checked_numeric(value, field.default))
            case "float" if name.endswith("dropout"):
                probability(name, value)


def lists_to_tuples(settings: Any) -> None:
    """Make the lists among a frozen dataclass's values tuples, nested ones too: JSON and YAML know only lists."""
    for field in fields(settings):
        object.__setattr__(settings, field.name, _as_tuple(getattr(settings, field.name)))


def positive(name: str, *values: Any) -> None:
    """Raise `ModelError` unless every value is an integer from 1 up."""
    for value in values:
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(whole and value >= 1, f"{name} must be an integer from 1 up, not {value!r}.")


def positive_list(name: str, values: Any, *, empty: bool = False) -> None:
    """Raise `ModelError` unless `values` is a tuple of integers from 1 up; an empty one only where `empty`."""
    require(isinstance(values, tuple), f"{name} must be a list of integers, not {values!r}.")
    require(bool(values) or empty, f"{name} is empty; give at least one number.")
    positive(name, *values)


def is_number(value: Any) -> bool:
    """Whether it is an integer or a float, NaN and infinities too."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def positive_number(name: str, value: Any) -> None:
    """Raise `ModelError` unless the value is a finite number above 0."""
    require(is_number(value) and 0 < value < inf, f"{name} must be a positive number, not {value!r}.")


def probability(name: str, value: Any) -> None:
    """Raise `ModelError` unless the value is in [0, 1)."""
    require(is_number(value) and 0 <= value < 1, f"{name} must be a probability in [0, 1), not {value!r}.")


def one_of(name: str, value: Any, known: Sequence[str]) -> None:
    """Raise `ModelError`, which lists the known values, unless it is one of them."""
    require_known(name, [value], known)


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(entry) for entry in value) if isinstance(value, list | tuple) else value
