"""The pair table of RAPIDS' RecSys 2019 work, synthetic: 13 categorical columns (two of 900,000 values, text and
integers, one half null), 20 continuous ones with 5 % nulls, `target`, and `row_id` (25 rows a list). By seed the same
table as ../shared/bench/make_pairs.py makes.

    python -m benchmarks.pairs --rows 2000000 --out pairs.parquet [--seed 7]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigabatch.features.schema import Column, Schema, Target

CARDINALITY = {
    "user_id": 938_604, "item_id": 903_867, "platform": 55, "city": 32_762, "device": 3, "current_filters": 27_841
}  # fmt: skip
TEXT = {
    "user_id": lambda x: f"{(x * 2654435761) & 0xFFFFFFFF:08X}K",
    "platform": lambda x: f"P{x}",
    "city": lambda x: f"City {x}, Country {x % 97}",
    "device": lambda x: ["mobile", "desktop", "tablet"][x],
    "current_filters": lambda x: f"F{x}|Sort by {x % 13}",
}
EFFECTS = {"user_id": 0.5, "item_id": 0.9, "city": 0.4, "platform": 0.3}
CONTINUOUS = [f"cont_{i}" for i in range(20)]


def schema() -> Schema:
    """Roles and types of the columns that the model takes."""
    columns = [Column(name, "categorical", "string" if name in TEXT else "int64") for name in CARDINALITY]
    columns += [Column(f"is_{i}", "categorical", "int32") for i in range(7)]
    columns += [Column(name, "continuous", "float32") for name in CONTINUOUS]
    return Schema((*columns, Column("target", "target", "float32")), (Target("target", "binary"),))


def write_pairs(path: Path | str, rows: int, seed: int = 7) -> None:
    """The table as Parquet, row groups of 500,000."""
    rng = np.random.default_rng(seed)
    codes = {name: _zipf(rng, size, rows) for name, size in CARDINALITY.items()}
    table = {name: _column(rng, name, codes[name]) for name in CARDINALITY}
    for i in range(7):
        table[f"is_{i}"] = pa.array(rng.integers(0, 2, rows).astype("int8"))
    values = rng.lognormal(0, 1, (rows, 20)).astype("float32")
    for i, name in enumerate(CONTINUOUS):
        table[name] = pa.array(values[:, i], mask=rng.random(rows) < 0.05)
    effects = {name: rng.normal(0, spread, CARDINALITY[name]) for name, spread in EFFECTS.items()}
    logit = -3.2 + sum(effects[name][codes[name]] for name in effects)
    logit += 0.5 * np.log(values[:, 0]) - 0.4 * np.log(values[:, 1])
    logit += 0.3 * np.log(values[:, 2]) * np.asarray(table["is_0"])
    table["target"] = pa.array((rng.random(rows) < 1 / (1 + np.exp(-logit))).astype("int8"))
    table["row_id"] = pa.array(np.arange(rows) // 25)
    pq.write_table(pa.table(table), path, row_group_size=500_000)


def zipf_ranks(rng: np.random.Generator, cardinality: int, rows: int, exponent: float = 0.7) -> np.ndarray:
    """Numbers [rows] in [0, cardinality), number k with a share proportional to (k + 1)^-exponent."""
    share = np.cumsum(1 / np.arange(1, cardinality + 1) ** exponent)
    return np.searchsorted(share / share[-1], rng.random(rows))


def _zipf(rng: np.random.Generator, cardinality: int, rows: int) -> np.ndarray:
    shuffled = rng.permutation(cardinality)
    return shuffled[zipf_ranks(rng, cardinality, rows)]


def _column(rng: np.random.Generator, name: str, codes: np.ndarray) -> Any:
    if name not in TEXT:
        return pa.array(codes.astype("int64") * 11 + 5)
    distinct, inverse = np.unique(codes, return_inverse=True)
    values = pa.array([TEXT[name](int(x)) for x in distinct]).take(pa.array(inverse))
    null = rng.random(len(codes)) < (0.55 if name == "current_filters" else 0.0)
    return pa.array(values.to_pandas().mask(null)) if null.any() else values


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=7)
    flags = parser.parse_args()
    write_pairs(flags.out, flags.rows, flags.seed)
