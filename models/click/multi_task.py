"""Several targets from one model: a part that all share, and a small network, the tower, for each output.

    shared_bottom:  output_k = tower_k(f(x))
    mmoe:           output_k = tower_k(sum_i softmax(W_k x)_i f_i(x))        each task mixes the experts

Shared bottom: Caruana, Multitask learning, 1993. MMoE: Ma, Zhao, Yi, Chen, Hong and Chi, Modeling Task Relationships in
Multi-task Learning with Multi-gate Mixture-of-Experts, KDD 2018. Use it for click, like and purchase of the same rows:
scarce labels gain from plentiful ones. Shared bottom where the tasks agree; MMoE where they may not, for then a task
can turn to other experts instead of pulling at the same weights.

Shapes: B rows of a batch, E experts, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.fields import InputRow, check_settings, mlp, one_of
from gigabatch.models.layers.numeric import NUMERIC_WIDTH, Numeric
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.model import Model

STRUCTURES = ("shared_bottom", "mmoe")
NUM_EXPERTS = 8


@dataclass(frozen=True)
class MultiTaskSettings(PoolingSettings):
    """Settings of the multi-task model.

    Parameters
    ----------
    structure : {'shared_bottom', 'mmoe'}, default 'mmoe'
        One network for all tasks, or experts that a gate of each task mixes.
    embedding_dim : int, default 16
        Numbers in the vector of a value.
    layers : tuple of int, default (256, 128)
        Widths of the hidden layers of the shared bottom, or of each expert.
    num_experts : int or None, default None
        Experts of `mmoe`, 8 if it is not given; it is not given for a shared bottom.
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
    >>> MultiTaskSettings(structure="shared_bottom", layers=[64]).layers
    (64,)
    """

    structure: str = "mmoe"
    embedding_dim: int = 16
    layers: tuple[int, ...] = (256, 128)
    num_experts: int | None = None
    tower_layers: tuple[int, ...] = (64,)
    dropout: float = 0.0
    batch_norm: bool = True
    numeric: Numeric = "bins"
    numeric_width: int = NUMERIC_WIDTH

    def __post_init__(self) -> None:
        check_settings(self, may_be_empty=("tower_layers",))
        one_of("structure of multi_task", self.structure, STRUCTURES)
        require(
            self.num_experts is None or self.structure == "mmoe",
            f"num_experts {self.num_experts}: a shared bottom has no experts. Leave it out, or set structure to mmoe.",
        )


class MultiTask(Model):
    """Multi-task model: embedded ids and floats through a shared bottom or gated experts, then a tower for each output.

    An output is a task: one a binary or regression target, in the order of the targets. The K outputs of a multiclass
    target have K towers (and gates), which the model cannot tell from K tasks.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs.
    settings : MultiTaskSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import ModelInputs, MultiTask
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2, num_outputs=2)
    >>> model = MultiTask(inputs, MultiTask.Settings(layers=(8,), num_experts=2, tower_layers=()))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape
    torch.Size([3, 2])
    """

    Settings = MultiTaskSettings
    takes_lists = True

    def __init__(self, inputs: ModelInputs, settings: MultiTaskSettings) -> None:
        super().__init__(inputs, settings)
        gated = settings.structure == "mmoe"
        num_experts = (settings.num_experts or NUM_EXPERTS) if gated else 1
        network = partial(mlp, dropout=settings.dropout, batch_norm=settings.batch_norm)
        numeric = settings.numeric, settings.numeric_width
        self.row = InputRow(inputs, settings.embedding_dim, True, *numeric, settings.pooling)
        self.experts = nn.ModuleList(network(self.row.width, settings.layers, None) for _ in range(num_experts))
        # The gates of all tasks are one linear layer.
        self.gates = nn.Linear(self.row.width, inputs.num_outputs * num_experts, bias=False) if gated else None
        self.towers = nn.ModuleList(
            network(settings.layers[-1], settings.tower_layers, 1) for _ in range(inputs.num_outputs)
        )

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats, lists)
        row = self.row(ids, floats, lists)
        found = torch.stack([expert(row) for expert in self.experts], dim=1)
        if self.gates is None:
            shared = [found[:, 0]] * len(self.towers)
        else:
            shared = list(torch.bmm(self._shares(row).to(found.dtype), found).unbind(1))
        return torch.cat([tower(part) for tower, part in zip(self.towers, shared, strict=True)], dim=1).float()

    def shares(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """How much of each expert each output takes: [B, O, E], summing to 1 over E; for a shared bottom all 1."""
        self.require_inputs(ids, floats, lists)
        if self.gates is None:
            return floats.new_ones(floats.shape[0], self.inputs.num_outputs, 1)
        return self._shares(self.row(ids, floats, lists))

    def _shares(self, row: Tensor) -> Tensor:
        assert self.gates is not None
        return torch.softmax(self.gates(row).unflatten(1, (self.inputs.num_outputs, -1)), dim=2)
