"""RealMLP: a plain network whose inputs, parametrisation and rates were tuned together on many tables.

    x = smooth_clip((floats - median) / quartile range),  smooth_clip(x) = x / sqrt(1 + (x / 3)^2)
    h = s * (embedded ids, embedded floats, PBLD(x), x)                         a learnt scale of each number
    PBLD(x)_f = V_f cos(2 pi w_f x_f + b_f) + c_f                               of each float, where `pbld` is set
    h = dropout(act(W h / sqrt(fan-in) + b))                                    each hidden layer (NTP)
    act(x) = x + a (f(x) - x), f SELU, or Mish where all targets are regressions; a is learnt for each unit

Holzmueller, Grinsztajn and Steinwart, Better by Default: Strong Pre-Tuned MLPs and Boosted Trees on Tabular Data,
NeurIPS 2024 (arXiv 2407.04491), RealMLP-TD. The scale s learns 6 times as fast as weights; biases, activations and PBLD
a tenth (`Rated`). Weights and biases start from train rows (`RealMLP.remember`): each unit has deviation 1, and its
bias is minus a convex combination of what five rows give it ("he+5"). The paper one-hot encodes ids of up to 8 values;
here they have tables of as many columns, which is the same but for how they start.

Shapes: B rows of a batch, C id columns, F float columns, W widths of the tables side by side, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import pi
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gigabatch.models.errors import require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.dropout import Dropout
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.layers.fields import check_settings, one_of, positive_number, rows_of
from gigabatch.models.layers.numeric import Numeric, NumericEmbedding
from gigabatch.models.layers.pooled import Jagged, PoolingSettings, taken_lists
from gigabatch.models.layers.rated import Rated
from gigabatch.models.model import Model

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"selu": functional.selu, "mish": functional.mish}
SCALE_RATE, BIAS_RATE, ACTIVATION_RATE, NUMERIC_RATE = 6.0, 0.1, 0.1, 0.1  # times the learning rate of weights
FREQUENCIES, NUMBERS = 16, 3  # of PBLD: cosines of a float, and sums of them
SIMPLEX = 5  # rows whose convex combination a bias starts at
LOOKED_AT = 1 << 14  # train rows, evenly spread, that say where weights start
CLIP = 3.0


@dataclass(frozen=True)
class RealMLPSettings(PoolingSettings):
    """Settings of RealMLP.

    Parameters
    ----------
    layers : tuple of int, default (256, 256, 256)
        Widths of the hidden layers.
    dropout : float, default 0.15
        Of each hidden layer's outputs, in training.
    activation : {'auto', 'selu', 'mish'}, default 'auto'
        `auto`: mish where all targets are regressions, else selu.
    numeric : str or dict of str to str, default 'bins'
        What stands beside a float: a vector of `NumericEmbedding`, `bins` or `periodic`, or `plain`, nothing. By
        column: its name and kind, and `*` for the others.
    numeric_width : int, default 8
        Of each float column's vector.
    pbld : bool, default False
        Whether three learnt sums of cosines of each float stand beside it too; the authors have these alone.
    frequency_deviation : float, default 0.1
        Standard deviation of the cosines' frequencies at the start.
    embedding_width : int, default 8
        Width of each id column's or list's table, which has no more columns than rows.
    embedding_widths : tuple of int or None, default None
        Width of each id column's table, then of each list's own; None takes `embedding_width`.
    pooling : {'sum', 'mean', 'root', 'max'}, default 'mean'
        What becomes of the vectors of a list column's elements; `max` takes no weights.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> RealMLPSettings(layers=[64]).layers
    (64,)
    """

    layers: tuple[int, ...] = (256, 256, 256)
    dropout: float = 0.15
    activation: str = "auto"
    numeric: Numeric = "bins"
    numeric_width: int = 8
    pbld: bool = False
    frequency_deviation: float = 0.1
    embedding_width: int = 8
    embedding_widths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_settings(self, may_be_empty=("embedding_widths",))
        one_of("activation of realmlp", self.activation, ("auto", *ACTIVATIONS))
        positive_number("frequency_deviation", self.frequency_deviation)

    def widths(self, num_ids: Sequence[int]) -> tuple[int, ...]:
        """Width of each table of so many ids; `ModelError` where as many widths are not given."""
        if self.embedding_widths is None:
            return tuple(min(size, self.embedding_width) for size in num_ids)
        require(
            len(self.embedding_widths) == len(num_ids),
            f"embedding_widths has {len(self.embedding_widths)} entries for {len(num_ids)} tables of id columns and "
            "lists; give one for each, or None for the rule.",
        )
        return self.embedding_widths


class PBLD(nn.Module):
    """Three sums of cosines of each float: [B, F] -> [B, F, 3].

    deviation: of the frequencies at the start.
    """

    def __init__(self, num_floats: int, deviation: float) -> None:
        super().__init__()
        bound = FREQUENCIES**-0.5
        shape = (num_floats, FREQUENCIES)
        self.frequencies = Rated(deviation * torch.randn(shape), NUMERIC_RATE)
        self.phases = Rated(pi * (2 * torch.rand(shape) - 1), NUMERIC_RATE)
        self.sums = Rated(torch.empty(*shape, NUMBERS).uniform_(-bound, bound), NUMERIC_RATE)
        self.bias = Rated(torch.empty(num_floats, NUMBERS).uniform_(-bound, bound), NUMERIC_RATE)

    def forward(self, floats: Tensor) -> Tensor:
        """Cosines in float32 also under autocast, whose phases would be off by hundredths."""
        with torch.autocast(floats.device.type, enabled=False):
            waves = torch.cos(2 * pi * floats[:, :, None] * self.frequencies() + self.phases())
            return torch.bmm(waves.transpose(0, 1), self.sums()).transpose(0, 1) + self.bias()


class NTPLinear(nn.Module):
    """A linear layer in neural tangent parametrisation: W x / sqrt(fan-in) + b, W normal at the start.

    The gradient's size then does not depend on the width, nor the rate that fits it.
    """

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_out, num_in))
        self.bias = Rated(torch.randn(num_out), BIAS_RATE)
        self.factor = num_in**-0.5

    def forward(self, rows: Tensor) -> Tensor:
        """[B, num_in] -> [B, num_out]."""
        return functional.linear(self.factor * rows, self.weight, self.bias())

    @torch.no_grad()
    def start_from(self, rows: Tensor) -> None:
        """Units that have deviation 1 over these rows [N, num_in], and biases among what they give."""
        found = self.factor * rows @ self.weight.T
        deviation = found.std(dim=0, correction=0)
        deviation = torch.where(deviation > 0, deviation, 1.0)
        self.weight.div_(deviation[:, None])
        units = torch.arange(len(self.weight))[:, None]
        chosen = (found / deviation)[torch.randint(len(rows), (len(units), SIMPLEX)), units]
        shares = torch.empty(len(units), SIMPLEX).exponential_()  # over their sum: uniform in the simplex
        self.bias.set(-(chosen * shares / shares.sum(1, keepdim=True)).sum(1))


class Activation(nn.Module):
    """x + a (f(x) - x), with an a of each unit that starts at 1."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.share = Rated(torch.ones(width), ACTIVATION_RATE)

    def forward(self, rows: Tensor) -> Tensor:
        """[B, width] -> [B, width]."""
        return torch.lerp(rows, ACTIVATIONS[self.kind](rows), self.share().to(rows.dtype))


class RealMLP(Model):
    """RealMLP: robustly scaled floats with periodic embeddings and embedded ids through a network of NTP layers.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs; `targets` say which activation `auto` is.
    settings : RealMLPSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import ModelInputs, RealMLP
    >>> model = RealMLP(ModelInputs(num_ids=(5, 7), num_floats=2), RealMLP.Settings(layers=(8,)))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape
    torch.Size([3, 1])
    """

    Settings = RealMLPSettings
    takes_lists = True
    centre: Tensor
    spread: Tensor

    def __init__(self, inputs: ModelInputs, settings: RealMLPSettings) -> None:
        super().__init__(inputs, settings)
        tasks = {task for task, _ in inputs.targets}
        kind = settings.activation
        if kind == "auto":
            kind = "mish" if tasks == {"regression"} else "selu"
        num_floats = inputs.num_floats
        widths = settings.widths(inputs.table_sizes)
        self.tables = EmbeddingTables(inputs.num_ids, widths, lists=inputs.lists, pooling=settings.pooling)
        for table in self.tables.tables:
            nn.init.normal_(table)
        self.register_buffer("centre", torch.zeros(num_floats))
        self.register_buffer("spread", torch.ones(num_floats))
        self.numeric = NumericEmbedding(inputs, settings.numeric, settings.numeric_width)
        has_waves = settings.pbld and num_floats
        self.waves = PBLD(num_floats, settings.frequency_deviation) if has_waves else None
        width = self.tables.width + self.numeric.num_columns * self.numeric.width + num_floats
        width += 0 if self.waves is None else NUMBERS * num_floats
        self.scale = Rated(torch.ones(width), SCALE_RATE)
        sizes = (width, *settings.layers)
        self.layers = nn.ModuleList(NTPLinear(num_in, num_out) for num_in, num_out in pairwise(sizes))
        self.activations = nn.ModuleList(Activation(kind, width) for width in settings.layers)
        self.dropout = Dropout(settings.dropout)
        self.output = NTPLinear(sizes[-1], inputs.num_outputs)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats, lists)
        hidden = self._row(ids, floats, lists)
        for layer, activation in self._hidden():
            hidden = self.dropout(activation(layer(hidden)))
        with torch.autocast(floats.device.type, enabled=False):
            return self.output(hidden.to(self.output.weight.dtype))

    @torch.no_grad()
    def remember(self, ids: Tensor, floats: Tensor, targets: Sequence[Tensor], lists: Sequence[Jagged] = ()) -> None:
        """Centre and spread of the floats, and where weights and biases start, by up to `LOOKED_AT` rows evenly spread.

        The spread is the range between the quartiles; where that is 0, half of the whole range; where that is 0 too,
        the column is one value, which says nothing, and becomes 0. What a warm start carries over replaces all of it.
        """
        places = torch.linspace(0, len(ids) - 1, min(len(ids), LOOKED_AT), dtype=torch.float64).long()
        ids, floats, lists = ids[places], floats[places], [taken_lists(column, places) for column in lists]
        if floats.shape[1]:
            low, middle, high = torch.quantile(floats, torch.tensor([0.25, 0.5, 0.75]), dim=0)
            spread = torch.where(high > low, high - low, (floats.amax(0) - floats.amin(0)) / 2)
            self.centre.copy_(middle)
            self.spread.copy_(torch.where(spread > 0, spread, torch.inf))
        hidden = self._row(ids, floats, lists)
        for layer, activation in self._hidden():
            layer.start_from(hidden)
            hidden = activation(layer(hidden))
        self.output.start_from(hidden)

    def _hidden(self) -> Iterator[tuple[NTPLinear, Activation]]:
        """The hidden layers, each with its activation."""
        return cast(Iterator[tuple[NTPLinear, Activation]], zip(self.layers, self.activations, strict=True))

    def _row(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """Embedded ids, pooled lists and floats as the first layer takes them, side by side."""
        scaled = (floats - self.centre) / self.spread
        clipped = scaled * torch.rsqrt(1 + (scaled / CLIP) ** 2)
        # Edges of bins are in the units of the floats that come.
        parts = [rows_of(self.tables, ids, lists), self.numeric(floats, waves_of=clipped).flatten(1)]
        parts += [] if self.waves is None else [self.waves(clipped).flatten(1)]
        return self.scale() * torch.cat([*parts, clipped], dim=1)
