"""MRMN: a metric space of users and items in which every type of feedback has a relation of its own.

After the multi-relational memory network of Zhou, Liu, Lian and Xie (IJCAI 2019, arXiv 1906.09882), which builds on
LRML (Tay et al., WWW 2018). The exact equations of the paper were not at hand: what stands here is the form that
follows from its abstract and from LRML's published code; docs/models/mrmn.md says what is whose.

    s   = p * q * f_t + c        what user p, item q and context c have in common, seen by feedback type t
    a   = softmax(s K)           attention over the slots of a memory
    r_t = a M_t                  the relation of this user and this item under t
    d_t = |p + r_t - q|^2        small where the user gives the item feedback of type t
    L   = mean of [margin_t + d_t(p, q, r_t) - d_t(p, q', r_t)]+ over positives (p, q) of type t and other items q'

Use it for implicit feedback of several types (click, cart, buy), each a binary target, where one kind of closeness
does not explain them all. Each target is a type, in the order of the outputs.

Shapes: B rows of a batch, T types (the outputs), D `dim`, S `memory_slots`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from gigabatch.models.errors import ModelError, require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.layers.fields import check_settings, is_number, one_of
from gigabatch.models.layers.numeric import Numeric, NumericEmbedding
from gigabatch.models.layers.pooled import Jagged
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model, Rows

RELATIONS = ("per_type", "gated", "shared", "none")
NUMERIC_START = 0.1  # times what the floats' vectors are drawn with: at 1 most would lie outside the unit ball
MAX_NORM = 1.0  # of user and item vectors, as in CML and LRML


@dataclass(frozen=True)
class MRMNSettings:
    """Settings of MRMN.

    Parameters
    ----------
    dim : int, default 32
        Length of user, item and relation vectors.
    memory_slots : int, default 16
        Rows of the memory.
    relation : {'per_type', 'gated', 'shared', 'none'}, default 'per_type'
        How types differ. `per_type`: each has its own memory M_t. `gated`: one memory M, whose relation each type
        multiplies by a gate, r_t = (a M) * sigmoid(g_t). `shared`: one relation for all types, which then differ by
        margin alone (LRML). `none`: no memory, r = 0 (CML, Hsieh et al., WWW 2017). The last two are ablations.
    margins : tuple of float, default (0.5,)
        How much farther than a positive another item has to be, in squared distance: one number, or one a type (larger
        for stronger feedback). Vectors lie in the unit ball, so that two are never farther apart than 4.
    negatives : int, default 4
        Other items that each positive is compared with, taken from other rows of the batch.
    numeric : str or dict of str to str, default 'bins'
        Vectors beside the float columns, of their quantile bins; or `periodic`, or `plain`: none. By column: its
        name and kind, and `*` for the others.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> MRMNSettings(margins=0.3).margins
    (0.3,)
    """

    dim: int = 32
    memory_slots: int = 16
    relation: str = "per_type"
    margins: tuple[float, ...] = (0.5,)
    negatives: int = 4
    numeric: Numeric = "bins"

    def __post_init__(self) -> None:
        check_settings(self)
        if is_number(self.margins):
            object.__setattr__(self, "margins", (self.margins,))
        one_of("relation of mrmn", self.relation, RELATIONS)
        numbers = isinstance(self.margins, tuple) and all(is_number(m) and 0 < m < math.inf for m in self.margins)
        require(numbers and bool(self.margins), f"margins must be positive numbers, not {self.margins!r}.")


class MRMN(Model):
    """MRMN: users and items in a metric space, and a relation vector for each pair and type of feedback.

    All vectors of users and items lie in the unit ball. Outputs [B, T]: logits scale_t (centre_t - d_t), which rank
    exactly as -d_t does. scale_t > 0 and centre_t are learnt by cross-entropy with d_t held fixed, so that
    sigmoid(output) is a probability and yet the metric space is the work of the hinge loss alone.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs; which columns are the user's and the item's.
    settings : MRMNSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import MRMN, ModelInputs
    >>> from gigabatch.models.inputs import EntityColumns
    >>> user, item = EntityColumns(key=0, ids=(0,)), EntityColumns(key=1, ids=(1,))
    >>> inputs = ModelInputs((5, 7), num_floats=0, num_outputs=2, user=user, item=item)
    >>> model = MRMN(inputs, MRMN.Settings(dim=4, memory_slots=3))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.empty(3, 0)
    >>> model(ids, floats).shape
    torch.Size([3, 2])
    """

    Settings = MRMNSettings
    entities = ("user", "item")
    margins: Tensor

    def __init__(self, inputs: ModelInputs, settings: MRMNSettings) -> None:
        super().__init__(inputs, settings)
        if len(settings.margins) not in (1, inputs.num_outputs):
            raise ModelError(
                f"mrmn: margins has {len(settings.margins)} entries for {inputs.num_outputs} types of feedback (the "
                "targets); give one for each, or one number for all."
            )
        types, dim, slots = inputs.num_outputs, settings.dim, settings.memory_slots
        self.user, self.item = inputs.entity("user"), inputs.entity("item")
        self.has_memory = settings.relation != "none"
        self.context_ids = inputs.context_ids if self.has_memory else ()
        self.context_floats = inputs.context_floats if self.has_memory else ()
        num_context = len(inputs.context_ids) + len(inputs.context_floats)
        require(
            self.has_memory or not num_context,
            f"mrmn: relation none has no use for the {num_context} columns that are neither the user's nor the "
            "item's. Leave them out, name them as columns of an entity, or choose another relation.",
        )

        self.embeddings = EmbeddingTables(inputs.num_ids, [dim] * len(inputs.num_ids))
        self.user_floats = _linear(len(self.user.floats), dim)
        self.item_floats = _linear(len(self.item.floats), dim)
        self.context_linear = _linear(len(self.context_floats), dim)
        self.numeric = NumericEmbedding(inputs, settings.numeric, dim)
        if self.has_memory:
            self.keys = nn.Parameter(torch.empty(dim, slots))
            self.memory = nn.Parameter(torch.empty(types if settings.relation == "per_type" else 1, slots, dim))
            if settings.relation != "shared":  # f_t = 1 + offset, so that weight decay leads to LRML's s = p * q
                self.type_offsets = nn.Parameter(torch.empty(types, dim))
            if settings.relation == "gated":
                self.gates = nn.Parameter(torch.empty(types, dim))
        self.log_scale = nn.Parameter(torch.zeros(types))
        self.centre = nn.Parameter(torch.ones(types))
        margins = settings.margins * (types if len(settings.margins) == 1 else 1)
        self.register_buffer("margins", torch.tensor(margins, dtype=torch.float32), persistent=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights from torch's global generator.

        Embeddings of an entity add up to vectors of a length near one half: at EmbeddingTables' own 0.01 all distances
        are alike, and the attention is uniform until they are not.
        """
        deviation = 1 / math.sqrt(self.settings.dim)
        for entity in (self.user, self.item):
            for place in entity.ids:
                self.embeddings.tables[place].normal_().mul_(0.5 * deviation / math.sqrt(len(entity.ids)))
        for place in self.context_ids:
            self.embeddings.tables[place].normal_().mul_(0.1 * deviation)
        self.numeric.shrink(NUMERIC_START)
        if self.has_memory:
            self.keys.normal_()
            self.memory.normal_().mul_(deviation)
        for name in ("type_offsets", "gates"):
            if hasattr(self, name):
                getattr(self, name).normal_().mul_(0.1)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """ids [B, C], floats [B, F] -> [B, T] float32: scale_t (centre_t - d_t), in float32 also under autocast."""
        return self._logits(self.distances(ids, floats))

    def distances(self, ids: Tensor, floats: Tensor) -> Tensor:
        """d_t = |p + r_t - q|^2 of each row and type: [B, T] float32; the smaller, the likelier the feedback."""
        with torch.autocast(ids.device.type, enabled=False):
            user, item, context = self._vectors(ids, floats)
            return self._squared_distance(user, self._relations(user, item, context), item)

    def training_loss(self, batch: Rows, loss: TargetLoss) -> Tensor:
        """Hinge loss of the metric space, and the targets' cross-entropy of the outputs, which moves scale and centre.

        A row with label 1 of type t is a positive of t; its negatives are the items of the rows 1 to `negatives` places
        after it in the batch (cyclically), whatever their labels, less those of the same key as its own item; where
        negatives are drawn (`train.negatives`), these follow their positive. The negative pair is measured with the
        positive's relation. The loss is the mean over all pairs of all types, each weighted by its row's weight: so a
        type counts by how often it occurs.
        """
        if wrong := sorted({task for task, _ in loss.tasks if task != "binary"}):
            raise ModelError(
                f"mrmn: each target is a type of feedback and must be binary; found {', '.join(wrong)}. Choose another "
                "model, or make the target 0 or 1."
            )
        with torch.autocast(batch.ids.device.type, enabled=False):
            user, item, context = self._vectors(batch.ids, batch.floats)
            relation = self._relations(user, item, context)
            distance = self._squared_distance(user, relation, item)
            labels = torch.stack([target.float() for target in batch.targets], dim=1)
            weights = labels if batch.weight is None else labels * batch.weight[:, None]
            hinge = self._hinge(user[:, None] + relation, item, distance, weights, batch.ids[:, self.item.key])
            return hinge + loss(self._logits(distance.detach()), batch.targets, batch.weight)

    @property
    def compares_rows(self) -> bool:
        """Always."""
        return True

    def _hinge(self, place: Tensor, item: Tensor, distance: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        """Mean hinge over pairs. place [B, T, D]: p + r_t, where an item of type t is looked for; item [B, D];
        distance [B, T]; weights [B, T], 0 where the row is no positive; keys [B] of the items."""
        total, pairs = distance.new_zeros(()), distance.new_zeros(())
        for shift in range(1, self.settings.negatives + 1):
            other = item.roll(-shift, dims=0)
            counts = weights * (keys != keys.roll(-shift, dims=0))[:, None]
            excess = functional.relu(self.margins + distance - (place - other[:, None]).square().sum(2))
            total, pairs = total + (counts * excess).sum(), pairs + counts.sum()
        return total / pairs.clamp(min=torch.finfo(torch.float32).tiny)  # 0 for a batch without pairs

    def _logits(self, distance: Tensor) -> Tensor:
        return torch.exp(self.log_scale) * (self.centre - distance)

    def _vectors(self, ids: Tensor, floats: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """User and item vectors in the unit ball, and the context's: [B, D] each."""
        self.require_inputs(ids, floats)
        embedded = self.embeddings(ids).view(len(ids), len(self.inputs.num_ids), self.settings.dim)
        found = self.numeric.of_all(floats) if self.numeric.num_columns else None
        user = _summed(embedded, self.user.ids, floats, self.user.floats, self.user_floats, found)
        item = _summed(embedded, self.item.ids, floats, self.item.floats, self.item_floats, found)
        context = _summed(embedded, self.context_ids, floats, self.context_floats, self.context_linear, found)
        return _into_unit_ball(user), _into_unit_ball(item), context

    def _relations(self, user: Tensor, item: Tensor, context: Tensor) -> Tensor:
        """r_t of each row: [B, T, D], or [B, 1, D] where all types share one."""
        if not self.has_memory:
            return torch.zeros_like(user)[:, None]
        common = (user * item)[:, None]
        if self.settings.relation != "shared":
            common = common * (1 + self.type_offsets)
        attention = torch.softmax((common + context[:, None]) @ self.keys, dim=2)
        if self.settings.relation == "per_type":
            return torch.bmm(attention.transpose(0, 1), self.memory).transpose(0, 1)
        relation = attention @ self.memory[0]
        return relation * torch.sigmoid(self.gates) if self.settings.relation == "gated" else relation

    def _squared_distance(self, user: Tensor, relation: Tensor, item: Tensor) -> Tensor:
        """[B, T], also where the types share one relation."""
        distance = ((user - item)[:, None] + relation).square().sum(2)
        return distance.expand(-1, self.inputs.num_outputs)


def _linear(num_floats: int, dim: int) -> nn.Linear | None:
    """Floats to a vector; without bias, which the embeddings' sum does not need."""
    return nn.Linear(num_floats, dim, bias=False) if num_floats else None


def _summed(
    embedded: Tensor,
    places: tuple[int, ...],
    floats: Tensor,
    float_places: tuple[int, ...],
    linear: nn.Linear | None,
    vectors: Tensor | None,
) -> Tensor:
    """Sum of the embeddings [B, C, D] of some columns, a linear map of some floats [B, F] and their vectors [B, F, D]
    where they have some: [B, D].

    Columns are taken one by one, as views: an index list would have to be copied to the device in every step.
    """
    total = embedded.new_zeros(len(embedded), embedded.shape[2])
    for place in places:
        total = total + embedded[:, place]
    if linear is None:
        return total
    mapped: Tensor = linear(torch.stack([floats[:, place] for place in float_places], dim=1))
    total = total + mapped
    if vectors is not None:
        for place in float_places:
            total = total + vectors[:, place]
    return total


def _into_unit_ball(vectors: Tensor) -> Tensor:
    """Vectors longer than `MAX_NORM` are scaled down to it. The norm's square root is not taken at 0, where it has no
    gradient."""
    squares = vectors.square().sum(1, keepdim=True).clamp(min=MAX_NORM**2)
    return vectors * (MAX_NORM / squares.sqrt())
