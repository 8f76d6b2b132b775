"""What runs of positives alone take where nothing is said, and that it stays off where labels say something."""

import json

import numpy as np
import pandas as pd
import pytest

from gigabatch.pipeline.config.config import RunConfig, parse_config
from gigabatch.pipeline.lab.bounds import Budget
from gigabatch.pipeline.lab.compare.compare import compare_models, parse_models
from gigabatch.pipeline.lab.experiment import Experiment
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.training.checkpoint import TrainingError

PLAYS = {"path": "plays.csv", "user": "listener", "item": "song"}
ROWS = {"optimizer": "adamw", "optimizer_settings": {"rowwise": True}, "weight_decay": 1.0}


def config(model, features=PLAYS, recipe="interactions", **sections) -> RunConfig:
    return RunConfig(name="plays", recipe=recipe, features=features, model=model, **sections)


@pytest.mark.parametrize(
    ("kind", "model", "train"),
    [
        ("mf", {"loss": "catalogue", "dim": 128}, {"negatives": {"per_positive": 8}, **ROWS, "select": "last"}),
        (
            "ncf",
            {"loss": "softmax", "gmf_dim": 64},
            {"negatives": {"per_positive": 8}, **ROWS, "select": "last"},
        ),
        (
            "two_tower",
            {"loss": "softmax", "layers": [], "temperature": 0.2, "embedding_dim": 64},
            {"negatives": {"per_positive": 1}, **ROWS, "lr_max": 0.005, "select": "last"},
        ),
        ("tabular", None, {"negatives": {"per_positive": 8}, **ROWS}),
        ("ease", None, {"negatives": {"per_positive": 8}}),
    ],
)
@pytest.mark.parametrize("recipe", ["interactions", "movielens"])
def test_positives_get_negatives_a_loss_that_compares_them_and_a_ranking(kind, model, train, recipe):
    features = PLAYS if recipe == "interactions" else {"path": "ml-100k"}
    found = config({"kind": kind}, features, recipe)
    expected = ({"model": model} if model else {}) | {"train": train, "evaluate": {"ranking": {"negatives": None}}}
    assert found.chosen == expected
    assert found.train.negatives.per_positive == train["negatives"]["per_positive"]
    assert (found.train.optimizer, found.train.weight_decay) == (("adamw", 1.0) if kind != "ease" else ("lamb", 0.01))
    assert found.evaluate.ranking.full_catalogue
    raw = found.to_dict()
    assert raw["model"] | (model or {}) == raw["model"]
    assert parse_config(raw).to_dict() == raw  # what a run's summary holds makes the same run
    assert not parse_config(raw).chosen


@pytest.mark.parametrize("ranking", [{}, {"evaluate": {"ranking": {"k": [5]}}}])
def test_where_users_come_back_what_they_had_is_a_candidate(ranking):
    again = PLAYS | {"repeats": "all"}
    found = config({"kind": "mf"}, again, **ranking)
    assert found.evaluate.ranking.catalogue_is_without == ()
    assert found.chosen["evaluate"]["ranking"]["catalogue_is_without"] == []
    assert "top_frequency" in found.evaluate.ranking.baselines  # which is popularity among what is new
    assert "top_frequency" not in config({"kind": "mf"}, **ranking).evaluate.ranking.baselines
    assert parse_config(found.to_dict()).evaluate.ranking.baselines == found.evaluate.ranking.baselines
    alone = config({"kind": "mf"}, again, evaluate={"ranking": {"baselines": ["ease"]}})
    assert alone.evaluate.ranking.baselines == ("ease",)
    assert alone.evaluate.ranking.catalogue_is_without == ()
    assert parse_config(found.to_dict()).evaluate.ranking.catalogue_is_without == ()
    assert config({"kind": "mf"}, **ranking).evaluate.ranking.catalogue_is_without == ("train",)
    said = config({"kind": "mf"}, again, evaluate={"ranking": {"catalogue_is_without": ["train"]}})
    assert said.evaluate.ranking.catalogue_is_without == ("train",)


def test_what_is_set_stays():
    found = config(
        {"kind": "mf", "loss": "bpr"}, train={"negatives": {"per_positive": 2}, "optimizer": "lamb"},
        evaluate={"ranking": None},
    )  # fmt: skip
    assert found.chosen == {"model": {"dim": 128}, "train": {"select": "last"}}
    assert (found.model.settings.loss, found.train.negatives.per_positive) == ("bpr", 2)
    assert (found.train.optimizer, found.train.weight_decay, found.evaluate.ranking) == ("lamb", 0.01, None)
    own = config({"kind": "two_tower", "temperature": 0.07}, train={"lr_max": 0.5, "weight_decay": 0.0})
    assert own.chosen["model"] == {"loss": "softmax", "layers": [], "embedding_dim": 64}
    assert (own.train.lr_max, own.train.weight_decay, own.train.optimizer) == (0.5, 0.0, "adamw")


@pytest.mark.parametrize("asked", [{"select_by": "mrr"}, {"patience": 2}])
def test_who_asks_for_the_best_epoch_gets_it(asked):
    assert config({"kind": "two_tower"}).train.select == "last"
    found = config({"kind": "two_tower"}, train=asked)
    assert found.train.select == "best"
    assert "select" not in found.chosen["train"]


@pytest.mark.parametrize(
    ("features", "recipe", "train"),
    [
        (PLAYS | {"task": "rating", "rating": "stars"}, "interactions", {}),
        (PLAYS, "interactions", {"negatives": None}),
        ({"path": "ml-100k", "task": "rating"}, "movielens", {}),
        ({"path": "t.csv", "categorical": ["a"], "targets": {"y": {"task": "binary"}}}, "table", {}),
    ],
)
def test_labels_that_say_something_are_learnt_as_ever(features, recipe, train):
    found = config({"kind": "mf"}, features, recipe, train=train)
    assert found.chosen == {}
    assert (found.model.settings.loss, found.train.negatives, found.evaluate.ranking) == ("bce", None, None)


def test_a_table_whose_negatives_are_asked_for_is_one_of_positives():
    entities = {"user": {"key": "u"}, "item": {"key": "i"}}
    table = {"path": "t.csv", "categorical": ["u", "i"], "targets": {"y": {"task": "binary"}}}
    found = config({"kind": "mf"}, table | {"entities": entities}, "table", train={"negatives": {"per_positive": 3}})
    model, train = {"loss": "catalogue", "dim": 128}, ROWS | {"select": "last"}
    assert found.chosen == {"model": model, "train": train, "evaluate": {"ranking": {"negatives": None}}}
    without = config({"kind": "tabular"}, table, "table", train={"negatives": {"exclude_known": False}})
    assert "evaluate" not in without.chosen  # no users to rank for


def test_models_that_are_compared_take_what_they_take_alone():
    choices = parse_models("mf, two_tower, {kind: ncf, gmf_dim: 8}", config({"kind": "mf"}).model, positives=True)
    assert [choice.settings.loss for choice in choices.values()] == ["catalogue", "softmax", "softmax"]
    assert (choices["two_tower"].settings.layers, choices["ncf"].settings.gmf_dim) == ((), 8)
    labelled = parse_models("ncf, two_tower", config({"kind": "mf"}).model)
    assert [choice.settings.loss for choice in labelled.values()] == ["bce"] * 2


@pytest.fixture
def plays(tmp_path):
    """240 listeners of one of eight groups; each plays 12 of the 15 songs of its group, and some that all know."""
    random, rows = np.random.default_rng(3), []
    for user in range(240):
        own = random.permutation(15)[:12] * 8 + user % 8
        hits = 120 + random.permutation(10)[:2]
        rows += [{"listener": f"u{user}", "song": f"s{item}"} for item in random.permutation([*own, *hits])]
    pd.DataFrame(rows).to_csv(tmp_path / "plays.csv", index=False)
    return {
        "name": "plays", "recipe": "interactions", "features": PLAYS | {"path": str(tmp_path / "plays.csv")},
        "artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs"),
        "evaluate": {"importance": False, "baselines": []},
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["mf", "ncf", "two_tower"])
def test_a_model_by_name_alone_learns_what_users_choose(plays, kind, caplog):
    run = Pipeline.from_config(plays | {"model": {"kind": kind}}).train()
    ranking = run.summary["ranking"]
    others = {item["name"]: item["catalogue"]["ndcg@10"] for item in ranking["baselines"]["found"]}
    assert ranking["catalogue"]["ndcg@10"] > 2 * others["popularity"]
    assert ranking["catalogue"]["ndcg@10"] > 0.8 * others["EASE"]
    told = [note for note in run.summary["notes"] if "by default" in note]
    loss = "catalogue" if kind == "mf" else "softmax"
    assert told[0].startswith(f"All rows are positives, so by default: model.loss {loss}, ")
    assert "evaluate.ranking {negatives: null} (docs/recommenders.md)." in told[0]
    assert told[1].startswith("Training by default: epochs 20, batch_size ")
    assert run.summary["config"]["train"]["negatives"]["kind"] == "uniform"


@pytest.mark.parametrize(("given", "expected"), [
    ([], ["last", "best"]), (["train.select=best"], ["best", "best"]),
    (["train.select_by=mrr"], ["best", "best"]), (["train.optimizer=lamb"], ["last", "best"]),
])  # fmt: skip
def test_models_that_are_compared_keep_the_epoch_that_they_keep_alone(plays, given, expected, monkeypatch):
    config = plays | {"model": {"kind": "mf"}, "train": {"epochs": 1}}
    pipeline = Pipeline.from_config(config, *given)
    choices = parse_models("mf, tabular", pipeline.config.model, pipeline.config.positives_alone)
    kept, fit = [], Experiment.fit

    def told(experiment, settings, *arguments):
        kept.append(settings.select)
        return fit(experiment, settings, *arguments)

    monkeypatch.setattr(Experiment, "fit", told)
    found = compare_models(Experiment.of(pipeline.features().encode(), None), choices, Budget(seeds=1, trials=1))
    assert kept == expected
    assert [one.label for one in found.contenders] == ["mf", "tabular"]


@pytest.mark.parametrize("kind", ["mf", "tabular"])
def test_positives_without_negatives_are_no_training(plays, kind, tmp_path):
    pipeline = Pipeline.from_config(plays | {"model": {"kind": kind}}, "train.negatives=null")
    with pytest.raises(TrainingError, match=r"all of the train split's [\d,]+ rows have target 1.*train\.negatives="):
        pipeline.train()
    assert not (tmp_path / "runs" / "plays" / "current").exists()
    assert json.dumps(pipeline.config.to_dict())
