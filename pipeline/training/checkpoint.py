"""Checkpoints of a training run: everything that the next step depends on, so that a resumed run is bit-equal."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gigabatch.loaders.batches.loader import BatchLoader
from gigabatch.models.optimizers.ema import WeightAverage
from gigabatch.models.optimizers.precision import Precision
from gigabatch.pipeline.store.files import replacing


class TrainingError(ValueError):
    """Training cannot start or has diverged; the message says which setting to change."""


@dataclass
class Progress:
    """What changes while training beside weights, optimizer and loader. Epochs and steps are numbers of those done.

    skipped_steps: whose gradient was not finite, in the epochs that are done; skipped_in_a_row: those at their end.
    """

    step: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)
    best_loss: float = float("inf")
    best_epoch: int = -1  # from 0
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    skipped_steps: int = 0
    skipped_in_a_row: int = 0

    def has_stalled(self, steps_per_epoch: int, patience: int | None) -> bool:
        """Whether the last `patience` epochs all went by without a lower valid loss."""
        return patience is not None and self.step // steps_per_epoch - 1 - self.best_epoch >= patience


@dataclass
class TrainingState:
    """All parts of a run that a checkpoint puts back; losses: those of the current epoch's steps, on the device."""

    model: nn.Module
    optimizer: Any
    loader: BatchLoader
    losses: Tensor
    precision: Precision
    average: WeightAverage | None = None


def save_checkpoint(path: Path, state: TrainingState, progress: Progress) -> None:
    """Write the whole state under a temporary name and rename it, so that a crash leaves the checkpoint before."""
    content = {
        "model": state.model.state_dict(),
        "average": None if state.average is None else state.average.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "loader": state.loader.state_dict(),
        "losses": state.losses,
        "precision": state.precision.name,
        "progress": vars(progress),
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    with replacing(path) as temporary, open(temporary, "wb") as file:
        torch.save(content, file)


def load_checkpoint(path: Path, state: TrainingState) -> Progress:
    """Put everything back where it was; torch reads it without executing anything (`weights_only`).

    Raises:
        TrainingError: for a damaged file, and for one of another precision (`auto` on another machine) or with other
            settings of the average, whose remaining steps would not be the same.
    """
    try:
        content = torch.load(path, map_location=state.losses.device, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise TrainingError(f"checkpoint {path}: damaged ({error}). Remove it to train from the start.") from error
    if content["precision"] != state.precision.name:
        raise TrainingError(
            f"checkpoint {path}: its steps ran in {content['precision']} and this run would go on in "
            f"{state.precision.name}. Set train.precision={content['precision']}, or remove it to train from the start."
        )
    if (content["average"] is None) != (state.average is None):
        raise TrainingError(
            f"checkpoint {path}: saved {'without' if content['average'] is None else 'with'} train.ema_decay. Resume "
            "with the saved setting, or remove it to train from the start."
        )
    state.model.load_state_dict(content["model"])
    if state.average is not None:
        state.average.load_state_dict(content["average"])
    state.optimizer.load_state_dict(content["optimizer"])
    state.loader.load_state_dict(content["loader"])
    state.losses.copy_(content["losses"])
    torch.set_rng_state(content["random"].cpu())
    if content["random_cuda"]:
        torch.cuda.set_rng_state_all([part.cpu() for part in content["random_cuda"]])
    return Progress(**content["progress"])
