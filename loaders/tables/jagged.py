"""Lists of any length as flat arrays: all rows' ids one after the other, and where each row's begin.

Shapes: B rows, T ids of all rows together.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from gigabatch.loaders.errors import LoaderError

INT32_MAX = torch.iinfo(torch.int32).max


class JaggedColumn(NamedTuple):
    """The lists of a column, one a row, without padding.

    Parameters
    ----------
    ids
        int32 [T]: the ids of row 0, then those of row 1, and so on; within a row in the order of its list.
    offsets
        int64 [B+1], on the device of `ids`: row b has ids[offsets[b] : offsets[b + 1]]. The first is 0, the last T.
    weights
        float32 [T], one for each id; None where the column has none.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.loaders.tables.jagged import JaggedColumn
    >>> tags = JaggedColumn(torch.tensor([3, 4, 3], dtype=torch.int32), torch.tensor([0, 2, 2, 3]))
    >>> tags.to_lists()
    [[3, 4], [], [3]]
    >>> tags.rows(torch.tensor([2, 0])).to_lists()
    [[3], [3, 4]]
    """

    ids: Tensor
    offsets: Tensor
    weights: Tensor | None = None

    @property
    def num_rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_bytes(self) -> int:
        """Memory of the arrays."""
        return sum(part.numel() * part.element_size() for part in self if part is not None)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "JaggedColumn":
        """This column on `device`."""
        ids, offsets = (part.to(device, non_blocking=non_blocking) for part in (self.ids, self.offsets))
        weights = None if self.weights is None else self.weights.to(device, non_blocking=non_blocking)
        return JaggedColumn(ids, offsets, weights)

    def rows(self, places: Tensor) -> "JaggedColumn":
        """The lists of these rows, in this order, in memory of their own.

        Parameters
        ----------
        places
            Whole numbers [B] in [0, num_rows), on the device of the column.

        Returns
        -------
        JaggedColumn
            Of B rows. On a GPU the host waits once, for the number of their ids.

        Raises
        ------
        LoaderError
            On CPU, for a place outside the column; a GPU does not check it.
        """
        places = places.long()
        if places.device.type == "cpu" and len(places):
            low, high = (int(end) for end in places.aminmax())
            if low < 0 or high >= self.num_rows:
                raise LoaderError(
                    f"lists: row {low if low < 0 else high} was asked for and there are {self.num_rows}. The packed "
                    "rows and their lists are of different tables, or damaged: run the encode stage again."
                )
        starts = self.offsets[places]
        lengths = self.offsets[places + 1] - starts
        offsets = torch.zeros(len(places) + 1, dtype=torch.int64, device=lengths.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        total = int(offsets[-1])
        shift = torch.repeat_interleave(starts - offsets[:-1], lengths, output_size=total)
        chosen = shift + torch.arange(total, device=lengths.device)
        return JaggedColumn(self.ids[chosen], offsets, None if self.weights is None else self.weights[chosen])

    def repeat(self, times: int) -> "JaggedColumn":
        """Each row so many times, one after the other: row b is rows [b * times, (b + 1) * times).

        In memory of its own. As the number of ids follows from that of this column, no GPU is waited for.
        """
        lengths = self.offsets.diff().repeat_interleave(times, output_size=self.num_rows * times)
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=lengths.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        total = len(self.ids) * times
        starts = self.offsets[:-1].repeat_interleave(times, output_size=len(lengths))
        shift = torch.repeat_interleave(starts - offsets[:-1], lengths, output_size=total)
        chosen = shift + torch.arange(total, device=lengths.device)
        return JaggedColumn(self.ids[chosen], offsets, None if self.weights is None else self.weights[chosen])

    def slice(self, start: int, stop: int) -> "JaggedColumn":
        """The lists of rows [start, stop): views of this column's ids and weights."""
        offsets = self.offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        weights = None if self.weights is None else self.weights[first:last]
        return JaggedColumn(self.ids[first:last], offsets - first, weights)

    def to_lists(self) -> list[list[int]]:
        """The ids of each row, as Python's lists."""
        ids, ends = self.ids.tolist(), self.offsets.tolist()
        return [ids[start:stop] for start, stop in pairwise(ends)]

    @classmethod
    def concat(cls, parts: Sequence["JaggedColumn"]) -> "JaggedColumn":
        """The rows of all parts, one part after the other; all have weights, or none. At least one part."""
        counts = [part.offsets.diff() for part in parts]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64, device=counts[0].device), torch.cat(counts).cumsum(0)])
        weights = None if parts[0].weights is None else torch.cat([_weights(part) for part in parts])
        return cls(torch.cat([part.ids for part in parts]), offsets, weights)

    @classmethod
    def empty(cls, num_rows: int, weighted: bool = False, device: torch.device | str | None = None) -> "JaggedColumn":
        """So many rows without an id."""
        weights = torch.zeros(0, device=device) if weighted else None
        ids = torch.zeros(0, dtype=torch.int32, device=device)
        return cls(ids, torch.zeros(num_rows + 1, dtype=torch.int64, device=device), weights)

    def require_fit(self, label: str, num_ids: int, weighted: bool) -> None:
        """Raise `LoaderError` unless arrays, offsets, ids and weights are what the class says and ids lie in
        [0, num_ids). Reads all of it. label: names the column in errors."""
        wanted = {"ids": (self.ids, torch.int32), "offsets": (self.offsets, torch.int64)}
        if self.weights is not None:
            wanted["weights"] = (self.weights, torch.float32)
        for name, (part, dtype) in wanted.items():
            if part.dtype != dtype or part.dim() != 1:
                raise LoaderError(
                    f"{label}: {name} are one column of {dtype}, found {part.dtype} of shape {tuple(part.shape)}."
                )
        if weighted != (self.weights is not None):
            raise LoaderError(f"{label}: the schema says {'that' if weighted else 'no'} weights come with the ids.")
        if len(self.offsets) == 0 or int(self.offsets[0]) != 0 or int(self.offsets[-1]) != len(self.ids):
            ends = self.offsets[[0, -1]].tolist() if len(self.offsets) else "none"
            raise LoaderError(f"{label}: offsets go from 0 to the {len(self.ids)} ids, found {ends}.")
        falling = self.offsets.diff() < 0
        if bool(falling.any()):
            raise LoaderError(f"{label}: offsets do not ascend, first after row {int(falling.byte().argmax())}.")
        if len(self.ids):
            low, high = (int(end) for end in self.ids.aminmax())
            if low < 0 or high >= num_ids:
                raise LoaderError(f"{label}: ids must be in [0, {num_ids}), found {low} to {high}.")
        if self.weights is not None:
            if len(self.weights) != len(self.ids):
                raise LoaderError(f"{label}: {len(self.weights)} weights for {len(self.ids)} ids.")
            if not bool(self.weights.isfinite().all()):
                raise LoaderError(f"{label}: weights must be finite.")


def equal_rows(one: JaggedColumn, other: JaggedColumn) -> Tensor:
    """bool [B]: which rows of two columns of B rows are the same list, in order, with the same weights."""
    lengths = one.offsets.diff()
    equal = lengths == other.offsets.diff()
    alike = equal.nonzero()[:, 0]
    mine, theirs = one.rows(alike), other.rows(alike)
    differs = mine.ids != theirs.ids
    if mine.weights is not None:
        differs |= mine.weights != _weights(theirs)
    owners = alike.repeat_interleave(lengths[alike])
    equal[owners[differs]] = False
    return equal


def _weights(part: JaggedColumn) -> Tensor:
    assert part.weights is not None, "all parts have weights, or none"
    return part.weights
