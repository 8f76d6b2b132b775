"""Negatives for runs whose rows are all positives (`train.negatives`): from the train split's vocabulary and pairs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from gigabatch.features.encoding.online import as_list
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Entity
from gigabatch.loaders.negatives.draws import NegativeSampler, PopularityNegatives, UniformNegatives
from gigabatch.loaders.negatives.implicit import ImplicitBatches, apart_from
from gigabatch.loaders.negatives.table import KnownPositives
from gigabatch.loaders.tables.entity_rows import EntityRows
from gigabatch.loaders.tables.packed import PackedTable, unpack
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.model import Model
from gigabatch.pipeline.config.config import ConfigError, NegativeSettings, RunConfig
from gigabatch.pipeline.training.checkpoint import TrainingError

log = logging.getLogger(__name__)
LABELS_AT_ONCE = 1 << 20  # rows that are looked at, where the first blocks are all positives
NAMED_USERS = 5  # of those who have every item, in a warning
EVALUATION = 0x5EED  # its negatives are others than those of training with the same seed


def require_positives(config: RunConfig, preprocessor: Preprocessor) -> None:
    """Raise `ConfigError` where `train.negatives` is set and the rows cannot be positives of items."""
    if config.train.negatives is None:
        return
    schema = preprocessor.schema
    if schema.entity("item") is None:
        raise ConfigError(
            "train.negatives: the schema names no item to draw. Name its columns in the recipe's settings "
            "(features.entities), or set train.negatives=null."
        )
    if [target.task for target in schema.targets] != ["binary"]:
        raise ConfigError(
            "train.negatives: a sampled negative has one binary target, 0, and the targets are "
            f"{', '.join(f'{target.name} ({target.task})' for target in schema.targets)}. Set train.negatives=null."
        )
    if config.train.negatives.exclude_known and schema.entity("user") is None:
        raise ConfigError(
            "train.negatives: the schema names no user whose items could be left out. Name its columns in the recipe's "
            "settings (features.entities), or set train.negatives.exclude_known=false."
        )


def require_only_positives(tables: Sequence[PackedTable]) -> None:
    """Raise `ConfigError` for rows that are no positives, which drawing would make ones without a word."""
    for table in tables:
        others = int((unpack(table.schema, table.words).targets[0] != 1).sum())
        if others:
            raise ConfigError(
                f"train.negatives: every row has to be a positive, and {others:,} of {len(table):,} rows of a split "
                f"have another {table.schema.targets[0].name} than 1. Leave them out (recipes interactions and "
                "movielens: task ranking, with a threshold), or set train.negatives=null to train on the labels."
            )


def require_labels_or_negatives(model: Model, rows: PackedTable, negatives: ImplicitBatches | None) -> None:
    """Raise `TrainingError` where a model of items is to learn train rows that are all positives from labels alone: it
    would learn that everything is one."""
    learns_labels = negatives is None and model.learns_by_steps and not model.compares_rows
    tasks = {target.task for target in rows.schema.targets}
    if not learns_labels or model.inputs.item is None or tasks != {"binary"}:
        return
    for words in rows.words.split(LABELS_AT_ONCE):
        if any(bool((labels != 1).any()) for labels in unpack(rows.schema, words).targets):
            return
    names = ", ".join(target.name for target in rows.schema.targets)
    raise TrainingError(
        f"train: all of the train split's {len(rows):,} rows have {names} 1, so there is nothing to tell apart. Set "
        "train.negatives={per_positive: 8}, or give rows that were not chosen too, with label 0."
    )


def first_id(preprocessor: Preprocessor, name: str) -> int:
    """The first id of the vocabulary of users or items; those below are no one of them."""
    entity = preprocessor.schema.entity(name)
    assert isinstance(entity, Entity)
    return preprocessor.vocabularies[entity.key].layout.first


def implicit_batches(
    preprocessor: Preprocessor,
    inputs: ModelInputs,
    train: PackedTable,
    settings: NegativeSettings,
    seed: int,
    device: str,
    known: Sequence[PackedTable] = (),
    tell: bool = True,
) -> ImplicitBatches:
    """Draws of every item of the train split's vocabulary.

    train: gives the features and counts of items, and with `exclude_known` each user's known items; known: further
    tables whose pairs are known too, for evaluation. The null and the unseen user are many people, of whom nothing is
    known. Of a user who knows every item that is drawn, only the row's own item is left out; a warning names them where
    `tell` is set.
    """
    require_only_positives((train, *known))
    item, user = inputs.item, inputs.user
    assert item is not None, "require_positives comes first"
    items = range(first_id(preprocessor, "item"), inputs.num_ids[item.key])
    counts = torch.bincount(train.words[:, item.key], minlength=items.stop)
    positives, user_column, know_all = None, None, None
    if settings.exclude_known and user is not None:
        user_column = user.key
        tables = (train, *known)
        users, chosen = (torch.cat([table.words[:, column] for table in tables]) for column in (user.key, item.key))
        somebody = users >= first_id(preprocessor, "user")  # the null and the unseen user are many
        positives = KnownPositives.from_pairs(users[somebody], chosen[somebody], inputs.num_ids[user.key])
        drawable = torch.arange(items.stop, device=counts.device) >= items.start
        if settings.kind == "popularity":
            drawable &= counts[: items.stop] > 0
        know_all = positives.num_left(drawable) == 0
        if bool(know_all.any()):
            positives = positives.without(know_all)
            if tell:
                log.warning(
                    "train.negatives: %s have each of the %s items that are drawn, so nothing is left that could be a "
                    "negative of theirs. In %s, items that they have are drawn for them too, any but the row's own, "
                    "which says nothing of what they like. Leave their rows out of the files if they are nobody's "
                    "taste.",
                    users_text(preprocessor, know_all),
                    f"{int(drawable.sum()):,}",
                    "evaluation" if known else "training",
                )
        else:
            know_all = None
    positives = apart_from(positives, items, train.device)
    sampler: NegativeSampler
    if settings.kind == "uniform":
        sampler = UniformNegatives(items, settings.per_positive, positives, seed=seed, device=device)
    else:
        sampler = PopularityNegatives(
            items, settings.per_positive, counts, settings.power, positives, seed=seed, device=device
        )
    rows = EntityRows.of(train, item.key, item.ids, item.floats, item.lists)
    if not known and (moving := rows.moving_columns(train, items.start)):  # what evaluates them was trained so
        names = [column.name for column in train.schema.ids] + list(train.schema.floats)
        names += [column.name for column in train.schema.lists]
        log.warning(
            "train.negatives: of an item, %s differ(s) from row to row. A positive has what its own row says, a "
            "negative what its item's last train row says, so a model can tell them by that. Leave such columns out "
            "of the item's (features.entities).",
            ", ".join(names[place] for place in moving),
        )
    first_user = 0 if user_column is None else first_id(preprocessor, "user")
    return ImplicitBatches(sampler, user_column, rows.to(device), items, first_user, know_all)


def users_text(preprocessor: Preprocessor, users: Tensor) -> str:
    """How many users (true in `users`, bool [ids]) there are, their column, and the first of them by their values."""
    entity = preprocessor.schema.entity("user")
    assert isinstance(entity, Entity)
    found = users.nonzero().flatten()
    values = as_list(preprocessor.vocabularies[entity.key].decode(found[:NAMED_USERS].cpu().numpy()))
    names = ", ".join([*map(repr, values), *(["..."] if len(found) > NAMED_USERS else [])])
    return f"{len(found):,} of column {entity.key!r} ({names})"


def warn_of_unknown_users(preprocessor: Preprocessor, config: RunConfig, users: Tensor, split: str) -> None:
    """Tell, once an evaluation, of positives whose user's id [R] says only that the vocabulary does not have the user,
    where that changes the split's negatives or ranks."""
    drawn = config.train.negatives is not None and config.train.negatives.exclude_known
    ranked = config.evaluate.ranking is not None
    unknown = int((users < first_id(preprocessor, "user")).sum()) if drawn or ranked else 0
    if unknown:
        log.warning(
            "%s: %s of %s positives of the %s split are of users whose id the vocabulary does not have: not in train, "
            "or rarer than preprocess.min_count or max_size lets in. These share one id, so what such a user chose in "
            "other rows is not known: only the row's own item is kept out of %s%s.",
            " and ".join(["train.negatives"] * drawn + ["evaluate.ranking"] * ranked),
            f"{unknown:,}", f"{len(users):,}", split,
            " and ".join(["its negatives"] * drawn + ["what it is ranked among"] * ranked),
            ", and recall@k counts each of them as a user" if ranked else "",
        )  # fmt: skip


def with_negatives(
    preprocessor: Preprocessor,
    inputs: ModelInputs,
    tables: Sequence[PackedTable],
    place: int,
    config: RunConfig,
    device: str,
    tell: bool = False,
) -> PackedTable:
    """tables[place] as it is evaluated: where `train.negatives` is set, with negatives that are the same each time.

    tables: the train split's first; the pairs of all of them are known. device: draws the negatives, block by block;
    the table lies where tables[place] does. tell: whether a warning names users who know every item.
    """
    settings = config.train.negatives
    if settings is None:
        return tables[place]
    batches = implicit_batches(
        preprocessor, inputs, tables[0], settings, config.seed ^ EVALUATION, device, known=tables[1:], tell=tell
    )
    batches.use_kernels(config.train.kernels)
    return batches.table(tables[place])
