"""DCN-V2: layers that multiply the inputs in once more each, and a deep network beside them or after them.

    x_{l+1} = x_0 * (W_l x_l + b_l) + x_l                                               (equation 1)
    x_{l+1} = x_0 * (U_l V_l^T x_l + b_l) + x_l                                         (equation 2, low rank)
    x_{l+1} = sum_i G_i(x_l) [x_0 * (U_i tanh(C_i tanh(V_i^T x_l)) + b_l)] + x_l        (experts, DCN-Mix)

Wang et al., DCN V2, WWW 2021, arXiv 2008.13535, sections 3.2 and 3.5; `*` is elementwise, x_0 = [embedded ids, floats].
n cross layers hold every product of up to n + 1 columns. For interactions of a known small order, third ones above all,
that products of two columns miss and a plain network learns slowly. `rank` makes the cross layers cheap where x_0 is
wide.

Shapes: B rows of a batch, W width of x_0, r rank, K experts, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.fields import InputRow, OutputLinear, check_settings, mlp, one_of
from gigabatch.models.layers.numeric import NUMERIC_WIDTH, Numeric
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.model import Model

STRUCTURES = ("parallel", "stacked")


@dataclass(frozen=True)
class CrossNetworkSettings(PoolingSettings):
    """Settings of DCN-V2. W is the width of the input row: all embedded ids and the floats.

    Parameters
    ----------
    embedding_dim : int, default 16
        Numbers in the vector of a value.
    cross_layers : int, default 3
        How many; n of them reach products of n + 1 columns.
    rank : int or None, default None
        None: W x W matrices. Else r, of their factors U, V [W, r].
    experts : int, default 1
        Low-rank pairs in each layer, weighed by a gate that sees the row; more than 1 needs a rank.
    layers : tuple of int, default (400, 400, 400)
        Widths of the deep network's hidden layers; none leaves the cross layers alone.
    dropout : float, default 0.2
        Of each hidden layer's outputs, in training.
    batch_norm : bool, default True
        In each hidden layer.
    structure : {'parallel', 'stacked'}, default 'parallel'
        `parallel`: cross and deep network both see the input row. `stacked`: the deep one sees the cross layers'
        output.
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
    >>> CrossNetworkSettings(rank=8, experts=2).experts
    2
    """

    embedding_dim: int = 16
    cross_layers: int = 3
    rank: int | None = None
    experts: int = 1
    layers: tuple[int, ...] = (400, 400, 400)
    dropout: float = 0.2
    batch_norm: bool = True
    structure: str = "parallel"
    numeric: Numeric = "bins"
    numeric_width: int = NUMERIC_WIDTH

    def __post_init__(self) -> None:
        check_settings(self, may_be_empty=("layers",))
        one_of("structure", self.structure, STRUCTURES)
        require(
            self.rank is not None or self.experts == 1,
            f"experts: {self.experts} experts are low-rank ones; set rank too, or leave experts at 1.",
        )


class LowRankLinear(nn.Sequential):
    """x -> U V^T x + b: [B, W] -> [B, W]."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))


class ExpertLinear(nn.Module):
    """x -> sum_i G_i(x) U_i tanh(C_i tanh(V_i^T x)) + b, with G the softmax of a linear gate: [B, W] -> [B, W].

    The paper has b inside the sum; the gates add up to 1, so it comes to the same.
    """

    def __init__(self, width: int, rank: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.down = nn.Parameter(_uniform(experts, width, rank))  # V
        self.between = nn.Parameter(_uniform(experts, rank, rank))  # C
        self.up = nn.Parameter(_uniform(experts, rank, width))  # U
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(torch.tanh(x @ self.down) @ self.between)  # [K, B, r]
        weights = torch.softmax(self.gate(x), dim=1).t()[:, :, None]  # [K, B, 1]
        return (weights * (hidden @ self.up)).sum(dim=0) + self.bias


class CrossLayers(nn.Module):
    """x_0 -> x_n of the equations above: [B, W] -> [B, W]."""

    def __init__(self, width: int, num_layers: int, rank: int | None, experts: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(_cross_map(width, rank, experts) for _ in range(num_layers))

    def forward(self, x0: Tensor) -> Tensor:
        x = x0
        for cross_map in self.maps:
            x = x0 * cross_map(x) + x
        return x


class DCN(Model):
    """DCN-V2: cross layers and a deep network over embedded ids and batch-normed floats, then a linear layer.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs.
    settings : CrossNetworkSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import DCN, ModelInputs
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2)
    >>> model = DCN(inputs, DCN.Settings(embedding_dim=4, layers=(8,)))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape
    torch.Size([3, 1])
    """

    Settings = CrossNetworkSettings
    multiplies_floats = True
    takes_lists = True

    def __init__(self, inputs: ModelInputs, settings: CrossNetworkSettings) -> None:
        super().__init__(inputs, settings)
        numeric = settings.numeric, settings.numeric_width
        self.row = InputRow(inputs, settings.embedding_dim, True, *numeric, settings.pooling)
        width = self.row.width
        self.cross = CrossLayers(width, settings.cross_layers, settings.rank, settings.experts)
        self.deep = mlp(width, settings.layers, None, settings.dropout, settings.batch_norm)
        deep_width = settings.layers[-1] if settings.layers else 0
        beside = settings.structure == "parallel" or not settings.layers
        self.output = OutputLinear(deep_width + width * beside, inputs.num_outputs)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats, lists)
        x0 = self.row(ids, floats, lists)
        x = self.cross(x0)
        if self.settings.layers:
            stacked = self.settings.structure == "stacked"
            x = self.deep(x) if stacked else torch.cat([x, self.deep(x0)], dim=1)
        return self.output(x).float()


def _cross_map(width: int, rank: int | None, experts: int) -> nn.Module:
    """What a layer multiplies x_0 with."""
    if rank is None:
        return nn.Linear(width, width)
    return LowRankLinear(width, rank) if experts == 1 else ExpertLinear(width, rank, experts)


def _uniform(experts: int, num_in: int, num_out: int) -> Tensor:
    """[experts, num_in, num_out], each drawn as the weights of a torch linear layer are."""
    return torch.empty(experts, num_in, num_out).uniform_(-1, 1) * num_in**-0.5
