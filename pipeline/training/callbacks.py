"""What a user's code may do while a model is trained: a small public interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gigabatch.models.model import Model
from gigabatch.pipeline.training.checkpoint import TrainingError


class Callback:
    """Methods that `train_model` calls; a subclass overrides those that it needs.

    They are given to `Pipeline(config, callbacks=[...])`. Training that is skipped, because its artifact is there,
    calls none. What a method raises ends the training. Nothing that they return is used, and they change no key of an
    artifact: do not change the model in them. Random numbers of torch that they draw are none of the training's.

    Examples
    --------
    >>> class Losses(Callback):
    ...     def __init__(self):
    ...         self.found = []
    ...     def epoch(self, points, model):
    ...         self.found.append(points[-1]["valid_loss"])
    """

    def begin(self, model: Model, num_steps: int, done_steps: int) -> None:
        """Before the first step. num_steps: of the whole training; done_steps: of these, those that an earlier process
        did, from whose checkpoint this one goes on."""

    def epoch(self, points: Sequence[Mapping[str, Any]], model: Model) -> None:
        """After an epoch and its valid loss, before its checkpoint. points: the learning curve's new ones, see
        `Trained.curve`; model: the trained one, on its device, with the weights of this moment.

        A training that is killed before the checkpoint is written tells the epoch again."""

    def end(self, curve: Sequence[Mapping[str, Any]], model: Model) -> None:
        """After the last step. curve: whole, also of what an earlier process did; model: with the selected weights."""


def require_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """The callbacks as a tuple; `TypeError` where they are no list of `Callback` objects."""
    found = tuple(callbacks) if isinstance(callbacks, list | tuple) else None
    if found is None or not all(isinstance(item, Callback) for item in found):
        raise TypeError(f"callbacks: a list of gigabatch.Callback objects is needed, found {callbacks!r}.")
    return found


def call(callbacks: Sequence[Callback], method: str, *arguments: Any, device: torch.device) -> None:
    """Call a method of each, in order; the random state of the host and of `device` stays as it is.

    Raises
    ------
    TrainingError
        Where one raises; it names callback, method, error and line.
    """
    if not callbacks:
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for callback in callbacks:
            try:
                getattr(callback, method)(*arguments)
            except Exception as error:
                place = error.__traceback__
                while place is not None and place.tb_next is not None:
                    place = place.tb_next
                where = "" if place is None else f" ({place.tb_frame.f_code.co_filename}, line {place.tb_lineno})"
                raise TrainingError(
                    f"callback {type(callback).__name__}: {method} raised {type(error).__name__}: {error}{where}."
                ) from error
