"""Whole runs under torchrun: one run's folder, a killed rank, a rank that fails, commands that are for one process."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.launched import launched_ranks
from gigabatch.pipeline.stages import stages
from gigabatch.pipeline.store.files import ArtifactError

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import json, os, signal, sys
os.fsync = lambda handle: None
sys.path[:0] = [{root!r}]
from gigabatch.features.recipes import RECIPES
RECIPES["tiny"] = "tests.pipeline.tiny_recipe:TinyRecipe"
from gigabatch.pipeline.training.checkpoint import TrainingError
from gigabatch.pipeline.training.train_step import TrainStep
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
record, step_of, done = open({records!r} + f"/{{attempt}}-{{rank}}", "w"), TrainStep.__call__, 0

def step(self, batch, lr, momentum, place):
    global done
    done += 1
    if attempt == "0" and rank == "1" and done == {at}:
        {then}
    record.write(json.dumps([*place, batch.floats[:, 0].tolist()]) + "\\n")
    record.flush()
    return step_of(self, batch, lr, momentum, place)

TrainStep.__call__ = step
from gigabatch.pipeline.commands.app import main
code = main(sys.argv[1:])
threads = [open(f"/proc/self/task/{{task}}/comm").read().strip() for task in os.listdir("/proc/self/task")]
with open({records!r} + f"-threads-{{rank}}", "w") as left:  # beside the folder
    json.dump([name for name in threads if "gloo" in name], left)
sys.exit(code)
"""


def torchrun(tiny, then: str, at: int, restarts: int, *arguments: str) -> subprocess.CompletedProcess:
    """The command line on two ranks, of which the second does `then` at its step number `at`."""
    (tiny.folder / "records").mkdir()
    script = tiny.folder / "script.py"
    script.write_text(SCRIPT.format(root=str(ROOT), records=str(tiny.folder / "records"), at=at, then=then))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [f"--max-restarts={restarts}", "--monitor-interval=0.1", str(script), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        command, cwd=tiny.folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_killed_rank_is_restarted_and_no_row_is_lost_or_repeated(tiny, tmp_path):
    alone = type(tiny)(tmp_path / "alone")
    shutil.copytree(tiny.raw, alone.raw)
    settings = "train.checkpoint_every_steps=4", "evaluate.importance=true", "evaluate.importance_repeats=1"
    settings += ("train.tables=sharded", "train.precision=float32")  # which all processors add up alike
    one = alone.train(*settings)
    done = torchrun(
        tiny, "os.kill(os.getpid(), signal.SIGKILL)", 14, 1, "train", "--config", str(tiny.config), *settings
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("training goes on at step 12 of 18") == 1, done.stderr  # the 13th is done again
    assert done.stdout.count("Run tiny") == 1, done.stdout
    for rank in range(2):  # one that drops a tensor as Python ends would abort the process
        assert json.loads((tiny.folder / f"records-threads-{rank}").read_text()) == []

    run = tiny.latest()
    assert run.path.name == one.path.name, "the number of ranks is part of a key"
    assert not [path for path in (tiny.folder / "artifacts" / "checkpoints").iterdir() if path.is_dir()]
    assert tiny.hidden() == []
    for found, expected in zip(run.curve, one.curve, strict=True):
        assert found.keys() - {"sent_bytes"} == expected.keys()
        assert found["train_loss"] == pytest.approx(expected["train_loss"], rel=2e-5)
    assert run.curve[-1]["sent_bytes"]["all_to_all gradients of rows"] > 0
    weights, expected = (item.bundle().model.state_dict() for item in (run, one))
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=2e-3, atol=2e-4)
    metrics = run.summary["metrics"], one.summary["metrics"]
    assert metrics[0]["test"]["auc"] == pytest.approx(metrics[1]["test"]["auc"], abs=1e-4)
    require_each_row_once(tiny.folder / "records", resumed_at=12 * 256)


def require_each_row_once(records: Path, resumed_at: int) -> None:
    """Of the two epochs of 9 steps of 256 rows, what was worked on before the checkpoint, and what was after it."""
    rows: dict[int, dict[int, float]] = {0: {}, 1: {}}
    for file in sorted(records.iterdir()):
        for line in file.read_text().splitlines():
            epoch, start, values = json.loads(line)
            for position, value in enumerate(values, start):
                before = epoch * 9 * 256 + position < resumed_at
                if file.name.startswith("0-") and not before:
                    continue  # of steps that no checkpoint has
                assert before or file.name.startswith("1-")
                assert position not in rows[epoch], "a row was trained twice"
                rows[epoch][position] = value
    for found in rows.values():
        assert sorted(found) == list(range(9 * 256)), "a row was left out"
        assert len(set(found.values())) == 9 * 256, "two positions hold one row"


def test_a_rank_that_fails_ends_all_with_one_message(tiny):
    done = torchrun(tiny, "raise TrainingError('made to fail.')", 3, 0, "train", "--config", str(tiny.config))
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if line.startswith("gigabatch:")]
    assert told == ["gigabatch: made to fail."], done.stderr
    assert tiny.hidden() == []
    assert not tiny.artifacts("train")


def test_commands_of_one_process_are_refused_in_one_line(tiny, monkeypatch, capsys):
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert launched_ranks() == (0, 2)
    for command in ("nightly", "features", "evaluate"):
        assert main([command, "--config", str(tiny.config)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{command} is the work of one process, and torchrun has started 2" in line
    monkeypatch.setenv("RANK", "1")
    assert main(["nightly", "--config", str(tiny.config)]) == 2
    assert capsys.readouterr().err == ""
    assert not (tiny.home / "nightly.jsonl").exists()


def test_without_torchrun_there_is_one_rank(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")  # of some other launcher, which says no more
    assert launched_ranks() == (0, 1)


def test_ranks_that_cannot_meet_say_where(tiny, monkeypatch, capsys):
    """A port that is taken was a traceback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        assert main(["train", "--config", str(tiny.config)]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("gigabatch:")]
    assert f"2 ranks cannot meet at 127.0.0.1:{port}" in line
    assert "torchrun --standalone" in line


def test_a_rank_waits_for_a_folder_that_shows_the_artifact_later(tmp_path, monkeypatch):
    """It failed at once: machines that share a folder see a new name a while after it was made."""
    monkeypatch.setattr(stages, "SHARED_FOLDER_S", 0.5)
    asked = []

    def find(stage, key):
        asked.append(key)
        return "found" if len(asked) == 3 else None

    store = SimpleNamespace(find=find, root=tmp_path)
    ranks = SimpleNamespace(tell=lambda value, name: False)
    encoded = SimpleNamespace(features=SimpleNamespace(pipeline=SimpleNamespace(store=store, ranks=ranks)))
    assert stages.Encoded._trained_beside(encoded, "key", tmp_path) == "found"
    asked[:] = ["key"] * 10
    with pytest.raises(ArtifactError, match="All ranks must share the folder of artifacts"):
        stages.Encoded._trained_beside(encoded, "key", tmp_path)
