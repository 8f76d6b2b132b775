"""Other tools that are told of runs: MLflow and TensorBoard (docs/tracking.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gigabatch.pipeline.config.config import RunConfig

if TYPE_CHECKING:
    from gigabatch.pipeline.training.callbacks import Callback

__all__ = ["require_tracking", "tell_champion", "tell_run", "training_callbacks"]


def require_tracking(config: RunConfig) -> None:
    """Raise `ConfigError`, before any work, where a package of `track` is missing."""
    if config.track.tensorboard:
        from gigabatch.pipeline.tracking.tensorboard import require_tensorboard

        require_tensorboard()
    if config.track.mlflow is not None:
        from gigabatch.pipeline.tracking.mlflow import require_mlflow

        require_mlflow(config.track.mlflow)


def training_callbacks(config: RunConfig, key: str, member: str = "") -> list[Callback]:
    """Those that `track` asks for. key: of the training's artifact, by which its curve is found again. member: name of
    one of an ensemble's, each of which has a curve of its own."""
    if not config.track.tensorboard:
        return []
    from gigabatch.pipeline.tracking.tensorboard import TensorBoard

    return [TensorBoard(config.runs / config.name / "tensorboard" / key[:12] / member)]


def tell_run(config: RunConfig, run: Path) -> None:
    """Log a whole run to MLflow, where `track.mlflow` is set. An error is logged and changes nothing."""
    if config.track.mlflow is not None:
        from gigabatch.pipeline.tracking.mlflow import track_run

        track_run(config.track.mlflow, run, config.name)


def tell_champion(config: RunConfig, run: Path) -> None:
    """Move MLflow's alias `champion` to a run, where `track.mlflow` is set. An error is logged and changes nothing."""
    if config.track.mlflow is not None:
        from gigabatch.pipeline.tracking.mlflow import track_champion

        track_champion(config.track.mlflow, run, config.name)
