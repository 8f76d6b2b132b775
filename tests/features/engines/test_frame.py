"""Which engine runs, that the CPU path leaves cuDF alone, and that the two engines hold the same functions."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigabatch import features
from gigabatch.features.engines import pandas as engine
from gigabatch.features.engines.frame import engine_of, load_engine, resolve_engine
from gigabatch.features.errors import DataError

FOLDER = Path(features.__file__).parent


def public_functions(module):
    """name -> parameters (names, kinds and defaults, without annotations) of a module's functions, those that it takes
    from the plain cuDF engine among them, read by ast."""
    found = {}
    for node in ast.parse((FOLDER / f"{module}.py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module == "gigabatch.features.engines.cudf_plain":
            plain = public_functions("engines/cudf_plain")
            found |= {alias.name: plain[alias.name] for alias in node.names}
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            for arg in ast.walk(node.args):
                if isinstance(arg, ast.arg):
                    arg.annotation = None
            found[node.name] = ast.unparse(node.args)
    return found


def test_all_engines_hold_the_same_names_with_the_same_parameters():
    assert public_functions("engines/cudf") == public_functions("engines/pandas")
    assert public_functions("engines/cudf_plain") == public_functions("engines/pandas")
    assert len(public_functions("engines/pandas")) > 10
    for module in ("engines/cudf", "engines/cudf_plain", "engines/pandas"):
        names = {
            target.id
            for node in ast.parse((FOLDER / f"{module}.py").read_text()).body
            if isinstance(node, ast.Assign)
            for target in node.targets
        }
        assert {name for name in names if not name.isupper()} - {"__all__"} == {"frames", "arrays"}
        assert "NAME" in names


@given(st.data())
def test_counts_are_sorted_by_count_and_then_by_value(data):
    values = data.draw(st.lists(st.one_of(st.text("abé\0", max_size=20)), unique=True, max_size=30))
    counts = data.draw(st.lists(st.integers(1, 3), min_size=len(values), max_size=len(values)))
    expected = sorted(zip(values, counts, strict=True), key=lambda pair: (-pair[1], pair[0].encode()))
    given_order = expected if data.draw(st.booleans()) else list(zip(values, counts, strict=True))
    frame = pd.DataFrame(given_order, columns=["value", "count"]).astype({"value": "str", "count": "int64"})
    found = engine.sort_counts(frame)
    assert list(found.itertuples(index=False, name=None)) == expected
    repeated = engine.sum_counts(pd.concat([frame, frame.sample(frac=1, random_state=1)], ignore_index=True))
    summed = {value: 2 * count for value, count in expected}
    assert dict(repeated.itertuples(index=False, name=None)) == summed


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=FOLDER.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_every_module_does_nothing_but_define_and_the_cpu_path_never_imports_cudf():
    modules = sorted(
        ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts)
        for path in FOLDER.rglob("*.py")
        if path.stem not in ("__init__", "__main__", "cudf", "cudf_plain") and not path.stem.endswith("_cuda")
    )
    code = f"""
import sys, os, threading, importlib, logging, json, pathlib, builtins, random
opened, real = [], builtins.open
def spy(file, mode="r", *rest, **more):
    if any(letter in str(mode) for letter in "wax+") and not str(file).endswith(".pyc"):
        opened.append(str(file))
    return real(file, mode, *rest, **more)
builtins.open = spy
environment, threads, seed = dict(os.environ), threading.active_count(), random.getstate()
import pandas, torch, pyarrow, dask, numpy  # their own doings at import are theirs
environment, threads = dict(os.environ), threading.active_count()
state, handlers = numpy.random.get_state()[1].tolist(), list(logging.getLogger().handlers)
for name in {modules!r}:
    importlib.import_module(name)
print(json.dumps(dict(
    opened=opened, environment=environment != dict(os.environ), threads=threading.active_count() - threads,
    seeded=state != numpy.random.get_state()[1].tolist() or seed != random.getstate(),
    logging=handlers != logging.getLogger().handlers, stray="pydantic" in sys.modules,
)))
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, Schema
frame = pandas.DataFrame({{"a": ["x", "y"], "b": [1.0, None]}})
schema = Schema((Column("a", "categorical", "string"), Column("b", "continuous", "float32")), ())
Preprocessor(schema).fit([frame]).transform(frame)
print(json.dumps([name for name in ("cudf", "cupy", "dask_cudf") if name in sys.modules]))
"""
    assert len(modules) > 15
    found, cuda = map(json.loads, run_python(code).splitlines())
    assert found == {
        "opened": [],
        "environment": False,
        "threads": 0,
        "seeded": False,
        "logging": False,
        "stray": False,
    }
    assert cuda == []


def test_auto_is_pandas_without_cudf():
    if importlib.util.find_spec("cudf") is not None and torch.cuda.is_available():
        pytest.skip("cuDF and a CUDA device are here, so auto is cudf")
    assert resolve_engine("auto") == "pandas"
    assert load_engine("auto").NAME == "pandas"


def test_an_unknown_engine_lists_the_known():
    with pytest.raises(DataError, match=r"unknown engine 'polars'. Known: auto, cudf, cudf_plain, pandas"):
        resolve_engine("polars")


@pytest.mark.skipif(importlib.util.find_spec("cudf") is not None, reason="cuDF is installed here")
@pytest.mark.parametrize("name", ["cudf", "cudf_plain"])
def test_asking_for_cudf_where_it_is_not_installed_is_an_error(name):
    with pytest.raises(DataError, match=rf"{name} was asked for but cuDF is not installed"):
        load_engine(name)


def test_engine_of_a_pandas_frame_and_series():
    frame = pd.DataFrame({"a": [1]})
    assert engine_of(frame) is engine_of(frame["a"]) is engine


def test_hash64_refuses_nulls():
    with pytest.raises(ValueError, match=r"column 'a' holds nulls"):
        engine.hash64(pd.Series(["x", None], name="a"))


def test_parquet_round_trip_keeps_types_and_drops_the_index(tmp_path):
    frame = pd.DataFrame({"s": ["a", None], "f": np.array([1, np.nan], "float32"), "i": [1, 2]}, index=[9, 9])
    engine.write_parquet(frame, tmp_path / "x.parquet")
    back = engine.read_parquet(tmp_path / "x.parquet")
    pd.testing.assert_frame_equal(back, frame.reset_index(drop=True))
    assert list(engine.read_parquet(tmp_path / "x.parquet", ["i", "s"]).columns) == ["i", "s"]
    assert isinstance(pa.parquet.read_schema(tmp_path / "x.parquet"), pa.Schema)
