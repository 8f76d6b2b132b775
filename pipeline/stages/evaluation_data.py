"""What a model is evaluated on: splits as its preprocessor packs them, with drawn negatives, and rankings asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.model import Model
from gigabatch.pipeline.bundle import Bundle
from gigabatch.pipeline.config.config import RankingSettings
from gigabatch.pipeline.evaluation.checks import missing_shares
from gigabatch.pipeline.evaluation.rank_evaluate import Catalogue, positive_rows, rank_evaluate
from gigabatch.pipeline.evaluation.ranking_baselines import rank_with_baselines
from gigabatch.pipeline.stages.asked import PREPROCESSOR
from gigabatch.pipeline.stages.encode import encode_split, pack
from gigabatch.pipeline.stages.finished import SPLITS
from gigabatch.pipeline.stages.run import EvaluationData
from gigabatch.pipeline.store.locks import own_folder, remove_leftovers, temporary_path
from gigabatch.pipeline.training.negatives import (
    first_id,
    require_positives,
    users_text,
    warn_of_unknown_users,
    with_negatives,
)
from gigabatch.pipeline.training.train import model_inputs

if TYPE_CHECKING:
    from gigabatch.pipeline.stages.stages import Features, Pipeline

log = logging.getLogger(__name__)


def catalogue_of(
    preprocessor: Preprocessor, tables: Mapping[str, PackedTable], inputs: ModelInputs, device: str
) -> Catalogue:
    """What can be recommended, to whom, by these packed tables."""
    entities = preprocessor.schema.entities
    first = {f"first_{entity.name}": preprocessor.vocabularies[entity.key].layout.first for entity in entities}
    return replace(Catalogue.of(tables, inputs, device, **first), told=partial(users_text, preprocessor))


def require_questions(
    preprocessor: Preprocessor,
    tables: Mapping[str, PackedTable],
    inputs: ModelInputs,
    device: str,
    settings: RankingSettings,
) -> None:
    """Raise `RankingError` where all users of test positives leave too few items to draw `settings.negatives` from."""
    positives, user, item = positive_rows(tables["test"]).counted(), inputs.user, inputs.item
    if user is not None and item is not None and len(positives):
        first = first_id(preprocessor, "item")
        asked = positives.words[positives.words[:, item.key] >= first, user.key].long().unique()
        most = inputs.num_ids[item.key] - first - (settings.negatives or 0)  # items that a user may have
        # One user of few rows is enough. One has at most the mean of them, for which no row of train is read.
        if len(asked) and sum(map(len, tables.values())) // len(asked) <= most:
            return
        # To count rows takes a hundredth of the time that pairs do.
        sizes = [tables[name].words[:, user.key].long().bincount(minlength=inputs.num_ids[user.key]) for name in tables]
        if bool((torch.stack(sizes).sum(0)[asked] <= most).any()):
            return
    catalogue_of(preprocessor, tables, inputs, device).left_out(positives, settings)


def ranking_of(
    pipeline: Pipeline,
    preprocessor: Preprocessor,
    tables: Mapping[str, PackedTable],
    split: str,
    inputs: ModelInputs,
    baselines: bool = False,
) -> Callable[[Model], dict[str, Any]] | None:
    """`rank_evaluate` on a split of these packed tables; None where the configuration asks for none.

    baselines: `rank_with_baselines`, which learn the train split."""
    settings = pipeline.config.evaluate.ranking
    if settings is None:
        return None
    catalogue, positives = catalogue_of(preprocessor, tables, inputs, pipeline.device), positive_rows(tables[split])
    left_out = catalogue.left_out(positives, settings)
    asked = left_out[positives.words[:, catalogue.user_column].long()]
    if bool(asked.any()):
        log.warning(
            "evaluate.ranking: known positives of %s leave fewer than %s items to rank theirs among "
            "(evaluate.ranking.negatives): %s of %s questions of the %s split are left out.",
            users_text(preprocessor, left_out), settings.negatives, f"{int(asked.sum()):,}", f"{len(asked):,}", split,
        )  # fmt: skip
    warn_of_unknown_users(preprocessor, pipeline.config, positives.words[:, catalogue.user_column], split)
    given: dict[str, Any] = {
        "positives": positives,
        "catalogue": catalogue,
        "settings": settings,
        "seed": pipeline.config.seed,
        "device": pipeline.device,
    }
    if not baselines:
        return partial(rank_evaluate, **given)
    return partial(rank_with_baselines, **given, train=tables["train"], inputs=inputs, split=split)


def evaluation_data(
    features: Features,
    preprocessor: Preprocessor,
    tables: Mapping[str, PackedTable],
    measured: Sequence[str],
    split: str,
) -> EvaluationData:
    """What a model with this preprocessor is evaluated on. tables: the splits as it packs them, `SPLITS` first;
    measured: those whose metrics are wanted; split: see `EvaluationData`."""
    pipeline, inputs = features.pipeline, model_inputs(preprocessor)
    config, places = pipeline.config, list(tables)
    require_positives(config, preprocessor)
    item = inputs.item if config.train.negatives is not None else None
    if config.evaluate.ranking is None and inputs.user is not None:  # else ranking_of tells of them
        warn_of_unknown_users(preprocessor, config, tables[split].words[:, inputs.user.key], split)
    packed = list(tables.values())
    return EvaluationData(
        config=config,
        device=pipeline.device,
        tables=tables,
        evaluation_tables={
            name: with_negatives(
                preprocessor, inputs, packed, places.index(name), config, pipeline.device, tell=name == split
            )
            for name in measured
        },
        split=split,
        rank=ranking_of(pipeline, preprocessor, tables, split, inputs, baselines=True),
        missing=missing_shares(
            {name: features.parts(name) for name in tables},
            preprocessor.schema.names("categorical", "continuous"),
            preprocessor.schema.only("weight"),
        ),
        raw_of=features.raw_of,
        item_column=None if item is None else item.key,
        ranks=pipeline.ranks,
    )


@contextmanager
def packed_splits(
    preprocessor: Preprocessor, features: Features, splits: Sequence[str]
) -> Iterator[dict[str, PackedTable]]:
    """Splits of today's features as a bundle's own preprocessor packs them, memory-mapped, within a `with` block.

    They are packed part by part into a temporary folder of the store, so that no split need fit in memory.
    """
    pipeline = features.pipeline
    remove_leftovers(pipeline.store.root)
    folder = temporary_path(pipeline.store.root / "evaluate")
    with own_folder(folder), pipeline.cluster(folder) as cluster:
        preprocessor.save(folder / PREPROCESSOR)  # for the workers of a cluster
        for split in splits:
            encode_split(
                preprocessor, pipeline.engine, features.parts(split), features.rows[split], folder / split, cluster
            )
        yield {split: PackedTable.load(folder / split) for split in splits}


def evaluation_table_of(bundle: Bundle, features: Features, frame: Any) -> PackedTable:
    """Rows of the features stage as a bundle's metrics are measured on them: with negatives where the run draws them.

    These are drawn from the bundle's own vocabulary, and pairs of today's splits are known.
    """
    pipeline, table = features.pipeline, pack(bundle.preprocessor, frame)
    if pipeline.config.train.negatives is None:
        return table
    require_positives(pipeline.config, bundle.preprocessor)
    tables = [pack(bundle.preprocessor, features.frame(split)) for split in SPLITS]
    inputs = model_inputs(bundle.preprocessor)
    return with_negatives(bundle.preprocessor, inputs, [*tables, table], 3, pipeline.config, pipeline.device)
