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
from collections.abc import Sequence
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
    listens,
    wait_until,
)
from privirec.runtime.enrolment.certificates import check_certificate
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.runs import RunFolder, Watch
from privirec.runtime.spec import RunSpec

NAME = "flower"
NUMBER = "flower-run"
"""Name of the file with Flower's number of a run."""
APP = Path(__file__).with_name("app")
AGAIN = 10.0
"""Seconds until an ended SuperNode is restarted.

For a minute after a crash, Flower counts the node as connected and refuses its successor.
"""
WARNING = (
    "Anyone who can reach this port can submit Flower apps, which run on the server and on every "
    "client, unless you set up Flower's own account authentication; see docs/how-to/flower.md"
)


class FlowerInstalled(InstalledCarrier):
    """Flower, for people who already run it."""

    name = NAME

    def check_installed(self) -> None:
        if importlib.util.find_spec("flwr") is None:
            raise UsageError("the carrier flower needs Flower: pip install 'flwr>=1.41,<2'")

    def serve(
        self, home: OperatorFolder, listening: Listening, given: Sequence[str], say: Say
    ) -> None:
        if listening.behind_proxy:
            raise UsageError("--behind-proxy is for --carrier https")
        with alone(private_folder(home.folder / NAME), wait=False), Processes() as running:
            serving.remember(home, NAME, given)
            link = start_superlink(running, home, listening.host, listening.port)
            clients = len(home.members.roster())
            say(f"Up on {listening.host}:{listening.port} for {clients} clients; log in {link.log}")
            say(WARNING)
            say(f"Start runs with: privirec server run {shlex.quote(str(home.folder))} NAME")
            link.process.wait()
            raise FederationError(f"the server stopped: {last_line(link.log)}")

    def start_run(self, home: OperatorFolder, name: str, spec: RunSpec) -> None:
        run = RunFolder(home, name)
        is_new = not any(run.folder.iterdir())
        if not run.prepare(spec):
            return
        try:
            started = flwr(home, "run", str(APP), NAME, "--run-config", f"name={json.dumps(name)}")
            number = str(started["run-id"])
        except (FederationError, KeyError) as error:
            if is_new:  # the run never existed, so its name stays free
                shutil.rmtree(run.folder)
            why = f"the run could not be started ({error}); is it up?"
            raise FederationError(f"{why} {serving.how_to_start(home)}") from None
        write_whole(run.folder / NUMBER, number.encode())

    def follow_run(self, home: OperatorFolder, name: str, watch: Watch) -> dict[str, Any]:
        run = RunFolder(home, name)

        def has_ended() -> bool:
            number = (run.folder / NUMBER).read_text(encoding="ascii")
            listed = flwr(home, "ls", NAME, "--run-id", number).get("runs", [])
            return all(str(one.get("status", "")).startswith("finished") for one in listed)

        return run.follow(watch, has_ended)

    def stay(self, folder: Path, address: str, say: Say) -> None:
        with alone(private_folder(folder / NAME), wait=False), Processes() as running:
            say(f"Client connects to {address} by Flower; see {folder / 'supernode.log'}")
            while True:
                node = start_supernode(running, folder, address)
                node.process.wait()
                running.end(node)
                say(f"Not connected: {last_line(node.log)}; trying again")
                time.sleep(AGAIN)


CARRIER = FlowerInstalled()


def environment(flower_home: Path, **more: str) -> dict[str, str]:
    """Return an environment for Flower: no telemetry, no update checks, its files in our folder."""
    package, programs = Path(privirec.__file__).resolve().parents[1], Path(sys.executable).parent
    return dict(os.environ) | {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(private_folder(flower_home).resolve()),
        "PATH": os.pathsep.join([str(programs), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")]),
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
    command = [
        *("flower-superlink", "--host", host, "--port", str(port)),
        *("--ssl-ca-certfile", str(tls / "ca.crt")),
        *("--ssl-certfile", str(tls / "server.crt"), "--ssl-keyfile", str(tls / "server.key")),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
    ]
    env = environment(home.folder / NAME, PRIVIREC_SERVER=str(home.folder.resolve()))
    link = running.start(SERVER, command, env, home.folder / "superlink.log")
    local = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104
    wait_until(lambda: listens(local, port), link)
    text = (
        f"[superlink]\ndefault = {json.dumps(NAME)}\n\n[superlink.{NAME}]\n"
        f"address = {json.dumps(f'{local}:{port}')}\n"
        f"root-certificates = {json.dumps(str((tls / 'ca.crt').resolve()))}\n"
    )
    write_whole(home.folder / NAME / "config.toml", text.encode())
    key = home.folder / NAME / "node.pub"
    for member in home.members.members:
        if not member.revoked:
            write_whole(key, member.node.encode() + b"\n", durable=False)
            flwr(home, "supernode", "register", str(key), NAME)
    return link


def start_supernode(running: Processes, folder: Path, address: str) -> Running:
    """Start the SuperNode of a client."""
    command = [
        *("flower-supernode", "--superlink", address),
        *("--root-certificates", str(folder / "ca.crt")),
        *("--auth-supernode-private-key", str(folder / "node.key")),
        *("--host", "127.0.0.1", "--port", str(free_port())),
        *("--node-config", f"home={json.dumps(str(folder.resolve()))}"),
    ]
    return running.start(NAME, command, environment(folder / NAME), folder / "supernode.log")


def flwr(home: OperatorFolder, *arguments: str) -> dict[str, Any]:
    """Run Flower's command-line tool, and return the JSON object that it prints."""
    env = environment(home.folder / NAME)
    command = [shutil.which("flwr", path=env["PATH"]) or "flwr", *arguments, "--format", "json"]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    _, begin, rest = done.stdout.partition("{")
    told: dict[str, Any] = json.loads(begin + rest) if begin else {}
    if done.returncode or not told.get("success", True):
        why = told.get("error-message") or done.stdout + done.stderr
        raise FederationError(" ".join(f"flwr {arguments[0]}: {why}".split())[:400])
    return told
