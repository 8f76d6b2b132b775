"""Own counts: every user gets what they chose most often, and then what most train rows chose.

    s = log(1 + n_ui + p_i)      n_ui: positive rows of user u with item i
                                 p_i = log(1 + c_i) / (1 + the greatest log(1 + c)), from 0 to below 1

so that popularity decides among equal own counts alone. Where users come back to the same items no simple baseline is
better (GP-TopFreq of Li, Jullien, Ariannezhad and de Rijke, "A next basket recommendation reality check", ACM TOIS
41(4), 2023). Rows of all times count alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gigabatch.models.inputs import ModelInputs
from gigabatch.models.recommenders.fitted import HISTORY, FittedModel


@dataclass(frozen=True)
class TopFrequencySettings:
    """Own counts have no settings."""


class TopFrequency(FittedModel):
    """How often a user chose an item, then how often all did.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats; which columns are the user's and the item's.
    settings : TopFrequencySettings
        None of them.

    Attributes
    ----------
    times : Tensor
        int32 [N], the rows of each of `pairs`; [0] before `fit`.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import ModelInputs, TopFrequency
    >>> from gigabatch.loaders.tables.packed import Batch
    >>> from gigabatch.models.inputs import EntityColumns
    >>> user, item = EntityColumns(key=0, ids=(0,)), EntityColumns(key=1, ids=(1,))
    >>> model = TopFrequency(ModelInputs((3, 4), num_floats=0, user=user, item=item), TopFrequency.Settings())
    >>> ids = torch.tensor([[0, 1], [0, 2], [0, 2], [1, 3], [2, 3], [2, 3]])
    >>> model.fit(Batch(ids, torch.empty(6, 0), (torch.ones(6),)))
    >>> model.catalogue_scores(ids[:1], torch.empty(1, 0)).argsort(descending=True).tolist()  # 3: most others' choice
    [[2, 1, 3, 0]]
    """

    Settings = TopFrequencySettings
    trace_obstacle = HISTORY
    remembered = ("item_mass", "pairs", "times")
    times: Tensor

    def __init__(self, inputs: ModelInputs, settings: TopFrequencySettings) -> None:
        super().__init__(inputs, settings)
        self.register_buffer("times", torch.zeros(0, dtype=torch.int32))

    def _fit_pairs(self, pairs: Tensor, times: Tensor) -> None:
        self.times = times.int().to(self.slope.device)

    def _scores(self, users: Tensor, items: Tensor) -> Tensor:
        own = torch.zeros(len(users), dtype=self.slope.dtype, device=users.device)
        if len(self.pairs):
            chosen, place = self._of_pairs(users, items)
            own += chosen * self.times[place]
        return self._log_counts(own, items)

    def _all_scores(self, users: Tensor) -> Tensor:
        return self._log_counts(self._chosen(users, self.times), torch.arange(self.num_items, device=users.device))

    def _log_counts(self, own: Tensor, items: Tensor) -> Tensor:
        """s of own counts [..., b] with items [b]."""
        most = self.item_mass.max().log1p().to(own.dtype)
        return (own + self._popularity(items) / (1 + most)).log1p()
