"""Waits in times of any type of whole numbers, and of a column of any name."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.operators import Waiting

KINDS = ["uint8", "uint16", "uint32", "uint64", "int8", "int32", "int64", "float32", "Int64", "UInt8"]


@pytest.mark.parametrize("kind", KINDS)
def test_waits_are_those_of_a_loop_in_any_type_of_times(kind):
    """Times were subtracted in their own type, in which a time before the first one wraps around."""
    planned, happened = [10, 15, 20], [5, 12, 30]
    frame = pd.DataFrame({"g": [1, 1, 1], "self": pd.Series(planned, dtype=kind), "h": pd.Series(happened, dtype=kind)})
    made = Waiting(["g"], "self", "h", "q")(frame)
    wanted = [
        [own - then for then, left in zip(planned, happened, strict=True) if then < own and max(then, left) >= own]
        for own in planned
    ]
    assert made["q"].tolist() == [len(waits) for waits in wanted]
    assert made["q_min_mean"].tolist() == [np.mean(waits) if waits else 0 for waits in wanted]
