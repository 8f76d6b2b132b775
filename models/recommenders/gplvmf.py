"""GPLVMF: a Gaussian process for every user over latent items and contexts, and which contexts matter.

After Huang and Xu (arXiv 1912.09593), who put a prior on the latent inputs of GPFM (Nguyen et al., SIGIR 2014; Bayesian
GPLVM, Titsias and Lawrence, AISTATS 2010) and give it a mean. The exact equations of the paper were not at hand: this
is a form that its abstract and its base models allow; docs/models/gplvmf.md says what is whose.

    y_u = f_u(x) + noise,  f_u ~ GP(m, k)        one process a user; x = what the row's item and context columns say
    m   = mu_u + sum of biases of the row's ids + a . floats
    k   = s^2 exp(-1/2 sum_q w_q (x_q - x'_q)^2)  w_q: relevance of dimension q (ARD)
    x_q = a float column's value, or a latent number of the row's id: q(x) = N(mu, S), prior N(0, 1)

Trained on E_q[log p(Y | X)] - KL(q(X) | p(X)), the expectation by one reparameterised draw of X a user and step. The
closed form with psi statistics would need inducing points, O(n m^2) a user; exact processes of at most
`max_rows_per_user` rows cost little more and leave no approximation but q. Training costs O(n^3) for each user of a
step. The model keeps rows of the train split, which are saved with its weights.

Use it for ratings that depend on context, a few dozen to a few hundred rows a user. All is computed in float32, also
under autocast, on standardised targets with a jitter on the diagonal.

Shapes: B rows, K users, n rows of a user (padded), C id columns, L of them with latent inputs, d `dim`, F floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gigabatch.models.errors import ModelError, require, require_rows
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.layers.fields import check_settings, one_of, positive_number
from gigabatch.models.layers.pooled import Jagged
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model, Rows
from gigabatch.models.recommenders.stored_rows import KEPT, StoredRows

ELEMENTS_AT_ONCE = 1 << 22  # of the largest temporary of a prediction; 16 MB
PROBABILITY_FLOOR = 1e-3  # of a binary target's prediction, whose logit would be infinite at 0 and 1


@dataclass(frozen=True)
class GPLVMFSettings:
    """Settings of GPLVMF.

    Parameters
    ----------
    dim : int, default 2
        Latent numbers of an id of each column.
    max_rows_per_user : int, default 64
        Rows of the train split that are kept of a user.
    kept : {'last', 'random'}, default 'last'
        Which rows, where there are more: the last in the order of the split, or random ones (of a fixed seed).
    users_per_step : int, default 256
        Rows of a batch whose users' processes are worked out in a step; batches are in random order, so that those of
        its first rows stand for all.
    bias_deviation : float, default 1.0
        Of the normal prior of biases, over the targets' standard deviation.
    jitter : float, default 1e-4
        Added to the kernel's diagonal, over its signal variance.

    Raises
    ------
    ModelError
        For a value that cannot be.

    Examples
    --------
    >>> GPLVMFSettings(max_rows_per_user=32).kept
    'last'
    """

    dim: int = 2
    max_rows_per_user: int = 64
    kept: str = "last"
    users_per_step: int = 256
    bias_deviation: float = 1.0
    jitter: float = 1e-4

    def __post_init__(self) -> None:
        check_settings(self)
        one_of("kept rows of gplvmf", self.kept, KEPT)
        for name in ("bias_deviation", "jitter"):
            positive_number(name, getattr(self, name))


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
        points = latent.flatten(2)
        weighted = points * self.latent.flatten()
        squares = (points * weighted).sum(2)
        distance = squares[:, :, None] + squares[:, None] - 2 * weighted @ points.transpose(1, 2)
        # Expanded, the square takes far less memory. It loses the digits of a difference that is small beside the
        # numbers, which latent ones, of the prior N(0, 1), are not; floats may have any offset, so they are subtracted.
        between = (floats[:, :, None] - floats[:, None]).square() @ self.floats
        return torch.exp(self.log_signal - 0.5 * (distance.clamp(min=0) + between))

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


class Relevance(NamedTuple):
    """Sum of w_q over the dimensions of each column that enters the kernel, by its place among ids or floats."""

    ids: dict[int, float]
    floats: dict[int, float]


class UserRows(NamedTuple):
    """Stored rows of K users, padded to n each: ids [K, n, C], whether a row is one [K, n] float32, and of its columns
    the kernel's inputs, the biases [K, n, C] and the standardised target less its mean m [K, n], 0 in the padding."""

    ids: Tensor
    inside: Tensor
    inputs: LatentInputs
    biases: Tensor
    residuals: Tensor


class GPLVMF(Model):
    """GPLVMF: a Gaussian process a user; outputs are posterior means given the user's stored rows.

    Columns of the item and of the context enter the kernel; those of the user, which are constant for a user, the mean
    alone. A user without stored rows gets the mean m; an id that no stored row has takes its prior: latent mean 0,
    variance 1, bias 0. A binary target is regressed like any value (least-squares classification, Rasmussen and
    Williams, section 6.5), and the output is the logit of the value clipped to [0.001, 0.999].

    Parameters
    ----------
    inputs : ModelInputs
        Sizes of the id tables, number of floats and of outputs; which columns are the user's and the item's.
    settings : GPLVMFSettings
        What a user may set.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import GPLVMF, ModelInputs
    >>> from gigabatch.models.inputs import EntityColumns
    >>> user, item = EntityColumns(key=0, ids=(0,)), EntityColumns(key=1, ids=(1,))
    >>> inputs = ModelInputs((5, 7), num_floats=0, num_outputs=1, user=user, item=item)
    >>> model = GPLVMF(inputs, GPLVMF.Settings(dim=2))
    >>> ids, floats = torch.tensor([[1, 6], [4, 0], [2, 3]]), torch.empty(3, 0)
    >>> model.remember(ids, floats, [torch.tensor([3.0, 5.0, 4.0])])  # the train rows
    >>> model.eval()(ids, floats).shape
    torch.Size([3, 1])
    """

    Settings = GPLVMFSettings
    entities = ("user", "item")
    single_output = True
    remembered = ("rows",)
    capture_obstacle = "its factorisations are cuSOLVER's or MAGMA's, which do not promise to work in a capture"
    trace_obstacle = (
        "its first call solves a system for every user and keeps what it found, which runtimes of graphs cannot. Serve "
        "its bundle (gigabatch serve), or score rows ahead (gigabatch score)"
    )

    is_binary: Tensor
    latent_places: Tensor
    kernel_places: Tensor

    def __init__(self, inputs: ModelInputs, settings: GPLVMFSettings) -> None:
        super().__init__(inputs, settings)
        user, _ = inputs.entity("user"), inputs.entity("item")
        self.user_key = user.key
        self.latent_ids = tuple(place for place in range(len(inputs.num_ids)) if place not in user.ids)
        self.kernel_floats = tuple(place for place in range(inputs.num_floats) if place not in user.floats)
        sizes, dim = [inputs.num_ids[place] for place in self.latent_ids], settings.dim
        self.means = EmbeddingTables(sizes, [dim] * len(sizes), columns=self.latent_ids)
        self.log_deviations = EmbeddingTables(sizes, [dim] * len(sizes), columns=self.latent_ids)
        self.biases = EmbeddingTables(inputs.num_ids, [1] * len(inputs.num_ids))
        self.float_weights = nn.Parameter(torch.zeros(inputs.num_floats)) if inputs.num_floats else None
        self.log_relevance = nn.Parameter(torch.empty(dim * len(sizes) + len(self.kernel_floats)))
        self.log_signal = nn.Parameter(torch.empty(1))  # log s^2
        self.log_noise = nn.Parameter(torch.empty(1))  # log sigma^2
        self.reset_parameters()

        self.rows = StoredRows(inputs.num_ids, inputs.num_floats, user.key)
        self.register_buffer("is_binary", torch.zeros((), dtype=torch.bool))
        self.register_buffer("latent_places", torch.tensor(self.latent_ids, dtype=torch.int64), persistent=False)
        self.register_buffer("kernel_places", torch.tensor(self.kernel_floats, dtype=torch.int64), persistent=False)
        self._solution: tuple[tuple[int, ...], Tensor, Tensor] | None = None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights from torch's global generator.

        Latent means start well apart: where all ids are alike, the kernel has no gradient that would part them.
        """
        for mean, log_deviation in zip(self.means.tables, self.log_deviations.tables, strict=True):
            mean.normal_().mul_(0.5)
            log_deviation.fill_(math.log(0.3))
        for bias in self.biases.tables:
            bias.zero_()
        self.log_relevance.fill_(math.log(1 / max(len(self.log_relevance), 1)))
        self.log_signal.fill_(math.log(0.5))
        self.log_noise.fill_(math.log(0.5))

    def relevance(self) -> Relevance:
        """w_q summed over each column's dimensions: how fast the process varies along it, 0 for one that is irrelevant.

        Latent inputs all have the prior N(0, 1), so those of id columns are comparable; a float's is comparable with
        them where its values have deviation 1.
        """
        kernel = self._kernel()
        return Relevance(
            dict(zip(self.latent_ids, kernel.latent.sum(1).tolist(), strict=True)),
            dict(zip(self.kernel_floats, kernel.floats.tolist(), strict=True)),
        )

    def remember(self, ids: Tensor, floats: Tensor, targets: Sequence[Tensor], lists: Sequence[Jagged] = ()) -> None:
        """Keep up to `max_rows_per_user` rows of each user, and the targets' mean and deviation."""
        self.require_inputs(ids, floats)
        require(len(targets) == 1, f"gplvmf: one target is needed, {len(targets)} are given.")
        require(
            len(ids) == 0 or bool((targets[0] != targets[0][0]).any()),
            "gplvmf: the targets of all rows are alike, so there is nothing to regress. It learns from the train "
            "split's own rows, not from drawn negatives (train.negatives); choose another model for positives alone.",
        )
        self.rows.store(ids, floats, targets[0], self.settings.max_rows_per_user, self.settings.kept)
        self._forget()

    def table_ids(self, ids: Tensor) -> dict[EmbeddingTables, Tensor]:
        """Refused: a pass looks up the stored rows of the users too."""
        raise ModelError(
            "gplvmf: a pass looks up rows that are not of its batch, so its tables cannot be sharded. Set "
            "train.tables=replicated."
        )

    def train(self, mode: bool = True) -> GPLVMF:
        """As of every module; in training mode the weights change, so what was solved with them is dropped."""
        if mode:
            self._forget()
        super().train(mode)
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._forget()

    def _forget(self) -> None:
        self._solution = None

    # The bound

    def training_loss(self, batch: Rows, loss: TargetLoss) -> Tensor:
        """Minus the bound of the stored rows, over the rows of the train split; an unbiased estimate of it.

        Each of the batch's first `users_per_step` rows contributes the bound of its user over the user's rows in the
        train split. A row's weight is that of its contribution. An id's KL divergence and the penalty of its bias are
        spread over the stored rows that have it. Not a number where a kernel matrix is not positive definite.
        """
        require(self.rows.most_rows > 0, "gplvmf: no rows are remembered; call remember(ids, floats, targets) first.")
        require_rows(len(batch.ids))
        self.is_binary.fill_(loss.tasks[0][0] == "binary")
        users = batch.ids[: self.settings.users_per_step, self.user_key].long()
        share = torch.ones_like(users, dtype=torch.float32) if batch.weight is None else batch.weight[: len(users)]
        share = share / share.sum().clamp(min=torch.finfo(torch.float32).tiny)
        most_rows = self.rows.most_rows
        if (
            users.device.type == "cpu"
        ):  # on a GPU, whose host must not wait, a user of several rows is worked out several times
            users, places = users.unique(return_inverse=True)
            share = share.new_zeros(len(users)).index_add(0, places, share)
            most_rows = max(int((self.rows.offsets[users + 1] - self.rows.offsets[users]).max()), 1)
        with torch.autocast(users.device.type, enabled=False):
            rows = self._rows_of(users, most_rows)
            bounds = self.log_likelihoods(rows, draw(rows.inputs)) - self.penalties(rows)
            return -(share * bounds / self.rows.total_rows[users].clamp(min=1)).sum()

    @property
    def compares_rows(self) -> bool:
        """Always."""
        return True

    def log_likelihoods(self, rows: UserRows, latent: Tensor) -> Tensor:
        """log p(y_u | X) [K] of the users' standardised targets; latent [K, n, L, d] are the X of the id columns."""
        covariance = self._with_noise(self._kernel().at(latent, rows.inputs.floats), rows.inside)
        factor, info = torch.linalg.cholesky_ex(covariance)  # `cholesky` would make a GPU's host wait
        solved = torch.linalg.solve_triangular(factor, rows.residuals.unsqueeze(2), upper=False)
        log_determinant = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)  # of the padding: 0
        constant = rows.inside.sum(1) * math.log(2 * math.pi)
        likelihood = -0.5 * (solved.square().sum((1, 2)) + log_determinant + constant)
        return torch.where(info == 0, likelihood, math.nan)

    def penalties(self, rows: UserRows) -> Tensor:
        """[K]: the share of each user's rows in KL(q(X) | p(X)) and in the biases' minus log prior (less a constant).

        Summed over all users it is the whole, over the ids that stored rows have.
        """
        counts = self.rows.counts(rows.ids).clamp(min=1)
        mean, variance = rows.inputs.mean, rows.inputs.variance
        divergence = 0.5 * (mean.square() + variance - 1 - variance.log()).sum(3)
        penalty = (divergence / counts.index_select(2, self.latent_places)).sum(2)
        penalty = penalty + (0.5 * (rows.biases / self.settings.bias_deviation).square() / counts).sum(2)
        return (penalty * rows.inside).sum(1)

    def _with_noise(self, kernel: Tensor, inside: Tensor) -> Tensor:
        """K + (sigma^2 + jitter) I, and the unit matrix in the padding."""
        diagonal = torch.exp(self.log_noise) + self.settings.jitter * torch.exp(self.log_signal)
        diagonal = torch.where(inside > 0, diagonal, 1.0)
        return kernel * inside[:, :, None] * inside[:, None] + torch.diag_embed(diagonal)

    # Predictions

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """ids [B, C], floats [B, F] -> [B, 1] float32: the posterior mean given the user's stored rows.

        No gradient flows from it: `training_loss` does not use it. In evaluation mode the users' systems are solved
        once, at the first call, which takes O(n^3) for every user there is; each row then takes O(n). In training mode,
        where the weights change, every call solves them all.
        """
        self.require_inputs(ids, floats, lists)
        with torch.no_grad(), torch.autocast(ids.device.type, enabled=False):
            coefficients = self._coefficients()
            elements = max(self.rows.most_rows * len(self.latent_ids) * self.settings.dim, 1)
            size = max(ELEMENTS_AT_ONCE // elements, 1)
            parts = zip(ids.split(size), floats.split(size), strict=True)
            value = torch.cat([self._posterior_mean(*part, coefficients) for part in parts])
            value = self.rows.target_mean + self.rows.target_scale * value.double()
            for scale in self.target_scales:  # the stored rows have a scale of their own, as they may be fewer
                value = (value - scale.mean) / scale.std
            value = value.float()
            logit = torch.logit(value.clamp(PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR))
            return torch.where(self.is_binary, logit, value)[:, None]

    def _posterior_mean(self, ids: Tensor, floats: Tensor, coefficients: Tensor) -> Tensor:
        """[B] in standardised units. coefficients [N]: see `_solve`."""
        inputs, biases = self._inputs(ids, floats), self._biases(ids)
        mean = self._mean(biases, floats)
        if not self.rows.most_rows:
            return mean
        index, inside = self.rows.places(ids[:, self.user_key].long(), self.rows.most_rows)
        stored = self._inputs(self.rows.ids[index], self.rows.floats[index])
        kernel = self._kernel().expected(inputs.unsqueeze(1), stored)
        return mean + (kernel * coefficients[index] * inside).sum(1)

    def _coefficients(self) -> Tensor:
        """What `_solve` gives; kept in evaluation mode until a parameter has been written to, or the kernel's own have
        other values, as after the replay of a CUDA graph, which torch's counts of writes know nothing of."""
        with torch.inference_mode(False), torch.no_grad():  # kept tensors must outlive a caller's inference mode
            own = torch.cat([self.log_relevance, self.log_signal, self.log_noise])
            writes = tuple(parameter._version for parameter in self.parameters())
            kept = self._solution
            if self.training or kept is None or kept[0] != writes or not _same(own, kept[1]):
                kept = self._solution = writes, own, self._solve()
            return kept[2]

    def _solve(self) -> Tensor:
        """(E[K] + (sigma^2 + jitter) I)^-1 (y - m) of every user: [N], in the order of the stored rows.

        Users with as many rows are solved together, so that little is padding.
        """
        solution = torch.zeros_like(self.rows.targets)
        counts, order = self.rows.offsets.diff().sort(descending=True, stable=True)
        start, num_users = 0, int((counts > 0).sum())
        while start < num_users:
            most_rows = int(counts[start])
            stop = start + max(ELEMENTS_AT_ONCE // (most_rows**2 * self.settings.dim), 1)
            users = order[start : min(stop, num_users)]
            rows = self._rows_of(users, most_rows)
            expected = self._kernel().expected(rows.inputs.unsqueeze(2), rows.inputs.unsqueeze(1))
            factor, info = torch.linalg.cholesky_ex(self._with_noise(expected, rows.inside))
            require(
                not bool(info.any()),
                f"gplvmf: the kernel matrix of {int((info != 0).sum())} users is not positive definite in float32. "
                f"Raise the setting jitter ({self.settings.jitter}), or lower the learning rate.",
            )
            solved = torch.cholesky_solve(rows.residuals.unsqueeze(2), factor).squeeze(2)
            index, inside = self.rows.places(users, most_rows)
            solution[index[inside > 0]] = solved[inside > 0]
            start = stop
        return solution

    # Rows as the process sees them

    def _rows_of(self, users: Tensor, most_rows: int) -> UserRows:
        """The stored rows of users [K] int64 that have at most `most_rows` each."""
        index, inside = self.rows.places(users, most_rows)
        ids, floats = self.rows.ids[index], self.rows.floats[index]
        biases = self._biases(ids)
        residuals = (self.rows.targets[index] - self._mean(biases, floats)) * inside
        return UserRows(ids, inside, self._inputs(ids, floats), biases, residuals)

    def _inputs(self, ids: Tensor, floats: Tensor) -> LatentInputs:
        """q(x) of ids [..., C], the prior's for ids that no stored row has, and the fixed coordinates."""
        latent, shape = ids.index_select(-1, self.latent_places), (len(self.latent_ids), self.settings.dim)
        flat = latent.flatten(0, -2)
        mean = self.means(flat).view(*ids.shape[:-1], *shape)
        variance = torch.exp(2 * self.log_deviations(flat)).view(*ids.shape[:-1], *shape)
        seen = self.rows.counts(ids).index_select(-1, self.latent_places).unsqueeze(-1) > 0
        coordinates = floats.index_select(-1, self.kernel_places)
        return LatentInputs(latent, mean * seen, torch.where(seen, variance, 1.0), coordinates)

    def _biases(self, ids: Tensor) -> Tensor:
        """Of ids [..., C], in that shape; 0 for ids that no stored row has."""
        return self.biases(ids.flatten(0, -2)).view(ids.shape) * (self.rows.counts(ids) > 0)

    def _mean(self, biases: Tensor, floats: Tensor) -> Tensor:
        """m of rows with biases [..., C] and floats [..., F]."""
        mean = biases.sum(-1)
        return mean if self.float_weights is None else mean + (floats * self.float_weights).sum(-1)

    def _kernel(self) -> ArdKernel:
        columns, dim = len(self.latent_ids), self.settings.dim
        latent, floats = torch.exp(self.log_relevance).split([columns * dim, len(self.kernel_floats)])
        return ArdKernel(self.log_signal, latent.view(columns, dim), floats)


def _same(one: Tensor, two: Tensor) -> bool:
    return one.device == two.device and torch.equal(one, two)
