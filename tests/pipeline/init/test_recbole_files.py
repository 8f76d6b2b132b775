"""RecBole's atomic files: tab separated, with names that say their type."""

import numpy as np
import pandas as pd

from gigabatch.features.reading.sources import expand
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.pipeline.init.draft import draft_config

ROWS = 600


def written(folder):
    rows = pd.DataFrame({
        "user_id:token": [k * 7 % 60 for k in range(ROWS)],
        "item_id:token": [k * 11 % 45 + 1000 for k in range(ROWS)],
        "age:token": [18 + k % 40 for k in range(ROWS)],
        "price:float": [k % 90 / 4 for k in range(ROWS)],
        "label:float": np.random.default_rng(0).integers(0, 2, ROWS),
        "timestamp:float": [1.6e9 + 3600 * k for k in range(ROWS)],
    })  # fmt: skip
    rows.to_csv(folder / "shop.inter", sep="\t", index=False)
    (folder / "shop.user").write_text("user_id:token\tzip:token\n1\t01234\n")
    (folder / "shop.item").write_text("item_id:token\tgenre:token_seq\n1\ta b\n")
    return rows


def test_types_are_those_of_the_names(tmp_path):
    rows = written(tmp_path)
    path = str(tmp_path / "shop.inter")
    made = draft_config(path, "label:float", None, 10_000)
    assert made.features["separator"] == "\t"
    categories = {name: dtype for name, dtype in made.features["categorical"].items() if name in rows}
    assert categories == dict.fromkeys(["user_id:token", "item_id:token", "age:token"], "int64")
    assert "price:float" in made.features["continuous"]
    assert made.features["time"] == "timestamp:float"
    assert {kind: entity["key"] for kind, entity in made.features["entities"].items()} == {
        "user": "user_id:token", "item": "item_id:token",
    }  # fmt: skip
    splits = TableRecipe(TableSettings(**(made.features | {"path": path}))).build("pandas").splits
    found = pd.concat(splits.values())
    assert sorted(found["user_id:token"]) == sorted(rows["user_id:token"])


def test_a_number_by_its_type_is_none_by_the_labels(tmp_path):
    """Ids were made of numbers whose name says that they are amounts, where those of one number had labels alike."""
    draw = np.random.default_rng(0)
    shop = draw.integers(1, 101, 4000)
    told = draw.normal(size=101)[shop] + draw.normal(size=4000) / 2
    rows = pd.DataFrame({"level:float": shop, "step": shop, "id:token": draw.integers(0, 400, 4000), "label": told})
    rows.to_csv(tmp_path / "shop.inter", sep="\t", index=False)
    made = draft_config(str(tmp_path / "shop.inter"), "label", None, 10_000)
    assert made.features["categorical"] == {"step": "int64", "id:token": "int64"}
    assert made.features["continuous"] == ["level:float"]
    assert any("Set split_key: id:token" in remark for remark in made.remarks)


def test_of_a_folder_the_interactions_alone_are_rows(tmp_path):
    written(tmp_path)
    assert expand(str(tmp_path)) == [str(tmp_path / "shop.inter")]
    assert expand(str(tmp_path / "*.user")) == [str(tmp_path / "shop.user")]
