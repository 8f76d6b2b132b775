"""How high models that take no steps rank what users chose, beside the model of the run.

Popularity, own counts where users come back, item k-nearest neighbours and EASE, each with its defaults, fitted to the
same train rows and asked the same questions among the same candidates. A network that such a model beats has not learnt
what its data hold (Ferrari Dacrema, Cremonesi and Jannach, "Are we really making much progress?", RecSys 2019).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import torch

from gigabatch.loaders.tables.packed import PackedTable, unpack
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.model import Model
from gigabatch.models.recommenders.ease import EASE
from gigabatch.models.recommenders.fitted import FittedModel
from gigabatch.models.shelf import ModelSpec, model_class, spec_of
from gigabatch.pipeline.config.config import RankingSettings
from gigabatch.pipeline.display import about_bytes, apart, metric_label
from gigabatch.pipeline.evaluation.paired import beyond_noise, of_sample, units_of
from gigabatch.pipeline.evaluation.rank_evaluate import Catalogue, Ranked, ranked
from gigabatch.pipeline.evaluation.told import NOISE, TITLES
from gigabatch.pipeline.machine import free_memory

log = logging.getLogger(__name__)
NAMES = {
    "popularity": "popularity", "top_frequency": "own counts, then popularity", "item_knn": "item k-nearest neighbours",
    "ease": "EASE",
}  # fmt: skip
EASE_PRODUCTS = 5 * 10**11  # multiplications of a core: half a minute to a minute; two cores solve for 10,000 items
EASE_MEMORY = 0.5  # of what is free
PAIR_PRODUCTS = 10**9  # of users' items with each other: some ten seconds of a core
SUMMED = 2 * 10**11  # numbers that neighbours add up over all questions: about as long


def rank_with_baselines(
    model: Model,
    positives: PackedTable,
    catalogue: Catalogue,
    settings: RankingSettings,
    *,
    train: PackedTable,
    inputs: ModelInputs,
    split: str,
    seed: int,
    device: str,
) -> dict[str, Any]:
    """`rank_evaluate`, and the same of the baselines that `settings` names.

    Parameters
    ----------
    model, positives, catalogue, settings, seed, device
        As of `rank_evaluate`.
    train
        The packed train split, which the baselines learn.
    inputs
        Of models of these rows.
    split
        What the rows of `positives` are of, for the sentences. Of `train` there are no baselines: they have learnt it.

    Returns
    -------
    dict
        What `rank_evaluate` returns, and `baselines`: `found`, of each its name, seconds, train rows, `sampled` and
        `catalogue`; `left_out`, sentences; `compared_on`, candidates and metric; `worse`, a sentence where the model
        does not beat the best of them, else nothing. Without baselines there is no such key.

    Raises
    ------
    RankingError
        As `rank_evaluate`.
    """
    own = ranked(model, positives, catalogue, settings, seed=seed, device=device)
    name = spec_of(model).name
    names = [kind for kind in settings.baselines if kind != name] if split != "train" else []
    if not names or not own.ranks:
        return own.found
    found: list[dict[str, Any]] = []
    others: dict[str, Ranked] = {}
    left_out: list[str] = []
    for kind in names:
        reason = _too_large(kind, inputs, catalogue, own.found["rows"], settings, device)
        if reason is None:
            try:
                others[kind], seconds = _fitted_and_ranked(
                    kind, train, inputs, positives, catalogue, settings, seed, device
                )
            except ModelError as error:
                reason = str(error)
            else:
                parts = {part: others[kind].found[part] for part in others[kind].ranks}
                found.append({"name": NAMES[kind], "seconds": seconds, "train_rows": len(train)} | parts)
        if reason is not None:
            left_out.append(f"{NAMES[kind]} as a baseline of ranking ({reason})")
    for sentence in left_out:
        log.info("ranking: without %s", sentence)
    if found:
        log.info("ranking: %s", ", ".join(f"{item['name']} {item['seconds']:.1f} s" for item in found))
    part = "catalogue" if "catalogue" in own.ranks else "sampled"
    metric = f"ndcg@{settings.k[0]}"
    compared = {"found": found, "left_out": left_out, "compared_on": f"{metric} {part}"}
    return own.found | {"baselines": compared | {"worse": _worse(own, others, part, settings.k[0], split)}}


def _too_large(
    kind: str, inputs: ModelInputs, catalogue: Catalogue, rows: int, settings: RankingSettings, device: str
) -> str | None:
    """Why this baseline would take too much memory or more than about a minute; None where it does not."""
    item = inputs.item
    assert item is not None, "the catalogue is of items"
    num_items = inputs.num_ids[item.key]
    alone = f"Train it by itself, model.kind={kind}"
    if kind == "ease":
        needed, free = EASE.fit_bytes(inputs), EASE_MEMORY * free_memory(device)
        if needed > free:
            return f"{num_items:,} items take {about_bytes(needed)}, of {about_bytes(int(free))} it may have. {alone}"
        most = int((EASE_PRODUCTS * torch.get_num_threads()) ** (1 / 3))
        if device == "cpu" and num_items > most:
            return f"{num_items:,} items are more than {most:,}, which take about a minute here. {alone}"
    if kind == "item_knn":
        known = catalogue.known["train"].offsets.diff()[catalogue.first_user :].double()
        products, summed = float((known**2).sum()), 0.0
        if settings.full_catalogue:
            summed = float(rows) * num_items * model_class(kind).Settings().neighbours
        if products > PAIR_PRODUCTS or summed > SUMMED:
            return f"{products:.1e} pairs of a user's items, {summed:.1e} sums over neighbours. {alone}"
    return None


def _fitted_and_ranked(
    kind: str,
    train: PackedTable,
    inputs: ModelInputs,
    positives: PackedTable,
    catalogue: Catalogue,
    settings: RankingSettings,
    seed: int,
    device: str,
) -> tuple[Ranked, float]:
    """The baseline's ranking, and the seconds that fitting and ranking took."""
    started = time.perf_counter()
    model = ModelSpec(kind, inputs.without_lists(), model_class(kind).Settings()).build().to(device)
    assert isinstance(model, FittedModel)
    model.fit(unpack(train.schema, train.words.cpu()))  # they look at no list
    found = ranked(model, positives, catalogue, settings, seed=seed, device=device)
    return found, time.perf_counter() - started


def paired_gain(own: Ranked, other: Ranked, part: str, k: int) -> tuple[float, float, float]:
    """NDCG@k of `own` less that of `other` on the same questions, its standard error, questions of one user taken
    together, and of how many users of one weight that is; the error is NaN for one user."""
    gains = own.ranks[part].ndcg(k) - other.ranks[part].ndcg(k)
    mass = torch.ones_like(gains) if own.weight is None else own.weight.to(gains)
    gain = float((mass * gains).sum() / mass.sum())
    influence, mass, users = (part.cpu() for part in (mass * (gains - gain) / mass.sum(), mass, own.users))
    by_user = users.bincount(of_sample(influence, mass, users))
    return gain, float(by_user.norm()), units_of(mass, users)


def _worse(own: Ranked, others: Mapping[str, Ranked], part: str, k: int, split: str) -> list[str]:
    """The sentence that names the best baseline, where the model does not beat it."""
    metric = f"ndcg@{k}"
    values = {kind: ranks.found[part][metric] for kind, ranks in others.items()}
    mine = own.found[part][metric]
    if mine is None or not values:
        return []
    best = max(values, key=lambda kind: values[kind])
    if mine > values[best]:
        return []
    gain, error, units = paired_gain(own, others[best], part, k)
    clear = -gain > beyond_noise(error, units)
    of = f"{metric_label(metric)} {' against '.join(apart([mine, values[best]]))}"
    where = f"ranking of the {split} split among the {TITLES[part]}"
    if clear:
        return [f"{where}: the model is worse than {NAMES[best]} ({of}), by more than {NOISE:g} standard errors."]
    return [f"{where}: the model does not beat {NAMES[best]} ({of})."]
