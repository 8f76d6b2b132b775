"""FCN (first called DCNv3): two cross networks, whose orders of interaction grow exponentially and linearly.

    x_1 = [first halves of e_1, ..., e_N; second halves]             e_i the vector of column i
    c_l = BN(W_l x_l)                                                W_l [D/2, D]: half of a full cross matrix
    x_{l+1} = x_l * ([c_l; s(c_l)] + b_l) + x_l                      ECN: n layers reach products of 2^n columns
    x_{l+1} = x_1 * ([c_l; s(c_l)] + b_l) + x_l                      LCN: n layers reach products of n + 1 columns
    s(c) = c * max(0, LN(c))                                         self-mask: layer norm, so that about half is 0
    s(c) = g * c + h                                                 low-cost aggregation, of the published version
    output = (y_E + y_L) / 2, y_E and y_L linear in the last x of each network
    loss = L + max(0, L_E - L) L_E + max(0, L_L - L) L_L             Tri-BCE; L, L_E, L_L of output, y_E, y_L

Li, Zhang, Zhang, Li, Sang and Zhu, DCNv3 (later FCN: Fusing Exponential and Linear Cross Network), arXiv 2407.13349,
KDD 2026; `*` is elementwise. The form is that of the authors' code (github.com/salmon1802/FCN, reczoo/FuxiCTR): b_l is
added after the mask, outputs are averaged before the sigmoid, and the weights of Tri-BCE are part of what is
differentiated. Batch norm, an option of theirs, takes one mean and deviation for all of a layer there, for each number
here. Without it products of vectors that start near 0 stay small for long. Their heads, which share weights, are left
out.

Shapes: B rows of a batch, N fields (columns), d embedding_dim, D = N d, O outputs, K networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.batch_norm import BatchNorm1d
from gigabatch.models.layers.dropout import Dropout
from gigabatch.models.layers.fields import FieldEmbeddings, OutputLinear, check_settings, one_of
from gigabatch.models.layers.numeric import Numeric
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model, Rows, lists_of
from gigabatch.models.whole_batch import whole_batch

NETWORKS = {"both": ("exponential", "linear"), "exponential": ("exponential",), "linear": ("linear",)}
SECOND_HALVES = ("self_mask", "low_cost")
LOSSES = ("tri", "plain")


@dataclass(frozen=True)
class FCNSettings(PoolingSettings):
    """Settings of FCN.

    Parameters
    ----------
    embedding_dim : int, default 16
        Numbers in the vector of a value; even, as its halves take different ways.
    networks : {'both', 'exponential', 'linear'}, default 'both'
        FCN, or ECN or LCN alone.
    exponential_layers : int, default 3
        Of ECN; n of them reach products of 2^n columns.
    linear_layers : int, default 3
        Of LCN; n of them reach products of n + 1 columns.
    second_half : {'self_mask', 'low_cost'}, default 'self_mask'
        How the second half of what a layer multiplies with follows from the first: masked by its own layer norm, or
        scaled and shifted number by number.
    loss : {'tri', 'plain'}, default 'tri'
        `tri`: Tri-BCE, of `both` alone; see `FCN.training_loss`. `plain`: the targets' loss of the output.
    batch_norm : bool, default True
        Of c, the first half of what a layer multiplies with.
    dropout : float, default 0.1
        Of each cross layer's outputs, in training.
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
    >>> FCNSettings(networks="exponential", exponential_layers=4).networks  # ECN alone
    'exponential'
    """

    embedding_dim: int = 16
    networks: str = "both"
    exponential_layers: int = 3
    linear_layers: int = 3
    second_half: str = "self_mask"
    loss: str = "tri"
    batch_norm: bool = True
    dropout: float = 0.1
    numeric: Numeric = "bins"

    def __post_init__(self) -> None:
        check_settings(self)
        require(
            self.embedding_dim % 2 == 0,
            f"embedding_dim of fcn is cut into halves; make it even, not {self.embedding_dim}.",
        )
        one_of("networks of fcn", self.networks, tuple(NETWORKS))
        one_of("second_half", self.second_half, SECOND_HALVES)
        one_of("loss of fcn", self.loss, LOSSES)


class SelfMask(nn.Module):
    """c -> c * max(0, LN(c)): [B, D/2] -> [B, D/2]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, c: Tensor) -> Tensor:
        return c * torch.relu(self.norm(c))


class LowCost(nn.Module):
    """c -> g * c + h, number by number: [B, D/2] -> [B, D/2]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, c: Tensor) -> Tensor:
        return self.scale * c + self.shift


class CrossLayer(nn.Module):
    """(x, what it is multiplied with) -> the next x, by the equations above: [B, D] each -> [B, D]."""

    def __init__(self, width: int, settings: FCNSettings) -> None:
        super().__init__()
        self.map = nn.Linear(width, width // 2, bias=False)
        self.norm = BatchNorm1d(width // 2) if settings.batch_norm else nn.Identity()
        self.second = SelfMask(width // 2) if settings.second_half == "self_mask" else LowCost(width // 2)
        self.bias = nn.Parameter(torch.rand(width))  # in [0, 1), as the authors draw it
        self.dropout = Dropout(settings.dropout)

    def forward(self, x: Tensor, anchor: Tensor) -> Tensor:
        c = self.norm(self.map(x))
        return self.dropout(anchor * (torch.cat([c, self.second(c)], dim=1) + self.bias) + x)


class CrossNetwork(nn.Module):
    """ECN, or LCN if `is_linear`, and its own outputs: [B, D] -> [B, O]."""

    def __init__(self, width: int, num_outputs: int, is_linear: bool, settings: FCNSettings) -> None:
        super().__init__()
        self.is_linear = is_linear
        num_layers = settings.linear_layers if is_linear else settings.exponential_layers
        self.layers = nn.ModuleList(CrossLayer(width, settings) for _ in range(num_layers))
        self.output = OutputLinear(width, num_outputs)

    def forward(self, x1: Tensor) -> Tensor:
        x = x1
        for layer in self.layers:
            x = layer(x, x1 if self.is_linear else x)
        return self.output(x)


class FCN(Model):
    """FCN: an exponential and a linear cross network over the columns' vectors; the mean of what both say.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs.
    settings : FCNSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import FCN, ModelInputs
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2)
    >>> model = FCN(inputs, FCN.Settings(embedding_dim=4))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape
    torch.Size([3, 1])
    """

    Settings = FCNSettings
    takes_lists = True

    def __init__(self, inputs: ModelInputs, settings: FCNSettings) -> None:
        super().__init__(inputs, settings)
        self.fields = FieldEmbeddings(
            inputs, settings.embedding_dim, numeric=settings.numeric, pooling=settings.pooling
        )
        width = self.fields.num_fields * settings.embedding_dim
        self.networks = nn.ModuleList(
            CrossNetwork(width, inputs.num_outputs, name == "linear", settings) for name in NETWORKS[settings.networks]
        )

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        return _mean(self._outputs(ids, floats, lists))

    def training_loss(self, batch: Rows, loss: TargetLoss) -> Tensor:
        """Tri-BCE, with the targets' own loss for BCE: L + sum_k max(0, L_k - L) L_k, L of the output and L_k of what
        network k says. A network that is worse than the mean of both is taught by itself too.

        The losses are means over the batch, over all ranks' parts of it where several share it: then what a rank gives
        back has the sum over ranks, and the gradient, of this loss of the whole batch. Peers of a codistillation teach
        the mean of both networks alone.
        """
        outputs = self._outputs(batch.ids, batch.floats, lists_of(batch))
        mean, rest, labels = _mean(outputs), (batch.targets, batch.weight), loss.of_labels
        if len(outputs) == 1 or self.settings.loss == "plain":
            return loss(mean, *rest)
        own = torch.stack([labels(found, *rest) for found in (mean, *outputs)])
        if labels is loss:
            return self._tri_loss(own, batch)
        return self._tri_loss(own, batch) + (loss(mean, *rest) - own[0])

    def _tri_loss(self, own: Tensor, batch: Rows) -> Tensor:
        """Tri-BCE of L, L_1, ..., L_K [1 + K] of this rank's rows."""
        whole = _over_ranks(own.detach(), batch.weight, len(batch.ids))
        if whole is None:
            return _tri(own)
        with torch.enable_grad():
            of_all = _tri(whole.requires_grad_())
        (slopes,) = torch.autograd.grad(of_all, whole)
        return of_all.detach() + (slopes * (own - whole.detach())).sum()

    def _outputs(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> list[Tensor]:
        """Of each network, [B, O] float32."""
        self.require_inputs(ids, floats, lists)
        first, second = self.fields(ids, floats, lists).chunk(2, dim=2)
        x1 = torch.cat([first.flatten(1), second.flatten(1)], dim=1)
        return [network(x1).float() for network in self.networks]


def _mean(outputs: Sequence[Tensor]) -> Tensor:
    return outputs[0] if len(outputs) == 1 else (outputs[0] + outputs[1]) * 0.5


def _tri(losses: Tensor) -> Tensor:
    """Of L, L_1, ..., L_K [1 + K]."""
    return losses[0] + (torch.relu(losses[1:] - losses[0]) * losses[1:]).sum()


def _over_ranks(losses: Tensor, weight: Tensor | None, num_rows: int) -> Tensor | None:
    """Means over all ranks' rows of means [L] over this rank's; None where one rank has the whole batch."""
    batch = None if torch.compiler.is_compiling() else whole_batch()
    if batch is None:
        return None
    own = losses.new_full((1,), num_rows) if weight is None else weight.sum()[None]
    (sums,) = batch.sums([torch.cat([losses * own, own])], "tri loss")
    return (sums[:-1] / sums[-1].clamp(min=torch.finfo(torch.float32).tiny)).float()
