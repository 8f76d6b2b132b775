"""Losses with negatives from the batch, against double loops over rows in NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.models.recommenders.in_batch import (
    beside,
    pair_bpr,
    pair_softmax,
    positives_first,
    positives_mean,
    window_softmax,
)


def vectors(rows, num_items, seed=0, width=4):
    """users, items [rows, width], keys [rows] of few items so that many repeat, log_q [rows] by item, positive [rows];
    float64."""
    draw = np.random.default_rng(seed)
    keys = draw.integers(0, num_items, rows)
    users, items = draw.normal(size=(2, rows, width))
    return users, items, keys, draw.normal(size=num_items)[keys], draw.random(rows) < 0.7


def slow_softmax(users, items, keys, log_q, positive, temperature, window):
    losses = []
    num_rows = len(users)
    for i in range(num_rows):
        start = i // window * window
        if start + window > num_rows:
            start = max(num_rows - window, 0)
        total = 0.0
        for j in range(start, min(start + window, num_rows)):
            if j == i or (positive[j] and keys[j] != keys[i]):
                total += np.exp(np.dot(users[i], items[j]) / temperature - log_q[j])
        losses.append(np.log(total) - (np.dot(users[i], items[i]) / temperature - log_q[i]))
    return np.array(losses)


def slow_others(num_rows, num_negatives):
    """Rows beside row i, by i."""
    return [[j % num_rows for j in range(i + 1, i + num_rows)][:num_negatives] for i in range(num_rows)]


@given(
    rows=st.integers(1, 40),
    window=st.integers(2, 50),
    num_items=st.integers(1, 30),
    temperature=st.sampled_from([0.2, 1.0, 3.0]),
    seed=st.integers(0, 1000),
)
def test_softmax_equals_a_double_loop(rows, window, num_items, temperature, seed):
    parts = vectors(rows, num_items, seed)
    found = window_softmax(*map(torch.from_numpy, parts), temperature, window)
    np.testing.assert_allclose(found, slow_softmax(*parts, temperature, window), rtol=1e-9, atol=1e-9)


def test_softmax_gradients_equal_finite_differences():
    users, items, *rest = map(torch.from_numpy, vectors(11, 6))
    users.requires_grad_(), items.requires_grad_()
    assert torch.autograd.gradcheck(lambda u, v: window_softmax(u, v, *rest, 0.5, 4), (users, items))


@given(rows=st.integers(1, 30), num_negatives=st.integers(1, 12), num_items=st.integers(1, 20), seed=st.integers(0, 99))
def test_losses_of_pairs_equal_double_loops(rows, num_negatives, num_items, seed):
    users, items, keys, log_q, positive = vectors(rows, num_items, seed)
    softmax, bpr = [], []
    for i, others in enumerate(slow_others(rows, num_negatives)):
        own = users[i] @ items[i]
        counted = [j for j in others if keys[j] != keys[i]]
        corrected = {j: np.exp(users[i] @ items[j] - log_q[j]) for j in (i, *counted) if j == i or positive[j]}
        softmax.append(np.log(sum(corrected.values())) - (own - log_q[i]))
        terms = [-np.log(1 / (1 + np.exp(-(own - users[i] @ items[j])))) for j in counted]
        bpr.append(np.mean(terms) if terms else 0.0)
    u, v, k, q, p = map(torch.from_numpy, (users, items, keys, log_q, positive))
    scores = (u[:, None] * beside(v, num_negatives)).sum(2)
    pair_keys = beside(k, num_negatives)
    others = beside(q, num_negatives), beside(p, num_negatives)
    np.testing.assert_allclose(pair_softmax(scores, pair_keys, *others), softmax, atol=1e-9)
    np.testing.assert_allclose(pair_bpr(scores, pair_keys), bpr, atol=1e-9)


@pytest.mark.parametrize("weight", [None, [0.5, 2.0, 9.0, 0.0]])
def test_only_positives_count_by_weight(weight):
    losses, positive = torch.tensor([1.0, 2.0, 40.0, 7.0]), torch.tensor([True, True, False, True])
    found = positives_mean(losses, positive, None if weight is None else torch.tensor(weight))
    expected = 10 / 3 if weight is None else (0.5 * 1 + 2.0 * 2) / 2.5
    assert float(found) == pytest.approx(expected)


def test_no_positives_are_no_loss():
    assert positives_mean(torch.ones(3), torch.zeros(3, dtype=torch.bool), None) == 0


@given(st.lists(st.booleans(), min_size=1, max_size=50))
def test_positives_come_first_in_their_order(labels):
    expected = [i for i, label in enumerate(labels) if label] + [i for i, label in enumerate(labels) if not label]
    assert positives_first(torch.tensor(labels)).tolist() == expected
