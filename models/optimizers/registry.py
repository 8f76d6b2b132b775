"""Optimizers by name, and the two settings of theirs that a schedule moves."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from gigabatch.models.errors import ModelError, require, require_known
from gigabatch.models.kernels.row_update.rules import TRUST_FLOOR
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.optimizers.lamb import Lamb, lamb_param_groups
from gigabatch.models.optimizers.param_groups import linear_tables, split_parameters
from gigabatch.models.optimizers.row_optimizer import Optimizers, RowOptimizer, require_own_tables

INITIAL_VISITS = 50.0  # 30 and 100 are level on the tables of benchmarks/quality.py (docs/training.md)


def build_optimizer(model: nn.Module, name: str, **settings: Any) -> Optimizer | Optimizers:
    """Build the optimizer `name` over the model's trainable parameters.

    Biases and the parameters of normalisation layers never decay. The tables belong to the optimizer that was built
    last: an earlier one over the same model raises `ModelError` when it is to step.

    Parameters
    ----------
    model : nn.Module
        Its `EmbeddingTables` are told which gradients the optimizer takes.
    name : str
        A key of `OPTIMIZERS`: lamb, adamw or cowclip.
    **settings
        Keyword arguments of its builder below, of which `lr` is required.

    Returns
    -------
    Optimizer or Optimizers
        One of torch's, or one for the rows of tables beside one for the rest.

    Raises
    ------
    ModelError
        For an unknown optimizer or setting, with those there are.

    Examples
    --------
    >>> from gigabatch import DeepFM, ModelInputs
    >>> from gigabatch.models.optimizers.registry import build_optimizer
    >>> model = DeepFM(ModelInputs(num_ids=(5, 7), num_floats=2), DeepFM.Settings(layers=(8,)))
    >>> parts = build_optimizer(model, "lamb", lr=0.01).optimizers  # of tables, of linear terms, of the rest
    >>> [part.param_groups[0].get("method", "layers of LAMB") for part in parts]
    ['adagrad', 'adam', 'layers of LAMB']
    """
    require_known("optimizer", [name], OPTIMIZERS)
    build = OPTIMIZERS[name]
    known = [key for key in inspect.signature(build).parameters if key != "model"]
    require_known(f"setting of {name}", settings, known)
    if "lr" not in settings:
        raise ModelError(f"{name}: the setting lr (learning rate) is missing.")
    return build(model, **settings)


def build_lamb(
    model: nn.Module,
    *,
    lr: float | Tensor,
    table_lr: float | None = None,
    weight_decay: float = 0.01,
    table_weight_decay: float | None = None,
    betas: tuple[float | Tensor, float] = (0.9, 0.999),
    eps: float = 1e-6,
    adagrad_eps: float = 1e-8,
    initial_visits: float = INITIAL_VISITS,
    max_grad_norm: float | None = 1.0,
    trust_clip: float | None = 10.0,
    trust_floor: float = TRUST_FLOOR,
    always_adapt: bool = False,
    rowwise: bool = True,
    rowwise_method: str = "adagrad",
    rowwise_second_moment: str = "scalar",
    rowwise_step: str = "global",
) -> Optimizer | Optimizers:
    """LAMB, with row-wise Adagrad on tables: MLPerf's pair for extreme batches, the best of benchmarks/batch_scaling.

    table_lr: the tables' learning rate where `lr` is that of the rest; None for the same. rowwise: only the rows of a
    batch move; False: a table is one layer of LAMB. rowwise_method: `adagrad`, or `lamb`, under which each row is a
    layer. Linear terms, which are no layers and start at zero, take Adam without decay whatever the rest takes.
    table_weight_decay: of the rows of a batch, since others do not move; None for none under `adagrad` (the pair was
    measured so) and for `weight_decay` under `lamb`. initial_visits: of row-wise Adagrad, how many visits a row counts
    as at the start, so that rare ids are not learnt by heart (`first_sums.py`); 0 for none.
    """
    require_known("rowwise_method of lamb", [rowwise_method], ("adagrad", "lamb"))
    require(
        rowwise or (table_lr is None and table_weight_decay is None),
        "lamb: with rowwise=False tables are weights like others; leave table_lr and table_weight_decay out.",
    )
    tables = row_tables(model, "rows" if rowwise else "dense")
    dense = Lamb(
        lamb_param_groups(model, weight_decay, tables=not rowwise),
        lr,
        betas,
        eps,
        weight_decay,
        max_grad_norm=max_grad_norm,
        trust_clip=trust_clip,
        trust_floor=trust_floor,
        always_adapt=always_adapt,
    )
    if not (rowwise and tables):
        return _with_dense_tables(dense, tables)
    common: dict[str, Any] = {"lr_scale": _scale(table_lr, lr), "second_moment": rowwise_second_moment}
    adam: dict[str, Any] = common | {"eps": eps, "step": rowwise_step}
    rule: dict[str, Any] = common | {"eps": adagrad_eps, "weight_decay": 0.0, "initial_visits": initial_visits}
    if rowwise_method == "lamb":
        rule = adam | {"weight_decay": weight_decay, "trust_clip": trust_clip, "trust_floor": trust_floor}
    if table_weight_decay is not None:
        rule["weight_decay"] = table_weight_decay
    linear = linear_tables(model)
    wide = [module for module in tables if module not in linear]
    found = [RowOptimizer(wide, lr, betas, method=rowwise_method, **rule)] if wide else []
    found += [RowOptimizer(linear, lr, betas, method="adam", **adam)] if linear else []
    return Optimizers(*found, dense)


def build_adamw(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    rowwise: bool = False,
    rowwise_second_moment: str = "full",
    rowwise_step: str = "global",
) -> Optimizer | Optimizers:
    """torch's fused AdamW (Loshchilov and Hutter, arXiv 1711.05101).

    rowwise: only the rows of a batch move (lazy Adam), else tables take dense gradients and decay like weights. On a
    GPU its lr and betas are host numbers, so a captured CUDA graph keeps those of the capture.
    """
    tables = row_tables(model, "rows" if rowwise else "dense")
    dense = _adamw(model, lr, weight_decay, betas, eps, tables=not rowwise)
    rule: dict[str, Any] = {"weight_decay": weight_decay, "second_moment": rowwise_second_moment, "step": rowwise_step}
    if not (rowwise and tables):
        return _with_dense_tables(dense, tables)
    return Optimizers(RowOptimizer(tables, lr, betas, method="adam", eps=eps, **rule), dense)


def build_cowclip(
    model: nn.Module,
    *,
    lr: float,
    table_lr: float | None = None,
    l2: float = 1e-5,
    clip_ratio: float = 1.0,
    clip_floor: float = 1e-5,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> Optimizer | Optimizers:
    """Adam whose tables have each row's gradient clipped to the row's norm (Zheng et al., arXiv 2204.06240).

    From a base batch scaled by k the paper keeps table_lr, multiplies lr by sqrt(k) and l2 by k. l2: of the rows of a
    batch, in their gradient; clip_ratio, clip_floor: the paper's r and zeta. Linear terms start at zero and are not
    clipped, as in the authors' code. The rest takes Adam without decay.
    """
    tables = row_tables(model, "rows")
    dense = _adamw(model, lr, 0.0, betas, eps, tables=False)
    linear = linear_tables(model)
    embeddings = [module for module in tables if module not in linear]
    rule: dict[str, Any] = {"method": "adam", "eps": eps, "l2": l2, "second_moment": "full"}
    rule["lr_scale"] = _scale(table_lr, lr)
    clip: dict[str, Any] = {"clip_ratio": clip_ratio, "clip_floor": clip_floor}
    found = [RowOptimizer(embeddings, lr, betas, **rule, **clip)] if embeddings else []
    found += [RowOptimizer(linear, lr, betas, **rule)] if linear else []
    return Optimizers(*found, dense) if found else dense


def row_tables(model: nn.Module, gradients: str) -> list[EmbeddingTables]:
    """The model's embedding tables, told which gradients its optimizer takes."""
    found = [module for module in model.modules() if isinstance(module, EmbeddingTables) and len(module.tables)]
    if gradients == "rows":
        movable = {table for module in found for table in module.tables}
        tables = set(split_parameters(model).embeddings)
        if others := [name for name, parameter in model.named_parameters() if parameter in tables - movable]:
            raise ModelError(
                f"{', '.join(others)}: rows of nn.Embedding and nn.EmbeddingBag cannot be moved one by one. Use "
                "gigabatch.EmbeddingTables, or an optimizer that takes whole tables: lamb or adamw with rowwise=False."
            )
        if frozen := [name for name, parameter in model.named_parameters() if parameter in movable - tables]:
            raise ModelError(
                f"{', '.join(frozen)}: a frozen table, whose rows would be moved. Freeze it with an optimizer that "
                "takes whole tables: lamb or adamw with rowwise=False."
            )
    for module in found:
        module.gradients, module.row_optimizer = gradients, None
    return found


def _with_dense_tables(optimizer: Optimizer, tables: list[EmbeddingTables]) -> Optimizer:
    """The optimizer, which refuses to step once another one has made it a matter of rows how the tables move."""
    if tables:
        optimizer.register_step_pre_hook(
            lambda *_: require_own_tables(all(module.gradients == "dense" for module in tables))
        )
    return optimizer


def _adamw(
    model: nn.Module, lr: float, weight_decay: float, betas: tuple[float, float], eps: float, tables: bool
) -> AdamW:
    split = split_parameters(model)
    decayed = [*(split.embeddings if tables else ()), *split.decayed, *split.linear]
    groups: list[dict[str, Any]] = [
        {"name": "decayed", "params": decayed, "weight_decay": weight_decay},
        {"name": "undecayed", "params": split.undecayed, "weight_decay": 0.0},
    ]
    return AdamW([group for group in groups if group["params"]], lr=lr, betas=betas, eps=eps, fused=True)


def _scale(table_lr: float | None, lr: float | Tensor) -> float:
    require(table_lr is None or float(lr) > 0, f"table_lr {table_lr} is a multiple of lr, which must not be {lr} then.")
    return 1.0 if table_lr is None else table_lr / float(lr)


OPTIMIZERS: dict[str, Callable[..., Optimizer | Optimizers]] = {
    "lamb": build_lamb,
    "adamw": build_adamw,
    "cowclip": build_cowclip,
}


def set_lr_and_momentum(optimizer: Optimizer | Optimizers, lr: float, momentum: float) -> None:
    """Give every parameter group this learning rate and this beta1 (momentum), as one-cycle does before each step.

    A `RowOptimizer` multiplies it by its group's `lr_scale` when it steps, whoever sets the rate. A setting that is a
    tensor is filled in place, so that a CUDA graph which captured it sees the new value.
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
