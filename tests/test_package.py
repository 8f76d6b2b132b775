"""One import name: what `gigabatch` offers, what importing it does, and how its files may import each other."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import gigabatch

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("features", "loaders", "models", "pipeline")
# What a package's files may import of the others. Loaders read rows by the schema, nothing else of the features.
MAY_IMPORT = {
    "features": (),
    "loaders": ("gigabatch.features.schema", "gigabatch.features.errors"),
    "models": (),
    "pipeline": ("gigabatch.features", "gigabatch.loaders", "gigabatch.models"),
}


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache  # several tests ask of the same files
def imported(text: str) -> list[str]:
    """Every module that the source imports, at any depth, also for type checkers; `from a import b` as a.b."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@cache
def modules() -> dict[str, Path]:
    named = {}
    for path in sources(*FOLDERS):
        parts = ("gigabatch", *path.relative_to(ROOT).with_suffix("").parts)
        named[".".join(parts).removesuffix(".__init__")] = path
    return named


@cache
def arrows() -> dict[str, set[str]]:
    """module -> the modules of this project that it imports."""

    def module_of(name: str) -> str | None:
        while name not in modules() and "." in name:
            name = name.rpartition(".")[0]
        return name if name in modules() else None

    return {
        module: {found for name in imported(path.read_text()) if (found := module_of(name)) and found != module}
        for module, path in modules().items()
    }


def circles(graph: dict[str, set[str]]) -> list[str]:
    """What is left when all that imports nothing that is left has been taken away, again and again, from both ends."""
    left = {name: set(others) for name, others in graph.items()}
    while True:
        wanted = set().union(*left.values()) if left else set()
        gone = {name for name, others in left.items() if not others & left.keys() or name not in wanted}
        if not gone:
            return sorted(left)
        left = {name: others - gone for name, others in left.items() if name not in gone}


def run(code: str, folder: Path) -> str:
    """What the code prints in a process of its own that works in `folder` and finds this checkout as installed."""
    command = [sys.executable, "-c", code]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_module_imports_a_short_name():
    may = re.compile(rf"(?:import|from|,)\s+(?:{'|'.join(FOLDERS)})\b")  # few files are parsed for it
    short = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*sources(*FOLDERS, "tests", "benchmarks"), *(ROOT / "gigabatch").glob("*.py")]
        if may.search(path.read_text())
        for name in imported(path.read_text())
        if name.partition(".")[0] in FOLDERS
    }
    cells = [
        (path.name, re.sub(r"^%%.*\n", "", "".join(cell["source"])))  # without the magic of a file's cell
        for path in (ROOT / "notebooks").glob("*.ipynb")
        for cell in json.loads(path.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    short |= {f"{page}: {name}" for page, text in cells for name in imported(text) if name.partition(".")[0] in FOLDERS}
    assert len(cells) > 10
    assert not short


def test_a_working_folder_with_packages_of_those_names_disturbs_nothing(tmp_path):
    for name in FOLDERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise ImportError('the user's own {name}')")
    names = [name for name in gigabatch.__all__ if not name.startswith("_")]
    code = f"import gigabatch; print([getattr(gigabatch, name).__name__ for name in {names}])"
    assert run(code, tmp_path).strip() == str(names)
    main = (
        "import runpy, sys; sys.argv = ['gigabatch', '--version']; runpy.run_module('gigabatch', run_name='__main__')"
    )
    assert f"gigabatch {gigabatch.__version__}" in run(main, tmp_path)


def test_every_public_name_is_found_once_where_type_checkers_find_it():
    block = next(node for node in ast.parse(Path(gigabatch.__file__).read_text()).body if isinstance(node, ast.If))
    for_checkers = {
        alias.name: node.module for node in ast.walk(block) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    found = {name: f"gigabatch.{place}" for name, place in gigabatch._PLACES.items()}
    assert found == for_checkers
    assert all(getattr(gigabatch, name).__module__ == place for name, place in found.items())
    assert sorted(gigabatch.__all__) == sorted([*found, "__version__"])
    assert set(gigabatch.__all__) <= set(dir(gigabatch))
    assert not {"Any", "importlib", "_PLACES"} & set(dir(gigabatch))


def test_a_name_that_is_not_there_is_an_attribute_error_that_lists_those_that_are():
    with pytest.raises(AttributeError, match=r"no attribute 'Pipelin'.*PackedTable, Pipeline"):
        gigabatch.Pipelin  # noqa: B018


def test_importing_the_package_imports_nothing_heavy(tmp_path):
    heavy = {"torch", "pandas", "numpy", "numba", "dask", "pyarrow", "pydantic"}
    assert run(f"import sys, gigabatch; print({heavy} & set(sys.modules))", tmp_path).strip() == "set()"


def test_the_stages_import_nothing_that_only_some_runs_need(tmp_path):
    """What draws, solves or counts is imported by what draws, solves or counts: together half as long as torch."""
    others = {
        "matplotlib",
        "scipy.sparse",
        "sklearn",
        "dask",
        "torch.utils.flop_counter",
        "mlflow",
        "fastapi",
        "IPython",
    }
    code = f"import sys, gigabatch.pipeline.stages.score; print(sorted({others} & set(sys.modules)))"
    assert run(code, tmp_path).strip() == "[]"


def test_reading_a_run_imports_neither_torch_nor_pandas(tmp_path):
    heavy = {"torch", "pandas", "numba", "pyarrow", "matplotlib"}
    code = f"import sys, gigabatch.pipeline.stages.finished; print(sorted({heavy} & set(sys.modules)))"
    assert run(code, tmp_path).strip() == "[]"


def test_importing_every_model_changes_no_global_state(tmp_path):
    state = (
        "(torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state()), torch.get_num_threads(), "
        "torch.get_default_dtype(), torch.is_grad_enabled())"
    )
    code = (
        f"import random, sys, numpy, torch; torch.manual_seed(0); before = {state}\n"
        "from gigabatch.models.shelf import MODELS, model_class\n"
        f"kinds = [model_class(name) for name in MODELS]; assert before == {state}\n"
        "print(*sorted({'.'.join(name.split('.')[:2]) for name in sys.modules}))"
    )
    loaded = set(run(code, tmp_path).split())
    assert "gigabatch.models" in loaded
    assert not {"gigabatch.features", "gigabatch.loaders", "gigabatch.pipeline", "pydantic", "pandas", "cudf"} & loaded


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_import_downwards(folder):
    others = tuple(f"gigabatch.{other}" for other in FOLDERS if other != folder)
    upward = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources(folder)
        for name in imported(path.read_text())
        if name.startswith(others) and not name.startswith(MAY_IMPORT[folder])
    }
    assert not upward


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]


def test_no_files_import_each_other_in_a_circle():
    assert len(arrows()) > 200
    assert circles(arrows()) == []


def test_no_sub_folders_import_each_other_in_a_circle():
    """A file directly in a folder stands for itself. Sub-folders of operators and recipes are catalogues: one room."""

    def room(module: str) -> str:
        parts = module.split(".")
        if module not in modules() or modules()[module].name == "__init__.py":
            return module
        parts = parts[:-1] if len(parts) > 3 else parts
        return ".".join(parts[:3] if parts[2:3] in (["operators"], ["recipes"]) else parts)

    rooms: dict[str, set[str]] = {}
    for module, others in arrows().items():
        rooms.setdefault(room(module), set()).update({room(other) for other in others} - {room(module)})
    assert circles(rooms) == []


def json_calls(path: Path) -> list[ast.Call]:
    text = path.read_text()
    return [
        node
        for node in ast.walk(ast.parse(text if "json" in text else ""))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("dump", "dumps")
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "json"
    ]


def test_what_becomes_of_nan_is_decided_wherever_json_is_written():
    """P4: Python's default writes NaN, which is no JSON. Reports go through `json_text`, states refuse it."""
    silent = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sources(*FOLDERS, "benchmarks")
        for call in json_calls(path)
        if "allow_nan" not in {word.arg for word in call.keywords}
    ]
    assert not silent, f"json.dumps without allow_nan; json_text of pipeline/store/files.py has it: {silent}"


# Of torch, what holds for the whole process: number formats of products, threads, streams, random states.
PROCESS_WIDE = re.compile(
    r"torch\.(backends\b|set_|use_deterministic|_dynamo\.config|_inductor\.config|autograd\.(set_|grad_mode\.set_)"
    r"|cuda\.(set_|memory\.(_?set_|change))|jit\.(set_|enable)).*"
)
KNOWN = {
    "loaders/kernels/threads.py": {"torch.set_num_threads"},
    "models/kernels/__init__.py": {"torch.set_num_threads"},
    "models/modes.py": {"torch.set_default_dtype"},  # set again at the end of its block
    "models/optimizers/precision.py": {"torch.backends.cuda.matmul"},  # set again at the end of its block
    "pipeline/joining.py": {"torch.cuda.set_device", "torch.set_num_threads"},  # a rank's share of the machine
    "pipeline/lab/advise/links.py": {"torch.cuda.set_device", "torch.set_num_threads"},  # of processes of its own
    "pipeline/machine.py": {"torch.set_num_threads"},  # set again at the end of its block
    "pipeline/serving/http/server.py": {"torch.set_num_threads"},
    "pipeline/stages/stages.py": {"torch.set_num_threads"},
    "pipeline/training/beside.py": {"torch.set_num_threads"},  # in a process of a member, and as it was
    "pipeline/training/checkpoint.py": {"torch.cuda.set_rng_state", "torch.set_rng_state"},
    "pipeline/training/train_step.py": {"torch.cuda.set_stream"},  # the one that was current before a failed capture
}


def root_of(node):
    """The name that a chain of attributes begins with; None where it begins with something else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def process_wide(source):
    """Names that a file takes of torch's settings of the process, however it imports them."""
    found = set()
    for node in ast.walk(ast.parse(source if "torch" in source else "")):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name != "torch"}
        elif isinstance(node, ast.Attribute) and root_of(node) == "torch":
            found.add(ast.unparse(node))
    named = {name for name in found if PROCESS_WIDE.fullmatch(name)}
    return {name for name in named if not any(other.startswith(f"{name}.") for other in named)}


def test_settings_of_the_process_are_made_in_the_files_that_are_known_to():
    """One set in passing changes every product after it: those of a user, of a peer in a benchmark, of the next run."""
    sources = {path: path.read_text() for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))}
    found = {str(path.relative_to(ROOT)): names for path, text in sources.items() if (names := process_wide(text))}
    assert found == KNOWN


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("torch.set_float32_matmul_precision('high')", "torch.set_float32_matmul_precision"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "torch.backends.cuda.matmul.allow_tf32"),
        ("from torch.backends import cudnn", "torch.backends.cudnn"),
        ("import torch.backends.cudnn as c", "torch.backends.cudnn"),
        ("from torch import set_default_dtype", "torch.set_default_dtype"),
        ("torch.cuda.memory.change_current_allocator(a)", "torch.cuda.memory.change_current_allocator"),
    ],
)
def test_a_setting_of_the_process_is_seen(line, name):
    assert process_wide(line) == {name}
    assert process_wide("from torch import nn\ntorch.zeros(3).set_(x)\ntorch.cuda.stream(s)") == set()


def test_no_two_test_files_have_one_name():
    """Test folders are no packages, so pytest takes a file by its name alone and collects the second one not at all."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
