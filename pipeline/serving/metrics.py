"""What Prometheus reads at /metrics: counts and times in memory that all processes of a service share."""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

ROUTES = ("/rank", "/recommend", "/score", "/health", "/metrics", "/openapi.json", "/docs", "other")
SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
OUTCOMES = ("taken", "refused")

# A process's row of int64 words. Requests by route and status, 0 for none; then of each route how many were answered
# within each bound, and their nanoseconds.
STATUSES = 600
TIMES = len(SECONDS) + 2
REQUESTS, TIMED = 0, len(ROUTES) * STATUSES
SWAPS = TIMED + len(ROUTES) * TIMES
RESTARTS, IN_FLIGHT, WAITING, CLOSED, ANSWERING, WIDTH = range(SWAPS + len(OUTCOMES), SWAPS + len(OUTCOMES) + 6)
PLACES = {route: place for place, route in enumerate(ROUTES)}


class Metrics(Collector):
    """Counts and times of one service; each method is one event.

    Each worker counts in a row of its own, so that none waits for another, and what supervises them in one more. The
    rows lie in memory that processes forked from this one share: a count outlives the worker that made it, and any
    worker tells the sums. workers: how many; worker: from 0, whose row this process writes.
    """

    def __init__(self, workers: int = 1) -> None:
        self.workers, self.age, self.behind = workers, 0.0, False
        self._memory = mmap.mmap(-1, 8 * WIDTH * (workers + 1))
        self._words = memoryview(self._memory).cast("q")
        self._bundle: dict[str, str] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self.worker = workers if workers > 1 else 0

    @property
    def worker(self) -> int:
        """Whose row is written; `workers` is that of what supervises them."""
        return self._first // WIDTH

    @worker.setter
    def worker(self, worker: int) -> None:
        self._first = worker * WIDTH

    def request(self, path: str, status: int, seconds: float) -> None:
        """An answered request; paths that are no route count as `other`, so that no one can make up labels."""
        route = PLACES.get(path, PLACES["other"])
        self._words[self._first + REQUESTS + route * STATUSES + status] += 1
        times = self._first + TIMED + route * TIMES
        self._words[times + bisect_left(SECONDS, seconds)] += 1
        self._words[times + TIMES - 1] += int(seconds * 1e9)

    def now(self, in_flight: int, waiting: int) -> None:
        """Requests of this worker that are read, wait or are computed, and those of them that wait for the model."""
        self._words[self._first + IN_FLIGHT], self._words[self._first + WAITING] = in_flight, waiting

    def closed(self) -> None:
        """A connection of this worker has ended."""
        self._words[self._first + CLOSED] += 1

    def num_closed(self, worker: int) -> int:
        """Connections of a worker that have ended."""
        return self._words[worker * WIDTH + CLOSED]

    def answering(self, worker: int, answers: bool) -> None:
        """Whether a worker answers requests."""
        self._words[worker * WIDTH + ANSWERING] = answers

    def num_answering(self) -> int:
        """Workers that answer requests."""
        return sum(self._words[worker * WIDTH + ANSWERING] for worker in range(self.workers))

    def ended(self, worker: int) -> None:
        """A worker has ended: it holds nothing any more; its counts stay."""
        for word in (IN_FLIGHT, WAITING, CLOSED, ANSWERING):
            self._words[worker * WIDTH + word] = 0

    def restart(self) -> None:
        """A worker is started in the place of one that ended."""
        self._words[self._first + RESTARTS] += 1

    def swap(self, outcome: str) -> None:
        """outcome: `taken` or `refused`."""
        self._words[self._first + SWAPS + OUTCOMES.index(outcome)] += 1

    def bundle(self, bundle_id: str, kind: str) -> None:
        self._bundle = {"id": bundle_id, "model": kind}

    def collect(self) -> Iterator[Metric]:
        """The sums over all workers, for `prometheus_client`."""
        words = np.frombuffer(self._memory, np.int64).reshape(-1, WIDTH).sum(0).tolist()
        requests = CounterMetricFamily(
            "gigabatch_requests", "Requests by route and status.", labels=["route", "status"]
        )
        seconds = HistogramMetricFamily(
            "gigabatch_request_seconds", "From the request's headers to the end of its answer.", labels=["route"]
        )
        bounds = [*map(floatToGoString, SECONDS), "+Inf"]
        for place, route in enumerate(ROUTES):
            first = REQUESTS + place * STATUSES
            for status, count in enumerate(words[first : first + STATUSES]):
                if count:
                    requests.add_metric([route, str(status)], count)
            *counts, nanoseconds = words[TIMED + place * TIMES : TIMED + (place + 1) * TIMES]
            if any(counts):
                within = np.cumsum(counts).tolist()
                seconds.add_metric([route], list(zip(bounds, within, strict=True)), nanoseconds / 1e9)
        swaps = CounterMetricFamily("gigabatch_swaps", "New bundles, taken or refused.", labels=["outcome"])
        for place, outcome in enumerate(OUTCOMES):
            swaps.add_metric([outcome], words[SWAPS + place])
        yield from (requests, seconds, swaps)
        yield CounterMetricFamily(
            "gigabatch_worker_restarts", "Workers started in the place of one that ended.", words[RESTARTS]
        )
        yield InfoMetricFamily("gigabatch_bundle", "The bundle that answers.", self._bundle)
        for name, text, value in (
            ("in_flight", "Requests that are read, wait or are computed.", words[IN_FLIGHT]),
            ("waiting", "Requests that wait for the model.", words[WAITING]),
            ("workers", "Processes that answer.", words[ANSWERING]),
            ("bundle_age_seconds", "Since the bundle that answers was loaded.", self.age),
            ("bundle_refused", "1 while a newer bundle than the one that answers is refused.", self.behind),
        ):
            yield GaugeMetricFamily(f"gigabatch_{name}", text, value)

    def text(self) -> bytes:
        return generate_latest(self._registry)
