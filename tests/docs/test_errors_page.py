"""docs/errors.md names a test for every outcome; each must exist, assert something, and expect the error of its row."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [row for row in (ROOT / "docs" / "errors.md").read_text().splitlines() if row.startswith("| ")]
CASES = [row for row in ROWS if not re.match(r"\| (input|event) \|", row)]


@cache
def definitions(path: Path) -> dict[str, ast.stmt]:
    """Functions, classes and assigned names at the top of a test file."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return found


@cache
def reached(path: Path, name: str) -> str:
    """The source of a test with its decorators, and of all in its file that it uses."""
    known, seen, waiting = definitions(path), set(), [name]
    while waiting:
        one = waiting.pop()
        if one in seen or one not in known:
            continue
        seen.add(one)
        waiting += [node.id for node in ast.walk(known[one]) if isinstance(node, ast.Name)]
        waiting += [node.arg for node in ast.walk(known[one]) if isinstance(node, ast.arg)]  # fixtures
    return "\n".join(ast.unparse(known[one]) for one in sorted(seen))


def test_the_page_has_its_cases():
    assert len(CASES) >= 150


@pytest.mark.parametrize("row", CASES, ids=lambda row: row.strip("| ").partition(" |")[0][:60])
def test_a_row_ends_in_a_test_that_expects_what_it_tells(row):
    outcome, test = (cell.strip() for cell in row.strip("|").split("|")[1:])
    found = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", test)
    assert outcome
    assert found, f"the last cell must be one test: {test}"
    path = ROOT / found[1]
    assert found[2] in definitions(path)
    source = reached(path, found[2])
    assert re.search(r"\bassert\b|pytest\.raises|pytest\.warns|targets\.run", source)
    for error in re.findall(r"`(\w+Error)`", outcome):
        # At the command line an error is a line and an exit code; the class does not show.
        assert error in source or re.search(r"\bcode\b|returncode|main\(|REFUSED|FAILED", source), error
    for code in re.findall(r"exit code (\d+)", outcome):
        names = r"REFUSED|FAILED|KEPT|PROMOTED|USAGE|STOPPED|128 \+ number"  # constants, and a shell's code of a signal
        assert code in source or re.search(names, source), code
