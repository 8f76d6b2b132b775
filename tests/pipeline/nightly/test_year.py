"""What lets a nightly job be left alone: the reference, every target, what a killed night leaves, and the disk."""

import json
import math
import os
import re
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import RunConfig, load_config
from gigabatch.pipeline.contract import decide as decide_module
from gigabatch.pipeline.contract.state import owed, read_state, write_state
from gigabatch.pipeline.contract.terms import ContractError
from gigabatch.pipeline.nightly import learning, nightly
from gigabatch.pipeline.nightly.comparison import Comparison, Floor, Judged
from gigabatch.pipeline.nightly.learning import judge
from gigabatch.pipeline.nightly.manifest import read_manifest
from gigabatch.pipeline.nightly.nightly import PENDING, run_nightly, settle
from gigabatch.pipeline.nightly.reference import champions, keep_champions, reference_of
from gigabatch.pipeline.nightly.start import tonight, warm_nights
from gigabatch.pipeline.runs.pointers import RunError
from gigabatch.pipeline.runs.promote import promote_by_hand, rollback
from gigabatch.pipeline.runs.record import append_record
from gigabatch.pipeline.stages import stages
from gigabatch.pipeline.stages.finished import Run
from gigabatch.pipeline.stages.stages import Encoded
from gigabatch.pipeline.store.garbage import collect_artifacts, collect_runs
from gigabatch.pipeline.store.keys import file_checksum
from gigabatch.pipeline.training.window import NothingNew
from tests.examples import THOROUGH
from tests.pipeline.tiny_recipe import day_of_rows, write_day

PROMOTED, KEPT, FAILED = 0, 10, 40
CANDIDATE = Run(Path("runs/a/new"))


class Killed(BaseException):
    """Like a kill: nothing of the night's own handles it."""


def nights(tiny) -> list[dict]:
    lines = [json.loads(line) for line in (tiny.home / "nightly.jsonl").read_text().splitlines()]
    return [line for line in lines if line["action"] == "nightly"]


def killed(*_, **__):
    raise Killed


def compared(metric="AUC", gain=0.0, bound=0.0, candidate=0.8, constant=0.5) -> Comparison:
    return Comparison(metric, 1000, candidate, constant, current=candidate, gain=gain, bound=bound)


CONFIG = RunConfig(name="a", recipe="flights")  # tolerance .001, reference_tolerance .005


@pytest.mark.parametrize(
    ("floors", "reference", "code", "reason"),
    [
        ({"y": compared()}, {}, PROMOTED, None),
        ({"y": compared(bound=-0.0009)}, {}, PROMOTED, None),
        ({"y": compared(bound=-0.0011)}, {}, KEPT, "The lower bound of the gain is not above -0.001."),
        ({"y": compared(), "z": compared(bound=-0.1)}, {}, KEPT, "Target 'z': The lower bound"),
        ({"y": compared(), "z": compared(candidate=0.4)}, {}, KEPT, "Target 'z': It is no better than a constant"),
        ({"y": compared()}, {"y": compared(bound=-0.0049)}, PROMOTED, None),
        ({"y": compared()}, {"y": compared(bound=-0.0051)}, KEPT, "small losses have added up"),
        # A target in millions, and one in millionths: a tolerance in its own unit lets none through, or any.
        ({"y": compared("RMSE", bound=-900.0, candidate=5e5, constant=1e6)}, {}, PROMOTED, None),
        ({"y": compared("RMSE", bound=-0.0012346, candidate=0.5, constant=1.23452)}, {}, KEPT, "above -0.0012345."),
        ({"y": compared("RMSE", bound=-1100.0, candidate=5e5, constant=1e6)}, {}, KEPT, "is not above -1000."),
        ({"y": compared("RMSE", bound=-2e-7, candidate=5e-7, constant=1e-6)}, {}, KEPT, "is not above -1e-09."),
        ({"y": compared("log loss", bound=-0.0005, candidate=0.005, constant=0.01)}, {}, KEPT, "above -1e-05."),
    ],
)
def test_every_target_and_the_reference_must_hold(floors, reference, code, reason):
    outcome = judge(CONFIG, Judged(1000, floors, reference), CANDIDATE, first=False)
    assert outcome.code == code
    assert outcome.reasons == () if reason is None else reason in outcome.reasons[0]
    assert reason is None or reason in outcome.text


@pytest.mark.parametrize(
    ("found", "reference", "said"),
    [
        (
            Comparison("AUC", 1000, 0.77811, 0.5, 0.7781, gain=1e-5, bound=-2e-4), {},
            "AUC 0.77811 against 0.7781 on 1,000 rows that neither model has seen; gain +1e-05, lower bound -0.0002, ",
        ),
        (
            Comparison("AUC", 1000, 0.7, 0.5, 0.71, gain=-0.01, bound=-0.001004), {},
            "gain -0.01, lower bound -0.001004, tolerance 0.001. The lower bound of the gain is not above -0.001.",
        ),
        (
            Comparison("RMSE", 1000, 12345.67, 20000.0, 12345.68, gain=0.01, bound=0.002), {},
            "RMSE 12345.67 against 12345.68 on",
        ),
        (
            Comparison("RMSE", 1000, 1.0, 2.0, math.inf, gain=1e300, bound=-0.0), {},
            "gain no number, lower bound +0, tolerance",
        ),
        (
            compared(), {"y": Comparison("AUC", 1000, 0.8, 0.5, 0.80001, gain=-1e-5, bound=-0.00501)},
            "the AUC is 0.8 to 0.80001; the lower bound of the gain, -0.00501, is not above -0.005: small losses",
        ),
        (  # A night said that losses had added up where the new model was the better one, on few rows.
            compared(), {"y": Comparison("AUC", 1000, 0.8050, 0.5, 0.8, gain=0.005, bound=-0.0067)},
            "the AUC is 0.805 to 0.8; the lower bound of the gain, -0.0067, is not above -0.005: so few rows do not",
        ),
    ],
)  # fmt: skip
def test_numbers_that_decide_are_told_apart(found, reference, said):
    """A night said that 0.7781 stood against 0.7781, and -0.0010 was not above -0.001."""
    assert said in judge(CONFIG, Judged(1000, {"y": found}, reference), CANDIDATE, first=False).text


def test_a_first_model_must_beat_the_constant_of_every_target():
    judged = Judged(1000, {"y": Floor("AUC", 1000, 0.8, 0.5), "z": Floor("RMSE", 1000, 2.0, 1.9)})
    outcome = judge(CONFIG, judged, CANDIDATE, first=True)
    assert outcome.code == KEPT
    assert "Target 'z': It is no better than a constant prediction (RMSE 1.9)" in outcome.text


@given(st.lists(st.floats(-0.002, 0.002), min_size=1, max_size=80), st.integers(2, 10))
def test_with_a_reference_small_losses_never_add_up(steps, number):
    """The true quality of each champion, with bounds that know it: over so many nights it never falls by more than the
    reference's tolerance and that of one night."""
    settings, history, quality = CONFIG.nightly, [0.8], 0.8
    for step in steps:
        reference = history[-number:][0]
        new = quality + step
        floors = {"y": compared(bound=new - quality, candidate=new)}
        referred = {"y": compared(bound=new - reference, candidate=new)}
        if judge(CONFIG, Judged(1000, floors, referred), CANDIDATE, first=False).code == PROMOTED:
            quality = new
        history.append(quality)
    for place, before in enumerate(history[:-1]):
        assert min(history[place + 1 : place + 1 + number]) > before - settings.reference_tolerance - 1e-12


def test_the_reference_is_what_was_current_so_many_decided_nights_ago(tmp_path):
    home = tmp_path / "a"
    for name in "abcde":
        (home / name).mkdir(parents=True)
    os.symlink("e", home / "current")
    decided = [("a", 0), ("b", 0), ("b", 10), ("b", 20), ("b", 40), ("c", 0), ("d", 0), ("e", 0)]
    assert reference_of(home, 3) is None  # no night yet
    for name, code in decided:
        append_record(home, "nightly", code, "", name if code == PROMOTED else "new", champion=name)
        append_record(
            home, "nightly", KEPT, "Kept: nothing new.", None, champion=name
        )  # learned nothing: no such night
        append_record(home, "nightly", KEPT, "Kept: nothing changed.", name, champion=name)
    append_record(home, "train", 0, "", "x", champion="x")
    assert champions(home, 100) == ["a", "b", "b", "c", "d", "e"]
    assert [reference_of(home, number).name for number in (2, 3, 4, 5, 6, 100)] == ["d", "c", "b", "b", "a", "a"]
    assert reference_of(home, 1) is None  # the current one
    assert reference_of(home, None) is None
    (home / "a").rmdir()
    assert reference_of(home, 100).name == "b"
    keep_champions(home, 4)
    assert sorted(os.listdir(home / ".champions")) == ["b", "c", "d", "e"]
    keep_champions(home, 2)
    assert {link: os.readlink(home / ".champions" / link) for link in os.listdir(home / ".champions")} == {
        "d": "../d", "e": "../e"
    }  # fmt: skip
    keep_champions(home, None)
    assert os.listdir(home / ".champions") == []


def test_nights_that_come_to_the_same_run_again_are_one(finished):
    """An hourly timer counted a model that was kept out each hour until the next file came: the reference of 30 nights
    ago was one of 30 hours ago, and every thirtieth hour trained a new model on all rows."""
    first = (finished.home / "current").resolve().name
    kept = [*WARM, "nightly.tolerance=0", "nightly.confidence=0.999", "train.lr_max=1e-9"]
    for day in (1, 2):
        write_day(finished.raw, day, 600)
        for _ in range(2):
            assert run_nightly(finished.config, kept) == KEPT, nights(finished)[-1]["decision"]
        assert nights(finished)[-1]["run"] == nights(finished)[-2]["run"] != first
        assert warm_nights(finished.home) == day
        assert champions(finished.home, 100) == [first] * day


def test_no_reference_is_older_than_what_a_person_promoted(tmp_path, caplog):
    """Nights were kept out for a loss that a person had accepted, until the model of before was too old to compare."""
    home = tmp_path / "a"
    for name in "abcd":
        (home / name).mkdir(parents=True)
    for name in "ab":
        append_record(home, "nightly", PROMOTED, "", name, champion=name)
    keep_champions(home, 30)
    append_record(home, "promote", 0, "Promoted by hand: c is current, b was it before.", "c")
    os.symlink("c", home / "current")
    assert reference_of(home, 30) is None
    assert caplog.text == ""
    append_record(home, "nightly", KEPT, "", "new", champion="c")
    (home / "current").unlink()
    os.symlink("d", home / "current")
    append_record(home, "nightly", PROMOTED, "", "d", champion="d")
    append_record(home, "promote", 0, "Promoted by hand: b, which is rolled back since.", "b")
    (home / "promoted").mkdir()
    (home / "promoted" / "blocked.json").write_text('{"b": {"at": "2026-11-28"}}')
    assert champions(home, 30) == ["c", "c", "d"]
    assert reference_of(home, 30).name == "c"
    assert reference_of(home, 1) is None


def test_a_record_that_is_lost_is_said_as_no_reference_can_be_found(tmp_path, caplog):
    """It was silent: from then on small losses could add up."""
    home = tmp_path / "a"
    for name in "ab":
        (home / name).mkdir(parents=True)
        append_record(home, "nightly", PROMOTED, "", name, champion=name)
    os.symlink("b", home / "current")
    assert reference_of(home, 2).name == "a"
    keep_champions(home, 2)
    assert caplog.text == ""
    (home / "nightly.jsonl").write_text("")
    assert reference_of(home, 2) is None
    assert "nightly.jsonl: no line tells of the nights that .champions was kept for: no reference" in caplog.text


@pytest.mark.parametrize("promoted_every", [1, 3])
def test_one_run_in_five_nights_is_kept_for_a_reference_of_25_to_30_nights(tmp_path, promoted_every):
    """All thirty were kept, whatever `nightly.keep.runs` said."""
    home, kept, links = tmp_path / "a", 4, set()
    for night in range(100):
        champion = f"r{night - night % promoted_every:03}"
        (home / champion).mkdir(parents=True, exist_ok=True)
        run = f"r{night:03}"
        append_record(home, "nightly", PROMOTED if champion == run else KEPT, "", run, champion=champion)
        keep_champions(home, 30)
        before, links = links, set(os.listdir(home / ".champions"))
        assert all(night - int(name[1:]) > 29 for name in before - links)  # none goes before its time
        for path in sorted(home.glob("r*"))[:-kept]:
            if path.name not in links:
                path.rmdir()
        os.symlink(champion, home / "new")
        os.replace(home / "new", home / "current")
        if night >= 30:
            age = night - int(reference_of(home, 30).name[1:])
            assert 25 <= age < 30 + promoted_every
            assert len(links) <= 7


@pytest.mark.parametrize("name", ["x" * 300, "../a", "..", 5, ["a"], "\ud800", "a\0b"])
def test_a_line_that_names_no_run_is_no_champion(tmp_path, name):
    """Of a line that was torn or edited; the night, and what keeps the references, goes on with the others."""
    home = tmp_path / "a"
    (home / "b").mkdir(parents=True)
    os.symlink("c", home / "current")
    for champion in (name, "b"):
        append_record(home, "nightly", 0, "", "b", champion=champion)
    assert reference_of(home, 2) == home / "b"
    keep_champions(home, 2)
    assert os.listdir(home / ".champions") == ["b"]


def test_a_night_whose_start_is_rolled_back_while_it_trains_is_kept_out(finished, monkeypatch):
    """Its weights go on from those that a person has just taken back."""
    wide = [
        "nightly.tolerance=1", "nightly.reference_tolerance=1", "nightly.start=warm", "train.epochs=1",
        "nightly.max_skill_drop=10",
    ]  # fmt: skip
    first = (finished.home / "current").resolve().name
    write_day(finished.raw, 1, 600)
    assert run_nightly(finished.config, wide) == PROMOTED
    second = (finished.home / "current").resolve().name
    write_day(finished.raw, 2, 600)
    publish = Encoded.publish

    def rolled_back(self, *args, **options):
        rollback(load_config(finished.config))
        return publish(self, *args, **options)

    monkeypatch.setattr(Encoded, "publish", rolled_back)
    assert run_nightly(finished.config, wide) == KEPT
    night = nights(finished)[-1]
    assert night["start"]["why"] == f"from {second}"
    assert (night["champion"], (finished.home / "current").resolve().name) == (first, first)
    assert f"goes on from a run that may not be promoted: run {second}" in night["decision"]


def test_a_warm_night_goes_on_from_a_current_run_that_lies_elsewhere(finished):
    """`current` was set by hand to a run of another folder: a backup, or the runs of another machine."""
    first = (finished.home / "current").resolve()
    outside = first.rename(finished.folder / "backup")
    (finished.home / "current").unlink()
    (finished.home / "current").symlink_to(outside)
    write_day(finished.raw, 1, 600)
    assert run_nightly(finished.config, ["nightly.tolerance=1", "nightly.start=warm"]) == PROMOTED
    night = nights(finished)[-1]
    assert (night["start"]["how"], night["window"]["new"]) == ("warm", 480)


@pytest.mark.parametrize(("given", "epochs"), [([], 2), (["nightly.warm_epochs=1"], 1), (["nightly.warm_epochs=3"], 3)])
def test_a_warm_night_takes_its_own_number_of_epochs(finished, given, epochs):
    """It took that of `train`, which is for new models."""
    write_day(finished.raw, 1, 600)
    run_nightly(finished.config, ["nightly.tolerance=1", *given])
    (night,) = nights(finished)
    assert night["start"]["how"] == "warm"
    assert Run(finished.home / night["run"]).summary["trained"]["epochs"] == epochs


def test_a_cold_night_takes_the_epochs_of_a_new_model(finished):
    write_day(finished.raw, 1, 600)
    run_nightly(finished.config, ["nightly.tolerance=1", "nightly.warm_epochs=1", "nightly.cold_every=1"])
    (night,) = nights(finished)
    assert night["start"]["how"] == "cold"
    assert Run(finished.home / night["run"]).summary["trained"]["epochs"] == 2


@pytest.mark.parametrize(
    ("start", "name"), [("warm", "training/optimizer.safetensors"), ("cold", "model/weights.safetensors")]
)
def test_a_damaged_current_run_is_named_before_any_work_with_what_mends_it(finished, start, name):
    """To train again, or preprocess.from=null, would not: a warm night has set that itself."""
    config = load_config(finished.config)
    first = (finished.home / "current").resolve().name
    second = finished.train("seed=2").path.name
    promote_by_hand(config, second)
    path = finished.home / second / name
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.unlink()  # it is a second name of the artifact's
    path.write_bytes(content)
    write_day(finished.raw, 1, 600)
    assert run_nightly(finished.config, [f"nightly.start={start}"]) == FAILED
    night = nights(finished)[-1]
    assert f"{second}: file {name} is not what its manifest says" in night["decision"]
    assert "gigabatch rollback" in night["decision"]
    assert "preprocess.from" not in night["decision"]
    assert list(night["steps"]) == ["begin"]
    rollback(config)
    assert (finished.home / "current").resolve().name == first
    assert run_nightly(finished.config, [f"nightly.start={start}", "nightly.tolerance=1"]) == PROMOTED


def test_a_night_compares_with_the_reference_on_the_same_rows_and_its_line_tells_all(finished):
    wide = ["nightly.tolerance=1", "nightly.reference_nights=2", "nightly.reference_tolerance=1", "train.epochs=1"]
    run_nightly(finished.config, [*wide, "nightly.start=cold"])
    first = os.readlink(finished.home / "current") and (finished.home / "current").resolve().name
    for day in (1, 2):
        write_day(finished.raw, day, 900)
        assert run_nightly(finished.config, wide) == PROMOTED
    night = nights(finished)[-1]
    assert night["reference"] == first != night["champion"] == night["run"]
    window = day_of_rows(2, 900).tail(480)
    model = load_bundle(finished.home / first / "model")
    auc = sk.roc_auc_score(window["clicked"], model.predict(window)["clicked"])
    found = night["against_reference"]["clicked"]
    assert (found["current"], found["rows"]) == (pytest.approx(auc, abs=1e-9), night["rows"])
    assert found["candidate"] == night["candidate"]
    assert list(night["steps"]) == [
        "begin", "contract", "features", "start", "encode", "train", "evaluate", "known", "compare", "store", "promote"
    ]  # fmt: skip
    assert night["steps"]["train"]["bytes"] > 0
    assert night["steps"]["train"]["seconds"] > 0
    assert night["data"]["files"] == 3
    listed = json.loads((finished.home / "manifests" / f"{night['data']['manifest']}.json").read_text())
    assert sorted(listed.values()) == sorted(file_checksum(path) for path in finished.raw.iterdir())
    assert night["data"]["new"] == {"2:day-002.csv": file_checksum(finished.raw / "day-002.csv")}
    assert night["data"]["gone"] == {}
    assert night["data"]["before"] == nights(finished)[-2]["data"]["manifest"]
    assert night["process"]["cpu_seconds"] >= sum(step["cpu_seconds"] for step in night["steps"].values()) - 0.1
    assert night["environment"]["torch"]
    assert (night["seed"], len(night["config"]), night["reasons"]) == (1, 32, [])


def test_a_step_tells_how_long_it_worked_beside_how_long_it_took():
    """On a machine that is shared, or where a disk is waited for, the clock says little of what a step costs."""
    night = nightly.Night(CONFIG, Path("runs/a"))
    with night.step("waits"):
        time.sleep(0.2)
    with night.step("works"):
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
    waits, works = night.steps["waits"], night.steps["works"]
    assert waits["seconds"] >= 0.2 > 0.1 > waits["cpu_seconds"]
    assert 0.1 <= works["cpu_seconds"] <= works["seconds"] + 0.01


def test_a_night_killed_between_its_promotion_and_its_line_is_written_down_by_the_next(finished, monkeypatch):
    before = (finished.home / "current").resolve().name
    write_day(finished.raw, 1, 600)

    def kill(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(nightly, "append_record", kill)
        with pytest.raises(Killed):
            run_nightly(finished.config, ["nightly.tolerance=1"])
    current = (finished.home / "current").resolve().name
    assert current != before
    assert (finished.home / PENDING).exists()
    assert run_nightly(finished.config, ["nightly.tolerance=1"]) == KEPT
    late, again = nights(finished)[-2:]
    assert (late["run"], late["exit_code"], late["champion"], late["metric"]) == (current, PROMOTED, current, "AUC")
    assert "Written down late" in late["decision"]
    assert (again["exit_code"], again["champion"]) == (KEPT, current)
    assert not (finished.home / PENDING).exists()


def cold_asked(finished) -> None:
    """As if tonight's decision about new files had asked for a cold night."""
    state, runs = read_state(finished.home), [(finished.home / "previous").resolve().name]
    told = {"accepted": ["day-001.csv"], "since": [], "before": {}}
    write_state(finished.home, replace(state, pending=told, cold={"far drift": runs}))


def test_a_night_that_promoted_and_was_killed_leaves_no_second_cold_night(finished, monkeypatch):
    """Its decision about files has been followed, so the next night is not told it again; its line tells the files."""
    write_day(finished.raw, 1, 600)

    def killed(*_, **__):
        cold_asked(finished)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(nightly, "append_record", killed)
        with pytest.raises(Killed):
            run_nightly(finished.config, ["nightly.tolerance=1", "nightly.cold_every=1"])
    assert run_nightly(finished.config, ["nightly.tolerance=1"]) == KEPT
    late, again = nights(finished)[-2:]
    assert read_state(finished.home).pending is None
    assert "far drift" not in str(again["files"])
    assert late["files"].keys() == again["files"].keys()
    assert late["data"]["files"] == 2
    assert late["steps"]["train"]["seconds"] > 0


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ContractError("files.json: damaged")])
def test_what_comes_after_the_line_changes_no_promotion(finished, monkeypatch, error):
    """A disk that is full, or a record of files that is damaged, when the night has promoted already."""
    write_day(finished.raw, 1, 600)

    def fail(*_):
        raise error

    monkeypatch.setattr(nightly, "finish", fail)
    assert run_nightly(finished.config, ["nightly.tolerance=1"]) == PROMOTED
    (night,) = nights(finished)
    assert (night["exit_code"], night["run"]) == (PROMOTED, (finished.home / "current").resolve().name)


@pytest.mark.parametrize("left", ["another run", "damaged", "foreign", "written"])
def test_what_a_killed_night_left_is_no_line_where_it_did_not_promote(tmp_path, left):
    home = tmp_path / "a"
    (home / "b").mkdir(parents=True)
    os.symlink("b", home / "current")
    content = {"run": "c" if left == "another run" else "b", "at": "2026-01-01", "text": "Promoted: x"}
    if left == "foreign":  # every night failed with a TypeError until somebody removed it
        content["action"] = "nightly"
    (home / PENDING).write_text("{" if left == "damaged" else json.dumps(content))
    if left == "written":
        append_record(home, "nightly", 0, "Promoted: x", "b")
    settle(home)
    assert not (home / PENDING).exists()
    text = (home / "nightly.jsonl").read_text() if left == "written" else ""
    assert text.count("Promoted") == (1 if left == "written" else 0)
    assert left == "written" or not (home / "nightly.jsonl").exists()


@pytest.mark.parametrize(("line", "lines"), [("Promoted: AUC. In quarantine: b.csv", 1), ("Promoted: before", 2)])
def test_a_line_is_written_once_though_the_clock_goes_back_meanwhile(tmp_path, line, lines):
    (tmp_path / "a").mkdir()
    os.symlink("a", tmp_path / "current")
    pending = {"run": "a", "at": "2999-01-01T00:00:00+00:00", "text": "Promoted: AUC."}
    (tmp_path / "nightly.pending.json").write_text(json.dumps(pending))
    append_record(tmp_path, "nightly", PROMOTED, line, "a", champion="a")
    assert nightly.settle(tmp_path) == ({}, "a")
    assert len((tmp_path / "nightly.jsonl").read_text().splitlines()) == lines


def test_a_folder_in_the_place_of_a_line_to_come_is_said(tmp_path):
    (tmp_path / PENDING).mkdir()
    with pytest.raises(RunError, match=r"Move it away"):
        settle(tmp_path)


def test_nights_leave_a_bounded_disk_and_never_lose_what_is_needed(finished):
    few = [
        "nightly.tolerance=1", "nightly.reference_nights=2", "nightly.reference_tolerance=1", "train.epochs=1",
        "nightly.keep.runs=1", "nightly.keep.artifacts=1", "nightly.max_skill_drop=10",
    ]  # fmt: skip
    other = finished.pipeline("name=other", "seed=7").train()  # shares the artifacts
    theirs = {path.name for path in finished.artifacts("train")}
    for day in (1, 2, 3):
        write_day(finished.raw, day, 600)
        assert run_nightly(finished.config, few) == PROMOTED
    runs = (path.parent for path in finished.home.glob("*/summary.json"))
    there = {path.name for path in runs if not path.is_symlink()}
    links = {(finished.home / name).resolve().name for name in ("current", "previous", "latest")}
    assert there == links | set(champions(finished.home, 2))
    assert reference_of(finished.home, 2) is not None
    assert (len(theirs), len(finished.artifacts("train"))) == (2, 2)  # at the end tonight's and the other's
    assert (other.path / "model" / "weights.safetensors").exists()
    rollback(load_config(finished.config))  # what it needs is there
    assert finished.hidden() == []


def test_a_night_that_ends_before_any_work_removes_nothing(finished):
    few = ["nightly.keep.artifacts=1", "nightly.keep.runs=1"]
    finished.train("seed=5", "train.epochs=1")
    there = finished.artifacts("train")
    assert run_nightly(finished.config, [*few, "nightly.notify.webhook=env:GIGABATCH_NOWHERE"]) == FAILED
    assert finished.artifacts("train") == there
    run_nightly(finished.config, few)
    assert len(finished.artifacts("train")) < len(there)


def test_young_runs_stay_and_those_of_other_names_are_not_touched(tmp_path):
    for name, age in (("a", 10), ("b", 5), ("c", 0)):
        for home in ("x", "y"):
            run = tmp_path / home / name
            run.mkdir(parents=True)
            (run / "manifest.json").write_text("{}")
            os.utime(run, (time.time() - age * 86_400,) * 2)
    removed, _ = collect_runs(tmp_path, 1, "x", younger_than_s=7 * 86_400)
    assert [path.name for path in removed] == ["a"]
    assert sorted(os.listdir(tmp_path / "y")) == ["a", "b", "c"]
    assert sorted(p.name for p in collect_runs(tmp_path, 1, "x")[0]) == ["b"]
    assert collect_artifacts(tmp_path / "nowhere", 1, "x") == ([], 0)


def test_what_the_configuration_starts_from_stays_on_the_disk(tmp_path):
    runs, artifacts = tmp_path / "runs" / "x", tmp_path / "artifacts"
    for age, name in enumerate("abcd"):
        for folder in (runs / name, artifacts / "encode" / name):
            (folder / "preprocessor").mkdir(parents=True)
            (folder / "manifest.json").write_text("{}")
            os.utime(folder, (time.time() - age * 86_400,) * 2)
            mark = artifacts / ".used" / "x" / "encode" / name
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
            os.utime(mark, (time.time() - age * 86_400,) * 2)
    config = RunConfig(
        name="x", recipe="flights", runs=runs.parent, artifacts=artifacts, train={"start_from": "d"},
        preprocess={"from": str(artifacts / "encode" / "c" / "preprocessor")},
        nightly={"keep": {"runs": 1, "artifacts": 1}},
    )  # fmt: skip
    nightly._tidy(nightly.Night(config, runs, steps={"contract": {}, "features": {}}))
    assert sorted(path.name for path in runs.iterdir() if not path.name.startswith(".")) == ["a", "d"]
    assert sorted(path.name for path in (artifacts / "encode").iterdir()) == ["a", "c"]


def test_a_format_that_cannot_be_written_fails_the_night_before_it_promotes(finished):
    before = (finished.home / "current").resolve()
    write_day(finished.raw, 1, 600)
    changed = ["nightly.tolerance=1", "nightly.export=[torch]"]
    assert run_nightly(finished.config, changed) == PROMOTED
    assert (finished.home / "current" / "export" / "model.pt2").exists()
    assert (finished.home / "current").resolve() != before
    assert main(["nightly", "--config", str(finished.config), "nightly.export=[pmml]"]) == FAILED


WARM = ["nightly.start=warm", "nightly.tolerance=1", "nightly.reference_tolerance=1", "nightly.max_skill_drop=10"]


def vocabularies(run: Path) -> dict[str, list]:
    preprocessor = load_bundle(run / "model").preprocessor
    return {name: item.values.tolist() for name, item in preprocessor.vocabularies.items()}


def test_warm_nights_go_on_from_the_current_run_and_every_third_is_cold_while_ids_never_move(finished):
    """The first run's ids are the beginning of all later ones', and scales change on the cold night alone."""
    asked = [*WARM, "nightly.cold_every=3"]
    run_nightly(finished.config, asked)
    before = (finished.home / "current").resolve()
    how = []
    for day in (1, 2, 3):
        path = write_day(finished.raw, day, 900)
        frame = pd.read_csv(path)
        frame["product"] = np.where(frame.index % 3 == 0, f"new{day}", frame["product"])
        frame["signal"] = frame["signal"] + day
        frame.to_csv(path, index=False)
        assert run_nightly(finished.config, asked) == PROMOTED
        night, after = nights(finished)[-1], (finished.home / "current").resolve()
        how.append(night["start"]["how"])
        old, new = vocabularies(before), vocabularies(after)
        assert all(new[name][: len(values)] == values for name, values in old.items())
        scales = [load_bundle(run / "model").preprocessor.scales for run in (before, after)]
        assert (scales[0] == scales[1]) == (how[-1] == "warm")
        if how[-1] == "warm":
            info = load_bundle(after / "model").info
            assert info["started_from"]["run"] == before.name
            assert night["window"]["new"] > 0
            assert night["window"]["rows"] < Run(after).summary["rows_by_split"]["train"]
        before = after
    assert how == ["warm", "warm", "cold"]
    assert run_nightly(finished.config, asked) == KEPT  # a warm one again
    assert nights(finished)[-1]["decision"].startswith("Kept: nothing new. ")
    assert "train" not in nights(finished)[-1]["steps"]


def test_a_warm_night_that_is_killed_after_its_promotion_trains_nothing_again(finished, monkeypatch):
    run_nightly(finished.config, WARM)
    write_day(finished.raw, 1, 900)

    class Killed(BaseException):
        """Like a kill."""

    def kill(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(nightly, "append_record", kill)
        with pytest.raises(Killed):
            run_nightly(finished.config, WARM)
    current = (finished.home / "current").resolve()
    assert run_nightly(finished.config, WARM) == KEPT
    late, again = nights(finished)[-2:]
    assert (late["run"], late["exit_code"], again["exit_code"]) == (current.name, PROMOTED, KEPT)
    assert (finished.home / "current").resolve() == current
    assert len([path for path in finished.home.glob("*/summary.json") if not path.parent.is_symlink()]) == 2


def test_columns_that_changed_are_refused_by_name_or_begin_anew_by_choice(finished):
    run_nightly(finished.config, WARM)
    write_day(finished.raw, 1, 900)
    changed = [*WARM, "preprocess.min_count=2"]
    assert run_nightly(finished.config, changed) == 20
    assert "min_count" in nights(finished)[-1]["decision"]
    assert "train.changed=cold" in nights(finished)[-1]["decision"]
    assert run_nightly(finished.config, [*changed, "train.changed=cold"]) == PROMOTED
    assert nights(finished)[-1]["start"]["how"] == "anew"
    assert "min_count" in nights(finished)[-1]["start"]["why"]


def test_a_model_that_changed_is_trained_cold_by_choice_and_the_line_says_so(finished):
    run_nightly(finished.config, WARM)
    write_day(finished.raw, 1, 900)
    assert run_nightly(finished.config, [*WARM, "model.layers=[4]", "train.changed=cold"]) == PROMOTED
    start = nights(finished)[-1]["start"]
    assert start["how"] == "cold"
    assert "model.layers" in start["why"]
    assert "window" not in nights(finished)[-1]


def test_what_goes_on_from_a_run_that_is_rolled_back_meanwhile_is_kept_out(finished, monkeypatch):
    first = (finished.home / "current").resolve()
    write_day(finished.raw, 1, 900)
    assert run_nightly(finished.config, WARM) == PROMOTED
    second = (finished.home / "current").resolve()
    write_day(finished.raw, 2, 900)
    fit = stages.Encoded.fit_model

    def fit_and_roll_back(encoded):
        made = fit(encoded)
        rollback(load_config(finished.config))
        return made

    monkeypatch.setattr(stages.Encoded, "fit_model", fit_and_roll_back)
    assert run_nightly(finished.config, WARM) == KEPT
    assert (finished.home / "current").resolve() == first
    said = nights(finished)[-1]["decision"]
    assert said.startswith(f"Kept: it goes on from a run that may not be promoted: run {second.name} was rolled back")


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_a_clean_up_beside_a_night_takes_nothing_that_the_night_has_built(finished, monkeypatch, start):
    """As `gigabatch gc --keep 0` beside it, between features and encode."""
    write_day(finished.raw, 3, 900)
    kept = []

    def clean_up(features):
        collect_artifacts(finished.folder / "artifacts", 0)
        kept.append(features.artifact.path.is_dir())

    monkeypatch.setattr(learning, "require_times", clean_up)
    assert run_nightly(finished.config, [*WARM, f"nightly.start={start}"]) == PROMOTED
    assert kept == [True]


@pytest.mark.parametrize(
    ("given", "how"),
    [
        ({"train": {"start_from": "current"}}, "warm"),
        ({"train": {"start_from": "current"}, "preprocess": {"from": "current"}}, "warm"),
        ({"preprocess": {"from": "current"}}, "cold"),
        ({}, "anew"),
    ],
)
def test_a_night_that_starts_as_the_configuration_says_tells_how_that_is(given, how):
    """All were told to begin anew, also those that went on from a run."""
    config = RunConfig(name="clicks", recipe="flights", nightly={"start": "cold" if how == "anew" else "warm"}, **given)
    assert tonight(config, None, None, {}) == (config, how, "as the configuration says")


def test_nights_that_kept_their_model_out_count_until_a_cold_one(tmp_path):
    def line(how, code=KEPT, run="a"):
        append_record(tmp_path, "nightly", code, "x", run, start={"how": how, "why": ""})

    assert warm_nights(tmp_path) is None
    append_record(tmp_path, "promote", 0, "by hand", "a")
    line("cold")
    assert warm_nights(tmp_path) == 0
    for run in "bcd":
        line("warm", run=run)
    line("warm", code=20)
    line("warm", run=None)  # nothing new: nothing was trained
    line("warm", code=PROMOTED, run="e")
    assert warm_nights(tmp_path) == 4
    line("anew")
    assert warm_nights(tmp_path) == 0


@pytest.fixture
def two_targets(tmp_path, monkeypatch):
    """A regression and a rare binary target, with weights, in a table with odd names."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    path, config = tmp_path / "rows.csv", tmp_path / "two.yaml"
    settings = {
        "name": "two", "recipe": "table", "runs": str(tmp_path / "runs"), "artifacts": str(tmp_path / "artifacts"),
        "device": "cpu", "engine": "pandas",
        "features": {
            "path": str(path), "continuous": ["signal", "noise"], "categorical": ["city"], "time": "at", "weight": "w",
            "targets": {"no. of €": {"task": "regression"}, "clicked": {"task": "binary"}},
        },
        "model": {"layers": [8]}, "train": {"epochs": 3, "batch_size": 64, "lr_max": 0.02},
        "evaluate": {"importance": False, "baselines": []},
        "nightly": {"min_window_rows": 10, "num_bootstrap": 50, "tolerance": 0.2},
    }  # fmt: skip
    config.write_text(json.dumps(settings))

    def write(*days: int, spoilt: str | None = None):
        frame = pd.concat([day_of_rows(day, 900) for day in days], ignore_index=True)
        frame["w"] = np.random.default_rng(1).uniform(0.5, 2, len(frame))
        frame["no. of €"] = 1e6 * (3 * frame["signal"] + frame["noise"])
        if spoilt is not None:
            frame[spoilt] = frame[spoilt].where(frame.index < len(frame) - 600, -frame[spoilt])
        frame.to_csv(path, index=False)

    return config, tmp_path / "runs" / "two", write


def test_every_target_is_measured_on_the_window_by_the_rows_weights(two_targets):
    config, home, write = two_targets
    write(0)
    assert run_nightly(config) == PROMOTED
    write(0, 1)
    assert run_nightly(config) == PROMOTED
    line = json.loads((home / "nightly.jsonl").read_text().splitlines()[-1])
    assert list(line["targets"]) == ["no. of €", "clicked"]
    assert line["targets"]["no. of €"]["metric"] == line["metric"] == "RMSE"
    window = pd.read_csv(config.parent / "rows.csv").tail(180)
    scores = load_bundle(home / "current" / "model").predict(window)
    auc = sk.roc_auc_score(window["clicked"], scores["clicked"], sample_weight=window["w"])
    assert line["targets"]["clicked"]["candidate"] == pytest.approx(auc, abs=1e-7)  # weights are float32
    value = sk.root_mean_squared_error(window["no. of €"], scores["no. of €"], sample_weight=window["w"])
    assert line["candidate"] == pytest.approx(value, rel=1e-5)


def test_a_second_target_whose_labels_are_all_alike_is_left_out_and_that_is_said(two_targets):
    config, home, write = two_targets
    write(0)
    assert run_nightly(config) == PROMOTED
    path = config.parent / "rows.csv"
    write(0, 1)
    frame = pd.read_csv(path)
    frame.loc[frame.index >= 1620, "clicked"] = 0.0
    frame.to_csv(path, index=False)
    assert run_nightly(config) == PROMOTED
    line = json.loads((home / "nightly.jsonl").read_text().splitlines()[-1])
    assert list(line.get("targets", {"no. of €": 0})) == ["no. of €"]
    assert "target 'clicked': all 180 labels" in line["left_out"][0]


@pytest.fixture
def daily(first_day):
    """A table of one file a day, whose contract was learned from six days, after its first night; what writes a day.

    Its folder has the same place in each test, as the record of files and the contract name them by it.
    """
    home, untouched = first_day
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(untouched, home, symlinks=True)

    def write(day: int, change=lambda frame: frame) -> Path:
        return write_changed(home / "days", day, change)

    return home / "daily.yaml", home / "runs" / "daily", write


def write_changed(folder: Path, day: int, change) -> Path:
    path = folder / f"day-{day:03d}.csv"
    change(day_of_rows(day, 300)).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def first_day(tmp_path_factory):
    """Where `daily` is to lie, and what it is a copy of."""
    home = tmp_path_factory.mktemp("daily") / "daily"
    folder, config = home / "days", home / "daily.yaml"
    folder.mkdir(parents=True)
    settings = {
        "name": "daily", "recipe": "table", "runs": str(home / "runs"), "artifacts": str(home / "artifacts"),
        "device": "cpu", "engine": "pandas",
        "features": {
            "path": str(folder), "continuous": ["signal", "noise"], "categorical": ["city"], "time": "at",
            "targets": {"clicked": {"task": "binary"}},
        },
        "model": {"layers": [8]}, "train": {"epochs": 3, "batch_size": 64, "lr_max": 0.02},
        "evaluate": {"importance": False, "baselines": []},
        "nightly": {
            "min_window_rows": 10, "num_bootstrap": 50, "tolerance": 1, "reference_tolerance": 1, "time_unit": "none",
            "start": "warm",
        },
    }  # fmt: skip
    config.write_text(json.dumps(settings))
    for day in range(6):
        write_changed(folder, day, lambda frame: frame)
    assert main(["contract", "--config", str(config)]) == 0
    assert run_nightly(config) == PROMOTED
    untouched = home.with_name("untouched")
    home.rename(untouched)
    return home, untouched


def last(home: Path) -> dict:
    return json.loads((home / "nightly.jsonl").read_text().splitlines()[-1])


def test_a_bad_file_is_put_aside_and_the_night_goes_on_with_the_good_one(daily):
    config, home, write = daily
    good, bad = write(6), write(7, lambda frame: frame.rename(columns={"signal": "Signal"}))
    assert run_nightly(config) == PROMOTED
    night = last(home)
    assert night["files"]["accepted"] == [str(good.resolve())]
    assert night["files"]["quarantined"] == [str(bad.resolve())]
    assert "In quarantine: day-007.csv (gigabatch contract --accept FILE" in night["decision"]
    assert any("signal" in text for text in night["files"]["warnings"])
    assert sum(Run(home / night["run"]).summary["rows_by_split"].values()) == 7 * 300
    assert sorted(read_manifest(home, night["data"]["manifest"])) == [
        f"{place}:day-{place:03d}.csv" for place in range(7)
    ]  # none of bad ones
    write(8)
    assert run_nightly(config) == PROMOTED  # told once
    assert last(home)["files"]["quarantined"] == []
    assert last(home)["data"]["files"] == 8
    assert sum(Run(home / last(home)["run"]).summary["rows_by_split"].values()) == 8 * 300


def test_a_file_that_comes_while_a_night_checks_others_is_left_to_the_next_one(daily, monkeypatch):
    """It was trained on though nobody had checked it."""
    config, home, write = daily
    write(6)
    real = nightly.refused_by
    with monkeypatch.context() as patch:
        patch.setattr(
            nightly, "refused_by", lambda decision: (write(7, lambda f: f.assign(clicked=0.0)), real(decision))[1]
        )
        assert run_nightly(config) == PROMOTED
    assert sum(Run(home / last(home)["run"]).summary["rows_by_split"].values()) == 7 * 300
    assert last(home)["data"]["files"] == 7
    assert run_nightly(config) == 20
    assert "day-007.csv" in last(home)["decision"]


@pytest.mark.parametrize("when", ["before features", "while features are made"])
def test_a_file_that_is_replaced_after_its_check_is_not_read(daily, monkeypatch, when):
    """Its rows went by the name of those that were checked, and made an artifact that was found again as theirs."""
    config, home, write = daily
    write(6)
    before = (home / "current").resolve()

    def replace_it(*_):
        write(6, lambda frame: frame.assign(clicked=1 - frame["clicked"]))

    with monkeypatch.context() as patch:
        if when == "before features":
            patch.setattr(nightly, "refused_by", replace_it)
        else:
            patch.setattr(
                stages, "write_features", lambda *given, real=stages.write_features: (replace_it(), real(*given))[1]
            )
        assert run_nightly(config) == FAILED
    assert re.search("input .*day-006.csv.* changed (since it was checked|while it was read)", last(home)["decision"])
    assert (home / "current").resolve() == before
    write(6)
    assert run_nightly(config) == PROMOTED
    assert sum(Run(home / last(home)["run"]).summary["rows_by_split"].values()) == 7 * 300


def test_a_night_of_bad_files_alone_is_refused_and_says_why(daily):
    config, home, write = daily
    before = (home / "current").resolve()
    write(6, lambda frame: frame.assign(clicked=0.0))
    assert run_nightly(config) == 20
    assert last(home)["decision"].startswith("Data refused: no new file is good. ")
    assert "clicked" in last(home)["decision"]
    assert (home / "current").resolve() == before


@pytest.mark.parametrize("way", ["taken by a person", "corrected"])
def test_a_file_that_is_good_after_a_refused_night_is_trained_on_and_is_no_more_in_quarantine(daily, way):
    """What the refused night was told is told again, but for what has changed since; such a night ended with 20, and
    named the file, until another new one came."""
    config, home, write = daily
    path = write(6, lambda frame: frame.head(100))
    assert run_nightly(config) == 20
    (reason,) = (text for text in last(home)["files"]["warnings"] if "too few rows" in text)
    if way == "corrected":
        write(6)
    else:
        assert main(["contract", "--config", str(config), "--accept", path.name]) == 0
    assert run_nightly(config) == PROMOTED
    night = last(home)
    assert (night["files"]["accepted"], night["files"]["quarantined"]) == ([str(path.resolve())], [])
    assert "In quarantine" not in night["decision"]
    assert reason not in night["files"]["warnings"]


def test_files_that_are_late_are_told_once_and_are_no_reason_to_refuse_others(daily, monkeypatch):
    """Each night of bad files said how many hours ago the newest row was, and those of all nights before it, too."""
    config, home, write = daily
    path = home / "contract.yaml"
    path.write_text(re.sub(r"freshness: \S+", "freshness: 1", re.sub(r" unit: \S+", " unit: s", path.read_text())))
    for day, later in ((6, 0), (7, 86_400), (8, 172_800)):
        write(day, lambda frame: frame.assign(clicked=0.0))
        monkeypatch.setattr(decide_module, "time", SimpleNamespace(time=lambda later=later: time.time() + later))
        assert run_nightly(config) == 20
        night = last(home)
        assert sum("are late: the newest row" in text for text in night["files"]["warnings"]) == 1
        assert "are late" not in night["decision"]
        assert not any("are late" in text for text in night["reasons"])
        assert f"day-{day:03d}.csv" in night["decision"]


def test_late_files_are_named_by_a_night_that_finds_nothing_new(daily):
    """The log and the line warned of them, and what was posted said no more than that nothing was new."""
    config, home, _ = daily
    path = home / "contract.yaml"
    path.write_text(re.sub(r"freshness: \S+", "freshness: 1", re.sub(r" unit: \S+", " unit: s", path.read_text())))
    for _ in range(2):
        assert run_nightly(config) == KEPT
        assert last(home)["decision"].startswith("Kept: nothing new.")
        assert last(home)["decision"].count("are late: the newest row is of 19") == 1
        assert main(["nightly", "--config", str(config)]) == KEPT  # as the last one


def test_old_runs_go_after_a_night_whose_files_were_refused_too(daily):
    """Weeks of refused nights removed nothing, whatever `nightly.keep` says."""
    config, home, write = daily
    for seed in (7, 8, 9):
        assert main(["train", "--config", str(config), f"seed={seed}", "train.epochs=1"]) == 0
    runs = {path.name for path in home.iterdir() if (path / "summary.json").is_file()}
    assert len(runs) >= 4
    write(6, lambda frame: frame.assign(clicked=0.0))
    assert run_nightly(config, ["nightly.keep.runs=1", "nightly.keep.artifacts=1"]) == 20
    left = {path.name for path in home.iterdir() if (path / "summary.json").is_file() and not path.is_symlink()}
    assert len(left) < len(runs)
    assert (home / "current").resolve().name in left


@pytest.mark.parametrize(("ending", "code"), [(NothingNew, KEPT), (DataError, 20), (None, PROMOTED)])
def test_every_ending_names_what_is_in_quarantine_and_the_rows_that_are_lost_by_it(daily, monkeypatch, ending, code):
    """What a webhook posts said neither, where nothing was compared."""
    config, home, write = daily
    bad = write(3, lambda frame: frame.iloc[:200])
    write(6)

    def ends(*_):
        raise ending("of this night")

    with monkeypatch.context() as patch:
        if ending is not None:
            patch.setattr(learning, "tonight", ends)
        assert run_nightly(config) == code
    decision = last(home)["decision"]
    lost = f"{bad}: the 300 rows that it was accepted with are lost, until it is corrected or accepted."
    assert decision.count("In quarantine: day-003.csv (") == decision.count(lost) == 1
    assert lost in last(home)["files"]["warnings"]


def test_a_file_in_quarantine_with_the_rows_of_one_that_is_gone_is_named_as_the_way_to_them(daily):
    config, home, write = daily
    copy, real = write(6), write(7, lambda _: day_of_rows(6, 300))
    assert run_nightly(config) == PROMOTED
    assert [Path(path).name for path in last(home)["files"]["quarantined"]] == [real.name]
    copy.unlink()
    write(8)
    assert run_nightly(config) in (PROMOTED, KEPT)
    told = (
        f"{copy}: it was accepted and is not there any more; its rows are lost. {real}, which waits in quarantine, "
        f"holds the same rows: gigabatch contract --accept {real}."
    )
    assert last(home)["decision"].count(told) == last(home)["files"]["warnings"].count(told) == 1
    assert main(["contract", "--config", str(config), "--accept", str(real)]) == 0


def test_a_night_of_bad_files_alone_is_told_once(daily):
    config, home, write = daily
    write(6, lambda frame: frame.assign(clicked=0.0))
    assert run_nightly(config) == 20
    write(7, lambda frame: frame.rename(columns={"signal": "Signal"}))
    assert run_nightly(config) == 20
    assert [Path(path).name for path in last(home)["files"]["quarantined"]] == ["day-007.csv"]
    assert "day-006" not in " ".join(last(home)["reasons"])
    assert run_nightly(config) == 10  # no new file at all
    assert last(home)["files"]["warnings"] == []


def test_each_night_says_how_many_files_wait_in_quarantine(daily, capsys):
    """The night that put one aside told it, and none after it did: its rows were missing for good."""
    config, home, write = daily
    paths = [write(day, lambda frame: frame.rename(columns={"signal": "Signal"})) for day in range(6, 13)]
    good = write(13)
    assert run_nightly(config) == PROMOTED
    assert last(home)["files"]["waiting"] == {"files": 0, "first": []}
    assert "wait in quarantine" not in last(home)["decision"]
    capsys.readouterr()
    for left in (7, 6):
        assert run_nightly(config) == KEPT
        names = [path.name for path in paths[-left:][:5]]
        assert last(home)["files"]["waiting"] == {"files": left, "first": names}
        told = f"{left} file(s) of earlier nights wait in quarantine: {', '.join(names)}, ..."
        assert told in last(home)["decision"]
        assert told in capsys.readouterr().out
        assert main(["nightly", "--config", str(config), "--dry-run"]) == 0
        assert told in capsys.readouterr().out
        paths[-left].unlink()
    for path in paths[2:]:
        path.unlink()
    paths[2].write_text(good.read_text())  # refused again, as it comes twice
    assert run_nightly(config) == 20
    assert last(home)["files"]["waiting"]["files"] == 0


def test_a_corrected_file_is_learned_by_a_cold_night_and_one_that_grew_by_a_warm_one(daily):
    """Rows that were trained on and now say something else lie where rows count as seen: no window would hold them."""
    config, home, write = daily
    write(3, lambda frame: frame.assign(signal=-frame["signal"]))
    write(6)
    run_nightly(config)
    start = last(home)["start"]
    assert start["how"] == "cold"
    assert "day-003.csv: it has changed and holds no later rows" in start["why"]
    grown = pd.concat([day_of_rows(6, 300), day_of_rows(7, 100)])
    write(6, lambda _: grown)
    run_nightly(config)
    assert last(home)["start"]["how"] == "warm"
    write(6, lambda _: grown[::-1])  # the same rows
    run_nightly(config)
    assert last(home)["start"]["how"] == "warm"


def test_nights_stay_cold_until_a_model_that_learned_the_correction_is_promoted(daily):
    """What is kept goes on from nothing: the current model still is the one of the uncorrected rows."""
    config, home, write = daily
    write(3, lambda frame: frame.assign(noise=frame["noise"] + 0.5))
    assert run_nightly(config, ["train.lr_max=1e-9", "nightly.max_skill_drop=0.01"]) == 10
    for day, how in ((6, "cold"), (7, "warm")):
        write(day)
        assert run_nightly(config) == PROMOTED
        assert last(home)["start"]["how"] == how


@pytest.mark.parametrize(
    ("reason", "back"),
    [
        ("correction", "rollback"),
        ("correction", "killed"),
        ("drift", "killed, and a night"),
        *([("correction", "promote"), ("drift", "rollback"), ("drift", "killed")] if THOROUGH else []),
    ],
)
def test_a_run_that_is_current_again_owes_the_cold_night_that_has_come_since_it_was_trained(
    daily, monkeypatch, reason, back
):
    """The first promotion forgot it: nights went on warm from weights that had learned the rows as they had been."""
    config, home, write = daily
    settings = json.loads(config.read_text())
    settings["nightly"]["max_skill_drop"] = 1
    config.write_text(json.dumps(settings))
    contract = home / "contract.yaml"
    text = contract.read_text().replace("on_drift: warn", "on_drift: cold")
    contract.write_text(re.sub(r"range: \[[^\]]*\]", "range: [-100, 100]", text))
    before = (home / "current").resolve().name
    if reason == "correction":
        write(3, lambda frame: frame.assign(noise=frame["noise"] + 0.5))
    else:
        write(6, lambda frame: frame.assign(signal=frame["signal"] + 2.0))
    if "killed" in back:
        with monkeypatch.context() as patch:
            patch.setattr(nightly, "append_record", killed)
            with pytest.raises(Killed):
                run_nightly(config)
        if "and a night" in back:
            assert run_nightly(config) == KEPT
    else:
        assert run_nightly(config) == PROMOTED
        assert last(home)["start"]["how"] == "cold"
    after = (home / "current").resolve().name
    assert after != before
    if back == "promote":
        promote_by_hand(load_config(config), before)
    else:
        rollback(load_config(config))
    write(7)
    assert run_nightly(config) in (PROMOTED, KEPT)
    start = last(home)["start"]
    assert start["how"] == "cold"
    assert {"correction": "day-003.csv: it has changed", "drift": "drift: all: column 'signal'"}[reason] in start["why"]
    if back != "killed":  # whose files have been told again by then
        promote_by_hand(load_config(config), after)  # which has learned them as they are
        write(8)
        assert run_nightly(config) == PROMOTED
        assert last(home)["start"] == {"how": "warm", "why": f"from {after}"}


def test_what_goes_on_from_a_run_owes_what_that_owes(tmp_path):
    """An update by hand is a new run, with the weights of the old rows within."""
    for name, start in (("a", None), ("b", "a"), ("c", "b"), ("d", None), ("e", "gone")):
        (tmp_path / name / "model").mkdir(parents=True)
        info = {} if start is None else {"started_from": {"run": start}}
        (tmp_path / name / "model" / "bundle.json").write_text(json.dumps({"info": info}))
    asked = {"first": ["a", "elsewhere"], "second": ["gone"]}
    assert [owed(asked, tmp_path / name) for name in "abcde"] == [["first"], ["first"], ["first"], [], ["second"]]
    assert owed(asked, None) == []


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_a_step_that_numbers_values_anew_each_night_is_refused(daily, start):
    """The current model would be judged on ids that stand for other values: at chance, whatever it is worth."""
    config, home, _ = daily
    settings = json.loads(config.read_text()) | {"name": "numbered"}
    settings["features"] |= {
        "categorical": {"number": "int64"}, "inputs": {"city": "string"},
        "steps": [{"categorify": {"column": "city", "output": "number"}}],
    }  # fmt: skip
    settings["nightly"]["start"] = start
    config.write_text(json.dumps(settings))
    assert run_nightly(config) == FAILED
    night = last(home.parent / "numbered")
    assert "nightly: categorify in features.steps numbers 'number' anew" in night["decision"]
    assert night["decision"].endswith("The current model would be judged on them.")


@pytest.mark.parametrize(("choice", "code"), [("refuse", 30), ("cold", PROMOTED), ("warn", PROMOTED)])
def test_drift_is_warned_of_refused_or_answered_by_a_cold_night(daily, choice, code):
    config, home, write = daily
    path = home / "contract.yaml"
    text = path.read_text()
    assert "on_drift: warn" in text
    text = text.replace("on_drift: warn", f"on_drift: {choice}")
    path.write_text(re.sub(r"range: \[[^\]]*\]", "range: [-100, 100]", text))
    settings = json.loads(config.read_text())
    settings["nightly"]["max_skill_drop"] = 1  # how well the night does depends on how the processor rounds
    config.write_text(json.dumps(settings))
    write(6, lambda frame: frame.assign(signal=frame["signal"] + 2.0))
    assert run_nightly(config) == code
    night = last(home)
    assert night["files"]["drift"]["all"]["signal"] == "drift"
    if choice == "refuse":
        assert night["decision"].startswith("Drift refused: drift: all: column 'signal'")
    else:
        assert night["start"]["how"] == {"cold": "cold", "warn": "warm"}[choice]


def test_a_night_killed_after_its_files_were_decided_is_told_of_them_again(daily, monkeypatch):
    config, home, write = daily
    write(6)
    bad = write(7, lambda frame: frame.rename(columns={"signal": "Signal"}))
    with monkeypatch.context() as patch:
        patch.setattr(learning, "tonight", lambda *_: 1 / 0)
        assert run_nightly(config) == FAILED
    assert run_nightly(config) == PROMOTED
    assert last(home)["files"]["quarantined"] == [str(bad.resolve())]
    assert "In quarantine: day-007.csv" in last(home)["decision"]


@pytest.mark.parametrize("end", ["failed", "stopped"])
def test_a_night_that_carries_on_logs_the_drift_and_the_new_files_of_the_one_before(daily, monkeypatch, end):
    """Its line had no drift and no new file, as if the rows that it trained on had come with another night."""
    config, home, write = daily
    path = home / "contract.yaml"
    path.write_text(re.sub(r"range: \[[^\]]*\]", "range: [-100, 100]", path.read_text()))
    far = write(6, lambda frame: frame.assign(signal=frame["signal"] + 2.0))
    with monkeypatch.context() as patch:
        if end == "failed":
            patch.setattr(learning, "tonight", lambda *_: 1 / 0)
            assert run_nightly(config) == FAILED
        else:
            patch.setattr(learning, "tonight", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
            assert main(["nightly", "--config", str(config)]) == 143
    broken = last(home)
    assert broken["files"]["drift"]["all"]["signal"] == "drift"
    near = write(7)
    run_nightly(config)
    night = last(home)
    assert night["exit_code"] in (PROMOTED, KEPT)
    assert night["files"]["drift"]["all"]["signal"] == "drift"
    assert set(night["data"]["new"]) == {f"6:{far.name}", f"7:{near.name}"}
    page = (home / "nightly.html").read_text()
    assert "600 new rows against 1,800 accepted before" in page
    run_nightly(config)
    assert (last(home)["files"]["drift"], last(home)["data"]["new"]) == ({}, {})
