"""The recipes for interactions on frames that refuse what cuDF lacks."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.recipes.interactions.histories import HistorySettings
from gigabatch.features.recipes.interactions.recipe import InteractionsRecipe, InteractionsSettings
from gigabatch.features.recipes.interactions.side_tables import SideTable
from gigabatch.features.recipes.movielens.recipe import MovieLensRecipe, MovieLensSettings
from gigabatch.features.synthetic.movielens import write_frappe, write_movielens
from tests.cudf_api.checked import CheckedFrame


@pytest.mark.parametrize("kind", ["ml-100k", "ml-1m", "ml-latest"])
@pytest.mark.parametrize("rules", [{}, {"task": "rating"}, {"split_by": "time", "threshold": 4}])
def test_movielens_uses_only_what_cudf_has(tmp_path, kind, rules):
    write_movielens(tmp_path, kind, 30, 60)
    chosen = MovieLensSettings(path=str(tmp_path), genres=True, demographics=kind != "ml-latest", **rules)
    recipe = MovieLensRecipe(chosen)
    tables = recipe.build("pandas")
    assert isinstance(tables.splits["train"], CheckedFrame)
    tables.splits["test"][["user_id", "item_id"]].to_csv(tmp_path / "ask.csv", index=False)
    assert isinstance(recipe.raw_rows("pandas", str(tmp_path / "ask.csv"), ()), CheckedFrame)


@pytest.mark.parametrize("rules", [{}, {"split_by": "random"}, {"repeats": "all"}])
def test_interactions_use_only_what_cudf_has(tmp_path, rules):
    write_frappe(tmp_path, 20, 40)
    pd.DataFrame({"item": np.arange(35).astype(str), "size": np.arange(35), "tags": ["a|b", "", "c"] * 11 + ["a"] * 2}
                 ).to_csv(tmp_path / "apps.csv", index=False)  # fmt: skip
    side = SideTable(str(tmp_path / "apps.csv"), categorical={"size": "int64"}, flags=("tags",))
    chosen = InteractionsSettings(
        path=str(tmp_path / "frappe.csv"), separator="\t", contexts={"daytime": "string", "city": "int64"},
        continuous=("cnt",), side_tables={"item": side}, **rules,
    )  # fmt: skip
    tables = InteractionsRecipe(chosen).build("pandas")
    assert all(isinstance(frame, CheckedFrame) for frame in tables.splits.values())


@pytest.mark.parametrize("half_life", [None, 2.0])
def test_histories_use_only_what_cudf_has(tmp_path, half_life):
    rows = [(user, item, at) for at, (user, item) in enumerate(zip("abba" * 9, "1123345" * 6, strict=False))]
    log = pd.DataFrame(rows, columns=["user", "item", "at"])
    log.to_csv(tmp_path / "log.csv", index=False)
    chosen = InteractionsSettings(path=str(tmp_path / "log.csv"), time="at", history=HistorySettings(3, half_life))
    recipe = InteractionsRecipe(chosen)
    tables = recipe.build("pandas")
    assert all(isinstance(frame, CheckedFrame) for frame in tables.splits.values())
    log[["user", "item", "at"]].to_csv(tmp_path / "ask.csv", index=False)
    columns = ("user", "item", *chosen.history.columns)
    assert isinstance(recipe.raw_rows("pandas", str(tmp_path / "ask.csv"), columns), CheckedFrame)
    assert isinstance(recipe.with_newest_histories("pandas", tables.splits["train"][["user", "at"]]), CheckedFrame)


@pytest.mark.parametrize("split_by", ["leave_one_out", "time"])
def test_repeats_in_time_use_only_what_cudf_has(tmp_path, split_by):
    rows = [(user, item, at) for at, (user, item) in enumerate(zip("abba" * 9, "1123345" * 6, strict=False))]
    pd.DataFrame(rows, columns=["user", "item", "at"]).to_csv(tmp_path / "log.csv", index=False)
    chosen = InteractionsSettings(path=str(tmp_path / "log.csv"), time="at", split_by=split_by)
    tables = InteractionsRecipe(chosen).build("pandas")
    assert any("train keeps the last up to its end" in note for note in tables.notes)
    assert all(isinstance(frame, CheckedFrame) for frame in tables.splits.values())


def test_given_splits_use_only_what_cudf_has(tmp_path):
    for name in ("train", "valid", "test"):
        frame = pd.DataFrame({"user": ["a", "a", "b"], "item": ["1", "1", "2"], "at": [3, 2, 1]})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    chosen = InteractionsSettings(
        path=str(tmp_path / "train.csv"), valid_path=str(tmp_path / "valid.csv"), test_path=str(tmp_path / "test.csv"),
        time="at",
    )  # fmt: skip
    tables = InteractionsRecipe(chosen).build("pandas")
    assert all(isinstance(frame, CheckedFrame) for frame in tables.splits.values())
