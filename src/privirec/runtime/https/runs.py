"""Runs on a running server: they are started by a file in its folder, so on its machine only.

SERVER/https/start/NAME    a run to be served; the file exists until the run has ended, so that a
                           restarted server resumes the run
SERVER/https/.lock         held by the server while it is up
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privirec.durable import is_taken, private_folder, write_whole
from privirec.runtime import serving
from privirec.runtime.carriers import HTTPS
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.runs import RunFolder, Watch
from privirec.runtime.spec import RunSpec

PART_BYTES = 1 << 22
"""Approximate size in bytes of the pieces of a model."""


def own_folder(home: OperatorFolder) -> Path:
    return private_folder(home.folder / "https")


def starts(home: OperatorFolder) -> Path:
    return private_folder(own_folder(home) / "start")


def is_up(home: OperatorFolder) -> bool:
    """Return True if a server of this carrier is up in the folder."""
    return is_taken(home.folder / HTTPS)


def start_run(home: OperatorFolder, name: str, spec: RunSpec) -> None:
    """Start a run, or resume an unfinished one of the same name and settings.

    A run that has ended is left alone; for that, no server needs to be up.
    """
    if not (home.run(name) / "result.json").exists():
        serving.check_up(home)
    part_bytes = min(spec.part_bytes, PART_BYTES)
    if RunFolder(home, name).prepare(spec.model_copy(update={"part_bytes": part_bytes})):
        write_whole(starts(home) / name)


def follow_run(home: OperatorFolder, name: str, watch: Watch) -> dict[str, Any]:
    """Wait for the end of a run, and return the server's result record."""
    start = starts(home) / name
    return RunFolder(home, name).follow(
        watch, lambda: not is_up(home), lambda: is_up(home) and not start.exists()
    )
