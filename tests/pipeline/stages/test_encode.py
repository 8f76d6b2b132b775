"""Encoding part by part: the packed table of the whole split."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.engines.frame import load_engine
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.loaders.tables.packed import PackedTable
from gigabatch.pipeline.stages import encode
from gigabatch.pipeline.stages.cluster import Cluster
from gigabatch.pipeline.stages.encode import (
    GroupNumbers,
    PackTask,
    encode_split,
    fit,
    pack,
    pack_part,
    packed_split,
    read_together,
)

SCHEMA = Schema(
    (
        Column("city", "categorical", "string"),
        Column("size", "continuous", "float32"),
        Column("clicked", "target", "float32"),
        Column("session", "group", "string"),
    ),
    (Target("clicked", "binary"),),
)


def table_of(rows, seed=0):
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "city": pd.Series(random.choice(["Oslo", "Bonn", None], rows), dtype="str"),
            "size": random.normal(size=rows).astype("float32"),
            "clicked": random.integers(0, 2, rows).astype("float32"),
            # Groups go on over the cuts between parts, and come back.
            "session": pd.Series(random.choice(["s3", "s1", "s2", "s9"], rows), dtype="str"),
        }
    )


@pytest.mark.parametrize("sizes", [[100], [1, 99], [30, 0, 30, 40], [7] * 14 + [2]])
def test_parts_give_the_packed_table_of_the_whole_split(tmp_path, sizes):
    """Packed after the fit, and with what the fit itself packed already."""
    whole = table_of(100)
    paths, start = [], 0
    for number, size in enumerate(sizes):
        paths.append(tmp_path / f"part-{number}.parquet")
        whole.iloc[start : start + size].to_parquet(paths[-1], index=False)
        start += size
    preprocessor = Preprocessor(SCHEMA)
    packed = fit(preprocessor, "pandas", paths, Cluster())
    assert len(packed) == (1 if len(sizes) == 1 else 0)  # several parts are read again, one at a time
    expected = pack(Preprocessor(SCHEMA).fit([whole]), whole)
    in_memory = [packed_split(preprocessor, "pandas", paths, 100, ready) for ready in ([], packed)]
    assert all((table.words == expected.words).all() for table in in_memory)
    for name, ready in (("anew", []), ("ready", packed)):
        encode_split(preprocessor, "pandas", paths, 100, tmp_path / name, Cluster(), ready)
        found = PackedTable.load(tmp_path / name)
        assert (found.words == expected.words).all()
        assert found.schema == expected.schema


class OnGpu(torch.Tensor):
    """Rows that say that they lie on a GPU, and note what is copied into them."""

    is_cuda = True
    seen: ClassVar[list[str]] = []

    def __setitem__(self, place, rows):
        self.seen.append("copied")
        super().__setitem__(place, rows)


def test_a_gpu_has_copied_a_part_before_the_next_is_asked_for(monkeypatch):
    """Whose memory the engine takes for the next part, on streams that do not wait for torch's."""
    preprocessor = Preprocessor(SCHEMA).fit([table_of(90)])
    parts = [pack(preprocessor, table_of(30, seed)) for seed in range(3)]
    OnGpu.seen.clear()

    def asked(*_):
        for part in parts:
            OnGpu.seen.append("asked")
            yield part

    class Stream:
        def synchronize(self):
            OnGpu.seen.append("waited")

    empty = torch.empty
    monkeypatch.setattr(encode, "_counted_on", asked)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: OnGpu.seen.append("waited"))
    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", lambda *size, **kind: empty(*size, **kind).as_subclass(OnGpu))
        found = packed_split(preprocessor, "pandas", ["a", "b", "c"], 90)
    assert OnGpu.seen == ["asked", "copied", "waited"] * 3
    assert torch.equal(found.words.as_subclass(torch.Tensor), torch.cat([part.words for part in parts]))


def test_cudf_reads_small_files_together_up_to_the_rows_of_a_part(tmp_path, monkeypatch):
    """Files in a list are one frame, as `cudf.read_parquet` takes them; the packed rows do not depend on it."""
    whole, paths, start = table_of(100), [], 0
    for size in (20, 0, 30, 10, 40):
        paths.append(tmp_path / f"part-{start}-{size}.parquet")
        whole.iloc[start : start + size].to_parquet(paths[-1], index=False)
        start += size
    assert read_together("pandas", paths, 50) == paths
    assert read_together("cudf", paths, 1) == paths
    assert read_together("cudf", paths, 1000) == read_together("cudf_plain", paths, 1000) == [paths]
    together = read_together("cudf", paths, 50)
    assert together == [paths[:3], paths[3:]]
    assert read_together("cudf", paths, 30) == [paths[:2], paths[2], paths[3], paths[4]]

    def of_lists(read):
        def reads(path, *columns):
            files = path if isinstance(path, list) else [path]
            return pd.concat([read(file, *columns) for file in files], ignore_index=True)

        return reads

    module = load_engine("pandas")
    for name in ("read_columns", "read_parquet"):
        monkeypatch.setattr(module, name, of_lists(getattr(module, name)))
    monkeypatch.setattr(module, "parquet_columns", lambda path: list(whole.columns))
    preprocessor = Preprocessor(SCHEMA)
    assert fit(preprocessor, "pandas", together, Cluster()) == []
    expected = pack(Preprocessor(SCHEMA).fit([whole]), whole)
    encode_split(preprocessor, "pandas", together, 100, tmp_path / "out", Cluster())
    assert (PackedTable.load(tmp_path / "out").words == expected.words).all()
    assert (packed_split(preprocessor, "pandas", together, 100).words == expected.words).all()


def test_the_tasks_of_a_worker_load_the_preprocessor_once(tmp_path, monkeypatch):
    """P24: threads that started together each loaded it, since a cache holds no one back while it is filled."""
    frame = table_of(40)
    frame.to_parquet(tmp_path / "part.parquet", index=False)
    Preprocessor(SCHEMA).fit([frame]).save(tmp_path / "preprocessor")
    load, calls = Preprocessor.load, []

    def slow(*arguments):
        calls.append(arguments)
        time.sleep(0.2)  # so that all four have asked by then
        return load(*arguments)

    monkeypatch.setattr(Preprocessor, "load", slow)
    names = [tmp_path / f"{number}" for number in range(4)]
    tasks = [PackTask("pandas", tmp_path / "preprocessor", tmp_path / "part.parquet", name) for name in names]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(pack_part, tasks)) == names
    assert len(calls) == 1
    assert len({(name / "words.npy").read_bytes() for name in names}) == 1


@given(
    values=st.lists(st.one_of(st.none(), st.sampled_from("abcdefgh")), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
def test_groups_are_numbered_by_first_appearance_over_all_parts(values, cuts):
    numbers, found, known = GroupNumbers(), [], {}
    column = pd.Series(values, dtype="str")
    for part in np.split(np.arange(len(values)), sorted(min(cut, len(values)) for cut in cuts)):
        found += numbers.number(column.iloc[part].reset_index(drop=True)).tolist()
    assert found == [-1 if value is None else known.setdefault(value, len(known)) for value in values]
