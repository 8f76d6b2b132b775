"""The pair table of RAPIDS' RecSys 2019 work, synthetic: 13 categorical columns (two of 900,000 values, text and
integers, one half null), 20 continuous ones with 5 % nulls, `target`, and `row_id` (25 rows a list). By seed the same
table as ../shared/bench/make_pairs.py makes.

    python -m benchmarks.pairs --rows 2000000 --out pairs.parquet [--seed 7] [--device cuda]

With a device the numbers are drawn there by torch, in blocks of a row group, and the host makes texts and writes: the
same distribution in bounded memory, but not the same rows, and other rows on another kind of device.
"""

from __future__ import annotations

import argparse
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

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
FLAGS = [f"is_{i}" for i in range(7)]
NULLS = {"current_filters": 0.55, **dict.fromkeys(CONTINUOUS, 0.05)}
EXPONENT = 0.7  # of Zipf's law, by which values are drawn
GROUP_ROWS = 500_000  # of a row group
ROWS_IN_LIST = 25  # that share a row_id


def schema() -> Schema:
    """Roles and types of the columns that the model takes."""
    columns = [Column(name, "categorical", "string" if name in TEXT else "int64") for name in CARDINALITY]
    columns += [Column(name, "categorical", "int32") for name in FLAGS]
    columns += [Column(name, "continuous", "float32") for name in CONTINUOUS]
    return Schema((*columns, Column("target", "target", "float32")), (Target("target", "binary"),))


def write_pairs(path: Path | str, rows: int, seed: int = 7) -> None:
    """The table as Parquet, row groups of 500,000."""
    rng = np.random.default_rng(seed)
    codes = {name: _zipf(rng, size, rows) for name, size in CARDINALITY.items()}
    table = {name: _column(rng, name, codes[name]) for name in CARDINALITY}
    for name in FLAGS:
        table[name] = pa.array(rng.integers(0, 2, rows).astype("int8"))
    values = rng.lognormal(0, 1, (rows, 20)).astype("float32")
    for i, name in enumerate(CONTINUOUS):
        table[name] = pa.array(values[:, i], mask=rng.random(rows) < NULLS[name])
    effects = {name: rng.normal(0, spread, CARDINALITY[name]) for name, spread in EFFECTS.items()}
    logit = -3.2 + sum(effects[name][codes[name]] for name in effects)
    logit += 0.5 * np.log(values[:, 0]) - 0.4 * np.log(values[:, 1])
    logit += 0.3 * np.log(values[:, 2]) * np.asarray(table["is_0"])
    table["target"] = pa.array((rng.random(rows) < 1 / (1 + np.exp(-logit))).astype("int8"))
    table["row_id"] = pa.array(np.arange(rows) // ROWS_IN_LIST)
    pq.write_table(pa.table(table), path, row_group_size=GROUP_ROWS)


def zipf_ranks(rng: np.random.Generator, cardinality: int, rows: int, exponent: float = EXPONENT) -> np.ndarray:
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
    null = rng.random(len(codes)) < NULLS.get(name, 0.0)
    return pa.array(values.to_pandas().mask(null)) if null.any() else values


@cache
def texts_of(name: str) -> pa.Array:
    """Every value that a column of texts can take."""
    return pa.array(map(TEXT[name], range(CARDINALITY[name])))


class DevicePairs:
    """The table's numbers, drawn by torch on `device` block after block; by seed the same on devices of one kind.

    texts: by column every value that it can take, as strings.
    """

    def __init__(self, device: str, seed: int = 7) -> None:
        self.device = torch.device(device)
        self._random = torch.Generator(self.device).manual_seed(seed)
        self._shares, self._values, self._effects = {}, {}, {}
        for name, size in CARDINALITY.items():
            share = torch.arange(1, size + 1, device=self.device).double().pow(-EXPONENT).cumsum(0)
            self._shares[name] = share / share[-1]
            self._values[name] = torch.randperm(size, generator=self._random, device=self.device)
        for name, spread in EFFECTS.items():
            drawn = torch.randn(CARDINALITY[name], generator=self._random, device=self.device, dtype=torch.float64)
            self._effects[name] = spread * drawn
        self.texts = {name: texts_of(name) for name in TEXT}

    def block(self, start: int, count: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Numbers of rows [start, start + count) by column, in the file's order, and masks of those that are null.

        Those of a column of texts are places in `texts`. To be called for one block after the other.
        """
        columns: dict[str, Tensor] = {}
        for name in CARDINALITY:
            ranks = torch.searchsorted(self._shares[name], self._uniform(count))
            columns[name] = self._values[name][ranks]
        for name in FLAGS:
            columns[name] = torch.randint(2, (count,), generator=self._random, device=self.device, dtype=torch.int8)
        normal = torch.randn(len(CONTINUOUS), count, generator=self._random, device=self.device)
        columns |= dict(zip(CONTINUOUS, normal.exp(), strict=True))
        logit = 0.5 * normal[0] - 0.4 * normal[1] + 0.3 * normal[2] * columns["is_0"] - 3.2
        for name, effect in self._effects.items():
            logit = logit + effect[columns[name]]
        columns["target"] = (self._uniform(count) < logit.sigmoid()).to(torch.int8)
        columns["row_id"] = torch.arange(start, start + count, device=self.device) // ROWS_IN_LIST
        for name in CARDINALITY.keys() - TEXT.keys():
            columns[name] = columns[name] * 11 + 5
        return columns, {name: self._uniform(count) < share for name, share in NULLS.items()}

    def _uniform(self, count: int) -> Tensor:
        """float64 [count] in [0, 1)."""
        return torch.rand(count, generator=self._random, device=self.device, dtype=torch.float64)

    def host_blocks(self, rows: int) -> Iterator[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
        """Every block of a table of `rows` rows, as `block` gives it, in host memory."""
        for start in range(0, rows, GROUP_ROWS):
            both = self.block(start, min(GROUP_ROWS, rows - start))
            numbers, nulls = ({name: part.cpu().numpy() for name, part in found.items()} for found in both)
            yield numbers, nulls

    def arrow(self, block: tuple[dict[str, np.ndarray], dict[str, np.ndarray]]) -> pa.Table:
        """A block as the file holds it."""
        numbers, nulls = block
        found = {name: pa.array(column, mask=nulls.get(name)) for name, column in numbers.items()}
        return pa.table({name: self.texts[name].take(c) if name in self.texts else c for name, c in found.items()})


def write_pairs_from_device(path: Path | str, rows: int, device: str, seed: int = 7) -> None:
    """As `write_pairs`, with numbers drawn on `device`; memory is that of a few row groups.

    Texts are made in threads, a row group each, while the one before is written.
    """
    pairs, workers = DevicePairs(device, seed), len(os.sched_getaffinity(0))
    blocks = pairs.host_blocks(rows)
    pending: deque[Any] = deque()
    with ThreadPoolExecutor(workers) as threads:
        first = pairs.arrow(next(blocks))
        # Floats hardly repeat: a dictionary of them is built in vain and takes half of the time.
        repeating = [name for name in first.column_names if name not in CONTINUOUS]
        with pq.ParquetWriter(path, first.schema, use_dictionary=repeating) as writer:
            writer.write_table(first, row_group_size=GROUP_ROWS)
            for block in blocks:
                pending.append(threads.submit(pairs.arrow, block))
                if len(pending) > workers:
                    writer.write_table(pending.popleft().result(), row_group_size=GROUP_ROWS)
            for last in pending:
                writer.write_table(last.result(), row_group_size=GROUP_ROWS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--device", default="", help="where numbers are drawn by torch; by default by NumPy")
    flags = parser.parse_args()
    if flags.device:
        write_pairs_from_device(flags.out, flags.rows, flags.device, flags.seed)
    else:
        write_pairs(flags.out, flags.rows, flags.seed)
