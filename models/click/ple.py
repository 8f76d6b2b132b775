"""Progressive layered extraction: experts of each task beside shared ones, mixed by gates, layer upon layer.

Of task k, with x_k^0 = x_s^0 = x the row, and layers l = 1 ... L:

    x_k^l = softmax(W_k^l x_k^(l-1)) [E_k^l(x_k^(l-1)); E_s^l(x_s^(l-1))]             its own experts, and the shared
    x_s^l = softmax(W_s^l x_s^(l-1)) [E_1^l(x_1^(l-1)); ...; E_s^l(x_s^(l-1))]        all experts; not in the last layer
    output_k = tower_k(x_k^L)

Tang, Liu, Zhao and Gong, Progressive Layered Extraction: A Novel Multi-Task Learning Model for Personalized
Recommendations, RecSys 2020 (equations 5 to 8; one layer is its CGC). Where tasks conflict, MMoE's experts are pulled
at by all of them, and one task gains what another loses; here each has experts that no other moves.

Shapes: B rows of a batch, O outputs (tasks), E experts that a gate mixes, D width of an expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.fields import InputRow, check_settings, mlp
from gigabatch.models.layers.numeric import NUMERIC_WIDTH, Numeric
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.model import Model


@dataclass(frozen=True)
class ProgressiveLayeredExtractionSettings(PoolingSettings):
    """Settings of progressive layered extraction.

    Parameters
    ----------
    embedding_dim : int, default 16
        Numbers in the vector of a value.
    layers : tuple of int, default (128, 64)
        Width of the experts of each extraction layer; an expert is one hidden layer.
    num_experts : int, default 2
        Of each task, in each layer.
    num_shared : int, default 2
        Experts that all tasks share, in each layer.
    tower_layers : tuple of int, default (64,)
        Widths of the hidden layers of each tower; empty for a linear one.
    dropout : float, default 0.0
        Of each hidden layer's outputs, in training.
    batch_norm : bool, default True
        In each hidden layer.
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
    >>> ProgressiveLayeredExtractionSettings(layers=[64]).layers
    (64,)
    """

    embedding_dim: int = 16
    layers: tuple[int, ...] = (128, 64)
    num_experts: int = 2
    num_shared: int = 2
    tower_layers: tuple[int, ...] = (64,)
    dropout: float = 0.0
    batch_norm: bool = True
    numeric: Numeric = "bins"
    numeric_width: int = NUMERIC_WIDTH

    def __post_init__(self) -> None:
        check_settings(self, may_be_empty=("tower_layers",))


class ExtractionLayer(nn.Module):
    """Rows of each task and a shared one [B, num_in] each -> the same of width `width`.

    The experts of the tasks come first, those shared last. is_last: the shared row goes no further, and has no gate.
    """

    def __init__(
        self, num_in: int, width: int, num_tasks: int, settings: ProgressiveLayeredExtractionSettings, is_last: bool
    ) -> None:
        super().__init__()
        num_experts, num_shared = settings.num_experts, settings.num_shared
        counts = [num_experts] * num_tasks + [num_shared]
        self.experts = nn.ModuleList(
            nn.ModuleList(mlp(num_in, (width,), None, settings.dropout, settings.batch_norm) for _ in range(count))
            for count in counts
        )
        mixed = [num_experts + num_shared] * num_tasks + ([] if is_last else [sum(counts)])
        self.gates = nn.ModuleList(nn.Linear(num_in, count, bias=False) for count in mixed)

    def forward(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """rows: of each task, then the shared one."""
        found = [
            torch.stack([expert(row) for expert in cast(nn.ModuleList, own)], 1)
            for own, row in zip(self.experts, rows, strict=True)
        ]
        mixed = []
        for place, (gate, row) in enumerate(zip(self.gates, rows, strict=False)):
            experts = torch.cat([found[place], found[-1]] if place + 1 < len(found) else found, dim=1)
            shares = torch.softmax(gate(row), dim=1).to(experts.dtype)
            mixed.append(torch.bmm(shares[:, None], experts)[:, 0])
        return mixed


class ProgressiveLayeredExtraction(Model):
    """Progressive layered extraction (PLE): own and shared experts in layers, then a tower for each output.

    An output is a task: one a binary or regression target, in the order of the targets. The K outputs of a multiclass
    target have K towers, gates and sets of experts, which the model cannot tell from K tasks.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs.
    settings : ProgressiveLayeredExtractionSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import ModelInputs, ProgressiveLayeredExtraction
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2, num_outputs=2)
    >>> settings = ProgressiveLayeredExtraction.Settings(layers=(8, 4), tower_layers=())
    >>> model = ProgressiveLayeredExtraction(inputs, settings)
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape
    torch.Size([3, 2])
    """

    Settings = ProgressiveLayeredExtractionSettings
    takes_lists = True

    def __init__(self, inputs: ModelInputs, settings: ProgressiveLayeredExtractionSettings) -> None:
        super().__init__(inputs, settings)
        numeric = settings.numeric, settings.numeric_width
        self.row = InputRow(inputs, settings.embedding_dim, True, *numeric, settings.pooling)
        widths = (self.row.width, *settings.layers)
        last = len(settings.layers) - 1
        self.extraction = nn.ModuleList(
            ExtractionLayer(num_in, width, inputs.num_outputs, settings, is_last=place == last)
            for place, (num_in, width) in enumerate(pairwise(widths))
        )
        self.towers = nn.ModuleList(
            mlp(widths[-1], settings.tower_layers, 1, settings.dropout, settings.batch_norm)
            for _ in range(inputs.num_outputs)
        )

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats, lists)
        rows = [self.row(ids, floats, lists)] * (self.inputs.num_outputs + 1)
        for layer in self.extraction:
            rows = layer(rows)
        return torch.cat([tower(row) for tower, row in zip(self.towers, rows, strict=True)], dim=1).float()
