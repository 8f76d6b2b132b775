"""The tables of `benchmarks.defaults`: real ones, synthetic logs, and scikit-learn's, 1,800 to 2,000,000 rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks.batch_scaling_tables import SPLITS, splits_folder
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.pipeline.stages.stages import Pipeline

TEST_ROWS = 10_000  # of a generator, so that the noise of a metric is small beside the bound
Splits = dict[str, PackedTable]


@dataclass(frozen=True)
class Table:
    """make: (folder of the cache) -> packed splits. model: settings of the tabular model."""

    name: str
    make: Callable[[Path], Splits]
    model: dict[str, Any]


def packed(frame: pd.DataFrame, target: Target, train: int, valid: int) -> Splits:
    """Rows of a frame in this order: `train` rows, `valid` rows, and the rest to test. Text columns are categories."""
    columns = []
    for name in frame.columns.drop(target.name):
        text = not pd.api.types.is_numeric_dtype(frame[name])
        columns.append(Column(name, "categorical" if text else "continuous", "string" if text else "float32"))
    kind = "int32" if target.task == "multiclass" else "float32"
    schema = Schema((*columns, Column(target.name, "target", kind)), (target,))
    floats = {column.name: column.dtype for column in schema.columns if column.dtype != "string"}
    bounds = [0, train, train + valid, len(frame)]
    parts = [frame.iloc[a:b].reset_index(drop=True).astype(floats) for a, b in pairwise(bounds)]
    preprocessor = Preprocessor(schema).fit([parts[0]])
    tables = [
        PackedTable.from_rows(preprocessor.tensor_schema, torch.from_dlpack(preprocessor.pack(part))) for part in parts
    ]
    return dict(zip(SPLITS, tables, strict=True))


def from_recipe(config: str, *overrides: str) -> Splits:
    """The tables of a configuration's features and encode stages."""
    with tempfile.TemporaryDirectory() as temporary:
        folders = [f"{name}={temporary}/{name}" for name in ("artifacts", "runs")]
        pipeline = Pipeline.from_config(config, *overrides, *folders, "engine=pandas", "device=cpu")
        encoded = pipeline.features().encode()
        tables = {split: encoded.table(split) for split in SPLITS}
        return {split: PackedTable(table.words.clone(), table.schema) for split, table in tables.items()}


def from_cache(name: str, rows: int) -> Callable[[Path], Splits]:
    """A table of benchmarks.batch_scaling."""

    def make(cache: Path) -> Splits:
        folder = splits_folder(cache, name, rows)
        return {split: PackedTable.load(folder / split, mmap=False) for split in SPLITS}

    return make


def adult(cache: Path) -> Splits:
    folder = Path(__file__).parents[2] / "shared/data/adult"
    files = [f"features.{split}_path={folder}/adult.{name}" for split, name in (("train", "data"), ("test", "test"))]
    return from_recipe("conf/adult.yaml", *files)


def shop(cache: Path) -> Splits:
    """Orders that come back or not: 45,600 train rows, some rare ids, money with a long tail, AUC of about .7."""
    random, rows = np.random.default_rng(12), 45_600 + 2 * TEST_ROWS
    sizes = {"customer": 6000, "product": 900, "category": 24, "channel": 4, "city": 250}
    ids = {name: np.minimum(random.zipf(1.4, rows) - 1, size - 1) for name, size in sizes.items()}
    price, quantity = random.lognormal(3, 0.8, rows), random.integers(1, 6, rows)
    days, discount = random.exponential(30, rows), random.choice([0, 0.1, 0.25, 0.5], rows)
    effects = {name: random.normal(0, 0.5, size)[ids[name]] for name, size in sizes.items()}
    logit = -1.3 + sum(effects.values()) + 0.5 * (np.log(price) - 3) + 1.5 * discount - 0.3 * np.log1p(days) + 0.8
    logit += 0.8 * np.sin(days / 10) * (ids["channel"] == 0) + 0.2 * (quantity > 3) * effects["category"]
    frame = pd.DataFrame({name: np.char.add(name[0], codes.astype(str)) for name, codes in ids.items()})
    frame = frame.assign(price=price, quantity=quantity, days=days, discount=discount)
    frame["returned"] = random.random(rows) < 1 / (1 + np.exp(-logit))
    return packed(frame, Target("returned", "binary"), 45_600, TEST_ROWS)


def houses(cache: Path) -> Splits:
    """Prices as of a map: two centres, skewed incomes, some districts. In money, so far from 0."""
    random, rows = np.random.default_rng(5), 20_000 + 2 * TEST_ROWS
    east, north = random.uniform(-1, 1, (2, rows))
    income, age = random.lognormal(1.2, 0.5, rows), random.integers(1, 52, rows)
    rooms, people = random.normal(5.4, 1.2, rows).clip(1), random.lognormal(1, 0.4, rows)
    near = np.exp(-4 * np.hypot(east - 0.3, north + 0.5)) + 0.7 * np.exp(-5 * np.hypot(east + 0.6, north - 0.4))
    district = random.integers(0, 12, rows)
    price = 40_000 * income * (1 + 2 * near) + 15_000 * np.sqrt(age) * near + 9000 * rooms / people
    price = (price + random.normal(0, 12_000, 12)[district]) * random.lognormal(0, 0.12, rows)
    frame = pd.DataFrame({"east": east, "north": north, "income": income, "age": age, "rooms": rooms, "people": people})
    frame["district"] = np.char.add("d", district.astype(str))
    frame["price"] = price.clip(max=500_000)
    return packed(frame, Target("price", "regression"), 20_000, TEST_ROWS)


def friedman(cache: Path) -> Splits:
    from sklearn.datasets import make_friedman1

    values, target = make_friedman1(2000 + 1000 + TEST_ROWS, n_features=10, noise=1.0, random_state=3)
    frame = pd.DataFrame(values, columns=[f"x{i}" for i in range(10)]).assign(y=target)
    return packed(frame, Target("y", "regression"), 2000, 1000)


def classes(cache: Path) -> Splits:
    from sklearn.datasets import make_classification

    rows = 10_000 + 2 * TEST_ROWS
    shape = {"n_features": 20, "n_informative": 10, "n_classes": 5, "class_sep": 0.7, "flip_y": 0.05}
    values, target = make_classification(rows, **shape, random_state=4)
    frame = pd.DataFrame(values, columns=[f"x{i}" for i in range(20)]).assign(kind=target)
    return packed(frame, Target("kind", "multiclass", 5), 10_000, TEST_ROWS)


def digits(cache: Path) -> Splits:
    from sklearn.datasets import load_digits

    values, target = load_digits(return_X_y=True)
    order = np.random.default_rng(6).permutation(len(target))
    frame = pd.DataFrame(values[order], columns=[f"p{i}" for i in range(64)]).assign(digit=target[order])
    return packed(frame, Target("digit", "multiclass", 10), 1000, 200)


TABLES = [
    Table("digits", digits, {}),
    Table("friedman", friedman, {}),
    Table("classes", classes, {}),
    Table("houses", houses, {}),
    Table("adult", adult, {}),
    Table("shop", shop, {}),
    Table("trivago", from_cache("trivago", 100_000), {"embedding_width_max": 16}),
    Table("flights", lambda cache: from_recipe("conf/flights.yaml"), {"embedding_width_max": 16}),
    Table("pairs", from_cache("pairs", 2_000_000), {"embedding_width_max": 16}),
]
