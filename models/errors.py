"""Errors that a user of `models` can mend: each names the setting or the tensor, what was found, and what to do."""

from collections.abc import Iterable


class ModelError(ValueError):
    """A setting of a model, optimizer, loss or schedule, or a tensor given to one, is wrong; the message says how."""

    @classmethod
    def unknown(cls, what: str, found: Iterable[str], known: Iterable[str]) -> "ModelError":
        """An error for names that do not exist, which lists those that do."""
        return cls(f"unknown {what} {', '.join(map(repr, found))}. Known: {', '.join(known)}.")


def require(condition: bool, message: str) -> None:
    """Raise `ModelError(message)` unless the condition holds."""
    if not condition:
        raise ModelError(message)
