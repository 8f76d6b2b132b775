"""lr-range, tune and compare of a table whose labels only a list column tells, from its configuration file."""

import json
import math

import pytest

from gigabatch.pipeline.commands.app import main
from tests.pipeline.list_rows import list_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("list_commands")


def command(folder, name: str, *arguments: str, lists: bool = True) -> int:
    return main([name, "--config", str(list_config(folder, "lr", lists)), *arguments])


def test_the_loss_of_a_range_of_rates_falls_by_the_lists_alone(folder, capsys):
    arguments = ["--steps", "60", "--start", "1e-3", "--stop", "1", "train.optimizer=adamw"]
    lowest = {}
    for lists in (True, False):
        assert command(folder, "lr-range", *arguments, lists=lists) == 0
        losses = json.loads((folder / "runs" / f"lr-{lists}" / "lr_range.json").read_text())["losses"]
        lowest[lists] = min(losses)
    assert lowest[True] < 0.5 < math.log(2) - 0.1 < lowest[False]
    assert str(folder / "runs" / "lr-True" / "lr_range.html") in capsys.readouterr().out


def test_tune_measures_batches_with_their_lists(folder, capsys):
    arguments = ["--seeds", "2", "--seconds", "600", "--max-batch", "64", "--tolerance", "0.5", "train.batch_size=32"]
    assert command(folder, "tune", *arguments, "train.epochs=2") == 0
    found = json.loads((folder / "runs" / "lr-True" / "tune.json").read_text())
    assert [time["batch_size"] for time in found["sweep"]["times"]] == [32, 64]
    assert len(found["noise"]) == 3
    if found["candidates"]:  # a loaded machine may not see that 64 rows a step are faster
        assert all(auc > 0.9 for trial in found["trials"] for auc in trial["small"] + trial["large"])
    assert found["verdict"] in capsys.readouterr().out


def test_compare_trains_models_with_lists_and_leaves_out_those_that_take_none(folder, capsys):
    arguments = [
        "--models",
        "lr,{kind: dcn, layers: [16], pooling: sum},ease",
        "--seeds",
        "2",
        "--trials",
        "1",
        "train.epochs=3",
    ]
    assert command(folder, "compare", *arguments) == 0
    (page,) = (folder / "runs" / "lr-True").glob("compare-*/compare.json")
    found = json.loads(page.read_text())
    assert [contender["choice"]["pooling"] for contender in found["contenders"]] == ["mean", "sum"]
    assert all(outcome["metrics"]["auc"] > 0.9 for one in found["contenders"] for outcome in one["outcomes"])
    assert "Left out: ease" in capsys.readouterr().out
