"""docs/workflow.md: its examples run; the reference's table is the registry."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ruamel.yaml import YAML

from gigabatch.features.operators import operator_names
from gigabatch.features.operators.__main__ import markdown_table
from gigabatch.features.recipes.table.recipe import TableSettings
from gigabatch.features.workflow.workflow import Workflow

PAGE = Path(__file__).parents[3] / "docs" / "workflow.md"
TEXT = PAGE.read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def features():
    return loaded(0)["features"]


def loaded(number):
    return YAML(typ="safe", pure=True).load(blocks("yaml")[number])


def rows():
    """Ten visits whose fitted numbers are short."""
    return pd.DataFrame({
        "price": [np.nan, *np.expm1([1.0, 2, 3, 4, 5, 6, 7, 8, 9])], "age": [20.0, *[30.0] * 8, 40.0],
        "city": ["Oslo", "Bonn"] * 5, "shop": ["a", "b", "c", "d", "e"] * 2,
    })  # fmt: skip


def test_the_table_lists_exactly_the_registry():
    assert re.findall(r"^\| `(\w+)` \|", markdown_table(), re.MULTILINE) == list(operator_names())


def test_the_yaml_is_a_table_recipes_settings(features):
    settings = TableSettings(**features)
    assert settings.workflow().inputs == ("price", "age", "city", "shop")


def test_the_lags_are_those_of_pandas():
    days = pd.date_range("2024-01-01", periods=20)
    rows = pd.DataFrame({"shop": ["a"] * 20, "day": days, "sold": np.arange(20) ** 2, "row_number": np.arange(20)})
    steps = Workflow.from_steps(loaded(1)["steps"]).steps
    workflow = Workflow(steps, dtypes={"shop": "string", "day": "datetime", "sold": "int64"})
    found = workflow.transform(workflow.typed(rows), whole_groups=True)
    week = rows.set_index("day")["sold"].rolling("7D", closed="left").mean()
    np.testing.assert_allclose(found["sold_week"], week, rtol=1e-6)
    np.testing.assert_array_equal(found["sold_last"], rows["sold"].shift())


def test_the_python_runs(tmp_path):
    frame = rows().assign(clicked=0)
    known = {"parts": [frame], "frame": frame, "folder": tmp_path, "rows": rows()}
    first, saving, serving = blocks("python")
    for block in (first, saving, serving):
        exec(compile(block, str(PAGE), "exec"), known)
    assert known["serving"].applied_inputs == ("price", "city")
