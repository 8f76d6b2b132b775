"""Errors that a user of `models` can mend: each names the setting or the tensor, what was found, and what to do."""

from collections.abc import Collection, Iterable


class ModelError(ValueError):
    """A setting of a model, optimizer, loss or schedule, or a tensor given to one, is wrong; the message says how."""


def require(condition: bool, message: str) -> None:
    """Raise `ModelError(message)` unless the condition holds."""
    if not condition:
        raise ModelError(message)


def require_rows(rows: int) -> None:
    """Raise `ModelError` for a batch of 0 rows, which has no mean loss: what torch gives for it is NaN."""
    if rows == 0:  # not `require`, whose condition would fix the rows of a graph
        raise ModelError("loss: a batch of 0 rows has no mean loss. Leave empty batches out.")


def require_known(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise `ModelError`, which lists the known names, unless all of `names` are among them."""
    if unknown := [name for name in names if name not in known]:
        raise ModelError(f"unknown {what} {', '.join(map(repr, unknown))}. Known: {', '.join(known)}.")
