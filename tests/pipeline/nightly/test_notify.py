"""Who is told of a night, and that telling changes nothing."""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gigabatch.pipeline.config.config import ConfigError, NotifySettings
from gigabatch.pipeline.nightly import notify as room
from gigabatch.pipeline.nightly.nightly import run_nightly
from gigabatch.pipeline.nightly.notify import notify, require_notice
from tests.pipeline.tiny_recipe import write_day

LINE = {"exit_code": 10, "decision": "Kept: „x“\n=1+1", "run": None, "gain": float("nan")}
WRITE = "import os, sys; open(sys.argv[1], 'w').write(sys.stdin.read() + '|' + os.environ['GIGABATCH_DECISION'])"


def command(*arguments) -> NotifySettings:
    return NotifySettings(command=(sys.executable, "-c", *map(str, arguments)), timeout_s=20)


@pytest.fixture
def server():
    """Answers with each of `codes` in turn, and keeps what it is sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.server.found.append((self.path, self.headers["Content-Type"], json.loads(body)))
            self.send_response(self.server.codes.pop(0))
            self.end_headers()

        def log_message(self, *_):
            pass

    made = HTTPServer(("127.0.0.1", 0), Handler)
    made.found, made.codes = [], []
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_a_command_gets_the_line_as_json_and_its_environment(tmp_path):
    out = tmp_path / "told"
    notify(command(WRITE, out), LINE)
    content, decision = out.read_text().split("|")
    assert json.loads(content) == LINE | {"gain": None}
    assert decision == LINE["decision"]


@pytest.mark.parametrize(
    ("code", "on", "is_told"),
    [(0, "promoted", True), (10, "kept", True), (20, "refused", True), (30, "refused", True), (40, "failed", True),
     (143, "stopped", True), (0, "failed", False), (143, "failed", False)],
)  # fmt: skip
def test_only_the_nights_that_are_named_are_told(tmp_path, code, on, is_told):
    out = tmp_path / "told"
    notify(command(WRITE, out).model_copy(update={"on": (on,)}), LINE | {"exit_code": code})
    assert out.exists() == is_told


def test_a_command_that_fails_hangs_or_is_not_there_is_logged_and_ended(caplog, tmp_path):
    notify(command("import sys; sys.exit('no such channel')"), LINE)
    assert "ended with 1: no such channel" in caplog.text
    notify(NotifySettings(command=("/nowhere/told",)), LINE)
    assert "/nowhere/told could not be started" in caplog.text
    started = time.monotonic()
    # A child that holds the pipe open outlives its parent.
    hang = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    notify(command(hang).model_copy(update={"timeout_s": 1.0}), LINE)
    assert "was ended after 1 s" in caplog.text
    assert time.monotonic() - started < 30


def test_a_webhook_gets_the_line_with_its_text_and_is_called_again_where_that_may_help(server, caplog, monkeypatch):
    monkeypatch.setattr(room, "PAUSE_S", 0.0)
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.server_port}/secret")
    settings = NotifySettings(webhook="env:HOOK", timeout_s=5)
    server.codes += [200]
    notify(settings, LINE)
    assert server.found == [("/secret", "application/json", {"text": LINE["decision"], **LINE, "gain": None})]
    server.codes += [503, 429, 200]
    notify(settings, LINE)
    assert (len(server.found), caplog.text) == (4, "")
    server.codes += [404]
    notify(settings, LINE)
    assert len(server.found) == 5
    server.codes += [500, 500, 500]
    notify(settings, LINE)
    assert len(server.found) == 8
    monkeypatch.setenv("HOOK", "http://127.0.0.1:9/secret")
    notify(settings.model_copy(update={"retries": 0}), LINE)
    assert [message.split(": ")[1] for message in caplog.messages[:2]] == ["answered 404", "answered 500"]
    assert len(caplog.messages) == 3
    assert "secret" not in caplog.text


@pytest.mark.parametrize("value", ["env:GIGABATCH_NOWHERE", "ftp://there/x", "there/secret", "file:///etc/passwd"])
def test_a_webhook_that_cannot_be_called_is_refused_before_any_work(tiny, value):
    with pytest.raises(ConfigError, match=r"nightly\.notify\.webhook: ") as refused:
        require_notice(NotifySettings(webhook=value))
    assert "secret" not in str(refused.value)
    assert run_nightly(tiny.config, [f"nightly.notify.webhook={value}"]) == 40
    assert tiny.artifacts("features") == []


def test_a_line_whose_webhook_has_no_address_is_one_error_and_the_command_is_still_told(caplog, tmp_path):
    command = [sys.executable, "-c", f"open({str(tmp_path / 'told')!r}, 'w').write('told')"]
    settings = NotifySettings(command=command, webhook="env:GIGABATCH_NOWHERE", timeout_s=5)

    notify(settings, {"exit_code": 40, "decision": "failed", "run": None})

    assert (tmp_path / "told").read_text() == "told"
    assert [record.getMessage() for record in caplog.records] == [
        "nobody was called: nightly.notify.webhook: the environment variable GIGABATCH_NOWHERE is not set."
    ]


def test_a_night_tells_its_line_and_one_that_cannot_stands(finished, tmp_path, caplog):
    out = tmp_path / "told.json"
    write_day(finished.raw, 1, 600)
    told = {
        "nightly.notify.command": [
            sys.executable,
            "-c",
            "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())",
            str(out),
        ]
    }
    assert run_nightly(finished.config, [told, "nightly.tolerance=1"]) == 0
    line = json.loads((finished.home / "nightly.jsonl").read_text().splitlines()[-1])
    line.pop("action")
    assert json.loads(out.read_text()) == line
    assert run_nightly(finished.config, ["nightly.notify.command=[/nowhere/told]", "nightly.tolerance=1"]) == 10
    assert "/nowhere/told could not be started" in caplog.text
