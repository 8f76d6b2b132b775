"""Which split, model, scale and epochs a table gets of which nothing is known but its rows and columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from gigabatch.models.shelf import model_class
from gigabatch.pipeline.config.config import ConfigError, against_folds
from gigabatch.pipeline.training.defaults import FEWEST_EPOCHS, ROW_VISITS

MOST_ROWS = 60_000  # of TabM: of more rows tabular is several times faster
FEW_ROWS, FEW_EPOCHS, FEW_EPOCHS_OF_CLASSES = 100, 60, 120  # of fewer an epoch is one batch; classes need more
LEAST_ROWS_OF_EPOCHS, EPOCHS = 1_000, 15  # fewer rows are too few steps in so many
BY_PASSES = ("binary", "regression", "multiclass")
MANY_VISITS, MOST_EPOCHS_OF_MANY = 3_000_000, 20  # rows gone through, where more rows tell more than yes or no
LONG_EPOCHS = 30  # where a row tells more than yes or no: of three classes and more also of many rows
NAMES_ALONE_EPOCHS = 40  # without a float: what several names tell together alone is learnt late (docs/tried.md)
# Of rows and floats that members by folds were measured on (docs/tried.md), and are quick to train on.
FOLD_ROWS, FOLD_FLOATS, MEMBERS = range(200, 3_001), 1_000, 4
# Epochs without a better one that end a member's training: of 352 members three had a better one later.
PATIENCE = 10
LEAST_ROWS_OF_BATCHES, SMALL_BATCH = 400, 32  # fewer rows in batches of 64 are fewer than 200 steps in 40 epochs
FEWEST_TOLD = 50  # rows by which a night compares two models, however small the table
WARM_EPOCHS = 1  # of nights, which go on from weights that have been learnt
ROWS_A_FLOAT, BINS = 200, 16  # of fewer rows a float column 48 bins of each are learned by heart
# Rows of valid and of test, each: the rest is worth more where it is trained on, most of all the newest rows.
MOST_HELD, LEAST_HELD, ENOUGH_HELD, ROWS_OF_THE_RARER, ROWS_A_CLASS = 0.1, 0.025, 1_000, 100, 30


def training_for(
    rows: int,
    has_ids: bool,
    num_floats: int = 0,
    *,
    task: str = "binary",
    names: bool = False,
    at_random: bool = False,
) -> dict[str, dict[str, Any]]:
    """Sections of a configuration: of few rows many networks that share weights, on floats that no outlier leaves.

    Chosen on 24 real tables of 1,470 to 60,000 rows (benchmarks/real_tables.py) and eleven of 178 to 777
    (docs/tried.md): `tabm` on `robust` floats is better than `tabular` on nearly all of them. The rule of
    `train.epochs` spares tables of ids, which an MLP learns by heart (`pipeline.training.defaults`); TabM's members do
    so less, and ids that tell the label need the passes (docs/tried.md).

    Parameters
    ----------
    rows
        Of the whole table, all splits together.
    has_ids
        Whether it has categorical columns.
    num_floats
        How many float columns. Where there is none a binary target gets more passes.
    task
        `multiclass` where a target is, else `regression` where one is, else `binary`: the first two need twice the
        passes (docs/tried.md), regressions of more rows fewer. Of more than 60,000 rows they get up to 20.
    names
        Whether its lists are words, some of them of names in few rows each that tell of the label, such as titles of
        jobs. TabM pools them by `root`; for texts alone a mean is as good or better (docs/tried.md).
    at_random
        Whether valid is a random part of the rows, row by row. Then of 200 to 3,000 rows four members are trained,
        each on train and valid but for a fold of its own (docs/tried.md).

    Returns
    -------
    dict
        Of `preprocess`, `model` and `train`, what is not left to defaults; empty for tables of more than 60,000 rows
        with binary targets alone. Of fewer than 100 rows an epoch is a batch, and 40 are too few.

    Examples
    --------
    >>> training_for(5_000, True, 3)
    {'preprocess': {'scale': 'robust'}, 'model': {'kind': 'tabm'}, 'train': {'epochs': 15}}
    >>> training_for(5_000, True, names=True)["model"]
    {'kind': 'tabm', 'pooling': 'root'}
    >>> training_for(5_000, True)["train"]
    {'epochs': 40}
    >>> [training_for(rows, True, task="regression")["train"]["epochs"] for rows in (5_000, 20_000, 50_000)]
    [30, 20, 8]
    >>> [training_for(rows, True, task="multiclass")["train"]["epochs"] for rows in (5_000, 20_000, 50_000)]
    [30, 30, 30]
    >>> training_for(50_000, True, 3)["train"]
    {'epochs': 8}
    >>> training_for(5_000, False, num_floats=60)["preprocess"]
    {'scale': 'robust', 'bins': 16}
    >>> training_for(300, True, 1)
    {'preprocess': {'scale': 'robust'}, 'model': {'kind': 'tabm'}, 'train': {'batch_size': 32}}
    >>> training_for(2_000, True, 3, at_random=True)["train"]
    {'epochs': 15, 'ensemble': 4, 'ensemble_by': 'folds', 'patience': 10}
    >>> training_for(80, True, 3)["train"], training_for(80, True, 3, task="multiclass")["train"]
    ({'epochs': 60}, {'epochs': 120})
    >>> training_for(100_000, True), training_for(100_000, True, task="regression")
    ({}, {'train': {'epochs': 20}})
    >>> training_for(300_000, True, task="multiclass"), training_for(1_000_000, True, task="multiclass")
    ({'train': {'epochs': 10}}, {})
    """
    if rows > MOST_ROWS and task != "binary" and (epochs := MANY_VISITS // rows) > FEWEST_EPOCHS:
        return {"train": {"epochs": min(epochs, MOST_EPOCHS_OF_MANY)}}
    if rows > MOST_ROWS:
        return {}
    found: dict[str, dict[str, Any]] = {"preprocess": {"scale": "robust"}, "model": {"kind": "tabm"}}
    if names:
        found["model"]["pooling"] = "root"
    if rows < FEW_ROWS:
        return found | {"train": {"epochs": FEW_EPOCHS_OF_CLASSES if task == "multiclass" else FEW_EPOCHS}}
    if rows < ROWS_A_FLOAT * num_floats:
        found["preprocess"]["bins"] = BINS
    if has_ids and not num_floats and task == "binary":
        found["train"] = {"epochs": min(NAMES_ALONE_EPOCHS, round(ROW_VISITS / rows))}
    elif has_ids and rows >= LEAST_ROWS_OF_EPOCHS:
        most = EPOCHS if task == "binary" else LONG_EPOCHS
        found["train"] = {"epochs": most if task == "multiclass" else min(most, round(ROW_VISITS / rows))}
    if rows < LEAST_ROWS_OF_BATCHES:
        found.setdefault("train", {})["batch_size"] = SMALL_BATCH
    if at_random and rows in FOLD_ROWS and num_floats <= FOLD_FLOATS:
        found["train"] = found.get("train", {}) | {"ensemble": MEMBERS, "ensemble_by": "folds", "patience": PATIENCE}
    return found


def task_of(tasks: Iterable[str]) -> str:
    """The `task` of `training_for` of several targets: the one that needs most passes. One that is none is told where
    the targets are read.

    >>> task_of(["binary", "regression"]), task_of(["count"])
    ('regression', 'binary')
    """
    return max((task for task in tasks if task in BY_PASSES), key=BY_PASSES.index, default="binary")


def held_out_rows(rows: int, rarer: float = 0.5, classes: int = 2) -> int:
    """How many rows valid and test get, each: a tenth of few, and of many as many as tell what is measured.

    A tenth of 12,000 is 1,200; what 200 of them more tell of a model is less than what it learns from them. Of a label
    that few rows have more are held out, so that about 100 of them are; of classes 30 a class.

    Parameters
    ----------
    rows
        Of the whole table.
    rarer
        Share of the rarer label of a binary target.
    classes
        Of a multiclass target.

    Returns
    -------
    int
        At most a tenth of the rows, at least a fortieth.

    Examples
    --------
    >>> [held_out_rows(rows) for rows in (500, 10_000, 20_000, 1_000_000)]
    [50, 1000, 1000, 25000]
    >>> held_out_rows(1_000_000, rarer=0.001), held_out_rows(60_000, classes=100)
    (100000, 3000)
    """
    wanted = max(ENOUGH_HELD, rows * LEAST_HELD, ROWS_OF_THE_RARER / max(rarer, 1e-9), ROWS_A_CLASS * classes)
    return int(min(wanted, rows * MOST_HELD))


def with_words(words: Mapping[str, Any], preprocess: Any) -> Any:
    """Settings of `preprocess.columns`: those of lists of words where a user sets none.

    Parameters
    ----------
    words
        Settings by list.
    preprocess
        The section that a user sets.

    Examples
    --------
    >>> with_words({"title_words": {"min_count": 5}}, {"columns": {"city": {"min_count": 2}}})
    {'title_words': {'min_count': 5}, 'city': {'min_count': 2}}
    """
    given = preprocess.get("columns") or {} if isinstance(preprocess, Mapping) else {}
    return {**words, **given} if isinstance(given, Mapping) else given


def left_to_rows(
    given: Mapping[str, Any],
    rows: int,
    has_ids: bool,
    num_floats: int = 0,
    *,
    task: str = "binary",
    names: bool = False,
    at_random: bool = False,
) -> dict[str, dict[str, Any]]:
    """What `training_for` chooses of the settings that a user leaves out, key by key.

    Another model than the chosen one goes without its scale and epochs, which were measured with it. Folds go where
    a setting of `train` says how many models there are, or needs valid rows that none has learnt.

    Parameters
    ----------
    given
        Sections of a configuration that the user sets.
    rows, has_ids, num_floats, task, names, at_random
        As of `training_for`.

    Returns
    -------
    dict
        Sections of `training_for` without the keys that are in `given`.

    Raises
    ------
    ConfigError
        For a setting of `model` that the chosen model lacks, and tabular has.

    Examples
    --------
    >>> left_to_rows({"model": {"layers": [64]}, "train": {"epochs": 3}}, 5_000, True)
    {'preprocess': {'scale': 'robust'}, 'model': {'kind': 'tabm'}}
    >>> left_to_rows({"model": {"kind": "tabular"}}, 5_000, True)
    {}
    """
    train, asked = given.get("train", {}), given.get("model", {})
    if isinstance(train, Mapping):
        alone = "ensemble" in train or train.get("ensemble_by") == "seeds" or train.get("codistill") is not None
        at_random = at_random and not (alone or against_folds(train))
    chosen = training_for(rows, has_ids, num_floats, task=task, names=names, at_random=at_random)
    if not chosen or not isinstance(asked, Mapping):
        return {}
    kind = chosen.get("model", {}).get("kind", "tabular")
    if asked.get("kind", kind) != kind:
        return {}
    settings = {name: {item.name for item in fields(model_class(name).Settings)} for name in (kind, "tabular")}
    if lacking := sorted(name for name in asked if name not in settings[kind] and name in settings["tabular"]):
        raise ConfigError(
            f"model.{lacking[0]}: {kind} has no such setting, and is the model for {rows:,} rows where none is named. "
            f"Name the one that has it, tabular, as model.kind (of an estimator: model='tabular'), or leave it out. "
            f"Settings of {kind}: {', '.join(sorted(settings[kind]))}."
        )
    found = {}
    for name, section in chosen.items():
        known = given.get(name, {})
        if isinstance(known, Mapping) and (left := {key: value for key, value in section.items() if key not in known}):
            found[name] = left
    if isinstance(train, Mapping) and train.get("select") == "last":
        found.get("train", {}).pop("patience", None)  # or the epoch ten behind the best would be kept
    return found
