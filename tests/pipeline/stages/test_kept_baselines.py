"""Baselines are an artifact: a run that changes the model alone takes them from there."""

import gc
import logging

import pytest

from gigabatch.pipeline.evaluation import baseline_learners
from gigabatch.pipeline.store.garbage import collect_artifacts

LEARNS = "evaluate.baselines=[constant, linear]"


def measured(run):
    found = run.summary["baselines"]["found"]
    return {item["name"]: (item["metrics"], item["seconds"], item["rows"]) for item in found}


@pytest.fixture
def count(monkeypatch):
    """How often baselines were learned."""
    learn, calls = baseline_learners._learn, []
    monkeypatch.setattr(baseline_learners, "_learn", lambda *given: calls.append(1) or learn(*given))
    return lambda: len(calls)


def test_a_run_of_another_rate_learns_no_baseline_and_says_so(finished, count, caplog):
    caplog.set_level(logging.INFO)
    first = finished.train(LEARNS)
    (folder,) = finished.artifacts("baselines")
    assert (count(), "baselines: skipped, unchanged" in caplog.text) == (1, False)
    second = finished.train(LEARNS, "train.lr_max=0.01")
    assert (count(), finished.artifacts("baselines")) == (1, [folder])
    assert f"baselines: skipped, unchanged ({folder})" in caplog.text
    assert measured(second) == measured(first)
    of = [{item["name"]: item["differences"] for item in run.summary["baselines"]["found"]} for run in (first, second)]
    assert of[0] != of[1]  # the models differ


@pytest.mark.parametrize("change", ["seed=2", "preprocess.min_count=3", "evaluate.baselines=[constant]"])
def test_what_they_depend_on_is_in_their_key(finished, count, change):
    finished.train(LEARNS)
    finished.train(LEARNS, change)
    assert (count(), len(finished.artifacts("baselines"))) == (2, 2)


def test_damaged_ones_are_learned_again(finished, count):
    first = finished.train(LEARNS)
    (folder,) = finished.artifacts("baselines")
    with (folder / "1-test.npy").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\0")
    second = finished.train(LEARNS, "train.lr_max=0.01")
    assert count() == 2
    assert {name: found[0] for name, found in measured(second).items()} == {
        name: found[0] for name, found in measured(first).items()
    }


def test_gc_removes_old_ones(finished):
    finished.train(LEARNS)
    (folder,) = finished.artifacts("baselines")
    finished.train("evaluate.baselines=[constant]")
    gc.collect()  # pipelines, whose leases keep what they have used
    removed, _ = collect_artifacts(finished.folder / "artifacts", 1)
    assert folder in removed
    assert len(finished.artifacts("baselines")) == 1
