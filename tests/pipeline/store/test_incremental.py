"""The features stage parses new and changed files only, and its result is that of a full run."""

import io
import json
import os
import subprocess
import sys
import time
import zipfile
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.engines import pandas as engine
from gigabatch.features.errors import DataError
from gigabatch.features.reading.sources import read_files
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.store import parsed_files as incremental
from gigabatch.pipeline.store.artifacts import ArtifactStore
from gigabatch.pipeline.store.files import ArtifactError
from gigabatch.pipeline.store.garbage import collect_artifacts
from gigabatch.pipeline.store.parsed_files import ParsedFiles, parsed_in_use
from tests.pipeline.tiny_recipe import day_of_rows, write_day

TYPES = {
    "word": "string", "whole": "int64", "small": "int32", "gap": "int64", "x": "float64", "y": "float32",
    "flag": "bool", "maybe": "bool",
}  # fmt: skip
NULLABLE = ("gap", "maybe")
CSV = """word,whole,small,gap,x,y,flag,maybe
007,9007199254740993,1,,0.1,-0.0,true,
NA,2,3,4,,1e-45,false,true
Ä,-1,0,,nan,7,1,0
"""


def tree(artifact) -> dict[str, bytes]:
    """Every file of a features artifact but for its manifest."""
    files = sorted(path for path in artifact.path.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(artifact.path)): path.read_bytes() for path in files}


def states(features) -> dict[str, str]:
    return {entry["file"]: entry["state"] for entry in features.artifact.manifest["inputs"]}


@pytest.fixture
def parsed(monkeypatch) -> list[str]:
    """Names of the CSV files that pandas was asked to parse."""
    seen: list[str] = []
    real = engine.read_csv

    def read_csv(path, *arguments, **options):
        seen.append(Path(path).name)
        return real(path, *arguments, **options)

    monkeypatch.setattr(engine, "read_csv", read_csv)
    return seen


def test_only_new_and_changed_files_are_parsed_and_the_result_equals_a_full_run(tiny, tiny_in, parsed):
    for day in (1, 2):
        write_day(tiny.raw, day)
    first = tiny.pipeline().features()
    assert parsed == ["day-000.csv", "day-001.csv", "day-002.csv"]
    assert first.files == {"read": 3, "reused": 0}
    del parsed[:]
    write_day(tiny.raw, 3)
    day_of_rows(1).iloc[:2000].to_csv(tiny.raw / "day-001.csv", index=False)
    second = tiny.pipeline().features()
    assert parsed == ["day-001.csv", "day-003.csv"]
    assert states(second) == {
        "day-000.csv": "reused", "day-001.csv": "read", "day-002.csv": "reused", "day-003.csv": "read",
    }  # fmt: skip
    assert second.files == {"read": 2, "reused": 2}
    (tiny.raw / "day-000.csv").unlink()
    third = tiny.pipeline().features()
    assert third.files == {"read": 0, "reused": 3}

    full = tiny_in(tiny.folder.parent / "full")
    for path in tiny.raw.iterdir():
        full.raw.mkdir(exist_ok=True)
        (full.raw / path.name).write_bytes(path.read_bytes())
    whole = full.pipeline().features()
    assert whole.files == {"read": 3, "reused": 0}
    assert whole.artifact.key == third.artifact.key
    assert tree(whole.artifact) == tree(third.artifact)
    assert len(tree(third.artifact)) == 4


def test_a_table_of_csv_files_is_read_incrementally_too(tmp_path, parsed):
    raw = tmp_path / "raw"
    for day in (0, 1):
        write_day(raw, day, 400)
    settings = {
        "name": "clicks", "recipe": "table", "device": "cpu", "artifacts": str(tmp_path / "artifacts"),
        "features": {
            "path": f"{raw}/day-*.csv", "categorical": ["city", "product"], "continuous": ["signal", "gap"],
            "targets": {"clicked": {"task": "binary"}},
        },
    }  # fmt: skip
    (tmp_path / "table.yaml").write_text(json.dumps(settings))
    assert main(["features", "--config", str(tmp_path / "table.yaml")]) == 0
    del parsed[:]
    write_day(raw, 2, 400)
    assert main(["features", "--config", str(tmp_path / "table.yaml")]) == 0
    assert parsed == ["day-002.csv"]


def test_the_command_says_how_many_files_it_read(tiny, capsys):
    assert main(["features", "--config", str(tiny.config)]) == 0
    assert "input files: 1 read, 0 reused" in capsys.readouterr().out
    write_day(tiny.raw, 1)
    assert main(["features", "--config", str(tiny.config)]) == 0
    assert "input files: 1 read, 1 reused" in capsys.readouterr().out
    assert main(["features", "--config", str(tiny.config)]) == 0
    assert "input files" not in capsys.readouterr().out


class Kept:
    """A file, a store beside it, and reads through a cache."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "a.csv"
        self.path.write_text(CSV)
        self.store = ArtifactStore(folder / "artifacts")

    def read(self, path=None, dtypes=TYPES, **options):
        cache = ParsedFiles(self.store, "pandas")
        options = {"nullable": NULLABLE} | options
        frame = read_files("pandas", str(path or self.path), dtypes, cache=cache, **options)
        return frame, [entry["state"] for entry in cache.files]


@pytest.fixture
def kept(tmp_path, monkeypatch) -> Kept:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    return Kept(tmp_path)


def test_kept_rows_equal_parsed_ones_in_every_type(kept):
    fresh, first = kept.read()
    again, second = kept.read()
    assert (first, second) == (["read"], ["reused"])
    plain = read_files("pandas", str(kept.path), TYPES, nullable=NULLABLE)
    for frame in (fresh, again):
        pd.testing.assert_frame_equal(frame, plain, check_exact=True)
        assert [str(dtype) for dtype in frame.dtypes] == [str(dtype) for dtype in plain.dtypes]
    assert again["whole"].tolist() == [9007199254740993, 2, -1]
    assert again["word"].isna().tolist() == [False, True, False]
    assert again["word"][0] == "007"
    assert np.signbit(again["y"][0])
    assert again["y"][1] == np.float32(1e-45)
    assert again["gap"].tolist()[1] == 4
    assert again["gap"].isna().tolist() == [True, False, True]


def test_files_of_different_nulls_stand_below_each_other_as_in_a_full_run(kept):
    (kept.path.parent / "b.csv").write_text("word,whole,small,gap,x,y,flag,maybe\n,5,5,5,5,5,true,true\n")
    pattern = f"{kept.path.parent}/*.csv"
    plain = read_files("pandas", pattern, TYPES, nullable=NULLABLE)
    assert kept.read(pattern)[1] == ["read", "read"]
    again, state = kept.read(pattern)
    assert state == ["reused", "reused"]
    pd.testing.assert_frame_equal(again, plain, check_exact=True)


def test_the_content_counts_and_not_the_name_or_the_time(kept):
    kept.read()
    moved = kept.path.rename(kept.path.parent / "renamed.csv")
    os.utime(moved, (1, 1))
    assert kept.read(moved)[1] == ["reused"]


@pytest.mark.parametrize(
    "options",
    [
        {"dtypes": TYPES | {"whole": "string"}},
        {"dtypes": dict(reversed(TYPES.items()))},
        {"dtypes": {"word": "string"}},
        {"null_values": ("", "NA", "nan", "007")},
        {"nullable": (*NULLABLE, "small")},
    ],
)
def test_another_way_to_read_is_another_entry(kept, options):
    kept.read()
    assert kept.read(**options)[1] == ["read"]
    assert kept.read(**options)[1] == ["reused"]
    assert kept.read()[1] == ["reused"]


def test_separator_and_header_count(kept):
    kept.path.write_text("1,2\n3,4\n")
    one = kept.read(dtypes={"a": "string"}, separator=";", names=["a"], nullable=())[0]
    two = kept.read(dtypes={"a": "string"}, names=["a", "b"], nullable=())[0]
    three = kept.read(dtypes={"a": "string"}, names=["b", "a"], nullable=())[0]
    assert [frame["a"].tolist() for frame in (one, two, three)] == [["1,2", "3,4"], ["1", "3"], ["2", "4"]]


def test_other_code_or_another_library_reads_again(kept, monkeypatch):
    kept.read()
    monkeypatch.setattr(incremental, "source_hash", lambda modules: "other")
    assert kept.read()[1] == ["read"]
    monkeypatch.setattr(incremental, "versions", lambda: {"pandas": "99"})
    assert kept.read()[1] == ["read"]
    assert kept.read()[1] == ["reused"]


def test_all_code_that_reads_a_file_is_in_the_key(monkeypatch, tmp_path):
    """A module that reading imports, but for messages, and for statistics and loops over rows that are read already."""
    hashed: list[str] = []
    monkeypatch.setattr(incremental, "source_hash", lambda modules: hashed.extend(modules) or "")
    ParsedFiles(ArtifactStore(tmp_path), "pandas")
    told = subprocess.run(
        [sys.executable, "-c", "import sys\nfrom gigabatch.features.reading.sources import load_engine\n"
         "load_engine('pandas')\nprint(*(name for name in sys.modules if name.startswith('gigabatch.features.')))"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert "gigabatch.features.reading.plain_csv" in told
    later = ("column_statistics", "quantiles", "sums", "tally", "loops")
    other = {"gigabatch.features.errors", *(f"gigabatch.features.exact.{name}" for name in later)}
    files = [name for name in told if not (import_module(name).__file__ or "").endswith("__init__.py")]
    assert not [
        name for name in files if name not in other and not any(f"{name}.".startswith(f"{part}.") for part in hashed)
    ]


def test_a_compressed_file_is_kept_under_its_own_key(kept):
    packed = kept.path.parent / "a.csv.zip"
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("a.csv", CSV)
    assert kept.read(packed)[1] == ["read"]
    assert kept.read(packed)[1] == ["reused"]
    lying = kept.path.parent / "lying.csv"
    lying.write_bytes(packed.read_bytes())
    with pytest.raises(DataError):
        kept.read(lying)


def test_parquet_files_are_read_as_they_are(kept):
    path = kept.path.parent / "a.parquet"
    kept.read()[0].to_parquet(path)
    assert kept.read(path)[1] == kept.read(path)[1] == ["read"]
    assert len(list((kept.store.root / "parsed").iterdir())) == 1


def test_a_file_that_cannot_be_read_leaves_nothing_and_is_refused_again(kept):
    kept.path.write_text(CSV.replace("9007199254740993", "many"))
    for _ in range(2):
        with pytest.raises(DataError, match=r"a\.csv.*column 'whole'"):
            kept.read()
    assert not (kept.store.root / "parsed").exists()


def test_damaged_rows_are_read_again(kept, caplog):
    fresh, _ = kept.read()
    (rows,) = (kept.store.root / "parsed").glob("*/rows.parquet")
    rows.write_bytes(rows.read_bytes()[:-10] + b"0123456789")
    again, state = kept.read()
    assert state == ["read"]
    pd.testing.assert_frame_equal(again, fresh)
    assert "put aside" in caplog.text
    assert kept.read()[1] == ["reused"]


def test_a_file_that_changes_while_it_is_read_is_refused(kept):
    cache = ParsedFiles(kept.store, "pandas")

    def parse(path):
        kept.path.write_text(CSV + "more\n")
        return pd.read_csv(io.StringIO(CSV))

    with pytest.raises(ArtifactError, match=r"a\.csv changed while it was read"):
        cache.read(str(kept.path), {}, parse)
    assert not (kept.store.root / "parsed").exists()


def test_garbage_collection_keeps_the_rows_of_kept_artifacts_only(tiny):
    for day in range(1, 4):
        write_day(tiny.raw, day)
    tiny.pipeline().features()
    time.sleep(0.01)
    (tiny.raw / "day-000.csv").unlink()
    write_day(tiny.raw, 4)
    newest = tiny.pipeline().features()
    assert len(tiny.artifacts("parsed")) == 5
    used = {entry["parsed"] for entry in newest.artifact.manifest["inputs"]}
    root, kept = tiny.folder / "artifacts", newest.artifact.path
    assert {path.name for path in parsed_in_use(root, [kept])} == used
    assert len(parsed_in_use(root, tiny.artifacts("features"))) == 5
    del newest
    assert main(["gc", "--config", str(tiny.config), "--keep", "1"]) == 0
    assert {path.name for path in tiny.artifacts("parsed")} == used
    assert kept.exists()
    assert main(["gc", "--config", str(tiny.config), "--keep", "0"]) == 0
    assert tiny.artifacts("parsed") == []
    assert tiny.pipeline().features().files == {"read": 4, "reused": 0}


def test_garbage_collection_stands_damaged_manifests_and_no_artifacts(tmp_path):
    assert collect_artifacts(tmp_path / "nowhere", 3) == ([], 0)
    for name, text in {"half": "{", "list": "[]", "older": "{}", "odd": '{"inputs": [{"parsed": 3}, 4]}'}.items():
        (tmp_path / "features" / name).mkdir(parents=True)
        (tmp_path / "features" / name / "manifest.json").write_text(text)
    assert parsed_in_use(tmp_path, (tmp_path / "features").iterdir()) == []
    assert len(collect_artifacts(tmp_path, 0)[0]) == 4
