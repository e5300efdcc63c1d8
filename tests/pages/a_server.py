"""Runs in a server's folder as if a server were at work on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from privirec.federated.programs import ProtectedSettings
from privirec.runtime.network.enrolment.folders import OperatorFolder
from privirec.runtime.network.runs import RunFile, RunFolder
from privirec.runtime.terms import RunTerms

FILE = RunFile(terms=RunTerms(settings=ProtectedSettings(way="gram", head=2, clients=3)))


def begin(home: OperatorFolder, name: str, **status: Any) -> Path:
    """As if a server were at work on a run."""
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
