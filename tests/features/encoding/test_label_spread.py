"""Regression labels that float32 would blur are refused wherever they come in; others are kept as they are."""

from functools import reduce
from statistics import pstdev

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.label_spread import LabelSpread
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.schema import Column, Schema, Target
from tests.examples import examples

LOST = {
    "floats": np.array([1e9 - 1, 1e9, 1e9 + 1]),
    "floats at 1e12": np.array([1e12 - 0.9, 1e12, 1e12 + 0.9]),
    "floats at 1e13": np.array([1e13 - 5, 1e13, 1e13 + 5]),
    "integers": np.array([10**9 - 1, 10**9, 10**9 + 1]),
    "integers that float64 holds as one": np.array([2**60, 2**60 + 1, 2**60 + 2]),
    "nullable integers": pd.array([10**9, 10**9 + 1, 10**9 + 2], "Int64"),
    "Arrow's integers": pd.array([10**9, 10**9 + 1, 10**9 + 2], pd.ArrowDtype(pa.int64())),
    "unsigned": np.array([2**63, 2**63 + 1, 2**63 + 2], "uint64"),
    "text": pd.array(["1000000000", "1000000001", "1000000002"], "str"),
}
KEPT = {
    "a constant": np.array([1e9 + 0.3] * 3),
    "a constant but for noise": np.array([0.3, 0.1 + 0.2, 0.3]) * 1e9,
    "a large constant": np.array([1e13 + 0.9] * 3),
    "a large constant but for noise": np.array([0.3, 0.1 + 0.2, 0.3]) * 1e13,
    "a large integer": np.array([2**60 + 1] * 3),
    "two heaps far apart": np.array([0.0, 1.0, 1e9, 1e9 + 1]),
    "years": np.array([1999, 2000, 2001]),
}


def schema(dtype="float32"):
    columns = (Column("x", "continuous", "float32"), Column("y", "target", dtype))
    return Schema(columns, (Target("y", "regression"),))


def table(labels):
    return pd.DataFrame({"x": np.arange(len(labels), dtype="float32"), "y": labels})


def rows(frame):
    return [frame.iloc[k : k + 1] for k in range(len(frame))]


def as_file(frame, folder):
    frame.to_parquet(folder / "part.parquet")
    return [("pandas", folder / "part.parquet")]


WAYS = {
    "fit": lambda frame, folder: Preprocessor(schema()).fit(rows(frame)),
    "fit as float64": lambda frame, folder: Preprocessor(schema("float64")).fit([frame]),
    "fit on a file": lambda frame, folder: Preprocessor(schema()).fit(as_file(frame, folder)),
    "fit_pack": lambda frame, folder: Preprocessor(schema()).fit_pack(rows(frame)),
    "fit_pack of a file": lambda frame, folder: Preprocessor(schema()).fit_pack(as_file(frame, folder)),
    "update": lambda frame, folder: Preprocessor(schema()).fit([table([1.0, 2.0])]).update(rows(frame)),
    "grow": lambda frame, folder: Preprocessor(schema()).fit([table([1.0, 2.0])]).grow(rows(frame)),
    "grow_pack": lambda frame, folder: Preprocessor(schema()).fit([table([1.0, 2.0])]).grow_pack(rows(frame)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("labels", LOST)
def test_labels_whose_differences_float32_loses_are_refused_at_every_way_of_fitting(tmp_path, way, labels):
    with pytest.raises(DataError, match=r"target 'y': float32, .* moves values by up to \d.* Subtract a constant near"):
        WAYS[way](table(LOST[labels]), tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("labels", KEPT)
def test_labels_that_float32_tells_apart_and_constants_are_kept(tmp_path, way, labels):
    WAYS[way](table(KEPT[labels]), tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "labels", [np.array([1e-40, 2e-40, 4e-40]), np.array([0.0, 0.0, 1e-35]), np.array([-1e-300, 0, 1e-300])]
)
def test_labels_that_differ_by_next_to_nothing_are_refused_at_every_way_of_fitting(tmp_path, way, labels):
    """They counted as a constant, of deviation 1: predictions were 1e35 times too large."""
    with pytest.raises(DataError, match=r"target 'y': its values differ by \de-\d+ at most.* in a smaller unit"):
        WAYS[way](table(labels), tmp_path)
    WAYS[way](table(labels / np.ptp(labels)), tmp_path)


def test_the_constant_that_is_named_helps():
    labels = LOST["floats"]
    with pytest.raises(DataError, match=r"near their mean, 1000000000\."):
        Preprocessor(schema()).fit([table(labels)])
    frame = table(labels - 1e9)
    assert Preprocessor(schema()).fit([frame]).transform(frame)["y"].tolist() == [-1, 0, 1]


def test_to_fit_needs_no_label():
    frame = table(LOST["floats"])
    assert Preprocessor(schema()).fit([frame[["x"]]]).transform(frame, targets=False).shape == (3, 2)


@given(
    labels=st.lists(st.integers(-(2**62), 2**62), min_size=2, max_size=12),
    kind=st.sampled_from(["int64", "float64"]),
    cut=st.integers(1, 11),
)
@settings(max_examples=examples(100))
def test_the_loss_is_what_numpy_rounds_away_in_any_partitions(labels, kind, cut):
    column = pd.Series(labels, dtype="int64").astype(kind)
    parts = [part for part in (column.iloc[:cut], column.iloc[cut:]) if len(part)]
    found = reduce(LabelSpread.merge, [LabelSpread.of(part, "y") for part in parts])
    assert found == LabelSpread.of(column, "y")
    numbers = [int(value) for value in column]
    rounded = [int(np.int64(value).astype("float32")) for value in numbers]
    assert found.lost == pytest.approx(max(abs(a - b) for a, b in zip(numbers, rounded, strict=True)))
    assert (found.low, found.high) == (min(numbers), max(numbers))
    spread = pstdev(numbers)
    if found.lost > 1.01e-3 * spread and spread > 2**-49 * max(map(abs, numbers)):
        with pytest.raises(DataError, match="float32"):
            found.require("y")
    if found.lost < 0.99e-3 * spread:
        found.require("y")
