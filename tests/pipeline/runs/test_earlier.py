"""A run beside the earlier ones of its name."""

import json
import os

import pytest

from gigabatch.pipeline.runs.earlier import MOST_RUNS, history_rows, settings_that_differ


def summary(number: int, auc: float | None = 0.7, rows: int = 100, **config) -> dict:
    known = {"recipe": "table", "seed": 1, "features": {"path": "a.csv"}, "train": {"lr_max": 0.02, "epochs": 4}}
    return {
        "id": f"run{number:02d}",
        "created_utc": f"2026-11-{number + 1:02d}T10:20:30+00:00",
        "metrics": {"test": {"auc": auc, "logloss": 0.5, "mrr": None}},
        "rows_by_split": {"test": rows},
        "config": known | config,
    }


def write(home, item, text=None):
    folder = home / item["id"]
    folder.mkdir(parents=True)
    path = folder / "summary.json"
    path.write_text(json.dumps(item) if text is None else text)
    os.utime(path, (1e9 + int(item["id"][3:]),) * 2)


def test_the_gain_over_each_and_the_settings_that_differ(tmp_path):
    write(tmp_path, summary(1, 0.68, train={"lr_max": 0.01, "epochs": 4}))
    write(tmp_path, summary(2, 0.71, seed=2, name="other"))
    own = summary(3, 0.70)
    write(tmp_path, own)
    (tmp_path / "latest").symlink_to("run03")
    rows = history_rows(tmp_path, own)
    assert [row["run"] for row in rows] == ["run03 (this)", "run02", "run01"]
    assert [row["AUC"] for row in rows] == [0.70, 0.71, 0.68]
    assert [row["gain of AUC"] for row in rows] == [None, pytest.approx(-0.01), pytest.approx(0.02)]
    assert [row["settings that differ"] for row in rows] == ["", "seed 2", "train.lr_max 0.01"]
    assert rows[0]["when (UTC)"] == "2026-11-04 10:20"
    assert "MRR" not in rows[0]


def test_metrics_of_other_rows_are_shown_and_not_compared(tmp_path):
    write(tmp_path, summary(1, rows=99))
    write(tmp_path, summary(2, features={"path": "b.csv"}))
    rows = history_rows(tmp_path, summary(3))
    assert [row["gain of AUC"] for row in rows] == [None, None, None]
    assert [row["test rows"] for row in rows] == [100, 100, 99]


def test_metrics_among_other_negatives_are_not_compared(tmp_path):
    """AUC of .93 among items drawn alike was a gain of .22 over .71 among popular ones."""

    def drawn(number, auc, **config):
        negatives = {"per_positive": 8, "kind": "uniform"} | config.pop("negatives", {})
        return summary(number, auc, train={"lr_max": 0.02, "negatives": negatives}, **config)

    write(tmp_path, drawn(1, 0.71, negatives={"kind": "popularity"}))
    write(tmp_path, drawn(2, 0.72, seed=2))
    write(tmp_path, drawn(3, 0.73, preprocess={"min_count": 5}))
    write(tmp_path, drawn(4, 0.74))
    rows = history_rows(tmp_path, drawn(5, 0.93))
    assert [row["gain of AUC"] for row in rows] == [None, pytest.approx(0.19), None, None, None]


def test_metrics_of_files_with_another_content_are_not_compared(tmp_path):
    write(tmp_path, summary(1) | {"features_key": "aa"})
    write(tmp_path, summary(2) | {"features_key": "bb"})
    write(tmp_path, summary(3))  # of a version that did not keep it
    rows = history_rows(tmp_path, summary(4, 0.8) | {"features_key": "aa"})
    assert [row["gain of AUC"] for row in rows] == [None, None, None, pytest.approx(0.1)]
    measured = {"id": "run01", "rows": 100, "metrics": {"test": {"auc": 0.9}}, "features_key": "aa"}
    rows = history_rows(tmp_path, summary(4, rows=7) | {"features_key": "cc", "measured": measured})
    assert [row["gain of AUC"] for row in rows] == [None, None, None, pytest.approx(0.2)]


def test_a_final_run_has_the_metrics_of_the_run_that_measured_it(tmp_path):
    measured = {"id": "run02", "rows": 100, "metrics": {"test": {"auc": 0.71}}}
    final = summary(3, 0.99, rows=7) | {"measured": measured}
    write(tmp_path, summary(1, 0.68))
    write(tmp_path, final)
    write(tmp_path, summary(2) | {"measured": "run01"})  # which cannot be read
    rows = history_rows(tmp_path, summary(4, 0.70))
    assert [row["run"] for row in rows] == ["run04 (this)", "run03, final of run02", "run01"]
    assert [row["AUC"] for row in rows] == [0.70, 0.71, 0.68]
    assert [row["gain of AUC"] for row in rows] == [None, pytest.approx(-0.01), pytest.approx(0.02)]
    assert [row["test rows"] for row in rows] == [100, 100, 100]
    rows = history_rows(tmp_path, final)
    assert [row["run"] for row in rows] == ["run03 (this), final of run02", "run01"]
    assert [(row["AUC"], row["gain of AUC"]) for row in rows] == [(0.71, None), (0.68, pytest.approx(0.03))]


@pytest.mark.parametrize(
    ("own", "other", "text"),
    [
        ({"train": {"new": 1, "epochs": 4}}, {"train": {"epochs": 4}}, ""),  # of an earlier version
        ({"train": {"prior": None}}, {"train": {"prior": {"share": 0.1}}}, "train.prior.share 0.1"),
        ({"model": {"layers": [256, 128]}}, {"model": {"layers": [64]}}, "model.layers [64]"),
        ({"seed": 1, "evaluate": {"slices": True}}, {"seed": 1, "evaluate": {"slices": False}}, ""),
        (dict.fromkeys("abcdef", 0), dict.fromkeys("abcdef", 1), "a 1, b 1, c 1, d 1 and 2 more"),
    ],
)
def test_settings_that_differ(own, other, text):
    assert settings_that_differ(own, other) == text


def test_the_last_ten_are_read_and_damaged_ones_left_out(tmp_path):
    for number in range(1, 15):
        write(tmp_path, summary(number), "{" if number in (13, 14) else None)
    rows = history_rows(tmp_path, summary(20))
    assert [row["run"] for row in rows[1:]] == [f"run{number:02d}" for number in range(12, 12 - MOST_RUNS, -1)]


def test_a_first_run_has_no_history(tmp_path):
    assert history_rows(tmp_path / "none", summary(1)) == []
    write(tmp_path, summary(1))
    assert history_rows(tmp_path, summary(1)) == []


def test_less_is_better_of_a_loss_and_metrics_that_are_null_take_no_column(tmp_path):
    for number, loss in ((1, 0.6), (2, 0.5)):
        item = summary(number)
        item["metrics"]["test"] = {"auc": None, "logloss": loss}
        write(tmp_path, item)
    own = json.loads((tmp_path / "run02" / "summary.json").read_text())
    rows = history_rows(tmp_path, own)
    assert rows[1]["gain of Log loss"] == pytest.approx(0.1)
    assert "AUC" not in rows[0]
