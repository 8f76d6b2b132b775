"""The examples in docstrings run, and every name of the public interface has one."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import gigabatch

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("features", "loaders", "models", "pipeline")
# Importing these takes a GPU's packages (cuDF, Triton).
LEFT_OUT = {
    "gigabatch.features.engines.cudf",
    "gigabatch.features.engines.cudf_plain",
    "gigabatch.features.engines.row_loops_cuda",
    "gigabatch.features.exact.loops_cuda",
    "gigabatch.loaders.negatives.draws_cuda",
    "gigabatch.models.kernels.folded.cuda",
    "gigabatch.models.kernels.lookup.cuda",
    "gigabatch.models.kernels.row_update.cuda",
    "gigabatch.models.kernels.row_update.move_cuda",
    "gigabatch.models.kernels.row_update.segments_cuda",
    "gigabatch.models.kernels.row_update.small_cuda",
}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules_with_examples() -> list[str]:
    """By their text, as importing every module takes a minute."""
    files = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if ">>> " in path.read_text())
    names = (".".join(("gigabatch", *path.relative_to(ROOT).with_suffix("").parts)) for path in files)
    return [name for name in (name.removesuffix(".__init__") for name in names) if name not in LEFT_OUT]


@pytest.mark.usefixtures("nothing_drawn_or_flushed")
@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module_run(name, tmp_path, monkeypatch):
    """Those of each docstring in an empty folder, where they may leave files."""
    found = [test for test in doctest.DocTestFinder().find(importlib.import_module(name)) if test.examples]
    assert found, "the file has `>>> ` outside of a docstring"
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    report: list[str] = []
    for test in found:
        folder = tmp_path / test.name
        folder.mkdir()
        monkeypatch.chdir(folder)
        runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("name", [name for name in gigabatch.__all__ if name != "__version__"])
def test_a_public_name_has_an_example(name):
    text = inspect.getdoc(getattr(gigabatch, name)) or ""
    has_example = "\nExamples\n--------\n" in text and ">>> " in text
    assert has_example, f"the docstring of {name} needs a section Examples"
