"""How much one client, and all together, may ask of the server."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

PIECE = 1 << 20
"""Bytes of a message or an answer that travel in one request."""
LARGEST_ANSWER = 1 << 29
"""Bytes of one answer, unless told otherwise."""


@dataclass(frozen=True)
class Limits:
    """What a server allows."""

    largest_answer: int = LARGEST_ANSWER
    at_once: int = 2
    """Requests of one client at a time; an honest one makes one."""
    together: int = 128
    """Requests of all clients at a time; others are told to come back."""
    connections: int = 2048
    rate: float = 20.0
    """Requests a second of one client."""
    burst: float = 200.0
    """How many before the rate counts."""
    polls: float = 100.0
    """Requests a second of all clients that only ask whether there is something: the more clients,
    the longer each waits before it asks again."""
    idle_pause: float = 30.0
    """Seconds between two questions of a client while there is no run."""
    busy_pause: float = 1.0
    """The same, at least, in a run."""
    in_memory: int = 1 << 26
    """Bytes of answers that are kept in memory; the rest is on the disk."""
    silence: float = 30.0
    """Seconds without a byte of a request that has begun."""
    within: float = 300.0
    """Seconds for all of a request and its answer: a megabyte, at four kilobytes a second."""
    room: int = 1 << 30
    """Bytes of the disk that answers leave free: a run has to write as well."""

    def pause(self, clients: int, waited: float = 0.0, *, running: bool) -> float:
        """Seconds after which one of so many clients asks again, if its last answer was so many
        seconds ago: what has taken long may take as long again."""
        least = self.busy_pause if running else self.idle_pause
        usual = max(least, clients / self.polls)
        longer = min(waited / 2, max(self.idle_pause, 2 * usual))
        return max(usual, longer)

    def present_for(self, clients: int, *, running: bool) -> float:
        """Seconds after its last request for which a client counts as connected."""
        return 60 + 3 * self.pause(clients, math.inf, running=running)


class Allowance:
    """What is left to one client."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.at_once = 0
        self._limits = limits
        self._clock = clock
        self._turns, self._counted = limits.burst, clock()

    def seconds_to_wait(self) -> float:
        """0 if this request has a turn; otherwise none is taken."""
        now = self._clock()
        limits = self._limits
        self._turns = min(limits.burst, self._turns + (now - self._counted) * limits.rate)
        self._counted = now
        if self._turns < 1:
            return (1 - self._turns) / limits.rate
        self._turns -= 1
        return 0.0
