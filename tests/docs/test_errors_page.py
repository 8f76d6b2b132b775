"""docs/errors.md names a test for every outcome; each must exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_row_of_the_page_ends_in_a_test_that_exists():
    rows = [row for row in (ROOT / "docs" / "errors.md").read_text().splitlines() if row.startswith("| ")]
    cases = [row for row in rows if not re.match(r"\| (input|event) \|", row)]
    assert len(cases) >= 50
    for row in cases:
        outcome, test = (cell.strip() for cell in row.strip("|").split("|")[1:])
        found = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", test)
        assert outcome, row
        assert found, f"the last cell must be one test: {test}"
        tree = ast.parse((ROOT / found[1]).read_text())
        assert found[2] in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, row
