"""Recipes and operators are imported for their settings alone by commands that read no rows, so none takes pandas."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_recipes_and_operators_are_imported_without_pandas_and_compiled_loops():
    program = (
        "import sys\n"
        "from gigabatch.features import operators\n"
        "from gigabatch.features.recipes import RECIPES, recipe_class\n"
        "kinds = [*map(recipe_class, RECIPES), *(getattr(operators, name) for name in operators.__all__)]\n"
        "print(len(kinds) > 40, [name for name in ('pandas', 'numba', 'torch', 'dask') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "True []\n", done.stderr
