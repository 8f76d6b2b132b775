"""What negatives are drawn from: each user's known positives, and the mass that these leave of all ids.

Built once, on the batches' device, with some waiting for it; `negatives_reference` says how it is drawn from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.negatives.draws_reference import DrawTable

TOTAL_MASS = 1 << 61  # of all weighted ids together, before rounding: below 2^62 with it


@dataclass(frozen=True, eq=False)
class KnownPositives:
    """Each user's known items: offsets [U+1] int64 into items [M] int32, which ascend within a user."""

    offsets: Tensor
    items: Tensor

    @classmethod
    def from_pairs(cls, users: Tensor, items: Tensor, num_users: int) -> KnownPositives:
        """From one pair a row, in any order and with repetitions; whole numbers, both [N] on one device.

        num_users: `num_ids` of the users' column. Waits for the device and needs about 40 bytes a pair while it works.

        Raises:
            LoaderError: for tensors of another form; users outside [0, num_users); items outside [0, 2^31).
        """
        for name, column, stop in (("users", users, num_users), ("items", items, 1 << 31)):
            if column.dim() != 1 or column.is_floating_point() or column.dtype == torch.bool:
                raise LoaderError(
                    f"known positives: {name} must be one column of whole numbers, found {column.dtype} of shape "
                    f"{tuple(column.shape)}."
                )
            if len(column) and not (int(column.min()) >= 0 and int(column.max()) < stop):
                raise LoaderError(
                    f"known positives: {name} must be in [0, {stop}), found {int(column.min())} to {int(column.max())}."
                )
        if users.shape != items.shape or users.device != items.device:
            raise LoaderError(
                f"known positives: {len(users)} users on {users.device} and {len(items)} items on {items.device}. "
                "Give one of each for every pair, on one device."
            )
        pairs = torch.unique((users.long() << 31) | items, sorted=True)
        return cls(_offsets(pairs >> 31, num_users), (pairs & ((1 << 31) - 1)).int())

    @property
    def num_users(self) -> int:
        return len(self.offsets) - 1

    @property
    def users(self) -> Tensor:
        """The user of every item, int64 [M]."""
        counts = self.offsets.diff()
        return torch.arange(self.num_users, device=counts.device).repeat_interleave(counts, output_size=len(self.items))

    def num_left(self, drawable: Tensor) -> Tensor:
        """Of what is drawn at all (`drawable`, bool [ids]) how many each user does not know: int64 [U]."""
        drawable = drawable.to(self.items.device)
        known = self.users[drawable[self.items.long()]]
        return drawable.sum() - torch.bincount(known, minlength=self.num_users)

    def without(self, users: Tensor) -> KnownPositives:
        """As if nothing were known of the users where `users` [U] is true."""
        owners = self.users
        left = ~users[owners]
        return KnownPositives(_offsets(owners[left], self.num_users), self.items[left])

    def to(self, device: torch.device | str) -> KnownPositives:
        return KnownPositives(self.offsets.to(device), self.items.to(device))


def _offsets(users: Tensor, num_users: int) -> Tensor:
    """Where each user begins in the ascending `users` [M] int64, and M: int64 [U+1]."""
    return torch.searchsorted(users, torch.arange(num_users + 1, device=users.device))


def _longest(offsets: Tensor) -> int:
    return int(offsets.diff().max()) if len(offsets) > 1 else 0


def _checked_counts(counts: Tensor, item_ids: range) -> Tensor:
    """The counts of `item_ids` as float64 on the CPU."""
    if counts.dim() != 1 or counts.is_complex() or not len(counts) >= item_ids.stop > 0:
        raise LoaderError(
            f"negatives: counts must have one number for each id of the column, here {item_ids.stop} or more, found "
            f"shape {tuple(counts.shape)}."
        )
    values = counts[item_ids.start : item_ids.stop].cpu().double()
    if not bool((values.isfinite() & (values >= 0)).all()):
        raise LoaderError("negatives: counts must be finite and not negative.")
    return values


def masses_of(counts: Tensor, power: float, item_ids: range) -> Tensor:
    """counts ** power as whole numbers (int64 [V], CPU) with a sum near `TOTAL_MASS`; at least 1 where an id occurs."""
    _check_item_ids(item_ids)
    values = _checked_counts(counts, item_ids)
    weights = torch.where(values > 0, values**power, 0)
    total = float(weights.sum())
    if not (math.isfinite(total) and total > 0):
        raise LoaderError(
            f"negatives: counts to the power {power} add up to {total} over ids {item_ids.start} to "
            f"{item_ids.stop - 1}. Give counts of which one is positive, and a finite power."
        )
    masses = (weights * (TOTAL_MASS / total)).floor().long()
    return torch.where(weights > 0, masses.clamp_min(1), 0)


def _check_item_ids(item_ids: range) -> None:
    if item_ids.step != 1 or len(item_ids) == 0 or not 0 <= item_ids.start < item_ids.stop < 1 << 31:
        raise LoaderError(
            f"negatives: item_ids must be a range of ids from 0 with step 1 that is not empty, found {item_ids}. For a "
            "column's vocabulary it is range(LAYOUT.first, num_ids)."
        )


def draw_table(
    item_ids: range, known: KnownPositives | None, masses: Tensor | None, num_needed: int, device: torch.device
) -> DrawTable:
    """See `DrawTable`; `LoaderError` for a user who is left with fewer than `num_needed` ids (any, if weighted)."""
    _check_item_ids(item_ids)
    if known is None:
        known = KnownPositives(torch.zeros(2, dtype=torch.int64), torch.zeros(0, dtype=torch.int32)).to(device)
    low, num_ids = item_ids.start, len(item_ids)
    inside = (known.items >= low) & (known.items < item_ids.stop)
    users, items = known.users[inside], known.items[inside]
    offsets = _offsets(users, known.num_users)
    cumulative = mass_before = torch.zeros(1, dtype=torch.int64, device=device)
    log_item = torch.zeros(1, device=device)
    guide, guide_shift = torch.zeros(1, dtype=torch.int32, device=device), 0
    if masses is None:
        total, allowed = 1, num_ids - offsets.diff()
    else:
        masses = masses.to(device)
        cumulative = torch.cat([cumulative, masses.cumsum(0)])
        total = int(cumulative[-1])
        # Sums over many users may pass 2^63; differences of them within a user are right modulo 2^64 and below 2^62.
        known_mass = torch.cat([mass_before, masses[items - low].cumsum(0)])
        allowed = total - known_mass[offsets].diff()
        mass_before = cumulative[items - low] - (known_mass[:-1] - known_mass[offsets[users]])
        log_item = (masses.double() / total).log().float()
        guide_shift = max(0, total.bit_length() - num_ids.bit_length())
        marks = torch.arange((total >> guide_shift) + 2, device=device) << guide_shift
        guide = torch.searchsorted(cumulative[1:], marks, right=True).clamp_max(num_ids - 1).int()
    if bool((allowed < num_needed).any()):
        user = int((allowed < num_needed).to(torch.uint8).argmax())
        num_known = int(offsets[user + 1] - offsets[user])
        raise LoaderError(
            f"negatives: user {user} has {num_known} known positives among the {num_ids} ids {low} to "
            f"{item_ids.stop - 1}, which leaves too few to draw {num_needed} from. Leave the pairs of such a user out "
            "of the known positives (train.negatives.exclude_known=false; the null and the "
            "unseen user are many people), or its rows out of training."
        )
    return DrawTable(
        low=low,
        offsets=offsets,
        items=_at_least_one(items),
        allowed=allowed,
        log_allowed=(allowed.double() / total).log().float(),
        mass_before=_at_least_one(mass_before),
        cumulative=cumulative,
        log_item=log_item,
        guide=guide,
        longest=_longest(offsets),
        widest=_longest(guide),
        guide_shift=guide_shift,
        weighted=masses is not None,
    )


def _at_least_one(values: Tensor) -> Tensor:
    """`values`, or one 0 in place of none, so that it can be indexed where nothing is looked up."""
    return values if len(values) else values.new_zeros(1)
