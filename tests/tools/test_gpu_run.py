"""`tools/gpu_run.py` survives whatever a step does, and its page says what was seen and no more."""

import ast
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from functools import cache
from pathlib import Path

import pytest

from tests.bare_python import BarePython
from tools import gpu_page, gpu_parts, gpu_run, gpu_steps
from tools.gpu_steps import PYTHON, Command, Step

ROOT = Path(__file__).parents[2]
RESULT = {"name": "fast", "seconds": {"ours": 1.0}, "ratios": {"torch": 4.5}, "claims": {"times torch": [4.5, 4, True]}}


def shell(name, script, seconds=20, kind="plain", needs=(), **more):
    return Command(name, ("/bin/bash", "-c", script), seconds, kind, needs, **more)


def python(name, code, seconds=20, kind="plain", needs=()):
    return Command(name, (PYTHON, "-c", code), seconds, kind, needs)


def run(folder, *commands, budget=None):
    """(exit code, page, the records by name) of one step of these commands."""
    steps = [Step(3, "a step", commands[:1]), *([Step(4, "another", commands[1:])] if commands[1:] else [])]
    runner = gpu_run.Runner(steps, folder / "out", budget, sys.executable, folder / "wheels", ROOT)
    code = runner.run()
    return code, (folder / "out/page.md").read_text(), {record.name: record for record in runner.records}


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_all_that_passed_is_a_success_and_its_files_are_few(tmp_path):
    code, page, records = run(tmp_path, shell("fine", "echo hello"), shell("versions", "echo torch 2.11"))
    assert code == 0
    assert {record.verdict for record in records.values()} == {"passed"}
    assert "| 3 | a step | passed |" in page
    assert "Nothing: all that ran passed." in page
    assert (tmp_path / "out/versions.txt").read_text() == "torch 2.11\n"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "page.md", "results.json", "versions.txt", "logs.tar.gz",
    }  # fmt: skip
    with tarfile.open(tmp_path / "out/logs.tar.gz") as logs:
        assert logs.extractfile("logs/fine.log").read() == b"hello\n"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'ImportError: no torch'; exit 3", "exit code 3: ImportError: no torch"),
        ("kill -SEGV $$", "killed by SIGSEGV"),
        ("kill -KILL $$", "killed by SIGKILL"),
        ("exit 139", "exit code 139"),
    ],
)
def test_a_failure_is_named_and_the_step_after_it_runs(tmp_path, script, why):
    code, page, records = run(
        tmp_path, shell("bad", script), shell("mark", f"touch {tmp_path}/ran"), shell("worse", "exit 1")
    )
    assert code == 1
    assert (tmp_path / "ran").exists()
    assert records["bad"].verdict == "failed"
    assert records["bad"].why.startswith(why)
    assert why in page
    assert records["mark"].verdict == "passed"
    assert records["worse"].verdict == "failed"


def test_a_program_that_is_not_there_is_a_failure_of_its_own_alone(tmp_path):
    code, _, records = run(tmp_path, Command("none", ("/no/such/program",), 5, needs=()), shell("fine", "true"))
    assert code == 1
    assert "could not be started" in records["none"].why
    assert records["fine"].verdict == "passed"


def test_what_hangs_is_killed_with_its_grandchildren_and_keeps_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_run, "GRACE_SECONDS", 0.3)
    script = f"trap '' TERM; echo begun; (trap '' TERM; sleep 60 & echo $! > {tmp_path}/pid; wait) & wait; sleep 60"
    started = time.monotonic()
    code, page, records = run(tmp_path, shell("hangs", script, seconds=1), shell("fine", "true"))
    assert time.monotonic() - started < 55
    assert code == 1
    assert records["hangs"].verdict == "timed out"
    assert "killed at its limit of 1 s" in page
    assert "begun" in records["hangs"].tail
    assert records["fine"].verdict == "passed"
    deadline = time.monotonic() + 5
    while not gone(int((tmp_path / "pid").read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_grandchild_left_behind_by_a_command_that_ended_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_run, "GRACE_SECONDS", 0.3)
    _, _, records = run(tmp_path, shell("leaves", f"(trap '' TERM; sleep 60) & echo $! > {tmp_path}/pid"))
    assert records["leaves"].verdict == "passed"
    assert gone(int((tmp_path / "pid").read_text()))


def test_megabytes_of_output_stay_below_what_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_run, "BACK_BYTES", 1 << 20)
    code, page, records = run(tmp_path, shell("loud", "head -c 6000000 /dev/urandom; echo; echo the end; exit 4"))
    assert code == 1
    assert "the end" in records["loud"].tail
    for path in (tmp_path / "out").iterdir():
        assert path.stat().st_size < (1 << 20) + (1 << 17), path
    assert len(page) < 20_000


def test_endless_output_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_run, "MOST_LOG_BYTES", 1 << 20)
    _, _, records = run(tmp_path, shell("endless", "yes"))
    assert records["endless"].verdict == "timed out"
    assert "printed more than" in records["endless"].why


def test_a_disk_that_is_full_takes_no_page_but_every_command_runs_and_the_page_is_printed(tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("page.md", "results.json", "versions.txt", "logs.tar.gz"):
        (out / f".{name}").symlink_to("/dev/full")
    steps = [Step(1, "one", (shell("first", "true"), shell("second", "echo more; exit 3")))]
    assert gpu_run.main(["--out", str(out)], steps) == 1
    told = capsys.readouterr()
    assert "No space left on device" in told.err
    assert "| 1 | one | 1 passed, 1 failed |" in told.out
    out = tmp_path / "a file"
    out.touch()
    assert gpu_run.main(["--out", str(out)], [Step(1, "one", (shell("first", "true"),))]) == 0
    assert "| 1 | one | passed |" in capsys.readouterr().out


def test_a_missing_package_program_and_module_are_named(tmp_path):
    needy = [
        shell("package", "true", needs=("no_such_package",)),
        shell("program", "true", needs=("program:no-such-program",)),
        shell("nested", "true", needs=("json.no_such_module",)),
        shell("there", "true", needs=("json", "program:bash", "json.decoder")),
    ]
    code, page, records = run(tmp_path, *needy)
    assert code == 0
    assert records["there"].verdict == "passed"
    assert [records[name].why for name in ("package", "program", "nested")] == [
        "missing: package no_such_package", "missing: program no-such-program", "missing: package json.no_such_module",
    ]  # fmt: skip
    assert "not run, missing: package no_such_package" in page


def test_a_reason_that_many_commands_share_is_said_once_a_step_and_once_above(tmp_path):
    needy = [shell(f"needy-{number}", "true", needs=("no_such_package",)) for number in range(9)]
    _, page, _ = run(tmp_path, *needy, shell("other", "true", needs=("program:no-such-program",)))
    assert page.count("missing: package no_such_package") == 3  # of the first step, of the second, of all
    assert "9 commands of steps 3, 4: not run, missing: package no_such_package." in page
    assert all(page.count(f"**needy-{number}**") == 1 for number in range(9))
    assert "step 4, other: not run, missing: program no-such-program." in page


def test_a_run_in_which_nothing_ran_is_no_success(tmp_path):
    code, page, _ = run(tmp_path, shell("package", "true", needs=("no_such_package",)))
    assert code == 1
    assert "| 3 | a step | 1 not run |" in page


def test_a_device_that_torch_does_not_see_is_what_is_missing(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("torch sees a CUDA device here")
    _, _, records = run(tmp_path, shell("device", "true", needs=("cuda",)))
    assert records["device"].why == "missing: a CUDA device that torch sees"


def test_the_budget_ends_a_run_and_the_rest_is_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_run, "LEAST_SECONDS", 1)
    monkeypatch.setattr(gpu_run, "GRACE_SECONDS", 0.2)
    code, page, records = run(tmp_path, shell("slow", "sleep 30"), shell("late", "true"), budget=2)
    assert code == 1
    assert records["slow"].verdict == "timed out"
    assert "what was left of the budget of 2 s" in records["slow"].why
    assert records["late"].why == "the budget of 2 s was used up"
    assert "late: not run, the budget of 2 s was used up" in page


PYTEST = "{python} -m pytest -p no:cacheprovider -c /dev/null --rootdir {folder} -v -rfEs {folder}/test_it.py"


@pytest.mark.parametrize(
    ("source", "verdict", "why"),
    [
        ("def test_a(): pass", "passed", ""),
        ("def test_a(): pass\ndef test_b(): assert 1 == 2, 'numbers differ'", "failed", "1 failed"),
        ("", "failed", "no test ran and passed"),
        (
            "import pytest\n@pytest.mark.skip(reason='no device')\ndef test_a(): pass",
            "failed",
            "no test ran and passed",
        ),
        ("import no_such_module_of_ours", "failed", "1 failed"),
        ("import os\ndef test_a(): pass\ndef test_b(): os.kill(os.getpid(), 11)", "failed", "SIGSEGV in {f}::test_b"),
    ],
    ids=["passing", "failing", "empty", "all skipped", "import error", "crashing"],
)
def test_what_pytest_says_is_read_and_no_more(tmp_path, source, verdict, why):
    (tmp_path / "test_it.py").write_text(source)
    script = "export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1; exec " + PYTEST.format(python=sys.executable, folder=tmp_path)
    _, page, records = run(tmp_path, shell("tests", script, seconds=60, kind="pytest"))
    record = records["tests"]
    assert record.verdict == verdict, record
    assert why.format(f="test_it.py") in record.why or (why.startswith("SIGSEGV") and "SIGSEGV" in record.why)
    if why == "1 failed" and "differ" in source:
        assert record.counts == {"failed": 1, "passed": 1}
        ((name, error),) = record.failures
        assert name.endswith("test_it.py::test_b")
        assert "numbers differ" in error
        assert "numbers differ" in page
    if "kill" in source:
        assert "test_b" in record.why


@pytest.mark.parametrize(
    ("printed", "verdict", "why"),
    [
        (json.dumps(RESULT), "passed", ""),
        ("3.5 times as fast", "failed", "it printed no JSON line"),
        ('{"name": "half"}', "failed", "it printed no JSON line"),
        ("", "failed", "it printed no JSON line"),
    ],
)
def test_a_benchmark_without_its_line_has_failed(tmp_path, printed, verdict, why):
    _, page, records = run(tmp_path, python("fast", f"print({printed!r})", kind="benchmark"))
    assert records["fast"].verdict == verdict
    assert records["fast"].why.startswith(why)
    if verdict == "passed":
        assert "holds: times torch: 4.5 (required 4)" in page
        assert "ratios: torch 4.5" in page
        assert json.loads((tmp_path / "out/results.json").read_text())["benchmarks"] == [RESULT]


def test_a_missed_claim_is_shown_and_advised_on(tmp_path):
    missed = RESULT | {"claims": {"times torch": [3.0, 4, False]}, "details": {"ceilings": {"copy GB/s": 4300.0}}}
    _, page, _ = run(tmp_path, python("fast", f"print({json.dumps(missed)!r})", kind="benchmark"))
    assert "MISSED: times torch: 3.0 (required 4)" in page
    assert "missed times torch" in page
    assert '{"copy GB/s": 4300.0}' in page


@pytest.mark.parametrize(
    ("printed", "code", "verdict"),
    [
        ("========= ERROR SUMMARY: 0 errors", 0, "passed"),
        ("========= ERROR SUMMARY: 2 errors", 0, "failed"),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0, "passed"),
        ("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", 0, "failed"),
        ("========= Error: Device not supported", 0, "failed"),
        ("========= ERROR SUMMARY: 0 errors", 1, "failed"),
    ],
)
def test_a_sanitizer_passes_by_its_summary(tmp_path, printed, code, verdict):
    _, _, records = run(tmp_path, shell("memcheck", f"echo '{printed}'; exit {code}", kind="sanitizer"))
    assert records["memcheck"].verdict == verdict


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_runner_that_is_stopped_leaves_its_page_and_nothing_running(tmp_path, number):
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tools import gpu_run
from tools.gpu_steps import Command, Step
slow = Command("slow", ("/bin/bash", "-c", "echo $$ > {tmp_path}/pid; echo working; sleep 60"), 50, needs=())
steps = [Step(1, "one", (slow,)), Step(2, "two", (Command("never", ("true",), 5, needs=()),))]
sys.exit(gpu_run.main(["--out", "{tmp_path}/out"], steps))
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as runner:
        deadline = time.monotonic() + 120
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        while not (tmp_path / "pid").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        early = (tmp_path / "out/page.md").read_text()
        runner.send_signal(number)
        runner.communicate(timeout=120)
    assert runner.returncode == 1
    assert "not finished" in early  # what a kill would have left
    page = (tmp_path / "out/page.md").read_text()
    assert f"stopped by {number.name}" in page
    assert f"not run (the runner was stopped by {number.name}): **never**" in page
    assert gone(int((tmp_path / "pid").read_text()))


def test_programs_of_the_toolkit_are_found_beside_path(tmp_path, monkeypatch):
    program = tmp_path / "toolkit/bin/compute-sanitizer-of-a-test"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho found it\n")
    program.chmod(0o755)
    command = shell("checked", "compute-sanitizer-of-a-test", needs=("program:compute-sanitizer-of-a-test",))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nothing"))
    assert run(tmp_path, command)[2]["checked"].why == "missing: program compute-sanitizer-of-a-test"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    assert run(tmp_path, command)[2]["checked"].verdict == "passed"


def test_step_numbers():
    assert gpu_run.numbers("0-3,6", range(9)) == [0, 1, 2, 3, 6]
    for wrong in ("", "a", "3-", "-1", "9", "2-1", "1,,2", "1 - 2"):
        with pytest.raises(ValueError, match="--steps"):
            gpu_run.numbers(wrong, range(9))


def test_wheels_and_their_libraries_go_before_the_box(tmp_path):
    (tmp_path / "site-base").mkdir()
    (tmp_path / "site-cudf/nvidia/nvjitlink/lib").mkdir(parents=True)
    runner = gpu_run.Runner([], tmp_path / "out", None, sys.executable, tmp_path, ROOT)
    plain = runner.environment(shell("a", "true", groups=("base",)))
    cudf = runner.environment(shell("a", "true", groups=("cudf", "base")))
    assert plain["PYTHONPATH"].split(os.pathsep)[:2] == [str(ROOT), str(tmp_path / "site-base")]
    assert cudf["PYTHONPATH"].split(os.pathsep)[:3] == [
        str(ROOT), str(tmp_path / "site-cudf"), str(tmp_path / "site-base"),
    ]  # fmt: skip
    assert cudf["LD_LIBRARY_PATH"].split(os.pathsep)[0] == str(tmp_path / "site-cudf/nvidia/nvjitlink/lib")
    assert "site-cudf" not in plain.get("LD_LIBRARY_PATH", "")


# The real list of steps.

STEPS = gpu_steps.steps()
COMMANDS = [command for step in STEPS for command in step.commands]


def test_steps_are_numbered_and_short():
    assert [step.number for step in STEPS] == list(range(10))
    for step in STEPS:
        assert 0 < sum(command.seconds for command in step.commands) <= gpu_steps.STEP_SECONDS, step.title
        assert all(command.seconds >= 20 for command in step.commands), step.title
    names = [command.name for command in COMMANDS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names)


def test_every_test_file_that_names_the_mark_is_run_once():
    marked = {
        path for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"\bmark\.gpu\b|\b(any|triton)_device\b", path.read_text())
        and path.parent not in (ROOT / "tests", ROOT / "tests/tools")  # which only talk of them
    }  # fmt: skip
    assert len(marked) > 20
    for path in marked:
        runs = []
        for command in (one for step in STEPS[1:3] for one in step.commands):
            below = [ROOT / part for part in command.argv if part.startswith("tests/")]
            ignored = [ROOT / part.removeprefix("--ignore=") for part in command.argv if part.startswith("--ignore=")]
            if any(path.is_relative_to(one) for one in below) and not any(path.is_relative_to(one) for one in ignored):
                runs.append(command.name)
        assert len(runs) == 1, (path, runs)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_names_what_is_there(command):
    argv = command.argv[command.argv.index(PYTHON) :]
    assert argv[1] == "-m"
    if argv[2] == "pytest":
        paths = [part.partition("::")[0] for part in argv if part.startswith("tests/")]
        assert paths
        assert all((ROOT / path).exists() for path in paths)
        return
    assert (ROOT / f"{argv[2].replace('.', '/')}.py").exists()


def test_a_bare_box_gives_the_help_of_every_benchmark_and_tool_with_the_flags_that_steps_use(tmp_path):
    wanted = {}
    for command in COMMANDS:
        module = command.argv[command.argv.index("-m") + 1]
        if module != "pytest":
            flags = [part for part in command.argv[command.argv.index("-m") + 2 :] if part.startswith("--")]
            wanted.setdefault(module, set()).update(flags)
    done = BarePython(tmp_path)("tests/tools/helps.py")
    assert done.returncode == 0, done.stderr[-3000:]
    helps = json.loads(done.stdout)
    for module, flags in wanted.items():
        known = set(re.findall(r"--\w+", helps[module]))
        assert flags <= known, f"{module}: {flags - known}"
        if module.startswith("benchmarks."):
            assert {"--device", "--out", "--save", "--quick"} <= known, module


BARE = {"torch", "triton", "numpy", "pandas", "pyarrow", "numba"}  # what a box has at the least


@cache
def benchmark_files():
    """Files of every benchmark and tool that a step runs, and the benchmarks that they import."""
    modules = {command.argv[command.argv.index("-m") + 1] for command in COMMANDS} - {"pytest"}
    found: dict[str, Path] = {}
    while modules:
        module = modules.pop()
        path = ROOT / f"{module.replace('.', '/')}.py"
        if module in found or not path.exists():
            continue
        found[module] = path
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        modules |= {node.module for node in nodes if node.module.partition(".")[0] in ("benchmarks", "tools")}
    return found


@pytest.mark.parametrize("module", sorted(benchmark_files()))
def test_a_box_without_our_packages_can_ask_for_help(module):
    """Imports at the top of a file are of what every box has; others stand in `with needed()` or in a function."""
    top = ast.Module(
        [node for node in ast.parse(benchmark_files()[module].read_text()).body if not isinstance(node, ast.With)], []
    )
    for function in [node for node in ast.walk(top) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]:
        function.body = []
    known = sys.stdlib_module_names | BARE | {"benchmarks", "gigabatch", "tools"}
    assert not set(imports(top)) - known


def imports(tree):
    """Names imported at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("name", ["gpu_run", "gpu_steps", "gpu_page", "gpu_parts"])
def test_the_runner_needs_the_standard_library_alone(name):
    assert set(imports(ast.parse((ROOT / f"tools/{name}.py").read_text()))) <= sys.stdlib_module_names | {"tools"}


def test_limits_are_those_of_the_device_machine():
    """16 MiB of one file come back; a call carries 64 MiB with the tree; ten minutes a command."""
    assert gpu_run.BACK_BYTES + (1 << 17) < 16 << 20
    assert gpu_parts.PART_BYTES < 60_000_000
    assert inspect.signature(gpu_parts.split).parameters["limit"].default == gpu_parts.PART_BYTES
    assert gpu_steps.STEP_SECONDS == 600


def test_a_folder_with_the_mark_that_no_step_runs_would_be_found(tmp_path):
    """By listing: a test in a new folder is in a step without an edit."""
    (tmp_path / "tests/pipeline/new").mkdir(parents=True)
    (tmp_path / "tests/pipeline/new/test_new.py").write_text("@pytest.mark.gpu\ndef test_a(): pass\n")
    steps = gpu_steps.steps(tmp_path)
    assert [command.name for command in steps[2].commands] == ["test-pipeline-new"]


def test_every_kernel_is_a_target_of_the_sanitizers():
    """A folder or file with a Triton kernel has a target of its name."""
    from gigabatch.models.kernels import KERNELS
    from tools.sanitizer_targets import TARGETS

    assert set(KERNELS) <= set(TARGETS)
    folders = ("features", "loaders", "models", "pipeline")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    kernels = [path for path in files if re.search(r"^@(\w+\.)?jit\b", path.read_text(), re.MULTILINE)]
    assert kernels
    assert not [path for path in kernels if path.parent.name not in TARGETS and path.stem not in TARGETS]


def test_gpu_page_counts_a_summary_of_pytest():
    record = gpu_page.Record(1, "a", "b")
    lines = [
        "=== short test summary info ===",
        "FAILED tests/a.py::test_b[x - y] - AssertionError: no",
        "ERROR tests/c.py",
        "SKIPPED [3] tests/d.py:4: needs a CUDA device",
        "= 1 failed, 7 passed, 3 skipped, 1 error in 4.00s =",
    ]
    gpu_page.judge(record, "pytest", 1, "\n".join(lines))
    assert record.counts == {"failed": 1, "passed": 7, "skipped": 3, "error": 1}
    assert record.why == "2 failed"
    assert record.failures[1] == ["tests/c.py", ""]
    assert record.left_out == [lines[3]]


def test_a_grandchild_with_a_session_of_its_own_is_killed_too(tmp_path, monkeypatch):
    """torch's compiler and daemons start theirs so; one would hold the device's memory against all that follows."""
    monkeypatch.setattr(gpu_run, "GRACE_SECONDS", 0.3)
    script = f"(trap '' TERM; setsid sleep 60 & echo $! > {tmp_path}/pid; wait) & sleep 0.5; exit 0"
    _, _, records = run(tmp_path, shell("leaves", script))
    assert records["leaves"].verdict == "passed"
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_process_that_cannot_be_ended_is_left_and_the_next_command_runs(monkeypatch):
    """One that hangs in the driver takes SIGKILL only when it comes back."""

    class Hanging:
        pid = 2**22 + 1

        def poll(self):
            return None

        def wait(self, timeout=None):
            assert timeout is not None, "the runner would wait for ever"
            raise subprocess.TimeoutExpired("it", timeout)

    sent = []
    monkeypatch.setattr(gpu_run, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append(number))
    gpu_run.end_group(Hanging())
    assert sent[0] == signal.SIGTERM
    assert sent[-1] == signal.SIGKILL


def test_what_a_killed_command_printed_is_in_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_run, "GRACE_SECONDS", 0.2)
    _, _, records = run(tmp_path, python("slow", "import time; print('half way'); time.sleep(60)", seconds=4))
    assert records["slow"].verdict == "timed out"
    assert "half way" in records["slow"].tail


ODD = [
    {**RESULT, "seconds": None}, {**RESULT, "ratios": [1]}, {**RESULT, "claims": {"a": [1, 2]}},
    {**RESULT, "claims": 5}, {**RESULT, "details": "fast"}, {**RESULT, "name": None},
]  # fmt: skip


@pytest.mark.parametrize("line", [*map(json.dumps, ODD), '{"name": ' * 100_000])
def test_a_line_that_is_no_result_ends_no_run(line):
    assert gpu_page.result_of(line) is None


def test_results_that_are_no_numbers_leave_results_that_any_parser_reads(tmp_path):
    odd = {**RESULT, "seconds": {"ours": float("nan")}, "ratios": {"torch": float("inf")}}
    run(tmp_path, python("fast", f"print({json.dumps(odd)!r})", kind="benchmark"))

    def refuse(text):
        raise ValueError(text)

    found = json.loads((tmp_path / "out/results.json").read_text(), parse_constant=refuse)
    assert found["benchmarks"][0]["seconds"] == {"ours": "NaN"}
    assert found["benchmarks"][0]["ratios"] == {"torch": "Infinity"}
