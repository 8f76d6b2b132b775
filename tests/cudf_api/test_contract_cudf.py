"""Raw files are measured by what cuDF has, to the same numbers."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.engines import pandas as pandas_engine
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.features.recipes.trivago.recipe import with_clicked_first
from gigabatch.pipeline.contract import measure
from tests.cudf_api.checked import CheckedFrame


@pytest.mark.parametrize("time", ["number", "text"])
def test_a_file_is_measured_by_what_cudf_has(tmp_path, monkeypatch, time):
    random = np.random.default_rng(0)
    rows = pd.DataFrame({
        "at": np.arange(50) + 1_700_000_000, "city": random.choice(["a", "b", None], 50),
        "price": np.where(random.random(50) < 0.2, np.nan, random.normal(size=50)), "y": random.integers(0, 2, 50),
        "id": random.integers(0, 5, 50), "key": [f"k{n}" for n in range(50)], "flag": random.random(50) < 0.5,
    })  # fmt: skip
    if time == "text":
        rows["at"] = pd.to_datetime(rows["at"], unit="s").dt.strftime("%Y-%m-%dT%H:%M:%S")
    rows.to_csv(tmp_path / "a.csv", index=False)
    recipe = TableRecipe(TableSettings(
        path=str(tmp_path), time="at", categorical={"city": "string", "id": "int64"}, continuous=("price",),
        targets={"y": {"task": "binary"}}, keys=("key",), inputs={"flag": "bool"},
    ))  # fmt: skip
    (kind,) = recipe.raw_files()
    rules = [
        measure.RowRule("price", "above", 0.5),
        measure.RowRule("at", "future", 1_700_000_040.0),
        measure.RowRule("at", "before", 5.0),
        measure.RowRule("y", "null"),
    ]
    path = str(tmp_path / "a.csv")
    plain = measure.measure_file(kind, "pandas", path, rules=rules, drop=1.0)
    (tmp_path / "part").mkdir()
    rows.iloc[:20].to_csv(tmp_path / "part" / "a.csv", index=False)
    before = measure.measure_file(kind, "pandas", str(tmp_path / "part" / "a.csv"))
    known = measure.Known(before.rows, before.fingerprint, before.ranges["at"][1])
    read = type(kind).read

    def checked(self, engine, path, cache=None):
        return CheckedFrame(read(self, engine, path, cache))

    monkeypatch.setattr(type(kind), "read", checked)
    found = measure.measure_file(kind, "pandas", path, rules=rules, drop=1.0)
    assert (found.rows, found.nulls, found.ranges, found.fingerprint) == (
        plain.rows, plain.nulls, plain.ranges, plain.fingerprint
    )  # fmt: skip
    assert (found.bad, found.places, found.unit) == (plain.bad, plain.places, plain.unit)
    assert found.places
    assert pandas_engine.NAME == "pandas"
    since = measure.measure_file(kind, "pandas", path, known=known)
    assert since.added is not None
    assert (since.added.rows, since.corrected) == (30, False)


def test_the_label_of_the_trivago_log_is_made_by_what_cudf_has():
    log = pd.DataFrame({
        "reference": ["7", "8", None, "7"], "impressions": ["7|8", "7|8", "7|8", None],
        "action_type": ["clickout item"] * 3 + ["search for item"],
    })  # fmt: skip
    found = with_clicked_first(CheckedFrame(log.astype("str")))
    assert found["clicked_first"].tolist()[:2] == [1.0, 0.0]
    assert found["clicked_first"].isna().tolist() == [False, False, True, True]
