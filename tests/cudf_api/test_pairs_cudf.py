"""benchmarks/end_to_end on a GPU reads, splits and encodes with what cuDF has."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks import end_to_end_ours, pairs
from tests.cudf_api import checked


def test_the_pair_table_is_split_and_encoded_by_what_cudf_has(monkeypatch, tmp_path):
    monkeypatch.setattr(checked, "OURS", (*checked.OURS, "benchmarks."))
    path = tmp_path / "pairs.parquet"
    pairs.write_pairs_from_device(path, 3_000, "cpu")
    engine = SimpleNamespace(NAME="cudf", read_columns=read_columns)
    with monkeypatch.context() as patch:
        patch.setattr("gigabatch.features.engines.frame.load_engine", lambda name: engine)
        splits = end_to_end_ours.read_splits(str(path), "cudf", end_to_end_ours.Clock("cpu"))
    assert [len(frame) for frame in splits] == [2_400, 600]
    assert {type(frame) for frame in splits} == {checked.CheckedFrame}
    train, valid = end_to_end_ours.encode(*splits, "cpu", end_to_end_ours.Clock("cpu"))
    assert (len(train), len(valid)) == (2_400, 600)
    assert train.words.dtype == torch.int32


def read_columns(path, names):
    import pandas as pd

    return checked.CheckedFrame(pd.read_parquet(path, columns=names))


def test_the_check_sees_calls_of_the_benchmark(monkeypatch):
    monkeypatch.setattr(checked, "OURS", (*checked.OURS, "benchmarks."))
    frame = checked.CheckedFrame({"row_id": [0, 1]})
    reads = {"__name__": "benchmarks.planted", "frame": frame}
    with pytest.raises(checked.NotInCudf):
        exec("frame.combine_first(frame)", reads)
