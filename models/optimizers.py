"""Optimizers by name, and the two settings of theirs that a schedule moves."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from models.errors import ModelError
from models.lamb import Lamb, lamb_param_groups
from models.param_groups import split_parameters


def build_optimizer(model: nn.Module, name: str, **settings: Any) -> Optimizer:
    """The optimizer `name`, a key of `OPTIMIZERS`, over the model's trainable parameters.

    settings: keyword arguments of its builder below, of which `lr` is required; one that the optimizer does not have
    is a `ModelError` that lists those it has. Biases and the parameters of normalisation layers never decay.
    """
    if name not in OPTIMIZERS:
        raise ModelError.unknown("optimizer", [name], OPTIMIZERS)
    build = OPTIMIZERS[name]
    known = [key for key in inspect.signature(build).parameters if key != "model"]
    if unknown := [key for key in settings if key not in known]:
        raise ModelError.unknown(f"setting of {name}", unknown, known)
    if "lr" not in settings:
        raise ModelError(f"{name}: the setting lr (learning rate) is missing.")
    return build(model, **settings)


def build_lamb(
    model: nn.Module,
    *,
    lr: float | Tensor,
    weight_decay: float = 0.01,
    betas: tuple[float | Tensor, float] = (0.9, 0.999),
    eps: float = 1e-6,
    max_grad_norm: float | None = 1.0,
    trust_clip: float | None = 10.0,
    always_adapt: bool = False,
    rowwise: bool = True,
    rowwise_second_moment: str = "scalar",
    rowwise_step: str = "global",
) -> Lamb:
    """`Lamb` over `lamb_param_groups`. rowwise: embedding tables are updated row by row, else as dense weights."""
    return Lamb(
        lamb_param_groups(model, weight_decay, rowwise=rowwise),
        lr,
        betas,
        eps,
        weight_decay,
        max_grad_norm=max_grad_norm,
        trust_clip=trust_clip,
        always_adapt=always_adapt,
        rowwise_second_moment=rowwise_second_moment,
        rowwise_step=rowwise_step,
    )


def build_adamw(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> AdamW:
    """torch's fused AdamW (Loshchilov and Hutter, arXiv 1711.05101); embedding tables take dense gradients and decay.

    Its lr and betas are host numbers, so a captured CUDA graph keeps those of the capture.
    """
    split = split_parameters(model)
    groups: list[dict[str, Any]] = [
        {"name": "decayed", "params": [*split.embeddings, *split.decayed], "weight_decay": weight_decay},
        {"name": "undecayed", "params": split.undecayed, "weight_decay": 0.0},
    ]
    return AdamW([group for group in groups if group["params"]], lr=lr, betas=betas, eps=eps, fused=True)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"lamb": build_lamb, "adamw": build_adamw}


def set_lr_and_momentum(optimizer: Optimizer, lr: float, momentum: float) -> None:
    """Give every parameter group this learning rate and this beta1 (momentum), as one-cycle does before each step.

    A setting that is a tensor is filled in place, so that a CUDA graph which captured it sees the new value.
    """
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
        if isinstance(beta1, Tensor):
            beta1.fill_(momentum)
        else:
            group["betas"] = (momentum, beta2)
