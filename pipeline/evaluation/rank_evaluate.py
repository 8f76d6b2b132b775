"""How high a model ranks what users chose: among sampled items, and among the whole catalogue; on the device.

Every row of a test table that is a positive asks one question: user, item and context, and instead of the item each
candidate in turn, with the candidate's own columns and lists. What `models/metrics/ranking.py` says of ties holds here.

Shapes: R questions, V items of the catalogue, N sampled negatives, C id columns, F float columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gigabatch.features.vocabulary.vocabulary import LAYOUT
from gigabatch.loaders.negatives.draws import UniformNegatives
from gigabatch.loaders.negatives.table import KnownPositives
from gigabatch.loaders.tables.entity_rows import EntityRows
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import Batch, PackedTable, unpack
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.metrics.ranking import PositiveRanks, log_chance_of_absence
from gigabatch.models.model import Model, Towers, WholeRows, tower_vectors
from gigabatch.models.modes import modes_kept
from gigabatch.models.retrieval import TopK, best_of
from gigabatch.pipeline.bundle import BLOCK_ROWS, standardised_outputs
from gigabatch.pipeline.config.config import RankingSettings
from gigabatch.pipeline.display import progress
from gigabatch.pipeline.evaluation.sample import spread

SCORES_AT_ONCE = 1 << 22  # of candidates; pairs are scored `BLOCK_ROWS` at a time
ELEMENTS_AT_ONCE = 1 << 22  # of lists: where they are long, fewer pairs are scored at a time


class RankingError(ValueError):
    """The ranking cannot be evaluated; the message says what is missing."""


def _told_ids(users: Tensor) -> str:
    return f"users {users.nonzero().flatten()[:5].tolist()}"


@dataclass(frozen=True, eq=False)
class Catalogue:
    """What can be recommended, to whom.

    items: the columns of every item. item_ids: the candidates, the ids of the items' vocabulary. user_column: place of
    the users' key among the ids. first_user: ids below are no user but many, the null and the unseen. known: by split,
    what each user chose. told: names users (true in bool [users]) in messages.
    """

    items: EntityRows
    item_ids: range
    user_column: int
    first_user: int
    known: Mapping[str, KnownPositives]
    told: Callable[[Tensor], str] = _told_ids

    @classmethod
    def of(
        cls,
        tables: Mapping[str, PackedTable],
        inputs: ModelInputs,
        device: str,
        *,
        first_user: int = LAYOUT.first,
        first_item: int = LAYOUT.first,
    ) -> Catalogue:
        """From the packed tables by split, of which `train` has every item's columns, and the places in `inputs`.

        first_user, first_item: the first id of either vocabulary (`IdLayout.first`).

        Raises:
            RankingError: where the schema names no user or no item, or has no binary target.
        """
        missing = [name for name in ("user", "item") if getattr(inputs, name) is None]
        if inputs.user is None or inputs.item is None:
            raise RankingError(
                f"ranking: the schema does not say which columns are those of {' and '.join(missing)}. Name them in "
                "the recipe's settings (features.entities)."
            )
        user, item = inputs.user, inputs.item
        num_users = inputs.num_ids[user.key]
        known = {}
        for split, table in tables.items():
            ids = positive_rows(table).words[:, [user.key, item.key]].to(device)
            ids = ids[ids[:, 0] >= first_user]
            known[split] = KnownPositives.from_pairs(ids[:, 0], ids[:, 1], num_users)
        items = EntityRows.of(tables["train"], item.key, item.ids, item.floats, item.lists).to(device)
        return cls(items, range(first_item, items.num_ids), user.key, first_user, known)

    def num_left(self, known: KnownPositives) -> Tensor:
        """Candidates that each user does not know: int64 [users]."""
        return known.num_left(torch.arange(self.items.num_ids) >= self.item_ids.start)

    def left_out(self, positives: PackedTable, settings: RankingSettings) -> Tensor:
        """Users of these rows who leave fewer items than negatives are asked for: bool [users].

        Raises:
            RankingError: where all are, and fewer negatives could be drawn for some.
        """
        users = positives.words[self.askable(positives), self.user_column].long()
        left = self.num_left(self.known_in(settings.negatives_are_not_in, users.device))
        few = left < (settings.negatives or 0)
        out = torch.zeros_like(few).index_fill(0, users, True) & few
        if len(users) and bool(out[users].all()) and bool(left[users].any()):
            raise RankingError(
                f"ranking: known positives of {self.told(out)} leave fewer than {settings.negatives} of "
                f"{len(self.item_ids)} items, and nobody else is asked about. Ask for fewer negatives "
                "(evaluate.ranking.negatives)."
            )
        return out

    def askable(self, positives: PackedTable) -> Tensor:
        """Rows that weigh something and whose item is in the catalogue: bool [R]."""
        items, weight = positives.words[:, self.items.key_column], unpack(positives.schema, positives.words).weight
        inside = (items >= self.item_ids.start) & (items < self.item_ids.stop)
        return inside if weight is None else inside & (weight > 0)

    def known_in(self, splits: tuple[str, ...], device: torch.device) -> KnownPositives:
        """What each user chose in any of `splits`, those of them that there are."""
        parts = [self.known[split] for split in splits if split in self.known]
        num_users = next(iter(self.known.values())).num_users
        nothing = torch.zeros(0, dtype=torch.int32, device=device)
        users = torch.cat([nothing.long(), *(part.users.to(device) for part in parts)])
        items = torch.cat([nothing, *(part.items.to(device) for part in parts)])
        return KnownPositives.from_pairs(users, items, num_users)


def positive_rows(table: PackedTable) -> PackedTable:
    """The rows whose first target, a binary one, is 1."""
    if not table.schema.targets or table.schema.targets[0].task != "binary":
        raise RankingError("ranking: what users chose is a first target that is binary, and this table has none.")
    chosen = unpack(table.schema, table.words).targets[0] == 1
    return table.with_words(table.words[chosen].contiguous())


def rank_evaluate(
    model: nn.Module,
    positives: PackedTable,
    catalogue: Catalogue,
    settings: RankingSettings,
    *,
    seed: int,
    device: str,
    output: int = 0,
) -> dict[str, Any]:
    """Rank the item of each row of `positives` among candidates; `output`: which of the model's outputs is the score.

    A row whose item is not in the catalogue (one that came after training) cannot be ranked and is left out; their
    share is `cold_items`. Negatives depend on (seed, row of `positives`) alone. A candidate is never the positive
    itself. Where negatives are drawn, nobody is asked about who leaves fewer items than that (`Catalogue.left_out`).
    Means over rows by their weights; of recall, over users first, so that each counts once. A row of weight 0 is not
    asked about.

    Returns rows, cold_items, and by `sampled` and `catalogue`, where asked for: candidates (of a question, in the
    mean), mrr, and for each k hr@k, ndcg@k, recall@k; coverage@k of the catalogue. None where there is no row.

    Raises:
        RankingError: for scores that are not finite; where all users leave too few items to draw from.
    """
    return ranked(model, positives, catalogue, settings, seed=seed, device=device, output=output).found


@dataclass(frozen=True, eq=False)
class Ranked:
    """What `rank_evaluate` found, and where each question's item stands, by `sampled` and `catalogue`.

    users: a number of each question's user, equal for one user; weight: of each question [R], or None.
    """

    found: dict[str, Any]
    ranks: dict[str, PositiveRanks]
    users: Tensor
    weight: Tensor | None


def ranked(
    model: nn.Module,
    positives: PackedTable,
    catalogue: Catalogue,
    settings: RankingSettings,
    *,
    seed: int,
    device: str,
    output: int = 0,
) -> Ranked:
    """`rank_evaluate`, with the place of every row."""
    askable, weight = catalogue.askable(positives), unpack(positives.schema, positives.words).weight
    mass = torch.ones(len(positives), device=askable.device) if weight is None else weight
    nobody = catalogue.left_out(positives, settings)[positives.words[:, catalogue.user_column].long()]
    rows = (askable & ~nobody).nonzero()[:, 0]
    if settings.max_rows is not None and len(rows) > settings.max_rows:
        rows = rows[spread(len(rows), settings.max_rows).to(rows.device)]
    lists = positives.lists if not isinstance(model, Model) or model.inputs.lists else ()  # baselines know of none
    asked = unpack(positives.schema, positives.words[rows], lists).to(device)
    total = float(mass.double().sum())
    cold = 1 - float((askable * mass.double()).sum()) / total if total > 0 else None
    found: dict[str, Any] = {"rows": len(rows), "cold_items": cold}
    users = _one_number_a_user(asked.ids[:, catalogue.user_column], catalogue.first_user)
    places: dict[str, PositiveRanks] = {}
    with modes_kept(model):
        model.eval()
        scorer = _scorer(model)(model, asked, catalogue.items, output)
        if settings.negatives is not None:
            ranks = places["sampled"] = _among_negatives(scorer, asked, rows.to(device), catalogue, settings, seed)
            found["sampled"] = {"candidates": 1 + settings.negatives} | _means(ranks, users, settings.k, asked.weight)
        if settings.full_catalogue:
            ranks, candidates, coverage = _among_all(scorer, asked, catalogue, settings)
            places["catalogue"] = ranks
            of_catalogue = {"candidates": candidates} | _means(ranks, users, settings.k, asked.weight)
            found["catalogue"] = of_catalogue | coverage
    return Ranked(found, places, users, asked.weight)


def best_items(
    model: nn.Module,
    asked: Batch,
    items: EntityRows,
    item_ids: Tensor,
    known: KnownPositives | None,
    user_column: int,
    k: int,
) -> TopK:
    """The k items of greatest score for each row of `asked`, whatever its item is; equal ones by their ids.

    item_ids: bool [ids], the candidates; known: what is none for a user. Returns scores [R, k] and ids [R, k], -inf and
    -1 where there are fewer.

    Raises:
        RankingError: for scores that are not finite.
    """
    device, parts = asked.ids.device, []
    everything = torch.arange(len(item_ids), dtype=torch.int32, device=device)
    with modes_kept(model):
        model.eval()
        scorer = _scorer(model)(model, asked, items, 0)
        for rows in _blocks(len(asked.ids), len(item_ids), device, "recommend"):
            scores = scorer(rows, everything).masked_fill(~item_ids, -torch.inf)
            if known is not None:
                _leave_out(scores, known, asked.ids[rows, user_column].long(), range(len(item_ids)))
            parts.append(best_of(scores, k))
    return TopK(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _scorer(model: nn.Module) -> type[PairScores | TowerScores]:
    if isinstance(model, WholeRows):
        return RowScores
    return TowerScores if isinstance(model, Towers) else PairScores


class PairScores:
    """Scores of any model: each question's row with the candidate's columns in place of its item's.

    Called with rows [b] int64 of `asked` and items [b, n] int32, or [n] for all of them; float32 [b, n]. No more than
    `BLOCK_ROWS` rows are made at a time, fewer where they may hold more than `ELEMENTS_AT_ONCE` elements of lists, and
    always the same ones together, so that a repeated ranking has the same bits.
    """

    def __init__(self, model: Any, asked: Batch, items: EntityRows, output: int) -> None:
        self.model, self.asked, self.items, self.output = model, asked, items, output
        self.at_once = _rows_at_once(asked.lists, items)

    def __call__(self, rows: Tensor, items: Tensor) -> Tensor:
        return _pairs(rows, items, self._score, self.at_once)

    def _score(self, rows: Tensor, items: Tensor) -> Tensor:
        ids, floats = self.asked.ids[rows], self.asked.floats[rows]
        self.items.fill(ids, floats, items)
        lists = self.items.lists_beside(self.asked.lists, rows, items)
        return next(standardised_outputs(self.model, ids, floats, lists))[:, self.output]


class RowScores(PairScores):
    """The same of a model that scores all items for a user at once: as pairs where they are few."""

    def __call__(self, rows: Tensor, items: Tensor) -> Tensor:
        if items.dim() > 1:
            return super().__call__(rows, items)
        scores: Tensor = self.model.catalogue_scores(self.asked.ids[rows], self.asked.floats[rows])
        return _finite(scores.index_select(1, items))


class TowerScores:
    """The same of a model with towers, whose vectors are made once: of each question's user, and of each item."""

    def __init__(self, model: Any, asked: Batch, items: EntityRows, output: int) -> None:
        self.model, self.output = model, output

        def of_users(rows: Tensor) -> Tensor:
            lists = [column.rows(rows) for column in asked.lists]
            return tower_vectors(model, "user", asked.ids[rows], asked.floats[rows], lists)

        # Of rows that are nobody's.
        nobody = [JaggedColumn.empty(1, column.weights is not None, asked.ids.device) for column in asked.lists]

        def of_items(rows: Tensor) -> Tensor:
            ids = asked.ids.new_zeros(len(rows), asked.ids.shape[1])
            floats = asked.floats.new_zeros(len(rows), asked.floats.shape[1])
            items.fill(ids, floats, rows)
            lists = items.lists_beside(nobody, torch.zeros_like(rows), rows)
            return tower_vectors(model, "item", ids, floats, lists)

        # A subclass with a `score` of its own inherits the `score_all` of another one.
        ways = (vars(kind).keys() & {"score", "score_all"} for kind in type(model).__mro__)
        self.takes_all = "score_all" in next(filter(None, ways), ())
        at_once = _rows_at_once(asked.lists, items)
        self.users = _in_blocks(of_users, len(asked.ids), asked.ids.device, at_once)
        self.items = _in_blocks(of_items, items.num_ids, asked.ids.device, at_once)

    def __call__(self, rows: Tensor, items: Tensor) -> Tensor:
        if items.dim() == 1 and self.takes_all:
            with torch.inference_mode():
                found: Tensor | None = self.model.score_all(self.users[rows], self.items[items])
            if found is not None:
                return _finite(found.clone())
        return _pairs(rows, items, self._score, BLOCK_ROWS)

    def _score(self, rows: Tensor, items: Tensor) -> Tensor:
        with torch.inference_mode():
            scores: Tensor = self.model.score(self.users[rows], self.items[items])
        return scores[:, self.output]


Scorer = PairScores | TowerScores


def _rows_at_once(lists: Sequence[JaggedColumn], items: EntityRows) -> int:
    """Pairs that are scored at a time: `BLOCK_ROWS`, or fewer where the longest lists of a pair would be more than
    `ELEMENTS_AT_ONCE` elements together."""
    own = dict(zip(items.list_columns, items.lists, strict=True)) if lists else {}
    columns = [own.get(place, column) for place, column in enumerate(lists)]
    longest = sum(int(column.offsets.diff().max()) for column in columns if column.num_rows)
    return min(BLOCK_ROWS, max(ELEMENTS_AT_ONCE // max(longest, 1), 1))


@torch.inference_mode()
def _in_blocks(vectors: Callable[[Tensor], Tensor], num_rows: int, device: torch.device, at_once: int) -> Tensor:
    """`vectors` of rows 0 ... num_rows - 1, in blocks."""
    starts = range(0, num_rows, at_once)
    parts = [vectors(torch.arange(start, min(start + at_once, num_rows), device=device)) for start in starts]
    return torch.cat(parts) if parts else torch.zeros(0, 0, device=device)


def _pairs(rows: Tensor, items: Tensor, score: Callable[[Tensor, Tensor], Tensor], at_once: int) -> Tensor:
    """Scores [b, n] of every row [b] with its items [b, n], or with all items [n], `at_once` pairs at a time."""
    num_items = items.shape[-1]
    found = torch.empty(len(rows) * num_items, device=rows.device)
    for start in range(0, len(found), at_once):
        pairs = torch.arange(start, min(start + at_once, len(found)), device=rows.device)
        mine = rows[pairs // num_items]
        found[start : start + at_once] = score(mine, items.flatten()[pairs % items.numel()])
    return _finite(found).view(len(rows), num_items)


def _finite(scores: Tensor) -> Tensor:
    """The scores; `RankingError` where one is not finite."""
    if not bool(scores.isfinite().all()):
        raise RankingError("ranking: the model gave scores that are not finite.")
    return scores


def _among_negatives(
    scorer: Scorer, asked: Batch, positions: Tensor, catalogue: Catalogue, settings: RankingSettings, seed: int
) -> PositiveRanks:
    """Ranks among the row's own item and `settings.negatives` others, drawn by the row's place in the split."""
    assert settings.negatives is not None
    device = asked.ids.device
    known = catalogue.known_in(settings.negatives_are_not_in, device)
    known = known.without(catalogue.num_left(known) < settings.negatives)  # none of whom asks
    sampler = UniformNegatives(catalogue.item_ids, settings.negatives, known, False, seed, device)
    parts = []
    for rows in _blocks(len(positions), 1 + settings.negatives, device, "ranking among negatives"):
        users = asked.ids[rows, catalogue.user_column].contiguous()
        own = asked.ids[rows, catalogue.items.key_column][:, None]
        drawn = sampler(positions[rows], users).ids
        scores = scorer(rows, torch.cat([own, drawn], dim=1))
        # Drawn all the same: an item that this row's user, of whom nothing is known, has chosen just now.
        scores[:, 1:] = scores[:, 1:].where(drawn != own, -torch.inf)
        parts.append(PositiveRanks.of(scores))
    return _joined(parts, device)


def _among_all(
    scorer: Scorer, asked: Batch, catalogue: Catalogue, settings: RankingSettings
) -> tuple[PositiveRanks, float | None, dict[str, float | None]]:
    """Ranks among the whole catalogue but what the user knows, how many items that is in the mean, and the catalogue's
    coverage."""
    item_ids, device = catalogue.item_ids, asked.ids.device
    known = catalogue.known_in(settings.catalogue_is_without, device)
    everything = torch.arange(item_ids.start, item_ids.stop, dtype=torch.int32, device=device)
    log_absent = {k: torch.zeros(len(item_ids), dtype=torch.float64, device=device) for k in settings.k}
    parts, counts = [], []
    for rows in _blocks(len(asked.ids), len(item_ids), device, "ranking among all items"):
        own = (asked.ids[rows, catalogue.items.key_column].long() - item_ids.start)[:, None]
        scores = scorer(rows, everything)
        positive = scores.gather(1, own)
        _leave_out(scores, known, asked.ids[rows, catalogue.user_column].long(), item_ids)
        scores.scatter_(1, own, -torch.inf)
        parts.append(PositiveRanks.of(torch.cat([positive, scores], dim=1)))
        scores.scatter_(1, own, positive)
        counts.append((scores > -torch.inf).sum(1).double())
        for k, total in log_absent.items():
            total += log_chance_of_absence(scores, k)
    covered = {f"coverage@{k}": float((1 - total.exp()).mean()) if parts else None for k, total in log_absent.items()}
    mass = None if asked.weight is None else asked.weight.double()
    candidates = None if not counts else _mean(torch.cat(counts), mass)
    return _joined(parts, device), candidates, covered


def _leave_out(scores: Tensor, known: KnownPositives, users: Tensor, item_ids: range) -> None:
    """Set the scores [b, V] of what the users [b] know to minus infinity."""
    first = known.offsets[users]
    counts = known.offsets[users + 1] - first
    row = torch.arange(len(users), device=users.device).repeat_interleave(counts)
    place = torch.arange(len(row), device=users.device) - (counts.cumsum(0) - counts)[row] + first[row]
    column = known.items[place].long() - item_ids.start
    inside = (column >= 0) & (column < len(item_ids))
    scores[row[inside], column[inside]] = -torch.inf


def _blocks(num_rows: int, num_candidates: int, device: torch.device, label: str) -> Any:
    """Row numbers [b] int64 of one block after another, so that a block has about `SCORES_AT_ONCE` scores."""
    rows = torch.arange(num_rows, device=device)
    return progress(rows.split(max(SCORES_AT_ONCE // num_candidates, 1)) if num_rows else [], label)


def _joined(parts: list[PositiveRanks], device: torch.device) -> PositiveRanks:
    none = torch.zeros(0, dtype=torch.int64, device=device)
    return PositiveRanks.concat([PositiveRanks(none, none), *parts])


def _one_number_a_user(users: Tensor, first_user: int) -> Tensor:
    """Numbers [R] from 0 that are equal for rows of one user; a row of an unknown user is a user of its own."""
    alone = users.max() + 1 + torch.arange(len(users), device=users.device) if len(users) else users
    return torch.where(users >= first_user, users, alone).unique(return_inverse=True)[1]


def _mean(values: Tensor, mass: Tensor | None) -> float:
    return float(values.mean() if mass is None else (values * mass).sum() / mass.sum())


def _means(
    ranks: PositiveRanks, users: Tensor, depths: tuple[int, ...], weight: Tensor | None
) -> dict[str, float | None]:
    """Metrics by name; weight: of each rank, above 0."""
    if not len(users):
        return dict.fromkeys(["mrr", *(f"{name}@{k}" for k in depths for name in ("hr", "ndcg", "recall"))])
    mass = torch.ones(len(users), dtype=torch.float64, device=users.device) if weight is None else weight.double()
    of_user = users.bincount(mass)
    found: dict[str, float | None] = {"mrr": _mean(ranks.reciprocal_rank(), mass)}
    for k in depths:
        hits = ranks.hit_rate(k)
        by_user = users.bincount(hits * mass) / of_user
        found |= {f"hr@{k}": _mean(hits, mass), f"ndcg@{k}": _mean(ranks.ndcg(k), mass)}
        found[f"recall@{k}"] = float(by_user.mean())
    return found
