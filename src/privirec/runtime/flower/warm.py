"""Flower starts a new client process for every message; importing takes most of its time.

This program imports once and forks a process for each message instead. Flower finds a small
`flwr-clientapp` in front of its own on the PATH, which hands its arguments over and ends; if nobody
takes them, it runs Flower's own.

    python -m privirec.runtime.flower.warm SOCKET
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

from privirec.runtime.files import private_folder, write_whole

_HAND_OVER = """\
#!{python} -SE
import json, os, socket, sys
try:
    line = socket.socket(socket.AF_UNIX)
    os.chdir({folder!r})
    line.connect({name!r})
    line.sendall(json.dumps(sys.argv[1:]).encode())
    line.shutdown(socket.SHUT_WR)
    taken = line.recv(1)
except OSError:
    taken = b""
if not taken:
    os.execv({own!r}, [{own!r}, *sys.argv[1:]])
"""


def hand_over(folder: Path, own: str) -> tuple[Path, Path]:
    """Write the small program; returns the folder for the PATH, and the socket."""
    private_folder(folder)
    there = folder.resolve() / "warm.sock"
    text = _HAND_OVER.format(
        python=sys.executable, folder=str(there.parent), name=there.name, own=own
    )
    write_whole(folder / "flwr-clientapp", text.encode())
    (folder / "flwr-clientapp").chmod(0o700)
    return folder, there


def serve(path: Path) -> None:
    """Fork a client for each message that is handed over, until the end of this process."""
    from flwr.supernode.cli import flwr_clientapp  # noqa: PLC0415 - the costly part

    importlib.import_module("privirec.runtime.flower.client_app")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    os.chdir(path.parent)  # names of sockets are short
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path.name)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)
        os.chmod(path.name, 0o600)
        listening.listen(16)
        while True:
            line, _ = listening.accept()
            with line:
                arguments = _read(line)
                if os.fork() == 0:
                    listening.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    sys.argv = ["flwr-clientapp", *arguments]
                    break
                line.sendall(b"!")
    flwr_clientapp()


def _read(line: socket.socket) -> list[str]:
    content = b""
    while piece := line.recv(1 << 16):
        content += piece
    return [str(argument) for argument in json.loads(content)]


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
