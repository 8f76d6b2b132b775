"""Train rows of weight 0 are left out: nothing is fitted to them, whatever they hold, in one piece and in parts."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.recipes.base import SPLITS
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from tests.features.recipes.table.test_table_parts import FOLDED, in_parts, saved, shop

STEPS = (
    {"fill_missing": {"column": "price"}},
    {"normalize": {"column": "half"}},
    {"categorify": {"column": "city", "output": "place"}},
    FOLDED,
)
TARGETS = {"paid": {"task": "regression"}, "late": {"task": "binary"}, "kind": {"task": "multiclass"}}
GIVEN = {
    "targets": TARGETS, "weight": "w", "categorical": {"place": "int64", "code": "int64"}, "steps": STEPS,
    "continuous": ("price", "half", "late_encoded_by_city"), "inputs": {"city": "string", "visit": "string"},
}  # fmt: skip


def files_of(folder, idle):
    """Paths of the splits, of which train has `idle` rows more, of weight 0 and of values that no other row has."""
    folder.mkdir()
    frame = shop().fillna({"city": "Oslo", "gift": "true", "price": 3.0}).drop(columns=["at", "when"])
    frame["w"] = np.random.default_rng(3).uniform(0.5, 2, len(frame)).round(2)
    more = frame.sample(idle, random_state=1).assign(
        w=0.0, paid=3e38, half=1e30, price=-1e30, city="Atlantis", kind="nectar", late=1
    )
    train = pd.concat([frame.head(300), more]).sample(frac=1, random_state=2)
    parts = {"train": train, "valid": frame[300:350], "test": frame[350:]}
    return {f"{name}_path": saved(_folder(folder / name), part) for name, part in parts.items()}


def _folder(path):
    path.mkdir()
    return path


def built(folder, idle, rows_per_part):
    given = GIVEN | files_of(folder, idle)
    if rows_per_part is None:
        tables = TableRecipe(TableSettings(**given)).build("pandas")
        return tables.splits, tables
    parts = in_parts(given, folder / "parts", rows_per_part)
    read = {
        name: pd.concat([pd.read_parquet(path) for path in sorted((folder / "parts" / name).glob("*.parquet"))])
        for name in SPLITS
    }
    return read, parts


@pytest.mark.parametrize("rows_per_part", [None, 40])
def test_train_rows_of_weight_0_are_as_if_they_were_not_in_the_file(tmp_path, rows_per_part):
    found, told = built(tmp_path / "more", 90, rows_per_part)
    expected, plain = built(tmp_path / "plain", 0, rows_per_part)
    keys = ["paid", "price", "half", "w"]
    for name in SPLITS:
        own, other = (
            frames[name].drop(columns="row_number", errors="ignore").sort_values(keys).reset_index(drop=True)
            for frames in (found, expected)
        )
        pd.testing.assert_frame_equal(own, other, rtol=1e-12)
    assert told.schema == plain.schema
    assert "train split: 90 of 390 rows left out, because their weight 'w' is 0." in told.notes
    assert not any("weight" in note for note in plain.notes)


@pytest.mark.parametrize("rows_per_part", [None, 40])
def test_a_train_split_whose_rows_all_weigh_0_is_refused_by_the_columns_name(tmp_path, rows_per_part):
    path = saved(tmp_path, shop().fillna({"price": 3.0}).assign(w=0))
    given = {"targets": {"late": {"task": "binary"}}, "continuous": ("price",), "weight": "w", "path": path}
    build = in_parts if rows_per_part else lambda given, *_: TableRecipe(TableSettings(**given)).build("pandas")
    with pytest.raises(DataError, match=r"train split: the weight 'w' of all its \d+ rows is 0"):
        build(given, tmp_path / "parts", rows_per_part)


def test_rows_of_weight_0_are_history_to_others(tmp_path):
    """Of 100 rows an hour apart the first 30 weigh 0: a count over five hours begins with those before it."""
    frame = pd.DataFrame({"shop": "a", "at": np.arange(100) * 60, "late": [0, 1] * 50, "w": [0.0] * 30 + [1.0] * 70})
    count = {"by": ["shop"], "time": "at", "column": "at", "window": 300, "statistic": "count", "output": "before"}
    tables = TableRecipe(
        TableSettings(
            path=saved(tmp_path, frame), targets={"late": {"task": "binary"}}, continuous=("before",), weight="w",
            time="at", steps=({"rolling": count}, {"min_max": {"column": "before"}}), inputs={"shop": "string"},
        )
    ).build("pandas")  # fmt: skip
    train = tables.splits["train"]
    assert (train["w"] > 0).all()
    assert train["before"].nunique() == 1  # each has as many rows before it; without history they would grow from 0
    assert len(train) == 100 - 30 - len(tables.splits["valid"]) - len(tables.splits["test"])


@pytest.mark.parametrize("rows_per_part", [None, 40])
def test_the_weights_of_the_file_tell_which_rows_count_whatever_steps_make_of_them(tmp_path, rows_per_part):
    """Rows that a step gave another weight were told as left out and were there, or not, by the size of the table."""
    frame = shop().fillna({"price": 3.0}).assign(w=np.arange(len(shop())) % 3)
    idle = int((frame["w"][:300] == 0).sum())
    paths = {"train": frame[:300], "valid": frame[300:350], "test": frame[350:]}
    given = {
        "targets": {"late": {"task": "binary"}}, "continuous": ("price",), "weight": "w",
        "steps": ({"clip": {"column": "w", "low": 1.0}},),
        **{f"{name}_path": saved(_folder(tmp_path / name), part) for name, part in paths.items()},
    }  # fmt: skip
    if rows_per_part is None:
        tables = TableRecipe(TableSettings(**given)).build("pandas")
        weights, notes = tables.splits["train"]["w"], tables.notes
    else:
        notes = in_parts(given, tmp_path / "parts", rows_per_part).notes
        weights = pd.concat([pd.read_parquet(path) for path in (tmp_path / "parts" / "train").glob("*.parquet")])["w"]
    assert weights.value_counts().to_dict() == {1.0: 100, 2.0: 100}
    assert f"train split: {idle} of 300 rows left out, because their weight 'w' is 0." in notes


@pytest.mark.parametrize("rows_per_part", [None, 40])
@pytest.mark.parametrize(
    ("target", "label", "written"),
    [
        ({"task": "binary"}, {0: 0, 1: 1}, 7),
        ({"task": "binary", "positive": "yes"}, {0: "no", 1: "yes"}, "unknown"),
        ({"task": "binary", "label_strip": "."}, {0: "0.", 1: "1"}, "unknown"),
        ({"task": "regression"}, {0: 0.0, 1: 1.0}, 1e300),
    ],
)
def test_a_train_row_of_weight_0_may_hold_what_is_no_label(tmp_path, rows_per_part, target, label, written):
    """Tables in memory were refused, in parts they were not."""
    frame = shop().fillna({"price": 3.0}).drop(columns=["at", "when"])
    frame = frame.assign(w=[0.0, 1.0] * (len(frame) // 2), late=frame["late"].map(label))
    train = frame[:300].assign(late=frame["late"].where(frame["w"] > 0, written))
    paths = {"train": train, "valid": frame[300:350], "test": frame[350:]}
    given = {
        "targets": {"late": target}, "continuous": ("price",), "weight": "w",
        **{f"{name}_path": saved(_folder(tmp_path / name), part) for name, part in paths.items()},
    }  # fmt: skip
    if rows_per_part is None:
        found = TableRecipe(TableSettings(**given)).build("pandas").splits["train"]
    else:
        in_parts(given, tmp_path / "parts", rows_per_part)
        found = pd.concat([pd.read_parquet(path) for path in (tmp_path / "parts" / "train").glob("*.parquet")])
    expected = frame[:300][frame["w"][:300] > 0]["late"].map({text: number for number, text in label.items()})
    assert sorted(found["late"]) == sorted(expected)
    train = pd.concat([train, train.head(1).assign(w=1.0)])
    saved(tmp_path / "train", train)
    with pytest.raises(DataError, match="late"):
        TableRecipe(TableSettings(**given)).build("pandas")


def test_what_is_no_label_is_no_history_either(tmp_path):
    """The share of late rows so far, of 60 rows an hour apart of which the first ten weigh 0 and hold 7 or 1 by turns:
    those that hold 7 are not counted."""
    late = [7, 1] * 5 + [0] * 50
    frame = pd.DataFrame({"shop": "a", "at": np.arange(60) * 60, "late": late, "w": [0.0] * 10 + [1.0] * 50})
    mean = {"by": ["shop"], "time": "at", "column": "late", "window": 10**6, "statistic": "mean", "output": "share"}
    given = TableSettings(
        path=saved(tmp_path, frame), targets={"late": {"task": "binary"}}, continuous=("share",), weight="w",
        time="at", steps=({"rolling": mean},), inputs={"shop": "string"},
    )  # fmt: skip
    found = TableRecipe(given).build("pandas").splits["train"]["share"].tolist()
    assert found == pytest.approx([5 / (5 + zeros) for zeros in range(len(found))])
