"""The programs that Flower finds when it starts one: ours, and no others.

Flower runs code that comes with a run: on a client whatever the server bundles, on the server
whatever somebody on that machine hands in. Here that would be code that reads histories, or the
operator's key. Flower starts its programs by name, so the PATH of its processes is one folder of
ours. What is not in there is not found; what is in there and not ours to allow says so and ends.
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
    """A program of this Python environment."""
    return str(Path(sys.executable).parent / name)


def module(name: str, *arguments: str) -> list[str]:
    """A module of ours as a program; -P: whatever lies in the current folder is not imported."""
    return [sys.executable, "-P", "-m", name, *arguments]


def write_programs(
    folder: Path, env: Mapping[str, str], allowed: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Write them, try those that refuse, and return the environment for Flower's processes."""
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
    """Put our own in place of parts of a module of Flower's; another Flower may not have them."""
    for name, part in parts.items():
        if not hasattr(flower, name):
            raise FederationError(f"Flower has no {name} here: foreign code cannot be kept out")
        setattr(flower, name, part)
