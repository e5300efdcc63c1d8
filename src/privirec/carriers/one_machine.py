"""A whole federation on one machine, for whichever carrier: a server and clients as real processes.

Every client has a folder and processes of its own; nothing is shared but the network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from privirec.carriers import child_processes
from privirec.carriers.child_processes import Processes, Running
from privirec.carriers.made_federation import make_federation
from privirec.data.interactions import Interactions
from privirec.durable import private_folder
from privirec.errors import UsageError
from privirec.privacy.policy import Policy
from privirec.runtime.network.enrolment.folders import OperatorFolder
from privirec.runtime.network.runs import Watch
from privirec.runtime.spec import RunSpec


@dataclass
class OneMachine(ABC):
    """Folders and processes of a federation; use as a context manager."""

    folder: Path
    processes: Processes = field(default_factory=Processes)
    server: OperatorFolder | None = None
    clients: list[Path] = field(default_factory=list)
    link: Running | None = None
    peaks: dict[str, float] = field(default_factory=dict)
    """Largest resident megabytes of each program and all it started."""

    def prepare(self, train: Interactions, n_clients: int, policy: Policy) -> None:
        """Keys, certificates, roster, and the users dealt to the clients in consecutive runs."""
        self.server, self.clients = make_federation(self.folder, train, n_clients, policy)

    @abstractmethod
    def start(self) -> None:
        """The server and all clients."""

    @abstractmethod
    def run(self, name: str, spec: RunSpec, watch: Watch) -> dict[str, Any]:
        """Start a run and wait for its end; what the server wrote about it."""

    @abstractmethod
    def keep_up(self) -> None:
        """Notice what has ended, and start it again where that helps."""

    def looking_after(self, watch: Watch) -> Watch:
        """Passes the status on, once all programs were looked after and their memory noted."""

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
