"""Writing the stored embeddings of one bundle's users or items: rows, model inputs, vectors, and an index over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy_format
from torch import Tensor

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.schema import Entity
from gigabatch.loaders.tables.jagged import JaggedColumn, equal_rows
from gigabatch.loaders.tables.list_files import save_list
from gigabatch.models.inputs import EntityColumns
from gigabatch.models.layers.pooled import Jagged
from gigabatch.models.model import Model, tower_vectors
from gigabatch.models.retrieval import ApproximateIndex, choose_index
from gigabatch.pipeline.bundle import BLOCK_ROWS, Bundle, frame_lists, model_outputs
from gigabatch.pipeline.embedding.embeddings import (
    IDS,
    INDEX,
    ROWS,
    VECTORS,
    WORDS,
    EmbeddingsError,
    StoredEntity,
    folder_of,
    map_matrix,
)
from gigabatch.pipeline.embedding.entities import feature_rows, kept_lists

INDEXES = ("auto", "exact", "approximate")
DTYPES = {"float32": torch.float32, "float16": torch.float16}
ROWS_AT_ONCE = 4 * BLOCK_ROWS
INDEX_QUERIES = 256  # users with which an index's recall is measured


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


def write_entity(
    folder: Path, bundle: Bundle, name: str, frame: Any, settings: EmbedSettings, old: StoredEntity | None
) -> dict[str, Any]:
    """The files of all users or items; returns their entry in the manifest. old: what may be taken over."""
    entity, engine = bundle.schema.entity(name), engine_of(frame)
    columns: EntityColumns = getattr(bundle.model.inputs, name)
    assert entity is not None
    if len(frame) == 0:
        raise EmbeddingsError(f"embed: there are no {folder_of(name)}, every row's {entity.key!r} is null.")
    folder.mkdir()
    engine.write_parquet(frame, folder / ROWS)
    numbers = engine.series(engine.arrays.arange(len(frame), dtype="int64"), frame)
    engine.write_parquet(engine.frames.DataFrame({"key": frame[entity.key], "row": numbers}), folder / IDS)
    tower = Tower(bundle.model, name) if has_tower(bundle.model, name) else None
    reusable = old if old is not None and old.vectors is not None and _dtype_of(old) == settings.dtype else None
    num_ids = len(bundle.schema.names("categorical"))
    places = [*columns.ids, *(num_ids + place for place in columns.floats)]
    names = [column.name for column in bundle.schema.lists]
    list_places = [names.index(column.name) for column in kept_lists(bundle.schema, entity)]
    parts: dict[int, list[JaggedColumn]] = {place: [] for place in list_places}
    computed = 0
    with MatrixWriter(folder / WORDS, len(frame)) as words, MatrixWriter(folder / VECTORS, len(frame)) as vectors:
        for start, packed, lists in _packed(bundle, entity, frame):
            own = packed[:, places].cpu()
            words.append(own)
            for place, found in parts.items():
                found.append(lists[place])
            if tower is not None:
                kept = _unchanged(own, {place: lists[place] for place in list_places}, start, reusable)
                changed = (~kept).nonzero()[:, 0]
                rows, own_lists = packed[changed.to(packed.device)], [column.rows(changed) for column in lists]
                fresh = _vectors(tower, rows, own_lists, num_ids, bundle.device, settings.dtype)
                vectors.append(_merged(kept, fresh, start, reusable))
                computed += len(fresh)
    for place, found in parts.items():
        save_list(folder, place, JaggedColumn.concat(found))
    return {
        "rows": len(frame),
        "computed": computed,
        "dim": vectors.width,
        "dtype": settings.dtype if tower is not None else None,
        "columns": list(entity.columns),
        "index": None,
    } | ({"lists": list_places} if list_places else {})


def _packed(bundle: Bundle, entity: Entity, frame: Any) -> Iterator[tuple[int, Tensor, tuple[JaggedColumn, ...]]]:
    """Number of the first row, whole rows as words [n, W] int32, and all their lists on the host, block by block."""
    for start in range(0, len(frame), ROWS_AT_ONCE):
        rows = feature_rows(bundle.schema, entity, frame.iloc[start : start + ROWS_AT_ONCE])
        words = torch.from_dlpack(bundle.preprocessor.pack(rows, targets=False))
        yield start, words, frame_lists(bundle.preprocessor, rows)


def _unchanged(own: Tensor, lists: Mapping[int, JaggedColumn], start: int, old: StoredEntity | None) -> Tensor:
    """bool [n]: which rows of words and lists, from row `start` on, are those of `old`."""
    kept = torch.zeros(len(own), dtype=torch.bool)
    if old is not None and start < len(old) and lists.keys() == old.lists.keys():
        before = old.words[start : start + len(own)]
        kept[: len(before)] = (own[: len(before)] == before).all(1)
        for place, column in lists.items():
            stored = old.lists[place].slice(start, start + len(before))
            kept[: len(before)] &= equal_rows(column.slice(0, len(before)), stored)
    return kept


def _merged(kept: Tensor, fresh: Tensor, start: int, old: StoredEntity | None) -> Tensor:
    """Vectors of a block: old ones where rows were kept, fresh ones in the other places."""
    if old is None or old.vectors is None or not bool(kept.any()):
        return fresh
    vectors = torch.empty((len(kept), old.vectors.shape[1]), dtype=old.vectors.dtype)
    vectors[kept] = old.vectors[start + kept.nonzero()[:, 0]]
    if len(fresh):
        vectors[~kept] = fresh
    return vectors


def _dtype_of(entity: StoredEntity) -> str:
    return str(entity.vectors.dtype).removeprefix("torch.") if entity.vectors is not None else ""


def has_tower(model: Model, entity: str) -> bool:
    """Whether the model gives vectors of this entity: has a method `user_vectors` or `item_vectors`."""
    return callable(getattr(model, f"{entity}_vectors", None))


class Tower(Model):
    """A model that is one entity's tower of another, for what takes models."""

    def __init__(self, model: Model, entity: str) -> None:
        super().__init__(model.inputs, model.settings)
        self.model, self.entity = model, entity
        self.training = model.training

    def forward(self, ids: Tensor, floats: Tensor, lists: Sequence[Jagged] = ()) -> Tensor:
        """[B, d] float32."""
        return tower_vectors(self.model, self.entity, ids, floats, lists)


def _vectors(
    tower: Tower, rows: Tensor, lists: Sequence[JaggedColumn], num_ids: int, device: str, dtype: str
) -> Tensor:
    """[n, d] in the dtype that is stored, on the host, of rows of words [n, W] and lists; [0, 0] for no rows."""
    if len(rows) == 0:
        return torch.empty((0, 0), dtype=DTYPES[dtype])
    rows = rows.to(device)
    ids, floats = rows[:, :num_ids], rows[:, num_ids:].view(torch.float32)
    outputs = model_outputs(tower, ids, floats, [column.to(device) for column in lists])
    found = torch.cat([part.to(DTYPES[dtype]).cpu() for part in outputs])
    if not bool(found.isfinite().all()):
        raise EmbeddingsError(
            f"embed: vectors of {folder_of(tower.entity)} hold NaN or numbers that {dtype} has no room for. "
            + ("Store them as float32." if dtype == "float16" else "The model has diverged: train it again.")
        )
    return found


class MatrixWriter:
    """A `.npy` matrix of `num_rows` rows, appended block by block; no file where nothing is appended.

    Plain writes rather than a memory map: a full disk is then an `OSError`, where a map would end the process.
    """

    def __init__(self, path: Path, num_rows: int) -> None:
        self.path, self.num_rows = path, num_rows
        self.width: int | None = None
        self._file: Any = None
        self._open = ExitStack()

    def append(self, block: Tensor) -> None:
        """Rows [n, width] on the host."""
        array = block.numpy()
        if self._file is None:
            self.width = array.shape[1]
            self._file = self._open.enter_context(self.path.open("wb"))
            descr = npy_format.dtype_to_descr(array.dtype)
            header = {"descr": descr, "fortran_order": False, "shape": (self.num_rows, self.width)}
            npy_format.write_array_header_1_0(self._file, header)
        self._file.write(np.ascontiguousarray(array).data)

    def __enter__(self) -> MatrixWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def write_index(
    folder: Path, entities: dict[str, dict[str, Any]], settings: EmbedSettings, device: str
) -> dict[str, Any] | None:
    """An approximate index over the items, if it is asked for or pays; its report, or None."""
    rows, dim = entities["item"]["rows"], entities["item"]["dim"]
    if dim is None:
        if settings.index == "approximate":
            raise EmbeddingsError(
                "embed: this model has no item vectors to index. Use index=auto, or a two_tower. An ensemble has none: "
                "vectors of its members are of different spaces (train.ensemble=1)."
            )
        return None
    if settings.index == "auto" and choose_index(rows, dim, device) == "exact":
        return None
    own = folder / folder_of("item")
    items = map_matrix(own / VECTORS, entities["item"]["dtype"])
    has_users = entities.get("user", {}).get("dim") == dim
    asking = map_matrix(folder / folder_of("user") / VECTORS, entities["user"]["dtype"]) if has_users else items
    queries = asking[:: -(-len(asking) // INDEX_QUERIES)].float()
    index = ApproximateIndex.build(items, queries, recall=settings.recall)
    index.save(own / INDEX)
    return asdict(index.report)
