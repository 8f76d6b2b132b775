"""The learning curve as TensorBoard's event files, while a model is trained."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gigabatch.models.model import Model
from gigabatch.pipeline.config.config import ConfigError
from gigabatch.pipeline.training.callbacks import Callback

log = logging.getLogger(__name__)


def require_tensorboard() -> None:
    """Raise `ConfigError` where the package is not there."""
    try:
        import tensorboard  # noqa: F401
    except ImportError as error:
        raise ConfigError("track.tensorboard: needs pip install 'gigabatch[track]'.") from error


class TensorBoard(Callback):
    """Write train and valid loss, the metric of `train.select_by` and the learning rate by step. A file that cannot be
    written is logged as an error.

    Parameters
    ----------
    folder
        Where the event files go. One that a killed training left goes on from the checkpoint's step.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: Any = None

    def begin(self, model: Model, num_steps: int, done_steps: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with self._writing():
            # What was written after the checkpoint is done anew, and TensorBoard drops it from here on.
            self.writer = SummaryWriter(str(self.folder), purge_step=done_steps + 1)

    def epoch(self, points: Sequence[Mapping[str, Any]], model: Model) -> None:
        if self.writer is None:
            return
        with self._writing():
            for point in points:
                for name in ("train_loss", *(key for key in point if key.startswith("valid_")), "lr"):
                    if (value := point.get(name)) is not None:
                        self.writer.add_scalar(name, value, point["step"])
            self.writer.flush()

    def end(self, curve: Sequence[Mapping[str, Any]], model: Model) -> None:
        if self.writer is not None:
            with self._writing():
                self.writer.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """What a full disk raises is logged once: it may cost the curve, and not the training."""
        try:
            yield
        except Exception as error:
            self.writer = None
            log.error("TensorBoard: %s could not be written (%s); the training goes on without it", self.folder, error)
