"""FinalMLP: two multilayer perceptrons that see the columns differently, and the products of what they find.

    e1 = 2 sigmoid(gate_1(z_1)) * e,  e2 = 2 sigmoid(gate_2(z_2)) * e        stream-specific feature selection
    x = MLP_1(e1),  y = MLP_2(e2)                                             the two streams
    output = b + w_x . x + w_y . y + sum_h x_h' W_h y_h                       multi-head bilinear fusion

e is all columns' vectors side by side, z_1 and z_2 are vectors of some columns (the user's, the item's) or learnt ones,
and x_h, y_h are the parts of x and y that belong to head h. Mao, Zhu, Su, Cai, Li and Dong, FinalMLP: An Enhanced
Two-Stream MLP Model for CTR Prediction, AAAI 2023 (arXiv 2304.00902); the form is that of their code in reczoo/FuxiCTR.
Use it for click and rating data, where user and item meet in products that one perceptron has to build out of sums.

Shapes: B rows of a batch, N fields (columns), d embedding_dim, H heads, O outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gigabatch.models.errors import ModelError, require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.fields import FieldEmbeddings, OutputLinear, check_settings, mlp, one_of
from gigabatch.models.layers.numeric import Numeric
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.model import Model

GATES = ("auto", "user", "item", "context", "learned", "none")


@dataclass(frozen=True)
class FinalMLPSettings(PoolingSettings):
    """Settings of FinalMLP.

    Parameters
    ----------
    embedding_dim : int, default 10
        Numbers in the vector of a value.
    first_layers, second_layers : tuple of int, default (400,) and (800,)
        Widths of the hidden layers of the two streams.
    first_dropout, second_dropout : float, default 0.2
        Of each hidden layer's outputs, in training.
    batch_norm : bool, default True
        In the hidden layers of both streams.
    num_heads : int, default 10
        Parts of the fusion; divides the last width of both streams.
    first_gate, second_gate : str, default 'auto'
        What the stream's feature selection looks at. `user`, `item`: the columns of that entity, lists among them.
        `context`: those of neither. `learned`: a vector that is the same for every row. `none`: no selection. `auto`:
        the user's columns for the first and the item's for the second where the inputs name them, else `learned`.
    gate_layers : tuple of int, default (400,)
        Widths of the hidden layers of the gates.
    numeric : str or dict of str to str, default 'bins'
        Vectors beside the float columns, of their quantile bins; or `periodic`, or `plain`: none. By column: its
        name and kind, and `*` for the others.
    pooling : {'sum', 'mean', 'root', 'max'}, default 'mean'
        What becomes of the vectors of a list column's elements; `max` takes no weights.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> FinalMLPSettings(num_heads=4).num_heads
    4
    """

    embedding_dim: int = 10
    first_layers: tuple[int, ...] = (400,)
    second_layers: tuple[int, ...] = (800,)
    first_dropout: float = 0.2
    second_dropout: float = 0.2
    batch_norm: bool = True
    num_heads: int = 10
    first_gate: str = "auto"
    second_gate: str = "auto"
    gate_layers: tuple[int, ...] = (400,)
    numeric: Numeric = "bins"

    def __post_init__(self) -> None:
        check_settings(self, may_be_empty=("gate_layers",))
        for name in ("first_layers", "second_layers"):
            layers = getattr(self, name)
            require(
                layers[-1] % self.num_heads == 0,
                f"num_heads {self.num_heads} does not divide the last of {name}, {layers[-1]}. Choose a divisor.",
            )
        for name in ("first_gate", "second_gate"):
            one_of(f"{name} of finalmlp", getattr(self, name), GATES)


class FeatureSelection(nn.Module):
    """Weights in (0, 2) for each number of the columns' vectors, made from the vectors of some columns.

    kind: `user`, `item`, `context` or `learned`, see `FinalMLPSettings`. The columns have vectors of the gate's own.
    """

    def __init__(self, inputs: ModelInputs, kind: str, settings: FinalMLPSettings) -> None:
        super().__init__()
        self.columns = _columns(inputs, kind)
        dim, num_fields = settings.embedding_dim, len(inputs.num_ids) + len(inputs.lists) + inputs.num_floats
        if kind == "learned":
            self.fields = None
            self.vector = nn.Parameter(torch.zeros(dim))
            width = dim
        else:
            part, own = _part(inputs, self.columns), self.columns
            self.fields = FieldEmbeddings(part, dim, columns=own.ids, pooling=settings.pooling, list_places=own.lists)
            width = self.fields.num_fields * dim
        self.gate = mlp(width, settings.gate_layers, num_fields * dim)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """ids [B, C], floats [B, F] -> weights [B, N d], or [N d] where they are the same for every row."""
        if self.fields is None:
            return 2 * torch.sigmoid(self.gate(self.vector))
        own = self.columns
        chosen = [lists[place] for place in own.lists]
        vectors = self.fields(_taken(ids, own.ids), _taken(floats, own.floats), chosen)
        return 2 * torch.sigmoid(self.gate(vectors.flatten(1)))


class BilinearFusion(nn.Module):
    """b + w_x . x + w_y . y + sum_h x_h' W_h y_h for each output, x and y cut into as many parts as there are heads."""

    def __init__(self, x_dim: int, y_dim: int, num_outputs: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.num_outputs = num_heads, num_outputs
        self.x_linear = OutputLinear(x_dim, num_outputs)
        self.y_linear = OutputLinear(y_dim, num_outputs, bias=False)
        rows, columns = x_dim // num_heads, y_dim // num_heads
        deviation = math.sqrt(2 / (num_heads * rows * columns + num_outputs))  # Xavier's, as the authors draw them
        self.products = nn.Parameter(deviation * torch.randn(num_heads, rows, num_outputs * columns))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x [B, x_dim], y [B, y_dim] -> [B, O]."""
        x_heads = x.unflatten(1, (self.num_heads, -1)).transpose(0, 1)
        y_heads = y.unflatten(1, (self.num_heads, 1, -1))
        mixed = torch.bmm(x_heads, self.products).unflatten(2, (self.num_outputs, -1)).transpose(0, 1)
        return self.x_linear(x) + self.y_linear(y) + (mixed.float() * y_heads.float()).sum(dim=(1, 3))


class FinalMLP(Model):
    """FinalMLP: gated vectors of all columns through two perceptrons, fused bilinearly.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs; user and item for the gates.
    settings : FinalMLPSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import FinalMLP, ModelInputs
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2)
    >>> model = FinalMLP(inputs, FinalMLP.Settings(first_layers=(8,), second_layers=(8,), num_heads=2))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape
    torch.Size([3, 1])
    """

    Settings = FinalMLPSettings
    takes_lists = True

    def __init__(self, inputs: ModelInputs, settings: FinalMLPSettings) -> None:
        super().__init__(inputs, settings)
        self.fields = FieldEmbeddings(
            inputs, settings.embedding_dim, numeric=settings.numeric, pooling=settings.pooling
        )
        width = self.fields.num_fields * settings.embedding_dim
        self.first_selection = _selection(inputs, settings.first_gate, "user", settings)
        self.second_selection = _selection(inputs, settings.second_gate, "item", settings)
        self.first = mlp(width, settings.first_layers, None, settings.first_dropout, settings.batch_norm)
        self.second = mlp(width, settings.second_layers, None, settings.second_dropout, settings.batch_norm)
        self.fusion = BilinearFusion(
            settings.first_layers[-1], settings.second_layers[-1], inputs.num_outputs, settings.num_heads
        )

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats, lists)
        vectors = self.fields(ids, floats, lists).flatten(1)
        first, second = (
            vectors if selection is None else vectors * selection(ids, floats, lists)
            for selection in (self.first_selection, self.second_selection)
        )
        return self.fusion(self.first(first), self.second(second)).float()


def _selection(inputs: ModelInputs, gate: str, entity: str, settings: FinalMLPSettings) -> FeatureSelection | None:
    """The feature selection of a stream whose `auto` looks at `entity`; None for none."""
    if gate == "auto":
        gate = entity if getattr(inputs, entity) is not None else "learned"
    return None if gate == "none" else FeatureSelection(inputs, gate, settings)


class _Columns(NamedTuple):
    """Places among the ids, the floats and the lists."""

    ids: tuple[int, ...] = ()
    floats: tuple[int, ...] = ()
    lists: tuple[int, ...] = ()


def _columns(inputs: ModelInputs, kind: str) -> _Columns:
    """The columns that a gate looks at; `ModelError` if there are none."""
    if kind == "learned":
        return _Columns()
    if kind == "context":
        found = _Columns(inputs.context_ids, inputs.context_floats, inputs.context_lists)
    else:
        entity = getattr(inputs, kind)
        found = _Columns() if entity is None else _Columns(entity.ids, entity.floats, entity.lists)
    if not any(found):
        raise ModelError(
            f"finalmlp: a gate looks at the columns of {kind}, but the inputs name none. Name the entities in the "
            "recipe's settings (features.entities), or set the gate to auto, learned or none."
        )
    return found


def _part(inputs: ModelInputs, columns: _Columns) -> ModelInputs:
    """The inputs of these columns alone: a list whose vocabulary is that of a column that is none of them has a table
    of its own there, or that of an earlier list with this vocabulary."""
    num_ids = len(inputs.num_ids)
    owners = list(range(num_ids))  # of each column, ids then lists, whose vocabulary it has
    for place, item in enumerate(inputs.lists):
        owners.append(num_ids + place if item.shares is None else owners[item.shares])
    there = {owners[place]: own for own, place in enumerate(columns.ids)}
    lists = []
    for own, place in enumerate(columns.lists, len(columns.ids)):
        owner = owners[num_ids + place]
        lists.append(replace(inputs.lists[place], shares=there.get(owner)))
        there.setdefault(owner, own)
    sizes = tuple(inputs.num_ids[place] for place in columns.ids)
    return ModelInputs(sizes, len(columns.floats), lists=tuple(lists))


def _taken(values: Tensor, places: tuple[int, ...]) -> Tensor:
    """These columns, taken as views: an index list would have to be copied to the device in every step."""
    return torch.stack([values[:, place] for place in places], dim=1) if places else values[:, :0]
