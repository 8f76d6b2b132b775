"""Commands whose output nobody reads any more: they do their work, and end with their own exit code."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.commands.outputs import _Output
from gigabatch.pipeline.nightly.codes import FAILED, PROMOTED
from tests.pipeline.clicks import ROOT, write_clicks
from tests.pipeline.tiny_recipe import write_day
from tests.processes import python

STARTS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from gigabatch.features.recipes import RECIPES
RECIPES["tiny"] = "tests.pipeline.tiny_recipe:TinyRecipe"
from gigabatch.pipeline.commands import app
"""
# A suite that a shell runs in the background ignores SIGINT, and so would its children.
TAKES_SIGNALS = "import os, signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"


def ends(code: str, *arguments: str, unread=("stdout", "stderr"), cwd: Path | None = None, **environment: str):
    """Exit code, standard output and error of a command in a process of its own, where nobody reads `unread`."""
    reader, writer = os.pipe()
    os.close(reader)
    outputs = {name: writer if name in unread else subprocess.PIPE for name in ("stdout", "stderr")}
    code, options = f"{STARTS}{code}\nsys.exit(app.main())", {"cwd": cwd, "text": True, **outputs}
    try:
        if environment:  # which an interpreter reads when it starts
            program, found = [sys.executable, "-c", code, *arguments], os.environ | environment
            done = subprocess.run(program, env=found, check=False, **options)
        else:
            done = python(code, *arguments, **options)
    finally:
        os.close(writer)
    return done.returncode, done.stdout or "", done.stderr or ""


def told_by(tiny) -> tuple[list[str], Path]:
    """Overrides by which a night appends its exit code and its decision to a file, and that file."""
    out = tiny.folder / "told"
    program = (
        "import json, sys; line = json.load(sys.stdin); "
        "open(sys.argv[1], 'a').write(json.dumps([line['exit_code'], line['decision'], bool(line['at'])]) + '\\n')"
    )
    return [f"nightly.notify.command={json.dumps([sys.executable, '-c', program, str(out)])}"], out


def nights(home: Path) -> list[list]:
    lines = map(json.loads, (home / "nightly.jsonl").read_text().splitlines())
    return [[line["exit_code"], line["decision"], True] for line in lines if line["action"] == "nightly"]


def told(out: Path) -> list[list]:
    return list(map(json.loads, out.read_text().splitlines())) if out.exists() else []


@pytest.mark.parametrize(("number", "unbuffered"), [(signal.SIGTERM, "1"), (signal.SIGINT, "")])
def test_a_night_that_is_stopped_early_is_on_record_and_told_though_nobody_reads(tiny, number, unbuffered):
    """It ended with 1 or -6, wrote no line, and told nobody."""
    overrides, out = told_by(tiny)
    code = (
        f"{TAKES_SIGNALS}from gigabatch.pipeline.nightly import nightly\n"
        f"def stop(*_):\n    os.kill(os.getpid(), {int(number)})\n    time.sleep(60)\n"
        "nightly.quiet_night = stop"
    )
    given = ["nightly", "--config", str(tiny.config), *overrides]
    assert ends(code, *given, PYTHONUNBUFFERED=unbuffered)[0] == 128 + number
    line = [128 + number, f"Stopped by {number.name}; run again to go on.", True]
    assert nights(tiny.home) == [line]
    assert told(out) == [line]


def test_a_night_that_breaks_down_in_its_first_seconds_is_on_record_and_told(tiny, monkeypatch, capsys):
    """It ended with 1 and wrote no line: the log of nights ended with the one before."""

    def broken(*_):
        raise RuntimeError("a module\nis torn")

    overrides, out = told_by(tiny)
    given = ["nightly", "--config", str(tiny.config), *overrides]
    monkeypatch.setattr("gigabatch.pipeline.nightly.nightly.quiet_night", broken)
    assert main(given) == FAILED
    line = [FAILED, "Failed: RuntimeError: a module is torn", True]
    assert nights(tiny.home) == [line]
    assert told(out) == [line]
    assert "in broken" in capsys.readouterr().err
    monkeypatch.setattr("gigabatch.pipeline.nightly.plan.rehearse", broken)
    with pytest.raises(RuntimeError):
        main([*given, "--dry-run"])
    assert nights(tiny.home) == [line]


def test_a_promoted_night_ends_with_0_though_nobody_reads(finished):
    """It ended with 1, which calls a person, where its line said 0."""
    write_day(finished.raw, 1, 600)
    given = ["nightly", "--config", str(finished.config), "nightly.tolerance=1"]
    assert ends("", *given)[0] == PROMOTED
    assert [code for code, *_ in nights(finished.home)] == [PROMOTED]


@pytest.mark.parametrize("wrong", ["train.epochs=0", "trian.epochs=1"])
def test_a_configuration_that_cannot_be_used_is_told_as_far_as_it_tells_whom(tiny, wrong):
    overrides, out = told_by(tiny)
    given = ["nightly", "--config", str(tiny.config), *overrides, wrong]
    assert ends("", *given)[0] == FAILED
    ((code, decision, _),) = told(out)
    assert (code, decision[:8]) == (FAILED, "Failed: ")
    assert nights(tiny.home) == told(out)
    for others in (["nightly.notify.on=[stopped]"], ["nightly.notify.on=often"], ["--dry-run"]):
        assert ends("", *given, *others)[0] == FAILED
    assert len(told(out)) == 1
    assert ends("", *given, "name=..")[0] == FAILED  # whose record lies nowhere
    assert len(told(out)) == 2


def test_work_goes_on_and_an_answer_ends_quietly_though_nobody_reads(tmp_path):
    """`gigabatch runs | head -1`, `gigabatch train | less`."""
    write_clicks(tmp_path)
    given = "--config", "clicks.yaml"
    assert ends("", "train", *given, cwd=tmp_path) == (0, "", "")
    assert ends("", "runs", *given, unread=["stdout"], cwd=tmp_path) == (0, "", "")
    assert ends("", "--help", unread=["stdout"]) == (0, "", "")
    assert ends("", "train", "--config", "nowhere.yaml", unread=["stderr"], cwd=tmp_path) == (2, "", "")
    code, out, error = ends("", "runs", *given, unread=[], cwd=tmp_path)
    assert (code, out.count("current"), error) == (0, 1, "")


def test_what_a_command_starts_outlives_the_reader_too(tmp_path):
    """A child that writes to a pipe which nobody reads is killed by SIGPIPE."""
    code = (
        "import subprocess\n"
        "def work():\n"
        "    print('lost', flush=True)\n"
        "    child = subprocess.run(['sh', '-c', 'echo lost; exit 7'])\n"
        "    sys.exit(child.returncode)\n"
        "app.make_app = work"
    )
    assert ends(code, unread=["stdout"]) == (7, "", "")


def test_an_answer_that_finds_no_room_is_no_answer():
    program = [sys.executable, "-c", f"{STARTS}sys.exit(app.main())", "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode != 0
    assert b"No space left on device" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_a_commands_work_has_its_exit_code_though_nobody_reads(number):
    code = f"{TAKES_SIGNALS}app.make_app = lambda: signal.raise_signal({int(number)})"
    assert ends(code)[0] == 128 + number


def test_a_disk_that_fails_is_no_terminal_that_has_hung_up():
    controller, terminal = os.openpty()
    of_terminal, of_file = _Output(terminal), _Output(terminal)
    of_file.was_terminal = False  # a file whose disk fails gives the same EIO
    os.close(controller)
    with pytest.raises(OSError, match="Input/output error"):
        of_file.write(b"scores")
    assert of_terminal.write(b"scores") == 6
    os.close(terminal)
