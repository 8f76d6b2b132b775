"""Deep Interest Network: what of a user's history counts depends on the item that is asked about.

    a_t = unit([h_t, q, h_t - q, h_t * q])           how much element t of a list has to do with the row's own value
    u   = sum_t a_t w_t h_t                          the list's vector, for this row                       (equation 3)
    output = MLP([id columns, u of each attended list, pooled other lists, floats])

Zhou, Zhu, Song, Fan, Zhu, Ma, Yan, Jin, Li and Gai, Deep Interest Network for Click-Through Rate Prediction, KDD 2018
(arXiv 1706.06978). A list is attended where it has the vocabulary of an id column, whose value in the row is q: a
history of items beside the item's key. All other lists are pooled. The unit is a small network of one
output, which is not normalised over the list (`attention_norm: none`), so that the intensity of an interest stays: a
history full of such items gives a longer u than one with a single one. Its first layer takes the four parts at once;
what depends on q alone is computed once a row, not once an element.

Nothing is padded: time and memory follow the elements that there are.

Shapes: B rows of a batch, C id columns, F float columns, T elements of a list column, d embedding_dim, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.batch_norm import BatchNorm1d
from gigabatch.models.layers.fields import OutputLinear, check_settings, float_norm, mlp, one_of, tables_of
from gigabatch.models.layers.numeric import NUMERIC_WIDTH, Numeric, NumericEmbedding
from gigabatch.models.layers.pooled import Jagged, PoolingSettings, list_places
from gigabatch.models.model import Model
from gigabatch.models.modes import modes_kept

ACTIVATIONS = ("silu", "dice", "prelu", "sigmoid", "relu")
NORMS = ("none", "softmax")


@dataclass(frozen=True)
class DINSettings(PoolingSettings):
    """Settings of the Deep Interest Network.

    Parameters
    ----------
    embedding_dim : int, default 16
        Numbers in the vector of a value.
    attention_layers : tuple of int, default (80, 40)
        Widths of the hidden layers of the network that weighs an element.
    attention_activation : str, default 'silu'
        Of these layers: `silu`, `dice` or `prelu` as in the paper, `sigmoid` as in the authors' code, or `relu`.
    attention_norm : {'none', 'softmax'}, default 'none'
        What becomes of a list's weights: nothing, as in the paper, or a softmax.
    layers : tuple of int, default (200, 80)
        Widths of the hidden layers of the network on top.
    dropout : float, default 0.0
        Of each of these layers' outputs, in training.
    batch_norm : bool, default True
        In each of these layers.
    numeric : str or dict of str to str, default 'bins'
        Vectors beside the float columns, of their quantile bins; or `periodic`, or `plain`: none. By column: its
        name and kind, and `*` for the others.
    numeric_width : int, default 16
        Of each float column's vector.
    pooling : {'mean', 'sum', 'root', 'max'}, default 'mean'
        How the rows of the other lists' elements become one vector.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> DINSettings(layers=[64, 32]).layers  # as a YAML file gives them
    (64, 32)
    """

    embedding_dim: int = 16
    attention_layers: tuple[int, ...] = (80, 40)
    attention_activation: str = "silu"
    attention_norm: str = "none"
    layers: tuple[int, ...] = (200, 80)
    dropout: float = 0.0
    batch_norm: bool = True
    numeric: Numeric = "bins"
    numeric_width: int = NUMERIC_WIDTH

    def __post_init__(self) -> None:
        check_settings(self, may_be_empty=("layers",))
        one_of("attention_activation", self.attention_activation, ACTIVATIONS)
        one_of("attention_norm", self.attention_norm, NORMS)


class Dice(nn.Module):
    """PReLU whose bend follows the data: p s + (1 - p) alpha s, p = sigmoid of the batch-normed s (the paper's 5.3).

    In training the moments are those of the batch's elements; with fewer than two of them, which have no deviation, the
    running ones. Several ranks cannot share it (`BatchNorm1d` says so), as they have other numbers of elements.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = BatchNorm1d(width, affine=False)
        self.alpha = nn.Parameter(torch.zeros(width))

    def forward(self, values: Tensor) -> Tensor:
        """[T, width] -> [T, width]."""
        if self.training and len(values) < 2:
            normed = functional.batch_norm(values, self.norm.running_mean, self.norm.running_var, eps=self.norm.eps)
        else:
            normed = self.norm(values)
        share = torch.sigmoid(normed)
        return share * values + (1 - share) * self.alpha * values


class ActivationUnit(nn.Module):
    """The network that says how much an element of a list has to do with its row's value."""

    def __init__(self, dim: int, settings: DINSettings) -> None:
        super().__init__()
        sizes = list(pairwise((4 * dim, *settings.attention_layers)))
        self.hidden = nn.ModuleList(nn.Linear(*size) for size in sizes)
        self.activations = nn.ModuleList(_activation(settings.attention_activation, width) for _, width in sizes)
        self.output = OutputLinear(settings.attention_layers[-1], 1)

    def forward(self, elements: Tensor, values: Tensor, owners: Tensor) -> Tensor:
        """a [T] float32 of elements [T, d] whose rows `owners` [T] int64 have the values [B, d]."""
        first = cast(nn.Linear, self.hidden[0])
        of_element, of_value, of_difference, of_product = first.weight.chunk(4, dim=1)
        # W [h, q, h - q, h q] = (W1 + W3) h + W4 (h q) + (W2 - W3) q, the last of which is the row's alone
        of_rows = functional.linear(values, of_value - of_difference, first.bias)
        hidden = functional.linear(elements, of_element + of_difference)
        hidden = hidden + functional.linear(elements * values.index_select(0, owners), of_product)
        hidden = self.activations[0](hidden + of_rows.index_select(0, owners))
        for layer, activation in zip(list(self.hidden)[1:], list(self.activations)[1:], strict=True):
            hidden = activation(layer(hidden))
        return cast(Tensor, self.output(hidden)).float()[:, 0]


def _activation(name: str, width: int) -> nn.Module:
    if name == "dice":
        return Dice(width)
    return nn.PReLU(width) if name == "prelu" else {"silu": nn.SiLU, "sigmoid": nn.Sigmoid, "relu": nn.ReLU}[name]()


class DIN(Model):
    """Deep Interest Network: lists weighed by the row's own value, then a network over all columns.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs, and lists, of which at least one has the vocabulary of
        an id column.
    settings : DINSettings
        What a user may set.

    Raises
    ------
    ModelError
        Where no list has the vocabulary of an id column.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import DIN, ModelInputs
    >>> from gigabatch.loaders.tables.jagged import JaggedColumn
    >>> from gigabatch.models.inputs import ListInputs
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=0, lists=(ListInputs(7, shares=1),))
    >>> model = DIN(inputs, DIN.Settings(embedding_dim=4, layers=(8,)))
    >>> ids, floats = torch.tensor([[1, 6], [4, 2], [2, 3]]), torch.empty(3, 0)
    >>> history = JaggedColumn(torch.tensor([3, 4, 3], dtype=torch.int32), torch.tensor([0, 2, 2, 3]))
    >>> model(ids, floats, (history,)).shape
    torch.Size([3, 1])
    >>> [weights.shape for weights in model.attention(ids, floats, (history,))]  # one for each element
    [torch.Size([3])]
    """

    Settings = DINSettings
    takes_lists = True
    needs_lists = True

    def __init__(self, inputs: ModelInputs, settings: DINSettings) -> None:
        super().__init__(inputs, settings)
        if (obstacle := self.list_obstacle(inputs)) is not None:
            raise ModelError(f"din: {obstacle}")
        dim = settings.embedding_dim
        columns = {place: inputs.shared_column(place) for place in range(len(inputs.lists))}
        self.attended = {place: column for place, column in columns.items() if column is not None}
        self.pooled = [place for place, column in columns.items() if column is None]
        self.tables = tables_of(inputs, dim, pooling=settings.pooling)
        self.units = nn.ModuleList(ActivationUnit(dim, settings) for _ in self.attended)
        self.float_norm = float_norm(inputs)
        self.numeric = NumericEmbedding(inputs, settings.numeric, settings.numeric_width)
        width = self.tables.width + inputs.num_floats + self.numeric.num_columns * settings.numeric_width
        self.network = mlp(width, settings.layers, inputs.num_outputs, settings.dropout, settings.batch_norm)

    @classmethod
    def list_obstacle(cls, inputs: ModelInputs) -> str | None:
        """As `Model.list_obstacle`: it needs a list with the vocabulary of an id column."""
        if any(inputs.shared_column(place) is not None for place in range(len(inputs.lists))):
            return None
        return (
            "it attends to lists that share the vocabulary of an id column, such as a history of items, and the schema "
            "has none. Set features.history (recipe interactions) or shares of a list (features.lists), which the step "
            "history makes, or choose another model, such as dcn."
        )

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats, lists)
        columns, weighed = self._weighed(ids, lists)
        parts = [columns]
        for elements, weights, owners in weighed:
            shares = (elements * weights[:, None]).to(columns.dtype)
            parts.append(columns.new_zeros(ids.shape[0], elements.shape[1]).index_add(0, owners, shares))
        parts += self.tables.of_lists(lists, ids.shape[0], self.pooled)
        parts.append(self.float_norm(floats))
        if self.numeric.num_columns:
            parts.append(self.numeric(floats).flatten(1))
        return cast(Tensor, self.network(torch.cat(parts, dim=1))).float()

    def attention(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged]) -> list[Tensor]:
        """The weight of each element in its list's vector, times its own weight if it has one: of each attended list,
        in the order of the schema, [T] float32. As in evaluation mode, whatever the model's mode is, which stays."""
        self.require_inputs(ids, floats, lists)
        with modes_kept(self):
            self.eval()
            return [weights for _, weights, _ in self._weighed(ids, lists)[1]]

    def _weighed(self, ids: Tensor, lists: Sequence[Jagged]) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
        """The id columns' vectors [B, C d], and of each attended list its elements' vectors [T, d], their weights [T]
        and the rows [T] that they are of."""
        columns = self.tables.of_columns(ids)
        values, found = columns.unflatten(1, (len(self.inputs.num_ids), -1)), []
        for unit, (place, column) in zip(self.units, self.attended.items(), strict=True):
            item = lists[place]
            elements, owners = self.tables.list_rows(place, item.ids), list_places(item)
            weights = cast(Tensor, unit(elements, values[:, column], owners))
            if self.settings.attention_norm == "softmax":
                weights = list_softmax(weights, owners, ids.shape[0])
            if item.weights is not None:
                weights = weights * item.weights
            found.append((elements, weights, owners))
        return columns, found


def list_softmax(logits: Tensor, owners: Tensor, num_lists: int) -> Tensor:
    """Softmax over the elements of each list: logits [T] of elements of the lists `owners` [T] int64 -> [T]."""
    level = logits.new_full((num_lists,), float("-inf")).scatter_reduce(0, owners, logits.detach(), "amax")
    shares = (logits - level.index_select(0, owners)).exp()
    sums = shares.new_zeros(num_lists).index_add(0, owners, shares)
    return shares / sums.index_select(0, owners)
