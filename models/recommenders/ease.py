"""EASE: a linear model from the items that a user has to all others, in closed form.

Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019, arXiv 1905.03375, section 3.1:

    min_B |X - X B|^2 + l2 |B|^2   with diag(B) = 0
    P = (X' X + l2 I)^-1,   B_ji = -P_ji / P_ii,   B_ii = 0
    s_ui = sum of B_ji over the items j of user u

An item predicts others, never itself. Where l2 is not given, it is the one of a few that finds best what is left out
of the train rows, one row of each user, as the paper chooses it by held-out rows. Which rows are left out follows
from who has what, however users and items are numbered: the same rows give the same scores.

Shapes: B rows of a batch, V ids of the item's column, A items with a row, N pairs of a user and an item.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.fields import check_settings, positive_number
from gigabatch.models.recommenders.fitted import HISTORY, FittedModel

TERMS_AT_ONCE = 1 << 22  # of sums over users' items
DENSE_NUMBERS = 1 << 25  # of X that are dense at once
SPARSE_COST = 50.0  # of a multiplication of sparse matrices, in those of dense ones; about so on CPUs
L2_TIMES = (1.0, 0.3, 3.0, 10.0)  # of the mean number of an item's users: what l2 is chosen from; of equals the first
MOST_ITEMS_TO_CHOOSE = 5_000  # beyond them four more solutions take minutes
MOST_USERS_TO_CHOOSE = 4_096
USERS_AT_ONCE = 256
HASH_ROUNDS = 3  # after which users differ by the items of the users who share an item with them
CUTOFF = 10  # of the NDCG by which l2 is chosen


@dataclass(frozen=True)
class EASESettings:
    """Settings of EASE.

    Parameters
    ----------
    l2 : float or None, default None
        Lambda of the paper: the larger, the less an item with few users says. None: .3, 1, 3 or 10 times as many as an
        item with a row has users on average, whichever finds best one train row of each user that is left out
        (`chosen_l2`), which takes five solutions instead of one. With more than 5,000 such items once as many, which is
        near what the paper chose (500 on ML-20M, whose items have 500 users).
    max_items : int, default 20000
        Ids of the item's column from which the model is refused: it keeps a matrix of V x V numbers, and solving takes
        five times its memory and V^3 multiplications.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> EASESettings(l2=200).l2
    200
    """

    l2: float | None = None
    max_items: int = 20_000

    def __post_init__(self) -> None:
        check_settings(self)
        if self.l2 is not None:
            positive_number("l2", self.l2)


class EASE(FittedModel):
    """Embarrassingly shallow autoencoder of items.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats; which columns are the user's and the item's.
    settings : EASESettings
        What a user may set.

    Raises
    ------
    ModelError
        For more items than `max_items`.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import EASE, ModelInputs
    >>> from gigabatch.loaders.tables.packed import Batch
    >>> from gigabatch.models.inputs import EntityColumns
    >>> user, item = EntityColumns(key=0, ids=(0,)), EntityColumns(key=1, ids=(1,))
    >>> model = EASE(ModelInputs((3, 3), num_floats=0, user=user, item=item), EASE.Settings(l2=1.0))
    >>> ids = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1], [2, 0]])  # of three users, two have both 0 and 1
    >>> model.fit(Batch(ids, torch.empty(5, 0), (torch.ones(5),)))
    >>> model.weights[:2, :2].tolist()  # 2 / (3 + 1) from 0 to 1, 2 / (2 + 1) from 1 to 0
    [[0.0, 0.6666666865348816], [0.5, 0.0]]
    """

    Settings = EASESettings
    trace_obstacle = HISTORY
    remembered = ("item_mass", "pairs", "weights")
    weights: Tensor

    def __init__(self, inputs: ModelInputs, settings: EASESettings) -> None:
        super().__init__(inputs, settings)
        kept, taken = 4 * self.num_items**2, self.fit_bytes(inputs)
        if self.num_items > settings.max_items:
            raise ModelError(
                f"ease: {self.num_items:,} items are more than max_items, {settings.max_items:,}. It keeps a number "
                f"for every two of them, {kept / 2**30:,.1f} GiB, and takes {taken / 2**30:,.1f} GiB while it "
                "solves for them. Raise model.max_items where there is so much memory, raise preprocess.min_count of "
                "the item's column, or take item_knn."
            )
        self.register_buffer("weights", torch.zeros(0, 0))  # [V, V]: to an item by row, from an item by column

    @classmethod
    def fit_bytes(cls, inputs: ModelInputs) -> int:
        """Two float64 matrices of V x V while it solves, and the float32 one that it keeps."""
        return 20 * inputs.num_ids[inputs.entity("item").key] ** 2

    def _fit_pairs(self, pairs: Tensor, times: Tensor) -> None:
        users, items = pairs // self.num_items, pairs % self.num_items
        active, place = items.unique(return_inverse=True)  # the others have no row: their weights are 0
        l2 = self.settings.l2
        if l2 is None:
            l2 = chosen_l2(users, place, len(active), times, self.slope.device)
        gram = item_gram(users, place, len(active), self.slope.device)
        gram.diagonal().add_(l2)
        inverse = solved(gram)
        del gram
        weights = torch.zeros(self.num_items, self.num_items, dtype=self.slope.dtype, device=self.slope.device)
        active = active.to(self.slope.device)
        weights[active[:, None], active] = inverse.to(self.slope.dtype)
        self.weights = weights

    def _scores(self, users: Tensor, items: Tensor) -> Tensor:
        first, stop = self._spans(users)
        counts = stop - first
        found = torch.zeros(len(users), dtype=torch.float64, device=users.device)
        block = (counts.cumsum(0) - counts) // TERMS_AT_ONCE
        sizes = block.unique_consecutive(return_counts=True)[1].tolist()
        for rows in torch.arange(len(users), device=users.device).split(sizes):
            own = counts[rows]
            row = torch.arange(len(rows), device=users.device).repeat_interleave(own)
            place = torch.arange(len(row), device=users.device) - (own.cumsum(0) - own)[row] + first[rows][row]
            terms = self.weights[items[rows][row], self.pairs[place] % self.num_items]
            found[rows] = found[rows].index_add(0, row, terms.double())
        return found.to(self.slope.dtype)

    def _all_scores(self, users: Tensor) -> Tensor:
        return self._chosen(users) @ self.weights.T


def solved(gram: Tensor) -> Tensor:
    """The weights float64 [A, A] to an item by row, from an item by column, of X' X + l2 I."""
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
    inverse.div_(-inverse.diagonal()[:, None].clone())  # symmetric, so by row it is the transpose of B
    return inverse.fill_diagonal_(0)


def chosen_l2(
    users: Tensor, items: Tensor, num_items: int, times: Tensor | None = None, device: torch.device | str = "cpu"
) -> float:
    """The l2 that finds best, by NDCG@10, the item of a row of each user that it has not learnt from.

    Of each user with two rows or more one is left out, of at most `MOST_USERS_TO_CHOOSE` users, by `pair_hashes`, so
    that other numbers of users and items choose the same l2, but where several items have the very same users. Its item
    is ranked among all that the user does not have otherwise; where another row of the pair stays, so that the user
    comes back to it, among all, or the l2 would be chosen that tells best what a user has. Of equal scores half count
    as above it.

    Parameters
    ----------
    users, items : Tensor
        int64 [N] on the host: the pairs, each once, in ascending order of users; items from 0, each with a pair.
    num_items : int
        How many items there are.
    times : Tensor or None, default None
        int64 [N]: how many rows each pair has; None: one.
    device : torch.device or str, default 'cpu'
        Where it computes.

    Returns
    -------
    float
        One of `L2_TIMES` the mean number of an item's users, at least 1; once that number where there is nothing to
        choose by, or more than `MOST_ITEMS_TO_CHOOSE` items.

    Examples
    --------
    >>> import torch
    >>> users, items = torch.arange(40).repeat_interleave(2), torch.arange(80) % 4  # whoever has 0 has 1, or 2 and 3
    >>> chosen_l2(users, items, num_items=4)
    20.0
    """
    mean = max(len(users) / max(num_items, 1), 1.0)
    _, row, distinct = users.unique_consecutive(return_inverse=True, return_counts=True)
    times = torch.ones_like(users) if times is None else times
    counts = torch.zeros_like(distinct).index_add_(0, row, times)  # rows of each user
    if num_items > MOST_ITEMS_TO_CHOOSE or not bool((counts > 1).any()):
        return mean
    # Where hashes are equal, the first of a user's items by number would be none at random.
    pair = torch.arange(len(users)).repeat_interleave(times)  # of each row
    copy = torch.arange(len(pair)) - (times.cumsum(0) - times)[pair]
    hashes = pair_hashes(row, items)[pair]
    hashes = torch.where(copy > 0, mixed(hashes + copy), hashes)
    order = torch.randperm(len(pair), generator=torch.Generator().manual_seed(0))
    order = order[hashes[order].argsort(stable=True)]
    order = order[row[pair[order]].argsort(stable=True)]  # user by user, each one's rows by their hashes
    drawn = order[counts.cumsum(0) - counts][counts > 1]
    left_out = pair[drawn[mixed(hashes[drawn]).argsort(stable=True)[:MOST_USERS_TO_CHOOSE]]]
    asked = row[left_out]
    question = torch.full((len(counts),), -1).index_put_((asked,), torch.arange(len(asked)))[row]
    kept = torch.ones(len(users), dtype=torch.bool).index_fill_(0, left_out[times[left_out] == 1], False)
    gram, wanted = item_gram(users[kept], items[kept], num_items, device), items[left_out].to(device)
    places, of_question = items[kept].to(device), question[kept].to(device)
    found, added = [], 0.0
    for factor in L2_TIMES:
        gram.diagonal().add_(factor * mean - added)
        added = factor * mean
        weights = solved(gram).float().T
        gains = []
        for part in torch.arange(len(asked), device=device).split(USERS_AT_ONCE):
            of_part = (of_question >= part[0]) & (of_question <= part[-1])
            known = torch.zeros(len(part), num_items, device=device)
            known[of_question[of_part] - part[0], places[of_part]] = 1
            scores, place = known @ weights, wanted[part, None]
            own = scores.gather(1, place)
            new = known.gather(1, place) == 0  # [b, 1]
            scores.masked_fill_((known > 0) & new, -torch.inf)
            rank = (scores > own).sum(1) + ((scores == own).sum(1) - 1) / 2
            gains.append(torch.where(rank < CUTOFF, 1 / torch.log2(rank + 2), 0).double().sum())
        found.append(float(torch.stack(gains).sum()))
    return mean * L2_TIMES[found.index(max(found))]


def pair_hashes(users: Tensor, items: Tensor) -> Tensor:
    """A hash of each pair, int64 [N], that does not depend on how users and items are numbered.

    It begins with how many pairs a user and an item have, and takes in what is said of each one's own pairs, in turns
    (Weisfeiler and Leman, 1968). users, items: int64 [N] from 0, each with a pair.
    """
    of_users, of_items = users.bincount(), items.bincount()
    for _ in range(HASH_ROUNDS):  # sums of int64 wrap, and depend on no order
        of_users = mixed(of_users.index_add(0, users, of_items[items]))
        of_items = mixed(of_items.index_add(0, items, of_users[users]))
    return mixed(of_users[users] + 3 * of_items[items])


def mixed(numbers: Tensor) -> Tensor:
    """int64 whose bits all depend on all bits of the number (the end of splitmix64)."""
    for shift, times in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        numbers = (numbers ^ (numbers >> shift)) * times
    return numbers ^ (numbers >> 31)


def item_gram(users: Tensor, items: Tensor, num_items: int, device: torch.device | str = "cpu") -> Tensor:
    """X' X, float64 [num_items, num_items] on `device`: how many users have both of two items.

    users, items [N] int64 on the host: the pairs, each once, in ascending order of users. The counts are exact: sums of
    ones, in float32 below 2^24. By a sparse or by dense products, whichever multiplies less.
    """
    row, starts = users.unique_consecutive(return_inverse=True)[1], users.unique_consecutive(return_counts=True)[1]
    num_users, per_user = len(starts), starts.double()
    on_host = torch.device(device).type == "cpu"
    if on_host and SPARSE_COST * float((per_user**2).sum()) < num_users * float(num_items) ** 2:
        from scipy import sparse  # a tenth of a second, which who fits no such model need not wait for

        ends = np.concatenate([[0], starts.cumsum(0).numpy()])
        matrix = sparse.csr_matrix((np.ones(len(items)), items.numpy(), ends), shape=(num_users, num_items))
        return torch.from_numpy((matrix.T @ matrix).toarray())
    found = torch.zeros(num_items, num_items, dtype=torch.float64, device=device)
    at_once = max(min(DENSE_NUMBERS // max(num_items, 1), 1 << 23), 1)
    edges = torch.searchsorted(row, torch.arange(0, num_users + at_once, at_once)).tolist()
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        dense = torch.zeros(min(at_once, num_users - number * at_once), num_items, device=device)
        dense[(row[start:stop] - number * at_once).to(device), items[start:stop].to(device)] = 1
        found += dense.T @ dense
    return found
