"""`gigabatch compare`: what is searched and trained, intervals, what is left out and what is written."""

import contextlib
import json
import math
import shlex
import time
from dataclasses import dataclass, replace
from unittest.mock import Mock
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import sklearn.metrics
import torch

from gigabatch.features.recipes import RECIPES
from gigabatch.features.recipes.base import FeatureTables
from gigabatch.features.schema import Entity, Schema, Target
from gigabatch.models.click.lr import LogisticRegression
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.models.tabular.tabular import TabularSettings
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import ALONE, ConfigError, ModelChoice, RunConfig, WholeTrainSettings
from gigabatch.pipeline.evaluation.rank_evaluate import RankingError
from gigabatch.pipeline.evaluation.sample import spread
from gigabatch.pipeline.lab.bounds import MOST_SEEDS, Budget
from gigabatch.pipeline.lab.compare import compare as module
from gigabatch.pipeline.lab.compare.compare import (
    Kept,
    Trainer,
    average_of,
    compare_models,
    leader_of,
    learning_rates,
    parse_models,
)
from gigabatch.pipeline.lab.compare.report import (
    Contender,
    Interval,
    Outcome,
    lr_rows,
    lr_text,
    metric_rows,
    model_rows,
    notes,
    verdict,
)
from gigabatch.pipeline.lab.experiment import Enough, Experiment
from gigabatch.pipeline.reports import charts
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.training.train import TrainingError, table_outputs
from tests.pipeline.tiny_recipe import TinyRecipe

SMALL = ("train.batch_size=64", "train.epochs=1", "model.layers=[8]")
DRAWN = charts._svg  # which tests/pipeline/conftest.py replaces
OWN = ModelChoice("tabular", TabularSettings(layers=(8,)))


class ShopRecipe(TinyRecipe):
    """The same rows, in which a store chooses products."""

    def schema(self) -> Schema:
        plain = super().schema()
        entities = (Entity("user", "store", ("store",)), Entity("item", "product", ("product",)))
        return replace(plain, entities=entities)


class SalesRecipe(ShopRecipe):
    """Only the rows in which a product was chosen."""

    def build(self, engine: str) -> FeatureTables:
        tables = super().build(engine)
        sold = {name: frame[frame["clicked"] == 1].reset_index(drop=True) for name, frame in tables.splits.items()}
        return replace(tables, splits=sold)


@pytest.fixture(scope="module")
def shop(trained):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, "tiny_shop", "test_compare:ShopRecipe")
        patch.setitem(RECIPES, "tiny_sales", "test_compare:SalesRecipe")
        yield trained[0]


@pytest.fixture(scope="module")
def experiment(trained) -> Experiment:
    return Experiment.of(trained[0].pipeline(*SMALL).features().encode(), 1000)


@dataclass
class FakeTrainer:
    """Trainings whose metrics follow from model, learning rate and seed; time is up after so many."""

    metric: str = "auc"
    sign: int = 1
    judged: str = ""
    stops_after: int = 10**9
    search_stops_after: int = 10**9
    diverges: tuple = ()
    deadline: float = math.inf

    def __post_init__(self):
        self.judged = self.judged or self.metric
        self.trained, self.deadlines, self.earlier, self._searches = [], [], {}, False

    @contextlib.contextmanager
    def until(self, deadline):
        self.deadlines.append(deadline)
        self._searches = True
        yield
        self._searches = False

    def _train(self, spec, settings, seed):
        if len(self.trained) == self.stops_after or (self._searches and len(self.trained) == self.search_stops_after):
            self._searches = False
            raise Enough
        name = f"tabular {spec.settings.layers[0]}" if spec.name == "tabular" else spec.name
        self.trained.append((name, settings.lr_max, seed))
        if (name, settings.lr_max) in self.diverges or (name, seed) in self.diverges:
            raise TrainingError("training diverged in epoch 1")
        return {"lr": 0.5, "tabular 8": 0.6, "tabular 4": 0.7}[name] + 0.001 * seed - abs(settings.lr_max - 0.06)

    def valid_metric(self, spec, settings, seed):
        return self._train(spec, settings, seed)

    def outcome(self, spec, settings, seed):
        value = self._train(spec, settings, seed)
        return Outcome(seed, {"auc": value, "logloss": 1 - value, "mrr": None}, (0.7, 0.6), 2.0, 1000)


def compared_by(trainer, experiment, monkeypatch, models="lr, tabular, {kind: tabular, layers: [4]}", **budget):
    monkeypatch.setattr("gigabatch.pipeline.lab.compare.compare.Trainer", lambda *_: trainer)
    return compare_models(experiment, parse_models(models, OWN), Budget(**budget))


def test_intervals_are_those_of_students_t():
    for count in (2, 3, MOST_SEEDS):
        values = [0.0] * (count - 1) + [1.0]
        low, high = scipy.stats.t.interval(0.95, count - 1, loc=1 / count, scale=scipy.stats.sem(values))
        found = Interval.of(values)
        assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high), rel=1e-4)
    assert Interval.of([0.3]) == Interval(0.3, None)


def test_differences_are_paired_by_seed():
    def contender(values):
        outcomes = tuple(Outcome(seed, {"auc": value}, (), 1.0, 1) for seed, value in values.items())
        return Contender("a", {}, 1, 0.1, {}, outcomes)

    first, other = contender({2: 0.5, 3: 0.7, 4: 0.6}), contender({2: 0.52, 3: 0.71, 4: 0.63, 5: 0.1})
    expected = scipy.stats.ttest_rel([0.52, 0.71, 0.63], [0.5, 0.7, 0.6]).confidence_interval(0.95)
    found = other.difference(first, "auc")
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((expected.low, expected.high), rel=1e-4)
    assert other.difference(first, "mrr") is None
    assert other.interval("mrr") is None


def test_models_are_named_with_settings_or_those_of_the_run():
    found = parse_models("lr, tabular, {kind: tabular, layers: [64, 32]}", OWN)
    assert list(found) == ["lr", "tabular", "tabular (2)"]
    assert found["tabular"] is OWN
    assert found["tabular (2)"].settings.layers == (64, 32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr,deepmf", r"unknown model 'deepmf'\. Known: tabular, lr, fm"),
        ("lr", "two models or more"),
        ("lr,lr", "lr is there twice"),
        ("lr,{kind: tabular, lairs: [4]}", "lairs"),
        ("lr,{layers: [4]}", "has no kind"),
        ("lr,{kind: tabular", "not a list of models"),
    ],
)
def test_models_that_cannot_be_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_models(text, OWN)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seeds": 0}, "--seeds must be from 1 to 30, not 0"),
        ({"epochs": 0}, "--epochs must be at least 1"),
        ({"trials": 0}, "--trials must be at least 1"),
        ({"max_rows": 0}, "--rows must be at least 1"),
        ({"seconds": -1.0}, "--seconds must be above 0"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(TrainingError, match=message):
        Budget(**wrong)


def test_learning_rates_lie_around_the_runs_own():
    assert learning_rates(0.01, 1) == [0.01]
    assert learning_rates(0.01, 3) == pytest.approx([0.003333, 0.01, 0.03])
    assert learning_rates(0.01, 4) == pytest.approx([0.001111, 0.003333, 0.01, 0.03])


def test_every_model_gets_the_same_search_and_the_same_seeds(experiment, monkeypatch):
    trainer = FakeTrainer()
    found = compared_by(trainer, experiment, monkeypatch, seeds=2, trials=3)
    names, seed = ["lr", "tabular 8", "tabular 4"], experiment.config.seed
    searched = [(name, lr, seed) for lr in (0.02, 0.006667, 0.06) for name in names]  # nearest to the run's own first
    assert trainer.trained == searched + [(name, 0.06, seed + k) for k in (1, 2) for name in names]
    assert [contender.lr for contender in found.contenders] == [0.06] * 3
    assert all(contender.lr_at_edge for contender in found.contenders)
    assert "best learning rate of lr, tabular, tabular (2) is the lowest or highest" in notes(found)[0]
    third = found.contenders[2].difference(found.contenders[0], "auc")
    assert third.mean == pytest.approx(0.2)
    assert third.half == pytest.approx(0, abs=1e-12)
    row = model_rows(found)[2]
    assert row["AUC"] == pytest.approx(0.7 + 0.001 * (seed + 1.5))
    assert row["less lr"] == pytest.approx(0.2)
    assert (row["rows/s"], row["seconds"], row["seeds"]) == (500, 2.0, 2)
    auc, loss, mrr = metric_rows(found)
    assert (auc["metric"], loss["metric"], mrr["metric"]) == ("AUC", "Log loss", "MRR")
    assert auc["lr"] == pytest.approx(0.5 + 0.001 * (seed + 1.5))
    assert loss["tabular (2)"] == pytest.approx(0.3 - 0.001 * (seed + 1.5))
    assert mrr["lr"] is None


@pytest.mark.parametrize(("given", "times"), [(("train.lr_max=null",), 0.25), (("train.lr_max=0.02",), 1)])
def test_a_model_has_its_share_of_a_rate_that_is_the_rules(trained, monkeypatch, given, times):
    monkeypatch.setattr(LogisticRegression, "rule_rate", classmethod(lambda cls, inputs: 0.25))
    experiment = Experiment.of(trained[0].pipeline(*SMALL, *given).features().encode(), 1000)
    found = compared_by(FakeTrainer(), experiment, monkeypatch, trials=3, models="tabular, lr")
    (plain, lr), own = found.contenders, experiment.settings.lr_max
    assert list(plain.tried) == learning_rates(own, 3)
    assert list(lr.tried) == pytest.approx([times * rate for rate in learning_rates(own, 3)], rel=1e-3)
    shown = lr_rows(found)
    assert list(shown[0]) == list(shown[1])


def test_rates_that_differ_in_the_fourth_digit_have_columns_of_their_own(experiment, monkeypatch):
    monkeypatch.setattr(LogisticRegression, "rule_rate", classmethod(lambda cls, inputs: 1.0))
    found = compared_by(FakeTrainer(), experiment, monkeypatch, models="tabular, lr")
    plain, lr = found.contenders
    tried = {rate * 1.001: value for rate, value in lr.tried.items()}
    shown = lr_rows(replace(found, contenders=(plain, replace(lr, tried=tried))))
    for contender, row in zip((plain, replace(lr, tried=tried)), shown, strict=True):
        assert [value for value in list(row.values())[1:-1] if value != ""] == list(contender.tried.values())


def test_a_model_that_fails_is_left_out_and_said_so(experiment, monkeypatch):
    seed = experiment.config.seed
    everywhere = tuple(("lr", lr) for lr in learning_rates(0.02, 3))
    trainer = FakeTrainer(diverges=(*everywhere, ("tabular 8", 0.06), ("tabular 4", seed + 2)))
    found = compared_by(trainer, experiment, monkeypatch, seeds=2)
    assert [contender.label for contender in found.contenders] == ["tabular"]
    assert found.contenders[0].tried[0.06] is None
    assert found.contenders[0].lr == 0.02
    assert not found.contenders[0].lr_at_edge
    assert found.left_out == {
        "lr": "it failed at every learning rate, at the last: training diverged in epoch 1",
        "tabular (2)": f"it failed with seed {seed + 2}: training diverged in epoch 1",
    }
    trainer = FakeTrainer(diverges=tuple((name, seed) for name in ("lr", "tabular 8", "tabular 4")))
    with pytest.raises(TrainingError, match=r"no model is left to compare\. lr: it failed"):
        compared_by(trainer, experiment, monkeypatch)


def test_when_the_time_is_up_what_there_is_is_compared(experiment, monkeypatch):
    found = compared_by(FakeTrainer(stops_after=9 + 3 + 1), experiment, monkeypatch, seeds=3, trials=3)
    assert [len(contender.outcomes) for contender in found.contenders] == [2, 1, 1]
    assert found.contenders[1].difference(found.contenders[0], "auc").half is None
    assert found.stopped == "The time was up after 1 of 3 seeds of every model."
    found = compared_by(FakeTrainer(stops_after=10), experiment, monkeypatch, seeds=3, trials=3)
    assert found.left_out == dict.fromkeys(("tabular", "tabular (2)"), "the time was up before it was trained")
    with pytest.raises(TrainingError, match="the time was up before it was trained"):
        compared_by(FakeTrainer(stops_after=4), experiment, monkeypatch)


def test_one_learning_rate_is_no_search(experiment, monkeypatch):
    """Q6: each model was trained once for it, so that the time was up before any seed, and nothing was reported."""
    trainer = FakeTrainer(stops_after=3)
    found = compared_by(trainer, experiment, monkeypatch, seeds=1, trials=1, seconds=330.0)
    assert trainer.trained == [(name, 0.02, experiment.config.seed + 1) for name in ("lr", "tabular 8", "tabular 4")]
    assert [len(contender.outcomes) for contender in found.contenders] == [1, 1, 1]
    assert (found.stopped, found.left_out, trainer.deadlines) == ("", {}, [])
    assert lr_text(found) == "None was searched: all models have the run's own."
    assert [row["taken"] for row in lr_rows(found)] == ["0.02"] * 3


def test_a_search_that_takes_its_share_of_the_time_leaves_the_rest_to_the_seeds(experiment, monkeypatch):
    """It took all of it, and what it had trained was thrown away."""
    trainer = FakeTrainer(search_stops_after=4)
    began = time.perf_counter()
    found = compared_by(trainer, experiment, monkeypatch, seeds=1, trials=3, seconds=100.0)
    assert [contender.lr for contender in found.contenders] == [0.02] * 3
    assert [len(contender.tried) for contender in found.contenders] == [2, 1, 1]
    assert [len(contender.outcomes) for contender in found.contenders] == [1, 1, 1]
    assert found.stopped == (
        "The search's share of the time was up before all 3 learning rates were tried (lr 2, tabular 1, tabular (2) "
        "1); where none was, the run's own is taken."
    )
    (deadline,) = trainer.deadlines
    assert 70 < deadline - began < 80  # three of four trainings' share


def test_a_training_ends_when_the_time_is_up_and_leaves_no_trace(experiment, capsys):
    choices = parse_models("lr,tabular", OWN)
    random = torch.get_rng_state()
    with pytest.raises(TrainingError, match="the time was up"):
        compare_models(experiment, choices, Budget(seconds=1e-9))
    trainer = Trainer(experiment, math.inf)
    assert (trainer.metric, trainer.sign) == ("auc", 1)
    assert torch.equal(random, torch.get_rng_state())
    assert "train:" not in capsys.readouterr().err


def test_churn_is_that_between_a_seed_and_the_one_before(experiment, monkeypatch):
    monkeypatch.setattr(module, "CHURN_ROWS", 100)
    trainer = Trainer(experiment, math.inf)
    rows = spread(len(trainer.test), 100)
    first, second, third = torch.rand(3, len(trainer.test), dtype=torch.float64)
    other = replace(experiment.spec, name="lr")
    assert trainer.churn(experiment.spec, [first]) == {"prediction_churn": None}
    assert trainer.churn(other, [third]) == {"prediction_churn": None}
    for before, after in ((first, second), (second, third)):
        wanted = np.abs(before.numpy()[rows] - after.numpy()[rows]).mean()
        assert trainer.churn(experiment.spec, [after])["prediction_churn"] == pytest.approx(wanted)


def test_churn_of_several_quantiles_is_that_of_the_one_nearest_to_the_median(experiment):
    trainer, (first, second), labels = Trainer(experiment, math.inf), torch.rand(2, 40, 3), torch.randn(40)
    target = Target("v", "regression", 3, quantiles=(0.1, 0.5, 0.9))
    trainer.experiment = Mock(schema=Mock(targets=(target,)))
    trainer._churned, trainer._churned_rows = Mock(targets=[labels], weight=None), torch.arange(40)
    trainer.churn(experiment.spec, [first])
    wanted = np.abs(first[:, 1].numpy() - second[:, 1].numpy()).mean() / labels.numpy().std()
    assert trainer.churn(experiment.spec, [second])["prediction_churn"] == pytest.approx(wanted)


def slow_ece(chance: np.ndarray, labels: np.ndarray, bins: int) -> float:
    """Of bins of equal width, closed above, in a loop."""
    error = 0.0
    for number in range(bins):
        here = (chance > number / bins) & (chance <= (number + 1) / bins)
        if here.any():
            error += here.mean() * abs(chance[here].mean() - labels[here].mean())
    return error


def test_metrics_are_those_of_their_names_whatever_the_loss_of_the_training(trained):
    """Log loss was the training's, with its weights of classes and without the calibration; ECE was of 15 bins."""
    asked = ("nightly.metric=logloss", "evaluate.calibration_bins=4", "train.calibration=temperature")
    losses = "train.losses={clicked: {class_weights: [1, 6]}}"
    experiment = Experiment.of(trained[0].pipeline(*SMALL, *asked, losses).features().encode(), 1000)
    trainer = Trainer(experiment, math.inf)
    assert (trainer.metric, trainer.sign) == ("logloss", -1)
    found = trainer.outcome(experiment.spec, experiment.settings, 5).metrics
    again = experiment.fit(experiment.settings, 5)

    def chances(table):
        chance = torch.sigmoid(table_outputs(again.model, table, "cpu")[:, 0].double()).numpy()
        return chance, table.unpack(table.words).targets[0].numpy()

    chance, labels = chances(trainer.test)
    assert found["logloss"] == pytest.approx(sklearn.metrics.log_loss(labels, chance), rel=1e-5)
    assert found["ece"] == pytest.approx(slow_ece(chance, labels, 4), rel=1e-5)
    chance, labels = chances(experiment.valid)
    assert trainer.metric_of(again) == pytest.approx(sklearn.metrics.log_loss(labels, chance), rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "metric"), [({"kind": "quantile", "tau": 0.9}, "pinball"), ({"kind": "poisson"}, "deviance")]
)
def test_a_loss_of_regressions_has_its_own_metric(kind, metric, tmp_path):
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"x": draw.normal(size=400), "at": np.arange(400)})
    frame["y"] = draw.poisson(np.exp(frame["x"])).astype(float)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    config = {
        "name": "rows", "recipe": "table", "model": {"kind": "lr"},
        "artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs"),
        "features": {"path": str(tmp_path / "rows.csv"), "continuous": ["x"], "time": "at",
                     "targets": {"y": {"task": "regression"}}},
        "train": {"epochs": 2, "batch_size": 64, "lr_max": 0.05, "losses": {"y": kind}},
    }  # fmt: skip
    experiment = Experiment.of(Pipeline.from_config(config).features().encode(), None)
    trainer = Trainer(experiment, math.inf)
    found = trainer.outcome(experiment.spec, experiment.settings, 5).metrics
    again = experiment.fit(experiment.settings, 5)
    predicted = table_outputs(again.model, trainer.test, "cpu")[:, 0].numpy().astype(np.float64)
    labels = trainer.test.unpack(trainer.test.words).targets[0].numpy()
    expected = {
        "pinball": lambda: sklearn.metrics.mean_pinball_loss(labels, predicted, alpha=0.9),
        "deviance": lambda: sklearn.metrics.mean_poisson_deviance(labels, predicted),
    }[metric]()
    assert found[metric] == pytest.approx(expected, rel=1e-5)
    assert found["loss"] > 0  # that of the training, by which models are chosen


def test_the_command_prints_a_table_and_writes_page_drawing_and_numbers(tiny, capsys, monkeypatch):
    monkeypatch.setattr(charts, "_svg", DRAWN)
    arguments = ["compare", "--config", str(tiny.config), "train.batch_size=64", "model.layers=[8]"]
    arguments += ["--models", "lr,tabular,two_tower", "--seeds", "2", "--trials", "1", "--epochs", "2"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    (folder,) = tiny.home.glob("compare-*")
    assert out.splitlines()[-1] == str(folder / "compare.html")
    assert {path.name for path in folder.iterdir()} == {"compare.html", "compare.json", "compare.svg"}
    assert out.splitlines()[-2].startswith("overrides  'model={")
    assert "2,400 train rows, 2 epoch(s), batch 64, lamb, 1 learning rate(s), 2 seed(s)" in out
    assert "Left out: two_tower" in out
    found = json.loads((folder / "compare.json").read_text())
    first, second = found["contenders"]
    # Of the label 1.5 signal + city + 0.3 gap, both models learn most: the label's own noise leaves AUC 0.84.
    assert all(0.6 < outcome["metrics"]["auc"] < 0.9 for c in (first, second) for outcome in c["outcomes"])
    assert {"logloss", "ece", "normalised_entropy"} <= set(first["intervals"])
    assert [c["outcomes"][0]["metrics"]["prediction_churn"] for c in (first, second)] == [None, None]
    assert all(0 < c["intervals"]["prediction_churn"]["mean"] < 0.3 for c in (first, second))
    gaps = [
        b["metrics"]["auc"] - a["metrics"]["auc"] for a, b in zip(first["outcomes"], second["outcomes"], strict=True)
    ]
    assert second["differences"]["auc"]["mean"] == pytest.approx(sum(gaps) / 2)
    assert [len(outcome["valid_losses"]) for outcome in first["outcomes"]] == [2, 2]
    assert first["outcomes"][0]["rows"] == 2 * 37 * 64
    page = (folder / "compare.html").read_text()
    assert page.count("<svg") == 2
    assert "kind: tabular, pooling: mean, layers: (8,)" in page
    assert "needs to know which columns" in page
    root = ElementTree.fromstring((folder / "compare.svg").read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(--" not in (folder / "compare.svg").read_text()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    means = {f"{contender['intervals']['auc']['mean']:.4g}" for contender in found["contenders"]}
    assert {"lr", "tabular", "AUC"} | means <= {text.strip() for text in texts}


def test_choices_are_ranked_where_the_configuration_asks_for_it(shop):
    ranking = "evaluate.ranking={k: [1, 3], negatives: null, catalogue_is_without: []}"
    experiment = Experiment.of(shop.pipeline("recipe=tiny_shop", *SMALL, ranking).features().encode(), 1000)
    found = compare_models(experiment, parse_models("lr,tabular", OWN), Budget(seeds=1, trials=1))
    for contender in found.contenders:
        metrics = contender.outcomes[0].metrics
        assert metrics["hr@1 catalogue"] < metrics["hr@3 catalogue"] <= 1
        # Products have nothing to do with the label, so a choice is anywhere among the twenty.
        assert metrics["hr@3 catalogue"] == pytest.approx(3 / 20, abs=0.1)
        assert "mrr sampled" not in metrics
    assert {"HR@1 catalogue", "Coverage@3 catalogue"} <= {row["metric"] for row in metric_rows(found)}


def test_models_of_positives_are_compared_by_the_ranking_of_the_catalogue(tmp_path):
    """Among eight drawn items, by which they were compared, popularity seems the best one of these three."""
    draw, rows = np.random.default_rng(3), []
    for user in range(150):
        shares = 1 / np.arange(1, 61)
        shares[20:40] *= 4 if user % 2 else 1
        shares[40:] *= 1 if user % 2 else 4
        rows += [(user, item) for item in draw.choice(60, 10, replace=False, p=shares / shares.sum())]
    pd.DataFrame(rows, columns=["user", "item"]).to_csv(tmp_path / "plays.csv", index=False)
    features = {"path": str(tmp_path / "plays.csv"), "user": "user", "item": "item"}
    config = {"name": "plays", "recipe": "interactions", "features": features, "model": {"kind": "popularity"}}
    config |= {"artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs"), "device": "cpu"}

    def compared(*overrides):
        pipeline = Pipeline.from_config(config, *overrides, ALONE)
        choices = parse_models("popularity,item_knn,ease", pipeline.config.model, pipeline.config.positives_alone)
        experiment = Experiment.of(pipeline.features().encode(), 10_000)
        return compare_models(experiment, choices, Budget(seeds=1, trials=1))

    found = compared()
    ranks = {one.label: one.outcomes[0].metrics["ndcg@10 catalogue"] for one in found.contenders}
    drawn = {one.label: one.outcomes[0].metrics["mrr"] for one in found.contenders}
    assert (max(drawn, key=drawn.get), max(ranks, key=ranks.get)) == ("popularity", "ease")
    assert (found.metric, found.valid_metric, found.best.label) == ("ndcg@10 catalogue", "mrr", "ease")
    some = compared("evaluate.ranking={k: [5], full_catalogue: false, negatives: 20}")
    assert some.metric == "ndcg@5 sampled"
    asked = compared("nightly.metric=mrr")
    assert (asked.metric, asked.best.label) == ("mrr", "popularity")


def test_models_that_take_no_steps_have_no_learning_rate_that_was_not_tried(shop):
    """It said that the time was up before theirs were tried, and showed the run's own beside them."""
    experiment = Experiment.of(shop.pipeline(*SMALL, "recipe=tiny_shop").features().encode(), 1000)
    found = compare_models(experiment, parse_models("lr,popularity,ease", OWN), Budget(seeds=1, trials=3))
    assert found.stopped == ""
    by_steps, *fitted = model_rows(found)
    assert by_steps["learning rate"] in learning_rates(experiment.settings.lr_max, 3)
    assert by_steps["parameters"] > 0
    assert [(row["learning rate"], row["parameters"]) for row in fitted] == [(None, None)] * 2
    assert [row["model"] for row in lr_rows(found)] == ["lr"]
    alone = compare_models(experiment, parse_models("popularity,ease", OWN), Budget(seeds=1, trials=3))
    assert lr_text(alone) == "These models take no steps, so they have none."
    assert lr_rows(alone) == []


def test_negatives_are_drawn_for_every_model_where_the_run_draws_them(shop):
    settings = ("train.negatives={per_positive: 2, exclude_known: false}", *SMALL)
    encoded = shop.pipeline("recipe=tiny_sales", *settings).features().encode()
    experiment = Experiment.of(encoded, 1000)
    found = compare_models(experiment, parse_models("lr,tabular", OWN), Budget(seeds=1, trials=1))
    assert len(Trainer(experiment, math.inf).test) == 3 * len(encoded.table("test"))
    assert found.metric == "mrr"
    assert all(0.3 < contender.outcomes[0].metrics["auc"] < 0.7 for contender in found.contenders)


SALES = ("recipe=tiny_sales", "train.negatives={per_positive: 2, exclude_known: false}", "train.epochs=1")


@pytest.mark.parametrize(
    ("own", "models", "leader"),
    [
        ("ease", "ease, mf, {kind: ncf}", "mf"),
        ("popularity", "popularity, two_tower, ncf", "ncf"),
        ("popularity", "popularity, two_tower", "two_tower"),
        ("popularity", "popularity, ease", None),
        ("mf", "mf, ncf", None),
    ],
)
def test_beside_a_model_without_steps_training_follows_from_one_that_takes_some(own, models, leader):
    """`mf` was trained by LAMB beside `ease`, and by AdamW beside itself."""
    plays = {"path": "plays.csv", "user": "listener", "item": "song"}
    config = RunConfig(name="plays", recipe="interactions", features=plays, model={"kind": own})
    found = leader_of(config, parse_models(models, config.model, config.positives_alone))
    assert (found and found.kind) == leader
    labels = RunConfig(
        name="plays", recipe="interactions", features=plays, model={"kind": own}, train={"negatives": None}
    )
    assert leader_of(labels, parse_models(models, labels.model)) is None


def test_what_is_printed_trains_the_best_model_as_it_was_trained(tiny, shop, capsys):
    arguments = ["compare", "--config", str(tiny.config), *SALES, "model={kind: popularity}"]
    arguments += ["--models", "popularity,{kind: mf, dim: 4}", "--seeds", "1", "--trials", "1"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert ", adamw, " in out
    (path,) = tiny.home.glob("compare-*/compare.json")
    popularity, mf = json.loads(path.read_text())["contenders"]
    told = dict(line.split("  ", 1) for line in out.splitlines() if line.startswith("overrides  "))["overrides"]
    best = max((popularity, mf), key=lambda one: one["intervals"]["mrr"]["mean"])
    assert shlex.split(told) == best["overrides"]
    assert [text.partition("=")[0] for text in popularity["overrides"]] == ["model", "train.negatives"]
    assert mf["overrides"][0] == 'model={"kind": "mf", "dim": 4}'
    trained_by = tiny.pipeline(*SALES[:1], *mf["overrides"]).features().encode().train_settings
    kinds = (trained_by.optimizer, trained_by.select, trained_by.negatives.per_positive, trained_by.epochs)
    assert kinds == ("adamw", "last", 2, 1)
    assert trained_by.lr_max == mf["lr"]


def test_a_run_of_what_is_printed_has_the_metrics_that_were_compared(tiny, capsys):
    arguments = ["compare", "--config", str(tiny.config), "--models", "{kind: tabular, layers: [8]},lr"]
    of_several = "train.ensemble=2"
    assert main([*arguments, "--seeds", "1", "--trials", "2", "--epochs", "2", of_several]) == 0
    (path,) = tiny.home.glob("compare-*/compare.json")
    best = max(json.loads(path.read_text())["contenders"], key=lambda one: one["intervals"]["auc"]["mean"])
    (outcome,) = best["outcomes"]
    told = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if line.startswith("overrides  "))
    own = shlex.split(told["overrides"])
    run = tiny.train(of_several, *own, f"seed={outcome['seed']}", "evaluate.importance=false")
    assert {name: run.summary[name] for name in ("auc", "logloss")} == {
        name: outcome["metrics"][name] for name in ("auc", "logloss")
    }


def test_of_models_that_are_alike_few_verdicts_tell_one_from_the_best(experiment, monkeypatch):
    """Of five with three seeds one in four did, as the seeds that chose the best were asked of each other alone."""
    found = compared_by(FakeTrainer(), experiment, monkeypatch, seeds=3, trials=1)
    random, told, one = np.random.default_rng(0), 0, found.contenders[0]
    for _ in range(300):
        alike = [
            replace(one, label=str(number), outcomes=tuple(
                replace(outcome, metrics={"auc": value}) for outcome, value in zip(one.outcomes, values, strict=True)
            ))
            for number, values in enumerate(random.normal(size=(5, 3)))
        ]  # fmt: skip
        text = verdict(replace(found, contenders=tuple(alike)))[0]
        told += text.partition("do not tell it from ")[2].partition(".")[0].count(",") < 3
    assert told <= 15  # of 300, one in twenty


def test_it_is_said_which_model_is_best_and_which_seeds_do_not_tell_from_it(experiment, monkeypatch):
    found = compared_by(FakeTrainer(), experiment, monkeypatch, seeds=2, trials=1)
    assert verdict(found)[0].startswith(
        "tabular (2) has the best AUC of the test split. These seeds tell it from the others. An interval says"
    )
    best = found.contenders[2]
    apart = [replace(o, metrics={"auc": value}) for o, value in zip(best.outcomes, (0.8, 0.4), strict=True)]
    wide = replace(found.contenders[0], outcomes=tuple(apart))
    unclear = replace(found, contenders=(wide, *found.contenders[1:]))
    assert "These seeds do not tell it from lr. " in verdict(unclear)[0]
    by_loss = replace(found, metric="logloss")
    assert by_loss.best is best  # whose log loss is the least
    assert replace(found, metric="gauc").best is None
    assert verdict(replace(found, metric="gauc")) == []
    alone = compared_by(FakeTrainer(), experiment, monkeypatch, seeds=1, trials=1)
    assert verdict(alone)[0].endswith("One seed tells no model from another: give --seeds 3.")


def test_a_comparison_that_was_killed_goes_on(experiment, monkeypatch, tmp_path):
    """A second one began anew, of an hour's trainings too."""

    class Killed(BaseException):
        pass

    class Mortal(FakeTrainer):
        def _train(self, spec, settings, seed):
            if len(self.trained) == self.dies_after:
                raise Killed
            found = super()._train(spec, settings, seed)
            self.earlier[spec.name] = [torch.tensor([found])]
            return found

    def compared(trainer, dies_after, **budget):
        trainer.dies_after = dies_after
        monkeypatch.setattr("gigabatch.pipeline.lab.compare.compare.Trainer", lambda *_: trainer)
        choices = parse_models("lr, tabular, {kind: tabular, layers: [4]}", OWN)
        return compare_models(experiment, choices, Budget(seeds=2, trials=3, **budget), tmp_path)

    whole = compared(Mortal(), None)
    for folder in tmp_path.iterdir():  # as whoever writes the result does
        (folder / "kept.pt").unlink()
    first, second, third = (Mortal() for _ in range(3))
    for trainer, dies_after in ((first, 4), (second, 7)):
        with pytest.raises(Killed):
            compared(trainer, dies_after)
    found = compared(third, None)
    assert [len(trainer.trained) for trainer in (first, second, third)] == [4, 7, 9 + 6 - 11]
    assert found.contenders == whole.contenders
    assert found.seconds > 0
    with pytest.raises(Killed):
        compared(Mortal(), 0, seconds=1000.0)  # another one begins anew
    with pytest.raises(TrainingError, match="the time was up"):
        compared(late := Mortal(stops_after=0), None, seconds=1000.0)
    assert late.trained == []
    assert len(list(tmp_path.glob("*/kept.pt"))) == 1


def test_what_failed_before_a_comparison_was_killed_is_not_tried_again(experiment, monkeypatch, tmp_path):
    """The search's time was up by then, so that all rates behind the one that failed were taken for untried."""

    class Late(FakeTrainer):
        def _train(self, spec, settings, seed):
            if self._searches:
                self._searches = False
                raise Enough
            return super()._train(spec, settings, seed)

    def compared(trainer):
        monkeypatch.setattr(module, "Trainer", lambda *_: trainer)
        budget = Budget(seeds=1, trials=3, seconds=1000.0)
        return compare_models(experiment, parse_models("lr, tabular", OWN), budget, tmp_path)

    failing = ("lr", 0.02), ("tabular 8", 2)
    whole = compared(FakeTrainer(diverges=failing))
    assert whole.contenders[0].tried == {0.006667: pytest.approx(0.447667), 0.02: None, 0.06: pytest.approx(0.501)}
    assert whole.left_out == {"tabular": "it failed with seed 2: training diverged in epoch 1"}
    found = compared(late := Late())
    assert late.trained == []
    assert found.contenders == whole.contenders
    assert found.left_out == whole.left_out


@pytest.mark.parametrize("damaged", [b"", b"no archive", "cut"])
def test_a_damaged_file_of_a_comparison_is_named(tmp_path, damaged):
    path = tmp_path / "kept.pt"
    kept = Kept(path, FakeTrainer())
    kept.once("lr 0.1", lambda: 0.5, "lr")
    path.write_bytes(path.read_bytes()[:-30] if damaged == "cut" else damaged)
    with pytest.raises(TrainingError, match=r"kept\.pt: damaged \(.*\)\. Remove it, and the comparison begins anew\."):
        Kept(path, FakeTrainer())


def test_earlier_processes_count_for_the_time_of_a_comparison(experiment, tmp_path):
    kept = Kept(tmp_path / "kept.pt", FakeTrainer())
    kept.started -= 100
    given = Outcome(2, {"auc": np.float32(0.5), "mrr": None, "r2": math.nan}, (0.5, 0.25), 1.0, 10)
    assert kept.outcome("lr 0.1 2", lambda: given, "lr")[0].metrics["auc"] == 0.5
    again = Kept(tmp_path / "kept.pt", FakeTrainer())
    assert 100 <= again.seconds < 110
    found, _ = again.outcome("lr 0.1 2", Mock(side_effect=AssertionError), "lr")
    assert math.isnan(found.metrics.pop("r2"))
    assert found == replace(given, metrics={"auc": 0.5, "mrr": None})


def test_an_error_of_the_command_is_one_line(tiny, capsys):
    assert main(["compare", "--config", str(tiny.config), "--models", "lr"]) == 2
    assert "two models or more are compared" in capsys.readouterr().err.splitlines()[-1]
    assert not (tiny.folder / "artifacts").exists()  # nothing was done before


def test_errors_of_a_model_leave_it_out_and_those_of_the_program_are_raised(experiment, monkeypatch):
    trainer = FakeTrainer()
    for error, raised in (
        (KeyError("a defect"), KeyError),
        (ModelError("not for this\ntarget"), TrainingError),
        (RankingError("scores that are\nnot finite"), TrainingError),
    ):
        trainer.valid_metric = Mock(side_effect=error)
        with pytest.raises(raised, match=" ".join(error.args[0].split())):
            compared_by(trainer, experiment, monkeypatch)


def test_only_the_same_comparison_has_the_same_folder(shop, monkeypatch):
    monkeypatch.setattr("gigabatch.pipeline.lab.compare.compare.source_hash", lambda modules: "sources")

    def compared(trainer, ranking="null", trials=1):
        settings = ("recipe=tiny_shop", *SMALL, f"evaluate.ranking={ranking}")
        experiment = Experiment.of(shop.pipeline(*settings).features().encode(), 1000)
        return compared_by(trainer, experiment, monkeypatch, models="lr,tabular", seeds=1, trials=trials)

    by_loss = compared(FakeTrainer("logloss", -1), trials=3)
    # Of a loss less is better: the fake one is least at the lowest learning rate.
    assert [contender.lr for contender in by_loss.contenders] == pytest.approx([0.02 / 3] * 2, rel=1e-3)
    found = [by_loss, compared(FakeTrainer()), compared(FakeTrainer(), "{k: [3], negatives: null}")]
    found.append(compared(FakeTrainer(), trials=3))
    assert len({one.id for one in found}) == 4
    assert compared(FakeTrainer()).id == found[1].id


@pytest.mark.parametrize(("setting", "left"), [("ema_decay", "auto"), ("lr_max", None)])
def test_what_is_set_to_what_the_rule_says_is_another_comparison(trained, monkeypatch, setting, left):
    """What the rule says is each model's own, so that the other one went on from trainings of other settings."""

    def compared(value):
        pipeline = trained[0].pipeline(*SMALL, {f"train.{setting}": value})
        experiment = Experiment.of(pipeline.features().encode(), 1000)
        return experiment.settings, compared_by(FakeTrainer(), experiment, monkeypatch, models="lr,tabular").id

    settings, id = compared(left)
    same, other = compared(getattr(settings, setting))
    assert same == settings
    assert other != id


@pytest.mark.parametrize(("kind", "decay"), [("tabm", 0.98), ("tabular", None)])
def test_the_average_of_weights_that_the_rule_gives_is_each_models_own(kind, decay):
    spec = ModelSpec(kind, ModelInputs((5,), 2), model_class(kind).Settings())
    settings = WholeTrainSettings(epochs=15, batch_size=64, lr_max=0.01, ema_decay=None)
    assert average_of(settings, 2_000, spec) == decay
