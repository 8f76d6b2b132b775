"""Rows that go from encode to training in memory while a thread writes them: the same artifact, the same model.

OMP_NUM_THREADS=1 python -m pytest -q tests/pipeline/stages/test_handover.py
"""

import errno
import gc
import json
import logging
import signal
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.pipeline.config.config import parse_config
from gigabatch.pipeline.display import STAGES
from gigabatch.pipeline.lab.experiment import Experiment
from gigabatch.pipeline.stages import handover, stages
from gigabatch.pipeline.stages.encode import packed_split
from gigabatch.pipeline.stages.handover import HandedOver, hands_over
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.stopping import Stopped, stoppable
from gigabatch.pipeline.store import artifacts
from gigabatch.pipeline.store.artifacts import Writing, verified
from gigabatch.pipeline.store.files import ArtifactError
from gigabatch.pipeline.store.garbage import collect_artifacts
from tests.pipeline.tiny_recipe import write_day

SECONDS = 60  # after which a thread that waits for a test gives up
ON = "handover=on"
EVERY_KIND = {
    "categorical": ["city"],
    "continuous": ["price"],
    "targets": {"clicked": {"task": "binary"}, "cause": {"task": "multiclass"}, "delay": {"task": "regression"}},
    "weight": "weight",
    "group": "session",
}
POSITIVES = {"path": "clicks.csv", "time": "at"}


@pytest.fixture
def written(monkeypatch):
    """What the thread meets at each block: `gate`, which is open, `error`, and the names of written splits."""

    class Written:
        gate, error, splits = threading.Event(), None, []

    state = Written()
    state.gate.set()
    real = handover.PackedWriter

    class Watched(real):
        def write(self, table):
            assert state.gate.wait(SECONDS), "the training waits for the artifact that it is to run beside"
            if state.error is not None:
                raise state.error
            state.splits.append(self.folder.name)
            super().write(table)

    monkeypatch.setattr(handover, "PackedWriter", Watched)
    yield state
    state.gate.set()


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def same_run(run, other) -> None:
    for name in ("model/weights.safetensors", "metrics.jsonl"):
        assert (run.path / name).read_bytes() == (other.path / name).read_bytes()


def config_of(kind: str, folder: Path) -> dict:
    random, rows = np.random.default_rng(3), 240
    if kind == "positives":
        log = {"user": random.integers(0, 12, rows), "item": random.integers(0, 60, rows), "at": np.arange(rows)}
        pd.DataFrame(log).to_csv(folder / "clicks.csv", index=False)
        return {
            "recipe": "interactions",
            "features": {**POSITIVES, "path": str(folder / "clicks.csv")},
            "model": {"kind": "ncf", "gmf_dim": 2, "mlp_dim": 2, "layers": [4]},
            "train": {"epochs": 1, "batch_size": 32, "lr_max": 0.01, "negatives": {"per_positive": 2}},
        }
    columns = {
        "city": random.choice(["Oslo", "Bonn", ""], rows),
        "price": random.normal(size=rows).round(3),
        "clicked": random.integers(0, 2, rows),
        "cause": random.choice(["none", "crew", "wind"], rows),
        "delay": random.normal(size=rows).round(3),
        "weight": random.random(rows).round(3),
        "session": random.integers(0, 30, rows),
    }
    pd.DataFrame(columns).to_csv(folder / "rows.csv", index=False)
    return {
        "recipe": "table",
        "features": {"path": str(folder / "rows.csv"), **EVERY_KIND},
        "train": {"epochs": 1, "batch_size": 32, "lr_max": 0.01},
    }


@pytest.mark.parametrize("rows_per_part", [1000, 50])
@pytest.mark.parametrize("kind", ["every kind of word", "positives"])
def test_the_artifact_and_the_model_are_those_without_a_handover(tmp_path, kind, rows_per_part, written):
    """Weight, group, multiclass and negatives; in one part and in several, whose groups count on."""
    raw = config_of(kind, tmp_path) | {"name": "both", "device": "cpu", "rows_per_part": rows_per_part}
    found = {}
    for wanted in ("off", "on"):
        folders = {"artifacts": str(tmp_path / wanted / "artifacts"), "runs": str(tmp_path / wanted / "runs")}
        pipeline = Pipeline(parse_config(raw | folders | {"handover": wanted}))
        features = pipeline.features()
        encoded = features.encode()
        assert (encoded.handed is not None) == (wanted == "on")
        tables = {split: encoded.table(split).words.clone() for split in ("train", "valid", "test")}
        trained = encoded.fit_model()
        found[wanted] = len(features.parts("train")), tables, encoded.artifact, trained, encoded.key
    assert written.splits == ["train", "valid", "test"]  # a block each
    (parts, off, plain, model, key), (_, on, behind, same_model, same_key) = found["off"], found["on"]
    assert (parts > 1) == (rows_per_part == 50)
    assert key == same_key == plain.key == behind.key
    assert model.key == same_model.key
    for split, words in off.items():
        assert torch.equal(words, on[split])
        assert torch.equal(words, PackedTable.load(behind.path / split).words)
    varies = ("created_utc", "seconds")
    assert tree(plain.path).keys() == tree(behind.path).keys()
    for name, content in tree(plain.path).items():
        if name == "manifest.json":
            one, other = json.loads(content), json.loads(tree(behind.path)[name])
            assert {k: v for k, v in one.items() if k not in varies} == {
                k: v for k, v in other.items() if k not in varies
            }
        else:
            assert content == tree(behind.path)[name], name
    for name, content in tree(model.path / "model").items():
        assert content == tree(same_model.path / "model")[name], name


@pytest.mark.parametrize("on_host", [True, False])
def test_training_runs_beside_the_writing_and_nothing_is_put_in_place_before_it(
    tiny, trained, written, monkeypatch, on_host
):
    """The thread goes on only when somebody waits for it, which nobody may before the training is over; and without
    waiting the model would be put in place first. on_host: False stands in for rows on a GPU."""
    placed, real_put, real_train, real_result = [], artifacts._put_in_place, stages.train_model, Writing.result
    monkeypatch.setattr(HandedOver, "on_host", on_host)

    def put(temporary, target):
        placed.append(target.parent.name)
        return real_put(temporary, target)

    def train(*arguments, **settings):
        assert tiny.artifacts("encode") == []
        found = real_train(*arguments, **settings)
        assert tiny.artifacts("encode") == []
        return found

    def result(self):
        written.gate.set()
        return real_result(self)

    written.gate.clear()
    monkeypatch.setattr(artifacts, "_put_in_place", put)
    monkeypatch.setattr(Writing, "result", result)
    monkeypatch.setattr(stages, "train_model", train)
    run = tiny.train(ON)
    order = [stage for stage in placed if stage in STAGES]
    assert order == ["features", "encode", "train", "evaluate"]
    same_run(run, trained[1])
    assert run.path.name == trained[1].path.name
    assert tiny.hidden() == []
    whole = trained[0].folder.with_name("untouched")  # other tests may add artifacts to `trained`
    (plain,), (behind,) = (whole / "artifacts" / "encode").glob("[!.]*"), tiny.artifacts("encode")
    for split in ("train", "valid", "test"):  # written after the training, which has left its rows as they were
        assert torch.equal(PackedTable.load(behind / split).words, PackedTable.load(plain / split).words)
    assert tiny.train().skipped == STAGES


def test_rows_that_lie_on_a_gpu_are_trained_on_from_there(tiny, trained, written, monkeypatch):
    """Stands in for a GPU: tables that are not on the host are not given out as if they were."""
    monkeypatch.setattr(HandedOver, "on_host", False)
    written.gate.clear()
    encoded = tiny.pipeline(ON).features().encode()
    handed = encoded.handed.tables
    source = encoded.train_source()
    assert source.table is handed["train"]
    assert encoded.evaluation_table("valid") is handed["valid"]
    assert encoded.config.train.batch_size == 256
    assert encoded.handed is not None  # nothing has waited
    waiting = threading.Thread(target=lambda: tables.append(encoded.table("train")))
    tables = []
    waiting.start()
    waiting.join(0.3)
    assert tables == []
    written.gate.set()
    waiting.join(SECONDS)
    assert torch.equal(tables[0].words, handed["train"].words)
    assert tables[0] is not handed["train"]
    assert encoded.handed is None  # memory is free again
    same_run(encoded.train(), trained[1])


def test_labs_see_whole_artifacts_only(tiny, written):
    encoded = tiny.pipeline(ON).features().encode()
    experiment = Experiment.of(encoded, None)
    assert experiment.encoded.handed is None
    assert tiny.artifacts("encode") == [encoded.artifact.path]


def test_an_artifact_that_is_there_is_used_as_it_is(finished):
    encoded = finished.pipeline(ON).features().encode()
    assert encoded.artifact.skipped
    assert encoded.handed is None


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ArtifactError, "^encode: could not write to .*disk is full"),
        (PermissionError(errno.EACCES, "Permission denied"), PermissionError, "Permission denied"),
    ],
)
def test_a_failure_of_the_writing_ends_the_training_and_is_told_once(
    tiny, trained, written, monkeypatch, caplog, error, kind, message
):
    """18 steps; the disk is full from the third on. The checkpoint stays, and the next run goes on from it."""
    steps, real = [], stages.train_model

    def train(*arguments, after_step, **settings):
        def after(step):
            steps.append(step)
            if step == 3:
                written.error = error
                written.gate.set()
                for thread in threading.enumerate():
                    if thread.name == "write encode":
                        thread.join(SECONDS)
            after_step(step)

        return real(*arguments, after_step=after, **settings)

    written.gate.clear()
    monkeypatch.setattr(stages, "train_model", train)
    with pytest.raises(kind, match=message):
        tiny.train(ON, "train.checkpoint_every_steps=2")
    assert steps == [1, 2, 3]
    gc.collect()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert tiny.artifacts("encode") == tiny.artifacts("train") == tiny.hidden() == []
    assert not (tiny.home / "latest").exists()
    monkeypatch.undo()
    caplog.set_level(logging.INFO)
    run = tiny.train("train.checkpoint_every_steps=2")
    assert "training goes on at step 2 of 18" in caplog.text
    assert (run.path / "metrics.jsonl").read_bytes() == (trained[1].path / "metrics.jsonl").read_bytes()


def test_a_failure_after_the_training_keeps_its_model_back(tiny, written, monkeypatch):
    real = stages.train_model

    def train(*arguments, **settings):
        found = real(*arguments, **settings)
        written.error = OSError(errno.ENOSPC, "No space left on device")
        written.gate.set()
        return found

    written.gate.clear()
    monkeypatch.setattr(stages, "train_model", train)
    with pytest.raises(ArtifactError, match=r"^encode: could not write to .*disk is full"):
        tiny.train(ON)
    assert [stage for stage in STAGES if tiny.artifacts(stage)] == ["features"]
    assert tiny.hidden() == []


def test_a_signal_ends_training_and_writing(tiny, trained, written, monkeypatch):
    real = stages.train_model

    def train(*arguments, after_step, **settings):
        def after(step):
            after_step(step)
            if step == 4:
                signal.raise_signal(signal.SIGTERM)

        return real(*arguments, after_step=after, **settings)

    written.gate.clear()
    monkeypatch.setattr(stages, "train_model", train)
    with pytest.raises(Stopped), stoppable():
        tiny.train(ON)
    written.gate.set()
    for thread in threading.enumerate():
        if thread.name == "write encode":
            thread.join(SECONDS)
    assert written.splits == ["train"]  # the block that it was at
    assert [stage for stage in STAGES if tiny.artifacts(stage)] == ["features"]
    assert tiny.hidden() == []
    monkeypatch.undo()
    same_run(tiny.train(ON), trained[1])


def test_gc_in_between_takes_nothing_of_it(tiny, trained, written):
    written.gate.clear()
    encoded = tiny.pipeline(ON).features().encode()
    assert collect_artifacts(tiny.folder / "artifacts", keep=0)[0] == []
    written.gate.set()
    trained_artifact = encoded.fit_model()
    assert collect_artifacts(tiny.folder / "artifacts", keep=0)[0] == []
    same_run(encoded.publish(trained_artifact), trained[1])


def test_what_cannot_be_packed_is_an_error_before_anything_is_written(tiny):
    path = tiny.raw / "day-000.csv"
    frame = pd.read_csv(path)
    frame.assign(clicked=frame["clicked"] * 2).to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"binary target 'clicked': .* values are not 0 or 1"):
        tiny.train(ON)
    assert tiny.artifacts("encode") == tiny.hidden() == []


def test_parts_that_do_not_hold_the_rows_are_an_error(tiny, monkeypatch):
    features = tiny.pipeline(ON, "rows_per_part=700").features()
    monkeypatch.setattr(type(features), "rows", {"train": 2400, "valid": 300, "test": 299})
    with pytest.raises(LoaderError, match=r"300 rows were packed and the features stage announced 299"):
        features.encode()
    assert tiny.artifacts("encode") == tiny.hidden() == []


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_moment_gives_the_model_of_one_that_never_was(tiny, trained, tiny_in):
    """Six kills by the clock, each in the run that the one before has left; then one that may end."""
    moments = np.random.default_rng(5).uniform(0.05, 1.5, 6).round(2).tolist()
    code = f"""
import threading, time
from gigabatch.pipeline.reports import charts
from gigabatch.pipeline.stages import handover
from markupsafe import Markup
charts._svg = lambda *_: Markup("<svg></svg>")
real = handover.PackedWriter.write

def slow(self, table):
    time.sleep(0.1)
    real(self, table)

handover.PackedWriter.write = slow
for seconds in {moments}:
    pid = os.fork()
    if pid == 0:
        threading.Timer(seconds, lambda: os.kill(os.getpid(), 9)).start()
        Pipeline.from_config(config, "handover=on", "train.checkpoint_every_steps=2").train()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
    out, err = tiny.start(code).communicate(timeout=500)
    assert len(out.split()) == len(moments), err
    assert set(out.split()) <= {"-9", "0"}, err
    assert "-9" in out
    for stage in STAGES:
        for folder in tiny.artifacts(stage):
            verified(folder, "artifact")
    if tiny.artifacts("train"):
        assert tiny.artifacts("encode")
    run = tiny.train(ON, "train.checkpoint_every_steps=2")
    # Another configuration's key, the same numbers: how often a checkpoint is written changes none.
    weights = Path("model") / "weights.safetensors"
    assert (run.path / weights).read_bytes() == (trained[1].path / weights).read_bytes()
    assert tiny.hidden() == []


def config_with(**settings) -> object:
    raw = {"name": "x", "recipe": "table", "features": {"path": "x.csv", **EVERY_KIND}}
    return parse_config(raw | settings)


GIB = 1 << 30
FITS = {"free_device_bytes": 100 * GIB, "free_host_bytes": 100 * GIB}
ROWS = {"train": 8 * GIB // 100, "valid": GIB // 100, "test": GIB // 100}  # 10 GiB of rows of 100 bytes


@pytest.mark.parametrize(
    ("config", "engine", "device", "memory", "expected"),
    [
        ({"handover": "off"}, "cudf", "cuda", {}, False),
        ({"handover": "auto"}, "cudf", "cuda", {}, True),
        ({"handover": "auto"}, "cudf", "cuda:1", {"free_host_bytes": 0}, True),
        ({"handover": "auto"}, "cudf", "cuda", {"free_device_bytes": 14 * GIB}, False),  # 70 % of it
        ({"handover": "auto"}, "cudf", "cuda", {"free_device_bytes": 15 * GIB}, True),
        ({"handover": "auto"}, "pandas", "cuda", {}, True),
        ({"handover": "auto"}, "pandas", "cuda", {"free_host_bytes": 19 * GIB}, False),  # half of it
        ({"handover": "auto"}, "pandas", "cuda", {"free_host_bytes": 21 * GIB}, True),
        ({"handover": "auto"}, "pandas", "cpu", {}, False),  # where it does not pay
        ({"handover": "on"}, "pandas", "cpu", {}, True),
        ({"handover": "on"}, "pandas", "cpu", {"free_host_bytes": 19 * GIB}, False),
        ({"handover": "on"}, "cudf", "cpu", {}, False),
        ({"handover": "on"}, "cudf_plain", "cpu", {}, False),  # it packs on the GPU too
        ({"handover": "on", "cluster": "local"}, "pandas", "cpu", {}, False),
        ({"handover": "on", "train": {"residency": "stream"}}, "pandas", "cpu", {}, False),
        ({"handover": "auto", "train": {"residency": "host"}}, "cudf", "cuda", {}, False),
        ({"handover": "auto", "train": {"residency": "device"}}, "cudf", "cuda", {}, True),
        ({"handover": "auto", "train": {"negatives": {"per_positive": 4}}}, "cudf", "cuda", {}, False),
        ({"handover": "auto", "train": {"negatives": {"per_positive": 4}}}, "cudf_plain", "cuda", {}, False),
        (
            {"handover": "auto", "train": {"negatives": {"per_positive": 4}}},
            "pandas", "cuda", {"free_device_bytes": 19 * GIB}, False,  # valid is there five times
        ),
    ],
)  # fmt: skip
def test_rows_are_handed_over_where_they_fit(config, engine, device, memory, expected):
    assert hands_over(config_with(**config), engine, device, ROWS, 100, **FITS | memory) is expected


@given(
    wanted=st.sampled_from(["auto", "on", "off"]),
    engine=st.sampled_from(["pandas", "cudf"]),
    device=st.sampled_from(["cpu", "cuda"]),
    residency=st.sampled_from(["auto", "device", "host", "stream"]),
    gpu=st.integers(0, 40 * GIB),
    host=st.integers(0, 40 * GIB),
)
def test_what_is_handed_over_fits_wherever_it_is_to_lie(wanted, engine, device, residency, gpu, host):
    config = config_with(handover=wanted, train={"residency": residency})
    if not hands_over(config, engine, device, ROWS, 100, gpu, host):
        return
    size = 100 * sum(ROWS.values())
    assert wanted != "off"
    assert residency != "stream"
    if device == "cuda":
        assert size <= 0.7 * gpu
        assert residency != "host"
    if engine == "pandas":
        assert size <= 0.5 * host


@pytest.mark.gpu
def test_on_a_gpu_a_handover_gives_the_same_artifact_and_model(tiny, tiny_in, tmp_path, monkeypatch):
    """pandas packs and the rows go from the host; then they lie on the GPU, as cuDF would have packed them there."""
    off = tiny.train("device=cuda", "engine=pandas", "handover=off")
    others = {name: tiny_in(tmp_path / name) for name in ("host", "there")}
    for name, other in others.items():
        write_day(other.raw, 0)
        if name == "there":
            monkeypatch.setattr(stages, "packed_split", lambda *arguments: packed_split(*arguments).to("cuda"))
        on = other.train("device=cuda", "engine=pandas", "handover=auto")
        same_run(on, off)
        (one,), (same,) = tiny.artifacts("encode"), other.artifacts("encode")
        assert one.name == same.name
        for split in ("train", "valid", "test"):
            assert tree(one / split) == tree(same / split)
