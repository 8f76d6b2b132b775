"""Nights of a table with lists: a first one, warm ones with new elements, one that is killed within its training."""

import json
import random
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from gigabatch.features.schema import Target
from gigabatch.pipeline.bundle import load_bundle
from gigabatch.pipeline.nightly.comparison import Other, Seen, Window
from gigabatch.pipeline.nightly.findings import findings, table_health
from gigabatch.pipeline.nightly.nightly import run_nightly
from gigabatch.pipeline.stages.finished import Run
from gigabatch.pipeline.training.train_step import TrainStep

PROMOTED, FAILED = 0, 40


def write_night(folder: Path, night: int, rows: int) -> None:
    """The label is whether more than half of the tags are good ones; each night brings a good and a bad one more."""
    draw = random.Random(night)
    good, bad = [[f"{kind}{number}" for number in range(2 + night)] for kind in ("good", "bad")]
    lists = [
        [draw.choice(good if draw.random() < 0.5 else bad) for _ in range(draw.randrange(1, 5))] for _ in range(rows)
    ]
    frame = pd.DataFrame(
        {
            "item": [draw.randrange(9) for _ in range(rows)],
            "price": [draw.random() for _ in range(rows)],
            "at": [100_000 * night + place for place in range(rows)],
            "clicked": [int(sum(1 if tag[0] == "g" else -1 for tag in row) > 0) for row in lists],
            "tags": lists,
            "seen": [[draw.randrange(9 + night) for _ in range(draw.randrange(4))] for _ in range(rows)],
        }
    )
    folder.mkdir(exist_ok=True)
    frame.to_parquet(folder / f"night-{night}.parquet")


def make_home(folder: Path) -> Path:
    write_night(folder / "rows", 0, 2000)
    config = {
        "name": "lists", "recipe": "table", "device": "cpu", "engine": "pandas", "artifacts": str(folder / "artifacts"),
        "runs": str(folder / "runs"),
        "features": {
            "path": f"{folder}/rows/*.parquet", "time": "at", "categorical": {"item": "int64"}, "continuous": ["price"],
            "targets": {"clicked": {"task": "binary"}}, "lists": {"tags": {}, "seen": {"shares": "item"}},
            "split": {"valid_rows": 400, "test_rows": 400},
        },
        "model": {"kind": "lr"}, "train": {"epochs": 3, "batch_size": 64, "lr_max": 0.05, "checkpoint_every_steps": 5},
        "evaluate": {"importance": False, "baselines": []},
        "nightly": {"min_window_rows": 50, "num_bootstrap": 100, "max_skill_drop": 1},
    }  # fmt: skip
    path = folder / "run.yaml"
    path.write_text(json.dumps(config))
    return path


def nights(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "runs/lists/nightly.jsonl").read_text().splitlines()]
    return [line for line in lines if line["action"] == "nightly"]


def current(folder: Path) -> Run:
    return Run((folder / "runs/lists/current").resolve())


def carried(run: Run) -> dict[str, tuple[int, int]]:
    """By column how many values were carried, and how many are new."""
    return {row["column"]: (row["carried"], row["new"]) for row in run.summary["started"]["columns"]}


class Killed(BaseException):
    """Like a kill: nothing of the night's own handles it."""


def test_nights_go_on_from_lists_by_value_and_a_killed_one_as_if_it_had_not_been(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    config = make_home(home)
    assert run_nightly(config) == PROMOTED
    first = current(home)
    assert first.summary["metrics"]["test"]["auc"] > 0.95

    write_night(home / "rows", 1, 1500)
    assert run_nightly(config) == PROMOTED
    second = current(home)
    assert [night["start"]["how"] for night in nights(home)] == ["anew", "warm"]
    assert second.summary["started"]["run"] == first.path.name
    assert second.summary["started"]["moments"] == "carried"
    assert carried(second) == {"item": (9, 1), "tags": (4, 2)}
    held = load_file(second.path / "training" / "optimizer.safetensors")
    trained = {name.rpartition("|")[2]: rows for name, rows in held.items() if name.startswith("trained rows of")}
    bundle = second.bundle()
    for column, values in {"tags": ["good2", "bad2"], "item": [9]}.items():
        known = bundle.preprocessor.vocabularies[column]
        assert all(trained[column][known.layout.first + known.values.tolist().index(value)] for value in values)
    health = {row.column: row for row in table_health(bundle, second.path / "training")}
    assert {name: (row.values, row.never_trained) for name, row in health.items()} == {"item": (10, 0), "tags": (6, 0)}

    write_night(home / "rows", 2, 1500)
    shutil.copytree(home, tmp_path / "before", symlinks=True)
    assert run_nightly(config) == PROMOTED
    whole = current(home)
    assert carried(whole)["tags"] == (6, 2)

    shutil.move(home, tmp_path / "after")
    shutil.move(tmp_path / "before", home)
    step_of, done = TrainStep.__call__, 0

    def step(self, *arguments):
        nonlocal done
        done += 1
        if done == 13:
            raise Killed
        return step_of(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TrainStep, "__call__", step)
        with pytest.raises(Killed):
            run_nightly(config)
    assert current(home).path.name == second.path.name
    assert run_nightly(config) == PROMOTED
    resumed = current(home)
    assert resumed.summary["trained"]["earlier_rows"] > 0
    expected = load_bundle(tmp_path / "after" / "runs/lists" / whole.path.name / "model").model.state_dict()
    found = resumed.bundle().model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_a_cold_night_keeps_the_ids_of_lists(tmp_path):
    config = make_home(tmp_path)
    assert run_nightly(config) == PROMOTED
    first = current(tmp_path).bundle().preprocessor.vocabularies
    write_night(tmp_path / "rows", 1, 1500)
    assert run_nightly(config, ["nightly.cold_every=1"]) == PROMOTED
    assert nights(tmp_path)[-1]["start"]["how"] == "cold"
    run = current(tmp_path)
    assert not run.summary.get("started")
    grown = run.bundle().preprocessor.vocabularies
    for name in ("item", "tags"):
        before, now = (found[name].values.tolist() for found in (first, grown))
        assert now[: len(before)] == before
        assert len(now) > len(before)


def test_rows_whose_lists_hold_what_no_training_has_seen_are_counted(tmp_path):
    config = make_home(tmp_path)
    assert run_nightly(config) == PROMOTED
    run = current(tmp_path)
    bundle = run.bundle()
    write_night(tmp_path / "rows", 1, 500)
    frame = pd.read_parquet(tmp_path / "rows" / "night-1.parquet")
    frame.loc[:20, "item"] = 77
    known = {name: set(bundle.preprocessor.vocabularies[name].values.tolist()) for name in ("item", "tags")}
    wanted = {
        "item": [value not in known["item"] for value in frame["item"]],
        "tags": [any(tag not in known["tags"] for tag in row) for row in frame["tags"]],
        "seen": [any(item not in known["item"] for item in row) for row in frame["seen"]],
    }
    assert all(0 < sum(rows) < 500 for rows in wanted.values())
    labels = torch.tensor(frame["clicked"].to_numpy()).float()
    window = Window(Target("clicked", "binary"), labels, torch.tensor(0.5))
    scores = torch.tensor(bundle.predict(frame)["clicked"].to_numpy())
    others = {"candidate": Other(run.path.name, bundle, {})}
    found = findings(Seen(frame, others, {"candidate": [(scores, window)]}), tmp_path / "runs" / "lists")
    counts = {f"{name}: unseen by the new model": sum(rows) for name, rows in wanted.items()}
    counts["every value known to the new model"] = sum(not any(row) for row in zip(*wanted.values(), strict=True))
    assert {part.rows: part.count for part in found.unseen} == counts


@pytest.mark.parametrize(
    ("changed", "text", "before"),
    [
        ({"preprocess": {"columns": {"tags": {"oov_buckets": 4}}}}, "'tags' has 4 ids for unseen values", "train"),
        ({"model": {"kind": "ease"}}, "the model ease cannot be traced", "features"),
    ],
)
def test_an_export_that_cannot_be_is_refused_before_the_night_trains(tmp_path, changed, text, before):
    config = make_home(tmp_path)
    config.write_text(json.dumps(json.loads(config.read_text()) | changed))
    assert run_nightly(config, ["nightly.export=[onnx_rows]"]) == FAILED
    (night,) = nights(tmp_path)
    assert text in night["decision"]
    assert before not in night["steps"]
