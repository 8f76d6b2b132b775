"""A log of interactions for the tests of the recipes that read one."""

import numpy as np
import pandas as pd

from gigabatch.features.recipes.interactions.recipe import InteractionsRecipe, InteractionsSettings

SPLITS = ("train", "valid", "test")
COLUMNS = {"user": "who", "item": "what", "time": "when", "rating": "stars"}


def build(folder, frame, name="log.csv", **settings):
    frame.to_csv(folder / name, index=False)
    settings = COLUMNS | settings
    return InteractionsRecipe(InteractionsSettings(path=str(folder / name), **settings)).build("pandas")


def all_rows(tables):
    return pd.concat([tables.splits[name] for name in SPLITS])


def make_log():
    rng = np.random.default_rng(5)
    size = 4000
    frame = pd.DataFrame({
        "who": [f"u{n:03d}" for n in rng.integers(0, 150, size)], "what": [f"i{n}" for n in rng.integers(0, 60, size)],
        "when": rng.integers(0, 10_000, size), "stars": rng.integers(1, 11, size) / 2,
        "place": rng.choice(["home", "work", "road", None], size), "hour": rng.integers(0, 24, size),
        "price": rng.gamma(2, 3, size).round(2),
    })  # fmt: skip
    return frame.drop_duplicates(["who", "what"], ignore_index=True)
