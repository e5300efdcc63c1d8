"""A whole federation on one machine over HTTPS: `server up`, and one `client` per folder."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import privirec
from privirec.runtime import child_processes
from privirec.runtime.child_processes import Running
from privirec.runtime.https.runs import follow_run, start_run
from privirec.runtime.one_machine import CLIENT_THREADS, OneMachine
from privirec.runtime.runs import Watch
from privirec.runtime.spec import RunSpec


@dataclass
class HttpsNetwork(OneMachine):
    """A server and clients, started with the same commands as in a real federation."""

    port: int = field(default_factory=child_processes.free_port)

    def start(self) -> None:
        self.start_server()
        for path in self.clients:
            self.start_client(path)

    def start_server(self) -> Running:
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--watched-port", "0"]
        command = ["server", "up", str(self.home.folder), *where]
        log = self.folder / "server.out"
        self.link = self.processes.start(
            child_processes.SERVER, _privirec(*command), _environment(), log
        )
        child_processes.wait_for_port("127.0.0.1", self.port, self.link)
        return self.link

    def start_client(self, folder: Path) -> Running:
        command = _privirec(
            "client", "up", str(folder), "--server", f"https://127.0.0.1:{self.port}"
        )
        env = _environment() | CLIENT_THREADS
        return self.processes.start(folder.name, command, env, folder / "client.out")

    def run(self, name: str, spec: RunSpec, watch: Watch) -> dict[str, Any]:
        start_run(self.home, name, spec)
        return follow_run(self.home, name, self.looking_after(watch))

    def keep_up(self) -> None:
        ended = [one for one in self.processes.running if one.process.poll() is not None]
        lost = [one for one in ended if one is not self.link]
        if len(lost) > self.may_lose or len(ended) > len(lost):
            for one in ended:
                one.check()


def _privirec(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "privirec", *arguments]


def _environment() -> dict[str, str]:
    package = str(Path(privirec.__file__).resolve().parents[1])
    path = os.pathsep.join(part for part in (package, os.environ.get("PYTHONPATH", "")) if part)
    return dict(os.environ) | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
