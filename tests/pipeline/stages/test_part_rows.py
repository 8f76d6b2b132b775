"""`rows_per_part: auto`: a million on a CPU, on a GPU what its memory takes; the rows that come out are the same."""

import logging
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigabatch.features.reading.row_bytes import RowBytes, frame_row_bytes, line_bytes, parquet_row_bytes
from gigabatch.features.recipes import RECIPES, recipe_class
from gigabatch.features.recipes.base import Recipe
from gigabatch.pipeline.config.config import ConfigError, parse_config
from gigabatch.pipeline.stages import part_rows, stages
from gigabatch.pipeline.stages.part_rows import rows_of_part, rows_of_part_here
from tests.pipeline.tiny_recipe import write_day

H200 = 141 * 10**9


def config_of(**settings):
    columns = {"continuous": ["price"], "targets": {"clicked": {"task": "binary"}}}
    return parse_config({"name": "parts", "recipe": "table", "features": {"path": "x.csv", **columns}, **settings})


@pytest.mark.parametrize("row_bytes", [4, 250.5, 10_000])
@pytest.mark.parametrize("memory", [16 << 30, 80 << 30, H200])
@pytest.mark.parametrize("cluster", [False, True])
def test_a_part_takes_a_32nd_to_an_8th_of_the_memory(row_bytes, memory, cluster):
    rows = rows_of_part("auto", RowBytes(row_bytes), memory, cluster)
    assert rows <= 2**31 - 1
    if rows < 2**31 - 1:
        assert memory / 32 - row_bytes <= rows * row_bytes <= memory / 8


def test_a_column_of_text_stays_below_two_to_the_31_bytes():
    rows = rows_of_part("auto", RowBytes(250, 100), H200)
    assert 2**31 - 101 <= rows * 100 < 2**31
    assert rows_of_part("auto", RowBytes(1e15), 16 << 30) == 1


def test_a_cpu_and_a_number_know_nothing_of_memory(monkeypatch):
    def asked(*_):
        pytest.fail("asked for a GPU's memory or the length of rows")

    monkeypatch.setattr(part_rows, "total_device_memory", asked)
    assert rows_of_part_here(config_of(), "pandas", "cuda", asked) == 1_000_000
    assert rows_of_part_here(config_of(rows_per_part="auto"), "pandas", "cpu", asked) == 1_000_000
    assert rows_of_part_here(config_of(rows_per_part=70), "cudf", "cuda", asked) == 70
    for wrong in (0, -1, "all"):
        with pytest.raises(ConfigError, match="rows_per_part"):
            config_of(rows_per_part=wrong)


@pytest.mark.parametrize("engine", ["cudf", "cudf_plain"])
@pytest.mark.parametrize(("device", "asked"), [("cuda:1", "cuda:1"), ("cpu", "cuda")])
def test_the_number_follows_from_the_memory_of_the_gpu_that_holds_the_frames(
    monkeypatch, caplog, engine, device, asked
):
    """Also where the model trains on the CPU beside it."""
    monkeypatch.setattr(part_rows, "total_device_memory", {asked: 32 << 30}.__getitem__)
    with caplog.at_level(logging.INFO):
        rows = rows_of_part_here(config_of(), engine, device, lambda: RowBytes(1 << 10))
    assert rows == (32 << 30) // 16 // 1024
    assert "rows_per_part auto: 2,097,152 rows of 1024 bytes, 6.2 % of the GPU's 32.0 GiB" in caplog.text
    cluster = config_of(cluster="cuda")
    assert rows_of_part_here(cluster, engine, device, lambda: RowBytes(1 << 10)) == rows // 2
    assert rows_of_part_here(config_of(), engine, device, lambda: None) == 1_000_000


def test_bytes_of_rows_by_arrow_and_by_pandas(tmp_path):
    """8 bytes a number; a text its letters and 4 bytes of offset, as libcudf and Arrow have it."""
    texts = ["abcdefgh", "ij"] * 500
    table = pa.table(
        {"price": pa.array(range(1000), pa.float64()), "city": pa.array(texts), "word": pa.array(["x"] * 1000)}
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)  # packed by a dictionary, which says nothing of memory
    row = parquet_row_bytes(path)
    assert row.whole == pytest.approx(8 + (5 + 4) + (1 + 4), rel=0.01)
    assert row.text == pytest.approx(5 + 4, rel=0.01)
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    assert frame_row_bytes(frame).whole == pytest.approx(row.whole, rel=0.01)
    assert frame_row_bytes(frame[:0]) == parquet_row_bytes_of_nothing(tmp_path)
    numbers = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "yy"]})
    assert frame_row_bytes(numbers).text > 1
    assert frame_row_bytes(numbers).whole == pytest.approx(frame_row_bytes(numbers).text + 8)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_text_of_every_kind_is_text(tmp_path, kind):
    """Else a column of it passes 2^31 bytes; pandas 3 writes large_string."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"word": pa.array(["abcdefgh" * 8] * 100, kind), "x": range(100)}), path)
    assert parquet_row_bytes(path).text >= 64


def parquet_row_bytes_of_nothing(folder: Path) -> RowBytes:
    path = folder / "empty.parquet"
    pq.write_table(pa.table({"city": pa.array([], pa.string())}), path)
    return parquet_row_bytes(path)


def test_bytes_of_a_line(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("a,b\n" + "12,3456\n" * 1000)
    assert line_bytes(str(path)) == pytest.approx(8, rel=0.01)
    pd.read_csv(path).to_csv(tmp_path / "log.csv.gz", index=False)
    assert line_bytes(str(tmp_path / "log.csv.gz")) == pytest.approx(8, rel=0.01)
    path.write_text("")
    assert line_bytes(str(path)) == 0


def test_every_recipe_that_writes_parts_says_how_long_its_rows_are():
    """Found by listing: without it a GPU would get the parts of a CPU. Those left out have none there."""
    on_pandas = ("table", "flights", "interactions", "movielens")
    kinds = [recipe_class(name) for name in RECIPES if name not in on_pandas]
    writing = [kind for kind in kinds if kind.write_parts is not Recipe.write_parts]
    assert writing
    assert [kind for kind in writing if kind.row_bytes is Recipe.row_bytes] == []


def test_parts_by_memory_change_no_key_and_no_row(tiny_in, tmp_path, monkeypatch):
    """The GPU's rule on pandas frames: the features stage asks the frame that it has made, encode the file."""
    found, asked = [], []

    def by_memory(config, engine, device, row):
        size = row()
        asked.append(size)
        return rows_of_part("auto", size, memory)

    for name in ("by rows", "by memory"):
        tiny = tiny_in(tmp_path / name)
        write_day(tiny.raw, 0)
        features = tiny.pipeline().features()
        memory = 16 * 500 * round(frame_row_bytes(features.frame("train")).whole)  # for some 500 rows
        found.append((features, features.encode().artifact))
        monkeypatch.setattr(stages, "rows_of_part_here", by_memory)
    (one, packed), (other, packed_in_parts) = found
    assert one.artifact.manifest["rows_per_part"] == 1_000_000
    rows = other.artifact.manifest["rows_per_part"]
    assert 250 < rows < 1000
    assert len(one.parts("train")) == 1
    assert len(other.parts("train")) == -(-other.rows["train"] // rows)
    assert pq.read_metadata(other.parts("train")[0]).num_rows == rows
    assert asked[0] is None  # of `write_parts`, which this recipe leaves out
    assert 0.5 < asked[2].whole / asked[1].whole <= 1  # cast to the schema's types since, which are no longer
    assert one.artifact.key == other.artifact.key
    assert packed.key == packed_in_parts.key
    for file in packed.path.rglob("words*.npy"):
        assert file.read_bytes() == (packed_in_parts.path / file.relative_to(packed.path)).read_bytes()
