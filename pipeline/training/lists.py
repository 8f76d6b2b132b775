"""What a training does not do with list columns yet: it is refused before it begins (docs/lists.md)."""

from __future__ import annotations

from gigabatch.features.schema import Schema
from gigabatch.pipeline.config.config import ConfigError, RunConfig, WholeTrainSettings
from gigabatch.pipeline.training.checkpoint import TrainingError


def require_lists_fit(config: RunConfig, schema: Schema) -> None:
    """Raise `ConfigError` where the schema has list columns and the configuration asks for what has no use for them."""
    if not schema.lists:
        return
    names = ", ".join(repr(column.name) for column in schema.lists)
    asked = {
        "train.compile=off: lists of another size each time would be compiled anew": config.train.compile == "on",
    }
    for what, is_asked in asked.items():
        if is_asked:
            setting, _, reason = what.partition(": ")
            raise ConfigError(
                f"features.lists: {names}: {reason}. Set {setting}, or leave the lists (or features.history) out."
            )


def require_lists_can(settings: WholeTrainSettings, num_ranks: int) -> None:
    """Raise `TrainingError` where a training on rows with lists would do what has no use for them."""
    asked = {
        "DES sends no sums of lists. Set train.tables=sharded, or replicated": num_ranks > 1
        and settings.tables == "des",
        "a step with lists of another size each time is not compiled. Set train.compile=off": settings.compile == "on",
    }
    for what, is_asked in asked.items():
        if is_asked:
            raise TrainingError(f"list columns: {what}, or leave the lists out (features.lists, features.history).")
