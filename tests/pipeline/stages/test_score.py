"""Using a finished run: evaluating it again and writing its predictions."""

import datetime
import errno
import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.recipes.table.recipe import TableRecipe
from gigabatch.features.schema import Column, Schema
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.pipeline.bundle import BundleError, load_bundle
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.evaluation.baseline_learners import Rows, learnt
from gigabatch.pipeline.runs.pointers import RunError
from gigabatch.pipeline.serving.errors import Refusal
from gigabatch.pipeline.serving.raw_rows import RawRows
from gigabatch.pipeline.stages.score import evaluate, evaluate_run, score_run, with_keys, write_frame
from gigabatch.pipeline.stages.stages import Pipeline
from gigabatch.pipeline.training.target_metrics import target_metrics
from tests.pipeline.tiny_recipe import day_of_rows, write_day


def assert_scores(found, expected) -> None:
    """Equal within the tolerance that is promised of a row's scores."""
    np.testing.assert_allclose(found, expected, rtol=SCORE_RTOL, atol=SCORE_ATOL)


def test_evaluating_again_gives_the_numbers_of_the_run(trained, tmp_path, capsys):
    tiny, run = trained
    assert evaluate_run(tiny.config, (), None, None, tmp_path / "again") == 0
    found = json.loads((tmp_path / "again" / "summary.json").read_text())
    summary = run.summary
    assert {name: found[name] for name in ("auc", "logloss", "ece", "mrr")} == summary["metrics"]["test"]
    assert (found["id"], found["split"], found["rows"]) == (summary["id"], "test", 300)
    assert found["targets"] == summary["targets"]["test"]
    assert "<svg" in (tmp_path / "again" / "report.html").read_text()
    assert str(tmp_path / "again" / "report.html") in capsys.readouterr().out


def test_another_split_and_the_runs_own_folder_by_default(finished):
    run = finished.latest()
    assert evaluate_run(finished.config, (), run.path, "valid", None) == 0
    found = json.loads((run.path / "evaluation-valid" / "summary.json").read_text())
    assert found["auc"] == run.summary["metrics"]["valid"]["auc"]


def test_trees_are_as_many_as_are_best_on_valid_whatever_split_is_evaluated(trained, tmp_path):
    tiny, run = trained
    asked = {"evaluate.baselines": ["boosted"]}
    found = evaluate(tiny.config, asked, run=run.path, split="test", out=tmp_path)["baselines"]
    tables = {name: tiny.pipeline().features().encode().table(name) for name in ("train", "valid", "test")}
    rows = {name: Rows.of(tables[name]) for name in ("valid", "test")}
    (learner,), _ = learnt(["boosted"], tables["train"], rows, tiny.pipeline().config.seed, None, (), None)
    (target,), batch = tables["test"].schema.targets, rows["test"].batch
    scores = learner.scores["test"]
    expected = target_metrics(target, scores, batch.targets[0], batch.group, 15, batch.weight)
    assert found["found"][0]["metrics"] == {"test": pytest.approx(expected)}
    assert found["rows"] == {"test": 300}


def test_evaluate_returns_what_it_writes_and_prints_nothing(finished, tmp_path, capsys):
    run = finished.latest()
    capsys.readouterr()
    found = evaluate(finished.config, {"evaluate.importance": False}, run=run.path, split="valid", out=str(tmp_path))
    assert found == json.loads((tmp_path / "summary.json").read_text())
    assert found["auc"] == run.summary["metrics"]["valid"]["auc"]
    assert capsys.readouterr().out == ""
    with pytest.raises(DataError, match=r"split 'tset' does not exist"):
        evaluate(finished.config, run=run.path, split="tset")


def test_scores_are_written_with_their_keys(trained, tmp_path):
    tiny, run = trained
    for name in ("scores.parquet", "scores.csv"):
        assert score_run(tiny.config, (), None, None, tmp_path / name) == 0
    found = pd.read_parquet(tmp_path / "scores.parquet")
    expected = day_of_rows(0).tail(300).reset_index(drop=True)
    assert list(found.columns) == ["at", "row", "predicted_clicked"]
    assert found["row"].tolist() == expected["row"].tolist()
    assert_scores(found["predicted_clicked"], run.bundle().predict(expected)["clicked"])
    assert pd.read_csv(tmp_path / "scores.csv")["row"].tolist() == expected["row"].tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scores.csv", "scores.parquet"]


def test_a_split_is_scored_in_parts_with_the_bits_of_the_whole(tiny, tmp_path, monkeypatch, caplog):
    """Files of 70 rows and blocks of 32: no more than 70 + 31 rows are packed at once."""
    run = tiny.train("rows_per_part=70", "train.epochs=1")
    for module in ("gigabatch.pipeline.bundle", "gigabatch.pipeline.stages.score"):
        monkeypatch.setattr(f"{module}.BLOCK_ROWS", 32)
    features, bundle = Pipeline.from_config(tiny.config, "rows_per_part=70").features(), run.bundle()
    assert len(features.parts("test")) == 5
    whole = features.frame("test")
    expected, packed, pack = bundle.predict(whole), [], Preprocessor.pack
    monkeypatch.setattr(
        Preprocessor, "pack", lambda self, frame, **how: packed.append(len(frame)) or pack(self, frame, **how)
    )
    assert score_run(tiny.config, ("rows_per_part=70",), None, "test", tmp_path / "scores.parquet") == 0
    assert max(packed) < 70 + 32
    assert sum(packed) == len(whole) == 300
    assert all(rows % 32 == 0 for rows in packed[:-1])
    found = pd.read_parquet(tmp_path / "scores.parquet")
    np.testing.assert_array_equal(found["predicted_clicked"].to_numpy(), expected["clicked"].to_numpy())
    assert found["row"].tolist() == whole["row"].tolist()


def test_scores_lie_in_the_runs_folder_by_default(finished, capsys):
    run = finished.latest()
    assert score_run(finished.config, (), None, "valid", None) == 0
    assert len(pd.read_parquet(run.path / "scores-valid.parquet")) == 300
    expected = f"300 rows  {run.path / 'scores-valid.parquet'}  by run {run.path.name} (current, latest)\n"
    assert capsys.readouterr().out == expected


def test_a_recipe_with_a_submission_format_writes_that(tiny):
    run = tiny.train("features.group=true", "train.epochs=1")
    assert run.summary["mrr"] is not None
    assert score_run(tiny.config, ("features.group=true",), None, None, None) == 0
    found = pd.read_csv(run.path / "submission.csv")
    assert list(found.columns) == ["session", "row", "score"]
    assert len(found) == 300


def test_no_run_is_an_error_that_says_what_to_do(tiny):
    for work in (evaluate_run, score_run):
        with pytest.raises(RunError, match=r"tiny/current is not there: no run is promoted\. Train"):
            work(tiny.config, (), None, None, None)
        with pytest.raises(RunError, match=r"latest: no model there\. Train first"):
            work(tiny.config, (), "latest", None, None)
        with pytest.raises(RunError, match=r"elsewhere: no model there"):
            work(tiny.config, (), tiny.folder / "elsewhere", None, None)


def test_an_unknown_split_or_ending_is_an_error(trained, tmp_path):
    with pytest.raises(DataError, match=r"split 'tset' does not exist\. Known: train, valid, test"):
        score_run(trained[0].config, (), None, "tset", None)
    with pytest.raises(DataError, match=r"scores\.xlsx: unknown ending\. Known: \.csv, \.parquet"):
        score_run(trained[0].config, (), None, None, tmp_path / "scores.xlsx")
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_no_file(trained, tmp_path, monkeypatch):
    def fail(self, path, **_):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", fail)
    with pytest.raises(OSError, match="No space left"):
        score_run(trained[0].config, (), None, None, tmp_path / "scores.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (errno.EFBIG, "Raise the limit of a file's size (ulimit -f)"),
        (errno.ENAMETOOLONG, "File name too long"),
        (errno.ELOOP, "Too many levels of symbolic links"),
    ],
)
def test_what_the_system_refuses_to_write_is_one_line(trained, tmp_path, monkeypatch, capsys, code, told):
    def fail(self, path, **_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(pd.DataFrame, "to_csv", fail)
    assert main(["score", "--config", str(trained[0].config), "--out", str(tmp_path / "s.csv")]) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["unmounted/scores", "link"])
def test_a_folder_that_is_a_link_to_nowhere_is_one_line(trained, tmp_path, capsys, target):
    (tmp_path / "link").symlink_to(target)
    for command in (
        ["score", "--out", str(tmp_path / "link" / "s.csv")],
        ["evaluate", "--out", str(tmp_path / "link")],
    ):
        assert main([*command, "--config", str(trained[0].config)]) == 2
        assert f"{tmp_path / 'link'} leads to" in capsys.readouterr().err


STEPS = [
    {"drop_nulls": {"columns": ["gap"]}},
    {"clip": {"column": "signal", "low": -1.5}},
    {"hashed_cross": {"columns": ["city", "store"], "num_buckets": 30, "output": "place"}},
    {"fill_missing": {"column": "gap"}},
]
TABLE = {
    "path": "", "categorical": ["city", "place"], "continuous": ["signal", "gap"], "inputs": {"store": "int64"},
    "keys": ["row"], "group": "session", "targets": {"clicked": {"task": "binary"}}, "steps": STEPS,
}  # fmt: skip


@pytest.fixture(scope="module")
def stepped(tiny_in, tmp_path_factory):
    """A run of the recipe `table` with steps, on the tiny data set."""
    tiny = tiny_in(tmp_path_factory.mktemp("stepped") / "tiny")
    write_day(tiny.raw, 0)
    content = json.loads(tiny.config.read_text())
    content |= {"recipe": "table", "name": "stepped", "features": TABLE | {"path": str(tiny.raw)}}
    tiny.config.write_text(json.dumps(content))
    return tiny, tiny.train()


def test_raw_rows_without_labels_score_as_the_rows_of_the_features_stage(stepped, tmp_path):
    tiny, run = stepped
    raw = day_of_rows(0)
    raw.drop(columns="clicked").to_csv(tmp_path / "new.csv", index=False)
    arguments = ["score", "--config", str(tiny.config), "--input", str(tmp_path / "new.csv")]
    assert main([*arguments, "--out", str(tmp_path / "scores.csv")]) == 0
    found = pd.read_csv(tmp_path / "scores.csv")
    assert list(found.columns) == ["row", "predicted_clicked"]
    assert found["row"].tolist() == raw["row"].tolist()  # rows that the fit dropped are scored too
    features = tiny.pipeline().features()
    kept = pd.concat([features.frame(split) for split in ("train", "valid", "test")])
    assert len(kept) == raw["gap"].notna().sum()
    expected = kept.assign(clicked=run.bundle().predict(kept.drop(columns="clicked"))["clicked"])
    expected = expected.assign(row=expected["row"].astype("int64")).set_index("row")["clicked"]
    again = found.set_index("row")["predicted_clicked"][expected.index].astype("float32")
    assert_scores(again, expected)


def test_files_that_are_written_to_while_they_are_read_are_not_scored(stepped, tmp_path, monkeypatch, capsys):
    """Their last line is cut anywhere, and half a number is one, too."""
    tiny, _ = stepped
    new = tmp_path / "new.csv"
    day_of_rows(0).drop(columns="clicked").to_csv(new, index=False)
    read = TableRecipe.raw_rows

    def written_meanwhile(*arguments):
        with open(new, "a") as file:
            file.write("1")
        return read(*arguments)

    monkeypatch.setattr(TableRecipe, "raw_rows", written_meanwhile)
    assert main(["score", "--config", str(tiny.config), "--input", str(new), "--out", str(tmp_path / "s.csv")]) == 2
    assert f"input {new} changed while it was read" in capsys.readouterr().err
    assert not (tmp_path / "s.csv").exists()


def test_the_bundle_takes_raw_rows_as_any_reader_gives_them(stepped):
    _, run = stepped
    bundle = load_bundle(run.path / "model")
    raw = day_of_rows(0).drop(columns="clicked").head(50)
    expected = bundle.predict_raw(raw)
    assert len(expected) == 50
    texts = raw.assign(store=raw["store"].astype("str"), signal=raw["signal"].astype("object"))
    assert np.array_equal(bundle.predict_raw(texts)["clicked"], expected["clicked"])
    alone = pd.concat([bundle.predict_raw(raw.iloc[k : k + 1]) for k in range(5)])
    assert_scores(alone["clicked"], expected["clicked"][:5])
    assert sorted(bundle.raw_workflow.applied_inputs) == ["city", "gap", "signal", "store"]


def test_a_bundle_without_its_workflow_is_damaged(stepped, tmp_path):
    _, run = stepped
    folder = shutil.copytree(run.path / "model", tmp_path / "model")
    shutil.rmtree(folder / "workflow")
    with pytest.raises(BundleError, match=r"damaged, workflow/workflow\.json is missing"):
        load_bundle(folder)


def test_a_recipe_without_a_way_from_raw_rows_says_so(trained, tmp_path):
    tiny, run = trained
    with pytest.raises(DataError, match=r"recipe 'tiny' has no way from raw rows alone to predictions"):
        score_run(tiny.config, (), None, None, tmp_path / "scores.csv", str(tiny.raw))
    with pytest.raises(DataError, match="recipe 'tiny' has no way"):
        run.bundle().predict_raw(day_of_rows(0))
    with pytest.raises(RunError, match="either --input or --split, not both"):
        score_run(tiny.config, (), None, "test", None, str(tiny.raw))
    assert list(tmp_path.iterdir()) == []


HISTORY = [
    {"target_encoding": {"by": ["city"], "hits": "clicked", "at": "row", "output": "rate"}},
    {"rolling": {"by": ["city"], "time": "row", "column": "gap", "window": 50, "statistic": "count", "output": "n"}},
]


@pytest.mark.parametrize("step", HISTORY)
def test_features_that_need_history_are_trained_on_and_refused_row_by_row(tiny_in, tmp_path, step):
    tiny = tiny_in(tmp_path / "tiny")
    write_day(tiny.raw, 0)
    content = json.loads(tiny.config.read_text())
    ((name, arguments),) = step.items()
    features = TABLE | {"path": str(tiny.raw), "steps": [step], "continuous": [arguments["output"]], "keys": ["row"]}
    features |= {"inputs": {"row": "int64", "gap": "float64"}, "categorical": ["city"]}
    tiny.config.write_text(json.dumps(content | {"recipe": "table", "name": "late", "features": features}))
    run = tiny.train()
    refused = rf"no way from raw rows alone to predictions: step 1 \({name}\): makes '{arguments['output']}' from other"
    with pytest.raises(DataError, match=refused):
        run.bundle().predict_raw(day_of_rows(0))
    with pytest.raises(DataError, match=rf"step 1 \({name}\): a row to be predicted lies before the end of the"):
        score_run(tiny.config, (), None, None, tmp_path / "scores.csv", str(tiny.raw))  # the history itself
    assert score_run(tiny.config, (), None, "test", tmp_path / "scores.csv") == 0


@pytest.mark.parametrize(("text", "warned"), [("=1+1", True), ("@SUM(A1)", True), ("-2", True), ("a=1", False)])
def test_text_that_a_spreadsheet_runs_is_written_as_it_is_and_warned_of(tmp_path, caplog, text, warned):
    """R12: to alter a key would break joins, so the file holds it and the log says so; Parquet has no such reader."""
    frame = pd.DataFrame({"id": [None, text], "predicted_y": [-0.5, 0.5]})
    write_frame(frame, tmp_path / "x.csv")
    assert pd.read_csv(tmp_path / "x.csv", dtype={"id": "str"})["id"].tolist()[1] == text
    assert (["column(s) 'id' hold text" in message for message in caplog.messages] == [True]) == warned
    caplog.clear()
    write_frame(frame.astype({"id": "str"}), tmp_path / "x.parquet")
    assert not caplog.messages


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_an_output_that_is_a_link_is_written_through(tmp_path, name, there):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").mkdir()
    behind, link, other = tmp_path / "disk" / name, tmp_path / "out" / name, tmp_path / "out" / f"one-{name}"
    if there:
        behind.write_text("before")
    link.symlink_to(other)
    other.symlink_to(behind)
    frame = pd.DataFrame({"id": [1, 2], "predicted_y": [-0.5, 0.5]})
    write_frame(frame, link)
    assert link.is_symlink()
    assert other.is_symlink()
    read = pd.read_csv if name == "x.csv" else pd.read_parquet
    pd.testing.assert_frame_equal(read(behind), frame)
    assert [path.name for path in (tmp_path / "disk").iterdir()] == [name]
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_dates_go_in_as_text_or_timestamps_and_come_out_as_text(tiny_in, tmp_path):
    tiny = tiny_in(tmp_path / "tiny")
    raw = day_of_rows(0)
    stamps = pd.Timestamp("2013-12-31T22:00") + pd.to_timedelta(raw["row"], unit="min")
    text = stamps.dt.strftime("%Y-%m-%dT%H:%M:%S")
    raw.assign(at=text).to_csv(tmp_path / "days.csv", index=False)
    steps = [{"date_parts": {"column": "at", "parts": ["hour"], "prefix": "at", "unit": "us", "cyclical": ["hour"]}}]
    features = TABLE | {
        "path": str(tmp_path / "days.csv"), "steps": steps, "time": "at", "inputs": {}, "categorical": ["at_hour"],
        "continuous": ["signal", "at_hour_sin", "at_hour_cos"],
    }  # fmt: skip
    del features["group"]
    content = json.loads(tiny.config.read_text()) | {"recipe": "table", "name": "dated", "features": features}
    tiny.config.write_text(json.dumps(content))
    run = tiny.train()
    for name in ("scores.csv", "scores.parquet"):
        assert score_run(tiny.config, (), None, "test", tmp_path / name) == 0
    written = text.set_axis(raw["row"].astype("str"))
    for found in (pd.read_csv(tmp_path / "scores.csv"), pd.read_parquet(tmp_path / "scores.parquet")):
        assert found["at"].tolist() == written[found["row"].astype("str")].tolist()
    new = raw.drop(columns="clicked")
    bundle = run.bundle()
    expected = bundle.predict_raw(new.assign(at=text))["clicked"]
    for at in (stamps, stamps.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"), text + "Z",
               stamps.astype("datetime64[us]").astype("int64")):  # fmt: skip
        assert np.array_equal(bundle.predict_raw(new.assign(at=at))["clicked"], expected)
    seconds = stamps.astype("datetime64[s]").astype("int64")
    for at in (seconds, seconds * 1000, seconds.astype("float64"), seconds.where(raw["row"] % 2 == 0)):
        with pytest.raises(
            DataError, match=r"column 'at': its numbers are us since 1970, by which all rows are of 1970"
        ):
            bundle.predict_raw(new.assign(at=at))
    with pytest.raises(Refusal, match="'at': its numbers are us since 1970"):
        RawRows(bundle, ["at_hour", "signal"])([{"at": int(seconds[0]), "signal": 1.0}])
    assert RawRows(bundle, ["at_hour"])([{"at": text[0], "signal": 1.0}]) == [(22,)]
    bundle.predict_raw(new.assign(at="1970-01-02"))  # which can be meant
    for at, name in ((text, "new.csv"), (stamps, "new.parquet")):
        frame = new.assign(at=at)
        frame.to_csv(tmp_path / name, index=False) if name == "new.csv" else frame.to_parquet(tmp_path / name)
        assert score_run(tiny.config, (), None, None, tmp_path / "out.csv", str(tmp_path / name)) == 0
        found = pd.read_csv(tmp_path / "out.csv")
        assert found["at"].tolist() == text.tolist()
        assert_scores(found["predicted_clicked"].astype("float32"), expected)


@pytest.mark.parametrize(("dtype", "per_second"), [("datetime", 10**6), ("datetime[ms]", 1000)])
def test_files_with_times_of_another_unit_are_refused_where_the_type_is_declared(tiny_in, tmp_path, dtype, per_second):
    """The recipe made timestamps of them, of 1970, before anybody looked."""
    tiny = tiny_in(tmp_path / "tiny")
    raw = day_of_rows(0)
    at = SECONDS + 60 * raw["row"]
    raw.assign(at=at * per_second).to_parquet(tmp_path / "days.parquet")
    steps = [{"date_parts": {"column": "at", "parts": ["hour"], "prefix": "at", "unit": "us"}}]
    features = TABLE | {
        "path": str(tmp_path / "days.parquet"), "steps": steps, "time": "at", "inputs": {"at": dtype},
        "categorical": ["at_hour"], "continuous": ["signal"],
    }  # fmt: skip
    del features["group"]
    content = json.loads(tiny.config.read_text()) | {"recipe": "table", "name": "dated", "features": features}
    tiny.config.write_text(json.dumps(content))
    bundle, new = tiny.train().bundle(), raw.drop(columns="clicked")

    def scored(name, values):
        frame, path = new.assign(at=values), tmp_path / name
        frame.to_csv(path, index=False) if name.endswith(".csv") else frame.to_parquet(path)
        assert score_run(tiny.config, (), None, None, tmp_path / "out.csv", str(path)) == 0
        return pd.read_csv(tmp_path / "out.csv")["at"][0]

    assert scored("good.parquet", at * per_second) == "2013-12-31T22:00:00"
    unit = dtype.removeprefix("datetime").strip("[]") or "us"
    with pytest.raises(
        DataError, match=f"column 'at': its numbers are {unit} since 1970, by which all rows are of 1970"
    ):
        scored("seconds.parquet", at)
    assert scored("old.parquet", pd.Timestamp("1970-01-02")) == "1970-01-02"  # which can be meant
    if dtype == "datetime":
        assert scored("old.csv", "1970-01-02") == "1970-01-02"
        return
    with pytest.raises(DataError, match="its numbers are ms since 1970"):
        scored("seconds.csv", at)
    for values in (at.astype("object"), at.astype("str")):
        with pytest.raises(DataError, match="its numbers are ms since 1970"):
            bundle.predict_raw(new.assign(at=values))
    with pytest.raises(Refusal, match="its numbers are ms since 1970"):
        RawRows(bundle, ["at_hour", "signal"])([{"at": str(at[0]), "signal": 1.0}])


SECONDS = 1_388_527_200  # 2013-12-31T22:00
WRITTEN = {
    "datetime": lambda seconds: pd.Timestamp(seconds, unit="s").isoformat(),
    "datetime[s]": lambda seconds: seconds,
    "datetime[ms]?": lambda seconds: 1000 * seconds,
    "datetime[%d.%m.%Y %H:%M]": lambda seconds: pd.Timestamp(seconds, unit="s").strftime("%d.%m.%Y %H:%M"),
    "datetime[%Y%m%d]": lambda seconds: int(pd.Timestamp(seconds, unit="s").strftime("%Y%m%d")),
}


@pytest.mark.parametrize("dtype", WRITTEN)
def test_times_of_each_type_come_out_as_iso_text_from_every_source(tiny_in, tmp_path, dtype):
    """A Parquet file of seconds came out as 1970, a CSV file of them as it was: three outputs of one configuration."""
    tiny = tiny_in(tmp_path / "tiny")
    raw = day_of_rows(0)
    step = 86_400 if dtype == "datetime[%Y%m%d]" else 60
    start = SECONDS - SECONDS % step
    seconds = [start + step * number for number in raw["row"]]
    written, stamps = [WRITTEN[dtype](one) for one in seconds], pd.to_datetime(seconds, unit="s")
    iso = stamps.strftime("%Y-%m-%d" if step == 86_400 else "%Y-%m-%dT%H:%M:%S").tolist()
    raw.assign(at=written, due=written).to_csv(tmp_path / "rows.csv", index=False)
    features = TABLE | {
        "path": str(tmp_path / "rows.csv"), "time": "at", "inputs": {"at": dtype, "due": dtype}, "keys": ["due", "row"],
        "steps": [{"date_parts": {"column": "at", "parts": ["hour"], "prefix": "at", "unit": "us"}}],
        "categorical": ["at_hour"], "continuous": ["signal"],
    }  # fmt: skip
    del features["group"]
    content = json.loads(tiny.config.read_text()) | {"recipe": "table", "name": "dated", "features": features}
    tiny.config.write_text(json.dumps(content))
    tiny.train("train.epochs=1")
    new = raw.drop(columns="clicked")
    new.assign(at=written, due=written).to_csv(tmp_path / "new.csv", index=False)
    new.assign(at=written, due=written).to_parquet(tmp_path / "new.parquet")
    new.assign(at=stamps, due=stamps.tz_localize("UTC").tz_convert("Asia/Tokyo")).to_parquet(
        tmp_path / "stamps.parquet"
    )
    expected = pd.DataFrame({"at": iso, "due": iso, "row": raw["row"].astype("str")}).sort_values("row")
    assert score_run(tiny.config, (), None, "test", tmp_path / "split.csv") == 0
    found = pd.read_csv(tmp_path / "split.csv", dtype="str").sort_values("row")
    assert len(found) == 300
    assert found[["at", "due", "row"]].values.tolist() == [
        one for one in expected.values.tolist() if one[2] in set(found["row"])
    ]
    for name in ("new.csv", "new.parquet", "stamps.parquet"):
        assert score_run(tiny.config, (), None, None, tmp_path / "out.csv", str(tmp_path / name)) == 0
        found = pd.read_csv(tmp_path / "out.csv", dtype="str").sort_values("row")
        assert found[["at", "due", "row"]].values.tolist() == expected.values.tolist(), name


def test_dates_stay_dates_and_come_out_as_moments_in_utc_beside_a_time_of_day():
    schema = Schema((Column("at", "time", "datetime"),), ())
    for at, iso in (
        (["2014-06-19", "2014-06-19T01:00+02:00", None],
         ["2014-06-19T00:00:00", "2014-06-18T23:00:00", None]),
        ([1_403_136_000_000_000.0, None], ["2014-06-19", None]),
        (["2014-06-19", "2014-06-20", None], ["2014-06-19", "2014-06-20", None]),
        ([datetime.date(2014, 6, 19), None], ["2014-06-19", None]),
        (["2014-06-19T00:00:00.5", "2014-06-20"], ["2014-06-19T00:00:00.500000", "2014-06-20T00:00:00"]),
        ([None, None], [None, None]),
        (["2014-06-19 01:30:00", None], ["2014-06-19 01:30:00", None]),
        (["2014-06-19 01:30:00+02:00", "2014-06-20 00:00:00Z"], ["2014-06-18 23:30:00", "2014-06-20 00:00:00"]),
        (["2014-06-19 01:30:00", "2014-06-20T00:00:00"], ["2014-06-19T01:30:00", "2014-06-20T00:00:00"]),
        (["2014-06-19 00:00:00"], ["2014-06-19"]),
    ):  # fmt: skip
        frame = pd.DataFrame({"at": at})
        found = with_keys(schema, frame, pd.DataFrame({"y": [0.5] * len(at)}), {})["at"]
        assert [None if pd.isna(one) else one for one in found] == iso


def table_run(folder, labels, **target):
    """A run of recipe `table` on a column that gives the label away: its configuration file."""
    labels = np.array(labels)[np.arange(400) % len(labels)]
    pd.DataFrame({"x": [f"of {label}" for label in labels], "kind": labels}).to_csv(folder / "rows.csv", index=False)
    config = folder / "run.json"
    features = {"path": str(folder / "rows.csv"), "categorical": ["x"], "targets": {"kind": target}}
    places = {name: str(folder / name) for name in ("artifacts", "runs")}
    train = {"epochs": 1, "batch_size": 64, "lr_max": 0.01}
    config.write_text(json.dumps({"name": "kinds", "recipe": "table", "features": features, "train": train} | places))
    return config


@pytest.mark.parametrize("today", [["cat", "dog"], ["cat", "cow", "dog"], ["ant", "bird", "cat", "dog"]])
def test_classes_that_have_other_numbers_today_are_not_measured_by_these(tmp_path, today):
    """Every cat was called bird, and the accuracy was 1."""
    config = table_run(tmp_path, ["bird", "cat", "dog"], task="multiclass")
    assert main(["train", "--config", str(config)]) == 0
    assert evaluate_run(config, (), None, None, tmp_path / "again") == 0
    table_run(tmp_path, today, task="multiclass")
    with pytest.raises(
        DataError, match=r"target 'kind': class\(es\) .* So the labels of today's features are not those"
    ):
        evaluate_run(config, (), None, None, tmp_path / "again")


@pytest.mark.parametrize(("labels", "more"), [(["bird", "cat", "dog"], {}), ([3, 10, 20], {"label_type": "int64"})])
def test_scores_of_classes_name_the_likeliest(tmp_path, labels, more):
    config = table_run(tmp_path, labels, task="multiclass", **more)
    assert main(["train", "--config", str(config)]) == 0
    files = ["--config", str(config), "--out", str(tmp_path / "scores.parquet")]
    for rows in ((), ("--input", str(tmp_path / "rows.csv"))):
        assert main(["score", *files, *rows]) == 0
        found = pd.read_parquet(tmp_path / "scores.parquet")
        names = [f"predicted_kind_{label}" for label in labels]
        assert [name for name in found.columns if name.startswith("predicted_")] == ["predicted_kind", *names]
        likeliest = found[names].idxmax(axis=1).str.removeprefix("predicted_kind_")
        assert found["predicted_kind"].astype("str").tolist() == likeliest.tolist()
        assert (found["predicted_kind"].dtype.kind == "i") == bool(more)


def test_a_label_that_was_turned_over_is_not_measured(tmp_path):
    config = table_run(tmp_path, ["no", "yes"], task="binary", positive="yes")
    assert main(["train", "--config", str(config)]) == 0
    table_run(tmp_path, ["no", "yes"], task="binary", positive="no")
    with pytest.raises(DataError, match="positive was 'yes' when the model was trained, and is 'no' today"):
        evaluate_run(config, (), None, None, None)
