"""A whole federation on one machine: a SuperLink and SuperNodes as real processes, over TLS.

Every client has a folder and processes of its own; nothing is shared but the network.
"""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from privirec.carriers import child_processes
from privirec.carriers.child_processes import Processes, Running
from privirec.carriers.flower import launch
from privirec.carriers.flower.launch import FlowerClient
from privirec.carriers.flower.runs import follow_run, start_run
from privirec.data.catalogue import Catalogue, write_catalogue
from privirec.data.interactions import Interactions
from privirec.data.text import fits_text, text_lines
from privirec.durable import private_folder, write_whole
from privirec.errors import UsageError
from privirec.privacy.policy import Policy
from privirec.runtime.network.enrolment.certificates import make_certificates
from privirec.runtime.network.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.network.runs import RunFile, Watch

CLIENT_THREADS = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


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
        if not 1 <= n_clients <= train.n_users:
            raise UsageError(f"{n_clients} clients for {train.n_users} users")
        home = self.server = OperatorFolder.create(self.folder / "server")
        make_certificates(home.folder / "tls")
        catalogue = Catalogue(train.item_ids)
        write_catalogue(home.folder / "catalogue.txt", catalogue)
        edges = np.linspace(0, train.n_users, n_clients + 1).astype(int).tolist()
        members = home.members
        for number, (start, stop) in enumerate(itertools.pairwise(edges)):
            client = ClientFolder.create(self.folder / f"client-{number}")
            _write_histories(client.folder / "history.txt", train.rows(start, stop))
            write_whole(client.folder / "policy.toml", policy.as_toml().encode())
            shutil.copyfile(home.folder / "catalogue.txt", client.folder / "catalogue.txt")
            shutil.copyfile(home.folder / "tls/ca.crt", client.folder / "ca.crt")
            members = members.approve(client.card(f"client-{number}"))
            self.clients.append(client.folder)
        home.save(members)
        for path in self.clients:
            client = ClientFolder(path)
            client.join(client.offered(home.folder / "roster.json"))
            client.write(client.settings.model_copy(update={"histories": "history.txt"}))

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


def _write_histories(path: Path, part: Interactions) -> None:
    if fits_text(part.user_ids) and fits_text(part.item_ids):
        write_whole(path, "".join(f"{line}\n" for line in text_lines(part)).encode())
        return
    raise UsageError("a local federation needs users and items that are whole numbers")
