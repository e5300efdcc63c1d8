"""The programs that Flower's processes can start: only PriviRec's own.

Flower runs code that comes with a run: on a client the code that the server bundles, on the server
any code that a local user submits. Here such code could read histories or the operator's key.
Flower starts its programs by name, so the PATH of its processes is a single folder that we write.
Programs outside that folder are not found. Flower's other programs are replaced in it by scripts
that print an error and exit.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privirec.durable import private_folder, write_whole
from privirec.errors import FederationError

REFUSED = "privirec: only our own code runs here, and a run asked for "


def installed(name: str) -> str:
    """Return the path of a program in this Python environment."""
    return str(Path(sys.executable).parent / name)


def module(name: str, *arguments: str) -> list[str]:
    """Return a command that runs a module; `-P` keeps the current folder off `sys.path`."""
    return [sys.executable, "-P", "-m", name, *arguments]


def write_programs(
    folder: Path, env: Mapping[str, str], allowed: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Write all programs, and return the environment for Flower's processes.

    `allowed` maps names to commands. All other programs of Flower are written as scripts that
    refuse; each of them is run once, and FederationError is raised if one does not refuse.
    """
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND  # noqa: PLC0415 - needs Flower

    private_folder(folder)
    allowed = {"flower-superexec": [installed("flower-superexec")], **allowed}
    refused = sorted(set(TASK_TYPE_TO_COMMAND.values()) - set(allowed))
    for name in refused:
        say = f"echo {shlex.quote(REFUSED + name)} >&2; exit 1"
        write_whole(folder / name, f"#!/bin/sh\n{say}\n".encode(), mode=0o700)
    for name, command in allowed.items():
        run = f'exec {shlex.join(command)} "$@"'
        write_whole(folder / name, f"#!/bin/sh\n{run}\n".encode(), mode=0o700)
    ours = {**env, "PATH": str(folder.resolve())}
    for name in refused:
        try:
            done = subprocess.run([name], env=ours, capture_output=True, text=True, check=False)
            if done.returncode == 1 and done.stderr.startswith(REFUSED):
                continue
        except OSError:
            pass
        raise FederationError(
            f"{folder}: programs there cannot be run (is it mounted noexec, or has its path a "
            "colon?), and without them Flower would not be kept to our code"
        )
    return ours


def replace(flower: Any, **parts: Any) -> None:
    """Replace attributes of a Flower module.

    Raises FederationError if an attribute is missing, as it may be in another release of Flower.
    """
    for name, part in parts.items():
        if not hasattr(flower, name):
            raise FederationError(f"Flower has no {name} here: foreign code cannot be kept out")
        setattr(flower, name, part)
