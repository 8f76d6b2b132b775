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
        "train.codistill=null: peers predict rows without lists": config.train.codistill is not None,
        "train.compile=off: lists of another size each time would be compiled anew": config.train.compile == "on",
    }
    for what, is_asked in asked.items():
        if is_asked:
            setting, _, reason = what.partition(": ")
            raise ConfigError(
                f"features.lists: {names}: {reason}. Set {setting}, or leave the lists (or features.history) out."
            )


def require_lists_can(settings: WholeTrainSettings, num_ranks: int, has_peers: bool, has_start: bool) -> None:
    """Raise `TrainingError` where a training on rows with lists would be shared, or taught or begun by another."""
    asked = {
        "several ranks do not share rows with lists yet. Start one process": num_ranks > 1,
        "peers predict rows without lists. Set train.codistill=null": has_peers,
        "a warm start carries no rows of lists. Set train.start_from=null": has_start,
        "a step with lists of another size each time is not compiled. Set train.compile=off": settings.compile == "on",
        "gradients of lists are not compressed. Set train.gradients.compress=none": settings.gradients.compress
        == "dct",
    }
    for what, is_asked in asked.items():
        if is_asked:
            raise TrainingError(f"list columns: {what}, or leave the lists out (features.lists, features.history).")
