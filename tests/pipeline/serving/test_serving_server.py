"""The server as a process: loopback, tokens, limits on the wire, slow clients, shutdown, the command line."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.errors import ServingError
from gigabatch.pipeline.serving.http import server as server_module
from gigabatch.pipeline.serving.http.server import listen, with_answers
from gigabatch.pipeline.serving.metrics import Metrics
from gigabatch.pipeline.serving.start import is_loopback, read_token, require_safe, require_start
from gigabatch.pipeline.store.garbage import collect_runs
from tests.pipeline.clicks import ROOT, write_clicks
from tests.pipeline.serving.server_process import Server

JSON = {"content-type": "application/json"}
TOKEN = "a-long-enough-token"
HEAD = b"POST /rank HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 50\r\n"
RANK = json.dumps({"user": "u1", "items": [1001, 1002]})


def ask(server, method="POST", path="/rank", body=RANK, headers=JSON):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    found = response.status, response.read(), dict(response.getheaders())
    connection.close()
    return found


def raw(server, data: bytes) -> bytes:
    """What comes back for these bytes until the server closes, or nothing came for a minute."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(data)
        found = b""
        try:
            while piece := connection.recv(65536):
                found += piece
        except TimeoutError:
            pass
        return found


def wait_until_read(server) -> None:
    """Until the server has read what was sent on connections before: it takes them, and what they bring, in turn."""
    assert ask(server, "GET", "/health", None)[0] == 200


def wait_until_refused(server) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", server.port), timeout=60).close()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:  # it was in line when the server stopped to listen
            pass
        time.sleep(0.02)
    raise AssertionError("connections are still taken")


def test_a_run_that_is_served_by_its_id_stays(tmp_path, monkeypatch):
    """No link names it, so `gigabatch gc` took it away from under the service, which could not be started again."""
    monkeypatch.chdir(tmp_path)
    write_clicks(tmp_path)
    for name in ("served", "other"):
        (tmp_path / "runs" / "clicks" / name / "model").mkdir(parents=True)
        (tmp_path / "runs" / "clicks" / name / "manifest.json").write_text("{}")
    removed = []
    monkeypatch.setattr(server_module, "serve", lambda *_: removed.extend(collect_runs(tmp_path / "runs", 0)[0]) or 0)
    assert server_module.run_server("clicks.yaml", run="served") == 0
    assert [path.name for path in removed] == ["other"]
    assert [path.name for path in collect_runs(tmp_path / "runs", 0)[0]] == ["served"]


def test_a_body_without_a_length_is_stopped_at_the_limit(server):
    """4 KiB are taken here; the pieces go on for 4 MiB."""
    head = b"POST /rank HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    piece = b"1000\r\n" + b" " * 4096 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head)
        answer = b""
        try:
            for _ in range(1024):
                connection.sendall(piece)
        except OSError:  # the server has closed, after its answer
            pass
        try:
            answer = connection.recv(65536)
        except ConnectionResetError:  # unread pieces reset the connection; the log of the server must stay clean
            answer = b" 413 "
    assert b" 413 " in answer
    assert ask(server)[0] == 200


def test_a_client_that_stops_in_its_body_is_told_so(server):
    started = time.monotonic()
    answer = raw(server, HEAD + b"\r\n{")
    assert b" 408 " in answer
    assert time.monotonic() - started < 50  # the connection was closed; otherwise `raw` waits for a minute


@pytest.mark.parametrize(
    "data", [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"POST /rank HTTP/1.1\r\ncontent-length: -1\r\n\r\n"]
)
def test_what_is_no_http_is_400_and_the_server_goes_on(data, server):
    head, _, body = raw(server, data).partition(b"\r\n\r\n")
    assert b" 400 " in head
    assert b"content-type: application/json" in head.lower()
    assert json.loads(body)["error"] == "bad_request"  # R13: it was text/plain
    assert ask(server)[0] == 200


def test_clients_that_leave_early_do_no_harm(server):
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(HEAD + b"\r\n{")
    assert ask(server)[0] == 200
    assert "Traceback" not in server.log.read_text()


def test_it_listens_at_this_machine_alone(server):
    with open("/proc/net/tcp") as file:
        listening = [line.split()[1] for line in file if line.split()[3] == "0A"]
    assert [address for address in listening if int(address.split(":")[1], 16) == server.port] == [
        f"0100007F:{server.port:04X}"
    ]


def test_sigterm_ends_it_after_the_running_requests(run, tmp_path):
    """A request whose body is on its way is finished; new connections are refused; the exit code is 0."""
    server = Server([run], tmp_path / "log", timeout_seconds=120.0, drain_seconds=120.0)
    head = f"POST /rank HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {len(RANK)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode() + RANK[:5].encode())
        wait_until_read(server)
        server.process.send_signal(signal.SIGTERM)
        wait_until_refused(server)
        connection.sendall(RANK[5:].encode())
        assert b" 200 " in connection.recv(65536)
    assert server.process.wait(timeout=60) == 0
    assert server.log.read_text().endswith("stopped\n")


async def answering(protocol, linger, after):
    """What `after`, a coroutine of the reader and the writer, gives on a connection that had an answer before the
    server began to end; and the server has ended when this does."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    made = with_answers(protocol, Metrics(), linger)
    server = uvicorn.Server(uvicorn.Config(app, http=made, lifespan="off", log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve([listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200 ")
        server.should_exit = True
        while server.servers[0].is_serving():
            await asyncio.sleep(0.01)
        found = await after(reader, writer)
        await asyncio.wait_for(task, 60)
        writer.close()
    return found


@pytest.mark.parametrize("protocol", [HttpToolsProtocol, H11Protocol])
def test_a_request_that_was_on_its_way_when_the_server_began_to_end_is_answered(protocol):
    """The idle connection was closed at once, which reset it when the request came."""

    async def ask_again(reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        return await reader.read()  # until the server closes

    found = asyncio.run(answering(protocol, 3600.0, ask_again))
    assert found.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close\r\n" in found.lower()
    assert found.endswith(b"ok")


@pytest.mark.parametrize("protocol", [HttpToolsProtocol, H11Protocol])
def test_a_connection_on_which_nothing_comes_is_closed(protocol):
    assert asyncio.run(answering(protocol, 0.01, lambda reader, _: reader.read())) == b""


def test_a_guarded_server_refuses_what_it_has_no_room_for_and_ctrl_c_ends_it_at_once(run, tmp_path):
    """Overload is answered by 200 or 503, and a client that never finishes does not hold the end up."""
    server = Server(
        [run], tmp_path / "log", {"GIGABATCH_TOKEN": TOKEN}, host="0.0.0.0", timeout_seconds=300.0, drain_seconds=0.5,
        max_in_flight=4, queue=2,
    )  # fmt: skip
    headers = JSON | {"authorization": f"Bearer {TOKEN}"}
    assert ask(server)[0] == 401
    status, content, _ = ask(server, headers=headers)
    assert status == 200
    answers = []

    def flood():
        answers.extend(ask(server, headers=headers) for _ in range(20))

    threads = [threading.Thread(target=flood) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 12 * 20
    assert {found for status, found, _ in answers if status == 200} == {content}
    assert {status for status, _, _ in answers} <= {200, 503}
    assert all(more["retry-after"] == "1" for status, _, more in answers if status == 503)
    assert sum(status == 200 for status, _, _ in answers) > 20
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(HEAD + b"authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n{")
        wait_until_read(server)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=100) == 0  # and not after the 300 s that a body may take
    assert TOKEN not in server.log.read_text()


def test_the_token_comes_from_a_file_or_the_environment_not_both(tmp_path, monkeypatch):
    monkeypatch.delenv("GIGABATCH_TOKEN", raising=False)
    assert read_token(ServeSettings()) is None
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    settings = ServeSettings(token_file=file)
    assert read_token(settings) == "0123456789abcdef"
    for content in ("", "short", "has a space in the middle", "0123456789abcdeé"):
        file.write_text(content)
        with pytest.raises(ServingError, match="token"):
            read_token(settings)
    with pytest.raises(ServingError, match="cannot be read"):
        read_token(ServeSettings(token_file=tmp_path / "none"))
    monkeypatch.setenv("GIGABATCH_TOKEN", "0123456789abcdef")
    assert read_token(ServeSettings()) == "0123456789abcdef"
    with pytest.raises(ServingError, match="both"):
        read_token(settings)


def test_beyond_this_machine_a_token_is_needed_or_insecure_said():
    require_safe(ServeSettings(), None, insecure=False)
    require_safe(ServeSettings(host="0.0.0.0"), "0123456789abcdef", insecure=False)
    require_safe(ServeSettings(host="0.0.0.0"), None, insecure=True)
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org"):
        with pytest.raises(ServingError, match="--insecure"):
            require_safe(ServeSettings(host=host), None, insecure=False)
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "localhost.example")] == [
        True, True, True, True, False
    ]  # fmt: skip


def test_a_port_that_is_taken_is_an_error():
    with listen(ServeSettings(port=0)) as taken, pytest.raises(ServingError, match="cannot listen"):
        listen(ServeSettings(port=taken.getsockname()[1]))


NEEDS_IPV6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="needs IPv6")


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=NEEDS_IPV6)])
def test_a_port_that_is_taken_is_found_before_a_bundle_is_loaded(trained, capsys, monkeypatch, host):
    """All workers had loaded it by then."""
    monkeypatch.setattr("gigabatch.pipeline.commands.serving.whole_config", lambda *_: pytest.fail("too late"))
    with listen(ServeSettings(host=host, port=0)) as taken:
        port = taken.getsockname()[1]
        given = ["serve", "--config", str(trained[0].config), "--workers", "2", "--host", host, "--port", str(port)]
        assert main(given) == 2
        assert capsys.readouterr().err.startswith(f"gigabatch: serve: cannot listen at {host}:{port} (")
    monkeypatch.undo()
    require_start(ServeSettings(host=host, port=port), [trained[1].path], insecure=False)
    with listen(ServeSettings(host=host, port=port)) as free:  # what has looked has let it go
        assert free.getsockname()[1] == port


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="max_in_flight"):
        ServeSettings(max_in_flight=3, queue=4)
    with pytest.raises(ValueError, match="extra"):
        ServeSettings(prot=8000)


def test_the_command_serves_a_run_by_its_configuration(trained):
    """Through the command line, with flags over the settings; the run's `latest` is found by its name."""
    tiny, run = trained
    more = ["serve.max_body_bytes=1024", "serve.port=1"]
    process = tiny.start(
        f"from gigabatch.pipeline.commands.app import main\nmore = {more}\n"
        "sys.exit(main(['serve', '--config', config, '--port', '0', *more]))"
    )
    line = ""
    while "serving at" not in line:
        line = process.stderr.readline()
        assert line, "it ended"
    port = int(line.rsplit(":", 1)[1])
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", "/health")
    assert json.loads(connection.getresponse().read())["bundle"] == run.path.name
    connection.request("POST", "/score", " " * 1025, JSON)
    assert connection.getresponse().status == 413
    connection.close()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 0


def test_without_its_packages_it_says_what_to_install(tmp_path):
    """Of a plain `pip install`: neither of them is imported, nor what comes with them."""
    write_clicks(tmp_path)
    gone = ["fastapi", "starlette", "uvicorn", "prometheus_client"]
    code = f"import sys; sys.modules.update(dict.fromkeys({gone})); from gigabatch.pipeline.commands.app import main; "
    code += "sys.exit(main(['serve', '--config', 'clicks.yaml']))"
    found_here = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=found_here)
    needs = "serve: needs fastapi, prometheus_client, uvicorn: pip install 'gigabatch[serve]'."
    assert (found.returncode, found.stderr) == (2, f"gigabatch: {needs}\n")


def test_errors_at_the_start_are_one_line(trained, capsys):
    tiny, _ = trained
    for arguments, text in (
        (["--host", "0.0.0.0"], "--insecure"),
        (["--run", "nowhere"], "Train first"),
        (["--port", "70000"], "serve.port"),
    ):
        assert main(["serve", "--config", str(tiny.config), *arguments]) == 2
        error = capsys.readouterr().err
        assert text in error
        assert error.count("\n") == 1
