"""The final training: longer by the rows that were held out, as long as was best, and what refuses one."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.schema import Target
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import ConfigError, WholeTrainSettings
from gigabatch.pipeline.nightly.comparison import recorded
from gigabatch.pipeline.python.fit import fit
from gigabatch.pipeline.runs.listing import list_runs
from gigabatch.pipeline.stages.final import final_configs
from gigabatch.pipeline.stages.score import evaluate
from gigabatch.pipeline.stages.stages import Pipeline

ROWS = 2_000


@pytest.fixture
def frame() -> pd.DataFrame:
    """Rows by time; the last sixth, which a split by time holds out of train, has a shop of its own and other sales."""
    random = np.random.default_rng(3)
    price = random.normal(size=ROWS)
    turned = np.where(np.arange(ROWS) < ROWS * 5 // 6, 1, -1)
    shop = np.where(turned > 0, random.choice(["old", "both"], ROWS), random.choice(["new", "both"], ROWS))
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(ROWS) // 4, unit="D")
    sold = (price * turned + random.normal(size=ROWS) * 0.3 > 0).astype(int)
    return pd.DataFrame({"day": days, "price": price, "shop": shop, "sold": sold})


@pytest.fixture
def config(frame, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame.to_parquet("rows.parquet")
    features = {
        "path": "rows.parquet", "time": "day", "inputs": {"day": "datetime"}, "categorical": ["shop"],
        "continuous": ["price"], "targets": {"sold": {"task": "binary"}},
    }  # fmt: skip
    return {
        "name": "shop", "recipe": "table", "device": "cpu", "engine": "pandas", "features": features,
        "evaluate": {"importance": False, "baselines": []}, "train": {"epochs": 4, "batch_size": 64, "lr_max": 0.02},
    }  # fmt: skip


def test_a_final_run_learns_from_the_newest_rows_as_long_as_was_best(config, frame):
    final = Pipeline.from_config(config).train_final()
    measured = Pipeline.from_config(config).train()
    assert measured.skipped == ("features", "encode", "train", "evaluate")  # it was trained on the way
    assert measured.summary["rows_by_split"] == {"train": 1600, "valid": 200, "test": 200}
    assert final.summary["rows_by_split"] == {
        "train": 1900,
        "valid": 52,
        "test": 48,
    }  # four rows of a day stay together
    losses = [point["valid_loss"] for point in measured.curve if "valid_loss" in point]
    train = final.summary["config"]["train"]
    assert (train["epochs"], train["select"]) == (int(np.argmin(losses)) + 1, "last")
    assert (train["batch_size"], train["lr_max"]) == (64, 0.02)
    said = (
        f"trained for {train['epochs']} epoch(s), as was best in run {measured.path.name}, on 1,900 rows; valid has 52"
    )
    assert said in final.summary["notes"][0]
    assert final.summary["measured"]["metrics"]["test"] == measured.summary["metrics"]["test"]
    # A value of the held out rows alone is known to the final run, and to it alone.
    rows = frame[["day", "price", "shop"]].tail(4).assign(shop="new")
    other = rows.assign(shop="never seen")
    assert not final.predict(rows).equals(final.predict(other))
    assert measured.predict(rows).equals(measured.predict(other))
    assert Pipeline.from_config(config).train_final().skipped == ("features", "encode", "train", "evaluate")


def test_more_rows_are_held_out_where_the_last_moment_has_as_many_as_the_fewest(config, frame):
    last = frame["day"].where(np.arange(ROWS) < ROWS - 60, frame["day"].iloc[-1])  # the end of 50 rows lies in it
    frame.assign(day=last).to_parquet("rows.parquet")
    final = Pipeline.from_config(config, {"train.epochs": 1}).train_final()
    assert final.summary["rows_by_split"]["test"] == 100


def test_the_batch_and_rate_of_the_measured_training_stay_where_a_rule_chose_them(config):
    config["train"] = {"epochs": 6}
    final = Pipeline.from_config(config).train_final()
    measured = Pipeline.from_config(config).encode().train_settings
    train = final.summary["config"]["train"]
    assert (train["batch_size"], train["lr_max"]) == (measured.batch_size, measured.lr_max)


@pytest.mark.parametrize("decay", [None, 0.98])
def test_the_average_of_the_measured_training_stays(config, decay):
    """The rule would choose anew by the final run's rows and epochs."""
    settled = WholeTrainSettings(batch_size=64, epochs=4, lr_max=0.02, ema_decay=decay)
    found = final_configs(Pipeline.from_config(config).config, settled, 2, [50], 1_000)
    assert [one.train.ema_decay for one in found] == [decay]


def test_a_warmup_longer_than_the_final_training_is_cut_to_end_before_it(config, monkeypatch):
    """A best epoch within the warm-up was an error once the measured training had run."""
    monkeypatch.setattr("gigabatch.pipeline.stages.stages.best_epochs", lambda *_: 2)
    config["train"] |= {"schedule": "warmup_polynomial", "schedule_settings": {"warmup_steps": 70, "power": 2.0}}
    final = Pipeline.from_config(config).train_final()
    train = final.summary["config"]["train"]
    assert train["schedule_settings"] == {"warmup_steps": 49, "power": 2.0}  # 1,600 rows are 25 steps an epoch
    assert train["epochs"] == 2
    measured = Pipeline.from_config(config).train()
    assert measured.summary["config"]["train"]["schedule_settings"]["warmup_steps"] == 70


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train.calibration": "temperature"}, "train.calibration=temperature: it is fitted on the valid rows"),
        ({"train.start_from": "current"}, "train.start_from=current: a final training begins with new weights"),
        ({"features.path": None, "features.time": None, "features.inputs": {},
          "features.train_path": "rows.parquet", "features.valid_path": "rows.parquet",
          "features.test_path": "rows.parquet"}, "features.valid_path: its splits are not cut by shares"),
    ],
)  # fmt: skip
def test_what_no_final_run_can_follow_is_refused_before_any_work(config, tmp_path, change, said):
    with pytest.raises(ConfigError, match=said):
        Pipeline.from_config(config, change).train_final()
    assert not (tmp_path / "artifacts").exists()


def test_a_final_run_of_too_few_rows_is_refused(config, frame):
    frame.head(400).to_parquet("rows.parquet")
    with pytest.raises(DataError, match="of 400 rows 80 are in valid and test, and a final run holds out at least 100"):
        Pipeline.from_config(config, {"train.epochs": 1}).train_final()


def test_fit_ends_with_a_final_run_where_it_splits_by_a_time_that_it_found(config, frame):
    places = {key: config[key] for key in ("device", "engine", "evaluate")} | {"train.epochs": 1}
    assert fit(frame, places, target="sold").summary["rows_by_split"]["train"] == 1900
    assert fit(frame, places, target="sold", final=False).summary["rows_by_split"]["train"] == 1600
    by_chance = fit(frame.drop(columns="day"), places, target="sold")
    assert 1500 < by_chance.summary["rows_by_split"]["train"] < 1700
    assert fit(frame.drop(columns="day"), places, target="sold", final=True).summary["rows_by_split"]["train"] > 1850


def test_the_command_trains_a_final_run(config, tmp_path, capsys):
    (tmp_path / "shop.yaml").write_text(json.dumps(config))
    assert main(["train", "--config", "shop.yaml", "--final", "train.epochs=1"]) == 0
    said = capsys.readouterr()
    measured, final = (
        re.search(r"Run (\w+) on its 200 test rows: auc .*", said.err)[1],
        re.search(r"^Run shop (\w+)$", said.out, re.M)[1],
    )
    assert measured != final
    assert (tmp_path / "runs" / "shop" / "current").resolve().name == final
    rows = {row["run"]: row for row in list_runs(Pipeline.from_config("shop.yaml").config)}
    of_200_rows = json.loads((tmp_path / "runs" / "shop" / measured / "summary.json").read_text())["metrics"]["test"]
    of_48_rows = json.loads((tmp_path / "runs" / "shop" / final / "summary.json").read_text())["metrics"]["test"]
    assert rows[final]["auc"] == rows[measured]["auc"] == of_200_rows["auc"] != of_48_rows["auc"]
    assert rows[final]["state"] == f"current, latest, final of {measured}"
    assert rows[measured]["state"] == ""
    assert main(["runs", "--config", "shop.yaml"]) == 0
    assert f"final of {measured}" in " ".join(capsys.readouterr().out.split())


def test_a_training_that_ended_early_is_taken_as_long_as_it_was(config):
    final = Pipeline.from_config(
        config, {"train.epochs": 12, "train.patience": 1, "train.select": "last"}
    ).train_final()
    measured = Pipeline.from_config(config, {"train.epochs": 12, "train.patience": 1, "train.select": "last"}).train()
    ended = round(measured.curve[-1]["epoch"])
    assert ended < 12
    assert final.summary["config"]["train"]["epochs"] == ended


def test_the_final_run_is_told_apart_where_rows_that_it_learnt_would_judge_it(config, caplog):
    final = Pipeline.from_config(config).train_final()
    evaluate(config, run=final.path)
    assert "has learnt from rows of 'test' (152 of 200): no measurement" in caplog.text
    caplog.clear()
    own = {"features.split": {"valid_rows": 50, "test_rows": 50}}
    evaluate(config, own, run=final.path)
    assert "no measurement" not in caplog.text
    kept = {"train.start_from": str(final.path), "preprocess.from": str(final.path), "train.epochs": 1}
    Pipeline.from_config(config, kept).train()
    assert "has learnt from test rows (152 of 200)" in caplog.text
    sold = Target("sold", "binary")
    assert recorded(final.summary, sold, "AUC") == final.summary["measured"]["targets"]["test"]["sold"]["auc"]
    assert recorded(final.summary, sold, "AUC") != final.summary["targets"]["test"]["sold"]["auc"]


def test_fit_returns_the_measured_run_where_no_final_one_can_be_and_nobody_asked(config, frame, capsys):
    places = {key: config[key] for key in ("device", "engine", "evaluate")} | {"train.epochs": 1}
    last = frame["day"].where(np.arange(ROWS) < ROWS - 150, frame["day"].iloc[-1])
    run = fit(frame.assign(day=last), places, target="sold")
    assert run.summary["rows_by_split"]["train"] == 1600
    assert run.summary["measured"] is None
    assert "the run of the measured model is returned" in capsys.readouterr().err
    with pytest.raises(DataError, match="no rows can be held out of a training of nearly all"):
        fit(frame.assign(day=last), places, target="sold", final=True)


def test_rows_that_are_split_by_user_are_refused(config):
    features = {"path": "rows.parquet", "user": "shop", "item": "price"}
    with pytest.raises(ConfigError, match="split_by=leave_one_out: its splits are not cut by shares"):
        Pipeline.from_config(config | {"recipe": "interactions", "features": features, "train": {}}).train_final()


def test_the_final_run_is_current_where_the_measured_one_was(config, tmp_path):
    measured = Pipeline.from_config(config).train()
    final = Pipeline.from_config(config).train_final()
    home = tmp_path / "runs" / "shop"
    assert (home / "current").resolve() == final.path.resolve()
    assert (home / "previous").resolve() == measured.path.resolve()
    *_, line = map(json.loads, (home / "nightly.jsonl").read_text().splitlines())
    said = f"Promoted: {final.path.name} is the final run of {measured.path.name}, which was current."
    assert (line["run"], line["exit_code"], line["decision"]) == (final.path.name, 0, said)
    other = Pipeline.from_config(config, {"seed": 5}).train_final()
    assert (home / "current").resolve() == final.path.resolve() != other.path.resolve()
