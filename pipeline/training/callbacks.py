"""What a user's code may do while a model is trained: a small public interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gigabatch.models.model import Model


class Callback:
    """Methods that `train_model` calls; a subclass overrides those that it needs.

    They are given to `Pipeline(config, callbacks=[...])`. Training that is skipped, because its artifact is there,
    calls none. What a method raises ends the training. Nothing that they return is used, and they change no key of an
    artifact: do not change the model in them.

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
        """After an epoch and its valid loss. points: the learning curve's new ones, see `Trained.curve`; model: in
        training, on its device, with the weights of this moment."""

    def end(self, curve: Sequence[Mapping[str, Any]], model: Model) -> None:
        """After the last step. curve: whole, also of what an earlier process did; model: with the selected weights."""
