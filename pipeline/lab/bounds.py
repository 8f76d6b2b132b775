"""What the commands of the lab may take, checked before torch is imported."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gigabatch.pipeline.config.config import ConfigError, model_name
from gigabatch.pipeline.training.errors import TrainingError

MOST_SEEDS = 30  # of a comparison
LEAST_POINTS = 10  # that a suggestion of an lr range test is made from


@dataclass(frozen=True)
class TuneBounds:
    """What `tune` may take. max_batch: rows; max_rows: of the train split (a sample of a longer one); tolerance: by how
    much the metric may fall, as a share of it."""

    max_batch: int | None = None
    seeds: int = 5
    seconds: float = 600.0
    max_rows: int = 2_000_000
    tolerance: float = 0.001

    def __post_init__(self) -> None:
        if not 2 <= self.seeds <= MOST_SEEDS:
            raise TrainingError(f"tune: --seeds must be from 2 to {MOST_SEEDS}, not {self.seeds}.")
        for name in ("seconds", "tolerance"):
            if not 0 < getattr(self, name) < math.inf:
                raise TrainingError(f"tune: --{name} must be above 0, not {getattr(self, name)}.")
        require_rows(self.max_rows)


@dataclass(frozen=True)
class AdviseBounds:
    """What `advise` may take and is told. bandwidth: bytes a second that a rank sends, None to measure it; latency:
    seconds of a message, where bandwidth is given. efficiency: the least at which devices pay."""

    seconds: float = 60.0
    max_rows: int = 2_000_000
    bandwidth: float | None = None
    latency: float = 2e-5
    efficiency: float = 0.7

    def __post_init__(self) -> None:
        for name in ("seconds", "bandwidth", "latency"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise TrainingError(f"advise: --{name} must be above 0, not {value}.")
        if not 0 < self.efficiency <= 1:
            raise TrainingError(f"advise: --efficiency must be above 0 and at most 1, not {self.efficiency}.")
        require_rows(self.max_rows)


@dataclass(frozen=True)
class Budget:
    """What every model of `compare` gets alike. epochs: None is the run's own. trials: learning rates, around the run's
    lr_max.

    seconds: of everything together; None is no bound. max_rows: of the train split, a sample of a longer one.
    """

    seeds: int = 3
    epochs: int | None = None
    trials: int = 3
    seconds: float | None = None
    max_rows: int = 2_000_000

    def __post_init__(self) -> None:
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise TrainingError(f"compare: --seeds must be from 1 to {MOST_SEEDS}, not {self.seeds}.")
        for flag, value in (("epochs", self.epochs), ("trials", self.trials), ("rows", self.max_rows)):
            if value is not None and value < 1:
                raise TrainingError(f"compare: --{flag} must be at least 1, not {value}.")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise TrainingError(f"compare: --seconds must be above 0, not {self.seconds}.")


def require_rows(max_rows: int | None) -> None:
    """Raise `TrainingError` for a sample of no rows. None: of all."""
    if max_rows is not None and max_rows < 1:
        raise TrainingError(f"--rows must be at least 1, not {max_rows}.")


def require_steps_to_time(steps: int) -> None:
    """Raise `TrainingError` where `profile` is to time no step."""
    if steps < 1:
        raise TrainingError(f"profile: --steps must be at least 1, not {steps}.")


def require_lr_range(start: float, stop: float, steps: int) -> None:
    """Raise `TrainingError` for learning rates that an lr range test cannot go through."""
    if not 0 < start < stop < math.inf:
        raise TrainingError(f"lr range: it goes from a positive learning rate up, not from {start} to {stop}.")
    if steps < 2 * LEAST_POINTS:
        raise TrainingError(f"lr range: at least {2 * LEAST_POINTS} steps are needed, not {steps}.")


def listed_models(text: str) -> list[Any]:
    """The entries of a YAML list without its brackets: names, and mappings with a `kind`. Their settings are not looked
    at, since those lie beside the models.

    Raises:
        ConfigError: for text that is no such list, unknown models, and fewer than two.
    """
    try:
        entries: list[Any] = YAML(typ="safe", pure=True).load(f"[{text}]")
    except YAMLError as error:
        problem = getattr(error, "problem", None) or error
        raise ConfigError(f"--models {text!r}: not a list of models ({problem}). Write lr,fm,deepfm.") from error
    for entry in entries:
        if isinstance(entry, dict) and "kind" not in entry:
            raise ConfigError(f"--models: {entry} has no kind. Write {{kind: deepfm, layers: [64]}}.")
        model_name(entry if isinstance(entry, dict) else {"kind": entry})
    if len(entries) < 2:
        raise ConfigError(f"--models {text!r}: two models or more are compared. Write lr,fm,deepfm.")
    return entries
