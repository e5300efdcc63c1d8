"""Start and end of each stage of a federated run, as an observer of its statuses sees them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from privirec.runtime.coordinator.clients import ClientState
from privirec.runtime.coordinator.run_state import Stage
from privirec.runtime.runs import Watch

Clock = Callable[[], float]
BEFORE, AFTER = 0, -1
"""Numbers of the stages before the first sum and after the last."""
GATHERING, HANDING_OUT = "gathering, keys", "handing out"


@dataclass
class Timeline:
    """Observer of a run's statuses, which it also passes on to `watch`."""

    watch: Watch
    clock: Clock = time.perf_counter
    _began: float | None = None
    _seen: dict[int, tuple[float, float, int]] = field(default_factory=dict)
    """First and last time, and number of clients, by the number of the sum (or BEFORE, AFTER)."""

    def __call__(self, status: dict[str, Any]) -> None:
        self.watch(status)
        now = self.clock()
        if self._began is None:
            self._began = now
        if not status:
            return
        over = status["stage"] != Stage.GATHERING.value and not status["step"]
        number = AFTER if over else int(status["sum_number"])
        states = [ClientState(line["state"]) for line in status["clients"].values()]
        inside = sum(not state.is_missing for state in states)
        first = self._seen.get(number, (now, now, 0))[0]
        self._seen[number] = (first, now, inside)

    def rows(self, entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return a row for each stage: gathering, each sum, handing out.

        `entries` are the rows of the run's ledger. The bytes of a broadcast count with the next
        sum, and those of the last one with handing out. A stage ends when the next one begins; a
        stage that passed between two statuses has length zero.
        """
        found, down, number = [self._row(BEFORE, GATHERING, 0, 0)], 0, 0
        for entry in entries:
            down += entry["bytes_down_per_client"]
            if entry["entries"]:
                number += 1
                found.append(self._row(number, entry["what"], entry["bytes_up_per_client"], down))
                down = 0
        found.append(self._row(AFTER, HANDING_OUT, 0, down))
        for row, after in zip(reversed(found[:-1]), reversed(found[1:]), strict=True):
            row["began"] = after["began"] if row["began"] is None else row["began"]
            row["ended"] = after["began"]
        return found

    def _row(self, number: int, name: str, up: int, down: int) -> dict[str, Any]:
        first, last, clients = self._seen.get(number, (None, None, None))
        start = self._began or 0.0
        if number == AFTER and first is None:  # The stage ended before any status showed it.
            first = last = max((seen[1] for seen in self._seen.values()), default=start)
        if number == BEFORE:
            first = start
        if clients is None:
            clients = max((seen[2] for seen in self._seen.values()), default=0)
        return {
            "name": name,
            "sum_number": max(number, 0),
            "began": None if first is None else first - start,
            "ended": None if last is None else last - start,
            "bytes_up": up,
            "bytes_down": down,
            "clients": clients,
        }
