"""Stages as artifacts: skipped when nothing changed, made again when something did, whole after any crash."""

import copy
import json
import logging
import os
import resource
import shutil
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from gigabatch.features.encoding.online import OnlineTransformer
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.errors import DataError
from gigabatch.features.recipes.base import FeatureTables, Finished
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.loaders.errors import LoaderError
from gigabatch.models.errors import ModelError
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.config.config import ConfigError, RunConfig, WholeTrainSettings
from gigabatch.pipeline.display import STAGES
from gigabatch.pipeline.stages import asked, stages
from gigabatch.pipeline.stages.finished import Run, stage_rows
from gigabatch.pipeline.stages.stages import Pipeline, write_features
from gigabatch.pipeline.store.files import ArtifactError
from gigabatch.pipeline.store.keys import CHECKSUMS, ChecksumCache, signature
from gigabatch.pipeline.training.checkpoint import TrainingError
from tests.pipeline.tiny_recipe import day_of_rows, write_day

KILL = """
import gigabatch.pipeline.store.artifacts, gigabatch.pipeline.stages.run, gigabatch.pipeline.training.train
from gigabatch.features.schema import Schema
from gigabatch.pipeline.reports import charts
from markupsafe import Markup

charts._svg = lambda *_: Markup("<svg></svg>")  # charts take most of the time of a small run

def kill(*_, **__):
    os.kill(os.getpid(), 9)

def kill_after(owner, name, calls):
    real, left = getattr(owner, name), [calls]
    def call(*arguments, **settings):
        found = real(*arguments, **settings)
        left[0] -= 1
        return kill() if left[0] == 0 else found
    setattr(owner, name, call)

def kill_in_copy(self, artifact, target):
    gigabatch.pipeline.store.artifacts.shutil.copytree = kill
    real_copy(self, artifact, target)

real_copy = gigabatch.pipeline.store.artifacts.ArtifactStore.copy
POINTS = {
    "features": lambda: setattr(Schema, "save", kill),
    "encode": lambda: kill_after(gigabatch.pipeline.stages.stages, "encode_split", 2),
    "train": lambda: kill_after(gigabatch.pipeline.training.train, "save_checkpoint", 1),
    "evaluate": lambda: setattr(gigabatch.pipeline.stages.run, "write_report", kill),
    "publish": lambda: setattr(gigabatch.pipeline.store.artifacts.ArtifactStore, "copy", kill_in_copy),
    "latest": lambda: setattr(gigabatch.pipeline.stages.stages, "atomic_symlink", kill),
}

def in_fork(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except ValueError as error:
            os.write(1, f"{error}\\n".encode())  # whole lines, where print writes the line's end by itself
            os._exit(2)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(3)
    return pid
"""


# Of the configuration, what no artifact depends on: where things lie, and how they are made; `nightly` and `serve` are
# of what comes after a run. What `imports` name has a key of its own (test_own_code.py).
IN_NO_KEY = {"cluster", "cluster_settings", "artifacts", "runs", "rows_per_part", "handover", "nightly",
             "serve", "track", "imports"}  # fmt: skip
WHERE_SET = {"num_threads"}  # in a key where it is set (test_training_threads.py)
# Of a start the content is in the key (test_start.py, test_warm_start.py); without one nothing that asks for it.
OF_A_START = {
    "encode": {"from", "refresh_scales"}, "train": {"start_from", "changed", "new_rows", "sums_kept", "window"}
}  # fmt: skip
OF_RANKS = {"tables"}  # as the number of ranks, it says where the training lies, not what comes of it
OF_ONE = {"ensemble", "ensemble_by"}  # a model alone has the key of before there were ensembles
OF_NO_KEY = OF_RANKS | OF_ONE


def test_every_setting_is_in_the_key_of_its_stage_or_changes_no_output(tiny, monkeypatch):
    """Also the engine and the device that were chosen, by listing: a setting that is forgotten gives a stale run."""
    found, real = {}, stages.artifact_key

    def key(stage, inputs, settings, sources):
        found[stage] = settings
        if stage in ("train", "evaluate"):
            raise InterruptedError  # nothing needs to be trained for it
        return real(stage, inputs, settings, sources)

    for module in (asked, stages):
        monkeypatch.setattr(module, "artifact_key", key)
    pipeline = tiny.pipeline()
    encoded = pipeline.features().encode()
    for stage in (encoded.fit_model, lambda: encoded.publish(encoded.artifact)):
        with pytest.raises(InterruptedError):
            stage()
    raw = encoded.config.to_dict()
    assert found["features"].pop("features") == {k: v for k, v in raw["features"].items() if k != "path"}
    found["features"].pop("code", None)
    cold = {
        stage: {name: value for name, value in raw[section].items() if name not in OF_A_START[stage] | OF_NO_KEY}
        for stage, section in (("encode", "preprocess"), ("train", "train"))
    }
    assert found == {
        "features": {"recipe": raw["recipe"], "engine": pipeline.engine},
        "encode": {"preprocess": cold["encode"], "engine": pipeline.engine},
        "train": {"model": raw["model"], "train": cold["train"], "seed": raw["seed"], "device": pipeline.device},
        "evaluate": {"evaluate": raw["evaluate"], "name": raw["name"]},
    }
    assert {field.name for field in fields(PreprocessorSettings)} | OF_A_START["encode"] == raw["preprocess"].keys()
    assert set(WholeTrainSettings.model_fields) == raw["train"].keys()
    assert {name for settings in found.values() for name in settings} | {
        "features"
    } | IN_NO_KEY | WHERE_SET == raw.keys()
    assert raw.keys() == set(RunConfig.model_fields)


def weights(run) -> dict[str, torch.Tensor]:
    return load_file(run.path / "model" / "weights.safetensors")


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_holds_what_its_contract_says(trained):
    tiny, run = trained
    summary = run.summary
    assert {"auc", "logloss", "ece", "mrr", "rows", "seconds"} <= summary.keys()
    assert set(summary["seconds"]) == set(STAGES) == {"features", "encode", "train", "evaluate"}
    assert all(seconds > 0 for seconds in summary["seconds"].values())
    assert summary["rows"] == 3000
    assert summary["rows_by_split"] == {"train": 2400, "valid": 300, "test": 300}
    assert 0.65 < summary["auc"] < 0.9  # the label has that much signal
    assert summary["mrr"] is None
    assert summary["notes"] == ["clicks of a made-up shop"]
    assert (tiny.home / "latest").resolve() == run.path.resolve()
    assert os.readlink(tiny.home / "latest") == run.path.name  # relative, so that runs/ can be moved
    assert run.skipped == ()
    page = (run.path / "report.html").read_text()
    assert summary["id"] in page
    assert f"{summary['auc']:.4g}"[:4] in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines == run.curve
    assert sum("valid_loss" in line for line in lines) == 2
    assert run.bundle().info["trained_until"] == float(day_of_rows(0)["at"].iloc[2699])
    assert tiny.hidden() == []


def test_the_second_run_skips_every_stage_and_says_so(tiny, caplog, capsys):
    caplog.set_level(logging.INFO)
    first = tiny.train()
    caplog.clear()
    second = tiny.train()
    assert second.skipped == STAGES
    assert second.path == first.path
    for stage in STAGES:
        assert f"{stage}: skipped, unchanged" in caplog.text
    second.show()
    assert capsys.readouterr().out.count("skipped, unchanged") == 4
    assert tiny.hidden() == []


def test_stages_are_counted_in_rows_and_only_epochs_that_were_trained(tiny, capsys):
    """Of thirty epochs that were asked for, patience leaves a few; a rate of 1 learns nothing after the first."""
    run = tiny.train("train.epochs=30", "train.patience=1", "train.lr_max=1.0", "train.schedule=constant")
    told = capsys.readouterr().err
    assert "features: done, 3,000 in" in told
    assert "encode: done, 3,000 in" in told
    epochs = round(run.curve[-1]["epoch"])
    assert 2 <= epochs < 30
    steps = 2400 // 256 * epochs  # whole batches alone
    told = {"epochs": epochs, "steps": steps, "skipped_steps": 0, "rows": steps * 256, "earlier_rows": 0}
    told["threads"] = 1  # a step of so few rows is not worth sharing
    best = min((point["valid_loss"], point["epoch"]) for point in run.curve if "valid_loss" in point)[1]
    told["kept_epoch"] = round(best)
    assert run.summary["trained"] == told
    (train,) = (row for row in stage_rows(run.summary, ()) if row["stage"] == "train")
    assert train["rows"] == 2400
    assert train["rows/s"] == pytest.approx(steps * 256 / run.summary["seconds"]["train"])
    assert told["kept_epoch"] < epochs  # after the best epoch one more was trained
    kept = f"the weights are those after epoch {told['kept_epoch']}, the best by the valid split"
    assert train["note"] == f"{epochs} epochs; {kept}"
    again = tiny.train("train.epochs=30", "train.patience=1", "train.lr_max=1.0", "train.schedule=constant")
    again.show()
    assert capsys.readouterr().out.count("skipped, unchanged: an earlier run took ") == 4


def test_smoothed_labels_are_learnt_from_and_losses_are_measured_by_whole_ones(tiny):
    """A label of .6 and .4 has the entropy .6730, which is the least loss that can be learnt by."""
    smoothed = tiny.train("train.label_smoothing=0.8", "train.epochs=4")
    plain = tiny.train("train.epochs=4")
    least = [min(point["train_loss"] for point in run.curve) for run in (smoothed, plain)]
    assert least[0] > 0.673 > least[1]
    best = min(point["valid_loss"] for point in smoothed.curve if "valid_loss" in point)
    assert best == pytest.approx(smoothed.summary["metrics"]["valid"]["logloss"], rel=1e-5)


def test_a_resumed_training_tells_all_its_rows_against_all_its_seconds(tiny, monkeypatch, capsys):
    """H3: the rows of all processes stood against the seconds of the last. 9 steps an epoch, a checkpoint each."""
    real, settings = stages.train_model, ("train.epochs=2", "train.checkpoint_every_steps=1")

    def killed(*arguments, **named):
        def slow(step: int) -> None:
            time.sleep(0.1)
            if step == 14:
                raise RuntimeError("the machine went away")

        return real(*arguments, **named, after_step=slow)

    monkeypatch.setattr(stages, "train_model", killed)
    with pytest.raises(RuntimeError, match="went away"):
        tiny.train(*settings)
    monkeypatch.setattr(stages, "train_model", real)
    capsys.readouterr()
    run = tiny.train(*settings)
    log_line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("train: done"))
    assert log_line.startswith(f"train: done, {18 * 256:,} ({14 * 256:,} of them before) in ")
    summary = run.summary
    rows = 18 * 256
    assert summary["trained"] == {
        "epochs": 2, "steps": 18, "skipped_steps": 0, "rows": rows, "earlier_rows": 14 * 256, "threads": 1,
        "kept_epoch": 2,
    }  # fmt: skip
    assert run.curve[-1]["step"] * 256 == rows
    assert summary["seconds"]["train"] > 1.3  # thirteen of the fourteen sleeps were saved
    (train,) = (row for row in stage_rows(summary, ()) if row["stage"] == "train")
    assert train["rows/s"] < rows / 1.3
    assert train["note"] == f"2 epochs; {14 * 256:,} of {rows:,} rows before a break, with their seconds"


def test_overrides_may_be_mappings(tiny):
    assert tiny.pipeline({"train.epochs": 7, "seed": 3}, "train.batch_size=64").config.train.epochs == 7
    with pytest.raises(ConfigError, match=r"unknown key 'train.epoch'. Did you mean 'train.epochs'"):
        tiny.pipeline({"train.epoch": 7})
    with pytest.raises(ConfigError, match=r"override 7: expected key=value or a mapping"):
        tiny.pipeline(7)
    with pytest.raises(ConfigError, match=r"override 'seed.a=1': 'seed' is a value, not a section"):
        tiny.pipeline("seed=2", {"seed.a": 1})


def test_a_configuration_may_be_a_mapping_that_stays_as_it_is(tiny):
    given = json.loads(tiny.config.read_text())
    before = copy.deepcopy(given)
    assert Pipeline.from_config(given, {"train.epochs": 7}).config == tiny.pipeline("train.epochs=7").config
    assert given == before
    with pytest.raises(ConfigError, match=r"^config: unknown key 'sede'. Did you mean 'seed'"):
        Pipeline.from_config(given | {"sede": 1})
    with pytest.raises(ConfigError, match=r"expected a YAML file or a mapping of keys and values, found 7"):
        Pipeline.from_config(7)


def test_the_configuration_that_a_summary_tells_makes_the_same_run(finished):
    run = Pipeline.from_config(finished.latest().summary["config"]).train()
    assert run.skipped == STAGES


def test_some_rows_and_columns_of_the_features_are_those_of_the_whole_frame(tiny):
    features = tiny.pipeline("rows_per_part=700").features()
    assert len(features.parts("train")) > 2
    whole = features.frame("train")
    names = list(whole.columns[[2, 0]])
    pd.testing.assert_frame_equal(features.frame("train", names), whole[names])
    pd.testing.assert_frame_equal(features.head(3), whole.head(3))
    pd.testing.assert_frame_equal(features.head(1000, columns=names), whole[names].head(1000))  # of two parts
    assert features.head(0).columns.tolist() == whole.columns.tolist()
    pd.testing.assert_frame_equal(features.head(10**9, "test"), features.frame("test"))
    drawn = features.sample(50, seed=3)
    pd.testing.assert_frame_equal(drawn, features.sample(50, seed=3))
    assert not drawn.equals(features.sample(50, seed=4))
    places = np.sort(np.random.default_rng(3).choice(len(whole), 50, replace=False))
    pd.testing.assert_frame_equal(drawn, whole.iloc[places].reset_index(drop=True))
    for call, said in (
        (lambda: features.head(-1), "a whole number from 0 on, found -1"),
        (lambda: features.sample(2.5), r"a whole number from 0 on, found 2\.5"),
        (lambda: features.sample(5, seed=-1), "seed is a whole number from 0 on, found -1"),
        (lambda: features.frame("train", "x"), r"columns is a list of names, found 'x'\. Give \['x'\]"),
        (lambda: features.head(1, columns=["nothing"]), "nothing"),
        (
            lambda: features.frame("valid", [names[0]] * 2),
            rf"column\(s\) '{names[0]}' are named twice\. Name each once",
        ),
        (lambda: features.head(1, "exam"), "split 'exam' does not exist. Known: train, valid, test"),
    ):
        with pytest.raises(DataError, match=said):
            call()


def test_the_head_of_a_split_reads_no_file_beyond_it(tiny, monkeypatch):
    features = tiny.pipeline("rows_per_part=700").features()
    opened = []
    monkeypatch.setattr(pq, "ParquetFile", lambda path, real=pq.ParquetFile: opened.append(path) or real(path))
    features.head(5)
    assert opened == features.parts("train")[:1]


@pytest.mark.parametrize(
    ("override", "skipped"),
    [
        ("train.epochs=1", ("features", "encode")),
        ("preprocess.min_count=5", ("features",)),
        ("preprocess.edges=tree", ("features",)),
        ("evaluate.calibration_bins=5", ("features", "encode", "train")),
        ("features.split.valid=0.15 features.split.test=0.05", ()),
        ("num_threads=1", ("features", "encode")),
        ("rows_per_part=7", STAGES),
    ],
)
def test_a_changed_setting_runs_again_only_what_it_changes(finished, override, skipped):
    assert finished.train(*override.split()).skipped == skipped


def test_another_seed_gives_another_model_and_the_same_seed_the_same_in_any_parts(finished, tiny_in, tmp_path):
    one, other = finished.latest(), finished.train("seed=2")
    assert other.skipped == ("features", "encode")
    assert one.path != other.path
    assert not same(weights(one), weights(other))
    again = tiny_in(tmp_path / "elsewhere")
    write_day(again.raw, 0)
    assert len(again.pipeline("rows_per_part=500").features().parts("train")) == 5
    assert same(weights(one), weights(again.train("rows_per_part=500")))


def test_a_moved_or_touched_file_of_the_same_content_runs_nothing_again(finished):
    os.utime(finished.raw / "day-000.csv", (1, 1))
    assert finished.train().skipped == STAGES
    finished.raw.rename(finished.folder / "moved")
    assert finished.train(f"features.path={finished.folder / 'moved'}").skipped == STAGES


@pytest.mark.parametrize("stage", STAGES)
def test_a_damaged_artifact_is_made_again_with_a_warning(finished, stage, caplog):
    first = finished.latest()
    (artifact,) = finished.artifacts(stage)
    largest = max((p for p in artifact.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    again = finished.train()
    assert again.skipped == tuple(name for name in STAGES if name != stage)
    assert f"file {largest.relative_to(artifact)} is not what its manifest says. It was put aside" in caplog.text
    assert same(weights(first), weights(again))
    (artifact,) = finished.artifacts(stage)
    assert largest.exists()
    assert largest.read_bytes() != bytes(content)


def test_a_page_that_cannot_be_unpacked_puts_its_artifact_aside(finished):
    """Damage in the middle of a file whose size and times stayed was Arrow's OSError, at each run anew."""
    (artifact,) = finished.artifacts("features")
    (damaged,) = artifact.glob("train/part-*.parquet")
    content = damaged.read_bytes()
    third = len(content) // 3
    damaged.write_bytes(content[:third] + bytes(400) + content[third + 400 :])
    name = str(damaged.relative_to(artifact))
    cache = ChecksumCache(finished.folder / "artifacts" / CHECKSUMS)
    remembered = json.loads((artifact / "manifest.json").read_text())["files"][name]["checksum"]
    cache.known[str(damaged.resolve())] = (*signature(damaged.stat()), remembered)
    cache._changed = True
    cache.save()
    for encoded in finished.artifacts("encode"):
        shutil.rmtree(encoded)
    features = finished.pipeline().features()
    assert features.artifact.skipped
    with pytest.raises(ArtifactError, match=rf"file {name} is not what its manifest says\. It was put aside") as caught:
        features.encode()
    assert type(caught.value.__context__) is OSError
    assert not finished.pipeline().features().artifact.skipped


@pytest.mark.slow
def test_kill_9_in_the_middle_of_any_stage_leaves_nothing_half_written(trained, tiny_in, tmp_path):
    """Each run dies in the middle of a stage; the rerun goes on and ends with the model of a run that never died.

    What the stages before that one made is copied from the run that never died.
    """
    points = ("features", "encode", "train", "evaluate", "publish", "latest")
    killed = {name: tiny_in(tmp_path / name) for name in points}
    whole = trained[0].folder.with_name("untouched")
    for number, one in enumerate(killed.values()):
        write_day(one.raw, 0)
        for stage in STAGES[:number]:
            shutil.copytree(whole / "artifacts" / stage, one.folder / "artifacts" / stage, symlinks=True)
    configs = {name: str(one.config) for name, one in killed.items()}
    code = f"""
{KILL}
for name, path in {configs!r}.items():
    pid = in_fork(lambda: (POINTS[name](), Pipeline.from_config(path).train()))
    print(name, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
    out, err = trained[0].start(code).communicate(timeout=500)
    assert out.split() == [word for name in points for word in (name, "-9")], err
    _, expected = trained
    for number, (name, one) in enumerate(killed.items()):
        finished = [stage for stage in STAGES if one.artifacts(stage)]
        assert finished == list(STAGES[:number]), name
        assert not (one.home / "latest").exists()
        if name != "latest":
            assert one.hidden(), name  # something was left, which the rerun must not read
        run = one.train()
        assert run.skipped == STAGES[:number]
        assert same(weights(expected), weights(run)), name
        assert (run.path / "metrics.jsonl").read_bytes() == (expected.path / "metrics.jsonl").read_bytes()
        assert one.hidden() == []
        assert [p.name for p in (one.folder / "artifacts" / "checkpoints").glob("*") if p.is_dir()] == []


def test_runs_at_once_wait_for_the_one_that_trains_and_take_what_it_made(tiny):
    """All but one ended with code 2, and a person had to run them again."""
    code = f"""
{KILL}
pids = [in_fork(lambda: Pipeline.from_config(config).train()) for _ in range(3)]
print("codes", *[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
"""
    out, err = tiny.start(code).communicate(timeout=500)
    assert out.strip().splitlines()[-1] == "codes 0 0 0", out + err
    assert [len(tiny.artifacts(stage)) for stage in STAGES] == [1, 1, 1, 1]
    assert tiny.train().skipped == STAGES
    assert tiny.hidden() == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk_is_a_clear_error_and_leaves_nothing_half_written(tiny, stage):
    """RLIMIT_FSIZE makes writes fail wherever they happen, as a full disk does, and is what the error names."""
    features = tiny.pipeline().features() if stage != "features" else None
    encoded = features.encode() if stage in ("train", "evaluate") else None
    if stage == "evaluate":
        encoded.fit_model()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, hard))
    try:
        with pytest.raises(ArtifactError, match=f"{stage}: could not write to .* a file would be larger than"):
            tiny.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert tiny.artifacts(stage) == []
    assert tiny.hidden() == []
    assert tiny.train().skipped == STAGES[: STAGES.index(stage)]


def test_a_full_disk_while_a_run_is_put_in_place_is_a_clear_error(finished, monkeypatch):
    first = finished.latest()
    shutil.rmtree(first.path)

    def full(source, target, **_):
        Path(target, "half").write_text("x")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(ArtifactError, match="disk is full"):
        finished.train()
    monkeypatch.undo()
    assert not first.path.exists()
    assert finished.train().path == first.path
    assert finished.hidden() == []


def change(tiny, edit) -> None:
    path = tiny.raw / "day-000.csv"
    edit(pd.read_csv(path)).to_csv(path, index=False)


def test_a_null_label_is_an_error_with_its_split_and_number(tiny):
    def edit(frame):
        frame.loc[[2990, 2995], "clicked"] = None
        return frame

    change(tiny, edit)
    with pytest.raises(DataError, match=r"target 'clicked': 2 null\(s\) in split 'test'"):
        tiny.train()


def test_labels_of_any_recipe_are_looked_at_before_they_are_rounded(tmp_path):
    frame = pd.DataFrame({"x": [0.0, 1.0, 2.0], "price": [1e9 - 1, 1e9, 1e9 + 1]})
    columns = (Column("x", "continuous", "float32"), Column("price", "target", "float32"))
    schema = Schema(columns, (Target("price", "regression"),))
    tables = FeatureTables(dict.fromkeys(("train", "valid", "test"), frame), schema)
    with pytest.raises(DataError, match=r"target 'price': float32, .* Subtract a constant near their mean, 1000000000"):
        write_features(tables, tmp_path, 100)


@pytest.mark.parametrize(
    ("start", "stop", "sizes"),
    [(0, 10, [4, 4, 1, 1, 2]), (3, 11, [3, 1, 4, 1, 1, 1, 1]), (9, 12, [4, 4, 1, 1, 2]), (5, 5, [4, 1, 3, 1, 1, 2])],
)
def test_rows_that_a_recipe_asks_for_are_whole_files(start, stop, sizes, tmp_path):
    frame = pd.DataFrame({"x": np.arange(12, dtype="float32"), "hit": np.float32([0, 1] * 6)})
    schema = Schema(
        (Column("x", "continuous", "float32"), Column("hit", "target", "float32")), (Target("hit", "binary"),)
    )
    splits = {"train": frame[:9], "valid": frame[9:10], "test": frame[10:]}
    kept = []
    tables = FeatureTables(splits, schema, finished=Finished(start, stop, kept.extend))
    assert write_features(tables, tmp_path, 4) == {"train": 9, "valid": 1, "test": 2}
    paths = [path for split in splits for path in sorted((tmp_path / split).iterdir())]
    parts = [pd.read_parquet(path)["x"].tolist() for path in paths]
    assert [len(part) for part in parts] == sizes
    assert [x for part in parts for x in part] == list(range(12))
    assert [x for path in kept for x in pd.read_parquet(path)["x"]] == list(range(start, stop))


def test_a_label_other_than_zero_and_one_is_an_error(tiny):
    change(tiny, lambda frame: frame.assign(clicked=frame["clicked"] * 2))
    with pytest.raises(DataError, match=r"binary target 'clicked': .* values are not 0 or 1; the first is 2"):
        tiny.train()
    assert tiny.artifacts("encode") == []


def test_a_column_without_any_value_is_an_error_that_names_it(tiny):
    change(tiny, lambda frame: frame.assign(gap=None))
    with pytest.raises(DataError, match="column 'gap': all 2400 rows of the train split are null"):
        tiny.train()


def test_an_infinity_in_the_test_split_alone_is_found_too(tiny):
    def edit(frame):
        frame.loc[2999, "noise"] = -float("inf")
        return frame

    change(tiny, edit)
    with pytest.raises(DataError, match="column 'noise' holds an infinity"):
        tiny.train()


def test_a_null_that_first_appears_in_the_test_split_is_filled(tiny):
    def edit(frame):
        frame.loc[2999, "signal"] = None
        return frame

    change(tiny, edit)
    features = tiny.pipeline().features()
    encoded = features.encode()
    place = encoded.preprocessor.float_names().index("signal_na")
    floats = encoded.table("test").unpack(encoded.table("test").words).floats
    assert floats.isfinite().all()
    assert not floats[:, place].any()  # no train row had a 1 there


def test_an_empty_split_is_an_error_that_names_it(tiny):
    change(tiny, lambda frame: frame.assign(at=5))
    with pytest.raises(DataError, match="split 'valid' is empty"):
        tiny.train()


def test_a_device_that_is_not_there_is_an_error(tiny):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(DataError, match=r"device: cuda was asked for.*device=cpu or auto"):
        tiny.pipeline("device=cuda")


def test_a_split_that_does_not_exist_lists_those_that_do(trained):
    with pytest.raises(DataError, match=r"split 'tset' does not exist\. Known: train, valid, test"):
        trained[0].pipeline().features().parts("tset")


def test_what_a_notebook_shows_names_columns_rows_and_settings(trained):
    tiny, run = trained
    pipeline = tiny.pipeline()
    assert "tiny" in pipeline._repr_html_()
    features = pipeline.features()
    assert "train 2,400, valid 300, test 300 rows" in features._repr_html_()
    assert "<table" in run._repr_html_()
    assert "signal" in features.encode()._repr_html_()


RAW_FILES = {
    "empty": (lambda raw: b"", r"day-000\.csv: the file is empty"),
    "header": (lambda raw: raw.splitlines()[0] + b"\n", r"day-000\.csv: it has a header but no rows"),
    "renamed": (lambda raw: raw.replace(b"signal", b"signul", 1), r"'signal' not found\. Columns there: .*'signul'"),
    "bytes": (lambda raw: raw.replace(b"Oslo", b"Osl\xf8", 1), r"day-000\.csv: not valid UTF-8"),
    "cut": (lambda raw: raw[:100_000], r"day-000\.csv: column '\w+' is declared int64.*null"),
    "ragged": (lambda raw: raw + b"1," * 20 + b"\n", r"day-000\.csv: cannot be read.*line 3002"),
    "twice": (lambda raw: raw + raw.splitlines()[-1] + b"\n", "column 'row' must be unique"),
}


@pytest.mark.parametrize("kind", list(RAW_FILES))
def test_a_broken_raw_file_is_named_and_nothing_is_made(tiny, kind):
    damage, message = RAW_FILES[kind]
    path = tiny.raw / "day-000.csv"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        tiny.train()
    assert tiny.artifacts("features") == []
    assert tiny.hidden() == []


def test_an_id_with_a_fraction_is_an_error_and_a_whole_float_is_not(tiny):
    change(tiny, lambda frame: frame.assign(store=frame["store"].astype(float)))
    assert tiny.pipeline().features().frame("train")["store"].dtype == "Int64"
    change(tiny, lambda frame: frame.assign(store=frame["store"] + 0.5))
    with pytest.raises(DataError, match=r"column 'store' is declared int64 but holds float64 values.*fraction"):
        tiny.train()


def test_times_before_1970_are_times_like_others(tiny, trained):
    change(tiny, lambda frame: frame.assign(at=frame["at"] - 10_000_000))
    assert tiny.train().summary["metrics"] == trained[1].summary["metrics"]


def test_a_category_without_any_value_is_one_id(tiny):
    change(tiny, lambda frame: frame.assign(city=None))
    schema = tiny.pipeline().features().encode().preprocessor.tensor_schema
    assert [column.num_ids for column in schema.ids if column.name == "city"] == [3]
    assert tiny.train().summary["auc"] > 0.6


def test_edges_of_a_tree_go_from_the_labels_to_the_bundle(tiny):
    chosen = ("preprocess.edges=tree", "preprocess.distinct=0", "preprocess.bins=4")
    run, data = tiny.train(*chosen, "train.epochs=2"), tiny.pipeline(*chosen).features()
    bundle, frame = run.bundle(), data.frame("train")
    edges = bundle.preprocessor.edges
    assert edges == Preprocessor(data.schema, bundle.preprocessor.settings).fit([frame[::-1]]).edges
    assert edges != tiny.pipeline(*chosen[1:]).features().encode().preprocessor.edges
    assert bundle.model.inputs.float_edges == bundle.preprocessor.float_edges
    assert len(bundle.predict(data.frame("test"))) == len(data.frame("test"))
    assert run.summary["auc"] > 0.55
    with pytest.raises(ConfigError, match=r"edges of '.*' is quantile, not tree"):
        tiny.train(*chosen[1:], "preprocess.from=latest")


def test_kinds_of_numbers_by_column_go_from_the_file_through_a_warm_start(tiny):
    kinds = {"signal": "periodic", "noise": "plain"}
    run = tiny.train({"model.numeric": kinds}, "train.epochs=2")
    bundle, frame = run.bundle(), tiny.pipeline().features().frame("test")
    assert bundle.model.settings.numeric == {**kinds, "*": "bins"}
    names = bundle.preprocessor.float_names()
    assert {names[place] for place in bundle.model.numeric.places} == {"signal", "gap", "other"}
    assert run.summary["auc"] > 0.55
    scores = bundle.predict(frame)["clicked"].to_numpy()
    assert np.allclose(scores, load_bundle(run.path / "model").predict(frame)["clicked"].to_numpy(), atol=1e-6)
    again = tiny.train("model.numeric.signal=periodic", "model.numeric.noise=plain", "train.epochs=0",
                       f"train.start_from={run.path}")  # fmt: skip
    assert np.array_equal(again.bundle().predict(frame)["clicked"].to_numpy(), scores)
    with pytest.raises(ModelError, match=r"unknown float column of numeric 'signl'\. Known: signal, gap, noise, other"):
        tiny.train("model.numeric.signl=periodic")
    with pytest.raises(ConfigError, match=r"model: unknown numeric of 'signal' 'waves'"):
        tiny.train("model.numeric.signal=waves")


def test_a_robust_scale_goes_from_the_file_to_the_scores(tiny):
    run = tiny.train("preprocess.scale=robust", "train.epochs=2")
    bundle, frame = run.bundle(), tiny.pipeline("preprocess.scale=robust").features().frame("test")
    names = bundle.preprocessor.schema.names("continuous")
    assert {type(bundle.preprocessor.scales[name]).__name__ for name in names} == {"RobustScale"}
    row = {name: None if pd.isna(value) else value for name, value in frame.iloc[0].items()}
    floats = OnlineTransformer.load(run.path / "model" / "preprocessor")(row)[1]
    batch = bundle.preprocessor.transform(frame.head(1), targets=False)[bundle.preprocessor.float_names()]
    assert floats.tobytes() == batch.to_numpy("float32").tobytes()
    assert run.summary["auc"] > 0.55
    with pytest.raises(ConfigError, match=r"preprocess\.scale is true, not robust"):
        tiny.train("preprocess.from=latest")


def test_a_run_that_diverges_is_an_error_and_makes_no_model(finished):
    with pytest.raises(TrainingError, match=r"diverged in epoch 1.*Lower train\.lr_max"):
        finished.train("train.lr_max=1e30")
    assert len(finished.artifacts("train")) == 1


def test_a_streamed_run_trains_on_a_shuffled_copy_and_learns_what_a_resident_one_does(tiny):
    resident, streamed = (tiny.train("train.epochs=3", f"train.residency={kind}") for kind in ("host", "stream"))
    assert streamed.summary["auc"] == pytest.approx(resident.summary["auc"], abs=0.03)
    assert len(tiny.artifacts("shuffled")) == 1


def test_a_residency_that_cannot_be_is_an_error_that_says_what_can(tiny):
    with pytest.raises(LoaderError, match=r"residency=device: the run trains on cpu.*residency=host or auto"):
        tiny.train("train.residency=device")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff", b"[" * 100_000])
def test_a_damaged_summary_or_curve_is_named(tmp_path, content):
    """R11: a JSONDecodeError's traceback."""
    for name, read in (("summary.json", lambda run: run.summary), ("metrics.jsonl", lambda run: run.curve)):
        (tmp_path / name).write_bytes(content)
        if name == "metrics.jsonl" and content == b"":
            continue  # a curve without points
        with pytest.raises(ArtifactError, match=rf"{name}: .*damaged"):
            _ = read(Run(tmp_path))
        (tmp_path / name).unlink()
        with pytest.raises(ArtifactError, match=rf"{name}: missing"):
            _ = read(Run(tmp_path))
