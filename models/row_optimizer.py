"""An optimizer of embedding tables that moves only the rows of a batch, in one kernel, without gradients of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from models.embeddings import EmbeddingTables
from models.errors import ModelError, require
from models.kernels import kernel
from models.kernels.rules import METHODS, ROW_STEPS, SECOND_MOMENTS, RowRule, State

Group = dict[str, Any]
RULE_SETTINGS = ("eps", "weight_decay", "l2", "second_moment", "step", "trust_clip", "clip_ratio", "clip_floor")


class RowOptimizer(Optimizer):
    """Moves the rows that the batches since the last step touched; `models/kernels/rules.py` has the equations.

    It takes what the backward pass left in `row_gradients` of modules whose `gradients` are `rows`: gradients of the
    same row are summed, over accumulated batches too, and each row moves once. So a step costs O(rows of the batch),
    whatever the tables' size. Rows of no batch stay bit for bit.

    method: sgd, adagrad, adam or lamb. second_moment: `scalar` keeps one number a row, `full` one an element.
    step: bias corrections count the table's steps (`global`) or the row's own (`row`).
    l2: added to the gradient as l2 w; weight_decay: decoupled, inside LAMB's trust ratio.
    clip_ratio, clip_floor: CowClip's r and zeta; None for no clipping.
    lr_scale: the tables' learning rate over that which `set_lr_and_momentum` is given.
    version: of the kernel, see `models.kernels.kernel`.
    """

    def __init__(
        self,
        modules: Iterable[EmbeddingTables],
        lr: float | Tensor,
        betas: tuple[float | Tensor, float] = (0.9, 0.999),
        *,
        method: str = "lamb",
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        l2: float = 0.0,
        second_moment: str = "scalar",
        step: str = "global",
        trust_clip: float | None = 10.0,
        clip_ratio: float | None = None,
        clip_floor: float = 0.0,
        lr_scale: float = 1.0,
        version: str | None = None,
    ) -> None:
        self.modules = list(modules)
        self.version = version
        for name, value, known in (
            ("method", method, METHODS),
            ("second_moment", second_moment, SECOND_MOMENTS),
            ("step", step, ROW_STEPS),
        ):
            if value not in known:
                raise ModelError.unknown(f"{name} of the row optimizer", [value], known)
        for name, number in (("weight_decay", weight_decay), ("l2", l2), ("clip_floor", clip_floor)):
            require(number >= 0, f"{name} must not be negative: {number}.")
        for name, bound in (("trust_clip", trust_clip), ("clip_ratio", clip_ratio)):
            require(bound is None or bound > 0, f"{name} must be positive, or None for no bound, not {bound}.")
        require(bool(lr >= 0), f"lr must not be negative: {lr}.")
        require(all(0 <= beta < 1 for beta in betas), f"betas must be in [0, 1), not {betas}.")
        require(eps > 0, f"eps must be positive, not {eps}.")
        require(lr_scale > 0, f"lr_scale must be positive, not {lr_scale}.")
        group = {
            "params": [table for module in self.modules for table in module.tables],
            "lr": lr,
            "betas": betas,
            "method": method,
            "eps": eps,
            "weight_decay": weight_decay,
            "l2": l2,
            "second_moment": second_moment,
            "step": step,
            "trust_clip": trust_clip,
            "clip_ratio": clip_ratio,
            "clip_floor": clip_floor,
            "lr_scale": lr_scale,
            "rowwise": True,
        }
        super().__init__([group], {})
        for module in self.modules:
            module.gradients = "rows"

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"modules": self.modules, "version": self.version}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the touched rows and forget their gradients; returns the closure's loss, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rule = self._rule()
        for module in self.modules:
            if module.row_gradients:
                ids, gradients, _ = zip(*module.row_gradients, strict=True)
                tables = module.weights
                states = [self._state_of(table, rule) for table in tables]
                update = kernel("row_update", ids[0].device, self.version).update_rows
                update(tables, states, _joined(ids), _joined(gradients), rule)
            module.forget_gradients()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that no step has taken."""
        for module in self.modules:
            module.forget_gradients()

    def _rule(self) -> RowRule:
        group = self.param_groups[0]
        beta1, beta2 = group["betas"]
        return RowRule(group["method"], group["lr"], beta1, beta2, **{name: group[name] for name in RULE_SETTINGS})

    def _state_of(self, table: Tensor, rule: RowRule) -> State:
        state: State = self.state[table]
        if not state:
            state.update(rule.new_state(table))
        return state


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class Optimizers:
    """Several optimizers as one: a step is a step of each, the parameter groups are those of all."""

    def __init__(self, *optimizers: Optimizer) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[Group]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:
        return {parameter: state for optimizer in self.optimizers for parameter, state in optimizer.state.items()}

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave, of the same kinds in the same order."""
        saved = state.get("optimizers")
        if not isinstance(saved, list) or len(saved) != len(self.optimizers):
            raise ModelError(
                f"optimizer state: {len(self.optimizers)} optimizers are to be restored, the state holds "
                f"{len(saved) if isinstance(saved, list) else 'none'}. It is of a run with other settings."
            )
        for optimizer, one in zip(self.optimizers, saved, strict=True):
            optimizer.load_state_dict(one)
