"""The nightly job: promote, keep, refuse, fail."""

import errno
import io
import json
import os
import re
import shutil
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk

from gigabatch.features.schema import Column, Schema, Target
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import ConfigError, NightlySettings, load_config
from gigabatch.pipeline.evaluation.evaluate import choose_metric
from gigabatch.pipeline.nightly import nightly
from gigabatch.pipeline.nightly.nightly import run_nightly
from gigabatch.pipeline.runs.listing import list_runs
from gigabatch.pipeline.runs.pointers import RunError
from gigabatch.pipeline.runs.promote import promote_by_hand, rollback, unblock
from gigabatch.pipeline.stages.run import write_report
from gigabatch.pipeline.stopping import Stopped
from gigabatch.pipeline.store.keys import CHECKSUMS, ChecksumCache, signature
from tests.pipeline.tiny_recipe import day_of_rows, write_day

PROMOTED, KEPT, REFUSED, FAILED = 0, 10, 20, 40


def lines(tiny) -> list[dict]:
    return [json.loads(line) for line in (tiny.home / "nightly.jsonl").read_text().splitlines()]


def nights(tiny) -> list[dict]:
    return [line for line in lines(tiny) if line["action"] == "nightly"]


def pointer(tiny, name: str) -> str | None:
    link = tiny.home / name
    return link.resolve().name if link.exists() else None


def forget_promotions(tiny) -> None:
    """As if no run had ever been promoted."""
    (tiny.home / "current").unlink()
    (tiny.home / "nightly.jsonl").unlink()


def test_the_first_night_promotes_and_the_same_data_again_is_kept(finished, capsys):
    forget_promotions(finished)
    assert run_nightly(finished.config) == PROMOTED
    first = pointer(finished, "current")
    assert (finished.home / "current" / "model" / "bundle.json").exists()
    assert run_nightly(finished.config) == KEPT
    assert (pointer(finished, "current"), pointer(finished, "previous")) == (first, None)
    assert [night["exit_code"] for night in nights(finished)] == [0, 10]
    assert nights(finished)[0]["candidate"] > nights(finished)[0]["constant"] == 0.5
    assert "Kept: nothing new." in capsys.readouterr().out
    with pytest.raises(RunError, match="previous does not exist; there is no model before"):
        rollback(load_config(finished.config))
    assert "<html" in (finished.home / "nightly.html").read_text()


def test_a_wide_tolerance_promotes_by_rows_that_neither_model_has_seen_and_rollback_brings_the_one_before_back(
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
    settings = load_config(finished.config)
    assert f"{first} is current again" in rollback(settings)
    assert (pointer(finished, "current"), pointer(finished, "previous")) == (first, second)
    assert [lines(finished)[-1][key] for key in ("action", "run", "exit_code")] == ["rollback", first, 0]
    with pytest.raises(
        RunError, match=f"the run before, {second}, was itself rolled back .*gigabatch promote {second}"
    ):
        rollback(settings)  # run twice by mistake
    assert (pointer(finished, "current"), pointer(finished, "previous")) == (first, second)


def test_a_rolled_back_run_stays_out_until_a_person_lets_it_in(finished):
    """The same night again, and the same weights under another id, change nothing (P2)."""
    wide = ["nightly.tolerance=1", "train.epochs=1"]
    first = pointer(finished, "current")
    write_day(finished.raw, 1, 600)
    assert run_nightly(finished.config, wide) == PROMOTED
    second, settings = pointer(finished, "current"), load_config(finished.config)
    rollback(settings)
    for again in (wide, [*wide, "evaluate.calibration_bins=5"]):
        assert run_nightly(finished.config, again) == KEPT
        assert pointer(finished, "current") == first
        assert "was rolled back at 20" in nights(finished)[-1]["decision"]
        assert f"gigabatch unblock {second}" in nights(finished)[-1]["decision"]
    with pytest.raises(RunError, match=f"nobody is not blocked .* Blocked: {second}"):
        unblock(settings, "nobody")
    unblock(settings, second)
    assert run_nightly(finished.config, wide) == PROMOTED
    assert pointer(finished, "current") == second
    rollback(settings)
    assert "Its block is lifted" in promote_by_hand(settings, second)
    assert (pointer(finished, "current"), pointer(finished, "previous")) == (second, first)
    assert run_nightly(finished.config, wide) == KEPT  # nothing changed
    assert [line["action"] for line in lines(finished) if line["action"] != "nightly"] == [
        "train", "rollback", "unblock", "rollback", "promote"
    ]  # fmt: skip


def test_unchanged_weights_are_not_promoted_so_that_the_model_before_stays(finished):
    """Another setting of the evaluation makes another run of the same model (P3)."""
    first = pointer(finished, "current")
    write_day(finished.raw, 1, 600)
    assert run_nightly(finished.config, ["nightly.start=cold", "nightly.tolerance=1"]) == PROMOTED
    second = pointer(finished, "current")
    cold = ["nightly.start=cold", "nightly.tolerance=1"]
    assert run_nightly(finished.config, [*cold, "evaluate.calibration_bins=5"]) == KEPT
    assert (pointer(finished, "current"), pointer(finished, "previous")) == (second, first)
    assert pointer(finished, "latest") not in (first, second)
    assert f"the weights are those of the current model, run {second}" in nights(finished)[-1]["decision"]


@pytest.mark.parametrize(
    ("lacks", "reason"),
    [
        ("time", r"had no time column, so no row is known to be new to it"),
        ("column", r"reads column\(s\) 'signal', which"),
    ],
)
def test_a_current_model_that_cannot_be_compared_is_an_error_that_says_why(tmp_path, lacks, reason):
    """The first was "Failed: 'trained_until'"; the second was put down to tonight's data, exit code 20."""
    day_of_rows(0, 600).to_csv(tmp_path / "rows.csv", index=False)
    settings = {
        "name": "table",
        "recipe": "table",
        "runs": str(tmp_path / "runs"),
        "artifacts": str(tmp_path / "artifacts"),
        "features": {
            "path": str(tmp_path / "rows.csv"),
            "continuous": ["signal", "noise"],
            "targets": {"clicked": {"task": "binary"}},
        },
    }
    config = tmp_path / "table.yaml"
    nights = {"start": "cold", "min_window_rows": 10}
    plain = {"importance": False, "baselines": []}
    config.write_text(json.dumps(settings | {"train": {"epochs": 1}, "evaluate": plain, "nightly": nights}))
    timed = "features.time=at"
    assert main(["train", "--config", str(config), *([] if lacks == "time" else [timed])]) == 0
    changed = [timed] if lacks == "time" else [timed, "features.continuous=[noise]"]
    assert run_nightly(config, changed) == FAILED
    line = json.loads((tmp_path / "runs" / "table" / "nightly.jsonl").read_text().splitlines()[-1])
    named = re.search(reason + r".* gigabatch promote (\w{12}) makes the new model current", line["decision"])
    assert named
    assert line["run"] == named[1]  # it was null
    states = {row["run"]: row["state"] for row in list_runs(load_config(config, changed))}
    assert states[line["run"]] == "latest, kept"
    assert main(["promote", line["run"], "--config", str(config), *changed]) == 0  # as the page says
    assert (tmp_path / "runs" / "table" / "current").resolve().name == line["run"]


def test_the_current_model_that_is_gone_is_an_error_that_names_the_link(finished):
    """It is not as if there were none, so that anything would be promoted (P11, R3)."""
    shutil.rmtree((finished.home / "current").resolve())
    write_day(finished.raw, 1, 600)
    assert run_nightly(finished.config, ["nightly.tolerance=1"]) == FAILED
    assert f"{finished.home / 'current'} leads to" in nights(finished)[-1]["decision"]
    assert len(finished.artifacts("features")) == 1  # no work was done


def test_a_candidate_is_loaded_before_it_is_promoted(finished, monkeypatch):
    """Damaged after it was written (R1)."""
    first = pointer(finished, "current")
    write_day(finished.raw, 1, 600)

    def damage(features, candidate) -> None:
        (candidate.path / "model" / "weights.safetensors").write_bytes(b"")

    monkeypatch.setattr("gigabatch.pipeline.nightly.learning._store_vectors", damage)
    assert run_nightly(finished.config, ["nightly.tolerance=1"]) == FAILED
    assert pointer(finished, "current") == first
    assert "file model/weights.safetensors is not what" in nights(finished)[-1]["decision"]


def test_what_became_current_while_a_night_compared_is_not_replaced(finished, monkeypatch):
    other = finished.train("seed=5", "train.epochs=1").path
    write_day(finished.raw, 1, 600)
    by_hand = lambda *_: promote_by_hand(load_config(finished.config), other.name)  # noqa: E731
    monkeypatch.setattr("gigabatch.pipeline.nightly.learning._store_vectors", by_hand)
    assert run_nightly(finished.config, ["nightly.tolerance=1"]) == FAILED
    assert pointer(finished, "current") == other.name
    assert "has become current since" in nights(finished)[-1]["decision"]


def test_a_report_that_cannot_be_written_changes_nothing_of_what_was_decided(finished, monkeypatch, caplog):
    """One line for the night, and its exit code (P10, R8)."""
    write_day(finished.raw, 1, 600)
    monkeypatch.setattr("gigabatch.pipeline.nightly.nightly.write_night", lambda *_: 1 / 0)
    assert run_nightly(finished.config, ["nightly.tolerance=1"]) == PROMOTED
    assert [night["exit_code"] for night in nights(finished)] == [PROMOTED]
    assert pointer(finished, "current") == nights(finished)[0]["run"]
    assert "nightly.html could not be written; what was decided stands" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_night_that_is_stopped_leaves_its_line_and_nothing_else(tiny, number):
    """P16, R9."""
    child = tiny.start(
        # A suite that a shell runs in the background ignores SIGINT, and so would its children.
        "import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from gigabatch.pipeline.commands.app import main\n"
        "from gigabatch.pipeline.stages import stages\n"
        "def wait(*_, **__):\n    print('training', flush=True)\n    while True:\n        time.sleep(0.05)\n"
        "stages.train_model = wait\n"
        "sys.exit(main(['nightly', '--config', config, '-q']))"
    )
    assert child.stdout.readline() == "training\n"
    child.send_signal(number)
    _, error = child.communicate(timeout=120)
    assert (child.returncode, error) == (128 + number, f"gigabatch: stopped by {number.name}; run again to go on.\n")
    assert [(night["exit_code"], night["run"]) for night in nights(tiny)] == [(128 + number, None)]
    assert tiny.hidden() == []


@pytest.mark.parametrize("where", ["load_config", "folder_lock", "write_night"])
def test_a_night_that_is_stopped_before_its_work_or_after_it_has_one_line(finished, monkeypatch, where):
    """The seconds of imports had none, though the docs promise one."""

    def stop(*_, **__):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(f"gigabatch.pipeline.nightly.nightly.{where}", stop)
    write_day(finished.raw, 1, 600)
    code = PROMOTED if where == "write_night" else 143  # what was decided stands
    assert main(["nightly", "--config", str(finished.config), "nightly.tolerance=1"]) == code
    assert [night["exit_code"] for night in nights(finished)] == [code]


@pytest.mark.parametrize("where", ["folder_lock", "check_new"])
def test_a_stop_of_which_a_library_leaves_the_text_alone_is_a_stop(finished, monkeypatch, capsys, where):
    """pydantic builds its validators at import, in Rust: the night ended with 1 and its SchemaError, or with 40."""

    def build(*_, **__):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        except KeyboardInterrupt as error:
            text = f"Error building a validator: {type(error).__name__}: {error}"
        raise Exception(text)

    monkeypatch.setattr(f"gigabatch.pipeline.nightly.nightly.{where}", build)
    if where == "folder_lock":
        monkeypatch.setattr("gigabatch.pipeline.nightly.nightly.quiet_night", lambda *_: None)
    else:
        write_day(finished.raw, 1, 600)
    assert main(["nightly", "--config", str(finished.config)]) == 143
    assert [night["exit_code"] for night in nights(finished)] == [143]
    assert capsys.readouterr().err.endswith("gigabatch: stopped by SIGTERM; run again to go on.\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("work", ["notify", "write_night", "_tidy"])
def test_a_refused_night_that_is_stopped_after_its_line_ends_with_the_code_of_the_line(
    tiny, monkeypatch, capsys, caplog, work, number
):
    """The line said 20, which asks for a person, and the process 143, which asks for none."""

    def stop(*_, **__):
        raise Stopped(number)

    (tiny.raw / "day-000.csv").unlink()
    monkeypatch.setattr(f"gigabatch.pipeline.nightly.nightly.{work}", stop)
    assert main(["nightly", "--config", str(tiny.config)]) == REFUSED
    (night,) = nights(tiny)
    assert night["exit_code"] == REFUSED
    assert capsys.readouterr().out == f"{night['decision']}\n"
    assert "stopped:" in caplog.text


@pytest.mark.parametrize("where", ["append_record", "write", "folder_lock"])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_signal_between_the_line_and_the_end_of_a_night_adds_no_second_line(finished, monkeypatch, where, stopped):
    """Between the pieces of work that can be stopped; the command took it for a night that had no line."""
    real = getattr(nightly, where)
    sent = []

    def signalled(*given, **more):
        result = real(*given, **more)
        sent.append(os.kill(os.getpid(), signal.SIGTERM))
        return result

    @contextmanager
    def locked(path):
        with real(path):
            yield
        sent.append(os.kill(os.getpid(), signal.SIGTERM))

    monkeypatch.setattr(nightly, where, locked if where == "folder_lock" else signalled)
    if stopped:
        monkeypatch.setattr(nightly, "_night", lambda night: os.kill(os.getpid(), signal.SIGTERM))
    write_day(finished.raw, 1, 600)
    code = main(["nightly", "--config", str(finished.config), "nightly.tolerance=1"])
    assert code == (143 if stopped else PROMOTED)
    assert [night["exit_code"] for night in nights(finished)] == [code]
    assert sent or (stopped and where != "append_record")


@pytest.mark.parametrize("wrong", ["train.epochs=0", "trian.epochs=1", "nonsense", "model.kind=nothing"])
def test_a_configuration_that_cannot_be_used_is_on_record(finished, capsys, wrong):
    """As far as it tells where the record is (P16)."""
    assert main(["nightly", "--config", str(finished.config), wrong]) == FAILED
    assert nights(finished)[-1]["exit_code"] == FAILED
    assert f"gigabatch: {nights(finished)[-1]['decision'].removeprefix('Failed: ')}\n" == capsys.readouterr().err
    assert main(["nightly", "--config", str(finished.folder / "nowhere.yaml")]) == FAILED
    assert main(["nightly", "--config", str(finished.config), "name=.."]) == FAILED
    assert not (finished.folder / "nightly.jsonl").exists()


def test_rows_without_a_time_are_refused_before_any_work(tiny):
    """Else the first night promotes, and every later one trains and fails (P12)."""
    content = json.loads(tiny.config.read_text())
    columns = {"categorical": ["city"], "targets": {"clicked": {"task": "binary"}}}
    tiny.config.write_text(json.dumps(content | {"recipe": "table", "features": {"path": str(tiny.raw), **columns}}))
    assert run_nightly(tiny.config) == FAILED
    assert "features.time names no column" in nights(tiny)[-1]["decision"]
    assert tiny.artifacts("features") == []


def test_a_metric_that_does_not_apply_is_refused_before_any_training(tiny):
    """Else the first night promotes, and every later one trains and fails."""
    assert run_nightly(tiny.config, ["nightly.metric=mrr"]) == FAILED
    assert "nightly.metric: mrr does not apply" in nights(tiny)[-1]["decision"]
    assert tiny.artifacts("train") == []
    assert pointer(tiny, "current") is None


def test_a_log_loss_of_probabilities_for_serving_does_not_decide(tiny):
    """Else a model with a prior loses to the mean of rows whose share of label 1 it is not for, every night."""
    assert run_nightly(tiny.config, ["nightly.metric=logloss", "train.prior={negatives_kept: 0.1}"]) == FAILED
    assert "nightly.metric: with train.prior probabilities are those for serving" in nights(tiny)[-1]["decision"]
    assert tiny.artifacts("train") == []


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


@pytest.mark.parametrize(
    "file", ["features/*/test/part-*.parquet", "features/*/schema.json", "encode/*/preprocessor/preprocessor.json"]
)
def test_a_damaged_artifact_is_no_fault_of_the_data_and_is_made_again(finished, file):
    """Its bytes changed while its size and times stayed: 20, "Data refused", in this night and each that came after."""
    forget_promotions(finished)
    (damaged,) = (finished.folder / "artifacts").glob(file)
    folder = finished.folder.joinpath(*damaged.relative_to(finished.folder).parts[:3])
    manifest = json.loads((folder / "manifest.json").read_text())
    damaged.write_bytes(damaged.read_bytes()[:-60] + bytes(60))
    cache = ChecksumCache(finished.folder / "artifacts" / CHECKSUMS)
    name = str(damaged.relative_to(folder))
    cache.known[str(damaged.resolve())] = (*signature(damaged.stat()), manifest["files"][name]["checksum"])
    cache._changed = True
    cache.save()
    assert run_nightly(finished.config) == FAILED
    said = nights(finished)[-1]["decision"]
    assert said.startswith(f"Failed: artifact {folder}: file {name} is not what its manifest says. It was put aside")
    assert "Run again: it is made again." in said
    assert run_nightly(finished.config) == PROMOTED


def test_no_files_at_all_are_refused(tiny):
    (tiny.raw / "day-000.csv").unlink()
    assert run_nightly(tiny.config) == REFUSED
    assert pointer(tiny, "current") is None


class Full(io.TextIOWrapper):
    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("output", [io.TextIOWrapper, Full])
def test_an_output_that_takes_no_line_changes_nothing_of_what_was_decided(tiny, monkeypatch, output):
    (tiny.raw / "day-000.csv").rename(tiny.raw / "day-täglich.csv")
    with (tiny.raw / "day-täglich.csv").open("a") as file:
        file.write("no,row,of,it\n")
    monkeypatch.setattr(sys, "stdout", output(io.BytesIO(), "ascii"))
    assert main(["-q", "nightly", "--config", str(tiny.config)]) == REFUSED
    (night,) = nights(tiny)
    assert night["exit_code"] == REFUSED
    assert "täglich" in night["decision"]
    if output is io.TextIOWrapper:
        assert b"day-t?glich.csv" in sys.stdout.buffer.getvalue()


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
    wide = ["features.split={train: 0.2, valid: 0.05, test: 0.75}", "nightly.tolerance=1", "seed=2"]
    wide.append("nightly.start=cold")
    assert run_nightly(finished.config, wide) == KEPT
    assert pointer(finished, "current") == before
    night = strict((finished.home / "nightly.jsonl").read_text().splitlines()[-1])
    assert night["candidate"] < 0.5 == night["constant"] < night["record"]
    assert "no better than a constant prediction (AUC 0.5)" in night["decision"]


def test_a_window_of_one_class_is_refused(finished):
    """R8: it was kept, with NaN in nightly.jsonl."""
    run_nightly(finished.config)
    rewritten(write_day(finished.raw, 1, 600), lambda day: day.update({"clicked": day["clicked"] * 0}))
    assert run_nightly(finished.config) == REFUSED
    night = strict((finished.home / "nightly.jsonl").read_text().splitlines()[-1])
    assert "all 360 labels of the rows that come after the training data are the same, 0" in night["decision"]


def test_rows_with_times_in_the_future_are_refused_by_file_and_row(finished):
    """R5: they were promoted, and no later night had new rows."""
    for path in finished.raw.iterdir():
        rewritten(path, lambda day: day.update({"at": day["at"] + 1_700_000_000}))
    forget_promotions(finished)  # of the same weights, and other times
    assert run_nightly(finished.config) == PROMOTED  # seconds of 2023
    path = write_day(finished.raw, 1, 600)
    rewritten(path, lambda day: day.update({"at": (day["at"] + 1_700_000_000).where(day.index < 597, 4_100_000_000)}))
    assert run_nightly(finished.config) == REFUSED
    said = nights(finished)[-1]["decision"]
    assert "time column 'at': 3 row(s) lie after now, up to 2099-12-03T16:53:20+00:00 (3 of test" in said
    assert f"row=1000597; row=1000598; row=1000599). Found in {path}." in said
    assert run_nightly(finished.config, ["nightly.time_unit=none"]) in (PROMOTED, KEPT)  # asked for
    for unit in ("min", "minutes"):
        assert run_nightly(finished.config, [f"nightly.time_unit={unit}"]) == REFUSED  # no data of the year 5200


def test_too_few_new_rows_name_the_end_of_each_training_and_the_way_back(finished):
    run_nightly(finished.config)
    assert run_nightly(finished.config, ["seed=2", "nightly.min_window_rows=301", "nightly.start=cold"]) == REFUSED
    said = nights(finished)[-1]["decision"]
    assert "only 300 labelled rows" in said
    assert "trained_until is 539 for the current model and 539 for the new one" in said  # five rows a moment
    assert "gigabatch rollback" in said


def test_a_night_that_fails_is_on_record_and_current_stays(finished, monkeypatch):
    run_nightly(finished.config)
    before = pointer(finished, "current")
    assert run_nightly(finished.config, ["train.lr_max=1e30", "nightly.start=cold"]) == FAILED
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
    assert f"{pointer(finished, 'current')}: file model/weights.safetensors is not" in nights(finished)[-1]["decision"]


def test_a_damaged_run_of_a_night_is_mended_by_no_training_which_its_message_does_not_promise(finished, capsys):
    run_nightly(finished.config)
    write_day(finished.raw, 1, 1500)
    assert run_nightly(finished.config, ["nightly.tolerance=1"]) == PROMOTED
    (finished.home / "current" / "model" / "weights.safetensors").write_bytes(b"")
    assert main(["train", "--config", str(finished.config)]) == 0
    capsys.readouterr()
    assert main(["score", "--config", str(finished.config), "--input", str(finished.raw), "--out", "s.csv"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"weights\.safetensors is not .*\. Put it back from a backup, or take another run", said)
    assert "gigabatch train mends a run that it made, none of a night" in said


def test_a_second_job_fails_at_once_and_the_lock_of_a_killed_one_is_free(tiny, capsys):
    holder = tiny.start(
        "from pathlib import Path\nfrom gigabatch.pipeline.store.locks import folder_lock\nimport time\n"
        f"with folder_lock(Path({str(tiny.home / 'nightly.lock')!r})):\n"
        "    print('held', flush=True)\n    time.sleep(600)"
    )
    with holder:
        try:
            assert holder.stdout.readline() == "held\n"
            assert run_nightly(tiny.config) == FAILED
            assert f"is held by another run (pid {holder.pid} " in capsys.readouterr().out
            (night,) = nights(tiny)
            assert (night["exit_code"], night["run"]) == (FAILED, None)
            assert f"is held by another run (pid {holder.pid} " in night["decision"]
        finally:
            holder.send_signal(signal.SIGKILL)
            holder.wait()
    assert run_nightly(tiny.config) == PROMOTED


def test_what_is_to_be_scheduled_keeps_the_exit_code():
    """make turns 10 and 20 into 2 (P17); tests/docs/test_deploy.py runs the examples with every code."""
    folder = Path(__file__).parents[3] / "docs" / "deploy"
    texts = [path.read_text() for path in folder.iterdir() if path.is_file() and "nightly" in path.read_text()]
    assert len(texts) >= 4
    assert not any("make nightly" in text for text in texts)
    assert sum("gigabatch nightly" in text or '"nightly"' in text for text in texts) >= 3


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


def test_a_first_model_that_is_no_better_than_a_constant_is_kept_out_until_a_person_lets_it_in(tiny):
    """It was promoted, whatever it was: a later night has a floor."""
    path = tiny.raw / "day-000.csv"
    day = pd.read_csv(path)
    day["clicked"] = day["clicked"].where(day.index < 2700, 1 - day["clicked"])  # of the test split
    day.to_csv(path, index=False)
    assert [run_nightly(tiny.config) for _ in range(2)] == [KEPT, KEPT]
    assert pointer(tiny, "current") is None
    night = nights(tiny)[-1]
    scores = load_bundle(tiny.home / night["run"] / "model").predict(day.iloc[2700:])["clicked"]
    auc = sk.roc_auc_score(day["clicked"].iloc[2700:], scores)
    assert (night["metric"], night["rows"], night["constant"]) == ("AUC", 300, 0.5)
    assert night["candidate"] == pytest.approx(auc, abs=1e-9)
    assert night["decision"].startswith(
        f"Kept out: no model is current. The new one has AUC {auc:.4f} on 300 rows that it has not seen, a constant "
        "0.5. It is no better than a constant prediction"
    )
    assert "<html" in (tiny.home / "nightly.html").read_text()
    assert main(["runs", "--config", str(tiny.config)]) == 0
    assert f"gigabatch promote {night['run']} promotes it all the same" in night["decision"]
    assert main(["promote", night["run"], "--config", str(tiny.config)]) == 0
    assert pointer(tiny, "current") == night["run"]


def test_a_first_night_needs_the_rows_that_a_later_one_needs(tiny):
    assert run_nightly(tiny.config, ["nightly.min_window_rows=301"]) == REFUSED
    said = nights(tiny)[-1]["decision"]
    assert "only 300 labelled rows come after the model's training data; nightly.min_window_rows asks for 301" in said
    assert "trained_until is 539 for the new model. Wait for more data" in said
    assert "rollback" not in said
    assert run_nightly(tiny.config) == PROMOTED


def kinds_of(day: int, rows: int = 600) -> pd.DataFrame:
    """Rows whose class, `a` to `c`, is that of the signal."""
    frame = day_of_rows(day, rows)[["at", "signal", "noise"]]
    return frame.assign(kind=np.select([frame["signal"] < -0.5, frame["signal"] < 0.5], ["a", "b"], "c"))


@pytest.fixture
def kinds(tmp_path, monkeypatch):
    """A configuration of three classes, whose first run is promoted, and what writes its rows."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    path, config = tmp_path / "rows.csv", tmp_path / "kinds.yaml"
    settings = {
        "name": "kinds", "recipe": "table", "runs": str(tmp_path / "runs"), "artifacts": str(tmp_path / "artifacts"),
        "device": "cpu", "engine": "pandas",
        "features": {
            "path": str(path), "continuous": ["signal", "noise"], "time": "at",
            "targets": {"kind": {"task": "multiclass"}},
        },
        "model": {"layers": [8]}, "train": {"epochs": 8, "batch_size": 64, "lr_max": 0.02},
        "evaluate": {"importance": False, "baselines": []},
        "nightly": {"min_window_rows": 10, "num_bootstrap": 50, "tolerance": 10, "max_skill_drop": 1},
    }  # fmt: skip
    config.write_text(json.dumps(settings))
    kinds_of(0).to_csv(path, index=False)
    assert main(["train", "--config", str(config), "-q"]) == 0
    return config, tmp_path / "runs" / "kinds", path


def test_a_class_that_the_current_model_does_not_know_is_refused_by_name_with_a_way_that_keeps_it(kinds):
    """It was put down to the configuration (40), with the advice to remove the link to the promoted model."""
    config, home, path = kinds
    cold = ["nightly.start=cold"]
    first = (home / "current").resolve()
    rows = pd.concat([kinds_of(0), kinds_of(1)])
    new = rows.assign(kind=rows["kind"].where((rows["at"] < 100_000) | (rows["signal"] < 1), "d"))
    new.to_csv(path, index=False)
    assert run_nightly(config, cold) == REFUSED
    night = json.loads((home / "nightly.jsonl").read_text().splitlines()[-1])
    assert night["decision"].startswith(
        "Data refused: target 'kind': class(es) 'd' of the train split are new to the model, which knows "
        "'a', 'b', 'c'. If labels are wrong, correct them or remove those rows."
    )
    states = {row["run"]: row["state"] for row in list_runs(load_config(config))}
    assert states == {first.name: "current", night["run"]: "latest, kept"}
    assert f"gigabatch promote {night['run']} makes the new model current, and gigabatch rollback" in night["decision"]
    assert (home / "current").resolve() == first
    assert main(["promote", night["run"], "--config", str(config)]) == 0  # as the message says
    assert [(home / name).resolve().name for name in ("current", "previous")] == [night["run"], first.name]
    pd.concat([new, kinds_of(2)]).to_csv(path, index=False)
    assert run_nightly(config, cold) == PROMOTED
    night = json.loads((home / "nightly.jsonl").read_text().splitlines()[-1])
    assert (night["metric"], night["rows"]) == ("log loss", 180)
    rows.to_csv(path, index=False)
    assert run_nightly(config, cold) == REFUSED
    night = json.loads((home / "nightly.jsonl").read_text().splitlines()[-1])
    assert "target 'kind': class(es) 'd', which the model knows, are not in the train split." in night["decision"]


def test_a_warm_night_is_refused_for_other_classes_and_a_cold_one_by_choice_gives_what_may_be_promoted(kinds):
    """It failed (40) each night, with advice about preprocess.from and no model that a person could promote."""
    config, home, path = kinds
    rows = pd.concat([kinds_of(0), kinds_of(1)])
    new = rows.assign(kind=rows["kind"].where((rows["at"] < 100_000) | (rows["signal"] < 1), "d"))
    new.to_csv(path, index=False)
    assert run_nightly(config) == REFUSED
    night = json.loads((home / "nightly.jsonl").read_text().splitlines()[-1])
    assert night["decision"].startswith("Data refused: target 'kind': class(es) 'd' of the train split are new to the")
    assert "train.changed=cold" in night["decision"]
    assert run_nightly(config, ["train.changed=cold"]) == REFUSED
    night = json.loads((home / "nightly.jsonl").read_text().splitlines()[-1])
    assert (night["start"]["how"], "'d'" in night["start"]["why"]) == ("anew", True)
    assert f"gigabatch promote {night['run']} makes the new model current" in night["decision"]
    assert main(["promote", night["run"], "--config", str(config)]) == 0
    pd.concat([new, kinds_of(2)]).to_csv(path, index=False)
    assert run_nightly(config) == PROMOTED
    assert json.loads((home / "nightly.jsonl").read_text().splitlines()[-1])["start"]["how"] == "warm"


def test_a_class_that_the_train_split_does_not_know_is_refused_too(kinds):
    config, home, path = kinds
    rows = kinds_of(0)
    rows.assign(kind=rows["kind"].where(rows.index < 590, "e")).to_csv(path, index=False)
    assert run_nightly(config) == REFUSED
    night = json.loads((home / "nightly.jsonl").read_text().splitlines()[-1])
    assert "target 'kind': class(es) 'e' of the test split are not in the train split" in night["decision"]


def test_a_warm_night_refuses_a_class_that_is_new_too(kinds):
    config, home, path = kinds
    rows = pd.concat([kinds_of(0), kinds_of(1)])
    rows.assign(kind=rows["kind"].where((rows["at"] < 100_000) | (rows["signal"] < 1), "d")).to_csv(path, index=False)
    assert run_nightly(config) == REFUSED
    night = json.loads((home / "nightly.jsonl").read_text().splitlines()[-1])
    assert "target 'kind': class(es) 'd' of the train split are new to the model" in night["decision"]
    assert "train" not in night["steps"]


def test_links_that_are_lost_make_no_first_night(finished):
    """A copy without links was compared with a constant alone, with ids of its own and without the blocks."""
    first = (finished.home / "current").resolve().name
    for path in list(finished.home.iterdir()):
        if path.is_symlink():
            path.unlink()
    write_day(finished.raw, 1, 600)
    for arguments in ([], ["--dry-run"]):
        assert main(["nightly", "--config", str(finished.config), *arguments]) == FAILED
    said = nights(finished)[-1]["decision"]
    assert (
        f"{finished.home / 'current'} is not there, though nightly.jsonl tells of promoted runs, the last time" in said
    )
    assert f"of {first} " in said
    assert len(finished.artifacts("features")) == 1  # no work was done
    assert main(["promote", first, "--config", str(finished.config)]) == 0
    assert run_nightly(finished.config, ["nightly.tolerance=1"]) == PROMOTED
    assert pointer(finished, "previous") == first


def test_a_folder_in_place_of_a_link_fails_before_any_work(finished):
    """A night was trained and compared before its promotion could not move the link."""
    run = (finished.home / "current").resolve()
    (finished.home / "current").unlink()
    shutil.copytree(run, finished.home / "current")
    write_day(finished.raw, 1, 600)
    assert run_nightly(finished.config, ["nightly.tolerance=1"]) == FAILED
    assert f"{finished.home / 'current'}: a folder in place of a link" in nights(finished)[-1]["decision"]
    assert len(finished.artifacts("features")) == 1
