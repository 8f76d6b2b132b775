"""How fast and how steady is the service? 100 candidates a request, a catalogue of 100,000 items, two cores in all.

A two-tower bundle with random weights over generated rows, embedded as the stage does, is served by `gigabatch serve`
in a process of its own. Requests come from h2load (Debian package nghttp2-client: apt-get install nghttp2-client):

- It holds a rate: each of 4 connections sends 50 requests a second by a timer.
- It logs every request with start and duration in microseconds, so percentiles are of all requests, not of a histogram.
- It is written in C and takes little of the two cores that it shares with the service.

No coordinated omission: a connection that is still waiting when its next request is due sends it late, and the time
since it was due is added to its duration (`Load.corrected`). The requests sent are counted against those due, too. wrk,
hey and ab send when the last answer is there and so leave out what a slow moment would have met; autocannon sends each
second's share in a burst; locust is Python, and its own milliseconds would be measured; vegeta and k6 are in no
registry that this project installs from.

Phases: the top network and a whole ranking in process; as fast as it goes with one worker and with `--workers`, in
turns; then, with `--workers`: 200 requests/s; the same with the bundle exchanged in the middle; as fast as it goes;
30 s of overload, with a sample of answers compared with batch scores; 10,000 malformed requests made by schemathesis;
memory before and after.

    python -m benchmarks.serve [--quick] [--save] [--items 100000] [--workers 2]
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks.common import arguments, finish
from benchmarks.serve_load import Load, Server, load
from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, Entity, Schema, Target
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.models.recommenders.two_tower import TwoTowerSettings
from gigabatch.models.shelf import ModelSpec
from gigabatch.pipeline.bundle import Bundle
from gigabatch.pipeline.embedding.embed import embed
from gigabatch.pipeline.embedding.embed_write import EmbedSettings
from gigabatch.pipeline.serving.served import load_served
from gigabatch.pipeline.store.files import atomic_symlink
from gigabatch.pipeline.training.train import model_inputs

CANDIDATES, RATE, BODIES = 100, 200, 4
HEADERS = {"content-type": "application/json"}
SCHEMA = Schema(
    (
        Column("user_id", "categorical", "string"),
        Column("country", "categorical", "string"),
        Column("age", "continuous", "float32"),
        Column("item_id", "categorical", "int64"),
        Column("genre", "categorical", "string"),
        Column("price", "continuous", "float32"),
        Column("clicked", "target", "int32"),
    ),
    (Target("clicked", "binary"),),
    (
        Entity("user", "user_id", ("user_id", "country", "age")),
        Entity("item", "item_id", ("item_id", "genre", "price")),
    ),
)


def main() -> None:
    flags = arguments(__doc__ or "", items=100_000, workers=2)
    if shutil.which("h2load") is None:
        raise SystemExit("h2load is not installed. Run: apt-get install nghttp2-client")
    quick = flags.quick
    torch.set_num_threads(1)
    seconds: dict[str, float] = {}
    claims: dict[str, tuple[float, float, bool]] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        started = time.perf_counter()
        frame = interactions(flags.items)
        for seed, name in enumerate(("first", "second")):
            write_run(home / name, frame, seed)
        atomic_symlink(Path("first"), home / "current")
        seconds["build and embed two runs"] = time.perf_counter() - started
        requests = [Asked.of(frame, home, number) for number in range(BODIES)]
        top, whole = in_process(home / "first", requests[0], 200 if quick else 3000)
        claims["top network alone, ms"] = bounded(top, 0.3)
        details: dict[str, Any] = {"whole ranking in process, ms": whole}
        ratios: dict[str, float] = {}
        if flags.workers > 1:
            ratios = with_workers(flags.workers, [asked.body for asked in requests], home, quick, claims, details)
        server = Server(home / "current", home / "log", flags.workers)
        try:
            phases(server, requests, home, quick, claims, details)
        finally:
            code = server.stop()
    claims["exit code after SIGTERM"] = (code, 0, code == 0)
    if quick:  # shown, but too short to be judged
        details["claims, not judged"] = {text: [round(m, 5), required] for text, (m, required, _) in claims.items()}
    workload = f"{CANDIDATES} candidates of {flags.items:,} items, {RATE} requests/s, {flags.workers} worker(s)"
    finish("serve", workload, seconds, ratios, {} if quick else claims, save=flags.save, details=details)


def with_workers(
    workers: int,
    bodies: list[str],
    home: Path,
    quick: bool,
    claims: dict[str, tuple[float, float, bool]],
    details: dict[str, Any],
) -> dict[str, float]:
    """Rankings/s of one worker and of so many, as fast as they go, in turns; the ratio of their medians."""
    counts = (1, workers)
    rates: dict[int, list[float]] = {count: [] for count in counts}
    used: dict[int, list[float]] = {count: [] for count in counts}
    with ExitStack() as stack:
        servers = {}
        for count in counts:
            servers[count] = Server(home / "current", home / f"log-{count}", count)
            stack.callback(servers[count].stop)
            load(servers[count], bodies, home, 1, connections=4)
        for _ in range(1 if quick else 5):
            for count in counts:
                found = load(servers[count], bodies, home, 2 if quick else 4, connections=4)
                rates[count].append(found.statuses.get(200, 0) / found.seconds)
                used[count].append(1e3 * found.cpu_seconds / found.sent)
    one, many = (float(np.median(rates[count])) for count in counts)
    claims[f"rankings/s with {workers} workers"] = (many, 2500, many >= 2500)
    details[f"rankings/s with 1, with {workers} workers"] = [one, many]
    details[f"CPU ms of a ranking with 1, with {workers} workers"] = [float(np.median(used[count])) for count in counts]
    return {f"rankings/s with {workers} workers to those with one": many / one}


def phases(
    server: Server,
    requests: list[Asked],
    home: Path,
    quick: bool,
    claims: dict[str, tuple[float, float, bool]],
    details: dict[str, Any],
) -> None:
    """All that is asked of the server; fills claims and details."""
    bodies = [asked.body for asked in requests]
    steady = load(server, bodies, home, 4 if quick else 30, 1, RATE)
    claims["p50 at 200 requests/s, ms"] = bounded(steady.percentile(50), 3)
    claims["p99 at 200 requests/s, ms"] = bounded(steady.percentile(99), 10)
    share = steady.sent / steady.due
    claims["requests sent of those due"] = (share, 0.99, share >= 0.99)
    claims["failed at 200 requests/s"] = none(steady.failed)

    swapping = load(server, bodies, home, 6 if quick else 15, 1, RATE, midway=lambda: swap(server, home))
    claims["failed while a bundle is exchanged"] = none(swapping.failed)
    before = server.resident()

    fastest = load(server, bodies, home, 3 if quick else 10, connections=4)
    overloaded, checked = overload(server, requests, home, 4 if quick else 30)
    claims["lost in 30 s of overload"] = none(overloaded.lost + checked["lost"])
    claims["answers but 200 and 503 in overload"] = none(overloaded.other)
    claims["wrong scores of those compared"] = none(checked["wrong"])
    statuses = malformed(server, 150 if quick else 10_000)
    bad = sum(count for status, count in statuses.items() if not 400 <= status < 500)
    claims["malformed requests without a 4xx"] = none(bad)
    growth = (server.resident() - before) / 2**20
    claims["memory grown by, MiB"] = bounded(growth, 32)
    details |= {
        "p50, p90, p99, p99.9, max, ms": [steady.percentile(p) for p in (50, 90, 99, 99.9, 100)],
        "while exchanging: p50, p99, max, ms": [swapping.percentile(p) for p in (50, 99, 100)],
        "saturation, requests/s": len(fastest.durations) / fastest.seconds,
        "saturation p50, p99, ms": [fastest.percentile(50), fastest.percentile(99)],
        "overload answers": overloaded.statuses,
        "overload answers a second": len(overloaded.durations) / overloaded.seconds,
        "overload answers compared": checked["right"] + checked["wrong"],
        "malformed answers": statuses,
        "resident MiB before, after": [before / 2**20, server.resident() / 2**20],
    }


def bounded(measured: float, limit: float) -> tuple[float, float, bool]:
    return measured, limit, measured < limit


def none(count: int) -> tuple[float, float, bool]:
    return count, 0, count == 0


def interactions(items: int, users: int = 20_000) -> pd.DataFrame:
    """Three rows an item; a user's and an item's own columns are the same in all rows of one."""
    draw = np.random.default_rng(0)
    item = np.concatenate([np.arange(items), draw.integers(0, items, 2 * items)])
    user = draw.integers(0, users, len(item))
    user[:users] = np.arange(users)
    return pd.DataFrame(
        {
            "user_id": pd.array([f"user-{n}" for n in user], "str"),
            "country": pd.array([f"country-{n % 90}" for n in user], "str"),
            "age": draw.normal(40, 12, users).astype("float32")[user],
            "item_id": item,
            "genre": pd.array([f"genre-{n % 30}" for n in item], "str"),
            "price": draw.lognormal(2, 1, items).astype("float32")[item],
            "clicked": draw.integers(0, 2, len(item)).astype("int32"),
        }
    )


def write_run(folder: Path, frame: pd.DataFrame, seed: int) -> None:
    """A run's folder: a bundle with random weights, and its stored users and items."""
    preprocessor = Preprocessor(SCHEMA).fit([frame])
    settings = TwoTowerSettings(layers=(128,), vector_dim=64, top="mlp", top_layers=(64,))
    torch.manual_seed(seed)
    model = ModelSpec("two_tower", model_inputs(preprocessor), settings).build().eval()
    bundle = Bundle(preprocessor, model, {"recipe": "generated"})
    bundle.save(folder / "model")
    part = folder / "rows.parquet"
    frame.to_parquet(part)
    features: Any = SimpleNamespace(
        pipeline=SimpleNamespace(engine="pandas"),
        rows={"train": len(frame)},
        parts=lambda split: [part],
        artifact=SimpleNamespace(key="generated"),
    )
    embed(folder, bundle, features, EmbedSettings())


@dataclass
class Asked:
    """One request and the batch scores of its rows by either run's bundle."""

    user: str
    items: list[int]
    expected: dict[str, list[float]]

    @classmethod
    def of(cls, frame: pd.DataFrame, home: Path, number: int) -> Asked:
        draw = np.random.default_rng(100 + number)
        by_item = frame.drop_duplicates("item_id").set_index("item_id", drop=False)
        rows = by_item.sample(CANDIDATES, random_state=number).reset_index(drop=True)
        user = frame.iloc[int(draw.integers(len(frame)))]
        for name in ("user_id", "country", "age"):
            rows[name] = pd.Series([user[name]] * len(rows), dtype=frame[name].dtype)
        items = rows["item_id"].tolist()
        bundles = {name: load_served(home / name).bundle for name in ("first", "second")}
        expected = {name: bundle.predict(rows)["clicked"].tolist() for name, bundle in bundles.items()}
        return cls(user["user_id"], items, expected)

    @property
    def body(self) -> str:
        return json.dumps({"user": self.user, "items": self.items}, allow_nan=False)


def in_process(run: Path, asked: Asked, calls: int) -> tuple[float, float]:
    """Median milliseconds of the top network over the candidates, and of a whole ranking."""
    served = load_served(run)
    ranker = served.require_ranker()
    assert ranker.users.vectors is not None
    assert ranker.items.vectors is not None
    model: Any = served.bundle.model
    places = ranker.items.places(asked.items, "items")
    user, items = ranker.users.vectors[:1], ranker.items.vectors.index_select(0, torch.from_numpy(places))
    asker = ranker.asker_of_row(ranker.users.rows[asked.user])
    with torch.inference_mode():
        top = median_ms(lambda: model.score(user, items), calls)
    return top, median_ms(lambda: ranker.score(asker, asked.items), calls)


def median_ms(call: Callable[[], object], calls: int) -> float:
    times = []
    for _ in range(calls + 50):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return float(np.median(times[50:])) * 1e3


def swap(server: Server, home: Path) -> None:
    """Promote the second run, and wait until it answers."""
    atomic_symlink(Path("second"), home / "current")
    server.wait_for("bundle second answers")


def overload(server: Server, requests: list[Asked], home: Path, duration: int) -> tuple[Load, dict[str, int]]:
    """Many more requests at once than are let in, and beside them a few whose scores are compared with the batch's."""
    counts = {"right": 0, "wrong": 0, "busy": 0, "lost": 0}
    stop = threading.Event()

    def compare(asked: Asked) -> None:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
        while not stop.is_set():
            try:
                connection.request("POST", "/rank", asked.body, HEADERS)
                response = connection.getresponse()
                content = json.loads(response.read())
            except (OSError, ValueError):
                counts["lost"] += 1
                connection.close()
                continue
            if response.status == 503:
                counts["busy"] += 1
            else:
                same = response.status == 200 and same_scores(content["scores"], asked.expected[content["bundle"]])
                counts["right" if same else "wrong"] += 1
            time.sleep(0.02)
        connection.close()

    threads = [threading.Thread(target=compare, args=(asked,)) for asked in requests]
    for thread in threads:
        thread.start()
    try:
        found = load(server, [asked.body for asked in requests], home, duration, connections=100)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return found, counts


def same_scores(found: list[float | None], expected: list[float]) -> bool:
    """Whether these are as many numbers, equal within the tolerance that is promised."""
    there = len(found) == len(expected) and None not in found
    return there and np.allclose(np.array(found, float), expected, rtol=SCORE_RTOL, atol=SCORE_ATOL)


def malformed(server: Server, count: int) -> dict[int, int]:
    """Statuses of so many requests that the OpenAPI page forbids, as schemathesis makes them."""
    import requests as http
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings

    statuses: dict[int, int] = {}
    session = http.Session()
    page = json.loads(session.get(f"{server.url}/openapi.json").text)
    schema = schemathesis.openapi.from_dict(page)
    operations = [found.ok() for found in schema.get_all_operations()]
    operations = [operation for operation in operations if operation.method.upper() == "POST"]
    quiet = settings(
        max_examples=max(count // 20, 20), deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    while sum(statuses.values()) < count:
        for operation in operations:

            @quiet
            @given(case=operation.as_strategy(schemathesis.GenerationMode.NEGATIVE))
            def each(case: Any) -> None:
                status = case.call(base_url=server.url, session=session).status_code
                statuses[status] = statuses.get(status, 0) + 1

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                each()
    return statuses


if __name__ == "__main__":
    main()
