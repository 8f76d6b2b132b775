"""Which positions of an epoch each rank takes at each step: arithmetic, the same on every machine."""

from dataclasses import dataclass

from gigabatch.loaders.errors import LoaderError, whole_number


@dataclass(frozen=True)
class RankBatches:
    """The batches of one rank: `batch_size` positions a step, of the `batch_size * num_ranks` that all take together.

    Step s of all ranks is positions [s G, (s+1) G) of the epoch's order, G = `global_batch_size`, and rank r takes the
    r-th contiguous part of them. So which rows a step holds depends on G and not on the number of ranks.

    Every rank has the same number of steps, whatever the number of rows. Where G does not divide them, `drop_last`
    leaves the rest of an epoch out; otherwise the ranks share it as one more step in parts that differ by at most one
    row, so every row comes exactly once. Of fewer rows than ranks some of these parts have none: their ranks get a
    batch of 0 rows, and still take the step, so that no other rank waits for them in vain.

    step_rows: G where the ranks do not divide it; `batch_size` is then the largest part, G / num_ranks rounded up.
    """

    num_rows: int
    batch_size: int
    rank: int = 0
    num_ranks: int = 1
    drop_last: bool = False
    step_rows: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "rank", "num_ranks", *(["step_rows"] if self.step_rows is not None else [])):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if self.batch_size < 1:
            raise LoaderError(f"batch_size must be at least 1, found {self.batch_size}.")
        if self.num_ranks < 1 or not 0 <= self.rank < self.num_ranks:
            raise LoaderError(
                f"rank must be in [0, num_ranks), found rank {self.rank} of num_ranks {self.num_ranks}. "
                "Give both as the launcher numbers its processes."
            )
        if self.step_rows is not None and -(-self.step_rows // self.num_ranks) != self.batch_size:
            raise LoaderError(
                f"step_rows={self.step_rows} on {self.num_ranks} ranks are batches of "
                f"{-(-self.step_rows // self.num_ranks)} rows at most, not of {self.batch_size}."
            )
        if self.num_rows == 0:
            raise LoaderError("the packed table has no rows. Check the split or the filters that made it.")
        if self.drop_last and self.num_rows < self.global_batch_size:
            ranks = f" on each of {self.num_ranks} ranks" if self.num_ranks > 1 else ""
            raise LoaderError(
                f"drop_last leaves no batch: the table has {self.num_rows} rows and batch_size is {self.batch_size}"
                f"{ranks}. Choose a smaller batch_size or keep the last batch."
            )

    @property
    def global_batch_size(self) -> int:
        """Rows of a step of all ranks together."""
        return self.batch_size * self.num_ranks if self.step_rows is None else self.step_rows

    @property
    def num_steps(self) -> int:
        """Steps of an epoch, the same on every rank."""
        size = self.global_batch_size
        return self.num_rows // size if self.drop_last else -(-self.num_rows // size)

    def positions(self, step: int) -> tuple[int, int]:
        """[start, stop): this rank's positions of the epoch's order at `step` in [0, num_steps)."""
        if not 0 <= step < self.num_steps:
            raise IndexError(f"batch {step} of {self.num_steps}: indices go from 0 to {self.num_steps - 1}.")
        first = step * self.global_batch_size
        shared = min(self.global_batch_size, self.num_rows - first)
        return first + shared * self.rank // self.num_ranks, first + shared * (self.rank + 1) // self.num_ranks
