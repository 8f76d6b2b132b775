"""A small data set and configuration for whole runs (a whole run of it takes about two seconds)."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gigabatch.features.recipes import RECIPES
from tests.processes import Forked

if TYPE_CHECKING:  # a box that lacks a package of these has its training step tested all the same
    from gigabatch.pipeline.stages.finished import Run
    from gigabatch.pipeline.stages.stages import Pipeline

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PREAMBLE = """
import os, sys
os.fsync = lambda handle: None
sys.path[:0] = {paths!r}
from gigabatch.features.recipes import RECIPES
RECIPES["tiny"] = "tests.pipeline.tiny_recipe:TinyRecipe"
from gigabatch.pipeline.stages.stages import Pipeline
config = {config!r}
"""


@pytest.fixture(scope="session", autouse=True)
def tiny_recipe_is_known():
    RECIPES["tiny"] = "tests.pipeline.tiny_recipe:TinyRecipe"
    yield
    del RECIPES["tiny"]


@pytest.fixture(scope="session")
def drawn():
    """What draws a chart, before it is replaced; nothing is drawn where there is no matplotlib."""
    if not importlib.util.find_spec("matplotlib"):
        return None
    from gigabatch.pipeline.reports import charts

    return charts._svg


class Nothing:
    """Axes on which nothing is drawn, and whatever they hold; as an interval, one of positive numbers."""

    def __getattr__(self, name: str) -> Nothing:
        return self

    def __call__(self, *_: Any, **__: Any) -> Nothing:
        return self

    def __iter__(self) -> Iterator[float]:
        return iter((1.0, 10.0))


@pytest.fixture(scope="module", autouse=True)
def _nothing_drawn_or_flushed(drawn):
    """Charts are empty and nothing is flushed to disk, which take most of the time of a small run.

    A killed process loses nothing by the second. The run of `trained` has its whole report; what tests charts draws
    them (tests/pipeline/reports).
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        if drawn:
            from markupsafe import Markup

            from gigabatch.pipeline.reports import charts

            def empty(ax: Any, label: str, key: str) -> Markup:
                return Markup(f'<svg aria-label="{label}"></svg>')

            real_axes, real_styled = charts._axes, charts._styled  # for a test that puts back the function `_svg` alone
            patch.setattr(charts, "_svg", empty)
            patch.setattr(
                charts, "_axes", lambda *of, **more: Nothing() if charts._svg is empty else real_axes(*of, **more)
            )
            patch.setattr(
                charts, "_styled", lambda: contextlib.nullcontext() if charts._svg is empty else real_styled()
            )
        yield


@contextlib.contextmanager
def threads_of_torch(number: int):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def _module_of_one_thread():
    """The steps are tiny; on a machine that is shared, threads that wait for each other take most of the time. What a
    module's own fixtures train has one thread too."""
    with threads_of_torch(1):
        yield


@pytest.fixture(autouse=True)
def _one_thread(_module_of_one_thread):
    """Again for each test, whatever number the one before it has left."""
    with threads_of_torch(1):
        yield


class Tiny:
    """A folder with raw files, a YAML file, and runs of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.raw = folder / "raw"
        self.config = folder / "tiny.yaml"
        self.home = folder / "runs" / "tiny"
        settings = {
            "name": "tiny",
            "recipe": "tiny",
            "device": "cpu",
            "engine": "pandas",  # also where there is cuDF
            "artifacts": str(folder / "artifacts"),
            "runs": str(folder / "runs"),
            "features": {"path": str(self.raw)},
            "model": {"layers": [16], "dropout": 0.1},
            "train": {"epochs": 2, "batch_size": 256, "lr_max": 0.02},
            "evaluate": {"importance": False, "baselines": []},
            "nightly": {"min_window_rows": 100, "num_bootstrap": 100},
        }
        folder.mkdir(parents=True, exist_ok=True)
        self.config.write_text(json.dumps(settings))  # JSON is YAML

    def pipeline(self, *overrides: str | Mapping[str, Any]) -> Pipeline:
        from gigabatch.pipeline.stages.stages import Pipeline

        return Pipeline.from_config(self.config, *overrides)

    def train(self, *overrides: str) -> Run:
        return self.pipeline(*overrides).train()

    def latest(self) -> Run:
        from gigabatch.pipeline.stages.finished import Run

        return Run((self.home / "latest").resolve())

    def artifacts(self, stage: str) -> list[Path]:
        """Finished artifacts of a stage."""
        return sorted(p for p in (self.folder / "artifacts" / stage).glob("*") if not p.name.startswith("."))

    def hidden(self) -> list[str]:
        """Temporary folders that someone left."""
        kinds = (".tmp-*", ".damaged-*", ".removed-*", "*.tmp")
        return sorted(str(p.relative_to(self.folder)) for kind in kinds for p in self.folder.rglob(kind))

    def start(self, code: str, fresh: bool = False) -> subprocess.Popen:
        """`code` in a process of its own, with the tiny recipe known and `config` set; fresh: which has imported only
        what `Pipeline` needs (else it is a fork of one that has imported more)."""
        preamble = PREAMBLE.format(paths=[str(ROOT), str(HERE)], config=str(self.config))
        environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # the last bits depend on it
        pipes: dict[str, Any] = {"text": True} | dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        pipes |= {"env": environment, "cwd": self.folder}
        code = preamble + code
        return subprocess.Popen([sys.executable, "-c", code], **pipes) if fresh else Forked(code, **pipes)

    def command(self, *arguments: str) -> subprocess.CompletedProcess:
        """The command line in a process of its own."""
        code = f"from gigabatch.pipeline.commands.app import main\nsys.exit(main({list(arguments)!r}))"
        process = self.start(code)
        out, err = process.communicate(timeout=500)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    """Three thousand rows and a configuration, in a folder of the test's own."""
    from tests.pipeline.tiny_recipe import write_day

    made = Tiny(tmp_path / "tiny")
    write_day(made.raw, 0)
    return made


@pytest.fixture(scope="session")
def trained(tmp_path_factory, drawn) -> tuple[Tiny, Run]:
    """A finished run that tests only read: they may add artifacts to its store, but no run, which moves `latest`."""
    from gigabatch.pipeline.reports import charts
    from tests.pipeline.tiny_recipe import write_day

    made = Tiny(tmp_path_factory.mktemp("trained") / "tiny")
    write_day(made.raw, 0)
    with threads_of_torch(1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "_svg", drawn)
        run = made.train()
    shutil.copytree(made.folder, made.folder.with_name("untouched"), symlinks=True)
    return made, run


@pytest.fixture
def finished(tiny, trained) -> Tiny:
    """`tiny` with a finished run in it: a copy, because training it anew in every test would take minutes."""
    for name in ("artifacts", "runs"):
        shutil.copytree(trained[0].folder.with_name("untouched") / name, tiny.folder / name, symlinks=True)
    return tiny


@pytest.fixture(scope="session")
def tiny_in() -> Callable[[Path], Tiny]:
    return Tiny


@pytest.fixture
def forked_probes() -> Iterator[None]:
    """The samples of a plan run in forks, where a test does not look at the memory and the seconds that they take."""
    from tests.pipeline.lab.plan.forked_probes import forked_probes

    with forked_probes():
        yield
