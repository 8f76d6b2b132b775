"""Exact sums and ranks of CuPy's arrays, and the kernels on CuPy's memory: on a GPU, against NumPy and the CPU's loops.

`tests/features/engines/test_cudf_stand_in.py` runs the same without a GPU, on a stand-in.
"""

import numpy as np
import pytest
import torch

from gigabatch.features.exact import loops
from gigabatch.features.exact.column_statistics import ColumnStatistics
from gigabatch.features.exact.dense_counts import DenseCounts
from gigabatch.features.exact.quantiles import RadixHistogram, Search, selected
from gigabatch.features.exact.sums import ExactSum, sum_of_squares

pytestmark = pytest.mark.gpu
ROWS = 3_000_000


def drawn():
    """Columns float32 [ROWS]: normal ones, mostly zeros, one value, few whole numbers."""
    rng = np.random.default_rng(7)
    normal = rng.normal(size=ROWS).astype(np.float32)
    return {
        "normal": normal,
        "zeros": np.where(rng.random(ROWS) < 0.9, np.float32(-0.0), normal),
        "constant": np.full(ROWS, 1987.5, np.float32),
        "whole": rng.integers(0, 20, ROWS).astype(np.float32),
    }


@pytest.mark.parametrize("name", ["normal", "zeros", "constant", "whole"])
def test_exact_functions_of_cupy_arrays_are_those_of_numpy(name):
    cupy = pytest.importorskip("cupy")
    values = drawn()[name]
    device = cupy.asarray(values)
    assert ExactSum.of(device) == ExactSum.of(values)
    assert sum_of_squares(device.astype("float64")) == sum_of_squares(values.astype("float64"))
    assert ColumnStatistics.of(device) == ColumnStatistics.of(values)
    assert RadixHistogram.distinct(device) == RadixHistogram.distinct(values)
    search = Search.start(RadixHistogram.of(device), [ROWS // 2, 17])
    assert selected(search, [device]).values().tolist() == np.sort(values + 0)[[ROWS // 2, 17]].tolist()


def test_kernels_count_in_cupys_memory_what_the_loops_count():
    cupy = pytest.importorskip("cupy")
    from gigabatch.features.exact.loops_cuda import DeviceColumn, add_leading_moments32, add_rest_counts32

    columns = drawn()
    bitmap = np.random.default_rng(8).integers(0, 256, ROWS // 8 + 2).astype(np.uint8)
    held = {name: (cupy.asarray(values), cupy.asarray(bitmap)) for name, values in columns.items()}
    placed = [DeviceColumn(values.data.ptr, bits.data.ptr, 3, ROWS) for values, bits in held.values()]
    found = cupy.zeros((len(columns), 1 << 16, 3), dtype="int64")
    add_leading_moments32(placed, torch.from_dlpack(found))
    for counted, values in zip(cupy.asnumpy(found), columns.values(), strict=True):
        assert np.array_equal(counted, loops.leading_moments32(values.view(np.uint32), bitmap, 3))
    searches = [Search.start(ColumnStatistics.of(values, (bitmap, 3)).histogram, [9]) for values in columns.values()]
    patterns = [search.leading_patterns() for search in searches]
    rows = torch.full((len(columns), 1 << 16), -1, dtype=torch.int32)
    for place, (pattern,) in enumerate(patterns):
        rows[place, pattern] = place
    rest = torch.from_dlpack(cupy.zeros((len(columns), 1 << 16), dtype="int32"))
    add_rest_counts32(placed, rows.to(rest.device), rest)
    for search, pattern, counts, values in zip(searches, patterns, rest, columns.values(), strict=True):
        found, expected = DenseCounts(pattern, counts[None], ROWS), search.count(values, (bitmap, 3))
        assert found.histogram() == expected
        assert found.narrowed(search).values().tolist() == search.narrowed(expected).values().tolist()
