"""EASE: a linear model from the items that a user has to all others, in closed form.

Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019, arXiv 1905.03375, section 3.1:

    min_B |X - X B|^2 + l2 |B|^2   with diag(B) = 0
    P = (X' X + l2 I)^-1,   B_ji = -P_ji / P_ii,   B_ii = 0
    s_ui = sum of B_ji over the items j of user u

An item predicts others, never itself. Nothing is drawn and nothing is iterated: the same rows give the same scores.

Shapes: B rows of a batch, V ids of the item's column, A items with a row, H items of a user.
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


@dataclass(frozen=True)
class EASESettings:
    """Settings of EASE.

    Parameters
    ----------
    l2 : float or None, default None
        Lambda of the paper: the larger, the less an item with few users says. None: as many as an item with a row has
        users on average, which is near what the paper chose (500 on ML-20M, whose items have 500 users).
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

    def _fit_pairs(self, pairs: Tensor) -> None:
        users, items = pairs // self.num_items, pairs % self.num_items
        active, place = items.unique(return_inverse=True)  # the others have no row: their weights are 0
        gram = item_gram(users, place, len(active), self.slope.device)
        l2 = self.settings.l2
        if l2 is None:
            l2 = max(len(pairs) / max(len(active), 1), 1.0)
        gram.diagonal().add_(l2)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
        del gram
        inverse.div_(-inverse.diagonal()[:, None].clone())  # symmetric, so by row it is the transpose of B
        inverse.fill_diagonal_(0)
        self.weights = torch.zeros(self.num_items, self.num_items, dtype=self.slope.dtype, device=self.slope.device)
        active = active.to(self.slope.device)
        self.weights[active[:, None], active] = inverse.to(self.slope.dtype)

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
