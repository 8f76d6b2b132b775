"""Step 7 of `tools/gpu_run.py`: cuDF by itself, before the tests that use it.

    python -m tools.cudf_checks import|pool|preprocessor [--engine cudf] [--rows 10000]

`preprocessor` fits and packs the same rows with pandas and with the engine, in three partitions, and compares ids and
targets bit for bit and floats to one unit in the last place. `--engine pandas` compares pandas with itself, in one
partition against three, which needs no GPU.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np


def imports() -> None:
    """cuDF, before torch as everywhere here, and a column that went to the device and came back."""
    import cudf
    import cupy
    import pylibcudf
    import rmm
    import torch

    for module in (cudf, cupy, pylibcudf, rmm, torch):
        print(f"{module.__name__} {module.__version__}")
    values = np.arange(1000)
    assert cudf.Series(values).sum() == values.sum()
    shared = torch.from_dlpack(cudf.Series(values).to_cupy())
    assert shared.device.type == "cuda"
    assert int(shared.sum()) == values.sum()


def pool() -> None:
    """Where cuDF's and CuPy's memory comes from once the engine is loaded, with torch's allocator beside it."""
    import cupy
    import rmm
    import torch

    from gigabatch.features.engines.frame import load_engine

    engine = load_engine("cudf")
    free, whole = torch.cuda.mem_get_info()
    print(f"RMM: {type(rmm.mr.get_current_device_resource()).__name__}; CuPy: {cupy.cuda.get_allocator()}")
    frame = engine.frames.DataFrame({"a": engine.arrays.arange(1 << 24)})
    words = torch.ones(1 << 24, device="cuda")
    assert int(frame["a"].max()) == (1 << 24) - 1
    assert float(words.sum()) == 1 << 24
    left, _ = torch.cuda.mem_get_info()
    print(f"free of {whole >> 20} MiB: {free >> 20} before, {left >> 20} with 128 MiB of cuDF's and 64 of torch's")


def sample(rows: int) -> Any:
    """A pandas frame with text, whole numbers and floats, nulls in each, and values that come once."""
    import pandas as pd

    rng = np.random.default_rng(5)
    town = np.array([f"town {number}" for number in range(200)], dtype=object)
    frame = pd.DataFrame(
        {
            "town": pd.array(town[(rng.random(rows) ** 3 * 200).astype(int)], dtype="str"),
            "shop": pd.array(rng.integers(0, rows // 3, rows), dtype="Int64"),
            "price": rng.lognormal(3, 2, rows),
            "age": rng.normal(40, 12, rows),
            "bought": (rng.random(rows) < 0.2).astype("float32"),
        }
    )
    for name in ("town", "shop", "price", "age"):
        frame[name] = frame[name].mask(rng.random(rows) < 0.05)
    return frame


def preprocessor(engine_name: str, rows: int) -> None:
    from gigabatch.features.encoding.preprocessor import Preprocessor
    from gigabatch.features.engines.frame import load_engine
    from gigabatch.features.schema import Column, Schema, Target

    frame, engine = sample(rows), load_engine(engine_name)
    columns = (
        Column("town", "categorical", "string"),
        Column("shop", "categorical", "int64"),
        Column("price", "continuous", "float64"),
        Column("age", "continuous", "float64"),
        Column("bought", "target", "float32"),
    )
    schema = Schema(columns, (Target("bought", "binary"),))
    by_pandas, by_engine = Preprocessor(schema), Preprocessor(schema)
    (expected,) = by_pandas.fit_pack([frame])
    places = np.array_split(np.arange(rows), 3)
    parts = [frame.iloc[place].reset_index(drop=True) for place in places]
    found = by_engine.fit_pack([part if engine_name == "pandas" else engine.from_pandas(part) for part in parts])
    packed = np.concatenate([np.asarray(part if engine_name == "pandas" else part.get()) for part in found])
    expected, layout = np.asarray(expected), by_pandas.tensor_schema
    assert packed.shape == expected.shape, (packed.shape, expected.shape)
    ids, floats = len(layout.ids), len(layout.floats)
    assert np.array_equal(packed[:, :ids], expected[:, :ids]), "ids differ"
    assert np.array_equal(packed[:, ids + floats :], expected[:, ids + floats :]), "targets differ"
    distance = np.abs(packed[:, ids : ids + floats].astype(np.int64) - expected[:, ids : ids + floats]).max()
    assert distance <= 1, f"floats differ by {distance} units in the last place"
    print(f"{rows:,} rows of {ids} ids and {floats} floats by {engine_name} are those of pandas")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("import", "pool", "preprocessor"))
    parser.add_argument("--engine", default="cudf", choices=("cudf", "pandas"), help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=10_000, help="default: %(default)s")
    flags = parser.parse_args()
    if flags.part == "preprocessor":
        preprocessor(flags.engine, flags.rows)
    else:
        {"import": imports, "pool": pool}[flags.part]()
        print(f"{flags.part}: all is well")


if __name__ == "__main__":
    main()
