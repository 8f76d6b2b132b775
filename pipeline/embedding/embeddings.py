"""Stored embeddings of a run's users and items: where they lie, and the reader that maps them into memory.

    embeddings/latest -> <key>                 moved when a new version is whole
    embeddings/<key>/manifest.json             bundle, dtype, counts, and the checksum of every file
    embeddings/<key>/{users,items}/ids.parquet     columns `key`, the key column's values, and `row`, 0 to N - 1
                                   vectors.npy     [N, d] float32 or float16, of models with towers
                                   words.npy       [N, C + F] int32: the entity's ids, then the bits of its floats
                                   list-*.npy      of each of its lists ids, offsets and weights, where it has some
                                   rows.parquet    the newest feature row, from which all else is made; a user's
                                                   histories are those of now where the recipe knows them
                                   index/          an approximate index, where the catalogue has outgrown the exact one

They are of one bundle: `StoredEmbeddings.load` refuses those of another. `pipeline/embedding/embed.py` writes them.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from gigabatch.features.columns.content_hash import TEXT, hash_of, plain_values
from gigabatch.features.engines.arrow_columns import Lookup, one_array, to_arrow
from gigabatch.features.engines.arrow_types import is_text
from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import UNREADABLE, raise_of_system
from gigabatch.features.recipes.base import HISTORY_UNTIL
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.list_files import map_list
from gigabatch.models.retrieval import ApproximateIndex
from gigabatch.models.shelf import BEFORE, OWN
from gigabatch.pipeline.bundle import Bundle
from gigabatch.pipeline.embedding.settings import EmbeddingsError
from gigabatch.pipeline.store.artifacts import MANIFEST
from gigabatch.pipeline.store.keys import file_checksum

FORMAT = 1
STAGE, LATEST = "embeddings", "latest"
IDS, VECTORS, WORDS, ROWS, INDEX = "ids.parquet", "vectors.npy", "words.npy", "rows.parquet", "index"
KEY_TYPES = {"string": pa.string(), "int32": pa.int64(), "int64": pa.int64()}  # of keys that can be looked up
AGAIN = "Run gigabatch embed again."


def folder_of(entity: str) -> str:
    """`users` or `items`."""
    return f"{entity}s"


@dataclass(frozen=True, eq=False)
class StoredEntity:
    """N users or items, by row. Everything is mapped from the disk and must not be written to.

    name: `user` or `item`. key: the column that names one. dtype: of that column. keys: [N] its values, each once.
    words [N, C + F] int32: the entity's columns as the model takes them, in the order of its `EntityColumns`.
    vectors [N, d] float32 or float16; None where the model has no tower for them. lists: of N rows each, by their place
    among the model's lists; of a user the histories too (`kept_lists`).
    """

    name: str
    key: str
    dtype: str
    keys: pd.Series
    words: Tensor
    num_ids: int
    vectors: Tensor | None
    folder: Path
    lists: Mapping[int, JaggedColumn] = field(default_factory=dict)
    _lookup: Lookup = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_lookup", Lookup(one_array(to_arrow(self.keys))))

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def ids(self) -> Tensor:
        """[N, C] int32, a view."""
        return self.words[:, : self.num_ids]

    @property
    def floats(self) -> Tensor:
        """[N, F] float32, a view."""
        return self.words[:, self.num_ids :].view(torch.float32)

    @cached_property
    def index(self) -> ApproximateIndex | None:
        """The approximate index over the vectors, where one was built; else every item is compared (`top_k`)."""
        if self.vectors is None or not (self.folder / INDEX).is_dir():
            return None
        return ApproximateIndex.load(self.folder / INDEX, self.vectors)

    def find(self, keys: Sequence[Any] | np.ndarray | pd.Series) -> np.ndarray:
        """Row of each key, int64 [n]; -1 for null and for one that is not here.

        Raises:
            EmbeddingsError: for keys of another type than the key column's: text for numbers, or numbers for text.
        """
        try:
            values = _keys_as(KEY_TYPES[self.dtype], keys)
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            raise EmbeddingsError(
                f"{folder_of(self.name)}: keys are of type {self.dtype} (column {self.key!r}), and of those asked for "
                f"some are not ({error})."
            ) from error
        return self._lookup.positions(values).astype(np.int64)

    def require(self, keys: Sequence[Any] | np.ndarray | pd.Series) -> np.ndarray:
        """Row of each key, int64 [n], to index arrays with: the -1 of `find` would be the last row.

        Raises:
            EmbeddingsError: as `find`, and for keys that are null or not here, naming the first.
        """
        rows = self.find(keys)
        if len(places := np.flatnonzero(rows < 0)):
            raise EmbeddingsError(
                f"{folder_of(self.name)}: of {len(rows):,} keys {len(places):,} are not stored, such as "
                f"{list(keys)[places[0]]!r}. Leave them out: find gives -1 for them."
            )
        return rows

    def rows(self) -> pd.DataFrame:
        """The feature rows that all else was made from: the entity's columns and the time."""
        return load_engine("pandas").read_parquet(self.folder / ROWS).drop(columns=HISTORY_UNTIL, errors="ignore")


def _keys_as(kind: pa.DataType, keys: Sequence[Any] | np.ndarray | pd.Series) -> pa.Array:
    """Keys as text or int64, nothing lost or guessed; a whole float is the integer, as where a column holds nulls."""
    # Not to `kind` at once: Arrow cuts the fraction off a list's floats then.
    found = one_array(pa.array(keys, from_pandas=True))
    found = found.dictionary_decode() if pa.types.is_dictionary(found.type) else found
    if pa.types.is_null(found.type):
        return found.cast(kind)
    is_number = pa.types.is_integer(found.type) or pa.types.is_floating(found.type)
    if not (is_text(found.type) if pa.types.is_string(kind) else is_number):
        raise TypeError(f"found {found.type}")
    return found.cast(kind)


@dataclass(frozen=True, eq=False)
class StoredEmbeddings:
    """One version of a run's stored embeddings. user, item: None where the schema names no such columns."""

    folder: Path
    manifest: dict[str, Any]
    user: StoredEntity | None = None
    item: StoredEntity | None = None

    @classmethod
    def load(cls, folder: Path | str, bundle: Bundle, verify: bool = True) -> StoredEmbeddings:
        """A run's `embeddings/` (its latest version) or one version of it, for use with `bundle`.

        verify: read every file once and compare checksums; without it only sizes are looked at.

        Raises:
            EmbeddingsError: where there are none, they are damaged, or they were made by another bundle.
            OSError: where the system does not give a file, which may be whole.
        """
        folder = Path(folder)
        folder = (folder if (folder / MANIFEST).exists() else folder / LATEST).resolve()
        manifest = _checked_manifest(folder, verify)
        identity = bundle_identity(bundle)
        if manifest["bundle"] != identity:
            raise EmbeddingsError(
                f"embeddings {folder}: made by the bundle {manifest['bundle']}, and this one is {identity}. Vectors of "
                f"different bundles mean different things. {AGAIN}"
            )
        try:
            found = {name: _read(folder, name, entry, bundle) for name, entry in manifest["entities"].items()}
        except EmbeddingsError:
            raise
        except (*UNREADABLE, LoaderError, pa.ArrowException) as error:
            raise_of_system(error, f"embeddings {folder}")
            raise EmbeddingsError(f"embeddings {folder}: damaged ({error}). {AGAIN}") from error
        return cls(folder, manifest, **found)

    @property
    def key(self) -> str:
        """Names this version; another for other rows, another bundle or another type of number."""
        return str(self.manifest["key"])


def bundle_identity(bundle: Bundle) -> str:
    """Hash of what vectors depend on: weights, the model's settings, and how values become ids and floats.

    32 hex digits; the same for a bundle in memory and after saving and loading, on every engine and device.
    """
    model, preprocessor = bundle.model, bundle.preprocessor
    settings = asdict(model.settings) if is_dataclass(model.settings) else None  # type: ignore[arg-type]
    if settings and settings.get("numeric") == "plain":
        settings = {key: value for key, value in settings.items() if key not in ("numeric", "numeric_width")}
    if settings and settings.get("pooling") == "mean":  # what models did before there was a choice
        settings = {key: value for key, value in settings.items() if key != "pooling"}
        # as identities have it that are older than them
    if settings and not model.inputs.lists:  # of lists alone, and younger than such identities
        settings.pop("pooling", None)
    if settings:  # what models did before there was a choice
        before = {key: value for found in BEFORE.values() for key, value in found.items()}
        settings = {key: value for key, value in settings.items() if key not in before or value != before[key]}
    schema, code = preprocessor.schema, OWN.code(OWN.name_of(type(model)) or "")
    plain = {
        "model": [type(model).__name__, model.inputs.to_dict(), settings, *([code] if code else [])],
        "columns": [asdict(c) for c in schema.columns if c.role in ("categorical", "continuous")],
        "entities": [asdict(entity) for entity in schema.entities],
        "fills": {
            name: (float(fill.value), bool(fill.indicator), *(["silent"] if fill.silent else []))
            for name, fill in preprocessor.fills.items()
        },
        "scales": {
            name: (float(scale.mean), float(scale.std), *([float(scale.clip)] if scale.clip else []))
            for name, scale in preprocessor.scales.items()
        },
        "layouts": {name: asdict(vocabulary.layout) for name, vocabulary in preprocessor.vocabularies.items()},
    }
    if schema.lists:
        plain["lists"] = [asdict(column) for column in schema.lists]
    digest = hashlib.blake2b(json.dumps(plain, sort_keys=True, allow_nan=False).encode(), digest_size=16)
    for name in sorted(preprocessor.vocabularies):
        digest.update(_content(preprocessor.vocabularies[name].values))
    for name, tensor in sorted(model.state_dict().items()):
        stored = tensor.detach().cpu().contiguous()
        if name.rpartition(".")[2] == "batch_rows" and not stored:  # of a bundle from before batch norm counted them
            continue
        digest.update(f"{name} {stored.dtype} {tuple(stored.shape)}".encode())
        digest.update(stored.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _content(values: Any) -> bytes:
    """Hash of a vocabulary's values in their order, whatever form they are held in."""
    kind, arrays = plain_values(values)
    if kind == TEXT:
        return hash_of(array.tobytes() for array in arrays)
    name, dtype = ("double", "float64") if kind == "f" else ("int64", "int64")
    return hash_of((name.encode(), arrays[0].astype(dtype).tobytes()))


def _checked_manifest(folder: Path, verify: bool) -> dict[str, Any]:
    """The manifest of a version whose files are as it says."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if manifest["format"] != FORMAT:
            raise EmbeddingsError(
                f"embeddings {folder}: format {manifest['format']}, this version reads {FORMAT}. {AGAIN}"
            )
        for name, entry in manifest["files"].items():
            path = folder / name
            saved = str(entry["checksum"])
            if path.stat().st_size != entry["bytes"] or (verify and file_checksum(path, saved) != saved):
                raise EmbeddingsError(f"embeddings {folder}: {name} is not what the manifest says. {AGAIN}")
        return {name: manifest[name] for name in ("key", "bundle", "origin", "entities")} | manifest
    except FileNotFoundError as error:
        raise EmbeddingsError(f"embeddings {folder}: {error.filename} is not there. {AGAIN}") from error
    except EmbeddingsError:
        raise
    except UNREADABLE as error:
        raise_of_system(error, f"embeddings {folder}")
        raise EmbeddingsError(f"embeddings {folder}: the manifest is damaged ({error}). {AGAIN}") from error


def _read(folder: Path, name: str, entry: dict[str, Any], bundle: Bundle) -> StoredEntity:
    entity = bundle.schema.entity(name)
    columns = getattr(bundle.model.inputs, name)
    if entity is None or columns is None:
        raise EmbeddingsError(f"embeddings {folder}: the bundle names no {name}. {AGAIN}")
    own = folder / folder_of(name)
    keys = pq.read_table(own / IDS).column("key").to_pandas()
    words = map_matrix(own / WORDS, "int32")
    vectors = None if entry["dim"] is None else map_matrix(own / VECTORS, entry["dtype"])
    expected = [(len(columns.ids) + len(columns.floats), words)]
    expected += [] if vectors is None else [(entry["dim"], vectors)]
    if not all(tuple(matrix.shape) == (len(keys), width) for width, matrix in expected):
        raise EmbeddingsError(
            f"embeddings {folder}: the files of the {folder_of(name)} do not belong together. {AGAIN}"
        )
    dtype = bundle.schema.dtypes()[entity.key]
    inputs = bundle.model.inputs.lists
    lists = {
        place: map_list(own, place, inputs[place].num_ids, inputs[place].weighted) for place in entry.get("lists", ())
    }
    if any(column.num_rows != len(keys) for column in lists.values()):
        raise EmbeddingsError(
            f"embeddings {folder}: lists of the {folder_of(name)} are not of {len(keys)} rows. {AGAIN}"
        )
    return StoredEntity(name, entity.key, dtype, keys, words, len(columns.ids), vectors, own, lists)


def map_matrix(path: Path, dtype: str) -> Tensor:
    """A row-major `.npy` matrix of this type as a tensor over the mapped file, which must not be written to."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.dtype != np.dtype(dtype) or array.ndim != 2 or np.isfortran(array):
        raise EmbeddingsError(
            f"{path}: expected a row-major {dtype} matrix, found {array.dtype} {array.shape}. {AGAIN}"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array.view(np.ndarray))
