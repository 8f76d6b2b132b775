"""Logistic regression: one weight an id, one a float, and no interactions. With a regression target, linear regression.

    y = w0 + sum_c w_c[id_c] + sum_f w_f x_f

The baseline that every other model has to beat (Richardson et al., WWW 2007, for click prediction). Use it to see what
the columns say one by one, where scores must be explained weight by weight, or where there are few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.fields import LinearTerms, check_settings, one_of
from gigabatch.models.layers.numeric import Numeric
from gigabatch.models.layers.pooled import Jagged, PoolingSettings
from gigabatch.models.model import Model


@dataclass(frozen=True)
class LogisticRegressionSettings(PoolingSettings):
    """Settings of logistic regression.

    Parameters
    ----------
    numeric : str or dict of str to str, default 'plain'
        `bins` adds to each float's line a function that is linear in each of its quantile bins. By column: its name
        and kind, and `*` for the others.
    pooling : {'sum', 'mean', 'root', 'max'}, default 'mean'
        What becomes of the vectors of a list column's elements; `max` takes no weights.

    Examples
    --------
    >>> LogisticRegressionSettings()
    LogisticRegressionSettings(pooling='mean', numeric='plain')
    """

    numeric: Numeric = "plain"

    def __post_init__(self) -> None:
        check_settings(self)
        for kind in [self.numeric] if isinstance(self.numeric, str) else self.numeric.values():
            one_of("numeric of lr", kind, ("plain", "bins"))


class LogisticRegression(Model):
    """Logistic regression: linear terms of ids and batch-normed floats; all weights start at 0.

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs.
    settings : LogisticRegressionSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import LogisticRegression, ModelInputs
    >>> inputs = ModelInputs(num_ids=(5, 7), num_floats=2)
    >>> model = LogisticRegression(inputs, LogisticRegression.Settings())
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.zeros(3, 2)
    >>> model.eval()(ids, floats).tolist()  # nothing is learnt yet
    [[0.0], [0.0], [0.0]]
    """

    Settings = LogisticRegressionSettings
    takes_lists = True

    def __init__(self, inputs: ModelInputs, settings: LogisticRegressionSettings) -> None:
        super().__init__(inputs, settings)
        self.linear = LinearTerms(inputs, numeric=settings.numeric, pooling=settings.pooling)

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats, lists)
        return self.linear(ids, floats, lists)
