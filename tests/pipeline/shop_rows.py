"""A made-up shop of users and items: its schema, rows with nulls wherever they may be, a recipe, and runs of it."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from gigabatch.features.recipes import RECIPES
from gigabatch.features.recipes.base import FeatureTables, Recipe
from gigabatch.features.schema import Column, Entity, Schema, Target
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.stages.finished import Run
from gigabatch.pipeline.stages.stages import Pipeline

SHOP = Schema(
    (
        Column("user", "categorical", "string"),
        Column("age", "continuous", "float32"),
        Column("item", "categorical", "int64"),
        Column("price", "continuous", "float32"),
        Column("stock", "continuous", "int32"),
        Column("colour", "categorical", "string"),
        Column("sold", "categorical", "bool"),
        Column("hour", "categorical", "int32"),
        Column("bought", "target", "float32"),
        Column("at", "time", "int64"),
    ),
    (Target("bought", "binary"),),
    (
        Entity("user", "user", ("user", "age")),
        Entity("item", "item", ("item", "price", "stock", "colour", "sold")),
    ),
)
USER, ITEM = SHOP.entities
FIRST_ITEM = 2**60  # beyond what a float64 holds


def sales(seed: int, rows: int, num_items: int = 9, num_users: int = 7) -> pd.DataFrame:
    """Rows of the shop in no order, with times that many share, and nulls in every column that may hold them."""
    random = np.random.default_rng(seed)

    def holes(values: list, share: float = 0.15) -> list:
        return [None if random.random() < share else value for value in values]

    return pd.DataFrame(
        {
            "user": pd.Series(holes([f"u{n}" for n in random.integers(0, num_users, rows)]), dtype="str"),
            "age": np.array(holes(random.normal(size=rows).tolist()), dtype="float32"),
            "item": pd.array(holes((FIRST_ITEM + random.integers(0, num_items, rows)).tolist(), 0.05), dtype="Int64"),
            "price": np.array(holes(random.normal(size=rows).tolist()), dtype="float32"),
            "stock": random.integers(0, 50, rows).astype("int32"),
            "colour": pd.Series(holes(random.choice(["red", "blue"], rows).tolist()), dtype="str"),
            "sold": pd.array(holes((random.random(rows) < 0.5).tolist()), dtype="boolean"),
            "hour": random.integers(0, 24, rows).astype("int32"),
            "bought": (random.random(rows) < 0.3).astype("float32"),
            # In nanoseconds, which float64 would round.
            "at": pd.array(holes((1_700_000_000_000_000_000 + random.integers(0, 5, rows)).tolist()), dtype="Int64"),
        }
    )


def without_null_times(frame: pd.DataFrame) -> pd.DataFrame:
    """The features stage lets no null into a time column of whole numbers."""
    return frame.assign(at=frame["at"].fillna(1_700_000_000_000_000_000).astype("int64"))


@dataclass(frozen=True)
class ShopSettings:
    """more: a Parquet file whose rows are a further split, `later`."""

    more: str = ""
    entities: bool = True


class ShopRecipe(Recipe):
    """400 rows to train on, 130 each to validate and test."""

    Settings = ShopSettings
    settings: ShopSettings

    def inputs(self) -> list[str]:
        return [self.settings.more] if self.settings.more else []

    def build(self, engine: str) -> FeatureTables:
        sizes = {"train": 400, "valid": 130, "test": 130}
        rows = {
            split: without_null_times(sales(seed, size, 60, 40)) for seed, (split, size) in enumerate(sizes.items())
        }
        if self.settings.more:
            rows["later"] = pd.read_parquet(self.settings.more)
        return FeatureTables(rows, SHOP if self.settings.entities else Schema(SHOP.columns, SHOP.targets), ())


class Shop:
    """A configuration of the shop in a folder of its own, and runs of it."""

    def __init__(self, folder: Path, **model: object) -> None:
        RECIPES["shop"] = "tests.pipeline.shop_rows:ShopRecipe"
        self.folder, self.config = folder, folder / "shop.yaml"
        settings = {
            "name": "shop",
            "recipe": "shop",
            "device": "cpu",
            "engine": "pandas",
            "artifacts": str(folder / "artifacts"),
            "runs": str(folder / "runs"),
            "features": {},
            "model": model or {"kind": "two_tower", "layers": [8], "vector_dim": 6, "embedding_dim": 3},
            "train": {"epochs": 1, "batch_size": 64, "lr_max": 0.02},
            "evaluate": {"importance": False, "baselines": []},
            "rows_per_part": 70,
        }
        folder.mkdir(parents=True, exist_ok=True)
        self.config.write_text(json.dumps(settings))  # JSON is YAML

    def pipeline(self, *overrides: str) -> Pipeline:
        return Pipeline.from_config(self.config, *overrides)

    def train(self, *overrides: str) -> Run:
        return self.pipeline(*overrides).train()


def trained_shop(folder: Path) -> Shop:
    """A shop with a run and its bundle, trained in one thread."""
    made, threads = Shop(folder), torch.get_num_threads()
    torch.set_num_threads(1)
    made.run = made.train().path
    torch.set_num_threads(threads)
    made.bundle = load_bundle(made.run / "model")
    return made
