"""How one categorical column of the preprocessor is encoded."""

from __future__ import annotations

from dataclasses import dataclass

from features.operators.categorify import Categorify


@dataclass(frozen=True)
class CategorySettings:
    """min_count, max_size, oov_buckets: see `Categorify`."""

    min_count: int = 1
    max_size: int | None = None
    oov_buckets: int = 1

    def __post_init__(self) -> None:
        self.operator("the preprocessor")  # which refuses what cannot be

    def operator(self, column: str) -> Categorify:
        return Categorify(column, self.min_count, max_size=self.max_size, oov_buckets=self.oov_buckets)
