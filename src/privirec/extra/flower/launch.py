"""Flower's own programs: their settings, how they are started, and how they are restarted."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import privirec
from privirec.durable import private_folder, write_whole
from privirec.errors import FederationError, UsageError
from privirec.extra.flower import answering
from privirec.extra.flower.allowed_programs import installed, module, write_programs
from privirec.runtime.child_processes import (
    SERVER,
    Processes,
    Running,
    check_free,
    free_port,
    wait_for_port,
)
from privirec.runtime.enrolment.certificates import check_certificate, make_certificates
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.enrolment.roster import Member
from privirec.version import __version__

FLOWER = "1.41.0"
"""The only supported release, because we patch Flower's internals."""
INSTALL = f"'flwr=={FLOWER}'"
"""Argument of `pip install`: the content of the extra `flower`, as PriviRec is on no index."""
CONNECTION = "privirec"
"""Name of the server in Flower's configuration."""

LARGEST_REPLY = 1 << 29
"""Default for the largest reply of a client that the server accepts, in bytes."""
OPEN = "flower/open"
"""File in the server's folder that exists while clients may connect."""
SAYS = "privirec: "
"""Prefix of the lines of the server's log that are shown to the operator."""
NOT_LET_IN = "Failed to activate SuperNode"
"""Log text of a SuperNode whose key is unknown, or whose predecessor still counts as connected."""
LET_IN = "SuperNode ID:"
"""Log text of a SuperNode that is connected."""
UNANSWERED, ANSWERED = "Connection attempt failed", "Connection successful after"
"""Log texts of a SuperNode while the server does not answer, and when it answers again."""
REVOKED = "410 Gone"
"""Response of `FrontDoor` to a revoked client that proves its key."""
AGAIN = 10.0
"""Seconds until an ended SuperNode is restarted."""
MOST_TRIES = 12
"""Restarts before giving up; together longer than Flower takes to notice that a node is gone."""

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


def check_flower() -> None:
    """Raise UsageError unless the supported release of Flower is installed."""
    if importlib.util.find_spec("flwr") is None:
        raise UsageError(f"a network needs Flower: pip install {INSTALL}")
    if (found := importlib.metadata.version("flwr")) != FLOWER:
        raise UsageError(
            f"Flower {found} is installed, and {FLOWER} is the one that was tried: "
            f"pip install {INSTALL}"
        )


def write_app(folder: Path) -> Path:
    """Write the app folder for `flwr run`. It holds no code, which is installed on both sides."""
    private_folder(folder)
    text = _APP.format(version=__version__)
    write_whole(folder / "pyproject.toml", text.encode())
    return folder


def environment(flower_home: Path, **more: str) -> dict[str, str]:
    """Return an environment for Flower: no telemetry, no update checks, its files in our folder."""
    private_folder(flower_home)
    package = str(Path(privirec.__file__).resolve().parents[1])
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("FLWR_")
        and key.lower() not in ("http_proxy", "https_proxy", "all_proxy")
    }
    return inherited | {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(flower_home.resolve()),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(
            part for part in (package, os.environ.get("PYTHONPATH", "")) if part
        ),
        **more,
    }


def start_superlink(
    running: Processes,
    home: OperatorFolder,
    host: str,
    port: int,
    env: Mapping[str, str],
    largest_reply: int = LARGEST_REPLY,
) -> Running:
    """Start the server's programs and register every approved client; see `link`."""
    for name in ("server.crt", "server.key"):
        if not (home.folder / "tls" / name).is_file():
            path = home.folder / "tls" / name
            raise UsageError(f"{path}: missing; see docs/how-to/federation.md, Certificates")
    check_certificate(home.folder / "tls" / "server.crt")
    check_free(host, port)
    inside = free_port()
    tls = home.folder / "flower" / "tls"
    make_certificates(tls, days=3650)
    write_connection(home.folder / "flower", f"127.0.0.1:{inside}", tls / "ca.crt")
    serving = {"flwr-serverapp": module("privirec.extra.flower.serve_run")}
    link_env = write_programs(home.folder / "flower" / "bin", env, serving)
    (home.folder / OPEN).unlink(missing_ok=True)
    command = [
        *module("privirec.extra.flower.link", str(home.folder), host, str(port)),
        str(largest_reply),
        *("--host", "127.0.0.1", "--port", str(inside)),
        *("--ssl-ca-certfile", str(tls / "ca.crt")),
        *("--ssl-certfile", str(tls / "server.crt")),
        *("--ssl-keyfile", str(tls / "server.key")),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]
    link = running.start(SERVER, command, link_env, home.folder / "superlink.log")
    wait_for_port("127.0.0.1", inside, link)
    for member in home.members.members:
        if not member.revoked:
            register(member, home.folder / "flower", env)
    write_whole(home.folder / OPEN)
    wait_for_port("127.0.0.1" if host == "0.0.0.0" else host, port, link)  # noqa: S104
    return link


def supernode_command(folder: Path, server: str, port: int) -> list[str]:
    """Return the command of a SuperNode; its own processes meet on `port`, on this machine only."""
    return [
        installed("flower-supernode"),
        *("--superlink", server),
        *("--root-certificates", str(folder / "ca.crt")),
        *("--auth-supernode-private-key", str(folder / "node.key")),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--node-config", f"home={json.dumps(str(folder.resolve()))}"),
    ]


def write_connection(flower_home: Path, server: str, ca: Path) -> None:
    """Write the configuration by which `flwr` reaches the server."""
    private_folder(flower_home)
    text = (
        f"[superlink]\ndefault = {json.dumps(CONNECTION)}\n\n[superlink.{CONNECTION}]\n"
        f"address = {json.dumps(server)}\nroot-certificates = {json.dumps(str(ca.resolve()))}\n"
    )
    write_whole(flower_home / "config.toml", text.encode())


def flwr(arguments: Sequence[str], env: Mapping[str, str], *, timeout: float = 120) -> str:
    """Run Flower's command-line tool and return its output; raise FederationError if it fails."""
    try:
        done = subprocess.run(
            [installed("flwr"), *arguments],
            env=dict(env),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FederationError(
            f"flwr {arguments[0]} did not answer within {timeout:.0f} s"
        ) from None
    if done.returncode:
        words = " ".join((done.stdout + done.stderr).split())
        raise FederationError(f"flwr {' '.join(arguments[:2])} failed: {words[-400:]}")
    return done.stdout


def register(member: Member, flower_home: Path, env: Mapping[str, str]) -> None:
    """Register a node's key, without which it cannot connect; do nothing if it is registered."""
    key = flower_home / "node.pub"
    write_whole(key, member.node.encode() + b"\n", durable=False)
    try:
        flwr(["supernode", "register", str(key), CONNECTION], env)
    except FederationError as error:
        if "already" not in str(error):
            raise


@dataclass
class FlowerClient:
    """A SuperNode, and the process that answers its messages.

    After a crash, Flower's server counts the node as connected for another minute. A new SuperNode
    is refused during that time and exits. It also exits when a restarted server has not registered
    it yet. In both cases it is started again.
    """

    processes: Processes
    folder: Path
    server: str
    env: Mapping[str, str]
    node: Running | None = None
    answering: Running | None = None
    again_at: float = 0.0
    tries: int = 0

    def start(self) -> FlowerClient:
        self.env, line = answering.hand_over(self.folder / "flower" / "bin", self.env)
        python = module(answering.__name__, str(line))
        log = self.folder / "supernode.log"
        self.answering = self.processes.start(f"{self.folder.name}+", python, self.env, log)
        self._start_node()
        return self

    def keep_up(self) -> str:
        """Restart the node if it ended, and return the reason (empty if it did not end).

        Raises FederationError if restarting cannot help.
        """
        now = time.monotonic()
        if self.answering is not None:
            self.answering.check()
        if self.node is None:
            if now >= self.again_at:
                self._start_node()
        elif REVOKED in self._said():
            # A SuperNode that was connected keeps running and would not notice.
            raise FederationError(f"{self.folder.name} cannot connect: {_reason(REVOKED)}")
        elif self.node.process.poll() is not None:
            said = _tail(self.node.log)
            reason = _reason(said)
            # If it was connected, the server stopped or restarted: count the tries from one.
            self.tries = 1 if LET_IN in said else self.tries + 1
            if "CERTIFICATE_VERIFY_FAILED" in said or self.tries > MOST_TRIES:
                raise FederationError(f"{self.folder.name} cannot connect: {reason}")
            self.processes.end(self.node)
            self.node, self.again_at = None, now + AGAIN
            return f"not connected: {reason}; trying again"
        return ""

    @property
    def connected(self) -> bool:
        return LET_IN in self._said() and self._said_last(LET_IN, ANSWERED)

    @property
    def unanswered(self) -> bool:
        """True while the node tries to reach a server that does not answer."""
        return self._said_last(UNANSWERED)

    def _said_last(self, *words: str) -> bool:
        """Return True if one of `words` is the node's last log text about its connection."""
        said = self._said()
        last = max((LET_IN, UNANSWERED, ANSWERED), key=said.rfind)
        return last in said and last in words

    def _said(self) -> str:
        return "" if self.node is None else _tail(self.node.log)

    def _start_node(self) -> None:
        command = supernode_command(self.folder, self.server, free_port())
        log = self.folder / "supernode.log"
        self.node = self.processes.start(self.folder.name, command, self.env, log)


def _tail(log: Path) -> str:
    """Return the part of a SuperNode's log since its last start."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return text[max(0, text.rfind("Starting Flower SuperNode")) :]


def _reason(said: str) -> str:
    """Return in one line why a SuperNode ended, given its log."""
    if REVOKED in said:
        return "the operator has revoked this client"
    if NOT_LET_IN in said or ("terminated gracefully" in said and LET_IN not in said):
        return (
            "the server does not know its key, or thinks it is connected already; ask the operator "
            "whether this client is approved, and see that it runs only once"
        )
    if "CERTIFICATE_VERIFY_FAILED" in said:
        (line, *_) = [one for one in said.splitlines() if "CERTIFICATE_VERIFY_FAILED" in one]
        why = line.split("certificate verify failed:")[-1].split("(_ssl")[0].strip()
        return f"the server's certificate is not one that ca.crt vouches for ({why})"
    if "terminated gracefully" in said:
        return "the server ended the connection, as it does when it is started anew"
    told = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    told = [line for line in told if not line.startswith("INFO")]  # its helpers log as they end
    if not told:
        return "no server of Flower's answers; the address of one over HTTPS begins with https://"
    return told[-1][:400]
