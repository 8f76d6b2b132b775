"""gigabatch nightly --dry-run: what it says is held against what the night then does, and that it changes no run."""

import json
import os
from pathlib import Path

import pytest

from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import load_config
from gigabatch.pipeline.contract.decide import accept, contract_path, learn_contract
from gigabatch.pipeline.nightly.nightly import PENDING, run_nightly
from gigabatch.pipeline.runs.promote import rollback
from gigabatch.pipeline.store.locks import folder_lock
from tests.pipeline.contract.conftest import Shop, shop_day
from tests.pipeline.tiny_recipe import day_of_rows, write_day

WARM = "nightly.start=warm"


def rehearsed(capsys, config: Path, *overrides: str) -> dict:
    """What --dry-run --json prints; its exit code is the one that it tells."""
    capsys.readouterr()
    code = main(["-q", "nightly", "--dry-run", "--json", "--config", str(config), *overrides])
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == code
    return told


def tree(home: Path) -> dict[str, tuple]:
    """Every file and link below, with its bytes and the time of its last change."""
    return {
        str(path.relative_to(home)): (os.readlink(path) if path.is_symlink() else path.stat().st_mtime_ns)
        for path in sorted(home.rglob("*"))
    }


def last_line(home: Path) -> dict:
    return json.loads((home / "nightly.jsonl").read_text().splitlines()[-1])


def test_a_model_that_is_trained_cold_by_choice_is_foretold(finished, capsys):
    overrides = ["nightly.start=warm", "nightly.tolerance=1", "model.layers=[4]", "train.changed=cold"]
    write_day(finished.raw, 1, 1500)
    told = rehearsed(capsys, finished.config, *overrides)
    run_nightly(finished.config, overrides)
    assert told["start"] == last_line(finished.home)["start"]
    assert told["start"]["how"] == "cold"
    assert told["verdict"].startswith("Tonight trains cold on ")


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_what_it_says_of_a_night_is_what_the_night_does(finished, capsys, start):
    overrides = [f"nightly.start={start}", "nightly.tolerance=1", "nightly.keep.runs=1", "nightly.keep.artifacts=1"]
    write_day(finished.raw, 1, 1500)
    assert run_nightly(finished.config, overrides) == 0  # so that there are a previous run and old artifacts
    write_day(finished.raw, 2, 1500)
    before, made = tree(finished.home), {stage: len(finished.artifacts(stage)) for stage in ("encode", "train")}
    told = rehearsed(capsys, finished.config, *overrides)
    assert tree(finished.home) == before
    assert {stage: len(finished.artifacts(stage)) for stage in made} == made
    assert told["exit_code"] == 0
    assert told["stages"] == {
        "features": "made by this rehearsal", "encode": "to be made", "train": "to be made", "evaluate": "to be made"
    }  # fmt: skip
    there = {path.name for path in finished.home.iterdir() if (path / "manifest.json").is_file()}
    stores = {f"{stage.name}/{path.name}" for stage in (finished.folder / "artifacts").glob("[a-z]*/")
              if not stage.name.startswith(".") for path in stage.iterdir()}  # fmt: skip
    assert run_nightly(finished.config, overrides) == 0
    line = last_line(finished.home)
    assert line["steps"]["features"]["skipped"]  # the night found what the rehearsal had made
    assert told["start"] == line["start"]
    assert told["rows"].get("window") == line.get("window")
    assert told["rows"]["compared"] == line["rows"] == 600  # the last tenth of 6,000 rows
    assert told["rows"]["trained"] == (line["window"]["rows"] if start == "warm" else 4800)
    assert (told["current"], told["reference"]) == (line["current"] and told["current"], line["reference"])
    gone = there - {path.name for path in finished.home.iterdir()}
    left = {f"{stage}/{path.name}" for stage in ("features", "encode", "train", "evaluate", "parsed", "window")
            for path in finished.artifacts(stage)}  # fmt: skip
    assert set(told["removed"]["runs"]) == gone
    assert gone
    removed = {name for name in stores - left if not name.startswith("checkpoints")}
    assert set(told["removed"]["artifacts"]) == removed
    assert {"encode", "train", "features"} <= {name.partition("/")[0] for name in removed}


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["nightly.start=cold"], "its weights are those of the current run"),
        ([], "nothing new. train.window: no row of the train split is later"),
    ],
)
def test_a_night_with_nothing_new_is_kept(finished, capsys, overrides, reason):
    told = rehearsed(capsys, finished.config, *overrides)
    assert told["verdict"].startswith(f"Tonight would be kept (exit code 10): {reason}")
    assert told["exit_code"] == 0
    assert told["rows"]["trained"] == (2400 if overrides else 0)
    assert run_nightly(finished.config, overrides) == 10
    skipped = last_line(finished.home)["steps"]["encode"]["skipped"]
    assert told["stages"]["encode"] == ("there" if skipped else "to be made")


def test_weights_that_were_rolled_back_are_kept_out(finished, capsys):
    write_day(finished.raw, 1, 600)
    assert run_nightly(finished.config, ["nightly.tolerance=1"]) == 0
    second = (finished.home / "current").resolve().name
    rollback(load_config(finished.config))
    told = rehearsed(capsys, finished.config, "nightly.tolerance=1")
    assert told["verdict"].endswith(f"its weights are those of run {second}, which was rolled back.")
    assert run_nightly(finished.config, ["nightly.tolerance=1"]) == 10


def test_what_a_start_that_does_not_fit_makes_of_tonight_is_known_before_it(finished, capsys):
    write_day(finished.raw, 1, 1500)
    overrides = [WARM, "model.layers=[8]"]
    told = rehearsed(capsys, finished.config, *overrides)
    assert told["exit_code"] == 40 == run_nightly(finished.config, overrides)
    assert "model.layers (16,), now (8,)" in told["verdict"]
    assert told["verdict"].removeprefix("Tonight would fail: ") in last_line(finished.home)["decision"]


def test_too_few_new_rows_are_known_before_the_training(finished, capsys):
    write_day(finished.raw, 1, 300)
    overrides = ["nightly.min_window_rows=1000"]
    told = rehearsed(capsys, finished.config, *overrides)
    assert told["exit_code"] == 20 == run_nightly(finished.config, overrides)
    assert "only 330 labelled rows come after" in told["verdict"]
    assert "only 330 labelled rows come after" in last_line(finished.home)["decision"]


def test_rows_of_tomorrow_are_refused(finished, capsys):
    day_of_rows(1, 600).assign(at=lambda rows: rows["at"] + 10**12).to_csv(finished.raw / "day-001.csv", index=False)
    told = rehearsed(capsys, finished.config, "nightly.time_unit=s")
    assert told["exit_code"] == 20 == run_nightly(finished.config, ["nightly.time_unit=s"])
    assert "lie after now" in told["verdict"]


def test_before_the_first_night_no_folder_is_made(tiny, capsys):
    told = rehearsed(capsys, tiny.config)
    assert (told["exit_code"], told["current"], told["start"]["how"]) == (0, None, "anew")
    assert told["rows"]["compared"] == 300
    assert not tiny.home.exists()


def test_a_night_that_runs_is_named_and_has_no_second_line(finished, capsys):
    run_nightly(finished.config)
    with folder_lock(finished.home / "nightly.lock"):
        before = tree(finished.home)
        told = rehearsed(capsys, finished.config)
        assert tree(finished.home) == before
    assert told["exit_code"] == 40
    assert f"A nightly job is running (pid {os.getpid()} since " in told["verdict"]
    assert told["current"] == (finished.home / "current").resolve().name
    assert "running" not in rehearsed(capsys, finished.config)["verdict"]  # the lock's file stays, and is nobody's


def test_a_mistake_is_told_and_not_recorded(finished, capsys):
    before = tree(finished.home)
    assert main(["nightly", "--dry-run", "--config", str(finished.config), "train.no_such=1"]) == 40
    assert "no_such" in capsys.readouterr().err
    assert main(["nightly", "--json", "--config", str(finished.config)]) == 2
    assert "--json goes with --dry-run" in capsys.readouterr().err
    assert rehearsed(capsys, finished.config, "nightly.notify.webhook=env:NO_SUCH_VARIABLE")["exit_code"] == 40
    (finished.home / PENDING).write_text("{}")
    notes = rehearsed(capsys, finished.config, "nightly.notify.command=[/no/such/program]")["notes"]
    assert "/no/such/program is no program that can be started; nobody is told." in notes[1]
    assert "tonight writes its line first" in notes[0]
    (finished.home / PENDING).unlink()
    assert tree(finished.home) == before


def test_a_person_reads_tables_and_sentences(finished, capsys):
    write_day(finished.raw, 1, 1500)
    assert main(["-q", "nightly", "--dry-run", "--config", str(finished.config), WARM]) == 0
    text = capsys.readouterr().out
    for words in (
        "Tonight, tiny",
        "start",
        "warm: from ",
        "window, new",
        "encode artifact",
        "removed",
        "compares on 450",
    ):
        assert words in text


@pytest.fixture
def shop(tmp_path):
    """Six days of a shop, a contract learned from them, and the configuration as a file."""
    made = Shop(tmp_path)
    config = made.config()
    settings = config.to_dict() | {"nightly": {"min_window_rows": 100, "num_bootstrap": 100}}
    settings |= {"train": {"epochs": 1, "batch_size": 256}, "model": {"layers": [8]}}
    settings |= {"evaluate": {"importance": False, "baselines": []}}
    made.path = tmp_path / "shop.yaml"
    made.path.write_text(json.dumps(settings, default=str))
    made.home = tmp_path / "runs" / "shop"
    learn_contract(load_config(made.path))
    return made


def moved(day):
    """Half of the rows of the largest city now come from the smallest."""
    from_oslo = day["city"].eq("Oslo") & (day.index % 2 == 0)
    return day.assign(city=day["city"].mask(from_oslo, "Lima"))


def edit(shop, **settings) -> None:
    path = contract_path(load_config(shop.path))
    text = path.read_text()
    for name, value in settings.items():
        lines = [line for line in text.splitlines() if line.startswith(f"{name}: ")]
        assert len(lines) == 1
        text = text.replace(lines[0], f"{name}: {value}")
    path.write_text(text)


def test_files_and_drift_are_told_by_the_contract_and_nothing_is_decided(shop, capsys):
    shop.write(6, moved(shop_day(6)))
    shop.write(7, shop_day(7).drop(columns="city"))
    before = tree(shop.home)
    told = rehearsed(capsys, shop.path)
    assert tree(shop.home) == before
    assert [(Path(entry["file"]).name, entry["verdict"], entry["rows"]) for entry in told["files"]] == [
        ("day-006.csv", "accepted", 2000), ("day-007.csv", "quarantined", None)
    ]  # fmt: skip
    assert "'city'" in " ".join(told["files"][1]["why"])
    assert ("city", "psi", "drift") in [
        (entry["column"], entry["measure"], entry["verdict"]) for entry in told["drift"]
    ]
    assert sum(told["rows"][split] for split in ("train", "valid", "test")) == 7 * 2000
    code = run_nightly(shop.path)
    line = last_line(shop.home)
    assert code in (0, 10), line
    assert line["steps"]["features"]["skipped"]
    assert [Path(path).name for path in line["files"]["quarantined"]] == ["day-007.csv"]
    assert told["rows"]["compared"] == line["rows"]
    assert rehearsed(capsys, shop.path)["files"] == []  # they have been decided about


@pytest.mark.parametrize(
    ("settings", "code"), [({"on_drift": "refuse"}, 30), ({"on_bad_file": "refuse"}, 20)], ids=["drift", "file"]
)
def test_what_the_contract_would_refuse_ends_in_its_exit_code(shop, capsys, settings, code):
    shop.write(6, moved(shop_day(6)) if code == 30 else shop_day(6).drop(columns="city"))
    edit(shop, **settings)
    before = tree(shop.home)
    told = rehearsed(capsys, shop.path)
    assert tree(shop.home) == before
    assert told["exit_code"] == code == run_nightly(shop.path)
    assert told["verdict"] == " ".join(last_line(shop.home)["decision"].split())


def test_drift_of_a_file_that_a_person_accepted_is_told_by_the_line_the_text_and_the_page(shop, capsys):
    taken = shop.write(6, moved(shop_day(6)))
    accept(load_config(shop.path), str(taken))
    edit(shop, on_drift="refuse")
    told = rehearsed(capsys, shop.path)
    assert told["exit_code"] == 0
    measures = [(entry["column"], entry["measure"], entry["verdict"]) for entry in told["drift"]]
    assert ("city", "psi", "drift") in measures
    assert run_nightly(shop.path) in (0, 10)
    line = last_line(shop.home)
    assert line["files"]["drift"]["all"]["city"] == "drift"
    (urgent,) = (text for text in told["notes"] if "accepted by a person" in text)
    assert urgent in line["files"]["warnings"]
    assert urgent in line["decision"]
    assert "day-006.csv" in urgent
    assert "column 'city': psi" in urgent
    assert "2,000 new rows against 12,000 accepted before" in (shop.home / "nightly.html").read_text()
