"""Learning rate and momentum as pure functions of the step, so that a resumed run needs no schedule state.

A schedule has `num_steps` and `at(step) -> (lr, mom)`. Step 0 is the first update and num_steps - 1 the last;
`at(num_steps)`, the end of the last step, is where the curves finish.
"""

from dataclasses import dataclass, fields
from math import cos, log2, pi, sqrt
from typing import Any, Protocol

from gigabatch.models.errors import require, require_known


class Schedule(Protocol):
    """What a training loop asks of a schedule."""

    @property
    def num_steps(self) -> int: ...

    def at(self, step: int) -> tuple[float, float]: ...


@dataclass(frozen=True)
class OneCycle:
    """fastai's `fit_one_cycle` (after Smith, arXiv 1803.09820): two half cosines for each of lr and momentum.

    The learning rate goes from lr_max / div up to lr_max over the first pct_start of the steps, then down to
    lr_max / div_final.

    Parameters
    ----------
    lr_max : float
        The peak of the learning rate.
    num_steps : int
        Updates of the whole run.
    pct_start : float, default 0.25
        Share of the steps before the peak.
    div, div_final : float, default 25 and 1e5
        lr_max over the learning rate at the start and at the end.
    moms : (float, float, float), default (0.95, 0.85, 0.95)
        Momentum at the start, at the peak of the learning rate, and at the end.

    Raises
    ------
    ModelError
        For a setting that is out of range.

    Examples
    --------
    >>> from gigabatch.models.optimizers.schedule import OneCycle
    >>> schedule = OneCycle(lr_max=0.1, num_steps=400)
    >>> schedule.at(0), schedule.at(100)
    ((0.004, 0.95), (0.1, 0.85))
    """

    lr_max: float
    num_steps: int
    pct_start: float = 0.25
    div: float = 25.0
    div_final: float = 1e5
    moms: tuple[float, float, float] = (0.95, 0.85, 0.95)

    def __post_init__(self) -> None:
        _check_run(self.lr_max, self.num_steps)
        require(0 < self.pct_start < 1, f"pct_start must be in (0, 1), not {self.pct_start}.")
        for name in ("div", "div_final"):
            require(getattr(self, name) > 0, f"{name} must be positive, not {getattr(self, name)}.")
        object.__setattr__(self, "moms", tuple(self.moms))  # YAML knows only lists
        require(len(self.moms) == 3, f"moms must be momentum at the start, the peak and the end, not {self.moms}.")
        for mom in self.moms:
            _check_momentum(mom)

    def at(self, step: int) -> tuple[float, float]:
        """(lr, momentum) for the update number `step`, from 0."""
        _check_step(step, self.num_steps)
        start, peak, end = self.lr_max / self.div, self.lr_max, self.lr_max / self.div_final
        return self._two_cosines(start, peak, end, step), self._two_cosines(*self.moms, step)

    def _two_cosines(self, start: float, peak: float, end: float, step: int) -> float:
        done = step / self.num_steps
        if done < self.pct_start:
            return _cosine(start, peak, done / self.pct_start)
        return _cosine(peak, end, (done - self.pct_start) / (1 - self.pct_start))


@dataclass(frozen=True)
class WarmupPolynomial:
    """LAMB's schedule (You et al., arXiv 1904.00962): a linear warm-up, then polynomial decay to `lr_final`.

    The first update has lr_max / warmup_steps; updates number warmup_steps - 1 and warmup_steps have lr_max, from
    where it decays. BERT's code, which counts the decay from step 0, drops abruptly at the end of the warm-up instead.
    """

    lr_max: float
    num_steps: int
    warmup_steps: int = 0
    power: float = 1.0
    lr_final: float = 0.0
    mom: float = 0.9

    def __post_init__(self) -> None:
        _check_run(self.lr_max, self.num_steps)
        _check_momentum(self.mom)
        require(
            0 <= self.warmup_steps < self.num_steps,
            f"warmup_steps must be in [0, num_steps), not {self.warmup_steps} of {self.num_steps}.",
        )
        require(self.power > 0, f"power must be positive, not {self.power}.")
        require(0 <= self.lr_final <= self.lr_max, f"lr_final must be in [0, lr_max], not {self.lr_final}.")

    def at(self, step: int) -> tuple[float, float]:
        """(lr, momentum) for the update number `step`, from 0."""
        _check_step(step, self.num_steps)
        if step < self.warmup_steps:
            return self.lr_max * (step + 1) / self.warmup_steps, self.mom
        left = (self.num_steps - step) / (self.num_steps - self.warmup_steps)
        return self.lr_final + (self.lr_max - self.lr_final) * left**self.power, self.mom


@dataclass(frozen=True)
class CosineLog:
    """Cosine waves that grow twice as long each, at (1 - cos(2 pi log2(1 + (2^cycles - 1) t))) / 2 of `lr_max`.

    RealMLP's schedule (Holzmueller et al., arXiv 2407.04491), with four waves. It begins and ends at 0 and is near 0
    between waves, so that there are several epochs from which the best may be taken. t is the share of the steps done.

    Examples
    --------
    >>> schedule = CosineLog(lr_max=1.0, num_steps=15)
    >>> [round(schedule.at(step)[0], 3) for step in (0, 1, 3, 7, 15)], round(schedule.at(5)[0], 3)
    ([0.0, 0.0, 0.0, 0.0, 0.0], 0.93)
    """

    lr_max: float
    num_steps: int
    cycles: int = 4
    mom: float = 0.9

    def __post_init__(self) -> None:
        _check_run(self.lr_max, self.num_steps)
        _check_momentum(self.mom)
        whole = isinstance(self.cycles, int) and not isinstance(self.cycles, bool)
        require(whole and self.cycles >= 1, f"cycles must be an integer from 1 up, not {self.cycles!r}.")

    def at(self, step: int) -> tuple[float, float]:
        """(lr, momentum) for the update number `step`, from 0."""
        _check_step(step, self.num_steps)
        waves = log2(1 + (2**self.cycles - 1) * step / self.num_steps)
        return self.lr_max * (1 - cos(2 * pi * waves)) / 2, self.mom


@dataclass(frozen=True)
class Constant:
    """The same learning rate and momentum at every step."""

    lr: float
    num_steps: int
    mom: float = 0.9

    def __post_init__(self) -> None:
        _check_run(self.lr, self.num_steps)
        _check_momentum(self.mom)

    def at(self, step: int) -> tuple[float, float]:
        """(lr, momentum) for the update number `step`, from 0."""
        _check_step(step, self.num_steps)
        return self.lr, self.mom


SCHEDULES: dict[str, Any] = {
    "one_cycle": OneCycle,
    "warmup_polynomial": WarmupPolynomial,
    "cosine_log": CosineLog,
    "constant": Constant,
}


def build_schedule(name: str, lr: float, num_steps: int, /, **settings: Any) -> Schedule:
    """The schedule `name`, a key of `SCHEDULES`, with its highest learning rate `lr`, over `num_steps` updates.

    settings: its further fields; one that it does not have is a `ModelError` that lists those it has.
    """
    require_known("schedule", [name], SCHEDULES)
    known = [field.name for field in fields(SCHEDULES[name]) if field.name not in ("lr", "lr_max", "num_steps")]
    require_known(f"setting of {name}", settings, known)
    schedule: Schedule = SCHEDULES[name](lr, num_steps, **settings)
    return schedule


def square_root_scaled_lr(lr: float, batch_size: int, reference_batch_size: int) -> float:
    """The learning rate for `batch_size`, given one for `reference_batch_size`: LAMB's square-root rule.

    BERT's 5e-3 at 32,768 gives 6.25e-4 at 512 (arXiv 1904.00962).
    """
    return lr * sqrt(batch_size / reference_batch_size)


def _cosine(start: float, end: float, done: float) -> float:
    """Half a cosine from `start` (done = 0) to `end` (done = 1): fastai's `SchedCos`."""
    return start + (end - start) * (1 - cos(pi * done)) / 2


def _check_run(lr: float, num_steps: int) -> None:
    require(lr > 0, f"the learning rate must be positive, not {lr}.")
    require(num_steps >= 1, f"num_steps must be at least 1, not {num_steps}.")


def _check_momentum(mom: float) -> None:
    require(0 <= mom < 1, f"momentum must be in [0, 1), not {mom}.")


def _check_step(step: int, num_steps: int) -> None:
    require(0 <= step <= num_steps, f"step {step} is outside the schedule's {num_steps} steps.")
