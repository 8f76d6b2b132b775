"""Columns and their statistics for the tests of statistics and churn."""

import struct

import pandas as pd

from gigabatch.features.refit.statistics import FitContinuousStatistics
from gigabatch.features.schema import Column, Schema, Target

SCHEMA = Schema(
    (
        Column("word", "categorical", "string"),
        Column("number", "categorical", "int64"),
        Column("x", "continuous", "float32"),
        Column("y", "target", "float32"),
    ),
    (Target("y", "binary"),),
)


def words(values):
    return pd.Series(values, dtype="str", name="word")


def numbers(values):
    return pd.Series(values, dtype="float32", name="x")


def continuous(values):
    return FitContinuousStatistics("x").partial(pd.DataFrame({"x": numbers(values)}))


def slow_bin(value):
    """The first 16 bits of a float32 that were made to order like numbers, by struct."""
    bits = struct.unpack("<I", struct.pack("<f", value + 0.0))[0]
    ordered = bits ^ 0xFFFFFFFF if bits >> 31 else bits | 0x80000000
    return ordered >> 16
