"""Training and evaluation mode, of each module of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Give each module its own mode again at the end of the block, also a part that was frozen in evaluation mode.

    Parameters
    ----------
    model : nn.Module
        Whose mode the block may change by `train` and `eval`.

    Examples
    --------
    >>> from torch import nn
    >>> from gigabatch.models.modes import modes_kept
    >>> model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2).eval())
    >>> with modes_kept(model):
    ...     _ = model.eval()
    >>> model.training, [part.training for part in model]
    (True, [True, False])
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        model.train(modes[0][1])  # the model's own `train` may do more than set the modes
        for module, training in modes:
            module.training = training
