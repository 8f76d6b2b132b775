"""Checkpoints of a training run: everything that the next step depends on, so that a resumed run is bit-equal."""

from __future__ import annotations

import hashlib
import logging
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import torch
from torch import Tensor, nn

from gigabatch.features.errors import raise_of_system
from gigabatch.loaders.batches.loader import BatchLoader
from gigabatch.models.optimizers.ema import WeightAverage
from gigabatch.models.optimizers.loss_scale import LossScale
from gigabatch.models.optimizers.precision import Precision
from gigabatch.models.parallel.dct import SparseGradients
from gigabatch.models.parallel.gradient_sums import GradientSums
from gigabatch.models.parallel.ranks import Ranks
from gigabatch.models.parallel.spread_tables import SpreadTables
from gigabatch.pipeline.store.files import atomic_write, replacing
from gigabatch.pipeline.store.keys import BLAKE2B, file_checksum
from gigabatch.pipeline.training.errors import TrainingError

log = logging.getLogger(__name__)
T = TypeVar("T")
SECONDS_BETWEEN = 2.0  # checkpoints of epochs, which else take longer to save than a short epoch to train
MALFORMED = (
    OSError, RuntimeError, EOFError, pickle.UnpicklingError, LookupError, TypeError, AttributeError, ValueError
)  # fmt: skip


@dataclass
class Progress:
    """What changes while training beside weights, optimizer and loader. Epochs and steps are numbers of those done.

    best_score: the least of an epoch: its valid loss, or its metric (`train.select_by`), negative where more is better.
    best_moments: the optimizer's state at the best weights, as `read_moments` gives it; best_updates: of the average.
    skipped_steps: whose gradient was not finite, in the epochs that are done; skipped_in_a_row: those at their end.
    overflowed_steps: that changed nothing but the scale of a float16 loss, in the epochs that are done.
    seconds: that these steps took, in all processes; those that a killed one did not save are lost, as its steps are.
    """

    step: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)
    best_score: float = float("inf")
    best_epoch: int = -1  # from 0
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    best_moments: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    best_updates: int = 0
    skipped_steps: int = 0
    overflowed_steps: int = 0
    skipped_in_a_row: int = 0
    seconds: float = 0.0

    def has_stalled(self, steps_per_epoch: int, patience: int | None) -> bool:
        """Whether none of the last `patience` epochs was better than those before."""
        return patience is not None and self.step // steps_per_epoch - 1 - self.best_epoch >= patience


@dataclass
class TrainingState:
    """All parts of a run that a checkpoint puts back; losses: those of the current epoch's steps, on the device.

    run: what names the run; its checkpoint in the folder of another is refused.
    """

    model: nn.Module
    optimizer: Any
    loader: BatchLoader
    losses: Tensor
    precision: Precision
    average: WeightAverage | None = None
    loss_scale: LossScale | None = None
    tables: SpreadTables | None = None
    ranks: Ranks | None = None
    sums: GradientSums | None = None
    run: str = ""


class _Digesting:
    """A file that is only written to, and the checksum of what was."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest = file, hashlib.blake2b(digest_size=16)

    def write(self, part: Any) -> int:
        self.digest.update(part)
        return self.file.write(part)

    def flush(self) -> None:
        self.file.flush()


def save_checkpoint(path: Path, state: TrainingState, progress: Progress) -> None:
    """Write the whole state under a temporary name and rename it, so that a crash leaves the checkpoint before.

    Its checksum goes into a file beside it (`checksum_file`) before the rename, together with that of the checkpoint
    which it replaces, so that whichever of the two a crash leaves is known.

    All ranks call it, and the first writes: what it writes does not say how many there are, but for what DCT has not
    sent yet.
    """
    content = {
        **_whole(state, progress),
        "loss_scale": None if state.loss_scale is None else state.loss_scale.state_dict(),
        "loader": state.loader.state_dict(),
        "losses": state.losses,
        "gradients": {} if state.sums is None else state.sums.state_dict(),
        "precision": state.precision.name,
        "threads": torch.get_num_threads(),
        "run": state.run,
        **random_states(state.losses.device),
    }
    if state.ranks is not None and not state.ranks.is_first:
        return
    write_checked(path, content)


def write_checked(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors and plain values, and their checksum beside them, as `save_checkpoint` says."""
    known = checksum_file(path)
    before = known.read_text().split() if known.exists() else []
    with replacing(path) as temporary:
        with open(temporary, "wb") as file:
            written = _Digesting(file)
            torch.save(content, cast(IO[bytes], written))
        checksum = written.digest.hexdigest()
        atomic_write(known, "\n".join([*before, checksum]).encode())
    atomic_write(known, checksum.encode())


def _whole(state: TrainingState, progress: Progress) -> dict[str, Any]:
    """What holds weights and moments, of whole tables."""
    tables, told = state.tables, vars(progress)
    model, average = state.model.state_dict(), None if state.average is None else state.average.state_dict()
    if tables is None:
        return {"model": model, "average": average, "optimizer": state.optimizer.state_dict(), "progress": told}
    if average is not None:
        average["model"] = tables.gather_weights(average["model"])
    best = {
        "best_weights": tables.gather_weights(progress.best_weights),
        "best_moments": tables.gather_moments(progress.best_moments),
    }
    optimizer = tables.gather_optimizer(state.optimizer)
    return {"model": tables.gather_weights(model), "average": average, "optimizer": optimizer, "progress": told | best}


def _take_own(content: dict[str, Any], state: TrainingState) -> None:
    """Keep of whole tables the rows of this rank."""
    tables, told, device = state.tables, content["progress"], state.losses.device
    assert tables is not None
    content["model"] = tables.own_weights(content["model"])
    if content["average"] is not None:
        content["average"]["model"] = tables.own_weights(content["average"]["model"])
    content["optimizer"] = tables.own_optimizer(state.optimizer, content["optimizer"])
    best = tables.own_weights(told["best_weights"])
    told["best_weights"] = {name: tensor.to(device) for name, tensor in best.items()}
    told["best_moments"] = tables.own_moments(told["best_moments"])


def random_states(device: torch.device) -> dict[str, Tensor | None]:
    """Of torch's generators of the host and of the device that trains: of several ranks', each has another GPU, and all
    draw the same numbers."""
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"random": torch.get_rng_state(), "random_cuda": on_gpu}


def put_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    """What `random_states` gave, on this process's device."""
    torch.set_rng_state(states["random"].cpu())
    if states["random_cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["random_cuda"].cpu(), device)


def _on_device(state: dict[str, dict[str, Any]], device: torch.device) -> dict[str, dict[str, Any]]:
    return {
        name: {key: value.to(device) if isinstance(value, Tensor) else value for key, value in one.items()}
        for name, one in state.items()
    }


def checksum_file(path: Path) -> Path:
    """Beside a checkpoint: its checksum (blake2b, 16 bytes); while it is replaced, those of both, a line each."""
    return path.with_name(f"{path.name}.blake2b")


def load_checkpoint(path: Path, state: TrainingState) -> Progress:
    """Put everything back where it was; torch reads it without executing anything (`weights_only`).

    Raises:
        TrainingError: for a damaged file, one without its checksum, of another run or content, and for one of another
            precision (`auto` on another machine) or with other settings of the average, whose remaining steps would not
            be the same.
    """
    spread = state.tables is not None  # of whole tables a rank reads its own rows
    where = torch.device("cpu") if spread else state.losses.device
    return read_checked(path, where, spread, lambda content: _put_back(path, content, state))


def read_checked(path: Path, device: torch.device, mmap: bool, use: Callable[[Any], T]) -> T:
    """What `use` makes of what `write_checked` wrote, on `device`; mmap: of a file's pages, as far as they are used.

    Raises:
        TrainingError: for a damaged file, one without its checksum, and one whose content `use` cannot take.
    """
    try:
        known = checksum_file(path).read_text().split()
        if file_checksum(path, BLAKE2B) not in known:  # torch reads a file with flipped bits without a word
            raise TrainingError(
                f"checkpoint {path}: damaged (its checksum is not the one in {checksum_file(path).name}). Remove it to "
                "train from the start."
            )
        return use(torch.load(path, map_location=device, weights_only=True, mmap=mmap))
    except (TrainingError, torch.OutOfMemoryError):
        raise
    except MALFORMED as error:
        raise_of_system(error, f"checkpoint {path}")
        text = " ".join(str(error).split())[:300]
        raise TrainingError(
            f"checkpoint {path}: damaged, or of another run ({type(error).__name__}: {text}). Remove it to train from "
            "the start."
        ) from error


def require_run(path: Path, content: Mapping[str, Any], run: str) -> None:
    """Raise `TrainingError` for what another run wrote: weights of its shapes would pass for this one's."""
    found = content.get("run", "")  # of an earlier version it says nothing, as of a training by hand
    if found != run:
        raise TrainingError(
            f"checkpoint {path}: saved by another run ({found or 'without a name'}, this is {run or 'without one'}). "
            "Put it back into its own folder, or remove it to train from the start."
        )


def _put_back(path: Path, content: Any, state: TrainingState) -> Progress:
    require_run(path, content, state.run)
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
    if content["gradients"] and not isinstance(state.sums, SparseGradients):
        raise TrainingError(
            f"checkpoint {path}: saved with train.gradients.compress=dct. Resume with it, or remove the checkpoint to "
            "train from the start."
        )
    if content["threads"] != torch.get_num_threads():
        log.warning(
            "checkpoint %s was written with %s thread(s) of torch and goes on with %s: the last bits of the weights "
            "will be others than without the break",
            path,
            content["threads"],
            torch.get_num_threads(),
        )
    if state.tables is not None:
        _take_own(content, state)
    state.model.load_state_dict(content["model"])
    if state.average is not None:
        state.average.load_state_dict(content["average"])
    state.optimizer.load_state_dict(content["optimizer"])
    if state.loss_scale is not None:
        state.loss_scale.load_state_dict(content["loss_scale"])
    if state.sums is not None:
        state.sums.load_state_dict(_on_device(content["gradients"], state.losses.device))
    state.loader.load_state_dict(content["loader"])
    state.losses.copy_(content["losses"])
    put_random_states(content, state.losses.device)
    return Progress(**content["progress"])
