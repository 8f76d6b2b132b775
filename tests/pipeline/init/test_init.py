"""`gigabatch init`: what it makes of tables of many kinds, and that its configurations load and train."""

import datetime
import shlex
import shutil
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats

from gigabatch import fit
from gigabatch.features.engines import pandas as pandas_engine
from gigabatch.features.errors import DataError
from gigabatch.features.reading.csv_blocks import csv_blocks
from gigabatch.features.recipes.table.recipe import TableRecipe, TableSettings
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import load_config
from gigabatch.pipeline.init.draft import draft_config
from gigabatch.pipeline.init.frame import draft_frame
from gigabatch.pipeline.init.leaks import added, leak
from gigabatch.pipeline.init.look import look
from gigabatch.pipeline.init.target import labels_of
from gigabatch.pipeline.init.write import flow, init, run_name, scalar
from gigabatch.pipeline.stages.stages import Pipeline

ADULT = Path(__file__).parents[4] / "shared/data/adult"
FAST = {"train.epochs": 1, "train.batch_size": 64, "train.lr_max": 0.01, "model.layers": [8], "device": "cpu"}


def shop(rows=600, seed=0):
    """A shop's table with everything that a first table has."""
    rng = np.random.default_rng(seed)
    at = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.sort(rng.integers(0, 90 * 86_400, rows)), unit="s")
    price = rng.gamma(2, 700, rows).round(2)
    country = rng.choice(["US", "us", "US ", "DE", "de", ""], rows)
    bought = rng.random(rows) < 0.2 + 0.3 * (price < 900)
    return pd.DataFrame({
        "order_id": rng.permutation(rows) + 1000, "created_at": at.strftime("%Y-%m-%dT%H:%M:%S"), "country": country,
        "price": [f"${value:,.2f}" for value in price],
        "age": np.where(rng.random(rows) < 0.1, "unknown", rng.integers(18, 80, rows).astype(str)),
        "visits": rng.integers(0, 9, rows), "shop": "main", "empty": "", "paid": np.where(bought, price, 0.0),
        "bought": np.where(bought, "yes", "no"), "copy": np.where(bought, "yes", "no"),
    })  # fmt: skip


def written(tmp_path, table, name="table.csv", **options):
    path = tmp_path / name
    if isinstance(table, pa.Table):
        pq.write_table(table, path)
    else:
        table.to_csv(path, index=False, **options)
    return str(path)


def read_back(made):
    """The rows as the recipe reads them, in the file's order."""
    splits = TableRecipe(TableSettings(**made.features)).build("pandas").splits
    frame = pd.concat(splits.values())
    return frame.sort_values(made.features.get("keys", ["row_number"])).reset_index(drop=True)


ALONE = {"evaluate.importance": False, "evaluate.baselines": []}  # nothing but the model is evaluated


def trained(tmp_path, path, target, whole=False, **options):
    """The run of one short epoch, and the draft that it was made of; whole: with all of its evaluation."""
    out, made = init(path, target, tmp_path / "made.yaml", **options)
    overrides = {**FAST, "runs": str(tmp_path / "runs"), "artifacts": str(tmp_path / "artifacts")}
    run = Pipeline.from_config(out, overrides if whole else overrides | ALONE).train()
    return run.summary, made


def test_a_shops_table(tmp_path):
    summary, made = trained(tmp_path, written(tmp_path, shop()), "bought", whole=True)
    found = made.features
    assert found["targets"] == {"bought": {"task": "binary", "positive": "yes"}}
    assert found["time"] == "created_at"
    assert found["null_values"] == ["", "NA", "unknown"]
    assert found["keys"] == ["order_id"]
    assert found["continuous"] == ["price", "age", "visits"]
    assert found["categorical"] == ["created_at_weekday", "created_at_hour", "country"]
    assert {"clean_text": {"column": "country", "case": "lower"}} in found["steps"]
    assert {"parse_number": {"column": "price"}} in found["steps"]
    assert made.left_out["shop"] == "one value alone, main"
    assert made.left_out["empty"] == "it holds no value"
    assert made.left_out["copy"] == "a copy of the target"
    assert made.left_out["paid"].startswith("a possible leak: it alone reaches an AUC of 1.0")
    assert made.leaks == ["paid"]
    text = (tmp_path / "made.yaml").read_text()
    assert "# - paid: a possible leak" in text
    assert "- country  # 2 values" in text
    assert summary["metrics"]


def test_odd_names_come_back_as_they_are(tmp_path):
    names = ["größe in cm", "no", "class", "null", "a: b #c", "'q\"", "{x}", " lead", "1", "true", "line\nbreak", "é\t"]
    rng = np.random.default_rng(1)
    table = pd.DataFrame({name: rng.choice(list("abc"), 300) for name in names})
    table["Ümlaut?"] = rng.choice(["gut", "schlecht"], 300)
    out, made = init(written(tmp_path, table), "Ümlaut?", tmp_path / "o.yaml")
    assert made.features["categorical"] == names
    assert list(load_config(out).features.categorical) == names
    assert list(load_config(out).features.targets) == ["Ümlaut?"]
    trained(tmp_path, written(tmp_path, table), "Ümlaut?", force=True)


def test_names_that_cannot_be_used_are_left_out_and_said(tmp_path):
    rng = np.random.default_rng(2)
    lines = ["a,a,,row_number,x,y", *(f"{k % 3},1,2,{k},{rng.normal()},{k % 2}" for k in range(200))]
    path = tmp_path / "dup.csv"
    path.write_text("\n".join(lines))
    summary, made = trained(tmp_path, str(path), "y")
    assert made.left_out["a"] == "2 columns have this name; rename them"
    assert made.left_out[""] == "it has no name"
    assert made.left_out["row_number"].startswith("the recipe makes a column of this name")
    assert made.features["continuous"] == ["x"]
    assert summary["metrics"]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ([[None], [1], ["a"]], "int64 in p1.parquet, string in p2.parquet"),
        ([[1], [None], ["a"]], "int64 in p0.parquet, string in p2.parquet"),
        ([[1], [0.5], ["a"], ["b"], [None]], "int64 in p0.parquet, string in p2.parquet"),
        ([[None], [2**53 + 1], [0.5]], "int64 in p1.parquet, double in p2.parquet"),
        ([[2**53 + 1], [None], [0.5]], "int64 in p0.parquet, double in p2.parquet"),
    ],
)
def test_of_a_column_of_several_types_those_are_named_that_do_not_go_together(tmp_path, monkeypatch, columns, told):
    monkeypatch.chdir(tmp_path)
    for place, values in enumerate(columns):
        pq.write_table(pa.table({"x": values, "y": [1]}), f"p{place}.parquet")
    table = look("*.parquet", 1_000)
    assert table.left_out == {"x": told}
    assert list(table.sample) == ["y"]


def test_flags_of_nulls_that_the_model_makes_itself_are_left_out(tmp_path):
    rng = np.random.default_rng(4)
    table = pd.DataFrame(
        {"x": rng.normal(size=300), "city": rng.choice(["a", "b"], 300), "city_na": rng.normal(size=300)}
    )
    table["x_na"], table["y"] = rng.integers(0, 2, 300), rng.integers(0, 2, 300)
    summary, made = trained(tmp_path, written(tmp_path, table), "y")
    assert made.left_out == {"x_na": "the name of the flag that says where x is null; rename yours to keep it"}
    assert made.features["continuous"] == ["x", "city_na"]
    assert summary["metrics"]


def test_what_is_said_of_a_setting_is_not_said_of_a_column_of_its_name(tmp_path):
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"time": rng.normal(size=300), "seed": rng.choice(["a", "b"], 300)})
    table["at"] = pd.date_range("2024-01-01", periods=300).strftime("%Y-%m-%d")
    table["y"] = rng.integers(0, 2, 300)
    out, _ = init(written(tmp_path, table), "y", tmp_path / "o.yaml")
    beside = {
        line.split("  # ")[0].strip(): line.split("  # ")[1] for line in out.read_text().splitlines() if "  # " in line
    }
    assert beside["- time"] == f"{table['time'].min():.6g} to {table['time'].max():.6g}"
    assert beside["time: at"].startswith("2024-01-01 to ")
    seedless, _ = init(written(tmp_path, table.drop(columns="at")), "y", tmp_path / "p.yaml")
    assert "    - seed  # 2 values\n" in seedless.read_text()
    assert "  seed: 0  # of the random split\n" in seedless.read_text()


@pytest.mark.parametrize(("dtype", "declared"), [("int32", "int64"), ("uint64", None), ("str", None)])
def test_a_key_of_whole_numbers_in_parquet_files_stays_one(tmp_path, dtype, declared):
    """Scores held '7' for 7."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=300), "sold": rng.integers(0, 2, 300), "order_id": np.arange(300) + 7})
    table["order_id"] = table["order_id"].astype(dtype)
    table.to_parquet(tmp_path / "t.parquet")
    made = draft_config(str(tmp_path / "t.parquet"), "sold", None, 1_000)
    assert made.features["keys"] == ["order_id"]
    assert made.features.get("inputs", {}).get("order_id") == declared


def test_parquet_files_whose_types_differ_by_the_nulls_that_they_hold(tmp_path):
    """As pandas writes them day by day: whole numbers beside a null are floats, and a column of nulls alone has no type
    of its own."""
    rng = np.random.default_rng(0)
    size = 100
    shop, visits, sold = rng.integers(0, 7, size), rng.integers(0, 13, size), rng.integers(0, 3, size)
    gaps = np.arange(size) % 9 == 0
    days = {
        1: {"shop_id": shop, "city": pa.nulls(size), "visits": visits.astype("int32"), "at": pa.nulls(size)},
        2: {
            "shop_id": pa.array(shop.astype("float64"), mask=gaps), "city": rng.choice(["a", "b"], size),
            "visits": pa.array(visits.astype("float64"), mask=gaps),
            "at": pa.array(pd.date_range("2024-01-01", periods=size), pa.timestamp("us")),
        },
    }  # fmt: skip
    (tmp_path / "days").mkdir()
    for day, columns in days.items():
        target = {"sold": sold.astype("float64") if day == 1 else sold, "odd": ["x"] * size if day == 1 else sold}
        target |= {"hash_id": pa.array(shop + 2**60) if day == 1 else pa.array(shop * 2.0**53)}
        texts = pa.array(rng.choice(["b", "c", "d"], size))
        target |= {"kind": texts.dictionary_encode() if day == 1 else texts}
        written(tmp_path / "days", pa.table(columns | target), f"day-{day}.parquet")
    made = draft_config(str(tmp_path / "days"), "sold", None, 1000)
    told = {name: text.split(" in ")[0] for name, text in made.left_out.items()}
    assert told == {"odd": "string", "hash_id": "int64"}
    assert made.categories == {"shop_id": "int64", "city": "string", "kind": "string", "at_weekday": "string"}
    assert {"visits", "at_days"} <= set(made.features["continuous"])
    assert made.features["targets"] == {"sold": {"task": "multiclass"}}
    found = read_back(made)
    assert found["sold"].tolist() == [*sold, *sold]
    assert found["shop_id"].isna().tolist() == [False] * size + gaps.tolist()
    assert found["shop_id"].fillna(-1).tolist() == [*shop, *np.where(gaps, -1, shop)]
    np.testing.assert_array_equal(found["visits"], [*visits, *np.where(gaps, np.nan, visits)])
    assert found["city"].isna().tolist() == [True] * size + [False] * size


def test_decimals_of_a_warehouse_are_whole_numbers_where_they_have_no_fraction(tmp_path):
    rng = np.random.default_rng(0)
    size = 200

    def decimals(values, scale=0):
        return pa.array([str(value) for value in values]).cast(pa.decimal128(20, scale))

    shop, kind = rng.integers(0, 9, size), rng.integers(0, 4, size)
    table = {
        "order_id": decimals(np.arange(size) + 2**60),
        "shop_id": decimals(shop),
        "seen_ts": decimals(1_600_000_000 + np.arange(size) * 1000),
        "price": decimals(np.round(rng.gamma(2, 10, size), 2), 2),
        "code": decimals(shop, 2),
        "hash": decimals([2**63 + place % 9 for place in range(size)]),
        "kind": decimals(kind),
    }
    made = draft_config(written(tmp_path, pa.table(table), "t.parquet"), "kind", None, 1000)
    assert made.features["time"] == "seen_ts"
    assert made.categories == {"shop_id": "int64", "seen_ts_hour": "string"}
    assert made.features["continuous"] == ["price", "code"]
    assert made.features["keys"] == ["order_id"]
    assert made.left_out["hash"] == "decimals beyond whole numbers of 64 bits; write text"
    found = read_back(made)
    assert found["order_id"].tolist() == [str(2**60 + place) for place in range(size)]
    assert found["shop_id"].tolist() == shop.tolist()
    assert found["kind"].tolist() == kind.tolist()


def test_parquet_of_many_types(tmp_path):
    rng = np.random.default_rng(3)
    rows = 400
    label = rng.random(rows) < 0.4
    some = [k % 7 == 0 for k in range(rows)]

    def with_nulls(values):
        return [None if null else value for null, value in zip(some, values, strict=True)]

    table = pa.table({
        "day": pa.array([datetime.date(2020, 1, 1) + datetime.timedelta(int(k)) for k in rng.integers(0, 900, rows)]),
        "seen_at": pa.array(with_nulls([datetime.datetime(2021, 1, 1) + datetime.timedelta(hours=k)
                                        for k in range(rows)]), pa.timestamp("ms", tz="Europe/Berlin")),
        "cost": pa.array(with_nulls([Decimal(int(k)) / 100 for k in rng.integers(0, 9999, rows)]),
                         pa.decimal128(10, 2)),
        "kind": pa.array(rng.choice(["a", "b"], rows)).dictionary_encode(),
        "flag": pa.array(with_nulls([bool(k) for k in rng.integers(0, 2, rows)])),
        "nothing": pa.nulls(rows), "struct": pa.array([{"a": 1}] * rows),
        "tags": pa.array([["a", "b"][: k % 3] for k in range(rows)]),
        "money": [f"{k:,}.50 EUR" for k in rng.integers(0, 99_999, rows)],
        "user_id": pa.array(rng.integers(0, 40, rows)), "ratio": pa.array(rng.normal(size=rows), pa.float32()),
        "ok": pa.array([bool(value) for value in label]),
    })  # fmt: skip
    _, made = trained(tmp_path, written(tmp_path, table, "t.parquet"), "ok")
    found = made.features
    assert found["time"] == "day"
    assert found["targets"] == {"ok": {"task": "binary", "positive": "True"}}
    assert found["continuous"] == ["seen_at_days", "cost", "money", "ratio"]
    assert found["categorical"] == {
        "day_month": "string", "day_weekday": "string", "seen_at_weekday": "string", "seen_at_hour": "string",
        "kind": "string", "flag": "bool", "user_id": "int64",
    }  # fmt: skip
    assert "user_id: int64  # 40 values" in (tmp_path / "made.yaml").read_text()
    assert found["lists"] == {"tags": {"elements": "string"}}
    assert found["inputs"] == {"seen_at": "datetime", "money": "string"}
    assert made.left_out["nothing"] == "it holds no value"
    assert "struct" in made.left_out["struct"]


def test_a_folder_of_parts_is_one_table_and_its_columns_are_those_of_all(tmp_path):
    table = shop()[["price", "age", "visits", "bought"]]
    for part in range(3):
        rows = table.iloc[part * 200 : (part + 1) * 200]
        rows = rows.drop(columns="visits") if part == 2 else rows
        (tmp_path / "parts").mkdir(exist_ok=True)
        rows.to_csv(tmp_path / f"parts/p{part}.csv", index=False, sep=";")
    summary, made = trained(tmp_path, str(tmp_path / "parts"), "bought")
    assert made.features["separator"] == ";"
    assert made.features["path"] == str(tmp_path / "parts")
    assert made.left_out["visits"] == f"not a column of {tmp_path / 'parts/p2.csv'}"
    assert summary["metrics"]


def test_files_that_are_splits_by_their_names(tmp_path):
    table = shop()[["price", "visits", "bought"]]
    table.iloc[:400].to_csv(tmp_path / "train.csv", index=False)
    table.iloc[400:].to_csv(tmp_path / "test.csv", index=False)
    found = draft_config(str(tmp_path), "bought", None, 1000).features
    assert (found["train_path"], found["test_path"]) == (str(tmp_path / "train.csv"), str(tmp_path / "test.csv"))
    table.iloc[400:].drop(columns="bought").to_csv(tmp_path / "test.csv", index=False)
    made = draft_config(str(tmp_path), "bought", None, 1000)  # of a competition
    assert made.features["path"] == str(tmp_path / "train.csv")
    assert "not a column of" in made.remarks[-1]


@pytest.mark.parametrize(
    ("labels", "settings"),
    [
        (["0", "1"], {"task": "binary"}),
        (["1", "2"], {"task": "binary", "positive": "2"}),
        (["No", "Yes"], {"task": "binary", "positive": "Yes"}),
        (["FALSCH", "FALSCH", "WAHR", "WAHR", "WAHR"], {"task": "binary", "positive": "WAHR"}),
        (["no", "yes", "no ", ""], {"task": "binary", "positive": "yes", "label_strip": " "}),
        (["a", "b", "None"], {"task": "multiclass"}),
        (["1", "2", "3"], {"task": "multiclass"}),
        (["1.0", "2.0", "3.0", ""], {"task": "multiclass"}),  # as pandas writes whole numbers beside a null
        (["0", "1", "1.0"], {"task": "binary"}),
        (["0.0", "1.0", "0", ""], {"task": "binary"}),
        (["1.0", "2.0", "3.5", ""], {"task": "regression"}),
        (["$0.5", "$1.5", "$2.5"], {"task": "regression", "label_strip": "$"}),
        ([str(k / 8) for k in range(40)], {"task": "regression"}),
        ([str(k) for k in range(40)], {"task": "regression"}),
    ],
)
def test_the_task_follows_from_the_labels(tmp_path, labels, settings):
    rng = np.random.default_rng(4)
    # The first label is the more frequent one.
    drawn = rng.choice([labels[0], *labels], 400)
    table = pd.DataFrame({"x": rng.normal(size=400), "y": drawn})
    summary, made = trained(tmp_path, written(tmp_path, table), "y")
    assert made.features["targets"] == {"y": settings}
    assert made.features.get("drop_null_targets", False) is ("" in labels)
    assert summary["metrics"]


@pytest.mark.parametrize(
    ("negative", "positive"),
    [
        ("-", "+"), ("<=50K", ">50K"), ("<50", "≥50"), ("N", "Y"), ("no", "yes"), ("neg", "pos"), ("N", "P"),
        ("N", "J"), ("other", "great"),
        ("false", "true"), ("bad", "good"), ("1", "2"), ("-1", "1"), ("Nein", "Ja"), ("no", "recurrence"),
        ("no-recurrence-events", "recurrence-events"), ("not spam", "spam"), ("non smoker", "smoker"),
        ("inactive", "active"), ("unemployed", "employed"), ("tested_negative", "tested_positive"), ("ham", "spam"),
        ("fail", "pass"), ("Failure", "Success"), ("low", "high"), ("absent", "present"), ("control", "case"),
        ("benign", "malignant"), ("loss", "win"), ("off", "on"), ("healthy", "sick"),
        ("0-no", "1-yes"), ("1 - No", "2 - Yes"), ("churn=no", "churn=yes"), ("churn_n", "churn_y"),
        ("No (0)", "Yes (1)"), ("1: bad risk", "2: good risk"), ("0: good risk", "1: bad risk"), ("0=alive", "1=dead"),
        ("did not buy", "did buy"), ("HER2-", "HER2+"), ("without disease", "with disease"),
        # Yes, no and not say more than the number before them.
        ("1 no", "0 yes"), ("1: No", "0: Yes"), ("no_1", "yes_0"), ("1 not approved", "0 approved"),
        ("1-no churn", "0-churn"), ("2 no", "1 yes"), ("0 not approved", "1 approved"), ("0 other", "1 cat"),
        ("0 cat", "1 other"),  # which of them is no is not sure, so the number says it
        ("not approved", "approved"), ("Not Approved", "Approved"), ("notapproved", "approved"),
        ("disapproved", "approved"), ("declined", "approved"), ("rejected", "approved"), ("rejected", "accepted"),
        ("won't churn", "will churn"), ("did not churn", "churned"), ("didn't click", "clicked"),
        ("does not have diabetes", "has diabetes"), ("illegal", "legal"), ("irregular", "regular"),
        ("impossible", "possible"), ("dislike", "like"), ("neutral or dissatisfied", "satisfied"),
        ("alive", "dead"), ("Living", "Deceased"), ("0=Alive", "died"), ("active", "churned"), ("retained", "churned"),
        ("Unsuccessful", "Success"), ("nicht genehmigt", "genehmigt"), ("non approuvé", "approuvé"),
        ("Нет", "Да"), ("HAYIR", "EVET"), ("hayır", "evet"), ("ei", "Kyllä"), ("nem", "igen"), ("nu", "da"),
        ("Ne", "Da"), ("いいえ", "はい"), ("否", "是"), ("아니오", "예"), ("όχι", "ναι"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rarer", [0, 1])
def test_the_positive_label_is_the_one_that_people_take_for_it(negative, positive, rarer):
    labels = pd.Series([negative, positive, (positive, negative)[rarer]] * 100)
    assert labels_of("y", labels, None, None).settings.get("positive") == positive


@pytest.mark.parametrize(
    ("negative", "positive"),
    [
        (" no", " yes"), ("bad ", "good "), ("no.", "yes."), (" <=50K.", " >50K."), (" - ", " + "),
        (" not spam", " spam"), ("ham.", "spam."), (" tested_negative", " tested_positive"), ("inactive ", "active "),
        ("9007199254740992", "9007199254740993"), ("-9007199254740993", "-9007199254740992"),
        ("9007199254740993 ", "90071992547409931 "),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rarer", [0, 1])
@pytest.mark.parametrize("csv", [True, False])
def test_blanks_and_points_around_labels_and_long_numbers_change_nothing(tmp_path, negative, positive, rarer, csv):
    labels = pd.Series([negative, positive, (positive, negative)[rarer]] * 100)
    found = labels_of(
        "y", labels if csv else labels.astype(pd.ArrowDtype(pa.string())), None if csv else pa.string(), None
    )
    assert found.settings["positive"].strip() == positive.strip()
    assert found.values.tolist() == (labels == positive).astype("float64").tolist()
    table = pd.DataFrame({"x": np.arange(300) % 7, "y": labels})
    path = written(tmp_path, table if csv else pa.table(table), f"t.{'csv' if csv else 'parquet'}")
    made = draft_config(path, "y", None, 1000)
    assert read_back(made)["y"].astype("float64").tolist() == (labels == positive).astype("float64").tolist()


@pytest.mark.parametrize(
    "labels",
    [
        ["red", "blue", "red"],
        ["north", "n", "n"],
        ["united", "ited", "united"],
        ["1-red", "2-blue", "1-red"],
        ["team 1", "team 2", "team 1"],
        ["open", "closed", "open"],
        ["died", "survived", "died"],
    ],
)
def test_labels_that_say_neither_are_positive_where_they_are_rarer(labels):
    rarer = min(set(labels), key=labels.count)
    assert labels_of("y", pd.Series(labels * 100), None, None).settings["positive"] == rarer


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["alive", "dead", "alive"], "33.3% of the labels are 'dead', which is 1 by what the two say"),
        (["open", "closed", "open"], "33.3% of the labels are 'closed', which is 1 as the rarer one, for the two do "
         "not say which is; for 'open' set positive to it"),
        (["2", "1", "1"], "33.3% of the labels are '2', which is 1 as the greater one"),
        (["1", "0", "0"], "33.3% of the labels are '1', which is 1"),
    ],
)  # fmt: skip
def test_the_file_says_which_label_is_positive_and_why(tmp_path, labels, said):
    path, out = tmp_path / "rows.csv", tmp_path / "rows.yaml"
    pd.DataFrame({"sold": labels * 100, "x": np.random.default_rng(0).normal(size=300)}).to_csv(path, index=False)
    assert main(["init", str(path), "--target", "sold", "--out", str(out)]) == 0
    (line,) = (line for line in out.read_text().splitlines() if line.strip().startswith("sold: {task: binary"))
    assert line.endswith(f"  # {said}")
    assert f"# Target sold: binary; {said}.\n" in out.read_text()


def test_plus_and_minus_are_labels_beside_columns_where_a_minus_is_null(tmp_path):
    rng = np.random.default_rng(13)
    x = rng.normal(size=600).round(3)
    table = pd.DataFrame({
        "x": np.where(rng.random(600) < 0.1, "-", x.astype(str)), "z": rng.normal(size=600),
        "kind": rng.choice(["a", "b", "-"], 600), "y": np.where(x > 0, "+", "-"),
    })  # fmt: skip
    summary, made = trained(tmp_path, written(tmp_path, table), "y")
    assert made.features["targets"] == {"y": {"task": "binary", "positive": "+"}}
    assert made.remarks[1].startswith("Target y: binary; ")
    assert made.remarks[1].endswith("% of the labels are '+', which is 1 by what the two say.")
    assert summary["rows"] == 600


@pytest.mark.parametrize(
    ("labels", "settings", "expected"),
    [
        (["yes", "Yes", "no"],
         {"task": "binary", "positive": "yes", "label_steps": [{"clean_text": {"case": "lower"}}]}, [1, 1, 0]),
        (["Red", "red ", "blue", "green"], {"task": "multiclass", "label_steps": [{"clean_text": {"case": "lower"}}]},
         [2, 2, 0, 1]),
        (["1.234,50", "7,25", "12,00"],
         {"task": "regression", "label_steps": [{"parse_number": {"decimal": ",", "thousands": "."}}]},
         [1234.5, 7.25, 12]),
        (["$1,346.12", "$346.12", "ask"],
         {"task": "regression", "label_steps": [{"parse_number": {"null_values": ["ask"]}}]}, [1346.12, 346.12, None]),
        (["1:01:00", "59:30", "58:10"], {"task": "regression", "label_steps": [{"parse_duration": {}}]},
         [3660, 3570, 3490]),
        (["A", "a", "B"], {"task": "binary", "positive": "b", "label_steps": [{"clean_text": {"case": "lower"}}]},
         [0, 0, 1]),
        (["A", "a", "b", "C"], {"task": "multiclass"}, [0, 2, 3, 1]),
        (["hid", "hId", "hEd", "hed"], {"task": "multiclass"}, [3, 1, 0, 2]),
        (["3 stars", "4 stars", "5 stars"], {"task": "multiclass"}, [0, 1, 2]),
    ],
)  # fmt: skip
def test_labels_as_people_write_them_are_cleaned_where_they_are_read(tmp_path, labels, settings, expected):
    rng = np.random.default_rng(9)
    shares = [0.475, 0.475, 0.05] if "ask" in labels else [1 / len(labels)] * len(labels)  # a word for null is rare
    places = rng.choice(len(labels), 1200, p=shares)
    table = pd.DataFrame({"y": np.array(labels)[places], "x": rng.normal(size=1200)})
    made = draft_config(written(tmp_path, table), "y", None, 5000)
    assert made.features["targets"] == {"y": settings}
    assert made.features.get("drop_null_targets", False) is (None in expected)
    frame = pd.concat(TableRecipe(TableSettings(**made.features)).build("pandas").splits.values())
    found = frame.sort_values("row_number")
    right = [expected[place] for place in places if expected[place] is not None]
    assert np.allclose(found["y"].astype("float64"), right)


@pytest.mark.parametrize(
    ("labels", "said"),
    [(["yes", "Yes", "no"], "; 3 spellings of 2 labels are read as one each."), (["yes", "no"], None),
     (["red", "RED", "blue", "green"], "; 4 spellings of 3 labels are read as one each."),
     (["<=50K", "<=50K.", ">50K"], "; 3 spellings of 2 labels are read as one each.")],
)  # fmt: skip
def test_spellings_of_labels_that_become_one_are_told(tmp_path, labels, said):
    table = pd.DataFrame({"y": labels * 100, "x": np.random.default_rng(9).normal(size=100 * len(labels))})
    remark = draft_config(written(tmp_path, table), "y", None, 5000).remarks[1]
    assert "spellings" not in remark if said is None else remark.endswith(said)


@pytest.mark.parametrize(
    ("values", "task"),
    [(np.arange(1, 16), "multiclass"), (np.arange(1, 16).astype(str), "multiclass"),
     (np.arange(15) + 0.5, "regression"), (np.arange(1001), "regression")],
)  # fmt: skip
def test_whole_numbers_of_a_type_category_are_classes_as_they_are_in_columns(tmp_path, values, task):
    rng = np.random.default_rng(9)
    table = pd.DataFrame({"y": pd.Categorical(np.tile(values, 20)), "x": rng.normal(size=20 * len(values))})
    if isinstance(values[0], str):  # Parquet files keep the type of texts alone
        path = tmp_path / "rows.parquet"
        table.to_parquet(path, index=False)
        assert draft_config(str(path), "y", None, 50_000).features["targets"] == {"y": {"task": task}}
    frame = pa.Table.from_pandas(table, preserve_index=False)
    assert draft_frame(frame, labels={"y": None}).features["targets"] == {"y": {"task": task}}


@pytest.mark.parametrize("kind", ["int64", "str"])
def test_many_whole_numbers_that_are_equally_frequent_may_be_codes(tmp_path, kind):
    rng = np.random.default_rng(9)
    even, bell = np.tile(np.arange(1, 16), 20), rng.binomial(14, 0.5, 300)
    table = pd.DataFrame({"y": even.astype(kind), "n": bell.astype(kind), "x": rng.normal(size=300)})
    path = tmp_path / "rows.parquet"
    table.to_parquet(path, index=False)
    made = draft_config(str(path), "y", None, 5000)
    assert made.features["targets"] == {"y": {"task": "regression"}}
    said = "y holds 15 whole numbers that are about as frequent as each other, and is taken for an amount."
    assert any(remark.startswith(said) for remark in made.remarks)
    for name, task in (("y", "regression"), ("y", "multiclass"), ("n", None)):
        assert "as frequent" not in " ".join(draft_config(str(path), name, task, 5000).remarks)


def test_a_slip_of_the_shift_key_is_no_class(tmp_path):
    y = np.array(["oak", "pine", "fir"] * 200)
    y[:4] = "oAk"
    table = pd.DataFrame({"y": y, "x": np.random.default_rng(9).normal(size=600)})
    made = draft_config(written(tmp_path, table), "y", None, 5000)
    assert made.features["targets"]["y"]["label_steps"] == [{"clean_text": {"case": "lower"}}]


def test_a_word_that_is_null_in_one_column_and_a_label_in_the_target(tmp_path):
    rng = np.random.default_rng(5)
    age = np.where(rng.random(300) < 0.1, "unknown", rng.integers(18, 80, 300).astype(str))
    table = pd.DataFrame({"age": age, "y": rng.choice(["unknown", "ok"], 300)})
    _, made = trained(tmp_path, written(tmp_path, table), "y")
    assert "null_values" not in made.features
    assert made.features["steps"] == [{"parse_number": {"column": "age", "null_values": ["unknown"]}}]


def test_such_a_word_joins_the_other_null_words_of_a_duration(tmp_path):
    rng = np.random.default_rng(5)
    lap = np.where(rng.random(300) < 0.05, "unknown", [f"{k % 9}:{k % 50 + 10}" for k in range(300)])
    lap[::60] = "DNF"
    table = pd.DataFrame({"lap": lap, "y": rng.choice(["unknown", "ok"], 300)})
    made = draft_config(written(tmp_path, table), "y", None, 1000)
    assert made.features["steps"] == [{"parse_duration": {"column": "lap", "null_values": ["DNF", "unknown"]}}]


@pytest.mark.parametrize("word", ["None", "-", "unknown", "inf"])
@pytest.mark.parametrize("holder", ["category", "flag", "text", "key"])
def test_a_word_that_is_null_in_one_column_and_a_value_of_another(tmp_path, word, holder):
    """Houses without a garage are no houses of which it is not known."""
    rng = np.random.default_rng(6)
    rows = 400
    area = np.where(rng.random(rows) < 0.1, word, rng.integers(20, 90, rows).astype(str))
    words = np.array(["red", "blue", "small", "large", "hat", "shoe", "coat", "bag"])
    values = {
        "category": rng.choice(["Attached", "Detached", word, ""], rows),
        "flag": rng.choice(["True", "False", word, ""], rows),
        "text": np.array([" ".join(rng.permutation(words)) + f" x{k}" for k in range(rows)], dtype=object),
        "key": np.array([f"n{k}" for k in range(rows)], dtype=object),
    }[holder]
    if holder in ("text", "key"):
        values[7] = word
    table = pd.DataFrame({"area": area, "garage": values, "x": rng.normal(size=rows), "y": rng.integers(0, 2, rows)})
    table = table.sort_values("garage") if holder == "key" else table
    made = draft_config(written(tmp_path, table), "y", None, 1000)
    assert "null_values" not in made.features
    assert {"parse_number": {"column": "area", "null_values": [word]}} in made.features["steps"]
    found = read_back(made)
    assert found["area"].isna().tolist() == (table["area"] == word).tolist()
    if holder in ("category", "flag"):
        assert (found["garage"] == word).sum() == (values == word).sum()
        assert found["garage"].isna().sum() == (values == "").sum()
    if holder == "key":
        assert made.features["keys"] == ["garage"]
        assert found["garage"].tolist() == table["garage"].tolist()


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        ("%Y-%m-%d", "datetime[%Y-%m-%d]?"), ("%Y-%m-%dT%H:%M:%S", "datetime[%Y-%m-%dT%H:%M:%S]?"),
        ("%d.%m.%Y", "datetime[%d.%m.%Y]?"), ("%s", "datetime[s]?"),
    ],
)  # fmt: skip
def test_a_word_that_is_null_among_dates_and_a_value_of_another_column(tmp_path, form, dtype):
    rng = np.random.default_rng(7)
    days = pd.Series(pd.date_range("2024-01-01", periods=400, freq="31h"))
    at = days.dt.strftime(form)
    at[::10] = "None"
    garage = rng.choice(["Attached", "None", ""], 400)
    table = pd.DataFrame({"sold_date": at, "garage": garage, "y": rng.integers(0, 2, 400)})
    made = draft_config(written(tmp_path, table), "y", None, 1000)
    assert "null_values" not in made.features
    assert made.features["inputs"] == {"sold_date": dtype}
    found = read_back(made)
    assert (found["garage"] == "None").sum() == (garage == "None").sum()
    assert found["sold_date_days"].isna().tolist() == [k % 10 == 0 for k in range(400)]
    expected = (days - pd.Timestamp(0)) / pd.Timedelta("1D")
    read = found["sold_date_days"].astype("float64").dropna()
    assert np.allclose(read, expected[read.index].round(5) if "T" in form or form == "%s" else expected[
        read.index] // 1)  # fmt: skip


def test_dates_of_no_one_form_are_left_out_where_their_null_is_a_value_elsewhere(tmp_path):
    days = pd.Series(pd.date_range("2024-01-01", periods=400, freq="31h"))
    at = days.dt.strftime("%Y-%m-%dT%H:%M").where(days.index % 2 == 0, days.dt.strftime("%Y-%m-%d"))
    at[::10] = "None"
    rng = np.random.default_rng(8)
    garage = rng.choice(["Attached", "None", ""], 400)
    table = pd.DataFrame({"sold_date": at, "garage": garage, "y": rng.integers(0, 2, 400)})
    made = draft_config(written(tmp_path, table), "y", None, 1000)
    assert made.left_out["sold_date"] == "'None' stands for null here and is a value of garage; write another word"


@pytest.mark.parametrize(
    ("content", "target", "message"),
    [
        ("", "y", "the file is empty"),
        ("x,y\n", "y", "columns but no rows"),
        ("y\n" + "0\n1\n" * 50, "y", "no feature is left beside the target 'y'"),
        ("x,y\n" + "1,yes\n2,yes\n" * 50, "y", "it holds one label alone, 'yes'"),
        (
            "x,y\n" + "1,Y\n2,\n3,\n" * 50,
            "y",
            "one label alone, 'Y', in 50 rows, and 100 are blank, .* Where a blank means the other label, write it",
        ),
        ("x,y\n" + "1,01\n2,1\n3,001\n" * 50, "y", r"one label alone, 1, written in 3 ways \('001', '01', '1'\), so"),
        ("x,y\n" + "1,5.0\n2,5\n" * 50, "y", r"one label alone, 5, written in 2 ways \('5', '5.0'\), so"),
        ("x,y\n" + "1,\n2,\n" * 50, "y", "it holds no label"),
        ("x,sold\n" + "1,0\n2,1\n" * 50, "sodl", r"no such column\. Did you mean 'sold'"),
        ("x,Sold \n" + "1,0\n2,1\n" * 50, "sold", r"no such column\. Did you mean 'Sold '"),
        ("x,y,y\n" + "1,0,1\n2,1,1\n" * 50, "y", "cannot be used, 2 columns have this name"),
        ("x,y\n" + "".join(f"{k % 7},name{k}\n" for k in range(1500)), "y", "1,500 different labels"),
        (
            "x;y\n;EUR\n" + "".join(f"{k % 7};{k % 450},50 €\n" for k in range(900)) + "7;Summe: 202.500,00 €\n",
            "y",
            "'EUR', 'Summe: 202.500,00 €' is no number, as the other labels are. Where that is a unit, a total or a",
        ),
        (
            "x,y\n" + "".join(f"{k % 7},{k}.5\n" for k in range(1500)) + "7,as of 2024\n",
            "y",
            "'as of 2024' is no number, as the other labels are",
        ),
        ("x,y\n1,0\n2,1\n", "y", "no random split"),
        ("x,y\n" + "1,31.12.2024\n2,1.1.2025\n3,2.1.2025\n" * 50, "y", "is a date, and a date is no target"),
    ],
)
def test_tables_that_are_refused(tmp_path, content, target, message):
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        draft_config(str(path), target, None, 10_000)


@pytest.mark.parametrize(("task", "message"), [("regression", "is no number"), ("binary", "two labels, found 3")])
def test_a_task_that_the_labels_do_not_fit(tmp_path, task, message):
    table = pd.DataFrame({"x": range(90), "y": ["a", "b", "c"] * 30})
    with pytest.raises(DataError, match=message):
        draft_config(written(tmp_path, table), "y", task, 1000)


def test_large_files_are_looked_at_all_over(tmp_path):
    rows = 600_000
    table = pd.DataFrame({"place": np.arange(rows), "y": np.arange(rows) % 2, "text": "x" * 20})
    found = look(written(tmp_path, table), 200_000)
    assert not found.whole
    assert found.rows is None
    assert 100_000 <= len(found.sample) <= 300_000
    places = found.sample["place"].astype("int64")
    assert places.min() == 0
    assert places.max() > 0.6 * rows
    assert places.is_unique
    found = look(written(tmp_path, pa.Table.from_pandas(table), "t.parquet"), 1000)
    assert (found.rows, len(found.sample)) == (rows, 1000)


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shop().to_csv("Shop visits.csv", index=False)
    assert main(["init", "Shop visits.csv", "--target", "bought"]) == 0
    out = capsys.readouterr().out
    assert "left out 'paid': a possible leak" in out
    assert out.endswith("conf/Shop_visits.yaml: try gigabatch train --config conf/Shop_visits.yaml\n")
    before = Path("conf/Shop_visits.yaml").read_bytes()
    assert main(["init", "Shop visits.csv", "--target", "bought"]) == 2
    assert "the file is there already. Give another --out, or --force" in capsys.readouterr().err
    assert main(["init", "Shop visits.csv", "--target", "bought", "--force"]) == 0
    assert Path("conf/Shop_visits.yaml").read_bytes() == before
    assert main(["init", "Shop visits.csv", "--target", "bought", "--out", "of Anna's.yaml"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(line.partition("try ")[2]) == ["gigabatch", "train", "--config", "of Anna's.yaml"]
    assert f"#   {line.partition('try ')[2]}\n" in Path("of Anna's.yaml").read_text()
    assert main(["init", "nowhere.csv", "--target", "bought"]) == 2
    assert "no such file. Check the path." in capsys.readouterr().err
    Path("shop.feather").write_bytes(b"ARROW1\x00\x00\xff\xff")
    assert main(["init", "shop.feather", "--target", "bought"]) == 2
    assert "shop.feather: unknown kind of file. Read it with pandas" in capsys.readouterr().err
    assert main(["init", "Shop visits.csv", "--target", "bought", "--task", "ranking", "--force"]) == 2
    assert "--task is one of binary, multiclass, regression" in capsys.readouterr().err


@pytest.mark.skipif(not ADULT.exists(), reason="needs ../shared/data/adult")
def test_adult_is_found_as_conf_adult_describes_it(tmp_path):
    for name in ("adult.data", "adult.test"):
        shutil.copy(ADULT / name, tmp_path / name)
    out, _ = init(str(tmp_path), "Y", tmp_path / "o.yaml")
    found, wanted = load_config(out).features, load_config("conf/adult.yaml").features
    for setting in ("separator", "targets"):
        assert getattr(found, setting) == getattr(wanted, setting)
    for setting in ("categorical", "continuous"):
        assert sorted(getattr(found, setting)) == sorted(getattr(wanted, setting))
    assert set(found.null_values) == {"", "NA", "?"}
    assert found.train_path.endswith("adult.data")
    assert found.test_path.endswith("adult.test")


ODD = ("on", "2024-01-01", "=", "Gro\u0308ße", "\U0001f600", "\U0001f468\u200d\U0001f469")  # the last of two, joined


@pytest.mark.parametrize(
    "value", ["no", "Yes", "1", "1e3", "a: b", "#", "- x", "", " a", "[x]", "ümläut", "x\ny", "\x7f", "~", *ODD]
)
def test_scalars_and_mappings_are_read_back(tmp_path, value):
    path = tmp_path / "a.yaml"
    lines = ["name: a", "recipe: table", "features:", "  path: x.csv", f"  categorical: {flow([value or 'a'])}"]
    path.write_text("\n".join([*lines, f"  targets: {flow({'y': {'task': 'binary', 'positive': value}})}"]))
    found = load_config(path).features
    assert found.categorical == (value or "a",)
    assert found.targets["y"]["positive"] == value
    assert scalar(value) in path.read_text()


def test_names_of_runs():
    assert [run_name(path) for path in ("a/b c.csv", "x/*.parquet", "-", "s3://b/t.parquet")] == [
        "b_c", "table", "table", "t"]  # fmt: skip


def test_infinities_beside_the_numbers_do_not_hide_a_leak():
    label = np.arange(1000) % 2
    values = label + np.linspace(0, 0.1, 1000)
    values[::50] = -np.inf
    assert leak(values, label, "binary").startswith("it alone reaches an AUC of")


def refunds(rows=1000):
    rng = np.random.default_rng(6)
    label = rng.random(rows) < 0.3
    told = label & (rng.random(rows) < 0.5)  # of half of the refunds a reason is known
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), unit="D")
    return pd.DataFrame({
        "refund_date": np.where(told, day.strftime("%Y-%m-%d"), ""),
        "refund_reason": np.where(told, rng.choice(["late", "broken"], rows), ""),
        "checked_by": np.where(label | (rng.random(rows) < 0.4), rng.choice(["a", "b"], rows), ""),
        "gift": np.where(rng.random(rows) < 0.1, "card", ""), "price": rng.normal(size=rows),
        "refunded": np.where(label, "yes", "no"),
    })  # fmt: skip


def test_what_is_filled_in_one_class_alone_is_a_possible_leak(tmp_path):
    table = refunds()
    made = draft_config(written(tmp_path, table), "refunded", None, 2000)
    assert made.leaks == ["refund_date", "refund_reason", "checked_by"]
    share = (table["refund_date"] != "").mean()
    assert made.left_out["refund_date"] == (
        f"a possible leak: it is filled in {share:.1%} of the rows, which are of one class alone"
    )
    assert "it is null in" in made.left_out["checked_by"]
    assert made.features["categorical"] == ["gift"]
    table["refunded"] = np.where(table["refunded"] == "yes", "c", np.where(table["price"] > 0, "a", "b"))
    assert "refund_reason" in draft_config(written(tmp_path, table), "refunded", None, 2000).leaks


def test_what_follows_from_the_target_of_a_regression_is_a_possible_leak(tmp_path):
    rng = np.random.default_rng(7)
    income = np.exp(rng.normal(0, 2.5, 1000)).round(4)
    table = pd.DataFrame({
        "log": np.log(income) + 0.0, "band": pd.cut(income, [-1, 0.5, 2, 10, 1e9], labels=["d", "b", "c", "a"]),
        "taxed": np.where(income > 3, "x", ""), "root": np.sqrt(income),
        "age": rng.integers(18, 80, 1000), "city": rng.choice(list("abcd"), 1000),
        "hint": np.log(income) + rng.normal(0, 1, 1000), "income": income,
    })  # fmt: skip
    made = draft_config(written(tmp_path, table), "income", None, 2000)
    assert made.leaks == ["log", "band", "taxed", "root"]
    assert made.left_out["band"] == "a possible leak: each of its values stands for a range of the target"
    assert made.features["continuous"] == ["age", "hint"]


def test_what_is_rarely_filled_or_null_is_no_leak():
    label = np.arange(1000) % 20 == 0
    few = np.where(np.arange(1000) == 20, 1.0, np.nan)
    most = np.where(np.arange(1000) % 3 == 0, np.nan, 1.0)
    assert leak(few, label.astype(float), "binary") == leak(most, label.astype(float), "binary") == ""


def test_what_is_filled_in_a_frequent_class_alone_is_a_possible_leak_where_that_is_no_luck():
    """Rows that are filled are of one class: how likely that is by luck is the binomial's tail (SciPy)."""
    cases = ((0.5, 25), (0.9, 25), (0.9, 60), (0.9, 100), (0.95, 100), (0.95, 400), (0.99, 600), (0.99, 1200))
    for share, filled in cases:
        label = np.zeros(4000)
        label[: round(4000 * (1 - share))] = 1
        values = np.full(4000, np.nan)
        values[-filled:] = np.arange(filled) % 3
        found = leak(values, label, "binary")
        by_luck = float(scipy.stats.binom.cdf(0, filled, 1 - share))
        assert bool(found) == (by_luck < 1e-4), (share, filled, by_luck, found)
    some = np.zeros(20_000)
    some[:200] = 1  # a hundredth; of the filled rows a four hundredth, which a twentieth would have to be below
    values = np.where(np.arange(20_000) >= 170, 1.0, np.nan)
    values[170 + 12_000 :] = np.nan
    assert leak(values, some, "binary") == ""


@pytest.mark.parametrize(
    ("others", "word", "settings"),
    [
        (("Yes", "no"), "-", {"positive": "Yes", "label_steps": [{"clean_text": {"replace": {"-": None}}}]}),
        (("yes", "Yes", "no"), "Unknown",
         {"positive": "yes", "label_steps": [{"clean_text": {"case": "lower", "replace": {"unknown": None}}}]}),
        (("1", "0"), "missing", {"positive": "1", "label_steps": [{"clean_text": {"replace": {"missing": None}}}]}),
        (("yes", "no"), "none", {"positive": "yes", "label_steps": [{"clean_text": {"replace": {"none": None}}}]}),
        (("good", "bad"), " n/a ", {"positive": "good", "label_steps": [{"clean_text": {"replace": {"n/a": None}}}]}),
        (("+", "-"), "unknown", {"positive": "+", "label_steps": [{"clean_text": {"replace": {"unknown": None}}}]}),
        (
            ("1-yes", "0-no"), "none",
            {"positive": "1-yes", "label_steps": [{"clean_text": {"replace": {"none": None}}}]},
        ),
        (("yes.", "no."), "none", {"positive": "yes.", "label_steps": [{"clean_text": {"replace": {"none": None}}}]}),
    ],
)  # fmt: skip
def test_a_null_word_beside_two_labels_is_a_missing_label(tmp_path, others, word, settings):
    rows = 300
    labels = [others[k % len(others)] if k % 20 else word for k in range(rows)]
    labels = ["good" if label == "bad" and k % 5 else label for k, label in enumerate(labels)]
    table = pd.DataFrame({"x": np.arange(rows) % 7, "seen": np.where(np.arange(rows) % 3, "unknown", "-"), "y": labels})
    path = written(tmp_path, table)
    _, made = trained(tmp_path, path, "y")
    assert made.features["targets"] == {"y": {"task": "binary", **settings}}
    assert made.features["drop_null_targets"] is True
    assert any(f"15 row(s) are left out, as their y is {word.strip()!r}" in remark for remark in made.remarks)
    assert "seen" in made.categories  # elsewhere the word is what it was
    frame = pd.concat(TableRecipe(TableSettings(**made.features)).build("pandas").splits.values())
    expected = pd.Series([label for label in labels if label != word])
    assert len(frame) == 285
    assert frame["y"].sum() == (expected.str.lower() == settings["positive"].lower()).sum()
    assert set(frame["seen"]) == {"unknown", "-"}
    homes = {"runs": str(tmp_path / "runs"), "artifacts": str(tmp_path / "artifacts")}
    run = fit(table, {**FAST, **ALONE, **homes}, target="y")
    assert run.summary["rows"] == 285


def test_a_question_mark_beside_plus_and_minus_is_no_label_in_files_and_frames(tmp_path):
    labels = [("+", "-")[k % 2] if k % 20 else "?" for k in range(300)]
    table = pd.DataFrame({"x": np.arange(300) % 7, "y": labels})
    for path in (written(tmp_path, table), written(tmp_path, pa.table(table), "t.parquet")):
        made = draft_config(path, "y", None, 1000)
        target = made.features["targets"]["y"]
        assert (target["task"], target["positive"]) == ("binary", "+")
        assert read_back(made)["y"].astype("float64").tolist() == [float(sign == "+") for sign in labels if sign != "?"]
    homes = {"runs": str(tmp_path / "runs"), "artifacts": str(tmp_path / "artifacts")}
    assert fit(table, {**FAST, **homes}, target="y").summary["rows"] == 285


@pytest.mark.parametrize(
    ("labels", "task", "wanted"),
    [
        (("mild", "severe", "none"), None, "multiclass"), (("+", "-", "0"), None, "multiclass"),
        (("yes", "no", "unknown"), "multiclass", "multiclass"), (("red", "blue", "green", "-"), None, "multiclass"),
        (("yes", "-"), None, "binary"), (("unknown", "missing"), None, "binary"),
    ],
)  # fmt: skip
def test_such_a_word_stays_a_class_where_it_may_be_one(labels, task, wanted):
    found = labels_of("y", pd.Series(labels * 50), None, task)
    assert (found.settings["task"], found.nulls, found.advice) == (wanted, 0, "")


def test_pieces_of_a_large_file_are_parsed_at_once(tmp_path, monkeypatch):
    """A table of 3,000 columns took 35 s: 60 rows filled a piece, and each of its columns was parsed a piece."""
    path = tmp_path / "long.csv"
    rows = [f'{number},"a ""b"", {number % 7}"' for number in range(5_000)]
    path.write_text("\n".join(["n,text", *rows]))  # without a line break at the end
    monkeypatch.setattr("gigabatch.pipeline.init.look.BLOCK_BYTES", 2_000)
    parsed = []
    alone = pandas_engine.read_csv
    monkeypatch.setattr(
        pandas_engine, "read_csv", lambda *given, **options: parsed.append(1) or alone(*given, **options)
    )
    found = look(str(path), most_rows=1_000)
    blocks = [block.read("pandas", {"n": "int64", "text": "string"}) for block in csv_blocks(str(path), 2_000)]
    wanted = 1_000 // len(blocks[0])
    assert 1 < wanted < len(blocks)
    chosen = pd.concat([blocks[number * len(blocks) // wanted] for number in range(wanted)])
    assert found.sample["n"].astype("int64").tolist() == chosen["n"].tolist()
    assert found.sample["text"].tolist() == chosen["text"].tolist()
    assert not found.whole
    parsed.clear()
    everything = look(str(path), most_rows=100_000)
    assert everything.whole
    assert everything.sample["n"].astype("int64").tolist() == list(range(5_000))
    assert len(parsed) <= 3  # the header, the first piece, all pieces


def test_a_header_longer_than_what_is_read_for_the_separator_tells_it(tmp_path):
    """The file was called empty: the one line of what was read first is cut."""
    names = [f"measurement_{place:04d}" for place in range(5_000)]
    rows = [";".join(str(place % 7 + row) for place in range(5_000)) for row in range(2)]
    (tmp_path / "wide.csv").write_text("\n".join([";".join(names), *rows]) + "\n")
    table = look(str(tmp_path / "wide.csv"), 100)
    assert (table.separator, list(table.sample), len(table.sample)) == (";", names, 2)


@pytest.mark.parametrize("late", [0, 14])
def test_rows_in_the_future_by_which_a_night_would_be_refused_are_told(tmp_path, late):
    table = shop().drop(columns="created_at")
    days = pd.Timestamp.now().normalize() - pd.to_timedelta(np.arange(1, len(table) + 1), unit="D")
    table["day"] = [*(days[:late] + pd.DateOffset(years=20)), *days[late:]]
    table.to_csv(tmp_path / "table.csv", index=False)
    made = draft_config(str(tmp_path / "table.csv"), "bought", None, 10_000)
    assert made.features["time"] == "day"
    told = [remark for remark in made.remarks if "in the future" in remark]
    assert [remark.partition(",")[0] for remark in told] == ["14 row(s) of day lie in the future"] * bool(late)


def test_a_flag_whose_one_number_others_have_too_is_no_range_of_the_target():
    """Closed shops sell nothing, and some open ones neither: the label does not tell which is closed."""
    sold = np.random.default_rng(0).poisson(2.0, 1000).astype(float)
    closed = np.arange(1000) % 9 == 0
    sold[closed] = 0
    full = np.where(closed, sold.max(), sold)
    assert leak(np.where(closed, "no", "yes"), sold, "regression") == ""
    assert leak(np.where(closed, "no", "yes"), full, "regression") == ""
    assert "range of the target" in leak(np.where(closed, "no", "yes"), np.where(closed, 0, sold + 1), "regression")
    why = np.where(closed, np.where(np.arange(len(closed)) % 2, "feast", "no"), "yes")  # two reasons to sell nothing
    assert "range of the target" in leak(why, np.where(closed, 0, sold + 1), "regression")
    assert leak(why, np.where(closed, 0, sold), "regression") == ""
    assert "range of the target" in leak(np.where(sold > 2, "b", "a"), sold.clip(1).astype(float), "regression")


def test_parts_of_the_target_are_possible_leaks_together(tmp_path):
    """Riders are casual and registered ones, of which neither alone tells enough."""
    rng = np.random.default_rng(3)
    casual, registered = rng.poisson(40, 600), rng.poisson(90, 600)
    table = pd.DataFrame({"heat": rng.normal(size=600).round(3), "casual": casual, "members": registered,
                          "twice": registered * 2, "riders": casual + registered})  # fmt: skip
    made = draft_config(written(tmp_path, table), "riders", None, 2000)
    assert made.features["continuous"] == ["heat", "members"]
    assert made.leaks == ["casual", "twice"]
    assert made.left_out["casual"] == "a possible leak: the target is a sum or difference of casual and twice"


def test_parts_are_found_beside_nulls_and_none_where_chance_or_noise_fits():
    rng = np.random.default_rng(4)
    columns = dict(zip("abcdef", rng.normal(size=(6, 1000)), strict=True))
    total = columns["b"] - 3 * columns["e"] + 7
    assert added(columns, total) == added(columns, (1e9 * total).round()) == ("b", "e")
    gaps = columns | {"b": np.where(rng.random(1000) < 0.05, np.nan, columns["b"])}
    assert added(gaps, np.where(rng.random(1000) < 0.5, np.nan, total)) == ("b", "e")
    assert added(columns, total + rng.normal(0, 0.02, 1000)) == ()
    assert added(columns, columns["b"] * columns["e"]) == added({"a": total}, total) == ()
    assert added(dict(enumerate(rng.normal(size=(150, 140)))), rng.normal(size=140)) == ()
    assert added(columns, np.ones(1000)) == ()
    for odd in (np.eye(1, 1000)[0] * 1e-200, rng.uniform(1e308, 1.7e308, 1000)):  # no deviation in float64
        assert added({"odd": odd, **columns}, total) == ("b", "e")
        assert added(columns, odd) == ()


def test_parts_among_hundreds_of_columns_are_found_by_a_few_fits(monkeypatch):
    """One for each column took minutes."""
    values = np.random.default_rng(6).normal(size=(300, 3100))
    columns = {f"c{number}": row for number, row in enumerate(values)} | {"copy": values[7]}
    fits, lstsq = [], np.linalg.lstsq
    monkeypatch.setattr(np.linalg, "lstsq", lambda *given, **options: fits.append(1) or lstsq(*given, **options))
    assert added(columns, values[0] - values[7]) == ("c0", "copy")
    assert len(fits) < 10


@pytest.mark.parametrize(("weights", "parts"), [
    ((1, 1, 1), ("a", "b", "c")), ((1, -100, 20), ("a", "b", "c")), ((0.5, 0.25, 0), ("a", "b")),
    ((1, 1.5, 0), ()), ((83.1, 42.7, 6.3), ()), ((0.4, 0.6, 0), ()), ((700.4, 1, 0), ()), ((700, 1, 0), ("a", "b")),
])  # fmt: skip
def test_a_formula_of_other_weights_than_parts_have_is_learnt(weights, parts):
    """As that of scikit-learn's make_regression, whose informative columns would else be left out."""
    rng = np.random.default_rng(5)
    columns = {name: rng.normal(10, 2, 500).round(2) for name in "abcd"}
    label = sum(weight * columns[name] for weight, name in zip(weights, "abc", strict=True))
    assert added(columns, label) == parts
