"""Whole runs of models that take no steps: trained, kept, predicted with, evaluated, exported; and what is refused."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from gigabatch.models.errors import ModelError
from gigabatch.models.losses import TargetLoss
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import PriorSettings, load_config
from gigabatch.pipeline.lab.bounds import Budget
from gigabatch.pipeline.lab.compare.compare import compare_models, parse_models
from gigabatch.pipeline.lab.experiment import Experiment
from gigabatch.pipeline.lab.plan.plan import make_plan
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.training.checkpoint import TrainingError
from gigabatch.pipeline.training.train import model_spec, train_model
from tests.pipeline.stages.test_implicit_run import ITEMS, USERS, home  # noqa: F401

KINDS = ("popularity", "top_frequency", "item_knn", "ease")


def overrides(kind: str, *others: str) -> list[str]:
    return [f"model={{kind: {kind}}}", "train={negatives: {per_positive: 4}}", *others]


@pytest.fixture(scope="module", params=KINDS)
def fitted(request, home):  # noqa: F811
    return Pipeline.from_config(home / "run.yaml", *overrides(request.param)).train()


def test_a_run_is_trained_evaluated_and_ranked(fitted):
    summary = fitted.summary
    kind, rows = summary["config"]["model"]["kind"], summary["rows_by_split"]["train"]
    expected = {"epochs": 1, "steps": 0, "skipped_steps": 0, "rows": rows, "earlier_rows": 0}
    assert summary["trained"] == expected | {"threads": torch.get_num_threads()}
    assert not any("Training by default" in note for note in summary["notes"])
    (point,) = fitted.curve
    assert point["valid_loss"] < 0.5005  # of the share of positives alone: -.2 log .2 - .8 log .8
    assert 1 < summary["ranking"]["catalogue"]["candidates"] < ITEMS  # less what the user has in train
    others = [item["name"] for item in summary["ranking"]["baselines"]["found"]]
    assert len(others) == 3 - (kind != "top_frequency")
    if kind in ("item_knn", "ease"):  # users like items of their own parity
        assert summary["auc"] > 0.62
        assert summary["ranking"]["sampled"]["hr@5"] > 0.38
    assert "Ranking of the test split" in (fitted.path / "report.html").read_text()
    assert abs(summary["logloss"]) < 0.51


def test_the_bundle_predicts_raw_rows_and_unknown_ones(fitted, home):  # noqa: F811
    bundle = fitted.bundle()
    raw = pd.read_csv(home / "clicks.csv").head(50)
    found = bundle.predict_raw(raw).iloc[:, 0]
    assert found.between(0, 1).all()
    alone = pd.concat([bundle.predict_raw(raw.iloc[[row]]) for row in (0, 7)]).iloc[:, 0]
    np.testing.assert_allclose(alone, found.iloc[[0, 7]], rtol=1e-5, atol=1e-5)
    unknown = bundle.predict_raw(raw.assign(user="nobody")).iloc[:, 0]
    by_item = unknown.groupby(raw["item"]).agg(["min", "max"])
    np.testing.assert_allclose(by_item["min"], by_item["max"], rtol=1e-5)
    # an unknown user gets what is popular in the train split: the order is that of the items' counts there
    encoded = Pipeline.from_config(home / "run.yaml").features().encode()
    counts = encoded.features.frame("train")["item"].value_counts()
    ordered = by_item["max"].sort_values().index
    assert (np.diff([counts.get(item, 0) for item in ordered]) >= 0).all()


def test_a_valid_split_of_one_label_is_told_of(home, caplog):  # noqa: F811
    """Rows that are all positives, and no negatives drawn: Platt's line has nothing to tell them from."""
    Pipeline.from_config(home / "run.yaml", "model={kind: popularity}", "train.negatives=null", "name=alike").train()
    assert "Popularity: all of the valid split's" in caplog.text
    assert "labels are 1, so its probabilities are near that for every row" in caplog.text
    assert "train.negatives" in caplog.text


def test_it_is_not_trained_again_and_evaluating_gives_the_same(fitted, home, tmp_path):  # noqa: F811
    kind = fitted.summary["config"]["model"]["kind"]
    again = Pipeline.from_config(home / "run.yaml", *overrides(kind)).train()
    assert again.skipped == ("features", "encode", "train", "evaluate")
    command = ["evaluate", "--config", str(home / "run.yaml"), "--run", fitted.path.name, "--out", str(tmp_path)]
    assert main([*command, *overrides(kind)]) == 0
    found, summary = json.loads((tmp_path / "summary.json").read_text()), fitted.summary
    assert found["targets"] == summary["targets"]["test"]
    assert found["ranking"]["catalogue"] == summary["ranking"]["catalogue"]


def test_the_same_rows_give_the_same_bits(fitted, home, tmp_path):  # noqa: F811
    kind = fitted.summary["config"]["model"]["kind"]
    places = [f"artifacts={tmp_path / 'a'}", f"runs={tmp_path / 'r'}"]
    other = Pipeline.from_config(home / "run.yaml", *overrides(kind, *places)).train()
    before, now = fitted.bundle().model.state_dict(), other.bundle().model.state_dict()
    assert all(torch.equal(now[name], value) for name, value in before.items())


def test_calibration_and_streaming_change_no_order(home):  # noqa: F811
    plain = Pipeline.from_config(home / "run.yaml", *overrides("ease")).train()
    for more in ("train.calibration=isotonic", "train.calibration=temperature", "train.residency=stream"):
        run = Pipeline.from_config(home / "run.yaml", *overrides("ease", more)).train()
        assert run.summary["ranking"]["catalogue"] == plain.summary["ranking"]["catalogue"]
        assert run.summary["logloss"] < plain.summary["logloss"] + 0.02


def test_what_asks_for_steps_is_refused(fitted, home, capsys):  # noqa: F811
    kind = fitted.summary["config"]["model"]["kind"]
    name = type(fitted.bundle().model).__name__
    for command in (["lr-range"], ["tune", "--seconds", "20"]):
        assert main([*command, "--config", str(home / "run.yaml"), *overrides(kind)]) == 2, command
        assert f"{name} takes no steps: it has no optimizer" in " ".join(capsys.readouterr().err.split())


def test_a_warm_start_is_refused_or_cold(fitted, home):  # noqa: F811
    kind = fitted.summary["config"]["model"]["kind"]
    asked = overrides(kind, f"train.start_from={fitted.path.name}", f"preprocess.from={fitted.path.name}")
    with pytest.raises(TrainingError, match=f"the model {kind}, which is fitted to all train rows"):
        Pipeline.from_config(home / "run.yaml", *asked).train()
    cold = Pipeline.from_config(home / "run.yaml", *asked, "train.changed=cold", "seed=2").train()
    assert any("Trained cold" in note for note in cold.summary["notes"])


def test_ratings_are_refused(home, tmp_path):  # noqa: F811
    rows = pd.read_csv(home / "clicks.csv").assign(stars=lambda frame: np.arange(len(frame)) % 5 + 1.5)
    rows.to_csv(tmp_path / "t.csv", index=False)
    config = {
        "name": "stars", "recipe": "table", "artifacts": str(tmp_path / "a"), "runs": str(tmp_path / "r"),
        "features": {
            "path": str(tmp_path / "t.csv"), "categorical": ["user", "item"],
            "targets": {"stars": {"task": "regression"}},
            "entities": {"user": {"key": "user"}, "item": {"key": "item"}},
        },
        "model": {"kind": "ease"},
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="and the target is regression"):
        Pipeline.from_config(tmp_path / "run.yaml").train()


def test_labels_of_0_and_1_are_learnt_without_drawn_negatives(home, tmp_path):  # noqa: F811
    """Rated by the parity rule: 5 where it fits, else 1 or 5 by chance."""
    rows = pd.read_csv(home / "clicks.csv")
    draw = np.random.default_rng(3)
    rows = rows.assign(stars=np.where(draw.random(len(rows)) < 0.6, 5, 1))
    rows.to_csv(tmp_path / "rated.csv", index=False)
    features = f"features={{path: {tmp_path / 'rated.csv'}, time: at, rating: stars, task: rating}}"
    more = [features, "train.negatives=null", "model={kind: ease}"]
    run = Pipeline.from_config(home / "run.yaml", *more).train()
    train = Pipeline.from_config(home / "run.yaml", *more).features().frame("train")
    liked = train[train[run.bundle().schema.targets[0].name] == 1]
    assert len(run.bundle().model.pairs) == len(liked[["user", "item"]].drop_duplicates())


def test_a_loaded_bundle_is_on_its_own(fitted, tmp_path):
    bundle = fitted.bundle()
    bundle.save(tmp_path / "model")
    again = load_bundle(tmp_path / "model")
    rows = pd.DataFrame({"user": ["u1", "u2", None], "item": ["i3", "x", None], "weekend": ["0", "1", "0"]})
    first, second = bundle.predict_raw(rows), again.predict_raw(rows)
    assert first.equals(second)


def test_compare_trains_it_once_a_seed_without_a_search(home):  # noqa: F811
    pipeline = Pipeline.from_config(home / "run.yaml", "train.epochs=1", "evaluate.ranking.baselines=[]")
    experiment = Experiment.of(pipeline.features().encode(), None)
    choices = parse_models("ease, lr", pipeline.config.model)
    compared = compare_models(experiment, choices, Budget(seeds=2, trials=3, epochs=1, seconds=None))
    by_name = {contender.label: contender for contender in compared.contenders}
    assert not compared.left_out
    assert by_name["ease"].tried == {}
    assert len(by_name["lr"].tried) == 3
    first, second = by_name["ease"].outcomes
    assert first.metrics["hr@5 catalogue"] == second.metrics["hr@5 catalogue"]  # no seed enters


def test_several_ranks_and_a_source_of_batches_are_refused(home, tmp_path):  # noqa: F811
    encoded = Pipeline.from_config(home / "run.yaml", *overrides("ease")).features().encode()
    spec, table = model_spec(encoded.preprocessor, encoded.config), encoded.table("train")
    given = encoded.evaluation_table("valid"), TargetLoss([("binary", 1)]), encoded.train_settings
    at = {"seed": 1, "device": "cpu", "folder": tmp_path}
    with pytest.raises(TrainingError, match="give them as a packed table"):
        train_model(spec.build(), encoded.train_source(), *given, **at)
    ranks = SimpleNamespace(num_ranks=2, is_first=True, rank=0)
    with pytest.raises(TrainingError, match="several ranks: EASE takes no steps"):
        train_model(spec.build(), table, *given, **at, ranks=ranks)


def test_a_prior_starts_from_the_share_of_the_valid_rows_that_its_lines_are_fitted_to(home, tmp_path):  # noqa: F811
    """The train rows are all positives, and so have no odds of their own."""
    encoded = Pipeline.from_config(home / "run.yaml", *overrides("ease")).features().encode()
    table, valid = encoded.table("train"), encoded.evaluation_table("valid")
    loss, at = TargetLoss([("binary", 1)]), {"seed": 1, "device": "cpu", "folder": tmp_path}
    prior = {"prior": PriorSettings(serve=0.01), "negatives": None}
    spec, settings = model_spec(encoded.preprocessor, encoded.config), encoded.train_settings.model_copy(update=prior)
    share = valid.unpack(valid.words).targets[0].double().mean().item()
    found = train_model(spec.build(), table, valid, loss, settings, **at)
    assert found.prior_shift == pytest.approx(np.log(0.01 / 0.99) - np.log(share / (1 - share)))


def test_a_plan_of_it_takes_no_steps(home, forked_probes):  # noqa: F811
    plan = make_plan(load_config(home / "run.yaml", [*overrides("ease")]))
    assert plan.fits
    assert np.isfinite(plan.seconds)
    assert not any("no step could be tried" in text for text in plan.unknown)


def test_it_scores_files_and_stores_rows_for_a_service(fitted, home, tmp_path):  # noqa: F811
    kind, out = fitted.summary["config"]["model"]["kind"], tmp_path / "scores.csv"
    command = ["--config", str(home / "run.yaml"), "--run", fitted.path.name, *overrides(kind)]
    assert main(["score", "--input", str(home / "clicks.csv"), "--out", str(out), *command]) == 0
    scored = pd.read_csv(out)
    assert len(scored) == 12 * USERS
    assert main(["embed", *command]) == 0  # rows of users and items, as of every model without towers
