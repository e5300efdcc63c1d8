"""The interface of a carrier, and the loop that drives a run over any carrier.

A carrier moves bytes between a coordinator and its clients, and is not trusted with anything else.
It may lose, delay, duplicate or change messages; both ends detect this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Protocol

from privirec.runtime.coordinator import Coordinator, Stage
from privirec.runtime.coordinator.clients import Address
from privirec.runtime.envelope import Sealed

LOOK_FOR_CLIENTS = 2.0
"""Seconds between two queries for connected clients."""
LAST_WORDS = 20.0
"""Seconds that clients have to learn that a run is over."""
GIVE_WAY, LONGEST_GIVEN = 4.0, 1.0
"""Factor and maximum (in seconds) of the break after each pass over all clients.

The break is GIVE_WAY times as long as the pass, but at most LONGEST_GIVEN. With thousands of
clients, passes without a break would leave no time to receive their replies.
"""


class Carrier(Protocol):
    """Transport of messages. An address only identifies the other end of a connection."""

    @property
    def largest_reply(self) -> int:
        """Most bytes of a reply, such as a vector."""
        ...

    def connected(self) -> Collection[Address]:
        """Return the addresses that can be reached at present."""
        ...

    def send(self, address: Address, message: bytes) -> bool:
        """Accept a message for delivery; return False if it cannot be sent."""
        ...

    def arrivals(self) -> Iterable[tuple[Address, Sealed | None]]:
        """Yield the replies since the last call, with None for a message that nobody answered."""
        ...

    def is_idle(self) -> bool:
        """Return True if every message was answered or given up."""
        ...

    def rest(self) -> None:
        """Wait a moment, because nothing arrived."""
        ...


def carry(
    coordinator: Coordinator,
    carrier: Carrier,
    publish: Callable[[Coordinator], Path],
    *,
    alive: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Drive a run to its end.

    `publish` saves the result and returns the signed artifact. `alive` is called regularly while
    the run goes on.
    """
    coordinator.largest_reply = carrier.largest_reply
    looked, next_look_at_all = -LOOK_FOR_CLIENTS, 0.0
    over: float | None = None
    while True:
        quiet = True
        for address, reply in carrier.arrivals():
            quiet = False
            if reply is None:
                coordinator.failed(address)
            else:
                coordinator.receive(address, reply)
        now = clock()
        if 0 < next_look_at_all - now <= LONGEST_GIVEN:
            carrier.rest()
            continue
        if abs(now - looked) >= LOOK_FOR_CLIENTS:
            coordinator.connected(carrier.connected())
            looked = now
            alive()
        coordinator.tick()
        for address, message in coordinator.outgoing():
            if not carrier.send(address, message):
                coordinator.failed(address)
        ended = clock()
        next_look_at_all = ended + min(LONGEST_GIVEN, GIVE_WAY * (ended - now))
        if coordinator.stage is Stage.COMPUTED:
            coordinator.distribute(publish(coordinator))
        if coordinator.finished:
            over = now if over is None else over
            if carrier.is_idle() or now - over > LAST_WORDS:
                return
        if quiet:
            carrier.rest()
