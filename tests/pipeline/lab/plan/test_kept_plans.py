"""A plan that this machine has made is told again, without torch, and only while it is a plan of the same."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import gigabatch.pipeline.lab.plan.plan as plan_module
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.lab.plan import kept
from gigabatch.pipeline.lab.plan.kept import PLANS, KeptPlans, Plan
from gigabatch.pipeline.machine import Machine, this_machine
from tests.pipeline.clicks import ROWS, SETTINGS, in_a_process, write_clicks
from tests.pipeline.lab.plan.forked_probes import forked_probes

PLANNED = SETTINGS | {"train": {"epochs": 1, "batch_size": 32}}


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A folder in which `gigabatch plan` has made and kept a plan."""
    folder = tmp_path_factory.mktemp("clicks")
    write_clicks(folder, PLANNED)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(kept, "SETTLED_NS", 0)
        with forked_probes():
            assert main(["plan", "--config", "clicks.yaml"]) == 0
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run's files and configuration, in the working folder; files count as settled at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kept, "SETTLED_NS", 0)
    write_clicks(tmp_path, PLANNED)
    return tmp_path


def plan(capsys, *arguments):
    capsys.readouterr()
    assert main(["plan", "--json", "--config", "clicks.yaml", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def kept_in(folder):
    (found,) = json.loads((folder / "artifacts" / PLANS).read_text()).values()
    return found


def test_a_plan_is_told_again_as_it_was_without_torch(planned, monkeypatch, capsys):
    first = kept_in(planned)
    code, printed, error, imported = in_a_process("plan", "--json", "--config", "clicks.yaml", cwd=planned)
    assert (code, imported) == (0, "[]"), error
    again = json.loads(printed)
    assert first["kept"] is None
    assert again["kept"].startswith(f"{first['measured_utc'][:16].replace('T', ' ')} UTC, with ")
    now = {"machine", "kept"}
    assert {name: value for name, value in again.items() if name not in now} == {
        name: value for name, value in first.items() if name not in now
    }
    monkeypatch.chdir(planned)
    assert main(["plan", "--config", "clicks.yaml"]) == 0
    assert "\nmeasured       " in capsys.readouterr().out


@pytest.fixture
def made(planned, folder, monkeypatch, capsys):
    """How often a plan was made since the first one, which is kept; without measuring anything."""
    number = []

    def make_plan(config):
        number.append(config)
        found = Plan.from_dict(kept_in(planned))
        return replace(found, measured_utc=f"{2020 + len(number)}-01-01T00:00:00+00:00")

    monkeypatch.setattr(plan_module, "make_plan", make_plan)
    (folder / "artifacts").mkdir()
    for _ in range(2):
        assert plan(capsys)["measured_utc"].startswith("2021")
    assert len(number) == 1
    number.clear()
    return number


def test_plans_that_cannot_be_written_are_told_and_change_nothing(made, monkeypatch, caplog, capsys):
    before = Path("artifacts", PLANS).read_text()
    monkeypatch.setattr(
        "gigabatch.pipeline.store.remembered.atomic_write", lambda *_: (_ for _ in ()).throw(OSError("read-only"))
    )
    assert plan(capsys, "train.epochs=2")["measured_utc"].startswith("2021")
    assert "artifacts/plans.json could not be written (read-only); the same plan will take as long again" in caplog.text
    assert Path("artifacts", PLANS).read_text() == before


@pytest.mark.parametrize(
    "changed", ["asked", "rows", "settings", "sources", "processor", "threads", "memory", "disk", "damaged"]
)
def test_a_plan_of_something_else_is_made_anew_and_kept(made, monkeypatch, caplog, capsys, changed):
    given = []
    if changed == "asked":
        given = ["--again"]
    elif changed == "rows":
        Path("clicks.csv").write_text(f"city,price,clicked\n{ROWS}Rome,1,1\n")
    elif changed == "settings":
        given = ["train.epochs=2"]
    elif changed == "sources":
        monkeypatch.setattr("gigabatch.pipeline.stages.asked.source_hash", lambda modules: "other sources")
    elif changed == "processor":
        monkeypatch.setattr(kept, "processor", lambda: {"names": "another"})
    elif changed == "threads":
        monkeypatch.setenv("OMP_NUM_THREADS", "1" if os.environ.get("OMP_NUM_THREADS") != "1" else "2")
    elif changed == "memory":
        monkeypatch.setattr(kept, "this_machine", lambda *_: Machine(1 << 20, 0, 1 << 50, 2))
    elif changed == "disk":
        monkeypatch.setattr(kept, "this_machine", lambda *_: replace(this_machine(Path(), "cpu"), disk_bytes=0))
    else:
        Path("artifacts", PLANS).write_text("[" * 200_000)
    plan(capsys, *given)
    assert len(made) == 1
    assert ("is damaged; plans are made anew" in caplog.text) == (changed == "damaged")
    monkeypatch.setattr(kept, "this_machine", this_machine)
    plan(capsys, *(word for word in given if word != "--again"))
    assert len(made) == 1


def test_no_plan_is_kept_of_a_file_that_may_still_change_nor_of_code_of_the_user(folder, monkeypatch, capsys):
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.stages.asked import Request

    def key(*overrides):
        features = load_config("clicks.yaml", overrides, whole="features").features
        return KeptPlans.of(Request.of(load_config("clicks.yaml", overrides, whole=False)), features).key

    assert key() is not None
    assert key("track.tensorboard=true") is None
    monkeypatch.setattr(kept, "SETTLED_NS", 3600 * 10**9)
    assert key() is None
    monkeypatch.setattr(plan_module, "make_plan", lambda config: pytest.fail("a file that is not there is told first"))
    assert main(["plan", "--config", "clicks.yaml", "features.path=nowhere.csv"]) == 2
    assert "input 'nowhere.csv': no such file" in capsys.readouterr().err


def test_a_plan_with_another_version_of_an_installed_operator_is_another_plan(folder, monkeypatch):
    from gigabatch import own_code
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.stages.asked import Request

    features = PLANNED["features"] | {
        "continuous": ["price", "more"],
        "steps": [{"more": {"column": "price", "output": "more"}}],
    }
    Path("clicks.yaml").write_text(json.dumps(PLANNED | {"features": features}))
    monkeypatch.syspath_prepend(folder)
    Path("ours_more-1.0.dist-info").mkdir()
    Path("ours_more-1.0.dist-info", "METADATA").write_text("Metadata-Version: 2.1\nName: ours_more\nVersion: 1.0\n")
    Path("ours_more-1.0.dist-info", "entry_points.txt").write_text("[gigabatch.operators]\nmore = ours_more:More\n")
    found = []
    for by in (1, 2, 2):
        Path("ours_more.py").write_text(
            "from gigabatch import ColumnOperator\n"
            "class More(ColumnOperator):\n"
            "    reads, writes = ('column',), ('output',)\n"
            "    def __init__(self, column: str, output: str) -> None:\n"
            "        self.column, self.output = column, output\n"
            "    def compute(self, frame):\n"
            f"        return {{self.output: frame[self.column] + {by}}}\n"
        )
        request = Request.of(load_config("clicks.yaml", [], whole=False))
        found.append(KeptPlans.of(request, load_config("clicks.yaml", [], whole="features").features).key)
        own_code._forget("ours_more")  # as in a Python that starts
        own_code._TEXTS.pop(str(folder / "ours_more.py"))
    assert found[0] != found[1] == found[2] is not None
