"""DeepFM: a factorization machine and a deep network over the same embedded fields, their logits added.

    y = w0 + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j + MLP([v_1 x_1, ..., v_N x_N])           (equations 1 to 4)

Guo et al., DeepFM, IJCAI 2017, arXiv 1703.04247. The factorization machine takes single columns and pairs, the network
what is of higher order. A good first choice where the interactions are not known: it has few settings, and no cross is
made by hand.

Shapes: B rows of a batch, N fields (columns), d embedding_dim, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gigabatch.models.click.fm import NUMERIC_START, PairTerms
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.fields import FieldEmbeddings, LinearTerms, check_settings, float_norm, linear_numeric, mlp
from gigabatch.models.layers.numeric import Numeric
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.model import Model


@dataclass(frozen=True)
class DeepFMSettings(PoolingSettings):
    """Settings of DeepFM.

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
    pooling : {'sum', 'mean', 'root', 'max'}, default 'mean'
        What becomes of the vectors of a list column's elements; `max` takes no weights.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> DeepFMSettings(layers=[64, 32]).layers  # as a YAML file gives them
    (64, 32)
    """

    embedding_dim: int = 16
    layers: tuple[int, ...] = (400, 400, 400)
    dropout: float = 0.2
    batch_norm: bool = True
    numeric: Numeric = "bins"

    def __post_init__(self) -> None:
        check_settings(self)


class DeepFM(Model):
    """DeepFM: linear terms, pair terms and network; floats are batch-normed, then take part in all three.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs.
    settings : DeepFMSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import DeepFM, ModelInputs
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2)
    >>> model = DeepFM(inputs, DeepFM.Settings(embedding_dim=4, layers=(8,)))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape
    torch.Size([3, 1])
    """

    Settings = DeepFMSettings
    multiplies_floats = True
    takes_lists = True

    def __init__(self, inputs: ModelInputs, settings: DeepFMSettings) -> None:
        super().__init__(inputs, settings)
        dim, numeric, pooling = settings.embedding_dim, settings.numeric, settings.pooling
        self.float_norm = float_norm(inputs)
        self.linear = LinearTerms(inputs, batch_norm=False, numeric=linear_numeric(numeric), pooling=pooling)
        self.fields = FieldEmbeddings(
            inputs, dim, batch_norm=False, numeric=numeric, numeric_start=NUMERIC_START, pooling=pooling
        )
        self.pairs = PairTerms(dim, inputs.num_outputs)
        width = self.fields.num_fields * dim
        self.deep = mlp(width, settings.layers, inputs.num_outputs, settings.dropout, settings.batch_norm)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats, lists)
        normed = self.float_norm(floats)
        vectors = self.fields(ids, normed, lists, given=floats)
        linear = self.linear(ids, normed, lists, given=floats)
        return linear + self.pairs(vectors) + self.deep(vectors.flatten(1)).float()
