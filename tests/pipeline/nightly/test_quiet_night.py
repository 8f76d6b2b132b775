"""A night that finds nothing new, as the last one did, ends without torch; any other is a whole night."""

import errno
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import load_config
from gigabatch.pipeline.contract.decide import accept, check_new, decide, finish
from gigabatch.pipeline.nightly.nightly import NOTHING_NEW, PENDING, quiet_night, run_nightly
from gigabatch.pipeline.nightly.plan import rehearse
from gigabatch.pipeline.nightly.rehearsal import quiet_rehearsal
from tests.pipeline.clicks import SETTINGS, in_a_process

OF_DAYS = SETTINGS["features"] | {
    "path": "days/day-*.csv",
    "time": "at",
    "split": {"valid_rows": 100, "test_rows": 300},
}
DAY_0 = 1_767_225_600  # 1 January 2026


def write_day(day: int) -> None:
    rows = "".join(
        f"{('Oslo', 'Bonn', 'Rome')[row % 3]},{row % 17},{DAY_0 + day * 86_400 + row},{(row + row // 7) % 2}\n"
        for row in range(200)
    )
    Path("days", f"day-{day:02d}.csv").write_text(f"city,price,at,clicked\n{rows}")


def nights(home: Path) -> list[dict]:
    lines = map(json.loads, (home / "nightly.jsonl").read_text().splitlines())
    return [line for line in lines if line["action"] == "nightly"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder in which a night has found nothing new."""
    folder = tmp_path_factory.mktemp("clicks")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "days").mkdir()
        for day in range(5):
            write_day(day)
        Path("clicks.yaml").write_text(
            json.dumps(SETTINGS | {"features": SETTINGS["features"] | OF_DAYS})
        )  # JSON is YAML
        assert main(["train", "--config", "clicks.yaml"]) == 0
        assert main(["contract", "--config", "clicks.yaml"]) == 0
        assert [run_nightly("clicks.yaml"), run_nightly("clicks.yaml")] == [10, 10]  # both whole
    night = nights(folder / "runs" / "clicks")[-1]
    assert night["decision"].startswith("Kept: nothing new. ")
    assert NOTHING_NEW in night
    return folder


@pytest.fixture
def home(kept, tmp_path, monkeypatch):
    """`runs/<name>` of a copy of `kept`, which is the working folder."""
    copy = tmp_path / "copy"
    shutil.copytree(kept, copy, symlinks=True)
    monkeypatch.chdir(copy)
    return copy / "runs" / "clicks"


def test_a_rehearsal_of_such_a_night_tells_as_the_whole_one_without_torch(home):
    """It loaded torch, whatever it found."""
    whole = asdict(rehearse(load_config("clicks.yaml")))
    lines = (home / "nightly.jsonl").read_text()
    line = ("nightly", "--dry-run", "--json", "--config", "clicks.yaml")
    code, printed, error, imported = in_a_process(*line, heavy=("torch", "pandas", "numba", "dask", "sklearn"))
    assert (code, imported) == (0, "[]"), error
    told = json.loads(printed)
    assert told["verdict"].startswith("Tonight would be kept (exit code 10): nothing new. ")
    assert (whole["stages"].pop("encode"), told["stages"].pop("encode")) == ("there", "not needed")
    assert told == whole
    assert (home / "nightly.jsonl").read_text() == lines
    write_day(5)
    assert quiet_rehearsal("clicks.yaml") is None


def test_a_night_as_the_last_one_is_told_as_that_was_without_torch(home):
    pages = set((home / "nights").iterdir())
    heavy = ("torch", "pandas", "numba", "dask", "sklearn")  # its page takes the others
    code, printed, error, imported = in_a_process("nightly", "--config", "clicks.yaml", heavy=heavy)
    assert (code, imported) == (10, "[]"), error
    _, first, second = nights(home)
    assert printed.splitlines() == [first["decision"]]
    own = {"at", "steps", "process"}
    assert {name: value for name, value in second.items() if name not in own} == {
        name: value for name, value in first.items() if name not in own
    }
    assert second["at"] >= first["at"]
    (page,) = set((home / "nights").iterdir()) - pages
    assert "nothing new. train.window: no row of the train split" in page.read_text()
    assert f'href="nights/{page.name}"' not in (home / "nightly.html").read_text()  # it is a copy of that page
    assert page.name in (home / "nights" / "index.html").read_text()


def test_nights_as_the_last_one_go_on_until_a_file_comes(home):
    assert [quiet_night("clicks.yaml"), quiet_night("clicks.yaml")] == [10, 10]
    assert len({night["decision"] for night in nights(home)}) == 1
    write_day(5)
    assert main(["nightly", "--config", "clicks.yaml", "train.epochs=1"]) in (0, 10, 20)  # by how much it has learnt
    assert nights(home)[-1]["files"]["accepted"] == [str(Path("days/day-05.csv").resolve())]
    assert NOTHING_NEW not in nights(home)[-1]


def damage_weights(home, monkeypatch):
    weights = home / "current" / "model" / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 255
    weights.resolve().unlink()  # by which the store's copy of the same inode stays whole
    weights.write_bytes(content)


def fail_retention(home, monkeypatch):
    def fails(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("gigabatch.pipeline.nightly.rehearsal.needed", fails)


def fail_at_a_file(home, monkeypatch):
    Path("days", "day-05.csv").symlink_to("/proc/self/mem")  # whose first byte gives EIO


def lose_the_start(home, monkeypatch):
    *lines, last = (home / "nightly.jsonl").read_text().splitlines()
    last = {name: value for name, value in json.loads(last).items() if name != "start"}
    (home / "nightly.jsonl").write_text("\n".join([*lines, json.dumps(last), ""]))


@pytest.mark.parametrize(
    ("broken", "code", "text"),
    [
        (damage_weights, 40, "Tonight would fail: the current model cannot be used."),
        (fail_retention, 40, "Input/output error"),
        (fail_at_a_file, 40, "Input/output error"),
        (lose_the_start, 0, "Tonight would be kept (exit code 10): nothing new."),
    ],
)
def test_what_a_quiet_rehearsal_fails_at_the_whole_one_tells(home, monkeypatch, capsys, broken, code, text):
    """Damaged weights were 0 and a kept night; the others ended in a traceback."""
    broken(home, monkeypatch)
    assert quiet_rehearsal("clicks.yaml") is None
    assert main(["nightly", "--dry-run", "--json", "--config", "clicks.yaml"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == code
    assert text in told["verdict"]


def test_a_quiet_night_at_a_disk_that_fails_has_its_line(home, monkeypatch):
    """It ended in a traceback, without a line."""
    fail_at_a_file(home, monkeypatch)
    assert quiet_night("clicks.yaml") is None
    assert main(["nightly", "--config", "clicks.yaml"]) == 40
    assert "day-05.csv: Input/output error" in nights(home)[-1]["decision"]


@pytest.mark.parametrize("quiet", [quiet_night, quiet_rehearsal])
def test_what_a_signal_breaks_is_no_whole_night(home, monkeypatch, quiet):
    def interrupted(*_):
        raise OSError(errno.EIO, "broken off") from KeyboardInterrupt()

    monkeypatch.setattr("gigabatch.pipeline.nightly.nightly.new_files", interrupted)
    with pytest.raises(OSError, match="broken off"):
        quiet("clicks.yaml")


@pytest.mark.parametrize(
    "changed",
    [
        "settings",
        "sources",
        "a file",
        "another file",
        "a killed night",
        "a file that a person took",
        "current",
        "pending",
        "a later line",
        "the lock",
        "none",
    ],
)
def test_a_night_of_anything_else_is_a_whole_one(home, monkeypatch, changed):
    overrides = []
    if changed == "settings":
        overrides = ["train.epochs=2"]
    elif changed == "sources":
        monkeypatch.setattr("gigabatch.pipeline.stages.asked.source_hash", lambda modules: "other sources")
    elif changed == "a file":
        write_day(5)
    elif changed == "another file":
        day = Path("days", "day-01.csv")
        day.write_text(day.read_text().replace("Rome", "Bern"))
    elif changed == "a killed night":  # after it had put a file into quarantine
        Path("days", "day-05.csv").write_text("city,price,at\nBonn,1,1767700000\n")
        config = load_config("clicks.yaml", whole="features")
        assert decide(config, check_new(config)).quarantined
    elif changed == "a file that a person took":  # which the whole night measures, and no other
        Path("days", "day-05.csv").write_text(Path("days", "day-04.csv").read_text())
        config = load_config("clicks.yaml", whole="features")
        assert decide(config, check_new(config)).quarantined
        finish(config)
        accept(config, "day-05.csv")
    elif changed == "current":
        manifest = home / "current" / "manifest.json"
        manifest.write_text(manifest.read_text() + " ")
    elif changed == "pending":
        (home / PENDING).write_text("{}")
    elif changed == "a later line":
        with open(home / "nightly.jsonl", "a") as file:
            file.write(
                json.dumps({"at": "2026-01-09", "action": "nightly", "exit_code": 40, "decision": "Failed"}) + "\n"
            )
    elif changed == "the lock":
        monkeypatch.setattr("gigabatch.pipeline.nightly.nightly.folder_lock", _held)
    monkeypatch.setattr("gigabatch.pipeline.contract.decide.measure_file", None)  # by the whole night alone
    monkeypatch.setattr("gigabatch.pipeline.contract.check.measure_file", None)
    before = (home / "nightly.jsonl").read_text()
    assert quiet_night("clicks.yaml", overrides) == (10 if changed == "none" else None)
    assert ((home / "nightly.jsonl").read_text() == before) == (changed != "none")


def _held(path):
    from gigabatch.pipeline.store.files import ArtifactError

    raise ArtifactError(f"{path} is held")
