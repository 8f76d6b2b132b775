"""benchmarks.quality: its metrics and intervals beside scikit-learn's and SciPy's, and a run that goes on."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.quality import Fits, judged, row_of
from benchmarks.quality_peers import drawn


def test_metrics_are_those_of_scikit_learn_and_a_loop():
    random = np.random.default_rng(0)
    scores = random.random(500)
    labels = (random.random(500) < scores**2).astype("float64")
    error = 0.0
    for low in range(15):
        inside = (scores > low / 15) & (scores <= (low + 1) / 15)
        error += abs(scores[inside].sum() - labels[inside].sum()) / 500
    # Confidence is P(1) and a hit is label 1 in these bins.
    expected = {"auc": roc_auc_score(labels, scores), "log_loss": log_loss(labels, scores), "ece": error}
    assert judged(scores, labels) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_the_interval_is_students(count):
    auc = [0.71, 0.72, 0.715, 0.73, 0.70][:count]
    fits = [{"auc": a, "log_loss": 0.5, "ece": 0.1, "train_seconds": 1, "seconds_of_1M_rows": 1} for a in auc]
    low, high = stats.t.interval(0.95, count - 1, np.mean(auc), stats.sem(auc))
    assert row_of("adult", "ours", fits)["auc_plus_minus"] == pytest.approx((high - low) / 2, abs=1e-5)


def test_a_fit_of_the_file_is_not_asked_for_again(tmp_path, monkeypatch):
    folder, asked = tmp_path / "adult-1", []
    folder.mkdir()
    (folder / "layout.json").write_text(json.dumps({"target": "y"}))
    pd.DataFrame({"y": [0.0, 1.0]}).to_parquet(folder / "test.parquet")

    def answer(process, job):
        asked.append(job["trial"])
        np.save(job["scores"], np.array([0.2, 0.7]))
        return {"valid_loss": 0.3}

    monkeypatch.setattr("benchmarks.quality.ask", answer)
    first = Fits(tmp_path, 1).peer(None, "4.7", folder, "lightgbm", 1, 1)
    assert Fits(tmp_path, 1).peer(None, "4.7", folder, "lightgbm", 1, 1) == first
    Fits(tmp_path, 1).peer(None, "4.8", folder, "lightgbm", 1, 1)
    Fits(tmp_path, 1).peer(None, "4.7", folder, "lightgbm", 2, 1)
    assert asked == [1, 1, 2]


@pytest.mark.parametrize("contender", ["lightgbm", "catboost"])
def test_trials_are_drawn_by_number_and_the_first_has_the_defaults(contender):
    assert drawn(contender, 0) == {}
    assert drawn(contender, 3) == drawn(contender, 3) != drawn(contender, 4)
