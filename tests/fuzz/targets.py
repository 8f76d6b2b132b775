"""What `make fuzz` feeds with bytes that a coverage-guided fuzzer (atheris, libFuzzer) makes up.

    make fuzz                        every target, SECONDS=60 each
    make fuzz TARGET=csv SECONDS=3600

A target takes bytes and may end in two ways: it returns, or it raises an error of this package (`DataError`,
`LoaderError`, `BundleError`), which is a refusal. Any other exception, a crash of the interpreter, more than 2 GiB of
memory or more than 20 seconds is a finding: the input is written to tests/fuzz/findings/, from where
`python tests/fuzz/run.py TARGET FILE` plays it again and `tests/fuzz/test_targets.py` keeps it from coming back.

The fuzzer starts from small valid files (`SEEDS`), which libFuzzer cuts, joins and changes where that reaches code that
it has not seen. It sees our own Python (`gigabatch`), not the C++ of Arrow, pandas and torch.
The same targets run on a few hundred random inputs in the test suite, without atheris.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from gigabatch.features.encoding.online import OnlineTransformer
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.features.importers.fastai import import_fastai
from gigabatch.features.importers.nvtabular import import_nvtabular
from gigabatch.features.operators.categories.categorify import Categorify
from gigabatch.features.operators.groups.join_groupby import JoinGroupby
from gigabatch.features.operators.numbers.expression import Expression
from gigabatch.features.reading.sources import read_files
from gigabatch.features.refit.statistics_files import load_statistics
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.features.vocabulary.vocabulary import Vocabulary
from gigabatch.features.workflow.steps import parse_steps
from gigabatch.features.workflow.workflow import Workflow
from gigabatch.loaders.errors import LoaderError
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.pipeline.bundle import BundleError

REFUSALS = (DataError, LoaderError, BundleError)
TYPES = {"name": "string", "size": "int64", "price": "float64"}
CSV = b'name,size,price\nOslo,1,2.5\n"a, b",2,NA\n'
SCHEMA = Schema(
    (Column("name", "categorical", "string"), Column("price", "continuous", "float32"),
     Column("size", "target", "float32")), (Target("size", "regression"),))  # fmt: skip
ROWS = pd.DataFrame({"name": pd.Series(["Oslo", None, "Bonn"], dtype="str"),
                     "price": np.array([1, np.nan, 3], "float32"), "size": np.float32([1, 2, 3])})  # fmt: skip


@cache
def folder() -> Path:
    """A new folder with one of everything that is saved."""
    found = Path(tempfile.mkdtemp(prefix="gigabatch-fuzz-"))
    preprocessor = Preprocessor(SCHEMA).fit([ROWS])
    preprocessor.save(found / "preprocessor")
    Workflow([JoinGroupby(["name"], ["price"], ["mean"]), Categorify("name")]).fit([ROWS]).save(found / "workflow")
    PackedTable(torch.from_numpy(preprocessor.pack(ROWS)), preprocessor.tensor_schema).save(found / "packed")
    (found / "nvtabular").mkdir()
    return found


def with_file(name: str, content: bytes, load: Callable[[Path], object]) -> None:
    """`load` the folder with that file changed, then put it back."""
    path = folder() / name
    original = path.read_bytes() if path.exists() else None
    try:
        path.write_bytes(content)
        load(folder())
    finally:
        path.unlink() if original is None else path.write_bytes(original)


def csv(content: bytes) -> None:
    with_file("raw.csv", content, lambda root: read_files("pandas", str(root / "raw.csv"), TYPES))


def parquet(content: bytes) -> None:
    with_file("raw.parquet", content, lambda root: read_files("pandas", str(root / "raw.parquet"), TYPES))


def preprocessor(content: bytes) -> None:
    for load in (Preprocessor.load, OnlineTransformer.load):
        with_file("preprocessor/preprocessor.json", content, lambda root, load=load: load(root / "preprocessor"))


def statistics(content: bytes) -> None:
    with_file("preprocessor/statistics.json", content, lambda root: load_statistics(root / "preprocessor"))


def vocabulary(content: bytes) -> None:
    with_file("vocabulary.parquet", content, lambda root: Vocabulary.load(root / "vocabulary.parquet", "pandas"))


def workflow(content: bytes) -> None:
    """The content signed anew, so that more than the checksum is reached."""
    from gigabatch.features.workflow.workflow import _checksum

    try:
        value = json.loads(content)
        content = json.dumps({**value, "sha256": _checksum(value)}).encode() if isinstance(value, dict) else content
    except (ValueError, RecursionError):
        pass
    with_file("workflow/workflow.json", content, lambda root: Workflow.load(root / "workflow"))


def packed(content: bytes) -> None:
    with_file("packed/words.npy", content, lambda root: PackedTable.load(root / "packed", mmap=False))
    with_file("packed/layout.json", content, lambda root: PackedTable.load(root / "packed", mmap=False))


def fastai(content: bytes) -> None:
    with_file("fastai.json", content, lambda root: import_fastai(root / "fastai.json"))


def nvtabular(content: bytes) -> None:
    with_file("nvtabular/graph.json", content, lambda root: import_nvtabular(root / "nvtabular"))


def expression(content: bytes) -> None:
    Expression("out", content.decode("utf-8", "replace"))


def steps(content: bytes) -> None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return
    parse_steps(value, "pandas")


TARGETS = {item.__name__: item for item in (csv, parquet, preprocessor, statistics, vocabulary, workflow, packed,
                                            fastai, nvtabular, expression, steps)}  # fmt: skip


def seeds() -> dict[str, list[bytes]]:
    """Small inputs of each target that it takes."""
    root, table = folder(), io.BytesIO()
    pq.write_table(pa.table({"name": ["Oslo", None], "size": [1, 2], "price": [2.5, None]}), table)
    content = json.loads((root / "workflow" / "workflow.json").read_text())
    content.pop("sha256")
    export = {"format": "gigabatch-fastai-1", "classes": {"city": ["#na#", "Oslo"]}, "continuous": ["price"],
              "fills": {"price": 1.5}, "indicators": False, "means": {"price": 2.0},
              "stds": {"price": 1.0}}  # fmt: skip
    node = {"id": 0, "op_class": "merlin.dag.ops.selection.SelectionOp", "op_params": {"selector": {"names": ["a"]}},
            "op_state": {}, "parent_ids": [], "dependency_ids": [], "selector": {"names": ["a"], "tags": []},
            "input_schema": [], "output_schema": []}  # fmt: skip
    return {
        "csv": [CSV],
        "parquet": [table.getvalue()],
        "preprocessor": [(root / "preprocessor" / "preprocessor.json").read_bytes()],
        "statistics": [(root / "preprocessor" / "statistics.json").read_bytes()],
        "vocabulary": [(root / "preprocessor" / "vocabulary-000.parquet").read_bytes()],
        "workflow": [json.dumps(content).encode()],
        "packed": [(root / "packed" / name).read_bytes() for name in ("words.npy", "layout.json")],
        "fastai": [json.dumps(export).encode()],
        "nvtabular": [json.dumps({"format_version": 1, "output_node_id": 0, "nodes": [node]}).encode()],
        "expression": [b"where(price > 2 and not flag, log1p(price) ** 2, -fill(col('size'), 0) // 3)"],
        "steps": [b'[{"log": {"column": "price"}}, {"categorify": {"column": "name", "min_count": 2}}]'],
    }


def run(target: str, content: bytes) -> bool:
    """Whether the target refused the content; any other error passes through."""
    try:
        TARGETS[target](content)
    except REFUSALS:
        return True
    return False
