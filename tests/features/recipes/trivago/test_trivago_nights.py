"""The trivago recipe night after night: the result is that of a full run over the same files, bit for bit."""

import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.recipes.base import SplitFractions
from gigabatch.features.recipes.trivago import nights as nights_module
from gigabatch.features.recipes.trivago.history import NONE
from gigabatch.features.recipes.trivago.log import CLICKOUT, LOG, SEARCH_ITEM, SORT_CHANGE, VIEWS
from gigabatch.features.recipes.trivago.nights import Runs, merged_run, narrow, read_lists, wide, write_lists
from gigabatch.features.recipes.trivago.recipe import TrivagoRecipe, TrivagoSettings, run_here
from gigabatch.pipeline.store import row_history
from gigabatch.pipeline.store.artifacts import ArtifactStore
from gigabatch.pipeline.store.garbage import collect_artifacts
from gigabatch.pipeline.store.parsed_files import ParsedFiles
from gigabatch.pipeline.store.row_history import RowHistory

SPLITS = ("train", "valid", "test", "score")
NUMBERS = {"valid_rows": 12, "test_rows": 9}
WORDS = ("WiFi", "Pool", "Bar")


def random_log(seed: int, rows: int, start: int = 1000) -> pd.DataFrame:
    """Rows in order of time, several of a moment and of a session's step. Sessions and users go on for long."""
    random = np.random.default_rng(seed)
    times = start + np.sort(random.integers(0, rows // 2, rows))
    newest = np.arange(rows) * 30 // rows
    session = np.maximum(newest - np.minimum(random.geometric(0.7, rows) - 1, 9), 0)
    made = []
    for at, number in zip(times, session, strict=True):
        action = random.choice([CLICKOUT, CLICKOUT, VIEWS[0], VIEWS[1], SEARCH_ITEM, SORT_CHANGE, "filter selection"])
        shown = random.integers(1, 15, random.integers(2, 6))  # an item may stand in a list twice
        item = random.choice(shown) if random.random() < 0.9 else 99
        reference, lists = str(item), ["", ""]
        if action == CLICKOUT:
            reference = "" if random.random() < 0.25 else reference
            if random.random() < 0.9:
                lists = ["|".join(map(str, shown)), "|".join(map(str, random.integers(10, 200, len(shown))))]
        elif action == SORT_CHANGE:
            reference = random.choice(["price", "rating", f"by {number % 4}", ""])
        elif action == "filter selection":
            reference = "WiFi"
        blank = random.random(4) < 0.1
        where = [random.choice(["DE", "US"]), random.choice(["Bonn", "Oslo", f"town {number // 8}"]), "mobile",
                 "|".join(random.choice([*WORDS, f"f{number // 9}"], 2))]  # fmt: skip
        where = ["" if empty else text for empty, text in zip(blank, where, strict=True)]
        made.append([f"u{number % 7}", f"s{number * 37 % 41:02d}", at, random.integers(1, 4), action, reference,
                     *where, *lists])  # fmt: skip
    return pd.DataFrame(made, columns=list(LOG)).astype("str")


class Nights:
    """A folder of files, a store, and runs of the recipe with and without a history."""

    def __init__(self, folder, **settings) -> None:
        self.folder, self.raw = folder, folder / "raw"
        self.raw.mkdir()
        self.store = ArtifactStore(folder / "artifacts", "nights")
        settings = {"num_folds": 3, "ctr_smoothing": 2.0, "target_smoothing": 3.0} | settings
        self.settings = TrivagoSettings(path=str(self.raw), train="day-*.csv", **settings)
        self.leave_out: set[str] = set()
        self.number = 0
        self.write("test", random_log(77, 6, 1010))
        metadata = pd.DataFrame({"item_id": range(1, 15), "properties": [WORDS[i % 3] for i in range(14)]})
        metadata.to_csv(self.raw / "item_metadata.csv", index=False)

    def write(self, name, rows) -> None:
        rows.to_csv(self.raw / f"{name}.csv", index=False)

    def night(self, weight=400, settings=None, block_bytes=10**9, run=run_here):
        """(parts, frames by split, what is told, states of files)"""
        recipe = TrivagoRecipe(settings or self.settings)
        recipe.cache = files = ParsedFiles(self.store, "pandas")
        recipe.leave_out = frozenset(self.leave_out)
        recipe.history = history = RowHistory(self.store, files, {"recipe": "trivago", "of": repr(recipe.settings)})
        self.number += 1
        self.out = self.folder / f"out-{self.number}"
        self.out.mkdir()
        parts = recipe.write_parts("pandas", self.out, weight, run, block_bytes)
        return parts, frames_of(self.out), history.told, [entry["state"] for entry in files.files]

    def require_full(self, parts, frames) -> None:
        """The result is that of a run that knows nothing of histories."""
        folder = self.folder / "full"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        recipe = TrivagoRecipe(self.settings)
        recipe.leave_out = frozenset(self.leave_out)
        whole = recipe.write_parts("pandas", folder, 10**9, run_here)
        assert whole == parts
        for name, frame in frames_of(folder).items():
            pd.testing.assert_frame_equal(frames[name], frame, check_exact=True)

    def require_good_night(self, **how):
        """A night whose result is that of a full run; what is told, and states of files. None, None for an error, which
        is that of a full run too."""
        try:
            parts, frames, told, files = self.night(**how)
        except DataError as error:  # too few rows for three splits
            with pytest.raises(DataError, match=re.escape(str(error))):
                self.require_full(None, None)
            return None, None
        self.require_full(parts, frames)
        assert told["reused"] + told["computed"] == sum(parts.rows.values())
        return told, files


def frames_of(folder):
    paths = {name: sorted((folder / name).glob("part-*.parquet")) for name in SPLITS}
    assert all(path.name.startswith("part-") for name in SPLITS for path in (folder / name).iterdir())
    return {
        name: pd.concat([pd.read_parquet(path) for path in parts], ignore_index=True) for name, parts in paths.items()
    }


@pytest.fixture
def nights(tmp_path, monkeypatch) -> Nights:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(row_history, "source_hash", lambda modules: "these")  # a hundred files, read each time
    return Nights(tmp_path)


def cut(random, log, number) -> list[pd.DataFrame]:
    """The log in files, one after the other; rows of a cut's moment fall on either side, in any order in a file."""
    at = log["timestamp"].astype("int64")
    ends = np.sort(random.choice(np.unique(at)[3:-3], number - 1, replace=False))
    place = np.searchsorted(ends, at, side="left") + (np.isin(at, ends) & (random.random(len(log)) < 0.5))
    return [log[place == k].sample(frac=1, random_state=k) for k in range(number)]


@pytest.mark.parametrize("seed", range(4))
def test_random_nights_are_full_runs(nights, seed):
    """Whatever the cuts, the chunks, the blocks, the splits, and whether the test file is early, in between or late."""
    random = np.random.default_rng(seed)
    if seed % 2:
        nights.settings = replace(nights.settings, split=SplitFractions(**NUMBERS))
    log = random_log(seed, 360)
    nights.write("test", random_log(100 + seed, 12, (900, 1090, 5000)[seed % 3]))
    reused = []
    for number, rows in enumerate(cut(random, log, 5)):
        nights.write(f"day-{number}", rows)
        weight, block_bytes = (int(random.choice(sizes)) for sizes in ((150, 400, 10**9), (900, 10**9)))
        told, files = nights.require_good_night(weight=weight, block_bytes=block_bytes)
        if told is not None:
            assert told["note"] is None
            assert not reused or (files.count("read"), files.count("carried")) == (1, number + 1)
            reused.append(told["reused"])
    assert len(reused) > 1
    assert all(np.diff(reused) > 0)
    assert reused[-1] > 200
