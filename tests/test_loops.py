"""Compiled loops are kept by function, signature, processor and sources, and what is on disk can do no harm."""

import importlib
import logging
import pkgutil
import subprocess
import sys
from types import ModuleType

import numba
import pytest
from numba.core.registry import CPUDispatcher

import gigabatch.features
import gigabatch.loaders
import gigabatch.models
from gigabatch import loops

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
CODE = """
from gigabatch.loops import njit

@njit()
def half(number):
    return number / 2

@njit()
def quarter(number):
    return half(half(number))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where loops are kept within the test."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    return tmp_path / "kept" / "gigabatch"


@pytest.fixture
def fresh(tmp_path, monkeypatch, folder):
    """The module of loops as a new process would import it, and how many of its functions came from the disk."""
    path = tmp_path / "some_loops.py"
    path.write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(code: str = CODE) -> ModuleType:
        path.write_text(code)
        sys.modules.pop("some_loops", None)
        importlib.invalidate_caches()
        return importlib.import_module("some_loops")

    return load


def hits(loop: CPUDispatcher) -> int:
    return sum(loop.stats.cache_hits.values())


def test_a_second_process_loads_what_the_first_compiled(fresh, folder):
    first = fresh()
    assert (first.quarter(6), hits(first.quarter)) == (1.5, 0)
    assert len(list(folder.iterdir())) == 3  # with the one that it calls, of an integer and of a float
    second = fresh()
    assert (second.quarter(6), hits(second.quarter), hits(second.half)) == (1.5, 1, 0)
    assert second.quarter(6.0) == 1.5
    assert hits(second.quarter) == 1  # of floats nothing was there


def test_other_sources_are_compiled_anew(fresh):
    assert fresh().quarter(6) == 1.5
    other = fresh(CODE.replace("number / 2", "number / 3"))
    assert (other.quarter(9), hits(other.quarter)) == (
        1.0,
        0,
    )


def test_loops_of_one_text_that_enclose_other_values_are_told_apart(fresh, folder):
    code = """
from gigabatch.loops import njit

def times(factor):
    @njit()
    def multiplied(number):
        return number * factor
    return multiplied

def power(exponent):
    @njit()
    def raised(number):
        return 1 if number == 0 else exponent * raised(number - 1)
    return raised

@njit()
def one(number):
    return number + 1

def then(function):
    @njit()
    def applied(number):
        return function(number)
    return applied
"""
    first = fresh(code)
    assert (first.times(2)(10), first.times(5)(10), first.times(5.0)(10)) == (20, 50, 50.0)
    assert len(list(folder.iterdir())) == 3
    again = fresh(code)
    five, ten = again.times(5), again.times(10)
    assert (five(10), ten(10), hits(five), hits(ten)) == (50, 100, 1, 0)
    assert (again.power(2)(3), again.power(3)(3)) == (8, 27)
    assert (again.then(again.one)(10), again.then(again.times(3))(10)) == (11, 30)


def test_a_loop_without_a_source_file_runs_and_is_not_kept(folder):
    code = "from gigabatch.loops import njit\n@njit()\ndef half(number):\n    return number / 2\n\nprint(half(3))\n"
    done = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, check=True)
    assert done.stdout == "1.5\n"
    assert not folder.exists()


def test_what_another_processor_compiled_is_not_loaded(fresh, monkeypatch, folder):
    from numba.core.codegen import CPUCodegen

    assert fresh().quarter(6) == 1.5
    kept = {path.name for path in folder.iterdir()}
    own = CPUCodegen.magic_tuple

    def of_another(codegen):
        triple, name, features = own(codegen)
        return triple, name, features + ",+a_new_instruction"

    monkeypatch.setattr(CPUCodegen, "magic_tuple", of_another)
    other = fresh()
    assert (other.quarter(6), hits(other.quarter)) == (1.5, 0)
    assert len({path.name for path in folder.iterdir()} - kept) == 3


@pytest.mark.parametrize("damage", [b"", b"nothing", None], ids=["empty", "short", "a flipped bit"])
def test_a_damaged_file_is_compiled_again_and_mended(fresh, folder, caplog, damage):
    assert fresh().half(3) == 1.5
    (path,) = folder.iterdir()
    good = path.read_bytes()
    path.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:] if damage is None else damage)
    with caplog.at_level(logging.WARNING):
        again = fresh()
        assert (again.half(3), hits(again.half)) == (1.5, 0)
    assert f"the compiled loop {path} is damaged and is compiled again" in caplog.text
    third = fresh()
    assert (third.half(3), hits(third.half)) == (1.5, 1)


def test_where_nothing_can_be_written_loops_run_and_the_log_says_so(fresh, tmp_path, monkeypatch, caplog):
    loops.tell_not_kept.cache_clear()
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "a file"))  # root may write into any folder
    with caplog.at_level(logging.WARNING):
        assert fresh().quarter(6) == 1.5
    loops.tell_not_kept.cache_clear()
    told = [record.getMessage() for record in caplog.records if record.name == loops.__name__]
    assert len(told) == 1
    assert str(tmp_path / "a file" / "gigabatch") in told[0]
    assert "NUMBA_CACHE_DIR" in told[0]


def test_a_home_that_cannot_be_written_is_replaced_by_a_folder_of_the_users_own(fresh, tmp_path, monkeypatch):
    (tmp_path / "home").write_text("")
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(loops.tempfile, "gettempdir", lambda: str(tmp_path))
    assert fresh().half(3) == 1.5
    own = loops.folders()[1]
    assert own.parent == tmp_path
    assert own.stat().st_mode & 0o777 == 0o700
    second = fresh()
    assert (second.half(3), hits(second.half)) == (1.5, 1)
    own.chmod(0o777)  # others may have put files there
    third = fresh()
    assert (third.half(3), hits(third.half)) == (1.5, 0)


def test_two_processes_that_compile_at_once_leave_what_a_third_one_loads(tmp_path, fresh, folder):
    code = "import some_loops; print(some_loops.quarter({}))"
    numbers = (6, 6, 6.0, 6.0)
    started = [
        subprocess.Popen([sys.executable, "-c", code.format(number)], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for number in numbers
    ]
    assert [process.communicate()[0] for process in started] == ["1.5\n"] * 4
    third = fresh()
    assert (third.quarter(6), third.quarter(6.0), hits(third.quarter)) == (1.5, 1.5, 2)
    assert all(path.suffix == loops.SUFFIX for path in folder.iterdir())  # nothing half-written is left


def test_seconds_count_a_compilation_once_with_what_it_needs(fresh):
    from numba.core import event

    told = []

    class Told(loops.Compilations):
        def begun(self, seconds):
            told.append(("begun", seconds))

        def ended(self, seconds):
            told.append(("ended", seconds))

    listener = Told()
    event.register("numba:compile", listener)
    try:
        assert fresh().quarter(6) == 1.5
    finally:
        event.unregister("numba:compile", listener)
    assert [word for word, _ in told] == ["begun", "begun", "begun", "ended"]  # of an integer, then of a float
    assert told[0] == ("begun", 0.0)
    assert (listener.count, listener.seconds) == (1, told[-1][1])
    assert 0 < told[1][1] < told[2][1] < listener.seconds


def modules_with_loops() -> list[ModuleType]:
    packages = (gigabatch.features, gigabatch.loaders, gigabatch.models)
    items = [item for package in packages for item in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    names = [item.name for item in items if item.name.rpartition(".")[2].endswith(("loops", "cpu", "tables", "xxh64"))]
    return [importlib.import_module(name) for name in names]


def test_loops_of_the_package_include_none_of_another_room():
    found = 0
    for module in modules_with_loops():
        for loop in (item for item in vars(module).values() if isinstance(item, CPUDispatcher)):
            home = loop.py_func.__module__
            assert home.split(".")[:3] == module.__name__.split(".")[:3], f"{module.__name__} includes {home}"
            if home == module.__name__ and isinstance(loop._cache, loops.Kept):
                assert loop._cache.own[0] == loops.sources(loops.ROOT.joinpath(*home.split(".")[1:3]))
                found += 1
    assert found > 60
