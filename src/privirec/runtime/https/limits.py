"""Limits on requests, per client and for all clients together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from privirec.runtime.health import ROOM

PIECE = 1 << 20
"""Largest part of a message or an answer in one request, in bytes."""
TITLES_FILE = "titles.csv"
"""Titles of items beside the catalogue, in the folders of server and clients."""
LARGEST_ANSWER = 1 << 29
"""Default for the largest answer, in bytes."""


@dataclass(frozen=True)
class Limits:
    """Limits that a server enforces."""

    largest_answer: int = LARGEST_ANSWER
    at_once: int = 2
    """Concurrent requests per client; an honest client makes one."""
    together: int = 128
    """Concurrent requests of all clients; further ones are told to retry."""
    connections: int = 2048
    rate: float = 20.0
    """Requests per second and client."""
    burst: float = 200.0
    """Requests that a client may make above that rate before it is limited."""
    polls: float = 100.0
    """Polls per second of all clients together: the more clients, the longer each one waits."""
    idle_pause: float = 30.0
    """Seconds between two polls of a client while there is no run."""
    busy_pause: float = 1.0
    """Least seconds between two polls of a client during a run."""
    in_memory: int = 1 << 26
    """Bytes of answers that are kept in memory; the rest is on disk."""
    silence: float = 30.0
    """Seconds without data after which a request that has begun is refused."""
    within: float = 300.0
    """Time limit for a request and its response in seconds: a megabyte at about 4 kB/s."""
    room: int = ROOM
    """Bytes of disk space that answers leave free, since a run has to write as well."""

    def pause(self, clients: int, waited: float = 0.0, *, running: bool) -> float:
        """Return the seconds until a client's next poll.

        `clients` is the number of connected clients, `waited` the seconds since this client's last
        answer. The longer a client has waited, the longer it pauses.
        """
        least = self.busy_pause if running else self.idle_pause
        usual = max(least, clients / self.polls)
        longer = min(waited / 2, max(self.idle_pause, 2 * usual))
        return max(usual, longer)

    def present_for(self, clients: int, *, running: bool) -> float:
        """Return the seconds after its last request for which a client counts as connected."""
        return 60 + 3 * self.pause(clients, math.inf, running=running)


class Allowance:
    """Request rate and concurrency of one client."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.at_once = 0
        self._limits = limits
        self._clock = clock
        self._turns, self._counted = limits.burst, clock()

    def seconds_to_wait(self) -> float:
        """Count a request and return 0, or return the seconds to wait without counting it."""
        now = self._clock()
        limits = self._limits
        self._turns = min(limits.burst, self._turns + (now - self._counted) * limits.rate)
        self._counted = now
        if self._turns < 1:
            return (1 - self._turns) / limits.rate
        self._turns -= 1
        return 0.0
