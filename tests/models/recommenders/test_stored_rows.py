"""Rows kept by user, against a loop over the users."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.models.recommenders.stored_rows import StoredRows

NUM_IDS = (6, 4, 5)  # users are the second column
COUNTS = (9, 1, 0, 5)


def table(counts=COUNTS, seed=0):
    """ids, floats and target; no two rows have the same float."""
    random = np.random.default_rng(seed)
    users = random.permutation(np.repeat(np.arange(4), counts))
    columns = [random.integers(0, size, len(users)) for size in NUM_IDS]
    columns[1] = users
    floats = random.permutation(len(users))[:, None] / 10
    return (
        torch.from_numpy(np.stack(columns, axis=1)).int(),
        torch.from_numpy(floats).float(),
        torch.from_numpy(random.normal(3, 2, len(users))).float(),
    )


def stored(counts=COUNTS, most=5, kept="last", seed=0):
    rows = StoredRows(NUM_IDS, 1, user_column=1)
    rows.store(*table(counts, seed), most, kept)
    return rows


@given(
    st.tuples(*[st.integers(0, 12)] * 4).filter(any), st.integers(1, 15), st.sampled_from(["last", "random"]),
    st.integers(0, 99),
)  # fmt: skip
def test_what_is_stored(counts, most, kept, seed):
    ids, floats, target = table(counts, seed)
    rows = stored(counts, most, kept, seed)
    kept_counts = np.minimum(counts, most)
    assert rows.offsets.tolist() == [0, *np.cumsum(kept_counts)]
    assert rows.most_rows == max(kept_counts)
    assert len(rows) == sum(kept_counts)
    assert rows.total_rows.tolist() == list(counts)
    place_of = {value: place for place, value in enumerate(floats[:, 0].tolist())}
    places = [place_of[value] for value in rows.floats[:, 0].tolist()]
    assert len(set(places)) == len(places)
    assert torch.equal(rows.ids, ids[places])
    values = target.double().numpy()
    scale = values.std() if values.std() > 0 else 1.0
    np.testing.assert_allclose(rows.targets, ((values - values.mean()) / scale)[places], rtol=1e-5, atol=1e-6)
    assert rows.target_mean.item() == pytest.approx(values.mean(), rel=1e-6)
    assert rows.target_scale.item() == pytest.approx(scale, rel=1e-6)
    for user, count in enumerate(kept_counts):
        own = np.flatnonzero(ids[:, 1].numpy() == user).tolist()
        found = places[rows.offsets[user] : rows.offsets[user + 1]]
        assert set(found) <= set(own)
        if kept == "last":
            assert found == own[len(own) - count :]
    for column, size in enumerate(NUM_IDS):
        some = torch.zeros(size, len(NUM_IDS), dtype=torch.int32)
        some[:, column] = torch.arange(size)
        counted = np.bincount(ids[places, column].numpy(), minlength=size)
        assert rows.counts(some)[:, column].tolist() == counted.tolist()


def test_random_rows_are_others_than_the_last_and_the_same_each_time():
    first, second, last = (stored((40, 30, 0, 0), kept=kept) for kept in ("random", "random", "last"))
    assert torch.equal(first.floats, second.floats)
    assert not torch.equal(first.floats, last.floats)


def test_places_of_users_are_padded_with_their_first_row():
    index, inside = stored().places(torch.tensor([3, 1, 2, 0]), 6)
    assert index[0].tolist() == [6, 7, 8, 9, 10, 6]
    assert index[1].tolist() == [5, 5, 5, 5, 5, 5]
    assert index[3].tolist() == [0, 1, 2, 3, 4, 0]
    assert inside.sum(1).tolist() == [5, 1, 0, 5]
    assert inside[0].tolist() == [1, 1, 1, 1, 1, 0]
    assert int(index.max()) < 11  # also of user 2, who has no rows


def test_state_dict_brings_its_own_number_of_rows():
    rows, empty = stored(), StoredRows(NUM_IDS, 1, user_column=1)
    empty.load_state_dict(rows.state_dict())
    assert empty.most_rows == rows.most_rows == 5
    for name, value in rows.state_dict().items():
        assert torch.equal(empty.state_dict()[name], value)
    empty.load_state_dict(StoredRows(NUM_IDS, 1, user_column=1).state_dict())
    assert (len(empty), empty.most_rows) == (0, 0)


def test_a_state_dict_that_does_not_fit_is_refused():
    state = stored().state_dict()
    state["targets"] = state["targets"][:-1]
    with pytest.raises(RuntimeError, match="11 of ids, 11 of floats and 10 targets do not fit offsets that end at 11"):
        StoredRows(NUM_IDS, 1, user_column=1).load_state_dict(state)
    with pytest.raises(RuntimeError, match="size mismatch for offsets"):
        StoredRows((6, 7, 5), 1, user_column=1).load_state_dict(stored().state_dict())
