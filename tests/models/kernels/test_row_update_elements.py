"""Moves of rows by elements of lists that share gradients: against a slow loop, every version against the plain one."""

import numba
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigabatch.models.kernels.row_update import cpu as row_update_cpu
from gigabatch.models.kernels.row_update import elements_cpu
from gigabatch.models.kernels.row_update import reference as row_update_reference
from gigabatch.models.kernels.row_update.rules import RowRule
from tests.examples import examples
from tests.models.kernels import cases
from tests.models.kernels.test_row_update import slow

# With these some hundred elements have several chunks and buckets, and a table of few rows is partly hot.
SMALL = {"HOT_FLOATS": 40, "CHUNK_ELEMENTS": 64, "BUCKET_ELEMENTS": 8, "DIGIT_BITS": 3}
RULES = (RowRule("sgd", lr=0.1, l2=0.02), RowRule("adagrad", lr=0.1), RowRule("lamb", lr=0.1, clip_ratio=0.3))


def elements(random, num_elements, num_lists, height, width, scaled, dtype=torch.float32, kind="zipf"):
    """ids, places and scales [T], and gradients [B, width], which lie within wider rows; lists repeat ids."""
    ids = cases.ids(random, num_elements, [(height, width)], kind)[:, 0]
    places = torch.tensor(np.sort(random.integers(0, num_lists, num_elements)), dtype=torch.int32)
    scales = torch.tensor(random.normal(size=num_elements), dtype=torch.float32) if scaled else None
    return ids.contiguous(), places, scales, cases.gradient(random, num_lists, width, 3, dtype)[:, :width]


def move(update, table, batches, rule, dtype=torch.float32, device="cpu"):
    """A copy of the table and its state after a step on each batch."""
    table = table.to(device, dtype, copy=True)
    state = rule.new_state(table)
    for batch in batches:
        update(table, state, *(None if part is None else part.to(device) for part in batch), rule)
    return table.cpu(), {name: value.cpu() for name, value in state.items()}


def by_hand(table, batches, rule):
    """By the slow loop over rows of test_row_update.py, with each element's gradient made in float64."""
    whole = []
    for ids, places, scales, gradient in batches:
        ones = np.ones(len(ids)) if scales is None else scales.double().numpy()
        each = [one * gradient[place].double().numpy() for one, place in zip(ones, places.tolist(), strict=True)]
        whole.append((ids[:, None], torch.tensor(np.array(each).reshape(len(ids), -1))))
    (moved,), _ = slow([table], whole, rule)
    return torch.tensor(moved)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=cases.rule_name)
def test_the_plain_version_follows_a_slow_loop(rule, scaled):
    random = np.random.default_rng(1)
    table = cases.tables(random, [(9, 3)])[0].double()
    batches = [elements(random, 40, 7, 9, 3, scaled, torch.float64) for _ in range(2)]
    batches = [(ids, places, scales, gradient.double()) for ids, places, scales, gradient in batches]
    found, _ = move(row_update_reference.update_elements, table, batches, rule, torch.float64)
    torch.testing.assert_close(found, by_hand(table, batches, rule), rtol=1e-6, atol=1e-9)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    num_elements=st.integers(1, 400),
    num_lists=st.integers(1, 60),
    height=st.sampled_from([1, 2, 9, 100, 5000]),
    width=st.sampled_from([1, 2, 5, 8, 16, 31, 64, 70, 130]),
    seed=st.integers(0, 1000),
)
def test_the_compiled_version_moves_as_the_plain_one(monkeypatch, data, num_elements, num_lists, height, width, seed):
    for name, value in SMALL.items() if data.draw(st.booleans()) else ():
        monkeypatch.setattr(elements_cpu, name, value)
    random, rule = np.random.default_rng(seed), data.draw(st.sampled_from(RULES))
    dtype, scaled = data.draw(st.sampled_from((torch.float32, *cases.LOW))), data.draw(st.booleans())
    kind = data.draw(st.sampled_from(cases.KINDS))
    table = cases.tables(random, [(height, width)])[0]
    batches = [elements(random, num_elements, num_lists, height, width, scaled, dtype, kind) for _ in range(2)]
    exact = [(ids, places, scales, gradient.double()) for ids, places, scales, gradient in batches]
    found, state = move(row_update_cpu.update_elements, table, batches, rule)
    expected, wanted = move(row_update_reference.update_elements, table, exact, rule, torch.float64)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    for name, value in wanted.items():
        torch.testing.assert_close(state[name].double(), value, rtol=1e-4, atol=1e-5 * num_elements)
    untouched = torch.ones(height, dtype=torch.bool)
    untouched[torch.cat([batch[0] for batch in batches]).long()] = False
    assert torch.equal(found[untouched], table[untouched])


def test_the_result_is_the_same_on_any_number_of_threads():
    random = np.random.default_rng(2)
    table = cases.tables(random, [(20_000, 8)])[0]
    batch = elements(random, 60_000, 3_000, 20_000, 8, True)
    threads, results = numba.get_num_threads(), []
    try:
        for count in (1, min(2, threads)):
            numba.set_num_threads(count)
            results.append(move(row_update_cpu.update_elements, table, [batch], RULES[1])[0])
    finally:
        numba.set_num_threads(threads)
    assert torch.equal(*results)
    assert not torch.equal(results[0], table)


def test_sums_of_many_equal_elements_keep_their_digits():
    """100,000 gradients of .1 that meet one row: a sum in float32 alone is off by 1.4e-4 of itself."""
    ids, places = torch.full((100_000,), 7, dtype=torch.int32), torch.zeros(100_000, dtype=torch.int32)
    rule = RowRule("sgd", lr=1.0)
    for height in (8, 1 << 17):
        shifted = ids if height == 8 else ids + 100_000  # a hot row, and one that is not
        table, _ = move(
            row_update_cpu.update_elements,
            torch.zeros(height, 1),
            [(shifted, places, None, torch.full((1, 1), 0.1))],
            rule,
        )
        torch.testing.assert_close(float(table[int(shifted[0]), 0]), -1e4, rtol=5e-5, atol=0)


@pytest.mark.parametrize("bad", [-1, 50, 2**31 - 1])
def test_an_id_outside_its_table_is_an_error_before_anything_moves(bad):
    random = np.random.default_rng(3)
    table = cases.tables(random, [(50, 4)])[0]
    ids, *rest = elements(random, 3000, 40, 50, 4, False)
    ids[1777] = bad
    moved, state = table.clone(), RULES[1].new_state(table)
    with pytest.raises(IndexError, match=f"ids from {int(ids.min())} to {int(ids.max())}, its table has 50 rows"):
        row_update_cpu.update_elements(moved, state, ids, *rest, RULES[1])
    assert torch.equal(moved, table)
    assert not any(value.any() for value in state.values())


@pytest.mark.parametrize("update", [row_update_reference.update_elements, row_update_cpu.update_elements])
def test_no_elements_move_nothing_and_count_a_step(update):
    none = torch.empty(0, dtype=torch.int32)
    table, state = move(update, torch.ones(5, 4), [(none, none, None, torch.zeros(3, 4))], RowRule("lamb", lr=0.1))
    assert torch.equal(table, torch.ones(5, 4))
    assert float(state["num_steps"]) == 1


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("height", "width"), [(3, 5), (300, 8), (50, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_moves_as_the_plain_version(triton_device, height, width, scaled, dtype):
    from gigabatch.models.kernels.row_update import cuda as row_update_cuda

    random = np.random.default_rng(4)
    table = cases.tables(random, [(height, width)])[0]
    batches = [elements(random, 150, 20, height, width, scaled, dtype) for _ in range(2)]
    exact = [(ids, places, scales, gradient.double()) for ids, places, scales, gradient in batches]
    for rule in RULES[:2]:
        found, _ = move(row_update_cuda.update_elements, table, batches, rule, device=triton_device)
        expected, _ = move(row_update_reference.update_elements, table, exact, rule, torch.float64)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
