"""What every row-wise operator promises, checked on one frame."""

import numpy as np
import pandas as pd


def assert_row_wise(operator, frame, seed=0):
    """Each row alone and the rows in any order give what the whole frame gives; the frame that came in is unchanged."""
    before = frame.copy(deep=True)
    whole = operator(frame)
    pd.testing.assert_frame_equal(frame, before)
    alone = pd.concat([operator(frame.iloc[k : k + 1]) for k in range(len(frame))] or [operator(frame)])
    pd.testing.assert_frame_equal(alone, whole)
    order = np.random.default_rng(seed).permutation(len(frame))
    shuffled = operator(frame.iloc[order])
    pd.testing.assert_frame_equal(shuffled.loc[whole.index], whole)
    assert len(shuffled) == len(whole)
    empty = operator(frame.iloc[:0])
    assert len(empty) == 0
    assert list(empty.columns) == list(whole.columns)
    return whole
