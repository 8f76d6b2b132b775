"""The ARD kernel of inputs that are partly latent: known, drawn, or averaged over their distribution.

    k(x, x') = s^2 exp(-1/2 sum_q w_q (x_q - x'_q)^2)

x_q is a number of a row's latent vectors, one vector an id column, with q(x) = N(mu, S), or a float of the row.

Shapes: K users, n rows of a user, L id columns with latent vectors of d numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class LatentInputs(NamedTuple):
    """Inputs of rows of any shape [...]: ids [..., L], mean and variance of their q(x) [..., L, d], and the floats
    [..., *] that are coordinates as they are."""

    ids: Tensor
    mean: Tensor
    variance: Tensor
    floats: Tensor

    def unsqueeze(self, dim: int) -> LatentInputs:
        """With one more dimension of the rows, of size 1, at `dim`."""
        return LatentInputs(*(tensor.unsqueeze(dim) for tensor in self))


class ArdKernel(NamedTuple):
    """log_signal [1]: log s^2. latent [L, d] and floats [*]: the relevances w_q."""

    log_signal: Tensor
    latent: Tensor
    floats: Tensor

    def at(self, latent: Tensor, floats: Tensor) -> Tensor:
        """k [K, n, n] between the rows of each user; their latent vectors are [K, n, L, d], their floats [K, n, *]."""
        points = torch.cat([latent.flatten(2), floats], dim=2)
        weighted = points * torch.cat([self.latent.flatten(), self.floats])
        squares = (points * weighted).sum(2)
        distance = squares[:, :, None] + squares[:, None] - 2 * weighted @ points.transpose(1, 2)
        return torch.exp(self.log_signal - 0.5 * distance.clamp(min=0))

    def expected(self, one: LatentInputs, two: LatentInputs) -> Tensor:
        """E_q[k(x, x')] of rows whose shapes broadcast: the integral over both latent inputs (psi1 of the Bayesian
        GPLVM, Titsias and Lawrence, AISTATS 2010). The same id on both sides is the same vector, at distance 0."""
        exponent = -0.5 * (self.floats * (one.floats - two.floats).square()).sum(-1)
        for column, relevance in enumerate(self.latent):
            spread = 1 + relevance * (one.variance[..., column, :] + two.variance[..., column, :])
            difference = one.mean[..., column, :] - two.mean[..., column, :]
            term = -0.5 * (spread.log() + relevance * difference.square() / spread).sum(-1)
            exponent = exponent + term * (one.ids[..., column] != two.ids[..., column])
        return torch.exp(self.log_signal + exponent)


def draw(inputs: LatentInputs) -> Tensor:
    """Latent vectors [K, n, L, d] from q(x), for users [K] apart: rows of a user with the same id share one draw."""
    same = inputs.ids[:, :, None] == inputs.ids[:, None]  # [K, n, n, L]
    first = same.int().argmax(dim=2)  # the first row that has the id
    noise = torch.randn_like(inputs.mean).gather(1, first.unsqueeze(3).expand_as(inputs.mean))
    return inputs.mean + inputs.variance.sqrt() * noise
