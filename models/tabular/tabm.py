"""TabM: k networks that share their weights, trained each for itself, whose predictions are averaged.

    x = embedded ids, embedded floats and floats side by side                    one row for all members
    h_k = dropout(relu(s_k * (W (r_k * h_k)) + b_k))                             each hidden layer; W is shared
    output_k = V_k h_k + c_k,  prediction = mean over k of the prediction of output_k

Gorishniy, Kotelnikov and Babenko, TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling, ICLR 2025
(arXiv 2410.24210). `form: mini` keeps the members' first r_k alone and shares all else but the outputs. Members differ
from the start by r_k of the first layer, which is one random number a column (a sign where floats are plain, else
normal); all other scales start at 1. The paper one-hot encodes ids; here they have embedding tables, whose rows members
scale like any other input. Here c_k of a binary target starts at the log odds of label 1 in train (`start_at`), there
at a random number near 0. And here a regression's output is added to a line, r * output_k + w . floats + b, where w, b
and the deviation r of what they leave are a ridge regression of the train rows (`start_beside`): a network alone has no
straight way from the label of the day before to the prediction, and none beyond the range that it learnt from.

Shapes: B rows of a batch, C id columns, F float columns, k members, O outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.dropout import Dropout
from gigabatch.models.layers.embeddings import EmbeddingTables, embedding_width
from gigabatch.models.layers.fields import check_settings, one_of, rows_of
from gigabatch.models.layers.line import BesideLine, Line
from gigabatch.models.layers.members import MemberLinear, MemberOutput, MemberScale, mean_of_members
from gigabatch.models.layers.numeric import Numeric, NumericEmbedding
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model, Rows, lists_of

FORMS = ("full", "mini")
NUMBERS_AT_A_TIME = 1 << 24  # of one layer's outputs in evaluation: 64 MB


@dataclass(frozen=True)
class TabMSettings(PoolingSettings):
    """Settings of TabM.

    Parameters
    ----------
    members : int, default 16
        Networks that share weights: k. The authors take 32.
    form : {'full', 'mini'}, default 'full'
        `full`: each member scales what goes into and comes out of each layer, and has biases of its own. `mini`: each
        scales the columns alone.
    layers : tuple of int, default (128, 128)
        Widths of the hidden layers. The authors take two or three of 512.
    dropout : float, default 0.1
        Of each hidden layer's outputs, in training; each member has a mask of its own.
    embedding_width_max : int, default 32
        The widest that `embedding_width` may make a table.
    embedding_widths : tuple of int or None, default None
        Width of each id column's table, then of each list's own; None takes `embedding_width`.
    numeric : str or dict of str to str, default 'bins'
        What stands beside the float columns: vectors of each (`NumericEmbedding`), `bins` or `periodic`, or `plain`,
        nothing. By column: its name and kind, and `*` for the others.
    numeric_width : int, default 8
        Of each float column's vector.
    linear : bool, default True
        Whether regressions (but for losses of a log link) learn what a ridge regression of the floats leaves, which is
        fitted before training and added to the outputs; there is none of more than 1,000 floats.
    pooling : {'sum', 'mean', 'root', 'max'}, default 'mean'
        What becomes of the vectors of a list column's elements; `max` takes no weights.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> TabMSettings(members=8, layers=[64]).layers
    (64,)
    """

    members: int = 16
    form: str = "full"
    layers: tuple[int, ...] = (128, 128)
    dropout: float = 0.1
    embedding_width_max: int = 32
    embedding_widths: tuple[int, ...] | None = None
    numeric: Numeric = "bins"
    numeric_width: int = 8
    linear: bool = True

    def __post_init__(self) -> None:
        check_settings(self, may_be_empty=("embedding_widths",))
        one_of("form of tabm", self.form, FORMS)

    def widths(self, num_ids: Sequence[int]) -> tuple[int, ...]:
        """Width of each table of so many ids; `ModelError` where as many widths are not given."""
        if self.embedding_widths is None:
            return tuple(min(embedding_width(size), self.embedding_width_max) for size in num_ids)
        require(
            len(self.embedding_widths) == len(num_ids),
            f"embedding_widths has {len(self.embedding_widths)} entries for {len(num_ids)} tables of id columns and "
            "lists; give one for each, or None for the rule.",
        )
        return self.embedding_widths


class TabM(Model):
    """TabM: members over the same tables, each trained by its own loss; predictions are the mean of theirs.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs. Where `targets` are not told, outputs with a target
        scale are regressions and all others binary.
    settings : TabMSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import ModelInputs, TabM
    >>> model = TabM(ModelInputs(num_ids=(5, 7), num_floats=2), TabM.Settings(members=4, layers=(8,)))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape, model.member_outputs(ids, floats).shape
    (torch.Size([3, 1]), torch.Size([3, 4, 1]))
    """

    Settings = TabMSettings
    takes_lists = True
    averages_from = 800  # of fewer it was not measured

    def __init__(self, inputs: ModelInputs, settings: TabMSettings) -> None:
        super().__init__(inputs, settings)
        own, members = settings.form == "full", settings.members
        widths = settings.widths(inputs.table_sizes)
        self.tables = EmbeddingTables(inputs.num_ids, widths, lists=inputs.lists, pooling=settings.pooling)
        self.numeric = NumericEmbedding(inputs, settings.numeric, settings.numeric_width)
        looked_up = [*range(len(inputs.num_ids)), *self.tables.list_tables]  # the table of each column
        chunks = (
            *(widths[t] for t in looked_up),
            *(settings.numeric_width,) * self.numeric.num_columns,
            *(1,) * inputs.num_floats,
        )
        # As the authors choose: signs where all floats are plain.
        self.columns = MemberScale(members, sum(chunks), chunks, signs=not self.numeric.num_columns)
        sizes = (sum(chunks), *settings.layers)
        self.layers = nn.ModuleList(
            MemberLinear(members, num_in, num_out, own=own, first=place == 0)
            for place, (num_in, num_out) in enumerate(pairwise(sizes))
        )
        self.dropout = Dropout(settings.dropout)
        self.output = MemberOutput(members, settings.layers[-1], inputs.num_outputs)
        self.beside = BesideLine(inputs) if settings.linear and _may_have_line(inputs) else None

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`: outputs whose prediction is the mean of the members' (`mean_of_members`).

        Without a graph rows are worked through in parts, so that memory does not grow with them.
        """
        self.require_inputs(ids, floats, lists)
        rows = self._rows(ids, floats, lists)
        if torch.is_grad_enabled() or torch.compiler.is_compiling():  # a graph that is exported has any number of rows
            return self._beside(self._mean(rows), floats)
        at_a_time = max(NUMBERS_AT_A_TIME // (self.settings.members * max(*self.settings.layers, rows.shape[1])), 1)
        return self._beside(torch.cat([self._mean(part) for part in rows.split(at_a_time)]), floats)

    def member_outputs(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """What each member makes of ids [B, C], floats [B, F] and lists: [B, k, O] float32, as outputs of a model."""
        self.require_inputs(ids, floats, lists)
        return self._beside(self._members(self._rows(ids, floats, lists)), floats)

    def training_loss(self, batch: Rows, loss: TargetLoss) -> Tensor:
        """The mean of the members' losses, each of its own outputs, which the paper found better than the loss of their
        mean prediction: members then stay different."""
        require(
            tuple(loss.tasks) == self.targets,
            f"tabm: the loss has the targets {tuple(loss.tasks)}, and the model was built for {self.targets}. Give "
            "ModelInputs(targets=...).",
        )
        outputs = self.member_outputs(batch.ids, batch.floats, lists_of(batch))
        return loss.of_members(outputs, batch.targets, batch.weight)

    @torch.no_grad()
    def start_at(self, log_odds: Mapping[int, float]) -> None:
        """Each member's output starts at the log odds, but for what its weights make of a row."""
        for output, value in log_odds.items():
            self.output.bias[:, output] = value

    @property
    def takes_lines(self) -> bool:
        """Where `linear` is on, and there are floats and a regression."""
        return self.beside is not None

    def start_beside(self, lines: Mapping[int, Line]) -> None:
        """Outputs are beside these lines, and members learn what they leave, in its deviations."""
        assert self.beside is not None
        self.beside.set(lines)

    @classmethod
    def settings_after(cls, settings: Any, inputs: ModelInputs, before: Any, inputs_before: ModelInputs) -> Any:
        """As `Model.settings_after`; where there can be no line, `linear` is nothing that has changed."""
        found = super().settings_after(settings, inputs, before, inputs_before)
        return found if _may_have_line(inputs) else replace(found, linear=before.linear)

    @property
    def targets(self) -> tuple[tuple[str, int], ...]:
        """Task and number of outputs of each target."""
        regressions = {scale.output for scale in self.target_scales}
        untold = (("regression" if place in regressions else "binary", 1) for place in range(self.inputs.num_outputs))
        return self.inputs.targets or tuple(untold)

    def _rows(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """The columns side by side: [B, D]."""
        return torch.cat([rows_of(self.tables, ids, lists), self.numeric(floats).flatten(1), floats], dim=1)

    def _beside(self, outputs: Tensor, floats: Tensor) -> Tensor:
        """Outputs, or those of members, with the lines of the floats; a mean over members may come first or last."""
        return outputs if self.beside is None else self.beside(outputs, floats)

    def _mean(self, rows: Tensor) -> Tensor:
        """Rows [B, D] -> [B, O]: the members' mean."""
        logs = {scale.output for scale in self.target_scales if scale.log}
        return mean_of_members(self._members(rows), self.targets, logs)

    def _members(self, rows: Tensor) -> Tensor:
        """Rows [B, D] -> [B, k, O]."""
        hidden = self.columns(rows)
        for layer in self.layers:
            hidden = self.dropout(torch.relu(layer(hidden)))
        return self.output(hidden)


def _may_have_line(inputs: ModelInputs) -> bool:
    return inputs.num_floats > 0 and any(task == "regression" for task, _ in inputs.targets)
