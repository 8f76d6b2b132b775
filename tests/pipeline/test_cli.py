"""The command line: one line for a user's mistake, exit codes, overrides, and what gc leaves alone."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from tiny_recipe import write_day

from pipeline.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]


def python_m_pipeline(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pipeline", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def gigabatch(tiny, capsys):
    """The command on the tiny data, in this process: exit code, standard output, standard error."""

    def call(command: str, *arguments: str):
        capsys.readouterr()
        code = main([command, "--config", str(tiny.config), *arguments])
        return code, *capsys.readouterr()

    return call


def test_help_lists_every_command_and_imports_nothing_heavy():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = python_m_pipeline("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert found.returncode == 0
    lines = [line.split()[0] for line in found.stdout.splitlines() if line.startswith("    ") and line[4] != " "]
    assert set(COMMANDS) <= set(lines)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10  # its own, however busy the machine
    code = "import sys, pipeline.cli\nassert not {'torch', 'pandas', 'pydantic'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_an_unknown_command_lists_the_known_ones():
    found = python_m_pipeline("trian")
    assert found.returncode == 2
    assert all(f"'{name}'" in found.stderr or name in found.stderr for name in COMMANDS)
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--config", "conf/nowhere.yaml"), "config conf/nowhere.yaml: no such file. Found there: conf/"),
        (("train", "train.epoch=3"), "unknown key 'train.epoch'. Did you mean 'epochs'?"),
        (("train", "epochs"), "override 'epochs': expected key=value"),
    ],
)
def test_a_users_mistake_is_one_line_on_standard_error(arguments, message):
    found = python_m_pipeline(*arguments)
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.startswith("gigabatch: ")
    assert message in found.stderr
    assert found.stderr.count("\n") == 1


def test_features_then_train_print_what_was_made(gigabatch, tiny):
    code, out, _ = gigabatch("features")
    assert code == 0
    assert "train" in out
    assert "2,400" in out
    assert "clicks of a made-up shop" in out
    code, out, _ = gigabatch("train", "train.epochs=1")
    assert code == 0
    assert "auc" in out
    assert str(tiny.home) in out
    assert "skipped, unchanged" in out


def test_overrides_reach_the_run(gigabatch, tiny):
    assert gigabatch("train", "train.epochs=1", "seed=9", "name=other")[0] == 0
    summary = (tiny.folder / "runs" / "other" / "latest" / "summary.json").read_text()
    assert '"seed": 9' in summary
    assert '"epochs": 1' in summary


def test_evaluate_score_nightly_and_rollback_run_from_the_command_line(gigabatch, tiny):
    assert gigabatch("nightly")[0] == 0
    write_day(tiny.raw, 1, 600)
    assert gigabatch("nightly")[0] in (0, 10)
    assert gigabatch("nightly")[0] == 10
    assert gigabatch("evaluate", "--split", "valid")[0] == 0
    assert gigabatch("score", "--out", str(tiny.folder / "scores.csv"))[0] == 0
    assert len(pd.read_csv(tiny.folder / "scores.csv")) == 360
    assert gigabatch("nightly", "nightly.tolerance=1", "seed=5")[0] == 0
    assert gigabatch("rollback")[0] == 0


@pytest.mark.parametrize(
    ("command", "override", "code"), [("train", "seed=-1", 2), ("nightly", "seed=-1", 40), ("score", "seed=1", 2)]
)
def test_exit_codes_of_user_errors(gigabatch, command, override, code):
    found, out, err = gigabatch(command, override)
    assert (found, out) == (code, "")
    assert err.startswith("gigabatch: ")


def test_a_full_disk_or_a_file_that_may_not_be_read_is_one_line_too(gigabatch, tiny, monkeypatch):
    def fail(*_, **__):
        raise PermissionError(13, "Permission denied", "/data/x.csv")

    monkeypatch.setattr("features.sources.expand", fail)
    monkeypatch.setattr("tiny_recipe.expand", fail)
    code, _, err = gigabatch("train")
    assert code == 2
    assert err == "gigabatch: [Errno 13] Permission denied: '/data/x.csv'\n"


def test_a_library_message_of_many_lines_is_one_line_too(gigabatch, tiny):
    with open(tiny.raw / "day-000.csv", "a") as file:
        file.write("1,2,3,4,5,6,7,8,9,10,11,12,13,14\n")
    code, _, err = gigabatch("train")
    assert code == 2
    assert "day-000.csv: cannot be read" in err
    assert "Expected 11 fields in line 3002, saw 14" in err
    assert [line for line in err.splitlines() if line.startswith("gigabatch")] == [err.splitlines()[-1]]


def test_a_folder_in_place_of_a_file_is_one_line_too(gigabatch, tiny):
    (tiny.raw / "day-000.csv").unlink()
    (tiny.raw / "day-000.csv").mkdir()
    code, _, err = gigabatch("train")
    assert (code, err.count("\n")) == (2, 1)
    assert "Is a directory" in err


def test_a_mistake_of_ours_keeps_its_traceback(gigabatch, monkeypatch):
    monkeypatch.setattr("pipeline.stages.Pipeline.features", lambda self: int("x"))
    with pytest.raises(ValueError, match="invalid literal"):
        gigabatch("train")


def test_ctrl_c_stops_without_a_traceback(gigabatch, monkeypatch):
    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.stages.Pipeline.features", stop)
    assert gigabatch("train")[::2] == (130, "gigabatch: stopped; run again to go on.\n")


def runs_of(tiny) -> set[str]:
    return {path.name for path in tiny.home.iterdir() if path.is_dir() and not path.is_symlink()}


def test_gc_removes_the_old_and_keeps_what_pointers_name(gigabatch, tiny):
    made = [tiny.train(f"seed={seed}", "train.epochs=1").path for seed in range(1, 6)]
    for number, path in enumerate(made):  # the first is the oldest
        os.utime(path, (1000 + number, 1000 + number))
    for number, path in enumerate(sorted(tiny.artifacts("train"))):
        os.utime(path, (1000 + number, 1000 + number))
    for name, path in (("current", made[0]), ("previous", made[1]), ("latest", made[2])):
        link = tiny.home / name
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
    code, out, _ = gigabatch("gc", "--keep", "1")
    assert code == 0
    assert runs_of(tiny) == {path.name for path in (made[0], made[1], made[2], made[4])}
    assert [len(tiny.artifacts(stage)) for stage in ("features", "encode", "train", "evaluate")] == [1, 1, 1, 1]
    assert f"removed {made[3]}" in out
    assert "9 folder(s), " in out  # one run, four of train, four of evaluate
    assert tiny.artifacts("train")[0] == max(tiny.artifacts("train"))
    gigabatch("gc", "--keep", "0")
    assert runs_of(tiny) == {path.name for path in made[:3]}
    assert gigabatch("evaluate")[0] == 0  # and the next run makes again what is gone


def test_gc_of_a_negative_number_is_an_error(gigabatch):
    assert gigabatch("gc", "--keep", "-1")[0] == 2
