"""Floats as vectors: piecewise-linear functions of quantile bins, or periodic ones.

Gorishniy, Rubachev and Babenko, "On Embeddings for Numerical Features in Tabular Deep Learning", arXiv 2203.05556.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gigabatch.models.errors import require, require_known
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.kernels import cpu_loops

NUMERIC = ("plain", "bins", "periodic")
OTHERS = "*"  # in place of a name: the columns that are not named
Numeric = str | dict[str, str]  # of all float columns, or of each by its name
NUMERIC_WIDTH = 16
LOOP_ROWS = 2_048  # that are evaluated by compiled loops: a row of a service goes without loading them
FREQUENCIES = 48  # of a column, and the deviation they are drawn with: those of `rtdl_num_embeddings`
FREQUENCY_DEVIATION = 0.01


def checked_numeric(given: Any, default: Any) -> Numeric:
    """A model's setting `numeric`: a kind, or kinds by the name of a float column.

    Parameters
    ----------
    given : str or mapping of str to str
        The kind of all float columns, or of each by its name and, as `*`, of the others.
    default : str or mapping of str to str
        The kind of the others where no `*` says it.

    Returns
    -------
    str or dict of str to str
        A mapping says what the others are; of kinds that are all alike without a name it is that kind.

    Raises
    ------
    ModelError
        For an unknown kind.

    Examples
    --------
    >>> checked_numeric({"age": "periodic"}, "bins"), checked_numeric({"*": "plain"}, "bins")
    ({'age': 'periodic', '*': 'bins'}, 'plain')
    """
    if not isinstance(given, Mapping):
        require_known("numeric", [given], NUMERIC)
        return str(given)
    for name, kind in given.items():
        require_known(f"numeric of {name!r}", [kind], NUMERIC)
    found = {str(name): str(kind) for name, kind in given.items()}
    found.setdefault(OTHERS, kind_of(default, OTHERS))
    return found if len(found) > 1 else found[OTHERS]


def kind_of(numeric: Numeric, name: str) -> str:
    """The kind of the float column of this name."""
    return numeric if isinstance(numeric, str) else numeric.get(name, numeric[OTHERS])


def numeric_kinds(inputs: ModelInputs, numeric: Numeric) -> tuple[str, ...]:
    """The kind of each float column of the inputs; what `numeric` names beside them is of other columns."""
    if isinstance(numeric, str):
        return (numeric,) * inputs.num_floats
    return tuple(kind_of(numeric, name) for name in inputs.float_names)


def require_float_columns(inputs: ModelInputs, numeric: Numeric) -> None:
    """Raise `ModelError` for a name in `numeric` that no float column of a model's inputs has."""
    if not isinstance(numeric, Mapping):
        return
    require(
        len(inputs.float_names) == inputs.num_floats,
        f"numeric names {', '.join(numeric)}, and the inputs do not name their float columns. Give "
        "ModelInputs(float_names=...).",
    )
    require_known("float column of numeric", [name for name in numeric if name != OTHERS], inputs.float_names)


class NumericEmbedding(nn.Module):
    """Vectors of the float columns that have one, side by side with whatever else a model makes of the floats.

    `bins`: of each column with edges a continuous function that is linear in each of its bins, which starts at 0 and
    stays constant beyond the outermost edges: values of tomorrow that were never seen are the nearest that was. It is
    the paper's piecewise-linear encoding followed by a linear layer, without making the encoding: a column's function
    at its edges is the cumulated sum of its weights, of which a value interpolates two. `periodic`: of every column
    sine and cosine at trained frequencies, then a linear layer and a ReLU that all columns share ("PLR, lite").
    `plain`: of none. Each column may be of another kind. Computed in float32, also under autocast and in a module that
    was converted to fewer bits.

    Parameters
    ----------
    inputs : ModelInputs
        With `float_edges` for `bins`, in the units of the floats, and `float_names` for kinds by name.
    kind : str or dict of str to str
        `plain`, `bins` or `periodic`, or of each float column by its name, where `*` is of the others.
    width : int
        Of a vector.

    Raises
    ------
    ModelError
        For an unknown kind.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import ModelInputs
    >>> inputs = ModelInputs(num_ids=(), num_floats=2, float_edges=((0.0, 1.0, 3.0), ()))
    >>> embedding = NumericEmbedding(inputs, "bins", width=1)
    >>> _ = torch.nn.init.ones_(embedding.weight)
    >>> embedding(torch.tensor([[-5.0, 9.0], [0.5, 9.0], [2.0, 9.0], [7.0, 9.0]])).flatten().tolist()
    [0.0, 0.5, 1.5, 2.0]
    """

    bin_places: Tensor
    wave_places: Tensor
    order: Tensor
    sources: Tensor
    edges: Tensor
    num_bins: Tensor
    first: Tensor

    def __init__(self, inputs: ModelInputs, kind: Numeric, width: int) -> None:
        super().__init__()
        kinds = numeric_kinds(inputs, checked_numeric(kind, "bins"))
        edges = inputs.float_edges or [()] * inputs.num_floats
        self.width = width
        binned = [place for place, own in enumerate(kinds) if own == "bins" and edges[place]]
        waved = [place for place, own in enumerate(kinds) if own == "periodic"]
        self.has_bins, self.has_waves = bool(binned), bool(waved)
        self.places = tuple(sorted(binned + waved))
        if not self.places:
            return
        found = [*binned, *waved]  # as `forward` makes them
        self.register_buffer("order", torch.tensor([found.index(place) for place in self.places]), persistent=False)
        sources = {place: number for number, place in enumerate(self.places)}
        none = len(self.places)
        by_column = [sources.get(place, none) for place in range(inputs.num_floats)]
        self.register_buffer("sources", torch.tensor(by_column), persistent=False)
        if waved:
            self.register_buffer("wave_places", torch.tensor(waved), persistent=False)
            frequencies = torch.empty(len(waved), FREQUENCIES)
            bound = 3 * FREQUENCY_DEVIATION
            self.frequencies = nn.Parameter(nn.init.trunc_normal_(frequencies, 0, FREQUENCY_DEVIATION, -bound, bound))
            self.linear = nn.Linear(2 * FREQUENCIES, width)
        if binned:
            self.register_buffer("bin_places", torch.tensor(binned), persistent=False)
            self._register_edges([edges[place] for place in binned])

    def _register_edges(self, edges: Sequence[Sequence[float]]) -> None:
        """Edges [F', E] float32, the missing ones infinite; of each column the number of its bins."""
        most = max(map(len, edges))
        padded = torch.tensor([[*one, *[math.inf] * (most - len(one))] for one in edges], dtype=torch.float32)
        self.register_buffer("edges", padded, persistent=False)
        self.register_buffer("num_bins", torch.tensor([len(one) - 1 for one in edges]), persistent=False)
        self.register_buffer("first", torch.arange(0, len(edges) * most, most), persistent=False)
        bound = 1 / math.sqrt(most - 1)
        self.weight = nn.Parameter(torch.empty(len(edges), most - 1, self.width).uniform_(-bound, bound))

    def _apply(self, *arguments: Any, **settings: Any) -> NumericEmbedding:
        """As torch's, by which a module is converted; edges stay float32, since in fewer bits some become equal."""
        edges = self._buffers.get("edges")
        super()._apply(*arguments, **settings)
        if edges is not None and edges.dtype != self.edges.dtype:
            self.edges = edges.to(self.edges.device)
        return self

    @torch.no_grad()
    def shrink(self, factor: float) -> None:
        """Start with vectors `factor` times as long, where no layer follows that would weigh them."""
        if self.has_bins:
            self.weight.mul_(factor)
        if self.has_waves:
            self.linear.weight.mul_(factor)
            self.linear.bias.mul_(factor)

    @property
    def num_columns(self) -> int:
        """F': how many float columns have a vector."""
        return len(self.places)

    def forward(self, floats: Tensor, waves_of: Tensor | None = None) -> Tensor:
        """floats [B, F] float32 -> [B, F', width] float32, or as the weights are.

        waves_of: [B, F] float32, what the periodic columns' waves are of, where a model has scaled the floats.
        """
        if not self.places:
            return floats.new_zeros(len(floats), 0, self.width)
        parts = []
        with torch.autocast(floats.device.type, enabled=False):
            if self.has_bins:
                parts.append(self._binned(floats.float()[:, self.bin_places]))
            if self.has_waves:
                values = floats if waves_of is None else waves_of
                parts.append(self._periodic(values.float()[:, self.wave_places]))
            found = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1).index_select(1, self.order)
            return found.to(next(self.parameters()).dtype)

    def of_all(self, floats: Tensor) -> Tensor:
        """floats [B, F] float32 -> [B, F, width]: zeros for the columns that have no vector."""
        found = self(floats)
        if self.num_columns == floats.shape[1]:
            return found
        return torch.cat([found, found.new_zeros(len(floats), 1, self.width)], dim=1).index_select(1, self.sources)

    def _periodic(self, values: Tensor) -> Tensor:
        angles = 2 * math.pi * _wide(self.frequencies) * values[:, :, None]
        waves = torch.cat([angles.cos(), angles.sin()], dim=2)
        return functional.relu(functional.linear(waves, _wide(self.linear.weight), _wide(self.linear.bias)))

    def _binned(self, values: Tensor) -> Tensor:
        # [F', E, width]: the functions at their edges
        table = functional.pad(_wide(self.weight).cumsum(dim=1), (0, 0, 1, 0))
        loops = not values.requires_grad and cpu_loops(values.device)  # false in a trace, which must not see the size
        if loops and (torch.is_grad_enabled() or len(values) >= LOOP_ROWS):
            return cast(Tensor, _Interpolated.apply(values, self.edges, self.num_bins, table))
        if torch.compiler.is_exporting():  # ONNX has no searchsorted
            inside = (values[:, :, None] >= self.edges).sum(dim=2) - 1
        else:
            inside = torch.searchsorted(self.edges, values.t().contiguous(), right=True).t() - 1
        bins = torch.minimum(inside.clamp(min=0), self.num_bins - 1) + self.first
        ends, rows = self.edges.flatten(), table.flatten(0, 1)
        part = ((values - ends[bins]) / (ends[bins + 1] - ends[bins])).clamp(0, 1)
        part = part[:, :, None].to(rows.dtype)
        return torch.lerp(functional.embedding(bins, rows), functional.embedding(bins + 1, rows), part)


def _wide(weight: Tensor) -> Tensor:
    """In float32 what has fewer bits; float64 stays."""
    return weight if weight.dtype == torch.float64 else weight.float()


class _Interpolated(torch.autograd.Function):
    """The same by compiled loops, whose sums over rows torch takes ten times as long for; no gradient of the values."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, edges: Tensor, num_bins: Tensor, table: Tensor) -> Tensor:
        from gigabatch.models.kernels.interpolate.cpu import interpolate

        out, *found = interpolate(values, edges, num_bins, table)
        ctx.save_for_backward(*found)
        ctx.num_edges = edges.shape[1]
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from gigabatch.models.kernels.interpolate.cpu import interpolate_backward

        bins, parts = ctx.saved_tensors
        sums = _sums if torch.is_grad_enabled() else interpolate_backward
        return None, None, None, sums(gradient, bins, parts, ctx.num_edges)


def _sums(gradient: Tensor, bins: Tensor, parts: Tensor, num_edges: int) -> Tensor:
    """`interpolate_backward` by operators that have gradients, for those who differentiate twice (`create_graph`)."""
    columns = bins.shape[1]
    low = (bins + num_edges * torch.arange(columns, device=bins.device)).flatten()
    up = gradient * parts[:, :, None]
    total = gradient.new_zeros(columns * num_edges, gradient.shape[2])
    total = total.index_add(0, low, (gradient - up).flatten(0, 1)).index_add(0, low + 1, up.flatten(0, 1))
    return total.view(columns, num_edges, -1)
