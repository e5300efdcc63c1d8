"""A whole federation on one machine, for any carrier: a server and clients as real processes.

Every client has its own folder and its own processes; they share only the network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from privirec.data.interactions import Interactions
from privirec.durable import private_folder
from privirec.errors import UsageError
from privirec.privacy.policy import Policy
from privirec.runtime import child_processes
from privirec.runtime.child_processes import Processes, Running
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.made_federation import make_federation
from privirec.runtime.runs import Watch
from privirec.runtime.spec import RunSpec


@dataclass
class OneMachine(ABC):
    """Folders and processes of a federation. Use as a context manager."""

    folder: Path
    processes: Processes = field(default_factory=Processes)
    server: OperatorFolder | None = None
    clients: list[Path] = field(default_factory=list)
    link: Running | None = None
    peaks: dict[str, float] = field(default_factory=dict)
    """Peak resident memory of each program and its descendants, in megabytes."""

    def prepare(self, train: Interactions, n_clients: int, policy: Policy) -> None:
        """Create keys, certificates, the roster and all folders; see `make_federation`."""
        self.server, self.clients = make_federation(self.folder, train, n_clients, policy)

    @abstractmethod
    def start(self) -> None:
        """Start the server and all clients."""

    @abstractmethod
    def run(self, name: str, spec: RunSpec, watch: Watch) -> dict[str, Any]:
        """Start a run, wait for its end, and return the server's result record."""

    @abstractmethod
    def keep_up(self) -> None:
        """Detect processes that have ended; restart those that can be restarted."""

    def looking_after(self, watch: Watch) -> Watch:
        """Return a watch that checks all processes and records their memory, then calls `watch`."""

        def look(status: dict[str, Any]) -> None:
            self.keep_up()
            now: dict[str, float] = {}
            for one in self.processes.running:
                name = one.name.rstrip("+")
                now[name] = now.get(name, 0.0) + child_processes.memory(one.process.pid)
            self.peaks |= {name: max(self.peaks.get(name, 0.0), now[name]) for name in now}
            watch(status)

        return look

    @property
    def home(self) -> OperatorFolder:
        """The operator's folder."""
        if self.server is None:
            raise UsageError("prepare the federation first")
        return self.server

    def __enter__(self) -> Self:
        private_folder(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.stop()
