"""Negative samples, drawn where the batch lies and never a known positive of the row's user.

Every draw is a pure function of (seed, epoch, position, number of the draw), bit-equal in its three versions: plain
torch (`negatives_reference`), numba on all cores (`negatives_cpu`) and Triton (`negatives_cuda`). Nothing waits for the
device. A user here is whatever negatives are kept apart by: the id of a user, or of a user in a context.

Shapes: B rows, K negatives each, U users.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.kernels.threads import start_threads
from gigabatch.loaders.negatives.table import KnownPositives, draw_table, masses_of
from gigabatch.loaders.order.order import start_state
from gigabatch.loaders.tables.packed import Batch

VERSIONS = ("reference", "cpu", "cuda")
_PURPOSE = 0x6E65676174697665  # keeps these numbers apart from those of a sample order with the same seed


class Negatives(NamedTuple):
    """Draws for B rows.

    ids [B, K] int32. log_q [B, K] float32: the logarithm of an id's probability in one draw for its row, which a
    sampled softmax takes off its logits (Bengio and Senecal 2008; Yi et al. 2019).
    """

    ids: Tensor
    log_q: Tensor


class NegativeSampler:
    """What all samplers share; use `UniformNegatives` or `PopularityNegatives`.

    device: where the batches lie. version: "reference", "cpu" or "cuda"; the device's own by default.
    log_shares: [ids] float32, the logarithm of each id's share of all draws, whoever it is drawn for; None where each
    is as likely as any other.
    """

    def __init__(
        self,
        item_ids: range,
        num_negatives: int,
        masses: Tensor | None,
        known: KnownPositives | None,
        replacement: bool,
        seed: int,
        device: torch.device | str,
        version: str | None,
    ) -> None:
        if num_negatives < 1:
            raise LoaderError(f"negatives: num_negatives must be at least 1, found {num_negatives}.")
        self.num_negatives = num_negatives
        self.replacement = replacement
        self.seed = seed
        self.device = torch.device(device)
        self.known = None if known is None else known.to(self.device)
        self.use_version(version)
        self.log_shares = None if masses is None else _log_shares(masses, item_ids).to(self.device)
        self._table = draw_table(item_ids, self.known, masses, 1 if replacement else num_negatives, self.device)
        self._start = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.set_epoch(0)

    def use_version(self, version: str | None) -> None:
        """Draw with this version from now on; None for the device's own."""
        self._kernels = _kernels(version, self.device)

    def set_epoch(self, epoch: int) -> None:
        """Draw what belongs to this epoch from now on, also in a CUDA graph captured before."""
        self.epoch = epoch
        if epoch < 0:
            raise LoaderError(f"negatives: epoch must not be negative, found {epoch}.")
        self._start.fill_(start_state(self.seed ^ _PURPOSE, epoch))

    def __call__(self, positions: Tensor, users: Tensor | None = None) -> Negatives:
        """Draws for rows at positions [B] int64 of the epoch's order, counted over all ranks (`RankBatches.positions`),
        so that a row's negatives depend neither on the batch size nor on the number of ranks.

        users: [B] int32, needed where positives are known.
        """
        if self.known is None:  # user 0, who knows nothing
            users = torch.zeros(len(positions), dtype=torch.int32, device=self.device)
        if users is None:
            raise LoaderError("negatives: known positives are to be left out, so give the users of the rows.")
        for name, given, dtype in (("positions", positions, torch.int64), ("users", users, torch.int32)):
            if given.dtype != dtype or given.shape != (len(positions),):
                raise LoaderError(
                    f"negatives: {name} must be [rows] {dtype}, found {list(given.shape)} {given.dtype} for "
                    f"{len(positions)} rows."
                )
        drawn = self._kernels.draw(self._table, self._start, positions, users, self.num_negatives, self.replacement)
        return Negatives(*drawn)


class UniformNegatives(NegativeSampler):
    """Draws ids for each row, each id that is not a known positive of the row's user as likely as any other.

    The r-th id that is not a positive is found by binary search, so there is no rejection and no round to bound. Draws
    are a pure function of (seed, epoch, a row's position).

    Parameters
    ----------
    item_ids : range
        The ids to draw from, `range(LAYOUT.first, num_ids)` for the vocabulary of a column.
    num_negatives : int
        K, draws for each row.
    known : KnownPositives or None, default None
        What is not drawn for each user; None where nothing is known.
    replacement : bool, default True
        Whether an id may come twice in a row; without, each set of K ids is equally likely, and log_q is that of one
        draw.
    seed : int, default 0
        Of the draws.
    device : torch.device or str, default 'cpu'
        Where the batches lie.
    version : {'reference', 'cpu', 'cuda'} or None, default None
        Of the kernel; the device's own by default. All give the same ids.

    Raises
    ------
    LoaderError
        Naming the first user with no allowed id, or without replacement fewer than `num_negatives`.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.loaders.negatives.draws import KnownPositives, UniformNegatives
    >>> known = KnownPositives.from_pairs(users=torch.tensor([0, 0, 1]), items=torch.tensor([3, 4, 5]), num_users=2)
    >>> sampler = UniformNegatives(range(3, 6), num_negatives=4, known=known)
    >>> drawn = sampler(positions=torch.arange(2), users=torch.tensor([0, 1], dtype=torch.int32))
    >>> drawn.ids[0].tolist(), drawn.ids.shape  # user 0 knows 3 and 4
    ([5, 5, 5, 5], torch.Size([2, 4]))
    """

    def __init__(
        self,
        item_ids: range,
        num_negatives: int,
        known: KnownPositives | None = None,
        replacement: bool = True,
        seed: int = 0,
        device: torch.device | str = "cpu",
        version: str | None = None,
    ) -> None:
        super().__init__(item_ids, num_negatives, None, known, replacement, seed, device, version)


class PopularityNegatives(NegativeSampler):
    """Ids in proportion to counts ** power among those that are not known positives of the row's user: exactly this
    conditional distribution, by inverting its sums, with replacement and without rejection.

    counts: [num_ids], how often each id occurs, for example `torch.bincount(ids, minlength=num_ids)` of the train
    table; an id that does not occur is never drawn. power: 0.75 is word2vec's (Mikolov et al. 2013). Probabilities are
    multiples of about 2^-61; log_q is that of these multiples.

    Raises:
        LoaderError: naming the first user with no allowed id; for counts of another form.
    """

    def __init__(
        self,
        item_ids: range,
        num_negatives: int,
        counts: Tensor,
        power: float = 0.75,
        known: KnownPositives | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        version: str | None = None,
    ) -> None:
        masses = masses_of(counts, power, item_ids)
        super().__init__(item_ids, num_negatives, masses, known, True, seed, device, version)


def _log_shares(masses: Tensor, item_ids: range) -> Tensor:
    """The logarithm of masses [V] over their sum, of the ids from 0; one that is never drawn has the least share."""
    found = torch.ones(item_ids.stop, dtype=torch.float64)
    found[item_ids.start :] = masses.clamp_min(1).double()
    return (found / masses.sum()).log().float()


def expand(batch: Batch, negatives: Tensor, item_column: int, positions: Tensor) -> Batch:
    """Positives [B] and their negative ids [B, K] as one batch of B (1 + K) rows: each positive, then its negatives.

    A negative has the ids, floats and weight of its positive, with `negatives` in ids column `item_column`; target 1
    for positives and 0 for negatives; group is the positive's place in the epoch, `positions` [B] int64, as int32.

    Raises:
        LoaderError: for a batch with several targets, which a sampled negative has no values for.
    """
    if len(batch.targets) > 1:
        raise LoaderError(f"expand: negatives have one target, 1 or 0, and the batch has {len(batch.targets)}.")
    num_rows, copies = negatives.shape[0], 1 + negatives.shape[1]

    def repeated(column: Tensor) -> Tensor:
        """[B, ...] as [B (1 + K), ...], in memory of its own."""
        return column[:, None].expand(-1, copies, *column.shape[1:]).flatten(0, 1).contiguous()

    ids = repeated(batch.ids)
    ids.view(num_rows, copies, ids.shape[1])[:, 1:, item_column] = negatives
    target = torch.zeros((num_rows, copies), device=negatives.device)
    target[:, 0] = 1
    weight = None if batch.weight is None else repeated(batch.weight)
    group = repeated(positions.int())
    return Batch(ids, repeated(batch.floats), (target.flatten(),), weight, group, copies=copies)


def _kernels(version: str | None, device: torch.device) -> ModuleType:
    """The module that draws on `device`: its compiled version, or the one that `version` names."""
    chosen = version or ("cuda" if device.type == "cuda" else "cpu")
    if chosen not in VERSIONS:
        raise LoaderError(f"negatives: unknown version {chosen!r}. Known: {', '.join(VERSIONS)}.")
    if chosen not in ("reference", device.type):
        raise LoaderError(
            f"negatives: the {chosen} version cannot draw on {device.type}. Use that device or `reference`."
        )
    try:
        if chosen == "cpu":
            start_threads()
        return import_module(f"gigabatch.loaders.negatives.draws_{chosen}")
    except ImportError as error:
        raise LoaderError(
            f"negatives: the {chosen} version needs {error.name}, which is not installed. Install it, or ask for the "
            "version `reference`."
        ) from error
