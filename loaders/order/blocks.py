"""Sample order of streamed tables: blocks of rows in a random order, then the rows of a few blocks at a time.

Rows that a disk reads one by one come far slower than rows that it reads in blocks. So the epoch's order is made of
two permutations that need no more than a few blocks in memory. That is not uniform over all rows: how far it is from
that is measured in `tests/loaders/order/test_block_order.py`. Tables that are streamed lie on disk in a global random
order (`gigabatch.loaders.batches.shards.write_shuffled`), so a block is a random sample of the rows, and a batch of one
epoch is as random as from a uniform permutation; what is left is that rows of one block come near each other in every
epoch.
"""

import hashlib

import numpy as np
import torch
from torch import Tensor

from gigabatch.loaders.errors import LoaderError


def derived_seed(purpose: str, *numbers: int) -> int:
    """64 bits from a purpose and numbers, so that orders made from one user's seed share nothing."""
    text = " ".join([purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _permutation(size: int, purpose: str, *numbers: int) -> np.ndarray:
    from gigabatch.loaders.kernels.gather_loops import permute

    out = np.empty(size, dtype=np.int32)
    permute(out, np.uint64(derived_seed(purpose, *numbers)))
    return out


class BlockOrder:
    """A bijection of [0, num_rows), position -> row, that depends on nothing but its arguments.

    Rows are divided into `num_lanes` contiguous lanes of equal length (up to one row); position p belongs to lane
    p mod num_lanes. So where R ranks divide num_lanes, and each takes every R-th position, each reads the blocks of
    its own lanes only, and the order does not depend on R. The rows of a step of all ranks together are the
    same for every R.

    A lane is a ring, cut into blocks of `block_rows` from an offset that is random in each epoch; what is left of the
    ring is the last, smaller block. The whole blocks are permuted, the last one stays last (another range of rows in
    every epoch). Then blocks are grouped into windows of at most `window_blocks` (as equal as can be), and rows are
    permuted uniformly within their window. All lanes have the same windows, so that window w of all lanes spans the
    same positions.

    Memory: 4 bytes for each block and for each row of a window that is being permuted.
    """

    def __init__(
        self, num_rows: int, block_rows: int, window_blocks: int, num_lanes: int, seed: int, epoch: int
    ) -> None:
        for name, value in (
            ("num_rows", num_rows),
            ("block_rows", block_rows),
            ("window_blocks", window_blocks),
            ("num_lanes", num_lanes),
        ):
            if value < 1:
                raise LoaderError(f"block order: {name} must be at least 1, found {value}.")
        if epoch < 0:
            raise LoaderError(f"block order: epoch must not be negative, found {epoch}.")
        if num_rows // block_rows >= 1 << 31 or block_rows * window_blocks >= 1 << 31:
            raise LoaderError(
                f"block order: {num_rows} rows in blocks of {block_rows} and windows of {window_blocks} blocks: there "
                "may be at most 2^31 - 1 blocks, and rows of a window. Use another size of block or smaller windows."
            )
        self.num_rows = num_rows
        self.block_rows = block_rows
        self.num_lanes = num_lanes
        self.seed = seed
        self.epoch = epoch
        self._num_blocks = -(-self.lane_rows(0) // block_rows)  # of a lane; in a shorter lane the last may be empty
        self.num_windows = -(-self._num_blocks // window_blocks)
        self._block_orders: dict[int, np.ndarray] = {}  # by lane

    def lane_rows(self, lane: int) -> int:
        """Rows of a lane; the first lanes have one more where lanes do not divide the rows."""
        return self.num_rows // self.num_lanes + (lane < self.num_rows % self.num_lanes)

    def window_of(self, lane_position: int) -> int:
        """The window in which a position of a lane is, counted within the lane."""
        block = lane_position // self.block_rows
        return ((block + 1) * self.num_windows - 1) // self._num_blocks

    def window_start(self, window: int) -> int:
        """First position of a window within each lane; of `num_windows`, the rows of the longest lane."""
        first_block = window * self._num_blocks // self.num_windows
        return min(first_block * self.block_rows, self.lane_rows(0))

    def window_rows(self, lane: int, window: int) -> int:
        """Rows of a window in one lane; a lane's last window may have none."""
        return min(self.window_start(window + 1), self.lane_rows(lane)) - self.window_start(window)

    def ranges(self, lane: int, window: int) -> list[tuple[int, int]]:
        """Rows [start, stop) of a window's blocks in one lane, block after block; one is in two where the ring ends."""
        lane_start = self._lane_start(lane)
        lane_stop = lane_start + self.lane_rows(lane)
        found = []
        for start, length in self._blocks(lane, window):
            found.append((start, min(start + length, lane_stop)))
            if start + length > lane_stop:
                found.append((lane_start, lane_start + start + length - lane_stop))
        return found

    def permutation(self, lane: int, window: int) -> np.ndarray:
        """[M] int32: for each position of a window in one lane, the number of its row in the order of `ranges`."""
        return _permutation(self.window_rows(lane, window), "rows", self.seed, self.epoch, lane, window)

    def __call__(self, positions: Tensor) -> Tensor:
        """Rows [K] int64 at `positions` [K] int64 (CPU). Costs a permutation of every window that they are in."""
        assert positions.dtype == torch.int64, positions.dtype
        given = positions.numpy()
        lanes, inside = given % self.num_lanes, given // self.num_lanes
        windows = ((inside // self.block_rows + 1) * self.num_windows - 1) // self._num_blocks
        rows = np.empty(len(given), dtype=np.int64)
        pairs, number = np.unique(windows * self.num_lanes + lanes, return_inverse=True)
        by_pair = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
        for pair, at in zip(pairs.tolist(), by_pair, strict=True):
            window, lane = divmod(pair, self.num_lanes)
            of_window = np.concatenate([np.arange(start, stop) for start, stop in self.ranges(lane, window)])
            rows[at] = of_window[self.permutation(lane, window)[inside[at] - self.window_start(window)]]
        return torch.from_numpy(rows)

    def __repr__(self) -> str:
        return (
            f"BlockOrder(num_rows={self.num_rows}, block_rows={self.block_rows}, num_windows={self.num_windows}, "
            f"num_lanes={self.num_lanes}, seed={self.seed}, epoch={self.epoch})"
        )

    def _lane_start(self, lane: int) -> int:
        return lane * (self.num_rows // self.num_lanes) + min(lane, self.num_rows % self.num_lanes)

    def _blocks(self, lane: int, window: int) -> list[tuple[int, int]]:
        """(first row, length) of a window's blocks in one lane; a block goes round the ring where it ends."""
        lane_start, lane_rows = self._lane_start(lane), self.lane_rows(lane)
        if not lane_rows:
            return []
        first, stop = (number * self._num_blocks // self.num_windows for number in (window, window + 1))
        whole = self._num_blocks - 1  # all but the last of the ring
        if lane not in self._block_orders:
            self._block_orders[lane] = _permutation(whole, "blocks", self.seed, self.epoch, lane)
        blocks = self._block_orders[lane][first:stop].tolist()
        offset = derived_seed("offset", self.seed, self.epoch, lane) % lane_rows
        found = [(offset + block * self.block_rows, self.block_rows) for block in blocks]
        if stop > whole:
            found.append((offset + whole * self.block_rows, lane_rows - whole * self.block_rows))
        return [(lane_start + start % lane_rows, length) for start, length in found if length]
