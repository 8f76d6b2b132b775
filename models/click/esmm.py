"""Steps that follow each other, such as click, then purchase, all learnt from every row that was shown.

    P(step 1 ... k) = sigmoid(z_1) ... sigmoid(z_k)          z_k = tower_k(embedded row)

An output is the logit of such a product, so that its log loss is of the step having been reached from the very start. A
conversion's own rate z_2 is never trained on clicked rows alone, of which a model of conversion after click sees too
few and other ones than it has to score. Ma, Zhao, Huang, Wang, Hu, Zhu and Gai, Entire Space Multi-Task Model: An
Effective Approach for Estimating Post-Click Conversion Rate, SIGIR 2018 (equations 2 and 3); longer chains as in its
successor of 2020 (ESM2).

Shapes: B rows of a batch, O outputs (steps).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.fields import InputRow, check_settings, mlp
from gigabatch.models.layers.numeric import NUMERIC_WIDTH, Numeric
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.model import Model


@dataclass(frozen=True)
class EntireSpaceSettings(PoolingSettings):
    """Settings of the entire-space model.

    Parameters
    ----------
    embedding_dim : int, default 18
        Numbers in the vector of a value, which all steps share.
    layers : tuple of int, default (200, 80)
        Widths of the hidden layers of each step's network.
    dropout : float, default 0.0
        Of each hidden layer's outputs, in training.
    batch_norm : bool, default False
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
    >>> EntireSpaceSettings(layers=[64]).layers
    (64,)
    """

    embedding_dim: int = 18
    layers: tuple[int, ...] = (200, 80)
    dropout: float = 0.0
    batch_norm: bool = False
    numeric: Numeric = "bins"
    numeric_width: int = NUMERIC_WIDTH

    def __post_init__(self) -> None:
        check_settings(self)


class EntireSpace(Model):
    """Entire-space multi-task model (ESMM): shared vectors, a network a step, and chances that multiply.

    The targets are binary and stand in the order of the steps, such as clicked, bought. A target is 1 where its step
    and all before it were taken, and 0 in all other rows, also those that were not clicked; a training refuses others.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs.
    settings : EntireSpaceSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import EntireSpace, ModelInputs
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2, num_outputs=2)
    >>> model = EntireSpace(inputs, EntireSpace.Settings(layers=(8,)))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> clicked, bought = model(ids, floats).sigmoid().unbind(1)
    >>> bool((bought < clicked).all())
    True
    """

    Settings = EntireSpaceSettings
    takes_lists = True
    targets_are_steps = True

    def __init__(self, inputs: ModelInputs, settings: EntireSpaceSettings) -> None:
        super().__init__(inputs, settings)
        numeric = settings.numeric, settings.numeric_width
        self.row = InputRow(inputs, settings.embedding_dim, True, *numeric, settings.pooling)
        self.towers = nn.ModuleList(
            mlp(self.row.width, settings.layers, 1, settings.dropout, settings.batch_norm)
            for _ in range(inputs.num_outputs)
        )

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`: logits of having taken each step and those before it."""
        first, *others = self.steps(ids, floats, lists).unbind(1)
        found = [first]
        for step in others:  # 1 / (p q) - 1 = e^-a + e^-b + e^(-a-b), of the logits a and b of p and q
            before = found[-1]
            found.append(-torch.logsumexp(torch.stack([-before, -step, -before - step]), dim=0))
        return torch.stack(found, dim=1)

    def steps(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """Logits [B, O] float32 of each step where the one before it was taken: of conversion after click, say."""
        self.require_inputs(ids, floats, lists)
        row = self.row(ids, floats, lists)
        return torch.cat([tower(row) for tower in self.towers], dim=1).float()

    def require_targets(self, tasks: Sequence[str]) -> None:
        """Raise `ModelError` unless all targets are binary, and two or more."""
        require(
            len(tasks) > 1 and set(tasks) == {"binary"},
            f"esmm: its targets are binary steps, two or more, such as clicked and bought; found {', '.join(tasks)}. "
            "Choose another model, or name the steps in their order.",
        )
