"""A whole federation on one machine, for any carrier: a server and clients as real processes.

Every client has its own folder and its own processes; they share only the network.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import privirec
from privirec.data.catalogue import Catalogue, write_catalogue
from privirec.data.interactions import Interactions
from privirec.data.text import fits_text, text_lines
from privirec.durable import private_folder, write_whole
from privirec.errors import UsageError
from privirec.privacy.policy import Policy
from privirec.runtime import child_processes
from privirec.runtime.carriers import HTTPS, installed_carrier
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
class OneMachine:
    """Folders and processes of a federation, started with the commands of a real one.

    Use as a context manager.
    """

    folder: Path
    carrier: str = HTTPS
    processes: Processes = field(default_factory=Processes)
    server: OperatorFolder | None = None
    clients: list[Path] = field(default_factory=list)
    link: Running | None = None
    port: int = field(default_factory=child_processes.free_port)
    peaks: dict[str, float] = field(default_factory=dict)
    """Peak resident memory of each program and its descendants, in megabytes."""
    may_lose: int = 0
    """Number of clients whose processes may end without ending the federation."""

    def prepare(self, train: Interactions, n_clients: int, policy: Policy) -> None:
        """Create keys, certificates, the roster and all folders; see `make_federation`."""
        self.server, self.clients = make_federation(self.folder, train, n_clients, policy)

    def start(self) -> None:
        """Start the server and all clients."""
        self.start_server()
        for folder in self.clients:
            self.start_client(folder)

    def start_server(self) -> Running:
        """Start the server, and return when it is up."""
        log = self.folder / "server.out"
        before = log.stat().st_size if log.exists() else 0
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--watched-port", "0"]
        command = ["server", "up", str(self.home.folder), *where, "--carrier", self.carrier]
        self.link = self._start(child_processes.SERVER, command, {}, log)
        child_processes.wait_until(lambda: b"Up on" in log.read_bytes()[before:], self.link, 300)
        return self.link

    def start_client(self, folder: Path) -> Running:
        address = f"127.0.0.1:{self.port}"
        server = f"https://{address}" if self.carrier == HTTPS else address
        command = ["client", "up", str(folder), "--server", server]
        return self._start(folder.name, command, CLIENT_THREADS, folder / "client.out")

    def run(self, name: str, spec: RunSpec, watch: Watch) -> dict[str, Any]:
        """Start a run, wait for its end, and return the server's result record."""
        carrier = installed_carrier(self.carrier)
        carrier.start_run(self.home, name, spec)
        return carrier.follow_run(self.home, name, self.looking_after(watch))

    def _check_all(self) -> None:
        """Raise FederationError if the server or too many clients have ended."""
        ended = [one for one in self.processes.running if one.process.poll() is not None]
        lost = [one for one in ended if one is not self.link]
        if len(lost) > self.may_lose or len(ended) > len(lost):
            for one in ended:
                one.check()

    @staticmethod
    def environment() -> dict[str, str]:
        """Return the environment of all processes."""
        package = str(Path(privirec.__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}

    def _start(self, name: str, command: list[str], env: Mapping[str, str], log: Path) -> Running:
        program = [sys.executable, "-P", "-m", "privirec", *command]
        return self.processes.start(name, program, {**self.environment(), **env}, log)

    def looking_after(self, watch: Watch) -> Watch:
        """Return a watch that checks all processes and records their memory, then calls `watch`."""

        def look(status: dict[str, Any]) -> None:
            self._check_all()
            now: dict[str, float] = {}
            for one in self.processes.running:
                now[one.name] = now.get(one.name, 0.0) + child_processes.memory(one.process.pid)
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
