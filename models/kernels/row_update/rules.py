"""How a touched row of an embedding table moves: the settings that every version of `update_rows` takes.

With g the sum of a row's gradients in the batch, n how many there were, w the row, D its width, t the steps so far:

    g <- g + l2 w                                                             (l2 > 0)
    g <- g min(1, clip_ratio max(|w|, clip_floor sqrt(D)) n / |g|)            (clip_ratio set: CowClip)
    s <- mean over the row of g^2, or g^2 elementwise                         (second_moment scalar, full)

    sgd       u = g
    adagrad   v <- v + s                            u = g / (sqrt(v) + eps)
    adam      m <- b1 m + (1 - b1) g                v <- b2 v + (1 - b2) s
              u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
    lamb      as adam

    u <- u + weight_decay w
    w <- w - lr ratio u                             ratio = 1, but for lamb
                                                    min(max(|w|, trust_floor sqrt(D)) / |u|, trust_clip);
                                                    1 where |u| is 0, or |w| and trust_floor are, be trust_clip below 1

Rows that the batch does not hold stay bit for bit, their moments included (lazy updates). Sources: row-wise Adagrad
with the mean of squares, LAMB and partial row-wise LAMB as FBGEMM's `optimizers.py` has them, with the lower bound of
the weights' norm that it lacks; LAMB You et al., arXiv 1904.00962; Adagrad Duchi et al. 2011; Adam Kingma and Ba, arXiv
1412.6980; CowClip Zheng et al., arXiv 2204.06240, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gigabatch.models.errors import require, require_known

METHODS = ("sgd", "adagrad", "adam", "lamb")
SECOND_MOMENTS = ("scalar", "full")
ROW_STEPS = ("global", "row")
TRUST_FLOOR = 0.01  # the deviation that embedding tables start with
State = dict[str, Tensor]


@dataclass(frozen=True)
class RowRule:
    """The equations above with their numbers; lr and beta1 may be 0-d tensors on the tables' device.

    method: sgd, adagrad, adam or lamb. second_moment: `scalar` keeps one number a row, `full` one an element.
    step: t counts the steps of the table (`global`) or those of the row (`row`).
    l2: added to the gradient as l2 w; weight_decay: decoupled, inside LAMB's trust ratio.
    clip_ratio, clip_floor: CowClip's r and zeta; None for no clipping.
    trust_floor: lower bound of a row's root mean square in LAMB's ratio, without which a row at or near zero, whose
        steps are a share of its own size, would never leave it.
    """

    method: str = "lamb"
    lr: float | Tensor = 1e-3
    beta1: float | Tensor = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.0
    l2: float = 0.0
    second_moment: str = "scalar"
    step: str = "global"
    trust_clip: float | None = 10.0
    trust_floor: float = TRUST_FLOOR
    clip_ratio: float | None = None
    clip_floor: float = 0.0

    @property
    def has_mean(self) -> bool:
        return self.method in ("adam", "lamb")

    @property
    def has_square(self) -> bool:
        return self.method != "sgd"

    def new_state(self, table: Tensor) -> State:
        """Zeros for a table [V, D]: num_steps [] or [V, 1]; where used exp_avg [V, D], exp_avg_sq [V, 1] or [V, D]."""
        num_rows, width = table.shape
        state = {"num_steps": table.new_zeros((num_rows, 1) if self.step == "row" else ())}
        if self.has_mean:
            state["exp_avg"] = table.new_zeros(num_rows, width)
        if self.has_square:
            state["exp_avg_sq"] = table.new_zeros(num_rows, width if self.second_moment == "full" else 1)
        return state


def check_rule(rule: RowRule) -> None:
    """Raise `ModelError` for a setting that is unknown or out of range. It reads tensors, so no step calls it."""
    for name, known in (("method", METHODS), ("second_moment", SECOND_MOMENTS), ("step", ROW_STEPS)):
        require_known(f"{name} of the row optimizer", [getattr(rule, name)], known)
    for name in ("lr", "weight_decay", "l2", "clip_floor", "trust_floor"):
        require(bool(getattr(rule, name) >= 0), f"{name} must not be negative: {getattr(rule, name)}.")
    for name in ("trust_clip", "clip_ratio"):
        bound = getattr(rule, name)
        require(bound is None or bound > 0, f"{name} must be positive, or None for no bound, not {bound}.")
    betas = (rule.beta1, rule.beta2)
    require(all(0 <= beta < 1 for beta in betas), f"betas must be in [0, 1), not {betas}.")
    require(rule.eps > 0, f"eps must be positive, not {rule.eps}.")


def trust_ratio(
    weight_norm: Tensor, update_norm: Tensor, trust_clip: float | None, least_norm: float | Tensor
) -> Tensor:
    """LAMB's phi(|w|) / |u| elementwise, at most trust_clip; 1, whatever that is, where the update is 0, or the norm
    with no bound below.

    phi(z) = max(z, least_norm) is the paper's with its lower bound: where it is the norm alone, weights that start at
    zero stay near it, since every step is a share of their size.
    """
    weight_norm = weight_norm.clamp(min=least_norm)
    ratio = weight_norm / update_norm
    if trust_clip is not None:
        ratio = ratio.clamp(max=trust_clip)
    return torch.where((weight_norm > 0) & (update_norm > 0), ratio, 1.0)


def bias_corrections(steps: Tensor, beta1: float | Tensor, beta2: float) -> tuple[Tensor, Tensor]:
    """(1 - beta1^t, 1 - beta2^t) in float64: in float32 the second is off by 3e-5 at the first step."""
    counts = steps.double()
    return 1 - beta1**counts, 1 - beta2**counts
