"""Starting a run on a server that is up: through a file in its folder, so on its machine only.

SERVER/https/start/NAME    a run that is to be served; there until it has ended, so that a server
                           that was started again goes on with it
SERVER/https/.lock         held by the server while it is up
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privirec.carriers import serving
from privirec.durable import is_taken, private_folder, write_whole
from privirec.runtime.network.enrolment.folders import OperatorFolder
from privirec.runtime.network.runs import RunFolder, Watch
from privirec.runtime.spec import RunSpec

PART_BYTES = 1 << 22
"""About how much of an upload, or of a model, goes into one message to a device."""


def own_folder(home: OperatorFolder) -> Path:
    return private_folder(home.folder / "https")


def starts(home: OperatorFolder) -> Path:
    return private_folder(own_folder(home) / "start")


def is_up(home: OperatorFolder) -> bool:
    """Whether a server of this carrier is at work in the folder."""
    return is_taken(home.folder / serving.HTTPS)


def start_run(home: OperatorFolder, name: str, spec: RunSpec) -> None:
    """Start a run, or go on with one of this name and these settings. One that has ended stays as
    it is, and takes no server."""
    if not (home.run(name) / "result.json").exists():
        serving.check_up(home)
    part_bytes = min(spec.part_bytes, PART_BYTES)
    if RunFolder(home, name).prepare(spec.model_copy(update={"part_bytes": part_bytes})):
        write_whole(starts(home) / name)


def follow_run(home: OperatorFolder, name: str, watch: Watch) -> dict[str, Any]:
    """Wait for the end of a run: what the server wrote about it."""
    return RunFolder(home, name).follow(watch, lambda: not is_up(home))
