"""The gate and the line: tokens, lengths, how many at once, and failures that stay the service's own."""

import asyncio
import json
import logging
from types import SimpleNamespace

import httpx
import pytest

from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.errors import Refusal
from gigabatch.pipeline.serving.http.gate import Line

TOKEN = "0123456789abcdef-token"
RANK = {"user": "u1", "items": [1001, 1002]}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "header",
    [None, "Bearer", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ÿ"],
)
def test_without_the_token_nothing_but_health_is_answered(header, make_caller, served):
    caller = make_caller(served, token=TOKEN)
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    for method, path in (("POST", "/rank"), ("GET", "/nothing")):
        answer = caller(method, path, headers={**JSON, **headers}, content=json.dumps(RANK).encode())
        assert (answer.status_code, answer.json()["error"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.text
    assert caller("GET", "/health").status_code == 200


def test_with_the_token_alone_everything_is_answered(make_caller, served):
    caller = make_caller(served, token=TOKEN)
    right = ("authorization", f"Bearer {TOKEN}")
    headers = [*JSON.items(), right]
    assert caller("POST", "/rank", headers=headers, content=json.dumps(RANK).encode()).status_code == 200
    assert caller("GET", "/metrics", headers=headers).status_code == 200
    for scheme in ("bearer", "BEARER"):  # names of schemes have no case (RFC 9110, 11.1)
        assert caller("GET", "/metrics", headers=[("authorization", f"{scheme} {TOKEN}")]).status_code == 200
    assert caller("GET", "/metrics", headers=[("authorization", "Bearer wrong"), right]).status_code == 401


def test_a_body_that_says_it_is_too_long_is_not_read(make_caller, served):
    caller = make_caller(served, ServeSettings(max_body_bytes=1024))
    for length in ("1025", "9" * 30):
        answer = caller("POST", "/rank", headers={**JSON, "content-length": length}, content=b"{}")
        assert (answer.status_code, answer.json()["error"]) == (413, "too_large")
    body = json.dumps(RANK).encode()
    assert caller.post("/rank", body.ljust(1024)).status_code == 200
    assert caller.post("/rank", body.ljust(1025)).status_code == 413


def test_a_body_in_pieces_is_stopped_at_the_limit(make_caller, served):
    caller = make_caller(served, ServeSettings(max_body_bytes=1024))
    sent = 0

    async def pieces():
        nonlocal sent
        for _ in range(100):
            sent += 100
            yield b" " * 100

    answer = caller("POST", "/rank", headers=JSON, content=pieces())
    assert answer.status_code == 413
    assert sent <= 1100


def test_a_body_that_does_not_come_is_408(make_caller, served):
    caller = make_caller(served, ServeSettings(timeout_seconds=0.05))

    async def slow():
        yield b"{"
        await asyncio.sleep(30)

    answer = caller("POST", "/rank", headers=JSON, content=slow())
    assert (answer.status_code, answer.json()["error"]) == (408, "too_slow")


def test_more_requests_than_there_is_room_for_are_503_at_once(make_caller, served):
    """Each is let in or refused; those let in are right, and there is room again afterwards."""
    caller = make_caller(served, ServeSettings(max_in_flight=12, queue=4))
    body = json.dumps(RANK).encode()
    expected = caller.post("/rank", body).json()

    async def flood():
        transport = httpx.ASGITransport(app=caller.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://served") as client:
            return await asyncio.gather(*(client.post("/rank", content=body, headers=JSON) for _ in range(60)))

    answers = asyncio.run(flood())
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 503}
    assert statuses.count(200) >= 4
    for answer in answers:
        if answer.status_code == 200:
            assert answer.json() == expected
        else:
            assert answer.json()["error"] == "busy"
            assert answer.headers["retry-after"] == "1"
    assert caller.app.in_flight == 0
    assert caller.post("/rank", body).status_code == 200


def test_a_body_is_parsed_at_its_turn_in_the_line_or_not_at_all(make_caller, served, monkeypatch):
    """P6: what is refused for want of room costs no parsing."""
    caller = make_caller(served)

    async def full(*_):
        raise Refusal.busy("full")

    monkeypatch.setattr(Line, "run", full)
    assert caller.post("/score", b"no JSON").status_code == 503
    monkeypatch.undo()
    assert caller.post("/score", b"no JSON").status_code == 400


def test_a_request_with_two_lengths_is_refused(make_caller, served):
    """R13: a proxy may have taken the other length for the request's end."""
    body = json.dumps(RANK).encode()
    headers = {**JSON, "content-length": str(len(body)), "transfer-encoding": "chunked"}
    caller = make_caller(served)
    for method, path in (("POST", "/rank"), ("GET", "/health")):
        answer = caller(method, path, headers=headers, content=body)
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
        assert answer.headers["connection"] == "close"


def test_health_and_metrics_are_answered_however_full_it_is(make_caller, served):
    """P23: the metrics of an overload were refused by it."""
    caller = make_caller(served, ServeSettings(max_in_flight=1, queue=1))
    caller.app.in_flight = 5
    assert caller("GET", "/health").status_code == 200
    assert caller("GET", "/metrics").status_code == 200
    assert caller.post("/rank", RANK).status_code == 503


def test_a_failure_inside_is_500_in_json_and_told_in_the_log(make_caller, served, caplog, monkeypatch):
    caller = make_caller(served)

    def fail(*_):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(type(served.ranker), "score", fail)
    with caplog.at_level(logging.ERROR):
        answer = caller.post("/rank", RANK)
    assert (answer.status_code, answer.json()["error"]) == (500, "internal_error")
    assert "secret" not in answer.text
    assert "secret detail" in caplog.text
    assert 'status="500"' in caller("GET", "/metrics").text


def test_the_line_works_in_order_and_answers_others_in_between():
    order = []

    async def main():
        line = Line(longest=10, timeout_seconds=5)

        async def other():
            for name in "abc":
                order.append(name)
                await asyncio.sleep(0)

        works = [asyncio.ensure_future(line.run(lambda n=n: order.append(n) or n)) for n in range(4)]
        await asyncio.sleep(0)
        await other()
        return await asyncio.gather(*works)

    assert asyncio.run(main()) == [0, 1, 2, 3]
    assert [n for n in order if n in range(4)] == [0, 1, 2, 3]
    assert order.index("c") < order.index(3)


def test_a_long_line_is_worked_off_in_one_turn_of_the_loop():
    """Otherwise each answer would wait for a turn full of refusals, and overload would let few answers through."""
    turns = {}

    async def main():
        line, turn = Line(longest=64, timeout_seconds=5), 0

        def work(number):
            turns[number] = turn

        works = [asyncio.ensure_future(line.run(lambda n=n: work(n))) for n in range(40)]
        while not all(task.done() for task in works):
            await asyncio.sleep(0)
            turn += 1

    asyncio.run(main())
    assert len(turns) == 40
    assert len(set(turns.values())) <= 2


def test_the_line_gives_errors_to_whoever_asked_and_goes_on():
    async def main():
        line = Line(longest=3, timeout_seconds=5)

        def fail():
            raise KeyError("mine")

        found = await asyncio.gather(line.run(fail), line.run(lambda: 1), return_exceptions=True)
        return found, await line.run(lambda: 2), len(line)

    (error, one), two, waiting = asyncio.run(main())
    assert isinstance(error, KeyError)
    assert (one, two, waiting) == (1, 2, 0)


def test_a_full_line_and_a_long_wait_are_busy(monkeypatch):
    now = 100.0
    monkeypatch.setattr("gigabatch.pipeline.serving.http.gate.time", SimpleNamespace(monotonic=lambda: now))

    async def main():
        line = Line(longest=2, timeout_seconds=2)

        def long():
            nonlocal now
            now += 2.5
            return "long"

        return await asyncio.gather(*(line.run(work) for work in (long, int, int)), return_exceptions=True)

    first, late, refused = asyncio.run(main())
    assert first == "long"
    assert isinstance(late, Refusal)
    assert "was busy" in late.message
    assert isinstance(refused, Refusal)
    assert "are waiting already" in refused.message


def test_work_whose_asker_has_gone_is_left_out():
    done = []

    async def main():
        line = Line(longest=5, timeout_seconds=5)
        gone = asyncio.ensure_future(line.run(lambda: done.append("gone")))
        await asyncio.sleep(0)
        gone.cancel()
        await line.run(lambda: done.append("stays"))

    asyncio.run(main())
    assert done == ["stays"]
