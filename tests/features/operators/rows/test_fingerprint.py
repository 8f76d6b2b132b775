"""What a function computes, as a hash: every change counts, nothing else does."""

import collections
import functools
import importlib
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from gigabatch.features.errors import DataError
from gigabatch.features.operators.rows.fingerprint import function_hash

BASE = """
import numpy as np
import helpers
RATE, NAMES = 2, {"b", "a", "c"}
def inner(x):
    return x * RATE
class Table:
    __slots__ = ("values",)
    def __init__(self, values):
        self.values = values
    def look(self, x):
        return self.values + x
TABLE = Table([1, 2])
def outer(k):
    def function(frame, factor=3):
        return np.log(inner(frame)) + factor + k + helpers.add(frame) + TABLE.look(4) + len(NAMES)
    return function
chosen = outer(5)
"""
HELPERS = "def add(x):\n    return x + 1\n"


def hash_of(source, helpers=HELPERS, monkeypatch=None, tmp_path=None):
    (tmp_path / "helpers.py").write_text(helpers)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "helpers", raising=False)
    importlib.invalidate_caches()
    space = {"__name__": "notebook"}
    exec(source, space)
    return function_hash(space["chosen"], "here")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("factor=3", "factor=4"), ("outer(5)", "outer(6)"), ("RATE, NAMES = 2", "RATE, NAMES = 2.5"), ('"c"', '"d"'),
        ("x * RATE", "x + RATE"), ("np.log(", "np.exp("), ("[1, 2]", "[1, 3]"), ("self.values + x", "self.values - x"),
    ],
)  # fmt: skip
def test_each_change_of_what_is_used_is_another_hash(monkeypatch, tmp_path, old, new):
    given = {"monkeypatch": monkeypatch, "tmp_path": tmp_path}
    assert old in BASE
    assert hash_of(BASE.replace(old, new), **given) != hash_of(BASE, **given)


def test_a_helper_in_another_file_counts_and_comments_do_not(monkeypatch, tmp_path):
    given = {"monkeypatch": monkeypatch, "tmp_path": tmp_path}
    before = hash_of(BASE, **given)
    assert hash_of(BASE, HELPERS.replace("+ 1", "+ 20"), **given) != before
    assert hash_of(BASE.replace("def outer", "# why\n\ndef outer"), **given) == before


def test_another_process_gives_the_same_hash(monkeypatch, tmp_path):
    mine = hash_of(BASE, monkeypatch=monkeypatch, tmp_path=tmp_path)
    code = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        f"space = {{'__name__': 'notebook'}}\nexec({BASE!r}, space)\n"
        "from gigabatch.features.operators.rows.fingerprint import function_hash\n"
        "print(function_hash(space['chosen'], 'here'))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == mine


class Scaler:
    def __init__(self, by):
        self.by = by

    def __call__(self, frame):
        return frame * self.by


def with_array(array):
    return lambda frame: frame + array


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (Scaler(1), Scaler(2)),
        (Scaler(1).__call__, Scaler(2).__call__),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (functools.partial(max, 1), functools.partial(min, 1)),
        (with_array(np.arange(3)), with_array(np.arange(3.0))),
        (with_array(pd.DataFrame({"a": [1]})), with_array(pd.DataFrame({"a": [2]}))),
        (np.log, np.exp),
        (len, repr),
    ],
)
def test_callables_of_every_kind_are_told_apart(left, right):
    assert function_hash(left, "here") == function_hash(left, "here") != function_hash(right, "here")


INDIRECT = {
    "a cached function": "@functools.lru_cache\ndef g(x): return x + 1\ndef f(d): return g(d)",
    "a function in a library's object": "def g(x): return x + 1\nv = np.vectorize(g)\ndef f(d): return v(d)",
    "a function in a deque": "def g(x): return x + 1\nv = collections.deque([g])\ndef f(d): return v[0](d)",
    "a named tuple": "N = collections.namedtuple('N', 'n')\nv = N(+ 1)\ndef f(d): return d * v.n",
    "a default": "v = collections.defaultdict(lambda: + 1)\ndef f(d): return v[d]",
    "a dict of one's own": "class T(dict):\n    def __missing__(self, k): return k + 1\nv = T()\ndef f(d): return v[d]",
    "a single dispatch": "@functools.singledispatch\ndef g(x): return x + 1\ndef f(d): return g(d)",
    "one of its functions": (
        "@functools.singledispatch\ndef g(x): return x\n@g.register\ndef _(x: int): return x + 1\ndef f(d): return g(d)"
    ),
    "a cached property": (
        "class T:\n    @functools.cached_property\n    def a(self): return 2 + 1\nv = T()\ndef f(d): return v.a"
    ),
    "a slot beside a dict": (
        "class S: __slots__ = 's',\nclass T(S): pass\nv = T()\nv.s, v.d = 0, + 1\ndef f(d): return v.d"
    ),
    "a slot written as text": "class T: __slots__ = 'rate'\nv = T()\nv.rate = + 1\ndef f(d): return v.rate",
    "a private slot": (
        "class T:\n    __slots__ = ('__a',)\n    def __init__(self, a): self.__a = a\n"
        "    def a(self): return self.__a\nv = T(+ 1)\ndef f(d): return v.a()"
    ),
    "an attribute of the function": "def f(d): return f.rate\nf.rate = + 1",
}


@pytest.mark.parametrize("source", INDIRECT.values(), ids=INDIRECT)
def test_what_is_used_by_way_of_another_object_counts(source, monkeypatch):
    found = []
    for text in (source, source, source.replace("+ 1", "+ 2")):
        space = {"__name__": "__main__", "functools": functools, "collections": collections, "np": np}
        exec(text, space)
        for name, value in space.items():  # where pickle looks for what it knows by name
            if name in "fgvNTS":
                monkeypatch.setattr(sys.modules["__main__"], name, value, raising=False)
        found.append(function_hash(space["f"], "here"))
    assert found[0] == found[1] != found[2]


def test_a_large_table_takes_no_time_that_grows_with_its_square():
    table = {number: str(number) for number in range(100_000)}
    start = time.process_time()
    function_hash(lambda frame: frame["a"].map(table), "here")
    assert time.process_time() - start < 20  # 0.5 s; by the square of its size it was ten minutes


def test_functions_that_call_each_other_have_a_hash():
    space = {"__name__": "notebook"}
    exec("def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)", space)
    assert function_hash(space["even"], "here") != function_hash(space["odd"], "here")


def test_a_value_whose_content_cannot_be_told_is_refused(tmp_path):
    with (tmp_path / "open").open("w") as file, pytest.raises(DataError, match=r"here: the function uses .* cannot be"):
        function_hash(with_array(file), "here")


@pytest.mark.parametrize("kind", ["user", "system"])
@pytest.mark.parametrize("installed", [True, False])
def test_packages_of_the_user_and_of_the_system_count_by_version_and_not_by_source(tmp_path, kind, installed):
    find = {
        "user": "import site; folder = site.getusersitepackages()",
        "system": f"import site; site.PREFIXES.append({str(tmp_path)!r}); folder = site.getsitepackages()[-1]",
    }
    code = f"""
{find[kind]}
import sys
from pathlib import Path
folder = Path(folder if {installed} else {str(tmp_path / "mine")!r})
folder.mkdir(parents=True)
(folder / "borrowed.py").write_text(sys.argv[1])
sys.path.insert(0, str(folder))
from gigabatch.features.operators.rows.fingerprint import function_hash
from borrowed import add
print(folder, function_hash(add, "here"))
"""
    hashes = []
    for source in ("def add(x):\n    return x + 1\n", "def add(x):\n    return x + 2\n"):
        environment = os.environ | {"PYTHONUSERBASE": str(tmp_path / "user"), "PYTHONDONTWRITEBYTECODE": "1"}
        out = subprocess.run(
            [sys.executable, "-c", code, source], env=environment, capture_output=True, text=True, check=True
        ).stdout
        folder, found = out.split()
        assert folder.startswith(str(tmp_path))
        shutil.rmtree(folder)
        hashes.append(found)
    assert (hashes[0] == hashes[1]) == installed
