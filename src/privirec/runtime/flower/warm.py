"""A client's own code, and no other, answers its messages.

Flower's client runs whatever code the server bundles with a run; here that would be code that reads
histories. So Flower finds our programs in front of its own on the PATH. `flwr-clientapp` hands its
arguments over to this process and ends. This process has imported everything once, which is most of
the time of a message, and forks for each one; bundles are neither unpacked nor loaded. All other
kinds of work that a server can ask a client for are refused.

    python -m privirec.runtime.flower.warm SOCKET
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from privirec.errors import FederationError
from privirec.files import private_folder, write_whole

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
    sys.exit("privirec: nobody answers for this client")
"""

_REFUSE = """\
#!{python} -SE
import sys
sys.exit("privirec: the server asked for {name}, and this client runs its own code only")
"""


def hand_over(folder: Path) -> tuple[Path, Path]:
    """Write the small programs; returns the folder for the PATH, and the socket."""
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND  # noqa: PLC0415 - needs Flower

    private_folder(folder)
    there = folder.resolve() / "warm.sock"
    for name in TASK_TYPE_TO_COMMAND.values():
        text = _REFUSE.format(python=sys.executable, name=name)
        if name == "flwr-clientapp":
            text = _HAND_OVER.format(
                python=sys.executable, folder=str(there.parent), name=there.name
            )
        write_whole(folder / name, text.encode())
        (folder / name).chmod(0o700)
    return folder, there


def only_our_own() -> None:
    """Whatever bundle a message comes with, our client answers it."""
    from flwr.supernode.runtime import run_clientapp  # noqa: PLC0415 - needs Flower

    from privirec.runtime.flower import client_app  # noqa: PLC0415 - needs Flower

    for name in ("install_from_fab", "get_load_client_app_fn"):
        if not hasattr(run_clientapp, name):  # another Flower than the one we know
            raise FederationError(f"Flower has no {name} here: its bundles cannot be kept out")
    changed: Any = run_clientapp
    changed.install_from_fab = lambda *_, **__: None
    changed.get_load_client_app_fn = lambda **_: lambda *_: client_app.app


def serve(path: Path) -> None:
    """Fork a client for each message that is handed over, until the end of this process."""
    from flwr.supernode.cli import flwr_clientapp  # noqa: PLC0415 - the costly part

    only_our_own()
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
