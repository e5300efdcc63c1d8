"""A whole federation on one machine, for any carrier: a server and clients as real processes.

Every client has its own folder and its own processes; they share only the network.
"""

from __future__ import annotations

import itertools
import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from privirec.data.catalogue import Catalogue, write_catalogue
from privirec.data.interactions import Interactions
from privirec.data.text import fits_text, text_lines
from privirec.durable import private_folder, write_whole
from privirec.errors import UsageError
from privirec.privacy.policy import Policy
from privirec.runtime import child_processes
from privirec.runtime.child_processes import Processes, Running
from privirec.runtime.enrolment.certificates import make_certificates
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.runs import Watch
from privirec.runtime.spec import RunSpec

CLIENT_THREADS = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
"""Environment variables for clients that share a machine: one thread per client."""


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
    may_lose: int = 0
    """Number of clients whose processes may end without ending the federation."""

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


def make_federation(
    folder: Path, train: Interactions, n_clients: int, policy: Policy
) -> tuple[OperatorFolder, list[Path]]:
    """Create keys, certificates, the roster, and the folders of the operator and all clients.

    Each client gets a consecutive range of users. Returns the operator's folder and the list of
    the clients' folders.
    """
    if not 1 <= n_clients <= train.n_users:
        raise UsageError(f"{n_clients} clients for {train.n_users} users")
    home = OperatorFolder.create(folder / "server")
    make_certificates(home.folder / "tls")
    write_catalogue(home.folder / "catalogue.txt", Catalogue(train.item_ids))
    edges = [train.n_users * number // n_clients for number in range(n_clients + 1)]
    members = home.members
    clients = []
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        client = ClientFolder.create(folder / f"client-{number}")
        _write_histories(client.folder / "history.txt", train.rows(start, stop))
        write_whole(client.folder / "policy.toml", policy.as_toml().encode())
        shutil.copyfile(home.folder / "catalogue.txt", client.folder / "catalogue.txt")
        shutil.copyfile(home.folder / "tls/ca.crt", client.folder / "ca.crt")
        members = members.approve(client.card(f"client-{number}"))
        clients.append(client.folder)
    home.save(members)
    for path in clients:
        client = ClientFolder(path)
        client.join(client.offered(home.folder / "roster.json"))
        client.write(client.settings.model_copy(update={"histories": "history.txt"}))
    return home, clients


def _write_histories(path: Path, part: Interactions) -> None:
    if fits_text(part.user_ids) and fits_text(part.item_ids):
        write_whole(path, "".join(f"{line}\n" for line in text_lines(part)).encode())
        return
    raise UsageError("a local federation needs users and items that are whole numbers")
