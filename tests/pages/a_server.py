"""Simulated server: runs in a server's folder without a server process."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import IO, Any

from privirec.durable import LOCK, private_folder
from privirec.federated.programs import ProtectedSettings
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.runs import RunFolder
from privirec.runtime.spec import RunSpec

FILE = RunSpec(program=ProtectedSettings(way="gram", head=2, clients=3))


_LOCKS: dict[Path, IO[bytes]] = {}


def up(home: OperatorFolder) -> None:
    """Simulate a server that is up."""
    lock = (private_folder(home.folder / "https") / LOCK).open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    _LOCKS[home.folder] = lock


def kill(home: OperatorFolder) -> None:
    """Simulate `kill -9`: files stay, locks are released."""
    _LOCKS.pop(home.folder).close()


def begin(home: OperatorFolder, name: str, **status: Any) -> Path:
    """Simulate a server that is working on a run."""
    if home.folder not in _LOCKS:
        up(home)
    run = RunFolder(home, name)
    run.prepare(FILE)
    line = {"state": "answered", "users": 7, "bytes_up": 2000, "bytes_down": 3000, "why": ""}
    dropped = line | {"state": "dropped", "why": "<i>its line</i>"}
    known = {
        "run": "ab" * 16,
        "stage": "summing",
        "step": "input",
        "sum": "noisy-head-gram",
        "sum_number": 2,
        "sums": 3,
        "reason": "",
        "waited": 15,
        "clients": {"0": line, "1": dropped},
    }
    (run.folder / "status.json").write_text(json.dumps(known | status))
    return run.folder
