"""The process that answers for a client, with the client's own code.

Flower starts `flwr-clientapp` for every message; ours (see `programs`) hands its arguments over to
this process and ends. This process has imported everything once, which is most of the time of a
message, and forks for each one. Bundles that come with a run are neither unpacked nor loaded.

    python -m privirec.carriers.flower.answering SOCKET
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

from privirec.carriers.flower import allowed_programs, rehearsal
from privirec.durable import private_folder, write_whole

INSTALL = "--allow-runtime-dependency-installation"
"""Never ours to pass on."""

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
    """Write the programs of a client; the environment for its SuperNode, and the socket."""
    private_folder(folder)
    there = folder.resolve() / "answer.sock"
    script = folder.resolve() / "hand_over.py"
    text = _HAND_OVER.format(folder=str(there.parent), name=there.name)
    write_whole(script, text.encode())
    command = [sys.executable, "-SE", str(script)]
    return allowed_programs.write_programs(folder, env, {"flwr-clientapp": command}), there


def only_our_own() -> None:
    """Whatever bundle a message comes with, our client answers it; what it depends on is not
    installed, and what goes wrong is told in our words: Flower's would be those of the error."""
    from flwr.app import Error  # noqa: PLC0415 - needs Flower

    from privirec.carriers.flower import client_app  # noqa: PLC0415

    allowed_programs.replace(
        importlib.import_module("flwr.supernode.runtime.run_clientapp"),
        Error=lambda code, **_: Error(code=code, reason=client_app.OWN_PROBLEM),
        install_app_dependencies=lambda *_, **__: None,
        install_from_fab=lambda *_, **__: None,
        get_load_client_app_fn=lambda **_: lambda *_: client_app.app,
    )


def serve(path: Path) -> None:
    """Fork a client for each message that is handed over, until the end of this process."""
    from flwr.supernode.cli import flwr_clientapp  # noqa: PLC0415 - the costly part

    only_our_own()
    rehearsal.check(rehearsal.client)
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
    return [str(argument) for argument in json.loads(content) if argument != INSTALL]


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
