"""The base of our optimizers: `torch.optim.Optimizer` whose bookkeeping does not load torch's compiler."""

from __future__ import annotations

from inspect import unwrap
from typing import Any

from torch.optim import Optimizer


class EagerOptimizer(Optimizer):
    """An optimizer that is never traced by `torch.compile`, which compiles the model and its loss alone.

    torch marks the bookkeeping of an optimizer as not to be traced; the first call of a marked function loads
    `torch._dynamo`, some 2 seconds of CPU, more than a nightly job may train. The functions themselves are the same.
    """

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
