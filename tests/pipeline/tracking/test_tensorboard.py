"""The learning curve in TensorBoard, read back by its own reader."""

import logging

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gigabatch import Callback, Pipeline
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import ConfigError, RunConfig, load_config
from gigabatch.pipeline.lab.plan.forecast import Probes
from gigabatch.pipeline.nightly.nightly import run_nightly
from gigabatch.pipeline.tracking import tensorboard as module
from tests.pipeline.tiny_recipe import day_of_rows, write_day

ON = "track.tensorboard=true"
NAMES = ("train_loss", "valid_loss", "lr")


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    found = EventAccumulator(str(folder)).Reload()
    return {name: [(event.step, event.value) for event in found.Scalars(name)] for name in found.Tags()["scalars"]}


def folders(tiny) -> list[str]:
    return sorted(path.name for path in (tiny.home / "tensorboard").glob("*"))


def of_curve(curve) -> dict[str, list[tuple[int, float]]]:
    return {
        name: [(point["step"], pytest.approx(point[name])) for point in curve if point.get(name) is not None]
        for name in NAMES
    }


def test_the_curve_of_a_run_is_written_under_the_key_of_its_training(tiny):
    run = tiny.train(ON)
    (artifact,) = tiny.artifacts("train")
    assert folders(tiny) == [artifact.name[:12]]
    assert scalars(tiny.home / "tensorboard" / artifact.name[:12]) == of_curve(run.curve)
    before = sorted(path.name for path in (tiny.home / "tensorboard").rglob("*"))
    assert "train" in tiny.train(ON).skipped
    assert sorted(path.name for path in (tiny.home / "tensorboard").rglob("*")) == before


def test_nothing_is_written_where_it_is_off(tiny):
    tiny.train()
    assert not (tiny.home / "tensorboard").exists()


class Stops(Callback):
    """Ctrl-C after so many epochs, when TensorBoard has been told and the checkpoint is not written."""

    def __init__(self, epochs):
        self.left = epochs

    def epoch(self, points, model):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_training_that_was_stopped_goes_on_in_its_folder_and_no_point_is_there_twice(tiny, epochs):
    config = load_config(tiny.config, [ON])
    with pytest.raises(KeyboardInterrupt):
        Pipeline(config, callbacks=[Stops(epochs)]).train()
    (folder,) = folders(tiny)
    assert len(scalars(tiny.home / "tensorboard" / folder)["valid_loss"]) == epochs
    run = tiny.train(ON)
    assert folders(tiny) == [folder]
    assert scalars(tiny.home / "tensorboard" / folder) == of_curve(run.curve)


def test_a_disk_that_is_full_costs_the_curve_and_not_the_training(tiny, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.flush", full)
    with caplog.at_level(logging.ERROR):
        assert tiny.train(ON).summary["rows"] > 0
    assert [r.message for r in caplog.records if "TensorBoard" in r.message] == [
        f"TensorBoard: {tiny.home / 'tensorboard' / tiny.artifacts('train')[0].name[:12]} could not be written "
        "([Errno 28] No space left on device); the training goes on without it"
    ]


def test_a_night_writes_it_too_and_its_trainings_have_a_folder_each(finished):
    write_day(finished.raw, 1, 600)
    assert run_nightly(finished.config, [ON, "nightly.tolerance=1"]) == 0
    new = {path.name[:12] for path in finished.artifacts("train")}
    (made,) = folders(finished)
    assert made in new


def test_a_plan_tells_no_tool_of_its_probes(tmp_path, monkeypatch):
    """The probes are runs of the configuration; they would be logged as such."""
    told = []
    monkeypatch.setattr(Probes, "_spawn", lambda self, task: told.append(task) or {})
    day_of_rows(0, 600).to_csv(tmp_path / "rows.csv", index=False)
    config = RunConfig(
        name="shop",
        recipe="table",
        features={
            "path": str(tmp_path / "rows.csv"),
            "continuous": ["signal"],
            "targets": {"clicked": {"task": "binary"}},
        },
        track={"tensorboard": True, "mlflow": {"uri": "http://127.0.0.1:9"}},
    )
    Probes(config, tmp_path / "work").run(1.0)
    assert told[0]["config"]["track"] == {"tensorboard": False, "mlflow": None}


def test_a_missing_package_is_an_error_before_any_work(tiny, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r"track\.tensorboard: needs pip install"):
        module.require_tensorboard()
    assert main(["train", "--config", str(tiny.config), ON]) == 2
    assert not (tiny.folder / "artifacts").exists()
    assert "track.tensorboard: needs pip install 'gigabatch[track]'" in capsys.readouterr().err
