"""The peers of benchmarks/recommenders.py against what they stand for."""

import numpy as np
import pytest

from benchmarks.recommenders import at_ten, ease, item_knn


@pytest.fixture
def seen():
    return (np.random.default_rng(0).random((301, 8)) < 0.4).astype(float)


def test_ease_is_the_ridge_regression_of_each_item_on_the_others(seen):
    scores = ease(seen, 5.0)
    for item in range(8):
        others = np.delete(seen, item, axis=1)
        weights = np.linalg.solve(others.T @ others + 5.0 * np.eye(7), others.T @ seen[:, item])
        np.testing.assert_allclose(scores[:, item], others @ weights)


def test_knn_sums_the_cosines_of_the_nearest_items(seen):
    scores = item_knn(seen, 3, 2.0)
    for item in range(8):
        similar = {
            other: seen[:, item] @ seen[:, other]
            / (np.sqrt(seen[:, item].sum() * seen[:, other].sum()) + 2.0)
            for other in range(8) if other != item
        }  # fmt: skip
        nearest = sorted(similar, key=lambda other: -similar[other])[:3]
        expected = [sum(similar[other] * row[other] for other in nearest) for row in seen]
        np.testing.assert_allclose(scores[:, item], expected)


def test_ranks_are_among_the_items_that_a_user_has_not_seen():
    scores, seen = np.arange(24.0).reshape(2, 12), np.zeros((2, 12))
    seen[0, 11] = seen[0, 10] = 1.0
    found = at_ten(scores, seen, np.array([0, 1]), np.array([8, 0]))  # second of ten; last of twelve
    assert found == (pytest.approx((1 / np.log2(3)) / 2), 0.5)
