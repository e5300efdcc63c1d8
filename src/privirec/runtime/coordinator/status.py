"""The status file of a run, for users and for programs that follow the run."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from privirec.durable import write_whole
from privirec.runtime.coordinator.clients import RemoteClient
from privirec.runtime.coordinator.run_state import ServerRun, Stage


def status_of(run: ServerRun, clients: dict[int, RemoteClient], waited: float) -> dict[str, Any]:
    """Return the status as plain values; `waited` is in seconds since the stage or step began."""
    computation = run.computation
    asked = computation.asked if computation else None
    return {
        "run": run.number,
        "stage": run.stage.value,
        "step": computation.step.name if computation and run.stage is Stage.SUMMING else "",
        "sum": asked.ask.name if asked else "",
        "sum_number": asked.number if asked else 0,
        "sums": len(run.plan.sums) if computation else 0,
        "reason": run.reason,
        "waited": int(waited) // 5 * 5,
        "clients": {str(number): client.as_row() for number, client in clients.items()},
    }


class StatusFile:
    """File with the status, rewritten only when the status changes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "status.json"
        self._written = ""

    def write(self, status: dict[str, Any]) -> None:
        text = json.dumps(status)
        if text != self._written:
            self._written = text
            write_whole(self._path, text.encode(), durable=False)

    def waited_before(self, now: dict[str, Any]) -> float:
        """Return how long this step had lasted when the server stopped.

        The time limit of a step includes it, so restarts do not extend the limit.
        """
        with suppress(OSError, ValueError, KeyError, TypeError):
            status = json.loads(self._path.read_bytes())
            if all(status[key] == now[key] for key in ("run", "stage", "step", "sum_number")):
                return float(status["waited"])
        return 0.0
