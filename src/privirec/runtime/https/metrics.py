"""Metrics of a server for Prometheus."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

from privirec.runtime.coordinator.clients import ClientState


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
        self.runs = Counter(
            "privirec_runs", "Runs that ended, by how.", ["result"], registry=registry
        )
        self.dropped = Counter(
            "privirec_clients_dropped", "Clients that dropped out of a run.", registry=registry
        )
        self.absent = Counter(
            "privirec_clients_absent",
            "Approved clients that did not come to a run.",
            registry=registry,
        )
        self.last_run = Gauge(
            "privirec_last_run_timestamp_seconds",
            "End of the last run with a model.",
            registry=registry,
        )
        self.last_run_clients = Gauge(
            "privirec_last_run_clients", "Clients in the sums of that run.", registry=registry
        )
        self.free = Gauge("privirec_disk_free_bytes", "Room on the disk.", registry=registry)
        self.certificate = Gauge(
            "privirec_certificate_end_timestamp_seconds",
            "End of the server's certificate; 0 behind a proxy.",
            registry=registry,
        )

    def look_at(self, folder: Path) -> None:
        """Update the gauges of the server's folder."""
        self.free.set(shutil.disk_usage(folder).free)

    def count_run(self, result: Mapping[str, Any]) -> None:
        """Count a run that ended; an empty result is one of a run that could not go on."""
        how = "failed" if not result else "stopped" if result.get("reason") else "done"
        self.runs.labels(how).inc()
        states = [each["state"] for each in result.get("status", {}).get("clients", {}).values()]
        self.dropped.inc(states.count(ClientState.DROPPED.value))
        self.absent.inc(states.count(ClientState.NOT_HERE.value))
        if how == "done":
            self.last_run.set_to_current_time()
            self.last_run_clients.set(sum(not ClientState(state).is_missing for state in states))

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
