"""Baselines of a ranking: held against pair by pair scores and loops; which are left out; when a sentence is said."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.metrics.ranking import PositiveRanks
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.config.config import RankingSettings
from gigabatch.pipeline.evaluation import rank_evaluate as ranking
from gigabatch.pipeline.evaluation import ranking_baselines as module
from gigabatch.pipeline.evaluation.rank_evaluate import Catalogue, PairScores, Ranked, positive_rows, rank_evaluate
from gigabatch.pipeline.evaluation.ranking_baselines import paired_gain, rank_with_baselines
from gigabatch.pipeline.evaluation.told import ranking_rows
from tests.pipeline.evaluation.test_rank_evaluate import (
    ITEM,
    ITEMS,
    PRICE,
    SCHEMA,
    USER,
    USERS,
    random_tables,
    table_of,
)

INPUTS = ModelInputs(
    (USERS, ITEMS, 9, 5), 2, 1,
    user=EntityColumns(USER, (USER,), first=3), item=EntityColumns(ITEM, (ITEM, 2), (PRICE,), first=3),
)  # fmt: skip
KINDS = ("popularity", "top_frequency", "item_knn", "ease")
SETTINGS = RankingSettings(k=(5,), negatives=9, baselines=KINDS)


def built(kind, table=None):
    model = ModelSpec(kind, INPUTS, model_class(kind).Settings()).build()
    if table is not None:
        model.fit(table.unpack(table.words))
    return model


def compared(model, tables, settings=SETTINGS, split="test"):
    catalogue = Catalogue.of(tables, INPUTS, "cpu")
    return rank_with_baselines(
        model, positive_rows(tables[split]), catalogue, settings, train=tables["train"], inputs=INPUTS, split=split,
        seed=1, device="cpu",
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_whole_rows_rank_as_pairs_do(kind, monkeypatch):
    tables = random_tables()
    model = built(kind, tables["train"])
    given = positive_rows(tables["test"]), Catalogue.of(tables, INPUTS, "cpu"), SETTINGS
    whole = rank_evaluate(model, *given, seed=1, device="cpu")
    monkeypatch.setattr(ranking, "_scorer", lambda model: PairScores)
    pairs = rank_evaluate(model, *given, seed=1, device="cpu")
    assert whole["rows"] == pairs["rows"] > 10
    for part in ("sampled", "catalogue"):
        assert whole[part] == pytest.approx(pairs[part], abs=0.02)  # sums in another order may part a tie


def test_baselines_are_what_each_gets_by_itself():
    tables = random_tables()
    own = built("lr")
    found = compared(own, tables)
    names = [module.NAMES[kind] for kind in KINDS]
    assert [item["name"] for item in found["baselines"]["found"]] == names
    assert found["baselines"]["compared_on"] == "ndcg@5 catalogue"
    given = positive_rows(tables["test"]), Catalogue.of(tables, INPUTS, "cpu"), SETTINGS
    for kind, item in zip(KINDS, found["baselines"]["found"], strict=True):
        alone = rank_evaluate(built(kind, tables["train"]), *given, seed=1, device="cpu")
        assert {part: item[part] for part in ("sampled", "catalogue")} == {
            part: alone[part] for part in ("sampled", "catalogue")
        }
        assert item["train_rows"] == len(tables["train"])
        assert item["seconds"] > 0
    plain = rank_evaluate(own, *given, seed=1, device="cpu")
    assert {key: value for key, value in found.items() if key != "baselines"} == plain
    shown = ranking_rows(found)
    assert [row["by"] for row in shown] == 2 * ["this model", *names]


def test_a_model_is_no_baseline_of_itself_and_train_has_none():
    tables = random_tables()
    found = compared(built("ease", tables["train"]), tables)
    assert [item["name"] for item in found["baselines"]["found"]] == [module.NAMES[kind] for kind in KINDS[:-1]]
    assert "baselines" not in compared(built("lr"), tables, split="train")
    assert "baselines" not in compared(built("lr"), tables, SETTINGS.model_copy(update={"baselines": ()}))


def test_what_takes_long_is_left_out_with_the_reason(monkeypatch):
    tables = random_tables()
    monkeypatch.setattr(module, "EASE_PRODUCTS", 50.5**3 / torch.get_num_threads())
    monkeypatch.setattr(module, "PAIR_PRODUCTS", 10)
    found = compared(built("lr"), tables)["baselines"]
    assert [item["name"] for item in found["found"]] == ["popularity", "own counts, then popularity"]
    assert [text.partition(" (")[0] for text in found["left_out"]] == [
        "item k-nearest neighbours as a baseline of ranking", "EASE as a baseline of ranking"
    ]  # fmt: skip
    assert "60 items are more than 50, which take about a minute here" in found["left_out"][1]
    monkeypatch.setattr(module, "free_memory", lambda device: 2 * 20 * 60**2 - 2)
    text = compared(built("lr"), tables)["baselines"]["left_out"][1]
    assert "60 items take 0 MiB, of 0 MiB it may have" in text


def test_a_train_split_without_positives_leaves_them_out():
    tables = random_tables()
    words = tables["train"].words.clone()
    words[:, len(SCHEMA.ids) + len(SCHEMA.floats)] = 0
    tables["train"] = type(tables["train"])(words, SCHEMA)
    found = compared(built("lr"), tables)["baselines"]
    assert found["found"] == []
    assert all("hold no positive of a known item" in text for text in found["left_out"])
    assert found["worse"] == []


def planted():
    """Users of even number take even items, of odd number odd ones; item 3 and 4 are taken more than others."""
    draw = np.random.default_rng(0)
    pairs = [(u, i) for u in range(3, USERS) for i in range(3, ITEMS) if (u - i) % 2 == 0]
    order = draw.permutation(len(pairs))
    rows = np.array([pairs[place] for place in order])
    parts = {"train": rows[:500], "valid": rows[500:600], "test": rows[600:700]}
    return {name: table_of(part[:, 0], part[:, 1], np.ones(len(part))) for name, part in parts.items()}


def test_a_sentence_names_the_best_baseline_that_the_model_does_not_beat():
    tables = planted()
    found = compared(built("popularity", tables["train"]), tables)["baselines"]
    (text,) = found["worse"]
    best = max(found["found"], key=lambda item: item["catalogue"]["ndcg@5"])
    assert f"the model is worse than {best['name']} (NDCG@5 0." in text
    assert text.endswith("by more than 2 standard errors.")
    assert text.startswith("ranking of the test split among the whole catalogue: ")
    without = SETTINGS.model_copy(update={"baselines": ("popularity",)})
    assert compared(built("ease", tables["train"]), tables, without)["baselines"]["worse"] == []


def test_the_gains_error_takes_a_users_rows_together():
    """Against a loop over users."""
    draw = np.random.default_rng(1)
    better, users = draw.integers(0, 9, (2, 60)), draw.integers(0, 11, 60)
    weight = draw.uniform(0.5, 2, 60)
    of = [
        Ranked({}, {"sampled": PositiveRanks(torch.tensor(row), torch.zeros(60, dtype=torch.int64))},
               torch.tensor(users), torch.tensor(weight))
        for row in better
    ]  # fmt: skip
    gain, error, units = paired_gain(*of, "sampled", 5)
    ndcg = np.where(better < 5, 1 / np.log2(better + 2), 0)
    difference = ndcg[0] - ndcg[1]
    mean = np.average(difference, weights=weight)
    shares = np.array([weight[users == u].sum() for u in range(11)]) / weight.sum()
    total = sum(
        ((weight[users == u] * (difference[users == u] - mean)).sum() / weight.sum()) ** 2
        / (1 - 2 * shares[u] + (shares**2).sum())  # 1 - 1 / n of equal ones
        for u in range(11)
    )
    assert (gain, error, units) == pytest.approx((mean, np.sqrt(total), 1 / (shares**2).sum()))
    one = [replace(part, users=torch.zeros(60, dtype=torch.int64)) for part in of]
    assert np.isnan(paired_gain(*one, "sampled", 5)[1])


def test_baselines_of_the_ranking_are_checked():
    with pytest.raises(ValidationError, match="names a baseline twice"):
        RankingSettings(baselines=("ease", "ease"))
    with pytest.raises(ValidationError):
        RankingSettings(baselines=("als",))
