"""The nightly job: promote, keep, refuse, fail."""

import json
import os
import signal

import pandas as pd
import pytest
import sklearn.metrics as sk

from gigabatch.features.schema import Column, Schema, Target
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.config.config import ConfigError, NightlySettings
from gigabatch.pipeline.evaluation.evaluate import choose_metric
from gigabatch.pipeline.nightly.nightly import rollback, run_nightly
from gigabatch.pipeline.stages.run import write_report
from tests.pipeline.tiny_recipe import day_of_rows, write_day

PROMOTED, KEPT, REFUSED, FAILED = 0, 10, 20, 40


def nights(tiny) -> list[dict]:
    return [json.loads(line) for line in (tiny.home / "nightly.jsonl").read_text().splitlines()]


def pointer(tiny, name: str) -> str | None:
    link = tiny.home / name
    return os.readlink(link) if link.is_symlink() else None


def test_the_first_night_promotes_and_the_same_data_again_is_kept(finished, capsys):
    assert run_nightly(finished.config) == PROMOTED
    first = pointer(finished, "current")
    assert (finished.home / "current" / "model" / "bundle.json").exists()
    assert run_nightly(finished.config) == KEPT
    assert (pointer(finished, "current"), pointer(finished, "previous")) == (first, None)
    assert [night["exit_code"] for night in nights(finished)] == [0, 10]
    assert "nothing changed" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="previous does not exist; there is no model before"):
        rollback(finished.config)
    assert "<html" in (finished.home / "nightly.html").read_text()


def test_a_wide_tolerance_promotes_by_rows_that_neither_model_has_seen_and_rollback_swaps_back_and_forth(
    finished, capsys
):
    run_nightly(finished.config)
    first = pointer(finished, "current")
    write_day(finished.raw, 1, 1500)
    assert run_nightly(finished.config, ["nightly.tolerance=1"]) == PROMOTED
    second, night = pointer(finished, "current"), nights(finished)[-1]
    assert second == night["run"] != first
    assert pointer(finished, "previous") == first
    window = day_of_rows(1, 1500).tail(450)  # the last tenth of 4,500 rows; both models scored on it by other code
    models = [load_bundle(finished.home / name / "model") for name in ("previous", "current")]
    found = [sk.roc_auc_score(window["clicked"], model.predict(window)["clicked"]) for model in models]
    assert (night["metric"], night["rows"]) == ("AUC", 450)
    assert [night["current"], night["candidate"]] == pytest.approx(found, abs=1e-9)
    assert night["gain"] == pytest.approx(found[1] - found[0], abs=1e-9)
    assert rollback(finished.config) == 0
    assert (pointer(finished, "current"), pointer(finished, "previous")) == (first, second)
    assert f"{first} is current again" in capsys.readouterr().out
    assert rollback(finished.config) == 0
    assert (pointer(finished, "current"), pointer(finished, "previous")) == (second, first)


def test_a_bad_candidate_is_kept_out_and_current_stays(finished):
    run_nightly(finished.config)
    before = pointer(finished, "current")
    write_day(finished.raw, 1)
    assert run_nightly(finished.config, ["features.shuffled=true"]) == KEPT
    assert (pointer(finished, "current"), pointer(finished, "previous")) == (before, None)
    assert nights(finished)[-1]["bound"] < -0.05
    assert nights(finished)[-1]["decision"].startswith("Kept: AUC ")


def test_too_few_new_rows_are_refused_and_current_stays(finished):
    run_nightly(finished.config)
    before = pointer(finished, "current")
    write_day(finished.raw, 1, 500)
    assert run_nightly(finished.config, ["nightly.min_window_rows=351"]) == REFUSED
    assert pointer(finished, "current") == before
    assert "only 350 labelled rows come after both models' training data" in nights(finished)[-1]["decision"]


# Refused by the features stage, and by the encode stage; test_stages.py has the others that a file may hold.
HOSTILE = {
    "empty file": lambda raw: b"",
    "label of 2": lambda raw: raw.read_bytes().rstrip()[:-3] + b"2.0\n",
}


@pytest.mark.parametrize("kind", list(HOSTILE))
def test_bad_data_are_refused_and_current_stays(finished, kind):
    run_nightly(finished.config)
    before = pointer(finished, "current")
    path = write_day(finished.raw, 1, 600)
    path.write_bytes(HOSTILE[kind](path))
    assert run_nightly(finished.config) == REFUSED
    assert pointer(finished, "current") == before
    assert nights(finished)[-1]["decision"].startswith("Data refused: ")


def test_no_files_at_all_are_refused(tiny):
    (tiny.raw / "day-000.csv").unlink()
    assert run_nightly(tiny.config) == REFUSED
    assert pointer(tiny, "current") is None


def strict(line: str) -> dict:
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(line, parse_constant=refuse)


def rewritten(path, change) -> None:
    frame = pd.read_csv(path)
    change(frame)
    frame.to_csv(path, index=False)


def test_inverted_labels_are_kept_out_though_the_current_model_is_worse(finished):
    """R4: promoted at an AUC of .299 against .216."""
    run_nightly(finished.config)
    before = pointer(finished, "current")
    rewritten(write_day(finished.raw, 1, 9000), lambda day: day.update({"clicked": 1 - day["clicked"]}))
    # Trained on the day as it was and judged on the inverted one; the tolerance says that anything goes.
    wide = ["features.split={train: 0.2, valid: 0.05, test: 0.75}", "nightly.tolerance=1"]
    assert run_nightly(finished.config, wide) == KEPT
    assert pointer(finished, "current") == before
    night = strict((finished.home / "nightly.jsonl").read_text().splitlines()[-1])
    assert night["candidate"] < 0.5 == night["constant"] < night["record"]
    assert "no better than a constant prediction (AUC 0.5000)" in night["decision"]


def test_a_window_of_one_class_is_refused(finished):
    """R8: it was kept, with NaN in nightly.jsonl."""
    run_nightly(finished.config)
    rewritten(write_day(finished.raw, 1, 600), lambda day: day.update({"clicked": day["clicked"] * 0}))
    assert run_nightly(finished.config) == REFUSED
    night = strict((finished.home / "nightly.jsonl").read_text().splitlines()[-1])
    assert "all 360 labels of the rows that neither model has seen are the same, 0" in night["decision"]


def test_rows_with_times_in_the_future_are_refused_by_file_and_row(finished):
    """R5: they were promoted, and no later night had new rows."""
    for path in finished.raw.iterdir():
        rewritten(path, lambda day: day.update({"at": day["at"] + 1_700_000_000}))
    assert run_nightly(finished.config) == PROMOTED  # seconds of 2023
    path = write_day(finished.raw, 1, 600)
    rewritten(path, lambda day: day.update({"at": (day["at"] + 1_700_000_000).where(day.index < 597, 4_100_000_000)}))
    assert run_nightly(finished.config) == REFUSED
    said = nights(finished)[-1]["decision"]
    assert "time column 'at': 3 row(s) lie after now, up to 2099-12-03T16:53:20+00:00 (3 of test" in said
    assert f"row=1000597; row=1000598; row=1000599). Found in {path}." in said
    assert run_nightly(finished.config, ["nightly.time_unit=none"]) in (PROMOTED, KEPT)  # asked for
    assert run_nightly(finished.config, ["nightly.time_unit=minutes"]) == REFUSED  # no data of the year 5200


def test_too_few_new_rows_name_the_end_of_each_training_and_the_way_back(finished):
    run_nightly(finished.config)
    assert run_nightly(finished.config, ["seed=2", "nightly.min_window_rows=301"]) == REFUSED
    said = nights(finished)[-1]["decision"]
    assert "only 300 labelled rows" in said
    assert "trained_until is 539 for the current model and 539 for the new one" in said  # five rows a moment
    assert "gigabatch rollback" in said


def test_a_night_that_fails_is_on_record_and_current_stays(finished, monkeypatch):
    run_nightly(finished.config)
    before = pointer(finished, "current")
    assert run_nightly(finished.config, ["train.lr_max=1e30"]) == FAILED
    assert "training diverged" in nights(finished)[-1]["decision"]
    write_day(finished.raw, 1, 600)
    monkeypatch.setattr("gigabatch.pipeline.stages.run.write_report", lambda *_: 1 / 0)
    assert run_nightly(finished.config) == FAILED
    assert nights(finished)[-1]["decision"] == "Failed: division by zero"
    assert pointer(finished, "current") == before
    monkeypatch.setattr("gigabatch.pipeline.stages.run.write_report", write_report)
    assert run_nightly(finished.config, ["nightly.tolerance=1"]) == PROMOTED


def test_a_damaged_current_model_fails_and_says_which(finished):
    run_nightly(finished.config)
    (finished.home / "current" / "model" / "weights.safetensors").write_bytes(b"")
    write_day(finished.raw, 1, 600)
    assert run_nightly(finished.config) == FAILED
    assert "current/model: missing or damaged" in nights(finished)[-1]["decision"]


def test_a_second_job_fails_at_once_and_the_lock_of_a_killed_one_is_free(tiny, capsys):
    holder = tiny.start(
        "from pathlib import Path\nfrom gigabatch.pipeline.store.locks import folder_lock\nimport time\n"
        f"with folder_lock(Path({str(tiny.home / 'nightly.lock')!r})):\n"
        "    print('held', flush=True)\n    time.sleep(600)"
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        assert run_nightly(tiny.config) == FAILED
        assert f"is held by another run (pid {holder.pid} " in capsys.readouterr().out
        assert not (tiny.home / "nightly.jsonl").exists()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert run_nightly(tiny.config) == PROMOTED


@pytest.mark.parametrize(
    ("task", "group", "asked", "expected"),
    [
        ("binary", False, None, "auc"), ("binary", True, None, "mrr"), ("regression", False, None, "logloss"),
        ("multiclass", False, None, "logloss"), ("binary", True, "auc", "auc"), ("regression", True, None, "logloss"),
        ("regression", False, "auc", None), ("binary", False, "mrr", None), ("multiclass", True, "mrr", None),
    ],
)  # fmt: skip
def test_the_metric_fits_the_target_or_is_an_error(task, group, asked, expected):
    target = Target("y", task, 3 if task == "multiclass" else 1)
    columns = [Column("x", "continuous", "float32"), Column("y", "target", "float32")]
    schema = Schema((*columns, *([Column("g", "group", "int64")] if group else [])), (target,))
    if expected is None:
        with pytest.raises(ConfigError, match=rf"nightly\.metric: {asked} does not apply to a {task} target"):
            choose_metric(NightlySettings(metric=asked), schema)
    else:
        assert choose_metric(NightlySettings(metric=asked), schema) == expected


@pytest.mark.parametrize("files", [{"path": "clicks.csv"}, {"train_path": "clicks.csv", "test_path": "later.csv"}])
def test_a_table_that_is_not_split_by_time_is_refused_before_any_work(tiny, capsys, files):
    """Else the first night promotes, and every later one trains and fails."""
    features = {**files, "continuous": ["signal"], "targets": {"clicked": {"task": "binary"}}}
    content = json.loads(tiny.config.read_text()) | {"recipe": "table", "features": features}
    tiny.config.write_text(json.dumps(content))
    assert run_nightly(tiny.config) == FAILED
    way = "hash" if "path" in files else "files"
    assert f"nightly: rows are split by {way}, so the test rows do not come after" in capsys.readouterr().out
    (night,) = nights(tiny)
    assert night["exit_code"] == FAILED
    assert "features.time to the column of their times" in night["decision"]
    assert not (tiny.home.parent.parent / "artifacts").exists()
