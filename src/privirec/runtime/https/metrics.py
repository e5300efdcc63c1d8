"""Metrics of a server for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest


class ServerMetrics:
    """Counts and bytes of one server, without any client's name."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "privirec_requests", "Requests answered.", ["what", "status"], registry=registry
        )
        self.seconds = Histogram(
            "privirec_request_seconds",
            "Time from a request's head to its answer.",
            buckets=(0.005, 0.02, 0.1, 0.5, 2.0, 10.0),
            registry=registry,
        )
        self.received = Counter(
            "privirec_received_bytes", "Bytes of answers received.", registry=registry
        )
        self.sent = Counter("privirec_sent_bytes", "Bytes of messages sent.", registry=registry)
        self.connections = Gauge("privirec_connections", "Open connections.", registry=registry)
        self.connected = Gauge(
            "privirec_clients_connected", "Clients that were here a moment ago.", registry=registry
        )
        self.approved = Gauge(
            "privirec_clients_approved", "Clients in the roster.", registry=registry
        )
        self.running = Gauge("privirec_run_in_progress", "1 during a run.", registry=registry)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
