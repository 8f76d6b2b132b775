"""DLRM: floats through a bottom network to one more vector, dot products of all pairs of vectors, a top network.

    z = MLP_bottom(floats),   y = MLP_top([z, <t_i, t_j> for i < j])    with t = z and the embedded ids

Naumov et al., Deep Learning Recommendation Model, arXiv 1906.00091, sections 2.1 and 2.3; MLPerf's model. For tables of
many and large id columns beside dense floats: the dots hand the network second-order interactions, so it may be small.

Shapes: B rows of a batch, C id columns, F float columns, T = C + 1 vectors (C without floats), d embedding_dim,
O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.fields import check_settings, float_norm, mlp, one_of, rows_of, tables_of
from gigabatch.models.layers.numeric import NUMERIC_WIDTH, Numeric, NumericEmbedding
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.model import Model

INTERACTIONS = ("dot", "cat")


@dataclass(frozen=True)
class DLRMSettings(PoolingSettings):
    """Settings of DLRM.

    Parameters
    ----------
    embedding_dim : int, default 16
        Numbers in the vector of a value.
    bottom_layers : tuple of int, default (512, 256, 64)
        Widths of the bottom network's hidden layers; a layer of width `embedding_dim` follows.
    top_layers : tuple of int, default (512, 256)
        Widths of the top network's hidden layers.
    dropout : float, default 0.0
        Of the hidden layers of both networks; the paper has none.
    batch_norm : bool, default False
        In the hidden layers of both networks; the paper has none.
    interaction : {'dot', 'cat'}, default 'dot'
        `dot`: the top network sees the bottom's output and the dot products. `cat`: it sees all vectors side by side.
    numeric : str or dict of str to str, default 'bins'
        Vectors beside the float columns, of their quantile bins; or `periodic`, or `plain`: none. By column: its
        name and kind, and `*` for the others.
    numeric_width : int, default 16
        Of each float column's vector.
    pooling : {'sum', 'mean', 'root', 'max'}, default 'mean'
        What becomes of the vectors of a list column's elements; `max` takes no weights.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> DLRMSettings(interaction="cat").interaction
    'cat'
    """

    embedding_dim: int = 16
    bottom_layers: tuple[int, ...] = (512, 256, 64)
    top_layers: tuple[int, ...] = (512, 256)
    dropout: float = 0.0
    batch_norm: bool = False
    interaction: str = "dot"
    numeric: Numeric = "bins"
    numeric_width: int = NUMERIC_WIDTH

    def __post_init__(self) -> None:
        check_settings(self, may_be_empty=("bottom_layers",))
        one_of("interaction", self.interaction, INTERACTIONS)


class PairDots(nn.Module):
    """Dot products of all pairs of T vectors, in the order (0, 1), (0, 2), ..., (T-2, T-1)."""

    places: Tensor

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        first, second = torch.triu_indices(num_vectors, num_vectors, offset=1)
        self.register_buffer("places", first * num_vectors + second, persistent=False)
        self.num_pairs = len(first)

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, T, d] -> [B, T (T - 1) / 2]."""
        return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.places)


class DLRM(Model):
    """DLRM: bottom network, interactions, top network. Floats are batch-normed first; there may be none.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs.
    settings : DLRMSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import DLRM, ModelInputs
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2)
    >>> model = DLRM(inputs, DLRM.Settings(embedding_dim=4, bottom_layers=(8,), top_layers=(8,)))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape
    torch.Size([3, 1])
    """

    Settings = DLRMSettings
    multiplies_floats = True
    takes_lists = True

    def __init__(self, inputs: ModelInputs, settings: DLRMSettings) -> None:
        super().__init__(inputs, settings)
        num_ids, dim = inputs.num_ids, settings.embedding_dim
        num_vectors = len(num_ids) + len(inputs.lists) + bool(inputs.num_floats)
        require(
            num_vectors >= 2 or settings.interaction == "cat",
            f"model dlrm: {len(num_ids)} id columns, {len(inputs.lists)} lists and {inputs.num_floats} floats make one "
            "vector, which has no pair. Give it another column, or choose another model.",
        )
        self.tables = tables_of(inputs, dim, pooling=settings.pooling)
        self.float_norm = float_norm(inputs)
        self.numeric = NumericEmbedding(inputs, settings.numeric, settings.numeric_width)
        self.bottom = self._bottom(inputs, settings) if inputs.num_floats else None
        self.dots = PairDots(num_vectors) if settings.interaction == "dot" else None
        width = num_vectors * dim if self.dots is None else self.dots.num_pairs + dim * (self.bottom is not None)
        self.top = mlp(width, settings.top_layers, inputs.num_outputs, settings.dropout, settings.batch_norm)

    def _bottom(self, inputs: ModelInputs, settings: DLRMSettings) -> nn.Sequential:
        layers = (*settings.bottom_layers, settings.embedding_dim)
        width = inputs.num_floats + self.numeric.num_columns * settings.numeric_width
        return mlp(width, layers, None, settings.dropout, settings.batch_norm)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats, lists)
        vectors = rows_of(self.tables, ids, lists).unflatten(
            1, (ids.shape[1] + len(lists), self.settings.embedding_dim)
        )
        dense = [] if self.bottom is None else [self.bottom(self._dense(floats))]
        vectors = torch.cat([*(vector[:, None] for vector in dense), vectors], dim=1)
        seen = vectors.flatten(1) if self.dots is None else torch.cat([*dense, self.dots(vectors)], dim=1)
        return self.top(seen).float()

    def _dense(self, floats: Tensor) -> Tensor:
        """[B, F] -> the bottom network's input: normed floats, and their vectors where they have some."""
        normed = self.float_norm(floats)
        return torch.cat([normed, self.numeric(floats).flatten(1)], dim=1) if self.numeric.num_columns else normed
