"""The process that answers messages for a client, with the client's installed code.

Flower starts `flwr-clientapp` for every message. Our program of that name (`allowed_programs`)
passes its arguments to this process and exits. This process has already imported everything, which
takes most of the time of a message, and forks for each message. Bundles that come with a run are
neither unpacked nor loaded.

    python -m privirec.extra.flower.answering SOCKET
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from privirec.durable import private_folder, write_whole
from privirec.extra.flower import allowed_programs, rehearsal

INSTALL = "--allow-runtime-dependency-installation"
"""Option of `flwr-clientapp` that is never passed on."""

_HAND_OVER = """\
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
    sys.exit("privirec: nobody answers for this client")
"""


def hand_over(folder: Path, env: Mapping[str, str]) -> tuple[dict[str, str], Path]:
    """Write a client's programs; return the environment of its SuperNode and the socket's path."""
    private_folder(folder)
    there = folder.resolve() / "answer.sock"
    script = folder.resolve() / "hand_over.py"
    text = _HAND_OVER.format(folder=str(there.parent), name=there.name)
    write_whole(script, text.encode())
    command = [sys.executable, "-SE", str(script)]
    return allowed_programs.write_programs(folder, env, {"flwr-clientapp": command}), there


def only_our_own() -> None:
    """Patch Flower so that our client answers every message, whatever bundle comes with it.

    The bundle's dependencies are not installed. Errors reach the server as a fixed text, because
    Flower would send the text of the exception.
    """
    from flwr.app import Error  # noqa: PLC0415 - needs Flower

    from privirec.extra.flower import client_app  # noqa: PLC0415

    allowed_programs.replace(
        importlib.import_module("flwr.supernode.runtime.run_clientapp"),
        Error=lambda code, **_: Error(code=code, reason=client_app.OWN_PROBLEM),
        install_app_dependencies=lambda *_, **__: None,
        install_from_fab=lambda *_, **__: None,
        get_load_client_app_fn=lambda **_: lambda *_: client_app.app,
    )


def serve(path: Path) -> None:
    """Fork a process for each message that is handed over, until this process ends."""
    from flwr.supernode.cli import flwr_clientapp  # noqa: PLC0415 - the costly part

    only_our_own()
    rehearsal.check(rehearsal.client)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for
    os.chdir(path.parent)  # a socket's path has a short length limit
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
    return [str(argument) for argument in json.loads(content) if argument != INSTALL]


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
