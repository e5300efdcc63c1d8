"""A whole federation on one machine with Flower: a SuperLink and SuperNodes as real processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privirec.extra.flower import launch
from privirec.extra.flower.launch import FlowerClient
from privirec.extra.flower.runs import follow_run, start_run
from privirec.runtime import child_processes
from privirec.runtime.made_federation import CLIENT_THREADS
from privirec.runtime.one_machine import OneMachine
from privirec.runtime.runs import Watch
from privirec.runtime.spec import RunSpec


@dataclass
class FlowerNetwork(OneMachine):
    """A SuperLink, and a SuperNode for each client."""

    running_clients: list[FlowerClient] = field(default_factory=list)

    def start(self, largest_reply: int = launch.LARGEST_REPLY) -> None:
        port = child_processes.free_port()
        self.address = f"127.0.0.1:{port}"
        self.env = launch.environment(
            self.home.folder / "flower", PRIVIREC_SERVER=str(self.home.folder.resolve())
        )
        self.link = launch.start_superlink(
            self.processes, self.home, "127.0.0.1", port, self.env, largest_reply
        )
        for path in self.clients:
            self.start_client(path)

    def start_client(self, folder: Path) -> FlowerClient:
        """Start a client's processes; `keep_up` restarts them while a run is followed."""
        env = launch.environment(folder / "flower", **CLIENT_THREADS)
        client = FlowerClient(self.processes, folder, self.address, env).start()
        self.running_clients.append(client)
        return client

    def run(self, name: str, spec: RunSpec, watch: Watch) -> dict[str, Any]:
        number = start_run(self.home, name, spec, self.env)
        return follow_run(self.home, name, number, self.env, self.looking_after(watch))

    def keep_up(self) -> None:
        for client in self.running_clients:
            client.keep_up()
        if self.link is not None:
            self.link.check()
