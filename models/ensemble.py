"""Several models of one kind as one: its predictions are the mean of theirs.

Members are trained apart, with other seeds (`pipeline/training/ensemble.py`, `train.ensemble`); Lakshminarayanan,
Pritzel and Blundell, Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles, NeurIPS 2017, arXiv
1612.01474.

Shapes: B rows of a batch, k members, C id columns, F float columns, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from gigabatch.models.errors import ModelError, require
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.layers.members import mean_of_members
from gigabatch.models.layers.pooled import Jagged
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model, Rows, TargetScale


class Ensemble(Model):
    """Models of one kind, with the same inputs and settings, whose mean prediction is this one's.

    Of a binary target that is the mean probability, of classes their mean probabilities, of a regression the mean
    value, of several quantiles that of each (each member's sorted first, as it predicts them). What calibrates logits
    (`calibrate`) is of the mean; curves of members are not looked at.

    Parameters
    ----------
    members : sequence of Model
        Two and more. They are not trained through the ensemble, which has no training loss.

    Raises
    ------
    ModelError
        For fewer than two members, for members of several kinds, inputs, settings or target scales, for inputs that do
        not tell their targets, and for one that is an ensemble itself.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import LogisticRegression, ModelInputs
    >>> from gigabatch.models.ensemble import Ensemble
    >>> inputs = ModelInputs(num_ids=(5,), num_floats=1, targets=(("binary", 1),))
    >>> members = [LogisticRegression(inputs, LogisticRegression.Settings()) for _ in range(2)]
    >>> rows = torch.tensor([[3], [1]]), torch.tensor([[0.5], [7.0]])
    >>> mean = sum(torch.sigmoid(member(*rows)) for member in members) / 2
    >>> torch.allclose(torch.sigmoid(Ensemble(members)(*rows)), mean)
    True
    """

    def __init__(self, members: Sequence[Model]) -> None:
        require(len(members) >= 2, f"an ensemble has two members and more, not {len(members)}.")
        first = members[0]
        require(not isinstance(first, Ensemble), "a member of an ensemble cannot be an ensemble itself.")
        require(bool(first.inputs.targets), "an ensemble must know its targets. Give ModelInputs(targets=...).")
        for other in members[1:]:
            same = type(other) is type(first) and (other.inputs, other.settings) == (first.inputs, first.settings)
            require(same, "the members of an ensemble must be of one kind, with the same inputs and settings.")
            require(
                other.target_scales == first.target_scales,
                "the members of an ensemble must have one scale of each target, which outputs of others would not be "
                f"in: found {list(first.target_scales)} and {list(other.target_scales)}. Give `new_model` the same "
                "rows, or each model the same `scale_targets` before its training.",
            )
        super().__init__(first.inputs, first.settings)
        self.members = nn.ModuleList(members)
        self.item_is_its_key = first.item_is_its_key
        if first.target_scales:
            self.scale_targets(first.target_scales)

    @property
    def models(self) -> list[Model]:
        """The members."""
        return [cast(Model, member) for member in self.members]

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`: outputs whose prediction is the mean of the members' (`mean_of_members`)."""
        logs = {scale.output for scale in self.target_scales if scale.log}
        return mean_of_members(self.member_outputs(ids, floats, lists), self.inputs.targets, logs)

    def member_outputs(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """What each member makes of ids [B, C] and floats [B, F]: [B, k, O] float32, with quantiles that rise."""
        given = (ids, floats, lists) if lists else (ids, floats)  # not every model takes lists
        return torch.stack([self._sorted(member(*given).float()) for member in self.members], dim=1)

    def _sorted(self, outputs: Tensor) -> Tensor:
        """Outputs [B, O] with the quantiles of each target in order, as `in_target_units` has them: one target's have
        one scale."""
        if not self._quantile_places:
            return outputs
        columns = list(outputs.unbind(1))
        for first, stop in self._quantile_places:
            columns[first:stop] = torch.stack(columns[first:stop], dim=1).sort(dim=1).values.unbind(1)
        return torch.stack(columns, dim=1)

    def scale_targets(self, scales: Sequence[TargetScale]) -> None:
        """As `Model.scale_targets`, of all members, whose outputs are of one unit."""
        for one, other in pairwise(sorted(scales, key=lambda scale: scale.output)):
            of_one = one.target != other.target or one[2:] == other[2:]
            require(of_one, f"an ensemble needs one scale for all quantiles of a target, found {one} and {other}.")
        super().scale_targets(scales)
        for member in self.models:
            member.scale_targets(scales)

    def training_loss(self, batch: Rows, loss: TargetLoss) -> Tensor:
        """None: members are trained one by one."""
        raise ModelError("an ensemble is not trained as one model. Train its members, as train.ensemble does.")

    def require_targets(self, tasks: Sequence[str]) -> None:
        """As of a member."""
        self.models[0].require_targets(tasks)

    def origins(self, earlier: Model, rows: Sequence[Tensor]) -> dict[nn.Parameter, Tensor]:
        """As `Model.origins`, of each member and that in its place in `earlier`."""
        if not isinstance(earlier, Ensemble) or len(earlier.members) != len(self.members):
            raise ModelError(f"an ensemble of {len(self.members)} members goes on from one of as many alone.")
        pairs = zip(self.models, earlier.models, strict=True)
        return {table: found for own, before in pairs for table, found in own.origins(before, rows).items()}

    def table_ids(self, ids: Tensor) -> dict[EmbeddingTables, Tensor]:
        """As `Model.table_ids`, of all members."""
        return {tables: found for member in self.models for tables, found in member.table_ids(ids).items()}

    @property
    def table_rate(self) -> float:
        """As of a member."""
        return self.models[0].table_rate

    @property
    def compares_rows(self) -> bool:
        """As of a member."""
        return self.models[0].compares_rows
