"""The Triton lookup against the plain one. Copied rows are equal bit for bit; only scaled floats are rounded."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigabatch.models.kernels.lookup import reference as lookup_reference
from tests.devices import captured
from tests.examples import examples
from tests.models.kernels import cases


def run(device, ids, tables, out_width, dtype=torch.float32, **floats):
    from gigabatch.models.kernels.lookup import cuda as lookup_cuda

    out = torch.full((len(ids), out_width), 7.0, dtype=dtype, device=device)
    arguments = {name: value.to(device) for name, value in floats.items()}
    lookup_cuda.lookup(ids.to(device), [table.to(device) for table in tables], out, **arguments)
    return out.cpu()


def reference(ids, tables, out_width, **floats):
    out = torch.empty(len(ids), out_width)
    lookup_reference.lookup(ids, tables, out, **floats)
    return out


def stored(device, values, dtype):
    """Of bfloat16 the interpreter cuts the lower bits off where the GPU rounds to nearest."""
    if device == "cuda" or dtype != torch.bfloat16:
        return values.to(dtype)
    return (values.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_rows_of_any_tables_side_by_side(triton_device, data):
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 140)), min_size=1, max_size=5))
    num_rows, padding = data.draw(st.integers(0, 70)), data.draw(st.integers(0, 70))
    random = np.random.default_rng(data.draw(st.integers(0, 100)))
    tables, ids = cases.tables(random, shapes), cases.ids(random, num_rows, shapes)
    width = sum(width for _, width in shapes) + padding
    assert torch.equal(run(triton_device, ids, tables, width), reference(ids, tables, width))


@pytest.mark.parametrize("dtype", [torch.float32, *cases.LOW])
def test_floats_are_scaled_and_the_rest_is_zero(triton_device, dtype):
    random = np.random.default_rng(1)
    tables, ids = cases.tables(random), cases.ids(random, 100)
    width = sum(table.shape[1] for table in tables)
    floats, (scale, shift) = cases.gradient(random, 100, 5), cases.gradient(random, 2, 5)
    found = run(triton_device, ids, tables, width + 9, dtype, floats=floats, scale=scale, shift=shift)
    exact = floats.double() * scale.double() + shift.double()
    tolerance = 2**-22 if dtype == torch.float32 else 2**-7  # of values up to about 4: units in the last place, 8 bits
    torch.testing.assert_close(
        found[:, width : width + 5].double(), exact, rtol=tolerance, atol=4 * tolerance, check_dtype=False
    )
    rows = reference(ids, tables, width)
    assert torch.equal(found[:, :width], stored(triton_device, rows, dtype))
    assert not found[:, width + 5 :].any()


def test_floats_alone(triton_device):
    floats = cases.gradient(np.random.default_rng(3), 20, 3)
    found = run(triton_device, torch.empty(20, 0, dtype=torch.int32), [], 5, floats=floats)
    assert torch.equal(found, torch.cat([floats, torch.zeros(20, 2)], 1))


def test_ids_and_floats_inside_packed_rows(triton_device):
    random = np.random.default_rng(4)
    tables, ids, floats = cases.tables(random), cases.ids(random, 60), cases.gradient(random, 60, 4)
    packed = torch.cat([floats.view(torch.int32), ids, floats.view(torch.int32)], 1).to(triton_device)
    width = sum(table.shape[1] for table in tables) + 4
    found = run(triton_device, packed[:, 4 : 4 + len(tables)], tables, width, floats=packed.view(torch.float32)[:, :4])
    assert torch.equal(found, reference(ids, tables, width, floats=floats))


@pytest.mark.parametrize("bad", [-1, 50, 2**31 - 1])
def test_an_id_outside_its_table_reads_nan(triton_device, bad):
    random = np.random.default_rng(5)
    tables, ids = cases.tables(random, [(50, 16), (300, 8)]), cases.ids(random, 30, [(50, 16), (300, 8)])
    expected = reference(ids, tables, 24)
    expected[7, :16] = float("nan")
    ids[7, 0] = bad
    torch.testing.assert_close(run(triton_device, ids, tables, 24), expected, rtol=0, atol=0, equal_nan=True)


def test_a_captured_graph_reads_new_ids(triton_device):
    from gigabatch.models.kernels.lookup import cuda as lookup_cuda

    random = np.random.default_rng(6)
    tables, first, second = cases.tables(random), cases.ids(random, 100), cases.ids(random, 100)
    moved, ids = [table.to(triton_device) for table in tables], first.to(triton_device)
    out = torch.empty(100, sum(table.shape[1] for table in tables), device=triton_device)
    replay = captured(lambda: lookup_cuda.lookup(ids, moved, out), triton_device, warmups=1)
    ids.copy_(second)
    replay()
    assert torch.equal(out.cpu(), reference(second, tables, out.shape[1]))
