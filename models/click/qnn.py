"""QNN-alpha: layers that are quadratic in their input, with the activation in the middle of the product.

    h_r = ReLU(BN(W_r x_l + b_r))                                     r = 1 ... R, W_r [D, D]
    x_{l+1} = x_l^pi * (h_1 + ... + h_R) + x_l                        Khatri-Rao product, summed over its rows
    output = b + w . x_n                                              n layers reach products of 2^n columns
    loss = L(p, y) + L(p_1, p) + L(p_2, p),  p = (p_1 + p_2) / 2      self-ensemble; no gradient through p as a target

x_0 is the columns' vectors side by side, `*` is elementwise. pi turns the numbers of x, field by field, into the order
of the heads: the h-th parts of all fields beside each other; with one head it changes nothing. p_1 and p_2 are
predictions of two passes under different dropout masks.

Li, Zhang, Zhang, Sang and Zhu, Revisiting Feature Interactions from the Perspective of Quadratic Neural Networks for
Click-through Rate Prediction, arXiv 2505.17999 (KDD 2025); the form is that of the authors' code
(github.com/salmon1802/QNN, QNN_T26).

Shapes: B rows of a batch, N fields (columns), d embedding_dim, D = N d, H heads, R rows, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from gigabatch.models.errors import ModelError, require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.batch_norm import BatchNorm1d
from gigabatch.models.layers.dropout import Dropout
from gigabatch.models.layers.fields import FieldEmbeddings, OutputLinear, check_settings
from gigabatch.models.layers.members import mean_of_members
from gigabatch.models.layers.numeric import Numeric
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model, Rows, lists_of


@dataclass(frozen=True)
class QNNSettings(PoolingSettings):
    """Settings of QNN-alpha.

    Parameters
    ----------
    embedding_dim : int, default 16
        Numbers in the vector of a value.
    num_layers : int, default 3
        Quadratic layers; n of them reach products of 2^n columns.
    num_rows : int, default 4
        R: so many activated maps are summed before they are multiplied with the input.
    num_heads : int, default 1
        H; divides `embedding_dim`.
    dropout : float, default 0.1
        Of the activated maps and of each layer's outputs, in training.
    batch_norm : bool, default True
        Before each activation.
    self_ensemble : bool, default True
        Two passes of each batch under different dropout masks, each taught by the mean of both too; see
        `QNN.training_loss`. Without dropout there is one.
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
    >>> QNNSettings(num_heads=4).num_heads
    4
    """

    embedding_dim: int = 16
    num_layers: int = 3
    num_rows: int = 4
    num_heads: int = 1
    dropout: float = 0.1
    batch_norm: bool = True
    self_ensemble: bool = True
    numeric: Numeric = "bins"

    def __post_init__(self) -> None:
        check_settings(self)
        require(
            self.embedding_dim % self.num_heads == 0,
            f"num_heads {self.num_heads} does not divide embedding_dim, {self.embedding_dim}. Choose a divisor.",
        )


class QuadraticLayer(nn.Module):
    """x_l -> x_{l+1} by the equations above: [B, D] -> [B, D]."""

    def __init__(self, num_fields: int, settings: QNNSettings) -> None:
        super().__init__()
        width = num_fields * settings.embedding_dim
        self.by_field = (num_fields, settings.num_heads, settings.embedding_dim // settings.num_heads)
        self.num_rows = settings.num_rows
        self.map = nn.Linear(width, settings.num_rows * width, bias=not settings.batch_norm)
        self.norm = BatchNorm1d(settings.num_rows * width) if settings.batch_norm else nn.Identity()
        self.middle, self.last = Dropout(settings.dropout), Dropout(settings.dropout)

    def forward(self, x: Tensor) -> Tensor:
        by_head = x.unflatten(1, self.by_field).transpose(1, 2).flatten(1)
        rows = self.middle(functional.relu(self.norm(self.map(x))))
        return self.last(by_head * rows.unflatten(1, (self.num_rows, -1)).sum(dim=1) + x)


class QNN(Model):
    """QNN-alpha: quadratic layers over the columns' vectors, then a linear layer.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs.
    settings : QNNSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import QNN, ModelInputs
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2)
    >>> model = QNN(inputs, QNN.Settings(embedding_dim=4))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape
    torch.Size([3, 1])
    """

    Settings = QNNSettings
    takes_lists = True

    def __init__(self, inputs: ModelInputs, settings: QNNSettings) -> None:
        super().__init__(inputs, settings)
        self.fields = FieldEmbeddings(
            inputs, settings.embedding_dim, numeric=settings.numeric, pooling=settings.pooling
        )
        num_fields = self.fields.num_fields
        self.layers = nn.Sequential(*(QuadraticLayer(num_fields, settings) for _ in range(settings.num_layers)))
        self.output = OutputLinear(num_fields * settings.embedding_dim, inputs.num_outputs)

    @property
    def teaches_itself(self) -> bool:
        """Whether two passes of a batch differ, and each is taught by the mean of both."""
        return bool(self.settings.self_ensemble and self.settings.dropout)

    def require_targets(self, tasks: Sequence[str]) -> None:
        """As of `Model`."""
        others = sorted(set(tasks) - {"binary", "regression"})
        if self.teaches_itself and others:
            raise ModelError(
                f"qnn: self_ensemble teaches one number a row; the loss of a {others[0]} target does not take it. "
                "Set model.self_ensemble=false."
            )

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats, lists)
        return self._of_vectors(self.fields(ids, floats, lists).flatten(1))

    def training_loss(self, batch: Rows, loss: TargetLoss) -> Tensor:
        """Self-ensemble: the loss of the mean prediction of two passes under different masks, and the losses of each
        pass with the mean prediction for its target, which is held fixed. Each is the targets' own loss; labels alone
        are smoothed.

        Predictions are averaged: probabilities of a binary target, values of a regression.
        """
        if not self.teaches_itself:
            return super().training_loss(batch, loss)
        self.require_targets([task for task, _ in loss.tasks])
        for value, label in zip(loss.regression, loss.classes, strict=True):
            if value.log_link or value.taus or label.class_weights is not None or label.kind != "log_loss":
                raise ModelError(
                    f"qnn: self_ensemble teaches means of predictions, which {loss.description} does not take. "
                    "Set model.self_ensemble=false."
                )
        self.require_inputs(batch.ids, batch.floats, lists_of(batch))
        x = self.fields(batch.ids, batch.floats, lists_of(batch)).flatten(1)
        first, second = self._of_vectors(x), self._of_vectors(x)
        binary = [task == "binary" for task, _ in loss.tasks]
        together = mean_of_members(torch.stack([first, second], dim=1), loss.tasks)
        taught = [
            torch.sigmoid(output) if is_binary else output
            for is_binary, output in zip(binary, together.detach().unbind(1), strict=True)
        ]
        own = loss(together, batch.targets, batch.weight)
        for output in (first, second):
            own = own + loss(output, taught, batch.weight, smoothed=False)
        return own

    def _of_vectors(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, O] float32."""
        return self.output(self.layers(x)).float()
