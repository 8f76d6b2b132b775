"""Factorization machine: linear terms and the interaction of every two columns, by vectors of the columns' values.

    y = w0 + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j                                             (equation 1)

computed in O(N d) as sum_k ((sum_i v_ik x_i)^2 - sum_i (v_ik x_i)^2) / 2 (lemma 3.1). Rendle, Factorization Machines,
ICDM 2010. For sparse data in which pairs matter and most pairs are seldom seen together: a pair's weight follows from
the vectors that its two values have learnt in other company.

Shapes: B rows of a batch, N fields (columns), d embedding_dim, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.fields import FieldEmbeddings, LinearTerms, check_settings, float_norm, linear_numeric
from gigabatch.models.layers.numeric import Numeric
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.model import Model

NUMERIC_START = 0.1  # times the floats' vectors; at 1 the pairs of 25 floats give random logits of some units at first


@dataclass(frozen=True)
class FactorizationMachineSettings(PoolingSettings):
    """Settings of the factorization machine.

    Parameters
    ----------
    embedding_dim : int, default 16
        Numbers in the vector of a value.
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
    >>> FactorizationMachineSettings(embedding_dim=8)
    FactorizationMachineSettings(pooling='mean', embedding_dim=8, numeric='bins')
    """

    embedding_dim: int = 16
    numeric: Numeric = "bins"

    def __post_init__(self) -> None:
        check_settings(self)


class PairTerms(nn.Module):
    """The sum of products of all pairs of fields' vectors, <v_i, v_j> over i < j.

    One output takes the plain inner product. Several weigh its d terms each in its own way, sum_k h_ok v_ik v_jk, with
    h learnt from 1, so that they share the vectors (the paper has one output).
    """

    def __init__(self, dim: int, num_outputs: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(num_outputs, dim)) if num_outputs > 1 else None

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, N, d] -> [B, O], computed in float32: a difference of large sums; in float64 of such vectors."""
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = vectors if vectors.dtype == torch.float64 else vectors.float()
            terms = (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)) / 2
            return terms.sum(dim=1, keepdim=True) if self.weights is None else terms @ self.weights.t().to(terms.dtype)


class FactorizationMachine(Model):
    """Factorization machine: linear and pair terms; floats are batch-normed, then take part in both.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs.
    settings : FactorizationMachineSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import FactorizationMachine, ModelInputs
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2)
    >>> model = FactorizationMachine(inputs, FactorizationMachine.Settings(embedding_dim=4))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape
    torch.Size([3, 1])
    """

    Settings = FactorizationMachineSettings
    multiplies_floats = True
    takes_lists = True

    def __init__(self, inputs: ModelInputs, settings: FactorizationMachineSettings) -> None:
        super().__init__(inputs, settings)
        self.float_norm = float_norm(inputs)
        dim, numeric, pooling = settings.embedding_dim, settings.numeric, settings.pooling
        self.linear = LinearTerms(inputs, batch_norm=False, numeric=linear_numeric(numeric), pooling=pooling)
        self.fields = FieldEmbeddings(
            inputs, dim, batch_norm=False, numeric=numeric, numeric_start=NUMERIC_START, pooling=pooling
        )
        self.pairs = PairTerms(settings.embedding_dim, inputs.num_outputs)

    @property
    def table_rate(self) -> float:
        """As `Model.table_rate`: 5 where pairs of users and items decide. Vectors start near 0, where pairs have no
        slope, and most of these rows are seen seldom. Where all columns describe the row it would learn noise."""
        return 5.0 if self.inputs.user is not None and self.inputs.item is not None else 1.0

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats, lists)
        normed = self.float_norm(floats)
        pairs = self.pairs(self.fields(ids, normed, lists, given=floats))
        return self.linear(ids, normed, lists, given=floats) + pairs
