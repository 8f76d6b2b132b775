"""LAMB (You et al., arXiv 1904.00962): Adam whose step is scaled, layer by layer, to the norm of the layer's weights.

Two forms share one optimizer. Dense parameters follow NVIDIA apex' FusedLAMB (one trust ratio a tensor). Embedding
tables, in groups flagged `rowwise`, follow FBGEMM's (partial row-wise) LAMB: each row is a layer, and only the rows
that a batch touched are updated. One ratio for a whole table would be shared by frequent and rare rows.

Shapes: P parameters of a group, V rows of a table, U of them touched by a batch, D columns.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from models.errors import ModelError, require
from models.lamb_rows import (
    ROW_STEPS,
    SECOND_MOMENTS,
    bias_corrections,
    step_listed_rows,
    step_nonzero_rows,
    trust_ratio,
)
from models.param_groups import split_parameters

Group = dict[str, Any]


class Lamb(Optimizer):
    """LAMB with bias correction, decoupled weight decay inside the ratio, and a zero guard.

    With g the gradient, after the optional clipping, and t the number of steps so far:

        m <- b1 m + (1 - b1) g          v <- b2 v + (1 - b2) g^2
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay w
        w <- w - lr ratio u             ratio = min(|w| / |u|, trust_clip), or 1 where either norm is 0

    max_grad_norm: the gradients of all dense parameters together are scaled down to this norm; None switches it off.
        Row-wise tables neither count nor are scaled. Gradients are left as they were.
    trust_clip: upper bound of the ratio; None for none, as in apex.
    always_adapt: dense groups without weight decay (biases, norms) have ratio 1 unless this is set.
    rowwise: the group's parameters are tables [V, D], every row with its own ratio, always adapted. A row is touched
        if it is in a sparse COO gradient, or if its dense gradient is not all zero; other rows, their moments
        included, stay bit for bit. Sparse gradients cost O(U D), dense ones O(V D) but no host sync.
    rowwise_second_moment: `scalar` keeps one v a row, of the mean of g^2 over its columns; `full` one an element.
    rowwise_step: t counts the table's steps (`global`, as FBGEMM) or the row's own updates (`row`), whose bias
        correction is right for rows that are touched rarely.

    lr, betas[0] and everything else but max_grad_norm can differ by group. Both may be 0-d tensors on the parameters'
    device, for steps captured in a CUDA graph; a dense step never syncs with the host. When betas[0] moves, the bias
    correction uses its present value, as torch's Adam does. Parameters must be float32 or float64, all on one device;
    norms are taken in the parameter's dtype (for float32 on a CPU: 1e-5 off at a million elements, 2e-3 at thirty).
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
        rowwise: bool = False,
        rowwise_second_moment: str = "scalar",
        rowwise_step: str = "global",
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
            "rowwise": rowwise,
            "rowwise_second_moment": rowwise_second_moment,
            "rowwise_step": rowwise_step,
        }
        super().__init__(params, defaults)
        self.max_grad_norm = max_grad_norm  # of all groups together, so no setting of a group

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"max_grad_norm": self.max_grad_norm}

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; settings that do not exist or are out of range are a `ModelError`."""
        known = ["params", "name", *self.defaults]
        if unknown := [key for key in param_group if key not in known]:
            raise ModelError.unknown("setting of a Lamb parameter group", unknown, known)
        _check_settings(self.defaults | param_group)
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            _check_parameter(parameter, self.param_groups[-1]["rowwise"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns the closure's loss, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        clip = self._gradient_clip()
        for group in self.param_groups:
            parameters = _with_gradient(group)
            if group["rowwise"]:
                for table in parameters:
                    self._step_table(table, group)
            elif parameters:
                self._step_dense(parameters, group, clip)
        return loss

    def _gradient_clip(self) -> Tensor | None:
        """What every dense gradient is divided by: max(1, norm of all of them / max_grad_norm); None for nothing."""
        dense = [p for group in self.param_groups if not group["rowwise"] for p in _with_gradient(group)]
        for parameter in dense:
            if _gradient(parameter).is_sparse:
                raise ModelError(
                    f"Lamb: the parameter of shape {list(parameter.shape)} has a sparse gradient but its group is not "
                    "row-wise. Set rowwise=True for the group of embedding tables, or make dense gradients."
                )
        if self.max_grad_norm is None or not dense:
            return None
        norms = torch._foreach_norm([_gradient(parameter) for parameter in dense])
        return (torch.linalg.vector_norm(torch.stack(norms)) / self.max_grad_norm).clamp(min=1.0)

    def _step_dense(self, parameters: list[Tensor], group: Group, clip: Tensor | None) -> None:
        """One step of the P parameters, in a few calls over all of them."""
        states = [self._state_of(p, moment_shape=p.shape, steps_shape=()) for p in parameters]
        steps, means, squares = ([state[key] for state in states] for key in ("num_steps", "exp_avg", "exp_avg_sq"))
        gradients = [_gradient(p) for p in parameters]
        if clip is not None:
            gradients = list(torch._foreach_div(gradients, clip))
        beta1, beta2 = group["betas"]
        torch._foreach_add_(steps, 1)
        _decay_towards(means, gradients, beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)

        mean_scale, square_scale = bias_corrections(torch.stack(steps), beta1, beta2)  # [P] each
        denominators = torch._foreach_sqrt(squares)  # mean_scale moves into them, which saves a pass
        torch._foreach_mul_(denominators, (mean_scale / square_scale.sqrt()).unbind())
        torch._foreach_add_(denominators, (mean_scale * group["eps"]).unbind())
        updates = torch._foreach_div(means, denominators)
        if group["weight_decay"]:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])

        if group["weight_decay"] or group["always_adapt"]:
            weight_norms, update_norms = (torch.stack(torch._foreach_norm(x)) for x in (parameters, updates))
            ratios = trust_ratio(weight_norms, update_norms, group["trust_clip"])  # [P]
            torch._foreach_mul_(updates, (group["lr"] * ratios).unbind())
        else:
            torch._foreach_mul_(updates, group["lr"])
        torch._foreach_sub_(parameters, updates)

    def _step_table(self, table: Tensor, group: Group) -> None:
        """One step of the touched rows of a table [V, D]."""
        num_rows, width = table.shape
        state = self._state_of(
            table,
            moment_shape=(num_rows, 1 if group["rowwise_second_moment"] == "scalar" else width),
            steps_shape=(num_rows, 1) if group["rowwise_step"] == "row" else (),
        )
        if group["rowwise_step"] == "global":
            state["num_steps"].add_(1)
        gradient = _gradient(table)
        step_rows = step_listed_rows if gradient.is_sparse else step_nonzero_rows
        step_rows(table, gradient, state, group)

    def _state_of(
        self, parameter: Tensor, moment_shape: tuple[int, ...], steps_shape: tuple[int, ...]
    ) -> dict[str, Tensor]:
        """The parameter's state, zeros at first.

        The counter is not called `step`: load_state_dict moves all state to the parameter's device except that name.
        """
        state = self.state[parameter]
        if not state:
            state["num_steps"] = parameter.new_zeros(steps_shape)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = parameter.new_zeros(moment_shape)
        return state


def lamb_param_groups(model: nn.Module, weight_decay: float, *, rowwise: bool = True) -> list[Group]:
    """Parameter groups for `Lamb`: embedding tables, decayed weights, and biases and norms, which do not decay.

    rowwise: tables are updated row by row; False makes them ordinary dense weights. Empty groups are left out.
    """
    split = split_parameters(model)
    tables = {"name": "embeddings", "params": split.embeddings, "weight_decay": weight_decay, "rowwise": rowwise}
    decayed = {"name": "decayed", "params": split.decayed, "weight_decay": weight_decay}
    undecayed = {"name": "undecayed", "params": split.undecayed, "weight_decay": 0.0}
    return [group for group in (tables, decayed, undecayed) if group["params"]]


def _decay_towards(averages: list[Tensor], values: list[Tensor], beta: float | Tensor) -> None:
    """averages <- beta averages + (1 - beta) values, in place; torch's lerp would sync to read a tensor `beta`."""
    torch._foreach_mul_(averages, beta)
    if isinstance(beta, Tensor):
        torch._foreach_add_(averages, torch._foreach_mul(values, 1 - beta))
    else:
        torch._foreach_add_(averages, values, alpha=1 - beta)


def _gradient(parameter: Tensor) -> Tensor:
    """The gradient of a parameter that has one."""
    assert parameter.grad is not None
    return parameter.grad


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
    for name, known in (("rowwise_second_moment", SECOND_MOMENTS), ("rowwise_step", ROW_STEPS)):
        if settings[name] not in known:
            raise ModelError.unknown(name, [settings[name]], known)


def _check_parameter(parameter: Tensor, rowwise: bool) -> None:
    require(
        parameter.dtype in (torch.float32, torch.float64),
        f"Lamb: parameters must be float32 or float64, found {parameter.dtype}; use autocast for lower precision.",
    )
    require(
        not rowwise or parameter.dim() == 2,
        f"Lamb: a row-wise group takes tables [rows, columns], found a parameter of shape {list(parameter.shape)}.",
    )
