"""Interactions in parts: the rows, bits, order, schema and notes of all at once, whatever the size of a part."""

import itertools
import logging

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigabatch.features.engines.frame import load_engine
from gigabatch.features.errors import DataError
from gigabatch.features.recipes.base import SPLITS, SplitFractions, typed_rows
from gigabatch.features.recipes.interactions.histories import HistorySettings
from gigabatch.features.recipes.interactions.recipe import InteractionsRecipe, InteractionsSettings
from gigabatch.features.recipes.interactions.side_tables import SideTable
from gigabatch.features.recipes.movielens.recipe import MovieLensRecipe, MovieLensSettings
from gigabatch.features.synthetic.movielens import write_movielens

SIZE = 400


def log(seed=0):
    """A log of 12 users and 30 items with repeats, ties of time and rows of all kinds."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "user": [f"u{number:02d}" for number in rng.zipf(1.5, SIZE) % 12],
        "item": [f"i{number}" for number in rng.zipf(1.3, SIZE) % 30],
        "device": rng.choice(["phone", "desk", None], SIZE), "shelf": rng.integers(0, 4, SIZE),
        "at": rng.integers(0, 90, SIZE), "stars": rng.integers(1, 11, SIZE) / 2,
        "price": rng.gamma(2, 10, SIZE).round(2),
    })  # fmt: skip
    frame["when"] = pd.to_datetime(frame["at"] * 10**9).dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    frame.loc[rng.random(SIZE) < 0.1, "price"] = np.nan
    return frame


PAIRS = len(set(zip(*(log()[name] for name in ("user", "item")), strict=True)))
FRACTIONS, NUMBERS = {"train": 0.6, "valid": 0.2, "test": 0.2}, {"valid_rows": 31, "test_rows": 17}
CASES = {
    "last ones": {"time": "at"},
    "last ones without a time": {},
    "last ones, all repeats": {"time": "when", "repeats": "all", "contexts": ("device",)},
    "liked ones": {"time": "when", "rating": "stars", "threshold": 3.0},
    "by time": {"time": "at", "split_by": "time", "split": FRACTIONS},
    "by time, numbers of rows": {"time": "when", "split_by": "time", "split": NUMBERS, "rating": "stars",
                                 "threshold": 2.5},
    "by time, all repeats": {"time": "at", "split_by": "time", "repeats": "all"},
    "by chance": {"split_by": "random", "split": FRACTIONS, "contexts": {"device": "string", "shelf": "int64"}},
    "by chance, numbers of rows": {"time": "at", "split_by": "random", "split": NUMBERS},
    "ratings": {"task": "rating", "rating": "stars", "continuous": ("price",), "split": FRACTIONS},
    "ratings by time": {"task": "rating", "rating": "stars", "time": "at", "split_by": "time"},
    "histories": {"time": "at", "history": {"length": 5}},
    "weighted histories by time": {"time": "when", "split_by": "time", "split": FRACTIONS,
                                   "history": {"length": 3, "half_life": "20s"}},
    "histories of liked ones": {"time": "at", "rating": "stars", "task": "rating", "history": {"length": 4},
                                "split_by": "random", "split": NUMBERS},
}  # fmt: skip


def recipe(given):
    if isinstance(given, MovieLensSettings):
        return MovieLensRecipe(given)
    typed = dict(given)
    if "split" in given:
        typed["split"] = SplitFractions(**given["split"])
    if "history" in given:
        typed["history"] = HistorySettings(**given["history"])
    return InteractionsRecipe(InteractionsSettings(**typed))


def in_parts(given, folder, rows):
    folder.mkdir()
    return recipe(given).write_parts("pandas", folder, rows, None)


def require_equal(given, folder, rows):
    engine, tables = load_engine("pandas"), recipe(given).build("pandas")
    parts = in_parts(given, folder, rows)
    assert parts is not None
    assert (parts.schema, parts.notes) == (tables.schema, tables.notes)
    for split in SPLITS:
        paths = sorted((folder / split).glob("part-*.parquet"))
        found = pa.concat_tables(pq.read_table(path).replace_schema_metadata() for path in paths)
        engine.write_parquet(typed_rows(tables.schema, split, tables.splits[split]), folder / "whole.parquet")
        expected = pq.read_table(folder / "whole.parquet").replace_schema_metadata()
        assert parts.rows[split] == len(expected)
        assert found.schema == expected.schema
        assert found.combine_chunks().equals(expected.combine_chunks())
    for place, workflow in ((folder / "a", parts.workflow), (folder / "b", tables.workflow)):
        workflow.save(place)
    assert (folder / "a" / "workflow.json").read_bytes() == (folder / "b" / "workflow.json").read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == sorted(["a", "b", *SPLITS, "whole.parquet"])
    return parts


@pytest.mark.parametrize("kind", ["ml-100k", "ml-1m", "ml-latest"])
def test_movielens_in_parts_is_the_whole(kind, tmp_path):
    num_ratings = write_movielens(tmp_path / kind, kind, num_users=40, num_items=300, seed=3)
    given = MovieLensSettings(
        path=str(tmp_path / kind), genres=True, demographics=kind != "ml-latest", history=HistorySettings(length=6)
    )
    require_equal(given, tmp_path / "parts", num_ratings // 5)


def written(folder, frame, name="log.csv"):
    path = folder / name
    frame.to_parquet(path, index=False) if name.endswith("parquet") else frame.to_csv(path, index=False)
    return str(path)


@pytest.mark.parametrize(("case", "rows", "kind"), [
    *itertools.product(CASES, (61, 150), ("csv",)), *itertools.product(CASES, (SIZE - 1,), ("parquet",)),
])  # fmt: skip
def test_parts_are_the_whole_log(case, rows, kind, tmp_path):
    path = written(tmp_path, log(), f"log.{kind}")
    parts = require_equal(CASES[case] | {"path": path}, tmp_path / "parts", rows)
    assert len(list((tmp_path / "parts").glob("*/part-*"))) > 3 or rows >= 150
    assert sum(parts.rows.values()) <= SIZE


@pytest.mark.parametrize("rows", [61, 150])
def test_given_splits_and_many_files_of_a_folder(rows, tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    for number in range(3):
        written(folder, log(number), f"{number}.csv")
    given = {
        "path": str(folder), "valid_path": written(tmp_path, log(0).tail(90), "valid.csv"),
        "test_path": written(tmp_path, log(5).head(80), "test.parquet"), "time": "when", "history": {"length": 4},
    }  # fmt: skip
    parts = require_equal(given, tmp_path / "parts", rows)
    assert any("of the given valid split" in note for note in parts.notes)


def test_side_tables_are_looked_up_for_all_rows(tmp_path):
    side = pd.DataFrame({"item": [f"i{number}" for number in range(20)], "kind": ["a", "b"] * 10})
    side["genres"] = [["x", "y", None][: number % 4] for number in range(20)]
    path = written(tmp_path, side, "items.parquet")
    given = {
        "path": written(tmp_path, log()), "time": "at", "history": {"length": 4},
        "side_tables": {"item": SideTable(path=path, categorical={"kind": "string"}, lists={"genres": {}})},
    }  # fmt: skip
    parts = require_equal(given, tmp_path / "parts", 40)
    assert any("does not list" in note for note in parts.notes)


@pytest.mark.parametrize("given", [
    {"user": "__user__", "item": "__rows__", "time": "at", "split_by": "time"},
    {"user": "__order__", "item": "rows", "contexts": {"order": "int64", "user": "string"}},
])  # fmt: skip
def test_no_name_of_a_column_is_one_of_the_recipes_own(given, tmp_path):
    frame = log()
    frame = frame.assign(**{given["user"]: frame["user"], given["item"]: frame["item"], "order": frame["shelf"]})
    require_equal(given | {"path": written(tmp_path, frame)}, tmp_path / "parts", 40)
    built = recipe(given | {"path": str(tmp_path / "log.csv")}).build("pandas")
    for rows in built.splits.values():
        assert (rows[given["user"]].to_numpy() == frame["user"].to_numpy()[rows["row_number"]]).all()
        if "contexts" in given:
            assert (rows["order"].to_numpy() == frame["order"].to_numpy()[rows["row_number"]]).all()


def test_a_log_of_one_part_is_held_at_once(tmp_path):
    assert in_parts({"path": written(tmp_path, log(), "log.parquet")}, tmp_path / "parts", SIZE) is None


@pytest.mark.parametrize(("given", "message"), [
    ({"repeats": "error", "time": "at"}, r"[1-9]\d* row\(s\) repeat another's user, item"),
    ({"rating": "stars", "threshold": 9.0}, "no rating is at least 9"),
    ({"rating": "stars", "task": "rating", "threshold": 0.5}, f"{PAIRS} of {PAIRS} ratings are at least 0.5"),
])  # fmt: skip
def test_what_all_rows_are_refused_for_is_found_over_all_parts(given, message, tmp_path):
    given = given | {"path": written(tmp_path, log())}
    with pytest.raises(DataError, match=message) as of_parts:
        in_parts(given, tmp_path / "parts", 40)
    with pytest.raises(DataError, match=message) as of_whole:
        recipe(given).build("pandas")
    assert str(of_parts.value).split(", for example")[0] == str(of_whole.value).split(", for example")[0]


def test_no_user_with_three_interactions_is_refused_over_all_parts(tmp_path):
    frame = log().assign(user=[f"u{number // 2}" for number in range(SIZE)])
    with pytest.raises(DataError, match="no user has 3 interactions"):
        in_parts({"path": written(tmp_path, frame), "repeats": "all"}, tmp_path / "parts", 40)


def test_a_null_user_is_named_with_its_rows(tmp_path):
    frame = log()
    frame.loc[333, "user"] = None
    with pytest.raises(DataError, match=r"rows 3\d\d to 3\d\d.*'user' is null in 1 of"):
        in_parts({"path": written(tmp_path, frame)}, tmp_path / "parts", 40)


@pytest.mark.parametrize(("change", "reason"), [
    ({"encoding": "latin-1"}, "files in latin-1 are not read in parts"),
    ({"time": "mixed"}, "'mixed' holds times of several kinds"),
])  # fmt: skip
def test_what_needs_all_rows_is_said(change, reason, tmp_path, caplog):
    frame = log().assign(mixed=[number + (0.5 if number > 300 else 0) for number in range(SIZE)])
    frame["mixed"] = frame["mixed"].map(lambda value: f"{value:g}")
    given = {"path": written(tmp_path, frame)} | change
    with caplog.at_level(logging.INFO):
        assert in_parts(given, tmp_path / "parts", 40) is None
    assert reason in caplog.text
    assert list((tmp_path / "parts").iterdir()) == []
    assert len(recipe(given).build("pandas").splits["test"])
