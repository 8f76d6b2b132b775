"""What `gigabatch init` says of whole numbers whose names do not tell that they are ids or codes."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gigabatch import fit
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.pipeline.init.columns import is_code_name
from gigabatch.pipeline.init.draft import draft_config
from gigabatch.pipeline.init.frame import draft_frame
from gigabatch.pipeline.init.names import are_names

ROWS = 6000


def answers(seed=0):
    """A table as InstEval of lme4: marks that students gave lecturers, by numbers alone."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "s": draw.integers(1, 301, ROWS), "dept": draw.integers(1, 15, ROWS), "age": draw.integers(18, 70, ROWS),
        "visits": draw.poisson(8, ROWS), "month": draw.integers(1, 13, ROWS), "noise": draw.integers(0, 300, ROWS),
    })  # fmt: skip
    mark = draw.normal(size=301)[frame["s"]] + draw.normal(size=15)[frame["dept"]] + draw.normal(size=ROWS)
    mark += np.abs(frame["age"] - 40) / 10 + frame["visits"] / 5 + np.cos(frame["month"] * np.pi / 6)
    return frame, mark


@pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])
def test_numbers_whose_neighbours_have_other_labels_are_named_as_ids(tmp_path, task):
    frame, mark = answers()
    labels = {"regression": mark.round(3), "binary": (mark > mark.mean()).astype("int64")}
    labels["multiclass"] = pd.cut(mark, [-99, mark.median(), mark.quantile(0.7), 99], labels=["a", "b", "c"])
    frame.assign(y=labels[task]).to_csv(tmp_path / "marks.csv", index=False)
    made = draft_config(str(tmp_path / "marks.csv"), "y", None, 10_000)
    assert made.features["categorical"] == {"s": "int64", "dept": "int64"}
    assert made.features["continuous"] == ["age", "visits", "month", "noise"]
    (remark,) = [remark for remark in made.remarks if "ids or codes" in remark]
    assert remark.startswith("Numbers of s, dept are taken for ids or codes:")


@pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])
def test_an_amount_of_which_one_value_stands_for_nobody_is_no_id(task):
    """As ages of Minneapolis' police use of force (openintro), 0 of which is a crowd: its rows alone had labels alike,
    and those of 13 were others."""
    draw = np.random.default_rng(0)
    age = np.where(draw.random(5000) < 0.02, 0, draw.integers(13, 60, 5000)).astype("float64")
    label = draw.normal(size=5000) + 3 * (age == 0)
    if task != "regression":
        label = np.digitize(label, [1.0] if task == "binary" else [0.5, 1.5]).astype("float64")
    assert not are_names(age, label, task)
    assert not are_names(age * np.nan, label, task)


def test_numbers_with_large_gaps_stay_numbers_and_are_told(tmp_path):
    frame, mark = answers()
    frame["s"] = frame["s"] * 97  # such as prices in cents
    frame.assign(y=mark.round(3)).drop(columns="dept").to_csv(tmp_path / "marks.csv", index=False)
    made = draft_config(str(tmp_path / "marks.csv"), "y", None, 10_000)
    assert made.features["continuous"] == ["s", "age", "visits", "month", "noise"]
    (remark,) = [remark for remark in made.remarks if "ids or codes" in remark]
    assert remark.startswith("Numbers of s may be ids or codes:")
    assert remark.endswith("take them from continuous to categorical, as s: int64.")
    written = frame.drop(columns="dept").assign(y=mark.round(3), price="7,5", z=frame["noise"].astype("str") + ",5")
    written.to_csv(tmp_path / "commas.csv", index=False, sep=";", decimal=",")
    (remark,) = [
        remark for remark in draft_config(str(tmp_path / "commas.csv"), "y", None, 10_000).remarks
        if "ids or codes" in remark
    ]  # fmt: skip
    assert remark.endswith("as s: int64, and out of inputs and steps.")


def test_digits_in_text_are_names_where_their_labels_say_so(tmp_path):
    """As factors of R are, such as the students of InstEval."""
    frame, mark = answers()
    frame["s"] = (frame["s"] * 97).astype("str").where(frame["month"] > 1)  # with nulls, and gaps
    frame["visits"] = frame["visits"].astype("str")
    frame.assign(y=mark.round(3)).to_parquet(tmp_path / "marks.parquet")
    made = draft_config(str(tmp_path / "marks.parquet"), "y", None, 10_000)
    assert made.features["categorical"] == {"s": "string", "dept": "int64"}
    assert made.features["continuous"] == ["age", "visits", "month", "noise"]
    assert made.features["steps"] == [{"parse_number": {"column": "visits"}}]


@pytest.mark.parametrize("how", ["decimals", "exponents"])
def test_numbers_that_no_int64_reads_stay_numbers(tmp_path, how):
    """The features stage refused them as categories: decimals are read as floats, and 7e0 is no whole number."""
    frame, mark = answers()
    frame = frame[["s", "noise"]].assign(y=mark.round(3))
    if how == "decimals":
        path = tmp_path / "marks.parquet"
        frame.assign(s=frame["s"].map(Decimal)).to_parquet(
            path, schema=pa.schema({"s": pa.decimal128(10, 2), "noise": pa.int64(), "y": pa.float64()})
        )
    else:
        path = tmp_path / "marks.csv"
        frame.assign(s=frame["s"].map("{}e0".format)).to_csv(path, index=False)
    made = draft_config(str(path), "y", None, 10_000)
    assert made.features["continuous"] == ["s", "noise"]
    assert not any("ids or codes" in remark for remark in made.remarks)
    tables = TableRecipe(TableSettings(**made.features)).build("pandas")
    assert tables.splits["train"]["s"].between(1, 300).all()


def test_an_id_of_a_thousand_is_no_1_where_commas_are_decimal(tmp_path):
    """Categories of int64 took 1.000 for 1, as it is elsewhere."""
    frame, mark = answers()
    written = frame[["s"]].assign(price=frame["noise"].astype("str") + ",5", y=mark.round(3))
    written.to_csv(tmp_path / "old.csv", index=False, sep=";", decimal=",")
    made = draft_config(str(tmp_path / "old.csv"), "y", None, 10_000)
    assert made.categories == {"s": "string"}
    written["s"] = written["s"].astype("str").replace("50", "1.000")
    written.to_csv(tmp_path / "new.csv", index=False, sep=";", decimal=",")
    splits = TableRecipe(TableSettings(**(made.features | {"path": str(tmp_path / "new.csv")}))).build("pandas").splits
    found = pd.concat(splits.values())["s"].value_counts()
    assert found["1"] == (frame["s"] == 1).sum()
    assert found["1.000"] == (frame["s"] == 50).sum()


def test_nothing_is_said_of_amounts_and_of_too_few_values_or_rows():
    frame, mark = answers(1)
    assert not any(are_names(frame[name].to_numpy("float64"), mark.to_numpy(), "regression")
                   for name in ("age", "visits", "month", "noise"))  # fmt: skip
    s = frame["s"].to_numpy("float64")
    assert are_names(s, mark.to_numpy(), "regression")
    assert not are_names(s % 5, mark.to_numpy(), "regression")
    assert not are_names(s[:300], mark.to_numpy()[:300], "regression")  # a row or two of each
    assert not are_names(s * np.nan, mark.to_numpy(), "regression")
    assert not are_names(s, np.ones(ROWS), "binary")
    pupils = np.random.default_rng(2).integers(0, 1500, 4500)  # three rows of each
    scores = np.random.default_rng(3).normal(size=1500)[pupils] + np.random.default_rng(4).normal(size=4500)
    assert are_names(pupils.astype("float64"), scores, "regression")
    assert not are_names(pupils.astype("float64"), scores[::-1], "regression")
    some = np.where(np.arange(ROWS) % 3 == 0, np.nan, s)
    assert are_names(some, mark.to_numpy(), "regression")


@pytest.mark.parametrize(("num_classes", "ways", "seed"), [(10, 2, 2), (10, 2, 7), (26, 2, 2), (26, 1, 1)])
def test_amounts_of_which_each_class_has_its_own_range_are_no_names(num_classes, ways, seed):
    """As of letters, some written in two ways: the mean of any one class jumps from value to value."""
    draw = np.random.default_rng(seed)
    label = draw.integers(0, num_classes, 3000)
    middle, way = draw.uniform(0, 15, (2, num_classes)), draw.integers(0, 2, 3000) * (ways - 1)
    amount = np.round(middle[way, label] + 0.5 * draw.normal(size=3000)).clip(0, 15)
    assert not are_names(amount, label.astype("float64"), "multiclass")


def test_ids_are_told_from_words_that_end_like_them_and_from_quantities():
    ids = ("unitid", "UNITID", "patientid", "seqn", "SEQN", "personid", "user_id", "stationId", "caseid", "childid",
           "idno", "idNum", "id_nr", "IDCODE", "fips", "statefips", "county_fips")  # fmt: skip
    words = ("humid", "paid", "valid", "fluid", "grid", "acid", "solid", "bid", "consequence", "visits_per_user",
             "paid_num", "humid_no", "idea_num")  # fmt: skip
    assert [name for name in ids if not is_code_name(name)] == []
    assert [name for name in words if is_code_name(name)] == []


@pytest.mark.parametrize("text", [False, True])
def test_whole_numbers_of_the_type_category_are_names(tmp_path, text):
    draw = np.random.default_rng(0)
    code = pd.Series(draw.integers(1, 60, 500) * 17).where(draw.random(500) < 0.9).astype("Int64")
    size = pd.Series(draw.choice(["1.5", "2.25", "7"], 500), dtype="category")
    frame = pd.DataFrame({"floor": (code.astype("str") if text else code).where(code.notna()).astype("category"),
                          "size": size, "area": code, "y": draw.normal(size=500)})  # fmt: skip
    made = draft_frame(pa.Table.from_pandas(frame), labels={"y": None})
    assert made.categories == {"floor": "string" if text else "int64"}
    assert made.features["continuous"] == ["size", "area"]
    assert "by the column's type" in made.notes["floor"]
    places = {"artifacts": str(tmp_path / "a"), "runs": str(tmp_path / "r")}
    run = fit(frame, places, {"train.epochs": 1, "evaluate.importance": False, "evaluate.baselines": []}, target="y")
    known = run.predict(frame.drop(columns="y"))["y"]
    plain = frame.assign(floor=frame["floor"].astype("str" if text else "Int64")).drop(columns="y")
    np.testing.assert_array_equal(run.predict(plain)["y"], known)
