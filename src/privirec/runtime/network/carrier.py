"""What a carrier must be able to do, and the loop that drives a run over any of them.

A carrier moves bytes between a coordinator and its clients and is trusted with nothing else: it
may lose messages, delay them, deliver them twice or change them, and both ends notice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Protocol

from privirec.runtime.network.coordinator import Coordinator, Stage
from privirec.runtime.network.coordinator.clients import Address

LOOK_FOR_CLIENTS = 2.0
"""Seconds between two looks at who is connected."""
LAST_WORDS = 20.0
"""Seconds in which clients can hear that a run is over."""
GIVE_WAY, LONGEST_GIVEN = 4.0, 1.0
"""A look at all clients is followed by so many times as long without one, in seconds at most: with
thousands of clients it would take the time in which they could be answered."""


class Carrier(Protocol):
    """Moves messages. An address means nothing but the other end of a line."""

    def connected(self) -> Collection[Address]:
        """Who can be reached at present."""
        ...

    def send(self, address: Address, message: bytes) -> bool:
        """Take a message to be carried there; False if that cannot be done."""
        ...

    def arrivals(self) -> Iterable[tuple[Address, bytes | None]]:
        """Replies that have come since the last call; None where nobody answered."""
        ...

    def is_idle(self) -> bool:
        """Whether every message was answered or given up."""
        ...

    def rest(self) -> None:
        """Nothing came: wait a moment."""
        ...


def carry(
    coordinator: Coordinator,
    carrier: Carrier,
    publish: Callable[[Coordinator], Path],
    *,
    alive: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Drive a run to its end. `publish` saves the result and returns the signed artifact; `alive`
    is called now and then while the run goes on."""
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
