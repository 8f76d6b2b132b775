"""The stage `embed`: vectors and model inputs of every user and item of a run's bundle, stored for request time.

A version is an artifact under the run's folder (`pipeline/embedding/embeddings.py` says what lies where), so it is
whole or not there, and one that exists is not made again. `gigabatch embed --update FILES` starts from the version
before: rows that are as they were keep their vectors, and the others' are computed. Keys, rows and model inputs are
then, bit for bit, those of a run over all rows, and vectors are equal to its own within `SCORE_RTOL` and `SCORE_ATOL`
(models/model.py).
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from gigabatch.features.engines.frame import engine_of, load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import PARQUET_ENDINGS, cast, expand
from gigabatch.features.recipes import recipe_class
from gigabatch.features.recipes.base import HISTORY_UNTIL, Recipe
from gigabatch.features.schema import Schema
from gigabatch.pipeline.bundle import Bundle, load_bundle
from gigabatch.pipeline.display import render_table
from gigabatch.pipeline.embedding.embed_write import write_entity, write_index
from gigabatch.pipeline.embedding.embeddings import (
    FORMAT,
    KEY_TYPES,
    LATEST,
    ROWS,
    STAGE,
    EmbeddingsError,
    StoredEmbeddings,
    bundle_identity,
    folder_of,
)
from gigabatch.pipeline.embedding.entities import NewestRows, kept_columns, kept_lists
from gigabatch.pipeline.embedding.settings import EmbedSettings
from gigabatch.pipeline.runs.find import find_run
from gigabatch.pipeline.stages.asked import AskedFeatures, ask_features
from gigabatch.pipeline.stages.stages import Features, Pipeline
from gigabatch.pipeline.store.artifacts import Artifact, ArtifactStore, artifacts_newest_first
from gigabatch.pipeline.store.files import ArtifactError, atomic_symlink
from gigabatch.pipeline.store.keys import artifact_key, input_checksums, require_same_inputs, source_hash
from gigabatch.pipeline.store.locks import folder_lock
from gigabatch.pipeline.store.parsed_files import ParsedFiles

log = logging.getLogger(__name__)
SOURCES = [
    "gigabatch.features",
    "gigabatch.loaders.tables.jagged",
    "gigabatch.models",
    "gigabatch.pipeline.bundle",
    "gigabatch.pipeline.embedding.embed",
    "gigabatch.pipeline.embedding.embed_write",
    "gigabatch.pipeline.embedding.entities",
    "gigabatch.pipeline.embedding.embeddings",
]
KEPT_VERSIONS = 2  # the latest, and the one before it, which a server may be about to open
HISTORIES, OF_NOW = "histories", "now"  # of the users' entry in the manifest


class Gathered(NamedTuple):
    """Newest rows by entity, and whether the users' histories are those of now, not of their rows' times."""

    rows: dict[str, Any]
    of_now: bool


def run_embed(
    config: str | Path,
    overrides: Sequence[str],
    run: str | Path | None,
    settings: EmbedSettings,
    update: str | None = None,
) -> int:
    """The command: embed a run's users and items, from the features stage or, with `update`, also from new rows.

    update: Parquet files with rows of the features stage; one that has only the items' columns brings only items.
    """
    pipeline = Pipeline.from_config(config, *overrides)
    used = find_run(pipeline.config, run)
    path = used.path
    bundle = load_bundle(path / "model", pipeline.device, pipeline.engine)
    if update is None:
        artifact = embed(path, bundle, pipeline.features(), settings)
    else:
        artifact = update_embeddings(path, bundle, pipeline, expand(update), settings)
    shown = [
        {
            "": folder_of(name),
            **{key: entry[key] for key in ("rows", "computed", "dim", "dtype")},
            "index": "approximate" if entry["index"] else "none",
            "recall": entry["index"]["recall"] if entry["index"] else None,
        }
        for name, entry in artifact.manifest["entities"].items()
    ]
    render_table(shown, f"embeddings of {used}{', skipped, unchanged' if artifact.skipped else ''}")
    if context := context_columns(bundle.schema) if getattr(bundle.model, "users_take_context", False) else []:
        print(
            f"The users' vectors are those of a null context ({', '.join(context)}). /recommend computes them anew "
            "where the context is given."
        )
    print(artifact.path)
    return 0


def context_columns(schema: Schema) -> list[str]:
    """Features of neither users nor items, which are null, or 0 where they cannot be, where only these are known."""
    known = {name for entity in schema.entities for name in entity.columns}
    known |= {column.name for entity in schema.entities for column in kept_lists(schema, entity)}
    columns = [*schema.names("categorical", "continuous"), *(column.name for column in schema.lists)]
    return [name for name in columns if name not in known]


def embed(run: Path, bundle: Bundle, features: Features, settings: EmbedSettings) -> Artifact:
    """Embeddings of all users and items of the features stage, all splits; runs/<name>/<id>/embeddings/latest.

    Users have the histories of now where the recipe knows them (`Recipe.with_newest_histories`) and the raw files are
    those that the features stage has read; where they are not, a warning says so, since a night has trained by then."""
    wanted = _wants_histories(bundle, features)
    asked = _asked_again(bundle, features, "embed") if wanted else None

    def rows() -> Gathered:
        return _newest(bundle, features, asked, "embed")

    inputs = {"features": features.artifact.key} | ({HISTORIES: "of the rows"} if wanted and asked is None else {})
    with _alone(run):
        try:
            before = StoredEmbeddings.load(run / STAGE, bundle, verify=False)
        except EmbeddingsError:  # none yet, or of no use
            before = None
        artifact = _store(run, bundle, settings, inputs, rows, None)
        if before is not None and before.key != artifact.key:
            _note_dropped(before, StoredEmbeddings.load(artifact.path, bundle, verify=False), bundle.schema)
    return artifact


def newest_users(bundle: Bundle, features: Features, who: str) -> Any:
    """The newest row of every user of the features stage, all splits, with the histories of now as `embed` has them.

    who: what asks, in warnings."""
    asked = _asked_again(bundle, features, who) if _wants_histories(bundle, features) else None
    return _newest(bundle, features, asked, who).rows["user"]


def _newest(bundle: Bundle, features: Features, asked: AskedFeatures | None, who: str) -> Gathered:
    parts = [str(path) for split in features.rows for path in features.parts(split)]
    found = _gather(bundle.schema, load_engine(features.pipeline.engine), parts, {}, who)
    if asked is None:
        return Gathered(found, False)
    users = found["user"]
    found["user"] = _with_newest_histories(features.pipeline, asked, users)
    return Gathered(found, found["user"] is not users)


def _alone(run: Path) -> AbstractContextManager[None]:
    """Hold what one process at a time holds from the version that it starts from to that which it makes `latest`: of
    two updates of one version the second would take the first one's rows out again. Others wait."""
    return folder_lock(run / f".{STAGE}.lock", "stores embeddings of the same run")


def _wants_histories(bundle: Bundle, features: Features) -> bool:
    """Whether users have histories, of which the recipe may know newer ones."""
    if not _histories(bundle.schema):
        return False
    recipe = recipe_class(features.pipeline.config.recipe)
    return recipe.with_newest_histories is not Recipe.with_newest_histories


def _asked_again(bundle: Bundle, features: Features, who: str) -> AskedFeatures | None:
    """What knows the raw files that the features stage has read; None, with a warning, where they are others by now, or
    their ids are of another type than the bundle's."""
    pipeline, own, now = features.pipeline, bundle.schema.dtypes(), features.schema.dtypes()
    why = "the raw files are no longer those that the features stage has read"
    try:
        asked = ask_features(pipeline.config, pipeline.engine, pipeline.store.root, features.decided)
    except (DataError, ArtifactError) as error:  # one is gone
        why = f"{why} ({error})"
    else:
        if asked.key == features.artifact.key:
            if all(own[entity.key] == now.get(entity.key) for entity in bundle.schema.entities):
                return asked
            why = "the run was trained with ids of another type than the configuration has"
    log.warning(
        "%s: %s, so users' histories are those before their newest rows, whose items they lack. Run gigabatch %s "
        "again.",
        who,
        why,
        who,
    )
    return None


def _histories(schema: Schema) -> list[str]:
    """Columns of what users chose before, lists and weights, which are kept of their rows."""
    user = schema.entity("user")
    found = [] if user is None else [one for one in kept_lists(schema, user) if one.name not in user.columns]
    return [name for column in found for name in column.columns]


def _with_newest_histories(pipeline: Pipeline, asked: AskedFeatures, users: Any) -> Any:
    """The users' rows with histories up to now, of the raw files that the features stage has read.

    Raises:
        ArtifactError: where these change meanwhile.
    """
    asked.recipe.cache = cache = ParsedFiles(pipeline.store, pipeline.engine)
    found = asked.recipe.with_newest_histories(pipeline.engine, users)
    require_same_inputs(asked.inputs, asked.checksums, cache.parsed, pipeline.store.root)
    return found


def _note_dropped(before: StoredEmbeddings, after: StoredEmbeddings, schema: Schema) -> None:
    """Warn of users and items of the version before that are not in the one after, or only by an earlier row."""
    gone, earlier = [], []
    for name in before.manifest["entities"]:
        old, new = (stored.user if name == "user" else stored.item for stored in (before, after))
        if old is None or new is None:
            continue
        rows = new.find(old.keys)
        gone.append((int((rows < 0).sum()), name))
        there = np.flatnonzero(rows >= 0)
        for column in schema.names("time"):
            was, now = old.rows()[column].iloc[there].array, new.rows()[column].iloc[rows[there]].array
            earlier.append((int(pd.Series(was > now).fillna(False).sum()), name))
    if any(count for count, _ in gone + earlier):
        lost, aged = (" and ".join(f"{count:,} {name}(s)" for count, name in found) for found in (gone, earlier))
        log.warning(
            "embed: %s of the version before are no longer stored%s: without --update, embeddings are those of the "
            "features stage alone. Take in again what updates brought: gigabatch embed --update FILES.",
            lost,
            f", and {aged} are as of an earlier row" if aged else "",
        )


def update_embeddings(
    run: Path, bundle: Bundle, pipeline: Pipeline, files: Sequence[str], settings: EmbedSettings
) -> Artifact:
    """The run's latest embeddings with new feature rows taken in; only what is new or differs is computed."""
    engine = load_engine(pipeline.engine)
    for path in files:
        if not path.endswith(PARQUET_ENDINGS):
            raise DataError(f"embed: {path} is not a Parquet file. Give rows as `gigabatch features` writes them.")

    def rows() -> Gathered:
        entities = before.manifest["entities"]
        known = {name: engine.read_parquet(before.folder / folder_of(name) / ROWS) for name in entities}
        gathered = _gather(bundle.schema, engine, files, known, "embed")
        require_same_inputs(files, checksums, (), pipeline.store.root)
        of_now = entities.get("user", {}).get(HISTORIES) == OF_NOW
        if of_now:
            gathered["user"] = _with_known_histories(bundle.schema, known["user"], gathered["user"])
        return Gathered(gathered, of_now)

    with _alone(run):
        before = StoredEmbeddings.load(run / STAGE, bundle)
        checksums = input_checksums(files, pipeline.store.root)
        return _store(run, bundle, settings, {"before": before.key, "files": checksums}, rows, before)


def _with_known_histories(schema: Schema, known: Any, users: Any) -> Any:
    """Users' newest rows, where these are no later than what the known histories go up to with these: a row's own
    history lacks its item. known: the first of `users`, in their order, as `NewestRows` leaves them."""
    engine, names, time = engine_of(users), _histories(schema), schema.only("time")
    if time is None:
        return users
    until = known[HISTORY_UNTIL if HISTORY_UNTIL in known.columns else time].reset_index(drop=True)
    older = users[time].iloc[: len(known)].reset_index(drop=True) <= until
    places = engine.arrays.arange(len(users))
    (kept,) = engine.arrays.nonzero(engine.array(older.fillna(False).astype("bool")))
    places[kept] = len(users) + kept
    typed = cast(known[names], {name: schema.table_dtypes[name] for name in names}, "stored users")
    both = engine.frames.concat([users[names], typed], ignore_index=True).take(places).reset_index(drop=True)
    until = engine.frames.concat([users[time], until], ignore_index=True).take(places).reset_index(drop=True)
    return users.assign(**{name: both[name] for name in names}, **{HISTORY_UNTIL: until})


def _gather(schema: Schema, engine: Any, files: Sequence[str], known: dict[str, Any], who: str) -> dict[str, Any]:
    """Newest rows by entity, of the known rows and then of these files, each read once."""
    gathered = {entity.name: NewestRows(schema, entity) for entity in schema.entities}
    for name, frame in known.items():
        gathered[name].add(frame)
    for path in files:
        there = engine.parquet_columns(path)
        meant = [entity for entity in schema.entities if entity.key in there]
        if not meant:
            keys = [entity.key for entity in schema.entities]
            raise DataError.missing_columns(keys, there, f"{who}, {path}")
        wanted = {name for entity in meant for name in kept_columns(schema, entity)}
        frame = engine.read_parquet(path, [name for name in there if name in wanted])
        for entity in meant:
            gathered[entity.name].add(frame)
    for name, found in gathered.items():
        if found.keyless:
            log.warning(
                "%s: %s of %s rows have no %s, the key of the %s, so they belong to none and are left out.",
                who, f"{found.keyless:,}", f"{found.rows - len(known.get(name, ())):,}", repr(found.entity.key), name,
            )  # fmt: skip
    return {name: found.frame for name, found in gathered.items()}


def _store(
    run: Path,
    bundle: Bundle,
    settings: EmbedSettings,
    inputs: dict[str, Any],
    rows: Callable[[], Gathered],
    before: StoredEmbeddings | None,
) -> Artifact:
    """The artifact of these inputs, made if it is not there, and `latest` pointing to it."""
    _require_entities(bundle)
    identity = bundle_identity(bundle)
    sources = source_hash(SOURCES)
    config = asdict(settings) | {"device": bundle.device}
    key = artifact_key("embed", {"bundle": identity, **inputs}, config, sources)
    origin = {"sources": sources, "device": bundle.device}  # vectors of another are not kept
    reused = before if before is not None and before.manifest["origin"] == origin else None

    def write(folder: Path) -> dict[str, Any]:
        started = time.perf_counter()
        entities, gathered = {}, rows()
        for name, frame in gathered.rows.items():
            old = None if reused is None else reused.user if name == "user" else reused.item
            entities[name] = write_entity(folder / folder_of(name), bundle, name, frame, settings, old)
        if gathered.of_now:
            entities["user"][HISTORIES] = OF_NOW
        if settings.index != "exact" and "item" in entities:
            entities["item"]["index"] = write_index(folder, entities, settings, bundle.device)
        total = sum(entry["rows"] for entry in entities.values())
        seconds = time.perf_counter() - started
        return {
            "format": FORMAT,
            "bundle": identity,
            "origin": origin,
            "entities": entities,
            "rows": total,
            "seconds": seconds,
        }

    artifact = ArtifactStore(run).build(STAGE, key, write)
    home = run / STAGE
    former = (home / LATEST).resolve().name
    atomic_symlink(Path(artifact.path.name), home / LATEST)
    versions = {path.name: path for path in artifacts_newest_first(home)}
    kept = [name for name in dict.fromkeys((artifact.path.name, former, *versions)) if name in versions]
    for name in kept[KEPT_VERSIONS:]:
        shutil.rmtree(versions[name])
    return artifact


def _require_entities(bundle: Bundle) -> None:
    schema = bundle.schema
    if not schema.entities:
        raise EmbeddingsError(
            "embed: the schema does not say which columns are those of users and items. Name them in the recipe's "
            "settings (features.entities) and train again."
        )
    for entity in schema.entities:
        dtype = schema.dtypes()[entity.key]
        if dtype not in KEY_TYPES:
            raise EmbeddingsError(
                f"embed: the key {entity.key!r} of the {entity.name} is {dtype}; only text and whole numbers can be "
                "looked up. Make it a string in the recipe."
            )
