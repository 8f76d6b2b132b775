"""An optimizer's state by the names of parameters: what a later training takes up, over tables that have grown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gigabatch.models.optimizers.row_optimizer import Optimizers, RowOptimizer, parts_of

Moments = dict[str, dict[str, Tensor]]


def moment_kinds(model: nn.Module, optimizer: Optimizer | Optimizers) -> dict[str, str]:
    """What each parameter's state means, by the parameter's name; states of one kind may be taken for each other.

    Rates, decay and clipping are no part of it: they act on a step and not on what is kept of earlier ones.
    """
    return {name: _kind(part, group) for name, _, part, group in _owned(model, optimizer)}


def read_moments(model: nn.Module, optimizer: Optimizer | Optimizers) -> Moments:
    """A copy of the state on the host, by the parameter's name and the state's: moments and numbers of steps.

    Parameters that have not moved yet have none.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from gigabatch.models.optimizers.moments import read_moments
    >>> from gigabatch.models.optimizers.registry import build_optimizer
    >>> model = nn.Linear(2, 1)
    >>> optimizer = build_optimizer(model, "lamb", lr=0.01)
    >>> model(torch.ones(3, 2)).sum().backward()
    >>> optimizer.step()
    >>> {name: list(state) for name, state in read_moments(model, optimizer).items()}
    {'weight': ['exp_avg', 'exp_avg_sq', 'num_steps'], 'bias': ['exp_avg', 'exp_avg_sq', 'num_steps']}
    """
    found: Moments = {}
    for name, parameter, part, _ in _owned(model, optimizer):
        if state := part.state.get(parameter):
            found[name] = {
                key: state[key].detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
                for key in sorted(state)
            }
    return found


def write_moments(
    model: nn.Module, optimizer: Optimizer | Optimizers, moments: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Put a state that `read_moments` gave, of an optimizer of the same kinds, in the place of this one's."""
    for name, parameter, part, _ in _owned(model, optimizer):
        if name in moments:
            part.state[parameter] = {key: value.to(parameter.device, copy=True) for key, value in moments[name].items()}


def shrink_sums(optimizer: Optimizer | Optimizers, share: float) -> None:
    """Multiply the sums of squares that row-wise Adagrad keeps, which else only grow, by `share`, in place.

    Moments that are moving averages forget by themselves and stay.
    """
    for part in parts_of(optimizer):
        if isinstance(part, RowOptimizer) and part.param_groups[0]["method"] == "adagrad":
            for state in part.state.values():
                state["exp_avg_sq"].mul_(share)


def _owned(
    model: nn.Module, optimizer: Optimizer | Optimizers
) -> Iterator[tuple[str, nn.Parameter, Optimizer, dict[str, Any]]]:
    """Each parameter that is moved: its name, itself, and the optimizer and group that it is in."""
    parts = parts_of(optimizer)
    places = {
        parameter: (part, group) for part in parts for group in part.param_groups for parameter in group["params"]
    }
    for name, parameter in model.named_parameters():
        if parameter in places:
            yield name, parameter, *places[parameter]


def _kind(part: Optimizer, group: Mapping[str, Any]) -> str:
    if isinstance(part, RowOptimizer):
        return f"rows of {group['method']}, {group['second_moment']} second moment, {group['step']} step"
    return type(part).__name__.lower()
