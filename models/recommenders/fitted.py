"""Models that take no steps: they are fitted to all train rows at once, and rank items for users.

What they have in common: which rows count, the pairs of users and items that are kept, what a user without any gets,
and how a score becomes a logit.

    x_ui = 1 where user u has a positive row (target 1, weight above 0) with item i in the train split, else 0
    c_i  = summed weights of item i's positive rows; every row counts here, also one of an unknown user
    out  = a s + b, s the model's own score; of a user without known items a' log(1 + c_i) + b'

a, b, a' and b' are fitted to labelled rows by maximum likelihood (Platt, "Probabilistic outputs for support vector
machines", 1999), a and a' above 0, so that sigmoid(out) is a probability and the order of the scores stays.

Shapes: B rows of a batch, C id columns, F float columns, N pairs of the train split, V ids of the item's column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gigabatch.models.errors import ModelError, require
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.layers.pooled import Jagged
from gigabatch.models.losses import TargetLoss
from gigabatch.models.model import Model, Rows

OWN, POPULAR = 0, 1  # places of the two lines among `slope` and `shift`
LEAST_SLOPE = 1e-3  # of deviations of the score: scores that rank against the labels keep their order all the same
NEWTON_STEPS = 50
HISTORY = (  # why a model is not traced
    "it looks up which items a user has, in a sorted list, which runtimes of graphs cannot. Serve its bundle "
    "(gigabatch serve), or score rows ahead (gigabatch score)"
)


class FittedModel(Model):
    """A model of users and items that is fitted to the train rows at once (`fit`), then given probabilities
    (`fit_lines`).

    Subclasses give `_fit_pairs`, `_scores` and `_all_scores`. All that they keep lies in buffers: those of `remembered`
    have shapes that are known once there are rows, and come back with saved weights.

    Attributes
    ----------
    item_mass : Tensor
        float64 [V], c_i of the module's docstring; [0] before `fit`.
    pairs : Tensor
        int64 [N] ascending, user * V + item where x_ui is 1; [0] before `fit`, and where the model has no use for it.
    """

    entities = ("user", "item")
    single_output = True
    item_is_its_key = True
    learns_by_steps: ClassVar[bool] = False
    capture_obstacle = "it takes no steps"
    keeps_pairs: ClassVar[bool] = True
    remembered: ClassVar[tuple[str, ...]] = ("item_mass", "pairs")
    item_mass: Tensor
    pairs: Tensor
    slope: Tensor
    shift: Tensor

    def __init__(self, inputs: ModelInputs, settings: Any) -> None:
        super().__init__(inputs, settings)
        self.user, self.item = inputs.entity("user"), inputs.entity("item")
        self.num_items = inputs.num_ids[self.item.key]
        self.register_buffer("item_mass", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("pairs", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("slope", torch.ones(2))
        self.register_buffer("shift", torch.zeros(2))

    # -- fitting -------------------------------------------------------------------------------------------------------

    def require_targets(self, tasks: Any) -> None:
        """Raise `ModelError` unless the target is binary: what users chose is what has the target 1."""
        if tuple(tasks) != ("binary",):
            raise ModelError(
                f"{type(self).__name__} learns from what users chose, rows with the target 1 of one binary target, and "
                f"the target is {', '.join(tasks)}. Make it 0 or 1 (recipe interactions: task rating with a "
                "threshold), or choose another model."
            )

    @torch.no_grad()
    def fit(self, rows: Rows) -> None:
        """Learn from all rows of the train split, on the device of the model's buffers.

        Parameters
        ----------
        rows : Rows
            ids [M, C] with the target float32 [M], of which 1 is a positive, and weight [M] or None. Their order
            matters to no score; how often a pair comes to those that count rows, and to what EASE chooses its l2 by.

        Raises
        ------
        ModelError
            Where there is no positive row of a known item.
        """
        device = self.item_mass.device
        users, items = rows.ids[:, self.user.key].long(), rows.ids[:, self.item.key].long()
        mass = torch.ones(len(users), dtype=torch.float64) if rows.weight is None else rows.weight.double().cpu()
        counted = ((rows.targets[0] == 1).cpu() & (mass > 0)).to(users.device) & (items >= self.item.first)
        users, items, mass = users[counted].cpu(), items[counted].cpu(), mass[counted.cpu()]
        require(
            len(items) > 0,
            f"{type(self).__name__}: the train rows hold no positive of a known item (target 1, weight above 0) to "
            "learn from.",
        )
        known = users >= self.user.first
        pairs, times = torch.unique(users[known] * self.num_items + items[known], return_counts=True)  # ascending
        self._fit_pairs(pairs, times)  # first: where it fails, what was fitted before stays
        if self.keeps_pairs:
            self.pairs = pairs.to(device)
        self.item_mass = torch.bincount(items, mass, self.num_items).to(device)
        self.slope.fill_(1)
        self.shift.fill_(0)

    def _fit_pairs(self, pairs: Tensor, times: Tensor) -> None:
        """Learn from the pairs [N] int64, on the host. times: int64 [N], how many rows each has."""

    @property
    def is_fitted(self) -> bool:
        """Whether `fit` has been called, or saved weights been loaded."""
        return len(self.item_mass) > 0

    @torch.no_grad()
    def fit_lines(self, blocks: Iterable[Rows]) -> None:
        """Fit a, b, a' and b' to rows with labels of 0 and 1: those of the valid split, which no score has learnt.

        Without a row of some weight they stay as they are. Where scores rank against the labels, a is a thousandth of
        their deviation, so that the order stays.
        """
        parts = []
        for rows in blocks:
            users, items = self._keys(rows.ids)
            mass = torch.ones(len(users)) if rows.weight is None else rows.weight
            own, popular = self._scores(users, items), self._popularity(items)
            columns = own, popular, self._knows(users), rows.targets[0], mass
            parts.append([column.double().cpu() for column in columns])
        if not parts:
            return
        scored, popularity, knows, labels, weight = (torch.cat(column).numpy() for column in zip(*parts, strict=True))
        for place, scores, asked in ((OWN, scored, knows > 0), (POPULAR, popularity, knows >= 0)):
            chosen = asked & (weight > 0)
            if chosen.any():
                self.slope[place], self.shift[place] = line_of(scores[chosen], labels[chosen], weight[chosen])

    # -- scores --------------------------------------------------------------------------------------------------------

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """ids [B, C], floats [B, F] -> logits [B, 1] float32; only the keys of user and item matter."""
        self.require_inputs(ids, floats, lists)
        self._require_fit()
        users, items = self._keys(ids)
        return self._logits(self._scores(users, items), self._popularity(items), self._knows(users))[:, None]

    @torch.no_grad()
    def catalogue_scores(self, ids: Tensor, floats: Tensor) -> Tensor:
        """The logits [B, V] of every id of the item's column for the users of rows ids [B, C] and floats [B, F], whose
        own items do not matter; what `forward` gives of each, within the tolerance of scores, by one product."""
        self.require_inputs(ids, floats)
        self._require_fit()
        users, _ = self._keys(ids)
        popular = self._popularity(torch.arange(self.num_items, device=ids.device))
        return self._logits(self._all_scores(users), popular[None], self._knows(users)[:, None])

    def training_loss(self, batch: Rows, loss: TargetLoss) -> Tensor:
        """Refused: there is nothing that a step could move."""
        raise ModelError(f"{type(self).__name__} takes no steps, so it has no training loss. Call fit with all rows.")

    def _keys(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Users and items [B] int64 of rows."""
        return ids[:, self.user.key].long(), ids[:, self.item.key].long()

    def _scores(self, users: Tensor, items: Tensor) -> Tensor:
        """The model's own score s [B] of pairs."""
        raise NotImplementedError

    def _all_scores(self, users: Tensor) -> Tensor:
        """The same of every item [B, V]."""
        raise NotImplementedError

    def _knows(self, users: Tensor) -> Tensor:
        """Which users [B] have an item; bool."""
        first, stop = self._spans(users)
        return stop > first

    def _spans(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """Where the pairs of each user [B] begin and end."""
        first = users * self.num_items
        return torch.searchsorted(self.pairs, first), torch.searchsorted(self.pairs, first + self.num_items)

    def _of_pairs(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Whether users chose items, which broadcast, and where the pair is in `pairs`, of which there is one at least;
        of one that is not there any place."""
        wanted = users * self.num_items + items
        place = torch.searchsorted(self.pairs, wanted).clamp(max=len(self.pairs) - 1)
        return self.pairs[place] == wanted, place

    def _chosen(self, users: Tensor, of_pairs: Tensor | None = None) -> Tensor:
        """x [B, V] of users, in the dtype of `slope`; of_pairs [N]: what stands for the 1 of each of `pairs`."""
        first, stop = self._spans(users)
        counts = stop - first
        row = torch.arange(len(users), device=users.device).repeat_interleave(counts)
        place = torch.arange(len(row), device=users.device) - (counts.cumsum(0) - counts)[row] + first[row]
        chosen = torch.zeros(len(users), self.num_items, dtype=self.slope.dtype, device=users.device)
        given = 1 if of_pairs is None else of_pairs[place].to(chosen.dtype)
        chosen[row, self.pairs[place] % self.num_items] = given
        return chosen

    def _popularity(self, items: Tensor) -> Tensor:
        """log(1 + c) [B] of items: of order 1, and the log odds, but for a constant, of an item that was chosen
        against one drawn uniformly."""
        return self.item_mass[items].log1p().to(self.slope.dtype)

    def _logits(self, own: Tensor, popular: Tensor, knows: Tensor) -> Tensor:
        mine, others = self.slope[OWN] * own + self.shift[OWN], self.slope[POPULAR] * popular + self.shift[POPULAR]
        return torch.where(knows, mine, others)

    def _require_fit(self) -> None:
        require(
            self.is_fitted, f"{type(self).__name__} has learnt nothing yet. Call fit with the train rows, or load it."
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        for name in self.remembered:
            if (saved := state_dict.get(prefix + name)) is not None:
                setattr(self, name, getattr(self, name).new_empty(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *others)


def line_of(scores: np.ndarray, labels: np.ndarray, mass: np.ndarray) -> tuple[float, float]:
    """a and b that minimise the log loss of sigmoid(a s + b), with a at least `LEAST_SLOPE` deviations of s.

    scores, labels, mass: float64 [n], labels of 0 and 1, mass above 0. As Platt has it labels are (n1 + 1) / (n1 + 2)
    and 1 / (n0 + 2), so that classes which the scores part have a finite slope. The loss is convex in (a, b): Newton's
    steps, halved where they do not lower it, find its only minimum; where that has too small an a, the least loss lies
    on the bound.
    """
    weight = mass / mass.mean()  # in rows
    ones, zeros = float(weight[labels == 1].sum()), float(weight[labels != 1].sum())
    wanted = np.where(labels == 1, (ones + 1) / (ones + 2), 1 / (zeros + 2))
    mean, deviation = np.average(scores, weights=weight), float(np.sqrt(np.cov(scores, aweights=weight, ddof=0)))
    varies = deviation > 1e-9 * max(1.0, abs(float(mean)))
    unit = (scores - mean) / deviation if varies else np.zeros_like(scores)

    def loss(line: np.ndarray) -> float:
        logit = line[0] * unit + line[1]
        return float((weight * (np.logaddexp(0, logit) - wanted * logit)).sum())

    def newton(moves: np.ndarray, line: np.ndarray) -> np.ndarray:
        columns = np.stack([unit, np.ones_like(unit)])[moves]
        for _ in range(NEWTON_STEPS):
            chance = 1 / (1 + np.exp(-(line[0] * unit + line[1])))
            slope = columns @ (weight * (chance - wanted))
            curvature = (columns * (weight * chance * (1 - chance))) @ columns.T + 1e-12 * np.eye(len(columns))
            step = np.zeros(2)
            step[moves] = np.linalg.solve(curvature, slope)
            before = loss(line)
            while loss(line - step) > before and np.abs(step).max() > 1e-12:
                step /= 2
            line = line - step
            if np.abs(step).max() < 1e-10:
                break
        return line

    rate = wanted @ weight / weight.sum()
    start = np.array([LEAST_SLOPE, np.log(rate / (1 - rate))])
    line = newton(np.array([True, True]), start) if varies else newton(np.array([False, True]), start)
    if line[0] < LEAST_SLOPE:
        line = newton(np.array([False, True]), start)
    slope = line[0] / deviation if varies else 1.0
    return float(slope), float(line[1] - slope * mean)
