"""What Prometheus reads at /metrics, in a registry of the service's own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

ROUTES = ("/rank", "/recommend", "/score", "/health", "/metrics", "/openapi.json", "/docs")
SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """Counts and times of one service; each method is one event."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        here = self.registry
        self._requests = Counter(
            "gigabatch_requests", "Requests by route and status.", ["route", "status"], registry=here
        )
        self._seconds = Histogram(
            "gigabatch_request_seconds",
            "From the request's headers to the end of its answer.",
            ["route"],
            buckets=SECONDS,
            registry=here,
        )
        self._swaps = Counter("gigabatch_swaps", "New bundles, taken or refused.", ["outcome"], registry=here)
        self._bundle = Info("gigabatch_bundle", "The bundle that answers.", registry=here)
        self.in_flight = Gauge("gigabatch_in_flight", "Requests that are read, wait or are computed.", registry=here)
        self.waiting = Gauge("gigabatch_waiting", "Requests that wait for the model.", registry=here)
        self.age = Gauge("gigabatch_bundle_age_seconds", "Since the bundle that answers was loaded.", registry=here)
        self.behind = Gauge(
            "gigabatch_bundle_refused", "1 while a newer bundle than the one that answers is refused.", registry=here
        )
        for outcome in ("taken", "refused"):
            self._swaps.labels(outcome)

    def request(self, path: str, status: int, seconds: float) -> None:
        """An answered request; paths that are no route count as `other`, so that no one can make up labels."""
        route = path if path in ROUTES else "other"
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def swap(self, outcome: str) -> None:
        """outcome: `taken` or `refused`."""
        self._swaps.labels(outcome).inc()

    def bundle(self, bundle_id: str, kind: str) -> None:
        self._bundle.info({"id": bundle_id, "model": kind})

    def text(self) -> bytes:
        return generate_latest(self.registry)
