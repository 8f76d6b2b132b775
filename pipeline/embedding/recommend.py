"""The best items of the catalogue for every user, as rows of a file: what mails, pages and caches are filled with.

Scores are those that `evaluate.ranking` ranks by, of any model: of users' newest rows, with the histories of now, and
items as their last rows have them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.errors import DataError
from gigabatch.features.operators.base import unused
from gigabatch.features.reading.sources import cast, read_files
from gigabatch.features.schema import Entity, Schema
from gigabatch.loaders.negatives.table import KnownPositives
from gigabatch.loaders.tables.entity_rows import EntityRows
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import Batch, PackedTable, unpack
from gigabatch.pipeline.bundle import BLOCK_ROWS, Bundle, frame_lists, load_bundle, model_outputs, target_loss
from gigabatch.pipeline.embedding.embed import context_columns, newest_users
from gigabatch.pipeline.embedding.entities import feature_rows
from gigabatch.pipeline.evaluation.rank_evaluate import best_items
from gigabatch.pipeline.runs.find import FoundRun, find_run
from gigabatch.pipeline.stages.finished import SPLITS
from gigabatch.pipeline.stages.score import written
from gigabatch.pipeline.stages.stages import Features, Pipeline, packed_splits
from gigabatch.pipeline.store.files import require_writable
from gigabatch.pipeline.training.negatives import first_id

log = logging.getLogger(__name__)
RATING = "rating"


def recommend(
    config: str | Path | Mapping[str, Any],
    *overrides: str | Mapping[str, Any],
    run: str | Path | None = None,
    k: int = 10,
    users: Any = None,
    again: bool | None = None,
) -> Any:
    """The k items that a run's model ranks highest for every user, of those that it knows and today's features have.

    A user is asked about as their newest row of today's features says, under the recipes `interactions` and `movielens`
    with the history of now, and with nulls where a column describes neither user nor item. Equal scores are in the
    order of the items' ids in the vocabulary.

    Parameters
    ----------
    config, overrides
        As of `Pipeline.from_config`.
    run
        `current`, `previous`, `latest`, an id or a folder; None: the current one. Its first target is binary or a
        regression.
    k
        Items a user.
    users
        A column or list of users' keys, to ask about these alone; None for all.
    again
        Whether items may be recommended that a user has chosen before: rows with label 1, or any row where the label is
        a rating or a number. Rows that the features leave out, such as those rated below `features.threshold`, are no
        choices. None: where `evaluate.ranking.catalogue_is_without` is empty, or with `features.repeats: all` where
        nothing is ranked.

    Returns
    -------
    data frame
        The user's key, `rank` from 1, the item's key and `predicted_<target>` as of `Bundle.predict`, with `_` behind
        these two where a key has them; users in the order of their first rows, best items first. Fewer than k
        rows where a user has chosen nearly everything.

    Raises
    ------
    DataError
        Where the schema names no user or item, the first target is of classes or several quantiles, `users` is no
        column or list of such keys, no user is left, or k is below 1.
    RankingError
        For scores that are not finite.

    Examples
    --------
    >>> import pandas as pd
    >>> from gigabatch import Pipeline, init, recommend
    >>> pairs = [(user, (user * 7 + 3 * step) % 40) for user in range(60) for step in range(8)]
    >>> pd.DataFrame(pairs, columns=["user", "item"]).to_csv("log.csv", index=False)
    >>> config, _ = init("log.csv")
    >>> run = Pipeline.from_config(config, {"model.kind": "popularity"}).train()
    >>> found = recommend(config, {"model.kind": "popularity"}, k=3, users=[17])
    >>> found.columns.tolist(), found["rank"].tolist()
    (['user', 'rank', 'item', 'predicted_target'], [1, 2, 3])
    """
    pipeline = Pipeline.from_config(config, *overrides)
    used = find_run(pipeline.config, run)
    return _recommended(_bundle_of(pipeline, used), pipeline.features(), k, users, again)


def recommend_run(
    config: str | Path, overrides: Sequence[str], run: str | Path | None, k: int, users: str | None,
    again: bool | None, out: Path | None,
) -> int:  # fmt: skip
    """The command: `recommend`, written to a file. users: of files with a column of theirs."""
    pipeline = Pipeline.from_config(config, *overrides)
    used = find_run(pipeline.config, run)
    require_writable(used.path if out is None else out.parent)
    bundle = _bundle_of(pipeline, used)
    wanted = None if users is None else _read_users(pipeline, bundle.schema, users)
    found = _recommended(bundle, pipeline.features(), k, wanted, again)
    if context := context_columns(bundle.schema):
        print(f"Columns of neither users nor items ({', '.join(context)}) are null, or 0.")
    return written(found, out or used.path / "recommendations.parquet", used)


def _bundle_of(pipeline: Pipeline, used: FoundRun) -> Bundle:
    return load_bundle(used.path / "model", pipeline.device, pipeline.engine)


def _recommended(bundle: Bundle, features: Features, k: int, users: Any, again: bool | None) -> Any:
    if k < 1:
        raise DataError(f"recommend: k must be at least 1, found {k}.")
    config = features.pipeline.config
    if again is None:
        ranking = config.evaluate.ranking
        asked_again = getattr(config.features, "repeats", "") == "all"
        again = asked_again if ranking is None else not ranking.catalogue_is_without
    user, item = _entities(bundle.schema)
    rows = newest_users(bundle, features, "recommend")
    if users is not None:
        rows = _of_users(rows, bundle.schema, user.key, users)
    asked = _asked(bundle, rows)
    known_users = asked.ids[:, bundle.model.inputs.entity("user").key] >= first_id(bundle.preprocessor, "user")
    if not bool(known_users.all()):
        log.warning(
            "recommend: %s of %s users are new since the training, or rarer than preprocess.min_count lets in, and get "
            "no recommendations.",
            f"{int((~known_users).sum()):,}", f"{len(rows):,}",
        )  # fmt: skip
        places = known_users.nonzero()[:, 0]
        rows, asked = rows.take(engine_of(rows).arrays.asarray(places.cpu().numpy())), _rows_of(asked, places)
    if not len(rows):
        raise DataError("recommend: no user is left that the model knows.")
    with packed_splits(bundle.preprocessor, features, SPLITS) as tables:
        items, there = _items(bundle, tables)
        rated = getattr(config.features, "task", "") == RATING
        known = None if again else _known(bundle, tables, rated=rated)
        best = best_items(bundle.model, asked, items, there, known, bundle.model.inputs.entity("user").key, k).rows
    places, ranks = (best >= 0).nonzero(as_tuple=True)
    predictions = _predictions(bundle, asked, items, places, best[places, ranks])
    engine = engine_of(rows)
    host = engine.arrays.asarray
    name = unused("rank", [user.key, item.key])
    predicted = unused(f"predicted_{bundle.schema.targets[0].prediction_names()[0]}", [user.key, item.key])
    return engine.frames.DataFrame({
        user.key: rows[user.key].take(host(places.cpu().numpy())).reset_index(drop=True),
        name: host(ranks.cpu().numpy() + 1),
        item.key: bundle.preprocessor.vocabularies[item.key].decode(host(best[places, ranks].cpu().numpy())),
        predicted: host(predictions.cpu().numpy()),
    })  # fmt: skip


def _entities(schema: Schema) -> tuple[Entity, Entity]:
    user, item = schema.entity("user"), schema.entity("item")
    if user is None or item is None:
        raise DataError(
            "recommend: the schema does not say which columns are those of users and items. Name them in the recipe's "
            "settings (features.entities), and train again."
        )
    if schema.targets[0].task not in ("binary", "regression"):
        raise DataError(
            f"recommend: the first target, {schema.targets[0].name!r}, is {schema.targets[0].task}, by which items "
            "have no order. Train one that is binary or a regression."
        )
    if schema.targets[0].quantiles:
        raise DataError(
            f"recommend: the first target, {schema.targets[0].name!r}, is of several quantiles, by which items have no "
            "one order. Train it with one, or with another loss."
        )
    return user, item


def _read_users(pipeline: Pipeline, schema: Schema, files: str) -> Any:
    key = _entities(schema)[0].key
    return read_files(pipeline.engine, files, {key: schema.dtypes()[key]}, nullable=(key,))[key]


def _of_users(rows: Any, schema: Schema, key: str, users: Any) -> Any:
    """The rows of these users alone; a warning says how many have none."""
    engine = engine_of(rows)
    whole = hasattr(users, "__len__") and not isinstance(users, str | Mapping | Set)
    if not whole or len(getattr(users, "shape", (0,))) != 1:
        raise DataError(
            f"recommend: users is a column or list of keys, found {type(users).__name__}. Of one user give [key]; of a "
            "frame give frame[column]."
        )
    wanted = cast(engine.frames.DataFrame({key: users}), {key: schema.dtypes()[key]}, "recommend", nullable=(key,))[key]
    wanted = wanted.dropna().drop_duplicates()
    found = rows[rows[key].isin(wanted)].reset_index(drop=True)
    if missing := len(wanted) - len(found):
        log.warning(
            "recommend: %s of %s users that are asked for have no row in the features, and get no recommendations.",
            f"{missing:,}", f"{len(wanted):,}",
        )  # fmt: skip
    return found


def _asked(bundle: Bundle, rows: Any) -> Batch:
    """Users' rows as the model takes them, without an item; of a column of neither null, or 0 where that cannot be."""
    user, num_ids = _entities(bundle.schema)[0], len(bundle.schema.names("categorical"))
    words, lists = [], []
    for start in range(0, max(len(rows), 1), BLOCK_ROWS):
        part = feature_rows(bundle.schema, user, rows.iloc[start : start + BLOCK_ROWS])
        words.append(torch.from_dlpack(bundle.preprocessor.pack(part, targets=False)))
        lists.append(frame_lists(bundle.preprocessor, part))
    packed = torch.cat(words).to(bundle.device)
    columns = [JaggedColumn.concat(parts).to(bundle.device) for parts in zip(*lists, strict=True)]
    return Batch(packed[:, :num_ids], packed[:, num_ids:].view(torch.float32), (), lists=tuple(columns))


def _rows_of(asked: Batch, rows: Tensor) -> Batch:
    return Batch(asked.ids[rows], asked.floats[rows], (), lists=tuple(column.rows(rows) for column in asked.lists))


def _items(bundle: Bundle, tables: Mapping[str, PackedTable]) -> tuple[EntityRows, Tensor]:
    """The columns of every item as of its last row in the last split that has it, and which of the ids there are: bool
    [ids]. A final run has learnt of items that valid and test alone have."""
    columns = bundle.model.inputs.entity("item")
    found: EntityRows | None = None
    there = torch.zeros(0, dtype=torch.bool)
    for table in tables.values():
        part = EntityRows.of(table, columns.key, columns.ids, columns.floats, columns.lists)
        own = torch.bincount(table.words[:, columns.key].long(), minlength=part.num_ids) > 0
        found, there = (part, own) if found is None else (_newer(found, part, own), there | own)
    assert found is not None
    there[: first_id(bundle.preprocessor, "item")] = False
    return found.to(bundle.device), there.to(bundle.device)


def _newer(before: EntityRows, after: EntityRows, there: Tensor) -> EntityRows:
    """Rows of `after` where `there` [ids], else those of `before`."""
    places = torch.arange(len(there)) + there.long() * len(there)
    both = zip(before.lists, after.lists, strict=True)
    lists = tuple(JaggedColumn.concat(pair).rows(places) for pair in both)
    return replace(after, words=torch.where(there[:, None], after.words, before.words), lists=lists)


def _known(bundle: Bundle, tables: Mapping[str, PackedTable], *, rated: bool) -> KnownPositives:
    """What each user has chosen in any split, or rated."""
    user, item = bundle.model.inputs.entity("user"), bundle.model.inputs.entity("item")
    parts = []
    for table in tables.values():
        ids = table.words[:, [user.key, item.key]]
        if not rated and bundle.schema.targets[0].task == "binary":
            ids = ids[unpack(table.schema, table.words).targets[0] == 1]
        parts.append(ids.to(bundle.device))
    users, items = torch.cat(parts).unbind(1)
    return KnownPositives.from_pairs(users, items, bundle.model.inputs.num_ids[user.key])


def _predictions(bundle: Bundle, asked: Batch, items: EntityRows, users: Tensor, item_ids: Tensor) -> Tensor:
    """Predictions [P] of the first target for users, by their place in `asked`, with items."""
    loss, found = target_loss(bundle.schema), []
    for start in range(0, len(users), BLOCK_ROWS):
        rows, chosen = users[start : start + BLOCK_ROWS], item_ids[start : start + BLOCK_ROWS]
        ids, floats = asked.ids[rows], asked.floats[rows]
        items.fill(ids, floats, chosen)
        lists = items.lists_beside(asked.lists, rows, chosen)
        outputs = torch.cat(list(model_outputs(bundle.model, ids, floats, lists)))
        found.append(loss.predict(outputs)[0])
    return torch.cat(found) if found else torch.zeros(0)
