"""Ranking evaluation against a slow loop, and with scorers whose ranks are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from gigabatch.features.schema import IdColumn, IdList, Target, TensorSchema
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.ensemble import Ensemble
from gigabatch.models.inputs import EntityColumns, ListInputs, ModelInputs
from gigabatch.models.model import Model
from gigabatch.pipeline.evaluation import rank_evaluate as module
from gigabatch.pipeline.evaluation.rank_evaluate import (
    Catalogue,
    RankingError,
    RankingSettings,
    positive_rows,
    rank_evaluate,
)
from gigabatch.pipeline.evaluation.sample import spread
from gigabatch.pipeline.evaluation.told import ranking_rows

SMALL = RankingSettings(k=(1,), negatives=20)
USERS, ITEMS = 30, 60  # ids of either column, 3 and up are users and items
USER, ITEM, BRAND, DAY = range(4)
PRICE, HOUR = range(2)
INPUTS = ModelInputs(
    (USERS, ITEMS, 9, 5), 2, user=EntityColumns(USER, (USER,)), item=EntityColumns(ITEM, (ITEM, BRAND), (PRICE,))
)
SCHEMA = TensorSchema(
    (IdColumn("user", USERS), IdColumn("item", ITEMS), IdColumn("brand", 9), IdColumn("day", 5)),
    ("price", "hour"),
    (Target("chosen", "binary"),),
)


def brand_of(item):
    return 3 + item % 6


def price_of(item):
    return ((item * 7) % 11) / 4.0


def table_of(users, items, labels, seed=0) -> PackedTable:
    random = torch.Generator().manual_seed(seed)
    users, items = (torch.as_tensor(ids, dtype=torch.int32) for ids in (users, items))
    day = torch.randint(5, (len(users),), generator=random, dtype=torch.int32)
    hour = torch.randint(4, (len(users),), generator=random).float()
    columns = [users, items, brand_of(items).int(), day]
    floats = [price_of(items.float()).float(), hour]
    return PackedTable.from_columns(SCHEMA, columns, floats, [torch.as_tensor(labels, dtype=torch.float32)])


def random_tables(seed=0) -> dict[str, PackedTable]:
    """Train, valid and test rows; every item is in train, a user has about ten positives there."""
    random = np.random.default_rng(seed)
    pairs = random.permutation([(user, item) for user in range(3, USERS) for item in range(3, ITEMS)])
    rows = {"train": pairs[:700], "valid": pairs[700:760], "test": pairs[760:820]}
    assert set(rows["train"][:, 1]) == set(range(3, ITEMS))
    return {
        split: table_of(part[:, 0], part[:, 1], random.random(len(part)) < 0.4, seed + place)
        for place, (split, part) in enumerate(rows.items())
    }


class Scorer(nn.Module):
    """Scores that are a function of ids and floats."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, ids, floats):
        return self.function(ids, floats)[:, None]


def mixed_score(ids, floats):
    """Of the user, context and all columns of the item; whole numbers, so that many are tied."""
    ids = ids.long()
    mixed = ids[:, USER] * 5 + ids[:, ITEM] * 3 + ids[:, BRAND] * 7 + ids[:, DAY] + floats[:, PRICE] * 4 * ids[:, DAY]
    return (mixed + floats[:, HOUR]) % 10


def evaluated(model, tables, settings, seed=1, split="test"):
    catalogue = Catalogue.of(tables, INPUTS, "cpu")
    return rank_evaluate(model, positive_rows(tables[split]), catalogue, settings, seed=seed, device="cpu")


def slow_catalogue(tables, depths, without=("train",)):
    """hr, ndcg, recall, mrr and coverage by loops over rows, items and places, every order of ties equally likely."""
    known = {(r[USER], r[ITEM]) for split in without for r in positive_rows(tables[split]).words.tolist()}
    sums: dict[str, list[float]] = {}
    users, missed = [], {k: np.ones(ITEMS - 3) for k in depths}
    batch = tables["test"].unpack(positive_rows(tables["test"]).words)
    for ids, floats in zip(batch.ids.tolist(), batch.floats.tolist(), strict=True):
        scores = {}
        for item in range(3, ITEMS):
            if item == ids[ITEM] or (ids[USER], item) not in known:
                row = torch.tensor([[ids[USER], item, brand_of(item), ids[DAY]]])
                scores[item] = mixed_score(row, torch.tensor([[price_of(item), floats[HOUR]]])).item()
        own = scores[ids[ITEM]]
        better = sum(score > own for score in scores.values())
        level = sum(score == own for score in scores.values())
        places = range(better + 1, better + level + 1)
        sums.setdefault("candidates", []).append(len(scores))
        sums.setdefault("mrr", []).append(1 / np.mean(list(places)))
        users.append(ids[USER])
        for k in depths:
            sums.setdefault(f"hr@{k}", []).append(np.mean([place <= k for place in places]))
            gains = [1 / math.log2(1 + place) if place <= k else 0 for place in places]
            sums.setdefault(f"ndcg@{k}", []).append(np.mean(gains))
            for item, score in scores.items():
                above = sum(other > score for other in scores.values())
                tied = sum(other == score for other in scores.values())
                missed[k][item - 3] *= 1 - np.mean([place <= k for place in range(above + 1, above + tied + 1)])
    found = {name: float(np.mean(values)) for name, values in sums.items()}
    for k in depths:
        by_user = [
            np.mean([h for h, u in zip(sums[f"hr@{k}"], users, strict=True) if u == user]) for user in set(users)
        ]
        found |= {f"recall@{k}": float(np.mean(by_user)), f"coverage@{k}": float(np.mean(1 - missed[k]))}
    return found


@pytest.mark.parametrize("without", [("train",), ("train", "valid"), ()])
def test_the_whole_catalogue_is_ranked_as_in_a_slow_loop(without):
    tables = random_tables()
    settings = RankingSettings(k=(1, 5, 20), negatives=None, catalogue_is_without=without)
    found = evaluated(Scorer(mixed_score), tables, settings)
    assert found["rows"] == len(positive_rows(tables["test"]))
    assert "sampled" not in found
    assert found["catalogue"] == pytest.approx(slow_catalogue(tables, (1, 5, 20), without), abs=1e-12)


def test_a_choice_of_weight_three_counts_as_three_choices():
    tables = random_tables()
    test = tables["test"]
    times = torch.arange(len(test)) % 4
    schema = replace(SCHEMA, has_weight=True)
    words = torch.cat([test.words, (times / 2).float().view(torch.int32)[:, None]], 1)
    settings = RankingSettings(k=(1, 5), negatives=None)
    catalogue = Catalogue.of(tables, INPUTS, "cpu")
    found, expected = (
        rank_evaluate(Scorer(mixed_score), positive_rows(table), catalogue, settings, seed=1, device="cpu")
        for table in (PackedTable(words, schema), PackedTable(test.words.repeat_interleave(times, 0), SCHEMA))
    )
    assert found["rows"] < expected["rows"]
    assert found["cold_items"] == expected["cold_items"] == 0
    means = [name for name in expected["catalogue"] if not name.startswith("coverage")]  # of questions, not of choices
    assert [found["catalogue"][n] for n in means] == pytest.approx([expected["catalogue"][n] for n in means])


def test_blocks_change_no_rank(monkeypatch):
    tables, settings = random_tables(), RankingSettings(k=(5,), negatives=20)
    whole = evaluated(Scorer(mixed_score), tables, settings)
    monkeypatch.setattr(module, "SCORES_AT_ONCE", 130)  # 2 rows of the catalogue
    monkeypatch.setattr(module, "BLOCK_ROWS", 37)
    in_blocks = evaluated(Scorer(mixed_score), tables, settings)
    for name in ("sampled", "catalogue"):
        assert in_blocks[name] == pytest.approx(whole[name], abs=1e-12)


def test_of_many_rows_an_even_sample_is_ranked():
    tables = random_tables()
    settings = RankingSettings(k=(5,), negatives=20, max_rows=5)
    found = evaluated(Scorer(mixed_score), tables, settings)
    positives = positive_rows(tables["test"])
    places = spread(len(positives), 5)
    catalogue = Catalogue.of(tables, INPUTS, "cpu")
    few = PackedTable(positives.words[places].contiguous(), SCHEMA)
    alone = rank_evaluate(Scorer(mixed_score), few, catalogue, settings, seed=1, device="cpu")
    assert found["rows"] == 5
    assert found["catalogue"] == alone["catalogue"]


def test_negatives_are_drawn_by_seed_and_are_never_known():
    """The model answers 1 for what is known: if such a negative came, the positive would not be alone in front."""
    tables = random_tables()
    known = torch.zeros(USERS, ITEMS)
    for table in tables.values():
        words = positive_rows(table).words
        known[words[:, USER].long(), words[:, ITEM].long()] = 1
    seen = []

    def score(ids, floats):
        seen.append(ids[:, [USER, ITEM]].clone())
        return known[ids[:, USER].long(), ids[:, ITEM].long()]

    settings = RankingSettings(k=(1,), negatives=30, full_catalogue=False)
    found = evaluated(Scorer(score), tables, settings)["sampled"]
    assert found == {"candidates": 31, "mrr": 1.0, "hr@1": 1.0, "ndcg@1": 1.0, "recall@1": 1.0}
    first = torch.cat(seen)
    num_rows = len(positive_rows(tables["test"]))
    asked = first[: num_rows * 31].view(num_rows, 31, 2)
    assert all(len(set(row[:, 1].tolist())) == 31 for row in asked)  # without replacement
    assert int(asked[:, :, 1].min()) >= 3
    seen.clear()
    evaluated(Scorer(score), tables, settings)
    assert torch.equal(torch.cat(seen), first)
    seen.clear()
    evaluated(Scorer(score), tables, settings, seed=2)
    assert not torch.equal(torch.cat(seen), first)
    only_train = RankingSettings(k=(1,), negatives=30, full_catalogue=False, negatives_are_not_in=("train",))
    assert evaluated(Scorer(score), tables, only_train)["sampled"]["hr@1"] < 1


def one_choice_each(num_users=2000, num_items=403):
    """Users who each chose one item in train and one in test."""
    random = np.random.default_rng(4)
    users = np.arange(3, 3 + num_users)
    schema = TensorSchema(
        (IdColumn("user", 3 + num_users), IdColumn("item", num_items)), (), (Target("chosen", "binary"),)
    )
    inputs = ModelInputs((3 + num_users, num_items), 0, user=EntityColumns(0, (0,)), item=EntityColumns(1, (1,)))
    tables = {}
    for split in ("train", "test"):
        items = random.integers(3, num_items, num_users)
        ids = [torch.tensor(column, dtype=torch.int32) for column in (users, items)]
        tables[split] = PackedTable.from_columns(schema, ids, [], [torch.ones(num_users)])
    catalogue = Catalogue.of(tables, inputs, "cpu")
    return tables["test"], catalogue


def test_a_scorer_that_knows_nothing_has_the_values_of_chance():
    positives, catalogue = one_choice_each()
    scorer, settings = Scorer(lambda ids, floats: torch.zeros(len(ids))), RankingSettings(k=(10,))
    found = rank_evaluate(scorer, positives, catalogue, settings, seed=1, device="cpu")
    for name, candidates in (("sampled", 100), ("catalogue", 399)):  # 400 items, of which train's is no candidate
        gain = sum(1 / math.log2(1 + rank) for rank in range(1, 11)) / candidates
        assert found[name]["hr@10"] == found[name]["recall@10"] == pytest.approx(10 / candidates, rel=2e-3)
        assert found[name]["ndcg@10"] == pytest.approx(gain, rel=2e-3)
        assert found[name]["mrr"] == pytest.approx(2 / (candidates + 1), rel=2e-3)
    assert found["catalogue"]["coverage@10"] == pytest.approx(1, abs=1e-9)  # all orders of the ties are possible


class DotTowers(nn.Module):
    """Tables of users and items with the day in the user's vector and brand and price in the item's."""

    def __init__(self):
        super().__init__()
        random = torch.Generator().manual_seed(3)
        self.users, self.items, self.brands, self.days = (
            torch.randint(-3, 4, (n, 4), generator=random).float() for n in (USERS, ITEMS, 9, 5)
        )
        self.num_item_rows = 0

    def user_vectors(self, ids, floats):
        return self.users[ids[:, USER].long()] + self.days[ids[:, DAY].long()] + floats[:, [HOUR]]

    def item_vectors(self, ids, floats):
        self.num_item_rows += len(ids)
        return self.items[ids[:, ITEM].long()] + self.brands[ids[:, BRAND].long()] + floats[:, [PRICE]] * 4

    def score(self, user_vectors, item_vectors):
        return (user_vectors * item_vectors).sum(1, keepdim=True)


def test_a_model_with_towers_is_asked_for_each_vector_once_and_ranks_the_same():
    tables, towers = random_tables(), DotTowers()

    def score(ids, floats):
        return towers.score(towers.user_vectors(ids, floats), towers.item_vectors(ids, floats))[:, 0]

    settings = RankingSettings(k=(3, 10), negatives=25)
    by_pairs = evaluated(Scorer(score), tables, settings)
    towers.num_item_rows = 0
    assert evaluated(towers, tables, settings) == by_pairs
    assert towers.num_item_rows == ITEMS
    assert 0.1 < by_pairs["catalogue"]["hr@10"] < 0.9


class ProductTowers(DotTowers):
    """The same with all pairs at once."""

    num_products = 0

    def score_all(self, user_vectors, item_vectors):
        self.num_products += 1
        return user_vectors @ item_vectors.T


class NearestTowers(ProductTowers):
    """Scores of its own, which are no products."""

    def score(self, user_vectors, item_vectors):
        return -(user_vectors - item_vectors).abs().sum(1, keepdim=True)


@pytest.mark.parametrize("kind", [ProductTowers, NearestTowers])
def test_all_pairs_at_once_are_those_of_the_class_that_gives_the_score(kind):
    """Of a model with a `score` of its own the inherited `score_all` is of another one."""
    tables, towers = random_tables(), kind()

    def score(ids, floats):
        return towers.score(towers.user_vectors(ids, floats), towers.item_vectors(ids, floats))[:, 0]

    settings = RankingSettings(k=(3, 10), negatives=25)
    assert evaluated(towers, tables, settings) == evaluated(Scorer(score), tables, settings)
    assert (towers.num_products > 0) == (kind is ProductTowers)


def test_items_that_came_after_training_are_left_out_and_new_users_are_one_each():
    tables = random_tables()
    users, items = [2, 2, 5, 6, 7], [10, 11, 12, 2, 1]  # two new users; the last two items are unseen and null
    tables["test"] = table_of(users, items, [1] * 5)
    model = Scorer(lambda ids, floats: (ids[:, ITEM] == 10).float())
    found = evaluated(model, tables, SMALL)
    assert found["rows"] == 3
    assert found["cold_items"] == pytest.approx(2 / 5)
    assert found["catalogue"]["hr@1"] == found["catalogue"]["recall@1"] == pytest.approx(1 / 3, abs=1e-12)


def test_a_positive_that_the_user_chose_before_is_still_ranked():
    tables = random_tables()
    again = positive_rows(tables["train"]).words[:10]
    tables["test"] = PackedTable(again.clone(), SCHEMA)
    known = {tuple(row[:2]) for row in again.tolist()}
    model = Scorer(lambda ids, floats: torch.tensor([float(tuple(pair) in known) for pair in ids[:, :2].tolist()]))
    found = evaluated(model, tables, RankingSettings(k=(1,), negatives=5))
    assert found["catalogue"]["hr@1"] == found["sampled"]["hr@1"] == 1


def test_each_part_of_the_model_stays_in_its_own_mode():
    model = Scorer(mixed_score).train()
    model.frozen = torch.nn.Identity().eval()
    evaluated(model, random_tables(), SMALL)
    assert (model.training, model.frozen.training) == (True, False)


def test_without_rows_nothing_is_known_and_the_mode_of_the_model_stays():
    tables = random_tables()
    tables["test"] = table_of([4], [1], [1])
    model = Scorer(mixed_score).train()
    found = evaluated(model, tables, RankingSettings(k=(2,), negatives=20))
    assert model.training
    assert (found["rows"], found["cold_items"]) == (0, 1.0)
    names = {"mrr", "hr@2", "ndcg@2", "recall@2", "coverage@2"}
    assert {found["catalogue"][name] for name in names} == {None}
    rows = ranking_rows(found)
    assert [row["ranked among"] for row in rows] == ["sampled negatives", "whole catalogue"]


def test_a_user_who_leaves_too_few_items_is_left_out_and_the_others_are_asked():
    """One such user ended the evaluation of all."""
    tables = random_tables()
    full = [item for item in range(3, ITEMS) if item not in (20, 21, 22)]  # of user 4: 4 items are left, 20 is chosen
    others = tables["train"].words[tables["train"].words[:, USER] != 4]
    own = table_of([4] * len(full), full, [1] * len(full)).words
    tables["train"] = PackedTable(torch.cat([others, own]), SCHEMA)
    tables["test"] = table_of([4, 5, 6], [20, 21, 22], [1, 1, 1])
    found = evaluated(Scorer(mixed_score), tables, SMALL)
    alone = evaluated(Scorer(mixed_score), tables | {"test": table_of([5, 6], [21, 22], [1, 1])}, SMALL)
    assert (found["rows"], found["cold_items"]) == (2, 0)
    assert found["catalogue"]["candidates"] == alone["catalogue"]["candidates"]
    assert evaluated(Scorer(mixed_score), tables, RankingSettings(k=(1,), negatives=2))["rows"] == 3
    with pytest.raises(RankingError, match=r"users \[4\] leave fewer than 20 of 57 items"):
        evaluated(Scorer(mixed_score), tables | {"test": table_of([4], [20], [1])}, SMALL)


def test_what_cannot_be_ranked_is_said():
    tables = random_tables()
    with pytest.raises(RankingError, match="which columns are those of item"):
        Catalogue.of(tables, ModelInputs((USERS, ITEMS), 0, user=EntityColumns(0, (0,))), "cpu")
    rating = TensorSchema((IdColumn("user", 5),), (), (Target("stars", "regression"),))
    with pytest.raises(RankingError, match="a first target that is binary"):
        positive_rows(PackedTable.from_columns(rating, [torch.zeros(1, dtype=torch.int32)], [], [torch.ones(1)]))
    with pytest.raises(RankingError, match="not finite"):
        evaluated(Scorer(lambda ids, floats: mixed_score(ids, floats) / 0), tables, SMALL)
    with pytest.raises(RankingError, match=r"known positives .* fewer negatives \(evaluate.ranking.negatives\)"):
        evaluated(Scorer(mixed_score), tables, RankingSettings(negatives=56))


@pytest.mark.parametrize(
    "wrong", [{"k": []}, {"k": [0]}, {"k": [5, 5]}, {"negatives": 0}, {"max_rows": 0}, {"ks": [1]}]
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValidationError):
        RankingSettings(**wrong)


def test_on_any_device_the_ranks_are_those_of_the_cpu(any_device):
    tables, settings = random_tables(), RankingSettings(k=(5,), negatives=20)
    on_cpu = evaluated(Scorer(mixed_score), tables, settings)
    catalogue, positives = Catalogue.of(tables, INPUTS, any_device), positive_rows(tables["test"])
    found = rank_evaluate(Scorer(mixed_score), positives, catalogue, settings, seed=1, device=any_device)
    for name in ("sampled", "catalogue"):
        assert found[name] == pytest.approx(on_cpu[name], abs=1e-12)


# Lists: what the user has seen (context, the item's vocabulary), the user's own, and weighted tags of the item.
SEEN, CLUBS, TAGS = range(3)
LISTED = replace(SCHEMA, lists=(IdList("seen", ITEMS, "item"), IdList("clubs", 6), IdList("tags", 12, weighted=True)))
LISTED_INPUTS = replace(
    INPUTS,
    user=EntityColumns(USER, (USER,), lists=(CLUBS,)),
    item=EntityColumns(ITEM, (ITEM, BRAND), (PRICE,), lists=(TAGS,)),
    lists=(ListInputs(ITEMS, ITEM), ListInputs(6), ListInputs(12, weighted=True)),
)


def tags_of(item):
    """Up to three tags of an item, and their weights, in quarters."""
    return [(item * 5 + place) % 12 for place in range(item % 4)], [
        (1 + (item + place) % 4) / 4 for place in range(item % 4)
    ]


def listed_tables(seed=0) -> dict[str, PackedTable]:
    random, found = np.random.default_rng(seed), {}
    for split, table in random_tables(seed).items():
        batch = table.unpack(table.words)
        seen = [random.integers(3, ITEMS, random.integers(0, 5)).tolist() for _ in range(len(table))]
        clubs = [[int(user) % 6] * (int(user) % 3) for user in batch.ids[:, USER]]
        tags, weights = zip(*(tags_of(int(item)) for item in batch.ids[:, ITEM]), strict=True)
        lists = jagged(seen), jagged(clubs), jagged(tags, weights)
        columns = batch.ids.unbind(1), batch.floats.unbind(1), batch.targets
        found[split] = PackedTable.from_columns(LISTED, *columns, lists=lists)
    return found


def jagged(rows, weights=None) -> JaggedColumn:
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    flat = torch.tensor([value for row in rows for value in row], dtype=torch.int32)
    given = None if weights is None else torch.tensor([value for row in weights for value in row])
    return JaggedColumn(flat, offsets, given)


def slow_sums(column):
    """Of each row the sum of its ids, times their weights where there are some."""
    mass = column.ids.double() if column.weights is None else column.ids * column.weights.double()
    rows = zip(column.offsets.tolist(), column.offsets.tolist()[1:], strict=False)
    return torch.tensor([float(mass[start:stop].sum()) for start, stop in rows])


def listed_score(ids, floats, lists):
    """Whole numbers, exactly, of user, item, context and of what all three lists hold."""
    seen, clubs, tags = (slow_sums(column) for column in lists)
    plain = ids[:, USER] * 5 + ids[:, ITEM] * 3 + ids[:, BRAND] * 7 + floats[:, HOUR]
    return (plain + seen + clubs * 11 + tags * 4 * (1 + seen % 3)) % 13


class ListScorer(nn.Module):
    def forward(self, ids, floats, lists):
        return listed_score(ids, floats, lists)[:, None]


def slow_ranks(tables, split="test"):
    """Of each question its reciprocal rank, by a loop over candidates; those of train are left out."""
    known = {(r[USER], r[ITEM]) for r in positive_rows(tables["train"]).words.tolist()}
    positives, found = positive_rows(tables[split]), []
    batch = positives.unpack(positives.words)
    for place, (ids, floats) in enumerate(zip(batch.ids.tolist(), batch.floats.tolist(), strict=True)):
        scores = {}
        for item in range(3, ITEMS):
            if item != ids[ITEM] and (ids[USER], item) in known:
                continue
            tags, weights = tags_of(item)
            lists = *(jagged([batch.lists[p].to_lists()[place]]) for p in (SEEN, CLUBS)), jagged([tags], [weights])
            row = torch.tensor([[ids[USER], item, brand_of(item), ids[DAY]]])
            scores[item] = float(listed_score(row, torch.tensor([[price_of(item), floats[HOUR]]]), lists))
        own = scores[ids[ITEM]]
        better, level = (sum(compare(s, own) for s in scores.values()) for compare in (float.__gt__, float.__eq__))
        found.append(1 / (better + (level + 1) / 2))
    return float(np.mean(found))


def listed_evaluated(model, tables, settings, inputs=LISTED_INPUTS):
    catalogue = Catalogue.of(tables, inputs, "cpu")
    return rank_evaluate(model, positive_rows(tables["test"]), catalogue, settings, seed=1, device="cpu")


def test_a_candidate_brings_its_own_lists_and_the_question_keeps_the_others(monkeypatch):
    tables, settings = listed_tables(), RankingSettings(k=(5,), negatives=20)
    found = listed_evaluated(ListScorer(), tables, settings)
    assert found["catalogue"]["mrr"] == pytest.approx(slow_ranks(tables), abs=1e-12)
    unlike = [
        {**tables, "test": replace(tables["test"], lists=tuple(
            JaggedColumn.empty(len(tables["test"]), column.weights is not None) if place == emptied else column
            for place, column in enumerate(tables["test"].lists)
        ))}
        for emptied in (SEEN, CLUBS)
    ]  # fmt: skip
    for others in unlike:
        assert listed_evaluated(ListScorer(), others, settings)["catalogue"]["mrr"] != found["catalogue"]["mrr"]
    rows = []
    monkeypatch.setattr(
        ListScorer, "forward", lambda _, *given: (rows.append(len(given[0])), listed_score(*given)[:, None])[1]
    )
    monkeypatch.setattr(module, "ELEMENTS_AT_ONCE", 300)
    assert listed_evaluated(ListScorer(), tables, settings) == found
    assert max(rows) == 300 // (4 + 2 + 3)  # the longest lists of a pair


class ListTowers(nn.Module):
    """Vectors that the sums of the lists are part of: of context and user, and of the item."""

    def user_vectors(self, ids, floats, lists):
        seen, clubs = slow_sums(lists[SEEN]), slow_sums(lists[CLUBS])
        return torch.stack([ids[:, USER] % 5 - 2.0, seen % 7 - 3, clubs - 2, floats[:, HOUR]], 1)

    def item_vectors(self, ids, floats, lists):
        assert all(len(lists[place].ids) == 0 for place in (SEEN, CLUBS))
        return self.plain_item_vectors(ids, floats, lists)

    def plain_item_vectors(self, ids, floats, lists):
        tags = slow_sums(lists[TAGS])
        return torch.stack([ids[:, ITEM] % 3 - 1.0, tags * 4 % 5 - 2, ids[:, BRAND] % 2 - 0.5, tags % 3], 1)

    def score(self, user_vectors, item_vectors):
        return (user_vectors * item_vectors).sum(1, keepdim=True)


def test_towers_with_lists_rank_as_their_pairs_do():
    tables, towers, settings = listed_tables(), ListTowers(), RankingSettings(k=(5,), negatives=20)

    class Pairs(nn.Module):
        def forward(self, *rows):
            return towers.score(towers.user_vectors(*rows), towers.plain_item_vectors(*rows))

    found = listed_evaluated(towers, tables, settings)
    assert found == listed_evaluated(Pairs(), tables, settings)
    assert 0.02 < found["catalogue"]["mrr"] < 0.5


def test_an_ensemble_is_asked_with_its_members_lists():
    class Sums(Model):
        def forward(self, ids, floats, lists=()):
            return listed_score(ids, floats, lists)[:, None] / 4

    inputs, settings = replace(LISTED_INPUTS, targets=(("binary", 1),)), RankingSettings(k=(5,), negatives=20)
    ensemble, tables = Ensemble([Sums(inputs, None), Sums(inputs, None)]), listed_tables()
    found, expected = (listed_evaluated(model, tables, settings) for model in (ensemble, ListScorer()))
    assert found["catalogue"]["mrr"] == pytest.approx(expected["catalogue"]["mrr"], abs=1e-9)


def test_a_model_that_takes_no_lists_is_asked_without_them():
    class Plain(Model):
        def forward(self, ids, floats):
            return mixed_score(ids, floats)[:, None]

    settings = RankingSettings(k=(5,), negatives=20)
    model = Plain(INPUTS, None)
    assert listed_evaluated(model, listed_tables(), settings) == evaluated(model, random_tables(), settings)
