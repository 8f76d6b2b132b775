"""Figures of runs: rows for Python, drawings for notebooks."""

import json
import re

import pandas as pd
import pytest

from gigabatch import Pipeline, curves
from gigabatch.pipeline.stages.finished import FIGURES, Run
from gigabatch.pipeline.store.files import ArtifactError
from gigabatch.pipeline.views.figures import calibration_figure, importance_figure, learning_figure

ODD = "<b>city</b> & $x$"


@pytest.fixture(autouse=True)
def _drawn(drawn, monkeypatch):
    """Charts are drawn here."""
    from gigabatch.pipeline.reports import charts

    monkeypatch.setattr(charts, "_svg", drawn)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """A run of columns with odd names and nulls."""
    home = tmp_path_factory.mktemp("odd")
    rows = pd.DataFrame({ODD: ["Oslo", "<i>Bonn</i>", None] * 100, "price": range(300)})
    rows["<u>sold</u>"] = (rows["price"] % 3 == 0) * 1.0
    rows.to_parquet(home / "rows.parquet")
    features = {"path": str(home / "rows.parquet"), "categorical": [ODD], "continuous": ["price"]}
    config = {
        "name": "odd",
        "recipe": "table",
        "features": features | {"targets": {"<u>sold</u>": {"task": "binary"}}},
        "train": {"epochs": 3, "batch_size": 32, "lr_max": 0.05},
        "artifacts": str(home / "artifacts"),
        "runs": str(home / "runs"),
    }
    return Pipeline.from_config(config)


@pytest.fixture(scope="module")
def run(odd):
    return odd.train()


def ids(page):
    return re.findall(r' id="([^"]+)"', page)


def test_a_run_keeps_the_rows_of_its_figures(run):
    assert {row["name"] for row in run.importance} == {ODD, "price"}
    assert run.importance[0]["name"] == ODD  # which tells the label
    assert {row["metric"] for row in run.importance} == {"AUC"}
    assert pd.DataFrame(run.curve)["valid_loss"].notna().sum() == 3


def test_few_rows_are_one_bin_of_the_calibration(odd, run):
    test = odd.features().frame("test")
    predicted = run.bundle().predict(test)["<u>sold</u>"]
    observed, mean = test["<u>sold</u>"].mean(), predicted.mean()  # bins of fewer than 50 rows are joined
    assert {row["target"] for row in run.calibration} == {"<u>sold</u>"}
    assert [row["observed"] for row in run.calibration] == pytest.approx([observed])
    assert [row["predicted"] for row in run.calibration] == pytest.approx([mean], abs=1e-6)
    assert sum(row["rows"] for row in run.calibration) == len(test)


def test_what_is_shown_holds_no_markup_of_the_data(odd, run):
    features = odd.features()
    encoded = features.encode()
    shown = [odd, features, encoded, encoded.table("train"), run, run.bundle(), run.importance, run.calibration]
    for item in shown:
        page = item._repr_html_()
        assert not re.search(r"<b>city|<i>Bonn|<u>sold", page), type(item).__name__
        assert "&lt;" in page, type(item).__name__


def test_ids_of_drawings_are_unique_on_a_page_and_all_that_is_used_is_there(run):
    page = run._repr_html_() + run.curve._repr_html_() + run.calibration._repr_html_()
    assert "<svg" in page
    assert len(ids(page)) == len(set(ids(page))) > 0
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
    assert used <= set(ids(page))


def test_a_figure_is_a_page_of_its_own(run, tmp_path):
    run.calibration.figure().save(tmp_path / "calibration.html")
    page = (tmp_path / "calibration.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "Calibration of &lt;u&gt;sold&lt;/u&gt;" in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_a_run_of_before_shows_what_it_has_and_says_what_it_lacks(run, tmp_path):
    for name in ("summary.json", "metrics.jsonl", "report.html"):
        (tmp_path / name).write_bytes((run.path / name).read_bytes())
    old = Run(tmp_path)
    assert "<svg" in old._repr_html_()
    with pytest.raises(ArtifactError, match=rf"{FIGURES}: not there, the run is older than its figures\. Train again"):
        _ = old.importance


def test_numbers_that_are_none_are_no_bars():
    rows = [{"name": "a", "mean": 0.2, "std": 0.1, "metric": "AUC"}, {"name": "b", "mean": None, "std": None}]
    rows.append({"name": "once", "mean": 0.1, "std": None})
    page = importance_figure(rows)._repr_html_()
    assert re.findall(r"nums\">([^<]*)<", page) == ["0.200 ± 0.100", "–", "0.100"]
    assert re.findall(r"height:100%;width:([\d.]+)%", page) == ["100.0", "0.0", "50.0"]
    assert "drop of AUC where a column is shuffled" in page
    assert "overflow-wrap:anywhere" in page  # in a narrow cell long names break, or numbers cover the next figure
    of_loss = importance_figure([{"name": "a", "mean": 0.2, "std": 0.1, "metric": "minus loss"}])._repr_html_()
    assert "rise of the loss where a column is shuffled" in of_loss


def test_where_there_is_nothing_a_figure_says_why():
    assert "importance was not measured" in importance_figure([])._repr_html_()
    assert "no target has classes, or negatives are drawn" in calibration_figure([])._repr_html_()
    assert "no epoch was trained" in learning_figure([])._repr_html_()


def test_curves_of_runs_are_drawn_over_the_epochs_of_each():
    slow = [{"epoch": 1, "valid_loss": 0.6}, {"epoch": 2, "valid_loss": 0.5}]
    fast = [{"epoch": 0.5, "train_loss": 0.7}, {"epoch": 1, "valid_loss": 0.4}]
    page = curves({"<slow>": slow, "fast": fast})._repr_html_()
    assert "&lt;slow&gt;" in page
    assert "Valid loss by epoch" in page
    assert page.count("<use") == 3  # a dot a point


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ({}, "curves: 1 to 4 runs can be told apart by colour, found 0"),
        ({str(number): [] for number in range(5)}, "found 5"),
        ({"a": [{"epoch": 1, "lr": 0.1}]}, "curves: a has no valid_loss by epoch. Its rows have: epoch, lr"),
    ],
)
def test_curves_that_cannot_be_drawn_are_refused(runs, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        curves(runs)


def test_terminals_show_a_line(odd, run):
    features = odd.features()
    assert repr(odd) == "Pipeline('odd', recipe table, model tabular, pandas, cpu)"
    assert repr(features) == "Features(train 235, valid 32, test 33 rows, 4 columns)"
    assert repr(features.encode().table("test")).startswith("PackedTable(33 rows of 4 words: 1 ids, 2 floats, 0 lists")
    assert repr(run.bundle()) == "Bundle('odd', TabularModel, predicts <u>sold</u>, cpu)"


def test_settings_that_nobody_set_are_not_shown(odd):
    page = odd._repr_html_()
    assert "train.lr_max" in page
    assert "weight_decay" not in page
    assert "features.categorical" in page
    assert "null_values" not in page


def test_a_notebook_reads_what_python_reads(run):
    stored = json.loads((run.path / FIGURES).read_text())
    assert stored == {"importance": list(run.importance), "calibration": list(run.calibration)}


def test_lists_several_targets_and_many_columns_are_shown(tmp_path):
    rows = pd.DataFrame({f"n{place}": [float(i * place) for i in range(200)] for place in range(30)})
    rows["tags"] = [["a", "<b>"], [], None, ["a"]] * 50
    rows["bought"], rows["spent"] = [0.0, 1.0] * 100, rows["n3"] * 2
    rows.to_parquet(tmp_path / "rows.parquet")
    config = {
        "name": "lists",
        "recipe": "table",
        "features": {
            "path": str(tmp_path / "rows.parquet"),
            "continuous": [f"n{place}" for place in range(30)],
            "lists": {"tags": {}},
            "targets": {"bought": {"task": "binary"}, "spent": {"task": "regression"}},
        },
        "train": {"epochs": 1},
        "artifacts": str(tmp_path / "artifacts"),
        "runs": str(tmp_path / "runs"),
    }
    features = Pipeline.from_config(config).features()
    encoded = features.encode()
    run = encoded.train()
    page = features._repr_html_()
    assert "[a, &lt;b&gt;], [], –" in page
    assert "target, regression" in page
    assert "<summary>9 more</summary>" in page  # of 30 numbers, 2 targets, a list and the row number
    assert "list of ids" in encoded._repr_html_()
    assert "1 lists" in encoded.table("train")._repr_html_()
    assert "list[string]" in run.bundle()._repr_html_()
    assert {row["target"] for row in run.calibration} == {"bought"}
    assert "Calibration of bought" in run._repr_html_()
