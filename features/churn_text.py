"""The churn report as plain text, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Sequence

from features.churn import CategoryChurn, Churn, ContinuousChurn, Stability

CATEGORIES = ("categorical", "null", "unseen", "PSI", "noise", "new", "vanished", "longest gone")
NUMBERS = ("continuous", "null", "mean", "std", "PSI", "noise", "1 %", "50 %", "99 %")


def churn_text(churn: Churn) -> str:
    """A table a kind of column, old and new parted by `>`, and a line a flag."""
    lines = [f"{churn.rows:,} new rows against {churn.rows_old:,} of version {churn.version}"]
    if churn.categories:
        lines += ["", *_aligned([CATEGORIES, *map(_category_row, churn.categories)])]
    if churn.numbers:
        lines += ["", *_aligned([NUMBERS, *map(_continuous_row, churn.numbers)])]
    flags = [f"{flag.column}: {flag.measure} {flag.value:.3g} (threshold {flag.threshold:g})" for flag in churn.flags]
    return "\n".join([*lines, "", *(flags or ["no flag"])])


def _category_row(item: CategoryChurn) -> tuple[str, ...]:
    gone = min(item.absent_since, default=None)
    return (
        item.column,
        _rates(item.null_rate_old, item.null_rate),
        _rates(item.unseen_rate_old, item.unseen_rate),
        *_psi(item.stability),
        f"{item.new.count:,} ({item.new.share:.2%})",
        f"{item.vanished.count:,} ({item.vanished.share:.2%})",
        "" if gone is None else f"{item.absent_since[gone]:,} since version {gone}",
    )


def _continuous_row(item: ContinuousChurn) -> tuple[str, ...]:
    shifts = {shift.percent: f"{shift.old:.4g} > {shift.new:.4g}" for shift in item.quantiles}
    return (
        item.column,
        _rates(item.null_rate_old, item.null_rate),
        _numbers(item.mean_old, item.mean),
        _numbers(item.std_old, item.std),
        *_psi(item.stability),
        *(shifts.get(percent, "") for percent in (1, 50, 99)),
    )


def _rates(old: float, new: float) -> str:
    return f"{old:.2%} > {new:.2%}"


def _numbers(old: float | None, new: float | None) -> str:
    return " > ".join("none" if value is None else f"{value:.4g}" for value in (old, new))


def _psi(found: Stability | None) -> tuple[str, str]:
    return ("", "") if found is None else (f"{found.psi:.4f}", f"{found.noise:.4f}")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
