"""Starting a run on a server that is up: through a file in its folder, so on its machine only.

SERVER/https/start/NAME    a run that is to be served; there until it has ended, so that a server
                           that was started again goes on with it
SERVER/https/.lock         held by the server while it is up
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from privirec.durable import alone, private_folder, write_whole
from privirec.errors import FederationError
from privirec.runtime.network.enrolment.folders import OperatorFolder
from privirec.runtime.network.runs import RunFile, RunFolder, Watch

PART_BYTES = 1 << 22
"""About how much of an upload, or of a model, goes into one message to a device."""


def own_folder(home: OperatorFolder) -> Path:
    return private_folder(home.folder / "https")


def starts(home: OperatorFolder) -> Path:
    return private_folder(own_folder(home) / "start")


def is_up(home: OperatorFolder) -> bool:
    """Whether a server of this carrier is at work in the folder."""
    if not (home.folder / "https").is_dir():
        return False
    try:
        with alone(home.folder / "https", wait=False):
            return False
    except FederationError:
        return True


def start_run(home: OperatorFolder, name: str, file: RunFile) -> None:
    """Start a run, or go on with one of this name and these settings that did not end."""
    if not is_up(home):
        up = shlex.join(["privirec", "server", "up", str(home.folder), "--carrier", "https"])
        raise FederationError(f"no server is up: {up}")
    terms = file.terms.model_copy(update={"part_bytes": min(file.terms.part_bytes, PART_BYTES)})
    if RunFolder(home, name).prepare(file.model_copy(update={"terms": terms})):
        write_whole(starts(home) / name)


def follow_run(home: OperatorFolder, name: str, watch: Watch) -> dict[str, Any]:
    """Wait for the end of a run: what the server wrote about it."""
    return RunFolder(home, name).follow(watch, lambda: not is_up(home))
