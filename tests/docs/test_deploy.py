"""The examples of docs/deploy: each gives a command that there is, and takes the exit codes for what they are."""

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import typer
from ruamel.yaml import YAML

from gigabatch.pipeline.commands.app import main, make_app
from gigabatch.pipeline.nightly.nightly import DRIFTED, FAILED, KEPT, PROMOTED, REFUSED

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "deploy"
PAGE = (ROOT / "docs" / "nightly.md").read_text()
FINE, STOPPED, PERSON = (PROMOTED, KEPT), (130, 143), (REFUSED, DRIFTED, FAILED)
KILLED = 137


def text(name: str) -> str:
    return (DEPLOY / name).read_text()


def service() -> dict[str, list[str]]:
    """The settings of gigabatch.service, as often as they are given."""
    found: dict[str, list[str]] = {}
    for line in text("gigabatch.service").splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def job() -> dict:
    return YAML(typ="safe").load(text("cronjob.yaml"))["spec"]


def container() -> dict:
    (found,) = job()["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return found


def stub(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def dag(monkeypatch):
    """The DAG's module, with the few names of Airflow that it takes."""

    def airflow(name: str, **names: object) -> None:
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)

    made = {}

    def task(function, **settings):
        made.update(settings, function=function)
        return lambda: made.setdefault("called", True)

    def as_dag(**settings):
        made.update(settings)
        return lambda function: function

    errors = type("AirflowException", (Exception,), {})
    airflow("airflow")
    airflow("airflow.sdk", dag=as_dag, task=task)
    airflow(
        "airflow.sdk.exceptions", AirflowException=errors, AirflowFailException=type("FailException", (errors,), {})
    )
    spec = importlib.util.spec_from_file_location("airflow_dag", DEPLOY / "airflow_dag.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.made = made
    return module


def commands(dag) -> dict[str, list[str]]:
    """What each example starts, from `gigabatch` on."""
    (cron,) = re.findall(r"^(\S*gigabatch nightly .*?) >", text("cron.sh"), re.MULTILINE)
    (night,) = re.findall(r'^(gigabatch nightly) "\$@" &$', text("night.sh"), re.MULTILINE)
    (script,) = container()["command"]
    assert script == "/opt/gigabatch/docs/deploy/night.sh"
    return {
        "systemd": shlex.split(service()["ExecStart"][0]),
        "cron": shlex.split(cron),
        "kubernetes": [*shlex.split(night), *container()["args"]],
        "airflow": dag.COMMAND,
    }


def test_each_example_starts_a_command_that_there_is(dag):
    nightly = typer.main.get_command(make_app()).commands["nightly"]
    found = commands(dag)
    assert len(found) == 4
    for name, (program, command, *arguments) in found.items():
        assert Path(program).name == "gigabatch", name
        assert command == "nightly", name
        context = nightly.make_context("nightly", list(arguments))
        assert str(context.params["config"]) == arguments[1], name
        assert arguments[0] == "--config", name


def test_systemd_takes_kept_and_stopped_for_success_and_all_else_for_a_failure():
    found = service()
    assert {int(code) for code in found["SuccessExitStatus"][0].split()} == {KEPT, *STOPPED}
    assert found["OnFailure"] == ["gigabatch-failed.service"]
    assert (DEPLOY / found["OnFailure"][0]).exists()
    assert "gigabatch.service" in text("gigabatch-failed.service")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_systemd_reads_the_units(tmp_path):
    for unit in ("gigabatch.service", "gigabatch.timer", "gigabatch-failed.service"):
        (tmp_path / unit).write_text(text(unit).replace("/srv/gigabatch/.venv/bin/gigabatch", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    (calendar,) = re.findall(r"^OnCalendar=(.*)$", text("gigabatch.timer"), re.MULTILINE)
    assert subprocess.run(["systemd-analyze", "calendar", calendar], capture_output=True).returncode == 0


@pytest.mark.parametrize("code", [*FINE, *STOPPED, *PERSON, KILLED])
def test_cron_mails_where_a_person_is_needed_and_keeps_the_log(tmp_path, code):
    stub(tmp_path / ".venv/bin/gigabatch", f'echo decided "$@"; echo warned >&2; exit {code}')
    settings = os.environ | {"GIGABATCH_HOME": str(tmp_path), "GIGABATCH_LOG": str(tmp_path / "log")}
    done = subprocess.run([DEPLOY / "cron.sh", "conf/a.yaml"], env=settings, capture_output=True, text=True)
    said = "decided nightly --config conf/a.yaml\nwarned\n"
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout == (
        "" if code in (*FINE, *STOPPED) else f"gigabatch nightly --config conf/a.yaml: exit code {code}\n{said}"
    )
    assert (tmp_path / "log").read_text() == said


def test_cron_without_the_folder_fails():
    settings = os.environ | {"GIGABATCH_HOME": "/no/such/folder"}
    done = subprocess.run([DEPLOY / "cron.sh", "conf/a.yaml"], env=settings, capture_output=True)
    assert done.returncode == FAILED


@pytest.mark.parametrize("code", [*FINE, *STOPPED, *PERSON, KILLED])
def test_a_container_ends_in_0_for_promoted_and_kept_alone(tmp_path, code):
    stub(tmp_path / "gigabatch", f'test "$*" = "nightly --config a.yaml" || exit 1\nexit {code}')
    settings = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([DEPLOY / "night.sh", "--config", "a.yaml"], env=settings)
    assert done.returncode == (0 if code in FINE else code)


def test_a_container_that_is_stopped_lets_the_night_end_in_its_own_way(tmp_path):
    told = tmp_path / "told"
    stub(
        tmp_path / "gigabatch",
        f"trap 'sleep 0.3; echo line > {told}; exit 143' TERM\ntouch {told}\nwhile :; do sleep 0.05; done",
    )
    settings = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.Popen([DEPLOY / "night.sh"], env=settings)
    wait_for(told)
    process.terminate()
    assert process.wait(timeout=20) == 143
    assert told.read_text() == "line\n"


def wait_for(path: Path) -> None:
    until = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_kubernetes_tries_again_what_was_stopped_and_leaves_the_rest_to_a_person():
    spec = job()
    assert (spec["concurrencyPolicy"], spec["jobTemplate"]["spec"]["template"]["spec"]["restartPolicy"]) == (
        "Forbid",
        "Never",
    )
    (rule,) = [rule for rule in spec["jobTemplate"]["spec"]["podFailurePolicy"]["rules"] if rule["action"] == "FailJob"]
    assert rule["onExitCodes"]["containerName"] == container()["name"]
    assert (rule["onExitCodes"]["operator"], set(rule["onExitCodes"]["values"])) == ("In", {2, *PERSON})
    assert spec["jobTemplate"]["spec"]["backoffLimit"] > 0


def instructions(name: str) -> list[tuple[str, str]]:
    """(instruction, its text) of a Dockerfile, continued lines joined."""
    joined = (ROOT / name).read_text().replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.gpu"])
def test_an_image_compiles_as_who_runs_and_where_they_look(name):
    found = instructions(name)
    assert {word for word, _ in found} == {"FROM", "USER", "RUN", "WORKDIR", "COPY", "ENV", "ENTRYPOINT", "CMD"}
    compiles = found.index(("RUN", "gigabatch warm"))
    assert [words for word, words in found[:compiles] if word == "USER"][-1] in ("10001", "rapids")  # not root
    (places,) = (words for word, words in found[:compiles] if word == "ENV")
    assert "NUMBA_CACHE_DIR=/var/cache/gigabatch" in places
    assert found[compiles + 1 :] == [("ENTRYPOINT", '["gigabatch"]'), ("CMD", '["--help"]')]
    installed = [words for word, words in found if word == "RUN" and "pip install" in words]
    assert all("--no-cache-dir" in words and "[serve,export,remote,track]" in words for words in installed)


def test_kubernetes_runs_as_the_user_of_the_image():
    (created,) = (re.search(r"--uid (\d+)", words) for word, words in instructions("Dockerfile") if "useradd" in words)
    uid = int(created[1])
    assert ("USER", str(uid)) in instructions("Dockerfile")
    assert job()["jobTemplate"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == uid


def test_airflow_gets_a_state_for_every_exit_code(dag, tmp_path):
    errors = sys.modules["airflow.sdk.exceptions"]
    assert dag.made["called"]
    assert dag.made["function"] is dag.run_night
    assert (dag.made["max_active_runs"], dag.made["catchup"]) == (1, False)

    def run(code):
        return dag.run_night(["sh", "-c", f"exit {code}"], tmp_path)

    assert (run(PROMOTED), run(KEPT)) == ("promoted", "kept")
    for code in (REFUSED, DRIFTED):
        with pytest.raises(errors.AirflowFailException, match=f"exit code {code}: .* refused; a person is needed"):
            run(code)
    for code in (FAILED, *STOPPED, KILLED, 2):
        with pytest.raises(errors.AirflowException, match=f"exit code {code}: failed or stopped") as caught:
            run(code)
        assert type(caught.value) is errors.AirflowException  # of which there is another try


def test_airflow_stops_the_night_with_the_task(dag, tmp_path):
    told = tmp_path / "told"

    def stop(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    body = f"trap 'echo line > {told}; exit 143' TERM\nwhile :; do sleep 0.05; done"
    try:
        with pytest.raises(TimeoutError):
            dag.run_night(["sh", "-c", body], tmp_path)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert told.read_text() == "line\n"


def test_help_and_the_page_name_every_exit_code(capsys):
    assert main(["nightly", "--help"]) == 0
    help_text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    names = {PROMOTED: "promoted", KEPT: "kept", REFUSED: "data refused", DRIFTED: "drift refused", FAILED: "failed"}
    for code, name in names.items():
        assert f"{code} {name}" in help_text
    assert "130 and 143 stopped by a signal" in help_text
    assert "--dry-run" in help_text
    assert "--json" in help_text
    told = re.findall(r"^\| ([\d, ]+) \|", PAGE, re.MULTILINE)
    assert [int(code) for row in told for code in row.split(",")] == [*names, *STOPPED]


def test_the_page_names_every_file_of_the_folder():
    for path in DEPLOY.iterdir():
        assert f"deploy/{path.name}" in PAGE, path.name


def test_a_container_that_is_stopped_while_the_night_starts_lets_it_end_too(tmp_path):
    told = tmp_path / "told"
    stub(
        tmp_path / "gigabatch",
        f"trap 'echo line > {told}; exit 143' TERM\ntouch {told}\nwhile :; do sleep 0.05; done",
    )
    started = 'gigabatch nightly "$@" &\n'
    assert started in text("night.sh")
    slow = tmp_path / "night.sh"
    slow.write_text(text("night.sh").replace(started, f"{started}sleep 2\n"))  # between the start and the next line
    settings = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.Popen(["/bin/sh", slow], env=settings)
    wait_for(told)
    process.terminate()
    assert process.wait(timeout=20) == 143
    assert told.read_text() == "line\n"
