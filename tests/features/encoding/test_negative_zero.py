"""-0.0 is 0.0: one category, whichever way the rows are fitted and packed."""

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, Schema

VALUES = [0.0, -0.0, -0.0, 1.0, np.nan, 0.0, -0.0, 2.5]
IDS = [3, 3, 3, 4, 1, 3, 3, 5]  # by frequency, ties by value


@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize("num_parts", [1, 2])
def test_fit_and_pack_in_one_pass_give_what_the_two_give(kind, num_parts):
    """One pass counted -0.0 as a value of its own, and with two parts no zero was found again."""
    schema = Schema((Column("x", "categorical", kind),), ())
    parts = [pd.DataFrame({"x": np.array(VALUES, kind)})] * num_parts
    apart, at_once = Preprocessor(schema).fit(parts), Preprocessor(schema)
    packed = at_once.fit_pack(parts)
    for part, rows in zip(parts, packed, strict=True):
        assert rows.ravel().tolist() == IDS
        assert apart.pack(part).ravel().tolist() == IDS
    assert at_once.checksum == apart.checksum
    grown, _ = apart.grow_pack(parts)
    assert [rows.ravel().tolist() for rows in grown] == [IDS] * num_parts


@pytest.mark.parametrize("kind", ["float64", "float32", "Float64", "double[pyarrow]", "float[pyarrow]"])
def test_both_zeros_are_one_group_in_frames_of_every_kind_and_in_files(kind, tmp_path):
    schema = Schema((Column("x", "continuous", "float32"), Column("g", "group", "float64")), ())
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "g": pd.Series([2.5, 0.0, -0.0, 2.5], dtype=kind)})
    frame.to_parquet(tmp_path / "rows.parquet")
    preprocessor = Preprocessor(schema).fit([frame])
    for rows in (frame, preprocessor.read(("pandas", str(tmp_path / "rows.parquet")))):
        assert preprocessor.pack(rows)[:, -1].tolist() == [0, 1, 1, 0]
