"""Child processes that end, with all their descendants, when this process ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from privirec.errors import FederationError, UsageError

SERVER = "server"
"""Name of the server's process in a federation on one machine."""


@dataclass
class Running:
    """A child process, its name, and the log that receives its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        if self.process.poll() is not None:
            raise FederationError(f"{self.name} stopped: {last_line(self.log)}")


@dataclass
class Processes:
    """Child processes that are stopped on exit. Use as a context manager."""

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
        """Stop one child process and its descendants."""
        self._end([one])
        self.running.remove(one)

    def stop(self) -> None:
        """Stop all child processes and their descendants."""
        self._end(self.running)
        self.running.clear()

    def _end(self, ending: Sequence[Running]) -> None:
        all_of_them = {pid for one in ending for pid in family(one.process.pid)}
        for number in (signal.SIGTERM, signal.SIGKILL):
            for one in ending:  # the process group: descendants may outlive the process itself
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(one.process.pid, number)
            for pid in all_of_them:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            deadline = time.monotonic() + 8
            while time.monotonic() < deadline and any(map(psutil.pid_exists, all_of_them)):
                for one in ending:
                    one.process.poll()
                time.sleep(0.1)
            all_of_them = {pid for pid in all_of_them if psutil.pid_exists(pid)}
        for one in ending:
            one.process.wait()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def family(pid: int) -> set[int]:
    """Return the PIDs of a process and all its descendants."""
    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.NoSuchProcess:
        return {pid}


def memory(pid: int) -> float:
    """Return the resident memory of a process and its descendants, in megabytes."""
    total = 0
    for one in family(pid):
        with contextlib.suppress(psutil.Error):
            total += psutil.Process(one).memory_info().rss
    return total / 1e6


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_free(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(f"cannot listen on {host}:{port} ({error.strerror})") from None


def wait_until(is_up: Callable[[], bool], running: Running, seconds: float = 60) -> None:
    """Wait until `is_up` returns True.

    Raises FederationError if the process ends first, or after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        running.check()
        if is_up():
            return
        time.sleep(0.2)
    raise FederationError(f"{running.name} did not start within {seconds:.0f} s; see {running.log}")


def listens(host: str, port: int) -> bool:
    """Return True if the port accepts connections."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def last_line(log: Path) -> str:
    """Return the last line of a program's log, for an error message."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    told = [" ".join(line.split()) for line in lines if line.strip()]
    return (told[-1] if told else "without a word")[:400]


def _die_with_parent() -> None:
    """On Linux, ask for SIGTERM when the parent ends, even if the parent is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
