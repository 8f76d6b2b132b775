"""Loops that are compiled ahead: which, by whom, and what is said."""

import json
import logging
import os
import re
import subprocess
import sys
import threading
import time

import numba
import pandas as pd
import pytest
from numba import types

from gigabatch.loops import SUFFIX
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.python.estimators import GigabatchClassifier
from gigabatch.pipeline.warm import listed as listing
from gigabatch.pipeline.warm import warm as warming
from gigabatch.pipeline.warm.listed import Loop, WarmError, listed, missing, written
from gigabatch.pipeline.warm.record import TABLE, runs, table, write_tables
from tests.processes import python

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
SHORT = [
    Loop(0.3, "any", "features.exact.loops.leading_counts",
         "(uint32[::1], uint8[::1], int64, int64, int64, uint32,)"),
    Loop(0.1, "any", "features.engines.hash_tables.count_codes", "(int32[::1], int64,)"),
    Loop(0.1, "float32", "features.engines.hash_tables.count_codes",
         "(Array(int32, 1, 'C', True, aligned=True), int64,)"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where loops are kept within the test."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    return tmp_path / "kept" / "gigabatch"


@pytest.fixture(autouse=True)
def _nothing_compiled_first():
    warming.compile_first.cache_clear()
    yield
    warming.compile_first.cache_clear()


@pytest.fixture
def short_list(tmp_path, monkeypatch):
    path = tmp_path / "loops.txt"
    path.write_text("".join(f"{loop}\n" for loop in SHORT))
    monkeypatch.setattr(warming, "listed", lambda kinds: listed(kinds, path))
    return path


@pytest.mark.parametrize(
    "kind",
    [
        types.Array(types.float32, 1, "C"),
        types.Array(types.uint16, 2, "A"),
        types.Array(types.int32, 2, "C", readonly=True),
        types.Array(types.boolean, 1, "C"),
        types.Array(types.int64, 1, "C", aligned=False),
        types.uint32,
        types.boolean,
        types.float64,
        types.Tuple((types.int64, types.Array(types.uint32, 1, "C"))),
        types.UniTuple(types.int64, 1),
    ],
    ids=str,
)
def test_a_type_is_read_as_it_was_written(kind):
    assert Loop(0.0, "any", "x", f"({written(kind)},)").types == (kind,)


def test_every_listed_loop_is_one_of_the_package_with_types_that_numba_knows():
    loops = listed()
    assert len(loops) > 40
    assert len({(loop.name, loop.arguments) for loop in loops}) == len(loops)
    for loop in loops:
        parameters = loop.dispatcher.py_func.__code__.co_argcount
        assert len(loop.types) == parameters, loop
    assert {loop.kind for loop in loops} == {"any", "bfloat16", "float32"}


@pytest.mark.parametrize(
    ("run", "model", "some"),
    [
        ("flights", {"layers": [1024, 512]}, {"models.kernels.lamb.cpu._step_by_blocks"}),  # as wide as flights make it
        ("lists", {}, {"models.kernels.pooled_lookup.cpu._sum", "features.exact.group_loops.digit_sums"}),
        ("by_default", {}, {"models.kernels.lamb.cpu._step"}),
    ],
)
def test_a_training_calls_listed_loops_alone(tmp_path, run, model, some):
    """Where a loop or its types change, the list is made anew (docs/kernels.md)."""
    write_tables(tmp_path, 3_000)
    asked = runs()[run]
    features = asked["features"] if asked["recipe"] == "table" else TABLE
    config = {"name": run, "device": "cpu", "evaluate": {"importance": False, "baselines": []}}
    config |= table(features, asked["model"] | model, **asked["train"] | {"batch_size": 512})
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    out = tmp_path / "called.jsonl"
    code = "import runpy; runpy.run_module('gigabatch.pipeline.warm.record', run_name='__main__', alter_sys=True)"
    python(code, "--followed", str(out), "train", "--config", "run.yaml", cwd=tmp_path).check_returncode()
    called = {tuple(json.loads(line)[:2]) for line in out.read_text().splitlines()}
    assert some < {name for name, _ in called}
    assert called <= {(loop.name, loop.arguments) for loop in listed()}


def test_what_is_compiled_in_processes_is_there_for_others_and_the_bar_says_how_many(folder, short_list, capfd, caplog):
    caplog.set_level(logging.INFO)
    assert [loop.name for loop in missing(SHORT)] == [loop.name for loop in SHORT]
    assert warming.warm_up(every=True, worth=0.0) == warming.Warmed(3, 3)
    assert missing(SHORT) == []
    assert re.search(r"compiling 3 loops for this processor, once: about [\d.]+ s on \d core", caplog.text)
    assert re.search(r"compile: done, 3 in [\d.]+ s, [\d.]+/s, features\.", capfd.readouterr().err)
    before = {path: path.stat().st_mtime_ns for path in folder.glob(f"*{SUFFIX}")}
    assert len(before) == 3
    assert warming.warm_up(every=True, worth=0.0) == warming.Warmed(3, 0)
    assert {path: path.stat().st_mtime_ns for path in folder.glob(f"*{SUFFIX}")} == before


def test_few_seconds_are_not_worth_processes_and_precisions_of_others_are_left(folder, short_list):
    assert warming.warm_up() == warming.Warmed(3 if own_precision() == "float32" else 2, 0)
    assert not folder.exists()


def own_precision() -> str:
    from gigabatch.models.optimizers.precision import choose_precision

    return choose_precision("auto", "cpu").name


def test_a_damaged_file_is_missing(folder, short_list):
    warming.warm_up(every=True, worth=0.0)
    (path,) = folder.glob("*leading_counts*")
    path.write_bytes(path.read_bytes()[:-1])
    assert missing(SHORT) == SHORT[:1]
    assert warming.warm_up(every=True, worth=0.0) == warming.Warmed(3, 1)
    assert missing(SHORT) == []


def test_a_process_that_fails_is_an_error_and_a_run_begins_all_the_same(folder, monkeypatch, caplog):
    wrong = Loop(60.0, "any", "features.engines.hash_tables.count_codes", "(float64,)")
    monkeypatch.setattr(warming, "listed", lambda kinds: [wrong])
    monkeypatch.setattr(warming, "missing", lambda loops: list(loops))
    with pytest.raises(WarmError, match="compiling loops failed: "):
        warming.warm_up()
    with caplog.at_level(logging.WARNING):
        warming.compile_first("cpu")
    assert "Loops are compiled as they are called." in caplog.text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1.0 any features.exact.loops.leading_counts", "line 1: .* is no loop"),
        ("x any features.exact.loops.leading_counts (int64,)", "line 1: .* is no loop"),
        ("1.0 half features.exact.loops.leading_counts (int64,)", "line 1: .* is no loop"),
        ("1.0 any features.exact.loops.no_such (int64,)", "there is no loop features.exact.loops.no_such"),
        ("1.0 any features.exact.no_such.loop (int64,)", "there is no loop"),
        ("1.0 any features.exact.loops.leading_moments32 (int64,)", "is no loop that is kept"),
        ("1.0 any features.exact.loops.leading_counts (int7,)", "leading_counts .int7,.*int7"),
    ],
)
def test_a_line_that_is_no_loop_is_refused_with_what_to_do(tmp_path, line, message):
    path = tmp_path / "loops.txt"
    path.write_text(line + "\n")
    with pytest.raises(WarmError, match=message) as told:
        missing(listed(path=path))
    assert listing.REMAKE in str(told.value)


def test_loops_go_to_the_process_with_least_to_do():
    loops = [Loop(seconds, "any", name, "") for seconds, name in ((2, "c"), (5, "a"), (2, "d"), (4, "b"))]
    shares = warming.shared_out(loops, 2)
    assert [[loop.name for loop in share] for share in shares] == [["a", "d"], ["b", "c"]]


@pytest.mark.parametrize("way", ["pipeline", "estimator"])
def test_every_entrance_compiles_first_once_and_says_so(way, tiny, folder, short_list, monkeypatch, caplog):
    """Python, nights and experiments compiled loop by loop, in silence; the commands train and features alone did it
    ahead."""
    whole = warming.warm_up
    monkeypatch.setattr(warming, "warm_up", lambda: whole(worth=0.0))
    caplog.set_level(logging.INFO)
    for _ in range(2):
        if way == "pipeline":
            tiny.pipeline().features()
        else:
            rows = pd.DataFrame({"x": range(40), "y": [0, 1] * 20})
            GigabatchClassifier(device="cpu", train={"epochs": 1}).fit(rows[["x"]], rows["y"])
    number = 3 if own_precision() == "float32" else 2
    assert caplog.text.count(f"compiling {number} loops for this processor, once: about ") == 1
    assert len(list(folder.glob(f"*{SUFFIX}"))) >= number


def test_a_run_on_a_gpu_compiles_nothing_ahead(monkeypatch):
    monkeypatch.setattr(warming, "warm_up", lambda: pytest.fail("compiled"))
    warming.compile_first("cuda")
    warming.compile_first("cuda:1")


def test_where_nothing_can_be_kept_nothing_is_compiled_and_the_error_says_where(short_list, tmp_path, monkeypatch):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "a file"))  # root may write into any folder
    monkeypatch.setattr(warming, "compile_loops", lambda loops: pytest.fail("compiled"))
    with pytest.raises(WarmError, match=r"cannot be kept: none of .*a file/gigabatch can be written. Set NUMBA_C"):
        warming.warm_up(every=True, worth=0.0)


def test_what_was_compiled_and_is_not_there_is_an_error(folder, short_list, monkeypatch):
    monkeypatch.setattr(warming, "compile_loops", lambda loops: None)  # as on a disk without room
    with pytest.raises(
        WarmError, match=r"3 of 3 compiled loops could not be kept in .*gigabatch\. Set NUMBA_CACHE_DIR"
    ):
        warming.warm_up(every=True, worth=0.0)


def test_the_command_names_the_folder_that_took_the_loops(short_list, tmp_path, monkeypatch, capsys):
    (tmp_path / "home").write_text("")
    (tmp_path / "temporary").mkdir()
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert main(["-q", "warm", "--all"]) == 0
    (own,) = (tmp_path / "temporary").glob("gigabatch-*")
    assert len(list(own.glob(f"*{SUFFIX}"))) == 3
    assert capsys.readouterr().out.endswith(f"0 were there: {own}\n")


def test_without_compilation_the_command_says_so(short_list, monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    with pytest.raises(WarmError, match="NUMBA_DISABLE_JIT is set"):
        warming.warm_up()


def test_one_that_waits_for_another_says_so(folder, short_list, caplog):
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(1, flush=True); input()"
    folder.mkdir(parents=True)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    asked = [sys.executable, "-c", code, str(folder / ".lock")]
    with subprocess.Popen(asked, text=True, **pipes) as other, caplog.at_level(logging.INFO):
        assert other.stdout.readline() == "1\n"
        waiting = threading.Thread(target=warming.warm_up, kwargs={"every": True, "worth": 0.0})
        waiting.start()
        try:
            until = time.monotonic() + 60
            while "another process compiles the loops" not in caplog.text and time.monotonic() < until:
                time.sleep(0.05)
            assert missing(SHORT) == SHORT
        finally:
            other.communicate("\n")
            waiting.join()
    assert "another process compiles the loops; waiting for it" in caplog.text
    assert missing(SHORT) == []


def test_what_is_there_is_found_without_torch_and_without_the_rooms_of_the_loops(folder, short_list):
    assert warming.warm_up(every=True, worth=0.0) == warming.Warmed(3, 3)
    program = f"""
import sys
from pathlib import Path
from gigabatch.pipeline.warm import listed, warm
warm.listed = lambda kinds: listed.listed(kinds, Path({str(short_list)!r}))
print(warm.warm_up(every=True, worth=0.0), [name for name in sys.modules if name == "torch" or "hash_tables" in name])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "Warmed(listed=3, compiled=0) []\n"


@pytest.mark.parametrize("changed", ["a loop", "the list", "the sources", "the record"])
def test_what_is_said_to_be_there_is_looked_at_anew_where_anything_is_another(folder, short_list, monkeypatch, changed):
    assert warming.warm_up(every=True, worth=0.0) == warming.Warmed(3, 3)
    looked = []
    monkeypatch.setattr(warming, "missing", lambda loops: looked.extend(loops) or missing(loops))
    assert warming.warm_up(every=True, worth=0.0) == warming.Warmed(3, 0)
    assert not looked
    if changed == "a loop":
        min(folder.glob(f"*{SUFFIX}")).write_bytes(b"damaged")
    elif changed == "the list":
        short_list.write_text("".join(f"{loop}\n" for loop in SHORT[:2]))
    elif changed == "the sources":
        monkeypatch.setattr("gigabatch.pipeline.warm.listed.sources", lambda room: "others")
    else:
        (record,) = folder.glob("*.json")
        record.write_bytes(b"damaged")
    warming.warm_up(every=True, worth=1e9)
    assert looked


def test_the_command_says_how_many_and_where(folder, short_list, capsys):
    assert main(["warm", "--all"]) == 0
    assert capsys.readouterr().out == f"3 of 3 loops compiled, 0 were there: {folder}\n"
    assert main(["-q", "warm", "--all"]) == 0
    assert capsys.readouterr().out == f"0 of 3 loops compiled, 3 were there: {folder}\n"
    assert os.listdir(folder)
