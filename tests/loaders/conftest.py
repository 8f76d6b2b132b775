"""Packed tables of random values for the loader tests."""

import pytest
import torch

from gigabatch.features.schema import IdColumn, Target, TensorSchema
from gigabatch.loaders.tables.packed import PackedTable

SCHEMA = TensorSchema(
    ids=(IdColumn("item", 1000), IdColumn("city", 7)),
    floats=("price", "age", "distance"),
    targets=(
        Target("clicked", "binary"),
        Target("cause", "multiclass", 4, ("none", "weather", "crew", "other")),
        Target("delay", "regression"),
    ),
    has_weight=True,
    has_group=True,
)


def random_columns(num_rows: int, seed: int = 0) -> dict:
    """Arguments of `from_columns` for `SCHEMA`; group is the row number, so that rows can be told apart."""
    generator = torch.Generator().manual_seed(seed)

    def whole(high: int) -> torch.Tensor:
        return torch.randint(0, high, (num_rows,), dtype=torch.int32, generator=generator)

    def real() -> torch.Tensor:
        return torch.randn(num_rows, generator=generator)

    return {
        "ids": [whole(1000), whole(7)],
        "floats": [real(), real(), real()],
        "targets": [whole(2).float(), whole(4), real()],
        "weight": real().abs(),
        "group": torch.arange(num_rows, dtype=torch.int32),
    }


@pytest.fixture(scope="session")
def schema() -> TensorSchema:
    return SCHEMA


@pytest.fixture(scope="session")
def make_columns():
    return random_columns


@pytest.fixture(scope="session")
def make_table():
    """make_table(num_rows, seed=0) -> PackedTable whose `group` is the row number."""

    def make(num_rows: int, seed: int = 0) -> PackedTable:
        return PackedTable.from_columns(SCHEMA, **random_columns(num_rows, seed))

    return make
