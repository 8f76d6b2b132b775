"""What the offline GPU box will do with `pytest -m gpu`, seen from here: a Python with the box's packages alone.

`make test-gpu-box` does the same with the box's versions of them, and runs what needs no GPU.
"""

import ast
import re
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
import torch

from tests.bare_python import BARE, ROOT, BarePython, with_needs
from tests.devices import no_waiting
from tests.left_out import GPU_TESTS, LeftOut, unmet

# Rooms whose GPU tests need none of our packages but those of BARE; the pipeline's are read by what they test.
NEEDS_NOTHING = ("tests/loaders/", "tests/models/", "tests/pipeline/training/test_train_step.py")
NOT_ON_THE_BOX = {"cudf", "dask", "pydantic", "ruamel"}  # of what GPU tests import; `make gpu-pack` brings them
OURS = {"gigabatch", "tests", "benchmarks", "tools"}
PLANTED = {
    "test_absent.py": """
        import pytest
        import absent_package
        @pytest.mark.gpu
        def test_lost(): ...
    """,
    "test_drawn.py": """
        import pytest
        from hypothesis import given, settings, strategies as st
        @st.composite
        def pairs(draw): return draw(st.integers()), draw(st.integers())
        @pytest.mark.gpu
        @pytest.mark.parametrize("which", [1, 2])
        @settings(max_examples=2)
        @given(pair=pairs() | st.none())
        def test_drawn(which, pair): ...
        @pytest.mark.gpu
        def test_plain():
            import torch
            torch.optim.SGD([torch.zeros(3, requires_grad=True)], lr=0.1).step()
    """,
    "test_lazy.py": """
        import pytest
        @pytest.mark.gpu
        def test_needs_more(): import dask.dataframe
        @pytest.mark.gpu
        def test_needs_something_nobody_declared(): import absent_package
        @pytest.mark.gpu
        def test_needs_what_is_not_there_of_ours(): from gigabatch.features.schema import nothing_of_that_name
    """,
    "test_ours.py": """
        import pytest
        from gigabatch.features.schema import nothing_of_that_name
        @pytest.mark.gpu
        def test_lost(): ...
    """,
    "test_unmarked.py": """
        raise RuntimeError("a file without a GPU test is not imported")
    """,
    "test_declared.py": """
        import pytest
        import dask
        @pytest.mark.gpu
        def test_lost(): ...
    """,
    "test_warnings.py": """
        import threading, warnings, pytest, pandas, torch
        pytestmark = pytest.mark.gpu
        library = {"__name__": "torch.cuda.new", "warnings": warnings}
        exec("def call(level): warnings.warn('new in this release', UserWarning, stacklevel=level)", library)
        ours = {"__name__": "gigabatch.models.new", "warnings": warnings}
        exec("def call(): warnings.warn('one of ours')", ours)
        def test_of_a_library_in_its_own_name(): library["call"](1)
        def test_of_a_library_in_our_name(): library["call"](2)
        def test_of_torchs_cpp(): exec("import _warnings; _warnings.warn('x (Triggered internally at y.cpp:1.)')", ours)
        def test_of_ours_fails(): ours["call"]()
        def test_of_a_test_fails(): warnings.warn("one of a test")
        def test_of_ours_is_caught():
            with pytest.warns(UserWarning, match="one of ours"): ours["call"]()
        def test_of_a_thread_fails():
            thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()
    """,
}


def box_packages() -> tuple[str, ...]:
    """What the H200 box has, of tools/gpu_box.txt."""
    lines = (ROOT / "tools/gpu_box.txt").read_text().splitlines()
    return tuple(line.split("==")[0].strip() for line in lines if line and not line.startswith("#"))


def gpu_files() -> dict[str, int]:
    """Test files with tests marked gpu, and how many marks."""
    files = {path.relative_to(ROOT): path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    return {str(path): count for path, text in files.items() if (count := len(GPU_TESTS.findall(text)))}


def collected(python: BarePython, files: dict[str, int], *paths: str) -> dict[str, str]:
    """Of these files and their marks, each is collected whole or left out; what those that are left out need."""
    done = python("-m", "pytest", "--collect-only", "-q", "-m", "gpu", "-p", "no:cacheprovider", *paths)
    found = Counter(re.findall(r"^(tests/\S+\.py)::", done.stdout, re.MULTILINE))
    left_out = {
        name: needs
        for needs, line in re.findall(r"^  needs ([\w.-]+)\S*: (.*)", done.stdout, re.MULTILINE)
        for name in re.findall(r"(tests/\S+\.py) \(\d+ gpu\)", line)
    }
    fine = pytest.ExitCode.NO_TESTS_COLLECTED if left_out.keys() == files.keys() else pytest.ExitCode.OK
    assert done.returncode == fine, done.stdout[-3000:] + done.stderr[-3000:]
    assert left_out, "without dask something is left out, and said"
    for name, count in files.items():
        needs = left_out.get(name)
        assert needs or found[name] >= count, f"{name}: {found[name]} tests are collected, {count} are marked"
        assert not (needs and name.startswith(NEEDS_NOTHING)), f"{name} needs {needs}"
    return left_out


def test_every_gpu_test_is_collected_or_left_out_by_name(tmp_path):
    """With the least that a box has; and what is left out there, with all that the H200 box has."""
    for name in ("bare", "box"):
        (tmp_path / name).mkdir()
    files = gpu_files()
    left_out = collected(BarePython(tmp_path / "bare"), files)
    others = {name: files[name] for name in left_out}
    on_box = collected(BarePython(tmp_path / "box", (*BARE, *box_packages())), others, *others)
    assert {name: needs for name, needs in on_box.items() if needs.split(".")[0] not in NOT_ON_THE_BOX} == {}


def imported(path: Path) -> set[str]:
    """Names that a file imports, in functions too, of modules and of what is in them. What a test asks
    `pytest.importorskip` for is a skip that the summary shows, so it is left out."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


def files_of_gpu_tests(root: Path = ROOT) -> dict[Path, set[str]]:
    """Test files with tests marked gpu, their conftests and all of our files that these import -> their imports."""
    pending = [root / name for name in gpu_files()]
    pending += [folder / "conftest.py" for path in pending for folder in path.parents if folder.is_relative_to(root)]
    found: dict[Path, set[str]] = {}
    while pending:
        path = pending.pop()
        if path not in found and path.exists():
            found[path] = imported(path)
            ours = [name for name in found[path] if name.startswith(("tests.", "benchmarks.", "tools."))]
            pending += [root / f"{name.replace('.', '/')}.py" for name in ours]
            pending += [path.parent / f"{name}.py" for name in found[path] if "." not in name]
    return found


def test_no_import_inside_a_function_stops_a_gpu_test_on_the_box():
    """Collection does not run them; and where one is of a declared package, the test would be left out in silence."""
    on_box = {name.lower() for name in with_needs((*BARE, *box_packages()))}
    of = metadata.packages_distributions()
    files = files_of_gpu_tests()
    assert len(files) > 40
    absent = {}
    for path, names in files.items():
        tops = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - OURS
        tops = {name for name in tops if not (path.parent / f"{name}.py").exists()}
        there = {name for name in tops if any(one.lower().replace("_", "-") in on_box for one in of.get(name, ()))}
        name = str(path.relative_to(ROOT))
        allowed = set() if name.startswith(NEEDS_NOTHING) else NOT_ON_THE_BOX
        if tops - there - allowed - {"cupy"}:  # on the box, not here
            absent[name] = sorted(tops - there - allowed)
    assert absent == {}


def plant(folder: Path, *names: str) -> list[str]:
    """Options and paths of a run of these files, in which tests marked gpu run on the CPU."""
    (folder / "conftest.py").write_text("import torch\ntorch.cuda.is_available = lambda: True\n")
    for name in names:
        (folder / name).write_text("\n".join(line[8:] for line in PLANTED[name].splitlines()))
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-m", "gpu", "-rA", "--continue-on-collection-errors"]
    return ["-m", "pytest", *options, "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), str(folder)]


def outcomes(text: str) -> dict[str, str]:
    """Of the short summary: "file::test" or "file" -> PASSED, FAILED, ERROR."""
    lines = re.findall(r"^(PASSED|FAILED|ERROR) \S*?(test_\w+)\.py(?:::(\S+))?", text, re.MULTILINE)
    return {f"{file[5:]}::{test[5:]}" if test else file[5:]: outcome for outcome, file, test in lines}


def test_planted_files_on_a_bare_box(tmp_path):
    folder = tmp_path / "planted"
    folder.mkdir()
    done = BarePython(tmp_path)(*plant(folder, *PLANTED))
    assert outcomes(done.stdout) == {
        "absent": "ERROR",
        "ours": "ERROR",
        "drawn::plain": "PASSED",
        "lazy::needs_something_nobody_declared": "FAILED",
        "lazy::needs_what_is_not_there_of_ours": "FAILED",
        "warnings::of_a_library_in_its_own_name": "PASSED",
        "warnings::of_a_library_in_our_name": "PASSED",
        "warnings::of_torchs_cpp": "PASSED",
        "warnings::of_ours_fails": "FAILED",
        "warnings::of_a_test_fails": "FAILED",
        "warnings::of_ours_is_caught": "PASSED",
        "warnings::of_a_thread_fails": "FAILED",
    }, done.stdout[-5000:]
    said = re.findall(
        r"^LEFT OUT: (.*)\n  needs (dask)\S*: (.*)\n  needs (hypothesis)\S*: (.*)$", done.stdout, re.MULTILINE
    )
    assert said[-1][0] == "1 files, 1 of them with 1 or more gpu tests, and 3 tests of other files"
    assert said[-1][1] == "dask"
    assert said[-1][2].startswith("1 files, 1 tests, ")
    assert said[-1][4] == "0 files, 2 tests"
    assert "NOT HERE: " in done.stdout


def test_only_an_import_of_a_declared_package_that_is_absent_is_left_out(monkeypatch):
    assert not LeftOut(is_box=False).unmet, "nothing is left out in an ordinary run"
    real = metadata.version
    old = {"rich": "13.9", "dask": None}

    def version(name):
        if name in old and old[name] is None:
            raise metadata.PackageNotFoundError(name)
        return old.get(name) or real(name)

    monkeypatch.setattr(metadata, "version", version)
    record = LeftOut(is_box=True)
    assert record.unmet["rich"].startswith("rich>=")
    assert record.requirement(ModuleNotFoundError(name="dask.dataframe")).startswith("dask")
    assert record.requirement(ImportError(name="rich.console")), "an older one than asked for"
    for name in ("torch", "gigabatch.features", "nobody_declared_this", None):
        assert record.requirement(ImportError(name=name)) is None
    assert record.requirement(ValueError()) is None
    monkeypatch.undo()
    assert "pytest" not in unmet()


def test_fixtures_that_bring_the_mark_are_named_after_a_device():
    """By whose name files are found that `-m gpu` imports at all."""
    texts = [path.read_text() for path in (ROOT / "tests").rglob("conftest.py")]
    names = [name for text in texts for name in re.findall(r"mark\.gpu\b.*?\ndef (\w+)", text, re.DOTALL)]
    assert sorted(names) == ["any_device", "triton_device"]


def test_the_sync_debug_mode_is_set_in_one_place():
    rooms = ("tests", "benchmarks", "tools", "features", "loaders", "models", "pipeline")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py") if path != Path(__file__)]
    setting = [str(path.relative_to(ROOT)) for path in files if "cuda.set_sync_debug_mode(" in path.read_text()]
    assert setting == ["tests/devices.py"]


def test_the_sync_debug_mode_is_restored_and_its_first_warning_is_no_error(monkeypatch):
    modes = [0]

    def set_mode(mode):
        import warnings

        warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all", stacklevel=1)
        modes.append(mode)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)

    def work():
        with no_waiting():
            assert modes[-1] == "error"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert modes == [0, "error", 0]
