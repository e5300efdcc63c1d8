"""A whole federation on one machine: a SuperLink and SuperNodes as real processes, over TLS.

Every client has a folder and processes of its own; nothing is shared but the network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privirec.carriers import child_processes
from privirec.carriers.child_processes import Processes, Running
from privirec.carriers.flower import launch
from privirec.carriers.flower.launch import FlowerClient
from privirec.carriers.flower.runs import follow_run, start_run
from privirec.carriers.made_federation import CLIENT_THREADS, make_federation
from privirec.data.interactions import Interactions
from privirec.durable import private_folder
from privirec.errors import UsageError
from privirec.privacy.policy import Policy
from privirec.runtime.network.enrolment.folders import OperatorFolder
from privirec.runtime.network.runs import RunFile, Watch


@dataclass
class LocalNetwork:
    """Folders and processes of a federation; use as a context manager."""

    folder: Path
    processes: Processes = field(default_factory=Processes)
    server: OperatorFolder | None = None
    clients: list[Path] = field(default_factory=list)
    running_clients: list[FlowerClient] = field(default_factory=list)
    link: Running | None = None
    peaks: dict[str, float] = field(default_factory=dict)
    """Largest resident megabytes of each program and all it started."""

    def prepare(self, train: Interactions, n_clients: int, policy: Policy) -> None:
        """Keys, certificates, roster, and the users dealt to the clients in consecutive runs."""
        self.server, self.clients = make_federation(self.folder, train, n_clients, policy)

    def start(self, largest_reply: int = launch.LARGEST_REPLY) -> None:
        """The SuperLink and the SuperNodes."""
        home = self._home
        port = child_processes.free_port()
        self.address = f"127.0.0.1:{port}"
        self.env = launch.environment(
            home.folder / "flower", PRIVIREC_SERVER=str(home.folder.resolve())
        )
        self.link = launch.start_superlink(
            self.processes, home, "127.0.0.1", port, self.env, largest_reply
        )
        for path in self.clients:
            self.start_client(path)

    def start_client(self, folder: Path) -> FlowerClient:
        """A client's processes; started again where that helps while a run is followed."""
        env = launch.environment(folder / "flower", **CLIENT_THREADS)
        client = FlowerClient(self.processes, folder, self.address, env).start()
        self.running_clients.append(client)
        return client

    def run(self, name: str, file: RunFile, watch: Watch) -> dict[str, Any]:
        """Start a run and wait for its end; what the server wrote about it."""
        number = start_run(self._home, name, file, self.env)
        return follow_run(
            self._home, name, number, self.env, lambda status: self._look_after(status, watch)
        )

    def _look_after(self, status: dict[str, Any], watch: Watch) -> None:
        """Start again what ended, note the largest memory, pass the status on."""
        for client in self.running_clients:
            client.keep_up()
        if self.link is not None:
            self.link.check()
        now: dict[str, float] = {}
        for one in self.processes.running:
            name = one.name.rstrip("+")
            now[name] = now.get(name, 0.0) + child_processes.memory(one.process.pid)
        self.peaks = {name: max(self.peaks.get(name, 0.0), now[name]) for name in now}
        watch(status)

    @property
    def _home(self) -> OperatorFolder:
        if self.server is None:
            raise UsageError("prepare the federation first")
        return self.server

    def __enter__(self) -> LocalNetwork:
        private_folder(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.stop()
