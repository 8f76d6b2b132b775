"""What a run says first, on the console and in its report, where the model or the data are not what they should be."""

import json
import logging

import numpy as np
import pandas as pd
import pytest
from markupsafe import Markup

from gigabatch import fit
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.reports import charts
from gigabatch.pipeline.stages.score import evaluate
from gigabatch.pipeline.stages.stages import Pipeline

ROWS = 3000


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A configuration of the recipe `table` on rows by time; the last tenth comes from another shop."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    random = np.random.default_rng(0)
    price, hour = random.normal(size=ROWS), random.integers(0, 24, ROWS)
    late = np.arange(ROWS) >= 0.9 * ROWS
    bought = (random.random(ROWS) < 1 / (1 + np.exp(1 - 2 * price - 2.5 * late))).astype(int)
    frame = pd.DataFrame(
        {
            "at": np.arange(ROWS) * 60, "price": price, "hour": hour, "bought": bought,
            "brand": np.where(late & (random.random(ROWS) < 0.5), "new", random.choice(["a", "b", "c"], ROWS)),
            "weight": np.where(late & (random.random(ROWS) < 0.4), np.nan, random.normal(size=ROWS)),
            "refund": bought * 5 + random.normal(size=ROWS) * 0.01,
        }
    )  # fmt: skip
    frame.to_csv(tmp_path / "shop.csv", index=False)
    config = {
        "name": "shop", "recipe": "table", "device": "cpu", "engine": "pandas",
        "artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs"),
        "features": {
            "path": str(tmp_path / "shop.csv"), "categorical": ["brand", "hour"], "time": "at",
            "inputs": {"weight": "string"}, "steps": [{"parse_number": {"column": "weight", "output": "load"}}],
            "continuous": ["price", "load", "refund"], "targets": {"bought": {"task": "binary"}},
        },
        "model": {"layers": [8]},
        "train": {"epochs": 1, "batch_size": 1024, "lr_max": 1e-6},
        "evaluate": {"importance": False},
    }  # fmt: skip
    (tmp_path / "shop.yaml").write_text(json.dumps(config))
    return tmp_path / "shop.yaml"


def test_a_poor_model_and_odd_data_are_the_first_thing_that_is_said(shop, capsys, caplog):
    caplog.set_level(logging.INFO)
    assert main(["train", "--config", str(shop)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("Warning: 'bought' on the test split: the model is worse than ")
    assert "the boosted trees (" in out[0]
    assert "It took only 2 steps: lower train.batch_size or raise train.epochs; " in out[0]
    warned = [line for line in out if line.startswith("Warning: ")]
    for words in (
        "target 'bought': the share of 1 differs between the splits: train",
        "column 'refund' may leak target 'bought': alone it reaches an AUC of ",
        "column 'load', made of 'weight': the share of missing values differs: train 0%, test ",
        "column 'brand': ",
    ):
        assert any(words in line for line in warned), words
    assert len(warned) == 5
    assert "boosted trees" in "\n".join(out[len(warned) :])
    run = Pipeline.from_config(shop).train()
    summary = run.summary
    assert [f"Warning: {text}" for text in summary["warnings"]] == warned
    assert [item["name"] for item in summary["baselines"]["found"]] == ["constant", "linear", "boosted"]
    assert [set(item["metrics"]) for item in summary["baselines"]["found"]] == [{"valid", "test"}] * 3
    notebook = run._repr_html_()
    assert notebook.startswith("<p>Warning: &#x27;bought&#x27; on the test split: the model is worse than")
    assert "boosted trees" in notebook.partition("<table")[2]
    page = (run.path / "report.html").read_text()
    assert page.index("the model is worse than") < page.index("<dl") < page.index("<h2>Baselines</h2>")
    assert "baselines: constant" in caplog.text
    assert "boosted" in caplog.text.partition("baselines: constant")[2].splitlines()[0]


def test_a_model_that_learnt_is_not_warned_of_and_baselines_can_be_left_out(shop, capsys):
    good = [
        "features.continuous=[price]", "features.categorical=[hour]", "train.epochs=10", "train.batch_size=128",
        "train.lr_max=0.02", "evaluate.baselines=[constant]",
    ]  # fmt: skip
    assert main(["train", "--config", str(shop), *good]) == 0
    out = capsys.readouterr().out
    assert "the model is worse than" not in out
    assert "boosted" not in out
    run = Pipeline.from_config(shop, *good, "evaluate.baselines=[]").train()
    assert run.skipped == ("features", "encode", "train")
    assert run.summary["baselines"] is None
    assert "Baselines" not in (run.path / "report.html").read_text()
    assert main(["train", "--config", str(shop), "evaluate.baselines=[constant, constant]"]) == 2
    assert "names a baseline twice" in capsys.readouterr().err


def without_seconds(found: dict, split: str) -> list[dict]:
    """Baselines with the metrics of one split, and without what differs each time."""
    kept = [{name: value for name, value in item.items() if name != "seconds"} for item in found["found"]]
    return [item | {"metrics": item["metrics"][split]} for item in kept]


def test_evaluating_again_warns_and_compares_as_the_run_did(shop, tmp_path, capsys):
    """H3: `gigabatch evaluate` told metrics alone, and nothing of what its run had warned of."""
    assert main(["train", "--config", str(shop), "evaluate.importance=true"]) == 0
    run = Pipeline.from_config(shop, "evaluate.importance=true").train()
    capsys.readouterr()
    again = ["evaluate", "--config", str(shop), "--out", str(tmp_path / "again"), "evaluate.importance=true"]
    assert main(again) == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert found["warnings"] == run.summary["warnings"]
    assert len(found["warnings"]) == 5
    assert out.splitlines()[: len(found["warnings"])] == [f"Warning: {text}" for text in found["warnings"]]
    compared = run.summary["baselines"]
    assert without_seconds(found["baselines"], "test") == without_seconds(compared, "test")
    assert "Baselines on 300 test rows" in out
    page = (tmp_path / "again" / "report.html").read_text()
    assert page.index("the model is worse than") < page.index("<h2>Baselines</h2>")
    assert "<h2>Importance of the columns</h2>" in page
    assert not list((tmp_path / "artifacts").glob(".tmp-*"))
    assert main([*again, "--split", "valid", "evaluate.baselines=[constant, linear]"]) == 0
    found = json.loads((tmp_path / "again" / "summary.json").read_text())
    expected = [item for item in without_seconds(compared, "valid") if item["name"] != "boosted"]
    assert [item["metrics"] for item in without_seconds(found["baselines"], "valid")] == [
        item["metrics"] for item in expected
    ]
    assert found["warnings"][0].startswith("'bought' on the valid split: the model is worse than the linear model (")
    assert "Baselines on 300 valid rows" in capsys.readouterr().out
    assert main([*again, "evaluate.baselines=[]"]) == 0
    found = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert (found["baselines"], len(found["warnings"])) == (None, 4)
    assert "Baselines" not in capsys.readouterr().out


@pytest.mark.parametrize("far", [60.0, 5000.0])  # a prediction of about 1e13, and one that is infinite
def test_a_row_that_is_predicted_beyond_all_labels_is_named_before_any_advice(far, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("os.fsync", lambda handle: None)
    monkeypatch.setattr(charts, "_svg", lambda *_: Markup("<svg></svg>"))  # on matplotlib's axes, unlike other tests
    random = np.random.default_rng(0)
    x = random.normal(size=1000)
    frame = pd.DataFrame({"at": np.arange(1000), "x": x, "visits": random.poisson(np.exp(0.5 * x))})
    frame.loc[950, "x"] = far
    frame.to_csv(tmp_path / "rows.csv", index=False)
    config = {
        "name": "visits", "recipe": "table", "device": "cpu", "engine": "pandas",
        "artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs"),
        "features": {"path": str(tmp_path / "rows.csv"), "time": "at", "continuous": ["x"],
                     "targets": {"visits": {"task": "regression"}}},
        # Linear, without the norm that would bound it.
        "model": {"kind": "tabular", "layers": [], "batch_norm_floats": False, "numeric": "plain"},
        "evaluate": {"baselines": ["constant"]},
        "train": {"epochs": 4, "lr_max": 0.05, "losses": {"visits": {"kind": "poisson"}}},
    }  # fmt: skip
    (tmp_path / "visits.yaml").write_text(json.dumps(config))
    run = Pipeline.from_config(tmp_path / "visits.yaml").train()
    first, *others = run.summary["warnings"]
    assert first.startswith("'visits' on the test split: 1 of 100 rows is predicted more than 10 times as far off")
    assert "row 50 (" in first
    assert "'x' at " in first
    assert not any("train.batch_size" in text or "train.lr_max" in text for text in others)
    assert "R² is " in others[0] or "the model is worse than" in others[0]
    page = (run.path / "report.html").read_text()
    assert "1 of 100 rows is predicted" in page
    assert ("1 of 100 predictions are NaN" in page) == (far == 5000.0)
    assert main(["score", "--config", str(tmp_path / "visits.yaml"), "--split", "test"]) == 0
    assert ("target 'visits': 1 of 100 predictions" in caplog.text) == (far == 5000.0)


def test_columns_that_tell_the_label_together_are_warned_of(tmp_path):
    random = np.random.default_rng(4)
    frame = pd.DataFrame({"paid": random.normal(size=2500), "due": random.normal(size=2500)})
    frame["late"] = (frame["paid"] < frame["due"]).map({True: "yes", False: "no"})
    folders = {"artifacts": str(tmp_path / "artifacts"), "runs": str(tmp_path / "runs")}
    run = fit(frame, {**folders, "train.epochs": 10}, target="late")
    (text,) = run.summary["warnings"]
    assert text.startswith("target 'late': on the test split the model reaches an AUC of ")
    again = {split: evaluate(run.summary["config"], run=run.path, split=split) for split in ("valid", "train")}
    assert again["train"]["auc"] > 0.999
    assert again["train"]["warnings"] == []  # rows that a model may know by heart
    assert again["valid"]["warnings"][0].startswith("target 'late': on the valid split the model reaches an AUC of ")
