"""The Triton row update against the plain one in float64, within tolerances of a few float32 roundings."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigabatch.models.kernels.row_update import reference as row_update_reference
from gigabatch.models.kernels.row_update.rules import METHODS, RowRule
from tests.devices import captured
from tests.examples import examples
from tests.models.kernels import cases

# Triton's interpreter divides in every lane, in those that a mask leaves out too.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
SGD = RowRule("sgd", lr=0.1)
SINGLE, HALF = torch.float32, torch.bfloat16


def on(device, rule):
    """lr and beta1 as they are, tensors moved to the device."""
    return replace(
        rule,
        **{name: getattr(rule, name).to(device) for name in ("lr", "beta1") if torch.is_tensor(getattr(rule, name))},
    )


def run(device, tables, batches, rule):
    """Tables and states, on the CPU, after a step on each (ids, gradient)."""
    from gigabatch.models.kernels.row_update import cuda as row_update_cuda

    tables = [table.to(device, copy=True) for table in tables]
    states = [rule.new_state(table) for table in tables]
    for ids, gradient in batches:
        row_update_cuda.update_rows(tables, states, ids.to(device), gradient.to(device), on(device, rule))
    return [table.cpu() for table in tables], [{name: value.cpu() for name, value in s.items()} for s in states]


def reference(tables, batches, rule):
    """The same in float64."""
    tables = [table.double() for table in tables]
    states = [rule.new_state(table) for table in tables]
    for ids, gradient in batches:
        row_update_reference.update_rows(tables, states, ids, gradient.double(), rule)
    return tables, states


def assert_close(found, expected, tables, batches):
    """Within float32 roundings: a sum of n gradients of size 1 is off by some n eps, its square by more."""
    (found_tables, found_states), (expected_tables, expected_states) = found, expected
    num_rows = max(len(ids) for ids, _ in batches)
    for column in range(len(tables)):
        torch.testing.assert_close(found_tables[column].double(), expected_tables[column], rtol=2e-5, atol=2e-6)
        assert found_states[column].keys() == expected_states[column].keys()
        for name, value in expected_states[column].items():
            torch.testing.assert_close(
                found_states[column][name].double(), value, rtol=2e-5, atol=1e-6 * max(1, num_rows / 50)
            )
        held = torch.zeros(len(tables[column]), dtype=torch.bool)
        held[torch.cat([ids[:, column] for ids, _ in batches]).long()] = True
        assert torch.equal(found_tables[column][~held], tables[column][~held])


def check(device, random, num_rows, rule, shapes=cases.SHAPES, kind="uniform", num_batches=2, dtype=SINGLE):
    tables = cases.tables(random, shapes)
    width = sum(width for _, width in shapes)
    batches = [
        (cases.ids(random, num_rows, shapes, kind), cases.gradient(random, num_rows, width, 3, dtype))
        for _ in range(num_batches)
    ]
    assert_close(run(device, tables, batches, rule), reference(tables, batches, rule), tables, batches)


@pytest.mark.parametrize("rule", cases.RULES, ids=cases.rule_name)
def test_every_rule(triton_device, rule):
    shapes = [(50, 16), (3, 3), (5, 40), (70, 7)]
    check(triton_device, np.random.default_rng(1), 50, rule, shapes, kind="zipf")


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_shapes_and_duplicates(triton_device, data):
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40)), min_size=1, max_size=3))
    num_rows, kind = data.draw(st.integers(1, 200)), data.draw(st.sampled_from(cases.KINDS))
    rule = data.draw(st.sampled_from(cases.RULES))
    check(triton_device, np.random.default_rng(data.draw(st.integers(0, 99))), num_rows, rule, shapes, kind, 1)


@pytest.mark.parametrize("kind", cases.KINDS)
@pytest.mark.parametrize(("span", "tile", "num_rows"), [(8, 4, 45), (16, 16, 75), (64, 8, 107)])
def test_runs_over_many_tiles_and_spans(triton_device, monkeypatch, kind, span, tile, num_rows):
    from gigabatch.models.kernels.row_update import segments_cuda as row_segments_cuda

    monkeypatch.setattr(row_segments_cuda, "span_length", lambda num_rows: span)
    monkeypatch.setattr(row_segments_cuda, "tile_rows", lambda span, width: tile)
    rule = RowRule("adagrad", lr=0.1, clip_ratio=0.5)  # the clip's bound checks the counts
    check(triton_device, np.random.default_rng(2), num_rows, rule, [(70, 4), (90, 8)], kind, 1)


def test_runs_longer_than_the_slots_added_at_a_time(triton_device, monkeypatch):
    from gigabatch.models.kernels.row_update import segments_cuda as row_segments_cuda

    monkeypatch.setattr(row_segments_cuda, "span_length", lambda num_rows: 2)
    monkeypatch.setattr(row_segments_cuda, "tile_rows", lambda span, width: 2)
    # 50 slots of a run, 16 at a time: a row of 200 columns is 256 wide
    check(triton_device, np.random.default_rng(3), 100, SGD, [(2, 200)], "one-hot", 1)


def test_several_chunks_of_a_table_of_a_few_rows(triton_device):
    check(triton_device, np.random.default_rng(4), 1100, RowRule("lamb", lr=0.1), [(3, 3), (40, 4)], "zipf", 1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", cases.LOW)
def test_gradients_of_two_bytes_are_added_in_float32(triton_device, method, dtype):
    check(triton_device, np.random.default_rng(5), 45, RowRule(method, lr=0.1), dtype=dtype)


def test_learning_rate_and_momentum_on_the_device(triton_device):
    rule = RowRule("lamb", lr=torch.tensor(0.05), beta1=torch.tensor(0.85), weight_decay=0.01)
    check(triton_device, np.random.default_rng(6), 60, rule)


@pytest.mark.parametrize("shape", [(3, 4), (60, 20)])
def test_lamb_where_a_norm_is_zero(triton_device, shape):
    """A row of zeros moves as one of the floor's size, with ratio 1 where there is none; with no update a row stays."""
    ids = torch.tensor([[0], [1], [1]], dtype=torch.int32)
    gradient = torch.zeros(3, shape[1])
    gradient[0] = 2.0
    tables = [torch.ones(shape)]
    tables[0][0] = 0
    for trust_floor, ratio in ((0.0, 1.0), (0.5, 0.5)):
        rule = RowRule("lamb", lr=0.1, trust_floor=trust_floor)
        (table,), _ = run(triton_device, tables, [(ids, gradient)], rule)
        wanted = torch.full((shape[1],), -0.1 * ratio)  # m / sqrt(v) = 1 at t = 1
        torch.testing.assert_close(table[0], wanted, rtol=1e-5, atol=0)
        assert torch.equal(table[1:], tables[0][1:])


def test_eps_zero_leaves_no_nan(triton_device):
    check(triton_device, np.random.default_rng(8), 40, RowRule("lamb", lr=0.1, eps=0.0), [(5, 3), (90, 7)])


@pytest.mark.parametrize("bad", [-1, 70, 2**31 - 1])
def test_an_id_outside_its_table_moves_nothing(triton_device, bad):
    shapes = [(70, 4), (3, 4), (90, 8)]
    random = np.random.default_rng(9)
    tables, ids, gradient = (
        cases.tables(random, shapes),
        cases.ids(random, 100, shapes),
        cases.gradient(random, 100, 16),
    )
    spoiled = ids.clone()
    spoiled[13] = bad
    keep = torch.arange(100) != 13
    expected, _ = reference(tables, [(ids[keep], gradient[keep])], SGD)
    if bad == 70:  # lies inside the third table
        expected[2][70] -= 0.1 * gradient[13, 8:].double()
    found, _ = run(triton_device, tables, [(spoiled, gradient)], SGD)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-6)


def test_an_empty_batch_is_a_step_without_rows(triton_device):
    tables = cases.tables(np.random.default_rng(10), [(70, 4), (3, 4)])
    empty = (torch.empty(0, 2, dtype=torch.int32), torch.empty(0, 8))
    found, states = run(triton_device, tables, [empty], RowRule("lamb", lr=0.1))
    assert all(map(torch.equal, found, tables))
    assert [float(state["num_steps"]) for state in states] == [1, 1]


def test_the_same_bits_every_time(triton_device):
    random = np.random.default_rng(11)
    tables, ids = cases.tables(random), cases.ids(random, 150, kind="zipf")
    gradient = cases.gradient(random, 150, sum(table.shape[1] for table in tables))
    (first, _), (second, _) = (run(triton_device, tables, [(ids, gradient)], RowRule("lamb", lr=0.1)) for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [300, 20_000])
@pytest.mark.parametrize("kind", cases.KINDS)
def test_large_tables_on_the_gpu(num_rows, kind):
    shapes = [(100_000, 16), (50_000, 64), (3000, 128), (200, 8), (3, 3), (100, 600)]
    check("cuda", np.random.default_rng(13), num_rows, RowRule("lamb", lr=0.05), shapes, kind, 2, HALF)


def test_a_captured_graph_follows_ids_and_schedule(triton_device):
    from gigabatch.models.kernels.row_update import cuda as row_update_cuda

    random = np.random.default_rng(14)
    tables = cases.tables(random)
    width = sum(table.shape[1] for table in tables)
    rows = 300 if triton_device == "cuda" else 60
    batches = [(cases.ids(random, rows), cases.gradient(random, rows, width)) for _ in range(4)]
    moved, lr = [table.to(triton_device, copy=True) for table in tables], torch.tensor(0.1, device=triton_device)
    rule = RowRule("lamb", lr=lr)
    states = [rule.new_state(table) for table in moved]
    ids, gradient = (value.to(triton_device, copy=True) for value in batches[0])
    replay = captured(  # the step before the capture counts as one
        lambda: row_update_cuda.update_rows(moved, states, ids, gradient, rule), triton_device, warmups=1
    )
    expected = [table.double() for table in tables]
    expected_states = [rule.new_state(table) for table in expected]
    for step, batch in enumerate(batches):
        if step:
            lr.fill_(0.1 / step)
            ids.copy_(batch[0])
            gradient.copy_(batch[1])
            replay()
        plain = RowRule("lamb", lr=0.1 / max(step, 1))
        row_update_reference.update_rows(expected, expected_states, batch[0], batch[1].double(), plain)
    for found, one in zip(moved, expected, strict=True):
        torch.testing.assert_close(found.cpu().double(), one, rtol=5e-5, atol=5e-6)
