"""Using a finished run: evaluating it again and writing its predictions."""

import json

import numpy as np
import pandas as pd
import pytest
from tiny_recipe import day_of_rows

from features.errors import DataError
from pipeline.score import RunError, evaluate_run, score_run


def test_evaluating_again_gives_the_numbers_of_the_run(trained, tmp_path, capsys):
    tiny, run = trained
    assert evaluate_run(tiny.config, (), None, None, tmp_path / "again") == 0
    found = json.loads((tmp_path / "again" / "summary.json").read_text())
    summary = run.summary
    assert {name: found[name] for name in ("auc", "logloss", "ece", "mrr")} == summary["metrics"]["test"]
    assert (found["id"], found["split"], found["rows"]) == (summary["id"], "test", 300)
    assert found["targets"] == summary["targets"]["test"]
    assert "<svg" in (tmp_path / "again" / "report.html").read_text()
    assert str(tmp_path / "again" / "report.html") in capsys.readouterr().out


def test_another_split_and_the_runs_own_folder_by_default(tiny):
    run = tiny.train()
    assert evaluate_run(tiny.config, (), run.path, "valid", None) == 0
    found = json.loads((run.path / "evaluation-valid" / "summary.json").read_text())
    assert found["auc"] == run.summary["metrics"]["valid"]["auc"]


def test_scores_are_written_with_their_keys(trained, tmp_path):
    tiny, run = trained
    for name in ("scores.parquet", "scores.csv"):
        assert score_run(tiny.config, (), None, None, tmp_path / name) == 0
    found = pd.read_parquet(tmp_path / "scores.parquet")
    expected = day_of_rows(0).tail(300).reset_index(drop=True)
    assert list(found.columns) == ["at", "row", "predicted_clicked"]
    assert found["row"].tolist() == expected["row"].tolist()
    assert np.array_equal(found["predicted_clicked"], run.bundle().predict(expected)["clicked"])
    assert pd.read_csv(tmp_path / "scores.csv")["row"].tolist() == expected["row"].tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scores.csv", "scores.parquet"]


def test_scores_lie_in_the_runs_folder_by_default(tiny, capsys):
    run = tiny.train()
    assert score_run(tiny.config, (), None, "valid", None) == 0
    assert len(pd.read_parquet(run.path / "scores-valid.parquet")) == 300
    assert f"300 rows  {run.path / 'scores-valid.parquet'}" in capsys.readouterr().out


def test_a_recipe_with_a_submission_format_writes_that(tiny):
    run = tiny.train("features.group=true", "train.epochs=1")
    assert run.summary["mrr"] is not None
    assert score_run(tiny.config, ("features.group=true",), None, None, None) == 0
    found = pd.read_csv(run.path / "submission.csv")
    assert list(found.columns) == ["session", "row", "score"]
    assert len(found) == 300


def test_no_run_is_an_error_that_says_what_to_do(tiny):
    for work in (evaluate_run, score_run):
        with pytest.raises(RunError, match=r"latest: no model there\. Train first"):
            work(tiny.config, (), None, None, None)
        with pytest.raises(RunError, match=r"elsewhere: no model there"):
            work(tiny.config, (), tiny.folder / "elsewhere", None, None)


def test_an_unknown_split_or_ending_is_an_error(trained, tmp_path):
    with pytest.raises(DataError, match=r"split 'tset' does not exist\. Known: train, valid, test"):
        score_run(trained[0].config, (), None, "tset", None)
    with pytest.raises(DataError, match=r"scores\.xlsx: unknown ending\. Known: \.csv, \.parquet"):
        score_run(trained[0].config, (), None, None, tmp_path / "scores.xlsx")
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_no_file(trained, tmp_path, monkeypatch):
    def fail(self, path, **_):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", fail)
    with pytest.raises(OSError, match="No space left"):
        score_run(trained[0].config, (), None, None, tmp_path / "scores.csv")
    assert list(tmp_path.iterdir()) == []
