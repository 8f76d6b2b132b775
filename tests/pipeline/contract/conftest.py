"""Days of a shop as CSV files, and the configuration that reads them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

if TYPE_CHECKING:  # a box that lacks a package of these collects the other tests all the same
    from gigabatch.pipeline.config.config import RunConfig

DAY = 86_400
START = 1_700_000_000 // DAY * DAY


def shop_day(day: int, rows: int = 2000, rate: float = 0.3) -> pd.DataFrame:
    """Rows of a day in order of time, in seconds since 1970; a fifth of the users is new each day."""
    random = np.random.default_rng(day)
    return pd.DataFrame(
        {
            "at": START + day * DAY + np.sort(random.integers(0, DAY, rows)),
            "user": [f"u{n}" for n in random.integers(day * 20, day * 20 + 100, rows)],
            "city": random.choice(["Oslo", "Bonn", "Lima"], rows, p=[0.5, 0.3, 0.2]),
            "price": np.where(random.random(rows) < 0.05, np.nan, random.gamma(4, 10, rows).round(2)),
            "bought": (random.random(rows) < rate).astype(int),
            "note": "x",
        }
    )


def end_of(day: int) -> float:
    """A moment after the rows of a day."""
    return float(START + (day + 1) * DAY + 3600)


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    """A folder with six days, and how to write more and to configure a run."""
    return Shop(tmp_path)


@pytest.fixture(scope="module")
def learned_as(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Shop]:
    """A shop whose contract was learned, as a copy of the first that was learned so, at the same path."""
    kept: dict[str, tuple[Shop, Path]] = {}

    def learned(**options: Any) -> Shop:
        from gigabatch.pipeline.contract.decide import learn_contract

        if repr(options) not in kept:
            shop = Shop(tmp_path_factory.mktemp("learned"))
            learn_contract(shop.config(), **options)
            kept[repr(options)] = shop, shutil.copytree(shop.root, shop.root.with_name(f"{shop.root.name}-kept"))
        shop, saved = kept[repr(options)]
        shutil.rmtree(shop.root)
        shutil.copytree(saved, shop.root)
        return copy(shop)

    return learned


class Shop:
    def __init__(self, root: Path) -> None:
        self.root, self.raw = root, root / "raw"
        self.raw.mkdir()
        for day in range(6):
            self.write(day, shop_day(day))

    def write(self, day: int | str, frame: pd.DataFrame, **options: Any) -> Path:
        path = self.raw / (f"day-{day:03d}.csv" if isinstance(day, int) else day)
        frame.to_csv(path, **({"index": False} | options))
        return path

    def config(self, **features: Any) -> RunConfig:
        from gigabatch.pipeline.config.config import RunConfig

        given = {
            "path": str(self.raw), "time": "at", "categorical": ["user", "city"], "continuous": ["price"],
            "targets": {"bought": {"task": "binary"}},
        }  # fmt: skip
        return RunConfig(
            name="shop", recipe="table", features=given | features, engine="pandas", device="cpu",
            runs=str(self.root / "runs"), artifacts=str(self.root / "artifacts"),
        )  # fmt: skip
