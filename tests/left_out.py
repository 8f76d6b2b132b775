"""What a machine without all of our packages leaves out, counted and by name: hooks of tests/conftest.py.

The offline GPU box lacks packages that pyproject.toml names. There (`-m gpu`, or `--box`) a test file, folder or test
that stops at the import of one of them is left out. Any other error of an import stays an error: of our own modules,
of a package that is there, of one that nobody declared. Without the two options nothing is ever left out.
"""

import contextlib
import inspect
import os
import re
import sys
import tomllib
import types
from collections import defaultdict
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.devices import DEVICE_FILTERS, libraries_warn_in_their_own_name

ROOT = Path(__file__).resolve().parents[1]
COMES_WITH = {"pydantic_core": "pydantic", "starlette": "fastapi"}  # imported by tests, declared by the other
IMPORT_NAMES = {"scikit-learn": "sklearn"}  # the others follow from the distribution's name
GPU_TESTS = re.compile(  # the mark, or a fixture that has it
    r"^@pytest\.mark\.gpu\b|^pytestmark\b.*\bmark\.gpu\b|\bmarks=pytest\.mark\.gpu\b"
    r"|^def test\w*\(.*\b(?:any|triton)_device\b",
    re.MULTILINE,
)
MAY_NEED_A_GPU = re.compile(r"\bgpu\b|\b(any|triton)_device\b")


def import_name(distribution: str) -> str:
    """faiss-cpu -> faiss, cupy-cuda13x -> cupy, ruamel.yaml -> ruamel."""
    bare = re.sub(r"-(cpu|cu\d+|cuda\d+x)$", "", distribution)
    return IMPORT_NAMES.get(bare, bare.replace("-", "_").split(".")[0])


def version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def unmet() -> dict[str, str]:
    """What pyproject.toml asks for and this Python has not, or in an older version: import name -> requirement."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    found = {}
    for requirement in map(Requirement, texts):
        if requirement.name == project["name"] or not (requirement.marker is None or requirement.marker.evaluate()):
            continue
        version = version_of(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            found[import_name(requirement.name)] = f"{requirement.name}{requirement.specifier}"
    return found


class LeftOut:
    """What was left out in this run, for the lines at the top and at the end."""

    def __init__(self, is_box: bool) -> None:
        self.unmet = unmet() if is_box else {}
        self.files: dict[str, dict[str, int]] = defaultdict(dict)  # requirement -> file -> tests marked gpu in it
        self.tests: dict[str, int] = defaultdict(int)

    def requirement(self, error: BaseException | None) -> str | None:
        """The unmet requirement that this error comes from, if one does."""
        while error is not None:
            if isinstance(error, ImportError):
                package = (error.name or "").split(".")[0]
                return self.unmet.get(COMES_WITH.get(package, package))
            error = getattr(error, "cause", None) or error.__cause__  # the first is that of a conftest
        return None

    def add_files(self, requirement: str, path: Path) -> None:
        for file in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
            self.files[requirement][os.path.relpath(file, ROOT)] = len(GPU_TESTS.findall(file.read_text()))

    def lines(self) -> list[str]:
        if not (self.files or self.tests):
            return []
        marked = {r: {name: count for name, count in files.items() if count} for r, files in self.files.items()}
        lines = [
            f"LEFT OUT: {sum(map(len, self.files.values()))} files, {sum(map(len, marked.values()))} of them with "
            f"{sum(sum(files.values()) for files in marked.values())} or more gpu tests, and "
            f"{sum(self.tests.values())} tests of other files"
        ]
        for requirement in sorted({*self.files, *self.tests}):
            named = "".join(f", {name} ({count} gpu)" for name, count in marked.get(requirement, {}).items())
            number = len(self.files.get(requirement, {}))
            lines.append(f"  needs {requirement}: {number} files, {self.tests.get(requirement, 0)} tests{named}")
        return lines


RECORD = pytest.StashKey[LeftOut]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--box", action="store_true", help="leave out, and count, what needs a package that is not here")
    if version_of("pytest-timeout") is None:
        parser.addini("timeout", "a test's limit in seconds; without pytest-timeout there is none")


def pytest_configure(config: pytest.Config) -> None:
    is_box = config.getoption("--box") or re.search(r"(?<!not )\bgpu\b", config.getoption("markexpr"))
    config.stash[RECORD] = record = LeftOut(bool(is_box))
    if is_box:  # what libraries of other versions say when they are imported fails no test file
        for line in DEVICE_FILTERS:
            config.addinivalue_line("filterwarnings", line)
        stack = contextlib.ExitStack()
        stack.enter_context(libraries_warn_in_their_own_name())
        config.add_cleanup(stack.close)
    if "hypothesis" in record.unmet:
        stand_in_for_hypothesis(record.unmet["hypothesis"])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m gpu`, files that name neither the mark nor a fixture with it are not imported: nine of ten."""
    if config.getoption("markexpr").strip() == "gpu" and collection_path.match("test_*.py"):
        return not MAY_NEED_A_GPU.search(collection_path.read_text()) or None
    return None


def pytest_report_header(config: pytest.Config) -> list[str]:
    absent = ", ".join(sorted(config.stash[RECORD].unmet.values()))
    return [f"NOT HERE: {absent}. What needs them is left out and counted."] if absent else []


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    record = collector.config.stash[RECORD]
    if report.failed and (requirement := record.requirement(report.call.excinfo.value)):
        record.add_files(requirement, collector.path)
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: needs {requirement}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    record = item.config.stash[RECORD]
    if report.failed and (requirement := record.requirement(call.excinfo.value)):
        record.tests[requirement] += 1
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: needs {requirement}")
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    if "hypothesis" in session.config.stash[RECORD].unmet:  # nothing but test files has seen the one that stood in
        for name in ("hypothesis", "hypothesis.strategies"):
            sys.modules.pop(name, None)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    return config.stash[RECORD].lines()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash[RECORD].lines():
        terminalreporter.section("left out")
        for line in lines:
            terminalreporter.write_line(line)


def stand_in_for_hypothesis(requirement: str) -> None:
    """Modules in whose files only the tests that draw are skipped; the others need no hypothesis."""

    class Nothing:
        """Whatever is asked of a strategy."""

        def __call__(self, *arguments, **named):
            return self

        def __or__(self, other):
            return self

        def __getattr__(self, name: str):
            if name.startswith("__"):
                raise AttributeError(name)
            return self

    def given(*drawn, **named):
        def skipped(test):
            def body(**fixtures):
                raise ModuleNotFoundError(f"needs {requirement}", name="hypothesis")

            parameters = [p for p in inspect.signature(test).parameters.values() if p.name not in named]
            body.__signature__ = inspect.Signature(parameters[: len(parameters) - len(drawn)])
            body.__name__, body.__module__, body.__doc__ = test.__name__, test.__module__, test.__doc__
            body.pytestmark = getattr(test, "pytestmark", [])
            return body

        return skipped

    class Settings(Nothing):
        def __call__(self, *arguments, **named):
            return arguments[0] if arguments and inspect.isfunction(arguments[0]) else self

    hypothesis, strategies = types.ModuleType("hypothesis"), types.ModuleType("hypothesis.strategies")
    strategies.__getattr__ = hypothesis.__getattr__ = lambda name: getattr(Nothing(), name)
    hypothesis.given, hypothesis.settings, hypothesis.strategies = given, Settings(), strategies
    hypothesis.example = hypothesis.seed = Settings()
    for module in (hypothesis, strategies):
        module.__spec__ = ModuleSpec(module.__name__, None)  # torch's compiler asks what is installed
        sys.modules[module.__name__] = module
