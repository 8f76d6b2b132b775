"""Rows packed by the Triton kernel against the compiled loops of the CPU, bit by bit."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.engines.frame import FloatWord, IdWord
from gigabatch.features.engines.row_loops import pack_rows
from gigabatch.features.errors import DataError
from tests.examples import examples

SMALLEST = 2.0**-149
VALUE = st.one_of(
    st.sampled_from([0.0, -0.0, SMALLEST, -SMALLEST, float("nan"), 3.4e38]),
    st.floats(-1e6, 1e6, width=32),
    st.floats(width=32, allow_infinity=False),
)
SCALES = [(0.0, 0.0, 0.0), (3.7, 2.9, 0.0), (1e-3, 1e30, 0.0), (3.7, 2.9, 3.0)]  # mean, deviation, bound
TABLE = np.array([30, 31, 32, 33, 34, 1], np.int32)


def packed(device, floats, ids=()):
    """The rows and the faults of float columns (values, null, fill, mean, std, clip, flagged) and of id columns (codes,
    table or None), by the kernel; and their words for the CPU."""
    from gigabatch.features.engines import row_loops_cuda as gpu

    held, words, cpu_ids, cpu_floats = [], [], [], []

    def address(array):
        held.append(torch.from_numpy(np.ascontiguousarray(array).copy()).to(device))
        return held[-1].data_ptr() if len(array) else 0

    for number, (values, null, fill, mean, std, clip, flagged) in enumerate(floats):
        offset = 3 * number
        bits = np.packbits(np.concatenate([np.zeros(offset, bool), ~null]), bitorder="little")
        column = gpu.DeviceColumn(address(values), address(bits) if null.any() else 0, offset, len(values))
        arrow = pd.Series(pd.arrays.ArrowExtensionArray(pa.array(values, mask=null)), name=f"x{number}")
        place = len(words)
        words.append(gpu.DeviceWord(gpu.FLOAT, column, fill=fill, mean=mean, std=std, clip=clip))
        if flagged:
            words.append(gpu.DeviceWord(gpu.FLAG, column))
        cpu_floats.append(FloatWord(arrow, fill, mean, std, place, place + 1 if flagged else -1, clip))
    for codes, table in ids:
        column = gpu.DeviceColumn(address(codes), 0, 0, len(codes))
        coded = {"table": address(table), "last": len(table) - 1} if table is not None else {}
        cpu_ids.append(IdWord(codes, len(words), table))
        words.append(gpu.DeviceWord(gpu.COPIED if table is None else gpu.CODED, column, **coded))
    num_rows = len((floats or ids)[0][0])
    out = torch.full((num_rows, len(words)), -7, dtype=torch.int32, device=device)
    faults = torch.zeros(len(words), dtype=torch.int32, device=device)
    with np.errstate(over="ignore"):  # the interpreter computes with NumPy
        gpu.pack_words(words, out, faults)
    return out.cpu().numpy(), faults.cpu().tolist(), (num_rows, len(words), cpu_ids, cpu_floats)


@st.composite
def tables(draw):
    num_rows = draw(st.sampled_from([0, 1, 2, 70, 300]))
    lists = [draw(st.lists(VALUE, min_size=1, max_size=30)) for _ in range(draw(st.integers(0, 3)))]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    floats = [
        (rng.choice(np.array(values, np.float32), num_rows), rng.random(num_rows) < draw(st.sampled_from([0.0, 0.3])),
         draw(st.sampled_from([0.1, -0.0, 5.0])), *draw(st.sampled_from(SCALES)), draw(st.booleans()))
        for values in lists
    ]  # fmt: skip
    ids = [(rng.integers(-1, 5, num_rows).astype(np.int32), draw(st.sampled_from([None, TABLE]))) for _ in range(2)]
    ids.append((rng.normal(size=num_rows).astype(np.float32), None))
    return floats, ids * draw(st.sampled_from([1, 12]))  # 3 words, and more than a program writes


@given(table=tables())
@settings(max_examples=examples(25), deadline=None)
def test_rows_are_those_of_the_compiled_loops(triton_device, table):
    rows, faults, arguments = packed(triton_device, *table)
    assert faults == [0] * rows.shape[1]
    assert rows.tobytes() == pack_rows(*arguments).tobytes()


@pytest.mark.parametrize(
    ("value", "null", "std", "fault"),
    [(np.inf, False, 0.0, 2), (-np.inf, False, 2.0, 2), (np.inf, True, 2.0, 0), (1e30, False, 1e-20, 1),
     (1e30, False, 1.0, 0)],
)  # fmt: skip
def test_what_is_wrong_with_a_float_is_said_of_its_word_alone(triton_device, value, null, std, fault):
    fine = (np.ones(200, np.float32), np.zeros(200, bool), 0.0, 0.0, 1.0, 0.0, True)
    values, nulls = np.ones(200, np.float32), np.zeros(200, bool)
    values[150], nulls[150] = value, null
    _, faults, arguments = packed(triton_device, [fine, (values, nulls, 0.5, 0.0, std, 0.0, True), fine])
    assert faults == [0, 0, fault, 0, 0, 0]
    if fault:
        with pytest.raises(DataError, match="'x1' holds an infinity" if fault == 2 else "'x1'.*leaves float32"):
            pack_rows(*arguments)
