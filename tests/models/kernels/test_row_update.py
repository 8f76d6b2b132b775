"""Moves of table rows: the plain version against a slow loop and FBGEMM's formula, the numba version against it."""

import itertools
from dataclasses import replace

import numba
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigabatch.models.kernels.row_update import cpu as row_update_cpu
from gigabatch.models.kernels.row_update import reference as row_update_reference
from gigabatch.models.kernels.row_update.rules import METHODS, ROW_STEPS, SECOND_MOMENTS, RowRule
from tests.examples import THOROUGH, examples
from tests.models.kernels import cases

# With these a batch of some hundred rows has several chunks and buckets, and tables of a few rows are partly hot.
SMALL = {"HOT_FLOATS": 40, "CHUNK_ROWS": 64, "BUCKET_GRADIENTS": 8}


def slow_step(table, moments, ids, gradient, rule):
    """One step of one table in float64 by a loop over rows, straight from the equations of rules.py.

    table [V, D]; moments: dict of m [V, D], v [V, D] (each row constant where it is scalar), t [V] and the table's
    steps; ids [B], gradient [B, D]. All are changed in place.
    """
    moments["steps"] += 1
    for row in sorted(set(ids.tolist())):
        w = table[row]
        g = sum(gradient[b] for b in range(len(ids)) if ids[b] == row)
        n = int(np.sum(ids == row))
        moments["t"][row] += 1
        t = moments["t"][row] if rule.step == "row" else moments["steps"]
        g = g + rule.l2 * w
        if rule.clip_ratio is not None:
            bound = rule.clip_ratio * max(np.linalg.norm(w), rule.clip_floor * np.sqrt(len(w))) * n
            g = g * min(1.0, bound / np.linalg.norm(g)) if g.any() else g
        s = g**2 if rule.second_moment == "full" else np.full_like(g, np.mean(g**2))
        m, v = moments["m"][row], moments["v"][row]
        if rule.method == "sgd":
            u = g
        elif rule.method == "adagrad":
            v += s
            u = g / (np.sqrt(v) + rule.eps)
        else:
            m[:] = rule.beta1 * m + (1 - rule.beta1) * g
            v[:] = rule.beta2 * v + (1 - rule.beta2) * s
            u = (m / (1 - rule.beta1**t)) / (np.sqrt(v / (1 - rule.beta2**t)) + rule.eps)
        u = u + rule.weight_decay * w
        ratio = 1.0
        weight_norm = max(np.linalg.norm(w), rule.trust_floor * np.sqrt(len(w)))
        if rule.method == "lamb" and weight_norm > 0 and np.linalg.norm(u) > 0:
            ratio = min(weight_norm / np.linalg.norm(u), rule.trust_clip or np.inf)
        table[row] = w - rule.lr * ratio * u


def slow(tables, batches, rule):
    """Tables and moments after a slow step on each batch."""
    tables = [table.double().numpy().copy() for table in tables]
    moments = [{"m": np.zeros_like(t), "v": np.zeros_like(t), "t": np.zeros(len(t), int), "steps": 0} for t in tables]
    for ids, gradient in batches:
        start = 0
        for column, table in enumerate(tables):
            part = gradient[:, start : start + table.shape[1]].double().numpy()
            slow_step(table, moments[column], ids[:, column].numpy(), part, rule)
            start += table.shape[1]
    return tables, moments


def run(update, tables, batches, rule, dtype=torch.float32):
    """Copies of the tables and their states after a step of `update` on each batch."""
    tables = [table.to(dtype, copy=True) for table in tables]
    states = [rule.new_state(table) for table in tables]
    for ids, gradient in batches:
        update(tables, states, ids, gradient, rule)
    return tables, states


def reference(tables, batches, rule):
    """The plain version in float64."""
    return run(row_update_reference.update_rows, tables, batches, rule, torch.float64)


def make(random, num_rows, shapes, kind="uniform", num_batches=2, dtype=torch.float32, padding=0):
    width = sum(width for _, width in shapes)
    return cases.tables(random, shapes), [
        (cases.ids(random, num_rows, shapes, kind), cases.gradient(random, num_rows, width, padding, dtype))
        for _ in range(num_batches)
    ]


def check(tables, batches, rule):
    """The numba version against the plain one, within float32 roundings; rows of no batch keep their bits.

    A row whose n gradients of size 1 are added in float32 is off by up to n eps (6e-8), and its square by twice that
    times its size. So tolerances are 2e-5 of a value, and 2e-6 (tables) or n / 50 of 1e-6 (moments) where it is near 0.
    """
    (found, states), (expected, wanted) = (
        run(row_update_cpu.update_rows, tables, batches, rule),
        reference(tables, batches, rule),
    )
    slack = max(1, max(len(ids) for ids, _ in batches) / 50)
    for column, table in enumerate(tables):
        torch.testing.assert_close(found[column].double(), expected[column], rtol=2e-5, atol=2e-6)
        assert states[column].keys() == wanted[column].keys()
        held = torch.zeros(len(table), dtype=torch.bool)
        held[torch.cat([ids[:, column] for ids, _ in batches]).long()] = True
        assert torch.equal(found[column][~held], table[~held])
        for name, value in wanted[column].items():
            torch.testing.assert_close(states[column][name].double(), value, rtol=2e-5, atol=1e-6 * slack)
            if value.dim():
                assert not states[column][name][~held].any()


@pytest.fixture
def small(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(row_update_cpu, name, value)


@settings(max_examples=examples(80))
@given(
    method=st.sampled_from(METHODS),
    second_moment=st.sampled_from(SECOND_MOMENTS),
    step=st.sampled_from(ROW_STEPS),
    trust_clip=st.sampled_from([None, 10.0, 0.3]),
    trust_floor=st.sampled_from([0.0, 0.01, 1.5]),
    clip_ratio=st.sampled_from([None, 0.2, 1.0]),
    clip_floor=st.sampled_from([0.0, 0.5]),
    l2=st.sampled_from([0.0, 0.1]),
    weight_decay=st.sampled_from([0.0, 0.02]),
    seed=st.integers(0, 2**31),
)
def test_the_plain_version_follows_a_slow_loop(seed, **numbers):
    random = np.random.default_rng(seed)
    rule = RowRule(lr=0.1, beta2=0.99, **numbers)
    tables, batches = make(random, 8, [(6, 3), (4, 2)], "zipf", num_batches=4)
    tables[0][0] = 0  # the zero guard
    (found, states), (expected, moments) = reference(tables, batches, rule), slow(tables, batches, rule)
    for column in range(2):
        np.testing.assert_allclose(found[column].numpy(), expected[column], rtol=1e-9, atol=1e-12)
        state, moment = states[column], moments[column]
        steps = moment["t"][:, None] if rule.step == "row" else moment["steps"]
        np.testing.assert_array_equal(state["num_steps"].numpy(), steps)
        if rule.has_mean:
            np.testing.assert_allclose(state["exp_avg"].numpy(), moment["m"], rtol=1e-9, atol=1e-12)
        if rule.has_square:
            square = state["exp_avg_sq"].expand_as(found[column]).numpy()
            np.testing.assert_allclose(square, moment["v"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("second_moment", SECOND_MOMENTS)
def test_the_first_step_of_lamb_equals_the_formula_of_fbgemms_own_test(second_moment):
    """Semantics of pytorch/FBGEMM backward_optimizers_test.py, branch LAMB / PARTIAL_ROWWISE_LAMB, after one step.

    There, whole tables are compared at once: moments start at zero, v is the row mean of g^2 for the partial form,
    bias correction uses the global iteration, weight decay is inside the update, the ratio is norm(w) / norm(u) by row
    without bound, and no gradient is clipped. It has no zero guard, so no row is zero here.
    """
    random = np.random.default_rng(7)
    betas, eps, lr, decay = (0.9, 0.99), 1e-6, 0.1, 0.02
    w, g = random.normal(size=(2, 6, 3))
    m, v = (1 - betas[0]) * g, (1 - betas[1]) * g**2
    if second_moment == "scalar":
        v = v.mean(axis=1, keepdims=True)
    u = (m / (1 - betas[0])) / (np.sqrt(v / (1 - betas[1])) + eps) + decay * w
    ratio = np.linalg.norm(w, axis=1, keepdims=True) / np.linalg.norm(u, axis=1, keepdims=True)

    rule = RowRule("lamb", lr, *betas, eps, decay, second_moment=second_moment, trust_clip=None)
    # each row twice, in falling order: a quarter of its gradient and three quarters
    ids = torch.tensor([*range(5, -1, -1)] * 2, dtype=torch.int32)[:, None]
    gradient = torch.tensor(np.concatenate([0.25 * g[::-1], 0.75 * g[::-1]]))
    (table,), (state,) = reference([torch.tensor(w)], [(ids, gradient)], rule)
    np.testing.assert_allclose(table.numpy(), w - lr * ratio * u, rtol=1e-12)
    np.testing.assert_allclose(state["exp_avg"].numpy(), m, rtol=1e-12)
    np.testing.assert_allclose(state["exp_avg_sq"].numpy(), v, rtol=1e-12)


@pytest.mark.parametrize("update", [row_update_reference.update_rows, row_update_cpu.update_rows])
def test_a_row_of_zeros_learns(update):
    """FBGEMM leaves such a row at zero for ever. With a bound below every step is lr trust_floor at least.

    Without one the first step is -lr sign(g), and the second a share of the first, lr^2: so it never gets anywhere.
    """
    ids, gradient = torch.tensor([[3]], dtype=torch.int32), torch.tensor([[2.0, -1.0, 0.5]])
    for trust_floor, size in ((0.5, 0.1), (0.0, 0.1 + 0.01)):
        rule = RowRule("lamb", 0.1, second_moment="full", trust_floor=trust_floor)
        (table,), _ = run(update, [torch.zeros(6, 3)], [(ids, gradient)] * 2, rule)
        np.testing.assert_allclose(table[3], [-size, size, -size], rtol=1e-4)
        assert not table[[0, 1, 2, 4, 5]].any()


@pytest.mark.parametrize("kind", cases.KINDS)
@pytest.mark.parametrize("rule", cases.RULES, ids=cases.rule_name)
def test_every_rule(small, rule, kind):
    check(*make(np.random.default_rng(1), 300, cases.SHAPES, kind), rule)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("dtype", cases.LOW)
def test_gradients_of_two_bytes_are_added_in_float32(small, method, padding, dtype):
    tables, batches = make(np.random.default_rng(3), 300, cases.SHAPES, "zipf", 2, dtype, padding)
    check(tables, batches, RowRule(method, lr=0.1))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_shapes_sizes_and_duplicates(monkeypatch, data):
    """Tables that are hot as a whole, in part, or but for one row; any number of chunks and buckets."""
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 40)), min_size=1, max_size=4))
    num_rows, kind = data.draw(st.integers(0, 200)), data.draw(st.sampled_from(cases.KINDS))
    monkeypatch.setattr(row_update_cpu, "HOT_FLOATS", data.draw(st.sampled_from([1, 30, 300, 8192])))
    monkeypatch.setattr(row_update_cpu, "CHUNK_ROWS", data.draw(st.sampled_from([1, 7, 64, 1024])))
    monkeypatch.setattr(row_update_cpu, "MAX_CHUNKS", data.draw(st.sampled_from([1, 5, 32])))
    monkeypatch.setattr(row_update_cpu, "BUCKET_GRADIENTS", data.draw(st.sampled_from([1, 16, 512])))
    monkeypatch.setattr(row_update_cpu, "MAX_BUCKETS", data.draw(st.sampled_from([1, 8, 1024])))
    rule = data.draw(st.sampled_from(cases.RULES))
    dtype, padding = data.draw(st.sampled_from([torch.float32, *cases.LOW])), data.draw(st.integers(0, 3))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    check(*make(random, num_rows, shapes, kind, 1, dtype, padding), rule)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 65, 200])
def test_chains_of_one_row_of_any_length(monkeypatch, length):
    """Cold rows are summed 32 gradients at a time; the gradients are whole numbers, so the sum is exact."""
    monkeypatch.setattr(row_update_cpu, "HOT_FLOATS", 1)
    random = np.random.default_rng(4)
    ids = torch.tensor(random.permutation([5] * length + [7, 9, 7]), dtype=torch.int32)[:, None]
    gradient = torch.tensor(random.integers(-9, 9, (length + 3, 2)), dtype=torch.float32)
    (table,), _ = run(row_update_cpu.update_rows, [torch.zeros(10, 2)], [(ids, gradient)], RowRule("sgd", lr=1.0))
    expected = np.zeros((10, 2))
    for row, values in zip(ids[:, 0].tolist(), gradient.numpy(), strict=True):
        expected[row] -= values
    np.testing.assert_array_equal(table.numpy(), expected)


def test_a_batch_of_the_real_sizes():
    """Nothing made small: hot and cold rows, several chunks, buckets of some hundred gradients."""
    shapes = [(40_000, 16), (3000, 8), (4, 1), (700, 12)]
    random = np.random.default_rng(5)
    check(*make(random, 6000, shapes, "zipf"), RowRule("lamb", lr=0.1, weight_decay=0.01))
    check(*make(random, 6000, shapes, "distinct"), RowRule("adagrad", lr=0.1))


def between_others(ids, dim):
    """A view of ids [B, C] within a larger tensor, whose other rows or columns no table has."""
    return torch.cat([torch.full_like(ids, -7), ids, torch.full_like(ids, 99)], dim).narrow(
        dim, ids.shape[dim], ids.shape[dim]
    )


# numba compiles a version for each of C, F and any other layout. Ids come as C, or inside packed rows, which is neither
# C nor F; columns first within longer columns are the strides of F for the version that packed rows take.
ORDERS = ["columns first, within longer ones", "inside packed rows"]


@pytest.mark.parametrize("order", [*ORDERS, *(["columns first"] if THOROUGH else [])])
def test_ids_may_have_any_strides(small, order):
    tables, ((ids, gradient),) = make(np.random.default_rng(6), 150, cases.SHAPES, "zipf", 1)
    strided = {
        "columns first": lambda: ids.t().contiguous().t(),
        "columns first, within longer ones": lambda: between_others(ids.t(), 1).t(),
        "inside packed rows": lambda: between_others(ids, 1),
    }[order]()
    assert torch.equal(strided, ids)
    assert strided.stride() != ids.stride()
    rule = RowRule("adam", lr=0.1)
    found, _ = run(row_update_cpu.update_rows, tables, [(strided, gradient)], rule)
    expected, _ = run(row_update_cpu.update_rows, tables, [(ids, gradient)], rule)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("update", [row_update_reference.update_rows, row_update_cpu.update_rows])
def test_an_empty_batch_is_a_step_without_rows(update):
    tables = cases.tables(np.random.default_rng(9), [(70, 4), (3, 4)])
    empty = (torch.empty(0, 2, dtype=torch.int32), torch.empty(0, 8))
    for step, steps in (("global", 1), ("row", 0)):
        found, states = run(update, tables, [empty], RowRule("lamb", lr=0.1, step=step))
        assert all(map(torch.equal, found, tables))
        assert [float(state["num_steps"].max()) for state in states] == [steps] * 2


@pytest.mark.parametrize("bad", [-1, 70, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("column", [0, 2])
def test_an_id_outside_its_table_is_an_error_and_changes_nothing(small, column, bad):
    shapes = [(70, 4), (90, 4), (70, 8)]
    tables, ((ids, gradient),) = make(np.random.default_rng(10), 100, shapes, num_batches=1)
    rule = RowRule("lamb", lr=0.1)
    states = [rule.new_state(table) for table in tables]
    before = [table.clone() for table in tables]
    ids[13, column] = bad
    with pytest.raises(IndexError, match=f"column {column} holds an id outside its table of 70 rows"):
        row_update_cpu.update_rows(tables, states, ids, gradient, rule)
    assert all(map(torch.equal, tables, before))
    assert not any(value.any() for state in states for value in state.values())


@pytest.mark.parametrize("step", ROW_STEPS)
def test_rows_that_a_batch_does_not_touch_stay_bit_equal_with_their_moments(small, step):
    shapes = [(6, 3), (400, 5)]
    rule = RowRule("lamb", lr=0.1, weight_decay=0.1, l2=0.1, step=step)
    tables, ((ids, gradient), _) = make(np.random.default_rng(11), 2000, shapes, "distinct")
    states = [rule.new_state(table) for table in tables]
    row_update_cpu.update_rows(tables, states, ids, gradient, rule)
    before = [
        {name: value.clone() for name, value in ({"table": table} | state).items()}
        for table, state in zip(tables, states, strict=True)
    ]
    row_update_cpu.update_rows(tables, states, ids[:5] % 3 * 2 + 1, gradient[:5], rule)
    for table, state, old, column in zip(tables, states, before, range(2), strict=True):
        touched = set((ids[:5, column] % 3 * 2 + 1).tolist())
        for name, value in ({"table": table} | state).items():
            if value.dim():
                changed = (value != old[name]).any(1).nonzero()[:, 0].tolist()
                assert set(changed) == touched, name


def test_the_same_bits_every_time_and_on_any_number_of_threads():
    shapes = [(5000, 16), (300, 8), (3, 3), (90, 40)]
    tables, batches = make(np.random.default_rng(12), 5000, shapes, "zipf", 3)
    rule = RowRule("lamb", lr=0.1)
    threads, results = numba.get_num_threads(), []
    try:
        for count in (1, min(2, threads), 1):
            numba.set_num_threads(count)
            found, states = run(row_update_cpu.update_rows, tables, batches, rule)
            results.append([*found, *(value for state in states for value in state.values())])
    finally:
        numba.set_num_threads(threads)
    for one, other in itertools.pairwise(results):
        assert all(map(torch.equal, one, other))


def test_learning_rate_and_momentum_as_tensors_do_what_numbers_do():
    tables, batches = make(np.random.default_rng(15), 60, cases.SHAPES)
    rule = RowRule("lamb", lr=0.0625, beta1=0.875)
    held = replace(rule, lr=torch.tensor(0.0625), beta1=torch.tensor(0.875))
    one, _ = run(row_update_cpu.update_rows, tables, batches, rule)
    other, _ = run(row_update_cpu.update_rows, tables, batches, held)
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("method", METHODS)
def test_a_state_has_what_the_method_needs_and_no_more(method):
    table = torch.zeros(6, 3)
    needed = {"sgd": set(), "adagrad": {"exp_avg_sq"}, "adam": {"exp_avg", "exp_avg_sq"}}
    names = {"num_steps"} | needed["adam" if method == "lamb" else method]
    shapes = {"num_steps": (), "exp_avg": (6, 3), "exp_avg_sq": (6, 1)}
    state = RowRule(method, 0.1).new_state(table)
    assert {name: tuple(value.shape) for name, value in state.items()} == {name: shapes[name] for name in names}
    full = RowRule(method, 0.1, second_moment="full", step="row").new_state(table)
    shapes |= {"num_steps": (6, 1), "exp_avg_sq": (6, 3)}
    assert {name: tuple(value.shape) for name, value in full.items()} == {name: shapes[name] for name in names}


def test_a_row_whose_update_is_zero_stays():
    ids, tables = torch.tensor([[1], [1]], dtype=torch.int32), [torch.ones(3, 4)]
    (table,), _ = run(row_update_cpu.update_rows, tables, [(ids, torch.zeros(2, 4))], RowRule("lamb", 0.1))
    assert torch.equal(table, tables[0])
