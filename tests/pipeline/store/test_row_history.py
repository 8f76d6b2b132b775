"""Rows with a history are computed once, and night after night the result is that of a full run, bit for bit."""

import json
import os
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.store import row_history
from gigabatch.pipeline.store.artifacts import ArtifactStore
from gigabatch.pipeline.store.garbage import collect_artifacts
from gigabatch.pipeline.store.parsed_files import ParsedFiles
from gigabatch.pipeline.store.row_history import RowHistory

STEPS = (
    {"date_parts": {"column": "at", "parts": ["hour"], "prefix": "at", "unit": "min"}},
    *(
        {"rolling": {"by": [by], "time": "at", "column": column, "window": window, "statistic": how, "output": name}}
        for by, column, window, how, name in (
            ("user", "x", 3, "sum", "x3"), ("user", "x", 40, "mean", "x40"), ("item", "x", 9, "max", "top"),
            ("item", "y", 20, "min", "low"), ("user", "late", 10_000, "mean", "late_all"), ("user", "x", 1, "count", "n"),
        )
    ),
    {"rolling": {"by": ["user", "item"], "time": "at", "column": "late", "window": 25, "statistic": "sum",
                 "output": "pair"}},
    {"target_encoding": {"by": ["user"], "hits": "late", "output": "rate", "at": "at"}},
    {"target_encoding": {"by": ["user", "item"], "hits": "x", "trials": "trials", "output": "folded", "at": "at",
                         "fold": "fold"}},
    {"difference_lag": {"by": ["user"], "order": "seq", "column": "y", "output": "lag2", "lag": 2}},
    {"rolling": {"by": ["item"], "time": "at", "column": "n", "window": 12, "statistic": "sum", "output": "of_made"}},
    {"waiting": {"by": ["item"], "planned_at": "at", "happened_at": "happened", "output": "queue"}},
    {"join_groupby": {"by": ["item"], "values": ["x40"], "statistics": ["mean"]}},
    {"rolling": {"by": ["item"], "time": "at", "column": "x", "window": 5, "statistic": "sum", "output": "after_fit"}},
)  # fmt: skip
MADE = ["x3", "x40", "top", "low", "late_all", "n", "pair", "rate", "folded", "lag2", "of_made", "queue",
        "queue_min_mean", "x40_mean_by_item", "after_fit", "at_hour"]  # fmt: skip
LOOK_BACK = 13  # of STEPS, up to the first that is fitted


def rows_of(seed: int, rows: int = 300) -> pd.DataFrame:
    """Rows in order of time, many of a moment; nulls in keys, values, outcomes and labels."""
    random = np.random.default_rng(seed)

    def gaps(values, share):
        return pd.Series(values).astype("object").where(random.random(rows) >= share)

    at = 1000 + np.sort(random.integers(0, rows // 4, rows))
    return pd.DataFrame(
        {
            "at": at,
            "seq": np.arange(rows),
            "user": gaps(random.choice(list("abcdefgh"), rows), 0.1),
            "item": gaps(random.choice(["p", "q", "r"], rows), 0.05),
            "x": gaps(random.integers(-5, 9, rows), 0.2),
            "y": gaps(random.normal(size=rows).round(4), 0.2),
            "trials": random.integers(1, 4, rows),
            "fold": random.integers(0, 3, rows),
            "happened": gaps(at + random.integers(-3, 15, rows), 0.2),
            "late": gaps(random.integers(0, 2, rows), 0.15),
        }
    )


def settings_of(folder: Path, **more) -> dict:
    return {
        "path": f"{folder}/d-*.csv", "categorical": ["user", "item"], "continuous": ["x", "y", *MADE],
        "targets": {"late": {"task": "binary"}}, "time": "at", "drop_null_targets": True, "steps": STEPS,
        "inputs": {"seq": "int64", "x": "float64", "trials": "int64", "fold": "int64", "happened": "float64"},
    } | more  # fmt: skip


class Nights:
    """A folder of files, a store, and runs of a recipe with and without a history."""

    def __init__(self, folder: Path, recipe=TableRecipe, settings=None) -> None:
        self.folder, self.raw = folder, folder / "raw"
        self.raw.mkdir()
        self.store = ArtifactStore(folder / "artifacts", "nights")
        self.recipe = recipe
        self.settings = settings or TableSettings(**settings_of(self.raw))

    def write(self, number: int, rows: pd.DataFrame) -> Path:
        path = self.raw / f"d-{number:03d}.csv"
        rows.to_csv(path, index=False)
        return path

    def night(self, settings=None):
        """(tables, what is told, files)"""
        recipe = self.recipe(settings or self.settings)
        recipe.cache = files = ParsedFiles(self.store, "pandas")
        recipe.history = history = RowHistory(self.store, files, {"recipe": "table", "of": repr(recipe.settings)})
        tables = recipe.build("pandas")
        return tables, history.told, [entry["state"] for entry in files.files]

    def require_equal(self, tables) -> None:
        """The tables are those of a run that knows nothing of histories."""
        whole = self.recipe(self.settings).build("pandas")
        assert tables.schema == whole.schema
        assert tables.notes == whole.notes
        for name, frame in whole.splits.items():
            pd.testing.assert_frame_equal(tables.splits[name], frame, check_exact=True)


@pytest.fixture
def nights(tmp_path, monkeypatch) -> Nights:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    return Nights(tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_any_cut_into_nights_gives_what_a_full_run_gives(nights, seed):
    rows = rows_of(seed)
    random = np.random.default_rng([seed, 1])
    cuts = [0, *np.sort(random.choice(np.arange(60, len(rows)), 5, replace=False)).tolist(), len(rows)]
    for number, (start, stop) in enumerate(zip(cuts, cuts[1:], strict=False)):
        nights.write(number, rows.iloc[start:stop])
        tables, told, files = nights.night()
        nights.require_equal(tables)
        assert told["note"] is None
        assert files == ["carried"] * number + ["read"]
        known = rows.iloc[:start].dropna(subset=["late"])
        # Finished are the rows before the last moment that was there.
        finished = int((known["at"] < known["at"].max()).sum()) if number else 0
        assert told["reused"] == finished
        assert told["computed"] == int(rows.iloc[:stop]["late"].notna().sum()) - finished
    assert finished > 100
