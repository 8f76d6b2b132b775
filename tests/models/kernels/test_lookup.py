"""Looked up rows and floats side by side: the plain and the numba version against torch's own embedding."""

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from gigabatch.models.kernels.lookup import cpu as lookup_cpu
from gigabatch.models.kernels.lookup import reference as lookup_reference
from tests.examples import examples
from tests.models.kernels import cases

VERSIONS = pytest.mark.parametrize("lookup", [lookup_reference.lookup, lookup_cpu.lookup], ids=["reference", "cpu"])
SPECIAL = [float("nan"), float("inf"), -float("inf"), -0.0, 3.4e38, 1e-40, 1.00390625, 1.01171875]  # ties, overflow


def run(lookup, ids, tables, width, dtype=torch.float32, **floats):
    out = torch.full((len(ids), width), 7.0, dtype=dtype)
    lookup(ids, tables, out, **floats)
    return out


def expected_rows(ids, tables):
    return torch.cat([functional.embedding(ids[:, c].long(), table) for c, table in enumerate(tables)], 1)


def same_bits(one, other):
    kind = torch.int32 if one.dtype == torch.float32 else torch.int16
    return one.dtype == other.dtype and torch.equal(one.view(kind), other.view(kind))


@VERSIONS
@pytest.mark.parametrize("dtype", [torch.float32, *cases.LOW])
@settings(max_examples=examples(30))
@given(data=st.data())
def test_rows_of_any_tables_side_by_side_and_zeros_after_them(lookup, dtype, data):
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 70)), min_size=1, max_size=5))
    num_rows, padding = data.draw(st.integers(0, 300)), data.draw(st.integers(0, 40))
    random = np.random.default_rng(data.draw(st.integers(0, 100)))
    tables, ids = cases.tables(random, shapes), cases.ids(random, num_rows, shapes)
    width = sum(width for _, width in shapes)
    found = run(lookup, ids, tables, width + padding, dtype)
    assert same_bits(found[:, :width].contiguous(), expected_rows(ids, tables).to(dtype))
    assert not found[:, width:].any()


@VERSIONS
def test_a_table_larger_than_what_is_not_fetched_ahead(lookup):
    shapes = [(lookup_cpu.NEAR_BYTES // 64 + 1, 16), (50, 3)]
    random = np.random.default_rng(1)
    tables, ids = cases.tables(random, shapes), cases.ids(random, 1000, shapes)
    assert same_bits(run(lookup, ids, tables, 19), expected_rows(ids, tables))


@VERSIONS
@pytest.mark.parametrize("dtype", cases.LOW)
@settings(max_examples=examples(60))
@given(values=st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_rounding_is_torchs(lookup, dtype, values):
    """To nearest even, overflow to infinity; a NaN stays one, whatever its payload."""
    table = torch.tensor([values + SPECIAL])
    num_values = table.shape[1]
    found = run(
        lookup,
        torch.zeros(2, 1, dtype=torch.int32),
        [table],
        2 * num_values,
        dtype,
        floats=table.expand(2, -1).contiguous(),
    )
    wanted = table.to(dtype).expand(2, -1).repeat(1, 2)
    assert torch.equal(found.isnan(), wanted.isnan())
    held = ~wanted.isnan()
    assert torch.equal(found[held], wanted[held])
    rows, kept = found[:, :num_values], held[:, :num_values]
    assert same_bits(rows[kept], table.to(dtype).expand(2, -1)[kept])  # the sign of zero too; floats go through 1 x + 0


@VERSIONS
@pytest.mark.parametrize("dtype", [torch.float32, *cases.LOW])
def test_floats_are_scaled_and_the_rest_is_zero(lookup, dtype):
    random = np.random.default_rng(2)
    tables, ids = cases.tables(random), cases.ids(random, 200)
    width = sum(table.shape[1] for table in tables)
    floats, (scale, shift) = cases.gradient(random, 200, 5), cases.gradient(random, 2, 5)
    found = run(lookup, ids, tables, width + 9, dtype, floats=floats, scale=scale, shift=shift)
    exact = floats.double() * scale.double() + shift.double()
    tolerance = 2**-22 if dtype == torch.float32 else 2**-8  # two float32 roundings; half a unit of 8 bits
    torch.testing.assert_close(found[:, width : width + 5].double(), exact, rtol=tolerance, atol=2**-21)
    assert same_bits(found[:, :width].contiguous(), expected_rows(ids, tables).to(dtype))
    assert not found[:, width + 5 :].any()


@VERSIONS
@pytest.mark.parametrize("num_rows", [0, 1, 20, 128, 129])
def test_floats_alone(lookup, num_rows):
    floats = cases.gradient(np.random.default_rng(4), num_rows, 3)
    found = run(lookup, torch.empty(num_rows, 0, dtype=torch.int32), [], 5, floats=floats)
    assert same_bits(found, torch.cat([floats, torch.zeros(num_rows, 2)], 1))


@VERSIONS
def test_ids_and_floats_inside_packed_rows_and_an_output_inside_wider_ones(lookup):
    random = np.random.default_rng(5)
    tables, ids, floats = cases.tables(random), cases.ids(random, 300), cases.gradient(random, 300, 4)
    packed = torch.cat([floats.view(torch.int32), ids, floats.view(torch.int32)], 1)
    width = sum(table.shape[1] for table in tables) + 4
    whole = torch.full((300, width + 6), 7.0)
    lookup(packed[:, 4 : 4 + len(tables)], tables, whole[:, 2 : 2 + width], floats=packed.view(torch.float32)[:, :4])
    assert same_bits(whole[:, 2 : 2 + width].contiguous(), torch.cat([expected_rows(ids, tables), floats], 1))
    assert (whole[:, :2] == 7).all()
    assert (whole[:, 2 + width :] == 7).all()


def test_tables_that_are_trained_are_read_without_a_graph():
    table = torch.nn.Parameter(torch.ones(4, 3))
    out = run(lookup_cpu.lookup, torch.zeros(2, 1, dtype=torch.int32), [table], 3)
    assert not out.requires_grad
    assert (out == 1).all()


@pytest.mark.parametrize("bad", [-1, 50, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("row", [0, 299])
def test_an_id_outside_its_table_is_an_error(bad, row):
    shapes = [(300, 8), (50, 16), (60_000, 2)]
    random = np.random.default_rng(6)
    tables, ids = cases.tables(random, shapes), cases.ids(random, 300, shapes)
    ids[row, 1] = bad
    low, high = int(ids[:, 1].min()), int(ids[:, 1].max())
    with pytest.raises(IndexError, match=f"column 1 holds ids from {low} to {high}, its table has 50 rows"):
        run(lookup_cpu.lookup, ids, tables, 26)


def test_the_same_bits_on_any_number_of_threads():
    random = np.random.default_rng(7)
    tables, ids, floats = cases.tables(random), cases.ids(random, 1000), cases.gradient(random, 1000, 3)
    width = sum(table.shape[1] for table in tables) + 3
    threads, results = numba.get_num_threads(), []
    try:
        for count in (1, min(2, threads)):
            numba.set_num_threads(count)
            results.append(run(lookup_cpu.lookup, ids, tables, width, torch.bfloat16, floats=floats))
    finally:
        numba.set_num_threads(threads)
    assert same_bits(*results)
