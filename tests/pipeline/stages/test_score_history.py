"""Scoring rows of tomorrow with features that look back: the features of all rows computed together."""

import json

import numpy as np
import pandas as pd
import pytest

from gigabatch import Pipeline
from gigabatch.features.errors import DataError
from gigabatch.features.recipes import recipe_class
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.runs.pointers import RunError
from gigabatch.pipeline.stages.score import score_run

BY = {"by": ["shop"], "time": "day", "column": "sold"}
STEPS = [
    {"lag": {**BY, "span": "1d", "output": "yesterday"}},
    {"lag": {**BY, "periods": 7, "output": "week_ago"}},
    {"rolling": {**BY, "window": "28d", "statistic": "mean", "output": "month"}},
    {"asof": {"by": ["shop"], "at": "day", "known_at": "day", "order": "row_number",
              "aggregations": [{"mean": {"value": "sold", "output": "ever", "smoothing": 3.0}}]}},
    {"lag": {**BY, "column": "visitors", "span": "1d", "output": "visits"}},
    {"fill_missing": {"column": ["visits", "yesterday", "week_ago", "month", "ever"], "indicator": "all"}},
    {"normalize": {"column": ["month"]}},
]  # fmt: skip
FEATURES = ["price", "visits", "yesterday", "week_ago", "month", "ever"]


def sales(days: int = 120) -> pd.DataFrame:
    random = np.random.default_rng(0)
    day = pd.date_range("2024-01-01", periods=days)
    rows = pd.MultiIndex.from_product([day, ["a", "b", "c"]], names=["day", "shop"]).to_frame(index=False)
    week = np.sin(rows["day"].dt.dayofweek * 2 * np.pi / 7)
    return rows.assign(
        day=rows["day"].dt.strftime("%Y-%m-%d"), price=random.normal(5, 1, len(rows)).round(2),
        sold=(10 + 4 * week + random.normal(size=len(rows))).round(3), visitors=random.integers(9, 99, len(rows)),
    )  # fmt: skip


def settings_of(folder, path: str, **more) -> dict:
    return {
        "name": "sales", "recipe": "table", "runs": str(folder / "runs"), "artifacts": str(folder / "artifacts"),
        "features": {
            "path": str(folder / path), "time": "day", "categorical": ["shop"], "continuous": FEATURES,
            "targets": {"sold": {"task": "regression"}}, "steps": STEPS, "inputs": {"visitors": "int64"},
        },
        "train": {"epochs": 1}, "model": {"kind": "lr"}, **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sales")
    rows = sales()
    rows.iloc[:-12].to_csv(folder / "sales.csv", index=False)
    config = settings_of(folder, "sales.csv")
    run = Pipeline.from_config(config).train()
    (folder / "sales.json").write_text(json.dumps(config))  # JSON is YAML
    return folder, rows, run


def scored(folder, rows: pd.DataFrame, **more) -> pd.DataFrame:
    rows.to_csv(folder / "tomorrow.csv", index=False)
    out = folder / "scores.csv"
    score_run(str(folder / "sales.json"), (), None, None, out, str(folder / "tomorrow.csv"), **more)
    return pd.read_csv(out)


def test_features_of_tomorrow_are_those_of_all_rows_together(trained):
    folder, rows, run = trained
    history, tomorrow = rows.iloc[:-12], rows.iloc[-12:-9]
    bundle = load_bundle(run.path / "model")
    found = scored(folder, tomorrow.drop(columns="sold"))
    # All rows through the steps that were fitted, tomorrow's with a label: it must not matter.
    workflow = Pipeline.from_config(folder / "sales.json").features().workflow
    together = pd.concat([history, tomorrow], ignore_index=True)
    together["row_number"] = np.arange(len(together))
    made = workflow.transform(
        workflow.typed(together.assign(sold=together["sold"].astype("float32"))), whole_groups=True
    )
    expected = bundle.predict(made.tail(3))["sold"]
    np.testing.assert_array_equal(found["predicted_sold"].astype("float32"), expected.astype("float32"))
    assert found["day"].tolist() == tomorrow["day"].tolist()
    assert found["shop"].tolist() == tomorrow["shop"].tolist()  # without which no one knows whose forecast it is
    assert found["row_number"].tolist() == [0, 1, 2]
    plain = made.tail(3)
    sold = rows.set_index(["shop", "day"])["sold"].astype("float32")
    before = [sold[shop, "2024-04-25"] for shop in "abc"]  # the day before, by hand
    assert tomorrow["day"].iloc[0] == "2024-04-26"
    np.testing.assert_array_equal(plain["yesterday"], before)


def test_another_history_and_that_of_python_are_the_same(trained):
    folder, rows, run = trained
    history, tomorrow = rows.iloc[:-9], rows.iloc[-9:-6].drop(columns="sold")
    history.to_parquet(folder / "until_today.parquet")
    found = scored(folder, tomorrow, history=str(folder / "until_today.parquet"))["predicted_sold"]
    np.testing.assert_allclose(found, run.predict(tomorrow, history=history)["sold"], rtol=1e-12)  # CSV
    stale = scored(folder, tomorrow)["predicted_sold"]  # yesterday is not in the files of the configuration
    assert (stale != found).all()


def test_rows_of_the_history_without_a_label_are_left_out_as_in_training(trained):
    folder, rows, run = trained
    history, tomorrow = rows.iloc[:-12], rows.iloc[-12:-9].drop(columns="sold")
    history = history.assign(sold=history["sold"].where(history.index % 5 > 0))
    history.to_csv(folder / "gaps.csv", index=False)
    config = json.loads((folder / "sales.json").read_text())
    (folder / "drop.json").write_text(
        json.dumps(config | {"features": config["features"] | {"drop_null_targets": True}})
    )
    tomorrow.to_csv(folder / "tomorrow.csv", index=False)
    out, files = folder / "dropped.csv", (str(folder / "tomorrow.csv"), str(folder / "gaps.csv"))
    score_run(str(folder / "drop.json"), (), None, None, out, *files)
    found = run.predict(tomorrow, history=history)["sold"]
    np.testing.assert_allclose(found, pd.read_csv(out)["predicted_sold"], rtol=1e-12)
    for nothing in (history.iloc[:0], history.assign(sold=np.nan)):
        with pytest.raises(DataError, match="history: it holds no row with a label"):
            run.predict(tomorrow, history=nothing)


def test_what_is_looked_at_of_other_rows_alone_need_not_be_there(trained):
    folder, rows, run = trained
    tomorrow, history = rows.iloc[-12:-9].drop(columns="sold"), rows.iloc[:-12]
    expected = scored(folder, tomorrow)["predicted_sold"]
    without = tomorrow.drop(columns="visitors")
    np.testing.assert_array_equal(scored(folder, without)["predicted_sold"], expected)
    np.testing.assert_allclose(run.predict(without, history=history)["sold"], expected, rtol=1e-12)
    two_days = rows.iloc[-12:-6].drop(columns="visitors")  # of which the labels are known
    with pytest.raises(DataError, match=r"3 of 6 rows .* not known yet of others of them \(of 'visitors'\): 'visits'"):
        run.predict(two_days, history=history)


def test_rows_that_look_at_labels_of_each_other_are_refused(trained):
    folder, rows, run = trained
    with pytest.raises(
        DataError,
        match=r"3 of 6 rows to be predicted look at what is not known yet of others.*: 'yesterday', 'month', 'ever'",
    ):
        scored(folder, rows.iloc[-12:-6].drop(columns="sold"))
    known = rows.iloc[-12:-6].assign(sold=lambda frame: frame["sold"].where(frame.index < len(rows) - 9))
    found = run.predict(known, history=rows.iloc[:-12])  # those of the first day are known
    np.testing.assert_array_equal(found["sold"].tail(3), run.predict(known.tail(3), history=rows.iloc[:-9])["sold"])


def test_rows_within_the_history_are_refused(trained):
    folder, rows, _ = trained
    with pytest.raises(DataError, match=r"step 1 \(lag\): a row to be predicted lies before the end of the history"):
        scored(folder, rows.iloc[30:33].drop(columns="sold"))
    with pytest.raises(DataError, match=r"not unique within groups .* no row may be in both"):
        scored(folder, rows.iloc[-15:-12].drop(columns="sold"))  # the last day of the history


def test_without_the_history_raw_rows_are_refused_as_before(trained):
    _, rows, run = trained
    with pytest.raises(DataError, match=r"step \d \(\w+\): makes .* from other rows .* score --input takes those of"):
        run.predict(rows.tail(3))
    assert load_bundle(run.path / "model").workflow is None


def test_a_history_that_nothing_looks_at_is_refused(tmp_path):
    rows = sales(40)
    rows.to_csv(tmp_path / "sales.csv", index=False)
    config = settings_of(tmp_path, "sales.csv")
    config["features"] |= {"steps": [], "continuous": ["price"], "inputs": {}}
    run = Pipeline.from_config(config).train()
    with pytest.raises(DataError, match="no feature of this model looks at earlier rows"):
        run.predict(rows.tail(3), history=rows)
    (tmp_path / "sales.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match="--history goes with --input"):
        score_run(str(tmp_path / "sales.json"), (), None, "test", None, None, str(tmp_path / "sales.csv"))


def test_labels_of_a_binary_history_are_those_that_were_learnt(tmp_path):
    rows = sales(60).assign(sold=lambda frame: (frame["sold"] * 10).round())
    rows.iloc[:-3].to_csv(tmp_path / "sales.csv", index=False)
    config = settings_of(tmp_path, "sales.csv")
    config["features"] |= {
        "targets": {"sold": {"task": "binary", "threshold": 100}}, "steps": STEPS[:1],
        "continuous": ["price", "yesterday"], "inputs": {},
    }  # fmt: skip
    run = Pipeline.from_config(config).train()
    (tmp_path / "sales.json").write_text(json.dumps(config))
    tomorrow, history = rows.tail(3).drop(columns="sold"), rows.iloc[:-3]
    found = scored(tmp_path, tomorrow)["predicted_sold"]
    with pytest.raises(DataError, match=r"label 'sold': steps read it as 0 or 1, found"):
        run.predict(tomorrow, history=history)
    learnt = history.assign(sold=(history["sold"] >= 100).astype(int))
    np.testing.assert_allclose(found, run.predict(tomorrow, history=learnt)["sold"], rtol=1e-6)


def test_a_history_whose_labels_are_of_another_kind_is_refused(tmp_path):
    rows = sales(30)
    rows = rows.assign(sold=np.where(rows["sold"] > 10, "yes", "no"))
    rows.to_csv(tmp_path / "words.csv", index=False)
    rows.assign(sold=(rows["sold"] == "yes").astype("int64")).to_csv(tmp_path / "numbers.csv", index=False)
    config = settings_of(tmp_path, "words.csv")
    config["features"] |= {
        "targets": {"sold": {"task": "binary", "positive": "yes"}}, "steps": STEPS[:1],
        "continuous": ["price", "yesterday"], "inputs": {},
    }  # fmt: skip
    recipe = recipe_class("table")(Pipeline.from_config(config).config.features)
    found, number = recipe.history_rows("pandas", None, ["shop", "day", "sold"])
    assert found["sold"].tolist() == (rows["sold"] == "yes").tolist()
    assert number == len(rows)
    with pytest.raises(DataError, match=r"two values of which one is positive \('yes'\), found"):
        recipe.history_rows("pandas", str(tmp_path / "numbers.csv"), ["shop", "day", "sold"])
