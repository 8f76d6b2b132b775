"""docs/python.md: its examples run, in order."""

import doctest
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


@pytest.mark.usefixtures("nothing_drawn_or_flushed")
def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = doctest.DocTestParser().get_doctest(PAGE.read_text(), {}, "python.md", str(PAGE), 0)
    assert len(examples.examples) > 20
    report: list[str] = []
    found = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples, out=report.append)
    assert found.failed == 0, "".join(report)
