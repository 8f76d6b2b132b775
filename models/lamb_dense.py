"""The arithmetic of LAMB on dense parameters: many small tensors as one vector, so that a step is a few calls.

A step of three linear layers and their batch norms took 140 calls on tensors of a few thousand elements, nearly all of
it overhead. Laid end to end in one vector they take twenty; only norms are taken by parameter. `Lamb`, whose docstring
has the equations, owns the state and the settings.

Shapes: P parameters of a bundle, N elements of them all.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.kernels.rules import bias_corrections, trust_ratio

SMALL_ELEMENTS = 1 << 16  # a larger parameter is a vector of its own: its copies would cost more than they save
COMPILED_ELEMENTS = 1 << 17  # of a bundle: above it torch's threads are worth their overhead
Group = dict[str, Any]
State = dict[str, Tensor]


class Bundle(NamedTuple):
    """P parameters that have made as many steps, and their state, of which each parameter's own state is a view.

    sizes: elements of each parameter; num_steps [], exp_avg [N], exp_avg_sq [N]; views: each one's part of exp_avg.
    """

    parameters: list[Tensor]
    sizes: list[int]
    num_steps: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    views: list[Tensor]

    def is_current(self, state: Mapping[Tensor, State]) -> bool:
        """Whether all have a gradient and their `state` is this one still: a state that was loaded is another."""
        return all(
            parameter.grad is not None and state[parameter].get("exp_avg") is view
            for parameter, view in zip(self.parameters, self.views, strict=True)
        )

    def gradient(self) -> Tensor:
        """The gradients [N] end to end."""
        return _end_to_end([parameter.grad for parameter in self.parameters])  # type: ignore[misc]


def make_bundles(parameters: list[Tensor], states: list[State]) -> list[Bundle]:
    """Bundles of the parameters, each large one alone; their `states`, empty at first, become views.

    Reads the numbers of steps on the host, so it has no place in a step that is captured.
    The counter is not called `step`: load_state_dict moves all state to the parameter's device except that name.
    """
    together: dict[Any, list[int]] = {}
    for index, (parameter, state) in enumerate(zip(parameters, states, strict=True)):
        if not state:
            state["num_steps"] = parameter.new_zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        alone = index if parameter.numel() > SMALL_ELEMENTS else None
        together.setdefault((alone, parameter.dtype, float(state["num_steps"])), []).append(index)
    return [_make_bundle([parameters[i] for i in bundle], [states[i] for i in bundle]) for bundle in together.values()]


def _make_bundle(parameters: list[Tensor], states: list[State]) -> Bundle:
    sizes = [parameter.numel() for parameter in parameters]
    steps = states[0]["num_steps"].clone()
    means, squares = (_end_to_end([state[key] for state in states]) for key in ("exp_avg", "exp_avg_sq"))
    parts = zip(parameters, states, means.split(sizes), squares.split(sizes), strict=True)
    for parameter, state, mean, square in parts:
        state["num_steps"] = steps
        state["exp_avg"], state["exp_avg_sq"] = mean.view(parameter.shape), square.view(parameter.shape)
    return Bundle(parameters, sizes, steps, means, squares, [state["exp_avg"] for state in states])


def step_bundle(bundle: Bundle, gradient: Tensor, clip: Tensor | None, group: Group) -> None:
    """One step of the parameters, whose gradients end to end are `gradient` [N], over `clip` [] if given."""
    parameters, sizes, steps, mean, square, _ = bundle
    steps.add_(1)
    if _is_compiled(parameters, gradient):
        from models.kernels import lamb_cpu

        lamb_cpu.step(parameters, int(steps), gradient, mean, square, clip, group)
        return
    if clip is not None:
        gradient = gradient / clip
    beta1, beta2 = group["betas"]
    mean.mul_(beta1)
    if isinstance(beta1, Tensor):  # torch's lerp would wait for the device to read it
        mean.add_(gradient * (1 - beta1))
    else:
        mean.add_(gradient, alpha=1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)

    # u = (m / mean_scale) / (sqrt(v / square_scale) + eps), with mean_scale moved down, which saves a pass.
    mean_scale, square_scale = bias_corrections(steps, beta1, beta2)  # [] each
    update = mean / square.sqrt().mul_(mean_scale / square_scale.sqrt()).add_(mean_scale * group["eps"])
    parts = [part.view(parameter.shape) for part, parameter in zip(update.split(sizes), parameters, strict=True)]
    if group["weight_decay"]:
        torch._foreach_add_(parts, parameters, alpha=group["weight_decay"])
    if group["weight_decay"] or group["always_adapt"]:
        weight_norms, update_norms = torch.stack(torch._foreach_norm([*parameters, *parts])).split(len(parts))
        ratios = trust_ratio(weight_norms, update_norms, group["trust_clip"])  # [P]
        torch._foreach_mul_(parts, (group["lr"] * ratios).unbind())
    else:
        update.mul_(group["lr"])
    torch._foreach_sub_(parameters, parts)


def _is_compiled(parameters: list[Tensor], gradient: Tensor) -> bool:
    """Whether the compiled step is for these; what it takes of them is said there."""
    small = gradient.device.type == "cpu" and gradient.dtype == torch.float32 and len(gradient) <= COMPILED_ELEMENTS
    return small and all(parameter.is_contiguous() for parameter in parameters)


def _end_to_end(tensors: list[Tensor]) -> Tensor:
    """All elements [N], one tensor after the other; a single tensor is not copied."""
    vectors = [tensor.reshape(-1) for tensor in tensors]
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors)
