"""Flower's own programs, started with our settings and ended whatever happens."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import privirec
from privirec.carriers.flower import warm
from privirec.carriers.flower.programs import installed, module, write_programs
from privirec.durable import private_folder, write_whole
from privirec.errors import FederationError, UsageError
from privirec.runtime.network.enrolment.certificates import check_certificate, make_certificates
from privirec.runtime.network.enrolment.homes import ServerHome
from privirec.runtime.terms import run_defaults
from privirec.version import __version__

CONNECTION = "privirec"
"""Name of the server in Flower's configuration."""

OPEN = "flower/open"
"""In the server's folder when clients may come."""
SAYS = "privirec: "
"""Begins the lines of the server's log that are for people."""
NOT_LET_IN = "Failed to activate SuperNode"
"""What a SuperNode says when its predecessor is still thought to be there, or nobody knows it."""
LET_IN = "SuperNode ID:"
"""What it says when it is connected."""
AGAIN = 10.0
"""Seconds until it tries again."""
MOST_TRIES = 12
"""Longer than Flower believes in a node that is gone."""

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
serverapp = "privirec.carriers.flower.server_app:app"
clientapp = "privirec.carriers.flower.client_app:app"

[tool.flwr.app.config]
{config}
"""


def check_flower() -> None:
    """One line for who has not got it."""
    if importlib.util.find_spec("flwr") is None:
        raise UsageError("a network needs Flower: pip install 'privirec[flower]'")


def write_app(folder: Path) -> Path:
    """The folder that `flwr run` takes. It holds no code: that is installed on both sides."""
    private_folder(folder)
    config = "\n".join(f"{name} = {json.dumps(value)}" for name, value in run_defaults().items())
    text = _APP.format(version=__version__, config=config)
    write_whole(folder / "pyproject.toml", text.encode())
    return folder


def environment(flower_home: Path, **more: str) -> dict[str, str]:
    """Flower without telemetry, without update checks, and with its files in our folder."""
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
        "FLWR_HOME": str(flower_home.resolve()),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(
            part for part in (package, os.environ.get("PYTHONPATH", "")) if part
        ),
        **more,
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_superlink(
    running: Processes, home: ServerHome, host: str, port: int, env: Mapping[str, str]
) -> Running:
    """The server's programs, up and with every client of the roster let in; see `link`."""
    for name in ("server.crt", "server.key"):
        if not (home.folder / "tls" / name).is_file():
            path = home.folder / "tls" / name
            raise UsageError(f"{path}: missing; see docs/operate.md, Certificates")
    check_certificate(home.folder / "tls" / "server.crt")
    _check_free(host, port)
    inside = free_port()
    tls = home.folder / "flower" / "tls"
    make_certificates(tls, days=3650)
    write_connection(home.folder / "flower", f"127.0.0.1:{inside}", tls / "ca.crt")
    serving = {"flwr-serverapp": module("privirec.carriers.flower.serve_run")}
    link_env = write_programs(home.folder / "flower" / "bin", env, serving)
    (home.folder / OPEN).unlink(missing_ok=True)
    command = [
        *module("privirec.carriers.flower.link", str(home.folder), host, str(port)),
        *("--host", "127.0.0.1", "--port", str(inside)),
        *("--ssl-ca-certfile", str(tls / "ca.crt")),
        *("--ssl-certfile", str(tls / "server.crt")),
        *("--ssl-keyfile", str(tls / "server.key")),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]
    link = running.start("superlink", command, link_env, home.folder / "superlink.log")
    wait_for_port("127.0.0.1", inside, link)
    for client in home.members.roster():
        register(home.folder / f"nodes/{client}.pub", env)
    write_whole(home.folder / OPEN)
    wait_for_port("127.0.0.1" if host == "0.0.0.0" else host, port, link)  # noqa: S104
    return link


def _check_free(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(f"cannot listen on {host}:{port} ({error.strerror})") from None


def supernode_command(folder: Path, server: str, port: int) -> list[str]:
    """`port`: where the node's own processes meet, on this machine only."""
    return [
        installed("flower-supernode"),
        *("--superlink", server),
        *("--root-certificates", str(folder / "ca.crt")),
        *("--auth-supernode-private-key", str(folder / "node.key")),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--node-config", f"home={json.dumps(str(folder.resolve()))}"),
    ]


def write_connection(flower_home: Path, server: str, ca: Path) -> None:
    """How `flwr` reaches the server."""
    private_folder(flower_home)
    text = (
        f"[superlink]\ndefault = {json.dumps(CONNECTION)}\n\n[superlink.{CONNECTION}]\n"
        f"address = {json.dumps(server)}\nroot-certificates = {json.dumps(str(ca.resolve()))}\n"
    )
    write_whole(flower_home / "config.toml", text.encode())


def flwr(arguments: Sequence[str], env: Mapping[str, str], *, timeout: float = 120) -> str:
    """Run Flower's command line tool; what it complains about in one line."""
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


def register(key: Path, env: Mapping[str, str]) -> None:
    """Let a node in: only registered keys can connect. One that is in already stays."""
    try:
        flwr(["supernode", "register", str(key), CONNECTION], env)
    except FederationError as error:
        if "already" not in str(error):
            raise


@dataclass
class Running:
    """A program that was started here, with all that it starts."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        if self.process.poll() is not None:
            raise FederationError(f"{self.name} stopped: {last_line(self.log)}")


@dataclass
class Processes:
    """Programs that end with this one. Use as a context manager."""

    running: list[Running] = field(default_factory=list)

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path
    ) -> Running:
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as out:
            process = subprocess.Popen(
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - started before any thread
            )
        started = Running(name, process, log)
        self.running.append(started)
        return started

    def end(self, one: Running) -> None:
        """End one of them, and what it started."""
        self._end([one])
        self.running.remove(one)

    def stop(self) -> None:
        """End all of them, and what they started."""
        self._end(self.running)
        self.running.clear()

    def _end(self, ending: Sequence[Running]) -> None:
        all_of_them = {pid for one in ending for pid in family(one.process.pid)}
        for number in (signal.SIGTERM, signal.SIGKILL):
            for one in ending:  # the group: what is left of one that ended before
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(one.process.pid, number)
            for pid in all_of_them:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            deadline = time.monotonic() + 8
            while time.monotonic() < deadline and any(map(_lives, all_of_them)):
                for one in ending:
                    one.process.poll()
                time.sleep(0.1)
            all_of_them = {pid for pid in all_of_them if _lives(pid)}
        for one in ending:
            one.process.wait()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@dataclass
class Client:
    """A SuperNode, and beside it the process that answers its messages.

    After a crash Flower believes for a minute that the node is still there, and its program ends
    when it is not let in. It also ends when a server that was started anew does not know it yet.
    Then it is started again.
    """

    processes: Processes
    folder: Path
    server: str
    env: Mapping[str, str]
    node: Running | None = None
    answering: Running | None = None
    again_at: float = 0.0
    tries: int = 0

    def start(self) -> Client:
        self.env, line = warm.hand_over(self.folder / "flower" / "bin", self.env)
        python = module(warm.__name__, str(line))
        log = self.folder / "supernode.log"
        self.answering = self.processes.start(f"{self.folder.name}+", python, self.env, log)
        self._start_node()
        return self

    def look(self) -> str:
        """Start the node again where it ended, and say why it did; raise where it is no use."""
        now = time.monotonic()
        if self.answering is not None:
            self.answering.check()
        if self.node is None:
            if now >= self.again_at:
                self._start_node()
        elif self.node.process.poll() is not None:
            said = _tail(self.node.log)
            reason = _reason(said)
            # It was in and the server went away, or was started anew: count from the beginning.
            self.tries = 1 if LET_IN in said else self.tries + 1
            if "CERTIFICATE_VERIFY_FAILED" in said or self.tries > MOST_TRIES:
                raise FederationError(f"{self.folder.name} cannot connect: {reason}")
            self.processes.end(self.node)
            self.node, self.again_at = None, now + AGAIN
            return f"not connected: {reason}; trying again"
        return ""

    @property
    def connected(self) -> bool:
        return self.node is not None and LET_IN in _tail(self.node.log)

    def _start_node(self) -> None:
        command = supernode_command(self.folder, self.server, free_port())
        log = self.folder / "supernode.log"
        self.node = self.processes.start(self.folder.name, command, self.env, log)


def wait_for_port(host: str, port: int, running: Running, seconds: float = 60) -> None:
    """Until somebody listens there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        running.check()
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.2)
    raise FederationError(f"{running.name} did not start within {seconds:.0f} s; see {running.log}")


def family(pid: int) -> set[int]:
    """A process and all that it started, as far as /proc tells."""
    parents: dict[int, int] = {}
    for process in _processes():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (process / "stat").read_text(encoding="ascii", errors="replace")
            parents[int(process.name)] = int(fields.rsplit(")", 1)[1].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def memory(pid: int) -> float:
    """Resident megabytes of a process and all that it started."""
    page = os.sysconf("SC_PAGE_SIZE") / 1e6
    total = 0.0
    for one in family(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int(Path(f"/proc/{one}/statm").read_text(encoding="ascii").split()[1]) * page
    return total


def _processes() -> Iterator[Path]:
    root = Path("/proc")
    if root.is_dir():
        yield from (path for path in root.iterdir() if path.name.isdigit())


def _tail(log: Path) -> str:
    """What was said since the last start."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return text[max(0, text.rfind("Starting Flower SuperNode")) :]


def _reason(said: str) -> str:
    """Why a SuperNode ended, in one line."""
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
    return (told[-1] if told else "without a word")[:400]


def last_line(log: Path) -> str:
    """What a program said last, for an error message."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    told = [" ".join(line.split()) for line in lines if line.strip()]
    return (told[-1] if told else "without a word")[:400]


def _die_with_parent() -> None:
    """On Linux a child hears of its parent's end even if that was a kill."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
