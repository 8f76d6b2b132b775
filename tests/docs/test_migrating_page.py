"""docs/migrating.md: its code runs, in order, and its commands and operators exist."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from ruamel.yaml import YAML

from gigabatch import Workflow
from gigabatch.features.importers.nvtabular_categories import combination_of_file
from gigabatch.features.operators import Bucketize, Categorify, Expression, JoinGroupby, ListSlice
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.pipeline.commands.app import main
from tests.features.importers.nvtabular_saved import Saved, counted

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:<!-- (?P<needs>.*?) -->\n)?```python\n(?P<code>.*?)```", re.S)


def blocks(needs):
    return [match["code"] for match in BLOCK.finditer(PAGE) if match["needs"] == needs]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder with train/, valid/, a saved NVTabular workflow and its schema."""
    monkeypatch.chdir(tmp_path)
    rows = pd.DataFrame({"city": ["Rome", "Bonn", "Rome", None], "shop": [1, 2, 1, 2], "price": [1.0, None, 3.0, 8.0],
                         "clicked": [0, 1, 0, 1]})  # fmt: skip
    for split in ("train", "valid"):
        Path(split).mkdir()
        for part in range(2):
            rows.to_parquet(f"{split}/part-{part}.parquet")
    saved = Saved(tmp_path / "saved_workflow")
    words = saved.select("city", dtype="string")
    encoded = saved.categorify(["city"], words, {"city": counted("city", ["Rome", "Bonn"], [4, 2], "str")})
    numbers = saved.select("price")
    filled = saved.node("FillMissing", ["price"], [numbers], params={"fill_val": 2.5, "add_binary_cols": False})
    scaled = saved.node("Normalize", ["price"], [filled], state={"means": {"price": 3.0}, "stds": {"price": 2.0}})
    saved.concat(encoded, scaled)
    saved.close()
    columns = (Column("city", "categorical", "string"), Column("price", "continuous", "float32"),
               Column("clicked", "target", "int32"))  # fmt: skip
    Schema(columns, (Target("clicked", "binary"),)).save(tmp_path / "schema.json")
    return rows


def test_the_plain_snippets_run_one_after_the_other(folder):
    names: dict = {}
    assert len(blocks(None)) == 2
    for code in blocks(None):
        exec(code, names)
    encoded = pd.read_parquet("encoded-0.parquet")
    assert encoded["city"].tolist() == [3, 4, 3, 1]
    assert list(encoded.columns) == ["city", "shop", "price", "clicked", "city_shop", "price_na"]
    (steps,) = re.findall(r"```yaml\n(- categorify.*?)```", PAGE, re.S)
    same = Workflow.from_steps(YAML(typ="safe").load(steps))
    assert same.to_steps() == names["workflow"].to_steps()


def test_the_imported_workflow_is_read_as_shown(folder):
    (code,) = blocks("needs an imported workflow")
    names = {"rows": folder}
    exec(code, names)
    assert names["ids"]["city"].tolist() == [3, 4, 3, 1]
    assert Path("imported/preprocessor/preprocessor.json").is_file()


def test_the_states_of_a_pickled_workflow_are_given_as_shown(folder):
    Path("saved_workflow/artifacts/node_1/categories").rename("saved_workflow/categories")
    (code,) = blocks("needs categories")
    names: dict = {}
    exec(code, names)
    found = names["Workflow"].load("imported").transform(folder)
    assert found["city"].tolist() == [3, 4, 3, 1]
    assert found["price"].tolist() == [-1.0, -0.25, 0.0, 2.5]


def test_the_state_of_a_combination_is_given_as_said(tmp_path, monkeypatch):
    """Expected ids are those that NVTabular 23.08 gave, with the file that it saved beside its pickle."""
    monkeypatch.chdir(tmp_path)
    Path("saved_workflow/categories").mkdir(parents=True)
    uniques = pd.DataFrame({"C1": ["a", "b", None, "c"], "C3": pd.array([1, 2, 5, None], "Int64"),
                            "C1_C3_size": [3, 2, 1, 1]}, index=pd.RangeIndex(3, 7))  # fmt: skip
    uniques.to_parquet("saved_workflow/categories/unique.C1_C3.parquet")
    step, state = (
        re.search(rf"`({name}\(.*?\))`", PAGE, re.DOTALL)[1].replace("\n", " ")
        for name in (r"Categorify(?=\(combined=..C1)", "combination_of_file")
    )
    workflow = Workflow([eval(step, {"Categorify": Categorify})])
    workflow.states = {0: eval(state, {"combination_of_file": combination_of_file})}
    workflow.save("imported")
    rows = pd.DataFrame({"C1": ["b", "z", None, "c", "a", None], "C3": pd.array([2, 1, 5, None, 2, None], "Int64")})
    assert Workflow.load("imported").transform(rows)["C1_C3"].tolist() == [4, 2, 5, 6, 2, 1]


def test_what_the_page_says_gives_the_numbers_of_nvtabular():
    """Expected are those of NVTabular 23.08 on pandas."""
    rows = pd.DataFrame({"i": [1, 1, 1, 2, 2, 3, 4], "l": [[1, 2, 3], [4], [], [5, 6], [7, 8], [9], [0]],
                         "b": [1.0, 2, 2, None, 1, 3, 0], "c": ["x", "x", None, "y", "y", "x", None]})  # fmt: skip
    steps = [
        Categorify("i", max_size=5 - 3),  # max_size=5
        ListSlice("l", 0, 2, separator=None),  # ListSlice(2)
        Bucketize("b", [1, 2]),
        Expression("one", "1"),
        JoinGroupby(["c"], ["one"], ["count"]),  # stats=["count"]
    ]
    found = Workflow(steps, outputs=["i", "l", "b", "one_count_by_c"]).fit_transform([rows])[0]
    assert found["i"].tolist() == [3, 3, 3, 4, 4, 2, 2]
    assert [list(row) for row in found["l"]] == [[1, 2], [4], [], [5, 6], [7, 8], [9], [0]]
    nvtabular = pd.Series([1, 2, 2, None, 1, 2, 0])  # 2 for null too
    assert found["b"].tolist() == (nvtabular + 1).fillna(0).tolist()
    assert found["one_count_by_c"][rows["c"].notna()].tolist() == [3, 3, 2, 2, 3]


def test_the_loader_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"city": list("abcd") * 300, "price": range(1200), "bought": [0, 1, 1] * 400}).to_csv("shop.csv")
    Path("run.yaml").write_text(
        "name: shop\nrecipe: table\nfeatures:\n  path: shop.csv\n  categorical: [city]\n  continuous: [price]\n"
        "  targets: {bought: {task: binary}}\n"
    )
    (code,) = blocks("needs a configuration")
    names: dict = {}
    exec(code, names)
    assert names["sizes"] == [7]
    assert names["ids"].shape == (len(names["labels"]), 1)
    assert names["floats"].shape[0] == len(names["labels"]) > 0


def test_a_recbole_file_is_read_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{user}\t{item}\t{user + item}.0" for user in range(9) for item in range(user % 3, 9)]
    Path("ml-100k.inter").write_text("\n".join(["user_id:token\titem_id:token\ttimestamp:float", *rows]))
    Path("rb.yaml").write_text("name: rb\n" + re.findall(r"```yaml\n(recipe: interactions.*?)```", PAGE, re.DOTALL)[0])
    assert main(["features", "--config", "rb.yaml"]) == 0
    assert sum(len(pd.read_parquet(path)) for path in tmp_path.glob("artifacts/features/*/*/*.parquet")) == len(rows)


def test_import_nvtabular_from_the_command_line(folder, capsys):
    arguments = ["import-nvtabular", "saved_workflow", "--out", "imported", "--schema", "schema.json"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "Categorify(column='city')" in printed
    assert "note: ids are int32" in printed
    assert Path("imported/workflow.json").is_file()
    assert Path("imported/preprocessor/preprocessor.json").is_file()
    assert main(arguments) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert main(["import-nvtabular", "train", "--out", "other"]) == 2
    assert "there is no graph.json" in capsys.readouterr().err
    assert not Path("other").exists()


def test_import_fastai_from_the_command_line(folder, capsys):
    reference = json.loads((ROOT / "tests/features/importers/data/fastai_export.json").read_text(encoding="utf-8"))
    Path("fastai.json").write_text(json.dumps(reference["export"]))
    assert main(["import-fastai", "fastai.json", "--out", "imported"]) == 0
    assert "Categorify(column='price_na')" in capsys.readouterr().out
    Path("export.pkl").write_bytes(b"\x80\x04.")
    assert main(["import-fastai", "export.pkl", "--out", "other"]) == 2
    assert "a pickle" in capsys.readouterr().err
