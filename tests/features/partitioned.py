"""A frame cut into partitions at random, some of them empty, in any order."""

import itertools

import numpy as np
from hypothesis import strategies as st

from tests.examples import THOROUGH

COUNTS = st.integers(1, 64 if THOROUGH else 12)


def cut(frame, count, seed):
    """`count` consecutive pieces of the frame in random order; with more pieces than rows some are empty."""
    rng = np.random.default_rng(seed)
    bounds = [0, *np.sort(rng.integers(0, len(frame) + 1, count - 1)), len(frame)]
    parts = [frame.iloc[a:b] for a, b in itertools.pairwise(bounds)]
    return [parts[k] for k in rng.permutation(count)]
