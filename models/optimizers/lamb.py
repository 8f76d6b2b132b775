"""LAMB (You et al., arXiv 1904.00962): Adam whose step is scaled, layer by layer, to the norm of the layer's weights.

`Lamb` follows NVIDIA apex' FusedLAMB: one trust ratio a tensor. In embedding tables frequent and rare rows would share
that ratio; `RowOptimizer` has the form in which each row is a layer and only the rows of a batch move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gigabatch.models.errors import ModelError, require, require_known
from gigabatch.models.kernels.row_update.rules import TRUST_FLOOR, bias_corrections, trust_ratio
from gigabatch.models.optimizers.eager import EagerOptimizer
from gigabatch.models.optimizers.param_groups import linear_tables, split_parameters

SMALL_ELEMENTS = 1 << 16  # a larger parameter is a vector of its own: its copies would cost more than they save
State = dict[str, Tensor]
Group = dict[str, Any]


class Lamb(EagerOptimizer):
    """LAMB with bias correction, decoupled weight decay inside the ratio, and a norm of weights that is bounded below.

    With g the gradient, after the optional clipping, and t the number of steps so far:

        m <- b1 m + (1 - b1) g          v <- b2 v + (1 - b2) g^2
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay w
        w <- w - lr ratio u             ratio = min(max(|w|, trust_floor sqrt(n)) / |u|, trust_clip), w of n elements

    The ratio is 1 where |u| is 0, or |w| and trust_floor are. All settings but max_grad_norm can differ by group. A
    step never syncs with the host, but for the first one and those after a state was loaded or gradients came or went.
    When betas[0] moves, the bias correction uses its present value, as torch's Adam does. A step whose gradient is not
    finite changes nothing. Norms are taken in the parameter's dtype (for float32 on a CPU: 1e-5 off at a million
    elements, 2e-3 at thirty).

    Parameters
    ----------
    params : iterable of Tensor or of groups
        float32 or float64, all on one device; `lamb_param_groups` makes groups of a model.
    lr : float or 0-d Tensor, default 1e-3
        Learning rate; a tensor on the parameters' device for steps captured in a CUDA graph.
    betas : (float or 0-d Tensor, float), default (0.9, 0.999)
        b1 and b2.
    eps : float, default 1e-6
        Added to the root of the second moment.
    weight_decay : float, default 0.01
        Of the weights, inside the ratio.
    max_grad_norm : float or None, default 1.0
        The gradients of all parameters together are scaled down to this norm; None switches it off. Gradients are left
        as they were.
    trust_clip : float or None, default 10.0
        Upper bound of the ratio, but of one that is 1 since a norm is 0; None for none, as in apex.
    trust_floor : float, default 0.01
        Lower bound of the weights' root mean square in the ratio (the lower bound of the paper's phi), so that weights
        which start at zero, or come by it, learn; 0 for none, as in apex.
    always_adapt : bool, default False
        Groups without weight decay (biases, norms) have ratio 1 unless this is set.

    Raises
    ------
    ModelError
        For an unknown setting of a group, one that is out of range, or a parameter of another dtype.

    Examples
    --------
    >>> import torch
    >>> from gigabatch import Lamb
    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = Lamb([weight], lr=0.1, weight_decay=0.0, always_adapt=True, trust_clip=None)
    >>> weight.sum().backward()
    >>> optimizer.step()  # |w| is 5, so the step has the length .1 x 5
    >>> [round(value, 4) for value in weight.tolist()]
    [2.6464, 3.6464]
    """

    mark = "always_adapt"

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
        trust_floor: float = TRUST_FLOOR,
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
            "trust_floor": trust_floor,
            "always_adapt": always_adapt,
        }
        super().__init__(params, defaults)
        self.max_grad_norm = max_grad_norm  # of all groups together, so no setting of a group
        self.found_inf: Tensor | None = None  # see `non_finite.mark_non_finite`
        self._bundles: dict[int, list[Bundle]] = {}  # of each group

    def __getstate__(self) -> dict[str, Any]:
        own: dict[str, Any] = {
            "max_grad_norm": self.max_grad_norm,
            "found_inf": None,
            "_bundles": {},
        }  # of the copy's own state
        return super().__getstate__() | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a state that was saved before a setting was there
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def state_shapes(self, parameter: Tensor, group: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """As `make_bundles` begins it."""
        return {"num_steps": (), "exp_avg": tuple(parameter.shape), "exp_avg_sq": tuple(parameter.shape)}

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; settings that do not exist or are out of range are a `ModelError`."""
        known = ["params", "name", *self.defaults]
        require_known("setting of a Lamb parameter group", param_group, known)
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
        found_inf, self.found_inf = self.found_inf, None  # a mark holds for one step
        parts = [(bundle, group) for group, bundles in self._bundles_of_groups() for bundle in bundles]
        gradients = [bundle.gradient() for bundle, _ in parts]
        if not gradients:
            return loss
        norms = torch.stack(torch._foreach_norm(gradients))
        norm = torch.linalg.vector_norm(norms)
        clip = None if self.max_grad_norm is None else (norm / self.max_grad_norm).clamp(min=1.0)
        skipped = found_inf if found_inf is not None else (~norm.isfinite()).float()
        on_host = skipped.device.type == "cpu"
        if on_host and bool(skipped):
            return loss
        for (bundle, group), gradient in zip(parts, gradients, strict=True):
            step_bundle(bundle, gradient, clip, group, None if on_host else skipped)
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


def lamb_param_groups(model: nn.Module, weight_decay: float, *, tables: bool = True) -> list[Group]:
    """Parameter groups for `Lamb`: embedding tables, decayed weights, biases and norms, and linear terms.

    Tables and decayed weights are layers, whose steps follow their norm also where weight_decay is 0. Biases and norms
    do not decay. Linear terms, tables of them too, neither decay nor are layers (see `ParameterSplit`): Adam's steps.

    tables: False leaves embedding tables out, for a `RowOptimizer`. Empty groups are left out too.
    """
    split = split_parameters(model)
    terms = {table for module in linear_tables(model) for table in module.tables}
    wide = [table for table in split.embeddings if table not in terms] if tables else []
    linear = split.linear + ([table for table in split.embeddings if table in terms] if tables else [])
    groups: list[Group] = [
        {"name": "embeddings", "params": wide, "weight_decay": weight_decay, "always_adapt": True},
        {"name": "decayed", "params": split.decayed, "weight_decay": weight_decay, "always_adapt": True},
        {"name": "undecayed", "params": split.undecayed, "weight_decay": 0.0},
        {"name": "linear", "params": linear, "weight_decay": 0.0, "always_adapt": False},
    ]
    return [group for group in groups if group["params"]]


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
    require(settings["trust_floor"] >= 0, f"trust_floor must not be negative: {settings['trust_floor']}.")
    clip = settings["trust_clip"]
    require(clip is None or clip > 0, f"trust_clip must be positive, or None for no bound, not {clip}.")


# The arithmetic: many small parameters as one vector, so that a step is a few calls. A step of three linear layers and
# their batch norms took 140 calls on tensors of a few thousand elements, nearly all of it overhead. Laid end to end in
# one vector they take twenty; only norms are taken by parameter. P parameters of a bundle, N elements of them all.


class Bundle(NamedTuple):
    """P parameters that have made as many steps, and their state, of which each parameter's own state is a view.

    sizes: elements of each parameter; num_steps [], exp_avg [N], exp_avg_sq [N]; views: each one's part of exp_avg;
    root_sizes [P]: roots of `sizes`.
    """

    parameters: list[Tensor]
    sizes: list[int]
    num_steps: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    views: list[Tensor]
    root_sizes: Tensor

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
    root_sizes = torch.tensor(sizes, dtype=torch.float64).sqrt().to(means)
    return Bundle(parameters, sizes, steps, means, squares, [state["exp_avg"] for state in states], root_sizes)


def step_bundle(bundle: Bundle, gradient: Tensor, clip: Tensor | None, group: Group, skipped: Tensor | None) -> None:
    """One step of the parameters, whose gradients end to end are `gradient` [N], over `clip` [] if given.

    skipped: [] on the device, 1 where the step must change nothing; None for no such step.
    """
    parameters, sizes, steps, mean, square, *_ = bundle
    steps.add_(1 if skipped is None else 1 - skipped)
    if _is_compiled(parameters, gradient):
        from gigabatch.models.kernels.lamb import cpu as lamb_cpu

        lamb_cpu.step(parameters, int(steps), gradient, mean, square, clip, group)
        return
    if clip is not None:
        gradient = gradient / clip
    lr, (beta1, beta2) = group["lr"], group["betas"]
    kept1, kept2 = beta1, beta2
    if skipped is not None:
        gradient = torch.where(skipped > 0, 0.0, gradient)
        lr = lr * (1 - skipped)
        kept1, kept2 = (torch.where(skipped > 0, 1.0, beta) for beta in (beta1, beta2))
    mean.mul_(kept1)
    if isinstance(beta1, Tensor):  # torch's lerp would wait for the device to read it
        mean.add_(gradient * (1 - beta1))
    else:
        mean.add_(gradient, alpha=1 - beta1)
    square.mul_(kept2).addcmul_(gradient, gradient, value=1 - beta2)

    # u = (m / mean_scale) / (sqrt(v / square_scale) + eps), with mean_scale moved down, which saves a pass.
    mean_scale, square_scale = bias_corrections(steps.clamp(min=1), beta1, beta2)  # [] each
    update = mean / square.sqrt().mul_(mean_scale / square_scale.sqrt()).add_(mean_scale * group["eps"])
    parts = [part.view(parameter.shape) for part, parameter in zip(update.split(sizes), parameters, strict=True)]
    if group["weight_decay"]:
        torch._foreach_add_(parts, parameters, alpha=group["weight_decay"])
    if group["weight_decay"] or group["always_adapt"]:
        weight_norms, update_norms = torch.stack(torch._foreach_norm([*parameters, *parts])).split(len(parts))
        least_norms = bundle.root_sizes * group["trust_floor"]
        ratios = trust_ratio(weight_norms, update_norms, group["trust_clip"], least_norms)  # [P]
        torch._foreach_mul_(parts, (lr * ratios).unbind())
    else:
        update.mul_(lr)
    torch._foreach_sub_(parameters, parts)


def _is_compiled(parameters: list[Tensor], gradient: Tensor) -> bool:
    """Whether the compiled step is for these; what it takes of them is said there."""
    kind = gradient.device.type == "cpu" and gradient.dtype == torch.float32
    return kind and all(parameter.is_contiguous() for parameter in parameters)


def _end_to_end(tensors: list[Tensor]) -> Tensor:
    """All elements [N], one tensor after the other; a single tensor is not copied."""
    vectors = [tensor.reshape(-1) for tensor in tensors]
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors)
