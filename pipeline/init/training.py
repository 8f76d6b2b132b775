"""Which model, scale and epochs a table gets of which nothing is known but its rows and columns."""

from __future__ import annotations

from math import ceil
from typing import Any

MOST_ROWS_OF_TABM = 60_000  # above which tabular is level, and several times faster
MOST_ROWS_OF_EPOCHS, EPOCHS, MOST_EPOCHS = 20_000, 15, 40
FEWEST_VISITS = 16_000  # of rows: 200 steps of 64 rows, with a fifth of the table in valid and test


def training_for(rows: int, has_ids: bool) -> dict[str, dict[str, Any]]:
    """Sections of a configuration: of few rows many networks that share weights, on floats that no outlier leaves.

    Chosen on eighteen real tables of 1,500 to 60,000 rows (docs/init.md): `tabm` on `robust` floats is better than
    `tabular` on nearly all of them. The rule of `train.epochs` spares tables of ids, which an MLP learns by heart
    (`pipeline.training.defaults`); TabM's members do so less, and small tables need the passes.

    Parameters
    ----------
    rows
        Of the whole table, all splits together.
    has_ids
        Whether it has categorical columns.

    Returns
    -------
    dict
        Of `preprocess`, `model` and `train`, what is not left to their defaults; empty for large tables.

    Examples
    --------
    >>> training_for(5_000, True)
    {'preprocess': {'scale': 'robust'}, 'model': {'kind': 'tabm'}, 'train': {'epochs': 15}}
    >>> training_for(1_000_000, True)
    {}
    """
    if rows > MOST_ROWS_OF_TABM:
        return {}
    found: dict[str, dict[str, Any]] = {"preprocess": {"scale": "robust"}, "model": {"kind": "tabm"}}
    if has_ids and rows <= MOST_ROWS_OF_EPOCHS:
        found["train"] = {"epochs": max(EPOCHS, min(ceil(FEWEST_VISITS / max(rows, 1)), MOST_EPOCHS))}
    return found
