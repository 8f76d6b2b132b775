"""Prints evidently's population stability index of the rows of `test_drift.py`, from which its literals come.

Run with evidently 0.7.23 and pandas 2, which the project does not depend on:
    python tests/pipeline/contract/evidently_numbers.py
"""

import numpy as np
import pandas as pd


def sides() -> tuple[pd.DataFrame, pd.DataFrame]:
    """40,000 old rows and 10,000 new ones of a category and a number that have both moved."""
    random = np.random.default_rng(14)
    letters = ["a", "b", "c", "d"]
    found = []
    for rows, shares, mean, deviation in (
        (40_000, (0.4, 0.3, 0.2, 0.1), 0, 1),
        (10_000, (0.3, 0.3, 0.25, 0.15), 0.4, 1.2),
    ):
        city = random.choice(letters, rows, p=shares)
        found.append(pd.DataFrame({"city": city, "price": random.normal(mean, deviation, rows).astype("float32")}))
    return found[0], found[1]


if __name__ == "__main__":
    from evidently.legacy.calculations.stattests import psi_stat_test
    from evidently.legacy.core import ColumnType

    old, new = sides()
    print("city", psi_stat_test.func(old["city"], new["city"], ColumnType.Categorical, 0.1))
