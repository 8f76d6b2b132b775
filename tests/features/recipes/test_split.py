"""How rows are shared among the splits: by shares, or by numbers that stay while the data grows."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.recipes.base import SplitFractions, require_splits, split_by_time
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings

NAMES = ("train", "valid", "test")


@given(st.integers(3, 500), st.integers(1, 200), st.integers(1, 200))
def test_numbers_of_rows_are_kept_whatever_there_is(rows, valid, test):
    frame = pd.DataFrame({"at": np.arange(rows)[::-1], "row": np.arange(rows)})
    split = SplitFractions(valid_rows=valid, test_rows=test)
    if valid + test >= rows:
        with pytest.raises(DataError, match=rf"{rows} rows leave none for train beside valid_rows={valid}"):
            split_by_time(frame, "at", "row", split)
        return
    found = split_by_time(frame, "at", "row", split)
    assert [len(found[name]) for name in NAMES] == [rows - valid - test, valid, test]
    assert found["test"]["at"].tolist() == list(range(rows - test, rows))
    assert sum(high - low for low, high in split.cuts(rows).values()) == pytest.approx(1)


def test_rows_of_one_moment_stay_together():
    frame = pd.DataFrame({"at": [0, 1, 2, 2, 2, 3, 4], "row": range(7)})
    found = split_by_time(frame, "at", "row", SplitFractions(valid_rows=2, test_rows=2))
    assert [found[name]["at"].tolist() for name in NAMES] == [[0, 1, 2, 2, 2], [], [3, 4]]


def test_an_empty_split_is_told_with_what_a_moment_of_many_rows_does():
    frame = pd.DataFrame({"at": [0, 1, *[2] * 18], "row": range(20)})
    found = split_by_time(frame, "at", "row", SplitFractions())
    with pytest.raises(DataError, match=r"split 'valid' is empty\. .* rows of one moment stay together"):
        require_splits({name: len(rows) for name, rows in found.items()})


def test_yesterdays_test_rows_are_trained_on_soon(tmp_path):
    """With shares a table of a year has its newest tenth tested on and the one before it selected on."""
    found = {}
    for days in (30, 360):
        frame = pd.DataFrame({"at": np.arange(100 * days), "x": 1.0, "y": np.arange(100 * days) % 2})
        frame.to_csv(tmp_path / "rows.csv", index=False)
        for name, split in (("shares", SplitFractions()), ("rows", SplitFractions(valid_rows=100, test_rows=200))):
            targets = {"y": {"task": "binary"}}
            settings = TableSettings(
                path=str(tmp_path / "rows.csv"), continuous=("x",), targets=targets, time="at", split=split
            )
            train = TableRecipe(settings).build("pandas").splits["train"]
            found[name, days] = 100 * days - 1 - int(train["at"].max())
    assert found == {("shares", 30): 600, ("shares", 360): 7200, ("rows", 30): 300, ("rows", 360): 300}


def test_numbers_hold_for_tables_without_a_time_and_with_test_rows_apart(tmp_path):
    frame = pd.DataFrame({"x": np.arange(5000.0), "y": np.arange(5000) % 2})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.head(100).to_csv(tmp_path / "test.csv", index=False)
    columns = {"continuous": ("x",), "targets": {"y": {"task": "binary"}}}
    split = SplitFractions(valid_rows=500, test_rows=1000)
    rows = TableRecipe(TableSettings(path=str(tmp_path / "rows.csv"), split=split, **columns)).build("pandas").splits
    assert [len(rows[name]) for name in NAMES] == pytest.approx([3500, 500, 1000], rel=0.1)
    files = {"train_path": str(tmp_path / "rows.csv"), "test_path": str(tmp_path / "test.csv")}
    rows = TableRecipe(TableSettings(**files, split=split, **columns)).build("pandas").splits
    assert [len(rows[name]) for name in NAMES] == pytest.approx([4500, 500, 100], rel=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"valid_rows": 10}, "must both be whole numbers"), ({"valid_rows": 0, "test_rows": 5}, "of at least 1"),
        ({"valid_rows": 1.5, "test_rows": 5}, "whole numbers"), ({"train": 0.9}, "sum to 1"),
        ({"valid_rows": True, "test_rows": 5}, "whole numbers"),
        ({"train": 0.9, "valid": 0.05, "test": 0.05, "valid_rows": 5, "test_rows": 5}, "not both"),
    ],
)  # fmt: skip
def test_a_split_that_says_two_things_or_none_is_refused(settings, message):
    with pytest.raises(DataError, match=message):
        SplitFractions(**settings)
