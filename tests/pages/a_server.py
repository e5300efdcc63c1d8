"""Runs in a server's folder as if a server were at work on them."""

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
    """As if a server were up."""
    lock = (private_folder(home.folder / "https") / LOCK).open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    _LOCKS[home.folder] = lock


def kill(home: OperatorFolder) -> None:
    """As kill -9 leaves it: files stay, locks do not."""
    _LOCKS.pop(home.folder).close()


def begin(home: OperatorFolder, name: str, **status: Any) -> Path:
    """As if a server were at work on a run."""
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
