"""Interactions of the size and shape of benchmarks/ncf.py: users, items, 21 numbers of context, all positives.

`listed` has the owner's size: who meets what is drawn by popularity, so it is for timing. `planted` is a twentieth of
it, and there users choose among all items by what they like, by the context and by popularity, so it can be learnt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.pairs import zipf_ranks
from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.features.vocabulary.vocabulary import LAYOUT
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import EntityColumns, ModelInputs

POSITIVES, USERS, ITEMS, CONTEXTS = 3_647_614, 211_000, 100_000, 21
PLANTED_SHARE, LATENT = 20, 8
CHUNK = 4096


@dataclass(frozen=True)
class Interactions:
    """users, items int64 from 0, contexts float32 [N, 21], one row a positive."""

    users: np.ndarray
    items: np.ndarray
    contexts: np.ndarray
    num_users: int
    num_items: int

    def rows(self, chosen: np.ndarray) -> Interactions:
        return Interactions(
            self.users[chosen], self.items[chosen], self.contexts[chosen], self.num_users, self.num_items
        )

    @property
    def inputs(self) -> ModelInputs:
        """The ids of the vocabularies: those of the values follow padding, null and unseen."""
        sizes = (LAYOUT.num_ids(self.num_users), LAYOUT.num_ids(self.num_items))
        return ModelInputs(sizes, CONTEXTS, 1, user=EntityColumns(0, (0,)), item=EntityColumns(1, (1,)))

    def packed(self) -> PackedTable:
        """Packed rows, whose target is 1."""
        sizes = self.inputs.num_ids
        schema = TensorSchema(
            (IdColumn("user", sizes[0]), IdColumn("item", sizes[1])),
            tuple(f"context_{place}" for place in range(CONTEXTS)),
            (Target("chosen", "binary"),),
        )
        words = np.empty((len(self.users), schema.num_words), np.int32)
        words[:, 0], words[:, 1] = self.users + LAYOUT.first, self.items + LAYOUT.first
        words[:, 2:].view(np.float32)[:, :CONTEXTS] = self.contexts
        words[:, -1].view(np.float32)[:] = 1
        return PackedTable(torch.from_numpy(words), schema)


def listed(num_positives: int = POSITIVES, seed: int = 0) -> Interactions:
    """Users and items by Zipf's law, contexts at random; each user and each item comes at least once where they can."""
    rng = np.random.default_rng(seed)
    share = num_positives / POSITIVES
    num_users, num_items = max(int(USERS * share), 50), max(int(ITEMS * share), 50)
    users, items = zipf_ranks(rng, num_users, num_positives), zipf_ranks(rng, num_items, num_positives)
    contexts = rng.standard_normal((num_positives, CONTEXTS), dtype=np.float32)
    return Interactions(users.astype(np.int64), items.astype(np.int64), contexts, num_users, num_items)


def planted(num_positives: int = POSITIVES // PLANTED_SHARE, seed: int = 0) -> Interactions:
    """Each item is drawn from softmax(2 (u + A c) . v / sqrt(8) + popularity) over all items; by row in time order."""
    rng = np.random.default_rng(seed)
    share = num_positives / POSITIVES
    num_users, num_items = max(int(USERS * share), 50), max(int(ITEMS * share), 500)
    tastes, vectors = rng.standard_normal((num_users, LATENT)), rng.standard_normal((num_items, LATENT))
    effect = rng.standard_normal((CONTEXTS, LATENT)) * (rng.random((CONTEXTS, 1)) < 0.25)
    popularity = rng.standard_normal(num_items)
    users = np.concatenate([np.arange(num_users), rng.integers(0, num_users, num_positives - num_users)])
    rng.shuffle(users)
    contexts = rng.standard_normal((num_positives, CONTEXTS), dtype=np.float32)
    items = np.empty(num_positives, np.int64)
    for start in range(0, num_positives, CHUNK):
        rows = slice(start, start + CHUNK)
        wanted = tastes[users[rows]] + 0.5 * contexts[rows] @ effect
        scores = 2 * wanted @ vectors.T / np.sqrt(LATENT) + popularity
        items[rows] = (scores + rng.gumbel(size=scores.shape)).argmax(1)  # the Gumbel-max draw from a softmax
    return Interactions(users, items, contexts, num_users, num_items)


def leave_one_out(data: Interactions) -> tuple[Interactions, Interactions, Interactions]:
    """Train, valid and test: of users with three rows or more the last but one is valid and the last is test."""
    order = np.argsort(data.users, kind="stable")
    counts = np.bincount(data.users, minlength=data.num_users)
    last = np.cumsum(counts)[counts >= 3] - 1
    test, valid = order[last], order[last - 1]
    held = np.zeros(len(data.users), bool)
    held[test] = held[valid] = True
    return data.rows(np.flatnonzero(~held)), data.rows(np.sort(valid)), data.rows(np.sort(test))
