"""The training loop: learns, repeats itself, and goes on bit for bit after a crash."""

import json
import math
import os
from pathlib import Path

import pytest
import torch

from features.schema import IdColumn, Target, TensorSchema
from loaders.packed import PackedTable
from models import ModelError, TabularConfig, TabularModel, TargetLoss
from pipeline.config import TrainSettings
from pipeline.train import TrainingError, table_loss, train_model

NUM_IDS = (7, 11)
ROWS, VALID_ROWS, BATCH = 640, 200, 64  # ten steps an epoch
TASKS = {
    "binary": (Target("label", "binary"),),
    "multiclass": (Target("kind", "multiclass", 3),),
    "regression": (Target("value", "regression"),),
    "two": (Target("label", "binary"), Target("value", "regression")),
}


def make_table(kind: str, rows: int, seed: int) -> PackedTable:
    """Learnable rows: the targets follow from the first float column and the first id."""
    random = torch.Generator().manual_seed(seed)
    ids = [torch.randint(size, (rows,), generator=random, dtype=torch.int32) for size in NUM_IDS]
    floats = list(torch.randn(3, rows, generator=random))
    value = 2 * floats[0] + (ids[0] % 3) + 0.1 * torch.randn(rows, generator=random)
    labels = {"binary": (value > 1).float(), "multiclass": value.clamp(0, 2).round().int(), "regression": value}
    targets = TASKS[kind]
    schema = TensorSchema(tuple(IdColumn(f"id{i}", n) for i, n in enumerate(NUM_IDS)), ("a", "b", "c"), targets)
    return PackedTable.from_columns(schema, ids, floats, [labels[target.task] for target in targets])


def loss_of(kind: str) -> TargetLoss:
    return TargetLoss([(target.task, target.num_outputs) for target in TASKS[kind]])


def settings_of(**changes) -> TrainSettings:
    return TrainSettings(**{"epochs": 2, "batch_size": BATCH, "lr_max": 0.02, "checkpoint_every_steps": 4} | changes)


def run(folder: Path, settings: TrainSettings, kind: str = "binary", seed: int = 1, after_step=lambda step: None):
    """A fresh model and optimizer, trained in `folder`; dropout everywhere."""
    torch.manual_seed(seed)
    outputs = sum(target.num_outputs for target in TASKS[kind])
    model = TabularModel(TabularConfig(NUM_IDS, 3, outputs, layers=(16, 8), dropout=0.3, embedding_dropout=0.2))
    tables = make_table(kind, ROWS, 10), make_table(kind, VALID_ROWS, 11)
    folder.mkdir(parents=True, exist_ok=True)
    return train_model(
        model, *tables, loss_of(kind), settings, seed=seed, device="cpu", folder=folder, after_step=after_step
    )


def weights(trained) -> dict[str, torch.Tensor]:
    return trained.model.state_dict()


def differing(one: dict, other: dict) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


@pytest.fixture(autouse=True)
def _no_flushing(monkeypatch):
    """Checkpoints are many here and the disk is slow; that they are flushed is tested elsewhere."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


class Crash(Exception):
    pass


def crash_at(*steps: int):
    """A hook that raises once at each of these steps."""
    left = set(steps)

    def hook(step: int) -> None:
        if step in left:
            left.remove(step)
            raise Crash(step)

    return hook


@pytest.mark.parametrize(
    "settings",
    [
        settings_of(),
        settings_of(select="last", schedule="warmup_polynomial", schedule_settings={"warmup_steps": 5}),
        settings_of(optimizer="adamw"),
        settings_of(optimizer_settings={"rowwise": False}, schedule="constant"),
    ],
    ids=["lamb", "lamb-last-polynomial", "adamw", "lamb-dense-constant"],
)
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path, settings):
    whole = run(tmp_path / "whole", settings)
    # Before the first checkpoint (4), at it, after it, at the end of an epoch (10), mid-epoch 2, the last step.
    for steps in ((1,), (4,), (5,), (10,), (11,), (13, 17), (20,)):
        folder, hook = tmp_path / "-".join(map(str, steps)), crash_at(*steps)
        for step in steps:
            with pytest.raises(Crash, match=str(step)):
                run(folder, settings, after_step=hook)
            torch.rand(3)  # a process that starts anew has another random state
        resumed = run(folder, settings, after_step=hook)
        assert differing(weights(whole), weights(resumed)) == [], steps
        assert (folder / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes(), steps
        assert (resumed.best_epoch, resumed.steps, resumed.curve) == (whole.best_epoch, whole.steps, whole.curve)


def test_steps_before_the_checkpoint_are_not_run_again(tmp_path):
    with pytest.raises(Crash):
        run(tmp_path, settings_of(), after_step=crash_at(6))
    seen = []
    run(tmp_path, settings_of(), after_step=seen.append)
    assert seen == list(range(5, 21))


def test_a_crash_between_the_checkpoint_and_the_return_loses_no_line(tmp_path):
    """Every moment at which the last epoch's state is on disk has its lines on disk too."""
    settings = settings_of(epochs=1)
    whole = run(tmp_path, settings)
    assert run(tmp_path, settings).curve == whole.curve  # only the end is left to do
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == len(whole.curve)


def test_a_damaged_checkpoint_is_named(tmp_path):
    with pytest.raises(Crash):
        run(tmp_path, settings_of(), after_step=crash_at(6))
    content = (tmp_path / "checkpoint.pt").read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"no checkpoint at all"):
        (tmp_path / "checkpoint.pt").write_bytes(damaged)
        with pytest.raises(TrainingError, match=r"checkpoint\.pt: damaged"):
            run(tmp_path, settings_of())


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    with pytest.raises(Crash):
        run(tmp_path, settings_of(), after_step=crash_at(6))
    before = (tmp_path / "checkpoint.pt").read_bytes()

    def full(content, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path, settings_of())
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


@pytest.mark.parametrize("kind", list(TASKS))
@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_the_loss_falls_on_learnable_data(tmp_path, kind, optimizer):
    trained = run(tmp_path, settings_of(epochs=8, optimizer=optimizer), kind)
    valid = [point["valid_loss"] for point in trained.curve if "valid_loss" in point]
    assert len(valid) == 8
    assert min(valid) < 0.8 * valid[0]
    assert trained.curve[-1]["train_loss"] < trained.curve[0]["train_loss"]


def test_the_valid_loss_is_the_loss_over_the_valid_split(tmp_path):
    trained = run(tmp_path, settings_of(select="last"))
    table = make_table("binary", VALID_ROWS, 11)
    batch = table.unpack(table.words)
    with torch.no_grad():
        outputs = trained.model.eval()(batch.ids, batch.floats)[:, 0].double()
    expected = -(torch.nn.functional.logsigmoid(outputs * (2 * batch.targets[0] - 1))).mean()
    assert trained.curve[-1]["valid_loss"] == pytest.approx(float(expected), rel=1e-5)
    assert table_loss(trained.model, table, loss_of("binary"), "cpu") == trained.curve[-1]["valid_loss"]


def test_best_keeps_the_epoch_with_the_lowest_valid_loss_and_last_the_last(tmp_path):
    changes = {"epochs": 6, "lr_max": 0.3, "schedule": "constant"}  # rough enough that the best is not the last
    best, last = (run(tmp_path / kind, settings_of(select=kind, **changes)) for kind in ("best", "last"))
    assert best.curve == last.curve
    valid = [point["valid_loss"] for point in best.curve if "valid_loss" in point]
    assert best.best_epoch == valid.index(min(valid)) != 5
    assert last.best_epoch == 5
    table = make_table("binary", VALID_ROWS, 11)
    assert table_loss(best.model, table, loss_of("binary"), "cpu") == min(valid)
    assert table_loss(last.model, table, loss_of("binary"), "cpu") == valid[-1]


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    one, same, other = (run(tmp_path / name, settings_of(), seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert differing(weights(one), weights(same)) == []
    assert "embeddings" in " ".join(differing(weights(one), weights(other)))


@pytest.mark.parametrize("changes", [{"lr_max": 1e30, "optimizer": "adamw"}, {"epochs": 1, "lr_max": 1e38}])
def test_a_diverging_run_says_so(tmp_path, changes):
    with pytest.raises(TrainingError, match=r"diverged in epoch 1.*not finite.*Lower train\.lr_max"):
        run(tmp_path, settings_of(**changes), "regression")


def test_a_batch_larger_than_the_table_is_the_table_and_says_so(tmp_path, caplog):
    trained = run(tmp_path, settings_of(batch_size=10_000))
    assert trained.steps == 2
    assert "batch_size 10000 is larger than the train split; using its 640 rows" in caplog.text


def test_the_curve_is_one_json_object_a_line_with_the_schedules_lr(tmp_path):
    trained = run(tmp_path, settings_of())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == trained.curve
    assert [line["step"] for line in lines] == list(range(1, 21))
    # fastai's one-cycle, written out: a half cosine from lr/25 up over a quarter, then down to lr/1e5.
    for line in lines:
        done = (line["step"] - 1) / 20
        low, high, part = (0.02 / 25, 0.02, done / 0.25) if done < 0.25 else (0.02, 0.02 / 1e5, (done - 0.25) / 0.75)
        assert line["lr"] == pytest.approx(low + (high - low) * (1 - math.cos(math.pi * part)) / 2)


def test_an_unknown_setting_of_the_schedule_lists_the_known_ones(tmp_path):
    with pytest.raises(
        TrainingError, match=r"train\.schedule_settings: one_cycle has no \['warmup'\]\. Known: pct_start"
    ):
        run(tmp_path, settings_of(schedule_settings={"warmup": 3}))


def test_an_unknown_setting_of_the_optimizer_lists_the_known_ones(tmp_path):
    with pytest.raises(ModelError, match=r"(?s)momentum.*betas"):
        run(tmp_path, settings_of(optimizer_settings={"momentum": 0.9}))


@pytest.mark.gpu
def test_a_run_on_the_gpu_resumes_bit_for_bit(tmp_path):
    torch.manual_seed(1)
    tables = make_table("binary", ROWS, 10).to("cuda"), make_table("binary", VALID_ROWS, 11).to("cuda")

    def go(folder, hook=lambda step: None):
        torch.manual_seed(1)
        model = TabularModel(TabularConfig(NUM_IDS, 3, 1, layers=(16, 8), dropout=0.3, embedding_dropout=0.2))
        folder.mkdir(exist_ok=True)
        return train_model(
            model, *tables, loss_of("binary"), settings_of(), seed=1, device="cuda", folder=folder, after_step=hook
        )

    whole, hook = go(tmp_path / "whole"), crash_at(6, 13)
    for _ in range(2):
        with pytest.raises(Crash):
            go(tmp_path / "parts", hook)
    assert differing(weights(whole), weights(go(tmp_path / "parts"))) == []
