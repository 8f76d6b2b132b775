"""Reports of whole runs of odd data: the page stands, and says what there is."""

import numpy as np
import pandas as pd
import pytest

from gigabatch import Pipeline
from gigabatch.pipeline.config.config import ConfigError, parse_config
from tests.pipeline.reports.test_report import Page

NAME = "<b>city</b> & co"


def frame(rows: int, task: str, rng: np.random.Generator) -> pd.DataFrame:
    price = rng.normal(size=rows)
    y = {"binary": (price + rng.normal(size=rows) > 0).astype(int), "regression": price * 2 + rng.normal(size=rows)}
    kinds = np.array(["a<i>", "b", "c"])[np.clip((price + 1).astype(int), 0, 2)]
    return pd.DataFrame(
        {
            NAME: rng.choice(["Oslo", "<script>alert(1)</script>", ""], rows),
            "price": price,
            "at": np.arange(rows),
            "w": rng.choice([0.5, 1.0, 2.0], rows),
            "y": y.get(task, kinds),
        }
    )


def run(folder, task: str, rows: int, change=None, evaluate=None, **more):
    data = frame(rows, task, np.random.default_rng(0))
    if change:
        change(data)
    data.to_csv(folder / "data.csv", index=False)
    features = {
        "path": str(folder / "data.csv"),
        "categorical": [NAME],
        "continuous": ["price"],
        "targets": {"y": {"task": task}},
        "time": "at",  # by which rows are split, so that the last tenth are test's
    } | more
    config = {
        "name": "odd", "recipe": "table", "device": "cpu", "engine": "pandas", "features": features,
        "artifacts": str(folder / "artifacts"), "runs": str(folder / "runs"),
        "model": {"layers": [8]}, "train": {"epochs": 1, "batch_size": 16},
        "evaluate": evaluate or {"importance": False, "baselines": ["constant"]},
    }  # fmt: skip
    return Pipeline.from_config(config).train()


def page_of(made) -> Page:
    return Page((made.path / "report.html").read_text())


def test_fifty_rows_with_markup_in_names_and_values(tmp_path):
    made = run(tmp_path, "binary", 50)
    page = page_of(made)
    text = " ".join(page.words)
    assert "script" not in page.tags
    assert "Test AUC" in page.words
    assert NAME in page.inside["table"]
    assert "No value of a column has enough rows" in text
    assert "Earlier runs" not in page.words
    again = run(tmp_path, "binary", 50, weight="w")
    assert "Earlier runs" in page_of(again).words
    assert "least cost on valid" in {row["chosen_by"] for row in again.summary["thresholds"]["y"]}


def no_positive_in_the_last_rows(data):
    data.loc[len(data) * 7 // 10 :, "y"] = 0


def test_a_test_split_without_a_positive_is_said_and_drawn_as_far_as_it_goes(tmp_path):
    made = run(tmp_path, "binary", 200, no_positive_in_the_last_rows)
    page = page_of(made)
    text = " ".join(page.words)
    assert "has no row of class 1" in text
    assert "could not be computed" in text  # the tile of AUC
    assert "Thresholds" not in page.words
    assert "Calibration" in page.words


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_other_tasks_have_their_own_parts(tmp_path, task):
    page = page_of(run(tmp_path, task, 300, evaluate={"importance_repeats": 1}))
    expected = {"multiclass": "Classes of lowest F1", "regression": "Residuals by prediction"}[task]
    assert expected in page.words
    assert "Thresholds" not in page.words
    assert "Test AUC" not in page.words
    assert "Importance: rise of the loss when a feature is shuffled" in " ".join(page.words)


def test_tiles_of_several_targets_say_that_they_are_means_and_of_what_importance_is(tmp_path):
    def more(data):
        data["z"] = (data["price"] > 0.5).map({True: "yes", False: "no"})
        data["v"], data["u"] = data["price"] * 2 + 1, data["price"] ** 2

    tasks = {"y": "binary", "z": "multiclass", "v": "regression", "u": "regression"}
    targets = {name: {"task": task} for name, task in tasks.items()}
    made = run(tmp_path, "binary", 400, more, evaluate={"importance": True, "baselines": []}, targets=targets)
    metrics = made.summary["targets"]["test"]
    text = " ".join(" ".join(page_of(made).words).split())
    tiles = text.partition("Of the 40 rows of the test split")[0]
    means = [f"{np.mean([metrics[name][kind] for name in 'yz']):.4f} mean of 2 targets" for kind in ("logloss", "ece")]
    assert f"Test log loss {means[0]}" in tiles
    assert f"Test calibration error {means[1]}" in tiles
    assert f"Test AUC {metrics['y']['auc']:.4f} 0.5 is chance" in tiles
    assert "RMSE" not in tiles  # of two units there is no mean
    assert "could not be computed" not in text
    assert "two standard errors" not in text
    assert "Importance: drop of AUC (of binary targets alone) when" in text


def test_costs_that_are_both_nothing_are_refused():
    costs = {"false_positive_cost": 0, "false_negative_cost": 0}
    with pytest.raises(ConfigError, match="both 0, so no threshold is better"):
        parse_config({"name": "a", "recipe": "flights", "features": {"path": "a"}, "evaluate": costs})
