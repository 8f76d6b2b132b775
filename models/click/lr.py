"""Logistic regression: one weight an id, one a float, and no interactions. With a regression target, linear regression.

    y = w0 + sum_c w_c[id_c] + sum_f w_f x_f

The baseline that every other model has to beat (Richardson et al., WWW 2007, for click prediction). Use it to see what
the columns say one by one, where scores must be explained weight by weight, or where there are few rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gigabatch.models.layers.fields import LinearTerms
from gigabatch.models.model import Model, ModelInputs


@dataclass(frozen=True)
class LogisticRegressionSettings:
    """There is nothing to set."""


class LogisticRegression(Model):
    """Linear terms of ids and batch-normed floats; all weights start at 0."""

    Settings = LogisticRegressionSettings

    def __init__(self, inputs: ModelInputs, settings: LogisticRegressionSettings) -> None:
        super().__init__(inputs, settings)
        self.linear = LinearTerms(inputs)

    def forward(self, ids: Tensor, floats: Tensor) -> Tensor:
        """As `Model.forward`."""
        self.require_inputs(ids, floats)
        return self.linear(ids, floats)
