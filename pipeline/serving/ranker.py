"""A user and candidate items to scores, from stored rows and vectors: what a request for a ranking computes.

Of a two-tower model only the top network runs for a user whose vector is stored; else the user tower once before it.
Other models run whole on rows put together from the user's, the items' and the request's columns. Either way a score
is the one that `Bundle.predict` gives for the same row, within `SCORE_RTOL` and `SCORE_ATOL` of models/model.py, but
where vectors are stored as float16.

The best items are searched by their vectors where the model has towers. Else every item is scored: by one product where
the model can (models/recommenders/fitted.py), or row by row, in a catalogue that is not too large for it.

Shapes: N items, d vector width, C id columns, F float columns.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigabatch.features.errors import DataError
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.models.errors import ModelError, require
from gigabatch.models.model import Towers, WholeRows, model_call, tower_vectors
from gigabatch.models.retrieval import ApproximateIndex, TopK, best_of, top_k
from gigabatch.pipeline.bundle import Bundle, jagged, target_loss
from gigabatch.pipeline.serving.catalogue import Catalogue
from gigabatch.pipeline.serving.errors import Refusal, ServingError
from gigabatch.pipeline.serving.requests import UserRequest
from gigabatch.pipeline.serving.scorer import numbers, require_columns, said_by_encoder

ELEMENTS_AT_ONCE = 1 << 20  # of lists: of candidates with longer ones fewer are scored together


@dataclass(frozen=True)
class Asker:
    """The user of one request. ids [C], floats [F], lists of one row each: a whole row, its item columns arbitrary;
    row: where the user is stored, None for one that is not; as_stored: nothing of the stored row was replaced, and no
    context was added."""

    ids: np.ndarray
    floats: np.ndarray
    lists: tuple[JaggedColumn, ...]
    row: int | None
    as_stored: bool


class Ranker:
    """Scores of items for users. The first target is what items are ranked by.

    index: over the items' vectors, for `recommend`; None compares every item. max_scan: items of the largest catalogue
    that is scored row by row for `recommend`, None for any.
    """

    def __init__(
        self,
        bundle: Bundle,
        users: Catalogue,
        items: Catalogue,
        index: ApproximateIndex | None = None,
        max_scan: int | None = None,
    ) -> None:
        self.bundle, self.users, self.items, self.index, self.max_scan = bundle, users, items, index, max_scan
        schema, inputs = bundle.schema, bundle.model.inputs
        user, item = schema.entity("user"), schema.entity("item")
        if user is None or item is None or inputs.user is None or inputs.item is None:
            raise ServingError("the schema names no user and item (entities), so there is nothing to rank.")
        self.transform = bundle.online()
        self._user, self._item = inputs.user, inputs.item
        self._loss = target_loss(schema)
        features = set(self.transform.columns)
        weights = {column.name: column.weights for column in schema.lists if column.weights is not None}
        own, of_items = (
            {*columns, *(weights[name] for name in columns if name in weights)}
            for columns in (user.columns, item.columns)
        )
        self.user_columns = frozenset(own - {user.key})
        self.context_columns = frozenset(features - own - of_items)
        self._key, self._weights = user.key, weights
        self.nulls = null_row(bundle)
        self._null_ids, self._null_floats = self.transform(self.nulls)
        self._null_lists = jagged(self.transform.pack_lists((self.nulls,)))
        for entity, stored in ((self._user, users), (self._item, items)):
            if missing := [schema.lists[place].name for place in entity.lists if place not in stored.lists]:
                raise ServingError(
                    f"the model takes the list column {missing[0]!r} of each {stored.name}, and it is not stored. Run "
                    "gigabatch embed again."
                )
        histories = [schema.lists[place].columns for place in users.lists if place not in self._user.lists]
        self._histories = frozenset(name for columns in histories for name in columns)
        self._user_ids, self._user_floats = users.ids.numpy(), users.floats.numpy()
        towers: Any = bundle.model if isinstance(bundle.model, Towers) else None
        self._towers: Towers | None = None if items.vectors is None else towers
        self.exact = all(part.vectors is None or part.vectors.dtype == torch.float32 for part in (users, items))
        self._item_ids, self._item_floats = items.ids.to(bundle.device), items.floats.to(bundle.device)
        own_lists = {place: items.lists[place] for place in self._item.lists}
        self._item_lengths = [column.offsets.diff().numpy() for column in own_lists.values()]
        self._item_lists = {place: column.to(bundle.device) for place, column in own_lists.items()}
        self._item_vectors = None if items.vectors is None else items.vectors.to(bundle.device)
        # They share the vector of the unseen, which says nothing of them.
        alone = self._item.ids == (self._item.key,) and not self._item.floats and not self._item.lists
        unseen = items.ids[:, self._item.ids.index(self._item.key)] < self._item.first
        self._not_found = np.flatnonzero((unseen & (alone or bundle.model.item_is_its_key)).numpy())
        if index is not None:  # which would look for as many more at every request
            index.remove(torch.from_numpy(self._not_found))

    def asker(self, request: UserRequest) -> Asker:
        """Who asks: a stored user, one described by the request, or one that nothing is known of (nulls)."""
        if request.user is None and request.user_features is None:
            raise Refusal.invalid("user", "give the user's id, or user_features, or both.")
        row = None if request.user is None else self.users.find(request.user, "user")
        context = request.context or {}
        # Of a user of whom nothing is known there is no history either, which who asks cannot know.
        optional = frozenset() if row is None and request.user_features is not None else self._histories
        require_columns(context, self.context_columns, "context", optional)
        self._require_weights(context)
        if request.user_features is None and not context and row is not None:
            return self.asker_of_row(row)
        given: dict[str, Any] = {self._key: request.user}
        if request.user_features is not None:
            require_columns(request.user_features, self.user_columns, "user_features")
            given |= request.user_features
        ids, floats, lists = self._encode(given, context)
        if row is not None:
            own = () if request.user_features is not None else self._user.lists
            if request.user_features is None:
                self._fill_user(ids, floats, row)
            lists = self._with_stored(lists, row, {*own, *self._not_given(context)})
        return Asker(ids, floats, lists, row, as_stored=False)

    def _require_weights(self, context: Mapping[str, Any]) -> None:
        """`Refusal` 422 where one of a list and its weights is sent and the other left to what is stored."""
        for pair in self._weights.items():
            there = [name for name in pair if name in context]
            if len(there) == 1:
                (other,) = set(pair).difference(there)
                raise Refusal.invalid(
                    "context",
                    f"holds {there[0]!r} without {other!r}. Send a list and its weights together, or leave both out "
                    "for those that are stored with the user.",
                )

    def asker_of_row(self, row: int | None) -> Asker:
        """A stored user, or nobody (nulls), without context."""
        ids, floats, lists = self._null_ids.copy(), self._null_floats.copy(), self._null_lists
        if row is not None:
            self._fill_user(ids, floats, row)
            lists = self._with_stored(lists, row, self.users.lists)
        return Asker(ids, floats, lists, row, as_stored=row is not None and self.context_columns <= self._histories)

    def _fill_user(self, ids: np.ndarray, floats: np.ndarray, row: int) -> None:
        ids[list(self._user.ids)] = self._user_ids[row]
        floats[list(self._user.floats)] = self._user_floats[row]

    def _not_given(self, context: Mapping[str, Any]) -> list[int]:
        """Places of the histories that are stored with users and not among the context of a request."""
        lists = self.bundle.schema.lists
        return [
            place for place in self.users.lists if place not in self._user.lists and lists[place].name not in context
        ]

    def _with_stored(
        self, lists: tuple[JaggedColumn, ...], row: int, places: Container[int]
    ) -> tuple[JaggedColumn, ...]:
        """Lists of one row, those at these places as they are stored with the user."""
        own = self.users.lists
        return tuple(own[place].slice(row, row + 1) if place in places else one for place, one in enumerate(lists))

    def _encode(
        self, given: Mapping[str, Any], context: Mapping[str, Any]
    ) -> tuple[np.ndarray, np.ndarray, tuple[JaggedColumn, ...]]:
        try:
            return self._encoded({**given, **context})
        except DataError as error:
            for field, values in (("user_features", given), ("context", context)):
                for name in values.keys() - self._weights.values():
                    beside = self._weights.get(name, name)  # a list goes with its weights
                    try:
                        self._encoded({part: values[part] for part in (name, beside) if part in values})
                    except DataError as own:
                        raise Refusal.invalid("user" if name == self._key else field, said_by_encoder(own)) from None
            raise Refusal.invalid("body", said_by_encoder(error)) from None

    def _encoded(self, values: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, tuple[JaggedColumn, ...]]:
        row = {**self.nulls, **values}
        ids, floats = self.transform(row)
        return ids, floats, jagged(self.transform.pack_lists((row,)))

    def rank(self, asker: Asker, places: np.ndarray) -> Tensor:
        """Predictions [N] of the first target, in its own unit. places: rows of the items, all of them known."""
        with torch.inference_mode():
            outputs = self._outputs(asker, places)
            return self._loss.predict(self.bundle.model.in_target_units(outputs))[0].cpu()

    def _outputs(self, asker: Asker, places: np.ndarray) -> Tensor:
        """What the model gives [N, outputs] for these items, as it learns it."""
        index = torch.from_numpy(places).to(self.bundle.device)
        if self._towers is not None and self._item_vectors is not None:
            return self._towers.score(self.user_vector(asker), self._item_vectors.index_select(0, index).float())
        parts = [self.whole_rows(asker, part) for part in index.split(self._rows_at_once(asker, places))]
        return torch.cat([model_call(self.bundle.model, *part) for part in parts])

    @property
    def recommend_obstacle(self) -> str:
        """Why there is no `recommend`; empty where there is."""
        able = self._towers is not None or isinstance(self.bundle.model, WholeRows)
        if able or self.max_scan is None or len(self.items) <= self.max_scan:
            return ""
        return (
            f"its model, {type(self.bundle.model).__name__}, has no item vectors to search, and to score each of "
            f"{len(self.items):,} items one by one takes too long (serve.max_scan is {self.max_scan:,})."
        )

    def user_vector(self, asker: Asker) -> Tensor:
        """[1, d] float32 on the model's device: the stored one where it is this user's, else the user tower's."""
        assert self._towers is not None
        with torch.inference_mode():
            if asker.as_stored and asker.row is not None and self.users.vectors is not None:
                return self.users.vectors[asker.row : asker.row + 1].to(self.bundle.device).float()
            rows = self._rows(asker, 1)
            lists = [column.to(self.bundle.device) for column in asker.lists]
            return tower_vectors(self.bundle.model, "user", *rows, lists)

    def whole_rows(self, asker: Asker, index: Tensor) -> tuple[Tensor, Tensor, tuple[JaggedColumn, ...]]:
        """ids [N, C], floats [N, F] and lists of the user with each of these items. index: [N] int64, rows of items."""
        ids, floats = self._rows(asker, len(index))
        ids[:, list(self._item.ids)] = self._item_ids.index_select(0, index)
        floats[:, list(self._item.floats)] = self._item_floats.index_select(0, index)
        again = torch.zeros_like(index)  # the one row of the user, for each item
        lists = tuple(
            self._item_lists[place].rows(index)
            if place in self._item_lists
            else column.to(self.bundle.device).rows(again)
            for place, column in enumerate(asker.lists)
        )
        return ids, floats, lists

    def _rows_at_once(self, asker: Asker, places: np.ndarray) -> int:
        """How many rows are scored together: all, or fewer where their lists would be more than `ELEMENTS_AT_ONCE`."""
        elements = sum(len(column.ids) for place, column in enumerate(asker.lists) if place not in self._item.lists)
        elements += sum(int(lengths[places].max(initial=0)) for lengths in self._item_lengths)
        return max(min(len(places), ELEMENTS_AT_ONCE // max(elements, 1)), 1)

    def _rows(self, asker: Asker, count: int) -> tuple[Tensor, Tensor]:
        """The user's row `count` times: ids [count, C], floats [count, F]."""
        ids, floats = torch.from_numpy(asker.ids), torch.from_numpy(asker.floats)
        device = self.bundle.device
        return ids.to(device).repeat(count, 1), floats.to(device).repeat(count, 1)

    def score(self, asker: Asker, keys: Sequence[Any]) -> tuple[list[float | None], list[Any]]:
        """A score for each key in order, None for an unknown item, and the unknown items."""
        places = self.items.places(keys, "items")
        known = places >= 0
        if known.all():
            return numbers(self.rank(asker, places)), []
        scores: list[float | None] = [None] * len(keys)
        if known.any():
            found = numbers(self.rank(asker, places[known]))
            for place, score in zip(np.flatnonzero(known).tolist(), found, strict=True):
                scores[place] = score
        return scores, [key for key, there in zip(keys, known.tolist(), strict=True) if not there]

    def recommend(
        self, asker: Asker, k: int, exclude: Sequence[Any], overfetch: int
    ) -> tuple[list[Any], list[float | None]]:
        """The k best items and their scores, best first; fewer where the catalogue has no more. An item that train does
        not have is none of them where only its key speaks of it.

        Where the model has vectors, the `overfetch * k` items whose vectors have the greatest product with the user's
        are ranked by the top network; else every item is scored. Equal scores keep the order of the retrieval, or of
        the catalogue.
        """
        if self.recommend_obstacle:
            raise Refusal(
                409, "not_available", f"this bundle cannot recommend: {self.recommend_obstacle} /rank takes candidates."
            )
        banned = self.items.places(exclude, "exclude")
        banned = banned[banned >= 0]
        if self.index is None:
            banned = np.union1d(banned, self._not_found)
        try:
            with torch.inference_mode():
                if self._towers is None:
                    rows = self._scan(asker, k, torch.from_numpy(banned))
                else:
                    rows = self._search(self.user_vector(asker), k * overfetch, torch.from_numpy(banned)[None])
        except ModelError as error:  # numbers far beyond the data's overflow in the tower
            raise Refusal.invalid("user_features", f"nothing can be found with these values ({error})") from None
        found = rows.rows[0].cpu().numpy()
        found = found[found >= 0]
        if not len(found):
            return [], []
        scores = self.rank(asker, found)
        # The scan has ordered them by what the model gives, of which predictions may be the same at their bounds.
        order = torch.arange(len(found)) if self._towers is None else scores.argsort(descending=True, stable=True)[:k]
        return [self.items.keys[int(place)] for place in found[order.numpy()]], numbers(scores[order])

    def _scan(self, asker: Asker, k: int, unwanted: Tensor) -> TopK:
        """Rows of the greatest scores of all items, but for those whose score is no number."""
        model = self.bundle.model
        if isinstance(model, WholeRows):
            of_ids = model.catalogue_scores(*self._rows(asker, 1))[0]
            scores = of_ids.index_select(0, self._item_ids[:, self._item.ids.index(self._item.key)].long())
        else:
            scores = self._outputs(asker, np.arange(len(self.items)))[:, 0]
        finite = scores.isfinite()
        require(bool(finite.any()), "every score is NaN or infinite.")
        scores = scores.masked_fill(~finite, -torch.inf).index_fill(0, unwanted.to(scores.device), -torch.inf)
        return best_of(scores[None], k)

    def _search(self, query: Tensor, count: int, unwanted: Tensor) -> TopK:
        """Rows of the greatest products with the query [1, d], from the index where there is one, else exact."""
        assert self._item_vectors is not None
        if self.index is not None:
            return self.index.search(query, min(count, len(self.items)), unwanted)
        return top_k(query, self._item_vectors, min(count, len(self.items)), unwanted.to(query.device))


def null_row(bundle: Bundle) -> dict[str, Any]:
    """A row that says nothing: null in each column; the median, rounded, in a column of numbers that holds no null."""
    schema, fills = bundle.schema, bundle.preprocessor.fills
    row: dict[str, Any] = dict.fromkeys(schema.names("categorical"))
    row |= {name: None for column in schema.lists for name in column.columns}
    for column in schema.columns:
        if column.role == "continuous":
            row[column.name] = None if column.dtype.startswith("float") else round(float(fills[column.name].value))
    return row
