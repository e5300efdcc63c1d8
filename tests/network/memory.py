"""Carrier for clients in the same process, which answer each message immediately."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from privirec.runtime.coordinator.clients import Address

AnswerMessage = Callable[[bytes], bytes]
"""Interface of a client to a carrier: it takes a message's bytes and returns a reply's."""


class MemoryCarrier:
    """Carrier whose clients are functions in this process."""

    largest_reply = 1 << 40

    def __init__(self, clients: Mapping[Address, AnswerMessage]) -> None:
        self._clients = clients
        self._arrived: list[tuple[Address, bytes | None]] = []

    def connected(self) -> Collection[Address]:
        return self._clients.keys()

    def send(self, address: Address, message: bytes) -> bool:
        self._arrived.append((address, self._clients[address](message)))
        return True

    def arrivals(self) -> Iterator[tuple[Address, bytes | None]]:
        while self._arrived:
            yield self._arrived.pop(0)

    def is_idle(self) -> bool:
        return not self._arrived

    def rest(self) -> None:
        """Return immediately: every client has already answered."""
