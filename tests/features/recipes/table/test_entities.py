"""Entities in the settings of the recipe table: which columns are about the user, which about the item."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.features.schema import Entity, Schema


def build(**settings):
    return TableRecipe(TableSettings(**settings)).build("pandas")


@pytest.fixture
def saved(tmp_path):
    rng = np.random.default_rng(0)
    size = 300
    frame = pd.DataFrame({
        "shop": rng.choice(["a", "b", "c"], size), "x": rng.normal(size=size), "price": rng.gamma(2, 10, size),
        "visit": [f"v{i // 5}" for i in range(size)], "id": [f"r{i}" for i in range(size)],
        "late": rng.integers(0, 2, size),
    })  # fmt: skip
    frame.to_csv(tmp_path / "t.csv", index=False)
    return str(tmp_path / "t.csv")


ENTITIES = {
    "categorical": ("id", "shop", "visit"), "continuous": ("x", "price"), "targets": {"late": {"task": "binary"}},
    "entities": {"user": {"key": "visit", "columns": ["x", "visit"]}, "item": {"key": "shop", "columns": ["price"]}},
}  # fmt: skip


def test_entities_say_what_rows_are_about(saved, tmp_path):
    schema = build(path=saved, **ENTITIES).schema
    assert schema.entities == (Entity("user", "visit", ("x", "visit")), Entity("item", "shop", ("shop", "price")))
    schema.save(tmp_path / "schema.json")
    assert Schema.load(tmp_path / "schema.json") == schema
    alone = build(path=saved, **(ENTITIES | {"entities": {"item": {"key": "shop"}}})).schema
    assert alone.entities == (Entity("item", "shop", ("shop",)),)
    assert build(path=saved, **(ENTITIES | {"entities": {}})).schema.entities == ()


def test_an_entity_may_have_columns_that_steps_make(saved):
    settings = {
        "steps": (
            {"log": {"column": "price", "output": "log_price"}},
            {"hashed_cross": {"columns": ["shop", "visit"], "num_buckets": 50, "output": "shop_code"}},
        ),
        "inputs": {"price": "float64", "visit": "string"}, "categorical": ("shop", "shop_code"),
        "continuous": ("log_price",), "entities": {"item": {"key": "shop", "columns": ["shop_code", "log_price"]}},
    }  # fmt: skip
    found = build(path=saved, **(ENTITIES | settings)).schema.entity("item")
    assert found.columns == ("shop", "shop_code", "log_price")


@pytest.mark.parametrize(
    ("entities", "message"),
    [
        ({"shop": {"key": "shop"}}, "table: entities: unknown entity 'shop'. Known: user, item"),
        ({"item": {}}, r"table: entities: item needs a key.*item: \{key: item_id\}; found \{\}"),
        ({"item": "shop"}, "item needs a key.*found 'shop'"),
        ({"item": {"key": "shop", "column": ["x"]}}, r"unknown key\(s\) column of item. Known: key, columns"),
        ({"item": {"key": "shop", "columns": "price"}}, "columns of item is a list of names, found 'price'"),
        (
            {"item": {"key": "price"}},
            "table: schema: the key 'price' of item is no categorical column.*id, shop, visit",
        ),
        ({"item": {"key": "shop", "columns": ["late"]}}, "table: schema: 'late', a column of item, is no feature"),
        ({"item": {"key": "shop", "columns": ["cost"]}}, "'cost', a column of item, is no feature. Features: id, shop"),
        (
            {"item": {"key": "shop", "columns": ["x"]}, "user": {"key": "visit", "columns": ["x"]}},
            "table: schema: 'x' is a column of item and of user",
        ),
    ],
)
def test_entities_that_make_no_sense_are_an_error_before_any_file_is_read(entities, message):
    with pytest.raises(DataError, match=message):
        TableSettings(path="not there.csv", **(ENTITIES | {"entities": entities}))
