"""A file of many rows is measured part by part: what is found is what is found of the whole."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.pipeline.contract import measure
from gigabatch.pipeline.contract.check import check_file
from gigabatch.pipeline.contract.measure import Known, Measured, RowRule, measure_file
from tests.pipeline.contract.conftest import DAY, START, shop_day

RULES = [RowRule("price", "above", 90.0), RowRule("at", "before", START + 600.0), RowRule("city", "null")]


def recipe_of(path, **more) -> TableRecipe:
    settings = {
        "time": "at", "categorical": {"city": "string", "user": "string"}, "continuous": ("price",),
        "targets": {"bought": {"task": "binary"}}, "inputs": {}, "keys": ("note",),
    }  # fmt: skip
    return TableRecipe(TableSettings(path=str(path), **(settings | more)))


def plain(value):
    """With frames and arrays as lists, so that two may be compared."""
    if isinstance(value, pd.DataFrame):
        return value.astype("str").to_dict("list"), value.dtypes.astype("str").to_dict()
    if isinstance(value, pd.Series | np.ndarray):
        return np.asarray(value).tolist()
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return (
            {plain(key) if dataclasses.is_dataclass(key) else key: plain(item) for key, item in value.items()}
            if all(isinstance(key, str) for key in value)
            else [(repr(key), plain(item)) for key, item in value.items()]
        )
    return value


@pytest.fixture
def both(monkeypatch):
    """What is measured of the whole file and of parts of 300 rows, and how many rows the parts had."""

    def measured(kind, path, **how) -> tuple[Measured, Measured, list[int]]:
        whole, sizes, one = measure_file(kind, "pandas", str(path), **how), [], measure._measured
        with monkeypatch.context() as patch:
            patch.setattr(measure, "PART_ROWS", 300)
            patch.setattr(
                measure, "_measured", lambda kind, frame, times: sizes.append(len(frame)) or one(kind, frame, times)
            )
            return whole, measure_file(kind, "pandas", str(path), **how), sizes

    return measured


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"rules": RULES},
        {"rules": RULES, "drop": 0.5},
        {"rules": RULES, "drop": 0.001},
        {"without": (3, 299, 300, 1999)},
        {"known": 1500},
        {"known": 1500, "rules": RULES, "drop": 0.5},
        {"time_unit": "none"},
    ],
    ids=str,
)
def test_parts_give_what_the_whole_file_gives(tmp_path, both, ending, how):
    path, rows = tmp_path / f"day.{ending}", shop_day(0)
    rows.loc[[5, 700, 1999], "price"] = 1000.0
    rows.loc[[301, 302], "city"] = None
    (kind,) = recipe_of(path).raw_files()
    if "known" in how:
        before = tmp_path / f"before.{ending}"
        write(rows.head(how["known"]), before)
        known = measure_file(kind, "pandas", str(before), rules=how.get("rules", ()), drop=how.get("drop", 0.0))
        how = how | {"known": Known(known.rows, known.fingerprint, known.ranges["at"][1])}
    write(rows, path)
    whole, parts, sizes = both(kind, path, **how)
    assert plain(parts) == plain(whole)
    assert max(sizes) <= 300
    if how.get("drop") == 0.5:
        assert {5, 301, 302, 700, 1999} <= set(parts.places)
    if "known" in how:
        assert parts.added is not None


def write(frame: pd.DataFrame, path) -> None:
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)


def test_a_part_of_bad_rows_alone_is_left_out(tmp_path, both):
    rows = shop_day(0)
    rows.loc[300:599, "price"] = 1000.0
    write(rows, tmp_path / "day.csv")
    (kind,) = recipe_of(tmp_path / "day.csv").raw_files()
    whole, parts, sizes = both(kind, tmp_path / "day.csv", rules=RULES[:1], drop=0.3)
    assert plain(parts) == plain(whole)
    assert set(range(300, 600)) <= set(parts.places)
    assert max(sizes) <= 300


@pytest.mark.parametrize(
    "at",
    [
        lambda at: pd.to_datetime(at, unit="s").dt.strftime("%Y-%m-%dT%H:%M:%S"),
        lambda at: at.where(at.index != 700),  # a null
        lambda at: at + np.where(at.index < 1500, 0.0, 0.5),
        lambda at: at.where(at.index >= 400, 7),  # a unit that the first part does not tell
        lambda at: at * 1000,
    ],
    ids=["text", "null", "floats behind whole numbers", "small numbers first", "milliseconds"],
)
def test_times_are_what_they_are_in_the_whole_file(tmp_path, both, at):
    rows = shop_day(0)
    text = rows.assign(at=at(rows["at"])).astype({"at": "str"})
    text["at"] = text["at"].str.removesuffix(".0").replace("nan", "")
    write(text, tmp_path / "day.csv")
    (kind,) = recipe_of(tmp_path / "day.csv").raw_files()
    whole, parts, _ = both(kind, tmp_path / "day.csv", rules=[RowRule("at", "future", START + DAY / 2)])
    assert plain(parts) == plain(whole)


def test_a_check_of_parts_says_what_a_check_of_the_whole_says(tmp_path, monkeypatch):
    rows = shop_day(0)
    rows.loc[[650, 651], "bought"] = np.nan
    write(rows.astype({"bought": "Int64"}), tmp_path / "day.csv")
    recipe = recipe_of(tmp_path / "day.csv")
    whole = check_file(None, recipe, str(tmp_path / "day.csv"))
    monkeypatch.setattr(measure, "PART_ROWS", 300)
    parts = check_file(None, recipe, str(tmp_path / "day.csv"))
    assert (parts.accepted, parts.warnings) == (whole.accepted, whole.warnings) == (False, ())
    assert parts.reasons == whole.reasons
    (tmp_path / "bad.csv").write_text((tmp_path / "day.csv").read_text() + "no,row\n")
    with pytest.raises(DataError, match=r"bad\.csv"):
        measure_file(recipe.raw_files()[0], "pandas", str(tmp_path / "bad.csv"))
