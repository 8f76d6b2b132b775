"""The trivago recipe night after night: the result is that of a full run over the same files, bit for bit."""

import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
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
from gigabatch.pipeline.store.keys import file_checksum
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
        settings = {"num_folds": 3, "ctr_smoothing": 2.0, "split": SplitFractions(0.4, 0.3, 0.3)} | settings
        self.settings = TrivagoSettings(path=str(self.raw), train="day-*.csv", **settings)
        self.leave_out: set[str] = set()
        self.number = 0
        self.write("test", random_log(77, 6, 1010))
        metadata = pd.DataFrame({"item_id": range(1, 15), "properties": [WORDS[i % 3] for i in range(14)]})
        metadata.to_csv(self.raw / "item_metadata.csv", index=False)

    def write(self, name, rows) -> None:
        rows.to_csv(self.raw / f"{name}.csv", index=False)

    def night(self, weight=1000, settings=None, block_bytes=10**9, run=run_here):
        """(parts, frames by split, what is told, states of files)"""
        recipe = TrivagoRecipe(settings or self.settings)
        recipe.cache = files = ParsedFiles(self.store, "pandas")
        recipe.leave_out = frozenset(self.leave_out)
        recipe.history = history = RowHistory(self.store, files, named_of(recipe))
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


def named_of(recipe):
    return {"recipe": "trivago", "of": repr(replace(recipe.settings, path=""))}


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


@pytest.mark.parametrize("seed", range(3))
def test_random_nights_are_full_runs(nights, seed):
    """Whatever the cuts, the chunks, the blocks, the splits, and whether the test file is early, in between or late."""
    random = np.random.default_rng(seed)
    if seed % 2:
        nights.settings = replace(nights.settings, split=SplitFractions(**NUMBERS))
    log = random_log(seed, 300)
    nights.write("test", random_log(100 + seed, 12, (900, 1090, 5000)[seed % 3]))
    reused = []
    for number, rows in enumerate(cut(random, log, 4)):
        nights.write(f"day-{9 - number if seed > 1 else number}", rows)  # a new file may stand before known ones
        weight, block_bytes = (int(random.choice(sizes)) for sizes in ((200, 10**9), (900, 10**9)))
        told, files = nights.require_good_night(weight=weight, block_bytes=block_bytes)
        if told is not None:
            assert told["note"] is None
            assert not reused or (files.count("read"), files.count("carried")) == (1, number + 1)
            reused.append(told["reused"])
    assert len(reused) > 1
    assert all(np.diff(reused) > 0)
    assert reused[-1] > 150


def lone_sessions(rows: int) -> pd.DataFrame:
    """A clickout a second, each of a session of its own."""
    made = [[f"u{i % 5}", f"s{i}", 1000 + i, 1, CLICKOUT, str(1 + i % 3), "DE", "Bonn", "mobile", "", "1|2|3", "9|8|7"]
            for i in range(rows)]  # fmt: skip
    return pd.DataFrame(made, columns=list(LOG)).astype("str")


@pytest.mark.parametrize("weight", [40, 10**9])
def test_a_session_that_goes_on_takes_its_finished_pairs_to_a_later_split(nights, weight):
    log = lone_sessions(60)
    nights.write("test", log.iloc[:2])
    nights.write("day-0", log.iloc[2:40])
    _, before, _, _ = nights.night(weight=weight)
    late = log.iloc[40:].copy()
    late.loc[late.index[-1], ["user_id", "session_id", "step"]] = ["u0", "s5", "2"]
    nights.write("day-1", late)
    parts, after, told, _ = nights.night(weight=weight)
    nights.require_full(parts, after)
    assert (told["note"], told["reused"]) == (None, 3 * 39)  # all but the last moment's
    assert [(before[name]["session_id"] == "s5").sum() for name in SPLITS] == [3, 0, 0, 0]
    assert [(after[name]["session_id"] == "s5").sum() for name in SPLITS] == [0, 0, 6, 0]
    last = after["test"].tail(3)  # and what it did forty moments ago is known to it
    assert last["session_step"].tolist() == [2, 2, 2]
    assert last["session_clickouts"].tolist() == [1, 1, 1]
    assert last["seconds_since_last_action"].tolist() == [54, 54, 54]
    assert last["session_item_clicks"].tolist() == [0, 0, 1]


def day_after(nights, number):
    """A day of its own sessions, but for a few rows of sessions of the day before."""
    rows = random_log(50 + number, 60, 1000 + 100 * number)
    days = np.full(60, number)
    days[[4, 9]] -= 1
    rows["session_id"] = [f"d{day} {name}" for day, name in zip(days, rows["session_id"], strict=True)]
    nights.write(f"day-{number}", rows)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    """A folder with two nights in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(row_history, "source_hash", lambda modules: "these")
        nights = Nights(tmp_path_factory.mktemp("nights"))
        for number in range(3):
            day_after(nights, number)
        assert nights.night()[2]["reused"] == 0
        day_after(nights, 3)
        told, _ = nights.require_good_night()
        assert (told["note"], told["reused"] > 150) == (None, True)
    return nights


@pytest.fixture
def two_nights(nights, made_once) -> Nights:
    for name in ("raw", "artifacts"):
        shutil.copytree(made_once.folder / name, nights.folder / name, dirs_exist_ok=True)
    nights.number = made_once.number
    return nights


def late_rows(nights):
    nights.write("day-4", random_log(1, 30, 1210))
    return r"a row is of second 12\d\d, before 13\d\d, where finished ones end"


def changed_file(nights):
    nights.write("day-1", random_log(2, 60, 1100))
    return "the file day-1.csv of the last run has changed or is gone"


def vanished_file(nights):
    (nights.raw / "day-2.csv").unlink()
    return "the file day-2.csv of the last run has changed or is gone"


def quarantined_file(nights):
    nights.leave_out.add(str(nights.raw / "day-2.csv"))
    return "the file day-2.csv of the last run has changed or is gone"


def another_test_file(nights):
    nights.write("test", random_log(3, 8, 1500))
    return "the file test.csv of the last run has changed or is gone"


def other_metadata(nights):
    path = nights.raw / "item_metadata.csv"
    path.write_text(path.read_text().replace("Pool", "Sauna"))
    return "tables that are looked up"


def other_settings(nights):
    nights.settings = replace(nights.settings, num_folds=4)
    return "other settings"


def files_in_another_order(nights):
    for name, to in (("day-0", "day-x"), ("day-1", "day-0"), ("day-x", "day-1")):
        (nights.raw / f"{name}.csv").rename(nights.raw / f"{to}.csv")
    return "files stand in another order of names"


def damaged_run(nights):
    for path in nights.store.root.glob("history/*/run-00000.arrow"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    return "is damaged"


def forged_facts(nights):
    """A folder whose checksums are right and whose facts are those of another version."""
    for path in nights.store.root.glob("history/*/state.json"):
        path.write_text("{}")
        manifest = json.loads((path.parent / "manifest.json").read_text())
        manifest["files"]["state.json"] = {"bytes": 2, "checksum": file_checksum(path)}
        (path.parent / "manifest.json").write_text(json.dumps(manifest))
    return "is damaged"


FAULTS = [late_rows, changed_file, vanished_file, quarantined_file, another_test_file, other_metadata, other_settings,
          files_in_another_order, damaged_run, forged_facts]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_does_not_fit_is_said_and_all_is_computed(two_nights, fault):
    reason = fault(two_nights)
    told, files = two_nights.require_good_night()
    assert told["reused"] == 0
    assert re.fullmatch(f"All rows are computed again: .*{reason}.*", told["note"])
    assert "carried" not in files
    day_after(two_nights, 5)
    _, _, told, files = two_nights.night()  # and this run's rows are there for the next one
    assert told["note"] is None
    assert told["reused"] > 100
    assert files.count("read") == 1


def test_a_night_without_a_new_row_and_one_of_the_last_moment_alone(two_nights):
    log = random_log(53, 60, 1300)
    told, files = two_nights.require_good_night(weight=10**9)
    assert (told["note"], files.count("read")) == (None, 0)
    two_nights.write("day-4", log[log["timestamp"] == log["timestamp"].max()])
    told, files = two_nights.require_good_night()
    assert (told["note"], files.count("read")) == (None, 1)
    day_after(two_nights, 5)
    told, _ = two_nights.require_good_night()
    assert told["note"] is None


def test_what_is_shared_is_no_second_file_and_parts_are_few(nights):
    """Nine nights: pairs that stay in train are the same file in the features and in all histories."""
    nights.settings = replace(nights.settings, split=SplitFractions(**NUMBERS))
    for number in range(11):
        day_after(nights, number)
        if number > 1:
            parts, frames, told, _ = nights.night(weight=10**9)
            assert told["note"] is None
    nights.require_full(parts, frames)
    folder = max((nights.store.root / "history").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(list(folder.glob("pairs-*"))) <= 6  # log2 of the nights, and the two that are not of train
    assert len(list(folder.glob("run-*"))) <= 6
    files = {path.stat().st_ino for path in folder.glob("pairs-*")}
    shared = [path for path in (nights.out / "train").iterdir() if path.stat().st_nlink > 1]
    assert sum(len(pd.read_parquet(path)) for path in shared) > 0.7 * parts.rows["train"]
    assert files
    root = nights.store.root
    del nights.store
    collect_artifacts(root, 3)
    assert [path.name for path in root.glob("history/[0-9a-f]*")] == [folder.name]
    nights.store = ArtifactStore(root, "nights")
    day_after(nights, 11)
    assert nights.require_good_night()[0]["reused"] > 500


def test_tasks_of_a_night_may_run_at_once_and_twice(two_nights):
    def twice(function, tasks):
        with ThreadPoolExecutor(3) as pool:
            first = list(pool.map(function, tasks))
            return first if function.__name__ == "code_block" else list(pool.map(function, tasks))

    day_after(two_nights, 4)
    told, _ = two_nights.require_good_night(weight=150, run=twice)
    assert told["reused"] > 200


def test_a_night_that_is_killed_leaves_the_last_history(two_nights, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(source, target):
        raise Killed

    day_after(two_nights, 4)
    with monkeypatch.context() as patch:
        patch.setattr(row_history, "share_file", killed)
        with pytest.raises(Killed):
            two_nights.night()
    told, files = two_nights.require_good_night()
    assert (told["note"], files.count("read")) == (None, 1)


def test_a_file_that_both_patterns_name_is_read_twice_and_nothing_is_carried(two_nights):
    two_nights.settings = replace(two_nights.settings, test="day-0.csv")
    parts, frames, told, _ = two_nights.night()
    two_nights.require_full(parts, frames)
    assert told is None


def test_build_goes_on_from_a_history_too(two_nights):
    day_after(two_nights, 4)
    recipe = TrivagoRecipe(two_nights.settings)
    plain = recipe.build("pandas")
    recipe.cache = files = ParsedFiles(two_nights.store, "pandas")
    recipe.history = RowHistory(two_nights.store, files, named_of(recipe))
    tables = recipe.build("pandas")
    assert recipe.history.told["reused"] > 200
    assert (tables.schema, tables.notes) == (plain.schema, plain.notes)
    for name, frame in plain.splits.items():
        pd.testing.assert_frame_equal(tables.splits[name], frame, check_exact=True)


def test_narrow_values_are_wide_again():
    for values in ([], [NONE], [NONE, 0, 5], [-127, 127], [-128], [128, NONE], [-(2**15)], [2**31, NONE], [2**62]):
        given = np.array(values, dtype=np.int64)
        small = narrow(given)
        assert wide(small).tolist() == values
        assert wide(small).dtype == np.int64
    assert narrow(np.array([127, NONE])).dtype == np.int8
    assert narrow(np.array([-128])).dtype == np.int16


def test_runs_tell_what_the_last_of_them_says(tmp_path):
    """Against a dict that is written to run after run; lists may be empty."""
    random, expected, paths = np.random.default_rng(4), {}, []
    divisor = nights_module.NAMED["user_item"][1]
    for number in range(5):
        owners, items = random.integers(0, 20, 30), random.integers(0, 9, 30)
        keys = np.unique(owners * divisor + items) if number != 2 else np.empty(0, dtype=np.int64)
        counts = random.integers(0, 300, len(keys))
        expected |= dict(zip(keys.tolist(), counts.tolist(), strict=True))
        paths.append(tmp_path / f"{number}.arrow")
        names = pa.array([f"n{number}"] if number % 2 else [], pa.large_string())
        write_lists(paths[-1], {"user_item/key": keys, "user_item/count": narrow(counts), "names/user_id": names})
        assert read_lists(paths[-1])["names/user_id"].type == pa.large_string()
    merged = tmp_path / "merged.arrow"
    assert merged_run(paths[1], paths[2], merged) == len(read_lists(paths[1])["user_item/key"])
    for chosen in (paths, [paths[0], merged, *paths[3:]]):
        runs = Runs(chosen)
        asked = np.array(sorted({*list(expected)[::3], 5, 21 * divisor, 3 * divisor + 8}))
        found = runs.find("user_item", asked)
        told = {key: expected[key] for key in asked.tolist() if key in expected}
        assert dict(zip(found["key"].tolist(), found["count"].tolist(), strict=True)) == told
        found = runs.of_owners("user_item", np.array([0, 7, 19, 30]), divisor)
        told = {key: count for key, count in sorted(expected.items()) if key // divisor in (0, 7, 19)}
        assert list(zip(found["key"].tolist(), found["count"].tolist(), strict=True)) == list(told.items())
        assert runs.names("user_id").to_pylist() == ["n1", "n3"]
        assert runs.numbers("user_id", pa.array(["n3", "x", "n1"], pa.large_string())).tolist() == [1, -1, 0]
