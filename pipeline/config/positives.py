"""What a run of positives alone (implicit feedback) takes where its configuration leaves it out.

Rows that are all positives teach nothing by their labels: negatives are drawn, a model's own loss compares them, and
what counts is how high it ranks what users chose. Which epochs, batch and learning rate go with it follows from the
rows (`pipeline/training/defaults.py`). Chosen by benchmarks/recommenders.py; docs/recommenders.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

NEGATIVES = {"per_positive": 8}
OPTIMIZER = {"optimizer": "adamw", "optimizer_settings": {"rowwise": True}, "weight_decay": 1.0}
RANKING = {"negatives": None}  # among all items; of drawn ones a small catalogue may have too few
# Where valid and test ask about what users had in train, too (`repeats: all`): were it no candidate but for the one
# that is asked about, a model that only remembers a user's items would rank it first.
AGAIN: dict[str, Any] = {
    "catalogue_is_without": [],
    "baselines": ["popularity", "top_frequency", "item_knn", "ease"],
}


def left_to_positives(
    of_model: Mapping[str, Mapping[str, Any]], said: Mapping[str, Collection[str]], by_steps: bool, ranks: bool
) -> dict[str, dict[str, Any]]:
    """What to fill in, by section; sections of which nothing is filled in are not there.

    Parameters
    ----------
    of_model
        What the model's class takes for positives (`Model.for_positives`).
    said
        By section, `model`, `train` and `evaluate`, the settings that the user has set.
    by_steps
        Whether the model takes steps, of an optimizer.
    ranks
        Whether the schema will name users and items, so that the evaluation can rank.

    Examples
    --------
    >>> said = {"model": {"loss"}, "train": {"negatives", "optimizer"}, "evaluate": {}}
    >>> left_to_positives({"model": {"loss": "softmax"}}, said, by_steps=True, ranks=True)
    {'evaluate': {'ranking': {'negatives': None}}}
    """
    train: dict[str, Any] = {"negatives": NEGATIVES}
    if by_steps:
        of_train = dict(of_model.get("train", {}))
        if {"optimizer", "optimizer_settings"} & set(said["train"]):  # whose rate, decay and negatives are others
            of_train = {name: value for name, value in of_train.items() if name == "select"}
        else:
            train |= OPTIMIZER
        if {"select_by", "patience"} & set(said["train"]):  # an epoch is to be chosen
            of_train.pop("select", None)
        train |= of_train
    wanted = {
        "model": of_model.get("model", {}),
        "train": train,
        "evaluate": {"ranking": RANKING} if ranks else {},
    }
    left = {
        section: {name: value for name, value in settings.items() if name not in said[section]}
        for section, settings in wanted.items()
    }
    return {section: settings for section, settings in left.items() if settings}
