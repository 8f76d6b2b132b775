"""Batches of ranks: equal steps, every row once, and steps that do not depend on the number of ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.loaders.batches.dataset import BatchDataset
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.order.ranks import RankBatches


def all_ranks(num_rows: int, batch_size: int, num_ranks: int, drop_last: bool = False) -> list[RankBatches]:
    return [RankBatches(num_rows, batch_size, rank, num_ranks, drop_last) for rank in range(num_ranks)]


@given(num_rows=st.integers(1, 500), batch_size=st.integers(1, 40), num_ranks=st.integers(1, 12))
def test_ranks_take_equal_steps_and_every_position_once(num_rows, batch_size, num_ranks):
    ranks = all_ranks(num_rows, batch_size, num_ranks)
    (num_steps,) = {batches.num_steps for batches in ranks}
    taken = []
    for step in range(num_steps):
        parts = [range(*batches.positions(step)) for batches in ranks]
        sizes = [len(part) for part in parts]
        assert max(sizes) <= batch_size
        assert max(sizes) - min(sizes) <= 1
        assert step == num_steps - 1 or sizes == [batch_size] * num_ranks
        taken += [position for part in parts for position in part]
    assert taken == list(range(num_rows))


@given(num_rows=st.integers(1, 500), batch_size=st.integers(1, 40), num_ranks=st.integers(1, 12))
def test_drop_last_gives_full_batches_and_leaves_out_less_than_a_step(num_rows, batch_size, num_ranks):
    if num_rows < batch_size * num_ranks:
        with pytest.raises(LoaderError, match="drop_last leaves no batch"):
            all_ranks(num_rows, batch_size, num_ranks, drop_last=True)
        return
    ranks = all_ranks(num_rows, batch_size, num_ranks, drop_last=True)
    (num_steps,) = {batches.num_steps for batches in ranks}
    taken = [p for step in range(num_steps) for batches in ranks for p in range(*batches.positions(step))]
    assert taken == list(range(num_steps * batch_size * num_ranks))
    assert 0 <= num_rows - len(taken) < batch_size * num_ranks


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_step_of_all_ranks_has_the_same_rows_for_any_number_of_ranks(make_table, num_ranks, shuffle):
    table = make_table(50)
    ranks = [
        BatchDataset(table, 12 // num_ranks, shuffle=shuffle, seed=3, rank=rank, num_ranks=num_ranks)
        for rank in range(num_ranks)
    ]
    alone = BatchDataset(table, 12, shuffle=shuffle, seed=3)
    assert {len(dataset) for dataset in ranks} == {len(alone)} == {5}
    for step in range(5):
        together = [row for dataset in ranks for row in dataset[step].group.tolist()]
        assert together == alone[step].group.tolist()


def test_of_fewer_rows_than_ranks_some_batches_are_empty_and_keep_their_form(make_table):
    """101 rows, 4 ranks of 25: one row is left for four ranks."""
    ranks = [BatchDataset(make_table(101), 25, seed=1, rank=rank, num_ranks=4) for rank in range(4)]
    last = [dataset[1] for dataset in ranks]
    assert [batch.num_rows for batch in last] == [0, 0, 0, 1]
    assert last[0].ids.shape == (0, 2)
    assert last[0].floats.shape == (0, 3)
    assert last[0].weight.shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 4, 2, 2), r"rank must be in \[0, num_ranks\), found rank 2 of num_ranks 2"),
        ((10, 4, -1, 2), "found rank -1"),
        ((10, 4, 0, 0), "found rank 0 of num_ranks 0"),
        ((10, 2.5), "batch_size must be a whole number, found 2.5"),
        ((10, None), "batch_size must be a whole number, found None"),
        ((10, 4, 0.5, 2), "rank must be a whole number, found 0.5"),
        ((10, 4, 0, 1, False, 4.0), "step_rows must be a whole number, found 4.0"),
        ((10, 0, 0, 1), "batch_size must be at least 1, found 0"),
        ((0, 4, 0, 1), "has no rows"),
        ((10, 4, 0, 3, True), "10 rows and batch_size is 4 on each of 3 ranks"),
        ((5, 6, 0, 1, True), "5 rows and batch_size is 6. Choose a smaller"),
    ],
)
def test_settings_that_give_no_batches_are_refused(arguments, message):
    with pytest.raises(LoaderError, match=message):
        RankBatches(*arguments)
