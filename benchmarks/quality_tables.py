"""The tables of `benchmarks.quality`: real ones, a synthetic trivago log, and generated ones of every task.

Each is a configuration file of a recipe with its features alone: models and training have their defaults. A generated
table is a function of its number of rows, the same each time, as train.parquet and test.parquet; the recipe cuts the
valid split off the former. Tests have 10,000 rows and more, so that a metric's noise is small beside the differences.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import needed

with needed():
    from ruamel.yaml import YAML

    from gigabatch.features.synthetic import trivago, trivago_sessions, trivago_world

ROOT = Path(__file__).parents[1]
TEST_ROWS = 10_000
LISTS: Features = {"history": {"shares": "item", "max_length": 30}, "tags": {}}  # of generated tables that have some
Features = dict[str, Any]
Frame = tuple[pd.DataFrame, str, str]  # rows, target, its task


@dataclass(frozen=True)
class Table:
    """make: (folder to write into, rows) -> the `features` section. rows: None where files say how many.

    config: of conf/, whose settings are the contender `ours_conf`.
    """

    name: str
    make: Callable[[Path, int], Features]
    rows: int | None = None
    quick_rows: int | None = None
    recipe: str = "table"
    config: str | None = None
    large: bool = False


def plain_config(table: Table, cache: Path, quick: bool = False) -> Path:
    """The YAML file of the table's features; its files are made where they are not there.

    The folder's name holds the rows and the generators' source, so that a changed generator makes its table anew.
    """
    rows = table.quick_rows if quick else table.rows
    source = hashlib.blake2b(digest_size=4)
    for file in (__file__, trivago.__file__, trivago_sessions.__file__, trivago_world.__file__):
        source.update(Path(file).read_bytes())
    folder = cache / "tables" / f"{table.name}-{rows or 'files'}-{source.hexdigest()}"
    path = folder / "table.yaml"
    if not path.exists():
        shutil.rmtree(folder, ignore_errors=True)  # what a run that was cut off left
        folder.mkdir(parents=True)
        content = {"name": table.name, "recipe": table.recipe, "features": table.make(folder, rows or 0)}
        unfinished = folder / "unfinished"
        unfinished.write_text(json.dumps(content, indent=1, allow_nan=False))  # which is YAML, too
        unfinished.rename(path)
    return path


def configured(name: str) -> Features:
    """The `features` section of a file of conf/."""
    found: Features = YAML(typ="safe").load((ROOT / f"conf/{name}.yaml").read_text())["features"]
    return found


def adult(folder: Path, rows: int) -> Features:
    files = ROOT.parent / "shared/data/adult"
    paths = {f"{split}_path": str(files / f"adult.{end}") for split, end in (("train", "data"), ("test", "test"))}
    return {**configured("adult"), **paths}


def flights(folder: Path, rows: int) -> Features:
    return configured("flights")


def trivago_log(folder: Path, rows: int) -> Features:
    trivago.write_synthetic_log(folder / "log", rows, seed=11)
    return {"path": str(folder / "log")}


def generated(frame_of: Callable[[int], Frame]) -> Callable[[Path, int], Features]:
    """`make` of a table of `rows` rows and as many test rows as `TEST_ROWS`. Text columns are categories."""

    def make(folder: Path, rows: int) -> Features:
        frame, target, task = frame_of(rows + TEST_ROWS)
        frame.iloc[:rows].to_parquet(folder / "train.parquet")
        frame.iloc[rows:].reset_index(drop=True).to_parquet(folder / "test.parquet")
        plain = [name for name in frame.columns.drop(target) if name not in LISTS]
        text = {name: not pd.api.types.is_numeric_dtype(frame[name]) for name in plain}
        lists = {name: options for name, options in LISTS.items() if name in frame}
        return {
            **({"lists": lists} if lists else {}),
            "train_path": str(folder / "train.parquet"),
            "test_path": str(folder / "test.parquet"),
            "categorical": [name for name, is_text in text.items() if is_text],
            "continuous": [name for name, is_text in text.items() if not is_text],
            "targets": {target: {"task": task}},
        }

    return make


def codes(letter: str, numbers: np.ndarray) -> np.ndarray:
    """Whole numbers as text, such as c12."""
    return np.char.add(letter, numbers.astype(str)).astype(object)


def happens(random: np.random.Generator, logit: np.ndarray) -> np.ndarray:
    """0 or 1 for each row, with the chance that the logit says."""
    return (random.random(len(logit)) < 1 / (1 + np.exp(-logit))).astype("float64")


def few_of_many(random: np.random.Generator, size: int, rows: int, exponent: float) -> np.ndarray:
    """Numbers below `size`, the k-th drawn as often as k^-exponent says; their order tells nothing else."""
    shares = np.arange(1, size + 1) ** -exponent
    return random.permutation(size)[np.searchsorted(np.cumsum(shares / shares.sum())[:-1], random.random(rows))]


def regression(rows: int) -> Frame:
    """Friedman's function of ten numbers, five of which are noise, seen through skewed scales, and a region's level."""
    random = np.random.default_rng(21)
    u = random.random((rows, 10))
    region = few_of_many(random, 40, rows, 0.8)
    value = 10 * np.sin(np.pi * u[:, 0] * u[:, 1]) + 20 * (u[:, 2] - 0.5) ** 2 + 10 * u[:, 3] + 5 * u[:, 4]
    value += random.normal(0, 1.5, 40)[region] * (1 + u[:, 3]) + random.normal(0, 1, rows)
    seen = {"x0": np.exp(6 * u[:, 0]), "x1": u[:, 1] ** 4, "x2": u[:, 2], "x3": -np.log(1 - 0.999 * u[:, 3])}
    seen |= {f"x{i}": (u[:, i] if i % 2 else np.exp(4 * u[:, i])) for i in range(4, 10)}
    return pd.DataFrame({**seen, "region": codes("r", region), "price": 20 + 3 * value}), "price", "regression"


def multiclass(rows: int) -> Frame:
    """Seven classes of unequal size, each of two clusters, and two categories that hang together with numbers."""
    from sklearn.datasets import make_classification

    values, kind = make_classification(
        rows, n_features=20, n_informative=10, n_classes=7, n_clusters_per_class=2, class_sep=1.0, flip_y=0.03,
        weights=[0.36, 0.28, 0.12, 0.08, 0.07, 0.05], random_state=22,
    )  # fmt: skip
    frame = pd.DataFrame(values, columns=[f"x{i}" for i in range(20)])
    random = np.random.default_rng(22)
    for name, column in (("soil", 0), ("area", 1)):
        noisy = values[:, column] + random.normal(0, 0.5, rows)
        frame[name] = codes(name[0], np.digitize(noisy, np.quantile(noisy, np.linspace(0, 1, 31)[1:-1])))
    return frame.assign(kind=codes("k", kind)), "kind", "multiclass"


def small(rows: int) -> Frame:
    """Patients: few rows, three categories, numbers with gaps, two of which work together."""
    random = np.random.default_rng(23)
    age, pressure, sugar = random.uniform(20, 90, rows), random.normal(130, 18, rows), random.lognormal(4.7, 0.25, rows)
    weight, visits, dose = random.normal(78, 14, rows), random.poisson(2, rows), random.choice([0.0, 5, 10, 20], rows)
    ward, drug, smoker = random.integers(0, 8, rows), random.integers(0, 4, rows), random.random(rows) < 0.3
    logit = -1.2 + 0.04 * (age - 55) + 0.03 * (pressure - 130) * (age > 50) + 2 * (np.log(sugar) - 4.7) + 0.7 * smoker
    logit += random.normal(0, 0.6, 8)[ward] - 0.06 * dose * (drug == 2) + 0.25 * (visits > 3) * (weight > 85)
    frame = pd.DataFrame({"age": age, "pressure": pressure, "sugar": sugar, "weight": weight, "visits": visits})
    frame = frame.assign(dose=dose, ward=codes("w", ward), drug=codes("d", drug), smoker=np.where(smoker, "yes", "no"))
    ill = happens(random, logit)
    frame.loc[random.random(rows) < 0.2, "sugar"] = np.nan
    return frame.assign(ill=ill), "ill", "binary"


def ids(rows: int) -> Frame:
    """Clicks of 60,000 users on 20,000 items, most of both rare: levels, tastes in four directions, hour and device."""
    random = np.random.default_rng(24)
    sizes = {"user": (60_000, 0.7), "item": (20_000, 0.9), "city": (800, 0.9), "device": (5, 0.5)}
    drawn = {name: few_of_many(random, size, rows, exponent) for name, (size, exponent) in sizes.items()}
    levels = {name: random.normal(0, 0.6, size)[drawn[name]] for name, (size, _) in sizes.items()}
    tastes = {name: random.normal(0, 0.6, (sizes[name][0], 4))[drawn[name]] for name in ("user", "item")}
    hour, price = random.integers(0, 24, rows), random.lognormal(3, 0.7, rows)
    logit = sum(levels.values()) + (tastes["user"] * tastes["item"]).sum(1) - 1.2
    logit += 0.4 * np.sin(hour / 24 * 2 * np.pi) - 0.4 * (np.log(price) - 3) * (1 + levels["user"])
    frame = pd.DataFrame({name: codes(name[0], numbers) for name, numbers in drawn.items()})
    return frame.assign(hour=hour, price=price, clicked=happens(random, logit)), "clicked", "binary"


def skewed(rows: int) -> Frame:
    """Accounts: amounts over five powers of ten, most of them 0, gaps that tell something, counts and ratios."""
    random = np.random.default_rng(25)
    wealth = random.normal(0, 1, rows)
    amounts = {f"amount{i}": random.lognormal(4 + i + 0.8 * wealth * (i < 2), 1.5) for i in range(4)}
    idle = {name: random.random(rows) < share for name, share in zip(amounts, (0.1, 0.6, 0.85, 0.97), strict=True)}
    seen = {name: np.where(idle[name], 0, value) for name, value in amounts.items()}
    count, age = random.negative_binomial(1, 0.1, rows), random.exponential(400, rows)
    limit, branch = random.choice([100.0, 500, 1000, 5000, 20_000], rows), few_of_many(random, 60, rows, 1.0)
    logs = {name: np.log1p(value) for name, value in seen.items()}
    logit = -2 + 0.35 * (logs["amount0"] - 4) - 0.8 * wealth + 0.9 * ~idle["amount2"] - 0.25 * logs["amount1"]
    logit += 1.5 * np.exp(-((np.log(age + 1) - 5) ** 2)) + 0.7 * (seen["amount0"] > 0.5 * limit)
    logit += 0.02 * np.minimum(count, 40) + random.normal(0, 0.4, 60)[branch] + 2 * ~idle["amount3"] * (count > 10)
    frame = pd.DataFrame({**seen, "count": count, "age": age, "limit": limit, "wealth": np.exp(3 * wealth)})
    frame["branch"] = codes("b", branch)
    left = happens(random, logit)
    frame.loc[random.random(rows) < 0.15 + 0.3 * left, "wealth"] = np.nan
    frame.loc[random.random(rows) < 0.3, "age"] = np.nan
    return frame.assign(left=left), "left", "binary"


def histories(rows: int) -> Frame:
    """Offers of 400 items to people of whom the items of before are known, newest last, and an offer's tags.

    Tastes have six directions; whoever has had an item lately wants it less, and one tag is worth more to the young.
    """
    random = np.random.default_rng(27)
    num_items, longest = 400, 40
    items, tastes = random.normal(0, 0.8, (num_items, 6)), random.normal(0, 0.8, (rows, 6))
    popular = random.permutation(np.arange(1, num_items + 1) ** -0.7)
    item = few_of_many(random, num_items, rows, 0.7)
    lengths = np.minimum(random.geometric(0.08, rows) - 1, longest)
    past = np.empty((rows, longest), np.int64)
    for start in range(0, rows, 20_000):  # Gumbel's maximum: an item by its popularity and the taste, without repeats
        block = slice(start, start + 20_000)
        chance = 1.5 * tastes[block] @ items.T + np.log(popular)
        past[block] = np.argsort(-(chance + random.gumbel(size=chance.shape)), axis=1)[:, :longest]
    last = lengths[:, None] - np.arange(longest) <= 3
    had = ((past == item[:, None]) & last & (np.arange(longest) < lengths[:, None])).any(1)
    tags = [random.choice(60, size=count, replace=False) for count in random.integers(0, 5, rows)]
    worth, age, hour = random.normal(0, 0.5, 60), random.uniform(16, 80, rows), random.integers(0, 24, rows)
    logit = 1.2 * (tastes * items[item]).sum(1) - 0.8 - 1.5 * had + 0.3 * np.sin(hour / 24 * 2 * np.pi)
    logit += np.array([worth[one].sum() for one in tags])
    logit += np.array([1.5 * (7 in one) for one in tags]) * (age < 30)
    frame = pd.DataFrame({"item": codes("i", item), "age": age, "hour": hour})
    named = codes("i", np.arange(num_items))
    frame["history"] = [list(named[row[:count]]) for row, count in zip(past, lengths, strict=True)]
    frame["tags"] = [[f"t{tag}" for tag in one] for one in tags]
    return frame.assign(taken=happens(random, logit)), "taken", "binary"


def large(rows: int) -> Frame:
    """Offers: rare ids and skewed numbers together, with 200,000 users."""
    random = np.random.default_rng(26)
    sizes = {"user": (200_000, 0.6), "shop": (5000, 0.9), "brand": (1500, 0.9), "kind": (40, 0.6)}
    drawn = {name: few_of_many(random, size, rows, exponent) for name, (size, exponent) in sizes.items()}
    levels = {name: random.normal(0, 0.5, size)[drawn[name]] for name, (size, _) in sizes.items()}
    price, days = random.lognormal(3, 1, rows), random.exponential(60, rows)
    past = np.where(random.random(rows) < 0.6, 0, random.negative_binomial(1, 0.2, rows))
    logit = sum(levels.values()) - 1.5 + 0.6 * np.sin(2 * np.log(price)) - 0.3 * np.log1p(days) * (past > 0)
    logit += 0.3 * np.log1p(past) + random.normal(0, 0.4, (40, 1500))[drawn["kind"], drawn["brand"]]
    frame = pd.DataFrame({name: codes(name[0], numbers) for name, numbers in drawn.items()})
    frame = frame.assign(price=price, days=days, past=past, bought=happens(random, logit))
    return frame, "bought", "binary"


TABLES = {
    table.name: table
    for table in (
        Table("flights", flights, recipe="flights", config="flights"),
        Table("adult", adult, config="adult"),
        Table("trivago", trivago_log, 100_000, 20_000, recipe="trivago", config="trivago"),
        Table("small", generated(small), 2000, 600),
        Table("regression", generated(regression), 20_000, 600),
        Table("multiclass", generated(multiclass), 20_000, 1000),
        Table("skewed", generated(skewed), 50_000, 600),
        Table("histories", generated(histories), 100_000, 600),
        Table("ids", generated(ids), 500_000, 600),
        Table("large", generated(large), 2_000_000, 600, large=True),
    )
}
