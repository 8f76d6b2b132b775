"""The training loop: one function, read from top to bottom.

Nothing inside a step waits for the device: losses are gathered in a tensor and read once an epoch. Order, schedule
and weights are functions of (seed, step), and a checkpoint also holds the random state of dropout, so a run that was
killed goes on bit for bit as if it had not been.
"""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from loaders.dataset import BatchDataset
from loaders.loader import BatchLoader
from loaders.packed import PackedTable
from models import Constant, OneCycle, TargetLoss, WarmupPolynomial, build_optimizer, set_lr_and_momentum
from models.schedule import Schedule
from pipeline.artifacts import atomic_write
from pipeline.bundle import model_outputs
from pipeline.config import TrainSettings
from pipeline.display import progress

log = logging.getLogger(__name__)
CURVE_POINTS_PER_EPOCH = 10


class TrainingError(ValueError):
    """Training cannot start or has diverged; the message says which setting to change."""


@dataclass
class Trained:
    """The model with the selected weights, and the learning curve: dicts of step, epoch, train_loss, valid_loss, lr."""

    model: nn.Module
    curve: list[dict[str, Any]]
    best_epoch: int
    steps: int


@dataclass
class Progress:
    """All that changes while training; what a checkpoint holds beside the model and the optimizer."""

    step: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)
    best_loss: float = float("inf")
    best_epoch: int = -1
    best_weights: dict[str, Tensor] = field(default_factory=dict)


def train_model(
    model: nn.Module,
    train_table: PackedTable,
    valid_table: PackedTable,
    loss: TargetLoss,
    settings: TrainSettings,
    *,
    seed: int,
    device: str,
    folder: Path,
    after_step: Callable[[int], None] = lambda step: None,
) -> Trained:
    """Train `model` (in place) and return it with the weights that `settings.select` asks for.

    folder: where checkpoints and metrics.jsonl go; if it holds a checkpoint of the same run, training goes on there.
    after_step: called with the number of steps done, for tests and hooks.
    """
    batch_size = min(settings.batch_size, len(train_table))
    if batch_size < settings.batch_size:
        log.warning("batch_size %s is larger than the train split; using its %s rows", settings.batch_size, batch_size)
    dataset = BatchDataset(train_table, batch_size, shuffle=True, seed=seed, drop_last=True)
    loader = BatchLoader(dataset, device=device)
    steps_per_epoch = len(dataset)
    schedule = build_schedule(settings, steps_per_epoch * settings.epochs)
    model.to(device)
    optimizer = build_optimizer(
        model,
        settings.optimizer,
        lr=settings.lr_max,
        weight_decay=settings.weight_decay,
        **settings.optimizer_settings,
    )
    losses = torch.zeros(steps_per_epoch, device=device)
    state = Progress()
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        state = load_checkpoint(checkpoint, model, optimizer, loader, losses)
        log.info("training goes on at step %s of %s", f"{state.step:,}", f"{schedule.num_steps:,}")

    with progress(schedule.num_steps * batch_size, "train") as bar:
        bar.advance(state.step * batch_size)
        while state.step < schedule.num_steps:
            model.train()
            for batch in loader:
                lr, momentum = schedule.at(state.step)
                set_lr_and_momentum(optimizer, lr, momentum)
                optimizer.zero_grad(set_to_none=True)
                batch_loss = loss(model(batch.ids, batch.floats), batch.targets, batch.weight)
                batch_loss.backward()
                optimizer.step()
                losses[state.step % steps_per_epoch] = batch_loss.detach()
                state.step += 1
                bar.advance(batch_size)
                if state.step % settings.checkpoint_every_steps == 0 and state.step % steps_per_epoch:
                    save_checkpoint(checkpoint, model, optimizer, loader, losses, state)
                after_step(state.step)
            end_epoch(model, valid_table, loss, schedule, losses, state, device)
            bar.advance(0, f"valid loss {state.curve[-1]['valid_loss']:.5f}")
            # Before the checkpoint, so that a run killed between the two does not skip the last lines.
            write_curve(folder / "metrics.jsonl", state.curve)
            save_checkpoint(checkpoint, model, optimizer, loader, losses, state)

    if settings.select == "best":
        model.load_state_dict(state.best_weights)
    best = state.best_epoch if settings.select == "best" else settings.epochs - 1
    return Trained(model, state.curve, best, state.step)


def build_schedule(settings: TrainSettings, num_steps: int) -> Schedule:
    """The schedule of that name over `num_steps`; an argument that it does not take is an error."""
    kinds: dict[str, Any] = {"one_cycle": OneCycle, "warmup_polynomial": WarmupPolynomial, "constant": Constant}
    kind = kinds[settings.schedule]
    known = [name for name in kind.__dataclass_fields__ if name not in ("lr", "lr_max", "num_steps")]
    unknown = [name for name in settings.schedule_settings if name not in known]
    if unknown:
        raise TrainingError(
            f"train.schedule_settings: {settings.schedule} has no {unknown}. Known: {', '.join(known)}."
        )
    return kind(settings.lr_max, num_steps, **settings.schedule_settings)


def end_epoch(
    model: nn.Module,
    valid_table: PackedTable,
    loss: TargetLoss,
    schedule: Schedule,
    losses: Tensor,
    state: Progress,
    device: str,
) -> None:
    """Read the epoch's losses, measure the valid split, remember the best weights."""
    per_epoch = len(losses)
    epoch = state.step // per_epoch
    host = losses.cpu()
    valid_loss = table_loss(model, valid_table, loss, device)
    for split, finite in (("train", bool(host.isfinite().all())), ("valid", math.isfinite(valid_loss))):
        if not finite:
            raise TrainingError(
                f"training diverged in epoch {epoch}: the {split} loss is not finite. Lower train.lr_max or use a "
                "longer warm-up."
            )
    points = torch.linspace(0, per_epoch, min(CURVE_POINTS_PER_EPOCH, per_epoch) + 1).round().long().tolist()
    for start, stop in pairwise(points):
        step = (epoch - 1) * per_epoch + stop
        state.curve.append(
            {
                "step": step,
                "epoch": step / per_epoch,
                "train_loss": float(host[start:stop].double().mean()),
                "lr": schedule.at(step - 1)[0],
            }
        )
    state.curve[-1]["valid_loss"] = valid_loss
    if valid_loss < state.best_loss:
        state.best_loss, state.best_epoch = valid_loss, epoch - 1
        state.best_weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def table_outputs(model: Any, table: PackedTable, device: str) -> Tensor:
    """Outputs [N, O] float32 of every row, on `device`."""
    batch = table.unpack(table.words)
    ids, floats = batch.ids.to(device), batch.floats.to(device)
    return torch.cat(list(model_outputs(model, ids, floats)))


def table_loss(model: nn.Module, table: PackedTable, loss: TargetLoss, device: str) -> float:
    """The loss over a whole table, in evaluation mode."""
    batch = table.unpack(table.words).to(device)
    return float(loss(table_outputs(model, table, device), batch.targets, batch.weight))


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: Any, loader: BatchLoader, losses: Tensor, state: Progress
) -> None:
    """Write the whole state under a temporary name and rename it, so that a crash leaves the checkpoint before."""
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
        "losses": losses,
        "progress": vars(state),
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    temporary = path.with_suffix(".tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(path: Path, model: nn.Module, optimizer: Any, loader: BatchLoader, losses: Tensor) -> Progress:
    """Put everything back where it was; torch reads it without executing anything (`weights_only`)."""
    try:
        content = torch.load(path, map_location=losses.device, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise TrainingError(f"checkpoint {path}: damaged ({error}). Remove it to train from the start.") from error
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    loader.load_state_dict(content["loader"])
    losses.copy_(content["losses"])
    torch.set_rng_state(content["random"].cpu())
    if content["random_cuda"]:
        torch.cuda.set_rng_state_all([state.cpu() for state in content["random_cuda"]])
    return Progress(**content["progress"])


def write_curve(path: Path, curve: list[dict[str, Any]]) -> None:
    """metrics.jsonl: one JSON object a line. Written whole each time, so a resumed run has no line twice."""
    atomic_write(path, "".join(json.dumps(row) + "\n" for row in curve).encode())
