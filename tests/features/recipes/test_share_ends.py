"""Shares of a split end where decimal arithmetic says."""

from decimal import Decimal

import pytest

from gigabatch.features.recipes.base import SplitFractions


@pytest.mark.parametrize("train", range(1, 97, 3))
@pytest.mark.parametrize("rows", [100, 999, 1000, 12345])
def test_a_share_of_rows_is_that_of_decimals(train, rows):
    """.7 + .2 is less than .9, so that valid was a row short."""
    valid = max((100 - train) // 3, 1)
    shares = [Decimal(part) / 100 for part in (train, valid, 100 - train - valid)]
    found = SplitFractions(*map(float, shares)).ends(rows)
    assert found == (int(rows * shares[0]), int(rows * (shares[0] + shares[1])))


def test_seven_two_and_one_tenths():
    assert SplitFractions(0.7, 0.2, 0.1).ends(1000) == (700, 900)


@pytest.mark.parametrize(
    ("shares", "rows", "ends"),
    [
        ((1 / 3, 1 / 3, 1 / 3), 300, (100, 200)),
        ((2 / 3, 1 / 6, 1 / 6), 600, (400, 500)),
        ((5 / 6, 1 / 12, 1 / 12), 1200, (1000, 1100)),
        ((1 / 7, 2 / 7, 4 / 7), 7 * 10**9, (10**9, 3 * 10**9)),
    ],
)
def test_thirds_and_sixths(shares, rows, ends):
    """A third written as a decimal is less than one, so that train was a row short."""
    assert SplitFractions(*shares).ends(rows) == ends
