"""Item k-nearest neighbours: an item is as near to a user as the items of the user are to it.

Sarwar, Karypis, Konstan and Riedl, "Item-based collaborative filtering recommendation algorithms", WWW 2001; Deshpande
and Karypis, "Item-based top-N recommendation algorithms", ACM TOIS 22(1), 2004. With the shrinkage of Bell and Koren
(ICDM 2007), as in Ferrari Dacrema, Cremonesi and Jannach (RecSys 2019):

    w_ij = n_ij / (sqrt(n_i n_j) + shrinkage)     n_ij: users that have both, n_i = n_ii
    s_ui = sum of w_ij over those of the k items nearest to i that user u has; never i itself

Shapes: B rows of a batch, V ids of the item's column, k `neighbours`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gigabatch.models.errors import require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.fields import check_settings, is_number
from gigabatch.models.recommenders.fitted import HISTORY, FittedModel

PRODUCTS_AT_ONCE = 1 << 24  # of users' pairs of items, which bounds what a block of items takes


@dataclass(frozen=True)
class ItemKNNSettings:
    """Settings of item k-nearest neighbours.

    Parameters
    ----------
    neighbours : int, default 100
        Items whose being chosen speaks for an item, the nearest to it.
    shrinkage : float, default 10.0
        Added to the denominator of the cosine: two items that few users share are near by chance.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> ItemKNNSettings(neighbours=20, shrinkage=0).neighbours
    20
    """

    neighbours: int = 100
    shrinkage: float = 10.0

    def __post_init__(self) -> None:
        check_settings(self)
        shrinkage = self.shrinkage
        require(
            is_number(shrinkage) and 0 <= shrinkage < float("inf"),
            f"shrinkage must be a finite number from 0 up, not {shrinkage!r}.",
        )


class ItemKNN(FittedModel):
    """Cosine neighbours of items, with shrinkage.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats; which columns are the user's and the item's.
    settings : ItemKNNSettings
        What a user may set.

    Attributes
    ----------
    neighbours : Tensor
        int64 [V, k], the items nearest to each, by falling nearness, then by ascending id; [0, k] before `fit`.
    nearness : Tensor
        float32 [V, k], w of each; 0 where there are fewer.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import ItemKNN, ModelInputs
    >>> from gigabatch.loaders.tables.packed import Batch
    >>> from gigabatch.models.inputs import EntityColumns
    >>> user, item = EntityColumns(key=0, ids=(0,)), EntityColumns(key=1, ids=(1,))
    >>> inputs = ModelInputs((3, 3), num_floats=0, user=user, item=item)
    >>> model = ItemKNN(inputs, ItemKNN.Settings(neighbours=1, shrinkage=0))
    >>> ids = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1], [2, 0]])  # of three users, two have both 0 and 1
    >>> model.fit(Batch(ids, torch.empty(5, 0), (torch.ones(5),)))
    >>> model.neighbours[:2].tolist(), round(model.nearness[0, 0].item(), 4)  # 2 / sqrt(3 * 2)
    ([[1], [0]], 0.8165)
    """

    Settings = ItemKNNSettings
    trace_obstacle = HISTORY
    remembered = ("item_mass", "pairs", "neighbours", "nearness")
    neighbours: Tensor
    nearness: Tensor

    def __init__(self, inputs: ModelInputs, settings: ItemKNNSettings) -> None:
        super().__init__(inputs, settings)
        self.register_buffer("neighbours", torch.zeros(0, settings.neighbours, dtype=torch.int64))
        self.register_buffer("nearness", torch.zeros(0, settings.neighbours))

    def _fit_pairs(self, pairs: Tensor, times: Tensor) -> None:
        k, device = self.settings.neighbours, self.slope.device
        neighbours, nearness = nearest_items(pairs, self.num_items, k, float(self.settings.shrinkage))
        self.neighbours = torch.from_numpy(neighbours).to(device)
        self.nearness = torch.from_numpy(nearness).to(device, self.slope.dtype)

    def _scores(self, users: Tensor, items: Tensor) -> Tensor:
        if not len(self.pairs):
            return self.nearness[items].sum(1)  # zeros: without pairs no item is near another
        chosen, _ = self._of_pairs(users[:, None], self.neighbours[items])
        return (chosen * self.nearness[items]).sum(1)

    def _all_scores(self, users: Tensor) -> Tensor:
        return functional.embedding_bag(
            self.neighbours, self._chosen(users).T.contiguous(), per_sample_weights=self.nearness, mode="sum"
        ).T


def nearest_items(pairs: Tensor, num_items: int, k: int, shrinkage: float) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest of every item, int64 [V, k], and how near they are, float64 [V, k]; 0 and 0 where there are fewer.

    pairs [N] int64 ascending, user * num_items + item. Items are worked out block by block, so that memory stays
    bounded by some `PRODUCTS_AT_ONCE` counts.
    """
    from scipy import sparse  # a tenth of a second, which who fits no such model need not wait for

    users, items = (pairs // num_items).numpy(), (pairs % num_items).numpy()
    _, rows, per_user = np.unique(users, return_inverse=True, return_counts=True)
    by_user = sparse.csr_matrix((np.ones(len(items)), (rows, items)), shape=(len(per_user), num_items))
    by_item = by_user.T.tocsr()
    root = np.sqrt(np.bincount(items, minlength=num_items))
    neighbours, nearness = np.zeros((num_items, k), np.int64), np.zeros((num_items, k))
    work = np.bincount(items, per_user[rows], num_items).cumsum()
    edges = np.unique(np.searchsorted(work, np.arange(0, work[-1] + PRODUCTS_AT_ONCE, PRODUCTS_AT_ONCE)))
    edges = np.unique([0, *edges, num_items])
    for start, stop in itertools.pairwise(edges):
        both = (by_item[start:stop] @ by_user).tocoo()
        item, other = both.row + start, both.col.astype(np.int64)
        near = both.data / (root[item] * root[other] + shrinkage)
        apart = item != other
        item, other, near = item[apart], other[apart], near[apart]
        order = np.lexsort((other, -near, item))
        item, other, near = item[order], other[order], near[order]
        rank = np.arange(len(item)) - np.searchsorted(item, item)
        kept = rank < k
        neighbours[item[kept], rank[kept]], nearness[item[kept], rank[kept]] = other[kept], near[kept]
    return neighbours, nearness
