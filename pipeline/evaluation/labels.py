"""Whether the labels of today's features mean what a model was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gigabatch.features.schema import Target

MOST_CLASSES = 10  # that a message lists


def changed_labels(
    known: Sequence[Target], asked: Sequence[Target], was: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[str]:
    """A sentence for each target whose labels are numbered or turned in another way than when the model was trained.

    Class numbers follow from the sorted classes of a train split, so the same number may be another class today; and
    `positive` of a configuration says which of two labels is 1, and `label_strip`, `label_steps` and `threshold` what a
    text or number means.

    Parameters
    ----------
    known, asked
        The targets of the model's schema, and of today's.
    was, now
        The configuration of the model's run, and today's, as `RunConfig.to_dict` gives them.
    """
    for old, new in zip(known, asked, strict=False):
        if old.name == new.name and old.task == new.task == "multiclass":
            yield from _changed_classes(old, new)
    old_features, features = ((config["features"] or {}) for config in (was, now))
    for key in ("task", "threshold", "late_minutes"):  # of recipes that make their label of ratings or delays
        setting, today = old_features.get(key), features.get(key)
        if setting != today:
            yield f"features.{key} was {setting!r} when the model was trained, and is {today!r} now."
    before, after = ((config.get("targets") or {}) for config in (old_features, features))
    for name in [name for name in before if name in after]:
        old_label, label = (_positive(settings[name]) for settings in (before, after))
        if old_label != label:
            yield f"target {name!r}: positive was {old_label!r} when the model was trained, and is {label!r} today."
        for key in ("label_strip", "label_steps", "threshold"):  # how a label is read
            setting, today = (settings[name].get(key) for settings in (before, after))
            setting, today = (None if found in ("", [], ()) else found for found in (setting, today))
            if setting != today:
                yield f"target {name!r}: {key} was {setting!r} when the model was trained, and is {today!r} today."


def _positive(settings: Mapping[str, Any]) -> str:
    """The label that counts as 1, which is 1 itself where none is named."""
    positive = settings.get("positive")
    return "1" if positive is None else str(positive)


def _changed_classes(old: Target, new: Target) -> Iterator[str]:
    before, now = (item.classes or tuple(map(str, range(item.num_outputs))) for item in (old, new))
    if added := [name for name in now if name not in before]:
        yield (
            f"target {new.name!r}: class(es) {_listed(added)} of the train split are new to the model, "
            f"which knows {_listed(before)}."
        )
    if gone := [name for name in before if name not in now]:
        yield (f"target {new.name!r}: class(es) {_listed(gone)}, which the model knows, are not in the train split.")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:MOST_CLASSES])) + (", ..." if len(names) > MOST_CLASSES else "")
