"""Runs in MLflow, read back by its own client."""

import json
import shutil

import pytest
from mlflow import MlflowClient, environment_variables

from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import ConfigError, MlflowSettings, load_config
from gigabatch.pipeline.nightly import nightly
from gigabatch.pipeline.nightly.nightly import run_nightly
from gigabatch.pipeline.runs.promote import promote_by_hand, rollback
from gigabatch.pipeline.tracking.mlflow import _client, _flat, _plain, _shown, require_mlflow, track_run
from tests.pipeline.tiny_recipe import write_day

RUN = "gigabatch.run"


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    """A database with MLflow's tables, which takes five seconds to make."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def tracked(finished, empty_database, monkeypatch):
    """The override that turns it on, and the client that reads."""
    shutil.copy(empty_database, finished.folder)
    uri = f"sqlite:///{finished.folder / 'mlflow.db'}"
    monkeypatch.chdir(finished.folder)
    return {"track.mlflow": {"uri": uri, "artifacts": str(finished.folder / "logged")}}, MlflowClient(uri, uri)


def test_runs_are_logged_once_and_the_champion_follows_promotion_and_rollback(finished, tracked):
    setting, client = tracked
    first = finished.train(setting)  # skipped, and logged all the same
    experiment = client.get_experiment_by_name("tiny").experiment_id
    (logged,) = client.search_runs([experiment])
    assert logged.data.tags[RUN] == logged.info.run_name == first.path.name
    assert logged.data.params["train.epochs"] == "2"
    assert logged.data.params["model.layers"] == "[16]"
    assert logged.data.metrics["test/auc"] == first.summary["auc"]
    points = {(point["step"], point["valid_loss"]) for point in first.curve if "valid_loss" in point}
    assert {(m.step, m.value) for m in client.get_metric_history(logged.info.run_id, "valid_loss")} == points
    assert sorted(file.path for file in client.list_artifacts(logged.info.run_id)) == [
        "metrics.jsonl", "report.html", "summary.json"
    ]  # fmt: skip
    finished.train(setting)
    assert len(client.search_runs([experiment])) == 1
    write_day(finished.raw, 1, 600)
    assert run_nightly(finished.config, [setting, "nightly.tolerance=1"]) == 0
    second = (finished.home / "current").resolve().name
    champion = client.get_model_version_by_alias("tiny", "champion")
    assert champion.tags[RUN] == second
    assert champion.source == str(finished.home / second / "model")
    config = load_config(finished.config, [setting])
    rollback(config)
    assert client.get_model_version_by_alias("tiny", "champion").tags[RUN] == first.path.name
    promote_by_hand(config, second)
    champion = client.get_model_version_by_alias("tiny", "champion")
    assert (champion.tags[RUN], len(client.search_model_versions("name = 'tiny'"))) == (second, 2)


def test_a_final_run_is_logged_with_the_metrics_of_the_run_that_measured_it(tmp_path, empty_database):
    """Those of its own test rows, few as they are, stood in the same column as measurements."""
    shutil.copy(empty_database, tmp_path)
    measured = {
        "id": "0a1b",
        "rows": 900,
        "metrics": {"test": {"auc": 0.75}},
        "targets": {"test": {"y": {"auc": 0.75}}},
    }
    few = {split: {"y": {"auc": 0.99, "ece": 0.3}} for split in ("valid", "test")}
    summary = {
        "targets": few,
        "created_utc": "2026-11-01T00:00:00+00:00",
        "seconds": {"train": 2.0},
        "config": {"a": 1},
    }
    client, logged = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}"), []
    settings = MlflowSettings(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", artifacts=tmp_path / "logged")
    for name, more in (("final", {"measured": measured}), ("usual", {"measured": None}), ("old", {})):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps(summary | more))
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 7, "valid_loss": 0.5}) + "\n")
        track_run(settings, folder, "shop")
        (run,) = client.search_runs([client.get_experiment_by_name("shop").experiment_id], f"tags.`{RUN}` = '{name}'")
        logged.append(run.data)
    final, usual, old = logged
    assert final.metrics == {"test/auc": 0.75, "valid_loss": 0.5, "seconds/train": 2.0}
    assert final.tags["gigabatch.measured"] == "0a1b"
    own = {"valid/auc": 0.99, "valid/ece": 0.3, "test/auc": 0.99, "test/ece": 0.3}
    assert usual.metrics == old.metrics == {**own, "valid_loss": 0.5, "seconds/train": 2.0}
    assert "gigabatch.measured" not in usual.tags


def test_a_server_that_cannot_be_reached_changes_nothing_of_a_run(finished, caplog, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    setting = {"track.mlflow": {"uri": "http://someone:secret@127.0.0.1:9"}}
    assert finished.train(setting).summary["rows"] > 0
    assert "was not logged to MLflow (http://127.0.0.1:9)" in caplog.text


@pytest.mark.parametrize("end", ["killed", "no server"])
def test_a_night_moves_the_champion_that_an_earlier_one_left_behind(finished, tracked, monkeypatch, end):
    setting, client = tracked
    night = [setting, "nightly.tolerance=1"]

    class Killed(BaseException):
        """Like a kill."""

    def fails(*_, **__):
        raise Killed if end == "killed" else OSError("no server")

    assert run_nightly(finished.config, night) == 10
    first = (finished.home / "current").resolve().name
    assert client.get_model_version_by_alias("tiny", "champion").tags[RUN] == first
    write_day(finished.raw, 1, 600)
    with monkeypatch.context() as patch:
        if end == "killed":
            patch.setattr(nightly, "append_record", fails)
            with pytest.raises(Killed):
                run_nightly(finished.config, night)
        else:
            patch.setattr(MlflowClient, "set_registered_model_alias", fails)
            assert run_nightly(finished.config, night) == 0
    second = (finished.home / "current").resolve().name
    assert second != first
    assert client.get_model_version_by_alias("tiny", "champion").tags[RUN] == first
    assert run_nightly(finished.config, night) == 10
    assert client.get_model_version_by_alias("tiny", "champion").tags[RUN] == second


@pytest.mark.parametrize("given", [None, "7"])
def test_a_server_is_not_waited_for_longer_than_the_user_says(monkeypatch, given):
    """By MLflow's own defaults a night stood still for minutes before it compared."""
    names = "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"
    for name in names:
        monkeypatch.setenv(name, given or "")
        if given is None:
            monkeypatch.delenv(name)
    _client(MlflowSettings(uri="http://127.0.0.1:9"))
    found = [getattr(environment_variables, name).get() for name in names]  # as MLflow reads them at each request
    assert found == ([2, 10] if given is None else [7, 7])


def test_a_run_that_was_logged_by_half_is_logged_anew(finished, tracked, monkeypatch, caplog):
    setting, client = tracked
    config = load_config(finished.config, [setting])
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_artifact", lambda *_: 1 / 0)
        track_run(config.track.mlflow, finished.latest().path, "tiny")
    assert "division by zero" in caplog.text
    track_run(config.track.mlflow, finished.latest().path, "tiny")
    experiment = client.get_experiment_by_name("tiny").experiment_id
    states = [run.info.status for run in client.search_runs([experiment])]
    assert sorted(states) == ["FINISHED", "RUNNING"]


@pytest.mark.parametrize("missing", ["mlflow", "sqlalchemy", "alembic"])
def test_a_package_that_is_missing_is_an_error_before_any_work(tiny, monkeypatch, missing, capsys):
    monkeypatch.setitem(__import__("sys").modules, missing, None)
    with pytest.raises(ConfigError, match=rf"track\.mlflow: needs {missing}: pip install"):
        require_mlflow(MlflowSettings())
    assert main(["train", "--config", str(tiny.config), "track.mlflow={}"]) == 2
    assert f"needs {missing}" in capsys.readouterr().err
    assert tiny.artifacts("features") == []


def test_names_and_settings_become_what_mlflow_takes_and_stay_apart():
    assert dict(_flat({"a": {"no. of €": 1, "b": []}, "c": None})) == {
        "a.no.2e. of .20ac.": "1",
        "a.b": "[]",
        "c": "null",
    }
    assert len({_plain(name) for name in ("a.b", "a/b", "a b", "a_b", "ä", "")}) == 6
    assert _shown("postgresql://me:secret@there/db") == "postgresql://there/db"
    json.dumps(MlflowSettings().model_dump(mode="json"))
