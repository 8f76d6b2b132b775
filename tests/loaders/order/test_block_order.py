"""The order of streamed tables: a bijection for any shape, the one that its description says, and how far it mixes.

OMP_NUM_THREADS=1 python -m pytest -q tests/loaders/order/test_block_order.py
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.kernels.gather_loops import gather_places, permute
from gigabatch.loaders.order.blocks import BlockOrder, derived_seed
from gigabatch.loaders.order.quality import block_mixing, shuffle_quality
from tests.examples import examples

MASK = (1 << 64) - 1
SHAPES = {
    "num_rows": st.integers(1, 3000),
    "block_rows": st.integers(1, 400),
    "window_blocks": st.integers(1, 9),
    "num_lanes": st.integers(1, 12),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "epoch": st.integers(0, 2**40),
}


def shuffled_in_python(size: int, seed: int) -> list[int]:
    """Fisher and Yates' shuffle with splitmix64, in Python's whole numbers."""
    out = list(range(size))
    state = seed
    for i in range(size - 1, 0, -1):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        mixed ^= mixed >> 31
        j = ((mixed >> 32) * (i + 1)) >> 32
        out[i], out[j] = out[j], out[i]
    return out


def order_in_python(num_rows, block_rows, window_blocks, num_lanes, seed, epoch) -> list[int]:
    """The rows of an epoch as the docstring of `BlockOrder` makes them, lane after lane, with lists."""
    lanes, first = [], 0
    for lane in range(num_lanes):
        count = num_rows // num_lanes + (lane < num_rows % num_lanes)
        ring = list(range(first, first + count))
        first += count
        if not ring:
            lanes.append([])
            continue
        offset = derived_seed("offset", seed, epoch, lane) % count
        ring = ring[offset:] + ring[:offset]
        longest = -(-num_rows // num_lanes)
        num_blocks = -(-longest // block_rows)
        blocks = [ring[i * block_rows : (i + 1) * block_rows] for i in range(num_blocks)]
        permuted = shuffled_in_python(num_blocks - 1, derived_seed("blocks", seed, epoch, lane))
        blocks = [blocks[i] for i in permuted] + [blocks[-1]]
        num_windows = -(-num_blocks // window_blocks)
        order = []
        for window in range(num_windows):
            start, stop = window * num_blocks // num_windows, (window + 1) * num_blocks // num_windows
            rows = [row for block in blocks[start:stop] for row in block]
            places = shuffled_in_python(len(rows), derived_seed("rows", seed, epoch, lane, window))
            order += [rows[place] for place in places]
        lanes.append(order)
    return [lanes[position % num_lanes][position // num_lanes] for position in range(num_rows)]


@settings(max_examples=examples(150))
@given(**SHAPES)
def test_every_row_comes_exactly_once(num_rows, block_rows, window_blocks, num_lanes, seed, epoch):
    order = BlockOrder(num_rows, block_rows, window_blocks, num_lanes, seed, epoch)
    rows = order(torch.arange(num_rows))
    assert torch.equal(rows.sort().values, torch.arange(num_rows))
    alone = torch.tensor([epoch % num_rows])
    assert order(alone) == rows[alone]  # as among others


@settings(max_examples=examples(25))
@given(**{**SHAPES, "num_rows": st.integers(1, 400), "block_rows": st.integers(1, 60)})
def test_the_order_is_the_one_described(num_rows, block_rows, window_blocks, num_lanes, seed, epoch):
    arguments = (num_rows, block_rows, window_blocks, num_lanes, seed, epoch)
    assert BlockOrder(*arguments)(torch.arange(num_rows)).tolist() == order_in_python(*arguments)


@settings(max_examples=examples(50))
@given(**SHAPES)
def test_a_window_holds_no_more_blocks_than_asked_for(num_rows, block_rows, window_blocks, num_lanes, seed, epoch):
    order = BlockOrder(num_rows, block_rows, window_blocks, num_lanes, seed, epoch)
    for lane in range(num_lanes):
        counts = [order.window_rows(lane, window) for window in range(order.num_windows)]
        assert max(counts) <= window_blocks * block_rows
        assert sum(counts) == order.lane_rows(lane)
        for window, count in enumerate(counts):
            assert sum(stop - start for start, stop in order.ranges(lane, window)) == count
            if count:
                assert order.window_of(order.window_start(window)) == window
                assert order.window_of(order.window_start(window) + count - 1) == window


def test_the_permutation_of_a_window_is_uniform():
    """Of 24 permutations of four rows, 24,000 seeds give each about 1,000 times: chi-square with 23 degrees."""
    found: dict[tuple[int, ...], int] = {}
    out = np.empty(4, dtype=np.int32)
    for seed in range(24_000):
        permute(out, np.uint64(derived_seed("test", seed)))
        found[tuple(out)] = found.get(tuple(out), 0) + 1
    assert len(found) == 24
    chi_square = sum((count - 1000) ** 2 / 1000 for count in found.values())
    assert chi_square < 49.7  # exceeded once in a thousand


@pytest.mark.parametrize(("size", "num_words"), [(0, 16), (1, 1), (13, 46), (500, 1), (500, 16)])
def test_rows_are_gathered_as_torch_does(size, num_words):
    window = torch.randint(-(2**31), 2**31, (300, num_words), dtype=torch.int32)
    places = torch.randint(0, 300, (size,), dtype=torch.int32)
    out = torch.full((size + 1, num_words), 7, dtype=torch.int32)
    gather_places(window.data_ptr(), 4 * num_words, places.numpy(), out.data_ptr())
    assert torch.equal(out[:-1], window[places.long()])
    assert (out[-1] == 7).all()


def test_how_far_it_mixes():
    """A wider window mixes more, as much as arithmetic says; the number that is printed is `shuffle_quality`.

    Where windows are 1/w of the table, a stored block of m rows comes into 1/w of the N/B batches. With Pearson's X^2
    of a uniform permutation, about N/m N/B, the windows have N (w - 1) more, so the mixing is 1 / (1 + m B (w - 1)/N).
    It is about rows as they are stored; a shuffled table has them in a random order of its own.
    """
    num_rows, batch_size, block_rows = 204_800, 1024, 512
    qualities = []
    for num_windows in (25, 5, 1):
        order = BlockOrder(num_rows, block_rows, 50 // num_windows, 8, 0, 0)
        assert order.num_windows == num_windows
        qualities.append(shuffle_quality(order, num_rows, batch_size))
        print(f"windows of 1/{num_windows} of the table: shuffle quality {qualities[-1]:.2f}")
        mixing = block_mixing(order(torch.arange(num_rows)), 16, batch_size)
        assert mixing == pytest.approx(1 / (1 + 16 * batch_size * (num_windows - 1) / num_rows), rel=0.06)
    assert qualities == sorted(qualities)
    assert qualities[-1] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1, 1, 0, 0), "num_rows must be at least 1, found 0"),
        ((1, 0, 1, 1, 0, 0), "block_rows must be at least 1, found 0"),
        ((1, 1, -1, 1, 0, 0), "window_blocks must be at least 1, found -1"),
        ((1, 1, 1, 0, 0, 0), "num_lanes must be at least 1, found 0"),
        ((1, 1, 1, 1, 0, -1), "epoch must not be negative, found -1"),
        ((1, 1 << 20, 1 << 11, 1, 0, 0), "smaller windows"),
        ((1 << 33, 2, 1, 1, 0, 0), "another size of block"),
    ],
)
def test_a_wrong_setting_is_named(arguments, message):
    with pytest.raises(LoaderError, match=message):
        BlockOrder(*arguments)
