"""A new or changed operator of the package recomputes what uses it, and nothing else."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pandas as pd
import pytest

from gigabatch.features.operators import sources
from gigabatch.features.workflow.steps import registered_code

ROOT = Path(__file__).resolve().parents[3]
# Keys of a run with the step `rolling`, which takes `ratio` from asof.py, before and after each change.
KEYS = """
import json, sys
from pathlib import Path
from gigabatch import Pipeline
from gigabatch.features.operators.sources import operator_code
from gigabatch.features.recipes.flights.recipe import FlightsRecipe

def keys():
    features = Pipeline.from_config("run.yaml").features()
    encoded = features.encode()
    return [features.artifact.key, encoded.key, encoded.train_key, operator_code(FlightsRecipe)]

operators = Path(sys.argv[1]) / "features" / "operators"
found = {"before": keys()}
for name, text in json.loads(sys.argv[2]):
    path = operators / name
    old = path.read_text() if path.exists() else None
    path.write_text((old or "") + text)
    found[name] = keys()
    path.unlink() if old is None else path.write_text(old)
found["after"] = keys()
print(json.dumps(found))
"""
CONFIG = """
name: visits
recipe: table
engine: pandas
device: cpu
features:
  path: visits.csv
  continuous: [n]
  inputs: {user: string}
  time: at
  targets: {late: {task: binary}}
  steps:
    - rolling: {by: [user], time: at, column: at, window: 9, statistic: count, output: n}
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Keys by the file that was changed, in a copy of the package."""
    folder = tmp_path_factory.mktemp("package")
    for name in ("gigabatch", "features", "loaders", "models", "pipeline"):
        copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore_patterns("__pycache__"))
    rows = pd.DataFrame({"user": ["a", "b"] * 60, "at": range(120), "late": [0, 1, 1] * 40})
    rows.to_csv(folder / "visits.csv", index=False)
    (folder / "run.yaml").write_text(CONFIG)
    changed = (
        "numbers/clip.py",
        "history/rolling.py",
        "history/asof.py",
        "history/waiting.py",
        "missing/fill_missing.py",
    )
    changes = [("numbers/new_one.py", "X = 1\n"), *((name, "\n# changed\n") for name in changed)]
    command = [sys.executable, "-c", KEYS, str(folder), json.dumps(changes)]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "HOME": str(ROOT.home())},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_new_operator_and_a_change_of_one_that_is_not_used_change_no_key(keys):
    assert keys["after"] == keys["before"]
    for name in ("numbers/new_one.py", "numbers/clip.py"):
        assert keys[name] == keys["before"], name


def test_a_change_of_an_operator_that_a_step_names_or_that_this_one_imports_changes_the_keys(keys):
    for name in ("history/rolling.py", "history/asof.py"):
        assert all(new != old for new, old in zip(keys[name][:3], keys["before"][:3], strict=True)), name


def test_an_operator_that_a_recipe_imports_counts_for_that_recipe_alone(keys):
    *table, flights = keys["history/waiting.py"]
    assert table == keys["before"][:3]
    assert flights != keys["before"][3]
    assert keys["history/rolling.py"][3] == keys["before"][3]


def test_an_operator_that_the_encoding_uses_counts_for_every_run(keys):
    new, old = keys["missing/fill_missing.py"], keys["before"]
    assert all(one != other for one, other in zip(new[:3], old[:3], strict=True))


def modules(text):
    return {name.rpartition(".")[2] for name in sources._used_by([text.encode()])}


def test_what_recipes_use_is_what_their_modules_import():
    """Of flights, as its imports stand; of trivago by way of chunk.py, features.py and stream.py."""
    flights = modules("import gigabatch.features.recipes.flights.recipe")
    assert flights == {"asof", "date_parts", "difference", "join_external", "waiting", "windows"}
    trivago = modules("import gigabatch.features.recipes.trivago.recipe")
    assert trivago == {"rank_within_group", "text_flags", "asof", "windows", "explode_lists"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from gigabatch.features.operators import Clip, register_operator", {"clip"}),
        (
            "from gigabatch.features.operators.numbers import (\n    clip,  # a, b\n    log as other,\n)",
            {"clip", "log"},
        ),
        ("import os; import gigabatch.features.operators.numbers.clip as c", {"clip"}),
        ("def late():\n    from gigabatch.features.operators.history.asof import *", {"asof", "windows"}),
        ("from gigabatch import register_operator\nfrom gigabatch.features.operators.base import Operator", set()),
        ("import numpy", set()),
    ],
)
def test_the_operators_that_a_text_imports(text, found):
    assert modules(text) == found


@pytest.mark.parametrize(
    "text",
    ["import gigabatch", "from gigabatch.features import operators as o", "from gigabatch.features.operators import *"],
)
def test_of_a_whole_package_every_operator_counts(text):
    assert sources._used_by([text.encode()]).keys() == sources._operator_files().keys()


def test_imports_are_found_as_python_s_parser_finds_them():
    num_found = 0
    for path in sorted((ROOT / "features").rglob("*.py")):
        names = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        names = {name for name in names if name.startswith("gigabatch")}
        num_found += len(names)
        assert names <= set(sources._imported(path.read_bytes())), path
    assert num_found > 500


def test_a_user_s_class_counts_what_its_file_imports_and_one_of_a_cell_everything(tmp_path, monkeypatch):
    (tmp_path / "ours_clipped.py").write_text(
        "from gigabatch.features.operators import Clip\n\n\nclass Own(Clip):\n    pass\n\n\nclass Recipe:\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import ours_clipped

    from gigabatch.features.operators import Clip

    assert sources.operator_code(ours_clipped.Own) == sources.operator_code(Clip)
    everything = sources.operator_code(ours_clipped.Recipe)
    assert everything not in ("", sources.operator_code(Clip))


def test_each_step_has_the_code_of_its_own_operator():
    found = registered_code(
        [{"clip": {"column": "x", "low": 0.0}}, {"log": {"column": "x"}}, {"clip": {"column": "y"}}]
    )
    assert found["step 1"] == found["step 3"] != found["step 2"]
