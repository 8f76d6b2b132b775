"""Rows with a history are computed once, and night after night the result is that of a full run, bit for bit."""

import itertools
import json
import os
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.store import row_history
from gigabatch.pipeline.store.artifacts import ArtifactStore
from gigabatch.pipeline.store.files import ArtifactError
from gigabatch.pipeline.store.garbage import collect_artifacts
from gigabatch.pipeline.store.parsed_files import ParsedFiles
from gigabatch.pipeline.store.row_history import RowHistory

STEPS = (
    {"date_parts": {"column": "at", "parts": ["hour"], "prefix": "at", "unit": "min"}},
    *(
        {"rolling": {"by": [by], "time": "at", "column": column, "window": window, "statistic": how, "output": name}}
        for by, column, window, how, name in (
            ("user", "x", 3, "sum", "x3"), ("user", "x", 40, "mean", "x40"), ("item", "x", 9, "max", "top"),
            ("item", "y", 20, "min", "low"), ("user", "late", 10_000, "mean", "late_all"),
            ("user", "x", 1, "count", "n"),
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
FEW = (STEPS[2], STEPS[8], STEPS[10])
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
        self.leave_out: set[str] = set()  # files in quarantine
        self.without: dict[str, tuple[int, ...]] = {}  # rows that were dropped, by file

    def write(self, number: int, rows: pd.DataFrame) -> Path:
        path = self.raw / f"d-{number:03d}.csv"
        rows.to_csv(path, index=False)
        return path

    def night(self, settings=None):
        """(tables, what is told, files)"""
        recipe = self.recipe(settings or self.settings)
        recipe.cache = files = ParsedFiles(self.store, "pandas")
        recipe.leave_out, recipe.without = frozenset(self.leave_out), dict(self.without)
        named = {"recipe": "table", "of": repr(recipe.settings)}
        recipe.history = history = RowHistory(self.store, files, named, recipe.without)
        tables = recipe.build("pandas")
        return tables, history.told, [entry["state"] for entry in files.files]

    def require_equal(self, tables) -> None:
        """The tables are those of a run that knows nothing of histories, over a folder of what counts alone."""
        copy = self.folder / "counts"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for path in sorted(self.raw.iterdir()):
            if str(path) not in self.leave_out:
                header, *lines = path.read_text(encoding="latin-1").splitlines(keepends=True)
                gone = self.without.get(str(path), ())
                kept = [line for place, line in enumerate(lines) if place not in gone]
                (copy / path.name).write_text("".join([header, *kept]), encoding="latin-1")
        chosen = replace(self.settings, path=f"{copy}/d-*.csv")
        whole = self.recipe(chosen).build("pandas")
        assert tables.schema == whole.schema
        assert tables.notes == tuple(note.replace(str(copy), str(self.raw)) for note in whole.notes)
        for name, frame in whole.splits.items():
            pd.testing.assert_frame_equal(tables.splits[name], frame, check_exact=True)


@pytest.fixture
def nights(tmp_path, monkeypatch) -> Nights:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(row_history, "source_hash", lambda modules: "these")  # a hundred files, read each time
    return Nights(tmp_path)


@pytest.mark.parametrize("seed", range(2))
def test_any_cut_into_nights_gives_what_a_full_run_gives(nights, seed):
    rows = rows_of(seed)
    random = np.random.default_rng([seed, 1])
    cuts = [0, *np.sort(random.choice(np.arange(60, len(rows)), 3, replace=False)).tolist(), len(rows)]
    for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
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


LIST_STEPS = (
    {"history": {"by": ["user"], "time": "at", "order": "row_number", "column": "item", "length": 3, "where": "late",
                 "output": "seen", "half_life": 9}},
    {"list_slice": {"column": "seen", "start": -1, "separator": None, "output": "last"}},
    {"list_slice": {"column": "numbers", "start": 0, "stop": 2, "separator": None, "output": "first"}},
    {"text_tokens": {"column": "words", "output": "tokens", "num_buckets": 9}},
    {"rolling": {"by": ["user"], "time": "at", "column": "x", "window": 3, "statistic": "sum", "output": "x3"}},
)  # fmt: skip


def list_rows(seed: int) -> pd.DataFrame:
    """`rows_of` with delimited lists, some of them null or empty or with nulls, and weights."""
    rows, draw = rows_of(seed), np.random.default_rng([seed, 2])
    tags = ["|".join(draw.choice(["new", "old", ""], draw.integers(0, 4))) for _ in range(len(rows))]
    numbers = ["|".join(map(str, draw.integers(2**60, 2**60 + 9, draw.integers(0, 4)))) for _ in range(len(rows))]
    weights = ["|".join(["0.5"] * (text.count("|") + 1)) if text else "" for text in tags]
    words = draw.choice(["red shoes", "red", ""], len(rows))
    return rows.assign(tags=tags, weight=weights, numbers=numbers, words=words)


@pytest.mark.parametrize("seed", range(2))
def test_lists_are_carried_from_night_to_night(nights, seed):
    settings = settings_of(nights.raw, steps=LIST_STEPS, continuous=["x", "y", "x3"])
    settings["inputs"] |= {"numbers": "list[int64]", "words": "string"}
    lists = {"tags": {"weights": "weight"}, "seen": {"shares": "item", "weights": "seen_weights"}, "last": {},
             "first": {"elements": "int64"}, "tokens": {"elements": "int64"}}  # fmt: skip
    nights.settings = TableSettings(**settings, lists=lists)
    rows = list_rows(seed)
    for number, (start, stop) in enumerate(itertools.pairwise((0, 90, 91, 200, len(rows)))):
        nights.write(number, rows.iloc[start:stop])
        tables, told, files = nights.night()
        nights.require_equal(tables)
        assert (told["note"], files) == (None, ["carried"] * number + ["read"])
    assert told["reused"] > 100


@pytest.fixture
def two_nights(nights) -> Nights:
    """After a first night of three files, with few steps; the fourth file is in `nights.rows` from 210 on."""
    nights.settings = TableSettings(**settings_of(nights.raw, steps=FEW, continuous=["x", "y", "x40", "rate", "lag2"]))
    nights.rows = rows_of(9)
    for number in range(3):
        nights.write(number, nights.rows.iloc[number * 70 : number * 70 + 70])
    nights.night()
    return nights


def test_nothing_new_reuses_all_that_is_finished(two_nights):
    tables, told, files = two_nights.night()
    two_nights.require_equal(tables)
    assert files == ["carried"] * 3
    assert told["reused"] > told["computed"] > 0


def write_late(nights):
    nights.write(3, nights.rows.iloc[[100, 215]])
    return r"a row at \d+ lies before \d+"


def write_changed(nights):
    nights.write(1, nights.rows.iloc[70:139])
    return r"d-001\.csv of the last run has changed"


def remove(nights):
    (nights.raw / "d-000.csv").unlink()
    return r"d-000\.csv of the last run has changed or is gone"


def write_in_between(nights):
    (nights.raw / "d-001b.csv").write_text(nights.rows.iloc[210:].to_csv(index=False))
    return "a new file stands before known ones"


def write_other_order(nights):
    rows = nights.rows.iloc[210:].copy()
    rows["seq"] = -rows["seq"]
    nights.write(3, rows)
    return "a row stands before one of its group"


def write_dates(nights):
    rows = nights.rows.iloc[210:].astype({"at": "object"})
    rows["at"] = "2030-01-01"
    nights.write(3, rows)
    return "the times are datetime, so far they were int64"


def write_a_third_kind(nights):
    rows = nights.rows.iloc[210:].copy()
    rows["at"] = rows["at"].astype("float64")
    nights.write(3, rows)
    return "the times are float64, so far they were int64"


def damage(nights):
    (path,) = (nights.store.root / "history").glob("*/open.parquet")
    path.write_bytes(path.read_bytes()[:-4] + b"1234")
    return "is damaged"


def forge(nights):
    """A state that is whole by its manifest and of another version's form."""
    for path in (nights.store.root / "history").glob("*/state.json"):
        state = json.loads(path.read_text()) | {"pasts": {"0": {}}}
        path.write_text(json.dumps(state))
        manifest = json.loads((path.parent / "manifest.json").read_text())
        manifest["files"]["state.json"] = {
            "bytes": path.stat().st_size, "checksum": row_history_checksum(path),
        }  # fmt: skip
        (path.parent / "manifest.json").write_text(json.dumps(manifest))
    return "is damaged"


def row_history_checksum(path: Path) -> str:
    from gigabatch.pipeline.store.keys import file_checksum

    return file_checksum(path)


def upgrade(nights):
    for path in (nights.store.root / "history").glob("*/manifest.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"way": "of another version"}))
        path.parent.rename(path.parent.with_name("0" * 32))  # its key, too
    return "of other settings, code, libraries"


FAULTS = [
    write_late, write_changed, remove, write_in_between, write_other_order, write_dates, write_a_third_kind, damage,
    forge, upgrade,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_does_not_fit_is_said_and_all_is_computed(two_nights, fault):
    reason = fault(two_nights)
    try:
        tables, told, files = two_nights.night()
    except ValueError as error:  # and refused where a full run refuses it
        with pytest.raises(type(error), match=re.escape(str(error))):
            two_nights.recipe(two_nights.settings).build("pandas")
        assert fault in (write_dates, write_a_third_kind)
        return
    two_nights.require_equal(tables)
    assert told["reused"] == 0
    assert pd.Series([told["note"]]).str.contains(f"All rows are computed again: .*{reason}").all()
    assert "carried" not in files
    tables, told, _ = two_nights.night()  # and this run's rows are there for the next one
    two_nights.require_equal(tables)
    if fault is write_other_order:  # which those rows cannot be carried in at all
        assert reason in told["note"]
        return
    assert told["reused"] > 0
    assert told["note"] is None


FEW_MADE = {"steps": FEW, "continuous": ["x", "y", "x40", "rate", "lag2"]}


@pytest.mark.parametrize("seed", range(2))
def test_files_in_quarantine_and_dropped_rows_stop_no_carrying(nights, seed):
    """Bad files and rows of tonight are not among what later nights carry; all that was accepted is."""
    nights.settings = TableSettings(**settings_of(nights.raw, **FEW_MADE))
    rows, random = rows_of(20 + seed, 400), np.random.default_rng([seed, 2])
    accepted, what = 0, ["good", "bad", "dropped", *random.permutation(["good", "bad", "dropped", "dropped"]), "good"]
    done = 0
    for number, kind in enumerate(what):
        part = rows.iloc[number * 50 : number * 50 + 50]
        path = nights.write(number, part)
        if kind == "bad":
            path.write_bytes(b"at;seq\n\xff\xfe no rows at all\n")
            nights.leave_out.add(str(path))
        elif kind == "dropped":
            places = tuple(sorted(int(place) for place in random.choice(50, 4, replace=False)))
            nights.without[str(path)] = places
            part = part.drop(part.index[list(places)])
        tables, told, files = nights.night()
        nights.require_equal(tables)
        assert told["note"] is None
        assert files == ["carried"] * accepted + ["read"] * (kind != "bad")
        labelled = part.dropna(subset=["late"])
        assert told["reused"] == done
        if kind == "bad":
            continue
        accepted += 1
        whole = sum(map(len, tables.splits.values()))
        assert told["computed"] == whole - done
        assert told["computed"] < len(labelled) + 20
        done = whole - int((labelled["at"] == labelled["at"].max()).sum())
    assert done > 150


def release(nights):
    nights.leave_out.clear()
    return "a new file stands before known ones"


def drop_other_rows(nights):
    nights.without[str(nights.raw / "d-000.csv")] = (3, 8)
    return "other rows of the file d-000.csv are left out than in the last run"


def drop_no_rows(nights):
    nights.without.clear()
    return "other rows of the file d-000.csv are left out than in the last run"


def drop_rows_of_another(nights):
    nights.without[str(nights.raw / "d-002.csv")] = (0,)
    return "other rows of the file d-002.csv are left out than in the last run"


def forbid(nights):
    nights.leave_out.add(str(nights.raw / "d-002.csv"))
    return "the file d-002.csv of the last run has changed or is gone"


@pytest.mark.parametrize("change", [release, drop_other_rows, drop_no_rows, drop_rows_of_another, forbid])
def test_what_is_decided_otherwise_later_is_said_and_all_is_computed(nights, change):
    nights.settings = TableSettings(**settings_of(nights.raw, **FEW_MADE))
    rows = rows_of(31)
    for number in range(3):
        nights.write(number, rows.iloc[number * 70 : number * 70 + 70])
    nights.leave_out = {str(nights.raw / "d-001.csv")}
    nights.without = {str(nights.raw / "d-000.csv"): (8, 4)}
    nights.night()
    nights.without = {str(nights.raw / "d-000.csv"): (4, 8)}  # in another order, the same
    _, told, _ = nights.night()
    assert (told["note"], told["reused"] > 0) == (None, True)
    reason = change(nights)
    tables, told, files = nights.night()
    nights.require_equal(tables)
    assert told["reused"] == 0
    assert told["note"] == f"All rows are computed again: {reason}" + told["note"].partition(reason)[2]
    assert "carried" not in files
    nights.write(3, rows.iloc[210:])
    tables, told, files = nights.night()
    nights.require_equal(tables)
    assert told["note"] is None
    assert files[-1] == "read"
    assert files.count("carried") == len(files) - 1


def test_a_file_that_leaves_quarantine_before_later_ones_came_is_carried_on_from(nights):
    nights.settings = TableSettings(**settings_of(nights.raw, **FEW_MADE))
    rows = rows_of(32)
    for number in range(2):
        nights.write(number, rows.iloc[number * 70 : number * 70 + 70])
    nights.leave_out = {str(nights.raw / "d-001.csv")}
    nights.night()
    nights.leave_out = set()
    nights.write(2, rows.iloc[140:210])
    tables, told, files = nights.night()
    nights.require_equal(tables)
    assert told["note"] is None
    assert (told["reused"] > 40, files) == (True, ["carried", "read", "read"])


def test_a_chain_takes_the_room_of_one_history_and_few_parts(nights):
    nights.settings = TableSettings(**settings_of(nights.raw, steps=FEW, continuous=["x", "y", "x40", "rate", "lag2"]))
    rows = rows_of(3, 600)
    for number in range(12):
        nights.write(number, rows.iloc[number * 50 : number * 50 + 50])
        if number:  # one file holds too few moments to be split
            nights.night()
    folders = sorted((nights.store.root / "history").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(folders) == 11
    parts = list(folders[-1].glob("part-*.parquet"))
    assert len(parts) <= 5  # log2 of the nights, and one
    assert (
        sum(len(pd.read_parquet(path)) for path in parts)
        == json.loads((folders[-1] / "manifest.json").read_text())["rows"]
    )
    names = [path for folder in folders for path in folder.glob("part-*.parquet")]
    assert len({path.stat().st_ino for path in names}) < len(names)
    del nights.store
    removed, _ = collect_artifacts(nights.folder / "artifacts", 3)
    left = list((nights.folder / "artifacts" / "history").glob("[0-9a-f]*"))
    assert left == [folders[-1]]
    assert len([path for path in removed if path.parent.name == "history"]) == 10
    nights.store = ArtifactStore(nights.folder / "artifacts", "nights")
    tables, told, _ = nights.night()
    nights.require_equal(tables)
    assert told["note"] is None
    assert told["reused"] > 400


def test_two_runs_at_once_and_one_that_is_killed_leave_whole_histories(two_nights, monkeypatch):
    two_nights.write(3, two_nights.rows.iloc[210:])
    found = []
    threads = [threading.Thread(target=lambda: found.append(two_nights.night())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    for tables, told, _ in found:
        two_nights.require_equal(tables)
        assert told["reused"] > 0

    class Killed(BaseException):
        pass

    def killed(source, target):
        raise Killed

    two_nights.write(4, two_nights.rows.iloc[299:].assign(at=5000, seq=5000))
    with monkeypatch.context() as patch:
        patch.setattr(row_history, "share_file", killed)
        with pytest.raises(Killed):
            two_nights.night()
    tables, told, files = two_nights.night()
    two_nights.require_equal(tables)
    assert told["note"] is None
    assert files == ["carried"] * 4 + ["reused"]  # the killed run had parsed it


def test_a_file_that_changes_after_it_was_looked_up_is_refused(two_nights, monkeypatch):
    two_nights.write(3, two_nights.rows.iloc[210:])
    real = TableRecipe._follow

    def follow(recipe, engine, steps, before, paths):
        two_nights.write(3, two_nights.rows.iloc[210:299])  # before it is read, so that reading it sees one content
        return real(recipe, engine, steps, before, paths)

    with monkeypatch.context() as patch:
        patch.setattr(TableRecipe, "_follow", follow)
        with pytest.raises(ArtifactError, match="input files changed while they were read"):
            two_nights.night()
    tables, told, _ = two_nights.night()
    two_nights.require_equal(tables)
    assert told["note"] is None


def test_other_steps_are_another_history(two_nights):
    chosen = TableSettings(**settings_of(two_nights.raw, steps=FEW[:1], continuous=["x", "y", "x40"]))
    _, told, _ = two_nights.night(chosen)
    assert told["reused"] == 0
    assert "settings" in told["note"]


@pytest.mark.parametrize(
    ("changed", "number"),
    [
        ({}, LOOK_BACK),
        ({"time": None, "inputs": {"at": "int64", **settings_of(Path())["inputs"]}}, 0),  # rows are split by a hash
        ({"targets": {"late": {"task": "multiclass"}}}, 0),  # a class's number follows from all of the train split
        ({"steps": ({"rank_within_group": {"by": ["user"], "value": "x", "output": "x3"}}, *STEPS)}, 0),
        ({"steps": ({"filter": {"column": "x", "op": ">", "value": 0}}, *STEPS)}, 0),
        ({"steps": ({"log": {"column": "x", "output": "late"}}, *STEPS)}, 0),
    ],
)
def test_steps_are_carried_up_to_the_first_that_cannot_be(tmp_path, changed, number):
    chosen = settings_of(tmp_path) | changed
    if number == 0 and "steps" in changed:
        chosen["continuous"] = [name for name in chosen["continuous"] if name != "x3"]
    assert TableRecipe(TableSettings(**chosen))._num_carried == number


def test_the_commands_say_what_was_reused_and_gc_leaves_one_history(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    raw, rows = tmp_path / "raw", rows_of(5)
    raw.mkdir()
    settings = {
        "name": "shop", "recipe": "table", "device": "cpu", "artifacts": str(tmp_path / "artifacts"),
        "runs": str(tmp_path / "runs"),
        "features": settings_of(raw, steps=FEW, continuous=["x", "y", "x40", "rate", "lag2"]),
    }  # fmt: skip
    config = tmp_path / "shop.yaml"
    config.write_text(json.dumps(settings))
    for number, (start, stop) in enumerate(((0, 150), (150, 240), (240, 300))):
        rows.iloc[start:stop].to_csv(raw / f"d-{number}.csv", index=False)
        assert main(["features", "--config", str(config)]) == 0
    said = capsys.readouterr().out
    labelled = int(rows["late"].notna().sum())
    assert "input files: 1 read, 0 reused, 2 carried" in said
    reused, computed = map(int, re.findall(r"rows with a history: (\d+) reused, (\d+) computed", said)[-1])
    assert reused + computed == labelled
    assert computed < 90
    assert main(["gc", "--config", str(config), "--keep", "2"]) == 0
    artifacts = tmp_path / "artifacts"
    assert len(list((artifacts / "features").glob("[0-9a-f]*"))) == 2
    assert len(list((artifacts / "history").glob("[0-9a-f]*"))) == 1
    assert len(list((artifacts / "parsed").glob("[0-9a-f]*"))) == 3  # carried files may have to be read again
    capsys.readouterr()
    (raw / "d-1.csv").write_text((raw / "d-1.csv").read_text() + "\n")
    assert main(["features", "--config", str(config)]) == 0
    said = capsys.readouterr().out
    assert "All rows are computed again: the file d-1.csv of the last run has changed or is gone." in said
    assert f"rows with a history: 0 reused, {labelled} computed" in said
