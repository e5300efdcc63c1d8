"""Clients in the same process: every message is answered at once, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from privirec.runtime.network.coordinator.clients import Address

AnswerMessage = Callable[[bytes], bytes]
"""A client as a carrier sees it: bytes in, bytes out."""


class MemoryCarrier:
    """Carries messages to clients that are functions."""

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
        """There is nothing to wait for: whoever is there has answered."""
