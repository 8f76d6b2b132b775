"""An optimizer of embedding tables that moves only the rows of a batch, in one kernel, without gradients of tables."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import count, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gigabatch.models.errors import ModelError, require
from gigabatch.models.kernels import kernel, takes_tables
from gigabatch.models.kernels.row_update.reference import clipped
from gigabatch.models.kernels.row_update.rules import TRUST_FLOOR, RowRule, State, check_rule
from gigabatch.models.kernels.row_update.sums import summed_rows
from gigabatch.models.layers.embeddings import EmbeddingTables, RowGradient
from gigabatch.models.optimizers.eager import EagerOptimizer, require_mark
from gigabatch.models.optimizers.first_sums import squares_of_visits
from gigabatch.models.optimizers.row_gradients import gradients_together

Group = dict[str, Any]
NUMBERS = count()
RAISED_AT = frozenset(1 << power for power in range(11))  # steps at which sums are raised: 1, 2, 4, ... 1,024
RULE_SETTINGS = tuple(field.name for field in fields(RowRule) if field.name not in ("lr", "beta1", "beta2"))


class RowOptimizer(EagerOptimizer):
    """Moves the rows that the batches since the last step touched; `models/kernels/row_update/rules.py` has the
    equations.

    It takes what the backward pass left in `row_gradients` of modules whose `gradients` are `rows`: gradients of the
    same row are summed, over accumulated batches too, and each row moves once. So a step costs O(rows of the batch),
    whatever the tables' size. Rows of no batch stay bit for bit, and so do tables that are frozen when it steps.
    torch's `clip_grad_norm_` and `GradScaler` find no such gradients: `clip_ratio` clips them (CowClip), `LossScale`
    scales.

    settings: fields of `RowRule`.
    lr_scale: the tables' learning rate over the group's `lr`, which a schedule sets for all groups alike.
    initial_visits: of Adagrad: sums of squares of rows are no less than those of so many visits (`first_sums.py`);
        0 for sums that begin at zero.
    version: of the kernel, see `gigabatch.models.kernels.kernel`.
    """

    mark = "rowwise"

    def __init__(
        self,
        modules: Iterable[EmbeddingTables],
        lr: float | Tensor,
        betas: tuple[float | Tensor, float] = (0.9, 0.999),
        *,
        lr_scale: float = 1.0,
        initial_visits: float = 0.0,
        version: str | None = None,
        **settings: Any,
    ) -> None:
        self.modules = list(modules)
        self.version = version
        self.found_inf: Tensor | None = None  # see `non_finite.mark_non_finite`
        self.gradient_factor: Tensor | None = None  # of the next step's gradients, see `LossScale.unscale`
        self.num_skipped: Tensor | None = None  # [] on a GPU: steps that `steps_taken` counts and that it skipped
        rule = RowRule(lr=lr, beta1=betas[0], beta2=betas[1], **settings)
        check_rule(rule)
        require(lr_scale > 0, f"lr_scale must be positive, not {lr_scale}.")
        require(initial_visits >= 0, f"initial_visits must not be negative, not {initial_visits}.")
        tables = [table for module in self.modules for table in module.tables]
        group = {"params": tables, "lr": lr, "betas": betas, "lr_scale": lr_scale, "rowwise": True}
        group |= {"initial_visits": initial_visits if rule.method == "adagrad" else 0.0, "steps_taken": 0}
        group |= {name: getattr(rule, name) for name in RULE_SETTINGS}
        super().__init__([group], {"lr": lr, "betas": betas})  # by which torch's schedules know what they may move
        self.number = next(NUMBERS)  # a number, which a copy of the modules and of the optimizer keeps
        for module in self.modules:
            module.gradients = "rows"
            module.row_optimizer = self.number
            module.counts_gradients = rule.clip_ratio is not None

    def __getstate__(self) -> dict[str, Any]:
        own: dict[str, Any] = {"modules": self.modules, "version": self.version, "number": self.number}
        self._take_off_skipped()
        own |= {"found_inf": None, "gradient_factor": None, "num_skipped": None}
        return super().__getstate__() | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a state that was saved before a setting was there
            group.setdefault("trust_floor", TRUST_FLOOR)
            group.setdefault("initial_visits", 0.0)
            group.setdefault("steps_taken", 0)

    def state_shapes(self, parameter: Tensor, group: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """As `RowRule.new_state` begins it, under the settings that are restored with it."""
        rule = RowRule(**{name: group[name] for name in RULE_SETTINGS if name in group})
        begun = rule.new_state(parameter.new_empty(parameter.shape, device="meta"))
        return {name: tuple(value.shape) for name, value in begun.items()}

    def add_param_group(self, param_group: Group) -> None:
        """The group of the modules' tables; another one, which no step would move, is a `ModelError`."""
        require(not self.param_groups, "a RowOptimizer has one group, the tables of its modules. Build one for others.")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the touched rows and forget their gradients; returns the closure's loss, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rule = self._rule()
        skipped, self.found_inf = self.found_inf, None  # a mark holds for one step
        factor, self.gradient_factor = self.gradient_factor, None
        raises = self._count(skipped)
        for module in self.modules:
            require_own_tables(module.row_optimizer == self.number and module.gradients == "rows")
            require(
                all(takes_tables(table.dtype, self.version) for table in module.weights),
                "the tables were converted from torch.float32, in which alone rows are moved. Train in it (under "
                "autocast for lower precision) and convert a copy, or take lamb or adamw with rowwise=False.",
            )
            if raises:
                self._raise_sums(module, rule, factor)
            if module.row_sums is not None:
                self._move_sums(module, rule, skipped, factor)
            elif module.row_gradients:
                self._move(module, rule, skipped, factor)
            module.forget_gradients()
        return loss

    def raises_next(self) -> bool:
        """Whether the next step raises sums of squares to those of some visits, by numbers that the host reads."""
        return bool(self.param_groups[0]["initial_visits"]) and self.steps_taken + 1 in RAISED_AT

    @property
    def steps_taken(self) -> int:
        """Steps so far, with those of a GPU that were skipped since the host last looked (`_take_off_skipped`). Whoever
        has a device do them by itself, as by replays of a CUDA graph, counts them."""
        return int(self.param_groups[0]["steps_taken"])

    @steps_taken.setter
    def steps_taken(self, number: int) -> None:
        self.param_groups[0]["steps_taken"] = number

    def _count(self, skipped: Tensor | None) -> bool:
        """Count the step at hand; True where it raises sums. One that is skipped counts for nothing: where it would
        have raised, the next does. Between such steps a GPU counts by itself what it skips."""
        if self.raises_next():
            self._take_off_skipped()
        raises = self.raises_next()
        if skipped is not None and skipped.device.type != "cpu":
            if self.num_skipped is None:
                self.num_skipped = torch.zeros_like(skipped)
            if not raises:
                self.num_skipped.add_(skipped)
                skipped = None
        if skipped is not None and bool(skipped):
            return False
        self.steps_taken += 1
        return raises

    def _take_off_skipped(self) -> None:
        """Make `steps_taken` exact, for which the host waits for the device."""
        if self.num_skipped is not None:
            self.steps_taken -= int(self.num_skipped)
            self.num_skipped.zero_()

    def state_dict(self) -> dict[str, Any]:
        """As torch's; `steps_taken` in it is exact."""
        self._take_off_skipped()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's."""
        super().load_state_dict(state_dict)
        if self.num_skipped is not None:
            self.num_skipped.zero_()

    def _raise_sums(self, module: EmbeddingTables, rule: RowRule, factor: Tensor | None) -> None:
        """Raise the sums of squares that are below those of `initial_visits` visits."""
        visits = self.param_groups[0]["initial_visits"]
        units = squares_of_visits(module, self.version, factor)
        for place, (table, own) in enumerate(zip(module.weights, units, strict=True)):
            if not table.requires_grad:
                continue
            for (start, stop), unit in zip(pairwise(module.row_spans(place)), own, strict=True):
                if unit > 0 and math.isfinite(unit):
                    self._state_of(table, rule)["exp_avg_sq"][start:stop].clamp_(min=visits * unit)

    def _move(self, module: EmbeddingTables, rule: RowRule, skipped: Tensor | None, factor: Tensor | None) -> None:
        if skipped is not None and skipped.device.type == "cpu":
            if bool(skipped):
                return
            skipped = None
        require(
            not module.is_sharded,
            "sharded tables: call ShardedTables.exchange_gradients before a step, within `fetched`.",
        )
        for places, found in gradients_together(module):
            self._move_tables(module, places, found, rule, skipped, factor)

    def _move_tables(
        self,
        module: EmbeddingTables,
        places: Sequence[int],
        found: RowGradient,
        rule: RowRule,
        skipped: Tensor | None,
        factor: Tensor | None,
    ) -> None:
        """Move rows of the tables at `places`: ids [n, tables], their gradients [n, widths] side by side, or of one
        table what its lists' elements share."""
        ids, gradient = found.ids, found.gradient
        if factor is not None:
            gradient = gradient.float() * factor
        weights = module.weights
        tables = [weights[place] for place in places]
        states = [self._state_of(table, rule) for table in tables]
        if skipped is not None:  # which the host does not know: an id outside its table moves nothing on a GPU
            ids = torch.where(skipped > 0, -1, ids)
        update = kernel("row_update", ids.device, self.version)
        if found.places is None:
            update.update_rows(tables, states, ids, gradient, rule)
        else:
            own = (ids[:, 0].contiguous(), found.places, found.scales)
            update.update_elements(tables[0], states[0], *own, gradient, rule)
        if skipped is not None and rule.step == "global":
            for state in states:
                state["num_steps"].sub_(skipped)

    def _move_sums(self, module: EmbeddingTables, rule: RowRule, skipped: Tensor | None, factor: Tensor | None) -> None:
        """As `_move`, of what ranks have summed already, table by table."""
        if skipped is not None and skipped.device.type == "cpu":
            if bool(skipped):
                return
            skipped = None
        for table, sums in zip(module.weights, module.row_sums or (), strict=True):
            if sums is None or not table.requires_grad:
                continue
            rows, gradient = sums.rows, sums.gradient if factor is None else sums.gradient * factor
            own, update = rule, kernel("row_update", table.device, self.version)
            if rule.clip_ratio is not None:  # the kernel would take a rank's sum for one gradient
                assert sums.counts is not None
                rows, place = rows.unique(return_inverse=True)
                (gradient,) = summed_rows(update, place[:, None].int(), gradient, [len(rows)], [table.shape[1]])
                counts = gradient.new_zeros(len(rows)).index_add_(0, place, sums.counts.to(gradient.dtype))
                weight = table[rows]
                gradient = clipped(gradient + rule.l2 * weight, weight, counts[:, None], rule)
                own = replace(rule, l2=0.0, clip_ratio=None)
            if skipped is not None:
                rows = torch.where(skipped > 0, -1, rows)
            state = self._state_of(table, rule)
            update.update_rows([table], [state], rows[:, None], gradient, own)
            if skipped is not None and rule.step == "global":
                state["num_steps"].sub_(skipped)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that no step has taken."""
        for module in self.modules:
            if module.row_optimizer == self.number:
                module.forget_gradients()

    def _rule(self) -> RowRule:
        group = self.param_groups[0]
        beta1, beta2 = group["betas"]
        lr = group["lr"] if group["lr_scale"] == 1 else group["lr"] * group["lr_scale"]
        return RowRule(lr=lr, beta1=beta1, beta2=beta2, **{name: group[name] for name in RULE_SETTINGS})

    def _state_of(self, table: Tensor, rule: RowRule) -> State:
        state: State = self.state[table]
        if not state:
            state.update(rule.new_state(table))
        return state


def require_own_tables(owned: bool) -> None:
    """Raise `ModelError` unless the optimizer that is to step is the last that was built over its tables."""
    require(
        owned,
        "this optimizer's embedding tables were handed to one that was built later, or their `gradients` were set, so "
        "it would not move them. Step the optimizer that was built last, or build this one anew.",
    )


class Optimizers(Optimizer):
    """Several optimizers as one: a step is a step of each, the parameter groups are those of all.

    An `Optimizer` as torch's schedules ask for, which holds nothing of its own: `Optimizer.__init__` is not called.
    """

    def __init__(self, *optimizers: Optimizer) -> None:
        self._take(optimizers)

    def _take(self, optimizers: tuple[Optimizer, ...]) -> None:
        self.optimizers = optimizers
        shared = [optimizer.defaults for optimizer in optimizers]  # by which schedules know what they may move
        self.defaults = {key: value for key, value in shared[0].items() if all(key in one for one in shared)}
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"optimizers": self.optimizers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._take(state["optimizers"])

    @property
    def param_groups(self) -> list[Group]:  # type: ignore[override]
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:  # type: ignore[override]
        return {parameter: state for optimizer in self.optimizers for parameter, state in optimizer.state.items()}

    def add_param_group(self, param_group: Group) -> None:
        """A `ModelError`: which of the optimizers is to move the group?"""
        raise ModelError("several optimizers as one take no further group. Add it to one of `optimizers`.")

    @Optimizer.profile_hook_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step of each; returns the closure's loss, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave, of the same kinds in the same order; all of it, or none."""
        saved = state.get("optimizers")
        if not isinstance(saved, list) or len(saved) != len(self.optimizers):
            raise ModelError(
                f"optimizer state: {len(self.optimizers)} optimizers are to be restored, the state holds "
                f"{len(saved) if isinstance(saved, list) else 'none'}. It is of a run with other settings."
            )
        for optimizer, one in zip(self.optimizers, saved, strict=True):  # before the first one is changed
            require_mark(optimizer, one["param_groups"])
        before = self.state_dict()["optimizers"]
        for place, (optimizer, one) in enumerate(zip(self.optimizers, saved, strict=True)):
            try:
                optimizer.load_state_dict(one)
            except Exception:  # a state of another size, which is refused before anything of this one changes
                for earlier, own in zip(self.optimizers[:place], before[:place], strict=True):
                    earlier.load_state_dict(own)
                raise


def parts_of(optimizer: Any) -> tuple[Any, ...]:
    """The optimizers that one of `build_optimizer` is made of: those of an `Optimizers`, or itself.

    Examples
    --------
    >>> import torch
    >>> from gigabatch.models.optimizers.row_optimizer import Optimizers, parts_of
    >>> one = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    >>> parts_of(one) == parts_of(Optimizers(one)) == (one,)
    True
    """
    return tuple(optimizer.optimizers) if isinstance(optimizer, Optimizers) else (optimizer,)
