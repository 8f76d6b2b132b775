"""How vectors are stored, checked before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass

INDEXES = ("auto", "exact", "approximate")
DTYPES = ("float32", "float16")


class EmbeddingsError(ValueError):
    """Stored embeddings cannot be made, are damaged, or are those of another bundle; the message says what to do."""


@dataclass(frozen=True)
class EmbedSettings:
    """dtype: of stored vectors, float32 or float16. index: `approximate` builds one over the items, `exact` none, and
    `auto` decides by their number (`gigabatch.models.retrieval.choose_index`). recall: share of the exact top 10, and
    of the top 100, it must find.
    """

    dtype: str = "float32"
    index: str = "auto"
    recall: float = 0.95

    def __post_init__(self) -> None:
        for name, value, known in (("dtype", self.dtype, DTYPES), ("index", self.index, INDEXES)):
            if value not in known:
                raise EmbeddingsError(f"embed: unknown {name} {value!r}. Known: {', '.join(known)}.")
        if not 0 < self.recall <= 1:
            raise EmbeddingsError(f"embed: recall must be in (0, 1], found {self.recall}.")
