"""Which engine runs, that the CPU path leaves cuDF alone, and that the two engines hold the same functions."""

import ast
import importlib.util
import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch import features
from gigabatch.features.engines import pandas as engine
from gigabatch.features.engines.frame import engine_of, load_engine, resolve_engine
from gigabatch.features.errors import DataError
from tests.examples import examples

FOLDER = Path(features.__file__).parent
INT64 = st.integers(-(2**63), 2**63 - 1)


def public_functions(module):
    """name -> parameters (names, kinds and defaults, without annotations) of a module's functions, read by ast."""
    found = {}
    for node in ast.parse((FOLDER / f"{module}.py").read_text()).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            for arg in ast.walk(node.args):
                if isinstance(arg, ast.arg):
                    arg.annotation = None
            found[node.name] = ast.unparse(node.args)
    return found


def test_both_engines_hold_the_same_functions_with_the_same_parameters():
    assert public_functions("engine_cudf") == public_functions("engine_pandas")
    assert len(public_functions("engine_pandas")) > 10


def test_both_engines_name_the_same_module_attributes():
    for module in ("engine_cudf", "engine_pandas"):
        names = {
            target.id
            for node in ast.parse((FOLDER / f"{module}.py").read_text()).body
            if isinstance(node, ast.Assign)
            for target in node.targets
        }
        assert names == {"NAME", "frames", "arrays"}


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


def test_the_cpu_path_never_imports_cudf():
    code = """
import sys, pandas as pd
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, Schema
from gigabatch.features.recipes import recipe_class
recipe_class("flights")
frame = pd.DataFrame({"a": ["x", "y"], "b": [1.0, None]})
schema = Schema((Column("a", "categorical", "string"), Column("b", "continuous", "float32")), ())
Preprocessor(schema).fit([frame]).transform(frame)
print([name for name in ("cudf", "cupy", "dask_cudf") if name in sys.modules])
"""
    assert run_python(code).strip() == "[]"


def test_importing_every_module_does_nothing_but_define(tmp_path):
    modules = sorted(
        ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts)
        for path in FOLDER.rglob("*.py")
        if path.stem not in ("__init__", "engine_cudf")
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
    logging=handlers != logging.getLogger().handlers, stray="pydantic" in sys.modules or "cudf" in sys.modules,
)))
"""
    assert len(modules) > 15
    found = json.loads(run_python(code))
    assert found == {
        "opened": [],
        "environment": False,
        "threads": 0,
        "seeded": False,
        "logging": False,
        "stray": False,
    }


def test_auto_is_pandas_without_cudf():
    if importlib.util.find_spec("cudf") is not None and torch.cuda.is_available():
        pytest.skip("cuDF and a CUDA device are here, so auto is cudf")
    assert resolve_engine("auto") == "pandas"
    assert load_engine("auto").NAME == "pandas"


def test_an_unknown_engine_lists_the_known():
    with pytest.raises(DataError, match=r"unknown engine 'polars'. Known: auto, cudf, pandas"):
        resolve_engine("polars")


@pytest.mark.skipif(importlib.util.find_spec("cudf") is not None, reason="cuDF is installed here")
def test_asking_for_cudf_where_it_is_not_installed_is_an_error():
    with pytest.raises(DataError, match=r"cudf was asked for but is not installed"):
        load_engine("cudf")


def test_engine_of_a_pandas_frame_and_series():
    frame = pd.DataFrame({"a": [1]})
    assert engine_of(frame) is engine_of(frame["a"]) is engine


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20))
@settings(max_examples=examples(40), deadline=None)
def test_hash64_of_strings_is_xxh64_of_their_utf8_bytes(values):
    found = engine.hash64(pd.Series(values, dtype="str"))
    assert found.astype("uint64").tolist() == [xxhash.xxh64_intdigest(v.encode()) for v in values]


@given(st.lists(INT64, max_size=20))
@settings(max_examples=examples(40), deadline=None)
def test_hash64_of_integers_is_xxh64_of_eight_little_endian_bytes(values):
    found = engine.hash64(pd.Series(values, dtype="int64"))
    assert found.dtype == np.int64
    expected = [xxhash.xxh64_intdigest(np.array([v], "<i8").tobytes()) for v in values]
    assert found.astype("uint64").tolist() == expected


def test_hash64_never_changes():
    # XXH64 with seed 0 of the empty input, from the algorithm's specification.
    assert np.uint64(engine.hash64(pd.Series([""]))[0]) == np.uint64(0xEF46DB3751D8E999)


def test_hash64_of_int32_equals_that_of_int64():
    values = [1, -1, 7]
    narrow, wide = pd.Series(values, dtype="int32"), pd.Series(values, dtype="int64")
    assert engine.hash64(narrow).tolist() == engine.hash64(wide).tolist()


def test_hash64_refuses_nulls():
    with pytest.raises(ValueError, match=r"column 'a' holds nulls"):
        engine.hash64(pd.Series(["x", None], name="a"))


@given(st.lists(st.one_of(st.none(), st.sampled_from("abc"))))
@settings(max_examples=examples(40), deadline=None)
def test_value_counts_come_by_falling_count_then_value(values):
    known = [v for v in values if v is not None]
    found = engine.value_counts(pd.Series(values, dtype="str"))
    expected = sorted(((v, known.count(v)) for v in set(known)), key=lambda item: (-item[1], item[0]))
    assert list(found.itertuples(index=False, name=None)) == expected


def test_codes_are_dense_and_null_is_minus_one():
    found = engine.codes(pd.Series(["b", None, "a", "b"]))
    assert found.dtype == np.int64
    assert found[1] == -1
    assert found[0] == found[3] != found[2]
    assert {found[0], found[2]} == {0, 1}


def test_array_fills_nulls_and_series_makes_them():
    frame = pd.DataFrame({"a": [1.0, None]}, index=[5, 6])
    assert engine.array(frame["a"], fill=9).tolist() == [1, 9]
    back = engine.series(np.array([1, 2]), frame, valid=np.array([True, False]))
    assert back.isna().to_dict() == {5: False, 6: True}


def test_with_nulls_keeps_large_integers_exact():
    big = 2**62 + 1
    found = engine.with_nulls(pd.Series([big, 0]), pd.Series([False, True]))
    assert found[0] == big
    assert found.isna().tolist() == [False, True]


def test_map_columns_keeps_the_order():
    assert engine.map_columns(str.upper, list("hello")) == list("HELLO")


def test_parquet_round_trip_keeps_types_and_drops_the_index(tmp_path):
    frame = pd.DataFrame({"s": ["a", None], "f": np.array([1, np.nan], "float32"), "i": [1, 2]}, index=[9, 9])
    engine.write_parquet(frame, tmp_path / "x.parquet")
    back = engine.read_parquet(tmp_path / "x.parquet")
    pd.testing.assert_frame_equal(back, frame.reset_index(drop=True))
    assert list(engine.read_parquet(tmp_path / "x.parquet", ["i", "s"]).columns) == ["i", "s"]
    assert isinstance(pa.parquet.read_schema(tmp_path / "x.parquet"), pa.Schema)


def test_every_engine_function_of_pandas_has_a_docstring():
    for name in public_functions("engine_pandas"):
        assert inspect.getdoc(getattr(engine, name)), name
