"""The base of our optimizers: `torch.optim.Optimizer` whose bookkeeping does not load torch's compiler."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import unwrap
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer

from gigabatch.models.errors import ModelError, require

MARKS = {"always_adapt", "rowwise"}  # settings of all groups of `Lamb`, and of `RowOptimizer`, and of no others


class EagerOptimizer(Optimizer):
    """An optimizer that is never traced by `torch.compile`, which compiles the model and its loss alone.

    torch marks the bookkeeping of an optimizer as not to be traced; the first call of a marked function loads
    `torch._dynamo`, some 2 seconds of CPU, more than a nightly job may train. The functions themselves are the same.

    mark: its one of `MARKS`.
    """

    mark: ClassVar[str]

    def state_shapes(self, parameter: Tensor, group: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """What the state of a parameter of that group holds, once it has moved, by name."""
        raise NotImplementedError

    def __setstate__(self, state: dict[str, Any]) -> None:
        for group in state.get("param_groups", ()):  # before anything is put in its place
            require_mark(self, [group])
            for parameter in group["params"]:
                found = state["state"].get(parameter)
                if not found:  # it has not moved
                    continue
                shapes = {name: tuple(value.shape) for name, value in found.items()}
                expected = self.state_shapes(parameter, group)
                require(
                    shapes == expected,
                    f"{type(self).__name__}: the state to restore has {shapes} of a parameter of shape "
                    f"{tuple(parameter.shape)}, expected {expected}. It is of another optimizer or model.",
                )
        super().__setstate__(state)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's."""
        unwrap(Optimizer.add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's."""
        unwrap(Optimizer.zero_grad)(self, set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """As torch's."""
        found: dict[str, Any] = unwrap(Optimizer.state_dict)(self)
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's."""
        unwrap(Optimizer.load_state_dict)(self, state_dict)


def require_mark(optimizer: Optimizer, groups: Any) -> None:
    """Raise `ModelError` for groups of a state that was saved by an optimizer of another kind."""
    own = {optimizer.mark} if isinstance(optimizer, EagerOptimizer) else set()
    if any(MARKS & set(group) != own for group in groups):
        raise ModelError(
            f"{type(optimizer).__name__}: the state to restore was saved by an optimizer of another kind. Build the "
            "one that saved it, or begin without its state."
        )
