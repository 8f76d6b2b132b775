"""fastai's tabular model: embedded ids and normalised floats, through blocks of linear, ReLU, batch norm and dropout.

    y = MLP([e_1, ..., e_C, n_1, ..., n_F, floats])        e of an id, n of a float's bins (`numeric`)

Shapes: B rows of a batch, C id columns, F float columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.kernels import takes_tables
from gigabatch.models.layers.batch_norm import BatchNorm1d
from gigabatch.models.layers.dropout import Dropout
from gigabatch.models.layers.embeddings import EmbeddingTables, embedding_width
from gigabatch.models.layers.fields import check_settings, is_number, probability
from gigabatch.models.layers.folded import FoldedNetwork, folded_forward
from gigabatch.models.layers.numeric import NUMERIC_WIDTH, Numeric, NumericEmbedding
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.model import Model, TargetScale

DROPOUTS = (nn.Dropout, Dropout)
NORMS = (nn.BatchNorm1d, BatchNorm1d)


@dataclass(frozen=True)
class TabularSettings(PoolingSettings):
    """Settings of the tabular model.

    Parameters
    ----------
    layers : tuple of int, default (200, 100)
        Widths of the hidden layers.
    dropout : float or tuple of float, default 0.0
        Of each hidden layer's outputs, in training; one probability, or one a layer.
    embedding_dropout : float, default 0.0
        Of the embeddings side by side, in training.
    embedding_width_max : int, default 32
        The widest that `embedding_width` may make a table; fastai's is 600.
    embedding_widths : tuple of int or None, default None
        Width of each id column's table, then of each list's own; None takes `embedding_width`.
    batch_norm : bool, default True
        In the hidden layers, which then have no bias.
    batch_norm_eps : float, default 0.001
        What is added to a variance in the hidden layers. With fastai's 1e-5 a unit that fires for few rows may be 300
        times as large for another one, in each layer.
    batch_norm_floats : bool, default True
        On the float columns.
    batch_norm_last : bool, default False
        In the output layer too.
    output_range : (float, float) or None, default None
        (low, high), in the target's own unit, that a sigmoid squeezes the outputs of regression targets into.
    linear_first : bool, default True
        Linear, ReLU, batch norm, dropout; otherwise batch norm, dropout, linear, ReLU.
    numeric : str or dict of str to str, default 'bins'
        What stands beside the float columns: `bins` or `periodic` vectors of each (`NumericEmbedding`), or `plain`,
        nothing, as in fastai. By column: its name and kind, and `*` for the others.
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
    >>> TabularSettings(layers=(64, 32), dropout=0.1).layers
    (64, 32)
    """

    layers: tuple[int, ...] = (200, 100)
    dropout: float | tuple[float, ...] = 0.0
    embedding_dropout: float = 0.0
    embedding_width_max: int = 32
    embedding_widths: tuple[int, ...] | None = None
    batch_norm: bool = True
    batch_norm_eps: float = 1e-3
    batch_norm_floats: bool = True
    batch_norm_last: bool = False
    output_range: tuple[float, float] | None = None
    linear_first: bool = True
    numeric: Numeric = "bins"
    numeric_width: int = NUMERIC_WIDTH

    def __post_init__(self) -> None:
        check_settings(self, may_be_empty=("layers", "embedding_widths"))
        require(
            not isinstance(self.dropout, tuple) or len(self.dropout) == len(self.layers),
            f"dropout must be one number, or one for each of the {len(self.layers)} layers, not {self.dropout}.",
        )
        require(self.batch_norm_eps > 0, f"batch_norm_eps must be above 0, not {self.batch_norm_eps}.")
        for value in self.layer_dropouts:
            probability("dropout", value)
        if self.output_range is not None:
            is_range = isinstance(self.output_range, tuple) and len(self.output_range) == 2
            require(
                is_range
                and all(is_number(end) and isfinite(end) for end in self.output_range)
                and self.output_range[0] < self.output_range[1],
                f"output_range must be (low, high), two finite numbers with low < high, not {self.output_range!r}.",
            )

    @property
    def layer_dropouts(self) -> tuple[float, ...]:
        """Dropout after each hidden layer."""
        return self.dropout if isinstance(self.dropout, tuple) else (self.dropout,) * len(self.layers)

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


def linear_block(
    num_in: int, num_out: int, *, batch_norm: float | None, dropout: float, activation: bool, linear_first: bool
) -> nn.Sequential:
    """fastai's `LinBnDrop`: a linear layer, without bias where batch norm supplies one, and what goes with it.
    batch_norm: its eps, None for none."""
    regularisers: list[nn.Module] = []
    if batch_norm is not None:
        norm = BatchNorm1d(num_out if linear_first else num_in, eps=batch_norm)
        nn.init.constant_(norm.bias, 1e-3)  # as fastai's BatchNorm starts
        regularisers.append(norm)
    if dropout:
        regularisers.append(Dropout(dropout))
    linear: list[nn.Module] = [nn.Linear(num_in, num_out, bias=batch_norm is None)]
    if activation:
        linear.append(nn.ReLU(inplace=True))
    return nn.Sequential(*(linear + regularisers if linear_first else regularisers + linear))


class TabularModel(Model):
    """Tabular network: ids and floats to outputs, with the semantics of fastai 2.8's `TabularModel`.

    tests/models/tabular/test_tabular_model.py compares its outputs and gradients with fastai's own, weights copied
    over. The attribute `folded` says whether to train through `models/layers/folded.py`, which computes the same in
    fewer passes; it is the default where the model's form and its optimizer allow it (see `folding_obstacle`).

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs.
    settings : TabularSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import ModelInputs, TabularModel
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2)
    >>> model = TabularModel(inputs, TabularModel.Settings(layers=(8,)))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model(ids, floats).shape
    torch.Size([3, 1])
    """

    Settings = TabularSettings
    takes_lists = True

    def __init__(self, inputs: ModelInputs, settings: TabularSettings) -> None:
        super().__init__(inputs, settings)
        self.folded = True
        self.embeddings = EmbeddingTables(
            inputs.num_ids, self._table_widths(), lists=inputs.lists, pooling=settings.pooling
        )
        self.embedding_dropout = Dropout(settings.embedding_dropout)
        has_norm = settings.batch_norm_floats and inputs.num_floats
        self.float_norm = BatchNorm1d(inputs.num_floats) if has_norm else None
        self.numeric = NumericEmbedding(inputs, settings.numeric, settings.numeric_width)
        self.layers = self._build_layers()

    def _table_widths(self) -> tuple[int, ...]:
        """Of each id column's table, then of each list's own."""
        return tuple(self.settings.widths(self.inputs.table_sizes))

    def _build_layers(self) -> nn.Sequential:
        settings = self.settings
        hidden = len(settings.layers)
        num_inputs = self.embeddings.width + self.numeric.num_columns * settings.numeric_width + self.inputs.num_floats
        sizes = (num_inputs, *settings.layers, self.inputs.num_outputs)
        return nn.Sequential(
            *(
                linear_block(
                    num_in,
                    num_out,
                    batch_norm=settings.batch_norm_eps
                    if index < hidden + settings.batch_norm_last and settings.batch_norm
                    else None,
                    dropout=settings.layer_dropouts[index] if index < hidden else 0.0,
                    activation=index < hidden,
                    linear_first=settings.linear_first,
                )
                for index, (num_in, num_out) in enumerate(pairwise(sizes))
            )
        )

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """ids [B, C] int32 or int64, floats [B, F] float32 -> [B, num_outputs] in the dtype of `floats`.

        C or F may be 0, but both tensors are always given. The outputs are logits (or values, for regression): no
        sigmoid or softmax, except that of `output_range`, which acts on the outputs that `target_scales` name, and on
        all of a model without scales. Under autocast they are cast back to the dtype of `floats`.
        """
        self.require_inputs(ids, floats, lists)
        folds = self.training and torch.is_grad_enabled() and self.folded and self.folding_obstacle() is None
        if folds and not floats.requires_grad:  # the folded pass has no gradient of its inputs
            kind = floats.device.type
            dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else floats.dtype
            with torch.autocast(kind, enabled=False):
                parts = self.embeddings.of_lists(lists, len(ids))
                parts += [self.numeric(floats).flatten(1)] if self.numeric.num_columns else []
                vectors = torch.cat(parts, dim=1) if parts else None
                outputs = folded_forward(self._network(), ids, floats, dtype, vectors)
        else:
            embedded = self.embedding_dropout(self.embeddings(ids, lists))
            normed = floats if self.float_norm is None else self.float_norm(floats)
            vectors = self.numeric(floats).flatten(1)
            outputs = self.layers(torch.cat([embedded, vectors, normed], dim=1)).to(floats.dtype)
        if self.settings.output_range is None:
            return outputs
        low, high = self.settings.output_range
        columns = list(outputs.unbind(1))
        # Those with a scale are of regression targets; without any nothing is known of the targets.
        scales = self.target_scales or [TargetScale(place, place, 0.0, 1.0) for place in range(len(columns))]
        for _, place, mean, std, _ in scales:  # the range is in the target's own unit, and outputs are standardised
            columns[place] = torch.sigmoid(columns[place]) * ((high - low) / std) + (low - mean) / std
        return torch.stack(columns, dim=1)

    def require_targets(self, tasks: Sequence[str]) -> None:
        """Raise `ModelError` for an `output_range` where no target is a regression."""
        require(
            self.settings.output_range is None or "regression" in tasks,
            f"output_range bounds the outputs of regression targets, and there is none: {', '.join(tasks)}. Leave it "
            "out.",
        )

    def folding_obstacle(self) -> str | None:
        """Why training does not go through `models/layers/folded.py`, in words; None where it does."""
        settings = self.settings
        if torch.compiler.is_compiling():
            return "torch.compile fuses the plain form"
        if self.embeddings.gradients != "rows":
            return f"the tables' gradients are {self.embeddings.gradients}, not rows"
        if not all(takes_tables(parameter.dtype) for parameter in self.parameters()):
            return "weights are not float32"
        if not settings.linear_first or settings.batch_norm_last:
            return "a batch norm is not between a ReLU and the next linear layer"
        norms = [module for module in self.modules() if isinstance(module, nn.modules.batchnorm._NormBase)]
        if not all(norm.training and norm.track_running_stats and norm.momentum is not None for norm in norms):
            return "a batch norm is in evaluation mode, or keeps its statistics in another way"
        *hidden, last = [[part for part in block.children() if type(part) is not nn.Identity] for block in self.layers]
        if not all(map(_is_folded_block, hidden)) or [type(part) for part in last] != [nn.Linear]:
            return "a layer's parts are not linear, ReLU, batch norm and dropout, in this order"
        if type(self.embedding_dropout) not in (*DROPOUTS, nn.Identity):
            return "the dropout of the embeddings is of another kind"
        if self.inputs.lists and _rate(self.embedding_dropout):
            return "the dropout of the embeddings is of pooled lists too"
        if self.float_norm is not None and type(self.float_norm) not in NORMS:
            return "the norm of the floats is of another kind"
        if any(_hooked(module) for module in self.modules() if module is not self):
            return "a module has hooks, which would not be called"
        if any(rate >= 1 for rate in (_rate(self.embedding_dropout), *map(_rate_of_block, self.layers.children()))):
            return "a dropout leaves nothing"
        return None

    def _network(self) -> FoldedNetwork:
        """The model's own modules in the order in which they are folded."""
        linears = [module for module in self.layers.modules() if isinstance(module, nn.Linear)]
        norms = [
            next((m for m in block.children() if isinstance(m, nn.BatchNorm1d)), None)
            for block in self.layers.children()
        ][:-1]
        dropouts = [_rate_of_block(block) for block in self.layers.children()][:-1]
        return FoldedNetwork(self.embeddings, self.float_norm, linears, norms, dropouts, _rate(self.embedding_dropout))


def _rate(module: nn.Module) -> float:
    """What a module drops as it is now, which may differ from the settings: it may be changed, frozen or replaced."""
    return module.p if isinstance(module, nn.Dropout) and module.training else 0.0


def _rate_of_block(block: nn.Module) -> float:
    return max((_rate(part) for part in block.children()), default=0.0)


def _is_folded_block(parts: Sequence[nn.Module]) -> bool:
    """Linear, ReLU, then batch norm or not, then dropout or not."""
    plain: dict[type, type] = {**dict.fromkeys(DROPOUTS, nn.Dropout), **dict.fromkeys(NORMS, nn.BatchNorm1d)}
    kinds = [plain.get(type(part), type(part)) for part in parts]
    return kinds in (
        [nn.Linear, nn.ReLU, *norm, *drop] for norm in ([], [nn.BatchNorm1d]) for drop in ([], [nn.Dropout])
    )


def _hooked(module: nn.Module) -> bool:
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(kinds)
