"""Row-wise Adagrad that begins with a sum of squares: torch's Adagrad with an initial accumulator is the oracle."""

import copy

import pytest
import torch
from torch import nn

from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import ListInputs
from gigabatch.models.layers.embeddings import EmbeddingTables
from gigabatch.models.optimizers.moments import shrink_sums
from gigabatch.models.optimizers.row_optimizer import RowOptimizer

SIZES = [30, 4]
IDS = torch.tensor([[1, 2], [5, 2], [1, 3], [7, 0]])
GRADIENT = torch.tensor([[1.0, 0.5], [2.0, 0.25], [3.0, -4.0], [-0.5, 1.0]])


def made(visits=10.0, width=1, **settings):
    torch.manual_seed(1)
    tables = EmbeddingTables(SIZES, [width, width])
    return tables, RowOptimizer([tables], 0.1, method="adagrad", initial_visits=visits, **settings)


def left(tables, ids=IDS, gradient=GRADIENT):
    (tables(ids) * gradient).sum().backward()


def square_of_a_visit(table, ids, gradient):
    """The mean over touched rows of the square of a row's summed gradient, by a slow loop."""
    sums = {}
    for row, value in zip(ids[:, table].tolist(), gradient[:, table].tolist(), strict=True):
        sums[row] = sums.get(row, 0.0) + value
    return sum(value**2 for value in sums.values()) / len(sums)


@pytest.mark.parametrize("visits", [0.5, 10.0, 1000.0])
def test_steps_equal_torchs_adagrad_with_an_initial_accumulator(visits):
    """Of tables of one column, where the mean of a row's squares is the square."""
    tables, optimizer = made(visits)
    expected = [nn.Parameter(table.detach().clone()) for table in tables.weights]
    starts = [visits * square_of_a_visit(column, IDS, GRADIENT) for column in range(2)]
    oracles = [
        torch.optim.Adagrad([one], 0.1, initial_accumulator_value=start, eps=1e-6)
        for one, start in zip(expected, starts, strict=True)
    ]
    random = torch.Generator().manual_seed(3)
    for step in range(4):  # later gradients are smaller, so that nothing is raised again
        gradient = GRADIENT if step == 0 else torch.randn(4, 2, generator=random) / 10
        ids = IDS if step == 0 else torch.stack([torch.randint(size, (4,), generator=random) for size in SIZES], 1)
        left(tables, ids, gradient)
        optimizer.step()
        for column, (table, oracle) in enumerate(zip(expected, oracles, strict=True)):
            table.grad = torch.zeros_like(table).index_add_(0, ids[:, column], gradient[:, column : column + 1])
            oracle.step()
    for table, found in zip(expected, tables.weights, strict=True):
        torch.testing.assert_close(found.detach(), table.detach(), rtol=1e-5, atol=1e-7)


def test_a_rare_row_moves_less_than_without_and_a_frequent_one_as_far():
    """n visits of gradient 1 move a row by lr times the sum of 1 / sqrt(v + k): written out here."""
    moved = {}
    for visits in (0.0, 30.0):
        tables, optimizer = made(visits)
        start = tables.weights[0].detach().clone()
        for step in range(600):
            ids = torch.tensor([[1, 1], [2, 1]]) if step < 3 else torch.tensor([[1, 1]])
            left(tables, ids, torch.ones(len(ids), 2))
            optimizer.step()
        moved[visits] = (start - tables.weights[0].detach())[[1, 2], 0].tolist()
        expected = [sum(0.1 / (visits + k) ** 0.5 for k in range(1, n + 1)) for n in (600, 3)]
        assert moved[visits] == pytest.approx(expected, rel=1e-3)
    assert moved[30.0][0] > 0.8 * moved[0.0][0]
    assert moved[30.0][1] < 0.25 * moved[0.0][1]


def test_sums_are_raised_to_what_visits_are_worth_later():
    """Gradients that grow a hundredfold, against a slow loop: in the steps 1, 2, 4 and 8 no sum is left below."""
    tables, optimizer = made(visits=5.0)
    sums = [[0.0] * size for size in SIZES]
    weights = [table.detach().double().flatten().tolist() for table in tables.weights]
    for step in range(1, 11):
        ids, gradient = (IDS + 3 * step) % torch.tensor(SIZES), GRADIENT * 1.6**step
        left(tables, ids, gradient)
        optimizer.step()
        for column in range(2):
            found = {}
            for row, value in zip(ids[:, column].tolist(), gradient[:, column].tolist(), strict=True):
                found[row] = found.get(row, 0.0) + value
            if step in (1, 2, 4, 8):
                floor = 5 * sum(value**2 for value in found.values()) / len(found)
                sums[column] = [max(one, floor) for one in sums[column]]
            for row, value in found.items():
                sums[column][row] += value**2
                weights[column][row] -= 0.1 * value / sums[column][row] ** 0.5
    for column, table in enumerate(tables.weights):
        found = optimizer.state[table]["exp_avg_sq"].flatten()
        torch.testing.assert_close(found, torch.tensor(sums[column]), rtol=1e-5, atol=0)
        torch.testing.assert_close(
            table.detach().flatten(), torch.tensor(weights[column]).float(), rtol=1e-4, atol=1e-6
        )


def test_after_a_warm_start_no_sum_is_below_tonights():
    """Nights shrink the sums of before (`sums_kept`); those of rare rows would come to nothing in some weeks."""
    tables, optimizer = made()
    sums = optimizer._state_of(tables.weights[0], optimizer._rule())["exp_avg_sq"]
    sums[:3], sums[3:6] = 2.0, 2e4
    shrink_sums(optimizer, 0.5)
    left(tables)
    optimizer.step()
    expected = torch.full((30, 1), 10 * square_of_a_visit(0, IDS, GRADIENT))
    expected[3:6] = 1e4
    for row, gradient in {1: 4.0, 5: 2.0, 7: -0.5}.items():
        expected[row] += gradient**2
    torch.testing.assert_close(sums, expected)


def test_steps_without_a_gradient_skipped_ones_and_nans_raise_nothing():
    tables, optimizer = made()
    sums = [optimizer._state_of(table, optimizer._rule())["exp_avg_sq"] for table in tables.weights]
    left(tables, gradient=torch.zeros_like(GRADIENT))
    optimizer.step()
    assert not any(one.any() for one in sums)
    left(tables)
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert not any(one.any() for one in sums)
    assert optimizer.steps_taken == 1
    left(tables, gradient=torch.zeros_like(GRADIENT))
    optimizer.step()
    left(tables, gradient=GRADIENT * torch.tensor([1.0, 0.0]))
    optimizer.step()
    assert (sums[0] > 0).sum() == 3  # the third step raises none
    left(tables, gradient=GRADIENT * torch.tensor([1.0, float("nan")]))
    optimizer.step()
    assert float(sums[0].min()) >= 10 * square_of_a_visit(0, IDS, GRADIENT)
    assert sums[1].isnan().sum() == 3  # the rows of the batch, and no others
    left(tables)
    optimizer.step()


def test_frozen_tables_stay_and_one_that_thaws_is_raised_with_the_next():
    tables, optimizer = made()
    tables.weights[1].requires_grad_(False)
    left(tables)
    optimizer.step()
    assert not optimizer.state[tables.weights[1]]
    tables.weights[1].requires_grad_(True)
    left(tables)
    optimizer.step()
    assert float(optimizer.state[tables.weights[1]]["exp_avg_sq"].min()) > 0


def test_the_host_is_asked_in_eleven_steps_alone():
    _, optimizer = made()
    asked = []
    for step in range(1, 2050):
        if optimizer.raises_next():
            asked.append(step)
        optimizer.steps_taken += 1
    assert asked == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert not made(visits=0.0)[1].raises_next()


def test_a_training_that_goes_on_from_saved_states_is_the_same():
    whole, optimizer = made()
    for step in range(4):
        left(whole, (IDS + step) % 4)
        optimizer.step()
        if step == 1:
            weights, state = copy.deepcopy(whole.state_dict()), copy.deepcopy(optimizer.state_dict())
    tables, again = made()
    tables.load_state_dict(weights)
    again.load_state_dict(state)
    copied = copy.deepcopy((tables, again))
    for found, mover in ((tables, again), copied):
        for step in (2, 3):
            left(found, (IDS + step) % 4, GRADIENT)
            mover.step()
        for one, other in zip(found.weights, whole.weights, strict=True):
            assert torch.equal(one, other)


def test_a_factor_of_the_gradients_is_in_the_first_sums():
    sums = []
    for factor in (1.0, 0.25):
        tables, optimizer = made()
        left(tables, gradient=GRADIENT / factor)
        optimizer.gradient_factor = torch.tensor(factor)
        optimizer.step()
        sums.append(optimizer.state[tables.weights[0]]["exp_avg_sq"].clone())
    torch.testing.assert_close(*sums)


def test_elements_of_lists_count_as_rows_that_are_looked_up():
    """A list of one element each, beside an id column of the same ids: the same first sums."""
    torch.manual_seed(1)
    lists = EmbeddingTables([], [2], lists=[ListInputs(num_ids=30)])
    plain = EmbeddingTables([30], [2])
    gradient = torch.randn(4, 2)
    found = []
    for module in (lists, plain):
        optimizer = RowOptimizer([module], 0.1, method="adagrad", initial_visits=7.0)
        column = JaggedColumn(IDS[:, 0].int(), torch.arange(5))
        rows = module(IDS[:, :0].int(), [column]) if module is lists else module(IDS[:, :1])
        (rows * gradient).sum().backward()
        optimizer.step()
        found.append(optimizer.state[module.weights[0]]["exp_avg_sq"])
    torch.testing.assert_close(*found)


def test_other_rules_have_none_and_negative_ones_are_refused():
    tables = EmbeddingTables(SIZES, [1, 1])
    optimizer = RowOptimizer([tables], 0.1, method="adam", initial_visits=5.0)
    assert not optimizer.raises_next()
    with pytest.raises(ModelError, match="initial_visits must not be negative"):
        RowOptimizer([tables], 0.1, method="adagrad", initial_visits=-1.0)
