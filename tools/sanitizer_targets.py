"""Step 5 of `tools/gpu_run.py`: every kernel on small shapes, against the reference, for compute-sanitizer to watch.

    compute-sanitizer --tool memcheck|racecheck python -m tools.sanitizer_targets [--device cuda|cpu] [--only NAME]

Shapes are no multiples of a tile, ids repeat, and rows are wider than what is read of them, so that a store or load
beyond its rows meets memory of nobody or of somebody else. A sum that differs from the reference's fails too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from gigabatch.features.engines.frame import FloatWord, IdWord
from gigabatch.features.engines.row_loops import pack_rows
from gigabatch.features.exact.loops import leading_moments32
from gigabatch.loaders.negatives.draws import KnownPositives, PopularityNegatives, UniformNegatives
from gigabatch.loaders.order.gather import gather_shuffled
from gigabatch.loaders.order.order import SampleOrder
from gigabatch.models.kernels import kernel
from gigabatch.models.kernels.row_update.rules import METHODS, RowRule

NUM_ROWS = 531
SHAPES = ((50, 16), (3, 3), (300, 8), (4, 1), (57, 4), (5, 40), (7000, 2), (70, 7))  # of tables: rows, width
Target = Callable[[str], None]


def values(seed: int, *shape: int, device: str) -> Tensor:
    """float32, the same on every device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def tables_and_ids(device: str) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(1)
    tables = [values(place, *shape, device=device) for place, shape in enumerate(SHAPES)]
    drawn = [
        torch.rand(NUM_ROWS, generator=generator).square() * height for height, _ in SHAPES
    ]  # the first ones often
    return tables, torch.stack(drawn, 1).int().to(device)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=2e-4, atol=2e-4)


def lookup(device: str) -> None:
    tables, ids = tables_and_ids(device)
    width, floats = sum(width for _, width in SHAPES), values(20, NUM_ROWS, 5, device=device)
    scale, shift = (values(seed, 5, device=device) for seed in (21, 22))
    found, expected = (torch.zeros(NUM_ROWS, width + 5, device=device) for _ in range(2))
    kernel("lookup", device).lookup(ids, tables, found, floats, scale, shift)
    kernel("lookup", device, "reference").lookup(ids, tables, expected, floats, scale, shift)
    close(found, expected)


def row_update(device: str) -> None:
    width = sum(width for _, width in SHAPES)
    for method in METHODS:
        rule, moved = RowRule(method, lr=0.05, weight_decay=0.01), []
        for version in (None, "reference"):
            tables, ids = tables_and_ids(device)
            states = [rule.new_state(table) for table in tables]
            wide = values(30, NUM_ROWS, width + 3, device=device)
            for _ in range(2):
                kernel("row_update", device, version).update_rows(tables, states, ids, wide[:, :width], rule)
            moved.append(tables)
        for found, expected in zip(*moved, strict=True):
            close(found, expected)


def folded(device: str) -> None:
    module, plain = kernel("folded", device), kernel("folded", device, "reference")
    for columns in (3, 64, 130):
        shape = (NUM_ROWS, columns)
        gradient, hidden = values(40, *shape, device=device), values(41, *shape, device=device).clamp_min_(0)
        bias, slope, offset, scale = (values(seed, columns, device=device) for seed in (42, 43, 44, 45))
        seed = torch.tensor([5, 2**32 - 2], device=device)
        pairs = [
            (module.column_moments(gradient), plain.column_moments(gradient)),
            (module.relu_moments(gradient.clone(), bias), plain.relu_moments(gradient.clone(), bias)),
            (module.dropped_sums(gradient, hidden, seed, 0.3), plain.dropped_sums(gradient, hidden, seed, 0.3)),
        ]
        for found, expected in pairs:
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one.float(), other.float(), rtol=1e-3, atol=0.05)
        for arguments in ((slope, offset), (slope, offset, scale, seed, 0.3)):
            mine, theirs = gradient.clone(), gradient.clone()
            module.norm_relu_backward(mine, hidden, *arguments)
            plain.norm_relu_backward(theirs, hidden, *arguments)
            close(mine, theirs)


def dropout(device: str) -> None:
    for columns in (3, 130):
        given, seed = values(50, NUM_ROWS, columns, device=device), torch.tensor([7, 9], device=device)
        scale, shift = (values(place, columns, device=device) for place in (51, 52))
        for moves in ((), (scale, shift)):
            found, expected = torch.empty_like(given), torch.empty_like(given)
            kernel("dropout", device).dropout(given, found, seed, 0.25, *moves)
            kernel("dropout", device, "reference").dropout(given, expected, seed, 0.25, *moves)
            close(found, expected)


def negatives(device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    users = torch.randint(0, 40, (NUM_ROWS,), generator=generator)
    items = torch.randint(3, 200, (NUM_ROWS,), generator=generator)
    known, counts = KnownPositives.from_pairs(users, items, 40), torch.bincount(items, minlength=200)
    rows = torch.arange(NUM_ROWS), users.int()
    for make in (
        lambda where: UniformNegatives(range(3, 200), 4, known, device=where),
        lambda where: UniformNegatives(range(3, 200), 4, known, replacement=False, device=where),
        lambda where: PopularityNegatives(range(3, 200), 4, counts, known=known, device=where),
    ):
        there, here = make(device)(*(column.to(device) for column in rows)), make("cpu")(*rows)
        for one, other in zip(there, here, strict=True):
            assert torch.equal(one.cpu(), other)


def order(device: str) -> None:
    for num_rows in (NUM_ROWS, 70_001):
        words = torch.arange(num_rows * 7, dtype=torch.int32, device=device).view(num_rows, 7)
        shuffled = SampleOrder(num_rows, 3, 1)
        out = torch.empty(num_rows - 10, 7, dtype=torch.int32, device=device)
        gather_shuffled(words, shuffled, 5, num_rows - 5, out)
        assert torch.equal(out.cpu(), words.cpu()[shuffled(torch.arange(5, num_rows - 5))])


def float_column(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Values float32, which of them are null, and that as a bitmap whose first value is at a bit of its own."""
    drawn = np.random.default_rng(seed)
    column, null, first = drawn.normal(size=5 * NUM_ROWS).astype(np.float32).round(1), drawn.random(5 * NUM_ROWS), 3
    bits = np.packbits(np.concatenate([np.zeros(first, bool), null >= 0.2]), bitorder="little")
    return column, null < 0.2, bits, first


def loops_cuda(device: str) -> None:
    """Counts of all float columns of a partition, and of the values in one bin; expected by NumPy."""
    columns = [float_column(seed) for seed in (60, 61)]
    words = [np.where(null, np.float32("nan"), column + 0.0).view(np.uint32) for column, null, _, _ in columns]
    expected = np.zeros((len(columns), 1 << 16, 3), np.int64)
    for counted, word in zip(expected, words, strict=True):
        low = (word & 0xFFFF).astype(np.int64)
        np.add.at(counted, word >> 16, np.stack([np.ones_like(low), low, low * low], 1))
    pattern = int(words[0][0] >> 16)
    rest = [np.bincount(word[word >> 16 == pattern] & 0xFFFF, minlength=1 << 16) for word in words]
    if device == "cpu":
        found = np.stack([leading_moments32(column.view(np.uint32), bits, at) for column, _, bits, at in columns])
        assert np.array_equal(found, expected)
        return
    from gigabatch.features.exact import loops_cuda as kernels

    held = [tuple(torch.from_numpy(part).to(device) for part in (column, bits)) for column, _, bits, _ in columns]
    placed = [
        kernels.DeviceColumn(values.data_ptr(), bits.data_ptr(), at, len(values))
        for (values, bits), (_, _, _, at) in zip(held, columns, strict=True)
    ]
    moments = torch.zeros(expected.shape, dtype=torch.int64, device=device)
    kernels.add_leading_moments32(placed, moments)
    assert np.array_equal(moments.cpu().numpy(), expected)
    counts = torch.zeros(len(columns), 1 << 16, dtype=torch.int32, device=device)
    kernels.add_rest_counts32(placed, [pattern] * len(columns), counts)
    assert np.array_equal(counts.cpu().numpy(), np.stack(rest))


def row_loops_cuda(device: str) -> None:
    """Packed rows of more words than a program writes: coded, copied, scaled and flagged; expected by NumPy."""
    codes = np.random.default_rng(62).integers(-1, 5, 5 * NUM_ROWS).astype(np.int32)
    table, fill, mean, std = np.array([30, 31, 32, 33, 34, 1], np.int32), 0.5, 0.1, 1.7
    column, null, bits, first = float_column(63)
    scaled = ((np.where(null, np.float32(fill), column).astype(np.float64) - mean) / std).astype(np.float32)
    words = [table[codes], codes, scaled.view(np.int32), null.astype(np.float32).view(np.int32)]
    expected = np.stack(words * 10, 1)
    if device == "cpu":
        arrow = pd.Series(pd.arrays.ArrowExtensionArray(pa.array(column, mask=null)), name="x")
        ids = [word for at in range(0, 40, 4) for word in (IdWord(codes, at, table), IdWord(codes, at + 1))]
        floats = [FloatWord(arrow, fill, mean, std, at + 2, at + 3) for at in range(0, 40, 4)]
        assert np.array_equal(pack_rows(len(codes), 40, ids, floats), expected)
        return
    from gigabatch.features.engines import row_loops_cuda as kernels

    held = [torch.from_numpy(part).to(device) for part in (codes, table, column, bits)]
    places = [part.data_ptr() for part in held]
    whole = kernels.DeviceColumn(places[0], 0, 0, len(codes))
    real = kernels.DeviceColumn(places[2], places[3], first, len(codes))
    described = [
        kernels.DeviceWord(kernels.CODED, whole, table=places[1], last=len(table) - 1),
        kernels.DeviceWord(kernels.COPIED, whole),
        kernels.DeviceWord(kernels.FLOAT, real, fill=fill, mean=mean, std=std),
        kernels.DeviceWord(kernels.FLAG, real),
    ]
    out = torch.empty(expected.shape, dtype=torch.int32, device=device)
    faults = torch.zeros(40, dtype=torch.int32, device=device)
    kernels.pack_words(described * 10, out, faults)
    assert np.array_equal(out.cpu().numpy(), expected)
    assert not faults.any()


TARGETS: dict[str, Target] = {
    "lookup": lookup,
    "row_update": row_update,
    "folded": folded,
    "dropout": dropout,
    "negatives": negatives,
    "order": order,
    "loops_cuda": loops_cuda,
    "row_loops_cuda": row_loops_cuda,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="default: %(default)s")
    parser.add_argument("--only", choices=tuple(TARGETS), help="one of them")
    flags = parser.parse_args()
    for name, target in TARGETS.items():
        if flags.only in (None, name):
            target(flags.device)
            if flags.device == "cuda":
                torch.cuda.synchronize()
            print(f"{name}: as the reference", flush=True)


if __name__ == "__main__":
    main()
