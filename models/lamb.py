"""LAMB (You et al., arXiv 1904.00962): Adam whose step is scaled, layer by layer, to the norm of the layer's weights.

`Lamb` follows NVIDIA apex' FusedLAMB: one trust ratio a tensor. In embedding tables frequent and rare rows would share
that ratio; `RowOptimizer` has the form in which each row is a layer and only the rows of a batch move.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from models.errors import ModelError, require
from models.lamb_dense import Bundle, make_bundles, step_bundle
from models.param_groups import split_parameters

Group = dict[str, Any]


class Lamb(Optimizer):
    """LAMB with bias correction, decoupled weight decay inside the ratio, and a zero guard.

    With g the gradient, after the optional clipping, and t the number of steps so far:

        m <- b1 m + (1 - b1) g          v <- b2 v + (1 - b2) g^2
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay w
        w <- w - lr ratio u             ratio = min(|w| / |u|, trust_clip), or 1 where either norm is 0

    max_grad_norm: the gradients of all parameters together are scaled down to this norm; None switches it off.
        Gradients are left as they were.
    trust_clip: upper bound of the ratio; None for none, as in apex.
    always_adapt: groups without weight decay (biases, norms) have ratio 1 unless this is set.

    lr, betas[0] and everything else but max_grad_norm can differ by group. Both may be 0-d tensors on the parameters'
    device, for steps captured in a CUDA graph; a step never syncs with the host, but for the first one and those
    after a state was loaded or gradients came or went. When betas[0] moves, the bias correction uses its present value,
    as torch's Adam does. Parameters must be float32 or float64, all on one device; norms are taken in the parameter's
    dtype (for float32 on a CPU: 1e-5 off at a million elements, 2e-3 at thirty).
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Group],
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        max_grad_norm: float | None = 1.0,
        trust_clip: float | None = 10.0,
        always_adapt: bool = False,
    ) -> None:
        require(
            max_grad_norm is None or max_grad_norm > 0, f"max_grad_norm must be positive or None, not {max_grad_norm}."
        )
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "trust_clip": trust_clip,
            "always_adapt": always_adapt,
        }
        super().__init__(params, defaults)
        self.max_grad_norm = max_grad_norm  # of all groups together, so no setting of a group
        self._bundles: dict[int, list[Bundle]] = {}  # of each group

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"max_grad_norm": self.max_grad_norm, "_bundles": {}}  # of the copy's own state

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; settings that do not exist or are out of range are a `ModelError`."""
        known = ["params", "name", *self.defaults]
        if unknown := [key for key in param_group if key not in known]:
            raise ModelError.unknown("setting of a Lamb parameter group", unknown, known)
        _check_settings(self.defaults | param_group)
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            kind = parameter.dtype
            require(
                kind in (torch.float32, torch.float64),
                f"Lamb: parameters must be float32 or float64, found {kind}; use autocast for lower precision.",
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns the closure's loss, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parts = [(bundle, group) for group, bundles in self._bundles_of_groups() for bundle in bundles]
        gradients = [bundle.gradient() for bundle, _ in parts]
        clip = self._gradient_clip(gradients)
        for (bundle, group), gradient in zip(parts, gradients, strict=True):
            step_bundle(bundle, gradient, clip, group)
        return loss

    def _bundles_of_groups(self) -> Iterator[tuple[Group, list[Bundle]]]:
        """Each group with its bundles, made when they are first asked for and when gradients come or go."""
        for index, group in enumerate(self.param_groups):
            parameters, bundles = _with_gradient(group), self._bundles.get(index, [])
            for parameter in parameters:
                _refuse_sparse(parameter)
            whole = sum(len(bundle.parameters) for bundle in bundles) == len(parameters)
            if not (whole and all(bundle.is_current(self.state) for bundle in bundles)):
                self._bundles[index] = bundles = make_bundles(parameters, [self.state[p] for p in parameters])
            yield group, bundles

    def _gradient_clip(self, gradients: list[Tensor]) -> Tensor | None:
        """What every gradient is divided by: max(1, norm of all of them / max_grad_norm); None for nothing."""
        if self.max_grad_norm is None or not gradients:
            return None
        norms = torch.stack(torch._foreach_norm(gradients))
        return (torch.linalg.vector_norm(norms) / self.max_grad_norm).clamp(min=1.0)


def lamb_param_groups(model: nn.Module, weight_decay: float, *, tables: bool = True) -> list[Group]:
    """Parameter groups for `Lamb`: embedding tables, decayed weights, and biases and norms, which do not decay.

    tables: False leaves embedding tables out, for a `RowOptimizer`. Empty groups are left out too.
    """
    split = split_parameters(model)
    embeddings = {"name": "embeddings", "params": split.embeddings if tables else [], "weight_decay": weight_decay}
    decayed = {"name": "decayed", "params": split.decayed, "weight_decay": weight_decay}
    undecayed = {"name": "undecayed", "params": split.undecayed, "weight_decay": 0.0}
    return [group for group in (embeddings, decayed, undecayed) if group["params"]]


def _refuse_sparse(parameter: Tensor) -> None:
    assert parameter.grad is not None
    if parameter.grad.is_sparse:
        raise ModelError(
            f"Lamb: the parameter of shape {list(parameter.shape)} has a sparse gradient. Make dense gradients, or use "
            "EmbeddingTables and let a RowOptimizer move the rows of a batch (lamb with rowwise=True)."
        )


def _with_gradient(group: Group) -> list[Tensor]:
    return [parameter for parameter in group["params"] if parameter.grad is not None]


def _check_settings(settings: Group) -> None:
    """Raise `ModelError` for a value out of range. It reads tensors, so it has no place in a step."""
    beta1, beta2 = settings["betas"]
    require(settings["lr"] >= 0, f"lr must not be negative: {settings['lr']}.")
    require(0 <= beta1 < 1 and 0 <= beta2 < 1, f"betas must be in [0, 1), not {settings['betas']}.")
    require(not isinstance(beta2, Tensor), "betas[1] must be a float; only lr and betas[0] may be tensors.")
    require(settings["eps"] > 0, f"eps must be positive, not {settings['eps']}.")
    require(settings["weight_decay"] >= 0, f"weight_decay must not be negative: {settings['weight_decay']}.")
    clip = settings["trust_clip"]
    require(clip is None or clip > 0, f"trust_clip must be positive, or None for no bound, not {clip}.")
