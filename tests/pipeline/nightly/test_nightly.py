"""The nightly job: promote, keep, refuse, fail; and the statistics that decide."""

import json
import math
import os
import signal

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.schema import Column, Schema, Target
from gigabatch.models.metrics.ranking import grouped_mrr, reciprocal_ranks
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.config.config import ConfigError, NightlySettings
from gigabatch.pipeline.evaluation.evaluate import choose_metric
from gigabatch.pipeline.nightly.comparison import bootstrap
from gigabatch.pipeline.nightly.nightly import rollback, run_nightly
from gigabatch.pipeline.stages.run import write_report
from tests.examples import examples
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


def slow_reciprocal_ranks(scores, labels, groups) -> list[float]:
    """Row by row: rank of the best positive, ties at the mean of the ranks that they span."""
    found = []
    for group in sorted(set(groups)):
        rows = [i for i, one in enumerate(groups) if one == group]
        ranks = []
        for i in rows:
            above = sum(scores[j] > scores[i] for j in rows)
            equal = sum(scores[j] == scores[i] for j in rows)
            if labels[i]:
                ranks.append(sum(range(above + 1, above + equal + 1)) / equal)
        if ranks:
            found.append(1 / min(ranks))
    return found


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(-5, 5)), min_size=1, max_size=30))
def test_reciprocal_ranks_equal_a_slow_loop_and_their_mean_the_metric(rows):
    scores, labels, groups = (list(column) for column in zip(*rows, strict=True))
    tensors = torch.tensor(scores).float(), torch.tensor(labels).float(), torch.tensor(groups)
    found = reciprocal_ranks(*tensors)
    assert found.tolist() == pytest.approx(slow_reciprocal_ranks(scores, labels, groups))
    if len(found):
        assert float(found.mean()) == pytest.approx(float(grouped_mrr(*tensors)))


def made_up(rows: int, noise: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Labels, the scores of a model with much noise, and of one with less."""
    random = np.random.default_rng(seed)
    signal = random.normal(size=rows)
    labels = random.random(rows) < 1 / (1 + np.exp(-2 * signal))
    worse = 1 / (1 + np.exp(-(2 * signal + noise * random.normal(size=rows))))
    better = 1 / (1 + np.exp(-2 * signal))
    return tuple(torch.tensor(a).float() for a in (labels.astype(float), worse, better))


def test_the_bound_of_log_loss_is_that_of_the_normal_approximation():
    labels, worse, better = made_up(2000, 1.0)
    found = bootstrap("logloss", worse, better, labels, None, NightlySettings(confidence=0.9, num_bootstrap=2000), 1)

    def losses(p):
        return -torch.where(labels > 0, p.double().log(), (1 - p.double()).log())

    each = losses(worse) - losses(better)
    assert found.gain == pytest.approx(float(each.mean()), rel=1e-4)
    wanted = float(each.mean() - 1.282 * each.std() / math.sqrt(2000))  # the tenth percentile
    assert found.bound == pytest.approx(wanted, abs=0.05 * found.gain)
    assert (found.metric, found.rows) == ("log loss", 2000)


def test_the_bound_of_mrr_is_that_of_the_normal_approximation():
    random = np.random.default_rng(4)
    groups = torch.arange(1000).repeat_interleave(5)
    labels = torch.nn.functional.one_hot(torch.tensor(random.integers(5, size=1000)), 5).flatten().float()
    noise = torch.tensor(random.normal(size=(2, 5000))).float()
    worse, better = labels + 2 * noise[0], labels + noise[1]
    found = bootstrap("mrr", worse, better, labels, groups, NightlySettings(num_bootstrap=2000), 1)
    first, second = (
        torch.tensor(slow_reciprocal_ranks(s.tolist(), labels.tolist(), groups.tolist())) for s in (worse, better)
    )
    each = second - first
    assert found.gain == pytest.approx(float(each.mean()), abs=1e-6)
    assert found.bound == pytest.approx(float(each.mean() - 1.645 * each.std() / math.sqrt(1000)), abs=0.003)


def test_the_bound_of_auc_lies_below_a_known_gain_and_above_nothing():
    labels, worse, better = made_up(2000, 1.0)
    many = NightlySettings(num_bootstrap=300)
    found = bootstrap("auc", worse, better, labels, None, many, 1)
    gain = sk.roc_auc_score(labels, better) - sk.roc_auc_score(labels, worse)
    assert found.gain == pytest.approx(gain, abs=1e-9)
    assert 0 < found.bound < found.gain
    back = bootstrap("auc", better, worse, labels, None, many, 1)
    assert back.bound < back.gain == -found.gain
    assert bootstrap("auc", better, better, labels, None, many, 1).bound == 0


def test_the_bootstrap_repeats_itself_and_follows_its_seed():
    labels, worse, better = made_up(500, 1.0)
    found = [bootstrap("auc", worse, better, labels, None, NightlySettings(num_bootstrap=50), s) for s in (1, 1, 2)]
    assert found[0] == found[1]
    assert found[0].bound != found[2].bound


def test_regression_is_compared_by_rmse_and_multiclass_by_log_loss():
    value = torch.linspace(-1, 1, 400)
    found = bootstrap("logloss", value + 1, value + 0.5, value, None, NightlySettings(num_bootstrap=50), 1)
    assert (found.metric, found.current, found.candidate) == ("RMSE", pytest.approx(1), pytest.approx(0.5))
    assert found.bound == pytest.approx(0.5, abs=1e-6)
    classes = torch.arange(400) % 3
    flat, sure = torch.full((400, 3), 1 / 3), torch.nn.functional.one_hot(classes, 3) * 0.7 + 0.1
    found = bootstrap("logloss", flat, sure, classes.int(), None, NightlySettings(num_bootstrap=50), 1)
    assert (found.current, found.candidate) == (pytest.approx(math.log(3)), pytest.approx(-math.log(0.8)))


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
