"""Flower behind the interface of all carriers: its own programs, started as it documents."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import privirec
from privirec.durable import alone, private_folder, write_whole
from privirec.errors import FederationError, UsageError
from privirec.runtime import serving
from privirec.runtime.carriers import InstalledCarrier, Listening, Say
from privirec.runtime.child_processes import (
    SERVER,
    Processes,
    Running,
    check_free,
    free_port,
    last_line,
    wait_for_port,
)
from privirec.runtime.enrolment.certificates import check_certificate
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.one_machine import CLIENT_THREADS, OneMachine
from privirec.runtime.runs import RunFolder, Watch
from privirec.runtime.spec import RunSpec
from privirec.version import __version__

NAME = "flower"
NUMBER = "flower-run"
"""Name of the file with Flower's number of a run."""
AGAIN, MOST_TRIES = 10.0, 12
"""Seconds until an ended SuperNode is restarted, and restarts before giving up.

For a minute after a crash, Flower counts the node as connected and refuses its successor.
"""
LONG = 300.0
"""Seconds after which a SuperNode that ends was connected; its tries count from one again."""
WARNING = (
    "Anyone who can reach this port can submit Flower apps, which run on the server and on every "
    "client, unless you set up Flower's own account authentication; see docs/how-to/flower.md"
)
_APP = """\
[project]
name = "privirec-federation"
version = "{version}"
description = "PriviRec carried by Flower"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "privirec"

[tool.flwr.app.components]
serverapp = "privirec.extra.flower.server_app:app"
clientapp = "privirec.extra.flower.client_app:app"

[tool.flwr.app.config]
name = ""
"""


class FlowerInstalled(InstalledCarrier):
    """Flower, for people who already run it."""

    name = NAME

    def check_installed(self) -> None:
        if importlib.util.find_spec("flwr") is None:
            raise UsageError("the carrier flower needs Flower: pip install 'flwr>=1.41,<2'")

    def one_machine(self, folder: Path) -> OneMachine:
        return FlowerNetwork(folder)

    def serve(
        self, home: OperatorFolder, listening: Listening, given: Sequence[str], say: Say
    ) -> None:
        if listening.behind_proxy:
            raise UsageError("--behind-proxy is for --carrier https")
        where = shlex.quote(str(home.folder))
        with alone(private_folder(home.folder / NAME), wait=False), Processes() as running:
            serving.remember(home, NAME, given)
            link = start_superlink(running, home, listening.host, listening.port)
            clients = len(home.members.roster())
            say(f"Up on {listening.host}:{listening.port} for {clients} clients; log in {link.log}")
            say(WARNING)
            say(f"Start runs with: privirec server run {where} NAME")
            link.process.wait()
            raise FederationError(f"the server stopped: {last_line(link.log)}")

    def start_run(self, home: OperatorFolder, name: str, spec: RunSpec) -> None:
        run = RunFolder(home, name)
        is_new = not any(run.folder.iterdir())
        if not run.prepare(spec):
            return
        app = private_folder(home.folder / NAME / "app")
        write_whole(app / "pyproject.toml", _APP.format(version=__version__).encode())
        asked = ["run", str(app), NAME, "--run-config", f"name={json.dumps(name)}"]
        try:
            number = str(flwr(asked, home)["run-id"])
        except (FederationError, KeyError) as error:
            if is_new:  # the run never existed, so its name stays free
                shutil.rmtree(run.folder)
            start = serving.how_to_start(home)
            raise FederationError(
                f"the run could not be started ({error}); is it up? {start}"
            ) from None
        write_whole(run.folder / NUMBER, number.encode())

    def follow_run(self, home: OperatorFolder, name: str, watch: Watch) -> dict[str, Any]:
        run = RunFolder(home, name)

        def has_ended() -> bool:
            number = (run.folder / NUMBER).read_text(encoding="ascii")
            listed = flwr(["ls", NAME, "--run-id", number], home).get("runs", [])
            return all(str(one.get("status", "")).startswith("finished") for one in listed)

        return run.follow(watch, has_ended)

    def stay(self, folder: Path, address: str, say: Say) -> None:
        with alone(private_folder(folder / NAME), wait=False), Processes() as running:
            node = SuperNode(running, folder, address)
            say(f"Client connects to {address} by Flower; see {folder / 'supernode.log'}")
            while True:
                if told := node.keep_up():
                    say(told)
                time.sleep(1)


CARRIER = FlowerInstalled()


def environment(flower_home: Path, **more: str) -> dict[str, str]:
    """Return an environment for Flower: no telemetry, no update checks, its files in our folder."""
    package = str(Path(privirec.__file__).resolve().parents[1])
    path = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return dict(os.environ) | {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(private_folder(flower_home).resolve()),
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": os.pathsep.join(path),
        **more,
    }


def start_superlink(running: Processes, home: OperatorFolder, host: str, port: int) -> Running:
    """Start a SuperLink with TLS and node authentication; register every approved client.

    Flower's own processes connect to 127.0.0.1, so the certificate must name that address.
    """
    tls = home.folder / "tls"
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (tls / name).is_file():
            raise UsageError(f"{tls / name}: missing; see docs/how-to/federation.md, Certificates")
    check_certificate(tls / "server.crt")
    check_free(host, port)
    env = environment(home.folder / NAME, PRIVIREC_SERVER=str(home.folder.resolve()))
    link = running.start(
        SERVER,
        [
            *("flower-superlink", "--host", host, "--port", str(port)),
            *("--ssl-ca-certfile", str(tls / "ca.crt")),
            *("--ssl-certfile", str(tls / "server.crt")),
            *("--ssl-keyfile", str(tls / "server.key")),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        ],
        env,
        home.folder / "superlink.log",
    )
    local = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104
    wait_for_port(local, port, link)
    text = (
        f"[superlink]\ndefault = {json.dumps(NAME)}\n\n[superlink.{NAME}]\n"
        f"address = {json.dumps(f'{local}:{port}')}\n"
        f"root-certificates = {json.dumps(str((tls / 'ca.crt').resolve()))}\n"
    )
    write_whole(home.folder / NAME / "config.toml", text.encode())
    for member in home.members.members:
        if not member.revoked:
            key = home.folder / NAME / "node.pub"
            write_whole(key, member.node.encode() + b"\n", durable=False)
            flwr(["supernode", "register", str(key), NAME], home)
    return link


def flwr(arguments: Sequence[str], home: OperatorFolder) -> dict[str, Any]:
    """Run Flower's command-line tool, and return the JSON object that it prints."""
    done = subprocess.run(
        ["flwr", *arguments, "--format", "json"],
        env=(env := environment(home.folder / NAME)),
        executable=shutil.which("flwr", path=env["PATH"]),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    _, begin, rest = done.stdout.partition("{")
    told: dict[str, Any] = json.loads(begin + rest) if begin else {}
    if done.returncode or not told.get("success", True):
        why = told.get("error-message") or done.stdout + done.stderr
        raise FederationError(" ".join(f"flwr {arguments[0]}: {why}".split())[:400])
    return told


@dataclass
class SuperNode:
    """A client's SuperNode, which is started again when it ends."""

    processes: Processes
    folder: Path
    server: str
    more: Mapping[str, str] = field(default_factory=dict)
    node: Running | None = None
    began: float = 0.0
    again_at: float = 0.0
    tries: int = 0

    def keep_up(self) -> str:
        """Start the node if it is not running, and return a sentence if it has just ended."""
        now = time.monotonic()
        if self.node is not None and self.node.process.poll() is not None:
            why = last_line(self.node.log)
            self.processes.end(self.node)
            self.tries = 1 if now - self.began > LONG else self.tries + 1
            self.node, self.again_at = None, now + AGAIN
            if self.tries > MOST_TRIES:
                raise FederationError(f"{self.folder.name} cannot connect: {why}")
            return f"Not connected: {why}; trying again"
        if self.node is None and now >= self.again_at:
            command = [
                *("flower-supernode", "--superlink", self.server),
                *("--root-certificates", str(self.folder / "ca.crt")),
                *("--auth-supernode-private-key", str(self.folder / "node.key")),
                *("--host", "127.0.0.1", "--port", str(free_port())),
                *("--node-config", f"home={json.dumps(str(self.folder.resolve()))}"),
            ]
            env = environment(self.folder / NAME, **self.more)
            log = self.folder / "supernode.log"
            self.node, self.began = self.processes.start(self.folder.name, command, env, log), now
        return ""


@dataclass
class FlowerNetwork(OneMachine):
    """A SuperLink, and a SuperNode for each client, on one machine."""

    nodes: list[SuperNode] = field(default_factory=list)

    def start(self) -> None:
        port = free_port()
        self.link = start_superlink(self.processes, self.home, "127.0.0.1", port)
        for folder in self.clients:
            node = SuperNode(self.processes, folder, f"127.0.0.1:{port}", CLIENT_THREADS)
            node.keep_up()
            self.nodes.append(node)

    def run(self, name: str, spec: RunSpec, watch: Watch) -> dict[str, Any]:
        CARRIER.start_run(self.home, name, spec)
        return CARRIER.follow_run(self.home, name, self.looking_after(watch))

    def keep_up(self) -> None:
        for node in self.nodes:
            node.keep_up()
        if self.link is not None:
            self.link.check()
