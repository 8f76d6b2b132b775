"""docs/errors.md names a test for every outcome; each must exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [row for row in (ROOT / "docs" / "errors.md").read_text().splitlines() if row.startswith("|")]
CASES = [row for row in ROWS if not re.match(r"\| (input|event) |\|---", row)]


@pytest.mark.parametrize("row", CASES, ids=lambda row: row.split("|")[1].strip())
def test_the_test_of_every_row_exists(row):
    outcome, test = (cell.strip() for cell in row.strip("|").split("|")[1:])
    found = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", test)
    assert outcome
    assert found, f"the last cell must be one test: {test}"
    tree = ast.parse((ROOT / found[1]).read_text())
    assert found[2] in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_page_holds_the_cases_that_the_design_asks_for():
    assert len(CASES) >= 50
