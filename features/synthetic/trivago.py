"""A synthetic log in the format of the RecSys Challenge 2019 (trivago), of any size, with a known best MRR.

`python -m gigabatch.features.synthetic.trivago --rows 1_000_000 --out data/trivago` writes

- train.csv, test.csv: the official columns and quoting; the last clickout of half of the test sessions has no reference
- ground_truth.csv: those rows of test.csv with their reference, as the challenge's scorer reads it
- item_metadata.csv: item_id, properties
- oracle.parquet: one row a clickout with the reciprocal rank of its click under the oracle (ranking by the planted
  click probability) and under the shown order, as drawn and in expectation
- oracle.json: their means, by part: `train`, `test` (labelled), `hidden`, `all`

Blocks of users are made one after the other and appended, so memory does not grow with `rows` but for the catalogue.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gigabatch.features.errors import DataError
from gigabatch.features.synthetic import trivago_world as world
from gigabatch.features.synthetic.trivago_sessions import BLOCK_USERS, Block, simulate_block
from gigabatch.features.synthetic.trivago_world import Catalog, Effects

COLUMNS = (
    "user_id", "session_id", "timestamp", "step", "action_type", "reference", "platform", "city", "device",
    "current_filters", "impressions", "prices",
)  # fmt: skip
ROWS_PER_ITEM = 100
PARTS = ("train", "test", "hidden")
ORACLE_SCHEMA = pa.schema(
    [
        ("session_id", pa.string()), ("step", pa.int32()), ("timestamp", pa.int64()), ("part", pa.string()),
        ("candidates", pa.int32()), ("oracle_rr", pa.float32()), ("position_rr", pa.float32()),
        ("expected_oracle_rr", pa.float32()), ("expected_position_rr", pa.float32()),
    ]
)  # fmt: skip
MEASURES = ORACLE_SCHEMA.names[5:]


def quote(text: str) -> str:
    """A CSV field, in quotes where it needs them."""
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text


def _digits(numbers: np.ndarray, base: int, width: int) -> pa.Array:
    """Each uint64 as text of `width` digits."""
    alphabet = np.frombuffer(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ" if base == 36 else b"0123456789abcdef", np.uint8)
    text = np.empty((len(numbers), width), dtype=np.uint8)
    for k in range(width - 1, -1, -1):
        numbers, digit = np.divmod(numbers, np.uint64(base))
        text[:, k] = alphabet[digit]
    offsets = np.arange(len(text) + 1, dtype=np.int32) * np.int32(width)
    return pa.StringArray.from_buffers(len(text), pa.py_buffer(offsets), pa.py_buffer(text))


def city_names(seed: int, num_cities: int) -> list[str]:
    """Distinct names such as 'Varnbridge 3, Spain', always with a comma as in the official log."""
    rng = np.random.default_rng([seed, 2])
    heads = ("Var", "Lis", "Mont", "Ka", "Sal", "Bre", "Tor", "Oli", "Gran", "Che", "Pal", "Nor")
    tails = ("bridge", "ona", "berg", "ville", "mouth", "stad", "ico", "pur", "ania", "ton")
    countries = ("Australia", "Brazil", "Germany", "Spain", "France", "India", "Italy", "Japan", "Mexico", "Turkey")
    pick = [rng.integers(len(words), size=num_cities) for words in (heads, tails, countries)]
    return [f"{heads[h]}{tails[t]} {n}, {countries[c]}" for n, (h, t, c) in enumerate(zip(*pick, strict=True))]


class LogText:
    """Turns blocks of codes into lines of CSV."""

    def __init__(self, catalog: Catalog, rows: int, seed: int):
        cities = [quote(name) for name in city_names(seed, len(catalog.size))]
        pois = [f"Poi {n}" for n in range(world.POIS)]
        self.items = pa.array(catalog.item_ids).cast(pa.string())
        rest = pa.array([*cities, *pois, *world.FILTERS, *world.SORT_ORDERS])
        self.references = pa.concat_arrays([self.items, rest])
        self.cities = pa.array(cities)
        # Users have at least about twenty log rows on average, so eight is a safe bound.
        self.user_stride = 36**12 // (rows // 8 + 2 * BLOCK_USERS)
        self.seed = seed

    def user_ids(self, block_number: int) -> pa.Array:
        """Ascending ids of 12 characters, so that blocks in order make a file in order."""
        jitter = np.random.default_rng([self.seed, 3, block_number]).integers(self.user_stride, size=BLOCK_USERS)
        numbers = (block_number * BLOCK_USERS + np.arange(BLOCK_USERS)) * self.user_stride + jitter
        return _digits(numbers.astype(np.uint64), 36, 12)

    def filters(self, digits: np.ndarray) -> pa.Array:
        values, inverse = np.unique(digits, return_inverse=True)
        base = len(world.FILTERS) + 1
        names = []
        for value in values.tolist():
            chosen: list[str] = []
            while value:
                value, digit = divmod(value, base)
                chosen.insert(0, world.FILTERS[digit - 1])
            names.append("|".join(chosen))
        return pa.array(names).take(pa.array(inverse))

    def lists(self, values: np.ndarray, length: np.ndarray, names: pa.Array | None = None) -> pa.Array:
        """'a|b|c' for the first `length` values of every row."""
        flat = pa.array(values[np.arange(values.shape[1]) < length[:, None]])
        text = names.take(flat) if names is not None else flat.cast(pa.string())
        offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int32)
        return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), text), "|")

    def columns(self, block: Block, block_number: int) -> dict[str, pa.Array]:
        """Every column of the log as text, complete (no reference hidden); null where the log is empty."""
        rows, clicks = block.rows, block.clickouts
        clickout = pa.array(rows.clickout, mask=rows.clickout < 0)
        return {
            "user_id": self.user_ids(block_number).take(pa.array(rows.user)),
            "session_id": _digits(block.session_number, 16, 13).take(pa.array(rows.session)),
            "timestamp": pa.array(rows.timestamp).cast(pa.string()),
            "step": pa.array(rows.step).cast(pa.string()),
            "action_type": pa.array(world.ACTIONS).take(pa.array(rows.action)),
            "reference": self.references.take(pa.array(rows.reference, mask=rows.reference < 0)),
            "platform": pa.array(world.PLATFORMS).take(pa.array(block.platform[rows.user])),
            "city": self.cities.take(pa.array(rows.city)),
            "device": pa.array(world.DEVICES).take(pa.array(block.device[rows.user])),
            "current_filters": self.filters(rows.filters),
            "impressions": self.lists(clicks.items, clicks.length, self.items).take(clickout),
            "prices": self.lists(clicks.prices, clicks.length).take(clickout),
        }


def csv_lines(columns: dict[str, pa.Array], keep: np.ndarray) -> memoryview:
    """The rows of `keep` as CSV: one string array whose data buffer is the text."""
    last = list(columns)[-1]
    ended = {**columns, last: pc.binary_join_element_wise(columns[last], "", "\n", null_handling="replace")}
    lines = pc.binary_join_element_wise(*ended.values(), ",", null_handling="replace").filter(pa.array(keep))
    # An offset 0 array: the buffer starts with the first line; its tail may be padding.
    assert lines.offset == 0
    size = int(np.frombuffer(lines.buffers()[1], dtype=np.int32, count=len(lines) + 1)[-1])
    return memoryview(lines.buffers()[2])[:size] if size else memoryview(b"")


def oracle_measures(block: Block) -> dict[str, np.ndarray]:
    """float64 [clickouts] each: reciprocal ranks of the click, and their expectations under the planted law."""
    clicks = block.clickouts
    probability = clicks.probability
    drawn = np.take_along_axis(probability, clicks.clicked[:, None], axis=1)
    # Equal probabilities (noise labels): shown order decides, as in a stable sort.
    before = np.arange(world.LIST) < clicks.clicked[:, None]
    rank = 1 + ((probability > drawn) | ((probability == drawn) & before)).sum(axis=1)
    reciprocal = 1.0 / np.arange(1, world.LIST + 1)
    return {
        "oracle_rr": 1.0 / rank,
        "position_rr": 1.0 / (1 + clicks.clicked),
        "expected_oracle_rr": -np.sort(-probability, axis=1) @ reciprocal,
        "expected_position_rr": probability @ reciprocal,
    }


class OracleWriter:
    """Appends clickouts to oracle.parquet and keeps the sums for oracle.json."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.writer = pq.ParquetWriter(folder / "oracle.parquet", ORACLE_SCHEMA)
        self.sums = {part: np.zeros(2 + len(MEASURES)) for part in PARTS}

    def add(self, block: Block, columns: dict[str, pa.Array], in_test: np.ndarray) -> None:
        rows, clicks = block.rows, block.clickouts
        at = rows.clickout >= 0
        measures = oracle_measures(block)
        part = np.where(clicks.hidden, 2, in_test[at])
        table = {
            "session_id": columns["session_id"].filter(pa.array(at)),
            "step": pa.array(rows.step[at].astype(np.int32)),
            "timestamp": pa.array(rows.timestamp[at]),
            "part": pa.array(PARTS).take(pa.array(part)),
            "candidates": pa.array(clicks.length.astype(np.int32)),
            **{name: pa.array(values.astype(np.float32)) for name, values in measures.items()},
        }
        self.writer.write_table(pa.table(table, schema=ORACLE_SCHEMA))
        for code, name in enumerate(PARTS):
            values = np.stack([np.ones(len(part)), clicks.length, *measures.values()])
            self.sums[name] += values[:, part == code].sum(axis=1)

    def close(self, **facts: Any) -> dict:
        """Write oracle.json and return what it holds."""
        self.writer.close()
        self.sums["all"] = np.sum(list(self.sums.values()), axis=0)
        parts = {}
        for name, (clickouts, pairs, *totals) in self.sums.items():
            means = {m: total / clickouts if clickouts else None for m, total in zip(MEASURES, totals, strict=True)}
            parts[name] = {
                "clickouts": int(clickouts), "pairs": int(pairs),
                "oracle_mrr": means["oracle_rr"], "position_mrr": means["position_rr"],
                "expected_oracle_mrr": means["expected_oracle_rr"],
                "expected_position_mrr": means["expected_position_rr"],
            }  # fmt: skip
        report = {**facts, "parts": parts}
        (self.folder / "oracle.json").write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
        return report


def blocks(catalog: Catalog, effects: Effects, rows: int, seed: int, noise_labels: bool) -> Iterator[Block]:
    """Blocks of users until there are `rows` log rows; the last block is cut there."""
    number = 0
    while rows > 0:
        block = simulate_block(catalog, effects, seed, number, noise_labels).head(rows)
        yield block
        rows -= len(block.rows.step)
        number += 1


def write_metadata(path: Path, catalog: Catalog) -> None:
    with open(path, "w") as file:
        file.write("item_id,properties\n")
        for item_id, has in zip(catalog.item_ids.tolist(), catalog.attributes, strict=True):
            file.write(f"{item_id},{'|'.join(world.PROPERTIES[p] for p in np.flatnonzero(has))}\n")


def write_synthetic_log(
    folder: Path | str, rows: int, seed: int = 7, noise_labels: bool = False, effects: Effects | None = None
) -> dict:
    """Write a log of exactly `rows` rows (train.csv and test.csv together) and return what oracle.json holds.

    noise_labels: every click is uniform over its list and nothing bears on it, so no model can beat chance. All lists
    then have 25 entries, since even the length of a list tells the share of clicks: chance is an AUC of 0.5.
    effects: sizes of the planted preferences.
    The same arguments give the same bytes. About ten million rows a minute on one core, in under 500 MB of memory.
    """
    if rows < 1:
        raise DataError(f"write_synthetic_log: rows must be at least 1, found {rows}.")
    folder, effects = Path(folder), effects or Effects()
    folder.mkdir(parents=True, exist_ok=True)
    smallest_city = world.LIST if noise_labels else 7
    catalog = world.make_catalog(max(400, rows // ROWS_PER_ITEM), seed, effects, smallest_city)
    text, oracle = LogText(catalog, rows, seed), OracleWriter(folder)
    header = (",".join(COLUMNS) + "\n").encode()
    names = ("train.csv", "test.csv", "ground_truth.csv")
    train, test, truth = (open(folder / name, "wb") for name in names)  # noqa: SIM115
    with train, test, truth:
        for file in (train, test, truth):
            file.write(header)
        for number, block in enumerate(blocks(catalog, effects, rows, seed, noise_labels)):
            columns = text.columns(block, number)
            in_test = block.in_test[block.rows.session]
            oracle.add(block, columns, in_test)
            hidden = np.zeros(len(in_test), dtype=bool)
            hidden[block.rows.clickout >= 0] = block.clickouts.hidden
            train.write(csv_lines(columns, ~in_test))
            truth.write(csv_lines(columns, hidden))
            columns["reference"] = pc.if_else(pa.array(hidden), pa.scalar(None, pa.string()), columns["reference"])
            test.write(csv_lines(columns, in_test))
    write_metadata(folder / "item_metadata.csv", catalog)
    return oracle.close(rows=rows, seed=seed, noise_labels=noise_labels, items=len(catalog.item_ids))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, required=True, help="log rows in train.csv and test.csv together")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--noise-labels", action="store_true", help="clicks uniform at random: nothing to learn")
    given = parser.parse_args(arguments)
    report = write_synthetic_log(given.out, given.rows, given.seed, given.noise_labels)
    whole = report["parts"]["all"]
    print(
        f"{given.out}: {given.rows:,} log rows, {whole['clickouts']:,} clickouts, {whole['pairs']:,} candidate pairs; "
        f"MRR by position {whole['position_mrr'] or 0:.3f}, by the oracle {whole['oracle_mrr'] or 0:.3f}"
    )


if __name__ == "__main__":
    main()
