"""Warm starts as whole runs: from a run's folder, resumed, over windows, and of runs that an older version has made."""

import hashlib
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gigabatch.features.errors import DataError
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.config.config import ConfigError, RunConfig
from gigabatch.pipeline.runs.pointers import RunError
from gigabatch.pipeline.runs.verify import verify_run
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.store.keys import file_checksum
from gigabatch.pipeline.training import start as module
from gigabatch.pipeline.training.checkpoint import TrainingError
from gigabatch.pipeline.training.start import ChangedError, WarmStart
from tests.pipeline.tiny_recipe import day_of_rows, write_day

OWN = ("model/weights.safetensors", "training/optimizer.safetensors", "training/optimizer.json")


def content_of(run) -> dict[str, bytes]:
    """The bundle's files but bundle.json, and those of the training."""
    found = [path for folder in ("model", "training") for path in sorted((run.path / folder).rglob("*.*"))]
    return {str(path.relative_to(run.path)): path.read_bytes() for path in found if path.name != "bundle.json"}


def info_of(run):
    return load_bundle(run.path / "model").info


@pytest.mark.parametrize("settings", [(), ("train.ema_decay=0.9", "train.optimizer=adamw", "train.select=last")])
def test_no_new_value_and_no_step_give_the_same_bundle(finished, settings):
    """Byte for byte, optimizer and all, but for the lineage."""
    first = finished.train(*settings)
    again = finished.train(*settings, "train.epochs=0", f"train.start_from={first.path}")
    assert again.path != first.path
    before, after = content_of(first), content_of(again)
    assert set(OWN) <= before.keys()
    assert before == after
    one, other = (json.loads((run.path / "model" / "bundle.json").read_text()) for run in (first, again))
    weights = hashlib.blake2b(before[OWN[0]], digest_size=16).hexdigest()
    assert other["info"].pop("started_from") == {"run": first.path.name, "weights": weights, "warm_starts": 1}
    for content in (one, other):
        del content["checksum"]
    assert one == other
    assert again.summary["trained"]["steps"] == 0
    assert again.summary["started"]["moments"] == "carried"
    third = finished.train(*settings, "train.epochs=0", f"train.start_from={again.path.name}")
    assert info_of(third)["started_from"]["warm_starts"] == 2
    assert content_of(third) == before


def test_a_warm_start_goes_on_from_the_weights_and_says_what_it_carried(finished):
    first = finished.latest()
    warm = finished.train("train.start_from=current", "train.epochs=1", "train.lr_max=1e-9")
    before, after = (load_file(run.path / OWN[0]) for run in (first, warm))
    for name, value in before.items():
        if "running" not in name and "num_batches" not in name:
            torch.testing.assert_close(after[name], value, rtol=0, atol=1e-6, msg=name)
    assert not torch.equal(after["float_norm.running_mean"], before["float_norm.running_mean"])
    counts = {
        name: [load_file(run.path / OWN[1])[name] for run in (first, warm)] for name in load_file(warm.path / OWN[1])
    }
    steps = [value for name, value in counts.items() if name.endswith("num_steps")]
    assert steps
    for one, other in steps:  # the first kept the moments of the epoch that its weights are of
        assert other - one == warm.summary["trained"]["steps"] == 10  # of 2,400 rows, 256 or somewhat fewer at once
    columns = {row["column"]: row for row in warm.summary["started"]["columns"]}
    assert columns["city"] == {"column": "city", "carried": 5, "new": 0, "dropped": 0, "absent": 0}
    assert any(note.startswith(f"Started from run {first.path.name}.") for note in warm.summary["notes"])
    assert any(note.startswith("Only 10 step(s) of 240 rows") for note in warm.summary["notes"])


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
def test_a_warm_start_keeps_a_share_of_adagrads_sums(finished, share):
    """Of a rate so small that the gradients are the same, what a night adds is the same whatever it began with."""
    first = load_file(finished.latest().path / OWN[1])
    settings = ("train.start_from=current", "train.epochs=1", "train.lr_max=1e-12")
    settings += ("train.optimizer_settings={initial_visits: 0}",)  # which would raise what is left
    night, fresh = (
        load_file(finished.train(*settings, f"train.sums_kept={kept}").path / OWN[1]) for kept in (share, 0.0)
    )
    rows = [name for name in first if "tables." in name and name.endswith("exp_avg_sq")]
    assert rows
    for name in rows:
        assert first[name].any()
        torch.testing.assert_close(night[name] - fresh[name], share * first[name], rtol=1e-4, atol=1e-9)
    others = [name for name in first if name.endswith("exp_avg_sq") and name not in rows]
    for name in others:  # moving averages forget by themselves
        torch.testing.assert_close(night[name], fresh[name])


def test_precision_average_optimizer_and_threads_may_be_others(finished):
    """Moments of another optimizer are fresh, and said to be; the next night may go back."""
    first = finished.latest()
    others = ("train.precision=bfloat16", "train.ema_decay=0.5", "train.optimizer=adamw", "num_threads=2")
    there = finished.train(*others, "train.start_from=current", "train.epochs=1", "train.lr_max=1e-9")
    assert there.summary["started"]["moments"].startswith("fresh, as those of ")
    assert json.loads((there.path / OWN[2]).read_text())["ema_updates"] == there.summary["trained"]["steps"]
    back = finished.train(f"train.start_from={there.path}", "train.epochs=0")
    assert back.summary["started"]["moments"].startswith("fresh, as those of ")
    before, after = (load_file(run.path / OWN[0]) for run in (first, back))
    for name in before:
        if "running" not in name and "num_batches" not in name:
            torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-6, msg=name)


def test_the_moments_are_those_of_the_selected_epoch(tiny):
    """An epoch that is not kept moves weights and moments; only the latter would tell of it."""
    settings = ("train.epochs=4", "features.shuffled=true")  # labels that cannot be learnt but by heart
    best, last = (tiny.train(*settings, f"train.select={select}") for select in ("best", "last"))
    losses = [row["valid_loss"] for row in best.curve if "valid_loss" in row]
    epoch = int(np.argmin(losses)) + 1
    assert epoch < 4  # else nothing is tested
    steps = last.summary["trained"]["steps"] // 4
    found = [
        {value.max().item() for name, value in load_file(run.path / OWN[1]).items() if name.endswith("num_steps")}
        for run in (best, last)
    ]
    assert found == [{steps * epoch}, {steps * 4}]


def test_the_artifact_is_known_by_what_the_start_holds_not_by_its_name(finished, tmp_path):
    settings = ("train.epochs=1",)
    warm = finished.train(*settings, "train.start_from=current")
    by_id = finished.train(*settings, f"train.start_from={finished.home / 'current'}", "train.changed=cold")
    assert "train" in by_id.skipped
    other = finished.train(*settings, "seed=7")
    assert other.summary["started"] is None
    differing = finished.train(*settings, f"train.start_from={other.path}")
    assert "train" not in differing.skipped
    assert (differing.path / OWN[0]).read_bytes() != (warm.path / OWN[0]).read_bytes()
    assert "train" in finished.train(*settings, "seed=7", "train.new_rows=unseen").skipped  # which nothing asks for


def test_a_killed_warm_run_goes_on_bit_for_bit(finished):
    settings = ("train.start_from=current", "train.epochs=3", "train.checkpoint_every_steps=2", "train.ema_decay=0.9")
    code = f"""
from gigabatch.pipeline.stages import stages
true = stages.train_model
stages.train_model = lambda *a, **k: true(*a, **k | {{"after_step": lambda step: os._exit(9) if step == 11 else None}})
Pipeline.from_config(config, *{settings!r}).train()
"""
    process = finished.start(code)
    _, err = process.communicate(timeout=500)
    assert process.returncode == 9, err
    assert list(finished.folder.glob("artifacts/checkpoints/*/checkpoint.pt"))
    resumed = finished.train(*settings)
    assert resumed.summary["trained"]["earlier_rows"] > 0
    kept = content_of(resumed)
    for path in (*finished.artifacts("train"), *finished.artifacts("evaluate"), resumed.path):
        path.rename(path.with_name(f".aside-{path.name}"))
    whole = finished.train(*settings)
    assert whole.summary["trained"]["earlier_rows"] == 0
    assert content_of(whole) == kept


def as_of_before(run) -> None:
    """The run's folder as versions before warm starts wrote it: no `training/`, no times, no settings of a start."""
    bundle = json.loads((run.path / "model" / "bundle.json").read_text())
    del bundle["info"]["train_times"]
    bundle["checksum"] = hashlib.blake2b(
        json.dumps({k: v for k, v in bundle.items() if k != "checksum"}, sort_keys=True).encode(), digest_size=16
    ).hexdigest()
    (run.path / "model" / "bundle.json").write_text(json.dumps(bundle, indent=1))
    manifest = json.loads((run.path / "manifest.json").read_text())
    for name in OWN[1:]:
        (run.path / name).unlink()
        del manifest["files"][name]
    (run.path / "training").rmdir()
    path = run.path / "model" / "bundle.json"
    manifest["files"]["model/bundle.json"] = {"bytes": path.stat().st_size, "checksum": file_checksum(path)}
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    verify_run(run.path)


def test_a_run_of_an_older_version_is_gone_on_from_with_fresh_moments(finished):
    first = finished.latest()
    as_of_before(first)
    warm = finished.train("train.start_from=current", "train.epochs=0")
    assert (warm.path / OWN[0]).read_bytes() == (first.path / OWN[0]).read_bytes()
    assert warm.summary["started"]["moments"] == f"fresh, as run {first.path.name} is of a version that kept none"
    # which rows it had trained follows from its vocabularies' counts
    trained = load_file(warm.path / OWN[1])["trained rows of|city"].tolist()
    assert trained == [0, 0, 0, 1, 1, 1, 1, 1]


def same_data(monkeypatch) -> None:
    """A day more has other medians and scales; until encode keeps those of a start, the check of them is left out."""
    monkeypatch.setattr(WarmStart, "_changed_data", lambda self, preprocessor: [])


@pytest.mark.parametrize("settings", [(), ("train.residency=stream",), ("handover=on",), ("features.group=true",)])
def test_a_window_is_trained_on_whole_with_a_sample_of_older_rows(tiny, monkeypatch, settings):
    same_data(monkeypatch)
    first = tiny.train(*settings)
    write_day(tiny.raw, 1)
    seen = []
    true = module.Carried.put_into
    monkeypatch.setattr(module.Carried, "put_into", lambda self, *a: (seen.append(self), true(self, *a))[1])
    warm = tiny.train(*settings, "train.start_from=current", "train.window={replay: 0.25}", "train.epochs=1")
    encoded = tiny.pipeline(*settings).features()
    times = np.sort(encoded.frame("train")["at"].to_numpy())
    before = info_of(first)["train_times"]
    new = int((times > before["until"][-1]).sum())
    told = warm.summary["started"]["window"]
    drawn = round(0.25 * new)
    expected = {"rows": new + drawn, "new": new, "late": 0, "late_trained": 0, "replayed": drawn, "gone": 0}
    assert told == expected
    # the valid rows of the night before are among the new ones, as no training has seen them
    assert new > (times > info_of(first)["trained_until"]).sum()
    assert 0.99 * told["rows"] <= warm.summary["trained"]["rows"] <= told["rows"]
    assert seen
    info = info_of(warm)
    assert info["trained_from"] == info_of(first)["trained_from"]
    assert info["trained_until"] > info_of(first)["trained_until"]
    assert sum(info["train_times"]["rows"]) == len(times)


def test_a_night_without_new_rows_is_an_error_that_says_so(finished):
    with pytest.raises(DataError, match="no row of the train split is later than those of the run to start from"):
        finished.train("train.start_from=current", "train.window={}")


def test_another_scale_is_refused_by_name_or_trained_cold_by_choice(finished):
    write_day(finished.raw, 1)
    with pytest.raises(ChangedError, match=r"another scale of 'signal'.*preprocess\.from"):
        finished.train("train.start_from=current")
    cold = finished.train("train.start_from=current", "train.changed=cold", "train.window={}")
    assert cold.summary["started"] is None
    assert any(note.startswith("Trained cold (train.changed=cold)") for note in cold.summary["notes"])
    assert "started_from" not in info_of(cold)
    same = finished.train()
    assert (same.path / OWN[0]).read_bytes() == (cold.path / OWN[0]).read_bytes()


def test_without_a_current_run_the_first_one_is_cold_and_says_so(tiny):
    first = tiny.train("train.start_from=current", "train.window={}")
    assert first.summary["notes"][-1] == (
        "Trained cold: train.start_from is current, and no run of tiny is current yet."
    )
    with pytest.raises(RunError, match="no model there"):
        tiny.train("train.start_from=123456789abc")


def test_what_needs_a_start_is_refused_without_one(tiny):
    for setting in ("train.epochs=0", "train.window={}"):
        with pytest.raises(ConfigError, match="this asks for a start, and start_from names none"):
            tiny.pipeline(setting)
    with pytest.raises(TrainingError, match=r"train\.epochs=0: there is nothing to start from"):
        tiny.train("train.start_from=current", "train.epochs=0")


def test_labels_that_mean_something_else_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)
    frame = day_of_rows(0, 300)[["at", "signal", "clicked"]]
    frame.assign(clicked=np.where(frame["clicked"] == 1, "yes", "no")).to_csv(tmp_path / "rows.csv", index=False)

    def run(positive, **train):
        features = {
            "path": str(tmp_path / "rows.csv"), "continuous": ["signal"], "time": "at",
            "targets": {"clicked": {"task": "binary", "positive": positive}},
        }  # fmt: skip
        config = RunConfig(
            name="labels", recipe="table", features=features, model={"layers": [4]}, device="cpu", engine="pandas",
            train={"epochs": 1, "batch_size": 32, "lr_max": 0.01} | train, runs=str(tmp_path / "runs"),
            artifacts=str(tmp_path / "artifacts"), evaluate={"importance": False, "baselines": []},
        )  # fmt: skip
        return Pipeline(config).train()

    run("yes")
    with pytest.raises(ChangedError, match="positive was 'yes' when the model was trained, and is 'no' today"):
        run("no", start_from="current")
    cold = run("no", start_from="current", changed="cold")
    assert "positive was 'yes'" in cold.summary["notes"][-1]


def test_a_damaged_record_is_named(finished):
    run = finished.latest().path
    (run / OWN[2]).write_text("{")
    with pytest.raises(RunError, match=r"optimizer\.json"):
        finished.train("train.start_from=current")
