"""The registry: an operator is known by its file, without a list that names it."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from gigabatch.features import operators
from gigabatch.features.errors import DataError
from gigabatch.features.operators import NVTABULAR, operator_class, operator_name, operator_names
from gigabatch.features.operators.base import Configured, FittedOperator, Operator

FOLDER = Path(operators.__file__).parent
TESTS = Path(__file__).parent


def steps_in(path):
    """Names of the public operators of a file that workflows may name, read from its source."""
    found = []
    for item in ast.parse(path.read_text()).body:
        if isinstance(item, ast.ClassDef) and not item.name.startswith("_"):
            bases = [base.id for base in item.bases if isinstance(base, ast.Name)]
            hidden = any(ast.unparse(line) == "is_step = False" for line in item.body)
            if any(base.endswith("Operator") or base == "LooksBack" for base in bases) and not hidden:
                found.append(item.name)
    return found


def test_the_registry_is_the_folder():
    expected = [name for path in FOLDER.glob("*/*.py") for name in steps_in(path)]
    known = [operator_class(name).__name__ for name in operator_names()]
    assert sorted(known) == sorted(expected)
    assert len(set(operator_names())) == len(known) > 25


def test_the_command_lists_every_operator_with_what_it_does(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "gigabatch.features.operators.__main__", raising=False)
    runpy.run_module("gigabatch.features.operators", run_name="__main__")
    out = capsys.readouterr().out
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in out.splitlines()[2:]]
    assert [name for name, *_ in rows] == list(operator_names())
    found = {name: (kind, text) for name, kind, text in rows}
    assert found["log"] == ("row-wise", "the logarithm of a column")
    assert found["normalize"][0] == "fitted"
    assert found["rolling"][0] == "group-wise"
    assert found["drop_nulls"][0] == "row-wise, changes rows"
    assert all(text and not text.endswith(".") for _, text in found.values())


@pytest.mark.parametrize("name", operator_names())
def test_an_operator_is_found_by_its_name_and_has_a_test_of_its_own(name):
    kind = operator_class(name)
    assert operator_name(kind) == name
    assert issubclass(kind, Operator | FittedOperator)
    *_, room, module = kind.__module__.split(".")
    assert any((TESTS / room / f"{start}{module}.py").exists() for start in ("test_", "test_operator_"))
    assert kind.__doc__


@pytest.mark.parametrize(
    ("name", "kind"),
    [("fill_missing", "FillMissing"), ("asof", "AsOf"), ("last_before", "LastBefore"), ("min_max", "MinMax")],
)
def test_names_are_files_and_classes_in_snake_case(name, kind):
    assert operator_class(name).__name__ == kind


def test_an_unknown_operator_lists_the_known_ones():
    with pytest.raises(DataError, match=r"'fil_missing'\. Did you mean 'fill_missing'\? Known: .*categorify.*waiting"):
        operator_class("fil_missing")
    for hostile in ("os", "base", "..errors", "FillMissing", "", "known_moments"):
        with pytest.raises(DataError, match="unknown operator"):
            operator_class(hostile)


@pytest.mark.parametrize(
    ("asked", "found"),
    [("LogOp", "log"), ("log_op", "log"), ("normalize_min_max", "min_max"), ("Groupby", "groupby_to_sequence"),
     ("lambda_op", "expression"), ("FillMedian", "fill_missing"), ("dropna", "drop_nulls")],
)  # fmt: skip
def test_an_operator_of_nvtabular_is_told_ours(asked, found):
    with pytest.raises(DataError, match=rf"unknown operator '{asked}'\. NVTabular's \w+ is here .*\({found}\)"):
        operator_class(asked)


def test_the_counterparts_of_nvtabular_exist_and_hide_no_operator():
    named = {words for text in NVTABULAR.values() for words in re.findall(r"\((\w+)\)", text)}
    assert named <= set(operator_names())
    assert not {name.lower() for name in NVTABULAR} & {name.replace("_", "") for name in operator_names()}
    with pytest.raises(AttributeError, match=r"no operator 'NormalizeMinMax'\. NVTabular's .* is here MinMax"):
        operators.NormalizeMinMax  # noqa: B018


def test_only_the_file_that_is_asked_for_is_imported():
    code = (
        "import sys\nfrom gigabatch.features.operators import operator_class\noperator_class('log')\n"
        "print(*(name for name in sys.modules if name.count('.') == 4 and '.operators.' in name))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=FOLDER.parents[1]
    )
    assert out.stdout.split() == ["gigabatch.features.operators.numbers.log"]


def test_a_new_file_is_a_new_operator(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "mine" / "double_it.py").write_text(
        "from gigabatch.features.operators.base import ColumnOperator\n"
        "class DoubleIt(ColumnOperator):\n    reads, writes = ('column',), ('column',)\n"
        "    def __init__(self, column: str) -> None:\n        self.column = column\n"
        "    def compute(self, frame):\n        return {self.column: 2 * frame[self.column]}\n"
    )
    monkeypatch.setattr(operators, "__path__", [*operators.__path__, str(tmp_path)])
    cached = (operators.operator_names, operators._modules, operators._operators_of, operators._classes)
    for function in cached:
        function.cache_clear()
    try:
        assert operator_class("double_it")("x").outputs == ("x",)
        assert "double_it" in operator_names()
    finally:
        for function in cached:
            function.cache_clear()
        for name in ("mine", "mine.double_it"):
            sys.modules.pop(f"gigabatch.features.operators.{name}", None)


def test_an_operator_is_row_wise_unless_it_says_otherwise():
    whole = {"groupby_to_sequence", "explode_lists", "drop_nulls", "filter"}
    changing = {name for name in operator_names() if operator_class(name).changes_rows}
    assert changing == whole & set(operator_names())
    grouped = {name for name in operator_names() if operator_class(name).group_keys is not Configured.group_keys}
    assert {
        "difference_lag",
        "lag",
        "rolling",
        "rank_within_group",
        "groupby_to_sequence",
        "asof",
        "history",
    } <= grouped
    assert not grouped & {"log", "clip", "categorify", "fill_missing", "join_external"}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("categorify", {}),
        ("clip", {"low": 0}),
        ("fill_missing", {}),
        ("filter", {"op": "is_null"}),
        ("hash_bucket", {"num_buckets": 8}),
        ("log", {}),
        ("normalize", {}),
        ("text_flags", {"prefix": "is_"}),
    ],
)
def test_several_names_where_an_argument_takes_one_are_refused(name, arguments):
    operator = operator_class(name)(["a", "b"], **arguments)
    with pytest.raises(DataError, match=rf"{type(operator).__name__}: column names one column, found \['a', 'b'\]"):
        operator.inputs  # noqa: B018  what every call and every workflow asks first


def test_operators_are_attributes_of_the_package_whatever_their_sub_folder():
    for name in operator_names():
        kind = operator_class(name)
        assert getattr(operators, kind.__name__) is kind
        assert kind.__name__ in dir(operators)
    with pytest.raises(AttributeError, match=r"no operator 'Normlize'\. Did you mean 'Normalize'\? It has: AsOf, "):
        operators.Normlize  # noqa: B018
