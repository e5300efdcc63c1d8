"""A whole federation on one machine over HTTPS: a server and clients as real processes."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import privirec
from privirec.carriers import child_processes
from privirec.carriers.child_processes import Processes, Running
from privirec.carriers.https.runs import follow_run, start_run
from privirec.carriers.made_federation import CLIENT_THREADS, make_federation
from privirec.data.interactions import Interactions
from privirec.durable import private_folder
from privirec.errors import UsageError
from privirec.privacy.policy import Policy
from privirec.runtime.network.enrolment.folders import OperatorFolder
from privirec.runtime.network.runs import RunFile, Watch


@dataclass
class HttpsNetwork:
    """Folders and processes of a federation; use as a context manager."""

    folder: Path
    processes: Processes = field(default_factory=Processes)
    server: OperatorFolder | None = None
    clients: list[Path] = field(default_factory=list)
    link: Running | None = None
    peaks: dict[str, float] = field(default_factory=dict)
    """Largest resident megabytes of each program and all it started."""
    port: int = field(default_factory=child_processes.free_port)

    def prepare(self, train: Interactions, n_clients: int, policy: Policy) -> None:
        """Keys, certificates, roster, and the users dealt to the clients in consecutive runs."""
        self.server, self.clients = make_federation(self.folder, train, n_clients, policy)

    def start(self) -> None:
        """The server and all clients."""
        self.start_server()
        for path in self.clients:
            self.start_client(path)

    def start_server(self) -> Running:
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--watched-port", "0"]
        command = ["server", "up", str(self._home.folder), "--carrier", "https", *where]
        log = self.folder / "server.out"
        self.link = self.processes.start(
            child_processes.SERVER, _privirec(*command), _environment(), log
        )
        child_processes.wait_for_port("127.0.0.1", self.port, self.link)
        return self.link

    def start_client(self, folder: Path) -> Running:
        command = _privirec("client", str(folder), "--server", f"https://127.0.0.1:{self.port}")
        env = _environment() | CLIENT_THREADS
        return self.processes.start(folder.name, command, env, folder / "client.out")

    def run(self, name: str, file: RunFile, watch: Watch) -> dict[str, Any]:
        """Start a run and wait for its end; what the server wrote about it."""
        start_run(self._home, name, file)
        return follow_run(self._home, name, lambda status: self._look_after(status, watch))

    def _look_after(self, status: dict[str, Any], watch: Watch) -> None:
        """Notice what ended, note the largest memory, pass the status on."""
        for one in self.processes.running:
            one.check()
            peak = child_processes.memory(one.process.pid)
            self.peaks[one.name] = max(self.peaks.get(one.name, 0.0), peak)
        watch(status)

    @property
    def _home(self) -> OperatorFolder:
        if self.server is None:
            raise UsageError("prepare the federation first")
        return self.server

    def __enter__(self) -> HttpsNetwork:
        private_folder(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.stop()


def _privirec(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "privirec", *arguments]


def _environment() -> dict[str, str]:
    package = str(Path(privirec.__file__).resolve().parents[1])
    path = os.pathsep.join(part for part in (package, os.environ.get("PYTHONPATH", "")) if part)
    return dict(os.environ) | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
