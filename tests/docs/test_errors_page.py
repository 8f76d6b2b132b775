"""docs/errors.md names a test for every outcome; each must exist, assert something, and expect the error of its row."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [row for row in (ROOT / "docs" / "errors.md").read_text().splitlines() if row.startswith("| ")]
CASES = [row for row in ROWS if not re.match(r"\| (input|event|warning) \|", row)]
CODE = [path for room in ("features", "loaders", "models", "pipeline") for path in sorted((ROOT / room).rglob("*.py"))]


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


def warnings_of(text: str) -> list[str | None]:
    """What each warning of a source says, without what is filled in; None where it is no literal.

    A warning is a call of a name or attribute `warn` or `warning`, or of `log` with a level, which may be WARNING.
    """
    found: list[str | None] = []
    for node in ast.walk(ast.parse(text if "warn" in text.lower() else "")):  # to parse all files takes seconds
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        arguments = node.args[1:] if name == "log" else node.args
        if name not in ("warn", "warning", "warn_explicit") and not (name == "log" and "WARN" in ast.unparse(node)):
            continue
        said = arguments[0] if arguments else None
        parts = said.values if isinstance(said, ast.JoinedStr) else [said]
        literals = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        found.append("\0".join(literals) if literals else None)
    return found


def missing_from(rows: list[str], code: dict[str, str]) -> list[str]:
    """Warnings of the sources that no row of their own tells, and rows that tell of none. code: by path."""
    left = [tuple(re.fullmatch(r"\| `([\w/.]+)`: (.*?) \| .*", row).groups()) for row in rows]
    problems = []
    # Longest words first, so that a row is not taken by a warning that holds its words among others.
    for path, text in code.items():
        for said in sorted(warnings_of(text), key=lambda said: said is None):
            mine = [row for row in left if row[0] == path and (said is None or re.sub(r"`", "", row[1]) in said)]
            if mine:
                left.remove(max(mine, key=lambda row: len(row[1])))
            else:
                problems.append(f"{path} warns and docs/errors.md does not say so: {said}")
    return problems + [f"{path} gives no such warning: {words}" for path, words in left]


def test_every_warning_of_ours_has_its_row():
    rows = [row for row in CASES if re.match(r"\| `\w+/", row)]
    code = {str(path.relative_to(ROOT)): path.read_text() for path in CODE}
    assert len(rows) >= 15
    assert missing_from(rows, code) == []


@pytest.mark.parametrize(
    "planted",
    [
        'warnings.warn("a word")', 'warn("a word", stacklevel=2)', 'log.warning("a word")', "log.warning(text)",
        'logging.getLogger(__name__).warning(f"a {word}")', 'log.log(logging.WARNING if bad else 10, "a word")',
        'log.log(logging.WARN, "a word")', 'logger.warn("a word")',
    ],
)  # fmt: skip
def test_a_warning_that_no_row_tells_is_found(planted):
    row = "| `models/x.py`: known words | what to do | `tests/x.py::test_x` |"
    known = 'log.warning("%s: known words", name)\n'
    assert missing_from([row], {"models/x.py": known}) == []
    assert missing_from([row], {"models/x.py": ""}) == ["models/x.py gives no such warning: known words"]
    assert len(missing_from([row], {"models/x.py": known + planted})) == 1
