"""SASRec: the next item from a user's last ones, by self-attention over them.

    e_k = sqrt(d) M[h_k] + P[n - k]        element k of n of the history, its place counted from the end
    x   = blocks(start, e_1, ..., e_n)     each place sees those before it
    u   = x_n                              of the last place; of an empty history, what becomes of `start` alone
    v   = M[item]                          the item's row of the same table
    output = exp(a) <u, v> + b

A block adds self-attention, then a network of two layers to what it is given, each after a layer norm (`norm_first`,
as in the paper's section 3.2) or with one behind it.

Kang and McAuley, Self-Attentive Sequential Recommendation, ICDM 2018 (arXiv 1808.09781). The loss there is binary
cross-entropy with one drawn negative. A softmax over the whole catalogue is what lets the model keep up with BERT4Rec
(Klenitskiy and Vasilev, Turning Dross Into Gold Loss: is BERT4Rec really better than SASRec?, RecSys 2023); it is
`full` here. A row is (history of the user as of the row's time, item): one step learns one item of each row.

Shapes: B rows of a batch, C id columns, F float columns, T elements of the history column, P places of the longest
history in the batch and the start, V items, H heads, d `dim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gigabatch.models.errors import ModelError, require
from gigabatch.models.inputs import ListInputs, ModelInputs
from gigabatch.models.layers.attention import attention
from gigabatch.models.layers.dropout import Dropout
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.layers.fields import check_settings, one_of, positive_number
from gigabatch.models.layers.pooled import Jagged, list_places
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Rows
from gigabatch.models.recommenders.catalogue import Catalogue, Vectors, catalogue_training_loss, copies_of
from gigabatch.models.recommenders.drawn import OutputScale, drawn_training_loss, require_one_binary
from gigabatch.models.recommenders.in_batch import positives_first, positives_mean, window_softmax
from gigabatch.models.recommenders.item_shares import ItemShares
from gigabatch.models.whole_batch import whole_batch

LOSSES = ("full", "softmax", "drawn", "bpr", "bce")
START = 0.02  # deviation of positions and start vector at first; of the table `initial_std`


@dataclass(frozen=True)
class SASRecSettings:
    """Settings of SASRec.

    Parameters
    ----------
    dim : int, default 64
        Numbers in the vectors of users and items.
    num_blocks : int, default 2
        Blocks of attention and network.
    num_heads : int, default 1
        Heads of each attention.
    hidden_dim : int or None, default None
        Width of a block's hidden layer; None for `dim`, as in the paper.
    length : int, default 50
        So many of the last elements of a history are looked at.
    norm_first : bool, default True
        Layer norms before attention and network, and one behind the last block; otherwise one behind each.
    dropout : float, default 0.2
        Of embedded elements, attention weights and what a block adds, in training.
    loss : {'full', 'softmax', 'drawn', 'bpr', 'bce'}, default 'full'
        `full`: log softmax of the item among the whole catalogue. `softmax`: among those of other positives of a batch.
        `drawn`, `bpr`: among its drawn negatives, or above each of them. `bce`: the target's own loss.
    softmax_rows : int, default 1024
        Positives of the batch among whose items one is to be found, its own among them (`softmax`).
    log_q : bool, default True
        `softmax` takes the logarithm of an item's share of the train split's positives off its score.
    initial_std : float, default 0.02
        Deviation of the item's vectors at first.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> SASRecSettings(dim=32, num_heads=2).hidden_dim is None
    True
    """

    dim: int = 64
    num_blocks: int = 2
    num_heads: int = 1
    hidden_dim: int | None = None
    length: int = 50
    norm_first: bool = True
    dropout: float = 0.2
    loss: str = "full"
    softmax_rows: int = 1024
    log_q: bool = True
    initial_std: float = 0.02

    def __post_init__(self) -> None:
        check_settings(self)
        require(self.dim % self.num_heads == 0, f"num_heads {self.num_heads} does not divide dim, {self.dim}.")
        require(self.softmax_rows >= 2, "softmax_rows must be at least 2: an item and another to compare it with.")
        one_of("loss of sasrec", self.loss, LOSSES)
        positive_number("initial_std", self.initial_std)


class Block(nn.Module):
    """Causal self-attention, then a network at each place, both with a residual."""

    def __init__(self, settings: SASRecSettings) -> None:
        super().__init__()
        dim, hidden = settings.dim, settings.hidden_dim or settings.dim
        self.num_heads, self.rate, self.norm_first = settings.num_heads, settings.dropout, settings.norm_first
        self.queries, self.keys_values = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.mixed = nn.Linear(dim, dim)
        self.network = nn.Sequential(
            nn.Linear(dim, hidden), nn.ReLU(), Dropout(settings.dropout), nn.Linear(hidden, dim)
        )
        self.attention_norm, self.network_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.dropout = Dropout(settings.dropout)

    def forward(self, rows: Tensor, last: Tensor | None = None) -> Tensor:
        """[B, P, d] -> [B, P, d]; with the places `last` int64 [B] only what becomes of these, [B, 1, d]."""
        places = torch.arange(rows.shape[1], device=rows.device)
        asking = rows
        if last is not None:  # by numbers of the flat places, whose count a graph does not fix
            number = torch.arange(rows.shape[0], device=rows.device) * rows.shape[1] + last
            asking = rows.flatten(0, 1).index_select(0, number)[:, None]
        of_query = places[:, None] if last is None else last[:, None, None, None]
        seen = places <= of_query  # [P, P], or [B, 1, 1, P]
        given, asked = (self.attention_norm(part) if self.norm_first else part for part in (rows, asking))
        keys, values = self._heads(self.keys_values(given), 2)
        (queries,) = self._heads(self.queries(asked), 1)
        mixed = attention(queries, keys, values, self.rate if self.training else 0.0, mask=seen)
        found = asking + self.dropout(self.mixed(mixed.transpose(1, 2).flatten(2)))
        if self.norm_first:
            return cast(Tensor, found + self.dropout(self.network(self.network_norm(found))))
        found = self.attention_norm(found)
        return cast(Tensor, self.network_norm(found + self.dropout(self.network(found))))

    def _heads(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        """[B, P, parts d] -> so many of [B, H, P, d / H]."""
        return projected.unflatten(2, (parts, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


class SASRec(ItemShares):
    """SASRec: a vector of the user from the last items, the item's own row, and their inner product.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables; which column is the item's key; exactly one list of items that is not the item's own:
        the history. All other columns are left out.
    settings : SASRecSettings
        What a user may set.

    Raises
    ------
    ModelError
        Where there is no such list, or several, or one with weights.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import ModelInputs, SASRec
    >>> from gigabatch.loaders.tables.jagged import JaggedColumn
    >>> from gigabatch.models.inputs import EntityColumns, ListInputs
    >>> user, item = EntityColumns(key=0, ids=(0,)), EntityColumns(key=1, ids=(1,))
    >>> inputs = ModelInputs((5, 7), 0, user=user, item=item, lists=(ListInputs(7, shares=1),))
    >>> model = SASRec(inputs, SASRec.Settings(dim=4)).eval()
    >>> ids, floats = torch.tensor([[1, 6], [4, 2], [2, 3]]), torch.empty(3, 0)
    >>> history = JaggedColumn(torch.tensor([3, 4, 3], dtype=torch.int32), torch.tensor([0, 2, 2, 3]))
    >>> users = model.user_vectors(ids, floats, (history,))
    >>> items = model.item_vectors(ids, floats)  # to be stored
    >>> users.shape, model.score(users, items).shape
    (torch.Size([3, 4]), torch.Size([3, 1]))
    """

    Settings = SASRecSettings
    entities = ("user", "item")
    single_output = True
    item_is_its_key = True
    takes_lists = True
    needs_lists = True
    shelf_name = "sasrec"

    def __init__(self, inputs: ModelInputs, settings: SASRecSettings) -> None:
        super().__init__(inputs, settings)
        inputs.entity("user")
        item, dim = inputs.entity("item"), settings.dim
        if (obstacle := self.list_obstacle(inputs)) is not None:
            raise ModelError(f"sasrec: {obstacle}")
        self.item_key = item.key
        (self.history,) = _histories(inputs)
        num_items = inputs.num_ids[item.key]
        history = ListInputs(num_items, shares=0)
        self.tables = EmbeddingTables(
            [num_items], [dim], columns=[item.key], lists=[history], list_places=[self.history]
        )
        with torch.no_grad():
            self.tables.weights[0].mul_(settings.initial_std / 0.01)  # the deviation that tables start with
        self.positions = nn.Parameter(START * torch.randn(settings.length, dim))
        self.start = nn.Parameter(START * torch.randn(dim))
        self.dropout = Dropout(settings.dropout)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.num_blocks))
        self.last_norm = nn.LayerNorm(dim) if settings.norm_first else nn.Identity()
        self.output = OutputScale()
        self.catalogue = Catalogue(item.first, num_items, num_items)
        self.keep_shares(num_items)

    @classmethod
    def list_obstacle(cls, inputs: ModelInputs) -> str | None:
        """As `Model.list_obstacle`: it needs one history of items, without weights."""
        found = _histories(inputs)
        if len(found) != 1:
            return (
                "it needs one list that shares the vocabulary of the item's key, the history of a row's user, and the "
                f"schema has {len(found) or 'none'}. Set features.history (recipe interactions) or shares of one list "
                "(features.lists, which the step history makes) that is not among the item's own columns, or choose "
                "another model, such as two_tower."
            )
        if inputs.lists[found[0]].weighted:
            return (
                "its history takes no weights. Leave half_life out of features.history (recipes interactions and "
                "movielens), or weights out of that list (features.lists)."
            )
        return None

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """ids [B, C], floats [B, F], B lists each -> [B, 1] float32, the `score` of both vectors."""
        return self.score(self.user_vectors(ids, floats, lists), self.item_vectors(ids, floats, lists))

    def user_vectors(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """The users' vectors [B, d] float32 from whole rows with all their lists, of which the history alone counts."""
        self.require_inputs(ids, floats, lists)
        rows, last = self._embedded(lists[self.history], ids.shape[0])
        rows = self.dropout(rows)
        for block in list(self.blocks)[:-1]:
            rows = block(rows)
        return cast(Tensor, self.last_norm(self.blocks[-1](rows, last))).float()[:, 0]

    def item_vectors(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """The items' vectors [B, d] float32 from whole rows, of which the item's key alone counts; lists may be left
        out."""
        if lists:
            self.require_inputs(ids, floats, lists)
        return self.tables.of_columns(ids[:, self.item_key : self.item_key + 1]).float()

    def score(self, user_vectors: Tensor, item_vectors: Tensor) -> Tensor:
        """Output [B, 1] float32 of the vectors of users [B, d], or [1, d] for one user, and of items [B, d]."""
        return cast(Tensor, self.output(_products(user_vectors, item_vectors)))

    def score_all(self, user_vectors: Tensor, item_vectors: Tensor) -> Tensor:
        """`score` of each user [U, d] with each item [N, d], by one matrix product: [U, N] float32."""
        return cast(Tensor, self.output(user_vectors @ item_vectors.T))

    def _embedded(self, history: Jagged, num_rows: int) -> tuple[Tensor, Tensor]:
        """Start and embedded elements of each row at the left of [B, P, d], zeros behind them, and the place of each
        row's last one, int64 [B]."""
        length, dim = self.settings.length, self.settings.dim
        lengths, longest = history.offsets.diff(), length
        if not torch.compiler.is_compiling():  # on a GPU the host waits here for the longest list
            longest = int(lengths.max()) if num_rows else 0
            if longest > length:
                history, longest = last_elements(history, length), length
                lengths = history.offsets.diff()
            batch = whole_batch()
            if batch is not None and self.training and self.settings.dropout:  # whose masks number all of its places
                longest = batch.largest(longest, length, "longest history", lengths.device)
        owners, last = list_places(history), lengths.clamp(max=length)
        number = torch.arange(owners.shape[0], device=owners.device)
        from_end = history.offsets[1:].index_select(0, owners) - 1 - number
        num_places = longest + 1
        places = owners * num_places + last.index_select(0, owners) - from_end
        # A graph has all elements: those that are too long ago go to a place of their own behind the last row.
        places = torch.where(from_end < length, places, num_rows * num_places)
        vectors = dim**0.5 * self.tables.list_rows(0, history.ids)
        vectors = vectors + self.positions.index_select(0, from_end.clamp(max=length - 1))
        starts = torch.arange(num_rows, device=owners.device) * num_places
        grid = vectors.new_zeros(num_rows * num_places + 1, dim)
        grid = grid.index_copy(0, torch.cat([starts, places]), torch.cat([self.start.expand(num_rows, dim), vectors]))
        return grid[:-1].view(num_rows, num_places, dim), last

    def training_loss(self, batch: Rows, loss: TargetLoss) -> Tensor:
        """The mean over the positives, the rows with target 1, of:

        - full: -log softmax of the row's item among the whole catalogue, exactly (`Catalogue`). Time and
          gradients are those of all items in each step.
        - softmax: the same among items of other positives of the batch, by `window_softmax`.
        - drawn, bpr: softmax of the item among itself and its drawn negatives, or above each of them
          (models/recommenders/drawn.py), which `train.negatives` draws.
        - bce: the target's own loss of the outputs, of all rows; with drawn negatives it is the paper's.

        All but bce are indifferent to scale and offset of a user's scores. So a and b of the output are learnt beside
        them by the target's loss with the score held fixed.

        Raises:
            ModelError: for a target that is not binary (all but bce), without drawn negatives (drawn, bpr), or where
                softmax with log_q has no counts since `remember` was not called.
        """
        kind = self.settings.loss
        if kind == "bce":
            return super().training_loss(batch, loss)
        require_one_binary("sasrec", kind, loss)
        lists: Sequence[Jagged] = getattr(batch, "lists", ())
        items = self.item_vectors(batch.ids, batch.floats, lists)
        if kind == "full":
            return self._full_loss(batch, lists, items, loss)
        users = self.user_vectors(batch.ids, batch.floats, lists)
        if kind in ("drawn", "bpr"):
            return drawn_training_loss("sasrec", kind, batch, _products(users, items), self.output, loss)
        keys, target, weight = batch.ids[:, self.item_key], batch.targets[0], batch.weight
        with torch.autocast(users.device.type, enabled=False):  # differences of logits need float32
            order = positives_first(target == 1)  # side by side, so that windows are full of them
            users, items, keys, target = (rows.index_select(0, order) for rows in (users, items, keys, target))
            weight = None if weight is None else weight.index_select(0, order)
            positive = target == 1
            losses = window_softmax(users, items, keys, self._log_q(keys), positive, 1.0, self.settings.softmax_rows)
            learnt = loss(self.output(_products(users, items).detach()), (target,), weight)
            return positives_mean(losses, positive, weight) + learnt

    def _full_loss(self, batch: Rows, lists: Sequence[Jagged], items: Tensor, loss: TargetLoss) -> Tensor:
        """A drawn negative has the history of its positive, so each history is gone through once."""
        copies, drawn = copies_of(batch), self.catalogue.draw()
        of_positives = [every_list(column, copies) for column in lists] if copies > 1 else lists
        users = self.user_vectors(batch.ids[::copies], batch.floats[::copies], of_positives)
        scores = _products(users.detach().repeat_interleave(copies, dim=0), items)
        vectors = Vectors(users, items[::copies], self.tables.list_rows(0, drawn).float(), drawn, scores)
        keys = batch.ids[:, self.item_key]
        return catalogue_training_loss("sasrec", "full", self.catalogue, batch, vectors, keys, self.output, loss)


class Elements(NamedTuple):
    """A list column, as `Jagged`."""

    ids: Tensor
    offsets: Tensor
    weights: Tensor | None = None


def last_elements(lists: Jagged, length: int) -> Elements:
    """The last `length` elements of each list, of those that have more."""
    owners, number = list_places(lists), torch.arange(len(lists.ids), device=lists.ids.device)
    kept = number >= lists.offsets[1:].index_select(0, owners) - length
    ends = lists.offsets.diff().clamp(max=length).cumsum(0)
    return Elements(lists.ids[kept], functional.pad(ends, (1, 0)))


def every_list(lists: Jagged, step: int) -> Elements:
    """The lists 0, step, 2 step and so on; without their weights."""
    owners, lengths = list_places(lists), lists.offsets.diff()[::step]
    return Elements(lists.ids[owners % step == 0], functional.pad(lengths.cumsum(0), (1, 0)))


def _products(users: Tensor, items: Tensor) -> Tensor:
    """<u, v> [B, 1] of vectors [B, d], or [1, d] of one user."""
    return (users * items).sum(1, keepdim=True)


def _histories(inputs: ModelInputs) -> list[int]:
    """The places of lists of items that are not the item's own columns."""
    item = inputs.item
    if item is None:
        return []
    places = (place for place in range(len(inputs.lists)) if place not in item.lists)
    return [place for place in places if inputs.shared_column(place) == item.key]
