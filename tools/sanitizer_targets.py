"""Step 5 of `tools/gpu_run.py`: every kernel on small shapes, against the reference, for compute-sanitizer to watch.

    compute-sanitizer --tool memcheck|racecheck python -m tools.sanitizer_targets [--device cuda|cpu] [--only NAME]

Shapes are no multiples of a tile, ids repeat, and rows are wider than what is read of them, so that a store or load
beyond its rows meets memory of nobody or of somebody else. A sum that differs from the reference's fails too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

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


def pooled_lookup(device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    offsets = torch.randint(0, 9, (NUM_ROWS,), generator=generator).cumsum(0).to(device)
    offsets = torch.cat([offsets.new_zeros(1), offsets])
    num_elements = int(offsets[-1])
    for place, (height, width) in enumerate(SHAPES):
        table, gradient = values(60 + place, height, width, device=device), values(70, NUM_ROWS, width, device=device)
        ids = (torch.rand(num_elements, generator=generator).square() * height).int().to(device)
        for pooling, weights in (
            ("sum", None), ("mean", None), ("max", None),
            ("sum", values(80, num_elements, device=device)), ("mean", values(81, num_elements, device=device)),
        ):  # fmt: skip
            results = []
            for version in (None, "reference"):
                module, wide = kernel("pooled_lookup", device, version), torch.zeros(NUM_ROWS, width + 3, device=device)
                chosen = torch.zeros(NUM_ROWS, width, dtype=torch.int32, device=device) if pooling == "max" else None
                spread = torch.zeros(num_elements, width, device=device)
                module.pooled_lookup(ids, offsets, weights, table, pooling, wide[:, :width], chosen)
                module.spread_gradient(gradient, offsets, weights, pooling, chosen, spread)
                results.append(
                    (wide, spread, *moved_by_lists(version, ids, offsets, weights, table, pooling, gradient))
                )
            for found, expected in zip(*results, strict=True):
                close(found, expected)


def moved_by_lists(
    version: str | None,
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    table: Tensor,
    pooling: str,
    gradient: Tensor,
) -> list[Tensor]:
    """The table after the lists have moved it; a maximum's elements have gradients of their own."""
    if pooling == "max":
        return []
    device, rule, moved = table.device, RowRule("adagrad", lr=0.05), table.clone()
    places, scales = torch.zeros_like(ids), torch.zeros(len(ids), device=device) if pooling == "mean" else None
    kernel("pooled_lookup", device, version).element_scales(offsets, weights, pooling, places, scales)
    given = weights if scales is None else scales
    state = rule.new_state(moved)
    kernel("row_update", device, version).update_elements(moved, state, ids, places, given, gradient, rule)
    return [moved]


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


def nullable() -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Floats of more than two tiles of `loops_cuda`, which of them are null, and their bitmap, which ends in the byte
    of the last and begins at the bit that is returned last."""
    values, first = torch.randn(4_099, generator=torch.Generator().manual_seed(4)).round(decimals=1).numpy(), 3
    null = np.arange(len(values)) % 5 == 2
    bitmap = np.packbits(np.concatenate([np.zeros(first, bool), ~null]), bitorder="little")
    return values, null, bitmap, first


def loops_cuda(device: str) -> None:
    values, null, bitmap, first = nullable()
    words = np.where(null, 0x7FC00000, np.where(values == 0, np.float32(0), values).view(np.uint32)).astype(np.int64)
    upper, lower = words >> 16, words & 0xFFFF
    expected = np.zeros((1 << 16, 3), np.int64)
    np.add.at(expected, upper, np.stack([np.ones_like(lower), lower, lower**2], axis=1))
    pattern = int(upper[0])
    rest = np.bincount(lower[upper == pattern], minlength=1 << 16)
    if device == "cpu":
        from gigabatch.features.exact.loops import leading_moments32

        assert np.array_equal(leading_moments32(values.view(np.uint32), bitmap, first), expected)
        return
    from gigabatch.features.exact.loops_cuda import DeviceColumn, add_leading_moments32, add_rest_counts32

    held = [torch.from_numpy(part).to(device) for part in (values, bitmap)]
    column = DeviceColumn(held[0].data_ptr(), held[1].data_ptr(), first, len(values))
    found = torch.zeros(2, 1 << 16, 3, dtype=torch.int64, device=device)
    add_leading_moments32([column] * 2, found)
    counts = torch.zeros(1, 1 << 16, dtype=torch.int32, device=device)
    rows = torch.full((1, 1 << 16), -1, dtype=torch.int32)
    rows[0, pattern] = 0
    add_rest_counts32([column], rows.to(device), counts)
    assert all(np.array_equal(part, expected) for part in found.cpu().numpy())
    assert np.array_equal(counts[0].cpu().numpy(), rest)


def row_loops_cuda(device: str) -> None:
    values, null, bitmap, first = nullable()
    table = np.array([30, 31, 32, 1], np.int32)
    codes = (np.arange(len(values)) % 4 - 1).astype(np.int32)
    filled = np.where(null, np.float32(0.5), values)
    parts = [filled.view(np.int32), null.astype(np.float32).view(np.int32), table[codes], codes]
    expected = np.stack(parts, axis=1)
    if device == "cpu":
        import pandas as pd
        import pyarrow as pa

        from gigabatch.features.engines.frame import FloatWord, IdWord
        from gigabatch.features.engines.row_loops import pack_rows

        series = pd.Series(pd.arrays.ArrowExtensionArray(pa.array(values, mask=null)), name="x")
        ids = [IdWord(codes, 2, table), IdWord(codes, 3, None)]
        found = pack_rows(len(values), 4, ids, [FloatWord(series, 0.5, 0.0, 0.0, 0, 1)])
        assert np.array_equal(found, expected)
        return
    from gigabatch.features.engines import row_loops_cuda as kernels
    from gigabatch.features.exact.loops_cuda import DeviceColumn

    held = [torch.from_numpy(part).to(device) for part in (values, bitmap, codes, table)]
    floats = DeviceColumn(held[0].data_ptr(), held[1].data_ptr(), first, len(values))
    coded = DeviceColumn(held[2].data_ptr(), 0, 0, len(codes))
    words = [
        kernels.DeviceWord(kernels.FLOAT, floats, fill=0.5), kernels.DeviceWord(kernels.FLAG, floats),
        kernels.DeviceWord(kernels.CODED, coded, table=held[3].data_ptr(), last=len(table) - 1),
        kernels.DeviceWord(kernels.COPIED, coded),
    ]  # fmt: skip
    out = torch.empty(len(values), 4, dtype=torch.int32, device=device)
    faults = torch.zeros(4, dtype=torch.int32, device=device)
    kernels.pack_words(words, out, faults)
    assert np.array_equal(out.cpu().numpy(), expected)
    assert not faults.any()


TARGETS: dict[str, Target] = {
    "lookup": lookup,
    "pooled_lookup": pooled_lookup,
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
