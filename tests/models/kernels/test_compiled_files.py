"""What numba keeps on disk is dropped when a file that it includes changes (M12)."""

import importlib
import pkgutil
import sys
from types import ModuleType

import numba
import pytest
from numba.core.registry import CPUDispatcher

import gigabatch.features
import gigabatch.loaders
import gigabatch.models
from gigabatch.models.kernels import row_loops

CODE = """
from gigabatch.models.kernels.row_loops import njit

@njit()
def twice(number):
    return number + number
"""


def fresh(folder, name: str) -> CPUDispatcher:
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module(name).twice


def test_other_sources_are_compiled_anew(tmp_path, monkeypatch):
    (tmp_path / "compiled_twice.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    hits = []
    for sources in ("a", "a", "b", "b"):
        monkeypatch.setattr(row_loops, "SOURCES", sources)
        twice = fresh(tmp_path, "compiled_twice")
        assert twice(2) == 4
        hits.append(sum(twice.stats.cache_hits.values()))
    assert hits == [0, 1, 0, 1]


def modules_with_loops() -> list[ModuleType]:
    packages = (gigabatch.features, gigabatch.loaders, gigabatch.models)
    items = [item for package in packages for item in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    names = [item.name for item in items if item.name.rpartition(".")[2].endswith(("loops", "cpu", "tables"))]
    return [importlib.import_module(name) for name in names]


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_compiled_functions_include_none_of_another_file_unless_its_sources_count():
    stamped = plain = 0
    for module in modules_with_loops():
        loops = [item for item in vars(module).values() if isinstance(item, CPUDispatcher)]
        own = [loop for loop in loops if loop.py_func.__module__ == module.__name__]
        if module.__name__.startswith("gigabatch.models.kernels."):
            assert all(row_loops.SOURCES in loop._cache._cache_file._source_stamp for loop in own), module
            stamped += len(own)
        else:
            assert own == loops, f"{module.__name__} includes a compiled function of another file"
            plain += len(own)
    assert stamped > 15
    assert plain > 15
