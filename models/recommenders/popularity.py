"""Popularity: every user gets the items that most train rows chose.

    s = log(1 + c_i)      c_i: summed weights of item i's positive rows

No model of users should be worse: it is the baseline of every ranking (Cremonesi, Koren and Turrin, RecSys 2010;
Ferrari Dacrema, Cremonesi and Jannach, RecSys 2019). Items that differ by what they cost or when they came say nothing
here; rows of all times count alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gigabatch.models.recommenders.fitted import FittedModel


@dataclass(frozen=True)
class PopularitySettings:
    """Popularity has no settings."""


class Popularity(FittedModel):
    """How often train rows chose an item.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats; which columns are the user's and the item's.
    settings : PopularitySettings
        None of them.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import ModelInputs, Popularity
    >>> from gigabatch.loaders.tables.packed import Batch
    >>> from gigabatch.models.inputs import EntityColumns
    >>> user, item = EntityColumns(key=0, ids=(0,)), EntityColumns(key=1, ids=(1,))
    >>> model = Popularity(ModelInputs((5, 4), num_floats=0, user=user, item=item), Popularity.Settings())
    >>> ids = torch.tensor([[0, 3], [1, 3], [1, 2]])
    >>> model.fit(Batch(ids, torch.empty(3, 0), (torch.ones(3),)))
    >>> model.catalogue_scores(ids[:1], torch.empty(1, 0)).exp().round().tolist()  # 1 + each item's rows
    [[1.0, 1.0, 2.0, 3.0]]
    """

    Settings = PopularitySettings
    keeps_pairs = False
    remembered = ("item_mass",)

    def _scores(self, users: Tensor, items: Tensor) -> Tensor:
        return self._popularity(items)

    def _all_scores(self, users: Tensor) -> Tensor:
        popular = self._popularity(torch.arange(self.num_items, device=users.device))
        return popular.expand(len(users), -1)

    def _knows(self, users: Tensor) -> Tensor:
        """Every user is known as well as any other."""
        return torch.ones_like(users, dtype=torch.bool)
