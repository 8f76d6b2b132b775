"""Which model, scale and epochs a table gets of which nothing is known but its rows and columns."""

from __future__ import annotations

from typing import Any

LEAST_ROWS, MOST_ROWS = 1_000, 60_000  # of TabM: fewer rows were not measured; of more tabular is several times faster
MOST_ROWS_OF_EPOCHS, EPOCHS = 20_000, 15


def training_for(rows: int, has_ids: bool) -> dict[str, dict[str, Any]]:
    """Sections of a configuration: of few rows many networks that share weights, on floats that no outlier leaves.

    Chosen on sixteen real tables of 1,470 to 60,000 rows (benchmarks/real_tables.py): `tabm` on `robust` floats is
    better than `tabular` on nearly all of them. The rule of `train.epochs` spares tables of ids, which an MLP learns by
    heart (`pipeline.training.defaults`); TabM's members do so less, and small tables need the passes.

    Parameters
    ----------
    rows
        Of the whole table, all splits together.
    has_ids
        Whether it has categorical columns.

    Returns
    -------
    dict
        Of `preprocess`, `model` and `train`, what is not left to their defaults; empty for very small and large tables.

    Examples
    --------
    >>> training_for(5_000, True)
    {'preprocess': {'scale': 'robust'}, 'model': {'kind': 'tabm'}, 'train': {'epochs': 15}}
    >>> training_for(1_000_000, True)
    {}
    """
    if not LEAST_ROWS <= rows <= MOST_ROWS:
        return {}
    found: dict[str, dict[str, Any]] = {"preprocess": {"scale": "robust"}, "model": {"kind": "tabm"}}
    if has_ids and rows <= MOST_ROWS_OF_EPOCHS:
        found["train"] = {"epochs": EPOCHS}
    return found
