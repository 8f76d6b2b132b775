"""What a process says of its first compilation."""

import importlib.util
import logging
import os
import time

import pytest
import torch
from numba.core import event

from gigabatch.pipeline import display, machine
from gigabatch.pipeline.bundle import BundleError, load_bundle
from gigabatch.pipeline.stages.stages import Pipeline

LINE = "compiling loops for this processor as they are called, once (gigabatch warm does it ahead)"
LOOPS = """
import numba

@numba.njit(cache=True)
def inner(x):
    return x + 1

@numba.njit(cache=True)
def outer(x):
    return inner(x) * 2
"""


@pytest.fixture
def listeners():
    """Those that this test adds, of a process in which nobody else listens."""
    before = list(event._registered["numba:compile"])
    event._registered["numba:compile"].clear()  # a listener of an earlier test would tell, too
    machine.tell_of_compilation.cache_clear()
    yield lambda: list(event._registered["numba:compile"])
    event._registered["numba:compile"][:] = before
    machine.tell_of_compilation.cache_clear()


@pytest.fixture
def told(listeners, caplog):
    """How often the log has said it."""
    machine.tell_of_compilation()
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records].count(LINE)


def loops(folder):
    """A module of compiled loops, as a new process would import it."""
    path = folder / "some_loops.py"
    if not path.exists():
        path.write_text(LOOPS)
    spec = importlib.util.spec_from_file_location("some_loops", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_cold_start_is_told_once(tmp_path, monkeypatch, told):
    monkeypatch.setattr(machine, "COMPILING_S", 0.0)
    found = loops(tmp_path)
    assert (found.outer(3), found.outer(3.5), found.inner(2)) == (8, 9.0, 3)
    assert told() == 1


def test_a_warm_start_and_a_short_compilation_say_nothing(tmp_path, monkeypatch, told):
    monkeypatch.setattr(machine, "COMPILING_S", 1e9)
    assert loops(tmp_path).outer(3) == 8
    monkeypatch.setattr(machine, "COMPILING_S", 0.0)
    warm = loops(tmp_path)
    assert warm.outer(3) == 8
    assert sum(warm.outer.stats.cache_hits.values()) == 1
    assert told() == 0


def test_the_time_of_one_compilation_within_another_counts_once(monkeypatch, told, listeners):
    clock = iter([0.0, 1.0, 2.0, 2.5, 2.6])  # starts at 0 and within it at 1; ends at 2; starts at 2.5, ends
    monkeypatch.setattr(machine, "COMPILING_S", 2.4)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    (listener,), before = listeners(), display._aside
    for kind in ("start", "start", "end", "end", "start", "end"):
        getattr(listener, f"on_{kind}")(None)
    assert listener.seconds == pytest.approx(2.1)
    assert display._aside - before == pytest.approx(2.1)  # what no rate counts
    assert told() == 0


@pytest.mark.parametrize("way", ["pipeline", "bundle"])
def test_whatever_may_compile_listens_once(tmp_path, tiny, listeners, way):
    for _ in range(2):
        if way == "pipeline":
            Pipeline.from_config(tiny.config)
        else:
            with pytest.raises(BundleError):
                load_bundle(tmp_path / "none")
    assert len(listeners()) == 1


@pytest.mark.parametrize(("load", "threads", "is_told"), [(9.7, 2, True), (9.7, 1, False), (3.4, 2, False)])
def test_several_threads_on_a_busy_machine_are_told(tiny, monkeypatch, caplog, load, threads, is_told):
    """Q8: two threads were four times slower than one there, and nothing said so."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    before = torch.get_num_threads()
    try:
        tiny.train(f"num_threads={threads}")
    finally:
        torch.set_num_threads(before)
    assert ("the machine is busy: a load of 9.7 on 2 cores. 2 threads" in caplog.text) == is_told


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("0.10 0.20 0.30 4/456 7\n", False),
        ("0.10 0.20 0.30 5/456 7\n", True),
        ("9.00 9.00 9.00 1/456 7\n", False),  # of a minute that is over
        ("", False),
        ("0.10 0.20 0.30 x/456 7\n", False),
    ],
)
def test_cores_are_taken_where_as_many_other_threads_run_now(tmp_path, monkeypatch, text, taken):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    (tmp_path / "loadavg").write_text(text)
    assert machine.are_cores_taken(tmp_path / "loadavg") == taken
    assert not machine.are_cores_taken(tmp_path / "none")
