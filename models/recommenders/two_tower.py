"""Two-tower network: a vector of the user and one of the item, each from its own columns, and a score of the two.

    u = tower_user(columns and lists of user and context)       v = tower_item(columns and lists of item)
    s = <u, v> / temperature                          top: dot; u and v of length 1 if normalised
    s = <u, v> / temperature + MLP([u, v, u * v])     top: mlp
    output = exp(a) s + b

As neither tower sees the other's columns, vectors of users and items can be stored, and only the score is left for
request time (Huang et al., CIKM 2013; Covington et al., RecSys 2016; Yi et al., RecSys 2019). Context, the columns of
neither, belongs to the request and enters the user's tower: an item's vector must not depend on who asks and when, or
it could not be stored, and a request has one user and many items. The inner product is a term of both scores, so
vectors near each other find candidates under either top; the MLP then ranks them.

A list enters its tower as the pooled rows of its elements, as watched videos do in Covington et al. Towers share no
table, so the items of a history have one of their own in the user's.

Use it where items are to be found among very many, or ranked within a millisecond. A model that crosses user and item
columns early (dcn, deepfm) ranks better where it can be afforded.

Shapes: B rows of a batch, C id columns, F float columns, d `vector_dim`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gigabatch.models.errors import ModelError, require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.embeddings import EmbeddingTables, embedding_width, tables_of_lists
from gigabatch.models.layers.fields import check_settings, float_norm, mlp, one_of, positive_number, rows_of
from gigabatch.models.layers.numeric import NUMERIC_WIDTH, Numeric, NumericEmbedding
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Rows, lists_of
from gigabatch.models.recommenders.in_batch import (
    beside,
    pair_bpr,
    pair_softmax,
    positives_first,
    positives_mean,
    window_softmax,
)
from gigabatch.models.recommenders.item_shares import ItemShares

TOPS = ("dot", "mlp")
LOSSES = ("bce", "softmax", "bpr")


@dataclass(frozen=True)
class TwoTowerSettings(PoolingSettings):
    """Settings of the two towers.

    Parameters
    ----------
    embedding_dim : int or None, default 16
        Numbers in the vector of a column's value; None takes the rule `embedding_width`, larger for larger tables.
    embedding_widths : tuple of int or None, default None
        Those of each id column, then of each list with a vocabulary of its own, in place of `embedding_dim`. A warm
        start keeps the widths of its start so.
    layers : tuple of int, default (128,), with positives alone none
        Widths of the hidden layers of both towers.
    user_layers, item_layers : tuple of int or None, default None
        Those of one tower, in place of `layers`.
    vector_dim : int, default 64
        Numbers in the vector that a tower gives.
    dropout : float, default 0.0
        Of hidden layers, those of the top too, in training.
    batch_norm : bool, default False
        In hidden layers, those of the top too.
    normalise : bool, default True
        Give vectors the length 1, so that the inner product is a cosine.
    temperature : float, default 0.1, with positives alone 0.2
        Divides the inner product.
    top : {'dot', 'mlp'}, default 'dot'
        How two vectors make a score, as in the module's docstring.
    top_layers : tuple of int, default (64,)
        Widths of the hidden layers of the top's MLP.
    loss : {'bce', 'softmax', 'bpr'}, default 'bce', with positives alone 'softmax'
        `bce`: the target's own loss of the output (squared error for regression). `softmax`: an item among the others
        of its batch. `bpr`: an item above others of its batch. See `TwoTower.training_loss`.
    softmax_rows : int, default 1024
        Positives of the batch among whose items one is to be found, its own among them (`softmax`, top `dot`).
    negatives : int, default 8
        Rows whose items it is compared with (`bpr`, and `softmax` where top is `mlp`).
    log_q : bool, default True
        `softmax` takes the logarithm of an item's share of the train split's positives off its score.
    numeric : str or dict of str to str, default 'bins'
        Vectors beside the float columns, of their quantile bins; or `periodic`, or `plain`: none. By column: its
        name and kind, and `*` for the others.
    numeric_width : int, default 16
        Of each float column's vector.
    pooling : {'mean', 'sum', 'root', 'max'}, default 'mean'
        How the rows of a list's elements become one vector.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> TwoTowerSettings(layers=[64, 32], user_layers=[8]).tower_layers
    ((8,), (64, 32))
    """

    embedding_dim: int | None = 16
    embedding_widths: tuple[int, ...] | None = None
    layers: tuple[int, ...] = (128,)
    user_layers: tuple[int, ...] | None = None
    item_layers: tuple[int, ...] | None = None
    vector_dim: int = 64
    dropout: float = 0.0
    batch_norm: bool = False
    normalise: bool = True
    temperature: float = 0.1
    top: str = "dot"
    top_layers: tuple[int, ...] = (64,)
    loss: str = "bce"
    softmax_rows: int = 1024
    negatives: int = 8
    log_q: bool = True
    numeric: Numeric = "bins"
    numeric_width: int = NUMERIC_WIDTH

    def __post_init__(self) -> None:
        empty = ("layers", "user_layers", "item_layers", "top_layers", "embedding_widths")
        check_settings(self, may_be_empty=empty)
        require(self.softmax_rows >= 2, "softmax_rows must be at least 2: an item and another to compare it with.")
        positive_number("temperature", self.temperature)
        one_of("top of two_tower", self.top, TOPS)
        one_of("loss of two_tower", self.loss, LOSSES)

    def widths(self, num_ids: Sequence[int]) -> tuple[int, ...]:
        """Width of each table for columns of so many ids; `ModelError` where as many widths are not given."""
        if self.embedding_widths is None:
            return tuple(self.embedding_dim or embedding_width(size) for size in num_ids)
        require(
            len(self.embedding_widths) == len(num_ids),
            f"embedding_widths has {len(self.embedding_widths)} entries for {len(num_ids)} id columns and lists with a "
            "vocabulary of their own; give one for each, or None for embedding_dim.",
        )
        return self.embedding_widths

    @property
    def tower_layers(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Widths of the hidden layers of the user's and of the item's tower."""
        user = self.layers if self.user_layers is None else self.user_layers
        item = self.layers if self.item_layers is None else self.item_layers
        return user, item


class Tower(nn.Module):
    """Some of the columns to a vector: embedded ids, pooled lists, batch-normed floats and their vectors side by side,
    then a network.

    Columns of one vocabulary share a table of the tower. ids, floats, lists: places among the model's.
    """

    def __init__(
        self,
        inputs: ModelInputs,
        ids: Sequence[int],
        floats: Sequence[int],
        lists: Sequence[int],
        settings: TwoTowerSettings,
        layers: Sequence[int],
    ) -> None:
        super().__init__()
        # Buffers, because indexing by a list copies it to the device each time, and waits for it.
        self.register_buffer("id_places", torch.tensor(ids, dtype=torch.int64), persistent=False)
        self.register_buffer("float_places", torch.tensor(floats, dtype=torch.int64), persistent=False)
        edges = tuple(inputs.float_edges[place] for place in floats) if inputs.float_edges else ()
        names = tuple(inputs.float_names[place] for place in floats) if inputs.float_names else ()
        sizes = tuple(inputs.num_ids[place] for place in ids)
        own = ModelInputs(sizes, len(floats), float_edges=edges, float_names=names)
        widths, of_lists = settings.widths(inputs.table_sizes), tables_of_lists(len(inputs.num_ids), inputs.lists)
        owners = {place: number for number, place in enumerate(ids)}  # by vocabulary, the tower's first column of it
        own_lists, own_widths = [], [widths[place] for place in ids]
        for number, place in enumerate(lists, len(ids)):
            vocabulary = of_lists[place]
            own_lists.append(replace(inputs.lists[place], shares=owners.get(vocabulary)))
            if vocabulary not in owners:
                owners[vocabulary] = number
                own_widths.append(widths[vocabulary])
        self.list_places = tuple(lists)
        self.embeddings = EmbeddingTables(
            own.num_ids, own_widths, columns=ids, lists=own_lists, pooling=settings.pooling, list_places=lists
        )
        self.float_norm = float_norm(own)
        self.numeric = NumericEmbedding(own, settings.numeric, settings.numeric_width)
        width = self.embeddings.width + own.num_floats + self.numeric.num_columns * settings.numeric_width
        self.network = mlp(width, layers, settings.vector_dim, settings.dropout, settings.batch_norm)
        for layer in self.network:
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                nn.init.zeros_(layer.bias)  # embeddings start small, and biases would make all vectors alike

    def embed(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """All columns of a batch, ids [B, C], floats [B, F] and lists, to what the network takes of them."""
        own_ids = ids.index_select(1, cast(Tensor, self.id_places))
        own_floats = floats.index_select(1, cast(Tensor, self.float_places))
        own_lists = [lists[place] for place in self.list_places]
        parts = [rows_of(self.embeddings, own_ids, own_lists), self.float_norm(own_floats)]
        if self.numeric.num_columns:
            parts.append(self.numeric(own_floats).flatten(1))
        return torch.cat(parts, dim=1)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """ids [B, C], floats [B, F], the model's lists of B rows each -> [B, d]."""
        return cast(Tensor, self.network(self.embed(ids, floats, lists)))


class TwoTower(ItemShares):
    """Two towers: a tower for user and context, a tower for the item, and their score.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats, lists and outputs; which columns are the user's and the item's.
    settings : TwoTowerSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import ModelInputs, TwoTower
    >>> from gigabatch.models.inputs import EntityColumns
    >>> user, item = EntityColumns(key=0, ids=(0,)), EntityColumns(key=1, ids=(1,))
    >>> inputs = ModelInputs((5, 7), num_floats=0, num_outputs=1, user=user, item=item)
    >>> model = TwoTower(inputs, TwoTower.Settings(layers=(8,), vector_dim=4))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.empty(3, 0)
    >>> users, items = model.user_vectors(ids, floats), model.item_vectors(ids, floats)  # to be stored
    >>> users.shape, model.score(users, items).shape
    (torch.Size([3, 4]), torch.Size([3, 1]))
    """

    Settings = TwoTowerSettings
    entities = ("user", "item")
    single_output = True
    for_positives: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "model": {"loss": "softmax", "layers": [], "temperature": 0.2, "embedding_dim": 64},
        # Its softmax has the items of its batch; the valid loss is of probabilities, which that one does not look at.
        "train": {"negatives": {"per_positive": 1}, "lr_max": 0.005, "select": "last"},
    }
    takes_lists = True
    shelf_name = "two_tower"
    users_take_context: ClassVar[bool] = True
    """Whether the users' vectors follow from the context too, of which stored ones know nothing."""

    def __init__(self, inputs: ModelInputs, settings: TwoTowerSettings) -> None:
        super().__init__(inputs, settings)
        user, item = inputs.entity("user"), inputs.entity("item")
        user_layers, item_layers = settings.tower_layers
        self.user_tower = Tower(
            inputs,
            (*user.ids, *inputs.context_ids),
            (*user.floats, *inputs.context_floats),
            (*user.lists, *inputs.context_lists),
            settings,
            user_layers,
        )
        self.item_tower = Tower(inputs, item.ids, item.floats, item.lists, settings, item_layers)
        self.item_key = item.key
        self.top = self._build_top()
        self.log_scale = nn.Parameter(torch.zeros(1))
        self.bias = nn.Parameter(torch.zeros(1))
        self.keep_shares(inputs.num_ids[self.item_key])

    def _build_top(self) -> nn.Sequential | None:
        settings = self.settings
        if settings.top == "dot":
            return None
        width = 3 * settings.vector_dim
        hidden = mlp(width, settings.top_layers, None, settings.dropout, settings.batch_norm)
        # No bias: softmax and BPR only see differences of scores, so an optimizer would move it by rounding errors.
        return hidden.append(nn.Linear((width, *settings.top_layers)[-1], 1, bias=False))

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """ids [B, C], floats [B, F] -> [B, 1] float32; in evaluation mode the `score` of `user_vectors` and
        `item_vectors`."""
        return self.score(*self._vectors(ids, floats, lists))

    def user_vectors(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """The users' vectors [B, d] float32 from whole rows ids [B, C], floats [B, F] and all their lists; of these
        only the columns of user and context count."""
        self.require_inputs(ids, floats, lists)
        return self._finished(self.user_tower(ids, floats, lists))

    def item_vectors(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """The items' vectors [B, d] float32 from whole rows ids [B, C], floats [B, F] and all their lists; of these
        only the item's columns count."""
        self.require_inputs(ids, floats, lists)
        return self._finished(self.item_tower(ids, floats, lists))

    def score(self, user_vectors: Tensor, item_vectors: Tensor) -> Tensor:
        """Output [B, 1] float32 of the vectors of users [B, d], or [1, d] for one user, and of items [B, d]."""
        return self._output(self._similarity(user_vectors.expand_as(item_vectors), item_vectors))

    def score_all(self, user_vectors: Tensor, item_vectors: Tensor) -> Tensor | None:
        """`score` of each user [U, d] with each item [N, d], by one matrix product: [U, N] float32; None where a
        network is on top of the product."""
        if self.top is not None:
            return None
        return self._output(user_vectors @ item_vectors.T / self.settings.temperature)

    def _vectors(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged]) -> tuple[Tensor, Tensor]:
        return self.user_vectors(ids, floats, lists), self.item_vectors(ids, floats, lists)

    def _finished(self, vectors: Tensor) -> Tensor:
        """In float32, of length 1 if so set."""
        return functional.normalize(vectors.float(), dim=1) if self.settings.normalise else vectors.float()

    def _similarity(self, users: Tensor, items: Tensor) -> Tensor:
        """s: [B, d] each -> [B, 1] float32."""
        product = users * items
        similarity = product.sum(1, keepdim=True) / self.settings.temperature
        if self.top is None:
            return similarity
        return similarity + self.top(torch.cat([users, items, product], dim=1)).float()

    def _output(self, similarity: Tensor) -> Tensor:
        return torch.exp(self.log_scale) * similarity + self.bias

    def training_loss(self, batch: Rows, loss: TargetLoss) -> Tensor:
        """`bce`: the target's loss of the outputs. `softmax`, `bpr`: the mean of `models/recommenders/in_batch.py`'s
        losses over the positives, the rows with target 1.

        softmax: a positive's item against those of other positives of the batch, by `window_softmax`; where top is mlp,
            whose every pair costs a pass through it, against those of the next `negatives` ones, by `pair_softmax`.
        bpr: a positive's item against those of the next `negatives` rows, whatever their target, by `pair_bpr`. Drawn
            negatives follow their positive in a batch, so they are what it is compared with first.

        Both are indifferent to scale and offset of a user's scores. So a and b of the output are learnt by the target's
        loss with the score held fixed: outputs are logits that are right on the whole, while nothing else moves by it.

        Raises:
            ModelError: for softmax and bpr of a target that is not binary; for softmax with log_q where `remember` has
                not counted the items.
        """
        if self.settings.loss == "bce":
            return super().training_loss(batch, loss)
        if loss.tasks != (("binary", 1),):
            raise ModelError(
                f"two_tower: the loss {self.settings.loss} needs one binary target, whose 1 are the positives; the "
                f"target is {loss.tasks[0][0]}. Set model.loss=bce, or make the target 0 or 1."
            )
        users, items = self._vectors(batch.ids, batch.floats, lists_of(batch))
        keys, target, weight = batch.ids[:, self.item_key], batch.targets[0], batch.weight
        if self.settings.loss == "softmax":  # positives side by side, so that windows are full of them
            order = positives_first(target == 1)
            users, items, keys, target = (rows.index_select(0, order) for rows in (users, items, keys, target))
            weight = None if weight is None else weight.index_select(0, order)
        positive = target == 1
        losses, own = self._ranking_losses(users, items, keys, positive)
        return positives_mean(losses, positive, weight) + loss(self._output(own.detach()), (target,), weight)

    def _ranking_losses(self, users: Tensor, items: Tensor, keys: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
        """Loss [B] of each row as if it were a positive, and the score [B, 1] of its own pair."""
        settings = self.settings
        if settings.loss == "softmax" and self.top is None:
            with torch.autocast(users.device.type, enabled=False):  # differences of logits need float32
                rows = users, items, keys, self._log_q(keys), positive
                return window_softmax(*rows, settings.temperature, settings.softmax_rows), self._similarity(
                    users, items
                )
        others = beside(items, settings.negatives)
        num_pairs = others.shape[1]
        pairs = users[:, None].expand(-1, num_pairs, -1).flatten(0, 1), others.flatten(0, 1)
        scores = self._similarity(*pairs).view(-1, num_pairs)
        pair_keys = beside(keys, settings.negatives)
        if settings.loss == "bpr":
            return pair_bpr(scores, pair_keys), scores[:, :1]
        log_q, positives = (beside(rows, settings.negatives) for rows in (self._log_q(keys), positive))
        return pair_softmax(scores, pair_keys, log_q, positives), scores[:, :1]
