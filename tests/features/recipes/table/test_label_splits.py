"""`label_splits` cuts rows as `build` does, without a look at features."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings

ROWS = 400
CASES = {
    "random": {"seed": 3},
    "time": {"time": "at", "inputs": {"at": "datetime[%d.%m.%Y]"}},
    "group": {"group": "shop"},
    "key": {"split_key": "shop", "seed": 1},
    "nulls": {"drop_null_targets": True, "targets": {"gone": {"task": "binary", "positive": "yes"}}},
    "weight": {"weight": "w"},
    "several": {
        "targets": {"both": {"task": "multilabel", "columns": ["late", "paid"]}, "price": {"task": "regression"}}
    },
    "steps": {"steps": [{"filter": {"column": "price", "op": ">", "value": 4}}], "continuous": ["price", "x"]},
}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    draw = np.random.default_rng(2)
    frame = pd.DataFrame({
        "x": draw.normal(size=ROWS).round(3), "shop": draw.integers(0, 90, ROWS).astype(str),
        "w": draw.integers(0, 3, ROWS),
        "at": (pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.permutation(ROWS), unit="D")).strftime("%d.%m.%Y"),
        "price": draw.integers(1, 90, ROWS) / 4, "late": draw.integers(0, 2, ROWS), "paid": draw.integers(0, 2, ROWS),
        "gone": draw.choice(["yes", "no", ""], ROWS),
    })  # fmt: skip
    frame.to_csv(tmp_path / "t.csv", index=False)
    return str(tmp_path / "t.csv")


@pytest.mark.parametrize("case", CASES)
def test_labels_are_cut_as_all_columns_are(path, case):
    given = {"path": path, "continuous": ("x",), "targets": {"late": {"task": "binary"}}, **CASES[case]}
    tables = TableRecipe(TableSettings(**given)).build("pandas")
    found = TableRecipe(TableSettings(**given)).label_splits("pandas")
    labels = tables.schema.names("target")
    assert {name: len(frame) for name, frame in found.items()} == {k: len(v) for k, v in tables.splits.items()}
    for name, frame in tables.splits.items():
        pd.testing.assert_frame_equal(found[name][labels].reset_index(drop=True), frame[labels])


def test_an_empty_split_is_refused(path):
    given = {"path": path, "continuous": ("x",), "targets": {"price": {"task": "regression"}}, "time": "w"}
    with pytest.raises(DataError, match="split 'valid' is empty"):
        TableRecipe(TableSettings(**given)).label_splits("pandas")
