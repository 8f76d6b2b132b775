"""Training and evaluation mode, of each module of a model, and what torch makes by default."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn


@contextmanager
def plain_defaults() -> Iterator[None]:
    """Within the block, or the function that it decorates, torch makes float32 on the host where nothing is named,
    whatever `torch.set_default_dtype` and `torch.set_default_device` were told.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.modes import plain_defaults
    >>> torch.set_default_dtype(torch.float64)
    >>> with plain_defaults():
    ...     print(torch.zeros(1).dtype)
    torch.float32
    >>> torch.zeros(1).dtype
    torch.float64
    >>> torch.set_default_dtype(torch.float32)
    """
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    torch.set_default_dtype(torch.float32)
    try:
        with nullcontext() if device.type == "cpu" else torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)


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
