"""The training loop: learns, repeats itself, and goes on bit for bit after a crash."""

import gc
import json
import logging
import math
import os
import sys
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.models.inputs import ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.optimizers import loss_scale
from gigabatch.models.optimizers.lamb import Lamb
from gigabatch.models.optimizers.precision import PRECISIONS, REDUCTIONS
from gigabatch.models.optimizers.registry import OPTIMIZERS
from gigabatch.models.optimizers.schedule import SCHEDULES
from gigabatch.models.tabular.tabular import TabularModel, TabularSettings
from gigabatch.pipeline.config.config import ConfigError, TrainSettings, parse_config
from gigabatch.pipeline.training import train as module
from gigabatch.pipeline.training.defaults import settle
from gigabatch.pipeline.training.train import TrainingError, optimizer_of, table_loss, train_model
from tests.models.shelf_helpers import build as shelf_build
from tests.pipeline.read_only import unreadable

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


def make_model(kind: str = "binary", **changes) -> TabularModel:
    """Dropout everywhere."""
    outputs = sum(target.num_outputs for target in TASKS[kind])
    shape = {"layers": (16, 8), "dropout": 0.3, "embedding_dropout": 0.2} | changes
    return TabularModel(ModelInputs(NUM_IDS, 3, outputs), TabularSettings(**shape))


def run(
    folder: Path,
    settings: TrainSettings,
    kind: str = "binary",
    seed: int = 1,
    after_step=lambda step: None,
    model: TabularModel | None = None,
):
    """A fresh model and optimizer, trained in `folder`."""
    torch.manual_seed(seed)
    model = make_model(kind) if model is None else model
    tables = make_table(kind, ROWS, 10), make_table(kind, VALID_ROWS, 11)
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


def test_dropout_falls_to_0_over_the_second_half_of_the_steps(tmp_path):
    """Half a cosine from its rate at step 10 of 20; afterwards the model has the rates that it came with."""
    model, rates = make_model(), []
    drops = [module for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    settings = settings_of(dropout_schedule="flat_cosine")
    run(tmp_path, settings, model=model, after_step=lambda step: rates.append([module.p for module in drops]))
    shares = [1.0] * 10 + [(1 + math.cos(math.pi * step / 10)) / 2 for step in range(10)]
    assert [row[0] for row in rates] == pytest.approx([0.2 * share for share in shares])
    assert [row[1] for row in rates] == pytest.approx([0.3 * share for share in shares])
    assert [module.p for module in drops] == [0.2, 0.3, 0.3]
    with pytest.raises(TrainingError, match=r"train.dropout_schedule=flat_cosine: .* Set train.compile=off"):
        run(tmp_path / "compiled", settings_of(dropout_schedule="flat_cosine", compile="on"))


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
        settings_of(precision="bfloat16", accumulate_steps=3, ema_decay=0.9),
        settings_of(precision="float32", optimizer="adamw", max_grad_norm=0.1, ema_decay=0.5, select="last"),
        settings_of(dropout_schedule="flat_cosine"),
        settings_of(epochs=3, select_by="auc", patience=2),
        settings_of(epochs=9, lr_max=0.5, schedule="constant", patience=1),  # ends after epoch 2 or soon after
    ],
    ids=[
        "lamb",
        "lamb-last-polynomial",
        "adamw",
        "lamb-dense-constant",
        "bf16-pieces-average",
        "clipped-average",
        "falling-dropout",
        "by-auc",
        "patience",
    ],
)
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path, settings):
    whole = run(tmp_path / "whole", settings)
    # Before the first checkpoint (4), at it, at the end of an epoch (10), twice in the middle, at the last step.
    for steps in ((1,), (4,), (10,), (13, 17), (20,)) if settings == settings_of() else ((13, 17),):
        folder, hook = tmp_path / "-".join(map(str, steps)), crash_at(*steps)
        for step in steps:
            with pytest.raises(Crash, match=str(step)):
                run(folder, settings, after_step=hook)
            torch.rand(3)  # a process that starts anew has another random state
        resumed = run(folder, settings, after_step=hook)
        assert differing(weights(whole), weights(resumed)) == [], steps
        assert (folder / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes(), steps
        assert (resumed.best_epoch, resumed.steps, resumed.curve) == (whole.best_epoch, whole.steps, whole.curve)


def test_a_resumed_training_keeps_its_seconds_with_its_rows(tmp_path, monkeypatch):
    """H3. A step takes one second here; the first process is killed after step 13, whose last checkpoint is at 12."""
    clock = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    crash = crash_at(13, 18)

    def step(number: int) -> None:
        clock[0] += 1
        crash(number)

    for _ in range(2):
        with pytest.raises(Crash):
            run(tmp_path, settings_of(), after_step=step)
        clock[0] += 100  # between two processes
    trained = run(tmp_path, settings_of(), after_step=step)
    assert (trained.rows, trained.earlier_rows) == (20 * BATCH, 16 * BATCH)
    # A step's second ends after its checkpoint: 11 of the first twelve steps are kept, and 3 of the next four.
    assert trained.earlier_seconds == 11 + 3
    assert trained.curve[-1]["step"] * BATCH == trained.rows


def test_steps_before_the_checkpoint_are_not_run_again(tmp_path):
    with pytest.raises(Crash):
        run(tmp_path, settings_of(), after_step=crash_at(6))
    seen = []
    run(tmp_path, settings_of(), after_step=seen.append)
    assert seen == list(range(5, 21))


@pytest.mark.parametrize(("seconds", "saved"), [(1e9, [10]), (0.0, [10, 20, 30])])
def test_epochs_that_follow_each_other_quickly_are_not_each_saved(tmp_path, monkeypatch, seconds, saved):
    """Four epochs of ten steps, of which the last leaves none. It took a fifth of a small training."""
    steps, real = [], module.save_checkpoint
    monkeypatch.setattr(module, "SECONDS_BETWEEN", seconds)
    monkeypatch.setattr(module, "save_checkpoint", lambda *given: steps.append(given[2].step) or real(*given))
    run(tmp_path, settings_of(epochs=4, checkpoint_every_steps=1000))
    assert steps == saved


def test_a_damaged_checkpoint_is_named(tmp_path):
    with pytest.raises(Crash):
        run(tmp_path, settings_of(), after_step=crash_at(6))
    content = (tmp_path / "checkpoint.pt").read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"no checkpoint at all"):
        (tmp_path / "checkpoint.pt").write_bytes(damaged)
        with pytest.raises(TrainingError, match=r"checkpoint\.pt: damaged"):
            run(tmp_path, settings_of())


def test_a_checkpoint_that_this_user_may_not_read_is_not_called_damaged(tmp_path):
    """The message said to remove it, by which hours of training are lost."""
    with pytest.raises(Crash):
        run(tmp_path, settings_of(), after_step=crash_at(6))
    with (
        unreadable(tmp_path / "checkpoint.pt"),
        pytest.raises(PermissionError, match=r"checkpoint\.pt.*nobody can tell"),
    ):
        run(tmp_path, settings_of())
    seen = []
    run(tmp_path, settings_of(), after_step=seen.append)
    assert seen[0] == 5


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
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.pt", "checkpoint.pt.blake2b"}
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


@pytest.mark.parametrize(("kind", "optimizer"), [*((kind, "lamb") for kind in TASKS), ("two", "adamw")])
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


def test_a_training_leaves_nothing_behind_for_the_next_one(tmp_path, monkeypatch):
    """G7: of step, optimizer and gradients nothing is held when it ends, without waiting for Python's collector."""
    seen = []

    class Seen(module.TrainStep):
        def __init__(self, *given, **settings):
            super().__init__(*given, **settings)
            seen.extend(map(weakref.ref, (self, self.optimizer)))

    monkeypatch.setattr(module, "TrainStep", Seen)
    gc.disable()
    try:
        trained = run(tmp_path / "one", settings_of(optimizer="adamw"))
        assert len(seen) == 2
        assert [ref() for ref in seen] == [None, None]
        assert all(parameter.grad is None for parameter in trained.model.parameters())
        with pytest.raises(Crash):
            run(tmp_path / "two", settings_of(), after_step=crash_at(3))
    finally:
        gc.enable()


class Largest(TorchDispatchMode):
    """The most elements of a tensor that an operation has made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and "view" not in str(func) and not func.is_view:
            self.elements = max(self.elements, found.numel())
        return found


def labelled_table(rows, has_weight):
    """Of all kinds of targets, with weights of which a third are 0."""
    draw = torch.Generator().manual_seed(3)
    targets = (Target("label", "binary"), Target("value", "regression"), Target("kind", "multiclass", 3))
    schema = TensorSchema((IdColumn("a", 7), IdColumn("b", 11)), ("x", "y", "z"), targets, has_weight=has_weight)
    weight = torch.rand(rows, generator=draw)
    return PackedTable.from_columns(
        schema,
        [torch.randint(size, (rows,), generator=draw, dtype=torch.int32) for size in NUM_IDS],
        list(torch.randn(3, rows, generator=draw)),
        [
            torch.randint(2, (rows,), generator=draw).float(),
            1000 + 5 * torch.randn(rows, generator=draw),
            torch.randint(3, (rows,), generator=draw, dtype=torch.int32),
        ],
        torch.where(weight > 0.3, weight, 0.0) if has_weight else None,
    )


@pytest.mark.parametrize("block", [1, 37, 1000, 10_000])
@pytest.mark.parametrize("has_weight", [False, True])
def test_the_loss_by_blocks_is_that_of_the_whole_table(monkeypatch, block, has_weight):
    """Against the loss of all rows at once, in float64, and the outputs against one call of the model."""
    table = labelled_table(300 if block < 1000 else 2500, has_weight)
    model = TabularModel(ModelInputs(NUM_IDS, 3, 5), TabularSettings(layers=(8,)))
    model.scale_targets(module.target_scales(table))
    loss = TargetLoss([("binary", 1), ("regression", 1), ("multiclass", 3)])
    batch = table.unpack(table.words)
    with torch.no_grad():
        outputs = model.eval()(batch.ids, batch.floats)
    exact, scale = outputs.double(), model.target_scales[0]
    label, value, kind = (target.double() for target in batch.targets)
    rows = [
        functional.binary_cross_entropy_with_logits(exact[:, 0], label, reduction="none"),
        (exact[:, 1] - (value - scale.mean) / scale.std) ** 2,
        functional.cross_entropy(exact[:, 2:], kind.long(), reduction="none"),
    ]
    weight = torch.ones(len(table), dtype=torch.float64) if batch.weight is None else batch.weight.double()
    expected = sum(float((part * weight).sum() / weight.sum()) for part in rows)
    monkeypatch.setattr(module, "BLOCK_ROWS", block)
    model.train()
    assert table_loss(model, table, loss, "cpu") == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(
        module.table_outputs(model, table, "cpu"), model.in_target_units(outputs), rtol=1e-5, atol=1e-5
    )
    assert model.training


def test_no_tensor_of_a_whole_table_is_made_for_its_loss(monkeypatch):
    table = labelled_table(5000, has_weight=True)
    model = TabularModel(ModelInputs(NUM_IDS, 3, 5), TabularSettings(layers=(8,)))
    loss = TargetLoss([("binary", 1), ("regression", 1), ("multiclass", 3)])
    monkeypatch.setattr(module, "BLOCK_ROWS", 100)
    with Largest() as found:
        table_loss(model, table, loss, "cpu")
    widest = max(module_.weight.shape[1] for module_ in model.modules() if isinstance(module_, torch.nn.Linear))
    assert 0 < found.elements <= 100 * widest < len(table)


def test_the_loss_of_no_rows_is_not_a_number():
    model = TabularModel(ModelInputs(NUM_IDS, 3, 5), TabularSettings(layers=(8,)))
    loss = TargetLoss([("binary", 1), ("regression", 1), ("multiclass", 3)])
    empty = labelled_table(0, has_weight=False)
    assert math.isnan(table_loss(model, empty, loss, "cpu"))


def script_valid_losses(monkeypatch, losses):
    """The valid losses of a run's epochs: which of those that are measured is the lowest hangs on the processor."""
    left = iter(losses)
    monkeypatch.setattr(module, "table_loss", lambda *_: next(left))


def valid_losses(trained) -> list[float]:
    return [point["valid_loss"] for point in trained.curve if "valid_loss" in point]


def test_a_folder_that_is_not_there_is_made(tmp_path):
    run(tmp_path / "runs" / "first", settings_of(epochs=2))
    assert (tmp_path / "runs" / "first" / "metrics.jsonl").exists()


@pytest.mark.parametrize(("select", "epoch"), [("best", 2), ("last", 5)])
def test_best_keeps_the_epoch_with_the_lowest_valid_loss_and_last_the_last(tmp_path, monkeypatch, select, epoch):
    losses, model, after = [0.9, 0.5, 0.3, 0.4, 0.6, 0.35], make_model(), {}

    def keep(step: int) -> None:
        after[step] = {name: value.clone() for name, value in model.state_dict().items()}

    script_valid_losses(monkeypatch, losses)
    trained = run(tmp_path, settings_of(select=select, epochs=6), after_step=keep, model=model)
    assert valid_losses(trained) == losses
    assert trained.best_epoch == epoch
    assert differing(weights(trained), after[10 * (epoch + 1)]) == []
    assert differing(after[30], after[60]) != []


@pytest.mark.parametrize("changes", [{"lr_max": 1e30, "optimizer": "adamw"}, {"epochs": 1, "lr_max": 1e38}])
def test_a_diverging_run_says_so(tmp_path, changes):
    with pytest.raises(TrainingError, match=r"diverged in epoch 1.*not finite.*Lower train\.lr_max"):
        run(tmp_path, settings_of(**changes), "regression")


class Poisoned(TabularModel):
    """Gradients are not finite in the steps of `bad`, from 0."""

    def __init__(self, bad: set[int]) -> None:
        torch.manual_seed(0)
        super().__init__(ModelInputs(NUM_IDS, 3, 1), TabularSettings(layers=(8,)))
        self.bad, self.step = bad, -1

    def training_loss(self, batch, loss):
        self.step += 1
        return super().training_loss(batch, loss) * (math.inf if self.step in self.bad else 1)


def test_steps_without_a_finite_gradient_are_skipped_and_counted(tmp_path, caplog):
    """M13. Ten steps an epoch: 3 of the first, all but one of the second's first point."""
    trained = run(tmp_path, settings_of(), model=Poisoned({0, 3, 4, 15}))
    assert trained.skipped_steps == 4
    assert "epoch 1: 3 of 10 steps were skipped, because their loss or gradient was not finite" in caplog.text
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["skipped_steps"] for line in lines if "skipped_steps" in line] == [3, 1]
    # A point is one step here: it has the loss of that step, or none where the step was skipped.
    assert [line["step"] - 1 for line in lines if line["train_loss"] is None] == [0, 3, 4, 15]
    assert all(math.isfinite(line["train_loss"]) for line in lines if line["train_loss"] is not None)
    assert all(value.isfinite().all() for value in trained.model.state_dict().values())


@pytest.mark.parametrize(
    ("bad", "batch_size", "message"),
    [
        (range(30, 50), 16, None),
        (range(30, 51), 16, "21 steps in a row were skipped.*more than 20 end a training"),  # over two epochs of 40
        (range(5, 40), 16, "23 steps in a row"),  # found at a checkpoint
        (range(10), BATCH, "diverged in epoch 1: the train loss is not finite"),
    ],
)
def test_training_ends_after_too_many_skipped_steps_in_a_row(tmp_path, bad, batch_size, message):
    settings = settings_of(batch_size=batch_size)
    with nullcontext() if message is None else pytest.raises(TrainingError, match=rf"{message}.*Lower train\.lr_max"):
        run(tmp_path, settings, model=Poisoned(set(bad)))


def test_skipped_steps_are_counted_across_a_resumed_run(tmp_path):
    """15 in a row up to the checkpoint of step 44, 6 after it."""
    settings = settings_of(batch_size=16)
    with pytest.raises(Crash):
        run(tmp_path, settings, model=Poisoned(set(range(29, 60))), after_step=crash_at(45))
    with pytest.raises(TrainingError, match=r"2[1-4] steps in a row"):
        run(tmp_path, settings, model=Poisoned(set(range(6))))


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


READS = (Tensor.cpu, Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__repr__, Tensor.__format__,
         Tensor.to)  # fmt: skip


def reader() -> str:
    """The file of the pipeline that asks torch now, "" for another."""
    frame = sys._getframe(2)
    while "/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame.f_code.co_filename if "/pipeline/" in frame.f_code.co_filename else ""


class Reads(TorchFunctionMode):
    """Notes what the loop of the pipeline reads from tensors between its steps, as a GPU's host would wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.between, self.found = False, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self.between and func in READS and (where := reader()):
            self.found.append((func.__name__, where))
        return func(*args, **(kwargs or {}))


class Numbers(TorchDispatchMode):
    """The same of `bool`, `float` and `int` of a tensor, and of shapes that follow from values."""

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        waits = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)
        if self.reads.between and waits and (where := reader()):
            self.reads.found.append((str(func), where))
        return func(*args, **(kwargs or {}))


def reads_between_steps(monkeypatch, folder, after_step):
    """What a training of two epochs reads outside of its steps, ends of epochs and checkpoints."""
    reads = Reads()

    def apart(owner, name, then):
        before = getattr(owner, name)

        def work(*args, **kwargs):
            reads.between = False
            try:
                return before(*args, **kwargs)
            finally:
                reads.between = then

        monkeypatch.setattr(owner, name, work)

    apart(module.TrainStep, "__call__", True)
    for name in ("end_epoch", "save_checkpoint", "write_curve"):
        apart(module, name, False)
    with reads, Numbers(reads):
        run(folder, settings_of(checkpoint_every_steps=1000), after_step=after_step)
    return reads.found


def test_the_loop_reads_nothing_from_the_device_between_steps(tmp_path, monkeypatch):
    steps = []
    assert reads_between_steps(monkeypatch, tmp_path, steps.append) == []
    assert len(steps) == 20


@pytest.mark.parametrize("read", [
    "float(losses[0])", "losses.cpu()", "losses[0].item()", "f'{losses[0]}'", "losses.to('cpu')", "losses.tolist()",
    "bool(losses.isnan().any())", "losses.isnan().nonzero()",
])  # fmt: skip
def test_a_read_between_steps_is_found(tmp_path, monkeypatch, read):
    """As a line of train.py would do it."""
    losses = torch.zeros(3)
    line = compile(read, module.__file__, "eval")
    assert reads_between_steps(monkeypatch, tmp_path, lambda step: eval(line, {"losses": losses})) != []


def test_any_source_of_batches_trains_as_the_table_that_it_is_of(tmp_path):
    whole = run(tmp_path / "table", settings_of())
    source = BatchDataset(make_table("binary", ROWS, 10), BATCH, shuffle=True, seed=1, drop_last=True)
    torch.manual_seed(1)
    (tmp_path / "source").mkdir()
    trained = train_model(
        make_model(), source, make_table("binary", VALID_ROWS, 11), loss_of("binary"), settings_of(batch_size=2),
        seed=1, device="cpu", folder=tmp_path / "source",
    )  # fmt: skip
    assert differing(weights(whole), weights(trained)) == []
    assert trained.rows == whole.rows == 20 * BATCH


def test_bfloat16_learns_as_float32_does(tmp_path):
    curves = [run(tmp_path / p, settings_of(epochs=6, precision=p)).curve for p in ("float32", "bfloat16")]
    low, wanted = (curve[-1]["valid_loss"] for curve in reversed(curves))
    assert curves[0] != curves[1]  # the setting reaches the model
    assert low == pytest.approx(wanted, rel=0.03)


def half_run(folder, precision, kind="deepfm", **settings):
    """DeepFM, whose products are not folded, or the tabular model, whose are."""
    torch.manual_seed(1)
    model = shelf_build(kind, ModelInputs(NUM_IDS, 3, 1), layers=(16, 8), dropout=0.0)
    hook = settings.pop("after_step", lambda step: None)
    model.register_forward_hook(settings.pop("on_forward", lambda *_: None))
    return run(folder, settings_of(precision=precision, **settings), model=model, after_step=hook)


@pytest.mark.parametrize("kind", ["deepfm", "tabular"])
@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_float16_learns_as_float32_does(tmp_path, optimizer, kind):
    """Within 3 % of the valid loss after six epochs."""
    settings = {"epochs": 6, "optimizer": optimizer, "kind": kind}
    wanted, low = (half_run(tmp_path / p, p, **settings).curve for p in ("float32", "float16"))
    assert wanted != low
    assert wanted[-1]["valid_loss"] < 0.8 * wanted[0]["train_loss"]
    assert low[-1]["valid_loss"] == pytest.approx(wanted[-1]["valid_loss"], rel=0.05)


def test_a_scale_that_is_still_being_found_ends_no_training(tmp_path, monkeypatch, caplog):
    """The first 30 steps and more overflow, which would be a diverged run otherwise: three epochs without a step."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(loss_scale, "START", 2.0**60)
    trained = half_run(tmp_path, "float16", epochs=8)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    overflowed = [line["overflowed_steps"] for line in lines if "overflowed_steps" in line]
    assert overflowed[:3] == [10, 10, 10]
    assert 30 < sum(overflowed) < 60
    assert trained.skipped_steps == 0
    told = {r.levelname for r in caplog.records if "10 of 10 steps lowered the scale of the float16" in r.getMessage()}
    assert told == {"WARNING"}
    assert trained.curve[-1]["valid_loss"] < trained.curve[9]["valid_loss"]


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("kind", ["deepfm", "tabular"])
def test_a_training_none_of_whose_steps_changed_the_model_is_an_error(tmp_path, monkeypatch, kind, interrupted):
    """20 steps halve a scale of 2^100 to one that still overflows; the model is the one that it began with."""
    monkeypatch.setattr(loss_scale, "START", 2.0**100)
    if interrupted:
        with pytest.raises(Crash):
            half_run(tmp_path, "float16", kind, epochs=2, after_step=crash_at(13))
    with pytest.raises(
        TrainingError, match=r"changed nothing: the gradients of all of its 20 steps.*precision=float32"
    ):
        half_run(tmp_path, "float16", kind, epochs=2)


def test_a_training_whose_steps_overflow_or_are_skipped_by_turns_is_an_error(tmp_path, monkeypatch):
    """Neither kind alone is more than 20 in a row, and no epoch is without one of the other."""
    monkeypatch.setattr(loss_scale, "START", 2.0**100)
    model = Poisoned(set(range(0, 20, 2)))
    with pytest.raises(TrainingError, match="changed nothing"):
        run(tmp_path, settings_of(precision="float16", epochs=2), model=model)


@pytest.mark.parametrize("kind", ["deepfm", "tabular"])
def test_a_float16_run_that_was_stopped_goes_on_bit_for_bit(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(loss_scale, "START", 2.0**40)  # found while the run is stopped
    whole = half_run(tmp_path / "whole", "float16", kind, epochs=4)
    hook = crash_at(6, 22)
    for _ in range(2):
        with pytest.raises(Crash):
            half_run(tmp_path / "parts", "float16", kind, epochs=4, after_step=hook)
    resumed = half_run(tmp_path / "parts", "float16", kind, epochs=4, after_step=hook)
    assert differing(weights(whole), weights(resumed)) == []
    assert resumed.curve == whole.curve
    assert any("overflowed_steps" in line for line in whole.curve)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_sums_over_a_batch_are_not_rounded_on_the_way_while_training(tmp_path, precision):
    """G8. What was set before the training is set again after it, also after one that failed."""
    settings = torch.backends.cuda.matmul
    found = []

    def watch(model, *_):
        if model.training:
            found.append([getattr(settings, name) for name in REDUCTIONS])

    before = [getattr(settings, name) for name in REDUCTIONS]
    assert all(before)
    half_run(tmp_path / "one", precision, on_forward=watch)
    assert [getattr(settings, name) for name in REDUCTIONS] == before
    with pytest.raises(Crash):
        half_run(tmp_path / "two", precision, after_step=crash_at(3))
    assert [getattr(settings, name) for name in REDUCTIONS] == before
    assert found
    assert not any(map(any, found))


def test_pieces_train_as_whole_batches_where_nothing_looks_at_a_whole_batch(tmp_path):
    """Without batch norm and dropout, to what float32 sums differ by."""
    plain = {"batch_norm": False, "batch_norm_floats": False, "dropout": 0.0, "embedding_dropout": 0.0}
    curves = []
    for count in (1, 5):
        torch.manual_seed(1)
        settings = settings_of(epochs=1, precision="float32", accumulate_steps=count)
        curves.append(run(tmp_path / str(count), settings, model=make_model(**plain)).curve)
    assert curves[0] != curves[1]  # the setting reaches the step
    for whole, pieces in zip(*curves, strict=True):
        assert pieces["train_loss"] == pytest.approx(whole["train_loss"], rel=1e-4)
    assert curves[0][-1]["valid_loss"] == pytest.approx(curves[1][-1]["valid_loss"], rel=1e-4)


def test_pieces_of_a_table_smaller_than_the_batch_are_checked_too(tmp_path):
    with pytest.raises(TrainingError, match=r"train\.accumulate_steps: 400 pieces of a batch of 640 rows"):
        run(tmp_path, settings_of(batch_size=1000, accumulate_steps=400))


def test_the_average_of_the_weights_is_what_is_measured_and_returned(tmp_path):
    """Against the recurrence over the weights after every step, in NumPy."""
    torch.manual_seed(1)
    model = make_model()
    averages = {name: value.double().numpy() for name, value in model.state_dict().items()}

    def follow(step: int) -> None:
        kept = min(0.8, step / (step + 9))  # (1 + t) / (10 + t) of t updates before this one
        for name, value in model.state_dict().items():
            averages[name] = kept * averages[name] + (1 - kept) * value.double().numpy()

    settings = settings_of(epochs=1, ema_decay=0.8, select="last")
    trained = run(tmp_path, settings, after_step=follow, model=model)
    found = weights(trained)
    assert found.pop("float_norm.num_batches_tracked") == 10
    for name, value in found.items():
        if not name.endswith("num_batches_tracked"):
            np.testing.assert_allclose(value.numpy(), averages[name], rtol=1e-3, atol=1e-5)
    table = make_table("binary", VALID_ROWS, 11)
    assert table_loss(trained.model, table, loss_of("binary"), "cpu") == trained.curve[-1]["valid_loss"]


@pytest.mark.parametrize(
    ("patience", "epochs", "select", "best"), [(1, 3, "best", 1), (2, 6, "last", 5), (3, 10, "best", 6)]
)
def test_training_stops_when_the_valid_loss_has_not_improved_for_so_many_epochs(
    tmp_path, monkeypatch, caplog, patience, epochs, select, best
):
    caplog.set_level(logging.INFO)
    losses = [0.9, 0.5, 0.6, 0.4, 0.45, 0.42, 0.3, 0.31, 0.32, 0.3, 0.2, 0.1]
    changes = {"epochs": 12, "schedule": "constant"}
    script_valid_losses(monkeypatch, losses)
    whole = run(tmp_path / "whole", settings_of(**changes))
    assert valid_losses(whole) == losses
    script_valid_losses(monkeypatch, losses)
    stopped = run(tmp_path / "stopped", settings_of(patience=patience, select=select, **changes))
    assert stopped.curve == whole.curve[: epochs * 10]
    assert (stopped.steps, stopped.rows) == (epochs * 10, epochs * 10 * BATCH)
    assert stopped.best_epoch == best
    script_valid_losses(monkeypatch, losses[epochs - 1 :])  # there is no checkpoint of the last epoch
    again = run(tmp_path / "stopped", settings_of(patience=patience, select=select, **changes))
    assert again.steps == stopped.steps  # a run that was stopped does not go on
    assert f"stopped after epoch {epochs} of 12" in caplog.text
    assert "the weights are those after epoch 12 of 12" not in caplog.text


@pytest.mark.parametrize(("losses", "kept"), [([0.9, 0.5, 0.6], 2), ([0.9, 0.6, 0.5], None)])
def test_weights_of_an_earlier_epoch_than_the_last_are_told_of(tmp_path, monkeypatch, caplog, losses, kept):
    caplog.set_level(logging.INFO)
    script_valid_losses(monkeypatch, losses)
    run(tmp_path, settings_of(epochs=3, schedule="constant"))
    assert ("the weights are those after epoch 2 of 3, of the best valid loss" in caplog.text) == (kept == 2)


@pytest.mark.parametrize(
    ("optimizer", "norm", "own", "left"),
    [
        ("lamb", "auto", 1.0, None),
        ("lamb", 0.5, 0.5, None),
        ("lamb", None, None, None),
        ("adamw", "auto", None, None),
        ("adamw", 0.5, None, 0.5),
        ("adamw", None, None, None),
    ],
)
def test_the_gradients_are_clipped_in_one_place(optimizer, norm, own, left):
    """LAMB clips by itself, to 1 by default; for others the step does, by default not at all."""
    made, found = optimizer_of(make_model(), settings_of(optimizer=optimizer, max_grad_norm=norm))
    assert found == left
    parts = getattr(made, "optimizers", [made])
    assert [part.max_grad_norm for part in parts if isinstance(part, Lamb)] == ([own] if optimizer == "lamb" else [])


def test_the_bound_of_the_norm_reaches_the_step(tmp_path):
    changes = {"optimizer": "adamw", "epochs": 1, "precision": "float32"}
    free, bound = (run(tmp_path / str(norm), settings_of(max_grad_norm=norm, **changes)).curve for norm in (None, 1e-7))
    # So far down that eps takes over: hardly anything is learned.
    assert free[-1]["train_loss"] < bound[-1]["train_loss"] - 0.01


def test_an_optimizer_without_weight_decay_says_that_the_setting_has_no_effect(caplog):
    caplog.set_level(logging.INFO)
    optimizer_of(make_model(), settings_of(optimizer="cowclip"))
    assert "cowclip has no weight decay: train.weight_decay=0.01 has no effect" in caplog.text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, True),
        ({"weight_decay": 0.0}, False),
        ({"optimizer_settings": {"table_weight_decay": 0.1}}, False),
        ({"optimizer_settings": {"rowwise_method": "lamb"}}, False),
        ({"optimizer_settings": {"rowwise": False}}, False),
        ({"optimizer": "adamw", "optimizer_settings": {"rowwise": True}}, False),
    ],
)
def test_tables_that_do_not_decay_are_named_in_the_log(changes, says, caplog):
    caplog.set_level(logging.INFO)
    optimizer_of(make_model(), settings_of(**{"weight_decay": 0.01} | changes))
    line = "train.weight_decay=0.01 does not reach the embedding tables, whose rows move by Adagrad without decay"
    assert (line in caplog.text) == says


@pytest.mark.parametrize("settings", [settings_of(), settle(TrainSettings(), 1000, ())])
def test_a_decay_that_no_one_set_is_not_told_of(settings, caplog):
    caplog.set_level(logging.INFO)
    optimizer_of(make_model(), settings)
    assert "weight_decay" not in caplog.text


def test_every_optimizer_can_be_chosen():
    assert set(get_args(TrainSettings.model_fields["optimizer"].annotation)) == set(OPTIMIZERS)
    assert set(get_args(TrainSettings.model_fields["schedule"].annotation)) == set(SCHEDULES)
    assert set(get_args(TrainSettings.model_fields["precision"].annotation)) == set(PRECISIONS)


def test_a_cuda_graph_on_a_cpu_is_refused_before_any_step(tmp_path):
    with pytest.raises(
        TrainingError, match=r"train\.cuda_graph=on: it needs a CUDA device and this run is on cpu.*auto"
    ):
        run(tmp_path, settings_of(cuda_graph="on"), after_step=lambda step: pytest.fail("a step was made"))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            {"schedule_settings": {"warmup": 3}},
            "schedule_settings: unknown setting of one_cycle 'warmup'. Known: pct_start, div, div_final, moms",
        ),
        (
            {"optimizer": "adamw", "optimizer_settings": {"momentum": 0.9}},
            "optimizer_settings: unknown setting of adamw 'momentum'. Known: ",
        ),
        ({"optimizer_settings": {"trust_clip": -1}}, "optimizer_settings: trust_clip must be positive"),
        ({"optimizer_settings": {"betas": 3}}, "optimizer_settings: "),
        ({"optimizer_settings": {"lr": 3}}, "optimizer_settings: lr is a setting of its own, train.lr_max"),
        (
            {"optimizer_settings": {"max_grad_norm": 3}},
            "optimizer_settings: max_grad_norm is a setting of its own, train.max_grad_norm",
        ),
        ({"schedule_settings": {"moms": [0.9, 0.8]}}, "schedule_settings: moms must be momentum at the start"),
        ({"schedule_settings": {"pct_start": "x"}}, "schedule_settings: "),
        ({"max_grad_norm": 0}, "train.max_grad_norm: must be positive, auto, or null"),
        ({"ema_decay": 1.0}, "train.ema_decay: must be between 0 and 1, auto, or null"),
        ({"patience": 0}, "train.patience: Input should be greater than or equal to 1"),
        ({"precision": "half"}, "train.precision: Input should be 'auto', 'float32', 'bfloat16' or 'float16'"),
        ({"residency": "gpu"}, "train.residency: Input should be 'auto', 'device', 'host' or 'stream'"),
        ({"batch_size": 64, "accumulate_steps": 33}, "33 pieces of a batch of 64 rows have fewer than 2 rows"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_any_work(train, message):
    with pytest.raises(ConfigError) as error:
        parse_config({"name": "a", "recipe": "flights", "train": train})
    assert message in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [
        settings_of(),
        settings_of(cuda_graph="off"),
        settings_of(precision="float16"),
        settings_of(accumulate_steps=2, ema_decay=0.9),
        settings_of(optimizer="adamw", schedule="warmup_polynomial", max_grad_norm=0.5, precision="float32"),
    ],
    ids=["graph", "eager", "float16", "pieces-average", "adamw"],
)
@pytest.mark.parametrize("residency", ["device", "host"])
def test_a_run_on_any_device_resumes_bit_for_bit(tmp_path, settings, residency, any_device):
    """From rows that lie there, and from the host's, which the loader's thread copies beside the capture."""
    train, valid = make_table("binary", ROWS, 10), make_table("binary", VALID_ROWS, 11)
    tables = (train.to(any_device), valid.to(any_device)) if residency == "device" else (train, valid)

    def go(folder, hook=lambda step: None):
        torch.manual_seed(1)
        folder.mkdir(exist_ok=True)
        return train_model(
            make_model(),
            *tables,
            loss_of("binary"),
            settings,
            seed=1,
            device=any_device,
            folder=folder,
            after_step=hook,
        )

    whole, hook = go(tmp_path / "whole"), crash_at(6, 13)
    for _ in range(2):
        with pytest.raises(Crash):
            go(tmp_path / "parts", hook)
    # Steps of a graph and others may differ by rounding, and a run that goes on begins with others.
    torch.testing.assert_close(weights(whole), weights(go(tmp_path / "parts")), rtol=1e-2, atol=1e-3)
