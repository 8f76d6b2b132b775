"""Contextual neural collaborative filtering: NeuMF with the request's context.

A user u and an item i have vectors p, q of a generalised matrix factorisation (GMF) and others s, t of an MLP (He et
al., Neural Collaborative Filtering, WWW 2017, arXiv 1708.05031):

    phi_gmf = p * q                                        (elementwise; equation 9)
    phi_mlp = MLP([s, t, further columns])                 (equation 10)
    score   = w . [phi_gmf, phi_mlp] + b                   (equation 12)

`context` says where the columns beside the two keys enter: `mlp` puts their vectors, and floats as they are, beside s
and t; `gmf` gives them one common vector c, the mean of their vectors (a float's is x_f v_f), and phi_gmf =
[p * q, p * c, q * c]; `both` does both; `none` leaves them out. The three products are those of NeuCMF (Zheng and
Florez Arias, UMAP 2022; i0, 0i and ii in DeepCARSKit), where a context has a slice of p and q of its own instead of a
share in c.

A table's row holds both vectors of a value, so that one lookup and one update serve the two halves. Trained on
positives and negatives drawn anew each epoch (`train.negatives`): with binary cross-entropy, or with a loss that
compares a positive with its negatives (`models/recommenders/drawn.py`), whose output is exp(a) score + b.

Shapes: B rows, C id columns, F floats, G = gmf_dim, M = mlp_dim, X = context_dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from gigabatch.models.errors import require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.layers.fields import (
    OutputLinear,
    lists_to_tuples,
    mlp,
    one_of,
    positive,
    positive_list,
    probability,
)
from gigabatch.models.layers.pooled import Jagged
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model, Rows
from gigabatch.models.recommenders.drawn import LOSSES, OutputScale, drawn_training_loss

CONTEXTS = ("mlp", "gmf", "both", "none")


@dataclass(frozen=True)
class NCFSettings:
    """Settings of contextual NCF.

    Parameters
    ----------
    gmf_dim, mlp_dim : int, default 8 (with positives alone 64) and 32
        Widths of the user's and the item's vectors in either half; 0 leaves the half out.
    layers : tuple of int, default (32, 16, 8)
        Widths of the MLP's layers, each followed by ReLU and dropout.
    context : {'mlp', 'gmf', 'both', 'none'}, default 'mlp'
        Where columns of neither user nor item enter.
    context_dim : int, default 8
        Width of the vector of such an id column in the MLP.
    dropout : float, default 0.0
        Of each layer's outputs, in training.
    loss : {'bce', 'bpr', 'softmax'}, default 'bce', with positives alone 'softmax'
        `bce`: the target's own loss (squared error for regression). `bpr`, `softmax`: a positive above, or among, the
        negatives that are drawn for it (`train.negatives`).

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> NCFSettings(gmf_dim=16, context="both").gmf_dim
    16
    """

    gmf_dim: int = 8
    mlp_dim: int = 32
    layers: tuple[int, ...] = (32, 16, 8)
    context: str = "mlp"
    context_dim: int = 8
    dropout: float = 0.0
    loss: str = "bce"

    def __post_init__(self) -> None:
        lists_to_tuples(self)
        for name in ("gmf_dim", "mlp_dim"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            require(whole, f"{name} must be a whole number from 0, not {value!r}.")
        require(self.gmf_dim + self.mlp_dim > 0, "gmf_dim and mlp_dim are both 0, which leaves no model.")
        positive_list("layers", self.layers, empty=self.mlp_dim == 0)
        positive("context_dim", self.context_dim)
        probability("dropout", self.dropout)
        one_of("loss of ncf", self.loss, LOSSES)
        one_of("place of the context", self.context, CONTEXTS)
        for place, dim in (("mlp", self.mlp_dim), ("gmf", self.gmf_dim)):
            reachable = dim > 0 or self.context not in (place, "both")
            require(reachable, f"context={self.context}: {place}_dim is 0, so there is no {place} for it to enter.")


class NCF(Model):
    """Contextual NCF: scores [B, 1] of a user, an item and their context; see the module.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs; which columns are the user's and the item's.
    settings : NCFSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import ModelInputs, NCF
    >>> from gigabatch.models.inputs import EntityColumns
    >>> user, item = EntityColumns(key=0, ids=(0,)), EntityColumns(key=1, ids=(1,))
    >>> inputs = ModelInputs((5, 7), num_floats=0, num_outputs=1, user=user, item=item)
    >>> model = NCF(inputs, NCF.Settings(gmf_dim=4, mlp_dim=4, layers=(8,)))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.empty(3, 0)
    >>> model(ids, floats).shape
    torch.Size([3, 1])
    """

    Settings = NCFSettings
    entities = ("user", "item")
    single_output = True
    for_positives: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "model": {"loss": "softmax", "gmf_dim": 64},
        "train": {"select": "last"},  # the valid loss is of probabilities, which this one does not look at
    }

    places: Tensor

    def __init__(self, inputs: ModelInputs, settings: NCFSettings) -> None:
        super().__init__(inputs, settings)
        keys = (inputs.entity("user").key, inputs.entity("item").key)
        self.in_mlp = settings.context in ("mlp", "both")
        self.in_gmf = settings.context in ("gmf", "both")
        all_ids, takes_context = range(len(inputs.num_ids)), settings.context != "none"
        others = [place for place in all_ids if place not in keys and takes_context]
        self.num_others, self.num_floats = len(others), inputs.num_floats if takes_context else 0
        columns = [*keys, *others]
        self.takes_all = columns == list(all_ids)
        # On the device: an index list would be copied there in every step, which a CUDA graph cannot hold.
        self.register_buffer("places", torch.tensor(columns, dtype=torch.int64), persistent=False)
        wide, narrow = settings.gmf_dim + settings.mlp_dim, self._context_width(settings)
        sizes = [inputs.num_ids[place] for place in columns]
        self.embeddings = EmbeddingTables(sizes, [wide] * 2 + [narrow] * len(others), columns=columns)
        self.float_vectors = None
        if self.in_gmf and self.num_floats:
            self.float_vectors = nn.Parameter(0.01 * torch.randn(self.num_floats, settings.gmf_dim))
        self.mlp = None
        if settings.mlp_dim:
            extra = len(others) * settings.context_dim + self.num_floats if self.in_mlp else 0
            self.mlp = mlp(2 * settings.mlp_dim + extra, settings.layers, None, settings.dropout)
            self._reset_mlp()
        has_context = self.in_gmf and self.num_others + self.num_floats > 0
        gmf_width = settings.gmf_dim * (3 if has_context else 1)
        width = gmf_width + (settings.layers[-1] if settings.mlp_dim else 0)
        # bpr and softmax see differences of scores alone, so an optimizer would move a bias by rounding errors.
        self.output_scale = OutputScale() if settings.loss != "bce" else None
        self.output = OutputLinear(width, 1, bias=self.output_scale is None)
        nn.init.xavier_uniform_(self.output.weight)
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)

    def _reset_mlp(self) -> None:
        """Glorot's weights and no biases, as Keras starts the authors' network.

        With torch's own start one of five seeds ended at HR@10 .853 beside .870 to .876, with a higher rate at .775,
        hardly better than popularity (planted data of benchmarks/ncf.py). With this one it has .873.
        """
        for layer in cast(nn.Sequential, self.mlp):
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def _context_width(self, settings: NCFSettings) -> int:
        return (settings.context_dim if self.in_mlp else 0) + (settings.gmf_dim if self.in_gmf else 0)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """ids [B, C], floats [B, F] -> outputs [B, 1] float32."""
        scores = self._scores(ids, floats)
        return scores if self.output_scale is None else cast(Tensor, self.output_scale(scores))

    def training_loss(self, batch: Rows, loss: TargetLoss) -> Tensor:
        """`bce`: the target's loss of the outputs. `bpr`, `softmax`: `models/recommenders/drawn.py`.

        Raises:
            ModelError: for bpr and softmax of a target that is not binary, or without drawn negatives.
        """
        if self.output_scale is None:
            return super().training_loss(batch, loss)
        scores = self._scores(batch.ids, batch.floats)
        return drawn_training_loss("ncf", self.settings.loss, batch, scores, self.output_scale, loss)

    @property
    def compares_rows(self) -> bool:
        """But for `bce`."""
        return self.output_scale is not None

    def _scores(self, ids: Tensor, floats: Tensor) -> Tensor:
        """ids [B, C], floats [B, F] -> scores [B, 1] float32."""
        self.require_inputs(ids, floats)
        settings = self.settings
        found = self.embeddings(ids if self.takes_all else ids.index_select(1, self.places))
        halves = [settings.gmf_dim, settings.mlp_dim]
        # One split: a slice of its own for each part would have a gradient of the whole row's width each.
        p, s, q, t, rest = found.split([*halves, *halves, found.shape[1] - 2 * sum(halves)], dim=1)
        others = rest.unflatten(1, (self.num_others, -1)) if self.num_others else None
        parts = []
        if settings.gmf_dim:
            parts += self._gmf(p, q, others, floats)
        if self.mlp is not None:
            inputs = [s, t]
            if self.in_mlp and others is not None:
                inputs.append(others[:, :, : settings.context_dim].flatten(1))
            if self.in_mlp and self.num_floats:
                inputs.append(floats)
            parts.append(self.mlp(torch.cat(inputs, dim=1)))
        return self.output(torch.cat(parts, dim=1)).float()

    def _gmf(self, user: Tensor, item: Tensor, others: Tensor | None, floats: Tensor) -> list[Tensor]:
        """The parts of phi_gmf, [B, G] each."""
        count = self.num_others + self.num_floats
        if not (self.in_gmf and count):
            return [user * item]
        total = torch.zeros_like(user)
        if others is not None:
            total = total + others[:, :, -self.settings.gmf_dim :].sum(1)
        if self.float_vectors is not None:
            total = total + floats @ self.float_vectors
        context = total / count
        return [user * item, user * context, item * context]
