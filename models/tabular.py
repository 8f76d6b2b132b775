"""fastai's tabular model: embedded ids and normalised floats, through blocks of linear, ReLU, batch norm and dropout.

Shapes: B rows of a batch, C id columns, F float columns.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from models.embeddings import EmbeddingTables, embedding_width
from models.errors import ModelError, require
from models.folded import FoldedNetwork, folded_forward
from models.model import Model, ModelInputs


@dataclass(frozen=True)
class TabularConfig:
    """Everything that `TabularModel` is built from; goes to and from JSON and YAML by `to_dict` and `from_dict`.

    num_ids: size of each id column's table. embedding_widths: width of each table; None takes `embedding_width`.
    num_floats: float columns. num_outputs: width of the output.
    layers: widths of the hidden layers. dropout: after each of them, one probability or one a layer.
    embedding_dropout: on the concatenated embeddings.
    batch_norm: in the hidden layers, which then have no bias; batch_norm_floats: on the float columns;
        batch_norm_last: also in the output layer.
    output_range: (low, high) that a sigmoid squeezes the outputs into, for bounded regression; None leaves them.
    linear_first: linear, ReLU, batch norm, dropout; otherwise batch norm, dropout, linear, ReLU.
    """

    num_ids: tuple[int, ...]
    num_floats: int
    num_outputs: int
    embedding_widths: tuple[int, ...] | None = None
    layers: tuple[int, ...] = (200, 100)
    dropout: float | tuple[float, ...] = 0.0
    embedding_dropout: float = 0.0
    batch_norm: bool = True
    batch_norm_floats: bool = True
    batch_norm_last: bool = False
    output_range: tuple[float, float] | None = None
    linear_first: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):  # JSON and YAML know only lists
            if isinstance(value := getattr(self, field.name), list):
                object.__setattr__(self, field.name, tuple(value))
        self._check_sizes()
        self._check_probabilities()
        if self.output_range is not None:
            require(
                len(self.output_range) == 2 and self.output_range[0] < self.output_range[1],
                f"output_range must be (low, high) with low < high, not {self.output_range}.",
            )

    def _check_sizes(self) -> None:
        _require_counts("num_ids", self.num_ids, at_least=1)
        _require_counts("layers", self.layers, at_least=1)
        _require_counts("num_floats", (self.num_floats,), at_least=0)
        _require_counts("num_outputs", (self.num_outputs,), at_least=1)
        require(bool(self.num_ids) or self.num_floats > 0, "num_ids is empty and num_floats is 0: no inputs are left.")
        if self.embedding_widths is not None:
            _require_counts("embedding_widths", self.embedding_widths, at_least=1)
            require(
                len(self.embedding_widths) == len(self.num_ids),
                f"embedding_widths has {len(self.embedding_widths)} entries for the {len(self.num_ids)} id columns of "
                "num_ids; give one for each, or None for the rule.",
            )

    def _check_probabilities(self) -> None:
        if isinstance(self.dropout, tuple):
            require(
                len(self.dropout) == len(self.layers),
                f"dropout has {len(self.dropout)} entries for {len(self.layers)} layers; give one for each, or one "
                "number for all.",
            )
        for name, values in (("dropout", self.layer_dropouts), ("embedding_dropout", (self.embedding_dropout,))):
            for value in values:
                number = isinstance(value, int | float)
                require(number and 0 <= value < 1, f"{name} must be a probability in [0, 1), not {value!r}.")

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of each embedding table, the rule applied."""
        return self.embedding_widths or tuple(embedding_width(size) for size in self.num_ids)

    @property
    def layer_dropouts(self) -> tuple[float, ...]:
        """Dropout after each hidden layer."""
        return self.dropout if isinstance(self.dropout, tuple) else (self.dropout,) * len(self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, tuples and None, ready for JSON or YAML."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "TabularConfig":
        """The config that `to_dict` wrote; keys that do not exist or are missing are a `ModelError`."""
        known = [field.name for field in fields(cls)]
        if unknown := [key for key in raw if key not in known]:
            raise ModelError.unknown("key of the tabular model", unknown, known)
        required = ("num_ids", "num_floats", "num_outputs")
        missing = [key for key in required if key not in raw]
        require(not missing, f"the tabular model lacks {', '.join(missing)}; required: {', '.join(required)}.")
        return cls(**raw)


@dataclass(frozen=True)
class TabularSettings:
    """What can be set of the tabular model: everything in `TabularConfig` but the sizes that the data give.

    embedding_width_max: cap on the width rule `embedding_width`, where embedding_widths is None.
    """

    layers: tuple[int, ...] = (200, 100)
    dropout: float | tuple[float, ...] = 0.0
    embedding_dropout: float = 0.0
    embedding_width_max: int = 600
    embedding_widths: tuple[int, ...] | None = None
    batch_norm: bool = True
    batch_norm_floats: bool = True
    batch_norm_last: bool = False
    output_range: tuple[float, float] | None = None
    linear_first: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            if isinstance(value := getattr(self, field.name), list):
                object.__setattr__(self, field.name, tuple(value))
        _require_counts("embedding_width_max", (self.embedding_width_max,), at_least=1)
        if self.embedding_widths is not None:
            _require_counts("embedding_widths", self.embedding_widths, at_least=1)
        self.config(ModelInputs((1,) * len(self.embedding_widths or (1,)), 1))

    def config(self, inputs: ModelInputs) -> TabularConfig:
        """The model's shape on these inputs; `ModelError` for what cannot be."""
        raw = asdict(self)
        cap = raw.pop("embedding_width_max")
        widths = self.embedding_widths or tuple(min(embedding_width(size), cap) for size in inputs.num_ids)
        sizes = {"num_ids": inputs.num_ids, "num_floats": inputs.num_floats, "num_outputs": inputs.num_outputs}
        return TabularConfig(**{**raw, **sizes, "embedding_widths": widths})


def _require_counts(name: str, values: Any, at_least: int) -> None:
    """`values` must be a tuple of integers, none under `at_least`."""
    whole = isinstance(values, tuple) and all(isinstance(v, int) and not isinstance(v, bool) for v in values)
    found = values[0] if isinstance(values, tuple) and len(values) == 1 else values
    require(whole and all(v >= at_least for v in values), f"{name} must be integers from {at_least} up, not {found!r}.")


def linear_block(
    num_in: int, num_out: int, *, batch_norm: bool, dropout: float, activation: bool, linear_first: bool
) -> nn.Sequential:
    """fastai's `LinBnDrop`: a linear layer, without bias where batch norm supplies one, and what goes with it."""
    regularisers: list[nn.Module] = []
    if batch_norm:
        norm = nn.BatchNorm1d(num_out if linear_first else num_in)
        nn.init.constant_(norm.bias, 1e-3)  # as fastai's BatchNorm starts
        regularisers.append(norm)
    if dropout:
        regularisers.append(nn.Dropout(dropout))
    linear: list[nn.Module] = [nn.Linear(num_in, num_out, bias=not batch_norm)]
    if activation:
        linear.append(nn.ReLU(inplace=True))
    return nn.Sequential(*(linear + regularisers if linear_first else regularisers + linear))


class TabularModel(Model):
    """Ids and floats to outputs, with the semantics of fastai 2.8's `TabularModel`.

    tests/models/test_tabular_model.py compares its outputs and gradients with fastai's own, weights copied over.

    folded: train through `models/folded.py`, which computes the same in fewer passes; the default where the model's
        form and its optimizer allow it (see `folding_obstacle`).
    """

    Settings = TabularSettings

    def __init__(self, config: TabularConfig, gradients: str = "dense") -> None:
        raw = config.to_dict() | {"embedding_widths": config.widths}
        inputs = ModelInputs(*(raw.pop(name) for name in ("num_ids", "num_floats", "num_outputs")))
        super().__init__(inputs, TabularSettings(**raw))
        self.config = config
        self.folded = True
        self.embeddings = EmbeddingTables(config.num_ids, config.widths, gradients)
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)
        self.float_norm = nn.BatchNorm1d(config.num_floats) if config.batch_norm_floats and config.num_floats else None
        self.layers = self._build_layers()

    @classmethod
    def build(cls, inputs: ModelInputs, settings: TabularSettings) -> "TabularModel":
        """The model that these settings give on these inputs."""
        model = cls(settings.config(inputs))
        model.inputs, model.settings = inputs, settings  # the cap and the entities too, which the shape does not hold
        return model

    def _build_layers(self) -> nn.Sequential:
        config = self.config
        hidden = len(config.layers)
        sizes = (self.embeddings.width + config.num_floats, *config.layers, config.num_outputs)
        return nn.Sequential(
            *(
                linear_block(
                    num_in,
                    num_out,
                    batch_norm=config.batch_norm and (index < hidden or config.batch_norm_last),
                    dropout=config.layer_dropouts[index] if index < hidden else 0.0,
                    activation=index < hidden,
                    linear_first=config.linear_first,
                )
                for index, (num_in, num_out) in enumerate(pairwise(sizes))
            )
        )

    def forward(self, ids: Tensor, floats: Tensor) -> Tensor:
        """ids [B, C] int32 or int64, floats [B, F] float32 -> [B, num_outputs] in the dtype of `floats`.

        C or F may be 0, but both tensors are always given. The outputs are logits (or values, for regression): no
        sigmoid or softmax, except that of `output_range`. Under autocast they are cast back to the dtype of `floats`.
        """
        if floats.dim() != 2 or floats.shape[1] != self.config.num_floats:
            raise ModelError(
                f"tabular model: floats must be [rows, {self.config.num_floats}], found {list(floats.shape)}."
            )
        self.embeddings.require_ids(ids)
        if ids.shape[0] != floats.shape[0]:  # not `require`, whose message would fix the rows of an exported graph
            raise ModelError(f"tabular model: {len(ids)} rows of ids but {len(floats)} rows of floats.")
        folds = self.training and torch.is_grad_enabled() and self.folded and self.folding_obstacle() is None
        if folds and not floats.requires_grad:  # the folded pass has no gradient of its inputs
            kind = floats.device.type
            dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else floats.dtype
            with torch.autocast(kind, enabled=False):
                outputs = folded_forward(self._network(), ids.int(), floats, dtype)
        else:
            embedded = self.embedding_dropout(self.embeddings(ids))
            normed = floats if self.float_norm is None else self.float_norm(floats)
            outputs = self.layers(torch.cat([embedded, normed], dim=1)).to(floats.dtype)
        if self.config.output_range is None:
            return outputs
        low, high = self.config.output_range
        return torch.sigmoid(outputs) * (high - low) + low

    def folding_obstacle(self) -> str | None:
        """Why training does not go through `models/folded.py`, in words; None where it does."""
        config = self.config
        if torch.compiler.is_compiling():
            return "torch.compile fuses the plain form"
        if self.embeddings.gradients != "rows":
            return f"the tables' gradients are {self.embeddings.gradients}, not rows"
        if any(config.layer_dropouts) or config.embedding_dropout:
            return "there is dropout between batch norm and the next layer"
        if not config.linear_first or config.batch_norm_last:
            return "a batch norm is not between a ReLU and the next linear layer"
        return None

    def _network(self) -> FoldedNetwork:
        """The model's own modules in the order in which they are folded."""
        linears = [module for module in self.layers.modules() if isinstance(module, nn.Linear)]
        norms = [
            next((m for m in block.children() if isinstance(m, nn.BatchNorm1d)), None)
            for block in self.layers.children()
        ][:-1]
        return FoldedNetwork(self.embeddings, self.float_norm, linears, norms)
