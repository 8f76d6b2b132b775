"""AutoInt: columns look at each other through multi-head self-attention; each layer adds an order of interaction.

    alpha^h_mk = softmax_k <W_Q^h e_m, W_K^h e_k>                    how much field m takes from field k   (equation 5)
    e~_m = the heads' sum_k alpha^h_mk W_V^h e_k, side by side                                        (equations 6, 7)
    e'_m = ReLU(e~_m + W_Res e_m)                                    the next layer's e_m                  (equation 8)
    output = b + w . (e'_1, ..., e'_N)                                                                     (equation 9)

Song, Shi, Xiao, Duan, Xu, Zhang and Tang, AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural
Networks, CIKM 2019 (arXiv 1810.11921). With `layers` it is the paper's AutoInt+: a perceptron over the same vectors is
added to the output. Use it where which columns interact depends on their values, and where the attention is to be
looked at (`attention`): it says which columns a prediction put together.

Shapes: B rows of a batch, N fields (columns), d embedding_dim, H heads, a head_dim, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.attention import attention
from gigabatch.models.layers.fields import FieldEmbeddings, OutputLinear, check_settings, mlp
from gigabatch.models.layers.numeric import Numeric
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.model import Model
from gigabatch.models.modes import modes_kept


@dataclass(frozen=True)
class AutoIntSettings(PoolingSettings):
    """Settings of AutoInt.

    Parameters
    ----------
    embedding_dim : int, default 16
        Numbers in the vector of a value.
    num_layers : int, default 3
        Attention layers.
    num_heads : int, default 2
        Heads of each layer.
    head_dim : int, default 32
        Numbers in a head's queries, keys and values.
    scaled : bool, default True
        Divide attention logits by the root of `head_dim`, as the authors' code does and the paper's equation does not.
    attention_dropout : float, default 0.0
        Of attention weights, in training.
    layers : tuple of int, default ()
        Widths of the hidden layers of AutoInt+'s perceptron; empty for AutoInt.
    dropout : float, default 0.0
        Of each hidden layer's outputs, in training.
    batch_norm : bool, default True
        In each hidden layer.
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
    >>> AutoIntSettings(layers=(64,)).layers  # AutoInt+
    (64,)
    """

    embedding_dim: int = 16
    num_layers: int = 3
    num_heads: int = 2
    head_dim: int = 32
    scaled: bool = True
    attention_dropout: float = 0.0
    layers: tuple[int, ...] = ()
    dropout: float = 0.0
    batch_norm: bool = True
    numeric: Numeric = "bins"

    def __post_init__(self) -> None:
        check_settings(self, may_be_empty=("layers",))


class InteractingLayer(nn.Module):
    """One layer of self-attention among the fields, with a projected residual: [B, N, dim] -> [B, N, H a]."""

    def __init__(self, dim: int, settings: AutoIntSettings) -> None:
        super().__init__()
        self.num_heads, self.head_dim = settings.num_heads, settings.head_dim
        self.scale = settings.head_dim**-0.5 if settings.scaled else 1.0
        self.dropout = settings.attention_dropout
        self.width = self.num_heads * self.head_dim
        self.queries_keys_values = nn.Linear(dim, 3 * self.width, bias=False)
        self.residual = nn.Linear(dim, self.width, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, N, dim] -> [B, N, H a]."""
        queries, keys, values = self._heads(vectors)
        dropout = self.dropout if self.training else 0.0
        mixed = attention(queries, keys, values, dropout, self.scale)
        return functional.relu(mixed.transpose(1, 2).flatten(2) + self.residual(vectors))

    def attention(self, vectors: Tensor) -> Tensor:
        """alpha [B, H, N, N]: the share of field k (last) in what field m takes, summing to 1 over k."""
        queries, keys, _ = self._heads(vectors)
        return torch.softmax(self.scale * queries @ keys.transpose(2, 3), dim=3)

    def _heads(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, [B, H, N, a] each."""
        projected = self.queries_keys_values(vectors).unflatten(2, (3, self.num_heads, self.head_dim))
        return projected.permute(2, 0, 3, 1, 4).unbind(0)


class AutoInt(Model):
    """AutoInt: attention layers over the columns' vectors, then a linear layer; AutoInt+ adds a perceptron.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs.
    settings : AutoIntSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import AutoInt, ModelInputs
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2)
    >>> model = AutoInt(inputs, AutoInt.Settings(embedding_dim=4, num_layers=2))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape
    torch.Size([3, 1])
    >>> model.attention(ids, floats).shape  # layers, rows, heads, columns, columns
    torch.Size([2, 3, 2, 4, 4])
    """

    Settings = AutoIntSettings
    takes_lists = True

    def __init__(self, inputs: ModelInputs, settings: AutoIntSettings) -> None:
        super().__init__(inputs, settings)
        dim = settings.embedding_dim
        self.fields = FieldEmbeddings(inputs, dim, numeric=settings.numeric, pooling=settings.pooling)
        width = settings.num_heads * settings.head_dim
        self.interacting = nn.ModuleList(
            InteractingLayer(width if layer else dim, settings) for layer in range(settings.num_layers)
        )
        self.output = OutputLinear(self.fields.num_fields * width, inputs.num_outputs)
        self.deep = None
        if settings.layers:
            num_in = self.fields.num_fields * dim
            self.deep = mlp(num_in, settings.layers, inputs.num_outputs, settings.dropout, settings.batch_norm)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats, lists)
        vectors = self.fields(ids, floats, lists)
        mixed = vectors
        for layer in self.interacting:
            mixed = layer(mixed)
        outputs = self.output(mixed.flatten(1))
        if self.deep is not None:
            outputs = outputs + self.deep(vectors.flatten(1))
        return outputs.float()

    def attention(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """Attention of every layer: [num_layers, B, H, N, N], see `InteractingLayer.attention`; fields are the id
        columns, then the float columns. As in evaluation mode, whatever the model's mode is, which stays."""
        self.require_inputs(ids, floats, lists)
        with modes_kept(self):
            self.eval()
            vectors, found = self.fields(ids, floats, lists), []
            for module in self.interacting:
                layer = cast(InteractingLayer, module)
                found.append(layer.attention(vectors))
                vectors = layer(vectors)
        return torch.stack(found)
