"""The command line: its commands and options, one line for a user's mistake, exit codes, and what gc leaves alone."""

import errno
import logging
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest
import typer

from gigabatch.features.errors import DataError, raise_of_machine
from gigabatch.features.schema import Schema
from gigabatch.pipeline.commands.app import COMMANDS, main, make_app

ROOT = Path(__file__).resolve().parents[3]
RUN, OUTPUT = "--config key=value", "--verbose -v --quiet -q"
LINES = {  # every command with its options and arguments: users' scripts and schedules are written with them
    "gigabatch": f"--version {OUTPUT} --install-completion --show-completion",
    "init": f"DATA --target --out --task --user --item --rows --encoding --force {OUTPUT}",
    "warm": f"--all {OUTPUT}",
    "features": f"{RUN} {OUTPUT}",
    "train": f"{RUN} --final {OUTPUT}",
    "evaluate": f"{RUN} --run --split --out {OUTPUT}",
    "score": f"{RUN} --run --split --input --history --out {OUTPUT}",
    "export": f"{RUN} --run --formats --out {OUTPUT}",
    "nightly": f"{RUN} --dry-run --json {OUTPUT}",
    "update": f"{RUN} --data --run --preprocessor --refresh-scales {OUTPUT}",
    "contract": "--config key=value --out --force --check --accept --verbose -v --quiet -q",
    "runs": f"{RUN} {OUTPUT}",
    "promote": f"--config ID key=value {OUTPUT}",
    "rollback": f"{RUN} {OUTPUT}",
    "unblock": f"--config ID key=value {OUTPUT}",
    "recommend": f"{RUN} --run --k --users --again --out {OUTPUT}",
    "embed": f"{RUN} --run --dtype --index --recall --update {OUTPUT}",
    "serve": f"{RUN} --run --host --port --workers --insecure {OUTPUT}",
    "plan": f"{RUN} --json --again {OUTPUT}",
    "tune": f"{RUN} --max-batch --seeds --seconds --rows --tolerance {OUTPUT}",
    "compare": f"{RUN} --models --seeds --epochs --trials --seconds --rows {OUTPUT}",
    "lr-range": f"{RUN} --start --stop --steps {OUTPUT}",
    "profile": f"{RUN} --steps --rows --trace {OUTPUT}",
    "advise": f"{RUN} --bandwidth --latency --efficiency --seconds --rows --json {OUTPUT}",
    "import-nvtabular": f"DIR --out --schema {OUTPUT}",
    "import-fastai": f"FILE --out --schema {OUTPUT}",
    "gc": f"{RUN} --keep {OUTPUT}",
}
HEAVY = ("torch", "pandas", "dask", "numba", "pyarrow", "scipy", "matplotlib", "fastapi", "uvicorn")


def spelled(item) -> str | None:
    """A test's name where a parameter is a command line."""
    return " ".join(item) or "nothing" if isinstance(item, list) else None


def run_python(*arguments: str, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    everything = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=everything, capture_output=True, text=True, check=False
    )


@pytest.fixture
def gigabatch(tiny, capsys):
    """The command on the tiny data, in this process: exit code, standard output, standard error."""

    def call(command: str, *arguments: str):
        capsys.readouterr()
        code = main([command, "--config", str(tiny.config), *arguments])
        return code, *capsys.readouterr()

    return call


def test_commands_and_options_are_these():
    root = typer.main.get_command(make_app())
    found = {
        name: " ".join(" ".join(item.opts) if item.opts[0].startswith("-") else item.metavar for item in command.params)
        for name, command in {"gigabatch": root, **root.commands}.items()
    }
    assert found == LINES


def test_help_lists_every_command_under_its_group(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    groups = {part.partition(" ─")[0]: part for part in out.split("╭─ ")}
    for group, functions in COMMANDS.items():
        first_words = [line.removeprefix("│ ").partition(" ")[0] for line in groups[group].splitlines()]
        assert [word for word in first_words if word in LINES] == list(functions)


def test_an_answer_that_needs_no_work_imports_nothing_heavy():
    """Their imports take seconds; without them an answer takes less than half a one."""
    lines = {
        "--help": 0,
        "--version": 0,
        "train --help": 0,
        "trian": 2,
        "train --confg conf/flights.yaml": 2,
        "train --config conf/nowhere.yaml": 2,
        "train train.epochs=0": 2,
        "nightly nightly.tolerence=1": 40,
    }
    program = f"""
import sys
from gigabatch.pipeline.commands.app import main
codes = [main(line.split()) for line in {list(lines)!r}]
print("imported", codes, [name for name in {HEAVY!r} if name in sys.modules])
"""
    done = run_python("-c", program)
    assert done.stdout.splitlines()[-1:] == [f"imported {list(lines.values())} []"], done.stderr


def test_the_module_is_the_command_and_tells_its_version():
    done = run_python("-m", "gigabatch", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert list(lines) == ["gigabatch", "from", "python", "libraries"]
    assert lines["from"] == str(ROOT / "gigabatch")
    assert lines["python"].startswith(f"{sys.version.split()[0]} ({sys.executable})")
    assert f"pandas {pd.__version__}" in lines["libraries"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'? Commands: init, warm, features, train, "),
        (["zzz"], "No such command 'zzz'. Commands: init, warm, features, train, "),
        ([], "Missing command. Commands: init, warm, features, train, "),
        (["seed=3"], "Missing command. Commands: init, warm, features, train, "),
        (["train", "--confg", "x.yaml"], "No such option: --confg (Possible options: --config)"),
        (["train", "--epochs", "3"], "No such option: --epochs. Settings have no dashes: train.epochs=3"),
        (["train", "--train.epochs=3"], "No such option: --train.epochs. Settings have no dashes: train.epochs=3"),
        (["init", "x.csv", "--zzz"], "No such option: --zzz\n"),
        (["update"], "Missing option '--data'"),
        (["plan", "-v", "-q"], "give one of --verbose and --quiet, not both."),
        (["gc", "--keep", "few"], "Invalid value for '--keep': "),
        (["train", "--config", "conf/nowhere.yaml"], "config conf/nowhere.yaml: no such file. Found there: conf/"),
        (["train", "train.epoch=3"], "unknown key 'train.epoch'. Did you mean 'train.epochs'?"),
        (["train", "epochs=3"], "unknown key 'epochs'. Did you mean 'train.epochs'?"),
        (["train", "epochs"], "override 'epochs': expected key=value"),
    ],
    ids=spelled,
)
def test_a_users_mistake_is_one_line_on_standard_error(arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gigabatch: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        "train --config {0} seed=-1 train.epochs=-1",
        "train seed=-1 train.epochs=-1 -q --config {0}",
        "-q seed=-1 train.epochs=-1 train --config {0}",
    ],
)
def test_overrides_stand_anywhere_on_the_line(line, tiny, capsys):
    assert main(line.format(tiny.config).split()) == 2
    error = capsys.readouterr().err
    assert f"{tiny.config}: " in error
    assert "seed: Input should be greater than or equal to 0 (found -1)" in error
    assert "train.epochs: Input should be greater than or equal to 0 (found -1)" in error


def test_without_a_configuration_those_that_are_there_are_listed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train"]) == 2
    needed = "gigabatch: --config is needed: the run's YAML file. The default, conf/flights.yaml, is not here."
    assert capsys.readouterr().err == f"{needed} YAML files here and in conf: none.\n"
    for path in ("mine.yaml", "conf/other.yaml"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    assert main(["nightly"]) == 40
    assert capsys.readouterr().err == f"{needed} YAML files here and in conf: conf/other.yaml, mine.yaml.\n"


def test_a_configuration_without_its_option_is_told_how_to_write_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "conf/mine.yaml"]) == 2
    said = "'conf/mine.yaml' stands alone on the line. Name the configuration by an option: --config conf/mine.yaml."
    assert capsys.readouterr().err == f"gigabatch: {said}\n"


def test_quiet_prints_results_alone(finished):
    done = finished.command("train", "--config", str(finished.config), "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert "auc" in done.stdout


@pytest.fixture
def logged(gigabatch):
    """`gigabatch` with the log that a process of its own shows: pytest's handlers keep the command from adding one."""

    def call(command: str, *arguments: str):
        handlers, level = logging.root.handlers[:], logging.root.level
        logging.root.handlers.clear()
        try:
            return gigabatch(command, *arguments)
        finally:
            logging.root.handlers[:] = handlers
            logging.root.setLevel(level)

    return call


def test_the_log_of_a_command_is_on_standard_error(finished, logged):
    assert "features: skipped, unchanged" in logged("features")[2]
    assert "skipped" not in logged("features", "-q")[2]


def test_verbose_tells_when_and_where_and_shows_the_traceback_of_a_mistake(finished, logged):
    code, _, err = logged("features", "-v", "features.files=nowhere-*")
    assert code == 2
    lines = err.splitlines()
    assert "Traceback (most recent call last):" in lines
    assert lines[-1].startswith("gigabatch: ")
    assert "nowhere-*" in lines[-1]
    code, _, err = logged("features", "--verbose")
    assert code == 0
    assert "gigabatch.pipeline.store.artifacts: features: skipped, unchanged" in err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("gigabatch tr", "train"),
        ("gigabatch nightly --config x.yaml nightly.min_w", "nightly.min_window_rows="),
    ],
)
def test_a_shell_completes_commands_options_and_settings(words, found):
    place = str(len(words.split()) - 1)
    done = run_python("-m", "gigabatch", _GIGABATCH_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)
    assert (done.returncode, done.stdout.split()) == (0, [found])


def test_the_completion_that_is_installed_calls_the_command():
    done = run_python("-m", "gigabatch", _GIGABATCH_COMPLETE="source_bash")
    assert done.returncode == 0
    assert "_GIGABATCH_COMPLETE=complete_bash" in done.stdout
    assert done.stdout.rstrip().endswith(" gigabatch")


def test_features_then_train_print_what_was_made(gigabatch, tiny):
    code, out, _ = gigabatch("features")
    assert code == 0
    assert "train" in out
    assert "2,400" in out
    assert "clicks of a made-up shop" in out
    code, out, _ = gigabatch("train", "train.epochs=1", "seed=9", "name=other")
    assert code == 0
    assert "auc" in out
    home = tiny.folder / "runs" / "other"
    assert str(home) in out
    assert "skipped, unchanged" in out
    summary = (home / "latest" / "summary.json").read_text()
    assert '"seed": 9' in summary
    assert '"epochs": 1' in summary


def test_evaluate_score_nightly_and_rollback_run_from_the_command_line(gigabatch, tiny):
    assert gigabatch("nightly")[0] == 0
    assert gigabatch("nightly")[0] == 10  # nothing is new
    assert gigabatch("evaluate", "--split", "valid")[0] == 0
    assert gigabatch("score", "--out", str(tiny.folder / "scores.csv"))[0] == 0
    assert len(pd.read_csv(tiny.folder / "scores.csv")) == 300
    assert gigabatch("nightly", "nightly.start=cold", "nightly.tolerance=1", "seed=5")[0] == 0
    assert gigabatch("rollback")[0] == 0


def test_a_full_disk_or_a_file_that_may_not_be_read_is_one_line_too(gigabatch, tiny, monkeypatch):
    def fail(*_, **__):
        raise PermissionError(13, "Permission denied", "/data/x.csv")

    monkeypatch.setattr("gigabatch.features.reading.sources.expand", fail)
    monkeypatch.setattr("tests.pipeline.tiny_recipe.expand", fail)
    code, _, err = gigabatch("train")
    assert code == 2
    assert err == "gigabatch: [Errno 13] Permission denied: '/data/x.csv'\n"


def test_a_library_message_of_many_lines_is_one_line_too(gigabatch, tiny):
    with open(tiny.raw / "day-000.csv", "a") as file:
        file.write("1,2,3,4,5,6,7,8,9,10,11,12,13,14\n")
    code, _, err = gigabatch("train")
    assert code == 2
    assert "day-000.csv: cannot be read" in err
    assert "Expected 11 fields in line 3002, saw 14" in err
    assert [line for line in err.splitlines() if line.startswith("gigabatch")] == [err.splitlines()[-1]]


def test_a_folder_in_place_of_a_file_is_one_line_too(gigabatch, tiny):
    (tiny.raw / "day-000.csv").unlink()
    (tiny.raw / "day-000.csv").mkdir()
    code, _, err = gigabatch("train")
    assert (code, err.count("\n")) == (2, 1)
    assert "Is a directory" in err


def test_a_mistake_of_ours_keeps_its_traceback(gigabatch, monkeypatch):
    monkeypatch.setattr("gigabatch.pipeline.stages.stages.Pipeline.features", lambda self: int("x"))
    with pytest.raises(ValueError, match="invalid literal"):
        gigabatch("train")


def interrupted() -> None:
    raise KeyboardInterrupt


def interrupted_in_a_compiled_loop() -> None:
    try:
        interrupted()
    except KeyboardInterrupt as error:
        raise SystemError("<built-in method> returned a result with an exception set") from error


def interrupted_while_reading() -> None:
    try:
        interrupted()
    finally:
        raise DataError("the reader was closed")


@pytest.mark.parametrize("stop", [interrupted, interrupted_in_a_compiled_loop, interrupted_while_reading])
def test_ctrl_c_stops_without_a_traceback(gigabatch, monkeypatch, stop):
    """Whatever a library makes of it (R9)."""
    monkeypatch.setattr("gigabatch.pipeline.stages.stages.Pipeline.features", lambda _: stop())
    assert gigabatch("train")[::2] == (130, "gigabatch: stopped by SIGINT; run again to go on.\n")


STARTS = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it, and so do its children
sys.argv = ["gigabatch", "--version"]
"""
BY_MODULE = 'runpy.run_module("gigabatch", run_name="__main__")'
BY_SCRIPT = "from gigabatch.__main__ import main\nsys.exit(main())"  # as pip writes it


@pytest.mark.parametrize("start", [BY_MODULE, BY_SCRIPT])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_command_is_imported_stops_it_without_a_traceback(tmp_path, number, start):
    (tmp_path / "typer.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(300)\n")
    code = f"{STARTS}sys.path.insert(0, {str(tmp_path)!r})\n{start}"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    with child:
        try:
            assert child.stdout.readline() == "importing\n"
            child.send_signal(number)
            assert child.stderr.read() == f"gigabatch: stopped by {number.name}; run again to go on.\n"
            assert child.wait(60) == 128 + number
        finally:
            child.kill()


def test_the_installed_command_is_the_one_that_takes_signals_at_once():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"gigabatch": "gigabatch.__main__:main"}


def test_sigterm_stops_as_ctrl_c_does_and_the_handlers_are_put_back(gigabatch, tiny, monkeypatch):
    """Nothing half-written is left for the next run to clean up (R9)."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    monkeypatch.setattr(Schema, "save", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    code, _, error = gigabatch("train")
    assert (code, error.splitlines()[-1]) == (143, "gigabatch: stopped by SIGTERM; run again to go on.")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert (tiny.artifacts("features"), tiny.hidden()) == ([], [])


WRITES_FOREVER = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it, and so do its children
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.stages import handover
from gigabatch.pipeline.store.artifacts import Writing
real = Writing.result

def result(self):
    print("waiting", flush=True)
    return real(self)

Writing.result = result
handover.PackedWriter.write = lambda *_: time.sleep(300)  # as a disk may, and then it looks at no event
sys.argv = ["gigabatch", "-q", "train", "--config", config, "handover=on", "train.epochs=1"]
sys.exit(main())
"""


def test_a_second_signal_ends_the_wait_for_a_thread_that_writes_without_a_traceback(tiny):
    with tiny.start(WRITES_FOREVER) as child:
        try:
            assert child.stdout.readline() == "waiting\n"
            child.send_signal(signal.SIGINT)
            assert child.stderr.readline() == "gigabatch: stopped by SIGINT; run again to go on.\n"
            assert child.poll() is None  # the thread still writes
            child.send_signal(signal.SIGINT)
            assert child.communicate(timeout=60) == ("", "")
        finally:
            child.kill()
    assert child.returncode == 130
    assert [tiny.artifacts(stage) for stage in ("encode", "train")] == [[], []]
    tiny.train("train.epochs=1")
    assert tiny.hidden() == []  # what the thread left is gone


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_outside_of_a_commands_work_is_one_line_at_most(tmp_path, number, asked):
    """Before it, and after it while Python waits for threads; asked: the command was stopped by one and has said so."""
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {str(ROOT)!r})
from gigabatch.pipeline import stopping
from gigabatch.pipeline.commands import app
app.make_app = lambda: signal.raise_signal({int(number)})
if {asked}:
    try:
        with stopping.stoppable():
            signal.raise_signal({int(number)})
    except stopping.Stopped:
        pass
app.main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    line = "" if asked else f"gigabatch: stopped by {number.name}; run again to go on.\n"
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", line)


def runs_of(tiny) -> set[str]:
    found = {path.name for path in tiny.home.iterdir() if path.is_dir() and not path.is_symlink()}
    return {name for name in found if not name.startswith(".")}


def test_gc_removes_the_old_and_keeps_what_pointers_name(gigabatch, tiny):
    made = [tiny.train(f"seed={seed}", "train.epochs=1").path for seed in range(1, 6)]
    for number, path in enumerate(made):  # the first is the oldest
        os.utime(path, (1000 + number, 1000 + number))
    for name, path in (("current", made[0]), ("previous", made[1]), ("latest", made[2])):
        link = tiny.home / name
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
    code, out, _ = gigabatch("gc", "--keep", "1")
    assert code == 0
    assert runs_of(tiny) == {path.name for path in (made[0], made[1], made[2], made[4])}
    assert [len(tiny.artifacts(stage)) for stage in ("features", "encode", "train", "evaluate")] == [1, 1, 1, 1]
    assert f"removed {made[3]}" in out
    assert "9 folder(s), " in out  # one run, four of train, four of evaluate
    assert tiny.train("seed=5", "train.epochs=1").skipped == ("features", "encode", "train", "evaluate")
    gigabatch("gc", "--keep", "0")
    assert runs_of(tiny) == {made[0].name, made[1].name, made[4].name}  # which has become the latest
    assert gigabatch("evaluate")[0] == 0  # and the next run makes again what is gone


def test_gc_leaves_a_training_what_it_goes_on_with(gigabatch, finished):
    """Artifacts that it reuses may be old, and other configurations may have newer ones (R2, P8)."""
    for stage in ("features", "encode"):
        os.utime(finished.artifacts(stage)[0], (1000, 1000))
    child = finished.start(
        "encoded = Pipeline.from_config(config, 'seed=2').features().encode()\n"
        "print('encoded', flush=True); sys.stdin.readline(); print(encoded.train().path.name)"
    )
    assert child.stdout.readline() == "encoded\n"
    assert gigabatch("gc", "--keep", "0")[0] == 0
    assert [len(finished.artifacts(stage)) for stage in ("features", "encode", "train", "evaluate")] == [1, 1, 0, 0]
    out, err = child.communicate("\n", timeout=300)
    assert child.returncode == 0, err
    assert (finished.home / out.strip() / "model" / "bundle.json").exists()


def test_gc_counts_by_configuration(gigabatch, finished):
    """Many trials of one name do not take the artifacts of another away (P8)."""
    assert gigabatch("train")[0] == 0
    for seed in (2, 3):
        assert gigabatch("train", "name=trials", f"seed={seed}", "train.epochs=1")[0] == 0
    assert gigabatch("gc", "--keep", "1")[0] == 0
    assert gigabatch("train")[1].count("skipped, unchanged") == 4
    assert len(finished.artifacts("train")) == 2


@pytest.mark.parametrize("moved", ["runs", "runs/tiny"])
@pytest.mark.parametrize("command", ["runs", "gc", "contract", "train", "nightly"])
def test_runs_on_a_disk_that_is_not_mounted_are_not_taken_for_none(gigabatch, tiny, command, moved):
    """`gigabatch runs` said "no runs", `nightly` "[Errno 17] File exists"."""
    link = tiny.folder / moved
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tiny.folder / "not mounted")
    code, out, err = gigabatch(command)
    assert code == (40 if command == "nightly" else 2)
    assert f"{link} leads to {tiny.folder}/not mounted, which is not there. Mount the disk" in err
    assert out == ""


def test_gc_says_that_the_store_is_not_mounted(gigabatch, tiny):
    (tiny.folder / "artifacts").symlink_to("not mounted")
    code, _, err = gigabatch("gc")
    assert (code, "artifacts leads to" in err) == (2, True)


def test_gc_of_a_negative_number_is_an_error(gigabatch):
    assert gigabatch("gc", "--keep", "-1")[0] == 2


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 3 GiB"),
        OSError(12, "Cannot allocate memory"),
        OSError("mapping failed"),
        RuntimeError("could not create a primitive"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("can't start new thread"),
    ],
)
def test_a_want_of_memory_is_one_line_in_whatever_words_it_comes(error, tiny, capsys, monkeypatch):
    """R11: tracebacks under ulimit -v."""

    def fails(*_):
        raise error

    monkeypatch.setattr("gigabatch.pipeline.stages.stages.Pipeline.features", fails)
    assert main(["features", "--config", str(tiny.config)]) == 2
    said = capsys.readouterr().err
    assert f"gigabatch: out of memory ({type(error).__name__}: {error}). gigabatch plan tells" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "error",  # as libcudf 26.10 and 21.06 have them
    [
        OverflowError("CUDF failure at: concatenate.cu:552: Size of output exceeds the column size limit"),
        RuntimeError("cuDF failure at: factories.cuh:86: total size of strings is too large for a cudf column"),
        OverflowError("Total number of concatenated rows exceeds size_type range"),
    ],
)
def test_a_column_beyond_what_cudf_counts_is_one_line(error, tiny, capsys, monkeypatch):
    def fails(*_):
        raise error

    monkeypatch.setattr("gigabatch.pipeline.stages.stages.Pipeline.features", fails)
    assert main(["features", "--config", str(tiny.config)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"gigabatch: a column is too large for cuDF ({type(error).__name__}: {error}).")
    assert "lower rows_per_part" in said
    assert said.count("\n") == 1


def test_a_network_or_disk_that_fails_is_one_line(tiny, capsys, monkeypatch):
    def fails(*_):
        raise_of_machine(ConnectionRefusedError(111, "Connection refused"), "https://shop/rows.csv")

    monkeypatch.setattr("gigabatch.pipeline.stages.stages.Pipeline.features", fails)
    assert main(["features", "--config", str(tiny.config)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gigabatch: [Errno 111] input https://shop/rows.csv: Connection refused. The file may be")
    assert said.count("\n") == 1


def test_an_error_of_the_machine_says_once_how_to_mend_it():
    """Arrow names the file in errors of its own, which were given on without a word of advice."""
    arrow = OSError(errno.EIO, "Failed to open local file 'a.parquet'. Detail: [errno 5] Input/output error")
    with pytest.raises(OSError, match=r"input a\.parquet: Failed to open .* mend the disk") as raised:
        raise_of_machine(arrow, "a.parquet")
    with pytest.raises(OSError, match="mend the disk") as again:
        raise_of_machine(raised.value, "a.parquet")
    assert again.value is raised.value


def test_a_lack_of_memory_is_no_matter_of_disks():
    with pytest.raises(OSError, match=r"free memory or give the process more and run again") as raised:
        raise_of_machine(OSError(errno.ENOMEM, "Cannot allocate memory"), "a.csv")
    assert "disk" not in str(raised.value)


def test_another_runtime_error_keeps_its_traceback(tiny, monkeypatch):
    monkeypatch.setattr("gigabatch.pipeline.stages.stages.Pipeline.features", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["features", "--config", str(tiny.config)])


def test_windows_is_told_so_before_any_work(monkeypatch, capsys):
    """P21."""
    monkeypatch.setattr("gigabatch.pipeline.commands.app.sys.platform", "win32")
    assert main(["train"]) == 2
    assert capsys.readouterr().err == (
        "gigabatch: Windows has no locks of the kind that runs need (flock). Use Linux, or WSL.\n"
    )


def test_a_run_needs_nothing_that_linux_alone_has(tiny):
    """P21: without os.sched_getaffinity, posix_fadvise and /proc, as on macOS, every run failed."""
    done = tiny.start(
        "del os.sched_getaffinity, os.sched_setaffinity, os.posix_fadvise\n"
        "import errno\n"
        "del errno.EUCLEAN, errno.EREMOTEIO\n"
        "import pathlib\n"
        "exists = pathlib.Path.exists\n"
        "pathlib.Path.exists = lambda path, **more: not str(path).startswith('/proc') and exists(path, **more)\n"
        "from gigabatch.pipeline.commands.app import main\n"
        f"code = main(['train', '--config', {str(tiny.config)!r}])\n"
        "from gigabatch.pipeline.machine import this_machine\n"
        "assert this_machine(pathlib.Path('.'), 'cpu').cores == os.cpu_count()\n"
        "sys.exit(code)",
        fresh=True,
    )
    _, err = done.communicate(timeout=500)
    assert done.returncode == 0, err
