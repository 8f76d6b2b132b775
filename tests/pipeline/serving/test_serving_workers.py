"""Several workers at one port: who answers, who is replaced, what a promotion does to them, and how they end."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest
import uvicorn

from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.http.channel import GIVEN, Channel
from gigabatch.pipeline.serving.http.supervisor import Supervisor, _Bundle, _Process
from gigabatch.pipeline.serving.http.worker import Worker
from gigabatch.pipeline.serving.metrics import Metrics
from gigabatch.pipeline.serving.served import load_served
from gigabatch.pipeline.serving.swap import Slot
from gigabatch.pipeline.store.files import atomic_symlink
from tests.pipeline.serving.server_process import Server

JSON = {"content-type": "application/json"}
RANK = {"user": "u1", "items": [1001, 1002, 1003]}
BODY = json.dumps(RANK)
HEAD = f"POST /rank HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n"


@pytest.fixture
def served_by_two(home):
    server = Server([home / "current"], home / "log", workers=2, poll_seconds=0.1, timeout_seconds=60.0)
    wait_until(lambda: ask(server, "GET", "/health")[0] == 200)
    yield server
    if server.process.poll() is None:
        assert server.stop() == 0


def wait_until(found: Callable[[], object]) -> None:
    until = time.monotonic() + 120
    while not found():
        assert time.monotonic() < until
        time.sleep(0.02)


def ask(server: Server, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request(method, path, body, JSON)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def metric(server: Server, name: str) -> float:
    text = ask(server, "GET", "/metrics")[1].decode()
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])


def workers_of(server: Server) -> list[int]:
    return list(map(int, Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()))


def is_there(pid: int) -> bool:
    """Whether a process runs: one that has ended may still be listed until its parent has looked."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


class Askers:
    """Clients that ask over and over, each on a connection of its own, which is opened again where it was lost."""

    def __init__(self, server: Server, count: int) -> None:
        self.server, self.stop = server, threading.Event()
        self.answers: list[list[tuple[int, dict]]] = [[] for _ in range(count)]  # of one connection each
        self.lost = 0
        self.threads = [threading.Thread(target=self._ask, args=(place,)) for place in range(count)]

    def __enter__(self) -> "Askers":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def _ask(self, place: int) -> None:
        connection, found = HTTPConnection("127.0.0.1", self.server.port, timeout=120), self.answers[place]
        while not self.stop.is_set():
            try:
                connection.request("POST", "/rank", BODY, JSON)
                with connection.getresponse() as response:
                    found.append((response.status, json.loads(response.read())))
            except (OSError, ValueError, HTTPException):  # cut off before, or within, an answer
                self.lost += 1
                connection.close()
                found = []
                self.answers.append(found)
        connection.close()

    @property
    def count(self) -> int:
        return sum(map(len, self.answers))

    def more(self, count: int) -> None:
        """Wait for so many more answers."""
        enough = self.count + count
        wait_until(lambda: self.count >= enough)


def test_connections_are_shared_out_and_every_worker_tells_the_same(served_by_two):
    """Eight connections, four each; the counts at /metrics are of both, whoever is asked."""
    pids = workers_of(served_by_two)
    assert len(pids) == 2
    with ExitStack() as stack:
        connections = [HTTPConnection("127.0.0.1", served_by_two.port, timeout=120) for _ in range(8)]
        answers = set()
        for connection in connections:
            stack.callback(connection.close)
            connection.connect()
        before = [cpu_ticks(pid) for pid in pids]
        for _ in range(150):
            for connection in connections:
                connection.request("POST", "/rank", BODY, JSON)
                answers.add(connection.getresponse().read())
        used = [cpu_ticks(pid) - ticks for pid, ticks in zip(pids, before, strict=True)]
        assert min(used) > 0.3 * max(used)
        assert len(answers) == 1

        def told(connection: HTTPConnection) -> list[str]:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode().splitlines()

        for connection in connections:  # a request is counted just after its answer
            wait_until(
                lambda: 'gigabatch_requests_total{route="/rank",status="200"} 1200.0' in told(connection)  # noqa: B023
            )
            assert "gigabatch_workers 2.0" in told(connection)


def test_a_worker_that_is_killed_under_load_is_replaced_and_its_counts_stay(served_by_two):
    server = served_by_two
    with Askers(server, 4) as askers:
        askers.more(100)
        pids = workers_of(server)
        counted = metric(server, 'gigabatch_requests_total{route="/rank",status="200"}')
        os.kill(pids[0], signal.SIGKILL)
        server.wait_for(rf"worker 1 \(process {pids[0]}\) ended by signal 9; another is started")
        askers.more(100)  # the other one goes on
        server.wait_for(r"(?s)(worker 1 answers.*){2}")
        wait_until(lambda: ask(server, "GET", "/health")[0] == 200)
        askers.more(100)
    assert {status for answers in askers.answers for status, _ in answers} == {200}
    assert len({tuple(answer["scores"]) for answers in askers.answers for _, answer in answers}) == 1
    assert askers.lost <= 4  # what ran on the worker's connections
    assert len(set(workers_of(server)) - set(pids)) == 1
    assert metric(server, 'gigabatch_requests_total{route="/rank",status="200"}') >= counted + 200
    assert metric(server, "gigabatch_worker_restarts_total") == 1
    wait_until(lambda: metric(server, "gigabatch_in_flight") == 1)  # the one that asks


def test_health_is_503_until_all_workers_answer(served_by_two, home):
    """The bundle's folder is gone, so no worker can load it again; the other answers."""
    server = served_by_two
    shutil.move(home / "first", home / "hidden")
    os.kill(workers_of(server)[0], signal.SIGKILL)
    server.wait_for("worker 1 cannot load the bundle that answers")
    status, content = ask(server, "GET", "/health")
    assert (status, json.loads(content)["error"]) == (503, "not_ready")
    assert "1 of 2" in json.loads(content)["message"]
    assert ask(server, "POST", "/rank", BODY)[0] == 200
    shutil.move(home / "hidden", home / "first")
    wait_until(lambda: ask(server, "GET", "/health")[0] == 200)


def test_a_promotion_under_load_fails_no_request_and_no_connection_goes_back(served_by_two, home):
    expected = {}
    for name in ("first", "second"):
        ranker = load_served(home / name).ranker
        expected[name] = ranker.score(ranker.asker_of_row(ranker.users.rows["u1"]), RANK["items"])[0]
    assert expected["first"] != expected["second"]
    server = served_by_two
    with Askers(server, 6) as askers:
        askers.more(60)
        atomic_symlink(Path("second"), home / "current")
        server.wait_for("bundle second answers")
        askers.more(120)
    assert askers.lost == 0
    for answers in askers.answers:
        assert {status for status, _ in answers} == {200}
        names = [answer["bundle"] for _, answer in answers]
        assert set(names) == {"first", "second"}
        assert names == sorted(names)  # first, then second alone
        assert all(answer["scores"] == expected[answer["bundle"]] for _, answer in answers)
    assert metric(server, 'gigabatch_swaps_total{outcome="taken"}') == 1
    os.kill(workers_of(server)[1], signal.SIGKILL)  # its successor has what was promoted, not what it began with
    server.wait_for(r"(?s)(worker 2 answers.*){2}")
    wait_until(lambda: ask(server, "GET", "/health")[0] == 200)
    assert {json.loads(ask(server, "POST", "/rank", BODY)[1])["bundle"] for _ in range(8)} == {"second"}


def test_a_damaged_bundle_is_refused_by_all_and_taken_when_it_is_mended(served_by_two, home):
    server, weights = served_by_two, home / "second" / "model" / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(b"nothing")
    atomic_symlink(Path("second"), home / "current")
    server.wait_for("bundle .*second refused, first goes on: BundleError")
    for _ in range(6):
        status, content = ask(server, "GET", "/health")
        assert (status, json.loads(content)["bundle"]) == (200, "first")
        assert json.loads(content)["refused"]["error"] == "BundleError"
        assert json.loads(ask(server, "POST", "/rank", BODY)[1])["bundle"] == "first"
    assert metric(server, 'gigabatch_swaps_total{outcome="refused"}') == 1
    assert metric(server, "gigabatch_bundle_refused") == 1
    weights.write_bytes(whole)
    server.wait_for("bundle second answers")
    wait_until(lambda: metric(server, "gigabatch_bundle_refused") == 0)
    assert json.loads(ask(server, "GET", "/health")[1])["refused"] is None


def test_a_thousand_connections_and_slow_clients_keep_no_one_from_an_answer(served_by_two):
    server = served_by_two
    with ExitStack() as stack:
        slow = []
        for number in range(1000):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=120))
            if number % 50 == 0:
                connection.sendall(HEAD.encode() + BODY[:5].encode())
                slow.append(connection)
        for _ in range(20):
            assert ask(server, "POST", "/rank", BODY)[0] == 200
        for connection in slow:
            connection.sendall(BODY[5:].encode())
        for connection in slow:
            assert b" 200 " in connection.recv(65536)


def test_sigterm_drains_all_workers(served_by_two):
    """Four requests whose bodies are on their way, two on each worker, are finished."""
    server, pids = served_by_two, workers_of(served_by_two)
    with ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=120)) for _ in range(4)
        ]
        for connection in connections:
            connection.sendall(HEAD.encode() + BODY[:5].encode())
        wait_until(lambda: metric(server, "gigabatch_in_flight") == 5)
        server.process.send_signal(signal.SIGTERM)
        for worker in (1, 2):
            server.wait_for(f"worker {worker}: Shutting down")
        for connection in connections:
            connection.sendall(BODY[5:].encode())
            assert b" 200 " in connection.recv(65536)
    assert server.process.wait(timeout=120) == 0
    assert not any(map(is_there, pids))
    assert server.log.read_text().endswith("stopped\n")
    assert "Traceback" not in server.log.read_text()


def test_a_worker_that_is_asked_to_end_finishes_what_runs_and_is_replaced(served_by_two):
    server = served_by_two
    with Askers(server, 4) as askers:
        askers.more(20)
        pid = workers_of(server)[1]
        os.kill(pid, signal.SIGTERM)
        server.wait_for(rf"worker 2 \(process {pid}\) ended by exit code 0; another is started")
        server.wait_for(r"(?s)(worker 2 answers.*){2}")
        askers.more(20)
    assert {status for answers in askers.answers for status, _ in answers} == {200}


def test_workers_end_with_their_supervisor(served_by_two):
    pids = workers_of(served_by_two)
    served_by_two.process.kill()
    served_by_two.process.wait()
    wait_until(lambda: not any(map(is_there, pids)))


def test_what_is_wrong_at_the_start_ends_all_workers_and_is_one_line(trained, tmp_path):
    tiny, run = trained
    broken = shutil.copytree(run.path, tmp_path / "broken", symlinks=True)
    (broken / "model" / "weights.safetensors").write_bytes(b"nothing")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for arguments, text in (
            (["--port", "0", "--run", str(broken)], "weights.safetensors is not what was saved"),
            (["--port", str(taken.getsockname()[1])], "cannot listen"),
        ):
            process = tiny.start(
                "from gigabatch.pipeline.commands.app import main\n"
                f"sys.exit(main(['serve', '--config', config, '--workers', '2', *{arguments!r}]))"
            )
            error = process.communicate(timeout=120)[1]  # all who could write to it have ended
            assert process.returncode == 2
            assert text in error.splitlines()[-1]
            assert "Traceback" not in error


def test_workers_are_for_the_cpu():
    with pytest.raises(ValueError, match="one process keeps busy"):
        ServeSettings(workers=2, device="cuda")
    assert ServeSettings(workers=1, device="cuda").workers == 1


def test_a_channel_keeps_messages_apart_hands_connections_over_and_tells_its_end():
    here, there = Channel.pair()
    with pytest.raises(BlockingIOError):
        there.take()
    one, other = socket.socketpair()
    assert here.tell(prepare="/a", number=1)
    assert here.give(one)
    assert here.tell(drain=True)
    one.close()
    assert there.take() == {"prepare": "/a", "number": 1}
    given = there.take()
    assert there.take() == {"drain": True}
    given.sendall(b"through")
    assert other.recv(10) == b"through"
    given.close()
    assert other.recv(10) == b""  # no copy is left open
    here.close()
    assert there.take() is None
    assert there.tell(taken=1) is False
    there.close()
    other.close()


def test_a_worker_that_takes_no_more_is_told_by_false_and_not_waited_for():
    here, there = Channel.pair()
    sent = 0
    while here.tell(text="x" * 1000):
        sent += 1
        assert sent < 100_000
    assert there.take() == {"text": "x" * 1000}
    here.close()
    there.close()


def test_a_connection_that_finds_no_room_is_told_and_is_no_message():
    """The system takes the descriptor away where too many files are open; the message beside it comes alone."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    there = Channel(other)
    one.send(GIVEN)
    assert there.take() == {"lost": True}
    one.close()
    there.close()


def test_a_worker_that_cannot_be_forked_is_tried_again_later(monkeypatch, caplog, tmp_path):
    def fail() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("gigabatch.pipeline.serving.http.supervisor.os.fork", fail)
    settings = ServeSettings(workers=2)
    made = Supervisor(settings, [tmp_path], Metrics(2), lambda place, channel: None)
    made._start(0, made._places[0])
    assert "worker 1 cannot be started" in caplog.text
    assert made._places[0].process is None
    assert made._places[0].next_start > time.monotonic() + 10


def test_a_refusal_of_another_bundle_leaves_a_new_worker_what_it_is_about_to_take(served):
    """A worker that is started while a damaged bundle is tried has loaded the one that answers, number 1."""
    slot, settings, metrics = Slot(), ServeSettings(workers=2), Metrics(2)
    here, there = Channel.pair()
    worker = Worker(uvicorn.Config(None), there, slot, settings, metrics)
    worker._prepared = (1, served)
    refused = {"bundle_id": "damaged", "error": "BundleError", "since": 0.0, "tries": 1, "again": False}
    here.tell(refused=refused, number=2)
    here.tell(take=1)
    worker._hear()
    assert slot.served is served
    assert here.take() == {"taken": 1}
    worker._prepared = (3, served)
    here.tell(refused=refused, number=3)
    worker._hear()
    assert worker._prepared is None  # its memory is free again
    here.close()
    there.close()


async def heard(channel: Channel) -> dict:
    """The next message, which may take a while to come."""
    while True:
        try:
            return channel.take()
        except BlockingIOError:
            await asyncio.sleep(0.01)


def test_a_bundle_that_is_refused_while_a_worker_loads_it_is_not_kept(served, monkeypatch):
    """It stayed in memory beside the one that answers, until the next exchange."""
    begun, go_on = threading.Event(), threading.Event()

    def load(folder, device):
        begun.set()
        assert go_on.wait(60)
        return served

    monkeypatch.setattr("gigabatch.pipeline.serving.http.worker.load_served", load)
    here, there = Channel.pair()

    async def exchanges() -> None:
        worker = Worker(uvicorn.Config(None), there, Slot(), ServeSettings(workers=2), Metrics(2))
        turns = asyncio.get_running_loop().create_task(worker._prepare_in_turn())
        here.tell(prepare="/second", number=2)
        worker._hear()
        assert await asyncio.to_thread(begun.wait, 60)
        refused = {"bundle_id": "second", "error": "BundleError", "since": 0.0, "tries": 1, "again": False}
        here.tell(refused=refused, number=2)
        here.tell(prepare="/third", number=3)
        worker._hear()
        go_on.set()
        assert await asyncio.wait_for(heard(here), 60) == {"ready": 3}  # and never of the second
        assert worker._prepared == (3, served)
        turns.cancel()

    asyncio.run(exchanges())
    here.close()
    there.close()


def test_a_worker_tells_again_what_a_busy_supervisor_took_no_more_of(served, monkeypatch):
    """A `ready` that was lost left the exchange waiting for ever."""
    monkeypatch.setattr("gigabatch.pipeline.serving.http.worker.load_served", lambda folder, device: served)
    here, there = Channel.pair()

    async def exchange() -> list:
        worker = Worker(uvicorn.Config(None), there, Slot(), ServeSettings(workers=2), Metrics(2))
        turns = asyncio.get_running_loop().create_task(worker._prepare_in_turn())
        while there.tell(text="x" * 1000):
            pass
        here.tell(prepare="/second", number=2)
        worker._hear()
        while worker._prepared is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # by now it was told in vain
        while (found := await asyncio.wait_for(heard(here), 60)).get("text"):
            pass
        turns.cancel()
        return found

    assert asyncio.run(exchange()) == {"ready": 2}
    here.close()
    there.close()


def test_what_a_busy_worker_could_not_be_told_is_told_again(tmp_path):
    """Its channel is full of connections that it has not come to."""
    made = Supervisor(ServeSettings(workers=1), [tmp_path], Metrics(1), lambda place, channel: None)
    here, there = Channel.pair()
    process = _Process(0, 0, here, 0.0)
    bundle = _Bundle(1, tmp_path)
    with socket.socket() as connection:
        while here.give(connection):
            pass
    made._ask(process, bundle)
    assert process.asked == 0
    while True:
        try:
            taken = there.take()
        except BlockingIOError:
            break
        assert isinstance(taken, socket.socket)
        taken.close()
    made._ask(process, bundle)
    assert there.take() == {"prepare": str(tmp_path), "number": 1}
    assert process.asked == 1
    here.close()
    there.close()


def test_a_bundle_that_hangs_while_it_is_loaded_is_told_of_once_and_costs_no_time(tmp_path, caplog, monkeypatch):
    """Nothing was said, no newer bundle looked for, and the supervisor woke a thousand times a second."""
    now = [1000.0]
    monkeypatch.setattr("gigabatch.pipeline.serving.http.supervisor.time.monotonic", lambda: now[0])
    made = Supervisor(ServeSettings(workers=1), [tmp_path], Metrics(1), lambda place, channel: None)
    here, there = Channel.pair()
    made._places[0].process = _Process(0, 0, here, 0.0)
    made._look()
    made._exchange()
    assert there.take() == {"prepare": str(tmp_path), "number": 1}
    now[0] += 59
    made._exchange()
    assert made._pause() == pytest.approx(0.02)
    assert caplog.text == ""
    now[0] += 1
    for _ in range(3):
        made._exchange()
    assert caplog.text.count(f"bundle {tmp_path} is still being loaded after 60 s (worker 1)") == 1
    here.close()
    there.close()


def test_metrics_are_the_sums_over_rows_and_outlive_a_worker():
    """Buckets and sums by hand: 0.4 ms, 0.5 ms and 3 s of one route, one of them by another worker."""
    metrics = Metrics(workers=2)
    metrics.worker = 0
    metrics.request("/rank", 200, 0.0004)
    metrics.now(3, 1)
    metrics.answering(0, True)
    metrics.worker = 1
    metrics.request("/rank", 200, 0.0005)
    metrics.request("/rank", 503, 3.0)
    metrics.request("/nowhere", 404, 0.02)
    metrics.now(2, 2)
    metrics.worker = 2
    metrics.swap("taken")
    metrics.restart()
    for line in (
        'gigabatch_requests_total{route="/rank",status="200"} 2.0',
        'gigabatch_requests_total{route="/rank",status="503"} 1.0',
        'gigabatch_requests_total{route="other",status="404"} 1.0',
        'gigabatch_request_seconds_bucket{le="0.0005",route="/rank"} 2.0',
        'gigabatch_request_seconds_bucket{le="2.5",route="/rank"} 2.0',
        'gigabatch_request_seconds_bucket{le="+Inf",route="/rank"} 3.0',
        'gigabatch_request_seconds_sum{route="/rank"} 3.0009',
        'gigabatch_request_seconds_bucket{le="0.01",route="other"} 0.0',
        'gigabatch_request_seconds_bucket{le="0.02",route="other"} 1.0',
        'gigabatch_swaps_total{outcome="taken"} 1.0',
        "gigabatch_worker_restarts_total 1.0",
        "gigabatch_in_flight 5.0",
        "gigabatch_waiting 3.0",
        "gigabatch_workers 1.0",
    ):
        assert line in metrics.text().decode().splitlines()
    metrics.ended(0)
    text = metrics.text().decode().splitlines()
    assert 'gigabatch_requests_total{route="/rank",status="200"} 2.0' in text
    assert "gigabatch_in_flight 2.0" in text
    assert "gigabatch_workers 0.0" in text
